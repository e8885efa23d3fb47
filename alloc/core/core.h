/* core.h: one alloc and one free on the dynamic path. Private to alloc/. The caller holds both locks of the
 * arena, unless a declaration says otherwise. */
#ifndef ZR_CORE_CORE_H
#define ZR_CORE_CORE_H

#include "alloc/core/arena.h"
#include "alloc/core/space.h"

/* Allocates a block for the request, whose rounded size and alignment are `need`. The block is in the index
 * and not yet in counters. */
zr_result zr_core_alloc(struct zr_arena *arena, const struct zr_request *request, struct zr_need need,
                        struct zr_extent **out);
/* Allocates like zr_core_alloc(), in memory that is already mapped. lock: arena->lock. ZR_OK with a NULL
 * block: there is no such place. */
zr_result zr_core_try(struct zr_arena *arena, const struct zr_request *request, struct zr_need need,
                      struct zr_extent **out);
/* Allocates at the place, which lies in the range and has the request's rounded size. NULL: a part of it is
 * not free, not mapped or another stream's. */
struct zr_extent *zr_core_alloc_at(struct zr_arena *arena, const struct zr_request *request,
                                   struct zr_bounds place);
/* Allocates at the place like zr_core_alloc_at(), and maps missing memory. *out NULL with ZR_OK: a part of
 * the place is not free. ZR_ERR_MEMORY, ZR_ERR_ADDRESSES: see zr_core_alloc(). */
zr_result zr_core_build_at(struct zr_arena *arena, const struct zr_request *request, struct zr_bounds place,
                           struct zr_extent **out);
/* An extent of the list that begins at or before the offset, close to it. lock: arena->lock */
struct zr_extent *zr_core_extent_before(const struct zr_arena *arena, size_t offset_bytes);
/* Frees a block that was removed from the index and the counters, and that no other stream uses. */
void zr_core_free(struct zr_arena *arena, struct zr_extent *block);

/* While set, requests of the calling thread wait for pending memory that could serve them before they request
 * memory from the driver. */
extern __thread bool zr_thread_waits_to_grow __attribute__((tls_model("initial-exec")));

/* Turns a freed block without index entry and uses into a free extent. */
void zr_arena_vacate(struct zr_arena *arena, struct zr_extent *block);
/* Turns the blocks of the size cache into free extents. Stealing, trimming, statistics and checks, which walk
 * all free extents, call this first. */
void zr_arena_flush_size_cache(struct zr_arena *arena);

#endif
