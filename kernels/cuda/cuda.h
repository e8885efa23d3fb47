/* cuda.h: the kernel images and the streams of the CUDA table. Private to the project. */
#ifndef ZR_KERNELS_CUDA_H
#define ZR_KERNELS_CUDA_H

#include "kernels/streams.h"
#include "kernels/zr_kernels.h"

/* Fat binaries of this build, terminated by NULL; empty if the build had no nvcc. */
extern const void *const zr_cuda_images[];

/* Tests: sets the image that the first open() loads instead: a fat binary or an image of the emulated driver;
 * NULL: none. Call before the first open(). */
void zr_cuda_kernels_image_set(const void *image);

/* Tests: sets the file that later contexts load as cuBLASLt; a nonexistent file: no library; NULL: the
 * system's. No context with another library may be open. */
void zr_cuda_matrix_library_set(const char *path);

/* ---- Streams ------------------------------------------------------------------------------------------- */

/* The CUDA implementation of kernels/streams.h. */
extern const struct zr_kernel_streams zr_cuda_streams;

/* Looks up the driver's functions; the driver must be loaded. Must precede all functions of the table. */
zr_result zr_cuda_streams_find(void);
/* Waits until the context's stream is idle or context->while_waiting fails. */
zr_result zr_cuda_stream_wait(const struct zr_kernel_context *context);

#endif
