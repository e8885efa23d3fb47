/* optimizer.c: the end of a step: norm, clipping, AdamW on what this rank owns, new parameters to everyone.
 */
#include "zero/engine.h"

#include <inttypes.h>
#include <math.h>

static zr_result wait_for_gradients(struct zr_engine *engine)
{
    for (size_t u = engine->layout.units_count; u-- > 0;) {
        struct zr_unit_state *state = &engine->units[u];
        if (state->rounds_done != engine->layout.units[u].unit.contributions)
            return zr_fail(ZR_ERR_INVALID,
                           "unit %s has %u of %u gradient contributions at the end of the step",
                           engine->layout.units[u].unit.name, state->rounds_done,
                           engine->layout.units[u].unit.contributions);
        zr_result result = zr_comm_wait(engine->options.comm, state->reduce_ticket);
        if (result != ZR_OK)
            return result;
        state->reduce_ticket = 0;
    }
    return ZR_OK;
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

/* The norm of all gradients. Each rank squares its shards in fixed blocks, the ranks' sums are added in rank
 * order: the same bits on every rank and at every stage. */
static zr_result gradient_norm(struct zr_engine *engine, double *norm)
{
    double mine = 0, all[ZR_COMM_MAX_WORLD], total = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++)
        mine += engine->options.kernels->sum_of_squares(engine->options.context,
                                                        engine->layout.units[u].shard_elements,
                                                        zr_engine_shard_gradients(engine, u));
    zr_result result = zr_comm_exchange(engine->options.comm, &mine, sizeof mine, all);
    if (result != ZR_OK)
        return result;
    for (unsigned r = 0; r < engine->world; r++)
        total += all[r];
    *norm = sqrt(total);
    return ZR_OK;
}

static void update_unit(struct zr_engine *engine, size_t unit, struct zr_adamw *adamw)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_owned owned = zr_engine_owned(engine, unit);
    const float *gradients = engine->options.stage == 0
                                 ? engine->gradients + u->pool_offset
                                 : zr_engine_shard_gradients(engine, unit) - owned.from;
    float *parameters = engine->parameters + u->pool_offset;

    for (size_t i = 0; i < u->parameters_count; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        struct zr_overlap part;
        if (!zr_layout_overlap(p, owned.from, owned.to, &part))
            continue;
        adamw->weight_decay = p->parameter.decay ? engine->options.adamw.weight_decay : 0;
        engine->options.kernels->adamw(engine->options.context, adamw, part.count, parameters + part.offset,
                                       gradients + part.offset, owned.momentum + (part.offset - owned.from),
                                       owned.variance + (part.offset - owned.from));
    }
}

zr_result zr_engine_step(zr_engine *engine, float rate, struct zr_step_report *report)
{
    const struct zr_adamw_options *options = &engine->options.adamw;
    double step = (double)(engine->steps_done + 1);
    zr_result result = wait_for_gradients(engine);
    if (result != ZR_OK)
        return result;

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
    struct zr_adamw adamw = {
        .rate = rate,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .epsilon = options->epsilon,
        .gradient_scale = report->clip_scale,
        .correction1 = (float)(1 - pow(options->beta1, step)),
        .correction2 = (float)(1 - pow(options->beta2, step)),
    };
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_unit_state *state = &engine->units[u];
        update_unit(engine, u, &adamw);
        zr_drop(engine->options.arena, &state->sum_shard);
        state->rounds_done = 0;
        if (engine->options.stage > 0 && engine->world > 1) {
            result = zr_engine_spread(engine, u, engine->parameters, &state->gather_ticket);
            if (result != ZR_OK)
                return result;
        }
    }
    engine->steps_done++;
    return ZR_OK;
}
