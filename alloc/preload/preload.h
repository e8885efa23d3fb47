/* preload.h: internals of libzr_malloc.so: the address ranges that tell a pointer's owner, and the start of
 * the library. Private to alloc/preload/.
 *
 * jemalloc serves objects of up to ZR_SMALL_BYTES from one range; larger objects are blocks of the large
 * arena in another range (large.h). Objects allocated while the library started are in the bootstrap buffer.
 * Any other pointer belongs to another allocator, which gets the call. If no range can be reserved (ulimit
 * -v), there is no arena and jemalloc serves every object. */
#ifndef ZR_PRELOAD_H
#define ZR_PRELOAD_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* jemalloc's thread caches serve objects up to this size; a larger block has its own pages. */
#define ZR_SMALL_BYTES ((size_t)32 << 10)
#define ZR_PAGE_BYTES  ((size_t)4096)

struct zr_span {
    uintptr_t first;
    size_t bytes;
};

/* Written at the start, read by every call. */
struct zr_preload {
    _Atomic size_t
        small_end; /* malloc() passes smaller sizes to jemalloc at once; 0: zr_object_alloc() decides */
    _Atomic bool ready;
    bool passive; /* there are no ranges and no arenas, so every pointer is jemalloc's */
    struct zr_span small, large;
    struct zr_span fast; /* range that free() passes to jemalloc without further checks: `small` or empty */
    bool checked;        /* ZR_CONF=check:3: detects small objects that are freed twice, at some cost */
    /* The program may have installed hooks in jemalloc: pointers outside all ranges may come from its extent
     * hooks, so jemalloc owns them. */
    _Atomic bool hooked;
    bool sampled; /* sampling.h: small objects take the path that checks */
    bool counted; /* a limit is set, and `zr run --stats` counts refused small objects */
    zr_arena *small_arena, *large_arena;
};
extern struct zr_preload zr_preload;

static inline bool zr_span_has(struct zr_span span, const void *pointer)
{
    return (uintptr_t)pointer - span.first < span.bytes;
}

/* Allocates from the bootstrap buffer, whose objects are never reused. NULL: the buffer is full. */
void *zr_bootstrap_alloc(size_t bytes, size_t alignment);
bool zr_bootstrap_has(const void *pointer);
size_t zr_bootstrap_bytes(const void *pointer);

static inline bool zr_is_small(const void *pointer)
{
    return zr_span_has(zr_preload.small, pointer) || zr_preload.passive ||
           (unlikely(atomic_load_explicit(&zr_preload.hooked, memory_order_relaxed)) &&
            !zr_span_has(zr_preload.large, pointer) && !zr_bootstrap_has(pointer));
}

static inline bool zr_preload_ready(void)
{
    return likely(atomic_load_explicit(&zr_preload.ready, memory_order_acquire));
}

/* Sets small_end: sizes that malloc() passes to jemalloc without further checks. */
static inline void zr_small_open(void)
{
    atomic_store_explicit(&zr_preload.small_end,
                          zr_preload.checked || zr_preload.sampled || zr_preload.counted ? 0
                                                                                         : ZR_SMALL_BYTES + 1,
                          memory_order_release);
}

static inline size_t zr_small_end(void)
{
    return atomic_load_explicit(&zr_preload.small_end, memory_order_acquire);
}

/* Starts the library once, or waits for the thread that starts it. False in the starting thread itself, which
 * must use the bootstrap buffer. Keeps errno. */
bool zr_preload_start(void);

/* Prints the last error on standard error: the flight recorder has written a file, and malloc's result has no
 * message. */
void zr_preload_report(void);

/* The next allocator in symbol order, for pointers that it allocated; found at the first use. */
struct zr_next_malloc {
    void (*free)(void *);
    void *(*realloc)(void *, size_t);
    size_t (*usable_size)(void *);
};
const struct zr_next_malloc *zr_next_malloc(void);

/* Prints a line on standard error and aborts the process, as glibc does: a pointer was freed twice or was
 * never allocated. */
void zr_preload_abort(const char *call, const void *pointer, const char *reason) __attribute__((noreturn));

/* Functions for objects of any kind, which the exported functions of malloc.c call. Failure: NULL and errno.
 */
void *zr_object_alloc(size_t bytes, size_t alignment, bool zero);
void *zr_object_resize(void *object, size_t bytes);
void zr_object_free(void *object);
size_t zr_object_bytes(const void *object);
/* Records a failed allocation of a small object. Returns NULL and sets errno. */
void *zr_object_refused(size_t bytes);
/* Clears the mark of a free in an object that jemalloc allocated, if small objects are checked. */
void *zr_object_fresh(void *object);

/* jemalloc's functions under the prefix; control.c has the control interface. */
void *zr_je_malloc(size_t bytes);
void *zr_je_calloc(size_t count, size_t bytes);
void *zr_je_realloc(void *object, size_t bytes);
void zr_je_free(void *object);
void *zr_je_mallocx(size_t bytes, int flags);
void *zr_je_rallocx(void *object, size_t bytes, int flags);
size_t zr_je_xallocx(void *object, size_t bytes, size_t extra, int flags);
size_t zr_je_sallocx(const void *object, int flags);
void zr_je_dallocx(void *object, int flags);
void zr_je_sdallocx(void *object, size_t bytes, int flags);
size_t zr_je_nallocx(size_t bytes, int flags);
size_t zr_je_malloc_usable_size(void *object);

#endif
