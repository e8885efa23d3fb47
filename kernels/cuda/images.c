/* images.c: nvcc's output for the sources beside this file, in the library where the build had an nvcc.
 * ZR_CUDA_IMAGES is then the file, made by kernels.mk, that has ZR_IMAGE(name, path) of each fat binary. */
#include "kernels/cuda/cuda.h"

#include <stddef.h>

#ifdef ZR_CUDA_IMAGES
#define ZR_IMAGE(name, path)                                                                                 \
    extern const char zr_cuda_image_##name[] __attribute__((visibility("hidden")));                          \
    __asm__(".section .rodata\n.balign 64\n.globl zr_cuda_image_" #name "\n.hidden zr_cuda_image_" #name     \
            "\nzr_cuda_image_" #name ":\n.incbin \"" path "\"\n.previous\n");
#include ZR_CUDA_IMAGES
#undef ZR_IMAGE
#define ZR_IMAGE(name, path) zr_cuda_image_##name,
#endif

const void *const zr_cuda_images[] = {
#ifdef ZR_CUDA_IMAGES
#include ZR_CUDA_IMAGES
#endif
    NULL};
