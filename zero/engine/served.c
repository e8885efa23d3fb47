/* served.c: see served.h. */
#include "zero/engine/served.h"

#include <math.h>

#include "zero/comm/copies.h"
#include "zero/engine/gradients.h"
#include "zero/engine/update.h"

/* Units that are pulled before the unit that needs them, in the order of forward: several, since a small unit
 * takes a round trip as well. */
enum { PULLS_AHEAD = 3 };

/* ---- Calls in the queue's thread ----------------------------------------------------------------------- */

static struct zr_server_tensors tensors_of(const struct zr_unit_state *state, struct zr_numbers values)
{
    const struct zr_engine *engine = state->engine;
    return zr_state_served_tensors(&engine->state_tier->store, (size_t)(state - engine->units), values);
}

static zr_result pull(void *task_state, struct zr_kernel_context *context)
{
    const struct zr_unit_state *state = task_state;
    const struct zr_servers *servers = &state->engine->options.servers;
    const struct zr_server_tensors to =
        tensors_of(state, (struct zr_numbers){state->whole, state->engine->options.precision});
    (void)context;
    return servers->pull(servers->state, &to);
}

static zr_result push(void *task_state, struct zr_kernel_context *context)
{
    const struct zr_unit_state *state = task_state;
    const struct zr_servers *servers = &state->engine->options.servers;
    const struct zr_server_tensors from = tensors_of(state, state->reduced);
    (void)context;
    return servers->push(servers->state, &from);
}

struct step_end {
    const struct zr_servers *servers;
    float rate;
};

static zr_result end_step(void *task_state, struct zr_kernel_context *context)
{
    const struct step_end *end = task_state;
    (void)context;
    return end->servers->clock(end->servers->state, end->rate);
}

/* ---- Calls of a step ----------------------------------------------------------------------------------- */

static zr_result start_pull(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    if (state->pulled || state->steps == 0 || engine->simulated)
        return ZR_OK;
    state->engine = engine;
    state->parameter_task = (struct zr_copies_task){.run = pull, .state = state};
    zr_result result = zr_copies_run(engine->copies, &state->parameter_task, &state->parameter_copy);
    state->pulled = result == ZR_OK;
    return result;
}

zr_result zr_served_pull(struct zr_engine *engine, size_t unit)
{
    zr_result result = ZR_OK;
    if (!engine->units[unit].pulled)
        zr_state_store_end(&engine->state_tier->store);
    for (size_t u = unit; u <= unit + PULLS_AHEAD && u < engine->layout.units_count && result == ZR_OK; u++)
        result = start_pull(engine, u);
    return result;
}

/* Starts to push gradients whose squares, with those of earlier pushes of the step, are finite. */
static zr_result start_push(struct zr_engine *engine, size_t unit, double before)
{
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_gradient_do(state->place->squares, engine, unit);
    if (result != ZR_OK)
        return result;
    engine->squares[unit] += before;
    if (!isfinite(engine->squares[unit])) /* the end of the step reports the gradient */
        return ZR_OK;
    state->engine = engine;
    state->gradient_task = (struct zr_copies_task){.run = push, .state = state};
    return zr_copies_run(engine->copies, &state->gradient_task, &state->gradient_copy);
}

zr_result zr_served_push(struct zr_engine *engine, size_t unit)
{
    return engine->simulated ? ZR_OK : start_push(engine, unit, 0);
}

zr_result zr_served_push_each(struct zr_engine *engine, size_t unit)
{
    if (engine->simulated)
        return ZR_OK;
    return start_push(engine, unit, engine->units[unit].accumulated > 0 ? engine->squares[unit] : 0);
}

zr_result zr_served_await(struct zr_engine *engine)
{
    return zr_engine_is_served(engine) ? zr_comm_synchronize(engine->copies) : ZR_OK;
}

zr_result zr_served_clock(struct zr_engine *engine, float rate)
{
    struct step_end end = {&engine->options.servers, rate};
    struct zr_copies_task task = {.run = end_step, .state = &end};
    zr_ticket ticket;
    for (size_t u = 0; u < engine->layout.units_count; u++)
        engine->units[u].pulled = false;
    if (engine->simulated)
        return ZR_OK;
    zr_result result = zr_copies_run(engine->copies, &task, &ticket);
    return result == ZR_OK ? zr_comm_wait(engine->copies, ticket) : result;
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
