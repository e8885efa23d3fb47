/* schedule.c: the builders of a step's list of actions; see schedule.h. */
#include "zero/step/schedule.h"

#include <string.h>

#include "zero/comm/take.h"

enum { SMALL_DIVISOR = 16, GATHERED_MOST = ZR_PREFETCH_MOST + 1 + ZR_MODULE_UNITS_MAX };

const char *zr_action_kind_name(enum zr_action_kind kind)
{
    static const char *const names[ZR_ACTION_KINDS] = {"load",   "gather",    "forward",  "store",
                                                       "fetch",  "recompute", "backward", "release",
                                                       "reduce", "update"};
    return names[kind];
}

static zr_result append(struct zr_schedule *schedule, struct zr_action action)
{
    if (schedule->count == schedule->room) {
        size_t room = schedule->room > 0 ? 2 * schedule->room : 64;
        struct zr_action *more;
        zr_result result = zr_take(schedule->host_arena, ZR_TAG_OTHER, room, sizeof *more, (void **)&more);
        if (result != ZR_OK)
            return result;
        if (schedule->count > 0)
            memcpy(more, schedule->actions, schedule->count * sizeof *more);
        zr_drop(schedule->host_arena, &schedule->actions);
        schedule->actions = more;
        schedule->room = room;
    }
    schedule->actions[schedule->count++] = action;
    return ZR_OK;
}

/* ---- The order of modules in a pass -------------------------------------------------------------------- */

/* A pass goes through its modules forward, but for the last one, and then through all of them backward; an
 * evaluation forward alone. Position by position. */
struct pass {
    const struct zr_schedule_request *request;
    bool backward;
};

struct use {
    size_t module;
    bool backward;
};

static size_t uses_count(const struct pass *pass)
{
    size_t modules = pass->request->model->modules_count;
    return pass->backward ? 2 * modules - 1 : modules;
}

static struct use use_at(const struct pass *pass, size_t at)
{
    size_t modules = pass->request->model->modules_count;
    bool backward = pass->backward && at + 1 >= modules;
    return (struct use){backward ? 2 * modules - 2 - at : at, backward};
}

/* How many units it reads the parameters of. */
static unsigned reads(const struct zr_model *model, struct use use)
{
    const struct zr_module *module = &model->modules[use.module];
    return use.backward && module->type->backward_reads_none ? 0 : module->units_count;
}

static bool reads_unit(const struct zr_model *model, struct use use, unsigned unit)
{
    for (unsigned i = 0; i < reads(model, use); i++)
        if (model->modules[use.module].units[i] == unit)
            return true;
    return false;
}

/* ---- Gathering ----------------------------------------------------------------------------------------- */

struct builder {
    struct zr_schedule *out;
    struct pass pass;
    unsigned gathered[GATHERED_MOST], gathered_count; /* units that are gathered */
    unsigned gathered_most;                           /* gathered ahead of use */
    uint64_t *unit_elements;                          /* [units_count] */
    size_t fetched; /* outputs of modules from here on are fetched, or have never been stored */
};

static zr_result add(struct builder *builder, enum zr_action_kind kind, unsigned index)
{
    return append(builder->out, (struct zr_action){.kind = kind, .index = index});
}

static bool is_gathered(const struct builder *builder, unsigned unit)
{
    for (unsigned i = 0; i < builder->gathered_count; i++)
        if (builder->gathered[i] == unit)
            return true;
    return false;
}

static zr_result gather(struct builder *builder, unsigned unit)
{
    if (is_gathered(builder, unit))
        return ZR_OK;
    builder->gathered[builder->gathered_count++] = unit;
    return add(builder, ZR_ACTION_GATHER, unit);
}

/* The next position after `at` that reads parameters; uses_count() if there is none. */
static size_t next_reading(const struct builder *builder, size_t at)
{
    size_t count = uses_count(&builder->pass);
    do
        at++;
    while (at < count && reads(builder->pass.request->model, use_at(&builder->pass, at)) == 0);
    return at;
}

static uint64_t elements_at(const struct builder *builder, size_t at)
{
    const struct zr_model *model = builder->pass.request->model;
    uint64_t sum = 0;
    if (at < uses_count(&builder->pass)) {
        struct use use = use_at(&builder->pass, at);
        for (unsigned i = 0; i < reads(model, use); i++)
            sum += builder->unit_elements[model->modules[use.module].units[i]];
    }
    return sum;
}

/* Units that come after those in use, while there is room. */
static zr_result gather_ahead(struct builder *builder, size_t at)
{
    const struct zr_model *model = builder->pass.request->model;
    zr_result result = ZR_OK;
    while ((at = next_reading(builder, at)) < uses_count(&builder->pass)) {
        struct use use = use_at(&builder->pass, at);
        if (elements_at(builder, at) * SMALL_DIVISOR < elements_at(builder, next_reading(builder, at)))
            continue;
        for (unsigned i = 0; i < reads(model, use) && result == ZR_OK; i++) {
            if (builder->gathered_count >= builder->gathered_most)
                return ZR_OK;
            result = gather(builder, model->modules[use.module].units[i]);
        }
        if (result != ZR_OK || builder->gathered_count >= builder->gathered_most)
            return result;
    }
    return ZR_OK;
}

/* Whether the next that reads parameters reads those of `unit`. */
static bool is_next(const struct builder *builder, size_t at, unsigned unit)
{
    at = next_reading(builder, at);
    return at < uses_count(&builder->pass) &&
           reads_unit(builder->pass.request->model, use_at(&builder->pass, at), unit);
}

static zr_result release(struct builder *builder, unsigned unit)
{
    unsigned i = 0;
    while (builder->gathered[i] != unit)
        i++;
    builder->gathered[i] = builder->gathered[--builder->gathered_count];
    return add(builder, ZR_ACTION_RELEASE, unit);
}

/* ---- A pass -------------------------------------------------------------------------------------------- */

static bool is_checkpoint(const struct builder *builder, size_t module)
{
    return builder->pass.request->model->modules[module].type->output_tag == ZR_TAG_CHECKPOINT;
}

/* The input of a module that has run forward, which backward reads much later: not that of the last module
 * before the pass turns. */
static zr_result store(struct builder *builder, size_t module)
{
    const struct zr_schedule_request *request = builder->pass.request;
    if (!builder->pass.backward || request->fetch_distance == 0 || module == 0 ||
        module + 2 >= request->model->modules_count || !is_checkpoint(builder, module - 1))
        return ZR_OK;
    builder->fetched = module;
    return add(builder, ZR_ACTION_STORE, (unsigned)module - 1);
}

/* The input of a module that is about to run backward, and of those after it. */
static zr_result fetch(struct builder *builder, size_t module)
{
    size_t distance = builder->pass.request->fetch_distance,
           first = module > distance ? module - 1 - distance : 0;
    zr_result result = ZR_OK;
    while (distance > 0 && builder->fetched > first && result == ZR_OK)
        if (is_checkpoint(builder, --builder->fetched))
            result = add(builder, ZR_ACTION_FETCH, (unsigned)builder->fetched);
    return result;
}

static zr_result add_use(struct builder *builder, size_t at)
{
    const struct zr_schedule_request *request = builder->pass.request;
    struct use use = use_at(&builder->pass, at);
    const struct zr_module *module = &request->model->modules[use.module];
    unsigned count = reads(request->model, use);
    zr_result result = ZR_OK;

    for (unsigned i = 0; i < count && result == ZR_OK; i++)
        result = gather(builder, module->units[i]);
    if (result == ZR_OK)
        result = gather_ahead(builder, at);
    if (result == ZR_OK && use.backward)
        result = fetch(builder, use.module);
    if (result == ZR_OK && use.backward && request->recomputes && request->recomputes[use.module])
        result = add(builder, ZR_ACTION_RECOMPUTE, (unsigned)use.module);
    if (result == ZR_OK)
        result = add(builder, use.backward ? ZR_ACTION_BACKWARD : ZR_ACTION_FORWARD, (unsigned)use.module);
    if (result == ZR_OK && !use.backward)
        result = store(builder, use.module);
    for (unsigned i = count; i-- > 0 && result == ZR_OK;)
        if (!is_next(builder, at, module->units[i]))
            result = release(builder, module->units[i]);
    for (unsigned i = module->units_count; use.backward && i-- > 0 && result == ZR_OK;)
        result = add(builder, ZR_ACTION_REDUCE, module->units[i]);
    return result;
}

static zr_result measure_units(struct builder *builder, const struct zr_model *model)
{
    const struct zr_parameter_list *list = &model->list;
    zr_result result = zr_take(builder->out->host_arena, ZR_TAG_OTHER, list->units_count,
                               sizeof *builder->unit_elements, (void **)&builder->unit_elements);
    if (result != ZR_OK)
        return result;
    memset(builder->unit_elements, 0, list->units_count * sizeof *builder->unit_elements);
    for (size_t p = 0; p < list->parameters_count; p++)
        builder->unit_elements[list->parameters[p].unit] += zr_parameter_elements(&list->parameters[p]);
    return ZR_OK;
}

static zr_result add_pass(struct zr_schedule *out, const struct zr_schedule_request *request, bool backward)
{
    struct builder builder = {.out = out,
                              .pass = {.request = request, .backward = backward},
                              .gathered_most =
                                  1 + (request->prefetch_distance ? request->prefetch_distance : 1)};
    zr_result result = measure_units(&builder, request->model);
    for (size_t at = 0; at < uses_count(&builder.pass) && result == ZR_OK; at++)
        result = add_use(&builder, at);
    zr_drop(out->host_arena, &builder.unit_elements);
    return result;
}

/* ---- Schedules ----------------------------------------------------------------------------------------- */

/* Every micro-batch goes as the first does. */
static zr_result repeat(struct zr_schedule *out, unsigned micro_batches)
{
    size_t length = out->count;
    zr_result result = ZR_OK;
    for (unsigned m = 1; m < micro_batches; m++)
        for (size_t i = 0; i < length && result == ZR_OK; i++) {
            struct zr_action action = out->actions[i];
            action.micro_batch = m;
            result = append(out, action);
        }
    return result;
}

zr_result zr_schedule_accumulate(struct zr_schedule *out, const struct zr_schedule_request *request)
{
    unsigned micro_batches = request->micro_batches > 0 ? request->micro_batches : 1;
    *out = (struct zr_schedule){.host_arena = request->host_arena};
    zr_result result = append(out, (struct zr_action){.kind = ZR_ACTION_LOAD});
    if (result == ZR_OK)
        result = add_pass(out, request, true);
    if (result == ZR_OK)
        result = repeat(out, micro_batches);
    if (result == ZR_OK)
        result = append(out, (struct zr_action){.kind = ZR_ACTION_UPDATE, .micro_batch = micro_batches - 1});
    if (result != ZR_OK)
        zr_schedule_end(out);
    return result;
}

zr_result zr_schedule_forward(struct zr_schedule *out, const struct zr_schedule_request *request)
{
    *out = (struct zr_schedule){.host_arena = request->host_arena};
    zr_result result = add_pass(out, request, false);
    if (result != ZR_OK)
        zr_schedule_end(out);
    return result;
}

void zr_schedule_end(struct zr_schedule *schedule)
{
    if (schedule->host_arena)
        zr_drop(schedule->host_arena, &schedule->actions);
    schedule->count = schedule->room = 0;
}
