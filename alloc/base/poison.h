/* poison.h: tells ASan and Valgrind which of an arena's mapped bytes are free. Private to alloc/.
 *
 * Free mapped space is poisoned, blocks are not, and what is about to be unmapped is not either: those
 * addresses may serve something else next. Only for memory that the processor sees. Without either tool all
 * of it compiles to nothing, or to a test of one flag. */
#ifndef ZR_POISON_H
#define ZR_POISON_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if !defined(__SANITIZE_ADDRESS__) && __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#define ZR_POISON_VALGRIND 1
#endif

/* Whether a tool listens. */
static inline bool zr_poison_wanted(void)
{
#if defined(__SANITIZE_ADDRESS__)
    return true;
#elif defined(ZR_POISON_VALGRIND)
    return RUNNING_ON_VALGRIND != 0;
#else
    return false;
#endif
}

/* No access until the next zr_poison_block() or zr_poison_clear(). */
static inline void zr_poison_free(const void *address, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(address, bytes);
#elif defined(ZR_POISON_VALGRIND)
    (void)VALGRIND_MAKE_MEM_NOACCESS(address, bytes);
#else
    (void)address, (void)bytes;
#endif
}

/* A block: its bytes may be written; reading them before that is a mistake that Valgrind reports. The
 * rounding past `requested` stays poisoned. */
static inline void zr_poison_block(const void *address, size_t requested, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(address, requested);
    (void)bytes;
#elif defined(ZR_POISON_VALGRIND)
    (void)VALGRIND_MAKE_MEM_UNDEFINED(address, requested);
    (void)bytes;
#else
    (void)address, (void)requested, (void)bytes;
#endif
}

/* Ordinary memory again. */
static inline void zr_poison_clear(const void *address, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(address, bytes);
#elif defined(ZR_POISON_VALGRIND)
    (void)VALGRIND_MAKE_MEM_DEFINED(address, bytes);
#else
    (void)address, (void)bytes;
#endif
}

#endif
