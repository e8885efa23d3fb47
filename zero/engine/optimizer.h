/* optimizer.h: the optimizers as a table: the numbers that each one takes, the state that it keeps beside the
 * masters, what it needs of tensors and ranks, and its update. A new optimizer is a value of enum
 * zr_optimizer_kind with its name in ZR_OPTIMIZER_NAMES, a row of optimizer.c and, if need be, a kernel:
 * checks, options, help, refusals, reports and tests read the row. Private to engine/, checkpoint/, ps/ and
 * train/. */
#ifndef ZR_ENGINE_OPTIMIZER_H
#define ZR_ENGINE_OPTIMIZER_H

#include "zero/zr_zero.h"

enum { ZR_SLOTS_MAX = 5 };

/* What an optimizer's state has in its last slots, which updates of the optimizer do not use: nothing; the
 * moving average of zr_optimizer_options.average_decay; the parameters of the last synchronisation of groups
 * and the outer momentum, see outer.h. The number of slots is the value. */
enum zr_keeps { ZR_KEEPS_NOTHING = 0, ZR_KEEPS_AVERAGE, ZR_KEEPS_ANCHOR, ZR_KEEPS_COUNT };

/* Numbers of struct zr_optimizer_options that an optimizer may take. */
enum zr_number_kind {
    ZR_NUMBER_BETA1 = 0,
    ZR_NUMBER_BETA2,
    ZR_NUMBER_EPSILON,
    ZR_NUMBER_MOMENTUM,
    ZR_NUMBER_TRUST_MIN,
    ZR_NUMBER_TRUST_MAX,
    ZR_NUMBER_TRUST_AVERAGE,
    ZR_NUMBERS_COUNT
};
struct zr_optimizer_number {
    const char *name;   /* of the field: "momentum_factor" */
    const char *option; /* of zr-train, without dashes: "momentum"; NULL: none */
    size_t offset;      /* of a float in struct zr_optimizer_options */
    float min, max;
    bool excludes_max; /* `max` itself is excluded */
};
extern const struct zr_optimizer_number zr_optimizer_numbers[ZR_NUMBERS_COUNT];

/* A number as an optimizer takes it. */
struct zr_taken_number {
    bool taken;
    float fallback; /* default of zr-train */
};

/* State of the elements that the rank updates, in blocks of consecutive elements. */
struct zr_optimizer_slot {
    const char *name; /* "momentum": saved as "optimizer.momentum.NAME" */
    unsigned block_elements, block_bytes;
    bool is_signed; /* of blocks: see zr_block8_read */
    /* Whether a tensor has the slot; NULL: every tensor. Without it, a slot of a unit has the elements of its
     * tensors that have the slot, one after the other. */
    bool (*covers)(const struct zr_parameter *tensor, const struct zr_parameter_group *group);
    /* Numbers that every rank has for the whole tensor, the same on each; NULL: the slot is by element. */
    size_t (*whole)(const struct zr_parameter *tensor);
};

/* Sums over a whole tensor, in the kernels' memory: see zr_update_factored and zr_update_lamb. */
struct zr_tensor_sums {
    const float *row_mean; /* of a matrix's factors */
    const double *squares;
    size_t parts, stride;
};

/* The update of consecutive elements of one tensor, from the beginning of a block on. */
struct zr_optimizer_call {
    const struct zr_optimizer_options *options;
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    float rate, weight_decay,
        gradient_scale;                  /* rate and weight_decay with the factors of the tensor's group */
    float correction1, correction2;      /* of the step: see struct zr_optimizer */
    bool keeps_variance, keeps_momentum; /* AdamW's stay as they are */
    const struct zr_gradient_weight *weight; /* replaces gradient_scale, see zr_adamw; NULL: it does not */
    const struct zr_step_rates *rates;       /* replaces rate and corrections, likewise */
    size_t n;
    struct zr_numbers gradient;
    float *master;
    void *slots[ZR_SLOTS_MAX]; /* NULL: the tensor has no such slot, or it is one of enum zr_keeps */
    const struct zr_parameter *tensor;
    size_t first;                /* index in the tensor of the first element */
    const float *direction;      /* of the elements, if the optimizer prepares directions; else NULL */
    struct zr_tensor_sums sums;  /* of the tensor, if the optimizer prepares sums; else zeros */
    const float *trust;          /* see struct zr_optimizer; NULL: none */
    const float *before;         /* the momentum before it moved; NULL: the variance is not frozen */
    float fresh_correction;      /* correction2 of a variance that is not frozen */
    struct zr_numbers parameter; /* new parameters; `at` NULL: not written */
};

enum zr_preparation { ZR_PREPARES_NOTHING = 0, ZR_PREPARES_DIRECTIONS, ZR_PREPARES_SUMS };

struct zr_optimizer {
    const char *name; /* --optimizer, and in saved files; as in ZR_OPTIMIZER_NAMES */
    const char *help; /* a line without final period, of at most 78 characters */
    float rate;       /* default of --lr */
    struct zr_taken_number numbers[ZR_NUMBERS_COUNT];
    bool wide_heads; /* zr-train's group of heads has wide_state */
    unsigned slots_count;
    struct zr_optimizer_slot slots[ZR_SLOTS_MAX];
    unsigned kept_count;                 /* last slots: a value of enum zr_keeps */
    const struct zr_optimizer *wide;     /* of units with a tensor whose group has wide_state; NULL: itself */
    const struct zr_optimizer *averaged; /* with `averages` above 0; NULL: itself */
    enum zr_number_kind averages;
    /* Why tensors must be whole on a rank / an update cannot run before the norm is known, as a verb and its
     * object: "updates whole matrices"; NULL: no reason. */
    const char *not_in_parts, *not_ahead;
    /* Two numbers that change from step to step, for the updates of step 1, 2 .. */
    void (*corrections)(const struct zr_optimizer_options *options, double step, float out[2]);
    /* Whether the update of a tensor needs results for the whole tensor, which all ranks prepare together;
     * NULL: none does. */
    enum zr_preparation prepares;
    bool (*needs_whole)(const struct zr_parameter *tensor, const struct zr_parameter_group *group);
    /* With ZR_PREPARES_SUMS: writes two sums of a part for zr_optimizer_call.sums, and moves state that the
     * update only reads. */
    zr_result (*sum)(const struct zr_optimizer_call *call, double *squares);
    /* Makes a number of a tensor from its sums, for zr_optimizer_call.trust, and moves the tensor's numbers
     * in the whole slot ZR_LAMB_TRUST; NULL: there is none. Each rank has the same. `frozen`: the variance
     * is. */
    float (*trust)(const struct zr_optimizer_options *options, const struct zr_tensor_sums *sums, bool frozen,
                   float *numbers);
    zr_result (*update)(const struct zr_optimizer_call *call);
};

/* ---- adafactor.c: a second moment by row and by column of a matrix, which every rank keeps whole, and by
 * element of a vector; tensor_sums.c makes the sums of an update. */

/* Slots; the last one with a momentum_factor only. */
enum { ZR_ADAFACTOR_FACTORS, ZR_ADAFACTOR_VARIANCE, ZR_ADAFACTOR_MOMENTUM };

/* The constants of the paper. The caller sets what an operation needs more. */
extern const struct zr_adafactor zr_adafactor_paper;

/* Whether a tensor has factors / their number: those of the rows, then those of the columns. */
bool zr_adafactor_is_factored(const struct zr_parameter *tensor, const struct zr_parameter_group *group);
size_t zr_adafactor_factors(const struct zr_parameter *tensor);

/* Functions of struct zr_optimizer. The first correction is the share of new squares in the second moments.
 */
void zr_adafactor_corrections(const struct zr_optimizer_options *options, double step, float out[2]);
zr_result zr_adafactor_sum(const struct zr_optimizer_call *call, double *squares);
zr_result zr_adafactor_update(const struct zr_optimizer_call *call);

/* ---- LAMB: lamb.c -------------------------------------------------------------------------------------- */

/* Slots after those of AdamW, with a trust_average only. */
enum { ZR_LAMB_FRESH = 2, ZR_LAMB_TRUST };

/* Arguments of AdamW's kernels. */
struct zr_adamw zr_adamw_of(const struct zr_optimizer_call *call);
struct zr_update zr_adamw_numbers_of(const struct zr_optimizer_call *call);

/* Functions of struct zr_optimizer, without and with a trust_average. */
zr_result zr_lamb_sum(const struct zr_optimizer_call *call, double *squares);
zr_result zr_lamb_sum_fresh(const struct zr_optimizer_call *call, double *squares);
float zr_lamb_trust_now(const struct zr_optimizer_options *options, const struct zr_tensor_sums *sums,
                        bool frozen, float *numbers);
zr_result zr_lamb_update(const struct zr_optimizer_call *call);
/* Numbers of a tensor in the slot ZR_LAMB_TRUST. */
size_t zr_lamb_numbers(const struct zr_parameter *tensor);

/* ---- The table ----------------------------------------------------------------------------------------- */

/* Whether a slot is floats by element. */
static inline bool zr_slot_is_plain(const struct zr_optimizer_slot *slot)
{
    return slot->block_elements == 1 && !slot->whole;
}

/* The row of a kind that keeps nothing; NULL: there is none / of valid options. */
const struct zr_optimizer *zr_optimizer_of(enum zr_optimizer_kind kind);
const struct zr_optimizer *zr_optimizer_with(const struct zr_optimizer_options *options, enum zr_keeps keeps);

/* Bytes of a slot for a number of elements, whole blocks. */
static inline size_t zr_slot_state_bytes(const struct zr_optimizer_slot *slot, size_t elements)
{
    return elements / slot->block_elements * slot->block_bytes;
}
/* Elements of the largest block, a power of two: tensors and shards begin at multiples of it. */
static inline size_t zr_optimizer_block(const struct zr_optimizer *optimizer)
{
    size_t largest = 1;
    for (unsigned s = 0; s < optimizer->slots_count; s++)
        if (optimizer->slots[s].block_elements > largest)
            largest = optimizer->slots[s].block_elements;
    return largest;
}

#endif
