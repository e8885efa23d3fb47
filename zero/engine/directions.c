/* directions.c: directions of Muon's matrices. Each rank makes those of the elements that it updates; the
 * ranks gather them, and each makes the whole matrices orthogonal, so that all have the same bits. Matrices
 * are gathered and multiplied on the device; for a unit whose state is on the host, this rank's directions
 * are copied there and back. */
#include "zero/engine/actions.h"
#include "zero/engine/offload.h"

/* Writes the directions of the elements that this rank updates to `own`; zeros where there are none. */
static zr_result make_own(struct zr_engine_run *run, size_t unit, float *own)
{
    struct zr_engine *engine = run->engine;
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    const struct zr_owned *owned = &run->owned;
    struct zr_compute compute = zr_engine_updater(engine, unit, &run->update);
    zr_result result = compute.kernels->clear(
        compute.context, &(struct zr_clear){(owned->to - owned->from) * sizeof *own, own});
    for (size_t i = 0; i < u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        struct zr_overlap overlap;
        if (!p->needs_whole || !zr_layout_overlap(p, owned->from, owned->to, &overlap))
            continue;
        size_t skip = overlap.offset - owned->from;
        result = compute.kernels->muon_direction(
            compute.context,
            &(struct zr_muon_direction){.n = overlap.count,
                                        .gradient = zr_numbers_at(run->gradients, skip),
                                        .gradient_scale = run->update.gradient_scale,
                                        .momentum_factor = engine->options.optimizer.momentum_factor,
                                        .weight = run->update.weight,
                                        .momentum = zr_owned_slot(engine, p, owned, 0, skip),
                                        .direction = own + skip});
    }
    return result;
}

static zr_result gather(struct zr_engine *engine, size_t unit, float *whole)
{
    size_t shard = engine->layout.units[unit].shard_elements;
    zr_ticket ticket;
    zr_result result =
        zr_comm_all_gather(engine->options.comm,
                           &(struct zr_all_gather){.source = whole + engine->rank * shard,
                                                   .destination = whole,
                                                   .shard_bytes = shard * sizeof *whole,
                                                   .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)},
                           &ticket);
    return result == ZR_OK ? zr_comm_wait(engine->options.comm, ticket) : result;
}

static zr_result orthogonalize(struct zr_engine *engine, const struct zr_layout_parameter *p, float *x)
{
    const struct zr_compute *device = &engine->tiers[0].compute;
    struct zr_orthogonalize call = {.rows = p->parameter.shape[0], .columns = p->parameter.shape[1], .x = x};
    call.workspace_bytes = device->kernels->orthogonalize_bytes(&call);
    zr_result result =
        zr_take(engine->options.arena, ZR_TAG_WORKSPACE, call.workspace_bytes, 1, &call.workspace);
    if (result == ZR_OK)
        result = device->kernels->orthogonalize(device->context, &call);
    zr_drop(engine->options.arena, &call.workspace);
    return result;
}

/* Makes the whole matrices of a unit from this rank's directions at `own`. */
static zr_result make_whole(struct zr_engine_run *run, size_t unit, float *whole)
{
    struct zr_engine *engine = run->engine;
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    zr_result result =
        run->owned.to - run->owned.from < u->padded_elements ? gather(engine, unit, whole) : ZR_OK;
    for (size_t i = 0; i < u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        if (p->needs_whole)
            result = orthogonalize(engine, p, whole + p->offset);
    }
    return result;
}

/* Copies between the host and the device, and makes the host wait; nothing if both are one place. */
static zr_result carry(struct zr_engine *engine, float *to, const float *from, size_t count)
{
    zr_ticket ticket = 0;
    if (to == from)
        return ZR_OK;
    zr_result result = zr_copies_start(
        engine->copies, &(struct zr_host_copy){.to = to, .from = from, .bytes = count * sizeof *to}, &ticket);
    return result == ZR_OK ? zr_engine_host_waits_for(engine, &ticket) : result;
}

zr_result zr_engine_direct(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    struct zr_prepared *prepared = &run->prepared;
    const struct zr_state_tier *tier = engine->units[unit].tier;
    const size_t from = run->owned.from, count = run->owned.to - from;
    float *whole = NULL; /* of all ranks, on the device */
    float *own;          /* of this rank, on the host; NULL: among them */
    zr_result result =
        zr_take(tier->arena, ZR_TAG_WORKSPACE, tier->offloaded * count, sizeof *own, (void **)&own);
    if (result == ZR_OK)
        result = zr_take(engine->options.arena, ZR_TAG_WORKSPACE, engine->layout.units[unit].padded_elements,
                         sizeof *whole, (void **)&whole);
    if (result == ZR_OK) {
        prepared->directions = own ? own : whole + from;
        result = make_own(run, unit, prepared->directions);
    }
    if (result == ZR_OK)
        result = carry(engine, whole + from, prepared->directions, count);
    if (result == ZR_OK)
        result = make_whole(run, unit, whole);
    if (result == ZR_OK)
        result = carry(engine, prepared->directions, whole + from, count);
    prepared->arena = tier->arena;
    prepared->memory = own ? own : whole;
    if (own)
        zr_drop(engine->options.arena, &whole);
    return result;
}
