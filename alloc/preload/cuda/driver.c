/* driver.c: the real driver and the real dlsym. See cuda.h. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <dlfcn.h>

struct zr_cuda_real zr_cuda_real;

/* ---- The real dlsym ------------------------------------------------------------------------------------ */

#ifdef __x86_64__
#define DLSYM_VERSION "GLIBC_2.2.5"
#else
#define DLSYM_VERSION "GLIBC_2.17"
#endif

zr_dlsym_function *zr_real_dlsym(void)
{
    static zr_dlsym_function *_Atomic found;
    zr_dlsym_function *function = atomic_load_explicit(&found, memory_order_relaxed);
    if (!function) {
        *(void **)&function = dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION);
        atomic_store_explicit(&found, function, memory_order_relaxed);
    }
    return function;
}

/* The linker redirects dlsym calls of zr's own objects here: they look for the real driver. */
void *__wrap_dlsym(void *handle, const char *name);
void *__wrap_dlsym(void *handle, const char *name)
{
    return zr_real_dlsym()(handle, name);
}

/* ---- The driver ---------------------------------------------------------------------------------------- */

#define NAME(member, name, suffix, parameters) #name #suffix,
/* In the order of struct zr_cuda_real. */
static const char *const names[] = {ZR_CUDA_REPLACED(NAME) ZR_CUDA_USED(NAME)};
#undef NAME
enum { FUNCTIONS_COUNT = sizeof names / sizeof *names };
_Static_assert(sizeof zr_cuda_real == FUNCTIONS_COUNT * sizeof(void *), "a pointer for each name");

static _Atomic bool is_found;

static void **real_functions(void)
{
    return (void **)&zr_cuda_real;
}

/* Concurrent calls write the same values. */
static bool load_driver(int flags)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | flags);
    if (!library)
        return false;
    for (size_t i = 0; i < FUNCTIONS_COUNT; i++)
        real_functions()[i] = zr_real_dlsym()(library, names[i]);
    if (!atomic_exchange_explicit(&is_found, true, memory_order_acq_rel))
        zr_cuda_paths_check();
    return true;
}

bool zr_cuda_find_driver(void)
{
    return atomic_load_explicit(&is_found, memory_order_acquire) || load_driver(0);
}

bool zr_cuda_find_loaded_driver(void)
{
    return atomic_load_explicit(&is_found, memory_order_acquire) || load_driver(RTLD_NOLOAD);
}

size_t zr_cuda_replaced_index(const void *function)
{
    size_t i = 0;
    while (i < ZR_CUDA_REPLACED_COUNT && (!function || real_functions()[i] != function))
        i++;
    return i;
}
