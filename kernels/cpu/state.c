/* state.c: operations on optimizer state: optimizers, norms, searches, conversions, initial values,
 * checksums. Work is divided over the context's threads; sums are combined in a fixed order. */
#include "kernels/state.h"
#include "kernels/cpu/cpu.h"
#include "kernels/normal.h"
#include <math.h>

#include <stdatomic.h>
#include <string.h>

static const struct zr_loops *loops_of(const struct zr_kernel_context *context, enum zr_precision precision)
{
    return zr_loops_of(context->isa, precision);
}

/* ---- Conversions --------------------------------------------------------------------------------------- */

static void clear_bytes(const void *args, size_t from, size_t to)
{
    memset((char *)((const struct zr_clear *)args)->to + from, 0, to - from);
}

zr_result zr_cpu_clear(struct zr_kernel_context *context, const struct zr_clear *args)
{
    return zr_loop_run(context, clear_bytes, args, args->bytes, ZR_GRAIN * sizeof(float));
}

static void copy_bytes(const void *args, size_t from, size_t to)
{
    const struct zr_copy_bytes *copy = args;
    memcpy((char *)copy->to + from, (const char *)copy->from + from, to - from);
}

zr_result zr_cpu_copy_bytes(struct zr_kernel_context *context, const struct zr_copy_bytes *args)
{
    return zr_loop_run(context, copy_bytes, args, args->bytes, ZR_GRAIN * sizeof(float));
}

struct conversion {
    const struct zr_loops *from_loops, *to_loops;
    const char *from;
    char *to;
};

/* Between bf16 and fp16 through floats in the L1 cache. */
static void convert_elements(const void *args, size_t from, size_t to)
{
    enum { BLOCK = 1024 };
    const struct conversion *c = args;
    float floats[BLOCK];
    const char *source = c->from + from * c->from_loops->element_bytes;
    char *target = c->to + from * c->to_loops->element_bytes;
    if (c->from_loops == c->to_loops) {
        memcpy(target, source, (to - from) * c->to_loops->element_bytes);
        return;
    }
    if (c->to_loops->element_bytes == sizeof(float)) {
        c->from_loops->widen(to - from, source, (float *)target);
        return;
    }
    if (c->from_loops->element_bytes == sizeof(float)) {
        c->to_loops->narrow(to - from, (const float *)source, target);
        return;
    }
    for (size_t i = 0; i < to - from; i += BLOCK) {
        size_t count = to - from - i < BLOCK ? to - from - i : BLOCK;
        c->from_loops->widen(count, source + i * sizeof(uint16_t), floats);
        c->to_loops->narrow(count, floats, target + i * sizeof(uint16_t));
    }
}

zr_result zr_cpu_convert(struct zr_kernel_context *context, const struct zr_convert *args)
{
    const struct conversion conversion = {loops_of(context, args->from.precision),
                                          loops_of(context, args->to.precision), args->from.at, args->to.at};
    return zr_loop_run(context, convert_elements, &conversion, args->n, ZR_GRAIN);
}

/* ---- Optimizers ---------------------------------------------------------------------------------------- */

/* A loop supports one two-byte precision: the parameter's, or the gradient's if there is no parameter. */
static const struct zr_loops *update_loops(const struct zr_kernel_context *context,
                                           const struct zr_update *update)
{
    return loops_of(context, update->parameter.at != NULL && update->gradient.precision == ZR_PRECISION_FP32
                                 ? update->parameter.precision
                                 : update->gradient.precision);
}

zr_result zr_cpu_weigh_gradients(struct zr_kernel_context *context, const struct zr_weigh_gradients *args)
{
    double sum = 0;
    (void)context;
    for (size_t u = 0; u < args->units; u++)
        for (size_t r = 0; r < args->ranks; r++)
            sum += args->squares[r * args->units + u];
    *args->weight = zr_weight_of(sqrt(sum), args->loss_scale, args->clip);
    return ZR_OK;
}

zr_result zr_cpu_update_adamw(struct zr_kernel_context *context, const struct zr_update_adamw *args)
{
    struct zr_update_adamw own = *args;
    if (args->how.weight && args->how.weight->skips)
        return ZR_OK;
    if (args->how.weight)
        own.how.gradient_scale = args->how.weight->scale;
    if (args->how.rates) {
        own.how.rate = args->how.rates->rate * args->how.rate;
        own.how.correction1 = args->how.rates->correction1;
        own.how.correction2 = args->how.rates->correction2;
    }
    return zr_loop_run(context, update_loops(context, &args->numbers)->update_adamw, &own, args->numbers.n,
                       ZR_GRAIN);
}

zr_result zr_cpu_update_sgd(struct zr_kernel_context *context, const struct zr_update_sgd *args)
{
    struct zr_update_sgd own = *args;
    if (args->how.weight && args->how.weight->skips)
        return ZR_OK;
    if (args->how.weight)
        own.how.gradient_scale = args->how.weight->scale;
    if (args->how.rates)
        own.how.rate = args->how.rates->rate * args->how.rate;
    return zr_loop_run(context, update_loops(context, &args->numbers)->update_sgd, &own, args->numbers.n,
                       ZR_GRAIN);
}

/* ---- Norms and searches -------------------------------------------------------------------------------- */

struct squares {
    const struct zr_loops *loops;
    const char *x;
    double *sums; /* by block of SQUARES_BLOCK */
};

enum {
    SQUARES_BLOCK = 4096,
    SQUARES_GROUP = 64, /* blocks per group */
    SQUARES_BLOCKS = ZR_PARTIAL_BYTES / sizeof(double)
};

static void square_elements(const void *args, size_t from, size_t to)
{
    const struct squares *s = args;
    for (size_t i = from; i < to; i += SQUARES_BLOCK)
        s->sums[i / SQUARES_BLOCK] = s->loops->sum_of_squares(to - i < SQUARES_BLOCK ? to - i : SQUARES_BLOCK,
                                                              s->x + i * s->loops->element_bytes);
}

zr_result zr_cpu_sum_of_squares(struct zr_kernel_context *context, const struct zr_sum_of_squares *args)
{
    const size_t round = (size_t)SQUARES_BLOCK * SQUARES_BLOCKS;
    struct squares squares = {.loops = loops_of(context, args->x.precision), .x = args->x.at};
    double total = 0.0;
    zr_result result = zr_context_scratch(context, ZR_PARTIAL_BYTES, (void **)&squares.sums);
    for (size_t from = 0; from < args->n && result == ZR_OK; from += round) {
        size_t count = args->n - from < round ? args->n - from : round;
        result = zr_loop_run(context, square_elements, &squares, count, SQUARES_BLOCK);
        size_t blocks = (count + SQUARES_BLOCK - 1) / SQUARES_BLOCK;
        for (size_t block = 0; block < blocks && result == ZR_OK;) {
            double group = 0;
            for (size_t end = block + SQUARES_GROUP; block < end && block < blocks; block++)
                group += squares.sums[block];
            total += group;
        }
        squares.x += count * squares.loops->element_bytes;
    }
    *args->sum = total;
    return result;
}

struct search {
    const struct zr_loops *loops;
    const char *x;
    atomic_size_t *first;
};

static void search_elements(const void *args, size_t from, size_t to)
{
    const struct search *search = args;
    size_t found =
        from + search->loops->find_nonfinite(to - from, search->x + from * search->loops->element_bytes);
    size_t first = atomic_load(search->first);
    while (found < to && found < first && !atomic_compare_exchange_weak(search->first, &first, found))
        ;
}

zr_result zr_cpu_find_nonfinite(struct zr_kernel_context *context, const struct zr_find_nonfinite *args)
{
    atomic_size_t first;
    atomic_init(&first, args->n);
    zr_result result = zr_loop_run(context, search_elements,
                                   &(struct search){loops_of(context, args->x.precision), args->x.at, &first},
                                   args->n, ZR_GRAIN);
    *args->index = atomic_load(&first);
    return result;
}

/* ---- Initial values, checksums ------------------------------------------------------------------------- */

static void init_elements(const void *args, size_t from, size_t to)
{
    const struct zr_init_normal *a = args;
    for (size_t i = from; i < to; i++)
        a->x[i] = a->deviation == 0
                      ? a->mean
                      : (float)((double)a->mean +
                                (double)a->deviation * zr_real_normal(a->seed, a->first_index + i));
}

zr_result zr_cpu_init_normal(struct zr_kernel_context *context, const struct zr_init_normal *args)
{
    return zr_loop_run(context, init_elements, args, args->n, ZR_GRAIN);
}

enum { HASH_BLOCK = 1 << 16, HASH_LANES = 8 };

static uint64_t hash_block(const char *data, size_t bytes, uint64_t index)
{
    uint64_t lane[HASH_LANES], word[HASH_LANES], hash = zr_hash_begin(index);
    for (size_t j = 0; j < HASH_LANES; j++)
        lane[j] = zr_hash_mix(hash + j);
    for (size_t i = 0; i < bytes; i += sizeof word) {
        size_t left = bytes - i;
        if (left < sizeof word)
            memset(word, 0, sizeof word);
        memcpy(word, data + i, left < sizeof word ? left : sizeof word);
        for (size_t j = 0; j < HASH_LANES; j++)
            lane[j] = zr_hash_step(lane[j], word[j]);
    }
    for (size_t j = 0; j < HASH_LANES; j++)
        hash = zr_hash_join(hash, lane[j], j);
    return zr_hash_mix(hash ^ bytes);
}

struct hash {
    const char *data;
    atomic_uint_least64_t *sum; /* hashes include the block's index, so their order does not matter */
};

static void hash_bytes(const void *args, size_t from, size_t to)
{
    const struct hash *hash = args;
    uint64_t sum = 0;
    for (size_t i = from; i < to; i += HASH_BLOCK)
        sum += hash_block(hash->data + i, to - i < HASH_BLOCK ? to - i : HASH_BLOCK, i / HASH_BLOCK);
    atomic_fetch_add(hash->sum, sum);
}

zr_result zr_cpu_checksum(struct zr_kernel_context *context, const struct zr_checksum *args)
{
    atomic_uint_least64_t sum;
    atomic_init(&sum, zr_hash_mix(args->bytes));
    zr_result result =
        zr_loop_run(context, hash_bytes, &(struct hash){args->data, &sum}, args->bytes, HASH_BLOCK);
    *args->sum = zr_hash_mix(atomic_load(&sum));
    return result;
}
