/* placement.c: which units a stage keeps whole and which it shards.
 *
 * Sharding costs temporary memory: staging for gradients at stages 2 and 3, gathered parameters at stage 3.
 * Units are sharded only if this saves at least as much, so a stage never needs more memory than the stage
 * below. */
#include "zero/engine/parameter_tier.h"

enum { LARGEST_MAX = ZR_PREFETCH_MAX + 1 };

/* Sum of the `count` largest units of at most `limit` elements; count <= LARGEST_MAX. `trained`: without
 * frozen units. */
static size_t largest_units(const struct zr_layout *layout, size_t limit, unsigned count, bool trained)
{
    size_t largest[LARGEST_MAX + 1] = {0}, sum = 0;
    for (size_t u = 0; u < layout->units_count; u++) {
        size_t elements = layout->units[u].padded_elements;
        if (elements > limit || (trained && zr_unit_is_frozen(&layout->units[u].unit)))
            continue;
        unsigned place = count;
        for (; place > 0 && largest[place - 1] < elements; place--)
            largest[place] = largest[place - 1];
        largest[place] = elements;
    }
    for (unsigned i = 0; i < count; i++)
        sum += largest[i];
    return sum;
}

/* Maximum of staged elements: two units, so that one unit's reduction overlaps with the computation of the
 * other's gradients; plus a small unit between two large ones if this costs no memory. */
static size_t staging_limit(const struct zr_layout *layout, bool with_small)
{
    size_t two = largest_units(layout, SIZE_MAX, 2, true),
           second = two - largest_units(layout, SIZE_MAX, 1, true);
    return two + (with_small ? second / 16 : 0);
}

/* Whether stage 2 saves memory over stage 1: gradient shards and staging instead of whole gradients; with
 * several micro-batches only the shard of sums instead of both. */
static void place_gradients(struct zr_engine *engine)
{
    const struct zr_layout *layout = &engine->layout;
    size_t below_bytes = layout->pool_elements * engine->gradient_bytes;
    bool sums = engine->world > 1 && engine->options.micro_batches > 1 && !zr_engine_adds_in_place(engine);
    size_t shard_bytes = layout->shards_elements * (sums ? sizeof(float) : engine->gradient_bytes);

    if (sums)
        below_bytes += layout->shards_elements * sizeof(float);
    if (zr_engine_offloads(engine)) { /* gradients are kept on the host, so whole ones are staged */
        engine->staging_limit = staging_limit(layout, true);
        engine->shards_gradients = true;
    }
    for (int with_small = 1;
         engine->options.stage >= 2 && engine->world > 1 && with_small >= 0 && !engine->shards_gradients;
         with_small--) {
        engine->staging_limit = staging_limit(layout, with_small);
        engine->shards_gradients =
            shard_bytes + engine->staging_limit * engine->gradient_bytes <= below_bytes;
    }
    bool keeps_sums = zr_engine_keeps_sums(engine);
    for (size_t u = 0; u < layout->units_count; u++) {
        const struct zr_layout_unit *unit = &layout->units[u];
        struct zr_unit_state *state = &engine->units[u];
        struct zr_state_tier *tier = state->tier;
        if (zr_unit_is_frozen(&unit->unit))
            continue;
        state->gradients_at = tier->gradients_elements;
        state->sums_at = tier->sums_elements;
        if (keeps_sums)
            tier->sums_elements += unit->shard_elements;
        if (!zr_engine_files_gradients(engine, u) && !(keeps_sums && engine->shards_gradients))
            tier->gradients_elements +=
                engine->shards_gradients ? unit->shard_elements : unit->padded_elements;
    }
}

/* Elements of a unit that have optimizer state. */
static size_t state_elements(const struct zr_layout *layout, unsigned unit)
{
    return zr_unit_is_frozen(&layout->units[unit].unit) ? 0 : layout->units[unit].padded_elements;
}

/* The range of units with the most elements within offload.stays. The first of equal ranges is chosen,
 * because its gradients come last and its parameters are needed first. */
static void place_device_resident(struct zr_engine *engine)
{
    const struct zr_layout *layout = &engine->layout;
    uint64_t space = (uint64_t)(engine->options.offload.stays * (double)layout->pool_elements), sum = 0,
             best = 0;
    if (!zr_engine_offloads(engine))
        return;
    for (unsigned first = 0, u = 0; u < layout->units_count; u++) {
        sum += state_elements(layout, u);
        for (; sum > space; first++)
            sum -= state_elements(layout, first);
        if (sum > best) {
            best = sum;
            engine->stay = (struct zr_unit_range){first, u + 1};
        }
    }
    for (unsigned u = engine->stay.first; u < engine->stay.end; u++)
        engine->units[u].tier = &engine->tiers[0];
}

/* Number of elements that stage 3 saves if units larger than `limit` remain whole. */
static size_t saved_elements(const struct zr_engine *engine, size_t limit)
{
    const struct zr_layout *layout = &engine->layout;
    size_t saved = 0, space = largest_units(layout, limit, engine->gathered_max, false);
    for (size_t u = 0; u < layout->units_count; u++)
        if (layout->units[u].padded_elements <= limit)
            saved += layout->units[u].padded_elements -
                     (engine->options.offload.parameters ? 0 : layout->units[u].shard_elements);
    return saved > space ? saved - space : 0;
}

/* Size of the largest unit below `bound`; 0: none. */
static size_t next_size(const struct zr_layout *layout, size_t bound)
{
    size_t next = 0;
    for (size_t u = 0; u < layout->units_count; u++) {
        size_t elements = layout->units[u].padded_elements;
        next = elements < bound && elements > next ? elements : next;
    }
    return next;
}

/* The unit size above which stage 3 keeps parameters whole, chosen to save the max number of elements. 0: all
 * units. The gathered block of a large unit may take more memory than sharding the unit saves. */
static size_t resident_limit(const struct zr_engine *engine)
{
    const struct zr_layout *layout = &engine->layout;
    size_t best = 0, best_saved = 0;
    for (size_t limit = next_size(layout, SIZE_MAX); limit > 0; limit = next_size(layout, limit)) {
        size_t saved = saved_elements(engine, limit);
        if (saved > best_saved) {
            best_saved = saved;
            best = limit;
        }
    }
    return best;
}

static const struct zr_parameter_tier *parameter_tier(const struct zr_engine *engine,
                                                      const struct zr_unit_state *state)
{
    const struct zr_offload *offload = &engine->options.offload;
    bool frozen = zr_engine_is_frozen(engine, (size_t)(state - engine->units)),
         leaves = offload->parameters && !state->resident;
    if (frozen || !state->tier->offloaded)
        return frozen && leaves ? &zr_parameters_hosted : &zr_parameters_in_place;
    if (!leaves)
        return &zr_parameters_uploaded;
    return offload->parameters_file ? &zr_parameters_filed : &zr_parameters_hosted;
}

static void place_parameters(struct zr_engine *engine)
{
    const struct zr_layout *layout = &engine->layout;
    bool shards = engine->options.stage >= 3 && (engine->world > 1 || engine->options.offload.parameters);
    size_t limit = shards ? resident_limit(engine) : 0;

    for (size_t u = 0; u < layout->units_count; u++) {
        const struct zr_layout_unit *unit = &layout->units[u];
        struct zr_unit_state *state = &engine->units[u];
        bool stays = !zr_engine_is_frozen(engine, u) && state->tier != engine->state_tier;
        state->resident = unit->padded_elements > limit || (stays && engine->world == 1);
        state->parameters = parameter_tier(engine, state);
        if (state->parameters == &zr_parameters_filed) {
            engine->shards_parameters = true;
            continue;
        }
        size_t *elements =
            state->parameters->on_host ? &engine->host_parameters_elements : &engine->parameters_elements;
        state->parameters_at = *elements;
        *elements += state->resident ? unit->padded_elements : unit->shard_elements;
        engine->shards_parameters |= !state->resident;
    }
}

void zr_engine_place(struct zr_engine *engine)
{
    engine->parameter_bytes = engine->gradient_bytes = zr_precision_bytes(engine->options.precision);
    engine->gathered_max =
        1 + (engine->options.prefetch_distance > 0 ? engine->options.prefetch_distance : 1);
    engine->first_staged = engine->last_staged = ZR_NO_UNIT;
    for (size_t u = 0; u < engine->layout.units_count; u++)
        engine->units[u].tier = zr_engine_is_frozen(engine, u) ? &engine->tiers[0] : engine->state_tier;
    place_device_resident(engine);
    place_gradients(engine);
    place_parameters(engine);
}
