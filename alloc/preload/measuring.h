/* measuring.h: what is written down of this process's malloc, where `zr run` asks for it: figures in the
 * process's record (usage.h) and a trace of the large blocks. Private to alloc/preload/.
 *
 * Nothing is asked for: one branch for each large block, none for small ones. Else small objects are sampled:
 * every 10 ms while jemalloc is at work behind its thread caches, and whenever it takes more memory. */
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

/* In the library's start, with or without arenas. */
void zr_measuring_start(void);
/* Before the first large block, by any thread: opens the trace. */
void zr_measuring_first_large(void);
/* At exit. */
void zr_measuring_end(void);
void zr_measuring_after_fork_in_child(void);

/* While it is on. A block's own event comes before anybody else can have its address; `block` is NULL where
 * none was to be had. */
void zr_measuring_alloc(const void *block, size_t bytes, size_t reserved_bytes);
void zr_measuring_free(const void *block);
/* lock: that of large.c */
void zr_measuring_note(size_t live_bytes, size_t held_bytes, size_t large_held_bytes);
/* A small object that was not to be had. */
void zr_measuring_refused(size_t bytes);
/* jemalloc, in the middle of something, is at work. The next malloc takes the sample. */
void zr_measuring_tick(bool grown);
void zr_measuring_sample(void);

#endif
