/* staging.h: memory of the host's for what a pass reads and finds, where the host sees no tensors: inputs on
 * their way to the kernels, losses on their way from them. It is pinned where the kernels have streams, and
 * has places for each micro-batch of a step, so that no copy is waited for before the step's end. One thread,
 * the trainer's. Private to zero/step/. */
#ifndef ZR_STEP_STAGING_H
#define ZR_STEP_STAGING_H

#include "zero/engine/engine.h"
#include "zero/model/activations.h"

struct zr_staging {
    zr_engine *engine; /* NULL: not open, the host sees tensors */
    struct zr_activations *store;
    const struct zr_model *model;
    char *block; /* of all places */
    size_t micro_batch_bytes, losses_at, rates_at;
    unsigned micro_batch;            /* whose places the caller fills */
    bool given[ZR_MODEL_INPUTS_MAX]; /* the caller fills this input; what it does not is the model's */
    bool pinned;
};

/* Does nothing where the host sees tensors. Both belong to the caller, and outlive it. */
zr_result zr_staging_open(struct zr_staging *out, zr_engine *engine, const struct zr_model *model,
                          struct zr_activations *store);
/* What is not open may be closed; no copy is under way. */
void zr_staging_close(struct zr_staging *staging);

/* Pinned memory for the rates of an update; NULL: not open. */
struct zr_step_rates *zr_staging_rates(const struct zr_staging *staging);

/* Where the caller fills an input of the micro-batch under way. */
void *zr_staging_input(struct zr_staging *staging, unsigned input);
/* What the caller has filled goes to where the kernels see it. */
zr_result zr_staging_send_inputs(const struct zr_staging *staging);
/* The losses of `rows` rows, of a micro-batch, come to the host / their mean, when the host has waited for
 * the kernels, or at once where it sees them. */
zr_result zr_staging_bring_losses(const struct zr_staging *staging, unsigned micro_batch, size_t rows);
double zr_staging_mean_loss(const struct zr_staging *staging, unsigned micro_batch, size_t rows);

#endif
