/* strategy_search.c: see strategy_search.h. Uses plans (rank_plan.c) and timelines (rank_time.c). */
#include "zero/train/strategy_search.h"

#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "zero/train/settings/flags.h"
#include "zero/train/report/number.h"
#include "zero/train/memory_limit.h"
#include "zero/train/rank/rank_plan.h"
#include "zero/train/settings/args.h"
#include "zero/train/report/terminal.h"

/* Wider tensor groups have no benefit: a layer's sums then wait for more ranks than a machine has. */
enum { TENSOR_MAX = 16 };
#define GRANULE_BYTES ((size_t)2 << 20)

/* Ways to keep activations, the fastest first. if_requested: the way is tried only if an option requests it,
 * because checkpoints are a small part of the memory in this search. */
static const struct kept {
    enum zr_recompute recompute;
    bool partition, offload, if_requested;
} kept_ways[] = {{ZR_RECOMPUTE_NONE, false, false, false},      {ZR_RECOMPUTE_NONE, true, false, true},
                 {ZR_RECOMPUTE_NONE, false, true, true},        {ZR_RECOMPUTE_NONE, true, true, true},
                 {ZR_RECOMPUTE_SELECTIVE, false, false, false}, {ZR_RECOMPUTE_SELECTIVE, true, false, true},
                 {ZR_RECOMPUTE_SELECTIVE, false, true, true},   {ZR_RECOMPUTE_SELECTIVE, true, true, true},
                 {ZR_RECOMPUTE_FULL, false, false, false},      {ZR_RECOMPUTE_FULL, true, false, false},
                 {ZR_RECOMPUTE_FULL, false, true, false},       {ZR_RECOMPUTE_FULL, true, true, false}};
enum { KEPT_WAYS = sizeof kept_ways / sizeof *kept_ways };
static const enum zr_pipeline_cut cuts[] = {ZR_CUT_EQUAL, ZR_CUT_MEMORY};
enum { CUTS = sizeof cuts / sizeof *cuts };

void zr_strategy_apply(struct zr_train_config *config, const struct zr_strategy *strategy)
{
    config->shape.tensor = strategy->tensor;
    config->stages.ranks = strategy->pipeline;
    config->stage = strategy->stage;
    config->shape.recompute = strategy->recompute;
    config->micro_batches = strategy->micro_batches;
    config->checkpoints.partition = strategy->partition;
    config->checkpoint_offload = strategy->offload;
    config->pipeline_cut = strategy->cut;
}

struct search {
    struct zr_strategies *out;
    const struct zr_train_config *config;
    zr_arena *host_arena;
};

/* Whether an option was given with another value. */
static bool is_fixed(const struct search *search, const char *name, bool differs)
{
    return differs && zr_flag_given(search->config, name);
}

/* Whether a recomputation equals none: selective recomputation does, with kernels that read no attention
 * probabilities. */
static bool equals_no_recompute(const struct zr_train_config *config, enum zr_recompute recompute)
{
    return recompute == ZR_RECOMPUTE_SELECTIVE && !zr_flag_given(config, "recompute") &&
           !zr_rank_kernels(config, ZR_ISA_PLAIN)->reads_probabilities;
}

static bool is_open(const struct search *search, const struct zr_strategy *strategy)
{
    const struct zr_train_config *c = search->config;
    return !is_fixed(search, "tp", strategy->tensor != zr_shape_tensor(&c->shape)) &&
           !is_fixed(search, "pp", strategy->pipeline != c->stages.ranks) &&
           !is_fixed(search, "stage", strategy->stage != c->stage) &&
           !is_fixed(search, "recompute", strategy->recompute != c->shape.recompute) &&
           !equals_no_recompute(c, strategy->recompute) &&
           !is_fixed(search, "partition-activations", !strategy->partition) &&
           !is_fixed(search, "checkpoint-offload", !strategy->offload) &&
           !is_fixed(search, "pipeline-cut", strategy->cut != c->pipeline_cut) &&
           !(strategy->pipeline == 1 && (strategy->cut != ZR_CUT_EQUAL || zr_pipeline_flag_given(c))) &&
           !(c->shape.sequence_parallel && (strategy->partition || strategy->tensor == 1));
}

/* Keeps the fastest strategies; of equal ones the first one found, which divides the model less. */
static void note(struct zr_strategies *out, const struct zr_strategy *strategy)
{
    unsigned at = out->count;
    while (at > 0 && strategy->step_seconds < out->best[at - 1].step_seconds)
        at--;
    if (at == ZR_STRATEGIES_SHOWN)
        return;
    unsigned last = out->count < ZR_STRATEGIES_SHOWN ? out->count++ : ZR_STRATEGIES_SHOWN - 1;
    memmove(&out->best[at + 1], &out->best[at], (last - at) * sizeof *out->best);
    out->best[at] = *strategy;
}

/* Applies a strategy; false: the combination is invalid. */
static bool configure(const struct search *search, const struct zr_strategy *strategy,
                      struct zr_train_config *out)
{
    *out = *search->config;
    zr_strategy_apply(out, strategy);
    return zr_train_takes_stage(out, strategy->stage) && zr_train_check_stages(out) == ZR_OK;
}

/* Whether the strategy fits; checks live bytes first, which is cheaper than a plan. */
static zr_result fits(struct search *search, struct zr_train_config *config, struct zr_strategy *strategy,
                      bool *out)
{
    size_t limit = config->memory_limit_bytes;
    zr_result result = zr_train_cut_stages(config, search->host_arena);
    if (result == ZR_OK)
        result = zr_limit_most_live(&strategy->reserved_bytes, config, GRANULE_BYTES, search->host_arena);
    search->out->planned++;
    *out = false;
    if (result == ZR_OK && strategy->reserved_bytes <= limit) {
        struct zr_byte_plan plan;
        result = zr_limit_plan_largest(&plan, config, search->host_arena);
        strategy->reserved_bytes = plan.peak_reserved_bytes;
        *out = result == ZR_OK && zr_limit_fits(config, &plan);
    }
    return result == ZR_ERR_ADDRESSES || result == ZR_ERR_MEMORY ? ZR_OK : result;
}

/* Tries every stage below *below and times those that fit; sets *below to the lowest that fits. */
static zr_result try_kept(struct search *search, struct zr_strategy strategy, unsigned *below)
{
    unsigned end = *below;
    zr_result result = ZR_OK;
    for (strategy.stage = 0; strategy.stage < end && result == ZR_OK; strategy.stage++) {
        struct zr_train_config config;
        bool found = false;
        for (unsigned i = 0; i < CUTS && result == ZR_OK && !found; i++) {
            strategy.cut = cuts[i];
            if (is_open(search, &strategy) && configure(search, &strategy, &config))
                result = fits(search, &config, &strategy, &found);
        }
        if (result != ZR_OK || !found)
            continue;
        *below = strategy.stage < *below ? strategy.stage : *below;
        result = zr_rank_step_seconds(&strategy.step_seconds, &config, search->host_arena);
        search->out->timed++;
        if (result == ZR_OK)
            note(search->out, &strategy);
    }
    return result;
}

/* Tries a mesh. A step always has the requested number of tokens, so fewer data ranks have more
 * micro-batches. A way that keeps less takes longer, so it is tried only if a lower stage then fits, or no
 * stage did before. */
static zr_result try_mesh(struct search *search, unsigned tensor, unsigned pipeline)
{
    struct zr_strategy strategy = {
        .tensor = tensor,
        .pipeline = pipeline,
        .micro_batches = search->config->micro_batches * tensor * pipeline /
                         (zr_train_mesh(search->config).tensor * zr_train_mesh(search->config).pipeline)};
    bool requested = zr_flag_given(search->config, "partition-activations") ||
                     zr_flag_given(search->config, "checkpoint-offload");
    zr_result result = ZR_OK;
    unsigned stage = 4;
    for (unsigned i = 0; i < KEPT_WAYS && result == ZR_OK && stage > 0; i++) {
        if (kept_ways[i].if_requested && !requested)
            continue;
        strategy.recompute = kept_ways[i].recompute;
        strategy.partition = kept_ways[i].partition;
        strategy.offload = kept_ways[i].offload;
        if (!strategy.partition || tensor > 1)
            result = try_kept(search, strategy, &stage);
    }
    return result;
}

static void say_progress(const struct search *search, unsigned tensor, unsigned pipeline)
{
    struct zr_terminal terminal;
    zr_terminal_find(&terminal, STDERR_FILENO);
    if (zr_train_leads(search->config) && terminal.live)
        zr_say("--zero-r auto: %u plans, now --tp %u --pp %u", search->out->planned, tensor, pipeline);
}

zr_result zr_strategy_search(struct zr_strategies *out, const struct zr_train_config *config,
                             zr_arena *host_arena)
{
    struct zr_train_config timed = *config;
    struct search search = {out, &timed, host_arena};
    char number[ZR_NUMBER_ROOM];
    unsigned world = config->world,
             divided = world / (unsigned)zr_shape_context(&config->shape); /* by the search; --cp is fixed */
    zr_result result = ZR_OK;

    memset(out, 0, sizeof *out);
    if (timed.flops_per_second <= 0) {
        timed.flops_per_second = ZR_STRATEGY_FLOPS;
        timed.bytes_per_second = ZR_STRATEGY_BANDWIDTH;
    }
    if (timed.host_bytes_per_second <= 0)
        timed.host_bytes_per_second = timed.bytes_per_second;
    for (unsigned tensor = 1; tensor <= divided && tensor <= TENSOR_MAX; tensor++)
        for (unsigned pipeline = 1; pipeline <= divided / tensor && result == ZR_OK; pipeline++) {
            if (divided % (tensor * pipeline) != 0)
                continue;
            say_progress(&search, tensor, pipeline);
            result = try_mesh(&search, tensor, pipeline);
        }
    if (result == ZR_OK && out->planned == 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "--zero-r auto: no mesh of --ranks %u allows all given options; leave out some of --tp, "
            "--pp, --stage, --recompute, --sequence-parallel, --partition-activations, --schedule and "
            "--interleave, or give other --ranks",
            world);
    if (result == ZR_OK && out->count == 0)
        return zr_fail(ZR_ERR_MEMORY,
                       "--zero-r auto: none of %u plans fits --memory-limit %s; give more --ranks, a smaller "
                       "--batch or model, or a higher limit",
                       out->planned, zr_number_grouped(number, config->memory_limit_bytes));
    return result;
}

/* ---- Offload ratio ------------------------------------------------------------------------------------- */

static zr_result fits_by(bool *out, struct zr_train_config *changed, double ratio, zr_arena *host_arena)
{
    struct zr_byte_plan plan;
    changed->offload_ratio = ratio;
    zr_result result = zr_limit_plan_largest(&plan, changed, host_arena);
    *out = result == ZR_OK && plan.peak_reserved_bytes <= changed->memory_limit_bytes;
    return result;
}

zr_result zr_offload_ratio_search(double *out, const struct zr_train_config *config, zr_arena *host_arena)
{
    enum { PARTS = 4096 };
    struct zr_train_config changed = *config;
    unsigned fits = PARTS, low = 0; /* in PARTS; no ratio below `low` fits; `fits` does if any does */
    bool fit;
    zr_result result = ZR_OK;
    while (low < fits && result == ZR_OK) {
        unsigned middle = low + (fits - low) / 2;
        result = fits_by(&fit, &changed, (double)middle / PARTS, host_arena);
        if (fit)
            fits = middle;
        else
            low = middle + 1;
    }
    *out = (double)fits / PARTS;
    return result;
}
