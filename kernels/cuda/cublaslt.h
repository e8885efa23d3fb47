/* cublaslt.h: the part of cuBLASLt that multiplies matrices, in zr's own declarations, so that no header of
 * CUDA is needed. matrix.c calls the functions, tests/emulators/cublaslt/ defines them, and
 * cuda_declarations_test compares them with cublasLt.h if it is installed. The library's numbers are the same
 * in CUDA 12 and 13. Private to the project. */
#ifndef ZR_CUDA_CUBLASLT_H
#define ZR_CUDA_CUBLASLT_H

#include "alloc/backend/cuda_driver.h"

typedef struct zr_lt_handle_st *zr_lt_handle;
typedef struct zr_lt_operation_st *zr_lt_operation;   /* cublasLtMatmulDesc_t */
typedef struct zr_lt_layout_st *zr_lt_layout;         /* cublasLtMatrixLayout_t */
typedef struct zr_lt_preference_st *zr_lt_preference; /* cublasLtMatmulPreference_t */

typedef unsigned int zr_lt_status; /* cublasStatus_t */
enum {
    ZR_LT_SUCCESS = 0,
    ZR_LT_NOT_INITIALIZED = 1,
    ZR_LT_ALLOC_FAILED = 3,
    ZR_LT_INVALID_VALUE = 7,
    ZR_LT_EXECUTION_FAILED = 13,
    ZR_LT_NOT_SUPPORTED = 15
};

enum {
    ZR_LT_FLOAT = 0,
    ZR_LT_HALF = 2,
    ZR_LT_BFLOAT = 14,
    ZR_LT_E4M3 = 28,
    ZR_LT_E5M2 = 29
};                                                 /* cudaDataType_t */
enum { ZR_LT_COMPUTE_FLOAT = 68 };                 /* cublasComputeType_t: sums in floats */
enum { ZR_LT_AS_IT_IS = 0, ZR_LT_TRANSPOSED = 1 }; /* cublasOperation_t */
enum {                                             /* cublasLtEpilogue_t */
       ZR_LT_EPILOGUE_NONE = 1,
       ZR_LT_EPILOGUE_BIAS = 4,       /* D += the bias, before the other operations */
       ZR_LT_EPILOGUE_GELU_AUX = 160, /* AUX = D; D = gelu(D), in its tanh form */
       ZR_LT_EPILOGUE_GELU_AUX_BIAS = 164,
       ZR_LT_EPILOGUE_DGELU = 192 /* D *= the derivative of gelu() at AUX */
};

/* cublasLtReductionScheme_t, as bits: how the parts of a sum over k are added. */
enum { ZR_LT_REDUCTION_NONE = 0, ZR_LT_REDUCTION_IN_FLOATS = 2 };

enum {                                   /* cublasLtMatmulDescAttributes_t */
       ZR_LT_OPERATION_TRANSPOSE_A = 3,  /* int32_t */
       ZR_LT_OPERATION_TRANSPOSE_B = 4,  /* int32_t */
       ZR_LT_OPERATION_EPILOGUE = 7,     /* uint32_t */
       ZR_LT_OPERATION_BIAS = 8,         /* const void *, of D's type: one number for each row of D */
       ZR_LT_OPERATION_AUX = 11,         /* void *, of D's type, aligned to 16 bytes */
       ZR_LT_OPERATION_AUX_LEADING = 12, /* int64_t: a multiple of 8 */
       ZR_LT_OPERATION_SCALE_A = 17,     /* const void *: a float in device memory; for fp8 matrices */
       ZR_LT_OPERATION_SCALE_B = 18
};

enum {                                        /* cublasLtMatmulPreferenceAttributes_t */
       ZR_LT_PREFERENCE_WORKSPACE_BYTES = 1,  /* uint64_t: the maximum */
       ZR_LT_PREFERENCE_REDUCTIONS = 3,       /* uint32_t: the schemes that are allowed */
       ZR_LT_PREFERENCE_ALIGNMENT_A_BYTES = 5 /* uint32_t: the minimum; B, C and D follow */
};

typedef struct zr_lt_algorithm {
    uint64_t data[8];
} zr_lt_algorithm; /* cublasLtMatmulAlgo_t */

typedef struct zr_lt_choice {
    zr_lt_algorithm algorithm;
    size_t workspace_bytes;
    zr_lt_status state; /* ZR_LT_SUCCESS: the other fields are valid */
    float waves_count;
    int reserved[4];
} zr_lt_choice; /* cublasLtMatmulHeuristicResult_t */

/* f(member, the library's name, type of the result, parameters). Matrices are stored by columns; `leading` is
 * the distance of two columns in elements. */
// clang-format off
#define ZR_LT_FUNCTIONS(f)                                                                                    \
    f(version, cublasLtGetVersion, size_t, (void))                                                            \
    f(create, cublasLtCreate, zr_lt_status, (zr_lt_handle *out))                                              \
    f(destroy, cublasLtDestroy, zr_lt_status, (zr_lt_handle handle))                                          \
    f(operation_create, cublasLtMatmulDescCreate, zr_lt_status,                                               \
      (zr_lt_operation *out, unsigned int compute_type, unsigned int scale_type))                             \
    f(operation_destroy, cublasLtMatmulDescDestroy, zr_lt_status, (zr_lt_operation operation))                \
    f(operation_set, cublasLtMatmulDescSetAttribute, zr_lt_status,                                            \
      (zr_lt_operation operation, unsigned int attribute, const void *value, size_t bytes))                   \
    f(layout_create, cublasLtMatrixLayoutCreate, zr_lt_status,                                                \
      (zr_lt_layout *out, unsigned int type, uint64_t rows, uint64_t columns, int64_t leading))               \
    f(layout_destroy, cublasLtMatrixLayoutDestroy, zr_lt_status, (zr_lt_layout layout))                       \
    f(preference_create, cublasLtMatmulPreferenceCreate, zr_lt_status, (zr_lt_preference *out))               \
    f(preference_destroy, cublasLtMatmulPreferenceDestroy, zr_lt_status, (zr_lt_preference preference))       \
    f(preference_set, cublasLtMatmulPreferenceSetAttribute, zr_lt_status,                                     \
      (zr_lt_preference preference, unsigned int attribute, const void *value, size_t bytes))                 \
    f(choose, cublasLtMatmulAlgoGetHeuristic, zr_lt_status,                                                   \
      (zr_lt_handle handle, zr_lt_operation operation, zr_lt_layout a, zr_lt_layout b, zr_lt_layout c,        \
       zr_lt_layout d, zr_lt_preference preference, int most, zr_lt_choice *out, int *count))                 \
    f(multiply, cublasLtMatmul, zr_lt_status,                                                                 \
      (zr_lt_handle handle, zr_lt_operation operation, const void *alpha, const void *a_at, zr_lt_layout a,   \
       const void *b_at, zr_lt_layout b, const void *beta, const void *c_at, zr_lt_layout c, void *d_at,      \
       zr_lt_layout d, const zr_lt_algorithm *algorithm, void *workspace, size_t workspace_bytes,             \
       zr_cu_stream stream))
// clang-format on

#endif
