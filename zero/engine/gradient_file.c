/* gradient_file.c: see gradients.h. Uses the store's file. */
#include "zero/engine/gradients.h"
#include "zero/engine/speculate.h"

#include <string.h>

static zr_nvme_io *io_of(const struct zr_engine *engine)
{
    return zr_state_file_io(&engine->state_tier->store);
}

static void *slot_of(const struct zr_gradient_file *file, unsigned slot)
{
    return (char *)file->slots + slot * file->slot_bytes;
}

/* Called when the pipeline starts to read a unit. */
static void count_read(void *state, unsigned place)
{
    struct zr_engine *engine = state;
    struct zr_gradient_file *file = &engine->gradient_file;
    file->read_seconds[place % ZR_NVME_PLACES] =
        zr_state_file_count(&engine->state_tier->store, file->pass[place].bytes);
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

zr_result zr_engine_gradient_file_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    const struct zr_offload_file *where = engine->state_tier->file;
    struct zr_gradient_file *file = &engine->gradient_file;
    size_t units = engine->layout.units_count;
    zr_result result;
    if (!where)
        return ZR_OK;
    size_t align = zr_state_file_align(where);
    result = zr_take(o->host_arena, ZR_TAG_OTHER, units, sizeof *file->extents, (void **)&file->extents);
    if (result == ZR_OK)
        result = zr_take(o->host_arena, ZR_TAG_OTHER, units, sizeof *file->pass, (void **)&file->pass);
    if (result != ZR_OK)
        return result;
    for (size_t u = 0; u < units; u++) {
        const struct zr_unit_state *state = &engine->units[u];
        size_t bytes = zr_state_file_round_up(
            state->place->in_file * state->kept_elements * engine->gradient_bytes, align);
        file->extents[u] = (struct zr_nvme_unit){file->bytes, bytes};
        file->bytes += bytes;
        file->slot_bytes = bytes > file->slot_bytes ? bytes : file->slot_bytes;
    }
    file->pipeline.buffers_count = zr_state_file_buffers(where);
    for (unsigned i = 0; i < file->pipeline.buffers_count; i++)
        file->owner[i] = file->used[i] = ZR_NO_UNIT;
    result = zr_state_file_take_slots(o->offload.host,
                                      &(struct zr_file_slots){file->slot_bytes, align,
                                                              file->pipeline.buffers_count,
                                                              "the slots of gradients"},
                                      &file->slots);
    file->pipeline.buffers = file->slots;
    file->pipeline.buffer_bytes = file->slot_bytes;
    file->pipeline.units = file->pass;
    file->pipeline.starts = count_read;
    file->pipeline.state = engine;
    return result;
}

void zr_engine_gradient_file_close(struct zr_engine *engine)
{
    zr_drop(engine->options.offload.host, &engine->gradient_file.slots);
    zr_drop(engine->options.host_arena, &engine->gradient_file.pass);
    zr_drop(engine->options.host_arena, &engine->gradient_file.extents);
}

/* ---- Writing to the file ------------------------------------------------------------------------------- */

static zr_result wait_for(const struct zr_engine *engine, zr_nvme_event event)
{
    return io_of(engine) ? zr_nvme_wait(io_of(engine), event) : ZR_OK;
}

/* Offset of a unit in the store's file. */
static struct zr_nvme_extent extent_of(const struct zr_engine *engine, size_t unit, void *memory)
{
    const struct zr_nvme_unit *extent = &engine->gradient_file.extents[unit];
    uint64_t base = engine->gradient_file.placed ? 0 : zr_state_file_base(&engine->state_tier->store);
    return (struct zr_nvme_extent){
        .offset_bytes = base + extent->offset_bytes, .memory = memory, .bytes = extent->bytes};
}

/* Acquires a slot before a reduction. */
static zr_result reserve_slot(struct zr_engine *engine, size_t unit)
{
    struct zr_gradient_file *file = &engine->gradient_file;
    zr_result result = ZR_OK;
    /* If the owner's reduction failed, the slot is free. */
    for (unsigned i = 0; i < file->pipeline.buffers_count; i++)
        if (file->owner[i] != ZR_NO_UNIT && !engine->units[file->owner[i]].staged)
            file->owner[i] = ZR_NO_UNIT;
    unsigned slot = file->turn++ % file->pipeline.buffers_count;
    /* Reductions end in the order of their start, so the slot's owner is among the oldest. */
    while (result == ZR_OK && file->owner[slot] != ZR_NO_UNIT)
        result = zr_engine_end_reduction(engine, engine->first_staged);
    if (result == ZR_OK) /* a speculative update reads the shard in the slot */
        result = zr_engine_speculation_await(engine, file->used[slot]);
    if (result == ZR_OK)
        result = wait_for(engine, file->writes[slot]);
    file->writes[slot] = 0;
    file->used[slot] = (unsigned)unit;
    file->owner[slot] = (unsigned)unit;
    zr_engine_set_kept(engine, unit, slot_of(file, slot));
    return result;
}

/* After a reduction: adds the unit's squares and starts to write the shard. */
static zr_result write_slot(struct zr_engine *engine, size_t unit)
{
    struct zr_gradient_file *file = &engine->gradient_file;
    unsigned slot = 0;
    while (slot < file->pipeline.buffers_count && file->owner[slot] != unit)
        slot++;
    if (slot == file->pipeline.buffers_count)
        return ZR_OK;
    zr_result result =
        engine->simulated ? ZR_OK : zr_engine_unit_squares(engine, unit, &engine->squares[unit]);
    file->owner[slot] = ZR_NO_UNIT;
    zr_engine_set_kept(engine, unit, NULL);
    zr_state_file_count(&engine->state_tier->store, file->extents[unit].bytes);
    struct zr_nvme_extent extent = extent_of(engine, unit, slot_of(file, slot));
    return result == ZR_OK && io_of(engine) ? zr_nvme_write(io_of(engine), &extent, &file->writes[slot])
                                            : result;
}

/* ---- Reading from the file ----------------------------------------------------------------------------- */

static zr_result await_writes(struct zr_engine *engine)
{
    struct zr_gradient_file *file = &engine->gradient_file;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < file->pipeline.buffers_count; i++) {
        zr_result ended = wait_for(engine, file->writes[i]);
        result = result == ZR_OK ? ended : result;
        file->writes[i] = 0;
    }
    file->turn = 0;
    return result;
}

static zr_result fetch_shard(struct zr_engine *engine, size_t unit)
{
    struct zr_gradient_file *file = &engine->gradient_file;
    zr_nvme_event event = 0;
    zr_result result = await_writes(engine);
    struct zr_nvme_extent extent = extent_of(engine, unit, file->slots);
    if (result == ZR_OK && io_of(engine))
        result = zr_nvme_read(io_of(engine), &extent, &event);
    if (result == ZR_OK && io_of(engine))
        result = wait_for(engine, event);
    zr_engine_set_kept(engine, unit, file->slots);
    return result;
}

zr_result zr_engine_gradients_begin(struct zr_engine *engine)
{
    struct zr_gradient_file *file = &engine->gradient_file;
    if (file->bytes == 0)
        return ZR_OK;
    zr_result result = await_writes(engine);
    if (result == ZR_OK && io_of(engine) && !file->placed) /* add the store's base to the offsets once */
        for (size_t u = 0; u < engine->layout.units_count; u++)
            file->extents[u].offset_bytes = extent_of(engine, u, NULL).offset_bytes;
    file->placed = file->placed || io_of(engine);
    file->pass_count = file->pass_at = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_nvme_unit extent = file->extents[u];
        if (extent.bytes == 0)
            continue;
        if (zr_engine_speculation_holds(engine, u))
            extent.bytes = 0;
        file->pass[file->pass_count++] = extent;
    }
    file->pipeline.units_count = file->pass_count;
    file->pipeline.io = io_of(engine);
    return result == ZR_OK ? zr_nvme_pipeline_begin(&file->pipeline) : result;
}

static zr_result take_shard(struct zr_engine *engine, size_t unit)
{
    struct zr_gradient_file *file = &engine->gradient_file;
    unsigned place = file->pass_at++;
    void *at = NULL;
    if (file->pass[place].bytes > 0)
        zr_state_file_wait_by_clock(&engine->state_tier->store, file->read_seconds[place % ZR_NVME_PLACES]);
    zr_result result = zr_nvme_pipeline_take(&file->pipeline, &at);
    zr_engine_set_kept(engine, unit, at);
    return result;
}

static zr_result give_shard(struct zr_engine *engine, size_t unit)
{
    zr_engine_set_kept(engine, unit, NULL);
    return zr_nvme_pipeline_give(&engine->gradient_file.pipeline, false);
}

zr_result zr_engine_gradients_end(struct zr_engine *engine)
{
    return zr_nvme_pipeline_end(&engine->gradient_file.pipeline);
}

/* No squares: write_slot() has counted them. */
const struct zr_gradient_place zr_gradients_filed = {.in_file = true,
                                                     .reserve = reserve_slot,
                                                     .put = write_slot,
                                                     .take = take_shard,
                                                     .give = give_shard,
                                                     .fetch = fetch_shard};
