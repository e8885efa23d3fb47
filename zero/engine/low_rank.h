/* low_rank.h: sums of gradients by matrices of low rank (PowerSGD, https://arxiv.org/abs/1905.13727). Private
 * to engine/.
 *
 * V = gradient + error is a matrix [rows, columns] of each rank, Q [columns, rank] the same on all ranks:
 *   P = mean of V Q, made orthogonal      rows x rank numbers, all-reduced
 *   Q = mean of V^T P                     columns x rank numbers, all-reduced; the next gradient begins with
 * it the sum is P Q^T, the error V - P Q^T Vectors, and matrices whose P and Q have no fewer numbers, are
 * all-reduced with P as they are. A unit has one all-reduce of each kind, in floats. The first runs while the
 * next unit's gradients are computed, the second during those of the unit after it: a sum begins the next
 * part of the sums before it, in the same order on every rank.
 *
 * The first Q has random numbers of the engine's seed. A column of P that depends on those before it becomes
 * zero, and its column of Q gets random numbers again. */
#ifndef ZR_ENGINE_LOW_RANK_H
#define ZR_ENGINE_LOW_RANK_H

#include "zero/engine/engine.h"

/* After layout and options are set: allocates P and Q (tag comm) / frees them. They do nothing if the engine
 * sends gradients by another method. */
zr_result zr_engine_low_rank_open(struct zr_engine *engine);
void zr_engine_low_rank_close(struct zr_engine *engine);

/* Begins the sum of a unit's whole gradients / ends it, if one is under way: waits for its operations and
 * writes it. */
struct zr_low_rank_sum {
    const void *source;   /* whole gradients; may be written when the call returns */
    struct zr_numbers to; /* elements [from, from + count) of the sum */
    size_t from, count;
    bool accumulate; /* `to` is fp32 */
};
zr_result zr_engine_low_rank_begin(struct zr_engine *engine, size_t unit, const struct zr_low_rank_sum *sum);
zr_result zr_engine_low_rank_end(struct zr_engine *engine, size_t unit);

/* Q of a unit for a checkpoint; `count` 0: it has none. */
float *zr_engine_low_rank_factors(const struct zr_engine *engine, size_t unit, size_t *count);

#endif
