/* fuzz_entry.c: the targets of fuzz_targets.h for libFuzzer, which looks at the program as it mutates: `make
 * fuzz`. The first byte of an input picks the format, unless ZR_FUZZ_TARGET names it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/fuzz/fuzz_targets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The target that the surroundings name; FUZZ_TARGETS: none. */
static unsigned named_target(void)
{
    const char *name = getenv("ZR_FUZZ_TARGET");
    unsigned at = 0;
    while (at < FUZZ_TARGETS && (!name || strcmp(fuzz_targets[at].name, name) != 0))
        at++;
    if (name && at == FUZZ_TARGETS) {
        fprintf(stderr, "ZR_FUZZ_TARGET: there is no %s\n", name);
        abort();
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    zr_result result = ZR_OK;
    static bool started;
    static unsigned named;
    if (!started) {
        if (!fuzz_start())
            abort();
        named = named_target();
        started = atexit(fuzz_end) == 0;
    }
    if (bytes == 0)
        return 0;
    const struct fuzz_target *target = &fuzz_targets[named < FUZZ_TARGETS ? named : data[0] % FUZZ_TARGETS];
    if (!target->run(data + 1, bytes - 1, &result)) {
        fprintf(stderr, "%s: a contradiction or a leak: %s\n", target->name, zr_last_error());
        abort();
    }
    return 0;
}
