/* state.c: operations on the engine's state: optimizers, norms, searches, conversions, initial values,
 * checksums. Each cuts its work over the lent threads; what is added up meets in a fixed order. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/random.h"
#include "kernels/zr_sgd.h"

#include <stdatomic.h>
#include <string.h>

static const struct zr_loops *loops_of(const struct zr_kernel_context *context, enum zr_precision precision)
{
    return zr_loops_of(context->isa, precision);
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

struct fill_job {
    size_t n;
    float value;
    float *to;
};

static void fill_part(void *argument, unsigned part, unsigned parts)
{
    const struct fill_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, ZR_GRAIN, part, parts, &from, &to);
    for (size_t i = from; i < to; i++)
        job->to[i] = job->value;
}

void zr_cpu_fill(struct zr_kernel_context *context, size_t n, float value, float *x)
{
    if (value == 0.0f && !__builtin_signbit(value))
        zr_cpu_clear(context, n * sizeof *x, x);
    else
        zr_parallel_run(context, fill_part, &(struct fill_job){n, value, x});
}

struct copy_job {
    size_t bytes;
    const char *from; /* NULL: zeros */
    char *to;
};

static void copy_part(void *argument, unsigned part, unsigned parts)
{
    const struct copy_job *job = argument;
    size_t from, to;
    zr_part_range(job->bytes, ZR_GRAIN * sizeof(float), part, parts, &from, &to);
    if (from == to)
        return;
    if (job->from == NULL)
        memset(job->to + from, 0, to - from);
    else
        memcpy(job->to + from, job->from + from, to - from);
}

void zr_cpu_copy(struct zr_kernel_context *context, size_t bytes, const void *from, void *to)
{
    if (bytes > 0)
        zr_parallel_run(context, copy_part, &(struct copy_job){bytes, from, to});
}

void zr_cpu_clear(struct zr_kernel_context *context, size_t bytes, void *to)
{
    if (bytes > 0)
        zr_parallel_run(context, copy_part, &(struct copy_job){bytes, NULL, to});
}

/* ---- Conversions --------------------------------------------------------------------------------------- */

struct convert_job {
    const struct zr_loops *from_loops, *to_loops;
    size_t n;
    const char *from;
    char *to;
};

/* Between the two-byte kinds by way of floats that stay in the first cache. */
static void convert_part(void *argument, unsigned part, unsigned parts)
{
    enum { BLOCK = 1024 };
    const struct convert_job *job = argument;
    float floats[BLOCK];
    size_t from, to;
    zr_part_range(job->n, ZR_GRAIN, part, parts, &from, &to);
    const char *source = job->from + from * job->from_loops->element_bytes;
    char *target = job->to + from * job->to_loops->element_bytes;
    if (job->to_loops->element_bytes == sizeof(float)) {
        job->from_loops->widen(to - from, source, (float *)target);
        return;
    }
    if (job->from_loops->element_bytes == sizeof(float)) {
        job->to_loops->narrow(to - from, (const float *)source, target);
        return;
    }
    for (size_t i = 0; i < to - from; i += BLOCK) {
        size_t count = to - from - i < BLOCK ? to - from - i : BLOCK;
        job->from_loops->widen(count, source + i * sizeof(uint16_t), floats);
        job->to_loops->narrow(count, floats, target + i * sizeof(uint16_t));
    }
}

void zr_cpu_convert(struct zr_kernel_context *context, size_t n, struct zr_numbers from, struct zr_numbers to)
{
    if (from.precision == to.precision)
        zr_cpu_copy(context, n * zr_precision_bytes(from.precision), from.at, to.at);
    else
        zr_parallel_run(context, convert_part,
                        &(struct convert_job){loops_of(context, from.precision),
                                              loops_of(context, to.precision), n, from.at, to.at});
}

/* ---- Optimizers ---------------------------------------------------------------------------------------- */

struct update_job {
    const struct zr_loops *loops;
    const struct zr_adamw *adamw; /* NULL: SGD */
    const struct zr_sgd *sgd;
    const struct zr_update *update;
};

static void update_part(void *argument, unsigned part, unsigned parts)
{
    const struct update_job *job = argument;
    size_t from, to;
    zr_part_range(job->update->n, ZR_GRAIN, part, parts, &from, &to);
    if (job->adamw != NULL)
        job->loops->adamw(job->adamw, job->update, from, to);
    else
        job->loops->sgd(job->sgd, job->update, from, to);
}

/* The loops know one two-byte kind: the parameter's, or the gradient's where there is none. */
static const struct zr_loops *update_loops(const struct zr_kernel_context *context,
                                           const struct zr_update *update)
{
    return loops_of(context, update->parameter.at != NULL && update->gradient.precision == ZR_PRECISION_FP32
                                 ? update->parameter.precision
                                 : update->gradient.precision);
}

void zr_cpu_update_adamw(struct zr_kernel_context *context, const struct zr_adamw *how,
                         const struct zr_update *update)
{
    zr_parallel_run(context, update_part,
                    &(struct update_job){update_loops(context, update), how, NULL, update});
}

void zr_cpu_update_sgd(struct zr_kernel_context *context, const struct zr_sgd *how,
                       const struct zr_update *update)
{
    zr_parallel_run(context, update_part,
                    &(struct update_job){update_loops(context, update), NULL, how, update});
}

void zr_cpu_adamw(struct zr_kernel_context *context, const struct zr_adamw *how, size_t n, float *parameter,
                  const float *g, float *momentum, float *variance)
{
    zr_cpu_update_adamw(context, how,
                        &(struct zr_update){.n = n,
                                            .gradient = {(float *)g, ZR_PRECISION_FP32},
                                            .master = parameter,
                                            .momentum = momentum,
                                            .variance = variance});
}

void zr_kernel_sgd(struct zr_kernel_context *context, const struct zr_sgd *how, size_t n, float *parameter,
                   const float *g, float *momentum)
{
    zr_cpu_update_sgd(
        context, how,
        &(struct zr_update){
            .n = n, .gradient = {(float *)g, ZR_PRECISION_FP32}, .master = parameter, .momentum = momentum});
}

/* ---- Norms and searches -------------------------------------------------------------------------------- */

struct squares_job {
    const struct zr_loops *loops;
    size_t n;
    const char *x;
    double *sums; /* one per block of SQUARES_BLOCK */
};

enum { SQUARES_BLOCK = 4096, SQUARES_BLOCKS = ZR_PARTIAL_BYTES / sizeof(double) };

static void squares_part(void *argument, unsigned part, unsigned parts)
{
    const struct squares_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, SQUARES_BLOCK, part, parts, &from, &to);
    for (size_t i = from; i < to; i += SQUARES_BLOCK)
        job->sums[i / SQUARES_BLOCK] = job->loops->sum_of_squares(
            to - i < SQUARES_BLOCK ? to - i : SQUARES_BLOCK, job->x + i * job->loops->element_bytes);
}

double zr_cpu_sum_of_squares_in(struct zr_kernel_context *context, size_t n, struct zr_numbers x)
{
    const size_t round = (size_t)SQUARES_BLOCK * SQUARES_BLOCKS;
    const struct zr_loops *loops = loops_of(context, x.precision);
    const char *at = x.at;
    double total = 0.0, *sums = zr_context_scratch(context, ZR_PARTIAL_BYTES);
    for (size_t from = 0; from < n; from += round) {
        size_t count = n - from < round ? n - from : round;
        zr_parallel_run(context, squares_part,
                        &(struct squares_job){loops, count, at + from * loops->element_bytes, sums});
        for (size_t block = 0; block * SQUARES_BLOCK < count; block++)
            total += sums[block];
    }
    return total;
}

double zr_cpu_sum_of_squares(struct zr_kernel_context *context, size_t n, const float *x)
{
    return zr_cpu_sum_of_squares_in(context, n, (struct zr_numbers){(float *)x, ZR_PRECISION_FP32});
}

struct search_job {
    const struct zr_loops *loops;
    size_t n;
    const char *x;
    atomic_size_t first;
};

static void search_part(void *argument, unsigned part, unsigned parts)
{
    struct search_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, ZR_GRAIN, part, parts, &from, &to);
    size_t found = from + job->loops->find_nonfinite(to - from, job->x + from * job->loops->element_bytes);
    size_t first = atomic_load(&job->first);
    while (found < to && found < first && !atomic_compare_exchange_weak(&job->first, &first, found))
        ;
}

size_t zr_cpu_find_nonfinite_in(struct zr_kernel_context *context, size_t n, struct zr_numbers x)
{
    struct search_job job = {.loops = loops_of(context, x.precision), .n = n, .x = x.at};
    atomic_init(&job.first, n);
    zr_parallel_run(context, search_part, &job);
    return atomic_load(&job.first);
}

size_t zr_cpu_find_nonfinite(struct zr_kernel_context *context, size_t n, const float *x)
{
    return zr_cpu_find_nonfinite_in(context, n, (struct zr_numbers){(float *)x, ZR_PRECISION_FP32});
}

/* ---- Initial values, checksums ------------------------------------------------------------------------- */

struct normal_job {
    size_t n;
    uint64_t seed, first_index;
    float mean, deviation;
    float *x;
};

static void normal_part(void *argument, unsigned part, unsigned parts)
{
    const struct normal_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, ZR_GRAIN, part, parts, &from, &to);
    for (size_t i = from; i < to; i++)
        job->x[i] = (float)((double)job->mean +
                            (double)job->deviation * zr_random_normal(job->seed, job->first_index + i));
}

void zr_cpu_init_normal(struct zr_kernel_context *context, size_t n, uint64_t seed, uint64_t first_index,
                        float mean, float deviation, float *x)
{
    zr_parallel_run(context, normal_part, &(struct normal_job){n, seed, first_index, mean, deviation, x});
}

enum { HASH_BLOCK = 1 << 16, HASH_LANES = 8 };

static uint64_t hash_mix(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
    x = (x ^ x >> 29) * 0x9fb21c651e98df25;
    return x ^ x >> 32;
}

/* Eight lanes; every step of a lane can be undone, so one changed word always changes its lane. */
static uint64_t hash_block(const char *data, size_t bytes, uint64_t index)
{
    uint64_t lane[HASH_LANES], word[HASH_LANES], hash = hash_mix(index + 0x9e3779b97f4a7c15);
    for (size_t j = 0; j < HASH_LANES; j++)
        lane[j] = hash_mix(hash + j);
    for (size_t i = 0; i < bytes; i += sizeof word) {
        size_t left = bytes - i;
        if (left < sizeof word)
            memset(word, 0, sizeof word);
        memcpy(word, data + i, left < sizeof word ? left : sizeof word);
        for (size_t j = 0; j < HASH_LANES; j++) {
            uint64_t x = (lane[j] ^ word[j]) * 0x9e3779b97f4a7c15;
            lane[j] = x ^ x >> 29;
        }
    }
    for (size_t j = 0; j < HASH_LANES; j++)
        hash = hash_mix(hash ^ lane[j]) + j;
    return hash_mix(hash ^ bytes);
}

struct hash_job {
    const char *data;
    size_t bytes;
    atomic_uint_least64_t sum; /* blocks know their index, so the order they come in does not matter */
};

static void hash_part(void *argument, unsigned part, unsigned parts)
{
    struct hash_job *job = argument;
    size_t from, to;
    uint64_t sum = 0;
    zr_part_range(job->bytes, HASH_BLOCK, part, parts, &from, &to);
    for (size_t i = from; i < to; i += HASH_BLOCK)
        sum += hash_block(job->data + i, to - i < HASH_BLOCK ? to - i : HASH_BLOCK, i / HASH_BLOCK);
    atomic_fetch_add(&job->sum, sum);
}

uint64_t zr_cpu_checksum(struct zr_kernel_context *context, size_t bytes, const void *data)
{
    struct hash_job job = {.data = data, .bytes = bytes};
    atomic_init(&job.sum, hash_mix(bytes));
    zr_parallel_run(context, hash_part, &job);
    return hash_mix(atomic_load(&job.sum));
}
