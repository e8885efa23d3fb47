/* driver_launch.h: zr's declarations of the CUDA driver functions that run kernels;
 * alloc/backend/cuda_driver.h has the others. kernels/cuda/ calls them, the emulated driver defines them, and
 * cuda_declarations_test compares them with cuda.h if installed. Private to the project. */
#ifndef ZR_CUDA_DRIVER_LAUNCH_H
#define ZR_CUDA_DRIVER_LAUNCH_H

#include "alloc/backend/cuda_driver.h"

typedef struct zr_cu_module_st *zr_cu_module;
typedef struct zr_cu_library_st *zr_cu_library;
typedef struct zr_cu_kernel_st *zr_cu_kernel;
typedef struct zr_cu_function_st *zr_cu_function;

/* Results that cuda_driver.h does not have. */
enum { ZR_CU_INVALID_IMAGE = 200, ZR_CU_NO_BINARY = 209 };

typedef enum zr_cu_function_attribute {
    ZR_CU_FUNCTION_THREADS_MAX = 0,       /* per block */
    ZR_CU_FUNCTION_DYNAMIC_SHARED_MAX = 8 /* bytes; may be set */
} zr_cu_function_attribute;

/* Device attributes that zr_cu_attribute does not have. */
enum { ZR_CU_CAPABILITY_MAJOR = 75, ZR_CU_CAPABILITY_MINOR = 76 };

/* Argument of cuLaunchKernelEx. */
typedef struct zr_cu_launch_config {
    unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    zr_cu_stream stream;
    void *attributes;
    unsigned int attributes_count;
} zr_cu_launch_config;

/* f(member, the driver's name, the suffix of the version, parameters) */
// clang-format off
#define ZR_CUDA_LAUNCHING(f)                                                                                  \
    f(module_load, cuModuleLoadData, , (zr_cu_module *out, const void *image))                                \
    f(module_unload, cuModuleUnload, , (zr_cu_module module))                                                 \
    f(module_function, cuModuleGetFunction, , (zr_cu_function *out, zr_cu_module module, const char *name))   \
    f(library_load, cuLibraryLoadData, ,                                                                      \
      (zr_cu_library *out, const void *image, void *jit_options, void **jit_values, unsigned int jit_count,   \
       void *options, void **values, unsigned int count))                                                     \
    f(library_unload, cuLibraryUnload, , (zr_cu_library library))                                             \
    f(library_kernel, cuLibraryGetKernel, , (zr_cu_kernel *out, zr_cu_library library, const char *name))     \
    f(kernel_function, cuKernelGetFunction, , (zr_cu_function *out, zr_cu_kernel kernel))                     \
    f(function_get, cuFuncGetAttribute, ,                                                                     \
      (int *value, zr_cu_function_attribute which, zr_cu_function function))                                  \
    f(function_set, cuFuncSetAttribute, ,                                                                     \
      (zr_cu_function function, zr_cu_function_attribute which, int value))                                   \
    f(launch_kernel, cuLaunchKernel, ,                                                                        \
      (zr_cu_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,                \
       unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,           \
       zr_cu_stream stream, void **arguments, void **extra))                                                  \
    f(launch_config, cuLaunchKernelEx, ,                                                                      \
      (const zr_cu_launch_config *config, zr_cu_function function, void **arguments, void **extra))
// clang-format on

#endif
