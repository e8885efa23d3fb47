/* loops_avx2_fp32.c: the inner loops on floats for AVX2, FMA and F16C. kernels.mk gives it its
 * compiler flags. */
#define ZR_LOOPS           zr_loops_avx2_fp32
#define ZR_LOOPS_PRECISION 0
#include "kernels/cpu/loops/loops_body.h"
