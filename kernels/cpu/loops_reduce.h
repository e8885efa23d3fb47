/* loops_reduce.h: softmax with cross-entropy, AdamW, sums, searches and conversions. Part of loops_body.h. */

static float dot(size_t n, const float *a, const float *b)
{
    vf sum = vf_set(0.0f);
    for (size_t i = 0; i < n; i += VF_LANES)
        sum = vf_fma(vf_get(a + i, n - i), vf_get(b + i, n - i), sum);
    return vf_sum(sum);
}

/* ---- Softmax and cross-entropy --------------------------------------------------------------- */

/* The sum of exp(x - most), each replaced by its exponential when `keep`; blocks of 4,096 add up in double.
 */
static double exponentials(size_t n, float *x, float most, bool keep)
{
    enum { BLOCK = 4096 };
    double total = 0.0;
    for (size_t block = 0; block < n; block += BLOCK) {
        size_t end = n - block < BLOCK ? n : block + BLOCK,
               whole = block + (end - block) / VF_LANES * VF_LANES;
        vf sum = vf_set(0.0f);
        for (size_t i = block; i < whole; i += VF_LANES) {
            vf e = vf_exp(vf_load(x + i) - vf_set(most));
            sum += e;
            if (keep)
                vf_store(x + i, e);
        }
        total += (double)vf_sum(sum);
        if (whole < end) {
            float lane[VF_LANES];
            vf e = vf_exp(vf_get(x + whole, end - whole) - vf_set(most));
            vf_store(lane, e);
            if (keep)
                vf_put(x + whole, end - whole, e);
            for (size_t i = 0; i < end - whole; i++)
                total += (double)lane[i];
        }
    }
    return total;
}

static float softmax_row(const struct zr_softmax_row *row)
{
    float *x = row->logits;
    size_t n = row->vocabulary, whole = n / VF_LANES * VF_LANES;
    vf most = vf_set(-INFINITY);
    for (size_t i = 0; i < whole; i += VF_LANES)
        most = vf_max(vf_load(x + i), most);
    float largest = vf_largest(most), wanted = x[row->target];
    for (size_t i = whole; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    double total = exponentials(n, x, largest, row->gradient);
    if (row->gradient) {
        vf factor = vf_set((float)((double)row->scale / total));
        for (size_t i = 0; i < n; i += VF_LANES)
            vf_put(x + i, n - i, vf_get(x + i, n - i) * factor);
        x[row->target] -= row->scale;
        memset(x + n, 0, (row->padded - n) * sizeof *x);
    }
    return (float)(zr_real_log(total) + (double)largest - (double)wanted);
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

static void adamw(const struct zr_adamw *how, size_t n, float *parameter, const float *g, float *momentum,
                  float *variance)
{
    const vf gradient_scale = vf_set(how->gradient_scale), beta1 = vf_set(how->beta1),
             beta2 = vf_set(how->beta2);
    const vf rest1 = vf_set(1.0f - how->beta1), rest2 = vf_set(1.0f - how->beta2);
    const vf inverse1 = vf_set(1.0f / how->correction1), inverse2 = vf_set(1.0f / how->correction2);
    const vf epsilon = vf_set(how->epsilon), rate = vf_set(-how->rate), decay = vf_set(how->weight_decay);
    for (size_t i = 0; i < n; i += VF_LANES) {
        size_t left = n - i;
        vf gradient = vf_get(g + i, left) * gradient_scale, p = vf_get(parameter + i, left);
        vf m = vf_fma(beta1, vf_get(momentum + i, left), rest1 * gradient);
        vf v = vf_fma(beta2, vf_get(variance + i, left), rest2 * gradient * gradient);
        vf step = vf_fma(decay, p, m * inverse1 / (vf_sqrt(v * inverse2) + epsilon));
        vf_put(momentum + i, left, m);
        vf_put(variance + i, left, v);
        vf_put(parameter + i, left, vf_fma(rate, step, p));
    }
}

/* ---- Sums and searches ----------------------------------------------------------------------- */

/* Thirty-two sums in double, element i in sum i % 32, folded in halves: the squares are exact in double, so
 * this has the same bits for every instruction set. */
static double sum_of_squares(size_t n, const float *x)
{
    enum { SUMS = 32, VECTORS = SUMS / VD_LANES };
    vd sums[VECTORS];
    double sum[SUMS];
    size_t whole = n / SUMS * SUMS;
    for (size_t v = 0; v < VECTORS; v++)
        sums[v] = vd_zero();
    for (size_t i = 0; i < whole; i += SUMS)
        for (size_t v = 0; v < VECTORS; v++) {
            vd wide = vd_widen(x + i + v * VD_LANES);
            sums[v] += wide * wide;
        }
    for (size_t v = 0; v < VECTORS; v++)
        vd_store(sum + v * VD_LANES, sums[v]);
    for (size_t i = whole; i < n; i++)
        sum[i - whole] += (double)x[i] * (double)x[i];
    for (size_t half = SUMS / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            sum[j] += sum[j + half];
    return sum[0];
}

static size_t find_nonfinite(size_t n, const float *x)
{
    enum { BLOCK = 1024 };
    for (size_t block = 0; block < n; block += BLOCK) {
        size_t end = n - block < BLOCK ? n : block + BLOCK;
        uint32_t bad = 0;
        for (size_t i = block; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            bad |= (bits & 0x7f800000) == 0x7f800000;
        }
        for (size_t i = block; bad && i < end; i++)
            if (!isfinite(x[i]))
                return i;
    }
    return n;
}

/* The communicator's hot loop, for a number of sources known to the compiler. No fused multiply-add: the bits
 * are those of the plain sum, on every instruction set. */
VF_INLINE void sum_sources(size_t n, const float *const *from, const unsigned count, float scale, float *to,
                           bool accumulate)
{
    const float *source[8];
    for (unsigned s = 0; s < count; s++)
        source[s] = from[s];
    for (size_t i = 0; i < n; i += VF_LANES) {
        vf sum = vf_get(source[0] + i, n - i);
        for (unsigned s = 1; s < count; s++)
            sum += vf_get(source[s] + i, n - i);
        sum *= vf_set(scale);
        vf_put(to + i, n - i, vf_onto(to + i, n - i, sum, accumulate));
    }
}

static void sum_in_order(size_t n, const float *const *from, unsigned count, float scale, float *to,
                         bool accumulate)
{
    switch (count) {
    case 0:
        for (size_t i = 0; i < n; i++)
            to[i] = accumulate ? to[i] : 0.0f;
        return;
    case 1:
        sum_sources(n, from, 1, scale, to, accumulate);
        return;
    case 2:
        sum_sources(n, from, 2, scale, to, accumulate);
        return;
    case 3:
        sum_sources(n, from, 3, scale, to, accumulate);
        return;
    case 4:
        sum_sources(n, from, 4, scale, to, accumulate);
        return;
    case 5:
        sum_sources(n, from, 5, scale, to, accumulate);
        return;
    case 6:
        sum_sources(n, from, 6, scale, to, accumulate);
        return;
    case 7:
        sum_sources(n, from, 7, scale, to, accumulate);
        return;
    case 8:
        sum_sources(n, from, 8, scale, to, accumulate);
        return;
    default:
        for (size_t i = 0; i < n; i += VF_LANES) {
            vf sum = vf_get(from[0] + i, n - i);
            for (unsigned s = 1; s < count; s++)
                sum += vf_get(from[s] + i, n - i);
            sum *= vf_set(scale);
            vf_put(to + i, n - i, vf_onto(to + i, n - i, sum, accumulate));
        }
    }
}

/* ---- bf16 ------------------------------------------------------------------------------------ */

/* In whole numbers on every instruction set: AVX512_BF16's own conversion makes denormals zero, and this loop
 * waits for memory anyway. */
static void bf16_from_float(size_t n, const float *from, uint16_t *to)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
        to[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
    }
}

static void bf16_to_float(size_t n, const uint16_t *from, float *to)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}
