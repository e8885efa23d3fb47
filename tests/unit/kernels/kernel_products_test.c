/* kernel_products_test.c: products of two-byte matrices through each table of panels that this processor can
 * run.
 */
#include "kernels/cpu/products/panels.h"
#include "tests/support/kernels/kernels_products.h"

int main(void)
{
    static const struct {
        const char *name;
        enum zr_isa needs;
        const struct zr_panels *panels;
        bool fp16;
    } tables[] = {{"plain", ZR_ISA_PLAIN, &zr_panels_plain, true},
                  {"avx2", ZR_ISA_AVX2, &zr_panels_avx2, true},
                  {"avx512", ZR_ISA_AVX512, &zr_panels_avx512, true},
                  {"avx512_bf16", ZR_ISA_AVX512_BF16, &zr_panels_avx512_bf16, false}};
    random_state = run_seed();
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (zr_isa_best() < tables[i].needs) {
            tap_skip("%s: this processor does not have it", tables[i].name);
            continue;
        }
        check_products(tables[i].name, tables[i].panels, ZR_PRECISION_BF16);
        if (tables[i].fp16)
            check_products(tables[i].name, tables[i].panels, ZR_PRECISION_FP16);
    }
    return tap_done();
}
