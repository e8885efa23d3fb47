/* csv.h: rows of comma-separated fields, one at a time. Private to defrag/.
 *
 * Holds one buffer's worth of the file and nothing else, whatever the file holds. A field that begins with a
 * quote ends with one, doubled quotes inside; it cannot hold a line break. Spaces around a field, a byte
 * order mark, CR before LF and empty lines are passed over. */
#ifndef ZR_CSV_H
#define ZR_CSV_H

#include "alloc/base/system/file.h"

enum { ZR_CSV_FIELDS = 32, ZR_CSV_BUFFER_BYTES = 1 << 14 };

/* A file being read. One thread at a time. The fields are for reading only. */
struct zr_csv {
    uint64_t line; /* of the present row, from 1 */
    unsigned fields_count;
    char *fields[ZR_CSV_FIELDS]; /* of the present row, each ended by a zero; in the buffer */
    bool unended;                /* the file ends within the present row, or after it without a line break */
    bool cut_short;              /* zr_csv_cut() found so */

    /* private */
    struct zr_file file;
    size_t held_bytes, next_bytes; /* of buffer */
    bool at_end;                   /* of the file */
    char buffer[ZR_CSV_BUFFER_BYTES + 1];
};

/* The caller owns *out until zr_csv_close(). ZR_ERR_IO: the file cannot be opened. */
zr_result zr_csv_open(struct zr_csv *out, const char *path);
void zr_csv_close(struct zr_csv *csv);
/* The next row that is not empty; *more is false at the end. ZR_ERR_FORMAT, with file and line: a line longer
 * than the buffer, too many fields, or a zero byte. */
zr_result zr_csv_next(struct zr_csv *csv, bool *more);
/* A row that made no sense (`result`), or that did. Where the file ends within it without a line break, the
 * first is ZR_OK with *more false: what the file has of it is left out. */
zr_result zr_csv_cut(struct zr_csv *csv, zr_result result, bool *more);
/* The field as a whole number, decimal or 0x-hexadecimal. ZR_ERR_FORMAT names file, line and `column`. */
zr_result zr_csv_number(const struct zr_csv *csv, unsigned field, const char *column, uint64_t *out);

#endif
