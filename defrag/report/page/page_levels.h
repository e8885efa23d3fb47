/* page_levels.h: a recording seen from afar: curves of live bytes in at most 4,096 steps, and how much of
 * each cell of address x time is taken, and by what. Private to defrag/report/.
 *
 * A moment is so many records after the start, and lasts until the next one. */
#ifndef ZR_PAGE_LEVELS_H
#define ZR_PAGE_LEVELS_H

#include "defrag/report/memory.h"
#include "defrag/report/page/page_columns.h"

enum {
    ZR_LEVELS_STEPS = 4096,
    ZR_LEVELS_COLUMNS = 2048,
    ZR_LEVELS_ROWS = 512,
    ZR_LEVELS_KINDS = ZR_TAG_COUNT + 1, /* the tags, and pending */
};

struct zr_levels {
    uint64_t step_moments, column_moments; /* the last of each may have fewer */
    uint64_t row_bytes;
    unsigned rows_count; /* 0: blocks lie nowhere */

    /* private */
    struct zr_column *start, *peak, *times, *cells; /* borrowed */
    zr_arena *arena;
    struct zr_level_row *rows;
    struct zr_memory_figures first, most;
    uint64_t most_bytes, column_begin;
    uint64_t last[2][ZR_TAG_COUNT + 3];
};

/* How far a recording goes, and where its levels go. */
struct zr_levels_plan {
    uint64_t moments_count, bytes; /* bytes: of the address axis; 0: there is none */
    struct zr_column *start;       /* of each step at its beginning: differences, tags first, .. */
    struct zr_column *peak;  /* .. then pending, reserved, stranded; and when live + pending were the most */
    struct zr_column *times; /* of each step's beginning: nanoseconds, as differences */
    struct zr_column *cells; /* a byte for each: kind * 16 + fifteenths that are taken; column by column */
};
zr_result zr_levels_start(struct zr_levels *levels, const struct zr_levels_plan *plan, zr_arena *arena);
void zr_levels_end(struct zr_levels *levels);

/* Before a moment's changes: what lies there stays until then. */
void zr_levels_advance(struct zr_levels *levels, uint64_t moment);
/* One of them: bytes at a place of the axis come, or go. */
struct zr_levels_change {
    uint64_t moment, place, bytes;
    unsigned kind;
    bool comes;
};
void zr_levels_change(struct zr_levels *levels, const struct zr_levels_change *change);
/* After them. */
void zr_levels_note(struct zr_levels *levels, const struct zr_memory *memory, uint64_t time_ns);
/* After the last moment. */
void zr_levels_finish(struct zr_levels *levels, uint64_t moments_count);

#endif
