/* rehearse_program.c: a program of the CUDA runtime for tests/system/rehearse_device.t: rehearse_program MIB
 * [COUNT] allocates COUNT blocks, half of them on the last device, and copies to and from one;
 * rehearse_program static asks the driver for a private table, as a program with the CUDA runtime inside
 * does. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cudaGetDeviceCount(int *count);
int cudaSetDevice(int device);
int cudaMalloc(void **out, size_t bytes);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaMemset(void *to, int value, size_t bytes);
int cudaEventCreate(void **out);
int cudaEventRecord(void *event, void *stream);
int cudaEventElapsedTime(float *ms, void *begin, void *end);
int cudaDeviceSynchronize(void);
int cudaFuncSetAttribute(const void *function, int which, int value); /* without an answer */
const char *cudaGetErrorString(int code);

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

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) << 20 : 0;
    int count = argc > 2 ? atoi(argv[2]) : 1, devices = 0;
    void *events[2], *block = NULL;
    float ms = 0;
    if (argc > 1 && strcmp(argv[1], "static") == 0)
        return private_table();
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
    char set;
    cudaMemcpy(&set, block, 1, ANY);
    cudaDeviceSynchronize();
    cudaEventRecord(events[0], NULL);
    cudaEventRecord(events[1], NULL);
    cudaEventElapsedTime(&ms, events[0], events[1]);
    printf("devices %d kept %d lost %d set %d time %d\n", devices, kept, lost, set, ms > 0);
    return 0;
}
