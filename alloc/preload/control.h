/* control.h: the only door to jemalloc's control interface (mallctl and what uses it). Private to
 * alloc/preload/.
 *
 * A control call waits for jemalloc's control lock, its arenas' locks and that of its background threads.
 * jemalloc holds these while it calls the C library and functions of the program: pthread_create() and
 * pthread_join() for a background thread, a program's extent hooks. Those may call malloc and free. So two
 * rules keep every wait from depending on the thread that waits:
 *
 * 1. A thread that holds any of jemalloc's locks makes no control call. jemalloc's mutex calls are redirected
 *    to control.c, which counts for each thread the locks that it holds; the count decides, and no list of
 *    callers has to be kept up to date.
 * 2. malloc, free and their relatives never wait for a control call. They make one only while no thread is
 *    inside the control interface and no fork is in progress, and not once the program has given jemalloc
 *    functions of its own, which may wait for locks of the program's. What they wait for then are jemalloc's
 *    locks in threads that run jemalloc's code alone. Otherwise they do without.
 *
 * zr_je_mallctl() and its relatives are declared in control.c only, and a test compares the undefined symbols
 * of each object with that. */
#ifndef ZR_PRELOAD_CONTROL_H
#define ZR_PRELOAD_CONTROL_H

#include <stdbool.h>
#include <stddef.h>

/* jemalloc's own counters. */
struct zr_control_figures {
    size_t live_bytes;     /* allocated and not freed */
    size_t held_bytes;     /* pages in use, or freed and not yet returned */
    size_t resident_bytes; /* the same and jemalloc's own records */
};

/* For malloc and free: never waits for a control call. False: not now. */
bool zr_control_try_figures(struct zr_control_figures *out);
/* For malloc and free: returns pages that were freed some time ago, or does nothing. */
void zr_control_try_decay(void);

/* For functions by which a program asks, as mallinfo(). False: this thread holds a lock of jemalloc's. */
bool zr_control_figures(struct zr_control_figures *out);
/* Returns all freed pages. */
void zr_control_purge(void);

/* Around jemalloc's own handlers of fork: first before, last after. */
void zr_control_before_fork(void);
void zr_control_after_fork(bool child);

#endif
