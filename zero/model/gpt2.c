/* gpt2.c: GPT-2 as a table: its tensors, and its modules with their slots, forward and backward.
 *
 *   embedding   y = wte[token] + wpe[position]
 *   block       middle = x + proj(attention(qkv(ln_1(x))))     y = middle + fc2(gelu(fc(ln_2(middle))))
 *   final       y = ln_f(x)
 *   head        tied to wte, which therefore gets two gradient contributions per micro-batch
 *
 * Weights are [in, out], as GPT-2's Conv1D stores them. */
#include <math.h>
#include <string.h>

#include "zero/model/transformer.h"

/* ---- Embedding ----------------------------------------------------------------------------------------- */

enum { WTE, WPE };

static zr_result embed(struct zr_module_pass *pass)
{
    struct zr_embedding embedding = zr_pass_embedding(pass);
    pass->kernels->embedding_forward(pass->context, &embedding, pass->parameters[WTE][0],
                                     pass->parameters[WPE][0], pass->y);
    return ZR_OK;
}

static zr_result embed_backward(struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct zr_embedding embedding = zr_pass_embedding(pass);
    if (pass->accumulate[WTE] && !pass->accumulate[WPE]) /* the kernel has one flag for both */
        pass->kernels->clear(pass->context,
                             shape->sequence * shape->hidden * zr_precision_bytes(pass->context->precision),
                             pass->gradients[WPE][0]);
    pass->kernels->embedding_backward(pass->context, &embedding, pass->dy, pass->gradients[WTE][0],
                                      shape->vocabulary_padded, pass->gradients[WPE][0], shape->sequence,
                                      pass->accumulate[WTE]);
    return ZR_OK;
}

/* ---- Block --------------------------------------------------------------------------------------------- */

/* Its parameters, in the order of the list. */
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, FC2_W, FC2_B, BLOCK_PARAMETERS };

enum {
    LN1,
    LN1_MEAN,
    LN1_RSTD,
    QKV,
    LSE,
    PROBABILITIES,
    ATTENTION,
    MIDDLE,
    LN2,
    LN2_MEAN,
    LN2_RSTD,
    FC,
    GELU,
    D_WIDE,
    D_NORM, /* of a norm's output, and before that of attention's */
    D_QKV,
    BLOCK_SLOTS
};

static void describe_slots(struct zr_transformer *t)
{
    size_t c = t->shape.hidden, a = t->shape.heads;
    const struct zr_slot slots[BLOCK_SLOTS] = {
        [LN1] = {"ln_1", c, 0, 0},
        [LN1_MEAN] = {"ln_1 mean", 1, ZR_SLOT_FLOATS, 0},
        [LN1_RSTD] = {"ln_1 rstd", 1, ZR_SLOT_FLOATS, 0},
        [QKV] = {"attn.c_attn", 3 * c, 0, 0},
        [LSE] = {"attn log-sums", a, ZR_SLOT_FLOATS, 0},
        [PROBABILITIES] = {"attn probabilities", a * t->shape.sequence, 0, ZR_SLOT_RECOMPUTED},
        [ATTENTION] = {"attn", c, 0, 0},
        [MIDDLE] = {"attn.c_proj", c, 0, 0},
        [LN2] = {"ln_2", c, 0, 0},
        [LN2_MEAN] = {"ln_2 mean", 1, ZR_SLOT_FLOATS, 0},
        [LN2_RSTD] = {"ln_2 rstd", 1, ZR_SLOT_FLOATS, 0},
        [FC] = {"mlp.c_fc", 4 * c, 0, 0},
        [GELU] = {"mlp.gelu", 4 * c, 0, 0},
        [D_WIDE] = {"gradient of mlp.c_fc", 4 * c, 0, ZR_SLOT_TEMPORARY},
        [D_NORM] = {"gradient of a norm", c, 0, ZR_SLOT_TEMPORARY},
        [D_QKV] = {"gradient of attn.c_attn", 3 * c, 0, ZR_SLOT_TEMPORARY},
    };
    memcpy(t->slots[ZR_TYPE_BLOCK], slots, sizeof slots);
}

static zr_result block(struct zr_module_pass *pass)
{
    const struct zr_kernels *k = pass->kernels;
    struct zr_kernel_context *context = pass->context;
    size_t rows = pass->rows, c = zr_pass_shape(pass)->hidden;
    struct zr_layernorm norm = {.rows = rows, .channels = c};
    struct zr_attention attention = zr_pass_attention(pass);
    void **s = pass->slots, *const *w = pass->parameters[0];

    k->layernorm_forward(context, &norm, pass->x, w[LN1_W], w[LN1_B], s[LN1], s[LN1_MEAN], s[LN1_RSTD]);
    k->linear_forward(context, &(struct zr_linear){.rows = rows, .in = c, .out = 3 * c}, s[LN1], w[QKV_W],
                      w[QKV_B], s[QKV]);
    k->attention_forward(context, &attention, s[QKV], s[ATTENTION], s[LSE], s[PROBABILITIES]);
    k->linear_forward(context, &(struct zr_linear){.rows = rows, .in = c, .out = c}, s[ATTENTION], w[PROJ_W],
                      w[PROJ_B], s[MIDDLE]);
    k->add(context, rows * c, pass->x, s[MIDDLE], s[MIDDLE]);

    k->layernorm_forward(context, &norm, s[MIDDLE], w[LN2_W], w[LN2_B], s[LN2], s[LN2_MEAN], s[LN2_RSTD]);
    k->linear_forward(context, &(struct zr_linear){.rows = rows, .in = c, .out = 4 * c}, s[LN2], w[FC_W],
                      w[FC_B], s[FC]);
    k->gelu_forward(context, rows * 4 * c, s[FC], s[GELU]);
    if (!pass->y)
        return ZR_OK;
    k->linear_forward(context, &(struct zr_linear){.rows = rows, .in = 4 * c, .out = c}, s[GELU], w[FC2_W],
                      w[FC2_B], pass->y);
    k->add(context, rows * c, s[MIDDLE], pass->y, pass->y);
    return ZR_OK;
}

/* d (output) -> d (middle) */
static zr_result feed_forward_backward(struct zr_module_pass *pass)
{
    const struct zr_kernels *k = pass->kernels;
    struct zr_kernel_context *context = pass->context;
    size_t rows = pass->rows, c = zr_pass_shape(pass)->hidden;
    struct zr_layernorm norm = {.rows = rows, .channels = c};
    void **s = pass->slots, *const *w = pass->parameters[0], *const *g = pass->gradients[0], *d = pass->dx;
    bool accumulate = pass->accumulate[0];
    zr_result result = zr_module_take(pass, D_WIDE);
    if (result != ZR_OK)
        return result;
    k->linear_backward(context, &(struct zr_linear){.rows = rows, .in = 4 * c, .out = c}, s[GELU], w[FC2_W],
                       d, s[D_WIDE], g[FC2_W], g[FC2_B], accumulate);
    k->gelu_backward(context, rows * 4 * c, s[FC], s[D_WIDE], s[D_WIDE]);
    result = zr_module_take(pass, D_NORM);
    if (result != ZR_OK)
        return result;
    k->linear_backward(context, &(struct zr_linear){.rows = rows, .in = c, .out = 4 * c}, s[LN2], w[FC_W],
                       s[D_WIDE], s[D_NORM], g[FC_W], g[FC_B], accumulate);
    zr_module_drop(pass, D_WIDE);
    k->layernorm_backward(context, &norm, s[MIDDLE], w[LN2_W], s[LN2_MEAN], s[LN2_RSTD], s[D_NORM], d, true,
                          g[LN2_W], g[LN2_B], accumulate);
    zr_module_drop(pass, D_NORM);
    return ZR_OK;
}

/* d (middle) -> d (input) */
static zr_result attention_backward(struct zr_module_pass *pass)
{
    const struct zr_kernels *k = pass->kernels;
    struct zr_kernel_context *context = pass->context;
    size_t rows = pass->rows, c = zr_pass_shape(pass)->hidden;
    struct zr_layernorm norm = {.rows = rows, .channels = c};
    struct zr_attention attention = zr_pass_attention(pass);
    void **s = pass->slots, *const *w = pass->parameters[0], *const *g = pass->gradients[0], *d = pass->dx;
    bool accumulate = pass->accumulate[0];
    zr_result result = zr_module_take(pass, D_NORM);
    if (result == ZR_OK)
        result = zr_module_take(pass, D_QKV);
    if (result != ZR_OK)
        return result;
    k->linear_backward(context, &(struct zr_linear){.rows = rows, .in = c, .out = c}, s[ATTENTION], w[PROJ_W],
                       d, s[D_NORM], g[PROJ_W], g[PROJ_B], accumulate);
    k->attention_backward(context, &attention, s[QKV], s[ATTENTION], s[LSE], s[PROBABILITIES], s[D_NORM],
                          s[D_QKV]);
    k->linear_backward(context, &(struct zr_linear){.rows = rows, .in = c, .out = 3 * c}, s[LN1], w[QKV_W],
                       s[D_QKV], s[D_NORM], g[QKV_W], g[QKV_B], accumulate);
    zr_module_drop(pass, D_QKV);
    k->layernorm_backward(context, &norm, pass->x, w[LN1_W], s[LN1_MEAN], s[LN1_RSTD], s[D_NORM], d, true,
                          g[LN1_W], g[LN1_B], accumulate);
    zr_module_drop(pass, D_NORM);
    return ZR_OK;
}

static zr_result block_backward(struct zr_module_pass *pass)
{
    zr_result result = feed_forward_backward(pass);
    return result == ZR_OK ? attention_backward(pass) : result;
}

/* ---- Final norm ---------------------------------------------------------------------------------------- */

enum { FINAL_MEAN, FINAL_RSTD, FINAL_SLOTS };

static zr_result final_norm(struct zr_module_pass *pass)
{
    struct zr_layernorm norm = {.rows = pass->rows, .channels = zr_pass_shape(pass)->hidden};
    pass->kernels->layernorm_forward(pass->context, &norm, pass->x, pass->parameters[0][0],
                                     pass->parameters[0][1], pass->y, pass->slots[FINAL_MEAN],
                                     pass->slots[FINAL_RSTD]);
    return ZR_OK;
}

static zr_result final_norm_backward(struct zr_module_pass *pass)
{
    struct zr_layernorm norm = {.rows = pass->rows, .channels = zr_pass_shape(pass)->hidden};
    pass->kernels->layernorm_backward(pass->context, &norm, pass->x, pass->parameters[0][0],
                                      pass->slots[FINAL_MEAN], pass->slots[FINAL_RSTD], pass->dy, pass->dx,
                                      false, pass->gradients[0][0], pass->gradients[0][1],
                                      pass->accumulate[0]);
    return ZR_OK;
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static void describe_types(struct zr_transformer *t)
{
    size_t c = t->shape.hidden;
    t->slots[ZR_TYPE_FINAL][FINAL_MEAN] = (struct zr_slot){"mean", 1, ZR_SLOT_FLOATS, 0};
    t->slots[ZR_TYPE_FINAL][FINAL_RSTD] = (struct zr_slot){"rstd", 1, ZR_SLOT_FLOATS, 0};
    describe_slots(t);
    t->types[ZR_TYPE_EMBEDDING] = (struct zr_module_type){.name = "embeddings",
                                                          .output_columns = c,
                                                          .output_tag = ZR_TAG_CHECKPOINT,
                                                          .backward_reads_none = true,
                                                          .forward = embed,
                                                          .backward = embed_backward};
    t->types[ZR_TYPE_BLOCK] = (struct zr_module_type){.output_columns = c,
                                                      .output_tag = ZR_TAG_CHECKPOINT,
                                                      .output_name = "mlp.c_proj",
                                                      .slots = t->slots[ZR_TYPE_BLOCK],
                                                      .slots_count = BLOCK_SLOTS,
                                                      .in_place = true,
                                                      .recomputes = true,
                                                      .forward = block,
                                                      .backward = block_backward};
    t->types[ZR_TYPE_FINAL] = (struct zr_module_type){.output_columns = c,
                                                      .output_tag = ZR_TAG_ACTIVATION,
                                                      .slots = t->slots[ZR_TYPE_FINAL],
                                                      .slots_count = FINAL_SLOTS,
                                                      .forward = final_norm,
                                                      .backward = final_norm_backward};
    t->types[ZR_TYPE_HEAD] = zr_head_type;
}

static void describe(struct zr_transformer *t)
{
    const struct zr_shape *shape = &t->shape;
    size_t c = shape->hidden;
    float deviation = 0.02f; /* GPT-2's */
    float residual =
        deviation / sqrtf(2.0f * (float)shape->layers); /* scaled by the depth of the residual path */
    const struct zr_tensor wte = {"wte.weight", shape->vocabulary_padded, c, 0,
                                  deviation,    ZR_GROUP_EMBEDDINGS};
    const struct zr_tensor wpe = {"wpe.weight", shape->sequence, c, 0, deviation, ZR_GROUP_EMBEDDINGS};
    const struct zr_tensor tensors[BLOCK_PARAMETERS] = {
        [LN1_W] = {"ln_1.weight", c, 0, 1, 0, ZR_GROUP_VECTORS},
        [LN1_B] = {"ln_1.bias", c, 0, 0, 0, ZR_GROUP_VECTORS},
        [QKV_W] = {"attn.c_attn.weight", c, 3 * c, 0, deviation, ZR_GROUP_MATRICES},
        [QKV_B] = {"attn.c_attn.bias", 3 * c, 0, 0, 0, ZR_GROUP_VECTORS},
        [PROJ_W] = {"attn.c_proj.weight", c, c, 0, residual, ZR_GROUP_MATRICES},
        [PROJ_B] = {"attn.c_proj.bias", c, 0, 0, 0, ZR_GROUP_VECTORS},
        [LN2_W] = {"ln_2.weight", c, 0, 1, 0, ZR_GROUP_VECTORS},
        [LN2_B] = {"ln_2.bias", c, 0, 0, 0, ZR_GROUP_VECTORS},
        [FC_W] = {"mlp.c_fc.weight", c, 4 * c, 0, deviation, ZR_GROUP_MATRICES},
        [FC_B] = {"mlp.c_fc.bias", 4 * c, 0, 0, 0, ZR_GROUP_VECTORS},
        [FC2_W] = {"mlp.c_proj.weight", 4 * c, c, 0, residual, ZR_GROUP_MATRICES},
        [FC2_B] = {"mlp.c_proj.bias", c, 0, 0, 0, ZR_GROUP_VECTORS},
    };
    const struct zr_tensor ln_f[] = {{"weight", c, 0, 1, 0, ZR_GROUP_VECTORS},
                                     {"bias", c, 0, 0, 0, ZR_GROUP_VECTORS}};
    unsigned embedding[] = {WTE, WPE}, unit = WPE;

    describe_types(t);
    zr_transformer_add_unit(t, &(struct zr_unit_tensors){"wte", "", 0, 2, &wte, 1});
    zr_transformer_add_unit(t, &(struct zr_unit_tensors){"wpe", "", 0, 1, &wpe, 1});
    zr_transformer_add_module(t, ZR_TYPE_EMBEDDING, embedding, 2);
    for (size_t l = 0; l < shape->layers; l++) {
        unit++;
        zr_transformer_add_unit(
            t, &(struct zr_unit_tensors){"h.%zu", "h.%zu.", l, 1, tensors, BLOCK_PARAMETERS});
        zr_transformer_add_module(t, ZR_TYPE_BLOCK, &unit, 1);
    }
    unit++;
    zr_transformer_add_unit(t, &(struct zr_unit_tensors){"ln_f", "ln_f.", 0, 1, ln_f, 2});
    zr_transformer_add_module(t, ZR_TYPE_FINAL, &unit, 1);
    zr_transformer_add_module(t, ZR_TYPE_HEAD, embedding, 1);
}

static double elements(const struct zr_shape *shape)
{
    double c = (double)shape->hidden, tables = (double)shape->vocabulary_padded + (double)shape->sequence;
    return (double)shape->layers * (12 * c * c + 13 * c) + (tables + 2) * c;
}

static double block_flops(const struct zr_shape *shape)
{
    double c = (double)shape->hidden;
    return 24 * c * c + 4 * c * (double)shape->sequence;
}

const struct zr_architecture_table zr_architecture_gpt2 = {.name = "gpt2",
                                                           .units = 3,
                                                           .parameters = 4,
                                                           .block_parameters = BLOCK_PARAMETERS,
                                                           .describe = describe,
                                                           .elements = elements,
                                                           .block_flops = block_flops};
