/* speculate.c: see speculate.h. */
#include "zero/engine/speculate.h"
#include "zero/engine/update.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "alloc/base/system/os.h"
#include "zero/engine/parameter_file.h"
#include "zero/engine/offload.h"

enum { KINDS = 3 };

struct zr_speculated_unit {
    struct zr_engine *engine;
    struct zr_copies_task task;
    struct zr_numbers gradients;
    float *log;  /* old values by kind; NULL: not logged */
    bool begun;  /* update submitted and not rolled back */
    bool ended;  /* its gradients are complete in this step */
    bool logged; /* old values are in the log; owned by the worker until its ticket was waited for */
    zr_ticket ticket;
};

static bool is_filed(const struct zr_engine *engine)
{
    return engine->options.offload.file;
}

/* ---- The log ------------------------------------------------------------------------------------------- */

static size_t owned_elements(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    return engine->options.stage == 0 ? u->padded_elements : u->shard_elements;
}

static size_t log_elements(const struct zr_engine *engine, size_t unit)
{
    return (engine->state_tier->store.options.variance ? KINDS : KINDS - 1) * owned_elements(engine, unit);
}

enum direction { TO_LOG, FROM_LOG };

/* Copies this rank's part of a unit to the log or back. */
static zr_result copy_old_values(struct zr_engine *engine, size_t unit, enum direction direction)
{
    struct zr_owned owned;
    float *old = engine->speculation.units[unit].log;
    size_t count = owned_elements(engine, unit);
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    float *const states[KINDS] = {owned.master, owned.momentum, owned.variance};
    for (unsigned kind = 0; kind < KINDS && result == ZR_OK && !engine->simulated; kind++) {
        if (!states[kind])
            continue;
        memcpy(direction == TO_LOG ? old : states[kind], direction == TO_LOG ? states[kind] : old,
               count * sizeof *old);
        old += count;
    }
    zr_result given = zr_engine_give_owned(engine, unit, direction == FROM_LOG);
    return result == ZR_OK ? given : result;
}

/* Whether a unit may be updated speculatively: it is offloaded, and this rank's gradients are complete after
 * backward.
 */
static bool may_be_logged(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout *layout = &engine->layout;
    return engine->units[unit].tier->offloaded &&
           !layout->parameters[layout->units[unit].first_parameter].parameter.part.shared;
}

/* Assigns units to the log; returns its length in elements. */
static size_t place(struct zr_engine *engine, float *log)
{
    size_t max_elements = engine->options.offload.speculative_bytes / sizeof *log, length = 0;
    if (is_filed(engine)) { /* the store has chosen the units */
        for (size_t u = engine->layout.units_count; u-- > 0;)
            if (zr_state_file_is_twice(&engine->state_tier->store, u))
                engine->speculation.order[length++] = (unsigned)u;
        return engine->speculation.filed_count = (unsigned)length;
    }
    for (size_t u = engine->layout.units_count; u-- > 0;) {
        size_t count = log_elements(engine, u);
        if (!may_be_logged(engine, u) || count > max_elements - length)
            continue;
        if (log)
            engine->speculation.units[u].log = log + length;
        length += count;
    }
    return length;
}

/* ---- In the thread of the update ----------------------------------------------------------------------- */

static zr_result update_unit(void *task_state, struct zr_kernel_context *none)
{
    struct zr_speculated_unit *own = task_state;
    struct zr_engine *engine = own->engine;
    size_t unit = (size_t)(own - engine->speculation.units);
    struct zr_owned owned;
    struct zr_window window = {.count = owned_elements(engine, unit)};
    zr_result result = copy_old_values(engine, unit, TO_LOG);
    (void)none;
    own->logged = result == ZR_OK;
    if (result == ZR_OK)
        result = zr_engine_take_owned(engine, unit, &owned);
    if (result == ZR_OK)
        result = zr_engine_update_window(engine, unit, own->gradients, &engine->speculation.update, &owned,
                                         &window);
    zr_result given = zr_engine_give_owned(engine, unit, true);
    return result == ZR_OK ? given : result;
}

static void *new_parameters(const struct zr_engine *engine, size_t unit)
{
    return (char *)engine->speculation.parameters +
           engine->layout.units[unit].shard_offset * engine->parameter_bytes;
}

/* Updates a unit with state in a file. New parameters are written to their place, or to memory if their place
 * is a file. */
static zr_result update_filed(void *task_state, struct zr_kernel_context *none)
{
    struct zr_speculated_unit *own = task_state;
    struct zr_engine *engine = own->engine;
    size_t unit = (size_t)(own - engine->speculation.units), count = owned_elements(engine, unit);
    bool whole = engine->options.stage == 0, low_precision = zr_engine_is_low_precision(engine);
    struct zr_state_view view;
    (void)none;
    zr_result result = zr_state_file_take_ahead(&engine->state_tier->store, unit, &view);
    struct zr_owned owned = {.from = whole ? 0 : engine->rank * count,
                             .master = view.master,
                             .momentum = view.momentum,
                             .variance = view.variance};
    owned.to = owned.from + count;
    owned.parameters.precision = engine->options.precision;
    owned.parameters.at = whole ? engine->units[unit].whole
                          : engine->units[unit].parameters == &zr_parameters_filed
                              ? new_parameters(engine, unit)
                              : engine->units[unit].shard;
    struct zr_window window = {.count = count};
    if (low_precision)
        window.values = owned.parameters;
    if (result == ZR_OK)
        result = zr_engine_update_window(engine, unit, own->gradients, &engine->speculation.update, &owned,
                                         &window);
    if (result == ZR_OK && !low_precision && !engine->simulated)
        memcpy(owned.parameters.at, view.master, count * sizeof(float));
    return result == ZR_OK ? zr_state_file_give_ahead(&engine->state_tier->store) : result;
}

/* ---- In the thread of the step ------------------------------------------------------------------------- */

zr_result zr_engine_speculation_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_compute compute = zr_engine_compute(engine, o->offload.host);
    struct zr_speculation *speculation = &engine->speculation;
    size_t units = engine->layout.units_count;
    if (o->offload.speculative_bytes == 0)
        return ZR_OK;
    zr_result result =
        zr_take(o->host_arena, ZR_TAG_OTHER, units, sizeof *speculation->units, (void **)&speculation->units);
    if (result == ZR_OK && is_filed(engine))
        result = zr_take(o->host_arena, ZR_TAG_OTHER, 2 * units, sizeof *speculation->order,
                         (void **)&speculation->order);
    if (result != ZR_OK)
        return result;
    memset(speculation->units, 0, units * sizeof *speculation->units);
    speculation->seen = speculation->order ? speculation->order + units : NULL;
    size_t length = place(engine, NULL), last = units;
    while (last > 0 && !may_be_logged(engine, last - 1))
        last--;
    if (last == 0) /* no unit can be speculative */
        return ZR_OK;
    if (length == 0)
        return zr_fail(ZR_ERR_INVALID,
                       "--speculative-update: a log of %zu bytes is too small; unit %s needs %zu bytes",
                       o->offload.speculative_bytes, engine->layout.units[last - 1].unit.name,
                       log_elements(engine, last - 1) * sizeof *speculation->log);
    if (!is_filed(engine))
        result = zr_take(o->offload.host, ZR_TAG_OFFLOAD, length, sizeof *speculation->log,
                         (void **)&speculation->log);
    else if (o->offload.parameters_file)
        result = zr_take(o->offload.host, ZR_TAG_PARAM, engine->layout.shards_elements,
                         engine->parameter_bytes, &speculation->parameters);
    if (result != ZR_OK)
        return result;
    place(engine, speculation->log);
    return zr_copies_create(&speculation->worker,
                            &(struct zr_comm_options){.arena = o->arena,
                                                      .host_arena = o->host_arena,
                                                      .kernels = compute.kernels,
                                                      .bucket_bytes = ZR_COMM_LINE_BYTES},
                            compute.context);
}

void zr_engine_speculation_close(struct zr_engine *engine)
{
    struct zr_speculation *speculation = &engine->speculation;
    speculation->armed = false;
    if (speculation->worker)
        zr_comm_destroy(speculation->worker); /* waits for its operations */
    speculation->worker = NULL;
    if (engine->options.offload.host) {
        zr_drop(engine->options.offload.host, &speculation->parameters);
        zr_drop(engine->options.offload.host, &speculation->log);
    }
    zr_drop(engine->options.host_arena, &speculation->order);
    zr_drop(engine->options.host_arena, &speculation->units);
}

/* Starts to read ahead now, so the disk works during forward. */
static zr_result begin_reads(struct zr_engine *engine)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (speculation->disordered && speculation->seen_count == speculation->filed_count)
        memcpy(speculation->order, speculation->seen, speculation->filed_count * sizeof *speculation->order);
    for (size_t u = 0; u < engine->layout.units_count; u++)
        speculation->units[u].ended = false;
    speculation->seen_count = 0;
    speculation->disordered = false;
    return zr_state_file_begin_ahead(&engine->state_tier->store, speculation->order,
                                     speculation->filed_count);
}

zr_result zr_engine_speculate(zr_engine *engine, float rate)
{
    zr_result result = zr_engine_check_call(engine, __func__, engine);
    if (result == ZR_OK && !(rate >= 0 && rate <= FLT_MAX))
        result = zr_fail(ZR_ERR_INVALID, "the learning rate is %g; use a finite number of at least 0",
                         (double)rate);
    if (result == ZR_OK)
        result = zr_engine_check_between_steps(engine, __func__);
    if (result != ZR_OK || !engine->speculation.worker)
        return result;
    struct zr_speculation *speculation = &engine->speculation;
    /* A copy of the context: the update uses only its constant fields. */
    speculation->context = *zr_engine_compute(engine, engine->options.offload.host).context;
    speculation->context.parallel = (struct zr_parallel){.threads = 1};
    speculation->context.flops = NULL;
    speculation->update = zr_engine_update_of(engine, rate, 1 / zr_engine_loss_scale(engine));
    speculation->update.context = &speculation->context;
    speculation->armed = true;
    return is_filed(engine) ? begin_reads(engine) : ZR_OK;
}

zr_result zr_engine_speculation_await(struct zr_engine *engine, size_t unit)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (!speculation->units || unit >= engine->layout.units_count || !speculation->units[unit].begun)
        return ZR_OK;
    uint64_t start_ns = zr_os_now_ns();
    if (is_filed(engine))
        zr_state_file_wait_ahead(&engine->state_tier->store, unit);
    zr_result result = zr_comm_wait(speculation->worker, speculation->units[unit].ticket);
    if (is_filed(engine))
        speculation->waited_ns += zr_os_now_ns() - start_ns;
    return result;
}

zr_result zr_engine_speculation_await_filed(struct zr_engine *engine)
{
    zr_result first = ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count && is_filed(engine); u++) {
        zr_result ended = zr_engine_speculation_await(engine, u);
        first = first == ZR_OK ? ended : first;
    }
    return first;
}

/* Whether the unit's state is read next. If not, the other units of the step wait for the norm. */
static bool is_next(struct zr_engine *engine, size_t unit)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (speculation->units[unit].ended) /* the unit has ended before, and was not updated */
        return false;
    unsigned place = speculation->seen_count++;
    speculation->units[unit].ended = true;
    speculation->seen[place] = (unsigned)unit;
    speculation->disordered |= speculation->order[place] != unit;
    return !speculation->disordered && zr_state_file_runs_ahead(&engine->state_tier->store);
}

zr_result zr_engine_speculation_begin(struct zr_engine *engine, size_t unit)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (!speculation->armed || engine->units[unit].accumulated != zr_engine_accumulation_steps(engine, unit))
        return ZR_OK;
    struct zr_speculated_unit *own = &speculation->units[unit];
    bool twice = zr_state_file_is_twice(&engine->state_tier->store, unit);
    if ((!own->log && !twice) || own->begun || (twice && !is_next(engine, unit)))
        return ZR_OK;
    zr_result result = zr_engine_await_masters(engine, unit);
    if (result != ZR_OK)
        return result;
    own->engine = engine;
    own->gradients = zr_engine_shard_gradients(engine, unit);
    own->logged = false;
    if (twice && !engine->units[unit].parameters->on_host) /* the update writes them to the host */
        engine->moved_bytes += owned_elements(engine, unit) * engine->parameter_bytes;
    own->task = (struct zr_copies_task){.run = twice ? update_filed : update_unit,
                                        .state = own,
                                        .bytes = twice ? 0 : log_elements(engine, unit) * sizeof *own->log};
    result = zr_copies_run(speculation->worker, &own->task, &own->ticket);
    own->begun = result == ZR_OK;
    return result;
}

static bool is_assumed(const struct zr_speculation *speculation, const struct zr_engine_update *update)
{
    const struct zr_engine_update *assumed = &speculation->update;
    return update && update->rate == assumed->rate && update->gradient_scale == assumed->gradient_scale &&
           update->correction1 == assumed->correction1 && update->correction2 == assumed->correction2;
}

/* Settles units with state in a file. After a wrong speculation: if the step is skipped, restores parameters
 * from the current place; otherwise the repeated update writes them. */
static zr_result settle_filed(struct zr_engine *engine, const struct zr_engine_update *update, bool right,
                              zr_result first, bool *rolled_back)
{
    zr_state_file_end_ahead(&engine->state_tier->store);
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_speculated_unit *own = &engine->speculation.units[u];
        if (own->begun && right)
            zr_state_file_keep_ahead(&engine->state_tier->store, u);
        if (!own->begun || right)
            continue;
        bool written = !update && engine->units[u].parameters != &zr_parameters_filed;
        zr_result back = first == ZR_OK && written ? zr_engine_round_masters(engine, u) : ZR_OK;
        first = first == ZR_OK ? back : first;
        *rolled_back = true;
        own->begun = false;
    }
    return first;
}

zr_result zr_engine_speculation_settle(struct zr_engine *engine, const struct zr_engine_update *update,
                                       bool *rolled_back)
{
    struct zr_speculation *speculation = &engine->speculation;
    zr_result first = ZR_OK;
    *rolled_back = false;
    if (!speculation->armed)
        return ZR_OK;
    speculation->armed = false;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        zr_result ended = zr_engine_speculation_await(engine, u);
        first = first == ZR_OK ? ended : first;
    }
    bool right = first == ZR_OK && is_assumed(speculation, update);
    if (is_filed(engine))
        return settle_filed(engine, update, right, first, rolled_back);
    if (right)
        return ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_speculated_unit *own = &speculation->units[u];
        zr_result back = own->begun && own->logged ? copy_old_values(engine, u, FROM_LOG) : ZR_OK;
        first = first == ZR_OK ? back : first;
        *rolled_back |= own->begun;
        own->begun = false;
    }
    return first;
}

bool zr_engine_speculation_holds(const struct zr_engine *engine, size_t unit)
{
    return engine->speculation.units && engine->speculation.units[unit].begun;
}

zr_result zr_engine_speculation_publish(struct zr_engine *engine, size_t unit)
{
    const struct zr_parameter_tier *parameters = engine->units[unit].parameters;
    return parameters == &zr_parameters_filed ? parameters->put(engine, unit, new_parameters(engine, unit))
                                              : ZR_OK;
}

void zr_engine_speculation_forget(struct zr_engine *engine, size_t unit)
{
    if (engine->speculation.units)
        engine->speculation.units[unit].begun = false;
}
