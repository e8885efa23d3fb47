/* fp8_test.c: numbers of eight bits (kernels/fp8.h), all of them, beside their definition in double
 * precision; scales, of every bf16 number; and linear operations in fp8 of every instruction set this
 * processor has: what operands are rounded to, bit by bit, and products beside double precision on random
 * shapes, for 1, 2 and 3 threads with the same bits. */
#include "kernels/fp8.h"
#include "kernels/cuda/driver_launch.h"
#include "tests/support/kernels/kernels_cases.h"

/* ---- Numbers ------------------------------------------------------------------------------------------- */

static const enum zr_fp8 kinds[] = {ZR_FP8_E4M3, ZR_FP8_E5M2};
static const char *const kind_names[] = {[ZR_FP8_E4M3] = "E4M3", [ZR_FP8_E5M2] = "E5M2"};

/* By the specification's table: the bias is 7 or 15; E4M3 has one NaN of each sign, E5M2 is as IEEE's. */
static double model_value(unsigned code, enum zr_fp8 kind)
{
    int bits = kind == ZR_FP8_E4M3 ? 3 : 2, bias = kind == ZR_FP8_E4M3 ? 7 : 15,
        exponent = (int)(code & 0x7f) >> bits, fraction = (int)code & ((1 << bits) - 1);
    double one = exponent > 0,
           size = ldexp(one + fraction / (double)(1 << bits), (exponent > 0 ? exponent : 1) - bias);
    if (kind == ZR_FP8_E4M3 && (code & 0x7f) == 0x7f)
        size = NAN;
    if (kind == ZR_FP8_E5M2 && exponent == 31)
        size = fraction ? NAN : INFINITY;
    return code & 0x80 ? -size : size;
}

static unsigned model_max(enum zr_fp8 kind)
{
    return kind == ZR_FP8_E4M3 ? 0x7e : 0x7b;
}

/* The code of the nearest number: of two as near the even one. */
static unsigned model_code(double x, enum zr_fp8 kind)
{
    unsigned best = 0;
    for (unsigned code = 1; code <= model_max(kind); code++) {
        double far = fabs(model_value(code, kind) - fabs(x)), least = fabs(model_value(best, kind) - fabs(x));
        if (far < least || (far == least && code % 2 == 0))
            best = code;
    }
    return best | (signbit(x) ? 0x80u : 0);
}

static double model_round(double x, enum zr_fp8 kind)
{
    return isnan(x) ? NAN : model_value(model_code(x, kind), kind);
}

/* Every code, the middle between it and the next, and the floats on both sides of that. */
static void test_numbers(enum zr_fp8 kind)
{
    unsigned values = 0, codes = 0, halves = 0;
    for (unsigned code = 0; code < 256; code++) {
        double real = model_value(code, kind);
        float got = zr_fp8_value((uint8_t)code, kind);
        values += isnan(real) ? !isnan(got) : (double)got != real || !!signbit(got) != (code >= 0x80);
        codes += isfinite(real) && zr_fp8_round(got, kind) != code;
    }
    for (unsigned code = 0; code < model_max(kind); code++) {
        double low = model_value(code, kind), high = model_value(code + 1, kind);
        float middle = (float)((low + high) / 2);
        for (unsigned sign = 0; sign < 2; sign++) {
            float side = sign ? -1 : 1;
            halves += zr_fp8_round(side * middle, kind) != (sign << 7 | (code + code % 2));
            halves += zr_fp8_round(side * nextafterf(middle, 0), kind) != (sign << 7 | code);
            halves += zr_fp8_round(side * nextafterf(middle, INFINITY), kind) != (sign << 7 | (code + 1));
        }
    }
    const float most = (float)model_value(model_max(kind), kind);
    const struct {
        float x;
        unsigned code;
    } ends[] = {{0, 0},
                {-0.0f, 0x80},
                {0x1p-149f, 0},
                {-0x1p-127f, 0x80},
                {most * 1.01f, model_max(kind)},
                {-most * 2, 0x80 | model_max(kind)},
                {0x1.fffffep127f, model_max(kind)},
                {INFINITY, model_max(kind)},
                {-INFINITY, 0x80 | model_max(kind)},
                {NAN, 0x7f},
                {-NAN, 0xff}};
    unsigned wrong = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        wrong += zr_fp8_round(ends[i].x, kind) != ends[i].code;
    tap_is(values, 0, "%s: all 256 codes have their value", kind_names[kind]);
    tap_is(codes, 0, "%s: a value is rounded to its own code", kind_names[kind]);
    tap_is(halves, 0, "%s: to nearest, and halves to even", kind_names[kind]);
    tap_is(wrong, 0, "%s: zeros, the smallest, what is too large, infinities, NaN", kind_names[kind]);
}

/* The largest power of two that keeps the largest number in the format, where two floats can hold it and its
 * inverse. */
static void test_scales(enum zr_fp8 kind)
{
    const double largest = model_value(model_max(kind), kind);
    unsigned wrong = 0;
    int power;
    for (unsigned most = 0; most < 0x8000; most++) {
        struct zr_fp8_scale scale = zr_fp8_scale_of(most, kind);
        double real = reference_decode((uint16_t)most, ZR_PRECISION_BF16);
        bool good = isfinite(real) ? (double)scale.to * scale.from == 1 && frexpf(scale.to, &power) == 0.5f
                                   : scale.to == 1 && isnan(scale.from);
        if (isfinite(real) && most >= 0x80)
            good = good && real * scale.to <= largest &&
                   (2 * real * scale.to > largest || scale.to == 0x1p126f) && scale.from >= 0x1p-126f;
        wrong += !(most < 0x80 ? good && scale.to == 1 : good);
    }
    tap_is(wrong, 0, "%s: every largest number has the scale that fits it", kind_names[kind]);
}

/* ---- Operands ------------------------------------------------------------------------------------------ */

static double scale_of(const double *numbers, size_t n, enum zr_fp8 kind)
{
    double most = 0, scale = 1, largest = model_value(model_max(kind), kind);
    for (size_t i = 0; i < n; i++)
        most = worst(most, fabs(numbers[i]));
    while (most > 0 && most * scale > largest)
        scale /= 2;
    while (most > 0 && most * scale * 2 <= largest)
        scale *= 2;
    return scale;
}

/* What an operand is to be multiplied as, itself without a kind; freed by the caller. */
static double *rounded(const double *numbers, size_t n, enum zr_fp8 kind)
{
    double *out = calloc(n + 1, sizeof *out), scale = kind ? scale_of(numbers, n, kind) : 1;
    if (!out)
        abort();
    for (size_t i = 0; i < n && reference_wanted; i++)
        out[i] = kind ? model_round(numbers[i] * scale, kind) / scale : numbers[i];
    return out;
}

/* Numbers over the whole range of a format and below it, and halves between its numbers; no two alike in
 * exponents and signs. */
static struct tensor *wide_input(size_t n)
{
    struct tensor *t = tensor_of(ZR_PRECISION_BF16, n);
    int middle = (int)(random_bits() % 40) - 20;
    for (size_t i = 0; i < n; i++)
        tensor_set(t, i, ldexp(random_unit(), middle - (int)(random_bits() % 24)));
    return t;
}

static struct tensor *unit_matrix(size_t n)
{
    struct tensor *t = tensor_of(ZR_PRECISION_BF16, n * n);
    for (size_t i = 0; i < n * n; i++)
        tensor_set(t, i, i / n == i % n);
    return t;
}

enum { SIDE = 48, LONG = 80 };

/* A product by the unit matrix is the other operand as it was rounded, to the bit. `x` [rows, columns]; got
 * [rows, columns], or with `crossed` [columns, rows]. */
static bool is_rounded(const struct tensor *got, const struct tensor *x, enum zr_fp8 kind, size_t columns,
                       bool crossed)
{
    double *want = rounded(x->real, x->n, kind);
    size_t wrong = 0, rows = x->n / columns;
    for (size_t i = 0; i < x->n; i++)
        wrong += !(tensor_get(got, crossed ? i % columns * rows + i / columns : i) == want[i]);
    free(want);
    return wrong == 0 || !reference_wanted;
}

static double case_operands(struct zr_kernel_context *c, const struct shape *s)
{
    struct tensor *unit = unit_matrix(SIDE), *a = wide_input(LONG * SIDE), *b = wide_input(SIDE * LONG),
                  *y = output_of(precision, LONG * SIDE);
    bool good = true;
    for (int turned = 0; turned < 2; turned++) {
        struct zr_linear tall = {.rows = LONG, .in = SIDE, .out = SIDE, .turned = turned, .fp8 = true},
                         wide = {.rows = SIDE, .in = SIDE, .out = LONG, .turned = turned, .fp8 = true},
                         thin = {.rows = SIDE, .in = LONG, .out = SIDE, .turned = turned, .fp8 = true};
        good = good &&
               kernels->linear_forward(
                   c, &(struct zr_linear_forward){tall, a->at, unit->at, NULL, y->at, false}) == ZR_OK &&
               is_rounded(y, a, ZR_FP8_E4M3, SIDE, false);
        good = good &&
               kernels->linear_forward(
                   c, &(struct zr_linear_forward){wide, unit->at, b->at, NULL, y->at, false}) == ZR_OK &&
               is_rounded(y, b, ZR_FP8_E4M3, turned ? SIDE : LONG, turned);
        struct zr_linear_backward back = {.shape = tall, .w = unit->at, .dy = a->at, .dx = y->at};
        good =
            good && kernels->linear_backward(c, &back) == ZR_OK && is_rounded(y, a, ZR_FP8_E5M2, SIDE, false);
        back = (struct zr_linear_backward){.shape = wide, .x = unit->at, .dy = b->at, .dw = y->at};
        good = good && kernels->linear_backward(c, &back) == ZR_OK &&
               is_rounded(y, b, ZR_FP8_E5M2, LONG, turned);
        back = (struct zr_linear_backward){.shape = thin, .x = b->at, .dy = unit->at, .dw = y->at};
        good = good && kernels->linear_backward(c, &back) == ZR_OK &&
               is_rounded(y, b, ZR_FP8_E4M3, LONG, !turned);
    }
    (void)s;
    return good ? 0 : INFINITY;
}

/* ---- Products ------------------------------------------------------------------------------------------ */

/* As of other two-byte results: half a unit of the last place, and what sums in floats lose. */
static double close_to(const struct tensor *got)
{
    double most = 0, largest = 1e-30;
    for (size_t i = 0; i < got->n; i++)
        largest = worst(largest, fabs(got->real[i]));
    for (size_t i = 0; i < got->n; i++) {
        double share =
            fabs(tensor_get(got, i) - got->real[i]) / (fabs(got->real[i]) * 0x1p-8 + 3e-6 * largest);
        most = share <= most ? most : isnan(share) ? INFINITY : share;
    }
    return most;
}

/* Of numbers [rows, columns]. */
static void turn(double *numbers, size_t rows, size_t columns)
{
    double *copy = calloc(rows * columns + 1, sizeof *copy);
    if (!copy)
        abort();
    memcpy(copy, numbers, rows * columns * sizeof *copy);
    for (size_t i = 0; i < rows * columns; i++)
        numbers[i % columns * rows + i / columns] = copy[i];
    free(copy);
}

/* A product whose matrix is stored either way; its gradient is added to. Where fp8 does not take the sizes,
 * it is one of bf16. */
static double linear_case(struct zr_kernel_context *c, const struct shape *s, bool turned)
{
    struct zr_linear l = {
        .rows = rows_of(s), .in = s->channels, .out = s->wide, .turned = turned, .fp8 = true};
    bool suits = l.rows % 16 == 0 && l.in % 16 == 0 && l.out % 16 == 0;
    size_t x_n = l.rows * l.in, w_n = l.in * l.out, y_n = l.rows * l.out;
    struct tensor *x = input_of(precision, x_n, 0, 3), *w = input_of(precision, w_n, 0, 0.1),
                  *bias = input_of(precision, l.out, 0, 1), *dy = input_of(precision, y_n, 0, 1e-4);
    struct tensor *y = output_of(precision, y_n), *dx = output_of(precision, x_n),
                  *dw = in_out_of(precision, w_n, 0, 1e-3), *db = in_out_of(precision, l.out, 0, 1e-3);
    double *x8 = rounded(x->real, x_n, suits ? ZR_FP8_E4M3 : ZR_FP8_NONE),
           *w8 = rounded(w->real, w_n, suits ? ZR_FP8_E4M3 : ZR_FP8_NONE),
           *dy8 = rounded(dy->real, y_n, suits ? ZR_FP8_E5M2 : ZR_FP8_NONE),
           *no_sums = calloc(l.out + 1, sizeof *no_sums);
    const struct zr_linear_backward back = {l,      x->at,  w->at, dy->at, dx->at,
                                            dw->at, db->at, false, true,   false};
    bool good = no_sums &&
                kernels->linear_forward(
                    c, &(struct zr_linear_forward){l, x->at, w->at, bias->at, y->at, false}) == ZR_OK &&
                kernels->linear_backward(c, &back) == ZR_OK;
    if (turned) {
        turn(w8, l.out, l.in);
        turn(dw->real, l.out, l.in);
    }
    reference_linear(&l, x8, w8, bias->real, y->real);
    reference_linear_backward(&l, x8, w8, dy8, dx->real, dw->real, no_sums);
    if (turned)
        turn(dw->real, l.in, l.out);
    for (size_t i = 0; i < y_n; i++) /* which is not of rounded numbers */
        db->real[i % l.out] += dy->real[i];
    free(x8), free(w8), free(dy8), free(no_sums);
    return good ? worst(worst(close_to(y), close_to(db)), worst(close_to(dx), close_to(dw))) : INFINITY;
}

static double case_linear(struct zr_kernel_context *c, const struct shape *s)
{
    return worst(linear_case(c, s, false), linear_case(c, s, true));
}

/* y as columns of wider rows; one direction of backward alone, added to what is there. */
static double case_columns(struct zr_kernel_context *c, const struct shape *s)
{
    struct zr_linear l = {.rows = rows_of(s), .in = s->channels, .out = s->wide, .fp8 = true}, apart = l;
    size_t stride = 3 * l.out, y_n = l.rows * l.out;
    apart.y_stride = stride;
    struct tensor *x = input_of(precision, l.rows * l.in, 0, 1), *w = input_of(precision, l.in * l.out, 0, 1),
                  *wide = in_out_of(precision, l.rows * stride, 0, 1), *y = output_of(precision, y_n),
                  *dx[2] = {output_of(precision, x->n), output_of(precision, x->n)},
                  *dw[2] = {output_of(precision, w->n), output_of(precision, w->n)};
    uint16_t *columns = (uint16_t *)wide->at + l.out;
    bool good =
        kernels->linear_forward(c, &(struct zr_linear_forward){l, x->at, w->at, NULL, y->at, false}) ==
            ZR_OK &&
        kernels->linear_forward(c, &(struct zr_linear_forward){apart, x->at, w->at, NULL, columns, false}) ==
            ZR_OK;
    for (size_t i = 0; i < l.rows * stride; i++) {
        bool own = i % stride / l.out == 1;
        size_t from = i / stride * l.out + i % l.out;
        good = good && (own ? ((uint16_t *)wide->at)[i] == ((uint16_t *)y->at)[from]
                            : tensor_get(wide, i) == wide->real[i]);
    }
    for (int i = 0; i < 2; i++) {
        struct zr_linear_backward back = {
            .shape = i ? apart : l, .x = x->at, .w = w->at, .dy = i ? (void *)columns : (void *)y->at};
        memset(dx[i]->at, 0, tensor_bytes(dx[i]));
        back.dx = dx[i]->at;
        back.accumulate_dx = true;
        good = good && kernels->linear_backward(c, &back) == ZR_OK;
        back.dx = NULL;
        back.dw = dw[i]->at;
        good = good && kernels->linear_backward(c, &back) == ZR_OK;
    }
    good = good && memcmp(dx[0]->at, dx[1]->at, tensor_bytes(dx[0])) == 0 &&
           memcmp(dw[0]->at, dw[1]->at, tensor_bytes(dw[0])) == 0;
    return good ? 0 : INFINITY;
}

/* An operand with one infinity or NaN makes all NaN; one of zeros makes zeros. */
static double case_ends(struct zr_kernel_context *c, const struct shape *s)
{
    struct zr_linear l = {.rows = rows_of(s), .in = s->channels, .out = s->wide, .fp8 = true};
    const double ends[] = {INFINITY, -INFINITY, NAN, 0};
    bool good = true;
    for (size_t i = 0; i < 4; i++)
        for (int second = 0; second < 2; second++) {
            struct tensor *a = in_out_of(precision, l.rows * l.in, 0, 1),
                          *b = in_out_of(precision, l.in * l.out, 0, 1),
                          *y = output_of(precision, l.rows * l.out), *strange = second ? b : a;
            for (size_t j = 0; ends[i] == 0 && j < strange->n; j++)
                tensor_set(strange, j, 0);
            tensor_set(strange, strange->n - 1, ends[i]);
            good = good && kernels->linear_forward(
                               c, &(struct zr_linear_forward){l, a->at, b->at, NULL, y->at, false}) == ZR_OK;
            for (size_t j = 0; j < y->n; j++)
                good = good && (ends[i] == 0 ? tensor_get(y, j) == 0 : isnan(tensor_get(y, j)));
        }
    return good ? 0 : INFINITY;
}

/* ---- The driver ---------------------------------------------------------------------------------------- */

static const struct shape shapes[] = {
    {1, 64, 48, 1, 80, 2, 2}, {3, 16, 32, 1, 16, 2, 2}, {1, 32, 16, 1, 144, 2, 2}, {1, 17, 32, 1, 48, 2, 2},
    {2, 16, 40, 1, 32, 2, 2}, {1, 48, 64, 1, 33, 2, 2}, {2, 80, 96, 1, 272, 2, 2}, {16, 64, 16, 1, 32, 2, 2},
};
/* Shapes that fp8 takes. */
enum { SUITED = 3 };

static void test_rules(enum zr_isa isa)
{
    struct zr_kernel_context context;
    unsigned threads = 1;
    float memory[64] = {0};
    const struct zr_linear l = {.rows = 16, .in = 16, .out = 16, .fp8 = true};
    fp8 = false;
    if (!begin(&context, &shapes[0], isa, &threads))
        return;
    const struct zr_linear_forward call = {l, memory, memory, NULL, memory, false};
    tap_result(kernels->linear_forward(&context, &call), ZR_ERR_INVALID,
               "%s: a context without fp8 makes no product in it: %s", table_name(isa), zr_last_error());
    kernels->close(&context);
    context.fp8 = true;
    for (int p = 0; p < ZR_PRECISION_COUNT; p++) {
        context.precision = (enum zr_precision)p;
        if (p != ZR_PRECISION_BF16)
            tap_ok(kernels->open(&context) == ZR_ERR_INVALID &&
                       strstr(zr_last_error(), "fp8 requires bf16 tensors"),
                   "%s: there is none of %s: %s", table_name(isa), zr_precision_name(context.precision),
                   zr_last_error());
        kernels->close(&context);
    }
    context.fp8 = false;
    context.precision = ZR_PRECISION_BF16;
    bool opened = kernels->open(&context) == ZR_OK;
    struct zr_linear_forward beyond = call;
    struct zr_linear_backward back = {.x = memory, .w = memory, .dy = memory, .dx = memory, .dw = memory};
    context.fp8 = true;
    beyond.shape.rows = 1 << 14;
    back.shape = beyond.shape;
    tap_ok(kernels->linear_forward(&context, &beyond) == ZR_ERR_INVALID &&
               strstr(zr_last_error(), "limits") &&
               kernels->linear_backward(&context, &back) == ZR_ERR_INVALID,
           "%s: nor one beyond the limits of its workspace", table_name(isa));
    tap_ok(context_end(&context) && opened, "%s: and nothing was written", table_name(isa));
    fp8 = true;
}

#ifdef ZR_TEST_ON_CARD
static void test_cards(void)
{
    static const struct {
        int major, minor;
        bool there;
        zr_result result;
        const char *words;
    } rows[] = {{9, 0, true, ZR_OK, ""},
                {8, 9, true, ZR_OK, ""},
                {8, 8, true, ZR_ERR_UNAVAILABLE, "Emulated GPU has 8.8; use --precision bf16"},
                {8, 0, true, ZR_ERR_UNAVAILABLE, "compute capability 8.9 or later"},
                {9, 0, false, ZR_ERR_UNAVAILABLE, "fp8 requires cuBLASLt"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct zr_kernel_context context = {.precision = ZR_PRECISION_BF16, .fp8 = true};
        card_library(rows[i].there);
        card->attribute((zr_cu_attribute)ZR_CU_CAPABILITY_MAJOR, rows[i].major);
        card->attribute((zr_cu_attribute)ZR_CU_CAPABILITY_MINOR, rows[i].minor);
        zr_result result = kernels->open(&context);
        tap_ok(result == rows[i].result && (result == ZR_OK || strstr(zr_last_error(), rows[i].words)),
               "a card of %d.%d %s cuBLASLt: %s", rows[i].major, rows[i].minor,
               rows[i].there ? "with" : "without", result == ZR_OK ? "fp8" : zr_last_error());
        kernels->close(&context);
    }
}

/* The bits of bf16, whose products are too small for the library. */
static void test_refused(struct zr_lt_emulator *library)
{
    struct zr_kernel_context context;
    unsigned threads = 1;
    struct tensor *results[2][3];
    bool good = begin(&context, &shapes[0], ZR_ISA_PLAIN, &threads);
    struct zr_linear l = {.rows = 64, .in = 48, .out = 80, .fp8 = true};
    struct tensor *x = input_of(precision, l.rows * l.in, 0, 1), *w = input_of(precision, l.in * l.out, 0, 1),
                  *dy = input_of(precision, l.rows * l.out, 0, 1);
    library->choose = ZR_LT_EMULATOR_NONE;
    for (int i = 0; i < 2; i++) {
        struct tensor *y = results[i][0] = output_of(precision, dy->n),
                      *dx = results[i][1] = output_of(precision, x->n),
                      *dw = results[i][2] = output_of(precision, w->n);
        l.fp8 = i == 0;
        good =
            good &&
            kernels->linear_forward(
                &context, &(struct zr_linear_forward){l, x->at, w->at, NULL, y->at, false}) == ZR_OK &&
            kernels->linear_backward(
                &context,
                &(struct zr_linear_backward){
                    .shape = l, .x = x->at, .w = w->at, .dy = dy->at, .dx = dx->at, .dw = dw->at}) == ZR_OK;
    }
    for (int i = 0; i < 3; i++)
        good = good && memcmp(results[0][i]->at, results[1][i]->at, tensor_bytes(results[0][i])) == 0;
    library->choose = 0;
    tap_is(context.refusals.count, 3, "what the library refuses in fp8 is counted");
    good = context_end(&context) && good;
    tensors_finish(&good);
    tap_ok(good, "and made in bf16, to the bit");
}
/* Rules that the emulated card and library have; a real card has its own cuBLASLt. False: no fp8 there. */
static bool begin_card(struct zr_lt_emulator **library)
{
    struct zr_kernel_context context = {.precision = ZR_PRECISION_BF16, .fp8 = true};
    if (card) {
        test_cards();
        *library = card_library(true);
        test_refused(*library);
        **library = (struct zr_lt_emulator){0};
        return true;
    }
    zr_cuda_matrix_library_set(NULL);
    bool there = kernels->open(&context) == ZR_OK;
    if (!there)
        tap_skip("%s", zr_last_error());
    kernels->close(&context);
    return there;
}
#endif

static void test_isa(enum zr_isa isa)
{
    static const struct test_case cases[] = {{"operands", case_operands},
                                             {"an infinity, a NaN, zeros", case_ends},
                                             {"products in columns", case_columns}};
    const struct test_case linear = {"products in fp8", case_linear};
    kernels = table_of(isa);
    precision = ZR_PRECISION_BF16;
    fp8 = true;
#ifdef ZR_TEST_ON_CARD
    struct zr_lt_emulator *library = NULL;
    if (!begin_card(&library))
        return;
#endif
    test_rules(isa);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t j = 0; j < SHAPES_TAKEN(1) && j < (i == 0 ? 1 : SUITED); j++)
            run_case(&cases[i], i == 0 ? &(struct shape){1, LONG, LONG, 1, LONG, 2, 2} : &shapes[j], j, isa);
    for (size_t j = 0; j < SHAPES_TAKEN(4); j++)
        run_case(&linear, &shapes[j], j, isa);
#ifdef ZR_TEST_ON_CARD
    if (library)
        tap_ok(library->products > 0 && !library->report[0] && library->handles == 0 && library->objects == 0,
               "the library has made %u products and refused none (%s)", library->products, library->report);
#endif
}

int main(void)
{
    base_seed = run_seed();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        test_numbers(kinds[i]);
        test_scales(kinds[i]);
    }
    for_each_isa(test_isa);
    return tap_done();
}
