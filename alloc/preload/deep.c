/* deep.c: dlopen() without RTLD_DEEPBIND, which PHP sets for its extensions. A library opened with the flag
 * finds the C library's free() first and calls it with objects that this library has allocated. */
#define _GNU_SOURCE
#include "alloc/preload/preload.h"

#include <dlfcn.h>

typedef void *opener(const char *path, int flags);

static opener *next_dlopen(void)
{
    static _Atomic(opener *) next;
    opener *found = atomic_load_explicit(&next, memory_order_acquire);
    if (!found) {
        *(void **)&found = dlsym(RTLD_NEXT, "dlopen");
        atomic_store_explicit(&next, found, memory_order_release);
    }
    return found;
}

/* The C library searches the paths of its caller, which it finds by the return address: the call below must
 * be a tail call. */
ZR_EXPORT void *dlopen(const char *path, int flags)
{
    return next_dlopen()(path, flags & ~RTLD_DEEPBIND);
}
