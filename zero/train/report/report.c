/* report.c: tables of the byte plan and of the end of a run. report_json.c writes the same numbers as
 * JSON. */
#define _GNU_SOURCE
#include "zero/train/report/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "zero/engine/meter.h"
#include "zero/engine/zerone.h"
#include "zero/train/report/number.h"
#include "zero/train/report/terminal.h"

/* ---- Bytes --------------------------------------------------------------------------------------------- */

/* Whether all ranks have the same numbers, except for `other` (records, stacks). */
static bool ranks_agree(const struct zr_rank_report *ranks, unsigned world)
{
    for (unsigned r = 1; r < world; r++)
        for (int tag = 0; tag < ZR_TAG_OTHER; tag++)
            if (ranks[r].planned_by_tag_bytes[tag] != ranks[0].planned_by_tag_bytes[tag] ||
                ranks[r].peak_by_tag_bytes[tag] != ranks[0].peak_by_tag_bytes[tag])
                return false;
    return true;
}

/* The rank with the largest plan. */
static unsigned largest_rank(const struct zr_rank_report *ranks, unsigned world)
{
    unsigned largest = 0;
    for (unsigned r = 1; r < world; r++)
        if (ranks[r].planned_bytes > ranks[largest].planned_bytes)
            largest = r;
    return largest;
}

static void describe_ranks(char out[64], const struct zr_rank_report *ranks, unsigned world)
{
    if (world == 1)
        out[0] = '\0';
    else if (ranks_agree(ranks, world))
        snprintf(out, 64, ", each of %u ranks", world);
    else
        snprintf(out, 64, ", rank %u of %u, the largest", largest_rank(ranks, world), world);
}

/* Description of a tag for users. */
static const char *tag_description(int tag)
{
    static const char *const descriptions[ZR_TAG_COUNT] = {
        [ZR_TAG_PARAM] = "the model",
        [ZR_TAG_GRAD] = "gradients",
        [ZR_TAG_OPTIMIZER] = "", /* see zr_optimizer_state_words() */
        [ZR_TAG_MASTER] = "fp32 copies",
        [ZR_TAG_GATHERED] = "parameters gathered for use",
        [ZR_TAG_CHECKPOINT] = "inputs of the blocks, for backward",
        [ZR_TAG_ACTIVATION] = "all other activations",
        [ZR_TAG_COMM] = "communication buffers",
        [ZR_TAG_WORKSPACE] = "scratch of the kernels",
        [ZR_TAG_OFFLOAD] = "staging",
        [ZR_TAG_OTHER] = "records, stacks, heap",
    };
    return descriptions[tag];
}

static struct zr_zerone_counts zerone_counts(const struct zr_train_config *config)
{
    const struct zr_compression how = zr_train_compression(config);
    return zr_zerone_counts(&how, config->steps);
}

static void print_zerone(struct zr_text_page *page, const struct zr_train_config *config)
{
    const struct zr_zerone_counts counts = zerone_counts(config);
    zr_text_print(&page->text,
                  "0/1 Adam: of %" PRIu64 " steps %" PRIu64 " send gradients in full precision, %" PRIu64
                  " send signs, %" PRIu64 " are local\n",
                  config->steps, counts.full, counts.sent, counts.local);
}

double zr_report_mean_sent(const struct zr_train_config *config, const struct zr_rank_report *rank)
{
    const struct zr_zerone_counts counts = zerone_counts(config);
    return config->steps ? ((double)counts.full * (double)rank->planned_full_bytes +
                            (double)counts.sent * (double)rank->planned_sent_bytes) /
                               (double)config->steps
                         : 0;
}

static void print_groups(struct zr_text_page *page, const struct zr_train_config *config)
{
    const struct zr_outer *o = &config->outer;
    zr_text_print(
        &page->text,
        "%u groups train apart; SGD of rate %g with Nesterov momentum %g synchronises them every %u steps\n",
        config->groups, (double)o->rate, (double)o->momentum, o->period);
    if (o->fragments > 1)
        zr_text_print(&page->text, "in %u fragments, one every %u steps\n", o->fragments,
                      o->period / o->fragments);
    if (o->delay > 0)
        zr_text_print(&page->text, "an exchange takes %u %s; a group keeps %g of its own parameters\n",
                      o->delay, o->delay == 1 ? "step" : "steps", (double)o->mix);
}

/* Bytes that groups exchange, as a share of those of sums of gradients in each step. */
static double exchanged_share(const struct zr_train_config *config, const struct zr_outer_report *outer)
{
    return (double)outer->round_bytes / ((double)outer->step_bytes * config->outer.period);
}

static void print_model(struct zr_text_page *page, const struct zr_train_config *config, uint64_t parameters)
{
    const struct zr_shape *shape = &config->shape;
    char number[ZR_NUMBER_ROOM];
    zr_text_print(&page->text, "%s with %s parameters: %zu layers, %zu wide, %zu heads, %zu tokens\n",
                  shape->architecture == ZR_ARCH_LLAMA ? "LLaMA" : "GPT",
                  zr_number_counted(number, (double)parameters), shape->layers, shape->hidden, shape->heads,
                  shape->vocabulary);
    zr_text_print(&page->text, "%u %s, ", config->world, config->world == 1 ? "rank" : "ranks");
    if (zr_shape_tensor(shape) > 1)
        zr_text_print(&page->text, "%u of them to a layer%s, ", shape->tensor,
                      shape->sequence_parallel ? ", sequence parallel" : "");
    if (shape->context > 1)
        zr_text_print(&page->text, "%u of them to a sequence, ", shape->context);
    if (config->stages.ranks > 1)
        zr_text_print(&page->text, "%u pipeline stages, ", zr_stages_count(&config->stages));
    zr_text_print(&page->text, "ZeRO stage %u, %s; %u %s each\n", config->stage,
                  zr_train_precision_name(config), config->threads,
                  config->threads == 1 ? "thread" : "threads");
    if (zr_train_shares_parameters(config))
        zr_text_print(
            &page->text,
            "ranks are threads: data rank 0 keeps the parameters of all, and each updates a shard\n");
    if (config->master)
        zr_text_print(&page->text,
                      "ranks are threads: rank 0 has the optimizer state, updates, and sends parameters "
                      "to the others in each step\n");
    if (shape->fp8) {
        unsigned all, suited = zr_shape_fp8_matrices(shape, &all);
        zr_text_print(&page->text, "fp8: products by %u of a block's %u matrices%s\n", suited, all,
                      suited < all ? "; the others are made in bf16, as their sizes are no multiples of 16"
                                   : ", all else in bf16");
    }
    if (zr_train_compresses(config)) {
        zr_text_print(&page->text, "ranks send packed");
        zr_compress_print(&page->text, config);
        if (zr_train_warmup_settles(config))
            zr_text_print(&page->text, " after the variance has settled");
        else if (zr_compression_keeps_errors(&config->compression) && config->compress_warmup > 0 &&
                 !zr_compression_is_by(&config->compression, ZR_METHOD_ZERONE))
            zr_text_print(&page->text,
                          zr_compression_is_by(&config->compression, ZR_METHOD_LARGEST)
                              ? ", more numbers in the first %" PRIu64 " steps"
                              : " after %" PRIu64 " steps",
                          config->compress_warmup);
        zr_text_print(&page->text, "\n");
    }
    if (zr_compression_is_by(&config->compression, ZR_METHOD_ZERONE))
        print_zerone(page, config);
    if (config->compress_check)
        zr_text_print(&page->text,
                      config->compress_tolerance > 0
                          ? "the error of packing is measured every %" PRIu64
                            " steps; a kind is sent in full precision after an error above %g\n"
                          : "the error of packing is measured every %" PRIu64 " steps\n",
                      config->compress_check, config->compress_tolerance);
    if (config->outer.period > 0)
        print_groups(page, config);
    if (config->comm == ZR_TRAIN_COMM_PS)
        zr_text_print(&page->text, "the ranks are workers of %u parameter %s: --ps %s, --staleness %s\n",
                      config->servers, config->servers == 1 ? "server" : "servers", config->ps,
                      config->staleness);
    if (config->delayed_update)
        zr_text_print(&page->text,
                      "delayed update: a step computes without the gradients of the step before it, so "
                      "losses differ\n");
    zr_text_print(&page->text, "%s tokens a step, in sequences of %zu\n",
                  zr_number_grouped(number, zr_train_step_tokens(config)), shape->sequence);
    if (shape->documents)
        zr_text_print(&page->text, "documents end with token %d; attention stays inside of each\n",
                      (int)shape->eos);
    if (config->plans_vocabulary || config->plans_sequence || config->plans_threads) {
        zr_text_print(&page->text, "taken where not given:");
        if (config->plans_vocabulary)
            zr_text_print(&page->text, " --vocab %zu (GPT-2's)", shape->vocabulary);
        if (config->plans_sequence)
            zr_text_print(&page->text, " --seq %zu (GPT-2's)", shape->sequence);
        if (config->plans_threads)
            zr_text_print(&page->text, " --threads %u", config->threads);
        zr_text_print(&page->text, "\n");
    }
}

size_t zr_report_state_bytes(const size_t by_tag_bytes[ZR_TAG_COUNT])
{
    return by_tag_bytes[ZR_TAG_PARAM] + by_tag_bytes[ZR_TAG_GRAD] + by_tag_bytes[ZR_TAG_OPTIMIZER] +
           by_tag_bytes[ZR_TAG_MASTER];
}

static double stranded_percent(const struct zr_rank_report *rank)
{
    if (rank->planned_bytes == 0)
        return 0;
    return 100.0 * ((double)rank->planned_reserved_bytes / (double)rank->planned_bytes - 1);
}

/* Prints tags whose maximum is above their bytes at the total peak; the run's limits are these maxima. */
static void print_others(struct zr_text_page *page, const struct zr_rank_report *rank)
{
    const char *before = "  at other moments, at most:";
    char number[ZR_NUMBER_ROOM];
    bool any = false;
    for (int tag = 0; tag < ZR_TAG_OTHER; tag++) {
        size_t max_bytes = rank->tag_limits.by_tag_bytes[tag];
        if (max_bytes <= rank->planned_by_tag_bytes[tag])
            continue;
        zr_text_print(&page->text, "%s %s %s", any ? "," : before, zr_tag_name((zr_tag)tag),
                      zr_number_grouped(number, max_bytes));
        any = true;
    }
    if (any)
        zr_text_print(&page->text, "\n");
}

/* Prints the host tier and its tags at its peak. */
static void print_host_tier(struct zr_text_page *page, const struct zr_rank_report *rank)
{
    char number[3][ZR_NUMBER_ROOM];
    bool any = false;
    zr_text_print(&page->text, "  %-11s %10s  %18s  in host memory; %s moved per step\n", "host tier",
                  zr_number_bytes(number[0], rank->planned_host_bytes),
                  zr_number_grouped(number[1], rank->planned_host_bytes),
                  zr_number_bytes(number[2], rank->planned_host_moved_bytes));
    for (int tag = 0; tag < ZR_TAG_OTHER; tag++) {
        size_t bytes = rank->planned_host_by_tag_bytes[tag];
        if (bytes == 0)
            continue;
        zr_text_print(&page->text, "%s %s %s", any ? "," : "    of it", zr_tag_name((zr_tag)tag),
                      zr_number_grouped(number[0], bytes));
        any = true;
    }
    zr_text_print(&page->text, "\n");
}

/* Prints the parameters and gradients that a stage keeps whole although it could shard them. */
static void print_whole(struct zr_text_page *page, const struct zr_train_config *config,
                        const struct zr_rank_report *rank, uint64_t parameters)
{
    char share[32] = "all";
    if ((zr_train_shards(config) - 1) * (size_t)ZR_COMM_LINE_BYTES > config->bucket_bytes)
        zr_text_print(&page->text, "  comm has more than --bucket-bytes: %d bytes for each other rank\n",
                      ZR_COMM_LINE_BYTES);
    if (rank->whole_gradients)
        zr_text_print(&page->text, "  keeps gradients whole, as stage 1: sharding them takes more than it "
                                   "saves here\n");
    if (rank->whole_parameters < parameters)
        snprintf(share, sizeof share, "%.1f %% of the",
                 100 * (double)rank->whole_parameters / (double)parameters);
    if (rank->whole_parameters)
        zr_text_print(
            &page->text,
            "  keeps %s parameters whole, as stage 2: gathering them takes more than it saves here\n", share);
}

zr_result zr_report_plan(const struct zr_train_config *config, uint64_t parameters,
                         const struct zr_rank_report *ranks, unsigned world)
{
    const struct zr_rank_report *rank = &ranks[largest_rank(ranks, world)];
    char number[2][ZR_NUMBER_ROOM], which[64], heading[128];
    struct zr_text_page page;

    zr_page_open(&page, config);
    print_model(&page, config, parameters);
    describe_ranks(which, ranks, world);
    snprintf(heading, sizeof heading, "Byte plan%s", which);
    zr_page_heading(&page, heading);
    for (int tag = 0; tag < ZR_TAG_COUNT; tag++) {
        size_t bytes = rank->planned_by_tag_bytes[tag];
        if (bytes == 0)
            continue;
        zr_text_print(&page.text, "  %-11s %10s  %18s  %s", zr_tag_name((zr_tag)tag),
                      zr_number_bytes(number[0], bytes), zr_number_grouped(number[1], bytes),
                      tag_description(tag));
        if (tag == ZR_TAG_OPTIMIZER)
            zr_optimizer_state_words(&page.text, config);
        zr_text_print(&page.text, "\n");
    }
    zr_text_print(&page.text, "  %-11s %10s  %18s  at the peak of a step\n", "total",
                  zr_number_bytes(number[0], rank->planned_bytes),
                  zr_number_grouped(number[1], rank->planned_bytes));
    zr_text_print(&page.text, "  %-11s %10s  %18s  in whole granules: %.2f %% more\n", "reserved",
                  zr_number_bytes(number[0], rank->planned_reserved_bytes),
                  zr_number_grouped(number[1], rank->planned_reserved_bytes), stranded_percent(rank));
    if (config->logits_bytes)
        zr_text_print(&page.text, "  the head has logits of %s rows at a time\n",
                      zr_number_grouped(number[0], zr_train_shape(config, 0).logits_rows));
    if (rank->planned_host_bytes > 0)
        print_host_tier(&page, rank);
    if (rank->planned_nvme_bytes > 0)
        zr_text_print(&page.text, "  %-11s %10s  %18s  %s in a file; %s moved per step\n", "nvme",
                      zr_number_bytes(number[0], rank->planned_nvme_bytes),
                      zr_number_grouped(number[1], rank->planned_nvme_bytes),
                      config->offload_parameters != ZR_TIER_NVME  ? "optimizer state"
                      : config->offload_optimizer != ZR_TIER_NVME ? "parameters"
                                                                  : "optimizer state and parameters",
                      zr_number_bytes(which, rank->planned_nvme_moved_bytes));
    zr_text_print(&page.text, "  %-11s %10s  %18s  of the model, between steps\n", "state",
                  zr_number_bytes(number[0], zr_report_state_bytes(rank->planned_kept_by_tag_bytes)),
                  zr_number_grouped(number[1], zr_report_state_bytes(rank->planned_kept_by_tag_bytes)));
    if (zr_train_compresses(config))
        zr_text_print(&page.text, "  %-11s %10s  %18s  packed, sent by a rank per step%s\n", "sent",
                      zr_number_bytes(number[0], rank->planned_sent_bytes),
                      zr_number_grouped(number[1], rank->planned_sent_bytes),
                      rank->planned_full_bytes > 0 ? " that sends signs" : "");
    if (rank->planned_full_bytes > 0)
        zr_text_print(&page.text, "  %-11s %10s  %18s  the mean of all steps\n", "",
                      zr_number_bytes(number[0], (uint64_t)zr_report_mean_sent(config, rank)),
                      zr_number_grouped(number[1], (uint64_t)zr_report_mean_sent(config, rank)));
    if (config->outer.period > 0)
        zr_text_print(
            &page.text,
            "  %-11s %10s  %18s  sent by a rank to other groups in %u steps: 1/%.4g of sums in each step\n",
            "outer", zr_number_bytes(number[0], rank->outer.round_bytes),
            zr_number_grouped(number[1], rank->outer.round_bytes), config->outer.period,
            1 / exchanged_share(config, &rank->outer));
    if (config->save_background)
        zr_text_print(&page.text, "  %-11s %10s  %18s  a copy of the state, for saves in the background\n",
                      "snapshot", zr_number_bytes(number[0], rank->planned_snapshot_bytes),
                      zr_number_grouped(number[1], rank->planned_snapshot_bytes));
    if (config->redundancy > 1)
        zr_text_print(&page.text,
                      "  %-11s %10s  %18s  of state, sent to another rank per step, which has two\n",
                      "copies", zr_number_bytes(number[0], rank->planned_backup_bytes),
                      zr_number_grouped(number[1], rank->planned_backup_bytes));
    if (config->compress_check)
        zr_text_print(&page.text, "  %-11s %10s  %18s  at most, sent by a rank per check of packing\n",
                      "checks", zr_number_bytes(number[0], rank->planned_check_bytes),
                      zr_number_grouped(number[1], rank->planned_check_bytes));
    if (config->master)
        zr_report_master_plan(&page, ranks, world);
    print_others(&page, rank);
    print_whole(&page, config, rank, parameters);
    if (!ranks_agree(ranks, world)) {
        size_t min_bytes = rank->planned_bytes;
        for (unsigned r = 0; r < world; r++)
            min_bytes = ranks[r].planned_bytes < min_bytes ? ranks[r].planned_bytes : min_bytes;
        zr_text_print(&page.text, "  the smallest rank takes %s in all\n",
                      zr_number_bytes(number[0], min_bytes));
    }
    if (config->flops_per_second == 0 && config->stages.ranks <= 1) /* else timeline or stages follow */
        zr_text_print(&page.text, "\n");
    return zr_text_flush(&page.text);
}

/* ---- Under a limit ------------------------------------------------------------------------------------- */

static void print_over(struct zr_text_page *page, const char *name, size_t bytes, size_t running,
                       size_t limit)
{
    char number[3][ZR_NUMBER_ROOM];
    zr_text_print(&page->text, "  %-11s %10s  %11s  %s%s\n", name, zr_number_bytes(number[0], bytes),
                  zr_number_bytes(number[1], running),
                  running > limit ? zr_number_bytes(number[2], running - limit) : "fits",
                  running > limit ? " over" : "");
}

/* The options of a choice that differ from the request. */
static void describe_choice(char out[128], const struct zr_train_config *config,
                            const struct zr_limit_choice *choice)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    struct zr_text text;
    zr_text_start(&text, NULL, out, 128);
    if (choice->stage != config->stage)
        zr_text_print(&text, " --stage %u", choice->stage);
    if (choice->reduce != config->reduce)
        zr_text_print(&text, " --reduce each");
    if (choice->recompute != config->shape.recompute)
        zr_text_print(&text, " --recompute %s", recompute[choice->recompute]);
    if (choice->tiles != zr_shape_tiles(&config->shape))
        zr_text_print(&text, " --tile %u", choice->tiles);
    if (choice->batch != config->shape.batch)
        zr_text_print(&text, " --batch %zu", choice->batch);
    if (choice->layers != config->shape.layers)
        zr_text_print(&text, " --layers %zu", choice->layers);
}

/* Bytes planned in one arena and its limit. */
struct held {
    const char *name;
    const size_t *by_tag_bytes; /* [ZR_TAG_COUNT] */
    size_t peak_bytes, reserved_bytes, limit_bytes;
};

static void print_held(struct zr_text_page *page, const struct held *held)
{
    char number[ZR_NUMBER_ROOM];
    size_t running = 0;
    if (held->limit_bytes == 0)
        return;
    zr_text_print(&page->text, "  %-11s %10s  %11s\n", held->name, "planned", "with those above");
    for (int tag = 0; tag < ZR_TAG_COUNT; tag++) {
        running += held->by_tag_bytes[tag];
        if (held->by_tag_bytes[tag])
            print_over(page, zr_tag_name((zr_tag)tag), held->by_tag_bytes[tag], running, held->limit_bytes);
    }
    print_over(page, "in granules", held->reserved_bytes - held->peak_bytes, held->reserved_bytes,
               held->limit_bytes);
    zr_text_print(&page->text, "  %-11s %10s\n", "limit", zr_number_bytes(number, held->limit_bytes));
}

static void print_raised(struct zr_text_page *page, const char *option, size_t reserved_bytes,
                         size_t limit_bytes)
{
    char number[ZR_NUMBER_ROOM];
    if (limit_bytes > 0 && reserved_bytes > limit_bytes)
        zr_text_print(&page->text, "  %10s  --%s %zu\n", zr_number_bytes(number, reserved_bytes), option,
                      reserved_bytes);
}

zr_result zr_report_limit(const struct zr_train_config *config, const struct zr_limit_advice *advice)
{
    const struct zr_byte_plan *plan = &advice->plan;
    char number[ZR_NUMBER_ROOM], options[128];
    struct zr_text_page page;

    zr_page_open(&page, config);
    zr_page_heading(&page, "What does not fit, per rank");
    print_held(&page, &(struct held){"", plan->peak_by_tag_bytes, plan->peak_bytes, plan->peak_reserved_bytes,
                                     config->memory_limit_bytes});
    print_held(&page, &(struct held){"host tier", plan->host_peak_by_tag_bytes, plan->host_bytes,
                                     plan->host_reserved_bytes, config->host_limit_bytes});
    zr_page_heading(&page, "What would fit, by its plan");
    for (size_t i = 0; i < advice->count; i++) {
        describe_choice(options, config, &advice->choices[i]);
        zr_text_print(&page.text, "  %10s  %s\n", zr_number_bytes(number, advice->choices[i].reserved_bytes),
                      options + 1);
    }
    print_raised(&page, "memory-limit", plan->peak_reserved_bytes, config->memory_limit_bytes);
    print_raised(&page, "host-limit", plan->host_reserved_bytes, config->host_limit_bytes);
    zr_text_print(&page.text, "\n");
    return zr_text_flush(&page.text);
}

zr_result zr_report_found(const struct zr_train_config *config, const struct zr_limit_found *found)
{
    const char *name = config->find_max == ZR_LIMIT_BATCH ? "batch" : "layers";
    char number[3][ZR_NUMBER_ROOM];
    struct zr_text_page page;

    bool host_over = config->host_limit_bytes && found->beyond_host_bytes > config->host_limit_bytes,
         nvme_over = config->nvme_limit_bytes && found->beyond_nvme_bytes > config->nvme_limit_bytes;
    zr_page_open(&page, config);
    zr_text_print(&page.text, "--%s %zu is the largest that fits: its plan takes %s bytes of %s", name,
                  found->value, zr_number_grouped(number[0], found->reserved_bytes),
                  zr_number_grouped(number[1], config->memory_limit_bytes));
    if (config->host_limit_bytes)
        zr_text_print(&page.text, ", %s of the host tier's %s",
                      zr_number_grouped(number[0], found->host_bytes),
                      zr_number_grouped(number[1], config->host_limit_bytes));
    if (config->nvme_limit_bytes)
        zr_text_print(&page.text, ", %s of nvme's %s", zr_number_grouped(number[0], found->nvme_bytes),
                      zr_number_grouped(number[1], config->nvme_limit_bytes));
    if (found->beyond_reserved_bytes <= config->memory_limit_bytes && (host_over || nvme_over))
        zr_text_print(
            &page.text, "; --%s %zu takes %s of %s", name, found->value + 1,
            zr_number_grouped(number[2], host_over ? found->beyond_host_bytes : found->beyond_nvme_bytes),
            host_over ? "the host tier" : "nvme");
    else if (found->beyond_reserved_bytes == SIZE_MAX)
        zr_text_print(&page.text, ", and --%s %zu is beyond what a machine can address", name,
                      found->value + 1);
    else if (found->beyond_reserved_bytes)
        zr_text_print(&page.text, ", that of --%s %zu %s", name, found->value + 1,
                      zr_number_grouped(number[2], found->beyond_reserved_bytes));
    else
        zr_text_print(&page.text, ", and more cannot be asked for");
    zr_text_print(&page.text, "\n\n");
    return zr_text_flush(&page.text);
}

/* Options of a strategy, each after a blank. */
static void describe_strategy(char *out, size_t size, const struct zr_strategy *strategy)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    snprintf(out, size, "--tp %u --pp %u%s --stage %u --recompute %s --accumulate %u%s%s", strategy->tensor,
             strategy->pipeline,
             strategy->pipeline == 1         ? ""
             : strategy->cut == ZR_CUT_EQUAL ? " --pipeline-cut equal"
                                             : " --pipeline-cut memory",
             strategy->stage, recompute[strategy->recompute], strategy->micro_batches,
             strategy->partition ? " --partition-activations" : "",
             strategy->offload ? " --checkpoint-offload" : "");
}

zr_result zr_report_strategies(const struct zr_train_config *config, const struct zr_strategies *found)
{
    char options[192], number[2][ZR_NUMBER_ROOM];
    struct zr_text_page page;
    zr_page_open(&page, config);
    zr_page_heading(&page, "The fastest that fit, by --zero-r auto");
    zr_text_print(&page.text, "  %10s  %10s\n", "step", "reserved");
    for (unsigned i = 0; i < found->count; i++) {
        describe_strategy(options, sizeof options, &found->best[i]);
        zr_text_print(&page.text, "  %7.3f ms  %10s  %s%s\n", 1e3 * found->best[i].step_seconds,
                      zr_number_bytes(number[0], found->best[i].reserved_bytes), options,
                      i == 0 ? "  (taken)" : "");
    }
    zr_text_print(
        &page.text,
        "  by %u plans and %u timelines, of %s bytes at most; tokens of a step are the same in all\n\n",
        found->planned, found->timed, zr_number_grouped(number[1], config->memory_limit_bytes));
    return zr_text_flush(&page.text);
}

/* A line with planned and measured bytes. */
struct byte_line {
    const char *name;
    const char *note; /* explains an exact line whose numbers may differ; NULL: they must be equal */
    size_t planned, measured;
    bool exact;       /* planned and measured bytes must be equal */
    size_t max_bytes; /* maximum of an exact line with a note at any time of the plan */
};

static void print_byte_line(struct zr_text_page *page, const struct byte_line *line)
{
    char number[2][ZR_NUMBER_ROOM];
    const char *verdict = line->note;
    bool equal = line->planned == line->measured;

    if (line->exact)
        verdict = equal ? (page->terminal.utf8 ? "✓ as planned" : "as planned")
                  : line->note && line->measured <= line->max_bytes ? line->note
                                                                    : "DIFFERS";
    zr_text_print(&page->text, "  %-11s %18s  %18s  %s\n", line->name,
                  line->planned || line->exact ? zr_number_grouped(number[0], line->planned) : "-",
                  zr_number_grouped(number[1], line->measured), verdict);
}

static void print_rank_bytes(struct zr_text_page *page, const struct zr_rank_report *rank,
                             const struct zr_training_report *run)
{
    const char *unless = zr_run_updated(run) ? NULL
                         : run->all_skipped  ? "of an update, and none was made"
                                             : "of a step, and none was made";
    size_t planned = 0, measured = 0;
    for (int tag = 0; tag < ZR_TAG_OTHER; tag++) {
        struct byte_line line = {.name = zr_tag_name((zr_tag)tag),
                                 .note = unless,
                                 .planned = rank->planned_by_tag_bytes[tag],
                                 .measured = rank->peak_by_tag_bytes[tag],
                                 .exact = true,
                                 .max_bytes = rank->tag_limits.by_tag_bytes[tag]};
        planned += line.planned;
        measured += line.measured;
        if (line.planned || line.measured)
            print_byte_line(page, &line);
    }
    print_byte_line(
        page, &(struct byte_line){"tensors", unless, planned, measured, true, rank->tag_limits.total_bytes});
    if (rank->planned_host_bytes > 0)
        print_byte_line(page,
                        &(struct byte_line){"host tier", unless, rank->planned_host_bytes,
                                            rank->peak_host_tier_bytes, true, rank->planned_host_bytes});
    if (rank->planned_nvme_bytes > 0)
        print_byte_line(page, &(struct byte_line){"nvme", unless, rank->planned_nvme_bytes, rank->nvme_bytes,
                                                  true, rank->planned_nvme_bytes});
    print_byte_line(page, &(struct byte_line){"other", tag_description(ZR_TAG_OTHER),
                                              rank->planned_by_tag_bytes[ZR_TAG_OTHER],
                                              rank->peak_by_tag_bytes[ZR_TAG_OTHER], false, 0});
    print_byte_line(page,
                    &(struct byte_line){"reserved", "whole granules, with other",
                                        rank->planned_reserved_bytes, rank->peak_reserved_bytes, false, 0});
    print_byte_line(
        page, &(struct byte_line){"stranded", "free, usable by no block", 0, rank->stranded_bytes, false, 0});
    print_byte_line(page, &(struct byte_line){"resident", "the process at its largest", 0,
                                              rank->peak_resident_bytes, false, 0});
}

static bool keeps_to_plan(const struct zr_rank_report *rank, bool updated)
{
    for (int tag = 0; !updated && tag < ZR_TAG_OTHER; tag++)
        if (rank->peak_by_tag_bytes[tag] > rank->tag_limits.by_tag_bytes[tag])
            return false;
    return !updated || memcmp(rank->planned_by_tag_bytes, rank->peak_by_tag_bytes,
                              ZR_TAG_OTHER * sizeof *rank->peak_by_tag_bytes) == 0;
}

/* Chooses the rank to show: the first that differs from its plan; else any rank if all agree, else the
 * largest. */
static unsigned choose_rank(char which[64], const struct zr_training_report *run)
{
    for (unsigned r = 0; r < run->world && run->world > 1; r++)
        if (!keeps_to_plan(&run->ranks[r], zr_run_updated(run))) {
            snprintf(which, 64, ", rank %u of %u, which differs", r, run->world);
            return r;
        }
    describe_ranks(which, run->ranks, run->world);
    return ranks_agree(run->ranks, run->world) ? 0 : largest_rank(run->ranks, run->world);
}

static void print_bytes(struct zr_text_page *page, const struct zr_training_report *run)
{
    char which[64], heading[128];
    unsigned rank = choose_rank(which, run);

    snprintf(heading, sizeof heading, "Bytes at the peak%s", which);
    zr_page_heading(page, heading);
    zr_text_print(&page->text, "  %-11s %18s  %18s\n", "", "planned", "measured");
    print_rank_bytes(page, &run->ranks[rank], run);
}

/* ---- The end of a run ---------------------------------------------------------------------------------- */

static void print_loss(struct zr_text_page *page, const struct zr_training_report *run)
{
    const char *unit = run->config->bytes ? "byte" : "token";
    char heading[64];

    snprintf(heading, sizeof heading, "Loss, nats per %s", unit);
    zr_page_heading(page, heading);
    if (run->steps_count == 0)
        zr_text_print(&page->text,
                      "  no step was left to do: the checkpoint stands at %" PRIu64 "; give more --steps",
                      run->resumed_step);
    if (run->all_skipped)
        zr_text_print(
            &page->text,
            "  no step was updated: in each a gradient was not finite in fp16; the loss scale is now %g\n",
            (double)run->scaling.scale);
    if (run->config->speculative_bytes)
        zr_text_print(&page->text,
                      "  speculative update: in %" PRIu64 " of %zu steps, and %" PRIu64
                      " were rolled back, for clipping or a gradient that is not finite\n",
                      run->speculative_updates, run->steps_count, run->rolled_back_updates);
    zr_chart_draw(&page->text, &(struct zr_chart){.values = run->loss,
                                                  .count = run->steps_count,
                                                  .first = run->resumed_step + 1,
                                                  .columns = page->terminal.columns,
                                                  .rows = 8,
                                                  .utf8 = page->terminal.utf8});
    if (run->steps_count > 0)
        zr_text_print(&page->text, "  training    %.4f %s %.4f", run->loss[0],
                      page->terminal.utf8 ? "→" : "->", run->loss[run->steps_count - 1]);
    if (run->validated)
        zr_text_print(&page->text, "\n  validation  %.4f nats, %.3f bits per %s, on held-out text%s",
                      run->validation_loss, run->validation_loss / log(2), unit,
                      run->config->outer.period > 0 ? ", of the last synchronisation" : "");
    zr_text_print(&page->text, "\n");
}

static void print_error_of_packing(struct zr_text_page *page, const struct zr_compression_check *check)
{
    char number[ZR_NUMBER_ROOM];
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++) {
        const char *name = zr_compressed_kind_name((enum zr_compressed_kind)kind);
        if (isfinite(check->error[kind]))
            zr_text_print(&page->text,
                          "  %.3g is the relative error of packed %s after %" PRIu64 " updates\n",
                          check->error[kind], name, check->steps);
        if (check->full_since[kind] > 0)
            zr_text_print(&page->text, "  %s are sent in full precision since %" PRIu64 " updates\n", name,
                          check->full_since[kind]);
    }
    if (check->warmup_steps > 0)
        zr_text_print(&page->text, "  the warm-up of gradients took %" PRIu64 " updates\n",
                      check->warmup_steps);
    else if (check->variance_ratio > 0)
        zr_text_print(&page->text, "  the variance has not settled: its last ratio is %.3f\n",
                      check->variance_ratio);
    if (check->sent_bytes > 0)
        zr_text_print(&page->text, "  %s bytes sent per rank to check packing\n",
                      zr_number_grouped(number, check->sent_bytes));
}

static void print_exchanges(struct zr_text_page *page, const struct zr_training_report *run)
{
    const struct zr_outer_report *outer = &run->ranks[0].outer;
    char number[2][ZR_NUMBER_ROOM];
    zr_text_print(
        &page->text,
        "  %s bytes sent per rank to other groups in %s exchanges%s: 1/%.4g of sums of gradients in each "
        "step\n",
        zr_number_grouped(number[0], outer->sent_bytes), zr_number_grouped(number[1], outer->merges),
        outer->sent_bytes == outer->planned_bytes ? ", as planned" : "",
        1 / exchanged_share(run->config, outer));
}

double zr_report_copy_wait(const struct zr_rank_report *rank)
{
    return rank->backup.count ? (double)rank->backup.waited_ns * 1e-9 / (double)rank->backup.count : 0;
}

/* Copies of state on other ranks: bytes, and the time that steps waited for them. */
static void print_copies(struct zr_text_page *page, const struct zr_training_report *run)
{
    const struct zr_rank_report *rank = &run->ranks[0];
    char number[ZR_NUMBER_ROOM];
    double waited = 0;
    for (unsigned r = 0; r < run->world; r++)
        waited += zr_report_copy_wait(&run->ranks[r]) / run->world;
    zr_text_print(
        &page->text,
        "  %s bytes of state sent per rank and step to another rank%s; %.1f %% of a step, %.3g ms, waits for them\n",
        zr_number_grouped(number, rank->backup.image_bytes),
        rank->backup.image_bytes == rank->planned_backup_bytes ? ", as planned" : "",
        100 * waited * run->tokens_per_second / (double)zr_train_step_tokens(run->config), 1e3 * waited);
}

static void print_speed(struct zr_text_page *page, const struct zr_training_report *run)
{
    char number[3][ZR_NUMBER_ROOM];
    uint64_t tokens_per_step = zr_train_step_tokens(run->config);

    zr_page_heading(page, "Speed");
    zr_text_print(&page->text, "  %s tokens/s, %.1f ms a step; %zu %s in %s\n",
                  zr_number_grouped(number[0], (uint64_t)(run->tokens_per_second + 0.5)),
                  run->tokens_per_second > 0 ? 1e3 * (double)tokens_per_step / run->tokens_per_second : 0.0,
                  run->steps_count, run->steps_count == 1 ? "step" : "steps",
                  zr_number_seconds(number[1], run->seconds));
    if (run->saves_count > 0)
        zr_text_print(&page->text, "  %u %s%s stopped training for %.3g ms in all\n", run->saves_count,
                      run->saves_count == 1 ? "save" : "saves",
                      run->config->save_background ? " in the background" : "", 1e3 * run->saves_seconds);
    zr_text_print(&page->text, "  %s memory calls to the system in the last step\n",
                  zr_number_grouped(number[0], run->ranks[0].driver_calls_last_step));
    if (run->world > 1) {
        uint64_t busy = 0, exposed = 0;
        for (unsigned r = 0; r < run->world; r++) {
            busy += run->ranks[r].comm_busy_ns;
            exposed += run->ranks[r].comm_exposed_ns;
        }
        double hidden = busy > exposed ? 100.0 * (double)(busy - exposed) / (double)busy : 0;
        if (zr_run_updated(run) && !zr_train_is_served(run->config))
            zr_text_print(&page->text, "  %s elements sent per rank and step\n",
                          zr_number_grouped(number[0], run->ranks[0].sent_elements_per_step));
        if (zr_run_updated(run) && zr_train_compresses(run->config))
            zr_text_print(
                &page->text, "  %s bytes for them, packed%s\n",
                zr_number_grouped(number[0], run->ranks[0].sent_bytes_per_step),
                run->ranks[0].sent_bytes_per_step == run->ranks[0].planned_sent_bytes ? ", as planned" : "");
        if (run->ranks[0].planned_full_bytes > 0)
            zr_text_print(&page->text, "  %s bytes sent per rank and step, as the mean of %zu steps\n",
                          zr_number_grouped(number[0], (uint64_t)run->ranks[0].mean_sent_bytes),
                          run->steps_count);
        if (run->config->master)
            zr_report_master_speed(page, run);
        if (run->config->outer.period > 0)
            print_exchanges(page, run);
        if (run->config->redundancy > 1)
            print_copies(page, run);
        print_error_of_packing(page, &run->compression);
        zr_text_print(&page->text, "  %.0f %% of communication hidden behind work\n", hidden);
    }
}

/* Number of columns of a text: bytes that do not continue a UTF-8 character. */
static unsigned width_of(const char *text, size_t bytes)
{
    unsigned width = 0;
    for (size_t i = 0; i < bytes; i++)
        width += ((unsigned char)text[i] & 0xc0) != 0x80;
    return width;
}

/* Prints text with its line ends, and wraps long lines between words. */
static void print_wrapped(struct zr_text_page *page, const char *text, size_t bytes)
{
    unsigned column = 0;
    for (size_t at = 0; at < bytes;) {
        size_t word = 0;
        while (at + word < bytes && text[at + word] != ' ' && text[at + word] != '\n')
            word++;
        unsigned width = width_of(text + at, word);
        if (column > 0 && column + 1 + width > page->terminal.columns) {
            zr_text_put(&page->text, "\n", 1);
            column = 0;
        } else if (at > 0 && text[at - 1] == ' ') {
            zr_text_put(&page->text, " ", 1);
            column++;
        }
        zr_text_put(&page->text, text + at, word);
        column += width;
        at += word;
        if (at < bytes && text[at] == '\n') {
            zr_text_put(&page->text, "\n", 1);
            column = 0;
        }
        at++;
    }
    if (column > 0)
        zr_text_put(&page->text, "\n", 1);
}

static void print_sample(struct zr_text_page *page, const struct zr_training_report *run)
{
    if (!run->sample || run->sample_bytes == 0)
        return;
    zr_page_heading(page, "A sample of its text");
    print_wrapped(page, run->sample, run->sample_bytes);
}

/* Prints a command on as many lines as necessary, broken before options. */
static void print_command(struct zr_text_page *page, const char *command)
{
    unsigned column = 2;
    zr_text_put(&page->text, "  ", 2);
    while (*command) {
        const char *end = strstr(command + 1, " --");
        size_t bytes = end ? (size_t)(end - command) : strlen(command);
        unsigned width = width_of(command, bytes);
        if (column > 2 && column + width + 2 > page->terminal.columns) {
            zr_text_print(&page->text, " \\\n     ");
            column = 5;
        }
        zr_text_put(&page->text, command, bytes);
        column += width;
        command += bytes;
    }
    zr_text_put(&page->text, "\n", 1);
}

/* Suggests the next command: continue from the checkpoint, or train longer with --save. */
static void print_next(struct zr_text_page *page, const struct zr_training_report *run)
{
    const struct zr_train_config *config = run->config;
    bool ended_early = run->resumed_step + run->steps_count < config->steps;
    char steps[ZR_NUMBER_ROOM], command[6 * ZR_TRAIN_PATH_ROOM];
    struct zr_text text;
    snprintf(steps, sizeof steps, "%" PRIu64, ended_early ? config->steps : 2 * config->steps);
    const char *folder = config->save[0] ? config->save : "checkpoints";
    struct zr_args_change changes[] = {
        {"steps", steps},
        {"save", folder},
        {"resume", config->save[0]     ? folder
                   : config->resume[0] ? config->resume
                                       : NULL},
        {"sample", config->sample ? NULL : "400"},
    };
    size_t count = sizeof changes / sizeof *changes - (config->sample ? 1 : 0);

    zr_page_heading(page, "Next");
    zr_text_print(&page->text, "  %s:\n",
                  config->save[0] ? "go on from where it stands" : "train longer, and keep what it learns");
    zr_text_start(&text, NULL, command, sizeof command);
    zr_args_print(&text, config, changes, count);
    print_command(page, command);
}

zr_result zr_report_end(const struct zr_training_report *run)
{
    struct zr_text_page page;

    zr_page_open(&page, run->config);
    print_loss(&page, run);
    if (run->steps_count > 0)
        print_speed(&page, run);
    print_bytes(&page, run);
    print_sample(&page, run);
    print_next(&page, run);
    return zr_text_flush(&page.text);
}

/* ---- zr-train eval ------------------------------------------------------------------------------------- */

zr_result zr_report_evaluation(const struct zr_train_config *config, const struct zr_evaluation *evaluation)
{
    struct zr_text_page page;
    char number[ZR_NUMBER_ROOM];
    double loss = evaluation->nats / (double)evaluation->tokens;
    zr_page_open(&page, config);
    zr_page_heading(&page, "Evaluation");
    zr_text_print(&page.text, "  loss            %.6f nats per token\n", loss);
    zr_text_print(&page.text, "  perplexity      %.6g\n", exp(loss));
    if (evaluation->has_bytes)
        zr_text_print(&page.text, "  bits per byte   %.6f\n", zr_report_bits_per_byte(evaluation));
    zr_text_print(&page.text, "  tokens          %s in ", zr_number_grouped(number, evaluation->tokens));
    zr_text_print(&page.text, "%s windows of %zu, ", zr_number_grouped(number, evaluation->windows),
                  config->shape.sequence);
    zr_text_print(&page.text, "%zu apart\n", config->stride);
    zr_text_print(&page.text, "  seconds         %.3g\n", evaluation->seconds);
    return zr_text_flush(&page.text);
}
