/* zr_sgd.h: the update of SGD with momentum, on the processor. */
#ifndef ZR_SGD_H
#define ZR_SGD_H

#include "kernels/zr_kernels.h"

struct zr_sgd {
    float rate, momentum_factor, weight_decay; /* weight_decay already 0 for tensors without decay */
    float gradient_scale;                      /* multiplies each gradient first: clipping */
};

/* momentum = momentum_factor * momentum + g * gradient_scale + weight_decay * parameter, and
 * parameter -= rate * momentum, in place over n elements of one shard. Each product and each sum is rounded,
 * so the bits depend neither on the instruction set nor on the threads. `g` is read only. */
void zr_kernel_sgd(struct zr_kernel_context *context, const struct zr_sgd *how, size_t n, float *parameter,
                   const float *g, float *momentum);

#endif
