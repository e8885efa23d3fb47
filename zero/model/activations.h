/* activations.h: the activation store: the memory of what modules write, from forward to backward. It is
 * taken and freed module by module, in the order of the program, so that a byte plan sees the same blocks.
 *
 * A policy says what stays between a module's forward and its backward: keep (its output and its slots) or
 * recompute (its output alone; forward runs again for the slots). Outputs that are activation checkpoints
 * have policies of their own, see checkpoints.h. */
#ifndef ZR_MODEL_ACTIVATIONS_H
#define ZR_MODEL_ACTIVATIONS_H

#include "zero/model/checkpoints.h"

struct zr_activations {
    const struct zr_model *model;
    zr_arena *arena, *host_arena;
    size_t element_bytes;
    enum zr_recompute recompute;
    bool *recomputes; /* [modules_count] */
    struct zr_checkpoints checkpoints;
    void **outputs;     /* [modules_count]: what each module wrote; NULL: nothing that is there, and needed */
    void **slots;       /* of all modules, one after the other */
    size_t *first_slot; /* [modules_count]: where a module's begin */
    void *gradients[2]; /* of the output of the module in backward, and of the one before it */
    void *inputs[ZR_MODEL_INPUTS_MAX];
    float *losses; /* [rows] */
};

struct zr_activations_options {
    const struct zr_model *model;
    zr_arena *arena, *host_arena;
    size_t element_bytes;
    enum zr_recompute recompute;
    size_t recompute_modules;
    const struct zr_checkpoints_options *checkpoints; /* but for count and elements */
};

/* Takes what lives as long as the store: inputs and losses. */
zr_result zr_activations_open(struct zr_activations *out, const struct zr_activations_options *options);
void zr_activations_close(struct zr_activations *store);

/* The memory that a module's forward writes: its slots, and its output if asked for. */
zr_result zr_activations_take(struct zr_activations *store, size_t module, bool output);
/* Forward has run. With `keep` the policy says what stays; without, nothing but the output does. */
void zr_activations_put(struct zr_activations *store, size_t module, bool keep);
/* A module's output is read by no forward any more: keeps what the policy of checkpoints says / will be read
 * by backward soon. */
zr_result zr_activations_store(struct zr_activations *store, size_t module);
zr_result zr_activations_fetch(struct zr_activations *store, size_t module);
/* A module's output is where zr_activations.outputs says: before it is read again. */
zr_result zr_activations_await(struct zr_activations *store, size_t module);
/* Before backward: what forward kept is at its places, and *dy and *dx are memory for gradients. */
zr_result zr_activations_get(struct zr_activations *store, size_t module, void **dy, void **dx);
/* Backward has run: frees what it read, dy included. */
void zr_activations_end(struct zr_activations *store, size_t module);
/* Frees whatever a pass holds; after one that went well there is nothing. */
void zr_activations_drop(struct zr_activations *store);

static inline void **zr_activations_slots(const struct zr_activations *store, size_t module)
{
    return store->slots + store->first_slot[module];
}

static inline unsigned zr_model_row_ranks(const struct zr_model *model)
{
    return model->row_ranks > 1 ? model->row_ranks : 1;
}

/* What a module is called, "h.0" or "head". */
const char *zr_model_module_name(const struct zr_model *model, size_t module);
/* ZR_ERR_INVALID with words when a model contradicts itself. */
zr_result zr_model_check(const struct zr_model *model);
size_t zr_slot_bytes(enum zr_slot_type type, size_t element_bytes);

#endif
