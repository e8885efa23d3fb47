/* trainer.c: carries out lists of actions: training steps, evaluations, answers. */
#include "zero/step/trainer.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/struct_bytes.h"
#include "defrag/zr_defrag.h"
#include "kernels/streams.h"
#include "zero/comm/status.h"

/* One run through a list. */
struct run {
    zr_trainer *trainer;
    const struct zr_step_calls *calls;
    struct zr_step_report *report;
    size_t rows;
    bool keeps;    /* what backward needs */
    float *answer; /* instead of the last module's forward: what it says after `answer_row` */
    size_t answer_row;
};

static bool is_last(const zr_trainer *trainer, size_t module)
{
    return zr_module_is_last(&trainer->model->modules[module]);
}

/* ---- Places -------------------------------------------------------------------------------------------- */

/* Micro-batches take the frames of a part by turns; without a pipeline there is one frame. */
static unsigned frame_of(const zr_trainer *trainer, unsigned part, unsigned micro_batch)
{
    return trainer->first_frame[part] + micro_batch % trainer->order.held_most[part];
}

static struct zr_activation_place place_of(const zr_trainer *trainer, size_t module, unsigned micro_batch)
{
    size_t count = trainer->model->modules_count;
    if (!trainer->pipelined)
        return (struct zr_activation_place){module, module > 0 ? module - 1 : ZR_NO_MODULE};
    unsigned p = zr_cut_part_of(&trainer->cut, module);
    const struct zr_cut_part *part = &trainer->cut.parts[p];
    struct zr_activation_place place = {frame_of(trainer, p, micro_batch) * count + module, ZR_NO_MODULE};
    if (module == part->first && part->input_part != UINT_MAX)
        place.input = frame_of(trainer, part->input_part, micro_batch) * count + module - 1;
    else if (module > part->first || (module == part->first && part->entry != ZR_NO_MODULE))
        place.input = place.at - 1;
    return place;
}

/* ---- A pass through a module --------------------------------------------------------------------------- */

/* The parameters of a module's part, waited for where they are still on their way. */
static zr_result use_units(const struct run *run, struct zr_module_pass *pass)
{
    zr_trainer *trainer = run->trainer;
    const struct zr_module *module = &trainer->model->modules[pass->module];
    for (unsigned i = 0; i < module->units_count; i++) {
        unsigned u = zr_module_part_unit(module, pass->part, i);
        const struct zr_layout_unit *unit = &trainer->engine->layout.units[u];
        const void **base = &trainer->parameters[u];
        zr_result result = *base ? ZR_OK : zr_engine_gather(trainer->engine, u, base);
        if (result != ZR_OK)
            return result;
        for (size_t p = 0; p < unit->parameters_count; p++)
            pass->parameters[i][p] =
                (char *)*base + trainer->engine->layout.parameters[unit->first_parameter + p].offset *
                                    trainer->engine->parameter_bytes;
    }
    return ZR_OK;
}

static zr_result use_gradients(const struct run *run, struct zr_module_pass *pass)
{
    zr_trainer *trainer = run->trainer;
    const struct zr_module *module = &trainer->model->modules[pass->module];
    for (unsigned i = 0; i < module->units_count; i++) {
        unsigned u = zr_module_part_unit(module, pass->part, i);
        const struct zr_layout_unit *unit = &trainer->engine->layout.units[u];
        void *base;
        zr_result result = zr_engine_gradients(trainer->engine, u, &base, &pass->accumulate[i]);
        if (result != ZR_OK)
            return result;
        for (size_t p = 0; p < unit->parameters_count; p++)
            pass->gradients[i][p] =
                (char *)base + trainer->engine->layout.parameters[unit->first_parameter + p].offset *
                                   trainer->engine->gradient_bytes;
    }
    return ZR_OK;
}

static void open_pass(const struct run *run, size_t module, struct zr_activation_place place,
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
    out->inputs = store->inputs;
    out->x = place.input != ZR_NO_MODULE ? store->outputs[place.input] : NULL;
    out->slots = zr_activations_slots(store, place.at);
    out->losses = store->losses;
    out->activations = store;
}

/* ---- Values that are not finite ------------------------------------------------------------------------ */

static zr_result inspect_values(const struct run *run, size_t module, const struct zr_slot *slot,
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
    zr_result result =
        zr_engine_find_nonfinite(trainer->engine, count, (struct zr_numbers){(void *)values, precision}, &at);
    if (result != ZR_OK || at == count)
        return result;
    row = at / slot->columns;
    if (ranks > 1)
        row += zr_comm_rank(o->tensor) * (run->rows / ranks);
    return zr_fail(ZR_ERR_CORRUPT, "the first value that is not finite is in %s%s%s, sequence %zu, token %zu",
                   zr_model_module_name(trainer->model, module), slot->name ? "." : "",
                   slot->name ? slot->name : "", row / together, row % together);
}

/* What a module has written, in the order of its slots. */
static zr_result inspect(const struct run *run, const struct zr_module_pass *pass)
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

/* ---- Actions ------------------------------------------------------------------------------------------- */

/* Passes begin here, and ask for the same blocks in the same order: see zr_rehearsal_create(). Of a pipeline
 * a step is one pass. */
static zr_result load(const struct run *run, unsigned micro_batch)
{
    zr_trainer *trainer = run->trainer;
    if (!trainer->step.one_pass)
        zr_rehearsal_rewind(trainer->activations.arena);
    trainer->staging.micro_batch = micro_batch;
    zr_result result = run->calls ? run->calls->load(run->calls->state, micro_batch) : ZR_OK;
    return result == ZR_OK ? zr_staging_send_inputs(&trainer->staging) : result;
}

/* What a part's first module reads has come. */
static zr_result await_input(zr_trainer *trainer, size_t module, unsigned micro_batch)
{
    unsigned p = trainer->pipelined ? zr_cut_part_of(&trainer->cut, module) : 0;
    const struct zr_cut_part *part = &trainer->cut.parts[p];
    if (!trainer->pipelined || module != part->first || part->entry == ZR_NO_MODULE)
        return ZR_OK;
    return zr_comm_wait(trainer->channels.parts[p].input.comm,
                        trainer->inputs[frame_of(trainer, p, micro_batch)]);
}

static zr_result forward(const struct run *run, const struct zr_action *action, bool again)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activations *store = &trainer->activations;
    size_t module = action->index;
    const struct zr_module_type *type = trainer->model->modules[module].type;
    unsigned part = action->part;
    struct zr_activation_place place = place_of(trainer, module, action->micro_batch);
    struct zr_module_pass pass;
    bool ends = part + 1 == zr_module_parts(&trainer->model->modules[module]);
    zr_result result = again ? ZR_OK : await_input(trainer, module, action->micro_batch);
    if (result == ZR_OK && (again || is_last(trainer, module)))
        result = zr_activations_await(store, place.input);
    if (result == ZR_OK && part == 0)
        result = zr_activations_take(store, place, !again);
    if (result != ZR_OK)
        return result;
    open_pass(run, module, place, &pass);
    pass.part = part;
    pass.y = again ? NULL : store->outputs[place.at];
    result = use_units(run, &pass);
    if (result == ZR_OK)
        result = run->answer && is_last(trainer, module) ? type->answer(&pass, run->answer_row, run->answer)
                                                         : type->forward(&pass);
    if (result == ZR_OK && trainer->inspects && ends && !is_last(trainer, module))
        result = inspect(run, &pass);
    if (result == ZR_OK && !again && ends)
        zr_activations_put(store, place, run->keeps);
    return result;
}

/* ---- Between the stages of a pipeline ------------------------------------------------------------------ */

/* A block of as many rows as the run has. */
static struct zr_channel_block block_of(const struct run *run, size_t output, void *block)
{
    const zr_trainer *trainer = run->trainer;
    size_t rows = run->rows / zr_model_row_ranks(trainer->model);
    enum zr_precision precision = trainer->engine->options.precision;
    return (struct zr_channel_block){.block = block,
                                     .bytes = rows * trainer->model->modules[output].type->output_columns *
                                              zr_precision_bytes(precision),
                                     .type = precision == ZR_PRECISION_FP32   ? ZR_COMM_FP32
                                             : precision == ZR_PRECISION_BF16 ? ZR_COMM_BF16
                                                                              : ZR_COMM_FP16};
}

static zr_result send(const struct run *run, const struct zr_action *action)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activations *store = &trainer->activations;
    unsigned p = zr_cut_part_of(&trainer->cut, action->index);
    struct zr_part_channels *channels = &trainer->channels.parts[p];
    void **place = &store->gradients[0];
    size_t output = action->index;
    if (!action->backward) {
        output--;
        place = &store->outputs[place_of(trainer, output, action->micro_batch).at];
    }
    struct zr_channel_block block = block_of(run, output, *place);
    *place = NULL;
    return zr_channel_send(&trainer->channels,
                           action->backward ? &channels->input_gradient : &channels->output, &block);
}

static zr_result receive(const struct run *run, const struct zr_action *action)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activations *store = &trainer->activations;
    unsigned p = zr_cut_part_of(&trainer->cut, action->index),
             frame = frame_of(trainer, p, action->micro_batch);
    struct zr_part_channels *channels = &trainer->channels.parts[p];
    size_t output = action->index - action->backward;
    struct zr_activation_place place = place_of(trainer, output, action->micro_batch);
    zr_result result = action->backward
                           ? zr_activations_take_gradient(store, place.at, &store->incoming[frame])
                           : zr_activations_take(store, place, true);
    if (result != ZR_OK)
        return result;
    struct zr_channel_block block =
        block_of(run, output, action->backward ? store->incoming[frame] : store->outputs[place.at]);
    return zr_channel_receive(action->backward ? &channels->output_gradient : &channels->input, &block,
                              action->backward ? &trainer->gradients[frame] : &trainer->inputs[frame]);
}

/* Before backward of a part's last module: the gradient of what the part has handed on. */
static zr_result take_gradient(zr_trainer *trainer, size_t module, unsigned micro_batch)
{
    unsigned p = trainer->pipelined ? zr_cut_part_of(&trainer->cut, module) : 0, frame;
    const struct zr_cut_part *part = &trainer->cut.parts[p];
    zr_result result = ZR_OK;
    if (!trainer->pipelined || module + 1 != part->end || is_last(trainer, module))
        return ZR_OK;
    frame = frame_of(trainer, p, micro_batch);
    if (part->exit != ZR_NO_MODULE)
        result = zr_comm_wait(trainer->channels.parts[p].output_gradient.comm, trainer->gradients[frame]);
    trainer->activations.gradients[0] = trainer->activations.incoming[frame];
    trainer->activations.incoming[frame] = NULL;
    return result;
}

/* After backward of a part's first module: its input's gradient waits, where the part before is here too. */
static void leave_gradient(zr_trainer *trainer, size_t module, unsigned micro_batch)
{
    unsigned p = trainer->pipelined ? zr_cut_part_of(&trainer->cut, module) : 0;
    const struct zr_cut_part *part = &trainer->cut.parts[p];
    if (!trainer->pipelined || module != part->first || part->input_part == UINT_MAX)
        return;
    trainer->activations.incoming[frame_of(trainer, part->input_part, micro_batch)] =
        trainer->activations.gradients[0];
    trainer->activations.gradients[0] = NULL;
}

/* The step's numbers are the host's when all of it has been asked for: its caller can do without the loss
 * until then. */
static bool defers(const struct run *run)
{
    return run->calls->rate && zr_engine_defers(run->trainer->engine);
}

/* ---- Backward ------------------------------------------------------------------------------------------ */

/* What the host waits for at once where the step's end does not tell. */
static zr_result mean_loss(const struct run *run, double *mean)
{
    zr_trainer *trainer = run->trainer;
    zr_result result = zr_staging_bring_losses(&trainer->staging, 0, run->rows);
    if (result == ZR_OK && trainer->engine->apart && !trainer->engine->simulated)
        result = zr_engine_copy(trainer->engine, NULL, NULL, 0);
    *mean = result == ZR_OK ? zr_staging_mean_loss(&trainer->staging, 0, run->rows) : 0;
    return result;
}

/* A loss of the step; diagnose() finds the words. */
static zr_result count_loss(const struct run *run, double loss)
{
    run->trainer->loss_sum += loss;
    return isfinite(loss) ? ZR_OK : ZR_ERR_CORRUPT;
}

static zr_result add_loss(const struct run *run, unsigned micro_batch)
{
    double loss;
    if (defers(run))
        return zr_staging_bring_losses(&run->trainer->staging, micro_batch, run->rows);
    zr_result result = mean_loss(run, &loss);
    return result == ZR_OK ? count_loss(run, loss) : result;
}

static zr_result backward(const struct run *run, const struct zr_action *action)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activations *store = &trainer->activations;
    const struct zr_engine_options *o = &trainer->engine->options;
    size_t module = action->index;
    const struct zr_module_type *type = trainer->model->modules[module].type;
    struct zr_activation_place place = place_of(trainer, module, action->micro_batch);
    struct zr_module_pass pass;
    void *dy, *dx;
    /* The last module has no forward before, but for one with parts. Its slots come first, as in an
     * evaluation's order of blocks. */
    unsigned parts = zr_module_parts(&trainer->model->modules[module]);
    bool begins = action->part + 1 == parts, alone = is_last(trainer, module) && parts == 1;
    zr_result result = alone    ? zr_activations_take(store, place, false)
                       : begins ? take_gradient(trainer, module, action->micro_batch)
                                : ZR_OK;
    if (result == ZR_OK && alone)
        result = await_input(trainer, module, action->micro_batch);
    if (result == ZR_OK)
        result = zr_activations_await(store, place.input);
    if (result == ZR_OK)
        result = zr_activations_get(store, place, &dy, &dx);
    if (result != ZR_OK)
        return result;
    open_pass(run, module, place, &pass);
    pass.part = action->part;
    if (!type->backward_reads_none)
        result = use_units(run, &pass);
    if (result == ZR_OK)
        result = use_gradients(run, &pass);
    if (result != ZR_OK)
        return result;
    pass.dy = dy;
    pass.dx = dx;
    pass.scale = zr_engine_loss_scale(trainer->engine) / ((float)run->rows * (float)o->micro_batches);
    result = type->backward(&pass);
    if (result == ZR_OK && is_last(trainer, module) && action->part == 0)
        result = add_loss(run, action->micro_batch);
    if (result == ZR_OK && action->part == 0) {
        zr_activations_end(store, place);
        leave_gradient(trainer, module, action->micro_batch);
    }
    return result;
}

static uint64_t host_waits(const zr_trainer *trainer)
{
    const struct zr_kernel_streams *streams = trainer->engine->options.kernels->streams;
    return streams ? streams->host_waits() : 0;
}

/* All of the step is asked for; then the host waits, once, and learns of the losses and the gradients. */
static zr_result update_deferred(const struct run *run)
{
    zr_trainer *trainer = run->trainer;
    unsigned micro_batches = trainer->engine->options.micro_batches;
    float rate = 0;
    zr_result result = run->calls->rate(run->calls->state, &rate);
    if (result == ZR_OK)
        result = (trainer->graph.repeats ? zr_engine_step_again : zr_engine_step_begin)(trainer->engine, rate,
                                                                                        run->report);
    if (result == ZR_OK)
        result = zr_step_graph_launch(trainer);
    trainer->host_waits = host_waits(trainer) - trainer->host_waits;
    if (result == ZR_OK)
        result = zr_engine_step_read(trainer->engine, run->report);
    for (unsigned m = 0; m < micro_batches && result == ZR_OK; m++)
        result = count_loss(run, zr_staging_mean_loss(&trainer->staging, m, run->rows));
    if (result == ZR_OK)
        result = run->calls->update(run->calls->state, trainer->loss_sum / micro_batches, &rate);
    return result == ZR_OK ? zr_engine_step_end(trainer->engine, run->report) : result;
}

static zr_result update(const struct run *run)
{
    zr_trainer *trainer = run->trainer;
    if (defers(run))
        return update_deferred(run);
    float rate = 0;
    zr_result result = zr_channels_drain(&trainer->channels);
    trainer->together = true; /* what fails from here on fails on all ranks */
    if (result == ZR_OK)
        result = run->calls->update(run->calls->state,
                                    trainer->loss_sum / trainer->engine->options.micro_batches, &rate);
    if (result == ZR_OK)
        result = zr_engine_step(trainer->engine, rate, run->report);
    trainer->host_waits = host_waits(trainer) - trainer->host_waits;
    return result;
}

static void release(zr_trainer *trainer, unsigned unit)
{
    if (trainer->parameters[unit])
        zr_engine_release(trainer->engine, unit);
    trainer->parameters[unit] = NULL;
}

static zr_result act(const struct run *run, const struct zr_action *action)
{
    switch (action->kind) {
    case ZR_ACTION_LOAD:
        return load(run, action->micro_batch);
    case ZR_ACTION_GATHER:
        return zr_engine_prefetch(run->trainer->engine, action->index);
    case ZR_ACTION_FORWARD:
        return forward(run, action, false);
    case ZR_ACTION_STORE:
        return zr_activations_store(&run->trainer->activations,
                                    place_of(run->trainer, action->index, action->micro_batch).at);
    case ZR_ACTION_FETCH:
        return zr_activations_fetch(&run->trainer->activations,
                                    place_of(run->trainer, action->index, action->micro_batch).at);
    case ZR_ACTION_RECOMPUTE:
        return forward(run, action, true);
    case ZR_ACTION_BACKWARD:
        return backward(run, action);
    case ZR_ACTION_SEND:
        return send(run, action);
    case ZR_ACTION_RECEIVE:
        return receive(run, action);
    case ZR_ACTION_RELEASE:
        release(run->trainer, action->index);
        return ZR_OK;
    case ZR_ACTION_REDUCE:
        return zr_engine_reduce(run->trainer->engine, action->index);
    case ZR_ACTION_UPDATE:
        return update(run);
    default:
        return zr_fail(ZR_ERR_INVALID, "action number %d is none", (int)action->kind);
    }
}

/* Whatever a pass holds; after one that went well there is nothing. */
static void drop_pass(zr_trainer *trainer)
{
    for (unsigned u = 0; u < trainer->model->list.units_count; u++)
        release(trainer, u);
    zr_channels_drain(&trainer->channels);
    zr_activations_drop(&trainer->activations);
}

static zr_result run_list(const struct run *run, const struct zr_schedule *schedule)
{
    zr_trainer *trainer = run->trainer;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < schedule->count && result == ZR_OK; i++) {
        if (trainer->observe)
            trainer->observe(trainer->observe_state, &schedule->actions[i], false);
        result = act(run, &schedule->actions[i]);
        if (trainer->observe && result == ZR_OK)
            trainer->observe(trainer->observe_state, &schedule->actions[i], true);
    }
    return result;
}

/* A step that the graph has: what it reads comes in, and it is launched. */
static zr_result repeat_step(const struct run *run)
{
    zr_trainer *trainer = run->trainer;
    unsigned micro_batches = trainer->engine->options.micro_batches;
    zr_result result = ZR_OK;
    for (unsigned m = 0; m < micro_batches && result == ZR_OK; m++) {
        trainer->staging.micro_batch = m;
        result = run->calls->load(run->calls->state, m);
    }
    return result == ZR_OK ? update_deferred(run) : result;
}

/* The loss is not finite: find out where that began, by the same pass with every result looked at. */
static zr_result diagnose(zr_trainer *trainer, size_t rows)
{
    zr_comm *tensor = trainer->engine->options.tensor;
    if (!trainer->pipelined)
        drop_pass(trainer);
    zr_result result = zr_engine_verify_finite(trainer->engine);
    if (tensor) /* its ranks have met the same loss, and go on together or not at all */
        result = zr_comm_all_status(tensor, result);
    if (result != ZR_OK)
        return result;
    if (trainer->pipelined)
        return zr_fail(ZR_ERR_CORRUPT,
                       "the loss is not finite although this rank's parameters are; --pp 1 has "
                       "the same losses and finds where it arose");
    if (zr_engine_gathers(trainer->engine)) /* the other ranks may be going on: nothing can be gathered */
        return zr_fail(ZR_ERR_CORRUPT, "the loss is not finite although this rank's parameters are; "
                                       "--stage 2 has the same losses and finds where it arose");
    zr_rehearsal_rewind(trainer->activations.arena);
    trainer->inspects = true;
    result = run_list(&(struct run){.trainer = trainer, .rows = rows}, &trainer->forward);
    trainer->inspects = false;
    drop_pass(trainer);
    if (result != ZR_OK)
        return result;
    size_t last = trainer->model->modules_count - 1;
    return zr_fail(
        ZR_ERR_CORRUPT, "the loss is not finite although everything up to %s is: it arose in the %s",
        zr_model_module_name(trainer->model, last - 1), zr_model_module_name(trainer->model, last));
}

/* A pass that failed. The ranks before and behind count on this one, and may have nothing for it any more. */
static zr_result give_up(zr_trainer *trainer, zr_result result)
{
    char words[512], why[96];
    if (trainer->pipelined && result != ZR_ERR_PEER && !trainer->together) {
        snprintf(words, sizeof words, "%s", zr_last_error());
        snprintf(why, sizeof why, "rank %u of the pipeline cannot go on",
                 zr_comm_rank(trainer->engine->options.pipeline));
        zr_comm_abandon(trainer->engine->options.pipeline, why);
        drop_pass(trainer);
        return zr_fail(result, "%s", words);
    }
    drop_pass(trainer);
    return result;
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

zr_result zr_trainer_step(zr_trainer *trainer, const struct zr_step_calls *calls,
                          struct zr_step_report *report)
{
    if (!trainer || !calls || !calls->load || !calls->update || !report)
        return zr_fail(ZR_ERR_INVALID, "%s() needs a trainer, both calls, and a place for the report",
                       __func__);
    struct run run = {
        .trainer = trainer, .calls = calls, .report = report, .rows = trainer->model->rows, .keeps = true};
    trainer->loss_sum = 0;
    trainer->together = false;
    zr_result result = defers(&run) ? zr_step_graph_begin(trainer) : ZR_OK;
    trainer->host_waits = host_waits(trainer);
    if (trainer->step.one_pass)
        zr_rehearsal_rewind(trainer->activations.arena);
    if (result == ZR_OK)
        result = trainer->graph.repeats ? repeat_step(&run) : run_list(&run, &trainer->step);
    zr_step_graph_end(trainer, result == ZR_OK);
    trainer->staging.micro_batch = 0; /* of evaluations and answers */
    if (result == ZR_ERR_CORRUPT && !isfinite(trainer->loss_sum))
        result = diagnose(trainer, run.rows);
    return result == ZR_OK ? ZR_OK : give_up(trainer, result);
}

static zr_result check_rows(const zr_trainer *trainer, const char *call, size_t rows, const void *out)
{
    if (!trainer || !out)
        return zr_fail(ZR_ERR_INVALID, "%s() needs a trainer, and a place for what it finds", call);
    const struct zr_model *model = trainer->model;
    size_t together = model->rows_together > 0 ? model->rows_together : 1;
    if (rows == 0 || rows > model->rows || rows % together)
        return zr_fail(ZR_ERR_INVALID, "%s() of %zu rows; the model takes %zu to %zu, by %zu", call, rows,
                       together, model->rows, together);
    return ZR_OK;
}

/* Losses come from this rank. */
static bool has_end(const zr_trainer *trainer)
{
    bool found = false;
    for (size_t m = 0; m < trainer->model->modules_count; m++)
        found |= is_last(trainer, m);
    return found;
}

zr_result zr_trainer_evaluate(zr_trainer *trainer, size_t rows, double *loss)
{
    zr_result result = check_rows(trainer, __func__, rows, loss);
    if (result != ZR_OK)
        return result;
    struct run run = {.trainer = trainer, .rows = rows};
    trainer->together = false;
    zr_rehearsal_rewind(trainer->activations.arena);
    result = run_list(&run, &trainer->forward);
    *loss = 0;
    if (result == ZR_OK && has_end(trainer))
        result = mean_loss(&run, loss);
    if (result == ZR_OK && !isfinite(*loss))
        result = diagnose(trainer, rows);
    if (result != ZR_OK)
        return give_up(trainer, result);
    drop_pass(trainer);
    return ZR_OK;
}

/* What the rank with the model's end says, all ranks of the pipeline say. */
static zr_result share_answer(zr_trainer *trainer, float *out)
{
    zr_comm *pipeline = trainer->engine->options.pipeline;
    zr_arena *host_arena = trainer->engine->options.host_arena;
    unsigned ranks = zr_comm_world(pipeline);
    size_t count = trainer->model->answer_count;
    bool mine = has_end(trainer), *ends = NULL;
    float *all = NULL;
    zr_result result = zr_take(host_arena, ZR_TAG_OTHER, ranks * count, sizeof *all, (void **)&all);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, ranks, sizeof *ends, (void **)&ends);
    if (result == ZR_OK)
        result = zr_comm_host_all_gather(pipeline, &mine, sizeof mine, ends);
    if (result == ZR_OK)
        result = zr_comm_host_all_gather(pipeline, out, count * sizeof *out, all);
    for (unsigned r = 0; r < ranks && result == ZR_OK; r++)
        if (ends[r])
            memcpy(out, all + r * count, count * sizeof *out);
    zr_drop(host_arena, &ends);
    zr_drop(host_arena, &all);
    return result;
}

zr_result zr_trainer_answer(zr_trainer *trainer, size_t rows, size_t row, float *out)
{
    zr_result result = check_rows(trainer, __func__, rows, out);
    if (result != ZR_OK)
        return result;
    const struct zr_model *model = trainer->model;
    if (row >= rows || (has_end(trainer) && !model->modules[model->modules_count - 1].type->answer))
        return zr_fail(ZR_ERR_INVALID, "%s() after row %zu of %zu, of a model that answers %zu numbers",
                       __func__, row, rows, model->answer_count);
    struct run run = {.trainer = trainer, .rows = rows, .answer = out, .answer_row = row};
    zr_rehearsal_rewind(trainer->activations.arena);
    result = run_list(&run, &trainer->forward);
    drop_pass(trainer);
    return result == ZR_OK && trainer->pipelined ? share_answer(trainer, out) : result;
}

zr_engine *zr_trainer_engine(zr_trainer *trainer)
{
    return trainer ? trainer->engine : NULL;
}

void *zr_trainer_input(zr_trainer *trainer, unsigned input)
{
    if (!trainer || input >= trainer->model->inputs_count)
        return NULL;
    return zr_staging_input(&trainer->staging, input);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static zr_result make_lists(zr_trainer *trainer)
{
    const struct zr_engine_options *o = &trainer->engine->options;
    struct zr_schedule_request request = {.model = trainer->model,
                                          .micro_batches = o->micro_batches,
                                          .prefetch_distance = o->prefetch_distance,
                                          .recomputes = trainer->activations.recomputes,
                                          .fetch_distance =
                                              zr_checkpoints_distance(&trainer->activations.checkpoints),
                                          .cut = trainer->pipelined ? &trainer->cut : NULL,
                                          .order = &trainer->order,
                                          .host_arena = o->host_arena};
    zr_result result = zr_schedule_step(&trainer->step, &request);
    if (result == ZR_OK)
        result = zr_schedule_forward(&trainer->forward, &request);
    return result;
}

/* Fills the inputs: the model's constants, and tokens that are none yet. */
static zr_result prepare(zr_trainer *trainer)
{
    const struct zr_model *model = trainer->model;
    struct zr_activations *store = &trainer->activations;
    const struct zr_engine_options *o = &trainer->engine->options;
    struct zr_module_pass pass;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < model->inputs_count && result == ZR_OK; i++)
        result = o->kernels->clear(
            o->context, &(struct zr_clear){model->inputs[i].elements *
                                               zr_slot_bytes(model->inputs[i].type, store->element_bytes),
                                           store->inputs[i]});
    open_pass(&(struct run){.trainer = trainer, .rows = model->rows}, 0, place_of(trainer, 0, 0), &pass);
    return result == ZR_OK && model->prepare ? model->prepare(&pass) : result;
}

/* The part of the model that this rank of a pipeline has, the order in which it takes micro-batches, and the
 * ways to the ranks before and behind. */
static zr_result open_pipeline(zr_trainer *trainer, const struct zr_trainer_options *options,
                               const struct zr_engine_options *engine)
{
    const struct zr_pipeline *pipeline = &options->pipeline;
    if (!pipeline->comm || zr_comm_world(pipeline->comm) == 1)
        return ZR_OK;
    unsigned ranks = zr_comm_world(pipeline->comm), rank = zr_comm_rank(pipeline->comm);
    zr_result result = zr_cut_open(&trainer->cut, &(struct zr_cut_request){.model = options->model,
                                                                           .pipeline = pipeline,
                                                                           .ranks = ranks,
                                                                           .rank = rank,
                                                                           .host_arena = engine->host_arena});
    if (result == ZR_OK)
        result = zr_pipeline_order_make(&trainer->order,
                                        &(struct zr_pipeline_request){.pipeline = pipeline,
                                                                      .ranks = ranks,
                                                                      .rank = rank,
                                                                      .micro_batches = engine->micro_batches,
                                                                      .host_arena = engine->host_arena});
    if (result == ZR_OK)
        result = zr_channels_open(&trainer->channels, &trainer->cut, pipeline, engine->arena);
    trainer->pipelined = true;
    trainer->model = &trainer->cut.model;
    return result;
}

/* Frames of all parts, and places for the tickets of what they receive. */
static zr_result count_frames(zr_trainer *trainer, const struct zr_engine_options *engine, unsigned *frames)
{
    zr_result result = ZR_OK;
    *frames = 1;
    if (!trainer->pipelined)
        return ZR_OK;
    *frames = 0;
    for (unsigned p = 0; p < trainer->cut.parts_count; p++) {
        trainer->first_frame[p] = *frames;
        *frames += trainer->order.held_most[p];
    }
    result = zr_take(engine->host_arena, ZR_TAG_OTHER, *frames, sizeof *trainer->inputs,
                     (void **)&trainer->inputs);
    if (result == ZR_OK)
        result = zr_take(engine->host_arena, ZR_TAG_OTHER, *frames, sizeof *trainer->gradients,
                         (void **)&trainer->gradients);
    return result;
}

static zr_result open_activations(zr_trainer *trainer, const struct zr_trainer_options *options,
                                  const struct zr_engine_options *engine)
{
    unsigned frames;
    zr_result result = count_frames(trainer, engine, &frames);
    return result != ZR_OK ? result
                           : zr_activations_open(
                                 &trainer->activations,
                                 &(struct zr_activations_options){
                                     .model = trainer->model,
                                     .frames = frames,
                                     .arena = engine->arena,
                                     .host_arena = engine->host_arena,
                                     .element_bytes = zr_precision_bytes(engine->precision),
                                     .recompute = options->recompute,
                                     .recompute_modules = options->recompute_modules,
                                     .recomputing_before = trainer->cut.recomputing_before,
                                     .checkpoints = &(struct zr_checkpoints_options){
                                         .policy = options->checkpoints,
                                         .arena = engine->arena,
                                         .host_arena = engine->host_arena,
                                         .kernels = engine->kernels,
                                         .context = engine->context,
                                         .precision = engine->precision,
                                         .tensor = trainer->model->row_ranks > 1 ? NULL : engine->tensor}});
}

static zr_result open_engine(zr_trainer *trainer, struct zr_engine_options *engine)
{
    const struct zr_parameter_list *list = &trainer->model->list;
    engine->list = *list;
    engine->sharing = trainer->channels.sharing;
    zr_result result = zr_engine_create(&trainer->engine, engine);
    if (result == ZR_OK)
        result = zr_take(engine->host_arena, ZR_TAG_OTHER, list->units_count, sizeof *trainer->parameters,
                         (void **)&trainer->parameters);
    if (result == ZR_OK)
        memset(trainer->parameters, 0, list->units_count * sizeof *trainer->parameters);
    return result;
}

static void destroy(zr_trainer *trainer, zr_arena *host_arena)
{
    if (trainer->activations.arena)
        drop_pass(trainer);
    if (trainer->engine)
        zr_step_graph_drop(trainer);
    zr_schedule_end(&trainer->forward);
    zr_schedule_end(&trainer->step);
    zr_activations_close(&trainer->activations);
    zr_staging_close(&trainer->staging);
    zr_drop(host_arena, &trainer->gradients);
    zr_drop(host_arena, &trainer->inputs);
    zr_drop(host_arena, &trainer->parameters);
    zr_engine_destroy(trainer->engine);
    zr_channels_close(&trainer->channels);
    zr_pipeline_order_end(&trainer->order);
    zr_cut_close(&trainer->cut);
    zr_drop(host_arena, &trainer);
}

zr_result zr_trainer_create(zr_trainer **out, const struct zr_trainer_options *options)
{
    struct zr_trainer_options own;
    struct zr_engine_options engine;
    zr_trainer *trainer = NULL;

    if (out)
        *out = NULL;
    if (!out || !options || !options->engine || !options->engine->arena || !options->engine->host_arena)
        return zr_fail(ZR_ERR_INVALID, "%s() needs options, arenas among them, and a place for the trainer",
                       __func__);
    zr_result result = ZR_STRUCT_COPY(zr_trainer_options, pipeline, &own, options);
    if (result == ZR_OK)
        result = ZR_STRUCT_COPY(zr_engine_options, scattered_gradients, &engine, own.engine);
    if (result == ZR_OK)
        result = zr_model_check(own.model);
    if (result == ZR_OK)
        result = zr_take(engine.host_arena, ZR_TAG_OTHER, 1, sizeof *trainer, (void **)&trainer);
    if (result != ZR_OK)
        return result;
    memset(trainer, 0, sizeof *trainer);
    trainer->model = own.model;
    engine.pipeline = own.pipeline.comm;
    engine.scattered_gradients |= own.checkpoints.scattered;
    if (engine.micro_batches == 0)
        engine.micro_batches = 1;
    result = open_pipeline(trainer, &own, &engine);
    if (result == ZR_OK)
        result = open_engine(trainer, &engine);
    if (result == ZR_OK)
        result = open_activations(trainer, &own, &engine);
    if (result == ZR_OK)
        result = make_lists(trainer);
    if (result == ZR_OK)
        result = zr_staging_open(&trainer->staging, trainer->engine, trainer->model, &trainer->activations);
    if (result == ZR_OK)
        result = prepare(trainer);
    if (result == ZR_OK)
        *out = trainer;
    else
        destroy(trainer, engine.host_arena);
    return result;
}

void zr_trainer_destroy(zr_trainer *trainer)
{
    if (trainer)
        destroy(trainer, trainer->engine->options.host_arena);
}
