/* kernel_pairs_test.c: products of two-byte matrices through AVX512_BF16's table of panels with its one
 * instruction done by hand, so that the packing of pairs and all the rest of that table is tested on any
 * processor with AVX-512. */
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

int main(void)
{
    random_state = run_seed();
    if (zr_isa_best() < ZR_ISA_AVX512) { /* nor may this program do more: it is compiled for AVX-512 */
        tap_skip("avx512_bf16 by hand: the rest of it needs AVX-512, which this processor does not have");
        return tap_done();
    }
    check_products("avx512_bf16 by hand", &panels_by_hand, ZR_PRECISION_BF16);
    return tap_done();
}
