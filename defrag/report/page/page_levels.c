/* page_levels.c: curves and cells. Areas are exact for any number of blocks in a cell: each row keeps its
 * present bytes, and their integral since the column began. */
#include "defrag/report/page/page_levels.h"

#include <string.h>

#include "alloc/base/error.h"

struct zr_level_row {
    uint64_t since; /* the moment up to which areas are counted */
    uint64_t bytes[ZR_LEVELS_KINDS];
    double areas[ZR_LEVELS_KINDS]; /* bytes x moments */
};

static uint64_t split(uint64_t whole, uint64_t parts)
{
    uint64_t one = whole / parts + (whole % parts != 0);
    return one ? one : 1;
}

zr_result zr_levels_start(struct zr_levels *levels, const struct zr_levels_plan *plan, zr_arena *arena)
{
    void *room;
    *levels = (struct zr_levels){.step_moments = split(plan->moments_count, ZR_LEVELS_STEPS),
                                 .column_moments = split(plan->moments_count, ZR_LEVELS_COLUMNS),
                                 .row_bytes = split(plan->bytes, ZR_LEVELS_ROWS),
                                 .start = plan->start,
                                 .peak = plan->peak,
                                 .times = plan->times,
                                 .cells = plan->cells,
                                 .arena = arena};
    if (plan->bytes == 0)
        return ZR_OK;
    zr_result result = zr_arena_alloc(
        arena,
        &(struct zr_request){.bytes = ZR_LEVELS_ROWS * sizeof(struct zr_level_row), .tag = ZR_TAG_OTHER},
        &room);
    if (result != ZR_OK)
        return result;
    levels->rows = memset(room, 0, ZR_LEVELS_ROWS * sizeof(struct zr_level_row));
    levels->rows_count = (unsigned)split(plan->bytes, levels->row_bytes);
    return ZR_OK;
}

void zr_levels_end(struct zr_levels *levels)
{
    if (levels->rows)
        zr_arena_free(levels->arena, levels->rows);
    levels->rows = NULL;
}

/* ---- Cells --------------------------------------------------------------------------------------------- */

static void count_areas(struct zr_level_row *row, uint64_t moment)
{
    double passed = (double)(moment - row->since);
    row->since = moment;
    if (passed > 0)
        for (unsigned kind = 0; kind < ZR_LEVELS_KINDS; kind++)
            row->areas[kind] += passed * (double)row->bytes[kind];
}

static void end_column(struct zr_levels *levels, uint64_t moment)
{
    unsigned char cells[ZR_LEVELS_ROWS];
    double whole = (double)levels->row_bytes * (double)(moment - levels->column_begin);
    for (unsigned i = 0; i < levels->rows_count; i++) {
        struct zr_level_row *row = &levels->rows[i];
        double all = 0;
        unsigned best = 0;
        count_areas(row, moment);
        for (unsigned kind = 0; kind < ZR_LEVELS_KINDS; kind++) {
            all += row->areas[kind];
            if (row->areas[kind] > row->areas[best])
                best = kind;
        }
        memset(row->areas, 0, sizeof row->areas);
        unsigned taken = (unsigned)(15 * all / whole + 0.5);
        cells[i] = (unsigned char)(all > 0 ? best << 4 | (taken < 1 ? 1 : taken < 15 ? taken : 15) : 0);
    }
    zr_column_put(levels->cells, cells, levels->rows_count);
    levels->column_begin = moment;
}

void zr_levels_advance(struct zr_levels *levels, uint64_t moment)
{
    if (levels->rows_count > 0 && moment == levels->column_begin + levels->column_moments)
        end_column(levels, moment);
}

void zr_levels_change(struct zr_levels *levels, const struct zr_levels_change *change)
{
    uint64_t place = change->place, left = change->bytes;
    while (left > 0 && levels->rows_count > 0) {
        uint64_t index = place / levels->row_bytes;
        uint64_t there = (index + 1) * levels->row_bytes - place, part = there < left ? there : left;
        if (index >= levels->rows_count)
            break;
        struct zr_level_row *row = &levels->rows[index];
        count_areas(row, change->moment);
        row->bytes[change->kind] += change->comes ? part : -part;
        place += part;
        left -= part;
    }
}

/* ---- Curves -------------------------------------------------------------------------------------------- */

static void put_figures(struct zr_column *column, uint64_t *last, const struct zr_memory_figures *figures)
{
    uint64_t values[ZR_TAG_COUNT + 3];
    memcpy(values, figures->live_by_tag_bytes, sizeof figures->live_by_tag_bytes);
    values[ZR_TAG_COUNT] = figures->pending_bytes;
    values[ZR_TAG_COUNT + 1] = figures->reserved_bytes;
    values[ZR_TAG_COUNT + 2] = figures->stranded_bytes;
    for (unsigned i = 0; i < ZR_TAG_COUNT + 3; i++) {
        column->last = last[i];
        zr_column_difference(column, values[i]);
        last[i] = values[i];
    }
}

static void end_step(struct zr_levels *levels)
{
    put_figures(levels->start, levels->last[0], &levels->first);
    put_figures(levels->peak, levels->last[1], &levels->highest);
}

void zr_levels_note(struct zr_levels *levels, const struct zr_memory *memory, uint64_t time_ns)
{
    uint64_t moment = memory->records_count, used = memory->live_bytes + memory->pending_bytes;
    bool begins = moment % levels->step_moments == 0;
    if (begins && moment > 0)
        end_step(levels);
    if (!begins && used <= levels->highest_bytes)
        return;
    zr_memory_get_figures(memory, &levels->highest);
    levels->highest_bytes = used;
    if (begins) {
        levels->first = levels->highest;
        zr_column_difference(levels->times, time_ns);
    }
}

void zr_levels_finish(struct zr_levels *levels, uint64_t moments_count)
{
    end_step(levels);
    if (levels->rows_count > 0 && moments_count > levels->column_begin)
        end_column(levels, moments_count);
}
