/* graph.c: see graph.h. */
#include "zero/step/graph.h"

#include "kernels/streams.h"
#include "zero/comm/comm.h"
#include "zero/engine/onebit.h"
#include "zero/step/trainer.h"

static const struct zr_kernel_streams *streams_of(const struct zr_trainer *trainer)
{
    return trainer->engine->options.kernels->streams;
}

static void *stream_of(const struct zr_trainer *trainer)
{
    return trainer->engine->options.context->stream;
}

static uint64_t calls_of(const struct zr_trainer *trainer)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(trainer->engine->options.arena, &stats);
    return stats.backend_calls_count;
}

zr_result zr_step_graph_want(struct zr_trainer *trainer, bool wanted)
{
    struct zr_step_graph *self = &trainer->graph;
    struct zr_step_rates *rates = zr_staging_rates(&trainer->staging);
    if (wanted && (!rates || !zr_engine_defers(trainer->engine)))
        return zr_fail(
            ZR_ERR_INVALID,
            "CUDA graphs of steps require one rank per card, without offload, whose streams order all work");
    if (wanted && (trainer->engine->compression.node || zr_engine_is_onebit(trainer->engine)))
        return zr_fail(ZR_ERR_INVALID,
                       "CUDA graphs of steps exclude nodes of ranks and onebit: a graph has the "
                       "operations of one communicator, and the same in every step");
    zr_step_graph_drop(trainer);
    self->wanted = wanted;
    self->steady = false;
    trainer->engine->rates = wanted ? rates : NULL;
    return ZR_OK;
}

void zr_step_graph_drop(struct zr_trainer *trainer)
{
    struct zr_step_graph *self = &trainer->graph;
    self->steady = false; /* the next step may have to map memory */
    if (!self->graph)
        return;
    streams_of(trainer)->graph_destroy(self->graph);
    zr_arena_fix(trainer->engine->options.arena, false);
    self->graph = NULL;
}

/* Collective: all ranks capture a step, or none. Each rank only knows whether its own last step called the
 * driver. */
static zr_result agree_on_recording(const struct zr_trainer *trainer, bool *records)
{
    zr_comm *comm = trainer->engine->options.comm;
    bool mine = *records, all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(comm, &mine, sizeof mine, all);
    for (unsigned p = 0; p < zr_comm_world(comm) && result == ZR_OK; p++)
        *records = *records && all[p];
    return result;
}

zr_result zr_step_graph_begin(struct zr_trainer *trainer)
{
    struct zr_step_graph *self = &trainer->graph;
    struct zr_engine *engine = trainer->engine;
    zr_comm *comm = engine->options.comm;
    self->now = ZR_GRAPH_NONE;
    if (!self->wanted)
        return ZR_OK;
    self->calls_count = calls_of(trainer);
    if (self->graph && self->loss_scale != zr_engine_loss_scale(engine)) {
        zr_step_graph_drop(trainer);
        self->steady = true; /* the dropped graph's memory is mapped, so this step is captured */
    }
    bool graph = self->graph || self->steady;
    zr_result result = self->graph ? ZR_OK : agree_on_recording(trainer, &graph);
    if (result != ZR_OK || !graph)
        return result;
    result = zr_engine_join(engine); /* a graph cannot wait for earlier events */
    if (result == ZR_OK && self->graph) {
        self->now = ZR_GRAPH_REPEATS;
        return zr_comm_again(comm);
    }
    if (result == ZR_OK)
        result = streams_of(trainer)->capture_begin(stream_of(trainer));
    if (result == ZR_OK)
        zr_comm_record(comm, ZR_COMM_BEGINS);
    self->now = result == ZR_OK ? ZR_GRAPH_RECORDS : ZR_GRAPH_NONE;
    self->loss_scale = zr_engine_loss_scale(engine);
    return result;
}

static zr_result drop_failed(struct zr_trainer *trainer, zr_result result)
{
    if (result == ZR_OK)
        return ZR_OK;
    zr_comm_record(trainer->engine->options.comm, ZR_COMM_DROPS);
    return zr_fail(result, "cannot run the step as a CUDA graph: %s", zr_last_error());
}

zr_result zr_step_graph_record(struct zr_trainer *trainer)
{
    struct zr_step_graph *self = &trainer->graph;
    zr_result result = zr_engine_join(trainer->engine);
    self->now = ZR_GRAPH_NONE;
    zr_result ended = streams_of(trainer)->capture_end(stream_of(trainer), &self->graph);
    zr_comm_record(trainer->engine->options.comm, ended == ZR_OK ? ZR_COMM_ENDS : ZR_COMM_DROPS);
    if (result == ZR_OK)
        result = ended;
    if (result == ZR_OK)
        result = zr_arena_fix(trainer->engine->options.arena, true);
    return drop_failed(trainer, result);
}

zr_result zr_step_graph_launch(struct zr_trainer *trainer)
{
    struct zr_step_graph *self = &trainer->graph;
    zr_result result = streams_of(trainer)->graph_launch(self->graph, stream_of(trainer));
    self->launches_count += result == ZR_OK;
    return drop_failed(trainer, result);
}

void zr_step_graph_end(struct zr_trainer *trainer, bool well)
{
    struct zr_step_graph *self = &trainer->graph;
    if (self->now == ZR_GRAPH_RECORDS) {
        streams_of(trainer)->capture_end(stream_of(trainer), &self->graph);
        if (self->graph)
            streams_of(trainer)->graph_destroy(self->graph);
        self->graph = NULL;
        zr_comm_record(trainer->engine->options.comm, ZR_COMM_DROPS);
    }
    self->steady = self->wanted && well && calls_of(trainer) == self->calls_count;
    self->now = ZR_GRAPH_NONE;
}
