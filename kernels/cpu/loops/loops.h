/* loops.h: the inner loops, one table per instruction set and precision. Private to kernels/cpu.
 *
 * `void *` tensors have the table's precision. Functions are single-threaded, allocate nothing and compute
 * the caller's range; the bits do not depend on the division into ranges. */
#ifndef ZR_KERNELS_LOOPS_H
#define ZR_KERNELS_LOOPS_H

#include "kernels/cpu/loops/blocks.h"
#include "kernels/optimizers.h"

/* A tile y[rows, columns] of a larger matrix with a row stride. */
struct zr_tile {
    void *at;
    size_t rows, columns, stride;
};

/* to[columns] += the rows of `from` in the chain, in order. */
struct zr_chain_sum {
    size_t columns, stride;
    void *to;
    const void *from;
    int32_t first;
    const int32_t *next; /* next row, -1: end; NULL: every `step` rows below `end` */
    int32_t step, end;
};

/* c[m, n] (+)= a[m, k] b[k, n] in floats. a has two strides, so it may be transposed. Terms are added in the
 * order of k, whatever the division of m and n. */
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

/* Updates below have nothing left to read from a gradient weight or step rates. */
struct zr_adamw8_work {
    const struct zr_update_adamw8 *args;
    const struct zr_block8_index *momentum, *variance;
};
/* Adafactor's updates before clipping. */
struct zr_quotients {
    struct zr_adafactor how;
    const struct zr_factors *factors;
    const struct zr_update *numbers;
    bool moves; /* first moves a vector's variance */
};
struct zr_factored_work {
    struct zr_quotients quotients;
    struct zr_master_step step;
};

/* Computes rows, columns or elements [from, to) of an operation; args is its struct of zr_kernels.h. */
typedef void zr_loop(const void *args, size_t from, size_t to);

struct zr_loops {
    size_t element_bytes;
    void (*exponential)(size_t n, const float *x, float *y); /* simd.h's exponential, for its test */
    void (*widen)(size_t n, const void *from, float *to);
    void (*narrow)(size_t n, const float *from, void *to);
    void (*add_chain)(const struct zr_chain_sum *sum);
    void (*add_to_rows)(const struct zr_tile *tile, const float *bias); /* the tile is float too */
    void (*small_product)(const struct zr_small_product *work);
    /* `unit` is sequence * heads + head; in backward of heads of keys and values. `scratch` has
     * zr_attention_scratch_floats() floats. */
    void (*attention_forward)(const struct zr_attention_forward *args, size_t unit, float *scratch);
    void (*attention_backward)(const struct zr_attention_backward *args, size_t unit, float *scratch);
    double (*sum_of_squares)(size_t n, const void *x); /* of one block */
    size_t (*find_nonfinite)(size_t n, const void *x);
    /* out[to - from]: of elements [from, to); two-byte tensors have the table's precision. */
    void (*factor_quotients)(const struct zr_quotients *work, size_t from, size_t to, float *out);
    void (*lamb_steps)(const struct zr_update_adamw *args, size_t from, size_t to, float *out); /* likewise */

    /* Divided by rows; functions in _columns by columns. */
    zr_loop *embedding_forward, *positions_forward, *positions_backward_columns;
    zr_loop *layernorm_forward, *layernorm_backward, *layernorm_backward_columns;
    zr_loop *rmsnorm_forward, *rmsnorm_backward, *rmsnorm_backward_columns;
    zr_loop *residual_layernorm, *residual_rmsnorm;
    zr_loop *bias_backward_columns; /* of struct zr_linear_backward */
    zr_loop *gelu_bias_backward_columns;
    zr_loop *factor_columns; /* of struct zr_factor_sums */
    zr_loop *rotary, *cross_entropy, *dropout;
    /* Divided by elements. */
    zr_loop *gelu_forward, *gelu_backward, *swiglu_forward, *swiglu_backward, *add;
    /* Two-byte tensors have the table's precision. update_adamw8 takes a struct zr_adamw8_work and whole
     * blocks, update_factored a struct zr_factored_work, update_lamb a struct zr_update_adamw. */
    zr_loop *update_adamw, *update_sgd, *update_adamw8, *update_factored, *muon_direction, *apply_direction,
        *update_lamb;
    zr_loop *sum;           /* sources have the table's precision; `to` too, or float */
    zr_loop *pack, *unpack; /* [from, to) begins at a block */
};

extern const struct zr_loops *const zr_loops_of[ZR_ISA_COUNT][ZR_PRECISION_COUNT];

/* Floats of scratch per thread for a head of `sequence` tokens and `width` channels. */
size_t zr_attention_scratch_floats(size_t sequence, size_t width);

#endif
