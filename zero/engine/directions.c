/* directions.c: directions of Muon's matrices. Each rank makes those of the elements that it updates; the
 * ranks gather them, and each makes the whole matrices orthogonal, so that all have the same bits. */
#include "zero/engine/actions.h"

/* The directions of the elements that this rank updates; zeros elsewhere. */
static zr_result make_own(struct zr_engine_run *run, struct zr_compute compute, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    const struct zr_owned *owned = &run->owned;
    zr_result result = compute.kernels->clear(
        compute.context, &(struct zr_clear){u->padded_elements * sizeof(float), run->prepared.directions});
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
                                        .direction = run->prepared.directions + overlap.offset});
    }
    return result;
}

static zr_result gather(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    size_t shard = engine->layout.units[unit].shard_elements;
    zr_ticket ticket;
    zr_result result =
        zr_comm_all_gather(engine->options.comm,
                           &(struct zr_all_gather){.source = run->prepared.directions + engine->rank * shard,
                                                   .destination = run->prepared.directions,
                                                   .shard_bytes = shard * sizeof(float),
                                                   .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)},
                           &ticket);
    return result == ZR_OK ? zr_comm_wait(engine->options.comm, ticket) : result;
}

static zr_result orthogonalize(struct zr_engine *engine, struct zr_compute compute,
                               const struct zr_layout_parameter *p, float *x)
{
    struct zr_orthogonalize call = {.rows = p->parameter.shape[0], .columns = p->parameter.shape[1], .x = x};
    call.workspace_bytes = compute.kernels->orthogonalize_bytes(&call);
    zr_result result =
        zr_take(engine->options.arena, ZR_TAG_WORKSPACE, call.workspace_bytes, 1, &call.workspace);
    if (result == ZR_OK)
        result = compute.kernels->orthogonalize(compute.context, &call);
    zr_drop(engine->options.arena, &call.workspace);
    return result;
}

zr_result zr_engine_direct(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_compute compute = zr_engine_updater(engine, unit, &run->update);
    struct zr_prepared *prepared = &run->prepared;
    prepared->arena = engine->options.arena;
    zr_result result =
        zr_take(prepared->arena, ZR_TAG_WORKSPACE, u->padded_elements, sizeof(float), &prepared->memory);
    prepared->directions = prepared->memory;
    if (result == ZR_OK)
        result = make_own(run, compute, unit);
    if (result == ZR_OK && run->owned.to - run->owned.from < u->padded_elements)
        result = gather(run, unit);
    for (size_t i = 0; i < u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        if (p->needs_whole)
            result = orthogonalize(engine, compute, p, run->prepared.directions + p->offset);
    }
    return result;
}
