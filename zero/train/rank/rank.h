/* rank.h: everything that a rank of zr-train owns: memory, peers, threads, model, text. zr_rank_open()
 * acquires it in order; zr_rank_close() releases it in reverse order, also after a partial open. */
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

    zr_backend *backend;   /* host memory */
    zr_backend *device;    /* GPU memory; NULL: tensors are in host memory */
    zr_backend *pinned;    /* host memory that the GPU can access; NULL: no offload */
    bool entered;          /* the device is current in this thread */
    void *stream, *beside; /* GPU streams of kernels / of operations between ranks; NULL: none */
    const struct zr_kernels *kernels;
    zr_arena *host_arena;                                 /* records, stacks and heap: tag other */
    zr_arena *arena;                                      /* tensors and the ring; has the byte plan's
                                                           * limits */
    zr_arena *host_tier;                                  /* offloaded state; NULL: none */
    struct zr_offload_file offload_file, parameters_file; /* folder NULL: none */
    bool heap_started;
    struct zr_byte_plan plan;
    struct zr_spill *spill;       /* NULL: no --spill; see spill.h */
    zr_rehearsal *places;         /* placement plan; NULL: none, or passed to the arena */
    struct zr_plan_claims claims; /* reservations of a step, see turns.h; count 0: none */
    uint64_t told_peak_bytes;     /* peak of the plan that was reported to zrd */
    bool claimed;                 /* in this time slice the run has reported a reservation, which binds it */
    struct zr_timeline timeline;  /* of rank 0 with --flops; else clock.flops_per_second is 0 */
    zr_comm *comm;                /* all ranks */
    struct zr_mesh mesh;
    struct zr_mesh_place place;
    zr_thread_pool *pool;
    bool traced;
    struct zr_trainer_state state;
    struct zr_data data;
    struct zr_rank_report *reports; /* [world], filled by zr_rank_exchange_reports(); on the heap */
};

/* Whether this rank prints messages that all ranks share. */
static inline bool zr_rank_logs(const struct zr_rank *rank)
{
    return rank->rank == 0;
}

/* Opens everything, prints the byte plan (rank 0) and refuses a plan that does not fit. Collective. Close
 * *out also on failure. */
zr_result zr_rank_open(struct zr_rank *out, const struct zr_train_config *config,
                       struct zr_local_world *local, unsigned rank);
/* Opens memory for records only, for work without ranks. Close *out also on failure. */
zr_result zr_rank_open_records(struct zr_rank *out, const struct zr_train_config *config);
/* Releases everything. ZR_ERR_CORRUPT: blocks were left; the message names them. */
zr_result zr_rank_close(struct zr_rank *rank);

/* Exchanges reports: rank->reports is complete on all ranks afterwards. */
zr_result zr_rank_exchange_reports(struct zr_rank *rank, const struct zr_rank_report *mine);

#endif
