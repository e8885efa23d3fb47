/* pack.cu: packed numbers (enum zr_packing) for collectives, with the bits of kernels/cpu/loops/loops_pack.h.
 *
 * A warp packs or unpacks a block of ZR_PACK_BLOCK numbers in registers. In its part p, lane l has the four
 * numbers from 128 p + 4 l on, so a warp reads and writes 512 bytes of fp32 numbers side by side, 256 of
 * two-byte ones, and 128 or 64 of codes. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/codes.h"

#include "kernels/packing.h"

enum {
    PARTS = ZR_PACK_BLOCK / (FOUR * WARP),
    PART = FOUR * WARP,
    OCTET = ZR_MX_GROUP / FOUR,   /* lanes of a group that has a power of two */
    PERIOD = ZR_PACK_LANES / FOUR /* lanes until the numbers' remainder by ZR_PACK_LANES repeats */
};
#define EACH_PART(p)                                                                                         \
    UNROLL                                                                                                   \
    for (unsigned p = 0; p < PARTS; p++)
#define EACH_NUMBER(p, k) EACH_PART(p) UNROLL for (unsigned k = 0; k < FOUR; k++)

/* The numbers of a lane. */
struct numbers {
    float at[PARTS][FOUR];
};
/* A block of n numbers at index `first` of the tensors; `fours`: it is whole, and its tensors are aligned. */
struct place {
    size_t first, n;
    bool fours;
};

DEVICE struct place place_of(size_t n, bool aligned)
{
    struct place place = {((size_t)blockIdx.x * CUDA_WARPS + warp_of_thread()) * ZR_PACK_BLOCK, 0, false};
    size_t left = place.first < n ? n - place.first : 0;
    place.n = left < ZR_PACK_BLOCK ? left : (size_t)ZR_PACK_BLOCK;
    place.fours = aligned && place.n == ZR_PACK_BLOCK;
    return place;
}

/* ---- Numbers in memory --------------------------------------------------------------------------------- */

/* All loads are issued before the first number is used. Numbers behind the last one are zeros. */
DEVICE struct numbers block_get(const struct zr_numbers *from, struct place place)
{
    const size_t i = place.first + FOUR * lane_of_thread();
    struct numbers x;
    if (place.fours && from->precision == ZR_PRECISION_FP32) {
        EACH_PART(p)
        {
            struct four all = *(const struct four *)(const void *)((const float *)from->at + i + p * PART);
            UNROLL
            for (unsigned k = 0; k < FOUR; k++)
                x.at[p][k] = all.at[k];
        }
    } else if (place.fours) {
        struct four_narrow all[PARTS];
        EACH_PART(p)
        all[p] = *(const struct four_narrow *)(const void *)((const uint16_t *)from->at + i + p * PART);
        EACH_NUMBER(p, k)
        x.at[p][k] =
            from->precision == ZR_PRECISION_BF16 ? float_of_bf16(all[p].at[k]) : float_of_fp16(all[p].at[k]);
    } else {
        EACH_NUMBER(p, k)
        x.at[p][k] = i + p * PART + k < place.first + place.n ? number_get(from, i + p * PART + k) : 0;
    }
    return x;
}

DEVICE void block_put(const struct zr_numbers *to, struct place place, const struct numbers *x)
{
    const size_t i = place.first + FOUR * lane_of_thread();
    EACH_PART(p)
    {
        struct four all;
        UNROLL
        for (unsigned k = 0; k < FOUR; k++)
            all.at[k] = x->at[p][k];
        const size_t at = i + p * PART, end = place.first + place.n;
        if (place.fours) {
            four_put(to, at, &all, FOUR);
        } else {
            EACH_OF_FOUR(k, at < end ? end - at : 0) number_put(to, at + k, all.at[k]);
        }
    }
}

/* Word `index` of a packed block. */
DEVICE uint32_t word_get(const unsigned char *from, unsigned index, bool aligned)
{
    const unsigned char *at = from + (size_t)index * sizeof(uint32_t);
    return aligned ? *(const uint32_t *)(const void *)at
                   : at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

DEVICE void word_put(unsigned char *to, unsigned index, uint32_t word, bool aligned)
{
    unsigned char *at = to + (size_t)index * sizeof(uint32_t);
    if (aligned) {
        *(uint32_t *)(void *)at = word;
    } else {
        UNROLL
        for (unsigned byte = 0; byte < sizeof word; byte++)
            at[byte] = (unsigned char)(word >> 8 * byte);
    }
}

/* ---- Signs --------------------------------------------------------------------------------------------- */

/* Lanes l and l + 16 add the squares of numbers 16 b + l in the order of b, which have come through shared
 * memory; their double products are exact, so a fused multiply-add rounds as two operations. `sent`: the
 * numbers that the block has for these. Returns whether all are finite, here and below. */
DEVICE bool encode_onebit(const struct numbers *x, size_t n, unsigned char *out, bool aligned,
                          struct numbers *sent)
{
    SHARED(float, all, CUDA_WARPS *ZR_PACK_BLOCK);
    float *own = all + warp_of_thread() * ZR_PACK_BLOCK;
    const unsigned lane = lane_of_thread(), l = lane % ZR_PACK_LANES;
    uint32_t word = 0;
    double squares = 0, sum = 0;
    EACH_NUMBER(p, k) own[p * PART + FOUR * lane + k] = x->at[p][k];
    __syncwarp(ALL_LANES);
    UNROLL
    for (unsigned b = 0; b < ZR_PACK_BLOCK / ZR_PACK_LANES; b++) {
        float number = own[b * ZR_PACK_LANES + l];
        squares = fma((double)number, (double)number, squares);
        word |= (uint32_t)(number < 0) << b;
    }
    UNROLL
    for (unsigned from = 0; from < ZR_PACK_LANES; from++)
        sum += __shfl_sync(ALL_LANES, squares, from);
    const bool finite = isfinite(sum);
    const uint32_t scale = finite ? bits_of_float((float)sqrt(sum / (double)n)) : ZR_PACK_NAN;
    if (lane < ZR_PACK_LANES)
        word_put(out, 1 + lane, word, aligned);
    else if (lane == ZR_PACK_LANES)
        word_put(out, 0, scale, aligned);
    EACH_NUMBER(p, k) sent->at[p][k] = float_of_bits(scale ^ (uint32_t)(x->at[p][k] < 0) << 31);
    return finite;
}

DEVICE void decode_onebit(const unsigned char *in, bool aligned, struct numbers *x)
{
    const unsigned lane = lane_of_thread();
    const uint32_t own = lane <= ZR_PACK_LANES ? word_get(in, lane, aligned) : 0,
                   scale = __shfl_sync(ALL_LANES, own, 0);
    UNROLL
    for (unsigned k = 0; k < FOUR; k++) {
        uint32_t word = __shfl_sync(ALL_LANES, own, 1 + FOUR * (lane % PERIOD) + k);
        EACH_PART(p)
        x->at[p][k] = float_of_bits(scale ^ (word >> (p * (WARP / PERIOD) + lane / PERIOD) << 31));
    }
}

/* ---- Integers ------------------------------------------------------------------------------------------ */

/* Integers of `bits` bits whose groups are `parts` parts each: a word for each part, one of them in each
 * byte, and the words of scales, which the first lanes write. */
DEVICE bool encode_integers(const struct numbers *x, unsigned bits, unsigned parts, unsigned char *out,
                            bool aligned, uint32_t *words, struct numbers *sent)
{
    const float levels = (float)((1 << (bits - 1)) - 1);
    const unsigned lane = lane_of_thread();
    uint32_t own_scale = 0;
    bool finite = true;
    UNROLL
    for (unsigned g = 0; g < PARTS / parts; g++) {
        uint32_t most = 0;
        float inverse;
        UNROLL
        for (unsigned p = g * parts; p < (g + 1) * parts; p++)
            UNROLL for (unsigned k = 0; k < FOUR; k++)
            {
                uint32_t size = zr_pack_size(x->at[p][k]);
                most = size > most ? size : most;
            }
        most = warp_max_bits(most);
        const float scale = zr_pack_scale(most, levels, &inverse);
        const bool good = most < ZR_PACK_INFINITY;
        own_scale = lane == g ? bits_of_float(scale) : own_scale;
        finite = finite && good;
        UNROLL
        for (unsigned p = g * parts; p < (g + 1) * parts; p++) {
            words[p] = 0;
            UNROLL
            for (unsigned k = 0; k < FOUR; k++) {
                uint32_t code = good ? zr_pack_integer(x->at[p][k] * inverse) & ((1u << bits) - 1) : 0;
                words[p] |= code << 8 * k;
                sent->at[p][k] = (bits == 8 ? (float)(int8_t)code : zr_pack_nibble(code)) * scale;
            }
        }
    }
    if (lane < PARTS / parts)
        word_put(out, lane, own_scale, aligned);
    return finite;
}

DEVICE bool encode_int8(const struct numbers *x, unsigned char *out, bool aligned, struct numbers *sent)
{
    uint32_t words[PARTS];
    const bool finite = encode_integers(x, 8, 2, out, aligned, words, sent);
    EACH_PART(p) word_put(out, 2 + p * WARP + lane_of_thread(), words[p], aligned);
    return finite;
}

DEVICE void decode_int8(const unsigned char *in, bool aligned, struct numbers *x)
{
    EACH_PART(p)
    {
        const float scale = float_of_bits(word_get(in, p / 2, aligned));
        const uint32_t word = word_get(in, 2 + p * WARP + lane_of_thread(), aligned);
        UNROLL
        for (unsigned k = 0; k < FOUR; k++)
            x->at[p][k] = (float)(int8_t)(word >> 8 * k) * scale;
    }
}

/* A byte has a number of the lower half of the lanes and, in its high bits, that of the lane 16 further on:
 * each lane writes the codes of two parts, and the other one those of the other two. */
DEVICE bool encode_int4(const struct numbers *x, unsigned char *out, bool aligned, struct numbers *sent)
{
    enum { HALF = WARP / 2 };
    uint32_t words[PARTS];
    const bool finite = encode_integers(x, 4, 1, out, aligned, words, sent), upper = lane_of_thread() >= HALF;
    UNROLL
    for (unsigned p = 0; p < PARTS / 2; p++) {
        uint32_t own = upper ? words[PARTS / 2 + p] : words[p],
                 given = upper ? words[p] : words[PARTS / 2 + p],
                 taken = __shfl_xor_sync(ALL_LANES, given, HALF);
        word_put(out, PARTS + (upper ? PARTS / 2 + p : p) * HALF + lane_of_thread() % HALF,
                 upper ? taken | own << 4 : own | taken << 4, aligned);
    }
    return finite;
}

DEVICE void decode_int4(const unsigned char *in, bool aligned, struct numbers *x)
{
    enum { HALF = WARP / 2 };
    EACH_PART(p)
    {
        const float scale = float_of_bits(word_get(in, p, aligned));
        const uint32_t word =
            word_get(in, PARTS + p * HALF + lane_of_thread() % HALF, aligned) >> lane_of_thread() / HALF * 4;
        UNROLL
        for (unsigned k = 0; k < FOUR; k++)
            x->at[p][k] = zr_pack_nibble(word >> 8 * k) * scale;
    }
}

/* The Hadamard transform of each 32 numbers that are 16 apart: those of every fourth lane, in all parts. */
DEVICE void rotate(struct numbers *x)
{
    UNROLL
    for (unsigned step = PERIOD; step < WARP; step *= 2)
        EACH_NUMBER(p, k)
        {
            float other = __shfl_xor_sync(ALL_LANES, x->at[p][k], step);
            x->at[p][k] = lane_of_thread() & step ? other - x->at[p][k] : x->at[p][k] + other;
        }
    UNROLL
    for (unsigned step = 1; step < PARTS; step *= 2)
        EACH_NUMBER(p, k)
    if (!(p & step)) {
        float a = x->at[p][k], b = x->at[p + step][k];
        x->at[p][k] = a + b;
        x->at[p + step][k] = a - b;
    }
}

DEVICE bool encode_int4_rotated(const struct numbers *x, unsigned char *out, bool aligned,
                                struct numbers *sent, bool keeps)
{
    struct numbers rotated;
    EACH_NUMBER(p, k) rotated.at[p][k] = x->at[p][k] * 0x1p-5f;
    rotate(&rotated);
    const bool finite = encode_int4(&rotated, out, aligned, sent);
    if (keeps)
        rotate(sent);
    return finite;
}

/* ---- MX fp8 -------------------------------------------------------------------------------------------- */

DEVICE bool encode_mxfp8(const struct numbers *x, unsigned char *out, bool aligned, struct numbers *sent)
{
    const unsigned lane = lane_of_thread(), octet = lane / OCTET;
    uint32_t own_exponent = 0;
    bool good = true;
    EACH_PART(p)
    {
        uint32_t most = 0, word = 0;
        UNROLL
        for (unsigned k = 0; k < FOUR; k++) {
            uint32_t size = zr_pack_size(x->at[p][k]);
            most = size > most ? size : most;
        }
        UNROLL
        for (unsigned step = 1; step < OCTET; step *= 2) {
            uint32_t theirs = __shfl_xor_sync(ALL_LANES, most, step);
            most = theirs > most ? theirs : most;
        }
        const uint32_t exponent = zr_mx_exponent(most);
        const float inverse = zr_mx_inverse(exponent), scale = zr_mx_scale(exponent);
        own_exponent = lane % OCTET == p ? exponent : own_exponent;
        good = good && exponent != ZR_MX_NAN;
        UNROLL
        for (unsigned k = 0; k < FOUR; k += 2) {
            uint32_t codes = fp8_codes(x->at[p][k] * inverse, x->at[p][k + 1] * inverse, ZR_FP8_E4M3);
            codes = exponent == ZR_MX_NAN ? 0 : codes;
            fp8_values(codes, &sent->at[p][k], &sent->at[p][k + 1]);
            sent->at[p][k] *= scale;
            sent->at[p][k + 1] *= scale;
            word |= codes << 8 * k;
        }
        word_put(out, ZR_MX_GROUPS / 4 + p * WARP + lane, word, aligned);
    }
    own_exponent <<= 8 * octet; /* a word has the exponents of a part */
    UNROLL
    for (unsigned step = OCTET; step < WARP; step *= 2)
        own_exponent |= __shfl_xor_sync(ALL_LANES, own_exponent, step);
    if (lane < PARTS)
        word_put(out, lane, own_exponent, aligned);
    return __ballot_sync(ALL_LANES, good) == ALL_LANES;
}

DEVICE void decode_mxfp8(const unsigned char *in, bool aligned, struct numbers *x)
{
    EACH_PART(p)
    {
        const uint32_t word = word_get(in, ZR_MX_GROUPS / 4 + p * WARP + lane_of_thread(), aligned),
                       exponents = word_get(in, p, aligned);
        const float scale = zr_mx_scale(exponents >> lane_of_thread() / OCTET * 8 & 0xff);
        UNROLL
        for (unsigned k = 0; k < FOUR; k += 2) {
            fp8_values(word >> 8 * k, &x->at[p][k], &x->at[p][k + 1]);
            x->at[p][k] *= scale;
            x->at[p][k + 1] *= scale;
        }
    }
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

/* keeps: `sent` is used. */
DEVICE bool encode(enum zr_packing packing, const struct numbers *x, size_t n, unsigned char *out,
                   bool aligned, struct numbers *sent, bool keeps)
{
    switch (packing) {
    case ZR_PACKING_ONEBIT:
        return encode_onebit(x, n, out, aligned, sent);
    case ZR_PACKING_INT8:
        return encode_int8(x, out, aligned, sent);
    case ZR_PACKING_INT4:
        return encode_int4(x, out, aligned, sent);
    case ZR_PACKING_INT4_ROTATED:
        return encode_int4_rotated(x, out, aligned, sent, keeps);
    default:
        return encode_mxfp8(x, out, aligned, sent);
    }
}

DEVICE void decode(enum zr_packing packing, const unsigned char *in, bool aligned, struct numbers *x)
{
    switch (packing) {
    case ZR_PACKING_ONEBIT:
        decode_onebit(in, aligned, x);
        break;
    case ZR_PACKING_INT8:
        decode_int8(in, aligned, x);
        break;
    case ZR_PACKING_INT4:
        decode_int4(in, aligned, x);
        break;
    case ZR_PACKING_INT4_ROTATED:
        decode_int4(in, aligned, x);
        rotate(x);
        break;
    default:
        decode_mxfp8(in, aligned, x);
    }
}

DEVICE void pack_block(const struct zr_pack *a, enum zr_packing packing, bool aligned)
{
    const struct zr_numbers errors = {a->error, ZR_PRECISION_FP32};
    const struct place place =
        place_of(a->n, fours_begin(&a->from) && fours_begin(&a->minus) && fours_begin(&errors));
    unsigned char *out = (unsigned char *)a->to + place.first / ZR_PACK_BLOCK * zr_pack_block_bytes(packing);
    struct numbers x, sent;
    if (place.n == 0)
        return;
    x = block_get(&a->from, place);
    if (a->minus.at) {
        struct numbers minus = block_get(&a->minus, place);
        EACH_NUMBER(p, k) x.at[p][k] -= minus.at[p][k];
    }
    if (a->error) {
        struct numbers error = block_get(&errors, place);
        EACH_NUMBER(p, k) x.at[p][k] += error.at[p][k];
    }
    if (!encode(packing, &x, place.n, out, aligned, &sent, a->error != NULL) || !a->error)
        return;
    EACH_NUMBER(p, k) sent.at[p][k] = x.at[p][k] - sent.at[p][k];
    block_put(&errors, place, &sent);
}

DEVICE void unpack_block(const struct cuda_unpack *a, enum zr_packing packing, bool aligned)
{
    const struct place place = place_of(a->n, fours_begin(&a->to));
    const size_t first = place.first / ZR_PACK_BLOCK * zr_pack_block_bytes(packing);
    struct numbers x = {{{0}}};
    if (place.n == 0)
        return;
    for (unsigned s = 0; s < a->count; s++) {
        struct numbers next;
        decode(packing, (const unsigned char *)a->from[s] + first, aligned, &next);
        EACH_NUMBER(p, k) x.at[p][k] = s == 0 ? next.at[p][k] : x.at[p][k] + next.at[p][k];
    }
    EACH_NUMBER(p, k) x.at[p][k] *= a->scale;
    if (a->accumulate) {
        struct numbers old = block_get(&a->to, place);
        EACH_NUMBER(p, k) x.at[p][k] += old.at[p][k];
    }
    block_put(&a->to, place, &x);
}

#define PACKING(name, packing)                                                                               \
    KERNEL(pack_##name, struct zr_pack, CUDA_THREADS)                                                        \
    {                                                                                                        \
        if ((uintptr_t)a.to % sizeof(uint32_t) == 0)                                                         \
            pack_block(&a, packing, true);                                                                   \
        else                                                                                                 \
            pack_block(&a, packing, false);                                                                  \
    }                                                                                                        \
    KERNEL(unpack_##name, struct cuda_unpack, CUDA_THREADS)                                                  \
    {                                                                                                        \
        if (a.aligned)                                                                                       \
            unpack_block(&a, packing, true);                                                                 \
        else                                                                                                 \
            unpack_block(&a, packing, false);                                                                \
    }
PACKING(onebit, ZR_PACKING_ONEBIT)
PACKING(int8, ZR_PACKING_INT8)
PACKING(int4, ZR_PACKING_INT4)
PACKING(int4_rotated, ZR_PACKING_INT4_ROTATED)
PACKING(mxfp8, ZR_PACKING_MXFP8)
