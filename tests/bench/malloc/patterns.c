/* patterns.c: blocks of drawn sizes and orders that belong to no program: what allocators' own benchmarks do.
 */
#include "tests/bench/malloc/workloads.h"

/* ---- cache-scratch and cache-thrash: whether small blocks of two threads come to lie on one line of the
 * cache ---- */

#define CACHE_BYTES  8
#define CACHE_WRITES 100

static void cache_work(struct worker *worker)
{
    for (uint64_t i = 0; i < worker->steps; i++) {
        volatile unsigned char *block = take(CACHE_BYTES);
        for (unsigned j = 0; j < CACHE_BYTES; j++) {
            block[j] = (unsigned char)(i + j);
        }
        for (unsigned j = 0; j < CACHE_WRITES; j++) {
            block[j % CACHE_BYTES]++;
        }
        worker->tally.checksum += (uint64_t)block[0] + block[CACHE_BYTES - 1];
        free((void *)block);
    }
    worker->tally.operations = worker->steps;
}

static void *cache_scratch_thread(void *argument)
{
    struct worker *worker = argument;
    uint64_t **given = worker->shared;
    worker->tally.checksum += block_drop(given[worker->index]);
    cache_work(worker);
    return NULL;
}

static void *cache_thrash_thread(void *argument)
{
    cache_work(argument);
    return NULL;
}

/* Each thread first frees a block that the first one took beside the others'. */
struct tally workload_cache_scratch(const struct run *run)
{
    uint64_t **given = take(run->threads * sizeof *given);
    for (unsigned i = 0; i < run->threads; i++) {
        given[i] = block_new(CACHE_BYTES, i);
    }
    struct tally sum = workers_run(run, 8000000, cache_scratch_thread, given);
    free(given);
    return sum;
}

struct tally workload_cache_thrash(const struct run *run)
{
    return workers_run(run, 16000000, cache_thrash_thread, NULL);
}

/* ---- glibc-simple: so many blocks of one size, freed in the order taken or in the other ---- */

struct tally workload_glibc_simple(const struct run *run)
{
    enum { MOST = 1600 };
    static const unsigned counts[] = {25, 100, 400, MOST}, sizes[] = {16, 32, 64, 128, 512, 2048};
    uint64_t *blocks[MOST], rounds = scaled(run, 500);
    struct tally tally = {0};
    for (uint64_t round = 0; round < rounds; round++) {
        for (unsigned which = 0; which < 4 * 6; which++) {
            unsigned count = counts[which % 4], bytes = sizes[which / 4];
            for (unsigned i = 0; i < count; i++) {
                blocks[i] = block_new(bytes, (uint32_t)round + i);
            }
            for (unsigned i = 0; i < count; i++) {
                tally.checksum += block_drop(blocks[round % 2 ? i : count - 1 - i]);
            }
            tally.operations += count;
        }
    }
    return tally;
}

/* ---- glibc-thread: threads that have nothing to do with each other, each with a thousand slots ---- */

static void *glibc_thread_body(void *argument)
{
    enum { SLOTS = 1024 };
    struct worker *worker = argument;
    uint64_t *slots[SLOTS] = {0};
    for (uint64_t i = 0; i < worker->steps; i++) {
        uint64_t **slot = &slots[below(&worker->random, SLOTS)];
        worker->tally.checksum += block_drop(*slot);
        *slot = block_new(power_law(&worker->random, 16, 9), (uint32_t)i);
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        worker->tally.checksum += block_drop(slots[i]);
    }
    worker->tally.operations = worker->steps;
    return NULL;
}

struct tally workload_glibc_thread(const struct run *run)
{
    return workers_run(run, 40000000, glibc_thread_body, NULL);
}

/* ---- alloc-test: a slot at random is filled, or emptied, in a table larger than the caches ---- */

static void *alloc_test_thread(void *argument)
{
    enum { SLOTS = 1 << 18 };
    struct worker *worker = argument;
    uint64_t **slots = take_zeroed(SLOTS, sizeof *slots);
    for (uint64_t i = 0; i < worker->steps; i++) {
        uint64_t **slot = &slots[below(&worker->random, SLOTS)];
        if (*slot) {
            worker->tally.checksum += block_drop(*slot);
            *slot = NULL;
            continue;
        }
        *slot = block_new(power_law(&worker->random, 16, 10), (uint32_t)i);
        worker->tally.operations++;
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        worker->tally.checksum += block_drop(slots[i]);
    }
    free(slots);
    return NULL;
}

struct tally workload_alloc_test(const struct run *run)
{
    return workers_run(run, 12000000, alloc_test_thread, NULL);
}

/* ---- sh6 and sh8: runs of sizes in turn; some blocks go at once, some when the next size has come, others
 * last ---- */

enum { SH_RUN = 500, SH_LONG = 20000 };

static void sh_run(struct worker *worker, uint64_t **longest, size_t bytes)
{
    uint64_t *blocks[SH_RUN];
    for (uint32_t i = 0; i < SH_RUN; i++) {
        blocks[i] = block_new(bytes + i % 4 * 8, i);
    }
    for (unsigned i = 1; i < SH_RUN; i += 2) {
        worker->tally.checksum += block_drop(blocks[i]);
    }
    for (unsigned i = SH_RUN; i; i--) {
        if (i % 2 && (i - 1) % 10) {
            worker->tally.checksum += block_drop(blocks[i - 1]);
        }
    }
    for (unsigned i = 0; i < SH_RUN; i += 10) {
        uint64_t **slot = &longest[below(&worker->random, SH_LONG)];
        worker->tally.checksum += block_drop(*slot);
        *slot = blocks[i];
    }
    worker->tally.operations += SH_RUN;
}

static void sh_resize(struct worker *worker, uint64_t **longest)
{
    for (unsigned i = 0; i < 50; i++) {
        uint64_t **slot = &longest[below(&worker->random, SH_LONG)];
        if (*slot) {
            uint32_t bytes = 8 + below(&worker->random, (uint32_t)(2 * block_bytes(*slot)));
            *slot = block_resize(*slot, bytes > 8000 ? 64 : bytes, i, &worker->tally.checksum);
            worker->tally.operations++;
        }
    }
}

static void *sh_thread(void *argument)
{
    struct worker *worker = argument;
    bool resizes = worker->shared;
    uint64_t **longest = take_zeroed(SH_LONG, sizeof *longest);
    for (uint64_t i = 0; i < worker->steps; i++) {
        sh_run(worker, longest, 8 + 8 * (i % 128));
        if (resizes) {
            sh_resize(worker, longest);
        }
    }
    for (unsigned i = 0; i < SH_LONG; i++) {
        worker->tally.checksum += block_drop(longest[i]);
    }
    free(longest);
    return NULL;
}

struct tally workload_sh6(const struct run *run)
{
    return workers_run(run, 20000, sh_thread, NULL);
}

struct tally workload_sh8(const struct run *run)
{
    static char resizes;
    return workers_run(run, 40000, sh_thread, &resizes);
}

/* ---- malloc-large: a few blocks of 5 to 25 MiB ---- */

struct tally workload_malloc_large(const struct run *run)
{
    enum { SLOTS = 16, MIB = 1 << 20 };
    uint64_t *slots[SLOTS] = {0}, random = 7, steps = scaled(run, 300);
    struct tally tally = {.operations = steps};
    for (uint64_t i = 0; i < steps; i++) {
        uint64_t **slot = &slots[below(&random, SLOTS)];
        tally.checksum += block_drop(*slot);
        *slot = block_new(5 * MIB + below(&random, 20 * MIB), (uint32_t)i);
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        tally.checksum += block_drop(slots[i]);
    }
    return tally;
}
