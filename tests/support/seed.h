/* seed.h: where the draws of a test program begin: at ZR_TEST_SEED, or else always at the same, so that what
 * fails on one machine fails on all. `ZR_TEST_SEED=2 make check` draws others. */
#ifndef ZR_TEST_SEED_H
#define ZR_TEST_SEED_H

#include <stdlib.h>

#include "tests/support/random.h"
#include "tests/support/tap.h"

/* Never 0; says in a note how it comes again. */
static inline uint64_t run_seed(void)
{
    const char *given = getenv("ZR_TEST_SEED");
    uint64_t number = given ? strtoull(given, NULL, 0) : 1;
    tap_note("ZR_TEST_SEED=%llu", (unsigned long long)number);
    return splitmix64(&number) | 1;
}

/* Of passes that fail in turn: one in so many, and with ZR_TEST_LONG set, as in long_shadow.t, each. */
static inline unsigned run_stride(unsigned usual)
{
    return getenv("ZR_TEST_LONG") ? 1 : usual;
}

#endif
