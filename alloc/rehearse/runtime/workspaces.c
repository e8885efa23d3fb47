/* workspaces.c: how often a program was told that a library needs no workspace. NVIDIA publishes no rule for
 * the sizes of these libraries' workspaces: they depend on shape, version and the algorithm that a heuristic
 * chooses. See runtime.h. */
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "alloc/rehearse/runtime/runtime.h"

static const char *const libraries[] = {"cuDNN", "cuFFT", "cuSOLVER", "cuSPARSE"};
enum { LIBRARIES_COUNT = sizeof libraries / sizeof *libraries };
static atomic_ullong asked[LIBRARIES_COUNT];

size_t emulated_no_workspace(const char *function)
{
    for (size_t i = 0; i < LIBRARIES_COUNT; i++)
        if (strncasecmp(function, libraries[i], strlen(libraries[i])) == 0)
            atomic_fetch_add_explicit(&asked[i], 1, memory_order_relaxed);
    return 0;
}

void emulated_put_workspaces(FILE *file)
{
    for (size_t i = 0; i < LIBRARIES_COUNT; i++)
        if (asked[i])
            fprintf(file, "workspaces:%s %llu\n", libraries[i], asked[i]);
}
