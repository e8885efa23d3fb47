/* cuda_streams_test.c: streams that can be neither recorded nor waited for, or are another device's: what
 * they may still use is nobody else's, and counts as what it is. On the emulated driver, whose work is late.
 */
#include "alloc/core/arena.h"
#include "alloc/core/core.h"
#include "tests/support/blocks.h"
#include "tests/support/cuda/cuda_streams.h"

static void start(size_t limit_bytes)
{
    backend = create(&(struct zr_cuda_options){.limit_bytes = limit_bytes});
    tap_result(zr_arena_create(
                   &arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = 2048 * GRANULE}),
               ZR_OK, "an arena");
}

static void stop(void)
{
    emulator->work_ticks(3);
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends");
    tap_result(zr_backend_synchronize(backend), ZR_OK, "nothing crashed");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
    tap_ok(nothing_left(), "nothing is left");
}

static zr_ring *new_ring(unsigned buffers_count)
{
    zr_ring *ring = NULL;
    struct zr_ring_options options = {
        .arena = arena, .buffers_count = buffers_count, .buffer_bytes = GRANULE};
    tap_result(zr_ring_create(&ring, &options), ZR_OK, "a ring");
    return ring;
}

static zr_contiguous *new_pool(void)
{
    zr_contiguous *pool = NULL;
    struct zr_contiguous_options options = {.arena = arena, .reserve_bytes = 8 * GRANULE};
    tap_result(zr_contiguous_create(&pool, &options), ZR_OK, "a pool");
    return pool;
}

/* Whichever of a block's streams is the last to pass, it is waited for. */
static void test_several_uses(void)
{
    enum { USES = 3 };
    zr_cu_stream own = new_stream(), others[USES];
    for (unsigned i = 0; i < USES; i++)
        others[i] = new_stream();
    for (unsigned slow = 0; slow < USES; slow++) {
        start(4 * GRANULE);
        char *block = take_on(2 * GRANULE, number_of(own));
        for (unsigned i = 0; i < USES; i++)
            zr_block_use(arena, block, number_of(others[i]));
        emulator->work_ticks(FOREVER);
        launch(others[slow], block, 2 * GRANULE);
        tap_result(zr_arena_free(arena, block), ZR_OK, "freed while the %uth of its streams works", slow + 2);
        char *next = take_on(2 * GRANULE, number_of(own));
        tap_ok(next && next != block && emulator->state().pending_count == 1, "its memory is nobody else's");
        char *last = take_on(2 * GRANULE, number_of(own));
        tap_ok(last && emulator->state().pending_count == 0, "until that has passed");
        zr_arena_free(arena, next);
        zr_arena_free(arena, last);
        stop();
    }
    drop_stream(own);
    for (unsigned i = 0; i < USES; i++)
        drop_stream(others[i]);
}

/* As many points as can be pending: one more waits for its stream. */
static void test_most_points(void)
{
    enum { MOST = 1 << 16 };
    struct zr_stream_point point;
    zr_cu_stream stream = new_stream();
    unsigned refused = 0;
    start(2 * GRANULE);
    char *block = take_on(GRANULE, number_of(stream));
    emulator->work_ticks(FOREVER);
    launch(stream, block, GRANULE);
    for (unsigned i = 0; i < MOST; i++)
        refused += zr_backend_event_record(backend, number_of(stream), &point) != ZR_OK;
    tap_ok(refused == 0 && !zr_backend_event_done(backend, &point), "65,536 points are pending");
    tap_result(zr_backend_event_record(backend, number_of(stream), &point), ZR_OK, "one more is made");
    tap_ok(emulator->state().pending_count == 0 && zr_backend_event_done(backend, &point),
           "when the stream has come to it");
    tap_result(zr_backend_event_record(backend, number_of(stream), &point), ZR_OK,
               "then there is room again");
    zr_arena_free(arena, block);
    stop();
    drop_stream(stream);
}

/* Many blocks that streams are at work on: each stream is asked once as long as it has not passed, and a
 * block leaves when all of its own have. */
static void test_queues(void)
{
    enum { BLOCKS = 64, LATE = 32, ENOUGH = 400000 };
    zr_cu_stream own = new_stream(), short_one = new_stream(), long_one = new_stream();
    char *blocks[BLOCKS];
    start(2 * BLOCKS * GRANULE);
    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = take_on(GRANULE, number_of(own));
        zr_block_use(arena, blocks[i], number_of(short_one));
        if (i % 2)
            zr_block_use(arena, blocks[i], number_of(long_one));
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        emulator->work_ticks(i < LATE ? 10000 : FOREVER);
        launch(short_one, blocks[i], GRANULE);
        emulator->work_ticks(FOREVER);
        if (i % 2)
            launch(long_one, blocks[i], GRANULE);
        zr_arena_free(arena, blocks[i]);
    }
    uint64_t asked = emulator->calls("cuEventQuery");
    tap_ok(take_on(GRANULE, number_of(own)) && stats().pending_bytes == BLOCKS * GRANULE,
           "a block beside %u that two streams use", BLOCKS);
    asked = emulator->calls("cuEventQuery") - asked;
    tap_ok(asked <= 4 * 2, "took %d questions to the driver", (int)asked);
    for (unsigned i = 0; i < ENOUGH; i++)
        emulator->pass();
    tap_ok(take_on(2 * GRANULE, number_of(own)) != NULL, "later");
    tap_is(stats().pending_bytes, (BLOCKS - LATE / 2) * GRANULE,
           "those have left whose work is over in every stream");
    tap_is(emulator->state().pending_count, BLOCKS / 2 + BLOCKS - LATE, "the others' work goes on");
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right: %s", zr_last_error());
    stop();
    drop_stream(own);
    drop_stream(short_one);
    drop_stream(long_one);
}

/* A thread that would rather wait than have the arena grow waits for what is enough, and no longer. */
static void test_growth(void)
{
    start(0);
    zr_cu_stream own = new_stream(), others[2] = {new_stream(), new_stream()};
    char *hole = take_on(GRANULE, number_of(own)), *blocks[2];
    take_on(GRANULE, number_of(own));
    for (unsigned i = 0; i < 2; i++) {
        blocks[i] = take_on(4 * GRANULE, number_of(own));
        zr_block_use(arena, blocks[i], number_of(others[i]));
    }
    for (unsigned i = 0; i < 2; i++) {
        emulator->work_ticks(i == 0 ? 100000 : FOREVER);
        launch(others[i], blocks[i], 4 * GRANULE);
        zr_arena_free(arena, blocks[i]);
    }
    char *grown = take_on(GRANULE, number_of(own));
    tap_ok(grown && stats().reserved_bytes == 11 * GRANULE && emulator->state().pending_count == 2,
           "an arena grows beside what is pending");
    zr_arena_free(arena, hole);
    zr_thread_waits_to_grow = true;
    tap_ok(take_on(3 * GRANULE, number_of(own)) && stats().reserved_bytes == 11 * GRANULE,
           "or does not, where the thread waits");
    tap_is(emulator->state().pending_count, 1, "for the first to pass");
    tap_ok(take_on(2 * GRANULE, number_of(own)) && emulator->state().pending_count == 1,
           "what is idle in two places is had without a wait");
    tap_ok(take_on(6 * GRANULE, number_of(own)) && stats().reserved_bytes == 13 * GRANULE,
           "and what is pending does not do is grown by");
    tap_is(emulator->state().pending_count, 0, "once it has passed");
    zr_thread_waits_to_grow = false;
    stop();
    drop_stream(own);
    drop_stream(others[0]);
    drop_stream(others[1]);
}

/* A block that a second stream is at work on, freed while the driver can say nothing. */
static void test_uses(void)
{
    start(4 * GRANULE);
    zr_cu_stream own = new_stream(), other = new_stream();
    char *block = take_on(2 * GRANULE, number_of(own));
    zr_block_use(arena, block, number_of(other));
    emulator->work_ticks(FOREVER);
    launch(other, block, 2 * GRANULE);
    always_fail(NULL, ZR_CU_UNKNOWN);
    tap_result(zr_arena_free(arena, block), ZR_OK, "a free while the driver fails");
    tap_is(stats().pending_bytes, 2 * GRANULE, "is pending");
    tap_ok(take_on(3 * GRANULE, number_of(own)) == NULL && stats().pending_bytes == 2 * GRANULE,
           "and stays so while it cannot be waited for");
    never_fail();
    char *next = take_on(2 * GRANULE, number_of(own));
    tap_ok(next && next != block && emulator->state().pending_count == 1, "its memory is nobody else's");
    tap_ok(take_on(2 * GRANULE, number_of(own)) && emulator->state().pending_count == 0,
           "until the driver answers again, and the stream has passed");
    stop();
    drop_stream(own);
    drop_stream(other);
}

/* More streams than have numbers. */
static void test_numbers(void)
{
    static zr_cu_stream streams[ZR_STREAMS_MAX + 1];
    static char *blocks[ZR_STREAMS_MAX + 1];
    start(2 * (ZR_STREAMS_MAX + 1) * GRANULE);
    for (unsigned i = 0; i <= ZR_STREAMS_MAX; i++) {
        streams[i] = new_stream();
        blocks[i] = take_on(GRANULE, number_of(streams[i]));
        take_on(GRANULE, number_of(streams[i])); /* gaps do not touch */
    }
    for (unsigned i = 0; i < ZR_STREAMS_MAX; i++)
        zr_arena_free(arena, blocks[i]);
    emulator->work_ticks(FOREVER);
    launch(streams[ZR_STREAMS_MAX], blocks[ZR_STREAMS_MAX], GRANULE);
    always_fail(NULL, ZR_CU_UNKNOWN);
    tap_result(zr_arena_free(arena, blocks[ZR_STREAMS_MAX]), ZR_OK, "a free by one stream too many");
    never_fail();
    tap_is(stats().pending_bytes, (ZR_STREAMS_MAX + 1) * GRANULE, "is pending while it cannot be waited for");
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right: %s", zr_last_error());
    unsigned got = 0;
    bool early = false;
    for (; got < ZR_STREAMS_MAX && take_on(GRANULE, number_of(streams[0])); got++)
        early |= emulator->state().pending_count == 0;
    tap_ok(got == ZR_STREAMS_MAX && !early, "all others' memory is had before it");
    tap_ok(take_on(GRANULE, number_of(streams[0])) && emulator->state().pending_count == 0,
           "then its own, once it has passed");
    stop();
    for (unsigned i = 0; i <= ZR_STREAMS_MAX; i++)
        drop_stream(streams[i]);
}

/* The wait that comes once in a billion frees fails. */
static void test_count_of_frees(void)
{
    start(4 * GRANULE);
    zr_cu_stream own = new_stream(), other = new_stream();
    char *first = take_on(GRANULE, number_of(own)), *second = take_on(2 * GRANULE, number_of(own));
    zr_arena_free(arena, first);
    arena->streams[1]->freed += UINT32_C(1) << 30;
    emulator->work_ticks(FOREVER);
    launch(own, second, 2 * GRANULE);
    always_fail(NULL, ZR_CU_UNKNOWN);
    zr_arena_free(arena, second);
    never_fail();
    tap_is(stats().pending_bytes, 3 * GRANULE, "frees are pending whose stream cannot be waited for");
    tap_ok(take_on(GRANULE - 512, number_of(other)) && emulator->state().pending_count == 1,
           "others do with what there is");
    tap_ok(take_on(2 * GRANULE, number_of(other)) && emulator->state().pending_count == 0,
           "until the stream has passed");
    stop();
    drop_stream(own);
    drop_stream(other);
}

/* A stream that was destroyed has no events; the device is waited for. */
static void test_destroyed(void)
{
    start(2 * GRANULE);
    zr_cu_stream own = new_stream(), other = new_stream();
    zr_arena_free(arena, take_on(2 * GRANULE, number_of(own)));
    drop_stream(own);
    tap_ok(take_on(2 * GRANULE, number_of(other)) != NULL, "what a destroyed stream has left is had: %s",
           zr_last_error());
    stop();
    drop_stream(other);
}

/* ---- Peers --------------------------------------------------------------------------------------------- */

static void test_peers(void)
{
    start(4 * GRANULE);
    zr_cu_stream own = new_stream(), peer = new_stream_of(1);
    char *block = take_on(2 * GRANULE, number_of(own));
    uint64_t records = emulator->calls("cuEventRecord");
    tap_result(zr_block_use(arena, block, number_of(peer)), ZR_ERR_INVALID,
               "a peer's stream uses no block: %s", zr_last_error());
    tap_ok(strstr(zr_last_error(), "another device"), "the words say why");
    tap_result(zr_block_use(arena, block, 0), ZR_OK, "the default stream does");
    zr_arena_free(arena, block);
    tap_is(emulator->calls("cuEventRecord") - records, 1, "and is the only one that the free asks");
    tap_ok(take_on(4 * GRANULE, number_of(own)), "then the memory is anybody's");
    stop();

    start(4 * GRANULE);
    block = take_on(2 * GRANULE, number_of(peer));
    zr_arena_free(arena, block);
    char *other = take_on(2 * GRANULE, number_of(own));
    tap_ok(other && other != block, "what a peer's stream has freed is nobody else's");
    tap_ok(take_on(2 * GRANULE, number_of(own)) == NULL && stats().pending_bytes == 2 * GRANULE,
           "however short memory is: it stays pending");
    tap_ok(take_on(2 * GRANULE, number_of(peer)) == block, "that stream gets it again");
    stop();

    start(4 * GRANULE);
    zr_ring *ring = new_ring(2);
    void *buffer = NULL;
    tap_result(zr_ring_acquire(ring, number_of(own), 0, &buffer), ZR_OK, "a buffer");
    tap_result(zr_ring_release(ring, buffer, number_of(peer)), ZR_ERR_INVALID,
               "is not released to a peer's stream: %s", zr_last_error());
    tap_result(zr_ring_release(ring, buffer, number_of(own)), ZR_OK, "but to its own");
    tap_result(zr_ring_acquire(ring, number_of(own), 0, &buffer), ZR_OK, "the next buffer");
    emulator->work_ticks(FOREVER);
    launch(own, buffer, GRANULE);
    always_fail(NULL, ZR_CU_UNKNOWN);
    zr_ring_release(ring, buffer, number_of(own));
    tap_result(zr_ring_destroy(ring), ZR_ERR_UNAVAILABLE,
               "a ring whose stream cannot be waited for stays: %s", zr_last_error());
    never_fail();
    tap_result(zr_ring_destroy(ring), ZR_OK, "until it can");
    tap_is(emulator->state().pending_count, 0, "and its work is over");
    stop();
    drop_stream(own);
}

/* ---- The default streams' names ------------------------------------------------------------------------ */

static void test_default_streams(void)
{
    start(8 * GRANULE);
    const zr_cu_stream legacy = (zr_cu_stream)1;
    const uint64_t each = ZR_CU_STREAM_PER_THREAD;
    zr_ring *ring = new_ring(1);
    zr_contiguous *pool = new_pool();
    zr_entry entry;
    void *buffer, *address;
    struct zr_block_info info;
    char *block = take_on(2 * GRANULE, (uint64_t)(uintptr_t)legacy);
    tap_ok(zr_arena_find(arena, block, &info) == ZR_OK && info.stream == 0, "CU_STREAM_LEGACY is stream 0");
    emulator->work_ticks(FOREVER);
    launch(NULL, block, 2 * GRANULE);
    zr_arena_free(arena, block);
    tap_ok(take(2 * GRANULE) == block && emulator->state().pending_count == 1,
           "which gets at once what it freed by that name");
    zr_ring_acquire(ring, 1, 0, &buffer);
    launch(NULL, buffer, GRANULE);
    zr_ring_release(ring, buffer, 1);
    tap_ok(zr_ring_acquire(ring, 0, 0, &buffer) == ZR_OK && emulator->state().pending_count == 2,
           "a ring's buffer as well");
    zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = GRANULE, .stream = 1}, &entry, &address);
    tap_ok(zr_arena_find(arena, address, &info) == ZR_OK && info.stream == 0, "and an entry of a pool");

    void *out = &ring;
    tap_result(zr_arena_alloc(arena, &(struct zr_request){.bytes = GRANULE, .stream = each}, &out),
               ZR_ERR_INVALID, "CU_STREAM_PER_THREAD gets no block: %s", zr_last_error());
    tap_ok(out == NULL && strstr(zr_last_error(), "CU_STREAM_PER_THREAD"), "and the words say why");
    tap_result(zr_block_use(arena, block, each), ZR_ERR_INVALID, "uses none");
    tap_result(zr_ring_release(ring, buffer, each), ZR_ERR_INVALID, "a buffer is not released to it");
    tap_result(zr_ring_release(ring, buffer, 0), ZR_OK, "but to another");
    tap_result(zr_ring_acquire(ring, each, 0, &buffer), ZR_ERR_INVALID, "nor lent");
    zr_contiguous_borrow(pool, entry, &address);
    tap_result(zr_contiguous_return(pool, entry, each), ZR_ERR_INVALID, "an entry is not returned to it");
    tap_result(zr_contiguous_return(pool, entry, 1), ZR_OK, "but to another");
    tap_result(
        zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 1, .stream = each}, &entry, NULL),
        ZR_ERR_INVALID, "nor appended");
    zr_ring_destroy(ring);
    zr_contiguous_destroy(pool, NULL);
    stop();
}

/* A release whose event the driver refused holds the buffer no longer than the stream's work does. */
static void test_ring_later(void)
{
    start(4 * GRANULE);
    zr_ring *ring = new_ring(1);
    void *buffer = NULL;
    zr_cu_stream own = new_stream(), other = new_stream();
    tap_result(zr_ring_acquire(ring, number_of(own), 0, &buffer), ZR_OK, "the only buffer");
    always_fail("cuEventRecord", ZR_CU_UNKNOWN);
    tap_result(zr_ring_release(ring, buffer, number_of(own)), ZR_OK, "is released without an event");
    tap_result(zr_ring_acquire(ring, number_of(other), 0, &buffer), ZR_ERR_TIMEOUT,
               "is no other stream's while the driver can say nothing");
    never_fail();
    tap_result(zr_ring_acquire(ring, number_of(other), 0, &buffer), ZR_OK, "and is as soon as it can");
    tap_result(zr_ring_release(ring, buffer, number_of(other)), ZR_OK, "it is released");
    tap_result(zr_ring_destroy(ring), ZR_OK, "the ring ends");
    stop();
    drop_stream(own);
    drop_stream(other);
}

/* ---- Ends, which leave something with the driver ------------------------------------------------------- */

static void test_pool_end(void)
{
    start(4 * GRANULE);
    zr_contiguous *pool = new_pool();
    zr_entry entry;
    void *address;
    zr_cu_stream own = new_stream();
    tap_result(
        zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 2 * GRANULE, .stream = number_of(own)},
                             &entry, &address),
        ZR_OK, "an entry");
    emulator->work_ticks(FOREVER);
    launch(own, address, 2 * GRANULE);
    size_t mapped = emulator->state().mappings_count;
    always_fail("cuCtxSynchronize", ZR_CU_UNKNOWN);
    tap_result(zr_contiguous_destroy(pool, NULL), ZR_ERR_UNAVAILABLE,
               "a pool whose streams cannot be waited for ends: %s", zr_last_error());
    never_fail();
    tap_is(emulator->state().mappings_count, mapped, "its mappings stay");
    tap_ok(stats().reserved_bytes == 0 && stats().cached_bytes == 0 && zr_arena_check(arena) == ZR_OK,
           "and its granules are nobody's: %s", zr_last_error());
    tap_ok(take_on(2 * GRANULE, 0) && emulator->state().pending_count == 1, "others get other memory");
    emulator->work_ticks(3);
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends");
    tap_result(zr_backend_synchronize(backend), ZR_OK, "the work ends well");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
}

/* A peer's stream, which nobody here can wait for, has an entry or had one. */
static void end_pool_under_peer(bool freed)
{
    start(4 * GRANULE);
    zr_contiguous *pool = new_pool();
    zr_entry entry;
    void *address;
    zr_cu_stream peer = new_stream_of(1);
    size_t before = emulator->state().mappings_count;
    tap_result(zr_contiguous_append(
                   pool, &(struct zr_entry_request){.bytes = 2 * GRANULE, .stream = number_of(peer)}, &entry,
                   &address),
               ZR_OK, "an entry of a peer's stream");
    if (freed)
        tap_result(zr_contiguous_free(pool, entry), ZR_OK, "is freed");
    tap_result(zr_contiguous_destroy(pool, NULL), ZR_ERR_UNAVAILABLE, "the pool ends: %s", zr_last_error());
    tap_ok(emulator->state().mappings_count > before, "its mappings stay");
    tap_ok(stats().reserved_bytes == 0 && stats().cached_bytes == 0, "and its granules are nobody's");
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
}

/* Who returns an entry says which stream is still at work on it. */
static void test_returned(void)
{
    start(0);
    zr_contiguous *pool = new_pool();
    zr_entry entry = 0;
    void *address = NULL;
    zr_cu_stream own = new_stream(), other = new_stream();
    zr_contiguous_append(
        pool, &(struct zr_entry_request){.bytes = 2 * GRANULE, .movable = true, .stream = number_of(own)},
        &entry, NULL);
    tap_result(zr_contiguous_borrow(pool, entry, &address), ZR_OK, "an entry is borrowed for another stream");
    emulator->work_ticks(FOREVER);
    launch(other, address, 2 * GRANULE);
    zr_contiguous_return(pool, entry, number_of(other));
    zr_contiguous_free(pool, entry);
    zr_contiguous_trim(pool, 0, NULL);
    tap_ok(emulator->state().pending_count == 1 && stats().reserved_bytes == 2 * GRANULE,
           "and keeps its memory while that works");
    tap_result(zr_contiguous_destroy(pool, NULL), ZR_OK, "the pool ends");
    tap_is(emulator->state().pending_count, 0, "when it has passed");
    stop();
    drop_stream(own);
    drop_stream(other);
}

static void test_pool_ends_under_peer(void)
{
    end_pool_under_peer(false);
    end_pool_under_peer(true);
}

static void test_arena_end(void)
{
    start(4 * GRANULE);
    size_t before = emulator->state().mappings_count;
    zr_cu_stream own = new_stream();
    char *block = take_on(2 * GRANULE, number_of(own));
    emulator->work_ticks(FOREVER);
    launch(own, block, 2 * GRANULE);
    zr_arena_free(arena, block);
    always_fail("cuCtxSynchronize", ZR_CU_UNKNOWN);
    tap_result(zr_arena_destroy(arena, NULL), ZR_ERR_UNAVAILABLE,
               "an arena whose streams cannot be waited for ends: %s", zr_last_error());
    never_fail();
    tap_ok(emulator->state().mappings_count > before, "its mappings stay");
    tap_is(backend->held_bytes, 0, "the books are empty");
    emulator->work_ticks(3);
    tap_result(zr_backend_synchronize(backend), ZR_OK, "the work ends well");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
}

int main(void)
{
    static void (*const tests[])(void) = {test_several_uses,    test_queues,
                                          test_growth,          test_uses,
                                          test_most_points,     test_returned,
                                          test_numbers,         test_count_of_frees,
                                          test_destroyed,       test_peers,
                                          test_default_streams, test_ring_later,
                                          test_pool_end,        test_pool_ends_under_peer,
                                          test_arena_end};
    return run_on_emulator(tests, sizeof tests / sizeof *tests);
}
