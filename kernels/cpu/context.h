/* context.h: what a context holds, how its workspace is cut, and how work is spread over the lent threads.
 * Private to kernels/cpu. */
#ifndef ZR_KERNELS_CONTEXT_H
#define ZR_KERNELS_CONTEXT_H

#include "kernels/cpu/loops/loops.h"

/* The table's own. */
size_t zr_cpu_workspace_bytes(const struct zr_kernel_limits *limits, enum zr_isa isa);
zr_result zr_cpu_open(struct zr_kernel_context *context);
void zr_cpu_close(struct zr_kernel_context *context);

/* Runs task(argument, part, parts) on the context's threads; inline when there is one. ZR_ERR_INVALID: the
 * context is not open. */
zr_result zr_parallel_run(struct zr_kernel_context *context, void (*task)(void *, unsigned, unsigned),
                          void *argument);

/* Runs loop(args, from, to) over [0, n), cut over the threads at multiples of `grain`. */
zr_result zr_loop_run(struct zr_kernel_context *context, zr_loop *loop, const void *args, size_t n,
                      size_t grain);

/* Scratch that an operation may use as it likes until it ends: at least `bytes` of it. ZR_ERR_INVALID: the
 * problem is beyond the limits that the workspace was sized for. */
zr_result zr_context_scratch(const struct zr_kernel_context *context, size_t bytes, void **out);

static inline unsigned zr_context_threads(const struct zr_kernel_context *context)
{
    return context->parallel.threads == 0 ? 1 : context->parallel.threads;
}

/* Each thread's own, for products; at the start of the workspace. */
#define ZR_THREAD_SCRATCH_BYTES ((size_t)2 << 20)
/* Partial results that reductions keep between their two halves. */
#define ZR_PARTIAL_BYTES ((size_t)4096 * sizeof(double))

/* What the embedding's backward pass takes to find the rows of one token: chains of rows, and the slots of a
 * table (a power of two). */
size_t zr_chains_slots(size_t rows);
size_t zr_chains_bytes(size_t rows);

static inline size_t zr_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

enum {
    ZR_LINE_ELEMENTS = 32, /* what no two threads should share */
    ZR_GRAIN = 4096,       /* what is worth a thread */
};

#endif
