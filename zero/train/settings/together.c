/* together.c: see together.h. */
#define _GNU_SOURCE
#include "zero/train/settings/together.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/zr_comm.h"
#include "zero/train/memory_limit.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/flags.h"
#include "zero/train/settings/stages.h"

/* With a token shard the prompt is numbers of tokens, blanks or commas between. */
static bool prompt_is_tokens(const struct zr_train_config *config)
{
    for (const char *at = config->prompt; *(at += strspn(at, " ,"));) {
        char *end;
        errno = 0;
        if (*at < '0' || *at > '9' || strtoull(at, &end, 10) >= config->shape.vocabulary || errno != 0)
            return false;
        at = end;
    }
    return true;
}

bool zr_flag_given(const struct zr_train_config *config, const char *name)
{
    const struct zr_flag *flag = zr_flag_find(name);
    return flag && config->given[zr_flag_index(flag)];
}

static bool scales_loss(const struct zr_train_config *config)
{
    static const char *const names[] = {"loss-scale", "loss-scale-power", "loss-scale-window",
                                        "loss-scale-hysteresis", "min-loss-scale"};
    bool given = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        given |= zr_flag_given(config, names[i]);
    return given;
}

bool zr_pipeline_flag_given(const struct zr_train_config *config)
{
    return zr_flag_given(config, "schedule") || zr_flag_given(config, "interleave") ||
           zr_flag_given(config, "pipeline-cut");
}

/* --zero-r auto has still to choose it. */
static bool is_left_open(const struct zr_train_config *config, const char *name)
{
    return config->finds_strategy && !zr_flag_given(config, name);
}

/* Words for an option of a pipeline that has no meaning; NULL: there is none. */
static const char *beside_pipeline(const struct zr_train_config *config)
{
    const struct zr_stages *stages = &config->stages;
    if (stages->ranks == 1 && !is_left_open(config, "pp") && zr_pipeline_flag_given(config))
        return "--schedule, --interleave and --pipeline-cut: are of a pipeline; give --pp 2 or more, or leave "
               "them out";
    if (stages->schedule == ZR_PIPELINE_VHALF && stages->interleave > 0 && stages->interleave != 2)
        return "--interleave: --schedule vhalf has 2 stages on each rank; give 2, or leave it out";
    if (stages->schedule != ZR_PIPELINE_VHALF && stages->schedule != ZR_PIPELINE_1F1B &&
        stages->interleave > 1)
        return "--interleave: is of --schedule 1f1b; leave one of the two out";
    return NULL;
}

/* Words for a part of the optimizer that is to be offloaded. */
static const char *ratio_words(const struct zr_train_config *config)
{
    bool automatic = config->offload_ratio < 0;
    if (!automatic && config->offload_ratio >= 1)
        return NULL;
    if (!config->offload_optimizer)
        return "--offload-ratio: is of --offload-optimizer; give that too, or leave it out";
    if (config->delayed_update)
        return "--offload-ratio: a delayed update is of all of the optimizer; leave one of the two out";
    if (automatic && !config->memory_limit_bytes)
        return "--offload-ratio auto: keeps what fits under --memory-limit; give that too, or a number";
    if (automatic && (config->finds_max || config->finds_strategy || config->stage == ZR_STAGE_AUTO))
        return "--offload-ratio auto: is of one model and stage; give a number beside --find-max, --zero-r auto and "
               "--stage auto";
    return NULL;
}

const char *zr_train_offload_words(const struct zr_train_config *config)
{
    if (ratio_words(config))
        return ratio_words(config);
    if (config->delayed_update && !config->offload_optimizer)
        return "--delayed-update: the host updates behind the device; give --offload-optimizer cpu too, or leave it "
               "out";
    if (config->speculative_bytes && !config->offload_optimizer)
        return "--speculative-update: the host updates what is offloaded; give --offload-optimizer cpu or nvme:DIR too, or "
               "leave it out";
    if (config->speculative_bytes && config->delayed_update)
        return "--speculative-update: a delayed update begins when the norm is known, and there is nothing to speculate "
               "on; leave one of the two out";
    if (zr_flag_given(config, "offload-buffers") && config->offload_optimizer != ZR_TIER_NVME)
        return "--offload-buffers: is of --offload-optimizer nvme:DIR; give that too, or leave it out";
    if (config->delayed_update && config->prove)
        return "--delayed-update: other losses than one rank's are what it is for, and --prove compares them; leave one "
               "of the two out";
    bool several = zr_train_data_ranks(config) > 1, automatic = config->stage == ZR_STAGE_AUTO;
    if (config->offload_parameters && !config->offload_optimizer)
        return "--offload-param: new parameters come from the optimizer, which is on the device; give "
               "--offload-optimizer cpu too";
    if (config->offload_parameters && config->stage != 3 && !automatic)
        return "--offload-param: parameters that every rank keeps whole stay where they are used; take --stage 3";
    if (config->offload_optimizer && config->stage == 0 && several)
        return "--offload-optimizer: at stage 0 every rank updates all parameters, and the host would have all of it "
               "for each; take --stage 1";
    if (config->offload_optimizer && config->reduce == ZR_REDUCE_ONCE && several)
        return "--offload-optimizer: gradients leave as they are reduced, and --reduce once keeps them whole until "
               "the end of a step; take --reduce each";
    return NULL;
}

/* Words for an option of activation checkpoints that has no meaning; NULL: there is none. */
static const char *beside_checkpoints(const struct zr_train_config *config)
{
    bool one_tensor = config->shape.tensor < 2 && !is_left_open(config, "tp");
    if (config->shape.sequence_parallel && one_tensor)
        return "--sequence-parallel: divides rows over the ranks of --tp; give --tp 2 or more, or leave it out";
    if (config->checkpoints.partition && !config->force && (one_tensor || config->shape.sequence_parallel))
        return config->shape.sequence_parallel
                   ? "--partition-activations: --sequence-parallel has divided checkpoints already, so it would "
                     "save nothing; leave one of the two out, or add --force"
                   : "--partition-activations: with --tp 1 no other rank has a copy of a checkpoint, so it would "
                     "save nothing; give --tp 2 or more, leave it out, or add --force";
    if (config->force && !config->checkpoints.partition && !zr_train_has_file(config) && !config->spill)
        return "--force: does what would save nothing, which is --partition-activations without --tp or with "
               "--sequence-parallel, or --offload-optimizer nvme:DIR (or --offload-param, --spill) in a folder that "
               "is memory; give one of them too, or leave it out";
    if (config->growing_buffers && zr_flag_given(config, "bucket-bytes"))
        return "--bucket-bytes: --no-constant-buffers has buffers as large as what passes through them; leave "
               "one of the two out";
    if (config->host_bytes_per_second > 0 &&
        ((!zr_train_has_host_tier(config) && !is_left_open(config, "checkpoint-offload")) ||
         (config->flops_per_second <= 0 && !config->finds_strategy)))
        return "--host-bandwidth: is of copies that --checkpoint-offload and --offload-optimizer make, in the timeline "
               "of --flops and --bandwidth; give these too, or leave it out";
    if (config->shape.recompute_layers > config->shape.layers)
        return "--recompute full:N: the model has fewer layers; give at most --layers, or full for all of them";
    return NULL;
}

const char *zr_train_device_words(const struct zr_train_config *config)
{
    if (config->backend != ZR_TRAIN_CUDA)
        return zr_flag_given(config, "device")
                   ? "--device: is of --backend cuda; give that too, or leave it out"
               : zr_flag_given(config, "logits-bytes")
                   ? "--logits-bytes: is of --backend cuda; give that too, or leave it out"
               : config->cuda_graph ? "--cuda-graph: is of --backend cuda; give that too, or leave it out"
               : config->comm == ZR_TRAIN_COMM_NCCL && !config->dry_run
                   ? "--comm nccl: moves what is on cards; give --backend cuda too, or take --comm local or mpi"
                   : NULL;
    if (config->stages.ranks > 1 && config->comm != ZR_TRAIN_COMM_NCCL && !config->dry_run)
        return "--pp: its ranks receive ahead of what they send, for which a card's ranks have no thread; take --comm "
               "nccl, one card per rank, or --tp";
    if (config->cuda_graph &&
        (config->shape.tensor > 1 || config->stages.ranks > 1 || config->comm != ZR_CARRIER_LOCAL))
        return "--cuda-graph: with --tp, --pp and --comm mpi the host waits within a step, and what NCCL does is not "
               "recorded; take ranks that divide the data and share a card, or leave it out";
    if (config->cuda_graph && zr_train_has_host_tier(config))
        return "--cuda-graph: the host updates what is offloaded, and no graph has that; leave it out, or "
               "--offload-optimizer, --offload-param and --checkpoint-offload";
    if (config->offload_parameters == ZR_TIER_NVME)
        return "--offload-param nvme:DIR: with --backend cuda parameters go to this machine's memory alone; take "
               "--offload-param cpu, or --backend host";
    if (config->speculative_bytes)
        return "--speculative-update: with --backend cuda the update waits for the norm; leave it out, or take --backend host";
    return NULL;
}

/* Words for an option that what else was asked for leaves without a meaning; NULL: there is none. */
static const char *without_meaning(const struct zr_train_config *config)
{
    bool adamw = config->optimizer.kind == ZR_OPTIMIZER_ADAMW;
    if (config->shape.architecture == ZR_ARCH_GPT2 &&
        (zr_flag_given(config, "kv-heads") || zr_flag_given(config, "ffn") ||
         zr_flag_given(config, "rope-theta") || zr_flag_given(config, "norm-epsilon") ||
         zr_flag_given(config, "tie-embeddings")))
        return "--kv-heads, --ffn, --rope-theta, --norm-epsilon and --tie-embeddings: are of --arch llama";
    const char *pipeline = beside_pipeline(config);
    if (pipeline)
        return pipeline;
    if (zr_train_device_words(config))
        return zr_train_device_words(config);
    const char *checkpoints = beside_checkpoints(config);
    if (checkpoints)
        return checkpoints;
    if (!is_left_open(config, "stage") && zr_train_offload_words(config))
        return zr_train_offload_words(config);
    if (config->host_limit_bytes && !zr_train_has_host_tier(config) &&
        !is_left_open(config, "checkpoint-offload"))
        return "--host-limit: is of what is offloaded; give --offload-optimizer cpu or --checkpoint-offload too";
    if ((config->nvme_limit_bytes || config->nvme_bytes_per_second > 0 || config->nvme_depth) &&
        !zr_train_has_file(config))
        return "--nvme-limit, --nvme-depth and --nvme-bandwidth: are of --offload-optimizer nvme:DIR and of "
               "--offload-param nvme:DIR; give one of them too";
    if (config->nvme_bytes_per_second > 0 && config->flops_per_second <= 0 && !config->finds_strategy)
        return "--nvme-bandwidth: is for the timeline of --flops and --bandwidth; give these too, or leave it out";
    if (config->spill && (config->backend != ZR_TRAIN_HOST || config->delayed_update))
        return "--spill: is of memory of this machine that nobody uses between steps; leave out --backend and "
               "--delayed-update";
    if (config->prove && config->offload_optimizer == ZR_TIER_NVME)
        return "--prove: compares state in its place, which a file's has none of; take --offload-optimizer cpu";
    if (config->tolerance > 0 && !config->prove)
        return "--tolerance: is of --prove; give that too, or leave it out";
    if (config->prove && (config->dry_run || config->resume[0]))
        return "--prove: compares a run from its first step; leave out --dry-run and --resume";
    if (zr_flag_given(config, "save-every") && (config->save_every || config->save_seconds) &&
        !config->save[0])
        return "--save-every: needs --save DIR, where the checkpoints go";
    if (config->assume_shape && !config->resume[0])
        return "--assume-shape: is of --resume FILE, a model without a config.json; give that too, or leave it out";
    if (config->keep && !config->save[0])
        return "--keep: needs --save DIR, where the checkpoints go";
    if (config->precision != ZR_PRECISION_FP16 && scales_loss(config))
        return "--loss-scale and its like: are of --precision fp16; the others need no scale";
    if (config->precision == ZR_PRECISION_FP16 && !config->loss_scaling.constant &&
        config->loss_scaling.least > config->loss_scaling.initial)
        return "--min-loss-scale: is above the scale to begin with, of --loss-scale-power; give a smaller "
               "one";
    if (adamw && zr_flag_given(config, "momentum"))
        return "--momentum: is of --optimizer sgd; AdamW's is --beta1";
    if (!adamw && (zr_flag_given(config, "beta1") || zr_flag_given(config, "beta2")))
        return "--beta1 and --beta2: are of --optimizer adamw; SGD has --momentum";
    if (config->rate_kind == ZR_RATE_CONSTANT && zr_flag_given(config, "min-lr"))
        return "--min-lr: --schedule-lr constant stays at --lr; take cosine or linear, or leave it out";
    if (!config->sample && (config->prompt[0] || zr_flag_given(config, "temperature")))
        return "--prompt and --temperature: need --sample N, the tokens of text to make";
    return NULL;
}

/* Words for what --find-max would leave out of account; NULL: there is none. */
const char *zr_args_beside_find_max(const struct zr_train_config *config, const struct zr_config_rest *rest)
{
    if (!config->finds_max)
        return NULL;
    if (!config->memory_limit_bytes)
        return "--find-max: needs --memory-limit BYTES, under which it looks for the largest";
    if (config->find_max == ZR_LIMIT_LAYERS && zr_flag_given(config, "layers"))
        return "--find-max layers: looks for the number that --layers gives; leave --layers out";
    if (config->find_max == ZR_LIMIT_LAYERS)
        return NULL;
    if (zr_flag_given(config, "batch"))
        return "--find-max batch: looks for the number that --batch gives; leave --batch out";
    if (rest->train_batch)
        return "--find-max batch: train_batch_size of the file of --config says what is looked for; leave it "
               "out there";
    if (rest->has_batch)
        return "--find-max batch: train_micro_batch_size_per_gpu of the file of --config says what is looked "
               "for; leave it out there";
    return NULL;
}

/* The communication buffers never take more than was asked for: where that is too little, it is refused. */
int zr_args_check_bucket(struct zr_train_config *config)
{
    struct zr_mesh_shape mesh = zr_train_mesh(config);
    unsigned most = mesh.data > mesh.tensor ? mesh.data : mesh.tensor; /* ranks of one communicator */
    size_t least = (size_t)(most - 1) * ZR_COMM_LINE_BYTES;

    config->bucket_bytes -= config->bucket_bytes % ZR_COMM_LINE_BYTES;
    if (config->bucket_bytes >= least || config->bucket_bytes == ZR_TRAIN_BUCKET_BYTES)
        return -1;
    zr_say("--bucket-bytes %zu: is too little for %u ranks; a slot has %d bytes for each other one, so give "
           "%zu at least",
           config->bucket_bytes, most, ZR_COMM_LINE_BYTES, least);
    return ZR_EXIT_USAGE;
}

/* fp8 where no product of a block would be one of fp8 is another precision than was asked for. */
static const char *without_fp8(const struct zr_train_config *config)
{
    unsigned all;
    return config->shape.fp8 && zr_shape_fp8_matrices(&config->shape, &all) == 0
               ? "--precision fp8: multiplies where --batch times --seq and the channels of --hidden and --ffn, "
                 "divided by --tp and --tile, are multiples of 16, and here no product of a block has such sizes; "
                 "change them, or take --precision bf16"
               : NULL;
}

/* Whether --tp and --pp divide the ranks, in words where they do not. */
static bool divides_ranks(const struct zr_train_config *config)
{
    unsigned tensor = (unsigned)zr_shape_tensor(&config->shape), pipeline = config->stages.ranks,
             each = tensor * pipeline, below = tensor;
    if (config->world % each == 0)
        return true;
    while (config->world % below != 0)
        below--;
    if (pipeline > 1)
        zr_say("--pp %u%s: %u ranks make no whole mesh; give --%s %u", pipeline,
               tensor > 1 ? " and --tp" : "", config->world,
               config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / each + 1) * each);
    else
        zr_say("--tp %u: does not divide %u ranks; give --tp %u, or --%s %u", tensor, config->world, below,
               config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / tensor + 1) * tensor);
    return false;
}

int zr_args_together(const struct zr_train_config *config)
{
    const struct zr_shape *shape = &config->shape;
    const char *words = NULL;

    if (config->parameters > 0 && (zr_flag_given(config, "layers") || zr_flag_given(config, "hidden") ||
                                   zr_flag_given(config, "heads"))) {
        zr_say("--params: chooses the shape; leave out --layers, --hidden and --heads, or give them alone");
        return ZR_EXIT_USAGE;
    }
    if (config->finds_max && config->find_max == ZR_LIMIT_LAYERS && config->parameters > 0) {
        zr_say("--find-max layers: --params chooses the layers; give --hidden and --heads in its place");
        return ZR_EXIT_USAGE;
    }
    if (shape->hidden % shape->heads != 0) {
        size_t below = shape->hidden - shape->hidden % shape->heads;
        zr_say("--heads %zu: does not divide --hidden %zu; heads share the channels equally, so try --hidden "
               "%zu",
               shape->heads, shape->hidden, below ? below : shape->heads);
        return ZR_EXIT_USAGE;
    }
    if (!divides_ranks(config))
        return ZR_EXIT_USAGE;
    if ((config->flops_per_second > 0) != (config->bytes_per_second > 0))
        words = "--flops and --bandwidth: a step timeline needs both; give the two, or none";
    else if (config->world_size && !config->dry_run)
        words =
            "--world-size: is for the byte plan of --dry-run; use --ranks to say how many processes train";
    else if (config->backend == ZR_TRAIN_SIM && !config->dry_run)
        words = "--backend sim: has no memory to train in; use it with --dry-run, or --backend host";
    else if (!config->data[0] && !config->dry_run)
        words = "--data FILE: is missing; give a text to train on, or --dry-run for the byte plan alone "
                "(zr-train "
                "--help has examples)";
    else if (!config->bytes && !prompt_is_tokens(config))
        words = "--prompt: with a token shard it is numbers below --vocab, such as '464 2068 7586'";
    else if (config->reduce == ZR_REDUCE_ONCE && config->stage > 1 && config->stage != ZR_STAGE_AUTO)
        words = "--reduce once: needs the whole gradients that stages 0 and 1 keep; take --stage 1, or "
                "--reduce each";
    else if (config->min_rate > config->rate)
        words = "--min-lr: is above --lr; the rate falls from --lr to --min-lr";
    else if (config->warmup > config->steps)
        words = "--warmup: is longer than --steps; the rate would never get to --lr";
    else if (strcmp(config->log, "-") == 0 || strcmp(config->trace, "-") == 0 ||
             strcmp(config->export, "-") == 0)
        words = "--log, --trace and --export: need a file; only --json writes to standard output (-)";
    else
        words = without_meaning(config);
    words = words ? words : without_fp8(config);
    if (words) {
        zr_say("%s", words);
        return ZR_EXIT_USAGE;
    }
    if (zr_train_check_stages(config) != ZR_OK) {
        zr_say("%s", zr_last_error());
        return ZR_EXIT_USAGE;
    }
    return -1;
}
