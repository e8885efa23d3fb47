/* engine_check.c: what an engine is not made of, and when a call of it does not fit: each refusal names the
 * call or the value and says what would do. Whatever a stage forbids every stage forbids, so that a program
 * that runs at one runs at all. */
#include "zero/engine/engine.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

zr_result zr_engine_check_call(const struct zr_engine *engine, const char *call, const void *other)
{
    if (engine && other)
        return ZR_OK;
    return zr_fail(ZR_ERR_INVALID,
                   engine ? "%s() needs what it is to fill in or read, not NULL" : "%s() needs an engine",
                   call);
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

zr_result zr_engine_check_between_steps(const struct zr_engine *engine, const char *call)
{
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_unit_state *state = &engine->units[u];
        if (state->awaited || state->accumulated > 0)
            return zr_fail(ZR_ERR_INVALID, "%s() in the middle of a step: unit %s has %s; end the step first",
                           call, engine->layout.units[u].unit.name,
                           state->awaited ? "gradients that were not handed over" : "handed gradients over");
    }
    return ZR_OK;
}

zr_result zr_engine_check_unused(const struct zr_engine *engine, const char *call)
{
    for (size_t u = 0; u < engine->layout.units_count; u++)
        if (engine->units[u].references > 0)
            return zr_fail(ZR_ERR_INVALID, "%s() while unit %s is in use; release it first", call,
                           engine->layout.units[u].unit.name);
    return ZR_OK;
}

/* A number of the options and where it may lie; NaN is nowhere. */
struct number {
    const char *name;
    float value, least, most;
    bool less; /* than `most`, not as much */
};

static zr_result check_numbers(const struct number *numbers, size_t count)
{
    for (const struct number *n = numbers; n < numbers + count; n++)
        if (!(n->value >= n->least && n->value <= n->most) || (n->less && n->value == n->most))
            return zr_fail(ZR_ERR_INVALID, "%s is %g; it has to be from %g to %s%g", n->name,
                           (double)n->value, (double)n->least, n->less ? "below " : "", (double)n->most);
    return ZR_OK;
}

static zr_result check_optimizer(const struct zr_engine_options *engine_options)
{
    const struct zr_optimizer_options *options = &engine_options->optimizer;
    const struct number shared[] = {{"weight_decay", options->weight_decay, 0, FLT_MAX, false},
                                    {"clip", options->clip, 0, FLT_MAX, false}};
    const struct number sgd[] = {{"momentum_factor", options->momentum_factor, 0, 1, true}};
    /* Without an epsilon a gradient of zero divides by zero; where nothing is computed it is not needed. */
    float least_epsilon = engine_options->kernels->executes ? FLT_MIN : 0;
    const struct number adamw[] = {{"beta1", options->beta1, 0, 1, true},
                                   {"beta2", options->beta2, 0, 1, true},
                                   {"epsilon", options->epsilon, least_epsilon, FLT_MAX, false}};
    zr_result result;

    if ((unsigned)options->kind > ZR_OPTIMIZER_SGD)
        return zr_fail(ZR_ERR_INVALID, "optimizer number %d is none; take AdamW or SGD", (int)options->kind);
    if (options->groups_count > ZR_GROUPS_MAX)
        return zr_fail(ZR_ERR_INVALID, "%u parameter groups are more than %d", options->groups_count,
                       ZR_GROUPS_MAX);
    result = check_numbers(shared, sizeof shared / sizeof *shared);
    for (unsigned g = 0; g < options->groups_count && result == ZR_OK; g++) {
        const struct number factors[] = {
            {"a group's rate_factor", options->groups[g].rate_factor, 0, FLT_MAX, false},
            {"a group's decay_factor", options->groups[g].decay_factor, 0, FLT_MAX, false}};
        result = check_numbers(factors, sizeof factors / sizeof *factors);
    }
    if (result != ZR_OK)
        return result;
    return options->kind == ZR_OPTIMIZER_SGD ? check_numbers(sgd, sizeof sgd / sizeof *sgd)
                                             : check_numbers(adamw, sizeof adamw / sizeof *adamw);
}

static zr_result check_scaling(const struct zr_loss_scaling *scaling)
{
    const struct number numbers[] = {{"loss_scaling.initial", scaling->initial, 0, ZR_LOSS_SCALE_MOST, false},
                                     {"loss_scaling.least", scaling->least, 0, ZR_LOSS_SCALE_MOST, false}};
    return check_numbers(numbers, sizeof numbers / sizeof *numbers);
}

/* Of each unit at least one gradient per step, and no more than can be counted. */
static zr_result check_gradient_uses(const struct zr_engine_options *options)
{
    unsigned micro_batches = options->micro_batches > 0 ? options->micro_batches : 1;
    for (size_t u = 0; u < options->list.units_count; u++) {
        const struct zr_unit *unit = &options->list.units[u];
        if (unit->gradient_uses == 0)
            return zr_fail(ZR_ERR_INVALID,
                           "unit %.*s has 0 gradient uses and would never learn; a unit has 1 per use",
                           (int)sizeof unit->name, unit->name);
        if (unit->gradient_uses > UINT32_MAX / micro_batches)
            return zr_fail(ZR_ERR_INVALID,
                           "unit %.*s has %u gradient uses in each of %u micro-batches, too many to count",
                           (int)sizeof unit->name, unit->name, unit->gradient_uses, micro_batches);
    }
    return ZR_OK;
}

static zr_result check_parameters(const struct zr_engine_options *options)
{
    const struct zr_parameter_list *list = &options->list;
    unsigned tensor = options->tensor ? zr_comm_world(options->tensor) : 0;
    for (size_t i = 0; i < list->parameters_count; i++) {
        const struct zr_parameter *p = &list->parameters[i];
        if (p->part.sum_gradient && (tensor == 0 || zr_parameter_elements(p) % tensor))
            return zr_fail(ZR_ERR_INVALID,
                           "the gradient of parameter %.*s is to be added over %u tensor ranks, which do not "
                           "divide its elements",
                           (int)sizeof p->name, p->name, tensor);
        if (p->part.shared && (!options->sharing ||
                               ZR_SHARD_ALIGN_BYTES / sizeof(float) % zr_comm_world(options->sharing) != 0))
            return zr_fail(
                ZR_ERR_INVALID,
                "the gradient of parameter %.*s is to be added over ranks that share it: 2, 4, 8 .. "
                "of them, in zr_engine_options.sharing",
                (int)sizeof p->name, p->name);
        if (!isfinite(p->init_mean) || !isfinite(p->init_deviation) || p->init_deviation < 0)
            return zr_fail(ZR_ERR_INVALID,
                           "parameter %.*s cannot begin with a mean of %g and a deviation of %g",
                           (int)sizeof p->name, p->name, (double)p->init_mean, (double)p->init_deviation);
    }
    return ZR_OK;
}

/* Where kernels compute behind the host, on tensors that it does not see. */
static zr_result check_offload_apart(const struct zr_engine_options *options)
{
    const struct zr_offload *offload = &options->offload;
    if (!options->kernels->executes || options->kernels->host_visible)
        return ZR_OK;
    if (offload->speculative_bytes > 0 || offload->parameters_file)
        return zr_fail(ZR_ERR_INVALID,
                       "a speculative update and a file of parameters are of the host, which does not see "
                       "the tensors of \"%s\"; leave them out",
                       options->kernels->name);
    if (offload->file && !(options->host_kernels && options->host_kernels->host_visible))
        return zr_fail(ZR_ERR_INVALID,
                       "an offload file is read and written by the host, which does not see when \"%s\" has "
                       "ended; give host_kernels, too",
                       options->kernels->name);
    return ZR_OK;
}

static zr_result check_offload(const struct zr_engine_options *options)
{
    const struct zr_offload *offload = &options->offload;
    bool several = zr_comm_world(options->comm) > 1;
    if (offload->delayed && !offload->optimizer)
        return zr_fail(ZR_ERR_INVALID, "an update can be delayed where the optimizer is offloaded");
    if (offload->speculative_bytes > 0 && !offload->optimizer)
        return zr_fail(ZR_ERR_INVALID, "an update can be speculative where the optimizer is offloaded");
    if (offload->speculative_bytes > 0 && offload->delayed)
        return zr_fail(ZR_ERR_INVALID, "a delayed update knows the norm before it begins, and has nothing to "
                                       "speculate on; take one of the two");
    if ((offload->optimizer || offload->parameters) && !offload->host)
        return zr_fail(ZR_ERR_INVALID, "offload needs an arena of host memory, in zr_engine_options.offload");
    if (offload->file && (!offload->optimizer || !offload->file->folder))
        return zr_fail(ZR_ERR_INVALID, "an offload file is of the optimizer, which has to be offloaded too, "
                                       "and needs a folder");
    if (offload->file && offload->file->buffers > 0 &&
        (offload->file->buffers < ZR_NVME_BUFFERS_LEAST || offload->file->buffers > ZR_NVME_BUFFERS_MOST))
        return zr_fail(ZR_ERR_INVALID, "an offload file with %u buffers; it takes %d to %d",
                       offload->file->buffers, ZR_NVME_BUFFERS_LEAST, ZR_NVME_BUFFERS_MOST);
    if (!(offload->stays >= 0 && offload->stays <= 1))
        return zr_fail(ZR_ERR_INVALID, "a part of %g cannot stay where it is; take 0 to 1", offload->stays);
    if (offload->stays > 0 && offload->delayed)
        return zr_fail(ZR_ERR_INVALID, "an update can be delayed where all of the optimizer is offloaded");
    if (offload->parameters_file && (!offload->parameters || !offload->parameters_file->folder))
        return zr_fail(ZR_ERR_INVALID, "an offload file of parameters is of those that are offloaded, and "
                                       "needs a folder");
    if (offload->parameters && (!offload->optimizer || options->stage < 3))
        return zr_fail(ZR_ERR_INVALID,
                       "parameters can be offloaded at stage 3, where the optimizer is offloaded as well");
    if (offload->optimizer && several && options->stage == 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "at stage 0 each of %u ranks updates everything, and offload would keep all of it in one "
            "machine's host memory as often; take stage 1",
            zr_comm_world(options->comm));
    if (offload->optimizer && several && options->reduce == ZR_REDUCE_ONCE)
        return zr_fail(ZR_ERR_INVALID,
                       "gradients that are reduced once per step are kept whole, and offload keeps "
                       "none; reduce each micro-batch");
    return ZR_OK;
}

zr_result zr_engine_check_options(const struct zr_engine_options *options)
{
    if (!options->arena || !options->host_arena || !options->kernels || !options->context || !options->comm)
        return zr_fail(ZR_ERR_INVALID,
                       "an engine needs arenas, kernels, a kernel context and a communicator");
    if (options->kernels->version != ZR_KERNELS_VERSION)
        return zr_fail(ZR_ERR_INVALID,
                       "the kernels \"%s\" have version %" PRIu32
                       " of the table; this engine takes version %d",
                       options->kernels->name, options->kernels->version, ZR_KERNELS_VERSION);
    if (!options->list.parameters || !options->list.units)
        return zr_fail(ZR_ERR_INVALID, "an engine needs a list of parameters and one of units");
    if (options->stage > 3)
        return zr_fail(ZR_ERR_INVALID, "stage %u is not there; this engine has stages 0 to 3",
                       options->stage);
    if (options->prefetch_distance > ZR_PREFETCH_MOST)
        return zr_fail(ZR_ERR_INVALID, "%u units gathered ahead are too many; take 1 to %d",
                       options->prefetch_distance, ZR_PREFETCH_MOST);
    if ((unsigned)options->precision >= ZR_PRECISION_COUNT)
        return zr_fail(ZR_ERR_INVALID, "precision number %d is none; take fp32, bf16 or fp16",
                       (int)options->precision);
    if (options->kernels->executes && options->context->precision != options->precision)
        return zr_fail(ZR_ERR_INVALID,
                       "the engine is to be of %s and its kernel context is open for %s; give both the same",
                       zr_precision_name(options->precision), zr_precision_name(options->context->precision));
    if ((unsigned)options->reduce > ZR_REDUCE_ONCE)
        return zr_fail(ZR_ERR_INVALID, "reduce number %d is none; take ZR_REDUCE_EACH or ZR_REDUCE_ONCE",
                       (int)options->reduce);
    if (options->reduce == ZR_REDUCE_ONCE && options->stage > 1)
        return zr_fail(ZR_ERR_INVALID,
                       "stage %u keeps no whole gradients that could be reduced once per step; take stage 0 "
                       "or 1, or reduce each micro-batch",
                       options->stage);
    zr_result result = check_optimizer(options);
    if (result == ZR_OK)
        result = check_scaling(&options->loss_scaling);
    if (result == ZR_OK)
        result = check_gradient_uses(options);
    if (result == ZR_OK)
        result = check_offload(options);
    if (result == ZR_OK)
        result = check_offload_apart(options);
    return result == ZR_OK ? check_parameters(options) : result;
}
