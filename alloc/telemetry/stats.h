/* stats.h: the figures of an arena. Private to alloc/. */
#ifndef ZR_TELEMETRY_STATS_H
#define ZR_TELEMETRY_STATS_H

#include "alloc/core/arena.h"

void zr_stats_fill(struct zr_arena *arena, struct zr_arena_stats *out);
/* zr_arena_get_stats() for callers that hold locks. */
zr_result zr_stats_of(struct zr_arena *arena, struct zr_arena_stats *out);

#endif
