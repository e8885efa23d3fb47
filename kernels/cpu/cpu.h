/* cpu.h: the operations that have a file of their own, for cpu.c's table. Contracts: kernels/zr_kernels.h. */
#ifndef ZR_KERNELS_CPU_H
#define ZR_KERNELS_CPU_H

#include "kernels/cpu/context.h"

void zr_cpu_attention_forward(struct zr_kernel_context *context, const struct zr_attention *shape,
                              const float *qkv, float *out, float *lse, float *p);
void zr_cpu_attention_backward(struct zr_kernel_context *context, const struct zr_attention *shape,
                               const float *qkv, const float *out, const float *lse, const float *p,
                               const float *dout, float *dqkv);
void zr_cpu_head_loss(struct zr_kernel_context *context, const struct zr_head *shape, const float *x,
                      const float *wte, float *losses, float scale, float *dx, float *dwte, bool accumulate);
void zr_cpu_head_logits(struct zr_kernel_context *context, const struct zr_head *shape, const float *x_row,
                        const float *wte, float *logits);

#endif
