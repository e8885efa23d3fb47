/* head.c: the head of every architecture: product to logits, softmax and cross-entropy, in chunks of rows.
 * Logits are floats, or have the model's precision if the kernels support narrow logits.
 *
 * With tiles of the vocabulary, logits exist only for one tile and chunk at a time. Forward merges the
 * softmax parts of all tiles into running maxima and sums, which then give the losses. Backward repeats the
 * product of each tile and computes the gradient of its logits from the merged parts. */
#include "zero/model/transformer.h"

#define LOGITS_BYTES_MAX ((size_t)64 << 20) /* maximum; a chunk has at least one row */
enum { LOGITS, PARTS, X_ROWS, DX_ROWS, DW, HEAD_SLOTS };
enum { PART_FLOATS = sizeof(struct zr_softmax_part) / sizeof(float) };

/* Vocabulary rows of the largest tile. */
static size_t tile_rows(const struct zr_shape *shape)
{
    size_t tiles = zr_shape_tiles(shape);
    return (zr_shape_vocabulary(shape).rows + tiles - 1) / tiles;
}

size_t zr_shape_logits_rows(const struct zr_shape *shape, size_t bytes, size_t logit_bytes)
{
    size_t max_rows = bytes / (tile_rows(shape) * logit_bytes),
           all = shape->batch * zr_shape_own_sequence(shape);
    return max_rows == 0 ? 1 : max_rows < all ? max_rows : all;
}

static size_t logits_rows_max(const struct zr_shape *shape)
{
    return shape->logits_rows ? shape->logits_rows
                              : zr_shape_logits_rows(shape, LOGITS_BYTES_MAX, sizeof(float));
}

static bool is_narrow(const struct zr_module_pass *pass)
{
    return pass->kernels->narrow_logits;
}

/* ---- Chunks of rows ------------------------------------------------------------------------------------ */

/* x and dx of all rows. */
struct head_rows {
    const void *x;
    void *dx; /* NULL: not computed */
    size_t first, count;
};

/* Divides rows into chunks of nearly equal size, which accumulate the gradient of the weights. */
static zr_result each_chunk(struct zr_module_pass *pass, struct head_rows rows,
                            zr_result (*run)(struct zr_module_pass *pass, const struct head_rows *rows))
{
    size_t max_rows = logits_rows_max(zr_pass_shape(pass)), chunks = (pass->rows + max_rows - 1) / max_rows;
    size_t each = (pass->rows + chunks - 1) / chunks;
    zr_result result = ZR_OK;
    for (; rows.first < pass->rows && result == ZR_OK; rows.first += each) {
        rows.count = pass->rows - rows.first < each ? pass->rows - rows.first : each;
        result = run(pass, &rows);
    }
    return result;
}

/* Chunks of a backward pass. With several two-byte chunks the gradient of the weights is summed in floats and
 * rounded once, if the kernels support that. */
static zr_result each_chunk_backward(struct zr_module_pass *pass, struct head_rows rows,
                                     zr_result (*run)(struct zr_module_pass *pass,
                                                      const struct head_rows *rows))
{
    struct zr_convert op = {.n = zr_pass_vocabulary(pass).rows * zr_pass_shape(pass)->hidden};
    if (!pass->gradients[0][0] || !is_narrow(pass) || pass->context->precision == ZR_PRECISION_FP32 ||
        pass->rows <= logits_rows_max(zr_pass_shape(pass)))
        return each_chunk(pass, rows, run);
    zr_result result = zr_module_take(pass, DW);
    op.from = (struct zr_numbers){pass->gradients[0][0], pass->context->precision};
    op.to = (struct zr_numbers){pass->slots[DW], ZR_PRECISION_FP32};
    if (result == ZR_OK && pass->accumulate[0])
        result = pass->kernels->convert(pass->context, &op);
    if (result == ZR_OK)
        result = each_chunk(pass, rows, run);
    const struct zr_convert back = {.n = op.n, .from = op.to, .to = op.from};
    if (result == ZR_OK)
        result = pass->kernels->convert(pass->context, &back);
    zr_module_drop(pass, DW);
    return result;
}

static size_t bytes_before(const struct zr_module_pass *pass, const struct head_rows *rows)
{
    return rows->first * zr_pass_shape(pass)->hidden * zr_precision_bytes(pass->context->precision);
}

static struct zr_linear linear_of(const struct zr_module_pass *pass, const struct head_rows *rows)
{
    return (struct zr_linear){.rows = rows->count,
                              .in = zr_pass_shape(pass)->hidden,
                              .out = zr_pass_vocabulary(pass).rows,
                              .turned = true};
}

static zr_result multiply(struct zr_module_pass *pass, const struct head_rows *rows)
{
    return pass->kernels->linear_forward(
        pass->context, &(struct zr_linear_forward){.shape = linear_of(pass, rows),
                                                   .x = (const char *)rows->x + bytes_before(pass, rows),
                                                   .w = pass->parameters[0][0],
                                                   .y = pass->slots[LOGITS],
                                                   .floats = !is_narrow(pass)});
}

/* Backward from the gradient of the logits; the weights' gradient goes to the float sum if there is one. */
static zr_result logits_backward(struct zr_module_pass *pass, const struct head_rows *rows)
{
    struct zr_linear linear = linear_of(pass, rows);
    bool floats = pass->slots[DW] != NULL;
    if (!is_narrow(pass))
        linear.y_stride = linear.out * sizeof(float) / zr_precision_bytes(pass->context->precision);
    return pass->kernels->linear_backward(
        pass->context, &(struct zr_linear_backward){.shape = linear,
                                                    .x = (const char *)rows->x + bytes_before(pass, rows),
                                                    .w = pass->parameters[0][0],
                                                    .dy = pass->slots[LOGITS],
                                                    .dx = (char *)rows->dx + bytes_before(pass, rows),
                                                    .dw = floats ? pass->slots[DW] : pass->gradients[0][0],
                                                    .dw_floats = floats,
                                                    .accumulate_dx = !zr_pass_opens(pass),
                                                    .accumulate = pass->accumulate[0] || rows->first > 0});
}

/* Losses and, if dx is computed, the gradient of the logits, of a whole vocabulary. */
static struct zr_cross_entropy entropy_of(const struct zr_module_pass *pass, const struct head_rows *rows)
{
    struct zr_vocabulary_share share = zr_pass_vocabulary(pass);
    return (struct zr_cross_entropy){.rows = rows->count,
                                     .columns = share.columns,
                                     .first_column = share.first,
                                     .stride = share.rows,
                                     .targets = (const int32_t *)pass->inputs[ZR_INPUT_TARGETS] + rows->first,
                                     .logits = pass->slots[LOGITS],
                                     .narrow = is_narrow(pass),
                                     .losses = pass->losses + rows->first,
                                     .gradient = rows->dx != NULL,
                                     .scale = pass->scale};
}

/* ---- Parts of a softmax -------------------------------------------------------------------------------- */

/* Softmax parts of `rows` rows at place `place`: one place per tensor rank, then the merged parts. */
static struct zr_softmax_part *parts_at(const struct zr_module_pass *pass, size_t rows, size_t place)
{
    return (struct zr_softmax_part *)pass->slots[PARTS] + place * rows;
}

/* Gathers and merges the softmax parts of the tensor ranks. */
static zr_result merge_ranks(struct zr_module_pass *pass, size_t rows)
{
    size_t tensor = zr_shape_tensor(zr_pass_shape(pass));
    zr_result result = ZR_OK;
    zr_ticket ticket;
    if (tensor > 1)
        result = zr_comm_all_gather(
            pass->tensor,
            &(struct zr_all_gather){.source = parts_at(pass, rows, zr_pass_shape(pass)->tensor_rank),
                                    .destination = parts_at(pass, rows, 0),
                                    .shard_bytes = rows * sizeof(struct zr_softmax_part),
                                    .label = ZR_COMM_LABEL_NONE},
            &ticket);
    if (result == ZR_OK && tensor > 1)
        result = zr_comm_wait(pass->tensor, ticket);
    return result == ZR_OK
               ? pass->kernels->softmax_merge(pass->context,
                                              &(struct zr_softmax_merge){.rows = rows,
                                                                         .count = (unsigned)tensor,
                                                                         .parts = parts_at(pass, rows, 0),
                                                                         .all = parts_at(pass, rows, tensor)})
               : result;
}

/* ---- Whole vocabulary ---------------------------------------------------------------------------------- */

static zr_result whole_rows(struct zr_module_pass *pass, const struct head_rows *rows)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct zr_cross_entropy op = entropy_of(pass, rows);
    bool shared = zr_shape_tensor(shape) > 1;
    zr_result result = multiply(pass, rows);
    if (shared)
        op.parts = parts_at(pass, rows->count, shape->tensor_rank);
    if (result == ZR_OK)
        result = pass->kernels->cross_entropy(pass->context, &op);
    if (result == ZR_OK && shared)
        result = merge_ranks(pass, rows->count);
    op.all = parts_at(pass, rows->count, zr_shape_tensor(shape));
    if (result == ZR_OK && shared)
        result = pass->kernels->cross_entropy(pass->context, &op);
    return result == ZR_OK && rows->dx ? logits_backward(pass, rows) : result;
}

/* Forward, and backward if the pass has dx. */
static zr_result head(struct zr_module_pass *pass)
{
    struct head_rows rows = {0};
    struct zr_pass_sum sum = {0};
    zr_result result = zr_pass_all_rows(pass, pass->x, X_ROWS, &rows.x);
    if (result == ZR_OK && pass->dx)
        result = zr_pass_open_sum(pass, &sum, pass->dx, DX_ROWS);
    rows.dx = pass->dx ? sum.part : NULL;
    if (result == ZR_OK)
        result = (pass->dx ? each_chunk_backward : each_chunk)(pass, rows, whole_rows);
    if (result == ZR_OK && pass->dx)
        result = zr_pass_close_sum(pass, &sum);
    zr_module_drop(pass, X_ROWS);
    return result;
}

/* ---- Tiles of the vocabulary --------------------------------------------------------------------------- */

/* Computes the softmax parts of a chunk. This rank's place has the running parts, and the next place has the
 * parts of the tile. */
static zr_result sum_rows(struct zr_module_pass *pass, const struct head_rows *rows)
{
    struct zr_cross_entropy op = entropy_of(pass, rows);
    size_t place = zr_pass_shape(pass)->tensor_rank + !zr_pass_opens(pass);
    op.parts = parts_at(pass, pass->rows, place) + rows->first;
    zr_result result = multiply(pass, rows);
    return result == ZR_OK ? pass->kernels->cross_entropy(pass->context, &op) : result;
}

/* Forward of a tile. A tile without columns adds nothing, because it has no largest logit. */
static zr_result head_tile(struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct zr_softmax_part *own = parts_at(pass, pass->rows, shape->tensor_rank);
    struct head_rows rows = {.count = pass->rows};
    zr_result result = zr_pass_all_rows(pass, pass->x, X_ROWS, &rows.x);
    bool counts = zr_pass_opens(pass) || zr_pass_vocabulary(pass).columns > 0;
    if (result == ZR_OK && counts)
        result = each_chunk(pass, rows, sum_rows);
    if (result == ZR_OK && counts && !zr_pass_opens(pass))
        result = pass->kernels->softmax_merge(
            pass->context,
            &(struct zr_softmax_merge){.rows = pass->rows, .count = 2, .parts = own, .all = own});
    if (result != ZR_OK || !zr_pass_closes(pass))
        return result;
    struct zr_cross_entropy op = entropy_of(pass, &rows);
    op.parts = own;
    op.all = parts_at(pass, pass->rows, zr_shape_tensor(shape));
    result = merge_ranks(pass, pass->rows);
    return result == ZR_OK ? pass->kernels->cross_entropy(pass->context, &op) : result;
}

static zr_result rows_backward(struct zr_module_pass *pass, const struct head_rows *rows)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct zr_cross_entropy op = entropy_of(pass, rows);
    op.parts = parts_at(pass, pass->rows, shape->tensor_rank) + rows->first;
    zr_result result = multiply(pass, rows);
    if (result == ZR_OK)
        result = pass->kernels->cross_entropy(pass->context, &op);
    op.all = parts_at(pass, pass->rows, zr_shape_tensor(shape)) + rows->first;
    if (result == ZR_OK)
        result = pass->kernels->cross_entropy(pass->context, &op);
    return result == ZR_OK ? logits_backward(pass, rows) : result;
}

/* Backward of a tile. Forward has gathered all rows of x. */
static zr_result head_tile_backward(struct zr_module_pass *pass)
{
    struct head_rows rows = {.x = zr_pass_shape(pass)->sequence_parallel ? pass->slots[X_ROWS] : pass->x};
    struct zr_pass_sum sum = {0};
    zr_result result = zr_pass_open_sum(pass, &sum, pass->dx, DX_ROWS);
    rows.dx = sum.part;
    if (result == ZR_OK)
        result = each_chunk_backward(pass, rows, rows_backward);
    if (result == ZR_OK)
        result = zr_pass_close_sum(pass, &sum);
    zr_pass_drop_rows(pass, X_ROWS);
    return result;
}

/* ---- Answers ------------------------------------------------------------------------------------------- */

/* Writes a tile's part of an answer: the tile's columns, gathered from all ranks. */
static zr_result head_answer(struct zr_module_pass *pass, size_t row, float *out)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct zr_vocabulary_share share = zr_pass_vocabulary(pass);
    size_t line = shape->hidden * zr_precision_bytes(pass->context->precision),
           tensor = zr_shape_tensor(shape), rows = zr_shape_vocabulary(shape).rows;
    float *all = pass->slots[LOGITS], *own = all + shape->tensor_rank * share.rows;
    const void *x;
    zr_ticket ticket;
    zr_result result = zr_pass_all_rows(pass, pass->x, X_ROWS, &x);
    if (result == ZR_OK)
        result = pass->kernels->linear_forward(
            pass->context, &(struct zr_linear_forward){
                               .shape = {.rows = 1, .in = shape->hidden, .out = share.rows, .turned = true},
                               .x = (const char *)x + row * line,
                               .w = pass->parameters[0][0],
                               .y = own,
                               .floats = true});
    zr_pass_drop_rows(pass, X_ROWS);
    if (result == ZR_OK && tensor > 1)
        result = zr_comm_all_gather(pass->tensor,
                                    &(struct zr_all_gather){.source = own,
                                                            .destination = all,
                                                            .shard_bytes = share.rows * sizeof(float),
                                                            .label = ZR_COMM_LABEL_NONE},
                                    &ticket);
    if (result == ZR_OK && tensor > 1)
        result = zr_comm_wait(pass->tensor, ticket);
    size_t first = share.first - rows * shape->tensor_rank;
    for (size_t rank = 0; rank < tensor && result == ZR_OK; rank++, first += rows) {
        size_t left = shape->vocabulary > first ? shape->vocabulary - first : 0,
               count = left < share.rows ? left : share.rows;
        if (count > 0)
            result = pass->kernels->copy_bytes(pass->context,
                                               &(struct zr_copy_bytes){.bytes = count * sizeof *out,
                                                                       .from = all + rank * share.rows,
                                                                       .to = out + first,
                                                                       .waits = true});
    }
    return result;
}

/* ---- The type ------------------------------------------------------------------------------------------ */

void zr_transformer_add_head(struct zr_transformer *transformer)
{
    const struct zr_model *model = &transformer->model;
    const struct zr_shape *shape = &transformer->shape;
    struct zr_slot *slots = transformer->slots[ZR_TYPE_HEAD];
    unsigned tiles = zr_shape_tiles(shape);
    bool narrow = transformer->kernels && transformer->kernels->narrow_logits;
    size_t max_rows = logits_rows_max(shape), rows = max_rows < model->rows ? max_rows : model->rows,
           tensor = zr_shape_tensor(shape), answer = narrow ? 2 * tensor : tensor, /* rows of floats */
        logits_elements = (rows < answer ? answer : rows) * tile_rows(shape),
           parts = (tiles > 1 ? model->rows : rows) * (tensor + 1) * PART_FLOATS;
    slots[LOGITS] = (struct zr_slot){"logits", (logits_elements + model->rows - 1) / model->rows,
                                     narrow ? ZR_SLOT_ELEMENTS : ZR_SLOT_FLOATS, ZR_SLOT_KEPT,
                                     false}; /* holds a chunk, or an answer of all ranks */
    slots[DW] = (struct zr_slot){"gradient of the head's weights",
                                 (tile_rows(shape) * shape->hidden + model->rows - 1) / model->rows,
                                 ZR_SLOT_FLOATS, ZR_SLOT_TEMPORARY, false};
    slots[PARTS] = (struct zr_slot){"softmax parts", 0, ZR_SLOT_FLOATS, ZR_SLOT_KEPT, false};
    if (tensor > 1 || tiles > 1)
        slots[PARTS].columns = (parts + model->rows - 1) / model->rows;
    slots[X_ROWS] = zr_slot_all_rows(shape, "all rows");
    slots[X_ROWS].life = ZR_SLOT_KEPT; /* allocated before dx, so the order does not depend on backward */
    slots[DX_ROWS] = zr_slot_all_rows(shape, "gradient of all rows");
    transformer->types[ZR_TYPE_HEAD] =
        (struct zr_module_type){.name = "head",
                                .slots = slots,
                                .slots_count = HEAD_SLOTS,
                                .forward = tiles > 1 ? head_tile : head,
                                .backward = tiles > 1 ? head_tile_backward : head,
                                .answer = head_answer,
                                .parts = tiles};
}
