/* top_draw.c: see top_draw.h. Uses top_model.c and defrag/report/address_map.c.
 *
 * From top to bottom: the totals, a row for each process, then for the chosen process a bar, its legend, its
 * figures, and the map and the holders of one arena, one below the other or side by side. */
#define _GNU_SOURCE
#include "defrag/tool/live/top_draw.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/system/os.h"

enum { SIDE_BY_SIDE = 120, LABELS_FROM = 56, LABEL_COLUMNS = 16, ITEM_COLUMNS = 26, TALL_ROWS = 32 };

/* One letter for each tag, and one for memory without a tag. */
static const char tag_letters[ZR_TAG_COUNT + 1] = "pgomGcaCwO#";
enum {
    LETTER_PENDING = '~',
    LETTER_STRANDED = '!',
    LETTER_FREE = '.',
    LETTER_CACHED = ':',
    LETTER_PART = '-'
};

/* A part of the grid. */
struct area {
    struct zr_top_grid *grid;
    unsigned row, column, rows, columns;
};

/* ---- Letters ------------------------------------------------------------------------------------------- */

static void put(struct area area, unsigned row, unsigned column, struct zr_top_cell cell)
{
    if (row < area.rows && column < area.columns)
        area.grid->cells[area.row + row][area.column + column] = cell;
}

/* Draws text. Names come from other processes: a character that is not printable in one column becomes a
 * question mark. Returns the columns used. */
static unsigned put_words(struct area area, unsigned row, unsigned column, const char *words, uint8_t look)
{
    mbstate_t state = {0};
    size_t left = strlen(words);
    unsigned at = column;
    while (left > 0) {
        wchar_t letter;
        size_t bytes = mbrtowc(&letter, words, left, &state);
        bool good = bytes != 0 && bytes <= left && wcwidth(letter) == 1;
        if (!good) {
            letter = L'?';
            bytes = bytes != 0 && bytes <= left ? bytes : 1;
            memset(&state, 0, sizeof state);
        }
        put(area, row, at++, (struct zr_top_cell){.letter = letter, .look = look});
        words += bytes;
        left -= bytes;
    }
    return at - column;
}

static unsigned print(struct area area, unsigned row, unsigned column, uint8_t look, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static unsigned print(struct area area, unsigned row, unsigned column, uint8_t look, const char *format, ...)
{
    char words[4 * ZR_TOP_COLUMNS_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    return put_words(area, row, column, words, look);
}

/* Sets the look of a whole row. */
static void set_row(struct area area, unsigned row, uint8_t look)
{
    for (unsigned column = 0; column < area.columns && row < area.rows; column++)
        area.grid->cells[area.row + row][area.column + column].look |= look;
}

static struct area below(struct area area, unsigned rows)
{
    unsigned skipped = rows < area.rows ? rows : area.rows;
    area.row += skipped;
    area.rows -= skipped;
    return area;
}

/* A number in few characters: "12345", "1.2M"; units are powers of 1000. */
static const char *count_words(char out[ZR_TOOL_NUMBER_ROOM], double count)
{
    static const char units[] = " kMGTPE";
    unsigned unit = 0;
    for (; count >= (unit ? 999.5 : 99999.5) && units[unit + 1]; unit++)
        count /= 1000;
    snprintf(out, ZR_TOOL_NUMBER_ROOM, "%.*f%c", unit > 0 && count < 99.95 ? 1 : 0, count, units[unit]);
    if (unit == 0)
        out[strlen(out) - 1] = '\0';
    return out;
}

/* ---- The order of processes ---------------------------------------------------------------------------- */

static double weight(const struct zr_top_process *process, enum zr_top_order order)
{
    if (process->state == ZR_TOP_GONE)
        return -1;
    if (order == ZR_TOP_BY_RESERVED)
        return (double)zr_top_figures(process, ZR_TOP_ALL, NULL).reserved_bytes;
    return order == ZR_TOP_BY_RATE && process->has_rate ? process->allocations_hz : 0;
}

void zr_top_arrange(const struct zr_top *top, const struct zr_top_view *view,
                    unsigned indices[ZR_TOP_PROCESSES])
{
    double weights[ZR_TOP_PROCESSES];
    for (unsigned i = 0; i < top->processes_count; i++) {
        unsigned at = i;
        double own = weight(&top->processes[i], view->order);
        for (; at > 0 && weights[at - 1] < own; at--) { /* equal weights: the lower number first */
            weights[at] = weights[at - 1];
            indices[at] = indices[at - 1];
        }
        weights[at] = own;
        indices[at] = i;
    }
}

const struct zr_top_process *zr_top_chosen(const struct zr_top *top, const struct zr_top_view *view)
{
    unsigned indices[ZR_TOP_PROCESSES];
    int index = view->pid ? zr_top_find(top, view->pid) : -1;
    if (index < 0 && top->processes_count > 0) {
        zr_top_arrange(top, view, indices);
        index = (int)indices[0];
    }
    return index < 0 ? NULL : &top->processes[index];
}

/* ---- Bars ---------------------------------------------------------------------------------------------- */

struct part {
    const char *name;
    char letter;
    uint8_t colour;
    uint64_t bytes;
};
enum { PARTS = ZR_TAG_COUNT + 4 };

/* Splits reserved memory into parts that sum to it. */
static void take_parts(struct part parts[PARTS], const struct zr_arena_stats *stats)
{
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        parts[tag] = (struct part){zr_tag_name((zr_tag)tag), tag_letters[tag], (uint8_t)(ZR_TOP_TAGS + tag),
                                   stats->live_by_tag_bytes[tag]};
    parts[ZR_TAG_COUNT] = (struct part){"pending", LETTER_PENDING, ZR_TOP_PENDING, stats->pending_bytes};
    parts[ZR_TAG_COUNT + 1] =
        (struct part){"stranded", LETTER_STRANDED, ZR_TOP_STRANDED, stats->stranded_bytes};
    parts[ZR_TAG_COUNT + 2] = (struct part){"free", LETTER_FREE, ZR_TOP_FREE, zr_top_free_bytes(stats)};
    parts[ZR_TAG_COUNT + 3] = (struct part){"cached", LETTER_CACHED, ZR_TOP_CACHED, stats->cached_bytes};
}

/* Draws a bar of `columns` for `whole_bytes`; each column shows the part at its middle. */
static void draw_bar(struct area area, unsigned row, unsigned column, unsigned columns,
                     const struct zr_arena_stats *stats, uint64_t whole_bytes)
{
    struct part parts[PARTS];
    unsigned part = 0;
    take_parts(parts, stats);
    double end = (double)parts[0].bytes;
    put_words(area, row, column, "[", 0);
    for (unsigned i = 0; i < columns; i++) {
        double at = ((double)i + 0.5) / columns * (double)whole_bytes;
        while (part < PARTS && at >= end)
            end += ++part < PARTS ? (double)parts[part].bytes : 0;
        if (part < PARTS)
            put(area, row, column + 1 + i,
                (struct zr_top_cell){.letter = (wchar_t)parts[part].letter, .colour = parts[part].colour});
    }
    put_words(area, row, column + 1 + columns, "]", 0);
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

static const char *state_words(enum zr_top_state state)
{
    return state == ZR_TOP_GONE ? "gone" : state == ZR_TOP_SILENT ? "silent" : "";
}

static void draw_header(struct area area, const struct zr_top *top, const struct zr_top_view *view)
{
    uint64_t live = 0, reserved = 0;
    unsigned gone = 0;
    char number[2][ZR_TOOL_NUMBER_ROOM];
    for (unsigned i = 0; i < top->processes_count; i++) {
        struct zr_arena_stats stats = zr_top_figures(&top->processes[i], ZR_TOP_ALL, NULL);
        bool there = top->processes[i].state != ZR_TOP_GONE;
        gone += !there;
        live += there ? stats.live_bytes : 0;
        reserved += there ? stats.reserved_bytes : 0;
    }
    unsigned running = top->processes_count - gone;
    unsigned at =
        print(area, 0, 0, 0, "zr top   %u process%s   live %s   reserved %s", running,
              running == 1 ? "" : "es", zr_tool_bytes(number[0], live), zr_tool_bytes(number[1], reserved));
    if (gone > 0)
        at += print(area, 0, at, 0, "   %u gone", gone);
    if (top->others_count > 0)
        at += print(area, 0, at, 0, "   %u not shown", top->others_count);
    if (view->paused)
        print(area, 0, at, 0, "   paused");
    else if (view->interval_ms > 0)
        print(area, 0, at, 0, "   every %g s", view->interval_ms / 1000.0);
    set_row(area, 0, ZR_TOP_REVERSE);
}

static void draw_process(struct area area, unsigned row, const struct zr_top_process *process, bool chosen,
                         uint64_t whole_bytes)
{
    char number[6][ZR_TOOL_NUMBER_ROOM];
    struct zr_arena_stats stats = zr_top_figures(process, ZR_TOP_ALL, NULL);
    bool wide = area.columns >= SIDE_BY_SIDE;
    unsigned at = print(area, row, 0, 0, "%c%8ld ", chosen ? '>' : ' ', process->pid);
    put_words((struct area){area.grid, area.row + row, area.column + at, 1, wide ? 20 : 12}, 0, 0,
              process->live.shown.program, 0);
    at += wide ? 20 : 12;
    at += print(area, row, at, 0, "%10s%10s", zr_tool_bytes(number[0], stats.live_bytes),
                zr_tool_bytes(number[1], stats.reserved_bytes));
    if (wide)
        at += print(area, row, at, 0, "%10s%10s%10s", zr_tool_bytes(number[2], stats.stranded_bytes),
                    zr_tool_bytes(number[3], stats.peak_reserved_bytes),
                    count_words(number[4], (double)stats.blocks_count));
    at += print(area, row, at, 0, "%9s ",
                process->has_rate && process->state != ZR_TOP_GONE
                    ? count_words(number[5], process->allocations_hz)
                    : "-");
    if (at + 12 <= area.columns && process->state != ZR_TOP_GONE)
        draw_bar(area, row, at, area.columns - at - 2, &stats, whole_bytes);
    if (process->state != ZR_TOP_LIVE)
        print(area, row, at + 1, ZR_TOP_BOLD, " %s ", state_words(process->state));
    if (process->state == ZR_TOP_GONE)
        set_row((struct area){area.grid, area.row + row, area.column, 1, area.columns}, 0, ZR_TOP_DIM);
}

/* Draws a heading and as many rows as fit, including the chosen process. Returns the rows used. */
static unsigned draw_processes(struct area area, const struct zr_top *top, const struct zr_top_view *view)
{
    unsigned indices[ZR_TOP_PROCESSES], place = 0, max = area.rows / 4 > 1 ? area.rows / 4 : 1;
    const struct zr_top_process *chosen = zr_top_chosen(top, view);
    uint64_t whole = 1;
    bool wide = area.columns >= SIDE_BY_SIDE;
    zr_top_arrange(top, view, indices);
    for (unsigned i = 0; i < top->processes_count; i++) {
        const struct zr_top_process *process = &top->processes[indices[i]];
        struct zr_arena_stats stats = zr_top_figures(process, ZR_TOP_ALL, NULL);
        uint64_t peak_bytes = stats.peak_reserved_bytes > stats.reserved_bytes ? stats.peak_reserved_bytes
                                                                               : stats.reserved_bytes;
        if (process->state != ZR_TOP_GONE && peak_bytes > whole)
            whole = peak_bytes;
        if (process == chosen)
            place = i;
    }
    unsigned shown = top->processes_count < max ? top->processes_count : max;
    unsigned first = place >= shown && shown > 0 ? place - shown + 1 : 0;
    print(area, 0, 0, ZR_TOP_BOLD, "%9s %-*s%10s%10s%s%9s %s", "pid", wide ? 20 : 12, "program", "live",
          "reserved", wide ? "  stranded peak res.    blocks" : "", "alloc/s", "by tag");
    for (unsigned i = 0; i < shown; i++)
        draw_process(area, 1 + i, &top->processes[indices[first + i]],
                     &top->processes[indices[first + i]] == chosen, whole);
    if (shown < top->processes_count)
        print(area, 1 + shown, 2, ZR_TOP_DIM, "%u of %u processes; up and down go on", shown,
              top->processes_count);
    return 1 + shown + (shown < top->processes_count);
}

/* ---- One process --------------------------------------------------------------------------------------- */

/* Draws items side by side and wraps rows. */
struct flow {
    struct area area;
    unsigned row, column, rows_max;
};

static struct area next_item(struct flow *flow, unsigned columns)
{
    if (flow->column > 0 && flow->column + columns > flow->area.columns) {
        flow->column = 0;
        flow->row++;
    }
    struct area item = {flow->area.grid, flow->area.row + flow->row, flow->area.column + flow->column,
                        flow->row < flow->rows_max && flow->row < flow->area.rows, columns};
    unsigned left = flow->area.columns - flow->column;
    item.columns = columns < left ? columns : left;
    flow->column += columns;
    return item;
}

/* The number of rows used. */
static unsigned flow_rows(const struct flow *flow)
{
    unsigned rows = flow->row + (flow->column > 0);
    return rows < flow->rows_max ? rows : flow->rows_max;
}

static unsigned draw_legend(struct area area, const struct zr_arena_stats *stats)
{
    struct part parts[PARTS];
    struct flow flow = {.area = area, .rows_max = area.rows > TALL_ROWS ? 4 : 2};
    char number[ZR_TOOL_NUMBER_ROOM];
    take_parts(parts, stats);
    for (unsigned i = 0; i < PARTS; i++) {
        if (parts[i].bytes == 0)
            continue;
        struct area item = next_item(&flow, ITEM_COLUMNS);
        put(item, 0, 0, (struct zr_top_cell){.letter = (wchar_t)parts[i].letter, .colour = parts[i].colour});
        print(item, 0, 2, 0, "%-10s %9s", parts[i].name, zr_tool_bytes(number, parts[i].bytes));
    }
    return flow_rows(&flow);
}

/* Draws the most important figures first; figures beyond the space are left out. */
static unsigned draw_figures(struct area area, const struct zr_arena_stats *stats, uint64_t limit)
{
    struct flow flow = {.area = area, .rows_max = area.rows > TALL_ROWS ? 6 : 4};
    const struct {
        const char *name;
        uint64_t value;
        bool counts; /* else bytes */
    } figures[] = {{"live", stats->live_bytes, false},
                   {"reserved", stats->reserved_bytes, false},
                   {"stranded", stats->stranded_bytes, false},
                   {"peak live", stats->peak_live_bytes, false},
                   {"peak res.", stats->peak_reserved_bytes, false},
                   {"pending", stats->pending_bytes, false},
                   {"requested", stats->requested_bytes, false},
                   {"mapped", stats->mapped_bytes, false},
                   {"cached", stats->cached_bytes, false},
                   {"blocks", stats->blocks_count, true},
                   {"allocs", stats->allocations_count, true},
                   {"calls", stats->backend_calls_count, true},
                   {"unmovable", stats->unmovable_bytes, false},
                   {"limit", limit, false}};
    char number[ZR_TOOL_NUMBER_ROOM];
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (strcmp(figures[i].name, "limit") == 0 && limit == 0)
            continue;
        struct area item = next_item(&flow, ITEM_COLUMNS);
        print(item, 0, 0, ZR_TOP_DIM, "%-12s", figures[i].name);
        print(item, 0, 12, 0, "%10s",
              figures[i].counts ? count_words(number, (double)figures[i].value)
                                : zr_tool_bytes(number, figures[i].value));
    }
    return flow_rows(&flow);
}

static void draw_title(struct area area, const struct zr_top_process *process, int arena)
{
    unsigned count = process->live.arenas_count;
    unsigned at = print(area, 0, 0, 0, "%ld %s   ", process->pid, process->live.shown.program);
    if (process->state != ZR_TOP_LIVE)
        at += print(area, 0, at, 0, "%s   ", state_words(process->state));
    if (arena == ZR_TOP_ALL)
        at += print(area, 0, at, 0, "all %u arenas", count);
    else
        at += print(area, 0, at, 0, "arena %" PRIu32 " %s", process->live.shown.arenas[arena].number,
                    process->live.shown.arenas[arena].name);
    if (process->live.shown.arenas_count > count)
        at += print(area, 0, at, 0, " (of %" PRIu32 ")", process->live.shown.arenas_count);
    if (arena != ZR_TOP_ALL && process->live.shown.arenas[arena].stripes_count > 0)
        print(area, 0, at, 0, ", %" PRIu32 " stripes", process->live.shown.arenas[arena].stripes_count + 1);
    set_row(area, 0, ZR_TOP_BOLD);
}

/* ---- The map and the holders --------------------------------------------------------------------------- */

static unsigned largest_tag(const struct zr_map_cell *cell)
{
    unsigned best = 0;
    for (unsigned tag = 1; tag < ZR_TAG_COUNT; tag++)
        if (cell->by_tag_bytes[tag] > cell->by_tag_bytes[best])
            best = tag;
    return best;
}

static struct zr_top_cell map_letter(const struct zr_map_cell *cell)
{
    uint64_t live = cell->by_kind_bytes[ZR_MAP_LIVE], pending = cell->by_kind_bytes[ZR_MAP_PENDING];
    uint64_t unused = cell->by_kind_bytes[ZR_MAP_FREE], unmapped = cell->by_kind_bytes[ZR_MAP_UNMAPPED];
    unsigned tag = largest_tag(cell);
    if (live > 0 && live >= pending + unused + unmapped)
        return (struct zr_top_cell){.letter = (wchar_t)tag_letters[tag],
                                    .colour = (uint8_t)(ZR_TOP_TAGS + tag)};
    if (pending > unused && pending > unmapped)
        return (struct zr_top_cell){.letter = LETTER_PENDING, .colour = ZR_TOP_PENDING};
    if (live > 0)
        return (struct zr_top_cell){.letter = LETTER_PART, .colour = (uint8_t)(ZR_TOP_TAGS + tag)};
    if (unused >= unmapped)
        return (struct zr_top_cell){.letter = LETTER_FREE, .colour = ZR_TOP_FREE};
    return (struct zr_top_cell){.letter = L' '};
}

static void draw_map(struct area area, const struct zr_top_look *look)
{
    char number[ZR_TOOL_NUMBER_ROOM];
    bool labels = area.columns >= LABELS_FROM;
    unsigned left = labels ? LABEL_COLUMNS : 0, width = area.columns - left, i = 0;
    if (area.rows < 2)
        return;
    struct zr_map_cursor cursor =
        zr_map_cursor_of(look->extents.items, look->extents.count, (uint64_t)width * (area.rows - 1));
    struct zr_map_cell cell;
    print(area, 0, 0, ZR_TOP_BOLD, "memory map, %s a letter%s", zr_tool_bytes(number, cursor.cell_bytes),
          area.columns >= LABELS_FROM ? ": a tag's, - in part, . free, ~ pending" : "");
    for (; zr_map_next(&cursor, &cell); i++) {
        if (labels && i % width == 0)
            print(area, 1 + i / width, 0, ZR_TOP_DIM, "0x%-13" PRIx64, cell.address);
        put(area, 1 + i / width, left + i % width, map_letter(&cell));
    }
}

static void draw_holders(struct area area, const struct zr_top_look *look)
{
    char number[3][ZR_TOOL_NUMBER_ROOM];
    print(area, 0, 0, ZR_TOP_BOLD, "%10s%9s%11s  %s", "held", "blocks", "each", "largest holders");
    for (unsigned i = 0; i < look->holders_count; i++) {
        const struct zr_top_holder *holder = &look->holders[i];
        unsigned at = print(area, 1 + i, 0, 0, "%10s%9s%11s  ", zr_tool_bytes(number[0], holder->live_bytes),
                            count_words(number[1], (double)holder->blocks_count),
                            zr_tool_bytes(number[2], holder->requested_bytes));
        uint8_t colour = holder->pending ? ZR_TOP_PENDING : (uint8_t)(ZR_TOP_TAGS + holder->tag);
        put(area, 1 + i, at,
            (struct zr_top_cell){.letter =
                                     holder->pending ? LETTER_PENDING : (wchar_t)tag_letters[holder->tag],
                                 .colour = colour});
        print(area, 1 + i, at + 2, 0, "%s%s", zr_tag_name((zr_tag)holder->tag),
              holder->pending ? ", pending" : "");
    }
}

static void draw_look(struct area area, const struct zr_top *top, const struct zr_top_view *view,
                      const struct zr_top_process *process, int arena)
{
    const struct zr_top_look *look = &top->look;
    int index = zr_top_arena(process, arena);
    bool there =
        index >= 0 && look->pid == process->pid && look->arena == process->live.shown.arenas[index].number;
    struct area holders = area;
    if (view->no_look || !there || look->words[0]) {
        const char *words = view->no_look                   ? "off: m turns it on"
                            : there                         ? look->words
                            : process->state != ZR_TOP_LIVE ? "not known"
                                                            : "...";
        print(area, 0, 0, ZR_TOP_BOLD, "memory map: %s", words);
        return;
    }
    const struct zr_published_arena *shown = &process->live.shown.arenas[index];
    unsigned at = print(area, 0, 0, ZR_TOP_DIM, "blocks of arena %" PRIu32 " %s", shown->number, shown->name);
    if (shown->stripes_count > 0)
        at += print(area, 0, at, ZR_TOP_DIM, ", of its first stripe only");
    print(area, 0, at, ZR_TOP_DIM, ", %u s old",
          (unsigned)((zr_os_now_ns() - look->taken_ns) / UINT64_C(1000000000)));
    area = holders = below(area, 1);
    if (area.columns >= SIDE_BY_SIDE) {
        area.columns = area.columns - 56;
        holders.column += area.columns + 2;
        holders.columns = 54;
    } else {
        unsigned needed = look->holders_count + 1, half = (area.rows + 1) / 2;
        area.rows = needed < half ? area.rows - needed : area.rows - half;
        holders = below(holders, area.rows);
    }
    draw_map(area, look);
    draw_holders(holders, look);
}

static void draw_details(struct area area, const struct zr_top *top, const struct zr_top_view *view)
{
    const struct zr_top_process *process = zr_top_chosen(top, view);
    uint64_t limit;
    char number[2][ZR_TOOL_NUMBER_ROOM];
    if (!process) {
        print(area, 1, 2, 0,
              "No process of this user publishes its memory. A process appears once its arenas hold");
        print(area, 2, 2, 0, "64 MiB, or at once with ZR_CONF=publish:on. Try: zr run -- PROGRAM");
        return;
    }
    if (process->live.arenas_count == 0) {
        print(area, 1, 2, 0, "Process %ld shows no arena%s.", process->pid,
              process->state == ZR_TOP_GONE ? ": it exited, or was never published" : "");
        return;
    }
    int arena = view->arena < (int)process->live.arenas_count ? view->arena : ZR_TOP_ALL;
    if (process->live.arenas_count == 1)
        arena = 0;
    struct zr_arena_stats stats = zr_top_figures(process, arena, &limit);
    uint64_t whole =
        stats.peak_reserved_bytes > stats.reserved_bytes ? stats.peak_reserved_bytes : stats.reserved_bytes;
    draw_title(area, process, arena);
    unsigned bar = area.columns > 30 ? area.columns - 26 : 4;
    draw_bar(area, 1, 0, bar, &stats, whole ? whole : 1);
    print(area, 1, bar + 3, 0, "%s of %s", zr_tool_bytes(number[0], stats.reserved_bytes),
          zr_tool_bytes(number[1], limit ? limit : whole));
    area = below(area, 2);
    area = below(area, draw_legend(area, &stats));
    area = below(area, draw_figures(area, &stats, limit));
    if (area.rows > 0)
        draw_look(area, top, view, process, arena);
}

/* ---- zrd's clients ------------------------------------------------------------------------------------- */

/* Returns the rows used. */
static unsigned draw_clients(struct area area, const struct zr_clients *clients)
{
    char words[ZR_CLIENTS_LINE_ROOM];
    unsigned max = area.rows > TALL_ROWS ? 4 : 2;
    if (!clients->served)
        return 0;
    put_words(area, 0, 0, zr_clients_words(words, clients), ZR_TOP_BOLD);
    for (unsigned i = 0; i < clients->count && i < max; i++)
        put_words(area, 1 + i, 2, zr_client_words(words, &clients->rows[i]), 0);
    return 1 + (clients->count < max ? clients->count : max);
}

/* ---- The whole ----------------------------------------------------------------------------------------- */

static void draw_help(struct area area)
{
    static const char *const lines[] = {
        "up, down, k, j   the process whose details are shown",
        "tab, a           the next arena of it, or all of them together",
        "s                order of processes: number, reserved, allocations a second",
        "p, space         pause, continue",
        "+ -              refresh faster, slower",
        "m                the memory map and the holders, on and off",
        "x                forget processes that are gone",
        "l, Ctrl-L        redraw",
        "q, Ctrl-C        quit",
        "",
        "Bars: a letter and a colour for each tag; ~ pending (freed, a stream may still use it),",
        "! stranded (free, in no whole granule), . free, : cached by the arena.",
        "A bar ends at the peak of reserved memory.",
    };
    print(area, 0, 0, ZR_TOP_BOLD, "Keys");
    for (unsigned i = 0; i < sizeof lines / sizeof *lines; i++)
        put_words(area, 1 + i, 2, lines[i], 0);
}

static void draw_footer(struct area area, const struct zr_top_view *view)
{
    static const char *const orders[ZR_TOP_ORDERS] = {"pid", "reserved", "alloc/s"};
    if (view->interval_ms == 0) /* once: there are no keys */
        return;
    print(area, 0, 0, 0, "q end  up/down  tab arena  s order (%s)  p pause  + -  m map  x gone  ? help",
          orders[view->order]);
    set_row(area, 0, ZR_TOP_REVERSE);
}

void zr_top_draw(struct zr_top_grid *out, const struct zr_top *top, const struct zr_top_view *view)
{
    struct area area = {out, 0, 0, out->rows, out->columns};
    for (unsigned row = 0; row < out->rows; row++)
        for (unsigned column = 0; column < out->columns; column++)
            out->cells[row][column] = (struct zr_top_cell){.letter = L' '};
    if (out->columns < ZR_TOP_COLUMNS_MIN || out->rows < ZR_TOP_ROWS_MIN) {
        print(area, 0, 0, 0, "zr top: %u x %u", (unsigned)ZR_TOP_COLUMNS_MIN, (unsigned)ZR_TOP_ROWS_MIN);
        return;
    }
    draw_header(area, top, view);
    draw_footer(below(area, area.rows - 1), view);
    area.rows -= 1;
    area = below(area, 1);
    if (view->help) {
        draw_help(area);
        return;
    }
    if (top->processes_count > 0)
        area = below(area, draw_processes(area, top, view));
    for (unsigned i = 0; i < top->services.count; i++)
        area = below(area, draw_clients(area, &top->services.each[i]));
    draw_details(area, top, view);
}
