/* page_levels.h: the overview of a recording: curves of live bytes in at highest 4,096 steps, and the use of
 * each cell of address x time. Private to defrag/report/.
 *
 * A moment is the state after a number of records, and lasts until the next record. */
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
    uint64_t step_moments, column_moments; /* the last step or column may be shorter */
    uint64_t row_bytes;
    unsigned rows_count; /* 0: blocks have no addresses */

    /* private */
    struct zr_column *start, *peak, *times, *cells; /* borrowed */
    zr_arena *arena;
    struct zr_level_row *rows;
    struct zr_memory_figures first, highest;
    uint64_t highest_bytes, column_begin;
    uint64_t last[2][ZR_TAG_COUNT + 3];
};

/* The size of the recording, and the output columns. */
struct zr_levels_plan {
    uint64_t moments_count, bytes; /* bytes: of the address axis; 0: none */
    struct zr_column
        *start; /* figures at the start of each step, as differences: tags, pending, reserved, stranded */
    struct zr_column *peak;  /* the same figures at the peak of each step */
    struct zr_column *times; /* start of each step: nanoseconds, as differences */
    struct zr_column *cells; /* one byte per cell: kind * 16 + fifteenths in use; column by column */
};
zr_result zr_levels_start(struct zr_levels *levels, const struct zr_levels_plan *plan, zr_arena *arena);
void zr_levels_end(struct zr_levels *levels);

/* Called before the changes of a moment: the contents so far last until that moment. */
void zr_levels_advance(struct zr_levels *levels, uint64_t moment);
/* A change: bytes at a place of the axis appear or disappear. */
struct zr_levels_change {
    uint64_t moment, place, bytes;
    unsigned kind;
    bool comes;
};
void zr_levels_change(struct zr_levels *levels, const struct zr_levels_change *change);
/* Called after the changes of a moment. */
void zr_levels_note(struct zr_levels *levels, const struct zr_memory *memory, uint64_t time_ns);
/* Called after the last moment. */
void zr_levels_finish(struct zr_levels *levels, uint64_t moments_count);

#endif
