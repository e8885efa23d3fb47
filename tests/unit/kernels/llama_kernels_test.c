/* llama_kernels_test.c: what LLaMA's layers are made of, in every precision of every instruction set that
 * this processor has, against the double-precision reference, for 1, 2 and 3 threads with the same bits; and
 * the reference's gradients against finite differences of its own forward pass.
 *
 * Errors are a share of the reference's largest number: within 3e-6 where results are floats, and within some
 * units of the last place where they are rounded to two bytes. */
#include "tests/support/kernels/kernels_cases.h"

static const double float_tolerance = 3e-6, epsilon = 1e-5, theta = 10000;

static const struct shape shapes[] = {
#ifdef ZR_TEST_ON_CARD
    {1, 1, 16, 2, 9, 8, 8},
    {1, 17, 30, 3, 60, 8, 8},
    {3, 33, 40, 4, 33, 8, 8},
    {1, 150, 128, 2, 257, 8, 8},
#else
    {1, 1, 16, 2, 9, 8, 8},   {2, 3, 24, 4, 17, 8, 8},     {1, 17, 30, 3, 60, 8, 8},
    {3, 33, 40, 4, 33, 8, 8}, {1, 150, 128, 2, 257, 8, 8}, {2, 67, 192, 3, 256, 8, 8},
#endif
};

static double share_of(const struct tensor *got, double units)
{
    double half_unit = precision == ZR_PRECISION_BF16 ? 0x1p-8 : 0x1p-11;
    return error_of(got) / (got->precision == ZR_PRECISION_FP32 ? float_tolerance : units * half_unit);
}

static struct tensor *any_input(size_t n, double middle, double spread)
{
    return input_of(precision, n, middle, spread);
}

static double case_rmsnorm(struct zr_kernel_context *c, const struct shape *s)
{
    size_t rows = rows_of(s), n = rows * s->channels;
    struct tensor *x = any_input(n, 0.5, 2), *w = any_input(s->channels, 1, 0.5), *dy = any_input(n, 0, 1);
    struct tensor *y = output_of(precision, n), *rstd = output(rows), *dx = output_of(precision, n);
    struct tensor *dw = output_of(precision, s->channels);
    float offset = s->heads % 2 ? 1 : 0;
    struct zr_rmsnorm_forward forward = {rows,     s->channels, (float)epsilon, x->at, w->at, y->at,
                                         rstd->at, {0},         offset};
    struct zr_rmsnorm_backward backward = {rows,   s->channels, x->at, w->at, dy->at, rstd->at,
                                           dx->at, dw->at,      false, false, {0},    offset};
    kernels->rmsnorm_forward(c, &forward);
    reference_rmsnorm(&forward, x->real, w->real, y->real, rstd->real);
    kernels->rmsnorm_backward(c, &backward);
    reference_rmsnorm_backward(&forward, x->real, w->real, dy->real, dx->real, dw->real);
    double first = worst(share_of(dx, 1.01), share_of(dw, 1.01));
    tensor_follow(dx), tensor_follow(dw);
    backward.accumulate_dx = backward.accumulate = true;
    kernels->rmsnorm_backward(c, &backward);
    reference_rmsnorm_backward(&forward, x->real, w->real, dy->real, dx->real, dw->real);
    return worst(worst(first, worst(share_of(dx, 1.01), share_of(dw, 1.01))),
                 worst(share_of(y, 1.01), share_of(rstd, 1)));
}

/* Norms of heads inside wider rows: the bits of those of dense rows. */
static double case_head_norms(struct zr_kernel_context *c, const struct shape *s)
{
    enum { AFTER = 8 };
    size_t line = s->channels, stride = line + AFTER, width = line / s->heads, tokens = rows_of(s),
           each = zr_precision_bytes(precision);
    struct tensor *x = any_input(tokens * line, 0.5, 2), *w = any_input(width, 1, 0.5),
                  *dy = any_input(x->n, 0, 1), *wide_x = output_of(precision, tokens * stride),
                  *wide_dy = output_of(precision, wide_x->n), *t[2][4]; /* y, rstd, dx, dw */
    for (size_t row = 0; row < tokens; row++) {
        memcpy((char *)wide_x->at + row * stride * each, (char *)x->at + row * line * each, line * each);
        memcpy((char *)wide_dy->at + row * stride * each, (char *)dy->at + row * line * each, line * each);
    }
    for (int wide = 0; wide < 2; wide++) {
        struct zr_norm_heads heads = {wide ? s->heads : 0, stride, stride};
        size_t rows = tokens * s->heads, n = wide ? wide_x->n : x->n;
        const void *in = wide ? wide_x->at : x->at, *d = wide ? wide_dy->at : dy->at;
        t[wide][0] = output_of(precision, n), t[wide][1] = output(rows);
        t[wide][2] = output_of(precision, n), t[wide][3] = output_of(precision, width);
        kernels->rmsnorm_forward(c, &(struct zr_rmsnorm_forward){rows, width, (float)epsilon, in, w->at,
                                                                 t[wide][0]->at, t[wide][1]->at, heads, 0});
        kernels->rmsnorm_backward(c, &(struct zr_rmsnorm_backward){rows, width, in, w->at, d, t[wide][1]->at,
                                                                   t[wide][2]->at, t[wide][3]->at, false,
                                                                   false, heads, 0});
    }
    bool good = memcmp(t[0][1]->at, t[1][1]->at, tensor_bytes(t[0][1])) == 0 &&
                memcmp(t[0][3]->at, t[1][3]->at, tensor_bytes(t[0][3])) == 0;
    for (size_t row = 0; row < tokens; row++)
        for (int i = 0; i < 3; i += 2)
            good &= memcmp((char *)t[0][i]->at + row * line * each, (char *)t[1][i]->at + row * stride * each,
                           line * each) == 0;
    return good ? 0 : INFINITY;
}

/* The first channels of heads in the middle of longer rows, whose other numbers stay. */
static double case_rotary(struct zr_kernel_context *c, const struct shape *s)
{
    enum { BEFORE = 3, AFTER = 5 };
    size_t head = s->channels / s->heads / 2 * 2, width = s->heads % 2 && head >= 8 ? head / 4 * 2 : head,
           half = width / 2, stride = BEFORE + s->heads * head + AFTER;
    struct tensor *cosines = output(s->sequence * half), *sines = output(s->sequence * half);
    struct tensor *x = in_out_of(precision, rows_of(s) * stride, 0, 1), *kept = output_of(precision, x->n);
    struct zr_rotary turn = {.rows = rows_of(s),
                             .sequence = s->sequence,
                             .heads = s->heads,
                             .width = width,
                             .head_stride = width < head ? head : 0,
                             .stride = stride,
                             .cosines = cosines->at,
                             .sines = sines->at,
                             .x = (char *)x->at + BEFORE * zr_precision_bytes(precision),
                             .positions = s->batch > 1 ? random_positions(s) : NULL};
    memcpy(kept->at, x->at, tensor_bytes(x));
    tensor_follow(kept);
    kernels->rotary_table(
        c, &(struct zr_rotary_table){s->sequence, width, theta, cosines->at, sines->at, {.factor = 0}});
    for (size_t i = 0; i < cosines->n; i++) {
        double angle = (double)(i / half) * pow(theta, -2.0 * (double)(i % half) / (double)width);
        cosines->real[i] = cos(angle);
        sines->real[i] = sin(angle);
    }
    kernels->rotary(c, &turn);
    reference_rotary(&turn, theta, x->real + BEFORE);
    double there = share_of(x, 1.01);
    turn.inverse = true;
    kernels->rotary(c, &turn);
    memcpy(x->real, kept->real, x->n * sizeof *x->real);
    return worst(worst(there, share_of(x, 2.5)), worst(share_of(cosines, 1), share_of(sines, 1)));
}

static double case_gate(struct zr_kernel_context *c, const struct shape *s, bool gelu)
{
    size_t n = rows_of(s) * s->wide + 4099;
    struct tensor *gate = any_input(n, 0, 8), *up = any_input(n, 0, 2), *dy = any_input(n, 0, 1);
    struct tensor *y = output_of(precision, n), *dgate = output_of(precision, n),
                  *dup = output_of(precision, n);
    kernels->swiglu_forward(c, &(struct zr_swiglu_forward){n, gate->at, up->at, y->at, gelu});
    kernels->swiglu_backward(
        c, &(struct zr_swiglu_backward){n, gate->at, up->at, dy->at, dgate->at, dup->at, gelu});
    for (size_t i = 0; i < n; i++) {
        double x = gate->real[i], share = gelu ? reference_gelu(x) : reference_swiglu(x, 1);
        y->real[i] = share * up->real[i];
        dgate->real[i] =
            dy->real[i] * up->real[i] * (gelu ? reference_gelu_slope(x) : reference_swish_slope(x));
        dup->real[i] = dy->real[i] * share;
    }
    return worst(share_of(y, 1.01), worst(share_of(dgate, 1.01), share_of(dup, 1.01)));
}

static double case_swiglu(struct zr_kernel_context *c, const struct shape *s)
{
    return worst(case_gate(c, s, false), case_gate(c, s, true));
}

static bool same_bits(const struct tensor *a, const struct tensor *b)
{
    return memcmp(a->at, b->at, tensor_bytes(a)) == 0;
}

/* A sum and its norm in one operation, with the bits of two; the sum in the place of what it is of. */
static double case_residual(struct zr_kernel_context *c, const struct shape *s)
{
    size_t rows = rows_of(s), channels = s->channels, n = rows * channels;
    struct tensor *a = any_input(n, 0.5, 2), *b = any_input(n, 0, 1), *w = any_input(channels, 1, 0.5),
                  *bias = any_input(channels, 0, 1), *apart = output_of(precision, n), *t[2][3];
    double errors = 0;
    kernels->add(c, &(struct zr_add){n, a->at, b->at, apart->at});
    for (int fused = 0; fused < 2; fused++) { /* y, mean, rstd; the second of a norm alone */
        t[fused][0] = output_of(precision, n), t[fused][1] = output(rows), t[fused][2] = output(rows);
        struct zr_layernorm_forward norm = {{rows, channels, 0}, apart->at,       w->at,          bias->at,
                                            t[fused][0]->at,     t[fused][1]->at, t[fused][2]->at};
        struct tensor *sum = in_out_of(precision, n, 0, 1);
        memcpy(sum->at, b->at, tensor_bytes(b));
        if (fused)
            kernels->residual_layernorm(c, &(struct zr_residual_layernorm){norm, a->at, sum->at, sum->at});
        else
            kernels->layernorm_forward(c, &norm);
        tensor_follow(apart);
        reference_layernorm(&norm.shape, apart->real, w->real, bias->real, t[fused][0]->real,
                            t[fused][1]->real, t[fused][2]->real);
        errors += fused && !same_bits(sum, apart) ? INFINITY : 0;
    }
    for (int i = 0; i < 3; i++)
        errors += same_bits(t[0][i], t[1][i]) ? 0 : INFINITY;
    errors = worst(errors, worst(share_of(t[1][0], 1.01), share_of(t[1][2], 1)));
    for (int fused = 0; fused < 2; fused++) {
        t[fused][0] = output_of(precision, n), t[fused][1] = output(rows);
        struct zr_rmsnorm_forward norm = {
            rows, channels, (float)epsilon, apart->at, w->at, t[fused][0]->at, t[fused][1]->at, {0}, 0};
        struct tensor *sum = output_of(precision, n);
        if (fused)
            kernels->residual_rmsnorm(c, &(struct zr_residual_rmsnorm){norm, a->at, b->at, sum->at});
        else
            kernels->rmsnorm_forward(c, &norm);
        reference_rmsnorm(&norm, apart->real, w->real, t[fused][0]->real, t[fused][1]->real);
        errors += fused && !same_bits(sum, apart) ? INFINITY : 0;
    }
    for (int i = 0; i < 2; i++)
        errors += same_bits(t[0][i], t[1][i]) ? 0 : INFINITY;
    for (size_t i = 0; i < n; i++)
        apart->real[i] = a->real[i] + b->real[i];
    return worst(worst(errors, share_of(apart, 1.01)), worst(share_of(t[1][0], 1.01), share_of(t[1][1], 1)));
}

/* GELU's backward in place and the bias's gradient in one operation, with the bits of two. */
static double case_gelu_bias(struct zr_kernel_context *c, const struct shape *s)
{
    size_t rows = rows_of(s), columns = s->wide, n = rows * columns;
    struct tensor *x = any_input(n, 0, 6), *dy = any_input(n, 0, 1), *dx = output_of(precision, n),
                  *apart = output_of(precision, n), *db = output_of(precision, columns),
                  *db_apart = output_of(precision, columns);
    double errors = 0;
    memcpy(dx->at, dy->at, tensor_bytes(dy));
    for (int more = 0; more < 2; more++) {
        void *d = more ? apart->at : dx->at;
        kernels->gelu_bias_backward(
            c, &(struct zr_gelu_bias_backward){rows, columns, x->at, more ? dy->at : d, d, db->at, more});
        kernels->gelu_backward(c, &(struct zr_gelu_backward){n, x->at, dy->at, apart->at, ZR_GELU_TANH});
        kernels->linear_backward(
            c, &(struct zr_linear_backward){.shape = {.rows = rows, .in = 1, .out = columns},
                                            .dy = apart->at,
                                            .db = db_apart->at,
                                            .accumulate = more});
        errors += same_bits(dx, apart) && same_bits(db, db_apart) ? 0 : INFINITY;
        for (size_t i = 0; i < n; i++) {
            dx->real[i] = dy->real[i] * reference_gelu_slope(x->real[i]);
            db->real[i % columns] += tensor_get(dx, i);
        }
        errors = worst(errors, worst(share_of(dx, 1.01), share_of(db, 1.01)));
        tensor_follow(db);
    }
    return errors;
}

#ifdef ZR_TEST_ON_CARD
/* ---- Kernels of packs, beside those of single numbers: the same bits ----------------------------------- */

/* A copy that does not begin on 16 bytes. */
static void *late(const struct tensor *t)
{
    size_t each = zr_precision_bytes(t->precision);
    struct tensor *copy = output_of(t->precision, t->n + 1);
    memcpy((char *)copy->at + each, t->at, tensor_bytes(t));
    return (char *)copy->at + each;
}

static bool same_as(const struct tensor *t, const void *other)
{
    return memcmp(t->at, other, tensor_bytes(t)) == 0;
}

/* Norms forward and backward, of rows on 16 bytes and of the same ones elsewhere. */
static bool norms_alike(struct zr_kernel_context *c, size_t rows, size_t channels)
{
    size_t n = rows * channels;
    struct tensor *x = any_input(n, 0.5, 2), *w = any_input(channels, 1, 0.5), *b = any_input(channels, 0, 1),
                  *dy = any_input(n, 0, 1), *dw = output_of(precision, channels),
                  *db = output_of(precision, channels), *mean = output(rows), *rstd = output(rows);
    const void *late_x = late(x), *late_w = late(w), *late_b = late(b), *late_dy = late(dy);
    bool good = true;
    for (int more = 0; more < 2; more++) {
        struct tensor *y = output_of(precision, n), *dx = in_out_of(precision, n, 0, 1);
        void *late_y = late(y), *late_dx = late(dx);
        struct zr_layernorm_forward layer = {
            {rows, channels, 0}, x->at, w->at, b->at, y->at, mean->at, rstd->at};
        struct zr_layernorm_backward back = {{rows, channels, 0},
                                             x->at,
                                             w->at,
                                             mean->at,
                                             rstd->at,
                                             dy->at,
                                             dx->at,
                                             dw->at,
                                             db->at,
                                             more,
                                             false};
        kernels->layernorm_forward(c, &layer);
        kernels->layernorm_backward(c, &back);
        layer.x = back.x = late_x, layer.w = back.w = late_w, layer.b = late_b, layer.y = late_y;
        back.dy = late_dy, back.dx = late_dx;
        kernels->layernorm_forward(c, &layer);
        kernels->layernorm_backward(c, &back);
        good = good && same_as(y, late_y) && same_as(dx, late_dx);
    }
    for (int more = 0; more < 2; more++) {
        struct tensor *y = output_of(precision, n), *dx = in_out_of(precision, n, 0, 1);
        void *late_y = late(y), *late_dx = late(dx);
        struct zr_rmsnorm_forward root = {rows, channels, (float)epsilon, x->at, w->at, y->at, rstd->at,
                                          {0},  0};
        struct zr_rmsnorm_backward back = {rows,   channels, x->at, w->at, dy->at, rstd->at,
                                           dx->at, dw->at,   more,  false, {0},    0};
        kernels->rmsnorm_forward(c, &root);
        kernels->rmsnorm_backward(c, &back);
        root.x = back.x = late_x, root.w = back.w = late_w, root.y = late_y;
        back.dy = late_dy, back.dx = late_dx;
        kernels->rmsnorm_forward(c, &root);
        kernels->rmsnorm_backward(c, &back);
        good = good && same_as(y, late_y) && same_as(dx, late_dx);
    }
    return good;
}

/* Rows of each class of widths, whose last lanes have a pack less, wider than registers, and in no whole
 * packs; each shape has others of them. */
static double case_wide_rows(struct zr_kernel_context *c, const struct shape *s)
{
    static const size_t widths[] = {264, 1032, 2056, 4104, 1027};
    double errors = 0;
    for (size_t i = s->heads % 3; i < sizeof widths / sizeof *widths; i += 3) {
        const struct shape wide = {.batch = 1, .sequence = 2, .channels = widths[i]};
        errors = norms_alike(c, 2, widths[i]) ? errors : INFINITY;
        errors = worst(errors, worst(case_rmsnorm(c, &wide), case_residual(c, &wide)));
    }
    return errors;
}

/* Optimizers and conversions of four numbers at a time. */
static double case_updates(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = rows_of(s) * s->wide + 1099; /* more than a block */
    struct tensor *g = any_input(n, 0, 1), *wide = output(n), *small = output_of(precision, n);
    const struct zr_adamw adamw = {.rate = 3e-4f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .epsilon = 1e-8f,
                                   .weight_decay = 0.1f,
                                   .gradient_scale = 0.5f,
                                   .correction1 = 0.19f,
                                   .correction2 = 0.0975f};
    const struct zr_sgd sgd = {
        .rate = 3e-2f, .momentum_factor = 0.9f, .weight_decay = 0.1f, .gradient_scale = 0.5f};
    bool good = true;
    for (unsigned which = 0; which < 4;
         which++) { /* gradient, momentum or parameter elsewhere; SGD: all of them */
        struct tensor *p = in_out(n, 0, 1), *m = in_out(n, 0, 1), *v = in_out(n, 0.5, 0.4);
        struct zr_update update = {n, numbers(g), p->at, m->at, v->at, numbers(small)}, other = update;
        bool of_sgd = which == 3;
        struct tensor *copies[] = {output(n), output(n), output(n), output_of(precision, n)};
        memcpy(copies[0]->at, p->at, tensor_bytes(p));
        memcpy(copies[1]->at, m->at, tensor_bytes(m));
        memcpy(copies[2]->at, v->at, tensor_bytes(v));
        other.gradient.at = which == 0 || of_sgd ? late(g) : g->at;
        other.master = of_sgd ? late(p) : copies[0]->at;
        other.momentum = which == 1 || of_sgd ? late(m) : copies[1]->at;
        other.variance = copies[2]->at;
        other.parameter.at = which == 2 || of_sgd ? late(small) : copies[3]->at;
        for (int turn = 0; turn < 2; turn++) {
            const struct zr_update *now = turn ? &other : &update;
            if (of_sgd)
                kernels->update_sgd(c, &(struct zr_update_sgd){sgd, *now});
            else
                kernels->update_adamw(c, &(struct zr_update_adamw){adamw, *now});
        }
        good = good && same_as(p, other.master) && same_as(m, other.momentum) && same_as(v, other.variance) &&
               same_as(small, other.parameter.at);
    }
    void *late_wide = late(wide);
    kernels->convert(c, &(struct zr_convert){n, numbers(g), numbers(wide)});
    kernels->convert(c, &(struct zr_convert){n, numbers(g), {late_wide, ZR_PRECISION_FP32}});
    for (size_t i = 0; i < n; i++)
        good = good && (double)wide->at[i] == g->real[i];
    return good && same_as(wide, late_wide) ? 0 : INFINITY;
}

/* Narrow logits beside floats of the same values: losses, parts and gradients in their place; and the
 * gradient of weights in floats, which rounded is the one that is not. */
static double case_narrow_logits(struct zr_kernel_context *c, const struct shape *s)
{
    size_t rows = rows_of(s), each = zr_precision_bytes(precision),
           columns = rows == 1 ? 5003 : 3 * s->wide + 1; /* several turns of a block */
    bool good = true;
    double error = 0;
    for (size_t stride = (columns + 7) / 8 * 8; stride < (columns + 7) / 8 * 8 + 2; stride++) {
        struct tensor *narrow = in_out_of(precision, rows * stride, 0, 30), *wide = output(narrow->n);
        struct tensor *losses = output(rows), *others = output(rows);
        struct zr_softmax_part *parts = (void *)output(rows * sizeof *parts / sizeof(float))->at,
                               *part = (void *)output(rows * sizeof *parts / sizeof(float))->at;
        struct zr_cross_entropy op = {.rows = rows,
                                      .columns = columns,
                                      .stride = stride,
                                      .targets = random_tokens(rows, columns),
                                      .logits = wide->at,
                                      .losses = losses->at,
                                      .parts = parts,
                                      .scale = 0.5f},
                                other = op;
        other.logits = narrow->at, other.narrow = true, other.losses = others->at, other.parts = part;
        for (size_t i = 0; i < narrow->n; i++)
            wide->at[i] = (float)narrow->real[i];
        for (size_t r = 0; r < rows; r++) {
            const double *row = narrow->real + r * stride;
            double sum = 0;
            for (size_t v = 0; v < columns; v++)
                sum += exp(row[v]);
            losses->real[r] = log(sum) - row[op.targets[r]];
        }
        kernels->cross_entropy(c, &op);
        kernels->cross_entropy(c, &other);
        good = good && memcmp(parts, part, rows * sizeof *parts) == 0;
        op.parts = other.parts = NULL, op.gradient = other.gradient = true;
        kernels->cross_entropy(c, &op);
        kernels->cross_entropy(c, &other);
        good = good && same_bits(losses, others);
        error = worst(error, error_of(losses) / float_tolerance);
        for (size_t r = 0; r < rows; r++)
            good = good &&
                   memcmp((char *)narrow->at + r * stride * each, wide->at + r * stride, stride * each) == 0;
    }
    struct zr_linear l = {.rows = rows, .in = s->channels, .out = s->wide, .turned = true};
    struct tensor *x = any_input(rows * l.in, 0, 1), *dy = any_input(rows * l.out, 0, 1),
                  *dw = output_of(precision, l.in * l.out), *floats = output(dw->n),
                  *rounded = output_of(precision, dw->n);
    struct zr_linear_backward op = {.shape = l, .x = x->at, .w = x->at, .dy = dy->at, .dw = dw->at};
    kernels->linear_backward(c, &op);
    op.dw = floats->at, op.dw_floats = true;
    kernels->linear_backward(c, &op);
    kernels->convert(c, &(struct zr_convert){dw->n, numbers(floats), numbers(rounded)});
    good = good && same_bits(rounded, dw);
    tensor_follow(floats);
    op.accumulate = true;
    kernels->linear_backward(c, &op);
    for (size_t i = 0; i < dw->n; i++)
        good = good && (double)floats->at[i] == 2 * floats->real[i];
    return good ? error : INFINITY;
}

/* Products with GELU, its slope or a residual. Of `rounds` roundings each, in units of half the last place.
 */
static double products_with(struct zr_kernel_context *c, const struct shape *s, double rounds)
{
    struct zr_linear l = {.rows = rows_of(s), .in = s->channels, .out = s->wide}, turned = l;
    size_t n = l.rows * l.out, own = l.rows * l.in;
    struct tensor *x = any_input(own, 0, 1), *w = any_input(l.in * l.out, 0, 0.3),
                  *bias = any_input(l.out, 0, 2), *dy = any_input(n, 0, 1), *pre = any_input(own, 0, 3),
                  *residual = any_input(n, 0, 2), *turned_w = output_of(precision, w->n), *y[2], *gelu[2],
                  *sum[2], *dx = output_of(precision, own), *dw = output_of(precision, w->n),
                  *db = output_of(precision, l.out), *pre_bias = in_out_of(precision, l.in, 0, 1);
    double error = 0, *plain = calloc(own, sizeof *plain);
    for (size_t i = 0; i < w->n; i++)
        tensor_set(turned_w, i % l.out * l.in + i / l.out, w->real[i]);
    turned.turned = true;
    for (int bare = 0; bare < 2; bare++) {
        const struct tensor *b = bare ? NULL : bias;
        y[bare] = output_of(precision, n), gelu[bare] = output_of(precision, n),
        sum[bare] = output_of(precision, n);
        kernels->linear_gelu_forward(
            c, &(struct zr_linear_gelu_forward){{l, x->at, w->at, b ? b->at : NULL, y[bare]->at, false},
                                                gelu[bare]->at});
        kernels->linear_residual_forward(
            c, &(struct zr_linear_residual_forward){
                   {turned, x->at, turned_w->at, b ? b->at : NULL, sum[bare]->at, false}, residual->at});
        reference_linear(&l, x->real, w->real, b ? b->real : NULL, y[bare]->real);
        for (size_t i = 0; i < n; i++) {
            gelu[bare]->real[i] = reference_gelu(y[bare]->real[i]);
            sum[bare]->real[i] = y[bare]->real[i] + residual->real[i];
        }
        error = worst(error, worst(share_of(y[bare], 1.01),
                                   worst(share_of(gelu[bare], rounds), share_of(sum[bare], rounds))));
    }
    struct zr_linear_gelu_backward op = {
        {l, x->at, w->at, dy->at, dx->at, dw->at, db->at, false, true, false}, pre->at, pre_bias->at};
    kernels->linear_backward(
        c, &(struct zr_linear_backward){l, x->at, w->at, dy->at, NULL, dw->at, db->at, false, false, false});
    tensor_follow(dw), tensor_follow(db);
    kernels->linear_gelu_backward(c, &op);
    reference_linear_backward(&l, x->real, w->real, dy->real, plain, dw->real, db->real);
    for (size_t i = 0; i < own; i++) {
        dx->real[i] = plain[i] * reference_gelu_slope(pre->real[i]);
        pre_bias->real[i % l.in] += tensor_get(dx, i);
    }
    error = worst(error, worst(worst(share_of(dx, rounds), share_of(pre_bias, 1.01)),
                               worst(share_of(dw, 1.01), share_of(db, 1.01))));
    struct tensor *without = output_of(precision, own), *y_again = output_of(precision, n),
                  *gelu_again = output_of(precision, n);
    kernels->linear_gelu_forward(
        c, &(struct zr_linear_gelu_forward){{l, x->at, w->at, bias->at, y_again->at, false}, gelu_again->at});
    op.linear.dx = without->at, op.linear.dw = op.linear.db = op.pre_bias = NULL;
    kernels->linear_gelu_backward(c, &op);
    free(plain);
    tensor_follow(turned_w);
    return same_bits(without, dx) && same_bits(y_again, y[0]) && same_bits(gelu_again, gelu[0]) &&
                   c->refusals.count == 0
               ? error
               : INFINITY;
}

static double case_products_apart(struct zr_kernel_context *c, const struct shape *s)
{
    return products_with(c, s, 2.2);
}

static double case_products_in_one(struct zr_kernel_context *c, const struct shape *s)
{
    return products_with(c, s, 1.01);
}

/* In one pass where the library does both; apart where rows of AUX do not suit it (of floats alone: others of
 * that width suit it in nothing), or where it has no algorithm for that: such a refusal is none of the
 * product. `aux`: of the products, those with AUX. */
static void test_products(void)
{
    static const struct {
        const char *name;
        struct shape shape;
        uint32_t unsupported;
        unsigned made, aux, choices, narrow;
    } rows[] = {{"products in one", {1, 65, 64, 2, 72, 8, 8}, 0, 9, 5, 6, 1},
                {"products without GELU's epilogues", {1, 65, 64, 2, 72, 8, 8}, 32 | 64, 9, 0, 9, 1},
                {"products 76 wide", {1, 65, 64, 2, 76, 8, 8}, 0, 9, 2, 6, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool in_one = rows[i].aux == 5;
        unsigned times = precision == ZR_PRECISION_FP32 || rows[i].narrow ? RUNS : 0;
        struct zr_lt_emulator *library = card_library(true);
        if (!library)
            return;
        *library = (struct zr_lt_emulator){.unsupported = rows[i].unsupported};
        run_case(&(struct test_case){rows[i].name, in_one ? case_products_in_one : case_products_apart},
                 &rows[i].shape, 300 + i, ZR_ISA_PLAIN);
        tap_ok(library->products == times * rows[i].made && library->epilogues == times * rows[i].aux &&
                   library->choices == times * rows[i].choices && library->handles == 0 &&
                   library->objects == 0,
               "%s, %s: %u products, %u with AUX, %u choices (%s)", zr_precision_name(precision),
               rows[i].name, library->products, library->epilogues, library->choices, library->report);
        *library = (struct zr_lt_emulator){0};
    }
    card_library(false);
}
#endif

static const struct test_case cases[] = {
    {"root mean square norm", case_rmsnorm}, {"norms of heads", case_head_norms},
    {"rotary embedding", case_rotary},       {"SwiGLU", case_swiglu},
    {"residual and norm", case_residual},
#ifdef ZR_TEST_ON_CARD
    {"wide rows", case_wide_rows},           {"updates", case_updates},
    {"narrow logits", case_narrow_logits},   {"products with others", case_products_apart},
#endif
    {"GELU and bias", case_gelu_bias}};

static void test_isa(enum zr_isa isa)
{
    kernels = table_of(isa);
    for (precision = ZR_PRECISION_FP32; precision < ZR_PRECISION_COUNT; precision++) {
#ifdef ZR_TEST_ON_CARD
        test_products();
#endif
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            for (size_t j = 0; j < SHAPES_TAKEN(3); j++)
                run_case(&cases[i], &shapes[j], j, isa);
#ifndef ZR_TEST_ON_CARD
            run_edges(&cases[i], isa);
#endif
        }
    }
}

/* ---- The reference's gradients ------------------------------------------------------------------------- */

enum { ROWS = 3, CHANNELS = 8, NUMBERS = ROWS * CHANNELS, HEADS = 4, TOKENS = 3, LINE = 16 };
static double weights[NUMBERS]; /* of the results in a sum, whose gradient is looked at */

static double weighted(const double *results, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += weights[i] * results[i];
    return sum;
}

static const struct zr_rmsnorm_forward norm = {.rows = ROWS, .channels = CHANNELS, .epsilon = 1e-5f};
static const struct zr_rotary rotation = {
    .rows = ROWS, .sequence = ROWS, .heads = 2, .width = CHANNELS / 2, .stride = CHANNELS};
static const struct zr_attention grouped = {.batch = 1,
                                            .sequence = TOKENS,
                                            .channels = CHANNELS,
                                            .heads = HEADS,
                                            .kv_heads = 2}; /* two heads of queries share one */

static double norm_of(const double *in)
{
    double y[NUMBERS], rstd[ROWS];
    reference_rmsnorm(&norm, in, in + NUMBERS, y, rstd);
    return weighted(y, NUMBERS);
}

static double rotary_of(const double *in)
{
    double x[NUMBERS];
    memcpy(x, in, sizeof x);
    reference_rotary(&rotation, theta, x);
    return weighted(x, NUMBERS);
}

static double swiglu_of(const double *in)
{
    double y[NUMBERS];
    for (size_t i = 0; i < NUMBERS; i++)
        y[i] = reference_swiglu(in[i], in[NUMBERS + i]);
    return weighted(y, NUMBERS);
}

static double attention_of(const double *in)
{
    double out[NUMBERS], lse[HEADS * TOKENS], p[HEADS * TOKENS * TOKENS];
    reference_attention(&grouped, in, out, lse, p);
    return weighted(out, NUMBERS);
}

/* The gradients by the reference's backward pass, in the order of the inputs. */
static void norm_gradients(const double *in, double *d)
{
    reference_rmsnorm_backward(&norm, in, in + NUMBERS, weights, d, d + NUMBERS);
}

static void rotary_gradients(const double *in, double *d)
{
    struct zr_rotary inverse = rotation;
    (void)in;
    inverse.inverse = true;
    memcpy(d, weights, sizeof weights);
    reference_rotary(&inverse, theta, d);
}

static void swiglu_gradients(const double *in, double *d)
{
    for (size_t i = 0; i < NUMBERS; i++) {
        d[i] = weights[i] * in[NUMBERS + i] * reference_swish_slope(in[i]);
        d[NUMBERS + i] = weights[i] * reference_swiglu(in[i], 1);
    }
}

static void attention_gradients(const double *in, double *d)
{
    double out[NUMBERS], lse[HEADS * TOKENS], p[HEADS * TOKENS * TOKENS];
    reference_attention(&grouped, in, out, lse, p);
    reference_attention_backward(&grouped, in, p, weights, d);
}

static void test_gradients(void)
{
    static const struct {
        const char *name;
        size_t inputs;
        double (*of)(const double *in);
        void (*gradients)(const double *in, double *d);
    } rows[] = {{"root mean square norm", NUMBERS + CHANNELS, norm_of, norm_gradients},
                {"rotary embedding", NUMBERS, rotary_of, rotary_gradients},
                {"SwiGLU", 2 * NUMBERS, swiglu_of, swiglu_gradients},
                {"attention of grouped queries", TOKENS * LINE, attention_of, attention_gradients}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        double in[2 * NUMBERS], d[2 * NUMBERS] = {0}, most = 0;
        const double step = 1e-5;
        for (size_t i = 0; i < NUMBERS; i++)
            weights[i] = random_unit();
        for (size_t i = 0; i < rows[r].inputs; i++)
            in[i] = random_unit() + 0.1;
        rows[r].gradients(in, d);
        for (size_t i = 0; i < rows[r].inputs; i++) {
            double kept = in[i];
            in[i] = kept + step;
            double above = rows[r].of(in);
            in[i] = kept - step;
            double difference = (above - rows[r].of(in)) / (2 * step) - d[i];
            in[i] = kept;
            most = worst(most, isnan(difference) ? INFINITY : fabs(difference));
        }
        tap_ok(most < 1e-7, "%s: the gradients are those of finite differences (%.1e)", rows[r].name, most);
    }
}

int main(void)
{
    base_seed = random_state = run_seed();
    test_gradients();
    for_each_isa(test_isa);
    return tap_done();
}
