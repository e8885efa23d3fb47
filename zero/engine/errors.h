/* errors.h: errors of gradients: what a method of compression did not send of earlier gradients. A rank adds
 * them to its next gradient, so the sum of what it has sent and its last error is the sum of its gradients.
 * Private to engine/ and checkpoint/. */
#ifndef ZR_ENGINE_ERRORS_H
#define ZR_ENGINE_ERRORS_H

#include "zero/engine/engine.h"

/* Whether gradients are sent by a method. */
static inline bool zr_engine_sends_by(const struct zr_engine *engine, enum zr_compression_method method)
{
    return engine->world > 1 && engine->options.compression.kinds[ZR_COMPRESSED_GRADIENTS].on &&
           engine->options.compression.kinds[ZR_COMPRESSED_GRADIENTS].method == method;
}

/* Whether the method keeps errors / whether it does so in this step. A plan is of the steps after a warm-up.
 */
bool zr_engine_keeps_errors(const struct zr_engine *engine);
bool zr_engine_feeds_errors(const struct zr_engine *engine);
/* Number of steps of the warm-up; UINT64_MAX: not known yet, see warmup.h. */
uint64_t zr_engine_warmup_steps(const struct zr_engine *engine);
/* Number of steps after which the first errors exist. */
uint64_t zr_engine_errors_first(const struct zr_engine *engine);

/* Allocates the errors, zeros / frees them. They do nothing if the method keeps none. */
zr_result zr_engine_errors_open(struct zr_engine *engine);
void zr_engine_errors_close(struct zr_engine *engine);
/* Errors of this rank's gradients of a unit that is not frozen, [padded_elements]. A checkpoint has them in
 * files of their own (zero/checkpoint/error_file.c). */
float *zr_engine_errors(const struct zr_engine *engine, size_t unit);
/* Likewise of this rank as the owner of a shard of momentum (momentum.h), [shard_elements]. */
float *zr_engine_owner_errors(const struct zr_engine *engine, size_t unit);

#endif
