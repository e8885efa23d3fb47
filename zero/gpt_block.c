/* gpt_block.c: one transformer block of GPT-2, forward and backward.
 *
 *   middle = x + proj(attention(qkv(ln1(x))))        output = middle + fc2(gelu(fc(ln2(middle))))  */
#include "zero/gpt_inside.h"

/* A block's parameters, or the places of their gradients, by GPT_* within the block. */
struct block_tensors {
    void *at[GPT_BLOCK_PARAMETERS];
};

static unsigned block_unit(size_t layer)
{
    return (unsigned)(GPT_EMBEDDINGS + layer);
}

static struct block_tensors block_tensors(const struct zr_gpt *model, size_t layer, const void *base)
{
    struct block_tensors tensors;
    for (size_t i = 0; i < GPT_BLOCK_PARAMETERS; i++)
        tensors.at[i] = gpt_at(model, base, GPT_EMBEDDINGS + layer * GPT_BLOCK_PARAMETERS + i);
    return tensors;
}

/* Columns per row of a slot; the probabilities are [heads, sequence] per row. 0: not kept. */
static size_t slot_columns(const struct zr_gpt *model, enum gpt_slot slot)
{
    const struct zr_gpt_shape *shape = &model->options.shape;
    switch (slot) {
    case SLOT_LN1_MEAN:
    case SLOT_LN1_RSTD:
    case SLOT_LN2_MEAN:
    case SLOT_LN2_RSTD:
        return 1;
    case SLOT_QKV:
        return 3 * shape->hidden;
    case SLOT_LSE:
        return shape->heads;
    case SLOT_PROBABILITIES:
        return shape->recompute == ZR_RECOMPUTE_NONE ? shape->heads * shape->sequence : 0;
    case SLOT_FC:
    case SLOT_GELU:
        return 4 * shape->hidden;
    default:
        return shape->hidden;
    }
}

static bool slot_has_floats(enum gpt_slot slot)
{
    return slot == SLOT_LN1_MEAN || slot == SLOT_LN1_RSTD || slot == SLOT_LN2_MEAN || slot == SLOT_LN2_RSTD ||
           slot == SLOT_LSE;
}

static zr_result take_slots(struct zr_gpt *model, size_t layer)
{
    static const char *const names[SLOT_COUNT] = {
        "ln_1",   "ln_1 mean", "ln_1 rstd", "c_attn",    "log-sums", "probabilities", "attention",
        "middle", "ln_2",      "ln_2 mean", "ln_2 rstd", "mlp.c_fc", "mlp.gelu"};
    for (enum gpt_slot slot = 0; slot < SLOT_COUNT; slot++) {
        size_t elements = gpt_room_rows(model) * slot_columns(model, slot);
        zr_result result = zr_take_block(model->options.arena, ZR_TAG_ACTIVATION, elements,
                                         slot_has_floats(slot) ? sizeof(float) : model->element_bytes,
                                         &model->blocks[layer].slot[slot]);
        if (result != ZR_OK)
            return zr_name_call(result, __func__, names[slot]);
    }
    return ZR_OK;
}

void gpt_block_drop(struct zr_gpt *model, size_t layer)
{
    for (enum gpt_slot slot = SLOT_COUNT; slot-- > 0;)
        zr_drop(model->options.arena, &model->blocks[layer].slot[slot]);
}

static struct zr_attention attention_of(const struct zr_gpt *model)
{
    const struct zr_gpt_shape *shape = &model->options.shape;
    return (struct zr_attention){
        .batch = model->batch, .sequence = shape->sequence, .channels = shape->hidden, .heads = shape->heads};
}

/* x -> middle: the attention half. */
static zr_result attention_half(struct zr_gpt *model, size_t layer, const struct block_tensors *w)
{
    const struct zr_kernels *k = model->options.kernels;
    struct zr_kernel_context *context = model->options.context;
    size_t rows = gpt_rows(model), c = model->options.shape.hidden;
    struct zr_layernorm norm = {.rows = rows, .channels = c};
    struct zr_attention attention = attention_of(model);
    void **s = model->blocks[layer].slot, *x = model->inputs[layer];
    zr_result result;

    k->layernorm_forward(context, &norm, x, w->at[GPT_LN1_W], w->at[GPT_LN1_B], s[SLOT_LN1], s[SLOT_LN1_MEAN],
                         s[SLOT_LN1_RSTD]);
    result = gpt_inspect(model, layer, "ln_1", s[SLOT_LN1], c);
    if (result != ZR_OK)
        return result;
    k->linear_forward(context, &(struct zr_linear){.rows = rows, .in = c, .out = 3 * c}, s[SLOT_LN1],
                      w->at[GPT_QKV_W], w->at[GPT_QKV_B], s[SLOT_QKV]);
    result = gpt_inspect(model, layer, "attn.c_attn", s[SLOT_QKV], 3 * c);
    if (result != ZR_OK)
        return result;
    k->attention_forward(context, &attention, s[SLOT_QKV], s[SLOT_ATTENTION], s[SLOT_LSE],
                         s[SLOT_PROBABILITIES]);
    result = gpt_inspect(model, layer, "attn", s[SLOT_ATTENTION], c);
    if (result != ZR_OK)
        return result;
    k->linear_forward(context, &(struct zr_linear){.rows = rows, .in = c, .out = c}, s[SLOT_ATTENTION],
                      w->at[GPT_PROJ_W], w->at[GPT_PROJ_B], s[SLOT_MIDDLE]);
    k->add(context, rows * c, x, s[SLOT_MIDDLE], s[SLOT_MIDDLE]);
    return gpt_inspect(model, layer, "attn.c_proj", s[SLOT_MIDDLE], c);
}

/* middle -> output: the feed-forward half. */
static zr_result feed_forward_half(struct zr_gpt *model, size_t layer, const struct block_tensors *w,
                                   void *output)
{
    const struct zr_kernels *k = model->options.kernels;
    struct zr_kernel_context *context = model->options.context;
    size_t rows = gpt_rows(model), c = model->options.shape.hidden;
    struct zr_layernorm norm = {.rows = rows, .channels = c};
    void **s = model->blocks[layer].slot;
    zr_result result;

    k->layernorm_forward(context, &norm, s[SLOT_MIDDLE], w->at[GPT_LN2_W], w->at[GPT_LN2_B], s[SLOT_LN2],
                         s[SLOT_LN2_MEAN], s[SLOT_LN2_RSTD]);
    result = gpt_inspect(model, layer, "ln_2", s[SLOT_LN2], c);
    if (result != ZR_OK)
        return result;
    k->linear_forward(context, &(struct zr_linear){.rows = rows, .in = c, .out = 4 * c}, s[SLOT_LN2],
                      w->at[GPT_FC_W], w->at[GPT_FC_B], s[SLOT_FC]);
    k->gelu_forward(context, rows * 4 * c, s[SLOT_FC], s[SLOT_GELU]);
    result = gpt_inspect(model, layer, "mlp.c_fc", s[SLOT_GELU], 4 * c);
    if (result != ZR_OK || !output)
        return result;
    k->linear_forward(context, &(struct zr_linear){.rows = rows, .in = 4 * c, .out = c}, s[SLOT_GELU],
                      w->at[GPT_FC2_W], w->at[GPT_FC2_B], output);
    k->add(context, rows * c, s[SLOT_MIDDLE], output, output);
    return gpt_inspect(model, layer, "mlp.c_proj", output, c);
}

zr_result gpt_block_forward(struct zr_gpt *model, size_t layer, void *output)
{
    const void *base;
    zr_result result = gpt_name_layer(take_slots(model, layer), layer);
    if (result == ZR_OK)
        result = zr_engine_gather(model->options.engine, block_unit(layer), &base);
    if (result == ZR_OK && output) /* after the last block comes ln_f */
        result = zr_engine_prefetch(model->options.engine, block_unit(layer) + 1);
    if (result != ZR_OK)
        return result;
    struct block_tensors weights = block_tensors(model, layer, base);
    result = attention_half(model, layer, &weights);
    if (result == ZR_OK)
        result = feed_forward_half(model, layer, &weights, output);
    zr_engine_release(model->options.engine, block_unit(layer));
    return result;
}

/* d (output) -> d (middle) */
static zr_result feed_forward_backward(struct zr_gpt *model, size_t layer, const struct block_tensors *w,
                                       const struct block_tensors *g, void *d, bool accumulate)
{
    const struct zr_kernels *k = model->options.kernels;
    struct zr_kernel_context *context = model->options.context;
    size_t rows = gpt_rows(model), c = model->options.shape.hidden;
    struct zr_layernorm norm = {.rows = rows, .channels = c};
    void **s = model->blocks[layer].slot, **wide = &model->scratch[SCRATCH_D_WIDE];
    void **d_norm = &model->scratch[SCRATCH_D_NORM];
    zr_result result = gpt_take(model, ZR_TAG_ACTIVATION, rows * 4 * c, wide);
    if (result != ZR_OK)
        return result;
    k->linear_backward(context, &(struct zr_linear){.rows = rows, .in = 4 * c, .out = c}, s[SLOT_GELU],
                       w->at[GPT_FC2_W], d, *wide, g->at[GPT_FC2_W], g->at[GPT_FC2_B], accumulate);
    k->gelu_backward(context, rows * 4 * c, s[SLOT_FC], *wide, *wide);
    result = gpt_take(model, ZR_TAG_ACTIVATION, rows * c, d_norm);
    if (result != ZR_OK)
        return result;
    k->linear_backward(context, &(struct zr_linear){.rows = rows, .in = c, .out = 4 * c}, s[SLOT_LN2],
                       w->at[GPT_FC_W], *wide, *d_norm, g->at[GPT_FC_W], g->at[GPT_FC_B], accumulate);
    zr_drop(model->options.arena, wide);
    k->layernorm_backward(context, &norm, s[SLOT_MIDDLE], w->at[GPT_LN2_W], s[SLOT_LN2_MEAN],
                          s[SLOT_LN2_RSTD], *d_norm, d, true, g->at[GPT_LN2_W], g->at[GPT_LN2_B], accumulate);
    zr_drop(model->options.arena, d_norm);
    return ZR_OK;
}

/* d (middle) -> d (input) */
static zr_result attention_backward(struct zr_gpt *model, size_t layer, const struct block_tensors *w,
                                    const struct block_tensors *g, void *d, bool accumulate)
{
    const struct zr_kernels *k = model->options.kernels;
    struct zr_kernel_context *context = model->options.context;
    size_t rows = gpt_rows(model), c = model->options.shape.hidden;
    struct zr_layernorm norm = {.rows = rows, .channels = c};
    struct zr_attention attention = attention_of(model);
    void **s = model->blocks[layer].slot, **d_qkv = &model->scratch[SCRATCH_D_QKV];
    void **d_norm = &model->scratch[SCRATCH_D_NORM]; /* first the gradient of the attention, then of ln_1 */
    zr_result result = gpt_take(model, ZR_TAG_ACTIVATION, rows * c, d_norm);
    if (result == ZR_OK)
        result = gpt_take(model, ZR_TAG_ACTIVATION, rows * 3 * c, d_qkv);
    if (result != ZR_OK)
        return result;
    k->linear_backward(context, &(struct zr_linear){.rows = rows, .in = c, .out = c}, s[SLOT_ATTENTION],
                       w->at[GPT_PROJ_W], d, *d_norm, g->at[GPT_PROJ_W], g->at[GPT_PROJ_B], accumulate);
    k->attention_backward(context, &attention, s[SLOT_QKV], s[SLOT_ATTENTION], s[SLOT_LSE],
                          s[SLOT_PROBABILITIES], *d_norm, *d_qkv);
    k->linear_backward(context, &(struct zr_linear){.rows = rows, .in = c, .out = 3 * c}, s[SLOT_LN1],
                       w->at[GPT_QKV_W], *d_qkv, *d_norm, g->at[GPT_QKV_W], g->at[GPT_QKV_B], accumulate);
    zr_drop(model->options.arena, d_qkv);
    k->layernorm_backward(context, &norm, model->inputs[layer], w->at[GPT_LN1_W], s[SLOT_LN1_MEAN],
                          s[SLOT_LN1_RSTD], *d_norm, d, true, g->at[GPT_LN1_W], g->at[GPT_LN1_B], accumulate);
    zr_drop(model->options.arena, d_norm);
    return ZR_OK;
}

zr_result gpt_block_backward(struct zr_gpt *model, size_t layer, void *d)
{
    zr_engine *engine = model->options.engine;
    unsigned unit = block_unit(layer);
    const void *base;
    void *gradients;
    bool accumulate;
    zr_result result = zr_engine_gather(engine, unit, &base); /* once for both directions */

    if (result == ZR_OK && layer > 0)
        result = zr_engine_prefetch(engine, unit - 1);
    if (result != ZR_OK)
        return result;
    if (model->options.shape.recompute == ZR_RECOMPUTE_FULL)
        result = gpt_block_forward(model, layer, NULL);
    if (result == ZR_OK)
        result = zr_engine_gradients(engine, unit, &gradients, &accumulate);
    if (result == ZR_OK) {
        struct block_tensors weights = block_tensors(model, layer, base);
        struct block_tensors places = block_tensors(model, layer, gradients);
        result = feed_forward_backward(model, layer, &weights, &places, d, accumulate);
        if (result == ZR_OK)
            result = attention_backward(model, layer, &weights, &places, d, accumulate);
        result = gpt_name_layer(result, layer);
    }
    zr_engine_release(engine, unit);
    return result == ZR_OK ? zr_engine_reduce(engine, unit) : result;
}
