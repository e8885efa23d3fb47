/* loops.h: the inner loops, one table per instruction set and precision. Private to kernels/cpu.
 *
 * Tensors behind `void *` hold elements of the table's precision; what is a float stays one. Every function
 * is single-threaded, allocates nothing and works on a range that the caller chose; cutting work over threads
 * is cpu.c's, state.c's, attention.c's and head.c's matter. Cutting a range anywhere gives the same bits. */
#ifndef ZR_KERNELS_LOOPS_H
#define ZR_KERNELS_LOOPS_H

#include "kernels/zr_kernels.h"

struct zr_layernorm_work {
    size_t rows, channels;
    const void *x, *w, *b, *dy;
    float *mean, *rstd; /* written forward, read backward */
    void *y, *dx, *dw, *db;
    bool accumulate_dx, accumulate;
};

struct zr_rmsnorm_work {
    size_t rows, channels;
    float epsilon;
    const void *x, *w, *dy;
    float *rstd; /* written forward, read backward */
    void *y, *dx, *dw;
    bool accumulate_dx, accumulate;
};

/* y[rows, columns at stride] of a bigger matrix. */
struct zr_tile {
    void *at;
    size_t rows, columns, stride;
};

/* to[columns] += the rows of `from` that the chain names, one after the other. */
struct zr_chain_sum {
    size_t columns, stride;
    void *to;
    const void *from;
    int32_t first;
    const int32_t *next; /* of each row, -1 at the end; NULL: every `step` rows below `end` */
    int32_t step, end;
};

/* c[m, n] (+)= a[m, k] b[k, n] in floats: a at any two strides, so it may be stored turned; each element's
 * terms are added in the order of k, whatever the cut in m and n. */
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
    const void *qkv, *dout, *kept; /* kept: p as the forward pass left it, or NULL */
    void *out, *p, *dqkv;          /* out: written forward, read backward */
    float *lse;                    /* likewise */
};

/* One row of the head: softmax over the first `vocabulary` of `padded` logits. */
struct zr_softmax_row {
    float *logits;
    void *gradient; /* NULL: none; may begin where the logits do, which are lost either way */
    size_t vocabulary, padded;
    size_t target;
    float scale;
};

struct zr_loops {
    size_t element_bytes;
    void (*exponential)(size_t n, const float *x, float *y); /* simd.h's, for its test */
    void (*widen)(size_t n, const void *from, float *to);
    void (*narrow)(size_t n, const float *from, void *to);
    void (*gelu_forward)(size_t n, const void *x, void *y);
    void (*gelu_backward)(size_t n, const void *x, const void *dy, void *dx);
    void (*add)(size_t n, const void *a, const void *b, void *out);
    void (*add_chain)(const struct zr_chain_sum *sum);
    void (*add_to_rows)(const struct zr_tile *tile, const float *bias); /* the tile is of floats too */
    /* out[columns] (+)= the sums over the tile's rows, in blocks of 64 rows added in order */
    void (*sum_rows)(const struct zr_tile *tile, void *out, bool accumulate);
    void (*layernorm_forward)(const struct zr_layernorm_work *work, size_t from_row, size_t to_row);
    void (*layernorm_backward_rows)(const struct zr_layernorm_work *work, size_t from_row, size_t to_row);
    void (*layernorm_backward_columns)(const struct zr_layernorm_work *work, size_t from, size_t to);
    void (*rmsnorm_forward)(const struct zr_rmsnorm_work *work, size_t from_row, size_t to_row);
    void (*rmsnorm_backward_rows)(const struct zr_rmsnorm_work *work, size_t from_row, size_t to_row);
    void (*rmsnorm_backward_columns)(const struct zr_rmsnorm_work *work, size_t from, size_t to);
    void (*rotary)(const struct zr_rotary *work, size_t from_row, size_t to_row);
    void (*swiglu_forward)(const struct zr_swiglu *work, size_t from, size_t to);
    void (*swiglu_backward)(const struct zr_swiglu_backward *work, size_t from, size_t to);
    void (*small_product)(const struct zr_small_product *work);
    /* `unit` counts heads, sequence * heads + head; backward, those of keys and values. `scratch` has
     * zr_attention_scratch_floats(). */
    void (*attention_forward)(const struct zr_attention_work *work, size_t unit, float *scratch);
    void (*attention_backward)(const struct zr_attention_work *work, size_t unit, float *scratch);
    float (*softmax_row)(const struct zr_softmax_row *row); /* the loss */
    float (*dot)(size_t n, const void *a, const void *b);
    /* Elements [from, to) of an update whose two-byte tensors are of the table's precision. */
    void (*adamw)(const struct zr_adamw *how, const struct zr_update *update, size_t from, size_t to);
    void (*sgd)(const struct zr_sgd *how, const struct zr_update *update, size_t from, size_t to);
    double (*sum_of_squares)(size_t n, const void *x); /* of one block */
    size_t (*find_nonfinite)(size_t n, const void *x);
    /* The sources are of the table's precision; so is `to`, or of floats. */
    void (*sum_in_order)(const struct zr_sum *sum);
};

/* NULL where the instruction set or the precision is none. */
const struct zr_loops *zr_loops_of(enum zr_isa isa, enum zr_precision precision);

/* Floats of scratch that one thread needs for one head of `sequence` tokens by `width` channels. */
size_t zr_attention_scratch_floats(size_t sequence, size_t width);

#endif
