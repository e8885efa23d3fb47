/* stand_ins.c: functions of NVIDIA's libraries that programs link and that have no answer elsewhere: each is
 * counted and returns 0, which is success. build/rehearse/stand_ins.h lists them: what
 * alloc/rehearse/functions.txt has beyond the functions of the other files. See runtime.h. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc/rehearse/runtime/runtime.h"

#define STAND_IN(name) NUMBER_##name,
enum number {
#include "rehearse/stand_ins.h"
    STAND_INS_COUNT
};
#undef STAND_IN

static atomic_ullong calls[STAND_INS_COUNT];

/* Nothing is written through the arguments. */
#define STAND_IN(name)                                                                                       \
    __attribute__((visibility("default"))) int name(void);                                                   \
    int name(void)                                                                                           \
    {                                                                                                        \
        atomic_fetch_add_explicit(&calls[NUMBER_##name], 1, memory_order_relaxed);                           \
        return 0;                                                                                            \
    }
#include "rehearse/stand_ins.h"
#undef STAND_IN

#define STAND_IN(name) #name,
static const char *const names[] = {
#include "rehearse/stand_ins.h"
};
#undef STAND_IN

/* "NAME CALLS" for each that was called, and the workspaces, into the file that ZR_REHEARSE_CALLS names;
 * processes append. */
__attribute__((destructor)) static void write_calls(void)
{
    const char *path = getenv("ZR_REHEARSE_CALLS");
    FILE *file = path && *path ? fopen(path, "ae") : NULL;
    if (!file)
        return;
    for (size_t i = 0; i < STAND_INS_COUNT; i++)
        if (calls[i])
            fprintf(file, "%s %llu\n", names[i], calls[i]);
    emulated_put_workspaces(file);
    fclose(file);
}
