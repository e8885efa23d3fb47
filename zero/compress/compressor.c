/* compressor.c: see compressor.h. */
#include "zero/compress/compressor.h"

#include <string.h>

#include "zero/comm/take.h"

zr_result zr_compressor_init(struct zr_compressor *out, const struct zr_compressor_options *options)
{
    memset(out, 0, sizeof *out);
    if (!options->kernels->pack || !options->kernels->unpack)
        return zr_fail(ZR_ERR_INVALID, "kernels %s cannot pack numbers for collectives",
                       options->kernels->name);
    out->options = *options;
    out->context = *options->context; /* copies constant fields only */
    out->context.parallel = (struct zr_parallel){.threads = 1};
    out->context.flops = NULL;
    out->rank = zr_comm_rank(options->comm);
    out->world = zr_comm_world(options->comm);
    zr_result result =
        zr_take(options->arena, ZR_TAG_COMM, options->staging_bytes, 1, (void **)&out->staging);
    if (result == ZR_OK)
        result =
            zr_take(options->host_arena, ZR_TAG_OTHER, out->world, sizeof *out->from, (void **)&out->from);
    if (result != ZR_OK)
        zr_compressor_fini(out);
    return result;
}

void zr_compressor_fini(struct zr_compressor *compressor)
{
    zr_drop(compressor->options.host_arena, &compressor->from);
    zr_drop(compressor->options.arena, &compressor->staging);
}

static size_t bytes_of(enum zr_packing packing, size_t shard_elements, unsigned pieces)
{
    size_t bytes = zr_pack_bytes(packing, shard_elements / pieces);
    return __builtin_mul_overflow(bytes, pieces, &bytes) ? SIZE_MAX : bytes;
}

size_t zr_compressed_gather_bytes(enum zr_packing packing, size_t shard_elements, unsigned world)
{
    size_t bytes = bytes_of(packing, shard_elements, 1);
    return __builtin_mul_overflow(bytes, world, &bytes) ? SIZE_MAX : bytes;
}

size_t zr_compressed_sum_bytes(enum zr_packing packing, size_t shard_elements, unsigned pieces,
                               unsigned world)
{
    size_t bytes = bytes_of(packing, shard_elements, pieces);
    return __builtin_mul_overflow(bytes, 2 * (size_t)world, &bytes) ? SIZE_MAX : bytes;
}

static struct zr_numbers at(struct zr_numbers numbers, size_t index)
{
    if (numbers.at)
        numbers.at = (char *)numbers.at + index * zr_precision_bytes(numbers.precision);
    return numbers;
}

/* ---- Start and end of an operation --------------------------------------------------------------------- */

static size_t piece_elements(const struct zr_compressed *op)
{
    return op->shard_elements / op->pieces;
}

static size_t shard_bytes(const struct zr_compressed *op)
{
    return bytes_of(op->packing, op->shard_elements, op->pieces);
}

/* The context of the operation's stream, or that of the communicator's thread. */
static struct zr_kernel_context *context_of(const struct zr_compressed *op, struct zr_kernel_context *stream)
{
    return stream ? stream : &op->by->context;
}

/* Packs piece `index` of the source. */
static zr_result pack(const struct zr_compressed *op, struct zr_kernel_context *stream, size_t index,
                      char *to)
{
    size_t n = piece_elements(op), first = index * n, nonfinite = n;
    zr_result result = op->by->options.kernels->pack(
        context_of(op, stream), &(struct zr_pack){.packing = op->packing,
                                                  .n = n,
                                                  .from = at(op->from, first),
                                                  .minus = at(op->minus, first),
                                                  .error = op->error ? op->error + first : NULL,
                                                  .to = to,
                                                  .nonfinite = op->nonfinite ? &nonfinite : NULL});
    if (nonfinite < n && first + nonfinite < *op->nonfinite)
        *op->nonfinite = first + nonfinite;
    return result;
}

/* (+)= the sum of `count` packed pieces. */
static zr_result unpack(const struct zr_compressed *op, struct zr_kernel_context *stream,
                        const void *const *from, unsigned count, struct zr_numbers to)
{
    return op->by->options.kernels->unpack(context_of(op, stream),
                                           &(struct zr_unpack){.packing = op->packing,
                                                               .n = piece_elements(op),
                                                               .from = from,
                                                               .count = count,
                                                               .scale = op->scale,
                                                               .accumulate = op->accumulate,
                                                               .to = to});
}

static zr_result end(const struct zr_compressed *op, struct zr_kernel_context *stream, zr_result result)
{
    return result == ZR_OK && op->last ? op->last->run(op->last->state, stream) : result;
}

/* Whether the operation is compared; kernels that compute nothing have no numbers. */
static bool is_checked(const struct zr_compressed *op)
{
    return op->check && op->by->options.kernels->executes;
}

zr_result zr_compressed_compare(struct zr_compressed_check *check, const struct zr_arrived *arrived)
{
    float values[ZR_PACK_BLOCK];
    zr_result result = ZR_OK;
    check->true_squares = check->error_squares = 0;
    for (size_t first = 0; first < arrived->count && result == ZR_OK; first += ZR_PACK_BLOCK) {
        size_t left = arrived->count - first, n = left < ZR_PACK_BLOCK ? left : ZR_PACK_BLOCK;
        result = arrived->kernels->convert(arrived->context,
                                           &(struct zr_convert){.n = n,
                                                                .from = at(arrived->numbers, first),
                                                                .to = {values, ZR_PRECISION_FP32}});
        for (size_t i = 0; i < n && result == ZR_OK; i++) {
            double truth = (double)check->truth[first + i], error = (double)values[i] - truth;
            check->true_squares += truth * truth;
            check->error_squares += error * error;
        }
    }
    return result;
}

static zr_result pack_own(void *state, struct zr_kernel_context *stream)
{
    const struct zr_compressed *op = state;
    zr_result result = ZR_OK;
    if (is_checked(op)) /* unpacking may overwrite the shard */
        result = op->by->options.kernels->convert(
            context_of(op, stream), &(struct zr_convert){.n = op->shard_elements,
                                                         .from = op->from,
                                                         .to = {op->check->truth, ZR_PRECISION_FP32}});
    return result == ZR_OK ? pack(op, stream, 0, op->by->staging + op->by->rank * shard_bytes(op)) : result;
}

static zr_result unpack_shards(void *state, struct zr_kernel_context *stream)
{
    const struct zr_compressed *op = state;
    zr_result result = ZR_OK;
    for (unsigned p = 0; p < op->by->world && result == ZR_OK; p++) {
        const void *shard = op->by->staging + p * shard_bytes(op);
        result = unpack(op, stream, &shard, 1, at(op->to, p * op->shard_elements));
    }
    if (result == ZR_OK && is_checked(op))
        result = zr_compressed_compare(op->check,
                                       &(struct zr_arrived){op->by->options.kernels, context_of(op, stream),
                                                            at(op->to, op->by->rank * op->shard_elements),
                                                            op->shard_elements});
    return end(op, stream, result);
}

static zr_result pack_shards(void *state, struct zr_kernel_context *stream)
{
    const struct zr_compressed *op = state;
    size_t piece_bytes = shard_bytes(op) / op->pieces;
    unsigned world = op->by->world;
    zr_result result = ZR_OK;
    for (unsigned p = 0; p < world; p++)
        for (unsigned m = 0; m < op->pieces && result == ZR_OK; m++)
            result =
                pack(op, stream, (size_t)m * world + p, op->by->staging + (p * op->pieces + m) * piece_bytes);
    return result;
}

static zr_result add_shards(void *state, struct zr_kernel_context *stream)
{
    const struct zr_compressed *op = state;
    const struct zr_compressor *by = op->by;
    size_t piece_bytes = shard_bytes(op) / op->pieces;
    zr_result result = ZR_OK;
    for (unsigned m = 0; m < op->pieces && result == ZR_OK; m++) {
        const char *incoming = by->staging + by->world * shard_bytes(op) + m * piece_bytes;
        for (unsigned p = 0; p < by->world; p++)
            by->from[p] = incoming + p * shard_bytes(op);
        result = unpack(op, stream, by->from, by->world, at(op->to, m * piece_elements(op)));
    }
    return end(op, stream, result);
}

/* ---- Operations ---------------------------------------------------------------------------------------- */

/* Starts an operation that needs `staging_bytes`, of shards that begin so many shards behind the start of the
 * staging block. */
struct start {
    zr_result (*submit)(zr_comm *comm, const struct zr_all_gather *operation, zr_ticket *ticket);
    size_t staging_bytes;
    unsigned source, destination;
};
static zr_result start(struct zr_compressor *by, struct zr_compressed *op, const struct start *how,
                       zr_ticket *ticket)
{
    op->by = by;
    op->pieces = op->pieces > 0 ? op->pieces : 1;
    op->packs.state = op->unpacks.state = op;
    if (how->staging_bytes > by->options.staging_bytes)
        return zr_fail(ZR_ERR_INVALID, "a compressed operation needs %zu of %zu staged bytes",
                       how->staging_bytes, by->options.staging_bytes);
    size_t bytes = shard_bytes(op);
    return how->submit(by->options.comm,
                       &(struct zr_all_gather){.source = by->staging + how->source * bytes,
                                               .destination = by->staging + how->destination * bytes,
                                               .shard_bytes = bytes,
                                               .packed_elements = op->shard_elements,
                                               .label = op->label,
                                               .host_bytes = op->host_bytes,
                                               .before = op->before,
                                               .first = &op->packs,
                                               .last = &op->unpacks},
                       ticket);
}

zr_result zr_compressed_gather(struct zr_compressor *by, struct zr_compressed *op, zr_ticket *ticket)
{
    op->packs.run = pack_own;
    op->unpacks.run = unpack_shards;
    return start(by, op,
                 &(struct start){zr_comm_all_gather,
                                 zr_compressed_gather_bytes(op->packing, op->shard_elements, by->world),
                                 by->rank, 0},
                 ticket);
}

zr_result zr_compressed_sum(struct zr_compressor *by, struct zr_compressed *op, zr_ticket *ticket)
{
    const unsigned pieces = op->pieces > 0 ? op->pieces : 1;
    op->packs.run = pack_shards;
    op->unpacks.run = add_shards;
    return start(by, op,
                 &(struct start){zr_comm_all_to_all,
                                 zr_compressed_sum_bytes(op->packing, op->shard_elements, pieces, by->world),
                                 0, by->world},
                 ticket);
}
