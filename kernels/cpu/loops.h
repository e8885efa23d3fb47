/* loops.h: the inner loops, one table per instruction set. Private to kernels/cpu.
 *
 * Every function is single-threaded, allocates nothing and works on a range that the caller chose; cutting
 * work over threads is cpu.c's, attention.c's and head.c's matter. Cutting a range anywhere gives the same
 * bits. */
#ifndef ZR_KERNELS_LOOPS_H
#define ZR_KERNELS_LOOPS_H

#include "kernels/zr_kernels.h"

struct zr_layernorm_work {
    size_t rows, channels;
    const float *x, *w, *b, *dy;
    float *y, *mean, *rstd; /* mean and rstd: written forward, read backward */
    float *dx, *dw, *db;
    bool accumulate_dx, accumulate;
};

/* y[rows, columns at stride] of a bigger matrix. */
struct zr_tile {
    float *at;
    size_t rows, columns, stride;
};

/* c[m, n] (+)= a[m, k] b[k, n]: a at any two strides, so it may be stored turned; each element's terms are
 * added in the order of k, whatever the cut in m and n. */
struct zr_small_product {
    size_t m, n, k;
    const float *a;
    size_t a_row_stride, a_k_stride;
    const float *b;
    size_t b_stride;
    float *c;
    size_t c_stride;
    bool accumulate;
};

struct zr_attention_work {
    struct zr_attention shape;
    const float *qkv, *dout, *kept; /* kept: p as the forward pass left it, or NULL */
    float *out, *lse, *p, *dqkv;    /* out and lse: written forward, read backward */
};

/* One row of the head: softmax over the first `vocabulary` of `padded` logits. */
struct zr_softmax_row {
    float *logits; /* replaced by the gradient when `gradient` */
    size_t vocabulary, padded;
    size_t target;
    float scale;
    bool gradient;
};

struct zr_loops {
    void (*exponential)(size_t n, const float *x, float *y); /* simd.h's, for its test */
    void (*gelu_forward)(size_t n, const float *x, float *y);
    void (*gelu_backward)(size_t n, const float *x, const float *dy, float *dx);
    void (*add)(size_t n, const float *a, const float *b, float *out);
    void (*add_to_rows)(const struct zr_tile *tile, const float *bias);
    /* out[columns] (+)= the sums over the tile's rows, in blocks of 64 rows added in order */
    void (*sum_rows)(const struct zr_tile *tile, float *out, bool accumulate);
    void (*layernorm_forward)(const struct zr_layernorm_work *work, size_t from_row, size_t to_row);
    void (*layernorm_backward_rows)(const struct zr_layernorm_work *work, size_t from_row, size_t to_row);
    void (*layernorm_backward_columns)(const struct zr_layernorm_work *work, size_t from, size_t to);
    void (*small_product)(const struct zr_small_product *work);
    /* `unit` counts heads: sequence * heads + head. `scratch` has zr_attention_scratch_floats(). */
    void (*attention_forward)(const struct zr_attention_work *work, size_t unit, float *scratch);
    void (*attention_backward)(const struct zr_attention_work *work, size_t unit, float *scratch);
    float (*softmax_row)(const struct zr_softmax_row *row); /* the loss */
    float (*dot)(size_t n, const float *a, const float *b);
    void (*adamw)(const struct zr_adamw *how, size_t n, float *parameter, const float *g, float *momentum,
                  float *variance);
    double (*sum_of_squares)(size_t n, const float *x); /* of one block */
    size_t (*find_nonfinite)(size_t n, const float *x);
    void (*sum_in_order)(size_t n, const float *const *from, unsigned count, float scale, float *to,
                         bool accumulate);
    void (*bf16_from_float)(size_t n, const float *from, uint16_t *to);
    void (*bf16_to_float)(size_t n, const uint16_t *from, float *to);
};

extern const struct zr_loops zr_loops_plain, zr_loops_avx2, zr_loops_avx512;
const struct zr_loops *zr_loops_of(enum zr_isa isa);

/* Floats of scratch that one thread needs for one head of `sequence` tokens by `width` channels. */
size_t zr_attention_scratch_floats(size_t sequence, size_t width);

#endif
