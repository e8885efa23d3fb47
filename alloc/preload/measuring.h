/* measuring.h: figures of this process's malloc that `zr run` requests: the process's record (usage.h) and a
 * trace of the large blocks. Private to alloc/preload/.
 *
 * Without a request the cost is one branch per large block and none per small object. With a request small
 * objects are sampled every 10 ms while jemalloc works behind its thread caches, and whenever it takes
 * memory. */
#ifndef ZR_MEASURING_H
#define ZR_MEASURING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zr_measuring {
    bool on; /* a record, a trace, or both */
    _Atomic bool sample_due;
};
extern struct zr_measuring zr_measuring;

/* Called at the library's start, with or without arenas. */
void zr_measuring_start(void);
/* The path of a trace that `zr run --trace` requests, with a suffix. False: none is requested, or it is too
 * long.
 */
bool zr_measuring_trace_path(const char *suffix, char *out, size_t capacity_bytes);
/* Opens the trace; called before the first large block by any thread. */
void zr_measuring_first_large(void);
/* Closes trace and record at exit. */
void zr_measuring_end(void);
void zr_measuring_after_fork_in_child(void);

/* Records a failed allocation of a large block. */
void zr_measuring_failed(size_t bytes);
/* Updates the figures. lock: the large arena's */
void zr_measuring_note(size_t live_bytes, size_t held_bytes, size_t large_held_bytes);
/* Records a failed allocation of a small object. */
void zr_measuring_refused(size_t bytes);
/* Called by jemalloc's system calls, under its locks: requests a sample, which the next malloc takes. */
void zr_measuring_tick(bool grown);
void zr_measuring_sample(void);

#endif
