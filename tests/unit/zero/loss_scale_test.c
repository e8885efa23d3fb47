/* loss_scale_test.c: fp16's loss scale beside a model of it, on ranks of which any may overflow: every rank
 * skips the same steps and comes to the same scale, a skipped step leaves all state as it was, the next good
 * one is not touched by it, and where no smaller scale is left the words name the tensor. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/zero/engine_rig.h"
#include "tests/support/kernels/half.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"
#include "zero/zr_zero.h"

/* Units enough that stage 2 has gradients to shard and stage 3 parameters to gather. */
#define MORE(index)                                                                                          \
    {                                                                                                        \
        .name = "more" #index, .shape = {600, 0}, .unit = index, .group = ZR_GROUP_NO_DECAY, .init_mean = 1  \
    }
static const struct zr_parameter parameters[] = {
    {.name = "tied", .shape = {9, 31}, .unit = 0, .group = ZR_GROUP_DECAY, .init_deviation = 0.1f},
    {.name = "plain.weight", .shape = {17, 40}, .unit = 1, .group = ZR_GROUP_DECAY, .init_deviation = 0.1f},
    {.name = "plain.bias", .shape = {40, 0}, .unit = 1, .group = ZR_GROUP_NO_DECAY},
    MORE(2),
    MORE(3),
    MORE(4),
    MORE(5),
    MORE(6),
    MORE(7)};
static const struct zr_unit units[] = {{"tied", 2},  {"plain", 1}, {"more2", 1}, {"more3", 1},
                                       {"more4", 1}, {"more5", 1}, {"more6", 1}, {"more7", 1}};
enum { PARAMETERS = 9, UNITS = 8, STEPS = 60 };

struct setting {
    unsigned world, stage, micro_batches;
    struct zr_loss_scaling scaling;
    uint64_t seed;
    int (*body)(const struct setting *setting, zr_engine *engine, unsigned rank);
};

/* ---- A rank -------------------------------------------------------------------------------------------- */

static zr_result open_rank(struct rig *rig, const struct setting *setting, struct zr_local_world *local,
                           unsigned rank)
{
    const struct zr_kernels *kernels = zr_kernels_cpu(ZR_ISA_PLAIN);
    zr_result result = rig_open(rig, &(struct rig_options){.local = local,
                                                           .rank = rank,
                                                           .isa = ZR_ISA_PLAIN,
                                                           .precision = ZR_PRECISION_FP16,
                                                           .bucket_bytes = 4096,
                                                           .kernels = kernels});
    if (result != ZR_OK)
        return result;
    return zr_engine_create(&rig->engine,
                            &(struct zr_engine_options){
                                .arena = rig->arena,
                                .host_arena = rig->arena,
                                .kernels = kernels,
                                .context = &rig->context,
                                .comm = rig->comm,
                                .list = {parameters, PARAMETERS, units, UNITS},
                                .stage = setting->stage,
                                .micro_batches = setting->micro_batches,
                                .precision = ZR_PRECISION_FP16,
                                .loss_scaling = setting->scaling,
                                .seed = 3,
                                .optimizer = {.beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-6f, .clip = 1}});
}

/* What is kept of gradients where they are whole: fp16, and with several micro-batches a shard of fp32 sums.
 */
static size_t whole_gradient_bytes(const struct setting *setting, const struct rig *rig)
{
    size_t elements = (size_t)zr_engine_padded_elements(rig->engine);
    return 2 * elements + (setting->micro_batches > 1 ? 4 * elements / setting->world : 0);
}

/* That the stage asked for is the one that runs: the next lower one would do the same arithmetic. */
static int has_its_stage(const struct setting *setting, const struct rig *rig)
{
    struct zr_arena_stats stats;
    bool shared = setting->world > 1;
    zr_arena_get_stats(rig->arena, &stats);
    must(zr_engine_gathers(rig->engine) == (shared && setting->stage == 3));
    bool sharded = stats.live_by_tag_bytes[ZR_TAG_GRAD] < whole_gradient_bytes(setting, rig);
    must(sharded == (shared && setting->stage >= 2));
    return 0;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct setting *setting = argument;
    struct rig rig;
    if (open_rank(&rig, setting, local, rank) != ZR_OK) {
        fprintf(stderr, "# rank %u: %s\n", rank, zr_last_error());
        return 100;
    }
    int code = has_its_stage(setting, &rig);
    code = code ? code : setting->body(setting, rig.engine, rank);
    size_t leaked = rig_close(&rig);
    return code ? code : leaked ? 101 : 0;
}

static int in_world(const struct setting *setting)
{
    struct setting copy = *setting;
    return rig_launch(setting->world, rank_main, &copy);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* What a step's gradients are: on which rank one is not finite, and where. */
struct plan {
    unsigned bad_rank; /* the world: all are finite */
    unsigned bad_round;
};

static zr_result hand_over(zr_engine *engine, unsigned unit, float value, bool bad)
{
    void *base;
    bool accumulate;
    zr_result result = zr_engine_gradients(engine, unit, &base, &accumulate);
    for (size_t p = 0; result == ZR_OK && p < PARAMETERS; p++) {
        uint16_t *values = (uint16_t *)base + zr_engine_offset(engine, p);
        for (uint64_t i = 0; parameters[p].unit == unit && i < zr_parameter_elements(&parameters[p]); i++)
            values[i] = half_of(accumulate ? float_of_half(values[i]) + value : value);
        if (parameters[p].unit == unit && bad && p == 1)
            values[33] = half_of(INFINITY);
    }
    return result == ZR_OK ? zr_engine_reduce(engine, unit) : result;
}

static zr_result whole_step(const struct setting *setting, zr_engine *engine, unsigned rank,
                            const struct plan *plan, struct zr_step_report *report)
{
    /* a gradient of 2^-12, scaled; exact at every scale of these tests, but for those beyond fp16 */
    float value = zr_engine_loss_scale(engine) * 0x1p-12f;
    zr_result result = ZR_OK;
    for (unsigned m = 0; result == ZR_OK && m < setting->micro_batches; m++) {
        bool bad = plan->bad_rank == rank && plan->bad_round == m;
        result = hand_over(engine, 0, value, false);
        for (unsigned unit = UNITS; result == ZR_OK && unit-- > 1;)
            result = hand_over(engine, unit, value, bad);
        if (result == ZR_OK)
            result = hand_over(engine, 0, value, false);
    }
    return result == ZR_OK ? zr_engine_step(engine, 1e-3f, report) : result;
}

/* A sum over what this rank owns: changes when anything does. */
static double fingerprint(zr_engine *engine)
{
    double sum = 0;
    zr_engine_synchronize(engine);
    for (size_t i = 0; i < zr_engine_segments_count(engine); i++) {
        struct zr_shard_segment s;
        zr_engine_segment(engine, i, &s);
        for (size_t e = 0; e < s.count; e++)
            sum += ((double)s.parameter[e] + 3 * (double)s.momentum[e] + 1e6 * (double)s.variance[e]) *
                   (double)(1 + (s.global_index + e) % 97);
    }
    return sum;
}

/* ---- The model of the scale ---------------------------------------------------------------------------- */

struct model {
    double scale;
    unsigned good, forgiven, skipped, in_row;
};

static void model_step(struct model *model, const struct setting *setting, bool finite)
{
    const struct zr_loss_scaling *o = &setting->scaling;
    if (!finite) {
        model->good = 0;
        model->skipped++;
        model->in_row++;
        if (model->forgiven + 1 < o->hysteresis)
            model->forgiven++;
        else
            model->scale = fmax(model->scale / 2, (double)o->least);
        return;
    }
    model->in_row = 0;
    if (++model->good == o->window) {
        model->good = 0;
        model->forgiven = 0;
        model->scale *= 2;
    }
}

static int follows_the_model(const struct setting *setting, zr_engine *engine, unsigned rank)
{
    struct model model = {.scale = (double)setting->scaling.initial};
    uint64_t state = setting->seed, updates = 0;
    double before = fingerprint(engine), after;

    for (unsigned step = 0; step < STEPS; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        unsigned draw = (unsigned)(state >> 33);
        bool bad = draw % 4 == 0 && model.scale > (double)setting->scaling.least;
        struct plan plan = {bad ? draw / 4 % setting->world : setting->world,
                            draw / 64 % setting->micro_batches};
        struct zr_step_report report;
        struct zr_loss_scale got;
        double used = model.scale;
        must((double)zr_engine_loss_scale(engine) == model.scale);
        must(whole_step(setting, engine, rank, &plan, &report) == ZR_OK);
        model_step(&model, setting, !bad);
        zr_engine_scaling(engine, &got);
        must((double)got.scale == model.scale && got.skipped_steps == model.skipped);
        must(got.skipped_in_row == model.in_row);
        must(report.skipped == bad && (double)report.loss_scale == used);
        after = fingerprint(engine);
        must((after == before) == bad);
        before = after;
        updates += !bad;
        must(zr_engine_steps_done(engine) == updates);
        /* every element's gradient is 2^-12, once or (tied) twice, per micro-batch */
        double each = 0x1p-12 * setting->micro_batches;
        double norm = each * sqrt(4.0 * 9 * 31 + 17 * 40 + 40 + 6 * 600);
        must(bad || fabs(report.gradient_norm - norm) < 1e-6 * norm);
        must(report.clip_scale == 1); /* the norm is below the limit, whatever the loss scale makes of it */
    }
    must(model.skipped > 3);
    return zr_engine_verify_replicas(engine) == ZR_OK ? 0 : 102;
}

/* Overflow in every step, until that is an error. */
static int ends_with_words(const struct setting *setting, zr_engine *engine, unsigned rank)
{
    const struct plan plan = {setting->world - 1, 0};
    struct zr_step_report report;
    unsigned skipped = 0;
    double before = fingerprint(engine);
    zr_result result;
    while ((result = whole_step(setting, engine, rank, &plan, &report)) == ZR_OK && skipped < 100)
        skipped += report.skipped;
    must(result == ZR_ERR_CORRUPT);
    must(strstr(zr_last_error(), "plain.weight") && strstr(zr_last_error(), "element 33") &&
         strstr(zr_last_error(), "loss scale"));
    must(fingerprint(engine) == before && zr_engine_steps_done(engine) == 0);
    /* by halves: 2^4 .. 2^1 and the last, with one forgiven; constant: as many as there is patience for */
    must(skipped == (setting->scaling.constant ? 31 : 1 + 4));
    return 0;
}

int main(void)
{
    uint64_t seed = run_seed();
    for (unsigned world = 1; world <= 3; world++)
        for (unsigned stage = 0; stage <= 3; stage++) {
            struct setting setting = {.world = world,
                                      .stage = stage,
                                      .micro_batches = 1 + (world + stage) % 3,
                                      .scaling = {.initial = 256, .least = 4, .window = 3, .hysteresis = 2},
                                      .seed = seed + stage,
                                      .body = follows_the_model};
            tap_is(in_world(&setting), 0,
                   "%u ranks, stage %u, %u micro-batches: %d steps with overflow here and there", world,
                   stage, setting.micro_batches, STEPS);
            setting.body = ends_with_words;
            setting.scaling.initial = 16;
            setting.scaling.least = 1;
            setting.scaling.constant = world == 2;
            tap_is(in_world(&setting), 0, "%u ranks, stage %u: no end of overflow is an error that names it",
                   world, stage);
        }
    return tap_done();
}
