/* minimalloc.h: reads MiniMalloc CSVs, a row at a time: id,lower,upper,size in any order of columns, others
 * ignored. Private to defrag/: zr_sequence_read() and zr_lifetimes_read() stand on it. */
#ifndef ZR_MINIMALLOC_H
#define ZR_MINIMALLOC_H

#include "defrag/trace/formats/csv.h"

/* One buffer, alive in [lower, upper). */
struct zr_minimalloc_row {
    uint64_t id, lower, upper, bytes;
};

struct zr_minimalloc {
    struct zr_csv csv;
    unsigned columns[4]; /* of id, lower, upper, size */
};

/* True if a header's line has the columns of this format. `line` ends with a zero. */
bool zr_minimalloc_is(const char *line);
/* The caller owns *out until zr_minimalloc_close(). ZR_ERR_FORMAT: a column is missing, or is there twice. */
zr_result zr_minimalloc_open(struct zr_minimalloc *out, const char *path);
void zr_minimalloc_close(struct zr_minimalloc *reader);
/* The next row; *more is false at the end. ZR_ERR_FORMAT, with file and line: a field is missing or no
 * number, or the buffer ends before it begins. An empty lifetime and a size of 0 are let through. */
zr_result zr_minimalloc_next(struct zr_minimalloc *reader, struct zr_minimalloc_row *out, bool *more);

#endif
