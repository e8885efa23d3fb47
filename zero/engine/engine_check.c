/* engine_check.c: checks of the engine's options and of the order of its calls. A call that is invalid at one
 * stage is refused at every stage, so that a program that runs at one stage runs at all. */
#include "zero/engine/engine.h"
#include "zero/engine/modes.h"

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

static zr_result check_offload(const struct zr_offload *offload)
{
    if (offload->file && offload->file->buffers > 0 &&
        (offload->file->buffers < ZR_NVME_BUFFERS_MIN || offload->file->buffers > ZR_NVME_BUFFERS_MAX))
        return zr_fail(ZR_ERR_INVALID, "offload.file->buffers is %u; its range is %d to %d",
                       offload->file->buffers, ZR_NVME_BUFFERS_MIN, ZR_NVME_BUFFERS_MAX);
    if (!(offload->resident_share >= 0 && offload->resident_share <= 1))
        return zr_fail(ZR_ERR_INVALID, "offload.resident_share is %g; its range is 0 to 1",
                       offload->resident_share);
    return ZR_OK;
}

static zr_result check_kind(const struct zr_compression *how, enum zr_compressed_kind kind)
{
    const int method = (int)how->kinds[kind].method, packing = (int)how->kinds[kind].packing;
    const float parameter = how->kinds[kind].parameter;
    if (method < 0 || method >= ZR_METHODS_COUNT || (method > 0 && kind != ZR_COMPRESSED_GRADIENTS))
        return zr_fail(ZR_ERR_INVALID, "compression: no method %d of kind %d", method, (int)kind);
    if (method == ZR_METHOD_PACKED && (packing <= ZR_PACKING_ONEBIT || packing >= ZR_PACKINGS_COUNT))
        return zr_fail(ZR_ERR_INVALID, "compression: unknown packing %d", packing);
    if (method == ZR_METHOD_LOW_RANK && !(parameter >= 0 && parameter <= 65536))
        return zr_fail(ZR_ERR_INVALID, "compression: rank %g; use 0 to 65536", (double)parameter);
    if (method == ZR_METHOD_LARGEST && !(parameter > 0 && parameter < 1))
        return zr_fail(ZR_ERR_INVALID, "compression: share %g; use a number above 0 and below 1",
                       (double)parameter);
    return ZR_OK;
}

static zr_result check_compression(const struct zr_compression *how, unsigned world)
{
    zr_result result = ZR_OK;
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS && result == ZR_OK; kind++)
        if (how->kinds[kind].on)
            result = check_kind(how, (enum zr_compressed_kind)kind);
    if (result != ZR_OK)
        return result;
    if ((unsigned)how->kinds[ZR_COMPRESSED_GRADIENTS].between >= ZR_PACKINGS_COUNT ||
        (unsigned)how->activations[0] >= ZR_PACKINGS_COUNT ||
        (unsigned)how->activations[1] >= ZR_PACKINGS_COUNT)
        return zr_fail(ZR_ERR_INVALID, "compression: unknown packing between nodes or of activations");
    if (how->node_ranks > 0 && world % how->node_ranks != 0)
        return zr_fail(ZR_ERR_INVALID, "compression: nodes of %u ranks do not divide %u ranks",
                       how->node_ranks, world);
    if (!(how->tolerance >= 0))
        return zr_fail(ZR_ERR_INVALID, "compression.tolerance is %g; use at least 0", how->tolerance);
    if (!(how->settle_ratio >= 0 && how->settle_ratio <= 1))
        return zr_fail(ZR_ERR_INVALID, "compression: settle_ratio %g; use 0 to 1", how->settle_ratio);
    return ZR_OK;
}

static zr_result check_outer(const struct zr_outer *o)
{
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
    return check_numbers(numbers, sizeof numbers / sizeof *numbers);
}

/* ---- What options exclude and require ------------------------------------------------------------------ */

static bool packs(const struct zr_engine_options *o, enum zr_compressed_kind kind)
{
    return o->compression.kinds[kind].on;
}

static bool is_by(const struct zr_engine_options *o, enum zr_compression_method method)
{
    return packs(o, ZR_COMPRESSED_GRADIENTS) &&
           o->compression.kinds[ZR_COMPRESSED_GRADIENTS].method == method;
}

static bool keeps_errors(const struct zr_engine_options *o)
{
    return packs(o, ZR_COMPRESSED_GRADIENTS) && !is_by(o, ZR_METHOD_PACKED);
}

static bool has_plain_state(const struct zr_optimizer *optimizer)
{
    for (unsigned i = 0; i < optimizer->slots_count; i++)
        if (!zr_slot_is_plain(&optimizer->slots[i]) || optimizer->slots[i].covers)
            return false;
    return true;
}

static bool can_back_up(const struct zr_engine_options *o)
{
    const unsigned world = zr_comm_world(o->comm);
    return o->kept && zr_comm_world(o->backup) >= 2 && zr_comm_world(o->backup) == world &&
           o->backup_distance < world;
}

static bool has_calls(const struct zr_servers *s)
{
    return s->pull && s->push && s->clock && s->read && s->write;
}

/* The modes: identifier, name in messages, whether options `o` have it. `invisible`: the kernels compute with
 * tensors that the host cannot access. */
#define MODES(_)                                                                                             \
    _(STAGE_0, "stage 0", o->stage == 0)                                                                     \
    _(STAGE_TO_1, "stage 0 or 1", o->stage <= 1)                                                             \
    _(STAGE_TO_2, "stage 0, 1 or 2", o->stage <= 2)                                                          \
    _(STAGE_FROM_1, "stage 1, 2 or 3", o->stage >= 1)                                                        \
    _(STAGE_3, "stage 3", o->stage == 3)                                                                     \
    _(STAGE_0_NARROW, "stage 0 in bf16, whose updates gather sums",                                          \
      o->stage == 0 && o->precision != ZR_PRECISION_FP32 && several)                                         \
    _(FP16, "fp16", o->precision == ZR_PRECISION_FP16)                                                       \
    _(REDUCE_ONCE, "ZR_REDUCE_ONCE", o->reduce == ZR_REDUCE_ONCE)                                            \
    _(ADAMW, "ZR_OPTIMIZER_ADAMW", o->optimizer.kind == ZR_OPTIMIZER_ADAMW)                                  \
    _(LAMB, "ZR_OPTIMIZER_LAMB", o->optimizer.kind == ZR_OPTIMIZER_LAMB)                                     \
    _(PREPARES, "an optimizer whose updates need all ranks", optimizer->prepares)                            \
    _(NOT_AHEAD, "an optimizer that gathers or sums within an update", optimizer->not_ahead)                 \
    _(PLAIN_STATE, "an optimizer with a float of state for each element",                                    \
      has_plain_state(zr_optimizer_with(&o->optimizer, ZR_KEEPS_NOTHING)))                                   \
    _(AVERAGE, "optimizer.average_decay", o->optimizer.average_decay > 0)                                    \
    _(TRUST_AVERAGE, "optimizer.trust_average above 0",                                                      \
      optimizer->averages == ZR_NUMBER_TRUST_AVERAGE && o->optimizer.trust_average > 0)                      \
    _(CLIP, "optimizer.clip", o->optimizer.clip > 0)                                                         \
    _(SQUARES, "measures_squares", o->measures_squares)                                                      \
    _(SCATTERED, "scattered_gradients", o->scattered_gradients)                                              \
    _(SEVERAL, "several ranks of comm", several)                                                             \
    _(TENSOR, "tensor", o->tensor)                                                                           \
    _(PIPELINE, "pipeline", o->pipeline)                                                                     \
    _(SHARING, "sharing", o->sharing)                                                                        \
    _(INVISIBLE, "kernels whose tensors the host cannot access", invisible)                                  \
    _(UNREADABLE, "kernels that are not host_visible", !o->kernels->host_visible)                            \
    _(INVISIBLE_FILE, "offload.file for tensors that the host cannot access", invisible && o->offload.file)  \
    _(HOST_KERNELS, "host_kernels", o->host_kernels && o->host_kernels->host_visible)                        \
    _(HOST, "offload.host", o->offload.host)                                                                 \
    _(OFFLOAD, "offload.optimizer", o->offload.optimizer)                                                    \
    _(OFFLOAD_SEVERAL, "offload.optimizer of several ranks", o->offload.optimizer &&several)                 \
    _(FILED, "offload.file", o->offload.file)                                                                \
    _(FOLDER, "a folder", o->offload.file && o->offload.file->folder)                                        \
    _(PARAMETERS, "offload.parameters", o->offload.parameters)                                               \
    _(PARAMETERS_FILE, "offload.parameters_file", o->offload.parameters_file)                                \
    _(PARAMETERS_FOLDER, "a folder", o->offload.parameters_file && o->offload.parameters_file->folder)       \
    _(DELAYED, "offload.delayed", o->offload.delayed)                                                        \
    _(RESIDENT, "offload.resident_share above 0", o->offload.resident_share > 0)                             \
    _(SPECULATIVE, "offload.speculative_bytes", o->offload.speculative_bytes > 0)                            \
    _(OWN_NORM, "own_norm", o->own_norm)                                                                     \
    _(STASHED, "stashed_versions", o->stashed_versions > 0)                                                  \
    _(PACKS_GRADIENTS, "compression of gradients", packs(o, ZR_COMPRESSED_GRADIENTS))                        \
    _(PACKS_PARAMETERS, "compression of parameters", packs(o, ZR_COMPRESSED_PARAMETERS))                     \
    _(PACKS_SHARDS, "compression by packing",                                                                \
      several && (packs(o, ZR_COMPRESSED_PARAMETERS) || is_by(o, ZR_METHOD_PACKED)))                         \
    _(DIFFERENCES, "compression of differences of parameters",                                               \
      packs(o, ZR_COMPRESSED_PARAMETERS) && o->compression.kinds[ZR_COMPRESSED_PARAMETERS].differences)      \
    _(ERRORS, "compression with errors", keeps_errors(o))                                                    \
    _(ONEBIT, "ZR_METHOD_ONEBIT", is_by(o, ZR_METHOD_ONEBIT))                                                \
    _(SIGNS, "compression that sends signs", is_by(o, ZR_METHOD_ONEBIT) || is_by(o, ZR_METHOD_ZERONE))       \
    _(SIGNS_STAGE_0, "compression that sends signs at stage 0",                                              \
      o->stage == 0 && (is_by(o, ZR_METHOD_ONEBIT) || is_by(o, ZR_METHOD_ZERONE)))                           \
    _(SIGNS_LAMB, "compression that sends signs, with ZR_OPTIMIZER_LAMB",                                    \
      o->optimizer.kind == ZR_OPTIMIZER_LAMB && (is_by(o, ZR_METHOD_ONEBIT) || is_by(o, ZR_METHOD_ZERONE)))  \
    _(LOW_RANK, "ZR_METHOD_LOW_RANK", is_by(o, ZR_METHOD_LOW_RANK))                                          \
    _(LARGEST, "ZR_METHOD_LARGEST", is_by(o, ZR_METHOD_LARGEST))                                             \
    _(ZERONE, "ZR_METHOD_ZERONE", is_by(o, ZR_METHOD_ZERONE))                                                \
    _(ZERONE_NUMBERS, "warmup_steps and numbers of compression.zerone of at least 1",                        \
      o->compression.warmup_steps && o->compression.zerone.variance_updates &&                               \
          o->compression.zerone.local_steps && o->compression.zerone.interval_max)                           \
    _(SETTLES, "compression.settle_ratio", keeps_errors(o) && o->compression.settle_ratio > 0)               \
    _(SECONDARY, "compression.secondary_shards", o->compression.secondary_shards)                            \
    _(CHECKS, "compression.check_steps", o->compression.check_steps > 0)                                     \
    _(TOLERANCE, "compression.tolerance", o->compression.tolerance > 0)                                      \
    _(LARGEST_MOMENTUM, "ZR_METHOD_LARGEST of SGD with momentum",                                            \
      o->compression.kinds[ZR_COMPRESSED_GRADIENTS].method == ZR_METHOD_LARGEST &&                           \
          o->optimizer.kind == ZR_OPTIMIZER_SGD && o->optimizer.momentum_factor > 0)                         \
    _(KEPT, "kept memory", o->kept)                                                                          \
    _(TAKE, "kept->take", o->kept && (o->kept->take || !o->kernels->executes))                               \
    _(BACKUP, "backup", o->backup)                                                                           \
    _(BACKUP_RANKS, "kept memory, at least two ranks of comm, and a backup_distance below their number",     \
      o->backup &&can_back_up(o))                                                                            \
    _(SNAPSHOTS, "snapshots", o->snapshots)                                                                  \
    _(OUTER, "outer", o->outer.period > 0)                                                                   \
    _(FRAGMENTS, "outer.fragments", o->outer.period > 0 && o->outer.fragments > 1)                           \
    _(DELAY, "outer.delay", o->outer.period > 0 && o->outer.delay > 0)                                       \
    _(OUTER_INVISIBLE, "outer for tensors that the host cannot access", o->outer.period > 0 && invisible)    \
    _(SERVERS, "servers", o->servers.on)                                                                     \
    _(SERVER_CALLS, "pull, push, clock, read and write", has_calls(&o->servers) || !o->kernels->executes)    \
    _(SHARES, "shares_parameters", o->shares_parameters)                                                     \
    _(ROOT_OWNS, "root_owns", o->root_owns)

#define ENUMERATOR(mode, name, on) mode,
#define NAME(mode, name, on)       [mode] = (name),
#define CASE(mode, name, on)                                                                                 \
    case mode:                                                                                               \
        return on;
enum mode { NO_MODE, MODES(ENUMERATOR) MODES_COUNT };
static const char *const names[] = {MODES(NAME)};

static bool is_on(const void *settings, unsigned mode)
{
    const struct zr_engine_options *o = settings;
    const struct zr_optimizer *optimizer = zr_optimizer_of(o->optimizer.kind);
    const bool several = zr_comm_world(o->comm) > 1,
               invisible = o->kernels->executes && !o->kernels->host_visible;
    switch ((enum mode)mode) {
        MODES(CASE)
    case NO_MODE:
    case MODES_COUNT:
        break;
    }
    return false;
}

/* The first rule that is broken gives the message. */
static const struct zr_rule rules[] = {
    ZR_REQUIRES(REDUCE_ONCE, NULL, "use ZR_REDUCE_EACH", STAGE_TO_1),
    ZR_REQUIRES(TRUST_AVERAGE, NULL, "use 0", ONEBIT),
    ZR_REQUIRES(BACKUP, NULL, NULL, BACKUP_RANKS),

    ZR_REQUIRES(OFFLOAD, NULL, "set offload.host", HOST),
    ZR_REQUIRES(PARAMETERS, NULL, "set offload.host", HOST),
    ZR_REQUIRES(PARAMETERS, NULL, NULL, OFFLOAD),
    ZR_REQUIRES(PARAMETERS, NULL, NULL, STAGE_3),
    ZR_REQUIRES(FILED, NULL, NULL, OFFLOAD),
    ZR_REQUIRES(FILED, NULL, NULL, FOLDER),
    ZR_REQUIRES(PARAMETERS_FILE, NULL, NULL, PARAMETERS),
    ZR_REQUIRES(PARAMETERS_FILE, NULL, NULL, PARAMETERS_FOLDER),
    ZR_REQUIRES(DELAYED, NULL, NULL, OFFLOAD),
    ZR_EXCLUDES(DELAYED, NULL, NULL, AVERAGE, SQUARES, RESIDENT),
    ZR_EXCLUDES(DELAYED, "a delayed update starts after the norm is known", NULL, SPECULATIVE),
    ZR_EXCLUDES(SPECULATIVE, NULL, "use AdamW", NOT_AHEAD),
    ZR_REQUIRES(OFFLOAD_SEVERAL, "at stage 0 each rank would keep the whole optimizer state in host memory",
                "use stage 1", STAGE_FROM_1),
    ZR_EXCLUDES(OFFLOAD_SEVERAL, "it keeps whole gradients", "use ZR_REDUCE_EACH", REDUCE_ONCE),
    ZR_EXCLUDES(INVISIBLE, "not supported by these kernels", NULL, SPECULATIVE, PARAMETERS_FILE, DIFFERENCES,
                CHECKS, LOW_RANK, LARGEST, ZERONE, SIGNS_STAGE_0, SIGNS_LAMB, KEPT, SERVERS),
    ZR_REQUIRES(INVISIBLE_FILE, NULL, NULL, HOST_KERNELS),

    ZR_REQUIRES(STASHED, "stage 3 keeps no whole parameters", NULL, STAGE_TO_2),
    ZR_REQUIRES(OWN_NORM, "stage 3 keeps no whole parameters", NULL, STAGE_TO_2),
    ZR_EXCLUDES(STASHED, "these update parameters outside of a step's end", NULL, DELAYED, SPECULATIVE),
    ZR_EXCLUDES(OWN_NORM, "these update parameters outside of a step's end", NULL, DELAYED, SPECULATIVE),
    ZR_EXCLUDES(STASHED, "some stages would skip a step that others apply", "use bf16", FP16),
    ZR_EXCLUDES(OWN_NORM, "some stages would skip a step that others apply", "use bf16", FP16),

    ZR_EXCLUDES(DIFFERENCES, "no rank keeps the parameters that differences are added to", "use stage 1 or 2",
                STAGE_3),
    ZR_EXCLUDES(DIFFERENCES, "it requires whole models whose state is on the device", NULL, OFFLOAD, TENSOR,
                PIPELINE, SHARING),
    ZR_EXCLUDES(DIFFERENCES, "it replaces parameters", NULL, AVERAGE),
    ZR_REQUIRES(SECONDARY, NULL, NULL, STAGE_3),
    ZR_REQUIRES(TOLERANCE, NULL, NULL, CHECKS),
    ZR_EXCLUDES(TOLERANCE, "the ranks keep the momentum and the optimizer does not", NULL, LARGEST_MOMENTUM),
    ZR_REQUIRES(PACKS_SHARDS, "each rank owns a shard", NULL, STAGE_FROM_1),
    ZR_EXCLUDES(ERRORS, "a step's gradients have errors of earlier steps", NULL, SQUARES),
    ZR_EXCLUDES(ERRORS, "a loss scale would change its errors", "use bf16", FP16),
    ZR_EXCLUDES(ERRORS, "it requires whole models whose state is on the device", NULL, OFFLOAD, TENSOR,
                PIPELINE, SHARING),
    ZR_REQUIRES(SETTLES, "its variance settles", NULL, ADAMW),
    ZR_REQUIRES(SETTLES, "the other warm-ups have known numbers of steps", NULL, ONEBIT, LOW_RANK),
    ZR_EXCLUDES(SIGNS, "it sends parameters by itself", NULL, PACKS_PARAMETERS),
    ZR_REQUIRES(ONEBIT, NULL, NULL, STAGE_TO_1),
    ZR_REQUIRES(ZERONE, "between exchanges each rank has parameters of its own, which no shard can hold",
                NULL, STAGE_0),
    ZR_REQUIRES(ZERONE, NULL, NULL, ZERONE_NUMBERS),
    ZR_REQUIRES(ZERONE, "it moves variance and momentum", NULL, ADAMW),
    ZR_REQUIRES(ONEBIT, NULL, NULL, ADAMW, LAMB),
    ZR_EXCLUDES(SIGNS_STAGE_0, "it sends momentum", "use stage 1", CHECKS),
    ZR_EXCLUDES(SIGNS, NULL, NULL, AVERAGE),
    ZR_REQUIRES(SIGNS_LAMB, NULL, NULL, TRUST_AVERAGE),
    ZR_EXCLUDES(SIGNS, "parameters change by what is sent", NULL, SPECULATIVE),

    ZR_REQUIRES(KEPT, NULL, NULL, TAKE),
    ZR_EXCLUDES(KEPT, "its state is elsewhere", NULL, OFFLOAD, OWN_NORM, STASHED, PACKS_GRADIENTS,
                PACKS_PARAMETERS, OUTER),
    ZR_EXCLUDES(KEPT, "its loss scale is not kept", "use bf16", FP16),
    ZR_EXCLUDES(KEPT, NULL, NULL, AVERAGE, PREPARES, SCATTERED, STAGE_0_NARROW),
    ZR_EXCLUDES(SNAPSHOTS, "the state is elsewhere", NULL, OFFLOAD, OWN_NORM, STASHED, PACKS_GRADIENTS,
                PACKS_PARAMETERS, OUTER, UNREADABLE),

    ZR_EXCLUDES(FRAGMENTS, "its ranks share tensors of different units", "use 1", PIPELINE),
    ZR_EXCLUDES(OUTER, "groups skip different steps", "use bf16", FP16),
    ZR_EXCLUDES(OUTER, NULL, NULL, AVERAGE, DELAYED, STASHED),
    ZR_EXCLUDES(OUTER, "these add up what is sent", "use a packing", ERRORS, DIFFERENCES),
    ZR_EXCLUDES(OUTER_INVISIBLE, NULL, NULL, OFFLOAD),
    ZR_EXCLUDES(DELAY, NULL, "use 0", FILED),

    ZR_REQUIRES(SERVERS, NULL, NULL, SERVER_CALLS),
    ZR_REQUIRES(SERVERS, NULL, NULL, STAGE_0),
    ZR_EXCLUDES(SERVERS, "a worker has its own gradients only", NULL, SEVERAL, FP16, CLIP),
    ZR_EXCLUDES(SERVERS, NULL, NULL, AVERAGE, OUTER, OFFLOAD, PACKS_GRADIENTS, PACKS_PARAMETERS, KEPT, TENSOR,
                PIPELINE, SQUARES),
    ZR_REQUIRES(SERVERS, "servers update ranges of tensors", NULL, PLAIN_STATE),

    ZR_REQUIRES(SHARES, NULL, NULL, STAGE_TO_2),
    ZR_EXCLUDES(SHARES, NULL, NULL, KEPT, SNAPSHOTS, SERVERS, OFFLOAD, STASHED, OUTER, PACKS_GRADIENTS,
                PACKS_PARAMETERS, INVISIBLE),
    ZR_REQUIRES(ROOT_OWNS, NULL, NULL, STAGE_0),
    ZR_EXCLUDES(ROOT_OWNS, NULL, NULL, SHARES, KEPT, SNAPSHOTS, SERVERS, OFFLOAD, STASHED, OUTER, INVISIBLE),
    ZR_EXCLUDES(ROOT_OWNS, NULL, NULL, PACKS_GRADIENTS, PACKS_PARAMETERS, TENSOR, PIPELINE, SHARING, SQUARES,
                SPECULATIVE),
};
static const struct zr_mode_table table = {names, rules, sizeof rules / sizeof *rules, is_on, NULL};

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
    zr_result result = check_optimizer(options);
    if (result == ZR_OK)
        result = check_scaling(&options->loss_scaling);
    if (result == ZR_OK)
        result = check_gradient_uses(options);
    if (result == ZR_OK)
        result = zr_modes_check(&table, options);
    if (result == ZR_OK)
        result = check_offload(&options->offload);
    if (result == ZR_OK)
        result = check_compression(&options->compression, zr_comm_world(options->comm));
    if (result == ZR_OK)
        result = check_outer(&options->outer);
    return result == ZR_OK ? check_parameters(options) : result;
}
