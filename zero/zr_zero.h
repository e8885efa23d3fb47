/* zr_zero.h: the ZeRO stage engine: where the parameters, gradients and optimizer state of a model live, and
 * how they travel between the ranks. The model (zero/gpt.h, or one's own) computes; the engine places and
 * moves.
 *
 * Parameters are grouped into units, the pieces that are gathered and reduced together (a transformer block
 * is one). Within a unit the tensors lie one after the other, each starting on 16 elements, and the unit is
 * padded so that every rank owns an equal, contiguous shard of it, a multiple of 64 elements. Initial values
 * come from the global element index (counted without padding), so they depend on neither stage nor world
 * size.
 *
 * Stage 0 replicates everything; stage 1 shards the optimizer state. The stage changes where bytes live,
 * never what is computed: losses are bit-identical at a fixed world size.
 *
 * An engine is used by one thread, in the same order on every rank. */
#ifndef ZR_ZERO_H
#define ZR_ZERO_H

#include "alloc/zr.h"
#include "kernels/zr_kernels.h"
#include "zero/comm/zr_comm.h"

struct zr_parameter {
    char name[48];   /* "h.0.attn.c_attn.weight" */
    size_t shape[2]; /* shape[1] == 0: a vector */
    unsigned unit;   /* index into the units; parameters come sorted by unit */
    bool decay;      /* weight decay applies (matrices) */
    float init_mean, init_deviation;
};

struct zr_unit {
    char name[24];          /* "h.0" */
    unsigned contributions; /* gradients per step: 2 for a tied embedding, else 1 */
};

/* The model's parameters; the arrays are borrowed while zr_engine_create() runs and copied. */
struct zr_parameter_list {
    const struct zr_parameter *parameters;
    size_t parameters_count;
    const struct zr_unit *units;
    size_t units_count;
};

/* Numbers of elements, without padding. 0 on overflow. */
uint64_t zr_parameter_elements(const struct zr_parameter *parameter);
uint64_t zr_parameter_list_elements(const struct zr_parameter_list *list);

struct zr_adamw_options {
    float beta1, beta2, epsilon, weight_decay;
    float clip; /* largest gradient norm; 0: no clipping */
};

struct zr_engine_options {
    zr_arena *arena;                   /* tensors: any backend */
    zr_arena *host_arena;              /* records: host memory, tag other */
    const struct zr_kernels *kernels;  /* the null table makes a dry run: placement and counts only */
    struct zr_kernel_context *context; /* borrowed */
    zr_comm *comm;                     /* borrowed */
    struct zr_parameter_list list;
    unsigned stage; /* 0 or 1 */
    uint64_t seed;
    struct zr_adamw_options adamw;
};

typedef struct zr_engine zr_engine;

/* Takes all persistent memory, fills the parameters with their initial values and the optimizer state with
 * zeros, and proves by checksum that all replicas agree. Collective. ZR_ERR_INVALID: a stage that is not
 * there, an empty list, units out of order. ZR_ERR_MEMORY: does not fit. */
zr_result zr_engine_create(zr_engine **out, const struct zr_engine_options *options);
void zr_engine_destroy(zr_engine *engine);

/* The elements of a unit in order, ready to be read until zr_engine_release(). Waits for what is still under
 * way. The parameter with index i lies at zr_engine_offset(engine, i) elements from the base of its unit. */
zr_result zr_engine_gather(zr_engine *engine, unsigned unit, const float **base);
void zr_engine_release(zr_engine *engine, unsigned unit);
size_t zr_engine_offset(const zr_engine *engine, size_t parameter);

/* Where the gradients of a unit are to be written, whole, with the layout of the parameters; padding stays
 * untouched. *accumulate tells whether to add to what is there. Then zr_engine_reduce() hands them over: the
 * reduction runs while the caller computes on. Each unit gets as many rounds per step as it has
 * contributions. */
zr_result zr_engine_gradients(zr_engine *engine, unsigned unit, float **base, bool *accumulate);
zr_result zr_engine_reduce(zr_engine *engine, unsigned unit);

struct zr_step_report {
    double gradient_norm; /* before clipping; the same bits at every stage */
    float clip_scale;     /* 1: not clipped */
};

/* Ends a step: waits for the reductions, clips, updates, and starts to spread the new parameters. Collective.
 * ZR_ERR_CORRUPT: the norm is not finite, and nothing was updated; the words name the parameter. */
zr_result zr_engine_step(zr_engine *engine, float rate, struct zr_step_report *report);

uint64_t zr_engine_steps_done(const zr_engine *engine);
uint64_t zr_engine_elements(const zr_engine *engine); /* without padding */
uint64_t zr_engine_padded_elements(const zr_engine *engine);

/* Checks that all ranks hold the same parameters. Collective. ZR_ERR_CORRUPT names a rank that differs. */
zr_result zr_engine_verify_replicas(zr_engine *engine);
/* Names the first parameter that is not finite. ZR_OK: all are. ZR_ERR_CORRUPT: words name it. Local. */
zr_result zr_engine_verify_finite(zr_engine *engine);

/* What this rank owns, for saving and loading: pieces of whole parameters without padding, in global order.
 * Each element of the model belongs to exactly one rank, at every stage. */
struct zr_shard_segment {
    uint64_t global_index; /* of the first element, counted without padding */
    size_t count;
    float *parameter, *momentum, *variance;
};
size_t zr_engine_segments_count(const zr_engine *engine);
void zr_engine_segment(const zr_engine *engine, size_t index, struct zr_shard_segment *out);
/* Waits until nothing is under way, so that the segments may be read or written. */
zr_result zr_engine_settle(zr_engine *engine);
/* After the segments were loaded: makes every replica whole again from its owners. `steps_done` is the number
 * of updates the loaded state has seen. Collective. */
zr_result zr_engine_publish(zr_engine *engine, uint64_t steps_done);

#endif
