/* loops_avx512_fp32.c: the inner loops on floats for AVX-512 F, BW, DQ and VL. Compiler flags: kernels.mk. */
#define ZR_LOOPS           zr_loops_avx512_fp32
#define ZR_LOOPS_PRECISION 0
#include "kernels/cpu/loops/loops_body.h"
