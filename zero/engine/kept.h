/* kept.h: an engine whose state outlives its process (zr_engine_options.kept).
 *
 * Pools of parameters, gradients and optimizer state are kept memory, beside a log of one window of elements
 * and a record. A step has three phases on each rank, and the record tells which one a dead process was in:
 *
 *   computing   The state is that of `steps` steps. After a restart the step is repeated.
 *   updating    Action DECIDE has stored the arguments of the update and then `decided`. The gradients of all
 *               ranks are reduced, since the norm is known. Before a window of elements is updated, its old
 *               state goes to the log. After a restart the window of the log is restored, and the update
 *               continues from there with the kept gradients.
 *   committed   Action COMMIT has advanced `steps`. The next step may overwrite the gradients.
 *
 * If a rank has decided a step, every rank can finish the step: a rank that does not know the norm takes the
 * arguments of one that does. Ranks that are done wait in the next step, which needs gradients of all ranks,
 * so no two ranks are more than a step apart.
 *
 * With backup.h the log has the state of all units before the update, so a rank can return to the step before
 * at any time.
 *
 * The order of stores is what a process killed between two of them leaves, since the memory itself survives.
 * Private to engine/. */
#ifndef ZR_ENGINE_KEPT_H
#define ZR_ENGINE_KEPT_H

#include "zero/engine/actions.h"

/* What the update of a step needs beside gradients and state. */
struct zr_kept_arguments {
    float rate, gradient_scale, correction1, correction2;
};

struct zr_kept_record {
    _Atomic uint64_t layout;  /* hash of what the memory contains; 0: nothing of use */
    _Atomic uint64_t steps;   /* committed */
    _Atomic uint64_t decided; /* the last step whose update has begun */
    _Atomic uint64_t done;    /* position of the update of step `decided` */
    _Atomic uint64_t logged;  /* 1 + the position whose window the log has; 0: none */
    /* With backup.h; each is 1 + a step, or 0: none. */
    _Atomic uint64_t undo;      /* the step to which the log leads back from `done` */
    _Atomic uint64_t undoing;   /* the same, from the start of a return to its end */
    _Atomic uint64_t images[2]; /* steps of the copies that this rank has */
    struct zr_kept_arguments arguments;
};

/* Allocates a pool: kept memory under `name`, or a block of the arena. The message of a tag limit has the
 * name / frees it and clears the pointer. */
struct zr_kept_pool {
    zr_arena *arena;
    const char *name;
    zr_tag tag;
    size_t count, bytes;
};
zr_result zr_kept_pool_take(const struct zr_kept_memory *kept, const struct zr_kept_pool *pool, void *out);
void zr_kept_pool_drop(const struct zr_kept_memory *kept, zr_arena *arena, void *pointer_to_pool);

/* After the pools are allocated: allocates log and record. */
zr_result zr_engine_kept_open(struct zr_engine *engine);
void zr_engine_kept_close(struct zr_engine *engine);
/* The fault site: a process that dies between two stores. */
void zr_engine_kept_die_if_asked(void);
/* The contents change outside of a step, so that a process killed meanwhile leaves nothing of use. */
void zr_engine_kept_invalidate(struct zr_engine *engine);

/* Adds the actions to the list of a step. */
extern const struct zr_action_transform zr_engine_kept_step;
void zr_engine_kept_decide(struct zr_engine_run *run);
void zr_engine_kept_store(struct zr_engine *engine, const struct zr_kept_arguments *arguments);
void zr_engine_kept_commit(struct zr_engine *engine);
/* The first element of the unit whose update is not complete / logs a window that is about to be updated /
 * notes that the elements up to `end` are updated. */
size_t zr_engine_kept_begin(const struct zr_engine *engine, size_t unit);
zr_result zr_engine_kept_log(struct zr_engine_run *run, size_t unit, size_t at, size_t count);
void zr_engine_kept_note(struct zr_engine *engine, size_t unit, size_t end);
/* The end of the elements of the unit that are updated, in whole or in part. */
size_t zr_engine_kept_end(const struct zr_engine *engine, size_t unit);
/* Maximum elements of a window of the update; 0: no limit. */
size_t zr_engine_kept_window(const struct zr_engine *engine);
/* Copies a window's state to the log, or back. */
zr_result zr_engine_kept_copy(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                              struct zr_overlap window, bool back);
/* The window in the log, if its update has begun and has not ended; false: there is none. */
bool zr_engine_kept_logged(const struct zr_engine *engine, size_t *unit, struct zr_overlap *window);

/* ---- After a restart: recovery.c ---- */

/* Whether all ranks hold the same step or neighbouring ones. Collective. If not, the caller initialises. */
zr_result zr_engine_kept_find(struct zr_engine *engine, bool *held);
/* Finishes the last decided step on all ranks and publishes the parameters. Collective. */
zr_result zr_engine_kept_recover(struct zr_engine *engine);

#endif
