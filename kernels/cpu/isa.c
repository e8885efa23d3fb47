/* isa.c: detection of the instruction set, and its tables. GCC's run-time checks test the processor and
 * whether the kernel saves wide registers; AMX is detected with cpuid. */
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/products/panels.h"

#include <cpuid.h>

int arch_prctl(int code, unsigned long argument); /* glibc exports it without a declaration */

/* Since Linux 5.16 a process must request permission for AMX tiles; repeating the request is harmless. */
static bool has_amx(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) /* bf16, tile */
        return false;
    return arch_prctl(REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* fp16 conversions. Not every compiler knows this name. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1;
}

enum zr_isa zr_isa_best(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return ZR_ISA_PLAIN;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return ZR_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512bf16"))
        return ZR_ISA_AVX512;
    return has_amx() ? ZR_ISA_AMX : ZR_ISA_AVX512_BF16;
}

extern const struct zr_loops zr_loops_plain_fp32, zr_loops_plain_bf16, zr_loops_plain_fp16,
    zr_loops_avx2_fp32, zr_loops_avx2_bf16, zr_loops_avx2_fp16, zr_loops_avx512_fp32, zr_loops_avx512_bf16,
    zr_loops_avx512_fp16;

#define LOOPS(isa)                                                                                           \
    {                                                                                                        \
        &zr_loops_##isa##_fp32, &zr_loops_##isa##_bf16, &zr_loops_##isa##_fp16                               \
    }
const struct zr_loops *const zr_loops_of[ZR_ISA_COUNT][ZR_PRECISION_COUNT] = {
    LOOPS(plain), LOOPS(avx2), LOOPS(avx512), LOOPS(avx512), LOOPS(avx512)};

const struct zr_panels *zr_panels_of(enum zr_isa isa, enum zr_precision precision)
{
    if (precision == ZR_PRECISION_BF16 && isa == ZR_ISA_AMX)
        return &zr_panels_amx;
    if (precision == ZR_PRECISION_BF16 && isa == ZR_ISA_AVX512_BF16)
        return &zr_panels_avx512_bf16;
    return isa >= ZR_ISA_AVX512 ? &zr_panels_avx512 : isa == ZR_ISA_AVX2 ? &zr_panels_avx2 : &zr_panels_plain;
}
