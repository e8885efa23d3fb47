/* fp8.c: linear operations with operands rounded to fp8. An fp8 number times a power of two is exact in bf16,
 * so operands are rounded into bf16 copies, which are multiplied as bf16: exact products, sums in floats.
 * Slower than bf16; for results that match a GPU's. */
#include "kernels/fp8.h"
#include "kernels/cpu/cpu.h"
#include "alloc/base/error.h"

#include <stdatomic.h>

/* The operand [rows, columns] and its dense copy. */
struct operand {
    const uint16_t *from;
    size_t rows, columns, stride;
    enum zr_fp8 kind;
    uint16_t *to;
};

struct rounding {
    const struct operand *operand;
    struct zr_fp8_scale scale;
    _Atomic uint32_t *most; /* bits of the largest absolute value */
};

static void find_maximum(const void *args, size_t from, size_t to)
{
    const struct rounding *r = args;
    const struct operand *o = r->operand;
    uint32_t most = 0;
    for (size_t row = from; row < to; row++)
        for (size_t column = 0; column < o->columns; column++) {
            uint32_t size = o->from[row * o->stride + column] & 0x7fff;
            most = size > most ? size : most;
        }
    uint32_t known = atomic_load_explicit(r->most, memory_order_relaxed);
    while (known < most && !atomic_compare_exchange_weak(r->most, &known, most))
        ;
}

static void round_rows(const void *args, size_t from, size_t to)
{
    const struct rounding *r = args;
    const struct operand *o = r->operand;
    for (size_t row = from; row < to; row++)
        for (size_t column = 0; column < o->columns; column++) {
            float x = zr_fp8_float_of((uint32_t)o->from[row * o->stride + column] << 16);
            float rounded = zr_fp8_value(zr_fp8_round(x * r->scale.to, o->kind), o->kind) * r->scale.from;
            o->to[row * o->columns + column] = (uint16_t)(zr_fp8_float_bits(rounded) >> 16);
        }
}

static zr_result round_operand(struct zr_kernel_context *context, const struct operand *operand)
{
    _Atomic uint32_t most = 0;
    struct rounding rounding = {.operand = operand, .most = &most};
    zr_result result = zr_loop_run(context, find_maximum, &rounding, operand->rows, 1);
    rounding.scale = zr_fp8_scale_of(atomic_load(&most), operand->kind);
    return result == ZR_OK ? zr_loop_run(context, round_rows, &rounding, operand->rows, 1) : result;
}

static size_t copy_elements(size_t elements)
{
    return zr_round_up(elements, ZR_LINE_ELEMENTS);
}

/* Acquires scratch for two copies. */
static zr_result open_copies(struct zr_kernel_context *context, size_t first, size_t second, uint16_t *out[2])
{
    void *scratch;
    if (!context->fp8)
        return zr_fail(ZR_ERR_INVALID, "an fp8 product was called with a context without fp8");
    zr_result result =
        zr_context_scratch(context, (copy_elements(first) + copy_elements(second)) * sizeof **out, &scratch);
    out[0] = scratch;
    out[1] = (uint16_t *)scratch + copy_elements(first);
    return result;
}

static struct operand weights_of(const struct zr_linear *s, const void *w, uint16_t *to)
{
    size_t rows = s->turned ? s->out : s->in, columns = s->turned ? s->in : s->out;
    return (struct operand){w, rows, columns, columns, ZR_FP8_E4M3, to};
}

static struct operand inputs_of(const struct zr_linear *s, const void *x, uint16_t *to)
{
    return (struct operand){x, s->rows, s->in, s->x_stride ? s->x_stride : s->in, ZR_FP8_E4M3, to};
}

static struct operand gradients_of(const struct zr_linear *s, const void *dy, uint16_t *to)
{
    return (struct operand){dy, s->rows, s->out, s->y_stride ? s->y_stride : s->out, ZR_FP8_E5M2, to};
}

zr_result zr_cpu_fp8_forward(struct zr_kernel_context *context, const struct zr_linear_forward *args)
{
    struct zr_linear_forward call = *args;
    const struct zr_linear *s = &args->shape;
    uint16_t *copies[2] = {NULL, NULL};
    zr_result result = open_copies(context, s->rows * s->in, s->in * s->out, copies);
    struct operand x = inputs_of(s, args->x, copies[0]), w = weights_of(s, args->w, copies[1]);
    call.shape.fp8 = false;
    call.shape.x_stride = 0;
    call.x = x.to;
    call.w = w.to;
    if (result == ZR_OK)
        result = round_operand(context, &x);
    if (result == ZR_OK)
        result = round_operand(context, &w);
    return result == ZR_OK ? zr_cpu_linear_forward(context, &call) : result;
}

/* One copy has the gradient, the other the weights and then the inputs. */
zr_result zr_cpu_fp8_backward(struct zr_kernel_context *context, const struct zr_linear_backward *args)
{
    struct zr_linear_backward call = *args, bias = *args;
    const struct zr_linear *s = &args->shape;
    size_t weights = args->dx ? s->in * s->out : 0, inputs = args->dw ? s->rows * s->in : 0;
    uint16_t *copies[2] = {NULL, NULL};
    zr_result result = open_copies(context, s->rows * s->out, weights > inputs ? weights : inputs, copies);
    struct operand dy = gradients_of(s, args->dy, copies[0]), w = weights_of(s, args->w, copies[1]),
                   x = inputs_of(s, args->x, copies[1]);
    call.shape.fp8 = bias.shape.fp8 = false;
    call.shape.y_stride = 0;
    call.dy = dy.to;
    call.w = w.to;
    call.x = x.to;
    call.dw = call.db = bias.dx = bias.dw = NULL;
    if (result == ZR_OK && (args->dx || args->dw))
        result = round_operand(context, &dy);
    if (result == ZR_OK && args->dx)
        result = round_operand(context, &w);
    if (result == ZR_OK && args->dx)
        result = zr_cpu_linear_backward(context, &call);
    call.shape.x_stride = 0;
    call.dx = NULL;
    call.dw = args->dw;
    if (result == ZR_OK && args->dw)
        result = round_operand(context, &x);
    if (result == ZR_OK && args->dw)
        result = zr_cpu_linear_backward(context, &call);
    return result == ZR_OK && args->db ? zr_cpu_linear_backward(context, &bias) : result;
}
