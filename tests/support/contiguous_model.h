/* contiguous_model.h: a contiguous pool beside a model of it, for the tests of several backends: random
 * appends, frees, borrows and compactions, the contents checked by pattern, the memory by sums.
 *
 * Contents are written and read in the streams that the entries belong to, through the backend's own copies;
 * a wrong order or a missing wait shows as a wrong byte, or kills the emulated context. */
#ifndef ZR_CONTIGUOUS_MODEL_H
#define ZR_CONTIGUOUS_MODEL_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/backend/backend.h"
#include "tests/support/random.h"
#include "tests/support/tap.h"

enum { MODEL_ENTRIES = 80, MODEL_STREAMS = 3, MODEL_PINS = 4, MODEL_HOST_BYTES = 1 << 16 };

struct model_entry {
    zr_entry handle; /* 0: none */
    size_t bytes, alignment;
    char *fixed;    /* of a fixed entry, for life */
    char *borrowed; /* while it is */
    unsigned stream;
    unsigned char value;
    bool movable;
};

struct model {
    zr_arena *arena;
    zr_backend *backend;
    zr_contiguous *pool;
    uint64_t streams[MODEL_STREAMS];
    uint64_t random;
    size_t most_bytes; /* of an entry */
    bool fills;        /* there is memory: false on sim */
    struct model_entry entries[MODEL_ENTRIES];
    size_t requested_bytes, entries_count, borrowed_count;
    unsigned refused, compactions; /* appends that found no memory; compactions that went through */
    unsigned wrong;                /* contents, results or sums that were not what they should be */
    unsigned char host[2 * MODEL_HOST_BYTES];
};

static inline uint64_t model_random(struct model *model)
{
    return splitmix64(&model->random);
}

static inline void model_expect(struct model *model, bool good, const char *what)
{
    if (!good && model->wrong++ < 8)
        tap_note("%s (%s)", what, zr_last_error());
}

/* The whole entry is filled; its first and last bytes differ from entry to entry by more than one byte. */
static inline void model_write(struct model *model, struct model_entry *entry, char *address)
{
    if (model->fills)
        model_expect(model,
                     zr_backend_fill(model->backend,
                                     &(struct zr_fill){.to = address,
                                                       .value = entry->value,
                                                       .bytes = entry->bytes,
                                                       .stream = model->streams[entry->stream]}) == ZR_OK,
                     "a fill");
}

/* Reads a window at the start, one at the end, and one somewhere. */
static inline void model_read(struct model *model, const struct model_entry *entry, const char *address)
{
    size_t part = entry->bytes < MODEL_HOST_BYTES ? entry->bytes : MODEL_HOST_BYTES;
    size_t starts[3] = {0, entry->bytes - part, model_random(model) % (entry->bytes - part + 1)};
    struct zr_stream_point point;
    bool good = true;
    for (unsigned i = 0; i < 3 && model->fills; i++) {
        good &= zr_backend_copy(model->backend, &(struct zr_copy){.to = model->host,
                                                                  .from = address + starts[i],
                                                                  .bytes = part,
                                                                  .stream = model->streams[entry->stream]}) ==
                ZR_OK;
        good &= zr_backend_event_record(model->backend, model->streams[entry->stream], &point) == ZR_OK &&
                zr_backend_event_wait(model->backend, &point) == ZR_OK;
        for (size_t k = 0; good && k < part; k++)
            good = model->host[k] == entry->value;
    }
    model_expect(model, good, "the contents of an entry");
}

static inline void model_append(struct model *model, struct model_entry *entry)
{
    static const size_t alignments[] = {0, 16, 256, 4096, SIZE_MAX};
    uint64_t dice = model_random(model);
    void *address;
    size_t granule = model->backend->can.granule_bytes, alignment = alignments[dice % 5];
    *entry = (struct model_entry){.bytes = 1 + model_random(model) %
                                                   (dice % 3 ? model->most_bytes / 16 : model->most_bytes),
                                  .alignment = alignment == SIZE_MAX ? granule : alignment,
                                  .movable = dice >> 8 & 7,
                                  .stream = (unsigned)(dice >> 16) % MODEL_STREAMS,
                                  .value = (unsigned char)(dice >> 24)};
    zr_result result =
        zr_contiguous_append(model->pool,
                             &(struct zr_entry_request){.bytes = entry->bytes,
                                                        .alignment = entry->alignment,
                                                        .movable = entry->movable,
                                                        .stream = model->streams[entry->stream]},
                             &entry->handle, &address);
    if (result != ZR_OK) {
        model->refused++;
        model_expect(model,
                     (result == ZR_ERR_MEMORY || result == ZR_ERR_ADDRESSES) && !entry->handle && !address,
                     "an append");
        return;
    }
    model->requested_bytes += entry->bytes;
    model->entries_count++;
    entry->fixed = address;
    model_expect(model, (address == NULL) == entry->movable, "fixed entries have an address");
    if (entry->movable) {
        model_expect(model, zr_contiguous_borrow(model->pool, entry->handle, &address) == ZR_OK,
                     "a first borrow");
        model_write(model, entry, address);
        model_expect(model,
                     zr_contiguous_return(model->pool, entry->handle, model->streams[entry->stream]) == ZR_OK,
                     "a return");
    } else {
        model_write(model, entry, address);
    }
    model_expect(model, (uintptr_t)address % (entry->alignment ? entry->alignment : 256) == 0,
                 "an alignment");
}

static inline void model_free(struct model *model, struct model_entry *entry)
{
    zr_entry handle = entry->handle;
    model_expect(model, zr_contiguous_free(model->pool, handle) == ZR_OK, "a free");
    model_expect(model, zr_contiguous_free(model->pool, handle) != ZR_OK, "a second free is refused");
    model->requested_bytes -= entry->bytes;
    model->entries_count--;
    entry->handle = 0;
}

/* Borrows an entry for a while, or ends that; reads its contents; hands it to another stream now and then. */
static inline void model_use(struct model *model, struct model_entry *entry)
{
    void *address;
    bool end = entry->borrowed || model->borrowed_count >= MODEL_PINS || model_random(model) % 4;
    model_expect(model, zr_contiguous_borrow(model->pool, entry->handle, &address) == ZR_OK, "a borrow");
    model_expect(model, !entry->fixed || entry->fixed == address, "a fixed entry stays");
    model_expect(model, !entry->borrowed || entry->borrowed == address, "a borrowed entry stays");
    model_read(model, entry, address);
    if (!end) {
        entry->borrowed = address;
        model->borrowed_count++;
        return;
    }
    if (entry->borrowed) {
        model_expect(model,
                     zr_contiguous_return(model->pool, entry->handle, model->streams[entry->stream]) == ZR_OK,
                     "the end of a long borrow");
        model->borrowed_count--;
        entry->borrowed = NULL;
    }
    /* The old stream was waited for in model_read(). */
    entry->stream = (unsigned)model_random(model) % MODEL_STREAMS;
    model_expect(model,
                 zr_contiguous_return(model->pool, entry->handle, model->streams[entry->stream]) == ZR_OK,
                 "a return");
}

/* The pool's sums and the arena's agree with the model. */
static inline void model_check(struct model *model)
{
    struct zr_contiguous_stats stats;
    struct zr_arena_stats whole;
    zr_contiguous_get_stats(model->pool, &stats);
    zr_arena_get_stats(model->arena, &whole);
    model_expect(model, zr_contiguous_check(model->pool) == ZR_OK, "the pool's records");
    model_expect(model, zr_arena_check(model->arena) == ZR_OK, "the arena's records");
    model_expect(model,
                 stats.requested_bytes == model->requested_bytes &&
                     stats.entries_count == model->entries_count &&
                     stats.borrowed_count == model->borrowed_count,
                 "the pool's sums");
    model_expect(
        model,
        whole.requested_bytes == model->requested_bytes && whole.blocks_count == model->entries_count &&
            whole.live_by_tag_bytes[ZR_TAG_CHECKPOINT] == stats.live_bytes &&
            whole.mapped_bytes == stats.mapped_bytes && whole.stranded_bytes == stats.stranded_bytes &&
            whole.reserved_bytes == model->backend->held_bytes,
        "the arena's sums");
}

/* After a compaction every hole is pinned from above, or padding that an alignment asks for. */
static inline void model_compact(struct model *model)
{
    struct zr_contiguous_stats stats;
    size_t granule = model->backend->can.granule_bytes, allowed = granule;
    zr_result result = zr_contiguous_compact(model->pool);
    model_expect(model, result == ZR_OK || result == ZR_ERR_MEMORY, "a compaction");
    for (unsigned i = 0; i < MODEL_ENTRIES; i++) {
        const struct model_entry *entry = &model->entries[i];
        if (entry->handle && (!entry->movable || entry->borrowed))
            allowed += 2 * granule; /* what is not whole in the hole before it */
        else if (entry->handle)
            allowed += entry->alignment ? entry->alignment : 256;
    }
    zr_contiguous_get_stats(model->pool, &stats);
    model_expect(model, stats.pending_bytes == 0, "nothing is pending after a compaction");
    if (result == ZR_OK) {
        model->compactions++;
        model_expect(model, stats.stranded_bytes < allowed, "stranded after a compaction");
    }
}

static inline void model_steps(struct model *model, unsigned steps)
{
    for (unsigned step = 0; step < steps; step++) {
        uint64_t dice = model_random(model);
        struct model_entry *entry = &model->entries[model_random(model) % MODEL_ENTRIES];
        if (!entry->handle)
            model_append(model, entry);
        else if (dice % 8 < 3 || entry->borrowed)
            model_use(model, entry);
        else
            model_free(model, entry);
        if (dice >> 32 & 1 && dice % 64 == 7)
            model_compact(model);
        if (dice % 128 == 9)
            zr_contiguous_trim(model->pool, 0, NULL);
        model_check(model);
    }
}

/* Every entry's contents once more, then all are freed. */
static inline void model_end(struct model *model)
{
    for (unsigned i = 0; i < MODEL_ENTRIES; i++) {
        struct model_entry *entry = &model->entries[i];
        if (entry->handle && !entry->borrowed)
            model_use(model, entry);
        while (entry->handle && entry->borrowed)
            model_use(model, entry);
        if (entry->handle)
            model_free(model, entry);
    }
    model_compact(model);
    model_check(model);
}

/* ---- A pool and what it stands on ---------------------------------------------------------------------- */

struct made {
    zr_backend *backend;
    zr_arena *arena;
    zr_contiguous *pool;
};

static inline struct zr_contiguous_stats stats_of(zr_contiguous *pool)
{
    struct zr_contiguous_stats stats;
    zr_contiguous_get_stats(pool, &stats);
    return stats;
}

/* False: something was left or not sound. */
static inline bool unmake(struct made *made)
{
    size_t leaked = 0;
    bool good = zr_contiguous_destroy(made->pool, NULL) == ZR_OK;
    if (made->arena)
        good &= zr_arena_check(made->arena) == ZR_OK && zr_arena_destroy(made->arena, &leaked) == ZR_OK &&
                leaked == 0;
    if (made->backend)
        good &= made->backend->held_bytes == 0 && zr_backend_destroy(made->backend) == ZR_OK;
    return good;
}

/* Random operations on a pool that nobody else uses, and what came of them. */
static inline void model_run(const char *name, const struct made *made, bool fills, const uint64_t *streams,
                             uint64_t seed, unsigned steps)
{
    static struct model model;
    model = (struct model){.backend = made->backend,
                           .arena = made->arena,
                           .pool = made->pool,
                           .random = seed,
                           .most_bytes = 9 * made->backend->can.granule_bytes,
                           .fills = fills};
    memcpy(model.streams, streams, sizeof model.streams);
    model_steps(&model, steps);
    model_end(&model);
    struct zr_contiguous_stats stats = stats_of(made->pool);
    tap_is(model.wrong, 0, "%s: %u random operations, contents and sums (ZR_TEST_SEED=%llu)", name, steps,
           (unsigned long long)seed);
    tap_ok(model.compactions > 3 && stats.copied_bytes > 0 && stats.remapped_bytes > 0 && model.refused > 0,
           "%s: %u compactions, %llu MB copied and %llu mapped elsewhere, %u appends refused", name,
           model.compactions, (unsigned long long)stats.copied_bytes / 1000000,
           (unsigned long long)stats.remapped_bytes / 1000000, model.refused);
}

#endif
