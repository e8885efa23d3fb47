/* bench_stall.c: how long a free takes while another thread grows without end: eight threads on one arena of
 * host memory, of which one maps, touches and gives back memory all the time. Percentiles of the frees of the
 * seven others. No test: it never fails on time. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/zr.h"

#define MIB ((size_t)1 << 20)

enum { OTHERS = 7, FREES = 20000, PAUSE_NS = 50000, LIVE = 64, GROWN = 32 };

static zr_arena *arena;
static atomic_bool over;
static atomic_uint grown_count;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *take(size_t bytes)
{
    void *block;
    if (zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes}, &block) == ZR_OK)
        return block;
    fprintf(stderr, "%s\n", zr_last_error());
    exit(1);
}

/* Up to half a GiB more, then all of it back. */
static void *grow(void *argument)
{
    void *blocks[GROWN];
    (void)argument;
    while (!atomic_load(&over)) {
        for (unsigned i = 0; i < GROWN; i++, atomic_fetch_add(&grown_count, 1))
            memset(blocks[i] = take(16 * MIB), 1, 16 * MIB);
        for (unsigned i = 0; i < GROWN; i++)
            zr_arena_free(arena, blocks[i]);
        zr_arena_trim(arena, 0, NULL);
    }
    return NULL;
}

struct other {
    uint32_t *times; /* ns, of each free */
    uint64_t state;
};

static void *go_on(void *argument)
{
    struct other *other = argument;
    void *blocks[LIVE] = {0};
    for (unsigned i = 0; i < FREES + LIVE; i++) {
        void **block = &blocks[i % LIVE];
        if (*block) {
            uint64_t start = now_ns();
            zr_arena_free(arena, *block);
            other->times[i - LIVE] = (uint32_t)(now_ns() - start);
        }
        other->state = other->state * UINT64_C(6364136223846793005) + 1;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL); /* for the one that grows */
        *block = take(256 + (other->state >> 40) % 65536);
    }
    for (unsigned i = 0; i < LIVE; i++)
        zr_arena_free(arena, blocks[i]);
    return NULL;
}

static int by_time(const void *a, const void *b)
{
    uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;
    return (one > other) - (one < other);
}

int main(void)
{
    static uint32_t times[OTHERS * FREES];
    static const double shares[] = {0.5, 0.99, 0.999, 0.9999, 1};
    struct other others[OTHERS];
    pthread_t threads[OTHERS], growing;
    zr_backend *backend;
    if (zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK) {
        fprintf(stderr, "%s\n", zr_last_error());
        return 1;
    }
    void *kept = take(8 * MIB); /* what the others free stays mapped beside it */
    pthread_create(&growing, NULL, grow, NULL);
    for (unsigned i = 0; i < OTHERS; i++) {
        others[i] = (struct other){times + (size_t)i * FREES, i};
        pthread_create(&threads[i], NULL, go_on, &others[i]);
    }
    for (unsigned i = 0; i < OTHERS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&over, true);
    pthread_join(growing, NULL);
    qsort(times, OTHERS * FREES, sizeof *times, by_time);
    printf("%d frees of %d threads while one grew by %u blocks of 16 MiB, us:", OTHERS * FREES, OTHERS,
           atomic_load(&grown_count));
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        printf("  %g %%: %.1f", 100 * shares[i], times[(size_t)(shares[i] * (OTHERS * FREES - 1))] / 1e3);
    printf("\n");
    zr_arena_free(arena, kept);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    return 0;
}
