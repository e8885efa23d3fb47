/* engine_misuse_test.c: wrong calls of the stage engine, one after the other in one process: each is refused
 * with words, changes nothing, and the engine goes on. The same at every stage. */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/zero/engine_rig.h"
#include "tests/support/tap.h"
#include "zero/engine/engine.h"
#include "zero/file_io/nvme_pipeline.h"
#include "zero/zr_zero.h"

enum { LAYERS = 6, PARAMETERS = 2 * LAYERS };
static struct zr_parameter parameters[PARAMETERS];
static struct zr_unit units[LAYERS];
static const struct zr_optimizer_options adamw = {.beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f};

static void make_list(void)
{
    for (unsigned l = 0; l < LAYERS; l++) {
        struct zr_parameter *p = &parameters[(size_t)2 * l];
        units[l].gradient_uses = 1;
        snprintf(units[l].name, sizeof units[l].name, "l%u", l);
        p[0] = (struct zr_parameter){.shape = {32, 40}, .unit = l, .group = 1, .init_deviation = 0.1f};
        p[1] = (struct zr_parameter){.shape = {40, 0}, .unit = l, .init_mean = 0.5f};
        snprintf(p[0].name, sizeof p[0].name, "l%u.weight", l);
        snprintf(p[1].name, sizeof p[1].name, "l%u.bias", l);
    }
}

static struct zr_engine_options options_of(struct rig *rig, unsigned stage)
{
    return (struct zr_engine_options){.arena = rig->arena,
                                      .host_arena = rig->arena,
                                      .kernels = zr_kernels_cpu(ZR_ISA_PLAIN),
                                      .context = &rig->context,
                                      .comm = rig->comm,
                                      .list = {parameters, PARAMETERS, units, LAYERS},
                                      .stage = stage,
                                      .seed = 3,
                                      .optimizer = adamw};
}

static zr_result open_rank(struct rig *rig, struct zr_local_world *local, unsigned rank)
{
    return rig_open(rig, &(struct rig_options){.local = local,
                                               .rank = rank,
                                               .isa = ZR_ISA_PLAIN,
                                               .bucket_bytes = 4096,
                                               .granule_bytes = 64 << 10,
                                               .reserve_bytes = 256 << 20,
                                               .kernels = zr_kernels_cpu(ZR_ISA_PLAIN)});
}

/* Gradients of one value, handed over. */
static zr_result hand_over(zr_engine *engine, unsigned unit, float value)
{
    void *base;
    bool accumulate;
    zr_result result = zr_engine_gradients(engine, unit, &base, &accumulate);
    for (size_t p = (size_t)2 * unit; result == ZR_OK && p < 2 * (size_t)unit + 2; p++)
        for (size_t i = 0; i < zr_parameter_elements(&parameters[p]); i++)
            ((float *)base)[zr_engine_offset(engine, p) + i] = value;
    return result == ZR_OK ? zr_engine_reduce(engine, unit) : result;
}

static zr_result whole_step(zr_engine *engine)
{
    struct zr_step_report report;
    zr_result result = ZR_OK;
    for (unsigned unit = LAYERS; result == ZR_OK && unit-- > 0;)
        result = hand_over(engine, unit, 0.01f);
    return result == ZR_OK ? zr_engine_step(engine, 0.1f, &report) : result;
}

/* ---- Calls that name nothing --------------------------------------------------------------------------- */

static void test_units(struct rig *rig, unsigned stage)
{
    const void *base;
    void *gradients;
    bool accumulate;
    struct zr_step_report report;
    struct zr_shard_segment segment;
    zr_engine *engine = rig->engine;

    tap_result(zr_engine_gather(engine, 99, &base), ZR_ERR_INVALID, "stage %u: gather of unit 99", stage);
    tap_ok(strstr(zr_last_error(), "zr_engine_gather(): there is no unit 99") != NULL, "the words: %s",
           zr_last_error());
    tap_result(zr_engine_prefetch(engine, LAYERS), ZR_ERR_INVALID, "prefetch of the unit after the last");
    tap_result(zr_engine_gradients(engine, 99, &gradients, &accumulate), ZR_ERR_INVALID, "gradients");
    tap_result(zr_engine_reduce(engine, 99), ZR_ERR_INVALID, "reduce");
    tap_ok(zr_engine_offset(engine, 999) == SIZE_MAX, "the offset of parameter 999 is SIZE_MAX");
    memset(&segment, 1, sizeof segment);
    zr_engine_segment(engine, zr_engine_segments_count(engine), &segment);
    tap_ok(!segment.parameter && segment.count == 0, "the segment after the last is empty");
    zr_engine_release(engine, 99);
    tap_ok(strstr(zr_last_error(), "zr_engine_release(): there is no unit 99") != NULL, "release notes: %s",
           zr_last_error());
    zr_engine_release(engine, 0);
    tap_ok(strstr(zr_last_error(), "l0") != NULL, "and of what nobody gathered: %s", zr_last_error());
    tap_result(zr_engine_gather(engine, 0, NULL), ZR_ERR_INVALID, "gather to nowhere");
    tap_result(zr_engine_gradients(engine, 0, NULL, &accumulate), ZR_ERR_INVALID, "gradients to nowhere");
    tap_result(zr_engine_gradients(engine, 0, &gradients, NULL), ZR_ERR_INVALID, "or with no answer");
    zr_engine_segment(engine, 0, NULL);
    zr_engine_scaling(engine, NULL);
    tap_result(zr_engine_set_scaling(engine, NULL), ZR_ERR_INVALID, "a loss scale of nothing");
    for (unsigned unit = 0; unit < LAYERS; unit++)
        tap_result(hand_over(engine, unit, 0.01f), ZR_OK, "then gradients of unit %u", unit);
    tap_result(zr_engine_step(engine, 0.1f, NULL), ZR_ERR_INVALID, "a step without a report");
    tap_result(zr_engine_step(engine, 0.1f, &report), ZR_OK, "and one with, which is as if nothing was");
}

static void test_no_engine(void)
{
    const void *base;
    void *gradients;
    bool accumulate;
    struct zr_step_report report;
    struct zr_shard_segment segment = {.count = 1};
    struct zr_loss_scale scaling = {.scale = 1};

    tap_result(zr_engine_create(NULL, &(struct zr_engine_options){0}), ZR_ERR_INVALID, "create to nowhere");
    zr_engine_destroy(NULL);
    tap_result(zr_engine_gather(NULL, 0, &base), ZR_ERR_INVALID, "no engine: gather");
    tap_result(zr_engine_prefetch(NULL, 0), ZR_ERR_INVALID, "prefetch");
    zr_engine_release(NULL, 0);
    tap_result(zr_engine_gradients(NULL, 0, &gradients, &accumulate), ZR_ERR_INVALID, "gradients");
    tap_result(zr_engine_reduce(NULL, 0), ZR_ERR_INVALID, "reduce");
    tap_result(zr_engine_step(NULL, 0.1f, &report), ZR_ERR_INVALID, "step: %s", zr_last_error());
    tap_result(zr_engine_synchronize(NULL), ZR_ERR_INVALID, "settle");
    tap_result(zr_engine_publish(NULL, 0), ZR_ERR_INVALID, "publish");
    tap_result(zr_engine_verify_replicas(NULL), ZR_ERR_INVALID, "verify replicas");
    tap_result(zr_engine_verify_finite(NULL), ZR_ERR_INVALID, "verify finite");
    tap_result(zr_engine_set_scaling(NULL, &scaling), ZR_ERR_INVALID, "set scaling");
    zr_engine_scaling(NULL, &scaling);
    zr_engine_segment(NULL, 0, &segment);
    tap_ok(scaling.scale == 0 && segment.count == 0 && zr_engine_segments_count(NULL) == 0 &&
               zr_engine_offset(NULL, 0) == SIZE_MAX && !zr_engine_gathers(NULL) &&
               zr_engine_elements(NULL) == 0 && zr_engine_padded_elements(NULL) == 0 &&
               zr_engine_steps_done(NULL) == 0 && zr_engine_loss_scale(NULL) == 1 &&
               zr_engine_optimizer(NULL) == ZR_OPTIMIZER_ADAMW &&
               zr_engine_precision(NULL) == ZR_PRECISION_FP32,
           "and it has none of anything");
    tap_ok(zr_parameter_elements(NULL) == 0 && zr_parameter_list_elements(NULL) == 0, "nor has no list");
}

/* ---- Calls out of turn --------------------------------------------------------------------------------- */

/* Whatever a stage cannot bear, every stage refuses, with as many ranks as there are. */
static int order_is_kept(struct rig *rig, unsigned rank)
{
    zr_engine *engine = rig->engine;
    struct zr_step_report report;
    const void *base, *again;
    void *gradients;
    bool accumulate;

    (void)rank;
    must(zr_engine_gather(engine, 1, &base) == ZR_OK && zr_engine_gather(engine, 2, &again) == ZR_OK);
    must(zr_engine_gather(engine, 3, &again) == ZR_ERR_INVALID && strstr(zr_last_error(), "l3"));
    must(zr_engine_gather(engine, 1, &again) == ZR_OK && again == base);
    zr_engine_release(engine, 2);
    must(zr_engine_gather(engine, 3, &again) == ZR_OK); /* one has gone */
    zr_engine_release(engine, 3);
    zr_engine_release(engine, 1);

    must(zr_engine_reduce(engine, 5) == ZR_ERR_INVALID &&
         strstr(zr_last_error(), "before its gradients were acquired"));
    must(zr_engine_gradients(engine, 5, &gradients, &accumulate) == ZR_OK);
    must(zr_engine_gradients(engine, 4, &gradients, &accumulate) == ZR_OK);
    must(zr_engine_gradients(engine, 3, &gradients, &accumulate) == ZR_ERR_INVALID);
    must(zr_engine_gradients(engine, 5, &gradients, &accumulate) == ZR_OK); /* the same again */
    must(zr_engine_publish(engine, 3) == ZR_ERR_INVALID && zr_engine_steps_done(engine) == 0);
    must(strstr(zr_last_error(), "has acquired gradients"));
    for (unsigned unit = LAYERS; unit-- > 0;)
        must(hand_over(engine, unit, 0.01f) == ZR_OK);
    must(zr_engine_gradients(engine, 2, &gradients, &accumulate) == ZR_ERR_INVALID);
    must(zr_engine_step(engine, 0.1f, &report) == ZR_ERR_INVALID && strstr(zr_last_error(), "l1"));
    zr_engine_release(engine, 1);
    must(zr_engine_step(engine, 0.1f, &report) == ZR_OK && zr_engine_steps_done(engine) == 1);
    must(zr_engine_verify_replicas(engine) == ZR_OK);

    /* A gradient that is not finite ends its step, and not the engine. */
    for (unsigned unit = LAYERS; unit-- > 0;)
        must(hand_over(engine, unit, unit == 2 ? INFINITY : 0.01f) == ZR_OK);
    must(zr_engine_step(engine, 0.1f, &report) == ZR_ERR_CORRUPT && zr_engine_steps_done(engine) == 1);
    must(whole_step(engine) == ZR_OK && zr_engine_steps_done(engine) == 2);
    must(zr_engine_verify_finite(engine) == ZR_OK);
    return 0;
}

/* ---- What an engine is not made of --------------------------------------------------------------------- */

/* Refused, and nothing is left of it. */
static void refused(const struct zr_engine_options *options, const char *what, const char *word)
{
    zr_engine *engine = (zr_engine *)options;
    zr_result result = zr_engine_create(&engine, options);
    tap_ok(result == ZR_ERR_INVALID && !engine && strstr(zr_last_error(), word), "%s: %s, %s", what,
           zr_result_name(result), result ? zr_last_error() : "an engine");
    zr_engine_destroy(result == ZR_OK ? engine : NULL);
}

static void test_options(struct rig *rig, unsigned stage)
{
    const struct zr_engine_options good = options_of(rig, stage);
    struct zr_engine_options bad = good;
    refused(NULL, "no options", "options");
    bad.list.parameters = NULL;
    refused(&bad, "no parameters", "parameters");
    bad = good;
    bad.list.units = NULL;
    refused(&bad, "no units", "units");
    bad = good;
    bad.optimizer.kind = (enum zr_optimizer_kind)7;
    refused(&bad, "an optimizer that is none", "unknown optimizer 7");
    bad = good;
    bad.reduce = (enum zr_reduce_when)5;
    refused(&bad, "a way to reduce that is none", "unknown reduce 5");
    bad = good;
    bad.struct_bytes = sizeof bad; /* the next fields are later ones */
    bad.backup = good.comm;
    refused(&bad, "copies of state that is not kept", "backup requires kept memory");
    bad.backup = NULL;
    bad.snapshots = true;
    bad.outer.period = 2;
    refused(&bad, "a copy of state that is elsewhere", "snapshots cannot be combined with outer");
}

/* Numbers of the optimizer and the loss scale: what each may not be. */
static void test_numbers(struct rig *rig, unsigned stage)
{
    const struct zr_engine_options good = options_of(rig, stage);
    struct zr_engine_options bad;
    float *const b1 = &bad.optimizer.beta1, *const b2 = &bad.optimizer.beta2;
    float *const epsilon = &bad.optimizer.epsilon, *const clip = &bad.optimizer.clip;
    float *const decay = &bad.optimizer.weight_decay, *const factor = &bad.optimizer.momentum_factor;
    float *const rate_factor = &bad.optimizer.groups[1].rate_factor;
    float *const decay_factor = &bad.optimizer.groups[0].decay_factor;
    float *const initial = &bad.loss_scaling.initial, *const least = &bad.loss_scaling.least;
    const struct {
        float *where, value;
        const char *name;
    } wrong[] = {{b1, 2, "beta1"},
                 {b1, 1, "beta1"},
                 {b1, NAN, "beta1"},
                 {b2, -1, "beta2"},
                 {epsilon, 0, "epsilon"},
                 {epsilon, NAN, "epsilon"},
                 {epsilon, INFINITY, "epsilon"},
                 {clip, NAN, "clip"},
                 {clip, -1, "clip"},
                 {decay, -1, "weight_decay"},
                 {decay, INFINITY, "weight_decay"},
                 {factor, 1, "momentum_factor"},
                 {rate_factor, NAN, "rate_factor"},
                 {decay_factor, -1, "decay_factor"},
                 {initial, NAN, "initial"},
                 {least, -1, "least"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char what[64];
        bad = good;
        bad.optimizer.kind = wrong[i].where == factor ? ZR_OPTIMIZER_SGD : ZR_OPTIMIZER_ADAMW;
        bad.optimizer.groups_count = 2;
        *wrong[i].where = wrong[i].value;
        snprintf(what, sizeof what, "%s of %g", wrong[i].name, (double)wrong[i].value);
        refused(&bad, what, wrong[i].name);
    }
}

/* The last that an engine takes, and the first that it does not. */
static void test_limits(struct rig *rig)
{
    const struct zr_engine_options good = options_of(rig, 1);
    struct zr_engine_options o;
    struct zr_unit uses[LAYERS];
    struct zr_offload_file file = {0};
    const struct {
        const char *what;
        unsigned *number;
        unsigned last, beyond;
    } numbers[] = {{"stage", &o.stage, 3, 4},
                   {"prefetch_distance", &o.prefetch_distance, ZR_PREFETCH_MAX, ZR_PREFETCH_MAX + 1},
                   {"groups", &o.optimizer.groups_count, ZR_GROUPS_MAX, ZR_GROUPS_MAX + 1},
                   {"precision", (unsigned *)&o.precision, ZR_PRECISION_COUNT - 1, ZR_PRECISION_COUNT},
                   {"reduce", (unsigned *)&o.reduce, ZR_REDUCE_ONCE, ZR_REDUCE_ONCE + 1},
                   {"optimizer", (unsigned *)&o.optimizer.kind, ZR_OPTIMIZERS_COUNT - 1, ZR_OPTIMIZERS_COUNT},
                   {"gradient_uses", &uses[2].gradient_uses, UINT32_MAX / 3, UINT32_MAX / 3 + 1},
                   {"offload buffers, least", &file.buffers, ZR_NVME_BUFFERS_MIN, ZR_NVME_BUFFERS_MIN - 1},
                   {"offload buffers, most", &file.buffers, ZR_NVME_BUFFERS_MAX, ZR_NVME_BUFFERS_MAX + 1}};
    const struct {
        const char *what;
        float *number, last, beyond;
    } reals[] = {
        {"beta1", &o.optimizer.beta1, nextafterf(1, 0), 1},
        {"beta2", &o.optimizer.beta2, 0, -1e-30f},
        {"loss scale", &o.loss_scaling.initial, ZR_LOSS_SCALE_MAX, nextafterf(ZR_LOSS_SCALE_MAX, INFINITY)},
        {"least loss scale", &o.loss_scaling.least, ZR_LOSS_SCALE_MAX,
         nextafterf(ZR_LOSS_SCALE_MAX, INFINITY)},
        {"clip", &o.optimizer.clip, FLT_MAX, INFINITY},
        {"a part that stays", NULL, 1, nextafterf(1, 2)}};
    const size_t count = sizeof numbers / sizeof *numbers;
    for (size_t i = 0; i < 2 * (count + sizeof reals / sizeof *reals); i++) {
        bool beyond = i % 2;
        size_t row = i / 2 < count ? i / 2 : i / 2 - count;
        o = good;
        o.kernels = zr_kernels_null(); /* which has no context of a precision */
        memcpy(uses, units, sizeof uses);
        file = (struct zr_offload_file){.folder = ""};
        o.list = (struct zr_parameter_list){parameters, PARAMETERS, uses, LAYERS, 0};
        o.micro_batches = 3;
        if (i / 2 >= count) {
            o.offload = (struct zr_offload){.host = rig->arena, .optimizer = reals[row].number == NULL};
            o.offload.resident_share =
                reals[row].number ? 0 : (double)(beyond ? reals[row].beyond : reals[row].last);
            if (reals[row].number)
                *reals[row].number = beyond ? reals[row].beyond : reals[row].last;
        } else {
            *numbers[row].number = beyond ? numbers[row].beyond : numbers[row].last;
            if (numbers[row].number == &file.buffers)
                o.offload = (struct zr_offload){.host = rig->arena, .optimizer = true, .file = &file};
        }
        const char *what = i / 2 < count ? numbers[row].what : reals[row].what;
        tap_result(zr_engine_check_options(&o), beyond ? ZR_ERR_INVALID : ZR_OK, "%s: %s", what,
                   beyond ? "one beyond is refused" : "the last is taken");
    }
}

/* A list whose first parameter or unit is made wrong. */
static void test_lists(struct rig *rig, unsigned stage)
{
    struct zr_parameter wrong[PARAMETERS];
    struct zr_unit wrong_units[LAYERS];
    struct zr_engine_options bad = options_of(rig, stage);

    bad.list = (struct zr_parameter_list){wrong, PARAMETERS, wrong_units, LAYERS, 0};
    memcpy(wrong, parameters, sizeof wrong);
    memcpy(wrong_units, units, sizeof wrong_units);
    wrong[1].init_mean = NAN;
    refused(&bad, "a first value of NaN", "l0.bias");
    wrong[1] = parameters[1];
    wrong[0].init_deviation = -1;
    refused(&bad, "a deviation below 0", "l0.weight");
    wrong[0] = parameters[0];
    wrong_units[2].gradient_uses = 0x80000000u;
    bad.micro_batches = 2;
    refused(&bad, "2^32 gradient uses", "l2: 2147483648");
}

/* Names become the keys of a file, and end somewhere. */
static void test_names(struct rig *rig)
{
    static const char *const taken[] = {
        "",          "__metadata__", "optimizer.momentum.l0.weight", "optimizer.variance.l0.weight",
        "l0.weight", "l5.bias"};
    struct zr_parameter wrong[PARAMETERS];
    struct zr_unit wrong_units[LAYERS];
    struct zr_engine_options bad = options_of(rig, 0);

    bad.list = (struct zr_parameter_list){wrong, PARAMETERS, wrong_units, LAYERS, 0};
    memcpy(wrong_units, units, sizeof wrong_units);
    memcpy(wrong, parameters, sizeof wrong);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        snprintf(wrong[3].name, sizeof wrong[3].name, "%s", taken[i]);
        refused(&bad, "a name that is taken", taken[i]);
    }
    memset(wrong[3].name, 'x', sizeof wrong[3].name);
    refused(&bad, "a name without an end", "parameter name 'xxx");
    wrong[3] = parameters[3];
    memset(wrong_units[1].name, 'y', sizeof wrong_units[1].name);
    refused(&bad, "a unit's name without one", "unit name 'yyyyyyyyyyyyyyyyyyyyyyyy'");
}

/* Two of very many that are alike are found wherever they stand, and soon. */
static void test_many_names(struct rig *rig)
{
    enum { MANY = 100000 };
    struct zr_parameter *many = calloc(MANY, sizeof *many);
    struct zr_unit unit = {"all", 1};
    struct zr_engine_options options = options_of(rig, 0);
    options.list = (struct zr_parameter_list){many, MANY, &unit, 1, 0};
    options.kernels = zr_kernels_null();
    for (size_t i = 0; many && i < MANY; i++) {
        many[i] = (struct zr_parameter){.shape = {1, 0}};
        snprintf(many[i].name, sizeof many[i].name, "layer.%zu.weight", i * 7919 % MANY);
    }
    tap_result(many ? zr_engine_create(&rig->engine, &options) : ZR_ERR_MEMORY, ZR_OK, "%d names", MANY);
    tap_ok(zr_engine_offset(rig->engine, 1) == 16 &&
               zr_engine_offset(rig->engine, MANY - 1) == (MANY - 1) * 16,
           "the parameters lie in the order of the list");
    zr_engine_destroy(rig->engine);
    rig->engine = NULL;
    if (many) {
        memcpy(many[MANY - 1].name, many[0].name, sizeof many[0].name);
        refused(&options, "two alike among as many", many[0].name);
    }
    free(many);
}

/* A learning rate that is none leaves the gradients for another try. */
static void test_rates(struct rig *rig)
{
    static const float wrong[] = {NAN, INFINITY, -0.1f};
    struct zr_step_report report;
    for (unsigned unit = 0; unit < LAYERS; unit++)
        tap_result(hand_over(rig->engine, unit, 0), ZR_OK, "gradients of zero, unit %u", unit);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        tap_result(zr_engine_step(rig->engine, wrong[i], &report), ZR_ERR_INVALID, "a rate of %g: %s",
                   (double)wrong[i], zr_last_error());
    tap_result(zr_engine_step(rig->engine, 0.1f, &report), ZR_OK, "and one that is a number");
    tap_result(zr_engine_verify_finite(rig->engine), ZR_OK, "every parameter is finite");
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/zr-misuse-XXXXXX";

static void in_folder(char *path, size_t bytes, const char *name)
{
    snprintf(path, bytes, "%s/%s", folder, name);
}

static size_t read_file(const char *path, char *out, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    size_t got = file ? fread(out, 1, bytes, file) : 0;
    if (file)
        fclose(file);
    return got;
}

/* Ranks that do not mean the same file: all hear of it, and a good file stays. */
static int ranks_save_apart(struct rig *rig, unsigned rank)
{
    static char before[1 << 17], after[1 << 17];
    char good[64], own[64];

    in_folder(good, sizeof good, "0");
    snprintf(own, sizeof own, "%s/%u", folder, rank);
    must(zr_engine_save(rig->engine, good) == ZR_OK);
    size_t bytes = read_file(good, before, sizeof before);
    must(bytes > 0 && bytes < sizeof before);
    must(whole_step(rig->engine) == ZR_OK);
    must(zr_engine_save(rig->engine, own) == ZR_ERR_INVALID && strstr(zr_last_error(), "path"));
    must(zr_engine_save(rig->engine, rank == 1 ? "" : good) == ZR_ERR_INVALID);
    must(zr_engine_save(rig->engine, rank == 1 ? NULL : good) == ZR_ERR_INVALID);
    must(zr_engine_load(rig->engine, rank == 1 ? NULL : good) == ZR_ERR_INVALID);
    must(hand_over(rig->engine, 3, 0.01f) == ZR_OK); /* in the middle of a step */
    must(zr_engine_save(rig->engine, good) == ZR_ERR_INVALID && strstr(zr_last_error(), "l3"));
    must(zr_engine_load(rig->engine, good) == ZR_ERR_INVALID && strstr(zr_last_error(), "l3"));
    must(read_file(good, after, sizeof after) == bytes && memcmp(before, after, bytes) == 0);
    must(rank == 0 || access(own, F_OK) != 0);
    strcat(own, ".partial");
    must(access(own, F_OK) != 0);
    return 0;
}

/* What somebody still reads is not replaced under him; afterwards everyone sees the values that were saved.
 */
static int load_waits_for_users(struct rig *rig, unsigned rank)
{
    zr_engine *engine = rig->engine;
    const void *base;
    char good[64];
    float saved;

    (void)rank;
    in_folder(good, sizeof good, "0");
    must(zr_engine_gather(engine, 1, &base) == ZR_OK);
    saved = *(const float *)base;
    must(zr_engine_save(engine, good) == ZR_OK); /* which changes nothing */
    zr_engine_release(engine, 1);
    must(whole_step(engine) == ZR_OK);
    must(zr_engine_gather(engine, 1, &base) == ZR_OK);
    float trained = *(const float *)base;
    must(trained != saved);
    must(zr_engine_load(engine, good) == ZR_ERR_INVALID && strstr(zr_last_error(), "l1"));
    must(zr_engine_publish(engine, 9) == ZR_ERR_INVALID && zr_engine_steps_done(engine) == 1);
    must(*(const float *)base == trained);
    zr_engine_release(engine, 1);
    must(zr_engine_load(engine, good) == ZR_OK && zr_engine_steps_done(engine) == 0);
    must(zr_engine_gather(engine, 1, &base) == ZR_OK && *(const float *)base == saved);
    zr_engine_release(engine, 1);
    return 0;
}

/* ---- All of them --------------------------------------------------------------------------------------- */

struct setting {
    unsigned stage;
    int (*body)(struct rig *rig, unsigned rank);
};

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct setting *setting = argument;
    struct rig rig;
    int code = 100;
    if (open_rank(&rig, local, rank) == ZR_OK) {
        struct zr_engine_options options = options_of(&rig, setting->stage);
        code = zr_engine_create(&rig.engine, &options) == ZR_OK ? setting->body(&rig, rank) : 101;
    }
    if (rig_close(&rig) != 0)
        code = 102;
    return code;
}

static int in_world(unsigned world, unsigned stage, int (*body)(struct rig *rig, unsigned rank))
{
    return rig_launch(world, rank_main, &(struct setting){stage, body});
}

/* A run without a main function is told that it has none, and not how many ranks there may be. */
static void test_launch(void)
{
    char path[64], words[512] = "";
    in_folder(path, sizeof path, "words");
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    bool moved = freopen(path, "w", stderr) != NULL;
    int code = zr_local_launch(&(struct zr_launch_options){.world = 1});
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    read_file(path, words, sizeof words - 1);
    unlink(path);
    words[strcspn(words, "\n")] = '\0';
    tap_ok(moved && code == 2 && strstr(words, "rank_main"), "a launch of nothing, code %d: %s", code, words);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    make_list();
    test_no_engine();
    test_launch();
    for (unsigned stage = 0; stage <= 3; stage++) {
        struct rig rig;
        tap_result(open_rank(&rig, NULL, 0), ZR_OK, "memory");
        test_options(&rig, stage);
        test_numbers(&rig, stage);
        if (stage == 1)
            test_limits(&rig);
        test_lists(&rig, stage);
        if (stage == 0)
            test_names(&rig);
        if (stage == 0)
            test_many_names(&rig);
        struct zr_engine_options options = options_of(&rig, stage);
        tap_result(zr_engine_create(&rig.engine, &options), ZR_OK, "an engine of stage %u", stage);
        test_units(&rig, stage);
        test_rates(&rig);
        tap_result(whole_step(rig.engine), ZR_OK, "and another step");
        tap_is(rig_close(&rig), 0, "nothing is left behind");
        for (unsigned world = 1; world <= 3; world++) {
            tap_is(in_world(world, stage, order_is_kept), 0,
                   "%u ranks, stage %u: two units at a time, each in its turn", world, stage);
            tap_is(in_world(world, stage, load_waits_for_users), 0,
                   "%u ranks, stage %u: nothing is loaded under a user's eyes", world, stage);
            if (world > 1)
                tap_is(in_world(world, stage, ranks_save_apart), 0,
                       "%u ranks, stage %u: none saves to a path of its own, nor in a step", world, stage);
        }
    }
    char good[64];
    in_folder(good, sizeof good, "0");
    unlink(good);
    tap_ok(rmdir(folder) == 0, "the folder is empty");
    return tap_done();
}
