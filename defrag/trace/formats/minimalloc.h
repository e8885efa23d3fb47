/* minimalloc.h: reads MiniMalloc CSVs row by row: id,lower,upper,size in any order of columns; others are
 * ignored. Private to defrag/: recordings and zr_lifetimes_read() use it. */
#ifndef ZR_MINIMALLOC_H
#define ZR_MINIMALLOC_H

#include "defrag/trace/formats/csv.h"
#include "defrag/trace/recording.h"

/* One buffer, alive in [lower, upper). */
struct zr_minimalloc_row {
    uint64_t id, lower, upper, bytes;
};

struct zr_minimalloc {
    struct zr_csv csv;
    unsigned columns[4]; /* field index of id, lower, upper, size */
};

/* Whether a header line has the columns of this format. `line` is zero-terminated. */
bool zr_minimalloc_is(const char *line);
/* The caller owns *out until zr_minimalloc_close(). ZR_ERR_FORMAT: a column is missing or duplicated. */
zr_result zr_minimalloc_open(struct zr_minimalloc *out, const char *path);
void zr_minimalloc_close(struct zr_minimalloc *reader);
/* Reads the next row; *more is false at the end. ZR_ERR_FORMAT, with file and line: a field is missing or no
 * number, or the buffer ends before it begins. Empty lifetimes and sizes of 0 are valid. */
zr_result zr_minimalloc_next(struct zr_minimalloc *reader, struct zr_minimalloc_row *out, bool *more);
/* Reads the file as records in order of time; sizes are multiplied by `unit_bytes` (0: 1). */
zr_result zr_minimalloc_records(struct zr_recording *recording, uint64_t unit_bytes);

#endif
