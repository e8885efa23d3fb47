/* resolve_options.c: see resolve_options.h. */
#include "zero/train/resolve_options.h"

#include <stdlib.h>

#include "zero/train/settings/args.h"
#include "zero/train/rehearse.h"
#include "zero/train/memory_limit.h"
#include "zero/train/rank/rank_plan.h"
#include "zero/train/settings/flags.h"
#include "zero/train/settings/offload.h"

/* Sends the stage with the smallest plan to the parent; of equal stages the lowest, which has the least
 * traffic. */
static zr_result smallest_stage(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_train_config changed = *config;
    struct zr_stage_choice choice = {.reserved_bytes = SIZE_MAX};
    for (changed.stage = 0; changed.stage <= 3; changed.stage++) {
        struct zr_byte_plan plan;
        if (!zr_train_takes_stage(config, changed.stage))
            continue;
        zr_result result = zr_rank_plan(&plan, &changed, 0, host_arena);
        if (result != ZR_OK)
            return result;
        if (plan.peak_reserved_bytes < choice.reserved_bytes)
            choice = (struct zr_stage_choice){changed.stage, plan.peak_reserved_bytes};
    }
    return zr_child_answer(&choice, sizeof choice);
}

int zr_resolve_stage(struct zr_train_config *config, struct zr_stage_choice *out)
{
    int code = zr_child_ask(config, "--stage auto", smallest_stage, out, sizeof *out);
    if (code < 0)
        config->stage = out->stage;
    return code;
}

static zr_result search_strategy(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_strategies found;
    zr_result result = zr_strategy_search(&found, config, host_arena);
    return result == ZR_OK ? zr_child_answer(&found, sizeof found) : result;
}

int zr_resolve_strategy(struct zr_train_config *config, struct zr_strategies *out)
{
    int code = zr_child_ask(config, "--zero-r auto", search_strategy, out, sizeof *out);
    if (code < 0)
        zr_strategy_apply(config, &out->best[0]);
    return code;
}

static zr_result search_ratio(const struct zr_train_config *config, zr_arena *host_arena)
{
    double ratio;
    zr_result result = zr_offload_ratio_search(&ratio, config, host_arena);
    return result == ZR_OK ? zr_child_answer(&ratio, sizeof ratio) : result;
}

int zr_resolve_offload_ratio(struct zr_train_config *config)
{
    return zr_child_ask(config, "--offload-ratio auto", search_ratio, &config->offload_ratio,
                        sizeof config->offload_ratio);
}

static zr_result find_room(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_train_config changed = *config;
    struct zr_byte_plan plan;
    changed.speculative_bytes = SIZE_MAX;
    bool fits = zr_limit_plan_largest(&plan, &changed, host_arena) == ZR_OK &&
                zr_limit_fits(&changed, &plan) &&
                (config->dry_run || zr_offload_has_ample_space(&changed, &plan));
    return zr_child_answer(&fits, sizeof fits);
}

int zr_resolve_speculative_update(struct zr_train_config *config)
{
    bool fits = false;
    int code = config->speculates_if_room
                   ? zr_child_ask(config, "--speculative-update auto", find_room, &fits, sizeof fits)
                   : -1;
    config->speculative_bytes = fits ? SIZE_MAX : config->speculative_bytes;
    return code;
}

static zr_result find_logits(const struct zr_train_config *config, zr_arena *host_arena)
{
    size_t bytes;
    zr_result result = zr_limit_logits(&bytes, config, host_arena);
    return result == ZR_OK ? zr_child_answer(&bytes, sizeof bytes) : result;
}

int zr_resolve_logits_bytes(struct zr_train_config *config)
{
    bool open = config->backend == ZR_TRAIN_CUDA && config->memory_limit_bytes && !config->finds_max &&
                !zr_flag_given(config, "logits-bytes");
    return open ? zr_child_ask(config, "--memory-limit", find_logits, &config->logits_bytes,
                               sizeof config->logits_bytes)
                : -1;
}

static zr_result weigh_policy(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_plan_request request;
    struct zr_policy_use use;
    const char *folder = getenv("TMPDIR");
    zr_result result = zr_rank_request(&request, config, 0, host_arena);
    if (result == ZR_OK)
        result = zr_policy_weigh(&use, &request, (enum zr_policy)config->policy, config->memory_limit_bytes,
                                 folder && folder[0] ? folder : "/tmp");
    return result == ZR_OK ? zr_child_answer(&use, sizeof use) : result;
}

int zr_resolve_policy(struct zr_train_config *config)
{
    return config->policy == ZR_POLICY_ZR ? -1
                                          : zr_child_ask(config, "--policy", weigh_policy,
                                                         &config->policy_use, sizeof config->policy_use);
}

static zr_result measure_tiers(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_tiers_found found;
    enum zr_isa isa;
    zr_result result = zr_rank_choose_isa(&isa);
    if (result == ZR_OK)
        result = zr_offload_measure(&found, config, isa, host_arena);
    return result == ZR_OK ? zr_child_answer(&found, sizeof found) : result;
}

int zr_measure_tiers(struct zr_train_config *config)
{
    return zr_offload_has_to_measure(config)
               ? zr_child_ask(config, "nvme:DIR", measure_tiers, &config->found, sizeof config->found)
               : -1;
}

static zr_result cut_stages(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_train_config changed = *config;
    zr_result result = zr_train_cut_stages(&changed, host_arena);
    return result == ZR_OK ? zr_child_answer(changed.stages.layers, sizeof changed.stages.layers) : result;
}

int zr_resolve_pipeline_cut(struct zr_train_config *config)
{
    return config->stages.ranks > 1 ? zr_child_ask(config, "--pipeline-cut", cut_stages,
                                                   config->stages.layers, sizeof config->stages.layers)
                                    : -1;
}
