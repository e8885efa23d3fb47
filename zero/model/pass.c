/* pass.c: what passes through modules of every architecture share: sums between tensor ranks, the embedding,
 * the head. */
#include <string.h>

#include "zero/model/transformer.h"

/* ---- Between tensor ranks ------------------------------------------------------------------------------ */

struct zr_slot zr_slot_all_rows(const struct zr_shape *shape, const char *name)
{
    return (struct zr_slot){
        .name = name, .columns = shape->sequence_parallel ? shape->hidden : 0, .life = ZR_SLOT_TEMPORARY};
}

static enum zr_comm_type comm_type(const struct zr_module_pass *pass)
{
    enum zr_precision precision = pass->context->precision;
    return precision == ZR_PRECISION_BF16   ? ZR_COMM_BF16
           : precision == ZR_PRECISION_FP16 ? ZR_COMM_FP16
                                            : ZR_COMM_FP32;
}

zr_result zr_pass_all_rows(struct zr_module_pass *pass, const void *own, unsigned slot, const void **all)
{
    zr_ticket ticket;
    *all = own;
    if (!zr_pass_shape(pass)->sequence_parallel)
        return ZR_OK;
    zr_result result = pass->slots[slot] ? ZR_OK : zr_module_take(pass, slot);
    if (result != ZR_OK)
        return result;
    *all = pass->slots[slot];
    result = zr_comm_all_gather(
        pass->tensor,
        &(struct zr_all_gather){.source = own,
                                .destination = pass->slots[slot],
                                .shard_bytes = pass->own_rows * zr_pass_shape(pass)->hidden *
                                               zr_precision_bytes(pass->context->precision),
                                .type = comm_type(pass),
                                .label = ZR_COMM_LABEL_NONE},
        &ticket);
    return result == ZR_OK ? zr_comm_wait(pass->tensor, ticket) : result;
}

zr_result zr_pass_open_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum, void *own, unsigned slot)
{
    *sum = (struct zr_pass_sum){.own = own, .part = own, .slot = slot};
    if (!zr_pass_shape(pass)->sequence_parallel)
        return ZR_OK;
    zr_result result = zr_module_take(pass, slot);
    sum->part = pass->slots[slot];
    return result;
}

zr_result zr_pass_start_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    size_t elements = pass->rows * shape->hidden / zr_shape_tensor(shape);
    if (zr_shape_tensor(shape) == 1)
        return ZR_OK;
    if (shape->sequence_parallel)
        return zr_comm_reduce_scatter(pass->tensor,
                                      &(struct zr_reduce_scatter){.source = sum->part,
                                                                  .destination = sum->own,
                                                                  .shard_elements = elements,
                                                                  .scale = 1,
                                                                  .type = comm_type(pass),
                                                                  .label = ZR_COMM_LABEL_NONE},
                                      &sum->ticket);
    return zr_comm_all_reduce(pass->tensor,
                              &(struct zr_all_reduce){.buffer = sum->own,
                                                      .shard_elements = elements,
                                                      .scale = 1,
                                                      .type = comm_type(pass),
                                                      .label = ZR_COMM_LABEL_NONE},
                              &sum->ticket);
}

zr_result zr_pass_end_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum)
{
    zr_result result = ZR_OK;
    if (zr_shape_tensor(zr_pass_shape(pass)) > 1)
        result = zr_comm_wait(pass->tensor, sum->ticket);
    if (sum->part != sum->own)
        zr_module_drop(pass, sum->slot);
    return result;
}

zr_result zr_pass_close_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum)
{
    zr_result result = zr_pass_start_sum(pass, sum);
    return result == ZR_OK ? zr_pass_end_sum(pass, sum) : result;
}

/* ---- The embedding ------------------------------------------------------------------------------------- */

zr_result zr_pass_embed(struct zr_module_pass *pass, unsigned slot)
{
    struct zr_vocabulary_share share = zr_shape_vocabulary(zr_pass_shape(pass));
    struct zr_pass_sum sum;
    zr_result result = zr_pass_open_sum(pass, &sum, pass->y, slot);
    if (result == ZR_OK)
        result = pass->kernels->embedding_forward(
            pass->context, &(struct zr_embedding_forward){.rows = pass->rows,
                                                          .channels = zr_pass_shape(pass)->hidden,
                                                          .tokens = pass->inputs[ZR_INPUT_TOKENS],
                                                          .first_row = share.first,
                                                          .w_rows = share.rows,
                                                          .w = pass->parameters[0][0],
                                                          .y = sum.part});
    return result == ZR_OK ? zr_pass_close_sum(pass, &sum) : result;
}

zr_result zr_pass_embed_backward(struct zr_module_pass *pass, unsigned slot)
{
    struct zr_vocabulary_share share = zr_shape_vocabulary(zr_pass_shape(pass));
    const void *dy;
    zr_result result = zr_pass_all_rows(pass, pass->dy, slot, &dy);
    if (result == ZR_OK)
        result = pass->kernels->embedding_backward(
            pass->context, &(struct zr_embedding_backward){.rows = pass->rows,
                                                           .channels = zr_pass_shape(pass)->hidden,
                                                           .tokens = pass->inputs[ZR_INPUT_TOKENS],
                                                           .dy = dy,
                                                           .dw = pass->gradients[0][0],
                                                           .first_row = share.first,
                                                           .w_rows = share.rows,
                                                           .accumulate = pass->accumulate[0]});
    zr_module_drop(pass, slot);
    return result;
}

/* ---- The head ------------------------------------------------------------------------------------------ */

#define LOGITS_BYTES_MOST ((size_t)64 << 20) /* or one row */
enum { LOGITS, PARTS, X_ROWS, DX_ROWS, HEAD_SLOTS };
enum { PART_FLOATS = sizeof(struct zr_softmax_part) / sizeof(float) };

static size_t logits_rows_most(const struct zr_shape *shape)
{
    size_t most = LOGITS_BYTES_MOST / (zr_shape_vocabulary(shape).rows * sizeof(float));
    return most == 0 ? 1 : most;
}

/* Losses and, where dx is wanted, the gradient of the logits. Of shares of the vocabulary the ranks tell each
 * other what their own say of the softmax. */
static zr_result cross_entropy(struct zr_module_pass *pass, struct zr_cross_entropy *op)
{
    const struct zr_kernels *k = pass->kernels;
    unsigned tensor = (unsigned)zr_shape_tensor(zr_pass_shape(pass));
    struct zr_softmax_part *parts = pass->slots[PARTS];
    zr_ticket ticket;
    if (tensor == 1)
        return k->cross_entropy(pass->context, op);

    op->parts = parts + zr_pass_shape(pass)->tensor_rank * op->rows;
    zr_result result = k->cross_entropy(pass->context, op);
    if (result == ZR_OK)
        result = zr_comm_all_gather(pass->tensor,
                                    &(struct zr_all_gather){.source = op->parts,
                                                            .destination = parts,
                                                            .shard_bytes = op->rows * sizeof *parts,
                                                            .label = ZR_COMM_LABEL_NONE},
                                    &ticket);
    if (result == ZR_OK)
        result = zr_comm_wait(pass->tensor, ticket);
    op->all = parts + tensor * op->rows;
    if (result == ZR_OK)
        result = k->softmax_merge(
            pass->context,
            &(struct zr_softmax_merge){
                .rows = op->rows, .count = tensor, .parts = parts, .all = parts + tensor * op->rows});
    return result == ZR_OK ? k->cross_entropy(pass->context, op) : result;
}

/* x and dx of all rows. */
struct head_rows {
    const void *x;
    void *dx; /* NULL: not wanted */
    size_t first, count;
};

/* Some rows: the losses, and where dx is wanted their share of the gradients. */
static zr_result head_rows(struct zr_module_pass *pass, const struct head_rows *rows)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct zr_vocabulary_share share = zr_shape_vocabulary(shape);
    const struct zr_kernels *k = pass->kernels;
    size_t bytes = zr_precision_bytes(pass->context->precision), at = rows->first * shape->hidden * bytes;
    const int32_t *targets = pass->inputs[ZR_INPUT_TARGETS];
    const void *x = (const char *)rows->x + at, *w = pass->parameters[0][0];
    struct zr_linear linear = {.rows = rows->count, .in = shape->hidden, .out = share.rows, .turned = true};

    zr_result result = k->linear_forward(
        pass->context, &(struct zr_linear_forward){
                           .shape = linear, .x = x, .w = w, .y = pass->slots[LOGITS], .floats = true});
    if (result == ZR_OK)
        result = cross_entropy(pass, &(struct zr_cross_entropy){.rows = rows->count,
                                                                .columns = share.columns,
                                                                .first_column = share.first,
                                                                .stride = linear.out,
                                                                .targets = targets + rows->first,
                                                                .logits = pass->slots[LOGITS],
                                                                .losses = pass->losses + rows->first,
                                                                .gradient = rows->dx != NULL,
                                                                .scale = pass->scale});
    if (result != ZR_OK || !rows->dx)
        return result;
    linear.y_stride = linear.out * sizeof(float) / bytes;
    return k->linear_backward(
        pass->context, &(struct zr_linear_backward){.shape = linear,
                                                    .x = x,
                                                    .w = w,
                                                    .dy = pass->slots[LOGITS],
                                                    .dx = (char *)rows->dx + at,
                                                    .dw = pass->gradients[0][0],
                                                    .accumulate = pass->accumulate[0] || rows->first > 0});
}

/* In chunks of rows of equal size as near as can be, which follow one another in the gradient of the weights:
 * at two bytes that is rounded once per chunk. Forward and backward: a forward pass has no dx. */
static zr_result head(struct zr_module_pass *pass)
{
    size_t most = logits_rows_most(zr_pass_shape(pass)), chunks = (pass->rows + most - 1) / most;
    size_t each = (pass->rows + chunks - 1) / chunks;
    struct head_rows rows = {.count = each};
    struct zr_pass_sum sum;
    zr_result result = zr_pass_all_rows(pass, pass->x, X_ROWS, &rows.x);
    if (result == ZR_OK && pass->dx)
        result = zr_pass_open_sum(pass, &sum, pass->dx, DX_ROWS);
    rows.dx = pass->dx ? sum.part : NULL;
    for (; rows.first < pass->rows && result == ZR_OK; rows.first += each) {
        rows.count = pass->rows - rows.first < each ? pass->rows - rows.first : each;
        result = head_rows(pass, &rows);
    }
    if (result == ZR_OK && pass->dx)
        result = zr_pass_close_sum(pass, &sum);
    zr_module_drop(pass, X_ROWS);
    return result;
}

static zr_result head_answer(struct zr_module_pass *pass, size_t row, float *out)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct zr_vocabulary_share share = zr_shape_vocabulary(shape);
    size_t line = shape->hidden * zr_precision_bytes(pass->context->precision),
           tensor = zr_shape_tensor(shape);
    float *all = pass->slots[LOGITS], *own = tensor > 1 ? all + share.first : all;
    const void *x;
    zr_ticket ticket;
    zr_result result = zr_pass_all_rows(pass, pass->x, X_ROWS, &x);
    if (result == ZR_OK)
        result = pass->kernels->linear_forward(
            pass->context,
            &(struct zr_linear_forward){.shape = {.rows = 1,
                                                  .in = shape->hidden,
                                                  .out = tensor > 1 ? share.rows : share.columns,
                                                  .turned = true},
                                        .x = (const char *)x + row * line,
                                        .w = pass->parameters[0][0],
                                        .y = own,
                                        .floats = true});
    zr_module_drop(pass, X_ROWS);
    if (result == ZR_OK && tensor > 1)
        result = zr_comm_all_gather(pass->tensor,
                                    &(struct zr_all_gather){.source = own,
                                                            .destination = all,
                                                            .shard_bytes = share.rows * sizeof(float),
                                                            .label = ZR_COMM_LABEL_NONE},
                                    &ticket);
    if (result == ZR_OK && tensor > 1)
        result = zr_comm_wait(pass->tensor, ticket);
    return result != ZR_OK
               ? result
               : pass->kernels->copy_bytes(
                     pass->context,
                     &(struct zr_copy_bytes){
                         .bytes = shape->vocabulary * sizeof *out, .from = all, .to = out, .waits = true});
}

void zr_transformer_add_head(struct zr_transformer *transformer)
{
    const struct zr_model *model = &transformer->model;
    const struct zr_shape *shape = &transformer->shape;
    struct zr_slot *slots = transformer->slots[ZR_TYPE_HEAD];
    size_t most = logits_rows_most(shape), rows = most < model->rows ? most : model->rows,
           tensor = zr_shape_tensor(shape), room = rows * zr_shape_vocabulary(shape).rows;
    if (tensor > 1 && rows < tensor) /* an answer has a row of every rank's share */
        room = tensor * zr_shape_vocabulary(shape).rows;
    slots[LOGITS] = (struct zr_slot){"logits", (room + model->rows - 1) / model->rows, ZR_SLOT_FLOATS,
                                     ZR_SLOT_KEPT, false}; /* so that a chunk fits */
    slots[PARTS] = (struct zr_slot){"softmax parts", 0, ZR_SLOT_FLOATS, ZR_SLOT_KEPT, false};
    if (tensor > 1)
        slots[PARTS].columns = (rows * (tensor + 1) * PART_FLOATS + model->rows - 1) / model->rows;
    slots[X_ROWS] = zr_slot_all_rows(shape, "all rows");
    slots[X_ROWS].life = ZR_SLOT_KEPT; /* taken before dx, so in one order whether or not backward runs */
    slots[DX_ROWS] = zr_slot_all_rows(shape, "gradient of all rows");
    transformer->types[ZR_TYPE_HEAD] = (struct zr_module_type){.name = "head",
                                                               .slots = slots,
                                                               .slots_count = HEAD_SLOTS,
                                                               .forward = head,
                                                               .backward = head,
                                                               .answer = head_answer};
}
