/* args.h: the settings of a zr-train run and the one table of options they are read from.
 *
 * Stands at the top of zero/train/: everything below gets its settings from struct zr_train_config, a plain
 * value that survives the fork. Nothing here allocates or touches a backend; the launcher calls it first. */
#ifndef ZR_TRAIN_ARGS_H
#define ZR_TRAIN_ARGS_H

#include "alloc/base/system/file.h"
#include "zero/comm/mesh.h"
#include "zero/launch/start.h"
#include "zero/model/transformer.h"
#include "zero/plan/policy.h"

#define ZR_TRAIN_PATH_ROOM 4096

/* What the programs return; 128 + n where signal n killed a rank or cut the run short. */
enum zr_exit {
    ZR_EXIT_OK = 0,
    ZR_EXIT_FAILED = 1, /* a check failed: a loss that is no number, replicas that differ */
    ZR_EXIT_USAGE = 2,
    ZR_EXIT_INPUT = 3, /* bad input, or a file that could not be read or written */
    ZR_EXIT_MEMORY = 4,
};
/* The exit code that a failure ends the program with. */
enum zr_exit zr_exit_of(zr_result result);

/* What becomes of a run that asks for more of a tag than its byte plan has. */
enum zr_over_plan { ZR_OVER_PLAN_FAIL = 0, ZR_OVER_PLAN_CONTINUE };

/* How --pp cuts the layers into stages. */
enum zr_pipeline_cut { ZR_CUT_MEMORY = 0, ZR_CUT_EQUAL };

/* Where something lives. */
enum zr_tier { ZR_TIER_NONE = 0, ZR_TIER_CPU, ZR_TIER_NVME };

/* --backend: where tensors are. */
enum zr_train_backend { ZR_TRAIN_HOST = 0, ZR_TRAIN_SIM, ZR_TRAIN_CUDA };

/* --comm nccl: data goes by NCCL, host messages as from the launcher. */
enum { ZR_TRAIN_COMM_NCCL = ZR_CARRIER_MPI + 1 };

enum zr_rate_kind { ZR_RATE_COSINE = 0, ZR_RATE_LINEAR, ZR_RATE_CONSTANT };

/* The default of --bucket-bytes, whatever the number of ranks. */
#define ZR_TRAIN_BUCKET_BYTES ((size_t)4 << 20)

enum { ZR_STAGE_AUTO = 4 };   /* --stage auto, until zr_resolve_stage() */
enum { ZR_RATIO_AUTO = -1 };  /* --offload-ratio auto, until zr_resolve_offload_ratio() */
enum { ZR_FLAGS_MOST = 128 }; /* options of the table */

/* What the tiers of a run were found to offer, before its ranks exist. */
struct zr_folder_found {
    size_t align_bytes;
    unsigned depth; /* of the disk; 0: not measured */
};
struct zr_tiers_found {
    /* The folders of --offload-optimizer nvme:DIR and --offload-param nvme:DIR; zeros: not given. */
    struct zr_folder_found optimizer, parameters;
    /* Of a rank; 0: not measured. The slower disk's, read and written at once, the host's copied. */
    double nvme_bytes_per_second, host_bytes_per_second;
    double updates_per_second; /* elements of the optimizer, by one thread */
};

/* --precision fp8: elements are bf16, and products of blocks round them to eight bits (shape.fp8). */
enum { ZR_TRAIN_FP8 = ZR_PRECISION_COUNT };

/* One run. Sizes that the table leaves to the program are resolved by zr_args_parse(): what is here is final.
 */
struct zr_train_config {
    char data[ZR_TRAIN_PATH_ROOM]; /* "" with --dry-run only */
    char save[ZR_TRAIN_PATH_ROOM]; /* folders and files: "" when not asked for */
    char resume[ZR_TRAIN_PATH_ROOM];
    bool assume_shape; /* of a model in --resume that has no config.json */
    char export[ZR_TRAIN_PATH_ROOM];
    char log[ZR_TRAIN_PATH_ROOM];
    char json[ZR_TRAIN_PATH_ROOM]; /* "-": standard output */
    char trace[ZR_TRAIN_PATH_ROOM];
    char config_file[ZR_TRAIN_PATH_ROOM]; /* --config */
    char prompt[1024];                    /* --prompt, "" is fine */

    struct zr_shape shape; /* batch is per rank */
    struct zr_stages stages;
    unsigned pipeline_cut; /* enum zr_pipeline_cut */
    double parameters;     /* --params; 0: the shape was given */
    bool bytes;            /* --vocab byte: tokens are bytes; else the data is a token shard */

    uint64_t steps;
    uint64_t seed;
    unsigned world;        /* processes of the mesh: --ranks, or --world-size of a --dry-run */
    unsigned comm;         /* enum zr_comm_carrier, or ZR_TRAIN_COMM_NCCL */
    bool by_mpi;           /* ranks talk by MPI, with NCCL their host messages */
    bool deterministic;    /* with NCCL: sums in rank order */
    unsigned comm_timeout; /* seconds */
    struct zr_start start; /* how the ranks come to be */
    unsigned ranks_here;   /* processes on this machine */
    unsigned stage;
    unsigned micro_batches; /* per step, at least 1 */
    uint32_t reduce;        /* enum zr_reduce_when */
    uint32_t precision;     /* enum zr_precision, or ZR_TRAIN_FP8: see zr_train_precision() */
    struct zr_loss_scaling loss_scaling;
    float loss_scale;          /* --loss-scale, 0: it follows the gradients */
    unsigned loss_scale_power; /* it starts at two to this */
    unsigned threads;          /* per rank, at least 1 */
    size_t bucket_bytes;
    size_t memory_limit_bytes;                 /* per rank; 0: none */
    unsigned over_plan;                        /* enum zr_over_plan */
    double flops_per_second, bytes_per_second; /* of a rank, for the step timeline; 0: none */
    double host_bytes_per_second;              /* of copies to the host and back, for the same */
    struct zr_checkpoint_policy checkpoints;   /* but for its arena */
    bool checkpoint_offload;                   /* to the host tier */
    unsigned offload_optimizer;                /* enum zr_tier */
    unsigned offload_parameters;               /* likewise */
    bool delayed_update;                       /* of --offload-optimizer */
    size_t speculative_bytes;                  /* of --speculative-update; 0: none, SIZE_MAX: of all state */
    bool speculates_if_room;  /* --speculative-update auto, see zr_resolve_speculative_update() */
    unsigned offload_buffers; /* of --offload-optimizer nvme:DIR */
    size_t host_limit_bytes;  /* of the host tier, per rank; 0: none */
    double offload_ratio;     /* of the elements, that is offloaded */
    char offload_folder[ZR_TRAIN_PATH_ROOM];    /* of --offload-optimizer nvme:DIR; "": none */
    char parameters_folder[ZR_TRAIN_PATH_ROOM]; /* of --offload-param nvme:DIR; "": none */
    bool wait;                                  /* to be let in by zrd, where the plan does not fit now */
    unsigned spill;                             /* enum zr_tier; see spill.h */
    char spill_folder[ZR_TRAIN_PATH_ROOM];      /* of --spill nvme:DIR; "": none */
    unsigned nvme_depth;                        /* 0: measured */
    uint64_t nvme_limit_bytes;                  /* of the offload files, per rank; 0: none */
    double nvme_bytes_per_second;               /* of it, for the step timeline; 0: not known */
    struct zr_tiers_found found;                /* zeros of a dry run; see zr_measure_tiers() */
    bool growing_buffers;                       /* --no-constant-buffers */
    unsigned policy;                            /* enum zr_policy */
    struct zr_policy_use policy_use;            /* of another than zr: see zr_resolve_policy() */
    bool force;                                 /* what would save nothing is done all the same */
    unsigned zero_r;                            /* --zero-r, where it was given: C1 is 0 */
    bool finds_strategy;                        /* --zero-r auto, until zr_resolve_strategy() */

    enum zr_rate_kind rate_kind;
    float rate, min_rate;
    uint64_t warmup; /* steps */
    struct zr_optimizer_options optimizer;

    uint64_t save_every;   /* steps; 0: not by their number */
    uint64_t save_seconds; /* likewise; 0: not by time. Behind save_every: --save-every sets both */
    unsigned keep;         /* checkpoints in the folder; 0: all */
    uint64_t eval_every;   /* steps; 0: never; else after the last step too */
    size_t sample;         /* tokens of text at the end */
    float temperature;     /* 0: always the likeliest */

    const char *program;       /* as it was called, for the next command; borrowed from argv */
    bool given[ZR_FLAGS_MOST]; /* [i]: option i of the table was on the command line */
    bool filed[ZR_FLAGS_MOST]; /* likewise: in the file of --config */
    bool prove;                /* compare with one dense rank after each step */
    double tolerance;          /* of that; 0: by the precision */
    bool dry_run;
    unsigned world_size; /* as given; `world` is what counts */
    /* A plan takes these where they are not given, and the report says so. */
    bool plans_vocabulary, plans_sequence, plans_threads;
    unsigned unused;     /* where options with a single choice so far are stored */
    unsigned backend;    /* enum zr_train_backend */
    size_t logits_bytes; /* of a chunk of the head, at most; 0: the model's own */
    bool cuda_graph;     /* a step is recorded, and repeated as a graph */
    unsigned device;     /* the card of --backend cuda, of all ranks of this machine */
    bool finds_max;      /* --find-max was given: a dry run */
    unsigned find_max;   /* enum zr_limit_size */
};

/* Of a chunk of the head's logits on a card. */
#define ZR_LOGITS_BYTES_LEAST ((size_t)64 << 20)
#define ZR_LOGITS_BYTES_MOST  ((size_t)1 << 30)

/* What parameters, gradients and activations are made of; and the name of what was asked for. */
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
             pipeline = config->stages.ranks > 1 ? config->stages.ranks : 1;
    return (struct zr_mesh_shape){
        .data = config->world / tensor / pipeline, .tensor = tensor, .pipeline = pipeline};
}

/* Ranks that see different batches: a step has this many times a rank's sequences. */
static inline unsigned zr_train_data_ranks(const struct zr_train_config *config)
{
    return zr_train_mesh(config).data;
}

/* The model as rank `rank` has it. */
static inline struct zr_shape zr_train_shape(const struct zr_train_config *config, unsigned rank)
{
    struct zr_shape shape = config->shape;
    shape.tensor_rank = zr_mesh_place_of(zr_train_mesh(config), rank).tensor;
    if (config->logits_bytes)
        shape.logits_rows = zr_shape_logits_rows(&shape, config->logits_bytes,
                                                 zr_precision_bytes(zr_train_precision(config)));
    return shape;
}

/* Tokens of one step, all ranks together. */
static inline uint64_t zr_train_step_tokens(const struct zr_train_config *config)
{
    return (uint64_t)zr_train_data_ranks(config) * config->micro_batches * config->shape.batch *
           config->shape.sequence;
}

static inline bool zr_train_has_host_tier(const struct zr_train_config *config)
{
    return config->checkpoint_offload || config->offload_optimizer != ZR_TIER_NONE;
}
/* Whether something is offloaded to a file. */
static inline bool zr_train_has_file(const struct zr_train_config *config)
{
    return config->offload_optimizer == ZR_TIER_NVME || config->offload_parameters == ZR_TIER_NVME;
}
/* Words for offload that cannot be in such a run; NULL: it can. */
const char *zr_train_offload_words(const struct zr_train_config *config);
/* Likewise of what a card has not, or has alone. */
const char *zr_train_device_words(const struct zr_train_config *config);

/* Whether this process speaks for the run: rank 0's, and not one that is about to become an mpirun. */
static inline bool zr_train_leads(const struct zr_train_config *config)
{
    return config->start.rank == 0 &&
           !(config->comm == ZR_CARRIER_MPI && config->start.kind == ZR_START_FORK && config->world > 1);
}

/* Reads the command line. Returns -1 when the run may go on, else the exit code to end with: help and version
 * were printed on stdout (0), or what is wrong, with the way out, on stderr (2; 3: the file of --config). */
int zr_args_parse(struct zr_train_config *out, int argc, char **argv);

/* Writes the command line of a run like this one with other values for some options, quoted for a shell: the
 * options that were given, in the order of the table, less --json and --trace. A NULL value leaves one out.
 */
struct zr_args_change {
    const char *name, *value;
};
void zr_args_print(struct zr_text *text, const struct zr_train_config *config,
                   const struct zr_args_change *changes, size_t changes_count);

#endif
