/* speculate.h: the speculative update (SuperOffload; post-validation of zero-bubble pipelines): a thread
 * updates a unit's masters, momentum and variance as soon as its gradients are reduced, before the norm is
 * known, assuming that nothing is clipped or skipped. A log keeps the old values. If the assumption was
 * wrong, the old values are restored and the update is repeated with clipping or skipped. In both cases the
 * bits are those of an engine that waits for the norm. Private to engine/.
 *
 * For state in memory the log is a block of the state's arena, tag offload: 4 bytes times 3 (AdamW) or 2
 * (SGD) for each element that the rank updates. Units are logged from the last one on, the order of backward,
 * up to zr_offload.speculative_bytes; other units wait for the norm. Units shared by pipeline ranks also
 * wait, because their gradients are summed at the end of the step, and units whose whole sums the update
 * gathers. In a pipeline a stage thus updates while others still compute and while the norm is summed over
 * the stages. The next step's forward waits for the norm: it begins on the first stage, whose last backward
 * is the last of the step, so running it before the norm would only hide the time of the norm's exchange. On
 * the simulated clock a unit takes the time of its copy to the log at the host's bandwidth, concurrently with
 * the caller; the update itself takes no time.
 */
#ifndef ZR_ENGINE_SPECULATE_H
#define ZR_ENGINE_SPECULATE_H

#include "zero/engine/actions.h"
#include "zero/engine/gradients.h"

/* State in an offload file needs no log. Up to the byte limit, units have two places in the file: the update
 * reads a unit from its current place and writes the other one, which becomes current when the norm confirms
 * the update. The new parameters are written immediately, because nothing reads them before the end of the
 * step; after a wrong update they are written again from the current place. Parameters that are kept in a
 * file wait for the norm in the arena (tag param; 2 or 4 bytes per element of this rank). State is read from
 * the beginning of the step on, in the order in which the last step's backward finished the units, as buffers
 * become free. If backward has another order, the rest of the step waits for the norm. */

/* The two ways to undo an update: a log of old values of state in memory, and two places of state in a file.
 */
struct zr_speculation_kind {
    const struct zr_update_way *way;        /* of an update before the norm is known */
    const struct zr_action_transform *step; /* of the list of actions */
    /* Memory of the log. Leaves speculation->updated_units 0 if no unit can be speculative; fails if the
     * limit is below the first unit. */
    zr_result (*open)(struct zr_engine *engine);
    zr_result (*arm)(struct zr_engine *engine);                  /* at the beginning of a step */
    bool (*begins)(struct zr_engine *engine, size_t unit);       /* whether a unit's update may begin now */
    zr_result (*await)(struct zr_engine *engine, size_t unit);   /* its end */
    void (*keep)(struct zr_engine *engine, size_t unit);         /* the norm confirms the update */
    zr_gradient_call *undo;                                      /* undoes an update that is repeated */
    zr_gradient_call *cancel;                                    /* undoes an update that is not repeated */
    zr_result (*publish)(struct zr_engine *engine, size_t unit); /* the parameters of a confirmed update */
    void (*end)(struct zr_engine *engine);                       /* all updates of the step have ended */
};
extern const struct zr_speculation_kind zr_speculation_logged, zr_speculation_filed;

struct zr_speculated_unit {
    struct zr_engine *engine;
    struct zr_copies_task task;
    struct zr_numbers gradients;
    float *log;       /* old values; NULL: not logged */
    void *parameters; /* state in a file: where the update writes parameters */
    bool begun;       /* update submitted and not rolled back */
    bool ended;       /* its gradients are complete in this step */
    bool logged;      /* old values are in the log; owned by the worker until its ticket was waited for */
    zr_ticket ticket;
};

/* Whether a unit may be updated speculatively: its state is in the tier of the log, and this rank's gradients
 * are complete after backward. */
bool zr_engine_may_speculate(const struct zr_engine *engine, size_t unit);
/* Bytes of a unit's old values. */
size_t zr_engine_old_bytes(const struct zr_engine *engine, size_t unit);

zr_result zr_engine_speculation_open(struct zr_engine *engine);
void zr_engine_speculation_close(struct zr_engine *engine);
/* After zr_engine_reduce() of a unit: ends its reduction if its gradients are complete, which starts the
 * update. A reduction that runs concurrently ends after the next unit's has started; that of staged gradients
 * when their block is needed. */
zr_result zr_engine_speculation_follow(struct zr_engine *engine, size_t unit);
/* Wait for a unit's update, if any / for all updates. */
zr_result zr_engine_speculation_await(struct zr_engine *engine, size_t unit);
zr_result zr_engine_speculation_await_all(struct zr_engine *engine);
/* The norm is known. Waits for all updates. If `update` (NULL: the step is skipped) differs from the assumed
 * one, rolls them back and sets *rolled_back, which is otherwise not changed. */
zr_result zr_engine_speculation_settle(struct zr_engine *engine, const struct zr_engine_update *update,
                                       bool *rolled_back);
/* Whether a unit has been updated. */
bool zr_engine_speculation_holds(const struct zr_engine *engine, size_t unit);
void zr_engine_speculation_forget(struct zr_engine *engine, size_t unit);

#endif
