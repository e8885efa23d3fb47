/* timeout.h: how long somebody has been waited for, as a time-out counts it. Private to zero/. */
#ifndef ZR_PATIENCE_H
#define ZR_PATIENCE_H

#include "alloc/base/os.h"

/* Two looks are this far apart at most where whoever looks can run. What is more was taken from it too: a run
 * that was stopped and goes on hours later finds nobody silent for hours. */
#define ZR_COMM_LOOKS_NS 200000000ull

struct zr_patience {
    uint64_t looked_ns, waited_ns;
};

static inline struct zr_patience zr_patience_begin(void)
{
    return (struct zr_patience){.looked_ns = zr_os_now_ns()};
}

/* To be called with every look; returns what has been waited so far. */
static inline uint64_t zr_patience_look(struct zr_patience *patience)
{
    uint64_t now_ns = zr_os_now_ns(), passed_ns = now_ns - patience->looked_ns;
    patience->looked_ns = now_ns;
    patience->waited_ns += passed_ns < ZR_COMM_LOOKS_NS ? passed_ns : ZR_COMM_LOOKS_NS;
    return patience->waited_ns;
}

#endif
