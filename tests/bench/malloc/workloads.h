/* workloads.h: what the workloads of malloc_workloads share. Each does a fixed amount of work through plain
 * malloc, that of whatever is preloaded, and ends with a checksum of what it read back, which no allocator
 * and no schedule changes.
 *
 * A block carries its size and a stamp in its first word; its further words (of a large block, a word of each
 * page) and its last byte follow from the stamp. Reading a block compares the last byte, and with
 * workloads_strict all of it. */
#ifndef ZR_BENCH_MALLOC_WORKLOADS_H
#define ZR_BENCH_MALLOC_WORKLOADS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/support/random.h"

struct run {
    unsigned threads; /* at least 1 */
    double scale;     /* of the amount of work; 1: about a second */
};

struct tally {
    uint64_t operations; /* blocks taken or resized */
    uint64_t checksum;
    double seconds;        /* not 0: of what alone was timed */
    uint64_t live_bytes;   /* server: what is left by the frees */
    uint64_t rss_bytes[3]; /* server: before the frees, 1 s and 30 s after them */
};

struct workload {
    const char *name;
    struct tally (*run)(const struct run *run);
    unsigned threads;  /* where the command line does not say */
    uint64_t checksum; /* of `check`: those threads, a tenth of the work */
    bool part;         /* a measurement of its own, in no list */
};

extern bool workloads_strict; /* set before any thread starts */

struct tally workload_larson(const struct run *run), workload_xmalloc(const struct run *run),
    workload_mstress(const struct run *run), workload_rptest(const struct run *run),
    workload_cache_scratch(const struct run *run), workload_cache_thrash(const struct run *run),
    workload_glibc_simple(const struct run *run), workload_glibc_thread(const struct run *run),
    workload_alloc_test(const struct run *run), workload_sh6(const struct run *run),
    workload_sh8(const struct run *run), workload_malloc_large(const struct run *run),
    workload_espresso(const struct run *run), workload_barnes(const struct run *run),
    workload_cfrac(const struct run *run), workload_lean(const struct run *run),
    workload_redis(const struct run *run), workload_strings(const struct run *run),
    workload_json(const struct run *run), workload_grow(const struct run *run),
    workload_server_large(const struct run *run), workload_server_small(const struct run *run);

/* Ends the process with these words. */
_Noreturn void die(const char *words);

/* Never NULL; the process ends instead. */
void *take(size_t bytes);
void *take_zeroed(size_t count, size_t bytes);
void *resize(void *block, size_t bytes);

/* steps * run->scale, at least 1. */
uint64_t scaled(const struct run *run, uint64_t steps);

double seconds_now(void);

/* A thread of a workload, with an even share of its steps. */
struct worker {
    unsigned index, threads;
    uint64_t steps, random;
    struct tally tally;
    void *shared;
};

/* Runs `body` on run->threads threads, each with a worker, to their ends; returns their tallies' sums. */
struct tally workers_run(const struct run *run, uint64_t steps, void *(*body)(void *), void *shared);
void thread_start(pthread_t *thread, void *(*body)(void *), void *argument);

/* A block of at least 8 and less than 2^32 bytes, written as above. block_read() compares it and returns its
 * part of a checksum; block_drop() frees it, too; NULL reads as 0. block_resize() adds to `checksum` what it
 * read, and writes the block anew once what realloc kept has been compared. */
uint64_t *block_new(size_t bytes, uint32_t stamp);
uint64_t *block_resize(uint64_t *block, size_t bytes, uint32_t stamp, uint64_t *checksum);
uint64_t block_read(const uint64_t *block);
uint64_t block_drop(uint64_t *block);

static inline size_t block_bytes(const uint64_t *block)
{
    return (uint32_t)block[0];
}

/* Each of 0 to bound - 1 as often as the others; bound below 2^32. */
static inline uint32_t below(uint64_t *random, uint32_t bound)
{
    return (uint32_t)((xorshift64(random) >> 32) * bound >> 32);
}

/* From `least`, a power of two, to 2^doublings * least: half as many of twice the size. */
static inline size_t power_law(uint64_t *random, size_t least, unsigned doublings)
{
    uint64_t drawn = xorshift64(random);
    size_t base = least << __builtin_ctzll(drawn | UINT64_C(1) << doublings);
    return base + ((drawn >> 32) & (base - 1));
}

static inline uint64_t mixed(uint64_t value)
{
    return splitmix64(&value);
}

#endif
