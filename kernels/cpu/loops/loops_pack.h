/* loops_pack.h: blocks of ZR_PACK_BLOCK numbers as signs or small numbers. Part of loops_body.h. Every
 * instruction set gives the same bits: sums have fixed lanes, and all else is exact or rounded once. */

VF_INLINE uint32_t pack_largest(const float *x, size_t n)
{
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t size = (int32_t)zr_pack_size(x[i]);
        most = size > most ? size : most;
    }
    return (uint32_t)most;
}

/* ---- Signs --------------------------------------------------------------------------------------------- */

/* The mean square is summed in doubles, where squares of floats neither overflow nor are rounded. Bit b of
 * word l is the sign of number 16 b + l. */
static bool pack_onebit(const float *x, size_t count, unsigned char *out)
{
    vd lanes[ZR_PACK_LANES / VD_LANES];
    double sums[ZR_PACK_LANES], sum = 0;
    uint32_t words[ZR_PACK_LANES] = {0};
    for (size_t l = 0; l < ZR_PACK_LANES / VD_LANES; l++)
        lanes[l] = vd_zero();
    for (unsigned b = 0; b < ZR_PACK_BLOCK / ZR_PACK_LANES; b++, x += ZR_PACK_LANES) {
        for (size_t l = 0; l < ZR_PACK_LANES / VD_LANES; l++) {
            vd v = vd_widen(x + l * VD_LANES);
            lanes[l] += v * v;
        }
        for (size_t l = 0; l < ZR_PACK_LANES; l++)
            words[l] |= (uint32_t)(x[l] < 0) << b;
    }
    for (size_t l = 0; l < ZR_PACK_LANES / VD_LANES; l++)
        vd_store(sums + l * VD_LANES, lanes[l]);
    for (size_t l = 0; l < ZR_PACK_LANES; l++)
        sum += sums[l];
    bool finite = isfinite(sum);
    float scale = finite ? (float)sqrt(sum / (double)count) : zr_fp8_float_of(ZR_PACK_NAN);
    memcpy(out, &scale, sizeof scale);
    memcpy(out + sizeof scale, words, sizeof words);
    return finite;
}

static void unpack_onebit(const unsigned char *in, float *x)
{
    uint32_t words[ZR_PACK_LANES], scale;
    memcpy(&scale, in, sizeof scale);
    memcpy(words, in + sizeof scale, sizeof words);
    for (size_t b = 0; b < ZR_PACK_BLOCK / ZR_PACK_LANES; b++)
        for (size_t l = 0; l < ZR_PACK_LANES; l++)
            x[b * ZR_PACK_LANES + l] = zr_fp8_float_of(scale ^ (words[l] >> b << 31));
}

/* ---- Integers ------------------------------------------------------------------------------------------ */

/* Returns whether all numbers of the group are finite. */
VF_INLINE bool pack_scale(uint32_t most, float levels, unsigned char *out, float *inverse)
{
    float scale = zr_pack_scale(most, levels, inverse);
    memcpy(out, &scale, sizeof scale);
    return most < ZR_PACK_INFINITY;
}

VF_INLINE float pack_scale_of(const unsigned char *in, size_t group)
{
    float scale;
    memcpy(&scale, in + group * sizeof scale, sizeof scale);
    return scale;
}

static bool pack_int8(const float *x, size_t count, unsigned char *out)
{
    enum { GROUP = ZR_PACK_BLOCK / 2 };
    unsigned char *codes = out + 2 * sizeof(float);
    bool finite = true;
    (void)count;
    for (size_t g = 0; g < 2; g++, x += GROUP, codes += GROUP) {
        float inverse;
        bool good = pack_scale(pack_largest(x, GROUP), 127, out + g * sizeof(float), &inverse);
        if (good)
            for (size_t i = 0; i < GROUP; i++)
                codes[i] = (unsigned char)zr_pack_integer(x[i] * inverse);
        else
            memset(codes, 0, GROUP);
        finite = finite && good;
    }
    return finite;
}

static void unpack_int8(const unsigned char *in, float *x)
{
    enum { GROUP = ZR_PACK_BLOCK / 2 };
    const unsigned char *codes = in + 2 * sizeof(float);
    for (size_t g = 0; g < 2; g++, x += GROUP, codes += GROUP) {
        float scale = pack_scale_of(in, g);
        for (size_t i = 0; i < GROUP; i++)
            x[i] = (float)(int8_t)codes[i] * scale;
    }
}

/* A byte has number i of a group in its low half, and number i + GROUP / 2 in the high one. */
static bool pack_int4(const float *x, size_t count, unsigned char *out)
{
    enum { GROUP = ZR_PACK_BLOCK / 4 };
    unsigned char *codes = out + 4 * sizeof(float);
    bool finite = true;
    (void)count;
    for (size_t g = 0; g < 4; g++, x += GROUP, codes += GROUP / 2) {
        float inverse;
        bool good = pack_scale(pack_largest(x, GROUP), 7, out + g * sizeof(float), &inverse);
        if (good)
            for (size_t i = 0; i < GROUP / 2; i++)
                codes[i] = (unsigned char)((zr_pack_integer(x[i] * inverse) & 0xf) |
                                           zr_pack_integer(x[i + GROUP / 2] * inverse) << 4);
        else
            memset(codes, 0, GROUP / 2);
        finite = finite && good;
    }
    return finite;
}

static void unpack_int4(const unsigned char *in, float *x)
{
    enum { GROUP = ZR_PACK_BLOCK / 4 };
    const unsigned char *codes = in + 4 * sizeof(float);
    for (size_t g = 0; g < 4; g++, x += GROUP, codes += GROUP / 2) {
        float scale = pack_scale_of(in, g);
        for (size_t i = 0; i < GROUP / 2; i++) {
            x[i] = zr_pack_nibble(codes[i]) * scale;
            x[i + GROUP / 2] = zr_pack_nibble(codes[i] >> 4) * scale;
        }
    }
}

/* ---- MX fp8 -------------------------------------------------------------------------------------------- */

static bool pack_mxfp8(const float *x, size_t count, unsigned char *out)
{
    unsigned char *codes = out + ZR_MX_GROUPS;
    bool finite = true;
    (void)count;
    for (size_t g = 0; g < ZR_MX_GROUPS; g++, x += ZR_MX_GROUP, codes += ZR_MX_GROUP) {
        const uint32_t exponent = zr_mx_exponent(pack_largest(x, ZR_MX_GROUP));
        out[g] = (unsigned char)exponent;
        finite = finite && exponent != ZR_MX_NAN;
        if (exponent == ZR_MX_NAN) {
            memset(codes, 0, ZR_MX_GROUP);
            continue;
        }
        const float inverse = zr_mx_inverse(exponent);
        for (size_t i = 0; i < ZR_MX_GROUP; i++)
            codes[i] = zr_fp8_round(x[i] * inverse, ZR_FP8_E4M3);
    }
    return finite;
}

static void unpack_mxfp8(const unsigned char *in, float *x)
{
    const unsigned char *codes = in + ZR_MX_GROUPS;
    for (size_t g = 0; g < ZR_MX_GROUPS; g++, x += ZR_MX_GROUP, codes += ZR_MX_GROUP) {
        const float scale = zr_mx_scale(in[g]);
        for (size_t i = 0; i < ZR_MX_GROUP; i++)
            x[i] = zr_fp8_value(codes[i], ZR_FP8_E4M3) * scale;
    }
}

/* ---- Rotation ------------------------------------------------------------------------------------------ */

/* Sums and differences of numbers that are `step`, 2 step .. apart, of `count` numbers in registers. */
VF_INLINE void pack_rotate_by(float *x, size_t step, size_t count)
{
    for (size_t first = 0; first < ZR_PACK_BLOCK; first += count * step)
        for (size_t i = first; i < first + step; i += VF_LANES) {
            vf v[8];
            for (size_t k = 0; k < count; k++)
                v[k] = vf_load(x + i + k * step);
            for (size_t half = 1; half < count; half *= 2)
                for (size_t k = 0; k < count; k++)
                    if ((k & half) == 0) {
                        vf sum = v[k] + v[k + half];
                        v[k + half] = v[k] - v[k + half];
                        v[k] = sum;
                    }
            for (size_t k = 0; k < count; k++)
                vf_store(x + i + k * step, v[k]);
        }
}

/* The Hadamard transform of each 32 numbers that are 16 apart; twice, it multiplies by 32. It spreads a large
 * number over all 32, whose group then has a smaller scale. */
static void pack_rotate(float *x)
{
    pack_rotate_by(x, ZR_PACK_LANES, 8);
    pack_rotate_by(x, 8 * ZR_PACK_LANES, 4);
}

static bool pack_int4_rotated(const float *x, size_t count, unsigned char *out)
{
    float rotated[ZR_PACK_BLOCK];
    for (size_t i = 0; i < ZR_PACK_BLOCK; i++)
        rotated[i] = x[i] * 0x1p-5f; /* exact, and sums of 32 do not overflow */
    pack_rotate(rotated);
    return pack_int4(rotated, count, out);
}

static void unpack_int4_rotated(const unsigned char *in, float *x)
{
    unpack_int4(in, x);
    pack_rotate(x);
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

/* encode() returns whether all numbers are finite; the numbers after `count` are zeros. */
static const struct {
    bool (*encode)(const float *x, size_t count, unsigned char *out);
    void (*decode)(const unsigned char *in, float *x);
} packings[ZR_PACKINGS_COUNT] = {[ZR_PACKING_ONEBIT] = {pack_onebit, unpack_onebit},
                                 [ZR_PACKING_INT8] = {pack_int8, unpack_int8},
                                 [ZR_PACKING_INT4] = {pack_int4, unpack_int4},
                                 [ZR_PACKING_INT4_ROTATED] = {pack_int4_rotated, unpack_int4_rotated},
                                 [ZR_PACKING_MXFP8] = {pack_mxfp8, unpack_mxfp8}};

/* The numbers of a block to pack, zeros behind the last one. */
VF_INLINE void pack_load(const struct zr_pack *a, size_t at, size_t count, float *x)
{
    if (count < ZR_PACK_BLOCK)
        memset(x, 0, ZR_PACK_BLOCK * sizeof *x);
    for (size_t i = 0; i < count; i += VF_LANES) {
        size_t left = count - i;
        vf v = gradient_get(&a->from, at + i, left);
        if (a->minus.at != NULL)
            v -= gradient_get(&a->minus, at + i, left);
        if (a->error != NULL)
            v += vf_get(a->error + at + i, left);
        vf_put(x + i, left, v);
    }
}

/* Threads share args->nonfinite. */
static void note_nonfinite(const struct zr_pack *a, size_t at, size_t count, const float *x)
{
    size_t i = 0;
    while (i < count && isfinite(x[i]))
        i++;
    size_t known = __atomic_load_n(a->nonfinite, __ATOMIC_RELAXED);
    while (
        i < count && at + i < known &&
        !__atomic_compare_exchange_n(a->nonfinite, &known, at + i, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* [from, to) begins at a block. */
static void pack(const void *args, size_t from, size_t to)
{
    const struct zr_pack *a = args;
    const size_t bytes = zr_pack_bytes(a->packing, 1);
    unsigned char *out = (unsigned char *)a->to + from / ZR_PACK_BLOCK * bytes;
    for (size_t at = from; at < to; at += ZR_PACK_BLOCK, out += bytes) {
        const size_t count = to - at < ZR_PACK_BLOCK ? to - at : ZR_PACK_BLOCK;
        float x[ZR_PACK_BLOCK], sent[ZR_PACK_BLOCK];
        pack_load(a, at, count, x);
        const bool finite = packings[a->packing].encode(x, count, out);
        if (!finite && a->nonfinite != NULL)
            note_nonfinite(a, at, count, x);
        if (!finite || a->error == NULL)
            continue;
        packings[a->packing].decode(out, sent);
        for (size_t i = 0; i < count; i += VF_LANES)
            vf_put(a->error + at + i, count - i, vf_load(x + i) - vf_load(sent + i));
    }
}

static void unpack(const void *args, size_t from, size_t to)
{
    const struct zr_unpack *a = args;
    const size_t bytes = zr_pack_bytes(a->packing, 1);
    const vf scale = vf_set(a->scale);
    for (size_t at = from; at < to; at += ZR_PACK_BLOCK) {
        const size_t count = to - at < ZR_PACK_BLOCK ? to - at : ZR_PACK_BLOCK;
        float x[ZR_PACK_BLOCK] = {0}, next[ZR_PACK_BLOCK];
        for (unsigned k = 0; k < a->count; k++) {
            packings[a->packing].decode((const unsigned char *)a->from[k] + at / ZR_PACK_BLOCK * bytes,
                                        k == 0 ? x : next);
            for (size_t i = 0; k > 0 && i < ZR_PACK_BLOCK; i += VF_LANES)
                vf_store(x + i, vf_load(x + i) + vf_load(next + i));
        }
        for (size_t i = 0; i < count; i += VF_LANES) {
            size_t left = count - i;
            vf v = vf_load(x + i) * scale;
            if (a->accumulate)
                v += gradient_get(&a->to, at + i, left);
            if (a->to.precision == ZR_PRECISION_FP32)
                vf_put((float *)a->to.at + at + i, left, v);
            else
                el_put((el *)a->to.at + at + i, left, v);
        }
    }
}
