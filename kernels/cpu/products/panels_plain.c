/* panels_plain.c: products of two-byte matrices on plain x86-64 (SSE2): panels of floats. */
#define ZR_PANELS zr_panels_plain
#include "kernels/cpu/products/panels_body.h"
