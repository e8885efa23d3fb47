/* loops_avx512_fp16.c: the inner loops on fp16 for AVX-512 F, BW, DQ and VL. Compiler flags: kernels.mk. */
#define ZR_LOOPS           zr_loops_avx512_fp16
#define ZR_LOOPS_PRECISION 2
#include "kernels/cpu/loops/loops_body.h"
