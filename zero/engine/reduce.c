/* reduce.c: reduction of gradients.
 * Stages 0 and 1 keep whole gradients. A unit with one gradient per step is reduced in place: reduce-scatter
 * at stage 1, all-reduce at stage 0. With several gradients per step (a tied embedding, micro-batches) a
 * separate shard holds the sum, because the next gradients overwrite the pool and two-byte gradients are
 * summed in fp32. At stage 0 these shards are gathered after the last gradient, or, with two-byte gradients,
 * unit by unit when they are used.
 *
 * Stage 2 keeps shards; whole gradients are in staging blocks, which are freed in FIFO order when the next
 * one needs memory, so that reductions overlap with the computation of later gradients. With an offloaded
 * optimizer every stage and a single rank stage gradients too; a single rank's gradients that are summed in
 * place return to staging first.
 *
 * Every element is the sum of the same addends in the same order at every stage. */
#include "zero/engine/gradient_file.h"
#include "zero/engine/offload.h"
#include "zero/engine/speculate.h"

/* ---- Addresses ----------------------------------------------------------------------------------------- */

static void *whole_gradients(const struct zr_engine *engine, size_t unit)
{
    return engine->shards_gradients ? engine->units[unit].staging : zr_engine_kept_gradients(engine, unit);
}

/* Zeroes the padding between tensors, which is reduced with them. */
static zr_result clear_padding(struct zr_engine *engine, size_t unit, char *values)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    size_t end = 0;
    zr_result result = ZR_OK;
    for (size_t i = 0; i <= u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        size_t next = i < u->parameters_count ? p->offset : u->padded_elements;
        if (next > end)
            result = engine->options.kernels->clear(
                engine->options.context, &(struct zr_clear){(next - end) * engine->gradient_bytes,
                                                            values + end * engine->gradient_bytes});
        end = i < u->parameters_count ? p->offset + p->elements : end;
    }
    return result;
}

/* ---- Staging ------------------------------------------------------------------------------------------- */

static void enqueue(struct zr_engine *engine, unsigned unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    state->staged = true;
    state->next_staged = ZR_NO_UNIT;
    if (engine->last_staged == ZR_NO_UNIT)
        engine->first_staged = unit;
    else
        engine->units[engine->last_staged].next_staged = unit;
    engine->last_staged = unit;
}

static void dequeue(struct zr_engine *engine, unsigned unit)
{
    unsigned before = ZR_NO_UNIT;
    for (unsigned u = engine->first_staged; u != unit; u = engine->units[u].next_staged)
        before = u;
    unsigned after = engine->units[unit].next_staged;
    if (before == ZR_NO_UNIT)
        engine->first_staged = after;
    else
        engine->units[before].next_staged = after;
    if (engine->last_staged == unit)
        engine->last_staged = before;
    engine->units[unit].staged = false;
}

zr_result zr_engine_end_reduction(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    zr_result copied = zr_engine_await_gradients(engine, unit);
    zr_result result = zr_comm_wait(engine->options.comm, state->reduce_ticket);
    result = copied != ZR_OK ? copied : result;
    if (result == ZR_OK)
        state->reduce_ticket = 0;
    if (result == ZR_OK) /* the gradients remain in the slot until they are written */
        result = zr_engine_speculation_begin(engine, unit);
    if (result == ZR_OK)
        result = zr_engine_gradient_write(engine, unit);
    if (state->staged) {
        dequeue(engine, (unsigned)unit);
        engine->staging_elements -= engine->layout.units[unit].padded_elements;
        zr_drop(engine->options.arena, &state->staging);
    }
    return result;
}

/* Whether to wait for the oldest reduction before allocating a unit's gradients: because staging is full, or
 * because the reduction belongs to an earlier micro-batch and has had a whole forward pass to end. */
static bool must_end_oldest(const struct zr_engine *engine, unsigned unit)
{
    unsigned oldest = engine->first_staged;
    if (oldest == ZR_NO_UNIT)
        return false;
    unsigned here = engine->units[unit].accumulated / engine->layout.units[unit].unit.gradient_uses;
    unsigned there =
        (engine->units[oldest].accumulated - 1) / engine->layout.units[oldest].unit.gradient_uses;
    return there < here ||
           engine->staging_elements + engine->layout.units[unit].padded_elements > engine->staging_limit;
}

/* Allocates a unit's gradients and zeroes their padding. */
static zr_result stage(struct zr_engine *engine, unsigned unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    size_t elements = engine->layout.units[unit].padded_elements;
    zr_result result = ZR_OK;

    while (result == ZR_OK && must_end_oldest(engine, unit))
        result = zr_engine_end_reduction(engine, engine->first_staged);
    if (result == ZR_OK)
        result =
            zr_take(engine->options.arena, ZR_TAG_GRAD, elements, engine->gradient_bytes, &state->staging);
    if (result != ZR_OK)
        return zr_name_unit(result, engine->layout.units[unit].unit.name);
    engine->staging_elements += elements;
    return clear_padding(engine, unit, state->staging);
}

/* Allocates a unit's kept gradients, whole or a shard, if there is no pool. */
static zr_result take_kept(struct zr_engine *engine, unsigned unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_unit_state *state = &engine->units[unit];
    size_t elements = engine->shards_gradients ? u->shard_elements : u->padded_elements;
    if (!engine->options.scattered_gradients || state->gradients || state->tier->gradients_elements == 0)
        return ZR_OK;
    zr_result result =
        zr_take(state->tier->arena, ZR_TAG_GRAD, elements, engine->gradient_bytes, &state->gradients);
    if (result != ZR_OK)
        return zr_name_unit(result, u->unit.name);
    return engine->shards_gradients ? ZR_OK : clear_padding(engine, unit, state->gradients);
}

/* The limits of staging apply at every stage, so that a program that runs at one stage runs at all. */
static zr_result check_acquire(const struct zr_engine *engine, unsigned unit)
{
    const char *name = engine->layout.units[unit].unit.name;
    const struct zr_unit_state *state = &engine->units[unit];
    if (zr_engine_is_frozen(engine, unit))
        return zr_fail(ZR_ERR_INVALID, "unit %s is frozen (gradient_uses 0) and has no gradients", name);
    if (state->accumulated >= zr_engine_accumulation_steps(engine, unit))
        return zr_fail(ZR_ERR_INVALID, "unit %s has all %u gradients of this step; end the step", name,
                       state->accumulated);
    if (!state->awaited && engine->awaited_units >= ZR_AWAITED_UNITS_MAX)
        return zr_fail(ZR_ERR_INVALID,
                       "cannot acquire the gradients of unit %s: two other units have not been reduced",
                       name);
    return ZR_OK;
}

zr_result zr_engine_gradients(zr_engine *engine, unsigned unit, void **base, bool *accumulate)
{
    zr_result result = zr_engine_check_unit(engine, __func__, unit, base && accumulate ? base : NULL);
    if (result == ZR_OK)
        result = check_acquire(engine, unit);
    if (result != ZR_OK)
        return result;
    struct zr_unit_state *state = &engine->units[unit];
    bool adds = zr_engine_adds_in_place(engine) && state->accumulated > 0;
    result = zr_engine_end_reduction(engine, unit); /* an earlier reduction of the unit may still run */
    if (result == ZR_OK)
        result = take_kept(engine, unit);
    if (result == ZR_OK && engine->shards_gradients && !state->staging) {
        result = stage(engine, unit);
        if (result == ZR_OK && adds)
            result = zr_engine_gradients_return(engine, unit);
    }
    if (result != ZR_OK)
        return result;
    if (!state->awaited) {
        state->awaited = true;
        engine->awaited_units++;
    }
    *base = whole_gradients(engine, unit);
    *accumulate = adds;
    return ZR_OK;
}

/* ---- Reducing ------------------------------------------------------------------------------------------ */

static zr_result reduce_in_place(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    void *gradients = whole_gradients(engine, unit);
    float scale = 1.0f / (float)engine->world;
    enum zr_comm_type type = zr_engine_comm_type(engine);
    zr_ticket *ticket = &engine->units[unit].reduce_ticket;

    if (engine->options.stage == 0)
        return zr_comm_all_reduce(engine->options.comm,
                                  &(struct zr_all_reduce){.buffer = gradients,
                                                          .shard_elements = u->shard_elements,
                                                          .scale = scale,
                                                          .type = type,
                                                          .label = zr_engine_label(unit, ZR_LABEL_GRADIENTS)},
                                  ticket);
    return zr_comm_reduce_scatter(
        engine->options.comm,
        &(struct zr_reduce_scatter){.source = gradients,
                                    .destination = zr_engine_shard_gradients(engine, unit).at,
                                    .shard_elements = u->shard_elements,
                                    .scale = scale,
                                    .label = zr_engine_label(unit, ZR_LABEL_GRADIENTS),
                                    .type = type},
        ticket);
}

/* With one rank: adds gradients to the fp32 sums. */
static zr_result add_single_rank(struct zr_engine *engine, size_t unit, float *sum)
{
    const void *own = whole_gradients(engine, unit);
    return engine->options.kernels->sum(engine->options.context,
                                        &(struct zr_sum){.n = engine->layout.units[unit].padded_elements,
                                                         .from = &own,
                                                         .count = 1,
                                                         .precision = engine->options.precision,
                                                         .scale = 1,
                                                         .accumulate = engine->units[unit].accumulated > 0,
                                                         .to = {sum, ZR_PRECISION_FP32}});
}

static zr_result reduce_to_sum(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_unit_state *state = &engine->units[unit];
    bool several = zr_engine_accumulation_steps(engine, unit) > 1,
         low_precision = zr_engine_is_low_precision(engine);
    zr_result result = zr_engine_gradient_slot(engine, unit);

    if (result != ZR_OK)
        return result;
    if (zr_engine_adds_in_place(engine)) /* one rank, gradients are kept on the host */
        return zr_engine_gradients_leave(engine, unit);
    if ((low_precision ? several : !engine->shards_gradients) && !zr_engine_pooled_sum(engine, unit) &&
        !state->sum_shard)
        result = zr_take(state->tier->arena, ZR_TAG_GRAD, u->shard_elements, sizeof(float),
                         (void **)&state->sum_shard);
    if (result != ZR_OK)
        return zr_name_unit(result, u->unit.name);
    struct zr_numbers sum = zr_engine_shard_gradients(engine, unit);
    if (engine->world == 1)
        return zr_engine_offloads(engine) ? zr_engine_gradients_add(engine, unit)
                                          : add_single_rank(engine, unit, sum.at);
    size_t host_bytes = state->tier->offloaded ? u->shard_elements * zr_precision_bytes(sum.precision) : 0;
    engine->moved_bytes += host_bytes;
    result = zr_comm_reduce_scatter(
        engine->options.comm,
        &(struct zr_reduce_scatter){.source = whole_gradients(engine, unit),
                                    .destination = sum.at,
                                    .shard_elements = u->shard_elements,
                                    .scale = 1.0f / (float)engine->world,
                                    .accumulate = state->accumulated > 0,
                                    .type = zr_engine_comm_type(engine),
                                    .wide = low_precision && several,
                                    .host_bytes = host_bytes,
                                    .label = zr_engine_label(unit, ZR_LABEL_GRADIENTS)},
        &state->reduce_ticket);
    if (result != ZR_OK || engine->options.stage != 0 || low_precision ||
        state->accumulated + 1 < zr_engine_accumulation_steps(engine, unit))
        return result;
    return zr_comm_all_gather(engine->options.comm,
                              &(struct zr_all_gather){.source = sum.at,
                                                      .destination = whole_gradients(engine, unit),
                                                      .shard_bytes = u->shard_elements * sizeof(float),
                                                      .label = zr_engine_label(unit, ZR_LABEL_GRADIENTS)},
                              &state->reduce_ticket);
}

/* Adds gradients of which each tensor rank has a partial sum. */
static zr_result sum_over_tensor(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    zr_ticket ticket = 0;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        if (p->parameter.part.sum_gradient)
            result = zr_comm_all_reduce(
                engine->options.tensor,
                &(struct zr_all_reduce){.buffer = (char *)whole_gradients(engine, unit) +
                                                  p->offset * engine->gradient_bytes,
                                        .shard_elements = p->elements / zr_comm_world(engine->options.tensor),
                                        .scale = 1,
                                        .type = zr_engine_comm_type(engine),
                                        .label = ZR_COMM_LABEL_NONE},
                &ticket);
    }
    return result == ZR_OK && ticket > 0 ? zr_comm_wait(engine->options.tensor, ticket) : result;
}

zr_result zr_engine_reduce(zr_engine *engine, unsigned unit)
{
    zr_result result = zr_engine_check_unit(engine, __func__, unit, engine);
    if (result != ZR_OK)
        return result;
    struct zr_unit_state *state = &engine->units[unit];
    unsigned steps = zr_engine_accumulation_steps(engine, unit);

    if (state->accumulated >= steps)
        return zr_fail(ZR_ERR_INVALID, "unit %s was reduced %u times in one step; it has %u gradients",
                       engine->layout.units[unit].unit.name, state->accumulated + 1, steps);
    if (!state->awaited)
        return zr_fail(ZR_ERR_INVALID, "unit %s was reduced before its gradients were acquired",
                       engine->layout.units[unit].unit.name);
    bool separate_sum = engine->shards_gradients || (steps > 1 && !zr_engine_adds_in_place(engine));
    bool in_place = !separate_sum && engine->world > 1 && state->accumulated + 1 == steps;
    /* Gradients that are summed in place return to staging with their previous sum. */
    if ((separate_sum && !zr_engine_adds_in_place(engine)) || state->accumulated + 1 == steps)
        result = sum_over_tensor(engine, unit);
    if (result != ZR_OK)
        return result;
    if (separate_sum)
        result = reduce_to_sum(engine, unit);
    else if (in_place)
        result = reduce_in_place(engine, unit);
    if (result != ZR_OK)
        return result;
    engine->brought = false;
    state->accumulated++;
    state->awaited = false;
    engine->awaited_units--;
    if (engine->shards_gradients)
        enqueue(engine, unit);
    return ZR_OK;
}
