/* fork_test.c: fork() beside threads that allocate, fail, search and free: no lock of theirs stays held in
 * the child, none stops the parent, and the child can go on with the arena. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/arena_internal.h"
#include "tests/child.h"
#include "tests/tap.h"

#define GRANULE ((size_t)64 << 10)
enum { BLOCKS = 2 * ZR_RETIRED_BATCH, PATIENCE_SECONDS = 120 };

static zr_backend *backend;
static zr_arena *arena;
static _Atomic bool over;
static void *block; /* live throughout */

static void *take(size_t bytes)
{
    void *out;
    zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes}, &out);
    return out;
}

/* ---- A thread's first failure -------------------------------------------------------------------------- */

/* Takes the text of its first failure while it holds the arena's lock. */
static void *fail_once(void *argument)
{
    void *out;
    zr_arena_alloc(arena, &(struct zr_request){.bytes = (size_t)1 << 40}, &out);
    return argument;
}

static void *start_failing_threads(void *argument)
{
    while (!atomic_load(&over)) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, fail_once, NULL) == 0)
            pthread_join(thread, NULL);
    }
    return argument;
}

static int fork_beside_failures(void)
{
#if defined(__SANITIZE_ADDRESS__)
    enum { THREADS = 3, FORKS = 150 }; /* a fork with its shadow memory takes ten times as long */
#else
    enum { THREADS = 3, FORKS = 1500 };
#endif
    pthread_t threads[THREADS];
    int bad = 0;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, start_failing_threads, NULL);
    for (unsigned i = 0; i < FORKS; i++) {
        int status = 1;
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE_SECONDS);
            fail_once(NULL);
            _exit(zr_last_error()[0] == '\0');
        }
        waitpid(child, &status, 0);
        bad += status != 0;
    }
    atomic_store(&over, true);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return bad != 0;
}

/* ---- Readers and frees --------------------------------------------------------------------------------- */

/* Inside a read section of the index nearly all the time. */
static void *search(void *argument)
{
    struct zr_block_info info;
    while (!atomic_load(&over))
        zr_arena_find(arena, block, &info);
    return argument;
}

/* Frees enough to wait for readers, of which the child has none but itself. */
static int free_batches(void)
{
    static void *blocks[BLOCKS];
    struct zr_block_info info;
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[i] = take(256);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (!blocks[i] || zr_arena_free(arena, blocks[i]) != ZR_OK)
            return 1;
    if (arena->retired_count >= ZR_RETIRED_BATCH)
        return 2;
    if (zr_arena_find(arena, block, &info) != ZR_OK || info.address != block)
        return 3;
    return zr_arena_check(arena) == ZR_OK ? 0 : 4;
}

static void test_readers(void)
{
    enum { FORKS = 20 };
    pthread_t reader;
    unsigned bad = 0;
    atomic_store(&over, false);
    pthread_create(&reader, NULL, search, NULL);
    for (unsigned i = 0; i < FORKS && !bad; i++)
        bad += in_child_within(free_batches, PATIENCE_SECONDS) != 0;
    atomic_store(&over, true);
    pthread_join(reader, NULL);
    tap_is(bad, 0, "children forked beside a reader free, wait for readers and search");
    /* As if another thread waited for readers at this moment. */
    arena->reclaiming = true;
    tap_is(in_child_within(free_batches, PATIENCE_SECONDS), 0,
           "a child reclaims though a thread that it does not have was at it");
    arena->reclaiming = false;
    tap_is(in_child_within(free_batches, PATIENCE_SECONDS), 0, "and the parent goes on");
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
    tap_skip("ThreadSanitizer itself does not fork beside threads");
    return tap_done();
#endif
    zr_backend_sim_create(&backend,
                          &(struct zr_sim_options){.granule_bytes = GRANULE, .capacity_bytes = 64 * GRANULE});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    block = take(1000);
    fail_once(NULL); /* the first failure comes after the arena, as in most programs */
    tap_is(in_child_within(fork_beside_failures, PATIENCE_SECONDS), 0,
           "forks beside threads that fail for the first time");
    test_readers();
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
    return tap_done();
}
