/* engine_check.c: what an engine is not made of, and when a call of it does not fit: each refusal names the
 * call or the value and says what would do. Whatever a stage forbids every stage forbids, so that a program
 * that runs at one runs at all. */
#include "zero/engine.h"

zr_result zr_engine_check_call(const struct zr_engine *engine, const char *call, const void *other)
{
    if (engine && other)
        return ZR_OK;
    return zr_fail(ZR_ERR_INVALID, "%s() was given NULL for %s", call,
                   engine ? "what it is to fill in or read" : "an engine");
}

zr_result zr_engine_check_unit(const struct zr_engine *engine, const char *call, unsigned unit,
                               const void *other)
{
    zr_result result = zr_engine_check_call(engine, call, other);
    if (result != ZR_OK || unit < engine->layout.units_count)
        return result;
    return zr_fail(ZR_ERR_INVALID, "%s() of unit %u: this engine has units 0 to %zu", call, unit,
                   engine->layout.units_count - 1);
}

static zr_result check_optimizer(const struct zr_optimizer_options *options)
{
    if ((unsigned)options->kind > ZR_OPTIMIZER_SGD)
        return zr_fail(ZR_ERR_INVALID, "optimizer number %d is none; take AdamW or SGD", (int)options->kind);
    if (options->groups_count > ZR_GROUPS_MAX)
        return zr_fail(ZR_ERR_INVALID, "%u parameter groups are more than %d", options->groups_count,
                       ZR_GROUPS_MAX);
    return ZR_OK;
}

zr_result zr_engine_check_options(const struct zr_engine_options *options)
{
    if (!options->arena || !options->host_arena || !options->kernels || !options->context || !options->comm)
        return zr_fail(ZR_ERR_INVALID,
                       "an engine needs arenas, kernels, a kernel context and a communicator");
    if (!options->list.parameters || !options->list.units)
        return zr_fail(ZR_ERR_INVALID, "an engine needs a list of parameters and one of units");
    if (options->stage > 3)
        return zr_fail(ZR_ERR_INVALID, "stage %u is not there; this engine has stages 0 to 3",
                       options->stage);
    if ((unsigned)options->precision >= ZR_PRECISION_COUNT)
        return zr_fail(ZR_ERR_INVALID, "precision number %d is none; take fp32, bf16 or fp16",
                       (int)options->precision);
    if (options->kernels != zr_kernels_null() && options->context->precision != options->precision)
        return zr_fail(ZR_ERR_INVALID,
                       "the engine is to be of %s and its kernel context is open for %s; give both the same",
                       zr_precision_name(options->precision), zr_precision_name(options->context->precision));
    if (options->reduce == ZR_REDUCE_ONCE && options->stage > 1)
        return zr_fail(ZR_ERR_INVALID,
                       "stage %u keeps no whole gradients that could be reduced once per step; take stage 0 "
                       "or 1, or reduce each micro-batch",
                       options->stage);
    return check_optimizer(&options->optimizer);
}
