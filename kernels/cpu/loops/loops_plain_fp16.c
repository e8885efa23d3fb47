/* loops_plain_fp16.c: the inner loops on fp16 for plain x86-64 (SSE2). Compiler flags: kernels.mk. */
#define ZR_LOOPS           zr_loops_plain_fp16
#define ZR_LOOPS_PRECISION 2
#include "kernels/cpu/loops/loops_body.h"
