/* together.c: checks that settings are consistent with each other. See flags.h. */
#define _GNU_SOURCE
#include "zero/train/settings/flags.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/zr_comm.h"
#include "zero/train/memory_limit.h"
#include "zero/train/settings/config.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/args.h"

bool zr_prompt_is_tokens(const struct zr_train_config *config, const char *prompt)
{
    for (const char *at = prompt; *(at += strspn(at, " ,"));) {
        char *end;
        errno = 0;
        if (*at < '0' || *at > '9' || strtoull(at, &end, 10) >= config->shape.vocabulary || errno != 0)
            return false;
        at = end;
    }
    return true;
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
           zr_flag_given(config, "vertical-sync") || zr_flag_given(config, "pipeline-cut");
}

/* Whether --zero-r auto has yet to choose this option. */
static bool is_left_open(const struct zr_train_config *config, const char *name)
{
    return config->finds_strategy && !zr_flag_given(config, name);
}

/* Message about a pipeline option that has no effect or contradicts another; NULL: none. */
static const char *pipeline_conflict(const struct zr_train_config *config)
{
    const struct zr_stages *stages = &config->stages;
    if (stages->ranks == 1 && !is_left_open(config, "pp") && zr_pipeline_flag_given(config))
        return "--schedule, --interleave, --vertical-sync and --pipeline-cut require --pp 2 or more";
    const struct zr_pipeline pipeline = zr_stages_pipeline(stages, NULL);
    if (zr_pipeline_is_v(&pipeline) && stages->interleave > 0 && stages->interleave != 2)
        return "--schedule vhalf and zb-v have 2 stages per rank; give --interleave 2, or leave --interleave out";
    if (!zr_pipeline_is_v(&pipeline) && stages->schedule != ZR_PIPELINE_1F1B && stages->interleave > 1)
        return "--interleave requires --schedule 1f1b; leave one of the two out";
    if (stages->vertical_sync && stages->schedule != ZR_PIPELINE_PIPEDREAM)
        return "--vertical-sync requires --schedule pipedream: with 2bw all stages read the same version already";
    return NULL;
}

/* Message about --offload-ratio; NULL: valid. */
static const char *ratio_conflict(const struct zr_train_config *config)
{
    bool automatic = config->offload_ratio < 0;
    if (!automatic && config->offload_ratio >= 1)
        return NULL;
    if (!config->offload_optimizer)
        return "--offload-ratio requires --offload-optimizer";
    if (config->delayed_update)
        return "--offload-ratio cannot be combined with --delayed-update, which offloads the whole "
               "optimizer; leave one of the two out";
    if (automatic && !config->memory_limit_bytes)
        return "--offload-ratio auto requires --memory-limit; give that too, or a number";
    if (automatic && (config->finds_max || config->finds_strategy || config->stage == ZR_STAGE_AUTO))
        return "--offload-ratio auto cannot be combined with --find-max, --zero-r auto or --stage auto; "
               "give a number instead";
    return NULL;
}

const char *zr_train_offload_words(const struct zr_train_config *config)
{
    if (ratio_conflict(config))
        return ratio_conflict(config);
    if (config->delayed_update && !config->offload_optimizer)
        return "--delayed-update requires --offload-optimizer cpu or nvme:DIR";
    if (config->speculative_bytes && config->delayed_update)
        return "--speculative-update cannot be combined with --delayed-update, which starts after the norm "
               "is known; leave one of the two out";
    if (zr_flag_given(config, "offload-buffers") && config->offload_optimizer != ZR_TIER_NVME)
        return "--offload-buffers requires --offload-optimizer nvme:DIR";
    if (config->delayed_update && config->prove)
        return "--delayed-update changes losses and cannot be used with --prove; leave one of the two out";
    bool several = zr_train_shards(config) > 1, automatic = config->stage == ZR_STAGE_AUTO;
    if (config->offload_parameters && !config->offload_optimizer)
        return "--offload-param requires --offload-optimizer cpu or nvme:DIR, which updates the parameters "
               "there";
    if (config->offload_parameters && config->stage != 3 && !automatic)
        return "--offload-param requires --stage 3: at lower stages every rank keeps whole parameters where "
               "it uses them";
    if (config->offload_optimizer && config->stage == 0 && several)
        return "--offload-optimizer requires --stage 1 or higher with several data ranks: at stage 0 the "
               "host would hold the whole state once per rank";
    if (config->offload_optimizer && config->reduce == ZR_REDUCE_ONCE && several)
        return "--offload-optimizer requires --reduce each: --reduce once keeps whole gradients on the "
               "device until the end of a step";
    return NULL;
}

/* Message about an option that contradicts frozen tensors or adapters; NULL: none. */
static const char *trainable_conflict(const struct zr_train_config *config)
{
    bool adapts = config->trainable.lora.rank > 0;
    if (zr_flag_given(config, "lora-alpha") && !adapts)
        return "--lora-alpha requires --lora";
    if (config->trainable.frozen.count == 0 && !adapts)
        return NULL;
    if (config->shape.tiles > 1)
        return "--freeze and --lora cannot be combined with --tile, whose units have parts of tensors; leave "
               "one of the two out";
    if (adapts && config->shape.tensor > 1)
        return "--lora cannot be combined with --tp, where each adapter would need a sum over the ranks; give "
               "data ranks (--ranks) and --stage 3 instead";
    return NULL;
}

/* Message about a checkpoint option that has no effect or contradicts another; NULL: none. */
static const char *checkpoint_conflict(const struct zr_train_config *config)
{
    bool one_tensor = config->shape.tensor < 2 && !is_left_open(config, "tp");
    if (config->shape.sequence_parallel && one_tensor)
        return "--sequence-parallel requires --tp 2 or more";
    if (config->checkpoints.partition && !config->force && (one_tensor || config->shape.sequence_parallel))
        return config->shape.sequence_parallel
                   ? "--partition-activations saves nothing with --sequence-parallel, which divides checkpoints "
                     "already; leave one of the two out, or add --force"
                   : "--partition-activations saves nothing with --tp 1, since no other rank has a copy; give "
                     "--tp 2 or more, leave it out, or add --force";
    if (config->force && !config->checkpoints.partition && !zr_train_has_file(config) && !config->spill)
        return "--force has no effect here: it allows --partition-activations without --tp or with "
               "--sequence-parallel, and nvme:DIR in a folder in memory; leave it out";
    if (config->growing_buffers && zr_flag_given(config, "bucket-bytes"))
        return "--bucket-bytes cannot be combined with --no-constant-buffers, which chooses the size; leave "
               "one of the two out";
    if (config->host_bytes_per_second > 0 &&
        ((!zr_train_has_host_tier(config) && !is_left_open(config, "checkpoint-offload")) ||
         (config->flops_per_second <= 0 && !config->finds_strategy)))
        return "--host-bandwidth requires --flops and --bandwidth, and --checkpoint-offload or "
               "--offload-optimizer";
    if (config->shape.recompute_layers > config->shape.layers)
        return "--recompute full:N exceeds --layers; give at most --layers, or full for all layers";
    return NULL;
}

const char *zr_train_device_words(const struct zr_train_config *config)
{
    if (config->backend != ZR_TRAIN_CUDA)
        return zr_flag_given(config, "device")         ? "--device requires --backend cuda"
               : zr_flag_given(config, "logits-bytes") ? "--logits-bytes requires --backend cuda"
               : config->cuda_graph                    ? "--cuda-graph requires --backend cuda"
               : config->comm == ZR_TRAIN_COMM_NCCL && !config->dry_run
                   ? "--comm nccl requires --backend cuda; for --backend host give --comm local, mpi or tcp"
                   : NULL;
    if (config->shape.context > 1)
        return "--cp requires --backend host: the ring's attention has no GPU kernel yet; on a GPU divide "
               "sequences by --tp with --sequence-parallel";
    if (config->stages.ranks > 1 && config->comm != ZR_TRAIN_COMM_NCCL && !config->dry_run)
        return "--pp with --backend cuda requires --comm nccl, one GPU per rank: with the other transports "
               "a rank cannot receive before it sends; or give --tp";
    if (config->cuda_graph &&
        (config->shape.tensor > 1 || config->stages.ranks > 1 || config->comm != ZR_CARRIER_LOCAL))
        return "--cuda-graph cannot be combined with --tp, --pp, --comm mpi, tcp or nccl, which wait or "
               "run outside the graph; use data ranks that share a GPU, or leave it out";
    if (config->cuda_graph && zr_train_has_host_tier(config))
        return "--cuda-graph cannot be combined with --offload-optimizer, --offload-param or "
               "--checkpoint-offload, whose host work is not part of a graph; leave one of them out";
    if (config->offload_parameters == ZR_TIER_NVME)
        return "--offload-param nvme:DIR requires --backend host: on a GPU a gather runs in a stream, which cannot "
               "wait for a file; give --offload-param cpu";
    if (config->speculative_bytes)
        return "--speculative-update requires --backend host: on a GPU gradients arrive in a stream, for which the "
               "thread of the update cannot wait; leave it out, or give --delayed-update";
    return NULL;
}

/* Message about an option of --comm tcp that has no effect; NULL: none. */
static const char *tcp_conflict(const struct zr_train_config *config)
{
    if (config->comm != ZR_CARRIER_TCP)
        return config->rendezvous[0]                  ? "--rendezvous requires --comm tcp"
               : zr_flag_given(config, "tcp-streams") ? "--tcp-streams requires --comm tcp"
               : zr_flag_given(config, "heartbeat")   ? "--heartbeat requires --comm tcp"
               : config->secret_file[0]               ? "--secret-file requires --comm tcp and --rendezvous"
               : zr_flag_given(config, "rank")        ? "--rank requires --comm tcp and --rendezvous"
                                                      : NULL;
    return config->secret_file[0] && !config->rendezvous[0]
               ? "--secret-file requires --rendezvous: ranks that are forked here get a secret of their own"
               : NULL;
}

/* Message about settings of which --noise-scale cannot measure two sizes of batch; NULL: valid. */
static const char *noise_conflict(const struct zr_train_config *config)
{
    const struct zr_shape *shape = &config->shape;
    return config->noise_decay <= 0 ? NULL
           : config->finds_strategy || config->finds_max
               ? "--noise-scale cannot be combined with --find-max and --zero-r auto; leave it out there"
           : zr_shape_context(shape) > 1
               ? "--noise-scale cannot be combined with --cp, whose ranks have gradients of parts of sequences"
           : config->micro_batches * zr_train_data_ranks(config) == 1
               ? "--noise-scale requires --accumulate 2 or more, or two data ranks: a step of one micro-batch has "
                 "one gradient"
           : shape->sequence_parallel || (shape->variant.head_norms && zr_shape_tensor(shape) > 1)
               ? "--noise-scale cannot be combined with --sequence-parallel, nor with --tp if the model has norms "
                 "of heads: a rank has parts of the gradients of norms"
           : zr_compression_keeps_errors(&config->compression)
               ? "--noise-scale cannot be combined with --compress gradients:onebit, zerone, powersgd or topk: what is sent "
                 "has errors of earlier gradients"
           : config->delayed_update
               ? "--noise-scale cannot be combined with --delayed-update; leave one of the two out"
               : NULL;
}

/* Message about an option that contradicts --max-restarts; NULL: none. */
static const char *restart_conflict(const struct zr_train_config *config)
{
    if (zr_flag_given(config, "rejoin-within") &&
        (config->max_restarts == 0 || config->comm != ZR_CARRIER_TCP))
        return "--rejoin-within requires --comm tcp and --max-restarts";
    return config->max_restarts == 0 ? NULL
           : config->by_mpi || (config->comm > ZR_CARRIER_TCP && config->comm != ZR_TRAIN_COMM_PS)
               ? "--max-restarts requires --comm local, tcp or ps: the other transports do not replace a lost rank"
           : config->start.kind != ZR_START_FORK && config->comm != ZR_CARRIER_TCP
               ? "--max-restarts requires ranks that zr-train forks, with --ranks; torchrun and srun restart ranks "
                 "by themselves"
           : config->backend == ZR_TRAIN_CUDA
               ? "--max-restarts requires --backend host: operations of a lost rank stay in a GPU's streams"
           : config->prove ? "--prove compares a run without restarts; leave --max-restarts out"
           : config->spill ? "--max-restarts cannot be combined with --spill; leave one of the two out"
                           : NULL;
}

/* Message about an option that contradicts --redundancy 2; NULL: none. zr_rank_kept_words() has the others,
 * after the stage is known. */
static const char *redundancy_conflict(const struct zr_train_config *config)
{
    return config->redundancy < 2 ? NULL
           : config->max_restarts == 0
               ? "--redundancy 2 requires --max-restarts N: the copies are for ranks that are replaced"
           : config->comm == ZR_TRAIN_COMM_PS
               ? "--redundancy 2 cannot be combined with --comm ps, whose servers keep the state; leave it out, or give "
                 "--replicas 1, which copies servers"
           : zr_mesh_shards(zr_train_mesh(config)) < 2
               ? "--redundancy 2 requires at least two ranks that divide the state of the same part of the "
                 "model, as the copy of a rank's state is on another one; give more --ranks"
               : NULL;
}

/* Message about an option that contradicts --ranks-as threads; NULL: none. */
static const char *threads_conflict(const struct zr_train_config *config)
{
    return config->ranks_as != ZR_RANKS_AS_THREADS ? NULL
           : config->by_mpi || config->comm != ZR_CARRIER_LOCAL
               ? "--ranks-as threads requires --comm local: the other transports connect processes"
           : config->start.kind != ZR_START_FORK
               ? "--ranks-as threads requires ranks that zr-train starts, with --ranks; torchrun and srun start "
                 "processes"
           : config->backend == ZR_TRAIN_CUDA
               ? "--ranks-as threads requires --backend host: a process has one GPU here"
           : config->max_restarts > 0
               ? "--max-restarts replaces processes and cannot be combined with --ranks-as threads, whose ranks die "
                 "together; leave one of the two out"
           : config->save_background
               ? "--save-background cannot be combined with --ranks-as threads; leave one of the two out"
           : config->spill
               ? "--spill swaps out a process for each rank and cannot be combined with --ranks-as threads; leave "
                 "one of the two out"
               : NULL;
}

/* Message about options that groups require or exclude; NULL: none. */
static const char *outer_conflict(const struct zr_train_config *config)
{
    static const char *const options[] = {"outer-lr",        "outer-momentum", "outer-mix",
                                          "outer-fragments", "outer-delay",    "groups"};
    const struct zr_outer *o = &config->outer;
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    for (size_t i = 0; i < sizeof options / sizeof *options && o->period == 0; i++)
        if (zr_flag_given(config, options[i]) && (i < 5 || config->groups > 1))
            return "--groups, --outer-lr, --outer-momentum, --outer-mix, --outer-fragments and --outer-delay "
                   "require --outer diloco:H";
    if (o->period == 0)
        return o->packing != ZR_PACKING_ONEBIT ? "--compress outer requires --outer diloco:H" : NULL;
    const unsigned interval = o->period / o->fragments;
    if (config->groups < 2)
        return "--outer requires --groups 2 or more, which divide the ranks";
    if (o->period % o->fragments != 0)
        return "--outer-fragments must divide the H of --outer diloco:H";
    if (o->delay >= interval)
        return "--outer-delay must be below H of --outer diloco:H divided by --outer-fragments, the steps between two "
               "exchanges";
    if (o->mix > 0 && o->delay == 0 && zr_flag_given(config, "outer-mix"))
        return "--outer-mix requires --outer-delay 1 or more: without a delay groups take on the synchronised "
               "parameters as they are";
    if (o->fragments > 1 && config->stages.ranks > 1)
        return "--outer-fragments cannot be combined with --pp, whose stages share tensors of different fragments; "
               "leave one of the two out";
    if (config->precision == ZR_PRECISION_FP16)
        return "--outer requires --precision fp32, bf16 or fp8: in fp16 groups skip different steps";
    if (config->optimizer.average_decay > 0)
        return "--outer cannot be combined with --ema: validation, sample and export use the parameters of the last "
               "synchronisation";
    if (config->delayed_update || zr_pipeline_is_asynchronous(&pipeline))
        return "--outer cannot be combined with --delayed-update and --schedule 2bw or pipedream, whose parameters "
               "are of earlier steps when groups exchange them";
    if (zr_compression_keeps_errors(&config->compression) ||
        config->compression.kinds[ZR_COMPRESSED_PARAMETERS].differences)
        return "--outer cannot be combined with --compress onebit, zerone, powersgd, topk, sdp4bit and "
               "parameters:difference: an exchange changes parameters without what they add up; use another packing";
    if (config->finds_strategy || config->prove || config->noise_decay > 0)
        return "--outer cannot be combined with --zero-r auto, --prove and --noise-scale; leave them out";
    if (config->cuda_graph || (config->backend == ZR_TRAIN_CUDA && config->offload_optimizer))
        return "--outer with --backend cuda cannot be combined with --cuda-graph and --offload-optimizer; leave them "
               "out";
    if (o->delay > 0 && config->offload_optimizer == ZR_TIER_NVME)
        return "--outer-delay requires --offload-optimizer cpu or none; leave one of the two out";
    if (o->delay > 0 && config->save[0] &&
        (config->steps % interval != 0 || config->save_every % interval != 0))
        return "--save with --outer-delay requires --steps and --save-every that are multiples of H of --outer diloco:H "
               "divided by --outer-fragments: a checkpoint has no exchange that is under way";
    return NULL;
}

/* Message about an option that has no effect or contradicts another; NULL: none. */
static const char *option_conflict(const struct zr_train_config *config)
{
    if (config->shape.architecture == ZR_ARCH_GPT2 && !config->model[0] &&
        (zr_flag_given(config, "kv-heads") || zr_flag_given(config, "ffn") ||
         zr_flag_given(config, "rope-theta") || zr_flag_given(config, "norm-epsilon") ||
         zr_flag_given(config, "tie-embeddings")))
        return "--kv-heads, --ffn, --rope-theta, --norm-epsilon and --tie-embeddings require --arch llama";
    if (config->shape.documents != zr_flag_given(config, "eos"))
        return "--mask-documents requires --eos N, the token that ends a document, and --eos requires "
               "--mask-documents";
    if (config->shape.documents && (size_t)config->shape.eos >= config->shape.vocabulary)
        return "--eos is no token of --vocab; give a smaller number";
    const char *pipeline = pipeline_conflict(config);
    if (pipeline)
        return pipeline;
    if (zr_train_device_words(config))
        return zr_train_device_words(config);
    const char *checkpoints = checkpoint_conflict(config);
    if (checkpoints)
        return checkpoints;
    if (zr_compress_conflict(config))
        return zr_compress_conflict(config);
    if (restart_conflict(config))
        return restart_conflict(config);
    if (redundancy_conflict(config))
        return redundancy_conflict(config);
    if (threads_conflict(config))
        return threads_conflict(config);
    if (zr_flag_given(config, "global-batch") && zr_flag_given(config, "accumulate"))
        return "--global-batch cannot be combined with --accumulate, which it sets; leave one of the two out";
    if (zr_sizes_conflict(config))
        return zr_sizes_conflict(config);
    if (trainable_conflict(config))
        return trainable_conflict(config);
    if (!is_left_open(config, "stage") && zr_train_offload_words(config))
        return zr_train_offload_words(config);
    if (config->host_limit_bytes && !zr_train_has_host_tier(config) &&
        !is_left_open(config, "checkpoint-offload"))
        return "--host-limit requires --offload-optimizer cpu or --checkpoint-offload";
    if ((config->nvme_limit_bytes || config->nvme_bytes_per_second > 0 || config->nvme_depth) &&
        !zr_train_has_file(config))
        return "--nvme-limit, --nvme-depth and --nvme-bandwidth require --offload-optimizer nvme:DIR or "
               "--offload-param nvme:DIR";
    if (config->nvme_bytes_per_second > 0 && config->flops_per_second <= 0 && !config->finds_strategy)
        return "--nvme-bandwidth requires --flops and --bandwidth";
    if (config->spill && (config->backend != ZR_TRAIN_HOST || config->delayed_update))
        return "--spill requires --backend host and cannot be combined with --delayed-update";
    if (config->optimizer.average_decay > 0 && config->delayed_update)
        return "--ema cannot be combined with --delayed-update, whose weights a step publishes; leave one of the two "
               "out";
    if (outer_conflict(config))
        return outer_conflict(config);
    if (noise_conflict(config))
        return noise_conflict(config);
    if (zr_servers_conflict(config))
        return zr_servers_conflict(config);
    if (tcp_conflict(config))
        return tcp_conflict(config);
    if (config->tolerance > 0 && !config->prove)
        return "--tolerance requires --prove";
    if (config->prove && (config->dry_run || config->resume[0]))
        return "--prove compares a run from its first step and cannot be used with --dry-run or --resume; "
               "leave them out";
    if (zr_flag_given(config, "save-every") && (config->save_every || config->save_seconds) &&
        !config->save[0])
        return "--save-every requires --save DIR";
    if (config->assume_shape && !config->resume[0])
        return "--assume-shape requires --resume FILE";
    if (config->save_background && !config->save[0])
        return "--save-background requires --save DIR";
    if (config->keep && !config->save[0])
        return "--keep requires --save DIR";
    if (config->precision != ZR_PRECISION_FP16 && scales_loss(config))
        return "--loss-scale, --loss-scale-power, --loss-scale-window, --loss-scale-hysteresis and "
               "--min-loss-scale require --precision fp16";
    if (config->precision == ZR_PRECISION_FP16 && !config->loss_scaling.constant &&
        config->loss_scaling.least > config->loss_scaling.initial)
        return "--min-loss-scale is above the initial scale, two to the power of --loss-scale-power; give a "
               "smaller one";
    if (zr_optimizer_conflict(config))
        return zr_last_error();
    if (!zr_schedule_of(config->rate_kind)->ends && zr_flag_given(config, "min-lr"))
        return "--min-lr has no effect with --schedule-lr constant and inverse-sqrt; give cosine, linear or wsd, "
               "or leave it out";
    if (config->rate_kind != ZR_RATE_WSD && zr_flag_given(config, "decay-share"))
        return "--decay-share requires --schedule-lr wsd";
    if (config->rate_kind == ZR_RATE_INVERSE_SQRT && config->warmup == 0)
        return "--schedule-lr inverse-sqrt requires --warmup 1 or more: the rate falls with the root of the "
               "steps since the run began, as a multiple of the warm-up";
    if (config->prompts[0] && config->prompt[0])
        return "--prompts cannot be combined with --prompt; leave one of the two out";
    if (config->stop[0] && !config->bytes && !config->tokenizer[0])
        return "--stop requires a text: --tokenizer FILE, or --vocab byte";
    if (config->stride > config->shape.sequence)
        return "--stride is above --seq: tokens between two windows would not be predicted";
    bool draws = zr_flag_given(config, "top-k") || zr_flag_given(config, "top-p");
    if (!config->sample &&
        (config->prompt[0] || config->stop[0] || zr_flag_given(config, "temperature") || draws))
        return "--prompt, --stop, --temperature, --top-k and --top-p require --sample N";
    if (config->temperature == 0 && draws)
        return "--top-k and --top-p have no effect with --temperature 0; leave them out";
    return NULL;
}

/* Message about options that contradict --find-max; NULL: none. */
const char *zr_args_beside_find_max(const struct zr_train_config *config, const struct zr_config_rest *rest)
{
    if (!config->finds_max)
        return NULL;
    if (!config->memory_limit_bytes)
        return "--find-max requires --memory-limit BYTES";
    if (config->find_max == ZR_LIMIT_LAYERS && zr_flag_given(config, "layers"))
        return "--find-max layers searches for the number of layers; leave --layers out";
    if (config->find_max == ZR_LIMIT_LAYERS)
        return NULL;
    if (zr_flag_given(config, "batch"))
        return "--find-max batch searches for the batch; leave --batch out";
    if (rest->train_batch)
        return "--find-max batch searches for the batch; remove train_batch_size from the file of --config";
    if (rest->has_batch)
        return "--find-max batch searches for the batch; remove train_micro_batch_size_per_gpu from the "
               "file of --config";
    return NULL;
}

/* Rounds --bucket-bytes down to lines and refuses a size without one line for each peer: the communication
 * buffers never exceed the given size. */
int zr_args_check_bucket(struct zr_train_config *config)
{
    struct zr_mesh_shape mesh = zr_train_mesh(config);
    unsigned max_ranks = zr_mesh_shards(mesh) > mesh.tensor ? zr_mesh_shards(mesh)
                                                            : mesh.tensor; /* of the largest communicator */
    max_ranks = zr_mesh_groups(mesh) > max_ranks ? zr_mesh_groups(mesh) : max_ranks;
    size_t min_bytes = (size_t)(max_ranks - 1) * ZR_COMM_LINE_BYTES;

    config->bucket_bytes -= config->bucket_bytes % ZR_COMM_LINE_BYTES;
    if (config->bucket_bytes >= min_bytes || config->bucket_bytes == ZR_TRAIN_BUCKET_BYTES)
        return -1;
    zr_say("--bucket-bytes %zu is too small for %u ranks: a slot has %d bytes for each other rank; give "
           "at least %zu",
           config->bucket_bytes, max_ranks, ZR_COMM_LINE_BYTES, min_bytes);
    return ZR_EXIT_USAGE;
}

/* Message if no product can be fp8: fp8 would then be another precision than requested. NULL: none. */
static const char *fp8_conflict(const struct zr_train_config *config)
{
    unsigned all;
    return config->shape.fp8 && zr_shape_fp8_matrices(&config->shape, &all) == 0
               ? "--precision fp8 requires --batch times --seq and the columns of --hidden and --ffn, divided "
                 "by --tp and --tile, to be multiples of 16, and here no product of a block qualifies; change "
                 "them, or give --precision bf16"
               : NULL;
}

/* Whether --groups, --tp, --cp and --pp divide the ranks; prints a message if not. */
static bool divides_ranks(const struct zr_train_config *config)
{
    unsigned tensor = (unsigned)zr_shape_tensor(&config->shape), pipeline = config->stages.ranks,
             context = (unsigned)zr_shape_context(&config->shape),
             each = tensor * pipeline * context * zr_mesh_groups(zr_train_mesh(config)), below = tensor;
    if (config->world % each == 0)
        return true;
    if (config->groups > 1) {
        zr_say("--groups, --tp, --cp and --pp take a multiple of %u ranks, not %u; give --%s %u", each,
               config->world, config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / each + 1) * each);
        return false;
    }
    if (context > 1) {
        zr_say("--cp %u times --tp %u times --pp %u does not divide %u ranks; give --%s %u", context, tensor,
               pipeline, config->world, config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / each + 1) * each);
        return false;
    }
    while (config->world % below != 0)
        below--;
    if (pipeline > 1)
        zr_say("--pp %u%s do not divide %u ranks; give --%s %u", pipeline, tensor > 1 ? " and --tp" : "",
               config->world, config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / each + 1) * each);
    else
        zr_say("--tp %u does not divide %u ranks; give --tp %u, or --%s %u", tensor, config->world, below,
               config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / tensor + 1) * tensor);
    return false;
}

int zr_args_together(const struct zr_train_config *config)
{
    const struct zr_shape *shape = &config->shape;
    const char *message = NULL;

    if (config->parameters > 0 && (zr_flag_given(config, "layers") || zr_flag_given(config, "hidden") ||
                                   zr_flag_given(config, "heads"))) {
        zr_say("--params cannot be combined with --layers, --hidden and --heads; leave --params or the "
               "other three out");
        return ZR_EXIT_USAGE;
    }
    if (config->finds_max && config->find_max == ZR_LIMIT_LAYERS && config->parameters > 0) {
        zr_say("--find-max layers cannot be combined with --params; give --hidden and --heads instead");
        return ZR_EXIT_USAGE;
    }
    if (shape->hidden % shape->heads != 0 && shape->variant.head_width == 0) {
        size_t below = shape->hidden - shape->hidden % shape->heads;
        zr_say("--heads %zu does not divide --hidden %zu; give --hidden %zu, for example", shape->heads,
               shape->hidden, below ? below : shape->heads);
        return ZR_EXIT_USAGE;
    }
    if (!divides_ranks(config))
        return ZR_EXIT_USAGE;
    if ((config->flops_per_second > 0) != (config->bytes_per_second > 0))
        message = "--flops and --bandwidth require each other: a timeline needs both";
    else if (config->world_size && !config->dry_run)
        message = "--world-size requires --dry-run; the number of processes that train is --ranks";
    else if (config->backend == ZR_TRAIN_SIM && !config->dry_run)
        message = "--backend sim requires --dry-run; to train, give --backend host";
    else if (!config->data[0] && !config->dry_run && config->command == ZR_COMMAND_TRAIN)
        message =
            "--data FILE is missing; give a text to train on, or --dry-run for the byte plan (examples: "
            "zr-train --help)";
    else if (config->bytes && config->data_type != ZR_TOKENS_AUTO)
        message = "--data-type requires --vocab V, the number of tokens; leave it out for text";
    else if (config->bytes && config->tokenizer[0])
        message = "--tokenizer requires --vocab V or --model DIR; leave it out for text by bytes";
    else if (!config->bytes && !config->tokenizer[0] && !zr_prompt_is_tokens(config, config->prompt))
        message =
            "--prompt without --tokenizer FILE must be token numbers below --vocab, such as '464 2068 7586'";
    else if (config->reduce == ZR_REDUCE_ONCE && config->stage > 1 && config->stage != ZR_STAGE_AUTO)
        message = "--reduce once requires --stage 0 or 1, which keep whole gradients; give --stage 1, or "
                  "--reduce each";
    else if (config->min_rate > config->rate)
        message = "--min-lr is above --lr; the rate falls from --lr to --min-lr";
    else if (config->start_rate > config->rate)
        message = "--warmup-lr is above --lr; the rate rises from --warmup-lr to --lr";
    else if (config->warmup > config->steps && (zr_flag_given(config, "warmup") || !config->config_file[0]))
        message = "--warmup is longer than --steps; the rate would never reach --lr";
    else if (strcmp(config->log, "-") == 0 || strcmp(config->trace, "-") == 0 ||
             strcmp(config->status, "-") == 0 || strcmp(config->export, "-") == 0)
        message = "--log, --status, --trace and --export need a file name; only --json can write to standard "
                  "output (-)";
    else
        message = option_conflict(config);
    message = message ? message : fp8_conflict(config);
    if (message) {
        zr_say("%s", message);
        return ZR_EXIT_USAGE;
    }
    if (zr_train_check_stages(config) != ZR_OK) {
        zr_say("%s", zr_last_error());
        return ZR_EXIT_USAGE;
    }
    return -1;
}
