/* outer.c: the synchronisation of groups: see outer.h. */
#include "zero/engine/outer.h"

#include <string.h>

#include "zero/comm/comm.h"
#include "zero/engine/update.h"

/* ---- Open and close ------------------------------------------------------------------------------------ */

static unsigned groups_of(const struct zr_engine *engine)
{
    return zr_comm_world(engine->options.outer.comm);
}

static bool packs(const struct zr_engine *engine)
{
    return engine->options.outer.packing != ZR_PACKING_ONEBIT;
}

/* Steps between the synchronisations of two fragments. */
static unsigned interval(const struct zr_engine *engine)
{
    return engine->options.outer.period / engine->options.outer.fragments;
}

/* Finds the units' fragments and places. Without a delay two units take turns in the pool. */
static size_t place_units(struct zr_engine *engine)
{
    const unsigned groups = groups_of(engine), fragments = engine->options.outer.fragments;
    const size_t step = packs(engine) ? ZR_PACK_BLOCK : 1;
    size_t elements = 0, largest = 0, filled[ZR_OUTER_FRAGMENTS_MAX] = {0};
    unsigned number = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_outer_unit *unit = &engine->outer.units[u];
        if (zr_engine_is_frozen(engine, u))
            continue;
        size_t shard = (zr_unit_owned(&engine->units[u]) + groups - 1) / groups;
        unit->synchronised = true;
        unit->fragment = number++ % fragments;
        unit->shard = (shard + step - 1) / step * step;
        unit->at = filled[unit->fragment];
        filled[unit->fragment] += groups * unit->shard;
        elements = filled[unit->fragment] > elements ? filled[unit->fragment] : elements;
        largest = groups * unit->shard > largest ? groups * unit->shard : largest;
    }
    if (engine->options.outer.delay > 0 || elements <= 2 * largest)
        return elements;
    memset(filled, 0, sizeof filled);
    for (size_t u = 0; u < engine->layout.units_count; u++)
        if (engine->outer.units[u].synchronised)
            engine->outer.units[u].at = filled[engine->outer.units[u].fragment]++ % 2 * largest;
    return 2 * largest;
}

static zr_result open_compressor(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    size_t staging = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        size_t sum =
            zr_compressed_sum_bytes(o->outer.packing, engine->outer.units[u].shard, 1, groups_of(engine));
        staging = sum > staging ? sum : staging; /* that of a gather is smaller */
    }
    return zr_compressor_init(&engine->outer.compressor,
                              &(struct zr_compressor_options){.comm = o->outer.comm,
                                                              .arena = o->arena,
                                                              .host_arena = o->host_arena,
                                                              .kernels = o->kernels,
                                                              .context = o->context,
                                                              .staging_bytes = staging});
}

zr_result zr_outer_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    const size_t count = engine->layout.units_count;
    if (o->outer.period == 0)
        return ZR_OK;
    zr_result result = zr_take(o->host_arena, ZR_TAG_OTHER, count, sizeof *engine->outer.units,
                               (void **)&engine->outer.units);
    if (result != ZR_OK)
        return result;
    memset(engine->outer.units, 0, count * sizeof *engine->outer.units);
    result = zr_take(o->arena, ZR_TAG_COMM, place_units(engine), sizeof *engine->outer.pool,
                     (void **)&engine->outer.pool);
    return result == ZR_OK && packs(engine) ? open_compressor(engine) : result;
}

void zr_outer_close(struct zr_engine *engine)
{
    struct zr_outer_state *outer = &engine->outer;
    for (size_t u = 0; outer->units && u < engine->layout.units_count; u++)
        zr_comm_wait(engine->options.outer.comm, outer->units[u].ticket); /* even if a peer was lost */
    zr_compressor_fini(&outer->compressor);
    zr_drop(engine->options.arena, &outer->pool);
    zr_drop(engine->options.host_arena, &outer->units);
}

/* ---- One unit ------------------------------------------------------------------------------------------ */

/* The arguments of the outer step for the elements that this rank updates. */
static struct zr_outer_step step_of(const struct zr_engine *engine, size_t unit, const struct zr_owned *owned)
{
    const struct zr_optimizer *optimizer = engine->layout.units[unit].optimizer;
    const struct zr_outer *o = &engine->options.outer;
    return (struct zr_outer_step){.n = owned->to - owned->from,
                                  .rate = o->rate,
                                  .momentum_factor = o->momentum,
                                  .mix = o->mix,
                                  .gradient = engine->outer.pool + engine->outer.units[unit].at,
                                  .anchor = owned->slots[optimizer->slots_count - 2],
                                  .master = owned->master,
                                  .momentum = owned->slots[optimizer->slots_count - 1]};
}

/* Starts to replace the unit's differences by their mean over groups. */
static zr_result send(struct zr_engine *engine, size_t unit)
{
    struct zr_outer_unit *own = &engine->outer.units[unit];
    zr_comm *comm = engine->options.outer.comm;
    float *buffer = engine->outer.pool + own->at, mean = 1.0f / (float)groups_of(engine);
    if (!packs(engine))
        return zr_comm_all_reduce(
            comm,
            &(struct zr_all_reduce){
                .buffer = buffer, .shard_elements = own->shard, .scale = mean, .label = ZR_COMM_LABEL_NONE},
            &own->ticket);
    const struct zr_numbers all = {buffer, ZR_PRECISION_FP32},
                            mine = {buffer + zr_comm_rank(comm) * own->shard, ZR_PRECISION_FP32};
    own->sum = (struct zr_compressed){.packing = engine->options.outer.packing,
                                      .shard_elements = own->shard,
                                      .from = all,
                                      .to = mine,
                                      .scale = mean,
                                      .label = ZR_COMM_LABEL_NONE};
    own->gather = (struct zr_compressed){.packing = engine->options.outer.packing,
                                         .shard_elements = own->shard,
                                         .from = mine,
                                         .to = all,
                                         .scale = 1,
                                         .label = ZR_COMM_LABEL_NONE};
    zr_result result = zr_compressed_sum(&engine->outer.compressor, &own->sum, &own->ticket);
    return result == ZR_OK ? zr_compressed_gather(&engine->outer.compressor, &own->gather, &own->ticket)
                           : result;
}

static zr_result exchange_unit(struct zr_engine *engine, size_t unit)
{
    const struct zr_outer_unit *own = &engine->outer.units[unit];
    struct zr_compute compute = zr_engine_unit_compute(engine, unit);
    struct zr_owned owned;
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    struct zr_outer_step step = step_of(engine, unit, &owned);
    size_t padding = groups_of(engine) * own->shard - step.n;
    step.differs = true;
    if (result == ZR_OK)
        result = compute.kernels->outer_step(compute.context, &step);
    if (result == ZR_OK && padding > 0)
        result = compute.kernels->clear(compute.context,
                                        &(struct zr_clear){padding * sizeof(float), step.gradient + step.n});
    zr_result given = zr_engine_give_owned(engine, unit, false);
    result = result == ZR_OK ? given : result;
    return result == ZR_OK ? send(engine, unit) : result;
}

static zr_result merge_unit(struct zr_engine *engine, size_t unit)
{
    struct zr_outer_unit *own = &engine->outer.units[unit];
    struct zr_compute compute = zr_engine_unit_compute(engine, unit);
    struct zr_owned owned;
    zr_result result = zr_comm_wait(engine->options.outer.comm, own->ticket);
    if (result == ZR_OK)
        own->ticket = 0;
    if (result == ZR_OK)
        result = zr_engine_take_owned(engine, unit, &owned);
    if (result != ZR_OK)
        return result;
    struct zr_outer_step step = step_of(engine, unit, &owned);
    result = compute.kernels->outer_step(compute.context, &step);
    zr_result given = zr_engine_give_owned(engine, unit, true);
    result = result == ZR_OK ? given : result;
    return result == ZR_OK ? zr_engine_publish_masters(engine, unit) : result;
}

/* ---- A fragment ---------------------------------------------------------------------------------------- */

/* The next unit of a fragment from `unit` on; units_count: there is none. */
static size_t next_unit(const struct zr_engine *engine, size_t unit, unsigned fragment)
{
    const struct zr_outer_unit *units = engine->outer.units;
    while (unit < engine->layout.units_count &&
           (!units[unit].synchronised || units[unit].fragment != fragment))
        unit++;
    return unit;
}

static uint64_t bytes_of(const struct zr_engine *engine, size_t unit)
{
    size_t shard = engine->outer.units[unit].shard;
    uint64_t bytes =
        packs(engine) ? zr_pack_bytes(engine->options.outer.packing, shard) : (uint64_t)shard * sizeof(float);
    return 2 * (uint64_t)(groups_of(engine) - 1) * bytes;
}

/* Whether a fragment is due `ahead` steps after the steps that are done, and which one. */
static bool is_due(const struct zr_engine *engine, unsigned ahead, unsigned *fragment)
{
    uint64_t step = engine->steps_done + ahead, number = step / interval(engine);
    *fragment = (unsigned)((number - 1) % engine->options.outer.fragments);
    return step % interval(engine) == 0;
}

zr_result zr_outer_exchange(struct zr_engine *engine)
{
    struct zr_outer_state *outer = &engine->outer;
    unsigned fragment, delay = engine->options.outer.delay;
    zr_result result = ZR_OK;
    if (!is_due(engine, delay, &fragment))
        return ZR_OK;
    outer->pending = true;
    for (size_t u = 0; result == ZR_OK && (u = next_unit(engine, u, fragment)) < engine->layout.units_count;
         u++) {
        outer->planned_bytes += bytes_of(engine, u);
        if (delay > 0) /* else MERGE exchanges unit by unit */
            result = exchange_unit(engine, u);
    }
    return result;
}

static zr_result merge_units(struct zr_engine *engine, unsigned fragment)
{
    const size_t count = engine->layout.units_count;
    const bool exchanges = engine->options.outer.delay == 0;
    size_t next = next_unit(engine, 0, fragment);
    zr_result result = exchanges && next < count ? exchange_unit(engine, next) : ZR_OK;
    while (result == ZR_OK && next < count) {
        size_t unit = next;
        next = next_unit(engine, unit + 1, fragment);
        if (exchanges && next < count)
            result = exchange_unit(engine, next);
        if (result == ZR_OK)
            result = merge_unit(engine, unit);
    }
    return result;
}

zr_result zr_outer_merge(struct zr_engine *engine)
{
    unsigned fragment;
    if (!engine->outer.pending || !is_due(engine, 0, &fragment))
        return ZR_OK;
    zr_result result = zr_engine_synchronize(engine); /* peers may read parameters */
    if (result == ZR_OK)
        result = zr_engine_drop_parameters(engine);
    if (result == ZR_OK)
        result = merge_units(engine, fragment);
    if (result == ZR_OK)
        result = zr_engine_synchronize(engine);
    engine->outer.pending = result != ZR_OK;
    engine->outer.merges += result == ZR_OK;
    return result;
}

/* ---- Report -------------------------------------------------------------------------------------------- */

uint64_t zr_outer_bytes(const struct zr_engine *engine)
{
    uint64_t bytes = 0;
    for (size_t u = 0; engine->outer.units && u < engine->layout.units_count; u++)
        bytes += engine->outer.units[u].synchronised ? bytes_of(engine, u) : 0;
    return bytes;
}

void zr_outer_get_report(const struct zr_engine *engine, struct zr_outer_report *out)
{
    struct zr_comm_counters counters;
    uint64_t elements = 0;
    *out = (struct zr_outer_report){0};
    if (!engine->outer.units)
        return;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        elements += engine->outer.units[u].shard;
        zr_comm_wait(engine->options.outer.comm,
                     engine->outer.units[u].ticket); /* else it is counted later */
    }
    zr_comm_counters_get(engine->options.outer.comm, &counters);
    *out = (struct zr_outer_report){.merges = engine->outer.merges,
                                    .round_bytes = zr_outer_bytes(engine),
                                    .step_bytes = 2 * (uint64_t)(groups_of(engine) - 1) * elements *
                                                  zr_precision_bytes(engine->options.precision),
                                    .planned_bytes = engine->outer.planned_bytes,
                                    .sent_bytes = counters.sent_bytes,
                                    .received_bytes = counters.received_bytes};
}
