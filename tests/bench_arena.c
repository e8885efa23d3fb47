/* bench_arena.c: nanoseconds per call of the arena's dynamic path, one thread and two on an arena made for
 * two. Rounds of one thread and of two take turns, so that what else the machine does falls on both; printed
 * are the medians of rounds, the least and the most, and the median of the turns' ratios. A round's time goes
 * from the first start to the last end; where other programs take turns on the processors it says little, so
 * the time that the threads were on a processor is given too (it leaves out sleeping on a lock). No test: it
 * never fails on time.
 *
 *   bench_arena [PAIRS [LOAD]] */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/zr.h"

enum { LIVE = 512, ROUNDS = 61, THREADS_MOST = 2 };

static unsigned pairs_count = 50000; /* per thread and round */

static uint64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
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
    pthread_barrier_t *start;
    uint32_t seed;
    uint64_t start_ns, end_ns, busy_ns;
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
    pthread_barrier_wait(job->start);
    job->start_ns = now_ns(CLOCK_MONOTONIC);
    job->busy_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
    if (job->load->steps)
        steps(job, blocks);
    else
        churn(job, blocks, &state);
    job->busy_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - job->busy_ns;
    job->end_ns = now_ns(CLOCK_MONOTONIC);
    for (unsigned i = 0; i < LIVE; i++)
        zr_arena_free(job->arena, blocks[i]);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench {
    unsigned threads;
    zr_backend *backend;
    zr_arena *arena;
    double ns[ROUNDS];      /* per pair, of all threads together */
    double busy_ns[ROUNDS]; /* the same, of the processors' time that they got */
};

static void open_bench(struct bench *bench, unsigned threads)
{
    *bench = (struct bench){.threads = threads};
    if (zr_backend_sim_create(&bench->backend, NULL) != ZR_OK ||
        zr_arena_create(&bench->arena,
                        &(struct zr_arena_options){.backend = bench->backend, .threads = threads}) != ZR_OK) {
        fprintf(stderr, "%s\n", zr_last_error());
        exit(1);
    }
}

static void run_round(struct bench *bench, const struct load *load, unsigned round)
{
    struct job jobs[THREADS_MOST];
    pthread_t threads[THREADS_MOST];
    pthread_barrier_t start;
    uint64_t start_ns = UINT64_MAX, end_ns = 0, busy_ns = 0;
    pthread_barrier_init(&start, NULL, bench->threads);
    for (unsigned i = 0; i < bench->threads; i++) {
        jobs[i] = (struct job){bench->arena, load, &start, 7 + 70 * i + round, 0, 0, 0};
        pthread_create(&threads[i], NULL, work, &jobs[i]);
    }
    for (unsigned i = 0; i < bench->threads; i++) {
        pthread_join(threads[i], NULL);
        start_ns = jobs[i].start_ns < start_ns ? jobs[i].start_ns : start_ns;
        end_ns = jobs[i].end_ns > end_ns ? jobs[i].end_ns : end_ns;
        busy_ns += jobs[i].busy_ns;
    }
    pthread_barrier_destroy(&start);
    bench->ns[round] = (double)(end_ns - start_ns) / pairs_count / bench->threads;
    bench->busy_ns[round] = (double)busy_ns / bench->threads / pairs_count / bench->threads;
}

static void close_bench(struct bench *bench, const struct load *load)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(bench->arena, &stats);
    qsort(bench->ns, ROUNDS, sizeof *bench->ns, by_value);
    qsort(bench->busy_ns, ROUNDS, sizeof *bench->busy_ns, by_value);
    printf("%-9s %u thread%s  %7.1f ns per alloc and free (%.1f to %.1f; busy %.1f)  %.1f MiB reserved for "
           "%.1f MiB at "
           "peak  %llu driver calls\n",
           load->name, bench->threads, bench->threads > 1 ? "s" : " ", bench->ns[ROUNDS / 2], bench->ns[0],
           bench->ns[ROUNDS - 1], bench->busy_ns[ROUNDS / 2], (double)stats.peak_reserved_bytes / (1 << 20),
           (double)stats.peak_live_bytes / (1 << 20), (unsigned long long)stats.backend_calls_count);
    zr_arena_destroy(bench->arena, NULL);
    zr_backend_destroy(bench->backend);
}

static void measure(const struct load *load)
{
    struct bench one, two;
    double ratios[ROUNDS], busy_ratios[ROUNDS];
    open_bench(&one, 1);
    open_bench(&two, THREADS_MOST);
    for (unsigned round = 0; round < ROUNDS; round++) {
        run_round(&one, load, round);
        run_round(&two, load, round);
        ratios[round] = one.ns[round] / two.ns[round];
        busy_ratios[round] = one.busy_ns[round] / two.busy_ns[round];
    }
    close_bench(&one, load);
    close_bench(&two, load);
    qsort(ratios, ROUNDS, sizeof *ratios, by_value);
    qsort(busy_ratios, ROUNDS, sizeof *busy_ratios, by_value);
    printf("%-9s two threads' rate: %.2f times one's (%.2f to %.2f); by the processors' time that they got: "
           "%.2f "
           "(%.2f to %.2f)\n",
           load->name, ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1], busy_ratios[ROUNDS / 2],
           busy_ratios[0], busy_ratios[ROUNDS - 1]);
}

int main(int count, char **arguments)
{
    if (count > 1 && atoi(arguments[1]) > 0)
        pairs_count = (unsigned)atoi(arguments[1]);
    static const struct load loads[] = {{"small", sizes_small, false},
                                        {"mixed", sizes_mixed, false},
                                        {"training", sizes_training, false},
                                        {"steps", sizes_training, true}};
    for (unsigned i = 0; i < sizeof loads / sizeof *loads; i++)
        if (count < 3 || strcmp(arguments[2], loads[i].name) == 0)
            measure(&loads[i]);
    return 0;
}
