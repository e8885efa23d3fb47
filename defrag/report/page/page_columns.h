/* page_columns.h: a column of numbers for a page: varints, through zlib, into a file aside, and from there as
 * base64 into a script element. Private to defrag/report/.
 *
 * A column takes a third of a megabyte until it is written, however long it gets. */
#ifndef ZR_PAGE_COLUMNS_H
#define ZR_PAGE_COLUMNS_H

#include <zlib.h>

#include "alloc/base/system/file.h"
#include "defrag/trace/vector.h"

enum {
    ZR_COLUMN_PLAIN = 4096,
    ZR_COLUMN_PACKED = 12288, /* three quarters of what it is as base64 */
};

/* Where packed columns wait; several columns share one. */
struct zr_page_columns {
    struct zr_file file; /* written and read at offsets; the caller's */
    uint64_t end_bytes;
};

/* One thread at a time. What fails stays in `result`, and later calls do nothing. */
struct zr_column {
    const char *name; /* borrowed; of letters and _ */
    zr_result result;
    uint64_t plain_bytes; /* so far */
    uint64_t last;        /* for differences */

    /* private */
    struct zr_page_columns *spill; /* borrowed */
    z_stream stream;
    bool streaming;
    struct zr_vector places; /* uint64_t: of each ZR_COLUMN_PACKED bytes in the spill */
    unsigned gathered_bytes;
    unsigned char plain[ZR_COLUMN_PLAIN], packed[ZR_COLUMN_PACKED];
};

/* The caller ends it in any case. */
void zr_column_start(struct zr_column *column, const char *name, struct zr_page_columns *spill,
                     zr_arena *arena);
void zr_column_end(struct zr_column *column);

void zr_column_put(struct zr_column *column, const void *data, size_t bytes);
/* Seven bits a byte, the lowest first, bit 7 set on all but the last. */
void zr_column_number(struct zr_column *column, uint64_t number);
/* The difference from the number before it, modulo 2^64, which is 0 at first: sign in bit 0. */
void zr_column_difference(struct zr_column *column, uint64_t number);

/* The element, with what has come so far; nothing can come after it. Returns what failed, if anything did. */
zr_result zr_column_write(struct zr_column *column, struct zr_text *text, unsigned file);

#endif
