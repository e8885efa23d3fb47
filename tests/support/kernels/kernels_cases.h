/* kernels_cases.h: how the kernels' test programs run their cases: each on every shape, for 1, 2 and 3
 * threads with the same bits, in one precision after the other. */
#ifndef ZR_KERNELS_CASES_H
#define ZR_KERNELS_CASES_H

#include "tests/support/kernels/kernels_support.h"

struct shape {
    size_t batch, sequence, channels, heads, wide, vocabulary, padded;
};

/* Returns its error in units of its tolerance. */
struct test_case {
    const char *name;
    double (*run)(struct zr_kernel_context *, const struct shape *);
};

static const struct zr_kernels *kernels; /* of the instruction set whose turn it is */
static enum zr_precision precision;      /* whose turn it is */
static bool fp8;                         /* contexts are for products in fp8, too */
static uint64_t base_seed;

static inline size_t rows_of(const struct shape *s)
{
    return s->batch * s->sequence;
}

/* Random token numbers below `count`, kept as the bits of a tensor so that they are guarded and freed too. */
static inline const int32_t *random_tokens(size_t n, size_t count)
{
    struct tensor *t = input(n, 0, 0);
    int32_t *tokens = (int32_t *)t->at;
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(random_bits() % count);
    memcpy(t->before, t->at, n * sizeof *tokens);
    return tokens;
}

/* Positions of tokens in documents: of random lengths, or a second one from token `cut` of each sequence on.
 */
static inline const int32_t *positions_of(const struct shape *s, size_t cut)
{
    struct tensor *t = input(rows_of(s), 0, 0);
    int32_t *positions = (int32_t *)t->at;
    for (size_t i = 0; i < t->n; i++) {
        bool begins = cut ? i % s->sequence == cut : random_bits() % (1 + s->sequence / 3) == 0;
        positions[i] = i % s->sequence == 0 || begins ? 0 : positions[i - 1] + 1;
    }
    memcpy(t->before, t->at, tensor_bytes(t));
    return positions;
}

static inline const int32_t *random_positions(const struct shape *s)
{
    return positions_of(s, 0);
}

/* An input of attention. The last token asks for what it is itself, so that in its rows of scores the largest
 * comes last, behind all that was added up with smaller ones. */
static inline struct tensor *attention_input(const struct zr_attention *a)
{
    size_t line = reference_line(a), width = a->channels / a->heads;
    struct tensor *qkv = input_of(precision, a->batch * a->sequence * line, 0, 2);
    for (size_t b = 1; b <= a->batch; b++)
        for (size_t head = 0; head < a->heads; head++)
            for (size_t d = 0, last = (b * a->sequence - 1) * line; d < width; d++)
                tensor_set(qkv, last + head * width + d, qkv->real[last + reference_keys(a, head) + d]);
    memcpy(qkv->before, qkv->at, tensor_bytes(qkv));
    return qkv;
}

static inline struct zr_numbers numbers(const struct tensor *t)
{
    return (struct zr_numbers){t->at, t->precision};
}

/* Rows of `width` numbers near +size or -size, each row of one sign: the first two of either, others of any.
 */
static inline struct tensor *signed_rows(size_t n, size_t width, double size)
{
    struct tensor *t = tensor_of(precision, n);
    double sign = 1;
    for (size_t i = 0; i < n; i++) {
        if (i % width == 0)
            sign = i == 0 || (i != width && random_bits() % 2) ? size : -size;
        tensor_set(t, i, sign * (1 + 0.01 * random_unit()));
    }
    return t;
}

enum { STEEP = 200 };

static inline double largest_of(const double *numbers, size_t n)
{
    double most = 1e-30;
    for (size_t i = 0; i < n; i++)
        most = worst(most, fabs(numbers[i]));
    return most;
}

/* The gradient of a score is p (dout v - dout out). Where one key has all of p, or all that have some are
 * alike, the two products are equal but for the rounding of out, and what is left of them is multiplied by
 * keys or by queries: the largest such product, of whole numbers and not of what is left. */
static inline double cancelled(const struct zr_attention *a, const struct tensor *qkv, const double *p,
                               const struct tensor *dout, const struct tensor *out)
{
    size_t tokens = a->sequence, width = a->channels / a->heads;
    double *by_key = calloc(tokens, sizeof *by_key), most = 0;
    for (size_t unit = 0; unit < a->batch * a->heads; unit++) {
        size_t first = unit / a->heads * tokens * a->channels + unit % a->heads * width;
        memset(by_key, 0, tokens * sizeof *by_key);
        for (size_t t = 0; t < tokens; t++) {
            double products = 0;
            for (size_t i = first + t * a->channels, end = i + width; i < end; i++)
                products += fabs(dout->real[i] * out->real[i]);
            for (size_t j = 0; j <= t; j++)
                by_key[j] += p[(unit * tokens + t) * tokens + j] * products;
            most = worst(most, products);
        }
        most = worst(most, largest_of(by_key, tokens));
    }
    free(by_key);
    return most * largest_of(qkv->real, qkv->n) / sqrt((double)width);
}

/* Scores near 200 to either side of zero, whose exponentials no float holds. */
static inline double steep_attention(struct zr_kernel_context *c, const struct shape *s, double tolerance)
{
    struct zr_attention a = {
        .batch = s->batch, .sequence = s->sequence, .channels = s->channels, .heads = s->heads};
    size_t rows = rows_of(s), width = s->channels / s->heads;
    struct tensor *qkv = signed_rows(3 * rows * s->channels, width, sqrt(STEEP / sqrt((double)width)));
    struct tensor *dout = input_of(precision, rows * s->channels, 0, 1), *out = output_of(precision, dout->n);
    struct tensor *lse = output(rows * s->heads), *dqkv = output_of(precision, qkv->n);
    double *p = calloc(lse->n * s->sequence, sizeof *p);
    bool good =
        kernels->attention_forward(c, &(struct zr_attention_forward){a, qkv->at, out->at, lse->at, NULL}) ==
            ZR_OK &&
        kernels->attention_backward(c, &(struct zr_attention_backward){a, qkv->at, out->at, lse->at, NULL,
                                                                       dout->at, dqkv->at}) == ZR_OK;
    reference_attention(&a, qkv->real, out->real, lse->real, p);
    reference_attention_backward(&a, qkv->real, p, dout->real, dqkv->real);
    double allowed = tolerance * (1 + cancelled(&a, qkv, p, dout, out) / largest_of(dqkv->real, dqkv->n));
    free(p);
    return good ? worst(error_of(lse) / 3e-6, worst(error_of(out) / tolerance, error_of(dqkv) / allowed))
                : INFINITY;
}

/* Logits near them. The first row's target is a low one, so that its gradient is no small difference of large
 * numbers, like those of rows whose target is among the high ones. */
static inline double steep_head(struct zr_kernel_context *c, const struct shape *s, double tolerance)
{
    size_t rows = rows_of(s);
    int32_t *targets = (int32_t *)output(rows)->at;
    struct head_shape h = {targets, rows, s->channels, s->vocabulary, s->padded};
    struct tensor *x = signed_rows(rows * s->channels, s->channels, sqrt(STEEP / (double)s->channels));
    struct tensor *wte = signed_rows(s->padded * s->channels, s->channels, sqrt(STEEP / (double)s->channels));
    for (size_t r = 0; r < rows; r++)
        targets[r] = (int32_t)(random_bits() % s->vocabulary);
    targets[0] = 1;
    struct tensor *losses = output(rows), *row = output(s->padded), *dx = output_of(precision, x->n),
                  *dwte = output_of(precision, wte->n);
    bool good = run_head(
        kernels, c, &(struct head_call){h, x->at, wte->at, losses->at, 1, dx->at, dwte->at, false, NULL});
    reference_head(&h, x->real, wte->real, losses->real, 1, row->real, dx->real, dwte->real);
    return good ? worst(error_of(losses) / 3e-6, worst(error_of(dx), error_of(dwte)) / tolerance) : INFINITY;
}

/* The shapes of the list that a run takes: on a card the first `usual`, and with ZR_TEST_LONG set all, as in
 * long_card.t: the emulated driver takes seconds for what the processor's own loops do at once. Under a
 * sanitizer, which sees nothing of what kernels do there, half as many. */
static inline size_t shapes_taken(size_t all, size_t usual)
{
#ifdef ZR_TEST_ON_CARD
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    usual = (usual + 1) / 2;
#endif
    return getenv("ZR_TEST_LONG") ? all : usual;
#else
    (void)usual;
    return all;
#endif
}
#define SHAPES_TAKEN(usual) shapes_taken(sizeof shapes / sizeof shapes[0], usual)

static inline bool begin(struct zr_kernel_context *context, const struct shape *s, enum zr_isa isa,
                         unsigned *threads)
{
    struct zr_kernel_limits limits = {rows_of(s), s->sequence, s->channels, s->heads, 0, 0, 0};
    if (fp8) {
        limits.fp8_narrow = s->channels < s->wide ? s->channels : s->wide;
        limits.fp8_wide = s->channels < s->wide ? s->wide : s->channels;
    }
    bool opened = context_begin(context, limits, isa, threads);
    if (!opened)
        tap_ok(false, "%s: a context opens", table_name(isa));
    context->precision = precision;
    context->fp8 = fp8;
    return opened;
}

/* How often a case runs: for 1, 2 and 3 threads, on a card in two orders of its own. */
#ifdef ZR_TEST_ON_CARD
enum { RUNS = 2, ON_CARD = 1 };
static const char *const runs_name = "in two orders of the card's threads";
#else
enum { RUNS = 3, ON_CARD = 0 };
static const char *const runs_name = "for 1, 2, 3 threads";
#endif

struct verdict {
    double error; /* of the tolerance */
    bool intact, same;
};

static inline struct verdict run_shape(const struct test_case *test, const struct shape *s, size_t number,
                                       enum zr_isa isa)
{
    uint64_t hash[RUNS];
    struct verdict verdict = {INFINITY, true, true};
    for (unsigned threads = 1; threads <= RUNS; threads++) {
        struct zr_kernel_context context;
        unsigned lent = threads;
        random_state = base_seed + number * 1000003;
        if (!begin(&context, s, isa, &lent))
            return (struct verdict){INFINITY, false, false};
        reference_wanted = threads == 1; /* the others must have its bits */
        double share = test->run(&context, s);
        verdict.error = reference_wanted ? share : verdict.error;
        verdict.intact = context_end(&context) && verdict.intact;
        hash[threads - 1] = tensors_finish(&verdict.intact);
        verdict.same = verdict.same && hash[threads - 1] == hash[0];
    }
    reference_wanted = true;
    return verdict;
}

static inline void run_case(const struct test_case *test, const struct shape *s, size_t number,
                            enum zr_isa isa)
{
    struct verdict verdict = run_shape(test, s, number, isa);
    const char *name = table_name(isa), *kind = zr_precision_name(precision);
    tap_ok(verdict.error <= 1, "%s, %s: %s, shape %zu, is right (%.3f of the tolerance)", name, kind,
           test->name, number, verdict.error);
    tap_ok(verdict.intact, "%s, %s: %s, shape %zu, writes nothing else", name, kind, test->name, number);
    tap_ok(verdict.same, "%s, %s: %s, shape %zu, same bits %s", name, kind, test->name, number, runs_name);
}

/* Rows, columns, tokens, widths of a head and vocabularies at each border of a vector, of a thread's line of
 * columns (32), of the blocks of 64 rows, of 32 queries and of 4,096 logits. */
static inline struct shape edge_of(const char *name, unsigned i)
{
    static const size_t columns[] = {7, 8, 9, 15, 16, 17, 31, 32, 33}, rows[] = {63, 64, 65, 1, 129},
                        tokens[] = {1, 2, 15, 16, 17, 31, 32, 33, 65},
                        widths[] = {33, 1, 7, 8, 9, 15, 16, 17, 32},
                        vocabularies[] = {2, 15, 16, 17, 31, 33, 4095, 4096, 4097};
    if (strcmp(name, "attention") == 0)
        return (struct shape){1, tokens[i], 2 * widths[i], 2, 1, 2, 2};
    if (strcmp(name, "head") == 0)
        return (struct shape){1, 3, columns[i], 1, 1, vocabularies[i], vocabularies[i] + i % 3};
    return (struct shape){1, rows[i % 5], columns[i], 1, columns[8 - i], 3, 3};
}

static inline void run_edges(const struct test_case *test, enum zr_isa isa)
{
    unsigned wrong = 0;
    for (unsigned i = 0; i < 9; i++) {
        struct shape s = edge_of(test->name, i);
        struct verdict verdict = run_shape(test, &s, 200 + i, isa);
        bool good = verdict.error <= 1 && verdict.intact && verdict.same;
        if (!good)
            tap_note("edge %u: %.3f of the tolerance%s%s", i, verdict.error,
                     verdict.intact ? "" : ", writes beyond",
                     verdict.same ? "" : ", other bits on more threads");
        wrong += !good;
    }
    tap_is(wrong, 0, "%s, %s: %s at the borders of vectors and blocks", table_name(isa),
           zr_precision_name(precision), test->name);
}

#ifdef ZR_TEST_ON_CARD
/* Products that are large and aligned enough for cuBLASLt, with it, and in a long run without it, too. */
static inline void run_products(const struct test_case *linear, const struct test_case *head)
{
    static const struct shape aligned = {1, 64, 64, 2, 72, 88, 96};
    for (int on = getenv("ZR_TEST_LONG") == NULL; on < 2; on++) {
        struct zr_lt_emulator *library = card_library(on);
        unsigned before = library ? library->products : 0, splits = library ? library->splits : 0;
        if (library)
            library->report[0] = '\0';
        run_case(linear, &aligned, 99, ZR_ISA_PLAIN);
        run_case(head, &aligned, 99, ZR_ISA_PLAIN);
        tap_ok(library && (library->products > before) == on && (library->splits > splits) == on &&
                   library->handles == 0 && library->objects == 0 && !library->report[0],
               "%s, %s: the library has made %u products, refused none, and has nothing left",
               table_name(ZR_ISA_PLAIN), zr_precision_name(precision),
               library ? library->products - before : 0);
    }
    card_library(false);
}
#endif

#endif
