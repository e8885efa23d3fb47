/* offload.c: see offload.h. */
#include "zero/engine/offload.h"

#include <stdatomic.h>

#include "zero/comm/comm.h"
#include "zero/comm/copies.h"
#include "zero/engine/parameter_tier.h"
#include "zero/engine/served.h"

/* ---- Open and close ------------------------------------------------------------------------------------ */

/* A bucket of the communicator, or the largest unit that comes from the host if smaller; shards can be cut at
 * multiples of it. */
static size_t bounce_elements(const struct zr_engine *engine)
{
    size_t bytes = engine->options.comm->options.bucket_bytes, largest = 0, align = 1;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        bool comes = engine->units[u].parameters == &zr_parameters_uploaded;
        size_t shard = engine->layout.units[u].shard_elements;
        largest = comes && shard > largest ? shard : largest;
        align = zr_layout_align(&engine->layout, u) > align ? zr_layout_align(&engine->layout, u) : align;
    }
    size_t max_elements = bytes / engine->parameter_bytes / align * align;
    if (max_elements == 0)
        max_elements = align;
    return largest < max_elements ? largest : max_elements;
}

zr_result zr_engine_offload_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    zr_result result = ZR_OK;
    if (!engine->state_tier->offloaded && !zr_engine_is_served(engine))
        return ZR_OK;
    engine->copies_context = *o->context; /* copies constant fields only */
    engine->copies_context.parallel = (struct zr_parallel){.threads = 1};
    engine->copies_context.flops = NULL;
    if (zr_engine_is_low_precision(engine)) {
        engine->bounce_elements = bounce_elements(engine);
        result = zr_take(o->offload.host, ZR_TAG_COMM, ZR_BOUNCE_BUFFERS * engine->bounce_elements,
                         engine->parameter_bytes, (void **)&engine->bounce);
    }
    return result != ZR_OK ? result
                           : zr_copies_create(&engine->copies,
                                              &(struct zr_comm_options){.arena = o->arena,
                                                                        .host_arena = o->host_arena,
                                                                        .kernels = o->kernels,
                                                                        .bucket_bytes = ZR_COMM_LINE_BYTES},
                                              o->context);
}

void zr_engine_offload_close(struct zr_engine *engine)
{
    if (engine->copies)
        zr_comm_destroy(engine->copies);
    engine->copies = NULL;
    zr_drop(engine->options.offload.host, &engine->bounce);
}

void zr_engine_get_file_report(const struct zr_engine *engine, struct zr_state_file_report *out)
{
    const struct zr_parameter_file *file = &engine->parameter_file;
    zr_state_store_get_report(&engine->state_tier->store, out);
    out->file_bytes += file->bytes;
    out->buffers_bytes += file->slots_count * file->slot_bytes;
    out->moved_bytes += file->moved_bytes;
    out->waited_ns += file->waited_ns + engine->speculation.waited_ns;
}

void zr_engine_get_delayed_report(const struct zr_engine *engine, struct zr_delayed_report *out)
{
    uint64_t waiting_ns = atomic_load(&engine->delayed.behind_ns),
             busy_ns = atomic_load(&engine->delayed.busy_ns);
    *out = (struct zr_delayed_report){.computing_seconds = (double)(busy_ns - waiting_ns) * 1e-9,
                                      .waiting_seconds = (double)waiting_ns * 1e-9};
}

void zr_engine_set_clock(struct zr_engine *engine, struct zr_comm_clock *clock)
{
    zr_copies_set_clock(engine->copies, clock);
    zr_copies_set_clock(engine->speculation.worker, clock);
    zr_state_store_set_clock(&engine->state_tier->store, clock);
    if (engine->simulated) {
        engine->parameter_file.clock = clock;
        engine->delayed.clock = clock;
    }
}

uint64_t zr_engine_host_moved_bytes(const struct zr_engine *engine)
{
    return engine->copies ? engine->moved_bytes + zr_copies_bytes(engine->copies) : 0;
}

/* ---- Gradients of one rank ----------------------------------------------------------------------------- */

/* Makes the user of a copy wait: the kernels' stream if copies have a stream, else the host. A failed copy
 * keeps its ticket, so later calls fail too. */
static zr_result wait_for(struct zr_engine *engine, zr_ticket *ticket)
{
    zr_result result = *ticket > 0 ? zr_comm_wait(engine->copies, *ticket) : ZR_OK;
    if (result == ZR_OK)
        *ticket = 0;
    return result;
}

zr_result zr_engine_host_waits_for(struct zr_engine *engine, zr_ticket *ticket)
{
    zr_result result = *ticket > 0 ? zr_copies_await(engine->copies, *ticket) : ZR_OK;
    return result == ZR_OK ? wait_for(engine, ticket) : result;
}

zr_result zr_engine_await_gradients(struct zr_engine *engine, size_t unit)
{
    return wait_for(engine, &engine->units[unit].gradient_copy);
}

zr_result zr_engine_await_parameters(struct zr_engine *engine, size_t unit)
{
    return wait_for(engine, &engine->units[unit].parameter_copy);
}

zr_result zr_engine_await_masters(struct zr_engine *engine, size_t unit)
{
    return zr_engine_host_waits_for(engine, &engine->units[unit].parameter_copy);
}

static size_t gradient_bytes(const struct zr_engine *engine, size_t unit)
{
    return engine->layout.units[unit].padded_elements * engine->gradient_bytes;
}

zr_result zr_engine_gradients_leave(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    return zr_copies_start(engine->copies,
                           &(struct zr_host_copy){.to = engine->units[unit].kept,
                                                  .from = state->staging,
                                                  .bytes = gradient_bytes(engine, unit),
                                                  .same_memory = !state->tier->offloaded},
                           &state->gradient_copy);
}

zr_result zr_engine_gradients_return(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_copies_start(engine->copies,
                                       &(struct zr_host_copy){.to = state->staging,
                                                              .from = engine->units[unit].kept,
                                                              .bytes = gradient_bytes(engine, unit),
                                                              .same_memory = !state->tier->offloaded},
                                       &state->gradient_copy);
    return result == ZR_OK ? zr_engine_await_gradients(engine, unit) : result;
}

static zr_result add_gradients(void *task_state, struct zr_kernel_context *context)
{
    struct zr_unit_state *state = task_state;
    struct zr_engine *engine = state->engine;
    size_t unit = (size_t)(state - engine->units);
    const void *own = state->staging;
    return engine->options.kernels->sum(context ? context : &engine->copies_context,
                                        &(struct zr_sum){.n = engine->layout.units[unit].padded_elements,
                                                         .from = &own,
                                                         .count = 1,
                                                         .precision = engine->options.precision,
                                                         .scale = 1,
                                                         .accumulate = state->adds,
                                                         .to = state->reduced});
}

zr_result zr_engine_gradients_add(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    state->engine = engine;
    state->adds = state->accumulated > 0;
    state->gradient_task = (struct zr_copies_task){
        .run = add_gradients, .state = state, .bytes = state->tier->offloaded * gradient_bytes(engine, unit)};
    return zr_copies_run(engine->copies, &state->gradient_task, &state->gradient_copy);
}
