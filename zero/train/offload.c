/* offload.c: see offload.h. */
#include "zero/train/offload.h"

#include <inttypes.h>

#include "alloc/base/error.h"
#include "zero/comm/take.h"
#include "zero/engine/nvme_io.h"
#include "zero/train/number.h"

#define MEASURED_BYTES ((size_t)32 << 20)

static struct zr_nvme_folder folder_of(const struct zr_train_config *config)
{
    return (struct zr_nvme_folder){config->offload_folder, config->force};
}

zr_result zr_offload_measure(struct zr_offload_folder *out, const struct zr_train_config *config,
                             zr_arena *host_arena)
{
    struct zr_nvme_probe probe;
    struct zr_nvme_report report;
    struct zr_nvme_buffer buffer = {NULL, MEASURED_BYTES};
    zr_nvme_io *io = NULL;
    const struct zr_nvme_folder folder = folder_of(config);
    zr_result result = zr_nvme_probe_folder(&folder, &probe);
    if (result != ZR_OK)
        return result;
    *out = (struct zr_offload_folder){.align_bytes = probe.align_bytes, .depth = config->nvme_depth};
    /* The plan's own need is checked when it is known. */
    if (config->nvme_depth || probe.free_bytes < 2 * MEASURED_BYTES)
        return ZR_OK;
    result = zr_arena_alloc(
        host_arena,
        &(struct zr_request){.bytes = MEASURED_BYTES, .alignment = probe.align_bytes, .tag = ZR_TAG_OTHER},
        &buffer.memory);
    if (result != ZR_OK)
        return result;
    result = zr_nvme_open(&io, &(struct zr_nvme_options){.folder = folder,
                                                         .file_bytes = MEASURED_BYTES,
                                                         .host_arena = host_arena,
                                                         .buffers = &buffer,
                                                         .buffers_count = 1});
    if (result == ZR_OK) {
        zr_nvme_get_report(io, &report);
        out->depth = report.depth;
        out->bytes_per_second = report.bytes_per_second / config->ranks_here;
        result = zr_nvme_close(io);
    }
    zr_drop(host_arena, &buffer.memory);
    return result;
}

struct zr_offload_file zr_offload_file_of(const struct zr_train_config *config)
{
    bool file = config->offload_optimizer == ZR_TIER_NVME;
    return (struct zr_offload_file){.folder = file ? config->offload_folder : NULL,
                                    .force = config->force,
                                    .align_bytes = config->offload_folder_found.align_bytes,
                                    .depth = config->offload_folder_found.depth};
}

zr_result zr_offload_check_space(const struct zr_train_config *config, const struct zr_byte_plan *plan)
{
    char number[3][ZR_NUMBER_ROOM];
    struct zr_nvme_probe probe;
    const struct zr_nvme_folder folder = folder_of(config);
    uint64_t all_bytes;
    if (config->offload_optimizer != ZR_TIER_NVME)
        return ZR_OK;
    if (config->nvme_limit_bytes && plan->nvme_bytes > config->nvme_limit_bytes)
        return zr_fail(ZR_ERR_MEMORY,
                       "the plan takes a file of %s bytes per rank and --nvme-limit allows %s; try a higher "
                       "--stage, more --ranks, or a smaller model",
                       zr_number_grouped(number[0], plan->nvme_bytes),
                       zr_number_grouped(number[1], config->nvme_limit_bytes));
    zr_result result = zr_nvme_probe_folder(&folder, &probe);
    if (result != ZR_OK)
        return result;
    if (__builtin_mul_overflow(plan->nvme_bytes, (uint64_t)config->ranks_here, &all_bytes))
        all_bytes = UINT64_MAX;
    if (all_bytes <= probe.free_bytes)
        return ZR_OK;
    return zr_fail(
        ZR_ERR_IO,
        "--offload-optimizer nvme:%s: the plan takes %s bytes there, of %u rank(s), and %s are free; make "
        "room for %" PRIu64 " more, name a folder on a larger disk, or try a higher --stage",
        config->offload_folder, zr_number_grouped(number[0], all_bytes), config->ranks_here,
        zr_number_grouped(number[1], probe.free_bytes), all_bytes - probe.free_bytes);
}
