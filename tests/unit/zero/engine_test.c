/* engine_test.c: the flat partition and the stage engine. Worlds of several ranks are forked through
 * zr_local_launch(); a rank reports on stderr and by its exit code. Every stage's state is compared, in each
 * precision, with an AdamW in double precision that knows nothing of shards. */
#define _GNU_SOURCE
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "tests/support/zero/engine_rig.h"
#include "tests/support/kernels/half.h"
#include "tests/support/kernels/kernels_reference.h"
#include "tests/support/tap.h"
#include "kernels/block8.h"
#include "zero/engine/engine.h"
#include "zero/engine/layout.h"
#include "zero/zr_zero.h"

/* Odd sizes, a tied unit with two contributions, vectors and matrices; enough units alike that stage 3 finds
 * something to shard in any world, and one so large that it stays whole in small ones. */
enum { OWN_GROUP = 2 };
#define LAYER(letter, index)                                                                                 \
    {.name = letter ".weight",                                                                               \
     .shape = {7, 211},                                                                                      \
     .unit = index,                                                                                          \
     .group = ZR_GROUP_DECAY,                                                                                \
     .init_deviation = 0.05f},                                                                               \
    {                                                                                                        \
        .name = letter ".bias", .shape = {211, 0}, .unit = index, .group = ZR_GROUP_NO_DECAY                 \
    }
static const struct zr_parameter parameters[] = {
    {.name = "embed", .shape = {67, 13}, .unit = 0, .group = OWN_GROUP, .init_deviation = 0.5f},
    {.name = "a.weight", .shape = {13, 39}, .unit = 1, .group = ZR_GROUP_DECAY, .init_deviation = 0.1f},
    {.name = "a.bias", .shape = {39, 0}, .unit = 1, .group = ZR_GROUP_NO_DECAY},
    {.name = "b.scale", .shape = {1, 0}, .unit = 2, .group = ZR_GROUP_NO_DECAY, .init_mean = 1},
    {.name = "c.weight", .shape = {5, 1009}, .unit = 3, .group = ZR_GROUP_DECAY, .init_deviation = 0.02f},
    {.name = "c.bias", .shape = {1009, 0}, .unit = 3, .group = ZR_GROUP_NO_DECAY, .init_mean = 0.5f},
    LAYER("d", 4),
    LAYER("e", 5),
    LAYER("f", 6),
    LAYER("g", 7),
    LAYER("h", 8),
    LAYER("i", 9),
    LAYER("j", 10),
    LAYER("k", 11),
};
static const struct zr_unit units[] = {{"embed", 2}, {"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1},
                                       {"f", 1},     {"g", 1}, {"h", 1}, {"i", 1}, {"j", 1}, {"k", 1}};
enum { PARAMETERS = 22, UNITS = 12, STEPS = 4 };
static const struct zr_parameter_list list = {parameters, PARAMETERS, units, UNITS, 0};
static const struct zr_optimizer_options adamw = {
    .beta1 = 0.9f,
    .beta2 = 0.99f,
    .epsilon = 1e-6f,
    .momentum_factor = 0.8f,
    .trust_min = 0.2f,
    .trust_max = 0.5f,
    .weight_decay = 0.05f,
    .clip = 2.0f,
    .groups = {[ZR_GROUP_NO_DECAY] = {1, 0}, [ZR_GROUP_DECAY] = {1, 1}, [OWN_GROUP] = {0.25f, 0.5f}},
    .groups_count = 3};

/* ---- A rank's memory ----------------------------------------------------------------------------------- */

struct setting {
    unsigned stage, world;
    unsigned micro_batches;
    enum zr_reduce_when reduce;
    enum zr_optimizer_kind kind;
    enum zr_precision precision;
    bool below_clip; /* the gradients' norm: nothing is clipped */
    bool averages;   /* Adafactor with momentum */
    int (*body)(struct rig *rig, const struct setting *setting);
};

static float clip_of(const struct setting *setting)
{
    return setting->below_clip ? 1e6f : adamw.clip;
}

/* More of those that round or factor their state. */
static unsigned steps_of(const struct setting *setting)
{
    return setting->kind == ZR_OPTIMIZER_ADAMW8 || setting->kind == ZR_OPTIMIZER_ADAFACTOR ? 10 : STEPS;
}

static zr_result rig_engine(struct rig *rig, const struct setting *setting)
{
    struct zr_optimizer_options optimizer = adamw;
    optimizer.kind = setting->kind;
    if (setting->kind == ZR_OPTIMIZER_ADAFACTOR && !setting->averages)
        optimizer.momentum_factor = 0;
    optimizer.clip = clip_of(setting);
    return zr_engine_create(&rig->engine,
                            &(struct zr_engine_options){.arena = rig->arena,
                                                        .host_arena = rig->arena,
                                                        .kernels = zr_kernels_cpu(zr_isa_best()),
                                                        .context = &rig->context,
                                                        .comm = rig->comm,
                                                        .list = list,
                                                        .stage = setting->stage,
                                                        .micro_batches = setting->micro_batches,
                                                        .reduce = setting->reduce,
                                                        .precision = setting->precision,
                                                        .seed = 9,
                                                        .optimizer = optimizer});
}

static zr_result open_rank(struct rig *rig, struct zr_local_world *local, unsigned rank,
                           enum zr_precision precision)
{
    return rig_open(rig, &(struct rig_options){.local = local,
                                               .rank = rank,
                                               .isa = zr_isa_best(),
                                               .precision = precision,
                                               .bucket_bytes = 2048,
                                               .granule_bytes = 64 << 10,
                                               .reserve_bytes = 256 << 20,
                                               .kernels = zr_kernels_cpu(zr_isa_best())});
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct setting *setting = argument;
    struct rig rig;
    int code;
    if (open_rank(&rig, local, rank, setting->precision) != ZR_OK) {
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
    return rig_launch(setting->world, rank_main, &copy);
}

/* ---- The reference ------------------------------------------------------------------------------------- */

/* The gradient of one element from one rank: small numbers that bf16 has and that sum without rounding, so
 * that the reference need not know in which order they were added. `round` is the contribution. */
static float gradient_of(uint64_t global_index, unsigned rank, unsigned step, unsigned round)
{
    uint64_t bits = (global_index * 2654435761u + step * 40503u + rank * 97u + round * 31u) % 256;
    return ((float)bits - 128.0f) / 512.0f;
}

/* One number to and from the precision of a setting; not the kernels' way. */
static void store(const struct setting *setting, float value, void *to)
{
    uint16_t half = half_of(value);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t brain = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16); /* no NaN comes here */
    if (setting->precision == ZR_PRECISION_FP32)
        memcpy(to, &value, sizeof value);
    else if (setting->precision == ZR_PRECISION_BF16)
        memcpy(to, &brain, sizeof brain);
    else
        memcpy(to, &half, sizeof half);
}

static float load(const struct setting *setting, const void *from)
{
    float value;
    uint16_t brain;
    uint16_t half;
    if (setting->precision == ZR_PRECISION_FP32) {
        memcpy(&value, from, sizeof value);
    } else if (setting->precision == ZR_PRECISION_BF16) {
        memcpy(&brain, from, sizeof brain);
        memcpy(&value, &(uint32_t){(uint32_t)brain << 16}, sizeof value);
    } else {
        memcpy(&half, from, sizeof half);
        value = float_of_half(half);
    }
    return value;
}

static float rounded(const struct setting *setting, float value)
{
    float kept; /* or two bytes of it */
    store(setting, value, &kept);
    return load(setting, &kept);
}

static void *element_at(const struct setting *setting, const void *base, size_t index)
{
    return (char *)base + index * zr_precision_bytes(setting->precision);
}

struct model {
    double *w, *m, *v;
    size_t elements;
};

/* All ranks' gradient of one element. Of two bytes, a sum of one round is rounded when it is stored; and
 * where rounds add up in place, by one rank or before they are reduced, each such sum is. */
static double whole_gradient(const struct setting *setting, size_t element, size_t parameter, unsigned step)
{
    unsigned contributions = units[parameters[parameter].unit].gradient_uses;
    unsigned rounds = setting->micro_batches * contributions;
    bool in_place = setting->reduce == ZR_REDUCE_ONCE || (setting->world == 1 && setting->micro_batches == 1);
    double sum = 0;
    for (unsigned r = 0; r < setting->world; r++) {
        float own = 0;
        for (unsigned round = 0; round < rounds; round++) {
            unsigned number = 2 * (round / contributions) + round % contributions;
            own += gradient_of(element, r, step, number);
            own = in_place ? rounded(setting, own) : own;
        }
        sum += (double)own;
    }
    if (setting->precision == ZR_PRECISION_FP32)
        return sum / setting->world;
    float mean = (float)sum * (1.0f / (float)setting->world);
    return (double)(in_place || rounds == 1 ? rounded(setting, mean) : mean);
}

/* Whether Muon makes a matrix orthogonal. */
static bool is_directed(const struct setting *setting, size_t parameter)
{
    return setting->kind == ZR_OPTIMIZER_MUON && parameters[parameter].shape[1] > 0;
}

static void reference_element(const struct setting *setting, struct model *model, size_t e, size_t parameter,
                              double g, unsigned step, double rate)
{
    const struct zr_parameter_group *group = &adamw.groups[parameters[parameter].group];
    double b1 = (double)adamw.beta1, b2 = (double)adamw.beta2;
    double decay = (double)adamw.weight_decay * (double)group->decay_factor * model->w[e];
    rate *= (double)group->rate_factor;
    if (setting->kind == ZR_OPTIMIZER_SGD) {
        model->m[e] = (double)adamw.momentum_factor * model->m[e] + g + decay;
        model->w[e] -= rate * model->m[e];
        return;
    }
    model->m[e] = b1 * model->m[e] + (1 - b1) * g;
    model->v[e] = b2 * model->v[e] + (1 - b2) * g * g;
    model->w[e] -= rate * (model->m[e] / (1 - pow(b1, step)) /
                               (sqrt(model->v[e] / (1 - pow(b2, step))) + (double)adamw.epsilon) +
                           decay);
}

/* LAMB's update of a tensor that begins with element `first`. */
static void update_by_lamb(const struct setting *setting, struct model *model, size_t first, size_t parameter,
                           double scale, unsigned step, double rate)
{
    const struct zr_parameter_group *group = &adamw.groups[parameters[parameter].group];
    const size_t n = zr_parameter_elements(&parameters[parameter]);
    const struct zr_lamb how = {{.rate = (float)rate * group->rate_factor,
                                 .beta1 = adamw.beta1,
                                 .beta2 = adamw.beta2,
                                 .epsilon = adamw.epsilon,
                                 .weight_decay = adamw.weight_decay * group->decay_factor,
                                 .gradient_scale = 1,
                                 .correction1 = (float)(1 - pow((double)adamw.beta1, step)),
                                 .correction2 = (float)(1 - pow((double)adamw.beta2, step))},
                                adamw.trust_min,
                                adamw.trust_max};
    double *gradients = malloc(n * sizeof *gradients), squares[2];
    for (size_t i = 0; i < n; i++)
        gradients[i] = scale * whole_gradient(setting, first + i, parameter, step);
    reference_lamb(&how, n, gradients, &model->w[first], &model->m[first], &model->v[first], squares);
    free(gradients);
}

/* Muon's update of a matrix that begins with element `first`. */
static void reference_muon(const struct setting *setting, struct model *model, size_t first, size_t parameter,
                           double scale, unsigned step, double rate)
{
    const struct zr_parameter *p = &parameters[parameter];
    const struct zr_parameter_group *group = &adamw.groups[p->group];
    size_t rows = p->shape[0], columns = p->shape[1], n = rows * columns,
           side = rows < columns ? rows : columns;
    double *x = malloc((2 * n + 2 * side * side) * sizeof *x), factor = (double)adamw.momentum_factor;
    for (size_t i = 0; i < n; i++) {
        double g = scale * whole_gradient(setting, first + i, parameter, step);
        model->m[first + i] = factor * model->m[first + i] + g;
        x[i] = g + factor * model->m[first + i];
    }
    reference_orthogonalize(rows, columns, x, x + n);
    rate *= (double)group->rate_factor;
    for (size_t i = 0; i < n; i++)
        model->w[first + i] =
            model->w[first + i] * (1 - rate * (double)adamw.weight_decay * (double)group->decay_factor) -
            rate * 0.2 * sqrt((double)(rows > columns ? rows : columns)) * x[i];
    free(x);
}

/* Adafactor's update of a tensor that begins with element `first`. Of a matrix v has the second moments of
 * the rows, then those of the columns. */
static void reference_adafactor(const struct setting *setting, struct model *model, size_t first,
                                size_t parameter, double scale, unsigned step, double rate)
{
    const struct zr_parameter *p = &parameters[parameter];
    const struct zr_parameter_group *group = &adamw.groups[p->group];
    const size_t n = zr_parameter_elements(p), columns = p->shape[1], rows = columns ? p->shape[0] : 0;
    double *u = malloc(n * sizeof *u), *moments = &model->v[first], *across = moments + rows, mean = 0,
           squares = 0, share = pow(step, -0.8);
    for (size_t i = 0; i < rows + columns; i++)
        moments[i] += share * (1e-30 - moments[i]);
    for (size_t i = 0; i < n; i++) {
        double g = u[i] = scale * whole_gradient(setting, first + i, parameter, step);
        if (rows == 0)
            moments[i] += share * (g * g + 1e-30 - moments[i]);
        else
            moments[i / columns] += share * g * g / (double)columns,
                across[i % columns] += share * g * g / (double)rows;
    }
    for (size_t i = 0; i < rows; i++)
        mean += moments[i] / (double)rows;
    for (size_t i = 0; i < n; i++) {
        u[i] /= sqrt(rows > 0 ? moments[i / columns] * across[i % columns] / mean : moments[i]);
        squares += u[i] * u[i];
    }
    rate *= (double)group->rate_factor;
    for (size_t i = 0; i < n; i++) {
        double *m = &model->m[first + i], factor = setting->averages ? (double)adamw.momentum_factor : 0;
        *m = factor * *m + (1 - factor) * rate * u[i] / fmax(1, sqrt(squares / (double)n));
        model->w[first + i] -=
            rate * (double)adamw.weight_decay * (double)group->decay_factor * model->w[first + i] + *m;
    }
    free(u);
}

/* Rounds a block's numbers to codes of 8 bits. */
static void reference_block8(size_t n, bool is_signed, double *numbers)
{
    struct zr_block8_map map = {.count = is_signed ? ZR_BLOCK8_NUMBERS / 2 : ZR_BLOCK8_NUMBERS};
    float most = 0;
    for (unsigned i = 0; i < map.count; i++)
        zr_block8_map_set(&map, i, map.count);
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf((float)numbers[i]));
    for (size_t i = 0; i < n && most > 0; i++) {
        unsigned magnitude = zr_block8_search(&map, fabsf((float)numbers[i]) / most);
        numbers[i] = copysign((double)(most * map.values[magnitude]), numbers[i]);
    }
}

static void reference_tensor(const struct setting *setting, struct model *model, size_t first,
                             size_t parameter, double scale, unsigned step, double rate)
{
    const size_t n = zr_parameter_elements(&parameters[parameter]);
    if (setting->kind == ZR_OPTIMIZER_ADAFACTOR) {
        reference_adafactor(setting, model, first, parameter, scale, step, rate);
        return;
    }
    if (setting->kind == ZR_OPTIMIZER_LAMB) {
        update_by_lamb(setting, model, first, parameter, scale, step, rate);
        return;
    }
    if (is_directed(setting, parameter)) {
        reference_muon(setting, model, first, parameter, scale, step, rate);
        return;
    }
    for (size_t e = first; e < first + n; e++)
        reference_element(setting, model, e, parameter, scale * whole_gradient(setting, e, parameter, step),
                          step, rate);
    for (size_t e = first; e < first + n && setting->kind == ZR_OPTIMIZER_ADAMW8; e += ZR_BLOCK8_NUMBERS) {
        size_t count = first + n - e < ZR_BLOCK8_NUMBERS ? first + n - e : ZR_BLOCK8_NUMBERS;
        reference_block8(count, true, &model->m[e]);
        reference_block8(count, false, &model->v[e]);
    }
}

static double reference_step(const struct setting *setting, struct model *model, unsigned step, double rate)
{
    double squares = 0, scale = 1;
    for (size_t p = 0, e = 0; p < PARAMETERS; p++)
        for (uint64_t i = 0; i < zr_parameter_elements(&parameters[p]); i++, e++)
            squares += pow(whole_gradient(setting, e, p, step), 2);
    if (sqrt(squares) > (double)clip_of(setting))
        scale = (double)clip_of(setting) / sqrt(squares);
    for (size_t p = 0, e = 0; p < PARAMETERS; e += zr_parameter_elements(&parameters[p]), p++)
        reference_tensor(setting, model, e, p, scale, step, rate);
    return sqrt(squares);
}

/* ---- What each rank does ------------------------------------------------------------------------------- */

/* Writes this rank's gradients of a unit and hands them over. */
static zr_result hand_over(struct rig *rig, const struct setting *setting, unsigned unit, unsigned step,
                           unsigned round)
{
    zr_engine *engine = rig->engine;
    unsigned rank = zr_comm_rank(rig->comm);
    void *base;
    bool accumulate;
    uint64_t global = 0;
    zr_result result = zr_engine_gradients(engine, unit, &base, &accumulate);
    if (result != ZR_OK)
        return result;
    for (size_t p = 0; p < PARAMETERS; p++) {
        uint64_t elements = zr_parameter_elements(&parameters[p]);
        for (uint64_t i = 0; parameters[p].unit == unit && i < elements; i++) {
            void *place = element_at(setting, base, zr_engine_offset(engine, p) + i);
            float value = gradient_of(global + i, rank, step, round) * zr_engine_loss_scale(engine);
            store(setting, accumulate ? load(setting, place) + value : value, place);
        }
        global += elements;
    }
    return zr_engine_reduce(engine, unit);
}

/* As a model would: each unit is used once, with a hint of the next, and has its gradients handed over. */
static zr_result use(zr_engine *engine, unsigned unit)
{
    const void *base;
    zr_result result = zr_engine_gather(engine, unit, &base);
    if (result == ZR_OK && unit + 1 < UNITS)
        result = zr_engine_prefetch(engine, unit + 1);
    if (result == ZR_OK)
        zr_engine_release(engine, unit);
    return result;
}

/* A step without its end. */
static zr_result whole_backward(struct rig *rig, const struct setting *setting, unsigned step)
{
    zr_result result = ZR_OK;
    for (unsigned unit = 0; result == ZR_OK && unit < UNITS; unit++)
        result = use(rig->engine, unit);
    for (unsigned m = 0; result == ZR_OK && m < setting->micro_batches; m++) {
        result = hand_over(rig, setting, 0, step, 2 * m);
        for (unsigned unit = UNITS; result == ZR_OK && unit-- > 1;)
            result = hand_over(rig, setting, unit, step, 2 * m);
        if (result == ZR_OK)
            result = hand_over(rig, setting, 0, step, 2 * m + 1);
    }
    return result;
}

static zr_result whole_step(struct rig *rig, const struct setting *setting, unsigned step, float rate,
                            struct zr_step_report *report)
{
    zr_result result = whole_backward(rig, setting, step);
    return result == ZR_OK ? zr_engine_step(rig->engine, rate, report) : result;
}

/* A number of 8 bits near the border of two codes may be the other one, which few elements can be off by. */
enum { ELEMENTS_BESIDE_A_BORDER = 500 };
static double beside(const struct setting *setting, double off, size_t *borders)
{
    bool far = setting->kind == ZR_OPTIMIZER_ADAMW8 && off >= 3e-6 && off < 1e-3;
    *borders += far;
    return far ? 0 : off;
}

/* The engine's parameters beside the model's; the largest difference. Of two bytes: of its masters, and each
 * parameter must be what its owner's master rounds to. */
static double compare(struct rig *rig, const struct setting *setting, const struct model *model)
{
    bool narrow = setting->precision != ZR_PRECISION_FP32;
    float *whole = calloc(model->elements, sizeof *whole);
    double worst = whole ? 0 : INFINITY;
    size_t e = 0, borders = 0;
    for (size_t p = 0; whole && p < PARAMETERS; p++) {
        const void *base;
        if (zr_engine_gather(rig->engine, parameters[p].unit, &base) != ZR_OK)
            worst = INFINITY;
        for (uint64_t i = 0; worst < INFINITY && i < zr_parameter_elements(&parameters[p]); i++, e++) {
            whole[e] = load(setting, element_at(setting, base, zr_engine_offset(rig->engine, p) + i));
            double off = fabs((double)whole[e] - model->w[e]);
            bool near = narrow && off <= 0x1p-8 * fabs(model->w[e]) + 0x1p-24; /* fp16's least is 2^-24 */
            worst = fmax(worst, near ? 0 : beside(setting, off, &borders));
        }
        if (worst < INFINITY)
            zr_engine_release(rig->engine, parameters[p].unit);
    }
    for (size_t s = 0; worst < INFINITY && s < zr_engine_segments_count(rig->engine); s++) {
        struct zr_shard_segment segment;
        zr_engine_segment(rig->engine, s, &segment);
        for (size_t i = 0; i < segment.count; i++) {
            e = segment.global_index + i;
            worst = fmax(worst, beside(setting, fabs((double)segment.parameter[i] - model->w[e]), &borders));
            worst = whole[e] == rounded(setting, segment.parameter[i]) ? worst : INFINITY;
        }
    }
    free(whole);
    return borders * ELEMENTS_BESIDE_A_BORDER > model->elements ? INFINITY : worst;
}

static zr_result make_layout(struct zr_layout *out, const struct zr_parameter_list *of, unsigned world,
                             zr_arena *arena, enum zr_precision precision)
{
    return zr_layout_make(out,
                          &(struct zr_layout_request){of, world, precision, arena, NULL, NULL, 0, false});
}

/* What a rank sends in a step: each element is reduced as often as it is handed over (or once), and comes
 * whole to its user once, be it by an update, by gathering for use, or (stage 0) as a sum. That sum is fp32
 * where it is of several rounds. */
struct travelling {
    uint64_t elements, bytes;
};

static struct travelling travelling(struct rig *rig, const struct setting *setting)
{
    struct zr_layout layout;
    struct travelling all = {0};
    uint64_t each = zr_precision_bytes(setting->precision);
    if (zr_layout_make(&layout,
                       &(struct zr_layout_request){&list, setting->world, setting->precision, rig->arena,
                                                   zr_optimizer_of(setting->kind), NULL, 0, false}) != ZR_OK)
        return (struct travelling){UINT64_MAX, UINT64_MAX};
    for (size_t u = 0; u < UNITS; u++) {
        unsigned rounds =
            setting->reduce == ZR_REDUCE_ONCE ? 1 : units[u].gradient_uses * setting->micro_batches;
        uint64_t once = layout.units[u].padded_elements / setting->world * (setting->world - 1);
        all.elements += once * (rounds + 1);
        all.bytes += once * (rounds * each + (setting->stage == 0 && rounds > 1 ? sizeof(float) : each));
        bool directed = false;
        uint64_t sums = 0;
        for (size_t p = 0; p < PARAMETERS && setting->stage > 0; p++) {
            directed |= parameters[p].unit == u && is_directed(setting, p);
            if (parameters[p].unit == u && setting->kind == ZR_OPTIMIZER_LAMB)
                sums += 2;
            if (parameters[p].unit == u && setting->kind == ZR_OPTIMIZER_ADAFACTOR)
                sums += 2 + (parameters[p].shape[1] ? parameters[p].shape[0] + parameters[p].shape[1] : 0);
        }
        /* Directions travel as floats, sums as doubles. */
        uint64_t more = (directed ? once : 0) + 2 * sums * (setting->world - 1);
        all.elements += more;
        all.bytes += more * sizeof(float);
    }
    zr_layout_end(&layout);
    return all;
}

/* By seed and global index alone, whoever holds them. */
static bool first_values_are_right(struct rig *rig, const struct setting *setting, size_t p,
                                   size_t global_index, const void *values)
{
    size_t count = zr_parameter_elements(&parameters[p]);
    bool same = true;
    float *want = malloc(count * sizeof *want);
    const struct zr_kernels *kernels = zr_kernels_cpu(zr_isa_best());
    kernels->init_normal(&rig->context,
                         &(struct zr_init_normal){count, 9, global_index, parameters[p].init_mean,
                                                  parameters[p].init_deviation, want});
    for (size_t i = 0; i < count; i++)
        same &= rounded(setting, want[i]) == load(setting, element_at(setting, values, i));
    free(want);
    return same;
}

/* As fp32 has them, whatever the parameters are. */
static void first_masters(struct rig *rig, size_t p, size_t global_index, double *out)
{
    size_t count = zr_parameter_elements(&parameters[p]);
    const struct zr_kernels *kernels = zr_kernels_cpu(zr_isa_best());
    for (size_t i = 0; i < count; i++) {
        float value;
        kernels->init_normal(&rig->context,
                             &(struct zr_init_normal){1, 9, global_index + i, parameters[p].init_mean,
                                                      parameters[p].init_deviation, &value});
        out[i] = (double)value;
    }
}

static int follow_reference(struct rig *rig, const struct setting *setting)
{
    struct model model = {.elements = zr_parameter_list_elements(&list)};
    struct zr_comm_counters before, after;
    model.w = calloc(3 * model.elements, sizeof *model.w);
    model.m = model.w + model.elements;
    model.v = model.m + model.elements;

    must(rig_engine(rig, setting) == ZR_OK);
    size_t e = 0;
    for (size_t p = 0; p < PARAMETERS; p++) {
        const void *base;
        size_t count = zr_parameter_elements(&parameters[p]);
        must(zr_engine_gather(rig->engine, parameters[p].unit, &base) == ZR_OK);
        must(first_values_are_right(rig, setting, p, e,
                                    element_at(setting, base, zr_engine_offset(rig->engine, p))));
        zr_engine_release(rig->engine, parameters[p].unit);
        first_masters(rig, p, e, &model.w[e]);
        e += count;
    }
    must(compare(rig, setting, &model) == 0);
    for (unsigned step = 1; step <= steps_of(setting); step++) {
        struct zr_step_report report;
        float rate = 0.01f / (float)step;
        must(zr_engine_synchronize(rig->engine) == ZR_OK);
        zr_comm_counters_get(rig->comm, &before);
        must(whole_step(rig, setting, step, rate, &report) == ZR_OK);
        must(zr_engine_synchronize(rig->engine) == ZR_OK);
        zr_comm_counters_get(rig->comm, &after);
        double norm = reference_step(setting, &model, step, (double)rate);
        must(fabs(report.gradient_norm - norm) <= 1e-6 * norm);
        must((report.clip_scale == 1) == setting->below_clip);
        must(compare(rig, setting, &model) < (setting->kind == ZR_OPTIMIZER_MUON ? 1e-4 : 3e-6));
        must(after.sent_elements - before.sent_elements == travelling(rig, setting).elements);
        must(after.received_bytes - before.received_bytes == travelling(rig, setting).bytes);
    }
    must(zr_engine_steps_done(rig->engine) == steps_of(setting));
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
    free(model.w);
    return 0;
}

/* One rank changes one bit of one parameter: everyone hears of it. */
static int replicas_differ(struct rig *rig, const struct setting *setting)
{
    const void *base;
    must(rig_engine(rig, setting) == ZR_OK);
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
    must(zr_engine_gather(rig->engine, 3, &base) == ZR_OK);
    if (zr_comm_rank(rig->comm) == 1)
        *(unsigned char *)element_at(setting, base, 17) ^= 1;
    must(zr_engine_verify_replicas(rig->engine) == ZR_ERR_CORRUPT);
    must(strstr(zr_last_error(), "rank 1"));
    return 0;
}

static void clear(zr_engine *engine, const struct setting *setting, unsigned unit, void *gradients)
{
    for (size_t p = 0; p < PARAMETERS; p++)
        if (parameters[p].unit == unit)
            memset(element_at(setting, gradients, zr_engine_offset(engine, p)), 0,
                   zr_parameter_elements(&parameters[p]) * zr_precision_bytes(setting->precision));
}

/* Of all ranks' gradients one element is infinite: all stop, all name the parameter, nothing was updated. */
static int gradient_is_blamed(struct rig *rig, const struct setting *setting)
{
    struct zr_step_report report;
    const void *base;
    void *gradients;
    float before;
    bool accumulate;
    unsigned rank = zr_comm_rank(rig->comm);

    must(rig_engine(rig, setting) == ZR_OK);
    must(zr_engine_gather(rig->engine, 3, &base) == ZR_OK);
    before = load(setting, base);
    zr_engine_release(rig->engine, 3);
    for (unsigned unit = 0; unit < UNITS; unit++) {
        must(zr_engine_gradients(rig->engine, unit, &gradients, &accumulate) == ZR_OK);
        clear(rig->engine, setting, unit, gradients);
        if (unit == 3 && rank == setting->world - 1)
            store(setting, INFINITY, element_at(setting, gradients, zr_engine_offset(rig->engine, 5) + 1008));
        if (unit == 1 && rank == 0) /* backward comes there later */
            store(setting, INFINITY, element_at(setting, gradients, 0));
        must(zr_engine_reduce(rig->engine, unit) == ZR_OK);
    }
    must(zr_engine_gradients(rig->engine, 0, &gradients, &accumulate) == ZR_OK);
    clear(rig->engine, setting, 0, gradients);
    must(zr_engine_reduce(rig->engine, 0) == ZR_OK);
    must(zr_engine_step(rig->engine, 0.1f, &report) == ZR_ERR_CORRUPT);
    must(strstr(zr_last_error(), "c.bias") && strstr(zr_last_error(), "1008"));
    must(zr_engine_gather(rig->engine, 3, &base) == ZR_OK);
    must(load(setting, base) == before && zr_engine_steps_done(rig->engine) == 0);
    zr_engine_release(rig->engine, 3);
    return 0;
}

/* Loading shards and publishing them makes replicas whole, at both stages. */
static int publish(struct rig *rig, const struct setting *setting)
{
    must(rig_engine(rig, setting) == ZR_OK);
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
        const void *base;
        must(zr_engine_gather(rig->engine, parameters[p].unit, &base) == ZR_OK);
        for (uint64_t i = 0; i < zr_parameter_elements(&parameters[p]); i++)
            must(load(setting, element_at(setting, base, zr_engine_offset(rig->engine, p) + i)) ==
                 rounded(setting, (float)global++));
        zr_engine_release(rig->engine, parameters[p].unit);
    }
    /* Where everyone updates everything the optimizer's state has to be whole as well. */
    struct zr_step_report report;
    must(whole_step(rig, setting, 1, 0.01f, &report) == ZR_OK);
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
    return 0;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

/* Every element belongs to exactly one rank, in any world. */
static void test_layout(void)
{
    struct rig rig;
    tap_result(open_rank(&rig, NULL, 0, ZR_PRECISION_FP32), ZR_OK, "memory");
    for (unsigned world = 1; world <= 70; world += world < 9 ? 1 : 30) {
        struct zr_layout layout;
        uint64_t owned = 0;
        bool aligned = true;
        tap_result(make_layout(&layout, &list, world, rig.arena, ZR_PRECISION_FP32), ZR_OK,
                   "a layout for %u ranks", world);
        for (size_t u = 0; u < UNITS; u++)
            for (unsigned r = 0; r < world; r++)
                for (size_t i = 0; i < layout.units[u].parameters_count; i++) {
                    struct zr_overlap part;
                    size_t shard = layout.units[u].shard_elements;
                    if (zr_layout_overlap(&layout.parameters[layout.units[u].first_parameter + i], r * shard,
                                          (r + 1) * shard, &part))
                        owned += part.count;
                    aligned &= shard * sizeof(float) % ZR_SHARD_ALIGN_BYTES == 0;
                }
        tap_ok(owned == zr_parameter_list_elements(&list) && aligned, "%u ranks own every element once",
               world);
        zr_layout_end(&layout);
    }
    struct zr_parameter wrong[2] = {parameters[0], parameters[0]};
    struct zr_layout layout;
    strcpy(wrong[1].name, "other");
    wrong[1].unit = 2;
    tap_result(make_layout(&layout, &(struct zr_parameter_list){wrong, 2, units, 2, 0}, 2, rig.arena,
                           ZR_PRECISION_BF16),
               ZR_ERR_INVALID, "a unit without parameters");
    wrong[1].unit = 0;
    wrong[1].shape[0] = wrong[1].shape[1] = (size_t)1 << 33;
    tap_result(make_layout(&layout, &(struct zr_parameter_list){wrong, 2, units, 1, 0}, 2, rig.arena,
                           ZR_PRECISION_BF16),
               ZR_ERR_INVALID, "a parameter beyond counting");
    tap_result(make_layout(&layout, &(struct zr_parameter_list){0}, 2, rig.arena, ZR_PRECISION_BF16),
               ZR_ERR_INVALID, "an empty list");
    tap_is(rig_close(&rig), 0, "nothing is left behind");
}

static void test_misuse(void)
{
    struct rig rig;
    struct zr_step_report report;
    void *base;
    bool accumulate;
    tap_result(open_rank(&rig, NULL, 0, ZR_PRECISION_FP32), ZR_OK, "memory");
    struct setting setting = {.stage = 4, .micro_batches = 1};
    tap_result(rig_engine(&rig, &setting), ZR_ERR_INVALID, "stage 4 is not there");
    setting.stage = 2;
    setting.reduce = ZR_REDUCE_ONCE;
    tap_result(rig_engine(&rig, &setting), ZR_ERR_INVALID, "reducing once per step at stage 2");
    tap_ok(strstr(zr_last_error(), "stage 0 or 1") != NULL, "the words say where it is: %s", zr_last_error());
    setting = (struct setting){.stage = 1, .micro_batches = 1, .precision = ZR_PRECISION_BF16};
    tap_result(rig_engine(&rig, &setting), ZR_ERR_INVALID, "bf16 with the kernels open for fp32");
    tap_ok(strstr(zr_last_error(), "bf16") && strstr(zr_last_error(), "fp32"), "the words say so: %s",
           zr_last_error());
    setting.precision = ZR_PRECISION_COUNT;
    tap_result(rig_engine(&rig, &setting), ZR_ERR_INVALID, "a precision that is none");
    setting = (struct setting){.stage = 1, .micro_batches = 1};
    tap_result(zr_engine_create(&rig.engine, &(struct zr_engine_options){0}), ZR_ERR_INVALID,
               "no options at all");
    tap_result(rig_engine(&rig, &setting), ZR_OK, "an engine");
    tap_result(zr_engine_step(rig.engine, 0.1f, &report), ZR_ERR_INVALID, "a step without gradients");
    tap_ok(strstr(zr_last_error(), "of 1 gradients at") || strstr(zr_last_error(), "of 2"),
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
            const struct setting setting = {.stage = 3, .precision = ZR_PRECISION_BF16};
            zr_result opened = open_rank(&rig, NULL, 0, setting.precision);
            zr_fault_set(sites[s], nth);
            zr_result result = opened == ZR_OK ? rig_engine(&rig, &setting) : opened;
            zr_fault_set(sites[s], 0);
            leaked += rig_close(&rig);
            if (result == ZR_OK)
                break;
            failures++;
        }
        tap_ok(leaked == 0 && failures > 0,
               "%s: an engine's %zu passes failed in turn, %zu bytes left behind",
               zr_fault_site_name(sites[s]), failures, leaked);
    }
}

/* At stage 3 of several ranks: what a caller must not do, and what it may. */
static int limits_are_kept(struct rig *rig, const struct setting *setting)
{
    const void *base, *again;
    void *gradients;
    bool accumulate;
    struct zr_arena_stats stats;

    must(rig_engine(rig, setting) == ZR_OK);
    must(zr_engine_gathers(rig->engine));
    must(zr_engine_gather(rig->engine, 5, &base) == ZR_OK);
    must(zr_engine_gather(rig->engine, 5, &again) == ZR_OK && again == base); /* two users of one copy */
    must(zr_engine_gather(rig->engine, 7, &again) == ZR_OK);
    must(zr_engine_prefetch(rig->engine, 6) == ZR_OK); /* a hint without room for it is no failure */
    must(zr_engine_gather(rig->engine, 6, &again) == ZR_ERR_INVALID && strstr(zr_last_error(), "release"));
    zr_engine_release(rig->engine, 7);
    must(zr_engine_prefetch(rig->engine, 8) == ZR_OK);
    must(zr_engine_gather(rig->engine, 9, &again) == ZR_OK); /* not what the hint said */
    zr_engine_release(rig->engine, 9);
    zr_engine_release(rig->engine, 5);
    must(zr_arena_get_stats(rig->arena, &stats) == ZR_OK && stats.live_by_tag_bytes[ZR_TAG_GATHERED] > 0);
    zr_engine_release(rig->engine, 5);
    must(zr_arena_get_stats(rig->arena, &stats) == ZR_OK && stats.live_by_tag_bytes[ZR_TAG_GATHERED] == 0);

    must(zr_engine_reduce(rig->engine, 5) == ZR_ERR_INVALID);
    must(zr_engine_gradients(rig->engine, 5, &gradients, &accumulate) == ZR_OK);
    must(zr_engine_gradients(rig->engine, 6, &gradients, &accumulate) == ZR_OK);
    must(zr_engine_gradients(rig->engine, 7, &gradients, &accumulate) == ZR_ERR_INVALID);
    must(strstr(zr_last_error(), "two other units"));
    return 0; /* what is staged goes with the engine */
}

static _Atomic bool *dropped; /* what was prefetched, by rank 0; shared with it */

/* At stage 3 of several ranks: what was gathered on a hint, and not used. */
static int hints_are_dropped(struct rig *rig, const struct setting *setting)
{
    enum { UNIT = 5 };
    struct zr_step_report report;
    const void *base;
    float before[8];

    must(rig_engine(rig, setting) == ZR_OK);
    /* Its memory goes when it has come: with the last rank, which waits to see. */
    bool last = zr_comm_rank(rig->comm) + 1 == setting->world;
    for (unsigned ms = 0; last && ms < 200; ms++) {
        must(!atomic_load(dropped));
        usleep(1000);
    }
    must(zr_engine_prefetch(rig->engine, UNIT) == ZR_OK);
    must(zr_engine_drop_gathered(rig->engine) == ZR_OK);
    atomic_store(dropped, true);

    /* After the step it would be of the step before. */
    must(zr_engine_gather(rig->engine, UNIT, &base) == ZR_OK);
    memcpy(before, base, sizeof before);
    zr_engine_release(rig->engine, UNIT);
    must(whole_backward(rig, setting, 0) == ZR_OK && zr_engine_prefetch(rig->engine, UNIT) == ZR_OK);
    must(zr_engine_step(rig->engine, 0.1f, &report) == ZR_OK);
    must(zr_engine_gather(rig->engine, UNIT, &base) == ZR_OK);
    must(memcmp(before, base, sizeof before) != 0);
    zr_engine_release(rig->engine, UNIT);
    return 0;
}

/* Whether a world takes each optimizer, too: where shards are, and several of them in fp32. What two bytes
 * round does not depend on the optimizer. */
static bool takes_optimizers(unsigned world, unsigned stage, enum zr_precision precision)
{
    switch (precision) {
    case ZR_PRECISION_FP32:
        return world == 2 || world == 3 || (world == 1 && stage == 0);
    case ZR_PRECISION_BF16:
        return world == 2;
    default:
        return false;
    }
}

/* The checks of one stage in one world, in one precision. */
static void test_stage(unsigned world, unsigned stage, enum zr_precision precision)
{
    const struct setting plain = {.stage = stage, .world = world, .micro_batches = 1, .precision = precision};
    const char *name = zr_precision_name(precision);
    struct setting setting = plain;
    setting.body = follow_reference;
    tap_is(in_world(&setting), 0,
           "%u ranks, stage %u, %s: %d steps as AdamW in double precision has them, and the elements sent",
           world, stage, name, STEPS);
    setting.micro_batches = 3;
    tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: the same of 3 micro-batches", world, stage, name);
    const bool optimizers = takes_optimizers(world, stage, precision);
    setting.kind = ZR_OPTIMIZER_SGD;
    if (optimizers)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: SGD with momentum", world, stage, name);
    setting.kind = ZR_OPTIMIZER_MUON;
    if (optimizers)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: Muon", world, stage, name);
    setting.kind = ZR_OPTIMIZER_ADAMW8;
    if (optimizers)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: AdamW in 8 bits", world, stage, name);
    setting.kind = ZR_OPTIMIZER_ADAFACTOR;
    if (optimizers)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: Adafactor", world, stage, name);
    setting.kind = ZR_OPTIMIZER_LAMB;
    if (optimizers)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: LAMB", world, stage, name);
    setting.kind = ZR_OPTIMIZER_ADAFACTOR;
    setting.averages = true;
    if (optimizers && world <= 2)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: Adafactor with momentum", world, stage, name);
    setting.averages = false;
    setting.kind = ZR_OPTIMIZER_SGD;
    setting.below_clip = true;
    if (world <= 2)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: and with a norm below the clip", world, stage,
               name);
    setting.below_clip = false;
    if (stage <= 1 && world <= 3) {
        setting.reduce = ZR_REDUCE_ONCE;
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: 3 micro-batches reduced once", world, stage,
               name);
    }
    setting = plain;
    setting.body = publish;
    tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: shards become whole replicas", world, stage, name);
    setting.body = replicas_differ;
    if (world > 1 && stage < 3)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: a replica that differs is named", world, stage,
               name);
    setting.body = gradient_is_blamed;
    if (precision != ZR_PRECISION_FP16)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u, %s: an infinite gradient is named everywhere",
               world, stage, name);
    setting.body = limits_are_kept;
    if (world > 1 && stage == 3 && precision == ZR_PRECISION_FP32)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u: two units at a time, and no more", world, stage);
    setting.body = hints_are_dropped;
    if (world == 2 && stage == 3 && precision == ZR_PRECISION_FP32)
        tap_is(in_world(&setting), 0, "%u ranks, stage %u: a hint that is not used leaves nothing", world,
               stage);
}

int main(void)
{
    static const unsigned worlds[] = {1, 2, 3, 8};
    dropped = mmap(NULL, sizeof *dropped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_layout();
    test_misuse();
    test_faults();
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (unsigned stage = worlds[w] / 8; stage <= 3;
             stage += 1 + worlds[w] / 8) { /* of 8 ranks 1 and 3 */
            test_stage(worlds[w], stage, ZR_PRECISION_FP32);
            if (worlds[w] <= 2 || stage == 3)
                test_stage(worlds[w], stage, ZR_PRECISION_BF16);
            if (worlds[w] == 2)
                test_stage(worlds[w], stage, ZR_PRECISION_FP16);
        }
    return tap_done();
}
