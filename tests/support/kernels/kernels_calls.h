/* kernels_calls.h: what a model does with some operations together (embedding, head), and results that are
 * written to memory as values; for the kernels' test programs. */
#ifndef ZR_KERNELS_CALLS_H
#define ZR_KERNELS_CALLS_H

#include <stdlib.h>

#include "tests/support/kernels/kernels_reference.h"

/* Memory that operations use: the program's own, or what a card's program puts in its place
 * (kernels_card.h). */
static void *(*tensor_memory)(size_t alignment, size_t bytes) = aligned_alloc;
static void (*tensor_memory_free)(void *memory) = free;

static inline double squares_of(const struct zr_kernels *k, struct zr_kernel_context *c, size_t n,
                                struct zr_numbers x)
{
    double sum = NAN;
    return k->sum_of_squares(c, &(struct zr_sum_of_squares){n, x, &sum}) == ZR_OK ? sum : NAN;
}

static inline size_t nonfinite_of(const struct zr_kernels *k, struct zr_kernel_context *c, size_t n,
                                  struct zr_numbers x)
{
    size_t index = SIZE_MAX;
    return k->find_nonfinite(c, &(struct zr_find_nonfinite){n, x, &index}) == ZR_OK ? index : SIZE_MAX;
}

static inline uint64_t checksum_of(const struct zr_kernels *k, struct zr_kernel_context *c, size_t bytes,
                                   const void *data)
{
    uint64_t sum = 0;
    return k->checksum(c, &(struct zr_checksum){bytes, data, &sum}) == ZR_OK ? sum : 0;
}

static inline bool embed(const struct zr_kernels *k, struct zr_kernel_context *c,
                         const struct embedding_shape *s, const void *wte, const void *wpe, void *out)
{
    size_t rows = s->batch * s->sequence;
    return k->embedding_forward(c, &(struct zr_embedding_forward){rows, s->channels, s->tokens, 0, 0, wte,
                                                                  out, false}) == ZR_OK &&
           k->positions_forward(c, &(struct zr_positions_forward){.rows = rows,
                                                                  .sequence = s->sequence,
                                                                  .channels = s->channels,
                                                                  .w = wpe,
                                                                  .y = out}) == ZR_OK;
}

struct embedding_gradients {
    void *dwte, *dwpe;
    size_t wte_rows, wpe_rows;
    bool accumulate;
};
static inline bool embed_backward(const struct zr_kernels *k, struct zr_kernel_context *c,
                                  const struct embedding_shape *s, const void *d,
                                  const struct embedding_gradients *g)
{
    size_t rows = s->batch * s->sequence;
    return k->embedding_backward(c, &(struct zr_embedding_backward){rows, s->channels, s->tokens, d, g->dwte,
                                                                    0, g->wte_rows, g->accumulate}) ==
               ZR_OK &&
           k->positions_backward(c, &(struct zr_positions_backward){rows, s->sequence, s->channels, 0, d,
                                                                    g->dwpe, g->wpe_rows, g->accumulate}) ==
               ZR_OK;
}

/* dx NULL: no gradients. */
struct head_call {
    struct head_shape shape;
    const void *x, *wte;
    float *losses;
    float scale;
    void *dx, *dwte;
    bool accumulate;
    float *logits; /* of one's own, [rows, Vp]; NULL: taken and freed */
};

static inline struct zr_linear head_linear(const struct head_shape *s)
{
    return (struct zr_linear){
        .rows = s->rows, .in = s->channels, .out = s->vocabulary_padded, .turned = true};
}

/* All rows at once. */
static inline bool run_head(const struct zr_kernels *k, struct zr_kernel_context *c,
                            const struct head_call *call)
{
    const struct head_shape *s = &call->shape;
    struct zr_linear linear = head_linear(s);
    float *logits = call->logits != NULL
                        ? call->logits
                        : tensor_memory(64, (s->rows * linear.out * sizeof *logits + 63) / 64 * 64);
    bool good =
        logits != NULL && k->linear_forward(c, &(struct zr_linear_forward){linear, call->x, call->wte, NULL,
                                                                           logits, true}) == ZR_OK;
    good = good && k->cross_entropy(c, &(struct zr_cross_entropy){.rows = s->rows,
                                                                  .columns = s->vocabulary,
                                                                  .stride = linear.out,
                                                                  .targets = s->targets,
                                                                  .logits = logits,
                                                                  .losses = call->losses,
                                                                  .gradient = call->dx != NULL,
                                                                  .scale = call->scale}) == ZR_OK;
    linear.y_stride = linear.out * sizeof(float) / zr_precision_bytes(c->precision);
    if (call->dx != NULL)
        good = good && k->linear_backward(c, &(struct zr_linear_backward){linear, call->x, call->wte, logits,
                                                                          call->dx, call->dwte, NULL, false,
                                                                          call->accumulate, false}) == ZR_OK;
    if (logits != call->logits)
        tensor_memory_free(logits);
    return good;
}

#endif
