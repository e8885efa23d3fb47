/* served.c: see served.h. */
#include "zero/engine/served.h"

#include <math.h>

#include "zero/comm/take.h"
#include "zero/engine/gradients.h"
#include "zero/engine/update.h"

/* Describes the tensors of a unit whose values are at `values`. */
static struct zr_server_tensors tensors_of(const struct zr_state_store *store, size_t unit,
                                           struct zr_numbers values)
{
    const struct zr_layout *layout = store->options.layout;
    const struct zr_layout_unit *u = &layout->units[unit];
    for (size_t i = 0; i < u->parameters_count; i++) {
        const struct zr_layout_parameter *p = &layout->parameters[u->first_parameter + i];
        store->tensors[i] =
            (struct zr_server_tensor){u->first_parameter + i, p->elements, zr_numbers_at(values, p->offset)};
    }
    return (struct zr_server_tensors){store->tensors, u->parameters_count};
}

/* ---- A step -------------------------------------------------------------------------------------------- */

zr_result zr_served_pull(struct zr_engine *engine, size_t unit)
{
    const struct zr_servers *servers = &engine->options.servers;
    struct zr_unit_state *state = &engine->units[unit];
    if (state->pulled || state->steps == 0 || engine->simulated)
        return ZR_OK;
    const struct zr_server_tensors to = tensors_of(
        &engine->state_tier->store, unit, (struct zr_numbers){state->whole, engine->options.precision});
    zr_result result = servers->pull(servers->state, &to);
    state->pulled = result == ZR_OK;
    return result;
}

zr_result zr_served_push(struct zr_engine *engine, size_t unit)
{
    const struct zr_servers *servers = &engine->options.servers;
    const struct zr_unit_state *state = &engine->units[unit];
    if (engine->simulated)
        return ZR_OK;
    double *squares = &engine->squares[unit], before = state->accumulated > 0 ? *squares : 0;
    zr_result result = zr_gradient_do(state->place->squares, engine, unit);
    if (!state->path->adds)
        *squares += before;
    if (result != ZR_OK || !isfinite(*squares)) /* the end of the step reports the gradient */
        return result;
    const struct zr_server_tensors from = tensors_of(&engine->state_tier->store, unit, state->reduced);
    return servers->push(servers->state, &from);
}

zr_result zr_served_clock(struct zr_engine *engine, float rate)
{
    const struct zr_servers *servers = &engine->options.servers;
    for (size_t u = 0; u < engine->layout.units_count; u++)
        engine->units[u].pulled = false;
    return engine->simulated ? ZR_OK : servers->clock(servers->state, rate);
}

zr_result zr_served_touch(struct zr_engine *engine)
{
    struct zr_owned owned;
    size_t largest = 0, most = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_layout_unit *unit = &engine->layout.units[u];
        size_t floats =
            zr_engine_is_frozen(engine, u) ? 0 : (1 + unit->optimizer->slots_count) * unit->padded_elements;
        largest = floats > most ? u : largest;
        most = floats > most ? floats : most;
    }
    if (!zr_engine_is_served(engine))
        return ZR_OK;
    zr_result result = zr_engine_take_owned(engine, largest, &owned);
    zr_result given = zr_engine_give_owned(engine, largest, false);
    return result == ZR_OK ? given : result;
}

/* ---- The state of a taken unit ------------------------------------------------------------------------- */

static zr_result served_open(struct zr_state_store *store)
{
    const struct zr_layout *layout = store->options.layout;
    size_t most = 0;
    for (size_t u = 0; u < layout->units_count; u++)
        most = layout->units[u].parameters_count > most ? layout->units[u].parameters_count : most;
    return zr_take(store->options.host_arena, ZR_TAG_OTHER, most, sizeof *store->tensors,
                   (void **)&store->tensors);
}

static void served_close(struct zr_state_store *store)
{
    zr_drop(store->options.arena, &store->taken);
    zr_drop(store->options.host_arena, &store->tensors);
}

typedef zr_result move_call(void *state, unsigned kind, const struct zr_server_tensors *tensors);

/* Moves all state of the taken unit. */
static zr_result move(const struct zr_state_store *store, size_t unit, move_call *call)
{
    const struct zr_layout_unit *u = &store->options.layout->units[unit];
    zr_result result = ZR_OK;
    for (unsigned kind = 0; kind <= u->optimizer->slots_count && result == ZR_OK && !store->options.simulated;
         kind++) {
        const struct zr_server_tensors tensors = tensors_of(
            store, unit, (struct zr_numbers){store->taken + kind * u->padded_elements, ZR_PRECISION_FP32});
        result = call(store->options.servers->state, kind, &tensors);
    }
    return result;
}

static zr_result served_give(struct zr_state_store *store, size_t unit, bool changed)
{
    zr_result result = changed && store->taken ? move(store, unit, store->options.servers->write) : ZR_OK;
    zr_drop(store->options.arena, &store->taken);
    return result;
}

static zr_result served_take(struct zr_state_store *store, size_t unit, struct zr_state_view *out)
{
    const struct zr_layout_unit *u = &store->options.layout->units[unit];
    const unsigned slots = u->optimizer->slots_count;
    zr_result result = zr_take(store->options.arena, ZR_TAG_OFFLOAD, (1 + (size_t)slots) * u->padded_elements,
                               sizeof *store->taken, (void **)&store->taken);
    if (result != ZR_OK)
        return zr_name_unit(result, u->unit.name);
    *out = (struct zr_state_view){.master = store->taken};
    for (unsigned s = 0; s < slots; s++)
        out->slots[s] = store->taken + (1 + s) * u->padded_elements;
    result = move(store, unit, store->options.servers->read);
    if (result != ZR_OK) /* the caller may give the unit back */
        zr_drop(store->options.arena, &store->taken);
    return result;
}

const struct zr_state_store_table zr_state_store_served = {.name = "servers",
                                                           .open = served_open,
                                                           .take = served_take,
                                                           .give = served_give,
                                                           .close = served_close,
                                                           .wait_by_clock = zr_comm_clock_wait_until};
