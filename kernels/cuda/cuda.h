/* cuda.h: the images of the kernels that the table on a card runs. Private to the project. */
#ifndef ZR_KERNELS_CUDA_H
#define ZR_KERNELS_CUDA_H

#include "kernels/zr_kernels.h"

/* Fat binaries of this build, NULL-ended: none where the build had no nvcc. Constant. */
extern const void *const zr_cuda_images[];

/* The one image that the first open() loads in their place: a fat binary, or what the emulated driver takes
 * for one; NULL: none. Before that. */
void zr_cuda_kernels_image_set(const void *image);

/* The file that contexts opened from now on take for cuBLASLt; a name that is no file: none. NULL: the
 * system's. No context that uses another is open. */
void zr_cuda_matrix_library_set(const char *path);

#endif
