/* cuda_calls.h: the calls by which programs allocate (alloc/preload/cuda/driver_api.h) and launch kernels
 * (kernels/cuda/driver_launch.h), found in a driver, for programs of the tests. */
#ifndef ZR_TEST_CUDA_CALLS_H
#define ZR_TEST_CUDA_CALLS_H

#include <dlfcn.h>
#include <stddef.h>

#include "alloc/preload/cuda/driver_api.h"
#include "kernels/cuda/driver_launch.h"
#include "kernels/cuda/driver_streams.h"

struct cuda_calls {
#define CUDA_CALLS_MEMBER(member, name, suffix, parameters) zr_cu_result(*member) parameters;
    ZR_CUDA_REPLACED(CUDA_CALLS_MEMBER)
    ZR_CUDA_USED(CUDA_CALLS_MEMBER) ZR_CUDA_LAUNCHING(CUDA_CALLS_MEMBER) ZR_CUDA_WORDS(CUDA_CALLS_MEMBER)
#undef CUDA_CALLS_MEMBER
};

/* The name of a call that is not there, the last one; NULL: all are. A card's driver of an older CUDA may
 * lack some. */
static inline const char *cuda_calls_find(struct cuda_calls *out, void *library)
{
    static const struct {
        const char *name;
        size_t offset_bytes;
    } entries[] = {
#define CUDA_CALLS_ENTRY(member, name, suffix, parameters)                                                   \
    {#name #suffix, offsetof(struct cuda_calls, member)},
        ZR_CUDA_REPLACED(CUDA_CALLS_ENTRY) ZR_CUDA_USED(CUDA_CALLS_ENTRY) ZR_CUDA_LAUNCHING(CUDA_CALLS_ENTRY)
            ZR_CUDA_WORDS(CUDA_CALLS_ENTRY)
#undef CUDA_CALLS_ENTRY
    };
    const char *missing = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *found = dlsym(library, entries[i].name);
        missing = found ? missing : entries[i].name;
        *(void **)((char *)out + entries[i].offset_bytes) = found;
    }
    return missing;
}

#endif
