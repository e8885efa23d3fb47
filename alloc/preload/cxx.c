/* cxx.c: operator new and delete in every form. A failed new calls the C++ library's operator, which calls
 * this library's malloc again, then the new handler, and throws. See preload.h. */
#define _GNU_SOURCE
#include "alloc/preload/preload.h"

#include <dlfcn.h>
#include <stdlib.h>

/* The C++ library's function with the name. Aborts if no C++ library is loaded to throw bad_alloc. */
static void *next_function(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);
    if (!function)
        zr_preload_abort("operator new", NULL,
                         "out of memory, and no C++ library is loaded to throw bad_alloc");
    return function;
}

#define NEW(name, parameters, arguments, get)                                                                \
    ZR_EXPORT void *name parameters;                                                                         \
    ZR_EXPORT void *name parameters                                                                          \
    {                                                                                                        \
        void *object = get;                                                                                  \
        if (likely(object != NULL))                                                                          \
            return object;                                                                                   \
        void *(*next)parameters;                                                                             \
        *(void **)&next = next_function(#name);                                                              \
        return next arguments;                                                                               \
    }

/* Size, alignment and nothrow arguments of a delete are ignored. */
static void delete_object(void *object)
{
    free(object);
}

#define DELETE(name) void name(void *object) __attribute__((alias("delete_object"), visibility("default")));

/* new, new[]; nothrow; aligned; aligned and nothrow. */
NEW(_Znwm, (size_t bytes), (bytes), malloc(bytes))
NEW(_Znam, (size_t bytes), (bytes), malloc(bytes))
NEW(_ZnwmRKSt9nothrow_t, (size_t bytes, const void *nothrow), (bytes, nothrow), malloc(bytes))
NEW(_ZnamRKSt9nothrow_t, (size_t bytes, const void *nothrow), (bytes, nothrow), malloc(bytes))
NEW(_ZnwmSt11align_val_t, (size_t bytes, size_t alignment), (bytes, alignment),
    zr_object_alloc(bytes, alignment, false))
NEW(_ZnamSt11align_val_t, (size_t bytes, size_t alignment), (bytes, alignment),
    zr_object_alloc(bytes, alignment, false))
NEW(_ZnwmSt11align_val_tRKSt9nothrow_t, (size_t bytes, size_t alignment, const void *nothrow),
    (bytes, alignment, nothrow), zr_object_alloc(bytes, alignment, false))
NEW(_ZnamSt11align_val_tRKSt9nothrow_t, (size_t bytes, size_t alignment, const void *nothrow),
    (bytes, alignment, nothrow), zr_object_alloc(bytes, alignment, false))

DELETE(_ZdlPv)
DELETE(_ZdaPv)
DELETE(_ZdlPvm)
DELETE(_ZdaPvm)
DELETE(_ZdlPvRKSt9nothrow_t)
DELETE(_ZdaPvRKSt9nothrow_t)
DELETE(_ZdlPvSt11align_val_t)
DELETE(_ZdaPvSt11align_val_t)
DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t)
DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t)
DELETE(_ZdlPvmSt11align_val_t)
DELETE(_ZdaPvmSt11align_val_t)
