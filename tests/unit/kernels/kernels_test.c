/* kernels_test.c: every fp32 operation of every instruction set this processor has against the
 * double-precision reference, on fresh random inputs and odd shapes, for 1, 2 and 3 threads with the same
 * bits.
 *
 * A case returns its error in units of its tolerance (an error is the largest difference as a share of the
 * reference's largest number). Outputs start as NaN, so a word left unwritten shows; guard words lie on both
 * sides; inputs are compared with a copy. */
#include "tests/support/kernels/kernels_cases.h"

/* Rounding grows with the square root of the terms at most; 3e-6 leaves room for some thousand of them. */
static const double tolerance = 3e-6;

static const struct shape shapes[] = {
#ifdef ZR_TEST_ON_CARD
    {1, 1, 15, 3, 9, 257, 320}, {1, 35, 130, 1, 70, 97, 112},  {2, 17, 12, 4, 33, 70, 96},
    {3, 33, 20, 4, 33, 70, 70}, {2, 64, 48, 3, 192, 257, 320},
#else
    {1, 1, 15, 3, 9, 257, 320},     {2, 3, 4, 4, 16, 5, 8},        {1, 17, 15, 3, 60, 257, 320},
    {3, 33, 20, 4, 33, 70, 70},     {2, 64, 48, 3, 192, 257, 320}, {1, 100, 130, 2, 257, 1000, 1024},
    {4, 16, 128, 2, 512, 300, 384}, {2, 67, 64, 1, 256, 97, 112},
#endif
};

/* ---- Cases --------------------------------------------------------------------------------------------- */

static double case_embedding(struct zr_kernel_context *c, const struct shape *s)
{
    struct embedding_shape e = {random_tokens(rows_of(s), s->vocabulary), s->batch, s->sequence, s->channels};
    size_t wpe_rows = s->sequence + 2;
    struct tensor *wte = input(s->padded * s->channels, 0, 1), *wpe = input(wpe_rows * s->channels, 0, 1);
    struct tensor *out = output(rows_of(s) * s->channels), *d = input(rows_of(s) * s->channels, 0, 1);
    struct tensor *dwte = output(wte->n), *dwpe = output(wpe->n);
    embed(kernels, c, &e, wte->at, wpe->at, out->at);
    reference_embedding(&e, wte->real, wpe->real, out->real);
    embed_backward(kernels, c, &e, d->at,
                   &(struct embedding_gradients){dwte->at, dwpe->at, s->padded, wpe_rows, false});
    embed_backward(kernels, c, &e, d->at,
                   &(struct embedding_gradients){dwte->at, dwpe->at, s->padded, wpe_rows, true});
    reference_embedding_backward(&e, d->real, dwte->real, dwpe->real);
    reference_embedding_backward(&e, d->real, dwte->real, dwpe->real);
    return worst(error_of(out), worst(error_of(dwte), error_of(dwpe))) / tolerance;
}

static double case_layernorm(struct zr_kernel_context *c, const struct shape *s)
{
    struct zr_layernorm l = {rows_of(s), s->channels, 0};
    size_t n = l.rows * l.channels;
    struct tensor *x = input(n, 0.5, 2), *w = input(l.channels, 1, 0.5), *b = input(l.channels, 0, 1);
    struct tensor *y = output(n), *mean = output(l.rows), *rstd = output(l.rows), *dy = input(n, 0, 1);
    struct tensor *dx = output(n), *more = in_out(n, 0, 1), *dw = output(l.channels),
                  *db = output(l.channels);
    kernels->layernorm_forward(
        c, &(struct zr_layernorm_forward){l, x->at, w->at, b->at, y->at, mean->at, rstd->at});
    reference_layernorm(&l, x->real, w->real, b->real, y->real, mean->real, rstd->real);
    kernels->layernorm_backward(c,
                                &(struct zr_layernorm_backward){l, x->at, w->at, mean->at, rstd->at, dy->at,
                                                                dx->at, dw->at, db->at, false, false});
    reference_layernorm_backward(&l, x->real, w->real, dy->real, dx->real, dw->real, db->real);
    double first = worst(error_of(dx), worst(error_of(dw), error_of(db)));
    kernels->layernorm_backward(c,
                                &(struct zr_layernorm_backward){l, x->at, w->at, mean->at, rstd->at, dy->at,
                                                                more->at, dw->at, db->at, true, true});
    reference_layernorm_backward(&l, x->real, w->real, dy->real, more->real, dw->real, db->real);
    double second = worst(error_of(more), worst(error_of(dw), error_of(db)));
    return worst(worst(first, second), worst(error_of(y), worst(error_beside(mean, x), error_of(rstd)))) /
           tolerance;
}

static double case_linear(struct zr_kernel_context *c, const struct shape *s)
{
    struct zr_linear l = {.rows = rows_of(s), .in = s->channels, .out = s->wide};
    struct tensor *x = input(l.rows * l.in, 0, 1), *w = input(l.in * l.out, 0, 1), *bias = input(l.out, 0, 1);
    struct tensor *y = output(l.rows * l.out), *bare = output(l.rows * l.out),
                  *dy = input(l.rows * l.out, 0, 1);
    struct tensor *dx = output(x->n), *dw = output(w->n), *db = output(l.out), *lone = output(x->n);
    kernels->linear_forward(c, &(struct zr_linear_forward){l, x->at, w->at, bias->at, y->at, false});
    kernels->linear_forward(c, &(struct zr_linear_forward){l, x->at, w->at, NULL, bare->at, false});
    reference_linear(&l, x->real, w->real, bias->real, y->real);
    reference_linear(&l, x->real, w->real, NULL, bare->real);
    kernels->linear_backward(c, &(struct zr_linear_backward){l, x->at, w->at, dy->at, dx->at, dw->at, db->at,
                                                             false, false, false});
    kernels->linear_backward(
        c, &(struct zr_linear_backward){l, x->at, w->at, dy->at, NULL, dw->at, NULL, false, true, false});
    kernels->linear_backward(
        c, &(struct zr_linear_backward){l, x->at, w->at, dy->at, lone->at, NULL, db->at, false, true, false});
    reference_linear_backward(&l, x->real, w->real, dy->real, dx->real, dw->real, db->real);
    reference_linear_backward(&l, x->real, w->real, dy->real, lone->real, dw->real, db->real);
    return worst(worst(error_of(y), error_of(bare)),
                 worst(worst(error_of(dx), error_of(lone)), worst(error_of(dw), error_of(db)))) /
           tolerance;
}

static struct zr_attention_dropout dropout_of(float rate)
{
    struct zr_dropout_draw *draw = (struct zr_dropout_draw *)in_out(sizeof *draw / sizeof(float), 0, 0)->at;
    *draw = (struct zr_dropout_draw){{0x12345678, 0x9abcdef0}, 7, 1000};
    return (struct zr_attention_dropout){rate, 11, draw};
}

static double attention_with(struct zr_kernel_context *c, const struct shape *s, size_t kv_heads, float scale,
                             size_t window, const int32_t *positions, float dropout)
{
    struct zr_attention a = {.batch = s->batch,
                             .sequence = s->sequence,
                             .channels = s->channels,
                             .heads = s->heads,
                             .kv_heads = kv_heads,
                             .scale = scale,
                             .window = window,
                             .positions = positions,
                             .dropout = dropout_of(dropout)};
    size_t rows = rows_of(s), square = s->batch * s->heads * s->sequence * s->sequence;
    struct tensor *qkv = attention_input(&a), *dout = input(rows * s->channels, 0, 1);
    struct tensor *out = output(rows * s->channels), *lse = output(s->batch * s->heads * s->sequence);
    struct tensor *p = output(square), *again = output(out->n), *lse_again = output(lse->n);
    struct tensor *dqkv = output(qkv->n), *made_again = output(qkv->n);
    kernels->attention_forward(c, &(struct zr_attention_forward){a, qkv->at, out->at, lse->at, p->at});
    kernels->attention_forward(c, &(struct zr_attention_forward){a, qkv->at, again->at, lse_again->at, NULL});
    kernels->attention_backward(
        c, &(struct zr_attention_backward){a, qkv->at, out->at, lse->at, p->at, dout->at, dqkv->at});
    kernels->attention_backward(
        c, &(struct zr_attention_backward){a, qkv->at, out->at, lse->at, NULL, dout->at, made_again->at});
    if (memcmp(out->at, again->at, out->n * 4) != 0 || memcmp(lse->at, lse_again->at, lse->n * 4) != 0 ||
        memcmp(dqkv->at, made_again->at, dqkv->n * 4) != 0)
        return INFINITY; /* keeping p must not change a bit */
    reference_attention(&a, qkv->real, out->real, lse->real, p->real);
    reference_attention_backward(&a, qkv->real, p->real, dout->real, dqkv->real);
    return worst(worst(error_of(out), error_of(lse)), worst(error_of(p), error_of(dqkv))) / tolerance;
}

/* A sequence of two documents has the bits of each document alone. */
static double attention_alone(struct zr_kernel_context *c, const struct shape *s)
{
    size_t t = s->sequence, cut = t * 2 / 5, line = 3 * s->channels;
    struct zr_attention a = {.batch = 1, .sequence = t, .channels = s->channels, .heads = s->heads};
    struct tensor *qkv = attention_input(&a), *dout = input(t * s->channels, 0, 1),
                  *lse = output(t * s->heads);
    struct tensor *out = output(dout->n), *dqkv = output(qkv->n), *lone = output(dout->n),
                  *d = output(qkv->n);
    a.positions = cut ? positions_of(&(struct shape){.batch = 1, .sequence = t}, cut) : NULL;
    kernels->attention_forward(c, &(struct zr_attention_forward){a, qkv->at, out->at, lse->at, NULL});
    kernels->attention_backward(
        c, &(struct zr_attention_backward){a, qkv->at, out->at, lse->at, NULL, dout->at, dqkv->at});
    a.positions = NULL;
    for (size_t from = 0; from < t; from += a.sequence) {
        a.sequence = from < cut ? cut : t - from;
        float *x = (float *)qkv->at + from * line, *y = (float *)lone->at + from * s->channels;
        kernels->attention_forward(c, &(struct zr_attention_forward){a, x, y, lse->at, NULL});
        kernels->attention_backward(c, &(struct zr_attention_backward){a, x, y, lse->at, NULL,
                                                                       (float *)dout->at + from * s->channels,
                                                                       (float *)d->at + from * line});
    }
    return memcmp(out->at, lone->at, tensor_bytes(out)) || memcmp(dqkv->at, d->at, tensor_bytes(dqkv))
               ? INFINITY
               : 0;
}

enum { RANKS_MAX = 4 };

/* Rows of a context rank, [batch, own tokens, line], from those of whole sequences, or to them. */
static void copy_part(const struct shape *s, struct zr_context_part part, size_t line, float *whole,
                      float *own, bool back)
{
    for (size_t i = 0; i < s->batch * part.tokens; i++) {
        size_t token = zr_context_token(part, i % part.tokens);
        float *there = whole + (i / part.tokens * s->sequence + token) * line;
        memcpy(back ? there : own + i * line, back ? own + i * line : there, line * sizeof *own);
    }
}

/* A ring of ranks, one after the other, has the attention of whole sequences, with documents and a window. */
static double attention_ring(struct zr_kernel_context *c, const struct shape *each, unsigned ranks,
                             size_t window)
{
    size_t own = 2 * ((each->sequence + 3) / 4), channels = each->channels, heads = each->heads;
    const struct shape s = {.batch = each->batch, .sequence = own * ranks};
    struct zr_attention a = {.batch = s.batch,
                             .sequence = s.sequence,
                             .channels = channels,
                             .heads = heads,
                             .kv_heads = 1,
                             .window = window,
                             .positions = positions_of(&s, 0),
                             .dropout = dropout_of(window ? 0.25f : 0)};
    size_t line = reference_line(&a), keys = line - channels, rows = s.batch * own,
           all = s.batch * s.sequence;
    struct tensor *qkv = attention_input(&a), *dout = input(all * channels, 0, 1), *out = output(dout->n),
                  *lse = output(all * heads), *p = output(lse->n * s.sequence), *dqkv = output(qkv->n);
    float *x[RANKS_MAX], *kv[RANKS_MAX], *d[RANKS_MAX], *o[RANKS_MAX], *l[RANKS_MAX], *dq[RANKS_MAX],
        *dkv[RANKS_MAX], *positions[RANKS_MAX];
    for (unsigned r = 0; r < ranks; r++) {
        struct zr_context_part part = {ranks, r, own};
        float **const parts[] = {&x[r], &kv[r], &d[r], &o[r], &l[r], &dq[r], &dkv[r], &positions[r]};
        const size_t columns[] = {line, keys, channels, channels, heads, channels, keys, 1};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            *parts[i] = output(rows * columns[i])->at;
            memset(*parts[i], 0, rows * columns[i] * sizeof(float));
        }
        copy_part(&s, part, line, qkv->at, x[r], false);
        copy_part(&s, part, channels, dout->at, d[r], false);
        copy_part(&s, part, 1, (float *)(uintptr_t)a.positions, positions[r], false);
        for (size_t i = 0; i < rows; i++)
            memcpy(kv[r] + i * keys, x[r] + i * line + channels, keys * sizeof(float));
    }
    for (unsigned r = 0; r < 2 * ranks; r++) { /* forward of each rank, then backward */
        unsigned rank = r % ranks;
        struct zr_context_part part = {ranks, rank, own};
        struct zr_attention step = a;
        step.sequence = own;
        step.positions = (const int32_t *)(const void *)positions[rank];
        for (unsigned i = 0; i < ranks; i++) {
            unsigned from = (rank + ranks - i) % ranks;
            step.ring = (struct zr_attention_ring){ranks, rank, from, kv[from], i > 0, dq[rank], dkv[from]};
            if (r < ranks)
                kernels->attention_forward(
                    c, &(struct zr_attention_forward){step, x[rank], o[rank], l[rank], NULL});
            else
                kernels->attention_backward(c, &(struct zr_attention_backward){
                                                   step, x[rank], o[rank], l[rank], NULL, d[rank], x[rank]});
        }
        copy_part(&s, part, channels, out->at, o[rank], true);
        for (size_t unit = 0; unit < s.batch * heads; unit++)
            copy_part(&(struct shape){.batch = 1}, part, 1, (float *)lse->at + unit * s.sequence,
                      l[rank] + unit * own, true);
    }
    for (unsigned r = 0; r < ranks; r++) {
        for (size_t i = 0; i < rows; i++) {
            memcpy(x[r] + i * line, dq[r] + i * channels, channels * sizeof(float));
            memcpy(x[r] + i * line + channels, dkv[r] + i * keys, keys * sizeof(float));
        }
        copy_part(&s, (struct zr_context_part){ranks, r, own}, line, dqkv->at, x[r], true);
    }
    reference_attention(&a, qkv->real, out->real, lse->real, p->real);
    reference_attention_backward(&a, qkv->real, p->real, dout->real, dqkv->real);
    return worst(worst(error_of(out), error_of(lse)), error_of(dqkv)) / tolerance;
}

/* Each head with keys and values of its own, and all with those of one. */
static double case_attention(struct zr_kernel_context *c, const struct shape *s)
{
    double plain = worst(attention_with(c, s, 0, 0, 0, NULL, 0),
                         s->heads > 1 ? attention_with(c, s, 1, 0, 0, random_positions(s), 0.4f) : 0);
    size_t window = 1 + s->sequence / 3; /* ends inside of blocks of queries and of vectors */
    plain = worst(plain, attention_with(c, s, 0, 0.25f, window, random_positions(s), 0));
    plain = worst(plain, attention_with(c, s, 0, 0, 0, NULL, 0.25f));
    if (ON_CARD) /* no rings, and sums by tiles of the whole sequence */
        return plain;
    if (s->sequence > 1)
        plain = worst(plain, worst(attention_ring(c, s, 2, 0), attention_ring(c, s, RANKS_MAX, window)));
    return worst(plain, attention_alone(c, s));
}

static double case_elements(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = rows_of(s) * s->wide + 4099;
    struct tensor *x = input(n, 0, 6), *dy = input(n, 0, 1), *y = output(n), *dx = output(n),
                  *sum = output(n);
    struct tensor *in_place = in_out(n, 0, 1), *filled = output(n), *zeroed = output(n), *copied = output(n);
    kernels->gelu_forward(c, &(struct zr_gelu_forward){n, x->at, y->at, ZR_GELU_TANH});
    kernels->gelu_backward(c, &(struct zr_gelu_backward){n, x->at, dy->at, dx->at, ZR_GELU_TANH});
    bool late_alike = true;
#ifdef ZR_TEST_ON_CARD /* elements that do not begin on 16 bytes */
    struct tensor *late = output(n);
    float *to = (float *)late->at + 1;
    kernels->gelu_forward(c, &(struct zr_gelu_forward){n - 1, (float *)x->at + 1, to, ZR_GELU_TANH});
    late_alike = memcmp(to, (float *)y->at + 1, tensor_bytes(y) - sizeof *to) == 0;
#endif
    double others = 0; /* of the other activations */
    for (int relu = 0; relu < 2; relu++) {
        enum zr_activation activation = relu ? ZR_RELU : ZR_GELU_ERF;
        struct tensor *active = output(n), *slope = output(n);
        kernels->gelu_forward(c, &(struct zr_gelu_forward){n, x->at, active->at, activation});
        kernels->gelu_backward(c, &(struct zr_gelu_backward){n, x->at, dy->at, slope->at, activation});
        for (size_t i = 0; i < n; i++) {
            double v = x->real[i], share = (1 + erf(v * sqrt(0.5))) / 2;
            active->real[i] = relu ? fmax(v, 0) : v * share;
            slope->real[i] = dy->real[i] * (relu ? v > 0 : share + v * exp(-v * v / 2) / sqrt(8 * atan(1)));
        }
        others = worst(others, worst(error_of(active), error_of(slope)));
    }
    if (!ON_CARD) {
        float nan = NAN, kept[] = {0};
        kernels->gelu_forward(c, &(struct zr_gelu_forward){1, &nan, kept, ZR_RELU});
        others = isnan(kept[0]) ? others : INFINITY;
    }
    kernels->add(c, &(struct zr_add){n, x->at, dy->at, sum->at});
    kernels->add(c, &(struct zr_add){n, in_place->at, dy->at, in_place->at});
    kernels->init_normal(c, &(struct zr_init_normal){n, 1, 2, -0.75f, 0, filled->at});
    kernels->clear(c, &(struct zr_clear){n * sizeof(float), zeroed->at});
    kernels->convert(c, &(struct zr_convert){n, numbers(x), numbers(copied)});
    for (size_t i = 0; i < n; i++) {
        y->real[i] = reference_gelu(x->real[i]);
        dx->real[i] = dy->real[i] * reference_gelu_slope(x->real[i]);
        sum->real[i] = (double)(float)(x->real[i] + dy->real[i]);
        in_place->real[i] = (double)(float)(in_place->real[i] + dy->real[i]);
        filled->real[i] = -0.75;
        copied->real[i] = x->real[i];
    }
    double exact = error_of(sum) + error_of(in_place) + error_of(filled) + error_of(copied);
    for (size_t i = 0; i < n; i++)
        exact += zeroed->at[i] != 0.0f;
    return exact != 0 || !late_alike ? INFINITY : worst(others, worst(error_of(y), error_of(dx))) / tolerance;
}

static uint32_t random_word(const struct zr_dropout *d, size_t row, size_t column)
{
    return reference_word(d->draw, d->first_row + row, d->site, column);
}

/* Context ranks, each with its rows in two parts, drop the elements of whole sequences. */
static bool drops_in_parts(struct zr_kernel_context *c, struct zr_dropout d, size_t batch, size_t own)
{
    const struct shape s = {.batch = batch, .sequence = own * RANKS_MAX};
    const size_t n = rows_of(&s) * d.columns, rows = batch * own;
    struct tensor *x = input(n, 0, 1), *y = output(n), *parts = output(n);
    float *mine = output(rows * d.columns)->at;
    d.rows = rows_of(&s), d.first_row = 0, d.x = x->at, d.y = y->at;
    kernels->dropout(c, &d);
    for (unsigned r = 0; r < RANKS_MAX; r++) {
        d.part = (struct zr_context_part){RANKS_MAX, r, own};
        copy_part(&s, d.part, d.columns, x->at, mine, false);
        for (d.first_row = 0; d.first_row < rows; d.first_row += d.rows) {
            d.rows = d.first_row ? rows - d.first_row : rows / 2;
            d.x = d.y = mine + d.first_row * d.columns;
            kernels->dropout(c, &d);
        }
        copy_part(&s, d.part, d.columns, parts->at, mine, true);
    }
    return memcmp(y->at, parts->at, n * sizeof *y->at) == 0;
}

static double case_dropout(struct zr_kernel_context *c, const struct shape *s)
{
    const size_t rows = rows_of(s), columns = s->channels + 1, cut = rows / 2, n = rows * columns;
    struct zr_dropout_draw *draw = (struct zr_dropout_draw *)in_out(sizeof *draw / sizeof(float), 0, 0)->at;
    struct tensor *x = input(n, 0, 1), *y = output(n), *in_place = in_out(n, 0, 1);
    struct zr_dropout d = {rows, columns, 3, 5, 0.25f, draw, in_place->at, in_place->at, {0}};
    size_t kept = 0;
    *draw = (struct zr_dropout_draw){{0, 0}, 0, 0};
    struct zr_dropout zero = {.draw = draw};
    uint32_t known[4], want[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}; /* of Random123 */
    for (size_t i = 0; i < 4; i++)
        known[i] = random_word(&zero, 0, i);
    *draw = (struct zr_dropout_draw){{0x12345678, 0x9abcdef0}, 7, 1000};
    kernels->dropout(c, &d);
    for (size_t first = 0; first < rows; first = first < cut ? cut : rows) { /* a mask knows no division */
        size_t count = (first < cut ? cut : rows) - first;
        kernels->dropout(c, &(struct zr_dropout){count,
                                                 columns,
                                                 3 + first,
                                                 5,
                                                 0.25f,
                                                 draw,
                                                 x->at + first * columns,
                                                 y->at + first * columns,
                                                 {0}});
    }
    for (size_t i = 0; i < n; i++) {
        bool keeps = random_word(&d, i / columns, i % columns) >= 1u << 30;
        kept += keeps;
        y->real[i] = (double)(float)(keeps ? x->real[i] * (double)(1 / 0.75f) : 0);
        in_place->real[i] = (double)(float)(keeps ? in_place->real[i] * (double)(1 / 0.75f) : 0);
    }
    double exact = error_of(y) + error_of(in_place), far = fabs((double)kept - 0.75 * (double)n);
    bool good = exact == 0 && memcmp(known, want, sizeof known) == 0 && far < 6 * sqrt((double)n);
    good = good && (ON_CARD || drops_in_parts(c, d, s->batch, 2 * ((s->sequence + 3) / 4)));
    return good ? 0 : INFINITY;
}

static double case_average(struct zr_kernel_context *c, const struct shape *s)
{
    const size_t n = rows_of(s) * s->channels;
    struct tensor *average = in_out(n, 0, 1), *master = in_out(n, 0, 1);
    kernels->average(c, &(struct zr_average){n, 0.75f, false, NULL, average->at, master->at});
    kernels->average(c, &(struct zr_average){n, 0.75f, true, NULL, average->at, master->at});
    for (size_t i = 0; i < n; i++) {
        double moved = (double)((float)(0.75 * average->real[i]) + (float)(0.25 * master->real[i]));
        average->real[i] = master->real[i];
        master->real[i] = moved;
    }
    return error_of(average) + error_of(master) == 0 ? 0 : INFINITY;
}

/* The outer step of two groups' fragment: differences, then Nesterov momentum, with and without a mix. */
static double case_outer_step(struct zr_kernel_context *c, const struct shape *s)
{
    const size_t n = rows_of(s) * s->channels;
    struct tensor *gradient = in_out(n, 0, 1), *anchor = in_out(n, 0, 1), *master = in_out(n, 0, 1),
                  *momentum = in_out(n, 0, 1);
    for (unsigned mixes = 0; mixes < 2; mixes++) {
        struct zr_outer_step step = {
            n, true, 0.5f, 0.75f, 0.25f * (float)mixes, gradient->at, anchor->at, master->at, momentum->at};
        kernels->outer_step(c, &step);
        step.differs = false;
        kernels->outer_step(c, &step);
        for (size_t i = 0; i < n; i++) {
            float g = (float)(anchor->real[i] - master->real[i]),
                  m = (float)(0.75f * (float)momentum->real[i]) + g,
                  a = (float)anchor->real[i] - 0.5f * (g + (float)(0.75f * m));
            gradient->real[i] = (double)g;
            momentum->real[i] = (double)m;
            anchor->real[i] = (double)a;
            master->real[i] =
                mixes ? (double)((float)(0.25f * (float)master->real[i]) + 0.75f * a) : (double)a;
        }
    }
    return error_of(gradient) + error_of(anchor) + error_of(master) + error_of(momentum) == 0 ? 0 : INFINITY;
}

static double case_head(struct zr_kernel_context *c, const struct shape *s)
{
    size_t rows = rows_of(s);
    struct head_shape h = {random_tokens(rows, s->vocabulary), rows, s->channels, s->vocabulary, s->padded};
    double spread = 3 / sqrt((double)s->channels), scale = 1.0 / (double)rows;
    struct tensor *x = input(rows * s->channels, 0, 1), *wte = input(s->padded * s->channels, 0, spread);
    struct tensor *losses = output(rows), *alone = output(rows), *row = output(s->padded);
    struct tensor *dx = output(x->n), *dwte = output(wte->n), *logits = output(s->vocabulary);
    run_head(kernels, c, &(struct head_call){h, x->at, wte->at, alone->at, 0, NULL, NULL, false, NULL});
    run_head(kernels, c,
             &(struct head_call){h, x->at, wte->at, losses->at, (float)scale, dx->at, dwte->at, false, NULL});
    run_head(kernels, c,
             &(struct head_call){h, x->at, wte->at, losses->at, (float)scale, dx->at, dwte->at, true, NULL});
    kernels->linear_forward(
        c, &(struct zr_linear_forward){{.rows = 1, .in = h.channels, .out = h.vocabulary, .turned = true},
                                       x->at,
                                       wte->at,
                                       NULL,
                                       logits->at,
                                       true});
    bool same = memcmp(losses->at, alone->at, rows * sizeof(float)) == 0;
    for (int pass = 0; pass < 2; pass++)
        reference_head(&h, x->real, wte->real, losses->real, (double)(float)scale, row->real, dx->real,
                       dwte->real);
    for (size_t v = 0; v < s->vocabulary; v++)
        for (size_t i = 0; i < s->channels; i++)
            logits->real[v] += x->real[i] * wte->real[v * s->channels + i];
    for (size_t i = s->vocabulary * s->channels; i < dwte->n; i++)
        same = same && dwte->at[i] == 0.0f; /* padded rows have no gradient at all */
    double errors = worst(worst(error_of(losses), error_of(logits)), worst(error_of(dx), error_of(dwte)));
    return same ? errors / tolerance : INFINITY;
}

/* What a float keeps of a score of 200 is 1e-5, and so much of its exponential is wrong. */
static double case_steep(struct zr_kernel_context *c, const struct shape *s)
{
    double kept = STEEP * 0x1p-24;
    return worst(steep_attention(c, s, 16 * kept), steep_head(c, s, 32 * kept));
}

static double case_adamw(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = rows_of(s) * s->channels + 8195;
    struct zr_adamw how = {3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 1 - 0.9f * 0.9f, 1 - 0.95f * 0.95f,
                           NULL,  NULL};
    struct tensor *p = in_out(n, 0, 1), *g = input(n, 0, 1), *m = in_out(n, 0, 1), *v = in_out(n, 0.5, 0.4);
    struct tensor *change = output(n);
    memcpy(change->at, p->at, n * sizeof(float));
    kernels->update_adamw(c, &(struct zr_update_adamw){how, {n, numbers(g), p->at, m->at, v->at, {NULL, 0}}});
    for (size_t i = 0; i < n; i++) {
        double gradient = g->real[i] * how.gradient_scale, before = p->real[i];
        m->real[i] = how.beta1 * m->real[i] + (1 - (double)how.beta1) * gradient;
        v->real[i] = how.beta2 * v->real[i] + (1 - (double)how.beta2) * gradient * gradient;
        double step = m->real[i] / how.correction1 / (sqrt(v->real[i] / how.correction2) + how.epsilon);
        p->real[i] -= how.rate * (step + how.weight_decay * p->real[i]);
        change->real[i] = p->real[i] - before;
        change->at[i] = p->at[i] - change->at[i];
    }
    /* The change itself has few digits left of a parameter near 1: 1e-3 of the rate is what rounding leaves.
     */
    return worst(worst(error_of(m), worst(error_of(v), error_of(p))) / tolerance, error_of(change) / 1e-3);
}

static double case_reductions(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = rows_of(s) * s->wide + 5 * 4096 + 77;
    struct tensor *x = in_out(n, 0, 3), *result = output(1);
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += x->real[i] * x->real[i];
    double got = squares_of(kernels, c, n, numbers(x));
    result->at[0] = (float)got;
    result->real[0] = (double)(float)got;
    bool good = fabs(got - squares) < 1e-12 * squares && squares_of(kernels, c, 0, numbers(x)) == 0.0;
    good = good && nonfinite_of(kernels, c, n, numbers(x)) == n;
    uint64_t before = checksum_of(kernels, c, n * 4, x->at);
    size_t at = random_bits() % (n - 1); /* the last one has its turn below */
    float kept = x->at[at];
    uint32_t bits;
    memcpy(&bits, &kept, sizeof bits);
    for (int bit = 0; bit < 32; bit++) {
        uint32_t changed = bits ^ 1u << bit;
        memcpy(&x->at[at], &changed, sizeof changed);
        good = good && checksum_of(kernels, c, n * 4, x->at) != before;
    }
    x->at[at] = random_bits() % 2 ? NAN : -INFINITY;
    good = good && nonfinite_of(kernels, c, n, numbers(x)) == at;
    x->at[n - 1] = INFINITY;
    good = good && nonfinite_of(kernels, c, n, numbers(x)) == at;
    x->at[at] = kept;
    good = good && nonfinite_of(kernels, c, n, numbers(x)) == n - 1;
    x->at[n - 1] = 0;
    good = good && checksum_of(kernels, c, n * 4 - 4, x->at) != checksum_of(kernels, c, n * 4, x->at);
    return good ? 0 : INFINITY;
}

static double case_sum_in_order(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = rows_of(s) * s->channels + 3;
    struct tensor *to = output(n), *more = in_out(n, 0, 1);
    const struct tensor *source[11];
    const float *from[11];
    double wrong = 0;
    for (unsigned count = 1; count <= 11; count++) {
        source[count - 1] = input(n, 0, 1);
        from[count - 1] = source[count - 1]->at;
        kernels->sum(NULL, &(struct zr_sum){n,
                                            (const void *const *)from,
                                            count,
                                            ZR_PRECISION_FP32,
                                            0.3f,
                                            false,
                                            {to->at, ZR_PRECISION_FP32}});
        kernels->sum(c, &(struct zr_sum){n,
                                         (const void *const *)from,
                                         count,
                                         ZR_PRECISION_FP32,
                                         0.3f,
                                         true,
                                         {more->at, ZR_PRECISION_FP32}});
        for (size_t i = 0; i < n; i++) {
            volatile float sum = source[0]->at[i]; /* every step rounds, as promised */
            for (unsigned k = 1; k < count; k++)
                sum = sum + source[k]->at[i];
            sum = sum * 0.3f;
            wrong += to->at[i] != sum;
            sum = (float)more->real[i] + sum;
            wrong += more->at[i] != sum;
            more->real[i] = (double)sum;
            to->real[i] = (double)to->at[i];
        }
    }
    const float *with_itself[3] = {from[0], to->at, from[1]};
    struct tensor *kept = output(n);
    memcpy(kept->at, to->at, n * sizeof(float));
    kernels->sum(NULL, &(struct zr_sum){n,
                                        (const void *const *)with_itself,
                                        3,
                                        ZR_PRECISION_FP32,
                                        1.0f,
                                        false,
                                        {to->at, ZR_PRECISION_FP32}});
    for (size_t i = 0; i < n; i++) {
        volatile float sum = from[0][i] + kept->at[i];
        wrong += to->at[i] != sum + from[1][i];
    }
    return wrong != 0 ? INFINITY : 0;
}

/* ---- The driver ---------------------------------------------------------------------------------------- */

static const struct test_case cases[] = {
    {"embedding", case_embedding},
    {"layer norm", case_layernorm},
    {"linear", case_linear},
    {"attention", case_attention},
    {"element by element", case_elements},
    {"head", case_head},
    {"dropout", case_dropout},
    {"average", case_average},
    {"outer_step", case_outer_step},
    {"steep", case_steep},
    {"adamw", case_adamw},
    {"reductions", case_reductions},
    {"sum in order", case_sum_in_order},
};

static void test_isa(enum zr_isa isa)
{
    kernels = table_of(isa);
#ifdef ZR_TEST_ON_CARD /* more rows than a card's block looks through at once */
    run_case(&cases[0], &(const struct shape){130, 2, 4, 2, 5, 5, 8}, 99, isa);
    run_products(&(struct test_case){"linear", case_linear}, &(struct test_case){"head", case_head});
#endif
#ifndef ZR_TEST_ON_CARD
    /* Beyond a block of a loop: three of a row of logits; three of the depth of a product of one column. */
    run_case(&(const struct test_case){"head", case_head}, &(const struct shape){1, 2, 3, 1, 8, 8200, 8224},
             98, isa);
    run_case(&(const struct test_case){"linear", case_linear}, &(const struct shape){1, 5, 600, 1, 1, 5, 5},
             99, isa);
#endif
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t j = 0; j < SHAPES_TAKEN(2); j++)
            run_case(&cases[i], &shapes[j], j, isa);
#ifndef ZR_TEST_ON_CARD
    for (size_t i = 0; i < 6; i++) /* what goes by rows and columns */
        if (cases[i].run != case_elements)
            run_edges(&cases[i], isa);
#endif
}

#ifndef ZR_TEST_ON_CARD
/* One product more than the table of products has places, which shares a slice's shape with the oldest. */
static void test_many_products(void)
{
    enum { ROWS = 4, DEPTH = 8, PLACES = 192, SLICE = 64, COLUMNS = 2 * SLICE + 32 };
    struct zr_kernel_context c;
    unsigned threads = 1;
    bool intact = true;
    kernels = table_of(ZR_ISA_PLAIN);
    if (!context_begin(&c, (struct zr_kernel_limits){ROWS, ROWS, DEPTH + PLACES, 1, 0, 0, 0}, ZR_ISA_PLAIN,
                       &threads)) {
        tap_ok(false, "a context opens");
        return;
    }
    struct tensor *x = input(ROWS * (DEPTH + PLACES), 0, 1), *w = input(COLUMNS * (DEPTH + PLACES), 0, 1);
    struct tensor *y = output(ROWS * COLUMNS);
    for (size_t i = 0; i <= PLACES; i++) {
        bool last = i == PLACES;
        struct zr_linear l = {
            .rows = ROWS, .in = last ? DEPTH : DEPTH + i, .out = last ? COLUMNS : SLICE, .turned = true};
        kernels->linear_forward(&c, &(struct zr_linear_forward){l, x->at, w->at, NULL, y->at, true});
    }
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        for (size_t k = 0; k < DEPTH; k++)
            y->real[i] += x->real[i / COLUMNS * DEPTH + k] * w->real[i % COLUMNS * DEPTH + k];
    tap_ok(error_of(y) <= tolerance, "a product of a known and a new slice, with the table full, is right");
    tap_ok(context_end(&c) && (tensors_finish(&intact), intact), "and writes nothing else");
}
#endif

int main(void)
{
    base_seed = run_seed();
    for_each_isa(test_isa);
#ifndef ZR_TEST_ON_CARD
    test_many_products();
#endif
    return tap_done();
}
