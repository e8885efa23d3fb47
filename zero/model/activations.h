/* activations.h: the activation store: the memory of what modules write, from forward to backward. It is
 * taken and freed module by module, in the order of the program, so that a byte plan sees the same blocks.
 *
 * A policy says what stays between a module's forward and its backward. Today there are two: keep (its
 * output and its slots) and recompute (its output alone; forward runs again for the slots). Others, which
 * divide an activation checkpoint over ranks or move it to the host, stand at the same two places:
 * zr_activations_put() after forward, zr_activations_get() before backward. */
#ifndef ZR_MODEL_ACTIVATIONS_H
#define ZR_MODEL_ACTIVATIONS_H

#include "zero/zr_zero.h"

struct zr_activations {
    const struct zr_model *model;
    zr_arena *arena, *host_arena;
    size_t element_bytes;
    enum zr_recompute recompute;
    void **outputs;     /* [modules_count]: what each module wrote; NULL: nothing that is still needed */
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
};

/* Takes what lives as long as the store: inputs and losses. */
zr_result zr_activations_open(struct zr_activations *out, const struct zr_activations_options *options);
void zr_activations_close(struct zr_activations *store);

/* The memory that a module's forward writes: its slots, and its output if asked for. */
zr_result zr_activations_take(struct zr_activations *store, size_t module, bool output);
/* Forward has run. With `keep` the policy says what stays; without, nothing but the output does. */
void zr_activations_put(struct zr_activations *store, size_t module, bool keep);
/* Whether a module's slots have to be written again before its backward. */
bool zr_activations_recomputes(const struct zr_activations *store, size_t module);
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
