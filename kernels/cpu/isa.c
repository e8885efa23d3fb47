/* isa.c: which instruction set the arithmetic runs on. GCC's run-time checks ask the processor and whether
 * the system saves the wide registers. */
#include "kernels/cpu/loops.h"

static const char *const isa_names[ZR_ISA_COUNT] = {"plain", "avx2", "avx512", "avx512_bf16"};

const char *zr_isa_name(enum zr_isa isa)
{
    return (unsigned)isa < ZR_ISA_COUNT ? isa_names[isa] : "unknown";
}

enum zr_isa zr_isa_best(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return ZR_ISA_PLAIN;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return ZR_ISA_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? ZR_ISA_AVX512_BF16 : ZR_ISA_AVX512;
}

const struct zr_loops *zr_loops_of(enum zr_isa isa)
{
    switch (isa) {
    case ZR_ISA_AVX512:
    case ZR_ISA_AVX512_BF16:
        return &zr_loops_avx512;
    case ZR_ISA_AVX2:
        return &zr_loops_avx2;
    default:
        return &zr_loops_plain;
    }
}
