/* fork_test.c: fork() beside threads that allocate, fail, search, free, lend buffers and are told of maps: no
 * lock of theirs stays held in the child, none stops the parent, and the child can go on with the arena. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/core/index.h"
#include "alloc/pool/contiguous.h"
#include "tests/support/blocks.h"
#include "tests/support/child.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)
enum { BLOCKS = 2000, PATIENCE_SECONDS = 120, WAIT_SECONDS = 30 };

static _Atomic bool over;
static void *block; /* live throughout */

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

static _Atomic bool reads;

/* Inside two read sections all the time, of which one counts on the other side: as one that had read the side
 * when a writer changed it. */
static void *search(void *argument)
{
    struct zr_block_info info;
    zr_reading *reading = zr_read_begin();
    atomic_fetch_add(reading + 1, 1);
    atomic_store(&reads, true);
    while (!atomic_load(&over))
        zr_arena_find(arena, block, &info);
    zr_read_end(reading + 1);
    zr_read_end(reading);
    return argument;
}

static int free_batches(void)
{
    static void *blocks[BLOCKS];
    struct zr_block_info info;
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[i] = take(256);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (!blocks[i] || zr_arena_free(arena, blocks[i]) != ZR_OK)
            return 1;
    if (zr_arena_find(arena, block, &info) != ZR_OK || info.address != block)
        return 3;
    zr_readers_wait(); /* the thread in a section is the parent's alone */
    return zr_arena_check(arena) == ZR_OK ? 0 : 4;
}

static void test_readers(void)
{
    enum { FORKS = 20 };
    pthread_t reader;
    unsigned bad = 0;
    atomic_store(&over, false);
    pthread_create(&reader, NULL, search, NULL);
    while (!atomic_load(&reads))
        sched_yield();
    for (unsigned i = 0; i < FORKS && !bad; i++)
        bad += in_child_within(free_batches, WAIT_SECONDS) != 0;
    atomic_store(&over, true);
    pthread_join(reader, NULL);
    tap_is(bad, 0, "children forked beside a reader free, search and wait for readers");
}

/* ---- Pools and rings ----------------------------------------------------------------------------------- */

static zr_contiguous *pool;
static zr_ring *ring;

static int pool_without_sleepers(void)
{
    zr_entry entry;
    if (atomic_load(&pool->lock.sleepers) != 0 || atomic_load(&pool->lock.waking) != 0)
        return 1;
    return zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 100}, &entry, NULL) == ZR_OK ? 0
                                                                                                       : 2;
}

/* Lends a buffer and takes it back, all the time. */
static void *turn(void *argument)
{
    void *buffer;
    while (!atomic_load(&over))
        if (zr_ring_acquire(ring, 0, ZR_RING_WAIT, &buffer) == ZR_OK)
            zr_ring_release(ring, buffer, 0);
    return argument;
}

static int use_ring(void)
{
    void *buffer;
    zr_result result = zr_ring_acquire(ring, 0, 0, &buffer); /* timeout: another thread had it at the fork */
    return result == ZR_ERR_TIMEOUT || (result == ZR_OK && zr_ring_release(ring, buffer, 0) == ZR_OK) ? 0 : 1;
}

static void *lent;

static int end_ring(void)
{
    return zr_ring_release(ring, lent, 0) == ZR_OK && zr_ring_destroy(ring) == ZR_OK ? 0 : 1;
}

static void *wait_in_ring(void *argument)
{
    void *buffer;
    if (zr_ring_acquire(ring, 0, ZR_RING_WAIT, &buffer) == ZR_OK)
        zr_ring_release(ring, buffer, 0);
    return argument;
}

static void test_pools_and_rings(void)
{
    enum { FORKS = 200 };
    pthread_t thread;
    unsigned bad = 0;
    zr_contiguous_create(&pool, &(struct zr_contiguous_options){.arena = arena, .reserve_bytes = GRANULE});
    /* As if other threads slept for the lock of the pool at this moment. */
    atomic_store(&pool->lock.sleepers, 1);
    atomic_store(&pool->lock.waking, 1);
    tap_is(in_child_within(pool_without_sleepers, PATIENCE_SECONDS), 0,
           "a pool's sleepers are not in the child");
    atomic_store(&pool->lock.sleepers, 0);
    atomic_store(&pool->lock.waking, 0);
    tap_result(zr_contiguous_destroy(pool, NULL), ZR_OK, "the pool ends");

    zr_ring_create(&ring, &(struct zr_ring_options){.arena = arena, .buffer_bytes = 64, .buffers_count = 1});
    atomic_store(&over, false);
    pthread_create(&thread, NULL, turn, NULL);
    for (unsigned i = 0; i < FORKS && !bad; i++)
        bad += in_child_within(use_ring, PATIENCE_SECONDS) != 0;
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    tap_is(bad, 0, "children forked beside a thread that is always at a ring use it");
    zr_ring_acquire(ring, 0, 0, &lent);
    pthread_create(&thread, NULL, wait_in_ring, NULL);
    usleep(20000); /* it waits by now */
    tap_is(in_child_within(end_ring, PATIENCE_SECONDS), 0, "and end it though a thread waited for it");
    zr_ring_release(ring, lent, 0);
    pthread_join(thread, NULL);
    tap_result(zr_ring_destroy(ring), ZR_OK, "the ring ends");
}

/* ---- Who is told of maps ------------------------------------------------------------------------------- */

static zr_arena *watched;
static _Atomic bool telling, forking;

static void fork_begins(void)
{
    atomic_store(&forking, atomic_load(&telling));
}

/* Allocates from the arena that fork() locks first, once fork() has begun. */
static zr_result allocate_elsewhere(void *argument, void *address, size_t bytes)
{
    struct zr_block_info info;
    (void)argument, (void)bytes;
    atomic_store(&telling, true);
    while (!atomic_load(&forking))
        usleep(1000);
    usleep(100000); /* it has all locks that it gets */
    void *out = take(512);
    /* Of its own arena it may ask. */
    zr_result result = zr_arena_find(watched, address, &info);
    return out && zr_arena_free(arena, out) == ZR_OK && result == ZR_ERR_FOREIGN ? ZR_OK : ZR_ERR_CORRUPT;
}

static void *map_one(void *argument)
{
    void *out;
    return zr_arena_alloc(watched, &(struct zr_request){.bytes = GRANULE}, &out) == ZR_OK ? argument : NULL;
}

static int nothing(void)
{
    return zr_arena_free(arena, take(100)) == ZR_OK ? 0 : 1;
}

static int fork_while_telling(void)
{
    pthread_t thread;
    void *done = NULL;
    int result;
    pthread_atfork(fork_begins, NULL, NULL); /* before zr's own */
    zr_arena_create(&watched, &(struct zr_arena_options){.backend = backend});
    zr_arena_add_map_callback(watched, &(struct zr_map_callback){.mapped = allocate_elsewhere});
    pthread_create(&thread, NULL, map_one, &result);
    while (!atomic_load(&telling))
        usleep(1000);
    result = in_child_within(nothing, PATIENCE_SECONDS);
    pthread_join(thread, &done);
    return done ? result : 9;
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
    test_pools_and_rings();
    tap_is(in_child_within(fork_while_telling, PATIENCE_SECONDS), 0,
           "a fork while a watch allocates from an arena that the fork has locked");
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
    return tap_done();
}
