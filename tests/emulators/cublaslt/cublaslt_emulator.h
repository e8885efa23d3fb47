/* cublaslt_emulator.h: a cuBLASLt for the emulated driver. It knows the calls that zr makes
 * (kernels/cuda/cublaslt.h), refuses what cublasLt.h's comments and NVIDIA's "cuBLASLt" chapter refuse, also
 * where a card may be lenient, and makes products as the library does: by kernels, multiply.cu, that it
 * queues in the caller's stream, so that the driver sees what they do to memory. It splits long sums where
 * workspace and preference let it.
 *
 * Eight bits, of a card from compute capability 8.9 on: A transposed and B not, every size a multiple of 16,
 * never E5M2 by E5M2, results in bf16 or floats.
 *
 * Stricter than the library: matrices whose columns do not begin on 16 bytes are not supported, and an
 * algorithm is for the shape alone that it was chosen for. */
#ifndef ZR_CUBLASLT_EMULATOR_H
#define ZR_CUBLASLT_EMULATOR_H

#include "kernels/cuda/cublaslt.h"
#include "kernels/zr_kernels.h"

/* ZR_EMULATOR_CUBLASLT=130100 in the environment: the version that it says it is, 13.1.0.
 *
 * The one symbol besides the library's. */
struct zr_lt_emulator {
    unsigned handles, objects; /* that have not been destroyed */
    /* Ever. splits: products whose sums were split; unordered: those that may be added in any order. */
    unsigned choices, products, splits, unordered;
    zr_lt_status create, choose, launch; /* what these come to instead, where it is not 0 */
    uint32_t unsupported;                /* bits of an epilogue, for any of which there is no algorithm */
    unsigned epilogues;                  /* ever: products with AUX */
    char report[256];                    /* the last refusal; "": there was none */
};
/* As `choose`: the choice succeeds, and there is no algorithm. */
enum { ZR_LT_EMULATOR_NONE = 1000 };
extern struct zr_lt_emulator zr_lt_emulator;

/* Of multiply.cu: d[m, n] = alpha op(a) op(b) + beta c + bias, by columns; the sum over k in `parts`. With
 * aux: forward it keeps that, and d is GELU of it; backward d is that times GELU's slope at aux. */
struct lt_product {
    unsigned m, n, k, parts;
    bool a_turned, b_turned;
    struct zr_numbers a, b, c, d, bias; /* bias.at NULL: none */
    struct zr_numbers aux;              /* at NULL: none */
    bool backward;
    size_t a_leading, b_leading, c_leading, aux_leading;
    float alpha, beta;
    float *partial; /* [parts, n, m] */
    /* enum zr_fp8 of a and b, and what they are multiplied by; NULL: 1 */
    unsigned a_kind, b_kind;
    const float *a_scale, *b_scale;
};
enum { LT_THREADS = 64 };

#endif
