/* api_entry.c: fuzz_api.h for libFuzzer: `make fuzz FUZZ_TARGET=api`, tests/long/long_fuzz.t and
 * tests/long/soak_api.t. */
#define _GNU_SOURCE
#include "tests/support/fuzz/fuzz_api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!fuzz_api(data, bytes))
        abort();
    return 0;
}
