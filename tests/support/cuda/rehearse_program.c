/* rehearse_program.c: a program of the CUDA runtime for tests/system/rehearse_device.t: rehearse_program MIB
 * [COUNT] allocates COUNT blocks, half of them on the last device, and copies to and from one;
 * rehearse_program static asks the driver for a private table, as a program with the CUDA runtime inside
 * does; rehearse_program clock says how long work takes, rehearse_program read what a kernel's results read
 * as, rehearse_program compute what is computed in their place, rehearse_program reuse what memory has that
 * is used again while copies are under way; rehearse_program handle destroys a handle of cuBLAS with another
 * device current, rehearse_program rows allocates and copies in rows, in an array and in a pool. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cudaGetDeviceCount(int *count);
int cudaSetDevice(int device);
int cudaMalloc(void **out, size_t bytes);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaFree(void *pointer);
int cudaMemset(void *to, int value, size_t bytes);
int cudaEventCreate(void **out);
int cudaEventRecord(void *event, void *stream);
int cudaEventElapsedTime(float *ms, void *begin, void *end);
int cudaDeviceSynchronize(void);
int cudaFuncSetAttribute(const void *function, int which, int value); /* without an answer */
const char *cudaGetErrorString(int code);
int cublasCreate_v2(void **out);
int cublasDestroy_v2(void *handle);
int cudnnCreate(void **out);
/* What PyTorch's allocator tells of a block: its address, its bytes, two sums, and the kind of the device. */
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *block, long bytes, size_t, size_t, int kind);
int cudaMallocHost(void **out, size_t bytes);
int cudaEventQuery(void *event);
int cudaEventSynchronize(void *event);
int cudaStreamCreateWithFlags(void **out, unsigned flags);
int cudaMemsetAsync(void *pointer, int value, size_t bytes, void *stream);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
struct extent {
    unsigned x, y, z;
};
int cudaLaunchKernel(const void *function, struct extent grid, struct extent block, void **arguments,
                     size_t shared_bytes, void *stream);
void cuRehearseCount(long long count);
unsigned char cuRehearsePeek(unsigned long long address, void *out, size_t bytes);
void cuRehearsePoke(unsigned long long address, const void *data, size_t bytes);
void cuRehearseUniform(unsigned long long address, size_t bytes, unsigned long long pattern);
int cublasSetStream_v2(void *handle, void *stream);
int cublasGemmEx(void *handle, int, int, int m, int n, int k, const void *, const void *, int, int,
                 const void *, int, int, const void *, void *, int, int, int, int);

struct sizes {
    size_t width, height, depth;
};
struct pitched {
    char *pointer;
    size_t pitch, width, height;
};
struct pool {
    int kind, handles, location, device;
    size_t rest[10];
};
int cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height);
int cudaMalloc3D(struct pitched *out, struct sizes sizes);
int cudaMallocArray(void **out, const int channels[5], size_t width, size_t height, unsigned flags);
int cudaFreeArray(void *array);
int cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height);
int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                 int kind);
int cudaMemPoolCreate(void **out, const struct pool *pool);
int cudaMemPoolDestroy(void *pool);
int cudaMallocFromPoolAsync(void **out, size_t bytes, void *pool, void *stream);
int cudaPointerGetAttributes(void *out, const void *pointer);

enum { ANY = 4, LONG_BYTES = 4 << 20 };

static int private_table(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
    int (*table)(const void **, const void *) =
        driver ? (int (*)(const void **, const void *))dlsym(driver, "cuGetExportTable") : NULL;
    const void *out;
    return !init || !table || init(0) || table(&out, "0123456789abcdef");
}

static int last_byte(char *device, size_t bytes, int byte)
{
    static char host[LONG_BYTES];
    memset(host, byte, bytes);
    cudaMemcpy(device, host, bytes, ANY);
    memset(host, 1, bytes);
    cudaMemcpy(host, device, bytes, ANY);
    return host[bytes - 1];
}

static int elapsed_us(void **events)
{
    float ms = 0;
    cudaEventRecord(events[1], NULL);
    cudaEventSynchronize(events[1]);
    cudaEventElapsedTime(&ms, events[0], events[1]);
    return (int)(ms * 1000 + 0.5f);
}

/* How long a product and a copy take, whether an event waits, and which of two streams ends first, eight
 * times. */
static int clock_mode(void)
{
    enum { SIZE = 8192, BF16 = 14, COMPUTE_32F = 68, FILLED = 256 << 20 };
    void *events[2], *streams[2], *block = NULL, *handle = NULL;
    static char host[LONG_BYTES];
    cudaMalloc(&block, 2 * (size_t)FILLED);
    for (int i = 0; i < 2; i++) {
        cudaEventCreate(&events[i]);
        cudaStreamCreateWithFlags(&streams[i], 1);
    }
    cublasCreate_v2(&handle);
    cudaEventRecord(events[0], NULL);
    cublasGemmEx(handle, 0, 0, SIZE, SIZE, SIZE, NULL, block, BF16, SIZE, block, BF16, SIZE, NULL, block,
                 BF16, SIZE, COMPUTE_32F, 0);
    int product = elapsed_us(events);
    cudaEventRecord(events[0], NULL);
    cudaMemcpy(block, host, LONG_BYTES, ANY);
    int copy = elapsed_us(events);
    printf("product %d us copy %d us order ", product, copy);
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 2; i++) {
            cudaMemsetAsync((char *)block + (size_t)i * FILLED, 1, FILLED, streams[i]);
            cudaEventRecord(events[i], streams[i]);
        }
        int busy = cudaEventQuery(events[0]) != 0, first = 0;
        while (cudaEventQuery(events[first]) != 0)
            first = !first;
        cudaDeviceSynchronize();
        printf("%d", busy && cudaEventQuery(events[0]) == 0 ? first : 9);
    }
    printf("\n");
    return 0;
}

/* What is computed in a kernel's place. */
static int compute_mode(void)
{
    const struct extent one = {1, 1, 1};
    long long number = 7;
    char *block = NULL, uniform = 0, after = 0, whole = 0;
    unsigned short shorts[4];
    cudaMalloc((void **)&block, 4096);
    cudaLaunchKernel(&one, one, one, NULL, 0, NULL);
    const unsigned long long at = (unsigned long long)(size_t)block;
    int unknown = cuRehearsePeek(at, &whole, 1);
    cuRehearsePoke(at, &number, sizeof number);
    cuRehearseUniform(at + 64, 64, 0x0101010101010101);
    cuRehearseUniform(at + 1024, 256, 0x0004000300020001);
    number = 0;
    cudaMemcpy(&number, block, sizeof number, ANY);
    cudaMemcpy(shorts, block + 1034, sizeof shorts, ANY);
    cudaMemcpy(&uniform, block + 100, 1, ANY);
    int known = cuRehearsePeek(at + 127, &whole, 1);
    cudaMemset(block + 100, 0, 1);
    cudaMemcpy(&after, block + 100, 1, ANY); /* no kernel can have made it */
    printf("peek %d number %lld uniform %d %d %d %d peek %d %d after %d\n", unknown, number, uniform,
           shorts[0], shorts[2], shorts[3], known, whole, after);
    return 0;
}

/* What reads in the place of a kernel's results, and what the program has written itself. */
static int read_mode(void)
{
    const struct extent one = {1, 1, 1};
    long long whole = 0, kept = 7, again = 8;
    float single = 0;
    int count = 0, *pinned = NULL, locked;
    char *block = NULL;
    cudaMalloc((void **)&block, 4096);
    cudaMallocHost((void **)&pinned, sizeof *pinned);
    *pinned = 6;
    cudaMemcpyAsync(block + 256, pinned, sizeof *pinned, ANY, NULL);
    cudaMemcpy(block + 64, &kept, sizeof kept, ANY);
    kept = 0;
    cudaLaunchKernel(&one, one, one, NULL, 0, NULL);
    cudaMemcpy(&whole, block, sizeof whole, ANY);
    cudaMemcpy(&single, block + 60, sizeof single, ANY);
    cudaMemcpy(&kept, block + 64, sizeof kept, ANY);
    cudaMemcpy(block + 128, &again, sizeof again, ANY);
    cudaMemcpy(&again, block + 128, sizeof again, ANY); /* no kernel can have made it */
    cudaMemcpy(pinned, block + 256, sizeof *pinned, ANY);
    cudaMemcpy(&locked, pinned, sizeof locked, ANY);
    cuRehearseCount(5);
    cudaMemcpy(&count, block + 64, sizeof count, ANY);
    cuRehearseCount(-1);
    printf("whole %lld single %g kept %lld again %lld count %d locked %d\n", whole, single, kept, again,
           count, locked);
    return 0;
}

/* What PyTorch's allocator hands out again while copies to it and from it are under way. */
static int reuse_mode(void)
{
    const struct extent one = {1, 1, 1}, many = {1 << 20, 1, 1};
    int *pinned = NULL, copied = 0, reused = 1;
    char *block = NULL;
    cudaMalloc((void **)&block, 8192);
    cudaMallocHost((void **)&pinned, sizeof *pinned);
    *pinned = 7;
    cudaLaunchKernel(&one, many, one, NULL, 0, NULL);
    cudaMemcpyAsync(block, pinned, sizeof *pinned, ANY, NULL);
    cudaMemcpyAsync(block + 4096, block, sizeof *pinned, ANY, NULL);
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(block, 4096, 0, 0, 1);
    cudaMemcpy(&copied, block + 4096, sizeof copied, ANY);
    cudaMemcpy(&reused, block, sizeof reused, ANY);
    printf("copied %d reused %d\n", copied, reused);
    return 0;
}

static int handle_mode(void)
{
    void *handle = NULL, *block = NULL;
    return cublasCreate_v2(&handle) || cudaSetDevice(1) || cudaMalloc(&block, 100 << 20) ||
           cublasDestroy_v2(handle);
}

/* CUDA 12's attributes of a pointer end before `behind`. */
static int rows_mode(void)
{
    enum { WIDTH = 1000, ROWS = 2048, SIDE = 2048 };
    const int floats[5] = {32, 0, 0, 0, 2};
    const struct pool pinned = {.kind = 1, .location = 1};
    struct {
        int type, device;
        void *there, *here;
        long behind;
    } attributes = {.behind = 7};
    struct pitched volume;
    char *block = NULL, read[2][3] = {{1, 1, 1}, {1, 1, 1}};
    void *array = NULL, *pool = NULL, *pooled = NULL;
    size_t pitch = 0;
    int failed = cudaMallocPitch((void **)&block, &pitch, WIDTH, ROWS) ||
                 cudaMalloc3D(&volume, (struct sizes){WIDTH, ROWS, 2}) ||
                 cudaMallocArray(&array, floats, SIDE, SIDE, 0) || cudaMemset2D(block, pitch, 5, 2, 2) ||
                 cudaMemcpy2D(read, sizeof *read, block, pitch, sizeof *read, 2, ANY) ||
                 cudaPointerGetAttributes(&attributes, block) || cudaFreeArray(array) ||
                 cudaMallocArray(&array, floats, SIDE, SIDE, 0) || cudaMemPoolCreate(&pool, &pinned) ||
                 cudaMallocFromPoolAsync(&pooled, (size_t)64 << 20, pool, NULL) || cudaFree(pooled) ||
                 cudaMemPoolDestroy(pool);
    printf("failed %d pitch %zu %zu set %d %d %d behind %ld type %d\n", failed, pitch, volume.pitch,
           read[0][0], read[1][1], read[1][2], attributes.behind, attributes.type);
    return failed;
}

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) << 20 : 0;
    int count = argc > 2 ? atoi(argv[2]) : 1, devices = 0;
    void *events[2], *handles[2], *block = NULL;
    float ms = 0;
    if (argc > 1 && strcmp(argv[1], "static") == 0)
        return private_table();
    if (argc > 1 && strcmp(argv[1], "clock") == 0)
        return clock_mode();
    if (argc > 1 && strcmp(argv[1], "read") == 0)
        return read_mode();
    if (argc > 1 && strcmp(argv[1], "compute") == 0)
        return compute_mode();
    if (argc > 1 && strcmp(argv[1], "reuse") == 0)
        return reuse_mode();
    if (argc > 1 && strcmp(argv[1], "handle") == 0)
        return handle_mode();
    if (argc > 1 && strcmp(argv[1], "rows") == 0)
        return rows_mode();
    if (argc == 1)
        return 0;
    cudaGetDeviceCount(&devices);
    cudaFuncSetAttribute(NULL, 0, 0);
    for (int i = 0; i < count; i++) {
        cudaSetDevice(i % 2 ? devices - 1 : 0);
        int code = cudaMalloc(&block, bytes);
        if (code) {
            printf("%s\n", cudaGetErrorString(code));
            return 1;
        }
    }
    cudaEventCreate(&events[0]);
    cudaEventCreate(&events[1]);
    int kept = last_byte(block, 4096, 7), lost = last_byte(block, LONG_BYTES, 7);
    cudaMemset(block, 5, 4096);
    char set, freed, reused;
    cudaMemcpy(&set, block, 1, ANY);
    cudaDeviceSynchronize();
    cudaEventRecord(events[0], NULL);
    cudaEventRecord(events[1], NULL);
    cudaEventElapsedTime(&ms, events[0], events[1]);
    last_byte(block, 4096, 7);
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(block, -4096, 0, 0, 1);
    cudaMemcpy(&freed, block, 1, ANY);
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(block, 512, 0, 0, 1);
    cudaMemcpy(&reused, block, 1, ANY);
    cudnnCreate(&handles[0]);
    cudnnCreate(&handles[1]);
    printf("devices %d kept %d lost %d set %d time %d freed %d reused %d handles %d\n", devices, kept, lost,
           set, ms > 0, freed, reused, 1 + (handles[0] != handles[1]));
    return 0;
}
