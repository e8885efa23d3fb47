/* offload.c: see offload.h. */
#include "zero/train/settings/offload.h"

#include <inttypes.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "zero/comm/take.h"
#include "zero/engine/nvme_io.h"
#include "zero/train/report/number.h"

#define MEASURED_BYTES ((size_t)32 << 20)
enum { COPIES = 5 };

static struct zr_nvme_folder folder_of(const struct zr_train_config *config)
{
    return (struct zr_nvme_folder){config->offload_folder, config->force};
}

static zr_result take_memory(zr_arena *host_arena, size_t align_bytes, void **out)
{
    return zr_arena_alloc(
        host_arena,
        &(struct zr_request){.bytes = MEASURED_BYTES, .alignment = align_bytes, .tag = ZR_TAG_OTHER}, out);
}

static zr_result measure_disk(struct zr_tiers_found *out, const struct zr_train_config *config,
                              zr_arena *host_arena)
{
    struct zr_nvme_report report;
    struct zr_nvme_buffer buffer = {NULL, MEASURED_BYTES};
    zr_nvme_io *io = NULL;
    zr_result result = take_memory(host_arena, out->align_bytes, &buffer.memory);
    if (result != ZR_OK)
        return result;
    result = zr_nvme_open(&io, &(struct zr_nvme_options){.folder = folder_of(config),
                                                         .file_bytes = MEASURED_BYTES,
                                                         .host_arena = host_arena,
                                                         .buffers = &buffer,
                                                         .buffers_count = 1});
    if (result == ZR_OK) {
        zr_nvme_get_report(io, &report);
        out->depth = report.depth;
        out->nvme_bytes_per_second = report.bytes_per_second / config->ranks_here;
        result = zr_nvme_close(io);
    }
    zr_drop(host_arena, &buffer.memory);
    return result;
}

static zr_result look_at_folder(struct zr_tiers_found *out, const struct zr_train_config *config,
                                zr_arena *host_arena)
{
    struct zr_nvme_probe probe;
    const struct zr_nvme_folder folder = folder_of(config);
    zr_result result = zr_nvme_probe_folder(&folder, &probe);
    if (result != ZR_OK)
        return result;
    out->align_bytes = probe.align_bytes;
    out->depth = config->nvme_depth;
    /* The plan's own need is checked when it is known. */
    return config->nvme_depth || probe.free_bytes < 2 * MEASURED_BYTES
               ? ZR_OK
               : measure_disk(out, config, host_arena);
}

/* The best of a few copies: the first one touches the memory. */
static zr_result measure_copies(struct zr_tiers_found *out, zr_arena *host_arena)
{
    void *from = NULL, *to = NULL;
    zr_result result = take_memory(host_arena, 0, &from);
    if (result == ZR_OK)
        result = take_memory(host_arena, 0, &to);
    if (result == ZR_OK)
        memset(from, 1, MEASURED_BYTES);
    for (unsigned i = 0; i < COPIES && result == ZR_OK; i++) {
        uint64_t start_ns = zr_os_now_ns();
        memcpy(to, from, MEASURED_BYTES);
        double rate = (double)MEASURED_BYTES / ((double)(zr_os_now_ns() - start_ns + 1) * 1e-9);
        out->host_bytes_per_second = rate > out->host_bytes_per_second ? rate : out->host_bytes_per_second;
    }
    zr_drop(host_arena, &to);
    zr_drop(host_arena, &from);
    return result;
}

static bool times_copies(const struct zr_train_config *config)
{
    return config->flops_per_second > 0 && config->host_bytes_per_second <= 0 &&
           zr_train_has_host_tier(config);
}

bool zr_offload_has_to_measure(const struct zr_train_config *config)
{
    return !config->dry_run && (config->offload_optimizer == ZR_TIER_NVME || times_copies(config));
}

zr_result zr_offload_measure(struct zr_tiers_found *out, const struct zr_train_config *config,
                             zr_arena *host_arena)
{
    zr_result result = ZR_OK;
    *out = (struct zr_tiers_found){.align_bytes = 0};
    if (config->offload_optimizer == ZR_TIER_NVME)
        result = look_at_folder(out, config, host_arena);
    return result == ZR_OK && times_copies(config) ? measure_copies(out, host_arena) : result;
}

struct zr_offload_file zr_offload_file_of(const struct zr_train_config *config)
{
    bool file = config->offload_optimizer == ZR_TIER_NVME;
    return (struct zr_offload_file){.folder = file ? config->offload_folder : NULL,
                                    .force = config->force,
                                    .align_bytes = config->found.align_bytes,
                                    .depth = config->found.depth};
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
