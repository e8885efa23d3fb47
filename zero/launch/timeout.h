/* timeout.h: waiting time as a timeout counts it. Private to zero/. */
#ifndef ZR_TIMEOUT_H
#define ZR_TIMEOUT_H

#include "alloc/base/system/os.h"

/* Maximum time counted between two polls. A stopped or starved waiter polls later than that, and the excess
 * does not count: a run that is stopped and continued hours later does not time out. */
#define ZR_COMM_POLLS_NS 200000000ull

struct zr_timeout {
    uint64_t polled_ns, waited_ns;
};

static inline struct zr_timeout zr_timeout_begin(void)
{
    return (struct zr_timeout){.polled_ns = zr_os_now_ns()};
}

/* Adds the time since the last poll and returns the total. Call it at every poll. */
static inline uint64_t zr_timeout_waited_ns(struct zr_timeout *timeout)
{
    uint64_t now_ns = zr_os_now_ns(), passed_ns = now_ns - timeout->polled_ns;
    timeout->polled_ns = now_ns;
    timeout->waited_ns += passed_ns < ZR_COMM_POLLS_NS ? passed_ns : ZR_COMM_POLLS_NS;
    return timeout->waited_ns;
}

#endif
