/* cuda_arena_test.c: arenas over a GPU's memory, which the processor does not see: random operations beside a
 * model with the contents checked through the driver's copies, a steady state without driver calls, threads,
 * and a failure of each of the driver calls of a short life with exact counters and nothing left behind. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>

#include "alloc/backend/backend.h"
#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/random.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

#define MIB ((size_t)1 << 20)

static const struct zr_emulator *emulator; /* NULL on a card */

static zr_backend *create_backend(const struct zr_cuda_options *options)
{
    zr_backend *backend = NULL;
    tap_result(zr_backend_cuda_create(&backend, options), ZR_OK, "a backend");
    return backend;
}

/* ---- Random operations --------------------------------------------------------------------------------- */

enum { BLOCKS = 96, EDGE_BYTES = 64 };

struct model {
    zr_arena *arena;
    zr_backend *backend;
    uint64_t random;
    unsigned wrong; /* contents or results that were not what they should be */
    unsigned char next_value;
    struct {
        char *address;
        size_t bytes;
        unsigned char value;
    } blocks[BLOCKS];
    size_t live_bytes; /* as requested */
};

/* The first and last bytes: where a neighbour's mistake would show. */
static size_t edge(size_t bytes)
{
    return bytes < EDGE_BYTES ? bytes : EDGE_BYTES;
}

static bool write_edges(struct model *model, unsigned i)
{
    size_t bytes = model->blocks[i].bytes, part = edge(bytes);
    char *at[2] = {model->blocks[i].address, model->blocks[i].address + bytes - part};
    bool good = true;
    for (unsigned k = 0; k < 2; k++)
        good &= zr_backend_fill(
                    model->backend,
                    &(struct zr_fill){.to = at[k], .value = model->blocks[i].value, .bytes = part}) == ZR_OK;
    return good;
}

static bool edges_are_right(struct model *model, unsigned i)
{
    unsigned char got[2 * EDGE_BYTES];
    size_t bytes = model->blocks[i].bytes, part = edge(bytes);
    char *at[2] = {model->blocks[i].address, model->blocks[i].address + bytes - part};
    for (unsigned k = 0; k < 2; k++)
        if (zr_backend_copy(model->backend,
                            &(struct zr_copy){.to = got + k * part, .from = at[k], .bytes = part}) != ZR_OK)
            return false;
    if (zr_backend_synchronize(model->backend) != ZR_OK)
        return false;
    for (size_t k = 0; k < 2 * part; k++)
        if (got[k] != model->blocks[i].value)
            return false;
    return true;
}

static size_t random_bytes(struct model *model)
{
    uint64_t draw = xorshift64(&model->random);
    switch (draw % 4) {
    case 0:
        return 1 + xorshift64(&model->random) % 4096;
    case 1:
        return 1 + xorshift64(&model->random) % (256 << 10);
    default:
        return 1 + xorshift64(&model->random) % (5 * MIB);
    }
}

static zr_result allocate(struct model *model, unsigned i)
{
    void *out;
    size_t bytes = random_bytes(model);
    struct zr_request request = {.bytes = bytes,
                                 .alignment = xorshift64(&model->random) % 8 == 0 ? 4096 : 0,
                                 .tag = (zr_tag)(xorshift64(&model->random) % ZR_TAG_COUNT)};
    zr_result result = zr_arena_alloc(model->arena, &request, &out);
    if (result != ZR_OK)
        return result;
    model->blocks[i].address = out;
    model->blocks[i].bytes = bytes;
    model->blocks[i].value = ++model->next_value;
    model->live_bytes += bytes;
    return ZR_OK;
}

static zr_result release(struct model *model, unsigned i)
{
    model->live_bytes -= model->blocks[i].bytes;
    zr_result result = zr_arena_free(model->arena, model->blocks[i].address);
    model->blocks[i].address = NULL;
    return result;
}

static void random_steps(struct model *model, unsigned steps)
{
    for (unsigned step = 0; step < steps; step++) {
        unsigned i = (unsigned)(xorshift64(&model->random) % BLOCKS);
        if (model->blocks[i].address) {
            model->wrong += !edges_are_right(model, i);
            model->wrong += release(model, i) != ZR_OK;
        } else {
            zr_result result = allocate(model, i);
            model->wrong += result != ZR_OK && result != ZR_ERR_MEMORY;
            if (result == ZR_OK)
                model->wrong += !write_edges(model, i);
        }
        if (xorshift64(&model->random) % 64 == 0)
            zr_arena_trim(model->arena, xorshift64(&model->random) % (16 * MIB), NULL);
    }
}

/* The arena's counters, the backend's and the driver's are one. */
static bool books_agree(const struct model *model)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(model->arena, &stats);
    bool good = zr_arena_check(model->arena) == ZR_OK && stats.requested_bytes == model->live_bytes &&
                stats.reserved_bytes == model->backend->held_bytes;
    if (emulator)
        good &= emulator->state().used_bytes == model->backend->held_bytes;
    return good;
}

static void test_random(uint64_t seed)
{
    struct model model = {.random = seed * 2654435761u + 1};
    size_t leaked;
    model.backend = create_backend(&(struct zr_cuda_options){.limit_bytes = 120 * MIB});
    tap_result(zr_arena_create(&model.arena, &(struct zr_arena_options){.backend = model.backend}), ZR_OK,
               "an arena");
    bool agree = true;
    for (unsigned round = 0; round < 10; round++) {
        random_steps(&model, 1500);
        agree &= books_agree(&model);
    }
    tap_is(model.wrong, 0, "15,000 random operations, contents and results (ZR_TEST_SEED=%llu)",
           (unsigned long long)seed);
    tap_ok(agree, "the books of arena, backend and driver agree");
    tap_result(zr_arena_destroy(model.arena, &leaked), ZR_OK, "the end");
    tap_result(zr_backend_destroy(model.backend), ZR_OK, "the end of the backend");
}

/* ---- What the processor does not see ------------------------------------------------------------------- */

static void test_unseen(void)
{
    zr_arena *arena;
    void *block;
    zr_option_set("check:3");
    zr_backend *backend = create_backend(NULL);
    tap_ok(!backend->can.host_visible && backend->can.exportable && backend->can.aliases &&
               !backend->can.synchronous,
           "device memory: not seen by the processor, exportable, aliasing, asynchronous");
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    tap_result(zr_arena_alloc(arena, &(struct zr_request){.bytes = 1000, .tag = ZR_TAG_PARAM}, &block), ZR_OK,
               "check:3 writes no canary where it cannot");
    tap_result(zr_arena_free(arena, block), ZR_OK, "nor looks for one");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);

    if (zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.kind = ZR_CUDA_HOST, .numa_node = -1}) ==
        ZR_OK) {
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 1000, .tag = ZR_TAG_OFFLOAD}, &block);
        memset(block, 5, 1001);
        tap_result(zr_arena_free(arena, block), ZR_ERR_CORRUPT, "pinned memory has its canary");
        zr_arena_destroy(arena, NULL);
        zr_backend_destroy(backend);
    } else {
        tap_skip("pinned memory: %s", zr_last_error());
    }
    zr_option_set(NULL);
}

/* ---- The steady state ---------------------------------------------------------------------------------- */

static void step(zr_arena *arena)
{
    static const size_t sizes[] = {3 * MIB, 700, 11 * MIB, 512 << 10, 40 * MIB, 5 * MIB, 100};
    void *blocks[sizeof sizes / sizeof *sizes];
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        zr_arena_alloc(arena, &(struct zr_request){.bytes = sizes[i], .tag = ZR_TAG_ACTIVATION}, &blocks[i]);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        zr_arena_free(arena, blocks[(i * 3) % 7]);
}

static void test_steady_state(void)
{
    zr_arena *arena;
    struct zr_arena_stats before, after;
    zr_backend *backend = create_backend(NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    for (unsigned i = 0; i < 3; i++)
        step(arena);
    zr_arena_get_stats(arena, &before);
    uint64_t calls = emulator ? emulator->calls(NULL) : 0;
    for (unsigned i = 0; i < 100; i++)
        step(arena);
    zr_arena_get_stats(arena, &after);
    tap_is(after.backend_calls_count - before.backend_calls_count, 0,
           "a repeated step makes no backend call");
    if (emulator)
        tap_is(emulator->calls(NULL) - calls, 0, "and none of the driver's");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

struct worker {
    struct model model;
    pthread_t thread;
    zr_result last;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    random_steps(&worker->model, 1500);
    for (unsigned i = 0; i < 200; i++) {
        struct zr_stream_point event;
        if (zr_backend_event_record(worker->model.backend, 0, &event) != ZR_OK ||
            zr_backend_event_wait(worker->model.backend, &event) != ZR_OK ||
            !zr_backend_event_done(worker->model.backend, &event))
            worker->model.wrong++;
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        if (worker->model.blocks[i].address)
            worker->model.wrong += !edges_are_right(&worker->model, i) || release(&worker->model, i) != ZR_OK;
    return NULL;
}

static void test_threads(uint64_t seed)
{
    enum { THREADS = 4 };
    static struct worker workers[THREADS];
    unsigned wrong = 0;
    size_t leaked = 1;
    zr_arena *arena;
    zr_backend *backend = create_backend(&(struct zr_cuda_options){.limit_bytes = 400 * MIB});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] =
            (struct worker){.model = {.arena = arena, .backend = backend, .random = seed * 77 + i + 1}};
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        wrong += workers[i].model.wrong;
    }
    tap_is(wrong, 0, "four threads with no context of their own: contents and events");
    tap_result(zr_arena_check(arena), ZR_OK, "the arena is sound after");
    zr_arena_destroy(arena, &leaked);
    tap_is(leaked, 0, "and empty");
    zr_backend_destroy(backend);
}

/* ---- A failure of each driver call --------------------------------------------------------------------- */

struct outcome {
    bool created, sound;
    unsigned failures;
};

/* A short life of a backend: whatever fails, goes on with the rest, as a program that looks at its results
 * would. */
static struct outcome life(void)
{
    struct outcome outcome = {.sound = true};
    struct model model = {.random = 88172645463325252ull};
    struct zr_stream_point event;
    struct zr_backend_memory memory;
    struct zr_segment segments[8];
    size_t leaked, lead;
    if (zr_backend_cuda_create(&model.backend, &(struct zr_cuda_options){.limit_bytes = 64 * MIB}) != ZR_OK)
        return outcome;
    outcome.created = true;
    if (zr_arena_create(&model.arena, &(struct zr_arena_options){.backend = model.backend,
                                                                 .reserve_bytes = 256 * MIB}) == ZR_OK) {
        for (unsigned i = 0; i < 240; i++) {
            unsigned place = (unsigned)(xorshift64(&model.random) % 24);
            size_t count = 8;
            if (model.blocks[place].address) {
                outcome.failures += release(&model, place) != ZR_OK;
            } else if (allocate(&model, place) != ZR_OK) {
                outcome.failures++;
            } else {
                outcome.failures += !write_edges(&model, place);
                if (i % 9 == 0)
                    outcome.failures += zr_block_export(model.arena, model.blocks[place].address, segments,
                                                        &count, &lead) != ZR_OK;
            }
            if (i % 16 == 5)
                zr_arena_trim(model.arena, 4 * MIB, NULL);
            if (i % 8 == 3)
                outcome.failures += zr_backend_event_record(model.backend, 0, &event) != ZR_OK ||
                                    zr_backend_event_wait(model.backend, &event) != ZR_OK;
        }
        outcome.failures += zr_backend_memory_info(model.backend, &memory) != ZR_OK;
        struct zr_arena_stats stats;
        zr_arena_get_stats(model.arena, &stats);
        outcome.sound &= zr_arena_check(model.arena) == ZR_OK && stats.requested_bytes == model.live_bytes &&
                         stats.reserved_bytes == model.backend->held_bytes;
        outcome.sound &= zr_arena_destroy(model.arena, &leaked) == ZR_OK && leaked == stats.live_bytes;
    }
    outcome.sound &= model.backend->held_bytes == 0 && zr_backend_destroy(model.backend) == ZR_OK;
    return outcome;
}

static bool nothing_left(void)
{
    struct zr_emulator_state state = emulator->state();
    return state.memories_count + state.mappings_count + state.reservations_count + state.events_count +
               state.retained_count + state.stack_depth + state.used_bytes ==
           0;
}

static int open_files(void)
{
    int count = 0;
    for (int fd = 0; fd < 512; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void test_each_call(zr_cu_result code)
{
    const unsigned stride = EVERY_NTH > 1 ? EVERY_NTH : run_stride(7);
    unsigned unsound = 0, left = 0, unnoticed = 0, refused = 0;
    emulator->work_ticks(3); /* each life makes the same calls up to the one that fails */
    uint64_t first = emulator->calls(NULL);
    struct outcome clean = life();
    uint64_t calls = emulator->calls(NULL) - first;
    int files = open_files();
    tap_ok(clean.created && clean.sound && clean.failures == 0 && nothing_left(),
           "a life of %llu driver calls without a failure", (unsigned long long)calls);
    for (uint64_t nth = code == ZR_CU_UNKNOWN ? 3 : 1; nth <= calls; nth += stride) {
        emulator->fail(&(struct zr_emulator_fault){.nth = nth, .code = code});
        struct outcome outcome = life();
        emulator->fail(&(struct zr_emulator_fault){0});
        unsound += outcome.created && !outcome.sound;
        left += !nothing_left();
        refused += !outcome.created;
        unnoticed += outcome.created && outcome.failures == 0;
        if ((outcome.created && !outcome.sound) || !nothing_left())
            tap_note("call %llu: %s", (unsigned long long)nth, zr_last_error());
    }
    tap_ok(calls >= 1000, "they are more than 1,000");
    tap_is(unsound, 0, "error %u at each of them: the books are exact", code);
    tap_is(left, 0, "and the driver has everything back");
    tap_is(open_files(), files, "no descriptor is left open");
    tap_ok(refused > 0 && unnoticed < calls / stride * 2 / 3,
           "%u refused the backend, %u were absorbed, the rest were told", refused, unnoticed);
}

/* The same with zr's own records: the system refuses memory for the nth. */
static void test_each_record(void)
{
    unsigned unsound = 0, left = 0;
    uint64_t nth = 0, passes;
    do {
        zr_fault_set(ZR_FAULT_METADATA, ++nth);
        struct outcome outcome = life();
        passes = zr_fault_set(ZR_FAULT_METADATA, 0);
        unsound += outcome.created && !outcome.sound;
        left += !nothing_left();
    } while (passes >= nth && nth < 5000);
    tap_is(unsound + left, 0, "each of %llu records refused: exact books, nothing left",
           (unsigned long long)nth - 1);
}

/* One kind of call that never works again from some point on. */
static void test_lasting_failures(void)
{
    static const char *const calls[] = {"cuMemCreate",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuEventCreate",
                                        "cuEventRecord",
                                        "cuMemsetD8Async",
                                        "cuMemExportToShareableHandle",
                                        "cuMemGetInfo",
                                        "cuEventSynchronize"};
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        emulator->fail(&(struct zr_emulator_fault){
            .call = calls[i], .nth = 1, .count = UINT64_MAX / 2, .code = ZR_CU_OUT_OF_MEMORY});
        struct outcome outcome = life();
        emulator->fail(&(struct zr_emulator_fault){0});
        tap_ok(outcome.created && outcome.sound && nothing_left(), "%s always fails: %u errors", calls[i],
               outcome.failures);
    }
}

int main(void)
{
    uint64_t seed = run_seed();
    if (!cuda_driver(&emulator))
        return tap_done();
    test_random(seed);
    test_unseen();
    test_steady_state();
    test_threads(seed);
    if (emulator) {
        test_each_call(ZR_CU_OUT_OF_MEMORY);
        test_each_call(ZR_CU_UNKNOWN);
        test_each_record();
        test_lasting_failures();
        tap_ok(nothing_left(), "the driver has everything back");
    }
    return tap_done();
}
