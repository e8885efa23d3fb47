/* loops_optimizers.h: optimizers. Part of loops_body.h. Only AdamW and LAMB fuse operations; the others have
 * the same bits on every instruction set. */

/* ---- AdamW and SGD ------------------------------------------------------------------------------------- */

VF_INLINE vf gradient_get(const struct zr_numbers *gradient, size_t i, size_t n)
{
    return gradient->precision == ZR_PRECISION_FP32 ? vf_get((const float *)gradient->at + i, n)
                                                    : el_get((const el *)gradient->at + i, n);
}

VF_INLINE vf update_gradient(const struct zr_update *u, size_t i, size_t n)
{
    return gradient_get(&u->gradient, i, n);
}

VF_INLINE void update_parameter(const struct zr_update *u, size_t i, size_t n, vf value)
{
    vf_put(u->master + i, n, value);
    if (u->parameter.at != NULL)
        el_put((el *)u->parameter.at + i, n, value);
}

static void update_adamw(const void *args, size_t from, size_t to)
{
    const struct formula_adamw how = formula_adamw_of(&((const struct zr_update_adamw *)args)->how);
    const struct zr_update *u = &((const struct zr_update_adamw *)args)->numbers;
    for (size_t i = from; i < to; i += VF_LANES) {
        size_t left = to - i;
        vf m = vf_get(u->momentum + i, left), v = vf_get(u->variance + i, left);
        vf p = formula_adamw(&how, update_gradient(u, i, left), vf_get(u->master + i, left), &m, &v);
        vf_put(u->momentum + i, left, m);
        vf_put(u->variance + i, left, v);
        update_parameter(u, i, left, p);
    }
}

static void update_sgd(const void *args, size_t from, size_t to)
{
    const struct zr_sgd *how = &((const struct zr_update_sgd *)args)->how;
    const struct zr_update *u = &((const struct zr_update_sgd *)args)->numbers;
    const vf gradient_scale = vf_set(how->gradient_scale), momentum = vf_set(how->momentum_factor);
    const vf rate = vf_set(how->rate), decay = vf_set(how->weight_decay);
    for (size_t i = from; i < to; i += VF_LANES) {
        size_t left = to - i;
        vf p = vf_get(u->master + i, left), gradient = update_gradient(u, i, left) * gradient_scale;
        vf m = momentum * vf_get(u->momentum + i, left) + gradient + decay * p;
        vf_put(u->momentum + i, left, m);
        update_parameter(u, i, left, p - rate * m);
    }
}

/* ---- AdamW in eight bits ------------------------------------------------------------------------------- */

/* Blocks whole; [from, to) begins at a block. */
static void update_adamw8(const void *args, size_t from, size_t to)
{
    enum { BLOCK = ZR_BLOCK8_NUMBERS };
    const struct zr_adamw8_work *work = args;
    const struct formula_adamw how = formula_adamw_of(&work->args->how);
    const struct zr_update *u = &work->args->numbers;
    for (size_t first = from; first < to; first += BLOCK) {
        struct zr_block8 *momentum = &work->args->momentum[first / BLOCK],
                         *variance = &work->args->variance[first / BLOCK];
        size_t count = to - first < BLOCK ? to - first : BLOCK;
        float moments[BLOCK], squares[BLOCK];
        zr_block8_get(work->momentum, momentum, count, moments);
        zr_block8_get(work->variance, variance, count, squares);
        for (size_t i = 0; i < count; i += VF_LANES) {
            size_t left = count - i;
            vf m = vf_get(moments + i, left), v = vf_get(squares + i, left);
            vf p = formula_adamw(&how, update_gradient(u, first + i, left),
                                 vf_get(u->master + first + i, left), &m, &v);
            vf_put(moments + i, left, m);
            vf_put(squares + i, left, v);
            update_parameter(u, first + i, left, p);
        }
        zr_block8_put(work->momentum, count, moments, momentum);
        zr_block8_put(work->variance, count, squares, variance);
    }
}

/* ---- Adafactor ----------------------------------------------------------------------------------------- */

/* Sums of the squares in the columns [from, to). A strip of columns has its sums in the L1 cache. */
static void factor_columns(const void *args, size_t from, size_t to)
{
    enum { STRIP = 32, SUMS = ZR_FACTOR_COLUMN_SUMS };
    const struct zr_factor_sums *a = args;
    const double scale = (double)a->gradient_scale * (double)a->gradient_scale;
    for (size_t strip = from; strip < to; strip += STRIP) {
        size_t strip_end = to - strip < STRIP ? to : strip + STRIP;
        double sums[SUMS][STRIP] = {{0}};
        for (size_t row = a->first / a->columns; row * a->columns < a->first + a->n; row++) {
            size_t at = row * a->columns, begin = at + strip, end = at + strip_end;
            begin = begin > a->first ? begin : a->first;
            end = end < a->first + a->n ? end : a->first + a->n;
            float floats[STRIP + VF_LANES];
            for (size_t i = begin; i < end; i += VF_LANES)
                vf_store(floats + (i - begin), gradient_get(&a->gradient, i - a->first, end - i));
            for (size_t i = begin; i < end; i++)
                sums[row % SUMS][i - at - strip] += (double)floats[i - begin] * (double)floats[i - begin];
        }
        for (size_t column = strip; column < strip_end; column++) {
            double sum = 0;
            for (size_t k = 0; k < SUMS; k++)
                sum += sums[k][column - strip];
            a->column_sums[column] += sum * scale;
        }
    }
}

static void vector_quotients(const struct zr_quotients *q, size_t from, size_t to, float *out)
{
    const struct zr_update *u = q->numbers;
    const vf scale = vf_set(q->how.gradient_scale), share = vf_set(q->how.share),
             least = vf_set(q->how.epsilon1);
    for (size_t i = from; i < to; i += VF_LANES) {
        vf gradient = update_gradient(u, i, to - i) * scale, variance = vf_get(u->variance + i, to - i);
        if (q->moves) {
            variance = formula_moved(variance, gradient, share, least);
            vf_put(u->variance + i, to - i, variance);
        }
        vf_put(out + (i - from), to - i, formula_factored(gradient, variance, least));
    }
}

/* By rows, of which the first and the last may be cut. */
static void factor_quotients(const struct zr_quotients *q, size_t from, size_t to, float *out)
{
    const struct zr_factors *f = q->factors;
    const float least = q->how.epsilon1;
    const vf scale = vf_set(q->how.gradient_scale);
    if (q->numbers->variance != NULL) {
        vector_quotients(q, from, to, out);
        return;
    }
    const float mean = *f->row_mean > least ? *f->row_mean : least;
    for (size_t i = from; i < to;) {
        size_t row = (f->first + i) / f->columns, column = (f->first + i) % f->columns;
        size_t end = to - i < f->columns - column ? to : i + (f->columns - column);
        const vf row_share = vf_set(f->row_factors[row] / mean);
        for (; i < end; i += VF_LANES, column += VF_LANES) {
            vf gradient = update_gradient(q->numbers, i, end - i) * scale;
            vf variance = row_share * vf_get(f->column_factors + column, end - i);
            vf_put(out + (i - from), end - i, formula_factored(gradient, variance, vf_set(least)));
        }
        i = end;
    }
}

static void update_factored(const void *args, size_t from, size_t to)
{
    enum { BLOCK = 1024 };
    const struct zr_factored_work *work = args;
    const struct zr_update *u = work->quotients.numbers;
    const float factor = work->quotients.how.momentum_factor;
    const vf keep = vf_set(work->step.keep), step = vf_set(work->step.step);
    for (size_t block = from; block < to; block += BLOCK) {
        size_t end = to - block < BLOCK ? to : block + BLOCK;
        float quotients[BLOCK];
        factor_quotients(&work->quotients, block, end, quotients);
        for (size_t i = block; i < end; i += VF_LANES) {
            vf change = step * vf_get(quotients + (i - block), end - i);
            if (u->momentum != NULL) {
                change = formula_averaged(vf_get(u->momentum + i, end - i), change, vf_set(factor),
                                          vf_set(1.0f - factor));
                vf_put(u->momentum + i, end - i, change);
            }
            update_parameter(u, i, end - i, vf_get(u->master + i, end - i) * keep - change);
        }
    }
}

/* ---- Muon ---------------------------------------------------------------------------------------------- */

static void muon_direction(const void *args, size_t from, size_t to)
{
    const struct zr_muon_direction *a = args;
    const vf scale = vf_set(a->gradient_scale), factor = vf_set(a->momentum_factor);
    for (size_t i = from; i < to; i += VF_LANES) {
        vf m = vf_get(a->momentum + i, to - i);
        vf direction = formula_muon(gradient_get(&a->gradient, i, to - i) * scale, factor, &m);
        vf_put(a->momentum + i, to - i, m);
        vf_put(a->direction + i, to - i, direction);
    }
}

static void apply_direction(const void *args, size_t from, size_t to)
{
    const struct zr_apply_direction *a = args;
    const struct zr_master_step now = zr_direction_step_of(a);
    const vf keep = vf_set(now.keep), step = vf_set(now.step);
    for (size_t i = from; i < to; i += VF_LANES)
        update_parameter(&a->numbers, i, to - i,
                         vf_get(a->numbers.master + i, to - i) * keep -
                             step * vf_get(a->direction + i, to - i));
}

/* ---- LAMB ---------------------------------------------------------------------------------------------- */

/* Moves momentum and variance, and writes the steps that they give. */
static void lamb_steps(const struct zr_update_adamw *args, size_t from, size_t to, float *out)
{
    const struct formula_adamw how = formula_adamw_of(&args->how);
    const struct zr_update *u = &args->numbers;
    for (size_t i = from; i < to; i += VF_LANES) {
        size_t left = to - i;
        vf m = vf_get(u->momentum + i, left), v = vf_get(u->variance + i, left);
        formula_adamw_move(&how, update_gradient(u, i, left), &m, &v);
        vf_put(u->momentum + i, left, m);
        vf_put(u->variance + i, left, v);
        vf_put(out + (i - from), left, formula_adamw_step(&how, vf_get(u->master + i, left), m, v));
    }
}

static void update_lamb(const void *args, size_t from, size_t to)
{
    const struct formula_adamw how = formula_adamw_of(&((const struct zr_update_adamw *)args)->how);
    const struct zr_update *u = &((const struct zr_update_adamw *)args)->numbers;
    for (size_t i = from; i < to; i += VF_LANES) {
        size_t left = to - i;
        vf p = vf_get(u->master + i, left);
        vf step = formula_adamw_step(&how, p, vf_get(u->momentum + i, left), vf_get(u->variance + i, left));
        update_parameter(u, i, left, num_fma(how.rate, step, p));
    }
}
