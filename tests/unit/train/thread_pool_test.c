/* thread_pool_test.c: the compute threads of a rank: every part runs once, on its own thread, and all is over
 * when run() returns; with more threads than cores too. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "tests/support/tap.h"
#include "zero/train/rank/thread_pool.h"

enum { THREADS_MAX = 8, RUNS = 5000 };

static zr_backend *backend;
static zr_arena *arena;

/* What the parts of a run leave behind. */
struct record {
    _Atomic unsigned runs[THREADS_MAX];
    pthread_t thread[THREADS_MAX];
    _Atomic unsigned moved, wrong;
    unsigned parts;
    uint64_t sums[THREADS_MAX][8]; /* plain memory: the end of run() must make it visible */
};

static void task(void *argument, unsigned part, unsigned parts)
{
    struct record *record = argument;
    if (parts != record->parts || part >= parts) {
        atomic_fetch_add(&record->wrong, 1);
        return;
    }
    if (atomic_fetch_add(&record->runs[part], 1) == 0)
        record->thread[part] = pthread_self();
    else if (!pthread_equal(record->thread[part], pthread_self()))
        atomic_fetch_add(&record->moved, 1);
    record->sums[part][0] += part + 1;
}

static void try_team(unsigned threads, unsigned ranks)
{
    struct record record;
    zr_thread_pool *pool = NULL;
    unsigned late = 0;
    memset(&record, 0, sizeof(record));
    record.parts = threads;
    struct zr_thread_pool_options options = {.host_arena = arena, .threads = threads, .ranks_here = ranks};
    tap_result(zr_thread_pool_create(&pool, &options), ZR_OK, "%u threads, %u ranks", threads, ranks);
    if (!pool)
        return;
    struct zr_parallel parallel = zr_thread_pool_parallel(pool);
    tap_is(parallel.threads, threads, "as many as asked for");
    for (unsigned i = 1; i <= RUNS; i++) {
        parallel.run(parallel.state, task, &record);
        for (unsigned part = 0; part < threads; part++)
            late += record.sums[part][0] != (uint64_t)i * (part + 1);
    }
    tap_is(late, 0, "every part had run, once, when run() returned");
    tap_is(record.wrong + record.moved, 0, "with the right numbers, always on the same thread");
    tap_ok(pthread_equal(record.thread[0], pthread_self()), "part 0 is the caller's");
    zr_thread_pool_destroy(pool);
}

static size_t live_bytes(void)
{
    struct zr_arena_stats stats;
    return zr_arena_get_stats(arena, &stats) == ZR_OK ? stats.live_bytes : 1;
}

static void test_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_CREATE, ZR_FAULT_MAP, ZR_FAULT_METADATA,
                                               ZR_FAULT_THREAD};
    unsigned failed = 0, leaks = 0, strange = 0;
    for (size_t s = 0; s < sizeof(sites) / sizeof(*sites); s++)
        for (uint64_t nth = 1; nth < 40; nth++) {
            zr_thread_pool *pool = NULL;
            size_t before_bytes = live_bytes();
            zr_arena_trim(arena, 0, NULL);
            zr_fault_set(sites[s], nth);
            zr_result result = zr_thread_pool_create(
                &pool, &(struct zr_thread_pool_options){.host_arena = arena, .threads = 4});
            zr_fault_set(sites[s], 0);
            strange += (result == ZR_OK) != (pool != NULL);
            failed += result != ZR_OK;
            zr_thread_pool_destroy(pool);
            leaks += live_bytes() != before_bytes;
            if (result == ZR_OK)
                break;
        }
    tap_ok(failed >= 3, "%u steps of creation were made to fail", failed);
    tap_is(leaks, 0, "none of them leaked");
    tap_is(strange, 0, "and a failure gives no pool");
}

int main(void)
{
    size_t leaked_bytes = 1;
    zr_thread_pool *pool;
    tap_result(zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = 64 << 10}), ZR_OK,
               "a backend");
    tap_result(
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = 64 << 20}),
        ZR_OK, "an arena");
    for (unsigned threads = 1; threads <= THREADS_MAX; threads = threads < 4 ? threads + 1 : threads * 2)
        try_team(threads, 1);
    try_team(2, 64); /* no spinning */
    tap_result(zr_thread_pool_create(&pool, &(struct zr_thread_pool_options){.host_arena = arena}),
               ZR_ERR_INVALID, "no thread");
    tap_result(zr_thread_pool_create(&pool, &(struct zr_thread_pool_options){.threads = 1}), ZR_ERR_INVALID,
               "no arena");
    tap_result(zr_thread_pool_create(NULL, NULL), ZR_ERR_INVALID, "nothing at all");
    zr_thread_pool_destroy(NULL);
    test_faults();
    tap_result(zr_arena_destroy(arena, &leaked_bytes), ZR_OK, "the arena's end");
    tap_is(leaked_bytes, 0, "nothing leaked");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend's end");
    return tap_done();
}
