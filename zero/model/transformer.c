/* transformer.c: what the architectures share: shapes, lists, the head. */
#include "zero/model/transformer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "zero/comm/take.h"

static const struct zr_architecture_table *const tables[ZR_ARCH_COUNT] = {&zr_architecture_gpt2,
                                                                          &zr_architecture_llama};

const char *zr_architecture_name(enum zr_architecture architecture)
{
    return tables[architecture]->name;
}

/* ---- Shapes -------------------------------------------------------------------------------------------- */

void zr_shape_complete(struct zr_shape *shape)
{
    enum { FFN_MULTIPLE = 64 };
    if (shape->architecture == ZR_ARCH_GPT2) {
        shape->kv_heads = shape->heads;
        shape->ffn = 4 * shape->hidden;
        shape->tied = true;
        return;
    }
    if (shape->kv_heads == 0)
        shape->kv_heads = shape->heads;
    if (shape->ffn == 0) /* three matrices have the parameters of GPT-2's two of 4 C */
        shape->ffn = (shape->hidden * 8 / 3 + FFN_MULTIPLE - 1) / FFN_MULTIPLE * FFN_MULTIPLE;
    if (shape->rope_theta == 0)
        shape->rope_theta = 10000;
    if (shape->norm_epsilon == 0)
        shape->norm_epsilon = 1e-5;
}

static zr_result check_llama(const struct zr_shape *shape)
{
    if (shape->kv_heads == 0 || shape->heads % shape->kv_heads)
        return zr_fail(ZR_ERR_INVALID,
                       "%zu heads of keys and values do not divide %zu heads; take a divisor of %zu",
                       shape->kv_heads, shape->heads, shape->heads);
    if (shape->hidden / shape->heads % 2)
        return zr_fail(
            ZR_ERR_INVALID,
            "rotary embedding turns pairs, and heads of %zu numbers have an odd one; take a hidden "
            "size that is a multiple of %zu",
            shape->hidden / shape->heads, 2 * shape->heads);
    if (shape->ffn == 0)
        return zr_fail(ZR_ERR_INVALID, "the model's feed-forward width must be at least 1");
    if (!(shape->rope_theta >= 1 && shape->rope_theta <= 1e12))
        return zr_fail(ZR_ERR_INVALID, "a rotary base of %g is not between 1 and 1e12", shape->rope_theta);
    if (!(shape->norm_epsilon >= 1e-12 && shape->norm_epsilon <= 1))
        return zr_fail(ZR_ERR_INVALID, "an epsilon of the norms of %g is not between 1e-12 and 1",
                       shape->norm_epsilon);
    return ZR_OK;
}

zr_result zr_shape_check(const struct zr_shape *shape)
{
    const struct {
        const char *name;
        size_t value;
    } sizes[] = {{"layers", shape->layers},
                 {"hidden", shape->hidden},
                 {"heads", shape->heads},
                 {"vocabulary", shape->vocabulary},
                 {"sequence", shape->sequence},
                 {"batch", shape->batch},
                 {"padded vocabulary", shape->vocabulary_padded}};
    size_t elements, rows, product;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value == 0)
            return zr_fail(ZR_ERR_INVALID, "the model's %s must be at least 1", sizes[i].name);
    if ((unsigned)shape->architecture >= ZR_ARCH_COUNT)
        return zr_fail(ZR_ERR_INVALID, "architecture number %d is none", (int)shape->architecture);
    if (shape->hidden % shape->heads)
        return zr_fail(ZR_ERR_INVALID, "%zu heads do not divide a hidden size of %zu; take a multiple of %zu",
                       shape->heads, shape->hidden, shape->heads);
    if (shape->vocabulary_padded < shape->vocabulary)
        return zr_fail(ZR_ERR_INVALID, "the padded vocabulary (%zu) is smaller than the vocabulary (%zu)",
                       shape->vocabulary_padded, shape->vocabulary);
    if (shape->vocabulary > INT32_MAX || shape->layers > UINT32_MAX - 4)
        return zr_fail(ZR_ERR_INVALID, "a vocabulary of %zu or %zu layers is more than this model can count",
                       shape->vocabulary, shape->layers);
    if (shape->architecture == ZR_ARCH_LLAMA) {
        zr_result result = check_llama(shape);
        if (result != ZR_OK)
            return result;
    }
    if (__builtin_mul_overflow(shape->batch, shape->sequence, &rows) ||
        __builtin_mul_overflow(rows, shape->sequence, &product) ||
        __builtin_mul_overflow(product, shape->heads, &product) || product > SIZE_MAX / 16 ||
        __builtin_mul_overflow(rows, shape->hidden, &product) || product > SIZE_MAX / 64 ||
        __builtin_mul_overflow(rows, shape->ffn, &product) || product > SIZE_MAX / 16 ||
        __builtin_mul_overflow(shape->hidden, shape->hidden, &elements) ||
        __builtin_mul_overflow(elements, shape->layers, &elements) || elements > SIZE_MAX / 1024 ||
        __builtin_mul_overflow(shape->hidden, shape->ffn, &elements) ||
        __builtin_mul_overflow(elements, shape->layers, &elements) || elements > SIZE_MAX / 64 ||
        __builtin_mul_overflow(shape->hidden, shape->vocabulary_padded, &elements) ||
        elements > SIZE_MAX / 64)
        return zr_fail(ZR_ERR_INVALID, "a model of this shape has more bytes than there are addresses");
    return ZR_OK;
}

void zr_shape_limits(const struct zr_shape *shape, unsigned threads, struct zr_kernel_limits *out)
{
    *out = (struct zr_kernel_limits){
        .rows = shape->batch * shape->sequence,
        .sequence = shape->sequence,
        .channels = shape->hidden,
        .heads = shape->heads,
        .threads = threads,
    };
}

double zr_shape_elements(const struct zr_shape *shape)
{
    return tables[shape->architecture]->elements(shape);
}

double zr_shape_flops(const struct zr_shape *shape)
{
    double rows = (double)shape->batch * (double)shape->sequence, c = (double)shape->hidden;
    double head = 2 * c * (double)shape->vocabulary; /* forward, per row */
    double blocks = (double)shape->layers * tables[shape->architecture]->block_flops(shape);
    return 3 * rows * (blocks + head); /* backward takes twice as much */
}

/* ---- Lists --------------------------------------------------------------------------------------------- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void print_layer(char *out, size_t room, const char *format, size_t layer)
{
    snprintf(out, room, format, layer);
}
#pragma GCC diagnostic pop

void zr_transformer_add_unit(struct zr_transformer *transformer, const struct zr_unit_tensors *unit)
{
    struct zr_parameter_list *list = &transformer->model.list;
    struct zr_unit *u = &transformer->units[list->units_count];
    *u = (struct zr_unit){.gradient_uses = unit->gradient_uses};
    print_layer(u->name, sizeof u->name, unit->name, unit->layer);
    for (size_t i = 0; i < unit->count; i++) {
        const struct zr_tensor *tensor = &unit->tensors[i];
        struct zr_parameter *p = &transformer->parameters[list->parameters_count++];
        *p = (struct zr_parameter){.shape = {tensor->rows, tensor->columns},
                                   .unit = (unsigned)list->units_count,
                                   .group = tensor->group,
                                   .init_mean = tensor->mean,
                                   .init_deviation = tensor->deviation};
        print_layer(p->name, sizeof p->name, unit->prefix, unit->layer);
        size_t used = strlen(p->name);
        snprintf(p->name + used, sizeof p->name - used, "%s", tensor->name);
    }
    list->units_count++;
}

void zr_transformer_add_module(struct zr_transformer *transformer, unsigned type, const unsigned *units,
                               unsigned count)
{
    struct zr_module *module = &transformer->modules[transformer->model.modules_count++];
    *module = (struct zr_module){.type = &transformer->types[type], .units_count = count};
    memcpy(module->units, units, count * sizeof *units);
}

zr_result zr_transformer_open(struct zr_transformer *out, const struct zr_shape *shape, zr_arena *host_arena)
{
    zr_result result;
    memset(out, 0, sizeof *out);
    out->shape = *shape;
    zr_shape_complete(&out->shape);
    result = zr_shape_check(&out->shape);
    if (result != ZR_OK)
        return result;
    shape = &out->shape;
    const struct zr_architecture_table *table = tables[shape->architecture];
    out->host_arena = host_arena;
    out->model = (struct zr_model){.rows = shape->batch * shape->sequence,
                                   .rows_together = shape->sequence,
                                   .answer_count = shape->vocabulary,
                                   .shape = shape};
    out->model.inputs[ZR_INPUT_TOKENS] = (struct zr_input){"tokens", out->model.rows, ZR_SLOT_INTEGERS};
    out->model.inputs[ZR_INPUT_TARGETS] = (struct zr_input){"targets", out->model.rows, ZR_SLOT_INTEGERS};
    out->model.inputs_count = ZR_INPUTS_COMMON;
    result = zr_take(host_arena, ZR_TAG_OTHER, table->parameters + table->block_parameters * shape->layers,
                     sizeof *out->parameters, (void **)&out->parameters);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, table->units + shape->layers, sizeof *out->units,
                         (void **)&out->units);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, ZR_TYPES_COUNT - 1 + shape->layers, sizeof *out->modules,
                         (void **)&out->modules);
    if (result != ZR_OK) {
        zr_transformer_close(out);
        return result;
    }
    out->model.list.parameters = out->parameters;
    out->model.list.units = out->units;
    out->model.modules = out->modules;
    table->describe(out);
    return ZR_OK;
}

void zr_transformer_close(struct zr_transformer *transformer)
{
    if (!transformer->host_arena)
        return;
    zr_drop(transformer->host_arena, &transformer->modules);
    zr_drop(transformer->host_arena, &transformer->units);
    zr_drop(transformer->host_arena, &transformer->parameters);
}

/* ---- The embedding ------------------------------------------------------------------------------------- */

zr_result zr_pass_embed(struct zr_module_pass *pass)
{
    return pass->kernels->embedding_forward(
        pass->context, &(struct zr_embedding_forward){.rows = pass->rows,
                                                      .channels = zr_pass_shape(pass)->hidden,
                                                      .tokens = pass->inputs[ZR_INPUT_TOKENS],
                                                      .w = pass->parameters[0][0],
                                                      .y = pass->y});
}

zr_result zr_pass_embed_backward(struct zr_module_pass *pass)
{
    return pass->kernels->embedding_backward(
        pass->context, &(struct zr_embedding_backward){.rows = pass->rows,
                                                       .channels = zr_pass_shape(pass)->hidden,
                                                       .tokens = pass->inputs[ZR_INPUT_TOKENS],
                                                       .dy = pass->dy,
                                                       .dw = pass->gradients[0][0],
                                                       .w_rows = zr_pass_shape(pass)->vocabulary_padded,
                                                       .accumulate = pass->accumulate[0]});
}

/* ---- The head ------------------------------------------------------------------------------------------ */

#define LOGITS_BYTES_MOST ((size_t)64 << 20) /* or one row */
enum { LOGITS, HEAD_SLOTS };

static size_t logits_rows_most(const struct zr_shape *shape)
{
    size_t most = LOGITS_BYTES_MOST / (shape->vocabulary_padded * sizeof(float));
    return most == 0 ? 1 : most;
}

/* Some rows: the losses, and where dx is wanted their share of the gradients. */
static zr_result head_rows(struct zr_module_pass *pass, size_t first, size_t rows)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    const struct zr_kernels *k = pass->kernels;
    size_t bytes = zr_precision_bytes(pass->context->precision), at = first * shape->hidden * bytes;
    const int32_t *targets = pass->inputs[ZR_INPUT_TARGETS];
    const void *x = (const char *)pass->x + at, *w = pass->parameters[0][0];
    struct zr_linear linear = {
        .rows = rows, .in = shape->hidden, .out = shape->vocabulary_padded, .turned = true};

    zr_result result = k->linear_forward(
        pass->context, &(struct zr_linear_forward){
                           .shape = linear, .x = x, .w = w, .y = pass->slots[LOGITS], .floats = true});
    if (result == ZR_OK)
        result = k->cross_entropy(pass->context, &(struct zr_cross_entropy){.rows = rows,
                                                                            .columns = shape->vocabulary,
                                                                            .stride = linear.out,
                                                                            .targets = targets + first,
                                                                            .logits = pass->slots[LOGITS],
                                                                            .losses = pass->losses + first,
                                                                            .gradient = pass->dx != NULL,
                                                                            .scale = pass->scale});
    if (result != ZR_OK || !pass->dx)
        return result;
    linear.y_stride = linear.out * sizeof(float) / bytes;
    return k->linear_backward(pass->context,
                              &(struct zr_linear_backward){.shape = linear,
                                                           .x = x,
                                                           .w = w,
                                                           .dy = pass->slots[LOGITS],
                                                           .dx = (char *)pass->dx + at,
                                                           .dw = pass->gradients[0][0],
                                                           .accumulate = pass->accumulate[0] || first > 0});
}

/* In chunks of rows of equal size as near as can be, which follow one another in the gradient of the weights:
 * at two bytes that is rounded once per chunk. Forward and backward: a forward pass has no dx. */
static zr_result head(struct zr_module_pass *pass)
{
    size_t most = logits_rows_most(zr_pass_shape(pass)), chunks = (pass->rows + most - 1) / most;
    size_t each = (pass->rows + chunks - 1) / chunks;
    zr_result result = ZR_OK;
    for (size_t first = 0; first < pass->rows && result == ZR_OK; first += each)
        result = head_rows(pass, first, pass->rows - first < each ? pass->rows - first : each);
    return result;
}

static zr_result head_answer(struct zr_module_pass *pass, size_t row, float *out)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    size_t line = shape->hidden * zr_precision_bytes(pass->context->precision);
    return pass->kernels->linear_forward(
        pass->context,
        &(struct zr_linear_forward){
            .shape = {.rows = 1, .in = shape->hidden, .out = shape->vocabulary, .turned = true},
            .x = (const char *)pass->x + row * line,
            .w = pass->parameters[0][0],
            .y = out,
            .floats = true});
}

void zr_transformer_add_head(struct zr_transformer *transformer)
{
    const struct zr_model *model = &transformer->model;
    const struct zr_shape *shape = &transformer->shape;
    size_t most = logits_rows_most(shape), rows = most < model->rows ? most : model->rows;
    size_t columns =
        (rows * shape->vocabulary_padded + model->rows - 1) / model->rows; /* so that a chunk fits */
    transformer->slots[ZR_TYPE_HEAD][LOGITS] =
        (struct zr_slot){"logits", columns, ZR_SLOT_FLOATS, ZR_SLOT_KEPT};
    transformer->types[ZR_TYPE_HEAD] = (struct zr_module_type){.name = "head",
                                                               .slots = transformer->slots[ZR_TYPE_HEAD],
                                                               .slots_count = HEAD_SLOTS,
                                                               .forward = head,
                                                               .backward = head,
                                                               .answer = head_answer};
}
