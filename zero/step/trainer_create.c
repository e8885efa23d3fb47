/* trainer_create.c: creates and destroys a trainer. */
#include "zero/step/trainer.h"

#include <string.h>

#include "alloc/base/option.h"
#include "zero/step/frames.h"
#include "zero/step/module_pass.h"

/* Makes the steps whose results are deferred. */
static zr_result defer(zr_trainer *trainer)
{
    static const struct zr_action_transform *const more[ZR_GRAPH_STATES] = {
        [ZR_GRAPH_RECORDS] = &zr_schedule_captured, [ZR_GRAPH_REPEATS] = &zr_schedule_launched};
    struct zr_actions *lists = trainer->deferred;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < ZR_GRAPH_STATES && result == ZR_OK; i++) {
        lists[i].host_arena = trainer->step.host_arena;
        zr_actions_derive(&lists[i], more[i] ? &lists[ZR_GRAPH_NONE] : &trainer->step,
                          more[i] ? more[i] : &zr_schedule_deferred);
        result = lists[i].result;
    }
    return result;
}

struct zr_schedule_request zr_trainer_schedule_request(const zr_trainer *trainer)
{
    const struct zr_engine_options *o = &trainer->engine->options;
    return (struct zr_schedule_request){.model = trainer->model,
                                        .micro_batches = o->micro_batches,
                                        .prefetch_distance = o->prefetch_distance,
                                        .recomputes = trainer->activations.recomputes,
                                        .fetch_distance =
                                            zr_checkpoints_distance(&trainer->activations.checkpoints),
                                        .cut = trainer->pipelined ? &trainer->cut : NULL,
                                        .order = &trainer->order,
                                        .end = &trainer->engine->step,
                                        .host_arena = o->host_arena};
}

static zr_result make_lists(zr_trainer *trainer)
{
    const struct zr_schedule_request request = zr_trainer_schedule_request(trainer);
    zr_result result = zr_schedule_step(&trainer->step, &request);
    if (result == ZR_OK)
        result = zr_schedule_forward(&trainer->forward, &request);
    trainer->add_loss = zr_list_run_add_loss;
    if (result == ZR_OK && trainer->pipelined && trainer->engine->speculation.units_count > 0) {
        zr_actions_change(&trainer->step, &zr_schedule_collected_first);
        result = trainer->step.result;
    }
    if (result == ZR_OK && zr_engine_defers(trainer->engine))
        return defer(trainer);
    if (result == ZR_OK && trainer->engine->host_invisible && trainer->engine->state_tier->offloaded) {
        trainer->add_loss = zr_list_run_bring_loss;
        zr_actions_change(&trainer->step, &zr_schedule_with_gradients);
        result = trainer->step.result;
    }
    return result;
}

/* Fills in the model's constant inputs and zeroes the others. */
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
    zr_module_pass_open(&(struct zr_list_run){.trainer = trainer, .rows = model->rows}, 0,
                        zr_frame_place(trainer, 0, 0), &pass);
    return result == ZR_OK && model->prepare ? model->prepare(&pass) : result;
}

/* Creates this pipeline rank's part of the model, its order of micro-batches and its channels. */
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
        result = zr_channels_open(&trainer->channels, &trainer->cut, pipeline, engine);
    zr_flow_open(trainer, pipeline);
    trainer->pipelined = true;
    trainer->model = &trainer->cut.model;
    return result;
}

/* Numbers the frames of all parts and allocates tickets of their transfers. */
static zr_result count_frames(zr_trainer *trainer, const struct zr_engine_options *engine, unsigned *frames)
{
    zr_result result = ZR_OK;
    *frames = 1;
    if (!trainer->pipelined)
        return ZR_OK;
    *frames = 0;
    for (unsigned p = 0; p < trainer->cut.parts_count; p++) {
        trainer->first_frame[p] = *frames;
        *frames += trainer->order.held_max[p];
    }
    result = zr_take(engine->host_arena, ZR_TAG_OTHER, *frames, sizeof *trainer->inputs,
                     (void **)&trainer->inputs);
    if (result == ZR_OK)
        result = zr_take(engine->host_arena, ZR_TAG_OTHER, *frames, sizeof *trainer->gradients,
                         (void **)&trainer->gradients);
    if (result == ZR_OK) {
        trainer->messages_count = *frames;
        memset(trainer->inputs, 0, *frames * sizeof *trainer->inputs);
        memset(trainer->gradients, 0, *frames * sizeof *trainer->gradients);
    }
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

/* Weights read a module's input long after backward, when a stored checkpoint's buffer is needed again. */
static zr_result check_split(const zr_trainer *trainer)
{
    if (!trainer->pipelined || trainer->order.last != ZR_PIPELINE_WEIGHTS ||
        !trainer->activations.checkpoints.stores)
        return ZR_OK;
    return zr_fail(ZR_ERR_INVALID,
                   "a zero-bubble schedule keeps activation checkpoints until the gradients of "
                   "parameters are computed; it excludes partitioned and offloaded checkpoints");
}

static zr_result open_engine(zr_trainer *trainer, struct zr_engine_options *engine)
{
    const struct zr_parameter_list *list = &trainer->model->list;
    engine->list = *list;
    engine->sharing = trainer->channels.sharing;
    engine->own_norm = trainer->flow.asynchronous;
    if (trainer->flow.asynchronous)
        engine->stashed_versions =
            zr_pipeline_stashed(&trainer->flow.pipeline, trainer->cut.ranks, trainer->cut.rank);
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
        zr_trainer_drop_pass(trainer);
    if (trainer->engine)
        zr_step_graph_drop(trainer);
    for (unsigned i = 0; i < ZR_GRAPH_STATES; i++)
        zr_actions_drop(&trainer->deferred[i]);
    zr_flow_close(trainer);
    zr_actions_drop(&trainer->forward);
    zr_actions_drop(&trainer->step);
    zr_activations_close(&trainer->activations);
    zr_staging_close(&trainer->staging);
    zr_drop(host_arena, &trainer->parameters);
    zr_engine_destroy(trainer->engine);
    zr_frames_drop(trainer);
    zr_channels_close(&trainer->channels);
    zr_drop(host_arena, &trainer->gradients);
    zr_drop(host_arena, &trainer->inputs);
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
        return zr_fail(ZR_ERR_INVALID, "%s(): options, an arena or out is NULL", __func__);
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
    /* A plan may be of fewer layers than the run, without those that are trained. */
    trainer->frozen = engine.kernels && engine.kernels->executes && zr_model_is_frozen(own.model);
    trainer->ring = own.ring;
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
        result = check_split(trainer);
    if (result == ZR_OK)
        result = make_lists(trainer);
    if (result == ZR_OK)
        result = zr_staging_open(&trainer->staging, trainer->engine, trainer->model, &trainer->activations,
                                 zr_flow_loaded(trainer));
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
