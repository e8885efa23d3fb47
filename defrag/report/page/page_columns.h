/* page_columns.h: a column of numbers for a page: varints, compressed by zlib into a swap file, and written
 * as base64 into a script element. Private to defrag/report/.
 *
 * A column takes a third of a megabyte of memory, whatever its length. */
#ifndef ZR_PAGE_COLUMNS_H
#define ZR_PAGE_COLUMNS_H

#include <zlib.h>

#include "alloc/base/system/file.h"
#include "defrag/trace/vector.h"

enum {
    ZR_COLUMN_PLAIN = 4096,
    ZR_COLUMN_PACKED = 12288, /* three quarters of its size as base64 */
};

/* The swap file of packed columns; several columns share it. */
struct zr_page_columns {
    struct zr_file file; /* written and read at offsets; owned by the caller */
    uint64_t end_bytes;
};

/* One thread at a time. The first error remains in `result`, and later calls do nothing. */
struct zr_column {
    const char *name; /* borrowed; letters and _ only */
    zr_result result;
    uint64_t plain_bytes; /* bytes before compression, so far */
    uint64_t last;        /* the last number, for differences */

    /* private */
    struct zr_page_columns *swap; /* borrowed */
    z_stream stream;
    bool streaming;
    struct zr_vector places; /* uint64_t: position of each ZR_COLUMN_PACKED bytes in the swap file */
    unsigned gathered_bytes;
    unsigned char plain[ZR_COLUMN_PLAIN], packed[ZR_COLUMN_PACKED];
};

/* The caller ends the column even after an error. */
void zr_column_start(struct zr_column *column, const char *name, struct zr_page_columns *swap,
                     zr_arena *arena);
void zr_column_end(struct zr_column *column);

void zr_column_put(struct zr_column *column, const void *data, size_t bytes);
/* Appends a varint: seven bits a byte, the lowest first, bit 7 set on all but the last. */
void zr_column_number(struct zr_column *column, uint64_t number);
/* Appends the difference from the previous number, modulo 2^64, starting from 0; the sign is in bit 0. */
void zr_column_difference(struct zr_column *column, uint64_t number);

/* Writes the script element with all numbers; ends the column. Returns the first error. */
zr_result zr_column_write(struct zr_column *column, struct zr_text *text, unsigned file);

#endif
