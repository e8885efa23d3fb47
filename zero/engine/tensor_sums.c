/* tensor_sums.c: the sums over whole tensors of the updates of Adafactor and LAMB. Each rank sums the squares
 * of the elements that it updates. The sums of a unit have a place for each rank's shard and are added in the
 * order of the shards, also by a rank that updates all of them, so that the bits are the same at every stage.
 * Adafactor first sums the squares of rows and columns, which give its factors. */
#include "zero/engine/actions.h"
#include "zero/engine/momentum.h"

enum { SQUARES = 2 }; /* sums of zr_factor_norm and zr_lamb_norms */

/* The sums of a unit: of each part the rows' and columns' of all matrices, and the squares of all tensors. */
struct work {
    struct zr_engine_run *run;
    size_t unit;
    const struct zr_layout_unit *u;
    struct zr_compute compute;
    struct zr_adafactor how;
    unsigned first, end;        /* parts whose sums this rank makes: its own, or all */
    size_t factors, squares;    /* numbers of a part */
    double *sums, *all_squares; /* [parts][factors], [parts][squares] */
    float *means;               /* of the row factors, or trust ratios: by tensor */
};

static const struct zr_layout_parameter *tensor_of(const struct work *work, size_t index)
{
    return &work->run->engine->layout.parameters[work->u->first_parameter + index];
}

/* The number of rows and columns whose squares are summed. */
static size_t sums_of(const struct work *work, const struct zr_layout_parameter *p)
{
    size_t (*whole)(const struct zr_parameter *tensor) =
        work->u->optimizer->slots[ZR_ADAFACTOR_FACTORS].whole;
    return whole && p->has_slot[ZR_ADAFACTOR_FACTORS] ? whole(&p->parameter) : 0;
}

static zr_result make_room(struct work *work)
{
    struct zr_prepared *prepared = &work->run->prepared;
    size_t parts = work->run->engine->world, tensors = work->u->parameters_count;
    for (size_t i = 0; i < tensors; i++)
        work->factors += sums_of(work, tensor_of(work, i));
    work->squares = SQUARES * tensors;
    prepared->arena = work->run->engine->units[work->unit].tier->arena;
    zr_result result = zr_take(prepared->arena, ZR_TAG_WORKSPACE, parts * work->factors, sizeof *work->sums,
                               (void **)&work->sums);
    if (result == ZR_OK)
        result =
            zr_take(prepared->arena, ZR_TAG_WORKSPACE,
                    parts * work->squares * sizeof(double) + tensors * sizeof(float), 1, &prepared->memory);
    work->all_squares = prepared->memory;
    work->means = (float *)(work->all_squares + parts * work->squares);
    prepared->row_means = work->means;
    prepared->squares = work->all_squares;
    return result;
}

static zr_result clear(const struct work *work, double *numbers, size_t of_part)
{
    const size_t bytes = of_part * sizeof *numbers;
    return work->compute.kernels->clear(
        work->compute.context,
        &(struct zr_clear){(work->end - work->first) * bytes, numbers + work->first * of_part});
}

/* Brings every rank the numbers of all parts. The communicator's operations move data in its own arena. */
static zr_result gather(const struct work *work, double *numbers, size_t of_part)
{
    struct zr_engine *engine = work->run->engine;
    const size_t bytes = of_part * sizeof *numbers;
    double *mine = numbers + engine->rank * of_part;
    zr_ticket ticket;
    if (work->end - work->first == engine->world || bytes == 0)
        return ZR_OK;
    if (work->run->prepared.arena != engine->options.arena)
        return engine->simulated ? ZR_OK
                                 : zr_comm_host_all_gather(engine->options.comm, mine, bytes, numbers);
    zr_result result =
        zr_comm_all_gather(engine->options.comm,
                           &(struct zr_all_gather){.source = mine,
                                                   .destination = numbers,
                                                   .shard_bytes = bytes,
                                                   .label = ZR_ENGINE_LABEL(work->unit, ZR_LABEL_GRADIENTS)},
                           &ticket);
    return result == ZR_OK ? zr_comm_wait(engine->options.comm, ticket) : result;
}

/* Part `part` of a tensor among those of this rank; false: there is none. */
static bool overlaps(const struct work *work, const struct zr_layout_parameter *p, unsigned part,
                     struct zr_overlap *out)
{
    const size_t shard = work->u->shard_elements;
    return zr_layout_overlap(p, part * shard, (part + 1) * shard, out);
}

static zr_result sum_squares(const struct work *work)
{
    const struct zr_owned *owned = &work->run->owned;
    zr_result result = clear(work, work->sums, work->factors);
    for (unsigned part = work->first; part < work->end; part++) {
        double *sums = work->sums + part * work->factors;
        for (size_t i = 0; i < work->u->parameters_count && result == ZR_OK; i++) {
            const struct zr_layout_parameter *p = tensor_of(work, i);
            struct zr_overlap overlap;
            if (sums_of(work, p) > 0 && overlaps(work, p, part, &overlap))
                result = work->compute.kernels->factor_sums(
                    work->compute.context,
                    &(struct zr_factor_sums){
                        .n = overlap.count,
                        .first = overlap.offset - p->offset,
                        .columns = p->parameter.shape[1],
                        .gradient = zr_numbers_at(work->run->gradients, overlap.offset - owned->from),
                        .gradient_scale = work->how.gradient_scale,
                        .weight = work->how.weight,
                        .row_sums = sums,
                        .column_sums = sums + p->parameter.shape[0]});
            sums += sums_of(work, p);
        }
    }
    return result == ZR_OK ? gather(work, work->sums, work->factors) : result;
}

static zr_result move_factors(const struct work *work)
{
    const double *sums = work->sums;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < work->u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = tensor_of(work, i);
        float *factors = zr_owned_slot(work->run->engine, p, &work->run->owned, ZR_ADAFACTOR_FACTORS, 0);
        size_t rows = p->parameter.shape[0];
        if (sums_of(work, p) > 0)
            result = work->compute.kernels->factor_moments(
                work->compute.context, &(struct zr_factor_moments){.how = work->how,
                                                                   .rows = rows,
                                                                   .columns = p->parameter.shape[1],
                                                                   .parts = work->run->engine->world,
                                                                   .stride = work->factors,
                                                                   .row_sums = sums,
                                                                   .column_sums = sums + rows,
                                                                   .row_factors = factors,
                                                                   .column_factors = factors + rows,
                                                                   .row_mean = work->means + i});
        sums += sums_of(work, p);
    }
    return result;
}

static zr_result sum_updates(const struct work *work)
{
    zr_result result = clear(work, work->all_squares, work->squares);
    for (unsigned part = work->first; part < work->end; part++)
        for (size_t i = 0; i < work->u->parameters_count && result == ZR_OK; i++) {
            struct zr_overlap overlap;
            if (!overlaps(work, tensor_of(work, i), part, &overlap))
                continue;
            const struct zr_optimizer_call call = zr_engine_update_call(work->run, work->unit, i, &overlap);
            result = work->u->optimizer->sum(&call, work->all_squares + part * work->squares + SQUARES * i);
        }
    return result == ZR_OK ? gather(work, work->all_squares, work->squares) : result;
}

/* Keeps the momentum of the taken unit, which this step moves, if the optimizer needs it. */
static zr_result keep_momentum(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const size_t count = run->owned.to - run->owned.from;
    float **before = &run->before[unit % 2];
    if (!engine->layout.units[unit].optimizer->trust || !run->update.keeps_variance ||
        run->update.keeps_momentum)
        return ZR_OK;
    zr_result result =
        zr_take(engine->options.arena, ZR_TAG_WORKSPACE, count, sizeof **before, (void **)before);
    return result != ZR_OK
               ? result
               : engine->options.kernels->copy_bytes(engine->options.context,
                                                     &(struct zr_copy_bytes){.bytes = count * sizeof **before,
                                                                             .from = run->owned.slots[0],
                                                                             .to = *before,
                                                                             .waits = true});
}

/* The trust ratios of the unit's tensors. */
static void find_trust(const struct work *work)
{
    const struct zr_engine_run *run = work->run;
    for (size_t i = 0; i < work->u->parameters_count && work->compute.kernels->executes; i++) {
        const struct zr_layout_parameter *p = tensor_of(work, i);
        const struct zr_tensor_sums sums = {
            .squares = work->all_squares + SQUARES * i, .parts = run->engine->world, .stride = work->squares};
        work->means[i] =
            work->u->optimizer->trust(&run->engine->options.optimizer, &sums, run->update.keeps_variance,
                                      zr_owned_slot(run->engine, p, &run->owned, ZR_LAMB_TRUST, 0));
    }
}

zr_result zr_engine_sum_tensors(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const struct zr_engine_update *update = &run->update;
    struct work work = {.run = run,
                        .unit = unit,
                        .u = &engine->layout.units[unit],
                        .compute = zr_engine_updater(engine, unit, update),
                        .how = zr_adafactor_paper,
                        .end = engine->world};
    work.how.share = update->correction1;
    work.how.gradient_scale = update->gradient_scale;
    work.how.weight = update->weight;
    work.how.rates = update->rates;
    if (run->owned.to - run->owned.from < work.u->padded_elements) {
        work.first = engine->rank;
        work.end = engine->rank + 1;
    }
    const bool moves_only = zr_engine_moves_only(engine, update);
    zr_result result = keep_momentum(run, unit);
    if (result == ZR_OK)
        result = make_room(&work);
    if (result == ZR_OK)
        result = sum_squares(&work);
    if (result == ZR_OK)
        result = move_factors(&work);
    if (result == ZR_OK)
        result = sum_updates(&work);
    if (result == ZR_OK && work.u->optimizer->trust && !moves_only)
        find_trust(&work);
    if (!moves_only)
        zr_drop(engine->options.arena, &run->before[unit % 2]);
    zr_drop(run->prepared.arena, &work.sums);
    return result;
}
