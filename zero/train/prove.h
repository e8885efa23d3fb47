/* prove.h: --prove: beside a run, rank 0 trains the same model on the same batches as one rank that has all
 * of it, and after each step the ranks compare the loss, the norm of the gradients, and every tensor by name.
 */
#ifndef ZR_TRAIN_PROVE_H
#define ZR_TRAIN_PROVE_H

#include "zero/train/rank/rank.h"

struct zr_prove;

/* Opens the dense trainer on rank 0, and what the others compare with; from the heap. Collective. NULL in
 * *out where --prove was not given. ZR_ERR_MEMORY: the whole model does not fit beside the run. */
zr_result zr_prove_open(struct zr_prove **out, struct zr_rank *rank);
void zr_prove_close(struct zr_prove *prove);

/* What a step of the run came to, the same on every rank. */
struct zr_prove_step {
    uint64_t number;
    double loss, gradient_norm;
    double loss_scale; /* of fp16; else 0 */
    bool skipped;      /* a gradient overflowed, and nothing was updated */
};
/* Trains the dense step and compares. Collective. ZR_ERR_CORRUPT: the words name the first that differs, its
 * tensor, layer and rank; the same on every rank. */
zr_result zr_prove_step(struct zr_prove *prove, const struct zr_prove_step *step);
/* The largest differences so far, of their size: "loss 1.2e-8, ..."; printed by rank 0 at the end. */
void zr_prove_print(const struct zr_prove *prove);

#endif
