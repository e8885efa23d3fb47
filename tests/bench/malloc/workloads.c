/* workloads.c: blocks, threads and clocks of the workloads. */
#include "tests/bench/malloc/workloads.h"

#include <stdio.h>
#include <time.h>

#define SMALL_BYTES 1024 /* up to here all of a block is written */
#define PAGE_WORDS  512

bool workloads_strict;

_Noreturn void die(const char *words)
{
    fprintf(stderr, "malloc_workloads: %s\n", words);
    exit(1);
}

void *take(size_t bytes)
{
    void *block = malloc(bytes);
    if (!block) {
        die("malloc gives nothing");
    }
    if (workloads_strict && bytes >= 16 && (uintptr_t)block % 16) {
        die("malloc gives a block that is not aligned to 16 bytes");
    }
    return block;
}

void *take_zeroed(size_t count, size_t bytes)
{
    unsigned char *block = calloc(count, bytes);
    if (!block) {
        die("calloc gives nothing");
    }
    for (size_t i = 0; workloads_strict && i < count * bytes; i++) {
        if (block[i]) {
            die("calloc gives a block that is not zero");
        }
    }
    return block;
}

void *resize(void *block, size_t bytes)
{
    void *moved = realloc(block, bytes);
    if (!moved) {
        die("realloc gives nothing");
    }
    return moved;
}

uint64_t scaled(const struct run *run, uint64_t steps)
{
    uint64_t count = (uint64_t)((double)steps * run->scale);
    return count ? count : 1;
}

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void thread_start(pthread_t *thread, void *(*body)(void *), void *argument)
{
    if (pthread_create(thread, NULL, body, argument)) {
        die("no thread can be started");
    }
}

struct tally workers_run(const struct run *run, uint64_t steps, void *(*body)(void *), void *shared)
{
    struct worker *workers = take(run->threads * sizeof *workers);
    pthread_t *threads = take(run->threads * sizeof *threads);
    struct tally sum = {0};
    for (unsigned i = 0; i < run->threads; i++) {
        workers[i] = (struct worker){.index = i,
                                     .threads = run->threads,
                                     .steps = scaled(run, steps) / run->threads,
                                     .random = mixed(i + 1) | 1,
                                     .shared = shared};
        thread_start(&threads[i], body, &workers[i]);
    }
    for (unsigned i = 0; i < run->threads; i++) {
        pthread_join(threads[i], NULL);
        sum.operations += workers[i].tally.operations;
        sum.checksum += workers[i].tally.checksum;
    }
    free(threads);
    free(workers);
    return sum;
}

static size_t block_stride(size_t bytes)
{
    return bytes <= SMALL_BYTES ? 1 : PAGE_WORDS;
}

static uint64_t block_seed(uint32_t stamp)
{
    return stamp * UINT64_C(0x9e3779b97f4a7c15);
}

static void block_write(uint64_t *block, size_t bytes, uint32_t stamp)
{
    uint64_t seed = block_seed(stamp);
    size_t stride = block_stride(bytes);
    for (size_t i = 1; 8 * i + 8 <= bytes; i += stride) {
        block[i] = seed + i;
    }
    block[0] = (uint64_t)stamp << 32 | bytes;
    if (bytes > 8) {
        ((unsigned char *)block)[bytes - 1] = (unsigned char)stamp;
    }
}

/* What was written of a block of `bytes`, up to `kept` of them. */
static void block_compare(const uint64_t *block, size_t bytes, size_t kept)
{
    uint64_t seed = block_seed((uint32_t)(block[0] >> 32));
    for (size_t i = 1; 8 * i + 8 < bytes && 8 * i + 8 <= kept; i += block_stride(bytes)) {
        if (block[i] != seed + i) {
            die("a block's contents have changed");
        }
    }
}

uint64_t *block_new(size_t bytes, uint32_t stamp)
{
    uint64_t *block = take(bytes);
    block_write(block, bytes, stamp);
    return block;
}

uint64_t *block_resize(uint64_t *block, size_t bytes, uint32_t stamp, uint64_t *checksum)
{
    uint64_t first = block[0];
    size_t before = block_bytes(block);
    *checksum += block_read(block);
    block = resize(block, bytes);
    if (block[0] != first) {
        die("realloc has changed a block's first word");
    }
    if (workloads_strict) {
        block_compare(block, before, bytes);
    }
    block_write(block, bytes, stamp);
    return block;
}

uint64_t block_read(const uint64_t *block)
{
    if (!block) {
        return 0;
    }
    size_t bytes = block_bytes(block);
    if (bytes < 8 ||
        (bytes > 8 && ((const unsigned char *)block)[bytes - 1] != (unsigned char)(block[0] >> 32))) {
        die("a block's ends have changed");
    }
    if (workloads_strict) {
        block_compare(block, bytes, bytes);
    }
    return block[0] * UINT64_C(0xbf58476d1ce4e5b9);
}

uint64_t block_drop(uint64_t *block)
{
    uint64_t part = block_read(block);
    free(block);
    return part;
}
