/* exclusions.c: what options exclude and require, one row per rule. together.c has the rules that are about
 * numbers, and optimizers.c those of the rows of zero/engine/optimizer.c. See flags.h. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "zero/train/memory_limit.h"
#include "zero/train/settings/flags.h"

static bool is_by(const struct zr_train_config *c, enum zr_compression_method method)
{
    return zr_compression_is_by(&c->compression, method);
}

static bool packs(const struct zr_train_config *c, enum zr_compressed_kind kind)
{
    return c->compression.kinds[kind].on;
}

static bool has_schedule(const struct zr_train_config *c, enum zr_pipeline_schedule schedule)
{
    return c->stages.ranks > 1 && c->stages.schedule == schedule;
}

/* Whether --zero-r auto, or --stage auto, has yet to choose this option. */
static bool is_left_open(const struct zr_train_config *c, const char *option)
{
    return (c->finds_strategy && !zr_flag_given(c, option)) ||
           (c->stage == ZR_STAGE_AUTO && strcmp(option, "stage") == 0);
}

/* The modes: identifier, name in messages, option that leaves it open for --zero-r auto or "", whether
 * settings `c` have it. A mode that is on for some values of an option only is named with these. */
#define MODES(_)                                                                                             \
    /* the model */                                                                                          \
    _(PARAMS, "--params", "", c->parameters > 0)                                                             \
    _(LAYERS, "--layers", "", zr_flag_given(c, "layers"))                                                    \
    _(HIDDEN, "--hidden", "", zr_flag_given(c, "hidden"))                                                    \
    _(HEADS, "--heads", "", zr_flag_given(c, "heads"))                                                       \
    _(LLAMA, "--arch llama", "", c->shape.architecture != ZR_ARCH_GPT2 || c->model[0])                       \
    _(TIED, "a tied embedding", "", c->shape.tied)                                                           \
    _(BYTES, "--vocab byte", "", c->bytes)                                                                   \
    _(TOKENS, "--vocab V", "", !c->bytes)                                                                    \
    _(DATA_TYPE, "--data-type", "", c->data_type != ZR_TOKENS_AUTO)                                          \
    _(TOKENIZER, "--tokenizer FILE", "", c->tokenizer[0])                                                    \
    _(DOCUMENTS, "--mask-documents", "", c->shape.documents)                                                 \
    _(EOS, "--eos N", "", zr_flag_given(c, "eos"))                                                           \
    _(FP16, "--precision fp16", "", c->precision == ZR_PRECISION_FP16)                                       \
    _(FREEZE, "--freeze", "", c->trainable.frozen.count > 0)                                                 \
    _(LORA, "--lora", "", c->trainable.lora.rank > 0)                                                        \
    /* the rows of a step */                                                                                 \
    _(BATCH, "--batch", "", zr_flag_given(c, "batch"))                                                       \
    _(ACCUMULATE, "--accumulate", "", zr_flag_given(c, "accumulate"))                                        \
    _(SEVERAL_MICRO_BATCHES, "--accumulate", "", c->micro_batches != 1)                                      \
    _(SEVERAL_BATCHES, "--accumulate 2 or more, or two data ranks", "",                                      \
      c->micro_batches *zr_train_data_ranks(c) != 1)                                                         \
    _(GLOBAL_GIVEN, "--global-batch", "", zr_flag_given(c, "global-batch"))                                  \
    _(GLOBAL_BATCH, "--global-batch", "", c->global_batch > 0)                                               \
    _(UNEVEN, "--global-batch that is no multiple of --batch times the data ranks", "",                      \
      c->global_batch > 0 && !zr_division_is_even(zr_train_division(c)))                                     \
    _(STEPS, "--steps", "", zr_flag_given(c, "steps"))                                                       \
    _(DATA, "--data", "", c->data[0])                                                                        \
    _(EPOCHS, "--epochs", "", c->passes > 0)                                                                 \
    _(EPOCH_ORDER, "--data-order epochs", "", c->epochs)                                                     \
    _(RESIZE, "--resize", "", c->resize[0])                                                                  \
    _(ELASTIC, "--elastic", "", c->elastic[0])                                                               \
    _(CHANGES_SIZE, "--elastic or --resize", "", zr_train_changes_size(c))                                   \
    _(ELASTIC_APART, "--elastic over --rendezvous", "", c->elastic[0] && zr_train_is_apart(c))               \
    _(ELASTIC_OF_TWO, "a MIN of 2 or more", "", c->least_replicas >= 2)                                      \
    _(SEARCH, "--find-max", "", c->finds_max)                                                                \
    _(SEARCH_LAYERS, "--find-max layers", "", c->finds_max && c->find_max == ZR_LIMIT_LAYERS)                \
    _(SEARCH_BATCH, "--find-max batch", "", c->finds_max && c->find_max != ZR_LIMIT_LAYERS)                  \
    _(MEMORY_LIMIT, "--memory-limit BYTES", "", c->memory_limit_bytes > 0)                                   \
    _(DRY_RUN, "--dry-run", "", c->dry_run)                                                                  \
    _(WORLD_SIZE, "--world-size", "", c->world_size)                                                         \
    _(PROVE, "--prove", "", c->prove)                                                                        \
    _(PROVE_TOLERANCE, "--tolerance", "", c->tolerance > 0)                                                  \
    _(FLOPS, "--flops", "", c->flops_per_second > 0)                                                         \
    _(BANDWIDTH, "--bandwidth", "", c->bytes_per_second > 0)                                                 \
    _(HOST_BANDWIDTH, "--host-bandwidth", "", c->host_bytes_per_second > 0)                                  \
    _(NVME_BANDWIDTH, "--nvme-bandwidth", "", c->nvme_bytes_per_second > 0)                                  \
    /* ranks and where they are */                                                                           \
    _(HOST, "--backend host", "", c->backend != ZR_TRAIN_CUDA)                                               \
    _(SIM, "--backend sim", "", c->backend == ZR_TRAIN_SIM)                                                  \
    _(CUDA, "--backend cuda", "", c->backend == ZR_TRAIN_CUDA)                                               \
    _(CUDA_GRAPH, "--cuda-graph", "", c->cuda_graph)                                                         \
    _(LOCAL, "--comm local", "", c->comm == ZR_CARRIER_LOCAL)                                                \
    _(MPI, "--comm mpi", "", c->comm == ZR_CARRIER_MPI)                                                      \
    _(TCP, "--comm tcp", "", c->comm == ZR_CARRIER_TCP)                                                      \
    _(NCCL, "--comm nccl", "", c->comm == ZR_TRAIN_COMM_NCCL)                                                \
    _(PS, "--comm ps", "", c->comm == ZR_TRAIN_COMM_PS)                                                      \
    _(PS_OR_SAVED, "--comm ps", "", c->comm == ZR_TRAIN_COMM_PS || c->command != ZR_COMMAND_TRAIN)           \
    _(PS_OF_SUMS, "--comm ps, except with --ps geo:K", "",                                                   \
      c->comm == ZR_TRAIN_COMM_PS && c->timing.kind != ZR_PS_GEO)                                            \
    _(PS_PUSHES, "--ps async or half-async", "",                                                             \
      c->timing.kind == ZR_PS_ASYNC || c->timing.kind == ZR_PS_HALF_ASYNC)                                   \
    _(PS_SYNC, "--ps sync", "", !zr_train_is_free(c))                                                        \
    _(STALENESS, "--staleness divide or dc:LAMBDA", "",                                                      \
      c->comm == ZR_TRAIN_COMM_PS && c->correction.kind != ZR_PS_STALE_NONE)                                 \
    _(APART, "--comm tcp with --rendezvous", "", zr_train_is_apart(c))                                       \
    _(RENDEZVOUS, "--rendezvous", "", c->rendezvous[0])                                                      \
    _(SECRET_FILE, "--secret-file", "", c->secret_file[0])                                                   \
    _(FORKED, "ranks that zr-train starts, with --ranks", "", c->start.kind == ZR_START_FORK)                \
    _(THREADS, "--ranks-as threads", "", c->ranks_as == ZR_RANKS_AS_THREADS)                                 \
    _(MASTER, "--master", "", c->master)                                                                     \
    _(MAX_RESTARTS, "--max-restarts", "", c->max_restarts > 0)                                               \
    _(REDUNDANCY, "--redundancy 2", "", c->redundancy > 1)                                                   \
    _(REDUNDANCY_HERE, "--redundancy 2 on one machine", "", c->redundancy > 1 && !zr_train_is_apart(c))      \
    _(SHARDS, "several data ranks", "", zr_train_shards(c) > 1)                                              \
    _(TENSOR, "--tp 2 or more", "tp", c->shape.tensor >= 2)                                                  \
    _(TP, "--tp", "", c->shape.tensor > 1)                                                                   \
    _(TP_HEAD_NORMS, "--tp if the model has norms of heads", "",                                             \
      c->shape.variant.head_norms != 0 && zr_shape_tensor(&c->shape) > 1)                                    \
    _(SEQUENCE_PARALLEL, "--sequence-parallel", "", c->shape.sequence_parallel)                              \
    _(TILE, "--tile", "", c->shape.tiles > 1)                                                                \
    _(CP, "--cp", "", zr_shape_context(&c->shape) > 1)                                                       \
    _(PIPELINE, "--pp 2 or more", "pp", c->stages.ranks > 1)                                                 \
    _(PP, "--pp", "", c->stages.ranks > 1)                                                                   \
    _(PP_ON_GPU, "--pp with --backend cuda", "", c->stages.ranks > 1 && c->backend == ZR_TRAIN_CUDA)         \
    _(STAGES_1F1B, "--schedule 1f1b", "", c->stages.schedule == ZR_PIPELINE_1F1B)                            \
    _(STAGES_PIPEDREAM, "--schedule pipedream", "", c->stages.schedule == ZR_PIPELINE_PIPEDREAM)             \
    _(STAGES_V, "--schedule vhalf or zb-v", "",                                                              \
      c->stages.schedule == ZR_PIPELINE_VHALF || c->stages.schedule == ZR_PIPELINE_ZB_V)                     \
    _(SPLITS, "--schedule zb-h1 or zb-v", "",                                                                \
      has_schedule(c, ZR_PIPELINE_ZB_H1) || has_schedule(c, ZR_PIPELINE_ZB_V))                               \
    _(ASYNC, "--schedule 2bw or pipedream", "",                                                              \
      has_schedule(c, ZR_PIPELINE_2BW) || has_schedule(c, ZR_PIPELINE_PIPEDREAM))                            \
    _(PIPEDREAM, "--schedule pipedream", "", has_schedule(c, ZR_PIPELINE_PIPEDREAM))                         \
    _(INTERLEAVE, "--interleave", "", c->stages.interleave > 1)                                              \
    _(INTERLEAVE_NOT_2, "--interleave other than 2", "",                                                     \
      c->stages.interleave > 0 && c->stages.interleave != 2)                                                 \
    _(VERTICAL_SYNC, "--vertical-sync", "", c->stages.vertical_sync)                                         \
    /* memory */                                                                                             \
    _(AUTO, "--zero-r auto", "", c->finds_strategy)                                                          \
    _(STAGE_AUTO, "--stage auto", "", c->stage == ZR_STAGE_AUTO)                                             \
    _(STAGE_0, "--stage 0", "stage", c->stage == 0)                                                          \
    _(STAGE_TO_1, "--stage 0 or 1", "stage", c->stage <= 1)                                                  \
    _(STAGE_FROM_1, "--stage 1, 2 or 3", "stage", c->stage >= 1)                                             \
    _(STAGE_3, "--stage 3", "stage", c->stage == 3)                                                          \
    _(STAGE_0_NARROW, "--stage 0 in bf16", "",                                                               \
      c->stage == 0 && zr_train_precision(c) != ZR_PRECISION_FP32 && zr_train_shards(c) > 1)                 \
    _(REDUCE_ONCE, "--reduce once", "", c->reduce == ZR_REDUCE_ONCE)                                         \
    _(PARTITION, "--partition-activations", "", c->checkpoints.partition)                                    \
    _(DIVIDED_TWICE, "--partition-activations with --sequence-parallel", "",                                 \
      c->checkpoints.partition && c->shape.sequence_parallel)                                                \
    _(FORCE, "--force", "", c->force)                                                                        \
    _(CHECKPOINT_OFFLOAD, "--checkpoint-offload", "", c->checkpoint_offload)                                 \
    _(SCATTERED, "--no-contiguous", "", c->checkpoints.scattered)                                            \
    _(GROWING, "--no-constant-buffers", "", c->growing_buffers)                                              \
    _(BUCKET_BYTES, "--bucket-bytes", "", zr_flag_given(c, "bucket-bytes"))                                  \
    _(OFFLOAD, "--offload-optimizer", "", c->offload_optimizer)                                              \
    _(OFFLOAD_GIVEN, "--offload-optimizer cpu or nvme:DIR", "", c->offload_optimizer)                        \
    _(OFFLOAD_FILE, "--offload-optimizer nvme:DIR", "", c->offload_optimizer == ZR_TIER_NVME)                \
    _(OFFLOAD_SEVERAL, "--offload-optimizer with several data ranks", "",                                    \
      c->offload_optimizer != ZR_TIER_NONE && zr_train_shards(c) > 1 &&                                      \
          (!c->finds_strategy || zr_flag_given(c, "stage")))                                                 \
    _(OFFLOAD_PARAM, "--offload-param", "", c->offload_parameters)                                           \
    _(OFFLOAD_PARAM_FILE, "--offload-param nvme:DIR", "", c->offload_parameters == ZR_TIER_NVME)             \
    _(OFFLOAD_CHECKPOINTS, "--checkpoint-offload", "checkpoint-offload", c->checkpoint_offload)              \
    _(RATIO, "--offload-ratio", "", c->offload_ratio < 1)                                                    \
    _(RATIO_AUTO, "--offload-ratio auto", "", c->offload_ratio < 0)                                          \
    _(DELAYED, "--delayed-update", "", c->delayed_update)                                                    \
    _(SPECULATIVE, "--speculative-update", "", c->speculative_bytes > 0)                                     \
    _(HOST_LIMIT, "--host-limit", "", c->host_limit_bytes > 0)                                               \
    _(NVME, "--nvme-limit, --nvme-depth or --nvme-bandwidth", "",                                            \
      c->nvme_limit_bytes || c->nvme_bytes_per_second > 0 || c->nvme_depth)                                  \
    _(SPILL, "--spill", "", c->spill)                                                                        \
    _(SERVICE, "zrd, which keeps memory beyond the end of a run", "", zr_option_get(ZR_OPTION_SERVICE) != 0) \
    _(KEPT, "kept memory", "", false) /* see zr_rank_kept_words() */                                         \
    /* what ranks send packed */                                                                             \
    _(COMPRESS, "--compress", "", zr_train_compresses(c))                                                    \
    _(COMPRESS_DATA, "--compress of parameters or gradients", "", zr_train_compresses_data(c))               \
    _(COMPRESS_KINDS, "--compress", "",                                                                      \
      packs(c, ZR_COMPRESSED_PARAMETERS) || packs(c, ZR_COMPRESSED_GRADIENTS))                               \
    _(COMPRESS_PARAMETERS, "--compress parameters", "", packs(c, ZR_COMPRESSED_PARAMETERS))                  \
    _(COMPRESS_SHARDS, "--compress other than gradients:onebit, zerone, powersgd and topk", "",              \
      zr_train_compresses_data(c) &&                                                                         \
          (packs(c, ZR_COMPRESSED_PARAMETERS) || !zr_compression_keeps_errors(&c->compression)))             \
    _(ACTIVATIONS, "--compress activations", "", c->compression.activations[0] != ZR_PACKING_ONEBIT)         \
    _(DIFFERENCES, "--compress sdp4bit or parameters:difference", "",                                        \
      c->compression.kinds[ZR_COMPRESSED_PARAMETERS].differences)                                            \
    _(PACKED, "a packing of gradients, as int4", "", is_by(c, ZR_METHOD_PACKED))                             \
    _(ERRORS, "--compress gradients:onebit, zerone, powersgd or topk", "",                                   \
      zr_compression_keeps_errors(&c->compression))                                                          \
    _(ONEBIT, "--compress gradients:onebit", "", is_by(c, ZR_METHOD_ONEBIT))                                 \
    _(ONEBIT_STAGE_0, "--compress gradients:onebit at --stage 0", "",                                        \
      is_by(c, ZR_METHOD_ONEBIT) && c->stage == 0)                                                           \
    _(ONEBIT_LAMB, "--compress gradients:onebit with --optimizer lamb", "",                                  \
      is_by(c, ZR_METHOD_ONEBIT) && c->optimizer.kind == ZR_OPTIMIZER_LAMB)                                  \
    _(ZERONE, "--compress gradients:zerone", "", is_by(c, ZR_METHOD_ZERONE))                                 \
    _(POWERSGD, "--compress gradients:powersgd", "", is_by(c, ZR_METHOD_LOW_RANK))                           \
    _(TOPK, "--compress gradients:topk", "", is_by(c, ZR_METHOD_LARGEST))                                    \
    _(HPZ, "--compress hpz", "", c->compression.secondary_shards)                                            \
    _(NODE_SIZE, "--node-size", "", c->node_ranks > 0)                                                       \
    _(NODES, "--node-size N of 2 or more, or MPI ranks on several hosts", "", c->node_ranks > 1)             \
    _(WARMUP, "--compress-warmup of at least 1", "", c->compress_warmup > 0)                                 \
    _(WARMUP_AUTO, "--compress-warmup auto", "", zr_train_warmup_settles(c))                                 \
    _(CHECK, "--compress-check above 0", "", c->compress_check > 0)                                          \
    _(TOLERANCE, "--compress-tolerance", "", zr_train_compresses_data(c) && c->compress_tolerance > 0)       \
    /* the optimizer */                                                                                      \
    _(ADAMW, "--optimizer adamw", "", c->optimizer.kind == ZR_OPTIMIZER_ADAMW)                               \
    _(SGD, "--optimizer sgd", "", c->optimizer.kind == ZR_OPTIMIZER_SGD)                                     \
    _(LAMB, "--optimizer lamb", "", c->optimizer.kind == ZR_OPTIMIZER_LAMB)                                  \
    _(PREPARES, "an --optimizer whose update needs all ranks", "",                                           \
      zr_optimizer_of(c->optimizer.kind)->prepares)                                                          \
    _(TRUST_AVERAGE, "--trust-average above 0", "",                                                          \
      c->optimizer.kind == ZR_OPTIMIZER_LAMB && c->optimizer.trust_average > 0)                              \
    _(CLIP, "--clip", "", c->optimizer.clip > 0)                                                             \
    _(EMA, "--ema", "", c->optimizer.average_decay > 0)                                                      \
    _(NOISE, "--noise-scale", "", c->noise_decay > 0)                                                        \
    _(FALLS_LAST, "--schedule-lr cosine, linear or wsd", "", zr_schedule_of(c->rate_kind)->ends)             \
    _(WSD, "--schedule-lr wsd", "", c->rate_kind == ZR_RATE_WSD)                                             \
    _(INVERSE_SQRT, "--schedule-lr inverse-sqrt", "", c->rate_kind == ZR_RATE_INVERSE_SQRT)                  \
    _(RATE_WARMUP, "--warmup 1 or more", "", c->warmup > 0)                                                  \
    _(GROUPS, "--groups", "", zr_flag_given(c, "groups"))                                                    \
    _(SEVERAL_GROUPS, "--groups 2 or more", "", c->groups > 1)                                               \
    _(GROUPS_GIVEN, "--groups 2 or more", "", zr_flag_given(c, "groups") && c->groups > 1)                   \
    _(OUTER, "--outer", "", c->outer.period > 0)                                                             \
    _(OUTER_GIVEN, "--outer diloco:H", "", c->outer.period > 0)                                              \
    _(OUTER_PACKING, "--compress outer", "", c->outer.packing != ZR_PACKING_ONEBIT)                          \
    _(OUTER_MIX, "--outer-mix", "", c->outer.mix > 0 && zr_flag_given(c, "outer-mix"))                       \
    _(OUTER_DELAY, "--outer-delay 1 or more", "", c->outer.period > 0 && c->outer.delay > 0)                 \
    _(FRAGMENTS, "--outer-fragments", "", c->outer.period > 0 && c->outer.fragments > 1)                     \
    _(OUTER_ON_GPU, "--outer with --backend cuda", "", c->outer.period > 0 && c->backend == ZR_TRAIN_CUDA)   \
    /* files and text */                                                                                     \
    _(SAVE, "--save DIR", "", c->save[0])                                                                    \
    _(SAVE_EVERY, "--save-every", "", zr_flag_given(c, "save-every") && (c->save_every || c->save_seconds))  \
    _(SAVE_TIME, "--save-every TIME", "", c->save[0] && c->save_seconds && zr_flag_set(c, "save-every"))     \
    _(SAVE_BACKGROUND, "--save-background", "", c->save_background)                                          \
    _(KEEP, "--keep", "", c->keep > 0)                                                                       \
    _(RESUME, "--resume FILE", "", c->resume[0])                                                             \
    _(ASSUME_SHAPE, "--assume-shape", "", c->assume_shape)                                                   \
    _(TRACE, "--trace", "", c->trace[0])                                                                     \
    _(SAMPLE, "--sample N", "", c->sample > 0)                                                               \
    _(PROMPT, "--prompt", "", c->prompt[0])                                                                  \
    _(PROMPT_WORDS, "--prompt in words", "", !c->bytes && !zr_prompt_is_tokens(c, c->prompt))                \
    _(PROMPTS, "--prompts", "", c->prompts[0])                                                               \
    _(STOP, "--stop", "", c->stop[0])                                                                        \
    _(DRAWS, "--top-k or --top-p", "", zr_flag_given(c, "top-k") || zr_flag_given(c, "top-p"))               \
    _(LIKELIEST, "--temperature 0", "", c->temperature == 0)

#define ENUMERATOR(mode, name, open, on) mode,
#define NAME(mode, name, open, on)       [mode] = (name),
#define OPEN(mode, name, open, on)       [mode] = (open),
#define CASE(mode, name, open, on)                                                                           \
    case mode:                                                                                               \
        return on;
enum mode { NO_MODE, MODES(ENUMERATOR) MODES_COUNT };
_Static_assert(MODES_COUNT <= 256, "a mode is more than a byte");
static const char *const names[] = {MODES(NAME)};
static const char *const open_by[] = {[NO_MODE] = "", MODES(OPEN)};

static bool is_on(const void *settings, unsigned mode)
{
    const struct zr_train_config *c = settings;
    switch ((enum mode)mode) {
        MODES(CASE)
    case NO_MODE:
    case MODES_COUNT:
        break;
    }
    return false;
}

static bool is_open(const void *settings, unsigned mode)
{
    return open_by[mode][0] && is_left_open(settings, open_by[mode]);
}

/* The first rule that is broken gives the message. */
static const struct zr_rule rules[] = {
    ZR_REQUIRES(FLOPS, "a timeline needs both", NULL, BANDWIDTH),
    ZR_REQUIRES(BANDWIDTH, "a timeline needs both", NULL, FLOPS),
    ZR_REQUIRES(WORLD_SIZE, "the number of processes that train is --ranks", NULL, DRY_RUN),
    ZR_REQUIRES(SIM, NULL, "to train, give --backend host", DRY_RUN),
    ZR_REQUIRES(SEARCH, NULL, NULL, MEMORY_LIMIT),
    ZR_REQUIRES(AUTO, NULL, NULL, MEMORY_LIMIT),
    ZR_EXCLUDES(SEARCH_LAYERS, NULL, "leave --layers out", LAYERS),
    ZR_EXCLUDES(SEARCH_LAYERS, NULL, "give --hidden and --heads instead", PARAMS),
    ZR_EXCLUDES(SEARCH_BATCH, NULL, "leave --batch out", BATCH),
    ZR_EXCLUDES(PARAMS, NULL, NULL, LAYERS, HIDDEN, HEADS),
    ZR_REQUIRES(DATA_TYPE, NULL, "leave it out for text", TOKENS),
    ZR_REQUIRES(TOKENIZER, NULL, "leave it out for text by bytes", TOKENS),
    ZR_REQUIRES(PROMPT_WORDS, NULL, "or give token numbers below --vocab, such as '464 2068 7586'",
                TOKENIZER),
    ZR_REQUIRES(REDUCE_ONCE, "they keep whole gradients", "give --stage 1, or --reduce each", STAGE_TO_1),
    ZR_REQUIRES(DOCUMENTS, "the token ends a document", NULL, EOS),
    ZR_REQUIRES(EOS, NULL, NULL, DOCUMENTS),
    ZR_EXCLUDES(STAGES_V, "a rank has 2 stages", "give --interleave 2, or leave --interleave out",
                INTERLEAVE_NOT_2),
    ZR_REQUIRES(INTERLEAVE, NULL, "leave one of the two out", STAGES_1F1B, STAGES_V),
    ZR_REQUIRES(VERTICAL_SYNC, "with 2bw all stages read the same version already", NULL, STAGES_PIPEDREAM),
    ZR_REQUIRES(RENDEZVOUS, NULL, NULL, TCP),
    ZR_REQUIRES(SECRET_FILE, NULL, NULL, TCP),
    ZR_REQUIRES(SECRET_FILE, "ranks that are forked here get a secret of their own", NULL, RENDEZVOUS),

    /* a GPU */
    ZR_REQUIRES(CUDA_GRAPH, NULL, NULL, CUDA),
    ZR_REQUIRES(NCCL, NULL, "for --backend host give --comm local, mpi or tcp", CUDA, DRY_RUN),
    ZR_REQUIRES(CP, "the ring's attention has no GPU kernel yet",
                "on a GPU divide sequences by --tp with --sequence-parallel", HOST),
    ZR_REQUIRES(PP_ON_GPU, "with the other transports a rank cannot receive before it sends",
                "give --comm nccl with one GPU per rank, or --tp", NCCL, DRY_RUN),
    ZR_EXCLUDES(CUDA_GRAPH, "these wait or run outside the graph",
                "use data ranks that share a GPU, or leave it out", TP, PP, MPI, TCP, NCCL, PS),
    ZR_EXCLUDES(CUDA_GRAPH, "its host work is not part of a graph", NULL, OFFLOAD, CHECKPOINT_OFFLOAD),
    ZR_REQUIRES(OFFLOAD_PARAM_FILE, "on a GPU a gather runs in a stream, which cannot wait for a file",
                "give --offload-param cpu", HOST),
    ZR_REQUIRES(SPECULATIVE,
                "on a GPU gradients arrive in a stream, for which the thread of the update cannot wait",
                "leave it out, or give --delayed-update", HOST),

    /* activation checkpoints and buffers */
    ZR_REQUIRES(SEQUENCE_PARALLEL, NULL, NULL, TENSOR),
    ZR_REQUIRES(DIVIDED_TWICE, "it saves nothing, since checkpoints are divided already",
                "leave one of the two out, or add --force", FORCE),
    ZR_REQUIRES(PARTITION, "it saves nothing with --tp 1, since no other rank has a copy",
                "leave it out, or add --force", TENSOR, FORCE),
    ZR_REQUIRES(FORCE, "it has no effect otherwise", "leave it out", PARTITION, OFFLOAD_FILE,
                OFFLOAD_PARAM_FILE, SPILL),
    ZR_EXCLUDES(GROWING, "it chooses the size", NULL, BUCKET_BYTES),
    ZR_REQUIRES(HOST_BANDWIDTH, NULL, NULL, OFFLOAD_CHECKPOINTS, OFFLOAD),
    ZR_REQUIRES(HOST_BANDWIDTH, NULL, NULL, FLOPS, AUTO),
    ZR_REQUIRES(HOST_LIMIT, NULL, NULL, OFFLOAD, OFFLOAD_CHECKPOINTS),
    ZR_REQUIRES(NVME, NULL, NULL, OFFLOAD_FILE, OFFLOAD_PARAM_FILE),
    ZR_REQUIRES(NVME_BANDWIDTH, NULL, NULL, FLOPS, AUTO),
    ZR_EXCLUDES(SPLITS,
                "it keeps activation checkpoints until the gradients of parameters are computed, and "
                "excludes --zero-r C2, C4 and C5",
                NULL, PARTITION, CHECKPOINT_OFFLOAD),

    /* an asynchronous pipeline */
    ZR_EXCLUDES(ASYNC, "it keeps versions of whole parameters", "give --stage 2", STAGE_3, OFFLOAD_PARAM),
    ZR_EXCLUDES(ASYNC, "it keeps the version before an update, which these make at other times", NULL,
                DELAYED, SPECULATIVE),
    ZR_EXCLUDES(ASYNC, "each stage ends a step at its own time, so the stages cannot agree to skip one",
                "give --precision bf16", FP16),
    ZR_EXCLUDES(ASYNC, "it trains with gradients of earlier parameters, which --prove reports as errors",
                NULL, PROVE),
    ZR_EXCLUDES(PIPEDREAM, "it updates after every micro-batch", "leave --accumulate out",
                SEVERAL_MICRO_BATCHES),
    ZR_EXCLUDES(PIPEDREAM, "it updates each stage by itself",
                "give --arch llama without --tie-embeddings, or --schedule 2bw", TIED),

    /* --compress */
    ZR_REQUIRES(WARMUP_AUTO, "its variance settles", "give a number of steps", ADAMW),
    ZR_REQUIRES(WARMUP_AUTO, NULL, "give a number of steps", ONEBIT, POWERSGD),
    ZR_REQUIRES(TRUST_AVERAGE, NULL, NULL, ONEBIT),
    ZR_REQUIRES(ACTIVATIONS, "its stages send them", NULL, PP),
    ZR_EXCLUDES(ACTIVATIONS, "no loss scale is chosen for packed gradients", "give --precision bf16", FP16),
    ZR_EXCLUDES(CUDA, "no kernels of a GPU compute it", "give --backend host", ACTIVATIONS, DIFFERENCES,
                ZERONE, POWERSGD, TOPK, ONEBIT_STAGE_0, ONEBIT_LAMB, CHECK),
    ZR_EXCLUDES(COMPRESS, "it changes losses", NULL, PROVE),
    ZR_REQUIRES(NODE_SIZE, NULL, NULL, COMPRESS_DATA),
    ZR_REQUIRES(CHECK, NULL, NULL, COMPRESS_DATA),
    ZR_REQUIRES(TOLERANCE, NULL, NULL, CHECK),
    ZR_REQUIRES(COMPRESS_DATA, "these send parameters and gradients", NULL, SHARDS),
    ZR_REQUIRES(COMPRESS_SHARDS, "each rank updates a shard", NULL, STAGE_FROM_1),
    ZR_EXCLUDES(COMPRESS_DATA, "it may choose stage 0", "give --stage 0, 1, 2 or 3", STAGE_AUTO, AUTO),
    ZR_REQUIRES(NODE_SIZE, "other methods have no nodes", "leave it out", HPZ, PACKED),
    ZR_REQUIRES(HPZ, "each node keeps the parameters once", NULL, STAGE_3),
    ZR_REQUIRES(HPZ, "each node keeps the parameters once", NULL, NODES),
    ZR_EXCLUDES(CUDA_GRAPH, "its operations differ from step to step or between communicators", NULL,
                NODE_SIZE, ONEBIT),
    ZR_EXCLUDES(DIFFERENCES, "no rank keeps the whole parameters that differences are added to",
                "give --stage 1 or 2", STAGE_3),
    ZR_EXCLUDES(DIFFERENCES, "it requires whole models whose state is on the device", NULL, OFFLOAD,
                CHECKPOINT_OFFLOAD, TP, PP),
    ZR_EXCLUDES(DIFFERENCES, "it replaces parameters", NULL, EMA),
    ZR_EXCLUDES(ERRORS, "a loss scale would change the errors of gradients", "give --precision bf16", FP16),
    ZR_EXCLUDES(ERRORS, "it requires whole models whose state is on the device", NULL, OFFLOAD,
                CHECKPOINT_OFFLOAD, TP, PP),
    ZR_EXCLUDES(ONEBIT, "it sends signs of parameters, too", "leave parameters out", COMPRESS_PARAMETERS),
    ZR_REQUIRES(ONEBIT, NULL, NULL, STAGE_TO_1),
    ZR_REQUIRES(ZERONE, "between exchanges each rank has parameters of its own, which no shard can hold",
                NULL, STAGE_0),
    ZR_EXCLUDES(CHECK, "it exchanges no gradients that a check could measure",
                "leave it out; gradients:onebit has checks at --stage 1", ONEBIT_STAGE_0, ZERONE),
    ZR_REQUIRES(ONEBIT, NULL, NULL, ADAMW, LAMB),
    ZR_REQUIRES(ZERONE, NULL, NULL, ADAMW),
    ZR_EXCLUDES(ONEBIT, NULL, NULL, EMA),
    ZR_EXCLUDES(ZERONE, NULL, NULL, EMA),
    ZR_REQUIRES(ONEBIT_LAMB, NULL, NULL, TRUST_AVERAGE),
    ZR_EXCLUDES(ONEBIT, "parameters change by what is sent", "leave --speculative-update out", SPECULATIVE),
    ZR_EXCLUDES(ZERONE, "parameters change by what is sent", "leave --speculative-update out", SPECULATIVE),
    ZR_EXCLUDES(ZERONE, "its ranks compute one sequence with the same parameters", "give data ranks instead",
                CP),
    ZR_REQUIRES(ZERONE, "without a variance nothing is updated", NULL, WARMUP),

    /* ranks that are replaced, that are threads, or whose number changes */
    ZR_REQUIRES(MAX_RESTARTS, "the other transports do not replace a lost rank", NULL, LOCAL, TCP, PS),
    ZR_REQUIRES(MAX_RESTARTS, "torchrun and srun restart ranks by themselves", NULL, FORKED, TCP),
    ZR_REQUIRES(MAX_RESTARTS, "operations of a lost rank stay in a GPU's streams", NULL, HOST),
    ZR_EXCLUDES(MAX_RESTARTS, NULL, NULL, PROVE, SPILL),
    ZR_REQUIRES(REDUNDANCY, "the copies are for ranks that are replaced", NULL, MAX_RESTARTS),
    ZR_EXCLUDES(REDUNDANCY, "its servers keep the state",
                "leave it out, or give --replicas 1, which copies servers", PS),
    ZR_REQUIRES(REDUNDANCY, "the copy of a rank's state is on another one", "give more --ranks", SHARDS),
    ZR_REQUIRES(THREADS, "the other transports connect processes", NULL, LOCAL),
    ZR_REQUIRES(THREADS, "torchrun and srun start processes", NULL, FORKED),
    ZR_REQUIRES(THREADS, "a process has one GPU here", NULL, HOST),
    ZR_EXCLUDES(THREADS, "it is about a process for each rank", NULL, MAX_RESTARTS, SAVE_BACKGROUND, SPILL),
    ZR_REQUIRES(MASTER, "it shows the cost of torch.nn.DataParallel, whose ranks are threads", NULL, THREADS),
    ZR_REQUIRES(MASTER, "rank 0 has the whole optimizer state", NULL, STAGE_0),
    ZR_EXCLUDES(MASTER, "ranks divide only the rows of a step", NULL, TP, CP, PP),
    ZR_EXCLUDES(MASTER, "rank 0 updates when it has all gradients, and sends parameters as they are", NULL,
                OFFLOAD, SPECULATIVE, COMPRESS, OUTER),
    ZR_EXCLUDES(MASTER, "only rank 0 has the gradients of a step", NULL, NOISE),
    ZR_REQUIRES(MASTER, "there is no other rank to send copies to", "give more --ranks", SHARDS),
    ZR_EXCLUDES(RESIZE, "it takes its sizes from events", NULL, ELASTIC),
    ZR_REQUIRES(RESIZE, "zr-train starts the ranks of each size", "give --elastic MIN:MAX", LOCAL),
    ZR_REQUIRES(ELASTIC_APART, "the state of a lost host is in copies on others", NULL, REDUNDANCY),
    ZR_REQUIRES(ELASTIC_APART, "a copy of a rank's state is on another rank", NULL, ELASTIC_OF_TWO),
    ZR_REQUIRES(CHANGES_SIZE, "the other transports have a fixed number of ranks", NULL, LOCAL, APART),
    ZR_REQUIRES(CHANGES_SIZE, NULL, NULL, FORKED, APART),
    ZR_REQUIRES(CHANGES_SIZE, "ranks that join would need a card of their own", NULL, HOST),
    ZR_EXCLUDES(CHANGES_SIZE, NULL, NULL, THREADS, REDUNDANCY_HERE, SAVE_BACKGROUND, PROVE, SPILL, SEARCH,
                AUTO),
    ZR_EXCLUDES(CHANGES_SIZE, "its files are those of ranks", NULL, TRACE),
    ZR_EXCLUDES(CHANGES_SIZE, "its groups have a fixed size", NULL, OUTER),
    ZR_EXCLUDES(CHANGES_SIZE, "it has a state per rank", NULL, COMPRESS_DATA),
    ZR_EXCLUDES(CHANGES_SIZE, "its averages are of one size of batch", NULL, NOISE),
    ZR_EXCLUDES(CHANGES_SIZE, "it has versions of the parameters", "give another schedule", ASYNC),
    ZR_EXCLUDES(GLOBAL_GIVEN, "it sets the micro-batches", NULL, ACCUMULATE),
    ZR_EXCLUDES(GLOBAL_BATCH, "these choose the rows of a step", "leave it out", SEARCH, AUTO),
    ZR_EXCLUDES(UNEVEN, NULL, "give a multiple", PS, ASYNC, NOISE),
    ZR_REQUIRES(EPOCHS, "the other order reads windows at random", NULL, EPOCH_ORDER),
    ZR_EXCLUDES(EPOCHS, NULL, NULL, STEPS),
    ZR_REQUIRES(EPOCHS, "it computes the steps from the data", "give that, or --steps", DATA),
    ZR_EXCLUDES(EPOCHS, "these choose the rows of a step", "give --steps", SEARCH, AUTO),

    /* adapters, offload, swapping out */
    ZR_EXCLUDES(FREEZE, "its units have parts of tensors", NULL, TILE),
    ZR_EXCLUDES(LORA, "its units have parts of tensors", NULL, TILE),
    ZR_EXCLUDES(LORA, "each adapter would need a sum over the ranks",
                "give data ranks (--ranks) and --stage 3 instead", TP),
    ZR_REQUIRES(RATIO, NULL, NULL, OFFLOAD_GIVEN),
    ZR_EXCLUDES(RATIO, "it offloads the whole optimizer", NULL, DELAYED),
    ZR_REQUIRES(RATIO_AUTO, NULL, "give that too, or a number", MEMORY_LIMIT),
    ZR_EXCLUDES(RATIO_AUTO, NULL, "give a number instead", SEARCH, AUTO, STAGE_AUTO),
    ZR_REQUIRES(DELAYED, NULL, NULL, OFFLOAD_GIVEN),
    ZR_EXCLUDES(SPECULATIVE, "it starts after the norm is known", NULL, DELAYED),
    ZR_EXCLUDES(DELAYED, "it changes losses", NULL, PROVE),
    ZR_EXCLUDES(DELAYED, "a step publishes the average", NULL, EMA),
    ZR_REQUIRES(OFFLOAD_PARAM, "the optimizer updates the parameters there", NULL, OFFLOAD_GIVEN),
    ZR_REQUIRES(OFFLOAD_PARAM, "at lower stages every rank keeps whole parameters where it uses them", NULL,
                STAGE_3),
    ZR_REQUIRES(OFFLOAD_SEVERAL, "at stage 0 the host would hold the whole state once per rank", NULL,
                STAGE_FROM_1),
    ZR_EXCLUDES(OFFLOAD_SEVERAL, "it keeps whole gradients on the device until the end of a step",
                "give --reduce each", REDUCE_ONCE),
    ZR_REQUIRES(SPILL, NULL, NULL, HOST),
    ZR_EXCLUDES(SPILL, NULL, NULL, DELAYED, SIM),

    /* groups, the noise scale */
    ZR_REQUIRES(GROUPS_GIVEN, NULL, NULL, OUTER_GIVEN),
    ZR_REQUIRES(OUTER_PACKING, NULL, NULL, OUTER_GIVEN),
    ZR_REQUIRES(OUTER, "these divide the ranks", NULL, SEVERAL_GROUPS),
    ZR_REQUIRES(OUTER_MIX, "without a delay groups take on the synchronised parameters as they are", NULL,
                OUTER_DELAY),
    ZR_EXCLUDES(FRAGMENTS, "its stages share tensors of different fragments", NULL, PP),
    ZR_EXCLUDES(OUTER, "groups skip different steps", "give --precision bf16", FP16),
    ZR_EXCLUDES(OUTER, "validation, sample and export use the parameters of the last synchronisation", NULL,
                EMA),
    ZR_EXCLUDES(OUTER, "its parameters are of earlier steps when groups exchange them", NULL, DELAYED, ASYNC),
    ZR_EXCLUDES(OUTER, "an exchange changes parameters without what they add up", "use another packing",
                ERRORS, DIFFERENCES),
    ZR_EXCLUDES(OUTER, NULL, NULL, AUTO, PROVE, NOISE),
    ZR_EXCLUDES(OUTER_ON_GPU, NULL, NULL, CUDA_GRAPH, OFFLOAD),
    ZR_EXCLUDES(OUTER_DELAY, NULL, "give --offload-optimizer cpu", OFFLOAD_FILE),
    ZR_EXCLUDES(NOISE, NULL, NULL, SEARCH, AUTO),
    ZR_EXCLUDES(NOISE, "its ranks have gradients of parts of sequences", NULL, CP),
    ZR_REQUIRES(NOISE, "a step of one micro-batch has one gradient", NULL, SEVERAL_BATCHES),
    ZR_EXCLUDES(NOISE, "a rank has parts of the gradients of norms", NULL, SEQUENCE_PARALLEL, TP_HEAD_NORMS),
    ZR_EXCLUDES(NOISE, "what is sent has errors of earlier gradients", NULL, ERRORS),
    ZR_EXCLUDES(NOISE, NULL, NULL, DELAYED),

    /* parameter servers */
    ZR_REQUIRES(PS, NULL, "start it without torchrun, srun or mpirun", FORKED),
    ZR_REQUIRES(PS, "a worker has the whole model, and servers divide its state", NULL, STAGE_0),
    ZR_EXCLUDES(PS, "a worker has the whole model, and servers divide its state", NULL, TP, CP, PP, GROUPS),
    ZR_REQUIRES(PS, "gradients are sent from host memory", NULL, HOST),
    ZR_EXCLUDES(PS, "in fp16 workers would skip different steps", "give --precision bf16", FP16),
    ZR_EXCLUDES(CLIP, "gradients are sent before their norm is known", "give --clip 0, or leave it out",
                PS_OF_SUMS),
    ZR_REQUIRES(PS, "servers update ranges of tensors", NULL, ADAMW, SGD),
    ZR_EXCLUDES(PS, NULL, NULL, EMA, OUTER, NOISE, PROVE, COMPRESS_KINDS),
    ZR_EXCLUDES(PS, "servers keep the state", NULL, OFFLOAD, OFFLOAD_PARAM, SPILL),
    ZR_EXCLUDES(PS, "it chooses the stage", NULL, STAGE_AUTO, AUTO),
    ZR_REQUIRES(STALENESS, NULL, NULL, PS_PUSHES),
    ZR_REQUIRES(SAVE_TIME, "other workers do not agree on a time", "give a number of steps", PS_SYNC),

    /* the rest */
    ZR_REQUIRES(PROVE_TOLERANCE, NULL, NULL, PROVE),
    ZR_EXCLUDES(PROVE, "it compares a run from its first step", NULL, DRY_RUN, RESUME),
    ZR_REQUIRES(SAVE_EVERY, NULL, NULL, SAVE),
    ZR_REQUIRES(ASSUME_SHAPE, NULL, NULL, RESUME),
    ZR_REQUIRES(SAVE_BACKGROUND, NULL, NULL, SAVE),
    ZR_REQUIRES(KEEP, NULL, NULL, SAVE),
    ZR_EXCLUDES(SAVE_BACKGROUND, "the state that it copies is elsewhere", NULL, CUDA, OFFLOAD, COMPRESS_KINDS,
                ASYNC, PS, OUTER),
    ZR_EXCLUDES(KEPT, NULL, NULL, SERVICE, OFFLOAD, COMPRESS_KINDS, ASYNC, OUTER, FP16, EMA, NOISE, PREPARES,
                STAGE_0_NARROW, SCATTERED),
    ZR_REQUIRES(INVERSE_SQRT,
                "the rate falls with the root of the steps since the run began, as a multiple of the "
                "warm-up",
                NULL, RATE_WARMUP),
    ZR_EXCLUDES(PROMPTS, NULL, NULL, PROMPT),
    ZR_REQUIRES(STOP, "it ends a text", NULL, TOKENIZER, BYTES),
    ZR_REQUIRES(PROMPT, NULL, NULL, SAMPLE),
    ZR_REQUIRES(STOP, NULL, NULL, SAMPLE),
    ZR_EXCLUDES(DRAWS, "it draws nothing", NULL, LIKELIEST),
};

/* Options of a command line that have no effect without a mode. */
static const struct {
    const char *options; /* separated by blanks */
    unsigned char mode;
} needs[] = {
    {"kv-heads ffn rope-theta norm-epsilon tie-embeddings", LLAMA},
    {"schedule interleave vertical-sync pipeline-cut", PIPELINE},
    {"device logits-bytes", CUDA},
    {"zerone-variance zerone-local zerone-interval", ZERONE},
    {"tcp-streams heartbeat rank rejoin-within", TCP},
    {"rejoin-within", MAX_RESTARTS},
    {"lora-alpha", LORA},
    {"offload-buffers", OFFLOAD_FILE},
    {"outer-lr outer-momentum outer-mix outer-fragments outer-delay", OUTER_GIVEN},
    {"servers replicas ps staleness worker-sleep", PS_OR_SAVED},
    {"loss-scale loss-scale-power loss-scale-window loss-scale-hysteresis min-loss-scale", FP16},
    {"min-lr", FALLS_LAST},
    {"decay-share", WSD},
    {"temperature top-k top-p", SAMPLE},
};

const struct zr_mode_table zr_exclusions = {names, rules, sizeof rules / sizeof *rules, is_on, is_open};

bool zr_pipeline_flag_given(const struct zr_train_config *config)
{
    return zr_flag_given(config, "schedule") || zr_flag_given(config, "interleave") ||
           zr_flag_given(config, "vertical-sync") || zr_flag_given(config, "pipeline-cut");
}

/* ZR_ERR_INVALID: an option is given without its mode. */
static zr_result check_needs(const struct zr_train_config *config)
{
    char option[32];
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        if (is_on(config, needs[i].mode) || is_open(config, needs[i].mode))
            continue;
        for (const char *at = needs[i].options; *at; at += strspn(at, " ")) {
            const size_t length = strcspn(at, " ");
            memcpy(option, at, length);
            option[length] = '\0';
            at += length;
            if (zr_flag_given(config, option))
                return zr_fail(ZR_ERR_INVALID, "--%s requires %s", option, names[needs[i].mode]);
        }
    }
    return ZR_OK;
}

zr_result zr_exclusions_check(const struct zr_train_config *config)
{
    zr_result result = check_needs(config);
    return result == ZR_OK ? zr_modes_check(&zr_exclusions, config) : result;
}

zr_result zr_exclusions_check_epochs(const struct zr_train_config *config)
{
    return zr_modes_check_one(&zr_exclusions, config, EPOCHS, NULL);
}

bool zr_train_takes_stage(const struct zr_train_config *config, unsigned stage)
{
    struct zr_train_config changed = *config;
    changed.stage = stage;
    changed.given[zr_flag_index(zr_flag_find("stage"))] = true;
    return (zr_train_shards(config) > 1 || stage == 0 || config->offload_parameters) &&
           zr_exclusions_check(&changed) == ZR_OK;
}

const char *zr_exclusions_of_kept(const struct zr_train_config *config)
{
    unsigned mode;
    return zr_modes_check_one(&zr_exclusions, config, KEPT, &mode) == ZR_OK ? NULL : names[mode];
}
