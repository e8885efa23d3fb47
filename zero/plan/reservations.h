/* reservations.h: reservations of a step: the maximum memory that the step needs from each of its actions to
 * its end. A run that shares memory reports its reservations to zrd during the step
 * (alloc/service/README.md).
 *
 * Positions count from the end of the step's list, because a rehearsal omits middle micro-batches; the
 * actions are those of the last micro-batch. Bytes are granules reserved in the rehearsal's arena under the
 * placement plan that the run will use. The rehearsal trims idle granules after each action, because an arena
 * takes new granules before it moves idle ones. A run remains within its reservations if it also trims after
 * each action, from its first reservation to the end of its time slice. */
#ifndef ZR_PLAN_RESERVATIONS_H
#define ZR_PLAN_RESERVATIONS_H

#include "zero/step/schedule.h"

struct zr_plan_reservations {
    zr_arena *host_arena;
    size_t *most_bytes; /* [count]: maximum from the end of an action on; [0]: the last action and
                         * evaluations */
    size_t count;       /* 0: no reservations */
    size_t after_bytes; /* maximum of evaluations */
};

/* Number of actions after an action in its list. */
static inline size_t zr_plan_reservations_place(const struct zr_actions *step, const struct zr_action *action)
{
    return step->count - 1 - (size_t)(action - step->actions);
}

/* Calls of a rehearsal, in order: before the last micro-batch / after each of its actions / after each
 * action of the following evaluation / at the end. ZR_ERR_HOST_MEMORY. */
zr_result zr_plan_reservations_begin(struct zr_plan_reservations *reservations, zr_arena *arena,
                                     size_t count);
void zr_plan_reservations_note(struct zr_plan_reservations *reservations, zr_arena *arena, size_t place);
void zr_plan_reservations_note_after(struct zr_plan_reservations *reservations, zr_arena *arena);
void zr_plan_reservations_close(struct zr_plan_reservations *reservations);
/* Frees the records. */
void zr_plan_reservations_end(struct zr_plan_reservations *reservations);

#endif
