/* engine.h: internals of the engine, shared by engine.c (create and destroy), placement.c (partitioning),
 * state_store.c and offload.c (tiers), gather.c (parameters), reduce.c (gradients), actions.c and norm.c (end
 * of a step), results.c, loss_scale.c, parameter_sync.c and engine_check.c (argument checks).
 *
 * A rank holds of each unit, by stage:
 *
 *                 parameters    gradients                          optimizer state
 *   0             whole         whole                              whole
 *   1             whole         whole                              shard
 *   2             whole         shard, whole ones pass staging     shard
 *   3             shard, whole  shard, whole ones pass staging     shard
 *                 while in use
 * fp32 masters of two-byte parameters are partitioned like the optimizer state. With the optimizer offloaded,
 * masters and this rank's gradient shards are on the host too, and whole gradients pass through staging at
 * every stage, even with one rank. All shards of one kind are in one pool, in order of use. Temporarily whole
 * data (staging, gathered) is in separate blocks, allocated and freed in a fixed order, so that a plan sees
 * the same blocks. */
#ifndef ZR_ENGINE_H
#define ZR_ENGINE_H

#include "zero/engine/action_list.h"
#include "zero/engine/image.h"
#include "zero/engine/outer.h"
#include "zero/engine/state_store.h"
#include "zero/comm/copies.h"
#include "zero/comm/take.h"
#include "zero/compress/compressor.h"
#include "zero/compress/largest.h"
#include "zero/zr_zero.h"

/* Kernels and context for the tensors of one arena: see zr_engine_compute(). */
struct zr_compute {
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    bool host_invisible; /* the host cannot access the tensors */
};

/* Memory of parameters, optimizer state, masters, kept gradients and their fp32 sums over micro-batches: the
 * device, or the tier of an offloaded optimizer. The state of every unit is in one tier, and its parameters
 * in the same or in the other one, chosen by placement.c. */
struct zr_state_tier {
    zr_arena *arena;
    struct zr_compute compute;          /* for tensors in `arena` */
    bool offloaded;                     /* gradients and new parameters are copied from and to the device */
    bool masters;                       /* masters are separate from the parameters */
    const struct zr_offload_file *file; /* of the state; NULL: it is in memory */
    const struct zr_parameter_tier *written; /* of parameters on the device that this tier's units update */
    struct zr_state_store store;             /* not open: the tier has no units */
    char *parameters;                        /* units or shards, at zr_unit_state.parameters_at */
    size_t parameters_elements;
    char *gradients; /* whole units or shards, at zr_unit_state.gradients_at */
    float *sums;     /* at zr_unit_state.sums_at, beside whole gradients or instead of two-byte
                        shards; NULL: none */
    size_t gradients_elements, sums_elements;
};

/* Arguments common to all parameters of an update. */
struct zr_engine_update {
    float rate, gradient_scale, correction1, correction2;
    float fresh_correction; /* see struct zr_optimizer_call, as well as the next */
    bool keeps_variance, keeps_momentum;
    const struct zr_gradient_weight
        *weight;                       /* kernels read the scale here, see zr_adamw; NULL: gradient_scale */
    const struct zr_step_rates *rates; /* likewise rate and corrections */
    struct zr_kernel_context *context; /* context of another thread; NULL: that of zr_engine_unit_compute() */
};

/* Two-byte parameters without masters that are converted at a time. */
enum { ZR_NARROW_ELEMENTS = 4096 };
enum { ZR_NO_UNIT = UINT32_MAX, ZR_AWAITED_UNITS_MAX = 2, ZR_BOUNCE_BUFFERS = 2 };

struct zr_engine_run; /* see actions.h */

/* The part of a unit that this rank updates: all of it at stage 0, else its shard. With root_owns all or
 * nothing. */
struct zr_owned {
    size_t from, to; /* range of elements in the unit; the pointers below point to element `from` */
    struct zr_numbers parameters;
    float *master;             /* in fp32 the parameters; NULL: two-byte parameters of a frozen unit */
    void *slots[ZR_SLOTS_MAX]; /* of the optimizer; NULL: a frozen unit */
};

struct zr_unit_state {
    struct zr_owned owned; /* NULL in it: in a file */
    /* Complete a copy of `owned` from a file / end its use; `changed`: it is written. NULL: it is in memory.
     */
    zr_result (*take)(struct zr_engine *engine, size_t unit, struct zr_owned *out);
    zr_result (*give)(struct zr_engine *engine, size_t unit, bool changed);
    unsigned steps; /* gradients per step */
    /* Parameters. */
    bool resident;                          /* parameters are kept whole */
    bool packs_parameters, packs_gradients; /* sent packed */
    bool keeps_secondary;                   /* the node keeps the parameters, divided among its ranks */
    struct zr_state_tier *tier;
    const struct zr_parameter_tier *parameters; /* see parameter_tier.h */
    /* The part of the unit that is kept, and its place in the pool, in elements. */
    size_t parameters_from, parameters_count, parameters_at;
    struct zr_state_tier *parameters_in; /* tier of kept parameters */
    bool pulled;                         /* in this step, from parameter servers */
    void *whole;                         /* parameters of the whole unit: kept, or gathered; NULL: neither */
    void *gathered;                      /* block of temporarily whole parameters; NULL: none */
    unsigned references;                 /* gathers without release, at every stage */
    zr_ticket parameter_ticket;          /* gather in progress */
    zr_comm *gathers;                    /* communicator of parameter_ticket; NULL: options.comm */
    zr_ticket parameter_copy;            /* ticket of engine->copies: copy from the host in progress */
                                         /* Gradients. */
    const struct zr_gradient_path *path; /* see gradients.h */
    const struct zr_gradient_place *place; /* likewise */
    size_t kept_elements;                  /* of kept gradients: the whole unit or this rank's shard */
    size_t reduced_at;                     /* element of kept gradients where this rank's shard begins */
    size_t input_bytes;                    /* of an element of the gradients that the update reads */
    zr_result (*take_sums)(struct zr_engine *engine, size_t unit); /* before a reduction; NULL: in a pool */
    void *kept;                /* kept gradients, whole or this rank's shard; NULL: not in memory */
    void *written;             /* whole gradients that backward writes: kept or staged */
    struct zr_numbers reduced; /* this rank's shard after the last reduction of a step */
    bool awaited;         /* zr_engine_gradients() was called, zr_engine_reduce() was not; at every stage */
    void *staging;        /* whole gradients before their reduction; NULL: none, or they are kept whole */
    void *gradients;      /* without a pool: a block that exists within a step */
    bool staged;          /* reduced, and in the queue of staging blocks */
    unsigned next_staged; /* next unit in the queue */
    void *delayed_gradients; /* gradients that a delayed update reads; NULL: it reads a pool */
    float *delayed_sum_shard;
    float *sum_shard;        /* sums without a pool; exists within a step */
    unsigned accumulated;    /* calls of zr_engine_reduce() in this step */
    zr_ticket reduce_ticket; /* reduction in progress */
    /* Starts the unit's update after its last reduction, before the norm is known; NULL: it waits. */
    zr_result (*ahead)(struct zr_engine *engine, size_t unit);
    /* Addition to sums on the host, or a push to parameter servers / a pull from them. */
    struct zr_copies_task gradient_task, parameter_task;
    struct zr_engine *engine; /* for the tasks */
    bool adds;                /* gradient_task adds to the sum instead of overwriting it */
    zr_ticket gradient_copy;  /* ticket of engine->copies: copy to the host in progress */

    size_t gradients_at, sums_at; /* offsets in the tier's pools, in elements; SIZE_MAX: no sums there */

    size_t first_segment; /* index of the unit's first segment on this rank; see zr_engine_segment() */
};

static inline size_t zr_unit_owned(const struct zr_unit_state *state)
{
    return state->owned.to - state->owned.from;
}

/* Results for whole tensors of a unit, made by ZR_ENGINE_PREPARE; zeros: none. */
struct zr_prepared {
    zr_arena *arena; /* of `memory`, a block of tag workspace that contains all of the following */
    void *memory;
    float *directions;      /* from the first element that this rank updates */
    const float *row_means; /* by tensor; trust ratios, if the optimizer has such a function */
    const double *squares;  /* [world][tensors][2] */
};

/* State of the delayed update; see update.h. */
struct zr_delayed_unit {
    struct zr_numbers gradients; /* input of the update */
    struct zr_prepared prepared; /* likewise */
    zr_ticket copied;            /* ticket of engine->copies: copy of the previous update's parameters */
};
struct zr_delayed {
    zr_comm *worker;                       /* the update's thread */
    struct zr_actions actions, publishing; /* of the thread / of the step that follows */
    zr_result (*run)(struct zr_engine_run *run, const struct zr_actions *list); /* zr_engine_run_list() */
    struct zr_copies_task task;
    struct zr_kernel_context context;
    struct zr_engine_update update;
    struct zr_delayed_unit *units; /* [units_count] */
    char *parameters;              /* new parameters of this rank's shards, [layout.shards_elements] */
    char *other_gradients;         /* second buffer of the tier's gradients and sums */
    float *other_sums;
    zr_ticket ticket;
    bool pending;                        /* an update was started and its parameters are not published */
    struct zr_comm_clock *clock;         /* simulated clock; NULL: none */
    _Atomic uint64_t busy_ns, behind_ns; /* the thread's total time / its waits for the disk */
};

/* State of the speculative update; see speculate.h. Zeros: disabled. */
struct zr_speculation {
    const struct zr_speculation_kind *kind;
    zr_comm *worker; /* the update's thread */
    struct zr_kernel_context context;
    struct zr_engine_update update;   /* assumed arguments */
    bool armed;                       /* the current step is speculative */
    size_t reducing;                  /* complete unit whose reduction may run; units_count: none */
    struct zr_speculated_unit *units; /* [units_count of the layout] */
    unsigned units_count;             /* units that can be undone */
    float *log;                       /* of state in memory */
    /* State and parameters in files: new parameters, [shards_elements], until the norm is known. */
    void *parameters;
    /* State in a file: order in which backward finishes units in the last step / in this step so far. */
    unsigned *order, *seen; /* [units_count] */
    unsigned seen_count;
    bool disordered; /* this step's order differs from the last one's */
    uint64_t waited_ns;
};

/* Gradients in the offload file; see gradients.h. Zeros: disabled. */
struct zr_gradient_file {
    struct zr_nvme_unit *extents; /* [units_count], after the store's extents; 0 bytes: not in the file */
    bool placed;                  /* offsets of extents count from the beginning of the file */
    uint64_t bytes;
    size_t slot_bytes;
    void *slots;                         /* consecutive slots of the pipeline */
    struct zr_nvme_unit *pass;           /* extents of a pass, of the units in the file; 0 bytes: skipped */
    unsigned pass_count, pass_at;        /* length of a pass / next unit of it */
    unsigned used[ZR_NVME_BUFFERS_MAX];  /* last unit in the slot */
    unsigned owner[ZR_NVME_BUFFERS_MAX]; /* unit being reduced into the slot; ZR_NO_UNIT: none */
    zr_nvme_event writes[ZR_NVME_BUFFERS_MAX];
    unsigned turn;
    struct zr_nvme_pipeline pipeline;
    double
        read_seconds[ZR_NVME_PLACES]; /* simulated clock: end of a read, by place in the pass modulo places */
};

/* Earlier versions of the parameters; see update.h. Zeros: none. */
struct zr_versions {
    char *pool; /* [options.stashed_versions][pool_bytes], each as tiers[0].parameters */
    size_t pool_bytes;
    unsigned oldest;
};

/* Parameters in an offload file; see parameter_tier.h. Zeros: disabled. */
struct zr_parameter_extent {
    uint64_t offset_bytes;
    size_t bytes; /* 0: the unit is not in the file */
    zr_nvme_event written;
};
struct zr_parameter_slot {
    unsigned unit;       /* unit whose shard is in the slot, until its gather or write ends; or ZR_NO_UNIT */
    zr_nvme_event event; /* last transfer of the slot */
    double end_seconds;  /* end of `event` by the simulated clock */
    struct zr_comm_before before;
    struct zr_parameter_file *file;
};
struct zr_parameter_file {
    zr_nvme_io *io;                      /* NULL: simulated or disabled */
    struct zr_parameter_extent *extents; /* [units_count] */
    uint64_t bytes, moved_bytes, waited_ns;
    size_t slot_bytes;
    void *memory; /* consecutive slots */
    struct zr_parameter_slot slots[ZR_PREFETCH_MAX + 1];
    unsigned slots_count, turn;
    struct zr_comm_clock *clock; /* NULL: none */
};

/* The copy of this rank's state on another rank; see backup.h. Zeros: none. */
struct zr_backup {
    struct zr_image image;
    size_t next;       /* the first piece that was not submitted */
    char *images;      /* [2][image.bytes]: of another rank's state, by step modulo 2 */
    unsigned to, from; /* ranks of options.backup */
    zr_ticket ticket;
    bool under_way;
    uint64_t step;  /* of the copy under way */
    uint64_t whole; /* 1 + the step of the last whole copy; 0: none */
    uint64_t found; /* 1 + the step that all ranks can return to; 0: none */
    bool *lost;     /* [world]: the rank has no state of that step */
    uint64_t count; /* whole copies */
};

/* State that outlives the process; see kept.h. Zeros: none. */
struct zr_kept {
    struct zr_kept_record *record; /* in `block`; NULL: none, or a dry run */
    void *block;
    char *log;
    uint64_t layout;        /* hash of what the memory contains */
    struct zr_actions redo; /* the rest of a step, after a restart */
    struct zr_backup backup;
};

/* Sums of gradients by matrices of low rank; see low_rank.h. Zeros: none. */
struct zr_low_rank {
    struct zr_low_rank_unit *units; /* [units_count] */
    float *p, *q;                   /* of all units; p also has what is sent as it is */
    float *block;                   /* [block_elements] of a sum */
    size_t block_elements;
    unsigned last[2];                 /* units of the sums before; ZR_NO_UNIT: none */
    struct zr_kernel_context context; /* of the engine's thread, fp32 */
};

/* Packed operations and nodes; see compression.h. Zeros: none. */
struct zr_compression_state {
    struct zr_unit_compression *units; /* [units_count] */
    struct zr_compressor all;          /* of all ranks */
    zr_comm *node, *across;            /* the ranks of this node / those with this rank's place in a node */
    struct zr_compressor within, between; /* of these: gradients in two hops */
    float *sums;                          /* of the first hop */
    void *secondary;                      /* this rank's part of the node's copy of sharded units */
    struct zr_low_rank low_rank;
    struct zr_largest largest;
    float *velocity; /* [layout.pool_elements], see struct zr_largest_sum; NULL: none */
    float momentum;  /* of the optimizer, in `velocity` */
};

/* See meter.h. Zeros: nothing is measured. */
struct zr_meter {
    zr_comm *comm; /* of exact sums */
    struct zr_compressed_check checks[ZR_COMPRESSED_KINDS];
    bool begun[ZR_COMPRESSED_KINDS]; /* an operation is checked in this step */
    struct zr_numbers sum; /* this rank's shard of a sum in progress that is checked; `at` NULL: none */
    size_t sum_unit;
    struct zr_compression_check last;
};

/* See warmup.h. Zeros: no variance was summed. */
enum { ZR_WARMUP_SUMS = 8 };
struct zr_warmup {
    bool ended;     /* the variance has settled */
    uint64_t steps; /* steps done when the warm-up ended */
    double ratio;   /* of the last sum and the one of a window ago; 0: not known */
    struct zr_warmup_sum {
        uint64_t steps; /* steps done; 0: none */
        double sum;
    } sums[ZR_WARMUP_SUMS]; /* the last ones, by number modulo their count */
};

struct zr_engine {
    struct zr_engine_options options;
    const struct zr_optimizer *optimizer;
    struct zr_layout layout;
    struct zr_unit_state *units;            /* [layout.units_count] */
    size_t parameter_bytes, gradient_bytes; /* per element */
    enum zr_comm_type comm_type;            /* of gradients and parameters */

    struct zr_state_tier tiers[2]; /* the device, then the tier of an offloaded optimizer */
    unsigned tiers_count;
    struct zr_state_tier *state_tier; /* the last tier */
    struct zr_gradient_file gradient_file;
    struct zr_parameter_file parameter_file;
    /* Units of an offloaded optimizer in the device tier; all units if rank 0 has the state. */
    struct zr_unit_range stay;
    struct zr_unit_range squared; /* units whose squares are computed in device memory */
    bool shards_parameters;       /* some unit's parameters are sharded */
    bool borrows_parameters;      /* shares_parameters: the pool is that of rank 0 */
    char *met;                    /* shares_parameters: [world], see zr_engine_all_gather_parameters() */
    bool keeps_secondary;         /* of some unit */
    bool exchanges_momentum;      /* see momentum.h */

    /* Offload only; see offload.h. */
    zr_comm *copies;
    char *bounce; /* host memory, [ZR_BOUNCE_BUFFERS][bounce_elements] of parameters; NULL in fp32 */
    size_t bounce_elements;
    unsigned bounce_turn;                        /* number of buffers taken so far */
    zr_ticket bounce_tickets[ZR_BOUNCE_BUFFERS]; /* copies that read the buffers */
    struct zr_kernel_context copies_context;     /* for sums in the thread of copies */
    uint64_t moved_bytes;                        /* copied to the host and back by the communicator */
    struct zr_delayed delayed;                   /* only with offload.delayed */
    struct zr_speculation speculation;           /* only with offload.speculative_bytes */
    struct zr_versions versions;
    struct zr_kept kept;
    struct zr_snapshot snapshot;
    bool recovered;                          /* the contents of options.kept were continued */
    struct zr_actions step;                  /* the end of a step */
    struct zr_compression_state compression; /* see compression.h */
    struct zr_meter meter;
    struct zr_outer_state outer;
    struct zr_warmup warmup;
    float *errors;  /* see errors.h; NULL: none */
    float *anchors; /* see zerone.h: parameters of the last sent step, then buffers; NULL: none */
    struct zr_local_steps {
        uint64_t count;
        double rates, weights; /* sums over these steps, see zerone.c */
    } local;                   /* since the last step that was not local */

    unsigned gathered_max;                  /* maximum of units gathered at a time */
    unsigned used_units;                    /* number of units with references */
    size_t gathered_units;                  /* number of units with a gathered block */
    size_t staging_limit, staging_elements; /* staged elements: maximum, current */
    unsigned awaited_units;                 /* number of units with `awaited` */
    unsigned first_staged, last_staged;     /* FIFO of staged units; ZR_NO_UNIT: empty */

    /* Arena block that kernels write results to: a number, squares [world][units_count], a struct
     * zr_gradient_weight and a struct zr_step_rates, and the squares of the first micro-batch if these
     * are measured. NULL: the host can access tensors. */
    double *results;
    /* Caller's pinned memory, from which updates copy their rates in stream order, so that a CUDA graph of a
     * step can be launched again. NULL: rates are arguments. Only with deferred results. */
    struct zr_step_rates *rates;
    /* Fails with the step's first gradient that is not finite. Not found in a step that launches a CUDA
     * graph, whose blocks do not exist now. */
    zr_result (*report_bad_gradient)(struct zr_engine *engine);
    float *wide;     /* [ZR_NARROW_ELEMENTS], for two-byte parameters that checkpoints have, and for state
                      in blocks; NULL: there are none */
    double *squares; /* [units_count] of this rank, then [world][units_count]; NULL in a dry run */
    double *small_squares; /* [units_count] of this rank's first micro-batch; NULL: not measured */
    struct zr_gradient_squares gradient_squares;
    uint64_t steps_done;
    uint64_t update_ns; /* from the norm to the end of the update, of all steps; 0: of a delayed update */
    struct zr_loss_scale scaling;
    size_t segments_count; /* of this rank, see zr_engine_segment() */
    unsigned rank, world;
    bool brought;        /* zr_engine_bring_gradients() has run in this step */
    bool simulated;      /* the kernels execute nothing: tensors must not be read */
    bool host_invisible; /* the host cannot access tensors and copies them; see results.c */
};

/* Whether results are deferred: norm and overflow of a step are computed on the GPU, and the host reads them
 * at the end of the step. Not with tensor or pipeline parallelism, where the host adds the norms of several
 * engines. */
static inline bool zr_engine_defers(const struct zr_engine *engine)
{
    return engine->host_invisible && !engine->options.tensor && !engine->options.pipeline &&
           !engine->options.offload.optimizer;
}

/* ZR_ACTION_COLLECT: brings all gradients to where they are updated. With offload, the host waits for all
 * queued work. */
zr_result zr_engine_bring_gradients(struct zr_engine *engine);

/* parameter_sync.c: makes the kernels' stream wait for all collective operations. Between steps, or after
 * ZR_ACTION_CLOSE. */
zr_result zr_engine_join(struct zr_engine *engine);

/* results.c: synchronous copies between the engine's arena and host memory, and results of kernels for the
 * host. Each function waits for the kernels. */
zr_result zr_engine_copy(const struct zr_engine *engine, void *to, const void *from, size_t bytes);
/* Copies a unit's values (see zr_owned_values()) to host floats / from host floats, which are rounded. */
zr_result zr_engine_get_floats(const struct zr_engine *engine, size_t unit, struct zr_numbers from,
                               size_t count, float *to);
zr_result zr_engine_put_floats(const struct zr_engine *engine, size_t unit, const float *from, size_t count,
                               struct zr_numbers to);
/* Copies `count` numbers of a unit's state in blocks to host floats / from host floats, which are rounded. */
struct zr_state_blocks {
    size_t unit, count;
    const struct zr_optimizer_slot *slot;
    void *blocks; /* begins with the first number's block */
};
zr_result zr_engine_get_blocks(const struct zr_engine *engine, const struct zr_state_blocks *from, float *to);
zr_result zr_engine_put_blocks(const struct zr_engine *engine, const float *from,
                               const struct zr_state_blocks *to);
/* Waits until the host may access offloaded data: all queued work of the streams has ended. Does nothing if a
 * thread copies, because its tickets are waited for one by one. */
zr_result zr_engine_drain(const struct zr_engine *engine);
zr_result zr_engine_find_nonfinite(const struct zr_engine *engine, struct zr_compute compute, size_t n,
                                   struct zr_numbers x, size_t *index);
zr_result zr_engine_checksum(const struct zr_engine *engine, struct zr_compute compute, const void *data,
                             size_t bytes, uint64_t *sum);
/* This rank's gradients of a unit that the norm counts, and their range in the unit: its reduced shard, or
 * all of its own if it sends momentum. */
struct zr_numbers zr_engine_counted_gradients(const struct zr_engine *engine, size_t unit,
                                              struct zr_overlap *range);
/* Sum of squares of this rank's shard of a unit, in fixed blocks; it may arrive only with
 * zr_engine_squares_read(). With tensor or pipeline parallelism tensor by tensor, without tensors that
 * another engine counts. */
zr_result zr_engine_unit_squares(struct zr_engine *engine, size_t unit, double *sum);
zr_result zr_engine_squares_read(const struct zr_engine *engine, double *sums);
/* Squares of n numbers in the memory of `compute`. */
zr_result zr_engine_squares(const struct zr_engine *engine, struct zr_compute compute, size_t n,
                            struct zr_numbers x, double *sum);
/* The squares of all ranks' shards, after zr_engine_weigh(): brings them to engine->squares. */
zr_result zr_engine_all_squares_read(const struct zr_engine *engine);
/* Where a kernel writes the squares of a unit's first micro-batch / brings them to engine->small_squares. */
double *zr_engine_small_squares_at(const struct zr_engine *engine, size_t unit);
zr_result zr_engine_small_squares_read(const struct zr_engine *engine);
/* Size of the block of results in 8-byte words. */
size_t zr_engine_results_count(const struct zr_engine *engine);
/* Computes the gradients' weight from all ranks' sums of squares, in the block of results. */
zr_result zr_engine_weigh(const struct zr_engine *engine, struct zr_engine_update *update);
/* Write the rates of an update to pinned memory / queue their copy to the block of results. */
void zr_engine_rates_set(struct zr_engine *engine, const struct zr_engine_update *update);
zr_result zr_engine_rates_send(struct zr_engine *engine, struct zr_engine_update *update);
zr_result zr_engine_weight_read(const struct zr_engine *engine, struct zr_gradient_weight *out);

/* Fills in shards_*, the sizes of the pools, the units' places and staging_limit. */
void zr_engine_place(struct zr_engine *engine);

/* engine_check.c: argument checks, ZR_ERR_INVALID; `call` is the name of the public function. check_call: the
 * engine or `other` is NULL. refuse_unit: the message for a call that check_call refuses, or without unit. */
zr_result zr_engine_check_call(const struct zr_engine *engine, const char *call, const void *other);
zr_result zr_engine_refuse_unit(const struct zr_engine *engine, const char *call, unsigned unit,
                                const void *other);
/* Fails if gradients of the current step were acquired or reduced. */
zr_result zr_engine_check_between_steps(const struct zr_engine *engine, const char *call);
/* Fails if a unit is in use; for callers that change parameters. */
zr_result zr_engine_check_unused(const struct zr_engine *engine, const char *call);
zr_result zr_engine_check_rate(float rate);
zr_result zr_engine_check_options(const struct zr_engine_options *options);

/* Whether a unit keeps its parameters: it has no gradients, masters and optimizer state. */
static inline bool zr_engine_is_frozen(const struct zr_engine *engine, size_t unit)
{
    return zr_unit_is_frozen(&engine->layout.units[unit].unit);
}

/* The part of a unit whose reduced gradients and saved state this rank has. */
static inline struct zr_overlap zr_engine_shard(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    if (engine->options.root_owns)
        return (struct zr_overlap){0, engine->rank == 0 ? u->padded_elements : 0};
    return (struct zr_overlap){engine->rank * u->shard_elements, u->shard_elements};
}

/* Whether pipeline ranks share a unit. */
static inline bool zr_engine_is_shared(const struct zr_engine *engine, size_t unit)
{
    return engine->layout.parameters[engine->layout.units[unit].first_parameter].parameter.part.shared;
}

static inline bool zr_engine_is_low_precision(const struct zr_engine *engine)
{
    return engine->options.precision != ZR_PRECISION_FP32;
}

/* Whether ranks keep more of a unit's new parameters than they update: the others come from their peers. */
static inline bool zr_engine_gathers_new(const struct zr_engine *engine, size_t unit)
{
    const struct zr_unit_state *state = &engine->units[unit];
    return !zr_engine_is_frozen(engine, unit) &&
           (engine->options.root_owns || zr_unit_owned(state) < state->parameters_count);
}

/* Kernels and context for a unit's kept parameters. */
static inline struct zr_compute zr_engine_parameter_compute(const struct zr_engine *engine, size_t unit)
{
    return engine->units[unit].parameters_in->compute;
}

/* Kernels and context for a unit's masters, optimizer state and gradient shards. */
static inline struct zr_compute zr_engine_unit_compute(const struct zr_engine *engine, size_t unit)
{
    return engine->units[unit].tier->compute;
}

/* Whether a later step sends by the method of compression and this one does not: it is of the warm-up
 * (warmup.h), or a full or local step (zerone.h). */
bool zr_engine_warms_up(const struct zr_engine *engine);

/* Finishes a delayed update and publishes its parameters, for example before state is saved.
 * Collective; no unit may be in use. */
zr_result zr_engine_catch_up(struct zr_engine *engine);
/* Whether a delayed update is pending. */
static inline bool zr_engine_is_delayed(const struct zr_engine *engine)
{
    return engine->delayed.pending;
}
/* Whether the delayed update was started and has not been waited for. */
static inline bool zr_engine_delayed_is_under_way(const struct zr_engine *engine)
{
    return engine->delayed.ticket > 0;
}

/* Total of bytes copied to the host and back. */
uint64_t zr_engine_host_moved_bytes(const struct zr_engine *engine);
/* Sums over all offload files; zeros without one. */
void zr_engine_get_file_report(const struct zr_engine *engine, struct zr_state_file_report *out);
/* Times of the delayed update's thread; zeros without one. */
struct zr_delayed_report {
    double computing_seconds, waiting_seconds; /* waiting: for the disk */
};
void zr_engine_get_delayed_report(const struct zr_engine *engine, struct zr_delayed_report *out);
/* Simulates transfers between tiers by `clock`, which must outlive the engine. */
void zr_engine_set_clock(struct zr_engine *engine, struct zr_comm_clock *clock);

/* Element `skip` of the part that a rank updates, a tensor's, in a slot; of a slot of whole tensors, the
 * tensor's first number. NULL: the tensor has no such slot. */
void *zr_owned_slot(const struct zr_engine *engine, const struct zr_layout_parameter *tensor,
                    const struct zr_owned *owned, unsigned slot, size_t skip);
/* The same; NULL also for a slot in blocks or of whole tensors. */
static inline float *zr_owned_floats(const struct zr_engine *engine, const struct zr_layout_parameter *tensor,
                                     const struct zr_owned *owned, unsigned slot, size_t skip)
{
    const struct zr_optimizer *optimizer = engine->layout.units[tensor->parameter.unit].optimizer;
    return slot < optimizer->slots_count - optimizer->kept_count && zr_slot_is_plain(&optimizer->slots[slot])
               ? zr_owned_slot(engine, tensor, owned, slot, skip)
               : NULL;
}
/* Element `index` of numbers. */
struct zr_numbers zr_numbers_at(struct zr_numbers numbers, size_t index);

/* The values that are saved and loaded: masters, or the parameters of a frozen unit. */
static inline struct zr_numbers zr_owned_values(const struct zr_owned *owned)
{
    return owned->master ? (struct zr_numbers){owned->master, ZR_PRECISION_FP32} : owned->parameters;
}

/* Sets the initial state of loss scaling / changes it at the end of a step. `finite`: every gradient is
 * finite. Returns false if the scale is already the smallest. */
void zr_engine_start_scaling(struct zr_engine *engine);
bool zr_engine_follow_scaling(struct zr_engine *engine, bool finite);

/* Label of a communicator operation on the simulated clock. */
enum zr_engine_label { ZR_LABEL_PARAMETERS, ZR_LABEL_GRADIENTS };
#define ZR_ENGINE_LABEL(unit, what) (2 * (unsigned)(unit) + (unsigned)(what))

/* Starts an in-place all-gather, or broadcast, of a unit whose parameters are kept whole. */
zr_result zr_engine_all_gather_parameters(struct zr_engine *engine, size_t unit);
/* Waits for a unit's gather, if any. */
zr_result zr_engine_await_gather(struct zr_engine *engine, size_t unit);
/* Frees gathered units that are not in use / before parameters change. */
zr_result zr_engine_drop_gathered(struct zr_engine *engine);
zr_result zr_engine_drop_parameters(struct zr_engine *engine);
/* Whether the engine has a part of the model (tensor or pipeline parallelism): the norm sums over several
 * engines, and some tensors are on more than one. */
static inline bool zr_engine_is_part(const struct zr_engine *engine)
{
    return engine->options.tensor || engine->options.pipeline;
}

/* The parameter that contains an element of a unit; NULL: padding. */
const struct zr_layout_parameter *zr_engine_parameter_at(const struct zr_engine *engine, size_t unit,
                                                         size_t element);

#endif
