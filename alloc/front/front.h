/* front.h: what the files of alloc/front/ do for each other and for alloc/pool/. Private to alloc/. */
#ifndef ZR_FRONT_FRONT_H
#define ZR_FRONT_FRONT_H

#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/telemetry/report.h"

/* Recomputes every invariant of the arena. ZR_ERR_CORRUPT, with a message that names what is damaged. Both
 * locks. */
zr_result zr_check_arena(struct zr_arena *arena);

/* ---- Hooks of each block ------------------------------------------------------------------------------- */

/* Only where one is on (arena->debug). lock: arena->lock */

/* The block has come, or is about to go: ZR_ERR_CORRUPT, with words, if it was written past its end. */
void zr_debug_new(struct zr_arena *arena, const struct zr_extent *block);
zr_result zr_debug_freed(struct zr_arena *arena, const struct zr_extent *block);

/* ---- Map callbacks ------------------------------------------------------------------------------------- */

extern const struct zr_map_calls zr_map_callback_calls;

/* ---- Granules for contiguous pools and rings ----------------------------------------------------------- */

/* Whole granules for a range that is not the arena's own, as single-granule handles: from the cache, from
 * free extents, from the driver; they count as reserved by the arena. Take the locks themselves.
 * ZR_ERR_MEMORY: nothing was taken. */
zr_result zr_granules_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
void zr_granules_give(struct zr_arena *arena, struct zr_handle_list *list);
/* Drops granules that are still mapped and that streams may still use: they leave the counters and are never
 * reused. Empties the list; returns the bytes. */
size_t zr_granules_abandon(struct zr_arena *arena, struct zr_handle_list *list);

/* ---- Limits per tag and in all ------------------------------------------------------------------------- */

/* Of an arena with arena->bounded set, under its lock, unless a declaration says otherwise. */

/* ZR_ERR_TAG_LIMIT, with words, if a request that came to so many bytes is above a tag limit. */
zr_result zr_tag_limit_check(struct zr_arena *arena, const struct zr_request *request, size_t bytes);
/* What a trace says of such a request. */
struct zr_refusal zr_tag_limit_refusal(const struct zr_arena *arena, const struct zr_request *request,
                                       size_t bytes);
/* The tag's bytes have grown. */
void zr_tag_limit_note(struct zr_arena *arena, unsigned tag);
/* The check for an entry of a pool, without the lock; of any arena. What was promised (0: the arena is not
 * bounded) counts until it is taken back from promised_by_tag_bytes. */
zr_result zr_tag_limit_promise(struct zr_arena *arena, const struct zr_request *request, size_t bytes,
                               size_t *promised_bytes);

#endif
