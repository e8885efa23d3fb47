/* gpt.h: GPT-2 on the stage engine: forward and backward, activations from the arena layer by layer.
 *
 * Units: wte, wpe, h.0 .. h.{L-1}, ln_f. Weights are [in, out] as GPT-2's Conv1D stores them; the head is
 * tied to wte, which therefore gets two gradient contributions per step. Activations and checkpoints are of
 * the engine's precision; the loss, and what softmax and norms keep, are fp32. */
#ifndef ZR_GPT_H
#define ZR_GPT_H

#include "zero/zr_zero.h"

enum zr_recompute {
    ZR_RECOMPUTE_NONE,      /* keep all activations */
    ZR_RECOMPUTE_SELECTIVE, /* make the attention probabilities again in backward */
    ZR_RECOMPUTE_FULL,      /* keep each block's input only, and run the block again in backward */
};

struct zr_gpt_shape {
    size_t layers, hidden, heads;
    size_t vocabulary;        /* entries that can be predicted */
    size_t vocabulary_padded; /* rows stored */
    size_t sequence;          /* tokens per sequence, and positions in wpe */
    size_t batch;             /* sequences per rank and step */
    enum zr_recompute recompute;
};

/* Checks a shape: ZR_ERR_INVALID with words when heads do not divide hidden, anything is zero, or it
 * overflows. */
zr_result zr_gpt_shape_check(const struct zr_gpt_shape *shape);

/* The optimizer's groups: vectors do not decay; the embeddings may have a rate of their own. */
enum zr_gpt_group {
    ZR_GPT_VECTORS = ZR_GROUP_NO_DECAY,
    ZR_GPT_MATRICES = ZR_GROUP_DECAY,
    ZR_GPT_EMBEDDINGS,
    ZR_GPT_GROUPS_COUNT
};

/* Number of parameters in the list and of units. */
size_t zr_gpt_parameters_count(const struct zr_gpt_shape *shape); /* 4 + 12 L */
size_t zr_gpt_units_count(const struct zr_gpt_shape *shape);      /* 3 + L */
/* Fills the caller's arrays of those lengths. */
void zr_gpt_describe(const struct zr_gpt_shape *shape, struct zr_parameter *parameters,
                     struct zr_unit *units);
/* What the kernels must be ready for. */
void zr_gpt_limits(const struct zr_gpt_shape *shape, unsigned threads, struct zr_kernel_limits *out);

/* Floating-point operations of the model's matrix products, forward and backward, for one micro-batch of a
 * rank: without what recomputation does again, and without padding. 72 B T L C^2 (1 + T / 6C + V / 12LC), as
 * Narayanan et al. count (see kernels/null.c); what is counted there for --recompute none. */
double zr_gpt_flops(const struct zr_gpt_shape *shape);

typedef struct zr_gpt zr_gpt;

struct zr_gpt_options {
    struct zr_gpt_shape shape;
    unsigned micro_batches; /* per step; 0: 1. The gradients of each are scaled to its share */
    zr_engine *engine;      /* borrowed, as is all below */
    zr_arena *arena, *host_arena;
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
};

zr_result zr_gpt_create(zr_gpt **out, const struct zr_gpt_options *options);
void zr_gpt_destroy(zr_gpt *model);

/* Where a batch goes before a call: [batch, sequence] each, owned by the model, tag activation. */
int32_t *zr_gpt_tokens(zr_gpt *model);
int32_t *zr_gpt_targets(zr_gpt *model);

/* Forward and backward over a micro-batch; gradients are handed to the engine. *loss is the mean of this
 * rank's tokens in nats (0 in a dry run). Not yet averaged over ranks. ZR_ERR_CORRUPT: the loss is not
 * finite; the words say where it arose; the caller ends the run. */
zr_result zr_gpt_train(zr_gpt *model, double *loss);
/* Forward only, of the first `batch` sequences (at most the shape's). ZR_ERR_CORRUPT as above. */
zr_result zr_gpt_evaluate(zr_gpt *model, size_t batch, double *loss);
/* The logits [vocabulary] that follow the first `count` tokens of the first sequence, for sampling. */
zr_result zr_gpt_logits(zr_gpt *model, size_t count, float *logits);

#endif
