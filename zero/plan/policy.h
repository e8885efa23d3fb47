/* policy.h: what a run would take if another allocator placed its tensors: the trace of a rehearsal, replayed
 * under a model of that allocator (defrag/replay). */
#ifndef ZR_PLAN_POLICY_H
#define ZR_PLAN_POLICY_H

#include "zero/plan/plan.h"

struct zr_policy_use {
    uint64_t live_bytes;     /* the most that is asked for at a time */
    uint64_t reserved_bytes; /* the most that the policy has taken by then, or when the run ended */
    bool fits;               /* false: it found no memory within the capacity */
};

/* Two steps and an evaluation of the rank that `request` speaks of. The memory of a contiguous pool is one
 * block. `capacity_bytes` 0: none. ZR_ERR_IO: no file for the trace, which is a temporary one, in `folder`.
 */
zr_result zr_policy_weigh(struct zr_policy_use *out, const struct zr_plan_request *request,
                          enum zr_policy policy, uint64_t capacity_bytes, const char *folder);

#endif
