/* names.c: names of instruction sets, precisions and packings, and sizes of elements. */
#include "kernels/packing.h"
#include "kernels/sizes.h"

static const char *const isa_names[ZR_ISA_COUNT] = {"plain", "avx2", "avx512", "avx512_bf16", "amx"};
static const char *const precision_names[ZR_PRECISION_COUNT] = {"fp32", "bf16", "fp16"};

static const char *const packing_names[ZR_PACKINGS_COUNT] = {"onebit", "int8", "int4", "int4_rotated",
                                                             "mxfp8"};

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

const char *zr_packing_name(enum zr_packing packing)
{
    return (unsigned)packing < ZR_PACKINGS_COUNT ? packing_names[packing] : "unknown";
}

size_t zr_pack_bytes(enum zr_packing packing, size_t n)
{
    return zr_times(n / ZR_PACK_BLOCK + (n % ZR_PACK_BLOCK != 0), zr_pack_block_bytes(packing));
}
