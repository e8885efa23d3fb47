/* rehearse.c: see rehearse.h. */
#include "zero/train/rehearse.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/train/settings/args.h"
#include "zero/train/memory_limit.h"
#include "zero/train/rank/rank_plan.h"
#include "zero/train/report/number.h"
#include "zero/train/report/report.h"

/* Prints the limit that is exceeded, and variations that fit. */
static zr_result refuse(const struct zr_train_config *config, const struct zr_limit_advice *advice)
{
    char need[ZR_NUMBER_ROOM], limit[ZR_NUMBER_ROOM], which[64] = "the plan";
    zr_result result = config->start.rank == 0 ? zr_report_limit(config, advice) : ZR_OK;
    if (result != ZR_OK)
        return result;
    if (config->host_limit_bytes && advice->plan.host_reserved_bytes > config->host_limit_bytes)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s bytes of the host tier per rank, but --host-limit allows %s; the table has %s",
            zr_number_grouped(need, advice->plan.host_reserved_bytes),
            zr_number_grouped(limit, config->host_limit_bytes),
            advice->count ? "what would fit" : "nothing smaller that would fit");
    if (config->nvme_limit_bytes && advice->plan.nvme_bytes > config->nvme_limit_bytes)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s bytes of files per rank, but --nvme-limit allows %s; the table has %s",
            zr_number_grouped(need, advice->plan.nvme_bytes),
            zr_number_grouped(limit, config->nvme_limit_bytes),
            advice->count ? "what would fit" : "nothing smaller that would fit");
    if (config->finds_max)
        snprintf(which, sizeof which, "not even --%s %zu fits: its plan",
                 config->find_max == ZR_LIMIT_BATCH ? "batch" : "layers",
                 config->find_max == ZR_LIMIT_BATCH ? config->shape.batch : config->shape.layers);
    return zr_fail(ZR_ERR_MEMORY,
                   "%s takes %s bytes per rank, but --memory-limit allows %s; the table has %s", which,
                   zr_number_grouped(need, advice->plan.peak_reserved_bytes),
                   zr_number_grouped(limit, config->memory_limit_bytes),
                   advice->count ? "what would fit" : "what does not fit, and nothing smaller would");
}

/* Checks the limit. If the plan does not fit, --json has the advice instead of a report. */
static zr_result check_limit(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_limit_advice advice;
    struct zr_plan_report report = {.config = config, .advice = &advice};
    zr_result result = zr_limit_advise(&advice, config, host_arena);
    if (result != ZR_OK || advice.fits)
        return result;
    report.parameters = advice.plan.elements;
    if (config->start.rank == 0)
        result = zr_report_json_plan(&report);
    return result == ZR_OK ? refuse(config, &advice) : result;
}

/* Number `index` of the ranks of a pipeline rank. */
static unsigned rank_of(const struct zr_train_config *config, unsigned pipeline_rank, unsigned index)
{
    const struct zr_mesh_shape mesh = zr_train_mesh(config);
    unsigned layer = zr_mesh_group_ranks(mesh) / mesh.pipeline;
    return index / layer * zr_mesh_group_ranks(mesh) + pipeline_rank * layer + index % layer;
}

/* Plans the ranks of a pipeline rank. Data- and tensor-parallel ranks take the same bytes, because shards are
 * equal. The last one is rehearsed as a check; if its plan differed, every rank would be rehearsed. Order:
 * first, last, third, ..., second. */
static zr_result plan_ranks(const struct zr_train_config *config, unsigned pipeline_rank,
                            struct zr_rank_report *reports, struct zr_byte_plan *plan, zr_arena *host_arena)
{
    unsigned count = config->world / zr_train_pipeline(config), last = count - 1;
    struct zr_byte_plan first = {0};
    bool alike = false;
    for (unsigned i = 0; i < count; i++) {
        unsigned r = rank_of(config, pipeline_rank, i == 0 ? 0 : i == 1 ? last : i == last ? 1 : i);
        zr_result result = alike ? ZR_OK : zr_rank_plan(plan, config, r, host_arena);
        if (result != ZR_OK)
            return result;
        zr_rank_note_plan(&reports[r], plan, r);
        reports[r].sent_elements_per_step = plan->sent_elements_per_step;
        alike = i == 1 ? memcmp(plan, &first, sizeof *plan) == 0 : alike;
        first = i == 0 ? *plan : first;
    }
    return ZR_OK;
}

/* Plans all ranks and prints the report. `found`: result of --find-max; NULL: not requested. */
static zr_result rehearse(const struct zr_train_config *config, const struct zr_limit_found *found,
                          zr_arena *host_arena)
{
    struct zr_rank_report *reports = zr_heap_zalloc(config->world, sizeof *reports);
    struct zr_byte_plan plan = {0};
    struct zr_timeline timeline = {.clock = {.flops = 0}};
    struct zr_limit_advice advice = {.fits = true};
    zr_result result = reports ? ZR_OK : ZR_ERR_HOST_MEMORY;

    for (unsigned p = 0; result == ZR_OK && p < zr_train_pipeline(config); p++)
        result = plan_ranks(config, p, reports, &plan, host_arena);
    if (result == ZR_OK)
        result = zr_report_plan(config, plan.elements, reports, config->world);
    if (result == ZR_OK)
        result = zr_report_stages(config, reports, host_arena);
    if (result == ZR_OK)
        result = zr_report_servers(config, host_arena);
    if (result == ZR_OK && found)
        result = zr_report_found(config, found);
    if (result == ZR_OK)
        result = zr_rank_time_plan(&timeline, config, host_arena);
    bool limited = zr_limit_is_set(config);
    if (result == ZR_OK && limited)
        result = zr_limit_advise(&advice, config, host_arena);
    if (result == ZR_OK)
        result = zr_report_json_plan(
            &(struct zr_plan_report){.config = config,
                                     .found = found,
                                     .advice = limited ? &advice : NULL,
                                     .timeline = config->flops_per_second > 0 ? &timeline : NULL,
                                     .ranks = reports,
                                     .host_arena = host_arena,
                                     .parameters = plan.elements});
    zr_timeline_end(&timeline);
    zr_heap_free(reports);
    return result == ZR_OK && !advice.fits ? refuse(config, &advice) : result;
}

static zr_result rehearse_alone(const struct zr_train_config *config, zr_arena *host_arena)
{
    return rehearse(config, NULL, host_arena);
}

/* --find-max: prints the largest number that fits, and its plan; if the smallest does not fit, prints
 * variations that fit. */
static zr_result find_max(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_train_config changed = *config;
    enum zr_limit_size size = (enum zr_limit_size)config->find_max;
    struct zr_limit_found found;
    zr_result result = zr_limit_find(&found, config, size, host_arena);

    if (result != ZR_OK)
        return result;
    *(size == ZR_LIMIT_BATCH ? &changed.shape.batch : &changed.shape.layers) =
        found.value ? found.value : found.smallest;
    if (result == ZR_OK)
        result = zr_train_cut_stages(&changed, host_arena);
    if (result != ZR_OK)
        return result;
    return found.value ? rehearse(&changed, &found, host_arena) : check_limit(&changed, host_arena);
}

int zr_rehearse_run(const struct zr_train_config *config)
{
    return zr_child_here(config, config->finds_max ? find_max : rehearse_alone);
}

int zr_rehearse_check_limit(const struct zr_train_config *config)
{
    int status = zr_limit_is_set(config) ? zr_child_run(config, check_limit) : -1;
    return status == ZR_EXIT_OK ? -1 : status; /* without a child, the ranks check the limit themselves */
}
