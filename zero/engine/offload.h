/* offload.h: copies of gradients and parameters between device and host for an offloaded optimizer. Private
 * to engine/.
 *
 * Gradients move to the host as they are reduced: the destination of the reduce-scatter is the shard on the
 * host; with one rank they are copied from staging. The update starts when the norm is known. It writes
 * parameters alternately to two bounce buffers of one bucket on the host, from which they are copied to the
 * device while the next piece is updated; in fp32 they are copied from the masters. The last copies overlap
 * with the next forward. */
#ifndef ZR_ENGINE_OFFLOAD_H
#define ZR_ENGINE_OFFLOAD_H

#include "zero/engine/parameter_tier.h"

/* Opens engine->copies, with parameter servers, too (served.h). */
zr_result zr_engine_offload_open(struct zr_engine *engine);
void zr_engine_offload_close(struct zr_engine *engine);

/* One rank only: copy a unit's staged gradients to the host / back to staging. */
zr_result zr_engine_gradients_leave(struct zr_engine *engine, size_t unit);
zr_result zr_engine_gradients_return(struct zr_engine *engine, size_t unit);
/* One rank only: write or add a unit's staged gradients to the fp32 sums on the host. */
zr_result zr_engine_gradients_add(struct zr_engine *engine, size_t unit);
/* Wait for the copy of a unit's gradients, or of its parameters, if any. With streams, the kernels' stream
 * waits. await_masters(): the host waits, before it changes the source of the copy. */
zr_result zr_engine_await_gradients(struct zr_engine *engine, size_t unit);
zr_result zr_engine_await_parameters(struct zr_engine *engine, size_t unit);
zr_result zr_engine_await_masters(struct zr_engine *engine, size_t unit);

/* Makes the host wait before it overwrites the source of a copy. */
zr_result zr_engine_host_waits_for(struct zr_engine *engine, zr_ticket *ticket);
/* In fp32: copies the masters of a window to `to`; does nothing if the window has parameters of its own. */
zr_result zr_engine_copy_masters(struct zr_engine *engine, const struct zr_owned *owned,
                                 const struct zr_window *window, void *to);

#endif
