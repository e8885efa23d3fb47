/* average.c: parameters that the state has beside those of now: their moving average, which updates move
 * (update.c), or the anchor of groups, which synchronisations move (outer.c). */
#include "zero/engine/update.h"

/* The average or the anchor of the elements of `owned`; NULL: there is none. */
static float *kept_of(const struct zr_engine *engine, size_t unit, const struct zr_owned *owned)
{
    const struct zr_optimizer *optimizer = engine->layout.units[unit].optimizer;
    return optimizer->kept_count > 0 ? owned->slots[optimizer->slots_count - optimizer->kept_count] : NULL;
}

zr_result zr_engine_start_average(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                                  struct zr_overlap part)
{
    float *average = kept_of(engine, unit, owned);
    struct zr_compute compute = zr_engine_unit_compute(engine, unit);
    size_t skip = part.offset - owned->from;
    return average ? compute.kernels->average(compute.context,
                                              &(struct zr_average){.n = part.count,
                                                                   .average = average + skip,
                                                                   .master = owned->master + skip})
                   : ZR_OK;
}

static zr_result exchange_unit(struct zr_engine *engine, size_t unit)
{
    struct zr_compute compute = zr_engine_unit_compute(engine, unit);
    struct zr_owned owned;
    if (zr_engine_is_frozen(engine, unit))
        return ZR_OK;
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    if (result == ZR_OK)
        result = compute.kernels->average(compute.context,
                                          &(struct zr_average){.n = owned.to - owned.from,
                                                               .exchanges = true,
                                                               .average = kept_of(engine, unit, &owned),
                                                               .master = owned.master});
    zr_result given = zr_engine_give_owned(engine, unit, true);
    result = result == ZR_OK ? given : result;
    return result == ZR_OK ? zr_engine_publish_masters(engine, unit) : result;
}

zr_result zr_engine_exchange_average(zr_engine *engine)
{
    zr_result result = zr_engine_check_call(engine, __func__, engine);
    if (result == ZR_OK && engine->optimizer->kept_count == 0)
        result = zr_fail(
            ZR_ERR_INVALID,
            "%s(): the engine has neither an average nor groups; set optimizer.average_decay or outer",
            __func__);
    if (result == ZR_OK)
        result = zr_engine_check_between_steps(engine, __func__);
    if (result == ZR_OK)
        result = zr_engine_check_unused(engine, __func__);
    if (result == ZR_OK)
        result = zr_engine_synchronize(engine);
    if (result == ZR_OK && engine->options.shares_parameters) /* another rank may still compute with them */
        result = zr_comm_barrier(engine->options.comm);
    if (result == ZR_OK)
        result = zr_engine_drop_parameters(engine);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        result = exchange_unit(engine, u);
    return result == ZR_OK ? zr_engine_synchronize(engine) : result;
}
