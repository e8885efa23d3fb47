/* trainer_state.c: creates workspace, model and trainer; see trainer_state.h. */
#include "zero/step/trainer_state.h"

#include <string.h>

#include "zero/comm/copies.h"
#include "zero/comm/take.h"
#include "zero/engine/compression.h"
#include "zero/engine/served.h"

static zr_result open_context(struct zr_trainer_state *state)
{
    const struct zr_trainer_state_options *o = &state->options;
    struct zr_kernel_context *context = &state->context;
    struct zr_kernel_limits limits;
    zr_result result;

    zr_shape_limits(&state->transformer.shape, o->parallel.threads, &limits);
    context->parallel = o->parallel;
    context->isa = o->isa;
    context->precision = o->precision;
    context->fp8 = o->shape.fp8;
    context->stream = o->stream;
    zr_comm_guard(o->mesh->world, context);
    context->flops = o->clock ? &o->clock->flops : NULL;
    context->workspace_bytes = o->kernels->workspace_bytes(&limits, o->isa);
    result = zr_take(o->arena, ZR_TAG_WORKSPACE, context->workspace_bytes, 1, &context->workspace);
    if (result != ZR_OK)
        return result;
    result = o->kernels->open(context);
    state->context_open = result == ZR_OK;
    return result == ZR_OK ? result : zr_fail(result, "the kernels cannot start: %s", zr_last_error());
}

/* Opens the context of host_kernels, with a workspace in the host tier. */
static zr_result open_host_context(struct zr_trainer_state *state)
{
    const struct zr_trainer_state_options *o = &state->options;
    struct zr_kernel_context *context = &state->host_context;
    if (!o->host_kernels || !o->offload.optimizer)
        return ZR_OK;
    context->parallel = o->parallel;
    context->isa = o->isa;
    context->precision = o->precision;
    context->workspace_bytes =
        o->host_kernels->workspace_bytes(&(struct zr_kernel_limits){.threads = o->parallel.threads}, o->isa);
    zr_result result =
        zr_take(o->offload.host, ZR_TAG_WORKSPACE, context->workspace_bytes, 1, &context->workspace);
    if (result == ZR_OK)
        result = o->host_kernels->open(context);
    state->host_context_open = result == ZR_OK;
    return result;
}

zr_result zr_trainer_state_bucket_bytes(const struct zr_bucket_request *request, zr_arena *host_arena,
                                        size_t *out)
{
    struct zr_shape one = *request->shape; /* one of the blocks, which all have the same size */
    struct zr_transformer transformer;
    struct zr_layout layout;
    size_t largest = 0, element_bytes = zr_precision_bytes(request->precision);

    *out = request->cap_bytes;
    one.layers = 1;
    zr_result result = zr_transformer_open(&transformer, &one, NULL, host_arena);
    if (result != ZR_OK)
        return result;
    result = zr_layout_make(&layout,
                            &(struct zr_layout_request){.list = &transformer.model.list,
                                                        .world = request->data,
                                                        .precision = request->precision,
                                                        .host_arena = host_arena,
                                                        .optimizer = zr_optimizer_of(request->optimizer)});
    if (result == ZR_OK) {
        for (size_t u = 0; u < layout.units_count; u++)
            largest = layout.units[u].padded_elements > largest ? layout.units[u].padded_elements : largest;
        zr_layout_end(&layout);
        if (largest * element_bytes < request->cap_bytes)
            *out = largest * element_bytes;
    }
    zr_transformer_close(&transformer);
    return result;
}

static zr_result open_differences(struct zr_trainer_state *state)
{
    const struct zr_layout *layout = &state->engine->layout;
    size_t largest = 0;
    for (size_t u = 0; u < layout->units_count; u++)
        largest = layout->units[u].padded_elements > largest ? layout->units[u].padded_elements : largest;
    zr_result result = zr_take(state->options.arena, ZR_TAG_OPTIMIZER, layout->pool_elements,
                               sizeof *state->old, (void **)&state->old);
    return result == ZR_OK ? zr_take(state->options.arena, ZR_TAG_COMM, largest, sizeof *state->difference,
                                     (void **)&state->difference)
                           : result;
}

zr_result zr_trainer_state_open(struct zr_trainer_state *out, const struct zr_trainer_state_options *options)
{
    size_t modules[ZR_PIPELINE_STAGES_MAX];
    struct zr_pipeline pipeline = {.comm = NULL};
    struct zr_outer outer = options->outer;
    outer.comm = options->mesh->outer;
    memset(out, 0, sizeof *out);
    out->options = *options;
    if (options->mesh->pipeline) {
        pipeline = zr_stages_pipeline(options->stages, modules);
        pipeline.comm = options->mesh->pipeline;
    }
    zr_result result =
        zr_transformer_open(&out->transformer, &options->shape, options->kernels, options->host_arena);
    if (result == ZR_OK)
        result = zr_trainable_check(&out->transformer);
    if (result == ZR_OK)
        result = zr_trainable_groups(&out->transformer, &out->options.optimizer);
    if (result == ZR_OK)
        result = open_context(out);
    if (result == ZR_OK)
        result = open_host_context(out);
    const struct zr_kernels *host_kernels = out->host_context_open ? options->host_kernels : NULL;
    if (result == ZR_OK)
        result = zr_trainer_create(
            &out->trainer,
            &(struct zr_trainer_options){
                .struct_bytes = sizeof(struct zr_trainer_options),
                .engine = &(struct zr_engine_options){.struct_bytes = sizeof(struct zr_engine_options),
                                                      .arena = options->arena,
                                                      .host_arena = options->host_arena,
                                                      .kernels = options->kernels,
                                                      .context = &out->context,
                                                      .comm = options->mesh->data,
                                                      .tensor = options->mesh->tensor,
                                                      .stage = options->stage,
                                                      .micro_batches = options->micro_batches,
                                                      .reduce = options->reduce,
                                                      .measures_squares = options->measures_squares,
                                                      .kept = options->kept,
                                                      .snapshots = options->snapshots,
                                                      .backup = options->mesh->backup,
                                                      .backup_distance = options->mesh->backup_distance,
                                                      .shares_parameters = options->shares_parameters,
                                                      .root_owns = options->root_owns,
                                                      .outer = outer,
                                                      .servers = options->servers,
                                                      .precision = options->precision,
                                                      .loss_scaling = options->loss_scaling,
                                                      .seed = options->seed,
                                                      .optimizer = out->options.optimizer,
                                                      .offload = options->offload,
                                                      .compression = options->compression,
                                                      .host_kernels = host_kernels,
                                                      .host_context = &out->host_context},
                .model = &out->transformer.model,
                .recompute = options->shape.recompute,
                .recompute_modules = options->shape.recompute_layers,
                .checkpoints = options->checkpoints,
                .pipeline = pipeline,
                .ring = options->mesh->ring});
    if (result == ZR_OK) {
        zr_comm *copies = out->trainer->activations.checkpoints.copies;
        out->engine = zr_trainer_engine(out->trainer);
        if (copies && options->clock)
            zr_copies_set_clock(copies, options->clock);
        if (options->clock)
            zr_engine_set_clock(out->engine, options->clock);
        if (options->differs)
            result = open_differences(out);
    }
    if (result != ZR_OK)
        zr_trainer_state_close(out);
    return result;
}

void zr_trainer_state_counters_get(const struct zr_trainer_state *state, struct zr_comm_counters *out)
{
    zr_mesh_counters_get(state->options.mesh, out);
    zr_channels_count(&state->trainer->channels, out);
    zr_engine_count_nodes(state->engine, out);
    if (zr_engine_is_served(state->engine))
        zr_comm_counters_add(state->engine->copies, out);
}

uint64_t zr_trainer_state_moved_bytes(const struct zr_trainer_state *state)
{
    return zr_checkpoints_moved_bytes(&state->trainer->activations.checkpoints) +
           zr_engine_host_moved_bytes(state->engine);
}

uint64_t zr_trainer_state_copies_exposed_ns(const struct zr_trainer_state *state)
{
    const struct zr_engine *engine = state->engine;
    zr_comm *worker = engine->speculation.worker;
    zr_comm *const copies[] = {state->trainer->activations.checkpoints.copies,
                               zr_engine_is_served(engine) ? NULL : engine->copies,
                               /* with state in a file, the file's waits include them */
                               engine->state_tier->file ? NULL : worker};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        struct zr_comm_counters counters = {0};
        if (copies[i])
            zr_comm_counters_get(copies[i], &counters);
        sum += counters.exposed_ns;
    }
    return sum;
}

void zr_trainer_state_close(struct zr_trainer_state *state)
{
    if (!state->options.arena)
        return;
    zr_drop(state->options.arena, &state->difference);
    zr_drop(state->options.arena, &state->old);
    zr_trainer_destroy(state->trainer);
    if (state->context_open)
        state->options.kernels->close(&state->context);
    zr_drop(state->options.arena, &state->context.workspace);
    if (state->host_context_open)
        state->options.host_kernels->close(&state->host_context);
    if (state->host_context.workspace)
        zr_drop(state->options.offload.host, &state->host_context.workspace);
    zr_transformer_close(&state->transformer);
    memset(state, 0, sizeof *state);
}
