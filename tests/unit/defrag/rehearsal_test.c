/* rehearsal_test.c: places for the blocks of a rehearsed pass: none share addresses while they are alive, a
 * step that goes as it was rehearsed calls no driver after the first, however long it is and whatever happens
 * between steps; and what does not repeat has no places. */
#include <string.h>

#include "alloc/plan/plan.h"
#include "tests/support/draws.h"
#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"
#include "zero/plan/plan.h"
#include "zero/step/trainer_state.h"

enum { GRANULE = 64 << 10 };

/* ---- Sequences made up --------------------------------------------------------------------------------- */

enum { BLOCKS_MAX = 40 };

/* A pass: allocation i is freed before allocation until[i] of its pass, of the next one where that is not
 * above i, and at the end of the step at the latest. */
struct pass {
    size_t count, bytes[BLOCKS_MAX], until[BLOCKS_MAX];
};

struct held {
    char *block;
    size_t bytes, due; /* in allocations of the step */
};

static void free_due(zr_arena *arena, struct held *held, size_t now)
{
    for (size_t i = 0; i < 2 * BLOCKS_MAX; i++)
        if (held[i].block && held[i].due <= now) {
            zr_arena_free(arena, held[i].block);
            held[i].block = NULL;
        }
}

/* A step of so many passes; returns how many blocks lie on others. */
static unsigned run_step(zr_arena *arena, const struct pass *pass, size_t passes, zr_rehearsal *watch)
{
    struct held held[2 * BLOCKS_MAX] = {{0}};
    unsigned clashes = 0;
    for (size_t p = 0; p < passes; p++) {
        if (watch)
            zr_rehearsal_pass(watch);
        zr_rehearsal_rewind(arena);
        for (size_t at = 0; at < pass->count; at++) {
            void *block = NULL;
            free_due(arena, held, p * pass->count + at);
            zr_arena_alloc(arena, &(struct zr_request){.bytes = pass->bytes[at], .tag = ZR_TAG_GRAD}, &block);
            struct held own = {block, pass->bytes[at],
                               (p + (pass->until[at] <= at)) * pass->count + pass->until[at]};
            for (size_t i = 0; i < 2 * BLOCKS_MAX; i++)
                clashes += held[i].block && own.block < held[i].block + held[i].bytes &&
                           held[i].block < own.block + own.bytes;
            held[p % 2 * BLOCKS_MAX + at] = own;
        }
        free_due(arena, held, (p + 1) * pass->count);
    }
    free_due(arena, held, SIZE_MAX);
    return clashes;
}

struct bench {
    zr_backend *backend;
    zr_arena *arena;
};

static struct bench bench_open(size_t granule_bytes)
{
    struct bench bench = {NULL, NULL};
    zr_backend_sim_create(&bench.backend, &(struct zr_sim_options){.granule_bytes = granule_bytes});
    zr_arena_create(&bench.arena, &(struct zr_arena_options){.backend = bench.backend, .name = "bench"});
    return bench;
}

static size_t bench_close(struct bench *bench)
{
    size_t leaked = SIZE_MAX;
    zr_arena_destroy(bench->arena, &leaked);
    return zr_backend_destroy(bench->backend) == ZR_OK ? leaked : SIZE_MAX;
}

static struct zr_arena_stats stats_of(zr_arena *arena)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
    return stats;
}

/* Places for one sequence after the other, and steps that keep to them. */
static void test_sequences(void)
{
    enum { SEQUENCES = 300 };
    unsigned found = 0, clashes = 0, unplanned = 0, calls = 0, high = 0, leaked = 0;
    for (unsigned n = 0; n < SEQUENCES; n++) {
        struct bench watched = bench_open(GRANULE), followed = bench_open(GRANULE);
        struct zr_executor_counts counts;
        zr_rehearsal *rehearsal = NULL;
        struct pass pass = {.count = 2 + random_below(BLOCKS_MAX - 2)};
        size_t passes = 3 + random_below(3);
        bool placed = false;
        for (size_t i = 0; i < pass.count; i++) {
            pass.bytes[i] = 1 + random_below((size_t)1 << (8 + random_below(11)));
            pass.until[i] = random_below(6) ? i + 1 + random_below(pass.count - i) : random_below(i + 1);
        }
        if (zr_rehearsal_create(&rehearsal, watched.arena, pass.count * passes, host_arena) != ZR_OK)
            break;
        run_step(watched.arena, &pass, passes, rehearsal);
        found += zr_rehearsal_place(rehearsal, &placed) == ZR_OK && placed &&
                 zr_rehearsal_install(rehearsal, followed.arena) == ZR_OK;
        clashes += run_step(followed.arena, &pass, passes, NULL);
        struct zr_arena_stats stats = stats_of(followed.arena);
        high += stats.reserved_bytes > 2 * stats.peak_live_bytes + GRANULE;
        uint64_t before = stats_of(followed.arena).backend_calls_count;
        for (unsigned step = 1; step <= 4; step++)
            clashes += run_step(followed.arena, &pass, step == 2 ? 1 : passes, NULL);
        calls += stats_of(followed.arena).backend_calls_count > before;
        zr_arena_executor_counts(followed.arena, &counts);
        unplanned += (unsigned)(counts.unplanned_count + counts.conflicts_count + counts.unplaced_count);
        zr_rehearsal_destroy(rehearsal);
        leaked += bench_close(&watched) + bench_close(&followed) > 0;
    }
    tap_is(found, SEQUENCES, "%u sequences have places", SEQUENCES);
    tap_is(clashes + unplanned, 0, "every block is at its place, and none lies on one that is alive");
    tap_is(calls, 0, "no driver call after the first step");
    tap_is(high, 0, "none takes more than two times what is live, and a granule");
    tap_is(leaked, 0, "nothing is left behind");
}

/* Steps of three passes, of which the second may differ. */
static void test_refused(void)
{
    static const struct pass one = {.count = 3, .bytes = {1000, 2000, 3000}, .until = {3, 2, 3}};
    static const struct {
        const char *name;
        size_t notified, bytes, count;
        bool keeps, found;
    } ways[] = {{"a step that repeats: places", 16, 2000, 3, false, true},
                {"a size that changes: none", 16, 2001, 3, false, false},
                {"a block that outlives the step: none", 16, 2000, 3, true, false},
                {"more allocations than notified: none", 2, 2000, 3, false, false},
                {"a pass that is shorter than the first: none", 16, 2000, 2, false, false}};
    for (unsigned w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct bench bench = bench_open(GRANULE);
        struct pass other = one;
        zr_rehearsal *rehearsal = NULL, *second = NULL;
        void *kept = NULL;
        bool found = !ways[w].found;
        tap_ok(zr_rehearsal_create(&rehearsal, bench.arena, ways[w].notified, host_arena) == ZR_OK &&
                   zr_rehearsal_create(&second, bench.arena, 16, host_arena) == ZR_ERR_INVALID,
               "a watch, and no second one");
        other.bytes[1] = ways[w].bytes;
        other.count = ways[w].count;
        run_step(bench.arena, &one, 1, rehearsal);
        run_step(bench.arena, &other, 1, rehearsal);
        if (ways[w].keeps)
            zr_arena_alloc(bench.arena, &(struct zr_request){.bytes = 64, .tag = ZR_TAG_GRAD}, &kept);
        run_step(bench.arena, &one, ways[w].keeps ? 0 : 1, rehearsal);
        tap_ok(zr_rehearsal_place(rehearsal, &found) == ZR_OK && found == ways[w].found, "%s", ways[w].name);
        tap_ok(zr_rehearsal_place(rehearsal, &found) == ZR_ERR_INVALID &&
                   zr_rehearsal_install(rehearsal, bench.arena) == (ways[w].found ? ZR_OK : ZR_ERR_INVALID),
               "once, and what there is can be installed");
        zr_rehearsal_destroy(rehearsal);
        zr_arena_free(bench.arena, kept);
        tap_is(bench_close(&bench), 0, "and nothing is left behind");
    }
}

/* ---- Training ------------------------------------------------------------------------------------------ */

static zr_result load_nothing(void *state, unsigned micro_batch)
{
    (void)state;
    (void)micro_batch;
    return ZR_OK;
}

static zr_result rate_zero(void *state, double loss, float *rate)
{
    (void)state;
    (void)loss;
    *rate = 0;
    return ZR_OK;
}

/* A model with the places of its plan, and the driver calls after its first step. Between steps comes what
 * uses the same blocks otherwise. */
static zr_result train(const struct zr_plan_request *run, const struct zr_trainer_state_options *options,
                       uint64_t *late_calls)
{
    struct zr_trainer_state state;
    struct zr_step_report report;
    uint64_t calls = 0;
    double loss;
    zr_result result = zr_trainer_state_open(&state, options);
    if (result != ZR_OK)
        return result;
    result = zr_rehearsal_install(*run->places, options->arena);
    for (unsigned step = 0; result == ZR_OK && step < 6; step++) {
        calls = step == 1 ? stats_of(options->arena).backend_calls_count : calls;
        result = zr_trainer_step(state.trainer,
                                 &(struct zr_step_calls){.load = load_nothing, .update = rate_zero}, &report);
        if (result == ZR_OK && step > 1)
            result = zr_trainer_evaluate(state.trainer,
                                         (step == 3 ? 1 : run->shape.batch) * run->shape.sequence, &loss);
        if (result == ZR_OK && step == 2)
            result = zr_trainer_answer(state.trainer, run->shape.sequence, 0, &(float){0});
        if (result == ZR_OK && step == 4) /* as a checkpoint does */
            result = zr_engine_synchronize(state.engine);
    }
    *late_calls = stats_of(options->arena).backend_calls_count - calls;
    zr_trainer_state_close(&state); /* which unmaps the pool of checkpoints */
    return result;
}

static void check_trained(struct zr_plan_request run)
{
    struct bench bench = bench_open(run.granule_bytes);
    struct zr_byte_plan plan = {0};
    zr_rehearsal *places = NULL;
    uint64_t calls = UINT64_MAX;

    run.bucket_bytes = 64 << 10;
    run.threads = 1;
    run.host_arena = host_arena;
    run.places = &places;
    struct zr_comm_options comm_options = {
        .arena = bench.arena, .host_arena = host_arena, .kernels = zr_kernels_null()};
    struct zr_trainer_state_options options = {.arena = bench.arena,
                                               .host_arena = host_arena,
                                               .kernels = zr_kernels_null(),
                                               .parallel = {.threads = 1},
                                               .shape = run.shape,
                                               .stage = run.stage,
                                               .micro_batches = run.micro_batches,
                                               .reduce = run.reduce,
                                               .precision = run.precision};
    struct zr_mesh mesh = {0};
    zr_result result = zr_plan_make(&plan, &run);
    if (result == ZR_OK)
        result =
            zr_trainer_state_bucket_bytes(&(struct zr_bucket_request){&run.shape, run.precision, run.world,
                                                                      run.bucket_bytes, ZR_OPTIMIZER_ADAMW},
                                          host_arena, &comm_options.bucket_bytes);
    if (result == ZR_OK)
        result = zr_comm_null_create(&mesh.data, &comm_options, 0, run.world);
    options.mesh = &mesh;
    if (result == ZR_OK && places)
        result = train(&run, &options, &calls);
    if (mesh.data)
        zr_comm_destroy(mesh.data);
    zr_rehearsal_destroy(places);
    size_t reserved = stats_of(bench.arena).peak_reserved_bytes, leaked = bench_close(&bench);
    tap_ok(result == ZR_OK && calls == 0 && reserved == plan.peak_reserved_bytes && leaked == 0,
           "%zu layers, stage %u, %s, %u micro-batches%s, recompute %d: %llu late driver calls, %zu bytes "
           "reserved, %zu planned",
           run.shape.layers, run.stage, zr_precision_name(run.precision), run.micro_batches,
           run.reduce == ZR_REDUCE_ONCE ? " reduced once" : "", (int)run.shape.recompute,
           (unsigned long long)calls, reserved, plan.peak_reserved_bytes);
}

/* Each stage, precision and number of micro-batches; the first shape is one that called the driver 6 to 12
 * times in every step when blocks went wherever they fitted. The last has steps of many allocations, of which
 * a plan once placed no more than 8,192. */
static void test_training(void)
{
    static const struct zr_shape shapes[] = {
        {.layers = 6, .hidden = 384, .heads = 6, .sequence = 128, .batch = 8},
        {.layers = 3, .hidden = 60, .heads = 5, .sequence = 17, .batch = 3},
        {.layers = 1, .hidden = 8, .heads = 1, .sequence = 2, .batch = 1},
        {.layers = 700, .hidden = 16, .heads = 2, .sequence = 16, .batch = 2}};
    for (size_t s = 0; s < 4; s++)
        for (unsigned at = 0; at < (s < 3 ? 4 * 3 * 3 : 4); at++) {
            struct zr_plan_request run = {.shape = shapes[s],
                                          .stage = at % 4,
                                          .world = 2 + (unsigned)s,
                                          .precision = (enum zr_precision)(at / 4 % 3),
                                          .micro_batches = (const unsigned[]){1, 2, 5}[at / 12],
                                          .granule_bytes = s == 0 ? 0 : GRANULE};
            run.shape.vocabulary = run.shape.vocabulary_padded = 256;
            run.shape.recompute = (enum zr_recompute)((at / 4 + at) % 3);
            if (s == 3)
                run.micro_batches = at < 3 ? 2 : 64;
            check_trained(run);
            run.reduce = ZR_REDUCE_ONCE;
            if (s == 1 && run.stage < 2 && run.micro_batches > 1)
                check_trained(run);
        }
}

/* ---- Places or none ------------------------------------------------------------------------------------ */

/* Places have to lie in a row: where there are no such addresses, the plan is made without. */
static void test_without_addresses(void)
{
    static const struct {
        size_t batch;
        zr_result result;
        bool placed;
        const char *name;
    } plans[] = {{300000, ZR_OK, true, "a plan of 104 GB has places"},
                 {600000, ZR_OK, false, "one of 208 GB has none, without the addresses for them"},
                 {1200000, ZR_ERR_ADDRESSES, false, "one of 417 GB cannot be made"}};
    for (unsigned i = 0; i < 3; i++) {
        struct zr_byte_plan plan;
        zr_rehearsal *places = NULL;
        struct zr_plan_request request = {
            .shape = {.layers = 2, .hidden = 64, .heads = 4, .sequence = 32, .batch = plans[i].batch},
            .world = 1,
            .threads = 1,
            .optimizer = {.kind = ZR_OPTIMIZER_ADAMW},
            .bucket_bytes = GRANULE,
            .granule_bytes = 4096, /* so that a rehearsal has 256 GiB of addresses, in two halves */
            .host_arena = host_arena,
            .places = &places};
        request.shape.vocabulary = request.shape.vocabulary_padded = 256;
        zr_result result = zr_plan_make(&plan, &request);
        tap_ok(result == plans[i].result && (places != NULL) == plans[i].placed, "%s", plans[i].name);
        zr_rehearsal_destroy(places);
    }
}

static void test_preference(void)
{
    static const struct {
        size_t placed_bytes, plain_bytes;
        bool preferred;
        const char *name;
    } cases[] = {{104 << 20, 100 << 20, true, "two granules more"},
                 {(104 << 20) + 1, 100 << 20, false, "a byte more than that"},
                 {(size_t)2010 << 20, (size_t)2000 << 20, true, "half a percent more"},
                 {((size_t)2010 << 20) + 1, (size_t)2000 << 20, false, "a byte more than that"},
                 {90 << 20, 100 << 20, true, "less"}};
    for (unsigned i = 0; i < 5; i++)
        tap_ok(zr_plan_prefers_places(cases[i].placed_bytes, cases[i].plain_bytes, 2 << 20) ==
                   cases[i].preferred,
               "places that take %s %s", cases[i].name, cases[i].preferred ? "will do" : "will not");
}

int main(void)
{
    random_state = run_seed();
    tap_result(records_begin(), ZR_OK, "memory for records");
    test_sequences();
    test_refused();
    test_training();
    test_without_addresses();
    test_preference();
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
