/* draws.h: random numbers for a whole test program, from one state: the seed that it is set to brings all of
 * them again. Not thread-safe. */
#ifndef ZR_TEST_DRAWS_H
#define ZR_TEST_DRAWS_H

#include <stddef.h>
#include <stdlib.h>

#include "tests/support/random.h"

static uint64_t random_state = 88172645463325252u; /* never 0 */

static inline uint64_t next_random(void)
{
    return xorshift64(&random_state);
}

static inline size_t random_below(size_t n)
{
    return (size_t)(next_random() % n);
}

#endif
