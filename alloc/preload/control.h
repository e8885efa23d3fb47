/* control.h: the only access to jemalloc's control interface (mallctl and its users). Private to
 * alloc/preload/.
 *
 * A control call waits for jemalloc's control lock, arena locks and background thread lock. jemalloc holds
 * these locks while it calls the C library and the program: pthread_create() and pthread_join() for a
 * background thread, and a program's extent hooks. These functions may call malloc and free. Two rules
 * prevent a deadlock:
 *
 * 1. A thread that holds a jemalloc lock makes no control call. jemalloc's mutex calls are redirected to
 *    control.c, which counts the locks that each thread holds; the count needs no list of callers.
 * 2. malloc, free and their relatives never wait for a control call. They skip the call while a thread is
 *    inside the control interface, while a fork is in progress, and after the program has installed hooks in
 *    jemalloc: a hook may wait for the program's locks. Otherwise they wait only for jemalloc locks of
 *    threads that run nothing but jemalloc's code.
 *
 * Only control.c declares zr_je_mallctl() and its relatives; a test checks the undefined symbols of each
 * object file. */
#ifndef ZR_PRELOAD_CONTROL_H
#define ZR_PRELOAD_CONTROL_H

#include <stdbool.h>
#include <stddef.h>

/* jemalloc's own counters. */
struct zr_control_figures {
    size_t live_bytes;     /* allocated and not freed */
    size_t held_bytes;     /* pages in use, or freed and not yet returned */
    size_t resident_bytes; /* held_bytes and jemalloc's own records */
};

/* For malloc and free: never waits for a control call. False: the call was skipped. */
bool zr_control_try_figures(struct zr_control_figures *out);
/* For malloc and free: releases pages that were freed some time ago, unless the call is skipped. */
void zr_control_try_decay(void);

/* For calls of a program, as mallinfo(). False: this thread holds a jemalloc lock. */
bool zr_control_figures(struct zr_control_figures *out);
/* Releases all freed pages. */
void zr_control_purge(void);

/* Called around fork(): before jemalloc's handler of fork, and after its handlers in parent and child. */
void zr_control_before_fork(void);
void zr_control_after_fork(bool child);

#endif
