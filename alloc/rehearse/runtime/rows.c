/* rows.c: memory in rows: pitched allocations, arrays of textures, and copies and fills of rectangles. See
 * runtime.h. */
#include <stdlib.h>

#include "alloc/rehearse/runtime/runtime.h"

#define ANSWER __attribute__((visibility("default")))

typedef zr_cu_result error;

/* cudaExtent, cudaPos, cudaPitchedPtr, cudaChannelFormatDesc, cudaMemcpy3DParms */
struct extent {
    size_t width, height, depth;
};
struct pitched {
    char *pointer;
    size_t pitch, width, height;
};
struct channels {
    int bits[4], kind;
};
struct array;
struct copy {
    struct array *from_array;
    struct extent from_at;
    struct pitched from;
    struct array *to_array;
    struct extent to_at;
    struct pitched to;
    struct extent extent;
    int kind;
};

/* ---- Allocations --------------------------------------------------------------------------------------- */

ANSWER error cudaMalloc3D(struct pitched *out, struct extent extent);
error cudaMalloc3D(struct pitched *out, struct extent extent)
{
    size_t rows;
    *out = (struct pitched){.width = extent.width, .height = extent.height};
    return __builtin_mul_overflow(extent.height, extent.depth, &rows)
               ? ZR_CU_INVALID_VALUE
               : cudaMallocPitch((void **)&out->pointer, &out->pitch, extent.width, rows);
}

/* An array takes its elements in rows; how a GPU lays it out is not published. */
struct array {
    void *memory;
    struct channels channels;
    struct extent extent; /* in elements; 0: that dimension is not there */
};

ANSWER error cudaMalloc3DArray(struct array **out, const struct channels *channels, struct extent extent,
                               unsigned flags);
error cudaMalloc3DArray(struct array **out, const struct channels *channels, struct extent extent,
                        unsigned flags)
{
    const size_t bits = (size_t)channels->bits[0] + (size_t)channels->bits[1] + (size_t)channels->bits[2] +
                        (size_t)channels->bits[3];
    const size_t height = extent.height ? extent.height : 1, depth = extent.depth ? extent.depth : 1;
    size_t width, rows, pitch;
    (void)flags;
    if (__builtin_mul_overflow(extent.width, bits / 8, &width) ||
        __builtin_mul_overflow(height, depth, &rows))
        return ZR_CU_INVALID_VALUE;
    struct array *made = malloc(sizeof *made);
    if (!made)
        return ZR_CU_OUT_OF_MEMORY;
    *made = (struct array){NULL, *channels, extent};
    error code = cudaMallocPitch(&made->memory, &pitch, width, rows);
    if (code == ZR_CU_SUCCESS)
        *out = made;
    else
        free(made);
    return code;
}

ANSWER error cudaMallocArray(struct array **out, const struct channels *channels, size_t width, size_t height,
                             unsigned flags);
error cudaMallocArray(struct array **out, const struct channels *channels, size_t width, size_t height,
                      unsigned flags)
{
    return cudaMalloc3DArray(out, channels, (struct extent){width, height, 0}, flags);
}

ANSWER error cudaFreeArray(struct array *array);
error cudaFreeArray(struct array *array)
{
    error code = array ? cudaFree(array->memory) : ZR_CU_SUCCESS;
    free(array);
    return code;
}

ANSWER error cudaArrayGetInfo(struct channels *channels, struct extent *extent, unsigned *flags,
                              const struct array *array);
error cudaArrayGetInfo(struct channels *channels, struct extent *extent, unsigned *flags,
                       const struct array *array)
{
    if (channels)
        *channels = array->channels;
    if (extent)
        *extent = array->extent;
    if (flags)
        *flags = 0;
    return ZR_CU_SUCCESS;
}

ANSWER error cudaGetChannelDesc(struct channels *out, const struct array *array);
error cudaGetChannelDesc(struct channels *out, const struct array *array)
{
    return cudaArrayGetInfo(out, NULL, NULL, array);
}

/* ---- Copies and fills: what an array holds is not kept ------------------------------------------------- */

ANSWER error cudaMemcpy3DAsync(const struct copy *copy, zr_cu_stream stream);
error cudaMemcpy3DAsync(const struct copy *copy, zr_cu_stream stream)
{
    error code = ZR_CU_SUCCESS;
    for (size_t z = 0;
         !copy->from_array && !copy->to_array && code == ZR_CU_SUCCESS && z < copy->extent.depth; z++) {
        const struct pitched *to = &copy->to, *from = &copy->from;
        char *first = to->pointer + ((copy->to_at.depth + z) * to->height + copy->to_at.height) * to->pitch;
        const char *source =
            from->pointer + ((copy->from_at.depth + z) * from->height + copy->from_at.height) * from->pitch;
        code = cudaMemcpy2DAsync(first + copy->to_at.width, to->pitch, source + copy->from_at.width,
                                 from->pitch, copy->extent.width, copy->extent.height, copy->kind, stream);
    }
    return code;
}

ANSWER error cudaMemcpy3D(const struct copy *copy);
error cudaMemcpy3D(const struct copy *copy)
{
    error code = cudaMemcpy3DAsync(copy, NULL);
    return code == ZR_CU_SUCCESS ? cudaStreamSynchronize(NULL) : code;
}

ANSWER error cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                          size_t height, int kind);
error cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                   size_t height, int kind)
{
    error code = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, NULL);
    return code == ZR_CU_SUCCESS ? cudaStreamSynchronize(NULL) : code;
}

ANSWER error cudaMemset2DAsync(char *to, size_t pitch, int value, size_t width, size_t height,
                               zr_cu_stream stream);
error cudaMemset2DAsync(char *to, size_t pitch, int value, size_t width, size_t height, zr_cu_stream stream)
{
    error code = ZR_CU_SUCCESS;
    for (size_t row = 0; code == ZR_CU_SUCCESS && row < height; row++)
        code = cudaMemsetAsync(to + row * pitch, value, width, stream);
    return code;
}

ANSWER error cudaMemset2D(char *to, size_t pitch, int value, size_t width, size_t height);
error cudaMemset2D(char *to, size_t pitch, int value, size_t width, size_t height)
{
    return cudaMemset2DAsync(to, pitch, value, width, height, NULL);
}

ANSWER error cudaMemset3DAsync(struct pitched to, int value, struct extent extent, zr_cu_stream stream);
error cudaMemset3DAsync(struct pitched to, int value, struct extent extent, zr_cu_stream stream)
{
    error code = ZR_CU_SUCCESS;
    for (size_t z = 0; code == ZR_CU_SUCCESS && z < extent.depth; z++)
        code = cudaMemset2DAsync(to.pointer + z * to.height * to.pitch, to.pitch, value, extent.width,
                                 extent.height, stream);
    return code;
}

ANSWER error cudaMemset3D(struct pitched to, int value, struct extent extent);
error cudaMemset3D(struct pitched to, int value, struct extent extent)
{
    return cudaMemset3DAsync(to, value, extent, NULL);
}
