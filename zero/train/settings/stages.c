/* stages.c: see args.h. */
#include "zero/train/settings/args.h"

#include "alloc/base/error.h"
#include "zero/step/pipeline.h"

unsigned zr_train_first_rank(const struct zr_train_config *config, unsigned pipeline_rank)
{
    return zr_mesh_rank(zr_train_mesh(config), (struct zr_mesh_place){.pipeline = pipeline_rank});
}

unsigned zr_train_highest_stage(const struct zr_train_config *config)
{
    unsigned stage = 3;
    while (stage > 0 && !zr_train_takes_stage(config, stage))
        stage--;
    return stage;
}

zr_result zr_train_check_stages(const struct zr_train_config *config)
{
    const struct zr_stages *stages = &config->stages;
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
