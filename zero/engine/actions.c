/* actions.c: the end of a step: see actions.h. */
#include "zero/engine/actions.h"

#include "alloc/base/system/os.h"
#include "zero/engine/backup.h"
#include "zero/engine/compression.h"
#include "zero/engine/gradients.h"
#include "zero/engine/kept.h"
#include "zero/engine/meter.h"
#include "zero/engine/momentum.h"
#include "zero/engine/onebit.h"
#include "zero/engine/offload.h"
#include "zero/engine/served.h"
#include "zero/engine/speculate.h"
#include "zero/engine/warmup.h"
#include "zero/engine/zerone.h"

/* ---- Lists --------------------------------------------------------------------------------------------- */

/* Whether the update of a unit needs what `prepare` of its optimizer makes. */
static bool needs_preparation(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    bool needs = false;
    for (size_t i = 0; i < u->parameters_count; i++)
        needs |= engine->layout.parameters[u->first_parameter + i].needs_whole;
    return needs;
}

static void add(struct zr_actions *list, enum zr_action_kind kind, size_t unit)
{
    zr_actions_add(list, (struct zr_action){.kind = kind, .index = (unsigned)unit});
}

/* Updates units in order; the all-gather of a unit overlaps with the next update. If parameters are copied
 * from the host, the all-gather starts one unit later, after the copy. */
static void add_update(struct zr_engine *engine, struct zr_actions *list)
{
    const bool exchanges = engine->exchanges_momentum; /* while the next unit is updated */
    size_t behind = exchanges ? 1 : engine->tiers_count - 1, count = engine->layout.units_count, sums = 0;
    add(list, ZR_ACTION_OPEN, 0);
    for (size_t u = 0; u < count + behind; u++) {
        if (u < count && engine->units[u].steps > 0 && zr_unit_owned(&engine->units[u]) > 0) {
            for (; sums < count && sums <= u + 1; sums++) /* those of the next unit arrive meanwhile */
                if (engine->units[sums].path->gather)
                    add(list, ZR_ACTION_GATHER_SUMS, sums);
            add(list, ZR_ACTION_TAKE, u);
            if (needs_preparation(engine, u))
                add(list, ZR_ACTION_PREPARE, u);
            add(list, ZR_ACTION_UPDATE, u);
            add(list, ZR_ACTION_GIVE, u);
        }
        if (u < count)
            add(list, ZR_ACTION_CLEAR, u);
        if (u >= behind &&
            (exchanges ? engine->units[u - behind].steps > 0 : zr_engine_gathers_new(engine, u - behind)))
            add(list, ZR_ACTION_PUBLISH, u - behind);
    }
    add(list, ZR_ACTION_CLOSE, 0);
}

/* Parameter servers update the units. */
static void add_clock(struct zr_engine *engine, struct zr_actions *list)
{
    for (size_t u = 0; u < engine->layout.units_count; u++)
        add(list, ZR_ACTION_CLEAR, u);
    add(list, ZR_ACTION_CLOCK, 0);
}

/* Deferred results: the host reads the norm and ends the step after all work is queued. Until then gradients
 * are kept, to find a value that is not finite. */
static const struct zr_action_transform deferred_results = {
    .rules = {{ZR_ACTION_NORM, {ZR_ACTION_WEIGH}},
              {ZR_ACTION_SKIP},
              {ZR_ACTION_CLEAR},
              {ZR_ACTION_COUNT, {ZR_ACTION_READ, ZR_ACTION_SETTLE, ZR_ACTION_COUNT}}}};

zr_result zr_engine_actions_make(struct zr_engine *engine)
{
    struct zr_actions *step = &engine->step;
    engine->delayed.run = zr_engine_run_list;
    step->host_arena = engine->options.host_arena;
    add(step, ZR_ACTION_BEGIN, 0);
    add(step, ZR_ACTION_COLLECT, 0);
    add(step, ZR_ACTION_NORM, 0);
    if (engine->options.stage == 3) /* peers gather parameters that the update changes */
        add(step, ZR_ACTION_READERS, 0);
    add(step, ZR_ACTION_SKIP, 0);
    if (engine->options.stashed_versions > 0)
        add(step, ZR_ACTION_STASH, 0);
    if (zr_engine_is_served(engine))
        add_clock(engine, step);
    else
        add_update(engine, step);
    add(step, ZR_ACTION_COUNT, 0);
    if (engine->options.outer.period > 0) {
        add(step, ZR_ACTION_EXCHANGE, 0);
        add(step, ZR_ACTION_MERGE, 0);
    }
    if (zr_engine_defers(engine))
        zr_actions_change(step, &deferred_results);
    zr_result result = engine->options.offload.delayed ? zr_engine_delay(engine, step) : ZR_OK;
    if (engine->speculation.worker)
        zr_actions_change(step, engine->speculation.kind->step);
    if (engine->kept.record)
        zr_actions_change(step, &zr_engine_kept_step);
    if (engine->kept.record && engine->options.backup)
        zr_actions_change(step, &zr_backup_step);
    return result == ZR_OK ? step->result : result;
}

void zr_engine_actions_end(struct zr_engine *engine)
{
    zr_actions_drop(&engine->step);
}

/* ---- Before the update --------------------------------------------------------------------------------- */

static zr_result begin(struct zr_engine_run *run)
{
    struct zr_engine *engine = run->engine;
    zr_result result = zr_engine_check_unused(engine, "zr_engine_step");
    if (result == ZR_OK)
        result = zr_engine_check_rate(run->rate);
    if (result != ZR_OK)
        return result;
    *run->report = (struct zr_step_report){.clip_scale = 1, .loss_scale = zr_engine_loss_scale(engine)};
    engine->report_bad_gradient = zr_engine_report_bad_gradient;
    run->begun = true;
    return ZR_OK;
}

static zr_result norm(struct zr_engine_run *run)
{
    float scale = run->report->clip_scale / run->report->loss_scale;
    run->norm_ns = zr_os_now_ns();
    zr_result result = run->engine->simulated ? ZR_OK : zr_engine_norm(run->engine, run->report, &scale);
    run->engine->brought = false;
    run->update = zr_engine_update_of(run->engine, run->rate, scale);
    return result;
}

static zr_result weigh(struct zr_engine_run *run)
{
    struct zr_engine *engine = run->engine;
    engine->brought = false;
    run->update = zr_engine_update_of(engine, run->rate, 1);
    zr_result result = zr_engine_rates_send(engine, &run->update);
    if (result == ZR_OK && !engine->simulated)
        result = zr_engine_all_squares(engine);
    return result == ZR_OK ? zr_engine_weigh(engine, &run->update) : result;
}

static void repeat(struct zr_engine_run *run)
{
    struct zr_engine_update repeated = zr_engine_update_of(run->engine, run->rate, 1);
    zr_engine_rates_set(run->engine, &repeated);
    run->engine->report_bad_gradient = zr_engine_report_bad_graph;
}

static void clear(struct zr_engine *engine, size_t unit)
{
    zr_engine_drop_gradients(engine, unit);
    engine->units[unit].accumulated = 0;
    zr_engine_speculation_forget(engine, unit);
}

/* A skipped step clears the gradients, so that another step or a load can follow. */
static void clear_all(struct zr_engine *engine)
{
    for (size_t u = 0; u < engine->layout.units_count; u++)
        clear(engine, u);
}

/* ---- The update of a unit ------------------------------------------------------------------------------ */

static zr_result (*const prepare[])(struct zr_engine_run *run, size_t unit) = {
    [ZR_PREPARES_DIRECTIONS] = zr_engine_direct, [ZR_PREPARES_SUMS] = zr_engine_sum_tensors};

void zr_engine_drop_prepared(struct zr_engine_run *run)
{
    zr_drop(run->prepared.arena, &run->prepared.memory);
    run->prepared = (struct zr_prepared){0};
}

static zr_result open_pass(struct zr_engine_run *run)
{
    run->passes = true;
    zr_result result = zr_engine_onebit_settle(run->engine);
    if (result == ZR_OK)
        result = zr_state_store_begin(&run->engine->state_tier->store);
    return result == ZR_OK ? zr_engine_gradients_begin(run->engine) : result;
}

static zr_result close_pass(struct zr_engine_run *run)
{
    struct zr_engine *engine = run->engine;
    run->passes = false;
    for (unsigned i = 0; i < 2; i++) {
        if (run->sums[i]) /* no operation writes after this wait, even if a peer was lost */
            zr_comm_wait(engine->options.comm, run->sums_tickets[i]);
        zr_drop(engine->options.arena, &run->sums[i]);
        zr_drop(engine->options.arena, &run->before[i]);
    }
    zr_engine_drop_prepared(run);
    zr_result read = zr_engine_gradients_end(engine);
    zr_result ended = zr_state_store_end(&engine->state_tier->store);
    if (run->norm_ns > 0)
        engine->update_ns += zr_os_now_ns() - run->norm_ns;
    return read != ZR_OK ? read : ended;
}

static zr_result take_here(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const struct zr_unit_state *state = &engine->units[unit];
    zr_result result = state->place->take ? state->place->take(engine, unit) : ZR_OK;
    run->gradients = state->reduced;
    if (!zr_engine_sends_differences(engine)) { /* else the parameters change by what is sent */
        run->open = state->parameters->open;
        run->close = state->parameters->close;
    }
    if (result == ZR_OK && state->path->find)
        result = state->path->find(run, unit);
    run->owned = state->owned;
    return result == ZR_OK && state->take ? state->take(engine, unit, &run->owned) : result;
}

static zr_result give_here(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    zr_result result = zr_engine_give_owned(engine, unit, run->changed);
    if (result == ZR_OK)
        result = zr_gradient_do(engine->units[unit].place->give, engine, unit);
    zr_drop(engine->options.arena, &run->sums[unit % 2]);
    zr_engine_drop_prepared(run);
    return result;
}

const struct zr_update_way zr_update_here = {take_here, give_here};

/* ---- Deferred results ---------------------------------------------------------------------------------- */

static zr_result read_weight(struct zr_engine_run *run)
{
    struct zr_gradient_weight weight = {.clip_scale = 1};
    zr_result result = run->engine->simulated ? ZR_OK : zr_engine_weight_read(run->engine, &weight);
    run->report->gradient_norm = weight.norm;
    run->report->clip_scale = weight.clip_scale;
    run->report->skipped = weight.skips;
    if (result == ZR_OK && run->engine->small_squares)
        result = zr_engine_all_squares_read(run->engine);
    return result == ZR_OK ? zr_engine_measure_squares(run->engine, run->report->loss_scale, weight.skips)
                           : result;
}

static zr_result settle(struct zr_engine_run *run)
{
    struct zr_engine *engine = run->engine;
    bool skipped = run->report->skipped, usable = !skipped || engine->options.precision == ZR_PRECISION_FP16;
    zr_result result = ZR_OK;
    if (!engine->simulated && (!usable || !zr_engine_follow_scaling(engine, !skipped)))
        result = engine->report_bad_gradient(engine);
    clear_all(engine);
    return result;
}

/* ---- The executor -------------------------------------------------------------------------------------- */

zr_result zr_engine_act(struct zr_engine_run *run, const struct zr_action *action)
{
    struct zr_engine *engine = run->engine;
    size_t unit = action->index;
    switch (action->kind) {
    case ZR_ACTION_BEGIN:
        return begin(run);
    case ZR_ACTION_COLLECT:
        return zr_engine_bring_gradients(engine);
    case ZR_ACTION_REPEAT:
        repeat(run);
        return ZR_OK;
    case ZR_ACTION_AWAIT:
        return zr_engine_speculation_await_all(engine);
    case ZR_ACTION_NORM:
        return norm(run);
    case ZR_ACTION_WEIGH:
        return weigh(run);
    case ZR_ACTION_UNDO:
        return zr_engine_speculation_settle(engine, run->report->skipped ? NULL : &run->update,
                                            &run->report->rolled_back);
    case ZR_ACTION_LAND:
        return zr_engine_delayed_publish(engine);
    case ZR_ACTION_READERS:
        return zr_comm_synchronize(engine->options.comm);
    case ZR_ACTION_SKIP:
        run->ended = run->report->skipped;
        return ZR_OK;
    case ZR_ACTION_STASH:
        return zr_engine_versions_stash(engine);
    case ZR_ACTION_OPEN:
        return open_pass(run);
    case ZR_ACTION_GATHER_SUMS:
        return engine->units[unit].path->gather(run, unit);
    case ZR_ACTION_TAKE:
        run->changed = false;
        return run->way->take(run, unit);
    case ZR_ACTION_PREPARE:
        run->changed = true;
        return prepare[engine->layout.units[unit].optimizer->prepares](run, unit);
    case ZR_ACTION_KEEP:
        zr_engine_delayed_keep(engine, unit, &run->prepared);
        return ZR_OK;
    case ZR_ACTION_CONFIRM:
        if (zr_engine_speculation_holds(engine, unit)) /* differences change parameters by what is sent */
            return zr_engine_sends_differences(engine) ? ZR_OK
                                                       : engine->speculation.kind->publish(engine, unit);
        return zr_engine_update_unit(run, unit);
    case ZR_ACTION_UPDATE:
        return zr_engine_sends_momentum(engine) ? zr_engine_momentum_send(run, unit)
                                                : zr_engine_update_unit(run, unit);
    case ZR_ACTION_GIVE:
        return run->way->give(run, unit);
    case ZR_ACTION_CLEAR:
        clear(engine, unit);
        return ZR_OK;
    case ZR_ACTION_PUT:
        return zr_engine_delayed_put(engine, unit);
    case ZR_ACTION_PUBLISH:
        if (engine->exchanges_momentum)
            return zr_engine_momentum_apply(run, unit);
        return zr_engine_sends_differences(engine) ? zr_engine_send_difference(engine, unit)
                                                   : zr_engine_all_gather_parameters(engine, unit);
    case ZR_ACTION_CLOSE:
        return close_pass(run);
    case ZR_ACTION_READ:
        return read_weight(run);
    case ZR_ACTION_SETTLE:
        return settle(run);
    case ZR_ACTION_DECIDE:
        zr_engine_kept_decide(run);
        return ZR_OK;
    case ZR_ACTION_COMMIT:
        zr_engine_kept_commit(engine);
        return ZR_OK;
    case ZR_ACTION_BACK_UP:
        return zr_backup_start(engine);
    case ZR_ACTION_BACKED_UP:
        return zr_backup_finish(engine);
    case ZR_ACTION_HAND_OVER:
        return zr_engine_delayed_start(engine, &run->update);
    case ZR_ACTION_COUNT: {
        zr_result result = run->report->skipped ? ZR_OK : zr_meter_end(engine);
        if (result == ZR_OK && !run->report->skipped)
            result = zr_warmup_check(engine);
        zr_engine_local_count(run);
        engine->steps_done += !run->report->skipped;
        return result;
    }
    case ZR_ACTION_EXCHANGE:
        return zr_outer_exchange(engine);
    case ZR_ACTION_MERGE:
        return zr_outer_merge(engine);
    case ZR_ACTION_CLOCK:
        return zr_served_clock(engine, run->rate);
    default:
        return zr_fail(ZR_ERR_INVALID, "unknown action %s", zr_action_kind_name(action->kind));
    }
}

static void end_run(struct zr_engine_run *run, zr_result result)
{
    if (run->passes)
        close_pass(run); /* waits for the transfers of a pass that failed */
    if (!run->begun)
        return;
    if (result != ZR_OK) /* the norm is not known, or not finite */
        zr_engine_speculation_settle(run->engine, NULL, &run->report->rolled_back);
    if (run->ended || (result != ZR_OK && run->report->skipped))
        clear_all(run->engine);
}

zr_result zr_engine_run_list(struct zr_engine_run *run, const struct zr_actions *list)
{
    zr_result result = ZR_OK;
    for (size_t i = 0; i < list->count && result == ZR_OK && !run->ended; i++) {
        const struct zr_action *action = &list->actions[i];
        bool of_engine = !run->act || action->kind >= ZR_ACTION_BEGIN || action->kind == ZR_ACTION_UPDATE;
        if (run->observe)
            run->observe(run->observe_state, action, false);
        result = of_engine ? zr_engine_act(run, action) : run->act(run, action);
        if (run->observe && result == ZR_OK)
            run->observe(run->observe_state, action, true);
    }
    end_run(run, result);
    return result;
}

zr_result zr_engine_step(zr_engine *engine, float rate, struct zr_step_report *report)
{
    zr_result result = zr_engine_check_call(engine, __func__, report);
    struct zr_engine_run run = {.engine = engine, .way = &zr_update_here, .rate = rate, .report = report};
    return result == ZR_OK ? zr_engine_run_list(&run, &engine->step) : result;
}
