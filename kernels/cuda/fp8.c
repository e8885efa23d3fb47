/* fp8.c: linear operations in fp8 on a GPU. cuBLASLt multiplies fp8 matrices in one layout only: both
 * operands are contiguous along the dimension that is summed. So each operand is rounded into a copy with
 * that layout, which is transposed if the tensor has the other one: w for y, x and dy for dw. The copies and
 * their scales remain on the device, and the host does not wait. */
#include "kernels/cuda/fp8.h"

#include "alloc/base/error.h"
#include "kernels/sizes.h"

/* ---- The card ------------------------------------------------------------------------------------------ */

enum { CAPABILITY_MIN = 89 };

zr_result zr_cuda_fp8_check(const struct cuda_card *card)
{
    return card->major * 10 + card->minor >= CAPABILITY_MIN
               ? ZR_OK
               : zr_fail(ZR_ERR_UNAVAILABLE,
                         "fp8 requires compute capability 8.9 or later (Ada, Hopper, Blackwell), and %s "
                         "has %d.%d; use --precision bf16",
                         card->name, card->major, card->minor);
}

/* ---- Scratch: scales, then copies ---------------------------------------------------------------------- */

enum { LINE_BYTES = 256, OPERANDS = 3 };

/* For each operand: its largest absolute value, then its scale. */
struct scales {
    struct {
        unsigned long long most;
        float scale;
    } of[OPERANDS];
};
_Static_assert(sizeof(struct scales) <= LINE_BYTES, "scales have one line");

static size_t whole_line(size_t bytes)
{
    return zr_whole(bytes, LINE_BYTES);
}

/* Scratch bytes of backward: the gradient in both layouts, and w or x. Forward needs less. */
size_t zr_cuda_fp8_bytes(const struct zr_kernel_limits *limits)
{
    size_t rows = whole_line(zr_times(limits->rows, limits->fp8_wide)),
           matrix = whole_line(zr_times(limits->fp8_narrow, limits->fp8_wide)),
           other = whole_line(zr_times(limits->rows, limits->fp8_narrow));
    return limits->fp8_wide ? zr_plus(LINE_BYTES, zr_plus(zr_times(2, rows), matrix > other ? matrix : other))
                            : 0;
}

/* The parts of the scratch memory: the scales, then the copies. */
struct scratch {
    struct scales *scales;
    uint8_t *copies[OPERANDS];
};

static zr_result take_scratch(const struct zr_kernel_context *context, const size_t bytes[OPERANDS],
                              struct scratch *out)
{
    size_t all = LINE_BYTES, from[OPERANDS];
    void *at = NULL;
    for (unsigned i = 0; i < OPERANDS; i++) {
        from[i] = all;
        all = zr_plus(all, whole_line(bytes[i]));
    }
    zr_result result = context->fp8
                           ? zr_cuda_fp8_scratch(context, all, &at)
                           : zr_fail(ZR_ERR_INVALID, "an fp8 product was called with a context without fp8");
    *out = (struct scratch){.scales = at};
    for (unsigned i = 0; i < OPERANDS && result == ZR_OK; i++)
        out->copies[i] = (uint8_t *)at + from[i];
    return result;
}

/* ---- Operands and products ----------------------------------------------------------------------------- */

static struct cuda_fp8 operand_of(const struct scratch *scratch, unsigned number, enum zr_fp8 kind)
{
    return (struct cuda_fp8){
        .kind = kind, .most = &scratch->scales->of[number].most, .scale = &scratch->scales->of[number].scale};
}

static struct cuda_fp8 weights_of(const struct zr_linear *s, const void *w, struct cuda_fp8 operand)
{
    operand.from = w;
    operand.rows = s->turned ? s->out : s->in;
    operand.columns = operand.stride = s->turned ? s->in : s->out;
    return operand;
}

static struct cuda_fp8 rows_of(const struct zr_linear *s, const void *from, size_t columns, size_t stride,
                               struct cuda_fp8 operand)
{
    operand.from = from;
    operand.rows = s->rows;
    operand.columns = columns;
    operand.stride = stride ? stride : columns;
    return operand;
}

/* c[m, n] (+)= a[m, k] b[n, k]^T; both operands are contiguous along k. */
static struct cuda_product product_of(size_t m, size_t n, size_t k)
{
    return (struct cuda_product){.m = (unsigned)m,
                                 .n = (unsigned)n,
                                 .k = (unsigned)k,
                                 .a_row = k,
                                 .a_column = 1,
                                 .b_row = 1,
                                 .b_column = k};
}

static void put_a(struct cuda_product *p, const struct cuda_fp8 *operand, const uint8_t *copy)
{
    p->a = copy;
    p->a_kind = operand->kind;
    p->a_scale = operand->scale;
}

static void put_b(struct cuda_product *p, const struct cuda_fp8 *operand, const uint8_t *copy)
{
    p->b = copy;
    p->b_kind = operand->kind;
    p->b_scale = operand->scale;
}

/* Rounds this operand, and multiplies it with the other operand, which has been rounded. */
static zr_result round_and_multiply(struct zr_kernel_context *context, const struct cuda_fp8 *operand,
                                    const struct cuda_product *p, bool *done)
{
    zr_result result = zr_cuda_fp8_round(context, operand);
    return result == ZR_OK ? zr_cuda_fp8_multiply(context, p, done) : result;
}

zr_result zr_cuda_fp8_forward(struct zr_kernel_context *context, const struct zr_linear_forward *args,
                              bool *done)
{
    const struct zr_linear *s = &args->shape;
    struct scratch scratch;
    *done = false;
    zr_result result =
        take_scratch(context, (const size_t[OPERANDS]){s->rows * s->in, s->in * s->out, 0}, &scratch);
    if (result != ZR_OK)
        return result;
    struct cuda_fp8 x = rows_of(s, args->x, s->in, s->x_stride, operand_of(&scratch, 0, ZR_FP8_E4M3)),
                    w = weights_of(s, args->w, operand_of(&scratch, 1, ZR_FP8_E4M3));
    struct cuda_product p = product_of(s->rows, s->out, s->in);
    x.copy = scratch.copies[0];
    *(s->turned ? &w.copy : &w.turned) = scratch.copies[1];
    put_a(&p, &x, scratch.copies[0]);
    put_b(&p, &w, scratch.copies[1]);
    p.c = args->y;
    p.c_row = s->y_stride ? s->y_stride : s->out;
    p.bias = args->bias;
    p.floats = args->floats;
    result = zr_cuda_fp8_round(context, &x);
    return result == ZR_OK ? round_and_multiply(context, &w, &p, done) : result;
}

/* dx[rows, in] = dy[rows, out] w[in, out]^T. */
static zr_result make_dx(struct zr_kernel_context *context, const struct zr_linear_backward *args,
                         const struct scratch *scratch, const struct cuda_fp8 *dy, bool *done)
{
    const struct zr_linear *s = &args->shape;
    struct cuda_fp8 w = weights_of(s, args->w, operand_of(scratch, 2, ZR_FP8_E4M3));
    struct cuda_product p = product_of(s->rows, s->in, s->out);
    *(s->turned ? &w.turned : &w.copy) = scratch->copies[2];
    put_a(&p, dy, dy->copy);
    put_b(&p, &w, scratch->copies[2]);
    p.c = args->dx;
    p.c_row = s->x_stride ? s->x_stride : s->in;
    p.accumulate = args->accumulate_dx;
    return round_and_multiply(context, &w, &p, done);
}

/* dw[in, out] = x[rows, in]^T dy[rows, out]; the transpose of that if w is stored transposed. */
static zr_result make_dw(struct zr_kernel_context *context, const struct zr_linear_backward *args,
                         const struct scratch *scratch, const struct cuda_fp8 *dy, bool *done)
{
    const struct zr_linear *s = &args->shape;
    struct cuda_fp8 x = rows_of(s, args->x, s->in, s->x_stride, operand_of(scratch, 1, ZR_FP8_E4M3));
    struct cuda_product p =
        s->turned ? product_of(s->out, s->in, s->rows) : product_of(s->in, s->out, s->rows);
    x.turned = scratch->copies[2];
    put_a(&p, s->turned ? dy : &x, s->turned ? dy->turned : x.turned);
    put_b(&p, s->turned ? &x : dy, s->turned ? x.turned : dy->turned);
    p.c = args->dw;
    p.c_row = p.n;
    p.accumulate = args->accumulate;
    p.floats = args->dw_floats;
    return round_and_multiply(context, &x, &p, done);
}

zr_result zr_cuda_fp8_backward(struct zr_kernel_context *context, struct zr_linear_backward *args)
{
    const struct zr_linear *s = &args->shape;
    size_t gradients = s->rows * s->out, weights = args->dx ? s->in * s->out : 0,
           inputs = args->dw ? s->rows * s->in : 0;
    struct scratch scratch;
    bool dx_done = false, dw_done = false;
    if (!args->dx && !args->dw)
        return ZR_OK;
    zr_result result =
        take_scratch(context,
                     (const size_t[OPERANDS]){args->dx ? gradients : 0, args->dw ? gradients : 0,
                                              weights > inputs ? weights : inputs},
                     &scratch);
    if (result != ZR_OK)
        return result;
    struct cuda_fp8 dy = rows_of(s, args->dy, s->out, s->y_stride, operand_of(&scratch, 0, ZR_FP8_E5M2));
    dy.copy = args->dx ? scratch.copies[0] : NULL;
    dy.turned = args->dw ? scratch.copies[1] : NULL;
    result = zr_cuda_fp8_round(context, &dy);
    if (result == ZR_OK && args->dx)
        result = make_dx(context, args, &scratch, &dy, &dx_done);
    if (result == ZR_OK && args->dw)
        result = make_dw(context, args, &scratch, &dy, &dw_done);
    args->dx = dx_done ? NULL : args->dx;
    args->dw = dw_done ? NULL : args->dw;
    return result;
}
