/* engine.h: the engine's inside, shared by the files that make it up: engine.c (life), placement.c (what is
 * kept where), state_store.c and offload.c (on which memory), gather.c (parameters), reduce.c (gradients),
 * optimizer.c (the end of a step), results.c, loss_scale.c, parameter_sync.c, engine_check.c (what is
 * refused).
 *
 * Of each unit a rank holds, by stage:
 *
 *                 parameters    gradients                          optimizer state
 *   0             whole         whole                              whole
 *   1             whole         whole                              shard
 *   2             whole         shard, whole ones pass staging     shard
 *   3             shard, whole  shard, whole ones pass staging     shard
 *                 while in use
 *
 * Where parameters have two bytes, their fp32 masters lie as the optimizer state does. Where the optimizer
 * state is on the host, so are its masters and this rank's shards of gradients, and whole gradients pass
 * staging at every stage and of one rank too. All shards of one kind lie in one pool, in order of use. What
 * is whole for a while (staging, gathered) is a block of its own, taken and freed in the order of the
 * program, so that a plan sees the same bytes. */
#ifndef ZR_ENGINE_H
#define ZR_ENGINE_H

#include "zero/engine/state_store.h"
#include "zero/comm/copies.h"
#include "zero/comm/take.h"
#include "zero/zr_zero.h"

/* Who computes on tensors that lie in one memory: see zr_engine_compute(). */
struct zr_compute {
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    bool apart; /* the host does not see what they write */
};

/* What is the same for all parameters of an update. */
struct zr_engine_update {
    float rate, gradient_scale, correction1, correction2;
    const struct zr_gradient_weight *weight; /* NULL, or where kernels find the scale: see zr_adamw */
    const struct zr_step_rates *rates;       /* likewise the rate and corrections */
    struct zr_kernel_context *context; /* of another thread than the step's; NULL: of what computes there */
};

enum { ZR_NO_UNIT = UINT32_MAX, ZR_AWAITED_UNITS_MAX = 2, ZR_BOUNCE_BUFFERS = 2 };

struct zr_unit_state {
    /* Parameters. */
    bool resident;              /* they are kept whole */
    bool stays;                 /* its optimizer state and gradients are not offloaded */
    size_t parameters_at;       /* elements before the unit, or its shard, in the pool */
    void *gathered;             /* whole, for now; NULL: not */
    unsigned references;        /* who gathered it and did not release it yet, at every stage */
    zr_ticket parameter_ticket; /* they are being gathered */
    zr_ticket parameter_copy;   /* of engine->copies: they come from the host */
    /* Gradients. */
    bool awaited;         /* asked for, and not yet handed over; at every stage */
    void *staging;        /* whole, on their way; NULL: none, or there is a pool of whole gradients */
    void *gradients;      /* of engines without a pool: a block, within a step */
    bool staged;          /* handed over, and in the queue of staging blocks */
    unsigned next_staged; /* the unit after it in that queue */
    void *late_gradients; /* those that an update under way reads; NULL: it reads a pool */
    float *late_sum_shard;
    float *sum_shard;     /* this rank's part of the sum of several accumulation steps; only within a step */
    unsigned accumulated; /* gradients handed over in this step */
    zr_ticket reduce_ticket;             /* they are being reduced */
    struct zr_copies_task gradient_task; /* where they are added to sums there */
    struct zr_engine *engine;            /* whose unit it is, for the task */
    bool adds;                           /* to what is there */
    zr_ticket gradient_copy;             /* of engine->copies: they go to the host */

    size_t gradients_at;   /* elements before its gradients in their pool */
    void *filed_gradients; /* of a unit whose gradients are in the offload file: its shard, while in memory */

    size_t first_segment; /* of this rank's segments in the unit; see zr_engine_segment() */
};

/* What a delayed update needs; see late.h. */
struct zr_late_unit {
    struct zr_numbers gradients; /* that it reads */
    zr_ticket copied;            /* of engine->copies: the parameters of the update before have left */
};
struct zr_late {
    zr_comm *worker; /* its thread */
    struct zr_copies_task task;
    struct zr_kernel_context context;
    struct zr_engine_update update;
    struct zr_late_unit *units; /* [units_count] */
    char *parameters;           /* new ones of what this rank updates, [layout.shards_elements] */
    char *other_gradients;      /* as zr_engine.gradients and .sums: the turn's other place */
    float *other_sums;
    zr_ticket ticket;
    bool pending;                        /* an update was started, and its parameters have not come */
    struct zr_comm_clock *clock;         /* of a rehearsal; NULL: none */
    uint64_t waited_ns;                  /* for it, of state in a file */
    _Atomic uint64_t busy_ns, behind_ns; /* of its thread: in all, and of that waiting for the disk */
};

/* What a speculative update needs; see speculate.h. Zeros: none is made. */
struct zr_speculation {
    zr_comm *worker; /* its thread */
    struct zr_kernel_context context;
    struct zr_engine_update update; /* that is assumed */
    bool armed;                     /* the step under way has one */
    float *log;
    struct zr_speculated_unit *units; /* [units_count] */
    /* Of state and parameters in files: new parameters, [shards_elements], until the norm allows them. */
    void *parameters;
    /* Of state in a file: the order in which backward ends its units, as the last step had it, and as this
     * one has it so far. */
    unsigned *order, *seen; /* [filed_count] */
    unsigned filed_count, seen_count;
    bool disordered; /* this step has another */
    uint64_t waited_ns;
};

/* Gradients in the offload file; see gradient_file.h. Zeros: none are. */
struct zr_gradient_file {
    struct zr_nvme_unit *extents; /* [units_count], behind the store's */
    bool placed;                  /* their offsets count from the beginning of the file */
    uint64_t bytes;
    size_t slot_bytes;
    void *slots;                          /* of the pipeline, in a row */
    struct zr_nvme_unit *pass;            /* [units_count], of a pass; no bytes: passed over */
    unsigned used[ZR_NVME_BUFFERS_MOST];  /* the last unit that was in it */
    unsigned owner[ZR_NVME_BUFFERS_MOST]; /* the unit that is being reduced into it; ZR_NO_UNIT */
    zr_nvme_event writes[ZR_NVME_BUFFERS_MOST];
    unsigned turn;
    struct zr_nvme_pipeline pipeline;
    double read_seconds[ZR_NVME_PLACES]; /* by the clock of a rehearsal: when a unit has been read, modulo */
};

/* Parameters in an offload file; see nvme/parameter_file.h. Zeros: none are. */
struct zr_parameter_extent {
    uint64_t offset_bytes;
    size_t bytes; /* 0: the unit is not in the file */
    zr_nvme_event written;
};
struct zr_parameter_slot {
    unsigned unit;       /* whose shard it is for, until its gather has ended, or it is written; ZR_NO_UNIT */
    zr_nvme_event event; /* its last transfer */
    double end_seconds;  /* of that, by the clock of a rehearsal */
    struct zr_comm_before before;
    struct zr_parameter_file *file;
};
struct zr_parameter_file {
    zr_nvme_io *io;                      /* NULL: simulated, or none */
    struct zr_parameter_extent *extents; /* [units_count] */
    uint64_t bytes, moved_bytes, waited_ns;
    size_t slot_bytes;
    void *memory; /* of the slots, one after the other */
    struct zr_parameter_slot slots[ZR_PREFETCH_MOST + 1];
    unsigned slots_count, turn;
    struct zr_comm_clock *clock; /* NULL: none */
};

struct zr_engine {
    struct zr_engine_options options;
    struct zr_layout layout;
    struct zr_unit_state *units;            /* [layout.units_count] */
    size_t parameter_bytes, gradient_bytes; /* of one element */

    char *parameters; /* [parameters_elements]: units or their shards, by zr_unit_state.parameters_at */
    size_t parameters_elements;
    char *host_parameters; /* likewise on the host: shards, see zr_engine_hosts_parameters() */
    size_t host_parameters_elements;
    char *gradients; /* whole: [layout.pool_elements], else shards: [layout.shards_elements] */
    size_t gradients_elements;
    char *staying_gradients; /* of units that stay, likewise; of all others `gradients` has them */
    size_t staying_gradients_elements;
    struct zr_gradient_file gradient_file;
    struct zr_parameter_file parameter_file;
    float *sums; /* [layout.shards_elements] or NULL: fp32 sums of micro-batches, beside whole gradients or in
                  * the place of shards of two bytes */
    float *staying_sums; /* of units that stay, likewise */
    struct zr_state_store
        store; /* masters (none in fp32: the parameters are their own), momentum, variance */
    struct zr_state_store staying; /* of units that stay; not open where none does */
    struct zr_unit_range stay;
    bool shards_gradients, shards_parameters; /* what the stage came to; see placement.c */

    /* With offload alone; see offload.h. */
    zr_comm *copies;
    char *bounce; /* [ZR_BOUNCE_BUFFERS][bounce_elements] of parameters, on the host; NULL in fp32 */
    size_t bounce_elements;
    unsigned bounce_turn;                        /* buffers taken so far */
    zr_ticket bounce_tickets[ZR_BOUNCE_BUFFERS]; /* copies that read them */
    struct zr_kernel_context copies_context;     /* for sums in the thread of copies */
    uint64_t moved_bytes;                        /* to the host and back by the communicator */
    struct zr_late late;                         /* with offload.delayed alone */
    struct zr_speculation speculation;           /* with offload.speculative_bytes alone */

    unsigned gathered_most;                 /* units that may be gathered at a time */
    unsigned used_units;                    /* with references */
    size_t gathered_units;                  /* with a gathered block */
    size_t staging_limit, staging_elements; /* elements that may be staged, and are */
    unsigned awaited_units;                 /* whose gradients are awaited */
    unsigned first_staged, last_staged;     /* queue in the order of handing over; ZR_NO_UNIT: empty */

    /* In the arena, for what kernels find: NULL: the host sees tensors. A number, squares
     * [world][units_count], a struct zr_gradient_weight and a struct zr_step_rates. */
    double *results;
    /* Pinned memory of the caller's, from where updates get their rates in stream order, so that a graph of a
     * step may be launched again; NULL: they are arguments. Where results are deferred. */
    struct zr_step_rates *rates;
    bool again;      /* the step under way is a graph's: what it allocates is not here */
    double *squares; /* [units_count] of this rank, then [world][units_count]; NULL in a dry run */
    uint64_t steps_done;
    struct zr_loss_scale scaling;
    size_t segments_count; /* of this rank, see zr_engine_segment() */
    unsigned rank, world;
    bool brought;   /* the step's gradients are where they are updated, and the host has waited for them */
    bool simulated; /* the kernels execute nothing: nothing may be read */
    bool apart;     /* the host sees no tensors: what it reads and writes of them is copied; see results.c */
};

/* Where the host sees no tensors: what a step's end needs to know of the gradients stays there until the step
 * has ended, and the host learns it then. Not beside engines of other parts, whose norms it adds. */
static inline bool zr_engine_defers(const struct zr_engine *engine)
{
    return engine->apart && !engine->options.tensor && !engine->options.pipeline &&
           !engine->options.offload.optimizer;
}

/* optimizer.c: the two halves of zr_engine_step(), where results are deferred: all that the step does is
 * asked for / the host waits for it, and does what is left. Between them zr_engine_step_read(), which waits,
 * once. */
zr_result zr_engine_step_begin(struct zr_engine *engine, float rate, struct zr_step_report *report);
zr_result zr_engine_step_read(struct zr_engine *engine, struct zr_step_report *report);
zr_result zr_engine_step_end(struct zr_engine *engine, struct zr_step_report *report);

/* The first part of zr_engine_step() where they are not: all gradients are where they are updated, and where
 * something is offloaded the host has waited for all that was asked for. */
zr_result zr_engine_bring_gradients(struct zr_engine *engine);

/* In the place of the first of them, when what it has asked for is about to be done once more. */
zr_result zr_engine_step_again(struct zr_engine *engine, float rate, struct zr_step_report *report);

/* parameter_sync.c: the kernels' stream comes behind all operations between ranks: nobody waits for one.
 * Between steps, or behind zr_engine_step_begin(). */
zr_result zr_engine_join(struct zr_engine *engine);

/* results.c: copies between the engine's arena and the host's own memory, which have ended on return; what
 * kernels find, for the host. Each waits for the kernels. */
zr_result zr_engine_copy(const struct zr_engine *engine, void *to, const void *from, size_t bytes);
/* The host may use what is offloaded: whatever streams were asked for, and the kernels' stream waits for, has
 * ended. Nothing where copies have a thread, which is waited for ticket by ticket. */
zr_result zr_engine_drain(const struct zr_engine *engine);
zr_result zr_engine_find_nonfinite(const struct zr_engine *engine, struct zr_compute compute, size_t n,
                                   struct zr_numbers x, size_t *index);
zr_result zr_engine_checksum(const struct zr_engine *engine, struct zr_compute compute, const void *data,
                             size_t bytes, uint64_t *sum);
/* Of unit `unit` alone the sum may come later: with zr_engine_squares_read(), of all units. */
zr_result zr_engine_squares(const struct zr_engine *engine, struct zr_compute compute, size_t n,
                            struct zr_numbers x, double *sum);
zr_result zr_engine_squares_later(const struct zr_engine *engine, size_t unit, struct zr_numbers x,
                                  double *sum);
zr_result zr_engine_squares_read(const struct zr_engine *engine, double *sums);
/* The squares of this rank's shard of a unit, in fixed blocks, as squares_later(). Beside engines of other
 * parts, those of what no other one counts, tensor by tensor. */
zr_result zr_engine_unit_squares(struct zr_engine *engine, size_t unit, double *sum);
/* Numbers of eight bytes in the block of results. */
size_t zr_engine_results_count(const struct zr_engine *engine);
/* Weighs the gradients by all ranks' squares_later(), where results are / reads what that came to. */
zr_result zr_engine_weigh(const struct zr_engine *engine, struct zr_engine_update *update);
/* The rates of an update, for kernels that find them / to where the update finds them. */
void zr_engine_rates_set(struct zr_engine *engine, const struct zr_engine_update *update);
zr_result zr_engine_rates_send(struct zr_engine *engine, struct zr_engine_update *update);
zr_result zr_engine_weight_read(const struct zr_engine *engine, struct zr_gradient_weight *out);

/* Decides what is kept whole: fills shards_*, the sizes of the pools, the units' places, staging_limit. */
void zr_engine_place(struct zr_engine *engine);

/* Refusals, ZR_ERR_INVALID, of engine_check.c; `call` is the public function. The engine or another pointer
 * that it needs is NULL; and, besides, there is no such unit. */
zr_result zr_engine_check_call(const struct zr_engine *engine, const char *call, const void *other);
zr_result zr_engine_check_unit(const struct zr_engine *engine, const char *call, unsigned unit,
                               const void *other);
/* A step is under way: gradients have been asked for or handed over. */
zr_result zr_engine_check_between_steps(const struct zr_engine *engine, const char *call);
/* Some unit is gathered, and its values are about to change. */
zr_result zr_engine_check_unused(const struct zr_engine *engine, const char *call);
zr_result zr_engine_check_options(const struct zr_engine_options *options);

/* Gradients that a unit gets in a step. */
static inline unsigned zr_engine_accumulation_steps(const struct zr_engine *engine, size_t unit)
{
    return engine->layout.units[unit].unit.gradient_uses * engine->options.micro_batches;
}

static inline bool zr_engine_is_low_precision(const struct zr_engine *engine)
{
    return engine->options.precision != ZR_PRECISION_FP32;
}

/* The accumulation steps add up where they are made, and are reduced after the last (or never, by one rank).
 * Micro-batches of two bytes add up in fp32 even there, or late ones would be rounded away. */
static inline bool zr_engine_adds_in_place(const struct zr_engine *engine)
{
    return engine->options.reduce == ZR_REDUCE_ONCE ||
           (engine->world == 1 &&
            (!zr_engine_is_low_precision(engine) || engine->options.micro_batches == 1));
}

/* Whether the sums of micro-batches have a pool of their own. */
static inline bool zr_engine_keeps_sums(const struct zr_engine *engine)
{
    return engine->options.micro_batches > 1 && !zr_engine_adds_in_place(engine) &&
           (zr_engine_is_low_precision(engine) || !engine->shards_gradients);
}

/* What gradients and parameters are to the communicator. */
static inline enum zr_comm_type zr_engine_comm_type(const struct zr_engine *engine)
{
    return engine->options.precision == ZR_PRECISION_BF16   ? ZR_COMM_BF16
           : engine->options.precision == ZR_PRECISION_FP16 ? ZR_COMM_FP16
                                                            : ZR_COMM_FP32;
}

/* Optimizer state, masters and shards of gradients are on the host. */
static inline bool zr_engine_offloads(const struct zr_engine *engine)
{
    return engine->options.offload.optimizer;
}

/* Those of a unit are. */
static inline bool zr_engine_offloads_unit(const struct zr_engine *engine, size_t unit)
{
    return zr_engine_offloads(engine) && !engine->units[unit].stays;
}

/* A unit has masters apart from its parameters. */
static inline bool zr_engine_has_masters(const struct zr_engine *engine, size_t unit)
{
    return zr_engine_is_low_precision(engine) || zr_engine_offloads_unit(engine, unit);
}

/* The arena that state is in which is offloaded, if any is. */
static inline zr_arena *zr_engine_state_arena(const struct zr_engine *engine)
{
    return zr_engine_offloads(engine) ? engine->options.offload.host : engine->options.arena;
}

/* That a unit's is in. */
static inline zr_arena *zr_engine_unit_arena(const struct zr_engine *engine, size_t unit)
{
    return zr_engine_offloads_unit(engine, unit) ? engine->options.offload.host : engine->options.arena;
}

/* Who computes on what lies in an arena of the engine's. */
static inline struct zr_compute zr_engine_compute(const struct zr_engine *engine, const zr_arena *arena)
{
    const struct zr_engine_options *o = &engine->options;
    if (o->host_kernels && arena == o->offload.host)
        return (struct zr_compute){o->host_kernels, o->host_context, !o->host_kernels->host_visible};
    return (struct zr_compute){o->kernels, o->context, engine->apart};
}

/* And on a unit's masters, optimizer state and shards of gradients. */
static inline struct zr_compute zr_engine_unit_compute(const struct zr_engine *engine, size_t unit)
{
    return zr_engine_compute(engine, zr_engine_unit_arena(engine, unit));
}

/* Where the fp32 sum of a unit's micro-batches lies in a pool; NULL: there is none. */
static inline float *zr_engine_pooled_sum(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *units = engine->layout.units;
    size_t at = units[unit].shard_offset;
    if (engine->units[unit].stays)
        return engine->staying_sums ? engine->staying_sums + at - units[engine->stay.first].shard_offset
                                    : NULL;
    if (unit >= engine->stay.end && engine->stay.end > engine->stay.first)
        at -= units[engine->stay.end - 1].shard_offset + units[engine->stay.end - 1].shard_elements -
              units[engine->stay.first].shard_offset;
    return engine->sums ? engine->sums + at : NULL;
}

/* Whether a unit's parameters are kept on the host, as shards. */
static inline bool zr_engine_hosts_parameters(const struct zr_engine *engine, size_t unit)
{
    return engine->options.offload.parameters && !engine->units[unit].resident && !engine->units[unit].stays;
}

/* Of these, whether they are in an offload file. */
static inline bool zr_engine_files_parameters(const struct zr_engine *engine, size_t unit)
{
    return engine->options.offload.parameters_file && zr_engine_hosts_parameters(engine, unit);
}

/* A delayed update ends, and its parameters come: so state that is saved is that of a step's end. Collective;
 * nobody uses parameters. */
zr_result zr_engine_catch_up(struct zr_engine *engine);
/* Whether there is one. */
static inline bool zr_engine_is_late(const struct zr_engine *engine)
{
    return engine->late.pending;
}
/* Whether its thread has not been waited for. */
static inline bool zr_engine_late_is_under_way(const struct zr_engine *engine)
{
    return engine->late.ticket > 0;
}

/* What was copied to the host and back so far, by whatever means. */
uint64_t zr_engine_host_moved_bytes(const struct zr_engine *engine);
/* Of all offload files together; zeros without one. */
void zr_engine_get_file_report(const struct zr_engine *engine, struct zr_state_file_report *out);
/* What the thread of a delayed update has done so far, beside the steps; zeros without one. */
struct zr_late_report {
    double computing_seconds, waiting_seconds; /* waiting: for the disk */
};
void zr_engine_get_late_report(const struct zr_engine *engine, struct zr_late_report *out);
/* Lets what a rehearsal moves between tiers go by a clock, which is the caller's and outlives it. */
void zr_engine_set_clock(struct zr_engine *engine, struct zr_comm_clock *clock);

static inline void *zr_engine_parameter_place(const struct zr_engine *engine, size_t at_elements)
{
    return engine->parameters + at_elements * engine->parameter_bytes;
}

/* This rank's part of a unit's parameters; NULL: it is in an offload file. */
static inline void *zr_engine_shard(const struct zr_engine *engine, size_t unit)
{
    size_t at = engine->units[unit].parameters_at;
    if (zr_engine_files_parameters(engine, unit))
        return NULL;
    if (zr_engine_hosts_parameters(engine, unit))
        return engine->host_parameters + at * engine->parameter_bytes;
    if (engine->units[unit].resident)
        at += engine->rank * engine->layout.units[unit].shard_elements;
    return zr_engine_parameter_place(engine, at);
}

/* Whether a unit's gradients wait for the norm in the offload file. */
static inline bool zr_engine_files_gradients(const struct zr_engine *engine, size_t unit)
{
    const struct zr_engine_options *o = &engine->options;
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    return o->offload.file && !engine->units[unit].stays && !o->offload.delayed && !o->scattered_gradients &&
           !engine->apart && /* the host would have to wait for each reduction */
           zr_engine_accumulation_steps(engine, unit) == 1 &&
           !engine->layout.parameters[u->first_parameter].parameter.part.shared;
}

/* Where a unit's gradients are kept: whole ones, or shards. */
static inline char *zr_engine_kept_gradients(const struct zr_engine *engine, size_t unit)
{
    const struct zr_unit_state *state = &engine->units[unit];
    if (zr_engine_files_gradients(engine, unit))
        return state->filed_gradients;
    char *pool = state->stays ? engine->staying_gradients : engine->gradients;
    return engine->options.scattered_gradients ? state->gradients
                                               : pool + state->gradients_at * engine->gradient_bytes;
}

/* Where the reduced gradients of this rank's shard lie after the last accumulation step. */
static inline struct zr_numbers zr_engine_shard_gradients(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    size_t within = engine->shards_gradients ? 0 : engine->rank * u->shard_elements;
    if (engine->units[unit].sum_shard)
        return (struct zr_numbers){engine->units[unit].sum_shard, ZR_PRECISION_FP32};
    float *pooled = zr_engine_pooled_sum(engine, unit);
    if (pooled)
        return (struct zr_numbers){pooled, ZR_PRECISION_FP32};
    return (struct zr_numbers){zr_engine_kept_gradients(engine, unit) + within * engine->gradient_bytes,
                               engine->options.precision};
}

/* What this rank updates of a unit: all of it at stage 0, else its shard. */
struct zr_owned {
    size_t from, to; /* elements of the unit; all below is of element `from` */
    struct zr_numbers parameters;
    float *master;              /* in fp32 the parameters */
    float *momentum, *variance; /* variance NULL: there is none */
};
/* Element `index` of numbers. */
static inline struct zr_numbers zr_numbers_at(struct zr_numbers numbers, size_t index)
{
    return (struct zr_numbers){(char *)numbers.at + index * zr_precision_bytes(numbers.precision),
                               numbers.precision};
}

/* The first state of the loss scaling, and what a step's end does to it. `finite`: every gradient was. False:
 * no smaller scale is left to try. */
void zr_engine_start_scaling(struct zr_engine *engine);
bool zr_engine_follow_scaling(struct zr_engine *engine, bool finite);

/* What an operation of the communicator moves, as whoever watches a null communicator's clock sees it. */
enum zr_engine_label { ZR_LABEL_PARAMETERS, ZR_LABEL_GRADIENTS };
static inline unsigned zr_engine_label(size_t unit, enum zr_engine_label what)
{
    return 2 * (unsigned)unit + (unsigned)what;
}

/* Starts the all-gather of whole units from the parts of their owners, in place. */
zr_result zr_engine_all_gather(struct zr_engine *engine, size_t unit, struct zr_numbers whole,
                               zr_ticket *ticket);
/* The same of a unit that is kept whole. */
zr_result zr_engine_all_gather_parameters(struct zr_engine *engine, size_t unit);
/* A unit's gather ends, if one is under way. */
zr_result zr_engine_await_gather(struct zr_engine *engine, size_t unit);
/* Frees what was gathered ahead and is not in use: its values are about to change. */
zr_result zr_engine_drop_gathered(struct zr_engine *engine);
/* The engine has a part of the model: other engines' gradients count in its norm, and theirs may be copies.
 */
static inline bool zr_engine_is_part(const struct zr_engine *engine)
{
    return engine->options.tensor || engine->options.pipeline;
}

/* Waits for a unit's reduction and frees the staging block, if there is one. */
zr_result zr_engine_end_reduction(struct zr_engine *engine, size_t unit);

/* The parameter that holds element `element` of a unit, NULL for padding. */
const struct zr_layout_parameter *zr_engine_parameter_at(const struct zr_engine *engine, size_t unit,
                                                         size_t element);

#endif
