/* kernel_edges_test.c: every operation by elements, at each number of elements where a loop's vectors and a
 * thread's grain end: the same bits as one element at a time, nothing written beyond, and what is not finite
 * stays where it is. What adds up or searches has its plain loop here. */
#include "kernels/cpu/context.h"
#include "tests/support/kernels/kernels_cases.h"

enum { MOST = 2 * ZR_GRAIN + 1, TAILS = 35, SOURCES = 9, SIZES = TAILS + 6, BACK = 64 };

/* The numbers of elements: none, each tail of a vector, and those around one grain and two. */
static size_t size_of(unsigned i)
{
    static const size_t large[] = {ZR_GRAIN - 1,     ZR_GRAIN,     ZR_GRAIN + 1,
                                   2 * ZR_GRAIN - 1, 2 * ZR_GRAIN, MOST};
    return i < TAILS ? i : large[i - TAILS];
}

/* What operations read, and what they write: the latter twice, as a whole and one element at a time. */
static struct tensor *in[SOURCES], *floats, *narrow_to, *fresh[4], *whole[4], *single[4], **out;
static unsigned source_count;

static void *at(const struct tensor *t, size_t i)
{
    return (char *)t->at + i * zr_precision_bytes(t->precision);
}

static struct zr_numbers from(const struct tensor *t, size_t i)
{
    return (struct zr_numbers){at(t, i), t->precision};
}

static struct zr_update update_of(size_t i, size_t n)
{
    return (struct zr_update){.n = n,
                              .gradient = from(in[0], i),
                              .master = at(out[1], i),
                              .momentum = at(out[2], i),
                              .variance = at(out[3], i),
                              .parameter = from(out[0], i)};
}

static const struct zr_adamw adamw = {3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.19f, 0.0975f, NULL, NULL};

/* Each on elements [i, i + n). Results are out[0], of the precision, and for some out[1] to out[3], of
 * floats. */
#define OPERATION(name, ...)                                                                                 \
    static zr_result run_##name(struct zr_kernel_context *c, size_t i, size_t n)                             \
    {                                                                                                        \
        return __VA_ARGS__;                                                                                  \
    }
OPERATION(gelu,
          kernels->gelu_forward(c, &(struct zr_gelu_forward){n, at(in[0], i), at(out[0], i), ZR_GELU_TANH}))
OPERATION(gelu_back, kernels->gelu_backward(c, &(struct zr_gelu_backward){n, at(in[0], i), at(in[1], i),
                                                                          at(out[0], i), ZR_GELU_TANH}))
OPERATION(swiglu, kernels->swiglu_forward(c, &(struct zr_swiglu_forward){n, at(in[0], i), at(in[1], i),
                                                                         at(out[0], i), false}))
OPERATION(swiglu_gate, kernels->swiglu_backward(c, &(struct zr_swiglu_backward){n, at(in[0], i), at(in[1], i),
                                                                                at(in[2], i), at(out[0], i),
                                                                                at(narrow_to, i), false}))
OPERATION(swiglu_up, kernels->swiglu_backward(c, &(struct zr_swiglu_backward){n, at(in[0], i), at(in[1], i),
                                                                              at(in[2], i), at(narrow_to, i),
                                                                              at(out[0], i), false}))
OPERATION(add, kernels->add(c, &(struct zr_add){n, at(in[0], i), at(in[1], i), at(out[0], i)}))
OPERATION(average,
          kernels->average(c, &(struct zr_average){n, 0.9f, false, NULL, at(out[1], i), at(out[2], i)}))
OPERATION(exchange, kernels->average(c, &(struct zr_average){n, 0, true, NULL, at(out[1], i), at(out[2], i)}))
OPERATION(outer, kernels->outer_step(c, &(struct zr_outer_step){n, false, 0.7f, 0.9f, 0.5f, at(floats, i),
                                                                at(out[1], i), at(out[2], i), at(out[3], i)}))
OPERATION(widen, kernels->convert(c, &(struct zr_convert){n, from(in[0], i), from(out[1], i)}))
OPERATION(narrow, kernels->convert(c, &(struct zr_convert){n, from(floats, i), from(out[0], i)}))
OPERATION(other_kind,
          kernels->convert(c, &(struct zr_convert){
                                  n,
                                  from(in[0], i),
                                  {at(out[0], i), precision == ZR_PRECISION_BF16   ? ZR_PRECISION_FP16
                                                  : precision == ZR_PRECISION_FP16 ? ZR_PRECISION_BF16
                                                                                   : ZR_PRECISION_FP32}}))
OPERATION(clear, kernels->clear(c, &(struct zr_clear){n * zr_precision_bytes(precision), at(out[0], i)}))
OPERATION(copy, kernels->copy_bytes(c, &(struct zr_copy_bytes){n * zr_precision_bytes(precision),
                                                               at(in[0], i), at(out[0], i), false}))
OPERATION(normal, kernels->init_normal(c, &(struct zr_init_normal){n, 7, 1000 + i, 0.5f, 2, at(out[1], i)}))
OPERATION(adamw, kernels->update_adamw(c, &(struct zr_update_adamw){adamw, update_of(i, n)}))
OPERATION(sgd, kernels->update_sgd(c, &(struct zr_update_sgd){{0.1f, 0.9f, 0.01f, 0.5f, NULL, NULL},
                                                              update_of(i, n)}))

OPERATION(muon, kernels->muon_direction(c, &(struct zr_muon_direction){n, from(in[0], i), 0.5f, 0.9f, NULL,
                                                                       at(out[2], i), at(out[1], i)}))
OPERATION(direction, kernels->apply_direction(c, &(struct zr_apply_direction){.rate = 0.1f,
                                                                              .scale = 0.7f,
                                                                              .weight_decay = 0.1f,
                                                                              .direction = at(floats, i),
                                                                              .numbers = update_of(i, n)}))

/* Of a vector, or of a matrix of 37 columns. */
static zr_result factored(struct zr_kernel_context *c, size_t i, size_t n, bool is_vector)
{
    static const double squares[] = {3, 2};
    struct zr_update_factored update = {
        .how = {0.1f, 0.1f, 0.3f, 1, 0x1p-23f, 1e-3f, 1, 0.5f, NULL, NULL, true, 0.9f},
        .factors = {i, 37, fresh[1]->at, fresh[2]->at, fresh[3]->at},
        .numbers = update_of(i, n),
        .parts = 1,
        .elements = 1,
        .squares = squares};
    update.numbers.variance = is_vector ? update.numbers.variance : NULL;
    return kernels->update_factored(c, &update);
}
OPERATION(factored_vector, factored(c, i, n, true))
OPERATION(factored_matrix, factored(c, i, n, false))

static zr_result run_lamb(struct zr_kernel_context *c, size_t i, size_t n)
{
    static const double squares[] = {3, 2};
    const struct zr_update_lamb update = {{adamw, 0.01f, 10}, update_of(i, n), 1, squares, 0, NULL};
    double unused[2];
    zr_result result = kernels->lamb_norms(c, &(struct zr_lamb_norms){update.how, update.numbers, unused});
    return result == ZR_OK ? kernels->update_lamb(c, &update) : result;
}

static zr_result run_sum(struct zr_kernel_context *c, size_t i, size_t n)
{
    const void *list[SOURCES];
    for (unsigned k = 0; k < source_count; k++)
        list[k] = at(in[k], i);
    zr_result result =
        kernels->sum(c, &(struct zr_sum){n, list, source_count, precision, 0.3f, true, from(out[0], i)});
    return result ? result
                  : kernels->sum(
                        c, &(struct zr_sum){n, list, source_count, precision, 0.3f, false, from(out[1], i)});
}

static const struct operation {
    const char *name;
    zr_result (*run)(struct zr_kernel_context *c, size_t i, size_t n);
    unsigned sources; /* of sum() */
    bool keeps;       /* what is not finite in in[0] is not finite in out[0] */
} operations[] = {{"gelu_forward", run_gelu, 0, true},
                  {"gelu_backward", run_gelu_back, 0, true},
                  {"swiglu_forward", run_swiglu, 0, true},
                  {"swiglu_backward, gate", run_swiglu_gate, 0, true},
                  {"swiglu_backward, up", run_swiglu_up, 0, true},
                  {"add", run_add, 0, true},
                  {"average", run_average, 0, false},
                  {"average, exchanged", run_exchange, 0, false},
                  {"outer_step", run_outer, 0, false},
                  {"convert to floats", run_widen, 0, false},
                  {"convert from floats", run_narrow, 0, false},
                  {"convert to the other kind", run_other_kind, 0, false},
                  {"clear", run_clear, 0, false},
                  {"copy_bytes", run_copy, 0, true},
                  {"init_normal", run_normal, 0, false},
                  {"update_adamw", run_adamw, 0, true},
                  {"update_sgd", run_sgd, 0, true},
                  {"update_factored, a vector", run_factored_vector, 0, true},
                  {"update_factored, a matrix", run_factored_matrix, 0, true},
                  {"lamb_norms, update_lamb", run_lamb, 0, true},
                  {"muon_direction", run_muon, 0, false},
                  {"apply_direction", run_direction, 0, false},
                  {"sum of none", run_sum, 0, false},
                  {"sum of 1", run_sum, 1, true},
                  {"sum of 2", run_sum, 2, true},
                  {"sum of 3", run_sum, 3, true},
                  {"sum of 4", run_sum, 4, true},
                  {"sum of 5", run_sum, 5, true},
                  {"sum of 8", run_sum, 8, true},
                  {"sum of 9", run_sum, 9, true}};

static void fill(struct tensor *to[4])
{
    for (unsigned k = 0; k < 4; k++)
        memcpy(to[k]->at, fresh[k]->at, tensor_bytes(to[k]));
}

static bool same_to(size_t n)
{
    bool same = true;
    for (unsigned k = 0; k < 4; k++)
        same = same && memcmp(whole[k]->at, single[k]->at, n * zr_precision_bytes(whole[k]->precision)) == 0;
    return same;
}

/* Behind the first n elements all is as it was. */
static bool untouched(size_t n)
{
    bool same = true;
    for (unsigned k = 0; k < 4; k++)
        same = same && memcmp(at(whole[k], n), at(fresh[k], n),
                              (fresh[k]->n - n) * zr_precision_bytes(fresh[k]->precision)) == 0;
    return same;
}

static void check_operation(struct zr_kernel_context *const contexts[2], const struct operation *op)
{
    unsigned wrong = 0;
    source_count = op->sources;
    out = single;
    fill(single);
    for (size_t i = 0; i < MOST; i++)
        wrong += op->run(contexts[0], i, 1) != ZR_OK;
    out = whole;
    for (unsigned s = 0; s < SIZES; s++) {
        size_t n = size_of(s);
        fill(whole);
        bool good = op->run(contexts[s >= TAILS], 0, n) == ZR_OK && same_to(n) && untouched(n);
        for (size_t i = 0; i < n && op->keeps; i++)
            good = good && isfinite(tensor_get(whole[0], i)) == isfinite(tensor_get(in[0], i));
        if (!good)
            tap_note("%s of %zu elements", op->name, n);
        wrong += !good;
    }
    tap_is(wrong, 0, "%s, %s: %s is one element after the other", zr_isa_name(contexts[0]->isa),
           zr_precision_name(precision), op->name);
}

/* Whole numbers, whose squares add up exactly. */
static void check_reductions(struct zr_kernel_context *c)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    struct tensor *x = in_out_of(precision, MOST, 0, 0);
    unsigned wrong = 0;
    for (unsigned s = 0; s < SIZES; s++) {
        size_t n = size_of(s), places[] = {0, n / 2, n - 1, ZR_GRAIN - 1, ZR_GRAIN, 1023, 1024};
        double squares = 0;
        for (size_t i = 0; i < MOST; i++) {
            tensor_set(x, i, (double)(i % 13) - 6);
            squares += i < n ? x->real[i] * x->real[i] : 0;
        }
        if (n < MOST)
            tensor_set(x, n, NAN); /* behind the last one */
        bool good =
            squares_of(kernels, c, n, numbers(x)) == squares && nonfinite_of(kernels, c, n, numbers(x)) == n;
        for (unsigned p = 0; p < sizeof places / sizeof *places; p++)
            if (places[p] < n) {
                double kept = x->real[places[p]];
                tensor_set(x, places[p], odd[p % 3]);
                good = good && nonfinite_of(kernels, c, n, numbers(x)) == places[p] &&
                       !isfinite(squares_of(kernels, c, n, numbers(x)));
                tensor_set(x, places[p], kept);
            }
        if (!good)
            tap_note("of %zu elements", n);
        wrong += !good;
    }
    tap_is(wrong, 0, "%s, %s: sums of squares and searches, with one that is not finite in each place",
           zr_isa_name(c->isa), zr_precision_name(precision));
}

static void test_isa(enum zr_isa isa)
{
    kernels = zr_kernels_cpu(isa);
    for (precision = 0; precision < ZR_PRECISION_COUNT; precision++) {
        struct zr_kernel_context one, three, *const contexts[2] = {&one, &three};
        unsigned counts[2] = {1, 3};
        bool intact = true;
        random_state = base_seed;
        if (!context_begin(&one, (struct zr_kernel_limits){1, 1, 1, 1, 0, 0, 0}, isa, &counts[0]) ||
            !context_begin(&three, (struct zr_kernel_limits){1, 1, 1, 1, 0, 0, 0}, isa, &counts[1])) {
            tap_ok(false, "%s: contexts open", zr_isa_name(isa));
            return;
        }
        one.precision = three.precision = precision;
        for (unsigned k = 0; k < SOURCES; k++)
            in[k] = k == 0 ? in_out_of(precision, 2 * MOST, 0.5, 2) : input_of(precision, MOST, 0.5, 2);
        floats = input(MOST, 0.5, 2);
        for (unsigned s = TAILS; s < SIZES; s++) { /* first, middle and last of each larger size */
            size_t n = size_of(s), places[] = {0, n / 2, n - 1};
            for (unsigned p = 0; p < 3; p++)
                tensor_set(in[0], places[p], NAN);
        }
        narrow_to = output_of(precision, MOST + BACK);
        for (unsigned k = 0; k < 4; k++) {
            enum zr_precision kind = k ? ZR_PRECISION_FP32 : precision;
            whole[k] = output_of(kind, MOST + BACK), single[k] = output_of(kind, MOST + BACK);
            fresh[k] = in_out_of(kind, MOST + BACK, 0.6, 0.4);
        }
        for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
            check_operation(contexts, &operations[i]);
        check_reductions(&three);
        intact = context_end(&one) && context_end(&three);
        tensors_finish(&intact);
        tap_ok(intact, "%s, %s: and nothing else is written", zr_isa_name(isa), zr_precision_name(precision));
    }
}

int main(void)
{
    base_seed = run_seed();
    for_each_isa(test_isa);
    return tap_done();
}
