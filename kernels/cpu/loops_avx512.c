/* loops_avx512.c: the inner loops for AVX-512 F, BW, DQ and VL. kernels.mk gives this file its compiler
 * flags. */
#define ZR_LOOPS zr_loops_avx512
#include "kernels/cpu/loops_body.h"
