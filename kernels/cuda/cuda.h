/* cuda.h: what the tests need of the table on a card. Private to the project. */
#ifndef ZR_KERNELS_CUDA_H
#define ZR_KERNELS_CUDA_H

#include "kernels/zr_kernels.h"

/* The image that the first open() loads: a fat binary, or what the emulated driver takes for one. Before
 * that.
 */
void zr_cuda_kernels_image_set(const void *image);

/* The file that contexts opened from now on take for cuBLASLt; a name that is no file: none. NULL: the
 * system's. No context that uses another is open. */
void zr_cuda_matrix_library_set(const char *path);

#endif
