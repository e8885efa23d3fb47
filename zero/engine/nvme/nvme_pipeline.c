/* nvme_pipeline.c: read-ahead and write-behind over some buffers. See nvme_pipeline.h.
 *
 * Of N buffers unit n uses buffer n modulo N. Its read comes after the write of unit n - N, which used it
 * before; the file's own queue sees to that, so nothing here waits but take() and end(). */
#include <string.h>

#include "alloc/base/error.h"
#include "zero/engine/nvme/nvme_pipeline.h"

static zr_result start_read(struct zr_nvme_pipeline *pipeline, unsigned unit)
{
    unsigned slot = unit % pipeline->buffers_count;
    if (unit >= pipeline->units_count)
        return ZR_OK;
    pipeline->reads[slot] = 0;
    if (pipeline->units[unit].bytes == 0)
        return ZR_OK;
    return zr_nvme_read(pipeline->io,
                        &(struct zr_nvme_extent){.offset_bytes = pipeline->units[unit].offset_bytes,
                                                 .memory = pipeline->buffers[slot],
                                                 .bytes = pipeline->units[unit].bytes,
                                                 .after = pipeline->writes[slot]},
                        &pipeline->reads[slot]);
}

zr_result zr_nvme_pipeline_begin(struct zr_nvme_pipeline *pipeline)
{
    if (!pipeline || !pipeline->io || (pipeline->units_count > 0 && !pipeline->units) || pipeline->running ||
        pipeline->buffers_count == 0 || pipeline->buffers_count > ZR_NVME_BUFFERS_MOST)
        return zr_fail(ZR_ERR_INVALID,
                       "a pass over the offload file needs its file, buffers and units, and none before it "
                       "that runs");
    zr_result result = ZR_OK;
    pipeline->unit = 0;
    pipeline->taken = false;
    pipeline->running = pipeline->units_count > 0;
    for (unsigned unit = 0; unit < pipeline->buffers_count && result == ZR_OK; unit++)
        result = start_read(pipeline, unit);
    return result;
}

zr_result zr_nvme_pipeline_take(struct zr_nvme_pipeline *pipeline, void **out)
{
    if (!pipeline || !out || !pipeline->running || pipeline->taken || pipeline->unit >= pipeline->units_count)
        return zr_fail(ZR_ERR_INVALID,
                       "no unit of the offload file can be taken: none is left, or the last was not "
                       "given back");
    unsigned slot = pipeline->unit % pipeline->buffers_count;
    zr_result result = zr_nvme_wait(pipeline->io, pipeline->reads[slot]);
    if (result != ZR_OK)
        return result;
    pipeline->taken = true;
    *out = pipeline->buffers[slot];
    return ZR_OK;
}

zr_result zr_nvme_pipeline_give(struct zr_nvme_pipeline *pipeline, bool changed)
{
    if (!pipeline || !pipeline->taken)
        return zr_fail(ZR_ERR_INVALID, "no unit of the offload file is taken");
    unsigned slot = pipeline->unit % pipeline->buffers_count;
    unsigned number = pipeline->unit++;
    const struct zr_nvme_unit *unit = &pipeline->units[number];
    zr_result result = ZR_OK;
    pipeline->taken = false;
    pipeline->running = pipeline->unit < pipeline->units_count;
    if (changed && unit->bytes > 0)
        result = zr_nvme_write(pipeline->io,
                               &(struct zr_nvme_extent){.offset_bytes = pipeline->targets
                                                                            ? pipeline->targets[number]
                                                                            : unit->offset_bytes,
                                                        .memory = pipeline->buffers[slot],
                                                        .bytes = unit->bytes,
                                                        .after = pipeline->reads[slot]},
                               &pipeline->writes[slot]);
    /* As far ahead as there are buffers: the disk has work while one unit's computing takes longer. */
    return result == ZR_OK ? start_read(pipeline, number + pipeline->buffers_count) : result;
}

zr_result zr_nvme_pipeline_end(struct zr_nvme_pipeline *pipeline)
{
    zr_result result = ZR_OK;
    if (!pipeline || !pipeline->io)
        return ZR_OK;
    for (unsigned slot = 0; slot < pipeline->buffers_count; slot++) {
        zr_result read = zr_nvme_wait(pipeline->io, pipeline->reads[slot]);
        zr_result written = zr_nvme_wait(pipeline->io, pipeline->writes[slot]);
        if (result == ZR_OK)
            result = read != ZR_OK ? read : written;
        pipeline->reads[slot] = pipeline->writes[slot] = 0;
    }
    pipeline->running = pipeline->taken = false;
    return result;
}
