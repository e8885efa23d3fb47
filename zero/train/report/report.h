/* report.h: what a run prints about itself: the byte plan before step 1, the table at the end, and --json.
 *
 * Rank 0 gathers one fixed-size zr_rank_report of each rank (zr_comm_host_all_gather) and prints. Data goes
 * to stdout; when --json is "-", stdout carries the JSON alone and the tables go to stderr. */
#ifndef ZR_TRAIN_REPORT_H
#define ZR_TRAIN_REPORT_H

#include <jansson.h>

#include "zero/train/settings/args.h"
#include "zero/train/memory_limit.h"
#include "zero/train/strategy_search.h"

struct zr_timeline;

/* What --spill has done over the run. */
struct zr_spill_report {
    uint64_t planned_bytes; /* that zrd may count on */
    uint64_t spilled_bytes; /* written, all times together */
    uint64_t most_bytes;    /* that were away at a time */
    uint64_t times;         /* rests in which something went */
    double write_seconds, read_seconds;
};

/* A rank's numbers; fixed size, exchanged between ranks as they are. */
struct zr_rank_report {
    unsigned rank;
    uint64_t whole_parameters, whole_gradients; /* elements; see struct zr_byte_plan */
    size_t planned_by_tag_bytes[ZR_TAG_COUNT];  /* at the first moment of the peak */
    size_t planned_bytes;
    size_t planned_reserved_bytes;
    size_t planned_host_by_tag_bytes[ZR_TAG_COUNT], planned_host_bytes; /* of the host tier, likewise */
    size_t peak_host_tier_by_tag_bytes[ZR_TAG_COUNT], peak_host_tier_bytes;
    size_t planned_host_reserved_bytes, peak_host_tier_reserved_bytes;
    uint64_t planned_host_moved_bytes, host_moved_bytes; /* to it and back, per step */
    uint64_t planned_nvme_bytes, nvme_bytes;             /* of the offload file */
    uint64_t planned_nvme_moved_bytes, nvme_moved_bytes;
    double nvme_wait_share;
    double late_computing_seconds, late_waiting_seconds; /* of a delayed update's thread */
    double host_wait_share;                              /* of the run's seconds, waiting for them */
    struct zr_tag_limits tag_limits;                /* the most of each tag, at whatever moment of the plan */
    size_t planned_kept_by_tag_bytes[ZR_TAG_COUNT]; /* between steps */
    size_t peak_by_tag_bytes[ZR_TAG_COUNT];         /* measured by the arena, likewise */
    size_t peak_bytes;
    size_t kept_by_tag_bytes[ZR_TAG_COUNT]; /* at the end of the last step */
    size_t peak_reserved_bytes;             /* in granules, of both arenas */
    size_t peak_host_reserved_bytes; /* of these: records, stacks and heap, which --memory-limit is not for */
    size_t peak_resident_bytes;      /* VmHWM */
    size_t resident_anonymous_bytes, resident_shared_bytes; /* RssAnon and RssShmem at the end of the run */
    size_t stranded_bytes;                                  /* at the end */
    uint64_t sent_elements_per_step, received_bytes_per_step;
    uint64_t driver_calls_last_step;
    uint64_t host_waits_last_step; /* for a card, between the first operation of the step and its end */
    uint64_t graph_steps;          /* that were launches of a graph */
    uint64_t comm_busy_ns, comm_exposed_ns; /* over the whole run */
    struct zr_spill_report spill;           /* zeros without --spill */
};

struct zr_training_report {
    const struct zr_train_config *config;
    const struct zr_rank_report *ranks; /* [world] */
    zr_arena *host_arena;
    unsigned world;
    uint64_t parameters;          /* elements, without padding */
    uint64_t resumed_step;        /* 0: from the start */
    size_t steps_count;           /* done by this process; may be fewer than asked for */
    uint64_t speculative_updates; /* begun before the norm was known */
    uint64_t rolled_back_updates; /* of these */
    bool all_skipped;   /* of these, in fp16: none updated anything, nor took what an update takes */
    const double *loss; /* [steps_count], mean over ranks */
    const double *step_seconds;
    double tokens_per_second; /* over all steps but the first two, where there are more */
    double seconds;           /* the whole run */
    bool validated;
    double validation_loss;
    const struct zr_timeline *timeline; /* by the plan; NULL: not asked for */
    struct zr_loss_scale scaling;       /* of fp16; scale 0: none */
    const char *sample;                 /* printable text, or NULL */
    size_t sample_bytes;
};

/* The byte plan. `plans` are the ranks' reports with the planned fields filled in. */
zr_result zr_report_plan(const struct zr_train_config *config, uint64_t parameters,
                         const struct zr_rank_report *ranks, unsigned world);
/* The stages of a pipeline and their plans, by rank of the pipeline; of no pipeline nothing. */
zr_result zr_report_stages(const struct zr_train_config *config, const struct zr_rank_report *ranks,
                           zr_arena *host_arena);
/* The same for --json: an array by rank of the pipeline. */
json_t *zr_report_stages_json(const struct zr_train_config *config, const struct zr_rank_report *ranks,
                              const struct zr_timeline *timeline, zr_arena *host_arena);
/* Who holds and plans what of zrd's memory, on stderr; nothing where no zrd serves. */
void zr_report_holders(const char *key);

/* What does not fit under --memory-limit, tag by tag, and what would. */
zr_result zr_report_limit(const struct zr_train_config *config, const struct zr_limit_advice *advice);
/* What --find-max has found; `config` has it already. */
zr_result zr_report_found(const struct zr_train_config *config, const struct zr_limit_found *found);
/* What --zero-r auto has found; `config` is the best already. */
zr_result zr_report_strategies(const struct zr_train_config *config, const struct zr_strategies *found);
/* How long a step of the plan takes at --flops and --bandwidth, and what happens in it when. */
zr_result zr_report_timeline(const struct zr_train_config *config, const struct zr_timeline *timeline);
/* The same as an object for --json, the caller's; NULL: no memory, or a number that is not finite. */
json_t *zr_report_timeline_json(const struct zr_train_config *config, const struct zr_timeline *timeline);
/* Whether a step has taken and sent all that one does: only then do measured and planned agree. */
static inline bool zr_run_updated(const struct zr_training_report *run)
{
    return run->steps_count > 0 && !run->all_skipped;
}
/* Parameters, gradients, optimizer state and masters of what is kept between steps. */
size_t zr_report_state_bytes(const size_t by_tag_bytes[ZR_TAG_COUNT]);
/* The table that ends a run. */
zr_result zr_report_end(const struct zr_training_report *run);
/* The --json file, written to the side and renamed; "-": stdout; "": nothing. */
zr_result zr_report_json(const struct zr_training_report *run);
/* Removes what an unfinished zr_report_json() left beside `path`. Async-signal-safe. */
void zr_report_clean_up(const char *path);
/* The same for a --dry-run: the planned numbers only, of config->world ranks. */
struct zr_plan_report {
    const struct zr_train_config *config;
    const struct zr_limit_found *found;   /* by --find-max; NULL: it was not asked for */
    const struct zr_limit_advice *advice; /* under --memory-limit; NULL: there is none */
    const struct zr_timeline *timeline;   /* NULL: nor was this */
    const struct zr_rank_report *ranks;   /* NULL: nothing fits, and there is advice alone */
    zr_arena *host_arena;
    uint64_t parameters;
};
zr_result zr_report_json_plan(const struct zr_plan_report *plan);

#endif
