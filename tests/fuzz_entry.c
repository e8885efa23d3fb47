/* fuzz_entry.c: the targets of fuzz_targets.h for libFuzzer, which looks at the program as it mutates: `make
 * fuzz`. The first byte of an input picks the format. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz_targets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    zr_result result = ZR_OK;
    static bool started;
    if (!started) {
        if (!fuzz_start())
            abort();
        started = atexit(fuzz_end) == 0;
    }
    if (bytes == 0)
        return 0;
    const struct fuzz_target *target = &fuzz_targets[data[0] % FUZZ_TARGETS];
    if (!target->run(data + 1, bytes - 1, &result)) {
        fprintf(stderr, "%s: a contradiction or a leak: %s\n", target->name, zr_last_error());
        abort();
    }
    return 0;
}
