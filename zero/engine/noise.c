/* noise.c: the squares of gradients of small and large batches. The small batch is a rank's first micro-batch
 * of a step, whose gradients are measured when backward hands them over, before any reduction: later they are
 * among those of other micro-batches and ranks. The large batch is the step. */
#include "zero/engine/actions.h"
#include "zero/engine/gradients.h"

#include <math.h>

/* A unit with several gradients per micro-batch never has their sum, nor has a unit of several stages. */
static bool counts(const struct zr_engine *engine, size_t unit)
{
    return engine->units[unit].steps > 0 && engine->layout.units[unit].unit.gradient_uses == 1 &&
           !zr_engine_is_shared(engine, unit);
}

zr_result zr_engine_note_squares(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    const struct zr_unit_state *state = &engine->units[unit];
    struct zr_compute compute = {engine->options.kernels, engine->options.context, engine->host_invisible};
    struct zr_numbers whole = {state->written, engine->options.precision};
    zr_result result = ZR_OK;
    if (!engine->small_squares || state->accumulated > 0 || !counts(engine, unit))
        return ZR_OK;
    if (!zr_engine_is_part(engine))
        return compute.kernels->sum_of_squares(
            compute.context,
            &(struct zr_sum_of_squares){u->padded_elements, whole, zr_engine_small_squares_at(engine, unit)});
    engine->small_squares[unit] = 0;
    for (size_t i = 0; i < u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        double own = 0;
        if (p->parameter.part.copy)
            continue;
        result = zr_engine_squares(engine, compute, p->elements, zr_numbers_at(whole, p->offset), &own);
        engine->small_squares[unit] += own;
    }
    return result;
}

/* Adds both over the ranks of a communicator; NULL does nothing. */
static zr_result add_over(zr_comm *comm, struct zr_gradient_squares *squares)
{
    struct zr_gradient_squares parts[ZR_MAX_WORLD];
    if (!comm)
        return ZR_OK;
    zr_result result = zr_comm_host_all_gather(comm, squares, sizeof *squares, parts);
    *squares = (struct zr_gradient_squares){0};
    for (unsigned r = 0; r < zr_comm_world(comm) && result == ZR_OK; r++) {
        squares->small += parts[r].small;
        squares->large += parts[r].large;
    }
    return result;
}

zr_result zr_engine_measure_squares(struct zr_engine *engine, float loss_scale, bool skipped)
{
    const struct zr_engine_options *o = &engine->options;
    size_t units = engine->layout.units_count;
    const double *all = engine->squares + units;
    struct zr_gradient_squares sums = {0};
    double scale = (double)loss_scale * (double)loss_scale,
           alone = (double)o->micro_batches * (double)o->micro_batches; /* gradients are shares of a mean */
    if (!engine->small_squares)
        return ZR_OK;
    zr_result result = zr_engine_small_squares_read(engine);
    for (size_t u = 0; u < units; u++) {
        if (!counts(engine, u))
            continue;
        sums.small += engine->small_squares[u] / engine->world;
        for (unsigned r = 0; r < engine->world; r++) /* all ranks have them: counted once below */
            sums.large += all[r * units + u] / engine->world;
    }
    if (result == ZR_OK)
        result = add_over(o->comm, &sums);
    if (result == ZR_OK)
        result = add_over(o->tensor, &sums);
    if (result == ZR_OK)
        result = add_over(o->pipeline, &sums);
    engine->gradient_squares =
        skipped ? (struct zr_gradient_squares){NAN, NAN}
                : (struct zr_gradient_squares){sums.small * alone / scale, sums.large / scale};
    return result;
}

void zr_engine_get_gradient_squares(const zr_engine *engine, struct zr_gradient_squares *out)
{
    *out =
        engine && engine->small_squares ? engine->gradient_squares : (struct zr_gradient_squares){NAN, NAN};
}
