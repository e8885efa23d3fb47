/* plans_support.h: what the tests of plans share: the arena that is under one, its counts, and requests and
 * steps for it. */
#ifndef ZR_PLANS_SUPPORT_H
#define ZR_PLANS_SUPPORT_H

#include "alloc/plan/plan.h"
#include "tests/support/blocks.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static inline struct zr_executor_counts counts(void)
{
    struct zr_executor_counts out;
    zr_arena_executor_counts(arena, &out);
    return out;
}

static inline struct zr_plan_step step(size_t bytes, size_t offset_bytes, uint32_t alive_count)
{
    return (struct zr_plan_step){.request = {.bytes = bytes, .alignment = 256, .tag = ZR_TAG_GRAD},
                                 .thread = zr_thread_number(),
                                 .offset_bytes = offset_bytes,
                                 .alive_count = alive_count};
}

#endif
