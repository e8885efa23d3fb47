/* arguments.h: what kernels take that is no operation's own struct, and the shapes of blocks that cuda.c and
 * the .cu sources agree on. */
#ifndef ZR_CUDA_ARGUMENTS_H
#define ZR_CUDA_ARGUMENTS_H

#include "kernels/zr_kernels.h"

enum {
    CUDA_THREADS = 256, /* of every block */
    CUDA_WARPS = CUDA_THREADS / 32,
    CUDA_PACK_BYTES = 16,
    CUDA_NORM_PACKS = 16,    /* of a row, that a lane has in registers at most */
    CUDA_COLUMNS = 32,       /* of a block that adds up parts of columns */
    CUDA_COLUMN_ROWS = 128,  /* that a block sums of its columns, at least */
    CUDA_COLUMN_PARTS = 128, /* of a column, at most */
    CUDA_EMBEDDING_CHANNELS = 4 * CUDA_THREADS,
    CUDA_PRODUCT_TILE = 64, /* rows and columns of a block's part of a product */
    CUDA_PRODUCT_STEP = 16,
    CUDA_ATTENTION_TILE = 32,   /* queries or keys of a block */
    CUDA_ATTENTION_WIDTH = 256, /* the widest head */
    CUDA_MMA_WARPS = 4,         /* of a block of attention on tensor cores */
    CUDA_MMA_THREADS = 32 * CUDA_MMA_WARPS,
    CUDA_MMA_QUERIES = 128,     /* of such a block, forward */
    CUDA_MMA_KEYS = 64,         /* backward, of keys */
    CUDA_MMA_TILE = 64,         /* rows of the other side that are in shared memory at once */
    CUDA_SQUARES_BLOCK = 4096,  /* zr_sum_of_squares's */
    CUDA_SQUARES_GROUP = 64,    /* blocks that are added up first */
    CUDA_SQUARES_BLOCKS = 4096, /* that one launch sums */
    CUDA_SUM_SOURCES = 128,     /* of one zr_sum */
    CUDA_CHECKSUM_BLOCK = 1 << 16,
    CUDA_CHECKSUM_LANES = 8,
    CUDA_FP8_TILE = 64 /* rows and columns that a block rounds */
};

/* From row to row of a tile of two-byte elements in shared memory. */
#define CUDA_MMA_ROW_BYTES(width) (2 * (width) + 16)
/* Forward: keys in shared memory at once, as many as registers hold scores of. */
#define CUDA_MMA_FORWARD_KEYS(width) ((width) == 128 ? 48 : 64)
/* Backward: strips of 16 queries of a warp, as many as registers hold. */
#define CUDA_MMA_QUERY_STRIPS(width) ((width) == 64 ? 2 : 1)

/* c[m, n] (+)= a[m, k] b[k, n] + bias[n]: element (row, column) of a lies at row * a_row + column * a_column,
 * and so for b. */
struct cuda_product {
    unsigned m, n, k;
    const void *a, *b, *bias; /* bias NULL: none */
    size_t a_row, a_column, b_row, b_column, c_row;
    void *c;
    bool accumulate, floats; /* floats: c is of floats */
    /* For the library alone: enum zr_fp8 of a and b, and what each is multiplied by, on the card. */
    unsigned a_kind, b_kind;
    const float *a_scale, *b_scale;
};

/* An operand in eight bits: [rows, columns] of bf16, rounded into a dense copy, one that is [columns, rows],
 * or both. */
struct cuda_fp8 {
    size_t rows, columns, stride; /* elements from row to row */
    const void *from;
    unsigned kind;            /* enum zr_fp8 */
    unsigned long long *most; /* the bits of the largest size, each the other way; ones before */
    float *scale;             /* gets what codes are multiplied by */
    uint8_t *copy, *turned;   /* NULL: not wanted */
};

/* One round of a sum of squares: what the blocks have, then those added up onto the total. */
struct cuda_squares {
    struct zr_sum_of_squares all;
    size_t first; /* element */
    double *partial;
    bool begins;
};

struct cuda_sum {
    size_t n;
    struct zr_numbers to;
    const void *from[CUDA_SUM_SOURCES];
    unsigned count;
    enum zr_precision precision;
    float scale;
    bool accumulate;
};

/* Sums over rows, for the gradients of biases and norms' weights; what a row adds is the kernel's matter.
 * Block (x, y) has 32 `width` columns and the rows of part y. */
struct cuda_columns {
    size_t rows, columns, stride, part_rows; /* stride: elements from row to row */
    unsigned parts, width;                   /* width: columns of a thread, 1 or a pack */
    const void *x, *dy;
    const float *mean, *rstd; /* [rows] */
    void *dx;
    void *sums[2];  /* [columns] */
    float *partial; /* [sums][parts][columns]; where there is one part, its sums are the result */
    bool accumulate;
};

#endif
