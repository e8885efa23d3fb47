/* engine_test.c: the flat partition and the stage engine. Worlds of several ranks are forked through
 * zr_local_launch(); a rank reports on stderr and by its exit code. Every stage's state is compared with an
 * AdamW in double precision that knows nothing of shards. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/fault.h"
#include "tests/tap.h"
#include "zero/layout.h"
#include "zero/zr_zero.h"

/* Odd sizes, a tied unit with two contributions, vectors and matrices. */
static const struct zr_parameter parameters[] = {
    {"embed", {67, 13}, 0, true, 0, 0.5f},      {"a.weight", {13, 39}, 1, true, 0, 0.1f},
    {"a.bias", {39, 0}, 1, false, 0, 0},        {"b.scale", {1, 0}, 2, false, 1, 0},
    {"c.weight", {5, 1009}, 3, true, 0, 0.02f}, {"c.bias", {1009, 0}, 3, false, 0.5f, 0},
};
static const struct zr_unit units[] = {{"embed", 2}, {"a", 1}, {"b", 1}, {"c", 1}};
enum { PARAMETERS = 6, UNITS = 4, STEPS = 5 };
static const struct zr_parameter_list list = {parameters, PARAMETERS, units, UNITS};
static const struct zr_adamw_options adamw = {
    .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-6f, .weight_decay = 0.05f, .clip = 2.0f};

/* ---- A rank's memory -------------------------------------------------------------------------------------
 */

struct rig {
    zr_backend *backend;
    zr_arena *arena;
    zr_comm *comm;
    struct zr_kernel_context context;
    zr_engine *engine;
};

struct setting {
    unsigned stage, world;
    int (*body)(struct rig *rig, const struct setting *setting);
};

static zr_result rig_engine(struct rig *rig, unsigned stage)
{
    return zr_engine_create(&rig->engine,
                            &(struct zr_engine_options){.arena = rig->arena,
                                                        .host_arena = rig->arena,
                                                        .kernels = zr_kernels_cpu(zr_isa_best()),
                                                        .context = &rig->context,
                                                        .comm = rig->comm,
                                                        .list = list,
                                                        .stage = stage,
                                                        .seed = 9,
                                                        .adamw = adamw});
}

static zr_result rig_open(struct rig *rig, struct zr_local_world *local, unsigned rank)
{
    struct zr_kernel_limits limits = {8, 8, 8, 1, 32, 64, 1};
    zr_result result;
    memset(rig, 0, sizeof *rig);
    result = zr_backend_host_create(&rig->backend, &(struct zr_host_options){.granule_bytes = 64 << 10});
    if (result == ZR_OK)
        result = zr_arena_create(
            &rig->arena, &(struct zr_arena_options){.backend = rig->backend, .reserve_bytes = 256 << 20});
    if (result != ZR_OK)
        return result;
    struct zr_comm_options options = {.arena = rig->arena,
                                      .host_arena = rig->arena,
                                      .kernels = zr_kernels_cpu(zr_isa_best()),
                                      .bucket_bytes = 2048};
    result = local ? zr_comm_local_create(&rig->comm, &options, local, rank)
                   : zr_comm_null_create(&rig->comm, &options, 0, 1);
    if (result != ZR_OK)
        return result;
    rig->context =
        (struct zr_kernel_context){.parallel = {.threads = 1},
                                   .workspace_bytes = zr_kernel_workspace_bytes(&limits, zr_isa_best()),
                                   .isa = zr_isa_best()};
    result = zr_arena_alloc(
        rig->arena, &(struct zr_request){.bytes = rig->context.workspace_bytes, .tag = ZR_TAG_WORKSPACE},
        &rig->context.workspace);
    return result == ZR_OK && zr_kernel_open(&rig->context) != 0 ? ZR_ERR_UNAVAILABLE : result;
}

static size_t rig_close(struct rig *rig)
{
    size_t leaked = 0;
    zr_engine_destroy(rig->engine);
    if (rig->context.workspace) {
        zr_kernel_close(&rig->context);
        zr_arena_free(rig->arena, rig->context.workspace);
    }
    if (rig->comm)
        zr_comm_destroy(rig->comm);
    if (rig->arena)
        zr_arena_destroy(rig->arena, &leaked);
    if (rig->backend)
        zr_backend_destroy(rig->backend);
    return leaked;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct setting *setting = argument;
    struct rig rig;
    int code;
    if (rig_open(&rig, local, rank) != ZR_OK) {
        fprintf(stderr, "# rank %u: %s\n", rank, zr_last_error());
        return 100;
    }
    code = setting->body(&rig, setting);
    if (rig_close(&rig) != 0)
        code = 101;
    return code;
}

static int in_world(const struct setting *setting)
{
    struct setting copy = *setting;
    fflush(stdout);
    return zr_local_launch(
        &(struct zr_launch_options){.world = setting->world, .rank_main = rank_main, .argument = &copy});
}

/* ---- The reference ---------------------------------------------------------------------------------------
 */

/* The gradient of one element from one rank: small numbers that sum without rounding, so that the reference
 * need not know in which order they were added. `round` is the contribution. */
static float gradient_of(uint64_t global_index, unsigned rank, unsigned step, unsigned round)
{
    uint64_t bits = (global_index * 2654435761u + step * 40503u + rank * 97u + round * 31u) % 2048;
    return ((float)bits - 1024.0f) / 4096.0f;
}

struct model {
    double *w, *m, *v;
    size_t elements;
};

static double reference_step(struct model *model, unsigned world, unsigned step, float rate)
{
    double *g = malloc(model->elements * sizeof *g), squares = 0, scale = 1;
    size_t e = 0;
    for (size_t p = 0; p < PARAMETERS; p++)
        for (uint64_t i = 0; i < zr_parameter_elements(&parameters[p]); i++, e++) {
            g[e] = 0;
            for (unsigned r = 0; r < world; r++)
                for (unsigned round = 0; round < units[parameters[p].unit].contributions; round++)
                    g[e] += (double)gradient_of(e, r, step, round) / world;
            squares += g[e] * g[e];
        }
    if (sqrt(squares) > (double)adamw.clip)
        scale = (double)adamw.clip / sqrt(squares);
    e = 0;
    for (size_t p = 0; p < PARAMETERS; p++)
        for (uint64_t i = 0; i < zr_parameter_elements(&parameters[p]); i++, e++) {
            double gi = g[e] * scale, b1 = (double)adamw.beta1, b2 = (double)adamw.beta2;
            model->m[e] = b1 * model->m[e] + (1 - b1) * gi;
            model->v[e] = b2 * model->v[e] + (1 - b2) * gi * gi;
            double update = model->m[e] / (1 - pow(b1, step)) /
                            (sqrt(model->v[e] / (1 - pow(b2, step))) + (double)adamw.epsilon);
            double decay = parameters[p].shape[1] ? (double)adamw.weight_decay : 0;
            model->w[e] -= (double)rate * (update + decay * model->w[e]);
        }
    free(g);
    return sqrt(squares);
}

/* ---- What each rank does ----------------------------------------------------------------------------------
 */

/* Writes this rank's gradients of a unit and hands them over. */
static zr_result hand_over(zr_engine *engine, unsigned unit, unsigned rank, unsigned step, unsigned round)
{
    float *base;
    bool accumulate;
    uint64_t global = 0;
    zr_result result = zr_engine_gradients(engine, unit, &base, &accumulate);
    if (result != ZR_OK)
        return result;
    for (size_t p = 0; p < PARAMETERS; p++) {
        uint64_t elements = zr_parameter_elements(&parameters[p]);
        for (uint64_t i = 0; parameters[p].unit == unit && i < elements; i++) {
            float *place = base + zr_engine_offset(engine, p) + i;
            float value = gradient_of(global + i, rank, step, round);
            *place = accumulate ? *place + value : value;
        }
        global += elements;
    }
    return zr_engine_reduce(engine, unit);
}

static zr_result whole_step(struct rig *rig, unsigned step, float rate, struct zr_step_report *report)
{
    unsigned rank = zr_comm_rank(rig->comm);
    zr_result result = hand_over(rig->engine, 0, rank, step, 0);
    for (unsigned unit = UNITS; result == ZR_OK && unit-- > 1;)
        result = hand_over(rig->engine, unit, rank, step, 0);
    if (result == ZR_OK)
        result = hand_over(rig->engine, 0, rank, step, 1);
    return result == ZR_OK ? zr_engine_step(rig->engine, rate, report) : result;
}

/* The engine's parameters beside the model's; the largest difference. */
static double compare(struct rig *rig, const struct model *model)
{
    double worst = 0;
    size_t e = 0;
    for (size_t p = 0; p < PARAMETERS; p++) {
        const float *base;
        if (zr_engine_gather(rig->engine, parameters[p].unit, &base) != ZR_OK)
            return INFINITY;
        for (uint64_t i = 0; i < zr_parameter_elements(&parameters[p]); i++, e++)
            worst = fmax(worst, fabs((double)base[zr_engine_offset(rig->engine, p) + i] - model->w[e]));
        zr_engine_release(rig->engine, parameters[p].unit);
    }
    return worst;
}

/* Exit codes are the number of the line that failed, as far as one byte goes. */
#define must(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "# line %d: %s (%s)\n", __LINE__, #condition, zr_last_error());                  \
            return 1 + __LINE__ % 90;                                                                        \
        }                                                                                                    \
    } while (0)

static int follow_reference(struct rig *rig, const struct setting *setting)
{
    struct model model = {.elements = zr_parameter_list_elements(&list)};
    struct zr_comm_counters before, after;
    size_t padded;
    model.w = calloc(3 * model.elements, sizeof *model.w);
    model.m = model.w + model.elements;
    model.v = model.m + model.elements;

    must(rig_engine(rig, setting->stage) == ZR_OK);
    padded = zr_engine_padded_elements(rig->engine);
    size_t e = 0;
    for (size_t p = 0; p < PARAMETERS; p++) {
        const float *base;
        must(zr_engine_gather(rig->engine, parameters[p].unit, &base) == ZR_OK);
        for (uint64_t i = 0; i < zr_parameter_elements(&parameters[p]); i++)
            model.w[e++] = (double)base[zr_engine_offset(rig->engine, p) + i];
    }
    for (unsigned step = 1; step <= STEPS; step++) {
        struct zr_step_report report;
        float rate = 0.01f / (float)step;
        must(zr_engine_settle(rig->engine) == ZR_OK);
        zr_comm_counters_get(rig->comm, &before);
        must(whole_step(rig, step, rate, &report) == ZR_OK);
        must(zr_engine_settle(rig->engine) == ZR_OK);
        zr_comm_counters_get(rig->comm, &after);
        double norm = reference_step(&model, setting->world, step, rate);
        must(fabs(report.gradient_norm - norm) <= 1e-6 * norm);
        must(compare(rig, &model) < 2e-6);
        /* Each element is reduced once (the tied unit's twice) and spread once. */
        size_t tied = 0;
        struct zr_layout layout;
        must(zr_layout_make(&layout, &list, setting->world, rig->arena) == ZR_OK);
        tied = layout.units[0].padded_elements;
        zr_layout_end(&layout);
        must(after.sent_elements - before.sent_elements ==
             (2 * padded + tied) / setting->world * (setting->world - 1));
    }
    must(zr_engine_steps_done(rig->engine) == STEPS);
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
    free(model.w);
    return 0;
}

/* One rank changes one bit of one parameter: everyone hears of it. */
static int replicas_differ(struct rig *rig, const struct setting *setting)
{
    const float *base;
    must(rig_engine(rig, setting->stage) == ZR_OK);
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
    must(zr_engine_gather(rig->engine, 3, &base) == ZR_OK);
    if (zr_comm_rank(rig->comm) == 1)
        ((float *)base)[17] = nextafterf(base[17], 1);
    must(zr_engine_verify_replicas(rig->engine) == ZR_ERR_CORRUPT);
    must(strstr(zr_last_error(), "rank 1"));
    return 0;
}

/* Of all ranks' gradients one element is infinite: all stop, all name the parameter, nothing was updated. */
static int gradient_is_blamed(struct rig *rig, const struct setting *setting)
{
    struct zr_step_report report;
    const float *base;
    float *gradients, before;
    bool accumulate;
    unsigned rank = zr_comm_rank(rig->comm);

    must(rig_engine(rig, setting->stage) == ZR_OK);
    must(zr_engine_gather(rig->engine, 3, &base) == ZR_OK);
    before = base[0];
    for (unsigned unit = 0; unit < UNITS; unit++) {
        must(zr_engine_gradients(rig->engine, unit, &gradients, &accumulate) == ZR_OK);
        if (unit == 3 && rank == setting->world - 1)
            gradients[zr_engine_offset(rig->engine, 5) + 1008] = INFINITY;
        must(zr_engine_reduce(rig->engine, unit) == ZR_OK);
    }
    must(zr_engine_reduce(rig->engine, 0) == ZR_OK);
    must(zr_engine_step(rig->engine, 0.1f, &report) == ZR_ERR_CORRUPT);
    must(strstr(zr_last_error(), "c.bias") && strstr(zr_last_error(), "1008"));
    must(base[0] == before && zr_engine_steps_done(rig->engine) == 0);
    return 0;
}

/* Loading shards and publishing them makes replicas whole, at both stages. */
static int publish(struct rig *rig, const struct setting *setting)
{
    must(rig_engine(rig, setting->stage) == ZR_OK);
    for (size_t i = 0; i < zr_engine_segments_count(rig->engine); i++) {
        struct zr_shard_segment segment;
        zr_engine_segment(rig->engine, i, &segment);
        for (size_t e = 0; e < segment.count; e++) {
            segment.parameter[e] = (float)(segment.global_index + e);
            segment.momentum[e] = 1;
            segment.variance[e] = 2;
        }
    }
    must(zr_engine_publish(rig->engine, 41) == ZR_OK);
    must(zr_engine_steps_done(rig->engine) == 41);
    size_t global = 0;
    for (size_t p = 0; p < PARAMETERS; p++) {
        const float *base;
        must(zr_engine_gather(rig->engine, parameters[p].unit, &base) == ZR_OK);
        for (uint64_t i = 0; i < zr_parameter_elements(&parameters[p]); i++)
            must(base[zr_engine_offset(rig->engine, p) + i] == (float)global++);
    }
    return 0;
}

/* ---- Tests ------------------------------------------------------------------------------------------------
 */

/* Every element belongs to exactly one rank, in any world. */
static void test_layout(void)
{
    struct rig rig;
    tap_result(rig_open(&rig, NULL, 0), ZR_OK, "memory");
    for (unsigned world = 1; world <= 70; world += world < 9 ? 1 : 30) {
        struct zr_layout layout;
        uint64_t owned = 0;
        bool aligned = true;
        tap_result(zr_layout_make(&layout, &list, world, rig.arena), ZR_OK, "a layout for %u ranks", world);
        for (size_t u = 0; u < UNITS; u++)
            for (unsigned r = 0; r < world; r++)
                for (size_t i = 0; i < layout.units[u].parameters_count; i++) {
                    struct zr_overlap part;
                    size_t shard = layout.units[u].shard_elements;
                    if (zr_layout_overlap(&layout.parameters[layout.units[u].first_parameter + i], r * shard,
                                          (r + 1) * shard, &part))
                        owned += part.count;
                    aligned &= shard % ZR_SHARD_ALIGN == 0;
                }
        tap_ok(owned == zr_parameter_list_elements(&list) && aligned, "%u ranks own every element once",
               world);
        zr_layout_end(&layout);
    }
    struct zr_parameter wrong[2] = {parameters[0], parameters[0]};
    struct zr_layout layout;
    wrong[1].unit = 2;
    tap_result(zr_layout_make(&layout, &(struct zr_parameter_list){wrong, 2, units, 2}, 2, rig.arena),
               ZR_ERR_INVALID, "a unit without parameters");
    wrong[1] = parameters[0];
    wrong[1].shape[0] = wrong[1].shape[1] = (size_t)1 << 33;
    tap_result(zr_layout_make(&layout, &(struct zr_parameter_list){wrong, 2, units, 1}, 2, rig.arena),
               ZR_ERR_INVALID, "a parameter beyond counting");
    tap_result(zr_layout_make(&layout, &(struct zr_parameter_list){0}, 2, rig.arena), ZR_ERR_INVALID,
               "an empty list");
    tap_is(rig_close(&rig), 0, "nothing is left behind");
}

static void test_misuse(void)
{
    struct rig rig;
    struct zr_step_report report;
    float *base;
    bool accumulate;
    tap_result(rig_open(&rig, NULL, 0), ZR_OK, "memory");
    tap_result(rig_engine(&rig, 2), ZR_ERR_INVALID, "stage 2 is not there");
    tap_result(zr_engine_create(&rig.engine, &(struct zr_engine_options){0}), ZR_ERR_INVALID,
               "no options at all");
    tap_result(rig_engine(&rig, 1), ZR_OK, "an engine");
    tap_result(zr_engine_step(rig.engine, 0.1f, &report), ZR_ERR_INVALID, "a step without gradients");
    tap_ok(strstr(zr_last_error(), "of 1 gradient contributions") || strstr(zr_last_error(), "of 2"),
           "the words say what is missing: %s", zr_last_error());
    tap_result(zr_engine_gradients(rig.engine, 1, &base, &accumulate), ZR_OK, "gradients of a unit");
    tap_ok(!accumulate, "the first round overwrites");
    tap_result(zr_engine_reduce(rig.engine, 1), ZR_OK, "handed over");
    tap_result(zr_engine_reduce(rig.engine, 1), ZR_ERR_INVALID, "handed over twice");
    tap_is(rig_close(&rig), 0, "nothing is left behind");
}

static void test_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_CREATE, ZR_FAULT_MAP, ZR_FAULT_METADATA};
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        size_t leaked = 0, failures = 0;
        for (uint64_t nth = 1;; nth++) {
            struct rig rig;
            zr_result opened = rig_open(&rig, NULL, 0);
            zr_fault_set(sites[s], nth);
            zr_result result = opened == ZR_OK ? rig_engine(&rig, 0) : opened;
            zr_fault_set(sites[s], 0);
            leaked += rig_close(&rig);
            if (result == ZR_OK)
                break;
            failures++;
        }
        tap_ok(leaked == 0, "%s: an engine's %zu passes failed in turn, %zu bytes left behind",
               zr_fault_site_name(sites[s]), failures, leaked);
    }
}

int main(void)
{
    static const unsigned worlds[] = {1, 2, 3, 4, 8};
    test_layout();
    test_misuse();
    test_faults();
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (unsigned stage = 0; stage <= 1; stage++) {
            struct setting setting = {.stage = stage, .world = worlds[w]};
            setting.body = follow_reference;
            tap_is(in_world(&setting), 0,
                   "%u ranks, stage %u: %d steps as AdamW in double precision has them, and "
                   "the elements sent",
                   setting.world, stage, STEPS);
            setting.body = gradient_is_blamed;
            tap_is(in_world(&setting), 0, "%u ranks, stage %u: an infinite gradient is named everywhere",
                   setting.world, stage);
            setting.body = publish;
            tap_is(in_world(&setting), 0, "%u ranks, stage %u: shards become whole replicas", setting.world,
                   stage);
            setting.body = replicas_differ;
            if (setting.world > 1)
                tap_is(in_world(&setting), 0, "%u ranks, stage %u: a replica that differs is named",
                       setting.world, stage);
        }
    return tap_done();
}
