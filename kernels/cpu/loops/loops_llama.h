/* loops_llama.h: root mean square norm, rotary position embedding, SwiGLU. Part of loops_body.h. */

/* ---- Root mean square norm ----------------------------------------------------------------------------- */

/* Offset of a norm's row. */
VF_INLINE size_t norm_row(const struct zr_norm_heads *heads, size_t stride, size_t row, size_t channels)
{
    return heads->heads ? row / heads->heads * stride + row % heads->heads * channels : row * channels;
}

static void rmsnorm_forward(const void *args, size_t from_row, size_t to_row)
{
    const struct zr_rmsnorm_forward *work = args;
    size_t n = work->channels;
    for (size_t row = from_row; row < to_row; row++) {
        const el *x = (const el *)work->x + norm_row(&work->heads, work->heads.x_stride, row, n),
                 *w = work->w;
        el *y = (el *)work->y + norm_row(&work->heads, work->heads.y_stride, row, n);
        vf squares = vf_set(0.0f);
        for (size_t i = 0; i < n; i += VF_LANES) {
            vf v = el_get(x + i, n - i);
            squares = vf_fma(v, v, squares);
        }
        float rstd = 1.0f / sqrtf(vf_sum(squares) / (float)n + work->epsilon);
        for (size_t i = 0; i < n; i += VF_LANES)
            el_put(y + i, n - i,
                   el_get(x + i, n - i) * vf_set(rstd) * (el_get(w + i, n - i) + vf_set(work->w_offset)));
        work->rstd[row] = rstd;
    }
}

static void residual_rmsnorm(const void *args, size_t from_row, size_t to_row)
{
    const struct zr_residual_rmsnorm *work = args;
    struct zr_rmsnorm_forward norm = work->norm;
    size_t n = norm.channels;
    norm.x = work->sum;
    for (size_t row = from_row; row < to_row; row++) {
        add_elements(n, (const el *)work->a + row * n, (const el *)work->b + row * n,
                     (el *)work->sum + row * n);
        rmsnorm_forward(&norm, row, row + 1);
    }
}

static void rmsnorm_backward(const void *args, size_t from_row, size_t to_row)
{
    const struct zr_rmsnorm_backward *work = args;
    size_t n = work->channels;
    for (size_t row = from_row; row < to_row; row++) {
        size_t at = norm_row(&work->heads, work->heads.x_stride, row, n);
        const el *x = (const el *)work->x + at, *w = work->w,
                 *dy = (const el *)work->dy + norm_row(&work->heads, work->heads.y_stride, row, n);
        el *dx = (el *)work->dx + at;
        vf rstd = vf_set(work->rstd[row]), along = vf_set(0.0f), offset = vf_set(work->w_offset);
        for (size_t i = 0; i < n; i += VF_LANES)
            along = vf_fma(el_get(dy + i, n - i) * (el_get(w + i, n - i) + offset),
                           el_get(x + i, n - i) * rstd, along);
        vf along_mean = vf_set(vf_sum(along) / (float)n);
        for (size_t i = 0; i < n; i += VF_LANES) {
            vf g = el_get(dy + i, n - i) * (el_get(w + i, n - i) + offset),
               normal = el_get(x + i, n - i) * rstd;
            el_put(dx + i, n - i,
                   el_onto(dx + i, n - i, formula_rmsnorm_backward(rstd, g, normal, along_mean),
                           work->accumulate_dx));
        }
    }
}

/* dw of the channels [from, to), over all rows in blocks of 64 added in order. */
static void rmsnorm_backward_columns(const void *args, size_t from, size_t to)
{
    const struct zr_rmsnorm_backward *work = args;
    enum { BLOCK = 64 };
    const el *x = work->x, *dy = work->dy;
    el *dw_out = work->dw;
    for (size_t c = from; c < to; c += VF_LANES) {
        size_t left = to - c;
        vf dw = work->accumulate ? el_get(dw_out + c, left) : vf_set(0.0f);
        for (size_t block = 0; block < work->rows; block += BLOCK) {
            size_t end = work->rows - block < BLOCK ? work->rows : block + BLOCK;
            vf sum = vf_set(0.0f);
            for (size_t row = block; row < end; row++) {
                size_t at = c + norm_row(&work->heads, work->heads.x_stride, row, work->channels),
                       d = c + norm_row(&work->heads, work->heads.y_stride, row, work->channels);
                sum = vf_fma(el_get(dy + d, left), el_get(x + at, left) * vf_set(work->rstd[row]), sum);
            }
            dw += sum;
        }
        el_put(dw_out + c, left, dw);
    }
}

/* ---- Rotary position embedding ------------------------------------------------------------------------- */

/* Rotates the pairs (first[i], second[i]) of one head by the angles of one token. */
static void turn(el *first, el *second, size_t half, const float *cosines, const float *sines, bool inverse)
{
    for (size_t i = 0; i < half; i += VF_LANES) {
        size_t left = half - i;
        vf a = el_get(first + i, left), b = el_get(second + i, left);
        vf c = vf_get(cosines + i, left), s = vf_get(sines + i, left) * vf_set(inverse ? -1.0f : 1.0f);
        formula_turn(&a, &b, c, s);
        el_put(first + i, left, a);
        el_put(second + i, left, b);
    }
}

static void rotary(const void *args, size_t from_row, size_t to_row)
{
    const struct zr_rotary *work = args;
    size_t half = work->width / 2, head_stride = work->head_stride ? work->head_stride : work->width;
    for (size_t row = from_row; row < to_row; row++) {
        size_t position = work->positions ? (size_t)work->positions[row] : row % work->sequence,
               angles = position * half;
        for (size_t head = 0; head < work->heads; head++) {
            el *x = (el *)work->x + row * work->stride + head * head_stride;
            turn(x, x + half, half, work->cosines + angles, work->sines + angles, work->inverse);
        }
    }
}

/* ---- SwiGLU -------------------------------------------------------------------------------------------- */

static void swiglu_forward(const void *args, size_t from, size_t to)
{
    const struct zr_swiglu_forward *work = args;
    const el *gate = work->gate, *up = work->up;
    for (size_t i = from; i < to; i += VF_LANES) {
        el_put((el *)work->y + i, to - i,
               formula_swiglu(work->gelu, el_get(gate + i, to - i), el_get(up + i, to - i)));
    }
}

static void swiglu_backward(const void *args, size_t from, size_t to)
{
    const struct zr_swiglu_backward *work = args;
    const el *gate = work->gate, *up = work->up, *dy = work->dy;
    for (size_t i = from; i < to; i += VF_LANES) {
        size_t left = to - i;
        vf dgate, dup;
        formula_swiglu_backward(work->gelu, el_get(gate + i, left), el_get(up + i, left),
                                el_get(dy + i, left), &dgate, &dup);
        el_put((el *)work->dup + i, left, dup);
        el_put((el *)work->dgate + i, left, dgate);
    }
}
