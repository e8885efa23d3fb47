/* engine_check.c: checks of the engine's options and of the order of its calls. A call that is invalid at one
 * stage is refused at every stage, so that a program that runs at one stage runs at all. */
#include "zero/engine/engine.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

zr_result zr_engine_check_call(const struct zr_engine *engine, const char *call, const void *other)
{
    if (engine && other)
        return ZR_OK;
    return zr_fail(
        ZR_ERR_INVALID,
        engine ? "%s(): the argument that it reads or fills in is NULL" : "%s(): the engine is NULL", call);
}

zr_result zr_engine_refuse_unit(const struct zr_engine *engine, const char *call, unsigned unit,
                                const void *other)
{
    zr_result result = zr_engine_check_call(engine, call, other);
    if (result != ZR_OK)
        return result;
    return zr_fail(ZR_ERR_INVALID, "%s(): there is no unit %u; this engine has units 0 to %zu", call, unit,
                   engine->layout.units_count - 1);
}

zr_result zr_engine_check_between_steps(const struct zr_engine *engine, const char *call)
{
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_unit_state *state = &engine->units[u];
        if (state->awaited || state->accumulated > 0)
            return zr_fail(ZR_ERR_INVALID, "%s() within a step: unit %s %s; end the step first", call,
                           engine->layout.units[u].unit.name,
                           state->awaited ? "has acquired gradients" : "has reduced gradients");
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

/* Option with its range; NaN is outside of every range. */
struct number {
    const char *name;
    float value, min, max;
    bool excludes_max; /* `max` itself is excluded */
};

static zr_result check_numbers(const struct number *numbers, size_t count)
{
    for (const struct number *n = numbers; n < numbers + count; n++)
        if (!(n->value >= n->min && n->value <= n->max) || (n->excludes_max && n->value == n->max))
            return zr_fail(ZR_ERR_INVALID, "%s is %g; its range is %g to %s%g", n->name, (double)n->value,
                           (double)n->min, n->excludes_max ? "below " : "", (double)n->max);
    return ZR_OK;
}

zr_result zr_engine_check_rate(float rate)
{
    return rate >= 0 && rate <= FLT_MAX
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "the learning rate is %g; use a finite number of at least 0",
                         (double)rate);
}

static zr_result check_optimizer(const struct zr_engine_options *engine_options)
{
    const struct zr_optimizer_options *options = &engine_options->optimizer;
    const struct zr_optimizer *optimizer = zr_optimizer_of(options->kind);
    const struct number shared[] = {{"weight_decay", options->weight_decay, 0, FLT_MAX, false},
                                    {"clip", options->clip, 0, FLT_MAX, false}};
    zr_result result;

    if (!optimizer)
        return zr_fail(ZR_ERR_INVALID, "unknown optimizer %d; use a value of enum zr_optimizer_kind",
                       (int)options->kind);
    if (options->groups_count > ZR_GROUPS_MAX)
        return zr_fail(ZR_ERR_INVALID, "%u parameter groups exceed the maximum of %d", options->groups_count,
                       ZR_GROUPS_MAX);
    result = check_numbers(shared, sizeof shared / sizeof *shared);
    for (unsigned g = 0; g < options->groups_count && result == ZR_OK; g++) {
        const struct number factors[] = {
            {"a group's rate_factor", options->groups[g].rate_factor, 0, FLT_MAX, false},
            {"a group's decay_factor", options->groups[g].decay_factor, 0, FLT_MAX, false}};
        result = check_numbers(factors, sizeof factors / sizeof *factors);
    }
    for (unsigned i = 0; i < ZR_NUMBERS_COUNT && result == ZR_OK; i++) {
        const struct zr_optimizer_number *n = &zr_optimizer_numbers[i];
        /* A dry run computes nothing and may have any number at 0. */
        const struct number number = {n->name, *(const float *)((const char *)options + n->offset),
                                      engine_options->kernels->executes ? n->min : 0, n->max,
                                      n->excludes_max};
        result = optimizer->numbers[i].taken ? check_numbers(&number, 1) : ZR_OK;
    }
    if (result == ZR_OK && optimizer->numbers[ZR_NUMBER_TRUST_MAX].taken &&
        options->trust_max < options->trust_min)
        result = zr_fail(ZR_ERR_INVALID, "trust_max is %g, below trust_min, %g; exchange them",
                         (double)options->trust_max, (double)options->trust_min);
    const bool onebit = engine_options->compression.kinds[ZR_COMPRESSED_GRADIENTS].on &&
                        engine_options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method == ZR_METHOD_ONEBIT;
    if (result == ZR_OK && optimizer->averages == ZR_NUMBER_TRUST_AVERAGE && options->trust_average > 0 &&
        !onebit)
        result = zr_fail(ZR_ERR_INVALID, "trust_average is %g and requires ZR_METHOD_ONEBIT; use 0",
                         (double)options->trust_average);
    return result;
}

static zr_result check_scaling(const struct zr_loss_scaling *scaling)
{
    const struct number numbers[] = {{"loss_scaling.initial", scaling->initial, 0, ZR_LOSS_SCALE_MAX, false},
                                     {"loss_scaling.least", scaling->least, 0, ZR_LOSS_SCALE_MAX, false}};
    return check_numbers(numbers, sizeof numbers / sizeof *numbers);
}

static zr_result check_gradient_uses(const struct zr_engine_options *options)
{
    unsigned micro_batches = options->micro_batches > 0 ? options->micro_batches : 1;
    for (size_t u = 0; u < options->list.units_count; u++) {
        const struct zr_unit *unit = &options->list.units[u];
        if (unit->gradient_uses > UINT32_MAX / micro_batches)
            return zr_fail(ZR_ERR_INVALID, "unit %.*s: %u gradient uses in each of %u micro-batches overflow",
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
        const struct zr_optimizer *optimizer = zr_optimizer_of(options->optimizer.kind);
        if (p->part.whole[0] > 0 && optimizer->not_in_parts)
            return zr_fail(
                ZR_ERR_INVALID,
                "parameter %.*s is only partly on a rank, which excludes the optimizer %s, which %s; use AdamW",
                (int)sizeof p->name, p->name, optimizer->name, optimizer->not_in_parts);
        if (p->part.sum_gradient && (tensor == 0 || zr_parameter_elements(p) % tensor))
            return zr_fail(
                ZR_ERR_INVALID,
                "parameter %.*s: its gradient is summed over tensor ranks, and %u ranks do not divide its "
                "elements",
                (int)sizeof p->name, p->name, tensor);
        if (p->part.sum_gradient && options->measures_squares)
            return zr_fail(ZR_ERR_INVALID,
                           "parameter %.*s: its gradient is summed over tensor ranks, which excludes "
                           "zr_engine_options.measures_squares",
                           (int)sizeof p->name, p->name);
        if (p->part.shared && (!options->sharing ||
                               ZR_SHARD_ALIGN_BYTES / sizeof(float) % zr_comm_world(options->sharing) != 0))
            return zr_fail(
                ZR_ERR_INVALID,
                "parameter %.*s is shared between pipeline ranks and requires zr_engine_options.sharing, a "
                "communicator of 2, 4, 8 .. ranks",
                (int)sizeof p->name, p->name);
        if (!isfinite(p->init_mean) || !isfinite(p->init_deviation) || p->init_deviation < 0)
            return zr_fail(
                ZR_ERR_INVALID,
                "parameter %.*s: init_mean %g or init_deviation %g is invalid; use finite numbers and a deviation of at least 0",
                (int)sizeof p->name, p->name, (double)p->init_mean, (double)p->init_deviation);
    }
    return ZR_OK;
}

/* A version is a copy of whole parameters on the device, made before the update of every step. Every rank of
 * a pipeline refuses the same. */
static zr_result check_versions(const struct zr_engine_options *options)
{
    if (!options->own_norm && options->stashed_versions == 0)
        return ZR_OK;
    if (options->stage > 2)
        return zr_fail(ZR_ERR_INVALID,
                       "stashed_versions requires stage 0, 1 or 2: stage 3 keeps no whole parameters");
    if (options->offload.delayed || options->offload.speculative_bytes > 0)
        return zr_fail(ZR_ERR_INVALID,
                       "stashed_versions excludes offload.delayed and offload.speculative_bytes, "
                       "which update parameters outside of a step's end");
    if (options->precision == ZR_PRECISION_FP16)
        return zr_fail(ZR_ERR_INVALID, "own_norm excludes fp16, in which some stages would skip a step that "
                                       "others apply; use bf16");
    return ZR_OK;
}

/* Restrictions of kernels whose tensors the host cannot access. */
static zr_result check_offload_host_invisible(const struct zr_engine_options *options)
{
    const struct zr_offload *offload = &options->offload;
    if (!options->kernels->executes || options->kernels->host_visible)
        return ZR_OK;
    if (offload->speculative_bytes > 0 || offload->parameters_file)
        return zr_fail(
            ZR_ERR_INVALID,
            "a speculative update and offload of parameters to a file are not supported by the kernels "
            "\"%s\"",
            options->kernels->name);
    if (offload->file && !(options->host_kernels && options->host_kernels->host_visible))
        return zr_fail(ZR_ERR_INVALID, "an offload file with the kernels \"%s\" requires host_kernels",
                       options->kernels->name);
    return ZR_OK;
}

static zr_result check_offload(const struct zr_engine_options *options)
{
    const struct zr_offload *offload = &options->offload;
    bool several = zr_comm_world(options->comm) > 1;
    const struct zr_optimizer *optimizer = zr_optimizer_of(options->optimizer.kind);
    if (offload->speculative_bytes > 0 && optimizer->not_ahead)
        return zr_fail(ZR_ERR_INVALID,
                       "offload.speculative_bytes excludes the optimizer %s, which %s; use AdamW",
                       optimizer->name, optimizer->not_ahead);
    if (offload->delayed && options->optimizer.average_decay > 0)
        return zr_fail(ZR_ERR_INVALID, "offload.delayed excludes optimizer.average_decay");
    if (offload->delayed && options->measures_squares)
        return zr_fail(ZR_ERR_INVALID, "offload.delayed excludes measures_squares");
    if (offload->delayed && !offload->optimizer)
        return zr_fail(ZR_ERR_INVALID, "offload.delayed requires offload.optimizer");
    if (offload->speculative_bytes > 0 && offload->delayed)
        return zr_fail(
            ZR_ERR_INVALID,
            "offload.delayed excludes offload.speculative_bytes: a delayed update starts after the norm is known");
    if ((offload->optimizer || offload->parameters) && !offload->host)
        return zr_fail(ZR_ERR_INVALID, "offload requires a host arena: set offload.host");
    if (offload->file && (!offload->optimizer || !offload->file->folder))
        return zr_fail(ZR_ERR_INVALID, "offload.file requires offload.optimizer and a folder");
    if (offload->file && offload->file->buffers > 0 &&
        (offload->file->buffers < ZR_NVME_BUFFERS_MIN || offload->file->buffers > ZR_NVME_BUFFERS_MAX))
        return zr_fail(ZR_ERR_INVALID, "offload.file->buffers is %u; its range is %d to %d",
                       offload->file->buffers, ZR_NVME_BUFFERS_MIN, ZR_NVME_BUFFERS_MAX);
    if (!(offload->resident_share >= 0 && offload->resident_share <= 1))
        return zr_fail(ZR_ERR_INVALID, "offload.resident_share is %g; its range is 0 to 1",
                       offload->resident_share);
    if (offload->resident_share > 0 && offload->delayed)
        return zr_fail(ZR_ERR_INVALID, "offload.delayed requires offload.resident_share 0");
    if (offload->parameters_file && (!offload->parameters || !offload->parameters_file->folder))
        return zr_fail(ZR_ERR_INVALID, "offload.parameters_file requires offload.parameters and a folder");
    if (offload->parameters && (!offload->optimizer || options->stage < 3))
        return zr_fail(ZR_ERR_INVALID, "offload.parameters requires stage 3 and offload.optimizer");
    if (offload->optimizer && several && options->stage == 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "offload at stage 0 would keep the whole optimizer state in host memory once for each of %u ranks; "
            "use stage 1",
            zr_comm_world(options->comm));
    if (offload->optimizer && several && options->reduce == ZR_REDUCE_ONCE)
        return zr_fail(ZR_ERR_INVALID,
                       "ZR_REDUCE_ONCE keeps whole gradients and excludes offload; use ZR_REDUCE_EACH");
    return ZR_OK;
}

/* See onebit.h. */
static zr_result check_onebit(const struct zr_engine_options *options)
{
    const struct zr_optimizer_options *o = &options->optimizer;
    if (options->compression.kinds[ZR_COMPRESSED_PARAMETERS].on || options->stage > 1)
        return zr_fail(ZR_ERR_INVALID, "onebit requires stage 0 or 1, and sends parameters by itself");
    if ((options->stage == 0 || o->kind == ZR_OPTIMIZER_LAMB) && options->kernels->executes &&
        !options->kernels->host_visible)
        return zr_fail(ZR_ERR_INVALID,
                       "onebit at stage 0 or with LAMB is not supported by the kernels \"%s\"",
                       options->kernels->name);
    if (options->stage == 0 && options->compression.check_steps > 0)
        return zr_fail(ZR_ERR_INVALID,
                       "compression: checks of onebit require stage 1: stage 0 sends momentum");
    if ((o->kind != ZR_OPTIMIZER_ADAMW && o->kind != ZR_OPTIMIZER_LAMB) || o->average_decay > 0)
        return zr_fail(ZR_ERR_INVALID, "onebit requires AdamW or LAMB without a moving average");
    if (o->kind == ZR_OPTIMIZER_LAMB && o->trust_average <= 0)
        return zr_fail(ZR_ERR_INVALID, "onebit with LAMB requires optimizer.trust_average above 0");
    if (options->offload.speculative_bytes > 0)
        return zr_fail(ZR_ERR_INVALID,
                       "onebit excludes offload.speculative_bytes: its parameters change by what is sent");
    return ZR_OK;
}

/* See zerone.h. */
static zr_result check_zerone(const struct zr_engine_options *options)
{
    const struct zr_compression *how = &options->compression;
    if (options->stage > 0)
        return zr_fail(ZR_ERR_INVALID,
                       "zerone requires stage 0: between exchanges each rank has parameters of "
                       "its own, which no shard can hold");
    if (how->warmup_steps == 0 || how->zerone.variance_updates == 0 || how->zerone.local_steps == 0 ||
        how->zerone.interval_max == 0)
        return zr_fail(ZR_ERR_INVALID, "zerone requires warmup_steps and the numbers of "
                                       "compression.zerone of at least 1");
    if (options->optimizer.kind != ZR_OPTIMIZER_ADAMW)
        return zr_fail(ZR_ERR_INVALID, "zerone requires AdamW, whose variance and momentum it moves");
    return check_onebit(options);
}

/* What methods exclude that keep errors, see errors.h. */
static zr_result check_errors(const struct zr_engine_options *options)
{
    const float parameter = options->compression.kinds[ZR_COMPRESSED_GRADIENTS].parameter;
    switch (options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method) {
    case ZR_METHOD_LOW_RANK:
        if (!(parameter >= 0) || parameter > 65536)
            return zr_fail(ZR_ERR_INVALID, "compression: rank %g; use 0 to 65536", (double)parameter);
        break;
    case ZR_METHOD_LARGEST:
        if (!(parameter > 0 && parameter < 1))
            return zr_fail(ZR_ERR_INVALID, "compression: share %g; use a number above 0 and below 1",
                           (double)parameter);
        break;
    default:
        break;
    }
    if (options->kernels->executes && !options->kernels->host_visible &&
        options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method != ZR_METHOD_ONEBIT)
        return zr_fail(ZR_ERR_INVALID, "compression by this method is not supported by the kernels \"%s\"",
                       options->kernels->name);
    if (options->measures_squares)
        return zr_fail(ZR_ERR_INVALID,
                       "compression excludes measures_squares: a step's gradients have errors "
                       "of earlier steps");
    if (options->precision == ZR_PRECISION_FP16)
        return zr_fail(ZR_ERR_INVALID,
                       "compression with errors requires fp32 or bf16: a loss scale would change its errors");
    if (options->offload.optimizer || options->tensor || options->pipeline || options->sharing)
        return zr_fail(ZR_ERR_INVALID,
                       "compression with errors requires whole models whose state is on the device");
    if (options->compression.settle_ratio > 0 &&
        (options->optimizer.kind != ZR_OPTIMIZER_ADAMW ||
         options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method == ZR_METHOD_LARGEST ||
         options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method == ZR_METHOD_ZERONE))
        return zr_fail(ZR_ERR_INVALID,
                       "compression: settle_ratio requires AdamW, and neither the largest numbers nor 0/1 "
                       "Adam, whose warm-ups have known numbers of steps");
    switch (options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method) {
    case ZR_METHOD_ONEBIT:
        return check_onebit(options);
    case ZR_METHOD_ZERONE:
        return check_zerone(options);
    default:
        return ZR_OK;
    }
}

static zr_result check_method(const struct zr_compression *compression, enum zr_compressed_kind kind)
{
    const int method = (int)compression->kinds[kind].method, packing = (int)compression->kinds[kind].packing;
    if (method < 0 || method >= ZR_METHODS_COUNT || (method > 0 && kind != ZR_COMPRESSED_GRADIENTS))
        return zr_fail(ZR_ERR_INVALID, "compression: no method %d of kind %d", method, (int)kind);
    if (method == ZR_METHOD_PACKED && (packing <= ZR_PACKING_ONEBIT || packing >= ZR_PACKINGS_COUNT))
        return zr_fail(ZR_ERR_INVALID, "compression: unknown packing %d", packing);
    return ZR_OK;
}

/* Differences of parameters, and the second hop's packing. */
static zr_result check_differences(const struct zr_engine_options *options)
{
    const struct zr_compression *how = &options->compression;
    if ((unsigned)how->kinds[ZR_COMPRESSED_GRADIENTS].between >= ZR_PACKINGS_COUNT ||
        (unsigned)how->activations[0] >= ZR_PACKINGS_COUNT ||
        (unsigned)how->activations[1] >= ZR_PACKINGS_COUNT)
        return zr_fail(ZR_ERR_INVALID, "compression: unknown packing between nodes or of activations");
    if (!how->kinds[ZR_COMPRESSED_PARAMETERS].on || !how->kinds[ZR_COMPRESSED_PARAMETERS].differences)
        return ZR_OK;
    if (options->kernels->executes && !options->kernels->host_visible)
        return zr_fail(ZR_ERR_INVALID,
                       "compression: differences of parameters are not supported by the kernels \"%s\"",
                       options->kernels->name);
    if (options->stage > 2)
        return zr_fail(ZR_ERR_INVALID, "compression: differences of parameters require stage 1 or 2, where "
                                       "every rank keeps the parameters that differences are added to");
    if (options->offload.optimizer || options->tensor || options->pipeline || options->sharing)
        return zr_fail(ZR_ERR_INVALID, "compression: differences of parameters require whole models whose "
                                       "state is on the device");
    return options->optimizer.average_decay > 0
               ? zr_fail(ZR_ERR_INVALID,
                         "compression: differences of parameters exclude a moving average, which "
                         "replaces parameters")
               : ZR_OK;
}

static zr_result check_compression(const struct zr_engine_options *options)
{
    zr_result result = ZR_OK;
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS && result == ZR_OK; kind++)
        if (options->compression.kinds[kind].on)
            result = check_method(&options->compression, (enum zr_compressed_kind)kind);
    if (result == ZR_OK)
        result = check_differences(options);
    if (result != ZR_OK)
        return result;
    unsigned node_ranks = options->compression.node_ranks, world = zr_comm_world(options->comm);
    if (node_ranks > 0 && world % node_ranks != 0)
        return zr_fail(ZR_ERR_INVALID, "compression: nodes of %u ranks do not divide %u ranks", node_ranks,
                       world);
    if (options->compression.secondary_shards && options->stage < 3)
        return zr_fail(ZR_ERR_INVALID, "compression: secondary shards require stage 3");
    if (!(options->compression.tolerance >= 0) ||
        (options->compression.tolerance > 0 && options->compression.check_steps == 0))
        return zr_fail(ZR_ERR_INVALID, "compression: a tolerance is at least 0 and requires check_steps");
    if (!(options->compression.settle_ratio >= 0 && options->compression.settle_ratio <= 1))
        return zr_fail(ZR_ERR_INVALID, "compression: settle_ratio %g; use 0 to 1",
                       options->compression.settle_ratio);
    if (options->compression.tolerance > 0 &&
        options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method == ZR_METHOD_LARGEST &&
        options->optimizer.kind == ZR_OPTIMIZER_SGD && options->optimizer.momentum_factor > 0)
        return zr_fail(ZR_ERR_INVALID, "compression: a tolerance excludes the largest numbers of SGD with "
                                       "momentum, which the ranks keep and the optimizer does not");
    if (options->compression.check_steps > 0 && options->kernels->executes && !options->kernels->host_visible)
        return zr_fail(ZR_ERR_INVALID, "compression: checks are not supported by the kernels \"%s\"",
                       options->kernels->name);
    if (zr_comm_world(options->comm) > 1 && options->stage == 0 &&
        (options->compression.kinds[ZR_COMPRESSED_PARAMETERS].on ||
         (options->compression.kinds[ZR_COMPRESSED_GRADIENTS].on &&
          options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method == ZR_METHOD_PACKED)))
        return zr_fail(ZR_ERR_INVALID,
                       "compression by packing requires stage 1, 2 or 3, where each rank owns a shard");
    return options->compression.kinds[ZR_COMPRESSED_GRADIENTS].on &&
                   options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method != ZR_METHOD_PACKED
               ? check_errors(options)
               : ZR_OK;
}

/* Whether ranks have more state than their pools of parameters and of the optimizer, or have these elsewhere.
 */
static bool has_other_state(const struct zr_engine_options *options)
{
    bool other = options->offload.optimizer || options->stashed_versions > 0 || options->outer.period > 0;
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++)
        other |= options->compression.kinds[kind].on;
    return other;
}

static zr_result check_snapshots(const struct zr_engine_options *options)
{
    bool elsewhere = options->own_norm || has_other_state(options) || !options->kernels->host_visible;
    return options->snapshots && elsewhere
               ? zr_fail(ZR_ERR_INVALID,
                         "snapshots exclude offload, asynchronous pipelines, compression, outer "
                         "steps and tensors that the host cannot read")
               : ZR_OK;
}

/* See kept.h. */
static zr_result check_kept(const struct zr_engine_options *options)
{
    const struct zr_optimizer *optimizer = zr_optimizer_of(options->optimizer.kind);
    if (options->backup && (!options->kept || zr_comm_world(options->backup) < 2 ||
                            zr_comm_world(options->backup) != zr_comm_world(options->comm) ||
                            options->backup_distance >= zr_comm_world(options->comm)))
        return zr_fail(ZR_ERR_INVALID, "backup requires kept memory, at least two ranks of comm, and a "
                                       "backup_distance below their number");
    if (!options->kept)
        return ZR_OK;
    if (options->kernels->executes && (!options->kernels->host_visible || !options->kept->take))
        return zr_fail(ZR_ERR_INVALID, "kept memory is not supported by the kernels \"%s\"",
                       options->kernels->name);
    if (options->own_norm || has_other_state(options))
        return zr_fail(ZR_ERR_INVALID,
                       "kept memory excludes offload, asynchronous pipelines, compression and outer "
                       "steps, whose state is elsewhere");
    if (options->precision == ZR_PRECISION_FP16)
        return zr_fail(ZR_ERR_INVALID, "kept memory excludes fp16, whose loss scale is not kept; use bf16");
    if (optimizer->prepares || options->optimizer.average_decay > 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "kept memory excludes a moving average and the optimizer %s, whose updates need all ranks",
            optimizer->name);
    if (options->scattered_gradients)
        return zr_fail(ZR_ERR_INVALID, "kept memory requires contiguous gradients");
    return options->stage == 0 && options->precision != ZR_PRECISION_FP32 && zr_comm_world(options->comm) > 1
               ? zr_fail(ZR_ERR_INVALID, "kept memory excludes stage 0 in bf16, whose updates gather sums")
               : ZR_OK;
}

/* What groups exclude, see struct zr_outer. */
static zr_result check_outer(const struct zr_engine_options *options)
{
    const struct zr_outer *o = &options->outer;
    const unsigned fragments = o->fragments > 0 ? o->fragments : 1;
    const struct number numbers[] = {{"outer.rate", o->rate, 0, FLT_MAX, false},
                                     {"outer.momentum", o->momentum, 0, 1, true},
                                     {"outer.mix", o->mix, 0, 1, true}};
    if (o->period == 0)
        return ZR_OK;
    if (!o->comm || (unsigned)o->packing >= ZR_PACKINGS_COUNT)
        return zr_fail(ZR_ERR_INVALID, "outer requires a communicator of the groups, and a packing or none");
    if (fragments > ZR_OUTER_FRAGMENTS_MAX || o->period % fragments != 0 || o->delay >= o->period / fragments)
        return zr_fail(
            ZR_ERR_INVALID,
            "outer: %u fragments must divide %u steps, at most %d, and the delay of %u must be below "
            "the quotient",
            fragments, o->period, ZR_OUTER_FRAGMENTS_MAX, o->delay);
    if (fragments > 1 && options->pipeline)
        return zr_fail(ZR_ERR_INVALID,
                       "outer.fragments requires 1 with a pipeline, whose ranks share tensors of "
                       "different units");
    if (options->precision == ZR_PRECISION_FP16)
        return zr_fail(ZR_ERR_INVALID, "outer requires fp32 or bf16: in fp16 groups skip different steps");
    if (options->optimizer.average_decay > 0 || options->offload.delayed || options->stashed_versions > 0)
        return zr_fail(ZR_ERR_INVALID,
                       "outer excludes a moving average, a delayed update and stashed versions");
    if ((options->compression.kinds[ZR_COMPRESSED_GRADIENTS].on &&
         options->compression.kinds[ZR_COMPRESSED_GRADIENTS].method != ZR_METHOD_PACKED) ||
        options->compression.kinds[ZR_COMPRESSED_PARAMETERS].differences)
        return zr_fail(ZR_ERR_INVALID,
                       "outer excludes compression with errors and differences of parameters, "
                       "which add up; use a packing");
    if (options->kernels->executes && !options->kernels->host_visible && options->offload.optimizer)
        return zr_fail(ZR_ERR_INVALID, "outer requires state on the device with the kernels \"%s\"",
                       options->kernels->name);
    if (o->delay > 0 && options->offload.file)
        return zr_fail(ZR_ERR_INVALID, "outer.delay excludes offload.file; use 0");
    return check_numbers(numbers, sizeof numbers / sizeof *numbers);
}

/* What parameter servers exclude, see struct zr_servers. */
static zr_result check_servers(const struct zr_engine_options *options)
{
    const struct zr_servers *s = &options->servers;
    if (!s->on)
        return ZR_OK;
    if (options->kernels->executes && !(s->pull && s->push && s->clock && s->read && s->write))
        return zr_fail(ZR_ERR_INVALID, "servers require pull, push, clock, read and write");
    if (zr_comm_world(options->comm) > 1 || options->stage > 0)
        return zr_fail(ZR_ERR_INVALID, "servers require one rank and stage 0");
    if (options->kernels->executes && !options->kernels->host_visible)
        return zr_fail(ZR_ERR_INVALID,
                       "servers require tensors that the host can access, and the kernels are \"%s\"",
                       options->kernels->name);
    if (options->precision == ZR_PRECISION_FP16 || options->optimizer.clip > 0)
        return zr_fail(ZR_ERR_INVALID,
                       "servers exclude fp16 and clipping: a worker has its own gradients only");
    if (options->optimizer.average_decay > 0 || options->outer.period > 0 || options->offload.optimizer ||
        options->compression.kinds[ZR_COMPRESSED_GRADIENTS].on ||
        options->compression.kinds[ZR_COMPRESSED_PARAMETERS].on || options->kept || options->tensor ||
        options->pipeline || options->measures_squares)
        return zr_fail(ZR_ERR_INVALID,
                       "servers exclude a moving average, groups, offload, compression, kept memory, "
                       "measures_squares, and tensor and pipeline parallelism");
    const struct zr_optimizer *optimizer = zr_optimizer_with(&options->optimizer, ZR_KEEPS_NOTHING);
    for (unsigned i = 0; i < optimizer->slots_count; i++)
        if (!zr_slot_is_plain(&optimizer->slots[i]) || optimizer->slots[i].covers)
            return zr_fail(ZR_ERR_INVALID,
                           "servers keep a float of each element, which the state of %s is not",
                           optimizer->name);
    return ZR_OK;
}

static zr_result check_shared(const struct zr_engine_options *options)
{
    const bool invisible = options->kernels->executes && !options->kernels->host_visible;
    if (!options->shares_parameters || (options->stage <= 2 && !options->kept && !options->snapshots &&
                                        !options->servers.on && !has_other_state(options) && !invisible))
        return ZR_OK;
    return zr_fail(
        ZR_ERR_INVALID,
        "shares_parameters requires stage 0, 1 or 2 and kernels that are host_visible, without offload, "
        "compression, kept, snapshots, servers, outer and stashed_versions");
}

zr_result zr_engine_check_options(const struct zr_engine_options *options)
{
    if (!options->arena || !options->host_arena || !options->kernels || !options->context || !options->comm)
        return zr_fail(ZR_ERR_INVALID, "an engine requires arena, host_arena, kernels, context and comm");
    if (options->kernels->version != ZR_KERNELS_VERSION)
        return zr_fail(ZR_ERR_INVALID,
                       "the kernel table \"%s\" has version %" PRIu32 "; this engine requires version %d",
                       options->kernels->name, options->kernels->version, ZR_KERNELS_VERSION);
    if (!options->list.parameters || !options->list.units)
        return zr_fail(ZR_ERR_INVALID, "an engine requires a list of parameters and a list of units");
    if (options->stage > 3)
        return zr_fail(ZR_ERR_INVALID, "there is no stage %u; use 0 to 3", options->stage);
    if (options->prefetch_distance > ZR_PREFETCH_MAX)
        return zr_fail(ZR_ERR_INVALID, "prefetch_distance is %u; its range is 1 to %d",
                       options->prefetch_distance, ZR_PREFETCH_MAX);
    if ((unsigned)options->precision >= ZR_PRECISION_COUNT)
        return zr_fail(ZR_ERR_INVALID, "unknown precision %d; use fp32, bf16 or fp16",
                       (int)options->precision);
    if (options->kernels->executes && options->context->precision != options->precision)
        return zr_fail(ZR_ERR_INVALID,
                       "the engine's precision is %s and its kernel context's is %s; use the same",
                       zr_precision_name(options->precision), zr_precision_name(options->context->precision));
    if ((unsigned)options->reduce > ZR_REDUCE_ONCE)
        return zr_fail(ZR_ERR_INVALID, "unknown reduce %d; use ZR_REDUCE_EACH or ZR_REDUCE_ONCE",
                       (int)options->reduce);
    if (options->reduce == ZR_REDUCE_ONCE && options->stage > 1)
        return zr_fail(ZR_ERR_INVALID,
                       "ZR_REDUCE_ONCE requires stage 0 or 1, and the stage is %u; use ZR_REDUCE_EACH",
                       options->stage);
    zr_result result = check_optimizer(options);
    if (result == ZR_OK)
        result = check_scaling(&options->loss_scaling);
    if (result == ZR_OK)
        result = check_gradient_uses(options);
    if (result == ZR_OK)
        result = check_offload(options);
    if (result == ZR_OK)
        result = check_versions(options);
    if (result == ZR_OK)
        result = check_offload_host_invisible(options);
    if (result == ZR_OK)
        result = check_compression(options);
    if (result == ZR_OK)
        result = check_kept(options);
    if (result == ZR_OK)
        result = check_snapshots(options);
    if (result == ZR_OK)
        result = check_outer(options);
    if (result == ZR_OK)
        result = check_servers(options);
    if (result == ZR_OK)
        result = check_shared(options);
    return result == ZR_OK ? check_parameters(options) : result;
}
