/* reclaim.h: idle memory of all arenas of the process, and its way back to the backends. Private to alloc/.
 *
 * Live blocks keep their addresses and their granules. Idle are the free-granule cache, the granules under
 * free extents, and what a plan that is over or between its uses does not need. Any thread, without an
 * arena's locks. An arena whose lock another thread holds is skipped. */
#ifndef ZR_RECLAIM_H
#define ZR_RECLAIM_H

#include <stdbool.h>
#include <stddef.h>

struct zr_lender;

/* Returns idle granules to their backends until `bytes` were returned; returns how many were. `of`: only
 * memory that this lender has lent; NULL: all. *busy is set where an arena was skipped. */
size_t zr_reclaim(size_t bytes, const struct zr_lender *of, bool *busy);
/* Idle bytes that the lender has lent. */
size_t zr_reclaim_idle_bytes(const struct zr_lender *of);

#endif
