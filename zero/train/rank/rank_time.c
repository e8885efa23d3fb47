/* rank_time.c: times plans by the simulated clock: the plan of one rank, or those of all pipeline ranks. */
#include "zero/train/rank/rank_plan.h"

#include <string.h>

#include "zero/train/report/report.h"
#include "zero/train/settings/args.h"

/* Records the time that the stages of pipeline rank `r` take for a micro-batch. */
static void note_times(const struct zr_train_config *config, unsigned r, const struct zr_timeline *timeline,
                       struct zr_pipeline_times times[])
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    double rows = (double)config->shape.batch * (double)zr_shape_own_sequence(&config->shape);
    double bytes =
        rows * (double)config->shape.hidden * (double)zr_precision_bytes(zr_train_precision(config));
    if (config->shape.sequence_parallel)
        bytes /= (double)zr_shape_tensor(&config->shape);
    for (unsigned s = 0, part = 0; s < zr_stages_count(&config->stages); s++) {
        if (zr_pipeline_rank_of(&pipeline, config->stages.ranks, s) != r)
            continue;
        times[s] = (struct zr_pipeline_times){.hand_on = bytes / config->bytes_per_second};
        for (unsigned k = 0; k < ZR_PIPELINE_KINDS; k++)
            times[s].seconds[k] = timeline->part_seconds[part][k] / config->micro_batches;
        part++;
    }
}

static zr_result time_rank(struct zr_timeline *out, const struct zr_train_config *config, unsigned rank,
                           zr_arena *host_arena)
{
    struct zr_plan_request request;
    struct zr_byte_plan again;
    zr_result result = zr_rank_request(&request, config, rank, host_arena);
    if (result != ZR_OK)
        return result;
    zr_timeline_start(out, host_arena, config->flops_per_second, config->bytes_per_second);
    out->clock.host_bytes_per_second = config->host_bytes_per_second > 0
                                           ? config->host_bytes_per_second
                                           : config->found.host_bytes_per_second;
    out->clock.nvme_bytes_per_second = config->nvme_bytes_per_second > 0
                                           ? config->nvme_bytes_per_second
                                           : config->found.nvme_bytes_per_second;
    out->clock.updates_per_second = config->found.updates_per_second;
    request.timeline = out;
    result = zr_plan_make(&again, &request);
    out->host_moved_bytes = again.host_moved_bytes_per_step;
    out->nvme_moved_bytes = again.nvme_moved_bytes_per_step;
    return result;
}

/* Whether a rank's stages have as many layers as those of the previous rank. */
static bool alike(const struct zr_stages *stages, unsigned rank)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(stages, NULL);
    unsigned layers[2][ZR_PIPELINE_PARTS_MAX] = {{0}}, parts[2] = {0};
    for (unsigned s = 0; s < zr_stages_count(stages); s++)
        for (unsigned i = 0; i < 2; i++)
            if (zr_pipeline_rank_of(&pipeline, stages->ranks, s) == rank - i)
                layers[i][parts[i]++] = stages->layers[s];
    return memcmp(layers[0], layers[1], sizeof layers[0]) == 0;
}

/* Times all pipeline ranks, one after the other, and simulates the micro-batches on all of them. */
static zr_result time_pipeline(struct zr_timeline *out, const struct zr_train_config *config,
                               zr_arena *host_arena)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    struct zr_pipeline_times times[ZR_PIPELINE_STAGES_MAX];
    struct zr_timeline other = {.host_arena = NULL};
    zr_result result = ZR_OK;
    note_times(config, 0, out, times);
    for (unsigned r = 1; r < config->stages.ranks && result == ZR_OK; r++) {
        if (r > 1 && r + 1 < config->stages.ranks && alike(&config->stages, r)) {
            note_times(config, r, &other, times);
            continue;
        }
        zr_timeline_end(&other);
        result = time_rank(&other, config, zr_train_first_rank(config, r), host_arena);
        note_times(config, r, &other, times);
    }
    if (other.host_arena)
        zr_timeline_end(&other);
    return result != ZR_OK
               ? result
               : zr_pipeline_walk(&out->walk,
                                  &(struct zr_pipeline_request){.pipeline = &pipeline,
                                                                .ranks = config->stages.ranks,
                                                                .micro_batches = config->micro_batches,
                                                                .shares = config->shape.tied,
                                                                .host_arena = host_arena},
                                  times);
}

static zr_result time_all(struct zr_timeline *out, const struct zr_train_config *config, zr_arena *host_arena)
{
    zr_result result = time_rank(out, config, 0, host_arena);
    return result == ZR_OK && config->stages.ranks > 1 ? time_pipeline(out, config, host_arena) : result;
}

zr_result zr_rank_step_seconds(double *out, const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_timeline timeline = {.host_arena = NULL};
    zr_result result = time_all(&timeline, config, host_arena);
    *out = zr_timeline_step_seconds(&timeline);
    zr_timeline_end(&timeline);
    return result;
}

zr_result zr_rank_time_plan(struct zr_timeline *out, const struct zr_train_config *config,
                            zr_arena *host_arena)
{
    if (config->flops_per_second == 0)
        return ZR_OK;
    zr_result result = time_all(out, config, host_arena);
    return result == ZR_OK ? zr_report_timeline(config, out) : result;
}
