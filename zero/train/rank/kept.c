/* kept.c: see kept.h. */
#include "zero/train/rank/kept.h"

#include <stdio.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"
#include "alloc/heap/heap.h"
#include "zero/engine/optimizer.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/args.h"

#define MIB ((size_t)1 << 20)

const char *zr_rank_kept_words(const struct zr_train_config *config)
{
    return !zr_train_replaces_ranks(config) || config->comm == ZR_TRAIN_COMM_PS
               ? ""
               : zr_exclusions_of_kept(config);
}

zr_result zr_rank_kept_tensor(void *keep, const struct zr_kept_request *request, void **out)
{
    struct zr_keep_tensor_info info;
    uint32_t tensor;
    zr_result result = zr_keep_tensor_find(keep, request->name, &tensor);
    if (result == ZR_ERR_FOREIGN)
        result = zr_keep_tensor_create(keep,
                                       &(struct zr_keep_tensor){.name = request->name,
                                                                .bytes = request->bytes,
                                                                .tag = request->tag,
                                                                .mode = ZR_KEEP_IN_PLACE},
                                       &tensor);
    if (result == ZR_OK)
        result = zr_keep_tensor_get(keep, tensor, &info);
    if (result == ZR_OK && info.bytes != request->bytes)
        result = zr_fail(ZR_ERR_CORRUPT, "kept memory %s has %zu bytes; this run needs %zu", request->name,
                         info.bytes, request->bytes);
    return result == ZR_OK ? zr_keep_write(keep, tensor, out) : result;
}

/* The launcher's pid is the token, the same for a successor. A run of another size has segments of its own.
 */
static struct zr_keep_name name_of(const struct zr_rank *rank, unsigned number, char out[ZR_KEEP_NAME_BYTES])
{
    snprintf(out, ZR_KEEP_NAME_BYTES, "rank-%u.%u", number, zr_local_sizes(rank->local));
    return (struct zr_keep_name){out, (uint64_t)getppid()};
}

zr_result zr_rank_kept_begin(struct zr_rank *rank)
{
    const struct zr_train_config *config = rank->config;
    struct zr_machine machine;
    zr_os_machine(&machine);
    if (zr_rank_kept_words(config) || config->comm != ZR_CARRIER_LOCAL || machine.address_limit_bytes > 0)
        return ZR_OK; /* under `ulimit -v` ranks map nothing of one another */
    rank->windows = zr_heap_zalloc(config->world, sizeof *rank->windows);
    rank->views = zr_heap_zalloc(config->world, sizeof *rank->views);
    return rank->windows && rank->views ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

/* Whether `value` is true on all ranks. */
static zr_result agree(struct zr_rank *rank, bool *value)
{
    bool all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(rank->comm, value, sizeof *value, all);
    for (unsigned r = 0; r < rank->config->world && result == ZR_OK; r++)
        *value &= all[r];
    return result;
}

/* Opens the segments of the other ranks. If one rank cannot, operands in kept memory go through the rings,
 * and no rank keeps addresses and descriptors of segments. */
static zr_result open_windows(struct zr_rank *rank)
{
    char text[ZR_KEEP_NAME_BYTES];
    bool good = true;
    zr_result result = agree(rank, &good); /* all segments exist */
    for (unsigned r = 0; r < rank->config->world && result == ZR_OK && good; r++) {
        struct zr_comm_window *window = &rank->windows[r];
        const struct zr_keep_name name = name_of(rank, r, text);
        good = r == rank->rank || zr_keep_open(&rank->views[r], &name, ZR_KEEP_READ) == ZR_OK;
        window->base = zr_keep_data(r == rank->rank ? rank->keep : rank->views[r], &window->bytes);
    }
    if (result == ZR_OK)
        result = agree(rank, &good);
    for (unsigned r = 0; r < rank->config->world && !good; r++) {
        rank->windows[r].bytes = 0;
        zr_keep_close(rank->views[r]);
        rank->views[r] = NULL;
    }
    return result;
}

zr_result zr_rank_kept_open(struct zr_rank *rank)
{
    const struct zr_byte_plan *plan = &rank->plan;
    char text[ZR_KEEP_NAME_BYTES];
    const struct zr_keep_name name = name_of(rank, rank->rank, text);
    size_t pools = 0;
    if (zr_rank_kept_words(rank->config))
        return ZR_OK;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        pools += plan->persistent_by_tag_bytes[tag];
    zr_result result =
        zr_local_restarts(rank->local) > 0 ? zr_keep_open(&rank->keep, &name, ZR_KEEP_WRITE) : ZR_ERR_FOREIGN;
    if (result == ZR_ERR_FORMAT) { /* another one takes its place */
        zr_say("rank %u: %s", rank->rank, zr_last_error());
        if (zr_keep_drop(&name) == ZR_OK)
            result = ZR_ERR_FOREIGN;
    }
    /* Addresses for more than the pools: memory is committed block by block. */
    if (result == ZR_ERR_FOREIGN)
        result = zr_keep_create(
            &rank->keep, &(struct zr_keep_options){.name = name.name,
                                                   .token = name.token,
                                                   .bytes = 2 * pools + 64 * MIB + 16 * rank->config->steps,
                                                   .granule_bytes = 2 * MIB});
    if (result == ZR_OK)
        result = zr_keep_begin(rank->keep, NULL);
    rank->kept = (struct zr_kept_memory){zr_rank_kept_tensor, rank->keep};
    return result == ZR_OK && rank->windows ? open_windows(rank) : result;
}

void zr_rank_kept_close(struct zr_rank *rank)
{
    for (unsigned r = 0; rank->views && r < rank->config->world; r++)
        zr_keep_close(rank->views[r]);
    zr_heap_free(rank->views);
    rank->views = NULL;
    char text[ZR_KEEP_NAME_BYTES];
    const struct zr_keep_name name = name_of(rank, rank->rank, text);
    bool drops = rank->keep && rank->moved;
    zr_keep_close(rank->keep);
    rank->keep = NULL;
    if (drops)
        zr_keep_drop(&name); /* gives memory back; the launcher drops what is left */
}

zr_result zr_rank_kept_take(struct zr_rank *rank, const char *name, size_t bytes, void **out)
{
    *out = NULL;
    return rank->keep && bytes > 0
               ? zr_rank_kept_tensor(rank->keep, &(struct zr_kept_request){name, ZR_TAG_OTHER, bytes}, out)
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
