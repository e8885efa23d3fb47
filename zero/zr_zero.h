/* zr_zero.h: the ZeRO stage engine: where the parameters, gradients and optimizer state of a model live, and
 * how they travel between the ranks. The model computes; the engine places and moves.
 *
 * Parameters are grouped into units, the pieces that are gathered and reduced together (a transformer block
 * is one). Within a unit the tensors lie one after the other, each starting on 64 bytes, and the unit is
 * padded so that every rank owns an equal, contiguous shard of it, a multiple of 256 bytes. Initial values
 * come from the global element index (counted without padding), so they depend on neither stage nor world
 * size.
 *
 * Stage 0 replicates everything; stage 1 shards the optimizer state, stage 2 the gradients too, stage 3 the
 * parameters as well. Where sharding would cost more memory than it saves, since what passes through needs
 * room of its own, a unit is kept as the stage below keeps it: the blocks of a stage never take more bytes
 * than those of a lower one. In whole granules a small model may take one more. The stage changes where
 * bytes live, never what is computed: losses are bit-identical at a fixed world size.
 *
 * Precision. In fp32 there are 16 bytes per element: parameter, gradient, momentum, variance. In bf16 and
 * fp16 parameters and gradients have two bytes each, travel as such and are added up in fp32; beside momentum
 * and variance there is an fp32 master of each parameter, which is what is updated, saved and loaded.
 * Gradients of several accumulation steps add up in an fp32 shard, which takes the place of a two-byte one.
 * In fp16 the caller multiplies its loss by zr_engine_loss_scale(); a step whose gradients were too large for
 * fp16 is skipped on all ranks.
 *
 * An engine is used by one thread, in the same order on every rank. A call that does not fit, with NULL where
 * something is needed too, is ZR_ERR_INVALID and changes nothing; of what gives no result, the answer is
 * said below, and an engine of NULL has none of anything.
 *
 * A byte plan that is held to. Run the program's own steps once on an arena of the sim backend, with
 * zr_kernels_null() and zr_comm_null_create(), under tag limits without end; what that arena reached
 * (zr_arena_get_high_water()) are the tag limits of the real one (zr_arena_set_tag_limits()). From then on a
 * call of the engine that goes beyond fails with ZR_ERR_TAG_LIMIT, whose words name the call, the unit, the
 * tag and the bytes, and so does the program's own zr_arena_alloc(). */
#ifndef ZR_ZERO_H
#define ZR_ZERO_H

#include "alloc/zr.h"
#include "kernels/zr_kernels.h"
#include "zero/comm/zr_comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which part of a tensor an engine stores, where a tensor is split over ranks that have engines of their own
 * (tensor parallelism): rows and columns from `first` on, as many as the parameter's shape has. Those that
 * lie beyond the whole are padding: zero for ever. A first value depends on the coordinates in the whole. */
struct zr_tensor_part {
    size_t whole[2]; /* shape; whole[0] == 0: the parameter is the whole tensor */
    size_t first[2]; /* within a block */
    /* The last dimension is so many equal blocks side by side, and of each of them this part has the same
     * share: 3 of q, k and v. 0: 1. */
    unsigned blocks;
    /* Another engine of the model stores the same; that one saves it and counts it in norms. */
    bool copy;
    /* Its gradient here is a part: those of the ranks of zr_engine_options.tensor are added first. */
    bool sum_gradient;
    /* Likewise, once a step and after everything else: of the ranks of zr_engine_options.sharing. */
    bool shared;
    /* The list has another part of the same tensor before this one, under the same name: the tensor counts
     * there. */
    bool continues;
};

struct zr_parameter {
    char name[64];   /* "h.0.attn.c_attn.weight": each its own, but for parts of one tensor; see
                      * zr_engine_save() for what is taken */
    size_t shape[2]; /* as stored; shape[1] == 0: a vector */
    unsigned unit;   /* index into the units; parameters come sorted by unit */
    unsigned group;  /* index into the optimizer's groups */
    float init_mean, init_deviation;
    struct zr_tensor_part part;
    /* Elements of the model's tensors between the parameter before this one in the list and this one, of
     * which the list has nothing (pipeline parallelism). First values and saved states go by the model's
     * numbering. */
    uint64_t left_out;
};

struct zr_unit {
    char name[24];          /* "h.0" */
    unsigned gradient_uses; /* gradients per micro-batch: 2 for a tied embedding, else 1; never 0 */
};

/* The model's parameters; the arrays are borrowed while zr_engine_create() runs and copied. */
struct zr_parameter_list {
    const struct zr_parameter *parameters;
    size_t parameters_count;
    const struct zr_unit *units;
    size_t units_count;
    uint64_t left_out; /* behind the last parameter, see struct zr_parameter */
};

/* Numbers of elements as stored, without padding of units. 0 on overflow, and of NULL. */
ZR_API uint64_t zr_parameter_elements(const struct zr_parameter *parameter);
ZR_API uint64_t zr_parameter_list_elements(const struct zr_parameter_list *list);

/* Parameters that are updated in one way. */
struct zr_parameter_group {
    float rate_factor;  /* of the step's learning rate */
    float decay_factor; /* of the weight decay */
};

/* Without groups of one's own: group 0 (vectors) does not decay, all others (matrices) do, at one rate. */
enum { ZR_GROUP_NO_DECAY = 0, ZR_GROUP_DECAY = 1, ZR_GROUPS_MAX = 8 };

enum zr_optimizer_kind {
    ZR_OPTIMIZER_ADAMW = 0, /* momentum and variance, decay apart from the gradient */
    ZR_OPTIMIZER_SGD,       /* momentum = momentum_factor * momentum + gradient + decay * parameter */
};

struct zr_optimizer_options {
    enum zr_optimizer_kind kind;
    float beta1, beta2;    /* AdamW: from 0 to below 1 */
    float epsilon;         /* AdamW: above 0 */
    float momentum_factor; /* SGD: from 0 to below 1 */
    float weight_decay;
    float clip; /* largest gradient norm; 0: no clipping */
    struct zr_parameter_group groups[ZR_GROUPS_MAX];
    unsigned groups_count; /* 0: those of above */
};

/* When gradients of several micro-batches are reduced. */
enum zr_reduce_when {
    ZR_REDUCE_EACH = 0, /* every gradient use; their sum is a shard in fp32 */
    ZR_REDUCE_ONCE, /* they add up where they are made and are reduced after the last; stages 0 and 1 only.
                     * Less traffic, other bits; in bf16 and fp16 each sum is rounded */
};

/* How the loss is scaled in fp16, so that small gradients do not vanish: as much as they bear. 0 stands for
 * the default throughout. Gradients of zero would let it grow for ever, but for ZR_LOSS_SCALE_MOST. */
#define ZR_LOSS_SCALE_MOST 0x1p32f
struct zr_loss_scaling {
    float initial;       /* 2^16 */
    float least;         /* 1 */
    unsigned window;     /* steps in a row that went well before the scale doubles; 1000 */
    unsigned hysteresis; /* steps that are skipped before it halves, since it last doubled; 2 */
    bool constant;       /* it stays as it is */
};

/* Where the scaling stands: part of a run's state. */
struct zr_loss_scale {
    float scale;
    unsigned good_steps;      /* since the scale last changed, or a step was skipped */
    unsigned hysteresis_left; /* steps that may still be skipped before the scale halves, and one */
    unsigned skipped_in_row;
    uint64_t skipped_steps; /* of all */
};

enum { ZR_PREFETCH_MOST = 8 };

/* What lives in memory of the host, and not in zr_engine_options.arena. Zeros: nothing. The bits are the
 * same.
 *
 * Optimizer: momentum, variance and masters (in fp32 as well) have the tags optimizer and master there. The
 * gradients of a step pass staging at every stage, leave as they are reduced (tag grad there), and wait on
 * the host for the norm; the update runs there, and new parameters are copied to the arena behind it and the
 * next forward. Of several ranks at stage 0 everyone updates everything, and gradients that are reduced once
 * per step (ZR_REDUCE_ONCE) are kept whole: both are ZR_ERR_INVALID. */
struct zr_offload_file {
    const char *folder;
    bool force;         /* take a folder that lies in memory (tmpfs), for tests */
    size_t align_bytes; /* of its blocks, a power of two; 0: 4096 */
    unsigned depth;     /* transfers under way at a time; 0: measured at the start */
    unsigned buffers;   /* of the optimizer's, each as long as its largest unit: 3 to 16; 0: 3 */
    /* What a person should know: what this machine refuses, a disk that stalls. NULL: nobody listens. */
    void (*log)(void *state, const char *words);
    void *log_state;
};
struct zr_offload {
    zr_arena *host; /* host memory; NULL: nothing is offloaded */
    bool optimizer;
    /* With `optimizer`: masters, momentum and variance are in a file without a name, and the arena has its
     * buffers of the largest unit of them (tag offload). Borrowed while the engine lives. NULL: all of them
     * are in the arena. ZR_ERR_IO: the folder, with words and the way out. zr_engine_segment() then gives
     * nothing. */
    const struct zr_offload_file *file;
    bool parameters; /* of stage 3, and with `optimizer`: shards of parameters too (tag param there) */
    /* With `optimizer`, and other bits: the update by a step's gradients runs, in a thread of its own, while
     * the next step computes, and its parameters, which wait in the arena (tag param), come when that step
     * ends. zr_engine_save() waits for them first. */
    bool delayed;
    /* With `parameters`: their shards are in a file without a name, of its own, and the arena has a buffer of
     * the largest of them for each unit that may be gathered at a time (tag offload). Borrowed, and refused,
     * as `file`. NULL: all of them are in the arena. */
    const struct zr_offload_file *parameters_file;
    /* The part of all elements, 0 to 1, whose state, gradients and (of `parameters`) parameters stay in
     * zr_engine_options.arena, by units in a row, as many as are within it. Not with `delayed`. */
    double stays;
    /* With `optimizer`, without `delayed`, and the same bits: a unit is
     * updated in a thread of its own as soon as its gradients are there, before the norm is known, and rolled
     * back where the norm demands that; see zr_engine_speculate(). Bytes of the arena (tag offload), with
     * `file` of the file, that old values may take: of each unit 12 for each element that this rank updates,
     * 8 of SGD, from the last unit on; units without room wait for the norm. 0: all wait. */
    size_t speculative_bytes;
};

struct zr_engine_options {
    size_t struct_bytes;               /* its sizeof, or 0: see "Options" in alloc/zr.h */
    zr_arena *arena;                   /* tensors: any backend */
    zr_arena *host_arena;              /* records: host memory, tag other */
    const struct zr_kernels *kernels;  /* the null table makes a dry run: placement and counts only */
    struct zr_kernel_context *context; /* borrowed */
    zr_comm *comm;                     /* borrowed */
    struct zr_parameter_list list;
    unsigned stage;         /* 0 to 3 */
    unsigned micro_batches; /* per step; 0: 1. Each is weighted by the caller, who scales its gradients */
    enum zr_reduce_when reduce;
    enum zr_precision precision;         /* of parameters and gradients; the context's own */
    struct zr_loss_scaling loss_scaling; /* fp16 alone */
    uint64_t seed;
    struct zr_optimizer_options optimizer;
    /* Units of stage 3 that are gathered ahead of the one in use; 0: 1. At most ZR_PREFETCH_MOST. */
    unsigned prefetch_distance;
    /* The ranks that have the other parts of the same tensors and the same place in their `comm` (tensor
     * parallelism); borrowed. Their parts count in one gradient norm. NULL: `comm` has the model. */
    zr_comm *tensor;
    /* Likewise the ranks that have the other tensors of the model (pipeline parallelism); NULL: none. Of
     * them, those that share tensors with this one, see zr_tensor_part.shared; NULL: none. */
    zr_comm *pipeline, *sharing;
    /* Gradients have no pool: each unit's are a block, from its first gradient of a step to the step's end.
     * They take the holes that activations leave, which then are holes for good; a rehearsal's places prevent
     * that. */
    bool scattered_gradients;
    struct zr_offload offload;
    /* Where the host sees no tensors: what computes on those that are offloaded, in memory that the host and
     * `kernels` both see. Borrowed, and the context is open with them. NULL: `kernels` does, in `context`,
     * which is not allowed with offload.file; nor, with or without them, are offload.speculative_bytes and
     * parameters_file. */
    const struct zr_kernels *host_kernels;
    struct zr_kernel_context *host_context;
};

typedef struct zr_engine zr_engine;

/* Takes all persistent memory, fills the parameters with their initial values and the optimizer state with
 * zeros, and proves by checksum that all replicas agree. Collective. ZR_ERR_INVALID: a stage that is not
 * there, an empty list, units out of order, a group or an optimizer that is not there, a number that is
 * not finite or not in its range, ZR_REDUCE_ONCE above stage 1, a context of another precision.
 * ZR_ERR_MEMORY: does not fit. */
ZR_API zr_result zr_engine_create(zr_engine **out, const struct zr_engine_options *options);
ZR_API void zr_engine_destroy(zr_engine *engine);

/* The elements of a unit in order and in the engine's precision, ready to be read until zr_engine_release(),
 * which belongs to each call. Waits for what is still under way. The parameter with index i lies at
 * zr_engine_offset(engine, i) elements from the base of its unit. At stage 3 a collective. At every stage a
 * third unit at a time is ZR_ERR_INVALID. */
ZR_API zr_result zr_engine_gather(zr_engine *engine, unsigned unit, const void **base);
/* Of a unit that nobody has gathered it does nothing; zr_last_error() says so. */
ZR_API void zr_engine_release(zr_engine *engine, unsigned unit);
/* A hint that this unit is the next to be gathered: at stage 3 that begins now, behind the caller's work, if
 * there is room. The same calls on every rank. */
ZR_API zr_result zr_engine_prefetch(zr_engine *engine, unsigned unit);
/* Whether gathering of some unit is a collective: then all ranks read parameters, or none. */
ZR_API bool zr_engine_gathers(const zr_engine *engine);
/* SIZE_MAX: there is no such parameter. */
ZR_API size_t zr_engine_offset(const zr_engine *engine, size_t parameter);

/* Where the gradients of a unit are to be written, whole, with the layout and the precision of the
 * parameters; padding stays untouched. *accumulate tells whether to add to what is there. Then
 * zr_engine_reduce() hands them over: the reduction runs while the caller computes on. Each unit gets as many
 * gradients per step as it has gradient uses times micro-batches. ZR_ERR_INVALID, at every stage: a third
 * unit between the two calls at a time, a gradient too many, a unit handed over that was not asked for. */
ZR_API zr_result zr_engine_gradients(zr_engine *engine, unsigned unit, void **base, bool *accumulate);
ZR_API zr_result zr_engine_reduce(zr_engine *engine, unsigned unit);

/* What the caller multiplies its loss by in the next step; 1 but for fp16. */
ZR_API float zr_engine_loss_scale(const zr_engine *engine);

/* Before the first gradient of a step: the learning rate that the step will have, from which updates begin
 * that zr_offload.speculative_bytes allow. Where zr_engine_step() then gets another one, clips or skips, they
 * are undone and made again, if at all: leave the call out behind a step that was clipped or skipped, as the
 * next one often is. From a unit's last gradient until the step's end nobody gathers it: with
 * zr_offload.file it may be new already. zr_engine_verify_replicas() and zr_engine_verify_finite() undo what
 * has begun, and the step updates all. Without a call, or where nothing is allowed, nothing is speculated.
 * ZR_ERR_INVALID: in the middle of a step, or a rate below 0 or not finite. */
ZR_API zr_result zr_engine_speculate(zr_engine *engine, float rate);

struct zr_step_report {
    double gradient_norm; /* before clipping, without the loss scale; the same bits at every stage */
    float clip_scale;     /* 1: not clipped */
    float loss_scale;     /* that the gradients had */
    bool skipped;         /* fp16: a gradient is not finite, so nothing was updated */
    bool rolled_back;     /* a speculative update was not the right one, and was undone */
};

/* Ends a step: waits for the reductions, clips, updates, and starts the all-gather of the new parameters.
 * Collective. ZR_ERR_CORRUPT: the norm is not finite, and nothing was updated; the words name the parameter.
 * In fp16 that is a skipped step and no failure, until no smaller scale is left to try. Either way the
 * gradients are gone, and a step may follow. ZR_ERR_INVALID: gradients are missing, a unit is still gathered,
 * or the rate is below 0 or not finite. */
ZR_API zr_result zr_engine_step(zr_engine *engine, float rate, struct zr_step_report *report);

ZR_API enum zr_optimizer_kind zr_engine_optimizer(const zr_engine *engine);
ZR_API enum zr_precision zr_engine_precision(const zr_engine *engine);
ZR_API uint64_t zr_engine_steps_done(const zr_engine *engine); /* updates: skipped steps do not count */
ZR_API uint64_t zr_engine_elements(const zr_engine *engine);   /* of whole tensors, without padding */
ZR_API uint64_t zr_engine_padded_elements(const zr_engine *engine);

/* Checks that all ranks hold the same parameters. Collective. ZR_ERR_CORRUPT names a rank that differs. */
ZR_API zr_result zr_engine_verify_replicas(zr_engine *engine);
/* Names the first parameter that is not finite. ZR_OK: all are. ZR_ERR_CORRUPT: words name it. Local. */
ZR_API zr_result zr_engine_verify_finite(zr_engine *engine);

/* What this rank owns, for saving and loading, in the arena's memory: pieces of parameters without padding,
 * in global order. Each element of the model belongs to exactly one rank, at every stage. Of a column slice
 * every row is a piece.
 */
struct zr_shard_segment {
    uint64_t global_index; /* of the first element, in whole tensors one after the other */
    size_t count;          /* may be 0 */
    float *parameter;      /* its master, where parameters have two bytes */
    float *momentum;
    float *variance; /* NULL where the optimizer has none */
};
ZR_API size_t zr_engine_segments_count(const zr_engine *engine);
/* All zero: there is no such segment. */
ZR_API void zr_engine_segment(const zr_engine *engine, size_t index, struct zr_shard_segment *out);
/* Waits until nothing is under way, so that the segments may be read or written. */
ZR_API zr_result zr_engine_synchronize(zr_engine *engine);
/* After the segments were loaded: rounds the parameters from their masters and makes every replica whole
 * again from its owners. `steps_done` is the number of updates the loaded state has seen. Collective.
 * ZR_ERR_INVALID: in the middle of a step, or while a unit is gathered. */
ZR_API zr_result zr_engine_publish(zr_engine *engine, uint64_t steps_done);
/* The state of the loss scaling, for saving and loading. All ranks set the same, which must make sense:
 * ZR_ERR_INVALID. Without fp16 it is kept, and not used. */
ZR_API void zr_engine_scaling(const zr_engine *engine, struct zr_loss_scale *out);
ZR_API zr_result zr_engine_set_scaling(zr_engine *engine, const struct zr_loss_scale *scaling);

/* Saves parameters (in fp32), optimizer state, the number of steps and the loss scale as one safetensors file
 * with the parameters under their names, between steps. The bytes depend neither on the stage nor on the
 * number of ranks, so any may load them. Every rank writes its own part: the path must be the same on all of
 * them, and name the same file. Written aside (PATH.partial), synced, renamed: what was there stays until the
 * new file is whole. Memory is constant. Collective: the same result on every rank. ZR_ERR_IO with the cause.
 * The optimizer's tensors are "optimizer.momentum.NAME" and "optimizer.variance.NAME", so no parameter's name
 * may begin so, nor be empty or "__metadata__": zr_engine_create() refuses that, and two alike.
 * ZR_ERR_INVALID: the ranks differ in the path, or in what is to be saved, or are in the
 * middle of a step, or the engine has parts of tensors alone; no file is touched. */
ZR_API zr_result zr_engine_save(zr_engine *engine, const char *path);
/* Loads what an engine of the same parameter list and optimizer has saved, at any stage, precision and number
 * of ranks, and makes all replicas whole. The file is read and proved before anything changes. Collective.
 * ZR_ERR_INVALID: in the middle of a step, or while a unit is gathered. ZR_ERR_IO: no such file, or it cannot
 * be read. ZR_ERR_FORMAT: it is none of zr_engine_save(), of another list or optimizer, or damaged. After
 * ZR_ERR_CORRUPT alone, or with a peer lost, part of the values may be new, since the file has changed or
 * gone meanwhile: load again. */
ZR_API zr_result zr_engine_load(zr_engine *engine, const char *path);

/* ---- Models -------------------------------------------------------------------------------------------- */

/* A model is a row of modules, each of which reads what the one before it wrote: rows of numbers, one row per
 * token (or whatever the model's rows are). The first module reads the model's inputs; the last one writes a
 * loss per row. What a module keeps from forward to backward is a table of slots. A model knows neither
 * stages nor ranks: a trainer gathers the parameters that it reads, takes the memory that it writes, and
 * hands its gradients over, by the list of actions that zero/step/schedule.h makes. */

enum {
    ZR_MODULE_UNITS_MAX = 2,
    ZR_MODULE_SLOTS_MAX = 24,
    ZR_UNIT_PARAMETERS_MAX = 32,
    ZR_MODEL_INPUTS_MAX = 8
};

enum zr_slot_type {
    ZR_SLOT_ELEMENTS = 0, /* of the engine's precision */
    ZR_SLOT_FLOATS,       /* at every precision */
    ZR_SLOT_INTEGERS,     /* int32_t */
};
enum zr_slot_life {
    ZR_SLOT_KEPT = 0,   /* from forward to backward; under ZR_RECOMPUTE_FULL forward writes it again */
    ZR_SLOT_RECOMPUTED, /* kept under ZR_RECOMPUTE_NONE alone; else NULL, and backward does without */
    ZR_SLOT_TEMPORARY,  /* between zr_module_take() and zr_module_drop() */
};
struct zr_slot {
    const char *name; /* "attn.c_attn": where a value is not finite, an error says so */
    size_t columns;   /* of each row; 0: the module does without it */
    enum zr_slot_type type;
    enum zr_slot_life life;
    bool own_rows; /* it has this rank's rows alone: see struct zr_model.row_ranks */
};

/* What is kept from forward to backward. */
enum zr_recompute {
    ZR_RECOMPUTE_NONE,      /* all slots but temporary ones */
    ZR_RECOMPUTE_SELECTIVE, /* slots whose life is ZR_SLOT_KEPT */
    ZR_RECOMPUTE_FULL,      /* the input of a module that recomputes: its forward runs again in backward */
};

/* What one call of a module works on. Pointers are valid during the call. */
struct zr_module_pass {
    const struct zr_model *model;
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    size_t module;       /* of the model */
    unsigned part;       /* of the module, see zr_module_type.parts */
    size_t rows;         /* of this pass: the model's, or fewer in an evaluation */
    size_t own_rows;     /* of what modules hand on: rows / model->row_ranks */
    zr_comm *tensor;     /* zr_engine_options.tensor */
    void *const *inputs; /* [model->inputs_count] */
    const void *x; /* what the module before wrote, [own_rows, its output_columns]; NULL: the first module */
    void *y;       /* forward: [own_rows, output_columns]; NULL when only the slots are wanted */
    void **slots;  /* [type->slots_count]; NULL where a slot has no memory now */
    void *parameters[ZR_MODULE_UNITS_MAX][ZR_UNIT_PARAMETERS_MAX]; /* of the module's units, in list order */
    /* Backward alone. */
    void *gradients[ZR_MODULE_UNITS_MAX][ZR_UNIT_PARAMETERS_MAX]; /* written, or added to: */
    bool accumulate[ZR_MODULE_UNITS_MAX];
    const void *dy; /* gradient of y; NULL: the last module */
    void *dx;       /* gets the gradient of x; dy itself for a type with in_place; NULL: the first module */
    float scale;    /* the last module: gradients are of scale * sum of losses */
    float *losses;  /* the last module, forward and backward: [rows] */
    struct zr_activations *activations; /* zr_module_take()'s */
};

/* Memory for a temporary slot, of whole rows; in the order of the program, alike in every pass. */
ZR_API zr_result zr_module_take(struct zr_module_pass *pass, unsigned slot);
ZR_API void zr_module_drop(struct zr_module_pass *pass, unsigned slot);

/* What modules of one kind share. */
struct zr_module_type {
    const char *name; /* NULL: a module is called as its first unit is */
    size_t output_columns;
    zr_tag output_tag; /* checkpoint for what recomputation begins from, else activation */
    const struct zr_slot *slots;
    unsigned slots_count;
    const char *output_name;  /* of y, as a slot's; NULL: y is called as the module is */
    bool in_place;            /* dx takes the place of dy */
    bool recomputes;          /* ZR_RECOMPUTE_FULL keeps none of its slots */
    bool backward_reads_none; /* of the parameters: they are not gathered for it */
    /* Writes y and the slots; of the last module the losses. */
    zr_result (*forward)(struct zr_module_pass *pass);
    /* Writes dx and the gradients of the units' parameters. Of the last module without
     * parts it writes the losses too: in a training pass that has no forward of its own, so its slots hold
     * nothing yet. */
    zr_result (*backward)(struct zr_module_pass *pass);
    /* The last module, optional: what the model says after row `row` of x, [model->answer_count] of the
     * caller's own memory: copy_bytes() of the kernels brings it there. */
    zr_result (*answer)(struct zr_module_pass *pass, size_t row, float *out);
    /* More than 1: forward and backward are called so many times, once for each part of the module; forward
     * from part 0 on, backward back to it. A part reads one unit, that of the part before and one on, so no
     * more of them than that is gathered for it. Slots, and temporary ones that are taken, stay from part to
     * part. The last module runs forward through all parts, then backward. */
    unsigned parts;
    unsigned recomputed_parts; /* of them, those that write slots: the first ones */
};

struct zr_module {
    const struct zr_module_type *type;
    unsigned units[ZR_MODULE_UNITS_MAX]; /* whose parameters it reads; of none, its type has a name */
    unsigned units_count;                /* of a type with parts 1: units[0] is part 0's */
    char name[24];                       /* where its type has none; "": that of its first unit */
};

/* What a pass reads besides parameters: a micro-batch, or constants. Zero at first. */
struct zr_input {
    const char *name;
    size_t elements; /* in all */
    enum zr_slot_type type;
};

/* All of it belongs to the caller and outlives what is made of it. */
struct zr_model {
    struct zr_parameter_list list;
    const struct zr_module *modules; /* a unit has as many gradient uses as modules that read it */
    size_t modules_count;
    struct zr_input inputs[ZR_MODEL_INPUTS_MAX];
    unsigned inputs_count;
    size_t rows;          /* of a micro-batch */
    size_t rows_together; /* a pass of fewer rows has a multiple of these: tokens of a sequence; 0: 1 */
    /* Ranks of the tensor group that divide the rows of what modules hand on, in rank order (sequence
     * parallelism); they divide rows_together. 0: 1, every rank has all rows. */
    unsigned row_ranks;
    size_t answer_count; /* 0: none */
    const void *shape;   /* the model's own */
    /* Optional: fills the inputs that are constants. Only x, y and slots are missing in the pass. */
    zr_result (*prepare)(struct zr_module_pass *pass);
};

/* ---- Trainers ------------------------------------------------------------------------------------------ */

/* An engine, the activations of a model, and the one executor of a step's actions. As an engine it is used by
 * one thread, in the same order on every rank. */
typedef struct zr_trainer zr_trainer;

/* How the micro-batches of a step go through the stages of a pipeline: all that follows computes the same
 * sums in the same order, but for tensors that two stages share. */
enum zr_pipeline_schedule {
    ZR_PIPELINE_1F1B = 0, /* backward as early as it can be: stage i of p has p - i micro-batches at most */
    ZR_PIPELINE_NAIVE,    /* one micro-batch at a time, forward and backward */
    ZR_PIPELINE_GPIPE,    /* all of them forward, then all of them backward */
    /* Two stages per rank, placed as a V: down the ranks and up again. A rank has about half the activations
     * of 1F1B, since the micro-batches that it holds long in one stage it holds shortly in the other. */
    ZR_PIPELINE_VHALF,
    ZR_PIPELINE_SCHEDULES
};

enum { ZR_PIPELINE_PARTS_MOST = 4, ZR_PIPELINE_STAGES_MOST = 1024 };

/* The model's modules are cut into stages, which follow one another from rank to rank. */
struct zr_pipeline {
    zr_comm *comm; /* the ranks of the pipeline; borrowed. NULL: none, and this rank has the whole model */
    enum zr_pipeline_schedule schedule;
    /* Stages that each rank has, 1 to ZR_PIPELINE_PARTS_MOST; 0: 1, of VHALF 2. Stage s of more than one is
     * rank s % ranks's, of 1F1B, which then wants micro-batches that the ranks divide (interleaved); of VHALF
     * see there. Of other schedules 1. */
    unsigned interleave;
    /* Modules of each stage, in order, at least one each; copied. NULL: as equal as can be. */
    const size_t *modules;
    size_t bucket_bytes; /* a slot of what stages hand one another; 0: 256 KiB */
};

/* Where activation checkpoints are kept: what modules of type output_tag checkpoint write, until backward has
 * read it. Zeros: whole, in a contiguous pool of the arena. The bits of a run depend on none of this. */
struct zr_checkpoint_policy {
    bool partition; /* each rank of the tensor group keeps an equal part (Pa); one all-gather rebuilds it */
    zr_arena
        *host; /* they are copied to this arena (tag offload) and back, behind the computing; NULL: not */
    bool scattered; /* each is a block of the arena, and so are gradients: no pools */
    bool no_ring;   /* whole ones of the two above are blocks too, in place of buffers of constant size */
};

struct zr_trainer_options {
    size_t struct_bytes;                    /* its sizeof, or 0: see "Options" in alloc/zr.h */
    const struct zr_engine_options *engine; /* copied; the list is the model's, whatever it says */
    const struct zr_model *model;           /* borrowed */
    enum zr_recompute recompute;
    /* ZR_RECOMPUTE_FULL: so many modules that recompute do, the first ones; others keep all. 0: all of them
     */
    size_t recompute_modules;
    struct zr_checkpoint_policy checkpoints;
    struct zr_pipeline pipeline;
};
/* Collective, as zr_engine_create(), whose failures these are. ZR_ERR_INVALID: a model that contradicts
 * itself; the words say where. */
ZR_API zr_result zr_trainer_create(zr_trainer **out, const struct zr_trainer_options *options);
ZR_API void zr_trainer_destroy(zr_trainer *trainer);
/* The trainer's own: to save, load and look at it, not to gather or reduce. */
ZR_API zr_engine *zr_trainer_engine(zr_trainer *trainer);
/* Input number `input` of the model: [elements] of its type, the trainer's. NULL: there is none. Where the
 * host sees no tensors it is memory of the host's, which a pass copies when `load` has returned. */
ZR_API void *zr_trainer_input(zr_trainer *trainer, unsigned input);

/* What a step asks of its caller. */
struct zr_step_calls {
    void *state;
    /* Fills the inputs with micro-batch number `micro_batch` of the step. */
    zr_result (*load)(void *state, unsigned micro_batch);
    /* All gradients are under way: `loss` is the mean of this rank's rows over the step (0 in a dry run).
     * Sets the learning rate. Ranks may exchange what they like here. */
    zr_result (*update)(void *state, double loss, float *rate);
    /* NULL, or sets the learning rate. With it a trainer whose host sees no tensors asks for all of a step
     * before it waits for any of it: update() is called when the step's work has ended, its rate is not used,
     * and its failure ends a step that was made. */
    zr_result (*rate)(void *state, float *rate);
};
/* One step: every micro-batch forward and backward, then the update. Collective. ZR_ERR_CORRUPT: the loss or
 * a gradient is not finite; the words say where that arose. */
ZR_API zr_result zr_trainer_step(zr_trainer *trainer, const struct zr_step_calls *calls,
                                 struct zr_step_report *report);
/* The mean loss of the first `rows` rows of the inputs, forward alone. ZR_ERR_INVALID: rows that are none,
 * too many, or no multiple of the model's rows_together. At stage 3 a collective. */
ZR_API zr_result zr_trainer_evaluate(zr_trainer *trainer, size_t rows, double *loss);
/* What the model says after row `row` of the first `rows`: [answer_count]. ZR_ERR_INVALID as above, and of a
 * model that answers nothing. At stage 3 a collective. */
ZR_API zr_result zr_trainer_answer(zr_trainer *trainer, size_t rows, size_t row, float *out);

#ifdef __cplusplus
}
#endif

#endif
