/* largest.c: see largest.h. */
#include "zero/compress/largest.h"

#include <math.h>
#include <string.h>

#include "zero/comm/take.h"

zr_result zr_largest_init(struct zr_largest *out, const struct zr_largest_options *options)
{
    memset(out, 0, sizeof *out);
    if (!options->kernels->host_visible)
        return zr_fail(ZR_ERR_INVALID, "kernels %s have tensors whose largest numbers the host cannot find",
                       options->kernels->name);
    out->options = *options;
    out->context = *options->context; /* copies constant fields only */
    out->context.parallel = (struct zr_parallel){.threads = 1};
    out->context.flops = NULL;
    out->rank = zr_comm_rank(options->comm);
    out->world = zr_comm_world(options->comm);
    return zr_take(options->arena, ZR_TAG_COMM, options->staging_bytes, 1, (void **)&out->staging);
}

void zr_largest_fini(struct zr_largest *largest)
{
    zr_drop(largest->options.arena, &largest->staging);
}

size_t zr_largest_bytes(size_t count)
{
    size_t bytes;
    return __builtin_mul_overflow(count, sizeof(uint32_t) + sizeof(float), &bytes) ? SIZE_MAX : bytes;
}

/* Floats of a shard, then what is sent and what arrives. To all ranks, the first is within the second. */
size_t zr_largest_staging_bytes(size_t shard_elements, size_t count, unsigned world, bool to_all)
{
    size_t bytes, floats;
    return __builtin_mul_overflow(zr_largest_bytes(count), (size_t)world * (to_all ? world : 2), &bytes) ||
                   __builtin_mul_overflow(shard_elements, sizeof(float), &floats) ||
                   __builtin_add_overflow(bytes, floats, &bytes)
               ? SIZE_MAX
               : bytes;
}

/* ---- Selection ----------------------------------------------------------------------------------------- */

static uint32_t magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff; /* in the order of magnitudes; NaN is above all */
}

/* The bits of the count-th largest magnitude of x, and how many are above it. */
struct threshold {
    uint32_t bits;
    size_t above_count;
};

/* Narrows the threshold from its upper bits down, 11 at first and 10 twice. */
static struct threshold find_threshold(const float *x, size_t n, size_t count)
{
    enum { DIGITS = 2048 };
    static const unsigned shifts[] = {20, 10, 0};
    struct threshold found = {0, 0};
    for (unsigned level = 0; level < 3; level++) {
        size_t counts[DIGITS] = {0};
        const unsigned shift = shifts[level];
        const uint32_t mask = level == 0 ? DIGITS - 1 : DIGITS / 2 - 1;
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = magnitude(x[i]);
            if (level == 0 || (bits ^ found.bits) >> shifts[level - 1] == 0)
                counts[bits >> shift & mask]++;
        }
        uint32_t digit = mask;
        for (; found.above_count + counts[digit] < count; digit--)
            found.above_count += counts[digit];
        found.bits |= digit << shift;
    }
    return found;
}

/* Moves the largest numbers of a shard of errors to `out`, the first of equal ones: their indices, then the
 * numbers. */
static void take_largest(const struct zr_largest_sum *op, size_t shard, char *out)
{
    const size_t n = op->shard_elements;
    float *x = op->error + shard * n, *velocity = op->velocity ? op->velocity + shard * n : NULL;
    const struct threshold threshold = find_threshold(x, n, op->count);
    uint32_t *indices = (void *)out;
    float *numbers = (float *)(indices + op->count);
    size_t equal = op->count - threshold.above_count, taken = 0;
    for (size_t i = 0; i < n && taken < op->count; i++) {
        uint32_t bits = magnitude(x[i]);
        if (bits < threshold.bits || (bits == threshold.bits && equal == 0))
            continue;
        equal -= bits == threshold.bits;
        indices[taken] = (uint32_t)i;
        numbers[taken++] = x[i];
        x[i] = 0;
        if (velocity)
            velocity[i] = 0;
    }
}

/* ---- In the communicator's thread ---------------------------------------------------------------------- */

static float *floats_of(const struct zr_largest *by)
{
    return (float *)(void *)by->staging;
}

/* What this rank sends / what arrived from rank p for a shard. */
static char *outgoing(const struct zr_largest_sum *op, size_t shard)
{
    size_t all = op->to_all ? op->by->rank * op->by->world : 0;
    return op->by->staging + op->shard_elements * sizeof(float) + (all + shard) * zr_largest_bytes(op->count);
}

static const char *incoming(const struct zr_largest_sum *op, unsigned p, size_t shard)
{
    const unsigned world = op->by->world;
    return op->by->staging + op->shard_elements * sizeof(float) +
           (op->to_all ? p * world + shard : world + p) * zr_largest_bytes(op->count);
}

static zr_result read_shard(const struct zr_largest_sum *op, size_t shard, float scale)
{
    const void *from =
        (const char *)op->from.at + shard * op->shard_elements * zr_precision_bytes(op->from.precision);
    return op->by->options.kernels->sum(NULL, &(struct zr_sum){.n = op->shard_elements,
                                                               .from = &from,
                                                               .count = 1,
                                                               .precision = op->from.precision,
                                                               .scale = scale,
                                                               .to = {floats_of(op->by), ZR_PRECISION_FP32}});
}

/* The factor that scales the gradients to `clip`. */
static zr_result find_scale(const struct zr_largest_sum *op, float *scale)
{
    double squares = 0;
    zr_result result = ZR_OK;
    for (size_t p = 0; op->clip > 0 && p < op->by->world && result == ZR_OK; p++) {
        result = read_shard(op, p, 1);
        for (size_t i = 0; i < op->shard_elements; i++)
            squares += (double)floats_of(op->by)[i] * (double)floats_of(op->by)[i];
    }
    double norm = sqrt(squares);
    *scale = op->clip > 0 && norm > op->clip ? (float)(op->clip / norm) : 1;
    return result;
}

static zr_result select_shards(void *state, struct zr_kernel_context *stream)
{
    (void)stream;
    const struct zr_largest_sum *op = state;
    float scale = 1;
    if (!op->by->options.kernels->executes)
        return ZR_OK;
    zr_result result = find_scale(op, &scale);
    for (size_t p = 0; p < op->by->world && result == ZR_OK; p++) {
        const float *gradients = floats_of(op->by);
        const size_t first = p * op->shard_elements;
        result = read_shard(op, p, scale);
        for (size_t i = 0; i < op->shard_elements && op->velocity; i++)
            op->velocity[first + i] = op->momentum * op->velocity[first + i] + gradients[i];
        if (op->velocity)
            gradients = op->velocity + first;
        for (size_t i = 0; i < op->shard_elements; i++)
            op->error[first + i] += gradients[i];
        take_largest(op, p, outgoing(op, p));
    }
    return result;
}

static zr_result add_shard(const struct zr_largest_sum *op, size_t shard, struct zr_numbers to)
{
    const struct zr_largest *by = op->by;
    const void *sum = floats_of(by);
    memset(floats_of(by), 0, op->shard_elements * sizeof(float));
    for (unsigned p = 0; p < by->world; p++) {
        const uint32_t *indices = (const void *)incoming(op, p, shard);
        const float *numbers = (const float *)(indices + op->count);
        for (size_t i = 0; i < op->count; i++)
            if (indices[i] < op->shard_elements)
                floats_of(by)[indices[i]] += numbers[i];
    }
    for (size_t i = 0; i < op->shard_elements; i++)
        floats_of(by)[i] *= op->scale;
    if (op->accumulate)
        return by->options.kernels->sum(NULL, &(struct zr_sum){.n = op->shard_elements,
                                                               .from = &sum,
                                                               .count = 1,
                                                               .precision = ZR_PRECISION_FP32,
                                                               .scale = 1,
                                                               .accumulate = true,
                                                               .to = to});
    return by->options.kernels->convert(
        (struct zr_kernel_context *)&by->context,
        &(struct zr_convert){op->shard_elements, {floats_of(by), ZR_PRECISION_FP32}, to});
}

static zr_result add_shards(void *state, struct zr_kernel_context *stream)
{
    (void)stream; /* the host can access tensors */
    const struct zr_largest_sum *op = state;
    const size_t bytes = op->shard_elements * zr_precision_bytes(op->to.precision);
    zr_result result = ZR_OK;
    if (!op->by->options.kernels->executes)
        return ZR_OK;
    if (!op->to_all)
        return add_shard(op, 0, op->to);
    for (size_t p = 0; p < op->by->world && result == ZR_OK; p++)
        result = add_shard(op, p, (struct zr_numbers){(char *)op->to.at + p * bytes, op->to.precision});
    return result;
}

/* ---- Operations ---------------------------------------------------------------------------------------- */

zr_result zr_largest_begin(struct zr_largest *by, struct zr_largest_sum *op, zr_ticket *ticket)
{
    const size_t bytes = zr_largest_bytes(op->count),
                 needed_bytes =
                     zr_largest_staging_bytes(op->shard_elements, op->count, by->world, op->to_all);
    if (needed_bytes > by->options.staging_bytes || op->count > op->shard_elements ||
        op->shard_elements > UINT32_MAX)
        return zr_fail(ZR_ERR_INVALID, "%zu largest numbers of %zu need %zu of %zu staged bytes", op->count,
                       op->shard_elements, needed_bytes, by->options.staging_bytes);
    op->by = by;
    op->packs = (struct zr_comm_work){.run = select_shards, .state = op};
    op->unpacks = (struct zr_comm_work){.run = add_shards, .state = op};
    if (op->to_all)
        return zr_comm_all_gather(
            by->options.comm,
            &(struct zr_all_gather){.source = outgoing(op, 0),
                                    .destination = (void *)(uintptr_t)incoming(op, 0, 0),
                                    .shard_bytes = by->world * bytes,
                                    .packed_elements = by->world * op->shard_elements,
                                    .label = op->label,
                                    .first = &op->packs,
                                    .last = &op->unpacks},
            ticket);
    return zr_comm_all_to_all(by->options.comm,
                              &(struct zr_all_gather){.source = outgoing(op, 0),
                                                      .destination = (void *)(uintptr_t)incoming(op, 0, 0),
                                                      .shard_bytes = bytes,
                                                      .packed_elements = op->shard_elements,
                                                      .label = op->label,
                                                      .first = &op->packs,
                                                      .last = &op->unpacks},
                              ticket);
}
