/* args.h: the settings of a zr-train run.
 *
 * Everything in zero/train/ reads its settings from struct zr_train_config, a plain value that survives the
 * fork. These functions allocate nothing and touch no backend. */
#ifndef ZR_TRAIN_ARGS_H
#define ZR_TRAIN_ARGS_H

#include "alloc/base/system/file.h"
#include "zero/comm/mesh.h"
#include "zero/engine/optimizer.h"
#include "zero/launch/start.h"
#include "zero/model/transformer.h"
#include "zero/plan/plan.h"
#include "zero/ps/zr_ps.h"
#include "zero/train/division.h"
#include "zero/train/token_files.h"

#define ZR_TRAIN_PATH_ROOM 4096

/* Exit codes. 128 + n: signal n ended the run or killed a rank. */
enum zr_exit {
    ZR_EXIT_OK = 0,
    ZR_EXIT_FAILED = 1, /* a check failed: a non-finite loss, replicas that differ */
    ZR_EXIT_USAGE = 2,
    ZR_EXIT_INPUT = 3, /* bad input, or an unreadable or unwritable file */
    ZR_EXIT_MEMORY = 4,
};
/* The exit code for a result. */
enum zr_exit zr_exit_of(zr_result result);

/* Reaction to a tag that exceeds its byte plan. */
enum zr_over_plan { ZR_OVER_PLAN_FAIL = 0, ZR_OVER_PLAN_CONTINUE };

/* What zr-train does: `zr-train sample` and `zr-train eval` do not train. */
enum zr_train_command { ZR_COMMAND_TRAIN = 0, ZR_COMMAND_SAMPLE, ZR_COMMAND_EVAL };

/* How --pp divides the layers into stages. */
enum zr_pipeline_cut { ZR_CUT_MEMORY = 0, ZR_CUT_EQUAL };

/* Where state is kept. */
enum zr_tier { ZR_TIER_NONE = 0, ZR_TIER_CPU, ZR_TIER_NVME };

/* --backend: where tensors are kept. */
enum zr_train_backend { ZR_TRAIN_HOST = 0, ZR_TRAIN_SIM, ZR_TRAIN_CUDA };

/* --comm nccl: NCCL moves tensors; host messages use the launcher's transport. */
enum { ZR_TRAIN_COMM_NCCL = ZR_CARRIER_TCP + 1 };
/* --comm ps: ranks are workers of parameter servers, see servers/servers.h; their own messages are local. */
enum { ZR_TRAIN_COMM_PS = ZR_TRAIN_COMM_NCCL + 1 };

/* --ranks-as: a process for each rank, or one process with a thread for each. */
enum zr_ranks_as { ZR_RANKS_AS_PROCESSES = 0, ZR_RANKS_AS_THREADS };

enum zr_rate_kind {
    ZR_RATE_COSINE = 0,
    ZR_RATE_LINEAR,
    ZR_RATE_CONSTANT,
    ZR_RATE_WSD,
    ZR_RATE_INVERSE_SQRT,
    ZR_RATES_COUNT
};
#define ZR_RATE_NAMES "cosine|linear|constant|wsd|inverse-sqrt" /* of the kinds, in order */

/* Default of --bucket-bytes for any number of ranks. */
#define ZR_TRAIN_BUCKET_BYTES ((size_t)4 << 20)

enum { ZR_STAGE_AUTO = 4 };  /* --stage auto until zr_resolve_stage() */
enum { ZR_RATIO_AUTO = -1 }; /* --offload-ratio auto until zr_resolve_offload_ratio() */
enum { ZR_TRAIN_SLEEPS_MAX = 16 };
enum { ZR_FLAGS_MAX = 192 }; /* capacity of the table of options */
enum { ZR_ACCUMULATE_MAX = 65536 };

/* Properties of the tiers, measured before the ranks exist. */
struct zr_folder_found {
    size_t align_bytes;
    unsigned depth; /* of the disk; 0: not measured */
};
struct zr_tiers_found {
    /* Folders of --offload-optimizer nvme:DIR and --offload-param nvme:DIR; zeros: not given. */
    struct zr_folder_found optimizer, parameters;
    /* Per rank; 0: not measured. The disk's rate is that of simultaneous reads and writes on the slower
     * disk. */
    double nvme_bytes_per_second, host_bytes_per_second;
    double updates_per_second; /* optimizer elements per second of one thread */
};

/* --precision fp8: elements are bf16, products of blocks are fp8 (shape.fp8). */
enum { ZR_TRAIN_FP8 = ZR_PRECISION_COUNT };

/* Settings of one run. zr_args_parse() resolves them; afterwards they are final, except for the settings
 * of resolve_options.h. */
struct zr_train_config {
    char data[ZR_TRAIN_PATH_ROOM]; /* values of --data, separated by line feeds; "" only with --dry-run */
    enum zr_token_type data_type;
    unsigned epochs;               /* --data-order: 1 if epochs */
    char save[ZR_TRAIN_PATH_ROOM]; /* "": not given */
    bool save_background;          /* a thread writes saves */
    char resume[ZR_TRAIN_PATH_ROOM];
    bool assume_shape;               /* the model of --resume may lack a config.json */
    char model[ZR_TRAIN_PATH_ROOM];  /* --model: the shape is that of its config.json */
    char export[ZR_TRAIN_PATH_ROOM]; /* a file, or a folder: zr_model_is_folder() */
    uint64_t export_part_bytes;      /* maximum size of a file in the folder */
    char log[ZR_TRAIN_PATH_ROOM];
    char json[ZR_TRAIN_PATH_ROOM];        /* "-": standard output */
    char tensorboard[ZR_TRAIN_PATH_ROOM]; /* a folder */
    char status[ZR_TRAIN_PATH_ROOM];
    char trace[ZR_TRAIN_PATH_ROOM];
    char config_file[ZR_TRAIN_PATH_ROOM]; /* --config */
    char tokenizer[ZR_TRAIN_PATH_ROOM]; /* --tokenizer, or tokenizer.json in the folder of --model; may be ""
                                         */
    enum zr_train_command command;
    char prompt[1024];                /* --prompt, may be "" */
    char prompts[ZR_TRAIN_PATH_ROOM]; /* --prompts: a prompt per line; "-": standard input; "": not given */
    char stop[1024];                  /* --stop, may be "" */
    size_t stride;                    /* --stride of eval; 0: the sequence */

    struct zr_shape shape; /* per rank */
    struct zr_stages stages;
    unsigned pipeline_cut; /* enum zr_pipeline_cut */
    double parameters;     /* --params; 0: the shape is given */
    bool bytes;            /* --vocab byte: tokens are bytes; else the data is a token shard */

    uint64_t steps;
    uint64_t passes; /* --epochs: sets `steps`; 0: not given */
    uint64_t seed;
    unsigned world;                       /* number of ranks: --ranks, or --world-size of a --dry-run */
    unsigned comm;                        /* enum zr_comm_carrier, or ZR_TRAIN_COMM_NCCL or _PS */
    bool by_mpi;                          /* MPI carries the messages, or the host messages of NCCL */
    char rendezvous[256];                 /* --rendezvous; "": the ranks are forked here */
    char secret_file[ZR_TRAIN_PATH_ROOM]; /* --secret-file; "": ZR_SECRET */
    unsigned rank;                        /* --rank */
    unsigned tcp_streams;
    double heartbeat;                       /* seconds */
    bool deterministic;                     /* NCCL sums in rank order */
    unsigned comm_timeout;                  /* seconds */
    unsigned max_restarts;                  /* of killed ranks */
    char resize[1024];                      /* --resize, see zr_train_scheduled(); "": not given */
    char elastic[32];                       /* --elastic; "": not given */
    unsigned least_replicas, most_replicas; /* of --elastic; 0: not given */
    uint64_t join;                          /* --join: a launcher's pid */
    unsigned redundancy;                    /* 2: each rank's state has a copy on another rank */
    unsigned ranks_as;                      /* enum zr_ranks_as */
    bool master;                            /* --master: rank 0 keeps the state and updates */
    const struct zr_data *data_of_ranks; /* opened before ranks that are threads, which share it; else NULL */
    double rejoin_within;                /* seconds */
    struct zr_start start;               /* launcher of the ranks */
    unsigned ranks_here;                 /* ranks on this machine */
    unsigned groups;                     /* --groups: each has a mesh of world / groups ranks */
    unsigned servers, replicas;          /* of --comm ps */
    char ps[32], staleness[32];          /* --ps and --staleness; "": sync, none */
    struct zr_ps_timing timing;          /* of them */
    struct zr_ps_staleness correction;   /* likewise */
    char worker_sleep[256];              /* --worker-sleep, and its numbers */
    uint64_t worker_sleeps[ZR_TRAIN_SLEEPS_MAX];
    unsigned worker_sleeps_count;
    const struct zr_served_run *served; /* with --comm ps, from zr_served_start() on */
    struct zr_outer outer; /* --outer and its options; comm is NULL, mix below 0 until resolved */
    unsigned stage;
    unsigned micro_batches;            /* per step, at least 1 */
    uint64_t global_batch;             /* sequences per step of all ranks; 0: a multiple of micro_batches */
    uint32_t reduce;                   /* enum zr_reduce_when */
    struct zr_compression compression; /* --compress; see zr_train_compression() */
    unsigned node_ranks;               /* --node-size; 0: all */
    bool nodes_are_hosts;              /* node_ranks is the number of data ranks on a host */
    uint64_t compress_warmup;          /* --compress-warmup; UINT64_MAX: auto */
    uint64_t compress_check;           /* --compress-check; 0: never */
    double compress_tolerance;         /* --compress-tolerance; 0: none */
    uint64_t zerone_variance, zerone_local, zerone_interval; /* --zerone-variance, .. */
    uint32_t precision; /* enum zr_precision, or ZR_TRAIN_FP8: see zr_train_precision() */
    struct zr_loss_scaling loss_scaling;
    float loss_scale;          /* --loss-scale; 0: adaptive */
    unsigned loss_scale_power; /* the adaptive scale starts at two to this power */
    unsigned threads;          /* per rank, at least 1 */
    size_t bucket_bytes;
    size_t memory_limit_bytes;                 /* per rank; 0: unlimited */
    unsigned over_plan;                        /* enum zr_over_plan */
    double flops_per_second, bytes_per_second; /* per rank, for the step timeline; 0: none */
    double host_bytes_per_second;              /* of host copies, for the step timeline */
    struct zr_checkpoint_policy checkpoints;   /* without its arena */
    bool checkpoint_offload;                   /* checkpoints go to the host tier */
    unsigned offload_optimizer;                /* enum zr_tier */
    unsigned offload_parameters;               /* enum zr_tier */
    bool delayed_update;                       /* --delayed-update */
    size_t speculative_bytes;                  /* --speculative-update; 0: none, SIZE_MAX: all state */
    bool speculates_if_room;  /* --speculative-update auto until zr_resolve_speculative_update() */
    unsigned offload_buffers; /* --offload-buffers */
    size_t host_limit_bytes;  /* of the host tier, per rank; 0: unlimited */
    double offload_ratio;     /* offloaded fraction of the elements */
    char offload_folder[ZR_TRAIN_PATH_ROOM];    /* DIR of --offload-optimizer nvme:DIR; "": not given */
    char parameters_folder[ZR_TRAIN_PATH_ROOM]; /* DIR of --offload-param nvme:DIR; "": not given */
    bool wait;                                  /* --wait: wait for zrd if the plan does not fit now */
    unsigned spill;                             /* enum zr_tier; see rank/spill.h */
    char spill_folder[ZR_TRAIN_PATH_ROOM];      /* DIR of --spill nvme:DIR; "": not given */
    unsigned nvme_depth;                        /* 0: measured */
    uint64_t nvme_limit_bytes;                  /* of the offload files, per rank; 0: unlimited */
    double nvme_bytes_per_second;               /* of the offload files, for the step timeline; 0: unknown */
    struct zr_tiers_found found;                /* zeros in a dry run; see zr_measure_tiers() */
    bool growing_buffers;                       /* --no-constant-buffers */
    unsigned policy;                            /* enum zr_policy */
    struct zr_policy_use policy_use;            /* result for a policy other than zr: see
                                                 * zr_resolve_policy() */
    bool force;                                 /* --force: allow offload and partitioning that save no
                                                 * memory */
    unsigned zero_r;                            /* --zero-r, if given: C1 is 0 */
    bool finds_strategy;                        /* --zero-r auto until zr_resolve_strategy() */

    enum zr_rate_kind rate_kind;
    float rate, min_rate, start_rate; /* start_rate: before the first step of the warm-up */
    float decay_share;                /* of the steps, for ZR_RATE_WSD */
    uint64_t warmup;                  /* steps */
    unsigned log_warmup;              /* --warmup-type: 1 if log */
    struct zr_optimizer_options optimizer;
    struct zr_trainable trainable; /* --group, --freeze */
    double noise_decay;            /* --noise-scale; 0: not measured */

    uint64_t save_every;   /* steps; 0: not by steps */
    uint64_t save_seconds; /* seconds; 0: not by time. Must follow save_every: --save-every stores both */
    unsigned keep;         /* checkpoints to keep; 0: all */
    uint64_t eval_every;   /* steps; 0: never; else also after the last step */
    size_t sample;         /* tokens of text to generate at the end */
    float temperature;     /* 0: always the likeliest token */
    unsigned top_k;        /* 0: all tokens */
    float top_p;

    const char *program;      /* argv[0], for printed commands; borrowed */
    bool given[ZR_FLAGS_MAX]; /* [i]: option i of the table is on the command line */
    bool filed[ZR_FLAGS_MAX]; /* [i]: option i is in the file of --config */
    bool prove;               /* --prove: compare with one dense rank after each step */
    double tolerance;         /* tolerance of --prove; 0: by precision */
    bool dry_run;
    unsigned world_size; /* --world-size; code uses `world` */
    /* Settings for which a plan took a default; the report names them. */
    bool plans_vocabulary, plans_sequence, plans_threads;
    unsigned unused;     /* storage of all options with a single choice */
    unsigned backend;    /* enum zr_train_backend */
    size_t logits_bytes; /* maximum chunk of the head's logits; 0: the model's choice */
    bool cuda_graph;     /* record a step and replay it as a CUDA graph */
    unsigned device;     /* GPU of --backend cuda on this machine */
    bool finds_max;      /* --find-max was given; implies a dry run */
    unsigned find_max;   /* enum zr_limit_size */
};

/* Range of a chunk of the head's logits on a GPU. */
#define ZR_LOGITS_BYTES_MIN ((size_t)64 << 20)
#define ZR_LOGITS_BYTES_MAX ((size_t)1 << 30)

/* Precision of parameters, gradients and activations, and the name of the requested precision. */
static inline enum zr_precision zr_train_precision(const struct zr_train_config *config)
{
    return config->precision == ZR_TRAIN_FP8 ? ZR_PRECISION_BF16 : (enum zr_precision)config->precision;
}
static inline const char *zr_train_precision_name(const struct zr_train_config *config)
{
    return config->precision == ZR_TRAIN_FP8 ? "fp8" : zr_precision_name(zr_train_precision(config));
}

/* The ranks as a mesh. */
static inline struct zr_mesh_shape zr_train_mesh(const struct zr_train_config *config)
{
    unsigned tensor = (unsigned)zr_shape_tensor(&config->shape),
             context = (unsigned)zr_shape_context(&config->shape),
             pipeline = config->stages.ranks > 1 ? config->stages.ranks : 1,
             groups = config->groups > 1 ? config->groups : 1;
    return (struct zr_mesh_shape){.data = config->world / tensor / context / pipeline / groups,
                                  .tensor = tensor,
                                  .pipeline = pipeline,
                                  .context = context,
                                  .groups = config->groups,
                                  .apart = config->comm == ZR_TRAIN_COMM_PS,
                                  .saves = config->save_background,
                                  .backup = config->redundancy > 1};
}

/* Whether workers of parameter servers do not wait for one another in each step. */
static inline bool zr_train_is_free(const struct zr_train_config *config)
{
    return config->comm == ZR_TRAIN_COMM_PS && config->timing.kind != ZR_PS_SYNC;
}

/* Number of ranks with different batches, of all groups: a step has this many times a rank's sequences. */
static inline unsigned zr_train_data_ranks(const struct zr_train_config *config)
{
    struct zr_mesh_shape mesh = zr_train_mesh(config);
    return mesh.data * zr_mesh_groups(mesh);
}
/* The number of a rank among them. */
static inline unsigned zr_train_data_rank(const struct zr_train_config *config, struct zr_mesh_place place)
{
    return place.group * zr_train_mesh(config).data + place.data;
}

/* What the optimizer's state has beside what updates use. */
static inline enum zr_keeps zr_train_keeps(const struct zr_train_config *config)
{
    return config->outer.period > 0              ? ZR_KEEPS_ANCHOR
           : config->optimizer.average_decay > 0 ? ZR_KEEPS_AVERAGE
                                                 : ZR_KEEPS_NOTHING;
}

/* Whether ranks are workers of parameter servers / and push differences of parameters. */
static inline bool zr_train_is_served(const struct zr_train_config *config)
{
    return config->comm == ZR_TRAIN_COMM_PS && config->command == ZR_COMMAND_TRAIN;
}
/* Whether a worker that is killed gets a successor, which repeats its step. */
static inline bool zr_train_repeats(const struct zr_train_config *config)
{
    return zr_train_is_served(config) && config->max_restarts > 0;
}
static inline bool zr_train_differs(const struct zr_train_config *config)
{
    return zr_train_is_served(config) && config->timing.kind == ZR_PS_GEO;
}

/* settings/servers.c: reads --ps, --staleness and --worker-sleep, and sets the defaults of --comm ps. Returns
 * NULL, or a message. */
const char *zr_servers_resolve(struct zr_train_config *config);

/* Number of ranks of a group that ZeRO divides state among. */
static inline unsigned zr_train_shards(const struct zr_train_config *config)
{
    return zr_mesh_shards(zr_train_mesh(config));
}

/* The model's shape on rank `rank`. */
static inline struct zr_shape zr_train_shape(const struct zr_train_config *config, unsigned rank)
{
    struct zr_shape shape = config->shape;
    struct zr_mesh_place place = zr_mesh_place_of(zr_train_mesh(config), rank);
    shape.tensor_rank = place.tensor;
    shape.context_rank = place.context;
    if (config->logits_bytes)
        shape.logits_rows = zr_shape_logits_rows(&shape, config->logits_bytes,
                                                 zr_precision_bytes(zr_train_precision(config)));
    return shape;
}

/* The micro-batches of one step of all ranks, and the data ranks that divide them. */
static inline struct zr_division zr_train_division(const struct zr_train_config *config)
{
    unsigned data_ranks = zr_train_data_ranks(config);
    return (struct zr_division){config->global_batch > 0 ? config->global_batch / config->shape.batch
                                                         : (uint64_t)data_ranks * config->micro_batches,
                                data_ranks};
}

/* Tokens of one step of all ranks. */
static inline uint64_t zr_train_step_tokens(const struct zr_train_config *config)
{
    return zr_train_division(config).micro_batches * config->shape.batch * config->shape.sequence;
}

static inline bool zr_train_has_host_tier(const struct zr_train_config *config)
{
    return config->checkpoint_offload || config->offload_optimizer != ZR_TIER_NONE;
}
/* Whether the variance decides when the warm-up of gradients ends: --compress-warmup auto. */
static inline bool zr_train_warmup_settles(const struct zr_train_config *config)
{
    return config->compress_warmup == UINT64_MAX;
}
static inline struct zr_compression zr_train_compression(const struct zr_train_config *config)
{
    struct zr_compression compression = config->compression;
    compression.node_ranks = config->node_ranks;
    const bool settles = zr_train_warmup_settles(config);
    compression.warmup_steps = settles ? config->warmup : config->compress_warmup;
    compression.settle_ratio = settles ? 0.96 : 0; /* as in 1-bit Adam */
    compression.check_steps = config->compress_check;
    compression.tolerance = config->compress_tolerance;
    compression.zerone.variance_updates = config->zerone_variance;
    compression.zerone.local_steps = config->zerone_local;
    compression.zerone.interval_max = config->zerone_interval;
    return compression;
}
/* Whether --compress is given / of what data ranks send. */
static inline bool zr_train_compresses_data(const struct zr_train_config *config)
{
    bool any = config->compression.secondary_shards;
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++)
        any |= config->compression.kinds[kind].on;
    return any;
}
static inline bool zr_train_compresses(const struct zr_train_config *config)
{
    return zr_train_compresses_data(config) || config->compression.activations[0] != ZR_PACKING_ONEBIT;
}
/* Whether the data ranks of a place keep whole parameters once: see struct zr_engine_options. Settings by
 * which ranks have parameters of their own between steps, or keep them elsewhere, are left out. */
static inline bool zr_train_shares_parameters(const struct zr_train_config *config)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    return config->ranks_as == ZR_RANKS_AS_THREADS && !config->master && zr_train_shards(config) > 1 &&
           config->stage <= 2 && config->offload_optimizer == ZR_TIER_NONE &&
           !zr_train_compresses_data(config) && config->outer.period == 0 &&
           !zr_pipeline_is_asynchronous(&pipeline);
}
/* Whether gradients are sent by a method / by one that keeps errors, see zero/engine/errors.h. */
static inline bool zr_compression_is_by(const struct zr_compression *compression,
                                        enum zr_compression_method method)
{
    return compression->kinds[ZR_COMPRESSED_GRADIENTS].on &&
           compression->kinds[ZR_COMPRESSED_GRADIENTS].method == method;
}
/* By one of the methods of zero/engine/onebit.h. */
static inline bool zr_compression_sends_signs(const struct zr_compression *compression)
{
    return zr_compression_is_by(compression, ZR_METHOD_ONEBIT) ||
           zr_compression_is_by(compression, ZR_METHOD_ZERONE);
}
static inline bool zr_compression_keeps_errors(const struct zr_compression *compression)
{
    return compression->kinds[ZR_COMPRESSED_GRADIENTS].on &&
           compression->kinds[ZR_COMPRESSED_GRADIENTS].method != ZR_METHOD_PACKED;
}
/* ZR_ERR_INVALID if hosts are nodes, but do not have as many consecutive ranks as the launcher's variables
 * say. `host_ranks`: see zr_message_host_ranks(). */
zr_result zr_compress_check_hosts(const struct zr_train_config *config, unsigned host_ranks);
struct zr_text;
/* Writes a blank and the value of --compress. */
void zr_compress_print(struct zr_text *text, const struct zr_train_config *config);
/* Whether a tier is a file. */
static inline bool zr_train_has_file(const struct zr_train_config *config)
{
    return config->offload_optimizer == ZR_TIER_NVME || config->offload_parameters == ZR_TIER_NVME;
}
/* settings/exclusions.c: whether the run may have this ZeRO stage, with the other settings as they are. */
bool zr_train_takes_stage(const struct zr_train_config *config, unsigned stage);
/* The mode that excludes kept memory, as messages name it; NULL: none. */
const char *zr_exclusions_of_kept(const struct zr_train_config *config);

/* Whether ranks may be on several hosts, each with a launcher that watches only its own ranks. */
static inline bool zr_train_spans_hosts(const struct zr_train_config *config)
{
    return config->by_mpi || config->rendezvous[0];
}

/* Whether this process prints for the run: rank 0, unless it is about to become an mpirun. */
static inline bool zr_train_leads(const struct zr_train_config *config)
{
    return config->start.rank == 0 &&
           !(config->comm == ZR_CARRIER_MPI && config->start.kind == ZR_START_FORK && config->world > 1);
}

/* Parses the command line. Returns -1 to continue, else the exit code: 0 after printing help or version on
 * stdout; 2, or 3 for the file of --config, after printing a message on stderr. */
int zr_args_parse(struct zr_train_config *out, int argc, char **argv);

/* Reads the config.json of --model into the shape, and sets --resume to the folder's parameters unless it was
 * given. Returns -1, or an exit code after printing a message: 2 for an option that contradicts the file, 3
 * for a file that zr-train cannot train with. Does nothing without --model. */
int zr_train_read_model(struct zr_train_config *config);

/* Writes a shell-quoted command line with the given options in table order, without --json and --trace,
 * and with the values of `changes`. A change with value NULL removes its option. */
struct zr_args_change {
    const char *name, *value;
};
void zr_args_print(struct zr_text *text, const struct zr_train_config *config,
                   const struct zr_args_change *changes, size_t changes_count);

/* Whether a prompt is a list of token numbers of the vocabulary, separated by blanks or commas. */
bool zr_prompt_is_tokens(const struct zr_train_config *config, const char *prompt);

/* Writes what the optimizer's state has: "momentum and variance". */
void zr_optimizer_state_words(struct zr_text *text, const struct zr_train_config *config);

/* ---- Checks before a run ------------------------------------------------------------------------------- */

/* Checks that all ranks have the same settings, since ranks of another launcher each parse a command line.
 * The first exchange between the ranks. Collective. ZR_ERR_INVALID on all ranks: a setting that must be
 * equal differs; the message names the first one. Paths, threads and limits may differ. */
zr_result zr_train_agree(const struct zr_train_config *config, zr_comm *comm);

/* Compares the libraries that compute the ranks' matrix products; `mine`: that of this rank. GPU model,
 * compute capability and the library's version determine the order of sums, so ranks that differ in one of
 * them differ in the last bits. Rank 0 prints a difference; with --deterministic it is ZR_ERR_INVALID on all
 * ranks. Collective. */
zr_result zr_train_agree_products(const struct zr_train_config *config, zr_comm *comm, const char *mine);

/* Checks that the run's outputs can be written, so that a typo does not cost an hour. Creates and changes
 * nothing; called by the launcher. ZR_ERR_IO: the message names the option. */
zr_result zr_outputs_check(const struct zr_train_config *config);
/* ZR_ERR_INVALID: two of the run's files or folders are the same, whether they exist yet or not, so one
 * would overwrite the other. */
zr_result zr_outputs_apart(const struct zr_train_config *config);

/* Sets layers, hidden and heads so that the model has about `parameters` parameters and the usual
 * proportions of its size, with heads that the tensor ranks divide. Reads the other fields. Deterministic. */
void zr_shape_choose(struct zr_shape *shape, double parameters);

/* ---- Numbers of data replicas (sizes.c) ---------------------------------------------------------------- */

/* A data replica has a part of each step's rows and the whole model, on the ranks of --tp, --cp and --pp. */

/* Whether each rank has a launcher of its own, which has memory of its own. */
static inline bool zr_train_is_apart(const struct zr_train_config *config)
{
    return config->comm == ZR_CARRIER_TCP && config->rendezvous[0];
}

/* Whether the number of replicas may change during the run: --resize or --elastic. */
static inline bool zr_train_changes_size(const struct zr_train_config *config)
{
    return config->resize[0] || config->elastic[0];
}
/* Whether kept memory is needed for ranks that are lost. */
static inline bool zr_train_replaces_ranks(const struct zr_train_config *config)
{
    return config->max_restarts > 0 || config->elastic[0];
}
/* Ranks of a replica. */
unsigned zr_train_replica_ranks(const struct zr_train_config *config);
/* Replicas from the end of `step` on by --resize; 0: it does not say. */
unsigned zr_train_scheduled(const struct zr_train_config *config, uint64_t step);
/* The numbers of replicas that the run may have. */
struct zr_replica_range {
    unsigned least, most;
};
struct zr_replica_range zr_train_replica_range(const struct zr_train_config *config);
/* For the launcher; zeros if the size does not change. */
struct zr_launch_replicas zr_train_launch_replicas(const struct zr_train_config *config);
/* Changes the number of replicas, and what follows from it. */
void zr_train_set_replicas(struct zr_train_config *config, unsigned replicas);
/* Reads --resize and --elastic and sets the rounds of a step by --global-batch. ZR_ERR_INVALID. */
zr_result zr_train_resolve_rows(struct zr_train_config *config);

/* ---- The pipeline stages of a run (stages.c) ----------------------------------------------------------- */

/* The first rank of the run with this pipeline rank; other ranks of the pipeline rank take the same bytes. */
unsigned zr_train_first_rank(const struct zr_train_config *config, unsigned pipeline_rank);
/* Number of pipeline ranks; 1 without a pipeline. */
static inline unsigned zr_train_pipeline(const struct zr_train_config *config)
{
    return zr_train_mesh(config).pipeline;
}

/* ZR_ERR_INVALID: too many stages for the layers, or a number of micro-batches that the schedule rejects;
 * the message names values that fit. */
zr_result zr_train_check_stages(const struct zr_train_config *config);

/* The highest ZeRO stage that the run may have: one rank has nothing to shard, ZR_REDUCE_ONCE and signs need
 * whole gradients, and versions whole parameters. */
unsigned zr_train_highest_stage(const struct zr_train_config *config);

/* Sets config->stages.layers. With `memory`, each layer goes to the rank with the lowest peak, estimated
 * from byte plans with one and with two layers per stage; the first and the last stage, which have
 * embedding and head, may get none. Records come from host_arena. */
zr_result zr_train_cut_stages(struct zr_train_config *config, zr_arena *host_arena);

/* ---- The learning rate of each step (rates.c) ---------------------------------------------------------- */

/* A linear or logarithmic warm-up, then a schedule. A pure function of the step, so a resumed run needs no
 * state. */

struct zr_schedule {
    const char *name; /* --schedule-lr; as in ZR_RATE_NAMES */
    bool ends;        /* reaches the minimum rate at the last step; false: depends on neither of the two */
    /* Share of the way from the rate to its minimum (0 if it does not end), for steps beyond the warm-up. */
    double (*fallen)(const struct zr_train_config *config, double step);
};
const struct zr_schedule *zr_schedule_of(enum zr_rate_kind kind);

/* The rate of `step`, from 1 to config->steps. It rises from config->start_rate over steps 1 to warmup and
 * reaches config->rate at step `warmup`; the last step of a schedule that ends has config->min_rate. */
float zr_schedule_rate(const struct zr_train_config *config, uint64_t step);

#endif
