/* snapshot.c: see image.h. */
#include <string.h>

#include "zero/engine/engine.h"

zr_result zr_snapshot_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_snapshot *snapshot = &engine->snapshot;
    if (!o->snapshots)
        return ZR_OK;
    zr_result result = zr_image_place(&snapshot->image, engine);
    if (result == ZR_OK)
        result = zr_image_find(&snapshot->image, engine);
    if (result == ZR_OK)
        result = zr_name_call(
            zr_take_block(o->arena, ZR_TAG_OPTIMIZER, 1, snapshot->image.bytes, (void **)&snapshot->memory),
            "engine", "snapshot");
    if (result == ZR_OK)
        result = zr_take(o->host_arena, ZR_TAG_OTHER, 1, sizeof *snapshot->view, (void **)&snapshot->view);
    if (result == ZR_OK)
        result = zr_take(o->host_arena, ZR_TAG_OTHER, engine->layout.units_count, sizeof *snapshot->units,
                         (void **)&snapshot->units);
    return result;
}

void zr_snapshot_close(struct zr_engine *engine)
{
    struct zr_snapshot *snapshot = &engine->snapshot;
    zr_drop(engine->options.host_arena, &snapshot->units);
    zr_drop(engine->options.host_arena, &snapshot->view);
    zr_drop(engine->options.arena, &snapshot->memory);
    zr_image_end(&snapshot->image, engine);
}

static zr_result copy(struct zr_engine *engine)
{
    const struct zr_snapshot *snapshot = &engine->snapshot;
    const struct zr_compute compute = engine->tiers[0].compute;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < snapshot->image.pieces_count && result == ZR_OK; i++) {
        const struct zr_image_piece *piece = &snapshot->image.pieces[i];
        result = compute.kernels->copy_bytes(compute.context,
                                             &(struct zr_copy_bytes){.bytes = piece->bytes,
                                                                     .from = piece->address,
                                                                     .to = snapshot->memory + piece->at,
                                                                     .waits = true});
    }
    return result;
}

/* Lets a unit of the view have its state in the image. */
static void point(const struct zr_snapshot *snapshot, size_t unit)
{
    struct zr_unit_state *state = &snapshot->units[unit];
    const size_t *at = snapshot->image.at[unit];
    char *values = snapshot->memory + at[0];
    state->tier = &snapshot->view->tiers[0];
    state->parameters_in = &snapshot->view->tiers[0];
    if (state->owned.master)
        state->owned.master = (void *)values;
    else
        state->owned.parameters.at = values;
    for (unsigned s = 0; s < ZR_SLOTS_MAX; s++)
        state->owned.slots[s] = state->owned.slots[s] ? snapshot->memory + at[s + 1] : NULL;
}

zr_result zr_engine_snapshot(struct zr_engine *engine, zr_comm *comm, struct zr_engine **out)
{
    struct zr_snapshot *snapshot = &engine->snapshot;
    struct zr_engine *view = snapshot->view;
    *out = NULL;
    if (!snapshot->memory)
        return zr_fail(ZR_ERR_INVALID, "%s() requires zr_engine_options.snapshots", __func__);
    zr_result result = zr_engine_check_between_steps(engine, __func__);
    if (result == ZR_OK)
        result = copy(engine);
    if (result != ZR_OK)
        return result;
    memcpy(view, engine, sizeof *view);
    memcpy(snapshot->units, engine->units, engine->layout.units_count * sizeof *snapshot->units);
    view->units = snapshot->units;
    view->options.comm = comm;
    view->kept = (struct zr_kept){0};
    /* A copy of the context, as a delayed update has one: only its constant fields are used. */
    snapshot->context = *engine->options.context;
    snapshot->context.parallel = (struct zr_parallel){.threads = 1};
    snapshot->context.flops = NULL;
    view->options.context = view->tiers[0].compute.context = &snapshot->context;
    view->state_tier = &view->tiers[0];
    for (size_t u = 0; u < engine->layout.units_count; u++)
        point(snapshot, u);
    *out = view;
    return ZR_OK;
}
