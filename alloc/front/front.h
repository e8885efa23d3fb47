/* front.h: functions that the files of alloc/front/ share, also with alloc/pool/. Private to alloc/. */
#ifndef ZR_FRONT_FRONT_H
#define ZR_FRONT_FRONT_H

#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/telemetry/report.h"

/* Checks every invariant of the arena. ZR_ERR_CORRUPT, with a message that names the damage. lock: both */
zr_result zr_check_arena(struct zr_arena *arena);

/* Allocates a block at an offset of the arena, which has one stripe and no plan, for an owner that knows the
 * contents of the addresses. ZR_ERR_INVALID: the place is not in the arena or not free. The caller holds no
 * lock. */
zr_result zr_arena_alloc_at(struct zr_arena *arena, const struct zr_request *request, size_t offset_bytes,
                            void **out);

/* ---- Hooks of each block ------------------------------------------------------------------------------- */

/* Called while a debug hook is on (arena->debug). lock: arena->lock */

/* Call the first after the block was allocated, the second before it is freed. ZR_ERR_CORRUPT, with a
 * message: the program wrote past the block's end. */
void zr_debug_new(struct zr_arena *arena, const struct zr_extent *block);
zr_result zr_debug_freed(struct zr_arena *arena, const struct zr_extent *block);

/* ---- Map callbacks ------------------------------------------------------------------------------------- */

extern const struct zr_map_calls zr_map_callback_calls;

/* ---- Granules for contiguous pools and rings ----------------------------------------------------------- */

/* Whole granules for a range other than the arena's, as single-granule handles from the cache, free extents
 * or the driver. They count as reserved by the arena. The caller holds no lock of the arena. ZR_ERR_MEMORY:
 * nothing was taken. */
zr_result zr_granules_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
void zr_granules_give(struct zr_arena *arena, struct zr_handle_list *list);
/* Drops granules that are still mapped and that streams may still use. The counters no longer include them,
 * and they are never reused. Empties the list; returns the bytes. */
size_t zr_granules_abandon(struct zr_arena *arena, struct zr_handle_list *list);

/* ---- Limits per tag and in total ----------------------------------------------------------------------- */

/* For an arena with arena->bounded set. lock: arena->lock, unless a declaration says otherwise */

/* ZR_ERR_TAG_LIMIT, with a message, if `bytes` for the request exceed a tag limit. */
zr_result zr_tag_limit_check(struct zr_arena *arena, const struct zr_request *request, size_t bytes);
/* The record in a trace of a request that exceeds a tag limit. */
struct zr_refusal zr_tag_limit_refusal(const struct zr_arena *arena, const struct zr_request *request,
                                       size_t bytes);
/* Raises the high-water marks after the tag's bytes have grown. */
void zr_tag_limit_note(struct zr_arena *arena, unsigned tag);
/* Checks the limits for an entry of a pool, in any arena. Acquires the lock itself. *promised_bytes (0: the
 * arena has no tag limits) count as used until the caller subtracts them from promised_by_tag_bytes. */
zr_result zr_tag_limit_promise(struct zr_arena *arena, const struct zr_request *request, size_t bytes,
                               size_t *promised_bytes);

#endif
