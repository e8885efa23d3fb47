/* replica.c: builds scratch, engine and model in one order. */
#include "zero/replica.h"

#include <string.h>

#include "zero/layout.h"
#include "zero/comm/take.h"
#include "zero/timeline.h"

static zr_result open_context(struct zr_replica *replica)
{
    const struct zr_replica_options *o = &replica->options;
    struct zr_kernel_context *context = &replica->context;
    struct zr_kernel_limits limits;
    zr_result result;

    zr_gpt_limits(&o->shape, o->parallel.threads, &limits);
    context->parallel = o->parallel;
    context->isa = o->isa;
    context->precision = o->precision;
    context->flops = o->timeline ? &o->timeline->clock.flops : NULL;
    context->workspace_bytes = zr_kernel_workspace_bytes(&limits, o->isa);
    result = zr_take(o->arena, ZR_TAG_WORKSPACE, context->workspace_bytes, 1, &context->workspace);
    if (result != ZR_OK || o->kernels == zr_kernels_null())
        return result;
    if (zr_kernel_open(context) != 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "the kernels could not start: %s", zr_kernel_why());
    replica->context_open = true;
    return ZR_OK;
}

zr_result zr_replica_bucket_bytes(const struct zr_bucket_request *request, zr_arena *host_arena, size_t *out)
{
    enum { UNITS = 4, PARAMETERS = 16 };
    struct zr_gpt_shape one = *request->shape; /* all blocks are alike */
    struct zr_parameter parameters[PARAMETERS];
    struct zr_unit units[UNITS];
    struct zr_parameter_list list = {parameters, PARAMETERS, units, UNITS};
    struct zr_layout layout;
    size_t largest = 0, element_bytes = zr_precision_bytes(request->precision);

    *out = request->cap_bytes;
    one.layers = 1;
    zr_assert(zr_gpt_parameters_count(&one) == PARAMETERS && zr_gpt_units_count(&one) == UNITS);
    zr_gpt_describe(&one, parameters, units);
    zr_result result = zr_layout_make(&layout, &(struct zr_layout_request){.list = &list,
                                                                           .world = request->world,
                                                                           .precision = request->precision,
                                                                           .host_arena = host_arena});
    if (result != ZR_OK)
        return result;
    for (size_t u = 0; u < layout.units_count; u++)
        largest = layout.units[u].padded_elements > largest ? layout.units[u].padded_elements : largest;
    zr_layout_end(&layout);
    if (largest * element_bytes < request->cap_bytes)
        *out = largest * element_bytes;
    return ZR_OK;
}

zr_result zr_replica_open(struct zr_replica *out, const struct zr_replica_options *options)
{
    struct zr_parameter_list list = {.parameters_count = zr_gpt_parameters_count(&options->shape),
                                     .units_count = zr_gpt_units_count(&options->shape)};
    struct zr_parameter *parameters = NULL;
    struct zr_unit *units = NULL;
    zr_result result = zr_gpt_shape_check(&options->shape);

    memset(out, 0, sizeof *out);
    out->options = *options;
    if (result == ZR_OK)
        result = open_context(out);
    if (result == ZR_OK)
        result = zr_take(options->host_arena, ZR_TAG_OTHER, list.parameters_count, sizeof *parameters,
                         (void **)&parameters);
    if (result == ZR_OK)
        result = zr_take(options->host_arena, ZR_TAG_OTHER, list.units_count, sizeof *units, (void **)&units);
    if (result == ZR_OK) {
        zr_gpt_describe(&options->shape, parameters, units);
        list.parameters = parameters;
        list.units = units;
        result = zr_engine_create(&out->engine,
                                  &(struct zr_engine_options){.arena = options->arena,
                                                              .host_arena = options->host_arena,
                                                              .kernels = options->kernels,
                                                              .context = &out->context,
                                                              .comm = options->comm,
                                                              .list = list,
                                                              .stage = options->stage,
                                                              .micro_batches = options->micro_batches,
                                                              .reduce = options->reduce,
                                                              .precision = options->precision,
                                                              .loss_scaling = options->loss_scaling,
                                                              .seed = options->seed,
                                                              .optimizer = options->optimizer,
                                                              .timeline = options->timeline});
    }
    zr_drop(options->host_arena, &units);
    zr_drop(options->host_arena, &parameters);
    if (result == ZR_OK)
        result = zr_gpt_create(&out->model, &(struct zr_gpt_options){.shape = options->shape,
                                                                     .micro_batches = options->micro_batches,
                                                                     .engine = out->engine,
                                                                     .arena = options->arena,
                                                                     .host_arena = options->host_arena,
                                                                     .kernels = options->kernels,
                                                                     .context = &out->context});
    if (result != ZR_OK)
        zr_replica_close(out);
    return result;
}

void zr_replica_close(struct zr_replica *replica)
{
    if (!replica->options.arena)
        return;
    zr_gpt_destroy(replica->model);
    zr_engine_destroy(replica->engine);
    if (replica->context_open)
        zr_kernel_close(&replica->context);
    zr_drop(replica->options.arena, &replica->context.workspace);
    memset(replica, 0, sizeof *replica);
}
