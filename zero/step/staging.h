/* staging.h: host memory for inputs, losses and rates if the host cannot access tensors. The memory is pinned
 * if the kernels have streams, and has places for each micro-batch of a step, so that no copy needs a wait
 * before the end of the step. Trainer's thread only. Private to zero/step/. */
#ifndef ZR_STEP_STAGING_H
#define ZR_STEP_STAGING_H

#include "zero/engine/engine.h"
#include "zero/model/activations.h"

struct zr_staging {
    zr_engine *engine; /* NULL: not open, the host can access tensors */
    struct zr_activations *store;
    const struct zr_model *model;
    char *block; /* holds all places */
    size_t micro_batch_bytes, losses_at, rates_at;
    unsigned micro_batch;            /* the caller fills the inputs of this micro-batch */
    bool given[ZR_MODEL_INPUTS_MAX]; /* the caller fills this input; the model fills the others */
    bool pinned;
};

/* Does nothing if the host can access tensors. `places`: micro-batches of a list, each with its own pinned
 * inputs, because copies of them run later. engine, model and store must outlive *out. */
zr_result zr_staging_open(struct zr_staging *out, zr_engine *engine, const struct zr_model *model,
                          struct zr_activations *store, unsigned places);
/* No copy may be in progress. Closing a staging that is not open is allowed. */
void zr_staging_close(struct zr_staging *staging);

/* Pinned memory for the rates of an update; NULL: not open. */
struct zr_step_rates *zr_staging_rates(const struct zr_staging *staging);

/* Memory in which the caller fills an input of the current micro-batch. */
void *zr_staging_input(struct zr_staging *staging, unsigned input);
/* Copies the filled inputs to the kernels' memory. */
zr_result zr_staging_send_inputs(const struct zr_staging *staging);
/* Copies the losses of `rows` rows of a micro-batch to the host / these losses / their mean, after the host
 * has waited for the kernels. */
zr_result zr_staging_bring_losses(const struct zr_staging *staging, unsigned micro_batch, size_t rows);
const float *zr_staging_losses(const struct zr_staging *staging, unsigned micro_batch);
double zr_staging_mean_loss(const struct zr_staging *staging, unsigned micro_batch, size_t rows);

#endif
