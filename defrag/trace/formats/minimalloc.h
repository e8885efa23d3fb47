/* minimalloc.h: reads MiniMalloc CSVs row by row: id,lower,upper,size, and alignment, hint and gaps if there
 * are any, in any order of columns; other columns are ignored. Private to defrag/: recordings,
 * zr_lifetimes_read() and zr pack use it. */
#ifndef ZR_MINIMALLOC_H
#define ZR_MINIMALLOC_H

#include "defrag/trace/formats/csv.h"
#include "defrag/trace/recording.h"

/* One buffer, alive in [lower, upper). */
struct zr_minimalloc_row {
    uint64_t id; /* of a name: the number of the row, from 0 */
    uint64_t lower, upper, bytes;
    uint64_t alignment; /* of the offset; 1: any */
    const char *name;   /* the id's text, valid until the next row */
};

enum { ZR_MINIMALLOC_COLUMNS = 7 };

struct zr_minimalloc {
    struct zr_csv csv;
    unsigned columns[ZR_MINIMALLOC_COLUMNS]; /* field index of each column; UINT_MAX: absent */
    uint64_t rows_count;
};

/* Whether a header line has the columns of this format. `line` is zero-terminated. */
bool zr_minimalloc_is(const char *line);
/* The caller owns *out until zr_minimalloc_close(). ZR_ERR_FORMAT: a column is missing or duplicated. */
zr_result zr_minimalloc_open(struct zr_minimalloc *out, const char *path);
void zr_minimalloc_close(struct zr_minimalloc *reader);
/* Reads the next row; *more is false at the end. ZR_ERR_FORMAT, with file and line: a field is missing or no
 * number, the buffer ends before it begins, its alignment is 0, or it has a hint or gaps, which no packer
 * here applies. Empty lifetimes and sizes of 0 are valid. */
zr_result zr_minimalloc_next(struct zr_minimalloc *reader, struct zr_minimalloc_row *out, bool *more);
/* Reads the file as records in order of time; sizes are multiplied by `unit_bytes` (0: 1). */
zr_result zr_minimalloc_records(struct zr_recording *recording, uint64_t unit_bytes);

#endif
