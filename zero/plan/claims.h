/* claims.h: what a step takes at most from each of its actions to its end. A run that shares memory with
 * others says it in its step (alloc/service/README.md).
 *
 * Counted from the end of the step's list, since a rehearsal leaves micro-batches out in the middle; the
 * actions are those of the last micro-batch. Bytes are granules reserved in the arena of the rehearsal, whose
 * blocks lie in the places that it has found, as they will in the run's. What is idle goes after each action,
 * since an arena rather takes new granules than move idle ones from place to place: a run keeps its claims if
 * it does so, too, from the first claim that it says to the end of its turn. */
#ifndef ZR_PLAN_CLAIMS_H
#define ZR_PLAN_CLAIMS_H

#include "zero/step/schedule.h"

struct zr_plan_claims {
    zr_arena *host_arena;
    size_t *most_bytes; /* [count]: from the end of an action on; [0]: of the last one, and of evaluations */
    size_t count;       /* 0: there are none */
    size_t after_bytes; /* of evaluations */
};

/* How many actions come after this one in its list. */
static inline size_t zr_plan_claims_place(const struct zr_schedule *step, const struct zr_action *action)
{
    return step->count - 1 - (size_t)(action - step->actions);
}

/* Of a step that is rehearsed, in order: before its last micro-batch; after each of its actions from there
 * on; after each of an evaluation that follows it; at the end. ZR_ERR_HOST_MEMORY. */
zr_result zr_plan_claims_begin(struct zr_plan_claims *claims, zr_arena *arena, size_t count);
void zr_plan_claims_note(struct zr_plan_claims *claims, zr_arena *arena, size_t place);
void zr_plan_claims_note_after(struct zr_plan_claims *claims, zr_arena *arena);
void zr_plan_claims_close(struct zr_plan_claims *claims);
/* Gives the records back. */
void zr_plan_claims_end(struct zr_plan_claims *claims);

#endif
