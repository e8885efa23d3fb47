/* cuda_kernel_rules.h: what the kernels of cuda_kernel_rules.cu take. */
#ifndef ZR_TEST_CUDA_KERNEL_RULES_H
#define ZR_TEST_CUDA_KERNEL_RULES_H

struct rule_arguments {
    float *x;
    const float *y;
    unsigned long long *counter;
    unsigned n;
    float number;
};

#endif
