/* report.h: output of a run: the byte plan before step 1, the tables at the end, and --json.
 *
 * Rank 0 gathers a fixed-size zr_rank_report from each rank (zr_comm_host_all_gather) and prints. Tables
 * go to stdout; if --json is "-", stdout carries only JSON and the tables go to stderr. */
#ifndef ZR_TRAIN_REPORT_H
#define ZR_TRAIN_REPORT_H

#include <jansson.h>

#include "zero/engine/outer.h"
#include "zero/train/settings/args.h"
#include "zero/train/memory_limit.h"
#include "zero/train/strategy_search.h"

struct zr_timeline;

/* Results of --spill. */
struct zr_spill_report {
    uint64_t planned_bytes; /* guaranteed to zrd */
    uint64_t spilled_bytes; /* total written */
    uint64_t most_bytes;    /* maximum swapped out at a time */
    uint64_t times;         /* waits in which memory was swapped out */
    double write_seconds, read_seconds;
};

/* Results of zr-train eval. */
struct zr_evaluation {
    double nats;     /* sum of the losses */
    uint64_t tokens; /* predicted */
    uint64_t windows;
    bool has_bytes; /* the files are texts; else `bytes` is unknown */
    uint64_t bytes; /* of the predicted tokens */
    double seconds;
};

/* Numbers of one rank; fixed size, exchanged between ranks. */
struct zr_rank_report {
    unsigned rank;
    uint64_t whole_parameters, whole_gradients; /* elements; see struct zr_byte_plan */
    size_t planned_by_tag_bytes[ZR_TAG_COUNT];  /* at the first time of the peak */
    size_t planned_bytes;
    size_t planned_reserved_bytes;
    size_t planned_host_by_tag_bytes[ZR_TAG_COUNT], planned_host_bytes; /* of the host tier */
    size_t peak_host_tier_by_tag_bytes[ZR_TAG_COUNT], peak_host_tier_bytes;
    size_t planned_host_reserved_bytes, peak_host_tier_reserved_bytes;
    uint64_t planned_host_moved_bytes, host_moved_bytes; /* copied to and from the tier, per step */
    uint64_t planned_nvme_bytes, nvme_bytes;             /* of the offload files */
    uint64_t planned_nvme_moved_bytes, nvme_moved_bytes;
    double nvme_wait_share;
    double delayed_computing_seconds, delayed_waiting_seconds; /* of a delayed update's thread */
    double host_wait_share;          /* fraction of the run's seconds that were waits for host copies */
    struct zr_tag_limits tag_limits; /* maximum of each tag at any time of the plan */
    size_t planned_kept_by_tag_bytes[ZR_TAG_COUNT]; /* between steps */
    size_t peak_by_tag_bytes[ZR_TAG_COUNT];         /* measured by the arena, at the first time of the peak */
    size_t peak_bytes;
    size_t kept_by_tag_bytes[ZR_TAG_COUNT]; /* at the end of the last step */
    size_t peak_reserved_bytes;             /* granules of both arenas */
    size_t peak_host_reserved_bytes;        /* part of peak_reserved_bytes for records, stacks and heap, which
                                               --memory-limit does not cover */
    size_t peak_resident_bytes;             /* VmHWM */
    size_t resident_anonymous_bytes, resident_shared_bytes; /* RssAnon and RssShmem at the end of the run */
    size_t stranded_bytes;                                  /* at the end of the run */
    uint64_t sent_elements_per_step, planned_sent_bytes, sent_bytes_per_step, received_bytes_per_step;
    uint64_t planned_full_bytes;     /* sent by a step in full precision: zerone */
    double mean_sent_bytes;          /* per step, of all steps */
    uint64_t planned_check_bytes;    /* see struct zr_byte_plan */
    struct zr_outer_report outer;    /* before the run only its round_bytes and step_bytes */
    uint64_t planned_snapshot_bytes; /* of the copy of the state that a thread saves */
    uint64_t planned_backup_bytes;   /* sent per step to the rank with the copy of this rank's state */
    struct zr_backup_report backup;
    uint64_t driver_calls_last_step;
    uint64_t host_waits_last_step; /* waits for a GPU between the first operation of the step and its end */
    uint64_t graph_steps;          /* steps launched as a graph */
    uint64_t comm_busy_ns, comm_exposed_ns; /* over the whole run; likewise the next ones */
    /* In broadcasts and reduces, without waits for other ranks; from the norm to the end of updates. */
    uint64_t replicate_ns, gather_ns, update_ns;
    struct zr_spill_report spill; /* zeros without --spill */
};

/* The sizes that a run has had: data replicas from the end of a step on. */
enum { ZR_SIZES_MAX = 512 }; /* later ones are not listed */
struct zr_sizes {
    unsigned count;
    struct zr_size {
        uint64_t step;
        unsigned replicas;
    } at[ZR_SIZES_MAX];
};

struct zr_training_report {
    const struct zr_train_config *config;
    const struct zr_rank_report *ranks; /* [world] */
    zr_arena *host_arena;
    unsigned world;
    uint64_t parameters;          /* elements, without padding */
    uint64_t resumed_step;        /* 0: from the start */
    size_t steps_count;           /* done by this process; may be fewer than requested */
    uint64_t speculative_updates; /* started before the norm was known */
    uint64_t rolled_back_updates; /* part of speculative_updates */
    bool idle;                    /* a restart left no step to do */
    bool all_skipped;             /* fp16: all steps were skipped, so no update ran or took memory */
    const struct zr_sizes *sizes;
    const double *loss; /* [steps_count], mean over ranks */
    const double *step_seconds;
    const double
        *worker_loss;         /* [steps_count] of rank 0, if workers do not wait for one another; else NULL */
    double tokens_per_second; /* over all steps except the first two, if there are more */
    double seconds;           /* the whole run */
    bool validated;
    double validation_loss;
    unsigned saves_count;               /* of --save */
    double saves_seconds;               /* in which they stopped training */
    const struct zr_timeline *timeline; /* of the plan; NULL: none */
    struct zr_loss_scale scaling;       /* fp16 only; scale 0: none */
    struct zr_compression_check compression;
    const struct zr_served_report *served; /* of --comm ps; NULL: none */
    const char *sample;                    /* printable text, or NULL */
    size_t sample_bytes;
};

/* Bytes that a rank sends per step of zerone: the plan's mean over all steps of the run. */
double zr_report_mean_sent(const struct zr_train_config *config, const struct zr_rank_report *rank);
/* Seconds that a step of the rank waits for copies of state. */
double zr_report_copy_wait(const struct zr_rank_report *rank);
/* Prints the byte plan. `plans` are the ranks' reports with the planned fields set. */
zr_result zr_report_plan(const struct zr_train_config *config, uint64_t parameters,
                         const struct zr_rank_report *ranks, unsigned world);
/* Prints the pipeline stages and their plans; nothing without a pipeline. */
zr_result zr_report_stages(const struct zr_train_config *config, const struct zr_rank_report *ranks,
                           zr_arena *host_arena);
/* Prints the byte plan of parameter servers; nothing without --comm ps. */
zr_result zr_report_servers(const struct zr_train_config *config, zr_arena *host_arena);
/* The servers for --json: `run` NULL: the plan only. NULL: no memory. */
struct zr_served_report;
json_t *zr_report_servers_json(const struct zr_train_config *config, const struct zr_served_report *run,
                               zr_arena *host_arena);
/* --master: lines of the plan / of the final tables / the object for --json; `run` NULL: the plan only. */
struct zr_text_page;
void zr_report_master_plan(struct zr_text_page *page, const struct zr_rank_report *ranks, unsigned world);
void zr_report_master_speed(struct zr_text_page *page, const struct zr_training_report *run);
json_t *zr_report_master_json(const struct zr_rank_report *ranks, unsigned world,
                              const struct zr_training_report *run);
/* The stages for --json: an array by pipeline rank. */
json_t *zr_report_stages_json(const struct zr_train_config *config, const struct zr_rank_report *ranks,
                              const struct zr_timeline *timeline, zr_arena *host_arena);
/* Prints clients and reservations of zrd's memory on stderr; nothing if no zrd runs. */
void zr_report_holders(const char *key);

/* Prints what exceeds --memory-limit by tag, and configurations that fit. */
zr_result zr_report_limit(const struct zr_train_config *config, const struct zr_limit_advice *advice);
/* Prints the result of --find-max; `config` already includes the result. */
zr_result zr_report_found(const struct zr_train_config *config, const struct zr_limit_found *found);
/* Prints the result of --zero-r auto; `config` already is the fastest strategy. */
zr_result zr_report_strategies(const struct zr_train_config *config, const struct zr_strategies *found);
/* Prints the step timeline of the plan at --flops and --bandwidth. */
zr_result zr_report_timeline(const struct zr_train_config *config, const struct zr_timeline *timeline);
/* The timeline for --json, owned by the caller; NULL: no memory, or a non-finite number. */
json_t *zr_report_timeline_json(const struct zr_train_config *config, const struct zr_timeline *timeline);
/* Whether a step has updated parameters: only then do measured and planned numbers agree. */
static inline bool zr_run_updated(const struct zr_training_report *run)
{
    return run->steps_count > 0 && !run->idle && !run->all_skipped;
}
/* Sum of parameters, gradients, optimizer state and masters. */
size_t zr_report_state_bytes(const size_t by_tag_bytes[ZR_TAG_COUNT]);
/* Prints the final tables. */
zr_result zr_report_end(const struct zr_training_report *run);
/* Writes the --json file under a temporary name and renames it; "-": stdout; "": none. */
zr_result zr_report_json(const struct zr_training_report *run);
/* The temporary name of --json and --status: PATH.partial. */
void zr_report_name_partial(const char *path, char out[ZR_TRAIN_PATH_ROOM + 16]);
/* Removes the remains of an unfinished zr_report_json() or --status. Async-signal-safe. */
void zr_report_clean_up(const char *path);
/* The report of a --dry-run: planned numbers of config->world ranks. */
struct zr_plan_report {
    const struct zr_train_config *config;
    const struct zr_limit_found *found;   /* result of --find-max; NULL: not requested */
    const struct zr_limit_advice *advice; /* for --memory-limit; NULL: none */
    const struct zr_timeline *timeline;   /* NULL: not requested */
    const struct zr_rank_report *ranks;   /* NULL: nothing fits, and only `advice` is known */
    zr_arena *host_arena;
    uint64_t parameters;
};
zr_result zr_report_json_plan(const struct zr_plan_report *plan);

/* ---- zr-train eval ------------------------------------------------------------------------------------- */

/* Prints the table / writes --json. The evaluation has tokens. */
zr_result zr_report_evaluation(const struct zr_train_config *config, const struct zr_evaluation *evaluation);
zr_result zr_report_json_evaluation(const struct zr_train_config *config,
                                    const struct zr_evaluation *evaluation);
static inline double zr_report_bits_per_byte(const struct zr_evaluation *evaluation)
{
    return evaluation->nats / 0.69314718055994530942 /* ln 2 */ / (double)evaluation->bytes;
}

#endif
