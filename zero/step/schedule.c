/* schedule.c: the builders of a step's list of actions; see schedule.h. */
#include "zero/step/schedule.h"

#include <limits.h>
#include <string.h>

#include "zero/comm/take.h"

enum { SMALL_DIVISOR = 16, GATHERED_MAX = ZR_PREFETCH_MAX + 1 + ZR_MODULE_UNITS_MAX };

/* ---- The order of modules ------------------------------------------------------------------------------ */

/* One forward, backward or weights of a module's part. */
struct use {
    size_t module;
    unsigned micro_batch;
    enum zr_pipeline_kind kind;
    unsigned part;
    bool recomputes; /* module with parts: a forward that precedes backward */
};

/* One kind of a micro-batch through the modules of a part. */
struct item {
    struct zr_pipeline_item is;
    struct zr_cut_part part;
    size_t first_use, end_use;
};

/* Items and uses of a list. */
struct use_list {
    const struct zr_model *model;
    struct item *items; /* [items_count] */
    size_t items_count;
    struct use *uses; /* [uses_count] */
    size_t uses_count;
};

/* Number of a module's parts that run forward directly before backward, as separate uses: the parts that
 * recompute, or all parts of the last module. A module without parts has a single use for both. */
static unsigned parts_before(const struct zr_schedule_request *request, size_t module)
{
    const struct zr_module *m = &request->model->modules[module];
    if (zr_module_parts(m) == 1)
        return 0;
    if (zr_module_is_last(m))
        return m->type->parts;
    return request->recomputes && request->recomputes[module] ? m->type->recomputed_parts : 0;
}

static void add_module(struct use_list *use_list, const struct zr_schedule_request *request, struct use use)
{
    unsigned parts = zr_module_parts(&use_list->model->modules[use.module]),
             before = use.kind == ZR_PIPELINE_BACKWARD ? parts_before(request, use.module) : 0;
    use.recomputes = true;
    for (use.part = 0; use.part < before; use.part++)
        use_list->uses[use_list->uses_count++] = use;
    use.recomputes = false;
    for (unsigned i = 0; i < parts; i++) {
        use.part = use.kind ? parts - 1 - i : i;
        use_list->uses[use_list->uses_count++] = use;
    }
}

/* Adds the uses of an item. If the list contains backward, the model's last module runs forward as a part of
 * its backward. */
static void add_uses(struct use_list *use_list, const struct zr_schedule_request *request, struct item *item,
                     bool with_backward)
{
    item->first_use = use_list->uses_count;
    for (size_t i = 0; i < item->part.end - item->part.first; i++) {
        size_t module = item->is.kind ? item->part.end - 1 - i : item->part.first + i;
        const struct zr_module_type *type = use_list->model->modules[module].type;
        if (item->is.kind == ZR_PIPELINE_WEIGHTS ? type->weights != NULL
                                                 : item->is.kind == ZR_PIPELINE_BACKWARD || !with_backward ||
                                                       !zr_module_is_last(&use_list->model->modules[module]))
            add_module(
                use_list, request,
                (struct use){.module = module, .micro_batch = item->is.micro_batch, .kind = item->is.kind});
    }
    item->end_use = use_list->uses_count;
}

static size_t uses_max(const struct zr_schedule_request *request, const struct zr_cut_part *part)
{
    size_t sum = 0;
    for (size_t m = part->first; m < part->end; m++)
        sum += zr_module_parts(&request->model->modules[m]) + parts_before(request, m);
    return sum;
}

static struct zr_cut_part whole_part(const struct zr_model *model)
{
    return (struct zr_cut_part){.end = model->modules_count,
                                .entry = ZR_NO_MODULE,
                                .exit = ZR_NO_MODULE,
                                .input_part = UINT_MAX,
                                .output_part = UINT_MAX};
}

/* Makes the uses of a list of items, or of one micro-batch. */
static zr_result open_use_list(struct use_list *out, const struct zr_schedule_request *request, bool backward)
{
    const struct zr_cut *cut = request->cut;
    unsigned parts = cut ? cut->parts_count : 1;
    bool ordered = cut && backward;
    *out = (struct use_list){.model = request->model,
                             .items_count = ordered    ? request->order->count
                                            : backward ? 2 * parts
                                                       : parts};
    zr_result result = zr_take(request->host_arena, ZR_TAG_OTHER, out->items_count, sizeof *out->items,
                               (void **)&out->items);
    size_t uses = 0;
    for (size_t i = 0; i < out->items_count && result == ZR_OK; i++) {
        struct zr_pipeline_item is = {(unsigned)i % parts, 0, (enum zr_pipeline_kind)(i / parts)};
        out->items[i].is = ordered ? request->order->items[i] : is;
        out->items[i].part = cut ? cut->parts[out->items[i].is.part] : whole_part(request->model);
        uses += uses_max(request, &out->items[i].part);
    }
    if (result == ZR_OK)
        result = zr_take(request->host_arena, ZR_TAG_OTHER, uses, sizeof *out->uses, (void **)&out->uses);
    for (size_t i = 0; i < out->items_count && result == ZR_OK; i++)
        add_uses(out, request, &out->items[i], backward);
    return result;
}

static void close_use_list(struct use_list *use_list, zr_arena *host_arena)
{
    zr_drop(host_arena, &use_list->uses);
    zr_drop(host_arena, &use_list->items);
}

/* Number of units whose parameters a use reads. */
static unsigned reads_count(const struct zr_model *model, struct use use)
{
    const struct zr_module *module = &model->modules[use.module];
    return use.kind == ZR_PIPELINE_WEIGHTS ||
                   (use.kind == ZR_PIPELINE_BACKWARD && !use.recomputes && module->type->backward_reads_none)
               ? 0
               : module->units_count;
}

static unsigned unit_of(const struct zr_model *model, struct use use, unsigned index)
{
    return zr_module_part_unit(&model->modules[use.module], use.part, index);
}

static bool reads_unit(const struct zr_model *model, struct use use, unsigned unit)
{
    for (unsigned i = 0; i < reads_count(model, use); i++)
        if (unit_of(model, use, i) == unit)
            return true;
    return false;
}

/* ---- Gathering ----------------------------------------------------------------------------------------- */

struct builder {
    struct zr_actions *out;
    const struct zr_schedule_request *request;
    struct use_list use_list;
    bool backward;                                   /* the list contains backward */
    unsigned micro_batch, loaded;                    /* of the current item / loaded last; UINT_MAX: none */
    unsigned gathered[GATHERED_MAX], gathered_count; /* gathered units */
    unsigned gathered_max;                           /* maximum of units gathered ahead */
    uint64_t *unit_elements;                         /* [units_count] */
    size_t fetched;      /* current item: outputs from this module on are fetched or were never stored */
    size_t receives_end; /* RECEIVE was emitted for the items before this index */
    unsigned done[ZR_PIPELINE_PARTS_MAX]; /* number of micro-batches by part whose frames are free again */
};

static void add(struct builder *builder, enum zr_action_kind kind, unsigned index)
{
    zr_actions_add(builder->out,
                   (struct zr_action){.kind = kind, .index = index, .micro_batch = builder->micro_batch});
}

static bool is_gathered(const struct builder *builder, unsigned unit)
{
    for (unsigned i = 0; i < builder->gathered_count; i++)
        if (builder->gathered[i] == unit)
            return true;
    return false;
}

static void gather(struct builder *builder, unsigned unit)
{
    if (is_gathered(builder, unit))
        return;
    builder->gathered[builder->gathered_count++] = unit;
    add(builder, ZR_ACTION_GATHER, unit);
}

/* Index of the next use after `at` that reads parameters; uses_count() if none. */
static size_t next_reading(const struct builder *builder, size_t at)
{
    size_t count = builder->use_list.uses_count;
    do
        at++;
    while (at < count && reads_count(builder->request->model, builder->use_list.uses[at]) == 0);
    return at;
}

static uint64_t elements_at(const struct builder *builder, size_t at)
{
    const struct zr_model *model = builder->request->model;
    uint64_t sum = 0;
    if (at < builder->use_list.uses_count) {
        struct use use = builder->use_list.uses[at];
        for (unsigned i = 0; i < reads_count(model, use); i++)
            sum += builder->unit_elements[unit_of(model, use, i)];
    }
    return sum;
}

/* Gathers the next units ahead, up to the limit. */
static void gather_ahead(struct builder *builder, size_t at)
{
    const struct zr_model *model = builder->request->model;
    while ((at = next_reading(builder, at)) < builder->use_list.uses_count) {
        struct use use = builder->use_list.uses[at];
        if (elements_at(builder, at) * SMALL_DIVISOR < elements_at(builder, next_reading(builder, at)))
            continue;
        for (unsigned i = 0; i < reads_count(model, use); i++) {
            if (builder->gathered_count >= builder->gathered_max)
                return;
            gather(builder, unit_of(model, use, i));
        }
        if (builder->gathered_count >= builder->gathered_max)
            return;
    }
}

/* Whether the next use that reads parameters reads `unit`. */
static bool is_next(const struct builder *builder, size_t at, unsigned unit)
{
    at = next_reading(builder, at);
    return at < builder->use_list.uses_count &&
           reads_unit(builder->request->model, builder->use_list.uses[at], unit);
}

static void release(struct builder *builder, unsigned unit)
{
    unsigned i = 0;
    while (builder->gathered[i] != unit)
        i++;
    builder->gathered[i] = builder->gathered[--builder->gathered_count];
    add(builder, ZR_ACTION_RELEASE, unit);
}

/* ---- Items --------------------------------------------------------------------------------------------- */

static bool is_checkpoint(const struct builder *builder, size_t module)
{
    return builder->request->model->modules[module].type->output_tag == ZR_TAG_CHECKPOINT;
}

/* The module whose output a module reads; ZR_NO_MODULE: none. */
static size_t input_of(const struct item *item, size_t module)
{
    return module > item->part.first || zr_cut_part_has_input(&item->part) ? module - 1 : ZR_NO_MODULE;
}

/* Whether the next use runs backward, so that the output is read again immediately. */
static bool turns_backward(const struct builder *builder, size_t at)
{
    struct use use = builder->use_list.uses[at];
    return at + 1 < builder->use_list.uses_count &&
           builder->use_list.uses[at + 1].kind == ZR_PIPELINE_BACKWARD &&
           builder->use_list.uses[at + 1].micro_batch == use.micro_batch &&
           builder->use_list.uses[at + 1].module == use.module + 1;
}

/* After forward of a module: stores its input, which only backward reads. */
static void store(struct builder *builder, const struct item *item, size_t at)
{
    size_t input = input_of(item, builder->use_list.uses[at].module);
    if (builder->backward && builder->request->fetch_distance > 0 && input != ZR_NO_MODULE &&
        is_checkpoint(builder, input) && !turns_backward(builder, at))
        add(builder, ZR_ACTION_STORE, (unsigned)input);
}

/* Before backward of a module: fetches its input and those of the next modules in backward. */
static void fetch(struct builder *builder, const struct item *item, size_t module)
{
    size_t distance = builder->request->fetch_distance,
           lowest = item->part.first - zr_cut_part_has_input(&item->part);
    size_t first = module > lowest + distance ? module - 1 - distance : lowest;
    while (distance > 0 && builder->fetched > first)
        if (is_checkpoint(builder, --builder->fetched))
            add(builder, ZR_ACTION_FETCH, (unsigned)builder->fetched);
}

static enum zr_action_kind kind_of(const struct zr_module *module, struct use use)
{
    return use.kind == ZR_PIPELINE_WEIGHTS               ? ZR_ACTION_WEIGHTS
           : use.kind == ZR_PIPELINE_FORWARD             ? ZR_ACTION_FORWARD
           : use.recomputes && zr_module_is_last(module) ? ZR_ACTION_FORWARD
           : use.recomputes                              ? ZR_ACTION_RECOMPUTE
                                                         : ZR_ACTION_BACKWARD;
}

static void add_run(struct builder *builder, enum zr_action_kind kind, struct use use)
{
    zr_actions_add(builder->out, (struct zr_action){.kind = kind,
                                                    .index = (unsigned)use.module,
                                                    .part = use.part,
                                                    .micro_batch = builder->micro_batch});
}

static void add_use(struct builder *builder, const struct item *item, size_t at)
{
    const struct zr_schedule_request *request = builder->request;
    const struct zr_model *model = request->model;
    struct use use = builder->use_list.uses[at];
    const struct zr_module *module = &model->modules[use.module];
    unsigned count = reads_count(model, use);
    bool in_parts = zr_module_parts(module) > 1, back = use.kind == ZR_PIPELINE_BACKWARD;
    bool gives = use.kind == ZR_PIPELINE_WEIGHTS ||
                 (back && !use.recomputes && !zr_schedule_splits(request->order, module->type));

    for (unsigned i = 0; i < count; i++)
        gather(builder, unit_of(model, use, i));
    gather_ahead(builder, at);
    if (back)
        fetch(builder, item, use.module);
    if (!in_parts && back && request->recomputes && request->recomputes[use.module])
        add_run(builder, ZR_ACTION_RECOMPUTE, use);
    add_run(builder, kind_of(module, use), use);
    if (use.kind == ZR_PIPELINE_FORWARD && use.part + 1 == zr_module_parts(module))
        store(builder, item, at);
    for (unsigned i = count; i-- > 0;)
        if (!is_next(builder, at, unit_of(model, use, i)))
            release(builder, unit_of(model, use, i));
    for (unsigned i = module->units_count; gives && i-- > 0;)
        if (!zr_unit_is_frozen(&model->list.units[unit_of(model, use, i)]))
            add(builder, ZR_ACTION_REDUCE, unit_of(model, use, i));
}

static void add_port(struct builder *builder, enum zr_action_kind kind, const struct item *item)
{
    bool inward = kind == ZR_ACTION_RECEIVE, backward = item->is.kind == ZR_PIPELINE_BACKWARD;
    size_t port = inward != backward ? item->part.entry : item->part.exit;
    if (port != ZR_NO_MODULE && item->is.kind != ZR_PIPELINE_WEIGHTS)
        zr_actions_add(builder->out, (struct zr_action){.kind = kind,
                                                        .index = (unsigned)port,
                                                        .micro_batch = item->is.micro_batch,
                                                        .backward = backward});
}

/* Whether an item's tensor can be received at item `at`. A gradient always can; an input only if its frame is
 * free. If checkpoints use a ring, whose buffers have a fixed order, inputs are received when they are read.
 * Schedules with weights have free frames during backward, but the first launch of a kernel may wait for all
 * receives, while the sender of the input waits for the gradient; no input is received then. */
static bool has_place(const struct builder *builder, const struct item *item, size_t at)
{
    const struct zr_pipeline_order *order = builder->request->order;
    const struct item *now = &builder->use_list.items[at];
    if (item->is.kind != ZR_PIPELINE_FORWARD)
        return true;
    if (item > now && (builder->request->fetch_distance > 0 ||
                       (builder->backward && order && order->last == ZR_PIPELINE_WEIGHTS &&
                        now->is.kind == ZR_PIPELINE_BACKWARD)))
        return false;
    unsigned places = builder->backward && order ? order->held_max[item->is.part] : 1;
    return item->is.micro_batch < builder->done[item->is.part] + places;
}

/* Emits RECEIVE for the current item and the next one that receives. */
static void add_receives(struct builder *builder, size_t at)
{
    const struct use_list *list = &builder->use_list;
    size_t next = at + 1;
    while (next < list->items_count && list->items[next].is.kind == ZR_PIPELINE_WEIGHTS)
        next++;
    while (builder->receives_end < list->items_count && builder->receives_end <= next &&
           has_place(builder, &list->items[builder->receives_end], at))
        add_port(builder, ZR_ACTION_RECEIVE, &list->items[builder->receives_end++]);
}

/* First module whose output was not stored, because no forward reads it or backward follows directly. */
static size_t stored_end(const struct builder *builder, const struct item *item)
{
    bool last = zr_module_is_last(&builder->request->model->modules[item->part.end - 1]),
         turned = item->is.kind && item->first_use > 0 && turns_backward(builder, item->first_use - 1);
    size_t others = 1 + last + turned;
    return item->part.end > others ? item->part.end - others : 0;
}

static void add_item(struct builder *builder, size_t at)
{
    const struct item *item = &builder->use_list.items[at];
    builder->micro_batch = item->is.micro_batch;
    builder->fetched = stored_end(builder, item);
    bool loads = builder->backward && item->is.kind != ZR_PIPELINE_WEIGHTS;
    if (loads && builder->loaded != item->is.micro_batch)
        zr_actions_add(builder->out, (struct zr_action){.kind = ZR_ACTION_LOAD,
                                                        .begins = builder->loaded == UINT_MAX,
                                                        .micro_batch = builder->micro_batch});
    if (loads)
        builder->loaded = item->is.micro_batch;
    add_receives(builder, at);
    for (size_t use = item->first_use; use < item->end_use; use++)
        add_use(builder, item, use);
    const struct zr_pipeline_order *order = builder->request->order;
    builder->done[item->is.part] += item->is.kind == (order ? order->last : ZR_PIPELINE_BACKWARD);
    add_port(builder, ZR_ACTION_SEND, item);
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

static zr_result add_items(struct zr_actions *out, const struct zr_schedule_request *request, bool backward)
{
    struct builder builder = {.out = out,
                              .request = request,
                              .backward = backward,
                              .loaded = UINT_MAX,
                              .gathered_max =
                                  1 + (request->prefetch_distance ? request->prefetch_distance : 1)};
    zr_result result = open_use_list(&builder.use_list, request, backward);
    if (result == ZR_OK)
        result = measure_units(&builder, request->model);
    for (size_t at = 0; at < builder.use_list.items_count && result == ZR_OK; at++)
        add_item(&builder, at);
    zr_drop(out->host_arena, &builder.unit_elements);
    close_use_list(&builder.use_list, request->host_arena);
    return result == ZR_OK ? out->result : result;
}

/* ---- Schedules ----------------------------------------------------------------------------------------- */

/* All micro-batches repeat the first one's actions. */
static void repeat(struct zr_actions *out, unsigned micro_batches)
{
    size_t length = out->count;
    for (unsigned m = 1; m < micro_batches; m++)
        for (size_t i = 0; i < length && out->result == ZR_OK; i++) {
            struct zr_action action = out->actions[i];
            action.micro_batch = m;
            zr_actions_add(out, action);
        }
}

static void add_end(struct zr_actions *out, const struct zr_actions *end, unsigned micro_batch)
{
    zr_actions_add(out, (struct zr_action){.kind = ZR_ACTION_DRAIN, .micro_batch = micro_batch});
    zr_actions_add(out, (struct zr_action){.kind = ZR_ACTION_AGREE, .micro_batch = micro_batch});
    for (size_t i = 0; end && i < end->count; i++) {
        struct zr_action action = end->actions[i];
        action.micro_batch = micro_batch;
        zr_actions_add(out, action);
    }
}

zr_result zr_schedule_step(struct zr_actions *out, const struct zr_schedule_request *request)
{
    unsigned micro_batches = request->micro_batches > 0 ? request->micro_batches : 1;
    *out = (struct zr_actions){.host_arena = request->host_arena};
    zr_result result = add_items(out, request, true);
    if (result == ZR_OK && !request->cut)
        repeat(out, micro_batches);
    if (result == ZR_OK)
        add_end(out, request->end, micro_batches - 1);
    result = result == ZR_OK ? out->result : result;
    if (result != ZR_OK)
        zr_actions_drop(out);
    return result;
}

zr_result zr_schedule_forward(struct zr_actions *out, const struct zr_schedule_request *request)
{
    *out = (struct zr_actions){.host_arena = request->host_arena};
    zr_result result = add_items(out, request, false);
    if (result != ZR_OK)
        zr_actions_drop(out);
    return result;
}

const struct zr_action_transform
    zr_schedule_with_gradients = {.rules = {{ZR_ACTION_AGREE,
                                             {ZR_ACTION_COLLECT, ZR_ACTION_LOSSES, ZR_ACTION_AGREE}},
                                            {ZR_ACTION_COLLECT}}},
    zr_schedule_deferred = {.rules = {{ZR_ACTION_DRAIN},
                                      {ZR_ACTION_AGREE, {ZR_ACTION_RATE}},
                                      {ZR_ACTION_READ, {ZR_ACTION_READ, ZR_ACTION_LOSSES, ZR_ACTION_AGREE}}}},
    zr_schedule_captured = {.rules = {{ZR_ACTION_READ,
                                       {ZR_ACTION_RECORD, ZR_ACTION_LAUNCH, ZR_ACTION_READ}}}},
    zr_schedule_launched = {.drops = true,
                            .rules = {{ZR_ACTION_LOAD, {ZR_ACTION_INPUTS}},
                                      {ZR_ACTION_RATE, {ZR_ACTION_RATE}},
                                      {ZR_ACTION_BEGIN, {ZR_ACTION_BEGIN, ZR_ACTION_REPEAT}},
                                      {ZR_ACTION_READ, {ZR_ACTION_LAUNCH, ZR_ACTION_READ}},
                                      {ZR_ACTION_LOSSES, {ZR_ACTION_LOSSES}},
                                      {ZR_ACTION_AGREE, {ZR_ACTION_AGREE}},
                                      {ZR_ACTION_SETTLE, {ZR_ACTION_SETTLE}},
                                      {ZR_ACTION_COUNT, {ZR_ACTION_COUNT}}}},
    zr_schedule_collected_first = {
        .rules = {{ZR_ACTION_AGREE, {ZR_ACTION_COLLECT, ZR_ACTION_AGREE}}, {ZR_ACTION_COLLECT}}};
