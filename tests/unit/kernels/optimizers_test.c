/* optimizers_test.c: 8-bit AdamW, Adafactor, Muon and LAMB of every instruction set and precision against the
 * double-precision reference, for 1, 2 and 3 threads with the same bits: matrices of odd sizes, parts that
 * begin and end inside rows, and ranges cut into two calls. */
#include "kernels/block8.h"
#include "tests/support/kernels/kernels_cases.h"

static const double float_tolerance = 3e-6;

/* rows_of() x channels */
static const struct shape shapes[] = {
#ifdef ZR_TEST_ON_CARD
    {1, 33, 130, 1, 0, 0, 0}, {1, 7, 5, 1, 0, 0, 0},   {1, 1, 1, 1, 0, 0, 0},
    {1, 3, 2051, 1, 0, 0, 0}, {1, 700, 3, 1, 0, 0, 0},
#else
    {1, 33, 130, 1, 0, 0, 0}, {1, 7, 5, 1, 0, 0, 0},    {1, 1, 1, 1, 0, 0, 0},     {1, 3, 4099, 1, 0, 0, 0},
    {1, 700, 3, 1, 0, 0, 0},  {1, 64, 257, 1, 0, 0, 0}, {1, 301, 333, 1, 0, 0, 0},
#endif
};

enum { NUMBERS = ZR_BLOCK8_NUMBERS, FLOATS = sizeof(struct zr_block8) / sizeof(float) };

static bool rounds(const struct tensor *parameter, const struct tensor *master)
{
    bool good = true;
    for (size_t i = 0; i < master->n; i++)
        good = good &&
               (precision == ZR_PRECISION_FP32
                    ? parameter->at[i] == master->at[i]
                    : ((uint16_t *)parameter->at)[i] == reference_encode((double)master->at[i], precision));
    return good;
}

static struct tensor *copy_of(const struct tensor *t)
{
    struct tensor *copy = output_of(t->precision, t->n);
    memcpy(copy->at, t->at, tensor_bytes(t));
    return copy;
}

static bool same(const struct tensor *a, const struct tensor *b)
{
    return memcmp(a->at, b->at, tensor_bytes(a)) == 0;
}

static void *at(const struct tensor *t, size_t i)
{
    return (char *)t->at + i * zr_precision_bytes(t->precision);
}

static struct zr_numbers from(const struct tensor *t, size_t i)
{
    return (struct zr_numbers){at(t, i), t->precision};
}

/* A copy that begins between two lines of four numbers. */
static struct tensor *late_copy_of(const struct tensor *t, struct tensor *view)
{
    const struct tensor *room = output_of(t->precision, t->n + 1);
    *view = *t;
    view->at = at(room, 1);
    memcpy(view->at, t->at, tensor_bytes(t));
    return view;
}

/* ---- Blocks of eight bits ------------------------------------------------------------------------------ */

static size_t blocks_for(size_t n)
{
    return (n + NUMBERS - 1) / NUMBERS;
}

static struct zr_block8 *blocks_at(const struct tensor *blocks)
{
    return (struct zr_block8 *)(void *)blocks->at;
}

static struct tensor *blocks_of(struct zr_kernel_context *c, const struct tensor *x, bool is_signed)
{
    struct tensor *blocks = output(FLOATS * blocks_for(x->n));
    kernels->block8_write(c, &(struct zr_block8_write){x->n, is_signed, x->at, blocks_at(blocks)});
    return blocks;
}

static struct tensor *numbers_of(struct zr_kernel_context *c, const struct tensor *blocks, size_t n,
                                 bool is_signed)
{
    struct tensor *x = output(n);
    kernels->block8_read(c, &(struct zr_block8_read){n, is_signed, blocks_at(blocks), x->at});
    tensor_follow(x);
    return x;
}

/* The code of the nearest value, the lower one of two. */
static unsigned nearest(const double map[NUMBERS], double x)
{
    unsigned best = 0;
    for (unsigned code = 1; code < NUMBERS; code++)
        best = fabs(x - map[code]) < fabs(x - map[best]) ? code : best;
    return best;
}

/* How far the blocks are from the nearest values of the numbers, in shares of the scale. */
static double distance(const double map[NUMBERS], const struct tensor *blocks, const double *x, size_t n,
                       bool is_signed)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        const struct zr_block8 *block = &blocks_at(blocks)[i / NUMBERS];
        double scale = (double)block->scale, share = (is_signed ? x[i] : fabs(x[i])) / scale;
        if (scale != 0)
            most = worst(most, fabs(share - map[block->codes[i % NUMBERS]]) -
                                   fabs(share - map[nearest(map, share)]));
    }
    return most;
}

static bool same_again(struct zr_kernel_context *c, const struct tensor *blocks, size_t n, bool is_signed)
{
    return same(blocks, blocks_of(c, numbers_of(c, blocks, n, is_signed), is_signed));
}

/* Numbers of every size, blocks of zeros, and a last block that is partly filled. */
static double case_blocks(struct zr_kernel_context *c, const struct shape *s)
{
    const size_t n = rows_of(s) * s->channels % 5000 + 3 * NUMBERS, count = blocks_for(n);
    struct tensor *x = in_out(n, 0, 1);
    double map[NUMBERS], error = 0;
    bool good = true;
    for (size_t i = 0; i < n; i++)
        tensor_set(x, i, ldexp(x->real[i], i / NUMBERS == 1 ? -900 : (int)(i / NUMBERS * 41 % 217) - 90));
    tensor_set(x, n - 1, 0.5); /* no last block of small numbers only */
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        struct tensor *blocks = blocks_of(c, x, is_signed);
        reference_block8_map(is_signed, map);
        for (size_t block = 0; block < count; block++) {
            double most = 0;
            for (size_t i = block * NUMBERS; i < n && i < (block + 1) * NUMBERS; i++)
                most = worst(most, fabs(x->real[i]));
            good = good && (double)blocks_at(blocks)[block].scale == most;
        }
        for (size_t i = n; i < count * NUMBERS; i++)
            good = good && blocks_at(blocks)[i / NUMBERS].codes[i % NUMBERS] == 0;
        for (size_t i = 0; i < NUMBERS; i++)
            good = good && blocks_at(blocks)[1].codes[i] == 0;
        error = worst(error, distance(map, blocks, x->real, n, is_signed));
        good = good && same_again(c, blocks, n, is_signed);
    }
    return good ? error / 0x1p-22 : INFINITY;
}

/* Each code at scales from the least to the largest is read as its value and becomes the same code again;
 * numbers at and beside the border of two values; what is not finite, and what is too small. */
static double case_codes(struct zr_kernel_context *c, const struct shape *s)
{
    static const float scales[] = {0x1p-100f, 1, 0x1.234568p-3f, 0x1.fffffep127f};
    double map[NUMBERS], error = 0;
    unsigned wrong = 0;
    (void)s;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        struct tensor *blocks = output(4 * FLOATS), *x = output(4 * NUMBERS);
        reference_block8_map(is_signed, map);
        for (unsigned i = 0; i < 4 * NUMBERS; i++) {
            blocks_at(blocks)[i / NUMBERS].scale = scales[i / NUMBERS];
            blocks_at(blocks)[i / NUMBERS].codes[i % NUMBERS] =
                (uint8_t)(is_signed && i % NUMBERS == NUMBERS / 2 ? 0 : i);
        }
        struct tensor *values = numbers_of(c, blocks, 4 * NUMBERS, is_signed);
        for (unsigned i = 0; i < 4 * NUMBERS; i++)
            error = worst(error, fabs(values->real[i] / (double)scales[i / NUMBERS] - map[i % NUMBERS]) /
                                     (fabs(map[i % NUMBERS]) + 1e-30));
        wrong += !same_again(c, blocks, 4 * NUMBERS, is_signed);
        for (unsigned i = 0; i < NUMBERS; i++) {
            unsigned next = (i + 1) % NUMBERS;
            float middle = (float)((values->real[NUMBERS + i] + values->real[NUMBERS + next]) / 2);
            map[i] = values->real[NUMBERS + i];
            x->at[i] = middle;
            x->at[NUMBERS + i] = nextafterf(middle, 2);
            x->at[2 * NUMBERS + i] = nextafterf(middle, -2);
            x->at[3 * NUMBERS + i] = values->at[NUMBERS + i];
        }
        for (unsigned block = 0; block < 4; block++)
            x->at[block * NUMBERS] = 1; /* the scale */
        tensor_follow(x);
        blocks = blocks_of(c, x, is_signed);
        for (unsigned i = 0; i < 4 * NUMBERS; i++)
            wrong += blocks_at(blocks)[i / NUMBERS].codes[i % NUMBERS] !=
                     nearest(map, is_signed ? x->real[i] : fabs(x->real[i]));
        x->at[5] = NAN, x->at[NUMBERS + 7] = -INFINITY;
        for (unsigned i = 2 * NUMBERS; i < 4 * NUMBERS; i++)
            x->at[i] *= i < 3 * NUMBERS ? 0x1p-101f : 0x1p-100f;
        blocks = blocks_of(c, x, is_signed);
        wrong += !same_again(c, blocks, 4 * NUMBERS, is_signed);
        values = numbers_of(c, blocks, 4 * NUMBERS, is_signed);
        for (unsigned i = 0; i < 2 * NUMBERS; i++)
            wrong += !isnan(values->at[i]) + (values->at[2 * NUMBERS + i] != 0 && i < NUMBERS);
        wrong += values->at[3 * NUMBERS] != 0x1p-100f;
    }
    return wrong ? INFINITY : error / 1e-6;
}

static struct zr_update_adamw8 adamw8_of(struct tensor *const t[4], const struct tensor *gradient,
                                         size_t first, size_t n)
{
    return (struct zr_update_adamw8){
        .how = {3e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 1 - 0.9f * 0.9f, 1 - 0.95f * 0.95f, NULL, NULL},
        .numbers = {.n = n,
                    .gradient = from(gradient, first),
                    .master = t[0]->at + first,
                    .parameter = from(t[1], first)},
        .momentum = blocks_at(t[2]) + first / NUMBERS,
        .variance = blocks_at(t[3]) + first / NUMBERS};
}

/* A two-byte gradient, then an fp32 shard: once as a whole, and once cut at the border of two blocks and
 * beginning elsewhere. */
static double case_adamw8(struct zr_kernel_context *c, const struct shape *s)
{
    const size_t n = rows_of(s) * s->channels % 9000 + NUMBERS + 1,
                 cut = random_bits() % blocks_for(n) * NUMBERS;
    struct tensor *narrow = input_of(precision, n, 0, 1), *wide = input(n, 0, 1);
    struct tensor *t[4] = {in_out(n, 0, 1), output_of(precision, n), blocks_of(c, in_out(n, 0, 1), true),
                           blocks_of(c, in_out(n, 0.5, 0.4), false)};
    struct tensor *parts[4], late[2];
    double error = 0, maps[2][NUMBERS];
    bool good = true;
    for (unsigned k = 0; k < 4; k++)
        parts[k] = k < 2 ? late_copy_of(t[k], &late[k]) : copy_of(t[k]);
    for (int pass = 0; pass < 2; pass++) {
        const struct tensor *gradient = pass == 0 ? narrow : wide;
        struct zr_update_adamw8 whole = adamw8_of(t, gradient, 0, n),
                                first = adamw8_of(parts, gradient, 0, cut),
                                second = adamw8_of(parts, gradient, cut, n - cut);
        struct tensor *m = numbers_of(c, t[2], n, true), *v = numbers_of(c, t[3], n, false);
        kernels->update_adamw8(c, &whole);
        kernels->update_adamw8(c, &first);
        kernels->update_adamw8(c, &second);
        for (size_t i = 0; i < n; i++)
            reference_adamw(&whole.how, gradient->real[i], &t[0]->real[i], &m->real[i], &v->real[i]);
        good = good && rounds(t[1], t[0]);
        for (unsigned k = 0; k < 4; k++)
            good = good && same(t[k], parts[k]);
        error = worst(error, error_of(t[0]) / float_tolerance);
        for (unsigned k = 0; k < 2; k++) {
            reference_block8_map(k == 0, maps[k]);
            error = worst(error, distance(maps[k], t[2 + k], k == 0 ? m->real : v->real, n, k == 0) / 4e-6);
        }
    }
    return good ? error : INFINITY;
}

/* ---- Adafactor ----------------------------------------------------------------------------------------- */

enum { PARTS = 3 };

/* Steps of Adafactor whose update is clipped, or not, whose size is the rate, the master's, or epsilon2, and
 * whose rate is less than the largest, or not. */
static struct zr_adafactor adafactor_of(int pass)
{
    struct zr_adafactor how = {.rate = 0.01f,
                               .weight_decay = 0.1f,
                               .share = pass == 0 ? 1 : powf((float)pass + 1, -0.8f),
                               .step_max = 0.7f,
                               .epsilon1 = 0x1p-23f,
                               .epsilon2 = 1e-3f,
                               .threshold = 1,
                               .gradient_scale = 0.5f,
                               .relative = pass > 0,
                               .momentum_factor = 0.8f};
    if (pass == 1)
        how.threshold = 0.3f, how.rate = 1;
    if (pass == 2)
        how.epsilon2 = 2;
    return how;
}

static double *doubles(size_t n)
{
    struct tensor *t = output(2 * n);
    memset(t->at, 0, tensor_bytes(t));
    return (double *)(void *)t->at;
}

static double difference(size_t n, const double *got, const double *real)
{
    double most = 0, largest = 1e-30;
    for (size_t i = 0; i < n; i++) {
        largest = worst(largest, fabs(real[i]));
        double now = fabs(got[i] - real[i]);
        most = now <= most ? most : isnan(now) ? INFINITY : now;
    }
    return most / largest;
}

/* A matrix, or a vector of the same numbers, in PARTS parts. */
struct factored {
    struct tensor *narrow, *wide;      /* gradients */
    struct tensor *master, *parameter; /* updated part by part */
    struct tensor *variance;           /* NULL: a matrix */
    struct tensor *momentum;           /* NULL: in the first pass */
    struct tensor *rows, *columns, *mean, *u;
    size_t n, width, cuts[PARTS + 1];
};

static struct factored factored_begin(const struct shape *s, bool is_vector)
{
    const size_t n = rows_of(s) * s->channels;
    struct factored f = {.n = n, .width = s->channels, .cuts = {0, 0, 0, n}};
    f.narrow = in_out_of(precision, n, 0, 1), f.wide = in_out(n, 0, 1);
    for (size_t i = 0; i < f.width && n > f.width; i++) { /* a row of zeros, and one that epsilon1 bounds */
        tensor_set(f.wide, i, 0), tensor_set(f.narrow, i, 0);
        tensor_set(f.wide, n - 1 - i, 1e-12), tensor_set(f.narrow, n - 1 - i, 0);
    }
    f.master = in_out(n, 0, 1), f.parameter = output_of(precision, n), f.u = output(n);
    if (is_vector) {
        f.variance = in_out(n, 0, 0);
    } else {
        f.rows = in_out(rows_of(s), 0, 0), f.columns = in_out(f.width, 0, 0), f.mean = output(1);
    }
    f.cuts[2] = random_bits() % (n + 1);
    f.cuts[1] = random_bits() % (f.cuts[2] + 1);
    return f;
}

static struct zr_update part_of(const struct factored *f, const struct tensor *gradient, size_t first,
                                size_t end)
{
    return (struct zr_update){.n = end - first,
                              .gradient = from(gradient, first),
                              .master = f->master->at + first,
                              .momentum = f->momentum ? f->momentum->at + first : NULL,
                              .variance = f->variance ? f->variance->at + first : NULL,
                              .parameter = from(f->parameter, first)};
}

static struct zr_factors factors_of(const struct factored *f, size_t first)
{
    struct zr_factors factors = {.first = first, .columns = f->width};
    if (!f->variance)
        factors.row_factors = f->rows->at, factors.column_factors = f->columns->at,
        factors.row_mean = f->mean->at;
    return factors;
}

/* The sums of the parts and the factors; the largest error of both. */
static double move_factors(struct zr_kernel_context *c, const struct factored *f,
                           const struct zr_adafactor *how, const struct tensor *gradient)
{
    const size_t rows = f->rows->n, columns = f->width, stride = rows + columns;
    double *row_sums = doubles(PARTS * stride), *column_sums = row_sums + rows,
           *real_rows = calloc(rows, sizeof *real_rows), *real_columns = calloc(columns, sizeof *real_rows),
           *of_rows = calloc(rows, sizeof *of_rows), *of_columns = calloc(columns, sizeof *of_rows), sum = 0,
           error = 0;
    for (unsigned k = 0; k < PARTS; k++) {
        const size_t first = f->cuts[k], n = f->cuts[k + 1] - first;
        struct zr_factor_sums sums = {n,
                                      first,
                                      columns,
                                      from(gradient, first),
                                      how->gradient_scale,
                                      NULL,
                                      row_sums + k * stride,
                                      column_sums + k * stride};
        kernels->factor_sums(c, &sums);
        memset(of_rows, 0, rows * sizeof *of_rows), memset(of_columns, 0, columns * sizeof *of_columns);
        const struct reference_part part = {n, first, columns, how->gradient_scale};
        reference_factor_sums(&part, gradient->real + first, of_rows, of_columns);
        error = worst(error, difference(rows, row_sums + k * stride, of_rows) / 1e-12);
        error = worst(error, difference(columns, column_sums + k * stride, of_columns) / 1e-12);
        for (size_t i = 0; i < rows; i++)
            real_rows[i] += of_rows[i];
        for (size_t i = 0; i < columns; i++)
            real_columns[i] += of_columns[i];
    }
    kernels->factor_moments(c, &(struct zr_factor_moments){*how, rows, columns, PARTS, stride, row_sums,
                                                           column_sums, f->rows->at, f->columns->at,
                                                           f->mean->at});
    reference_factors(rows, how, real_rows, columns, f->rows->real);
    reference_factors(columns, how, real_columns, rows, f->columns->real);
    for (size_t i = 0; i < rows; i++)
        sum += f->rows->real[i];
    f->mean->real[0] = sum / (double)rows;
    free(real_rows), free(real_columns), free(of_rows), free(of_columns);
    return worst(error, worst(error_of(f->mean), worst(error_of(f->rows), error_of(f->columns))) / 3e-7);
}

/* The quotients by the reference, from factors that the kernels have moved. */
static void find_quotients(const struct factored *f, const struct zr_adafactor *how,
                           const struct tensor *gradient)
{
    for (size_t i = 0; i < f->n; i++) {
        double g = gradient->real[i] * how->gradient_scale, v;
        if (f->variance)
            v = f->variance->real[i] += how->share * (g * g + how->epsilon1 - f->variance->real[i]);
        else
            v = f->rows->real[i / f->width] * f->columns->real[i % f->width] /
                fmax(f->mean->real[0], how->epsilon1);
        f->u->real[i] = reference_quotient(g, v, how->epsilon1);
    }
}

static double case_factored(struct zr_kernel_context *c, const struct shape *s, bool is_vector)
{
    struct factored f = factored_begin(s, is_vector), whole = f;
    double error = 0;
    bool good = true;
    whole.master = copy_of(f.master), whole.parameter = copy_of(f.parameter);
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 1)
            f.momentum = in_out(f.n, 0, 0.01), whole.momentum = copy_of(f.momentum);
        const struct tensor *gradient = pass == 0 ? f.narrow : f.wide;
        const struct zr_adafactor how = adafactor_of(pass);
        double *squares = doubles(2 * PARTS), masters = 0, updates = 0, real[2] = {0};
        if (!is_vector)
            error = worst(error, move_factors(c, &f, &how, gradient));
        find_quotients(&f, &how, gradient);
        for (unsigned k = 0; k < PARTS; k++)
            kernels->factor_norm(c, &(struct zr_factor_norm){how, factors_of(&f, f.cuts[k]),
                                                             part_of(&f, gradient, f.cuts[k], f.cuts[k + 1]),
                                                             squares + 2 * k});
        for (unsigned k = 0; k < PARTS; k++)
            updates += squares[2 * k], masters += squares[2 * k + 1];
        for (size_t i = 0; i < f.n; i++)
            real[0] += f.u->real[i] * f.u->real[i], real[1] += f.master->real[i] * f.master->real[i];
        error = worst(error, fabs(updates - real[0]) / real[0] / float_tolerance);
        if (how.relative)
            error = worst(error, fabs(masters - real[1]) / real[1] / float_tolerance);
        struct zr_update_factored update = {.how = how, .parts = PARTS, .elements = f.n, .squares = squares};
        for (unsigned k = 0; k < PARTS; k++) {
            update.factors = factors_of(&f, f.cuts[k]);
            update.numbers = part_of(&f, gradient, f.cuts[k], f.cuts[k + 1]);
            kernels->update_factored(c, &update);
        }
        update.factors = factors_of(&whole, 0), update.numbers = part_of(&whole, gradient, 0, f.n);
        kernels->update_factored(c, &update);
        reference_factored(&how, f.n, f.u->real, f.master->real, f.momentum ? f.momentum->real : NULL);
        good = good && rounds(f.parameter, f.master) && same(f.master, whole.master) &&
               same(f.parameter, whole.parameter);
        error = worst(error, error_of(f.master) / float_tolerance);
        if (f.momentum)
            error = worst(error, same(f.momentum, whole.momentum)
                                     ? error_beside(f.momentum, f.master) / float_tolerance
                                     : INFINITY);
        if (is_vector)
            error = worst(error, error_of(f.variance) / float_tolerance);
    }
    return good ? error : INFINITY;
}

static double case_matrix(struct zr_kernel_context *c, const struct shape *s)
{
    return case_factored(c, s, false);
}

static double case_vector(struct zr_kernel_context *c, const struct shape *s)
{
    return case_factored(c, s, true);
}

/* ---- Muon ---------------------------------------------------------------------------------------------- */

static double case_direction(struct zr_kernel_context *c, const struct shape *s)
{
    const size_t n = rows_of(s) * s->channels % 9000 + 5, cut = random_bits() % n;
    struct tensor *narrow = input_of(precision, n, 0, 1), *wide = input(n, 0, 1), *m = in_out(n, 0, 1),
                  *direction = output(n), *p = in_out(n, 0, 1), *small = output_of(precision, n);
    double error = 0;
    bool good = true;
    for (int pass = 0; pass < 2; pass++) {
        const struct tensor *gradient = pass == 0 ? narrow : wide;
        for (size_t first = 0; first < n; first = first < cut ? cut : n) {
            size_t count = (first < cut ? cut : n) - first;
            kernels->muon_direction(c,
                                    &(struct zr_muon_direction){count, from(gradient, first), 0.5f, 0.95f,
                                                                NULL, m->at + first, direction->at + first});
            kernels->apply_direction(
                c, &(struct zr_apply_direction){
                       .rate = 0.02f,
                       .scale = 0.7f,
                       .weight_decay = 0.1f,
                       .direction = direction->at + first,
                       .numbers = {.n = count, .master = p->at + first, .parameter = from(small, first)}});
        }
        for (size_t i = 0; i < n; i++) {
            double g = gradient->real[i] * 0.5;
            m->real[i] = (double)0.95f * m->real[i] + g;
            direction->real[i] = g + (double)0.95f * m->real[i];
            p->real[i] = p->real[i] * (1 - (double)0.02f * 0.1) - (double)0.02f * 0.7 * direction->real[i];
        }
        good = good && rounds(small, p);
        error = worst(error, worst(error_of(m), worst(error_of(direction), error_of(p))) / float_tolerance);
    }
    return good ? error : INFINITY;
}

/* The five iterations enlarge what was rounded by up to 3.4445^5. */
static double case_orthogonal(struct zr_kernel_context *c, const struct shape *s)
{
    const size_t rows = rows_of(s) < 96 ? rows_of(s) : 96, columns = s->channels < 80 ? s->channels : 80;
    struct tensor *x = in_out(rows * columns, 0, 3), *zero = in_out(rows * columns, 0, 0);
    struct zr_orthogonalize args = {.rows = rows, .columns = columns, .x = x->at};
    args.workspace_bytes = kernels->orthogonalize_bytes(&args);
    const size_t side = rows < columns ? rows : columns, n = args.workspace_bytes / sizeof(float);
    struct tensor *workspace = output(n);
    double *scratch = calloc(2 * side * side + rows * columns, sizeof *scratch);
    args.workspace = workspace->at;
    bool good = kernels->orthogonalize(c, &args) == ZR_OK;
    args.x = zero->at;
    good = good && kernels->orthogonalize(c, &args) == ZR_OK;
    for (size_t i = 0; i < zero->n; i++)
        good = good && zero->at[i] == 0;
    if (reference_wanted)
        reference_orthogonalize(rows, columns, x->real, scratch);
    free(scratch);
    return good ? error_of(x) / 1e-4 : INFINITY;
}

/* ---- LAMB ---------------------------------------------------------------------------------------------- */

/* A tensor in parts and whole: masters whose trust ratio is within its limits, at each of them, and zeros. */
static double case_lamb(struct zr_kernel_context *c, const struct shape *s)
{
    static const double sizes[] = {1, 100, 1e-3, 0};
    const size_t n = rows_of(s) * s->channels, cuts[] = {0, random_bits() % (n + 1), n};
    double error = 0;
    bool good = true;
    for (unsigned pass = 0; pass < sizeof sizes / sizeof *sizes; pass++) {
        struct tensor *gradient = pass % 2 ? input(n, 0, 1) : input_of(precision, n, 0, 1),
                      *master = in_out(n, 0, sizes[pass]), *m = in_out(n, 0, 0.1), *v = in_out(n, 0.5, 0.4),
                      *parameter = output_of(precision, n), *whole = copy_of(master);
        double *squares = doubles(4), real[2];
        struct zr_update_lamb update = {.how = {{.rate = 0.1f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.95f,
                                                 .epsilon = 1e-6f,
                                                 .weight_decay = 0.1f,
                                                 .gradient_scale = 0.5f,
                                                 .correction1 = 0.19f,
                                                 .correction2 = 0.0975f},
                                                .trust_min = 0.05f,
                                                .trust_max = 10},
                                        .parts = 2,
                                        .squares = squares};
        for (unsigned k = 0; k < 2; k++)
            kernels->lamb_norms(c, &(struct zr_lamb_norms){update.how,
                                                           {.n = cuts[k + 1] - cuts[k],
                                                            .gradient = from(gradient, cuts[k]),
                                                            .master = master->at + cuts[k],
                                                            .momentum = m->at + cuts[k],
                                                            .variance = v->at + cuts[k]},
                                                           squares + 2 * k});
        for (unsigned k = 0; k < 3; k++) { /* two parts, then the whole */
            const size_t first = k < 2 ? cuts[k] : 0, end = k < 2 ? cuts[k + 1] : n;
            update.numbers = (struct zr_update){.n = end - first,
                                                .master = (k < 2 ? master : whole)->at + first,
                                                .momentum = m->at + first,
                                                .variance = v->at + first,
                                                .parameter = from(parameter, first)};
            kernels->update_lamb(c, &update);
        }
        reference_lamb(&update.how, n, gradient->real, master->real, m->real, v->real, real);
        good = good && rounds(parameter, master) && same(master, whole);
        for (unsigned k = 0; k < 2; k++)
            error = worst(error, fabs(squares[k] + squares[2 + k] - real[k]) / (real[k] + 1e-30) / 1e-5);
        error = worst(error, worst(error_of(m), worst(error_of(v), error_of(master))) / float_tolerance);
    }
    return good ? error : INFINITY;
}

/* ---- What an update finds in the table's memory -------------------------------------------------------- */

/* Each update of 300 numbers with these; into fresh tensors, whose list ends with NULL. */
static void run_updates(struct zr_kernel_context *c, const struct tensor *g, struct tensor *const fresh[],
                        struct zr_adamw adamw)
{
    enum { N = 300, ROWS = 3 };
    double *squares = doubles(2), *sums = doubles(2 * N);
    struct zr_adafactor how = {.rate = adamw.rate,
                               .weight_decay = 0.1f,
                               .share = adamw.correction1,
                               .step_max = adamw.correction2,
                               .epsilon1 = 0x1p-23f,
                               .epsilon2 = 1e-3f,
                               .threshold = 1,
                               .gradient_scale = adamw.gradient_scale,
                               .weight = adamw.weight,
                               .rates = adamw.rates,
                               .relative = true};
    struct zr_update numbers = {
        .n = N, .gradient = from(g, 0), .master = fresh[0]->at, .parameter = from(fresh[1], 0)};
    kernels->update_adamw8(
        c, &(struct zr_update_adamw8){adamw, numbers, blocks_at(fresh[2]), blocks_at(fresh[3])});
    kernels->factor_sums(c, &(struct zr_factor_sums){N, 0, N / ROWS, from(g, 0), adamw.gradient_scale,
                                                     adamw.weight, sums, sums + ROWS});
    kernels->factor_moments(c,
                            &(struct zr_factor_moments){how, ROWS, N / ROWS, 1, 0, sums, sums + ROWS,
                                                        fresh[4]->at, fresh[4]->at + ROWS, fresh[4]->at + N});
    const struct zr_factors factors = {0, N / ROWS, fresh[4]->at, fresh[4]->at + ROWS, fresh[4]->at + N};
    for (int is_vector = 0; is_vector < 2; is_vector++) {
        numbers.variance = is_vector ? fresh[5]->at : NULL;
        kernels->factor_norm(c, &(struct zr_factor_norm){how, factors, numbers, squares});
        kernels->update_factored(c, &(struct zr_update_factored){how, factors, numbers, 1, N, squares, 0});
    }
    kernels->muon_direction(c, &(struct zr_muon_direction){N, from(g, 0), adamw.gradient_scale, 0.9f,
                                                           adamw.weight, fresh[6]->at, fresh[7]->at});
    kernels->apply_direction(c, &(struct zr_apply_direction){adamw.rate, 0.7f, 0.1f, adamw.weight,
                                                             adamw.rates, fresh[7]->at, numbers});
    const struct zr_lamb lamb = {adamw, 0.01f, 10};
    numbers.momentum = fresh[8]->at, numbers.variance = fresh[9]->at;
    kernels->lamb_norms(c, &(struct zr_lamb_norms){lamb, numbers, squares});
    kernels->update_lamb(c, &(struct zr_update_lamb){lamb, numbers, 1, squares, 0, NULL});
}

/* Weight and rates give the bits of the same values as arguments; a skipped update changes nothing. */
static double case_pointers(struct zr_kernel_context *c, const struct shape *s)
{
    enum { N = 300, LIST = 10 };
    struct tensor *g = input_of(precision, N, 0, 1), *lists[4][LIST];
    struct zr_gradient_weight weight = {.scale = 0.5f}, skips = {.scale = 0.5f, .skips = 1};
    struct zr_step_rates rates = {0.25f, 0.19f, 0.0975f, 0};
    struct zr_adamw plain = {.rate = 0.5f * 0.25f,
                             .beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .epsilon = 1e-8f,
                             .weight_decay = 0.1f,
                             .gradient_scale = 0.5f,
                             .correction1 = 0.19f,
                             .correction2 = 0.0975f},
                    pointers = plain;
    bool good = true;
    (void)s;
    pointers.rate = 0.5f, pointers.gradient_scale = pointers.correction1 = pointers.correction2 = 3;
    pointers.weight = &weight, pointers.rates = &rates;
    lists[0][0] = in_out(N, 0, 1), lists[0][1] = in_out_of(precision, N, 0, 1);
    lists[0][2] = blocks_of(c, in_out(N, 0, 1), true), lists[0][3] = blocks_of(c, in_out(N, 0.5, 0.4), false);
    lists[0][4] = in_out(N + 1, 0.5, 0.4), lists[0][5] = in_out(N, 0.5, 0.4);
    lists[0][6] = in_out(N, 0, 1), lists[0][7] = in_out(N, 0, 1);
    lists[0][8] = in_out(N, 0, 1), lists[0][9] = in_out(N, 0.5, 0.4);
    for (unsigned list = 1; list < 4; list++)
        for (unsigned k = 0; k < LIST; k++)
            lists[list][k] = copy_of(lists[0][k]);
    run_updates(c, g, lists[1], plain);
    run_updates(c, g, lists[2], pointers);
    pointers.weight = &skips;
    run_updates(c, g, lists[3], pointers);
    for (unsigned k = 0; k < LIST; k++)
        good = good && same(lists[1][k], lists[2][k]) && same(lists[0][k], lists[3][k]) &&
               !same(lists[0][k], lists[1][k]);
    return good ? 0 : INFINITY;
}

#ifdef ZR_TEST_ON_CARD
/* Adafactor and Muon once more by the processor's table: each tensor has the same bits. */
static double case_processor(struct zr_kernel_context *c, const struct shape *s)
{
    const struct zr_kernels *card_kernels = kernels, *cpu = zr_kernels_cpu(ZR_ISA_PLAIN);
    const struct zr_kernel_limits limits = {.rows = 1, .channels = 1, .threads = 1};
    struct zr_kernel_context host = {.parallel = {.threads = 1}, .precision = precision};
    const size_t first = tensors_count;
    const uint64_t seed = random_state;
    bool good = true;
    host.workspace_bytes = cpu->workspace_bytes(&limits, ZR_ISA_PLAIN);
    host.workspace = aligned_alloc(64, (host.workspace_bytes + 63) / 64 * 64);
    double error = worst(case_matrix(c, s), worst(case_vector(c, s), case_direction(c, s)));
    const size_t count = tensors_count - first;
    random_state = seed;
    kernels = cpu;
    good = host.workspace && cpu->open(&host) == ZR_OK;
    if (good)
        error = worst(error,
                      worst(case_matrix(&host, s), worst(case_vector(&host, s), case_direction(&host, s))));
    cpu->close(&host);
    free(host.workspace);
    kernels = card_kernels;
    good = good && tensors_count - first == 2 * count;
    for (size_t i = first; good && i < first + count; i++)
        good = same(&tensors[i], &tensors[i + count]);
    return good ? error : INFINITY;
}
#endif

/* ---- The driver ---------------------------------------------------------------------------------------- */

static const struct test_case cases[] = {
    {"blocks of eight bits", case_blocks},
    {"all codes", case_codes},
    {"adamw in eight bits", case_adamw8},
    {"adafactor of a matrix", case_matrix},
    {"adafactor of a vector", case_vector},
    {"muon's direction", case_direction},
    {"orthogonalize", case_orthogonal},
    {"lamb", case_lamb},
    {"weights and rates in memory", case_pointers},
#ifdef ZR_TEST_ON_CARD
    {"the processor's bits", case_processor},
#endif
};

static void check_refusals(enum zr_isa isa)
{
    struct zr_kernel_context c, closed;
    unsigned threads = 1;
    struct zr_orthogonalize args = {.rows = 4, .columns = 3}, huge = {.rows = SIZE_MAX / 8, .columns = 3};
    if (!begin(&c, &shapes[0], isa, &threads))
        return;
    closed = c, closed.library = NULL;
    args.workspace_bytes = kernels->orthogonalize_bytes(&args) - 1;
    tap_ok(kernels->orthogonalize(&c, &args) == ZR_ERR_INVALID &&
               strstr(zr_last_error(), "orthogonalize_bytes"),
           "%s: a workspace that is a byte too small is refused", table_name(isa));
    tap_ok(kernels->orthogonalize_bytes(&huge) == SIZE_MAX &&
               zr_kernels_null()->orthogonalize_bytes(&args) == args.workspace_bytes + 1,
           "%s: its size saturates, and is the same in the null table", table_name(isa));
    args.workspace_bytes++;
    tap_ok(kernels->orthogonalize(&closed, &args) == ZR_ERR_INVALID &&
               kernels->update_adamw8(&closed, &(struct zr_update_adamw8){.numbers = {.n = 1}}) ==
                   ZR_ERR_INVALID,
           "%s: a context that is not open is refused", table_name(isa));
    tap_ok(kernels->factor_sums(&c, &(struct zr_factor_sums){.columns = 1}) == ZR_OK &&
               kernels->muon_direction(&c, &(struct zr_muon_direction){0}) == ZR_OK,
           "%s: no elements are no error", table_name(isa));
    context_end(&c);
}

#ifdef ZR_TEST_ON_CARD
/* Products in floats that cuBLASLt takes. */
static void check_library(void)
{
    static const struct shape aligned = {1, 80, 96, 1, 0, 0, 0};
    struct zr_lt_emulator *library = card_library(true);
    unsigned before = library ? library->products : 0;
    run_case(&(struct test_case){"orthogonalize", case_orthogonal}, &aligned, 99, ZR_ISA_PLAIN);
    tap_ok(library && library->products > before && !library->report[0],
           "%s, %s: the library has made the products", table_name(ZR_ISA_PLAIN),
           zr_precision_name(precision));
    card_library(false);
}
#endif

static void test_isa(enum zr_isa isa)
{
    kernels = table_of(isa);
    precision = ZR_PRECISION_FP32;
    check_refusals(isa);
#ifdef ZR_TEST_ON_CARD
    check_library();
    precision = ZR_PRECISION_BF16;
    check_library();
#endif
    for (precision = ZR_PRECISION_FP32; precision < ZR_PRECISION_COUNT; precision++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            for (size_t j = 0; j < SHAPES_TAKEN(2); j++)
                if (j == 0 || (cases[i].run != case_codes && cases[i].run != case_pointers))
                    run_case(&cases[i], &shapes[j], j, isa);
}

int main(void)
{
    double flops = 0;
    struct zr_kernel_context counting = {.flops = &flops};
    base_seed = run_seed();
    zr_kernels_null()->orthogonalize(&counting, &(struct zr_orthogonalize){.rows = 6, .columns = 4});
    tap_ok(flops == 5 * (2 * 2.0 * 6 * 4 * 4 + 2.0 * 4 * 4 * 4),
           "the products of five iterations are counted");
    for_each_isa(test_isa);
    return tap_done();
}
