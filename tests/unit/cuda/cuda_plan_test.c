/* cuda_plan_test.c: plans over a GPU's memory: what a driver keeps that refuses twice in a row, and which
 * streams are waited for. On the emulated driver. */
#include "alloc/core/arena.h"
#include "alloc/plan/plan.h"
#include "tests/support/blocks.h"
#include "tests/support/cuda/cuda_streams.h"

static void start(void)
{
    backend = create(NULL);
    tap_result(zr_arena_create(&arena,
                               &(struct zr_arena_options){.backend = backend, .reserve_bytes = 64 * GRANULE}),
               ZR_OK, "an arena");
}

static void stop(void)
{
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
    tap_ok(nothing_left(), "nothing is left");
}

static struct zr_plan_step step(size_t bytes, size_t offset_bytes, zr_cu_stream stream)
{
    return (struct zr_plan_step){
        .request = {.bytes = bytes, .alignment = 256, .tag = ZR_TAG_GRAD, .stream = number_of(stream)},
        .thread = zr_thread_number(),
        .offset_bytes = offset_bytes,
        .alive_count = 1};
}

/* Two steps: three granules, and the upper two of them with another behind. */
static void install_two(zr_cu_stream stream)
{
    struct zr_plan_step steps[2] = {step(3 * GRANULE, 0, stream), step(2 * GRANULE + 512, GRANULE, stream)};
    struct zr_plan_sequence sequence = {.count = 2, .any = true};
    tap_result(zr_arena_install_plan(arena, &(struct zr_plan){.steps = steps,
                                                              .steps_count = 2,
                                                              .sequences = &sequence,
                                                              .sequences_count = 1,
                                                              .region_bytes = 4 * GRANULE}),
               ZR_OK, "a plan");
}

static struct zr_executor_counts counts(void)
{
    struct zr_executor_counts now;
    zr_arena_executor_counts(arena, &now);
    return now;
}

/* The device can write all of it. */
static bool writable(const char *address, size_t bytes)
{
    return zr_backend_fill(backend, &(struct zr_fill){.to = (void *)address, .value = 7, .bytes = bytes}) ==
               ZR_OK &&
           zr_backend_synchronize(backend) == ZR_OK;
}

/* ---- Refused twice in a row ---------------------------------------------------------------------------- */

static uint64_t to_access, told, untold;

static zr_result mapped(void *argument, void *address, size_t bytes)
{
    (void)argument;
    (void)address;
    told += bytes;
    return ZR_OK;
}

static void unmapping(void *argument, void *address, size_t bytes)
{
    (void)argument;
    (void)address;
    untold += bytes;
}

static const struct zr_map_callback watch = {.mapped = mapped, .unmapping = unmapping};

/* The first step is refused: its access, and the unmaps of the way back. */
static void refuse_first(void)
{
    start();
    told = untold = 0;
    zr_arena_add_map_callback(arena, &watch);
    install_two(NULL);
    /* The call of the access, then all: the unmaps of the way back, and the step's dynamic place. */
    emulator->fail(
        &(struct zr_emulator_fault){.nth = to_access, .count = UINT64_MAX / 2, .code = ZR_CU_UNKNOWN});
    tap_ok(take_on(3 * GRANULE, 0) == NULL, "a step whose access is refused, and the unmaps that follow");
    never_fail();
    tap_is(counts().refused_count, 1, "counts as refused");
    tap_ok(stats().mapped_bytes > 0 && told == 0, "the driver kept some of it, and nobody was told of it");
    tap_is(stats().stranded_bytes, stats().mapped_bytes, "which counts as stranded");
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right: %s", zr_last_error());
}

/* How many calls of the driver there are until it is asked for access, by trying. */
static void find_access(void)
{
    start();
    install_two(NULL);
    uint64_t before = emulator->calls(NULL);
    emulator->fail(
        &(struct zr_emulator_fault){.call = "cuMemSetAccess", .nth = 1, .count = 1, .code = ZR_CU_UNKNOWN});
    uint64_t unmaps = emulator->calls("cuMemUnmap");
    take_on(3 * GRANULE, 0);
    tap_ok(emulator->calls("cuMemUnmap") > unmaps, "an access that is refused is followed by unmaps");
    never_fail();
    uint64_t most = emulator->calls(NULL) - before;
    stop();
    for (to_access = 1; to_access < most; to_access++) {
        start();
        install_two(NULL);
        emulator->fail(
            &(struct zr_emulator_fault){.nth = to_access, .count = UINT64_MAX / 2, .code = ZR_CU_UNKNOWN});
        take_on(3 * GRANULE, 0);
        never_fail();
        bool kept = stats().mapped_bytes == 3 * GRANULE;
        stop();
        if (kept)
            return;
    }
}

static void test_kept(void)
{
    find_access();
    refuse_first();
    char *block = take_on(2 * GRANULE + 512, 0);
    tap_ok(block && writable(block, 2 * GRANULE + 512), "the next step on it has memory that can be used");
    zr_arena_free(arena, block);
    block = take_on(3 * GRANULE, 0);
    tap_ok(block && writable(block, 3 * GRANULE), "and the one after");
    zr_arena_free(arena, block);
    tap_is(counts().planned_count, 2, "both as planned");
    tap_is(stats().stranded_bytes, 0, "then nothing is stranded");
    zr_arena_remove_map_callback(arena, &watch);
    tap_is(told, untold, "who watches has seen pairs");
    stop();

    refuse_first();
    always_fail("cuMemUnmap", ZR_CU_UNKNOWN);
    block = take_on(3 * GRANULE, 0);
    tap_ok(!block || writable(block, 3 * GRANULE), "while the driver keeps it no step gets it");
    tap_is(counts().refused_count, 2, "which counts as refused too");
    zr_arena_free(arena, block);
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right: %s", zr_last_error());
    tap_result(zr_arena_install_plan(arena, NULL), ZR_OK, "the plan ends");
    never_fail();
    char *blocks[16];
    bool good = true;
    for (unsigned i = 0; i < 16; i++)
        good &= (blocks[i] = take_on(2 * GRANULE, 0)) && writable(blocks[i], 2 * GRANULE);
    tap_ok(good, "and no block gets it afterwards");
    for (unsigned i = 0; i < 16; i++)
        zr_arena_free(arena, blocks[i]);
    stop();

    refuse_first();
    tap_ok(zr_arena_trim(arena, 0, NULL) == ZR_OK && stats().reserved_bytes == 0, "a trim asks for it again");
    tap_is(told, untold, "and nobody hears of it");
    stop();
}

/* A number that wrapped would take an old mapping for one of the request that fails. */
static void test_serials(void)
{
    start();
    char *block = take_on(GRANULE + GRANULE / 2, 0);
    size_t offset = (size_t)(block - arena->base) + GRANULE;
    arena->serial = zr_range_mapping(arena->range, offset)->handle->serial + (UINT64_C(1) << 32) - 1;
    emulator->fail(
        &(struct zr_emulator_fault){.call = "cuMemSetAccess", .nth = 1, .count = 1, .code = ZR_CU_UNKNOWN});
    char *beside = take_on(GRANULE + GRANULE / 4, 0);
    never_fail();
    tap_ok(!beside, "a request that shares a granule with a block, after many others, fails");
    tap_ok(writable(block, GRANULE + GRANULE / 2), "and the block keeps its memory");
    zr_arena_free(arena, block);
    stop();
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

/* What a plan gives back waits for the plan's streams, and for no others. */
static void test_waits(void)
{
    start();
    zr_cu_stream own = new_stream(), other = new_stream();
    install_two(own);
    char *kept = take_on(GRANULE / 2, number_of(other));
    emulator->work_ticks(FOREVER);
    launch(other, kept, GRANULE / 2);
    uint64_t waits = emulator->calls("cuCtxSynchronize");
    for (unsigned i = 0; i < 2; i++) {
        char *first = take_on(3 * GRANULE, number_of(own));
        emulator->work_ticks(FOREVER / 4);
        launch(own, first, 3 * GRANULE);
        zr_arena_free(arena, first);
        tap_is(emulator->state().pending_count, 2, "two streams are at work");
        if (i == 0)
            zr_arena_trim(arena, 0, NULL);
        else
            zr_arena_install_plan(arena, NULL);
        tap_is(emulator->state().pending_count, 1, "%s waits for the plan's own",
               i == 0 ? "a trim" : "a plan's end");
        if (i == 0)
            zr_arena_free(arena, take_on(2 * GRANULE + 512, number_of(own)));
    }
    tap_is(emulator->calls("cuCtxSynchronize"), waits, "and not for the device");
    char *next = take_on(3 * GRANULE, number_of(other));
    tap_ok(next != NULL, "the region is anybody's");
    emulator->work_ticks(3);
    zr_arena_free(arena, next);
    zr_arena_free(arena, kept);
    zr_backend_synchronize(backend);
    stop();
    drop_stream(own);
    drop_stream(other);
}

/* Whichever of a plan's streams is the last to pass, it is waited for. */
static void test_waits_for_all(void)
{
    enum { STREAMS = 3 };
    zr_cu_stream streams[STREAMS];
    struct zr_plan_step steps[STREAMS];
    struct zr_plan_sequence sequence = {.count = STREAMS, .any = true};
    for (unsigned i = 0; i < STREAMS; i++) {
        streams[i] = new_stream();
        steps[i] = step(GRANULE, i * GRANULE, streams[i]);
    }
    for (unsigned slow = 0; slow < STREAMS; slow++) {
        start();
        zr_arena_install_plan(arena, &(struct zr_plan){.steps = steps,
                                                       .steps_count = STREAMS,
                                                       .sequences = &sequence,
                                                       .sequences_count = 1,
                                                       .region_bytes = STREAMS * GRANULE});
        emulator->work_ticks(FOREVER);
        for (unsigned i = 0; i < STREAMS; i++) {
            char *block = take_on(GRANULE, number_of(streams[i]));
            if (i == slow)
                launch(streams[i], block, GRANULE);
            zr_arena_free(arena, block);
        }
        tap_ok(emulator->state().pending_count == 1 && counts().planned_count == STREAMS,
               "of %d streams of a plan the %uth works", STREAMS, slow + 1);
        zr_arena_trim(arena, 0, NULL);
        tap_is(emulator->state().pending_count, 0, "a trim waits for it");
        emulator->work_ticks(3);
        stop();
    }
    for (unsigned i = 0; i < STREAMS; i++)
        drop_stream(streams[i]);
}

int main(void)
{
    static void (*const tests[])(void) = {test_kept, test_serials, test_waits, test_waits_for_all};
    return run_on_emulator(tests, sizeof tests / sizeof *tests);
}
