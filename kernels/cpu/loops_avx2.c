/* loops_avx2.c: the inner loops for AVX2 and FMA. kernels.mk gives this file its compiler flags. */
#define ZR_LOOPS zr_loops_avx2
#include "kernels/cpu/loops_body.h"
