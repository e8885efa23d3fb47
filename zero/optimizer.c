/* optimizer.c: the end of a step: norm, clipping, the update of what this rank owns by AdamW or SGD, new
 * parameters to everyone who keeps them whole. */
#include "zero/engine.h"

#include <inttypes.h>
#include <math.h>

static zr_result wait_for_gradients(struct zr_engine *engine)
{
    for (size_t u = engine->layout.units_count; u-- > 0;) {
        struct zr_unit_state *state = &engine->units[u];
        unsigned rounds = zr_engine_rounds(engine, u);
        if (state->rounds_done != rounds)
            return zr_fail(ZR_ERR_INVALID,
                           "unit %s has %u of %u gradient contributions at the end of the step",
                           engine->layout.units[u].unit.name, state->rounds_done, rounds);
        if (state->gathered && state->users > 0)
            return zr_fail(ZR_ERR_INVALID, "unit %s is still in use at the end of the step; release it",
                           engine->layout.units[u].unit.name);
        zr_result result = zr_engine_end_reduction(engine, u);
        if (result != ZR_OK)
            return result;
    }
    return zr_engine_drop_gathered(engine);
}

/* Names the first gradient that is not finite. Every rank comes here: the norm is the same on all of them. */
static zr_result blame_gradient(struct zr_engine *engine)
{
    struct {
        uint64_t unit, element;
    } mine = {UINT64_MAX, 0}, all[ZR_COMM_MAX_WORLD];
    zr_result result;

    for (size_t u = engine->layout.units_count;
         u-- > 0;) { /* backward runs from the last unit to the first */
        size_t shard = engine->layout.units[u].shard_elements;
        size_t at = engine->options.kernels->find_nonfinite(engine->options.context, shard,
                                                            zr_engine_shard_gradients(engine, u));
        if (at < shard) {
            mine.unit = u;
            mine.element = engine->rank * shard + at;
            break;
        }
    }
    result = zr_comm_exchange(engine->options.comm, &mine, sizeof mine, all);
    if (result != ZR_OK)
        return result;
    unsigned first = 0;
    for (unsigned r = 1; r < engine->world; r++)
        if (all[r].unit != UINT64_MAX && (all[first].unit == UINT64_MAX || all[r].unit > all[first].unit))
            first = r;
    if (all[first].unit == UINT64_MAX)
        return zr_fail(ZR_ERR_CORRUPT, "the gradient norm overflowed although every gradient is finite; "
                                       "lower the learning rate (--lr)");
    const struct zr_layout_parameter *parameter =
        zr_engine_parameter_at(engine, all[first].unit, all[first].element);
    return zr_fail(ZR_ERR_CORRUPT,
                   "the gradient of %s is not finite (element %" PRIu64 "); nothing was updated; "
                   "lower the learning rate (--lr) or clip (--clip)",
                   parameter ? parameter->parameter.name : "padding",
                   parameter ? all[first].element - parameter->offset : all[first].element);
}

/* The norm of all gradients: squares in fixed blocks of each shard, added in the global order of the
 * elements, unit by unit and within a unit rank by rank: the same bits on every rank and at every stage. */
static zr_result gradient_norm(struct zr_engine *engine, double *norm)
{
    size_t units = engine->layout.units_count;
    double *mine = engine->squares, *all = mine + units, total = 0;
    for (size_t u = 0; u < units; u++)
        mine[u] = engine->options.kernels->sum_of_squares(engine->options.context,
                                                          engine->layout.units[u].shard_elements,
                                                          zr_engine_shard_gradients(engine, u));
    zr_result result = zr_comm_exchange(engine->options.comm, mine, units * sizeof *mine, all);
    if (result != ZR_OK)
        return result;
    for (size_t u = 0; u < units; u++)
        for (unsigned r = 0; r < engine->world; r++)
            total += all[r * units + u];
    *norm = sqrt(total);
    return ZR_OK;
}

struct zr_owned zr_engine_owned(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    bool whole = engine->options.stage == 0;
    size_t state = whole ? u->pool_offset : u->shard_offset;
    struct zr_owned owned = {
        .from = whole ? 0 : engine->rank * u->shard_elements,
        .to = whole ? u->padded_elements : (engine->rank + 1) * u->shard_elements,
        .parameters = zr_engine_shard(engine, unit),
        .gradients = zr_engine_shard_gradients(engine, unit),
        .momentum = engine->momentum + state,
        .variance = engine->variance ? engine->variance + state : NULL,
    };
    if (whole) {
        owned.parameters =
            (float *)(engine->parameters + engine->units[unit].parameters_at * engine->parameter_bytes);
        owned.gradients = (float *)(engine->gradients + u->pool_offset * engine->gradient_bytes);
    }
    return owned;
}

/* What is the same for all parameters of a step. */
struct update {
    float rate, gradient_scale, correction1, correction2;
};

static void update_part(struct zr_engine *engine, const struct zr_parameter *parameter,
                        const struct update *update, const struct zr_owned *part)
{
    const struct zr_optimizer_options *o = &engine->options.optimizer;
    const struct zr_parameter_group *group = &o->groups[parameter->group];
    const struct zr_kernels *kernels = engine->options.kernels;
    float rate = update->rate * group->rate_factor, weight_decay = o->weight_decay * group->decay_factor;
    const struct zr_update numbers = {.n = part->to - part->from,
                                      .gradient = {part->gradients, ZR_PRECISION_FP32},
                                      .master = part->parameters,
                                      .momentum = part->momentum,
                                      .variance = part->variance};

    if (o->kind == ZR_OPTIMIZER_SGD)
        kernels->update_sgd(engine->options.context,
                            &(struct zr_sgd){.rate = rate,
                                             .momentum_factor = o->momentum_factor,
                                             .weight_decay = weight_decay,
                                             .gradient_scale = update->gradient_scale},
                            &numbers);
    else
        kernels->update_adamw(engine->options.context,
                              &(struct zr_adamw){.rate = rate,
                                                 .beta1 = o->beta1,
                                                 .beta2 = o->beta2,
                                                 .epsilon = o->epsilon,
                                                 .weight_decay = weight_decay,
                                                 .gradient_scale = update->gradient_scale,
                                                 .correction1 = update->correction1,
                                                 .correction2 = update->correction2},
                              &numbers);
}

static void update_unit(struct zr_engine *engine, size_t unit, const struct update *update)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_owned owned = zr_engine_owned(engine, unit);

    for (size_t i = 0; i < u->parameters_count; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        struct zr_overlap overlap;
        if (!zr_layout_overlap(p, owned.from, owned.to, &overlap))
            continue;
        size_t skip = overlap.offset - owned.from;
        const struct zr_owned part = {.from = overlap.offset,
                                      .to = overlap.offset + overlap.count,
                                      .parameters = owned.parameters + skip,
                                      .gradients = owned.gradients + skip,
                                      .momentum = owned.momentum + skip,
                                      .variance = owned.variance ? owned.variance + skip : NULL};
        update_part(engine, &p->parameter, update, &part);
    }
}

/* Updates unit after unit; each starts to spread while the next is updated. */
static zr_result update_all(struct zr_engine *engine, const struct update *update)
{
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_unit_state *state = &engine->units[u];
        update_unit(engine, u, update);
        zr_drop(engine->options.arena, &state->sum_shard);
        state->rounds_done = 0;
        if (engine->options.stage == 0 || engine->world == 1 || !state->resident)
            continue;
        zr_result result =
            zr_engine_spread(engine, u, engine->parameters + state->parameters_at * engine->parameter_bytes,
                             engine->parameter_bytes, &state->parameter_ticket);
        zr_timeline_sent(engine->options.timeline, ZR_TIMELINE_GATHER, zr_engine_noted(engine, u));
        if (result != ZR_OK)
            return result;
    }
    return ZR_OK;
}

zr_result zr_engine_step(zr_engine *engine, float rate, struct zr_step_report *report)
{
    const struct zr_optimizer_options *options = &engine->options.optimizer;
    double step = (double)(engine->steps_done + 1);
    zr_result result = wait_for_gradients(engine);
    if (result != ZR_OK)
        return result;

    double begin_seconds = zr_timeline_now(engine->options.timeline);
    *report = (struct zr_step_report){.gradient_norm = 0, .clip_scale = 1};
    if (!engine->dry) {
        result = gradient_norm(engine, &report->gradient_norm);
        if (result != ZR_OK)
            return result;
        if (!isfinite(report->gradient_norm))
            return blame_gradient(engine);
        if (options->clip > 0 && report->gradient_norm > options->clip)
            report->clip_scale = (float)(options->clip / report->gradient_norm);
    }
    result = update_all(engine, &(struct update){.rate = rate,
                                                 .gradient_scale = report->clip_scale,
                                                 .correction1 = (float)(1 - pow(options->beta1, step)),
                                                 .correction2 = (float)(1 - pow(options->beta2, step))});
    zr_timeline_optimizer(engine->options.timeline, begin_seconds);
    if (result == ZR_OK)
        engine->steps_done++;
    return result;
}
