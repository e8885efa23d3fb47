/* picture.h: an address map as SVG or PNG, with the same rows in both. Private to defrag/. */
#ifndef ZR_PICTURE_H
#define ZR_PICTURE_H

#include "defrag/report/address_map.h"

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
