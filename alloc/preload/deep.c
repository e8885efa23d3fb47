/* deep.c: dlopen() without RTLD_DEEPBIND, with which PHP loads its extensions. Such a library finds the C
 * library's free() before ours, and calls it with objects that ours has allocated for the program. */
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

/* The C library takes the paths of its caller, which it knows by the return address: the last call has to be
 * a jump. */
ZR_EXPORT void *dlopen(const char *path, int flags)
{
    return next_dlopen()(path, flags & ~RTLD_DEEPBIND);
}
