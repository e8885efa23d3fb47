/* nccl_sum.h: reductions of NCCL's types, on the host. Private to alloc/rehearse/runtime/. */
#ifndef ZR_REHEARSE_NCCL_SUM_H
#define ZR_REHEARSE_NCCL_SUM_H

#include <stdbool.h>
#include <stddef.h>

/* ncclDataType_t: int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8_e4m3
 * float8_e5m2 */
enum { NCCL_TYPES_COUNT = 12 };
size_t nccl_type_bytes(int type); /* 0: there is no such type */

/* ncclRedOp_t; NCCL_SCALED: sums of what is multiplied by a scalar (ncclRedOpCreatePreMulSum) */
enum nccl_operation { NCCL_SUM, NCCL_PRODUCT, NCCL_MAX, NCCL_MIN, NCCL_AVERAGE, NCCL_SCALED };
struct nccl_reduction {
    enum nccl_operation operation;
    int type;
    double scale; /* of NCCL_SCALED */
};
/* False: the numbers of the type have no arithmetic here (8-bit floating point). */
bool nccl_can_reduce(int type);
double nccl_scalar(int type, const void *at);
/* all: [ranks][elements]; out: [elements], may be the first of them. Floating-point numbers are computed in
 * double precision in the order of the ranks. */
void nccl_reduce(const struct nccl_reduction *reduction, void *out, const void *all, int ranks,
                 size_t elements);

#endif
