/* heap.h: the host heap, for variable-sized host objects of zr-train and of the preloaded malloc.
 *
 * The heap is jemalloc under a prefix, with its extents in a host arena (tag other). It is linked into
 * executables and libzr_malloc.so, never into libzr.so, and does not replace the application's malloc. One
 * heap per process. After fork() parent and child share the arena's memory, so only one of them may use the
 * heap. */
#ifndef ZR_HEAP_H
#define ZR_HEAP_H

#include "alloc/zr.h"

/* Starts the heap on `arena` (host backend; borrowed, must outlive the heap), before the first object. A
 * process that forks workers starts the heap in each worker. ZR_ERR_INVALID: already started. */
zr_result zr_heap_start(zr_arena *arena);
/* Releases every extent, including live objects. *leaked_bytes (may be NULL): bytes of live objects. */
zr_result zr_heap_stop(size_t *leaked_bytes);

/* As malloc, calloc and free. NULL: failed; zr_last_error() has the message. zr_heap_free(NULL) does
 * nothing. Thread-safe. */
void *zr_heap_alloc(size_t bytes) __attribute__((malloc, alloc_size(1)));
void *zr_heap_zalloc(size_t count, size_t bytes) __attribute__((malloc, alloc_size(1, 2)));
void zr_heap_free(void *object);

#endif
