/* cuda_pieces.h: what the tests of the CUDA backend on the emulated driver share: a backend with a granule in
 * place, and work that runs on it. */
#ifndef ZR_CUDA_PIECES_H
#define ZR_CUDA_PIECES_H

#include <stdint.h>

#include "alloc/backend/backend.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)2 << 20)

static const struct zr_emulator *emulator;
static const struct zr_cuda_driver *cu; /* what this process has loaded; see zr_cuda_driver_get() */

static inline zr_backend *create(const struct zr_cuda_options *options)
{
    zr_backend *made = NULL;
    zr_result result = zr_backend_cuda_create(&made, options);
    if (result != ZR_OK)
        tap_ok(false, "a backend: %s", zr_last_error());
    return made;
}

/* A range with one granule mapped at its start, with access. */
struct mapped {
    zr_backend *backend;
    struct zr_range *range;
    struct zr_handle *handle;
};

static inline struct mapped map_one(const struct zr_cuda_options *options)
{
    struct mapped made = {.backend = create(options)};
    zr_backend_reserve(made.backend, 16 * GRANULE, &made.range);
    zr_backend_create(made.backend, GRANULE, &made.handle);
    zr_backend_map(made.range, 0, made.handle);
    zr_backend_set_access(made.range, (struct zr_bounds){0, GRANULE});
    return made;
}

static inline zr_result unmap_one(struct mapped *made)
{
    return zr_backend_unmap(made->range, (struct zr_bounds){0, GRANULE});
}

static inline void end(struct mapped *made)
{
    zr_backend_destroy_handle(made->backend, made->handle);
    tap_result(zr_backend_release(made->range), ZR_OK, "the range goes");
    tap_result(zr_backend_destroy(made->backend), ZR_OK, "the backend goes");
}

static inline bool nothing_left(void)
{
    struct zr_emulator_state state = emulator->state();
    return state.memories_count + state.mappings_count + state.reservations_count + state.events_count +
               state.used_bytes ==
           0;
}

/* Every call of the driver fails, or of one kind, until it is said otherwise. */
static inline void always_fail(const char *call, zr_cu_result code)
{
    emulator->fail(
        &(struct zr_emulator_fault){.call = call, .nth = 1, .count = UINT64_MAX / 2, .code = code});
}

static inline void never_fail(void)
{
    emulator->fail(&(struct zr_emulator_fault){0});
}

/* Launches in the primary context of device 0, as a user's kernel would be. */
static inline zr_cu_result launch(zr_cu_stream stream, const char *address, size_t bytes)
{
    zr_cu_context context, popped;
    cu->context_retain(&context, 0);
    cu->context_push(context);
    zr_cu_result code = emulator->launch(stream, (zr_cu_address)(uintptr_t)address, bytes, 0xee);
    cu->context_pop(&popped);
    cu->context_release(0);
    return code;
}

#endif
