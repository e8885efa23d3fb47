/* kernels_products.h: the test of products of two-byte matrices (kernels/cpu/products/product.c) through one
 * table of panels or another: shapes around every edge, the four ways to store, sums added to, bias, results
 * of two bytes and of four, against double precision; and the same bits for 1, 2 and 3 threads. */
#ifndef ZR_TESTS_KERNELS_PRODUCTS_H
#define ZR_TESTS_KERNELS_PRODUCTS_H

#include "kernels/cpu/products/gemm.h"
#include "tests/support/kernels/kernels_reference.h"
#include "tests/support/kernels/kernels_support.h"

struct extent {
    size_t m, n, k;
};

static const struct extent extents[] = {{1, 1, 1},      {7, 33, 5},    {8, 32, 192},   {33, 65, 193},
                                        {64, 200, 384}, {31, 15, 385}, {257, 70, 100}, {261, 401, 31},
                                        {20, 96, 1000}, {280, 768, 2}, {289, 769, 1}}; /* the most of a block,
                                                                                          and one beyond */

/* One product of a shape: bits of `form` choose how. */
enum { A_TURNED = 1, B_TURNED = 2, ACCUMULATE = 4, WIDE = 8, BIAS = 16, STRIDE = 32, FORMS = 64 };

/* c's reference from the numbers in a, b, bias and c itself. */
static inline void reference_product(const struct zr_product *p, const struct tensor *a,
                                     const struct tensor *b, const struct tensor *bias, struct tensor *c)
{
    size_t stride = p->a_stride != 0 ? p->a_stride : p->a_turned ? p->m : p->k;
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->n; j++) {
            double sum = p->bias != NULL ? bias->real[j] : 0;
            for (size_t k = 0; k < p->k; k++)
                sum += a->real[p->a_turned ? k * stride + i : i * stride + k] *
                       b->real[p->b_turned ? j * p->k + k : k * p->n + j];
            c->real[i * p->n + j] = sum + (p->accumulate ? c->real[i * p->n + j] : 0);
        }
}

/* The worst difference in units of what is allowed: half a unit of the last place for the one rounding (of a
 * denormal too), and 3e-6 of the terms, each at most 1, for sums in floats: they may cancel. */
static inline double share_of_allowed(const struct tensor *c, double half, double least)
{
    double largest = 0, most = 0;
    for (size_t i = 0; i < c->n; i++) {
        double difference = fabs(tensor_get(c, i) - c->real[i]);
        largest = worst(largest, fabs(c->real[i]));
        most = difference <= most ? most : isnan(difference) ? INFINITY : difference;
    }
    return most / (half * largest + least + 3e-6 * worst(largest, 1));
}

static inline double product_error(struct zr_kernel_context *context, const struct zr_panels *panels,
                                   enum zr_precision precision, const struct extent *e, unsigned form)
{
    size_t extra = form & STRIDE ? 6 : 0, rows = form & A_TURNED ? e->k : e->m,
           line = (form & A_TURNED ? e->m : e->k) + extra;
    enum zr_precision kind = form & WIDE ? ZR_PRECISION_FP32 : precision;
    double half = kind == ZR_PRECISION_FP32 ? 0 : kind == ZR_PRECISION_BF16 ? 0x1p-8 : 0x1p-11;
    double least = kind == ZR_PRECISION_FP16 ? 0x1p-25 : 0; /* bf16's is below all that can be made here */
    struct tensor *a = input_of(precision, rows * line, 0, 1), *b = input_of(precision, e->k * e->n, 0, 1);
    struct tensor *bias = input_of(precision, e->n, 0, 1), *c = in_out_of(kind, e->m * e->n, 0, 1);
    struct zr_product p = {.m = e->m,
                           .n = e->n,
                           .k = e->k,
                           .a_turned = form & A_TURNED,
                           .b_turned = form & B_TURNED,
                           .accumulate = form & ACCUMULATE,
                           .precision = precision,
                           .a = (const uint16_t *)a->at,
                           .b = (const uint16_t *)b->at,
                           .a_stride = extra != 0 ? line : 0,
                           .bias = form & BIAS ? (const uint16_t *)bias->at : NULL,
                           .c = {c->at, kind}};
    zr_product_by(context, &p, panels);
    if (!reference_wanted)
        return 0;
    reference_product(&p, a, b, bias, c);
    return share_of_allowed(c, half, least);
}

static inline void check_products(const char *name, const struct zr_panels *panels,
                                  enum zr_precision precision)
{
    static uint64_t seed;
    double error = 0;
    bool intact = true, same = true;
    size_t shapes = sizeof extents / sizeof extents[0];
    seed = seed != 0 ? seed : random_state;
    for (size_t i = 0; i < shapes; i++)
        for (unsigned form = 0; form < FORMS; form++) {
            uint64_t hash[3];
            /* every shape in the four ways to store; the rest in turn */
            if (form / 4 != (i + form % 4 * 5) % (FORMS / 4) && i > 3)
                continue;
            for (unsigned threads = 1; threads <= 3; threads++) {
                struct zr_kernel_context context;
                unsigned lent = threads;
                random_state = seed + i * FORMS + form;
                if (!context_begin(&context, (struct zr_kernel_limits){1, 1, 1, 1, 0, 0, 0}, ZR_ISA_PLAIN,
                                   &lent)) {
                    tap_ok(false, "%s: a context opens", name);
                    return;
                }
                reference_wanted = threads == 1; /* the others must have its bits */
                error = worst(error, product_error(&context, panels, precision, &extents[i], form));
                intact = context_end(&context) && intact;
                hash[threads - 1] = tensors_finish(&intact);
            }
            same = same && hash[0] == hash[1] && hash[0] == hash[2];
        }
    reference_wanted = true;
    const char *kind = zr_precision_name(precision);
    tap_ok(error <= 1, "%s, %s: products of every form are right (%.3f of the tolerance)", name, kind, error);
    tap_ok(intact, "%s, %s: and write nothing else", name, kind);
    tap_ok(same, "%s, %s: with the same bits for 1, 2, 3 threads", name, kind);
}

#endif
