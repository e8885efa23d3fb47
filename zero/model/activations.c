/* activations.c: the activation store; see activations.h. */
#include "zero/model/activations.h"

#include <string.h>

#include "zero/comm/take.h"

const char *zr_model_module_name(const struct zr_model *model, size_t module)
{
    const struct zr_module *m = &model->modules[module];
    return m->type->name ? m->type->name : model->list.units[m->units[0]].name;
}

size_t zr_slot_bytes(enum zr_slot_type type, size_t element_bytes)
{
    return type == ZR_SLOT_ELEMENTS ? element_bytes
           : type == ZR_SLOT_FLOATS ? sizeof(float)
                                    : sizeof(int32_t);
}

static const struct zr_module_type *type_of(const struct zr_activations *store, size_t module)
{
    return store->model->modules[module].type;
}

static bool is_kept(const struct zr_activations *store, size_t module, const struct zr_slot *slot)
{
    bool all = store->recompute == ZR_RECOMPUTE_NONE ||
               (store->recompute == ZR_RECOMPUTE_FULL && type_of(store, module)->recomputes &&
                !store->recomputes[module]);
    return slot->life == ZR_SLOT_KEPT || (slot->life == ZR_SLOT_RECOMPUTED && all);
}

static bool is_checkpoint(const struct zr_activations *store, size_t module)
{
    return type_of(store, module)->output_tag == ZR_TAG_CHECKPOINT;
}

static void drop_output(struct zr_activations *store, size_t module)
{
    if (is_checkpoint(store, module)) {
        zr_checkpoints_drop(&store->checkpoints, module);
        store->outputs[module] = NULL;
    } else {
        zr_drop(store->arena, &store->outputs[module]);
    }
}

/* Of what a tag limit refuses: for which module it was. */
static zr_result name_module(const struct zr_activations *store, size_t module, zr_result result)
{
    return result == ZR_ERR_TAG_LIMIT
               ? zr_fail(result, "%s, %s", zr_model_module_name(store->model, module), zr_last_error())
               : result;
}

/* Of the model's rows, those that this rank has of what modules hand on. */
static size_t own_rows(const struct zr_activations *store)
{
    return store->model->rows / zr_model_row_ranks(store->model);
}

/* Memory for whole rows: a pass of fewer rows has the blocks, and so the places, of a whole one. */
static zr_result take_slot(struct zr_activations *store, size_t module, unsigned index)
{
    const struct zr_slot *slot = &type_of(store, module)->slots[index];
    size_t rows = slot->own_rows ? own_rows(store) : store->model->rows;
    zr_result result = zr_take_block(store->arena, ZR_TAG_ACTIVATION, rows * slot->columns,
                                     zr_slot_bytes(slot->type, store->element_bytes),
                                     &zr_activations_slots(store, module)[index]);
    return name_module(store, module, zr_name_call(result, __func__, slot->name));
}

static void drop_slots(struct zr_activations *store, size_t module)
{
    for (unsigned s = type_of(store, module)->slots_count; s-- > 0;)
        zr_drop(store->arena, &zr_activations_slots(store, module)[s]);
}

/* ---- A pass -------------------------------------------------------------------------------------------- */

zr_result zr_activations_take(struct zr_activations *store, size_t module, bool output)
{
    const struct zr_module_type *type = type_of(store, module);
    zr_result result = ZR_OK;
    size_t elements = own_rows(store) * type->output_columns;
    if (output && elements > 0)
        result = name_module(
            store, module,
            is_checkpoint(store, module)
                ? zr_checkpoints_take(&store->checkpoints, module, elements, &store->outputs[module])
                : zr_take(store->arena, type->output_tag, elements, store->element_bytes,
                          &store->outputs[module]));
    for (unsigned s = 0; s < type->slots_count && result == ZR_OK; s++)
        if (is_kept(store, module, &type->slots[s]))
            result = take_slot(store, module, s);
    return result;
}

void zr_activations_put(struct zr_activations *store, size_t module, bool keep)
{
    if (!keep || store->recomputes[module])
        drop_slots(store, module);
    if (!keep && module > 0)
        drop_output(store, module - 1);
}

zr_result zr_activations_store(struct zr_activations *store, size_t module)
{
    store->outputs[module] = NULL;
    return name_module(store, module, zr_checkpoints_store(&store->checkpoints, module));
}

zr_result zr_activations_fetch(struct zr_activations *store, size_t module)
{
    return name_module(store, module, zr_checkpoints_fetch(&store->checkpoints, module));
}

zr_result zr_activations_await(struct zr_activations *store, size_t module)
{
    return store->checkpoints.stores && is_checkpoint(store, module)
               ? zr_checkpoints_await(&store->checkpoints, module, &store->outputs[module])
               : ZR_OK;
}

zr_result zr_activations_get(struct zr_activations *store, size_t module, void **dy, void **dx)
{
    const struct zr_module_type *type = type_of(store, module);
    zr_result result = ZR_OK;
    *dy = store->gradients[0];
    *dx = NULL;
    if (module > 0 && !type->in_place)
        result = name_module(store, module,
                             zr_take(store->arena, ZR_TAG_ACTIVATION,
                                     own_rows(store) * type_of(store, module - 1)->output_columns,
                                     store->element_bytes, &store->gradients[1]));
    if (module > 0)
        *dx = type->in_place ? store->gradients[0] : store->gradients[1];
    return result;
}

void zr_activations_end(struct zr_activations *store, size_t module)
{
    if (!type_of(store, module)->in_place) {
        zr_drop(store->arena, &store->gradients[0]);
        store->gradients[0] = store->gradients[1];
        store->gradients[1] = NULL;
    }
    drop_slots(store, module);
    if (module > 0)
        drop_output(store, module - 1);
}

void zr_activations_drop(struct zr_activations *store)
{
    for (size_t m = 0; m < store->model->modules_count; m++) {
        if (store->slots)
            drop_slots(store, m);
        if (store->outputs && store->checkpoints.kept)
            drop_output(store, m);
    }
    for (unsigned i = 0; i < 2; i++)
        zr_drop(store->arena, &store->gradients[i]);
}

zr_result zr_module_take(struct zr_module_pass *pass, unsigned slot)
{
    return take_slot(pass->activations, pass->module, slot);
}

void zr_module_drop(struct zr_module_pass *pass, unsigned slot)
{
    zr_drop(pass->activations->arena, &pass->slots[slot]);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

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
            "module %zu of %zu: it needs a type with forward and backward, at most %d slots and %d "
            "units, a name or a unit that has one, and an output, but for the last",
            index, model->modules_count, ZR_MODULE_SLOTS_MAX, ZR_MODULE_UNITS_MAX);
    for (unsigned u = 0; u < module->units_count; u++)
        if (module->units[u] >= model->list.units_count)
            return zr_fail(ZR_ERR_INVALID, "module %zu reads unit %u of %zu", index, module->units[u],
                           model->list.units_count);
    return ZR_OK;
}

/* Modules read units as often as units have gradient uses, and a pass has room to show their parameters. */
static zr_result check_units(const struct zr_model *model)
{
    size_t reads = 0, uses = 0, count = 0;
    for (size_t m = 0; m < model->modules_count; m++)
        reads += model->modules[m].units_count;
    for (size_t u = 0; u < model->list.units_count; u++)
        uses += model->list.units[u].gradient_uses;
    if (reads != uses)
        return zr_fail(ZR_ERR_INVALID, "modules read units %zu times, and units have %zu gradient uses",
                       reads, uses);
    for (size_t p = 0; p < model->list.parameters_count; p++) {
        bool same = p > 0 && model->list.parameters[p].unit == model->list.parameters[p - 1].unit;
        count = same ? count + 1 : 1;
        if (count > ZR_UNIT_PARAMETERS_MAX)
            return zr_fail(ZR_ERR_INVALID, "parameter %s is one more than the %d of a unit",
                           model->list.parameters[p].name, ZR_UNIT_PARAMETERS_MAX);
    }
    return ZR_OK;
}

zr_result zr_model_check(const struct zr_model *model)
{
    zr_result result = ZR_OK;
    if (!model || !model->modules || model->modules_count < 2 || model->rows == 0 ||
        model->inputs_count > ZR_MODEL_INPUTS_MAX || !model->list.parameters || !model->list.units)
        return zr_fail(
            ZR_ERR_INVALID,
            "a model needs parameters and units, two modules at least, a row, and at most %d inputs",
            ZR_MODEL_INPUTS_MAX);
    if ((model->rows_together > 0 ? model->rows_together : 1) % zr_model_row_ranks(model))
        return zr_fail(ZR_ERR_INVALID, "%u ranks do not divide %zu rows that belong together",
                       model->row_ranks, model->rows_together);
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

/* The first `most` modules that can; 0: all of them. */
static zr_result choose_recomputed(struct zr_activations *store, size_t most)
{
    size_t count = store->model->modules_count, chosen = 0;
    zr_result result = zr_take(store->host_arena, ZR_TAG_OTHER, count, sizeof *store->recomputes,
                               (void **)&store->recomputes);
    for (size_t m = 0; m < count && result == ZR_OK; m++) {
        store->recomputes[m] = store->recompute == ZR_RECOMPUTE_FULL && type_of(store, m)->recomputes &&
                               (most == 0 || chosen < most);
        chosen += store->recomputes[m];
    }
    return result;
}

static zr_result open_checkpoints(struct zr_activations *store, const struct zr_checkpoints_options *options)
{
    struct zr_checkpoints_options own = *options;
    own.count = store->model->modules_count;
    for (size_t m = 0; m < own.count; m++) {
        size_t elements = own_rows(store) * type_of(store, m)->output_columns;
        if (is_checkpoint(store, m) && elements > own.elements)
            own.elements = elements;
    }
    return zr_checkpoints_open(&store->checkpoints, &own);
}

zr_result zr_activations_open(struct zr_activations *out, const struct zr_activations_options *options)
{
    const struct zr_model *model = options->model;
    size_t count = model->modules_count, slots = 0;
    zr_result result;

    *out = (struct zr_activations){.model = model,
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
    if (result == ZR_OK)
        result = zr_take(out->host_arena, ZR_TAG_OTHER, count, sizeof *out->outputs, (void **)&out->outputs);
    if (result == ZR_OK)
        memset(out->outputs, 0, count * sizeof *out->outputs);
    if (result == ZR_OK)
        result = zr_take(out->host_arena, ZR_TAG_OTHER, slots + 1, sizeof *out->slots, (void **)&out->slots);
    if (result == ZR_OK)
        memset(out->slots, 0, (slots + 1) * sizeof *out->slots);
    if (result == ZR_OK)
        result = choose_recomputed(out, options->recompute_modules);
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
    zr_drop(store->host_arena, &store->slots);
    zr_drop(store->host_arena, &store->outputs);
    zr_drop(store->host_arena, &store->first_slot);
}
