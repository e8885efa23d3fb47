/* kernel_times.c: linked into a zr-train of the tests' own (tests/gpu_shot), measures each
 * kernel on the card by a pair of CUDA events and writes one line per kernel at the end of the run:
 *
 *   ZR_TEST_TIMES=FILE   "name launches total-microseconds least-microseconds"
 *
 * The linker's --wrap puts these functions before the real ones. Products of cuBLASLt are named by their
 * shape. For one rank without --cuda-graph: the launches come from one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/backend/cuda_driver.h"
#include "kernels/cuda/driver_launch.h"
#include "kernels/cuda/matrix.h"
#include "zero/train/rank/rank.h"

zr_result __real_zr_cuda_driver_find(const char *name, void **out);
zr_result __wrap_zr_cuda_driver_find(const char *name, void **out);
zr_result __real_zr_cuda_matrix_multiply(struct zr_kernel_context *context, struct cuda_matrix *matrix,
                                         const struct cuda_product *product, void *workspace, bool *done);
zr_result __wrap_zr_cuda_matrix_multiply(struct zr_kernel_context *context, struct cuda_matrix *matrix,
                                         const struct cuda_product *product, void *workspace, bool *done);
int __real_zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument);
int __wrap_zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument);

enum { NAMES_MAX = 512, KERNELS_MAX = 256, PAIRS_MAX = 256, NAME_BYTES = 64 };

static struct {
    zr_cu_result (*launch)(zr_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, zr_cu_stream, void **, void **);
    zr_cu_result (*library_kernel)(zr_cu_kernel *, zr_cu_library, const char *);
    zr_cu_result (*elapsed)(float *milliseconds, zr_cu_event begin, zr_cu_event end);
    const struct zr_cuda_driver *driver;
} real;

static struct measured {
    char name[NAME_BYTES];
    unsigned long launches;
    double total_us, least_us;
} measured[NAMES_MAX];
static size_t measured_count;
static struct {
    zr_cu_kernel kernel;
    char name[NAME_BYTES];
} kernels[KERNELS_MAX];
static size_t kernels_count;
static struct {
    zr_cu_event begin, end;
    struct measured *of;
} pairs[PAIRS_MAX];
static size_t pairs_count; /* under way */

static struct measured *named(const char *name)
{
    size_t i = 0;
    while (i < measured_count && strcmp(measured[i].name, name) != 0)
        i++;
    if (i == NAMES_MAX)
        return NULL;
    if (i == measured_count)
        snprintf(measured[measured_count++].name, NAME_BYTES, "%s", name);
    return &measured[i];
}

/* Adds what the pairs under way took. */
static void collect(void)
{
    for (size_t i = 0; i < pairs_count; i++) {
        float milliseconds = 0;
        struct measured *of = pairs[i].of;
        if (real.driver->event_synchronize(pairs[i].end) != ZR_CU_SUCCESS ||
            real.elapsed(&milliseconds, pairs[i].begin, pairs[i].end) != ZR_CU_SUCCESS)
            continue;
        double us = 1000. * (double)milliseconds;
        of->least_us = of->launches == 0 || us < of->least_us ? us : of->least_us;
        of->total_us += us;
        of->launches++;
    }
    pairs_count = 0;
}

/* The driver's calls, once; keeps the context until the process ends, so that the events outlive the run. */
static bool start(void)
{
    zr_cu_context context;
    if (real.driver)
        return real.elapsed != NULL;
    if (!getenv("ZR_TEST_TIMES") || zr_cuda_driver_get(&real.driver) != ZR_OK ||
        __real_zr_cuda_driver_find("cuEventElapsedTime", (void **)&real.elapsed) != ZR_OK ||
        real.driver->context_retain(&context, 0) != ZR_CU_SUCCESS)
        real.elapsed = NULL;
    return real.elapsed != NULL;
}

/* Records the event before the work; false where nothing is measured. */
static bool begin(zr_cu_stream stream)
{
    if (!start())
        return false;
    if (pairs_count == PAIRS_MAX)
        collect();
    if (!pairs[pairs_count].end &&
        (real.driver->event_create(&pairs[pairs_count].begin, 0) != ZR_CU_SUCCESS ||
         real.driver->event_create(&pairs[pairs_count].end, 0) != ZR_CU_SUCCESS))
        return false;
    return real.driver->event_record(pairs[pairs_count].begin, stream) == ZR_CU_SUCCESS;
}

static void end(zr_cu_stream stream, const char *name)
{
    pairs[pairs_count].of = named(name);
    if (pairs[pairs_count].of && real.driver->event_record(pairs[pairs_count].end, stream) == ZR_CU_SUCCESS)
        pairs_count++;
}

static zr_cu_result library_kernel(zr_cu_kernel *out, zr_cu_library library, const char *name)
{
    zr_cu_result code = real.library_kernel(out, library, name);
    if (code == ZR_CU_SUCCESS && kernels_count < KERNELS_MAX) {
        kernels[kernels_count].kernel = *out;
        snprintf(kernels[kernels_count++].name, NAME_BYTES, "%s", name);
    }
    return code;
}

static zr_cu_result launch(zr_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                           zr_cu_stream stream, void **arguments, void **extra)
{
    const char *name = "unknown";
    bool measures = begin(stream);
    zr_cu_result code = real.launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                                    stream, arguments, extra);
    for (size_t i = 0; i < kernels_count; i++)
        if (kernels[i].kernel == (zr_cu_kernel)function)
            name = kernels[i].name;
    if (measures)
        end(stream, name);
    return code;
}

zr_result __wrap_zr_cuda_driver_find(const char *name, void **out)
{
    zr_result result = __real_zr_cuda_driver_find(name, out);
    if (result == ZR_OK && strcmp(name, "cuLaunchKernel") == 0) {
        memcpy(&real.launch, out, sizeof real.launch);
        *out = (void *)launch;
    } else if (result == ZR_OK && strcmp(name, "cuLibraryGetKernel") == 0) {
        memcpy(&real.library_kernel, out, sizeof real.library_kernel);
        *out = (void *)library_kernel;
    }
    return result;
}

zr_result __wrap_zr_cuda_matrix_multiply(struct zr_kernel_context *context, struct cuda_matrix *matrix,
                                         const struct cuda_product *product, void *workspace, bool *done)
{
    char name[NAME_BYTES];
    bool measures = begin((zr_cu_stream)context->stream);
    zr_result result = __real_zr_cuda_matrix_multiply(context, matrix, product, workspace, done);
    snprintf(name, sizeof name, "cuBLASLt_%ux%ux%u", product->m, product->n, product->k);
    if (measures && result == ZR_OK && *done)
        end((zr_cu_stream)context->stream, name);
    return result;
}

int __wrap_zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    int code = __real_zr_train_rank(local, rank, argument);
    zr_cu_context context;
    FILE *file = real.elapsed ? fopen(getenv("ZR_TEST_TIMES"), "w") : NULL;
    if (file && real.driver->context_retain(&context, 0) == ZR_CU_SUCCESS &&
        real.driver->context_push(context) == ZR_CU_SUCCESS)
        collect();
    for (size_t i = 0; file && i < measured_count; i++)
        fprintf(file, "%s %lu %.3f %.3f\n", measured[i].name, measured[i].launches, measured[i].total_us,
                measured[i].least_us);
    if (file && fclose(file) != 0)
        fprintf(stderr, "kernel_times: %s was not written\n", getenv("ZR_TEST_TIMES"));
    return code;
}
