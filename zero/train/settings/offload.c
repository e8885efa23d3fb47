/* offload.c: see offload.h. */
#include "zero/train/settings/offload.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "zero/comm/take.h"
#include "zero/engine/optimizer.h"
#include "zero/file_io/nvme_io.h"
#include "zero/train/report/number.h"

#define MEASURED_BYTES ((size_t)32 << 20)
enum { TURNS = 5, STATES = 1 + ZR_SLOTS_MAX };

/* A folder of nvme:DIR and its option; path NULL: option not given. */
struct folder {
    const char *option, *path;
};

static struct folder optimizer_folder(const struct zr_train_config *config)
{
    bool file = config->offload_optimizer == ZR_TIER_NVME;
    return (struct folder){"--offload-optimizer", file ? config->offload_folder : NULL};
}

static struct folder parameters_folder(const struct zr_train_config *config)
{
    bool file = config->offload_parameters == ZR_TIER_NVME;
    return (struct folder){"--offload-param", file ? config->parameters_folder : NULL};
}

static zr_result take_memory(zr_arena *host_arena, size_t align_bytes, void **out)
{
    return zr_arena_alloc(
        host_arena,
        &(struct zr_request){.bytes = MEASURED_BYTES, .alignment = align_bytes, .tag = ZR_TAG_OTHER}, out);
}

/* Measures the disk's depth and rate; *out keeps the rate of the slowest disk. */
static zr_result measure_disk(struct zr_tiers_found *out, struct zr_folder_found *disk,
                              const struct zr_nvme_folder *folder, zr_arena *host_arena)
{
    struct zr_nvme_report report;
    struct zr_nvme_buffer buffer = {NULL, MEASURED_BYTES};
    zr_nvme_io *io = NULL;
    zr_result result = take_memory(host_arena, disk->align_bytes, &buffer.memory);
    if (result != ZR_OK)
        return result;
    result = zr_nvme_open(&io, &(struct zr_nvme_options){.folder = *folder,
                                                         .file_bytes = MEASURED_BYTES,
                                                         .host_arena = host_arena,
                                                         .buffers = &buffer,
                                                         .buffers_count = 1});
    if (result == ZR_OK) {
        zr_nvme_get_report(io, &report);
        disk->depth = report.depth;
        if (out->nvme_bytes_per_second <= 0 || report.bytes_per_second < out->nvme_bytes_per_second)
            out->nvme_bytes_per_second = report.bytes_per_second;
        result = zr_nvme_close(io);
    }
    zr_drop(host_arena, &buffer.memory);
    return result;
}

static zr_result probe_folder(struct zr_tiers_found *out, struct zr_folder_found *disk,
                              const struct zr_train_config *config, const char *path, zr_arena *host_arena)
{
    struct zr_nvme_probe probe;
    const struct zr_nvme_folder folder = {.path = path, .force = config->force};
    zr_result result = zr_nvme_probe_folder(&folder, &probe);
    if (result != ZR_OK)
        return result;
    disk->align_bytes = probe.align_bytes;
    disk->depth = config->nvme_depth;
    /* The space for the plan is checked later, when the plan exists. */
    return config->nvme_depth || probe.free_bytes < 2 * MEASURED_BYTES
               ? ZR_OK
               : measure_disk(out, disk, &folder, host_arena);
}

/* Probes the folders; a folder of both options is probed once. */
static zr_result probe_folders(struct zr_tiers_found *out, const struct zr_train_config *config,
                               zr_arena *host_arena)
{
    const char *optimizer = optimizer_folder(config).path, *parameters = parameters_folder(config).path;
    zr_result result = ZR_OK;
    if (optimizer)
        result = probe_folder(out, &out->optimizer, config, optimizer, host_arena);
    if (result == ZR_OK && parameters && optimizer && strcmp(parameters, optimizer) == 0)
        out->parameters = out->optimizer;
    else if (result == ZR_OK && parameters)
        result = probe_folder(out, &out->parameters, config, parameters, host_arena);
    out->nvme_bytes_per_second /= config->ranks_here;
    return result;
}

/* Measures copies: the best of several, because the first one faults the pages in. */
static zr_result measure_copies(struct zr_tiers_found *out, zr_arena *host_arena)
{
    void *from = NULL, *to = NULL;
    zr_result result = take_memory(host_arena, 0, &from);
    if (result == ZR_OK)
        result = take_memory(host_arena, 0, &to);
    if (result == ZR_OK)
        memset(from, 1, MEASURED_BYTES);
    for (unsigned i = 0; i < TURNS && result == ZR_OK; i++) {
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

/* Buffers of an update as its thread uses them: state in one block, gradients and parameters in another. */
struct update {
    const struct zr_kernels *kernels;
    struct zr_kernel_context context;
    void *states, *others;
    size_t count; /* elements */
};

static zr_result open_update(struct update *out, const struct zr_train_config *config, enum zr_isa isa,
                             zr_arena *host_arena)
{
    *out = (struct update){
        .kernels = zr_kernels_cpu(isa),
        .context = {.parallel = {.threads = 1}, .isa = isa, .precision = zr_train_precision(config)},
        .count = MEASURED_BYTES / (STATES * sizeof(float))};
    struct zr_kernel_context *context = &out->context;
    context->workspace_bytes = out->kernels->workspace_bytes(&(struct zr_kernel_limits){.threads = 1}, isa);
    zr_result result = zr_take(host_arena, ZR_TAG_OTHER, context->workspace_bytes, 1, &context->workspace);
    if (result == ZR_OK)
        result = take_memory(host_arena, 0, &out->states);
    if (result == ZR_OK)
        result = take_memory(host_arena, 0, &out->others);
    if (result != ZR_OK)
        return result;
    memset(out->states, 0, MEASURED_BYTES);
    memset(out->others, 0, MEASURED_BYTES);
    return out->kernels->open(context);
}

static void close_update(struct update *update, zr_arena *host_arena)
{
    update->kernels->close(&update->context); /* no effect if open() failed */
    zr_drop(host_arena, &update->others);
    zr_drop(host_arena, &update->states);
    zr_drop(host_arena, &update->context.workspace);
}

/* The update of a vector. */
static zr_result update_once(struct update *update, const struct zr_optimizer_options *options)
{
    static const struct zr_parameter_group group = {1, 1, false};
    enum zr_precision precision = update->context.precision;
    const struct zr_optimizer *optimizer = zr_optimizer_with(options, ZR_KEEPS_NOTHING);
    const struct zr_parameter tensor = {.shape = {update->count}};
    char *parameters = (char *)update->others + update->count * zr_precision_bytes(precision);
    float *next = update->states;
    struct zr_optimizer_call call = {.options = options,
                                     .kernels = update->kernels,
                                     .context = &update->context,
                                     .rate = 1,
                                     .correction1 = 1,
                                     .correction2 = 1,
                                     .n = update->count,
                                     .gradient = {update->others, precision},
                                     .master = next,
                                     .tensor = &tensor,
                                     .parameter = {parameters, precision}};
    for (unsigned s = 0; s < optimizer->slots_count; s++)
        if (!optimizer->slots[s].covers || optimizer->slots[s].covers(&tensor, &group))
            call.slots[s] = next += update->count;
    return optimizer->update(&call);
}

/* Measures updates: the best of several. */
static zr_result measure_updates(struct zr_tiers_found *out, const struct zr_train_config *config,
                                 enum zr_isa isa, zr_arena *host_arena)
{
    struct update update;
    zr_result result = open_update(&update, config, isa, host_arena);
    for (unsigned i = 0; i < TURNS && result == ZR_OK; i++) {
        uint64_t start_ns = zr_os_now_ns();
        result = update_once(&update, &config->optimizer);
        double rate = (double)update.count / ((double)(zr_os_now_ns() - start_ns + 1) * 1e-9);
        out->updates_per_second = rate > out->updates_per_second ? rate : out->updates_per_second;
    }
    close_update(&update, host_arena);
    return result;
}

static bool times_updates(const struct zr_train_config *config)
{
    bool ahead = config->offload_optimizer == ZR_TIER_NVME &&
                 (config->speculative_bytes || config->speculates_if_room);
    return config->flops_per_second > 0 && (config->delayed_update || ahead);
}

bool zr_offload_has_to_measure(const struct zr_train_config *config)
{
    return !config->dry_run && (zr_train_has_file(config) || times_copies(config) || times_updates(config));
}

zr_result zr_offload_measure(struct zr_tiers_found *out, const struct zr_train_config *config,
                             enum zr_isa isa, zr_arena *host_arena)
{
    *out = (struct zr_tiers_found){.nvme_bytes_per_second = 0};
    zr_result result = probe_folders(out, config, host_arena);
    if (result == ZR_OK && times_copies(config))
        result = measure_copies(out, host_arena);
    return result == ZR_OK && times_updates(config) ? measure_updates(out, config, isa, host_arena) : result;
}

static struct zr_offload_file file_of(const struct zr_train_config *config, const char *path,
                                      const struct zr_folder_found *found)
{
    return (struct zr_offload_file){
        .folder = path, .force = config->force, .align_bytes = found->align_bytes, .depth = found->depth};
}

struct zr_offload_file zr_offload_file_of(const struct zr_train_config *config)
{
    struct zr_offload_file file = file_of(config, optimizer_folder(config).path, &config->found.optimizer);
    file.buffers = config->offload_buffers;
    return file;
}

struct zr_offload_file zr_offload_parameters_file_of(const struct zr_train_config *config)
{
    return file_of(config, parameters_folder(config).path, &config->found.parameters);
}

/* ---- Whether a plan fits ------------------------------------------------------------------------------- */

static uint64_t of_ranks_here(const struct zr_train_config *config, uint64_t rank_bytes)
{
    uint64_t all_bytes;
    return __builtin_mul_overflow(rank_bytes, (uint64_t)config->ranks_here, &all_bytes) ? UINT64_MAX
                                                                                        : all_bytes;
}

/* Checks the free space for all ranks of this machine. */
static zr_result check_folder(const struct zr_train_config *config, struct folder folder, uint64_t rank_bytes)
{
    char number[2][ZR_NUMBER_ROOM];
    struct zr_nvme_probe probe;
    uint64_t all_bytes = of_ranks_here(config, rank_bytes);
    zr_result result =
        zr_nvme_probe_folder(&(struct zr_nvme_folder){.path = folder.path, .force = config->force}, &probe);
    if (result != ZR_OK || all_bytes <= probe.free_bytes)
        return result;
    return zr_fail(
        ZR_ERR_IO,
        "%s nvme:%s: the plan needs %s bytes there for %u rank(s), and %s are free; make room for %" PRIu64
        " more bytes, name a folder on a larger disk, or give a higher --stage",
        folder.option, folder.path, zr_number_grouped(number[0], all_bytes), config->ranks_here,
        zr_number_grouped(number[1], probe.free_bytes), all_bytes - probe.free_bytes);
}

static bool on_one_disk(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev;
}

zr_result zr_offload_check_space(const struct zr_train_config *config, const struct zr_byte_plan *plan)
{
    struct folder optimizer = optimizer_folder(config), parameters = parameters_folder(config);
    uint64_t parameter_bytes = plan->nvme_parameter_bytes,
             optimizer_bytes = plan->nvme_bytes - parameter_bytes;
    char number[2][ZR_NUMBER_ROOM];
    zr_result result = ZR_OK;
    if (config->nvme_limit_bytes && plan->nvme_bytes > config->nvme_limit_bytes)
        return zr_fail(ZR_ERR_MEMORY,
                       "the plan needs %s bytes of files per rank, and --nvme-limit allows %s; give a higher "
                       "--stage, more --ranks, or a smaller model",
                       zr_number_grouped(number[0], plan->nvme_bytes),
                       zr_number_grouped(number[1], config->nvme_limit_bytes));
    if (optimizer.path && parameters.path && on_one_disk(optimizer.path, parameters.path))
        optimizer_bytes = parameter_bytes = plan->nvme_bytes;
    if (optimizer.path)
        result = check_folder(config, optimizer, optimizer_bytes);
    if (result == ZR_OK && parameters.path)
        result = check_folder(config, parameters, parameter_bytes);
    return result;
}

bool zr_offload_has_ample_space(const struct zr_train_config *config, const struct zr_byte_plan *plan)
{
    struct zr_nvme_probe probe;
    const struct zr_nvme_folder folder = {.path = optimizer_folder(config).path, .force = config->force};
    return zr_nvme_probe_folder(&folder, &probe) == ZR_OK &&
           of_ranks_here(config, plan->nvme_bytes) <= probe.free_bytes / 2;
}
