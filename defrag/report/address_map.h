/* address_map.h: draws a range of memory as text: live, pending, free and unmapped parts in cells of equal
 * bytes. Takes a list of extents and allocates nothing. Private to the project.
 *
 *     struct zr_map_style style = {.columns = 80, .unicode = true};
 *     zr_address_map_print(&text, extents, count, &style); */
#ifndef ZR_ADDRESS_MAP_H
#define ZR_ADDRESS_MAP_H

#include "alloc/base/system/file.h"
#include "alloc/zr.h"

enum zr_map_kind { ZR_MAP_LIVE = 0, ZR_MAP_PENDING, ZR_MAP_FREE, ZR_MAP_UNMAPPED, ZR_MAP_KINDS };

struct zr_map_extent {
    uint64_t address, bytes;
    uint8_t kind; /* enum zr_map_kind */
    uint8_t tag;  /* enum zr_tag, of a live extent */
};

struct zr_map_style {
    unsigned columns; /* of the whole line, at least 20 */
    unsigned rows;    /* 0: 16 */
    bool unicode;     /* otherwise ASCII */
    bool colour;      /* terminal escape sequences, with a colour for each tag */
    bool bare;        /* without addresses at the left and without the legend */
};

/* Extents are in rising order of address. Addresses between two extents are left out, so an unmapped range
 * needs an extent to be visible. Prints nothing for zero bytes. */
void zr_address_map_print(struct zr_text *text, const struct zr_map_extent *extents, size_t count,
                          const struct zr_map_style *style);

/* Divides extents into cells of equal bytes in one pass, for other drawing code. */
struct zr_map_cell {
    uint64_t address; /* start of the cell */
    uint64_t by_kind_bytes[ZR_MAP_KINDS];
    uint64_t by_tag_bytes[ZR_TAG_COUNT]; /* live bytes */
    size_t middle;                       /* the extent at the middle of the cell */
};
struct zr_map_cursor {
    const struct zr_map_extent *extents;
    size_t count, index;
    uint64_t cell_bytes;   /* the last cell may be smaller */
    uint64_t inside_bytes; /* bytes of extents[index] that are already in earlier cells */
};
/* Makes at most `cells_max` cells, which is more than 0. */
struct zr_map_cursor zr_map_cursor_of(const struct zr_map_extent *extents, size_t count, uint64_t cells_max);
bool zr_map_next(struct zr_map_cursor *cursor, struct zr_map_cell *out);

/* 0xRRGGBB of a kind and tag, for terminals and pictures. */
uint32_t zr_map_colour(enum zr_map_kind kind, unsigned tag);

/* ---- Pictures ------------------------------------------------------------------------------------------ */

/* The map as SVG or PNG, with the same rows in both. */

enum {
    ZR_PICTURE_WIDTH = 1200, /* cells of a row, one pixel each */
    ZR_PICTURE_ROWS = 32,    /* at most */
    ZR_PICTURE_ROW = 12,     /* pixels high .. */
    ZR_PICTURE_GAP = 2,      /* .. of which the last ones are empty */
};

struct zr_picture {
    const struct zr_map_extent *extents;
    size_t count;
    const char *title, *subtitle; /* in an SVG; any bytes */
};

/* Adjacent blocks of one colour differ in shade. Takes scratch memory from the arena during the call. */
zr_result zr_picture_svg(struct zr_text *text, const struct zr_picture *picture);
zr_result zr_picture_png(struct zr_file *file, const struct zr_picture *picture, zr_arena *arena);

#endif
