/* speculate.c: the speculative update, and the log of state in memory. See speculate.h. */
#include "zero/engine/speculate.h"

#include <string.h>

#include "zero/engine/offload.h"

/* ---- Units --------------------------------------------------------------------------------------------- */

size_t zr_engine_old_bytes(const struct zr_engine *engine, size_t unit)
{
    size_t elements = zr_unit_owned(&engine->units[unit]);
    return elements * sizeof(float) +
           zr_layout_state_bytes(&engine->layout, unit, engine->state_tier->store.options.whole);
}

bool zr_engine_may_speculate(const struct zr_engine *engine, size_t unit)
{
    const struct zr_unit_state *state = &engine->units[unit];
    return state->steps > 0 && state->tier == engine->state_tier && !state->path->gather &&
           !zr_engine_is_shared(engine, unit);
}

/* ---- In the thread of the update ----------------------------------------------------------------------- */

static zr_result update_unit(void *task_state, struct zr_kernel_context *none)
{
    struct zr_speculated_unit *own = task_state;
    struct zr_engine *engine = own->engine;
    struct zr_engine_run run = {.engine = engine,
                                .way = engine->speculation.kind->way,
                                .update = engine->speculation.update,
                                .gradients = own->gradients};
    (void)none;
    return zr_engine_update_taking(&run, (size_t)(own - engine->speculation.units));
}

/* ---- In the thread of the step ------------------------------------------------------------------------- */

zr_result zr_engine_speculation_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_speculation *speculation = &engine->speculation;
    size_t units = engine->layout.units_count, last = units;
    if (o->offload.speculative_bytes == 0)
        return ZR_OK;
    speculation->kind = engine->state_tier->file ? &zr_speculation_filed : &zr_speculation_logged;
    zr_result result =
        zr_take(o->host_arena, ZR_TAG_OTHER, units, sizeof *speculation->units, (void **)&speculation->units);
    if (result != ZR_OK)
        return result;
    memset(speculation->units, 0, units * sizeof *speculation->units);
    while (last > 0 && !zr_engine_may_speculate(engine, last - 1))
        last--;
    if (last == 0) /* no unit can be speculative */
        return ZR_OK;
    result = speculation->kind->open(engine);
    if (result != ZR_OK)
        return result;
    if (speculation->units_count == 0)
        return zr_fail(ZR_ERR_INVALID,
                       "--speculative-update: a log of %zu bytes is too small; unit %s needs %zu bytes",
                       o->offload.speculative_bytes, engine->layout.units[last - 1].unit.name,
                       zr_engine_old_bytes(engine, last - 1));
    struct zr_compute compute = engine->state_tier->compute;
    return zr_copies_create(&speculation->worker,
                            &(struct zr_comm_options){.arena = o->arena,
                                                      .host_arena = o->host_arena,
                                                      .kernels = compute.kernels,
                                                      .bucket_bytes = ZR_COMM_LINE_BYTES},
                            compute.context);
}

/* After a unit's reduction: starts its update if its gradients are complete and the unit is logged. */
static zr_result update_ahead(struct zr_engine *engine, size_t unit)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (engine->units[unit].accumulated != engine->units[unit].steps)
        return ZR_OK;
    struct zr_speculated_unit *own = &speculation->units[unit];
    if (own->begun || !speculation->kind->begins(engine, unit))
        return ZR_OK;
    const struct zr_unit_state *state = &engine->units[unit];
    struct zr_engine_run found = {.engine = engine, .gradients = state->reduced};
    zr_result result = zr_engine_await_masters(engine, unit);
    if (result == ZR_OK && state->path->find)
        result = state->path->find(&found, unit);
    if (result != ZR_OK)
        return result;
    own->engine = engine;
    own->gradients = found.gradients;
    own->logged = false;
    own->task = (struct zr_copies_task){
        .run = update_unit, .state = own, .bytes = own->log ? zr_engine_old_bytes(engine, unit) : 0};
    result = zr_copies_run(speculation->worker, &own->task, &own->ticket);
    own->begun = result == ZR_OK;
    return result;
}

zr_result zr_engine_speculation_follow(struct zr_engine *engine, size_t unit)
{
    const struct zr_unit_state *state = &engine->units[unit];
    size_t before = engine->speculation.reducing;
    if (state->accumulated < state->steps || state->staged)
        return ZR_OK;
    engine->speculation.reducing = unit;
    zr_result result = before < engine->layout.units_count ? zr_engine_end_reduction(engine, before) : ZR_OK;
    return result == ZR_OK && state->reduce_ticket == 0 ? zr_engine_end_reduction(engine, unit) : result;
}

/* Lets units be updated ahead by `call`; NULL: not any more. */
static void arm(struct zr_engine *engine, zr_gradient_call *call)
{
    engine->speculation.armed = call != NULL;
    engine->speculation.reducing = engine->layout.units_count;
    for (size_t u = 0; engine->units && u < engine->layout.units_count; u++)
        engine->units[u].ahead = call;
}

void zr_engine_speculation_close(struct zr_engine *engine)
{
    struct zr_speculation *speculation = &engine->speculation;
    arm(engine, NULL);
    if (speculation->worker)
        zr_comm_destroy(speculation->worker); /* waits for its operations */
    speculation->worker = NULL;
    zr_drop(engine->options.offload.host, &speculation->parameters);
    if (speculation->log)
        zr_drop(engine->state_tier->arena, &speculation->log);
    zr_drop(engine->options.host_arena, &speculation->order);
    zr_drop(engine->options.host_arena, &speculation->units);
}

zr_result zr_engine_speculate(zr_engine *engine, float rate)
{
    zr_result result = zr_engine_check_call(engine, __func__, engine);
    if (result == ZR_OK)
        result = zr_engine_check_rate(rate);
    if (result == ZR_OK)
        result = zr_engine_check_between_steps(engine, __func__);
    if (result != ZR_OK || !engine->speculation.worker)
        return result;
    struct zr_speculation *speculation = &engine->speculation;
    /* A copy of the context: the update uses only its constant fields. */
    speculation->context = *engine->state_tier->compute.context;
    speculation->context.parallel = (struct zr_parallel){.threads = 1};
    speculation->context.flops = NULL;
    speculation->update = zr_engine_update_of(engine, rate, 1 / zr_engine_loss_scale(engine));
    speculation->update.context = &speculation->context;
    arm(engine, update_ahead);
    return speculation->kind->arm ? speculation->kind->arm(engine) : ZR_OK;
}

bool zr_engine_speculation_holds(const struct zr_engine *engine, size_t unit)
{
    return engine->speculation.units && engine->speculation.units[unit].begun;
}

zr_result zr_engine_speculation_await(struct zr_engine *engine, size_t unit)
{
    return unit < engine->layout.units_count && zr_engine_speculation_holds(engine, unit)
               ? engine->speculation.kind->await(engine, unit)
               : ZR_OK;
}

zr_result zr_engine_speculation_await_all(struct zr_engine *engine)
{
    zr_result first = ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        zr_result ended = zr_engine_speculation_await(engine, u);
        first = first == ZR_OK ? ended : first;
    }
    return first;
}

static bool is_assumed(const struct zr_speculation *speculation, const struct zr_engine_update *update)
{
    const struct zr_engine_update *assumed = &speculation->update;
    return update && update->rate == assumed->rate && update->gradient_scale == assumed->gradient_scale &&
           update->correction1 == assumed->correction1 && update->correction2 == assumed->correction2;
}

zr_result zr_engine_speculation_settle(struct zr_engine *engine, const struct zr_engine_update *update,
                                       bool *rolled_back)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (!speculation->armed)
        return ZR_OK;
    arm(engine, NULL);
    zr_result first = zr_engine_speculation_await_all(engine);
    bool right = first == ZR_OK && is_assumed(speculation, update);
    zr_gradient_call *undo = update ? speculation->kind->undo : speculation->kind->cancel;
    if (speculation->kind->end)
        speculation->kind->end(engine);
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_speculated_unit *own = &speculation->units[u];
        if (!own->begun)
            continue;
        if (right && speculation->kind->keep)
            speculation->kind->keep(engine, u);
        if (right)
            continue;
        zr_result back = first == ZR_OK ? zr_gradient_do(undo, engine, u) : ZR_OK;
        first = first == ZR_OK ? back : first;
        *rolled_back = true;
        own->begun = false;
    }
    return first;
}

void zr_engine_speculation_forget(struct zr_engine *engine, size_t unit)
{
    if (engine->speculation.units)
        engine->speculation.units[unit].begun = false;
}

/* ---- State in memory: a log ---------------------------------------------------------------------------- */

enum direction { TO_LOG, FROM_LOG };

/* Copies this rank's part of a unit to the log or back. */
static zr_result copy_old_values(struct zr_engine *engine, size_t unit, enum direction direction)
{
    const struct zr_optimizer *optimizer = engine->layout.units[unit].optimizer;
    struct zr_owned owned;
    char *old = (char *)engine->speculation.units[unit].log;
    size_t count = zr_unit_owned(&engine->units[unit]);
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    for (unsigned s = 0; s <= optimizer->slots_count && result == ZR_OK && !engine->simulated; s++) {
        bool master = s == optimizer->slots_count;
        void *state = master ? owned.master : owned.slots[s];
        size_t bytes =
            master ? count * sizeof(float)
                   : zr_layout_slot_bytes(&engine->layout, unit, s, engine->state_tier->store.options.whole);
        memcpy(direction == TO_LOG ? old : state, direction == TO_LOG ? state : old, bytes);
        old += bytes;
    }
    zr_result given = zr_engine_give_owned(engine, unit, direction == FROM_LOG);
    return result == ZR_OK ? given : result;
}

/* Assigns units to the log, from the last one on; returns its length in elements. */
static size_t place(struct zr_engine *engine, float *log)
{
    size_t max_elements = engine->options.offload.speculative_bytes / sizeof *log, length = 0;
    engine->speculation.units_count = 0;
    for (size_t u = engine->layout.units_count; u-- > 0;) {
        size_t count = zr_engine_old_bytes(engine, u) / sizeof *log;
        if (!zr_engine_may_speculate(engine, u) || count > max_elements - length)
            continue;
        if (log)
            engine->speculation.units[u].log = log + length;
        length += count;
        engine->speculation.units_count++;
    }
    return length;
}

static zr_result open_log(struct zr_engine *engine)
{
    struct zr_speculation *speculation = &engine->speculation;
    size_t length = place(engine, NULL);
    zr_result result = zr_take(engine->state_tier->arena, ZR_TAG_OFFLOAD, length, sizeof *speculation->log,
                               (void **)&speculation->log);
    if (result == ZR_OK)
        place(engine, speculation->log);
    return result;
}

static bool begins_logged(struct zr_engine *engine, size_t unit)
{
    return engine->speculation.units[unit].log;
}

static zr_result take_logged(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    zr_result result = copy_old_values(engine, unit, TO_LOG);
    engine->speculation.units[unit].logged = result == ZR_OK;
    return result == ZR_OK ? zr_engine_take_owned(engine, unit, &run->owned) : result;
}

static zr_result await_logged(struct zr_engine *engine, size_t unit)
{
    const struct zr_speculation *speculation = &engine->speculation;
    return zr_comm_wait(speculation->worker, speculation->units[unit].ticket);
}

static zr_result give_logged(struct zr_engine_run *run, size_t unit)
{
    return zr_engine_give_owned(run->engine, unit, run->changed);
}

static zr_result undo_logged(struct zr_engine *engine, size_t unit)
{
    return engine->speculation.units[unit].logged ? copy_old_values(engine, unit, FROM_LOG) : ZR_OK;
}

static const struct zr_action_transform of_step = {
    .rules = {{ZR_ACTION_NORM, {ZR_ACTION_NORM, ZR_ACTION_UNDO}}, {ZR_ACTION_UPDATE, {ZR_ACTION_CONFIRM}}}};
/* No window: when the norm confirms an update, the step rounds the masters to parameters. */
static const struct zr_update_way logged = {.take = take_logged, .give = give_logged};
const struct zr_speculation_kind zr_speculation_logged = {.way = &logged,
                                                          .open = open_log,
                                                          .begins = begins_logged,
                                                          .await = await_logged,
                                                          .step = &of_step,
                                                          .undo = undo_logged,
                                                          .cancel = undo_logged,
                                                          .publish = zr_engine_round_masters};
