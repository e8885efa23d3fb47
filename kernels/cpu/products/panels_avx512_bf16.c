/* panels_avx512_bf16.c: products of bf16 matrices by AVX512_BF16's dot product of pairs. */
#include "kernels/cpu/loops/simd.h"

VF_INLINE vf vf_pairs(vf sum, vf a, vf b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

#define PANEL_PAIRS
#define ZR_PANELS zr_panels_avx512_bf16
#include "kernels/cpu/products/panels_body.h"
