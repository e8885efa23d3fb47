/* fuzz_api.h: sequences of calls of alloc/zr.h, read from bytes, beside a model of what they have made: two
 * arenas on one backend, with blocks, pools, a ring, imports, traces and map callbacks. Calls are right and
 * wrong, one pass of a fault site fails now and then, and limits are low. Live blocks must not overlap and
 * must keep their contents, statistics must be the model's sums, a failed call must change none of them, and
 * each result must be one that the header names. */
#ifndef ZR_FUZZ_API_H
#define ZR_FUZZ_API_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "alloc/core/arena.h"
#include "alloc/front/stripes.h"

enum { API_ARENAS = 2, API_BLOCKS = 48, API_ENTRIES = 16, API_BUFFERS = 4, API_IMPORTS = 4, API_EDGE = 48 };
#define API_GRANULE ((size_t)4096)

struct api_block {
    char *address; /* NULL: none */
    size_t bytes, reserved_bytes;
    zr_tag tag;
    uint64_t stream;
    unsigned char pattern;
};

struct api_entry {
    zr_entry number; /* 0: none */
    size_t bytes;
    char *fixed, *borrowed;
    unsigned borrows;
    unsigned char pattern;
    bool lost; /* a compaction failed half way */
};

struct api_pool {
    zr_contiguous *pool; /* NULL: none */
    zr_tag tag;
    struct api_entry entries[API_ENTRIES];
    zr_entry freed; /* the last one */
};

struct api_ring {
    zr_ring *ring; /* NULL: none */
    size_t bytes, reserved_bytes, stride_bytes;
    zr_tag tag;
    unsigned count, next;
    char *memory;
    bool acquired[API_BUFFERS];
};

struct api_arena {
    zr_arena *arena; /* NULL: none */
    struct api_block blocks[API_BLOCKS];
    char *freed; /* the last one's first byte, until there may be another block */
    struct api_pool pool;
    struct api_ring ring;
    struct zr_map_callback callback;
    bool watched, traced, limited;
    unsigned reject_every; /* 0: never */
    unsigned told;
    size_t peak_bytes; /* of live ones */
    struct zr_tag_limits limits;
    size_t by_tag_bytes[ZR_TAG_COUNT]; /* live ones, before the call */
    size_t told_bytes;                 /* mapped by what the callback was told */
};

/* A sequence under way. */
static struct api_world {
    const uint8_t *at, *end;
    zr_backend *backend;
    bool contents, asynchronous, private_memory; /* there is memory; streams are late */
    bool forked, faulty;                         /* there has been a fault, or a limit of the system */
    struct api_arena arenas[API_ARENAS];
    struct api_import {
        char *address; /* NULL: none */
        size_t bytes;
    } imports[API_IMPORTS];
    const char *wrong; /* the first contradiction */
    char last_error[256];
    zr_result result; /* of the call */
    int line;
} api;

static char api_trace_path[64];

#define API_BIT(name) (1u << ZR_##name)
#define API_OK        (API_BIT(OK))
/* What the header says of calls that need memory, addresses or records. */
#define API_SHORT (API_BIT(ERR_MEMORY) | API_BIT(ERR_HOST_MEMORY) | API_BIT(ERR_ADDRESSES))

#define api_must(good, words) api_judge((good), (words), __LINE__)
static inline bool api_judge(bool good, const char *words, int line)
{
    if (!good && !api.wrong) {
        api.wrong = words;
        api.line = line;
        snprintf(api.last_error, sizeof api.last_error, "%s", zr_last_error());
    }
    return good;
}

/* The call's result is one of the set. True: it is ZR_OK. */
#define api_call(result, set) api_judge_result((result), (set), #result, __LINE__)
static inline bool api_judge_result(zr_result result, unsigned set, const char *call, int line)
{
    if (!api.wrong)
        api.result = result;
    if (!api.faulty)
        set &= ~(API_BIT(ERR_HOST_MEMORY) | API_BIT(ERR_CORRUPT));
    api_judge((unsigned)result < ZR_RESULT_COUNT && (set >> result & 1), call, line);
    api_judge(result == ZR_OK || zr_last_error()[0], "a failure without words", line);
    return result == ZR_OK;
}

static inline unsigned api_byte(void)
{
    return api.at < api.end ? *api.at++ : 0;
}

/* 1 to about `most`, small ones and powers of two more often. */
static inline size_t api_size(size_t most)
{
    unsigned dice = api_byte();
    size_t bytes = dice % 4 == 0 ? (size_t)1 << dice / 4 % 24 : dice % 4 == 1 ? dice / 4 * API_GRANULE : 0;
    bytes += dice % 4 > 1 ? dice * (size_t)api_byte() + 1 : api_byte() % 3 - (size_t)1;
    return bytes - 1 < most ? bytes : 1 + bytes % most;
}

/* ---- Contents ------------------------------------------------------------------------------------------ */

static inline void api_fill(char *address, size_t bytes, unsigned char pattern)
{
    size_t edge = bytes < API_EDGE ? bytes : API_EDGE;
    if (!api.contents)
        return;
    memset(address, pattern, edge);
    memset(address + bytes - edge, pattern, edge);
}

static inline bool api_kept(const char *address, size_t bytes, unsigned char pattern)
{
    size_t edge = bytes < API_EDGE ? bytes : API_EDGE;
    bool kept = true;
    for (size_t i = 0; i < edge && api.contents; i++)
        kept &= (unsigned char)address[i] == pattern && (unsigned char)address[bytes - 1 - i] == pattern;
    return kept;
}

static inline bool api_apart(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return !a || !b || a + a_bytes <= b || b + b_bytes <= a;
}

/* Nothing that is live lies in the bytes, but for the block or entry itself. */
static inline bool api_alone(const char *address, size_t bytes)
{
    bool alone = true;
    for (unsigned a = 0; a < API_ARENAS; a++) {
        const struct api_arena *in = &api.arenas[a];
        for (unsigned i = 0; i < API_BLOCKS; i++)
            alone &= in->blocks[i].address == address ||
                     api_apart(address, bytes, in->blocks[i].address, in->blocks[i].bytes);
        for (unsigned i = 0; i < API_ENTRIES; i++)
            alone &= in->pool.entries[i].fixed == address ||
                     api_apart(address, bytes, in->pool.entries[i].fixed, in->pool.entries[i].bytes);
    }
    return alone;
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

static inline void api_check_sums(struct api_arena *in)
{
    struct zr_arena_stats stats;
    struct zr_contiguous_stats pool = {0};
    size_t blocks = 0, requested = 0, live = 0, by_tag[ZR_TAG_COUNT] = {0};
    for (unsigned i = 0; i < API_BLOCKS; i++) {
        const struct api_block *block = &in->blocks[i];
        blocks += block->address != NULL;
        requested += block->address ? block->bytes : 0;
        live += block->address ? block->reserved_bytes : 0;
        by_tag[block->tag] += block->address ? block->reserved_bytes : 0;
    }
    if (in->ring.ring) {
        blocks++;
        requested += in->ring.bytes;
        live += in->ring.reserved_bytes;
        by_tag[in->ring.tag] += in->ring.reserved_bytes;
    }
    if (in->pool.pool) {
        size_t entries = 0, borrowed = 0, bytes = 0;
        api_call(zr_contiguous_get_stats(in->pool.pool, &pool), API_OK);
        for (unsigned i = 0; i < API_ENTRIES; i++) {
            entries += in->pool.entries[i].number != 0;
            borrowed += in->pool.entries[i].borrows > 0;
            bytes += in->pool.entries[i].number ? in->pool.entries[i].bytes : 0;
        }
        api_must(pool.entries_count == entries && pool.borrowed_count == borrowed &&
                     pool.requested_bytes == bytes,
                 "the pool's entries");
        api_must(pool.live_bytes >= bytes &&
                     pool.live_bytes + pool.pending_bytes + pool.stranded_bytes + pool.idle_bytes ==
                         pool.mapped_bytes,
                 "the pool's bytes");
        api_must(pool.peak_live_bytes >= pool.live_bytes && pool.peak_mapped_bytes >= pool.mapped_bytes,
                 "the pool's peaks");
        blocks += entries;
        requested += bytes;
        live += pool.live_bytes;
        by_tag[in->pool.tag] += pool.live_bytes;
    }
    api_call(zr_arena_get_stats(in->arena, &stats), API_OK);
    api_must(stats.blocks_count == blocks, "the count of blocks");
    api_must(stats.requested_bytes == requested && stats.live_bytes == live, "live and requested bytes");
    api_must(memcmp(stats.live_by_tag_bytes, by_tag, sizeof by_tag) == 0, "bytes by tag");
    api_must(stats.mapped_bytes + stats.cached_bytes == stats.reserved_bytes &&
                 stats.unmovable_bytes <= stats.mapped_bytes,
             "reserved bytes");
    api_must(stats.live_bytes + stats.pending_bytes + stats.stranded_bytes <= stats.mapped_bytes,
             "live, pending and stranded bytes");
    in->peak_bytes = in->peak_bytes > live ? in->peak_bytes : live;
    api_must(stats.peak_reserved_bytes >= stats.reserved_bytes, "the peak of reserved bytes");
    if (atomic_load(&in->arena->stripes_count) == 0)
        api_must(api.faulty ? stats.peak_live_bytes >= in->peak_bytes
                            : stats.peak_live_bytes == in->peak_bytes,
                 "the peak of live bytes");
    size_t peak_of_tags = 0;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        peak_of_tags += stats.peak_by_tag_bytes[tag];
    if (atomic_load(&in->arena->stripes_count) == 0)
        api_must(peak_of_tags == stats.peak_live_bytes, "the peaks of tags");
    memcpy(in->by_tag_bytes, by_tag, sizeof by_tag);
    if (in->watched)
        api_must(in->told_bytes + pool.mapped_bytes == stats.mapped_bytes, "what the callback was told");
}

static inline void api_check_backend(void)
{
    size_t held = 0;
    for (unsigned a = 0; a < API_ARENAS; a++) {
        struct zr_arena_stats stats = {0};
        if (api.arenas[a].arena)
            zr_arena_get_stats(api.arenas[a].arena, &stats);
        held += stats.reserved_bytes;
    }
    api_must(zr_backend_held_bytes(api.backend) == held, "the memory that the backend has given");
}

static inline void api_check(struct api_arena *in)
{
    api_call(zr_arena_check(in->arena), API_OK);
    if (in->pool.pool)
        api_call(zr_contiguous_check(in->pool.pool), API_OK);
    for (unsigned i = 0; i < API_BLOCKS; i++) {
        const struct api_block *block = &in->blocks[i];
        if (block->address)
            api_must(api_kept(block->address, block->bytes, block->pattern), "a block's contents");
    }
    for (unsigned i = 0; i < API_ENTRIES; i++) {
        const struct api_entry *entry = &in->pool.entries[i];
        if (entry->fixed)
            api_must(api_kept(entry->fixed, entry->bytes, entry->pattern), "an entry's contents");
    }
}

/* What a request under tag limits may come to: above them nothing may be, and what is refused was near them.
 */

static inline bool api_exceeds(const struct api_arena *in, zr_tag tag, size_t bytes)
{
    size_t all = bytes;
    for (unsigned i = 0; i < ZR_TAG_COUNT; i++)
        all += i == ZR_TAG_OTHER ? 0 : in->by_tag_bytes[i];
    return in->limited && tag != ZR_TAG_OTHER &&
           (in->by_tag_bytes[tag] + bytes > in->limits.by_tag_bytes[tag] || all > in->limits.total_bytes);
}

static inline void api_check_limit(const struct api_arena *in, zr_tag tag, size_t bytes)
{
    if (api.result == ZR_OK)
        api_must(!api_exceeds(in, tag, bytes), "more than a tag limit");
    if (api.result == ZR_ERR_TAG_LIMIT)
        api_must(api_exceeds(in, tag, bytes + 3 * API_GRANULE), "a tag limit that was not reached");
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static inline bool api_find(struct api_arena *in, const void *pointer, struct zr_block_info *info)
{
    return api_call(zr_arena_find(in->arena, pointer, info), API_OK | API_BIT(ERR_FOREIGN));
}

/* NULL: there is none in the slot. */
static inline struct api_block *api_some_block(struct api_arena *in)
{
    struct api_block *block = &in->blocks[api_byte() % API_BLOCKS];
    for (unsigned i = 0; i < API_BLOCKS && !block->address; i++)
        block = &in->blocks[i];
    return block->address ? block : NULL;
}

static inline void api_alloc(struct api_arena *in)
{
    static const size_t alignments[] = {0, 1, 16, 256, 512, 2048, 4096, 0};
    unsigned dice = api_byte(), how = api_byte();
    struct zr_request request = {.bytes = api_size((size_t)1 << 21),
                                 .alignment = alignments[dice % 8],
                                 .tag = (zr_tag)(dice / 8 % ZR_TAG_COUNT),
                                 .stream = how % 4 == 3 ? how / 64 : 0};
    struct api_block *block = in->blocks;
    struct zr_block_info info;
    void *out = &info;
    bool bad = how % 32 == 1;
    if (bad && how / 32 % 4 == 0)
        request.bytes = 0;
    else if (bad && how / 32 % 4 == 1)
        request.bytes = SIZE_MAX - api_byte();
    else if (bad && how / 32 % 4 == 2)
        request.alignment = (size_t)3 << api_byte() % 40;
    else if (bad)
        request.tag = (zr_tag)(ZR_TAG_COUNT + api_byte());
    while (block < in->blocks + API_BLOCKS && block->address)
        block++;
    if (block == in->blocks + API_BLOCKS)
        return;
    if (!api_call(zr_arena_alloc(in->arena, &request, &out),
                  bad ? API_BIT(ERR_INVALID)
                      : API_OK | API_SHORT | API_BIT(ERR_TAG_LIMIT) |
                            (in->reject_every ? API_BIT(ERR_UNAVAILABLE) : 0))) {
        api_must(!out, "a block from a call that failed");
        api_check_limit(in, request.tag, request.bytes);
        return;
    }
    *block = (struct api_block){.address = out,
                                .bytes = request.bytes,
                                .tag = request.tag,
                                .stream = request.stream,
                                .pattern = (unsigned char)(dice ^ how ^ request.bytes)};
    in->freed = NULL;
    size_t alignment = request.alignment ? request.alignment : 256;
    api_must((uintptr_t)out % alignment == 0 && api_alone(out, request.bytes), "where a block lies");
    if (api_find(in, block->address + request.bytes - 1, &info)) {
        api_must(info.address == out && info.bytes == request.bytes && info.tag == request.tag &&
                     info.stream == request.stream && info.reserved_bytes >= request.bytes,
                 "what is said of a block");
        block->reserved_bytes = info.reserved_bytes;
    }
    api_check_limit(in, block->tag, block->reserved_bytes);
    api_must(block->reserved_bytes > 0, "a block that is not found");
    api_fill(block->address, block->bytes, block->pattern);
}

static inline void api_free(struct api_arena *in, struct api_block *block)
{
    api_must(api_kept(block->address, block->bytes, block->pattern), "a block's contents");
    if (!api_call(zr_arena_free(in->arena, block->address), API_OK))
        return;
    in->freed = block->address;
    *block = (struct api_block){0};
}

static inline void api_free_wrong(struct api_arena *in)
{
    static char foreign[256];
    struct api_arena *other = &api.arenas[in == api.arenas];
    struct api_block *block = api_some_block(in), *elsewhere = other->arena ? api_some_block(other) : NULL;
    unsigned dice = api_byte();
    size_t past = 1 + dice / 4 * (size_t)63;
    if (dice % 4 == 0)
        api_call(zr_arena_free(in->arena, dice % 8 ? foreign : NULL),
                 dice % 8 ? API_BIT(ERR_FOREIGN) : API_OK);
    else if (dice % 4 == 1 && block && past < block->bytes)
        api_call(zr_arena_free(in->arena, block->address + past),
                 API_BIT(ERR_FOREIGN) | API_BIT(ERR_DOUBLE_FREE));
    else if (dice % 4 == 2 && in->freed)
        api_call(zr_arena_free(in->arena, in->freed), API_BIT(ERR_FOREIGN) | API_BIT(ERR_DOUBLE_FREE));
    else if (dice % 4 == 3 && elsewhere)
        api_call(zr_arena_free(in->arena, elsewhere->address), API_BIT(ERR_FOREIGN));
}

/* A pointer is in a block exactly if the model says so. */
static inline void api_look(struct api_arena *in)
{
    struct api_block *near = api_some_block(in);
    struct zr_block_info info;
    if (!near)
        return;
    const char *pointer = near->address + api_size((size_t)1 << 22) - api_byte() * (size_t)97;
    const struct api_block *holds = NULL;
    bool other = in->pool.pool || in->ring.ring;
    for (unsigned i = 0; i < API_BLOCKS; i++)
        if (in->blocks[i].address && pointer >= in->blocks[i].address &&
            pointer < in->blocks[i].address + in->blocks[i].bytes)
            holds = &in->blocks[i];
    bool found = api_find(in, pointer, &info);
    if (holds)
        api_must(found && info.address == holds->address, "a block that is not found");
    else
        api_must(!found || other || pointer >= (char *)info.address + info.bytes,
                 "a block where there is none");
}

static inline void api_use(struct api_arena *in)
{
    struct api_block *block = api_some_block(in);
    unsigned dice = api_byte();
    if (block)
        api_call(zr_block_use(in->arena, block->address, dice % 5), API_OK | API_BIT(ERR_HOST_MEMORY));
    if (block && dice % 16 == 7 && block->bytes > 1)
        api_call(zr_block_use(in->arena, block->address + 1, 0), API_BIT(ERR_FOREIGN));
}

static inline void api_classify(struct api_arena *in)
{
    struct api_block *block = api_some_block(in);
    unsigned dice = api_byte();
    if (dice % 8 == 0)
        api_call(zr_arena_fix(in->arena, dice & 8), API_OK | API_BIT(ERR_INVALID));
    else if (block)
        api_call(zr_arena_set_granule_class(in->arena, block->address, block->bytes,
                                            (enum zr_granule_class)(dice / 8 % (ZR_GRANULE_CLASS_COUNT + 1))),
                 dice / 8 % (ZR_GRANULE_CLASS_COUNT + 1) < ZR_GRANULE_CLASS_COUNT ? API_OK
                                                                                  : API_BIT(ERR_INVALID));
}

static inline void api_limit(struct api_arena *in)
{
    struct zr_tag_limits limits;
    unsigned dice = api_byte();
    if (dice % 4 == 1) {
        api_call(zr_arena_get_high_water(in->arena, &limits), in->limited ? API_OK : API_BIT(ERR_INVALID));
        return;
    }
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        limits.by_tag_bytes[tag] = api_byte() % 2 ? SIZE_MAX : api_size((size_t)1 << 20);
    limits.total_bytes = dice % 8 == 2 ? SIZE_MAX : api_size((size_t)1 << 20);
    if (!api_call(zr_arena_set_tag_limits(in->arena, dice % 4 ? &limits : NULL),
                  API_OK | (atomic_load(&in->arena->stripes_count) > 0 ? API_BIT(ERR_INVALID) : 0)))
        return;
    in->limited = dice % 4;
    in->limits = limits;
}

/* ---- Pools --------------------------------------------------------------------------------------------- */

static inline void api_pool_start(struct api_arena *in)
{
    unsigned dice = api_byte();
    struct zr_contiguous_options options = {.struct_bytes = dice % 2 ? sizeof options : 0,
                                            .arena = in->arena,
                                            .tag = (zr_tag)(dice / 2 % ZR_TAG_COUNT),
                                            .reserve_bytes = dice & 64 ? 64 * API_GRANULE : 0,
                                            .keep_bytes = dice & 128 ? 4 * API_GRANULE : 0};
    in->pool = (struct api_pool){.tag = options.tag};
    if (!api_call(zr_contiguous_create(&in->pool.pool, &options), API_OK | API_SHORT))
        in->pool.pool = NULL;
}

static inline void api_pool_stop(struct api_arena *in)
{
    struct zr_contiguous_stats stats;
    size_t leaked = SIZE_MAX;
    zr_contiguous_get_stats(in->pool.pool, &stats);
    api_call(zr_contiguous_destroy(in->pool.pool, &leaked), API_OK);
    api_must(leaked == stats.live_bytes, "what a pool leaks");
    in->pool = (struct api_pool){0};
}

static inline struct api_entry *api_some_entry(struct api_arena *in)
{
    struct api_entry *entry = &in->pool.entries[api_byte() % API_ENTRIES];
    for (unsigned i = 0; i < API_ENTRIES && !entry->number; i++)
        entry = &in->pool.entries[i];
    return entry->number ? entry : NULL;
}

/* Once more; the contents are what they were. */
static inline bool api_borrow(struct api_arena *in, struct api_entry *entry)
{
    void *address;
    if (!api_call(zr_contiguous_borrow(in->pool.pool, entry->number, &address),
                  API_OK | (entry->lost ? API_BIT(ERR_CORRUPT) : 0)))
        return false;
    api_must(!entry->borrows || address == entry->borrowed, "an entry that moved while it was borrowed");
    api_must(!entry->fixed || address == entry->fixed, "a fixed entry that moved");
    entry->borrowed = address;
    entry->borrows++;
    api_must(api_kept(address, entry->bytes, entry->pattern), "an entry's contents");
    return true;
}

static inline void api_return(struct api_arena *in, struct api_entry *entry)
{
    if (api_call(zr_contiguous_return(in->pool.pool, entry->number, 0),
                 entry->borrows ? API_OK : API_BIT(ERR_INVALID)))
        entry->borrows--;
}

static inline void api_append(struct api_arena *in)
{
    unsigned dice = api_byte();
    struct zr_entry_request request = {.bytes = api_size((size_t)1 << 18),
                                       .alignment = dice & 1 ? (size_t)16 << dice / 16 % 9 : 0,
                                       .movable = dice & 2};
    struct api_entry *entry = in->pool.entries;
    void *address = &request;
    zr_entry number = 0;
    bool bad = dice % 16 == 12;
    if (bad)
        request.alignment = dice & 16 ? 8192 : 24;
    while (entry < in->pool.entries + API_ENTRIES && entry->number)
        entry++;
    if (entry == in->pool.entries + API_ENTRIES)
        return;
    bool appended = api_call(zr_contiguous_append(in->pool.pool, &request, &number, &address),
                             bad ? API_BIT(ERR_INVALID) : API_OK | API_SHORT | API_BIT(ERR_TAG_LIMIT));
    api_check_limit(in, in->pool.tag, request.bytes);
    if (!appended)
        return;
    *entry = (struct api_entry){.number = number,
                                .bytes = request.bytes,
                                .fixed = address,
                                .pattern = (unsigned char)(dice ^ request.bytes)};
    api_must(number && !address == request.movable, "an entry's place");
    if (address)
        api_must(api_alone(address, request.bytes), "where an entry lies");
    /* Its first contents. */
    void *place;
    if (api_call(zr_contiguous_borrow(in->pool.pool, number, &place), API_OK)) {
        api_must((uintptr_t)place % (request.alignment ? request.alignment : 256) == 0,
                 "an entry's alignment");
        api_fill(place, entry->bytes, entry->pattern);
        api_call(zr_contiguous_return(in->pool.pool, number, 0), API_OK);
    } else if (api_call(zr_contiguous_free(in->pool.pool, number), API_OK)) {
        *entry = (struct api_entry){0};
    }
}

static inline void api_pool_step(struct api_arena *in)
{
    unsigned dice = api_byte();
    struct api_entry *entry = api_some_entry(in);
    size_t released;
    switch (dice % 8) {
    case 0:
        if (entry && api_call(zr_contiguous_free(in->pool.pool, entry->number),
                              entry->borrows ? API_BIT(ERR_INVALID) : API_OK)) {
            in->pool.freed = entry->number;
            *entry = (struct api_entry){0};
        }
        break;
    case 1:
        if (entry)
            api_borrow(in, entry);
        break;
    case 2:
        if (entry)
            api_return(in, entry);
        break;
    case 3:
        if (!api_call(zr_contiguous_compact(in->pool.pool),
                      API_OK | API_SHORT | API_BIT(ERR_UNAVAILABLE) | API_BIT(ERR_CORRUPT)))
            for (unsigned i = 0; i < API_ENTRIES; i++)
                in->pool.entries[i].lost |= !in->pool.entries[i].fixed && !in->pool.entries[i].borrows;
        break;
    case 4:
        api_call(zr_contiguous_trim(in->pool.pool, dice / 8 * API_GRANULE, &released), API_OK);
        break;
    case 5:
        if (in->pool.freed)
            api_call(zr_contiguous_free(in->pool.pool, in->pool.freed),
                     API_BIT(ERR_DOUBLE_FREE) | API_BIT(ERR_FOREIGN));
        api_call(zr_contiguous_free(in->pool.pool, UINT64_MAX - dice), API_BIT(ERR_FOREIGN));
        break;
    default:
        api_append(in);
    }
}

/* ---- Rings --------------------------------------------------------------------------------------------- */

static inline void api_ring_start(struct api_arena *in)
{
    unsigned dice = api_byte();
    struct zr_block_info info;
    struct zr_ring_options options = {.arena = in->arena,
                                      .tag = (zr_tag)(dice / 4 % ZR_TAG_COUNT),
                                      .buffer_bytes = dice == 255 ? SIZE_MAX / 2 : api_size((size_t)1 << 16),
                                      .buffers_count = dice % 4 + (dice < 250)};
    bool bad = options.buffers_count == 0 || options.buffers_count > API_BUFFERS || dice == 255;
    in->ring = (struct api_ring){
        .bytes = dice == 255 ? 0 : (options.buffer_bytes + 255) / 256 * 256 * options.buffers_count,
        .tag = options.tag,
        .count = options.buffers_count};
    if (!api_call(zr_ring_create(&in->ring.ring, &options),
                  (bad ? API_BIT(ERR_INVALID) : API_OK) | API_SHORT | API_BIT(ERR_TAG_LIMIT) |
                      (in->reject_every ? API_BIT(ERR_UNAVAILABLE) : 0))) {
        api_check_limit(in, options.tag, in->ring.bytes);
        in->ring.ring = NULL;
        return;
    }
    in->freed = NULL;
    void *first;
    if (!api_call(zr_ring_acquire(in->ring.ring, 0, 0, &first), API_OK))
        return;
    if (api_find(in, first, &info))
        in->ring.reserved_bytes = info.reserved_bytes;
    api_must(info.bytes == in->ring.bytes, "the bytes of a ring");
    in->ring.memory = first;
    in->ring.stride_bytes = (options.buffer_bytes + 255) / 256 * 256;
    in->ring.next = 1 % in->ring.count;
    api_call(zr_ring_release(in->ring.ring, first, 0), API_OK);
}

/* The ring's end is refused while a buffer is out. */
static inline void api_ring_stop(struct api_arena *in)
{
    bool out = false;
    for (unsigned i = 0; i < API_BUFFERS; i++)
        out |= in->ring.acquired[i];
    if (api_call(zr_ring_destroy(in->ring.ring), out ? API_BIT(ERR_INVALID) : API_OK))
        in->ring = (struct api_ring){0};
}

static inline void api_ring_step(struct api_arena *in)
{
    unsigned dice = api_byte(), at = dice / 4 % in->ring.count;
    struct api_ring *ring = &in->ring;
    char *buffer = ring->memory + at * ring->stride_bytes;
    void *next;
    if (dice % 4 < 2) {
        bool held = ring->acquired[ring->next];
        if (api_call(zr_ring_acquire(ring->ring, dice / 64, 0, &next), held ? API_BIT(ERR_TIMEOUT)
                                                                       : api.asynchronous
                                                                           ? API_OK | API_BIT(ERR_TIMEOUT)
                                                                           : API_OK)) {
            api_must(next == ring->memory + ring->next * ring->stride_bytes, "another buffer than the next");
            ring->acquired[ring->next] = true;
            ring->next = (ring->next + 1) % ring->count;
        }
    } else if (dice % 4 == 2) {
        if (api_call(zr_ring_release(ring->ring, buffer, dice / 64),
                     ring->acquired[at] ? API_OK : API_BIT(ERR_DOUBLE_FREE)))
            ring->acquired[at] = false;
    } else {
        api_call(zr_ring_release(ring->ring, buffer + 1, 0), API_BIT(ERR_FOREIGN));
    }
}

/* ---- Sharing, callbacks, traces ------------------------------------------------------------------------ */

static inline void api_share(struct api_arena *in)
{
    enum { SEGMENTS = 64 };
    struct zr_segment segments[SEGMENTS];
    struct api_import *import = &api.imports[api_byte() % API_IMPORTS];
    struct api_block *block = api_some_block(in);
    size_t count = SEGMENTS, lead = 0, bytes = 0;
    void *out;
    if (import->address) {
        api_call(zr_import_release(api.backend, import->address + 1), API_BIT(ERR_FOREIGN));
        if (api_call(zr_import_release(api.backend, import->address), API_OK | API_BIT(ERR_UNAVAILABLE)))
            *import = (struct api_import){0};
        return;
    }
    if (!block || !api_call(zr_block_export(in->arena, block->address, segments, &count, &lead),
                            API_OK | API_BIT(ERR_INVALID) | API_BIT(ERR_UNAVAILABLE)))
        return;
    for (size_t i = 0; i < count; i++)
        bytes += segments[i].bytes;
    api_must(lead + block->bytes <= bytes, "exported bytes");
    if (!api_call(zr_import(api.backend, segments, count, &out),
                  API_OK | API_SHORT | API_BIT(ERR_UNAVAILABLE)))
        return;
    *import = (struct api_import){out, bytes};
    api_must(api_kept(import->address + lead, block->bytes, block->pattern), "a block as imported");
    api_fill(import->address + lead, block->bytes, block->pattern ^= 0x55);
    api_must(api_kept(block->address, block->bytes, block->pattern), "what an importer writes");
}

static zr_result api_mapped(void *argument, void *address, size_t bytes)
{
    struct api_arena *in = argument;
    struct zr_block_info info;
    zr_arena_find(in->arena, address, &info);
    if (in->reject_every && ++in->told % in->reject_every == 0)
        return ZR_ERR_UNAVAILABLE;
    in->told_bytes += bytes;
    return ZR_OK;
}

static void api_unmapping(void *argument, void *address, size_t bytes)
{
    struct api_arena *in = argument;
    struct zr_block_info info;
    zr_arena_find(in->arena, address, &info);
    in->told_bytes -= bytes;
}

static inline void api_watch(struct api_arena *in)
{
    if (in->watched) {
        api_call(zr_arena_remove_map_callback(in->arena, &in->callback), API_OK);
        api_must(in->told_bytes == 0, "what a removed callback was told");
        in->watched = false;
        in->reject_every = 0;
        return;
    }
    in->told_bytes = in->told = 0;
    in->callback = (struct zr_map_callback){api_mapped, api_unmapping, in};
    in->watched = api_call(zr_arena_add_map_callback(in->arena, &in->callback), API_OK);
    in->reject_every = 0;
}

static inline void api_trace(struct api_arena *in)
{
    unsigned dice = api_byte();
    if (dice % 4 == 0)
        api_call(zr_trace_mark(in->arena, "a mark"), API_OK);
    else if (in->traced)
        api_call(zr_trace_stop(in->arena), API_OK | API_BIT(ERR_IO)), in->traced = false;
    else
        in->traced = api_call(zr_trace_start(in->arena, dice % 16 == 1 ? "/nowhere/x.zrt" : api_trace_path),
                              API_OK | API_BIT(ERR_IO) | API_BIT(ERR_INVALID) | API_BIT(ERR_HOST_MEMORY));
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static inline bool api_start_backend(void)
{
    static const char *const options[] = {
        "", "check:2", "check:3", "stacks:1", "check:3,stacks:3", "vma_budget:24", "recorder:65536", ""};
    unsigned dice = api_byte(), limit = api_byte();
    size_t limit_bytes = limit % 2 ? 0 : (1 + limit / 2) * 8 * API_GRANULE;
    zr_result result;
    if (zr_option_set(options[dice / 4 % 8]) != ZR_OK)
        abort();
    zr_own_stripe = (struct zr_thread_stripe){0};
    api.contents = dice % 4 < 2;
    api.private_memory = dice % 4 == 1;
    api.asynchronous = dice % 4 == 3;
    if (api.contents)
        result = zr_backend_host_create(&api.backend,
                                        &(struct zr_host_options){.granule_bytes = API_GRANULE,
                                                                  .limit_bytes = limit_bytes,
                                                                  .private_memory = api.private_memory});
    else
        result = zr_backend_sim_create(&api.backend,
                                       &(struct zr_sim_options){.granule_bytes = API_GRANULE,
                                                                .capacity_bytes = limit_bytes,
                                                                .work_ns = api.asynchronous ? 100 : 0});
    return api_call(result, API_OK);
}

static inline void api_start_arena(struct api_arena *in)
{
    unsigned dice = api_byte();
    struct {
        struct zr_arena_options known;
        uint64_t unknown;
    } options = {.known = {.struct_bytes = dice % 4 == 1   ? 0
                                           : dice % 4 == 2 ? sizeof options
                                                           : sizeof options.known,
                           .backend = api.backend,
                           .name = "fuzz",
                           .reserve_bytes = dice & 4 ? 512 * API_GRANULE : 4096 * API_GRANULE,
                           .limit_bytes = dice & 8 ? 128 * API_GRANULE : 0,
                           .threads = dice >= 248 ? 9
                                      : dice & 16 ? 8
                                                  : 0},
                 .unknown = dice >= 250};
    bool bad = (dice % 4 == 2 && options.unknown) || options.known.threads > 8;
    *in = (struct api_arena){0};
    if (!api_call(zr_arena_create(&in->arena, &options.known),
                  bad ? API_BIT(ERR_INVALID) : API_OK | API_SHORT))
        in->arena = NULL;
}

static inline void api_stop_arena(struct api_arena *in)
{
    struct zr_arena_stats stats;
    size_t leaked = SIZE_MAX;
    if (in->ring.ring) {
        for (unsigned i = 0; i < in->ring.count; i++)
            if (in->ring.acquired[i] &&
                api_call(zr_ring_release(in->ring.ring, in->ring.memory + i * in->ring.stride_bytes, 0),
                         API_OK))
                in->ring.acquired[i] = false;
        api_ring_stop(in);
    }
    if (in->pool.pool) {
        api_call(zr_arena_destroy(in->arena, NULL), API_BIT(ERR_INVALID));
        api_pool_stop(in);
    }
    for (unsigned i = 0; i < API_BLOCKS / 2; i++)
        if (in->blocks[i].address)
            api_free(in, &in->blocks[i]);
    api_check(in);
    api_check_sums(in);
    zr_arena_get_stats(in->arena, &stats);
    api_call(zr_arena_destroy(in->arena, &leaked), in->traced ? API_OK | API_BIT(ERR_IO) : API_OK);
    api_must(leaked == stats.live_bytes, "what an arena leaks");
    api_must(!in->watched || in->told_bytes == 0, "what the callback was told at the end");
    *in = (struct api_arena){0};
}

static inline void api_stop_all(void)
{
    api.at = api.end;
    for (unsigned i = 0; i < API_IMPORTS; i++)
        if (api.imports[i].address)
            api_call(zr_import_release(api.backend, api.imports[i].address), API_OK);
    for (unsigned a = 0; a < API_ARENAS; a++)
        if (api.arenas[a].arena)
            api_stop_arena(&api.arenas[a]);
    api_check_backend();
    api_call(zr_backend_destroy(api.backend), API_OK);
}

static inline void api_report(void)
{
    if (api.wrong)
        fprintf(stderr, "fuzz_api.h:%d: %s: %s: %s\n", api.line, api.wrong, zr_result_name(api.result),
                api.last_error);
}

static inline void api_limits(void)
{
    static const rlim_t sizes[] = {RLIM_INFINITY, 1 << 16, 1 << 20, 1 << 22};
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = sizes[api_byte() % 4];
    setrlimit(RLIMIT_FSIZE, &limit);
}

static inline void api_faults(bool clear)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_RESERVE, ZR_FAULT_CREATE,   ZR_FAULT_MAP,
                                               ZR_FAULT_ACCESS,  ZR_FAULT_METADATA, ZR_FAULT_THREAD,
                                               ZR_FAULT_OPEN,    ZR_FAULT_WRITE};
    unsigned dice = clear ? 0 : api_byte();
    for (unsigned i = 0; i < sizeof sites / sizeof *sites && clear; i++)
        zr_fault_set(sites[i], 0);
    api.faulty |= !clear;
    if (!clear)
        zr_fault_set(sites[dice % 8], 1 + dice / 8);
}

static inline void api_numbers(struct api_arena *in)
{
    static const char *const names[] = {"arena.0.live_bytes",
                                        "arena.1.tag.grad.peak_bytes",
                                        "option.check",
                                        "arena.0.",
                                        "arena.99.live_bytes",
                                        "",
                                        "arena.0.tag.x.live_bytes",
                                        "option"};
    unsigned dice = api_byte();
    uint64_t number;
    api_call(zr_ctl_get(names[dice % 8], &number), API_OK | API_BIT(ERR_INVALID));
    if (dice & 8)
        if (api_call(zr_arena_reset_peaks(in->arena), API_OK))
            in->peak_bytes = 0;
}

/* The arena has addresses for each of several threads, and the thread allocates from those of the next. */
static inline void api_take_seat(struct api_arena *in)
{
    unsigned dice = api_byte();
    if (dice % 4 == 0 && 1 + atomic_load(&in->arena->stripes_count) < in->arena->stripes_max)
        zr_arena_add_stripe(in->arena, 1 + atomic_load(&in->arena->stripes_count));
    zr_own_stripe.number = 1 + dice / 4 % 4;
}

/* A child finds all as it was, and ends its arenas. The memory must be its own. */
static inline void api_fork(void)
{
    int status = 1;
    if (api.forked || (api.contents && !api.private_memory))
        return;
    api.forked = true;
    pid_t child = fork();
    if (child == 0) {
        api_faults(true);
        api_stop_all();
        api_report();
        _exit(api.wrong != NULL);
    }
    pid_t ended = child;
    while (child > 0 && (ended = waitpid(child, &status, 0)) < 0 && errno == EINTR)
        ; /* libFuzzer has a timer */
    api_must(child < 0 || (ended == child && status == 0), "in a child");
}

static inline void api_step(void)
{
    unsigned op = api_byte();
    struct api_arena *in = &api.arenas[op >> 7];
    struct api_block *block;
    size_t released;
    op &= 127;
    if (!in->arena) {
        api_start_arena(in);
        return;
    }
    if (op < 40) {
        api_alloc(in);
    } else if (op < 60) {
        if ((block = api_some_block(in)))
            api_free(in, block);
    } else if (op < 64) {
        api_free_wrong(in);
    } else if (op < 68) {
        api_look(in);
    } else if (op < 71) {
        api_use(in);
    } else if (op < 75) {
        api_call(zr_arena_trim(in->arena, api_byte() % 16 * API_GRANULE, &released), API_OK);
    } else if (op < 78) {
        api_classify(in);
    } else if (op < 81) {
        api_limit(in);
    } else if (op < 86) {
        api_faults(op == 81);
    } else if (op < 100) {
        if (!in->pool.pool)
            api_pool_start(in);
        else if (op == 86)
            api_pool_stop(in);
        else
            api_pool_step(in);
    } else if (op < 106) {
        if (!in->ring.ring)
            api_ring_start(in);
        else if (op == 100)
            api_ring_stop(in);
        else
            api_ring_step(in);
    } else if (op < 109) {
        api_share(in);
    } else if (op < 111) {
        api_watch(in);
    } else if (op == 111) {
        in->reject_every = in->watched ? api_byte() % 5 : 0;
    } else if (op < 114) {
        api_trace(in);
    } else if (op < 118) {
        api_numbers(in);
    } else if (op < 121) {
        api_check(in);
    } else if (op == 121 && api.asynchronous) {
        zr_sim_clock_advance(api.backend, api_byte());
    } else if (op < 123) {
        api_take_seat(in);
    } else if (op == 123) {
        api_limits();
    } else if (op == 124) {
        api_call(zr_backend_destroy(api.backend), API_BIT(ERR_INVALID));
    } else if (op == 125) {
        api_stop_arena(in);
    } else if (op == 126) {
        api_fork();
    }
}

static inline unsigned api_files(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 64; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* False: a contradiction, with words on standard error. */
static inline bool fuzz_api(const uint8_t *data, size_t bytes)
{
    unsigned files = api_files();
    snprintf(api_trace_path, sizeof api_trace_path, "/dev/shm/zr-fuzz-api-%d.zrt", (int)getpid());
    memset(&api, 0, sizeof api);
    api.at = data;
    api.end = data + bytes;
    api_faults(true);
    if (api_start_backend()) {
        while (api.at < api.end && !api.wrong) {
            api_step();
            for (unsigned a = 0; a < API_ARENAS; a++)
                if (api.arenas[a].arena)
                    api_check_sums(&api.arenas[a]);
            api_check_backend();
        }
        api_faults(true);
        api_stop_all();
    }
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
    unlink(api_trace_path);
    api_must(api_files() == files, "a descriptor stays open");
    api_report();
    return !api.wrong;
}

#endif
