/* driver.c: the real driver, and the ways in which a program finds its functions: the dynamic linker, dlsym
 * and cuGetProcAddress. See cuda.h.
 *
 * A lookup by name calls the real dlsym or cuGetProcAddress first. If the result is a function that this
 * library replaces, the program gets the replacement, so that it always gets the version that it requested.
 */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/system/lock.h"

struct zr_cuda_real zr_cuda_real;

#define TAKEN(member, name, suffix, parameters)                                                              \
    {#name #suffix, offsetof(struct zr_cuda_real, member), (void *)name##suffix},
#define USED(member, name, suffix, parameters) {#name #suffix, offsetof(struct zr_cuda_real, member), NULL},
static const struct {
    const char *name;
    size_t offset_bytes;
    void *own;
} functions[] = {ZR_CUDA_TAKEN(TAKEN) ZR_CUDA_USED(USED)};
#undef TAKEN
#undef USED
enum { FUNCTIONS_COUNT = sizeof functions / sizeof *functions };

static void **real_of(size_t i)
{
    return (void **)((char *)&zr_cuda_real + functions[i].offset_bytes);
}

/* ---- The real dlsym ------------------------------------------------------------------------------------ */

#ifdef __x86_64__
#define DLSYM_VERSION "GLIBC_2.2.5"
#else
#define DLSYM_VERSION "GLIBC_2.17"
#endif

typedef void *dlsym_function(void *handle, const char *name);

static dlsym_function *next_dlsym(void)
{
    static dlsym_function *_Atomic found;
    dlsym_function *function = atomic_load_explicit(&found, memory_order_relaxed);
    if (!function) {
        *(void **)&function = dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION);
        atomic_store_explicit(&found, function, memory_order_relaxed);
    }
    return function;
}

void *zr_real_dlsym(void *handle, const char *name)
{
    return next_dlsym()(handle, name);
}

/* The linker redirects dlsym calls of zr's own objects here: they look for the real driver. */
void *__wrap_dlsym(void *handle, const char *name);
void *__wrap_dlsym(void *handle, const char *name)
{
    return next_dlsym()(handle, name);
}

/* ---- The driver ---------------------------------------------------------------------------------------- */

static _Atomic bool is_found;

/* Finds the driver's functions. Concurrent calls write the same values. */
static bool load_driver(int flags)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | flags);
    if (!library)
        return false;
    for (size_t i = 0; i < FUNCTIONS_COUNT; i++)
        *real_of(i) = zr_real_dlsym(library, functions[i].name);
    if (!atomic_exchange_explicit(&is_found, true, memory_order_acq_rel))
        zr_cuda_paths_check();
    return true;
}

bool zr_cuda_see(void)
{
    return atomic_load_explicit(&is_found, memory_order_acquire) || load_driver(0);
}

void *zr_cuda_instead(const void *found)
{
    for (size_t i = 0; found && i < FUNCTIONS_COUNT; i++)
        if (*real_of(i) == found)
            return functions[i].own;
    return NULL;
}

static bool is_own(const void *found)
{
    bool own = false;
    for (size_t i = 0; i < FUNCTIONS_COUNT; i++)
        own |= functions[i].own == found;
    return own;
}

/* ---- dlsym --------------------------------------------------------------------------------------------- */

/* Whether the process has no driver, so that only this library defines the name. */
static bool is_undefined(const char *name)
{
    if (atomic_load_explicit(&is_found, memory_order_acquire) || load_driver(RTLD_NOLOAD))
        return false;
    for (size_t i = 0; i < FUNCTIONS_COUNT; i++)
        if (functions[i].own && strcmp(functions[i].name, name) == 0)
            return true;
    return false;
}

/* Fails and sets dlerror()'s message. */
static void *dlsym_undefined(void *handle, const char *name)
{
    (void)name;
    return next_dlsym()(handle, "cuda driver (libcuda.so.1 is not loaded)");
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), bytes = strlen(end);
    return length > bytes && strcmp(name + length - bytes, end) == 0;
}

/* Per-thread forms have their own symbols: a function with a stream has a form that ends in _ptsz, a function
 * that uses only the default stream one that ends in _ptds. */
static void *watch_by_name(void *handle, const char *name, void *found)
{
    char form[96];
    bool driver = name[2] >= 'A' && name[2] <= 'Z'; /* as cuMemFree; not cudaFree or cublasCreate */
    if (!driver || !atomic_load_explicit(&is_found, memory_order_acquire) || zr_cuda_many_streams())
        return found;
    if (ends_with(name, "_ptsz") || ends_with(name, "_ptds"))
        return zr_cuda_thunk(name, found, true, zr_cuda_go_many);
    snprintf(form, sizeof form, "%s_ptsz", name);
    if (!next_dlsym()(handle, form)) {
        dlerror(); /* clears the error of this library's lookup */
        return found;
    }
    snprintf(form, sizeof form, "%.*s", (int)(strlen(name) - (ends_with(name, "_v2") ? 3 : 0)), name);
    return zr_cuda_thunk(form, found, false, zr_cuda_go_many);
}

static void *dlsym_of_handle(void *handle, const char *name)
{
    void *found = next_dlsym()(handle, name);
    if (!found)
        return NULL;
    if (is_undefined(name)) /* found here, or in a library with the same names */
        return is_own(found) ? dlsym_undefined(handle, name) : found;
    void *own = zr_cuda_instead(found);
    return own ? own : watch_by_name(handle, name, found);
}

/* Chooses the function that answers a dlsym call. With RTLD_NEXT or RTLD_DEFAULT the real dlsym finds its
 * caller by the return address, so the program's call must reach it by a jump. Its result is right: this
 * library, if it precedes the driver in the caller's search order. */
dlsym_function *zr_dlsym_pick(void *handle, const char *name);
dlsym_function *zr_dlsym_pick(void *handle, const char *name)
{
    if (!name || name[0] != 'c' || name[1] != 'u')
        return next_dlsym();
    if (handle != RTLD_NEXT && handle != RTLD_DEFAULT)
        return dlsym_of_handle;
    return is_undefined(name) ? dlsym_undefined : next_dlsym();
}

#ifdef __x86_64__
__asm__(".text\n"
        ".p2align 4\n"
        ".type zr_dlsym, @function\n"
        ".globl zr_dlsym\n"
        "zr_dlsym:\n"
        "  .cfi_startproc\n"
        "  endbr64\n"
        "  pushq %rdi\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rsi\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  subq $8, %rsp\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  call zr_dlsym_pick\n"
        "  addq $8, %rsp\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  popq %rsi\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  popq %rdi\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  jmp *%rax\n"
        "  .cfi_endproc\n"
        ".size zr_dlsym, .-zr_dlsym\n"
        ".symver zr_dlsym, dlsym@GLIBC_2.2.5, remove\n"
        ".set zr_dlsym_now, zr_dlsym\n"
        ".globl zr_dlsym_now\n"
        ".type zr_dlsym_now, @function\n"
        ".symver zr_dlsym_now, dlsym@@GLIBC_2.34, remove\n");
#else
/* With O2 the compiler makes a tail call. */
__attribute__((optimize("O2"))) ZR_EXPORT void *dlsym(void *handle, const char *name)
{
    return zr_dlsym_pick(handle, name)(handle, name);
}
#endif

/* ---- cuGetProcAddress ---------------------------------------------------------------------------------- */

enum { PER_THREAD_SINCE = 7000 }; /* the first version of CUDA with per-thread forms */

/* The driver's function for the symbol. NULL: the driver has no such function. */
static void *query_address(const char *symbol, int version, unsigned long long flags)
{
    zr_cu_proc_status status;
    void *found = NULL;
    zr_cu_result code = zr_cuda_real.proc_address_v2
                            ? zr_cuda_real.proc_address_v2(symbol, &found, version, flags, &status)
                            : ZR_CUDA_PASS(proc_address, symbol, &found, version, flags);
    return code == ZR_CU_SUCCESS ? found : NULL;
}

/* Returns a thunk for a function with two forms: a function that takes a stream. */
static void *watch(const char *symbol, void *function, int version, unsigned long long flags)
{
    if (flags & ZR_CU_PROC_PER_THREAD_STREAM &&
        query_address(symbol, version, ZR_CU_PROC_LEGACY_STREAM) != function)
        return zr_cuda_thunk(symbol, function, true, zr_cuda_go_many);
    if (version < PER_THREAD_SINCE)
        version = PER_THREAD_SINCE;
    void *per_thread = query_address(symbol, version, ZR_CU_PROC_PER_THREAD_STREAM);
    if (per_thread && query_address(symbol, version, ZR_CU_PROC_LEGACY_STREAM) != per_thread)
        return zr_cuda_thunk(symbol, function, false, zr_cuda_go_many);
    return function;
}

static zr_cu_result substitute(zr_cu_result code, const char *symbol, void **function, int version,
                               unsigned long long flags)
{
    if (code != ZR_CU_SUCCESS || !function || !*function)
        return code;
    void *own = zr_cuda_instead(*function);
    if (own)
        *function = own;
    else if (!zr_cuda_many_streams())
        *function = watch(symbol, *function, version, flags);
    return code;
}

zr_cu_result cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags)
{
    return substitute(ZR_CUDA_PASS(proc_address, symbol, function, version, flags), symbol, function, version,
                      flags);
}

zr_cu_result cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags,
                                 zr_cu_proc_status *status)
{
    return substitute(ZR_CUDA_PASS(proc_address_v2, symbol, function, version, flags, status), symbol,
                      function, version, flags);
}
