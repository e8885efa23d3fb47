/* address_map.h: a stretch of memory drawn as text: what is live, pending, free and unmapped, in cells of
 * equal bytes. Needs nothing but a list of extents; takes no memory. Private to the project.
 *
 *     struct zr_map_style style = {.columns = 80, .unicode = true};
 *     zr_address_map_print(&text, extents, count, &style);
 */
#ifndef ZR_ADDRESS_MAP_H
#define ZR_ADDRESS_MAP_H

#include "alloc/base/system/file.h"
#include "alloc/zr.h"

enum zr_map_kind { ZR_MAP_LIVE = 0, ZR_MAP_PENDING, ZR_MAP_FREE, ZR_MAP_UNMAPPED, ZR_MAP_KINDS };

struct zr_map_extent {
    uint64_t address, bytes;
    uint8_t kind; /* enum zr_map_kind */
    uint8_t tag;  /* enum zr_tag: of what is live */
};

struct zr_map_style {
    unsigned columns; /* of the whole line, at least 20 */
    unsigned rows;    /* 0: 16 */
    bool unicode;     /* else ASCII alone */
    bool colour;      /* escape sequences of a terminal: a colour for each tag */
    bool bare;        /* without the addresses at the left and the legend */
};

/* Extents in rising order of address; addresses between two of them are left out, so what is unmapped shows
 * where it is an extent. Nothing is printed of no bytes. */
void zr_address_map_print(struct zr_text *text, const struct zr_map_extent *extents, size_t count,
                          const struct zr_map_style *style);

/* One pass through extents in cells of equal bytes, for whoever draws otherwise. */
struct zr_map_cell {
    uint64_t address; /* where it begins */
    uint64_t by_kind_bytes[ZR_MAP_KINDS];
    uint64_t by_tag_bytes[ZR_TAG_COUNT]; /* of what is live */
    size_t middle;                       /* the extent at the middle of the cell */
};
struct zr_map_cursor {
    const struct zr_map_extent *extents;
    size_t count, index;
    uint64_t cell_bytes;   /* the last cell may have fewer */
    uint64_t inside_bytes; /* of extents[index], passed already */
};
/* At most `cells_most` cells, more than 0. */
struct zr_map_cursor zr_map_cursor_of(const struct zr_map_extent *extents, size_t count, uint64_t cells_most);
bool zr_map_next(struct zr_map_cursor *cursor, struct zr_map_cell *out);

/* 0xRRGGBB of a kind and tag: the same in the terminal and in pictures. */
uint32_t zr_map_colour(enum zr_map_kind kind, unsigned tag);

#endif
