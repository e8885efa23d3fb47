/* panels_avx2.c: products of two-byte matrices on AVX2, FMA and F16C: panels of floats. */
#define ZR_PANELS zr_panels_avx2
#include "kernels/cpu/products/panels_body.h"
