/* rehearse_static.c: a program, and as a shared library a module, with a CUDA runtime inside, for
 * tests/system/rehearse_device.t. As NVIDIA's, its functions want a private table of the driver. */
#include <dlfcn.h>
#include <stdio.h>

int cudaMalloc(void **out, size_t bytes);
int module_run(void);

/* What marks NVIDIA's runtime. */
__attribute__((visibility("hidden"))) int libcudart_static_table(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
    int (*table)(const void **, const void *) =
        driver ? (int (*)(const void **, const void *))dlsym(driver, "cuGetExportTable") : NULL;
    const void *out;
    return !init || !table || init(0) || table(&out, "0123456789abcdef");
}

__attribute__((visibility("hidden"))) int cudaMalloc(void **out, size_t bytes)
{
    *out = bytes ? out : NULL;
    return libcudart_static_table();
}

int module_run(void)
{
    void *block;
    return cudaMalloc(&block, 100 << 20);
}

int main(void)
{
    int code = module_run();
    printf("code %d\n", code);
    return code;
}
