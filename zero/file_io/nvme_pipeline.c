/* nvme_pipeline.c: read-ahead and write-behind over slots of memory. See nvme_pipeline.h.
 *
 * A read starts after the writes of the units that occupied its place, and after the previous pass's write of
 * the same extent. Writes are ordered one after another, so the last event covers all. The file's queue
 * enforces this; only take() and end() wait. */
#include <string.h>

#include "alloc/base/error.h"
#include "zero/file_io/nvme_pipeline.h"

/* Place of a unit in [unit, next). */
static struct zr_nvme_place *place_of(struct zr_nvme_pipeline *pipeline, unsigned unit)
{
    return &pipeline->places[(pipeline->turn - (pipeline->next - unit)) % ZR_NVME_PLACES];
}

static bool overlap(uint64_t a, uint64_t b, size_t a_bytes, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Finds a place for `next`; false: none is free. */
static bool find_place(struct zr_nvme_pipeline *pipeline, size_t *out)
{
    size_t bytes = pipeline->units[pipeline->next].bytes, slot_bytes = pipeline->buffer_bytes;
    *out = pipeline->free_bytes;
    if (bytes > 0 && *out % slot_bytes + bytes > slot_bytes)
        *out += slot_bytes - *out % slot_bytes;
    if (*out >= slot_bytes * pipeline->buffers_count)
        *out = 0;
    if (pipeline->next - pipeline->unit == ZR_NVME_PLACES)
        return false;
    for (unsigned unit = pipeline->unit; unit < pipeline->next; unit++) {
        const struct zr_nvme_place *other = place_of(pipeline, unit);
        if (overlap(*out, other->at_bytes, bytes, other->bytes))
            return false;
    }
    return true;
}

static zr_nvme_event last_conflicting_write(const struct zr_nvme_pipeline *pipeline, size_t at_bytes,
                                            const struct zr_nvme_unit *unit)
{
    zr_nvme_event after = pipeline->earlier;
    for (unsigned i = 0; i < ZR_NVME_PLACES; i++) {
        const struct zr_nvme_place *other = &pipeline->places[i];
        if (other->write > after &&
            (overlap(at_bytes, other->at_bytes, unit->bytes, other->bytes) ||
             overlap(unit->offset_bytes, other->written_bytes, unit->bytes, other->bytes)))
            after = other->write;
    }
    return after;
}

static zr_result start_read(struct zr_nvme_pipeline *pipeline, size_t at_bytes)
{
    const struct zr_nvme_unit *unit = &pipeline->units[pipeline->next];
    struct zr_nvme_place *place = &pipeline->places[pipeline->turn % ZR_NVME_PLACES];
    zr_nvme_event after = last_conflicting_write(pipeline, at_bytes, unit);
    if (place->write > pipeline->earlier)
        pipeline->earlier = place->write;
    *place = (struct zr_nvme_place){.at_bytes = at_bytes, .bytes = unit->bytes};
    if (pipeline->starts)
        pipeline->starts(pipeline->state, pipeline->next);
    pipeline->free_bytes = at_bytes + unit->bytes;
    pipeline->next++;
    pipeline->turn++;
    if (unit->bytes == 0 || !pipeline->io)
        return ZR_OK;
    return zr_nvme_read(pipeline->io,
                        &(struct zr_nvme_extent){.offset_bytes = unit->offset_bytes,
                                                 .memory = (char *)pipeline->buffers + at_bytes,
                                                 .bytes = unit->bytes,
                                                 .after = after},
                        &place->read);
}

/* Reads as far ahead as places are free, so the disk stays busy during a long computation. */
static zr_result start_reads(struct zr_nvme_pipeline *pipeline)
{
    zr_result result = ZR_OK;
    size_t at_bytes;
    while (result == ZR_OK && pipeline->next < pipeline->units_count && find_place(pipeline, &at_bytes))
        result = start_read(pipeline, at_bytes);
    return result;
}

zr_result zr_nvme_pipeline_begin(struct zr_nvme_pipeline *pipeline)
{
    if (!pipeline || (pipeline->units_count > 0 && !pipeline->units) || pipeline->running ||
        pipeline->buffers_count == 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "a pass over the offload file requires units and slots, and the previous pass must have "
            "ended");
    pipeline->unit = pipeline->next = 0;
    pipeline->taken = false;
    pipeline->running = pipeline->units_count > 0;
    return start_reads(pipeline);
}

zr_result zr_nvme_pipeline_take(struct zr_nvme_pipeline *pipeline, void **out)
{
    if (!pipeline || !out || !pipeline->running || pipeline->taken || pipeline->unit >= pipeline->units_count)
        return zr_fail(
            ZR_ERR_INVALID,
            "cannot acquire a unit of the offload file: none is left, or the last one was not released");
    if (pipeline->unit == pipeline->next) /* its read could not be started */
        return zr_fail(ZR_ERR_IO, "unit %u of the offload file was not read", pipeline->unit);
    const struct zr_nvme_place *place = place_of(pipeline, pipeline->unit);
    zr_result result = pipeline->io ? zr_nvme_wait(pipeline->io, place->read) : ZR_OK;
    if (result != ZR_OK)
        return result;
    pipeline->taken = true;
    *out = (char *)pipeline->buffers + place->at_bytes;
    return ZR_OK;
}

zr_result zr_nvme_pipeline_give(struct zr_nvme_pipeline *pipeline, bool changed)
{
    if (!pipeline || !pipeline->taken)
        return zr_fail(ZR_ERR_INVALID, "no unit of the offload file is acquired");
    struct zr_nvme_place *place = place_of(pipeline, pipeline->unit);
    unsigned number = pipeline->unit++;
    zr_result result = ZR_OK;
    place->written_bytes =
        pipeline->targets ? pipeline->targets[number] : pipeline->units[number].offset_bytes;
    pipeline->taken = false;
    pipeline->running = pipeline->unit < pipeline->units_count;
    if (changed && place->bytes > 0 && pipeline->io) {
        result = zr_nvme_write(pipeline->io,
                               &(struct zr_nvme_extent){.offset_bytes = place->written_bytes,
                                                        .memory = (char *)pipeline->buffers + place->at_bytes,
                                                        .bytes = place->bytes,
                                                        .after = pipeline->last},
                               &place->write);
        pipeline->last = result == ZR_OK ? place->write : pipeline->last;
    }
    return result == ZR_OK ? start_reads(pipeline) : result;
}

zr_result zr_nvme_pipeline_end(struct zr_nvme_pipeline *pipeline)
{
    zr_result result = ZR_OK;
    if (!pipeline)
        return ZR_OK;
    for (unsigned i = 0; i < ZR_NVME_PLACES && pipeline->io; i++) {
        zr_result read = zr_nvme_wait(pipeline->io, pipeline->places[i].read);
        result = result == ZR_OK ? read : result;
        pipeline->places[i].read = pipeline->places[i].write = 0;
    }
    if (pipeline->io) {
        zr_result written = zr_nvme_wait(pipeline->io, pipeline->last);
        result = result == ZR_OK ? written : result;
    }
    pipeline->last = pipeline->earlier = 0;
    pipeline->running = pipeline->taken = false;
    return result;
}
