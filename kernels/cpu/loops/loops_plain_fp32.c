/* loops_plain_fp32.c: the inner loops on floats for plain x86-64 (SSE2). Compiler flags: kernels.mk. */
#define ZR_LOOPS           zr_loops_plain_fp32
#define ZR_LOOPS_PRECISION 0
#include "kernels/cpu/loops/loops_body.h"
