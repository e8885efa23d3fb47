/* panels.h: inner loops of products of two-byte matrices, one table per kind of multiplication. Private to
 * kernels/cpu; product.c divides a product into blocks and calls these.
 *
 * A block of an operand is packed into panels of lanes (rows of the left operand, columns of the right one)
 * by units of depth. A unit is a lane's input to one instruction: a float, or a pair of bf16. Missing lanes
 * and units are packed as zeros, so only packing and storing handle edges. */
#ifndef ZR_KERNELS_PANELS_H
#define ZR_KERNELS_PANELS_H

#include "kernels/zr_kernels.h"

enum {
    PANEL_UNITS_MAX = 192, /* units of depth per block */
    PANEL_LINE = 208, /* stride of lanes in a lane-major panel, in units; not a power of two, to avoid cache
                         conflicts */
    PANEL_ROWS_MAX = 32,
    PANEL_COLUMNS_MAX = 32
};

/* A block of an operand: lane l at depth k is at[l * lane_stride + k * depth_stride]; one stride is 1. */
struct zr_panel_source {
    const uint16_t *at;
    size_t lane_stride, depth_stride;
    size_t lanes, depth;
    size_t units; /* units to fill: depth / unit rounded up to the table's grain */
    enum zr_precision precision;
};

/* c[rows, columns] (+)= left panel times right panel. */
struct zr_panel_product {
    const float *left, *right; /* units may be pairs: four bytes either way */
    size_t units;
    bool by_lane; /* layout of the left panel: lane-major with stride PANEL_LINE, or unit-major */
    float *c;
    size_t c_stride;
    bool accumulate; /* false: c is overwritten */
};

/* out (+)= c (+ bias), rounded to `out.precision`. */
struct zr_panel_store {
    const float *c;
    size_t c_stride, rows, columns;
    enum zr_precision precision; /* precision of bias, and of out unless out is fp32 */
    const uint16_t *bias;        /* NULL: none */
    struct zr_numbers out;
    size_t out_stride;
    bool accumulate;
};

struct zr_panels {
    size_t rows, columns;     /* lanes per left and right panel */
    size_t unit_depth, grain; /* elements per unit; blocks have a multiple of `grain` units */
    bool always_by_lane;      /* the left operand is always packed lane-major */
    void (*pack_left)(const struct zr_panel_source *source, float *to);  /* packs all panels */
    void (*pack_right)(const struct zr_panel_source *source, float *to); /* likewise */
    void (*multiply)(const struct zr_panel_product *product);
    void (*store)(const struct zr_panel_store *store);
    void (*begin)(void), (*end)(void); /* called once per thread around the work */
};

extern const struct zr_panels zr_panels_plain, zr_panels_avx2, zr_panels_avx512, zr_panels_avx512_bf16,
    zr_panels_amx;

/* The fastest table of an instruction set for a two-byte precision. */
const struct zr_panels *zr_panels_of(enum zr_isa isa, enum zr_precision precision);

#endif
