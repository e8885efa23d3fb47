/* kept.c: see kept.h. */
#include "zero/train/rank/kept.h"

#include <stdio.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "zero/engine/optimizer.h"
#include "zero/train/settings/args.h"

#define MIB ((size_t)1 << 20)

const char *zr_rank_kept_words(const struct zr_train_config *config)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    if (!zr_train_replaces_ranks(config))
        return "";
    bool compresses = false;
    for (unsigned i = 0; i < ZR_COMPRESSED_KINDS; i++)
        compresses |= config->compression.kinds[i].on;
    return zr_option_get(ZR_OPTION_SERVICE) != 0       ? "zrd keeps memory beyond the end of a run"
           : config->offload_optimizer != ZR_TIER_NONE ? "--offload-optimizer has the state elsewhere"
           : compresses                                ? "--compress has state of its own"
           : config->stages.ranks > 1 && zr_pipeline_is_asynchronous(&pipeline)
               ? "an asynchronous pipeline has versions of the parameters"
           : config->outer.period > 0                          ? "--outer has steps of its own"
           : zr_train_precision(config) == ZR_PRECISION_FP16   ? "fp16 has a loss scale"
           : config->optimizer.average_decay > 0               ? "--ema has an average"
           : config->noise_decay > 0                           ? "--noise-scale has averages"
           : zr_optimizer_of(config->optimizer.kind)->prepares ? "the optimizer's update needs all ranks"
           : config->stage == 0 && zr_train_precision(config) != ZR_PRECISION_FP32 &&
                   zr_train_shards(config) > 1
               ? "--stage 0 in bf16 gathers sums in the update"
           : config->checkpoints.scattered ? "--no-contiguous has no pools"
                                           : NULL;
}

static zr_result take(void *state, const struct zr_kept_request *request, void **out)
{
    struct zr_rank *rank = state;
    struct zr_keep_tensor_info info;
    uint32_t tensor;
    zr_result result = zr_keep_tensor_find(rank->keep, request->name, &tensor);
    if (result == ZR_ERR_FOREIGN)
        result = zr_keep_tensor_create(rank->keep,
                                       &(struct zr_keep_tensor){.name = request->name,
                                                                .bytes = request->bytes,
                                                                .tag = request->tag,
                                                                .mode = ZR_KEEP_IN_PLACE},
                                       &tensor);
    if (result == ZR_OK)
        result = zr_keep_tensor_get(rank->keep, tensor, &info);
    if (result == ZR_OK && info.bytes != request->bytes)
        result = zr_fail(ZR_ERR_CORRUPT, "kept memory %s has %zu bytes; this run needs %zu", request->name,
                         info.bytes, request->bytes);
    return result == ZR_OK ? zr_keep_write(rank->keep, tensor, out) : result;
}

/* The launcher's pid is the token, the same for a successor. A run of another size has segments of its own.
 */
static struct zr_keep_name name_of(const struct zr_rank *rank, char out[ZR_KEEP_NAME_BYTES])
{
    snprintf(out, ZR_KEEP_NAME_BYTES, "rank-%u.%u", rank->rank, zr_local_sizes(rank->local));
    return (struct zr_keep_name){out, (uint64_t)getppid()};
}

zr_result zr_rank_kept_open(struct zr_rank *rank)
{
    const struct zr_byte_plan *plan = &rank->plan;
    char text[ZR_KEEP_NAME_BYTES];
    const struct zr_keep_name name = name_of(rank, text);
    size_t pools = 0;
    if (zr_rank_kept_words(rank->config))
        return ZR_OK;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        pools += plan->persistent_by_tag_bytes[tag];
    zr_result result =
        zr_local_restarts(rank->local) > 0 ? zr_keep_open(&rank->keep, &name, ZR_KEEP_WRITE) : ZR_ERR_FOREIGN;
    /* Addresses for more than the pools: memory is committed block by block. */
    if (result == ZR_ERR_FOREIGN)
        result = zr_keep_create(
            &rank->keep, &(struct zr_keep_options){.name = name.name,
                                                   .token = name.token,
                                                   .bytes = 2 * pools + 64 * MIB + 16 * rank->config->steps,
                                                   .granule_bytes = 2 * MIB});
    if (result == ZR_OK)
        result = zr_keep_begin(rank->keep, NULL);
    rank->kept = (struct zr_kept_memory){take, rank};
    return result;
}

void zr_rank_kept_close(struct zr_rank *rank)
{
    char text[ZR_KEEP_NAME_BYTES];
    const struct zr_keep_name name = name_of(rank, text);
    bool drops = rank->keep && rank->moved;
    zr_keep_close(rank->keep);
    rank->keep = NULL;
    if (drops)
        zr_keep_drop(&name); /* gives memory back; the launcher drops what is left */
}

zr_result zr_rank_kept_take(struct zr_rank *rank, const char *name, size_t bytes, void **out)
{
    *out = NULL;
    return rank->keep && bytes > 0 ? take(rank, &(struct zr_kept_request){name, ZR_TAG_OTHER, bytes}, out)
                                   : ZR_OK;
}

void zr_rank_kept_add(const struct zr_rank *rank, struct zr_arena_stats *stats)
{
    struct zr_arena_stats kept;
    if (!rank->keep || zr_arena_get_stats(zr_keep_arena(rank->keep), &kept) != ZR_OK)
        return;
    stats->peak_live_bytes += kept.live_bytes;
    stats->peak_reserved_bytes += kept.reserved_bytes;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++) {
        stats->peak_by_tag_bytes[tag] += kept.live_by_tag_bytes[tag];
        stats->live_by_tag_bytes[tag] += kept.live_by_tag_bytes[tag];
    }
}
