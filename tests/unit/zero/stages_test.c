/* stages_test.c: what each stage takes and sends, from plans and dry engines: on no model more than the stage
 * below; the state by formulas that share no code with the engine; two gathered units at most; a constant
 * communicator; and the shapes that --params chooses. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"
#include "zero/plan/plan.h"
#include "zero/train/settings/args.h"

static unsigned long long state;

static size_t draw(size_t least, size_t most)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return least + (size_t)(state >> 33) % (most - least + 1);
}

/* ---- Lists of units of any size ------------------------------------------------------------------------ */

enum { UNITS_MAX = 14, LISTS = 150 };

struct sample {
    struct zr_parameter parameters[2 * UNITS_MAX];
    struct zr_unit units[UNITS_MAX];
    size_t units_count;
    unsigned world, micro_batches;
    enum zr_precision precision;
};

/* Sizes over four orders of magnitude; half of the lists have units that are alike. */
static void draw_sample(struct sample *sample)
{
    bool alike = draw(0, 1);
    memset(sample, 0, sizeof *sample);
    sample->units_count = draw(1, UNITS_MAX);
    sample->world = (unsigned)draw(1, 9);
    sample->micro_batches = (unsigned)draw(1, 3);
    sample->precision = (enum zr_precision)draw(0, 2);
    for (size_t u = 0; u < sample->units_count; u++) {
        struct zr_parameter *pair = &sample->parameters[2 * u];
        bool copy = alike && u >= 2;
        snprintf(sample->units[u].name, sizeof sample->units[u].name, "u%zu", u);
        sample->units[u].gradient_uses = u == 0 ? 2 : 1;
        for (unsigned i = 0; i < 2; i++) {
            snprintf(pair[i].name, sizeof pair[i].name, "u%zu.%u", u, i);
            pair[i].unit = (unsigned)u;
            pair[i].shape[0] = copy ? pair[(int)i - 2].shape[0] : draw(1, (size_t)1 << draw(0, 14));
        }
    }
}

/* Bytes of a parameter, and of a gradient as it is made. */
static size_t element_bytes(const struct sample *sample)
{
    return sample->precision == ZR_PRECISION_FP32 ? 4 : 2;
}

/* What a rank takes, from the sizes alone. */
struct sizes {
    size_t whole, shards, largest_two;
};

static struct sizes sizes_of(const struct sample *sample)
{
    struct sizes sizes = {0};
    size_t first = 0, second = 0;
    for (size_t u = 0; u < sample->units_count; u++) {
        size_t align = 256 / element_bytes(sample) * sample->world, tensor = 64 / element_bytes(sample),
               a = sample->parameters[2 * u].shape[0];
        size_t padded = (a + tensor - 1) / tensor * tensor + sample->parameters[2 * u + 1].shape[0];
        padded = (padded + align - 1) / align * align;
        sizes.whole += padded;
        second = padded > first ? first : padded > second ? padded : second;
        first = padded > first ? padded : first;
    }
    sizes.shards = sizes.whole / sample->world;
    sizes.largest_two = first + second;
    return sizes;
}

struct taken {
    size_t peak_bytes, kept_by_tag_bytes[ZR_TAG_COUNT], most_gathered_bytes, most_gradient_bytes;
    uint64_t sent_elements;
};

static void watch(struct taken *taken, zr_arena *arena)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
    size_t gathered = stats.live_by_tag_bytes[ZR_TAG_GATHERED], grad = stats.live_by_tag_bytes[ZR_TAG_GRAD];
    if (gathered > taken->most_gathered_bytes)
        taken->most_gathered_bytes = gathered;
    if (grad > taken->most_gradient_bytes)
        taken->most_gradient_bytes = grad;
}

static zr_result use_unit(zr_engine *engine, zr_arena *arena, struct taken *taken, size_t unit, size_t next)
{
    const void *base;
    zr_result result = zr_engine_gather(engine, (unsigned)unit, &base);
    if (result == ZR_OK && next != SIZE_MAX)
        result = zr_engine_prefetch(engine, (unsigned)next);
    watch(taken, arena);
    if (result == ZR_OK)
        zr_engine_release(engine, (unsigned)unit);
    return result;
}

static zr_result hand_over(zr_engine *engine, zr_arena *arena, struct taken *taken, size_t unit)
{
    void *base;
    bool accumulate;
    zr_result result = zr_engine_gradients(engine, (unsigned)unit, &base, &accumulate);
    watch(taken, arena);
    return result == ZR_OK ? zr_engine_reduce(engine, (unsigned)unit) : result;
}

/* Forward over all units and backward, where the first is used again at the turn, as a tied embedding is. */
static zr_result micro_batch(zr_engine *engine, zr_arena *arena, struct taken *taken, size_t units)
{
    zr_result result = ZR_OK;
    for (size_t u = 0; result == ZR_OK && u < units; u++)
        result = use_unit(engine, arena, taken, u, u + 1 < units ? u + 1 : 0);
    if (result == ZR_OK)
        result = use_unit(engine, arena, taken, 0, units - 1);
    if (result == ZR_OK)
        result = hand_over(engine, arena, taken, 0);
    for (size_t u = units; result == ZR_OK && u-- > 1;) {
        result = use_unit(engine, arena, taken, u, u > 1 ? u - 1 : SIZE_MAX);
        if (result == ZR_OK)
            result = hand_over(engine, arena, taken, u);
    }
    return result == ZR_OK ? hand_over(engine, arena, taken, 0) : result;
}

static zr_result run_steps(zr_engine *engine, zr_arena *arena, struct taken *taken,
                           const struct sample *sample)
{
    struct zr_step_report report;
    zr_result result = ZR_OK;
    for (unsigned step = 0; result == ZR_OK && step < 2; step++) {
        for (unsigned m = 0; result == ZR_OK && m < sample->micro_batches; m++)
            result = micro_batch(engine, arena, taken, sample->units_count);
        if (result == ZR_OK)
            result = zr_engine_step(engine, 0, &report);
    }
    return result;
}

/* A dry engine on a sim backend; leaves nothing. */
static zr_result measure(const struct sample *sample, unsigned stage, struct taken *taken)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL;
    zr_engine *engine = NULL;
    struct zr_kernel_context context = {.parallel = {.threads = 1}};
    struct zr_arena_stats stats;
    size_t leaked = 1;
    memset(taken, 0, sizeof *taken);
    zr_result result = zr_backend_sim_create(&backend, NULL);
    if (result == ZR_OK)
        result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    if (result == ZR_OK)
        result = zr_comm_null_create(
            &comm,
            &(struct zr_comm_options){
                .arena = arena, .host_arena = host_arena, .kernels = zr_kernels_null(), .bucket_bytes = 4096},
            0, sample->world);
    if (result == ZR_OK)
        result = zr_engine_create(
            &engine, &(struct zr_engine_options){.arena = arena,
                                                 .host_arena = host_arena,
                                                 .kernels = zr_kernels_null(),
                                                 .context = &context,
                                                 .comm = comm,
                                                 .list = {sample->parameters, 2 * sample->units_count,
                                                          sample->units, sample->units_count},
                                                 .stage = stage,
                                                 .precision = sample->precision,
                                                 .micro_batches = sample->micro_batches});
    if (result == ZR_OK)
        result = run_steps(engine, arena, taken, sample);
    if (result == ZR_OK) {
        zr_arena_get_stats(arena, &stats);
        taken->peak_bytes = stats.peak_live_bytes;
        memcpy(taken->kept_by_tag_bytes, stats.live_by_tag_bytes, sizeof taken->kept_by_tag_bytes);
    }
    zr_engine_destroy(engine);
    zr_comm_destroy(comm);
    zr_arena_destroy(arena, &leaked);
    zr_backend_destroy(backend);
    return result == ZR_OK && leaked ? ZR_ERR_CORRUPT : result;
}

/* Sums of micro-batches are fp32, one shard; a single rank of fp32 adds up in place. */
static bool has_sums(const struct sample *sample)
{
    return sample->micro_batches > 1 && (sample->world > 1 || sample->precision != ZR_PRECISION_FP32);
}

/* What a rank keeps of gradients, sharded: of two bytes in fp32 where there are sums. */
static size_t shard_gradient_bytes(const struct sample *sample)
{
    return sizes_of(sample).shards * (has_sums(sample) ? 4 : element_bytes(sample));
}

/* The state of a stage that shards all it can; a stage that does not keeps what the one below has. */
static bool state_is_right(const struct sample *sample, const struct taken taken[4], unsigned stage)
{
    struct sizes sizes = sizes_of(sample);
    const size_t *kept = taken[stage].kept_by_tag_bytes;
    size_t each = element_bytes(sample), states = stage >= 1 ? sizes.shards : sizes.whole;
    size_t whole_gradients = each * sizes.whole + (has_sums(sample) ? 4 * sizes.shards : 0);
    bool sharded = kept[ZR_TAG_GRAD] == shard_gradient_bytes(sample);
    if (kept[ZR_TAG_OPTIMIZER] != 8 * states || kept[ZR_TAG_MASTER] != (each == 2 ? 4 * states : 0))
        return false;
    if (stage <= 1 && kept[ZR_TAG_GRAD] != whole_gradients)
        return false;
    if (stage >= 2 && !sharded && kept[ZR_TAG_GRAD] != whole_gradients)
        return false;
    /* Where shards and two staged units fit what whole gradients take, they are shards. */
    if (stage >= 2 && sample->world > 1 && !sharded &&
        shard_gradient_bytes(sample) + each * sizes.largest_two <= whole_gradients)
        return false;
    if (stage <= 2)
        return kept[ZR_TAG_PARAM] == each * sizes.whole;
    if (sizes.shards + sizes.largest_two < sizes.whole && kept[ZR_TAG_PARAM] >= each * sizes.whole)
        return false;
    return kept[ZR_TAG_PARAM] >= each * sizes.shards && kept[ZR_TAG_GATHERED] == 0;
}

/* Staging beside the shards; of two bytes, the tied unit's sum of two rounds too. */
static bool stages_too_much(const struct sample *sample, const struct taken *taken)
{
    size_t shards = shard_gradient_bytes(sample), each = element_bytes(sample);
    size_t tied = each == 2 && !has_sums(sample) ? 4 * sizes_of(sample).largest_two / sample->world : 0;
    return taken->kept_by_tag_bytes[ZR_TAG_GRAD] == shards && sample->world > 1 &&
           taken->most_gradient_bytes > (shards + each * sizes_of(sample).largest_two) * 33 / 32 + tied;
}

static void test_lists(void)
{
    unsigned wrong = 0, sharded = 0, more = 0, gathered = 0, staged = 0, failed = 0;
    for (unsigned i = 0; i < LISTS; i++) {
        struct sample sample;
        struct taken taken[4];
        draw_sample(&sample);
        struct sizes sizes = sizes_of(&sample);
        for (unsigned stage = 0; stage < 4; stage++) {
            failed += measure(&sample, stage, &taken[stage]) != ZR_OK;
            wrong += !state_is_right(&sample, taken, stage);
            more += stage > 0 && taken[stage].peak_bytes > taken[stage - 1].peak_bytes;
            gathered += taken[stage].most_gathered_bytes > element_bytes(&sample) * sizes.largest_two;
            staged += stages_too_much(&sample, &taken[stage]);
        }
        sharded += taken[3].most_gathered_bytes > 0;
    }
    tap_is(failed, 0, "%u lists of units at four stages: all run and leave nothing", LISTS);
    tap_is(wrong, 0, "the state of each is what the formula says");
    tap_is(more, 0, "no stage takes more than the one below");
    tap_is(gathered, 0, "gathered parameters are never more than two units");
    tap_is(staged, 0, "staged gradients are two units and a little");
    tap_ok(sharded > LISTS / 8, "%u of the lists gather", sharded);
}

/* ---- GPT plans ----------------------------------------------------------------------------------------- */

/* Of a rank of a run; the rest of the request is the same for all. */
static struct zr_plan_request request_of(const struct zr_shape *shape, const struct sample *run,
                                         unsigned stage)
{
    return (struct zr_plan_request){.shape = *shape,
                                    .stage = stage,
                                    .world = run->world,
                                    .micro_batches = run->micro_batches,
                                    .precision = run->precision,
                                    .threads = 1,
                                    .bucket_bytes = 4 << 20,
                                    .host_arena = host_arena};
}

static zr_result plan(struct zr_byte_plan *out, const struct zr_shape *shape, const struct sample *run,
                      unsigned stage)
{
    struct zr_plan_request request = request_of(shape, run, stage);
    return zr_plan_make(out, &request);
}

static struct zr_shape draw_shape(void)
{
    struct zr_shape shape = {.layers = draw(1, 9),
                             .heads = draw(1, 4),
                             .vocabulary = draw(2, 3000),
                             .sequence = draw(1, 40),
                             .batch = draw(1, 4),
                             .recompute = (enum zr_recompute)draw(0, 2)};
    shape.hidden = shape.heads * draw(1, 40);
    shape.vocabulary_padded = (shape.vocabulary + 63) / 64 * 64;
    return shape;
}

static void test_plans(void)
{
    enum { PLANS = 60 };
    unsigned more = 0, failed = 0, other_comm = 0, more_state = 0;
    for (unsigned i = 0; i < PLANS; i++) {
        struct zr_shape shape = draw_shape();
        struct zr_byte_plan plans[4];
        struct sample run = {.world = (unsigned)draw(1, 12),
                             .micro_batches = (unsigned)draw(1, 3),
                             .precision = (enum zr_precision)draw(0, 2)};
        for (unsigned stage = 0; stage < 4; stage++) {
            failed += plan(&plans[stage], &shape, &run, stage) != ZR_OK;
            more += plans[stage].whole_parameters > plans[stage].elements;
            if (stage == 0)
                continue;
            more += plans[stage].peak_bytes > plans[stage - 1].peak_bytes;
            other_comm += plans[stage].persistent_by_tag_bytes[ZR_TAG_COMM] !=
                          plans[0].persistent_by_tag_bytes[ZR_TAG_COMM];
            for (zr_tag tag = 0; tag < ZR_TAG_COUNT; tag++)
                more_state +=
                    plans[stage].persistent_by_tag_bytes[tag] > plans[stage - 1].persistent_by_tag_bytes[tag];
        }
    }
    tap_is(failed, 0, "%u shapes of GPT, planned at four stages", PLANS);
    tap_is(more, 0, "no stage takes more than the one below");
    tap_is(more_state, 0, "nor keeps more of any tag between steps");
    tap_is(other_comm, 0, "the communicator is the same at all stages");
}

/* Elements of the units as they are padded for `world` ranks; enough layers that all is sharded. */
struct units {
    uint64_t wte, wpe, block, norm;
};

static uint64_t up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static struct units units_of(const struct zr_shape *shape, const struct sample *run)
{
    uint64_t c = shape->hidden, to = 256 / element_bytes(run) * run->world, tensor = 64 / element_bytes(run);
    const uint64_t tensors[] = {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c};
    uint64_t block = c; /* the last tensor needs no rounding before the unit's */
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        block += up(tensors[i], tensor);
    return (struct units){up(shape->vocabulary_padded * c, to), up(shape->sequence * c, to), up(block, to),
                          up(up(c, tensor) + c, to)};
}

/* K reductions of Ψ' and one gather; at stage 3 each micro-batch gathers for forward and for backward, since
 * what is gathered is freed after its use. To the element. */
static void check_volume(const struct zr_shape *shape, const struct sample *run)
{
    struct units u = units_of(shape, run);
    uint64_t k = run->micro_batches, blocks = shape->layers * u.block;
    uint64_t once = u.wte + u.wpe + blocks + u.norm;
    uint64_t reduced = k * (once + u.wte);      /* the tied embedding twice */
    uint64_t gathered = k * (2 * once - u.wpe); /* positions are not needed by backward */
    uint64_t shares[4] = {reduced + once, reduced + once, reduced + once, reduced + gathered};
    for (unsigned stage = 0; stage < 4; stage++) {
        struct zr_byte_plan got;
        tap_result(plan(&got, shape, run, stage), ZR_OK, "stage %u of %u ranks", stage, run->world);
        tap_is(got.sent_elements_per_step, shares[stage] / run->world * (run->world - 1),
               "%u ranks, stage %u, %s, %u micro-batches: elements sent", run->world, stage,
               zr_precision_name(run->precision), run->micro_batches);
        if (stage == 3)
            tap_is(got.persistent_by_tag_bytes[ZR_TAG_PARAM], element_bytes(run) * once / run->world,
                   "all is sharded");
    }
}

/* Reduced once a step: one reduction and one gather whatever K is, the tied embedding added up before it,
 * and no sums beside whole gradients. */
static void check_once(const struct zr_shape *shape, const struct sample *run)
{
    struct units u = units_of(shape, run);
    uint64_t once = u.wte + u.wpe + shape->layers * u.block + u.norm;
    for (unsigned stage = 0; stage < 2; stage++) {
        struct zr_plan_request request = request_of(shape, run, stage);
        struct zr_byte_plan got;
        request.reduce = ZR_REDUCE_ONCE;
        tap_result(zr_plan_make(&got, &request), ZR_OK, "stage %u of %u ranks, reduced once", stage,
                   run->world);
        tap_is(got.sent_elements_per_step, 2 * once / run->world * (run->world - 1),
               "%u ranks, stage %u, %s, %u micro-batches, reduced once: elements sent", run->world, stage,
               zr_precision_name(run->precision), run->micro_batches);
        tap_is(got.persistent_by_tag_bytes[ZR_TAG_GRAD], element_bytes(run) * once, "and bytes of gradients");
    }
}

static void test_volume(void)
{
    struct zr_shape shape = {.layers = 12,
                             .hidden = 40,
                             .heads = 2,
                             .vocabulary = 250,
                             .vocabulary_padded = 256,
                             .sequence = 24,
                             .batch = 2};
    for (unsigned world = 3; world <= 8; world += 5)
        for (unsigned at = 0; at < 4 * 3; at++) {
            const unsigned k = (const unsigned[]){1, 2, 3, 5}[at / 3];
            struct sample run = {
                .world = world, .micro_batches = k, .precision = (enum zr_precision)(at % 3)};
            check_volume(&shape, &run);
            check_once(&shape, &run);
        }
}

/* ---- Large runs ---------------------------------------------------------------------------------------- */

static struct zr_shape chosen(double parameters, unsigned tensor)
{
    struct zr_shape shape = {
        .vocabulary = 256, .vocabulary_padded = 256, .sequence = 128, .batch = 8, .tensor = tensor};
    zr_shape_choose(&shape, parameters);
    return shape;
}

static double plan_elements(const struct zr_shape *shape)
{
    double c = (double)shape->hidden;
    return (double)(shape->vocabulary_padded + shape->sequence + 2) * c +
           (double)shape->layers * (12 * c * c + 13 * c);
}

static void test_shapes(void)
{
    static const double asked[] = {2e4, 1e5, 1e6, 1.2e7, 1.24e8, 1.5e9, 7.5e9, 1.75e11, 1e12};
    enum { ASKED = sizeof asked / sizeof *asked };
    for (size_t i = 0; i < ASKED + 5; i++) { /* the last five again, with heads for eight tensor ranks */
        double parameters = asked[i < ASKED ? i : i - 5];
        struct zr_shape shape = chosen(parameters, i < ASKED ? 1 : 8);
        double got = plan_elements(&shape), limit = i >= ASKED         ? 0.02
                                                    : parameters < 1e6 ? 0.05
                                                    : parameters < 1e9 ? 0.011
                                                                       : 0.006;
        tap_ok(fabs(got / parameters - 1) <= limit && zr_shape_check(&shape) == ZR_OK,
               "--params %g: %zu layers of %zu channels, %g parameters", parameters, shape.layers,
               shape.hidden, got);
    }
}

/* ZeRO's formulas, in bytes of Ψ parameters: what is kept of parameters, gradients, optimizer state and
 * masters. With several micro-batches a shard of fp32 sums comes beside whole gradients, and takes the place
 * of a shard of them. */
static double formula(const struct sample *run, unsigned stage, double elements)
{
    bool narrow = run->precision != ZR_PRECISION_FP32, sums = run->micro_batches > 1;
    double parameter = narrow ? 2 : 4, states = narrow ? 12 : 8, ranks = run->world;
    double gradient = stage <= 1 ? parameter + (sums ? 4 / ranks : 0) : (sums ? 4 : parameter) / ranks;
    parameter /= stage == 3 ? ranks : 1;
    states /= stage >= 1 ? ranks : 1;
    return elements * (parameter + gradient + states);
}

static void test_formulas(void)
{
    /* 7.5e9 parameters on 64 ranks, one micro-batch, mixed: as ZeRO's paper has them, in GB */
    static const double published[] = {120, 31.4, 16.6, 1.9};
    struct zr_shape shape = chosen(7.5e9, 1);
    double elements = plan_elements(&shape);
    for (unsigned i = 0; i < 6; i++)
        for (unsigned stage = 0; stage < 4; stage++) {
            struct sample run = {
                .world = 64, .micro_batches = i >= 3 ? 4 : 1, .precision = (enum zr_precision)(i % 3)};
            double want = formula(&run, stage, elements);
            struct zr_byte_plan got;
            zr_result result = plan(&got, &shape, &run, stage);
            const size_t *kept = got.persistent_by_tag_bytes;
            double bytes = (double)(kept[ZR_TAG_PARAM] + kept[ZR_TAG_GRAD] + kept[ZR_TAG_OPTIMIZER] +
                                    kept[ZR_TAG_MASTER]);
            tap_ok(result == ZR_OK && bytes >= want && bytes <= 1.001 * want,
                   "%s, %u micro-batches, stage %u keeps %.2f GB, formula %.2f",
                   zr_precision_name(run.precision), run.micro_batches, stage, bytes / 1e9, want / 1e9);
            if (run.precision != ZR_PRECISION_FP32 && run.micro_batches == 1)
                tap_ok(fabs(bytes / 1e9 / published[stage] - 1) < 0.02, "which the paper gives as %.1f GB",
                       published[stage]);
        }
}

static size_t comm_bytes(double parameters, unsigned world, size_t bucket_bytes)
{
    struct zr_byte_plan got;
    struct zr_shape shape = chosen(parameters, 1);
    if (zr_plan_make(&got, &(struct zr_plan_request){.shape = shape,
                                                     .stage = 3,
                                                     .world = world,
                                                     .threads = 1,
                                                     .bucket_bytes = bucket_bytes,
                                                     .host_arena = host_arena}) != ZR_OK)
        return SIZE_MAX;
    return got.persistent_by_tag_bytes[ZR_TAG_COMM];
}

static void test_communicator(void)
{
    size_t cap = 64 << 10;
    size_t small = comm_bytes(1e6, 4, cap), large = comm_bytes(1e8, 4, cap);
    tap_ok(small == large && small == 2 * cap, "1M and 100M parameters, buckets of 64 KiB: %zu and %zu bytes",
           small, large);
    small = comm_bytes(1e8, 64, 4 << 20);
    large = comm_bytes(1e11, 64, 4 << 20);
    tap_ok(small == large && small == 8 << 20, "100M and 100B parameters: %zu and %zu bytes", small, large);
    small = comm_bytes(1e4, 4, 4 << 20);
    tap_ok(small < 128 << 10, "10k parameters: %zu bytes", small);
    tap_is(comm_bytes(1e6, 1, cap), 0, "none for a single rank");
}

int main(void)
{
    state = run_seed();
    tap_result(records_begin(), ZR_OK, "memory for records");
    tap_ok(host_arena != NULL, "an arena for them");
    test_lists();
    test_plans();
    test_volume();
    test_shapes();
    test_formulas();
    test_communicator();
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
