/* pace.h: time as a test program gets on with work of its own. A limit that is kept in time of a clock on a
 * quiet machine is missed on a busy or slow one, through nobody's fault: here such a machine has a slow
 * clock. */
#ifndef ZR_TEST_PACE_H
#define ZR_TEST_PACE_H

#include <stdint.h>
#include <time.h>

#include "alloc/os.h"

struct pace {
    double ms,
        clock_ms; /* since pace_start(): at this program's pace, and by the clock, which is never behind */
    uint64_t start_ns, last_ns;
};

static inline struct pace pace_start(void)
{
    uint64_t now_ns = zr_os_now_ns();
    return (struct pace){.start_ns = now_ns, .last_ns = now_ns};
}

/* Works for some 2 ms and sleeps for 3, by a machine that does nothing else; however long it takes here, it
 * counts for no more than PACE_STEP_MS. What passes between two calls counts in full up to that, too. */
static inline void pace_wait(struct pace *pace)
{
    enum { PACE_STEP_MS = 7, PACE_WORK = 1000000 };
    volatile uint64_t result;
    uint64_t state = pace->last_ns;
    for (unsigned i = 0; i < PACE_WORK; i++)
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    result = state;
    (void)result;
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    uint64_t now_ns = zr_os_now_ns();
    double step_ms = (double)(now_ns - pace->last_ns) / 1e6;
    pace->ms += step_ms < PACE_STEP_MS ? step_ms : PACE_STEP_MS;
    pace->clock_ms = (double)(now_ns - pace->start_ns) / 1e6;
    pace->last_ns = now_ns;
}

#endif
