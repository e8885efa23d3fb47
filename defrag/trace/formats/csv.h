/* csv.h: reads rows of comma-separated fields, one at a time. Private to defrag/.
 *
 * Holds one buffer of the file, whatever the file contains. A quoted field ends with a quote, contains
 * doubled quotes, and cannot contain a line break. Skips spaces around a field, a byte order mark, CR before
 * LF, and empty lines. */
#ifndef ZR_CSV_H
#define ZR_CSV_H

#include "alloc/base/system/file.h"

enum { ZR_CSV_FIELDS = 32, ZR_CSV_BUFFER_BYTES = 1 << 14 };

/* A file being read. One thread at a time. The fields are read-only. */
struct zr_csv {
    uint64_t line; /* of the current row, from 1 */
    unsigned fields_count;
    char *fields[ZR_CSV_FIELDS]; /* of the current row, zero-terminated; inside the buffer */
    bool unended;                /* the file ends within the current row, or after it without a line break */
    bool cut_short;              /* set by zr_csv_cut() */

    /* private */
    struct zr_file file;
    size_t held_bytes, next_bytes; /* in the buffer */
    bool at_end;                   /* end of the file */
    char buffer[ZR_CSV_BUFFER_BYTES + 1];
};

/* The caller owns *out until zr_csv_close(). ZR_ERR_IO: the file cannot be opened. */
zr_result zr_csv_open(struct zr_csv *out, const char *path);
void zr_csv_close(struct zr_csv *csv);
/* Reads the next row that is not empty; *more is false at the end. ZR_ERR_FORMAT, with file and line: a line
 * longer than the buffer, too many fields, or a zero byte. */
zr_result zr_csv_next(struct zr_csv *csv, bool *more);
/* Decides whether an invalid row (`result`) is a truncated last row. If the file ends within the row without
 * a line break, the first call returns ZR_OK with *more false, and the row is dropped. */
zr_result zr_csv_cut(struct zr_csv *csv, zr_result result, bool *more);
/* Parses the field as a whole number, decimal or 0x-hexadecimal. ZR_ERR_FORMAT names file, line and `column`.
 */
zr_result zr_csv_number(const struct zr_csv *csv, unsigned field, const char *column, uint64_t *out);

#endif
