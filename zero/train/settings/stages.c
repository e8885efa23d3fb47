/* stages.c: see args.h. */
#include "zero/train/settings/args.h"

#include "alloc/base/error.h"
#include "zero/step/pipeline.h"

unsigned zr_train_first_rank(const struct zr_train_config *config, unsigned pipeline_rank)
{
    return zr_mesh_rank(zr_train_mesh(config), (struct zr_mesh_place){.pipeline = pipeline_rank});
}

/* Why an asynchronous schedule cannot keep versions of the parameters, or updates them; NULL: it can. */
static const char *versions_conflict(const struct zr_train_config *config)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    if (!zr_pipeline_is_asynchronous(&pipeline))
        return NULL;
    if (config->stage == 3 || config->offload_parameters)
        return "keeps versions of whole parameters, and --stage 3 keeps no whole ones; give --stage 2";
    if (config->delayed_update || config->speculative_bytes > 0)
        return "keeps the version before an update, which --delayed-update and --speculative-update make at "
               "other times; leave one of the two out";
    if (config->precision == ZR_PRECISION_FP16)
        return "ends a step on each stage at its own time, so the stages cannot agree to skip one; give "
               "--precision bf16";
    if (config->prove)
        return "trains with gradients of earlier parameters, which --prove would report as errors; leave one of "
               "the two out";
    if (pipeline.schedule == ZR_PIPELINE_PIPEDREAM && config->micro_batches != 1)
        return "updates after every micro-batch; leave --accumulate out";
    if (pipeline.schedule == ZR_PIPELINE_PIPEDREAM && config->shape.tied)
        return "updates each stage by itself and excludes a tied embedding; give --arch llama without "
               "--tie-embeddings, or --schedule 2bw";
    return NULL;
}

unsigned zr_train_highest_stage(const struct zr_train_config *config)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    bool once =
        config->reduce == ZR_REDUCE_ONCE || zr_compression_is_by(&config->compression, ZR_METHOD_ONEBIT);
    if (config->offload_parameters != ZR_TIER_NONE)
        return 3;
    if (zr_compression_is_by(&config->compression, ZR_METHOD_ZERONE))
        return 0;
    return zr_train_shards(config) == 1 ? 0 : once ? 1 : zr_pipeline_is_asynchronous(&pipeline) ? 2 : 3;
}

zr_result zr_train_check_stages(const struct zr_train_config *config)
{
    const struct zr_stages *stages = &config->stages;
    const struct zr_pipeline pipeline = zr_stages_pipeline(stages, NULL);
    unsigned count = zr_stages_count(stages), parts = stages->ranks > 1 ? count / stages->ranks : 1;
    size_t layers = config->shape.layers, ends = config->pipeline_cut == ZR_CUT_MEMORY ? 2 : 0;
    zr_result result = zr_shape_check(&config->shape);
    if (result != ZR_OK || stages->ranks <= 1)
        return result;
    if (layers + ends < count || layers == 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "--pp %u: %u pipeline stages are too many for %zu layers; give at most --pp %zu, or at least "
            "--layers %zu",
            stages->ranks, count, layers, (layers + ends) / parts, count - ends);
    if (zr_pipeline_splits(&pipeline) && (config->checkpoints.partition || config->checkpoint_offload))
        return zr_fail(
            ZR_ERR_INVALID,
            "--schedule %s keeps activation checkpoints until the gradients of parameters are computed, so it "
            "excludes --partition-activations, --checkpoint-offload and --zero-r C2, C4 and C5",
            zr_pipeline_schedule_name(stages->schedule));
    const char *conflict = versions_conflict(config);
    if (conflict)
        return zr_fail(ZR_ERR_INVALID, "--schedule %s %s", zr_pipeline_schedule_name(stages->schedule),
                       conflict);
    if (stages->schedule == ZR_PIPELINE_2BW && config->micro_batches < stages->ranks)
        return zr_fail(ZR_ERR_INVALID,
                       "--schedule 2bw requires at least as many micro-batches as --pp %u, not %u; give "
                       "--accumulate %u",
                       stages->ranks, config->micro_batches, stages->ranks);
    if (stages->interleave > 1 && stages->schedule == ZR_PIPELINE_1F1B &&
        config->micro_batches % stages->ranks != 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "--interleave %u requires a number of micro-batches that --pp %u divides, not %u; give "
            "--micro-batches %u",
            stages->interleave, stages->ranks, config->micro_batches,
            (config->micro_batches / stages->ranks + 1) * stages->ranks);
    return ZR_OK;
}
