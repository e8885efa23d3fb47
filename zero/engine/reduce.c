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
#include "zero/engine/actions.h"
#include "zero/engine/compression.h"
#include "zero/engine/gradients.h"
#include "zero/engine/low_rank.h"
#include "zero/engine/momentum.h"
#include "zero/engine/offload.h"
#include "zero/engine/served.h"
#include "zero/engine/speculate.h"

/* ---- Addresses ----------------------------------------------------------------------------------------- */

void zr_engine_set_kept(struct zr_engine *engine, size_t unit, void *kept)
{
    struct zr_unit_state *state = &engine->units[unit];
    float *sums = state->tier->sums && state->sums_at < SIZE_MAX ? state->tier->sums + state->sums_at
                                                                 : state->sum_shard;
    state->kept = kept;
    state->reduced = sums ? (struct zr_numbers){sums, ZR_PRECISION_FP32}
                          : (struct zr_numbers){kept, engine->options.precision};
    if (!sums && kept)
        state->reduced = zr_numbers_at(state->reduced, state->reduced_at);
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

/* The last call after a gradient that is staged. */
static zr_result enqueue(struct zr_engine *engine, size_t index)
{
    unsigned unit = (unsigned)index;
    struct zr_unit_state *state = &engine->units[unit];
    state->staged = true;
    state->next_staged = ZR_NO_UNIT;
    if (engine->last_staged == ZR_NO_UNIT)
        engine->first_staged = unit;
    else
        engine->units[engine->last_staged].next_staged = unit;
    engine->last_staged = unit;
    return ZR_OK;
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
    zr_result copied = state->gradient_copy > 0 ? zr_engine_await_gradients(engine, unit) : ZR_OK;
    zr_result result = zr_engine_await_sum(engine, unit);
    result = copied != ZR_OK ? copied : result;
    if (result == ZR_OK && state->ahead) /* the gradients remain in the slot until they are written */
        result = state->ahead(engine, unit);
    if (result == ZR_OK && state->place->put)
        result = state->place->put(engine, unit);
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
static zr_result stage(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    size_t elements = engine->layout.units[unit].padded_elements;
    zr_result result = ZR_OK;

    if (state->staging)
        return ZR_OK;
    while (result == ZR_OK && must_end_oldest(engine, (unsigned)unit))
        result = zr_engine_end_reduction(engine, engine->first_staged);
    if (result == ZR_OK)
        result =
            zr_take(engine->options.arena, ZR_TAG_GRAD, elements, engine->gradient_bytes, &state->staging);
    if (result != ZR_OK)
        return zr_name_unit(result, engine->layout.units[unit].unit.name);
    state->written = state->staging;
    engine->staging_elements += elements;
    return clear_padding(engine, unit, state->staging);
}

/* Brings back what earlier micro-batches have left on the host. */
static zr_result stage_and_return(struct zr_engine *engine, size_t unit)
{
    bool absent = !engine->units[unit].staging;
    zr_result result = stage(engine, unit);
    return result == ZR_OK && absent && engine->units[unit].accumulated > 0
               ? zr_engine_gradients_return(engine, unit)
               : result;
}

static zr_result write_kept(struct zr_engine *engine, size_t unit)
{
    engine->units[unit].written = engine->units[unit].kept;
    /* The last sum lies in their place, and a packed one may have other numbers than zeros there. */
    return engine->units[unit].packs_gradients ? clear_padding(engine, unit, engine->units[unit].written)
                                               : ZR_OK;
}

/* The limits of staging apply at every stage, so that a program that runs at one stage runs at all. */
static zr_result check_acquire(const struct zr_engine *engine, unsigned unit)
{
    const char *name = engine->layout.units[unit].unit.name;
    const struct zr_unit_state *state = &engine->units[unit];
    if (state->steps == 0)
        return zr_fail(ZR_ERR_INVALID, "unit %s is frozen (gradient_uses 0) and has no gradients", name);
    if (state->accumulated >= state->steps)
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
    if (!engine || !base || !accumulate || unit >= engine->layout.units_count)
        return zr_engine_refuse_unit(engine, __func__, unit, base && accumulate ? base : NULL);
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = check_acquire(engine, unit);
    if (result == ZR_OK)
        result = zr_engine_end_reduction(engine, unit); /* an earlier reduction of the unit may still run */
    if (result == ZR_OK)
        result = zr_gradient_do(state->place->acquire, engine, unit);
    if (result == ZR_OK)
        result = state->path->acquire(engine, unit);
    if (result != ZR_OK)
        return result;
    if (!state->awaited) {
        state->awaited = true;
        engine->awaited_units++;
    }
    *base = state->written;
    *accumulate = state->path->adds && state->accumulated > 0;
    return ZR_OK;
}

/* ---- Places in memory ---------------------------------------------------------------------------------- */

static void *home_in_pool(const struct zr_engine *engine, size_t unit)
{
    const struct zr_unit_state *state = &engine->units[unit];
    char *pool = state->tier->gradients;
    return pool ? pool + state->gradients_at * engine->gradient_bytes : NULL;
}

static zr_result squares(struct zr_engine *engine, size_t unit)
{
    return zr_engine_unit_squares(engine, unit, &engine->squares[unit]);
}

/* Allocates a unit's kept gradients. */
static zr_result take_block(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    if (state->gradients)
        return ZR_OK;
    zr_result result = zr_take(state->tier->arena, ZR_TAG_GRAD, state->kept_elements, engine->gradient_bytes,
                               &state->gradients);
    if (result != ZR_OK)
        return zr_name_unit(result, engine->layout.units[unit].unit.name);
    zr_engine_set_kept(engine, unit, state->gradients);
    return ZR_OK;
}

static zr_result take_whole_block(struct zr_engine *engine, size_t unit)
{
    bool absent = !engine->units[unit].gradients;
    zr_result result = take_block(engine, unit);
    return result == ZR_OK && absent ? clear_padding(engine, unit, engine->units[unit].gradients) : result;
}

void zr_engine_drop_gradients(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    zr_drop(state->tier->arena, &state->sum_shard);
    zr_drop(state->tier->arena, &state->gradients);
    zr_engine_set_kept(engine, unit, state->place->home ? state->place->home(engine, unit) : NULL);
}

const struct zr_gradient_place zr_gradients_none = {.home = NULL},
                               zr_gradients_pooled = {.home = home_in_pool, .squares = squares},
                               zr_gradients_of_step = {.acquire = take_whole_block, .squares = squares},
                               zr_gradient_shards_of_step = {.acquire = take_block, .squares = squares};

/* ---- Paths --------------------------------------------------------------------------------------------- */

static zr_result all_reduce(struct zr_engine *engine, size_t unit)
{
    if (zr_engine_sends_momentum(engine)) /* which has the gradients in it */
        return ZR_OK;
    return zr_engine_sum_whole(
        engine, unit,
        &(struct zr_all_reduce){.buffer = engine->units[unit].written,
                                .shard_elements = engine->layout.units[unit].shard_elements,
                                .scale = 1.0f / (float)engine->world,
                                .type = engine->comm_type,
                                .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)});
}

/* Reduces to this rank's shard, or to rank 0, or adds to that. */
static zr_result reduce_scatter(struct zr_engine *engine, size_t unit, bool accumulate)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_unit_state *state = &engine->units[unit];
    bool wide = state->reduced.precision != engine->options.precision;
    const float scale = 1.0f / (float)engine->world;
    if (engine->options.root_owns)
        return zr_comm_reduce(engine->options.comm,
                              &(struct zr_reduce){.source = state->written,
                                                  .destination = state->reduced.at,
                                                  .elements = u->padded_elements,
                                                  .scale = scale,
                                                  .accumulate = accumulate,
                                                  .type = engine->comm_type,
                                                  .wide = wide,
                                                  .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)},
                              &state->reduce_ticket);
    size_t host_bytes = state->tier->offloaded * u->shard_elements * state->input_bytes;
    engine->moved_bytes += host_bytes;
    return zr_engine_sum_shards(
        engine, unit,
        &(struct zr_reduce_scatter){.source = state->written,
                                    .destination = state->reduced.at,
                                    .shard_elements = u->shard_elements,
                                    .scale = scale,
                                    .accumulate = accumulate,
                                    .type = engine->comm_type,
                                    .wide = wide,
                                    .host_bytes = host_bytes,
                                    .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)});
}

static zr_result scatter(struct zr_engine *engine, size_t unit)
{
    return reduce_scatter(engine, unit, false);
}

/* With one rank: adds gradients to the fp32 sums. */
static zr_result add_single_rank(struct zr_engine *engine, size_t unit)
{
    const void *own = engine->units[unit].written;
    return engine->options.kernels->sum(engine->options.context,
                                        &(struct zr_sum){.n = engine->layout.units[unit].padded_elements,
                                                         .from = &own,
                                                         .count = 1,
                                                         .precision = engine->options.precision,
                                                         .scale = 1,
                                                         .accumulate = engine->units[unit].accumulated > 0,
                                                         .to = engine->units[unit].reduced});
}

zr_result zr_engine_take_sums(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_unit_state *state = &engine->units[unit];
    if (state->sum_shard)
        return ZR_OK;
    zr_result result = zr_take(state->tier->arena, ZR_TAG_GRAD, zr_engine_shard(engine, unit).count,
                               sizeof(float), (void **)&state->sum_shard);
    zr_engine_set_kept(engine, unit, state->kept);
    return result == ZR_OK ? ZR_OK : zr_name_unit(result, u->unit.name);
}

/* Finds the destination of a reduction. */
static zr_result reserve(struct zr_engine *engine, size_t unit)
{
    const struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_gradient_do(state->place->reserve, engine, unit);
    return result == ZR_OK ? zr_gradient_do(state->take_sums, engine, unit) : result;
}

static zr_result reduce_to_sum(struct zr_engine *engine, size_t unit)
{
    return reduce_scatter(engine, unit, engine->units[unit].accumulated > 0);
}

/* Gathers the shards of sums after the last gradient, because stage 0 updates whole units. */
static zr_result gather_sums(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_engine_low_rank_end(engine, unit); /* it writes the sums when it ends */
    return result != ZR_OK ? result
                           : zr_comm_all_gather(
                                 engine->options.comm,
                                 &(struct zr_all_gather){
                                     .source = state->reduced.at,
                                     .destination = state->written,
                                     .shard_bytes = engine->layout.units[unit].shard_elements * sizeof(float),
                                     .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)},
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
                &(struct zr_all_reduce){.buffer = (char *)engine->units[unit].written +
                                                  p->offset * engine->gradient_bytes,
                                        .shard_elements = p->elements / zr_comm_world(engine->options.tensor),
                                        .scale = 1,
                                        .type = engine->comm_type,
                                        .label = ZR_COMM_LABEL_NONE},
                &ticket);
    }
    return result == ZR_OK && ticket > 0 ? zr_comm_wait(engine->options.tensor, ticket) : result;
}

/* ---- What the update reads ----------------------------------------------------------------------------- */

/* All-reduces in place over the ranks that share a unit. */
static zr_result add_shared(struct zr_engine *engine, struct zr_numbers numbers, size_t count)
{
    zr_comm *sharing = engine->options.sharing;
    zr_ticket ticket;
    zr_result result =
        zr_comm_all_reduce(sharing,
                           &(struct zr_all_reduce){.buffer = numbers.at,
                                                   .shard_elements = count / zr_comm_world(sharing),
                                                   .scale = 1,
                                                   .type = (enum zr_comm_type)numbers.precision,
                                                   .label = ZR_COMM_LABEL_NONE},
                           &ticket);
    return result == ZR_OK ? zr_comm_wait(sharing, ticket) : result;
}

static zr_result share_shard(struct zr_engine *engine, size_t unit)
{
    return add_shared(engine, engine->units[unit].reduced, engine->layout.units[unit].shard_elements);
}

/* The whole gradients, and the shard for the norm if it is not among them. */
static zr_result share_whole(struct zr_engine *engine, size_t unit)
{
    size_t elements = engine->layout.units[unit].padded_elements;
    struct zr_numbers whole = {engine->units[unit].kept, engine->options.precision};
    char *begin = whole.at, *end = begin + elements * engine->gradient_bytes,
         *shard = engine->units[unit].reduced.at;
    zr_result result = add_shared(engine, whole, elements);
    return result == ZR_OK && (shard < begin || shard >= end) ? share_shard(engine, unit) : result;
}

/* Starts to gather a unit's fp32 sums. There are two blocks, one in use and one for the next unit. */
static zr_result gather_whole_sums(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    zr_result result = zr_take(engine->options.arena, ZR_TAG_GRAD, u->padded_elements, sizeof(float),
                               (void **)&run->sums[unit % 2]);
    if (result != ZR_OK)
        return zr_name_unit(result, u->unit.name);
    return zr_comm_all_gather(engine->options.comm,
                              &(struct zr_all_gather){.source = engine->units[unit].reduced.at,
                                                      .destination = run->sums[unit % 2],
                                                      .shard_bytes = u->shard_elements * sizeof(float),
                                                      .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)},
                              &run->sums_tickets[unit % 2]);
}

static zr_result find_sums(struct zr_engine_run *run, size_t unit)
{
    run->gradients = (struct zr_numbers){run->sums[unit % 2], ZR_PRECISION_FP32};
    return zr_comm_wait(run->engine->options.comm, run->sums_tickets[unit % 2]);
}

static zr_result find_kept(struct zr_engine_run *run, size_t unit)
{
    run->gradients = (struct zr_numbers){run->engine->units[unit].kept, run->engine->options.precision};
    return ZR_OK;
}

/* Calls after a gradient. Gradients that are summed in place are summed over the tensor ranks once. */
static zr_gradient_call
    *const none[] = {NULL},
           *const alone[] = {sum_over_tensor, NULL}, *const pushed_each[] = {zr_served_push_each, NULL},
           *const pushed[] = {zr_served_push, NULL}, *const reduced[] = {sum_over_tensor, all_reduce, NULL},
           *const scattered[] = {sum_over_tensor, scatter, NULL},
           *const added[] = {sum_over_tensor, reserve, add_single_rank, NULL},
           *const summed[] = {sum_over_tensor, reserve, reduce_to_sum, NULL},
           *const gathered[] = {sum_over_tensor, reserve, reduce_to_sum, gather_sums, NULL},
           *const staged[] = {sum_over_tensor, reserve, reduce_to_sum, enqueue, NULL},
           *const left[] = {zr_engine_gradients_leave, enqueue, NULL},
           *const left_last[] = {sum_over_tensor, reserve, zr_engine_gradients_leave, enqueue, NULL},
           *const added_on_host[] = {sum_over_tensor, reserve, zr_engine_gradients_add, enqueue, NULL};

const struct zr_gradient_path
    zr_path_alone = {true, write_kept, none, alone, share_shard, NULL, NULL},
    zr_path_pushed = {false, write_kept, pushed_each, pushed_each, share_shard, NULL, NULL},
    zr_path_pushed_once = {true, write_kept, none, pushed, share_shard, NULL, NULL},
    zr_path_all_reduce = {true, write_kept, none, reduced, share_whole, find_kept, NULL},
    zr_path_scatter = {true, write_kept, none, scattered, share_shard, NULL, NULL},
    zr_path_sum_alone = {false, write_kept, added, added, share_shard, NULL, NULL},
    zr_path_sum = {false, write_kept, summed, summed, share_shard, NULL, NULL},
    zr_path_sum_gather = {false, write_kept, summed, gathered, share_whole, find_kept, NULL},
    zr_path_sum_used = {false, write_kept, summed, summed, share_shard, find_sums, gather_whole_sums},
    zr_path_staged = {false, stage, staged, staged, share_shard, NULL, NULL},
    zr_path_copied = {true, stage_and_return, left, left_last, share_shard, NULL, NULL},
    zr_path_added = {false, stage, added_on_host, added_on_host, share_shard, NULL, NULL};

zr_result zr_engine_reduce(zr_engine *engine, unsigned unit)
{
    if (!engine || unit >= engine->layout.units_count)
        return zr_engine_refuse_unit(engine, __func__, unit, engine);
    zr_result result = ZR_OK;
    struct zr_unit_state *state = &engine->units[unit];
    if (state->accumulated >= state->steps)
        return zr_fail(ZR_ERR_INVALID, "unit %s was reduced %u times in one step; it has %u gradients",
                       engine->layout.units[unit].unit.name, state->accumulated + 1, state->steps);
    if (!state->awaited)
        return zr_fail(ZR_ERR_INVALID, "unit %s was reduced before its gradients were acquired",
                       engine->layout.units[unit].unit.name);
    bool last = state->accumulated + 1 == state->steps;
    zr_gradient_call *const *call = last ? state->path->last : state->path->each;
    result = zr_engine_note_squares(engine, unit);
    for (; *call && result == ZR_OK; call++)
        result = (*call)(engine, unit);
    if (result != ZR_OK)
        return result;
    engine->brought = false;
    state->accumulated++;
    state->awaited = false;
    engine->awaited_units--;
    return state->ahead ? zr_engine_speculation_follow(engine, unit) : ZR_OK;
}
