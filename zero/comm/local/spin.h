/* spin.h: a short spin before a sleep, for words that usually change within microseconds. */
#ifndef ZR_SPIN_H
#define ZR_SPIN_H

#include <stdatomic.h>

#include "alloc/base/system/os.h"

/* Yields to the other thread of the core and saves power. */
static inline void zr_spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Spins while *word == seen, for about `limit_ns`. True: the word has changed, and writes before the
 * change are visible. The number of rounds is bounded in case a test has stopped the clock. */
static inline bool zr_spin_while(const _Atomic uint32_t *word, uint32_t seen, uint64_t limit_ns)
{
    uint64_t start_ns = zr_os_now_ns();
    for (uint64_t round = 0; round <= limit_ns / 64; round++) {
        for (unsigned i = 0; i < 16; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen)
                return true;
            zr_spin_pause();
        }
        if (zr_os_now_ns() - start_ns >= limit_ns)
            break;
    }
    return false;
}

#endif
