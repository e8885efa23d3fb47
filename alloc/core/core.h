/* core.h: one alloc and one free on the dynamic path. Private to alloc/. Both locks of the arena, unless a
 * declaration says otherwise. */
#ifndef ZR_CORE_CORE_H
#define ZR_CORE_CORE_H

#include "alloc/core/arena.h"
#include "alloc/core/space.h"

/* A block for the request, which came to the need; in the index and in no counters. The caller has reserved
 * ZR_PROMISED_EXTENTS and room in the index. */
zr_result zr_core_alloc(struct zr_arena *arena, const struct zr_request *request, struct zr_need need,
                        struct zr_extent **out);
/* The same where memory is mapped already: needs the lock alone. NULL: there is no such place. */
struct zr_extent *zr_core_try(struct zr_arena *arena, const struct zr_request *request, struct zr_need need);
/* A block that is in no index and no counters any more, and that no other stream uses. */
void zr_core_free(struct zr_arena *arena, struct zr_extent *block);

/* While it is set, the calling thread's requests take memory from the driver only when nothing is pending
 * that could serve them: they wait for that, as a free that waits for the device would have. */
extern __thread bool zr_thread_waits_to_grow __attribute__((tls_model("initial-exec")));

/* The space of a block that was freed, is in no index and has no uses becomes a free extent. */
void zr_arena_vacate(struct zr_arena *arena, struct zr_extent *block);
/* Makes free extents of the freed blocks that are kept for requests of their size. Before anything looks at
 * the free extents as a whole: stealing, trimming, statistics, checks. */
void zr_arena_flush_quick(struct zr_arena *arena);

#endif
