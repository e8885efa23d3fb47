/* events_csv.h: events as rows of a CSV, as `zr export --format csv` writes them and as any program may: a
 * line of column names, then an event a row. Private to defrag/.
 *
 * Columns, in any order, others ignored:
 *   event                alloc, free_asked, free, map, unmap, refused, mark
 *   address              or id: then a number only tells live blocks apart
 *   bytes                as requested; of a map what is mapped
 *   reserved_bytes       alloc: with rounding
 *   time_ns, before (1: makes what was there before the window), stream, thread, tag, pool, unit_bytes (of a
 * map: what can be unmapped; 0: the whole), free_bytes (refused: of the device), label (of a mark) The first
 * three have to be there; of the others an empty field, or none, is 0 or not known. */
#ifndef ZR_EVENTS_CSV_H
#define ZR_EVENTS_CSV_H

#include "defrag/trace/formats/csv.h"
#include "defrag/trace/recording.h"

enum { ZR_EVENTS_CSV_COLUMNS = 14 };

struct zr_events_csv {
    struct zr_csv csv;
    bool has_addresses, has_times;
    int columns[ZR_EVENTS_CSV_COLUMNS]; /* private: the field of each; below 0: none */
    uint64_t last_ns;                   /* private */
};

/* True if a header's line has the columns of this format. `line` ends with a zero. */
bool zr_events_csv_is(const char *line);
/* The caller owns *out until zr_events_csv_close(). ZR_ERR_FORMAT: a column is missing. */
zr_result zr_events_csv_open(struct zr_events_csv *out, const char *path);
void zr_events_csv_close(struct zr_events_csv *reader);
/* The next event of more than 0 bytes, or mark; *more is false at the end, which reader->csv.cut_short may
 * say is not the file's. The label is valid until the next call. ZR_ERR_FORMAT, with file and line. */
zr_result zr_events_csv_next(struct zr_events_csv *reader, struct zr_record *out, bool *more);
/* The name of a kind of event. */
const char *zr_record_kind_name(enum zr_record_kind kind);

#endif
