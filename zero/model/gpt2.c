/* gpt2.c: GPT-2: tensors, modules, slots, forward and backward.
 *
 *   embedding   y = wte[token] + wpe[position]
 *   block       middle = x + proj(attention(qkv(ln_1(x))))     y = middle + fc2(gelu(fc(ln_2(middle))))
 *   final       y = ln_f(x)
 *   head        wte, which therefore has two gradients per micro-batch; or lm_head, where it is not tied
 *
 * Weights are [in, out], the layout of GPT-2's Conv1D. */
#include <math.h>
#include <string.h>

#include "zero/model/transformer.h"

/* ---- Embedding ----------------------------------------------------------------------------------------- */

enum { WTE, WPE };
enum { ROWS, EMBEDDING_SLOTS };

/* Which embeddings a pass computes: both, or with tiles a tile of wte or, as the last part, wpe. `wpe`: index
 * of wpe's unit in the pass. */
struct embedded {
    bool tokens, positions;
    unsigned wpe;
};

static struct embedded embedded(const struct zr_module_pass *pass)
{
    bool positions = pass->part == zr_shape_tiles(zr_pass_shape(pass));
    return zr_pass_is_whole(pass) ? (struct embedded){true, true, WPE}
                                  : (struct embedded){!positions, positions, 0};
}

static zr_result embed(struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct embedded now = embedded(pass);
    zr_result result = now.tokens ? zr_pass_embed(pass, ROWS) : ZR_OK;
    if (result == ZR_OK && now.positions)
        result = pass->kernels->positions_forward(
            pass->context,
            &(struct zr_positions_forward){.rows = pass->own_rows,
                                           .first_row = zr_pass_first_row(pass),
                                           .sequence = shape->sequence,
                                           .channels = shape->hidden,
                                           .w = pass->parameters[now.wpe][0],
                                           .y = pass->y,
                                           .positions = zr_pass_positions(pass, zr_pass_first_row(pass))});
    return result == ZR_OK && now.positions ? zr_pass_drop_embedding(pass, pass->y) : result;
}

/* Gradient of wpe by documents, whose rows have any order. */
static zr_result positions_backward(struct zr_module_pass *pass, unsigned wpe)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    return pass->kernels->embedding_backward(
        pass->context,
        &(struct zr_embedding_backward){.rows = pass->own_rows,
                                        .channels = shape->hidden,
                                        .tokens = zr_pass_positions(pass, zr_pass_first_row(pass)),
                                        .dy = pass->dy,
                                        .dw = pass->gradients[wpe][0],
                                        .w_rows = zr_shape_positions(shape),
                                        .accumulate = pass->accumulate[wpe]});
}

static zr_result embed_backward(struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct embedded now = embedded(pass);
    zr_result result = now.positions ? zr_pass_drop_embedding(pass, pass->dy) : ZR_OK; /* the first part */
    if (result == ZR_OK && now.tokens)
        result = zr_pass_embed_backward(pass, ROWS);
    if (result != ZR_OK || !now.positions || !pass->gradients[now.wpe][0])
        return result;
    return zr_pass_positions(pass, 0)
               ? positions_backward(pass, now.wpe)
               : pass->kernels->positions_backward(
                     pass->context, &(struct zr_positions_backward){.rows = pass->own_rows,
                                                                    .first_row = zr_pass_first_row(pass),
                                                                    .sequence = shape->sequence,
                                                                    .channels = shape->hidden,
                                                                    .dy = pass->dy,
                                                                    .dw = pass->gradients[now.wpe][0],
                                                                    .w_rows = zr_shape_positions(shape),
                                                                    .accumulate = pass->accumulate[now.wpe]});
}

/* ---- Block --------------------------------------------------------------------------------------------- */

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
    D_LN2,
    D_NORM, /* gradient of attention's output, then of ln_1's */
    D_QKV,
    D_BRANCH, /* gradient of a branch before dropout: of mlp.c_proj; D_MIDDLE: of attn.c_proj */
    D_MIDDLE,
    X_ROWS, /* all rows of a product's input; Y_ROWS: of its output and gradients */
    Y_ROWS,
    XA, /* of an adapter, see lora.c */
    D_XA,
    RING, /* ring.c */
    BLOCK_SLOTS = RING + ZR_RING_SLOTS
};

static void describe_slots(struct zr_transformer *t)
{
    size_t tensor = zr_shape_tensor(&t->shape), c = t->shape.hidden, a = t->shape.heads / tensor,
           l = c / tensor, /* channels of this tensor rank's heads */
        wide = t->shape.ffn / tensor;
    const struct zr_slot slots[BLOCK_SLOTS] = {
        [LN1] = {"ln_1", c, 0, 0, true},
        [LN1_MEAN] = {"ln_1 mean", 1, ZR_SLOT_FLOATS, 0, true},
        [LN1_RSTD] = {"ln_1 rstd", 1, ZR_SLOT_FLOATS, 0, true},
        [QKV] = {"attn.c_attn", 3 * l, 0, 0, false},
        [LSE] = {"attn log-sums", a, ZR_SLOT_FLOATS, 0, false},
        [PROBABILITIES] = zr_slot_probabilities(t, "attn probabilities"),
        [ATTENTION] = {"attn", l, 0, 0, false},
        [MIDDLE] = {"attn.c_proj", c, 0, 0, true},
        [LN2] = {"ln_2", c, 0, 0, true},
        [LN2_MEAN] = {"ln_2 mean", 1, ZR_SLOT_FLOATS, 0, true},
        [LN2_RSTD] = {"ln_2 rstd", 1, ZR_SLOT_FLOATS, 0, true},
        [FC] = {"mlp.c_fc", wide, 0, 0, false},
        [GELU] = {"mlp.gelu", wide, 0, 0, false},
        [D_WIDE] = {"gradient of mlp.c_fc", wide, 0, ZR_SLOT_TEMPORARY, false},
        [D_LN2] = {"gradient of ln_2", c, 0, ZR_SLOT_TEMPORARY, true},
        [D_NORM] = {"gradient of a norm", c, 0, ZR_SLOT_TEMPORARY, true},
        [D_QKV] = {"gradient of attn.c_attn", 3 * l, 0, ZR_SLOT_TEMPORARY, false},
        [D_BRANCH] = zr_slot_dropped(&t->shape),
        [D_MIDDLE] = zr_slot_dropped(&t->shape),
        [X_ROWS] = zr_slot_all_rows(&t->shape, "all rows"),
        [Y_ROWS] = zr_slot_all_rows(&t->shape, "sums of all rows"),
        [XA] = {"adapter", 0, 0, ZR_SLOT_TEMPORARY, false}, /* trainable.c sets the columns */
        [D_XA] = {"gradient of an adapter", 0, 0, ZR_SLOT_TEMPORARY, false},
    };
    memcpy(t->slots[ZR_TYPE_BLOCK], slots, sizeof slots);
    zr_slots_ring(&t->shape, &t->slots[ZR_TYPE_BLOCK][RING]);
}

static struct zr_layernorm norm_shape(const struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    return (struct zr_layernorm){pass->own_rows, shape->hidden, (float)shape->norm_epsilon};
}

/* Parameters w and w + 1 are weight and bias; slots `mean` and mean + 1 are the statistics. */
static struct zr_layernorm_forward norm_of(struct zr_module_pass *pass, unsigned w, const void *x, void *y,
                                           unsigned mean)
{
    void *const *p = &pass->parameters[0][zr_pass_parameter(pass, w)];
    return (struct zr_layernorm_forward){norm_shape(pass),     x, p[0], p[1], y, pass->slots[mean],
                                         pass->slots[mean + 1]};
}

static zr_result norm(struct zr_module_pass *pass, unsigned w, const void *x, void *y, unsigned mean)
{
    const struct zr_layernorm_forward op = norm_of(pass, w, x, y, mean);
    return pass->kernels->layernorm_forward(pass->context, &op);
}

static struct zr_adapter_place adapter_of(unsigned matrix)
{
    return zr_block_adapter(&zr_architecture_gpt2, matrix);
}

static enum zr_activation activation_of(const struct zr_module_pass *pass)
{
    return (enum zr_activation)zr_pass_shape(pass)->variant.activation;
}

/* Which operations are fused: the residual sum after attention with the norm; GELU in its tanh form, or its
 * gradient, with a product; GELU's gradient with the gradient of the bias before it. */
static bool sums_in_norm(const struct zr_module_pass *pass)
{
    return zr_pass_is_whole(pass) && pass->kernels->residual_layernorm && !zr_pass_adds_in_product(pass);
}

static bool gelu_in_product(const struct zr_module_pass *pass)
{
    return zr_pass_is_whole(pass) && !activation_of(pass) && pass->kernels->linear_gelu_forward &&
           !zr_pass_is_adapted(pass, adapter_of(FC_W));
}

static bool slope_in_product(const struct zr_module_pass *pass)
{
    return zr_pass_is_whole(pass) && pass->dx && !activation_of(pass) &&
           pass->kernels->linear_gelu_backward && !zr_pass_is_adapted(pass, adapter_of(FC2_W));
}

static bool gelu_makes_bias(const struct zr_module_pass *pass)
{
    return slope_in_product(pass) || (zr_pass_is_whole(pass) && pass->dx && !activation_of(pass) &&
                                      pass->kernels->gelu_bias_backward && pass->gradients[0][FC_B]);
}

static zr_result norm_backward(struct zr_module_pass *pass, unsigned w, const void *x, const void *dy,
                               unsigned mean)
{
    unsigned at = zr_pass_parameter(pass, w);
    void *const *g = &pass->gradients[0][at];
    return pass->kernels->layernorm_backward(
        pass->context, &(struct zr_layernorm_backward){
                           .shape = norm_shape(pass),
                           .x = x,
                           .w = pass->parameters[0][at],
                           .mean = pass->slots[mean],
                           .rstd = pass->slots[mean + 1],
                           .dy = dy,
                           .dx = pass->dx,
                           .dw = g[0],
                           .db = g[1],
                           .accumulate_dx = pass->dx == pass->dy, /* in a block: the residual path */
                           .accumulate = pass->accumulate[0]});
}

/* A matrix [in, out] in multiples of the channels; WIDE: the width of the feed-forward layer. split_in:
 * tensor ranks divide rows, otherwise columns. */
enum { WIDE = 0 };
struct matrix {
    unsigned w, in, out;
    bool split_in;
};
static const struct matrix matrices[ZR_BLOCK_PRODUCTS] = {[ZR_PRODUCT_QKV] = {QKV_W, 1, 3, false},
                                                          [ZR_PRODUCT_OUT] = {PROJ_W, 1, 1, true},
                                                          [ZR_PRODUCT_WIDE] = {FC_W, 1, WIDE, false},
                                                          [ZR_PRODUCT_NARROW] = {FC2_W, WIDE, 1, true}};

static struct zr_linear linear_of(const struct zr_module_pass *pass, const struct matrix *m)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    size_t c = shape->hidden, tensor = zr_shape_tensor(shape), in = m->in == WIDE ? shape->ffn : m->in * c,
           out = m->out == WIDE ? shape->ffn : m->out * c;
    return (struct zr_linear){.rows = pass->rows,
                              .in = m->split_in ? in / tensor : in,
                              .out = m->split_in ? out : out / tensor,
                              .fp8 = shape->fp8};
}

/* With tiles and several tensor ranks, a tile of q, k and v consists of three pieces, which are separate
 * columns of the rows. The three matrices precede the three biases. */
static unsigned pieces_of(const struct zr_module_pass *pass, const struct matrix *m)
{
    return m->w == QKV_W && !zr_pass_is_whole(pass) && zr_shape_tensor(zr_pass_shape(pass)) > 1 ? 3 : 1;
}

/* Restricts a product to a piece; returns the address of its columns in y. */
static void *piece_of(const struct zr_module_pass *pass, struct zr_linear *linear, const void *y,
                      unsigned piece, unsigned pieces)
{
    linear->y_stride = pieces > 1 ? linear->out : 0;
    linear->out /= pieces;
    size_t before = piece * linear->out * zr_precision_bytes(pass->context->precision);
    return zr_pass_columns(pass, linear, (const char *)y + before);
}

/* Column-parallel product: y, all rows of the rank's columns, from the rank's rows of x. */
static zr_result multiply_columns(struct zr_module_pass *pass, const struct matrix *m, const void *x, void *y)
{
    void *const *p = &pass->parameters[0][zr_pass_parameter(pass, m->w)];
    unsigned pieces = pieces_of(pass, m);
    const void *all;
    zr_result result = zr_pass_all_rows(pass, x, X_ROWS, &all);
    for (unsigned i = 0; i < pieces && result == ZR_OK; i++) {
        struct zr_linear linear = linear_of(pass, m);
        void *columns = piece_of(pass, &linear, y, i, pieces);
        const struct zr_linear_forward op = {
            .shape = linear, .x = all, .w = p[i], .bias = p[pieces + i], .y = columns};
        result = m->w == FC_W && gelu_in_product(pass)
                     ? pass->kernels->linear_gelu_forward(
                           pass->context, &(struct zr_linear_gelu_forward){op, pass->slots[GELU]})
                     : pass->kernels->linear_forward(pass->context, &op);
        if (result == ZR_OK)
            result = zr_pass_adapt(pass, adapter_of(m->w), &linear, all, columns);
    }
    zr_pass_drop_rows(pass, X_ROWS);
    return result;
}

/* Row-parallel product: the rank's rows of y from all rows of the rank's columns of x; adds the residual if
 * zr_pass_adds_in_product(). */
static zr_result multiply_rows(struct zr_module_pass *pass, const struct matrix *m, const void *x,
                               const void *residual, void *y)
{
    void *const *p = &pass->parameters[0][zr_pass_parameter(pass, m->w)];
    struct zr_linear linear = linear_of(pass, m);
    struct zr_pass_sum sum = {0};
    zr_result result = zr_pass_open_sum(pass, &sum, y, Y_ROWS);
    void *columns = zr_pass_columns(pass, &linear, sum.part);
    const struct zr_linear_forward op = {
        .shape = linear, .x = x, .w = p[0], .bias = zr_pass_bias_once(pass, p[1]), .y = columns};
    if (result == ZR_OK)
        result = zr_pass_adds_in_product(pass)
                     ? pass->kernels->linear_residual_forward(
                           pass->context, &(struct zr_linear_residual_forward){op, residual})
                     : pass->kernels->linear_forward(pass->context, &op);
    if (result == ZR_OK)
        result = zr_pass_adapt(pass, adapter_of(m->w), &linear, x, columns);
    return result == ZR_OK ? zr_pass_close_sum(pass, &sum) : result;
}

/* Gradients to compute in a product's backward. */
enum wanted { WANT_DX = 1, WANT_DW = 2, WANT_BOTH = WANT_DX | WANT_DW };

/* Backward of a product. dx is summed over tiles and pieces. */
static zr_result multiply_backward(struct zr_module_pass *pass, const struct matrix *m,
                                   struct zr_linear_backward op, enum wanted wanted)
{
    unsigned at = zr_pass_parameter(pass, m->w), pieces = pieces_of(pass, m);
    void *const *g = &pass->gradients[0][at];
    const void *dy = op.dy;
    bool makes_bias = wanted & WANT_DW && !(m->w == FC_W && gelu_makes_bias(pass));
    zr_result result = ZR_OK;
    op.dx = wanted & WANT_DX ? op.dx : NULL;
    op.accumulate = pass->accumulate[0];
    for (unsigned i = 0; i < pieces && result == ZR_OK; i++) {
        op.shape = linear_of(pass, m);
        op.dy = piece_of(pass, &op.shape, dy, i, pieces);
        op.accumulate_dx = !zr_pass_opens(pass) || i > 0;
        op.w = pass->parameters[0][at + i];
        op.dw = wanted & WANT_DW ? g[i] : NULL;
        op.db = makes_bias ? g[pieces + i] : NULL;
        result = m->w == FC2_W && slope_in_product(pass)
                     ? pass->kernels->linear_gelu_backward(
                           pass->context,
                           &(struct zr_linear_gelu_backward){op, pass->slots[FC], pass->gradients[0][FC_B]})
                     : pass->kernels->linear_backward(pass->context, &op);
        if (result == ZR_OK)
            result = zr_pass_adapt_backward(pass, adapter_of(m->w),
                                            &(struct zr_adapt_backward){op.shape, op.x, op.dy, op.dx});
    }
    return result;
}

/* Backward of a column-parallel product. The sum of dx over the ranks overlaps with the weights' gradients.
 */
static zr_result columns_backward(struct zr_module_pass *pass, const struct matrix *m, const void *x,
                                  const void *dy, void *dx)
{
    struct zr_linear_backward op = {.x = x, .dy = dy, .dx = dx};
    struct zr_pass_sum sum = {0};
    if (zr_shape_tensor(zr_pass_shape(pass)) == 1)
        return multiply_backward(pass, m, op, WANT_BOTH);
    zr_result result = pass->splits ? ZR_OK : zr_pass_all_rows(pass, x, X_ROWS, &op.x);
    if (result == ZR_OK && dx)
        result = zr_pass_open_sum(pass, &sum, dx, Y_ROWS);
    op.dx = sum.part;
    if (result == ZR_OK && dx)
        result = multiply_backward(pass, m, op, WANT_DX);
    if (result == ZR_OK && dx)
        result = zr_pass_start_sum(pass, &sum);
    if (result == ZR_OK && !pass->splits)
        result = multiply_backward(pass, m, op, WANT_DW);
    zr_pass_drop_rows(pass, X_ROWS);
    return result == ZR_OK && dx ? zr_pass_end_sum(pass, &sum) : result;
}

/* Backward of a row-parallel product. */
static zr_result rows_backward(struct zr_module_pass *pass, const struct matrix *m, const void *x,
                               const void *dy, void *dx)
{
    struct zr_linear_backward op = {.x = x, .dx = dx};
    zr_result result = zr_pass_all_rows(pass, dy, Y_ROWS, &op.dy);
    if (result == ZR_OK)
        result = multiply_backward(pass, m, op, WANT_BOTH);
    zr_pass_drop_rows(pass, Y_ROWS);
    return result;
}

static zr_result add(struct zr_module_pass *pass, const void *a, void *b)
{
    return pass->kernels->add(pass->context,
                              &(struct zr_add){pass->own_rows * zr_pass_shape(pass)->hidden, a, b, b});
}

static size_t wide(const struct zr_module_pass *pass)
{
    return pass->rows * linear_of(pass, &matrices[ZR_PRODUCT_WIDE]).out;
}

/* Steps before and after a product. */
static zr_result before(struct zr_module_pass *pass, unsigned product)
{
    void **s = pass->slots;
    return product == ZR_PRODUCT_QKV ? norm(pass, LN1_W, pass->x, s[LN1], LN1_MEAN)
           : product == ZR_PRODUCT_WIDE && !sums_in_norm(pass)
               ? norm(pass, LN2_W, s[MIDDLE], s[LN2], LN2_MEAN)
               : ZR_OK;
}

static zr_result multiply(struct zr_module_pass *pass, unsigned product)
{
    void **s = pass->slots;
    const struct matrix *m = &matrices[product];
    return product == ZR_PRODUCT_QKV    ? multiply_columns(pass, m, s[LN1], s[QKV])
           : product == ZR_PRODUCT_OUT  ? multiply_rows(pass, m, s[ATTENTION], pass->x, s[MIDDLE])
           : product == ZR_PRODUCT_WIDE ? multiply_columns(pass, m, s[LN2], s[FC])
                                        : multiply_rows(pass, m, s[GELU], s[MIDDLE], pass->y);
}

/* Attention with the scale of the layer. */
static struct zr_attention attention_of(const struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct zr_attention attention = zr_pass_attention(pass);
    double scale = shape->variant.unscaled ? 1 : 1 / sqrt((double)zr_shape_head(shape));
    if (shape->variant.unscaled || shape->variant.scaled_by_layer)
        attention.scale =
            (float)(shape->variant.scaled_by_layer ? scale / (double)(zr_pass_layer(pass) + 1) : scale);
    return attention;
}

static zr_result after(struct zr_module_pass *pass, unsigned product)
{
    const struct zr_kernels *k = pass->kernels;
    void **s = pass->slots;
    if (product == ZR_PRODUCT_QKV)
        return zr_pass_attend(pass, RING,
                              &(struct zr_attention_forward){attention_of(pass), s[QKV], s[ATTENTION], s[LSE],
                                                             s[PROBABILITIES]});
    if (product == ZR_PRODUCT_WIDE)
        return gelu_in_product(pass)
                   ? ZR_OK
                   : k->gelu_forward(pass->context, &(struct zr_gelu_forward){wide(pass), s[FC], s[GELU],
                                                                              activation_of(pass)});
    zr_result result = zr_pass_drop_output(pass, product, product == ZR_PRODUCT_OUT ? s[MIDDLE] : pass->y);
    if (result != ZR_OK || zr_pass_adds_in_product(pass))
        return result;
    if (product == ZR_PRODUCT_OUT && sums_in_norm(pass))
        return k->residual_layernorm(pass->context, &(struct zr_residual_layernorm){
                                                        .norm = norm_of(pass, LN2_W, NULL, s[LN2], LN2_MEAN),
                                                        .a = pass->x,
                                                        .b = s[MIDDLE],
                                                        .sum = s[MIDDLE]});
    return product == ZR_PRODUCT_OUT ? add(pass, pass->x, s[MIDDLE]) : add(pass, s[MIDDLE], pass->y);
}

static unsigned branch_of(unsigned product)
{
    return product == ZR_PRODUCT_NARROW ? D_BRANCH : D_MIDDLE;
}

/* Slots that backward of a product and of the operations before it write. */
static zr_result take_gradients(struct zr_module_pass *pass, unsigned product)
{
    zr_result result = product == ZR_PRODUCT_NARROW || product == ZR_PRODUCT_OUT
                           ? zr_pass_take_dropped(pass, product, branch_of(product))
                           : ZR_OK;
    if (result == ZR_OK && product != ZR_PRODUCT_QKV)
        result = zr_module_take(pass, product == ZR_PRODUCT_NARROW ? D_WIDE
                                      : product == ZR_PRODUCT_WIDE ? D_LN2
                                                                   : D_NORM);
    return result == ZR_OK && product == ZR_PRODUCT_OUT ? zr_module_take(pass, D_QKV) : result;
}

static zr_result multiply_back(struct zr_module_pass *pass, unsigned product)
{
    void **s = pass->slots;
    const struct matrix *m = &matrices[product];
    void *dx = zr_pass_dx(pass, product == ZR_PRODUCT_NARROW ? s[D_WIDE]
                                : product == ZR_PRODUCT_WIDE ? s[D_LN2]
                                                             : s[D_NORM]);
    return product == ZR_PRODUCT_NARROW ? rows_backward(pass, m, s[GELU], zr_pass_dropped(pass, D_BRANCH), dx)
           : product == ZR_PRODUCT_WIDE ? columns_backward(pass, m, s[LN2], s[D_WIDE], dx)
           : product == ZR_PRODUCT_OUT
               ? rows_backward(pass, m, s[ATTENTION], zr_pass_dropped(pass, D_MIDDLE), dx)
               : columns_backward(pass, m, s[LN1], s[D_QKV], dx);
}

/* Backward of the norm before a product. */
static zr_result norm_before_backward(struct zr_module_pass *pass, unsigned product)
{
    void **s = pass->slots;
    return product == ZR_PRODUCT_WIDE  ? norm_backward(pass, LN2_W, s[MIDDLE], s[D_LN2], LN2_MEAN)
           : product == ZR_PRODUCT_QKV ? norm_backward(pass, LN1_W, pass->x, s[D_NORM], LN1_MEAN)
                                       : ZR_OK;
}

/* Backward of the operations before a product. */
static zr_result go_back(struct zr_module_pass *pass, unsigned product)
{
    const struct zr_kernels *k = pass->kernels;
    void **s = pass->slots;
    if (product == ZR_PRODUCT_NARROW || product == ZR_PRODUCT_OUT)
        zr_pass_end_slot(pass, branch_of(product));
    if (product == ZR_PRODUCT_NARROW && slope_in_product(pass))
        return ZR_OK;
    if (product == ZR_PRODUCT_NARROW && gelu_makes_bias(pass))
        return k->gelu_bias_backward(
            pass->context,
            &(struct zr_gelu_bias_backward){.rows = pass->rows,
                                            .columns = linear_of(pass, &matrices[ZR_PRODUCT_WIDE]).out,
                                            .x = s[FC],
                                            .dy = s[D_WIDE],
                                            .dx = s[D_WIDE],
                                            .db = pass->gradients[0][FC_B],
                                            .accumulate = pass->accumulate[0]});
    if (product == ZR_PRODUCT_NARROW)
        return k->gelu_backward(pass->context, &(struct zr_gelu_backward){wide(pass), s[FC], s[D_WIDE],
                                                                          s[D_WIDE], activation_of(pass)});
    if (product == ZR_PRODUCT_OUT)
        return zr_pass_attend_backward(pass, RING,
                                       &(struct zr_attention_backward){attention_of(pass), s[QKV],
                                                                       s[ATTENTION], s[LSE], s[PROBABILITIES],
                                                                       s[D_NORM], s[D_QKV]});
    zr_pass_end_slot(pass, product == ZR_PRODUCT_WIDE ? D_WIDE : D_QKV);
    zr_result result = norm_before_backward(pass, product);
    zr_pass_end_slot(pass, product == ZR_PRODUCT_WIDE ? D_LN2 : D_NORM);
    return result;
}

/* ---- Final norm ---------------------------------------------------------------------------------------- */

enum { FINAL_MEAN, FINAL_RSTD, FINAL_SLOTS };

static zr_result final_norm(struct zr_module_pass *pass)
{
    return norm(pass, 0, pass->x, pass->y, FINAL_MEAN);
}

static zr_result final_norm_backward(struct zr_module_pass *pass)
{
    return norm_backward(pass, 0, pass->x, pass->dy, FINAL_MEAN);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static void describe_types(struct zr_transformer *t)
{
    size_t c = t->shape.hidden;
    unsigned tiles = zr_shape_tiles(&t->shape);
    t->slots[ZR_TYPE_FINAL][FINAL_MEAN] = (struct zr_slot){"mean", 1, ZR_SLOT_FLOATS, 0, true};
    t->slots[ZR_TYPE_FINAL][FINAL_RSTD] = (struct zr_slot){"rstd", 1, ZR_SLOT_FLOATS, 0, true};
    t->slots[ZR_TYPE_EMBEDDING][ROWS] = zr_slot_all_rows(&t->shape, "all rows");
    describe_slots(t);
    t->types[ZR_TYPE_EMBEDDING] = (struct zr_module_type){.name = "embeddings",
                                                          .output_columns = c,
                                                          .output_tag = ZR_TAG_CHECKPOINT,
                                                          .slots = t->slots[ZR_TYPE_EMBEDDING],
                                                          .slots_count = EMBEDDING_SLOTS,
                                                          .backward_reads_none = true,
                                                          .forward = embed,
                                                          .backward = embed_backward,
                                                          .parts = tiles > 1 ? tiles + 1 : 1};
    t->types[ZR_TYPE_BLOCK] = (struct zr_module_type){.output_columns = c,
                                                      .output_tag = ZR_TAG_CHECKPOINT,
                                                      .output_name = "mlp.c_proj",
                                                      .slots = t->slots[ZR_TYPE_BLOCK],
                                                      .slots_count = BLOCK_SLOTS,
                                                      .in_place = true,
                                                      .recomputes = true};
    t->types[ZR_TYPE_FINAL] = (struct zr_module_type){.output_columns = c,
                                                      .output_tag = ZR_TAG_ACTIVATION,
                                                      .slots = t->slots[ZR_TYPE_FINAL],
                                                      .slots_count = FINAL_SLOTS,
                                                      .forward = final_norm,
                                                      .backward = final_norm_backward};
    zr_transformer_add_head(t);
}

static void describe(struct zr_transformer *t)
{
    const struct zr_shape *shape = &t->shape;
    size_t c = shape->hidden, ffn = shape->ffn;
    float deviation = 0.02f; /* the value of GPT-2 */
    float residual =
        deviation / sqrtf(2.0f * (float)shape->layers); /* scaled by the depth of the residual path */
    const struct zr_tensor wte = {
        "wte.weight", shape->vocabulary_padded, c, 0, deviation, ZR_GROUP_EMBEDDINGS, ZR_SPLIT_FIRST};
    const struct zr_tensor wpe = {
        "wpe.weight", zr_shape_positions(shape), c, 0, deviation, ZR_GROUP_EMBEDDINGS, ZR_SPLIT_NORM};
    const enum zr_transformer_group vectors = ZR_GROUP_VECTORS, decay = ZR_GROUP_MATRICES;
    const struct zr_tensor tensors[BLOCK_PARAMETERS] = {
        [LN1_W] = {"ln_1.weight", c, 0, 1, 0, vectors, ZR_SPLIT_NORM},
        [LN1_B] = {"ln_1.bias", c, 0, 0, 0, vectors, ZR_SPLIT_NORM},
        [QKV_W] = {"attn.c_attn.weight", c, 3 * c, 0, deviation, decay, ZR_SPLIT_QKV},
        [QKV_B] = {"attn.c_attn.bias", 3 * c, 0, 0, 0, vectors, ZR_SPLIT_QKV},
        [PROJ_W] = {"attn.c_proj.weight", c, c, 0, residual, decay, ZR_SPLIT_FIRST},
        [PROJ_B] = {"attn.c_proj.bias", c, 0, 0, 0, vectors, ZR_SPLIT_NONE},
        [LN2_W] = {"ln_2.weight", c, 0, 1, 0, vectors, ZR_SPLIT_NORM},
        [LN2_B] = {"ln_2.bias", c, 0, 0, 0, vectors, ZR_SPLIT_NORM},
        [FC_W] = {"mlp.c_fc.weight", c, ffn, 0, deviation, decay, ZR_SPLIT_LAST},
        [FC_B] = {"mlp.c_fc.bias", ffn, 0, 0, 0, vectors, ZR_SPLIT_LAST},
        [FC2_W] = {"mlp.c_proj.weight", ffn, c, 0, residual, decay, ZR_SPLIT_FIRST},
        [FC2_B] = {"mlp.c_proj.bias", c, 0, 0, 0, vectors, ZR_SPLIT_NONE},
    };
    const struct zr_tensor lm_head = {
        "weight", shape->vocabulary_padded, c, 0, deviation, ZR_GROUP_HEADS, ZR_SPLIT_FIRST};
    const struct zr_tensor ln_f[] = {{"weight", c, 0, 1, 0, vectors, ZR_SPLIT_NORM},
                                     {"bias", c, 0, 0, 0, vectors, ZR_SPLIT_NORM}};
    unsigned embedding[] = {WTE, WPE}, unit;

    describe_types(t);
    zr_transformer_add_vocabulary(t, &(struct zr_unit_tensors){"wte", "", 0, shape->tied ? 2 : 1, &wte, 1});
    zr_transformer_add_unit(t, &(struct zr_unit_tensors){"wpe", "", 0, 1, &wpe, 1});
    zr_transformer_add_module(t, ZR_TYPE_EMBEDDING, embedding, zr_shape_tiles(shape) > 1 ? 1 : 2);
    for (size_t l = 0; l < shape->layers; l++)
        zr_transformer_add_block(
            t, &(struct zr_unit_tensors){"h.%zu", "h.%zu.", l, 1, tensors, BLOCK_PARAMETERS});
    unit = (unsigned)t->model.list.units_count;
    zr_transformer_add_unit(t, &(struct zr_unit_tensors){"ln_f", "ln_f.", 0, 1, ln_f, 2});
    zr_transformer_add_module(t, ZR_TYPE_FINAL, &unit, 1);
    if (!shape->tied)
        embedding[0] = zr_transformer_add_vocabulary(
            t, &(struct zr_unit_tensors){"lm_head", "lm_head.", 0, 1, &lm_head, 1});
    zr_transformer_add_module(t, ZR_TYPE_HEAD, embedding, 1);
}

static double wide_of(const struct zr_shape *shape)
{
    return shape->ffn ? (double)shape->ffn : 4 * (double)shape->hidden;
}

static double elements(const struct zr_shape *shape)
{
    double c = (double)shape->hidden, wide = wide_of(shape),
           tables = (shape->variant.untied ? 2 : 1) * (double)shape->vocabulary_padded +
                    (double)zr_shape_positions(shape);
    return (double)shape->layers * (4 * c * c + 2 * c * wide + 9 * c + wide) + (tables + 2) * c;
}

static double block_flops(const struct zr_shape *shape)
{
    double c = (double)shape->hidden;
    return 8 * c * c + 4 * c * wide_of(shape) + 4 * c * (double)shape->sequence;
}

const struct zr_architecture_table zr_architecture_gpt2 = {
    .name = "gpt2",
    .units = 4,
    .parameters = 5,
    .block_parameters = BLOCK_PARAMETERS + 4, /* q, k and v separate */
    .products = {{"qkv", LN1_W, QKV_W}, {"proj", PROJ_W, PROJ_W}, {"fc", LN2_W, FC_W}, {"fc2", FC2_W, FC2_W}},
    .matrices = {QKV_W, PROJ_W, FC_W, FC2_W},
    .matrices_count = 4,
    .block_tensors = BLOCK_PARAMETERS,
    .adapter_slot = XA,
    .block = {before,
              multiply,
              after,
              take_gradients,
              multiply_back,
              go_back,
              norm_before_backward,
              {[ZR_PRODUCT_NARROW] = 1 << FC, [ZR_PRODUCT_OUT] = 1 << QKV | 1 << LSE | 1 << PROBABILITIES}},
    .describe = describe,
    .elements = elements,
    .block_flops = block_flops};
