/* parameter_file.c: parameters in an offload file: see parameter_tier.h. */
#include "zero/engine/parameter_tier.h"

#include <string.h>

#include "alloc/base/system/os.h"
#include "zero/engine/offload.h"

/* ---- Open and close ------------------------------------------------------------------------------------ */

static void lay_out(struct zr_engine *engine, size_t align_bytes)
{
    struct zr_parameter_file *file = &engine->parameter_file;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_unit_state *state = &engine->units[u];
        size_t bytes = state->parameters->in_file * state->parameters_count * engine->parameter_bytes;
        bytes = zr_state_file_round_up(bytes, align_bytes);
        file->extents[u] = (struct zr_parameter_extent){.offset_bytes = file->bytes, .bytes = bytes};
        file->bytes += bytes;
        file->slot_bytes = bytes > file->slot_bytes ? bytes : file->slot_bytes;
    }
}

zr_result zr_engine_parameter_file_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    const struct zr_offload_file *where = o->offload.parameters_file;
    struct zr_parameter_file *file = &engine->parameter_file;
    if (!where)
        return ZR_OK;
    size_t align_bytes = zr_state_file_align(where);
    zr_result result = zr_take(o->host_arena, ZR_TAG_OTHER, engine->layout.units_count, sizeof *file->extents,
                               (void **)&file->extents);
    if (result != ZR_OK)
        return result;
    lay_out(engine, align_bytes);
    if (file->bytes == 0)
        return ZR_OK;
    file->slots_count = engine->gathered_max;
    for (unsigned i = 0; i < file->slots_count; i++)
        file->slots[i] = (struct zr_parameter_slot){.unit = ZR_NO_UNIT, .file = file};
    result = zr_state_file_take_slots(
        o->offload.host,
        &(struct zr_file_slots){file->slot_bytes, align_bytes, file->slots_count, "the slots of parameters"},
        &file->memory);
    if (result != ZR_OK || engine->simulated)
        return result;
    const struct zr_nvme_buffer buffer = {file->memory, file->slots_count * file->slot_bytes};
    return zr_nvme_open(&file->io, &(struct zr_nvme_options){.folder = {where->folder, where->force},
                                                             .file_bytes = file->bytes,
                                                             .host_arena = o->host_arena,
                                                             .buffers = &buffer,
                                                             .buffers_count = 1,
                                                             .depth = where->depth,
                                                             .log = where->log,
                                                             .log_state = where->log_state});
}

void zr_engine_parameter_file_close(struct zr_engine *engine)
{
    struct zr_parameter_file *file = &engine->parameter_file;
    zr_nvme_close(file->io);
    file->io = NULL;
    zr_drop(engine->options.offload.host, &file->memory);
    zr_drop(engine->options.host_arena, &file->extents);
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

static struct zr_parameter_slot *slot_of(struct zr_engine *engine, size_t unit)
{
    struct zr_parameter_file *file = &engine->parameter_file;
    for (unsigned i = 0; i < file->slots_count; i++)
        if (file->slots[i].unit == unit)
            return &file->slots[i];
    return NULL;
}

static void *memory_of(const struct zr_parameter_file *file, const struct zr_parameter_slot *slot)
{
    return (char *)file->memory + (size_t)(slot - file->slots) * file->slot_bytes;
}

/* Waits for the last transfer of a slot. Blocks the engine's thread. */
static zr_result wait_for_slot(struct zr_parameter_file *file, const struct zr_parameter_slot *slot)
{
    bool passed = true;
    zr_comm_clock_wait_disk(file->clock, slot->end_seconds);
    zr_result result = file->io ? zr_nvme_poll(file->io, slot->event, &passed) : ZR_OK;
    if (result != ZR_OK || passed)
        return result;
    uint64_t start_ns = zr_os_now_ns();
    result = zr_nvme_wait(file->io, slot->event);
    file->waited_ns += zr_os_now_ns() - start_ns;
    return result;
}

/* Takes the next slot; waits for its last user. */
static zr_result next_slot(struct zr_engine *engine, size_t unit, struct zr_parameter_slot **out)
{
    struct zr_parameter_file *file = &engine->parameter_file;
    struct zr_parameter_slot *slot = &file->slots[file->turn++ % file->slots_count];
    zr_result result = slot->unit == ZR_NO_UNIT ? ZR_OK : zr_engine_await_gather(engine, slot->unit);
    if (result == ZR_OK)
        result = wait_for_slot(file, slot);
    slot->unit = (unsigned)unit;
    *out = slot;
    return result;
}

void zr_engine_parameter_let_go(struct zr_engine *engine, size_t unit)
{
    struct zr_parameter_slot *slot = slot_of(engine, unit);
    if (slot)
        slot->unit = ZR_NO_UNIT;
}

/* ---- Reading from the file ----------------------------------------------------------------------------- */

/* The communicator calls this function on the thread that executes the gather. */
static zr_result wait_before_gather(void *state)
{
    const struct zr_parameter_slot *slot = state;
    return slot->file->io ? zr_nvme_wait(slot->file->io, slot->event) : ZR_OK;
}

static struct zr_nvme_extent extent_of(struct zr_parameter_file *file, size_t unit,
                                       const struct zr_parameter_slot *slot)
{
    const struct zr_parameter_extent *extent = &file->extents[unit];
    return (struct zr_nvme_extent){.offset_bytes = extent->offset_bytes,
                                   .memory = memory_of(file, slot),
                                   .bytes = extent->bytes,
                                   .after = extent->written};
}

/* Starts to read a shard after its pending write. */
static zr_result read_shard(struct zr_engine *engine, size_t unit, struct zr_parameter_source *out)
{
    struct zr_parameter_file *file = &engine->parameter_file;
    struct zr_parameter_slot *slot;
    zr_result result = next_slot(engine, unit, &slot);
    if (result != ZR_OK)
        return result;
    struct zr_nvme_extent extent = extent_of(file, unit, slot);
    file->moved_bytes += extent.bytes;
    slot->event = 0;
    slot->end_seconds = zr_comm_clock_disk(file->clock, ZR_CLOCK_PARAMETERS, extent.bytes);
    slot->before = (struct zr_comm_before){wait_before_gather, slot, slot->end_seconds};
    *out = (struct zr_parameter_source){extent.memory, &slot->before};
    return file->io ? zr_nvme_read(file->io, &extent, &slot->event) : ZR_OK;
}

zr_result zr_engine_parameter_await(struct zr_engine *engine, size_t unit)
{
    struct zr_parameter_slot *slot = slot_of(engine, unit);
    return slot ? wait_for_slot(&engine->parameter_file, slot) : ZR_OK;
}

/* ---- Writing to the file ------------------------------------------------------------------------------- */

static zr_result take_slot(struct zr_engine *engine, size_t unit, void **out)
{
    struct zr_parameter_slot *slot;
    zr_result result = next_slot(engine, unit, &slot);
    *out = memory_of(&engine->parameter_file, slot);
    return result;
}

/* Starts to write the unit's slot to the file. */
static zr_result write_slot(struct zr_engine *engine, size_t unit)
{
    struct zr_parameter_file *file = &engine->parameter_file;
    struct zr_parameter_slot *slot = slot_of(engine, unit);
    if (!slot)
        return ZR_OK;
    struct zr_nvme_extent extent = extent_of(file, unit, slot);
    slot->unit = ZR_NO_UNIT;
    file->moved_bytes += extent.bytes;
    slot->end_seconds = zr_comm_clock_disk(file->clock, ZR_CLOCK_PARAMETERS, extent.bytes);
    zr_result result = file->io ? zr_nvme_write(file->io, &extent, &slot->event) : ZR_OK;
    file->extents[unit].written = slot->event;
    return result;
}

static zr_result put_shard(struct zr_engine *engine, size_t unit, const void *from)
{
    void *slot;
    zr_result result = take_slot(engine, unit, &slot);
    if (result == ZR_OK)
        result = zr_engine_copy(engine, slot, from,
                                engine->layout.units[unit].shard_elements * engine->parameter_bytes);
    return result == ZR_OK ? write_slot(engine, unit) : result;
}

/* The window is a slot for the whole shard. */
static zr_result open_slot(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                           struct zr_window *out)
{
    (void)owned;
    zr_result result = take_slot(engine, unit, &out->slot);
    if (zr_engine_is_low_precision(engine)) {
        out->values = (struct zr_numbers){out->slot, engine->options.precision};
        out->stale = true;
    }
    return result;
}

static zr_result close_slot(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                            const struct zr_window *window)
{
    zr_result copied = zr_engine_copy_masters(engine, owned, window, window->slot);
    return copied == ZR_OK ? write_slot(engine, unit) : copied;
}

static zr_result take_shard(struct zr_engine *engine, size_t unit, void **out)
{
    struct zr_parameter_source source = {NULL, NULL};
    zr_result result = read_shard(engine, unit, &source);
    *out = source.shard;
    return result == ZR_OK ? zr_engine_parameter_await(engine, unit) : result;
}

static zr_result give_shard(struct zr_engine *engine, size_t unit, bool changed)
{
    zr_result result = changed ? write_slot(engine, unit) : ZR_OK;
    zr_engine_parameter_let_go(engine, unit);
    return result;
}

const struct zr_parameter_tier zr_parameters_filed = {.on_host = true,
                                                      .in_file = true,
                                                      .get = read_shard,
                                                      .open = open_slot,
                                                      .close = close_slot,
                                                      .put = put_shard,
                                                      .take = take_shard,
                                                      .give = give_shard,
                                                      .confirm = put_shard};
