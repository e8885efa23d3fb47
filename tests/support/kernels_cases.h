/* kernels_cases.h: how the kernels' test programs run their cases: each on every shape, for 1, 2 and 3
 * threads with the same bits, in one precision after the other. */
#ifndef ZR_KERNELS_CASES_H
#define ZR_KERNELS_CASES_H

#include "tests/support/kernels_support.h"

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

static inline bool begin(struct zr_kernel_context *context, const struct shape *s, enum zr_isa isa,
                         unsigned *threads)
{
    struct zr_kernel_limits limits = {rows_of(s), s->sequence, s->channels, s->heads, s->wide, s->padded, 0};
    bool opened = context_begin(context, limits, isa, threads);
    if (!opened)
        tap_ok(false, "%s: a context opens", zr_isa_name(isa));
    context->precision = precision;
    return opened;
}

static inline void run_case(const struct test_case *test, const struct shape *s, size_t number,
                            enum zr_isa isa)
{
    uint64_t hash[3];
    double error = 0;
    bool intact = true;
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct zr_kernel_context context;
        unsigned lent = threads;
        random_state = base_seed + number * 1000003;
        if (!begin(&context, s, isa, &lent))
            return;
        error = worst(error, test->run(&context, s));
        intact = context_end(&context) && intact;
        hash[threads - 1] = tensors_finish(&intact);
    }
    const char *name = zr_isa_name(isa), *kind = zr_precision_name(precision);
    tap_ok(error <= 1, "%s, %s: %s, shape %zu, is right (%.3f of the tolerance)", name, kind, test->name,
           number, error);
    tap_ok(intact, "%s, %s: %s, shape %zu, writes nothing else", name, kind, test->name, number);
    tap_ok(hash[0] == hash[1] && hash[0] == hash[2], "%s, %s: %s, shape %zu, same bits for 1, 2, 3 threads",
           name, kind, test->name, number);
}

#endif
