/* dropout.c: dropout of embeddings, residual branches and attention's probabilities. Masks are computed again
 * in backward: see struct zr_dropout in kernels/zr_kernels.h. */
#include <limits.h>

#include "zero/model/transformer.h"

/* Where a mask is used: the embedding, and two branches of each layer; apart from those, the heads of each.
 */
enum { SITE_EMBEDDING = 0, SITE_BLOCKS, SITES_PER_BLOCK = 2 };
#define SITE_HEADS 0x80000000u

static unsigned draw_input(const struct zr_model *model)
{
    return model->inputs_count - 1;
}

unsigned zr_transformer_draw_input(const struct zr_transformer *transformer)
{
    return zr_shape_drops(&transformer->shape) ? draw_input(&transformer->model) : UINT_MAX;
}

struct zr_dropout_draw zr_transformer_draw(const struct zr_transformer *transformer,
                                           const struct zr_transformer_draw *draw)
{
    return (struct zr_dropout_draw){
        .key = {(uint32_t)draw->seed, (uint32_t)(draw->seed >> 32 ^ draw->step >> 32)},
        .step = (uint32_t)draw->step,
        .row = (uint32_t)(draw->sequence * transformer->shape.sequence)};
}

static zr_result drop(struct zr_module_pass *pass, unsigned site, float rate, const void *from, void *to)
{
    return pass->kernels->dropout(pass->context,
                                  &(struct zr_dropout){.rows = pass->own_rows,
                                                       .columns = zr_pass_shape(pass)->hidden,
                                                       .first_row = zr_pass_first_row(pass),
                                                       .site = site,
                                                       .rate = rate,
                                                       .draw = pass->inputs[draw_input(pass->model)],
                                                       .x = from,
                                                       .y = to,
                                                       .part = zr_shape_part(zr_pass_shape(pass))});
}

zr_result zr_pass_drop_embedding(struct zr_module_pass *pass, const void *at)
{
    float rate = zr_pass_shape(pass)->embedding_dropout;
    return pass->trains && rate > 0 ? drop(pass, SITE_EMBEDDING, rate, at, (void *)(uintptr_t)at) : ZR_OK;
}

struct zr_attention_dropout zr_pass_attention_dropout(const struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    size_t heads = shape->heads / zr_shape_tensor(shape);
    if (!pass->trains || !(shape->attention_dropout > 0))
        return (struct zr_attention_dropout){.rate = 0};
    return (struct zr_attention_dropout){
        .rate = shape->attention_dropout,
        .site = SITE_HEADS + (unsigned)(zr_pass_layer(pass) * shape->heads + shape->tensor_rank * heads),
        .draw = pass->inputs[draw_input(pass->model)]};
}

/* Drops elements of a branch: its output, or the gradient of it. */
static zr_result drop_branch(struct zr_module_pass *pass, unsigned product, const void *from, void *to)
{
    unsigned site =
        SITE_BLOCKS + SITES_PER_BLOCK * (unsigned)zr_pass_layer(pass) + (product == ZR_PRODUCT_NARROW);
    return drop(pass, site, zr_pass_shape(pass)->residual_dropout, from, to);
}

zr_result zr_pass_drop_output(struct zr_module_pass *pass, unsigned product, void *at)
{
    return zr_pass_drops(pass) ? drop_branch(pass, product, at, at) : ZR_OK;
}

struct zr_slot zr_slot_dropped(const struct zr_shape *shape)
{
    return (struct zr_slot){"gradient of a branch", shape->hidden, 0, ZR_SLOT_TEMPORARY, true};
}

zr_result zr_pass_take_dropped(struct zr_module_pass *pass, unsigned product, unsigned slot)
{
    enum zr_precision precision = pass->context->precision;
    if (!zr_pass_drops(pass) && !pass->splits)
        return ZR_OK;
    zr_result result = zr_module_take(pass, slot);
    if (result != ZR_OK)
        return result;
    return zr_pass_drops(pass)
               ? drop_branch(pass, product, pass->dx, pass->slots[slot])
               : pass->kernels->convert(
                     pass->context, &(struct zr_convert){.n = pass->own_rows * zr_pass_shape(pass)->hidden,
                                                         .from = {pass->dx, precision},
                                                         .to = {pass->slots[slot], precision}});
}
