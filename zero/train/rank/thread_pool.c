/* thread_pool.c: the compute threads of a rank. Uses alloc/base/system/os.h; see thread_pool.h.
 *
 * The counter `round` announces a run; idle workers spin on `round` for a short time and then sleep. A run
 * ends when the counter `pending` reaches zero. Kernels follow one another within microseconds, so a short
 * spin saves the wake-up. If threads outnumber the cores, workers do not spin, because a spinning thread
 * would take a core from a working one. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "zero/comm/local/spin.h"
#include "zero/train/rank/thread_pool.h"

enum { THREADS_MAX = 1024 };
static const uint64_t spin_ns = 20000;          /* longer than the gap between two kernels of a layer */
static const uint64_t sleep_ns = 1000000000ull; /* maximum sleep, in case a wake-up was lost */

typedef void (*pool_task)(void *argument, unsigned part, unsigned parts);

struct worker {
    zr_thread_pool *pool;
    unsigned part;
    struct zr_thread thread;
};

struct zr_thread_pool {
    zr_arena *host_arena;
    unsigned threads, started; /* started: number of workers that run */
    bool spins;
    /* Written by the caller of run() before `round` advances, read by workers after it has advanced. */
    pool_task task;
    void *argument;
    bool stopping;
    _Alignas(64) _Atomic uint32_t round;   /* runs announced so far */
    _Atomic uint32_t round_sleepers;       /* workers that sleep on round or are about to */
    _Alignas(64) _Atomic uint32_t pending; /* workers that have not finished this round */
    _Atomic uint32_t pending_sleepers;     /* 1 while the caller sleeps on pending */
    _Alignas(64) struct worker workers[];  /* threads - 1 */
};

/* Returns when *word differs from `seen`. The sleeper is counted before its last check of the word, and the
 * other side reads the count after it changes the word, so one of the two sees the other. */
static void wait_while(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers, bool spins)
{
    if (spins && zr_spin_while(word, seen, spin_ns))
        return;
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == seen)
        zr_word_wait(word, seen, sleep_ns);
    atomic_fetch_sub(sleepers, 1);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    zr_thread_pool *pool = worker->pool;
    for (uint32_t seen = 0;; seen++) {
        wait_while(&pool->round, seen, &pool->round_sleepers, pool->spins);
        if (pool->stopping)
            return NULL;
        pool->task(pool->argument, worker->part, pool->threads);
        if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->pending_sleepers) > 0)
            zr_word_wake_all(&pool->pending);
    }
}

static void announce(zr_thread_pool *pool)
{
    atomic_fetch_add(&pool->round, 1);
    if (atomic_load(&pool->round_sleepers) > 0)
        zr_word_wake_all(&pool->round);
}

static void run_task(void *state, pool_task task, void *argument)
{
    zr_thread_pool *pool = state;
    uint32_t left;
    if (pool->started == 0) {
        task(argument, 0, 1);
        return;
    }
    pool->task = task;
    pool->argument = argument;
    atomic_store(&pool->pending, pool->started);
    announce(pool);
    task(argument, 0, pool->threads);
    while ((left = atomic_load(&pool->pending)) != 0)
        wait_while(&pool->pending, left, &pool->pending_sleepers, pool->spins);
}

struct zr_parallel zr_thread_pool_parallel(zr_thread_pool *pool)
{
    return (struct zr_parallel){.threads = pool->threads, .run = run_task, .state = pool};
}

void zr_thread_pool_destroy(zr_thread_pool *pool)
{
    if (!pool)
        return;
    pool->stopping = true;
    announce(pool);
    for (unsigned i = 0; i < pool->started; i++)
        zr_thread_join(&pool->workers[i].thread);
    zr_arena_free(pool->host_arena, pool);
}

zr_result zr_thread_pool_create(zr_thread_pool **out, const struct zr_thread_pool_options *options)
{
    struct zr_machine machine;
    void *memory = NULL;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a pool needs a place to go");
    *out = NULL;
    if (!options || !options->host_arena || options->threads == 0 || options->threads > THREADS_MAX)
        return zr_fail(ZR_ERR_INVALID, "a pool needs an arena and 1 to %d threads", THREADS_MAX);
    unsigned workers = options->threads - 1;
    size_t bytes = sizeof(zr_thread_pool) + workers * sizeof(struct worker);
    zr_result result = zr_arena_alloc(options->host_arena,
                                      &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &memory);
    if (result != ZR_OK)
        return result;
    zr_thread_pool *pool = memset(memory, 0, bytes);
    zr_os_machine(&machine);
    pool->host_arena = options->host_arena;
    pool->threads = options->threads;
    pool->spins =
        (uint64_t)options->threads * (options->ranks_here ? options->ranks_here : 1) <= machine.cores_count;
    for (; pool->started < workers; pool->started++) {
        struct worker *worker = &pool->workers[pool->started];
        worker->pool = pool;
        worker->part = pool->started + 1;
        result = zr_thread_start(&worker->thread, options->host_arena, 0, work, worker);
        if (result != ZR_OK)
            goto unwind;
    }
    *out = pool;
    return ZR_OK;
unwind:
    zr_thread_pool_destroy(pool);
    return result;
}
