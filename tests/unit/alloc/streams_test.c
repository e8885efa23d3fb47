/* streams_test.c: who gets freed space, and when, on a backend whose streams run later: sim with a clock that
 * only the test moves. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "alloc/core/arena.h"
#include "alloc/core/space.h"
#include "alloc/front/front.h"
#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/plan/plan.h"
#include "tests/support/blocks.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)
enum { WORK_NS = 1000 };

static void start(size_t limit_bytes)
{
    tap_result(zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE,
                                                                        .capacity_bytes = limit_bytes,
                                                                        .work_ns = WORK_NS}),
               ZR_OK, "a backend whose streams run later");
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}), ZR_OK, "an arena");
}

static void stop(void)
{
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
}

static void test_order(void)
{
    start(0);
    char *a = take_on(3 * GRANULE + 512, 1), *wall = take_on(GRANULE + 256, 1);
    zr_arena_free(arena, a);
    tap_is(stats().pending_bytes, 3 * GRANULE + 512, "a free of stream 1 is pending");
    tap_ok(stats().stranded_bytes < GRANULE, "and not stranded");
    tap_ok(take_on(3 * GRANULE + 512, 1) == a, "stream 1 itself gets it again at once");
    zr_arena_free(arena, a);
    char *b = take_on(3 * GRANULE + 512, 2);
    tap_ok(b && b != a, "stream 2 does not");
    tap_ok(take_on(3 * GRANULE + 512, 1) == a, "and stream 1 still does");
    zr_arena_free(arena, a);
    char *c = take_on(3 * GRANULE + 256, 3);
    tap_ok(c && c != a, "nor does stream 3, though it has asked: an event is recorded now");
    zr_sim_clock_advance(backend, WORK_NS);
    size_t reserved = stats().reserved_bytes;
    char *d = take_on(3 * GRANULE, 3);
    tap_ok(d && stats().reserved_bytes == reserved, "when it has passed, the granules are anybody's");
    zr_sim_clock_advance(backend, WORK_NS);
    zr_arena_free(arena, wall);
    uint64_t calls = stats().backend_calls_count;
    for (unsigned i = 0; i < 1000; i++)
        zr_arena_free(arena, take_on(GRANULE + 256, 1));
    tap_is(stats().backend_calls_count, calls, "a steady stream makes no driver calls");
    stop();
}

/* An event proves that what was freed before it has passed, and nothing after. */
static void test_events(void)
{
    start(0);
    char *a = take_on(3 * GRANULE, 1), *wall = take_on(3 * GRANULE, 1), *b = take_on(2 * GRANULE, 1);
    char *end = take_on(3 * GRANULE, 1);
    zr_arena_free(arena, a);
    zr_arena_trim(arena, SIZE_MAX, NULL);
    tap_is(stats().pending_bytes, 3 * GRANULE, "an event behind the first free");
    zr_sim_clock_advance(backend, WORK_NS / 2);
    zr_arena_free(arena, b);
    zr_sim_clock_advance(backend, WORK_NS / 2);
    zr_arena_trim(arena, SIZE_MAX, NULL);
    tap_is(stats().pending_bytes, 2 * GRANULE, "when it has passed the free after it is still pending");
    zr_arena_free(arena, wall);
    zr_arena_free(arena, end);
    stop();
}

static void test_merging(void)
{
    start(0);
    char *block[8];
    for (unsigned i = 0; i < 8; i++)
        block[i] = take_on(GRANULE + 256 * (i + 1), 1 + i % 2);
    for (unsigned i = 0; i < 8; i++)
        zr_arena_free(arena, block[i]);
    tap_result(zr_arena_check(arena), ZR_OK, "neighbours of two streams do not merge: %s", zr_last_error());
    zr_arena_trim(arena, 0, NULL);
    tap_ok(stats().mapped_bytes > 0, "nothing is unmapped under a stream that may still work on it");
    zr_sim_clock_advance(backend, WORK_NS);
    zr_arena_trim(arena, 0, NULL);
    tap_ok(stats().pending_bytes == 0 && stats().reserved_bytes == 0, "all is, after both have passed");
    stop();
}

static void test_use(void)
{
    start(0);
    char *a = take_on(GRANULE, 1);
    tap_result(zr_block_use(arena, a, 2), ZR_OK, "stream 2 uses a block of stream 1");
    tap_result(zr_block_use(arena, a, 2), ZR_OK, "twice is once");
    tap_result(zr_block_use(arena, a, 1), ZR_OK, "its own stream is no other");
    tap_result(zr_block_use(arena, a + 256, 2), ZR_ERR_FOREIGN, "the use of no block");
    tap_result(zr_block_use(arena, NULL, 2), ZR_ERR_INVALID, "the use of nothing");
    zr_arena_free(arena, a);
    tap_is(stats().live_bytes, 0, "its free is a free");
    tap_result(zr_arena_free(arena, a), ZR_ERR_DOUBLE_FREE, "and a second one an error");
    tap_ok(take_on(GRANULE, 1) != a, "stream 1 does not get it while stream 2 may use it");
    zr_sim_clock_advance(backend, WORK_NS);
    char *b = take_on(GRANULE, 1);
    tap_ok(b == a, "but when that has passed");
    zr_block_use(arena, b, 2);
    zr_arena_free(arena, b);
    tap_ok(take_on(GRANULE, 1) != b, "and not when stream 2 has used it again: its first use says nothing");
    stop();
}

static _Atomic(char *) shown;
static _Atomic bool enough;

static void *look(void *argument)
{
    _Atomic unsigned *wrong = argument;
    struct zr_block_info info;
    while (!atomic_load(&enough)) {
        char *block = atomic_load(&shown);
        if (block && zr_arena_find(arena, block + 5, &info) == ZR_OK && info.bytes != 5000)
            atomic_fetch_add(wrong, 1);
    }
    return NULL;
}

/* Who finds a block while it is freed finds it as it was, or not at all. */
static void test_find(void)
{
    _Atomic unsigned wrong = 0;
    pthread_t thread;
    start(0);
    pthread_create(&thread, NULL, look, &wrong);
    for (unsigned i = 0; i < 100000; i++) {
        char *block = take_on(5000, 1);
        zr_block_use(arena, block, 2);
        atomic_store(&shown, block);
        zr_arena_free(arena, block);
        if (i % 64 == 0) {
            zr_sim_clock_advance(backend, WORK_NS);
            zr_arena_trim(arena, 0, NULL);
        }
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    tap_is(atomic_load(&wrong), 0, "found while it leaves");
    stop();
}

static void test_waiting(void)
{
    start(4 * GRANULE);
    char *a = take_on(2 * GRANULE, 1), *b = take_on(2 * GRANULE, 2);
    zr_block_use(arena, b, 3);
    zr_arena_free(arena, a);
    zr_arena_free(arena, b);
    tap_ok(take_on(4 * GRANULE, 4) != NULL, "rather than fail, an allocation waits for the streams");
    stop();
}

/* One that waits does so for no more than it needs. */
static void test_wait_first(void)
{
    start(7 * GRANULE);
    char *a = take_on(2 * GRANULE, 1), *wall = take_on(GRANULE, 9), *b = take_on(2 * GRANULE, 2);
    take_on(GRANULE, 9);
    char *c = take_on(GRANULE, 3);
    tap_ok(a && wall && b && c, "three streams");
    zr_arena_free(arena, a);
    zr_arena_trim(arena, 0, NULL);
    uint64_t start_ns = zr_sim_clock_ns(backend);
    zr_sim_clock_advance(backend, WORK_NS / 2);
    zr_arena_free(arena, c);
    zr_arena_trim(arena, 0, NULL);
    zr_sim_clock_advance(backend, WORK_NS / 4);
    zr_arena_free(arena, b);
    tap_ok(take_on(2 * GRANULE, 4) != NULL, "memory that is short");
    tap_is(zr_sim_clock_ns(backend) - start_ns, WORK_NS, "comes when the first stream has passed");
    tap_ok(take_on(GRANULE, 4) != NULL, "the next");
    tap_is(zr_sim_clock_ns(backend) - start_ns, WORK_NS * 3 / 2, "with the stream that was first after it");
    tap_ok(take_on(2 * GRANULE, 4) != NULL, "the last");
    tap_is(zr_sim_clock_ns(backend) - start_ns, WORK_NS * 7 / 4,
           "when all have: its event came with the first wait");
    stop();
}

static void test_many_streams(void)
{
    start(0);
    for (uint64_t i = 0; i < 600; i++)
        zr_arena_free(arena, take_on(GRANULE * (1 + i % 3), 1000 + i));
    tap_result(zr_arena_check(arena), ZR_OK, "600 streams: %s", zr_last_error());
    zr_sim_clock_advance(backend, WORK_NS);
    zr_arena_trim(arena, 0, NULL);
    zr_sim_clock_advance(backend, WORK_NS);
    zr_arena_trim(arena, 0, NULL);
    tap_is(stats().reserved_bytes, 0, "nothing stays with any of them");
    stop();
}

/* A planned block that a second stream uses keeps its place until that has passed. */
static void test_planned_use(void)
{
    const struct zr_plan_step step = {
        .request = {.bytes = GRANULE, .alignment = 256, .tag = ZR_TAG_GRAD, .stream = 1},
        .thread = zr_thread_number(),
        .alive_count = 1};
    const struct zr_plan_sequence sequence = {.count = 1, .any = true};
    start(0);
    tap_result(zr_arena_install_plan(arena, &(struct zr_plan){.steps = &step,
                                                              .steps_count = 1,
                                                              .sequences = &sequence,
                                                              .sequences_count = 1,
                                                              .region_bytes = GRANULE}),
               ZR_OK, "a plan of one step");
    char *a = take_on(GRANULE, 1);
    zr_arena_free(arena, a);
    tap_ok(take_on(GRANULE, 1) == a, "whose block lies where it lay");
    zr_block_use(arena, a, 2);
    zr_arena_free(arena, a);
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    tap_is(stats().pending_bytes, GRANULE, "pending");
    char *b = take_on(GRANULE, 1);
    tap_ok(b && b != a, "another lies elsewhere while stream 2 is at work");
    zr_arena_free(arena, b);
    zr_sim_clock_advance(backend, WORK_NS);
    zr_arena_trim(arena, SIZE_MAX, NULL);
    tap_ok(take_on(GRANULE, 1) == a, "and then there");
    stop();
}

static const struct zr_backend_ops *below;
static bool hung;

static zr_result refuse_event(zr_backend *of, uint64_t stream, struct zr_stream_point *out)
{
    (void)of, (void)stream, (void)out;
    return zr_fail(ZR_ERR_UNAVAILABLE, "no event");
}

static zr_result synchronize_maybe(zr_backend *of)
{
    return hung ? zr_fail(ZR_ERR_UNAVAILABLE, "no answer") : below->synchronize(of);
}

/* Where no event can be had, an allocation waits for all; where that fails too, what is pending stays. */
static void test_without_events(void)
{
    start(4 * GRANULE);
    struct zr_backend_ops ops = *(below = backend->ops);
    ops.event_record = refuse_event;
    ops.synchronize = synchronize_maybe;
    backend->ops = &ops;
    for (unsigned i = 0; i < 3; i++) {
        char *a = take_on(2 * GRANULE, 1), *b = take_on(2 * GRANULE, 2);
        zr_block_use(arena, b, 3);
        zr_arena_free(arena, a);
        zr_arena_free(arena, b);
        hung = i == 1;
        char *all = take_on(4 * GRANULE, 4);
        tap_ok(all == NULL ? hung : !hung, "a block on what three streams leave: %s", zr_last_error());
        tap_is(stats().pending_bytes, hung ? 4 * GRANULE : 0, "pending");
        hung = false;
        all = all ? all : take_on(4 * GRANULE, 4);
        tap_ok(all, "it can be had in the end");
        zr_arena_free(arena, all);
        take_on(4 * GRANULE, 4);
        zr_arena_free(arena, all);
    }
    backend->ops = below;
    stop();
}

/* A block that leaves while each record has a stream waits for one to come free. */
static void test_no_record_left(void)
{
    static char *blocks[ZR_STREAMS_MAX];
    start(0);
    char *a = take_on(GRANULE, 9000);
    zr_block_use(arena, a, 9001);
    for (uint64_t i = 0; i < ZR_STREAMS_MAX; i++)
        blocks[i] = take_on(GRANULE, 1 + i);
    for (unsigned i = 0; i < ZR_STREAMS_MAX; i++)
        zr_arena_free(arena, blocks[i]);
    zr_arena_free(arena, a);
    for (unsigned i = 0; i < 4; i++) {
        zr_sim_clock_advance(backend, WORK_NS);
        zr_arena_trim(arena, 0, NULL);
        tap_ok(i > 0 || arena->unnumbered != NULL, "pending: %zu bytes", stats().pending_bytes);
    }
    tap_ok(stats().reserved_bytes == 0 && stats().pending_bytes == 0, "in the end nothing is held");
    stop();
}

/* What was freed last is kept for its size, out of every gap: it must not outlast its stream there. */
static void test_warm(void)
{
    char *block[5];
    start(14 * GRANULE);
    for (unsigned i = 0; i < 5; i++) {
        block[i] = take_on(GRANULE, 1);
        take_on(GRANULE, 9);
    }
    /* From the cache, so that nothing looks at the gaps as a whole. */
    struct zr_handle_list list;
    tap_result(zr_granules_take(arena, 4 * GRANULE, &list), ZR_OK, "granules for later");
    for (unsigned i = 0; i < 5; i++)
        zr_arena_free(arena, block[i]);
    zr_granules_give(arena, &list);
    tap_ok(take_on(2 * GRANULE, 2) != NULL, "the streams are asked");
    zr_sim_clock_advance(backend, WORK_NS);
    tap_ok(take_on(2 * GRANULE, 3) != NULL, "and have passed");
    uint64_t passed_ns = zr_sim_clock_ns(backend);
    tap_ok(take_on(5 * GRANULE, 4) != NULL, "all that stream 1 has freed is anybody's");
    tap_is(zr_sim_clock_ns(backend), passed_ns, "without a wait");
    stop();
}

/* A block kept warm for want of a record still belongs to its stream. */
static void test_warm_kept(void)
{
    start(0);
    char *a = take_on(GRANULE, 1);
    take_on(GRANULE, 9);
    char *b = take_on(2 * GRANULE, 2);
    take_on(GRANULE, 9);
    zr_arena_free(arena, a);
    zr_fault_set(ZR_FAULT_METADATA, 1);
    zr_arena_free(arena, b);
    tap_ok(zr_fault_set(ZR_FAULT_METADATA, 0) > 0, "a record is refused");
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    tap_ok(take_on(GRANULE, 2) != a, "stream 2 does not get what stream 1 may use");
    tap_ok(take_on(GRANULE, 1) == a, "stream 1 does");
    stop();
}

/* As many events as a stream may have, all of them older than its last free. */
static void test_late_free(void)
{
    start(2 * (ZR_STREAM_MARKS + 1) * GRANULE);
    char *a = take_on(GRANULE, 1);
    take_on(GRANULE, 9);
    for (unsigned i = 0; i < ZR_STREAM_MARKS; i++) {
        zr_arena_free(arena, a);
        tap_is(stats().pending_bytes, GRANULE, "pending");
        tap_ok(take_on(2 * GRANULE, 2) != NULL, "event %u", i + 1);
        tap_ok(take_on(GRANULE, 1) == a, "the block again");
    }
    zr_arena_free(arena, a);
    tap_ok(take_on(GRANULE, 2) != NULL, "one more event is waited for: %s", zr_last_error());
    stop();
}

/* A stream that owns nothing any more gives its record to another one, and keeps its events. */
static void test_record_reused(void)
{
    start(0);
    char *a = take_on(GRANULE, 1);
    take_on(GRANULE, 9);
    char *b = take_on(2 * GRANULE, 3);
    take_on(GRANULE, 9);
    for (unsigned i = 0; i < ZR_STREAM_MARKS; i++) {
        zr_arena_free(arena, a);
        zr_arena_trim(arena, SIZE_MAX, NULL);
        a = take_on(GRANULE, 1);
    }
    tap_is(arena->streams[1]->marks_count, ZR_STREAM_MARKS, "as many events as a stream may have");
    zr_arena_free(arena, b);
    tap_ok(arena->streams_count == 1 && arena->streams[1]->stream == 3, "its record is stream 3's");
    zr_arena_trim(arena, 0, NULL);
    zr_sim_clock_advance(backend, WORK_NS);
    zr_arena_trim(arena, 0, NULL);
    tap_is(stats().pending_bytes, 0, "which waits for an event of its own");
    stop();
}

/* Billions of frees while nobody asks what has passed. */
static void test_count_of_frees(void)
{
    start(0);
    char *a = take_on(GRANULE, 1);
    take_on(GRANULE, 9);
    char *b = take_on(2 * GRANULE, 1);
    take_on(GRANULE, 9);
    zr_arena_free(arena, a);
    tap_is(stats().pending_bytes, GRANULE, "freed early");
    for (unsigned i = 0; i < 3; i++) {
        arena->streams[1]->freed += UINT32_C(1) << 30;
        zr_arena_free(arena, b);
        b = take_on(2 * GRANULE, 1);
    }
    for (unsigned i = 0; i < 2; i++) {
        zr_arena_trim(arena, 0, NULL);
        zr_sim_clock_advance(backend, WORK_NS);
    }
    tap_is(stats().pending_bytes, 0, "the count wraps, and nothing stays with the stream");
    stop();
}

/* An event from before the count has come round says nothing of what is freed now. */
static void test_old_event(void)
{
    start(0);
    char *a = take_on(GRANULE, 1);
    take_on(GRANULE, 9);
    char *b = take_on(2 * GRANULE, 1);
    take_on(GRANULE, 9);
    zr_arena_free(arena, a);
    take_on(GRANULE, 2);
    tap_is(arena->streams[1]->marks_count, 1, "an event behind the first free");
    for (unsigned i = 0; i < 3; i++) {
        arena->streams[1]->freed += UINT32_C(1) << 30;
        zr_arena_free(arena, b);
        b = take_on(2 * GRANULE, 1);
    }
    zr_arena_free(arena, b);
    tap_ok(take_on(2 * GRANULE, 2) != b, "a block whose stream has not got there is nobody else's");
    stop();
}

/* With the addresses used up, what is kept warm is a gap like any other. */
static void test_addresses(void)
{
    tap_result(zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE}), ZR_OK,
               "a backend");
    tap_result(
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = 4 * GRANULE}),
        ZR_OK, "four granules of addresses");
    struct zr_extent *region;
    char *a = take_on(GRANULE, 0);
    zr_lock_acquire(&arena->lock);
    tap_result(zr_region_reserve(arena, 3 * GRANULE, &region), ZR_OK, "three of them a plan's");
    zr_lock_release(&arena->lock);
    zr_arena_free(arena, a);
    zr_lock_acquire(&arena->lock);
    zr_region_release(arena, region);
    zr_lock_release(&arena->lock);
    tap_ok(take_on(4 * GRANULE, 0) == a, "all of them a block's: %s", zr_last_error());
    zr_arena_free(arena, a);
    /* The last of them, behind some that are free: no open end is left. */
    void *end;
    char *low = take_on(256, 0);
    tap_result(zr_arena_alloc(arena, &(struct zr_request){.bytes = 3 * GRANULE, .alignment = GRANULE}, &end),
               ZR_OK, "an aligned block at their end");
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    zr_arena_free(arena, low);
    zr_arena_free(arena, end);
    tap_ok(take_on(4 * GRANULE, 0) == a, "then all again");
    stop();
}

int main(void)
{
    test_warm();
    test_warm_kept();
    test_late_free();
    test_record_reused();
    test_count_of_frees();
    test_old_event();
    test_addresses();
    test_order();
    test_events();
    test_merging();
    test_use();
    test_find();
    test_waiting();
    test_wait_first();
    test_many_streams();
    test_no_record_left();
    test_without_events();
    test_planned_use();
    return tap_done();
}
