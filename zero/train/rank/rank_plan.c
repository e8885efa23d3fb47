/* rank_plan.c: makes a rank's request to zero/plan, and copies the plan into reports. */
#include "zero/train/rank/rank_plan.h"
#include "zero/train/rank/kept.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "zero/train/settings/offload.h"
#include "zero/train/settings/args.h"

zr_result zr_rank_choose_isa(enum zr_isa *out)
{
    uint64_t requested = zr_option_get(ZR_OPTION_ISA); /* 0: auto, else one plus the set's number */
    *out = requested ? (enum zr_isa)(requested - 1) : zr_isa_best();
    if (*out > zr_isa_best())
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "ZR_CONF asks for isa:%s, and the best that this processor has is %s",
                       zr_isa_name(*out), zr_isa_name(zr_isa_best()));
    return ZR_OK;
}

const struct zr_kernels *zr_rank_kernels(const struct zr_train_config *config, enum zr_isa isa)
{
    return config->backend == ZR_TRAIN_CUDA ? zr_kernels_cuda() : zr_kernels_cpu(isa);
}

zr_result zr_rank_request(struct zr_plan_request *out, const struct zr_train_config *config, unsigned rank,
                          zr_arena *host_arena)
{
    enum zr_isa isa;
    zr_result result = zr_rank_choose_isa(&isa);
    if (result != ZR_OK)
        return result;
    *out = (struct zr_plan_request){.shape = zr_train_shape(config, rank),
                                    .stage = config->stage,
                                    .micro_batches = config->micro_batches,
                                    .reduce = config->reduce,
                                    .compression = zr_train_compression(config),
                                    .measures_squares = config->noise_decay > 0,
                                    .keeps_state = !zr_rank_kept_words(config),
                                    .snapshots = config->save_background,
                                    .backs_up = zr_train_mesh(config).backup,
                                    .shares_parameters = zr_train_shares_parameters(config),
                                    .root_owns = config->master,
                                    .precision = zr_train_precision(config),
                                    .optimizer = config->optimizer,
                                    .stages = config->stages,
                                    .rank = rank,
                                    .world = config->world,
                                    .groups = config->groups,
                                    .outer = config->outer,
                                    .served = zr_train_is_served(config) && !zr_train_differs(config),
                                    .differs = zr_train_differs(config),
                                    .threads = config->threads,
                                    .bucket_bytes = config->bucket_bytes,
                                    .checkpoints = config->checkpoints,
                                    .offloads_checkpoints = config->checkpoint_offload,
                                    .offloads_optimizer = config->offload_optimizer != ZR_TIER_NONE,
                                    .offload_file = zr_offload_file_of(config),
                                    .offloads_parameters = config->offload_parameters != ZR_TIER_NONE,
                                    .parameters_file = zr_offload_parameters_file_of(config),
                                    .delays_update = config->delayed_update,
                                    .resident_share = zr_offload_resident_share(config),
                                    .speculative_bytes = config->speculative_bytes,
                                    .isa = isa,
                                    .kernels = zr_rank_kernels(config, isa),
                                    .host_arena = host_arena};
    return ZR_OK;
}

zr_result zr_rank_plan(struct zr_byte_plan *out, const struct zr_train_config *config, unsigned rank,
                       zr_arena *host_arena)
{
    struct zr_plan_request request;
    zr_result result = zr_rank_request(&request, config, rank, host_arena);
    return result == ZR_OK ? zr_plan_make(out, &request) : result;
}

zr_result zr_rank_live_bytes(size_t *out_bytes, const struct zr_train_config *config, unsigned rank,
                             size_t granule_bytes, zr_arena *host_arena)
{
    struct zr_plan_request request;
    struct zr_byte_plan plan = {0};
    zr_result result = zr_rank_request(&request, config, rank, host_arena);
    request.granule_bytes = granule_bytes;
    request.live_only = true;
    if (result == ZR_OK)
        result = zr_plan_make(&plan, &request);
    bool over = (config->host_limit_bytes && plan.host_bytes > config->host_limit_bytes) ||
                (config->nvme_limit_bytes && plan.nvme_bytes > config->nvme_limit_bytes);
    *out_bytes = over ? SIZE_MAX : plan.peak_bytes;
    return result;
}

void zr_rank_note_plan(struct zr_rank_report *report, const struct zr_byte_plan *plan, unsigned rank)
{
    report->rank = rank;
    memcpy(report->planned_by_tag_bytes, plan->peak_by_tag_bytes, sizeof report->planned_by_tag_bytes);
    report->whole_parameters = plan->whole_parameters;
    report->whole_gradients = plan->whole_gradients;
    report->planned_bytes = plan->peak_bytes;
    report->planned_reserved_bytes = plan->peak_reserved_bytes;
    memcpy(report->planned_host_by_tag_bytes, plan->host_peak_by_tag_bytes,
           sizeof report->planned_host_by_tag_bytes);
    report->planned_host_bytes = plan->host_bytes;
    report->planned_host_reserved_bytes = plan->host_reserved_bytes;
    report->planned_host_moved_bytes = plan->host_moved_bytes_per_step;
    report->planned_sent_bytes = plan->sent_bytes_per_step;
    report->planned_full_bytes = plan->full_sent_bytes;
    report->planned_check_bytes = plan->check_sent_bytes;
    report->outer = plan->outer;
    report->planned_snapshot_bytes = plan->snapshot_bytes;
    report->planned_backup_bytes = plan->backup_bytes;
    report->planned_nvme_bytes = plan->nvme_bytes;
    report->planned_nvme_moved_bytes = plan->nvme_moved_bytes_per_step;
    report->tag_limits = plan->tag_limits;
    memcpy(report->planned_kept_by_tag_bytes, plan->persistent_by_tag_bytes,
           sizeof report->planned_kept_by_tag_bytes);
}
