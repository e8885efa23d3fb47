/* llama.c: LLaMA: tensors, modules, slots, forward and backward.
 *
 *   embedding   y = embed_tokens[token]
 *   block       middle = x + o(attention(rotary(q, k), v))     of input_layernorm(x)
 *               y = middle + down(silu(gate) up)               of post_attention_layernorm(middle)
 *   final       y = norm(x)
 *   head        lm_head, or embed_tokens where it is tied
 *
 * Models of other families differ by switches of struct zr_variant: GPT-NeoX has layer norms, which both read
 * x, rotates a part of each head, and has no gate; Gemma 3 has norms of attention's output and of down's
 * before they are added, and other angles in layers with a window. Norms are root mean square norms
 * otherwise. Weights are [out, in], as torch.nn.Linear has them; names are Hugging Face's. q, k and v are
 * adjacent in one slot, the layout that attention requires. */
#include <math.h>
#include <string.h>

#include "zero/model/transformer.h"

enum { COSINES = ZR_INPUTS_COMMON, SINES, INPUTS };

/* ---- Embedding ----------------------------------------------------------------------------------------- */

enum { ROWS, EMBEDDING_SLOTS };

/* Multiplies embeddings, or their gradient, by the root of hidden, if the model does. */
static zr_result scale_tokens(struct zr_module_pass *pass, void *rows)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    const void *from = rows;
    const struct zr_sum op = {.n = pass->own_rows * shape->hidden,
                              .from = &from,
                              .count = 1,
                              .precision = pass->context->precision,
                              .scale = sqrtf((float)shape->hidden),
                              .to = {rows, pass->context->precision}};
    return shape->variant.scaled_tokens ? pass->kernels->sum(pass->context, &op) : ZR_OK;
}

static zr_result embed(struct zr_module_pass *pass)
{
    zr_result result = zr_pass_embed(pass, ROWS);
    if (result == ZR_OK && zr_pass_closes(pass))
        result = scale_tokens(pass, pass->y);
    return result == ZR_OK && zr_pass_closes(pass) ? zr_pass_drop_embedding(pass, pass->y) : result;
}

/* No other module reads the gradient of the first one's output. */
static zr_result embed_backward(struct zr_module_pass *pass)
{
    zr_result result = zr_pass_opens(pass) ? zr_pass_drop_embedding(pass, pass->dy) : ZR_OK;
    if (result == ZR_OK && zr_pass_opens(pass))
        result = scale_tokens(pass, (void *)(uintptr_t)pass->dy);
    return result == ZR_OK ? zr_pass_embed_backward(pass, ROWS) : result;
}

/* ---- Block --------------------------------------------------------------------------------------------- */

enum {
    NORM1_W,
    NORM1_B,
    Q_W,
    K_W,
    V_W,
    Q_B,
    K_B,
    V_B,
    Q_NORM,
    K_NORM,
    O_NORM,
    O_W,
    O_B,
    NORM2_W,
    NORM2_B,
    GATE_W,
    UP_W,
    GATE_B,
    UP_B,
    DOWN_NORM,
    DOWN_W,
    DOWN_B,
    BLOCK_PARAMETERS,
    PRESENT_MAX = BLOCK_PARAMETERS - 2, /* norms of heads exclude biases of norms */
    MATRICES = 7
};
_Static_assert(PRESENT_MAX + 2 * MATRICES <= ZR_UNIT_PARAMETERS_MAX, "adapters of all matrices have places");

/* The bias of a matrix. */
static const unsigned char bias_of[BLOCK_PARAMETERS] = {
    [Q_W] = Q_B, [K_W] = K_B, [V_W] = V_B, [O_W] = O_B, [GATE_W] = GATE_B, [UP_W] = UP_B, [DOWN_W] = DOWN_B};

static uint32_t absent(const struct zr_shape *shape)
{
    static const uint32_t qkv = 1 << Q_B | 1 << K_B | 1 << V_B, ffn = 1 << GATE_B | 1 << UP_B | 1 << DOWN_B;
    const struct zr_variant *variant = &shape->variant;
    return (variant->biases & ZR_BIASES_QKV ? 0 : qkv) | (variant->biases & ZR_BIASES_OUT ? 0 : 1 << O_B) |
           (variant->biases & ZR_BIASES_FFN ? 0 : ffn) |
           (variant->head_norms ? 0 : 1 << Q_NORM | 1 << K_NORM) |
           (variant->branch_norms ? 0 : 1 << O_NORM | 1 << DOWN_NORM) |
           (variant->layer_norms ? 0 : 1 << NORM1_B | 1 << NORM2_B) |
           (variant->ungated ? 1 << GATE_W | 1 << GATE_B : 0);
}

enum {
    NORM1,
    NORM1_RSTD,
    QKV, /* q and k are rotated */
    LSE,
    PROBABILITIES,
    ATTENTION,
    MIDDLE,
    NORM2,
    NORM2_RSTD,
    GATE,
    UP,
    PRODUCT,
    D_GATE,
    D_UP, /* first used for the gradient of PRODUCT */
    D_NORM2,
    D_NORM, /* gradient of attention's output, then of the first norm's */
    D_QKV,
    HEADS, /* q and k before the norms of their heads */
    HEADS_RSTD,
    D_HEADS,
    D_SIDE,   /* gradient of x by post_attention_layernorm, where that reads x */
    D_BRANCH, /* gradient of a branch before dropout: of self_attn.o_proj, then of mlp.down_proj */
    BRANCH = D_BRANCH + 2, /* attention's output, then down's, before their norms */
    BRANCH_RSTD = BRANCH + 2,
    D_NORMED = BRANCH_RSTD + 2, /* gradients of BRANCH */
    X_ROWS = D_NORMED + 2,      /* all rows of a product's input; Y_ROWS: of its output and gradients */
    Y_ROWS,
    XA, /* of an adapter, see lora.c */
    D_XA,
    RING, /* ring.c */
    BLOCK_SLOTS = RING + ZR_RING_SLOTS
};

/* Numbers of columns; q, kv and ffn: of this tensor rank. */
struct widths {
    size_t c, head, q, kv, qkv, ffn;
    size_t heads; /* q and k, where their heads have norms; else 0 */
    size_t gate, side;
    size_t branch; /* where branches have norms; else 0 */
};

static struct widths widths_of(const struct zr_shape *shape)
{
    size_t tensor = zr_shape_tensor(shape);
    struct widths w = {.c = shape->hidden, .head = zr_shape_head(shape), .ffn = shape->ffn / tensor};
    w.q = shape->heads / tensor * w.head;
    w.kv = shape->kv_heads / tensor * w.head;
    w.qkv = w.q + 2 * w.kv;
    w.heads = shape->variant.head_norms ? w.q + w.kv : 0;
    w.gate = shape->variant.ungated ? 0 : w.ffn;
    w.side = shape->variant.parallel ? w.c : 0;
    w.branch = shape->variant.branch_norms ? w.c : 0;
    return w;
}

static void describe_slots(struct zr_transformer *t)
{
    const struct widths w = widths_of(&t->shape);
    size_t a = t->shape.heads / zr_shape_tensor(&t->shape);
    /* Columns of own rows with room for the queries' of all rows. */
    size_t gathered = t->shape.sequence_parallel ? zr_shape_queries(&t->shape) : w.q;
    size_t moments = t->shape.variant.layer_norms ? 2 : 1; /* rstd, mean */
    const enum zr_slot_life temporary = ZR_SLOT_TEMPORARY;
    const struct zr_slot slots[BLOCK_SLOTS] = {
        [NORM1] = {"input_layernorm", w.c, 0, 0, true},
        [NORM1_RSTD] = {"input_layernorm rstd", moments, ZR_SLOT_FLOATS, 0, true},
        [QKV] = {"self_attn q, k and v", w.qkv, 0, 0, false},
        [LSE] = {"self_attn log-sums", a, ZR_SLOT_FLOATS, 0, false},
        [PROBABILITIES] = zr_slot_probabilities(t, "self_attn probabilities"),
        [ATTENTION] = {"self_attn", w.q, 0, 0, false},
        [MIDDLE] = {"self_attn.o_proj", w.c, 0, 0, true},
        [NORM2] = {"post_attention_layernorm", w.c, 0, 0, true},
        [NORM2_RSTD] = {"post_attention_layernorm rstd", moments, ZR_SLOT_FLOATS, 0, true},
        [GATE] = {"mlp.gate_proj", w.gate, 0, 0, false},
        [UP] = {"mlp.up_proj", w.ffn, 0, 0, false},
        [PRODUCT] = {"mlp.act_fn", w.ffn, 0, 0, false},
        [D_GATE] = {"gradient of mlp.gate_proj", w.gate, 0, temporary, false},
        [D_UP] = {"gradient of mlp.up_proj", w.ffn, 0, temporary, false},
        [D_NORM2] = {"gradient of post_attention_layernorm", w.c, 0, temporary, true},
        [D_NORM] = {"gradient of a norm", w.c > gathered ? w.c : gathered, 0, temporary, true},
        [D_QKV] = {"gradient of self_attn q, k and v", w.qkv, 0, temporary, false},
        [HEADS] = {"self_attn q and k before their norms", w.heads, 0, 0, false},
        [HEADS_RSTD] = {"self_attn q and k rstd", w.heads / w.head, ZR_SLOT_FLOATS, 0, false},
        [D_HEADS] = {"gradient of self_attn q and k", w.heads, 0, temporary, false},
        [D_SIDE] = {"gradient of x by the second norm", w.side, 0, temporary, true},
        [D_BRANCH] = zr_slot_dropped(&t->shape),
        [D_BRANCH + 1] = zr_slot_dropped(&t->shape),
        [BRANCH] = {"self_attn.o_proj before its norm", w.branch, 0, 0, true},
        [BRANCH + 1] = {"mlp.down_proj before its norm", w.branch, 0, 0, true},
        [BRANCH_RSTD] = {"self_attn.o_proj rstd", w.branch > 0, ZR_SLOT_FLOATS, 0, true},
        [BRANCH_RSTD + 1] = {"mlp.down_proj rstd", w.branch > 0, ZR_SLOT_FLOATS, 0, true},
        [D_NORMED] = {"gradient before o_proj's norm", w.branch, 0, temporary, true},
        [D_NORMED + 1] = {"gradient before down_proj's norm", w.branch, 0, temporary, true},
        [X_ROWS] = zr_slot_all_rows(&t->shape, "all rows"),
        [Y_ROWS] = zr_slot_all_rows(&t->shape, "sums of all rows"),
        [XA] = {"adapter", 0, 0, temporary, false}, /* trainable.c sets the columns */
        [D_XA] = {"gradient of an adapter", 0, 0, temporary, false},
    };
    memcpy(t->slots[ZR_TYPE_BLOCK], slots, sizeof slots);
    zr_slots_ring(&t->shape, &t->slots[ZR_TYPE_BLOCK][RING]);
}

/* Address of column `column` of the rows at `base`. */
static void *column_of(const struct zr_module_pass *pass, const void *base, size_t column)
{
    return (char *)base + column * zr_precision_bytes(pass->context->precision);
}

/* A norm: the place of its weight, which its bias follows, and its statistics: rstd, then means. */
struct norm {
    unsigned w;
    const void *x;
    void *y;
    float *rstd;
};

static struct zr_layernorm norm_shape(const struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    return (struct zr_layernorm){pass->own_rows, shape->hidden, (float)shape->norm_epsilon};
}

static struct zr_layernorm_forward layer_norm_of(const struct zr_module_pass *pass, struct norm n)
{
    void *const *p = &pass->parameters[0][n.w];
    return (struct zr_layernorm_forward){norm_shape(pass),        n.x,   p[0], p[1], n.y,
                                         n.rstd + pass->own_rows, n.rstd};
}

static struct zr_rmsnorm_forward norm_of(const struct zr_module_pass *pass, struct norm n)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    return (struct zr_rmsnorm_forward){.rows = pass->own_rows,
                                       .channels = shape->hidden,
                                       .epsilon = (float)shape->norm_epsilon,
                                       .x = n.x,
                                       .w = pass->parameters[0][n.w],
                                       .y = n.y,
                                       .rstd = n.rstd,
                                       .w_offset = (float)shape->variant.norms_add_one};
}

static zr_result norm(struct zr_module_pass *pass, struct norm n)
{
    if (zr_pass_shape(pass)->variant.layer_norms) {
        const struct zr_layernorm_forward op = layer_norm_of(pass, n);
        return pass->kernels->layernorm_forward(pass->context, &op);
    }
    const struct zr_rmsnorm_forward op = norm_of(pass, n);
    return pass->kernels->rmsnorm_forward(pass->context, &op);
}

/* The norms of a block. */
static struct norm norm1_of(const struct zr_module_pass *pass)
{
    return (struct norm){zr_pass_parameter(pass, NORM1_W), pass->x, pass->slots[NORM1],
                         pass->slots[NORM1_RSTD]};
}

static struct norm norm2_of(const struct zr_module_pass *pass)
{
    void **s = pass->slots;
    return (struct norm){zr_pass_parameter(pass, NORM2_W),
                         zr_pass_shape(pass)->variant.parallel ? pass->x : s[MIDDLE], s[NORM2],
                         s[NORM2_RSTD]};
}

static bool has_branch_norms(const struct zr_module_pass *pass)
{
    return zr_pass_shape(pass)->variant.branch_norms;
}

/* The norm of the output of a branch's last product. */
static struct norm branch_norm(const struct zr_module_pass *pass, unsigned product, void *y)
{
    unsigned narrow = product == ZR_PRODUCT_NARROW;
    return (struct norm){zr_pass_parameter(pass, narrow ? DOWN_NORM : O_NORM), pass->slots[BRANCH + narrow],
                         y, pass->slots[BRANCH_RSTD + narrow]};
}

/* Whether the residual sum after attention is fused with the norm. */
static bool sums_in_norm(const struct zr_module_pass *pass)
{
    return zr_pass_is_whole(pass) && pass->kernels->residual_rmsnorm && pass->kernels->residual_layernorm &&
           !zr_pass_adds_in_product(pass) && !zr_pass_shape(pass)->variant.parallel;
}

static zr_result add_and_norm(struct zr_module_pass *pass)
{
    void *middle = pass->slots[MIDDLE];
    const struct zr_residual_layernorm layer = {layer_norm_of(pass, norm2_of(pass)), pass->x, middle, middle};
    const struct zr_residual_rmsnorm root = {norm_of(pass, norm2_of(pass)), pass->x, middle, middle};
    return zr_pass_shape(pass)->variant.layer_norms ? pass->kernels->residual_layernorm(pass->context, &layer)
                                                    : pass->kernels->residual_rmsnorm(pass->context, &root);
}

/* Angles of a sequence. */
static size_t angles_of(const struct zr_shape *shape)
{
    return shape->sequence * (zr_shape_rotary(shape) / 2);
}

/* Rotates q and k, which are adjacent, or rotates their gradients back. */
static zr_result rotate(struct zr_module_pass *pass, void *qkv, bool inverse)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    const struct widths w = widths_of(shape);
    bool of_windows = shape->variant.window_theta > 0 && zr_shape_has_window(shape, zr_pass_layer(pass));
    size_t table = of_windows ? angles_of(shape) : 0;
    return pass->kernels->rotary(pass->context,
                                 &(struct zr_rotary){.rows = pass->rows,
                                                     .sequence = shape->sequence,
                                                     .heads = (w.q + w.kv) / w.head,
                                                     .width = zr_shape_rotary(shape),
                                                     .head_stride = w.head,
                                                     .stride = w.qkv,
                                                     .cosines = (float *)pass->inputs[COSINES] + table,
                                                     .sines = (float *)pass->inputs[SINES] + table,
                                                     .x = qkv,
                                                     .inverse = inverse,
                                                     .positions = zr_pass_positions(pass, 0)});
}

static struct zr_adapter_place adapter_of(unsigned matrix)
{
    return zr_block_adapter(&zr_architecture_llama, matrix);
}

/* The bias of a matrix in a table of parameters or gradients; NULL: none. */
static void *find_bias(const struct zr_module_pass *pass, void *const *table, unsigned w)
{
    return zr_block_has(zr_pass_shape(pass), bias_of[w]) ? table[zr_pass_parameter(pass, bias_of[w])] : NULL;
}

/* The arguments of a product. Weights are [out, in]. */
static struct zr_linear_forward product_of(const struct zr_module_pass *pass, struct zr_linear linear,
                                           const void *x, unsigned w, void *y)
{
    void *const *p = pass->parameters[0];
    const void *bias = find_bias(pass, p, w);
    y = zr_pass_columns(pass, &linear, y);
    return (struct zr_linear_forward){.shape = linear,
                                      .x = x,
                                      .w = p[zr_pass_parameter(pass, w)],
                                      .bias = w == O_W || w == DOWN_W ? zr_pass_bias_once(pass, bias) : bias,
                                      .y = y};
}

static zr_result multiply(struct zr_module_pass *pass, struct zr_linear linear, const void *x, unsigned w,
                          void *y)
{
    const struct zr_linear_forward op = product_of(pass, linear, x, w, y);
    zr_result result = pass->kernels->linear_forward(pass->context, &op);
    return result == ZR_OK ? zr_pass_adapt(pass, adapter_of(w), &op.shape, x, op.y) : result;
}

static struct zr_linear linear_of(const struct zr_module_pass *pass, size_t in, size_t out)
{
    return (struct zr_linear){
        .rows = pass->rows, .in = in, .out = out, .turned = true, .fp8 = zr_pass_shape(pass)->fp8};
}

/* Product to q, k or v, which are columns of rows of `stride`. */
static struct zr_linear column_linear(const struct zr_module_pass *pass, size_t out, size_t stride)
{
    struct zr_linear linear = linear_of(pass, zr_pass_shape(pass)->hidden, out);
    linear.y_stride = stride;
    return linear;
}

/* Where the products to q and k write, or read their gradients. */
struct heads {
    void *at;
    size_t stride;
};

static struct heads heads_of(const struct zr_module_pass *pass, unsigned slot, unsigned normed)
{
    const struct widths w = widths_of(zr_pass_shape(pass));
    return w.heads ? (struct heads){pass->slots[normed], w.heads} : (struct heads){pass->slots[slot], w.qkv};
}

/* Norms of the heads of q and k, between the slots HEADS and QKV, or back between their gradients. */
static zr_result norm_heads(struct zr_module_pass *pass, bool backward)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    const struct widths w = widths_of(shape);
    void **s = pass->slots;
    size_t before = 0; /* columns */
    const float one = (float)shape->variant.norms_add_one;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < 2 && w.heads && result == ZR_OK; i++) {
        unsigned at = zr_pass_parameter(pass, i == 0 ? Q_NORM : K_NORM);
        size_t columns = i == 0 ? w.q : w.kv, rows = pass->rows * (columns / w.head);
        float *rstd = (float *)s[HEADS_RSTD] + pass->rows * (before / w.head);
        const void *x = column_of(pass, s[HEADS], before), *weight = pass->parameters[0][at];
        struct zr_norm_heads heads = {columns / w.head, w.heads, w.qkv};
        result = backward
                     ? pass->kernels->rmsnorm_backward(
                           pass->context,
                           &(struct zr_rmsnorm_backward){
                               .rows = rows,
                               .channels = w.head,
                               .x = x,
                               .w = weight,
                               .dy = column_of(pass, s[D_QKV], before),
                               .rstd = rstd,
                               .dx = zr_pass_dx(pass, column_of(pass, s[D_HEADS], before)),
                               .dw = pass->gradients[0][at],
                               .accumulate = pass->accumulate[0],
                               .w_offset = one,
                               .heads = heads})
                     : pass->kernels->rmsnorm_forward(
                           pass->context, &(struct zr_rmsnorm_forward){.rows = rows,
                                                                       .channels = w.head,
                                                                       .epsilon = (float)shape->norm_epsilon,
                                                                       .x = x,
                                                                       .w = weight,
                                                                       .y = column_of(pass, s[QKV], before),
                                                                       .rstd = rstd,
                                                                       .w_offset = one,
                                                                       .heads = heads});
        before += columns;
    }
    return result;
}

/* Row-parallel product: the rank's rows of y from the rank's columns of x; adds the residual if
 * zr_pass_adds_in_product(). */
static zr_result multiply_rows(struct zr_module_pass *pass, struct zr_linear linear, unsigned w,
                               const void *x, const void *residual, void *y)
{
    struct zr_pass_sum sum = {0};
    zr_result result = zr_pass_open_sum(pass, &sum, y, Y_ROWS);
    bool adds = zr_pass_adds_in_product(pass);
    if (result == ZR_OK)
        result = adds ? pass->kernels->linear_residual_forward(
                            pass->context,
                            &(struct zr_linear_residual_forward){product_of(pass, linear, x, w, sum.part),
                                                                 residual})
                      : multiply(pass, linear, x, w, sum.part);
    if (result == ZR_OK && adds)
        result = zr_pass_adapt(pass, adapter_of(w), &linear, x, sum.part);
    return result == ZR_OK ? zr_pass_close_sum(pass, &sum) : result;
}

static zr_result add(struct zr_module_pass *pass, const void *residual, void *y)
{
    return pass->kernels->add(pass->context,
                              &(struct zr_add){pass->own_rows * zr_pass_shape(pass)->hidden, residual, y, y});
}

static zr_result multiply_qkv(struct zr_module_pass *pass)
{
    const struct widths w = widths_of(zr_pass_shape(pass));
    struct heads to = heads_of(pass, QKV, HEADS);
    struct zr_linear q = column_linear(pass, w.q, to.stride), k = column_linear(pass, w.kv, to.stride),
                     v = column_linear(pass, w.kv, w.qkv);
    const void *x;
    zr_result result = zr_pass_all_rows(pass, pass->slots[NORM1], X_ROWS, &x);
    if (result == ZR_OK)
        result = multiply(pass, q, x, Q_W, to.at);
    if (result == ZR_OK)
        result = multiply(pass, k, x, K_W, column_of(pass, to.at, w.q));
    if (result == ZR_OK)
        result = multiply(pass, v, x, V_W, column_of(pass, pass->slots[QKV], w.q + w.kv));
    zr_pass_drop_rows(pass, X_ROWS);
    return result;
}

static zr_result multiply_wide(struct zr_module_pass *pass)
{
    const struct widths w = widths_of(zr_pass_shape(pass));
    struct zr_linear wide = linear_of(pass, w.c, w.ffn);
    const void *x;
    zr_result result = zr_pass_all_rows(pass, pass->slots[NORM2], X_ROWS, &x);
    if (result == ZR_OK && w.gate)
        result = multiply(pass, wide, x, GATE_W, pass->slots[GATE]);
    if (result == ZR_OK)
        result = multiply(pass, wide, x, UP_W, pass->slots[UP]);
    zr_pass_drop_rows(pass, X_ROWS);
    return result;
}

/* From q, k and v to attention's output. */
static zr_result attend(struct zr_module_pass *pass)
{
    void **s = pass->slots;
    const struct zr_attention_forward op = {zr_pass_attention(pass), s[QKV], s[ATTENTION], s[LSE],
                                            s[PROBABILITIES]};
    zr_result result = norm_heads(pass, false);
    if (result == ZR_OK)
        result = rotate(pass, s[QKV], false);
    return result == ZR_OK ? zr_pass_attend(pass, RING, &op) : result;
}

/* Steps before and after a product. */
static zr_result before(struct zr_module_pass *pass, unsigned product)
{
    if (product == ZR_PRODUCT_QKV)
        return norm(pass, norm1_of(pass));
    if (product == ZR_PRODUCT_OUT)
        return attend(pass);
    return product == ZR_PRODUCT_WIDE && !sums_in_norm(pass) ? norm(pass, norm2_of(pass)) : ZR_OK;
}

static zr_result multiply_product(struct zr_module_pass *pass, unsigned product)
{
    const struct widths w = widths_of(zr_pass_shape(pass));
    void **s = pass->slots;
    return product == ZR_PRODUCT_QKV    ? multiply_qkv(pass)
           : product == ZR_PRODUCT_WIDE ? multiply_wide(pass)
           : product == ZR_PRODUCT_OUT  ? multiply_rows(pass, linear_of(pass, w.q, w.c), O_W, s[ATTENTION],
                                                        pass->x, w.branch ? s[BRANCH] : s[MIDDLE])
                                        : multiply_rows(pass, linear_of(pass, w.ffn, w.c), DOWN_W, s[PRODUCT],
                                                        s[MIDDLE], w.branch ? s[BRANCH + 1] : pass->y);
}

/* The norm of a branch; y NULL: only its statistics are needed. */
static zr_result norm_branch(struct zr_module_pass *pass, unsigned product, void *y)
{
    zr_result result = y ? ZR_OK : zr_module_take(pass, D_NORMED);
    if (result == ZR_OK)
        result = norm(pass, branch_norm(pass, product, y ? y : pass->slots[D_NORMED]));
    if (!y)
        zr_module_drop(pass, D_NORMED);
    return result;
}

static zr_result after(struct zr_module_pass *pass, unsigned product)
{
    const struct zr_kernels *k = pass->kernels;
    void **s = pass->slots;
    const struct zr_variant *variant = &zr_pass_shape(pass)->variant;
    size_t n = pass->rows * widths_of(zr_pass_shape(pass)).ffn;
    if (product == ZR_PRODUCT_WIDE && variant->ungated)
        return k->gelu_forward(
            pass->context,
            &(struct zr_gelu_forward){n, s[UP], s[PRODUCT], (enum zr_activation)variant->activation});
    if (product == ZR_PRODUCT_WIDE)
        return k->swiglu_forward(pass->context, &(struct zr_swiglu_forward){n, s[GATE], s[UP], s[PRODUCT],
                                                                            variant->activation != 0});
    if (product == ZR_PRODUCT_QKV)
        return ZR_OK;
    void *branch = product == ZR_PRODUCT_OUT ? s[MIDDLE] : pass->y;
    zr_result result = has_branch_norms(pass) ? norm_branch(pass, product, branch) : ZR_OK;
    if (result == ZR_OK && !branch)
        return ZR_OK;
    if (result == ZR_OK)
        result = zr_pass_drop_output(pass, product, branch);
    if (result != ZR_OK || zr_pass_adds_in_product(pass))
        return result;
    if (product == ZR_PRODUCT_OUT && sums_in_norm(pass))
        return add_and_norm(pass);
    return product == ZR_PRODUCT_OUT ? add(pass, pass->x, s[MIDDLE]) : add(pass, s[MIDDLE], pass->y);
}

/* Inputs and outputs of a backward; dx NULL: only the matrix's gradient. */
struct step_back {
    const void *x, *dy;
    void *dx;
    bool adds;    /* accumulates dx */
    bool keeps_w; /* does not compute the matrix's gradient */
};

static zr_result multiply_backward(struct zr_module_pass *pass, struct zr_linear linear, unsigned parameter,
                                   struct step_back step)
{
    unsigned at = zr_pass_parameter(pass, parameter);
    const void *dy = zr_pass_columns(pass, &linear, step.dy);
    zr_result result = pass->kernels->linear_backward(
        pass->context, &(struct zr_linear_backward){
                           .shape = linear,
                           .x = step.x,
                           .w = pass->parameters[0][at],
                           .dy = dy,
                           .dx = step.dx,
                           .dw = step.keeps_w ? NULL : pass->gradients[0][at],
                           .db = step.keeps_w ? NULL : find_bias(pass, pass->gradients[0], parameter),
                           .accumulate_dx = step.adds || !zr_pass_opens(pass),
                           .accumulate = pass->accumulate[0]});
    return result == ZR_OK ? zr_pass_adapt_backward(pass, adapter_of(parameter),
                                                    &(struct zr_adapt_backward){linear, step.x, dy, step.dx})
                           : result;
}

/* A column-parallel product and the gradient of its output. */
struct product {
    struct zr_linear linear;
    unsigned parameter;
    const void *dy;
};

/* Backward of column-parallel products with the same input. dx is the sum over products and ranks; the sum
 * over the ranks overlaps with the matrices' gradients. */
static zr_result products_backward(struct zr_module_pass *pass, const struct product *products,
                                   unsigned count, const void *x, void *dx)
{
    bool apart = !dx || zr_shape_tensor(zr_pass_shape(pass)) > 1; /* the matrices' gradients */
    struct step_back step = {.keeps_w = apart};
    struct zr_pass_sum sum = {0};
    zr_result result = pass->splits ? ZR_OK : zr_pass_all_rows(pass, x, X_ROWS, &step.x);
    if (result == ZR_OK && dx)
        result = zr_pass_open_sum(pass, &sum, dx, Y_ROWS);
    step.dx = sum.part;
    for (unsigned i = 0; i < count && result == ZR_OK && dx; i++) {
        step.dy = products[i].dy;
        step.adds = i > 0;
        result = multiply_backward(pass, products[i].linear, products[i].parameter, step);
    }
    if (result == ZR_OK && dx)
        result = zr_pass_start_sum(pass, &sum);
    for (unsigned i = 0; i < count && result == ZR_OK && apart && !pass->splits; i++)
        result = multiply_backward(pass, products[i].linear, products[i].parameter,
                                   (struct step_back){.x = step.x, .dy = products[i].dy});
    zr_pass_drop_rows(pass, X_ROWS);
    return result == ZR_OK && dx ? zr_pass_end_sum(pass, &sum) : result;
}

static zr_result norm_backward(struct zr_module_pass *pass, struct norm n, struct step_back step)
{
    void *const *g = &pass->gradients[0][n.w];
    const void *w = pass->parameters[0][n.w];
    if (zr_pass_shape(pass)->variant.layer_norms)
        return pass->kernels->layernorm_backward(
            pass->context,
            &(struct zr_layernorm_backward){norm_shape(pass), n.x, w, n.rstd + pass->own_rows, n.rstd,
                                            step.dy, step.dx, g[0], g[1], step.adds, pass->accumulate[0]});
    return pass->kernels->rmsnorm_backward(
        pass->context,
        &(struct zr_rmsnorm_backward){.rows = pass->own_rows,
                                      .channels = zr_pass_shape(pass)->hidden,
                                      .x = n.x,
                                      .w = w,
                                      .dy = step.dy,
                                      .rstd = n.rstd,
                                      .dx = step.dx,
                                      .dw = g[0],
                                      .accumulate_dx = step.adds,
                                      .accumulate = pass->accumulate[0],
                                      .w_offset = (float)zr_pass_shape(pass)->variant.norms_add_one});
}

/* Backward of a row-parallel product. */
static zr_result rows_backward(struct zr_module_pass *pass, struct zr_linear linear, unsigned parameter,
                               struct step_back step)
{
    const unsigned branch = parameter == DOWN_W;
    const void *own =
        has_branch_norms(pass) ? pass->slots[D_NORMED + branch] : zr_pass_dropped(pass, D_BRANCH + branch);
    zr_result result = zr_pass_all_rows(pass, own, Y_ROWS, &step.dy);
    step.dx = zr_pass_dx(pass, step.dx);
    if (result == ZR_OK)
        result = multiply_backward(pass, linear, parameter, step);
    zr_pass_drop_rows(pass, Y_ROWS);
    return result;
}

/* The gradient of a branch from that of its norm, or the norm's own. */
static zr_result branch_backward(struct zr_module_pass *pass, unsigned product)
{
    const unsigned branch = product == ZR_PRODUCT_NARROW;
    zr_result result = pass->dx ? zr_module_take(pass, D_NORMED + branch) : ZR_OK;
    return result == ZR_OK
               ? norm_backward(pass, branch_norm(pass, product, NULL),
                               (struct step_back){.dy = zr_pass_dropped(pass, D_BRANCH + branch),
                                                  .dx = zr_pass_dx(pass, pass->slots[D_NORMED + branch])})
               : result;
}

/* Slots that backward of a product and of the operations before it write. */
static zr_result take_gradients(struct zr_module_pass *pass, unsigned product)
{
    if (product == ZR_PRODUCT_QKV)
        return ZR_OK;
    const unsigned branch = product == ZR_PRODUCT_NARROW;
    zr_result result =
        product == ZR_PRODUCT_WIDE ? ZR_OK : zr_pass_take_dropped(pass, product, D_BRANCH + branch);
    if (result == ZR_OK && product != ZR_PRODUCT_WIDE && has_branch_norms(pass))
        result = branch_backward(pass, product);
    if (result == ZR_OK)
        result = zr_module_take(pass, product == ZR_PRODUCT_NARROW ? D_UP
                                      : product == ZR_PRODUCT_WIDE ? D_NORM2
                                                                   : D_NORM);
    if (result == ZR_OK && product == ZR_PRODUCT_NARROW && !zr_pass_shape(pass)->variant.ungated)
        return zr_module_take(pass, D_GATE);
    return result == ZR_OK && product == ZR_PRODUCT_OUT ? zr_module_take(pass, D_QKV) : result;
}

static zr_result multiply_back(struct zr_module_pass *pass, unsigned product)
{
    const struct widths w = widths_of(zr_pass_shape(pass));
    void **s = pass->slots;
    struct zr_linear wide = linear_of(pass, w.c, w.ffn);
    struct heads from = heads_of(pass, D_QKV, D_HEADS);
    if (product == ZR_PRODUCT_NARROW)
        return rows_backward(pass, linear_of(pass, w.ffn, w.c), DOWN_W,
                             (struct step_back){.x = s[PRODUCT], .dx = s[D_UP]});
    if (product == ZR_PRODUCT_OUT)
        return rows_backward(pass, linear_of(pass, w.q, w.c), O_W,
                             (struct step_back){.x = s[ATTENTION], .dx = s[D_NORM]});
    if (product == ZR_PRODUCT_WIDE)
        return products_backward(
            pass, &(struct product[]){{wide, GATE_W, s[D_GATE]}, {wide, UP_W, s[D_UP]}}[w.gate == 0],
            w.gate ? 2 : 1, s[NORM2], zr_pass_dx(pass, s[D_NORM2]));
    return products_backward(
        pass,
        (struct product[]){{column_linear(pass, w.q, from.stride), Q_W, from.at},
                           {column_linear(pass, w.kv, from.stride), K_W, column_of(pass, from.at, w.q)},
                           {column_linear(pass, w.kv, w.qkv), V_W, column_of(pass, s[D_QKV], w.q + w.kv)}},
        3, s[NORM1], zr_pass_dx(pass, s[D_NORM]));
}

static zr_result attend_backward(struct zr_module_pass *pass)
{
    void **s = pass->slots;
    const struct zr_attention_backward op = {zr_pass_attention(pass), s[QKV],    s[ATTENTION], s[LSE],
                                             s[PROBABILITIES],        s[D_NORM], s[D_QKV]};
    zr_result result = zr_pass_attend_backward(pass, RING, &op);
    if (result == ZR_OK)
        result = rotate(pass, s[D_QKV], true);
    if (result == ZR_OK && zr_pass_shape(pass)->variant.head_norms)
        result = zr_module_take(pass, D_HEADS);
    return result == ZR_OK ? norm_heads(pass, true) : result;
}

/* The second norm's gradient adds to that of MIDDLE. If the norm reads x, attention needs the gradient of
 * MIDDLE without that part, which waits in D_SIDE. */
static zr_result norm2_backward(struct zr_module_pass *pass)
{
    bool parallel = zr_pass_shape(pass)->variant.parallel;
    zr_result result = parallel ? zr_module_take(pass, D_SIDE) : ZR_OK;
    void *dx = parallel ? pass->slots[D_SIDE] : pass->dx;
    zr_pass_end_slot(pass, D_GATE);
    zr_pass_end_slot(pass, D_UP);
    if (result == ZR_OK)
        result = norm_backward(pass, norm2_of(pass),
                               (struct step_back){.dy = pass->slots[D_NORM2], .dx = dx, .adds = !parallel});
    zr_pass_end_slot(pass, D_NORM2);
    return result;
}

static zr_result norm1_backward(struct zr_module_pass *pass)
{
    void **s = pass->slots;
    zr_pass_end_slot(pass, D_HEADS);
    zr_pass_end_slot(pass, D_QKV);
    zr_result result = norm_backward(pass, norm1_of(pass),
                                     (struct step_back){.dy = s[D_NORM], .dx = pass->dx, .adds = true});
    if (result == ZR_OK && s[D_SIDE])
        result = add(pass, s[D_SIDE], pass->dx);
    zr_module_drop(pass, D_SIDE);
    zr_pass_end_slot(pass, D_NORM);
    return result;
}

/* Backward of the operations before a product. */
static zr_result go_back(struct zr_module_pass *pass, unsigned product)
{
    const struct zr_kernels *k = pass->kernels;
    const struct zr_variant *variant = &zr_pass_shape(pass)->variant;
    void **s = pass->slots;
    size_t n = pass->rows * widths_of(zr_pass_shape(pass)).ffn;
    if (product == ZR_PRODUCT_NARROW || product == ZR_PRODUCT_OUT) {
        zr_pass_end_slot(pass, D_NORMED + (product == ZR_PRODUCT_NARROW));
        zr_pass_end_slot(pass, D_BRANCH + (product == ZR_PRODUCT_NARROW));
    }
    if (product == ZR_PRODUCT_NARROW && variant->ungated)
        return k->gelu_backward(
            pass->context,
            &(struct zr_gelu_backward){n, s[UP], s[D_UP], s[D_UP], (enum zr_activation)variant->activation});
    if (product == ZR_PRODUCT_NARROW)
        return k->swiglu_backward(pass->context,
                                  &(struct zr_swiglu_backward){n, s[GATE], s[UP], s[D_UP], s[D_GATE], s[D_UP],
                                                               variant->activation != 0});
    return product == ZR_PRODUCT_OUT    ? attend_backward(pass)
           : product == ZR_PRODUCT_WIDE ? norm2_backward(pass)
                                        : norm1_backward(pass);
}

/* Gradients of the norms beside a product, after a backward that split. */
static zr_result weigh_norms(struct zr_module_pass *pass, unsigned product)
{
    if (product == ZR_PRODUCT_WIDE)
        return norm_backward(pass, norm2_of(pass), (struct step_back){.dy = pass->slots[D_NORM2]});
    if (product != ZR_PRODUCT_QKV)
        return has_branch_norms(pass) ? branch_backward(pass, product) : ZR_OK;
    zr_result result = norm_heads(pass, true);
    return result == ZR_OK
               ? norm_backward(pass, norm1_of(pass), (struct step_back){.dy = pass->slots[D_NORM]})
               : result;
}

/* ---- Final norm ---------------------------------------------------------------------------------------- */

static zr_result final_norm(struct zr_module_pass *pass)
{
    return norm(pass, (struct norm){0, pass->x, pass->y, pass->slots[0]});
}

static zr_result final_norm_backward(struct zr_module_pass *pass)
{
    return norm_backward(pass, (struct norm){0, pass->x, NULL, pass->slots[0]},
                         (struct step_back){.dy = pass->dy, .dx = pass->dx});
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static zr_result prepare(struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    struct zr_rotary_table table = {.sequence = shape->sequence,
                                    .width = zr_shape_rotary(shape),
                                    .theta = shape->rope_theta,
                                    .scaling = shape->variant.rotary,
                                    .cosines = pass->inputs[COSINES],
                                    .sines = pass->inputs[SINES]};
    zr_result result = pass->kernels->rotary_table(pass->context, &table);
    if (result != ZR_OK || shape->variant.window_theta == 0)
        return result;
    table.theta = shape->variant.window_theta;
    table.scaling = (struct zr_rotary_scaling){.factor = 0};
    table.cosines += angles_of(shape);
    table.sines += angles_of(shape);
    return pass->kernels->rotary_table(pass->context, &table);
}

static void describe_types(struct zr_transformer *t)
{
    size_t c = t->shape.hidden;
    t->slots[ZR_TYPE_FINAL][0] =
        (struct zr_slot){"rstd", t->shape.variant.layer_norms ? 2 : 1, ZR_SLOT_FLOATS, 0, true};
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
                                                          .parts = zr_shape_tiles(&t->shape)};
    t->types[ZR_TYPE_BLOCK] = (struct zr_module_type){.output_columns = c,
                                                      .output_tag = ZR_TAG_CHECKPOINT,
                                                      .output_name = "mlp.down_proj",
                                                      .slots = t->slots[ZR_TYPE_BLOCK],
                                                      .slots_count = BLOCK_SLOTS,
                                                      .in_place = true,
                                                      .recomputes = true};
    t->types[ZR_TYPE_FINAL] = (struct zr_module_type){.output_columns = c,
                                                      .output_tag = ZR_TAG_ACTIVATION,
                                                      .slots = t->slots[ZR_TYPE_FINAL],
                                                      .slots_count = 1,
                                                      .forward = final_norm,
                                                      .backward = final_norm_backward};
    zr_transformer_add_head(t);
}

static void describe(struct zr_transformer *t)
{
    const struct zr_shape *shape = &t->shape;
    const struct widths w = widths_of(shape);
    float deviation = 0.02f, residual = deviation / sqrtf(2.0f * (float)shape->layers); /* as in GPT-2 */
    const enum zr_transformer_group matrices = ZR_GROUP_MATRICES, vectors = ZR_GROUP_VECTORS;
    const size_t ffn = shape->ffn, kv = shape->kv_heads * w.head,
                 q = zr_shape_queries(shape); /* of all tensor ranks */
    const float one = shape->variant.norms_add_one ? 0 : 1;
    const struct zr_tensor embed_tokens = {"weight",  shape->vocabulary_padded, w.c,           0,
                                           deviation, ZR_GROUP_EMBEDDINGS,      ZR_SPLIT_FIRST};
    const struct zr_tensor lm_head = {"weight",  shape->vocabulary_padded, w.c,           0,
                                      deviation, ZR_GROUP_HEADS,           ZR_SPLIT_FIRST};
    const struct zr_tensor final[] = {{"weight", w.c, 0, one, 0, vectors, ZR_SPLIT_NORM},
                                      {"bias", w.c, 0, 0, 0, vectors, ZR_SPLIT_NORM}};
    struct zr_tensor tensors[BLOCK_PARAMETERS] = {
        [NORM1_W] = {"input_layernorm.weight", w.c, 0, one, 0, vectors, ZR_SPLIT_NORM},
        [NORM1_B] = {"input_layernorm.bias", w.c, 0, 0, 0, vectors, ZR_SPLIT_NORM},
        [Q_W] = {"self_attn.q_proj.weight", q, w.c, 0, deviation, matrices, ZR_SPLIT_FIRST},
        [K_W] = {"self_attn.k_proj.weight", kv, w.c, 0, deviation, matrices, ZR_SPLIT_FIRST},
        [V_W] = {"self_attn.v_proj.weight", kv, w.c, 0, deviation, matrices, ZR_SPLIT_FIRST},
        [Q_B] = {"self_attn.q_proj.bias", q, 0, 0, 0, vectors, ZR_SPLIT_FIRST},
        [K_B] = {"self_attn.k_proj.bias", kv, 0, 0, 0, vectors, ZR_SPLIT_FIRST},
        [V_B] = {"self_attn.v_proj.bias", kv, 0, 0, 0, vectors, ZR_SPLIT_FIRST},
        [Q_NORM] = {"self_attn.q_norm.weight", w.head, 0, one, 0, vectors, ZR_SPLIT_HEADS},
        [K_NORM] = {"self_attn.k_norm.weight", w.head, 0, one, 0, vectors, ZR_SPLIT_HEADS},
        [O_NORM] = {"self_attn.o_norm.weight", w.c, 0, one, 0, vectors, ZR_SPLIT_NORM},
        [O_W] = {"self_attn.o_proj.weight", w.c, q, 0, residual, matrices, ZR_SPLIT_LAST},
        [O_B] = {"self_attn.o_proj.bias", w.c, 0, 0, 0, vectors, ZR_SPLIT_NONE},
        [NORM2_W] = {"post_attention_layernorm.weight", w.c, 0, one, 0, vectors, ZR_SPLIT_NORM},
        [NORM2_B] = {"post_attention_layernorm.bias", w.c, 0, 0, 0, vectors, ZR_SPLIT_NORM},
        [GATE_W] = {"mlp.gate_proj.weight", ffn, w.c, 0, deviation, matrices, ZR_SPLIT_FIRST},
        [UP_W] = {"mlp.up_proj.weight", ffn, w.c, 0, deviation, matrices, ZR_SPLIT_FIRST},
        [GATE_B] = {"mlp.gate_proj.bias", ffn, 0, 0, 0, vectors, ZR_SPLIT_FIRST},
        [UP_B] = {"mlp.up_proj.bias", ffn, 0, 0, 0, vectors, ZR_SPLIT_FIRST},
        [DOWN_NORM] = {"mlp.down_norm.weight", w.c, 0, one, 0, vectors, ZR_SPLIT_NORM},
        [DOWN_W] = {"mlp.down_proj.weight", w.c, ffn, 0, residual, matrices, ZR_SPLIT_LAST},
        [DOWN_B] = {"mlp.down_proj.bias", w.c, 0, 0, 0, vectors, ZR_SPLIT_NONE},
    };
    unsigned first, unit;
    for (unsigned i = 0; i < BLOCK_PARAMETERS; i++)
        tensors[i].rows = absent(shape) >> i & 1 ? 0 : tensors[i].rows;

    describe_types(t);
    const size_t angles = (shape->variant.window_theta > 0 ? 2 : 1) * angles_of(shape);
    t->model.inputs[COSINES] = (struct zr_input){"rotary cosines", angles, ZR_SLOT_FLOATS};
    t->model.inputs[SINES] = (struct zr_input){"rotary sines", angles, ZR_SLOT_FLOATS};
    t->model.inputs_count = INPUTS;
    t->model.prepare = prepare;
    first =
        zr_transformer_add_vocabulary(t, &(struct zr_unit_tensors){"embed_tokens", "model.embed_tokens.", 0,
                                                                   shape->tied ? 2 : 1, &embed_tokens, 1});
    zr_transformer_add_module(t, ZR_TYPE_EMBEDDING, &first, 1);
    for (size_t l = 0; l < shape->layers; l++)
        zr_transformer_add_block(
            t, &(struct zr_unit_tensors){"layers.%zu", "model.layers.%zu.", l, 1, tensors, BLOCK_PARAMETERS});
    unit = (unsigned)t->model.list.units_count;
    zr_transformer_add_unit(
        t, &(struct zr_unit_tensors){"norm", "model.norm.", 0, 1, final, shape->variant.layer_norms ? 2 : 1});
    zr_transformer_add_module(t, ZR_TYPE_FINAL, &unit, 1);
    if (!shape->tied)
        first = zr_transformer_add_vocabulary(
            t, &(struct zr_unit_tensors){"lm_head", "lm_head.", 0, 1, &lm_head, 1});
    zr_transformer_add_module(t, ZR_TYPE_HEAD, &first, 1);
}

/* Channels of q, and of k or v; in double, without the checks of a shape. */
static double queries_of(const struct zr_shape *shape)
{
    return shape->variant.head_width ? (double)(shape->heads * shape->variant.head_width)
                                     : (double)shape->hidden;
}

static double keys_of(const struct zr_shape *shape)
{
    return queries_of(shape) / (double)shape->heads *
           (double)(shape->kv_heads ? shape->kv_heads : shape->heads);
}

/* Elements of the matrices of a block. */
static double block_matrices(const struct zr_shape *shape)
{
    double c = (double)shape->hidden, ffn = shape->ffn ? (double)shape->ffn : 8 * c / 3;
    return 2 * c * (queries_of(shape) + keys_of(shape)) + (shape->variant.ungated ? 2 : 3) * c * ffn;
}

static double elements(const struct zr_shape *shape)
{
    const struct zr_variant *variant = &shape->variant;
    double c = (double)shape->hidden, tables = (shape->tied ? 1 : 2) * (double)shape->vocabulary_padded,
           norm = (variant->layer_norms ? 2 : 1) * c, vectors = 2 * norm;
    vectors += variant->biases & ZR_BIASES_QKV ? queries_of(shape) + 2 * keys_of(shape) : 0;
    vectors += variant->biases & ZR_BIASES_OUT ? c : 0;
    vectors += variant->biases & ZR_BIASES_FFN ? c + (variant->ungated ? 1 : 2) * (double)shape->ffn : 0;
    vectors += variant->branch_norms ? 2 * c : 0;
    vectors += variant->head_norms ? 2 * queries_of(shape) / (double)shape->heads : 0;
    return (double)shape->layers * (block_matrices(shape) + vectors) + tables * c + norm;
}

/* Attention counts all tokens, with a window too. */
static double block_flops(const struct zr_shape *shape)
{
    return 2 * block_matrices(shape) + 4 * queries_of(shape) * (double)shape->sequence;
}

const struct zr_architecture_table zr_architecture_llama = {
    .name = "llama",
    .units = 3,
    .parameters = 4,
    .block_parameters = BLOCK_PARAMETERS,
    .products = {{"qkv", NORM1_W, Q_W},
                 {"o", Q_NORM, O_W},
                 {"gate_up", NORM2_W, GATE_W},
                 {"down", DOWN_NORM, DOWN_W}},
    .turned = true,
    .matrices = {Q_W, K_W, V_W, O_W, GATE_W, UP_W, DOWN_W},
    .matrices_count = MATRICES,
    .block_tensors = PRESENT_MAX,
    .adapter_slot = XA,
    .block = {before,
              multiply_product,
              after,
              take_gradients,
              multiply_back,
              go_back,
              weigh_norms,
              {[ZR_PRODUCT_NARROW] = 1 << GATE | 1 << UP,
               [ZR_PRODUCT_OUT] = 1 << QKV | 1 << LSE | 1 << PROBABILITIES}},
    .describe = describe,
    .absent = absent,
    .elements = elements,
    .block_flops = block_flops};
