/* fuzz_heap.h: alloc/heap/heap.h on the system's malloc, for the fuzzers: a sanitizer then sees the ends of
 * every object, and each run tells what it took at most and what it left. Linked in the place of heap.c. One
 * thread. */
#ifndef ZR_FUZZ_HEAP_H
#define ZR_FUZZ_HEAP_H

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"

/* What no file of the fuzzers' sizes may ask for. */
#define FUZZ_HEAP_MAX ((size_t)1 << 30)

static size_t fuzz_heap_live_bytes, fuzz_heap_peak_bytes;
static bool fuzz_heap_refused; /* somebody asked for more than all files together could need */

static inline void *fuzz_heap_count(void *object)
{
    fuzz_heap_live_bytes += malloc_usable_size(object);
    if (fuzz_heap_live_bytes > fuzz_heap_peak_bytes)
        fuzz_heap_peak_bytes = fuzz_heap_live_bytes;
    return object;
}

static inline bool fuzz_heap_refuses(size_t bytes)
{
    fuzz_heap_refused |= bytes > FUZZ_HEAP_MAX;
    if (bytes > FUZZ_HEAP_MAX)
        zr_fail(ZR_ERR_HOST_MEMORY, "%zu bytes at once", bytes);
    return bytes > FUZZ_HEAP_MAX;
}

zr_result zr_heap_start(zr_arena *arena)
{
    (void)arena;
    return ZR_OK;
}

zr_result zr_heap_stop(size_t *leaked_bytes)
{
    if (leaked_bytes)
        *leaked_bytes = fuzz_heap_live_bytes;
    return ZR_OK;
}

void *zr_heap_alloc(size_t bytes)
{
    return fuzz_heap_refuses(bytes) ? NULL : fuzz_heap_count(malloc(bytes ? bytes : 1));
}

void *zr_heap_zalloc(size_t count, size_t bytes)
{
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all) || fuzz_heap_refuses(all))
        return NULL;
    return fuzz_heap_count(calloc(1, all ? all : 1));
}

void zr_heap_free(void *object)
{
    fuzz_heap_live_bytes -= malloc_usable_size(object);
    free(object);
}

#endif
