/* stripes_test.c: an arena made for several threads: who gets a seat, one limit and one set of numbers for
 * all, memory that goes from one to the other. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/core/arena.h"
#include "alloc/front/stripes.h"
#include "alloc/base/fault.h"
#include "alloc/plan/plan.h"
#include "defrag/zr_defrag.h"
#include "tests/support/blocks.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)
enum { THREADS = 4, HELD = 64 };

static void start(unsigned threads, size_t limit_bytes)
{
    zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = GRANULE});
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                                  .reserve_bytes = (size_t)1 << 30,
                                                                  .limit_bytes = limit_bytes,
                                                                  .threads = threads}),
               ZR_OK, "an arena for %u threads", threads);
}

static void stop(size_t want_leaked)
{
    size_t leaked = 0;
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    tap_result(zr_arena_destroy(arena, &leaked), ZR_OK, "the arena ends");
    tap_is(leaked, want_leaked, "and knows what was live");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
}

/* Makes a stripe by hand, for what must not hang on how threads meet, and sends this thread's requests to a
 * member. */
static void add_sibling(void)
{
    tap_is(zr_arena_add_stripe(arena, 1 + atomic_load(&arena->stripes_count)), 1, "a stripe");
}

/* A stripe whose address space or records are refused half way leaves nothing. */
static void test_refused(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_RESERVE, ZR_FAULT_METADATA};
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        unsigned made = 0, refused = 0;
        for (uint64_t nth = 1; !made; nth++) {
            start(THREADS, 0);
            zr_fault_set(sites[i], nth);
            made = zr_arena_add_stripe(arena, 1);
            zr_fault_set(sites[i], 0);
            refused += !made;
            stop(0);
        }
        tap_ok(refused > 0, "%s: a stripe is refused at %u places", zr_fault_site_name(sites[i]), refused);
    }
}

/* ---- Threads that meet --------------------------------------------------------------------------------- */

static _Atomic(char *) exchange[HELD];
static _Atomic unsigned wrong;
static _Atomic bool enough, barred;

/* Only while the lock is taken, until there is a stripe: threads that share a processor meet too seldom. */
static void meet(void)
{
    while (!atomic_load(&enough) && atomic_load(&arena->stripes_count) == 0) {
        if (atomic_load(&barred))
            zr_arena_free(arena, take(64));
        else
            sched_yield();
    }
}

static void *work(void *argument)
{
    uint64_t random = (uintptr_t)argument * UINT64_C(0x9e3779b97f4a7c15) + 1;
    meet();
    while (!atomic_load(&enough)) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size_t bytes = 64 + random % 4096;
        char *block = take(bytes);
        struct zr_block_info info;
        if (!block || zr_arena_find(arena, block + bytes - 1, &info) != ZR_OK || info.address != block)
            atomic_fetch_add(&wrong, 1);
        if (block)
            memset(block, 7, bytes);
        char *old = atomic_exchange(&exchange[random >> 32 & (HELD - 1)], block);
        if (old && (old[0] != 7 || zr_arena_free(arena, old) != ZR_OK))
            atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[THREADS];
    unsigned forked = 0;
    start(THREADS, 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (unsigned i = 0; i < 10000 && atomic_load(&arena->stripes_count) == 0; i++) {
        zr_lock_acquire(&arena->lock);
        atomic_store(&barred, true);
        usleep(1000);
        atomic_store(&barred, false);
        zr_lock_release(&arena->lock);
    }
    for (unsigned i = 0; i < 5; i++) {
        int status = 1;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            alarm(120); /* a deadlock */
            void *block = take(5000);
            _exit(block && zr_arena_free(arena, block) == ZR_OK && zr_arena_check(arena) == ZR_OK ? 0 : 1);
        }
        waitpid(child, &status, 0);
        forked += status == 0;
        zr_arena_trim(arena, 0, NULL);
    }
    atomic_store(&enough, true);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tap_is(atomic_load(&wrong), 0, "%d threads take, find and free, also what others took", THREADS);
    tap_is(forked, 5, "children allocate");
    tap_ok(atomic_load(&arena->stripes_count) >= 1, "%u stripes came of it",
           atomic_load(&arena->stripes_count));
    tap_ok(atomic_load(&arena->stripes_count) < THREADS, "no more than the threads it was made for");
    for (unsigned i = 0; i < HELD; i++)
        if (exchange[i])
            zr_arena_free(arena, exchange[i]);
    tap_is(stats().live_bytes, 0, "all is free");
    zr_arena_trim(arena, 0, NULL);
    tap_is(stats().reserved_bytes, 0, "and given back");
    stop(0);
}

/* ---- One family ---------------------------------------------------------------------------------------- */

static void test_family(void)
{
    struct zr_block_info info;
    start(2, 10 * GRANULE);
    char *a = take(4 * GRANULE);
    add_sibling();
    struct zr_arena *stripe = arena->stripes[0];
    char *b = take_as(stripe, 4 * GRANULE, ZR_TAG_GRAD, 0);
    tap_ok(a && b, "a block from each");
    struct zr_arena_stats now = stats();
    tap_ok(now.live_bytes == 8 * GRANULE && now.reserved_bytes == 8 * GRANULE && now.blocks_count == 2 &&
               now.live_by_tag_bytes[ZR_TAG_GRAD] == 8 * GRANULE,
           "the numbers are the family's");
    tap_is(now.peak_reserved_bytes, 8 * GRANULE, "the peak of the reserved bytes too");
    tap_result(zr_arena_find(arena, b + 5, &info), ZR_OK, "a block of the stripe is found");
    tap_result(zr_arena_free(arena, b + 256), ZR_ERR_FOREIGN, "what is not its first byte is not freed");
    tap_result(zr_block_use(arena, b, 3), ZR_OK, "used by a stream");
    tap_ok(take_as(stripe, 4 * GRANULE, ZR_TAG_GRAD, 0) == NULL, "one limit for both: %s", zr_last_error());
    zr_arena_free(arena, a);
    tap_ok(take_as(stripe, 9 * GRANULE, ZR_TAG_GRAD, 0) == NULL,
           "nor more than the limit, with what the other has idle");
    now = stats();
    tap_ok(now.cached_bytes > 0 && now.mapped_bytes + now.cached_bytes == now.reserved_bytes,
           "which is in its cache, and in the numbers: %zu + %zu of %zu bytes", now.mapped_bytes,
           now.cached_bytes, now.reserved_bytes);
    a = take_as(stripe, 5 * GRANULE, ZR_TAG_GRAD, 0);
    tap_ok(a != NULL, "what one has idle, the other gets");
    tap_is(stats().reserved_bytes, 9 * GRANULE, "under the limit");
    tap_result(zr_arena_free(arena, b), ZR_OK, "freed where it lies");
    tap_result(zr_arena_free(arena, b), ZR_ERR_DOUBLE_FREE, "once");
    tap_result(zr_trace_start(arena, "/dev/null"), ZR_ERR_INVALID, "a trace comes too late: %s",
               zr_last_error());
    size_t released = 0;
    zr_arena_trim(arena, 0, &released);
    tap_is(released, 4 * GRANULE, "a trim reaches both");
    stop(5 * GRANULE);
}

/* A member that is short takes what it misses, as it is, and leaves the others the rest. */
static void test_shares(void)
{
    start(2, 12 * GRANULE);
    add_sibling();
    struct zr_arena *stripe = arena->stripes[0];
    char *a = take(2 * GRANULE), *b = take_as(stripe, 10 * GRANULE, ZR_TAG_GRAD, 0);
    tap_ok(a && b, "all of the limit");
    zr_arena_free(arena, b);
    zr_fault_set(ZR_FAULT_CREATE, 0);
    b = take(3 * GRANULE);
    tap_ok(b != NULL, "a member that is short: %s", zr_last_error());
    tap_is(zr_fault_set(ZR_FAULT_CREATE, 0), 0, "the driver is not asked for what the stripe has");
    zr_lock_acquire(&stripe->lock);
    tap_ok(stripe->mapped_bytes >= 6 * GRANULE, "and the stripe keeps the rest");
    zr_lock_release(&stripe->lock);
    tap_is(stats().reserved_bytes, 12 * GRANULE, "nothing is lost on the way");
    zr_arena_free(arena, a);
    zr_arena_free(arena, b);
    stop(0);
}

/* What one has freed and a stream still uses, on a backend whose streams run later. */
static void test_pending(void)
{
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE, .work_ns = 1000});
    tap_result(
        zr_arena_create(
            &arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = 4 * GRANULE, .threads = 2}),
        ZR_OK, "an arena whose streams run later");
    add_sibling();
    char *a = take_as(arena->stripes[0], 4 * GRANULE, ZR_TAG_GRAD, 0);
    zr_arena_free(arena, a);
    a = take(4 * GRANULE);
    tap_ok(a != NULL, "rather than fail, an allocation waits for the stripe's streams: %s", zr_last_error());
    zr_arena_free(arena, a);
    stop(0);
}

/* A pool gets what the arena could give to a block. */
static void test_pool(void)
{
    zr_contiguous *pool;
    zr_entry entry;
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE, .work_ns = 1000});
    tap_result(
        zr_arena_create(
            &arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = 4 * GRANULE, .threads = 2}),
        ZR_OK, "an arena with a pool");
    add_sibling();
    char *a = take(2 * GRANULE), *b = take_as(arena->stripes[0], 2 * GRANULE, ZR_TAG_GRAD, 0);
    tap_ok(a && b, "a block from each");
    zr_arena_free(arena, a);
    zr_arena_free(arena, b);
    tap_result(zr_contiguous_create(&pool, &(struct zr_contiguous_options){.arena = arena}), ZR_OK, "a pool");
    tap_result(zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 4 * GRANULE}, &entry, NULL),
               ZR_OK, "gets what streams and stripes have done with: %s", zr_last_error());
    tap_result(zr_contiguous_destroy(pool, NULL), ZR_OK, "the pool ends");
    stop(0);
}

/* A pool's entries count in the peak of all threads, also once they are gone and nobody asked meanwhile. */
static void test_peak(void)
{
    zr_contiguous *pool = NULL;
    zr_entry entry;
    void *block = NULL;
    start(THREADS, 0);
    add_sibling();
    zr_arena_alloc(arena->stripes[0], &(struct zr_request){.bytes = 50 << 20}, &block);
    void *more = take_as(arena->stripes[0], 4 << 20, ZR_TAG_GRAD, 0);
    tap_result(zr_contiguous_create(&pool, &(struct zr_contiguous_options){.arena = arena,
                                                                           .tag = ZR_TAG_GRAD,
                                                                           .reserve_bytes = 256 << 20}),
               ZR_OK, "a pool beside another member's block");
    zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 100 << 20}, &entry, NULL);
    zr_contiguous_free(pool, entry);
    tap_is(stats().peak_live_bytes, 154 << 20, "the peak has both, once");
    zr_contiguous_destroy(pool, NULL);
    zr_arena_free(arena, block);
    zr_arena_free(arena, more);
    stop(0);
}

static void test_one(void)
{
    zr_arena *none;
    zr_backend_host_create(&backend, NULL);
    tap_result(zr_arena_create(&none, &(struct zr_arena_options){.backend = backend, .threads = 9}),
               ZR_ERR_INVALID, "nine threads are too many: %s", zr_last_error());
    zr_backend_destroy(backend);
    start(1, 0);
    tap_ok(arena->stripes_max == 1, "an arena for one thread never has stripes");
    stop(0);
}

/* While a learner watches, all allocate from the head; once it is gone, as before. */
static void test_together(void)
{
    zr_learner *learner = NULL;
    start(THREADS, 0);
    tap_result(zr_learner_create(&learner, &(struct zr_learner_options){.arena = arena}), ZR_OK, "a learner");
    tap_is(zr_arena_add_stripe(arena, 1), 0, "keeps threads together");
    zr_learner_destroy(learner);
    tap_is(zr_arena_add_stripe(arena, 1), 1, "and lets them part when it is gone");
    tap_result(zr_arena_install_plan(arena, NULL), ZR_OK, "no plan");
    tap_is(zr_arena_add_stripe(arena, 2), 1, "keeps nobody");
    stop(0);
}

int main(void)
{
    test_one();
    test_together();
    test_family();
    test_shares();
    test_pending();
    test_pool();
    test_peak();
    test_refused();
    test_threads();
    return tap_done();
}
