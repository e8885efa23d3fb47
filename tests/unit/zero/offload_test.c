/* offload_test.c: an engine whose state is on the host beside one that has all in one place: after each step
 * the same parameters, norms and states to the last bit, with gradients that come twice in a step, clipping
 * and steps that are skipped; what is in which arena; what is refused. A delayed update beside an engine that
 * gets each step's gradients one step later. A speculative update that is rolled back, or stays. */
#define _GNU_SOURCE
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "tests/support/zero/engine_rig.h"
#include "zero/engine/engine.h"
#include "zero/engine/speculate.h"
#include "tests/support/kernels/half.h"
#include "tests/support/tap.h"

/* What is compared: all in one place, on the host, partly there, and of plans with parameters these in a
 * file, where some stay. */
enum { UNITS = 7, PARAMETERS = 2 * UNITS, STEPS = 5, BUCKET = 4096 };
static struct zr_parameter parameters[PARAMETERS];
static struct zr_unit units[UNITS];

/* Unit 0 has two gradients in a step; shapes fill no line of 64 bytes, and units no bucket, or several. */
static void make_list(void)
{
    for (unsigned u = 0; u < UNITS; u++) {
        struct zr_parameter *p = &parameters[(size_t)2 * u];
        units[u].gradient_uses = u == 0 ? 2 : 1;
        snprintf(units[u].name, sizeof units[u].name, "u%u", u);
        p[0] = (struct zr_parameter){
            .shape = {u == 3 ? 5 : 33, u == 4 ? 300 : 41}, .unit = u, .group = 1, .init_deviation = 0.1f};
        p[1] = (struct zr_parameter){.shape = {43, 0}, .unit = u, .init_mean = 0.5f};
        snprintf(p[0].name, sizeof p[0].name, "u%u.weight", u);
        snprintf(p[1].name, sizeof p[1].name, "u%u.bias", u);
    }
}

struct plan {
    unsigned world, stage, micro_batches;
    enum zr_precision precision;
    bool parameters, scattered;
    enum zr_optimizer_kind kind;
};

static const struct plan plans[] = {
    {1, 0, 1, ZR_PRECISION_BF16, false, false, ZR_OPTIMIZER_ADAMW},
    {1, 0, 3, ZR_PRECISION_BF16, false, false, ZR_OPTIMIZER_SGD},
    {1, 0, 3, ZR_PRECISION_FP32, false, true, ZR_OPTIMIZER_ADAMW},
    {1, 2, 1, ZR_PRECISION_FP32, false, false, ZR_OPTIMIZER_ADAMW},
    {1, 3, 2, ZR_PRECISION_FP16, true, false, ZR_OPTIMIZER_ADAMW},
    {1, 3, 1, ZR_PRECISION_FP32, true, false, ZR_OPTIMIZER_SGD},
    {2, 1, 1, ZR_PRECISION_BF16, false, false, ZR_OPTIMIZER_ADAMW},
    {2, 1, 3, ZR_PRECISION_FP32, false, false, ZR_OPTIMIZER_ADAMW},
    {2, 2, 2, ZR_PRECISION_BF16, false, true, ZR_OPTIMIZER_ADAMW},
    {3, 2, 1, ZR_PRECISION_FP16, false, false, ZR_OPTIMIZER_ADAMW},
    {2, 3, 1, ZR_PRECISION_BF16, false, false, ZR_OPTIMIZER_SGD},
    {3, 3, 2, ZR_PRECISION_BF16, true, false, ZR_OPTIMIZER_ADAMW},
    {2, 3, 1, ZR_PRECISION_FP32, true, true, ZR_OPTIMIZER_ADAMW},
};

/* ---- Gradients ----------------------------------------------------------------------------------------- */

static float drawn(uint64_t at)
{
    uint64_t z = (at + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (float)((double)(z >> 40) / (1 << 23) - 1);
}

/* Written, or added to what is there; in two bytes sums of eighths are exact. */
static void put(void *base, size_t at, enum zr_precision precision, bool adds, float value)
{
    if (precision == ZR_PRECISION_FP32) {
        float *to = (float *)base + at;
        *to = adds ? *to + value : value;
        return;
    }
    uint16_t *to = (uint16_t *)base + at;
    union {
        float number;
        uint32_t bits;
    } wide = {.number = rintf(value * 8) / 8};
    if (precision == ZR_PRECISION_FP16) {
        *to = half_of(wide.number + (adds ? float_of_half(*to) : 0));
        return;
    }
    if (adds) {
        union {
            uint32_t bits;
            float number;
        } old = {.bits = (uint32_t)*to << 16};
        wide.number += old.number;
    }
    *to = (uint16_t)(wide.bits >> 16);
}

/* `seed` is of the step, micro-batch, use and rank; an infinity at its element, if it has one. */
static zr_result hand_over(zr_engine *engine, unsigned unit, uint64_t seed, bool bad)
{
    void *base;
    bool adds;
    zr_result result = zr_engine_gradients(engine, unit, &base, &adds);
    for (size_t p = (size_t)2 * unit; result == ZR_OK && p < 2 * (size_t)unit + 2; p++)
        for (size_t i = 0; i < zr_parameter_elements(&parameters[p]); i++)
            put(base, zr_engine_offset(engine, p) + i, zr_engine_precision(engine), adds,
                bad && p == 7 && i == 3 ? INFINITY : drawn(seed * 1000003 + p * 70001 + i));
    return result == ZR_OK ? zr_engine_reduce(engine, unit) : result;
}

/* The last unit first, and unit 0 first as well as last; from step 3 on unit 3 comes before unit 4. */
static zr_result backward(zr_engine *engine, const struct plan *plan, unsigned step, unsigned rank)
{
    zr_result result = ZR_OK;
    for (unsigned m = 0; m < plan->micro_batches; m++) {
        uint64_t seed = ((uint64_t)step * 16 + m) * 16 + rank;
        bool bad = plan->precision == ZR_PRECISION_FP16 && step == 1 && m == 0 && rank + 1 == plan->world;
        if (result == ZR_OK)
            result = hand_over(engine, 0, seed + 5000, false);
        for (unsigned u = UNITS; u-- > 0 && result == ZR_OK;)
            result = hand_over(engine, step >= 3 && (u == 3 || u == 4) ? 7 - u : u, seed, bad);
    }
    return result;
}

/* ---- What there is after a step ------------------------------------------------------------------------ */

static uint64_t add_words(uint64_t sum, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static uint64_t sum_state(const zr_engine *engine, uint64_t sum)
{
    for (size_t i = 0; i < zr_engine_segments_count(engine); i++) {
        struct zr_shard_segment s;
        zr_engine_segment(engine, i, &s);
        sum = add_words(sum, s.parameter, s.count * sizeof(float));
        sum = add_words(sum, s.momentum, s.count * sizeof(float));
        if (s.variance)
            sum = add_words(sum, s.variance, s.count * sizeof(float));
    }
    return sum;
}

/* Of parameters, and of state where its store can show all of it. */
struct digest {
    uint64_t parameters, state;
};

static zr_result digest(zr_engine *engine, const struct plan *plan, struct digest *out)
{
    zr_result result = ZR_OK;
    for (unsigned u = 0; u < UNITS && result == ZR_OK; u++) {
        const void *base;
        result = zr_engine_gather(engine, u, &base);
        if (result == ZR_OK && u + 1 < UNITS)
            result = zr_engine_prefetch(engine, u + 1);
        for (size_t p = (size_t)2 * u; result == ZR_OK && p < 2 * (size_t)u + 2; p++) {
            size_t at = zr_engine_offset(engine, p), count = zr_parameter_elements(&parameters[p]);
            if (p % 2 == 0) /* and the padding behind it, which is zero for ever */
                count = zr_engine_offset(engine, p + 1) - at;
            out->parameters =
                add_words(out->parameters, (const char *)base + at * zr_precision_bytes(plan->precision),
                          count * zr_precision_bytes(plan->precision));
        }
        if (result == ZR_OK)
            zr_engine_release(engine, u);
    }
    if (result == ZR_OK)
        result = zr_engine_synchronize(engine);
    if (result == ZR_OK)
        out->state = sum_state(engine, out->state);
    return result;
}

/* What is rolled back of a speculative update: one that has to be clipped or skipped, and that of step 2,
 * which is at another rate than was said. */
static bool rolls_back(const struct zr_step_report *report, unsigned step)
{
    return report->skipped || report->clip_scale < 1 || step == 2;
}

/* For all ranks of a program, which are threads or children of one. */
static const char *saved_path(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/zr-offload-test-%d.safetensors", (int)getppid());
    return path;
}

/* Without a reduction that runs concurrently, all units are updated before the step ends. */
static bool all_begun(const struct rig *rig, const struct zr_engine_options *options)
{
    unsigned begun = 0;
    for (size_t u = 0; u < UNITS; u++)
        begun += zr_engine_speculation_holds(rig->engine, u);
    return zr_comm_world(rig->comm) > 1 || options->offload.optimizer ||
           begun == rig->engine->speculation.units_count;
}

/* digests[s] of after step s, and of after state that is loaded, which of one in a file is not. */
static int run_steps(struct rig *rig, const struct plan *plan, const struct zr_engine_options *options,
                     struct digest digests[STEPS + 1])
{
    struct zr_step_report report;
    for (unsigned step = 0; step < STEPS; step++) {
        digests[step] = (struct digest){1, 1};
        must(zr_engine_speculate(rig->engine, step == 2 ? 0.02f : 0.01f) == ZR_OK);
        /* What looks at the state then has a file's read no further ahead. */
        bool looks = options->offload.file && step == 1;
        must(!looks || zr_engine_save(rig->engine, saved_path()) == ZR_OK);
        must(backward(rig->engine, plan, step, zr_comm_rank(rig->comm)) == ZR_OK);
        must(all_begun(rig, options));
        must(zr_engine_step(rig->engine, 0.01f, &report) == ZR_OK);
        must(step < 4 || !rig->engine->speculation.disordered);
        must(report.skipped == (plan->precision == ZR_PRECISION_FP16 && step == 1));
        must(report.skipped || (report.clip_scale < 1) == (options->optimizer.clip < 1));
        must(report.rolled_back ==
             (options->offload.speculative_bytes > 0 && !looks && rolls_back(&report, step)));
        digests[step].parameters =
            add_words(digests[step].parameters, &report.gradient_norm, sizeof report.gradient_norm);
        must(digest(rig->engine, plan, &digests[step]) == ZR_OK);
    }
    if (options->offload.file)
        return 0;
    for (size_t i = 0; i < zr_engine_segments_count(rig->engine); i++) {
        struct zr_shard_segment s;
        zr_engine_segment(rig->engine, i, &s);
        for (size_t k = 0; k < s.count; k++)
            s.parameter[k] = drawn(s.global_index + k);
    }
    must(zr_engine_publish(rig->engine, 7) == ZR_OK);
    digests[STEPS] = (struct digest){1, 1};
    must(digest(rig->engine, plan, &digests[STEPS]) == ZR_OK);
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK && zr_engine_verify_finite(rig->engine) == ZR_OK);
    return 0;
}

static struct zr_engine_options options_of(struct rig *rig, const struct plan *plan)
{
    return (struct zr_engine_options){.struct_bytes = sizeof(struct zr_engine_options),
                                      .arena = rig->arena,
                                      .host_arena = rig->arena,
                                      .kernels = rig->kernels,
                                      .context = &rig->context,
                                      .comm = rig->comm,
                                      .list = {parameters, PARAMETERS, units, UNITS},
                                      .stage = plan->stage,
                                      .micro_batches = plan->micro_batches,
                                      .precision = plan->precision,
                                      .seed = 3,
                                      .loss_scaling = {.initial = 4},
                                      .optimizer = {.kind = plan->kind,
                                                    .beta1 = 0.9f,
                                                    .beta2 = 0.99f,
                                                    .epsilon = 1e-8f,
                                                    .momentum_factor = 0.9f,
                                                    .weight_decay = 0.1f,
                                                    .clip = 0.5f},
                                      .scattered_gradients = plan->scattered};
}

static zr_result open_rank(struct rig *rig, struct zr_local_world *local, unsigned rank,
                           const struct plan *plan)
{
    return rig_open(rig, &(struct rig_options){.local = local,
                                               .rank = rank,
                                               .isa = ZR_ISA_PLAIN,
                                               .precision = plan->precision,
                                               .bucket_bytes = BUCKET,
                                               .granule_bytes = 64 << 10,
                                               .reserve_bytes = 256 << 20,
                                               .kernels = zr_kernels_cpu(ZR_ISA_PLAIN)});
}

/* What an arena has of the tags of state. */
static size_t state_bytes(zr_arena *arena, zr_tag tag)
{
    struct zr_arena_stats stats = {0};
    zr_arena_get_stats(arena, &stats);
    return stats.live_by_tag_bytes[tag];
}

/* In one place; on the host; there with a log of all that is updated, and of a part of it; there but for a
 * part of the units; with parameters in a file, too, and that but for a part; state in a file, updated ahead,
 * all of it or a part; the last two in other ways; both in files. */
static const struct way {
    bool offloaded, filed, state_filed;
    double resident_share;
    size_t log_bytes;
} ways[] = {{false, false, false, 0, 0},
            {false, false, false, 0, SIZE_MAX / 2},
            {false, false, false, 0, 150 << 10},
            {true, false, false, 0, 0},
            {true, false, false, 0, SIZE_MAX / 2},
            {true, false, false, 0, 150 << 10},
            {true, false, false, 0.6, 0},
            {true, true, false, 0, 0},
            {true, true, false, 0.3, 0},
            {true, false, true, 0, SIZE_MAX / 2},
            {true, false, true, 0, 150 << 10},
            {true, false, false, 0.6, SIZE_MAX / 2},
            {true, true, false, 0.3, SIZE_MAX / 2},
            {true, false, true, 0.3, SIZE_MAX / 2},
            {true, true, true, 0, SIZE_MAX / 2},
            {true, true, true, 0.3, 150 << 10}};
enum { WAYS = sizeof ways / sizeof *ways };

static int check_log(const struct plan *plan, zr_arena *arena, size_t most)
{
    size_t bytes = state_bytes(arena, ZR_TAG_OFFLOAD), slots = state_bytes(arena, ZR_TAG_OPTIMIZER),
           masters = state_bytes(arena, ZR_TAG_MASTER),
           all = slots + (masters ? masters /* else the parameters of fp32 on the device */
                                  : slots / zr_optimizer_of(plan->kind)->slots_count);
    must(most > all ? bytes == all : bytes <= most && (bytes > 0) == (most > 0));
    return 0;
}

/* Where an engine's state is. */
static int check_places(const struct way *way, const struct plan *plan, zr_arena *arena, zr_arena *host)
{
    zr_arena *has = way->offloaded ? host : arena, *lacks = way->offloaded ? arena : host;
    bool partly = way->resident_share > 0;
    if (way->state_filed) {
        must((state_bytes(arena, ZR_TAG_OPTIMIZER) > 0) == partly &&
             state_bytes(host, ZR_TAG_OPTIMIZER) == 0);
        must(state_bytes(host, ZR_TAG_OFFLOAD) > 0);
        return 0;
    }
    must(state_bytes(has, ZR_TAG_OPTIMIZER) > 0 && (state_bytes(lacks, ZR_TAG_OPTIMIZER) > 0) == partly);
    must(partly || (state_bytes(lacks, ZR_TAG_MASTER) == 0 && state_bytes(lacks, ZR_TAG_GRAD) == 0));
    must((way->offloaded || plan->precision != ZR_PRECISION_FP32) == (state_bytes(has, ZR_TAG_MASTER) > 0));
    must((way->offloaded && !way->filed && plan->parameters) == (state_bytes(host, ZR_TAG_PARAM) > 0));
    must(way->filed ? state_bytes(host, ZR_TAG_OFFLOAD) > 0 : check_log(plan, has, way->log_bytes) == 0);
    return 0;
}

static int compare_ways(struct rig *rig, const struct plan *plan, zr_arena *host, float clip)
{
    const char *scratch = getenv("TMPDIR");
    const struct zr_offload_file file = {
        .folder = scratch ? scratch : "/tmp", .force = true, .depth = 4, .buffers = plan->world == 1 ? 5 : 0};
    struct digest digests[WAYS][STEPS + 1];
    struct zr_engine_options options = options_of(rig, plan);
    options.optimizer.clip = clip;
    for (unsigned i = 0; i < WAYS; i++) {
        const struct way *way = &ways[i];
        if (way->filed && !plan->parameters)
            continue;
        options.offload = (struct zr_offload){.host = host,
                                              .optimizer = way->offloaded,
                                              .parameters = way->offloaded && plan->parameters,
                                              .parameters_file = way->filed ? &file : NULL,
                                              .file = way->state_filed ? &file : NULL,
                                              .resident_share = way->resident_share,
                                              .speculative_bytes = way->log_bytes};
        must(zr_engine_create(&rig->engine, &options) == ZR_OK);
        must(check_places(way, plan, rig->arena, host) == 0);
        must(run_steps(rig, plan, &options, digests[i]) == 0);
        must(state_bytes(rig->arena, ZR_TAG_GRAD) == 0 || !way->offloaded || way->resident_share > 0);
        zr_engine_destroy(rig->engine);
        rig->engine = NULL;
        for (unsigned step = 0; step < STEPS + (way->state_filed ? 0u : 1u); step++) {
            must(digests[i][step].parameters == digests[0][step].parameters);
            must(way->state_filed || digests[i][step].state == digests[0][step].state);
        }
    }
    return 0;
}

static int compare(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct plan *plan = argument;
    struct rig rig;
    zr_arena *host = NULL;
    size_t leaked = 1;
    must(open_rank(&rig, local, rank, plan) == ZR_OK);
    must(zr_arena_create(
             &host, &(struct zr_arena_options){.backend = rig.backend, .reserve_bytes = 64 << 20}) == ZR_OK);
    must(compare_ways(&rig, plan, host, 0.5f) == 0);
    must(compare_ways(&rig, plan, host, 1e6f) == 0);
    must(zr_arena_destroy(host, &leaked) == ZR_OK && leaked == 0);
    must(rig_close(&rig) == 0);
    return 0;
}

/* ---- The delayed update -------------------------------------------------------------------------------- */

/* Gradients that depend on the parameters: of step k they are read of this rank's view of them. */
struct delayed_gradients {
    float values[PARAMETERS][33 * 300];
};

static float parameter_at(const void *base, size_t at, enum zr_precision precision)
{
    union {
        uint32_t bits;
        float number;
    } wide;
    if (precision == ZR_PRECISION_FP32)
        return ((const float *)base)[at];
    wide.bits = (uint32_t)((const uint16_t *)base)[at] << 16;
    return precision == ZR_PRECISION_FP16 ? float_of_half(((const uint16_t *)base)[at]) : wide.number;
}

static zr_result make_gradients(zr_engine *engine, unsigned step, unsigned rank,
                                struct delayed_gradients *out)
{
    zr_result result = ZR_OK;
    for (unsigned u = 0; u < UNITS && result == ZR_OK; u++) {
        const void *base;
        result = zr_engine_gather(engine, u, &base);
        for (size_t p = (size_t)2 * u; result == ZR_OK && p < 2 * (size_t)u + 2; p++)
            for (size_t i = 0; i < zr_parameter_elements(&parameters[p]); i++)
                out->values[p][i] =
                    8 * parameter_at(base, zr_engine_offset(engine, p) + i, zr_engine_precision(engine)) +
                    drawn(((uint64_t)step * 16 + rank) * 70001 + p * 997 + i);
        if (result == ZR_OK)
            zr_engine_release(engine, u);
    }
    return result;
}

static zr_result hand_all_over(zr_engine *engine, const struct delayed_gradients *gradients)
{
    zr_result result = ZR_OK;
    for (unsigned use = 0; use < UNITS + 1 && result == ZR_OK; use++) {
        unsigned unit = use == 0 ? 0 : UNITS - use; /* unit 0 first and last */
        void *base;
        bool adds;
        result = zr_engine_gradients(engine, unit, &base, &adds);
        for (size_t p = (size_t)2 * unit; result == ZR_OK && p < 2 * (size_t)unit + 2; p++)
            for (size_t i = 0; i < zr_parameter_elements(&parameters[p]); i++)
                put(base, zr_engine_offset(engine, p) + i, zr_engine_precision(engine), adds,
                    gradients->values[p][i]);
        if (result == ZR_OK)
            result = zr_engine_reduce(engine, unit);
    }
    return result;
}

static zr_result parameters_digest(zr_engine *engine, const struct plan *plan, uint64_t *out)
{
    zr_result result = ZR_OK;
    for (unsigned u = 0; u < UNITS && result == ZR_OK; u++) {
        const void *base;
        result = zr_engine_gather(engine, u, &base);
        for (size_t p = (size_t)2 * u; result == ZR_OK && p < 2 * (size_t)u + 2; p++)
            *out = add_words(
                *out, (const char *)base + zr_engine_offset(engine, p) * zr_precision_bytes(plan->precision),
                zr_parameter_elements(&parameters[p]) * zr_precision_bytes(plan->precision));
        if (result == ZR_OK)
            zr_engine_release(engine, u);
    }
    return result;
}

static float rate_of(unsigned step)
{
    return step == UINT_MAX ? 0 : 0.01f + 0.01f * (float)step;
}

/* The reference has all in one place and updates at once, but gets in step k the gradients of step k - 1: it
 * holds them back for a step. A saved state ends the delay, and the reference then updates twice. */
static int follow_late(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct plan *plan = argument;
    static struct delayed_gradients held, made;
    struct zr_step_report report;
    zr_engine *delayed = NULL, *reference = NULL;
    uint64_t digests[2];
    struct rig rig;
    const char *path = saved_path();
    size_t leaked = 1;
    zr_arena *host = NULL;
    must(open_rank(&rig, local, rank, plan) == ZR_OK);
    must(zr_arena_create(
             &host, &(struct zr_arena_options){.backend = rig.backend, .reserve_bytes = 64 << 20}) == ZR_OK);
    struct zr_engine_options options = options_of(&rig, plan);
    options.micro_batches = 1;
    must(zr_engine_create(&reference, &options) == ZR_OK);
    options.offload =
        (struct zr_offload){.host = host, .optimizer = true, .parameters = plan->parameters, .delayed = true};
    must(zr_engine_create(&delayed, &options) == ZR_OK);
    bool holds = false;
    for (unsigned step = 0; step < 6; step++) {
        float rate = rate_of(step), held_rate = rate_of(step - 1);
        must(make_gradients(delayed, step, rank, &made) == ZR_OK);
        must(hand_all_over(delayed, &made) == ZR_OK && zr_engine_step(delayed, rate, &report) == ZR_OK);
        must(zr_engine_steps_done(delayed) == step + 1);
        if (holds) {
            must(hand_all_over(reference, &held) == ZR_OK);
            must(zr_engine_step(reference, held_rate, &report) == ZR_OK);
        }
        held = made;
        holds = true;
        if (step == 3) {
            must(zr_engine_save(delayed, path) == ZR_OK);
            must(hand_all_over(reference, &held) == ZR_OK);
            must(zr_engine_step(reference, rate, &report) == ZR_OK);
            holds = false;
        }
        digests[0] = digests[1] = 1;
        must(parameters_digest(delayed, plan, &digests[0]) == ZR_OK);
        must(parameters_digest(reference, plan, &digests[1]) == ZR_OK);
        must(digests[0] == digests[1]);
    }
    must(zr_engine_load(delayed, path) == ZR_OK &&
         zr_engine_steps_done(delayed) == 4); /* with an update under way */
    must(zr_engine_verify_replicas(delayed) == ZR_OK);
    must(rank != 0 || remove(path) == 0);
    must(hand_all_over(delayed, &made) == ZR_OK && zr_engine_step(delayed, 0.01f, &report) == ZR_OK);
    zr_engine_destroy(delayed); /* likewise */
    zr_engine_destroy(reference);
    must(zr_arena_destroy(host, &leaked) == ZR_OK && leaked == 0);
    must(rig_close(&rig) == 0);
    return 0;
}

/* ---- Steps that are broken off ------------------------------------------------------------------------- */

/* An update that takes long, and whether the gradients were there until its end. */
static zr_arena *gradients_arena;
static _Atomic size_t gradients_bytes;
static _Atomic unsigned updates, early;

static zr_result update_slowly(struct zr_kernel_context *context, const struct zr_update_adamw *args)
{
    zr_result result = zr_kernels_cpu(ZR_ISA_PLAIN)->update_adamw(context, args);
    usleep(20000);
    early += state_bytes(gradients_arena, ZR_TAG_GRAD) < gradients_bytes;
    updates++;
    return result;
}

/* Everything is handed over, and the engine ends, while updates ahead of the norm read gradients. */
static int end_in_a_step(struct rig *rig, struct zr_engine_options *options, const struct plan *plan)
{
    struct zr_kernels slow = *rig->kernels;
    slow.update_adamw = update_slowly;
    options->kernels = &slow;
    gradients_bytes = 0;
    must(zr_engine_create(&rig->engine, options) == ZR_OK);
    must(zr_engine_speculate(rig->engine, 0.01f) == ZR_OK);
    must(backward(rig->engine, plan, 0, zr_comm_rank(rig->comm)) == ZR_OK);
    must(zr_engine_synchronize(rig->engine) == ZR_OK);
    gradients_bytes = state_bytes(gradients_arena, ZR_TAG_GRAD);
    zr_engine_destroy(rig->engine);
    rig->engine = NULL;
    must(updates > 0 && early == 0);
    return 0;
}

static _Atomic bool fails, handed_over;

static zr_result update_or_fail(struct zr_kernel_context *context, const struct zr_update_adamw *args)
{
    while (fails && !handed_over)
        usleep(1000);
    return fails ? zr_fail(ZR_ERR_HOST_MEMORY, "a made-up failure")
                 : zr_kernels_cpu(ZR_ISA_PLAIN)->update_adamw(context, args);
}

/* The first update of a step ahead of the norm fails, with others queued behind it: all state is as before.
 */
static int fail_in_a_step(struct rig *rig, struct zr_engine_options *options, const struct plan *plan)
{
    struct zr_kernels failing = *rig->kernels;
    struct zr_step_report report;
    uint64_t before = 0;
    failing.update_adamw = update_or_fail;
    options->kernels = &failing;
    must(zr_engine_create(&rig->engine, options) == ZR_OK);
    for (unsigned step = 0; step < 2; step++) {
        fails = step == 1;
        handed_over = false;
        before = sum_state(rig->engine, 0);
        must(zr_engine_speculate(rig->engine, 0.01f) == ZR_OK);
        must(backward(rig->engine, plan, step, zr_comm_rank(rig->comm)) == ZR_OK);
        handed_over = true;
        must(zr_engine_step(rig->engine, 0.01f, &report) == (fails ? ZR_ERR_HOST_MEMORY : ZR_OK));
    }
    must(sum_state(rig->engine, 0) == before);
    zr_engine_destroy(rig->engine);
    rig->engine = NULL;
    return 0;
}

/* Who asks between backward and the step finds the parameters that the step began with. */
static int ask_in_a_step(struct rig *rig, const struct zr_engine_options *options, const struct plan *plan)
{
    struct zr_step_report report;
    must(zr_engine_create(&rig->engine, options) == ZR_OK);
    must(zr_engine_speculate(rig->engine, 0.01f) == ZR_OK);
    must(backward(rig->engine, plan, 0, zr_comm_rank(rig->comm)) == ZR_OK);
    must(zr_engine_synchronize(rig->engine) == ZR_OK);
    must(zr_engine_speculation_await_all(rig->engine) == ZR_OK);
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK && zr_engine_verify_finite(rig->engine) == ZR_OK);
    must(zr_engine_step(rig->engine, 0.01f, &report) == ZR_OK);
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
    zr_engine_destroy(rig->engine);
    rig->engine = NULL;
    return 0;
}

/* A disk that has failed has failed for every call that follows, in words of the folder. */
static int lose_the_disk(struct rig *rig, struct zr_engine_options *options, const struct plan *plan)
{
    const struct zr_offload_file *file = options->offload.file;
    struct zr_step_report report;
    const void *parameters_at;
    void *base;
    bool adds;
    must(zr_engine_create(&rig->engine, options) == ZR_OK);
    zr_engine *engine = rig->engine;
    if (options->offload.delayed) {
        must(backward(engine, plan, 0, 0) == ZR_OK && zr_engine_step(engine, 0.01f, &report) == ZR_OK);
        must(zr_engine_synchronize(engine) == ZR_OK && backward(engine, plan, 0, 0) == ZR_OK);
    }
    zr_fault_set(ZR_FAULT_DISK_READ, 1);
    if (options->offload.delayed)
        must(zr_engine_step(engine, 0.01f, &report) == ZR_OK);
    for (unsigned i = 0; i < 3 && options->offload.delayed; i++) {
        must(zr_engine_save(engine, saved_path()) == ZR_ERR_IO && strstr(zr_last_error(), file->folder));
        must(zr_engine_synchronize(engine) == ZR_ERR_IO && strstr(zr_last_error(), file->folder));
    }
    for (unsigned i = 0; i < 6 && !options->offload.delayed;
         i++) { /* one whose read fails, one whose start does */
        must(zr_engine_gather(engine, 1 + i / 3, &parameters_at) == ZR_ERR_IO);
        must(strstr(zr_last_error(), file->folder));
    }
    must(options->offload.delayed || zr_engine_gradients(engine, 1, &base, &adds) == ZR_OK);
    for (unsigned i = 0; i < 6 && !options->offload.delayed; i++)
        must(zr_engine_reduce(engine, 1) == ZR_ERR_IO && strstr(zr_last_error(), file->folder));
    zr_fault_set(ZR_FAULT_DISK_READ, 0);
    zr_engine_destroy(engine);
    rig->engine = NULL;
    return 0;
}

static int fail_alone(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct plan *plan = argument;
    const char *scratch = getenv("TMPDIR");
    const struct zr_offload_file file = {.folder = scratch ? scratch : "/tmp", .force = true, .depth = 4};
    struct rig rig;
    zr_arena *host = NULL;
    size_t leaked = 1;
    must(open_rank(&rig, local, rank, plan) == ZR_OK);
    must(zr_arena_create(
             &host, &(struct zr_arena_options){.backend = rig.backend, .reserve_bytes = 64 << 20}) == ZR_OK);
    struct plan with_adamw = *plan;
    with_adamw.kind = ZR_OPTIMIZER_ADAMW;
    struct zr_engine_options ahead = options_of(&rig, &with_adamw);
    ahead.offload = (struct zr_offload){.host = host, .optimizer = true, .speculative_bytes = SIZE_MAX / 2};
    must(fail_in_a_step(&rig, &ahead, plan) == 0);
    for (int delayed = 0; delayed < 2; delayed++) {
        struct zr_engine_options options = options_of(&rig, plan);
        options.offload = (struct zr_offload){.host = host,
                                              .optimizer = true,
                                              .parameters = true,
                                              .file = &file,
                                              .parameters_file = delayed ? NULL : &file,
                                              .delayed = delayed};
        must(lose_the_disk(&rig, &options, plan) == 0);
    }
    must(zr_arena_destroy(host, &leaked) == ZR_OK && leaked == 0);
    must(rig_close(&rig) == 0);
    return 0;
}

/* A clock by which a transfer that stalls does so for some ten looks. */
static uint64_t hasty_clock(void)
{
    static _Atomic uint64_t now_ns;
    return now_ns += 1000000000;
}

/* A step, and what units have behind it, from the last one on: it was written last. The write of number
 * `nth` stalls; 0: none. */
static int gather_behind(struct rig *rig, struct zr_engine_options *options, const struct plan *plan,
                         uint64_t nth, uint64_t *sums)
{
    struct zr_step_report report;
    must(zr_engine_create(&rig->engine, options) == ZR_OK);
    must(backward(rig->engine, plan, 0, 0) == ZR_OK);
    zr_fault_set(ZR_FAULT_DISK_STALL, nth);
    must(zr_engine_step(rig->engine, 0.01f, &report) == ZR_OK);
    for (unsigned u = UNITS; u-- > 0;) {
        const void *base;
        must(zr_engine_gather(rig->engine, u, &base) == ZR_OK);
        sums[u] = add_words(0, base, rig->engine->layout.units[u].shard_elements * sizeof(float));
        zr_engine_release(rig->engine, u);
    }
    zr_fault_set(ZR_FAULT_DISK_STALL, 0);
    zr_engine_destroy(rig->engine);
    rig->engine = NULL;
    return 0;
}

static int read_behind_writes(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct plan *plan = argument;
    const char *scratch = getenv("TMPDIR");
    const struct zr_offload_file file = {.folder = scratch ? scratch : "/tmp", .force = true, .depth = 4};
    uint64_t want[UNITS], got[UNITS];
    struct rig rig;
    zr_arena *host = NULL;
    size_t leaked = 1;
    must(open_rank(&rig, local, rank, plan) == ZR_OK);
    must(zr_arena_create(
             &host, &(struct zr_arena_options){.backend = rig.backend, .reserve_bytes = 64 << 20}) == ZR_OK);
    zr_os_clock_set(hasty_clock);
    for (uint64_t nth = 0; nth <= UNITS; nth++) {
        struct zr_engine_options options = options_of(&rig, plan);
        options.offload = (struct zr_offload){
            .host = host, .optimizer = true, .parameters = true, .parameters_file = nth > 0 ? &file : NULL};
        must(gather_behind(&rig, &options, plan, nth, nth > 0 ? got : want) == 0);
        must(nth == 0 || memcmp(got, want, sizeof want) == 0);
    }
    zr_os_clock_set(NULL);
    must(zr_arena_destroy(host, &leaked) == ZR_OK && leaked == 0);
    must(rig_close(&rig) == 0);
    return 0;
}

static int break_off(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct plan *plan = argument;
    const char *scratch = getenv("TMPDIR");
    const struct zr_offload_file file = {.folder = scratch ? scratch : "/tmp", .force = true, .depth = 4};
    struct rig rig;
    size_t leaked = 1;
    must(open_rank(&rig, local, rank, plan) == ZR_OK);
    must(zr_arena_create(&gradients_arena, &(struct zr_arena_options){.backend = rig.backend,
                                                                      .reserve_bytes = 64 << 20}) == ZR_OK);
    for (int filed = 0; filed < 2; filed++) {
        struct zr_engine_options options = options_of(&rig, plan);
        options.offload = (struct zr_offload){.host = gradients_arena,
                                              .optimizer = true,
                                              .file = filed ? &file : NULL,
                                              .speculative_bytes = SIZE_MAX / 2};
        must(ask_in_a_step(&rig, &options, plan) == 0);
        must(end_in_a_step(&rig, &options, plan) == 0);
    }
    must(zr_arena_destroy(gradients_arena, &leaked) == ZR_OK && leaked == 0);
    must(rig_close(&rig) == 0);
    return 0;
}

/* ---- What is refused ----------------------------------------------------------------------------------- */

/* A room on the device that is as large as one unit, or as all, takes as much. */
static int fill_room(struct rig *rig, const struct plan *plan)
{
    zr_engine *engine;
    size_t sizes[UNITS + 1] = {0}, all = 0;
    for (unsigned u = 0; u <= UNITS + 1; u++) { /* the first to learn the sizes */
        struct zr_engine_options options = options_of(rig, plan);
        options.offload = (struct zr_offload){.host = rig->arena, .optimizer = true};
        options.offload.resident_share =
            u == 0 ? 0 : ((double)sizes[u - 1] + (u <= UNITS ? 0.5 : 0)) / (double)all;
        must(zr_engine_create(&engine, &options) == ZR_OK);
        size_t stays = 0;
        for (unsigned i = engine->stay.first; i < engine->stay.end; i++)
            stays += engine->layout.units[i].padded_elements;
        must(stays == (u == 0 ? 0 : sizes[u - 1]));
        /* What comes back in two bytes passes a buffer; where all stays, none. */
        must((engine->bounce_elements > 0) == (zr_engine_is_low_precision(engine) && u <= UNITS));
        for (unsigned i = 0; i < UNITS; i++)
            sizes[i] = engine->layout.units[i].padded_elements;
        sizes[UNITS] = all = engine->layout.pool_elements;
        zr_engine_destroy(engine);
    }
    return 0;
}

static int refuse(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct zr_offload_file file = {.folder = "/tmp"}, crowded = {.folder = "/tmp", .buffers = 17};
    struct plan plan = *(const struct plan *)argument;
    struct rig rig;
    zr_engine *engine;
    must(open_rank(&rig, local, rank, &plan) == ZR_OK);
    const struct {
        unsigned stage;
        enum zr_reduce_when reduce;
        struct zr_offload offload;
        const char *words;
    } wrong[] = {
        {1, ZR_REDUCE_EACH, {.optimizer = true}, "set offload.host"},
        {3, ZR_REDUCE_EACH, {.host = rig.arena, .parameters = true}, "requires offload.optimizer"},
        {2, ZR_REDUCE_EACH, {.host = rig.arena, .optimizer = true, .parameters = true}, "stage 3"},
        {0, ZR_REDUCE_EACH, {.host = rig.arena, .optimizer = true}, "stage 1"},
        {1, ZR_REDUCE_EACH, {.host = rig.arena, .delayed = true}, "optimizer"},
        {1, ZR_REDUCE_EACH, {.host = rig.arena, .optimizer = true, .resident_share = 1.5}, "0 to 1"},
        {1,
         ZR_REDUCE_EACH,
         {.host = rig.arena, .optimizer = true, .delayed = true, .resident_share = 0.5},
         "combined with offload.resident_share"},
        {3,
         ZR_REDUCE_EACH,
         {.host = rig.arena, .optimizer = true, .parameters_file = &file},
         "requires offload.parameters"},
        {1, ZR_REDUCE_EACH, {.host = rig.arena, .optimizer = true, .file = &crowded}, "buffers is 17"},
        {1,
         ZR_REDUCE_EACH,
         {.host = rig.arena, .optimizer = true, .delayed = true, .speculative_bytes = 4096},
         "offload.speculative_bytes: a"},
        {1, ZR_REDUCE_EACH, {.host = rig.arena, .optimizer = true, .speculative_bytes = 64}, "is too small"},
        {1, ZR_REDUCE_ONCE, {.host = rig.arena, .optimizer = true}, "ZR_REDUCE_EACH"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct zr_engine_options options = options_of(&rig, &plan);
        options.stage = wrong[i].stage;
        options.reduce = wrong[i].reduce;
        options.offload = wrong[i].offload;
        must(zr_engine_create(&engine, &options) == ZR_ERR_INVALID &&
             strstr(zr_last_error(), wrong[i].words));
    }
    struct zr_kernels blind = *rig.kernels; /* as of a card */
    blind.host_visible = false;
    const struct zr_offload apart[] = {
        {.host = rig.arena, .optimizer = true, .speculative_bytes = 1 << 20},
        {.host = rig.arena, .optimizer = true, .parameters = true, .parameters_file = &file},
        {.host = rig.arena, .optimizer = true, .file = &file}};
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++) {
        struct zr_engine_options options = options_of(&rig, &plan);
        options.kernels = &blind;
        options.stage = 3;
        options.offload = apart[i];
        must(zr_engine_create(&engine, &options) == ZR_ERR_INVALID &&
             strstr(zr_last_error(), apart[i].file ? "requires host_kernels" : "not supported by"));
    }
    struct zr_engine_options measuring = options_of(&rig, &plan);
    measuring.stage = 1;
    measuring.measures_squares = true;
    measuring.offload = (struct zr_offload){.host = rig.arena, .optimizer = true, .delayed = true};
    must(zr_engine_create(&engine, &measuring) == ZR_ERR_INVALID &&
         strstr(zr_last_error(), "measures_squares"));
    measuring.offload = (struct zr_offload){.host = NULL};
    measuring.compression.kinds[ZR_COMPRESSED_GRADIENTS].on = true;
    measuring.compression.kinds[ZR_COMPRESSED_GRADIENTS].method = ZR_METHOD_ONEBIT;
    must(zr_engine_create(&engine, &measuring) == ZR_ERR_INVALID &&
         strstr(zr_last_error(), "measures_squares"));
    must(fill_room(&rig, &plan) == 0);
    must(rig_close(&rig) == 0);
    return 0;
}

int main(void)
{
    make_list();
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct plan plan = plans[i];
        tap_is(rig_launch(plan.world, compare, &plan), 0,
               "%u ranks, stage %u, %s, %u micro-batches%s%s: as in one place", plan.world, plan.stage,
               zr_precision_name(plan.precision), plan.micro_batches,
               plan.parameters ? ", parameters too, and these in a file" : "",
               plan.scattered ? ", scattered" : "");
    }
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct plan plan = plans[i];
        tap_is(rig_launch(plan.world, follow_late, &plan), 0,
               "%u ranks, stage %u, %s%s%s: delayed, as gradients held back for a step", plan.world,
               plan.stage, zr_precision_name(plan.precision), plan.parameters ? ", parameters too" : "",
               plan.scattered ? ", scattered" : "");
    }
    struct plan plan = plans[6];
    tap_is(rig_launch(2, break_off, &plan), 0, "in a step, updates ahead of it are waited for, and not seen");
    struct plan alone = plans[5];
    tap_is(rig_launch(1, fail_alone, &alone), 0,
           "after a failure of the disk nothing is found well again, after an update's all is as before");
    tap_is(rig_launch(1, read_behind_writes, &alone), 0, "a unit whose write stalls is read behind it");
    tap_is(rig_launch(2, refuse, &plan), 0, "what cannot be is refused with words");
    return tap_done();
}
