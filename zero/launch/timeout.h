/* timeout.h: how long somebody has been waited for, as a time-out counts it. Private to zero/. */
#ifndef ZR_TIMEOUT_H
#define ZR_TIMEOUT_H

#include "alloc/base/system/os.h"

/* Two looks are this far apart at most where whoever looks can run. What is more was taken from it too: a run
 * that was stopped and goes on hours later finds nobody silent for hours. */
#define ZR_COMM_POLLS_NS 200000000ull

struct zr_timeout {
    uint64_t polled_ns, waited_ns;
};

static inline struct zr_timeout zr_timeout_begin(void)
{
    return (struct zr_timeout){.polled_ns = zr_os_now_ns()};
}

/* To be called with every look; returns what has been waited so far. */
static inline uint64_t zr_timeout_waited_ns(struct zr_timeout *timeout)
{
    uint64_t now_ns = zr_os_now_ns(), passed_ns = now_ns - timeout->polled_ns;
    timeout->polled_ns = now_ns;
    timeout->waited_ns += passed_ns < ZR_COMM_POLLS_NS ? passed_ns : ZR_COMM_POLLS_NS;
    return timeout->waited_ns;
}

#endif
