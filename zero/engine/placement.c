/* placement.c: which units a stage keeps whole and which it shards.
 *
 * Sharding costs temporary memory: staging for gradients at stages 2 and 3, gathered parameters at stage 3.
 * Units are sharded only if this saves at least as much, so a stage never needs more memory than the stage
 * below. */
#include "zero/engine/compression.h"
#include "zero/engine/gradients.h"
#include "zero/engine/onebit.h"
#include "zero/engine/parameter_tier.h"
#include "zero/engine/served.h"

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

/* Gradients of a step: decisions that hold for all units. */
struct gradient_plan {
    bool adds;   /* micro-batches are summed in place and reduced after the last one */
    bool shards; /* whole gradients are staged, and shards are kept */
    bool pools;  /* sums over micro-batches have a pool; otherwise sums are blocks that exist within a step */
};

/* Two-byte micro-batches are summed in fp32 instead of in place, because small addends would be lost in
 * rounding; with several ranks only ZR_REDUCE_ONCE and an exchange of momentum sum in place. */
static bool adds_in_place(const struct zr_engine *engine)
{
    return engine->options.reduce == ZR_REDUCE_ONCE || engine->exchanges_momentum ||
           zr_engine_is_served(engine) ||
           (engine->world == 1 &&
            (!zr_engine_is_low_precision(engine) || engine->options.micro_batches == 1));
}

/* Whether stage 2 saves memory over stage 1: gradient shards and staging instead of whole gradients; with
 * several micro-batches only the shard of sums instead of both. Sets the limit of staging. */
static bool shards_gradients(struct zr_engine *engine, bool adds)
{
    const struct zr_layout *layout = &engine->layout;
    size_t below_bytes = layout->pool_elements * engine->gradient_bytes;
    bool sums = engine->world > 1 && engine->options.micro_batches > 1 && !adds;
    size_t shard_bytes = layout->shards_elements * (sums ? sizeof(float) : engine->gradient_bytes);

    engine->staging_limit = staging_limit(layout, true);
    if (engine->state_tier->offloaded) /* gradients are kept on the host, so whole ones are staged */
        return true;
    if (engine->options.stage < 2 || engine->world == 1)
        return false;
    if (sums)
        below_bytes += layout->shards_elements * sizeof(float);
    if (shard_bytes + engine->staging_limit * engine->gradient_bytes <= below_bytes)
        return true;
    engine->staging_limit = staging_limit(layout, false);
    return shard_bytes + engine->staging_limit * engine->gradient_bytes <= below_bytes;
}

/* The ranks and the state that gradients update; the gradients of a step. */
enum { ONE_RANK, WHOLE_STATE, SHARDED_STATE, RANKS_KINDS };
enum { ONCE, SUMMED, SUMMED_NARROW, STEPS_KINDS };

static unsigned ranks_kind(const struct zr_engine *engine, size_t unit)
{
    bool whole = zr_unit_owned(&engine->units[unit]) > zr_engine_shard(engine, unit).count;
    return engine->world == 1 ? ONE_RANK : whole ? WHOLE_STATE : SHARDED_STATE;
}

static unsigned steps_kind(const struct zr_engine *engine, const struct gradient_plan *plan, size_t unit)
{
    if (engine->units[unit].steps <= 1 || plan->adds)
        return ONCE;
    return zr_engine_is_low_precision(engine) ? SUMMED_NARROW : SUMMED;
}

/* Gradients that are kept whole, or as shards: their paths, and their sums if these have no pool. */
enum { KEPT_WHOLE, KEPT_SHARDS, KEPT_KINDS };
static const struct zr_gradient_path *const paths[KEPT_KINDS][RANKS_KINDS][STEPS_KINDS] = {
    [KEPT_WHOLE] = {[ONE_RANK] = {&zr_path_alone, &zr_path_sum_alone, &zr_path_sum_alone},
                    [WHOLE_STATE] = {&zr_path_all_reduce, &zr_path_sum_gather, &zr_path_sum_used},
                    [SHARDED_STATE] = {&zr_path_scatter, &zr_path_sum, &zr_path_sum}},
    [KEPT_SHARDS] = {[ONE_RANK] = {&zr_path_copied, &zr_path_added, &zr_path_added},
                     [SHARDED_STATE] = {&zr_path_staged, &zr_path_staged, &zr_path_staged}}};
static zr_gradient_call *const sums[KEPT_KINDS][STEPS_KINDS] = {
    [KEPT_WHOLE] = {NULL, zr_engine_take_sums, zr_engine_take_sums},
    [KEPT_SHARDS] = {NULL, NULL, zr_engine_take_sums}};

/* Gradients in the offload file: units with one gradient per step, because a sum would be read and written
 * for each gradient. If the host cannot access tensors, reductions into the file would make it wait for each
 * of them. */
static const struct zr_gradient_place *gradient_place(const struct zr_engine *engine,
                                                      const struct gradient_plan *plan, size_t unit)
{
    const struct zr_unit_state *state = &engine->units[unit];
    if (state->steps == 0)
        return &zr_gradients_none;
    if (engine->options.scattered_gradients)
        return !plan->shards ? &zr_gradients_of_step
               : plan->pools ? &zr_gradients_pooled
                             : &zr_gradient_shards_of_step;
    bool filed = state->tier->file && !engine->options.offload.delayed && !engine->host_invisible &&
                 state->steps == 1 && !zr_engine_is_shared(engine, unit);
    return filed ? &zr_gradients_filed : &zr_gradients_pooled;
}

static void place_gradients(struct zr_engine *engine)
{
    const struct zr_layout *layout = &engine->layout;
    struct gradient_plan plan = {.adds = adds_in_place(engine)};
    plan.shards = shards_gradients(engine, plan.adds);
    plan.pools = engine->options.micro_batches > 1 && !plan.adds &&
                 (zr_engine_is_low_precision(engine) || !plan.shards);
    for (size_t u = 0; u < layout->units_count; u++) {
        const struct zr_layout_unit *unit = &layout->units[u];
        struct zr_unit_state *state = &engine->units[u];
        struct zr_state_tier *tier = state->tier;
        state->steps = unit->unit.gradient_uses * engine->options.micro_batches;
        unsigned steps = steps_kind(engine, &plan, u);
        const struct zr_overlap shard = zr_engine_shard(engine, u);
        state->path = !zr_engine_is_served(engine) ? paths[plan.shards][ranks_kind(engine, u)][steps]
                      : engine->options.reduce == ZR_REDUCE_EACH ? &zr_path_pushed
                                                                 : &zr_path_pushed_once;
        state->place = gradient_place(engine, &plan, u);
        /* Kept memory has pools only. */
        const bool pooled = plan.pools || (engine->options.kept && sums[plan.shards][steps]);
        state->take_sums = pooled ? NULL : sums[plan.shards][steps];
        state->input_bytes = pooled || state->take_sums ? sizeof(float) : engine->gradient_bytes;
        state->kept_elements = plan.shards ? unit->shard_elements : unit->padded_elements;
        state->reduced_at = plan.shards ? 0 : shard.offset;
        if (state->steps == 0)
            continue;
        state->gradients_at = tier->gradients_elements;
        state->sums_at = pooled ? tier->sums_elements : SIZE_MAX;
        tier->sums_elements += pooled ? shard.count : 0;
        if (state->place->home && !(pooled && plan.shards)) /* shards are summed in their pool of sums */
            tier->gradients_elements += state->kept_elements;
    }
}

/* The part of each tensor that this rank updates, and its state. */
static void place_tensors(struct zr_engine *engine)
{
    for (size_t i = 0; i < engine->layout.parameters_count; i++) {
        struct zr_layout_parameter *p = &engine->layout.parameters[i];
        size_t unit = p->parameter.unit, from = engine->units[unit].owned.from;
        const struct zr_optimizer *optimizer = engine->layout.units[unit].optimizer;
        struct zr_overlap overlap = {.offset = p->offset};
        zr_layout_overlap(p, from, engine->units[unit].owned.to, &overlap);
        p->owned_from = overlap.offset;
        p->owned_to = overlap.offset + overlap.count;
        for (unsigned s = 0; s < optimizer->slots_count; s++) {
            bool whole = optimizer->slots[s].whole;
            p->slots_at[s] = zr_slot_state_bytes(&optimizer->slots[s],
                                                 zr_layout_covered(&engine->layout, unit, s, whole ? 0 : from,
                                                                   whole ? p->offset : p->owned_from));
        }
    }
}

/* Elements of a unit that have optimizer state. */
static size_t state_elements(const struct zr_layout *layout, unsigned unit)
{
    return zr_unit_is_frozen(&layout->units[unit].unit) ? 0 : layout->units[unit].padded_elements;
}

/* The range of units with the most elements within offload.resident_share. The first of equal ranges is
 * chosen, because its gradients come last and its parameters are needed first. */
static void place_device_resident(struct zr_engine *engine)
{
    const struct zr_layout *layout = &engine->layout;
    double ratio = engine->state_tier->offloaded * (double)engine->options.offload.resident_share;
    uint64_t space = (uint64_t)(ratio * (double)layout->pool_elements), sum = 0, best = 0;
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
    size_t stays = !engine->options.offload.parameters; /* shards are kept on the device */
    for (size_t u = 0; u < layout->units_count; u++)
        if (layout->units[u].padded_elements <= limit)
            saved += layout->units[u].padded_elements - stays * layout->units[u].shard_elements;
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

static void place_parameters(struct zr_engine *engine)
{
    const struct zr_layout *layout = &engine->layout;
    const struct zr_offload *offload = &engine->options.offload;
    /* With one rank sharding saves nothing, unless shards leave the device. */
    size_t limit = engine->options.stage >= 3 ? resident_limit(engine) : 0;
    const struct zr_parameter_tier *away =
        offload->parameters_file ? &zr_parameters_filed : &zr_parameters_hosted;

    for (size_t u = 0; u < layout->units_count; u++) {
        const struct zr_layout_unit *unit = &layout->units[u];
        struct zr_unit_state *state = &engine->units[u];
        bool stays = state->steps > 0 && state->tier != engine->state_tier,
             whole = unit->padded_elements > limit || (stays && engine->world == 1),
             leaves = offload->parameters && !whole && !stays;
        const size_t parts[][2] = {{engine->rank * unit->shard_elements, unit->shard_elements},
                                   {0, unit->padded_elements}};
        state->resident = whole;
        /* A frozen unit that is kept whole has no masters and would lose its only exact values. */
        state->packs_parameters = zr_engine_packs_kind(engine, ZR_COMPRESSED_PARAMETERS) &&
                                  !(whole && zr_engine_is_frozen(engine, u));
        state->packs_gradients = zr_engine_packs_kind(engine, ZR_COMPRESSED_GRADIENTS) && state->steps > 0;
        state->keeps_secondary = engine->options.compression.secondary_shards && engine->world > 1 && !whole;
        state->parameters_from = parts[whole][0];
        state->parameters_count = parts[whole][1];
        state->parameters = leaves ? away : state->tier->written;
        state->parameters_in = &engine->tiers[leaves];
        state->parameters_at = state->parameters_in->parameters_elements;
        state->parameters_in->parameters_elements += !state->parameters->in_file * state->parameters_count;
        engine->shards_parameters |= !whole;
        engine->keeps_secondary |= state->keeps_secondary;
    }
}

void zr_engine_place(struct zr_engine *engine)
{
    engine->parameter_bytes = engine->gradient_bytes = zr_precision_bytes(engine->options.precision);
    engine->comm_type = (enum zr_comm_type)engine->options.precision;
    engine->gathered_max =
        1 + (engine->options.prefetch_distance > 0 ? engine->options.prefetch_distance : 1);
    engine->first_staged = engine->last_staged = ZR_NO_UNIT;
    const bool whole = (engine->options.stage == 0) & !engine->options.root_owns;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_overlap shard = zr_engine_shard(engine, u);
        engine->units[u].tier = zr_engine_is_frozen(engine, u) ? &engine->tiers[0] : engine->state_tier;
        engine->units[u].owned.from = whole ? 0 : shard.offset;
        engine->units[u].owned.to =
            whole ? engine->layout.units[u].padded_elements : shard.offset + shard.count;
    }
    place_tensors(engine);
    place_device_resident(engine);
    if (engine->options.root_owns && engine->rank > 0) /* the state is elsewhere */
        engine->stay = (struct zr_unit_range){0, (unsigned)engine->layout.units_count};
    engine->squared = engine->state_tier->compute.kernels == engine->options.kernels
                          ? (struct zr_unit_range){0, (unsigned)engine->layout.units_count}
                          : engine->stay;
    place_gradients(engine);
    place_parameters(engine);
}
