/* zr_zero.h: the ZeRO engine, models and trainers. The engine decides where the parameters, gradients and
 * optimizer state of a model live and moves them between ranks; the model computes.
 *
 * Units. Parameters are grouped into units, which are gathered and reduced as a whole (a transformer block
 * is one unit). Within a unit each tensor starts on a multiple of 64 bytes. A unit is padded so that every
 * rank owns an equal, contiguous shard, a multiple of 256 bytes. Initial values depend on the global
 * element index, counted without padding, and therefore on neither stage nor world size.
 *
 * Stages. Stage 0 replicates everything, stage 1 shards the optimizer state, stage 2 also the gradients,
 * stage 3 also the parameters. A sharded unit needs buffers for the parts in transit. If these cost more
 * than sharding saves, the engine keeps the unit as the stage below does, so the blocks of a stage never
 * take more bytes than those of a lower stage; rounding to granules may add one granule in a small model.
 * The stage never changes results: losses are bit-identical at a fixed world size.
 *
 * Precision. fp32 takes 16 bytes per element: parameter, gradient, momentum, variance. In bf16 and fp16,
 * parameters and gradients take two bytes each, are sent in two bytes and summed in fp32. An fp32 master
 * of each parameter is then updated, saved and loaded. Gradients of several micro-batches accumulate in an
 * fp32 shard, which replaces the two-byte shard. In fp16 the caller multiplies its loss by
 * zr_engine_loss_scale(), and all ranks skip a step whose gradients overflow.
 *
 * Threads and errors. One thread uses an engine, with the same calls in the same order on every rank. An
 * invalid call returns ZR_ERR_INVALID and changes nothing; so does a NULL argument where an object is
 * required. Functions without a result accept a NULL engine and return 0, NULL or false.
 *
 * Byte plan. To plan a program, run its steps once on an arena of the sim backend, with zr_kernels_null()
 * and zr_comm_null_create(), without tag limits. The high-water marks of that arena
 * (zr_arena_get_high_water()) become the tag limits of the real arena (zr_arena_set_tag_limits()). An
 * engine call or a zr_arena_alloc() of the program that exceeds a limit then fails with ZR_ERR_TAG_LIMIT,
 * and the message names the call, the unit, the tag and the bytes. */
#ifndef ZR_ZERO_H
#define ZR_ZERO_H

#include "alloc/zr.h"
#include "kernels/zr_kernels.h"
#include "zero/comm/zr_comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The part of a tensor that an engine stores, if tensor parallelism splits the tensor over several
 * engines. The part starts at `first` and has the parameter's shape. Elements of the part beyond the whole
 * tensor are padding and stay zero. Initial values depend on the coordinates in the whole tensor. */
struct zr_tensor_part {
    size_t whole[2]; /* shape; whole[0] == 0: the parameter is the whole tensor */
    size_t first[2]; /* coordinates within a block */
    /* The last dimension consists of this many equal blocks, and the part has the same range of each: 3
     * for a matrix of q, k and v. 0: 1. */
    unsigned blocks;
    /* Another engine stores the same part; that engine saves it and counts it in norms. */
    bool copy;
    /* The gradient computed here is partial: the gradients of the ranks of zr_engine_options.tensor are
     * summed first. */
    bool sum_gradient;
    /* The gradient is also summed over the ranks of zr_engine_options.sharing, once per step, after all
     * other sums. */
    bool shared;
    /* Another part of the same tensor comes earlier in the list, under the same name; the tensor is
     * counted there. */
    bool continues;
};

struct zr_parameter {
    char name[64];   /* "h.0.attn.c_attn.weight": unique, except for parts of one tensor; zr_engine_save()
                      * lists reserved names */
    size_t shape[2]; /* shape of the stored part; shape[1] == 0: a vector */
    unsigned unit;   /* index into the units; parameters are sorted by unit */
    unsigned group;  /* index into zr_optimizer_options.groups */
    float init_mean, init_deviation;
    struct zr_tensor_part part;
    /* Number of the model's elements between the previous parameter of the list and this one that the list
     * leaves out (pipeline parallelism). Initial values and saved states use the model's numbering. */
    uint64_t left_out;
};

struct zr_unit {
    char name[24]; /* "h.0" */
    /* Gradients per micro-batch: 2 for a tied embedding, else 1. 0: the unit is frozen. Its parameters keep
     * their values, and it has no gradients, optimizer state and masters. */
    unsigned gradient_uses;
};
static inline bool zr_unit_is_frozen(const struct zr_unit *unit)
{
    return unit->gradient_uses == 0;
}

/* The model's parameters. zr_engine_create() copies the arrays. */
struct zr_parameter_list {
    const struct zr_parameter *parameters;
    size_t parameters_count;
    const struct zr_unit *units;
    size_t units_count;
    uint64_t left_out; /* elements that the list leaves out after the last parameter, see struct
                        * zr_parameter */
};

/* Number of stored elements, without padding. 0 on overflow and for NULL. */
ZR_API uint64_t zr_parameter_elements(const struct zr_parameter *parameter);
ZR_API uint64_t zr_parameter_list_elements(const struct zr_parameter_list *list);

/* Parameters with the same update factors. */
struct zr_parameter_group {
    float rate_factor;  /* multiplies the step's learning rate */
    float decay_factor; /* multiplies the weight decay */
    bool wide_state;    /* 8-bit optimizers keep the state of a unit that has such a tensor in fp32, and Muon
                         * treats such matrices as AdamW does: embeddings and heads */
};

/* The default groups: group 0 (vectors) without decay, all other groups (matrices) with decay, both at the
 * step's rate. */
enum { ZR_GROUP_NO_DECAY = 0, ZR_GROUP_DECAY = 1, ZR_GROUPS_MAX = 8 };

enum zr_optimizer_kind {
    ZR_OPTIMIZER_ADAMW = 0, /* momentum and variance, decoupled weight decay */
    ZR_OPTIMIZER_SGD,       /* momentum = momentum_factor * momentum + gradient + decay * parameter */
    ZR_OPTIMIZER_ADAMW8, /* AdamW with momentum and variance of 8 bits, see zr_update_adamw8. Tensors must be
                          * whole on a rank: no tensor parallelism */
    ZR_OPTIMIZER_MUON,   /* momentum, made orthogonal, for matrices of groups without wide_state; AdamW for
                          * the others, with beta1, beta2 and epsilon. Whole tensors; no speculative update */
    ZR_OPTIMIZER_ADAFACTOR, /* second moments by row and by column of a matrix, by element of a vector, and
                             * updates clipped by their root mean square; see zr_update_factored. Whole
                             * tensors; no speculative update */
    ZR_OPTIMIZER_LAMB, /* AdamW with the rate of each tensor times its trust ratio, see zr_update_lamb. Whole
                        * tensors; no speculative update */
    ZR_OPTIMIZERS_COUNT
};
#define ZR_OPTIMIZER_NAMES "adamw|sgd|adamw8|muon|adafactor|lamb" /* of the kinds, in order */

struct zr_optimizer_options {
    enum zr_optimizer_kind kind;
    float beta1, beta2;    /* AdamW: at least 0, below 1 */
    float epsilon;         /* AdamW: positive */
    float momentum_factor; /* SGD, Muon, Adafactor (0: no momentum): at least 0, below 1 */
    float weight_decay;
    float clip; /* maximum gradient norm; 0: no clipping */
    struct zr_parameter_group groups[ZR_GROUPS_MAX];
    unsigned groups_count; /* 0: the default groups above */
    /* Decay of an exponential moving average of the parameters, in fp32, which starts with their first
     * values: at least 0, below 1. The average is one more slot of the optimizer's state, saved as
     * "optimizer.average.NAME". 0: none. Excludes zr_offload.delayed. */
    float average_decay;
    float trust_min,
        trust_max; /* LAMB: limits of the trust ratio, at least 0; trust_max at least trust_min */
    /* LAMB with ZR_METHOD_ONEBIT: decay of the moving average of trust ratios in the warm-up, at least 0,
     * below 1; without that method 0. */
    float trust_average;
};

/* When the gradients of several micro-batches are reduced. */
enum zr_reduce_when {
    ZR_REDUCE_EACH = 0, /* after every gradient use; the sum is an fp32 shard */
    ZR_REDUCE_ONCE,     /* once per step, after accumulating locally; stages 0 and 1 only. Less traffic, other
                         * bits: bf16 and fp16 round each sum */
};

/* Loss scaling of fp16, which keeps small gradients from vanishing. 0 selects the default of a field. Zero
 * gradients never overflow, so ZR_LOSS_SCALE_MAX bounds the growth. */
#define ZR_LOSS_SCALE_MAX 0x1p32f
struct zr_loss_scaling {
    float initial;       /* default 2^16 */
    float least;         /* default 1 */
    unsigned window;     /* consecutive steps without overflow before the scale doubles; default 1000 */
    unsigned hysteresis; /* steps with overflow, since the scale last doubled, before it halves; each is
                          * skipped; default 2 */
    bool constant;       /* the scale never changes */
};

/* State of the loss scaling, saved and loaded with a run. */
struct zr_loss_scale {
    float scale;
    unsigned good_steps;      /* since the scale last changed or a step was skipped */
    unsigned hysteresis_left; /* skipped steps until the scale halves */
    unsigned skipped_in_row;
    uint64_t skipped_steps; /* since the first step */
};

enum { ZR_PREFETCH_MAX = 8 };

/* Optimizer state or parameters in a file, see struct zr_offload. The file is unlinked from the start. */
struct zr_offload_file {
    const char *folder;
    bool force;         /* accept a folder in memory (tmpfs), for tests */
    size_t align_bytes; /* block size of the device, a power of two; 0: 4096 */
    unsigned depth;     /* concurrent transfers; 0: measured at the start */
    unsigned buffers;   /* buffers for optimizer state, each as long as its largest unit: 3 to 16; 0: 3 */
    /* Receives messages for the user: features that the machine lacks, a stalled disk. NULL: no messages. */
    void (*log)(void *state, const char *words);
    void *log_state;
};
/* State that lives in host memory or a file instead of zr_engine_options.arena. Zeros: none. The bits of a
 * run stay the same, except with `delayed`.
 *
 * With `optimizer`, momentum, variance and masters (in fp32 too) live in `host`, under the tags optimizer and
 * master. At every stage the gradients of a step pass through staging; each reduced gradient is copied to
 * `host` (tag grad) and waits there for the norm. The host updates, and the new parameters are copied to the
 * arena concurrently with later updates and the next forward. ZR_ERR_INVALID with
 * several ranks: stage 0, where every rank updates everything, and ZR_REDUCE_ONCE, which keeps whole
 * gradients. */
struct zr_offload {
    zr_arena *host; /* host memory; NULL: no offload */
    bool optimizer;
    /* Requires `optimizer`. Masters, momentum and variance live in an unlinked file, and `host` has
     * buffers of the largest unit (tag offload). Borrowed for the engine's life. NULL: state lives in
     * `host`. zr_engine_create() returns ZR_ERR_IO if the folder cannot be used; the message says what to
     * do. zr_engine_segment() returns zeros. */
    const struct zr_offload_file *file;
    bool parameters; /* requires stage 3 and `optimizer`: shards of parameters live in `host` too (tag
                      * param) */
    /* Requires `optimizer`; changes the bits of a run. A thread applies a step's gradients while the next
     * step computes. The updated parameters wait in `host` (tag param) and are published when the next
     * step ends. zr_engine_save() waits for the update. */
    bool delayed;
    /* Requires `parameters`. Shards of parameters live in an unlinked file of their own, and `host` has a
     * buffer of the largest shard for each unit that may be gathered at a time (tag offload). Borrowed,
     * with the errors of `file`. NULL: the shards live in `host`. */
    const struct zr_offload_file *parameters_file;
    /* Fraction of all elements, 0 to 1, that stays device-resident: optimizer state, gradients and, with
     * `parameters`, parameters of as many consecutive units as fit within it. Excludes `delayed`. */
    double resident_share;
    /* Excludes `delayed`; keeps the bits of a run. A thread updates a unit as soon
     * as its gradients are reduced, before the norm is known, and rolls the update back if the norm
     * requires clipping or a skip; see zr_engine_speculate(). The value is the maximum number of bytes for
     * old values, in the arena of the state (tag offload) or, with `file`, in the file: 12 bytes per updated
     * element for AdamW, 8 for SGD, starting at the last unit. Units beyond it wait for the norm. 0: no
     * speculation. */
    size_t speculative_bytes;
};

/* What data-parallel ranks send packed (kernels/zr_kernels.h). Sums are in rank order, and all ranks compute
 * with the same unpacked parameters, while masters stay exact.
 *
 * Parameters (stages 1 to 3): the all-gather after an update, or the gathers of stage 3. Masters are then
 * separate from the parameters in fp32, too. Frozen units that are kept whole are sent as they are.
 * Gradients (stages 1 to 3): those of each micro-batch, or of the step, packed by their sender. With several
 * nodes in two hops: to the rank's peer within its node, where they are added, and from there between nodes.
 * Secondary shards (stage 3): each node keeps the parameters of sharded units once more, divided among its
 * ranks. The first gather of a unit after an update goes to all ranks, later ones stay within the node.
 *
 * Differences of parameters (stages 1 and 2, whole models with state on the device, no average): the
 * all-gather after an update sends masters minus parameters, and all ranks, the owner too, add them to their
 * parameters. What packing loses is in the next difference. A checkpoint has the parameters.
 *
 * The other methods of gradients send an approximation of gradient + error, and keep the difference as the
 * error of the next gradient, 4 bytes per element on every rank. They require fp32 or bf16, no offload and
 * whole models.
 *
 * Onebit is 1-bit AdamW: after warmup_steps steps of AdamW the variance stays. Stage 0 sends signs of
 * momentum, with errors of the owners of shards, too; stage 1 signs of gradients, and of the difference of
 * masters and parameters. Requires one of them, AdamW without average, and parameters that are not packed.
 * The variance is settled after 1 / (1 - beta2) steps.
 *
 * Zerone is 0/1 Adam, at stage 0 with AdamW without average: only some steps send gradients, in full
 * precision, and move the variance, none after warmup_steps; some send signs of momentum; the others are
 * local, and ranks then have parameters of their own. zr_engine_save() and
 * zr_engine_end_local_steps() end this with an exchange, as a step that sends signs does. A checkpoint has
 * the parameters before the local steps, and continues them on as many ranks. */
enum zr_compressed_kind { ZR_COMPRESSED_PARAMETERS, ZR_COMPRESSED_GRADIENTS, ZR_COMPRESSED_KINDS };
enum zr_compression_method {
    ZR_METHOD_PACKED = 0, /* `packing`, not ZR_PACKING_ONEBIT */
    ZR_METHOD_ONEBIT,
    ZR_METHOD_LOW_RANK, /* `parameter`: rank of the matrices that are sent; 0: an eighth of a gradient's
                         * smaller dimension, rounded up */
    ZR_METHOD_LARGEST,  /* `parameter`: share of the elements that are sent, above 0, below 1 */
    ZR_METHOD_ZERONE,   /* see `zerone` */
    ZR_METHODS_COUNT
};
struct zr_compression {
    struct {
        bool on;
        enum zr_packing packing;
        enum zr_compression_method method; /* parameters: ZR_METHOD_PACKED */
        float parameter;                   /* of the method */
        enum zr_packing between; /* gradients in two hops: of the hop between nodes; ZR_PACKING_ONEBIT: as
                                  * `packing` */
        bool differences;        /* parameters, see above */
    } kinds[ZR_COMPRESSED_KINDS];
    unsigned
        node_ranks; /* consecutive ranks of `comm` that form a node; 0: all, and no node is inside of it */
    bool secondary_shards;
    /* What a trainer's pipeline stages send: outputs, and gradients of outputs. ZR_PACKING_ONEBIT: as they
     * are. The receiver computes with the unpacked numbers, in recomputation and backward, too. */
    enum zr_packing activations[2];
    uint64_t warmup_steps; /* of gradients; not with ZR_METHOD_PACKED */
    /* ONEBIT and LOW_RANK with AdamW: above 0, the warm-up takes at least warmup_steps, and ends when the sum
     * of the variance is between settle_ratio and 1 / settle_ratio times that of 1 / (1 - beta2) steps ago;
     * at most 1. 0: it takes warmup_steps. */
    double settle_ratio;
    /* ZR_METHOD_ZERONE, each at least 1. The interval between steps in full precision doubles after so many
     * of them. After warmup_steps the interval between steps that send signs doubles every local_steps
     * steps, up to interval_max. */
    struct {
        uint64_t variance_updates, local_steps, interval_max;
    } zerone;
    /* Every check_steps steps the error of each kind is measured on one unit, another one each time: the norm
     * of what arrived minus what was meant, over the norm of what was meant, which is this rank's shard
     * before packing, or the exact sum of the unit's first gradients in the step. The exact sum is sent by a
     * communicator of its own, which zr_comm_counters of the engine's do not count. 0: never. A kind whose
     * error exceeds `tolerance` is sent in full precision from the next step on. 0: no error is too large.
     * Not with kernels whose tensors the host cannot access, nor with signs of momentum. */
    uint64_t check_steps;
    double tolerance;
};

/* The error of compression, equal on all ranks of `comm`, `tensor` and `pipeline`: the largest of their
 * units'. */
struct zr_compression_check {
    uint64_t steps;                           /* steps done at the last check; 0: none yet */
    double error[ZR_COMPRESSED_KINDS];        /* NaN: not measured, or the unit's numbers are zeros */
    uint64_t full_since[ZR_COMPRESSED_KINDS]; /* steps done when the kind exceeded the tolerance; 0: it has
                                                 not */
    uint64_t sent_bytes;                      /* by this rank, for exact sums */
    uint64_t warmup_steps; /* with settle_ratio: steps done when the warm-up ended; 0: it has not */
    double variance_ratio; /* with settle_ratio: at the last comparison; 0: none yet */
};

/* Memory that outlives the process, for ranks that are replaced when they die. The engine has its pools of
 * parameters, gradients and optimizer state there. When all ranks create the same engine on memory of earlier
 * processes (kill -9 at any point included), zr_engine_create() finishes the step that at least one rank had
 * begun to update, else returns to the end of the step before, and zr_engine_recovered() is true: at most one
 * step is lost, and the bits are those of an uninterrupted run. From zr_engine_create() to the next step, and
 * after a load, the memory has nothing of use.
 *
 * With options.backup the memory of a rank may be lost, too, unless that of the rank with its copy is lost at
 * the same time: all ranks then return to the newest step of which each one has its state or its copy, at
 * most two steps back. This takes two copies of another rank's state, and a log of this rank's state of the
 * step before.
 *
 * Excludes offload, compression, asynchronous pipelines, fp16,
 * scattered gradients, optimizers whose updates need all ranks, and tensors that the host cannot read. */
struct zr_kept_request {
    const char *name; /* of the memory, unique on the rank */
    zr_tag tag;
    size_t bytes;
};
struct zr_kept_memory {
    /* *out: memory of the name, with the contents that an earlier process left there, else zeros; aligned to
     * 64 bytes. The memory belongs to the caller of zr_engine_create(). NULL, in a dry run only: blocks of
     * the engine's arena. */
    zr_result (*take)(void *state, const struct zr_kept_request *request, void **out);
    void *state;
};

/* Groups of ranks that train apart, each a run of its own on other data (DiLoCo,
 * https://arxiv.org/abs/2311.08105). Every `period` steps the outer gradient, the parameters of the last
 * synchronisation minus those of now, is averaged over the groups, and SGD with Nesterov momentum applies the
 * mean to the parameters of the last synchronisation. All groups continue from these, each with its own
 * optimizer state. A rank exchanges the elements that it updates: at stages 1 to 3 its shard.
 *
 * The state of an element has two more floats, the parameter of the last synchronisation and the outer
 * momentum, saved as "optimizer.anchor.NAME" and "optimizer.outer_momentum.NAME". Frozen units are not
 * exchanged. ZR_ERR_INVALID with: fp16, whose groups skip different steps; a moving average; a delayed
 * update; stashed versions; compression with errors; differences of parameters; a state of tensors that the
 * host cannot read in a host tier; a delay and an offload file. */
enum { ZR_OUTER_FRAGMENTS_MAX = 64 };
struct zr_outer {
    zr_comm *comm;   /* the ranks with this rank's shards, in the order of groups; borrowed */
    unsigned period; /* steps; 0: no groups */
    unsigned
        fragments; /* of the units, exchanged in turn; divides `period`; 0: 1. More than 1: no pipeline */
    unsigned
        delay; /* steps before a synchronisation at which its exchange starts; below period / fragments */
    float rate, momentum; /* of the outer SGD; momentum below 1 */
    float mix; /* share of its own parameters that a group keeps at a synchronisation; at least 0, below 1 */
    enum zr_packing packing; /* of the outer gradients and of their mean; ZR_PACKING_ONEBIT: fp32 */
};

/* Parameter servers: other processes keep the masters and the optimizer's state of all trained tensors and
 * update them. The engine has parameters and gradients only, and calls, in the order of a step:
 *   pull  before a unit's first gather of a step, and after clock: fills the parameters of the unit's tensors
 *   push  after each gradient of a unit, or, with ZR_REDUCE_ONCE, after the last one of a step with the sum
 *         over micro-batches. A gradient that is not finite is not pushed, and the step fails
 *   clock at the end of a step that has pushed all gradients
 *   read, write  move state of a unit's tensors: of kind 0 the masters, of kind k slot k - 1 of the
 *         optimizer, in fp32. The engine writes initial and loaded values, and reads what is saved
 *
 * A thread of the engine makes the first three calls, while the step computes: a gather of a unit waits for
 * the unit's pull, and starts those of the next three units of the list; the next gradients of a unit and the
 * end of a step wait for the unit's push; a step ends after clock. No two calls run at once, and between
 * steps none runs. A failed call fails the next call of the engine that waits for it, and all later ones.
 *
 * The norm of a step is that of what this engine has pushed. ZR_ERR_INVALID: several ranks, a stage above 0,
 * tensors that the host cannot access, fp16, clipping, a moving average, groups (zr_outer), offload,
 * compression, kept memory, measures_squares, or an optimizer whose state is not floats by element. */
struct zr_server_tensor {
    size_t parameter, elements; /* index in the model's list */
    struct zr_numbers values;
};
struct zr_server_tensors {
    const struct zr_server_tensor *tensors;
    size_t count;
};
struct zr_servers {
    bool on;     /* false: none. The calls may be NULL with kernels that compute nothing */
    void *state; /* first argument of the calls; borrowed for the engine's life */
    zr_result (*pull)(void *state, const struct zr_server_tensors *to);
    zr_result (*push)(void *state, const struct zr_server_tensors *from);
    zr_result (*clock)(void *state, float rate);
    zr_result (*read)(void *state, unsigned kind, const struct zr_server_tensors *to);
    zr_result (*write)(void *state, unsigned kind, const struct zr_server_tensors *from);
};

struct zr_engine_options {
    size_t struct_bytes;               /* sizeof the struct, or 0: see "Options" in alloc/zr.h */
    zr_arena *arena;                   /* for tensors; any backend */
    zr_arena *host_arena;              /* for records: host memory, tag other */
    const struct zr_kernels *kernels;  /* zr_kernels_null() makes a dry run: placement and counts only */
    struct zr_kernel_context *context; /* borrowed for the engine's life */
    zr_comm *comm;                     /* data-parallel ranks; borrowed for the engine's life */
    struct zr_parameter_list list;
    unsigned stage;         /* 0 to 3 */
    unsigned micro_batches; /* per step; 0: 1. The caller weights each one by scaling its gradients */
    enum zr_reduce_when reduce;
    enum zr_precision precision;         /* of parameters and gradients; equal to the context's precision */
    struct zr_loss_scaling loss_scaling; /* used in fp16 only */
    uint64_t seed;
    struct zr_optimizer_options optimizer;
    /* Number of units that stage 3 gathers ahead of the unit in use, at most ZR_PREFETCH_MAX; 0: 1. */
    unsigned prefetch_distance;
    /* Tensor parallelism: the ranks with the other parts of the same tensors, at the same rank of their
     * `comm`. One gradient norm covers all parts. Borrowed. NULL: none. */
    zr_comm *tensor;
    /* Pipeline parallelism: `pipeline` has the ranks with the model's other tensors, `sharing` those of
     * them that share tensors with this rank (zr_tensor_part.shared). Borrowed. NULL: none. */
    zr_comm *pipeline, *sharing;
    /* Gradients have no contiguous pool: each unit's gradients are a block, from its first gradient of a
     * step to the step's end. These blocks may fill holes between activations and fragment the arena,
     * unless a placement plan prevents that. */
    bool scattered_gradients;
    struct zr_offload offload;
    /* For tensors that the host cannot read: kernels for offloaded state, in memory that both the host and
     * `kernels` can read. Borrowed, with an open context. NULL: `kernels` updates offloaded state in
     * `context`; offload.file requires host_kernels. offload.speculative_bytes and offload.parameters_file
     * are invalid for such tensors. */
    const struct zr_kernels *host_kernels;
    struct zr_kernel_context *host_context;
    /* Asynchronous pipelines: earlier versions of the parameters that are kept, 0: none / the ranks of
     * `pipeline` end a step at different times, so the gradients' norm is of this rank and `sharing` only. */
    unsigned stashed_versions;
    bool own_norm;
    struct zr_compression compression;
    /* Measure zr_engine_get_gradient_squares() in each step. Not with offload.delayed, nor with tensors whose
     * gradients are summed over tensor ranks (zr_tensor_part.sum_gradient), nor with methods that keep
     * errors, whose steps have errors of earlier ones. Ranks of `pipeline` wait for one another, with
     * own_norm, too. */
    bool measures_squares;
    /* Memory that outlives this process; NULL: none. Borrowed for the engine's life. See zr_kept_memory. */
    const struct zr_kept_memory *kept;
    struct zr_outer outer;
    /* With `kept`: a communicator of the ranks of `comm` in the same order, at least 2. After each step a
     * rank sends its state through it to rank + backup_distance, modulo the ranks, while the next step
     * computes, and zr_engine_create() also continues if the memory of some ranks is lost: see
     * zr_kept_memory. Borrowed. NULL: no copies. */
    zr_comm *backup;
    unsigned backup_distance; /* 0: 1; below the number of ranks */
    /* Keep memory for a copy of the state, which a thread can save while the next steps compute. Excludes
     * what has state elsewhere: offload, compression, stashed versions, outer steps, and tensors that the
     * host cannot read. */
    bool snapshots;
    struct zr_servers servers;
    /* The ranks of `comm` are threads of one process and keep whole parameters once, in the arena of rank 0,
     * which frees them after the other ranks have destroyed their engines or read no parameters any more.
     * Each rank updates a shard, at stage 0, too, with the bits of stage 0. Only at stages 0 to 2, without
     * offload, compression, kept, snapshots, servers, outer and stashed_versions, and with kernels that are
     * host_visible. */
    bool shares_parameters;
    /* Rank 0 of `comm` owns every shard: it sums the gradients of all ranks, updates all parameters and sends
     * them to the other ranks, which keep parameters and gradients only. Has the bits of stage 0. Only at
     * stage 0, without tensor, pipeline, offload, compression, kept, snapshots, servers, outer,
     * stashed_versions, speculative_bytes, measures_squares and shares_parameters, and with kernels that are
     * host_visible. */
    bool root_owns;
};

typedef struct zr_engine zr_engine;

/* Creates an engine: allocates all persistent memory, initializes the parameters, zeroes the optimizer
 * state and compares checksums of all replicas. Collective. On success *out owns the engine until
 * zr_engine_destroy(). ZR_ERR_INVALID: an unknown stage, group or optimizer, an empty list, units out of
 * order, a number out of range, ZR_REDUCE_ONCE above stage 1, a context of another precision.
 * ZR_ERR_MEMORY: the arena is too small. */
ZR_API zr_result zr_engine_create(zr_engine **out, const struct zr_engine_options *options);
ZR_API void zr_engine_destroy(zr_engine *engine);
/* Whether the engine continues with the contents of options.kept; zr_engine_steps_done() tells from where. */
ZR_API bool zr_engine_recovered(const zr_engine *engine);
/* Copies to other ranks with options.backup; zeros without. */
struct zr_backup_report {
    uint64_t image_bytes; /* of this rank's state: sent and received by each copy */
    uint64_t count;       /* copies that are whole */
    uint64_t waited_ns;   /* time that the step's thread waited for copies */
};
ZR_API void zr_engine_get_backup_report(zr_engine *engine, struct zr_backup_report *out);

/* Gathers a unit: *base points to its elements, in list order and the engine's precision, valid until the
 * matching zr_engine_release(). Parameter i starts at element zr_engine_offset(engine, i) of *base. Waits
 * for pending updates of the unit. Collective at stage 3. ZR_ERR_INVALID: two other units are gathered
 * already (at every stage). */
ZR_API zr_result zr_engine_gather(zr_engine *engine, unsigned unit, const void **base);
/* Releases a gathered unit. If the unit is not gathered, the call has no effect except a message in
 * zr_last_error(). */
ZR_API void zr_engine_release(zr_engine *engine, unsigned unit);
/* Hints that this unit is gathered next. Stage 3 starts the gather now, concurrently with the caller's
 * work, if a buffer is free. Every rank makes the same calls. */
ZR_API zr_result zr_engine_prefetch(zr_engine *engine, unsigned unit);
/* Whether gathering any unit is a collective. If true, either all ranks read parameters or none does. */
ZR_API bool zr_engine_gathers(const zr_engine *engine);
/* The parameter's first element within its unit. SIZE_MAX: no parameter has this index. */
ZR_API size_t zr_engine_offset(const zr_engine *engine, size_t parameter);

/* *base is where the caller writes the gradients of a whole unit, in the layout and precision of the
 * parameters, without touching padding. If *accumulate is true, the caller adds to the existing values.
 * zr_engine_reduce() then hands the gradients over and reduces them concurrently with the caller's work.
 * Each unit gets gradient_uses x micro_batches gradients per step. ZR_ERR_INVALID, at every stage: a third
 * unit between the two calls, a surplus gradient, reduce without gradients. */
ZR_API zr_result zr_engine_gradients(zr_engine *engine, unsigned unit, void **base, bool *accumulate);
ZR_API zr_result zr_engine_reduce(zr_engine *engine, unsigned unit);

/* Factor for the loss of the next step; 1 except in fp16. */
ZR_API float zr_engine_loss_scale(const zr_engine *engine);

/* Allows speculative updates in this step (zr_offload.speculative_bytes) at the learning rate that
 * zr_engine_step() will get. Call it before the first gradient of the step. If zr_engine_step() gets
 * another rate, clips or skips, it rolls the updates back and repeats them if necessary. After a clipped
 * or skipped step the next one is often clipped too, so do not call this function then. Between a unit's
 * last gradient and the step's end the unit must not be gathered: with zr_offload.file it may be updated
 * already. zr_engine_verify_replicas() and zr_engine_verify_finite() roll speculative updates back; the
 * step then updates everything. Without this call nothing is speculated. ZR_ERR_INVALID: in the middle of
 * a step, or a negative or non-finite rate. */
ZR_API zr_result zr_engine_speculate(zr_engine *engine, float rate);

struct zr_step_report {
    double gradient_norm; /* before clipping, without the loss scale; bit-identical at every stage */
    float clip_scale;     /* 1: not clipped */
    float loss_scale;     /* loss scale of the gradients */
    bool skipped;         /* fp16 only: a gradient overflowed and nothing was updated */
    bool rolled_back;     /* a speculative update was rolled back */
};

/* Sums of squares of the last step's gradients, before clipping and without the loss scale, of the units with
 * one gradient per micro-batch that no two pipeline ranks share: `small`, of the gradient of a rank's first
 * micro-batch, the mean over ranks; `large`, of the step's gradient. From two sizes of batch follows the
 * gradient noise scale (McCandlish et al. 2018, appendix A.1). NaN: not measured, or a skipped step. */
struct zr_gradient_squares {
    double small, large;
};
ZR_API void zr_engine_get_gradient_squares(const zr_engine *engine, struct zr_gradient_squares *out);

/* Zeros and NaN without checks. */
ZR_API void zr_engine_get_compression_check(const zr_engine *engine, struct zr_compression_check *out);

/* Ends a step: waits for the reductions, clips, updates, and starts the all-gather of the new parameters.
 * Collective. ZR_ERR_CORRUPT: the norm is not finite and nothing was updated; the message names the
 * parameter. fp16 reports a skipped step instead, until the scale has reached its minimum. In both cases
 * the gradients are dropped and a new step may begin. ZR_ERR_INVALID: gradients are missing, a unit is
 * still gathered, or the rate is negative or not finite. */
ZR_API zr_result zr_engine_step(zr_engine *engine, float rate, struct zr_step_report *report);

ZR_API enum zr_optimizer_kind zr_engine_optimizer(const zr_engine *engine);
ZR_API enum zr_precision zr_engine_precision(const zr_engine *engine);
ZR_API uint64_t zr_engine_steps_done(const zr_engine *engine); /* number of updates, without skipped steps */
ZR_API uint64_t zr_engine_elements(const zr_engine *engine); /* elements of whole tensors, without padding */
ZR_API uint64_t zr_engine_padded_elements(const zr_engine *engine);

/* After local steps (ZR_METHOD_ZERONE) makes the parameters of all ranks the same, as a step that sends signs
 * does; else it does nothing. Later steps have other bits than without this call. Collective.
 * ZR_ERR_INVALID: in the middle of a step, or a unit is gathered. */
ZR_API zr_result zr_engine_end_local_steps(zr_engine *engine);
/* Compares the parameters of all ranks, which differ after local steps. Collective. ZR_ERR_CORRUPT: the
 * message names a rank that differs. */
ZR_API zr_result zr_engine_verify_replicas(zr_engine *engine);
/* Looks for parameters that are not finite. Local. ZR_ERR_CORRUPT: the message names the first one. */
ZR_API zr_result zr_engine_verify_finite(zr_engine *engine);

/* A contiguous range of elements that this rank owns, in the arena, for saving and loading. Segments have
 * no padding and are sorted by global index. Each element of the model belongs to exactly one rank, at
 * every stage. Each row of a column slice is a segment. */
struct zr_shard_segment {
    uint64_t global_index; /* of the first element, counted over whole tensors in model order */
    size_t count;          /* may be 0 */
    float *parameter;      /* in two-byte precisions the master; NULL there in a frozen unit */
    float *momentum;       /* NULL in a frozen unit */
    float *variance;       /* NULL: the optimizer has none, or a frozen unit */
};
ZR_API size_t zr_engine_segments_count(const zr_engine *engine);
/* The segment with this index; all zero if the index is out of range. */
ZR_API void zr_engine_segment(const zr_engine *engine, size_t index, struct zr_shard_segment *out);
/* Waits for all pending operations; segments may then be read and written. */
ZR_API zr_result zr_engine_synchronize(zr_engine *engine);
/* Publishes loaded segments: rounds the parameters from their masters and sends them to every replica.
 * `steps_done` is the number of updates of the loaded state. Collective. ZR_ERR_INVALID: in the middle of
 * a step, or a unit is gathered. */
ZR_API zr_result zr_engine_publish(zr_engine *engine, uint64_t steps_done);
/* Exchanges parameters and their moving average, or with groups the parameters of the last synchronisation,
 * so that gathers, evaluations and exports read these. A second call exchanges them back, with the bits that
 * they had; until then the engine must not step, save or load. Collective. ZR_ERR_INVALID: there is neither,
 * in the middle of a step, or a unit is gathered. */
ZR_API zr_result zr_engine_exchange_average(zr_engine *engine);
/* State of the loss scaling, for saving and loading. All ranks set the same state. ZR_ERR_INVALID: an
 * inconsistent state. Precisions other than fp16 keep the state without using it. */
ZR_API void zr_engine_scaling(const zr_engine *engine, struct zr_loss_scale *out);
ZR_API zr_result zr_engine_set_scaling(zr_engine *engine, const struct zr_loss_scale *scaling);

/* Saves the parameters (in fp32), the optimizer state, the number of steps and the loss scale as one
 * safetensors file, between steps. Tensors are stored under their parameter's name,
 * "optimizer.momentum.NAME", "optimizer.variance.NAME" and so on. The bytes depend on neither stage nor
 * number of ranks. Every rank writes its part, so the path must name the same file on all ranks. The data
 * goes to PATH.partial, is synced and renamed; an existing file stays until then. Memory use is constant.
 * Collective, with the same result on every rank. zr_engine_create() rejects parameter names that are
 * empty, "__metadata__", duplicates, or start with "optimizer.". A frozen parameter has no optimizer state in
 * the file. ZR_ERR_IO: the message has the cause. ZR_ERR_INVALID, without touching a file: ranks differ in
 * path or state, a step is in progress, or the engine only has parts of tensors. */
ZR_API zr_result zr_engine_save(zr_engine *engine, const char *path);
/* Loads a file of zr_engine_save() that was written for the same parameter list and optimizer, at any
 * stage, precision and number of ranks, and publishes it. The file is read and verified before the engine
 * changes. Collective. ZR_ERR_INVALID: in the middle of a step, or a unit is gathered. ZR_ERR_IO: the file
 * does not exist or cannot be read. ZR_ERR_FORMAT: not a file of zr_engine_save(), another list or
 * optimizer, or damaged. After ZR_ERR_CORRUPT (the file changed while it was read) or the loss of a peer,
 * part of the values may be new: load again. */
ZR_API zr_result zr_engine_load(zr_engine *engine, const char *path);

/* ---- Models -------------------------------------------------------------------------------------------- */

/* A model is a sequence of modules. Each module reads the output of the previous one, a matrix with one
 * row per token (or per sample). The first module reads the model's inputs, the last one writes a loss per
 * row. A table of slots lists the values that a module keeps from forward to backward. Models know neither
 * stages nor ranks: a trainer executes the list of actions from zero/step/schedule.h, gathers parameters,
 * allocates outputs and hands gradients over. */

enum {
    ZR_MODULE_UNITS_MAX = 2,
    ZR_MODULE_SLOTS_MAX = 40,
    ZR_UNIT_PARAMETERS_MAX = 40,
    ZR_MODEL_INPUTS_MAX = 8
};

enum zr_slot_type {
    ZR_SLOT_ELEMENTS = 0, /* in the engine's precision */
    ZR_SLOT_FLOATS,       /* fp32 at every precision */
    ZR_SLOT_INTEGERS,     /* int32_t */
};
enum zr_slot_life {
    ZR_SLOT_KEPT = 0,   /* kept from forward to backward; under ZR_RECOMPUTE_FULL written again before
                         * backward */
    ZR_SLOT_RECOMPUTED, /* kept under ZR_RECOMPUTE_NONE only; else NULL, and backward works without it */
    ZR_SLOT_TEMPORARY,  /* allocated from zr_module_take() to zr_module_drop() */
};
struct zr_slot {
    const char *name; /* "attn.c_attn": used in errors about non-finite values */
    size_t columns;   /* per row; 0: unused in this module */
    enum zr_slot_type type;
    enum zr_slot_life life;
    bool own_rows; /* the slot has this rank's rows only: see zr_model.row_ranks */
};

/* Which slots are kept from forward to backward. */
enum zr_recompute {
    ZR_RECOMPUTE_NONE,      /* all except temporary ones */
    ZR_RECOMPUTE_SELECTIVE, /* those with life ZR_SLOT_KEPT */
    ZR_RECOMPUTE_FULL,      /* none; a recomputing module keeps its input, and its forward runs again
                             * before backward */
};

/* Arguments of one call of a module. Pointers are valid during the call. */
struct zr_module_pass {
    const struct zr_model *model;
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    size_t module;       /* index in the model */
    unsigned part;       /* part of the module, see zr_module_type.parts */
    size_t rows;         /* rows of this pass: the model's, or fewer in an evaluation */
    size_t own_rows;     /* rows of x and y: rows / model->row_ranks */
    zr_comm *tensor;     /* zr_engine_options.tensor */
    bool trains;         /* a step's forward or backward; false: an evaluation or an answer */
    void *const *inputs; /* [model->inputs_count] */
    const void *x; /* output of the previous module, [own_rows, its output_columns]; NULL: first module */
    void *y;       /* forward: [own_rows, output_columns]; NULL: only the slots are needed */
    void **slots;  /* [type->slots_count]; NULL: the slot is not allocated */
    void *parameters[ZR_MODULE_UNITS_MAX][ZR_UNIT_PARAMETERS_MAX]; /* parameters of the module's units, in
                                                                    * list order */
    /* Backward only. NULL: the parameter is frozen. */
    void *gradients[ZR_MODULE_UNITS_MAX][ZR_UNIT_PARAMETERS_MAX]; /* overwritten, or added to: */
    bool accumulate[ZR_MODULE_UNITS_MAX];
    const void *dy; /* gradient of y; NULL: last module */
    void *dx;       /* receives the gradient of x; equals dy for a type with in_place; NULL: first module */
    float scale;    /* last module: the gradients are those of scale * sum of losses */
    float *losses;  /* last module, forward and backward: [rows] */
    struct zr_activations *activations; /* used by zr_module_take() */
    zr_comm *ring;                      /* zr_trainer_options.ring */
    bool
        splits; /* backward: compute only dx; `weights` follows, which reads x and the slots left allocated */
};

/* Allocates and frees a temporary slot of all rows. Every pass makes the same calls in the same order. */
ZR_API zr_result zr_module_take(struct zr_module_pass *pass, unsigned slot);
ZR_API void zr_module_drop(struct zr_module_pass *pass, unsigned slot);

/* Properties and functions of all modules of one kind. */
struct zr_module_type {
    const char *name; /* NULL: a module has the name of its first unit */
    size_t output_columns;
    zr_tag output_tag; /* checkpoint if recomputation starts from y, else activation */
    const struct zr_slot *slots;
    unsigned slots_count;
    const char *output_name;  /* name of y in errors; NULL: the module's name */
    bool in_place;            /* dx overwrites dy */
    bool recomputes;          /* ZR_RECOMPUTE_FULL drops its slots */
    bool backward_reads_none; /* backward reads no parameters, so they are not gathered for it */
    /* Writes y and the slots; the last module writes the losses instead of y. */
    zr_result (*forward)(struct zr_module_pass *pass);
    /* Writes dx and, unless pass->splits, the gradients of the units' parameters. A last module without parts
     * also writes the losses: a training pass calls only its backward, so its slots are empty. */
    zr_result (*backward)(struct zr_module_pass *pass);
    /* Optional, last module only: the model's output for row `row` of x, [model->answer_count], copied to
     * the caller's memory with copy_bytes() of the kernels. */
    zr_result (*answer)(struct zr_module_pass *pass, size_t row, float *out);
    /* If above 1, forward is called once per part in ascending order, backward in descending order. A part
     * reads one unit, either the unit of the previous part or the next one, so only that unit is gathered.
     * Slots and taken temporary slots persist across the parts. The last module runs forward for all
     * parts, then backward. */
    unsigned parts;
    unsigned recomputed_parts; /* the first parts, which write slots */
    /* Optional, for a module with one part: writes the gradients of the units' parameters after a backward
     * with pass->splits, perhaps after other micro-batches, which use other slots. Reads no parameters; dx
     * and dy are NULL. Same bits as a backward that does not split. NULL: backward never splits. */
    zr_result (*weights)(struct zr_module_pass *pass);
};

struct zr_module {
    const struct zr_module_type *type;
    unsigned units[ZR_MODULE_UNITS_MAX]; /* units whose parameters it reads; a module without units
                                          * requires type->name */
    unsigned units_count;                /* if type->parts is above 1, units[0] belongs to part 0 */
    char name[24];                       /* used if type->name is NULL; "": the name of the first unit */
    /* Not NULL: a pass has the parameters of all units in one table. Parameter p of units[i] is
     * parameters[0][places[i][p]], likewise its gradient, and accumulate[0] is that of the unit that is not
     * frozen. At most one unit is not frozen. */
    const unsigned char (*places)[ZR_UNIT_PARAMETERS_MAX];
};

/* Data that a pass reads besides parameters: a micro-batch, or constants. Initially zero. */
struct zr_input {
    const char *name;
    size_t elements; /* in total */
    enum zr_slot_type type;
};

/* The caller owns the model and everything it points to. The model must outlive its trainers. */
struct zr_model {
    struct zr_parameter_list list;
    const struct zr_module *modules; /* a unit has one gradient use per module that reads it, unless frozen */
    size_t modules_count;
    struct zr_input inputs[ZR_MODEL_INPUTS_MAX];
    unsigned inputs_count;
    size_t rows;          /* rows of a micro-batch */
    size_t rows_together; /* every pass has a multiple of this many rows, such as the tokens of a sequence;
                           * 0: 1 */
    /* Sequence parallelism: number of ranks of the tensor group that divide the rows of x and y, in rank
     * order; a divisor of rows_together. 0 or 1: every rank has all rows. */
    unsigned row_ranks;
    size_t answer_count; /* numbers per answer; 0: no answers */
    const void *shape;   /* the model's private data */
    /* Optional: fills constant inputs. In the pass x, y and slots are not set. */
    zr_result (*prepare)(struct zr_module_pass *pass);
};

/* ---- Trainers ------------------------------------------------------------------------------------------ */

/* A trainer combines an engine, the activations of a model and the executor of a step's actions. One
 * thread uses a trainer, with the same calls in the same order on every rank. */
typedef struct zr_trainer zr_trainer;

/* Order in which the micro-batches of a step pass the pipeline stages. All schedules compute the same sums
 * in the same order, except for tensors that two stages share. */
enum zr_pipeline_schedule {
    ZR_PIPELINE_1F1B = 0, /* backward as early as possible: stage i of p holds at most p - i micro-batches */
    ZR_PIPELINE_NAIVE,    /* one micro-batch at a time, forward and backward */
    ZR_PIPELINE_GPIPE,    /* all micro-batches forward, then all backward */
    /* Two stages per rank, placed as a V: ascending ranks for the first half, descending for the second.
     * Needs about half the activations of 1F1B: a rank holds a micro-batch long in one of its stages and
     * briefly in the other. */
    ZR_PIPELINE_VHALF,
    /* Zero bubble: backward computes the gradient of a stage's input first; the gradients of parameters
     * follow when the rank would be idle. The module types say which modules do (`weights`). */
    ZR_PIPELINE_ZB_H1, /* the stages of 1F1B; holds at most p micro-batches */
    ZR_PIPELINE_ZB_V,  /* the stages of VHALF; holds at most 2 p halves */
    /* Asynchronous: the pipeline is not drained between steps, see zr_trainer_expect_steps(). Gradients are
     * of earlier versions of the parameters, which a rank keeps. One stage per rank; gradients are clipped by
     * the norm of each rank's stage and of the stages that share tensors with it. Not with stage 3, a delayed
     * or speculative update, or fp16. */
    ZR_PIPELINE_2BW, /* one update per step, of at least p micro-batches; two versions */
    /* Steps of one micro-batch; stage i of p has p - i versions, with `vertical_sync` p. No tied tensors. */
    ZR_PIPELINE_PIPEDREAM,
    ZR_PIPELINE_SCHEDULES
};

enum { ZR_PIPELINE_PARTS_MAX = 4, ZR_PIPELINE_STAGES_MAX = 1024 };

/* A pipeline divides the model's modules into consecutive stages, placed on consecutive ranks. */
struct zr_pipeline {
    zr_comm *comm; /* the ranks of the pipeline; borrowed. NULL: no pipeline */
    enum zr_pipeline_schedule schedule;
    /* Stages per rank, 1 to ZR_PIPELINE_PARTS_MAX. 0: 2 for VHALF and ZB_V, else 1. Above 1, 1F1B
     * interleaves: stage s is on rank s % ranks, and the number of micro-batches must be a multiple of the
     * number of ranks. The other schedules take 1. */
    unsigned interleave;
    /* PIPEDREAM: a micro-batch reads the same version on all stages, the newest of stage 0 when it began. */
    bool vertical_sync;
    /* Modules per stage, at least one each; copied. NULL: as equal as possible. */
    const size_t *modules;
    size_t bucket_bytes; /* size of a message slot between stages; 0: 256 KiB */
};

/* Placement of activation checkpoints: outputs with output_tag checkpoint, kept until backward has read
 * them. Zeros: whole, in a contiguous pool of the arena. None of this changes the bits of a run. */
struct zr_checkpoint_policy {
    bool partition; /* each rank of the tensor group keeps an equal part (Pa); an all-gather rebuilds the
                     * checkpoint */
    zr_arena *host; /* offload: copy checkpoints to this arena (tag offload) and back concurrently with
                     * computing; NULL: no offload */
    bool scattered; /* checkpoints and gradients are separate blocks of the arena, without pools */
    bool no_ring;   /* whole checkpoints of `partition` and `host` are blocks too, instead of constant-size
                     * buffers */
};

struct zr_trainer_options {
    size_t struct_bytes;                    /* sizeof the struct, or 0: see "Options" in alloc/zr.h */
    const struct zr_engine_options *engine; /* copied; its list is replaced by the model's */
    const struct zr_model *model;           /* borrowed for the trainer's life */
    enum zr_recompute recompute;
    /* ZR_RECOMPUTE_FULL only: number of recomputing modules, from the first; the others keep all slots. 0:
     * all recompute. */
    size_t recompute_modules;
    struct zr_checkpoint_policy checkpoints;
    struct zr_pipeline pipeline;
    /* The context ranks, each of which has a part of every sequence; borrowed. The model's passes use it.
     * NULL: one. They are also ranks of the engine's `comm`. */
    zr_comm *ring;
};
/* Creates a trainer. Collective, with the errors of zr_engine_create(). ZR_ERR_INVALID: inconsistent
 * model; the message names the module or field. The trainer of a model whose units are all frozen evaluates
 * and answers only. On success *out owns the trainer until zr_trainer_destroy(). */
ZR_API zr_result zr_trainer_create(zr_trainer **out, const struct zr_trainer_options *options);
ZR_API void zr_trainer_destroy(zr_trainer *trainer);
/* The trainer's engine, for saving, loading and inspection. Do not gather or reduce with it. */
ZR_API zr_engine *zr_trainer_engine(zr_trainer *trainer);
/* Input number `input` of the model: [elements], owned by the trainer. NULL: out of range. If the host
 * cannot read tensors, the input is host memory, and a pass copies it after `load` returns. */
ZR_API void *zr_trainer_input(zr_trainer *trainer, unsigned input);

/* Callbacks of a step. */
struct zr_step_calls {
    void *state;
    /* Fills the inputs with micro-batch `micro_batch` of the step. From the step's number of micro-batches
     * on, with an asynchronous pipeline: a micro-batch of the steps that follow. */
    zr_result (*load)(void *state, unsigned micro_batch);
    /* Called after the last backward, while reductions run. `loss` is the mean over this rank's rows of
     * the step (0 in a dry run). Sets the learning rate. Ranks may communicate here. */
    zr_result (*update)(void *state, double loss, float *rate);
    /* Optional: sets the learning rate. With it, a trainer whose tensors the host cannot read enqueues the
     * whole step before it waits. update() is then called after the step has finished: its rate is
     * ignored, and its error ends a step that was already applied. */
    zr_result (*rate)(void *state, float *rate);
};
/* Runs one step: forward and backward of every micro-batch, then the update. Collective. ZR_ERR_CORRUPT:
 * the loss or a gradient is not finite; the message names the module where this began. ZR_ERR_INVALID: also
 * if all units are frozen. */
ZR_API zr_result zr_trainer_step(zr_trainer *trainer, const struct zr_step_calls *calls,
                                 struct zr_step_report *report);
/* With an asynchronous pipeline: says that at least `steps` steps follow the next one, without other calls
 * between them. Their first micro-batches begin during the next step; a step that no step follows drains the
 * pipeline. Valid for one step, default 0. Once fewer steps were announced than the pipeline could begin, the
 * count falls by one with each step until 0. Every rank announces the same. */
ZR_API void zr_trainer_expect_steps(zr_trainer *trainer, unsigned steps);
/* Whether no micro-batch of a later step has begun, on any rank, which evaluations and answers require, and
 * no exchange of groups is under way. Saves require both. */
ZR_API bool zr_trainer_is_drained(const zr_trainer *trainer);
/* Mean loss of the first `rows` rows of the inputs, forward only. Collective at stage 3. ZR_ERR_INVALID:
 * `rows` is 0, too large, or not a multiple of the model's rows_together. */
ZR_API zr_result zr_trainer_evaluate(zr_trainer *trainer, size_t rows, double *loss);
/* The model's answer for row `row` of the first `rows` rows: [answer_count]. Collective at stage 3. With
 * several context ranks every rank calls it and has the answer; `row` is ZR_ROW_ELSEWHERE on all but one.
 * ZR_ERR_INVALID: as zr_trainer_evaluate(), or a model without answers. */
#define ZR_ROW_ELSEWHERE SIZE_MAX
ZR_API zr_result zr_trainer_answer(zr_trainer *trainer, size_t rows, size_t row, float *out);

#ifdef __cplusplus
}
#endif

#endif
