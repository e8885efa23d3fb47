/* context.h: the contents of a context, the layout of its workspace, and dividing work over its threads.
 * Private to kernels/cpu. */
#ifndef ZR_KERNELS_CONTEXT_H
#define ZR_KERNELS_CONTEXT_H

#include "kernels/cpu/loops/loops.h"

/* Functions of the table. */
size_t zr_cpu_workspace_bytes(const struct zr_kernel_limits *limits, enum zr_isa isa);
zr_result zr_cpu_open(struct zr_kernel_context *context);
void zr_cpu_close(struct zr_kernel_context *context);

/* Runs task(argument, part, parts) on the context's threads; on the calling thread if there is one part.
 * ZR_ERR_INVALID: the context is not open. */
zr_result zr_parallel_run(struct zr_kernel_context *context, void (*task)(void *, unsigned, unsigned),
                          void *argument);

/* Runs loop(args, from, to) over [0, n), divided over the threads at multiples of `grain`. */
zr_result zr_loop_run(struct zr_kernel_context *context, zr_loop *loop, const void *args, size_t n,
                      size_t grain);

/* Scratch of at least `bytes` for the current operation. ZR_ERR_INVALID: the problem exceeds the limits of
 * the workspace. */
zr_result zr_context_scratch(const struct zr_kernel_context *context, size_t bytes, void **out);

static inline unsigned zr_context_threads(const struct zr_kernel_context *context)
{
    return context->parallel.threads == 0 ? 1 : context->parallel.threads;
}

/* Scratch per thread for products, at the start of the workspace. */
#define ZR_THREAD_SCRATCH_BYTES ((size_t)2 << 20)
/* Maximum of partial results between the two halves of a reduction. */
#define ZR_PARTIAL_BYTES ((size_t)4096 * sizeof(double))

/* Sizes for backward of the embedding: chains of rows with the same token, and slots of a hash table, a power
 * of 2. */
size_t zr_chains_slots(size_t rows);
size_t zr_chains_bytes(size_t rows);

static inline size_t zr_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

enum {
    ZR_LINE_ELEMENTS = 32, /* elements in a cache line, which threads should not share */
    ZR_GRAIN = 4096,       /* minimum of elements per thread */
};

#endif
