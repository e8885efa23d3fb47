/* cpu.h: declarations of operations for the table in cpu.c. Contracts: kernels/zr_kernels.h. */
#ifndef ZR_KERNELS_CPU_H
#define ZR_KERNELS_CPU_H

#include "kernels/cpu/context.h"

#define ZR_CPU(name) zr_result zr_cpu_##name(struct zr_kernel_context *context, const struct zr_##name *args)

ZR_CPU(linear_forward); /* cpu.c */
ZR_CPU(linear_backward);

/* fp8.c: for shapes with fp8 that zr_fp8_suits() accepts. */
zr_result zr_cpu_fp8_forward(struct zr_kernel_context *context, const struct zr_linear_forward *args);
zr_result zr_cpu_fp8_backward(struct zr_kernel_context *context, const struct zr_linear_backward *args);

ZR_CPU(attention_forward); /* attention.c */
ZR_CPU(attention_backward);

ZR_CPU(weigh_gradients); /* optimizers.c */
ZR_CPU(update_adamw);
ZR_CPU(update_sgd);
ZR_CPU(update_adamw8);
ZR_CPU(block8_read);
ZR_CPU(block8_write);
ZR_CPU(factor_sums);
ZR_CPU(factor_moments);
ZR_CPU(factor_norm);
ZR_CPU(update_factored);
ZR_CPU(muon_direction);
ZR_CPU(orthogonalize);
ZR_CPU(apply_direction);
ZR_CPU(lamb_norms);
ZR_CPU(update_lamb);
ZR_CPU(average);
ZR_CPU(outer_step);

ZR_CPU(sum_of_squares); /* state.c */
ZR_CPU(find_nonfinite);
ZR_CPU(checksum);
ZR_CPU(init_normal);
ZR_CPU(convert);
ZR_CPU(clear);
ZR_CPU(copy_bytes);
ZR_CPU(pack);
ZR_CPU(unpack);

/* Sum over n elements: sum() returns that of one block, elements [from, to). The order of additions is that
 * of sum_of_squares(). */
enum { ZR_SQUARES_BLOCK = 4096 };
struct zr_block_sums {
    double (*sum)(const void *args, size_t from, size_t to);
    const void *args;
    size_t n;
    double *total;
};
zr_result zr_cpu_sum_blocks(struct zr_kernel_context *context, const struct zr_block_sums *work);

#endif
