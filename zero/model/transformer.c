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

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

void zr_shape_limits(const struct zr_shape *shape, unsigned threads, struct zr_kernel_limits *out)
{
    size_t width = shape->hidden / shape->heads;
    *out = (struct zr_kernel_limits){
        .rows = shape->batch * shape->sequence,
        .sequence = shape->sequence,
        .channels = shape->hidden,
        .heads = shape->heads,
        .wide = larger(shape->ffn, shape->hidden + 2 * shape->kv_heads * width),
        .vocabulary = shape->vocabulary_padded,
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
    *u = (struct zr_unit){.contributions = unit->contributions};
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

/* ---- The head ------------------------------------------------------------------------------------------ */

static struct zr_head head_of(const struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    return (struct zr_head){.targets = pass->inputs[ZR_INPUT_TARGETS],
                            .rows = pass->rows,
                            .channels = shape->hidden,
                            .vocabulary = shape->vocabulary,
                            .vocabulary_padded = shape->vocabulary_padded};
}

static zr_result head_forward(struct zr_module_pass *pass)
{
    struct zr_head head = head_of(pass);
    pass->kernels->head_loss(pass->context, &head, pass->x, pass->parameters[0][0], pass->losses, 0, NULL,
                             NULL, false);
    return ZR_OK;
}

static zr_result head_backward(struct zr_module_pass *pass)
{
    struct zr_head head = head_of(pass);
    pass->kernels->head_loss(pass->context, &head, pass->x, pass->parameters[0][0], pass->losses, pass->scale,
                             pass->dx, pass->gradients[0][0], pass->accumulate[0]);
    return ZR_OK;
}

static zr_result head_answer(struct zr_module_pass *pass, size_t row, float *out)
{
    struct zr_head head = head_of(pass);
    size_t line = head.channels * zr_precision_bytes(pass->context->precision);
    pass->kernels->head_logits(pass->context, &head, (const char *)pass->x + row * line,
                               pass->parameters[0][0], out);
    return ZR_OK;
}

const struct zr_module_type zr_head_type = {
    .name = "head", .forward = head_forward, .backward = head_backward, .answer = head_answer};
