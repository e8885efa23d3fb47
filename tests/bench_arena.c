/* bench_arena.c: nanoseconds per call of the arena's dynamic path, one thread and two. No test: it prints
 * medians and never fails on time. Build: make build/bench/bench_arena. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/zr.h"

enum { LIVE = 512, ROUNDS = 5 };

static unsigned pairs_count = 500000; /* per round; the first argument; the second names one load */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    return *state ^= *state << 5;
}

static size_t sizes_small(uint32_t dice)
{
    return 1 + dice % 4096;
}

static size_t sizes_mixed(uint32_t dice)
{
    return dice % 4 ? 1 + dice % 65536 : 1 + (size_t)(dice >> 2) % (16u << 20);
}

static size_t sizes_training(uint32_t dice)
{
    static const size_t bytes[] = {786432, 2359296, 3145728, 196608, 3072, 1024, 12582912, 1536};
    return bytes[dice % 8];
}

struct load {
    const char *name;
    size_t (*bytes)(uint32_t dice);
    bool steps;
};

struct job {
    zr_arena *arena;
    const struct load *load;
    uint32_t seed;
    double ns_per_pair;
};

/* Replaces a random one of LIVE blocks, again and again: nothing about it can be foreseen. */
static void churn(const struct job *job, void **blocks, uint32_t *state)
{
    for (unsigned i = 0; i < pairs_count; i++) {
        unsigned at = next_random(state) % LIVE;
        zr_arena_free(job->arena, blocks[at]);
        zr_arena_alloc(job->arena, &(struct zr_request){.bytes = job->load->bytes(next_random(state))},
                       &blocks[at]);
    }
}

/* Forward and backward of a model: a layer's blocks come in order and go in the opposite order, with
 * short-lived ones in between. */
static void steps(const struct job *job, void **blocks)
{
    enum { DEPTH = 200 };
    void *scratch = NULL;
    for (unsigned done = 0; done < pairs_count; done += 2 * DEPTH) {
        for (unsigned i = 0; i < DEPTH; i++) {
            zr_arena_free(job->arena, blocks[i]);
            zr_arena_alloc(job->arena, &(struct zr_request){.bytes = job->load->bytes(i)}, &blocks[i]);
            zr_arena_alloc(job->arena, &(struct zr_request){.bytes = job->load->bytes(i + 3)}, &scratch);
            zr_arena_free(job->arena, scratch);
        }
        for (unsigned i = DEPTH; i-- > 0;) {
            zr_arena_free(job->arena, blocks[i]);
            blocks[i] = NULL;
        }
    }
}

static void *work(void *argument)
{
    struct job *job = argument;
    static __thread void *blocks[LIVE];
    uint32_t state = job->seed;
    memset(blocks, 0, sizeof blocks);
    for (unsigned i = 0; i < LIVE; i++)
        zr_arena_alloc(job->arena, &(struct zr_request){.bytes = job->load->bytes(next_random(&state))},
                       &blocks[i]);
    uint64_t start = now_ns();
    if (job->load->steps)
        steps(job, blocks);
    else
        churn(job, blocks, &state);
    job->ns_per_pair = (double)(now_ns() - start) / pairs_count;
    for (unsigned i = 0; i < LIVE; i++)
        zr_arena_free(job->arena, blocks[i]);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median, of all threads together. */
static double measure(const struct load *load, unsigned threads)
{
    double samples[ROUNDS];
    struct zr_arena_stats stats;
    zr_backend *backend;
    zr_arena *arena;
    if (zr_backend_sim_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .threads = threads}) !=
            ZR_OK) {
        fprintf(stderr, "%s\n", zr_last_error());
        exit(1);
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct job jobs[2] = {{arena, load, 7 + round, 0}, {arena, load, 77 + round, 0}};
        pthread_t other;
        if (threads == 2)
            pthread_create(&other, NULL, work, &jobs[1]);
        work(&jobs[0]);
        if (threads == 2)
            pthread_join(other, NULL);
        samples[round] = jobs[0].ns_per_pair / threads;
    }
    zr_arena_get_stats(arena, &stats);
    qsort(samples, ROUNDS, sizeof *samples, by_value);
    printf("%-9s %u thread%s  %7.1f ns per alloc and free (%.1f to %.1f)  reserved/live at peak %.4f  %llu "
           "driver calls\n",
           load->name, threads, threads > 1 ? "s" : " ", samples[ROUNDS / 2], samples[0], samples[ROUNDS - 1],
           (double)stats.peak_reserved_bytes / (double)stats.peak_live_bytes,
           (unsigned long long)stats.backend_calls_count);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    return samples[ROUNDS / 2];
}

int main(int count, char **arguments)
{
    if (count > 1)
        pairs_count = (unsigned)atoi(arguments[1]);
    static const struct load loads[] = {{"small", sizes_small, false},
                                        {"mixed", sizes_mixed, false},
                                        {"training", sizes_training, false},
                                        {"steps", sizes_training, true}};
    for (unsigned i = 0; i < sizeof loads / sizeof *loads; i++) {
        if (count > 2 && strcmp(arguments[2], loads[i].name) != 0)
            continue;
        double one = measure(&loads[i], 1);
        if (count < 3)
            printf("%-9s two threads' rate: %.2f times one's\n", loads[i].name, one / measure(&loads[i], 2));
    }
    return 0;
}
