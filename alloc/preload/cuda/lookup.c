/* lookup.c: the ways in which a program finds the driver's functions: dlsym and cuGetProcAddress. See cuda.h.
 *
 * A lookup by name calls the real dlsym or cuGetProcAddress first. If the result is a function that this
 * library replaces, the program gets the replacement, so that it always gets the version that it requested.
 */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define OWN(member, name, suffix, parameters) {#name #suffix, (void *)name##suffix},
static const struct {
    const char *name;
    void *function;
} own[] = {ZR_CUDA_REPLACED(OWN)};
#undef OWN

/* The replacement of a function of the real driver; NULL: the function is not replaced. */
static void *replacement_of(const void *found)
{
    size_t i = zr_cuda_replaced_index(found);
    return i < ZR_CUDA_REPLACED_COUNT ? own[i].function : NULL;
}

static bool is_own(const void *found)
{
    bool is = false;
    for (size_t i = 0; i < ZR_CUDA_REPLACED_COUNT; i++)
        is |= own[i].function == found;
    return is;
}

static bool is_own_name(const char *name)
{
    bool is = false;
    for (size_t i = 0; i < ZR_CUDA_REPLACED_COUNT; i++)
        is |= strcmp(own[i].name, name) == 0;
    return is;
}

/* ---- dlsym --------------------------------------------------------------------------------------------- */

/* Fails and sets dlerror()'s message. */
static void *dlsym_undefined(void *handle, const char *name)
{
    (void)name;
    return zr_real_dlsym()(handle, "cuda driver (libcuda.so.1 is not loaded)");
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
    bool driver = name[2] >= 'A' && name[2] <= 'Z'; /* cuMemFree, not cudaFree or cublasCreate */
    if (!driver || zr_cuda_many_streams())
        return found;
    if (ends_with(name, "_ptsz") || ends_with(name, "_ptds"))
        return zr_cuda_thunk(name, found, true, zr_cuda_set_many_streams);
    snprintf(form, sizeof form, "%s_ptsz", name);
    if (!zr_real_dlsym()(handle, form)) {
        dlerror(); /* clears the error of this library's lookup */
        return found;
    }
    snprintf(form, sizeof form, "%.*s", (int)(strlen(name) - (ends_with(name, "_v2") ? 3 : 0)), name);
    return zr_cuda_thunk(form, found, false, zr_cuda_set_many_streams);
}

static void *dlsym_of_handle(void *handle, const char *name)
{
    void *found = zr_real_dlsym()(handle, name);
    if (!found)
        return NULL;
    if (!zr_cuda_find_loaded_driver()) /* the name is the driver's, this library's or another library's */
        return is_own(found) ? dlsym_undefined(handle, name) : found;
    void *replacement = replacement_of(found);
    return replacement ? replacement : watch_by_name(handle, name, found);
}

/* Chooses the function that answers a dlsym call. With RTLD_NEXT or RTLD_DEFAULT the real dlsym finds its
 * caller by the return address, so the program's call must reach it by a jump. Its result is right: this
 * library, if it precedes the driver in the caller's search order. */
ZR_BEFORE_SANITIZERS zr_dlsym_function *zr_dlsym_pick(void *handle, const char *name);
zr_dlsym_function *zr_dlsym_pick(void *handle, const char *name)
{
    if (!name || name[0] != 'c' || name[1] != 'u')
        return zr_real_dlsym();
    if (handle != RTLD_NEXT && handle != RTLD_DEFAULT)
        return dlsym_of_handle;
    /* Without the driver only this library defines its own names. */
    return !zr_cuda_find_loaded_driver() && is_own_name(name) ? dlsym_undefined : zr_real_dlsym();
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
        return zr_cuda_thunk(symbol, function, true, zr_cuda_set_many_streams);
    if (version < PER_THREAD_SINCE)
        version = PER_THREAD_SINCE;
    void *per_thread = query_address(symbol, version, ZR_CU_PROC_PER_THREAD_STREAM);
    if (per_thread && query_address(symbol, version, ZR_CU_PROC_LEGACY_STREAM) != per_thread)
        return zr_cuda_thunk(symbol, function, false, zr_cuda_set_many_streams);
    return function;
}

static zr_cu_result substitute(zr_cu_result code, const char *symbol, void **function, int version,
                               unsigned long long flags)
{
    if (code != ZR_CU_SUCCESS || !function || !*function)
        return code;
    void *replacement = replacement_of(*function);
    if (replacement)
        *function = replacement;
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
