/* served.c: see served.h. */
#include "zero/engine/served.h"

#include <math.h>

#include "zero/engine/gradients.h"
#include "zero/engine/update.h"

zr_result zr_served_pull(struct zr_engine *engine, size_t unit)
{
    const struct zr_servers *servers = &engine->options.servers;
    struct zr_unit_state *state = &engine->units[unit];
    if (!state->pulled)
        zr_state_store_end(&engine->state_tier->store);
    if (state->pulled || state->steps == 0 || engine->simulated)
        return ZR_OK;
    const struct zr_server_tensors to = zr_state_served_tensors(
        &engine->state_tier->store, unit, (struct zr_numbers){state->whole, engine->options.precision});
    zr_result result = servers->pull(servers->state, &to);
    state->pulled = result == ZR_OK;
    return result;
}

/* Pushes gradients whose squares, with those of earlier pushes of the step, are finite. */
static zr_result push(struct zr_engine *engine, size_t unit, double before)
{
    const struct zr_servers *servers = &engine->options.servers;
    const struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_gradient_do(state->place->squares, engine, unit);
    if (result != ZR_OK)
        return result;
    engine->squares[unit] += before;
    if (!isfinite(engine->squares[unit])) /* the end of the step reports the gradient */
        return ZR_OK;
    const struct zr_server_tensors from =
        zr_state_served_tensors(&engine->state_tier->store, unit, state->reduced);
    return servers->push(servers->state, &from);
}

zr_result zr_served_push(struct zr_engine *engine, size_t unit)
{
    return engine->simulated ? ZR_OK : push(engine, unit, 0);
}

zr_result zr_served_push_each(struct zr_engine *engine, size_t unit)
{
    if (engine->simulated)
        return ZR_OK;
    return push(engine, unit, engine->units[unit].accumulated > 0 ? engine->squares[unit] : 0);
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
    zr_state_store_end(&engine->state_tier->store);
    return result == ZR_OK ? given : result;
}
