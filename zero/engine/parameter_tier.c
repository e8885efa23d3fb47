/* parameter_tier.c: parameters in memory: see parameter_tier.h. */
#include "zero/engine/parameter_tier.h"

#include "zero/comm/copies.h"
#include "zero/engine/offload.h"
#include "zero/engine/update.h"

static zr_result get_shard(struct zr_engine *engine, size_t unit, struct zr_parameter_source *out)
{
    *out = (struct zr_parameter_source){engine->units[unit].owned.parameters.at, NULL};
    return ZR_OK;
}

static zr_result put_shard(struct zr_engine *engine, size_t unit, const void *from)
{
    struct zr_unit_state *state = &engine->units[unit];
    return zr_copies_start(
        engine->copies,
        &(struct zr_host_copy){.to = state->owned.parameters.at,
                               .from = from,
                               .bytes = engine->layout.units[unit].shard_elements * engine->parameter_bytes,
                               .same_memory = state->parameters->on_host},
        &state->parameter_copy);
}

const struct zr_parameter_tier zr_parameters_masters = {.get = get_shard, .put = put_shard};

/* In two bytes the window is the parameters' own place. In fp32 the parameters are a copy of the masters,
 * which an earlier copy may still read. */
static zr_result open_in_place(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                               struct zr_window *out)
{
    if (owned->parameters.precision != ZR_PRECISION_FP32)
        out->values = zr_numbers_at(owned->parameters, out->from);
    else if (out->from == 0 && engine->units[unit].parameter_copy > 0)
        return zr_engine_await_masters(engine, unit);
    return ZR_OK;
}

const struct zr_parameter_tier zr_parameters_in_place = {
    .get = get_shard, .open = open_in_place, .put = put_shard};

/* ---- Uploaded ------------------------------------------------------------------------------------------ */

/* In two bytes the window is a bounce buffer. */
static zr_result open_bounce(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                             struct zr_window *out)
{
    zr_result result = open_in_place(engine, unit, owned, out);
    if (!out->values.at)
        return result;
    if (out->count > engine->bounce_elements)
        out->count = engine->bounce_elements;
    unsigned turn = engine->bounce_turn++ % ZR_BOUNCE_BUFFERS;
    out->stale = true;
    out->values.at = engine->bounce + turn * engine->bounce_elements * engine->parameter_bytes;
    return zr_engine_host_waits_for(engine, &engine->bounce_tickets[turn]);
}

static zr_result upload(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                        const struct zr_window *window)
{
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_copies_start(
        engine->copies,
        &(struct zr_host_copy){.to = zr_numbers_at(owned->parameters, window->from).at,
                               .from = window->values.at ? window->values.at : owned->master + window->from,
                               .bytes = window->count * engine->parameter_bytes},
        &state->parameter_copy);
    if (window->values.at) /* the current bounce buffer */
        engine->bounce_tickets[(engine->bounce_turn - 1) % ZR_BOUNCE_BUFFERS] = state->parameter_copy;
    return result;
}

const struct zr_parameter_tier zr_parameters_uploaded = {.get = get_shard,
                                                         .open = open_bounce,
                                                         .close = upload,
                                                         .put = put_shard,
                                                         .restore = zr_engine_round_masters};

/* ---- On the host --------------------------------------------------------------------------------------- */

zr_result zr_engine_copy_masters(struct zr_engine *engine, const struct zr_owned *owned,
                                 const struct zr_window *window, void *to)
{
    struct zr_compute compute = engine->state_tier->compute;
    return window->values.at
               ? ZR_OK
               : compute.kernels->convert(
                     compute.context,
                     &(struct zr_convert){.n = window->count,
                                          .from = {owned->master + window->from, ZR_PRECISION_FP32},
                                          .to = {to, ZR_PRECISION_FP32}});
}

static zr_result close_hosted(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                              const struct zr_window *window)
{
    (void)unit;
    return zr_engine_copy_masters(engine, owned, window, zr_numbers_at(owned->parameters, window->from).at);
}

const struct zr_parameter_tier zr_parameters_copied = {
    .get = get_shard, .open = open_in_place, .close = close_hosted, .put = put_shard};

const struct zr_parameter_tier zr_parameters_hosted = {.on_host = true,
                                                       .get = get_shard,
                                                       .open = open_in_place,
                                                       .close = close_hosted,
                                                       .put = put_shard,
                                                       .restore = zr_engine_round_masters};
