/* fork_soak_test.c: fork() in the middle of everything: threads that allocate, search, use pools and rings,
 * are told of maps and allocate then from another arena, while a trace is written and a learner learns. Each
 * child goes on with what zr.h says is its own: arenas on sim and new arenas on host memory, of which no byte
 * may be seen by the parent, and reads what it shares. A child that stands still is ended by its alarm, a
 * parent by its own. ZR_TEST_FORKS says how many forks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/zr.h"
#include "defrag/zr_defrag.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)
enum { PATIENCE_SECONDS = 120, BLOCKS = 32, BLOCK_MAX = 3 << 14, FORKS = 50, KEPT_BYTES = 100000 };

static zr_backend *host, *sim;
static zr_arena *arenas[3];
enum { HELPER, WATCHED, LEARNT };
static zr_arena *on_sim;
static zr_contiguous *pool;
static zr_ring *ring;
static _Atomic bool over;
static _Atomic unsigned wrong, told;
static _Atomic uint64_t passes[5];
static unsigned char *kept; /* live at every fork */

static zr_result tell(void *argument, void *address, size_t bytes)
{
    void *out;
    struct zr_block_info info;
    (void)bytes;
    atomic_fetch_add(&told, 1);
    if (zr_arena_alloc(argument, &(struct zr_request){.bytes = 700}, &out) == ZR_OK)
        zr_arena_free(argument, out);
    zr_arena_find(arenas[WATCHED], address, &info);
    return ZR_OK;
}

static void untell(void *argument, void *address, size_t bytes)
{
    tell(argument, address, bytes);
}

/* Blocks with a pattern that nobody else may write over. */
static unsigned live(zr_arena *arena, unsigned char pattern, unsigned steps, bool visible)
{
    unsigned char *blocks[BLOCKS] = {NULL}, bad = 0;
    size_t bytes[BLOCKS];
    for (unsigned i = 0; i < steps + BLOCKS; i++) {
        unsigned place = i % BLOCKS;
        if (blocks[place]) {
            for (size_t at = 0; visible && at < bytes[place]; at++)
                bad |= blocks[place][at] != pattern;
            bad |= zr_arena_free(arena, blocks[place]) != ZR_OK;
            blocks[place] = NULL;
        }
        bytes[place] = 1 + i * 7919 % BLOCK_MAX;
        if (i >= steps || zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes[place]},
                                         (void **)&blocks[place]) != ZR_OK)
            continue;
        if (visible)
            memset(blocks[place], pattern, bytes[place]);
    }
    return bad;
}

/* Two cores for eight threads and a child: each is in the middle of something for most of the time, and
 * asleep for some of it. */
static bool goes_on(uint64_t pass, uint64_t passes_max)
{
    if (pass % passes_max == 0)
        usleep(300);
    return !atomic_load(&over);
}

static void *allocate(void *argument)
{
    while (goes_on(passes[0], 1)) {
        wrong += live(arenas[WATCHED], 0x5a, 40, true);
        zr_arena_trim(arenas[WATCHED], 0, NULL);
        passes[0]++;
    }
    return argument;
}

/* The same step again and again, which is learned. */
static void *learn(void *argument)
{
    while (goes_on(passes[1], 1)) {
        wrong += live(arenas[LEARNT], 0xa5, 60, true);
        wrong += live(on_sim, 0, 60, false);
        passes[1]++;
    }
    return argument;
}

static void *search(void *argument)
{
    struct zr_block_info info;
    while (goes_on(passes[2], 100)) {
        wrong += zr_arena_find(arenas[HELPER], kept + 5, &info) != ZR_OK;
        zr_arena_find(arenas[WATCHED], argument, &info);
        passes[2]++;
    }
    return argument;
}

static void *append(void *argument)
{
    while (goes_on(passes[3], 1)) {
        zr_entry entries[8] = {0};
        for (unsigned i = 0; i < 8; i++)
            zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 30000, .movable = i % 2},
                                 &entries[i], NULL);
        for (unsigned i = 0; i < 8; i += 2)
            zr_contiguous_free(pool, entries[i]);
        wrong += zr_contiguous_compact(pool) != ZR_OK;
        for (unsigned i = 1; i < 8; i += 2)
            zr_contiguous_free(pool, entries[i]);
        passes[3]++;
    }
    return argument;
}

static void *turn(void *argument)
{
    void *buffer;
    while (goes_on(passes[4], 100))
        if (zr_ring_acquire(ring, 0, ZR_RING_WAIT, &buffer) == ZR_OK) {
            wrong += zr_ring_release(ring, buffer, 0) != ZR_OK;
            passes[4]++;
        }
    return argument;
}

/* What goes wrong in a child, as a bit each. */
static int in_the_child(void)
{
    struct zr_block_info info;
    struct zr_arena_stats stats;
    zr_arena *own;
    int bad = 0;
    void *buffer;
    bad |= live(on_sim, 0, 100, false) ? 1 : 0;
    bad |= zr_arena_check(on_sim) != ZR_OK ? 2 : 0;
    for (size_t i = 0; i < KEPT_BYTES; i++)
        bad |= kept[i] != 'k' ? 4 : 0;
    if (zr_arena_create(&own, &(struct zr_arena_options){.backend = host}) != ZR_OK)
        return bad | 8;
    bad |= live(own, 0xc3, 100, true) ? 16 : 0;
    bad |= zr_arena_find(arenas[HELPER], kept + 5, &info) != ZR_OK ? 32 : 0;
    for (unsigned i = 0; i < 3; i++)
        bad |= zr_arena_get_stats(arenas[i], &stats) != ZR_OK || zr_arena_check(arenas[i]) != ZR_OK ? 64 : 0;
    bad |= zr_contiguous_check(pool) != ZR_OK ? 128 : 0;
    if (zr_ring_acquire(ring, 0, 0, &buffer) == ZR_OK)
        bad |= zr_ring_release(ring, buffer, 0) != ZR_OK ? 128 : 0;
    bad |= zr_arena_destroy(own, NULL) != ZR_OK ? 8 : 0;
    return bad;
}

static void make(zr_learner **learner)
{
    void *out;
    zr_backend_host_create(&host, &(struct zr_host_options){.granule_bytes = GRANULE, .small_pages = true});
    zr_backend_sim_create(&sim, &(struct zr_sim_options){.granule_bytes = GRANULE});
    for (unsigned i = 0; i < 3; i++)
        zr_arena_create(&arenas[i], &(struct zr_arena_options){.backend = host});
    zr_arena_create(&on_sim, &(struct zr_arena_options){.backend = sim});
    zr_contiguous_create(&pool, &(struct zr_contiguous_options){
                                    .arena = arenas[HELPER], .map_callback = {tell, untell, arenas[LEARNT]}});
    zr_ring_create(
        &ring, &(struct zr_ring_options){.arena = arenas[HELPER], .buffer_bytes = 256, .buffers_count = 2});
    zr_arena_add_map_callback(arenas[WATCHED], &(struct zr_map_callback){tell, untell, arenas[HELPER]});
    zr_arena_alloc(arenas[HELPER], &(struct zr_request){.bytes = KEPT_BYTES}, &out);
    kept = memset(out, 'k', KEPT_BYTES);
    tap_result(zr_learner_create(learner, &(struct zr_learner_options){.arena = arenas[LEARNT]}), ZR_OK,
               "a learner");
    tap_result(zr_trace_start(arenas[WATCHED], "/dev/shm/zr-fork-soak.zrt"), ZR_OK, "a trace");
    unlink("/dev/shm/zr-fork-soak.zrt");
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
    tap_skip("ThreadSanitizer itself does not fork beside threads");
    return tap_done();
#endif
    static void *(*const bodies[])(void *) = {allocate, allocate, learn, search, append, turn};
    enum { THREADS = sizeof bodies / sizeof *bodies };
    pthread_t threads[THREADS];
    zr_learner *learner;
    const char *forks = getenv("ZR_TEST_FORKS");
    unsigned count = forks ? (unsigned)atoi(forks) : FORKS, done = 0;
    int status = 0;
    make(&learner);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, bodies[i], NULL);
    for (; done < count && status == 0; done++) {
        alarm(2 * PATIENCE_SECONDS); /* for fork() itself, and the wait */
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE_SECONDS);
            _exit(in_the_child());
        }
        if (child < 0 || waitpid(child, &status, 0) != child)
            status = -1;
    }
    atomic_store(&over, true);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    alarm(0);
    tap_is(status, 0, "%u children of %u go on by themselves", done, count);
    tap_is(wrong, 0, "and the parent's bytes are its own");
    tap_ok(told > 0 && passes[0] && passes[1] && passes[2] && passes[3] && passes[4],
           "beside %u maps told, %llu, %llu, %llu, %llu and %llu passes of the threads", told,
           (unsigned long long)passes[0], (unsigned long long)passes[1], (unsigned long long)passes[2],
           (unsigned long long)passes[3], (unsigned long long)passes[4]);
    for (size_t i = 0; i < KEPT_BYTES; i++)
        wrong += kept[i] != 'k';
    tap_is(wrong, 0, "what was live all the time is as it was");
    zr_learner_destroy(learner);
    tap_result(zr_trace_stop(arenas[WATCHED]), ZR_OK, "the trace ends");
    tap_result(zr_ring_destroy(ring), ZR_OK, "the ring ends");
    tap_result(zr_contiguous_destroy(pool, NULL), ZR_OK, "the pool ends");
    for (unsigned i = 3; i-- > 0;)
        tap_result(zr_arena_destroy(arenas[i], NULL), ZR_OK, "an arena ends");
    tap_result(zr_arena_destroy(on_sim, NULL), ZR_OK, "and the one on sim");
    tap_ok(zr_backend_destroy(host) == ZR_OK && zr_backend_destroy(sim) == ZR_OK, "the backends end");
    return tap_done();
}
