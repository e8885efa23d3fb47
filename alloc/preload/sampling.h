/* sampling.h: samples of small objects in a trace of their own, for `zr run --trace --small`. Private to
 * alloc/preload/.
 *
 * A thread draws points on the line of the bytes that it allocates, on average one in ZR_CONF=small:BYTES. An
 * object with a point is a sample: its allocation, with a call stack, and its free are in the trace. An
 * object of n bytes is a sample with probability 1 - exp(-n / BYTES), independent of all others, so a reader
 * that counts each sample by the reciprocal has an unbiased estimate, and its standard error.
 *
 * While sampling is off nothing of this runs. While it is on, all small objects take malloc.c's slower path:
 * an allocation subtracts from a counter of the thread, and a free reads one byte of a filter. */
#ifndef ZR_SAMPLING_H
#define ZR_SAMPLING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/compiler.h"

enum { ZR_SAMPLING_FILTER_BITS = 16 };

struct zr_sampling {
    bool on;
    /* Live samples by hash of the address; 255: at least so many. */
    _Atomic uint8_t filter[1 << ZR_SAMPLING_FILTER_BITS];
};
extern struct zr_sampling zr_sampling;
extern __thread int64_t zr_sampling_left
    __attribute__((tls_model("initial-exec"))); /* bytes to the next point */

struct zr_arena;
/* Opens the trace at the path, of the objects in the arena's range. Called at the library's start. */
void zr_sampling_start(const struct zr_arena *arena, const char *path);
/* Closes the trace at exit. */
void zr_sampling_end(void);
void zr_sampling_after_fork_in_child(void);

/* Slow paths of the calls below. */
void zr_sampling_take(void *object, size_t bytes);
void zr_sampling_drop(void *object);

static inline uint32_t zr_sampling_hash(const void *object)
{
    return (uint32_t)(((uintptr_t)object >> 4) * UINT64_C(0x9e3779b97f4a7c15) >>
                      (64 - ZR_SAMPLING_FILTER_BITS));
}

/* Call it with each new small object, which no other thread has yet. NULL does nothing. */
static inline void zr_sampling_alloc(void *object, size_t bytes)
{
    if (unlikely(zr_sampling.on) && (zr_sampling_left -= (int64_t)(bytes ? bytes : 1)) < 0)
        zr_sampling_take(object, bytes ? bytes : 1);
}

/* Call it before each free of a small object. */
static inline void zr_sampling_free(void *object)
{
    if (unlikely(zr_sampling.on) &&
        unlikely(atomic_load_explicit(&zr_sampling.filter[zr_sampling_hash(object)], memory_order_relaxed)))
        zr_sampling_drop(object);
}

#endif
