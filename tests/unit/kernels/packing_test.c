/* packing_test.c: packed numbers in every format, on every instruction set and precision: the same bits as
 * the plain loops and on any number of threads, errors within the format's step, nothing lost with an error
 * fed back, and no number where an infinity or NaN was packed. */
#include "kernels/cpu/context.h"
#include "tests/support/kernels/kernels_cases.h"

#include <xmmintrin.h>

enum { ROUNDS = 5, SOURCES = 3, DENORMALS_ARE_ZERO = 0x8040 };
#ifdef ZR_TEST_ON_CARD
enum { GRAIN = 2 * ZR_PACK_BLOCK }; /* numbers of threads are seeds, for more numbers than this */
enum { ODD = 2 };                   /* the emulated driver tells no two bytes of a pair from one another */
static const size_t sizes[] = {1, 31, ZR_PACK_BLOCK, ZR_PACK_BLOCK + 1, 9 * ZR_PACK_BLOCK + 77};
#else
enum { GRAIN = ZR_GRAIN, ODD = 1 };
static const size_t sizes[] = {
    1, 31, ZR_PACK_BLOCK - 1, ZR_PACK_BLOCK, ZR_PACK_BLOCK + 1, GRAIN + 1, 2 * GRAIN + 77};
#endif

/* Which numbers share a scale, and the largest error of one in units of the largest of them. */
static const struct format {
    size_t group;
    double step;
} formats[ZR_PACKINGS_COUNT] = {[ZR_PACKING_INT8] = {ZR_PACK_BLOCK / 2, 0.5 / 127},
                                [ZR_PACKING_INT4] = {ZR_PACK_BLOCK / 4, 0.5 / 7},
                                [ZR_PACKING_INT4_ROTATED] = {ZR_PACK_BLOCK, 32 * 0.5 / 7},
                                [ZR_PACKING_MXFP8] = {32, 0.125}};

static struct zr_kernel_context *context;

static struct tensor *packed_of(enum zr_packing packing, size_t n)
{
    return output((zr_pack_bytes(packing, n) + 3) / 4);
}

static bool run_pack(enum zr_packing packing, const struct tensor *from, const struct tensor *minus,
                     struct tensor *error, struct tensor *to)
{
    struct zr_pack pack = {.packing = packing,
                           .n = from->n,
                           .from = numbers(from),
                           .minus = minus ? numbers(minus) : (struct zr_numbers){NULL, precision},
                           .error = error ? error->at : NULL,
                           .to = to->at};
    return kernels->pack(context, &pack) == ZR_OK;
}

static bool run_unpack(enum zr_packing packing, struct tensor *const *from, unsigned count, float scale,
                       struct tensor *to, bool accumulate)
{
    const void *list[SOURCES];
    for (unsigned i = 0; i < count; i++)
        list[i] = from[i]->at;
    return kernels->unpack(context, &(struct zr_unpack){packing, to->n, list, count, scale, accumulate,
                                                        numbers(to)}) == ZR_OK;
}

/* A few numbers are a hundred times larger, some are zero, one row is tiny. */
static void draw(struct tensor *t)
{
    for (size_t i = 0; i < t->n; i++) {
        uint64_t kind = random_bits() % 64;
        tensor_set(t, i, random_unit() * (kind == 0 ? 100 : kind < 4 ? 0 : i / 64 % 9 == 8 ? 1e-6 : 1));
    }
}

/* Errors of numbers that are packed once, in units of the largest one allowed. */
static double step_error(enum zr_packing packing, const struct tensor *x, const struct tensor *sent)
{
    const struct format *f = &formats[packing];
    size_t group = packing == ZR_PACKING_ONEBIT ? ZR_PACK_BLOCK : f->group;
    double most = 0;
    for (size_t first = 0; first < x->n; first += group) {
        double largest = 0, squares = 0;
        size_t end = first + group < x->n ? first + group : x->n;
        for (size_t i = first; i < end; i++) {
            largest = worst(largest, fabs(x->real[i]));
            squares += x->real[i] * x->real[i];
        }
        double root = sqrt(squares / (double)(end - first));
        for (size_t i = first; i < end; i++) {
            double got = (double)sent->at[i], error = fabs(got - x->real[i]);
            if (packing == ZR_PACKING_ONEBIT)
                most = worst(most, fabs(got - (x->real[i] < 0 ? -root : root)) / (1e-6 * root + 1e-30));
            else
                most = worst(most, error / (f->step * largest * (1 + 1e-5) + 1e-30));
        }
    }
    return most;
}

/* Runs the plain loop, as in an operation. */
static void run_plain(zr_loop *loop, const void *args, size_t n)
{
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | DENORMALS_ARE_ZERO);
    loop(args, 0, n);
    _mm_setcsr(mode);
}

/* Numbers in rounds, with the error of one in the next: nothing is lost, and the bits are the plain loops'.
 */
static double case_feedback(enum zr_packing packing, size_t n)
{
    struct tensor *x = tensor_of(precision, n), *error = in_out(n, 0, 0), *to = packed_of(packing, n),
                  *sent = output(n), *sums = in_out(n, 0, 0), *plain = packed_of(packing, n),
                  *plain_error = in_out(n, 0, 0), *plain_sums = in_out(n, 0, 0);
    const struct zr_loops *loops = zr_loops_of[ZR_ISA_PLAIN][precision];
    const void *packed = plain->at;
    double most = 0, *in = calloc(n, sizeof *in), *size = calloc(n, sizeof *size);
    for (int round = 0; round < ROUNDS; round++) {
        draw(x);
        bool good = run_pack(packing, x, NULL, error, to) && run_unpack(packing, &to, 1, 1, sent, false) &&
                    run_unpack(packing, &to, 1, 1, sums, true);
        const struct zr_pack pack = {packing,         n,         numbers(x), {NULL, precision},
                                     plain_error->at, plain->at, NULL};
        const struct zr_unpack unpack = {packing, n, &packed, 1, 1, true, numbers(plain_sums)};
        run_plain(loops->pack, &pack, n);
        run_plain(loops->unpack, &unpack, n);
        if (memcmp(to->at, plain->at, zr_pack_bytes(packing, n)) || !good ||
            memcmp(error->at, plain_error->at, n * sizeof(float)) ||
            memcmp(sums->at, plain_sums->at, n * sizeof(float)))
            most = INFINITY;
        if (round == 0)
            most = worst(most, step_error(packing, x, sent));
        for (size_t i = 0; i < n; i++) {
            in[i] += x->real[i];
            size[i] += fabs(x->real[i]) + fabs((double)sent->at[i]);
            double lost = fabs((double)sums->at[i] + (double)error->at[i] - in[i]);
            most = worst(most, lost / (1e-6 * size[i] + 1e-30));
        }
    }
    free(in), free(size);
    return most;
}

/* A part from a block's border on has the bytes that it has in the whole; a difference those of its numbers;
 * a sum of several is the sum in their order. */
static double case_parts(enum zr_packing packing, size_t n)
{
    const size_t bytes = zr_pack_bytes(packing, 1), blocks = (n + ZR_PACK_BLOCK - 1) / ZR_PACK_BLOCK;
    struct tensor *from[SOURCES], *sums = output_of(precision, n), *one = output(n), *base = input(n, 1, 1);
    struct tensor *difference = packed_of(packing, n), *by_hand = packed_of(packing, n), *x = input(n, 0, 3);
    struct tensor *rest = output(n);
    double *sum = calloc(n, sizeof *sum), error = 0;
    bool good = true;
    for (unsigned k = 0; k < SOURCES; k++) {
        struct tensor *t = tensor_of(precision, n);
        draw(t);
        from[k] = packed_of(packing, n);
        good = good && run_pack(packing, t, NULL, NULL, from[k]) &&
               run_unpack(packing, &from[k], 1, 1, one, false);
        for (size_t i = 0; i < n; i++)
            sum[i] = (float)(sum[i] + (double)one->at[i]);
        size_t last = (blocks - 1) * ZR_PACK_BLOCK;
        struct tensor part = {.at = (float *)((char *)t->at + last * zr_precision_bytes(precision)),
                              .n = n - last,
                              .precision = precision};
        struct tensor *alone = packed_of(packing, part.n);
        good = good && run_pack(packing, &part, NULL, NULL, alone) &&
               memcmp(alone->at, (char *)from[k]->at + (blocks - 1) * bytes, bytes) == 0;
    }
    good = good && run_unpack(packing, from, SOURCES, 0.5f, sums, false);
    for (size_t i = 0; i < n; i++) {
        double wanted = 0.5 * sum[i];
        wanted = precision == ZR_PRECISION_FP32
                     ? wanted
                     : reference_decode(reference_encode(wanted, precision), precision);
        error = worst(error, tensor_get(sums, i) == wanted ? 0 : INFINITY);
        tensor_set(rest, i, (double)(x->at[i] - base->at[i]));
    }
    free(sum);
    good = good && run_pack(packing, x, base, NULL, difference) &&
           run_pack(packing, rest, NULL, NULL, by_hand) &&
           memcmp(difference->at, by_hand->at, blocks * bytes) == 0;
    return good ? error : INFINITY;
}

/* Numbers and packed bytes that begin anywhere. */
static double case_places(enum zr_packing packing, size_t n)
{
    const size_t each = zr_precision_bytes(precision), bytes = zr_pack_bytes(packing, n);
    struct tensor *odd = tensor_of(precision, n + 1), *even = tensor_of(precision, n),
                  *to = packed_of(packing, n), *odd_to = packed_of(packing, n + ZR_PACK_BLOCK),
                  *got[] = {output_of(precision, n + 1), output_of(precision, n)};
    draw(odd);
    memcpy(even->at, (char *)odd->at + each, n * each);
    memset(got[0]->at, 0, each);
    const void *from[] = {(char *)odd_to->at + ODD, to->at};
    const struct zr_numbers places[] = {{(char *)got[0]->at + each, precision}, numbers(got[1])};
    const struct zr_pack packs[] = {{packing,
                                     n,
                                     {(char *)odd->at + each, precision},
                                     {NULL, precision},
                                     NULL,
                                     (char *)odd_to->at + ODD,
                                     NULL},
                                    {packing, n, numbers(even), {NULL, precision}, NULL, to->at, NULL}};
    bool good = true;
    for (unsigned i = 0; i < 2; i++)
        good = good && kernels->pack(context, &packs[i]) == ZR_OK &&
               kernels->unpack(context, &(struct zr_unpack){packing, n, &from[i], 1, 1, false, places[i]}) ==
                   ZR_OK;
    return good && memcmp(from[0], from[1], bytes) == 0 && memcmp(places[0].at, places[1].at, n * each) == 0
               ? 0
               : INFINITY;
}

/* Numbers that are no numbers, at the first, a middle and the last place: no number comes out there, none of
 * another block is changed, and the block keeps its errors. */
static double case_nonfinite(enum zr_packing packing, size_t n)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    const size_t places[] = {0, n / 2, n - 1};
    struct tensor *to = packed_of(packing, n), *sent = output(n), *error = in_out(n, 0, 0);
    double most = 0;
    for (unsigned i = 0; i < 9; i++) {
        struct tensor *x = tensor_of(precision, n);
        size_t place = places[i % 3], first = place / ZR_PACK_BLOCK * ZR_PACK_BLOCK;
        draw(x);
        tensor_set(x, place, bad[i / 3]);
        for (size_t k = 0; k < n; k++)
            error->at[k] = 0.25f;
        bool good = run_pack(packing, x, NULL, error, to) && run_unpack(packing, &to, 1, 1, sent, false);
        for (size_t k = 0; k < n && good; k++)
            good = k >= first && k < first + ZR_PACK_BLOCK
                       ? error->at[k] == 0.25f && (k != place || isnan((double)sent->at[k]))
                       : isfinite(sent->at[k]) && isfinite(error->at[k]);
        most = good ? most : INFINITY;
    }
    return most;
}

/* Zeros, denormals and numbers near the ends of the floats. */
static double case_extremes(enum zr_packing packing, size_t n)
{
    static const double values[] = {0, 1e-41, 0x1p-126, 0x1p-95, 0x1p-60, 0x1p100, 0x1p120};
    struct tensor *to = packed_of(packing, n), *sent = output(n);
    double most = 0;
    for (unsigned v = 0; v < sizeof values / sizeof *values; v++) {
        struct tensor *x = tensor_of(ZR_PRECISION_FP32, n);
        for (size_t i = 0; i < n; i++)
            tensor_set(x, i, i % 3 ? -values[v] : values[v]);
        bool good = run_pack(packing, x, NULL, NULL, to) && run_unpack(packing, &to, 1, 1, sent, false);
        for (size_t i = 0; i < n; i++) {
            double error = fabs((double)sent->at[i] - x->real[i]);
            bool small = values[v] < 0x1p-99; /* 0 as integers */
            good = good && isfinite(sent->at[i]) && (values[v] > 0 || sent->at[i] == 0) &&
                   error <= values[v] * (small                                ? 1.001
                                         : packing == ZR_PACKING_INT4_ROTATED ? 1
                                                                              : 1e-5);
        }
        most = good ? most : INFINITY;
    }
    return most;
}

/* Rotation spreads outliers: the errors of the other numbers are smaller. */
static double squared_error(enum zr_packing packing, const struct tensor *x)
{
    struct tensor *to = packed_of(packing, x->n), *sent = output(x->n);
    double sum =
        run_pack(packing, x, NULL, NULL, to) && run_unpack(packing, &to, 1, 1, sent, false) ? 0 : INFINITY;
    for (size_t i = 0; i < x->n; i++)
        sum += ((double)sent->at[i] - x->real[i]) * ((double)sent->at[i] - x->real[i]);
    return sum;
}

static double case_rotation(enum zr_packing packing, size_t n)
{
    struct tensor *x = tensor_of(precision, n);
    for (size_t i = 0; i < n; i++)
        tensor_set(x, i, i % 128 == 5 ? 20 : random_unit());
    if (packing != ZR_PACKING_INT4_ROTATED || n < ZR_PACK_BLOCK)
        return 0;
    return 2 * squared_error(ZR_PACKING_INT4_ROTATED, x) / squared_error(ZR_PACKING_INT4, x);
}

static const struct {
    const char *name;
    double (*run)(enum zr_packing packing, size_t n);
} cases[] = {{"with errors fed back", case_feedback},      {"in parts", case_parts},
             {"anywhere in memory", case_places},          {"of infinities and NaN", case_nonfinite},
             {"at the ends of the floats", case_extremes}, {"of outliers", case_rotation}};

/* The worst of a case over all sizes, for 1 thread and, beyond a grain, 3. */
static void run(size_t number, enum zr_packing packing, enum zr_isa isa)
{
    double most = 0;
    bool intact = true, same = true;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint64_t first = 0;
        for (unsigned threads = 1; threads <= (sizes[s] > GRAIN ? 3 : 1); threads += 2) {
            struct zr_kernel_context own;
            unsigned lent = threads;
            random_state = base_seed + s;
            if (!begin(&own, &(struct shape){1, 1, 1, 1, 1, 1, 1}, isa, &lent))
                return;
            context = &own;
            most = worst(most, cases[number].run(packing, sizes[s]));
            intact = context_end(&own) && intact;
            uint64_t hash = tensors_finish(&intact);
            first = threads == 1 ? hash : first;
            same = same && hash == first;
        }
    }
    tap_ok(most <= 1 && intact && same, "%s, %s, %s %s: %.3f of the tolerance%s%s", table_name(isa),
           zr_precision_name(precision), zr_packing_name(packing), cases[number].name, most,
           intact ? "" : ", writes beyond", same ? "" : ", other bits on more threads");
}

static void test_isa(enum zr_isa isa)
{
    kernels = table_of(isa);
    for (int p = 0; p < ZR_PRECISION_COUNT; p++)
        for (int packing = 0; packing < ZR_PACKINGS_COUNT; packing++)
            for (size_t number = 0; number < sizeof cases / sizeof *cases; number++) {
                precision = (enum zr_precision)p;
                run(number, (enum zr_packing)packing, isa);
            }
}

int main(void)
{
    base_seed = run_seed();
    tap_is(zr_pack_bytes(ZR_PACKING_ONEBIT, 0), 0, "nothing packed takes no bytes");
    tap_is(zr_pack_bytes(ZR_PACKING_ONEBIT, ZR_PACK_BLOCK + 1), 2 * (64 + 4), "signs take whole blocks");
    tap_ok(zr_pack_bytes(ZR_PACKING_INT8, SIZE_MAX) == SIZE_MAX, "sizes saturate");
    for_each_isa(test_isa);
    return tap_done();
}
