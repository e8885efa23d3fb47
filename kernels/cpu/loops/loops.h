/* loops.h: the inner loops, one table per instruction set and precision. Private to kernels/cpu.
 *
 * Tensors behind `void *` hold elements of the table's precision; what is a float stays one. Every function
 * is single-threaded, allocates nothing and works on a range that the caller chose; cutting work over threads
 * is cpu.c's, state.c's, attention.c's and head.c's matter. Cutting a range anywhere gives the same bits. */
#ifndef ZR_KERNELS_LOOPS_H
#define ZR_KERNELS_LOOPS_H

#include "kernels/zr_kernels.h"

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

/* Rows, columns or elements [from, to) of what an operation is asked to do: args is its struct of
 * zr_kernels.h. */
typedef void zr_loop(const void *args, size_t from, size_t to);

struct zr_loops {
    size_t element_bytes;
    void (*exponential)(size_t n, const float *x, float *y); /* simd.h's, for its test */
    void (*widen)(size_t n, const void *from, float *to);
    void (*narrow)(size_t n, const float *from, void *to);
    void (*add_chain)(const struct zr_chain_sum *sum);
    void (*add_to_rows)(const struct zr_tile *tile, const float *bias); /* the tile is of floats too */
    void (*small_product)(const struct zr_small_product *work);
    /* `unit` counts heads, sequence * heads + head; backward, those of keys and values. `scratch` has
     * zr_attention_scratch_floats(). */
    void (*attention_forward)(const struct zr_attention_forward *args, size_t unit, float *scratch);
    void (*attention_backward)(const struct zr_attention_backward *args, size_t unit, float *scratch);
    double (*sum_of_squares)(size_t n, const void *x); /* of one block */
    size_t (*find_nonfinite)(size_t n, const void *x);

    /* By rows; what ends in _columns by columns. */
    zr_loop *embedding_forward, *positions_forward, *positions_backward_columns;
    zr_loop *layernorm_forward, *layernorm_backward, *layernorm_backward_columns;
    zr_loop *rmsnorm_forward, *rmsnorm_backward, *rmsnorm_backward_columns;
    zr_loop *residual_layernorm, *residual_rmsnorm;
    zr_loop *bias_backward_columns; /* of struct zr_linear_backward */
    zr_loop *gelu_bias_backward_columns;
    zr_loop *rotary, *cross_entropy;
    /* By elements. */
    zr_loop *gelu_forward, *gelu_backward, *swiglu_forward, *swiglu_backward, *add;
    zr_loop *update_adamw, *update_sgd; /* two-byte tensors are of the table's precision */
    zr_loop *sum; /* the sources are of the table's precision; so is `to`, or of floats */
};

/* NULL where the instruction set or the precision is none. */
const struct zr_loops *zr_loops_of(enum zr_isa isa, enum zr_precision precision);

/* Floats of scratch that one thread needs for one head of `sequence` tokens by `width` channels. */
size_t zr_attention_scratch_floats(size_t sequence, size_t width);

#endif
