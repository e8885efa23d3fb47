/* malloc.c: the exported malloc functions. Each calls jemalloc for a small object and large.c for a large
 * one. See preload.h.
 *
 * As in glibc, realloc to 0 bytes frees the object, and invalid requests fail. No function changes errno on
 * success. */
#define _GNU_SOURCE
#include "alloc/preload/preload.h"

#include <string.h>
#include <unistd.h>

#define JEMALLOC_NO_RENAME
#include <jemalloc/jemalloc.h>

#include "alloc/preload/large.h"
#include "alloc/preload/measuring.h"
#include "alloc/preload/sampling.h"

static void *fail_no_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

__attribute__((noinline, cold)) void *zr_object_refused(size_t bytes)
{
    if (zr_measuring.on && bytes <= ZR_SMALL_BYTES)
        zr_measuring_refused(bytes);
    return fail_no_memory();
}

/* Handles jemalloc's result: a failure is recorded and sets errno. */
static inline void *check_result(void *object, size_t bytes)
{
    return likely(object) ? object : zr_object_refused(bytes);
}

/* ---- Objects of any kind ------------------------------------------------------------------------------- */

static bool is_large(size_t bytes)
{
    return bytes > ZR_SMALL_BYTES && likely(!zr_preload.passive);
}

static void *alloc_large(size_t bytes, size_t alignment, bool zero)
{
    int error = errno;
    void *block = zr_large_alloc(bytes, alignment, zero);
    errno = error;
    return block ? block : fail_no_memory();
}

__attribute__((noinline)) void *zr_object_alloc(size_t bytes, size_t alignment, bool zero)
{
    if (unlikely(bytes > PTRDIFF_MAX) || unlikely(alignment > PTRDIFF_MAX))
        return fail_no_memory();
    if (unlikely(!zr_preload_ready()) && !zr_preload_start()) {
        void *object = zr_bootstrap_alloc(bytes, alignment);
        return object ? object : fail_no_memory();
    }
    if (unlikely(atomic_load_explicit(&zr_measuring.sample_due, memory_order_relaxed)))
        zr_measuring_sample();
    if (is_large(bytes) || (unlikely(alignment > ZR_PAGE_BYTES) && !zr_preload.passive))
        return alloc_large(bytes, alignment, zero);
    int flags = zero ? MALLOCX_ZERO : 0;
    if (alignment > 16 || bytes <= 8) /* only jemalloc's class of 8 bytes is not aligned to 16 */
        flags |= MALLOCX_LG_ALIGN(__builtin_ctzl(alignment));
    void *object = zr_object_fresh(check_result(zr_je_mallocx(bytes ? bytes : 1, flags), bytes));
    zr_sampling_alloc(object, bytes);
    return object;
}

__attribute__((noinline)) size_t zr_object_bytes(const void *object)
{
    if (!object)
        return 0;
    if (zr_bootstrap_has(object))
        return zr_bootstrap_bytes(object);
    if (zr_is_small(object))
        return zr_je_malloc_usable_size((void *)object);
    if (zr_span_has(zr_preload.large, object))
        return zr_large_bytes(object);
    return zr_next_malloc()->usable_size ? zr_next_malloc()->usable_size((void *)object) : 0;
}

/* The first word of a freed object; a live object has the same word with probability 2^-64. */
static uint64_t freed_word(const void *object)
{
    return (uintptr_t)object ^ UINT64_C(0xf4ee0b1ec7f4ee0d);
}

void *zr_object_fresh(void *object)
{
    if (unlikely(zr_preload.checked) && object)
        memset(object, 0, sizeof(uint64_t));
    return object;
}

static void free_small(void *object)
{
    zr_sampling_free(object);
    if (unlikely(zr_preload.checked)) {
        uint64_t word;
        memcpy(&word, object, sizeof word);
        if (word == freed_word(object))
            zr_preload_abort("free", object, "freed twice");
        word = freed_word(object);
        memcpy(object, &word, sizeof word);
    }
    zr_je_free(object);
}

/* Frees an object of any allocator. */
__attribute__((noinline)) void zr_object_free(void *object)
{
    if (!object || zr_bootstrap_has(object))
        return;
    int error = errno;
    if (zr_is_small(object))
        free_small(object);
    else if (!zr_span_has(zr_preload.large, object)) {
        if (zr_next_malloc()->free && zr_next_malloc()->free != free)
            zr_next_malloc()->free(object);
    } else if (!zr_large_free(object))
        zr_preload_abort("free", object, zr_large_reason(object));
    errno = error;
}

/* Resizes by allocating, copying and freeing, for objects of any kind. */
static void *resize_by_copy(void *object, size_t old_bytes, size_t bytes)
{
    void *moved = zr_object_alloc(bytes, 16, false);
    if (!moved)
        return NULL;
    memcpy(moved, object, old_bytes < bytes ? old_bytes : bytes);
    zr_object_free(object);
    return moved;
}

static void *resize_large(void *object, size_t bytes)
{
    size_t old_bytes = zr_large_bytes(object);
    if (old_bytes == 0)
        zr_preload_abort("realloc", object, zr_large_reason(object));
    if (bytes <= ZR_SMALL_BYTES)
        return resize_by_copy(object, old_bytes, bytes);
    int error = errno;
    void *moved = zr_large_resize(object, bytes);
    errno = error;
    return moved ? moved : fail_no_memory();
}

__attribute__((noinline)) void *zr_object_resize(void *object, size_t bytes)
{
    if (!object)
        return zr_object_alloc(bytes, 16, false);
    if (bytes > PTRDIFF_MAX)
        return fail_no_memory();
    if (bytes == 0) {
        zr_object_free(object);
        return NULL;
    }
    if (zr_bootstrap_has(object))
        return bytes <= zr_bootstrap_bytes(object)
                   ? object
                   : resize_by_copy(object, zr_bootstrap_bytes(object), bytes);
    if (zr_span_has(zr_preload.large, object))
        return resize_large(object, bytes);
    if (!zr_is_small(object))
        return zr_next_malloc()->realloc ? zr_next_malloc()->realloc(object, bytes) : fail_no_memory();
    if (is_large(bytes) || zr_preload.checked)
        return resize_by_copy(object, zr_je_malloc_usable_size(object), bytes);
    zr_sampling_free(object);
    void *moved = check_result(zr_je_realloc(object, bytes), bytes);
    zr_sampling_alloc(moved, bytes);
    return moved;
}

/* ---- The C family -------------------------------------------------------------------------------------- */

ZR_EXPORT void *malloc(size_t bytes)
{
    if (likely(bytes < zr_small_end()))
        return zr_je_malloc(bytes);
    return zr_object_alloc(bytes, 16, false);
}

ZR_EXPORT void free(void *object)
{
    if (likely(zr_span_has(zr_preload.fast, object)))
        zr_je_free(object);
    else
        zr_object_free(object);
}

ZR_EXPORT void *calloc(size_t count, size_t bytes)
{
    size_t all;
    if (unlikely(__builtin_mul_overflow(count, bytes, &all)))
        return fail_no_memory();
    if (likely(all < zr_small_end()))
        return zr_je_calloc(1, all);
    return zr_object_alloc(all, 16, true);
}

ZR_EXPORT void *realloc(void *object, size_t bytes)
{
    if (likely(bytes - 1 < ZR_SMALL_BYTES) && likely(zr_span_has(zr_preload.fast, object)))
        return check_result(zr_je_realloc(object, bytes), bytes);
    return zr_object_resize(object, bytes);
}

ZR_EXPORT void *reallocarray(void *object, size_t count, size_t bytes)
{
    size_t all;
    return __builtin_mul_overflow(count, bytes, &all) ? fail_no_memory() : realloc(object, all);
}

/* glibc's memalign rounds any alignment up to a power of two. */
static size_t power_of_two(size_t alignment)
{
    if (alignment <= 16)
        return 16;
    return alignment > (size_t)1 << 62 ? SIZE_MAX : (size_t)1 << (64 - __builtin_clzl(alignment - 1));
}

ZR_EXPORT void *memalign(size_t alignment, size_t bytes)
{
    return zr_object_alloc(bytes, power_of_two(alignment), false);
}

ZR_EXPORT void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

ZR_EXPORT int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    int error = errno;
    if (alignment % sizeof(void *) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0)
        return EINVAL;
    void *object = memalign(alignment, bytes);
    errno = error;
    if (!object)
        return ENOMEM;
    *out = object;
    return 0;
}

ZR_EXPORT void *valloc(size_t bytes)
{
    return memalign(ZR_PAGE_BYTES, bytes);
}

ZR_EXPORT void *pvalloc(size_t bytes)
{
    size_t whole;
    if (__builtin_add_overflow(bytes, ZR_PAGE_BYTES - 1, &whole))
        return fail_no_memory();
    whole &= ~(ZR_PAGE_BYTES - 1);
    return memalign(ZR_PAGE_BYTES, whole ? whole : ZR_PAGE_BYTES);
}

ZR_EXPORT size_t malloc_usable_size(void *object)
{
    return zr_object_bytes(object);
}

/* ---- glibc's other names for these functions ----------------------------------------------------------- */

#define ALIAS(name, of)                                                                                      \
    extern __typeof__(of) name __attribute__((alias(#of), copy(of), visibility("default")))

/* C23's sized frees: size and alignment are ignored. */
ALIAS(free_sized, free);
ALIAS(free_aligned_sized, free);
ALIAS(cfree, free);
ALIAS(__libc_malloc, malloc);
ALIAS(__libc_free, free);
ALIAS(__libc_cfree, free);
ALIAS(__libc_calloc, calloc);
ALIAS(__libc_realloc, realloc);
ALIAS(__libc_reallocarray, reallocarray);
ALIAS(__libc_memalign, memalign);
ALIAS(__libc_valloc, valloc);
ALIAS(__libc_pvalloc, pvalloc);
ALIAS(__posix_memalign, posix_memalign);
