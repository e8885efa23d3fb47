/* bench_recorder.c: what the flight recorder and publishing cost an arena, in one process: slices of some
 * milliseconds with the recorder on and off beside one another, in an order drawn for each pair. Medians of
 * the pairs' ratios of processor time, with their confidence interval. Publishing is the time of one refresh,
 * of which there is one a second.
 *
 *   bench_recorder [PAIRS]
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/option.h"
#include "alloc/telemetry/serve.h"
#include "alloc/telemetry/recorder.h"
#include "tests/support/pin.h"
#include "tests/support/random.h"
#include "alloc/core/arena.h"
#include "alloc/core/event_ring.h"

enum { PAIRS_MAX = 5000, SLICE_OPERATIONS = 20000, SLOTS = 500, REFRESHES = 2001 };

static zr_arena *arena;
static void *slots[SLOTS];
static double figures[PAIRS_MAX];

static double processor_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* The ring is hidden, or there again without what it had. */
static void set_recorder(const struct zr_recorder *ring, bool on)
{
    zr_arena_acquire(arena);
    struct zr_recorder *recorder = &arena->recorder;
    uint64_t count = zr_recorder_count(recorder);
    recorder->events = recorder->next = recorder->stop = on ? ring->events : NULL;
    recorder->stop_count = recorder->first = count;
    zr_arena_note_debug(arena);
    zr_arena_release(arena);
}

/* The processor's time of replacing blocks at random: largest sizes above one granule, or one size alone. */
static double run_slice(uint64_t *random_state, bool sizes)
{
    double start_ns = processor_ns();
    for (unsigned i = 0; i < SLICE_OPERATIONS; i++) {
        uint64_t drawn = xorshift64(random_state);
        void **slot = &slots[drawn % SLOTS];
        struct zr_request request = {.bytes =
                                         sizes ? (size_t)(256 + drawn / SLOTS % 256) << drawn % 14 : 4096,
                                     .tag = ZR_TAG_ACTIVATION};
        if (*slot) {
            zr_arena_free(arena, *slot);
            *slot = NULL;
        } else if (zr_arena_alloc(arena, &request, slot) != ZR_OK) {
            exit(1);
        }
    }
    return processor_ns() - start_ns;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(const struct zr_recorder *ring, bool sizes, unsigned pairs)
{
    uint64_t random_state = 88172645463325252u, order = 7;
    double off_ns = 0;
    run_slice(&random_state, sizes);
    for (unsigned i = 0; i < pairs; i++) {
        bool on_first = splitmix64(&order) % 2;
        double ns[2];
        for (unsigned turn = 0; turn < 2; turn++) {
            bool on = turn ? !on_first : on_first;
            set_recorder(ring, on);
            ns[on] = run_slice(&random_state, sizes);
        }
        figures[i] = ns[1] / ns[0];
        off_ns += ns[0];
    }
    qsort(figures, pairs, sizeof *figures, by_value);
    unsigned away = (unsigned)(0.98 * sqrt(pairs)), middle = pairs / 2;
    printf("recorder, %s: %.4f times (95 %%: %.4f to %.4f), %u pairs, %.1f ns an operation without\n",
           sizes ? "blocks of many sizes" : "blocks of one size", figures[middle], figures[middle - away],
           figures[middle + away], pairs, off_ns / pairs / SLICE_OPERATIONS);
}

static void measure_refresh(void)
{
    static char folder[] = "/tmp/zr-bench-XXXXXX";
    struct zr_publisher publisher;
    if (!mkdtemp(folder))
        return;
    zr_publisher_name(&publisher, folder);
    if (zr_publisher_start(&publisher) != ZR_OK)
        return;
    for (unsigned i = 0; i < REFRESHES; i++) {
        double start_ns = processor_ns();
        zr_publisher_refresh(&publisher, ZR_REFRESH_COUNTERS);
        figures[i] = processor_ns() - start_ns;
    }
    qsort(figures, REFRESHES, sizeof *figures, by_value);
    printf("publishing: a refresh a second takes %.0f ns (p99.9 %.0f ns): %.5f %% of a processor\n",
           figures[REFRESHES / 2], figures[REFRESHES * 999 / 1000], figures[REFRESHES / 2] / 1e7);
    unlink(publisher.path);
    zr_publisher_end(&publisher);
    rmdir(folder);
}

int main(int count, char **arguments)
{
    unsigned pairs = count > 1 ? (unsigned)strtoul(arguments[1], NULL, 10) : 1000;
    zr_backend *backend;
    pairs = pairs < 8 ? 8 : pairs > PAIRS_MAX ? PAIRS_MAX : pairs;
    pin_to(0);
    zr_option_set("publish:off,recorder:1m");
    if (zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK) {
        fprintf(stderr, "bench_recorder: %s\n", zr_last_error());
        return 1;
    }
    struct zr_recorder ring = arena->recorder;
    for (unsigned sizes = 0; sizes < 2; sizes++)
        compare(&ring, sizes, pairs);
    measure_refresh();
    set_recorder(&ring, true); /* which the arena gives back */
    return 0;
}
