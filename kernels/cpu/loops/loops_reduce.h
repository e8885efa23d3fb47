/* loops_reduce.h: softmax with cross-entropy, sums and searches. Part of loops_body.h. */

/* ---- Softmax and cross-entropy ------------------------------------------------------------------------- */

/* Sum of exp(x - most); `keep` stores the exponentials. Blocks of 4,096 are summed in double. */
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

/* Softmax part of row x; if the gradient is computed, exponentials replace the logits. */
static struct zr_softmax_part softmax_part(const struct zr_cross_entropy *a, size_t row)
{
    float *x = (float *)a->logits + row * a->stride;
    size_t n = a->columns, whole = n / VF_LANES * VF_LANES,
           target = (size_t)a->targets[row] - a->first_column;
    vf most = vf_set(-INFINITY);
    for (size_t i = 0; i < whole; i += VF_LANES)
        most = vf_max(vf_load(x + i), most);
    float largest = vf_largest(most), wanted = target < n ? x[target] : 0;
    for (size_t i = whole; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    return (struct zr_softmax_part){exponentials(n, x, largest, a->gradient), largest, wanted};
}

/* Gradient of a row from its exponentials. Element i is written after floats 0 to i have been read. */
static void softmax_gradient(const struct zr_cross_entropy *a, size_t row, double factor)
{
    float *x = (float *)a->logits + row * a->stride;
    size_t n = a->columns, target = (size_t)a->targets[row] - a->first_column;
    vf scale = vf_set((float)factor);
    vf at_target = vf_set(target < n ? x[target] : 0) * scale - vf_set(a->scale);
    el *d = (el *)x;
    for (size_t i = 0; i < n; i += VF_LANES)
        el_put(d + i, n - i, vf_get(x + i, n - i) * scale);
    if (target < n)
        el_put(d + target, 1, at_target);
    memset(d + n, 0, (a->stride - n) * sizeof *d);
}

static void cross_entropy(const void *args, size_t from, size_t to)
{
    const struct zr_cross_entropy *a = args;
    for (size_t row = from; row < to; row++) {
        struct zr_softmax_part own = a->all ? a->parts[row] : softmax_part(a, row), all = own;
        if (a->parts && !a->all) {
            a->parts[row] = own;
            continue;
        }
        double below = 1; /* factor from this part's largest logit to that of all */
        if (a->all) {
            all = a->all[row];
            below = own.most > all.most - 700 ? zr_real_exp((double)own.most - (double)all.most) : 0;
        }
        if (a->gradient)
            softmax_gradient(a, row, below * (double)a->scale / all.sum);
        a->losses[row] = (float)(zr_real_log(all.sum) + (double)all.most - (double)all.target);
    }
}

/* ---- Sums and searches --------------------------------------------------------------------------------- */

/* 32 sums in double, element i in sum i % 32, folded in halves. Squares are exact in double, so the bits are
 * the same on every instruction set. */
static double sum_of_squares(size_t n, const void *numbers)
{
    enum { SUMS = 32, VECTORS = SUMS / VD_LANES };
    const el *x = numbers;
    float wide[SUMS];
    vd sums[VECTORS];
    double sum[SUMS];
    size_t whole = n / SUMS * SUMS;
    for (size_t v = 0; v < VECTORS; v++)
        sums[v] = vd_zero();
    for (size_t i = 0; i < whole; i += SUMS) {
        const float *floats = wide;
        if (el_precision == ZR_PRECISION_FP32)
            floats = (const float *)(const void *)(x + i);
        else
            widen(SUMS, x + i, wide);
        for (size_t v = 0; v < VECTORS; v++) {
            vd doubles = vd_widen(floats + v * VD_LANES);
            sums[v] += doubles * doubles;
        }
    }
    for (size_t v = 0; v < VECTORS; v++)
        vd_store(sum + v * VD_LANES, sums[v]);
    for (size_t i = whole; i < n; i++)
        sum[i - whole] += (double)el_one(x + i) * (double)el_one(x + i);
    for (size_t half = SUMS / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            sum[j] += sum[j + half];
    return sum[0];
}

static size_t find_nonfinite(size_t n, const void *numbers)
{
    enum { BLOCK = 1024 };
    const el *x = numbers;
    for (size_t block = 0; block < n; block += BLOCK) {
        size_t end = n - block < BLOCK ? n : block + BLOCK;
        uint32_t bad = 0;
        for (size_t i = block; i < end; i++) {
            el_bits bits;
            memcpy(&bits, x + i, sizeof bits);
            bad |= (bits & el_infinity) == el_infinity;
        }
        for (size_t i = block; bad && i < end; i++)
            if (!isfinite(el_one(x + i)))
                return i;
    }
    return n;
}

/* The communicator's hot loop, inlined for constant numbers of sources. No fused multiply-add, for the same
 * bits on every instruction set. */
VF_INLINE void sum_sources(const struct zr_sum *s, size_t begin, size_t end, const void *const *from,
                           const unsigned count)
{
    const vf scale = vf_set(s->scale);
    bool wide = s->to.precision == ZR_PRECISION_FP32;
    for (size_t i = begin; i < end; i += VF_LANES) {
        size_t left = end - i;
        vf sum = el_get((const el *)from[0] + i, left);
        for (unsigned k = 1; k < count; k++)
            sum += el_get((const el *)from[k] + i, left);
        sum *= scale;
        if (wide) {
            float *to = (float *)s->to.at + i;
            vf_put(to, left, vf_onto(to, left, sum, s->accumulate));
        } else {
            el *to = (el *)s->to.at + i;
            el_put(to, left, el_onto(to, left, sum, s->accumulate));
        }
    }
}

static void sum(const void *args, size_t begin, size_t end)
{
    const struct zr_sum *s = args;
    const void *from[8];
    for (unsigned k = 0; k < s->count && k < 8; k++)
        from[k] = s->from[k];
    switch (s->count) {
    case 0: {
        size_t bytes = zr_precision_bytes(s->to.precision);
        if (!s->accumulate)
            memset((char *)s->to.at + begin * bytes, 0, (end - begin) * bytes);
        return;
    }
    case 1:
        sum_sources(s, begin, end, from, 1);
        return;
    case 2:
        sum_sources(s, begin, end, from, 2);
        return;
    case 3:
        sum_sources(s, begin, end, from, 3);
        return;
    case 4:
        sum_sources(s, begin, end, from, 4);
        return;
    case 8:
        sum_sources(s, begin, end, from, 8);
        return;
    default:
        sum_sources(s, begin, end, s->from, s->count);
    }
}
