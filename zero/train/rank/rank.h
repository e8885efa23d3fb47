/* rank.h: what a rank of zr-train holds, from the first granule to the last: memory, peers, threads, model,
 * text.
 *
 * zr_rank_open() takes it in one order and zr_rank_close() gives it back in reverse, whatever failed between.
 */
#ifndef ZR_TRAIN_RANK_H
#define ZR_TRAIN_RANK_H

#include "zero/step/trainer_state.h"
#include "zero/train/rank/thread_pool.h"
#include "zero/plan/timeline.h"
#include "zero/train/settings/args.h"
#include "zero/train/data.h"
#include "zero/train/report/report.h"

struct zr_rank {
    const struct zr_train_config *config;
    struct zr_local_world *local;
    unsigned rank;

    zr_backend *backend;   /* of this machine's memory */
    zr_backend *device;    /* of a card's; NULL: tensors are in this machine's */
    zr_backend *pinned;    /* of this machine's memory that the card sees too; NULL: nothing is offloaded */
    bool entered;          /* the device is this thread's */
    void *stream, *beside; /* of the device: of kernels; of operations between ranks. NULL: none */
    const struct zr_kernels *kernels;
    zr_arena *host_arena;                                 /* records, stacks, the heap: tag other */
    zr_arena *arena;                                      /* tensors and the ring: what the plan speaks of */
    zr_arena *host_tier;                                  /* what is offloaded; NULL: nothing is */
    struct zr_offload_file offload_file, parameters_file; /* folder NULL: none */
    bool heap_started;
    struct zr_byte_plan plan;
    struct zr_spill *spill;       /* NULL: nothing is spilled; see spill.h */
    zr_rehearsal *places;         /* the places that the plan counts on; NULL: none, or the arena has them */
    struct zr_plan_claims claims; /* for turns.h; count 0: none */
    uint64_t told_peak_bytes;     /* of the plan that zrd has */
    bool claimed;                 /* in this turn: it keeps to it until the next */
    struct zr_timeline timeline; /* of rank 0 with --flops; clock.flops_per_second is 0 where there is none */
    zr_comm *comm;               /* of all ranks */
    struct zr_mesh mesh;
    struct zr_mesh_place place;
    zr_thread_pool *pool;
    bool traced;
    struct zr_trainer_state state;
    struct zr_data data;
    struct zr_rank_report *reports; /* [world]; all ranks' numbers, filled by an exchange; from the heap */
};

/* What several ranks have to say alike, one says. */
static inline bool zr_rank_logs(const struct zr_rank *rank)
{
    return rank->rank == 0;
}

/* Opens everything, prints the byte plan (rank 0) as soon as it is known, and refuses a plan that does not
 * fit. On failure *out is to be closed all the same. Collective. */
zr_result zr_rank_open(struct zr_rank *out, const struct zr_train_config *config,
                       struct zr_local_world *local, unsigned rank);
/* Memory for records alone, where no rank runs; likewise to be closed, on failure too. */
zr_result zr_rank_open_records(struct zr_rank *out, const struct zr_train_config *config);
/* Gives all back. ZR_ERR_CORRUPT with words: something was left behind. */
zr_result zr_rank_close(struct zr_rank *rank);

/* Fills this rank's report with what was measured, and exchanges: rank->reports is complete on all ranks. */
zr_result zr_rank_exchange_reports(struct zr_rank *rank, const struct zr_rank_report *mine);

#endif
