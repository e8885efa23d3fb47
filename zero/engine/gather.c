/* gather.c: whole parameters of units in use. For parameters that are kept whole, waits for the all-gather
 * after an update. A sharded unit is gathered into a block (tag gathered), at most two units at a time or as
 * many as the prefetch distance allows, and freed after its last release. */
#include "zero/engine/parameter_tier.h"
#include "zero/engine/compression.h"
#include "zero/engine/offload.h"
#include "zero/engine/served.h"
#include "zero/comm/copies.h"

bool zr_engine_gathers(const zr_engine *engine)
{
    return engine && engine->shards_parameters && engine->world > 1;
}

size_t zr_engine_offset(const zr_engine *engine, size_t parameter)
{
    if (!engine || parameter >= engine->layout.parameters_count)
        return SIZE_MAX;
    return engine->layout.parameters[parameter].offset;
}

static void drop_unit(struct zr_engine *engine, size_t unit)
{
    zr_drop(engine->options.arena, &engine->units[unit].gathered);
    engine->units[unit].whole = NULL;
    engine->gathered_units--;
}

/* Gathers a unit into its block. */
static zr_result fill_gathered(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_unit_state *state = &engine->units[unit];
    size_t shard_bytes = u->shard_elements * engine->parameter_bytes;
    struct zr_parameter_source source;
    if (zr_engine_has_secondary(engine, unit))
        return zr_engine_gather_secondary(engine, unit);
    zr_result result = state->parameters->get(engine, unit, &source);
    if (result != ZR_OK)
        return result;
    if (engine->world == 1) /* sharded on one rank: on the host */
        return zr_copies_start(
            engine->copies,
            &(struct zr_host_copy){
                .to = state->gathered, .from = source.shard, .bytes = shard_bytes, .before = source.before},
            &state->parameter_copy);
    size_t host_bytes = state->parameters->on_host * shard_bytes;
    engine->moved_bytes += host_bytes;
    result = zr_engine_await_parameters(engine, unit); /* wait for the shard */
    if (result != ZR_OK)
        return result;
    return zr_engine_gather_shards(
        engine, unit,
        &(struct zr_all_gather){.source = source.shard,
                                .destination = state->gathered,
                                .shard_bytes = shard_bytes,
                                .host_bytes = host_bytes,
                                /* A shard in memory is valid until the step synchronizes before the shard's
                                   update; a slot is reused earlier. */
                                .source_stays = !source.before,
                                .before = source.before,
                                .label = ZR_ENGINE_LABEL((unsigned)unit, ZR_LABEL_PARAMETERS),
                                .type = engine->comm_type});
}

static zr_result start_gathering(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_take(engine->options.arena, ZR_TAG_GATHERED, u->padded_elements,
                               engine->parameter_bytes, &state->gathered);
    if (result != ZR_OK)
        return zr_name_unit(result, u->unit.name);
    state->whole = state->gathered;
    engine->gathered_units++;
    result = fill_gathered(engine, unit);
    if (result != ZR_OK) /* a failed gather leaves no operation that writes to the block */
        drop_unit(engine, unit);
    return result;
}

/* The wait also covers the gather of whole parameters after an update. A failed gather keeps its ticket, so
 * later calls fail too. */
zr_result zr_engine_await_gather(struct zr_engine *engine, size_t unit)
{
    zr_result read = zr_engine_parameter_await(engine, unit);
    zr_result copied = zr_engine_await_parameters(engine, unit);
    zr_result result = zr_engine_await_shards(engine, unit);
    zr_engine_parameter_let_go(engine, unit);
    return read != ZR_OK ? read : copied != ZR_OK ? copied : result;
}

zr_result zr_engine_drop_gathered(struct zr_engine *engine)
{
    zr_result first = ZR_OK;
    for (size_t u = 0; engine->gathered_units > 0 && u < engine->layout.units_count; u++) {
        struct zr_unit_state *state = &engine->units[u];
        if (!state->gathered || state->references > 0)
            continue;
        zr_result result = zr_engine_await_gather(engine, u);
        first = first == ZR_OK ? result : first;
        drop_unit(engine, u);
    }
    return first;
}

zr_result zr_engine_drop_parameters(struct zr_engine *engine)
{
    zr_engine_forget_secondary(engine);
    return zr_engine_drop_gathered(engine);
}

zr_result zr_engine_prefetch(zr_engine *engine, unsigned unit)
{
    if (!engine || unit >= engine->layout.units_count)
        return zr_engine_refuse_unit(engine, __func__, unit, engine);
    const struct zr_unit_state *state = &engine->units[unit];
    if (state->whole || engine->gathered_units >= engine->gathered_max)
        return ZR_OK;
    return start_gathering(engine, unit);
}

/* Makes space for one more gathered unit by freeing units that were gathered ahead but not used. */
static zr_result make_space(struct zr_engine *engine)
{
    return engine->gathered_units < engine->gathered_max ? ZR_OK : zr_engine_drop_gathered(engine);
}

zr_result zr_engine_gather(zr_engine *engine, unsigned unit, const void **base)
{
    if (!engine || !base || unit >= engine->layout.units_count)
        return zr_engine_refuse_unit(engine, __func__, unit, base);
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = ZR_OK;
    if (state->references == 0 && engine->used_units >= engine->gathered_max)
        return zr_fail(ZR_ERR_INVALID, "cannot gather unit %s: %u other units are in use; release one first",
                       engine->layout.units[unit].unit.name, engine->gathered_max);

    if (!state->whole) {
        result = make_space(engine);
        if (result == ZR_OK)
            result = start_gathering(engine, unit);
    }
    if (result == ZR_OK && zr_engine_is_served(engine))
        result = zr_served_pull(engine, unit);
    if (result == ZR_OK)
        result = zr_engine_await_gather(engine, unit);
    if (result != ZR_OK)
        return result;
    if (state->references++ == 0)
        engine->used_units++;
    *base = state->whole;
    return ZR_OK;
}

void zr_engine_release(zr_engine *engine, unsigned unit)
{
    if (!engine || unit >= engine->layout.units_count) {
        zr_engine_refuse_unit(engine, __func__, unit, engine);
        return;
    }
    struct zr_unit_state *state = &engine->units[unit];
    if (state->references == 0) {
        zr_fail(ZR_ERR_INVALID, "unit %s is released more often than it was gathered",
                engine->layout.units[unit].unit.name);
        return;
    }
    if (--state->references > 0)
        return;
    engine->used_units--;
    if (state->gathered)
        drop_unit(engine, unit);
}
