/* cuda_contiguous_test.c: contiguous pools and buffer rings in a GPU's memory, with work in flight in several
 * streams: random operations beside the model, moves while kernels run, memory that is short until a stream
 * has passed, and a failure of each driver call, once and lasting, with the contents intact after. */
#define _GNU_SOURCE
#include "alloc/base/fault.h"
#include "tests/support/contiguous_model.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/seed.h"

static const struct zr_emulator *emulator; /* NULL on a card */
static uint64_t streams[MODEL_STREAMS];

/* Streams that wait for no other, in the primary context of device 0; it is kept for the program's life. */
static void make_streams(void)
{
    const struct zr_cuda_driver *driver;
    zr_cu_context context, popped;
    zr_cu_result (*stream_create)(zr_cu_stream *, unsigned int);
    zr_cuda_driver_get(&driver);
    void *library = dlopen(emulator ? cuda_emulator_path() : "libcuda.so.1", RTLD_NOW);
    stream_create = dlsym(library, "cuStreamCreate");
    driver->context_retain(&context, 0);
    driver->context_push(context);
    for (unsigned i = 1; i < MODEL_STREAMS; i++) {
        zr_cu_stream stream;
        stream_create(&stream, ZR_CU_STREAM_NON_BLOCKING);
        streams[i] = (uint64_t)(uintptr_t)stream;
    }
    driver->context_pop(&popped);
}

static void work_takes(uint64_t ticks)
{
    if (emulator)
        emulator->work_ticks(ticks);
}

static zr_result make(struct made *made, size_t limit_granules, size_t keep_granules)
{
    *made = (struct made){0};
    zr_result result = zr_backend_cuda_create(&made->backend, NULL);
    if (result != ZR_OK)
        return result;
    size_t granule = made->backend->can.granule_bytes;
    result =
        zr_arena_create(&made->arena, &(struct zr_arena_options){.backend = made->backend,
                                                                 .reserve_bytes = 256 * granule,
                                                                 .limit_bytes = limit_granules * granule});
    if (result == ZR_OK)
        result = zr_contiguous_create(&made->pool,
                                      &(struct zr_contiguous_options){.arena = made->arena,
                                                                      .tag = ZR_TAG_CHECKPOINT,
                                                                      .reserve_bytes = 1000 * granule,
                                                                      .keep_bytes = keep_granules * granule});
    return result;
}

/* ---- Random operations --------------------------------------------------------------------------------- */

static void test_model(const char *name, uint64_t seed, size_t keep_granules, uint64_t ticks)
{
    struct made made;
    tap_result(make(&made, 120, keep_granules), ZR_OK, "%s: a pool in device memory", name);
    work_takes(ticks);
    model_run(name, &made, true, streams, seed, emulator ? 2500 : 1000);
    work_takes(3);
    tap_ok(unmake(&made), "nothing left");
}

/* ---- Work in flight ------------------------------------------------------------------------------------ */

/* An entry filled with `value` in its stream; a failed fill is tried again. 0: there is none. */
static zr_entry append(struct made *made, const struct zr_entry_request *request, unsigned char value)
{
    zr_entry entry;
    void *address;
    if (zr_contiguous_append(made->pool, request, &entry, NULL) != ZR_OK)
        return 0;
    bool good = zr_contiguous_borrow(made->pool, entry, &address) == ZR_OK;
    struct zr_fill fill = {.to = address, .value = value, .bytes = request->bytes, .stream = request->stream};
    good &= zr_backend_fill(made->backend, &fill) == ZR_OK || zr_backend_fill(made->backend, &fill) == ZR_OK;
    zr_contiguous_return(made->pool, entry, request->stream);
    if (!good)
        zr_contiguous_free(made->pool, entry);
    return good ? entry : 0;
}

/* Whether every byte of the entry is `value`; an entry that was told to be lost counts as right. */
static bool holds(struct made *made, zr_entry entry, size_t bytes, unsigned char value)
{
    static unsigned char host[1 << 20];
    void *address;
    zr_result result = zr_contiguous_borrow(made->pool, entry, &address);
    if (result != ZR_OK)
        return result == ZR_ERR_CORRUPT;
    zr_backend_synchronize(made->backend);
    bool good = true;
    for (size_t done = 0; good && done < bytes; done += sizeof host) {
        size_t part = bytes - done < sizeof host ? bytes - done : sizeof host;
        good = zr_backend_copy(
                   made->backend,
                   &(struct zr_copy){.to = host, .from = (char *)address + done, .bytes = part}) == ZR_OK &&
               zr_backend_synchronize(made->backend) == ZR_OK;
        for (size_t i = 0; good && i < part; i++)
            good = host[i] == value;
    }
    zr_contiguous_return(made->pool, entry, 0);
    return good;
}

static void test_flight(void)
{
    struct made made;
    tap_result(make(&made, 8, 0), ZR_OK, "a pool of eight granules");
    size_t granule = made.backend->can.granule_bytes;
    work_takes(1000000); /* until somebody waits */
    struct zr_entry_request five = {.bytes = 5 * granule, .stream = streams[1]};
    zr_entry entry = append(&made, &five, 1);
    uint64_t calls = emulator ? emulator->calls("cuMemUnmap") : 0;
    tap_result(zr_contiguous_free(made.pool, entry), ZR_OK, "freed while a kernel writes it");
    tap_is(stats_of(made.pool).pending_bytes, 5 * granule, "its memory is pending");
    if (emulator)
        tap_is(emulator->calls("cuMemUnmap") - calls, 0, "and nothing is unmapped");
    calls = stats_of(made.pool).backend_calls_count;
    entry = append(&made, &five, 2);
    tap_is(stats_of(made.pool).backend_calls_count - calls, 0, "the same stream has it again at once");
    zr_contiguous_free(made.pool, entry);
    five.stream = streams[2];
    entry = append(&made, &five, 3);
    tap_ok(entry != 0, "another stream has it when the first has passed, since no other memory is left");
    tap_ok(holds(&made, entry, five.bytes, 3), "with its own contents");
    zr_contiguous_free(made.pool, entry);

    /* A hole, then a large entry in flight that moves by mapping, and one that is copied. */
    struct zr_entry_request request = {
        .bytes = 3 * granule, .alignment = granule, .movable = true, .stream = streams[1]};
    zr_entry hole = append(&made, &request, 4);
    request.bytes = 2 * granule + 1000;
    zr_entry big = append(&made, &request, 5);
    request.bytes = granule + 300, request.alignment = 0, request.stream = streams[2];
    zr_entry rest = append(&made, &request, 6);
    zr_contiguous_free(made.pool, hole);
    tap_result(zr_contiguous_compact(made.pool), ZR_OK, "a compaction with all of it in flight");
    tap_ok(holds(&made, big, 2 * granule + 1000, 5) && holds(&made, rest, request.bytes, 6),
           "the contents are whole");
    tap_is(stats_of(made.pool).remapped_bytes, 2 * granule, "one was mapped elsewhere");
    tap_is(stats_of(made.pool).copied_bytes, 1000 + request.bytes, "one was copied, and the other's end");
    tap_is(stats_of(made.pool).mapped_bytes, 4 * granule, "and no granule is held for nothing");
    zr_contiguous_free(made.pool, big);
    zr_contiguous_free(made.pool, rest);
    work_takes(3);
    tap_ok(unmake(&made), "nothing left");
}

/* Two entries of two streams move a little way, by the same granule behind everything. */
static void test_detour(void)
{
    struct made made;
    zr_entry holes[2], entries[2];
    tap_result(make(&made, 12, 0), ZR_OK, "a pool of twelve granules");
    size_t granule = made.backend->can.granule_bytes;
    struct zr_entry_request little = {.bytes = 512}, large = {.bytes = 2 * granule + 300, .movable = true};
    for (unsigned i = 0; i < 2; i++) {
        little.stream = large.stream = streams[1 + i];
        little.movable = true;
        holes[i] = append(&made, &little, 1);
        entries[i] = append(&made, &large, (unsigned char)(2 + i));
        little.movable = false; /* what is behind it moves by itself */
        append(&made, &little, 1);
    }
    zr_backend_synchronize(made.backend);
    zr_contiguous_free(made.pool, holes[0]);
    zr_contiguous_free(made.pool, holes[1]);
    work_takes(40);
    tap_result(zr_contiguous_compact(made.pool), ZR_OK, "a compaction by way of one granule");
    tap_is(stats_of(made.pool).copied_bytes, 2 * large.bytes, "copies both, in two streams");
    tap_ok(holds(&made, entries[0], large.bytes, 2) && holds(&made, entries[1], large.bytes, 3),
           "and the contents are whole");
    work_takes(3);
    zr_contiguous_destroy(made.pool, NULL);
    made.pool = NULL;
    tap_ok(unmake(&made), "nothing left");
}

enum { BUFFER_BYTES = 100000 };

/* A use of a buffer of the ring: had as soon as it is free, written by a kernel of the stream, and released.
 * NULL: it is not had in time. */
static void *use(struct made *made, zr_ring *ring, uint64_t stream, uint64_t limit_ns)
{
    void *buffer;
    if (zr_ring_acquire(ring, stream, limit_ns, &buffer) != ZR_OK)
        return NULL;
    zr_backend_fill(made->backend,
                    &(struct zr_fill){.to = buffer, .value = 7, .bytes = BUFFER_BYTES, .stream = stream});
    tap_result(zr_ring_release(ring, buffer, stream), ZR_OK, "a release behind a kernel");
    return buffer;
}

static void test_ring(void)
{
    struct made made;
    zr_ring *ring;
    tap_result(make(&made, 0, 0), ZR_OK, "an arena");
    tap_result(zr_ring_create(&ring, &(struct zr_ring_options){.arena = made.arena,
                                                               .tag = ZR_TAG_COMM,
                                                               .buffer_bytes = BUFFER_BYTES,
                                                               .buffers_count = 2}),
               ZR_OK, "a ring of two buffers");
    work_takes(1000000);
    void *first = use(&made, ring, streams[1], ZR_RING_WAIT);
    use(&made, ring, streams[1], ZR_RING_WAIT);
    tap_ok(use(&made, ring, streams[1], 0) == first, "the stream that used it may use it again, in order");
    use(&made, ring, streams[1], 0);
    if (emulator) {
        tap_ok(!use(&made, ring, streams[2], 0), "another stream not at once");
        tap_ok(!use(&made, ring, streams[2], 200000), "nor a moment later");
    }
    tap_ok(use(&made, ring, streams[2], ZR_RING_WAIT) == first, "but when the first has passed");
    if (emulator) {
        emulator->fail(&(struct zr_emulator_fault){.call = "cuEventRecord", .nth = 1, .code = ZR_CU_UNKNOWN});
        void *unseen = use(&made, ring, streams[1], ZR_RING_WAIT);
        use(&made, ring, streams[2], ZR_RING_WAIT);
        tap_ok(!use(&made, ring, streams[2], 0), "a kernel whose event is refused is waited for");
        tap_ok(use(&made, ring, streams[2], ZR_RING_WAIT) == unseen, "and its buffer had after");
    }
    tap_result(zr_ring_destroy(ring), ZR_OK, "the end of a ring in use by streams");
    work_takes(3);
    tap_ok(unmake(&made), "nothing left");
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

struct outcome {
    bool created;
    unsigned failures, wrong;
};

enum { LIFE_ENTRIES = 14, LIFE_STEPS = 44 };

/* A short life with every kind of move in it. Goes on whatever fails, as a program that looks at its results
 * would; at the end nothing fails any more, and all contents must be there. From `from_step` on, `fault` is
 * in force. */
static struct outcome life(const struct zr_emulator_fault *fault, unsigned from_step)
{
    struct outcome outcome = {0};
    struct made made;
    zr_entry entries[LIFE_ENTRIES] = {0};
    size_t bytes[LIFE_ENTRIES];
    if (fault && from_step == 0)
        emulator->fail(fault);
    outcome.created = make(&made, 100, 0) == ZR_OK;
    outcome.failures += !outcome.created;
    for (unsigned step = 0; outcome.created && step < LIFE_STEPS; step++) {
        size_t granule = made.backend->can.granule_bytes;
        unsigned i = step * 5 % LIFE_ENTRIES;
        if (fault && step == from_step && step > 0)
            emulator->fail(fault);
        if (!entries[i]) {
            bytes[i] = i % 3 ? 300 + i * granule / 16 + step : (1 + i % 5) * granule + step;
            entries[i] = append(&made,
                                &(struct zr_entry_request){.bytes = bytes[i],
                                                           .alignment = i % 3 ? 0 : granule,
                                                           .movable = true,
                                                           .stream = streams[i % 2]},
                                (unsigned char)(i + 1));
            outcome.failures += entries[i] == 0;
        } else if (step % 3) {
            outcome.wrong += zr_contiguous_free(made.pool, entries[i]) != ZR_OK;
            entries[i] = 0;
        }
        if (step % 6 == 5)
            outcome.failures += zr_contiguous_compact(made.pool) != ZR_OK;
        outcome.wrong += zr_contiguous_check(made.pool) != ZR_OK || zr_arena_check(made.arena) != ZR_OK;
    }
    emulator->fail(&(struct zr_emulator_fault){0});
    for (unsigned i = 0; i < LIFE_ENTRIES; i++)
        if (entries[i])
            outcome.wrong += !holds(&made, entries[i], bytes[i], (unsigned char)(i + 1));
    if (outcome.created)
        outcome.wrong += zr_contiguous_compact(made.pool) != ZR_OK;
    for (unsigned i = 0; i < LIFE_ENTRIES; i++)
        if (entries[i]) {
            outcome.wrong += !holds(&made, entries[i], bytes[i], (unsigned char)(i + 1));
            outcome.wrong += zr_contiguous_free(made.pool, entries[i]) != ZR_OK;
        }
    outcome.wrong += !unmake(&made);
    return outcome;
}

static bool nothing_left(void)
{
    struct zr_emulator_state state = emulator->state();
    return state.memories_count + state.mappings_count + state.reservations_count + state.events_count +
               state.stack_depth + state.used_bytes ==
           0;
}

static void test_each_call(zr_cu_result code)
{
    const unsigned stride = EVERY_NTH > 1 ? EVERY_NTH : run_stride(6);
    unsigned wrong = 0, left = 0, told = 0, refused = 0;
    uint64_t first = emulator->calls(NULL);
    struct outcome clean = life(NULL, 0);
    uint64_t calls = emulator->calls(NULL) - first;
    tap_ok(clean.created && clean.failures + clean.wrong == 0 && nothing_left(),
           "a life of %llu driver calls without a failure", (unsigned long long)calls);
    for (uint64_t nth = code == ZR_CU_UNKNOWN ? 3 : 1; nth <= calls; nth += stride) {
        struct outcome outcome = life(&(struct zr_emulator_fault){.nth = nth, .code = code}, 0);
        wrong += outcome.wrong;
        left += !nothing_left();
        told += outcome.failures > 0;
        refused += !outcome.created;
        if (outcome.wrong || !nothing_left())
            tap_note("call %llu: %s", (unsigned long long)nth, zr_last_error());
    }
    tap_is(wrong, 0, "error %u at each of them: entries and books intact", code);
    tap_is(left, 0, "and the driver has everything back");
    tap_ok(refused > 0 && told > refused, "%u refused the pool, %u more were told, the rest were absorbed",
           refused, told - refused);
}

static void test_each_record(void)
{
    unsigned wrong = 0;
    uint64_t nth = 1, passes;
    for (;; nth += EVERY_NTH > 1 ? EVERY_NTH : run_stride(4)) {
        zr_fault_set(ZR_FAULT_METADATA, nth);
        wrong += life(NULL, 0).wrong + !nothing_left();
        passes = zr_fault_set(ZR_FAULT_METADATA, 0);
        if (passes < nth)
            break;
    }
    tap_is(wrong, 0, "records up to the %lluth refused in turn: entries and books intact",
           (unsigned long long)nth - 1);
}

/* One kind of call that stops working for a while, in the middle of things. */
static void test_lasting(void)
{
    static const char *const calls[] = {"cuMemCreate",   "cuMemMap",           "cuMemSetAccess",
                                        "cuMemUnmap",    "cuEventCreate",      "cuEventRecord",
                                        "cuEventQuery",  "cuEventSynchronize", "cuCtxSynchronize",
                                        "cuMemcpyAsync", "cuMemRelease"};
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        unsigned wrong = 0, told = 0;
        for (unsigned step = 1; step<LIFE_STEPS; step += EVERY_NTH> 1 ? 20 : run_stride(2) * 4)
            for (unsigned nth = 1; nth < 30; nth += strcmp(calls[i], "cuMemcpyAsync") == 0 ? 2 : 11) {
                struct outcome outcome = life(
                    &(struct zr_emulator_fault){
                        .call = calls[i], .nth = nth, .count = UINT64_MAX / 2, .code = ZR_CU_OUT_OF_MEMORY},
                    step);
                wrong += outcome.wrong + !nothing_left();
                told += outcome.failures;
            }
        tap_ok(wrong == 0, "%s fails and fails (%u told): nothing is lost untold", calls[i], told);
    }
}

static bool is_lost(struct made *made, zr_entry entry)
{
    void *address;
    zr_result result = zr_contiguous_borrow(made->pool, entry, &address);
    if (result == ZR_OK)
        zr_contiguous_return(made->pool, entry, streams[1]);
    return result == ZR_ERR_CORRUPT;
}

/* Writes (or compares) bytes that differ from place to place. */
static bool pattern(struct made *made, zr_entry entry, size_t bytes, bool write)
{
    static unsigned char want[1 << 20], got[1 << 20];
    void *address;
    if (bytes > sizeof want || zr_contiguous_borrow(made->pool, entry, &address) != ZR_OK)
        return false;
    for (size_t i = 0; i < bytes; i++)
        want[i] = (unsigned char)(i * 31 + (i >> 8) * 7 + (i >> 16));
    zr_backend_synchronize(made->backend);
    zr_backend_copy(made->backend, &(struct zr_copy){.to = write ? address : got,
                                                     .from = write ? want : address,
                                                     .bytes = bytes,
                                                     .stream = streams[1]});
    zr_backend_synchronize(made->backend);
    zr_contiguous_return(made->pool, entry, streams[1]);
    return write || memcmp(got, want, bytes) == 0;
}

/* A copy over the entry's own beginning is undone when a step of it fails; if that fails too, it is told. */
static void test_half_way(void)
{
    static const size_t holes[] = {512, 20000}; /* by a bounce, and directly */
    unsigned intact = 0, lost = 0, wrong = 0;
    for (unsigned nth = 1; nth <= 40; nth++)
        for (unsigned k = 0; k < 4; k++) {
            struct made made;
            make(&made, 0, 0);
            struct zr_entry_request request = {.bytes = holes[k % 2], .movable = true, .stream = streams[1]};
            size_t bytes = 5 * made.backend->can.granule_bytes + 300;
            zr_entry hole = append(&made, &request, 1);
            request.bytes = bytes;
            zr_entry big = append(&made, &request, 2);
            request.bytes = 1000;
            zr_entry other = append(&made, &request, 3);
            pattern(&made, big, bytes, true);
            zr_contiguous_free(made.pool, hole);
            emulator->fail(&(struct zr_emulator_fault){.call = "cuMemcpyAsync",
                                                       .nth = nth,
                                                       .count = k < 2 ? 1 : UINT64_MAX / 2,
                                                       .code = ZR_CU_OUT_OF_MEMORY});
            zr_result result = zr_contiguous_compact(made.pool);
            emulator->fail(&(struct zr_emulator_fault){0});
            bool told = is_lost(&made, big) || is_lost(&made, other);
            wrong += told != (result == ZR_ERR_CORRUPT) || (k < 2 && told);
            wrong +=
                (!is_lost(&made, big) && !pattern(&made, big, bytes, false)) || !holds(&made, other, 1000, 3);
            intact += result != ZR_OK && !told;
            lost += told;
            wrong += zr_contiguous_check(made.pool) != ZR_OK || zr_contiguous_free(made.pool, big) != ZR_OK ||
                     zr_contiguous_free(made.pool, other) != ZR_OK || !unmake(&made);
        }
    tap_is(wrong, 0, "copies refused half way: what is lost is told, all else is whole");
    tap_ok(intact > 20 && lost > 20, "%u were undone, %u could not be", intact, lost);
}

/* A driver that keeps mappings for good: the pool ends, and its memory is the arena's. */
static void test_stuck(void)
{
    struct made made;
    make(&made, 0, 0);
    size_t granule = made.backend->can.granule_bytes;
    struct zr_arena_stats stats;
    append(&made, &(struct zr_entry_request){.bytes = 3 * granule, .stream = streams[1]}, 1);
    emulator->fail(&(struct zr_emulator_fault){
        .call = "cuMemUnmap", .nth = 1, .count = UINT64_MAX / 2, .code = ZR_CU_UNKNOWN});
    tap_result(zr_contiguous_destroy(made.pool, NULL), ZR_ERR_UNAVAILABLE,
               "a pool that cannot be unmapped ends: %s", zr_last_error());
    emulator->fail(&(struct zr_emulator_fault){0});
    zr_arena_get_stats(made.arena, &stats);
    tap_ok(stats.cached_bytes == 3 * granule && stats.live_bytes == 0 && zr_arena_check(made.arena) == ZR_OK,
           "its granules are the arena's again");
    tap_result(zr_arena_destroy(made.arena, NULL), ZR_OK, "which ends");
    tap_result(zr_backend_destroy(made.backend), ZR_OK, "as does the backend");
}

int main(void)
{
    uint64_t seed = run_seed();
    setenv("ZR_EMULATOR_GRANULARITY", "65536", 0); /* little to copy in a thousand lives */
    if (!cuda_driver(&emulator))
        return tap_done();
    make_streams();
    test_model("short work", seed, 0, 3);
    test_model("long work, kept granules", seed + 1, 16, 60);
    test_flight();
    test_detour();
    test_ring();
    if (emulator) {
        test_each_call(ZR_CU_OUT_OF_MEMORY);
        test_each_call(ZR_CU_UNKNOWN);
        test_each_record();
        test_lasting();
        test_half_way();
        test_stuck();
    }
    return tap_done();
}
