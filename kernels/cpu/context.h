/* context.h: what a context holds, how its workspace is cut, and how work is spread over the lent threads.
 * Private to kernels/cpu. */
#ifndef ZR_KERNELS_CONTEXT_H
#define ZR_KERNELS_CONTEXT_H

#include "kernels/cpu/loops.h"

struct zr_gemm_state;

/* Runs task(argument, part, parts) on the context's threads; inline when there is one. */
void zr_parallel_run(struct zr_kernel_context *context, void (*task)(void *, unsigned, unsigned),
                     void *argument);

/* [*from, *to) of [0, n) for one part, cut at multiples of `grain`. */
void zr_part_range(size_t n, size_t grain, unsigned part, unsigned parts, size_t *from, size_t *to);

/* Scratch that an operation may use as it likes until it ends: at least `bytes` of it. Operations have no way
 * to fail, so a problem beyond the limits that the workspace was sized for stops the process here, in place
 * of writing past the end. */
void *zr_context_scratch(const struct zr_kernel_context *context, size_t bytes);
struct zr_gemm_state *zr_context_gemm(const struct zr_kernel_context *context);

void zr_kernel_fail(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

/* Each thread's own, for products; at the start of the workspace. */
#define ZR_THREAD_SCRATCH_BYTES ((size_t)2 << 20)
/* Partial results that reductions keep between their two halves. */
#define ZR_PARTIAL_BYTES ((size_t)4096 * sizeof(double))
/* The head's logits, a chunk of rows at a time. */
#define ZR_LOGITS_BYTES ((size_t)64 << 20)

/* What the embedding's backward pass takes to find the rows of one token: chains of rows, and the slots of a
 * table (a power of two). */
size_t zr_chains_slots(size_t rows);
size_t zr_chains_bytes(size_t rows);

static inline size_t zr_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

#endif
