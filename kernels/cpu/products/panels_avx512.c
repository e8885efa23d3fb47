/* panels_avx512.c: products of two-byte matrices on AVX-512: panels of floats. */
#define ZR_PANELS zr_panels_avx512
#include "kernels/cpu/products/panels_body.h"
