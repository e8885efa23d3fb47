/* heap.h: the host heap, for variable-sized host objects of zr-train and of the preloaded malloc.
 *
 * jemalloc under a prefix of its own, with its extents in a host arena (tag other). Linked into executables
 * and libzr_malloc.so only, never into libzr.so. The application's malloc stays its own. One heap per
 * process. After fork() its objects lie in the arena's memory, which both processes have: only one of them
 * may use the heap. */
#ifndef ZR_HEAP_H
#define ZR_HEAP_H

#include "alloc/zr.h"

/* Starts the heap on `arena` (host backend; borrowed, must outlive the heap). After the fork, before the
 * first object. ZR_ERR_INVALID: already started. */
zr_result zr_heap_start(zr_arena *arena);
/* Releases every extent, live objects included; *leaked_bytes (may be NULL) is what was still allocated. */
zr_result zr_heap_stop(size_t *leaked_bytes);

/* As malloc, calloc, realloc and free, but a failure is NULL with words in zr_last_error().
 * zr_heap_free(NULL) does nothing. Thread-safe. */
void *zr_heap_alloc(size_t bytes) __attribute__((malloc, alloc_size(1)));
void *zr_heap_zalloc(size_t count, size_t bytes) __attribute__((malloc, alloc_size(1, 2)));
void *zr_heap_realloc(void *old, size_t bytes) __attribute__((alloc_size(2)));
void zr_heap_free(void *object);

#endif
