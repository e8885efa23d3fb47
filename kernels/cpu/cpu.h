/* cpu.h: the operations that have a file of their own, for cpu.c's table. Contracts: kernels/zr_kernels.h. */
#ifndef ZR_KERNELS_CPU_H
#define ZR_KERNELS_CPU_H

#include "kernels/cpu/context.h"

/* c[m, n] (+)= op(a) op(b) + bias[n], of the context's precision. a_turned: a is stored [k, m]; b_turned: b
 * is stored [n, k]. Strides are elements from one stored row to the next; 0: dense. */
struct zr_matrices {
    size_t m, n, k;
    bool a_turned, b_turned, accumulate;
    bool floats; /* c is fp32 at every precision */
    size_t a_stride, b_stride, c_stride;
    const void *a, *b, *bias;
    void *c;
};
void zr_cpu_multiply(struct zr_kernel_context *context, const struct zr_matrices *matrices);

void zr_cpu_attention_forward(struct zr_kernel_context *context, const struct zr_attention *shape,
                              const void *qkv, void *out, float *lse, void *p);
void zr_cpu_attention_backward(struct zr_kernel_context *context, const struct zr_attention *shape,
                               const void *qkv, const void *out, const float *lse, const void *p,
                               const void *dout, void *dqkv);
void zr_cpu_head_loss(struct zr_kernel_context *context, const struct zr_head *shape, const void *x,
                      const void *wte, float *losses, float scale, void *dx, void *dwte, bool accumulate);
void zr_cpu_head_logits(struct zr_kernel_context *context, const struct zr_head *shape, const void *x_row,
                        const void *wte, float *logits);

void zr_cpu_rmsnorm_forward(struct zr_kernel_context *context, const struct zr_rmsnorm *args);
void zr_cpu_rmsnorm_backward(struct zr_kernel_context *context, const struct zr_rmsnorm_backward *args);
void zr_cpu_rotary_table(struct zr_kernel_context *context, const struct zr_rotary_table *args);
void zr_cpu_rotary(struct zr_kernel_context *context, const struct zr_rotary *args);
void zr_cpu_swiglu_forward(struct zr_kernel_context *context, const struct zr_swiglu *args);
void zr_cpu_swiglu_backward(struct zr_kernel_context *context, const struct zr_swiglu_backward *args);

/* state.c: the engine's state, whatever the context's precision. */
void zr_cpu_adamw(struct zr_kernel_context *context, const struct zr_adamw *how, size_t n, float *parameter,
                  const float *g, float *momentum, float *variance);
void zr_cpu_update_adamw(struct zr_kernel_context *context, const struct zr_adamw *how,
                         const struct zr_update *update);
void zr_cpu_update_sgd(struct zr_kernel_context *context, const struct zr_sgd *how,
                       const struct zr_update *update);
double zr_cpu_sum_of_squares(struct zr_kernel_context *context, size_t n, const float *x);
double zr_cpu_sum_of_squares_in(struct zr_kernel_context *context, size_t n, struct zr_numbers x);
size_t zr_cpu_find_nonfinite(struct zr_kernel_context *context, size_t n, const float *x);
size_t zr_cpu_find_nonfinite_in(struct zr_kernel_context *context, size_t n, struct zr_numbers x);
void zr_cpu_init_normal(struct zr_kernel_context *context, size_t n, uint64_t seed, uint64_t first_index,
                        float mean, float deviation, float *x);
void zr_cpu_convert(struct zr_kernel_context *context, size_t n, struct zr_numbers from,
                    struct zr_numbers to);
void zr_cpu_fill(struct zr_kernel_context *context, size_t n, float value, float *x);
void zr_cpu_clear(struct zr_kernel_context *context, size_t bytes, void *to);
void zr_cpu_copy(struct zr_kernel_context *context, size_t bytes, const void *from, void *to);
uint64_t zr_cpu_checksum(struct zr_kernel_context *context, size_t bytes, const void *data);

enum {
    ZR_LINE_ELEMENTS = 32,
    ZR_GRAIN = 4096
}; /* what no two threads should share; what is worth a thread */

#endif
