/* gpt_shape.c: what a GPT-2 of some shape is made of: parameters, units, limits. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "zero/gpt.h"
#include "zero/gpt_inside.h"

zr_result zr_gpt_shape_check(const struct zr_gpt_shape *shape)
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
    if (shape->hidden % shape->heads)
        return zr_fail(ZR_ERR_INVALID, "%zu heads do not divide a hidden size of %zu; take a multiple of %zu",
                       shape->heads, shape->hidden, shape->heads);
    if (shape->vocabulary_padded < shape->vocabulary)
        return zr_fail(ZR_ERR_INVALID, "the padded vocabulary (%zu) is smaller than the vocabulary (%zu)",
                       shape->vocabulary_padded, shape->vocabulary);
    if (shape->vocabulary > INT32_MAX || shape->layers > UINT32_MAX - 3)
        return zr_fail(ZR_ERR_INVALID, "a vocabulary of %zu or %zu layers is more than this model can count",
                       shape->vocabulary, shape->layers);
    if (__builtin_mul_overflow(shape->batch, shape->sequence, &rows) ||
        __builtin_mul_overflow(rows, shape->sequence, &product) ||
        __builtin_mul_overflow(product, shape->heads, &product) || product > SIZE_MAX / 16 ||
        __builtin_mul_overflow(rows, shape->hidden, &product) || product > SIZE_MAX / 64 ||
        __builtin_mul_overflow(shape->hidden, shape->hidden, &elements) ||
        __builtin_mul_overflow(elements, shape->layers, &elements) || elements > SIZE_MAX / 1024 ||
        __builtin_mul_overflow(shape->hidden, shape->vocabulary_padded, &elements) ||
        elements > SIZE_MAX / 64)
        return zr_fail(ZR_ERR_INVALID, "a model of this shape has more bytes than there are addresses");
    return ZR_OK;
}

size_t zr_gpt_parameters_count(const struct zr_gpt_shape *shape)
{
    return GPT_EMBEDDINGS + GPT_BLOCK_PARAMETERS * shape->layers + 2;
}

size_t zr_gpt_units_count(const struct zr_gpt_shape *shape)
{
    return GPT_EMBEDDINGS + shape->layers + 1;
}

struct describer {
    struct zr_parameter *next;
    unsigned unit;
};

static void describe(struct describer *d, size_t rows, size_t columns, float deviation, const char *format,
                     ...) __attribute__((format(printf, 5, 6)));

/* Matrices have two sizes, vectors one. */
static void describe(struct describer *d, size_t rows, size_t columns, float deviation, const char *format,
                     ...)
{
    struct zr_parameter *p = d->next++;
    va_list list;
    *p = (struct zr_parameter){.shape = {rows, columns},
                               .unit = d->unit,
                               .group = columns ? ZR_GPT_MATRICES : ZR_GPT_VECTORS,
                               .init_deviation = deviation};
    va_start(list, format);
    vsnprintf(p->name, sizeof p->name, format, list);
    va_end(list);
}

void zr_gpt_describe(const struct zr_gpt_shape *shape, struct zr_parameter *parameters, struct zr_unit *units)
{
    size_t c = shape->hidden;
    float deviation = 0.02f; /* GPT-2's */
    float residual =
        deviation / sqrtf(2.0f * (float)shape->layers); /* scaled by the depth of the residual path */
    struct describer d = {.next = parameters};

    units[0] = (struct zr_unit){.name = "wte", .contributions = 2};
    describe(&d, shape->vocabulary_padded, c, deviation, "wte.weight");
    d.next[-1].group = ZR_GPT_EMBEDDINGS;
    d.unit++;
    units[1] = (struct zr_unit){.name = "wpe", .contributions = 1};
    describe(&d, shape->sequence, c, deviation, "wpe.weight");
    d.next[-1].group = ZR_GPT_EMBEDDINGS;
    for (size_t l = 0; l < shape->layers; l++) {
        d.unit++;
        units[d.unit] = (struct zr_unit){.contributions = 1};
        snprintf(units[d.unit].name, sizeof units[d.unit].name, "h.%zu", l);
        describe(&d, c, 0, 0, "h.%zu.ln_1.weight", l);
        d.next[-1].init_mean = 1;
        describe(&d, c, 0, 0, "h.%zu.ln_1.bias", l);
        describe(&d, c, 3 * c, deviation, "h.%zu.attn.c_attn.weight", l);
        describe(&d, 3 * c, 0, 0, "h.%zu.attn.c_attn.bias", l);
        describe(&d, c, c, residual, "h.%zu.attn.c_proj.weight", l);
        describe(&d, c, 0, 0, "h.%zu.attn.c_proj.bias", l);
        describe(&d, c, 0, 0, "h.%zu.ln_2.weight", l);
        d.next[-1].init_mean = 1;
        describe(&d, c, 0, 0, "h.%zu.ln_2.bias", l);
        describe(&d, c, 4 * c, deviation, "h.%zu.mlp.c_fc.weight", l);
        describe(&d, 4 * c, 0, 0, "h.%zu.mlp.c_fc.bias", l);
        describe(&d, 4 * c, c, residual, "h.%zu.mlp.c_proj.weight", l);
        describe(&d, c, 0, 0, "h.%zu.mlp.c_proj.bias", l);
    }
    d.unit++;
    units[d.unit] = (struct zr_unit){.name = "ln_f", .contributions = 1};
    describe(&d, c, 0, 0, "ln_f.weight");
    d.next[-1].init_mean = 1;
    describe(&d, c, 0, 0, "ln_f.bias");
}

void zr_gpt_limits(const struct zr_gpt_shape *shape, unsigned threads, struct zr_kernel_limits *out)
{
    *out = (struct zr_kernel_limits){
        .rows = shape->batch * shape->sequence,
        .sequence = shape->sequence,
        .channels = shape->hidden,
        .heads = shape->heads,
        .wide = 4 * shape->hidden,
        .vocabulary = shape->vocabulary_padded,
        .threads = threads,
    };
}

double zr_gpt_flops(const struct zr_gpt_shape *shape)
{
    double rows = (double)shape->batch * (double)shape->sequence, c = (double)shape->hidden;
    double block = 24 * c * c + 4 * c * (double)shape->sequence; /* forward, per row */
    double head = 2 * c * (double)shape->vocabulary;
    return 3 * rows * ((double)shape->layers * block + head); /* backward takes twice as much */
}
