/* panels.h: the innermost part of products of two-byte matrices, one table per way to multiply. Private to
 * kernels/cpu; product.c cuts a product into blocks and calls these.
 *
 * A block of a side is packed into panels of some lanes (rows of the left side, columns of the right) by
 * `units` of depth: a unit is what one instruction takes of a lane, a float, or a pair of neighbours in bf16.
 * Lanes and units that are not there are packed as zeros, so only packing and storing know about edges. */
#ifndef ZR_KERNELS_PANELS_H
#define ZR_KERNELS_PANELS_H

#include "kernels/zr_kernels.h"

enum {
    PANEL_UNITS_MOST = 192, /* of depth in a block */
    PANEL_LINE = 208,       /* units from one lane to the next where a panel lies lane by lane; off the
                               powers of two, which share lines of the caches */
    PANEL_ROWS_MOST = 32,
    PANEL_COLUMNS_MOST = 32
};

/* A block of one side: lane l at depth k is at[l * lane_stride + k * depth_stride]; one of the two is 1. */
struct zr_panel_source {
    const uint16_t *at;
    size_t lane_stride, depth_stride;
    size_t lanes, depth;
    size_t units; /* to fill, depth / unit rounded up to the table's grain */
    enum zr_precision precision;
};

/* c[rows, columns] (+)= a panel of the left side times one of the right. */
struct zr_panel_product {
    const float *left, *right; /* units may be pairs: four bytes either way */
    size_t units;
    bool by_lane; /* how the left panel lies: lanes at PANEL_LINE, or units side by side */
    float *c;
    size_t c_stride;
    bool accumulate; /* else c is overwritten */
};

/* out = c (+ bias) (+ what is there), rounded to `out.precision`. */
struct zr_panel_store {
    const float *c;
    size_t c_stride, rows, columns;
    enum zr_precision precision; /* of bias, and of out unless that is wide */
    const uint16_t *bias;        /* NULL: none */
    struct zr_numbers out;
    size_t out_stride;
    bool accumulate;
};

struct zr_panels {
    size_t rows, columns;     /* lanes of a panel of the left side and of the right */
    size_t unit_depth, grain; /* elements of a unit; blocks have a multiple of `grain` units */
    bool always_by_lane;      /* the left side is packed lane by lane whatever its storage */
    void (*pack_left)(const struct zr_panel_source *source, float *to);  /* all its panels */
    void (*pack_right)(const struct zr_panel_source *source, float *to); /* likewise */
    void (*multiply)(const struct zr_panel_product *product);
    void (*store)(const struct zr_panel_store *store);
    void (*begin)(void), (*end)(void); /* around all of it, on each thread */
};

extern const struct zr_panels zr_panels_plain, zr_panels_avx2, zr_panels_avx512, zr_panels_avx512_bf16,
    zr_panels_amx;

/* The fastest that an instruction set has for a two-byte precision. */
const struct zr_panels *zr_panels_of(enum zr_isa isa, enum zr_precision precision);

#endif
