/* optimizer.c: the end of a step: norm, clipping, the update of this rank's part by AdamW or SGD, and the
 * all-gather of new parameters that are kept whole. In fp16 a step whose gradients overflowed is skipped. */
#include "zero/engine/update.h"
#include "zero/engine/gradient_file.h"
#include "zero/engine/offload.h"
#include "zero/engine/speculate.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* All-reduces in place over the ranks that share a unit. */
static zr_result add_shared(struct zr_engine *engine, struct zr_numbers numbers, size_t count)
{
    zr_comm *sharing = engine->options.sharing;
    zr_ticket ticket;
    zr_result result = zr_comm_all_reduce(
        sharing,
        &(struct zr_all_reduce){.buffer = numbers.at,
                                .shard_elements = count / zr_comm_world(sharing),
                                .scale = 1,
                                .type = numbers.precision == ZR_PRECISION_FP32 ? ZR_COMM_FP32
                                                                               : zr_engine_comm_type(engine),
                                .label = ZR_COMM_LABEL_NONE},
        &ticket);
    return result == ZR_OK ? zr_comm_wait(sharing, ticket) : result;
}

/* Whether a unit's gradients are gathered from shards of sums, because stage 0 updates whole units. */
static bool needs_whole_sums(const struct zr_engine *engine, size_t unit)
{
    return engine->options.stage == 0 && zr_engine_is_low_precision(engine) && engine->world > 1 &&
           unit < engine->layout.units_count && zr_engine_accumulation_steps(engine, unit) > 1 &&
           !zr_engine_adds_in_place(engine);
}

/* A unit's whole reduced gradients, the input of the update at stage 0. */
static struct zr_numbers whole_gradients(const struct zr_engine *engine, size_t unit)
{
    return (struct zr_numbers){zr_engine_kept_gradients(engine, unit), engine->options.precision};
}

/* Sums the reduced gradients of a unit over the pipeline ranks that share it. */
static zr_result sum_over_sharing(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_numbers shard = zr_engine_shard_gradients(engine, unit);
    struct zr_numbers whole = whole_gradients(engine, unit);
    char *begin = whole.at, *end = begin + u->padded_elements * engine->gradient_bytes;
    bool updates_all = engine->options.stage == 0 && engine->world > 1 && !needs_whole_sums(engine, unit),
         apart = !updates_all || (char *)shard.at < begin || (char *)shard.at >= end;
    zr_result result = ZR_OK;
    if (!engine->layout.parameters[u->first_parameter].parameter.part.shared)
        return ZR_OK;
    if (updates_all)
        result = add_shared(engine, whole, u->padded_elements);
    return result == ZR_OK && apart ? add_shared(engine, shard, u->shard_elements) : result;
}

static zr_result wait_for_gradients(struct zr_engine *engine)
{
    for (size_t u = engine->layout.units_count; u-- > 0;) {
        struct zr_unit_state *state = &engine->units[u];
        unsigned steps = zr_engine_accumulation_steps(engine, u);
        if (zr_engine_is_frozen(engine, u))
            continue;
        if (state->accumulated != steps)
            return zr_fail(ZR_ERR_INVALID, "unit %s has %u of %u gradients at the end of the step",
                           engine->layout.units[u].unit.name, state->accumulated, steps);
        zr_result result = zr_engine_end_reduction(engine, u);
        if (result == ZR_OK && engine->options.sharing)
            result = sum_over_sharing(engine, u);
        if (result != ZR_OK)
            return result;
    }
    return zr_engine_drop_gathered(engine);
}

zr_result zr_engine_bring_gradients(struct zr_engine *engine)
{
    zr_result result = engine->brought ? ZR_OK : wait_for_gradients(engine);
    if (result == ZR_OK && !engine->brought)
        result = zr_engine_drain(engine);
    engine->brought = result == ZR_OK;
    return result;
}

/* Location of a gradient that is not finite; unit UINT64_MAX: none. */
struct bad_gradient {
    uint64_t unit, element;
};

/* The first location, in the order of backward, over the ranks of a communicator. */
static zr_result first_of_ranks(zr_comm *comm, struct bad_gradient *bad)
{
    struct bad_gradient mine = *bad, all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(comm, &mine, sizeof mine, all);
    unsigned first = 0;
    for (unsigned r = 1; r < zr_comm_world(comm) && result == ZR_OK; r++)
        if (all[r].unit != UINT64_MAX && (all[first].unit == UINT64_MAX || all[r].unit > all[first].unit))
            first = r;
    *bad = result == ZR_OK ? all[first] : mine;
    return result;
}

static zr_result find_bad_gradient(struct zr_engine *engine, struct bad_gradient *mine)
{
    zr_result result = ZR_OK;
    *mine = (struct bad_gradient){UINT64_MAX, 0};
    /* Backward runs from the last unit to the first. */
    for (size_t u = engine->layout.units_count; u-- > 0;) {
        size_t shard = engine->layout.units[u].shard_elements;
        size_t at = shard;
        if (zr_engine_is_frozen(engine, u))
            continue;
        result = zr_engine_gradient_fetch(engine, u);
        if (result == ZR_OK)
            result = zr_engine_find_nonfinite(engine, zr_engine_unit_compute(engine, u), shard,
                                              zr_engine_shard_gradients(engine, u), &at);
        if (result != ZR_OK)
            return result;
        if (at < shard) {
            *mine = (struct bad_gradient){u, engine->rank * shard + at};
            break;
        }
    }
    result = first_of_ranks(engine->options.comm, mine);
    return result == ZR_OK && engine->options.tensor ? first_of_ranks(engine->options.tensor, mine) : result;
}

/* The first gradient that is not finite over all ranks of the model, with the parameter's name. */
struct bad_element {
    bool found;
    char name[sizeof((struct zr_parameter *)0)->name];
    uint64_t element;
};

static zr_result find_bad_element(struct zr_engine *engine, struct bad_element *out)
{
    struct bad_element all[ZR_MAX_WORLD];
    struct bad_gradient bad;
    zr_comm *pipeline = engine->options.pipeline;
    zr_result result = find_bad_gradient(engine, &bad);
    memset(out, 0, sizeof *out);
    if (result == ZR_OK && bad.unit != UINT64_MAX) {
        const struct zr_layout_parameter *p = zr_engine_parameter_at(engine, bad.unit, bad.element);
        out->found = true;
        out->element = p ? bad.element - p->offset : bad.element;
        snprintf(out->name, sizeof out->name, "%s", p ? p->parameter.name : "padding");
    }
    if (result == ZR_OK && pipeline)
        result = zr_comm_host_all_gather(pipeline, out, sizeof *out, all);
    for (unsigned r = 0; result == ZR_OK && pipeline && r < zr_comm_world(pipeline); r++)
        if (all[r].found) /* backward runs the last stage first */
            *out = all[r];
    return result;
}

/* Sets the error message with the first gradient that is not finite. Collective: the norm is the same on all
 * ranks. */
static zr_result report_bad_gradient(struct zr_engine *engine)
{
    struct bad_element bad;
    if (engine->again)
        return zr_fail(ZR_ERR_CORRUPT,
                       "the norm of the gradients is not finite; nothing was updated; run without "
                       "--cuda-graph to find the gradient");
    zr_result result = find_bad_element(engine, &bad);
    if (result != ZR_OK)
        return result;
    if (!bad.found)
        return zr_fail(ZR_ERR_CORRUPT, "the gradient norm overflowed, although every gradient is finite; "
                                       "lower the learning rate (--lr)");
    const char *name = bad.name;
    uint64_t element = bad.element;
    if (engine->options.precision == ZR_PRECISION_FP16 && engine->scaling.skipped_in_row > 1)
        return zr_fail(
            ZR_ERR_CORRUPT,
            "the gradient of %s is not finite (element %" PRIu64 "): %u steps in a row were "
            "skipped, the last with the smallest loss scale, %g; lower the learning rate (--lr) or train "
            "in bf16",
            name, element, engine->scaling.skipped_in_row, (double)engine->scaling.scale);
    return zr_fail(ZR_ERR_CORRUPT,
                   "the gradient of %s is not finite (element %" PRIu64 "); nothing was updated; "
                   "lower the learning rate (--lr) or clip (--clip)",
                   name, element);
}

/* Computes the squares of all units in engine->squares. Gradients in the offload file were counted when they
 * were written. */
static zr_result all_squares(struct zr_engine *engine)
{
    zr_result result = ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        if (zr_engine_is_frozen(engine, u))
            engine->squares[u] = 0;
        else if (!zr_engine_files_gradients(engine, u))
            result = zr_engine_unit_squares(engine, u, &engine->squares[u]);
    if (result == ZR_OK && !zr_engine_is_part(engine) && !zr_engine_defers(engine))
        result = zr_engine_squares_read(engine, engine->squares);
    return result;
}

/* Sum of squares with its rounding error (compensated sum), so that the result does not depend on the
 * distribution of tensors over ranks. */
struct exact {
    double sum, rest;
};

static void add_exactly(struct exact *to, double number)
{
    double sum = to->sum + number, added = sum - to->sum;
    to->rest += (to->sum - (sum - added)) + (number - added);
    to->sum = sum;
}

/* Adds the sums of the ranks of a communicator; NULL does nothing. */
static zr_result add_over(zr_comm *comm, struct exact *number)
{
    struct exact parts[ZR_MAX_WORLD];
    if (!comm)
        return ZR_OK;
    zr_result result = zr_comm_host_all_gather(comm, number, sizeof *number, parts);
    *number = (struct exact){0};
    for (unsigned r = 0; r < zr_comm_world(comm); r++) {
        add_exactly(number, parts[r].sum);
        number->rest += parts[r].rest;
    }
    return result;
}

/* The norm of all gradients: squares in fixed blocks of each shard, added unit by unit, and within a unit
 * rank by rank; with tensor or pipeline parallelism over all engines. The bits are the same on every rank and
 * at every stage. */
static zr_result gradient_norm(struct zr_engine *engine, double *norm)
{
    size_t units = engine->layout.units_count;
    double *mine = engine->squares, *all = mine + units, total = 0;
    struct exact exact = {0};
    zr_result result = all_squares(engine);
    if (result == ZR_OK)
        result = zr_comm_host_all_gather(engine->options.comm, mine, units * sizeof *mine, all);
    for (size_t u = 0; u < units && result == ZR_OK; u++)
        for (unsigned r = 0; r < engine->world; r++) {
            total += all[r * units + u];
            add_exactly(&exact, all[r * units + u]);
        }
    if (result == ZR_OK)
        result = add_over(engine->options.tensor, &exact);
    if (result == ZR_OK)
        result = add_over(engine->options.pipeline, &exact);
    if (zr_engine_is_part(engine))
        total = isfinite(exact.sum) ? exact.sum + exact.rest : exact.sum;
    *norm = sqrt(total);
    return result;
}

/* ---- The update ---------------------------------------------------------------------------------------- */

/* Stage 0 with two-byte gradients: fp32 sums are gathered unit by unit into two blocks, one in use and one
 * being gathered. */
struct whole_sums {
    float *block[2];
    zr_ticket ticket[2];
};

static zr_result start_whole_sums(struct zr_engine *engine, struct whole_sums *sums, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    zr_result result = zr_take(engine->options.arena, ZR_TAG_GRAD, u->padded_elements, sizeof(float),
                               (void **)&sums->block[unit % 2]);
    if (result != ZR_OK)
        return zr_name_unit(result, u->unit.name);
    return zr_comm_all_gather(engine->options.comm,
                              &(struct zr_all_gather){.source = zr_engine_shard_gradients(engine, unit).at,
                                                      .destination = sums->block[unit % 2],
                                                      .shard_bytes = u->shard_elements * sizeof(float),
                                                      .label = zr_engine_label(unit, ZR_LABEL_GRADIENTS)},
                              &sums->ticket[unit % 2]);
}

/* Gradients of this rank's part of a unit. */
static zr_result updating_gradients(struct zr_engine *engine, struct whole_sums *sums, size_t unit,
                                    struct zr_numbers *out)
{
    zr_result result = ZR_OK;
    *out = zr_engine_shard_gradients(engine, unit);
    if (engine->options.stage == 0 && engine->world > 1)
        *out = whole_gradients(engine, unit);
    if (needs_whole_sums(engine, unit)) {
        if (!sums->block[unit % 2])
            result = start_whole_sums(engine, sums, unit);
        if (result == ZR_OK && needs_whole_sums(engine, unit + 1))
            result = start_whole_sums(engine, sums, unit + 1);
        if (result == ZR_OK)
            result = zr_comm_wait(engine->options.comm, sums->ticket[unit % 2]);
        *out = (struct zr_numbers){sums->block[unit % 2], ZR_PRECISION_FP32};
    }
    return result;
}

static void end_round(struct zr_engine *engine, size_t unit)
{
    zr_engine_drop_gradients(engine, unit);
    engine->units[unit].accumulated = 0;
    zr_engine_speculation_forget(engine, unit);
}

/* Whether a unit's new parameters are all-gathered. */
static bool gathers_new_parameters(const struct zr_engine *engine, size_t unit)
{
    return engine->options.stage > 0 && engine->world > 1 && engine->units[unit].resident &&
           !zr_engine_is_frozen(engine, unit);
}

/* Publishes the parameters of a unit that was updated speculatively; with state in a file its pass skips the
 * unit. */
static zr_result publish_held(struct zr_engine *engine, size_t unit)
{
    struct zr_owned owned;
    if (!zr_state_file_is_twice(&engine->state_tier->store, unit))
        return zr_engine_round_masters(engine, unit);
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    zr_result given = zr_engine_give_owned(engine, unit, false);
    result = result == ZR_OK ? given : result;
    return result == ZR_OK ? zr_engine_speculation_publish(engine, unit) : result;
}

/* Updates units in order; the all-gather of a unit overlaps with the next update. If parameters are copied
 * from the host, the all-gather starts one unit later, after the copy. */
static zr_result update_all(struct zr_engine *engine, const struct zr_engine_update *update)
{
    struct whole_sums sums = {0};
    size_t behind = zr_engine_offloads(engine), count = engine->layout.units_count;
    zr_result result = zr_state_store_begin(&engine->state_tier->store);
    if (result == ZR_OK)
        result = zr_engine_gradients_begin(engine);

    for (size_t u = 0; u < count + behind && result == ZR_OK; u++) {
        struct zr_numbers gradients;
        if (u < count && !zr_engine_is_frozen(engine, u)) {
            result = zr_engine_gradients_take(engine, u);
            if (result == ZR_OK)
                result = updating_gradients(engine, &sums, u, &gradients);
            if (result != ZR_OK)
                break;
            result = zr_engine_speculation_holds(engine, u)
                         ? publish_held(engine, u)
                         : zr_engine_update_unit(engine, u, gradients, update);
            if (result == ZR_OK)
                result = zr_engine_gradients_give(engine, u);
            zr_drop(engine->options.arena, &sums.block[u % 2]);
            if (!zr_engine_defers(engine)) /* deferred: kept to find a value that is not finite */
                end_round(engine, u);
        }
        if (result == ZR_OK && u >= behind && gathers_new_parameters(engine, u - behind))
            result = zr_engine_all_gather_parameters(engine, u - behind);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (sums.block[i]) /* no operation writes after this wait, even if a peer was lost */
            zr_comm_wait(engine->options.comm, sums.ticket[i]);
        zr_drop(engine->options.arena, &sums.block[i]);
    }
    zr_result read = zr_engine_gradients_end(engine);
    zr_result ended = zr_state_store_end(&engine->state_tier->store);
    return result != ZR_OK ? result : read != ZR_OK ? read : ended;
}

/* ---- The step ------------------------------------------------------------------------------------------ */

/* Computes the gradients' norm, decides whether the step is skipped, and sets the factor of the update. */
static zr_result evaluate_gradients(struct zr_engine *engine, struct zr_step_report *report, float *scale)
{
    const struct zr_optimizer_options *options = &engine->options.optimizer;
    double norm;
    zr_result result = gradient_norm(engine, &norm);
    if (result != ZR_OK)
        return result;
    report->gradient_norm = norm / (double)report->loss_scale;
    report->skipped = !isfinite(norm);
    if (report->skipped && engine->options.precision != ZR_PRECISION_FP16)
        return report_bad_gradient(engine);
    if (!zr_engine_follow_scaling(engine, !report->skipped))
        return report_bad_gradient(engine);
    if (options->clip > 0 && !report->skipped && report->gradient_norm > options->clip)
        report->clip_scale = (float)(options->clip / report->gradient_norm);
    *scale = report->clip_scale / report->loss_scale;
    return ZR_OK;
}

/* The gradients are complete: runs the update and settles speculative updates. */
static zr_result find_update(struct zr_engine *engine, float rate, struct zr_step_report *report,
                             struct zr_engine_update *update)
{
    float scale = report->clip_scale / report->loss_scale;
    zr_result result = zr_engine_speculation_await_filed(engine);
    if (result == ZR_OK && !engine->simulated)
        result = evaluate_gradients(engine, report, &scale);
    *update = zr_engine_update_of(engine, rate, scale);
    zr_result settled = zr_engine_speculation_settle(
        engine, result == ZR_OK && !report->skipped ? update : NULL, &report->rolled_back);
    return result == ZR_OK ? settled : result;
}

static void end_rounds(struct zr_engine *engine)
{
    for (size_t u = 0; u < engine->layout.units_count; u++)
        end_round(engine, u);
}

static zr_result check_step(const struct zr_engine *engine, const char *call, float rate, const void *report)
{
    zr_result result = zr_engine_check_call(engine, call, report);
    if (result == ZR_OK)
        result = zr_engine_check_unused(engine, call);
    if (result == ZR_OK && !(rate >= 0 && rate <= FLT_MAX))
        result = zr_fail(ZR_ERR_INVALID, "the learning rate is %g; use a finite number of at least 0",
                         (double)rate);
    return result;
}

/* Waits for peers that gather parameters from this rank, before the update changes them. */
static zr_result await_readers(struct zr_engine *engine)
{
    return engine->options.stage == 3 ? zr_comm_synchronize(engine->options.comm) : ZR_OK;
}

zr_result zr_engine_step_begin(struct zr_engine *engine, float rate, struct zr_step_report *report)
{
    zr_result result = check_step(engine, "zr_engine_step", rate, report);
    if (result != ZR_OK)
        return result;
    *report = (struct zr_step_report){.clip_scale = 1, .loss_scale = zr_engine_loss_scale(engine)};
    struct zr_engine_update update = zr_engine_update_of(engine, rate, 1);
    engine->again = false;
    result = wait_for_gradients(engine);
    if (result == ZR_OK)
        result = zr_engine_rates_send(engine, &update);
    if (result == ZR_OK && !engine->simulated)
        result = all_squares(engine);
    if (result == ZR_OK)
        result = zr_engine_weigh(engine, &update);
    if (result == ZR_OK)
        result = await_readers(engine);
    return result == ZR_OK ? update_all(engine, &update) : result;
}

zr_result zr_engine_step_again(struct zr_engine *engine, float rate, struct zr_step_report *report)
{
    zr_result result = check_step(engine, "zr_engine_step", rate, report);
    if (result != ZR_OK)
        return result;
    *report = (struct zr_step_report){.clip_scale = 1, .loss_scale = zr_engine_loss_scale(engine)};
    struct zr_engine_update update = zr_engine_update_of(engine, rate, 1);
    zr_engine_rates_set(engine, &update);
    engine->again = true;
    return ZR_OK;
}

zr_result zr_engine_step_read(struct zr_engine *engine, struct zr_step_report *report)
{
    struct zr_gradient_weight weight = {.clip_scale = 1};
    zr_result result = engine->simulated ? ZR_OK : zr_engine_weight_read(engine, &weight);
    report->gradient_norm = weight.norm;
    report->clip_scale = weight.clip_scale;
    report->skipped = weight.skips;
    return result;
}

zr_result zr_engine_step_end(struct zr_engine *engine, struct zr_step_report *report)
{
    zr_result result = ZR_OK;
    bool usable = !report->skipped || engine->options.precision == ZR_PRECISION_FP16;
    if (!engine->simulated && (!usable || !zr_engine_follow_scaling(engine, !report->skipped)))
        result = report_bad_gradient(engine);
    end_rounds(engine);
    if (result == ZR_OK && !report->skipped)
        engine->steps_done++;
    return result;
}

zr_result zr_engine_step(zr_engine *engine, float rate, struct zr_step_report *report)
{
    zr_result result = check_step(engine, __func__, rate, report);
    if (result == ZR_OK && zr_engine_defers(engine)) {
        result = zr_engine_step_begin(engine, rate, report);
        if (result == ZR_OK)
            result = zr_engine_step_read(engine, report);
        return result == ZR_OK ? zr_engine_step_end(engine, report) : result;
    }
    if (result != ZR_OK)
        return result;

    struct zr_engine_update update;
    *report = (struct zr_step_report){.clip_scale = 1, .loss_scale = zr_engine_loss_scale(engine)};
    result = zr_engine_bring_gradients(engine);
    engine->brought = false;
    if (result != ZR_OK) {
        zr_engine_speculation_settle(engine, NULL, &report->rolled_back);
        return result;
    }
    result = find_update(engine, rate, report, &update);
    if (result == ZR_OK && engine->options.offload.delayed)
        result = zr_engine_late_publish(engine);
    if (result == ZR_OK)
        result = await_readers(engine);
    if (report->skipped) /* clear the gradients, so that another step or a load can follow */
        end_rounds(engine);
    if (result != ZR_OK || report->skipped)
        return result;
    if (engine->options.offload.delayed)
        return zr_engine_late_start(engine, &update);
    result = update_all(engine, &update);
    if (result == ZR_OK)
        engine->steps_done++;
    return result;
}
