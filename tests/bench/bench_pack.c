/* bench_pack.c: the packing of numbers on a GPU beside a copy in its memory: bytes read and written per
 * second, by launches one behind the other in a stream.
 *
 *   bench_pack [MILLIONS OF NUMBERS]
 *
 * One line each: "operation precision gigabytes-per-second". ZR_CONF=kernels:emulated runs it on the emulated
 * driver. Exit code 77: no card. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "alloc/backend/backend.h"
#include "alloc/base/option.h"
#include "kernels/cuda/cuda.h"
#include "kernels/streams.h"

enum { LAUNCHES = 20 };

static const struct zr_kernels *kernels;
static struct zr_kernel_context context = {.precision = ZR_PRECISION_BF16};
static size_t n;
static void *numbers, *errors, *packed;

static zr_result run(const char *operation, enum zr_precision precision, enum zr_packing packing)
{
    const struct zr_numbers at = {numbers, precision};
    const void *from = packed;
    if (operation[0] == 'c')
        return kernels->copy_bytes(
            &context, &(struct zr_copy_bytes){n * zr_precision_bytes(precision), numbers, errors, false});
    if (operation[0] == 'u')
        return kernels->unpack(&context, &(struct zr_unpack){packing, n, &from, 1, 1, false, at});
    return kernels->pack(
        &context, &(struct zr_pack){
                      packing, n, at, {NULL, precision}, operation[0] == 'f' ? errors : NULL, packed, NULL});
}

/* Bytes that it reads and writes. */
static double bytes_of(const char *operation, enum zr_precision precision, enum zr_packing packing)
{
    double own = (double)(n * zr_precision_bytes(precision));
    if (operation[0] == 'c')
        return 2 * own;
    return own + (double)zr_pack_bytes(packing, n) +
           (operation[0] == 'f' ? 2.0 * sizeof(float) * (double)n : 0);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static zr_result measure(const char *operation, enum zr_precision precision, enum zr_packing packing)
{
    zr_result result = run(operation, precision, packing);
    if (result == ZR_OK)
        result = kernels->streams->drain(&context);
    double start = now_s();
    for (unsigned i = 0; i < LAUNCHES && result == ZR_OK; i++)
        result = run(operation, precision, packing);
    if (result == ZR_OK)
        result = kernels->streams->drain(&context);
    double seconds = (now_s() - start) / LAUNCHES;
    if (result == ZR_OK)
        printf("%s%s%s %s %.1f\n", operation, operation[0] == 'c' ? "" : "_",
               operation[0] == 'c' ? "" : zr_packing_name(packing), zr_precision_name(precision),
               bytes_of(operation, precision, packing) / seconds * 1e-9);
    return result;
}

static zr_result measure_all(void)
{
    static const char *const operations[] = {"pack", "fed", "unpack"};
    zr_result result = ZR_OK;
    for (int precision = 0; precision <= ZR_PRECISION_BF16 && result == ZR_OK; precision++) {
        result = measure("copy", (enum zr_precision)precision, ZR_PACKING_INT8);
        for (unsigned i = 0; i < 3 * ZR_PACKINGS_COUNT && result == ZR_OK; i++)
            result = measure(operations[i % 3], (enum zr_precision)precision, (enum zr_packing)(i / 3));
    }
    return result;
}

int main(int argc, char **argv)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    n = (argc > 1 ? strtoul(argv[1], NULL, 10) : 256) << 20;
    n = n ? n : ZR_PACK_BLOCK; /* 0: a block, to try it */
    kernels = zr_kernels_cuda();
    if (zr_option_get(ZR_OPTION_KERNELS) == 1)
        zr_cuda_kernels_image_set("zr emulated image kernels.image\n");
    zr_option_prefer(ZR_OPTION_PRODUCTS, 1);
    zr_result result = zr_backend_cuda_create(&backend, NULL);
    if (result == ZR_OK)
        result = zr_backend_enter(backend);
    if (result == ZR_OK)
        result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    if (result == ZR_OK)
        result = kernels->open(&context);
    for (unsigned i = 0; i < 3 && result == ZR_OK; i++) {
        void **const blocks[] = {&numbers, &errors, &packed};
        result = zr_arena_alloc(arena, &(struct zr_request){.bytes = (n + ZR_PACK_BLOCK) * sizeof(float)},
                                blocks[i]);
        if (result == ZR_OK)
            result = kernels->clear(&context, &(struct zr_clear){n * sizeof(float), *blocks[i]});
    }
    if (result == ZR_OK)
        result = measure_all();
    if (result != ZR_OK)
        fprintf(stderr, "bench_pack: %s\n", zr_last_error());
    return result == ZR_OK ? 0 : result == ZR_ERR_UNAVAILABLE ? 77 : 1;
}
