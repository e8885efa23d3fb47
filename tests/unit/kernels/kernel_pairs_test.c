/* kernel_pairs_test.c: products of two-byte matrices through each table of panels that this processor can
 * run, and through AVX512_BF16's with its one instruction done by hand, so that the packing of pairs and all
 * the rest of that table is tested on any processor with AVX-512. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/products/panels.h"
#include "kernels/cpu/loops/simd.h"

/* VDPBF16PS: the odd product, then the even one, each added without rounding in between. */
static vf vf_pairs(vf sum, vf a, vf b)
{
    for (int i = 0; i < VF_LANES; i++) {
        float left[2], right[2];
        uint32_t both[2];
        memcpy(&both[0], (float *)&a + i, 4);
        memcpy(&both[1], (float *)&b + i, 4);
        for (int odd = 0; odd < 2; odd++) {
            uint32_t l = odd ? both[0] & 0xffff0000 : both[0] << 16,
                     r = odd ? both[1] & 0xffff0000 : both[1] << 16;
            memcpy(&left[odd], &l, 4);
            memcpy(&right[odd], &r, 4);
        }
        sum[i] = fmaf(left[0], right[0], fmaf(left[1], right[1], sum[i]));
    }
    return sum;
}

#define PANEL_PAIRS
#define ZR_PANELS      panels_by_hand
#define PANELS_STORAGE static
#include "kernels/cpu/products/panels_body.h"
#include "tests/support/kernels/kernels_products.h"

static void check_both(const char *name, const struct zr_panels *panels)
{
    check_products(name, panels, ZR_PRECISION_BF16);
    check_products(name, panels, ZR_PRECISION_FP16);
}

int main(void)
{
    enum zr_isa best = zr_isa_best();
    random_state = random_seed();
    check_both("plain", &zr_panels_plain);
    if (best >= ZR_ISA_AVX2)
        check_both("avx2", &zr_panels_avx2);
    else
        tap_skip("avx2: this processor does not have it");
    if (best < ZR_ISA_AVX512) {
        tap_skip("avx512: this processor does not have it");
        tap_skip("avx512_bf16 by hand: the rest of it needs AVX-512");
        return tap_done();
    }
    check_both("avx512", &zr_panels_avx512);
    check_products("avx512_bf16 by hand", &panels_by_hand, ZR_PRECISION_BF16);
    if (best >= ZR_ISA_AVX512_BF16)
        check_products("avx512_bf16", &zr_panels_avx512_bf16, ZR_PRECISION_BF16);
    else
        tap_skip("avx512_bf16: this processor does not have it");
    if (best >= ZR_ISA_AMX)
        check_products("amx", &zr_panels_amx, ZR_PRECISION_BF16);
    else
        tap_skip("amx: this processor does not have it");
    return tap_done();
}
