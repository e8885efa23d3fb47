/* rmm.h: reads logs of RAPIDS' memory manager, row by row. Private to defrag/trace/. */
#ifndef ZR_RMM_H
#define ZR_RMM_H

#include "defrag/trace/formats/csv.h"
#include "defrag/trace/recording.h"

/* Whether a header line is that of an RMM log. `line` is zero-terminated. */
bool zr_rmm_is(const char *line);
/* Reads the next request as a record; its time is the time of day, 0: unreadable. *more is false at the end.
 * ZR_ERR_FORMAT, with file and line. */
zr_result zr_rmm_next(struct zr_csv *csv, struct zr_record *out, bool *more);

#endif
