/* events_csv.h: reads events from a CSV, zr's own or a log of RAPIDS' memory manager.
 *
 * zr's CSV has a line of column names, then one row for each event. `zr export
 * --format csv` writes this format, and so may any program. Private to defrag/.
 *
 * Columns, in any order; others are ignored:
 *   event                alloc, free_asked, free, map, unmap, refused, mark
 *   address              or id, which only distinguishes live blocks
 *   bytes                requested bytes; in a map: mapped bytes
 *   reserved_bytes       alloc: with rounding
 *   time_ns, before (1: recreates a block from before the window), stream, thread, tag, pool,
 *   unit_bytes (map: the unit that can be unmapped; 0: the whole map),
 *   free_bytes (refused: of the device), label (mark)
 * The first three are required. An empty or missing optional field is 0 or unknown. */
#ifndef ZR_EVENTS_CSV_H
#define ZR_EVENTS_CSV_H

#include "defrag/trace/formats/csv.h"
#include "defrag/trace/recording.h"

enum { ZR_EVENTS_CSV_COLUMNS = 14 };

struct zr_events_csv {
    struct zr_csv csv;
    bool has_addresses, has_times;
    int columns[ZR_EVENTS_CSV_COLUMNS]; /* private: field index of each column; below 0: missing */
    uint64_t last_ns;                   /* private */
};

/* Whether a header line has the columns of this format. `line` is zero-terminated. */
bool zr_events_csv_is(const char *line);
/* The caller owns *out until zr_events_csv_close(). ZR_ERR_FORMAT: a column is missing. */
zr_result zr_events_csv_open(struct zr_events_csv *out, const char *path);
void zr_events_csv_close(struct zr_events_csv *reader);
/* Reads the next event of more than 0 bytes, or the next mark. *more is false at the end;
 * reader->csv.cut_short tells whether the file is truncated. The label is valid until the next call.
 * ZR_ERR_FORMAT, with file and line. */
zr_result zr_events_csv_next(struct zr_events_csv *reader, struct zr_record *out, bool *more);
/* The name of a kind of event. */
const char *zr_record_kind_name(enum zr_record_kind kind);

/* ---- Logs of RAPIDS' memory manager (rmm.c) ------------------------------------------------------------ */

/* Whether a header line is that of an RMM log. `line` is zero-terminated. */
bool zr_rmm_is(const char *line);
/* Reads the next request as a record; its time is the time of day, 0: unreadable. *more is false at the end.
 * ZR_ERR_FORMAT, with file and line. */
zr_result zr_rmm_next(struct zr_csv *csv, struct zr_record *out, bool *more);

#endif
