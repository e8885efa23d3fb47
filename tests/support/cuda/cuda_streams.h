/* cuda_streams.h: streams of the emulated driver, made and ended in a device's primary context as a user's
 * would be. Stands on cuda_pieces.h. */
#ifndef ZR_CUDA_STREAMS_H
#define ZR_CUDA_STREAMS_H

#include "tests/support/cuda/cuda_pieces.h"

/* Longer than any test waits, unless it waits for the work. */
#define FOREVER ((uint64_t)1 << 40)

static inline void *emulator_call(const char *name)
{
    return dlsym(dlopen(cuda_emulator_path(), RTLD_NOW), name);
}

/* A stream ends with its context: the first device's lives for its backend, a peer's is kept. */
static inline zr_cu_stream new_stream_of(zr_cu_device device)
{
    zr_cu_result (*create_stream)(zr_cu_stream *, unsigned int);
    zr_cu_context context, popped;
    zr_cu_stream stream = NULL;
    *(void **)&create_stream = emulator_call("cuStreamCreate");
    cu->context_retain(&context, device);
    cu->context_push(context);
    create_stream(&stream, ZR_CU_STREAM_NON_BLOCKING);
    cu->context_pop(&popped);
    if (device == 0)
        cu->context_release(device);
    return stream;
}

static inline zr_cu_stream new_stream(void)
{
    return new_stream_of(0);
}

static inline void drop_stream(zr_cu_stream stream)
{
    zr_cu_result (*destroy_stream)(zr_cu_stream);
    zr_cu_context context, popped;
    *(void **)&destroy_stream = emulator_call("cuStreamDestroy_v2");
    cu->context_retain(&context, 0);
    cu->context_push(context);
    destroy_stream(stream);
    cu->context_pop(&popped);
    cu->context_release(0);
}

static inline uint64_t number_of(zr_cu_stream stream)
{
    return (uint64_t)(uintptr_t)stream;
}

/* A test program on the emulated driver alone: the tests, beside a backend that lives as long as they do. */
static inline int run_on_emulator(void (*const tests[])(void), size_t count)
{
    emulator = cuda_emulator_alone();
    if (!emulator)
        return tap_done();
    zr_backend *first = create(NULL);
    zr_cuda_driver_get(&cu);
    for (size_t i = 0; i < count; i++)
        tests[i]();
    zr_backend_destroy(first);
    return tap_done();
}

#endif
