/* actions.c: the end of a step: see actions.h. */
#include "zero/engine/actions.h"

#include "zero/engine/gradients.h"
#include "zero/engine/offload.h"
#include "zero/engine/speculate.h"

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

/* Updates units in order; the all-gather of a unit overlaps with the next update. If parameters are copied
 * from the host, the all-gather starts one unit later, after the copy. */
static void add_update(struct zr_engine *engine, struct zr_engine_actions *list)
{
    size_t behind = engine->tiers_count - 1, count = engine->layout.units_count, sums = 0;
    zr_engine_actions_add(engine, list, ZR_ENGINE_OPEN, 0);
    for (size_t u = 0; u < count + behind; u++) {
        if (u < count && engine->units[u].steps > 0) {
            for (; sums < count && sums <= u + 1; sums++) /* those of the next unit arrive meanwhile */
                if (engine->units[sums].path->gather)
                    zr_engine_actions_add(engine, list, ZR_ENGINE_GATHER, sums);
            zr_engine_actions_add(engine, list, ZR_ENGINE_FETCH, u);
            if (needs_preparation(engine, u))
                zr_engine_actions_add(engine, list, ZR_ENGINE_PREPARE, u);
            zr_engine_actions_add(engine, list, ZR_ENGINE_UPDATE, u);
            zr_engine_actions_add(engine, list, ZR_ENGINE_STORE, u);
        }
        if (u < count)
            zr_engine_actions_add(engine, list, ZR_ENGINE_CLEAR, u);
        if (u >= behind && zr_engine_gathers_new(engine, u - behind))
            zr_engine_actions_add(engine, list, ZR_ENGINE_PUBLISH, u - behind);
    }
    zr_engine_actions_add(engine, list, ZR_ENGINE_CLOSE, 0);
}

/* ---- Before the update --------------------------------------------------------------------------------- */

static zr_result collect(struct zr_engine *engine)
{
    zr_result result = zr_engine_bring_gradients(engine);
    engine->brought = false;
    return result;
}

static zr_result norm(struct zr_engine_run *run)
{
    float scale = run->report->clip_scale / run->report->loss_scale;
    zr_result result = run->engine->simulated ? ZR_OK : zr_engine_norm(run->engine, run->report, &scale);
    run->update = zr_engine_update_of(run->engine, run->rate, scale);
    return result;
}

static zr_result weigh(struct zr_engine_run *run)
{
    struct zr_engine *engine = run->engine;
    run->update = zr_engine_update_of(engine, run->rate, 1);
    zr_result result = zr_engine_rates_send(engine, &run->update);
    if (result == ZR_OK && !engine->simulated)
        result = zr_engine_all_squares(engine);
    return result == ZR_OK ? zr_engine_weigh(engine, &run->update) : result;
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

static void drop_prepared(struct zr_engine_run *run)
{
    zr_drop(run->prepared.arena, &run->prepared.memory);
    run->prepared = (struct zr_prepared){0};
}

static zr_result open_pass(struct zr_engine_run *run)
{
    run->passes = true;
    zr_result result = zr_state_store_begin(&run->engine->state_tier->store);
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
    }
    drop_prepared(run);
    zr_result read = zr_engine_gradients_end(engine);
    zr_result ended = zr_state_store_end(&engine->state_tier->store);
    return read != ZR_OK ? read : ended;
}

static zr_result fetch_here(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    zr_result result = zr_gradient_do(engine->units[unit].place->take, engine, unit);
    if (result == ZR_OK)
        result = engine->units[unit].path->find(run, unit);
    return result == ZR_OK ? zr_engine_take_owned(engine, unit, &run->owned) : result;
}

static zr_result store_here(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    zr_result result = zr_engine_give_owned(engine, unit, run->changed);
    if (result == ZR_OK)
        result = zr_gradient_do(engine->units[unit].place->give, engine, unit);
    zr_drop(engine->options.arena, &run->sums[unit % 2]);
    drop_prepared(run);
    return result;
}

static zr_result open_here(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                           struct zr_window *out)
{
    return engine->units[unit].parameters->open(engine, unit, owned, out);
}

static zr_result close_here(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                            const struct zr_window *window)
{
    return engine->units[unit].parameters->close(engine, unit, owned, window);
}

static const struct zr_update_way here = {fetch_here, open_here, close_here, store_here};

/* Updates this rank's part of a unit, window by window. */
static zr_result update(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    struct zr_window window = {.count = 0};
    size_t count = run->owned.to - run->owned.from;
    zr_result result = ZR_OK;
    run->changed = true;
    for (size_t at = 0; result == ZR_OK && at < count; at += window.count) {
        window = (struct zr_window){.from = at, .count = count - at};
        if (run->way->open)
            result = run->way->open(engine, unit, &run->owned, &window);
        if (result == ZR_OK)
            result = zr_engine_update_window(engine, unit, run->gradients, &run->prepared, &run->update,
                                             &run->owned, &window);
        if (result == ZR_OK && run->way->close)
            result = run->way->close(engine, unit, &run->owned, &window);
    }
    return result;
}

/* FETCH, UPDATE and STORE of one unit. */
static zr_result run_unit(struct zr_engine_run *run, size_t unit)
{
    zr_result result = run->way->fetch(run, unit);
    if (result == ZR_OK)
        result = update(run, unit);
    zr_result stored = run->way->store(run, unit);
    return result == ZR_OK ? stored : result;
}

/* ---- Deferred results ---------------------------------------------------------------------------------- */

static zr_result read_weight(struct zr_engine_run *run)
{
    struct zr_gradient_weight weight = {.clip_scale = 1};
    zr_result result = run->engine->simulated ? ZR_OK : zr_engine_weight_read(run->engine, &weight);
    run->report->gradient_norm = weight.norm;
    run->report->clip_scale = weight.clip_scale;
    run->report->skipped = weight.skips;
    return result;
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

static zr_result act(struct zr_engine_run *run, struct zr_engine_action action)
{
    struct zr_engine *engine = run->engine;
    size_t unit = action.unit;
    switch (action.kind) {
    case ZR_ENGINE_COLLECT:
        return collect(engine);
    case ZR_ENGINE_AWAIT:
        return zr_engine_speculation_await_all(engine);
    case ZR_ENGINE_NORM:
        return norm(run);
    case ZR_ENGINE_WEIGH:
        return weigh(run);
    case ZR_ENGINE_UNDO:
        return zr_engine_speculation_settle(engine, run->report->skipped ? NULL : &run->update,
                                            &run->report->rolled_back);
    case ZR_ENGINE_LAND:
        return zr_engine_delayed_publish(engine);
    case ZR_ENGINE_READERS:
        return zr_comm_synchronize(engine->options.comm);
    case ZR_ENGINE_SKIP:
        run->ended = run->report->skipped;
        return ZR_OK;
    case ZR_ENGINE_OPEN:
        return open_pass(run);
    case ZR_ENGINE_GATHER:
        return engine->units[unit].path->gather(run, unit);
    case ZR_ENGINE_FETCH:
        run->changed = false;
        return run->way->fetch(run, unit);
    case ZR_ENGINE_PREPARE:
        run->changed = true;
        return prepare[engine->layout.units[unit].optimizer->prepares](run, unit);
    case ZR_ENGINE_KEEP:
        zr_engine_delayed_keep(engine, unit, &run->prepared);
        return ZR_OK;
    case ZR_ENGINE_CONFIRM:
        if (zr_engine_speculation_holds(engine, unit))
            return engine->speculation.kind->publish(engine, unit);
        return update(run, unit);
    case ZR_ENGINE_UPDATE:
        return update(run, unit);
    case ZR_ENGINE_STORE:
        return run->way->store(run, unit);
    case ZR_ENGINE_CLEAR:
        clear(engine, unit);
        return ZR_OK;
    case ZR_ENGINE_PUT:
        return zr_engine_delayed_put(engine, unit);
    case ZR_ENGINE_PUBLISH:
        return zr_engine_all_gather_parameters(engine, unit);
    case ZR_ENGINE_CLOSE:
        return close_pass(run);
    case ZR_ENGINE_READ:
        return read_weight(run);
    case ZR_ENGINE_SETTLE:
        return settle(run);
    case ZR_ENGINE_HAND_OVER:
        return zr_engine_delayed_start(engine, &run->update);
    case ZR_ENGINE_COUNT:
        engine->steps_done += !run->report->skipped;
        return ZR_OK;
    }
    return zr_fail(ZR_ERR_INVALID, "unknown action %d", (int)action.kind);
}

/* Runs a list up to its end, a skip or a failure. After a failure no pass is open. */
static zr_result run_actions(struct zr_engine_run *run, const struct zr_engine_actions *list)
{
    zr_result result = ZR_OK;
    for (size_t i = 0; i < list->count && result == ZR_OK && !run->ended; i++)
        result = act(run, list->actions[i]);
    if (run->passes)
        close_pass(run); /* waits for the transfers of a pass that failed */
    return result;
}

/* ---- The step ------------------------------------------------------------------------------------------ */

/* Deferred results: the host reads the norm and ends the step after all work is queued. Until then gradients
 * are kept, to find a value that is not finite. */
static void defer(struct zr_engine *engine, struct zr_engine_actions *list)
{
    struct zr_engine_actions step = {.count = 0}, *end = &engine->step_end;
    for (size_t i = 0; i < list->count; i++) {
        struct zr_engine_action action = list->actions[i];
        switch (action.kind) {
        case ZR_ENGINE_NORM:
            zr_engine_actions_add(engine, &step, ZR_ENGINE_WEIGH, 0);
            break;
        case ZR_ENGINE_SKIP:
            zr_engine_actions_add(engine, &engine->step_read, ZR_ENGINE_READ, 0);
            break;
        case ZR_ENGINE_CLEAR:
            break;
        case ZR_ENGINE_COUNT:
            zr_engine_actions_add(engine, end, ZR_ENGINE_SETTLE, 0);
            zr_engine_actions_add(engine, end, action.kind, 0);
            break;
        default:
            zr_engine_actions_add(engine, &step, action.kind, action.unit);
        }
    }
    zr_engine_actions_replace(engine, list, &step);
    zr_result more = engine->step_read.result != ZR_OK ? engine->step_read.result : end->result;
    list->result = list->result == ZR_OK ? more : list->result;
}

zr_result zr_engine_actions_make(struct zr_engine *engine)
{
    struct zr_engine_actions *step = &engine->step;
    engine->delayed.run = run_actions;
    engine->speculation.run = run_unit;
    zr_engine_actions_add(engine, step, ZR_ENGINE_COLLECT, 0);
    zr_engine_actions_add(engine, step, ZR_ENGINE_NORM, 0);
    if (engine->options.stage == 3) /* peers gather parameters that the update changes */
        zr_engine_actions_add(engine, step, ZR_ENGINE_READERS, 0);
    zr_engine_actions_add(engine, step, ZR_ENGINE_SKIP, 0);
    add_update(engine, step);
    zr_engine_actions_add(engine, step, ZR_ENGINE_COUNT, 0);
    if (zr_engine_defers(engine))
        defer(engine, step);
    zr_result result = engine->options.offload.delayed ? zr_engine_delay(engine, step) : ZR_OK;
    if (engine->speculation.worker)
        zr_engine_anticipate(engine, step);
    return result == ZR_OK ? step->result : result;
}

void zr_engine_actions_end(struct zr_engine *engine)
{
    zr_engine_actions_drop(engine, &engine->step_end);
    zr_engine_actions_drop(engine, &engine->step_read);
    zr_engine_actions_drop(engine, &engine->step);
}

static zr_result start_report(const struct zr_engine *engine, float rate, struct zr_step_report *report)
{
    zr_result result = zr_engine_check_call(engine, "zr_engine_step", report);
    if (result == ZR_OK)
        result = zr_engine_check_unused(engine, "zr_engine_step");
    if (result == ZR_OK)
        result = zr_engine_check_rate(rate);
    if (result == ZR_OK)
        *report = (struct zr_step_report){.clip_scale = 1, .loss_scale = zr_engine_loss_scale(engine)};
    return result;
}

static zr_result run_list(struct zr_engine *engine, const struct zr_engine_actions *list, float rate,
                          struct zr_step_report *report)
{
    struct zr_engine_run run = {.engine = engine, .way = &here, .rate = rate, .report = report};
    zr_result result = run_actions(&run, list);
    if (result != ZR_OK) /* the norm is not known, or not finite */
        zr_engine_speculation_settle(engine, NULL, &report->rolled_back);
    if (run.ended || (result != ZR_OK && report->skipped))
        clear_all(engine);
    return result;
}

zr_result zr_engine_step_begin(struct zr_engine *engine, float rate, struct zr_step_report *report)
{
    zr_result result = start_report(engine, rate, report);
    if (result != ZR_OK)
        return result;
    engine->report_bad_gradient = zr_engine_report_bad_gradient;
    return run_list(engine, &engine->step, rate, report);
}

zr_result zr_engine_step_again(struct zr_engine *engine, float rate, struct zr_step_report *report)
{
    zr_result result = start_report(engine, rate, report);
    if (result != ZR_OK)
        return result;
    struct zr_engine_update repeated = zr_engine_update_of(engine, rate, 1);
    zr_engine_rates_set(engine, &repeated);
    engine->report_bad_gradient = zr_engine_report_bad_graph;
    return ZR_OK;
}

zr_result zr_engine_step_read(struct zr_engine *engine, struct zr_step_report *report)
{
    return run_list(engine, &engine->step_read, 0, report);
}

zr_result zr_engine_step_end(struct zr_engine *engine, struct zr_step_report *report)
{
    return run_list(engine, &engine->step_end, 0, report);
}

zr_result zr_engine_step(zr_engine *engine, float rate, struct zr_step_report *report)
{
    zr_result result = zr_engine_step_begin(engine, rate, report);
    if (result == ZR_OK)
        result = zr_engine_step_read(engine, report);
    return result == ZR_OK ? zr_engine_step_end(engine, report) : result;
}
