/* pipeline_cut.c: --pipeline-cut: divides the layers into pipeline stages. See settings/args.h. Uses byte
 * plans (rank_plan.c). */
#include "zero/train/settings/args.h"

#include <string.h>

#include "zero/model/cut.h"
#include "zero/train/rank/rank_plan.h"

#define FINE_GRANULE_BYTES ((size_t)2 << 20)

/* Bytes of a pipeline rank: without layers, and per layer. */
struct weight {
    double base, layer;
    unsigned layers;
};

/* Peak of a rank whose stages have `layers` layers each. */
static zr_result weigh(const struct zr_train_config *config, unsigned pipeline_rank, uint16_t layers,
                       zr_arena *host_arena, double *out)
{
    struct zr_train_config probe = *config;
    unsigned stages = zr_stages_count(&probe.stages);
    size_t bytes;
    for (unsigned s = 0; s < stages; s++)
        probe.stages.layers[s] = layers;
    probe.shape.layers = (size_t)layers * stages;
    zr_result result = zr_rank_live_bytes(&bytes, &probe, zr_train_first_rank(&probe, pipeline_rank),
                                          FINE_GRANULE_BYTES, host_arena);
    *out = (double)bytes;
    return result;
}

static zr_result weigh_rank(struct weight *out, const struct zr_train_config *config, unsigned pipeline_rank,
                            zr_arena *host_arena)
{
    unsigned parts = zr_stages_count(&config->stages) / config->stages.ranks;
    double one, two;
    zr_result result = weigh(config, pipeline_rank, 1, host_arena, &one);
    if (result == ZR_OK)
        result = weigh(config, pipeline_rank, 2, host_arena, &two);
    if (result != ZR_OK)
        return result;
    out->layer = (two - one) / parts;
    out->base = 2 * one - two;
    out->layers = 0;
    return ZR_OK;
}

static double peak(const struct weight *weight)
{
    return weight->base + weight->layer * weight->layers;
}

static void give_layer(struct zr_stages *stages, struct weight weights[], unsigned stage)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(stages, NULL);
    stages->layers[stage]++;
    weights[zr_pipeline_rank_of(&pipeline, stages->ranks, stage)].layers++;
}

/* The rank's stage with the fewest layers; the first of equal stages. */
static unsigned lightest_stage(const struct zr_stages *stages, unsigned rank)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(stages, NULL);
    unsigned count = zr_stages_count(stages), best = count;
    for (unsigned s = 0; s < count; s++)
        if (zr_pipeline_rank_of(&pipeline, stages->ranks, s) == rank &&
            (best == count || stages->layers[s] < stages->layers[best]))
            best = s;
    return best;
}

static void hand_out(struct zr_train_config *config, struct weight weights[])
{
    struct zr_stages *stages = &config->stages;
    unsigned count = zr_stages_count(stages);
    size_t left = config->shape.layers;
    memset(stages->layers, 0, sizeof stages->layers);
    for (unsigned s = 1; s + 1 < count && left > 0; s++, left--)
        give_layer(stages, weights, s);
    for (; left > 0; left--) {
        unsigned best = 0;
        for (unsigned r = 1; r < stages->ranks; r++)
            if (peak(&weights[r]) + weights[r].layer < peak(&weights[best]) + weights[best].layer)
                best = r;
        give_layer(stages, weights, lightest_stage(stages, best));
    }
}

zr_result zr_train_cut_stages(struct zr_train_config *config, zr_arena *host_arena)
{
    struct weight weights[ZR_MAX_WORLD];
    zr_result result = ZR_OK;
    if (config->stages.ranks <= 1)
        return ZR_OK;
    zr_stages_cut_equally(&config->stages, config->shape.layers);
    if (config->pipeline_cut == ZR_CUT_EQUAL)
        return ZR_OK;
    for (unsigned r = 0; r < config->stages.ranks && result == ZR_OK; r++)
        result = weigh_rank(&weights[r], config, r, host_arena);
    if (result == ZR_OK)
        hand_out(config, weights);
    return result;
}
