/* state_served.c: the store of state that parameter servers keep: a unit is in memory while it is taken. See
 * state_store.h. */
#include "zero/engine/state_store.h"

#include "zero/comm/take.h"

struct zr_server_tensors zr_state_served_tensors(const struct zr_state_store *store, size_t unit,
                                                 struct zr_numbers values)
{
    const struct zr_layout *layout = store->options.layout;
    const struct zr_layout_unit *u = &layout->units[unit];
    for (size_t i = 0; i < u->parameters_count; i++) {
        const struct zr_layout_parameter *p = &layout->parameters[u->first_parameter + i];
        store->tensors[i] = (struct zr_server_tensor){
            u->first_parameter + i,
            p->elements,
            {(char *)values.at + p->offset * zr_precision_bytes(values.precision), values.precision}};
    }
    return (struct zr_server_tensors){store->tensors, u->parameters_count};
}

/* Forgets the state of a unit that was given back unchanged. */
static zr_result served_end(struct zr_state_store *store)
{
    zr_drop(store->options.arena, &store->taken);
    store->held = SIZE_MAX;
    return ZR_OK;
}

static zr_result served_open(struct zr_state_store *store)
{
    const struct zr_layout *layout = store->options.layout;
    size_t most = 0;
    store->held = SIZE_MAX;
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
        const struct zr_server_tensors tensors = zr_state_served_tensors(
            store, unit, (struct zr_numbers){store->taken + kind * u->padded_elements, ZR_PRECISION_FP32});
        result = call(store->options.servers->state, kind, &tensors);
    }
    return result;
}

/* A save takes a unit once for each of its tensors, so its state stays until another is taken, or
 * served_end(). */
static zr_result served_give(struct zr_state_store *store, size_t unit, bool changed)
{
    if (!changed)
        return ZR_OK;
    zr_result result = store->taken ? move(store, unit, store->options.servers->write) : ZR_OK;
    served_end(store);
    return result;
}

static zr_result read_unit(struct zr_state_store *store, size_t unit)
{
    const struct zr_layout_unit *u = &store->options.layout->units[unit];
    const size_t floats = (1 + (size_t)u->optimizer->slots_count) * u->padded_elements;
    served_end(store);
    zr_result result =
        zr_take(store->options.arena, ZR_TAG_OFFLOAD, floats, sizeof *store->taken, (void **)&store->taken);
    if (result != ZR_OK)
        return zr_name_unit(result, u->unit.name);
    result = move(store, unit, store->options.servers->read);
    if (result != ZR_OK)
        served_end(store); /* the caller may give the unit back */
    else
        store->held = unit;
    return result;
}

static zr_result served_take(struct zr_state_store *store, size_t unit, struct zr_state_view *out)
{
    const struct zr_layout_unit *u = &store->options.layout->units[unit];
    zr_result result = store->held == unit ? ZR_OK : read_unit(store, unit);
    *out = (struct zr_state_view){.master = store->taken};
    for (unsigned s = 0; s < u->optimizer->slots_count && result == ZR_OK; s++)
        out->slots[s] = store->taken + (1 + s) * u->padded_elements;
    return result;
}

const struct zr_state_store_table zr_state_store_served = {.name = "servers",
                                                           .open = served_open,
                                                           .take = served_take,
                                                           .give = served_give,
                                                           .end = served_end,
                                                           .close = served_close,
                                                           .wait_by_clock = zr_comm_clock_wait_until};
