/* gpt.c: the whole GPT-2: embeddings, blocks, head; training, evaluation and logits. */
#include "zero/gpt.h"

#include <math.h>
#include <string.h>

#include "defrag/zr_defrag.h"
#include "zero/gpt_inside.h"

zr_result gpt_inspect(struct zr_gpt *model, size_t layer, const char *what, const void *values,
                      size_t columns)
{
    size_t count, at, row, sequence = model->options.shape.sequence;
    if (!model->inspect)
        return ZR_OK;
    count = gpt_rows(model) * columns;
    at = model->options.kernels->find_nonfinite_in(
        model->options.context, count,
        (struct zr_numbers){(void *)values, zr_engine_precision(model->options.engine)});
    if (at == count)
        return ZR_OK;
    row = at / columns;
    if (layer == SIZE_MAX)
        return zr_fail(ZR_ERR_CORRUPT, "the first value that is not finite is in %s, sequence %zu, token %zu",
                       what, row / sequence, row % sequence);
    return zr_fail(ZR_ERR_CORRUPT,
                   "the first value that is not finite is in h.%zu.%s, sequence %zu, token %zu", layer, what,
                   row / sequence, row % sequence);
}

zr_result zr_gpt_create(zr_gpt **out, const struct zr_gpt_options *options)
{
    struct zr_gpt *model;
    size_t rows = options->shape.batch * options->shape.sequence;
    zr_result result = zr_gpt_shape_check(&options->shape);

    *out = NULL;
    if (result == ZR_OK)
        result = zr_take(options->host_arena, ZR_TAG_OTHER, 1, sizeof *model, (void **)&model);
    if (result != ZR_OK)
        return result;
    memset(model, 0, sizeof *model);
    model->options = *options;
    model->dry = options->kernels == zr_kernels_null();
    model->element_bytes = zr_precision_bytes(zr_engine_precision(options->engine));
    if (model->options.micro_batches == 0)
        model->options.micro_batches = 1;
    result = zr_take(options->host_arena, ZR_TAG_OTHER, options->shape.layers + 1, sizeof *model->inputs,
                     (void **)&model->inputs);
    if (result != ZR_OK)
        goto unwind;
    memset(model->inputs, 0, (options->shape.layers + 1) * sizeof *model->inputs);
    result = zr_take(options->host_arena, ZR_TAG_OTHER, options->shape.layers, sizeof *model->blocks,
                     (void **)&model->blocks);
    if (result != ZR_OK)
        goto unwind;
    memset(model->blocks, 0, options->shape.layers * sizeof *model->blocks);
    result = zr_take(options->arena, ZR_TAG_ACTIVATION, rows, sizeof(int32_t), (void **)&model->tokens);
    if (result == ZR_OK)
        result = zr_take(options->arena, ZR_TAG_ACTIVATION, rows, sizeof(int32_t), (void **)&model->targets);
    if (result == ZR_OK)
        result = gpt_take_floats(model, rows, (void **)&model->losses);
    if (result != ZR_OK)
        goto unwind;
    *out = model;
    return ZR_OK;

unwind:
    zr_gpt_destroy(model);
    return result;
}

/* Drops whatever a pass holds; after a pass that went well there is nothing. */
static void drop_pass(struct zr_gpt *model)
{
    for (size_t i = 0; i < SCRATCH_COUNT; i++)
        zr_drop(model->options.arena, &model->scratch[i]);
    for (size_t l = 0; model->blocks && l < model->options.shape.layers; l++)
        gpt_block_drop(model, l);
    for (size_t l = 0; model->inputs && l <= model->options.shape.layers; l++)
        zr_drop(model->options.arena, &model->inputs[l]);
}

void zr_gpt_destroy(zr_gpt *model)
{
    if (!model)
        return;
    zr_arena *arena = model->options.arena, *host_arena = model->options.host_arena;
    drop_pass(model);
    zr_drop(arena, &model->losses);
    zr_drop(arena, &model->targets);
    zr_drop(arena, &model->tokens);
    zr_drop(host_arena, &model->blocks);
    zr_drop(host_arena, &model->inputs);
    zr_drop(host_arena, &model);
}

int32_t *zr_gpt_tokens(zr_gpt *model)
{
    return model->tokens;
}

int32_t *zr_gpt_targets(zr_gpt *model)
{
    return model->targets;
}

static struct zr_head head_of(const struct zr_gpt *model)
{
    const struct zr_gpt_shape *shape = &model->options.shape;
    return (struct zr_head){.targets = model->targets,
                            .rows = gpt_rows(model),
                            .channels = shape->hidden,
                            .vocabulary = shape->vocabulary,
                            .vocabulary_padded = shape->vocabulary_padded};
}

static struct zr_embedding embedding_of(const struct zr_gpt *model)
{
    const struct zr_gpt_shape *shape = &model->options.shape;
    return (struct zr_embedding){.tokens = model->tokens,
                                 .batch = model->batch,
                                 .sequence = shape->sequence,
                                 .channels = shape->hidden};
}

static unsigned final_unit(const struct zr_gpt *model)
{
    return (unsigned)(GPT_EMBEDDINGS + model->options.shape.layers);
}

/* The final norm's weight and bias in the engine's list. */
static size_t final_parameter(const struct zr_gpt *model)
{
    return GPT_EMBEDDINGS + GPT_BLOCK_PARAMETERS * model->options.shape.layers;
}

static zr_result embed(struct zr_gpt *model)
{
    const struct zr_gpt_options *o = &model->options;
    struct zr_embedding embedding = embedding_of(model);
    const void *wte, *wpe;
    zr_result result =
        gpt_take(model, ZR_TAG_CHECKPOINT, gpt_room_rows(model) * o->shape.hidden, &model->inputs[0]);
    if (result == ZR_OK)
        result = zr_engine_gather(o->engine, GPT_WTE, &wte);
    if (result != ZR_OK)
        return result;
    result = zr_engine_gather(o->engine, GPT_WPE, &wpe);
    if (result == ZR_OK) {
        o->kernels->embedding_forward(o->context, &embedding, wte, wpe, model->inputs[0]);
        zr_engine_release(o->engine, GPT_WPE);
        result = gpt_inspect(model, SIZE_MAX, "the embeddings", model->inputs[0], o->shape.hidden);
    }
    zr_engine_release(o->engine, GPT_WTE);
    return result;
}

/* All blocks. With `keep`, what backward needs stays; else only the way to the end. */
static zr_result run_blocks(struct zr_gpt *model, bool keep)
{
    const struct zr_gpt_shape *shape = &model->options.shape;
    for (size_t l = 0; l < shape->layers; l++) {
        zr_result result =
            gpt_take(model, ZR_TAG_CHECKPOINT, gpt_room_rows(model) * shape->hidden, &model->inputs[l + 1]);
        result = gpt_name_layer(result, l);
        if (result == ZR_OK)
            result = gpt_block_forward(model, l, model->inputs[l + 1]);
        if (result != ZR_OK)
            return result;
        if (!keep || shape->recompute == ZR_RECOMPUTE_FULL)
            gpt_block_drop(model, l);
        if (!keep)
            zr_drop(model->options.arena, &model->inputs[l]);
    }
    return ZR_OK;
}

static zr_result final_norm(struct zr_gpt *model)
{
    const struct zr_gpt_options *o = &model->options;
    size_t rows = gpt_rows(model), c = o->shape.hidden, parameter = final_parameter(model);
    struct zr_layernorm norm = {.rows = rows, .channels = c};
    const void *base;
    size_t room = gpt_room_rows(model);
    zr_result result = gpt_take(model, ZR_TAG_ACTIVATION, room * c, &model->scratch[SCRATCH_FINAL]);
    if (result == ZR_OK)
        result = gpt_take_floats(model, room, &model->scratch[SCRATCH_FINAL_MEAN]);
    if (result == ZR_OK)
        result = gpt_take_floats(model, room, &model->scratch[SCRATCH_FINAL_RSTD]);
    if (result == ZR_OK)
        result = zr_engine_gather(o->engine, final_unit(model), &base);
    if (result == ZR_OK)
        result = zr_engine_prefetch(o->engine, GPT_WTE); /* the head */
    if (result != ZR_OK)
        return result;
    o->kernels->layernorm_forward(o->context, &norm, model->inputs[o->shape.layers],
                                  gpt_at(model, base, parameter), gpt_at(model, base, parameter + 1),
                                  model->scratch[SCRATCH_FINAL], model->scratch[SCRATCH_FINAL_MEAN],
                                  model->scratch[SCRATCH_FINAL_RSTD]);
    zr_engine_release(o->engine, final_unit(model));
    return gpt_inspect(model, SIZE_MAX, "ln_f", model->scratch[SCRATCH_FINAL], c);
}

/* From the tokens to the input of the head. Every pass begins here, and asks for the same blocks in the same
 * order up to the head: see zr_rehearsal_create(). */
static zr_result forward(struct zr_gpt *model, size_t batch, bool keep)
{
    zr_result result;
    model->batch = batch;
    zr_rehearsal_rewind(model->options.arena);
    result = embed(model);
    if (result == ZR_OK)
        result = run_blocks(model, keep);
    if (result == ZR_OK)
        result = final_norm(model);
    return result;
}

/* The mean of the losses; added up in order. */
static double mean_loss(const struct zr_gpt *model)
{
    double sum = 0;
    if (model->dry)
        return 0;
    for (size_t i = 0; i < gpt_rows(model); i++)
        sum += model->losses[i];
    return sum / (double)gpt_rows(model);
}

/* Loss and its gradient at the head's input (SCRATCH_D_FINAL); the head's part of wte's gradient is handed
 * over.*/
static zr_result head_backward(struct zr_gpt *model)
{
    const struct zr_gpt_options *o = &model->options;
    size_t rows = gpt_rows(model);
    struct zr_head head = head_of(model);
    const void *wte;
    void *d_wte;
    bool accumulate;
    zr_result result =
        gpt_take(model, ZR_TAG_ACTIVATION, rows * o->shape.hidden, &model->scratch[SCRATCH_D_FINAL]);
    if (result == ZR_OK)
        result = zr_engine_gather(o->engine, GPT_WTE, &wte);
    if (result != ZR_OK)
        return result;
    /* ln_f comes next, but is small; the last block's parameters take as long as the head's products */
    result = zr_engine_prefetch(o->engine, final_unit(model) - 1);
    if (result == ZR_OK)
        result = zr_engine_gradients(o->engine, GPT_WTE, &d_wte, &accumulate);
    if (result == ZR_OK)
        o->kernels->head_loss(o->context, &head, model->scratch[SCRATCH_FINAL], wte, model->losses,
                              zr_engine_loss_scale(o->engine) / ((float)rows * (float)o->micro_batches),
                              model->scratch[SCRATCH_D_FINAL], d_wte, accumulate);
    zr_engine_release(o->engine, GPT_WTE);
    zr_drop(o->arena, &model->scratch[SCRATCH_FINAL]);
    return result == ZR_OK ? zr_engine_reduce(o->engine, GPT_WTE) : result;
}

static zr_result final_norm_backward(struct zr_gpt *model)
{
    const struct zr_gpt_options *o = &model->options;
    size_t rows = gpt_rows(model), c = o->shape.hidden, parameter = final_parameter(model);
    struct zr_layernorm norm = {.rows = rows, .channels = c};
    const void *base;
    void *gradients;
    bool accumulate;
    zr_result result = gpt_take(model, ZR_TAG_ACTIVATION, rows * c, &model->scratch[SCRATCH_D]);
    if (result == ZR_OK)
        result = zr_engine_gather(o->engine, final_unit(model), &base);
    if (result != ZR_OK)
        return result;
    result = zr_engine_gradients(o->engine, final_unit(model), &gradients, &accumulate);
    if (result == ZR_OK)
        o->kernels->layernorm_backward(o->context, &norm, model->inputs[o->shape.layers],
                                       gpt_at(model, base, parameter), model->scratch[SCRATCH_FINAL_MEAN],
                                       model->scratch[SCRATCH_FINAL_RSTD], model->scratch[SCRATCH_D_FINAL],
                                       model->scratch[SCRATCH_D], false, gpt_at(model, gradients, parameter),
                                       gpt_at(model, gradients, parameter + 1), accumulate);
    zr_engine_release(o->engine, final_unit(model));
    zr_drop(o->arena, &model->scratch[SCRATCH_D_FINAL]);
    zr_drop(o->arena, &model->scratch[SCRATCH_FINAL_RSTD]);
    zr_drop(o->arena, &model->scratch[SCRATCH_FINAL_MEAN]);
    zr_drop(o->arena, &model->inputs[o->shape.layers]);
    return result == ZR_OK ? zr_engine_reduce(o->engine, final_unit(model)) : result;
}

static zr_result embedding_backward(struct zr_gpt *model)
{
    const struct zr_gpt_options *o = &model->options;
    struct zr_embedding embedding = embedding_of(model);
    void *d_wte, *d_wpe;
    bool accumulate_wte, accumulate_wpe;
    zr_result result = zr_engine_gradients(o->engine, GPT_WTE, &d_wte, &accumulate_wte);
    if (result == ZR_OK)
        result = zr_engine_gradients(o->engine, GPT_WPE, &d_wpe, &accumulate_wpe);
    if (result != ZR_OK)
        return result;
    if (accumulate_wte && !accumulate_wpe) /* the kernel has one flag for both */
        o->kernels->clear(o->context, o->shape.sequence * o->shape.hidden * model->element_bytes, d_wpe);
    o->kernels->embedding_backward(o->context, &embedding, model->scratch[SCRATCH_D], d_wte,
                                   o->shape.vocabulary_padded, d_wpe, o->shape.sequence, accumulate_wte);
    zr_drop(o->arena, &model->scratch[SCRATCH_D]);
    result = zr_engine_reduce(o->engine, GPT_WPE);
    return result == ZR_OK ? zr_engine_reduce(o->engine, GPT_WTE) : result;
}

static zr_result backward(struct zr_gpt *model)
{
    zr_result result = final_norm_backward(model);
    for (size_t l = model->options.shape.layers; result == ZR_OK && l-- > 0;) {
        result = gpt_block_backward(model, l, model->scratch[SCRATCH_D]);
        gpt_block_drop(model, l);
        zr_drop(model->options.arena, &model->inputs[l]);
    }
    return result == ZR_OK ? embedding_backward(model) : result;
}

/* The loss is not finite: find out where that began, by the same pass with every result looked at. */
static zr_result blame(struct zr_gpt *model, size_t batch)
{
    zr_result result;
    drop_pass(model);
    result = zr_engine_verify_finite(model->options.engine);
    if (result != ZR_OK)
        return result;
    if (zr_engine_gathers(
            model->options.engine)) /* the other ranks may be going on: nothing can be gathered */
        return zr_fail(ZR_ERR_CORRUPT, "the loss is not finite although this rank's parameters are; "
                                       "--stage 2 has the same losses and finds where it arose");
    model->inspect = true;
    result = forward(model, batch, false);
    model->inspect = false;
    drop_pass(model);
    if (result != ZR_OK)
        return result;
    return zr_fail(ZR_ERR_CORRUPT,
                   "the loss is not finite although everything up to ln_f is: it arose in the head");
}

zr_result zr_gpt_train(zr_gpt *model, double *loss)
{
    size_t batch = model->options.shape.batch;
    zr_result result = forward(model, batch, true);
    if (result == ZR_OK)
        result = head_backward(model);
    if (result == ZR_OK) {
        *loss = mean_loss(model);
        if (!isfinite(*loss))
            return blame(model, batch);
        result = backward(model);
    }
    if (result != ZR_OK)
        drop_pass(model);
    return result;
}

zr_result zr_gpt_evaluate(zr_gpt *model, size_t batch, double *loss)
{
    const struct zr_gpt_options *o = &model->options;
    const void *wte;
    zr_result result;

    if (batch == 0 || batch > o->shape.batch)
        return zr_fail(ZR_ERR_INVALID, "a batch of %zu is not between 1 and %zu", batch, o->shape.batch);
    result = forward(model, batch, false);
    if (result == ZR_OK)
        result = zr_engine_gather(o->engine, GPT_WTE, &wte);
    if (result == ZR_OK) {
        struct zr_head head = head_of(model);
        o->kernels->head_loss(o->context, &head, model->scratch[SCRATCH_FINAL], wte, model->losses, 0, NULL,
                              NULL, false);
        zr_engine_release(o->engine, GPT_WTE);
        *loss = mean_loss(model);
        if (!isfinite(*loss))
            return blame(model, batch);
    }
    drop_pass(model);
    return result;
}

zr_result zr_gpt_logits(zr_gpt *model, size_t count, float *logits)
{
    const struct zr_gpt_options *o = &model->options;
    const void *wte;
    zr_result result;

    if (count == 0 || count > o->shape.sequence)
        return zr_fail(ZR_ERR_INVALID, "logits after %zu tokens: the model takes 1 to %zu", count,
                       o->shape.sequence);
    if (!model->dry) /* what follows cannot be seen by the tokens before it, but must be tokens */
        memset(model->tokens + count, 0, (o->shape.sequence - count) * sizeof *model->tokens);
    result = forward(model, 1, false);
    if (result == ZR_OK)
        result = zr_engine_gather(o->engine, GPT_WTE, &wte);
    if (result == ZR_OK) {
        struct zr_head head = head_of(model);
        o->kernels->head_logits(o->context, &head,
                                (char *)model->scratch[SCRATCH_FINAL] +
                                    (count - 1) * o->shape.hidden * model->element_bytes,
                                wte, logits);
        zr_engine_release(o->engine, GPT_WTE);
    }
    drop_pass(model);
    return result;
}
