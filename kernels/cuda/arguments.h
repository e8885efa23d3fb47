/* arguments.h: kernel arguments that are not an operation's struct, and block shapes shared by cuda.c and the
 * .cu sources. */
#ifndef ZR_CUDA_ARGUMENTS_H
#define ZR_CUDA_ARGUMENTS_H

#include "kernels/zr_kernels.h"

enum {
    CUDA_THREADS = 256, /* of every block */
    CUDA_WARPS = CUDA_THREADS / 32,
    CUDA_PACK_BYTES = 16,
    CUDA_NORM_PACKS = 16,    /* maximum of packs of a row in a lane's registers */
    CUDA_COLUMNS = 32,       /* columns of a block that adds parts */
    CUDA_COLUMN_ROWS = 128,  /* minimum of rows per part */
    CUDA_COLUMN_PARTS = 128, /* maximum of parts per column */
    CUDA_EMBEDDING_CHANNELS = 4 * CUDA_THREADS,
    CUDA_PRODUCT_TILE = 64, /* rows and columns of a block's tile of a product */
    CUDA_PRODUCT_STEP = 16,
    CUDA_ATTENTION_TILE = 32,   /* queries or keys of a block */
    CUDA_ATTENTION_WIDTH = 256, /* the widest head */
    CUDA_MMA_WARPS = 4,         /* warps per block, tensor cores */
    CUDA_MMA_THREADS = 32 * CUDA_MMA_WARPS,
    CUDA_MMA_QUERIES = 128,     /* queries per block, forward */
    CUDA_MMA_KEYS = 64,         /* keys per block, backward */
    CUDA_MMA_TILE = 64,         /* rows of the other operand in shared memory */
    CUDA_SQUARES_BLOCK = 4096,  /* zr_sum_of_squares's */
    CUDA_SQUARES_GROUP = 64,    /* blocks that are added up first */
    CUDA_SQUARES_BLOCKS = 4096, /* maximum of blocks per launch */
    CUDA_SUM_SOURCES = 128,     /* maximum of sources of zr_sum and zr_unpack */
    CUDA_CHECKSUM_BLOCK = 1 << 16,
    CUDA_CHECKSUM_LANES = 8,
    CUDA_FP8_TILE = 64 /* rows and columns of a block */
};

/* Row stride, in elements, of a two-byte tile in shared memory. */
#define CUDA_MMA_ROW_BYTES(width) (2 * (width) + 16)
/* Forward: keys in shared memory, limited by the registers for scores. */
#define CUDA_MMA_FORWARD_KEYS(width) ((width) == 128 ? 48 : 64)
/* Backward: strips of 16 queries per warp, limited by registers. */
#define CUDA_MMA_QUERY_STRIPS(width) ((width) == 64 ? 2 : 1)

/* c[m, n] (+)= a[m, k] b[k, n] + bias[n]. Element (row, column) of a is at row * a_row + column * a_column;
 * likewise b.
 */
struct cuda_product {
    unsigned m, n, k;
    const void *a, *b, *bias; /* bias NULL: none */
    size_t a_row, a_column, b_row, b_column, c_row;
    void *c;
    bool accumulate, floats; /* floats: c is float */
    /* cuBLASLt only: enum zr_fp8 of a and b, and their scales in device memory. */
    unsigned a_kind, b_kind;
    const float *a_scale, *b_scale;
};

/* Rounds a bf16 operand [rows, columns] to fp8, into a dense copy, a transposed copy [columns, rows], or
 * both. */
struct cuda_fp8 {
    size_t rows, columns, stride; /* elements from row to row */
    const void *from;
    unsigned kind;            /* enum zr_fp8 */
    unsigned long long *most; /* complement of the bits of the largest absolute value; initially all ones */
    float *scale;             /* output: factor of the fp8 numbers */
    uint8_t *copy, *turned;   /* NULL: not written */
};

/* One launch of a sum of squares: sums of blocks, then their sum onto the total. */
struct cuda_squares {
    struct zr_sum_of_squares all;
    size_t first; /* element */
    double *partial;
    bool begins;
};

/* One launch of a factor_norm(), with blocks like those of a sum of squares. */
struct cuda_factor_squares {
    struct zr_factor_norm all;
    size_t first; /* element */
    double *partial;
};

/* Likewise of a lamb_norms(). */
struct cuda_lamb_squares {
    struct zr_lamb_norms all;
    size_t first; /* element */
    double *partial;
};

/* A pass over n floats of orthogonalize(). */
struct cuda_muon {
    size_t n, side; /* side: of a square matrix */
    const float *from;
    float *to;
    const double *squares;
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

struct cuda_unpack {
    size_t n;
    struct zr_numbers to;
    const void *from[CUDA_SUM_SOURCES];
    unsigned count;
    float scale;
    bool accumulate, aligned; /* aligned: the sources, to words */
};

/* Sums over rows, for gradients of biases and norm weights; the kernel defines the addends. Block (x, y) has
 * 32 * width columns and the rows of part y. */
struct cuda_columns {
    size_t rows, columns, stride, part_rows; /* stride: row stride in elements */
    unsigned parts, width;                   /* width: columns per thread, 1 or a pack */
    const void *x, *dy;
    const float *mean, *rstd;   /* [rows] */
    struct zr_norm_heads heads; /* of rmsnorm */
    void *dx;
    void *sums[2];  /* [columns] */
    float *partial; /* [sums][parts][columns]; unused with one part */
    bool accumulate;
};

#endif
