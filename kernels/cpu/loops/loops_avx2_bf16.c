/* loops_avx2_bf16.c: the inner loops on bf16 for AVX2, FMA and F16C. Compiler flags: kernels.mk. */
#define ZR_LOOPS           zr_loops_avx2_bf16
#define ZR_LOOPS_PRECISION 1
#include "kernels/cpu/loops/loops_body.h"
