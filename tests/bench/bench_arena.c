/* bench_arena.c: nanoseconds per call of the arena's dynamic path, one thread and two on an arena made for
 * two. Rounds of one thread and of two take turns, so that what else the machine does falls on both; printed
 * are the medians of rounds, the least and the most, and the median of the turns' ratios. Each thread stays
 * on a processor of its own. A round's time goes from the first start to the last end. Where other programs
 * or the host take turns on the processors it says little, so three things are given beside it: how much of
 * the processors' time they took in all; the median of the turns in which every thread had its processor from
 * beginning to end, if there are any; and the ratio by the time that the threads were on a processor (it
 * leaves out sleeping on a lock). What two processors give here at all is measured in the same turns: two
 * threads that share nothing, each with an arena of its own. No test: it never fails on time.
 *
 *   bench_arena [PAIRS [LOAD]] */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "alloc/zr.h"
#include "tests/support/pin.h"

enum { LIVE = 512, ROUNDS = 401, THREADS_MAX = 2 };

static unsigned pairs_count = 20000; /* per thread and round */

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
    unsigned number; /* among the round's threads */
    uint32_t seed;
    uint64_t start_ns, end_ns, busy_ns;
    uint64_t queued_ns; /* for a processor that another program had */
    long slept_count;   /* on the lock */
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

/* For how long the calling thread could have run and had no processor. */
static uint64_t queued_ns(void)
{
    unsigned long long ran_ns = 0, waited_ns = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (file) {
        if (fscanf(file, "%llu %llu", &ran_ns, &waited_ns) != 2)
            waited_ns = 0;
        fclose(file);
    }
    return waited_ns;
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
    struct rusage before, after;
    pin_to(job->number);
    pthread_barrier_wait(job->start);
    getrusage(RUSAGE_THREAD, &before);
    job->queued_ns = queued_ns();
    job->start_ns = now_ns(CLOCK_MONOTONIC);
    job->busy_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
    if (job->load->steps)
        steps(job, blocks);
    else
        churn(job, blocks, &state);
    job->busy_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - job->busy_ns;
    job->end_ns = now_ns(CLOCK_MONOTONIC);
    job->queued_ns = queued_ns() - job->queued_ns;
    getrusage(RUSAGE_THREAD, &after);
    job->slept_count = after.ru_nvcsw - before.ru_nvcsw;
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
    double ns[ROUNDS];                       /* per pair, of all threads together */
    double busy_ns[ROUNDS];                  /* the same, of the processors' time that they got */
    bool whole[ROUNDS];                      /* each thread had a processor all the time */
    zr_backend *apart_backends[THREADS_MAX]; /* of threads that share nothing; NULL: they share the arena */
    zr_arena *apart[THREADS_MAX];
};

/* Of a round, that a thread may miss and count as there all the time: clocks are read in between, and the
 * last to arrive wakes the others. */
#define MISSED_SHARE 0.03

/* A thread that slept on the lock did so in the arena's time. One that neither slept nor waited for its
 * processor and yet was not on it has been stopped by the host. */
static bool was_there(const struct job *job, uint64_t start_ns, uint64_t end_ns)
{
    double most_ns = MISSED_SHARE * (double)(end_ns - start_ns),
           own_ns = (double)(job->end_ns - job->start_ns);
    return (double)job->queued_ns <= most_ns && (double)(job->start_ns - start_ns) <= most_ns &&
           (job->slept_count > 0 || own_ns - (double)job->busy_ns <= most_ns);
}

/* What the processors did since the system started, in its ticks. */
struct ticks {
    unsigned long long own, others, idle, stolen;
};

/* From the line "cpu user nice system idle iowait irq softirq steal"; zeros where there is none. */
static struct ticks read_ticks(void)
{
    unsigned long long user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
    struct timespec own = {0};
    FILE *file = fopen("/proc/stat", "r");
    if (file) {
        if (fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait,
                   &irq, &soft, &steal) != 8)
            user = nice = system = idle = wait = irq = soft = steal = 0;
        fclose(file);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    unsigned long long hertz = (unsigned long long)sysconf(_SC_CLK_TCK);
    return (struct ticks){.own = (unsigned long long)own.tv_sec * hertz +
                                 (unsigned long long)own.tv_nsec * hertz / 1000000000u,
                          .others = user + nice + system + irq + soft,
                          .idle = idle + wait,
                          .stolen = steal};
}

/* Who had the processors meanwhile. */
static void print_ticks(const struct load *load, struct ticks from)
{
    struct ticks to = read_ticks();
    double own = (double)(to.own - from.own), stolen = (double)(to.stolen - from.stolen);
    double busy = (double)(to.others - from.others), all = busy + stolen + (double)(to.idle - from.idle);
    if (all > 0)
        printf("%-9s of the processors' time other programs had %.0f %%, the host took %.0f %%\n", load->name,
               busy > own ? (busy - own) / all * 100 : 0.0, stolen / all * 100);
}

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
    struct job jobs[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    pthread_barrier_t start;
    uint64_t start_ns = UINT64_MAX, end_ns = 0, busy_ns = 0;
    bool whole = true;
    pthread_barrier_init(&start, NULL, bench->threads);
    for (unsigned i = 0; i < bench->threads; i++) {
        jobs[i] = (struct job){.arena = bench->apart[i] ? bench->apart[i] : bench->arena,
                               .load = load,
                               .start = &start,
                               .number = i,
                               .seed = 7 + 70 * i + round};
        pthread_create(&threads[i], NULL, work, &jobs[i]);
    }
    for (unsigned i = 0; i < bench->threads; i++) {
        pthread_join(threads[i], NULL);
        start_ns = jobs[i].start_ns < start_ns ? jobs[i].start_ns : start_ns;
        end_ns = jobs[i].end_ns > end_ns ? jobs[i].end_ns : end_ns;
        busy_ns += jobs[i].busy_ns;
    }
    for (unsigned i = 0; i < bench->threads; i++)
        whole &= was_there(&jobs[i], start_ns, end_ns);
    pthread_barrier_destroy(&start);
    bench->whole[round] = whole;
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

/* An arena for each thread. */
static void open_apart(struct bench *bench)
{
    open_bench(bench, THREADS_MAX);
    for (unsigned i = 0; i < THREADS_MAX; i++)
        if (zr_backend_sim_create(&bench->apart_backends[i], NULL) != ZR_OK ||
            zr_arena_create(&bench->apart[i],
                            &(struct zr_arena_options){.backend = bench->apart_backends[i]}) != ZR_OK) {
            fprintf(stderr, "%s\n", zr_last_error());
            exit(1);
        }
}

static void close_apart(struct bench *bench)
{
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        zr_arena_destroy(bench->apart[i], NULL);
        zr_backend_destroy(bench->apart_backends[i]);
    }
    zr_arena_destroy(bench->arena, NULL);
    zr_backend_destroy(bench->backend);
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static void measure(const struct load *load)
{
    struct bench one, two, apart;
    double ratios[ROUNDS], apart_ratios[ROUNDS], shares[ROUNDS], busy_ratios[ROUNDS], whole_ratios[ROUNDS];
    unsigned whole_count = 0;
    struct ticks from = read_ticks();
    open_bench(&one, 1);
    open_bench(&two, THREADS_MAX);
    open_apart(&apart);
    for (unsigned round = 0; round < ROUNDS; round++) {
        run_round(&one, load, round);
        run_round(&two, load, round);
        run_round(&apart, load, round);
        apart_ratios[round] = one.ns[round] / apart.ns[round];
        shares[round] = apart.ns[round] / two.ns[round];
        ratios[round] = one.ns[round] / two.ns[round];
        busy_ratios[round] = one.busy_ns[round] / two.busy_ns[round];
        if (one.whole[round] && two.whole[round])
            whole_ratios[whole_count++] = ratios[round];
    }
    close_bench(&one, load);
    close_bench(&two, load);
    close_apart(&apart);
    double rate = median(ratios, ROUNDS), busy_rate = median(busy_ratios, ROUNDS);
    printf("%-9s two threads' rate: %.2f times one's (%.2f to %.2f); by the processors' time that they got: "
           "%.2f (%.2f to %.2f)\n",
           load->name, rate, ratios[0], ratios[ROUNDS - 1], busy_rate, busy_ratios[0],
           busy_ratios[ROUNDS - 1]);
    printf("%-9s two threads with an arena each, the most that there is here: %.2f times one's; on one arena "
           "they have %.0f %% of that\n",
           load->name, median(apart_ratios, ROUNDS), median(shares, ROUNDS) * 100);
    print_ticks(load, from);
    if (whole_count > 0)
        printf("%-9s in the %u of %d rounds in which the threads kept their processors: %.2f times one's\n",
               load->name, whole_count, ROUNDS, median(whole_ratios, whole_count));
    else
        printf("%-9s in none of %d rounds the threads kept their processors\n", load->name, ROUNDS);
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
