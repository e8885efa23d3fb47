/* activations.c: the activation store; see activations.h. */
#include "zero/model/activations.h"

#include <string.h>

#include "zero/comm/take.h"

const char *zr_model_module_name(const struct zr_model *model, size_t module)
{
    const struct zr_module *m = &model->modules[module];
    return m->type->name ? m->type->name : m->name[0] ? m->name : model->list.units[m->units[0]].name;
}

size_t zr_slot_bytes(enum zr_slot_type type, size_t element_bytes)
{
    return type == ZR_SLOT_ELEMENTS ? element_bytes
           : type == ZR_SLOT_FLOATS ? sizeof(float)
                                    : sizeof(int32_t);
}

static size_t module_of(const struct zr_activations *store, size_t at)
{
    return at % store->model->modules_count;
}

static const struct zr_module_type *type_of(const struct zr_activations *store, size_t at)
{
    return store->model->modules[module_of(store, at)].type;
}

static bool is_kept(const struct zr_activations *store, size_t at, const struct zr_slot *slot)
{
    bool all = store->recompute == ZR_RECOMPUTE_NONE ||
               (store->recompute == ZR_RECOMPUTE_FULL && type_of(store, at)->recomputes &&
                !store->recomputes[module_of(store, at)]);
    return slot->life == ZR_SLOT_KEPT || (slot->life == ZR_SLOT_RECOMPUTED && all);
}

/* Whether an output is sent to another stage. The output is a checkpoint in the stage that reads it, not
 * here. */
static bool is_sent(const struct zr_activations *store, size_t at)
{
    size_t next = module_of(store, at) + 1;
    const struct zr_module *modules = store->model->modules;
    return next < store->model->modules_count && zr_module_is_port(&modules[next]) &&
           modules[next].type->output_columns == 0;
}

static zr_tag tag_of(const struct zr_activations *store, size_t at)
{
    return is_sent(store, at) ? ZR_TAG_ACTIVATION : type_of(store, at)->output_tag;
}

static bool is_checkpoint(const struct zr_activations *store, size_t at)
{
    return tag_of(store, at) == ZR_TAG_CHECKPOINT;
}

static void drop_output(struct zr_activations *store, size_t at)
{
    if (at == ZR_NO_MODULE)
        return;
    if (is_checkpoint(store, at)) {
        zr_checkpoints_drop(&store->checkpoints, at);
        store->outputs[at] = NULL;
    } else {
        zr_drop(store->arena, &store->outputs[at]);
    }
}

/* Adds the module's name to the error of a refused allocation. */
static zr_result name_module(const struct zr_activations *store, size_t at, zr_result result)
{
    return result == ZR_ERR_TAG_LIMIT
               ? zr_fail(result, "%s, %s", zr_model_module_name(store->model, module_of(store, at)),
                         zr_last_error())
               : result;
}

/* This rank's rows of module outputs. */
static size_t own_rows(const struct zr_activations *store)
{
    return store->model->rows / zr_model_row_ranks(store->model);
}

static size_t output_elements(const struct zr_activations *store, size_t at)
{
    return own_rows(store) * type_of(store, at)->output_columns;
}

/* Blocks always have the size of all rows, so that a pass with fewer rows has the same placement. */
static zr_result take_slot(struct zr_activations *store, size_t at, unsigned index, void **out)
{
    const struct zr_slot *slot = &type_of(store, at)->slots[index];
    size_t rows = slot->own_rows ? own_rows(store) : store->model->rows;
    zr_result result = zr_take_block(store->arena, ZR_TAG_ACTIVATION, rows * slot->columns,
                                     zr_slot_bytes(slot->type, store->element_bytes), out);
    return name_module(store, at, zr_name_call(result, __func__, slot->name));
}

static void drop_slots(struct zr_activations *store, size_t at)
{
    for (unsigned s = type_of(store, at)->slots_count; s-- > 0;)
        zr_drop(store->arena, &zr_activations_slots(store, at)[s]);
}

/* ---- A pass -------------------------------------------------------------------------------------------- */

zr_result zr_activations_take(struct zr_activations *store, struct zr_activation_place place, bool output)
{
    size_t at = place.at, elements = output_elements(store, at);
    zr_result result = ZR_OK;
    if (output && elements > 0)
        result = name_module(store, at,
                             is_checkpoint(store, at)
                                 ? zr_checkpoints_take(&store->checkpoints, at, elements, &store->outputs[at])
                                 : zr_take(store->arena, tag_of(store, at), elements, store->element_bytes,
                                           &store->outputs[at]));
    for (unsigned s = 0; s < type_of(store, at)->slots_count && result == ZR_OK; s++)
        if (is_kept(store, at, &type_of(store, at)->slots[s]))
            result = take_slot(store, at, s, &zr_activations_slots(store, at)[s]);
    return result;
}

void zr_activations_put(struct zr_activations *store, struct zr_activation_place place, bool keep)
{
    if (!keep || store->recomputes[module_of(store, place.at)])
        drop_slots(store, place.at);
    if (!keep)
        drop_output(store, place.input);
}

zr_result zr_activations_store(struct zr_activations *store, size_t at)
{
    store->outputs[at] = NULL;
    return name_module(store, at, zr_checkpoints_store(&store->checkpoints, at));
}

zr_result zr_activations_fetch(struct zr_activations *store, size_t at)
{
    return name_module(store, at, zr_checkpoints_fetch(&store->checkpoints, at));
}

zr_result zr_activations_await(struct zr_activations *store, size_t at)
{
    return store->checkpoints.stores && at != ZR_NO_MODULE && is_checkpoint(store, at)
               ? zr_checkpoints_await(&store->checkpoints, at, &store->outputs[at])
               : ZR_OK;
}

zr_result zr_activations_take_gradient(struct zr_activations *store, size_t at, void **gradient)
{
    return name_module(
        store, at,
        zr_take(store->arena, ZR_TAG_ACTIVATION, output_elements(store, at), store->element_bytes, gradient));
}

zr_result zr_activations_get(struct zr_activations *store, struct zr_activation_place place, void **dy,
                             void **dx)
{
    bool in_place = type_of(store, place.at)->in_place;
    zr_result result = ZR_OK;
    *dy = store->gradients[0];
    *dx = NULL;
    if (place.input == ZR_NO_MODULE)
        return ZR_OK;
    if (!in_place && !store->gradients[1]) /* the module's first part in backward */
        result = zr_activations_take_gradient(store, place.input, &store->gradients[1]);
    *dx = store->gradients[in_place ? 0 : 1];
    return result;
}

void zr_activations_turn(struct zr_activations *store, struct zr_activation_place place)
{
    if (type_of(store, place.at)->in_place)
        return;
    zr_drop(store->arena, &store->gradients[0]);
    store->gradients[0] = store->gradients[1];
    store->gradients[1] = NULL;
}

void zr_activations_end(struct zr_activations *store, struct zr_activation_place place)
{
    drop_slots(store, place.at);
    drop_output(store, place.input);
}

void zr_activations_drop(struct zr_activations *store)
{
    size_t places = store->frames * store->model->modules_count;
    for (size_t at = 0; at < places; at++) {
        if (store->slots)
            drop_slots(store, at);
        if (store->outputs && store->checkpoints.kept)
            drop_output(store, at);
    }
    for (unsigned f = 0; store->incoming && f < store->frames; f++)
        zr_drop(store->arena, &store->incoming[f]);
    for (unsigned i = 0; i < 2; i++)
        zr_drop(store->arena, &store->gradients[i]);
}

zr_result zr_module_take(struct zr_module_pass *pass, unsigned slot)
{
    return take_slot(pass->activations, pass->module, slot, &pass->slots[slot]);
}

void zr_module_drop(struct zr_module_pass *pass, unsigned slot)
{
    zr_drop(pass->activations->arena, &pass->slots[slot]);
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static zr_result check_module(const struct zr_model *model, size_t index)
{
    const struct zr_module *module = &model->modules[index];
    const struct zr_module_type *type = module->type;
    bool last = index + 1 == model->modules_count;
    if (!type || !type->forward || !type->backward || type->slots_count > ZR_MODULE_SLOTS_MAX ||
        (type->slots_count > 0 && !type->slots) || (type->output_columns == 0) != last ||
        (module->units_count == 0 && !type->name) || module->units_count > ZR_MODULE_UNITS_MAX)
        return zr_fail(
            ZR_ERR_INVALID,
            "module %zu of %zu is invalid: a module requires a type with forward and backward, at most %d slots and "
            "%d units, a name or a unit, and an output unless it is the last",
            index, model->modules_count, ZR_MODULE_SLOTS_MAX, ZR_MODULE_UNITS_MAX);
    if (!memchr(module->name, '\0', sizeof module->name))
        return zr_fail(ZR_ERR_INVALID, "the name of module %zu is not terminated", index);
    if (zr_module_parts(module) > 1 &&
        (module->units_count != 1 || type->recomputed_parts > type->parts || type->weights))
        return zr_fail(
            ZR_ERR_INVALID,
            "module %zu of %zu has %u parts, of which %u are recomputed: all parts must have the unit of the first, "
            "and a type with weights has one part",
            index, model->modules_count, type->parts, type->recomputed_parts);
    for (unsigned u = 0; u < zr_module_units(module); u++)
        if (zr_module_unit(module, u) >= model->list.units_count)
            return zr_fail(ZR_ERR_INVALID, "module %zu reads unit %u, and there are %zu units", index,
                           zr_module_unit(module, u), model->list.units_count);
    return ZR_OK;
}

/* Checks that gradient_uses match the modules, and that a unit has at most the parameters that a pass can
 * hold. */
static zr_result check_units(const struct zr_model *model)
{
    size_t reads = 0, uses = 0, count = 0;
    for (size_t m = 0; m < model->modules_count; m++)
        for (unsigned u = 0; u < zr_module_units(&model->modules[m]); u++)
            reads += !zr_unit_is_frozen(&model->list.units[zr_module_unit(&model->modules[m], u)]);
    for (size_t u = 0; u < model->list.units_count; u++)
        uses += model->list.units[u].gradient_uses;
    if (reads != uses)
        return zr_fail(ZR_ERR_INVALID,
                       "modules read units %zu times, and the units' gradient_uses add up to %zu", reads,
                       uses);
    for (size_t p = 0; p < model->list.parameters_count; p++) {
        bool same = p > 0 && model->list.parameters[p].unit == model->list.parameters[p - 1].unit;
        count = same ? count + 1 : 1;
        if (count > ZR_UNIT_PARAMETERS_MAX)
            return zr_fail(ZR_ERR_INVALID, "parameter %s: its unit has more than %d parameters",
                           model->list.parameters[p].name, ZR_UNIT_PARAMETERS_MAX);
    }
    return ZR_OK;
}

bool zr_model_is_frozen(const struct zr_model *model)
{
    size_t u = 0;
    while (u < model->list.units_count && zr_unit_is_frozen(&model->list.units[u]))
        u++;
    return u == model->list.units_count;
}

zr_result zr_model_check(const struct zr_model *model)
{
    zr_result result = ZR_OK;
    if (!model || !model->modules || model->modules_count < 2 || model->rows == 0 ||
        model->inputs_count > ZR_MODEL_INPUTS_MAX || !model->list.parameters || !model->list.units)
        return zr_fail(
            ZR_ERR_INVALID,
            "a model requires parameters, units, at least two modules, at least one row and at most %d inputs",
            ZR_MODEL_INPUTS_MAX);
    if ((model->rows_together > 0 ? model->rows_together : 1) % zr_model_row_ranks(model))
        return zr_fail(ZR_ERR_INVALID, "row_ranks %u does not divide rows_together %zu", model->row_ranks,
                       model->rows_together);
    for (size_t m = 0; m < model->modules_count && result == ZR_OK; m++)
        result = check_module(model, m);
    return result == ZR_OK ? check_units(model) : result;
}

static zr_result take_inputs(struct zr_activations *store)
{
    const struct zr_model *model = store->model;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < model->inputs_count && result == ZR_OK; i++)
        result = zr_take(store->arena, ZR_TAG_ACTIVATION, model->inputs[i].elements,
                         zr_slot_bytes(model->inputs[i].type, store->element_bytes), &store->inputs[i]);
    if (result == ZR_OK)
        result =
            zr_take(store->arena, ZR_TAG_ACTIVATION, model->rows, sizeof(float), (void **)&store->losses);
    return result;
}

/* Sets `recomputes` for the first `max_modules` modules of the whole model that can recompute; 0: all of
 * them. */
static zr_result choose_recomputed(struct zr_activations *store, size_t max_modules, const size_t *before)
{
    size_t count = store->model->modules_count, chosen = 0;
    zr_result result = zr_take(store->host_arena, ZR_TAG_OTHER, count, sizeof *store->recomputes,
                               (void **)&store->recomputes);
    for (size_t m = 0; m < count && result == ZR_OK; m++) {
        store->recomputes[m] = store->recompute == ZR_RECOMPUTE_FULL && type_of(store, m)->recomputes &&
                               (max_modules == 0 || (before ? before[m] : chosen) < max_modules);
        chosen += store->recomputes[m];
    }
    return result;
}

static zr_result open_checkpoints(struct zr_activations *store, const struct zr_checkpoints_options *options)
{
    struct zr_checkpoints_options own = *options;
    own.count = store->frames * store->model->modules_count;
    own.frames = store->frames;
    for (size_t m = 0; m < store->model->modules_count; m++) {
        size_t elements = output_elements(store, m);
        if (is_checkpoint(store, m) && elements > own.elements)
            own.elements = elements;
    }
    return zr_checkpoints_open(&store->checkpoints, &own);
}

zr_result zr_activations_open(struct zr_activations *out, const struct zr_activations_options *options)
{
    const struct zr_model *model = options->model;
    size_t count = model->modules_count, slots = 0, places;
    zr_result result;

    *out = (struct zr_activations){.model = model,
                                   .frames = options->frames,
                                   .arena = options->arena,
                                   .host_arena = options->host_arena,
                                   .element_bytes = options->element_bytes,
                                   .recompute = options->recompute};
    result =
        zr_take(out->host_arena, ZR_TAG_OTHER, count, sizeof *out->first_slot, (void **)&out->first_slot);
    for (size_t m = 0; m < count && result == ZR_OK; m++) {
        out->first_slot[m] = slots;
        slots += model->modules[m].type->slots_count;
    }
    out->slots_count = slots;
    places = out->frames * count;
    slots = out->frames * slots + 1;
    if (result == ZR_OK)
        result = zr_take(out->host_arena, ZR_TAG_OTHER, places, sizeof *out->outputs, (void **)&out->outputs);
    if (result == ZR_OK)
        memset(out->outputs, 0, places * sizeof *out->outputs);
    if (result == ZR_OK)
        result = zr_take(out->host_arena, ZR_TAG_OTHER, slots, sizeof *out->slots, (void **)&out->slots);
    if (result == ZR_OK)
        memset(out->slots, 0, slots * sizeof *out->slots);
    if (result == ZR_OK)
        result = zr_take(out->host_arena, ZR_TAG_OTHER, out->frames, sizeof *out->incoming,
                         (void **)&out->incoming);
    if (result == ZR_OK)
        memset(out->incoming, 0, out->frames * sizeof *out->incoming);
    if (result == ZR_OK)
        result = choose_recomputed(out, options->recompute_modules, options->recomputing_before);
    if (result == ZR_OK)
        result = open_checkpoints(out, options->checkpoints);
    if (result == ZR_OK)
        result = take_inputs(out);
    if (result != ZR_OK)
        zr_activations_close(out);
    return result;
}

void zr_activations_close(struct zr_activations *store)
{
    if (!store->arena)
        return;
    zr_activations_drop(store);
    zr_drop(store->arena, &store->losses);
    for (unsigned i = ZR_MODEL_INPUTS_MAX; i-- > 0;)
        zr_drop(store->arena, &store->inputs[i]);
    zr_checkpoints_close(&store->checkpoints);
    zr_drop(store->host_arena, &store->recomputes);
    zr_drop(store->host_arena, &store->incoming);
    zr_drop(store->host_arena, &store->slots);
    zr_drop(store->host_arena, &store->outputs);
    zr_drop(store->host_arena, &store->first_slot);
}
