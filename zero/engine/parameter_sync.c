/* parameter_sync.c: gathering whole parameters, comparing them between ranks, and the segments of the model
 * that this rank owns, for checkpoints. */
#include "zero/engine/compression.h"
#include "zero/engine/gradients.h"
#include "zero/engine/update.h"
#include "zero/engine/speculate.h"
#include "zero/engine/parameter_tier.h"
#include "zero/engine/offload.h"

#include <inttypes.h>

zr_result zr_engine_all_gather_parameters(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_engine_await_parameters(engine, unit); /* wait for this rank's shard */
    if (result != ZR_OK)
        return result;
    if (engine->options.shares_parameters) /* the ranks meet: each has written its shard where all read it */
        return zr_engine_gather_shards(
            engine, unit,
            &(struct zr_all_gather){.source = engine->met + engine->rank,
                                    .destination = engine->met,
                                    .shard_bytes = 1,
                                    .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_PARAMETERS),
                                    .type = engine->comm_type});
    size_t shard_bytes = engine->layout.units[unit].shard_elements * engine->parameter_bytes;
    if (engine->options.root_owns)
        return zr_comm_broadcast(engine->options.comm,
                                 &(struct zr_broadcast){.buffer = state->whole,
                                                        .bytes = engine->world * shard_bytes,
                                                        .root = 0,
                                                        .type = engine->comm_type},
                                 &state->parameter_ticket);
    return zr_engine_gather_shards(
        engine, unit,
        &(struct zr_all_gather){.source = (char *)state->whole + engine->rank * shard_bytes,
                                .destination = state->whole,
                                .shard_bytes = shard_bytes,
                                .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_PARAMETERS),
                                .type = engine->comm_type});
}

const struct zr_layout_parameter *zr_engine_parameter_at(const struct zr_engine *engine, size_t unit,
                                                         size_t element)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    for (size_t i = 0; i < u->parameters_count; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        if (element >= p->offset && element - p->offset < p->elements)
            return p;
    }
    return NULL;
}

static zr_result end_operations(struct zr_engine *engine)
{
    zr_result first = ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        zr_result reduced = zr_engine_end_reduction(engine, u);
        zr_result gathered = zr_engine_await_gather(engine, u);
        if (first == ZR_OK)
            first = reduced != ZR_OK ? reduced : gathered;
    }
    return first;
}

zr_result zr_engine_join(struct zr_engine *engine)
{
    zr_result result = end_operations(engine);
    return result == ZR_OK && engine->world > 1 ? zr_comm_synchronize(engine->options.comm) : result;
}

zr_result zr_engine_synchronize(zr_engine *engine)
{
    zr_result first = zr_engine_check_call(engine, __func__, engine);
    if (first != ZR_OK)
        return first;
    first = zr_engine_delayed_await(engine);
    zr_result ended = end_operations(engine);
    if (first == ZR_OK)
        first = ended;
    if (first == ZR_OK && engine->host_invisible) /* wait for queued kernels */
        first = zr_engine_copy(engine, NULL, NULL, 0);
    /* Waits for peers that gather from this rank's shard. */
    return first == ZR_OK && engine->world > 1 ? zr_comm_synchronize(engine->options.comm) : first;
}

/* Synchronizes and rolls back speculative updates. */
static zr_result synchronize_and_roll_back(struct zr_engine *engine)
{
    bool rolled_back;
    zr_result result = zr_engine_speculation_settle(engine, NULL, &rolled_back);
    return result == ZR_OK ? zr_engine_synchronize(engine) : result;
}

static zr_result all_gather_state(struct zr_engine *engine, size_t unit, void *whole, size_t shard_bytes)
{
    engine->units[unit].gathers = engine->options.comm;
    return zr_comm_all_gather(engine->options.comm,
                              &(struct zr_all_gather){.source = (char *)whole + engine->rank * shard_bytes,
                                                      .destination = whole,
                                                      .shard_bytes = shard_bytes,
                                                      .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_PARAMETERS),
                                                      .type = ZR_COMM_FP32},
                              &engine->units[unit].parameter_ticket);
}

/* The same for a slot that not every tensor has: ranks have shares of different sizes. */
static zr_result broadcast_shares(struct zr_engine *engine, size_t unit, unsigned slot, char *whole)
{
    const struct zr_layout *layout = &engine->layout;
    size_t shard = layout->units[unit].shard_elements;
    zr_result result = ZR_OK;
    engine->units[unit].gathers = engine->options.comm;
    for (unsigned r = 0; r < engine->world && result == ZR_OK; r++) {
        size_t from = zr_layout_covered(layout, unit, slot, 0, r * shard),
               count = zr_layout_covered(layout, unit, slot, r * shard, (r + 1) * shard);
        const struct zr_optimizer_slot *of = &layout->units[unit].optimizer->slots[slot];
        if (count > 0)
            result = zr_comm_broadcast(engine->options.comm,
                                       &(struct zr_broadcast){.buffer = whole + zr_slot_state_bytes(of, from),
                                                              .bytes = zr_slot_state_bytes(of, count),
                                                              .root = r,
                                                              .type = ZR_COMM_FP32},
                                       &engine->units[unit].parameter_ticket);
    }
    return result;
}

/* At stage 0 each rank holds the whole state, of which it has loaded only its shard. Operations end in order,
 * so the ticket of the last one covers all. */
static zr_result all_gather_states(struct zr_engine *engine, size_t unit)
{
    struct zr_owned owned;
    size_t shard_elements = engine->layout.units[unit].shard_elements;
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    const struct zr_optimizer *optimizer = engine->layout.units[unit].optimizer;

    for (unsigned s = 0; s < optimizer->slots_count && result == ZR_OK; s++)
        result = optimizer->slots[s].whole ? ZR_OK /* every rank has loaded all of it */
                 : optimizer->slots[s].covers
                     ? broadcast_shares(engine, unit, s, owned.slots[s])
                     : all_gather_state(engine, unit, owned.slots[s],
                                        zr_slot_state_bytes(&optimizer->slots[s], shard_elements));
    if (result == ZR_OK && engine->units[unit].tier->masters)
        result = all_gather_state(engine, unit, owned.master, shard_elements * sizeof(float));
    zr_result given = zr_engine_give_owned(engine, unit, true);
    return result == ZR_OK ? given : result;
}

/* Whether this rank keeps, or updates, more of a unit than its shard. */
static bool keeps_more(const struct zr_engine *engine, size_t unit)
{
    return engine->units[unit].parameters_count > engine->layout.units[unit].shard_elements;
}

static bool updates_more(const struct zr_engine *engine, size_t unit)
{
    return !zr_engine_is_frozen(engine, unit) &&
           zr_unit_owned(&engine->units[unit]) > zr_engine_shard(engine, unit).count;
}

/* Gathers a unit's parameters that this rank holds beyond its shard. */
static zr_result gather_others(struct zr_engine *engine, size_t unit)
{
    return keeps_more(engine, unit) ? zr_engine_all_gather_parameters(engine, unit) : ZR_OK;
}

zr_result zr_engine_publish_masters(struct zr_engine *engine, size_t unit)
{
    zr_result result = zr_engine_round_masters(engine, unit);
    return result == ZR_OK ? gather_others(engine, unit) : result;
}

/* Gathers a unit's parameters and state that this rank holds beyond its shard. */
static zr_result all_gather_unit(struct zr_engine *engine, size_t unit)
{
    zr_result result = gather_others(engine, unit);
    return result == ZR_OK && updates_more(engine, unit) ? all_gather_states(engine, unit) : result;
}

zr_result zr_engine_publish(zr_engine *engine, uint64_t steps_done)
{
    zr_result result = zr_engine_check_call(engine, __func__, engine);
    if (result == ZR_OK)
        result = zr_engine_check_between_steps(engine, __func__);
    if (result == ZR_OK)
        result = zr_engine_check_unused(engine, __func__);
    if (result != ZR_OK)
        return result;
    result = zr_engine_drop_parameters(engine);
    zr_result delayed = zr_engine_delayed_await(engine);
    result = result == ZR_OK ? delayed : result;
    if (result == ZR_OK)
        result = zr_engine_drain(engine);
    zr_engine_delayed_forget(engine); /* its parameters are obsolete, because the masters were loaded */
    engine->steps_done = steps_done;
    engine->local = (struct zr_local_steps){0};
    /* At stage 0 the all-gather below brings the other parts. */
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        result = zr_engine_round_masters(engine, u);
    if (engine->world == 1 && !zr_engine_is_part(engine))
        return result;
    for (size_t u = 0; engine->world > 1 && result == ZR_OK && u < engine->layout.units_count; u++)
        result = all_gather_unit(engine, u);
    if (result == ZR_OK)
        result = zr_engine_synchronize(engine);
    return result != ZR_OK ? result : zr_engine_verify_replicas(engine);
}

static zr_result add_checksum(const struct zr_engine *engine, struct zr_compute compute, const void *data,
                              size_t bytes, uint64_t *sum)
{
    uint64_t own = 0;
    zr_result result = zr_engine_checksum(engine, compute, data, bytes, &own);
    *sum = (*sum ^ own) * UINT64_C(0x9e3779b97f4a7c15);
    return result;
}

static zr_result add_masters(struct zr_engine *engine, size_t unit, uint64_t *sum)
{
    struct zr_owned owned;
    if (!engine->units[unit].tier->masters)
        return ZR_OK;
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    if (result == ZR_OK)
        result = add_checksum(engine, zr_engine_unit_compute(engine, unit), owned.master,
                              (owned.to - owned.from) * sizeof(float), sum);
    zr_result given = zr_engine_give_owned(engine, unit, false);
    return result == ZR_OK ? given : result;
}

/* Compares parameters that are kept whole; sharded parameters exist only once. */
static zr_result replica_checksum(struct zr_engine *engine, uint64_t *sum)
{
    zr_result result = ZR_OK;
    *sum = engine->layout.elements * UINT64_C(0x9e3779b97f4a7c15) ^ engine->steps_done;
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        if (updates_more(engine, u))
            result = add_masters(engine, u, sum);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        if (keeps_more(engine, u))
            result = add_checksum(engine, engine->tiers[0].compute, engine->units[u].whole,
                                  engine->layout.units[u].padded_elements * engine->parameter_bytes, sum);
    return result;
}

/* Checksum of this rank's part of tensors that every tensor rank has whole, or that pipeline ranks share. */
static zr_result copies_checksum(struct zr_engine *engine, bool shared, uint64_t *sum)
{
    zr_result result = ZR_OK;
    *sum = 0;
    for (size_t i = 0; i < engine->layout.parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[i];
        struct zr_owned owned;
        struct zr_overlap overlap;
        if (!(shared ? p->parameter.part.shared : p->parameter.part.whole[0] == 0))
            continue;
        result = zr_engine_take_owned(engine, p->parameter.unit, &owned);
        if (result == ZR_OK && zr_layout_overlap(p, owned.from, owned.to, &overlap)) {
            struct zr_numbers values = zr_numbers_at(zr_owned_values(&owned), overlap.offset - owned.from);
            result = add_checksum(engine, zr_engine_unit_compute(engine, p->parameter.unit), values.at,
                                  overlap.count * zr_precision_bytes(values.precision), sum);
        }
        zr_result given = zr_engine_give_owned(engine, p->parameter.unit, false);
        result = result == ZR_OK ? given : result;
    }
    return result;
}

static zr_result compare_checksums(zr_comm *comm, uint64_t mine, const char *whose, const char *what)
{
    uint64_t all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(comm, &mine, sizeof mine, all);
    for (unsigned r = 1; r < zr_comm_world(comm) && result == ZR_OK; r++)
        if (all[r] != all[0])
            result =
                zr_fail(ZR_ERR_CORRUPT,
                        "%srank %u has other %s than %srank 0 (checksums %016" PRIx64 " and %016" PRIx64
                        "); run all ranks with the same arguments and build on the same kind of processor",
                        whose, r, what, whose, all[r], all[0]);
    return result;
}

zr_result zr_engine_verify_replicas(zr_engine *engine)
{
    uint64_t mine;
    zr_result result = zr_engine_check_call(engine, __func__, engine);

    if (result != ZR_OK || engine->simulated || (engine->world == 1 && !zr_engine_is_part(engine)))
        return result;
    result = synchronize_and_roll_back(engine);
    if (result == ZR_OK)
        result = replica_checksum(engine, &mine);
    if (result == ZR_OK)
        result = compare_checksums(engine->options.comm, mine, "", "parameters");
    if (result == ZR_OK && engine->options.tensor)
        result = copies_checksum(engine, false, &mine);
    if (result == ZR_OK && engine->options.tensor)
        result = compare_checksums(engine->options.tensor, mine, "tensor ", "norms and biases");
    if (result == ZR_OK && engine->options.sharing)
        result = copies_checksum(engine, true, &mine);
    if (result == ZR_OK && engine->options.sharing)
        result = compare_checksums(engine->options.sharing, mine, "pipeline ", "tied embedding");
    return result;
}

/* This rank's parameters of a unit, whole or a shard; valid until the next call. */
static zr_result kept_parameters(struct zr_engine *engine, size_t unit, void **out)
{
    struct zr_parameter_source source;
    zr_result result = engine->units[unit].parameters->get(engine, unit, &source);
    if (result == ZR_OK)
        result = zr_engine_parameter_await(engine, unit);
    zr_engine_parameter_let_go(engine, unit);
    const struct zr_unit_state *state = &engine->units[unit];
    *out = (char *)source.shard - (state->owned.from - state->parameters_from) * engine->parameter_bytes;
    return result;
}

zr_result zr_engine_verify_finite(zr_engine *engine)
{
    zr_result result = zr_engine_check_call(engine, __func__, engine);
    if (result == ZR_OK)
        result = synchronize_and_roll_back(engine);
    if (result != ZR_OK || engine->simulated)
        return result;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_unit_state *state = &engine->units[u];
        size_t count = state->parameters_count, at = count;
        void *kept;
        result = kept_parameters(engine, u, &kept);
        if (result == ZR_OK)
            result = zr_engine_find_nonfinite(engine, zr_engine_parameter_compute(engine, u), count,
                                              (struct zr_numbers){kept, engine->options.precision}, &at);
        if (result != ZR_OK)
            return result;
        if (at == count)
            continue;
        at += state->parameters_from;
        const struct zr_layout_parameter *p = zr_engine_parameter_at(engine, u, at);
        return zr_fail(ZR_ERR_CORRUPT, "parameter %s is not finite at element %zu after %" PRIu64 " steps",
                       p ? p->parameter.name : "padding", p ? at - p->offset : at, engine->steps_done);
    }
    return ZR_OK;
}

size_t zr_engine_segments_count(const zr_engine *engine)
{
    return engine ? engine->segments_count : 0;
}

/* Finds the unit of segment `index`: the last one whose segments begin at or before it. */
static size_t unit_of_segment(const struct zr_engine *engine, size_t index)
{
    size_t low = 0, high = engine->layout.units_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (engine->units[middle].first_segment <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void zr_engine_segment(const zr_engine *engine, size_t index, struct zr_shard_segment *out)
{
    if (!out)
        return;
    *out = (struct zr_shard_segment){0};
    if (index >= zr_engine_segments_count(engine))
        return;
    size_t u = unit_of_segment(engine, index), left = index - engine->units[u].first_segment;
    const struct zr_layout_unit *unit = &engine->layout.units[u];
    const struct zr_overlap shard = zr_engine_shard(engine, u);
    size_t from = shard.offset, to = from + shard.count;
    const struct zr_owned *owned = &engine->units[u].owned;
    if (!engine->state_tier->store.table->random || engine->units[u].take) /* in a file */
        return;
    for (size_t i = 0; i < unit->parameters_count; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[unit->first_parameter + i];
        size_t pieces = zr_layout_pieces(p, from, to);
        if (left >= pieces) {
            left -= pieces;
            continue;
        }
        struct zr_tensor_piece piece = zr_layout_piece(p, from, to, left);
        size_t skip = piece.offset - owned->from;
        *out = (struct zr_shard_segment){
            .global_index = piece.global_index,
            .count = piece.count,
            .parameter = owned->master ? owned->master + skip : NULL,
            .momentum = zr_owned_floats(engine, p, owned, 0, skip),
            .variance = zr_owned_floats(engine, p, owned, 1, skip),
        };
        return;
    }
}
