/* repeat_test.c: places for the blocks of a pass: none share addresses while they are alive, a step that goes
 * as it was rehearsed calls no driver after the first, however long it is and whatever happens between steps;
 * and what does not repeat has no places. */
#include <string.h>

#include "alloc/plan.h"
#include "tests/draws.h"
#include "tests/records.h"
#include "tests/seed.h"
#include "tests/tap.h"
#include "zero/circle.h"
#include "zero/plan.h"
#include "zero/replica.h"

/* ---- Circles ------------------------------------------------------------------------------------------- */

enum { CIRCLE_MAX = 12000, GRANULE = 64 << 10 };
static struct zr_circle_block circle_blocks[CIRCLE_MAX];

/* Whether b begins while a is alive. */
static bool begins_within(const struct zr_circle *circle, size_t a, size_t b)
{
    return (b + circle->count - a) % circle->count < circle->blocks[a].moments;
}

/* Pairs that are alive together and share a byte, and blocks that are not aligned or not in the region. */
static size_t circle_faults(const struct zr_circle *circle)
{
    size_t faults = 0;
    for (size_t a = 0; a < circle->count; a++) {
        const struct zr_circle_block *one = &circle->blocks[a];
        faults +=
            one->offset_bytes % one->alignment != 0 || one->offset_bytes + one->bytes > circle->region_bytes;
        for (size_t b = 0; b < a; b++) {
            const struct zr_circle_block *other = &circle->blocks[b];
            faults += one->offset_bytes < other->offset_bytes + other->bytes &&
                      other->offset_bytes < one->offset_bytes + one->bytes &&
                      (begins_within(circle, a, b) || begins_within(circle, b, a));
        }
    }
    return faults;
}

/* The most that is alive at a time, moment by moment. */
static size_t circle_live(const struct zr_circle *circle)
{
    size_t most = 0;
    for (size_t at = 0; at < circle->count; at++) {
        size_t live = 0;
        for (size_t i = 0; i < circle->count; i++)
            live += begins_within(circle, i, at) ? circle->blocks[i].bytes : 0;
        most = live > most ? live : most;
    }
    return most;
}

static void test_circles(void)
{
    enum { CIRCLES = 400 };
    size_t faults = 0, below = 0, wrong = 0;
    double worst = 1;
    for (unsigned n = 0; n < CIRCLES; n++) {
        struct zr_circle circle = {.blocks = circle_blocks, .count = 1 + random_below(n % 2 ? 40 : 700)};
        for (size_t i = 0; i < circle.count; i++) {
            size_t most = random_below(4) ? 24 : circle.count; /* few stay for long */
            circle.blocks[i] = (struct zr_circle_block){
                .bytes = 256 * (1 + random_below((size_t)1 << random_below(12))),
                .alignment = random_below(20) ? 256 : 4096,
                .moments = (uint32_t)(1 + random_below(most < circle.count ? most : circle.count))};
        }
        if (zr_circle_place(&circle, GRANULE, host_arena) != ZR_OK)
            break;
        faults += circle_faults(&circle);
        wrong += circle.live_bytes != circle_live(&circle);
        below += circle.region_bytes < circle.live_bytes;
        double ratio = (double)circle.region_bytes / (double)circle.live_bytes;
        worst = ratio > worst ? ratio : worst;
    }
    tap_is(faults, 0, "%u circles: no block lies on one that is alive", CIRCLES);
    tap_is(wrong, 0, "what is live is counted right");
    tap_is(below, 0, "none takes less than that");
    tap_ok(worst < 2, "the highest takes %.3f times what is live", worst);
}

/* A network of so many layers: each keeps some blocks until its backward comes, with passing ones in between,
 * of which some are still there when the next layer begins, and the last when the next pass does. */
static void test_deep_circle(size_t layers)
{
    enum { KEPT = 4, PASSING = 2, LAYER = KEPT + PASSING, BACK = 3 };
    struct zr_circle circle = {.blocks = circle_blocks, .count = layers * (LAYER + BACK)};
    for (size_t layer = 0; layer < layers; layer++) {
        struct zr_circle_block *block = &circle.blocks[layer * LAYER];
        size_t end = layers * LAYER + (layers - layer) * BACK; /* of its backward */
        for (size_t i = 0; i < LAYER; i++)
            block[i] = (struct zr_circle_block){.bytes = 256 * (i < KEPT ? 7 + 3 * i : 50 * i + layer % 3),
                                                .alignment = 256,
                                                .moments = i < KEPT ? (uint32_t)(end - layer * LAYER - i)
                                                                    : (uint32_t)(LAYER + i)};
        for (size_t i = 0; i < BACK; i++)
            circle.blocks[layers * LAYER + layer * BACK + i] = (struct zr_circle_block){
                .bytes = 256 * (90 + 11 * i), .alignment = 256, .moments = (uint32_t)(BACK + 2 * i)};
    }
    tap_result(zr_circle_place(&circle, GRANULE, host_arena), ZR_OK, "a pass of %zu allocations is placed",
               circle.count);
    tap_is(circle_faults(&circle), 0, "no block lies on one that is alive");
    tap_ok(circle.region_bytes >= circle.live_bytes && circle.region_bytes < circle.live_bytes + 4 * GRANULE,
           "%zu bytes where %zu are live", circle.region_bytes, circle.live_bytes);
}

/* ---- Sequences made up ------------------------------------------------------------------------------- */

enum { BLOCKS_MAX = 40 };

/* A pass: allocation i is freed before allocation until[i] of its pass, of the next one where that is not
 * above i, and at the end of the step at the latest. */
struct pass {
    size_t count, bytes[BLOCKS_MAX], until[BLOCKS_MAX];
};

static void draw_pass(struct pass *pass)
{
    pass->count = 2 + random_below(BLOCKS_MAX - 2);
    for (size_t i = 0; i < pass->count; i++) {
        pass->bytes[i] = 1 + random_below((size_t)1 << (8 + random_below(11)));
        pass->until[i] = i + 1 + random_below(pass->count - i);
        if (random_below(6) == 0)
            pass->until[i] = random_below(i + 1);
    }
}

/* Frees of the pass what is due before allocation `at`; at the pass's end all that stays within it. */
static void free_due(zr_arena *arena, const struct pass *pass, void **mine, void **before, size_t at)
{
    for (size_t i = 0; i < pass->count; i++) {
        bool leaves = pass->until[i] <= i;
        void **block = leaves ? &before[i] : &mine[i];
        if (*block && (leaves ? pass->until[i] <= at : pass->until[i] <= at && i < at)) {
            zr_arena_free(arena, *block);
            *block = NULL;
        }
    }
}

/* Whether two live blocks share a byte: [count] pairs of addresses and sizes. */
static bool clash(const struct pass *pass, void *const *mine, void *const *before, size_t at)
{
    for (unsigned other = 0; other < 2; other++)
        for (size_t i = 0; i < pass->count; i++) {
            const char *a = mine[at], *b = other ? before[i] : mine[i];
            if (b && a != b && a < b + pass->bytes[i] && b < a + pass->bytes[at])
                return true;
            if (b && a == b && (other || i != at))
                return true;
        }
    return false;
}

/* A step of so many passes; returns how many blocks lie on others. */
static unsigned run_step(zr_arena *arena, const struct pass *pass, unsigned passes, zr_repeat *watch)
{
    void *blocks[2][BLOCKS_MAX] = {{NULL}};
    unsigned clashes = 0;
    for (unsigned p = 0; p < passes; p++) {
        void **mine = blocks[p % 2], **before = blocks[(p + 1) % 2];
        if (watch)
            zr_repeat_pass(watch);
        zr_arena_rewind_plan(arena);
        for (size_t at = 0; at < pass->count; at++) {
            free_due(arena, pass, mine, before, at);
            zr_arena_alloc(arena, &(struct zr_request){.bytes = pass->bytes[at], .tag = ZR_TAG_GRAD},
                           &mine[at]);
            clashes += !mine[at] || clash(pass, mine, before, at);
        }
        free_due(arena, pass, mine, before, pass->count);
    }
    for (unsigned i = 0; i < 2; i++)
        for (size_t k = 0; k < pass->count; k++)
            zr_arena_free(arena, blocks[i][k]);
    return clashes;
}

struct bench {
    zr_backend *backend;
    zr_arena *arena;
};

static zr_result bench_open(struct bench *bench, size_t granule_bytes)
{
    zr_result result =
        zr_backend_sim_create(&bench->backend, &(struct zr_sim_options){.granule_bytes = granule_bytes});
    if (result == ZR_OK)
        result = zr_arena_create(&bench->arena,
                                 &(struct zr_arena_options){.backend = bench->backend, .name = "bench"});
    return result;
}

static size_t bench_close(struct bench *bench)
{
    size_t leaked = SIZE_MAX;
    zr_arena_destroy(bench->arena, &leaked);
    return zr_backend_destroy(bench->backend) == ZR_OK ? leaked : SIZE_MAX;
}

static uint64_t calls_of(zr_arena *arena)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
    return stats.backend_calls_count;
}

/* Places for one sequence, and steps that keep to them. */
struct outcome {
    bool found, follows;
    unsigned clashes, strays;
    uint64_t late_calls;
    size_t region_bytes, live_bytes, leaked_bytes;
};

static void place_and_follow(const struct pass *pass, unsigned passes, struct outcome *out)
{
    struct bench watched, followed;
    struct zr_follow_counts counts;
    zr_repeat *repeat = NULL;
    bool opened = bench_open(&watched, GRANULE) == ZR_OK && bench_open(&followed, GRANULE) == ZR_OK;

    memset(out, 0, sizeof *out);
    if (!opened || zr_repeat_create(&repeat, watched.arena, pass->count * passes, host_arena) != ZR_OK)
        return;
    run_step(watched.arena, pass, passes, repeat);
    out->found = zr_repeat_place(repeat, &out->found) == ZR_OK && out->found;
    out->follows = out->found && zr_repeat_install(repeat, followed.arena) == ZR_OK;
    out->region_bytes = zr_repeat_region_bytes(repeat);
    out->live_bytes = zr_repeat_live_bytes(repeat);
    out->clashes = run_step(followed.arena, pass, passes, NULL);
    uint64_t calls = calls_of(followed.arena);
    for (unsigned step = 1; step <= 4; step++)
        out->clashes += run_step(followed.arena, pass, step == 2 ? 1 : passes, NULL);
    out->late_calls = calls_of(followed.arena) - calls;
    zr_arena_follow_counts(followed.arena, &counts);
    out->strays = (unsigned)(counts.strays_count + counts.conflicts_count + counts.unplaced_count);
    zr_repeat_destroy(repeat);
    out->leaked_bytes = bench_close(&watched) + bench_close(&followed);
}

static void test_sequences(void)
{
    enum { SEQUENCES = 300 };
    unsigned found = 0, clashes = 0, strays = 0, calls = 0, below = 0, leaked = 0;
    double worst = 1;
    for (unsigned i = 0; i < SEQUENCES; i++) {
        struct pass pass;
        struct outcome got;
        draw_pass(&pass);
        place_and_follow(&pass, 3 + (unsigned)random_below(3), &got);
        found += got.follows;
        clashes += got.clashes;
        strays += got.strays;
        calls += got.late_calls > 0;
        below += got.region_bytes < got.live_bytes;
        leaked += got.leaked_bytes > 0;
        double ratio = (double)got.region_bytes / (double)got.live_bytes;
        worst = ratio > worst ? ratio : worst;
    }
    tap_is(found, SEQUENCES, "%u sequences have places", SEQUENCES);
    tap_is(clashes, 0, "no block lies on one that is alive");
    tap_is(strays, 0, "every block is at its place");
    tap_is(calls, 0, "no driver call after the first step");
    tap_is(below, 0, "none takes less than what is live");
    tap_ok(worst < 2, "the highest takes %.3f times what is live", worst);
    tap_is(leaked, 0, "nothing is left behind");
}

/* What does not repeat: every pass has other sizes; a block outlives the step; more than was announced. */
static void test_refused(void)
{
    struct pass one = {.count = 3, .bytes = {1000, 2000, 3000}, .until = {3, 2, 3}}, other = one;
    void *kept = NULL;
    for (unsigned way = 0; way < 4; way++) {
        struct bench bench;
        zr_repeat *repeat = NULL, *second = NULL;
        bool found = true;
        bench_open(&bench, GRANULE);
        tap_result(zr_repeat_create(&repeat, bench.arena, way == 2 ? 2 : 16, host_arena), ZR_OK, "a watch");
        if (way == 0)
            tap_result(zr_repeat_create(&second, bench.arena, 16, host_arena), ZR_ERR_INVALID,
                       "no second one beside it");
        run_step(bench.arena, &one, 1, repeat);
        other.bytes[1] = way == 0 ? 2001 : 2000;
        other.count = way == 3 ? 2 : 3;
        run_step(bench.arena, &other, 1, repeat);
        if (way == 1)
            zr_arena_alloc(bench.arena, &(struct zr_request){.bytes = 64, .tag = ZR_TAG_GRAD}, &kept);
        if (way == 3)
            run_step(bench.arena, &one, 1, repeat);
        tap_result(zr_repeat_place(repeat, &found), ZR_OK, "the watch ends");
        tap_ok(!found, "%s",
               way == 0   ? "a size that changes: no places"
               : way == 1 ? "a block that outlives the step: none"
               : way == 2 ? "more allocations than announced: none"
                          : "a pass that is shorter than the first: none");
        zr_repeat_destroy(repeat);
        if (way == 1)
            zr_arena_free(bench.arena, kept);
        tap_is(bench_close(&bench), 0, "nothing is left behind");
    }
}

/* ---- Training ---------------------------------------------------------------------------------------- */

struct run {
    struct zr_gpt_shape shape;
    unsigned stage, world, micro_batches;
    enum zr_precision precision;
    enum zr_reduce_when reduce;
    size_t granule_bytes;
};

/* Steps, and between them what uses the same blocks otherwise. Returns the driver calls after the first step;
 * UINT64_MAX: something failed. */
static uint64_t late_calls(const struct run *run, zr_arena *arena, struct zr_replica *replica)
{
    uint64_t calls = 0;
    zr_result result = ZR_OK;
    double loss;
    for (unsigned step = 0; result == ZR_OK && step < 6; step++) {
        struct zr_step_report report;
        calls = step == 1 ? calls_of(arena) : calls;
        for (unsigned m = 0; result == ZR_OK && m < run->micro_batches; m++)
            result = zr_gpt_train(replica->model, &loss);
        if (result == ZR_OK)
            result = zr_engine_step(replica->engine, 0, &report);
        if (result == ZR_OK && step > 1)
            result = zr_gpt_evaluate(replica->model, step == 3 ? 1 : run->shape.batch, &loss);
        if (result == ZR_OK && step == 2)
            result = zr_gpt_logits(replica->model, 1, &(float){0});
        if (result == ZR_OK && step == 4) /* as a checkpoint does */
            result = zr_engine_settle(replica->engine);
    }
    return result == ZR_OK ? calls_of(arena) - calls : UINT64_MAX;
}

struct trained {
    bool placed;
    uint64_t late_calls;
    size_t planned_bytes, reserved_bytes, leaked_bytes;
};

static zr_result train_placed(const struct run *run, struct bench *bench, zr_comm *comm, zr_repeat *repeat,
                              struct trained *out)
{
    struct zr_replica replica;
    struct zr_arena_stats stats;
    zr_result result =
        zr_replica_open(&replica, &(struct zr_replica_options){.arena = bench->arena,
                                                               .host_arena = host_arena,
                                                               .kernels = zr_kernels_null(),
                                                               .parallel = {.threads = 1},
                                                               .comm = comm,
                                                               .shape = run->shape,
                                                               .stage = run->stage,
                                                               .micro_batches = run->micro_batches,
                                                               .reduce = run->reduce,
                                                               .precision = run->precision,
                                                               .optimizer = {.kind = ZR_OPTIMIZER_ADAMW}});
    if (result != ZR_OK)
        return result;
    result = zr_repeat_install(repeat, bench->arena);
    out->late_calls = late_calls(run, bench->arena, &replica);
    zr_arena_get_stats(bench->arena, &stats);
    out->reserved_bytes = stats.peak_reserved_bytes;
    zr_replica_close(&replica);
    return result;
}

static void train(const struct run *run, struct trained *out)
{
    enum { BUCKET_BYTES = 64 << 10 };
    struct bench bench;
    struct zr_byte_plan plan;
    zr_repeat *repeat = NULL;
    zr_comm *comm = NULL;
    size_t bucket_bytes = 0;

    memset(out, 0, sizeof *out);
    out->late_calls = UINT64_MAX;
    if (bench_open(&bench, run->granule_bytes) != ZR_OK)
        return;
    zr_result result =
        zr_plan_make(&plan, &(struct zr_plan_request){.shape = run->shape,
                                                      .stage = run->stage,
                                                      .world = run->world,
                                                      .threads = 1,
                                                      .micro_batches = run->micro_batches,
                                                      .reduce = run->reduce,
                                                      .precision = run->precision,
                                                      .optimizer = {.kind = ZR_OPTIMIZER_ADAMW},
                                                      .bucket_bytes = BUCKET_BYTES,
                                                      .granule_bytes = run->granule_bytes,
                                                      .host_arena = host_arena,
                                                      .repeat = &repeat});
    out->planned_bytes = plan.peak_reserved_bytes;
    out->placed = repeat != NULL;
    if (result == ZR_OK)
        result = zr_replica_bucket_bytes(&(struct zr_bucket_request){.shape = &run->shape,
                                                                     .precision = run->precision,
                                                                     .world = run->world,
                                                                     .cap_bytes = BUCKET_BYTES},
                                         host_arena, &bucket_bytes);
    if (result == ZR_OK)
        result = zr_comm_null_create(&comm,
                                     &(struct zr_comm_options){.arena = bench.arena,
                                                               .host_arena = host_arena,
                                                               .kernels = zr_kernels_null(),
                                                               .bucket_bytes = bucket_bytes},
                                     0, run->world);
    if (result == ZR_OK && repeat)
        result = train_placed(run, &bench, comm, repeat, out);
    if (comm)
        zr_comm_destroy(comm);
    zr_repeat_destroy(repeat);
    out->leaked_bytes = bench_close(&bench);
}

static void check_trained(const struct run *run)
{
    struct trained got;
    train(run, &got);
    tap_ok(
        got.placed && got.late_calls == 0 && got.reserved_bytes == got.planned_bytes && got.leaked_bytes == 0,
        "stage %u, %u ranks, %s, %u micro-batches%s, recompute %d: %llu driver calls after the first step, "
        "%zu bytes reserved, %zu planned",
        run->stage, run->world, zr_precision_name(run->precision), run->micro_batches,
        run->reduce == ZR_REDUCE_ONCE ? " reduced once" : "", (int)run->shape.recompute,
        (unsigned long long)got.late_calls, got.reserved_bytes, got.planned_bytes);
}

/* Each stage, precision and number of micro-batches; the first shape is one that called the driver 6 to 12
 * times in every step when blocks went wherever they fitted. */
static void test_training(void)
{
    static const struct zr_gpt_shape shapes[] = {
        {.layers = 6, .hidden = 384, .heads = 6, .sequence = 128, .batch = 8},
        {.layers = 3, .hidden = 60, .heads = 5, .sequence = 17, .batch = 3},
        {.layers = 1, .hidden = 8, .heads = 1, .sequence = 2, .batch = 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (unsigned at = 0; at < 4 * 3 * 3; at++) {
            struct run run = {.shape = shapes[s],
                              .stage = at % 4,
                              .world = 2 + (unsigned)s,
                              .precision = (enum zr_precision)(at / 4 % 3),
                              .micro_batches = (const unsigned[]){1, 2, 5}[at / 12],
                              .granule_bytes = s == 0 ? 0 : GRANULE};
            run.shape.vocabulary = run.shape.vocabulary_padded = 256;
            run.shape.recompute = (enum zr_recompute)((at / 4 + at) % 3);
            check_trained(&run);
            if (s == 1 && run.stage < 2 && run.micro_batches > 1) {
                run.reduce = ZR_REDUCE_ONCE;
                check_trained(&run);
            }
        }
}

/* Steps of many allocations, of which a plan once placed no more than 8,192. */
static void test_deep_training(void)
{
    for (unsigned stage = 0; stage < 4; stage++) {
        struct run run = {.shape = {.layers = 700,
                                    .hidden = 16,
                                    .heads = 2,
                                    .vocabulary = 64,
                                    .vocabulary_padded = 64,
                                    .sequence = 16,
                                    .batch = 2,
                                    .recompute = (enum zr_recompute)(stage % 3)},
                          .stage = stage,
                          .world = 4,
                          .precision = ZR_PRECISION_BF16,
                          .micro_batches = stage == 3 ? 64 : 2,
                          .granule_bytes = GRANULE};
        check_trained(&run);
    }
}

/* ---- Places or none ---------------------------------------------------------------------------------- */

static zr_result plan_of_batch(size_t batch, bool *placed)
{
    struct zr_byte_plan plan;
    zr_repeat *repeat = NULL;
    zr_result result = zr_plan_make(
        &plan, &(struct zr_plan_request){
                   .shape = {.layers = 2,
                             .hidden = 64,
                             .heads = 4,
                             .vocabulary = 256,
                             .vocabulary_padded = 256,
                             .sequence = 32,
                             .batch = batch},
                   .world = 1,
                   .threads = 1,
                   .optimizer = {.kind = ZR_OPTIMIZER_ADAMW},
                   .bucket_bytes = GRANULE,
                   .granule_bytes = 4096, /* so that a rehearsal has 256 GiB of addresses, in two halves */
                   .host_arena = host_arena,
                   .repeat = &repeat});
    *placed = repeat != NULL;
    zr_repeat_destroy(repeat);
    return result;
}

/* Places have to lie in a row: where there are no such addresses, the plan is made without. */
static void test_without_addresses(void)
{
    bool placed;
    tap_result(plan_of_batch(300000, &placed), ZR_OK, "a plan of 104 GB");
    tap_ok(placed, "has places");
    tap_result(plan_of_batch(600000, &placed), ZR_OK, "one of 208 GB, without the addresses for them,");
    tap_ok(!placed, "has none");
    tap_result(plan_of_batch(1200000, &placed), ZR_ERR_ADDRESSES, "one of 417 GB cannot be made");
    tap_ok(!placed, "and leaves no places");
}

static void test_preference(void)
{
    const size_t mib = 1 << 20;
    tap_ok(zr_plan_prefers_places(104 * mib, 100 * mib, 2 * mib), "places may take two granules more");
    tap_ok(!zr_plan_prefers_places(104 * mib + 1, 100 * mib, 2 * mib), "and no byte more than that");
    tap_ok(zr_plan_prefers_places(2010 * mib, 2000 * mib, 2 * mib), "or half a percent");
    tap_ok(!zr_plan_prefers_places(2010 * mib + 1, 2000 * mib, 2 * mib), "and no more than that");
    tap_ok(zr_plan_prefers_places(90 * mib, 100 * mib, 2 * mib), "and less, of course");
}

int main(void)
{
    random_state = run_seed();
    tap_result(records_begin(), ZR_OK, "memory for records");
    test_circles();
    test_deep_circle(40);
    test_deep_circle(1200);
    test_sequences();
    test_refused();
    test_training();
    test_deep_training();
    test_without_addresses();
    test_preference();
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
