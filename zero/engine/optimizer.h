/* optimizer.h: the optimizers as a table: the state that each one keeps beside the masters, and its update. A
 * new optimizer is a value of enum zr_optimizer_kind with its name in ZR_OPTIMIZER_NAMES, a row of
 * optimizer.c and, if need be, a kernel. Private to engine/ and to those who save its state. */
#ifndef ZR_ENGINE_OPTIMIZER_H
#define ZR_ENGINE_OPTIMIZER_H

#include "zero/zr_zero.h"

enum { ZR_SLOTS_MAX = 2 };

/* State of the elements that the rank updates, in blocks of consecutive elements. */
struct zr_optimizer_slot {
    const char *name; /* "momentum": saved as "optimizer.momentum.NAME" */
    unsigned block_elements, block_bytes;
    bool is_signed; /* of blocks: see zr_block8_read */
    /* Whether a tensor has the slot; NULL: every tensor. Without it, a slot of a unit has the elements of its
     * tensors that have the slot, one after the other. */
    bool (*covers)(const struct zr_parameter *tensor, const struct zr_parameter_group *group);
};

/* The update of consecutive elements of one tensor, from the beginning of a block on. */
struct zr_optimizer_call {
    const struct zr_optimizer_options *options;
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    float rate, weight_decay,
        gradient_scale;             /* rate and weight_decay with the factors of the tensor's group */
    float correction1, correction2; /* 1 - beta^step */
    const struct zr_gradient_weight *weight; /* replaces gradient_scale, see zr_adamw; NULL: it does not */
    const struct zr_step_rates *rates;       /* replaces rate and corrections, likewise */
    size_t n;
    struct zr_numbers gradient;
    float *master;
    void *slots[ZR_SLOTS_MAX]; /* NULL: the tensor has no such slot */
    const struct zr_parameter *tensor;
    const float *direction; /* of the elements, if the optimizer makes directions for the tensor; else NULL */
    struct zr_numbers parameter; /* new parameters; `at` NULL: not written */
};

struct zr_optimizer {
    const char *name; /* --optimizer, and in saved files */
    unsigned slots_count;
    struct zr_optimizer_slot slots[ZR_SLOTS_MAX];
    const struct zr_optimizer *wide; /* of units with a tensor whose group has wide_state; NULL: itself */
    bool whole_tensors;              /* tensors must be whole on a rank */
    /* Whether the update of a tensor needs a direction made of the whole matrix (directions.c); NULL: none.
     */
    bool (*needs_direction)(const struct zr_parameter *tensor, const struct zr_parameter_group *group);
    zr_result (*update)(const struct zr_optimizer_call *call);
};

/* Whether a slot is floats by element; otherwise only kernels read its blocks. */
static inline bool zr_slot_is_plain(const struct zr_optimizer_slot *slot)
{
    return slot->block_elements == 1;
}

/* The row of a kind; NULL: there is none. */
const struct zr_optimizer *zr_optimizer_of(enum zr_optimizer_kind kind);

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
