/* activations.h: the activation store: the memory of what modules write, from forward to backward. It is
 * taken and freed module by module, in the order of the program, so that a byte plan sees the same blocks.
 *
 * A policy says what stays between a module's forward and its backward: keep (its output and its slots) or
 * recompute (its output alone; forward runs again for the slots). Outputs that are activation checkpoints
 * have policies of their own, see checkpoints.h.
 *
 * Micro-batches of a pipeline lie within one another: each that is under way in a part of the model has a
 * frame there, places for all outputs and slots. Without a pipeline there is one frame. */
#ifndef ZR_MODEL_ACTIVATIONS_H
#define ZR_MODEL_ACTIVATIONS_H

#include "zero/model/checkpoints.h"
#include "zero/model/cut.h"

/* A module of one frame: where its output is, and its slots; and the output that it reads. */
struct zr_activation_place {
    size_t at, input; /* ZR_NO_MODULE: it reads none */
};

struct zr_activations {
    const struct zr_model *model;
    unsigned frames;
    zr_arena *arena, *host_arena;
    size_t element_bytes;
    enum zr_recompute recompute;
    bool *recomputes; /* [modules_count] */
    struct zr_checkpoints checkpoints;
    void **outputs; /* [frames][modules_count]: what each wrote; NULL: nothing that is there, and needed */
    void **slots;   /* [frames]: of all modules, one after the other */
    size_t slots_count; /* of a frame */
    size_t *first_slot; /* [modules_count]: where a module's begin */
    void *gradients[2]; /* of the output of the module in backward, and of the one before it */
    void **incoming;    /* [frames]: gradient of what a part hands on, until backward of the part takes it */
    void *inputs[ZR_MODEL_INPUTS_MAX];
    float *losses; /* [rows] */
};

struct zr_activations_options {
    const struct zr_model *model;
    unsigned frames;
    zr_arena *arena, *host_arena;
    size_t element_bytes;
    enum zr_recompute recompute;
    size_t recompute_modules;
    const size_t *recomputing_before;                 /* see struct zr_cut; NULL: it is a whole model */
    const struct zr_checkpoints_options *checkpoints; /* but for count, frames and elements */
};

/* Takes what lives as long as the store: inputs and losses. */
zr_result zr_activations_open(struct zr_activations *out, const struct zr_activations_options *options);
void zr_activations_close(struct zr_activations *store);

/* The memory that a module's forward writes: its slots, and its output if asked for. */
zr_result zr_activations_take(struct zr_activations *store, struct zr_activation_place place, bool output);
/* Forward has run. With `keep` the policy says what stays; without, nothing but the output does. */
void zr_activations_put(struct zr_activations *store, struct zr_activation_place place, bool keep);
/* An output is read by no forward any more: keeps what the policy of checkpoints says / will be read by
 * backward soon. `at`: of its place; here and below. */
zr_result zr_activations_store(struct zr_activations *store, size_t at);
zr_result zr_activations_fetch(struct zr_activations *store, size_t at);
/* An output is where zr_activations.outputs says: before it is read again. */
zr_result zr_activations_await(struct zr_activations *store, size_t at);
/* Before backward: what forward kept is at its places, and *dy and *dx are memory for gradients. */
zr_result zr_activations_get(struct zr_activations *store, struct zr_activation_place place, void **dy,
                             void **dx);
/* Backward has run: frees what it read, dy included. */
void zr_activations_end(struct zr_activations *store, struct zr_activation_place place);
/* A block for the gradient of output `at`. */
zr_result zr_activations_take_gradient(struct zr_activations *store, size_t at, void **gradient);
/* Frees whatever a pass holds; after one that went well there is nothing. */
void zr_activations_drop(struct zr_activations *store);

static inline void **zr_activations_slots(const struct zr_activations *store, size_t at)
{
    size_t modules = store->model->modules_count;
    return store->slots + at / modules * store->slots_count + store->first_slot[at % modules];
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
