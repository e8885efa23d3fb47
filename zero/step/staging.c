/* staging.c: see staging.h. */
#include "zero/step/staging.h"

#include <string.h>

#include "kernels/streams.h"

static bool is_open(const struct zr_staging *staging)
{
    return staging->block && !staging->engine->simulated;
}

static size_t input_bytes(const struct zr_staging *staging, unsigned input)
{
    const struct zr_input *i = &staging->model->inputs[input];
    return i->elements * zr_slot_bytes(i->type, staging->store->element_bytes);
}

/* Rounds up to cache lines, aligned for every type. */
static size_t place_of_input(const struct zr_staging *staging, unsigned input)
{
    const size_t line_bytes = 64;
    size_t at = 0;
    for (unsigned i = 0; i < input; i++)
        at += (input_bytes(staging, i) + line_bytes - 1) / line_bytes * line_bytes;
    return at;
}

static float *losses_of(const struct zr_staging *staging, unsigned micro_batch)
{
    return (float *)(staging->block + micro_batch * staging->micro_batch_bytes + staging->losses_at);
}

zr_result zr_staging_open(struct zr_staging *out, zr_engine *engine, const struct zr_model *model,
                          struct zr_activations *store, unsigned places)
{
    const struct zr_kernel_streams *streams = engine->options.kernels->streams;
    *out = (struct zr_staging){.engine = engine, .model = model, .store = store};
    if (!engine->host_invisible)
        return ZR_OK;
    out->losses_at = place_of_input(out, model->inputs_count);
    out->micro_batch_bytes = (out->losses_at + model->rows * sizeof(float) + 63) / 64 * 64;
    out->rates_at = places * out->micro_batch_bytes;
    size_t bytes = out->rates_at + sizeof(struct zr_step_rates);
    zr_result result = zr_take(engine->options.host_arena, ZR_TAG_OTHER, bytes, 1, (void **)&out->block);
    if (result != ZR_OK)
        return result;
    memset(out->block, 0, bytes);
    if (streams)
        result = streams->pin(out->block, bytes);
    out->pinned = streams && result == ZR_OK;
    return result;
}

void zr_staging_close(struct zr_staging *staging)
{
    if (!staging->engine)
        return;
    if (staging->pinned)
        staging->engine->options.kernels->streams->unpin(staging->block);
    zr_drop(staging->engine->options.host_arena, &staging->block);
    staging->engine = NULL;
}

struct zr_step_rates *zr_staging_rates(const struct zr_staging *staging)
{
    return staging->pinned ? (struct zr_step_rates *)(staging->block + staging->rates_at) : NULL;
}

void *zr_staging_input(struct zr_staging *staging, unsigned input)
{
    staging->given[input] = true;
    return staging->block ? staging->block + staging->micro_batch * staging->micro_batch_bytes +
                                place_of_input(staging, input)
                          : staging->store->inputs[input];
}

/* A copy from memory that is not pinned is synchronous. */
static zr_result copy(const struct zr_staging *staging, void *to, const void *from, size_t bytes)
{
    const struct zr_engine_options *o = &staging->engine->options;
    return o->kernels->copy_bytes(
        o->context,
        &(struct zr_copy_bytes){.bytes = bytes, .from = from, .to = to, .waits = !staging->pinned});
}

zr_result zr_staging_send_inputs(const struct zr_staging *staging)
{
    zr_result result = ZR_OK;
    for (unsigned i = 0; is_open(staging) && i < staging->model->inputs_count && result == ZR_OK; i++)
        if (staging->given[i])
            result = copy(staging, staging->store->inputs[i],
                          staging->block + staging->micro_batch * staging->micro_batch_bytes +
                              place_of_input(staging, i),
                          input_bytes(staging, i));
    return result;
}

zr_result zr_staging_bring_losses(const struct zr_staging *staging, unsigned micro_batch, size_t rows)
{
    return is_open(staging)
               ? copy(staging, losses_of(staging, micro_batch), staging->store->losses, rows * sizeof(float))
               : ZR_OK;
}

const float *zr_staging_losses(const struct zr_staging *staging, unsigned micro_batch)
{
    return staging->block ? losses_of(staging, micro_batch) : staging->store->losses;
}

double zr_staging_mean_loss(const struct zr_staging *staging, unsigned micro_batch, size_t rows)
{
    const float *losses = zr_staging_losses(staging, micro_batch);
    double mean = 0;
    if (staging->engine->simulated)
        return 0;
    for (size_t i = 0; i < rows; i++)
        mean += losses[i];
    return mean / (double)rows;
}
