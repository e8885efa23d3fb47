/* loops_plain.c: the inner loops for plain x86-64 (SSE2). kernels.mk gives this file its compiler flags. */
#define ZR_LOOPS zr_loops_plain
#include "kernels/cpu/loops_body.h"
