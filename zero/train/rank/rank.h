/* rank.h: everything that a rank of zr-train owns: memory, peers, threads, model, text. zr_rank_open()
 * acquires it in order; zr_rank_close() releases it in reverse order, also after a partial open. */
#ifndef ZR_TRAIN_RANK_H
#define ZR_TRAIN_RANK_H

#include "alloc/keep/zr_keep.h"
#include "zero/step/trainer_state.h"
#include "zero/train/rank/thread_pool.h"
#include "zero/plan/timeline.h"
#include "zero/train/settings/args.h"
#include "zero/train/batch.h"
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
    struct zr_spill *spill; /* NULL: no --spill; see spill.h */
    zr_rehearsal *places;   /* placement plan; NULL: none, or passed to the arena */
    struct zr_plan_reservations
        reservations;             /* reservations of a step, see zr_slices_reserve(); count 0: none */
    uint64_t reported_peak_bytes; /* peak of the plan that was reported to zrd */
    bool reserved;                /* in this time slice the run has reported a reservation, which binds it */
    struct zr_timeline timeline;  /* of rank 0 with --flops; else clock.flops_per_second is 0 */
    zr_comm *comm;                /* all ranks */
    struct zr_mesh mesh;
    struct zr_mesh_place place;
    zr_thread_pool *pool;
    bool traced;
    zr_keep *keep;                   /* memory that outlives this process, see kept.h; NULL: none */
    struct zr_kept_memory kept;      /* of the engine */
    struct zr_served_worker *served; /* see servers/servers.h; NULL: no parameter servers */
    struct zr_trainer_state state;
    struct zr_data data;
    struct zr_rank_report *reports; /* [world], filled by zr_rank_exchange_reports(); on the heap */
};

/* Whether this rank prints messages that all ranks share. */
static inline bool zr_rank_logs(const struct zr_rank *rank)
{
    return rank->rank == 0;
}

/* The rank's data and trainer. */
static inline struct zr_batch zr_rank_batch(struct zr_rank *rank)
{
    return (struct zr_batch){&rank->data, rank->state.trainer, &rank->state.transformer.shape};
}

/* Opens everything, prints the byte plan (rank 0) and refuses a plan that does not fit. Collective. Close
 * *out also on failure. */
zr_result zr_rank_open(struct zr_rank *out, const struct zr_train_config *config,
                       struct zr_local_world *local, unsigned rank);
/* The options of the run's data. */
struct zr_data_options zr_rank_data_options(const struct zr_train_config *config);
/* Sets the random numbers of dropout for the rows of a micro-batch that a trainer loads. */
void zr_rank_draw(const struct zr_rank *rank, const struct zr_trainer_state *state,
                  const struct zr_data_place *place);
/* Opens memory for records only, for work without ranks. Close *out also on failure. */
zr_result zr_rank_open_records(struct zr_rank *out, const struct zr_train_config *config);
/* Releases everything. ZR_ERR_CORRUPT: blocks were left; the message names them. */
zr_result zr_rank_close(struct zr_rank *rank);

/* Exchanges reports: rank->reports is complete on all ranks afterwards. */
zr_result zr_rank_exchange_reports(struct zr_rank *rank, const struct zr_rank_report *mine);

/* ---- The loop ------------------------------------------------------------------------------------------ */

/* Runs a rank; `argument` is the struct zr_train_config. Returns the rank's exit code. */
int zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument);

/* ---- The GPU of a rank --------------------------------------------------------------------------------- */

/* With --backend cuda; otherwise these functions have no effect. */

/* Sets rank->device and, with offload, rank->pinned, and makes the device current in the calling thread.
 * ZR_ERR_UNAVAILABLE, ZR_ERR_INVALID: no driver, or no such GPU. Call it in the process that trains, since
 * a driver does not survive fork(). */
zr_result zr_card_open(struct zr_rank *rank);
/* Sets the driver's environment variables; called before the ranks are started. */
void zr_card_prepare(const struct zr_train_config *config);
/* Prints on stderr which kind of host memory the driver grants for offload. */
void zr_card_say_memory(const struct zr_rank *rank);
/* Releases device and pinned memory in the same thread; accepts a rank whose GPU failed to open. */
void zr_card_close(struct zr_rank *rank);
/* Whether each rank has its own GPU / the rank's device number. */
bool zr_card_is_own(const struct zr_rank *rank);
unsigned zr_card_device(const struct zr_rank *rank);
/* ZR_ERR_MEMORY: the plans of all ranks on this GPU exceed its memory. */
zr_result zr_card_check_plan(const struct zr_rank *rank);
/* For --comm nccl: sets rank->comm in place of zr_comm_create(). Collective. */
zr_result zr_card_comm_create(struct zr_rank *rank, const struct zr_comm_options *options);

/* ---- Available memory ---------------------------------------------------------------------------------- */

/* Checks before step 1 that the memory of a rank is available; messages name the limit and the fix. Allocates
 * and changes nothing. Used by the thread that opens the rank. */

/* Requires the plan, and the GPU if there is one. ZR_ERR_MEMORY: the plan exceeds --host-limit,
 * --memory-limit, the GPU, the cgroup, or the machine. */
zr_result zr_rank_check_plan_fits(const struct zr_rank *rank);

/* Checks the addresses that libraries need: the matrix library and the C library map their own memory, and
 * oneDNN crashes if mmap fails. Under `ulimit -v` these mappings must fit beside the reserved ranges.
 * ZR_ERR_ADDRESSES: they do not fit. */
zr_result zr_rank_check_addresses_left(const struct zr_rank *rank);

/* ---- Time slices --------------------------------------------------------------------------------------- */

/* A run under the allocator service: zrd admits it by its byte plan and gives it time slices. No effect
 * without ZR_CONF=service or a running zrd. */

/* Whether the run may compute while another run with which it shares memory computes, so that its plan needs
 * reservations. Called before the plan is made. */
bool zr_slices_can_overlap(const struct zr_rank *rank);
/* Makes steps report their reservations while another run needs memory. Called after the trainer exists. */
void zr_slices_reserve(struct zr_rank *rank);
/* Sends the plan to zrd and waits for the first time slice, before the rank allocates. Called by all ranks
 * of a machine, without a communicator. ZR_ERR_MEMORY: the plan does not fit beside other clients and
 * reservations; the machine's first rank prints them. */
zr_result zr_slices_begin(struct zr_rank *rank);
/* Whether another run waits for this run's time slice. */
bool zr_slices_wanted(const struct zr_rank *rank);
/* Between two steps, after the ranks have agreed: trims idle memory and waits for the next time slice. */
zr_result zr_slices_next(struct zr_rank *rank);

#endif
