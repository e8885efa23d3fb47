/* checkpoints.c: see checkpoints.h. */
#include "zero/model/checkpoints.h"

#include <string.h>

#include "zero/comm/copies.h"
#include "zero/comm/take.h"

/* One buffer in use and one in transfer; copies to the host need one more. */
enum { BUFFERS = 2, BUFFERS_OF_HOST = 3 };

static size_t bytes_of(const struct zr_checkpoints *c, size_t elements)
{
    return elements * zr_precision_bytes(c->options.precision);
}

static zr_arena *part_arena(const struct zr_checkpoints *c)
{
    return c->options.policy.host ? c->options.policy.host : c->options.arena;
}

static zr_tag part_tag(const struct zr_checkpoints *c)
{
    return c->options.policy.host ? ZR_TAG_OFFLOAD : ZR_TAG_CHECKPOINT;
}

/* ---- Stored parts -------------------------------------------------------------------------------------- */

static zr_contiguous *pool_of(const struct zr_checkpoints *c, const struct zr_kept_checkpoint *kept)
{
    return c->pools[(size_t)(kept - c->kept) / (c->options.count / c->options.frames)];
}

static zr_result take_part(struct zr_checkpoints *c, struct zr_kept_checkpoint *kept, size_t elements)
{
    struct zr_entry_request request = {.bytes = bytes_of(c, elements)};
    if (!c->pools)
        return zr_take(part_arena(c), part_tag(c), request.bytes, 1, &kept->part);
    return zr_name_call(zr_contiguous_append(pool_of(c, kept), &request, &kept->entry, &kept->part), __func__,
                        "a checkpoint");
}

static void drop_part(struct zr_checkpoints *c, struct zr_kept_checkpoint *kept)
{
    if (!c->pools) {
        zr_drop(part_arena(c), &kept->part);
        return;
    }
    zr_result result = zr_contiguous_free(pool_of(c, kept), kept->entry);
    zr_assert(result == ZR_OK);
    kept->entry = 0;
    kept->part = NULL;
}

/* ---- Whole checkpoints --------------------------------------------------------------------------------- */

static void drop_buffer(struct zr_checkpoints *c, struct zr_kept_checkpoint *kept)
{
    if (!kept->whole)
        return;
    if (c->ring) {
        zr_result result = zr_ring_release(c->ring, kept->whole, 0);
        zr_assert(result == ZR_OK);
        kept->whole = NULL;
    } else {
        zr_drop(c->options.arena, &kept->whole);
    }
    c->buffers_used--;
}

/* Waits for the oldest copy to the host. */
static zr_result end_storing(struct zr_checkpoints *c)
{
    struct zr_kept_checkpoint *kept = &c->kept[c->storing[0]];
    zr_result result = zr_comm_wait(c->copies, kept->ticket);
    memmove(c->storing, c->storing + 1, --c->storing_count * sizeof *c->storing);
    kept->phase = ZR_CHECKPOINT_STORED;
    drop_buffer(c, kept);
    return result;
}

/* Ring buffers have a fixed order: the next one may still be in use by a copy while others are free. */
static zr_result take_buffer(struct zr_checkpoints *c, struct zr_kept_checkpoint *kept)
{
    zr_result result = ZR_OK;
    while (result == ZR_OK && c->storing_count > 0 &&
           (c->buffers_used >= c->buffers_count || c->kept[c->storing[0]].turn + c->buffers_count == c->turn))
        result = end_storing(c);
    kept->turn = c->turn++;
    if (result == ZR_OK)
        result = c->ring ? zr_ring_acquire(c->ring, 0, 0, &kept->whole)
                         : zr_take(c->options.arena, ZR_TAG_COMM, bytes_of(c, c->options.elements), 1,
                                   &kept->whole);
    c->buffers_used += result == ZR_OK;
    return result;
}

/* This rank's part of a whole checkpoint. */
static void *part_of_whole(const struct zr_checkpoints *c, const struct zr_kept_checkpoint *kept)
{
    unsigned rank = c->ranks > 1 ? zr_comm_rank(c->options.tensor) : 0;
    return (char *)kept->whole + rank * bytes_of(c, kept->elements / c->ranks);
}

/* ---- Interface ----------------------------------------------------------------------------------------- */

zr_result zr_checkpoints_take(struct zr_checkpoints *c, size_t index, size_t elements, void **whole)
{
    struct zr_kept_checkpoint *kept = &c->kept[index];
    zr_result result;
    zr_assert(kept->phase == ZR_CHECKPOINT_NONE && elements <= c->options.elements);
    *kept = (struct zr_kept_checkpoint){.elements = elements};
    if (c->stores) {
        result = take_buffer(c, kept);
    } else {
        result = take_part(c, kept, elements);
        kept->whole = kept->part;
    }
    *whole = kept->whole;
    if (result == ZR_OK)
        kept->phase = ZR_CHECKPOINT_WHOLE;
    return result;
}

zr_result zr_checkpoints_store(struct zr_checkpoints *c, size_t index)
{
    struct zr_kept_checkpoint *kept = &c->kept[index];
    size_t elements = kept->elements / c->ranks;
    zr_assert(c->stores && kept->phase == ZR_CHECKPOINT_WHOLE);
    zr_result result = take_part(c, kept, elements);
    if (result != ZR_OK)
        return result;
    if (!c->copies) {
        enum zr_precision precision = c->options.precision;
        result = c->options.kernels->convert(c->options.context,
                                             &(struct zr_convert){.n = elements,
                                                                  .from = {part_of_whole(c, kept), precision},
                                                                  .to = {kept->part, precision}});
        kept->phase = ZR_CHECKPOINT_STORED;
        drop_buffer(c, kept);
        return result;
    }
    result =
        zr_copies_start(c->copies,
                        &(struct zr_host_copy){
                            .to = kept->part, .from = part_of_whole(c, kept), .bytes = bytes_of(c, elements)},
                        &kept->ticket);
    kept->phase = ZR_CHECKPOINT_STORING;
    c->storing[c->storing_count++] = index;
    return result;
}

/* Gathers a checkpoint from the parts, which are in the whole or in the pool. */
static zr_result gather(struct zr_checkpoints *c, struct zr_kept_checkpoint *kept)
{
    kept->phase = ZR_CHECKPOINT_GATHERING;
    return zr_comm_all_gather(
        c->options.tensor,
        &(struct zr_all_gather){.source = c->copies ? part_of_whole(c, kept) : kept->part,
                                .destination = kept->whole,
                                .shard_bytes = bytes_of(c, kept->elements / c->ranks),
                                .type =
                                    c->options.precision == ZR_PRECISION_FP32 ? ZR_COMM_FP32 : ZR_COMM_BF16,
                                .label = ZR_COMM_LABEL_NONE},
        &kept->ticket);
}

/* After the copy from the host: starts the gather. */
static zr_result advance(struct zr_checkpoints *c, struct zr_kept_checkpoint *kept)
{
    if (kept->phase != ZR_CHECKPOINT_COPYING)
        return ZR_OK;
    zr_result result = zr_comm_wait(c->copies, kept->ticket);
    if (result == ZR_OK && c->ranks > 1)
        return gather(c, kept);
    kept->phase = ZR_CHECKPOINT_WHOLE;
    return result;
}

zr_result zr_checkpoints_fetch(struct zr_checkpoints *c, size_t index)
{
    struct zr_kept_checkpoint *kept = &c->kept[index];
    zr_result result = ZR_OK;
    while (result == ZR_OK && kept->phase == ZR_CHECKPOINT_STORING)
        result = end_storing(c);
    if (result != ZR_OK || kept->phase != ZR_CHECKPOINT_STORED)
        return result;
    result = take_buffer(c, kept);
    if (result != ZR_OK || !c->copies)
        return result == ZR_OK ? gather(c, kept) : result;
    kept->phase = ZR_CHECKPOINT_COPYING;
    return zr_copies_start(c->copies,
                           &(struct zr_host_copy){.to = part_of_whole(c, kept),
                                                  .from = kept->part,
                                                  .bytes = bytes_of(c, kept->elements / c->ranks)},
                           &kept->ticket);
}

zr_result zr_checkpoints_await(struct zr_checkpoints *c, size_t index, void **whole)
{
    struct zr_kept_checkpoint *kept = &c->kept[index];
    zr_result result = zr_checkpoints_fetch(c, index);
    if (result == ZR_OK)
        result = advance(c, kept);
    if (result == ZR_OK && kept->phase == ZR_CHECKPOINT_GATHERING) {
        result = zr_comm_wait(c->options.tensor, kept->ticket);
        kept->phase = ZR_CHECKPOINT_WHOLE;
    }
    if (result == ZR_OK && c->ranks > 1 && index > 0) /* the copy that the fetch started has probably ended */
        result = advance(c, &c->kept[index - 1]);
    *whole = kept->whole;
    return result;
}

void zr_checkpoints_drop(struct zr_checkpoints *c, size_t index)
{
    struct zr_kept_checkpoint *kept = &c->kept[index];
    if (kept->phase == ZR_CHECKPOINT_NONE)
        return;
    while (kept->phase == ZR_CHECKPOINT_STORING)
        end_storing(c);
    if (kept->phase == ZR_CHECKPOINT_COPYING) /* no operation writes after this, even if a peer was lost */
        zr_comm_wait(c->copies, kept->ticket);
    if (kept->phase == ZR_CHECKPOINT_GATHERING)
        zr_comm_wait(c->options.tensor, kept->ticket);
    if (c->stores)
        drop_buffer(c, kept);
    if (kept->part)
        drop_part(c, kept);
    *kept = (struct zr_kept_checkpoint){.phase = ZR_CHECKPOINT_NONE};
}

uint64_t zr_checkpoints_moved_bytes(const struct zr_checkpoints *c)
{
    return c->copies ? zr_copies_bytes(c->copies) : 0;
}

unsigned zr_checkpoints_distance(const struct zr_checkpoints *c)
{
    return !c->stores ? 0 : c->copies && c->ranks > 1 ? 2 : 1;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static zr_result open_pools(struct zr_checkpoints *c)
{
    unsigned frames = c->options.frames;
    zr_result result =
        zr_take(c->options.host_arena, ZR_TAG_OTHER, frames, sizeof *c->pools, (void **)&c->pools);
    if (result == ZR_OK)
        memset(c->pools, 0, frames * sizeof *c->pools);
    for (unsigned f = 0; f < frames && result == ZR_OK; f++)
        result = zr_contiguous_create(&c->pools[f], &(struct zr_contiguous_options){.arena = part_arena(c),
                                                                                    .name = "checkpoints",
                                                                                    .tag = part_tag(c),
                                                                                    .keep_bytes = SIZE_MAX});
    return result;
}

zr_result zr_checkpoints_open(struct zr_checkpoints *out, const struct zr_checkpoints_options *options)
{
    const struct zr_checkpoint_policy *policy = &options->policy;
    zr_result result;

    *out = (struct zr_checkpoints){.options = *options, .ranks = 1};
    if (policy->partition && options->tensor)
        out->ranks = zr_comm_world(options->tensor);
    if (options->elements % out->ranks)
        return zr_fail(ZR_ERR_INVALID, "%u ranks do not divide a checkpoint of %zu elements", out->ranks,
                       options->elements);
    out->stores = options->elements > 0 && (out->ranks > 1 || policy->host);
    out->buffers_count = policy->host ? BUFFERS_OF_HOST : BUFFERS;
    result =
        zr_take(options->host_arena, ZR_TAG_OTHER, options->count, sizeof *out->kept, (void **)&out->kept);
    if (result == ZR_OK)
        memset(out->kept, 0, options->count * sizeof *out->kept);
    if (result == ZR_OK && !policy->scattered)
        result = open_pools(out);
    if (result == ZR_OK && out->stores && !policy->no_ring)
        result = zr_ring_create(&out->ring,
                                &(struct zr_ring_options){.arena = options->arena,
                                                          .tag = ZR_TAG_COMM,
                                                          .buffer_bytes = bytes_of(out, options->elements),
                                                          .buffers_count = out->buffers_count});
    if (result == ZR_OK && out->stores && policy->host)
        result = zr_copies_create(&out->copies,
                                  &(struct zr_comm_options){.arena = options->arena,
                                                            .host_arena = options->host_arena,
                                                            .kernels = options->kernels,
                                                            .bucket_bytes = ZR_COMM_LINE_BYTES},
                                  options->context);
    if (result != ZR_OK)
        zr_checkpoints_close(out);
    return result;
}

void zr_checkpoints_close(struct zr_checkpoints *c)
{
    for (size_t i = 0; c->kept && i < c->options.count; i++)
        zr_checkpoints_drop(c, i);
    zr_comm_destroy(c->copies);
    zr_ring_destroy(c->ring);
    for (unsigned f = 0; c->pools && f < c->options.frames; f++)
        if (c->pools[f])
            zr_contiguous_destroy(c->pools[f], NULL);
    if (c->options.host_arena) {
        zr_drop(c->options.host_arena, &c->pools);
        zr_drop(c->options.host_arena, &c->kept);
    }
    c->copies = NULL;
    c->ring = NULL;
}
