/* trainer_rig.h: a bundled model under a trainer of one rank, random batches, and the comparison of its
 * losses with a trainer of the test's own in double precision. */
#ifndef ZR_TEST_TRAINER_RIG_H
#define ZR_TEST_TRAINER_RIG_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/step/trainer_state.h"

static const struct zr_optimizer_options rig_adamw = {
    .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .clip = 0.5f};
static const float rig_rate = 3e-3f;
enum { RIG_SEED = 5 };

struct rig {
    zr_backend *backend;
    zr_arena *arena, *host_arena;
    zr_comm *comm;
    struct zr_mesh mesh;
    struct zr_trainer_state state;
    int32_t *tokens, *targets; /* the trainer's inputs */
    unsigned step;             /* of the last batch, with RIG_SEED the key of dropout */
};

/* On arenas and the mesh that are there; they last as long as the trainer. */
static inline zr_result rig_open_trainer(struct rig *rig, struct zr_trainer_state_options options)
{
    options.arena = rig->arena;
    options.host_arena = rig->host_arena;
    options.kernels = zr_kernels_cpu(zr_isa_best());
    options.isa = zr_isa_best();
    options.parallel.threads = 1;
    options.mesh = &rig->mesh;
    options.seed = RIG_SEED;
    zr_result result = zr_trainer_state_open(&rig->state, &options);
    if (result == ZR_OK) {
        rig->tokens = zr_trainer_input(rig->state.trainer, ZR_INPUT_TOKENS);
        rig->targets = zr_trainer_input(rig->state.trainer, ZR_INPUT_TARGETS);
    }
    return result;
}

/* After a failure, too, rig_close() releases what there is. */
static inline zr_result rig_open(struct rig *rig, const struct zr_shape *shape)
{
    const struct zr_kernels *kernels = zr_kernels_cpu(zr_isa_best());
    zr_result result;
    memset(rig, 0, sizeof *rig);
    result = zr_backend_host_create(&rig->backend, &(struct zr_host_options){.granule_bytes = 16 << 10});
    if (result == ZR_OK)
        result = zr_arena_create(
            &rig->arena, &(struct zr_arena_options){.backend = rig->backend, .reserve_bytes = 256 << 20});
    if (result == ZR_OK)
        result = zr_arena_create(&rig->host_arena, &(struct zr_arena_options){.backend = rig->backend,
                                                                              .reserve_bytes = 256 << 20});
    if (result == ZR_OK)
        result = zr_comm_null_create(
            &rig->comm,
            &(struct zr_comm_options){
                .arena = rig->arena, .host_arena = rig->host_arena, .kernels = kernels, .bucket_bytes = 4096},
            0, 1);
    rig->mesh = (struct zr_mesh){.world = rig->comm, .data = rig->comm};
    return result == ZR_OK ? rig_open_trainer(rig, (struct zr_trainer_state_options){.shape = *shape,
                                                                                     .optimizer = rig_adamw})
                           : result;
}

/* Ends the rig; returns the bytes that were left behind. */
static inline size_t rig_close(struct rig *rig)
{
    size_t tensors = 0, records = 0;
    zr_trainer_state_close(&rig->state);
    if (rig->comm)
        zr_comm_destroy(rig->comm);
    if (rig->arena)
        zr_arena_destroy(rig->arena, &tensors);
    if (rig->host_arena)
        zr_arena_destroy(rig->host_arena, &records);
    if (rig->backend)
        zr_backend_destroy(rig->backend);
    return tensors + records;
}

struct rig_step {
    struct rig *rig;
    unsigned step;
    double loss;
};

static inline zr_result rig_load(void *state, unsigned micro_batch)
{
    const struct rig_step *asked = state;
    const struct zr_shape *shape = &asked->rig->state.transformer.shape;
    unsigned short random[3] = {(unsigned short)asked->step, 77, 3};
    (void)micro_batch;
    asked->rig->step = asked->step;
    struct zr_dropout_draw *draw = zr_trainer_input(
        asked->rig->state.trainer, zr_transformer_draw_input(&asked->rig->state.transformer));
    if (draw)
        *draw = zr_transformer_draw(&asked->rig->state.transformer,
                                    &(struct zr_transformer_draw){.seed = RIG_SEED, .step = asked->step});
    for (size_t i = 0; i < shape->batch * shape->sequence; i++) {
        asked->rig->tokens[i] = (int32_t)(nrand48(random) % (long)shape->vocabulary);
        asked->rig->targets[i] = (int32_t)(nrand48(random) % (long)shape->vocabulary);
    }
    return ZR_OK;
}

static inline zr_result rig_update(void *state, double loss, float *rate)
{
    ((struct rig_step *)state)->loss = loss;
    *rate = rig_rate;
    return ZR_OK;
}

/* On a random batch of the step's own, which stays in the inputs. */
static inline zr_result rig_train(struct rig *rig, unsigned step, double *loss, double *gradient_norm)
{
    struct zr_step_report report = {0};
    struct rig_step asked = {rig, step, (double)NAN};
    zr_result result = zr_trainer_step(
        rig->state.trainer, &(struct zr_step_calls){.state = &asked, .load = rig_load, .update = rig_update},
        &report);
    *loss = asked.loss;
    *gradient_norm = report.gradient_norm;
    return result;
}

/* ---- A trainer in double precision --------------------------------------------------------------------- */

/* The mean loss of the rig's batch; g gets the gradients of all parameters. Both vectors hold the parameters
 * one after the other, in the order of the list. */
typedef double (*rig_reference)(const struct rig *rig, const double *w, double *g);

/* Factors of the learning rate and the weight decay by name; NULL: those of the default groups. */
static void (*rig_factors)(const struct zr_parameter *parameter, double *rate, double *decay);

/* AdamW with clipping. Returns the norm before it. */
static inline double rig_reference_step(const struct rig *rig, double *w, const double *g, double *m,
                                        double *v, int step)
{
    const struct zr_parameter_list *list = &rig->state.transformer.model.list;
    double squares = 0, scale = 1, b1 = (double)rig_adamw.beta1, b2 = (double)rig_adamw.beta2;
    size_t total = zr_parameter_list_elements(list), i = 0;
    for (size_t e = 0; e < total; e++)
        squares += g[e] * g[e];
    if (sqrt(squares) > (double)rig_adamw.clip)
        scale = (double)rig_adamw.clip / sqrt(squares);
    for (size_t p = 0; p < list->parameters_count; p++) {
        double rate = (double)rig_rate, decay = list->parameters[p].shape[1] ? 1 : 0;
        if (rig_factors)
            rig_factors(&list->parameters[p], &rate, &decay);
        decay *= (double)rig_adamw.weight_decay;
        if (zr_unit_is_frozen(&list->units[list->parameters[p].unit])) {
            i += zr_parameter_elements(&list->parameters[p]);
            continue;
        }
        for (size_t end = i + zr_parameter_elements(&list->parameters[p]); i < end; i++) {
            double gi = g[i] * scale;
            m[i] = b1 * m[i] + (1 - b1) * gi;
            v[i] = b2 * v[i] + (1 - b2) * gi * gi;
            double update =
                m[i] / (1 - pow(b1, step)) / (sqrt(v[i] / (1 - pow(b2, step))) + (double)rig_adamw.epsilon);
            w[i] -= rate * (update + decay * w[i]);
        }
    }
    return sqrt(squares);
}

/* ---- Frozen tensors and adapters ------------------------------------------------------------------------
 *
 * The reference of a model with them: the plain model's, on matrices that contain their adapters, and the
 * chain rule. */

static rig_reference rig_plain; /* the plain model's */

/* A matrix and its adapter as places in the vector of the list; no adapter: a SIZE_MAX. */
struct rig_adapter {
    size_t in, out, rank, a, b;
    bool turned; /* the matrix is [out, in] */
    double scale;
};

/* Place of a tensor in the vector of a list; SIZE_MAX: no such name. */
static inline size_t rig_find(const struct zr_parameter_list *list, const char *name, size_t *index)
{
    size_t at = 0;
    for (*index = 0; *index < list->parameters_count; ++*index) {
        if (strcmp(list->parameters[*index].name, name) == 0)
            return at;
        at += zr_parameter_elements(&list->parameters[*index]);
    }
    return SIZE_MAX;
}

static inline struct rig_adapter rig_adapter_of(const struct rig *rig, const struct zr_parameter *matrix)
{
    const struct zr_transformer *t = &rig->state.transformer;
    const struct zr_lora *lora = &t->shape.trainable->lora;
    bool turned = t->table->turned;
    char a[80], b[80];
    size_t index, stem = strlen(matrix->name) - strlen("weight");
    snprintf(a, sizeof a, "%.*slora_A.weight", (int)stem, matrix->name);
    snprintf(b, sizeof b, "%.*slora_B.weight", (int)stem, matrix->name);
    return (struct rig_adapter){.in = matrix->shape[turned],
                                .out = matrix->shape[!turned],
                                .rank = lora->rank,
                                .a = rig_find(&t->model.list, a, &index),
                                .b = rig_find(&t->model.list, b, &index),
                                .turned = turned,
                                .scale = (double)lora->alpha / lora->rank};
}

/* Adds A B to a matrix, or the gradients of A and B from the matrix's. */
static inline void rig_adapt(const struct rig_adapter *adapter, const double *w, double *matrix, double *g)
{
    const double *a = w + adapter->a, *b = w + adapter->b;
    for (size_t i = 0; i < adapter->in; i++)
        for (size_t o = 0; o < adapter->out; o++) {
            double *at = &matrix[adapter->turned ? o * adapter->in + i : i * adapter->out + o];
            for (size_t k = 0; k < adapter->rank; k++) {
                size_t ki = k * adapter->in + i, ok = o * adapter->rank + k;
                if (g) {
                    g[adapter->a + ki] += adapter->scale * *at * b[ok];
                    g[adapter->b + ok] += adapter->scale * *at * a[ki];
                } else {
                    *at += adapter->scale * a[ki] * b[ok];
                }
            }
        }
}

static inline double rig_trainable_reference(const struct rig *rig, const double *w, double *g)
{
    const struct zr_parameter_list *list = &rig->state.transformer.model.list, *plain;
    struct zr_transformer transformer;
    struct zr_shape shape = rig->state.transformer.shape;
    size_t total = zr_parameter_list_elements(list), at = 0; /* at least the plain model's */
    double *dense = calloc(2 * total, sizeof *dense), *gradient = dense + total, loss = (double)NAN;
    shape.trainable = NULL;
    if (!dense || zr_transformer_open(&transformer, &shape, NULL, rig->host_arena) != ZR_OK) {
        free(dense);
        return loss;
    }
    plain = &transformer.model.list;
    for (int back = 0; back < 2; back++, at = 0) {
        for (size_t p = 0; p < plain->parameters_count; p++) {
            const struct zr_parameter *tensor = &plain->parameters[p];
            size_t index, elements = zr_parameter_elements(tensor),
                          from = rig_find(list, tensor->name, &index);
            bool adapts = rig->state.transformer.shape.trainable->lora.rank > 0 && tensor->shape[1] > 0;
            struct rig_adapter adapter = {.a = SIZE_MAX};
            if (adapts)
                adapter = rig_adapter_of(rig, tensor);
            if (!back)
                memcpy(dense + at, w + from, elements * sizeof *w);
            else if (!zr_unit_is_frozen(&list->units[list->parameters[index].unit]))
                memcpy(g + from, gradient + at, elements * sizeof *g);
            if (adapter.a != SIZE_MAX)
                rig_adapt(&adapter, w, (back ? gradient : dense) + at, back ? g : NULL);
            at += elements;
        }
        if (!back)
            loss = rig_plain(rig, dense, gradient);
    }
    for (size_t p = 0; p < list->parameters_count; p++) { /* of adapters too */
        size_t elements = zr_parameter_elements(&list->parameters[p]);
        if (zr_unit_is_frozen(&list->units[list->parameters[p].unit]))
            memset(g + at, 0, elements * sizeof *g);
        at += elements;
    }
    zr_transformer_close(&transformer);
    free(dense);
    return loss;
}

/* Elements of frozen tensors whose values are not those of `before`, [elements of the list]. */
static inline size_t rig_moved(const struct rig *rig, const float *before, bool frozen)
{
    const struct zr_parameter_list *list = &rig->state.transformer.model.list;
    size_t moved = 0, at = 0, p = 0, end = zr_parameter_elements(&list->parameters[0]);
    for (size_t i = 0; i < zr_engine_segments_count(rig->state.engine); i++) {
        struct zr_shard_segment segment;
        zr_engine_segment(rig->state.engine, i, &segment);
        for (at = segment.global_index; at >= end;)
            end += zr_parameter_elements(&list->parameters[++p]);
        if (zr_unit_is_frozen(&list->units[list->parameters[p].unit]) == frozen)
            for (size_t e = 0; e < segment.count; e++)
                moved += memcmp(&segment.parameter[e], &before[at + e], sizeof *before) != 0;
    }
    return moved;
}

static inline void rig_read(const struct rig *rig, float *out)
{
    for (size_t i = 0; i < zr_engine_segments_count(rig->state.engine); i++) {
        struct zr_shard_segment segment;
        zr_engine_segment(rig->state.engine, i, &segment);
        memcpy(out + segment.global_index, segment.parameter, segment.count * sizeof *out);
    }
}

/* The largest differences over some steps: of losses, and of norms by their size. */
struct rig_distance {
    double loss, norm, first_loss, last_loss;
};

static inline zr_result rig_compare(struct rig *rig, rig_reference reference, unsigned steps,
                                    struct rig_distance *out)
{
    size_t total = zr_engine_elements(rig->state.engine);
    double *w = calloc(4 * total, sizeof *w), *g = w + total, *m = g + total, *v = m + total;
    zr_result result = w ? ZR_OK : ZR_ERR_MEMORY;
    *out = (struct rig_distance){0};
    for (size_t i = 0; result == ZR_OK && i < zr_engine_segments_count(rig->state.engine); i++) {
        struct zr_shard_segment segment;
        zr_engine_segment(rig->state.engine, i, &segment);
        for (size_t e = 0; e < segment.count; e++)
            w[segment.global_index + e] = (double)segment.parameter[e];
    }
    for (unsigned step = 1; step <= steps && result == ZR_OK; step++) {
        double loss, norm, want, want_norm;
        result = rig_train(rig, step, &loss, &norm);
        memset(g, 0, total * sizeof *g);
        want = reference(rig, w, g);
        want_norm = rig_reference_step(rig, w, g, m, v, (int)step);
        out->loss = fmax(out->loss, fabs(loss - want));
        out->norm = fmax(out->norm, fabs(norm - want_norm) / want_norm);
        out->first_loss = step == 1 ? loss : out->first_loss;
        out->last_loss = loss;
    }
    free(w);
    return result;
}

#endif
