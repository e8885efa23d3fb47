/* readers.h: read sections, and the grace period that a writer waits for before it frees what they may read.
 * Private to alloc/.
 *
 * A section is counted, and its thread is not known: no registration, no memory and no state of a thread is
 * needed, so a section begins in any thread, and nothing remains of it when the thread ends. A section is
 * short and does not sleep. Signal handlers that fork() may not interrupt it. */
#ifndef ZR_READERS_H
#define ZR_READERS_H

#include <stdatomic.h>
#include <stdint.h>

/* Where a section is counted. */
typedef _Atomic uint64_t zr_reading;

/* Before the first section; again is fine. In a child after fork() only the sections of its one thread are
 * counted. */
void zr_readers_prepare(void);
/* Begins a section of the calling thread, which ends it by the pointer returned. Sections may nest. */
zr_reading *zr_read_begin(void);
void zr_read_end(zr_reading *reading);
/* Waits until every section that runs now has ended. The caller has no section, and no lock that a section
 * could want. */
void zr_readers_wait(void);

#endif
