/* module_pass.c: see module_pass.h. */
#include "zero/step/module_pass.h"

#include <math.h>
#include <string.h>

#include "zero/engine/update.h"
#include "zero/step/frames.h"
#include "zero/step/trainer.h"

/* The entry of a pass's table for parameter `index` of a module's unit. */
static void **entry(void *table[ZR_MODULE_UNITS_MAX][ZR_UNIT_PARAMETERS_MAX], const struct zr_module *module,
                    unsigned unit, size_t index)
{
    return module->places ? &table[0][module->places[unit][index]] : &table[unit][index];
}

/* Gathers the parameters of a module's part, and waits for them. */
static zr_result use_units(const struct zr_list_run *run, const struct zr_action *action,
                           struct zr_module_pass *pass)
{
    zr_trainer *trainer = run->trainer;
    const struct zr_module *module = &trainer->model->modules[pass->module];
    unsigned age = run->calls ? zr_flow_age(trainer, action) : 0;
    for (unsigned i = 0; i < module->units_count; i++) {
        unsigned u = zr_module_part_unit(module, pass->part, i);
        const struct zr_layout_unit *unit = &trainer->engine->layout.units[u];
        const void **base = &trainer->parameters[u];
        zr_result result = *base ? ZR_OK : zr_engine_gather(trainer->engine, u, base);
        if (result != ZR_OK)
            return result;
        const void *read = zr_engine_version(trainer->engine, *base, age);
        for (size_t p = 0; p < unit->parameters_count; p++)
            *entry(pass->parameters, module, i, p) =
                (char *)read + trainer->engine->layout.parameters[unit->first_parameter + p].offset *
                                   trainer->engine->parameter_bytes;
    }
    return ZR_OK;
}

static zr_result use_gradients(const struct zr_list_run *run, struct zr_module_pass *pass)
{
    zr_trainer *trainer = run->trainer;
    const struct zr_module *module = &trainer->model->modules[pass->module];
    for (unsigned i = 0; i < module->units_count; i++) {
        unsigned u = zr_module_part_unit(module, pass->part, i);
        const struct zr_layout_unit *unit = &trainer->engine->layout.units[u];
        void *base;
        if (zr_unit_is_frozen(&unit->unit))
            continue;
        zr_result result =
            zr_engine_gradients(trainer->engine, u, &base, &pass->accumulate[module->places ? 0 : i]);
        if (result != ZR_OK)
            return result;
        for (size_t p = 0; p < unit->parameters_count; p++)
            *entry(pass->gradients, module, i, p) =
                (char *)base + trainer->engine->layout.parameters[unit->first_parameter + p].offset *
                                   trainer->engine->gradient_bytes;
    }
    return ZR_OK;
}

void zr_module_pass_open(const struct zr_list_run *run, size_t module, struct zr_activation_place place,
                         struct zr_module_pass *out)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activations *store = &trainer->activations;
    memset(out, 0, sizeof *out);
    out->model = trainer->model;
    out->kernels = trainer->engine->options.kernels;
    out->context = trainer->engine->options.context;
    out->module = module;
    out->rows = run->rows;
    out->own_rows = run->rows / zr_model_row_ranks(trainer->model);
    out->tensor = trainer->engine->options.tensor;
    out->ring = trainer->ring;
    out->trains = run->calls;
    out->inputs = store->inputs;
    out->x = place.input != ZR_NO_MODULE ? store->outputs[place.input] : NULL;
    out->slots = zr_activations_slots(store, place.at);
    out->losses = store->losses;
    out->activations = store;
}

/* ---- Values that are not finite ------------------------------------------------------------------------ */

static zr_result inspect_values(const struct zr_list_run *run, size_t module, const struct zr_slot *slot,
                                const void *values)
{
    const zr_trainer *trainer = run->trainer;
    const struct zr_engine_options *o = &trainer->engine->options;
    size_t together = trainer->model->rows_together > 0 ? trainer->model->rows_together : 1;
    unsigned ranks = slot->own_rows ? zr_model_row_ranks(trainer->model) : 1;
    size_t count = run->rows / ranks * slot->columns, at = count, row;
    if (!values || count == 0)
        return ZR_OK;
    enum zr_precision precision = slot->type == ZR_SLOT_FLOATS ? ZR_PRECISION_FP32 : o->precision;
    zr_result result = zr_engine_find_nonfinite(trainer->engine, trainer->engine->tiers[0].compute, count,
                                                (struct zr_numbers){(void *)values, precision}, &at);
    if (result != ZR_OK || at == count)
        return result;
    row = at / slot->columns;
    if (ranks > 1)
        row += zr_comm_rank(o->tensor) * (run->rows / ranks);
    return zr_fail(ZR_ERR_CORRUPT, "the first value that is not finite is in %s%s%s, sequence %zu, token %zu",
                   zr_model_module_name(trainer->model, module), slot->name ? "." : "",
                   slot->name ? slot->name : "", row / together, row % together);
}

/* Checks a module's results for values that are not finite, in the order of its slots. */
static zr_result inspect(const struct zr_list_run *run, const struct zr_module_pass *pass)
{
    const struct zr_module_type *type = run->trainer->model->modules[pass->module].type;
    zr_result result = ZR_OK;
    for (unsigned s = 0; s < type->slots_count && result == ZR_OK; s++)
        if (type->slots[s].type != ZR_SLOT_INTEGERS)
            result = inspect_values(run, pass->module, &type->slots[s], pass->slots[s]);
    return result == ZR_OK
               ? inspect_values(run, pass->module,
                                &(struct zr_slot){type->output_name, type->output_columns, 0, 0, true},
                                pass->y)
               : result;
}

/* ---- Forward and backward ------------------------------------------------------------------------------ */

zr_result zr_module_pass_forward(const struct zr_list_run *run, const struct zr_action *action, bool again)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activations *store = &trainer->activations;
    size_t module = action->index;
    const struct zr_module_type *type = trainer->model->modules[module].type;
    unsigned part = action->part;
    struct zr_activation_place place = zr_frame_place(trainer, module, action->micro_batch);
    struct zr_module_pass pass;
    bool ends = part + 1 == zr_module_parts(&trainer->model->modules[module]);
    zr_result result = again ? ZR_OK : zr_frame_await_input(trainer, module, action->micro_batch);
    if (result == ZR_OK && (again || zr_trainer_is_last(trainer, module)))
        result = zr_activations_await(store, place.input);
    if (result == ZR_OK && part == 0)
        result = zr_activations_take(store, place, !again);
    if (result != ZR_OK)
        return result;
    zr_module_pass_open(run, module, place, &pass);
    pass.part = part;
    pass.y = again ? NULL : store->outputs[place.at];
    result = use_units(run, action, &pass);
    if (result == ZR_OK)
        result = run->answer && zr_trainer_is_last(trainer, module)
                     ? type->answer(&pass, run->answer_row, run->answer)
                     : type->forward(&pass);
    if (result == ZR_OK && trainer->inspects && ends && !zr_trainer_is_last(trainer, module))
        result = inspect(run, &pass);
    if (result == ZR_OK && !again && ends)
        zr_activations_put(store, place, run->keeps);
    return result;
}

zr_result zr_list_run_mean_loss(const struct zr_list_run *run, double *mean)
{
    zr_trainer *trainer = run->trainer;
    zr_result result = zr_staging_bring_losses(&trainer->staging, 0, run->rows);
    if (result == ZR_OK && trainer->engine->host_invisible && !trainer->engine->simulated)
        result = zr_engine_copy(trainer->engine, NULL, NULL, 0);
    *mean = result == ZR_OK ? zr_staging_mean_loss(&trainer->staging, 0, run->rows) : 0;
    return result;
}

zr_result zr_list_run_count_loss(const struct zr_list_run *run, double loss)
{
    run->trainer->loss_sum += loss;
    return isfinite(loss) ? ZR_OK : ZR_ERR_CORRUPT;
}

zr_result zr_list_run_add_loss(const struct zr_list_run *run, unsigned micro_batch)
{
    double loss;
    if (!zr_trainer_weighs(run->trainer, micro_batch))
        return ZR_OK;
    zr_result result = zr_list_run_mean_loss(run, &loss); /* each passes through the first place */
    return result == ZR_OK ? zr_list_run_count_loss(run, loss) : result;
}

zr_result zr_list_run_bring_loss(const struct zr_list_run *run, unsigned micro_batch)
{
    return zr_staging_bring_losses(&run->trainer->staging, micro_batch, run->rows);
}

zr_result zr_module_pass_backward(const struct zr_list_run *run, const struct zr_action *action)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activations *store = &trainer->activations;
    size_t module = action->index;
    const struct zr_module_type *type = trainer->model->modules[module].type;
    struct zr_activation_place place = zr_frame_place(trainer, module, action->micro_batch);
    struct zr_module_pass pass;
    void *dy, *dx;
    /* The last module, if it has no parts, runs forward here. Its slots are allocated first, in the order of
     * an evaluation. */
    unsigned parts = zr_module_parts(&trainer->model->modules[module]);
    bool begins = action->part + 1 == parts, alone = zr_trainer_is_last(trainer, module) && parts == 1;
    zr_result result = alone    ? zr_activations_take(store, place, false)
                       : begins ? zr_frame_take_gradient(trainer, module, action->micro_batch)
                                : ZR_OK;
    if (result == ZR_OK && alone)
        result = zr_frame_await_input(trainer, module, action->micro_batch);
    if (result == ZR_OK)
        result = zr_activations_await(store, place.input);
    if (result == ZR_OK)
        result = zr_activations_get(store, place, &dy, &dx);
    if (result != ZR_OK)
        return result;
    zr_module_pass_open(run, module, place, &pass);
    pass.part = action->part;
    pass.splits = zr_schedule_splits(trainer->pipelined ? &trainer->order : NULL, type);
    if (!type->backward_reads_none)
        result = use_units(run, action, &pass);
    if (result == ZR_OK && !pass.splits)
        result = use_gradients(run, &pass);
    if (result != ZR_OK)
        return result;
    pass.dy = dy;
    pass.dx = dx;
    pass.scale = zr_trainer_weighs(trainer, action->micro_batch)
                     ? zr_engine_loss_scale(trainer->engine) /
                           ((float)run->rows * (float)zr_trainer_mean_micro_batches(trainer))
                     : 0;
    result = type->backward(&pass);
    if (result == ZR_OK && zr_trainer_is_last(trainer, module) && action->part == 0)
        result = run->add_loss(run, action->micro_batch);
    if (result == ZR_OK && action->part == 0) {
        zr_activations_turn(store, place);
        if (!pass.splits)
            zr_activations_end(store, place);
        zr_frame_leave_gradient(trainer, module, action->micro_batch);
    }
    return result;
}

zr_result zr_module_pass_weights(const struct zr_list_run *run, const struct zr_action *action)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activation_place place = zr_frame_place(trainer, action->index, action->micro_batch);
    struct zr_module_pass pass;
    zr_module_pass_open(run, action->index, place, &pass);
    zr_result result = use_gradients(run, &pass);
    if (result == ZR_OK)
        result = trainer->model->modules[action->index].type->weights(&pass);
    if (result == ZR_OK)
        zr_activations_end(&trainer->activations, place);
    return result;
}
