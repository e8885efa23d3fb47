/* prove.c: see loop.h.
 *
 * Each step of the dense run starts from the state of the run, so a comparison covers one step. A tensor's
 * parameters and its momentum, which represents its gradients, are compared. AdamW's steps have the same size
 * for gradients of any size, including gradients that are only rounding errors, such as those of a bias of
 * attention's keys. Therefore a parameter counts only if its momentum is at least the mean of its tensor's
 * momentum; gradients have no such rule and may differ by ten times as much. In sequences of one token all
 * gradients of queries and keys are rounding errors, so momentum below the unit's noise is ignored.
 *
 * Where an optimizer has no momentum in floats, the gradients of the dense run take its place, and parameters
 * alone are compared. Such a vector does not count if some of its gradients are rounding errors: Adafactor
 * clips its update by a mean that contains theirs. */
#include "zero/train/loop.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/comm/mesh.h"
#include "zero/engine/engine.h"
#include "zero/engine/update.h"
#include "zero/train/rank/rank_plan.h"
#include "zero/train/settings/args.h"
#include "zero/train/report/terminal.h"

enum { CHUNK_FLOATS = 4096, GRADIENTS_MORE = 10 };

enum kind { PARAMETER, MOMENTUM, KINDS };
/* Rounding errors of a unit's gradients, relative to the largest: sums are in fp32 at all precisions,
 * accurate to a few epsilons of the summands. */
#define NOISE (8 * (double)FLT_EPSILON)
/* The smallest fp16 number, which includes the loss scale: smaller gradients are lost or doubled. */
#define NOISE_FP16 0x1p-24

/* In fp16 the run and the dense rank round differently, so one may overflow without the other. If only the
 * run overflows, the dense rank must overflow at this multiple of the loss scale. If only the dense rank
 * overflows, it must not overflow at this fraction of the scale. */
#define OVERFLOW_MARGIN 16

/* Initial size of a matrix element, used for biases, which start as zero. */
#define MIN_PARAMETER 0.02

struct zr_prove {
    struct zr_rank *rank;
    double tolerance;
    struct zr_transformer whole; /* its list names all tensors */
    size_t largest;              /* elements of the largest tensor */
    float *values[KINDS];        /* [largest]: the dense run's values of one tensor */
    float *own;                  /* [largest]: this rank's part of it, or zero */
    bool has_momentum;           /* of some tensor, in floats */
    float *chunks;               /* [world][CHUNK_FLOATS] */
    float *noise; /* [units]: maximum root mean square of the momentum that rounding may cause */
    double *far;  /* [world + 1][parameters][KINDS]: relative differences; this rank's first */
    double max_difference[2 + KINDS]; /* largest differences of loss, norm and tensors */
    uint64_t steps, skipped;          /* compared steps / those with only the loss compared */
    /* Used by rank 0. */
    struct zr_train_config config;
    zr_arena *arena;
    zr_comm *comm;
    struct zr_mesh mesh;
    struct zr_trainer_state dense;
    float *gradients; /* [layout.pool_elements] of `dense`, without the loss scale; NULL: not needed */
    uint64_t step;
    double loss;
};

enum { STATES = 1 + ZR_SLOTS_MAX }; /* parameters and the optimizer's slots */

/* The optimizer's slot of a state; NULL: the state is the parameters. */
static const struct zr_optimizer_slot *slot_of(const zr_engine *engine, const struct zr_layout_parameter *p,
                                               unsigned state)
{
    return state == 0 ? NULL : &engine->layout.units[p->parameter.unit].optimizer->slots[state - 1];
}

/* Numbers of a state of the whole model's tensor `index`, if the tensor has the state. */
static size_t count_of(const struct zr_prove *prove, size_t index, unsigned state)
{
    const struct zr_parameter *p = &prove->whole.model.list.parameters[index];
    const struct zr_optimizer *optimizer = prove->rank->state.engine->optimizer;
    return state > 0 && optimizer->slots[state - 1].whole ? optimizer->slots[state - 1].whole(p)
                                                          : zr_parameter_elements(p);
}

/* ---- The dense run ------------------------------------------------------------------------------------- */

/* Micro-batches of all data ranks, one after the other. */
static zr_result load(void *state, unsigned micro_batch)
{
    struct zr_prove *prove = state;
    unsigned data_ranks = zr_train_data_ranks(prove->rank->config);
    struct zr_data_place place = {
        .step = prove->step, .data_rank = micro_batch % data_ranks, .micro_batch = micro_batch / data_ranks};
    const struct zr_batch batch = {&prove->rank->data, prove->dense.trainer, &prove->config.shape};
    zr_rank_draw(prove->rank, &prove->dense, &place);
    return zr_batch_train(&batch, &place);
}

/* Keeps the gradients of the dense step. */
static zr_result keep_gradients(struct zr_prove *prove)
{
    zr_engine *engine = prove->dense.engine;
    float loss_scale = zr_engine_loss_scale(engine);
    zr_result result = prove->gradients ? zr_engine_bring_gradients(engine) : ZR_OK;
    for (size_t u = 0; prove->gradients && u < engine->layout.units_count && result == ZR_OK; u++) {
        const struct zr_layout_unit *unit = &engine->layout.units[u];
        const struct zr_unit_state *state = &engine->units[u];
        float *to = prove->gradients + unit->pool_offset;
        if (state->steps == 0)
            continue;
        result = engine->options.kernels->convert(
            engine->options.context,
            &(struct zr_convert){.n = unit->padded_elements,
                                 .from = state->reduced, /* of all ranks: there is one */
                                 .to = {to, ZR_PRECISION_FP32}});
        for (size_t i = 0; i < unit->padded_elements; i++)
            to[i] /= loss_scale;
    }
    return result;
}

static zr_result update(void *state, double loss, float *rate)
{
    struct zr_prove *prove = state;
    prove->loss = loss;
    *rate = zr_schedule_rate(prove->rank->config, prove->step);
    return keep_gradients(prove);
}

static zr_result open_dense(struct zr_prove *prove)
{
    struct zr_rank *rank = prove->rank;
    struct zr_byte_plan plan;
    const struct zr_kernel_context *context = &rank->state.context;
    struct zr_train_config *config = &prove->config;
    *config = *rank->config;
    config->backend = ZR_TRAIN_HOST;
    config->shape = zr_shape_dense(&config->shape);
    config->stages = (struct zr_stages){.ranks = 0};
    config->shape.recompute = ZR_RECOMPUTE_NONE;
    config->micro_batches = (unsigned)zr_train_division(rank->config).micro_batches;
    config->global_batch = 0;
    config->world = 1;
    config->stage = 0;
    config->reduce = ZR_REDUCE_EACH;
    config->checkpoints = (struct zr_checkpoint_policy){0};
    config->checkpoint_offload = false;
    config->loss_scaling.constant = false; /* each step uses the run's scale */
    config->loss_scaling.least = FLT_MIN;
    config->offload_optimizer = config->offload_parameters = ZR_TIER_NONE;
    config->speculative_bytes = 0;
    zr_result result = zr_rank_plan(&plan, config, 0, rank->host_arena);
    if (result == ZR_OK)
        result = zr_arena_create(&prove->arena,
                                 &(struct zr_arena_options){.backend = rank->backend,
                                                            .name = "proof",
                                                            .reserve_bytes = 2 * plan.peak_reserved_bytes});
    if (result == ZR_OK)
        result = zr_comm_null_create(&prove->comm,
                                     &(struct zr_comm_options){.arena = prove->arena,
                                                               .host_arena = rank->host_arena,
                                                               .kernels = zr_kernels_cpu(context->isa),
                                                               .bucket_bytes = ZR_COMM_LINE_BYTES},
                                     0, 1);
    prove->mesh = (struct zr_mesh){.world = prove->comm, .data = prove->comm};
    if (result != ZR_OK)
        return result;
    result = zr_trainer_state_open(&prove->dense,
                                   &(struct zr_trainer_state_options){.arena = prove->arena,
                                                                      .host_arena = rank->host_arena,
                                                                      .kernels = zr_kernels_cpu(context->isa),
                                                                      .isa = context->isa,
                                                                      .parallel = context->parallel,
                                                                      .mesh = &prove->mesh,
                                                                      .shape = config->shape,
                                                                      .micro_batches = config->micro_batches,
                                                                      .precision = zr_train_precision(config),
                                                                      .loss_scaling = config->loss_scaling,
                                                                      .seed = config->seed,
                                                                      .optimizer = config->optimizer});
    if (result != ZR_OK || zr_slot_is_plain(&prove->dense.engine->optimizer->slots[0]))
        return result;
    prove->gradients = zr_heap_zalloc(prove->dense.engine->layout.pool_elements, sizeof *prove->gradients);
    return prove->gradients ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

/* ---- Creation and destruction -------------------------------------------------------------------------- */

static zr_result open(struct zr_prove *prove)
{
    const struct zr_train_config *config = prove->rank->config;
    const struct zr_shape dense = zr_shape_dense(&config->shape);
    zr_result result = zr_transformer_open(&prove->whole, &dense, NULL, prove->rank->host_arena);
    const struct zr_parameter_list *list = &prove->whole.model.list;
    if (result != ZR_OK)
        return result;
    for (size_t i = 0; i < list->parameters_count; i++)
        for (unsigned state = 0; state < STATES; state++)
            if (count_of(prove, i, state) > prove->largest)
                prove->largest = count_of(prove, i, state);
    for (unsigned kind = 0; kind < KINDS; kind++)
        prove->values[kind] = zr_heap_zalloc(prove->largest, sizeof(float));
    prove->own = zr_heap_zalloc(prove->largest, sizeof(float));
    prove->chunks = zr_heap_zalloc((size_t)config->world * CHUNK_FLOATS, sizeof(float));
    prove->far = zr_heap_zalloc((size_t)(config->world + 1) * list->parameters_count, KINDS * sizeof(double));
    prove->noise = zr_heap_zalloc(list->units_count, sizeof *prove->noise);
    if (!prove->noise || !prove->values[PARAMETER] || !prove->values[MOMENTUM] || !prove->own ||
        !prove->chunks || !prove->far)
        return ZR_ERR_HOST_MEMORY;
    return prove->rank->rank == 0 ? open_dense(prove) : ZR_OK;
}

zr_result zr_prove_open(struct zr_prove **out, struct zr_rank *rank)
{
    *out = NULL;
    if (!rank->config->prove)
        return ZR_OK;
    struct zr_prove *prove = zr_heap_zalloc(1, sizeof *prove);
    zr_result result = prove ? ZR_OK : ZR_ERR_HOST_MEMORY;
    if (prove) {
        prove->rank = rank;
        prove->tolerance = rank->config->tolerance > 0                    ? rank->config->tolerance
                           : rank->config->precision == ZR_PRECISION_FP32 ? 1e-5
                                                                          : 1e-2;
        result = open(prove);
    }
    result = zr_comm_all_status(rank->comm, result);
    if (result == ZR_OK)
        *out = prove;
    else
        zr_prove_close(prove);
    return result == ZR_ERR_MEMORY || result == ZR_ERR_HOST_MEMORY
               ? zr_fail(result, "--prove: the whole model does not fit beside the run: %s", zr_last_error())
               : result;
}

void zr_prove_close(struct zr_prove *prove)
{
    if (!prove)
        return;
    zr_trainer_state_close(&prove->dense);
    zr_comm_destroy(prove->comm);
    if (prove->arena)
        zr_arena_destroy(prove->arena, NULL);
    zr_heap_free(prove->gradients);
    zr_heap_free(prove->noise);
    zr_heap_free(prove->far);
    zr_heap_free(prove->chunks);
    zr_heap_free(prove->own);
    for (unsigned kind = 0; kind < KINDS; kind++)
        zr_heap_free(prove->values[kind]);
    zr_transformer_close(&prove->whole);
    zr_heap_free(prove);
}

/* ---- Comparing ----------------------------------------------------------------------------------------- */

/* Sends `count` floats of rank 0 to all ranks. */
static zr_result broadcast(struct zr_prove *prove, const float *from, size_t count, float *to)
{
    zr_result result = ZR_OK;
    for (size_t at = 0, part; at < count && result == ZR_OK; at += part) {
        part = count - at < CHUNK_FLOATS ? count - at : CHUNK_FLOATS;
        result = zr_comm_host_all_gather(prove->rank->comm, from ? from + at : to + at, part * sizeof *from,
                                         prove->chunks);
        if (result == ZR_OK)
            memcpy(to + at, prove->chunks, part * sizeof *to);
    }
    return result;
}

/* Takes a unit's state in the dense run. A memory store returns addresses, so the caller releases nothing. */
static struct zr_owned dense_owned(zr_engine *dense, size_t unit)
{
    struct zr_owned owned;
    zr_assert(dense->state_tier->store.table->random);
    zr_result result = zr_engine_take_owned(dense, unit, &owned);
    zr_assert(result == ZR_OK);
    return owned;
}

/* Whether a tensor of the whole model keeps its values; both runs then have the same initial ones. */
static bool is_frozen(const struct zr_prove *prove, size_t index)
{
    const struct zr_parameter_list *list = &prove->whole.model.list;
    return zr_unit_is_frozen(&list->units[list->parameters[index].unit]);
}

/* The dense run's momentum of a tensor, or its gradients. */
static const float *momentum_of(const struct zr_prove *prove, const struct zr_layout_parameter *p)
{
    const zr_engine *engine = prove->dense.engine;
    struct zr_owned owned = dense_owned(prove->dense.engine, p->parameter.unit);
    const float *momentum = zr_owned_floats(engine, p, &owned, 0, p->offset);
    return momentum ? momentum
                    : prove->gradients + engine->layout.units[p->parameter.unit].pool_offset + p->offset;
}

/* Sends the dense run's tensor `index` to all ranks. */
static zr_result broadcast_tensor(struct zr_prove *prove, size_t index)
{
    zr_engine *engine = prove->dense.engine;
    size_t count = zr_parameter_elements(&prove->whole.model.list.parameters[index]);
    const float *from[KINDS] = {NULL, NULL};
    if (engine) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[index];
        struct zr_owned owned = dense_owned(engine, p->parameter.unit);
        from[PARAMETER] = owned.master + p->offset;
        from[MOMENTUM] = momentum_of(prove, p);
    }
    zr_result result = ZR_OK;
    for (unsigned kind = 0; kind < KINDS && result == ZR_OK; kind++)
        result = broadcast(prove, from[kind], count, prove->values[kind]);
    return result;
}

static double size_of(const float *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sqrt(sum);
}

/* Sends the noise of each unit to all ranks. */
static zr_result broadcast_noise(struct zr_prove *prove, const struct zr_prove_step *step)
{
    const struct zr_parameter_list *list = &prove->whole.model.list;
    zr_engine *engine = prove->dense.engine;
    double min_noise = step->loss_scale > 0 ? NOISE_FP16 / step->loss_scale : 0;

    for (size_t u = 0; u < list->units_count; u++)
        prove->noise[u] = 0;
    for (size_t i = 0; engine && i < list->parameters_count; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[i];
        if (is_frozen(prove, i))
            continue;
        size_t count = zr_parameter_elements(&list->parameters[i]);
        double noise = NOISE * size_of(momentum_of(prove, p), count) / sqrt((double)count) + min_noise;
        float *of_unit = &prove->noise[list->parameters[i].unit];
        *of_unit = (double)*of_unit < noise ? (float)noise : *of_unit;
    }
    return broadcast(prove, engine ? prove->noise : NULL, list->units_count, prove->noise);
}

/* This rank's next part of the whole model's tensor `index` after `after` (NULL: the first); NULL: no part is
 * left. With tiles a tensor has several parts. */
static const struct zr_layout_parameter *own_part(const struct zr_prove *prove, size_t index,
                                                  const struct zr_layout_parameter *after)
{
    const struct zr_layout *layout = &prove->rank->state.engine->layout;
    const char *name = prove->whole.model.list.parameters[index].name;
    for (size_t i = after ? (size_t)(after - layout->parameters) + 1 : 0; i < layout->parameters_count; i++)
        if (strcmp(layout->parameters[i].parameter.name, name) == 0)
            return &layout->parameters[i];
    return NULL;
}

/* Sums the squared differences of a part. A parameter with momentum below `min_momentum` does not count. */
static zr_result add_squares(struct zr_prove *prove, const struct zr_layout_parameter *p, double min_momentum,
                             double sum[KINDS])
{
    zr_engine *engine = prove->rank->state.engine;
    struct zr_owned owned;
    zr_result result = zr_engine_take_owned(engine, p->parameter.unit, &owned);
    for (size_t k = 0, pieces = zr_layout_pieces(p, owned.from, owned.to); result == ZR_OK && k < pieces;
         k++) {
        struct zr_tensor_piece piece = zr_layout_piece(p, owned.from, owned.to, k);
        size_t whole = piece.global_index - p->global_index, at = piece.offset - owned.from;
        const float *states[KINDS] = {owned.master + at, zr_owned_floats(engine, p, &owned, 0, at)};
        prove->has_momentum |= states[MOMENTUM] != NULL;
        for (unsigned kind = 0; kind < KINDS && states[kind] && result == ZR_OK; kind++) {
            result = zr_engine_copy(engine, prove->own, states[kind], piece.count * sizeof *prove->own);
            for (size_t i = 0; i < piece.count && result == ZR_OK; i++) {
                double difference = (double)prove->own[i] - (double)prove->values[kind][whole + i];
                if (kind == MOMENTUM || fabs((double)prove->values[MOMENTUM][whole + i]) >= min_momentum)
                    sum[kind] += difference * difference;
            }
        }
    }
    zr_result given = zr_engine_give_owned(engine, p->parameter.unit, false);
    return result == ZR_OK ? given : result;
}

/* Whether rounding errors decide on the size of the update of a whole vector. */
static bool is_clipped_by_noise(const struct zr_prove *prove, size_t index, size_t count, double noise)
{
    const struct zr_optimizer *optimizer = prove->rank->state.engine->optimizer;
    bool clips = optimizer->needs_whole && !zr_slot_is_plain(&optimizer->slots[0]), any = false;
    for (size_t i = 0; i < count; i++)
        any |= prove->values[MOMENTUM][i] != 0 && fabs((double)prove->values[MOMENTUM][i]) <= noise;
    return clips && any && prove->whole.model.list.parameters[index].shape[1] == 0;
}

/* Difference of this rank's part of a tensor relative to the size of the whole; momentum only beyond the
 * noise. */
static zr_result compare_tensor(struct zr_prove *prove, size_t index, size_t count, double far[KINDS])
{
    zr_result result = ZR_OK;
    double root = sqrt((double)count),
           size[KINDS] = {size_of(prove->values[PARAMETER], count), size_of(prove->values[MOMENTUM], count)};
    double mean = size[MOMENTUM] / root, sum[KINDS] = {0}; /* root mean square */
    double noise = (double)prove->noise[prove->whole.model.list.parameters[index].unit];
    if (size[PARAMETER] < MIN_PARAMETER * root)
        size[PARAMETER] = MIN_PARAMETER * root;
    if (is_clipped_by_noise(prove, index, count, noise))
        return ZR_OK;
    for (const struct zr_layout_parameter *p = NULL; result == ZR_OK && (p = own_part(prove, index, p));)
        result = add_squares(prove, p, mean > noise ? mean : noise, sum);
    double beyond = sqrt(sum[MOMENTUM]) - noise * root;
    far[PARAMETER] = sqrt(sum[PARAMETER]) / size[PARAMETER];
    far[MOMENTUM] =
        beyond <= 0 ? 0 : beyond / (mean > noise ? size[MOMENTUM] : noise * root) / GRADIENTS_MORE;
    return result;
}

static zr_result compare_tensors(struct zr_prove *prove, const struct zr_prove_step *step)
{
    const struct zr_parameter_list *list = &prove->whole.model.list;
    zr_result result = broadcast_noise(prove, step);
    for (size_t i = 0; i < list->parameters_count && result == ZR_OK; i++) {
        memset(prove->far + i * KINDS, 0, KINDS * sizeof *prove->far);
        if (is_frozen(prove, i))
            continue;
        result = broadcast_tensor(prove, i);
        if (result == ZR_OK && own_part(prove, i, NULL))
            result =
                compare_tensor(prove, i, zr_parameter_elements(&list->parameters[i]), prove->far + i * KINDS);
    }
    size_t count = list->parameters_count * KINDS;
    return result == ZR_OK ? zr_comm_host_all_gather(prove->rank->comm, prove->far, count * sizeof(double),
                                                     prove->far + count)
                           : result;
}

/* ---- Copying the state --------------------------------------------------------------------------------- */

/* Copies numbers of a state that this rank has to their positions in the whole tensor. */
static zr_result lay_out_numbers(struct zr_prove *prove, const struct zr_layout_parameter *p, unsigned state,
                                 const struct zr_owned *owned, struct zr_tensor_piece piece)
{
    zr_engine *engine = prove->rank->state.engine;
    size_t skip = piece.offset - owned->from;
    float *to = prove->own + (piece.global_index - p->global_index);
    const struct zr_optimizer_slot *slot = slot_of(engine, p, state);
    void *from = state == 0 ? owned->master + skip : zr_owned_slot(engine, p, owned, state - 1, skip);
    if (!from)
        return ZR_OK;
    return slot && slot->block_elements > 1
               ? zr_engine_get_blocks(
                     engine, &(struct zr_state_blocks){p->parameter.unit, piece.count, slot, from}, to)
               : zr_engine_copy(engine, to, from, piece.count * sizeof *to);
}

/* The same for all numbers of a part that are this rank's: of a slot of whole tensors, if the part's first
 * element is. */
static zr_result lay_out(struct zr_prove *prove, const struct zr_layout_parameter *p, unsigned state)
{
    zr_engine *engine = prove->rank->state.engine;
    const struct zr_optimizer_slot *slot = slot_of(engine, p, state);
    const struct zr_overlap shard = zr_engine_shard(engine, p->parameter.unit);
    const size_t from = shard.offset, end = from + shard.count;
    bool whole = slot && slot->whole, first = zr_overlap_has(shard, p->offset);
    size_t pieces = whole ? first : zr_layout_pieces(p, from, end);
    struct zr_owned owned;
    if (p->parameter.part.copy)
        return ZR_OK;
    zr_result result = zr_engine_take_owned(engine, p->parameter.unit, &owned);
    for (size_t k = 0; k < pieces && result == ZR_OK; k++) {
        struct zr_tensor_piece all = {p->offset, whole ? slot->whole(&p->parameter) : 0, p->global_index};
        result = lay_out_numbers(prove, p, state, &owned, whole ? all : zr_layout_piece(p, from, end, k));
    }
    zr_result given = zr_engine_give_owned(engine, p->parameter.unit, false);
    return result == ZR_OK ? given : result;
}

/* Puts the numbers of a whole tensor into the dense run. */
static zr_result put(zr_engine *engine, const struct zr_layout_parameter *p, unsigned state,
                     const float *numbers, size_t count)
{
    struct zr_owned owned = dense_owned(engine, p->parameter.unit);
    const struct zr_optimizer_slot *slot = slot_of(engine, p, state);
    void *to = state == 0 ? owned.master + p->offset : zr_owned_slot(engine, p, &owned, state - 1, p->offset);
    if (to && slot && slot->block_elements > 1)
        return zr_engine_put_blocks(engine, numbers,
                                    &(struct zr_state_blocks){p->parameter.unit, count, slot, to});
    if (to)
        memcpy(to, numbers, count * sizeof *numbers);
    return ZR_OK;
}

/* Copies a tensor of the run to the dense run: the ranks' parts, padded with zeros, are summed. */
static zr_result copy_to_dense(struct zr_prove *prove, size_t index, unsigned state)
{
    size_t count = count_of(prove, index, state);
    zr_engine *dense = prove->dense.engine;
    float *sums = prove->values[PARAMETER];
    zr_result result = ZR_OK;
    memset(prove->own, 0, count * sizeof *prove->own);
    memset(sums, 0, count * sizeof *sums);
    for (const struct zr_layout_parameter *p = NULL; result == ZR_OK && (p = own_part(prove, index, p));)
        result = lay_out(prove, p, state);
    for (size_t at = 0, part; at < count && result == ZR_OK; at += part) {
        part = count - at < CHUNK_FLOATS ? count - at : CHUNK_FLOATS;
        result =
            zr_comm_host_all_gather(prove->rank->comm, prove->own + at, part * sizeof *sums, prove->chunks);
        for (unsigned r = 0; dense && result == ZR_OK && r < prove->rank->config->world; r++)
            for (size_t i = 0; i < part; i++)
                sums[at + i] += prove->chunks[r * part + i];
    }
    return result == ZR_OK && dense ? put(dense, &dense->layout.parameters[index], state, sums, count)
                                    : result;
}

/* Starts the dense step from the run's state, so that rounding does not accumulate. */
static zr_result copy_run_state(struct zr_prove *prove)
{
    zr_engine *run = prove->rank->state.engine;
    unsigned states = 1 + run->optimizer->slots_count;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < prove->whole.model.list.parameters_count; i++)
        for (unsigned state = 0; state < states && result == ZR_OK && !is_frozen(prove, i); state++)
            result = copy_to_dense(prove, i, state);
    if (result == ZR_OK && prove->dense.engine)
        result = zr_engine_publish(prove->dense.engine, zr_engine_steps_done(run));
    return zr_comm_all_status(prove->rank->comm, result);
}

/* ---- A step -------------------------------------------------------------------------------------------- */

/* Result of the dense step, on all ranks. */
struct dense_step {
    double loss, norm;
    bool skipped;
    bool overflows_soon; /* for a step skipped only by the run */
};

/* The dense rank's step at `factor` times the run's loss scale. It has the micro-batches of all data
 * and context ranks, each with a smaller share of the loss, so a scale larger by this factor keeps gradients
 * at the run's size. */
static zr_result step_dense(struct zr_prove *prove, const struct zr_prove_step *step, double factor,
                            struct dense_step *out)
{
    struct zr_step_report report = {0};
    double scale = step->loss_scale * zr_train_shards(prove->rank->config) * factor;
    zr_result result = ZR_OK;
    if (step->loss_scale > 0)
        result = zr_engine_set_scaling(
            prove->dense.engine,
            &(struct zr_loss_scale){.scale = (float)(scale < ZR_LOSS_SCALE_MAX ? scale : ZR_LOSS_SCALE_MAX),
                                    .hysteresis_left = 1});
    if (result == ZR_OK)
        result =
            zr_trainer_step(prove->dense.trainer,
                            &(struct zr_step_calls){.state = prove, .load = load, .update = update}, &report);
    out->loss = prove->loss;
    out->norm = report.gradient_norm;
    out->skipped = report.skipped;
    return result;
}

/* If only the dense step overflows, repeats it with a smaller scale, which gives the same gradients. */
static zr_result step_dense_like_run(struct zr_prove *prove, const struct zr_prove_step *step,
                                     struct dense_step *out)
{
    zr_result result = step_dense(prove, step, 1, out);
    for (double factor = 0.5;
         result == ZR_OK && out->skipped && !step->skipped && factor * OVERFLOW_MARGIN >= 1; factor /= 2)
        result = step_dense(prove, step, factor, out);
    return result;
}

/* Sends rank 0's result to all ranks. */
static zr_result broadcast_step(struct zr_prove *prove, zr_result result, struct dense_step *dense)
{
    struct dense_step all[ZR_MAX_WORLD];
    result = zr_comm_all_status(prove->rank->comm, result);
    if (result == ZR_OK)
        result = zr_comm_host_all_gather(prove->rank->comm, dense, sizeof *dense, all);
    if (result == ZR_OK)
        *dense = all[0];
    return result;
}

/* Finds whether the dense rank is close to an overflow, for a step that only the run skipped. Collective. */
static zr_result find_overflow(struct zr_prove *prove, const struct zr_prove_step *step,
                               struct dense_step *dense)
{
    struct dense_step larger = {0};
    zr_result result = copy_run_state(prove); /* undoes the update of the dense step */
    if (result == ZR_OK && prove->rank->rank == 0)
        result = step_dense(prove, step, OVERFLOW_MARGIN, &larger);
    dense->overflows_soon = larger.skipped;
    return broadcast_step(prove, result, dense);
}

/* ---- Results ------------------------------------------------------------------------------------------- */

/* Whether a difference exceeds the tolerance; true for NaN. */
static bool is_too_far(const struct zr_prove *prove, double far)
{
    return !(far <= prove->tolerance);
}

static double worse(double a, double b)
{
    return a > b || a != a ? a : b;
}

/* Fails with the first tensor that differs too much, and the kind that differs most. */
static zr_result check_tensors(struct zr_prove *prove, const struct zr_prove_step *step, bool norm_differs)
{
    static const char *const kinds[KINDS] = {"", "the gradient of "};
    const struct zr_parameter_list *list = &prove->whole.model.list;
    const double *far = prove->far + list->parameters_count * KINDS;
    double furthest = prove->tolerance;
    size_t tensor = 0;
    unsigned who = 0, what = KINDS;

    for (size_t i = 0; i < list->parameters_count && what == KINDS; i++)
        for (unsigned kind = KINDS; kind-- > 0;)
            for (unsigned r = 0; r < prove->rank->config->world; r++) {
                double here = far[(r * list->parameters_count + i) * KINDS + kind];
                prove->max_difference[2 + kind] = worse(here, prove->max_difference[2 + kind]);
                if (is_too_far(prove, here) && !(here <= furthest)) {
                    furthest = here;
                    tensor = i;
                    who = r;
                    what = kind;
                }
            }
    if (what == KINDS)
        return ZR_OK;
    double times = what == MOMENTUM ? GRADIENTS_MORE : 1;
    return zr_fail(
        ZR_ERR_CORRUPT,
        "--prove: after step %" PRIu64 " %s%s (unit %s) is on rank %u by %.2g of its size from that of "
        "one dense rank; %.2g is allowed (--tolerance)%s",
        step->number, kinds[what], list->parameters[tensor].name,
        list->units[list->parameters[tensor].unit].name, who, times * furthest, times * prove->tolerance,
        norm_differs && prove->rank->config->optimizer.clip > 0
            ? "; the norm differs too, and clipping by it changes every tensor: --clip 0 names the first that "
              "is wrong"
            : "");
}

/* Fails if loss, norm or tensors differ. If only one of the two runs skipped the step, there are no gradients
 * to compare. */
static zr_result check_step(struct zr_prove *prove, const struct zr_prove_step *step,
                            const struct dense_step *dense)
{
    const char *const names[2] = {"the loss", "the norm of the gradients"};
    const double run[2] = {step->loss, step->gradient_norm}, theirs[2] = {dense->loss, dense->norm};
    unsigned count = step->skipped || dense->skipped ? 1 : 2;
    double far[2] = {0, 0};

    if (dense->skipped && !step->skipped)
        return zr_fail(ZR_ERR_CORRUPT,
                       "--prove: step %" PRIu64
                       " is skipped on one dense rank at a %dth of the run's loss scale, "
                       "for a gradient that is not finite in fp16, and the run has found none",
                       step->number, OVERFLOW_MARGIN);
    if (step->skipped && !dense->skipped && !dense->overflows_soon)
        return zr_fail(ZR_ERR_CORRUPT,
                       "--prove: step %" PRIu64
                       " is skipped for a gradient that is not finite in fp16, and on one dense rank "
                       "all are finite at %d times the loss scale",
                       step->number, OVERFLOW_MARGIN);
    for (unsigned i = 0; i < count; i++) {
        far[i] = fabs(run[i] - theirs[i]) / fabs(theirs[i]);
        prove->max_difference[i] = worse(far[i], prove->max_difference[i]);
    }
    zr_result result =
        step->skipped != dense->skipped ? ZR_OK : check_tensors(prove, step, is_too_far(prove, far[1]));
    for (unsigned i = 0; i < count && result == ZR_OK; i++)
        if (is_too_far(prove, far[i]))
            result =
                zr_fail(ZR_ERR_CORRUPT,
                        "--prove: %s of step %" PRIu64 " is %.9g, and %.9g on one dense rank; %.2g of it may "
                        "differ (--tolerance), and no tensor does",
                        names[i], step->number, run[i], theirs[i], prove->tolerance);
    return result;
}

zr_result zr_prove_step(struct zr_prove *prove, const struct zr_prove_step *step)
{
    struct dense_step dense = {0};
    zr_result result = zr_engine_synchronize(prove->rank->state.engine);
    prove->step = step->number;
    if (result == ZR_OK && prove->rank->rank == 0)
        result = step_dense_like_run(prove, step, &dense);
    result = broadcast_step(prove, result, &dense);
    if (result == ZR_OK && step->skipped == dense.skipped)
        result = compare_tensors(prove, step);
    else if (result == ZR_OK && step->skipped)
        result = find_overflow(prove, step, &dense);
    prove->steps++;
    prove->skipped += step->skipped;
    if (result == ZR_OK)
        result = check_step(prove, step, &dense);
    return result == ZR_OK ? copy_run_state(prove) : result;
}

void zr_prove_print(const struct zr_prove *prove)
{
    char gradients[64] = " of their size";
    if (prove->has_momentum)
        snprintf(gradients, sizeof gradients, ", their gradients by %.1e of their size",
                 GRADIENTS_MORE * prove->max_difference[2 + MOMENTUM]);
    if (prove->steps > prove->skipped)
        zr_say(
            "proved: beside one dense rank the loss differs by %.1e at most, the norm of the gradients by %.1e, "
            "tensors by %.1e%s",
            prove->max_difference[0], prove->max_difference[1], prove->max_difference[2 + PARAMETER],
            gradients);
    else
        zr_say(
            "proved: beside one dense rank the loss differs by %.1e at most, and nothing more: every step was "
            "skipped for a gradient that is not finite in fp16; give a lower --loss-scale-power, or more --steps",
            prove->max_difference[0]);
    if (prove->skipped && prove->steps > prove->skipped)
        zr_say(
            "of %" PRIu64 " of %" PRIu64
            " steps the loss alone was compared: they were skipped for a gradient that is not finite in fp16",
            prove->skipped, prove->steps);
}
