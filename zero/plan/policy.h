/* policy.h: memory of a run under another allocator: replays the trace of a rehearsal under a model of
 * that allocator (defrag/replay). */
#ifndef ZR_PLAN_POLICY_H
#define ZR_PLAN_POLICY_H

#include "zero/plan/plan.h"

struct zr_policy_use {
    uint64_t live_bytes;     /* maximum live bytes */
    uint64_t reserved_bytes; /* maximum reserved by the policy until it failed or the run ended */
    bool fits;               /* false: the policy found no memory within the capacity */
};

/* Replays two steps and an evaluation of the rank in `request`. A contiguous pool counts as one block.
 * `capacity_bytes` 0: unlimited. ZR_ERR_IO: cannot create the temporary trace file in `folder`. */
zr_result zr_policy_weigh(struct zr_policy_use *out, const struct zr_plan_request *request,
                          enum zr_policy policy, uint64_t capacity_bytes, const char *folder);

#endif
