/* zr_sgd.h: SGD with momentum over fp32 numbers; zr_kernels.h has the table's update_sgd() for all
 * precisions. */
#ifndef ZR_SGD_H
#define ZR_SGD_H

#include "kernels/zr_kernels.h"

/* In place over n elements of one shard. The bits depend neither on the instruction set nor on the threads.
 * `g` is read only. */
void zr_kernel_sgd(struct zr_kernel_context *context, const struct zr_sgd *how, size_t n, float *parameter,
                   const float *g, float *momentum);

#endif
