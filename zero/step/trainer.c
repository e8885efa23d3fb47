/* trainer.c: executes steps, evaluations and answers; see zr_zero.h. */
#include "zero/step/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "defrag/zr_defrag.h"
#include "kernels/streams.h"
#include "zero/comm/mesh.h"
#include "zero/step/frames.h"
#include "zero/step/module_pass.h"

/* ---- Actions ------------------------------------------------------------------------------------------- */

/* Loads the inputs of a micro-batch. All passes allocate the same blocks in the same order, see
 * zr_rehearsal_create(). */
static zr_result load(const struct zr_list_run *run, const struct zr_action *action)
{
    zr_trainer *trainer = run->trainer;
    if (action->begins)
        zr_rehearsal_rewind(trainer->activations.arena);
    trainer->staging.micro_batch = action->micro_batch;
    zr_result result = run->calls ? run->calls->load(run->calls->state, action->micro_batch) : ZR_OK;
    return result == ZR_OK ? zr_staging_send_inputs(&trainer->staging) : result;
}

/* Whether this rank computes the losses. */
static bool computes_losses(const zr_trainer *trainer)
{
    bool found = false;
    for (size_t m = 0; m < trainer->model->modules_count; m++)
        found |= zr_trainer_is_last(trainer, m);
    return found;
}

void zr_trainer_set_share(zr_trainer *trainer, struct zr_step_share share)
{
    trainer->share = share;
}

static uint64_t host_waits(const zr_trainer *trainer)
{
    const struct zr_kernel_streams *streams = trainer->engine->options.kernels->streams;
    return streams ? streams->host_waits() : 0;
}

/* ---- The end of a step --------------------------------------------------------------------------------- */

/* Adds losses that were copied to the host during the step, after the host has waited. */
static zr_result count_losses(const struct zr_list_run *run)
{
    zr_result result = ZR_OK;
    unsigned count = computes_losses(run->trainer) ? run->trainer->engine->options.micro_batches : 0;
    for (unsigned m = 0; m < count && zr_trainer_weighs(run->trainer, m) && result == ZR_OK; m++)
        result = zr_list_run_count_loss(run, zr_staging_mean_loss(&run->trainer->staging, m, run->rows));
    return result;
}

/* The caller agrees on the loss with other ranks. */
static zr_result agree(struct zr_list_run *run)
{
    const zr_trainer *trainer = run->trainer;
    return run->calls->update(run->calls->state, trainer->loss_sum / zr_trainer_mean_micro_batches(trainer),
                              &run->engine.rate);
}

/* Inputs of a step from the graph, which sends them. */
static zr_result load_inputs(const struct zr_list_run *run, unsigned micro_batch)
{
    run->trainer->staging.micro_batch = micro_batch;
    return run->calls->load(run->calls->state, micro_batch);
}

/* ---- Lists --------------------------------------------------------------------------------------------- */

static void release(zr_trainer *trainer, unsigned unit)
{
    if (trainer->parameters[unit])
        zr_engine_release(trainer->engine, unit);
    trainer->parameters[unit] = NULL;
}

static zr_result act(struct zr_engine_run *engine, const struct zr_action *action)
{
    struct zr_list_run *run = (struct zr_list_run *)engine;
    switch (action->kind) {
    case ZR_ACTION_LOAD:
        return load(run, action);
    case ZR_ACTION_GATHER:
        return zr_engine_prefetch(run->trainer->engine, action->index);
    case ZR_ACTION_FORWARD:
        return zr_module_pass_forward(run, action, false);
    case ZR_ACTION_STORE:
        return zr_activations_store(&run->trainer->activations,
                                    zr_frame_place(run->trainer, action->index, action->micro_batch).at);
    case ZR_ACTION_FETCH:
        return zr_activations_fetch(&run->trainer->activations,
                                    zr_frame_place(run->trainer, action->index, action->micro_batch).at);
    case ZR_ACTION_RECOMPUTE:
        return zr_module_pass_forward(run, action, true);
    case ZR_ACTION_BACKWARD:
        return zr_module_pass_backward(run, action);
    case ZR_ACTION_WEIGHTS:
        return zr_module_pass_weights(run, action);
    case ZR_ACTION_SEND:
        return zr_frame_send(run, action);
    case ZR_ACTION_RECEIVE:
        return zr_frame_receive(run, action);
    case ZR_ACTION_RELEASE:
        release(run->trainer, action->index);
        return ZR_OK;
    case ZR_ACTION_REDUCE:
        return zr_engine_reduce(run->trainer->engine, action->index);
    case ZR_ACTION_DRAIN:
        run->trainer->together = !run->trainer->flow.asynchronous;
        return zr_channels_drain(&run->trainer->channels);
    case ZR_ACTION_INPUTS:
        return load_inputs(run, action->micro_batch);
    case ZR_ACTION_RATE:
        run->trainer->together = true;
        return run->calls->rate(run->calls->state, &run->engine.rate);
    case ZR_ACTION_LOSSES:
        return count_losses(run);
    case ZR_ACTION_AGREE:
        return agree(run);
    case ZR_ACTION_RECORD:
        return zr_step_graph_record(run->trainer);
    case ZR_ACTION_LAUNCH:
        return zr_step_graph_launch(run->trainer);
    case ZR_ACTION_READ:
        run->trainer->host_waits = host_waits(run->trainer) - run->waits;
        return zr_engine_act(engine, action);
    default:
        return zr_fail(ZR_ERR_INVALID, "unknown action %s", zr_action_kind_name(action->kind));
    }
}

void zr_trainer_drop_pass(zr_trainer *trainer)
{
    for (unsigned u = 0; u < trainer->model->list.units_count; u++)
        release(trainer, u);
    zr_channels_drain(&trainer->channels);
    zr_frames_drop(trainer);
    zr_activations_drop(&trainer->activations);
}

static zr_result run_list(struct zr_list_run *run, const struct zr_actions *list)
{
    run->engine.engine = run->trainer->engine;
    run->engine.way = &zr_update_here;
    run->engine.act = act;
    run->engine.observe = run->trainer->observe;
    run->engine.observe_state = run->trainer->observe_state;
    return zr_engine_run_list(&run->engine, list);
}

/* Chooses the list of the step that begins. */
static zr_result begin_step(zr_trainer *trainer, struct zr_list_run *run, const struct zr_actions **list)
{
    *list = trainer->flow.asynchronous ? &trainer->flow.list : &trainer->step;
    run->add_loss = trainer->add_loss;
    if (trainer->flow.asynchronous)
        return zr_flow_begin(trainer);
    if (!run->calls->rate || trainer->deferred[ZR_GRAPH_NONE].count == 0)
        return ZR_OK;
    zr_result result = zr_step_graph_begin(trainer);
    *list = &trainer->deferred[trainer->graph.now];
    run->add_loss = zr_list_run_bring_loss;
    return result;
}

/* The loss is not finite: repeats the pass, checking every result, to find the first bad one. */
static zr_result diagnose(zr_trainer *trainer, size_t rows)
{
    zr_comm *tensor = trainer->engine->options.tensor;
    if (!trainer->pipelined)
        zr_trainer_drop_pass(trainer);
    zr_result result = zr_engine_verify_finite(trainer->engine);
    if (tensor) /* tensor ranks have the same loss, so all of them reach this call */
        result = zr_comm_all_status(tensor, result);
    if (result != ZR_OK)
        return result;
    if (trainer->pipelined)
        return zr_fail(
            ZR_ERR_CORRUPT,
            "the loss is not finite, although this rank's parameters are; run with --pp 1, which has the "
            "same losses%s, to find the operation",
            trainer->flow.asynchronous ? " as --schedule 1f1b" : "");
    if (trainer->ring)
        return zr_fail(
            ZR_ERR_CORRUPT,
            "the loss is not finite, although this rank's parameters are; run with --cp 1, which has "
            "the same losses up to rounding, to find the operation");
    if (zr_engine_gathers(trainer->engine)) /* other ranks may continue, so a gather is not possible */
        return zr_fail(
            ZR_ERR_CORRUPT,
            "the loss is not finite, although this rank's parameters are; run with --stage 2, which has the "
            "same losses, to find the operation");
    zr_rehearsal_rewind(trainer->activations.arena);
    trainer->inspects = true;
    result = run_list(&(struct zr_list_run){.trainer = trainer, .rows = rows}, &trainer->forward);
    trainer->inspects = false;
    zr_trainer_drop_pass(trainer);
    if (result != ZR_OK)
        return result;
    size_t last = trainer->model->modules_count - 1;
    return zr_fail(
        ZR_ERR_CORRUPT, "the loss is not finite although everything up to %s is: it arose in the %s",
        zr_model_module_name(trainer->model, last - 1), zr_model_module_name(trainer->model, last));
}

/* Ends a failed pass. Neighbours in the pipeline wait for this rank, so their communicators are ended. */
static zr_result give_up(zr_trainer *trainer, zr_result result)
{
    char message[512], cause[96];
    if (trainer->pipelined && result != ZR_ERR_PEER && !trainer->together) {
        snprintf(message, sizeof message, "%s", zr_last_error());
        snprintf(cause, sizeof cause, "rank %u of the pipeline has failed",
                 zr_comm_rank(trainer->engine->options.pipeline));
        zr_comm_abandon(trainer->engine->options.pipeline, cause);
        zr_trainer_drop_pass(trainer);
        return zr_fail(result, "%s", message);
    }
    zr_trainer_drop_pass(trainer);
    return result;
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

zr_result zr_trainer_step(zr_trainer *trainer, const struct zr_step_calls *calls,
                          struct zr_step_report *report)
{
    if (!trainer || !calls || !calls->load || !calls->update || !report)
        return zr_fail(ZR_ERR_INVALID, "%s(): the trainer, a callback or the report is NULL", __func__);
    if (trainer->frozen)
        return zr_fail(ZR_ERR_INVALID, "%s(): all units of the model are frozen (gradient_uses 0)", __func__);
    const struct zr_actions *list;
    struct zr_list_run run = {.engine.report = report,
                              .trainer = trainer,
                              .calls = calls,
                              .rows = trainer->model->rows,
                              .keeps = true};
    trainer->loss_sum = 0;
    trainer->together = false;
    zr_result result = begin_step(trainer, &run, &list);
    run.waits = host_waits(trainer);
    trainer->host_waits = UINT64_MAX;
    if (result == ZR_OK)
        result = run_list(&run, list);
    if (trainer->host_waits == UINT64_MAX)
        trainer->host_waits = host_waits(trainer) - run.waits;
    zr_step_graph_end(trainer, result == ZR_OK);
    zr_flow_end(trainer);
    trainer->staging.micro_batch = 0; /* evaluations and answers use the first places */
    if (result == ZR_ERR_CORRUPT && !isfinite(trainer->loss_sum))
        result = diagnose(trainer, run.rows);
    return result == ZR_OK ? ZR_OK : give_up(trainer, result);
}

static zr_result check_rows(const zr_trainer *trainer, const char *call, size_t rows, const void *out)
{
    if (!trainer || !out)
        return zr_fail(ZR_ERR_INVALID, "%s(): the trainer or the output is NULL", call);
    const struct zr_model *model = trainer->model;
    size_t together = model->rows_together > 0 ? model->rows_together : 1;
    if (rows == 0 || rows > model->rows || rows % together)
        return zr_fail(ZR_ERR_INVALID,
                       "%s(): %zu rows are invalid; the model takes %zu to %zu rows in multiples of %zu",
                       call, rows, together, model->rows, together);
    return ZR_OK;
}

zr_result zr_trainer_evaluate(zr_trainer *trainer, size_t rows, double *loss)
{
    zr_result result = check_rows(trainer, __func__, rows, loss);
    if (result == ZR_OK)
        result = zr_flow_check_drained(trainer, __func__);
    if (result != ZR_OK)
        return result;
    struct zr_list_run run = {.trainer = trainer, .rows = rows};
    trainer->together = false;
    zr_rehearsal_rewind(trainer->activations.arena);
    result = zr_staging_send_inputs(&trainer->staging); /* the forward list has no LOAD */
    if (result == ZR_OK)
        result = run_list(&run, &trainer->forward);
    *loss = 0;
    if (result == ZR_OK && computes_losses(trainer))
        result = zr_list_run_mean_loss(&run, loss);
    if (result == ZR_OK && !isfinite(*loss))
        result = diagnose(trainer, rows);
    if (result != ZR_OK)
        return give_up(trainer, result);
    zr_trainer_drop_pass(trainer);
    return ZR_OK;
}

const float *zr_trainer_losses(const zr_trainer *trainer)
{
    return computes_losses(trainer) ? zr_staging_losses(&trainer->staging, 0) : NULL;
}

/* Copies the answer of the rank that has it, `mine`, to all ranks of `comm`. */
static zr_result share_answer(zr_trainer *trainer, zr_comm *comm, bool mine, float *out)
{
    zr_arena *host_arena = trainer->engine->options.host_arena;
    unsigned ranks = zr_comm_world(comm);
    size_t count = trainer->model->answer_count;
    bool *ends = NULL;
    float *all = NULL;
    zr_result result = zr_take(host_arena, ZR_TAG_OTHER, ranks * count, sizeof *all, (void **)&all);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, ranks, sizeof *ends, (void **)&ends);
    if (result == ZR_OK)
        result = zr_comm_host_all_gather(comm, &mine, sizeof mine, ends);
    if (result == ZR_OK)
        result = zr_comm_host_all_gather(comm, out, count * sizeof *out, all);
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
    if (result == ZR_OK)
        result = zr_flow_check_drained(trainer, __func__);
    if (result != ZR_OK)
        return result;
    const struct zr_model *model = trainer->model;
    bool elsewhere = trainer->ring && row == ZR_ROW_ELSEWHERE;
    if ((row >= rows && !elsewhere) ||
        (computes_losses(trainer) && !model->modules[model->modules_count - 1].type->answer))
        return zr_fail(ZR_ERR_INVALID, "%s() after row %zu of %zu, of a model that answers %zu numbers",
                       __func__, row, rows, model->answer_count);
    struct zr_list_run run = {
        .trainer = trainer, .rows = rows, .answer = out, .answer_row = elsewhere ? 0 : row};
    zr_rehearsal_rewind(trainer->activations.arena);
    result = zr_staging_send_inputs(&trainer->staging);
    if (result == ZR_OK)
        result = run_list(&run, &trainer->forward);
    zr_trainer_drop_pass(trainer);
    if (result == ZR_OK && trainer->pipelined)
        result = share_answer(trainer, trainer->engine->options.pipeline, computes_losses(trainer), out);
    return result == ZR_OK && trainer->ring ? share_answer(trainer, trainer->ring, !elsewhere, out) : result;
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
