/* image.c: in every image of kernels for the processor (kernels/cuda/device_processor.h): what the image says
 * of itself, and its way to whoever runs it. The compiler's calls for a race detector end here, so this file
 * is compiled without one. */
#include "kernels/cuda/device_processor.h"

#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

extern const struct zr_device_kernel __start_zr_kernels[] HIDDEN, __stop_zr_kernels[] HIDDEN;
extern char __start_zr_shared[] HIDDEN, __stop_zr_shared[] HIDDEN;
extern const char __ehdr_start[] HIDDEN, _end[] HIDDEN;

/* An image may have no shared variable of its own. */
static char shared_variable[16] __attribute__((section("zr_shared"), used));

static const struct zr_device_runner *runner;

__attribute__((visibility("default")))
const struct zr_device_image zr_device_image = {.version = ZR_DEVICE_IMAGE_VERSION,
                                                .kernels = __start_zr_kernels,
                                                .kernels_end = __stop_zr_kernels,
                                                .shared = __start_zr_shared,
                                                .shared_end = __stop_zr_shared,
                                                .constants = __ehdr_start,
                                                .constants_end = _end,
                                                .runner = &runner};

HIDDEN struct zr_device_dim zr_device_thread(void)
{
    return runner->thread();
}

HIDDEN struct zr_device_dim zr_device_block(void)
{
    return runner->block();
}

HIDDEN struct zr_device_dim zr_device_threads(void)
{
    return runner->threads();
}

HIDDEN struct zr_device_dim zr_device_blocks(void)
{
    return runner->blocks();
}

HIDDEN void *zr_device_dynamic_shared(void)
{
    return runner->dynamic_shared();
}

HIDDEN void *zr_device_shared(void *variable)
{
    return variable;
}

HIDDEN void zr_device_barrier(unsigned line)
{
    runner->barrier(line);
}

HIDDEN uint64_t zr_device_exchange(const struct zr_device_lane *own)
{
    return runner->exchange(own);
}

HIDDEN void zr_device_atomic(const void *address, size_t bytes)
{
    runner->access(address, bytes, ZR_DEVICE_ATOMIC);
}

/* All lanes of the warp, by their own structs. */
static void exchange_all(enum zr_device_exchange kind, void *own, unsigned line)
{
    runner->exchange(&(struct zr_device_lane){
        .kind = kind, .mask = UINT32_MAX, .line = line, .value = (uint64_t)(uintptr_t)own});
}

HIDDEN struct zr_device_matrices zr_device_load_matrices(const void *row, bool transposed, unsigned line)
{
    struct zr_device_matrices own = {.transposed = transposed};
    runner->access(row, sizeof own.row, ZR_DEVICE_READ);
    memcpy(own.row, row, sizeof own.row);
    exchange_all(ZR_DEVICE_LOAD_MATRICES, &own, line);
    return own;
}

HIDDEN struct zr_device_fragments zr_device_multiply(struct zr_device_fragments own, unsigned line)
{
    exchange_all(ZR_DEVICE_MULTIPLY, &own, line);
    return own;
}

HIDDEN void zr_device_copy(void *to, const void *from, size_t bytes, bool there)
{
    if (there)
        runner->access(from, bytes, ZR_DEVICE_READ);
    runner->access(to, bytes, ZR_DEVICE_WRITE);
    runner->copy(to, there ? from : NULL, bytes);
}

HIDDEN void zr_device_copies_wait(void)
{
    runner->copies_wait();
}

/* ---- What the compiler calls --------------------------------------------------------------------------- */

#define ACCESSES(bytes)                                                                                      \
    HIDDEN void __tsan_read##bytes(const void *at);                                                          \
    HIDDEN void __tsan_read##bytes(const void *at)                                                           \
    {                                                                                                        \
        runner->access(at, bytes, ZR_DEVICE_READ);                                                           \
    }                                                                                                        \
    HIDDEN void __tsan_write##bytes(const void *at);                                                         \
    HIDDEN void __tsan_write##bytes(const void *at)                                                          \
    {                                                                                                        \
        runner->access(at, bytes, ZR_DEVICE_WRITE);                                                          \
    }                                                                                                        \
    HIDDEN void __tsan_unaligned_read##bytes(const void *at);                                                \
    HIDDEN void __tsan_unaligned_read##bytes(const void *at)                                                 \
    {                                                                                                        \
        runner->access(at, bytes, ZR_DEVICE_READ | ZR_DEVICE_UNALIGNED);                                     \
    }                                                                                                        \
    HIDDEN void __tsan_unaligned_write##bytes(const void *at);                                               \
    HIDDEN void __tsan_unaligned_write##bytes(const void *at)                                                \
    {                                                                                                        \
        runner->access(at, bytes, ZR_DEVICE_WRITE | ZR_DEVICE_UNALIGNED);                                    \
    }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

HIDDEN void __tsan_read_range(const void *at, size_t bytes);
HIDDEN void __tsan_read_range(const void *at, size_t bytes)
{
    runner->access(at, bytes, ZR_DEVICE_READ | ZR_DEVICE_UNALIGNED);
}

HIDDEN void __tsan_write_range(const void *at, size_t bytes);
HIDDEN void __tsan_write_range(const void *at, size_t bytes)
{
    runner->access(at, bytes, ZR_DEVICE_WRITE | ZR_DEVICE_UNALIGNED);
}

/* They tell of calls and of the start, which say nothing here. */
#define NOTHING(name)                                                                                        \
    HIDDEN void name(void *ignored);                                                                         \
    HIDDEN void name(void *ignored)                                                                          \
    {                                                                                                        \
        (void)ignored;                                                                                       \
    }
NOTHING(__tsan_func_entry)
NOTHING(__tsan_func_exit)
NOTHING(__tsan_init)
