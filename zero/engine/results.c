/* results.c: results of kernels that the host reads. If the host cannot access tensors, kernels write results
 * to an arena block, from which they are copied. */
#include "zero/engine/momentum.h"
#include "zero/engine/engine.h"

zr_result zr_engine_copy(const struct zr_engine *engine, void *to, const void *from, size_t bytes)
{
    return engine->options.kernels->copy_bytes(
        engine->options.context,
        &(struct zr_copy_bytes){.bytes = bytes, .from = from, .to = to, .waits = true});
}

/* Two-byte parameters of a unit and host floats. If the host cannot access the parameters, floats pass
 * through a block beside them. */
struct narrow_copy {
    size_t unit, count;
    struct zr_numbers parameters;
    float *floats;
    bool reads; /* the parameters, or the floats */
};

static zr_result convert(struct zr_compute compute, const struct narrow_copy *copy, size_t from, size_t count,
                         float *floats)
{
    struct zr_numbers narrow = zr_numbers_at(copy->parameters, from), wide = {floats, ZR_PRECISION_FP32};
    return compute.kernels->convert(compute.context, &(struct zr_convert){.n = count,
                                                                          .from = copy->reads ? narrow : wide,
                                                                          .to = copy->reads ? wide : narrow});
}

static zr_result copy_narrow(const struct zr_engine *engine, const struct narrow_copy *copy)
{
    struct zr_compute compute = zr_engine_parameter_compute(engine, copy->unit);
    zr_result result = ZR_OK;
    if (!compute.host_invisible)
        return convert(compute, copy, 0, copy->count, copy->floats);
    for (size_t done = 0, count; done < copy->count && result == ZR_OK; done += count) {
        count = copy->count - done < ZR_NARROW_ELEMENTS ? copy->count - done : ZR_NARROW_ELEMENTS;
        if (!copy->reads)
            result = zr_engine_copy(engine, engine->wide, copy->floats + done, count * sizeof *engine->wide);
        if (result == ZR_OK)
            result = convert(compute, copy, done, count, engine->wide);
        if (result == ZR_OK && copy->reads)
            result = zr_engine_copy(engine, copy->floats + done, engine->wide, count * sizeof *engine->wide);
    }
    return result;
}

zr_result zr_engine_get_floats(const struct zr_engine *engine, size_t unit, struct zr_numbers from,
                               size_t count, float *to)
{
    if (from.precision == ZR_PRECISION_FP32)
        return zr_engine_copy(engine, to, from.at, count * sizeof *to);
    return copy_narrow(engine, &(struct narrow_copy){unit, count, from, to, true});
}

zr_result zr_engine_put_floats(const struct zr_engine *engine, size_t unit, const float *from, size_t count,
                               struct zr_numbers to)
{
    if (to.precision == ZR_PRECISION_FP32)
        return zr_engine_copy(engine, to.at, from, count * sizeof *from);
    return copy_narrow(engine, &(struct narrow_copy){unit, count, to, (float *)from, false});
}

/* Copies blocks in the unit's kernels to `floats`, or back. */
static zr_result convert_blocks(struct zr_compute compute, const struct zr_state_blocks *all, size_t from,
                                size_t count, float *floats, bool reads)
{
    struct zr_block8 *blocks = (void *)((char *)all->blocks + zr_slot_state_bytes(all->slot, from));
    return reads
               ? compute.kernels->block8_read(
                     compute.context, &(struct zr_block8_read){count, all->slot->is_signed, blocks, floats})
               : compute.kernels->block8_write(
                     compute.context, &(struct zr_block8_write){count, all->slot->is_signed, floats, blocks});
}

static zr_result copy_blocks(const struct zr_engine *engine, const struct zr_state_blocks *all, float *floats,
                             bool reads)
{
    _Static_assert(ZR_NARROW_ELEMENTS % ZR_BLOCK8_NUMBERS == 0, "whole blocks");
    struct zr_compute compute = zr_engine_unit_compute(engine, all->unit);
    zr_result result = ZR_OK;
    if (!compute.host_invisible)
        return convert_blocks(compute, all, 0, all->count, floats, reads);
    for (size_t done = 0, count; done < all->count && result == ZR_OK; done += count) {
        count = all->count - done < ZR_NARROW_ELEMENTS ? all->count - done : ZR_NARROW_ELEMENTS;
        if (!reads)
            result = zr_engine_copy(engine, engine->wide, floats + done, count * sizeof *floats);
        if (result == ZR_OK)
            result = convert_blocks(compute, all, done, count, engine->wide, reads);
        if (result == ZR_OK && reads)
            result = zr_engine_copy(engine, floats + done, engine->wide, count * sizeof *floats);
    }
    return result;
}

zr_result zr_engine_get_blocks(const struct zr_engine *engine, const struct zr_state_blocks *from, float *to)
{
    return copy_blocks(engine, from, to, true);
}

zr_result zr_engine_put_blocks(const struct zr_engine *engine, const float *from,
                               const struct zr_state_blocks *to)
{
    return copy_blocks(engine, to, (float *)from, false);
}

zr_result zr_engine_drain(const struct zr_engine *engine)
{
    return engine->host_invisible && engine->state_tier->offloaded ? zr_engine_copy(engine, NULL, NULL, 0)
                                                                   : ZR_OK;
}

/* Destination of one 8-byte result: host memory or the first word of the block. */
static void *place_of(const struct zr_engine *engine, struct zr_compute compute, void *own)
{
    return compute.host_invisible ? engine->results : own;
}

/* The block has a result, then the squares of all ranks, then the gradients' weight. */
static double *squares_of(const struct zr_engine *engine, unsigned rank)
{
    return engine->results + 1 + rank * engine->layout.units_count;
}

static struct zr_gradient_weight *weight_of(const struct zr_engine *engine)
{
    return (struct zr_gradient_weight *)squares_of(engine, engine->world);
}

static struct zr_step_rates *rates_of(const struct zr_engine *engine)
{
    return (struct zr_step_rates *)(weight_of(engine) + 1);
}

size_t zr_engine_results_count(const struct zr_engine *engine)
{
    _Static_assert(sizeof(struct zr_gradient_weight) % sizeof(double) == 0 &&
                       sizeof(struct zr_step_rates) % sizeof(double) == 0,
                   "they lie among numbers");
    return 1 + engine->world * engine->layout.units_count +
           (sizeof(struct zr_gradient_weight) + sizeof(struct zr_step_rates)) / sizeof(double) +
           (engine->options.measures_squares ? engine->layout.units_count : 0);
}

double *zr_engine_small_squares_at(const struct zr_engine *engine, size_t unit)
{
    return (engine->host_invisible ? (double *)(rates_of(engine) + 1) : engine->small_squares) + unit;
}

/* With tensor or pipeline parallelism the host has them already. */
zr_result zr_engine_small_squares_read(const struct zr_engine *engine)
{
    return engine->host_invisible && !zr_engine_is_part(engine)
               ? zr_engine_copy(engine, engine->small_squares, zr_engine_small_squares_at(engine, 0),
                                engine->layout.units_count * sizeof(double))
               : ZR_OK;
}

zr_result zr_engine_all_squares_read(const struct zr_engine *engine)
{
    size_t units = engine->layout.units_count;
    return zr_engine_copy(engine, engine->squares + units, squares_of(engine, 0),
                          engine->world * units * sizeof(double));
}

static zr_result bring(const struct zr_engine *engine, struct zr_compute compute, void *own, zr_result result)
{
    _Static_assert(sizeof(double) == sizeof(uint64_t) && sizeof(size_t) == sizeof(uint64_t),
                   "places of one size");
    return result == ZR_OK && compute.host_invisible
               ? zr_engine_copy(engine, own, engine->results, sizeof(uint64_t))
               : result;
}

zr_result zr_engine_find_nonfinite(const struct zr_engine *engine, struct zr_compute compute, size_t n,
                                   struct zr_numbers x, size_t *index)
{
    return bring(engine, compute, index,
                 compute.kernels->find_nonfinite(
                     compute.context, &(struct zr_find_nonfinite){n, x, place_of(engine, compute, index)}));
}

zr_result zr_engine_checksum(const struct zr_engine *engine, struct zr_compute compute, const void *data,
                             size_t bytes, uint64_t *sum)
{
    return bring(engine, compute, sum,
                 compute.kernels->checksum(
                     compute.context, &(struct zr_checksum){bytes, data, place_of(engine, compute, sum)}));
}

zr_result zr_engine_squares(const struct zr_engine *engine, struct zr_compute compute, size_t n,
                            struct zr_numbers x, double *sum)
{
    return bring(engine, compute, sum,
                 compute.kernels->sum_of_squares(
                     compute.context, &(struct zr_sum_of_squares){n, x, place_of(engine, compute, sum)}));
}

struct zr_numbers zr_engine_counted_gradients(const struct zr_engine *engine, size_t unit,
                                              struct zr_overlap *range)
{
    const struct zr_unit_state *state = &engine->units[unit];
    if (zr_engine_sends_momentum(engine)) {
        *range = (struct zr_overlap){0, engine->layout.units[unit].padded_elements};
        return (struct zr_numbers){state->kept, engine->options.precision};
    }
    *range = zr_engine_shard(engine, unit);
    return state->reduced;
}

zr_result zr_engine_unit_squares(struct zr_engine *engine, size_t unit, double *sum)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_overlap range;
    struct zr_numbers gradients = zr_engine_counted_gradients(engine, unit, &range);
    struct zr_compute compute = zr_engine_unit_compute(engine, unit);
    zr_result result = ZR_OK;
    if (!zr_engine_is_part(engine))
        return compute.kernels->sum_of_squares(
            compute.context, &(struct zr_sum_of_squares){
                                 range.count, gradients,
                                 compute.host_invisible ? squares_of(engine, engine->rank) + unit : sum});
    *sum = 0;
    for (size_t i = 0; i < u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        struct zr_overlap overlap;
        double own = 0;
        if (p->parameter.part.copy ||
            !zr_layout_overlap(p, range.offset, range.offset + range.count, &overlap))
            continue;
        result = zr_engine_squares(engine, compute, overlap.count,
                                   zr_numbers_at(gradients, overlap.offset - range.offset), &own);
        *sum += own;
    }
    return result;
}

/* With offload, only squares of device-resident units are in device memory. */
zr_result zr_engine_squares_read(const struct zr_engine *engine, double *sums)
{
    struct zr_unit_range device_units = engine->squared;
    return engine->host_invisible && device_units.end > device_units.first
               ? zr_engine_copy(engine, sums + device_units.first,
                                squares_of(engine, engine->rank) + device_units.first,
                                (device_units.end - device_units.first) * sizeof *sums)
               : ZR_OK;
}

zr_result zr_engine_weigh(const struct zr_engine *engine, struct zr_engine_update *update)
{
    const struct zr_engine_options *o = &engine->options;
    size_t units = engine->layout.units_count;
    zr_ticket ticket = 0;
    zr_result result = ZR_OK;
    if (engine->world > 1)
        result = zr_comm_all_gather(o->comm,
                                    &(struct zr_all_gather){.source = squares_of(engine, engine->rank),
                                                            .destination = squares_of(engine, 0),
                                                            .shard_bytes = units * sizeof(double),
                                                            .label = ZR_COMM_LABEL_NONE},
                                    &ticket);
    if (result == ZR_OK)
        result = zr_comm_wait(o->comm, ticket);
    update->weight = weight_of(engine);
    return result == ZR_OK
               ? o->kernels->weigh_gradients(
                     o->context, &(struct zr_weigh_gradients){.units = units,
                                                              .ranks = engine->world,
                                                              .squares = squares_of(engine, 0),
                                                              .loss_scale = zr_engine_loss_scale(engine),
                                                              .clip = o->optimizer.clip,
                                                              .weight = weight_of(engine)})
               : result;
}

void zr_engine_rates_set(struct zr_engine *engine, const struct zr_engine_update *update)
{
    *engine->rates = (struct zr_step_rates){
        .rate = update->rate, .correction1 = update->correction1, .correction2 = update->correction2};
}

zr_result zr_engine_rates_send(struct zr_engine *engine, struct zr_engine_update *update)
{
    const struct zr_engine_options *o = &engine->options;
    if (!engine->rates)
        return ZR_OK;
    zr_engine_rates_set(engine, update);
    update->rates = rates_of(engine);
    return o->kernels->copy_bytes(o->context, &(struct zr_copy_bytes){.bytes = sizeof *engine->rates,
                                                                      .from = engine->rates,
                                                                      .to = rates_of(engine)});
}

zr_result zr_engine_weight_read(const struct zr_engine *engine, struct zr_gradient_weight *out)
{
    return zr_engine_copy(engine, out, weight_of(engine), sizeof *out);
}
