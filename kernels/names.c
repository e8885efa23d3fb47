/* names.c: names of instruction sets and precisions, and element sizes. */
#include "kernels/zr_kernels.h"

static const char *const isa_names[ZR_ISA_COUNT] = {"plain", "avx2", "avx512", "avx512_bf16", "amx"};
static const char *const precision_names[ZR_PRECISION_COUNT] = {"fp32", "bf16", "fp16"};

const char *zr_isa_name(enum zr_isa isa)
{
    return (unsigned)isa < ZR_ISA_COUNT ? isa_names[isa] : "unknown";
}

const char *zr_precision_name(enum zr_precision precision)
{
    return (unsigned)precision < ZR_PRECISION_COUNT ? precision_names[precision] : "unknown";
}

size_t zr_precision_bytes(enum zr_precision precision)
{
    return precision == ZR_PRECISION_FP32 ? sizeof(float) : sizeof(uint16_t);
}
