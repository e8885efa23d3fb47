/* flow.c: see flow.h. */
#include "zero/step/trainer.h"

#include <string.h>

#include "zero/engine/update.h"
#include "zero/step/module_pass.h"

void zr_flow_open(zr_trainer *trainer, const struct zr_pipeline *pipeline)
{
    trainer->flow =
        (struct zr_flow){.pipeline = *pipeline, .asynchronous = zr_pipeline_is_asynchronous(pipeline)};
}

void zr_flow_close(zr_trainer *trainer)
{
    zr_actions_drop(&trainer->flow.list);
}

unsigned zr_flow_loaded(const zr_trainer *trainer)
{
    return trainer->engine->options.micro_batches +
           (trainer->flow.asynchronous ? trainer->cut.ranks - 1 - trainer->cut.rank : 0);
}

/* A list that other steps follow ends before the last sent tensors have been received. */
static zr_result make_list(zr_trainer *trainer, const struct zr_pipeline_request *order_request)
{
    static const struct zr_action_transform undrained = {.rules = {{ZR_ACTION_DRAIN}}};
    struct zr_flow *flow = &trainer->flow;
    struct zr_pipeline_order order;
    struct zr_schedule_request request = zr_trainer_schedule_request(trainer);
    zr_actions_drop(&flow->list);
    zr_result result = zr_pipeline_order_make(&order, order_request);
    if (result != ZR_OK)
        return result;
    request.order = &order;
    result = zr_schedule_step(&flow->list, &request);
    zr_pipeline_order_end(&order);
    if (result == ZR_OK && trainer->add_loss == zr_list_run_bring_loss)
        zr_actions_change(&flow->list, &zr_schedule_with_gradients);
    if (result == ZR_OK && flow->following > 0)
        zr_actions_change(&flow->list, &undrained);
    flow->made = *order_request;
    return result == ZR_OK ? flow->list.result : result;
}

zr_result zr_flow_begin(zr_trainer *trainer)
{
    struct zr_flow *flow = &trainer->flow;
    unsigned most = trainer->cut.ranks - 1, least = flow->following > 0 ? flow->following - 1 : 0;
    bool drained = flow->following == 0, ending = !drained && flow->following < most;
    flow->following = ending || flow->announced < least ? least
                      : flow->announced < most          ? flow->announced
                                                        : most;
    flow->announced = 0;
    const struct zr_pipeline_request request = {.pipeline = &flow->pipeline,
                                                .ranks = trainer->cut.ranks,
                                                .rank = trainer->cut.rank,
                                                .micro_batches = trainer->engine->options.micro_batches,
                                                .host_arena = trainer->engine->options.host_arena,
                                                .begun = flow->begun,
                                                .following = flow->following};
    zr_result result = drained ? zr_engine_versions_restart(trainer->engine) : ZR_OK;
    if (result == ZR_OK && (flow->list.count == 0 || flow->made.begun != request.begun ||
                            flow->made.following != request.following))
        result = make_list(trainer, &request);
    return result;
}

void zr_flow_end(zr_trainer *trainer)
{
    struct zr_flow *flow = &trainer->flow;
    unsigned micro_batches = trainer->engine->options.micro_batches;
    if (!flow->asynchronous)
        return;
    flow->begun = zr_pipeline_forward_end(&flow->made) - micro_batches;
    flow->first_micro_batch =
        flow->following > 0 ? (flow->first_micro_batch + micro_batches) % trainer->order.held_max[0] : 0;
}

zr_result zr_flow_check_drained(const zr_trainer *trainer, const char *call)
{
    return trainer->flow.following == 0
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID,
                         "%s() while %u more steps are expected: zr_trainer_expect_steps() announced them",
                         call, trainer->flow.following);
}

unsigned zr_flow_age(const zr_trainer *trainer, const struct zr_action *action)
{
    const struct zr_engine_options *engine = &trainer->engine->options;
    if (trainer->flow.pipeline.schedule == ZR_PIPELINE_2BW)
        return action->micro_batch < engine->micro_batches;
    if (!trainer->flow.asynchronous || action->kind != ZR_ACTION_FORWARD)
        return engine->stashed_versions;
    /* This stage has updated once more for each stage before it since the first began the micro-batch. */
    return trainer->flow.pipeline.vertical_sync ? trainer->cut.rank : 0;
}

bool zr_trainer_is_drained(const zr_trainer *trainer)
{
    return trainer && trainer->flow.following == 0 && !trainer->engine->outer.pending;
}

void zr_trainer_expect_steps(zr_trainer *trainer, unsigned steps)
{
    if (trainer)
        trainer->flow.announced = steps;
}
