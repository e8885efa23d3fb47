/* preload.h: libzr_malloc.so inside: the ranges of addresses by which a pointer's owner is known, and the
 * life of the library. Private to alloc/preload/.
 *
 * Objects of up to ZR_SMALL_BYTES are jemalloc's, whose memory comes from one range; larger ones are blocks
 * of the large arena, from another (large.h). What was handed out while the library started lies in the
 * bootstrap buffer. Any other pointer is another allocator's and goes there. Where no range can be reserved
 * (ulimit -v) every pointer is jemalloc's and there is no arena. */
#ifndef ZR_PRELOAD_H
#define ZR_PRELOAD_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* jemalloc's thread caches end here; above, a block has pages of its own. */
#define ZR_SMALL_BYTES ((size_t)32 << 10)
#define ZR_PAGE_BYTES  ((size_t)4096)

struct zr_span {
    uintptr_t first;
    size_t bytes;
};

/* Written by the start, read by every call. */
struct zr_preload {
    _Atomic size_t small_end; /* sizes below are jemalloc's; 0: look closer */
    _Atomic bool ready;
    bool alone; /* there are no ranges and no arenas: every pointer is jemalloc's */
    struct zr_span small, large;
    struct zr_span
        fast;     /* of `small`, what free() may take for jemalloc's without a further look: all or none */
    bool checked; /* ZR_CONF=check:3: a small object that is freed twice is noticed, at some cost */
    /* The program has given jemalloc functions of its own, as extent hooks: what lies in no range is
     * jemalloc's, as it is for a program that has jemalloc for its malloc. */
    _Atomic bool hooked;
    bool counted; /* small objects are refused under a limit, and `zr run --stats` wants to know */
    zr_arena *small_arena, *large_arena;
};
extern struct zr_preload zr_preload;

static inline bool zr_span_has(struct zr_span span, const void *pointer)
{
    return (uintptr_t)pointer - span.first < span.bytes;
}

/* The bootstrap buffer: objects are never reused. NULL: it is full. */
void *zr_bootstrap_alloc(size_t bytes, size_t alignment);
bool zr_bootstrap_has(const void *pointer);
size_t zr_bootstrap_bytes(const void *pointer);

static inline bool zr_is_small(const void *pointer)
{
    return zr_span_has(zr_preload.small, pointer) || zr_preload.alone ||
           (unlikely(atomic_load_explicit(&zr_preload.hooked, memory_order_relaxed)) &&
            !zr_span_has(zr_preload.large, pointer) && !zr_bootstrap_has(pointer));
}

static inline bool zr_preload_ready(void)
{
    return likely(atomic_load_explicit(&zr_preload.ready, memory_order_acquire));
}

/* What malloc() may take for jemalloc's without a further look. */
static inline void zr_small_open(void)
{
    atomic_store_explicit(&zr_preload.small_end,
                          zr_preload.checked || zr_preload.counted ? 0 : ZR_SMALL_BYTES + 1,
                          memory_order_release);
}

static inline size_t zr_small_end(void)
{
    return atomic_load_explicit(&zr_preload.small_end, memory_order_acquire);
}

/* Starts the library once. Waits for the thread that is at it; false in that thread itself, which is to use
 * the bootstrap buffer. Keeps errno. */
bool zr_preload_start(void);

/* The last error's words on standard error: the flight recorder has written a file, and malloc has no words.
 */
void zr_preload_report(void);

/* The next allocator in symbol order, for pointers that it allocated; looked up at the first use. */
struct zr_next_malloc {
    void (*free)(void *);
    void *(*realloc)(void *, size_t);
    size_t (*usable_size)(void *);
};
const struct zr_next_malloc *zr_next_malloc(void);

/* One line on standard error, then the end of the process, as glibc ends it: a pointer was freed twice or was
 * never allocated. */
void zr_preload_abort(const char *call, const void *pointer, const char *words) __attribute__((noreturn));

/* Objects of any kind: what malloc.c's exported names are made of. Fail with NULL and errno. */
void *zr_object_alloc(size_t bytes, size_t alignment, bool zero);
void *zr_object_resize(void *object, size_t bytes);
void zr_object_free(void *object);
size_t zr_object_bytes(const void *object);
/* A small object was not to be had: notes it. NULL, and errno. */
void *zr_object_refused(size_t bytes);
/* Where small objects are checked: one of jemalloc's that is the caller's from now on. */
void *zr_object_fresh(void *object);

/* jemalloc under its prefix; its control interface is control.c's. */
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
