/* activations.h: the activation store: memory for outputs and slots of modules, from forward to backward.
 * Blocks are allocated and freed module by module, in a fixed order, so that a byte plan sees the same
 * blocks.
 *
 * The recompute policy says what a module keeps between forward and backward: its output and slots, or only
 * its output, in which case forward runs again for the slots. Outputs that are activation checkpoints also
 * have a checkpoint policy, see checkpoints.h.
 *
 * In a pipeline several micro-batches are in progress at a time. Each has a frame in a part of the model:
 * places for all outputs and slots of the part. Without a pipeline there is one frame. */
#ifndef ZR_MODEL_ACTIVATIONS_H
#define ZR_MODEL_ACTIVATIONS_H

#include "zero/model/checkpoints.h"
#include "zero/model/cut.h"

/* Indices of a module's output and slots, and of its input, in one frame. */
struct zr_activation_place {
    size_t at, input; /* input: ZR_NO_MODULE if it reads no output */
};

struct zr_activations {
    const struct zr_model *model;
    unsigned frames;
    zr_arena *arena, *host_arena;
    size_t element_bytes;
    enum zr_recompute recompute;
    bool *recomputes; /* [modules_count] */
    struct zr_checkpoints checkpoints;
    void **outputs;     /* [frames][modules_count]; NULL: not in memory */
    void **slots;       /* [frames][slots_count] */
    size_t slots_count; /* slots of all modules */
    size_t *first_slot; /* [modules_count]: index of a module's first slot */
    void *gradients[2]; /* of the output of the module in backward, and of its input */
    void **incoming;    /* [frames]: gradient of a part's output, until backward of the part takes it */
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
    const size_t *recomputing_before;                 /* see struct zr_cut; NULL: a whole model */
    const struct zr_checkpoints_options *checkpoints; /* the store sets count, frames and elements */
};

/* Allocates inputs, losses and the store's records. */
zr_result zr_activations_open(struct zr_activations *out, const struct zr_activations_options *options);
void zr_activations_close(struct zr_activations *store);

/* Before forward: allocates the module's slots, and with `output` its output. */
zr_result zr_activations_take(struct zr_activations *store, struct zr_activation_place place, bool output);
/* After forward: frees what backward does not need under the policy; without `keep` everything but the
 * output. */
void zr_activations_put(struct zr_activations *store, struct zr_activation_place place, bool keep);
/* Store: the last forward that reads output `at` has run; applies the checkpoint policy. Fetch: backward will
 * read it soon. */
zr_result zr_activations_store(struct zr_activations *store, size_t at);
zr_result zr_activations_fetch(struct zr_activations *store, size_t at);
/* Waits until output `at` is in memory; sets outputs[at]. */
zr_result zr_activations_await(struct zr_activations *store, size_t at);
/* Before backward: waits for the input and allocates the gradients of output and input. */
zr_result zr_activations_get(struct zr_activations *store, struct zr_activation_place place, void **dy,
                             void **dx);
/* After backward: frees dy; dx is the gradient of the output of the next module in backward. */
void zr_activations_turn(struct zr_activations *store, struct zr_activation_place place);
/* After the last use of a module's slots and input: frees them. */
void zr_activations_end(struct zr_activations *store, struct zr_activation_place place);
/* Allocates the gradient of output `at`. */
zr_result zr_activations_take_gradient(struct zr_activations *store, size_t at, void **gradient);
/* After a failed pass: frees all its blocks. */
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

/* "h.0" or "head". */
const char *zr_model_module_name(const struct zr_model *model, size_t module);
/* Whether no unit is trained. */
bool zr_model_is_frozen(const struct zr_model *model);
/* ZR_ERR_INVALID: the model is inconsistent; zr_last_error() says where. */
zr_result zr_model_check(const struct zr_model *model);
size_t zr_slot_bytes(enum zr_slot_type type, size_t element_bytes);

#endif
