/* ring_test.c: buffer rings on host memory: order, waits and their limits, threads, what is refused, memory
 * that stays what it was. (Streams: cuda_contiguous_test.c.) */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/backend/backend.h"
#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "alloc/zr.h"
#include "tests/support/blocks.h"
#include "tests/support/random.h"
#include "tests/support/tap.h"

/* ---- One thread ---------------------------------------------------------------------------------------- */

struct registered {
    unsigned came, went;
    char *address;
    size_t bytes;
    zr_result refuses;
};

static zr_result came(void *argument, void *address, size_t bytes)
{
    struct registered *registered = argument;
    registered->came++;
    registered->address = address;
    registered->bytes = bytes;
    return registered->refuses;
}

static void went(void *argument, void *address, size_t bytes)
{
    struct registered *registered = argument;
    registered->went += registered->address == address && registered->bytes == bytes;
}

static void test_order(void)
{
    enum { COUNT = 5 };
    zr_ring *ring;
    void *buffers[COUNT + 1];
    struct registered registered = {.refuses = ZR_ERR_UNAVAILABLE};
    struct zr_ring_options options = {.arena = arena,
                                      .tag = ZR_TAG_COMM,
                                      .buffer_bytes = 10000,
                                      .buffers_count = COUNT,
                                      .alignment = 4096,
                                      .map_callback = {came, went, &registered}};
    tap_result(zr_ring_create(&ring, &options), ZR_ERR_UNAVAILABLE, "no ring that cannot be registered: %s",
               zr_last_error());
    tap_ok(ring == NULL && stats().live_bytes == 0, "and nothing kept for it");
    registered = (struct registered){0};
    tap_result(zr_ring_create(&ring, &options), ZR_OK, "a ring");
    tap_is(stats().live_by_tag_bytes[ZR_TAG_COMM], COUNT * 12288, "takes that, under its tag");
    tap_ok(registered.came == 1 && registered.bytes == COUNT * 12288, "registered once, whole");
    bool had = true;
    for (unsigned i = 0; i < COUNT; i++) {
        had &= zr_ring_acquire(ring, i, 0, &buffers[i]) == ZR_OK && (uintptr_t)buffers[i] % 4096 == 0;
        memset(buffers[i], (int)i, 10000);
    }
    tap_ok(had, "%d buffers, all aligned as asked", COUNT);
    tap_result(zr_ring_acquire(ring, 0, 0, &buffers[COUNT]), ZR_ERR_TIMEOUT, "then none: %s",
               zr_last_error());
    tap_ok(buffers[COUNT] == NULL, "and no address");
    uint64_t start_ns = zr_os_now_ns();
    tap_result(zr_ring_acquire(ring, 0, 20000000, &buffers[COUNT]), ZR_ERR_TIMEOUT, "nor in 20 ms");
    uint64_t took_ns = zr_os_now_ns() - start_ns;
    tap_ok(took_ns >= 20000000, "which it waited (%llu us)", (unsigned long long)took_ns / 1000);
    tap_result(zr_ring_destroy(ring), ZR_ERR_INVALID, "no end while buffers are acquired");
    tap_result(zr_ring_release(ring, buffers[1], 0), ZR_OK, "the second is released first");
    tap_result(zr_ring_acquire(ring, 0, 0, &buffers[COUNT]), ZR_ERR_TIMEOUT,
               "but it is the first one's turn");
    tap_result(zr_ring_release(ring, buffers[0], 0), ZR_OK, "the first");
    for (unsigned i = 0; i < 2; i++)
        tap_ok(zr_ring_acquire(ring, 9, 0, &buffers[COUNT]) == ZR_OK && buffers[COUNT] == buffers[i],
               "buffer %u comes round in order", i);
    const struct {
        const char *words;
        void *buffer;
        zr_result result;
    } releases[] = {
        {"a buffer", buffers[0], ZR_OK},
        {"and again", buffers[0], ZR_ERR_DOUBLE_FREE},
        {"inside of one", (char *)buffers[2] + 1, ZR_ERR_FOREIGN},
        {"elsewhere", &ring, ZR_ERR_FOREIGN},
        {"nothing", NULL, ZR_ERR_FOREIGN},
    };
    for (unsigned i = 0; i < sizeof releases / sizeof *releases; i++)
        tap_result(zr_ring_release(ring, releases[i].buffer, 0), releases[i].result, "a release: %s",
                   releases[i].words);
    bool kept = zr_ring_release(ring, buffers[1], 0) == ZR_OK;
    for (unsigned i = 2; i < COUNT; i++)
        kept &= ((char *)buffers[i])[9999] == (char)i && zr_ring_release(ring, buffers[i], 0) == ZR_OK;
    tap_ok(kept, "buffers do not overlap");
    tap_ok(registered.came == 1 && registered.went == 0, "still registered once");
    tap_result(zr_ring_destroy(ring), ZR_OK, "the end");
    tap_is(registered.went, 1, "unregistered");
    tap_is(stats().live_bytes, 0, "and freed");
}

/* ---- Streams that pass unseen -------------------------------------------------------------------------- */

static struct zr_backend_ops ops;
static zr_ring *late_ring;
static unsigned waits;

static zr_result refuse_event(zr_backend *of, uint64_t stream, struct zr_stream_point *out)
{
    (void)of, (void)stream, (void)out;
    return zr_fail(ZR_ERR_UNAVAILABLE, "no event");
}

/* While the caller waits for the device, stream 1 has the buffer once more, and passes it on to stream 3. */
static zr_result wait_meanwhile(zr_backend *of)
{
    void *buffer;
    (void)of;
    if (waits++ == 0 && zr_ring_acquire(late_ring, 1, 0, &buffer) == ZR_OK)
        zr_ring_release(late_ring, buffer, 3);
    return ZR_OK;
}

/* Who has waited for a buffer's use without an event knows of that use alone, not of one that came since. */
static void test_turns(void)
{
    zr_backend *late;
    zr_arena *own;
    void *buffer;
    zr_backend_sim_create(&late, &(struct zr_sim_options){.granule_bytes = 65536, .work_ns = 1000});
    zr_arena_create(&own, &(struct zr_arena_options){.backend = late});
    ops = *late->ops;
    ops.event_record = refuse_event;
    ops.synchronize = wait_meanwhile;
    late->ops = &ops;
    zr_ring_create(&late_ring,
                   &(struct zr_ring_options){.arena = own, .buffer_bytes = 100, .buffers_count = 1});
    zr_ring_acquire(late_ring, 1, 0, &buffer);
    zr_ring_release(late_ring, buffer, 1);
    tap_result(zr_ring_acquire(late_ring, 2, ZR_RING_WAIT, &buffer), ZR_OK,
               "a buffer of two streams that pass");
    tap_is(waits, 2, "is had when both have");
    zr_ring_release(late_ring, buffer, 2);
    tap_result(zr_ring_destroy(late_ring), ZR_OK, "the ring ends");
    tap_ok(zr_arena_destroy(own, NULL) == ZR_OK && zr_backend_destroy(late) == ZR_OK, "and the rest");
}

static void test_refusals(void)
{
    zr_ring *ring;
    const struct zr_ring_options good = {.arena = arena, .buffer_bytes = 100, .buffers_count = 2};
    const struct {
        const char *words;
        size_t buffer_bytes;
        unsigned buffers_count, tag;
        size_t alignment;
        zr_result result;
    } cases[] = {
        {"no buffers", 100, 0, 0, 0, ZR_ERR_INVALID},
        {"an alignment that is none", 100, 2, 0, 48, ZR_ERR_INVALID},
        {"sizes that overflow", SIZE_MAX / 2 - 5, 7, 0, 0, ZR_ERR_INVALID},
        {"or would when rounded", PTRDIFF_MAX, 1, 0, 0, ZR_ERR_INVALID},
        {"more than the arena has", 3 << 20, 2, 0, 0, ZR_ERR_MEMORY},
    };
    void *buffer;
    tap_result(zr_ring_create(NULL, &good), ZR_ERR_INVALID, "nowhere to go");
    tap_result(zr_ring_create(&ring, NULL), ZR_ERR_INVALID, "no options");
    tap_result(zr_ring_create(&ring, &(struct zr_ring_options){.buffer_bytes = 100, .buffers_count = 2}),
               ZR_ERR_INVALID, "no arena");
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct zr_ring_options options = {.arena = arena,
                                                .tag = (zr_tag)cases[i].tag,
                                                .buffer_bytes = cases[i].buffer_bytes,
                                                .buffers_count = cases[i].buffers_count,
                                                .alignment = cases[i].alignment};
        tap_result(zr_ring_create(&ring, &options), cases[i].result, "%s", cases[i].words);
        if (i == 0 || i == 3)
            tap_ok(strstr(zr_last_error(), "invalid options"), "%s: it has no size", cases[i].words);
    }
    tap_ok(ring == NULL && stats().live_bytes == 0, "nothing is kept of these");
    zr_fault_set(ZR_FAULT_METADATA, 1);
    tap_result(zr_ring_create(&ring, &good), ZR_ERR_HOST_MEMORY, "no record for it");
    zr_fault_set(ZR_FAULT_METADATA, 0);
    tap_result(zr_ring_create(&ring, &good), ZR_OK, "a good one");
    tap_result(zr_ring_acquire(ring, 0, 0, NULL), ZR_ERR_INVALID, "a buffer with nowhere to go");
    tap_result(zr_ring_acquire(NULL, 0, 0, &buffer), ZR_ERR_INVALID, "no ring to acquire from");
    tap_result(zr_ring_release(NULL, &buffer, 0), ZR_ERR_INVALID, "nor to release to");
    tap_result(zr_ring_destroy(NULL), ZR_OK, "nor to end");
    tap_result(zr_ring_destroy(ring), ZR_OK, "the end");
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

enum { THREADS = 6, BUFFERS = 3, ROUNDS = 4000, BUFFER_BYTES = 2048 };

struct field {
    zr_ring *ring;
    _Atomic unsigned started, wrong, timeouts;
    _Atomic uint64_t passed_bytes;
};

static void *work(void *argument)
{
    struct field *field = argument;
    uint64_t random = atomic_fetch_add(&field->started, 1);
    for (unsigned round = 0; round < ROUNDS; round++) {
        void *buffer;
        uint64_t dice = splitmix64(&random);
        uint64_t limit_ns = dice >> 62 == 0 ? 0 : dice >> 62 == 1 ? 20000 : ZR_RING_WAIT;
        zr_result result = zr_ring_acquire(field->ring, round % 3, limit_ns, &buffer);
        if (result != ZR_OK) {
            atomic_fetch_add(&field->wrong, result != ZR_ERR_TIMEOUT || limit_ns == ZR_RING_WAIT);
            atomic_fetch_add(&field->timeouts, 1);
            continue;
        }
        unsigned char mine = (unsigned char)(dice >> 40);
        memset(buffer, mine, BUFFER_BYTES);
        for (unsigned i = 0; i < BUFFER_BYTES; i++)
            if (((unsigned char *)buffer)[i] != mine) {
                atomic_fetch_add(&field->wrong, 1);
                break;
            }
        atomic_fetch_add(&field->passed_bytes, BUFFER_BYTES);
        atomic_fetch_add(&field->wrong, zr_ring_release(field->ring, buffer, round % 3) != ZR_OK);
    }
    return NULL;
}

static void test_threads(void)
{
    struct field field = {0};
    pthread_t threads[THREADS];
    tap_result(zr_ring_create(&field.ring, &(struct zr_ring_options){.arena = arena,
                                                                     .buffer_bytes = BUFFER_BYTES,
                                                                     .buffers_count = BUFFERS}),
               ZR_OK, "a ring of %d buffers", BUFFERS);
    struct zr_arena_stats before = stats();
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &field);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    struct zr_arena_stats after = stats();
    tap_is(atomic_load(&field.wrong), 0,
           "%d threads: no buffer has two holders, no wait is lost (%u timed out)", THREADS,
           atomic_load(&field.timeouts));
    tap_ok(after.live_bytes == before.live_bytes && after.reserved_bytes == before.reserved_bytes &&
               after.allocations_count == before.allocations_count &&
               after.backend_calls_count == before.backend_calls_count,
           "%llu bytes went through %zu, and not one was allocated for it",
           (unsigned long long)atomic_load(&field.passed_bytes), after.live_bytes);
    tap_result(zr_ring_destroy(field.ring), ZR_OK, "the end");
}

int main(void)
{
    size_t leaked = 1;
    zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = 64 << 10});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = 4 << 20});
    test_order();
    test_turns();
    test_refusals();
    test_threads();
    tap_result(zr_arena_check(arena), ZR_OK, "the arena is sound");
    zr_arena_destroy(arena, &leaked);
    tap_is(leaked, 0, "nothing leaked");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend's end");
    return tap_done();
}
