/* loops_avx2_fp32.c: the inner loops on floats for AVX2, FMA and F16C. Compiler flags: kernels.mk. */
#define ZR_LOOPS           zr_loops_avx2_fp32
#define ZR_LOOPS_PRECISION 0
#include "kernels/cpu/loops/loops_body.h"
