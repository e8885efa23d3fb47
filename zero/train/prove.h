/* prove.h: --prove: rank 0 trains the whole model on the same batches beside the run, and after each step
 * the ranks compare the loss, the gradient norm and every tensor by name. */
#ifndef ZR_TRAIN_PROVE_H
#define ZR_TRAIN_PROVE_H

#include "zero/train/rank/rank.h"

struct zr_prove;

/* Opens the dense trainer on rank 0 and the buffers of the other ranks, on the heap. Collective. *out is
 * NULL without --prove. ZR_ERR_MEMORY: the whole model does not fit beside the run. */
zr_result zr_prove_open(struct zr_prove **out, struct zr_rank *rank);
void zr_prove_close(struct zr_prove *prove);

/* Result of a step of the run, equal on every rank. */
struct zr_prove_step {
    uint64_t number;
    double loss, gradient_norm;
    double loss_scale; /* fp16 only; else 0 */
    bool skipped;      /* a gradient overflowed and nothing was updated */
};
/* Trains the dense step and compares. Collective. ZR_ERR_CORRUPT on every rank: the message names the
 * first tensor that differs, its layer and the rank. */
zr_result zr_prove_step(struct zr_prove *prove, const struct zr_prove_step *step);
/* Prints the largest relative differences so far on rank 0: "loss 1.2e-8, ...". */
void zr_prove_print(const struct zr_prove *prove);

#endif
