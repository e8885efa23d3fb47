/* kernel_tiles_test.c: products of bf16 matrices through AMX's table of panels with the tiles done by hand,
 * so that its packing and its order of tiles is tested on any processor with AVX-512. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Eight tiles of 16 rows of 64 bytes, of each thread; `configured` as between LDTILECFG and TILERELEASE. */
static __thread uint32_t tiles[8][16][16];
static __thread int configured;
static int misuses;

static void tiles_begin(void)
{
    __atomic_fetch_add(&misuses, configured, __ATOMIC_RELAXED);
    configured = 1;
    memset(tiles, 0xff, sizeof tiles);
}

static void tiles_end(void)
{
    __atomic_fetch_add(&misuses, !configured, __ATOMIC_RELAXED);
    configured = 0;
}

static void tile_zero(int tile)
{
    __atomic_fetch_add(&misuses, !configured, __ATOMIC_RELAXED);
    memset(tiles[tile], 0, sizeof tiles[tile]);
}

static void tile_load(int tile, const void *from, size_t bytes)
{
    for (size_t r = 0; r < 16; r++)
        memcpy(tiles[tile][r], (const char *)from + r * bytes, 64);
}

static void tile_store(int tile, void *to, size_t bytes)
{
    for (size_t r = 0; r < 16; r++)
        memcpy((char *)to + r * bytes, tiles[tile][r], 64);
}

static float number(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* TDPBF16PS: rows of pairs on the left, pairs of rows on the right. */
static void tile_multiply(int sum, int left, int right)
{
    for (size_t m = 0; m < 16; m++)
        for (size_t n = 0; n < 16; n++) {
            float total = number(tiles[sum][m][n]);
            for (size_t k = 0; k < 16; k++) {
                uint32_t a = tiles[left][m][k], b = tiles[right][k][n];
                total += number(a << 16) * number(b << 16);
                total += number(a & 0xffff0000) * number(b & 0xffff0000);
            }
            memcpy(&tiles[sum][m][n], &total, sizeof total);
        }
}

#define PANEL_PAIRS
#define PANEL_TILES
#define ZR_PANELS panels_by_hand
#include "kernels/cpu/products/panels.h"
#define PANELS_STORAGE static
#include "kernels/cpu/products/panels_body.h"
#include "tests/support/kernels/kernels_products.h"

int main(void)
{
    random_state = run_seed();
    if (zr_isa_best() < ZR_ISA_AVX512) {
        tap_skip("amx by hand: the rest of it needs AVX-512, which this processor does not have");
        return tap_done();
    }
    check_products("amx by hand", &panels_by_hand, ZR_PRECISION_BF16);
    tap_ok(misuses == 0, "tiles are used only between begin and end");
    return tap_done();
}
