/* address_map.c: memory as rows of text. Uses sizes.c and system/text.c of alloc/base. */
#include "defrag/report/address_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/sizes.h"

enum { ROWS = 16, LABEL_COLUMNS = 20, COLUMNS_MIN = 20, LABELS_FROM = 60 };

uint32_t zr_map_colour(enum zr_map_kind kind, unsigned tag)
{
    static const uint32_t tags[ZR_TAG_COUNT] = {
        [ZR_TAG_PARAM] = 0x4e79a7,      [ZR_TAG_GRAD] = 0xe15759,     [ZR_TAG_OPTIMIZER] = 0x59a14f,
        [ZR_TAG_MASTER] = 0x8cd17d,     [ZR_TAG_GATHERED] = 0xb07aa1, [ZR_TAG_CHECKPOINT] = 0x499894,
        [ZR_TAG_ACTIVATION] = 0xf28e2b, [ZR_TAG_COMM] = 0xff9da7,     [ZR_TAG_WORKSPACE] = 0x9c755f,
        [ZR_TAG_OFFLOAD] = 0x86bcb6,    [ZR_TAG_OTHER] = 0x6b8fc9};
    switch (kind) {
    case ZR_MAP_LIVE:
        return tags[tag < ZR_TAG_COUNT ? tag : ZR_TAG_OTHER];
    case ZR_MAP_PENDING:
        return 0xedc948;
    case ZR_MAP_FREE:
        return 0xd9d9d9;
    default:
        return 0xffffff;
    }
}

/* ---- Cells --------------------------------------------------------------------------------------------- */

struct zr_map_cursor zr_map_cursor_of(const struct zr_map_extent *extents, size_t count, uint64_t cells_max)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (__builtin_add_overflow(bytes, extents[i].bytes, &bytes))
            bytes = UINT64_MAX;
    uint64_t cell_bytes = bytes / cells_max + (bytes % cells_max != 0);
    return (struct zr_map_cursor){
        .extents = extents, .count = count, .cell_bytes = cell_bytes ? cell_bytes : 1};
}

bool zr_map_next(struct zr_map_cursor *cursor, struct zr_map_cell *out)
{
    uint64_t left = cursor->cell_bytes, half = cursor->cell_bytes / 2;
    bool begun = false;
    memset(out, 0, sizeof *out);
    while (left > 0 && cursor->index < cursor->count) {
        const struct zr_map_extent *extent = &cursor->extents[cursor->index];
        uint64_t there = extent->bytes - cursor->inside_bytes, part = there < left ? there : left;
        unsigned kind = extent->kind < ZR_MAP_KINDS ? extent->kind : ZR_MAP_UNMAPPED;
        if (part > 0 && !begun)
            out->address = extent->address + cursor->inside_bytes;
        if (part > 0 && (!begun || (left > half && left - part <= half)))
            out->middle = cursor->index;
        begun |= part > 0;
        out->by_kind_bytes[kind] += part;
        if (kind == ZR_MAP_LIVE)
            out->by_tag_bytes[extent->tag < ZR_TAG_COUNT ? extent->tag : ZR_TAG_OTHER] += part;
        left -= part;
        cursor->inside_bytes += part;
        if (cursor->inside_bytes == extent->bytes) {
            cursor->index++;
            cursor->inside_bytes = 0;
        }
    }
    return begun;
}

/* ---- Text ---------------------------------------------------------------------------------------------- */

static unsigned largest(const uint64_t *bytes, unsigned count)
{
    unsigned best = 0;
    for (unsigned i = 1; i < count; i++)
        if (bytes[i] > bytes[best])
            best = i;
    return best;
}

static void set_colour(struct zr_text *text, uint32_t *now, uint32_t colour)
{
    if (*now == colour)
        return;
    *now = colour;
    if (colour == 0)
        zr_text_print(text, "\033[0m");
    else
        zr_text_print(text, "\033[38;2;%u;%u;%um", colour >> 16, colour >> 8 & 255, colour & 255);
}

/* The character of a cell: a bar whose height is the used share; a mostly free cell has the character for
 * free. */
static const char *sign(const struct zr_map_cell *cell, bool unicode)
{
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    const uint64_t *bytes = cell->by_kind_bytes;
    double all = 0, live = (double)bytes[ZR_MAP_LIVE];
    for (unsigned i = 0; i < ZR_MAP_KINDS; i++)
        all += (double)bytes[i];
    unsigned most = largest(bytes, ZR_MAP_KINDS);
    if (most == ZR_MAP_PENDING)
        return unicode ? "▒" : "p";
    if (live == 0)
        return most == ZR_MAP_UNMAPPED ? " " : unicode ? "░" : ".";
    unsigned eighths = (unsigned)(live / all * 8 + 0.5);
    if (!unicode)
        return live == all ? "#" : eighths >= 4 ? "+" : "-";
    return bars[live == all ? 7 : eighths < 1 ? 0 : eighths > 7 ? 6 : eighths - 1];
}

static uint32_t colour_of(const struct zr_map_cell *cell)
{
    unsigned kind = largest(cell->by_kind_bytes, ZR_MAP_KINDS);
    if (cell->by_kind_bytes[ZR_MAP_LIVE] > 0 && kind != ZR_MAP_PENDING)
        return zr_map_colour(ZR_MAP_LIVE, largest(cell->by_tag_bytes, ZR_TAG_COUNT));
    return zr_map_colour((enum zr_map_kind)kind, 0);
}

static void legend(struct zr_text *text, const struct zr_map_style *style, uint64_t cell_bytes,
                   const bool tags[ZR_TAG_COUNT])
{
    char cell[ZR_SIZE_ROOM];
    uint32_t now = 0;
    zr_text_print(text, style->unicode ? "█ live, ▃ in part, ▒ pending, ░ free"
                                       : "# live, + and - in part, p pending, . free");
    zr_text_print(text, "; a cell is %s\n", zr_size_print(cell, cell_bytes));
    for (unsigned tag = 0; tag < ZR_TAG_COUNT && style->colour; tag++) {
        if (!tags[tag])
            continue;
        set_colour(text, &now, zr_map_colour(ZR_MAP_LIVE, tag));
        zr_text_print(text, "%s ", style->unicode ? "█" : "#");
        set_colour(text, &now, 0);
        zr_text_print(text, "%s  ", zr_tag_name((zr_tag)tag));
    }
    if (style->colour)
        zr_text_print(text, "\n");
}

void zr_address_map_print(struct zr_text *text, const struct zr_map_extent *extents, size_t count,
                          const struct zr_map_style *style)
{
    unsigned columns = style->columns < COLUMNS_MIN ? COLUMNS_MIN : style->columns;
    bool labels = !style->bare && columns >= LABELS_FROM, tags[ZR_TAG_COUNT] = {false};
    unsigned width = labels ? columns - LABEL_COLUMNS : columns, column = 0;
    struct zr_map_cursor cursor =
        zr_map_cursor_of(extents, count, (uint64_t)width * (style->rows ? style->rows : ROWS));
    struct zr_map_cell cell;
    uint32_t now = 0;
    bool any = false;
    while (zr_map_next(&cursor, &cell)) {
        if (column == 0 && labels)
            zr_text_print(text, "0x%-16" PRIx64 "  ", cell.address);
        for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
            tags[tag] |= cell.by_tag_bytes[tag] > 0;
        if (style->colour)
            set_colour(text, &now, colour_of(&cell));
        zr_text_print(text, "%s", sign(&cell, style->unicode));
        any = true;
        if (++column == width) {
            set_colour(text, &now, 0);
            zr_text_print(text, "\n");
            column = 0;
        }
    }
    set_colour(text, &now, 0);
    if (column > 0)
        zr_text_print(text, "\n");
    if (any && !style->bare)
        legend(text, style, cursor.cell_bytes, tags);
}
