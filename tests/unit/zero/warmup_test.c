/* warmup_test.c: with settle_ratio a warm-up ends at the step at which the variance of known gradients has
 * settled, at every stage and number of ranks, and not before warmup_steps. */
#include <math.h>
#include <string.h>

#include "tests/support/tap.h"
#include "tests/support/zero/engine_rig.h"
#include "zero/engine/warmup.h"

enum { STEPS_MAX = 200, AFTER = 2 };

struct setting {
    unsigned world, stage;
    enum zr_compression_method method;
    float beta2;
    double extra; /* of the first gradients */
    uint64_t warmup_steps;
};

static struct zr_parameter parameters[] = {{.name = "p", .shape = {40, 24}}};
static struct zr_unit units[] = {{.name = "u", .gradient_uses = 1}};
static const struct zr_kernels *kernels;

/* The gradient of a step, 1 or later, as the mean of all ranks; they differ by a factor of rank + 1. */
static double gradient_of(const struct setting *setting, uint64_t step)
{
    return 1 + setting->extra * pow(0.8, (double)step);
}

/* The variance without its bias. */
static double variance_at(const struct setting *setting, uint64_t step)
{
    double sum = 0, weights = 0, beta2 = (double)setting->beta2;
    for (uint64_t s = 1; s <= step; s++) {
        sum += pow(beta2, (double)(step - s)) * pow(gradient_of(setting, s), 2);
        weights += pow(beta2, (double)(step - s));
    }
    return sum / weights;
}

/* The ratio after a step; 0: the step has none. */
static double ratio_at(const struct setting *setting, uint64_t step)
{
    const uint64_t window = zr_warmup_window(setting->beta2), every = window / 4;
    return step % every == 0 && step > window
               ? variance_at(setting, step) / variance_at(setting, step - window)
               : 0;
}

static int trains(struct rig *rig, const struct setting *setting)
{
    const unsigned rank = zr_comm_rank(rig->comm);
    struct zr_step_report report;
    struct zr_compression_check check;
    struct zr_engine_options options = {
        .struct_bytes = sizeof options,
        .arena = rig->arena,
        .host_arena = rig->arena,
        .kernels = kernels,
        .context = &rig->context,
        .comm = rig->comm,
        .list = {parameters, 1, units, 1, 0},
        .stage = setting->stage,
        .seed = 3,
        .optimizer = {.beta1 = 0.9f, .beta2 = setting->beta2, .epsilon = 1e-6f},
        .compression = {.kinds[ZR_COMPRESSED_GRADIENTS] = {true, .method = setting->method, .parameter = 2},
                        .warmup_steps = setting->warmup_steps,
                        .settle_ratio = 0.96}};
    uint64_t ended = 0;
    struct zr_engine_options wrong[3] = {options, options, options};
    wrong[0].compression.settle_ratio = 1.5;
    wrong[1].optimizer.kind = ZR_OPTIMIZER_SGD;
    wrong[2].compression.kinds[ZR_COMPRESSED_GRADIENTS].method = ZR_METHOD_LARGEST;
    wrong[2].compression.kinds[ZR_COMPRESSED_GRADIENTS].parameter = 0.5f;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        must(zr_engine_create(&rig->engine, &wrong[i]) == ZR_ERR_INVALID);
    must(zr_engine_create(&rig->engine, &options) == ZR_OK);
    for (uint64_t step = 1; ended == 0 || step <= ended + AFTER; step++) {
        float *base;
        bool accumulate;
        must(step <= STEPS_MAX && zr_engine_gradients(rig->engine, 0, (void **)&base, &accumulate) == ZR_OK);
        for (size_t i = 0; i < zr_parameter_elements(parameters); i++)
            base[i] = (float)(gradient_of(setting, step) * 2 * (rank + 1) / (setting->world + 1));
        must(zr_engine_warms_up(rig->engine) == (ended == 0) && zr_engine_reduce(rig->engine, 0) == ZR_OK);
        must(zr_engine_step(rig->engine, 1e-3f, &report) == ZR_OK);
        double ratio = ratio_at(setting, step);
        zr_engine_get_compression_check(rig->engine, &check);
        must(ended > 0 || ratio == 0 || fabs(check.variance_ratio / ratio - 1) < 1e-4);
        if (ended == 0 && step >= setting->warmup_steps && ratio >= 0.96 && ratio <= 1 / 0.96)
            ended = step;
        must(check.warmup_steps == ended);
    }
    return 0;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    struct rig rig;
    if (rig_open(&rig, &(struct rig_options){.local = local,
                                             .rank = rank,
                                             .isa = zr_isa_best(),
                                             .precision = ZR_PRECISION_FP32,
                                             .bucket_bytes = 2048,
                                             .granule_bytes = 64 << 10,
                                             .reserve_bytes = 64 << 20,
                                             .kernels = kernels}) != ZR_OK)
        return 100;
    int code = trains(&rig, argument);
    return rig_close(&rig) != 0 && code == 0 ? 101 : code;
}

int main(void)
{
    static const struct setting settings[] = {
        {2, 0, ZR_METHOD_ONEBIT, 0.875f, 2, 1},     {3, 1, ZR_METHOD_ONEBIT, 0.875f, -0.9, 1},
        {2, 1, ZR_METHOD_ONEBIT, 0.9375f, 0.1, 43}, {2, 0, ZR_METHOD_LOW_RANK, 0.9375f, -0.9, 1},
        {3, 2, ZR_METHOD_LOW_RANK, 0.875f, 20, 1},  {2, 3, ZR_METHOD_LOW_RANK, 0.875f, 0, 0}};
    kernels = zr_kernels_cpu(zr_isa_best());
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct setting setting = settings[i];
        tap_is(rig_launch(setting.world, rank_main, &setting), 0,
               "%s on %u ranks at stage %u, beta2 %g, gradients of 1 %+g, %u steps at least",
               setting.method == ZR_METHOD_ONEBIT ? "onebit" : "low rank", setting.world, setting.stage,
               (double)setting.beta2, setting.extra, (unsigned)setting.warmup_steps);
    }
    return tap_done();
}
