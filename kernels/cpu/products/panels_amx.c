/* panels_amx.c: products of bf16 matrices by AMX's tiles. isa.c requests permission for tiles from the
 * system. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* All eight tiles are 16 rows of 64 bytes. Constant, because the compiler does not know what the instruction
 * reads. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

static void tiles_begin(void)
{
    _tile_loadconfig(&tiles);
}

static void tiles_end(void)
{
    _tile_release();
}

#define tile_zero(tile)                 _tile_zero(tile)
#define tile_load(tile, from, bytes)    _tile_loadd(tile, from, bytes)
#define tile_store(tile, to, bytes)     _tile_stored(tile, to, bytes)
#define tile_multiply(sum, left, right) _tile_dpbf16ps(sum, left, right)

#define PANEL_PAIRS
#define PANEL_TILES
#define ZR_PANELS zr_panels_amx
#include "kernels/cpu/products/panels_body.h"
