/* sum.c: sums over ranks in rank order, for every element type. Used by local.c, message.c and null.c.
 *
 * The kernels add. They do not support a base of two-byte elements: there the sum is computed in fp32 a
 * block at a time, added to the base, and rounded once (to nearest, ties to even; NaN stays NaN). Both
 * conversions are exact or defined to the bit, so results do not depend on the instruction set. */
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/comm.h"

/* to[count] = base + scale * (from[0] + from[1] + ...). `to` may be one of the sources. */
struct sum {
    size_t count;
    const void *const *from; /* [ranks] */
    unsigned ranks;
    enum zr_comm_type type; /* of sources and base, and of the destination unless `wide` (fp32) */
    bool wide, accumulate;  /* accumulate: use `to` as the base */
    float scale;
    void *to;
    const void *base; /* NULL: none; NULL if accumulate */
};

enum { BLOCK = 512 }; /* elements; two blocks of floats fit the first-level cache */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint16_t bf16_of(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

/* Raises the exponent by 112 with an exact product, which also normalizes subnormal fp16 values;
 * infinities and NaN get the maximum exponent. */
static float float_of_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t bits = bits_of(float_of(rest) * 0x1p112f);
    bits = rest >= 0x0f800000u ? rest | 0x7f800000u : bits;
    return float_of(sign | bits);
}

/* Below 2^-14, adding 0.5 aligns fp16's last bit with the float's last bit, which rounds. Above, the 13
 * surplus bits are rounded as in bf16_of(). Results from 2^16 on are infinite. */
static uint16_t fp16_of(float value)
{
    uint32_t sign = bits_of(value) & 0x80000000u, rest = bits_of(value) ^ sign;
    uint32_t small = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
    uint32_t normal = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13;
    uint32_t half = rest < 0x38800000u ? small : normal;
    half = rest >= 0x477ff000u ? 0x7c00u : half;
    half = rest > 0x7f800000u ? 0x7e00u | (rest >> 13 & 0x3ffu) : half;
    return (uint16_t)(sign >> 16 | half);
}

/* One function per type, so that the inner loops are specialized. Clang vectorizes such loops by default
 * and lacks the attribute. */
#ifdef __clang__
#define LOOPS
#else
#define LOOPS __attribute__((optimize("O3")))
#endif

LOOPS static void set_bf16(float *restrict to, const uint16_t *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = float_of((uint32_t)from[i] << 16);
}

LOOPS static void set_fp16(float *restrict to, const uint16_t *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = float_of_fp16(from[i]);
}

LOOPS static void round_bf16(uint16_t *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = bf16_of(from[i]);
}

LOOPS static void round_fp16(uint16_t *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = fp16_of(from[i]);
}

_Static_assert((int)ZR_COMM_BF16 == ZR_PRECISION_BF16 && (int)ZR_COMM_FP16 == ZR_PRECISION_FP16,
               "types of elements are precisions");

/* base + sum of a block of two-byte elements: in fp32, rounded once. */
static void sum_block_onto_base(const struct zr_kernels *kernels, const struct sum *sum, size_t first,
                                const void **from)
{
    float total[BLOCK], base[BLOCK];
    bool bf16 = sum->type == ZR_COMM_BF16;
    size_t count = sum->count - first < BLOCK ? sum->count - first : BLOCK;
    uint16_t *to = (uint16_t *)sum->to + first;
    for (unsigned p = 0; p < sum->ranks; p++)
        from[p] = (const uint16_t *)sum->from[p] + first;
    kernels->sum(NULL, &(struct zr_sum){.n = count,
                                        .from = from,
                                        .count = sum->ranks,
                                        .precision = (enum zr_precision)sum->type,
                                        .scale = sum->scale,
                                        .to = {total, ZR_PRECISION_FP32}});
    (bf16 ? set_bf16 : set_fp16)(base, (const uint16_t *)sum->base + first, count);
    for (size_t i = 0; i < count; i++)
        total[i] = base[i] + total[i];
    (bf16 ? round_bf16 : round_fp16)(to, total, count);
}

static zr_result add(struct zr_comm *comm, const struct sum *sum)
{
    const struct zr_kernels *kernels = comm->options.kernels;
    const void *from[ZR_MAX_WORLD];
    struct zr_kernel_context *context = NULL;
    zr_result result = kernels->host_visible ? ZR_OK : zr_comm_context(comm, &context);
    if (result == ZR_OK && context && sum->base && sum->type != ZR_COMM_FP32)
        result = zr_fail(
            ZR_ERR_INVALID,
            "a sum of two-byte elements with a base is not supported in memory that the host cannot read");
    if (result != ZR_OK)
        return result;
    if (!sum->base || sum->type == ZR_COMM_FP32)
        result = kernels->sum(
            context,
            &(struct zr_sum){.n = sum->count,
                             .from = sum->from,
                             .count = sum->ranks,
                             .precision = (enum zr_precision)sum->type,
                             .scale = sum->scale,
                             .accumulate = sum->accumulate,
                             .to = {sum->to, sum->wide ? ZR_PRECISION_FP32 : (enum zr_precision)sum->type}});
    else
        for (size_t first = 0; first < sum->count; first += BLOCK)
            sum_block_onto_base(kernels, sum, first, from);
    if (result == ZR_OK && sum->base && sum->type == ZR_COMM_FP32)
        result = kernels->sum(context, &(struct zr_sum){.n = sum->count,
                                                        .from = (const void *[]){sum->base, sum->to},
                                                        .count = 2,
                                                        .scale = 1,
                                                        .to = {sum->to, ZR_PRECISION_FP32}});
    return result;
}

zr_result zr_comm_sum_part(struct zr_comm *comm, const struct zr_comm_item *item, const void *const *from,
                           struct zr_comm_part part)
{
    size_t unit = ZR_COMM_TYPE_BYTES(item->type), own = comm->rank * item->bytes + part.first;
    struct sum sum = {.count = part.bytes / unit, .from = from, .ranks = comm->world, .type = item->type};
    if (item->kind == ZR_COMM_REDUCE_SCATTER) {
        const struct zr_reduce_scatter *op = &item->reduce_scatter;
        sum.wide = op->wide && op->type != ZR_COMM_FP32;
        sum.to = (char *)op->destination + part.first / unit * (sum.wide ? sizeof(float) : unit);
        sum.scale = op->scale;
        sum.accumulate = op->accumulate;
    } else {
        const struct zr_all_reduce *op = &item->all_reduce;
        sum.to = (char *)op->buffer + own;
        sum.base = op->base ? (const char *)op->base + own : NULL;
        sum.scale = op->scale;
    }
    return add(comm, &sum);
}
