/* outer_test.c: groups that train apart, against plain arrays in one process: parameters of each group,
 * anchor and outer momentum after every step, bit for bit; and the bytes that a rank sends. */
#include <math.h>
#include <string.h>

#include "tests/support/tap.h"
#include "tests/support/zero/engine_rig.h"
#include "zero/comm/mesh.h"
#include "zero/engine/outer.h"

enum { GROUPS = 2, DATA = 2, UNITS = 4, FROZEN = 2, STEPS = 12, ELEMENTS = 101 + 64 + 7 + 30 };

static const size_t sizes[UNITS] = {101, 64, 7, 30};
static const float rate = 0.5f;

struct run {
    unsigned stage, period, fragments, delay;
    float outer_rate, momentum, mix;
    bool averages; /* the reference is the mean of the groups' parameters, up to rounding */
};
static const struct run runs[] = {
    {0, 3, 1, 0, 0.7f, 0.9f, 0, false},     {1, 3, 1, 0, 0.7f, 0.9f, 0, false},
    {3, 6, 3, 0, 0.7f, 0.9f, 0, false},     {2, 6, 3, 1, 0.7f, 0.9f, 0.5f, false},
    {1, 5, 1, 4, 0.4f, 0.8f, 0.25f, false}, {2, 1, 1, 0, 1, 0, 0, true},
};

/* A gradient whose products with `rate` are exact, so that the inner SGD rounds nothing. */
static float gradient_of(unsigned group, unsigned step, size_t element)
{
    unsigned word = (unsigned)element * 2654435761u + step * 40503u + group * 97u;
    return (float)((int)(word >> 7 & 255) - 128) / 1024.0f;
}

/* ---- The reference ------------------------------------------------------------------------------------- */

struct reference {
    float own[GROUPS][ELEMENTS], anchor[ELEMENTS], momentum[ELEMENTS], mean[ELEMENTS];
};

/* Number of an element's unit among those that are not frozen; -1: frozen. */
static int number_of(size_t element)
{
    int unit = 0;
    for (size_t end = sizes[0]; element >= end; end += sizes[unit])
        unit++;
    return unit == FROZEN ? -1 : unit - (unit > FROZEN);
}

static void reference_step(struct reference *r, const struct run *run, unsigned step)
{
    const unsigned interval = run->period / run->fragments;
    for (size_t i = 0; i < ELEMENTS; i++) {
        int number = number_of(i);
        if (number < 0)
            continue;
        for (unsigned g = 0; g < GROUPS; g++)
            r->own[g][i] -= rate * gradient_of(g, step, i);
        if (run->averages) {
            r->own[0][i] = r->own[1][i] = (r->own[0][i] + r->own[1][i]) / 2;
            continue;
        }
        bool exchanged =
                 (step + run->delay) % interval == 0 &&
                 ((step + run->delay) / interval - 1) % run->fragments == (unsigned)number % run->fragments,
             merged = step % interval == 0 &&
                      (step / interval - 1) % run->fragments == (unsigned)number % run->fragments;
        if (exchanged)
            r->mean[i] = ((r->anchor[i] - r->own[0][i]) + (r->anchor[i] - r->own[1][i])) * 0.5f;
        if (!merged)
            continue;
        r->momentum[i] = run->momentum * r->momentum[i] + r->mean[i];
        r->anchor[i] -= run->outer_rate * (r->mean[i] + run->momentum * r->momentum[i]);
        for (unsigned g = 0; g < GROUPS; g++)
            r->own[g][i] =
                run->mix > 0 ? run->mix * r->own[g][i] + (1 - run->mix) * r->anchor[i] : r->anchor[i];
    }
}

/* ---- The engine ---------------------------------------------------------------------------------------- */

static int compare(zr_engine *engine, const float *want, bool exactly)
{
    for (size_t u = 0, first = 0; u < UNITS; first += sizes[u++]) {
        const void *base;
        must(zr_engine_gather(engine, (unsigned)u, &base) == ZR_OK);
        const float *got = (const float *)base + zr_engine_offset(engine, u);
        for (size_t i = 0; i < sizes[u]; i++)
            must(exactly ? got[i] == want[first + i] : fabsf(got[i] - want[first + i]) <= 1e-6f);
        zr_engine_release(engine, (unsigned)u);
    }
    return 0;
}

static int step_engine(zr_engine *engine, unsigned group, unsigned step)
{
    struct zr_step_report report;
    for (size_t u = 0, first = 0; u < UNITS; first += sizes[u++]) {
        void *base;
        bool accumulate;
        if (u == FROZEN)
            continue;
        must(zr_engine_gradients(engine, (unsigned)u, &base, &accumulate) == ZR_OK);
        for (size_t i = 0; i < sizes[u]; i++)
            ((float *)base)[zr_engine_offset(engine, u) + i] = gradient_of(group, step, first + i);
        must(zr_engine_reduce(engine, (unsigned)u) == ZR_OK);
    }
    must(zr_engine_step(engine, rate, &report) == ZR_OK);
    return 0;
}

/* Elements of a rank's shards: a unit is padded to a multiple of 64 for each rank; at stage 0 all are its
 * own. */
static size_t exchanged_elements(unsigned stage)
{
    size_t elements = 0;
    for (size_t u = 0; u < UNITS; u++)
        elements += u == FROZEN ? 0 : (sizes[u] + 127) / 128 * (stage == 0 ? 128 : 64);
    return elements;
}

static int train(struct rig *rig, const struct run *run, unsigned group)
{
    static struct reference r;
    for (size_t i = 0; i < ELEMENTS; i++)
        r.own[0][i] = r.own[1][i] = r.anchor[i] = 0.5f;
    for (unsigned step = 1; step <= STEPS; step++) {
        int code = step_engine(rig->engine, group, step);
        reference_step(&r, run, step);
        if (code == 0)
            code = compare(rig->engine, r.own[group], !run->averages);
        if (code == 0 && !run->averages) {
            must(zr_engine_exchange_average(rig->engine) == ZR_OK);
            code = compare(rig->engine, r.anchor, true);
            must(zr_engine_exchange_average(rig->engine) == ZR_OK);
        }
        if (code != 0)
            return code;
    }
    struct zr_outer_report report;
    zr_outer_get_report(rig->engine, &report);
    must(report.merges == STEPS / (run->period / run->fragments));
    must(report.round_bytes == exchanged_elements(run->stage) * sizeof(float)); /* 2 (G - 1) / G is 1 */
    must(report.sent_bytes == report.planned_bytes && report.received_bytes == report.sent_bytes);
    must(run->fragments > 1 || run->delay > 0 || report.sent_bytes == report.merges * report.round_bytes);
    return 0;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    static struct zr_parameter parameters[UNITS];
    static struct zr_unit units[UNITS];
    const struct run *run = argument;
    struct zr_mesh mesh = {.world = NULL};
    struct rig rig;
    for (unsigned u = 0; u < UNITS; u++) {
        snprintf(units[u].name, sizeof units[u].name, "u%u", u);
        snprintf(parameters[u].name, sizeof parameters[u].name, "p%u", u);
        units[u].gradient_uses = u != FROZEN;
        parameters[u].unit = u;
        parameters[u].shape[0] = sizes[u];
        parameters[u].init_mean = 0.5f;
    }
    must(rig_open(&rig, &(struct rig_options){.local = local,
                                              .rank = rank,
                                              .isa = ZR_ISA_PLAIN,
                                              .bucket_bytes = 4096,
                                              .kernels = zr_kernels_cpu(ZR_ISA_PLAIN)}) == ZR_OK);
    must(zr_mesh_open(&mesh, rig.comm,
                      (struct zr_mesh_shape){.data = DATA, .tensor = 1, .pipeline = 1, .groups = GROUPS},
                      4096) == ZR_OK);
    must(zr_engine_create(&rig.engine,
                          &(struct zr_engine_options){.struct_bytes = sizeof(struct zr_engine_options),
                                                      .arena = rig.arena,
                                                      .host_arena = rig.arena,
                                                      .kernels = rig.kernels,
                                                      .context = &rig.context,
                                                      .comm = mesh.data,
                                                      .list = {parameters, UNITS, units, UNITS, 0},
                                                      .stage = run->stage,
                                                      .optimizer = {.kind = ZR_OPTIMIZER_SGD},
                                                      .outer = {.comm = mesh.outer,
                                                                .period = run->period,
                                                                .fragments = run->fragments,
                                                                .delay = run->delay,
                                                                .rate = run->outer_rate,
                                                                .momentum = run->momentum,
                                                                .mix = run->mix}}) == ZR_OK);
    int code = train(&rig, run, rank / DATA);
    zr_engine_destroy(rig.engine);
    rig.engine = NULL;
    must(zr_mesh_close(&mesh) == ZR_OK);
    must(rig_close(&rig) == 0);
    return code;
}

int main(void)
{
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct run run = runs[i];
        tap_is(rig_launch(GROUPS * DATA, rank_main, &run), 0,
               "stage %u, every %u steps, %u fragments, delay %u: %s", run.stage, run.period, run.fragments,
               run.delay, run.averages ? "the mean of parameters" : "the reference, bit for bit");
    }
    return tap_done();
}
