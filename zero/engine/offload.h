/* offload.h: what an engine does where its optimizer state lives on the host: its copies, and the way of new
 * parameters from masters on the host to where they are used. Private to engine/.
 *
 * Gradients leave as they are reduced: their shard is the destination of the reduce-scatter, which passes
 * through the communicator's ring of constant size; of one rank they are copied out of staging. On the host
 * they wait for the norm. The update writes parameters into two bounce buffers on the host by turns, each of
 * one bucket, from which they are copied while the next piece is updated; of fp32 they are copied from the
 * masters. The copies of the last units go on while the next forward begins. */
#ifndef ZR_ENGINE_OFFLOAD_H
#define ZR_ENGINE_OFFLOAD_H

#include "zero/engine/engine.h"

zr_result zr_engine_offload_open(struct zr_engine *engine);
void zr_engine_offload_close(struct zr_engine *engine);

/* Of one rank: a unit's staged gradients to their place on the host / back into staging, at once. */
zr_result zr_engine_gradients_leave(struct zr_engine *engine, size_t unit);
zr_result zr_engine_gradients_return(struct zr_engine *engine, size_t unit);
/* Likewise to fp32 sums on the host, which they begin or are added to. */
zr_result zr_engine_gradients_add(struct zr_engine *engine, size_t unit);
/* Waits for the copy of a unit's gradients / of its parameters, if there is one: on a card the kernels'
 * stream does / the host, before it changes what parameters are copied from. */
zr_result zr_engine_await_gradients(struct zr_engine *engine, size_t unit);
zr_result zr_engine_await_parameters(struct zr_engine *engine, size_t unit);
zr_result zr_engine_await_masters(struct zr_engine *engine, size_t unit);

/* A stretch of what a rank owns of a unit, whose parameters are about to be written. */
struct zr_window {
    size_t from, count;       /* elements after owned.from */
    struct zr_numbers values; /* of element `from`; NULL: parameters are the masters, or a copy of them */
    void *slot;               /* of a unit in an offload file: where its shard is written to; else NULL */
};
/* The next window: from 0, or behind the one before, until owned's end. */
zr_result zr_engine_window_open(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                                size_t from, struct zr_window *out);
/* They are written: sends them where they belong. */
zr_result zr_engine_window_close(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                                 const struct zr_window *window);

#endif
