/* pin.h: a benchmark's threads, each on a processor of its own: else the system may begin two on one, and
 * take longer to part them than a round lasts. Include after defining _GNU_SOURCE. */
#ifndef ZR_TEST_PIN_H
#define ZR_TEST_PIN_H

#include <sched.h>

/* Keeps the calling thread on the number-th processor that it may use; where there are fewer, it goes on. */
static inline void pin_to(unsigned number)
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all) && number-- == 0) {
            CPU_SET(i, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
}

#endif
