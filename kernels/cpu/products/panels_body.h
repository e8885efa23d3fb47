/* panels_body.h: packing, multiplying and storing of panels, written once over simd.h's vector and compiled
 * by the panels_*.c files. A panels_*.c file names the table (ZR_PANELS). Before it includes this file, it
 * may define two macros:
 *
 *   PANEL_PAIRS: units are pairs of bf16, multiplied by vf_pairs(sum, a, b), which the file declares.
 *
 *   PANEL_TILES: there is a tile unit; the functions tile_* below are its instructions.
 *
 * Without either, units are floats and the multiplication is vf_fma(). */
#include "kernels/cpu/products/panels.h"
#include "kernels/cpu/loops/simd.h"

#include <string.h>

#if defined(PANEL_TILES)
enum { ROWS = 32, COLUMNS = 32, GRAIN = 16 };
#elif VF_LANES == 4
enum { ROWS = 4, COLUMNS = 2 * VF_LANES, GRAIN = 1 };
#elif VF_LANES == 8
enum { ROWS = 6, COLUMNS = 2 * VF_LANES, GRAIN = 1 };
#else
enum { ROWS = 14, COLUMNS = 2 * VF_LANES, GRAIN = 1 };
#endif

#ifdef PANEL_PAIRS
enum { UNIT = 2 };
#else
enum { UNIT = 1 };
#endif

/* ---- Units from memory --------------------------------------------------------------------------------- */

/* Loads the next units of a lane with contiguous elements; `n` elements are valid. */
VF_INLINE vf units_along(const uint16_t *p, size_t n, enum zr_precision precision)
{
#ifdef PANEL_PAIRS
    (void)precision;
    if (n >= 32)
        return vf_load((const float *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16((1u << n) - 1, p));
#else
    return precision == ZR_PRECISION_BF16 ? vf_get_bf16(p, n) : vf_get_fp16(p, n);
#endif
}

/* Loads one unit of each of the next lanes, which are adjacent in memory; `n` lanes are valid, and with pairs
 * the second element if `whole`. */
VF_INLINE vf units_across(const uint16_t *p, size_t depth_stride, size_t n, bool whole,
                          enum zr_precision precision)
{
#ifdef PANEL_PAIRS
    (void)precision;
    __m512i first = _mm512_cvtepu16_epi32(vf_load_narrow(p, n));
    if (whole) {
        __m256i second = vf_load_narrow(p + depth_stride, n);
        first = _mm512_or_si512(first, _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
    }
    return _mm512_castsi512_ps(first);
#else
    (void)depth_stride;
    (void)whole;
    return precision == ZR_PRECISION_BF16 ? vf_get_bf16(p, n) : vf_get_fp16(p, n);
#endif
}

/* ---- Packing ------------------------------------------------------------------------------------------- */

/* Packs lanes [from, from + width) of a source with contiguous lanes to to[unit][width]. */
VF_INLINE void pack_across(const struct zr_panel_source *s, size_t from, const size_t width,
                           enum zr_precision precision, float *to)
{
    size_t lanes =
        s->lanes - from; /* includes the next panels: a vector may load more than its panel keeps */
    for (size_t u = 0; u < s->units; u++) {
        size_t k = u * UNIT;
        const uint16_t *p = s->at + k * s->depth_stride + from;
        for (size_t v = 0; v < width; v += VF_LANES) {
            vf units = vf_set(0.0f);
            if (k < s->depth && v < lanes)
                units = units_across(p + v, s->depth_stride, lanes - v, k + 1 < s->depth, precision);
            vf_put(to + u * width + v, width - v, units);
        }
    }
}

/* Loads a square of lanes by units; missing elements are zero. */
VF_INLINE void square_along(const struct zr_panel_source *s, size_t lane, size_t lanes, size_t unit,
                            enum zr_precision precision, vf square[VF_LANES])
{
    size_t k = unit * UNIT;
    for (size_t l = 0; l < VF_LANES; l++)
        square[l] = l < lanes && k < s->depth
                        ? units_along(s->at + (lane + l) * s->lane_stride + k, s->depth - k, precision)
                        : vf_set(0.0f);
}

/* Packs a lane-major source transposed to to[unit][width]. */
VF_INLINE void pack_turned(const struct zr_panel_source *s, size_t from, const size_t width,
                           enum zr_precision precision, float *to)
{
    for (size_t v = 0; v < width; v += VF_LANES) {
        size_t lanes = s->lanes > from + v ? s->lanes - from - v : 0;
        for (size_t u = 0; u < s->units; u += VF_LANES) {
            vf square[VF_LANES];
            square_along(s, from + v, lanes, u, precision, square);
            vf_transpose(square);
            for (size_t i = 0; i < VF_LANES && u + i < s->units; i++)
                vf_put(to + (u + i) * width + v, width - v, square[i]);
        }
    }
}

/* Packs a lane-major source to to[lane][PANEL_LINE]. */
VF_INLINE void pack_along(const struct zr_panel_source *s, size_t from, size_t width,
                          enum zr_precision precision, float *to)
{
    for (size_t l = 0; l < width; l++, to += PANEL_LINE) { /* PANEL_LINE holds whole vectors */
        const uint16_t *p = s->at + (from + l) * s->lane_stride;
        size_t there = from + l < s->lanes ? s->depth : 0, u = 0;
        for (; u * UNIT < there; u += VF_LANES)
            vf_store(to + u, units_along(p + u * UNIT, there - u * UNIT, precision));
        for (; u < s->units; u += VF_LANES)
            vf_store(to + u, vf_set(0.0f));
    }
}

#ifdef PANEL_TILES
/* Packs contiguous lanes to to[lane][PANEL_LINE]. */
VF_INLINE void pack_across_by_lane(const struct zr_panel_source *s, size_t from, size_t width, float *to)
{
    for (size_t v = 0; v < width; v += VF_LANES) {
        size_t lanes = s->lanes > from + v ? s->lanes - from - v : 0;
        for (size_t u = 0; u < s->units; u += VF_LANES) {
            vf square[VF_LANES];
            for (size_t i = 0; i < VF_LANES; i++) {
                size_t k = (u + i) * UNIT;
                const uint16_t *p = s->at + k * s->depth_stride + from + v;
                square[i] = k < s->depth && lanes > 0
                                ? units_across(p, s->depth_stride, lanes, k + 1 < s->depth, s->precision)
                                : vf_set(0.0f);
            }
            vf_transpose(square);
            for (size_t l = 0; l < VF_LANES; l++)
                vf_store(to + (v + l) * PANEL_LINE + u, square[l]);
        }
    }
}
#endif

VF_INLINE void pack_left_as(const struct zr_panel_source *s, enum zr_precision precision, float *to)
{
    for (size_t from = 0; from < s->lanes; from += ROWS) {
        if (s->depth_stride == 1) {
            pack_along(s, from, ROWS, precision, to);
            to += (size_t)ROWS * PANEL_LINE;
            continue;
        }
#ifdef PANEL_TILES
        pack_across_by_lane(s, from, ROWS, to);
        to += (size_t)ROWS * PANEL_LINE;
#else
        pack_across(s, from, ROWS, precision, to);
        to += ROWS * s->units;
#endif
    }
}

VF_INLINE void pack_right_as(const struct zr_panel_source *s, enum zr_precision precision, float *to)
{
    for (size_t from = 0; from < s->lanes; from += COLUMNS, to += COLUMNS * s->units)
        if (s->depth_stride == 1)
            pack_turned(s, from, COLUMNS, precision, to);
        else
            pack_across(s, from, COLUMNS, precision, to);
}

static void pack_left(const struct zr_panel_source *s, float *to)
{
    if (s->precision == ZR_PRECISION_BF16)
        pack_left_as(s, ZR_PRECISION_BF16, to);
    else
        pack_left_as(s, ZR_PRECISION_FP16, to);
}

static void pack_right(const struct zr_panel_source *s, float *to)
{
    if (s->precision == ZR_PRECISION_BF16)
        pack_right_as(s, ZR_PRECISION_BF16, to);
    else
        pack_right_as(s, ZR_PRECISION_FP16, to);
}

/* ---- Multiplying --------------------------------------------------------------------------------------- */

#ifdef PANEL_TILES

/* Two by two tiles of 16 x 16 sums. Tiles 0 to 3: sums; 4, 5: left; 6, 7: right. */
static void multiply(const struct zr_panel_product *p)
{
    enum { LINE_BYTES = PANEL_LINE * 4, ROW_BYTES = COLUMNS * 4 };
    size_t c_bytes = p->c_stride * sizeof(float);
    float *low = p->c + 16 * p->c_stride;
    if (p->accumulate) {
        tile_load(0, p->c, c_bytes);
        tile_load(1, p->c + 16, c_bytes);
        tile_load(2, low, c_bytes);
        tile_load(3, low + 16, c_bytes);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (size_t u = 0; u < p->units; u += 16) {
        tile_load(4, p->left + u, LINE_BYTES);
        tile_load(6, p->right + u * COLUMNS, ROW_BYTES);
        tile_load(7, p->right + u * COLUMNS + 16, ROW_BYTES);
        tile_multiply(0, 4, 6);
        tile_multiply(1, 4, 7);
        tile_load(5, p->left + u + 16 * PANEL_LINE, LINE_BYTES);
        tile_multiply(2, 5, 6);
        tile_multiply(3, 5, 7);
    }
    tile_store(0, p->c, c_bytes);
    tile_store(1, p->c + 16, c_bytes);
    tile_store(2, low, c_bytes);
    tile_store(3, low + 16, c_bytes);
}

#else

VF_INLINE vf unit_multiply(vf sum, vf a, vf b)
{
#ifdef PANEL_PAIRS
    return vf_pairs(sum, a, b);
#else
    return vf_fma(a, b, sum);
#endif
}

/* Inlined with constant strides. */
VF_INLINE void multiply_as(const struct zr_panel_product *p, const size_t lane_stride,
                           const size_t unit_stride)
{
    const float *a = p->left, *b = p->right;
    vf sum[ROWS][2];
    for (size_t r = 0; r < ROWS; r++)
        sum[r][0] = sum[r][1] = vf_set(0.0f);
    for (size_t u = 0; u < p->units; u++, a += unit_stride, b += COLUMNS) {
        vf left = vf_load(b), right = vf_load(b + VF_LANES);
        for (size_t r = 0; r < ROWS; r++) {
            vf factor = vf_set(a[r * lane_stride]);
            sum[r][0] = unit_multiply(sum[r][0], factor, left);
            sum[r][1] = unit_multiply(sum[r][1], factor, right);
        }
    }
#pragma GCC unroll 16 /* the sums are in registers */
    for (size_t r = 0; r < ROWS; r++)
        for (size_t v = 0; v < 2; v++) {
            float *c = p->c + r * p->c_stride + v * VF_LANES;
            vf_store(c, p->accumulate ? (vf)(vf_load(c) + sum[r][v]) : sum[r][v]);
        }
}

static void multiply(const struct zr_panel_product *p)
{
    if (p->by_lane)
        multiply_as(p, PANEL_LINE, 1);
    else
        multiply_as(p, 1, ROWS);
}

#endif

/* ---- Storing ------------------------------------------------------------------------------------------- */

VF_INLINE vf get_as(const void *p, size_t i, size_t n, enum zr_precision precision)
{
    return precision == ZR_PRECISION_FP32   ? vf_get((const float *)p + i, n)
           : precision == ZR_PRECISION_BF16 ? vf_get_bf16((const uint16_t *)p + i, n)
                                            : vf_get_fp16((const uint16_t *)p + i, n);
}

VF_INLINE void put_as(void *p, size_t i, size_t n, vf v, enum zr_precision precision)
{
    if (precision == ZR_PRECISION_FP32)
        vf_put((float *)p + i, n, v);
    else if (precision == ZR_PRECISION_BF16)
        vf_put_bf16((uint16_t *)p + i, n, v);
    else
        vf_put_fp16((uint16_t *)p + i, n, v);
}

VF_INLINE void store_as(const struct zr_panel_store *s, enum zr_precision out)
{
    for (size_t r = 0; r < s->rows; r++)
        for (size_t i = 0; i < s->columns; i += VF_LANES) {
            size_t left = s->columns - i, at = r * s->out_stride + i;
            vf v = vf_get(s->c + r * s->c_stride + i, left);
            if (s->bias != NULL)
                v += get_as(s->bias, i, left, s->precision);
            if (s->accumulate)
                v += get_as(s->out.at, at, left, out);
            put_as(s->out.at, at, left, v, out);
        }
}

static void store(const struct zr_panel_store *s)
{
    switch (s->out.precision) {
    case ZR_PRECISION_FP32:
        store_as(s, ZR_PRECISION_FP32);
        return;
    case ZR_PRECISION_BF16:
        store_as(s, ZR_PRECISION_BF16);
        return;
    default:
        store_as(s, ZR_PRECISION_FP16);
    }
}

/* ---- The table ----------------------------------------------------------------------------------------- */

#ifndef PANEL_TILES
static void tiles_begin(void)
{
}
static void tiles_end(void)
{
}
#endif

#ifndef PANELS_STORAGE /* a test defines it to keep its table private */
#define PANELS_STORAGE
#endif
PANELS_STORAGE const struct zr_panels ZR_PANELS = {
    .rows = ROWS,
    .columns = COLUMNS,
    .unit_depth = UNIT,
    .grain = GRAIN,
#ifdef PANEL_TILES
    .always_by_lane = true,
#endif
    .pack_left = pack_left,
    .pack_right = pack_right,
    .multiply = multiply,
    .store = store,
    .begin = tiles_begin,
    .end = tiles_end,
};
