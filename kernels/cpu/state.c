/* state.c: operations on optimizer state beside the optimizers: norms, searches, conversions, initial values,
 * checksums. Work is divided over the context's threads; sums are combined in a fixed order. */
#include "kernels/state.h"
#include "kernels/cpu/cpu.h"
#include "kernels/normal.h"
#include <math.h>

#include <stdatomic.h>
#include <string.h>

static const struct zr_loops *loops_of(const struct zr_kernel_context *context, enum zr_precision precision)
{
    return zr_loops_of[context->isa][precision];
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

zr_result zr_cpu_pack(struct zr_kernel_context *context, const struct zr_pack *args)
{
    return zr_loop_run(context, loops_of(context, context->precision)->pack, args, args->n, ZR_GRAIN);
}

zr_result zr_cpu_unpack(struct zr_kernel_context *context, const struct zr_unpack *args)
{
    return zr_loop_run(context, loops_of(context, context->precision)->unpack, args, args->n, ZR_GRAIN);
}

/* ---- Norms and searches -------------------------------------------------------------------------------- */

enum {
    SQUARES_BLOCK = ZR_SQUARES_BLOCK,
    SQUARES_GROUP = 64, /* blocks per group */
    SQUARES_BLOCKS = ZR_PARTIAL_BYTES / sizeof(double)
};

struct sum_round {
    const struct zr_block_sums *work;
    size_t first;
    double *sums; /* by block of SQUARES_BLOCK */
};

static void sum_elements(const void *args, size_t from, size_t to)
{
    const struct sum_round *r = args;
    for (size_t i = from; i < to; i += SQUARES_BLOCK)
        r->sums[i / SQUARES_BLOCK] = r->work->sum(
            r->work->args, r->first + i, r->first + (to - i < SQUARES_BLOCK ? to : i + SQUARES_BLOCK));
}

zr_result zr_cpu_sum_blocks(struct zr_kernel_context *context, const struct zr_block_sums *work)
{
    const size_t round_elements = (size_t)SQUARES_BLOCK * SQUARES_BLOCKS;
    struct sum_round round = {.work = work};
    double total = 0.0;
    zr_result result = zr_context_scratch(context, ZR_PARTIAL_BYTES, (void **)&round.sums);
    for (; round.first < work->n && result == ZR_OK; round.first += round_elements) {
        size_t count = work->n - round.first < round_elements ? work->n - round.first : round_elements;
        result = zr_loop_run(context, sum_elements, &round, count, SQUARES_BLOCK);
        size_t blocks = (count + SQUARES_BLOCK - 1) / SQUARES_BLOCK;
        for (size_t block = 0; block < blocks && result == ZR_OK;) {
            double group = 0;
            for (size_t end = block + SQUARES_GROUP; block < end && block < blocks; block++)
                group += round.sums[block];
            total += group;
        }
    }
    *work->total = total;
    return result;
}

struct squares {
    const struct zr_loops *loops;
    const char *x;
};

static double sum_of_block(const void *args, size_t from, size_t to)
{
    const struct squares *s = args;
    return s->loops->sum_of_squares(to - from, s->x + from * s->loops->element_bytes);
}

zr_result zr_cpu_sum_of_squares(struct zr_kernel_context *context, const struct zr_sum_of_squares *args)
{
    const struct squares squares = {loops_of(context, args->x.precision), args->x.at};
    return zr_cpu_sum_blocks(context, &(struct zr_block_sums){sum_of_block, &squares, args->n, args->sum});
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
