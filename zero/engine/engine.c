/* engine.c: creating and destroying an engine: its persistent memory and initial parameters. */
#include "zero/engine/engine.h"
#include "zero/engine/update.h"

#include <string.h>

#include "zero/engine/compression.h"
#include "zero/engine/gradients.h"
#include "zero/engine/kept.h"
#include "zero/engine/parameter_tier.h"
#include "zero/engine/offload.h"
#include "zero/engine/onebit.h"
#include "zero/engine/speculate.h"

#include "alloc/base/option.h"

/* Opens the store of a tier's units. */
static zr_result open_store(struct zr_engine *engine, struct zr_state_tier *tier)
{
    const struct zr_engine_options *o = &engine->options;
    bool staying = tier != engine->state_tier;
    if (staying && engine->stay.first == engine->stay.end)
        return ZR_OK;
    return zr_state_store_open(
        &tier->store,
        &(struct zr_state_store_options){.arena = tier->arena,
                                         .layout = &engine->layout,
                                         .whole = o->stage == 0,
                                         .stay = engine->stay,
                                         .staying = staying,
                                         .master = tier->masters,
                                         .host_arena = o->host_arena,
                                         .file = tier->file,
                                         .more_bytes = engine->gradient_file.bytes,
                                         .more_memory = engine->gradient_file.slots,
                                         .more_memory_bytes = engine->gradient_file.pipeline.buffers_count *
                                                              engine->gradient_file.slot_bytes,
                                         .simulated = engine->simulated,
                                         .kept = o->kept,
                                         .servers = &engine->options.servers,
                                         .twice_bytes = o->offload.speculative_bytes});
}

/* Addresses of parameters in their pools; parameters in a file have no pool. */
static void find_parameters(struct zr_engine *engine)
{
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_unit_state *state = &engine->units[u];
        char *pool = state->parameters_in->parameters;
        state->owned.parameters.precision = engine->options.precision;
        if (!pool)
            continue;
        state->owned.parameters.at =
            pool +
            (state->parameters_at + state->owned.from - state->parameters_from) * engine->parameter_bytes;
        state->whole = state->resident ? pool + state->parameters_at * engine->parameter_bytes : NULL;
    }
}

static bool has_frozen_units(const struct zr_engine *engine)
{
    size_t u = 0;
    while (u < engine->layout.units_count && !zr_engine_is_frozen(engine, u))
        u++;
    return u < engine->layout.units_count;
}

static zr_result clear_pool(const struct zr_state_tier *tier, void *pool, size_t bytes)
{
    return pool ? tier->compute.kernels->clear(tier->compute.context, &(struct zr_clear){bytes, pool})
                : ZR_OK;
}

/* Rank 0 takes and clears the pool of parameters that all ranks share. A dry run has no memory to share. */
static zr_result share_parameters(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_state_tier *tier = &engine->tiers[0];
    char *all[ZR_MAX_WORLD] = {(char *)engine};
    size_t elements = tier->parameters_elements;
    zr_result result =
        zr_take(o->host_arena, ZR_TAG_OTHER, engine->world, sizeof *engine->met, (void **)&engine->met);
    engine->borrows_parameters = engine->rank > 0;
    if (result == ZR_OK && engine->rank == 0)
        result =
            zr_take(o->arena, ZR_TAG_PARAM, elements, engine->parameter_bytes, (void **)&tier->parameters);
    if (result == ZR_OK && engine->rank == 0)
        result = clear_pool(tier, tier->parameters, elements * engine->parameter_bytes);
    char *mine = result == ZR_OK ? tier->parameters : NULL;
    zr_result told = engine->simulated ? ZR_OK : zr_comm_host_all_gather(o->comm, &mine, sizeof mine, all);
    if (result != ZR_OK || told != ZR_OK || engine->rank == 0)
        return result != ZR_OK ? result : told;
    tier->parameters = all[0];
    return tier->parameters ? ZR_OK
                            : zr_fail(ZR_ERR_PEER, "rank 0 has no memory for the parameters of all ranks");
}

static zr_result take_parameters(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    zr_result result = ZR_OK;
    if (o->shares_parameters)
        return share_parameters(engine);
    for (unsigned t = 0; t < engine->tiers_count && result == ZR_OK; t++) {
        struct zr_state_tier *tier = &engine->tiers[t];
        result = zr_kept_pool_take(o->kept,
                                   &(struct zr_kept_pool){tier->arena, "parameters", ZR_TAG_PARAM,
                                                          tier->parameters_elements, engine->parameter_bytes},
                                   &tier->parameters);
    }
    return result;
}

static zr_result take_pools(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    zr_result result = take_parameters(engine);
    if (result == ZR_OK)
        find_parameters(engine);
    for (unsigned t = engine->tiers_count; t-- > 0 && result == ZR_OK;) {
        struct zr_state_tier *tier = &engine->tiers[t];
        result = zr_kept_pool_take(o->kept,
                                   &(struct zr_kept_pool){tier->arena, "gradients", ZR_TAG_GRAD,
                                                          tier->gradients_elements, engine->gradient_bytes},
                                   &tier->gradients);
    }
    for (unsigned t = engine->tiers_count; t-- > 0 && result == ZR_OK;) {
        struct zr_state_tier *tier = &engine->tiers[t];
        result = zr_kept_pool_take(
            o->kept,
            &(struct zr_kept_pool){tier->arena, "sums", ZR_TAG_GRAD, tier->sums_elements, sizeof(float)},
            &tier->sums);
    }
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        zr_engine_drop_gradients(engine, u);
    if (result == ZR_OK)
        result = zr_engine_gradient_file_open(engine);
    for (unsigned t = engine->tiers_count; t-- > 0 && result == ZR_OK;)
        result = open_store(engine, &engine->tiers[t]);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        result = zr_engine_find_owned(engine, u);
    if (result == ZR_OK)
        result = zr_engine_parameter_file_open(engine);
    if (result == ZR_OK)
        result = zr_engine_offload_open(engine);
    if (result == ZR_OK && engine->host_invisible)
        result = zr_take(o->arena, ZR_TAG_WORKSPACE, zr_engine_results_count(engine), sizeof *engine->results,
                         (void **)&engine->results);
    bool saves_parameters =
        has_frozen_units(engine) || (engine->host_invisible && zr_engine_is_onebit(engine));
    if (result == ZR_OK && ((zr_engine_is_low_precision(engine) && saves_parameters) ||
                            zr_optimizer_block(engine->optimizer) > 1))
        result = zr_take(o->arena, ZR_TAG_WORKSPACE, ZR_NARROW_ELEMENTS, sizeof *engine->wide,
                         (void **)&engine->wide);
    if (result == ZR_OK)
        result = zr_engine_versions_open(engine);
    if (result == ZR_OK)
        result = zr_engine_speculation_open(engine);
    if (result == ZR_OK)
        result = zr_engine_compression_open(engine);
    if (result == ZR_OK)
        result = zr_engine_kept_open(engine);
    if (result == ZR_OK)
        result = zr_snapshot_open(engine);
    if (result == ZR_OK)
        result = zr_outer_open(engine);
    if (result == ZR_OK)
        result = zr_engine_actions_make(engine);
    if (result == ZR_OK && !engine->simulated)
        result = zr_take(o->host_arena, ZR_TAG_OTHER, (engine->world + 1) * engine->layout.units_count,
                         sizeof *engine->squares, (void **)&engine->squares);
    if (result == ZR_OK && !engine->simulated && o->measures_squares)
        result = zr_take(o->host_arena, ZR_TAG_OTHER, engine->layout.units_count,
                         sizeof *engine->small_squares, (void **)&engine->small_squares);
    if (result == ZR_OK && engine->squares) /* those of frozen units remain 0 */
        memset(engine->squares, 0,
               (engine->world + 1) * engine->layout.units_count * sizeof *engine->squares);
    return result;
}

static zr_result clear_states(struct zr_engine *engine, size_t unit, const struct zr_owned *owned)
{
    size_t elements = owned->to - owned->from;
    struct zr_compute compute = zr_engine_unit_compute(engine, unit);
    zr_result result = ZR_OK;
    if (elements == 0)
        return ZR_OK;
    if (engine->units[unit].tier->masters)
        result = compute.kernels->clear(compute.context,
                                        &(struct zr_clear){elements * sizeof(float), owned->master});
    const struct zr_optimizer *optimizer = engine->layout.units[unit].optimizer;
    for (unsigned s = 0; s < optimizer->slots_count && result == ZR_OK; s++)
        result = compute.kernels->clear(
            compute.context,
            &(struct zr_clear){
                zr_layout_slot_bytes(&engine->layout, unit, s, engine->units[unit].tier->store.options.whole),
                owned->slots[s]});
    return result;
}

/* Sets `count` initial values from a tensor's element `first` on. Two-byte values are computed in `chunk`. */
static zr_result initialise_piece(struct zr_engine *engine, const struct zr_parameter *parameter,
                                  const struct zr_tensor_piece *piece, float *chunk, char *to)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_compute compute = zr_engine_parameter_compute(engine, parameter->unit);
    zr_result result = ZR_OK;
    for (size_t done = 0, count; done < piece->count && result == ZR_OK; done += count) {
        count = chunk && piece->count - done > ZR_NARROW_ELEMENTS ? ZR_NARROW_ELEMENTS : piece->count - done;
        void *values = to + done * engine->parameter_bytes;
        result = compute.kernels->init_normal(
            compute.context, &(struct zr_init_normal){.n = count,
                                                      .seed = o->seed,
                                                      .first_index = piece->global_index + done,
                                                      .mean = parameter->init_mean,
                                                      .deviation = parameter->init_deviation,
                                                      .x = chunk ? chunk : values});
        if (result == ZR_OK && chunk)
            result = compute.kernels->convert(compute.context,
                                              &(struct zr_convert){.n = count,
                                                                   .from = {chunk, ZR_PRECISION_FP32},
                                                                   .to = {values, o->precision}});
    }
    return result;
}

/* Initial values of a frozen unit. */
static zr_result initialise_frozen(struct zr_engine *engine, size_t index)
{
    const struct zr_layout_unit *unit = &engine->layout.units[index];
    const struct zr_unit_state *state = &engine->units[index];
    const bool shares = engine->options.shares_parameters; /* else all that is kept, without communication */
    size_t from = shares ? state->owned.from : state->parameters_from,
           to = from + (shares ? zr_unit_owned(state) : state->parameters_count);
    float *beside = NULL; /* a block that the host can access */
    zr_arena *arena = state->parameters_in->arena;
    bool elsewhere = arena != engine->options.arena;
    struct zr_owned owned;
    zr_result result = zr_engine_take_owned(engine, index, &owned);
    char *base = (char *)owned.parameters.at - (state->owned.from - from) * engine->parameter_bytes;
    if (result == ZR_OK && elsewhere && engine->wide)
        result = zr_take(arena, ZR_TAG_WORKSPACE, ZR_NARROW_ELEMENTS, sizeof *beside, (void **)&beside);
    float *chunk = elsewhere ? beside : engine->wide;
    for (size_t i = 0; i < unit->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[unit->first_parameter + i];
        for (size_t k = 0, count = zr_layout_pieces(p, from, to); k < count && result == ZR_OK; k++) {
            struct zr_tensor_piece piece = zr_layout_piece(p, from, to, k);
            result = initialise_piece(engine, &p->parameter, &piece, chunk,
                                      base + (piece.offset - from) * engine->parameter_bytes);
        }
    }
    zr_drop(arena, &beside);
    zr_result given = zr_engine_give_owned(engine, index, true);
    return result == ZR_OK ? given : result;
}

/* Initial values of this rank's part of a unit. */
static zr_result initialise_unit(struct zr_engine *engine, size_t index)
{
    const struct zr_layout_unit *unit = &engine->layout.units[index];
    const struct zr_unit_state *state = &engine->units[index];
    struct zr_compute compute = zr_engine_unit_compute(engine, index);
    struct zr_owned owned;
    zr_result result = zr_engine_take_owned(engine, index, &owned);
    size_t from = owned.from, to = owned.to;
    float *base = owned.master;

    if (result == ZR_OK)
        result = clear_states(engine, index, &owned);
    if (!state->tier->masters &&
        !engine->options.shares_parameters) { /* all that is kept, without communication */
        base -= from - state->parameters_from;
        from = state->parameters_from;
        to = from + state->parameters_count;
    }

    for (size_t i = 0; i < unit->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[unit->first_parameter + i];
        for (size_t k = 0, count = zr_layout_pieces(p, from, to); k < count && result == ZR_OK; k++) {
            struct zr_tensor_piece piece = zr_layout_piece(p, from, to, k);
            result = compute.kernels->init_normal(
                compute.context, &(struct zr_init_normal){.n = piece.count,
                                                          .seed = engine->options.seed,
                                                          .first_index = piece.global_index,
                                                          .mean = p->parameter.init_mean,
                                                          .deviation = p->parameter.init_deviation,
                                                          .x = base + (piece.offset - from)});
        }
    }
    if (result == ZR_OK)
        result = zr_engine_start_average(engine, index, &owned,
                                         (struct zr_overlap){owned.from, owned.to - owned.from});
    zr_result given = zr_engine_give_owned(engine, index, true);
    result = result == ZR_OK ? given : result;
    return result == ZR_OK ? zr_engine_round_masters(engine, index) : result;
}

static zr_result clear_pools(struct zr_engine *engine)
{
    /* squares of frozen units remain 0 */
    zr_result result = clear_pool(&engine->tiers[0], engine->results,
                                  zr_engine_results_count(engine) * sizeof *engine->results);
    for (unsigned t = engine->tiers_count; t-- > 0 && result == ZR_OK;) {
        struct zr_state_tier *tier = &engine->tiers[t];
        if (!engine->options.shares_parameters) /* cleared before the ranks have shared them */
            result = clear_pool(tier, tier->parameters, tier->parameters_elements * engine->parameter_bytes);
        if (result == ZR_OK)
            result = clear_pool(tier, tier->gradients, tier->gradients_elements * engine->gradient_bytes);
    }
    return result;
}

/* Sets the initial values, which depend only on the seed and the global index; padding is zero. In two-byte
 * precision a rank rounds its own masters, and the other ranks send the other parts of whole parameters. */
static zr_result initialise(struct zr_engine *engine)
{
    zr_engine_kept_invalidate(engine);
    zr_result result = clear_pools(engine);

    zr_engine_start_scaling(engine);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++) {
        bool frozen = zr_engine_is_frozen(engine, u);
        result = frozen ? initialise_frozen(engine, u) : initialise_unit(engine, u);
        const bool gathers = engine->units[u].tier->masters && zr_engine_gathers_new(engine, u);
        if (result == ZR_OK && (gathers || engine->options.shares_parameters))
            result = zr_engine_all_gather_parameters(engine, u);
    }
    return result;
}

/* Numbers the segments of this rank, see zr_engine_segment(). */
static void number_segments(struct zr_engine *engine)
{
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_layout_unit *unit = &engine->layout.units[u];
        const struct zr_overlap shard = zr_engine_shard(engine, u);
        engine->units[u].first_segment = engine->segments_count;
        for (size_t i = 0; i < unit->parameters_count; i++) {
            engine->segments_count += zr_layout_pieces(&engine->layout.parameters[unit->first_parameter + i],
                                                       shard.offset, shard.offset + shard.count);
        }
    }
}

static void open_tiers(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_compute device = {o->kernels, o->context, engine->host_invisible}, host = device;
    bool masters = zr_engine_keeps_exact_masters(engine);
    if (o->host_kernels)
        host = (struct zr_compute){o->host_kernels, o->host_context, !o->host_kernels->host_visible};
    engine->tiers[0] =
        (struct zr_state_tier){.arena = o->arena,
                               .compute = device,
                               .masters = masters,
                               .written = !masters                             ? &zr_parameters_masters
                                          : zr_engine_is_low_precision(engine) ? &zr_parameters_in_place
                                                                               : &zr_parameters_copied};
    engine->tiers[1] = (struct zr_state_tier){.arena = o->offload.host,
                                              .compute = host,
                                              .offloaded = true,
                                              .masters = true,
                                              .file = o->offload.file,
                                              .written = &zr_parameters_uploaded};
    engine->tiers_count = 1 + o->offload.optimizer;
    engine->state_tier = &engine->tiers[o->offload.optimizer];
}

/* Copies the options and fills in defaults. */
static zr_result keep_options(struct zr_engine *engine, const struct zr_engine_options *options)
{
    struct zr_optimizer_options *optimizer = &engine->options.optimizer;
    engine->options = *options;
    engine->optimizer =
        zr_optimizer_with(&options->optimizer, options->outer.period > 0              ? ZR_KEEPS_ANCHOR
                                               : options->optimizer.average_decay > 0 ? ZR_KEEPS_AVERAGE
                                                                                      : ZR_KEEPS_NOTHING);
    if (options->outer.fragments == 0)
        engine->options.outer.fragments = 1;
    engine->simulated = !options->kernels->executes;
    engine->host_invisible = !options->kernels->host_visible;
    engine->rank = zr_comm_rank(options->comm);
    engine->world = zr_comm_world(options->comm);
    engine->options.shares_parameters &= engine->world > 1;
    engine->options.root_owns &= engine->world > 1;
    /* Stage 1 has the bits of stage 0. */
    engine->options.stage += engine->options.shares_parameters * (options->stage == 0);
    engine->exchanges_momentum = (options->stage == 0) & zr_engine_is_onebit(engine);
    open_tiers(engine);
    if (engine->options.micro_batches == 0)
        engine->options.micro_batches = 1;
    if (optimizer->groups_count == 0) {
        for (unsigned g = 0; g < ZR_GROUPS_MAX; g++)
            optimizer->groups[g] =
                (struct zr_parameter_group){.rate_factor = 1, .decay_factor = g != ZR_GROUP_NO_DECAY};
        optimizer->groups_count = ZR_GROUPS_MAX;
    }
    for (size_t i = 0; i < options->list.parameters_count; i++)
        if (options->list.parameters[i].group >= optimizer->groups_count)
            return zr_fail(ZR_ERR_INVALID, "parameter %s is in group %u of %u",
                           options->list.parameters[i].name, options->list.parameters[i].group,
                           optimizer->groups_count);
    return ZR_OK;
}

zr_result zr_engine_create(zr_engine **out, const struct zr_engine_options *options)
{
    struct zr_engine_options own;
    struct zr_engine *engine;
    bool held;

    if (out)
        *out = NULL;
    if (!out || !options)
        return zr_fail(ZR_ERR_INVALID, "%s(): options or out is NULL", __func__);
    zr_result result = ZR_STRUCT_COPY(zr_engine_options, scattered_gradients, &own, options);
    options = &own;
    if (result == ZR_OK)
        result = zr_engine_check_options(options);
    if (result == ZR_OK)
        result = zr_take(options->host_arena, ZR_TAG_OTHER, 1, sizeof *engine, (void **)&engine);
    if (result != ZR_OK)
        return result;
    memset(engine, 0, sizeof *engine);
    result = keep_options(engine, options);
    const bool packs_outer = options->outer.period > 0 && options->outer.packing != ZR_PACKING_ONEBIT,
               packs = zr_engine_packs(engine) || packs_outer;
    if (result == ZR_OK)
        result = zr_layout_make(
            &engine->layout,
            &(struct zr_layout_request){.list = &options->list,
                                        .world = engine->world,
                                        .precision = options->precision,
                                        .optimizer = engine->optimizer,
                                        .block_elements = packs ? ZR_PACK_BLOCK : 1,
                                        /* Tensor ranks have copies of some tensors, and pipeline ranks of a
                                         * tied one, which must decode alike next to other parts. */
                                        .blocks_have_one_tensor =
                                            packs && (options->tensor || (packs_outer && options->sharing)),
                                        .groups = engine->options.optimizer.groups,
                                        .host_arena = options->host_arena});
    if (result != ZR_OK)
        goto unwind;
    engine->options.list = (struct zr_parameter_list){0}; /* the caller's arrays need not outlive the call */
    result = zr_take(options->host_arena, ZR_TAG_OTHER, engine->layout.units_count, sizeof *engine->units,
                     (void **)&engine->units);
    if (result != ZR_OK)
        goto unwind;
    memset(engine->units, 0, engine->layout.units_count * sizeof *engine->units);
    zr_engine_place(engine);
    result = take_pools(engine);
    if (result != ZR_OK)
        goto unwind;
    number_segments(engine);
    result = zr_engine_kept_find(engine, &held);
    if (result == ZR_OK)
        result = held ? zr_engine_kept_recover(engine) : initialise(engine);
    if (result == ZR_OK)
        result = zr_engine_synchronize(engine);
    if (result == ZR_OK)
        result = zr_engine_verify_replicas(engine);
    if (result != ZR_OK)
        goto unwind;
    *out = engine;
    return ZR_OK;

unwind:
    zr_engine_destroy(engine);
    return result;
}

void zr_engine_destroy(zr_engine *engine)
{
    if (!engine)
        return;
    zr_arena *arena = engine->options.arena, *host_arena = engine->options.host_arena;
    zr_engine_speculation_close(engine); /* first: its thread reads gradients */
    if (engine->units) {
        /* After this wait no operation of the communicator writes, even if a peer was lost. */
        zr_engine_synchronize(engine);
        for (size_t u = 0; u < engine->layout.units_count; u++) {
            zr_engine_drop_gradients(engine, u);
            zr_drop(arena, &engine->units[u].staging);
            zr_drop(arena, &engine->units[u].gathered);
        }
    }
    zr_snapshot_close(engine);
    zr_engine_kept_close(engine);
    zr_engine_actions_end(engine);
    zr_outer_close(engine);
    zr_engine_compression_close(engine);
    zr_drop(host_arena, &engine->small_squares);
    zr_drop(host_arena, &engine->squares);
    zr_drop(arena, &engine->wide);
    zr_drop(arena, &engine->results);
    for (unsigned t = 0; t < engine->tiers_count; t++)
        zr_state_store_close(&engine->tiers[t].store);
    zr_engine_gradient_file_close(engine);
    zr_engine_parameter_file_close(engine);
    zr_engine_delayed_close(engine);
    zr_engine_offload_close(engine);
    zr_drop(arena, &engine->versions.pool);
    for (unsigned t = 0; t < engine->tiers_count; t++) {
        zr_kept_pool_drop(engine->options.kept, engine->tiers[t].arena, &engine->tiers[t].sums);
        zr_kept_pool_drop(engine->options.kept, engine->tiers[t].arena, &engine->tiers[t].gradients);
        if (!engine->borrows_parameters)
            zr_kept_pool_drop(engine->options.kept, engine->tiers[t].arena, &engine->tiers[t].parameters);
    }
    zr_drop(host_arena, &engine->met);
    zr_drop(host_arena, &engine->units);
    if (engine->layout.units)
        zr_layout_end(&engine->layout);
    zr_drop(host_arena, &engine);
}

bool zr_engine_recovered(const zr_engine *engine)
{
    return engine && engine->recovered;
}

enum zr_optimizer_kind zr_engine_optimizer(const zr_engine *engine)
{
    return engine ? engine->options.optimizer.kind : ZR_OPTIMIZER_ADAMW;
}

enum zr_precision zr_engine_precision(const zr_engine *engine)
{
    return engine ? engine->options.precision : ZR_PRECISION_FP32;
}

uint64_t zr_engine_steps_done(const zr_engine *engine)
{
    return engine ? engine->steps_done : 0;
}

uint64_t zr_engine_elements(const zr_engine *engine)
{
    return engine ? engine->layout.elements : 0;
}

uint64_t zr_engine_padded_elements(const zr_engine *engine)
{
    return engine ? engine->layout.padded_elements : 0;
}
