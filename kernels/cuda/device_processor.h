/* device_processor.h: CUDA's keywords and functions for a .cu source compiled by gcc, and the interface
 * between such an image and the program that runs it (the emulated driver: tests/emulators/cuda/). Part of
 * device.h.
 *
 * Each thread of a block is a fiber. Barriers, shuffles and votes call the runner. Every access to memory
 * that other threads can see also calls the runner first: sources are compiled with -fsanitize=thread, and
 * tests/emulators/image/image.c defines its entry points. */
#ifndef ZR_CUDA_DEVICE_PROCESSOR_H
#define ZR_CUDA_DEVICE_PROCESSOR_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zr_device_dim {
    unsigned x, y, z;
};

/* A kind of access: the first three, with ZR_DEVICE_UNALIGNED if the address need not be a multiple of the
 * size. */
enum zr_device_access {
    ZR_DEVICE_READ = 0,
    ZR_DEVICE_WRITE = 1,
    ZR_DEVICE_ATOMIC = 2,
    ZR_DEVICE_UNALIGNED = 4
};

enum zr_device_exchange {
    ZR_DEVICE_SYNC,    /* __syncwarp */
    ZR_DEVICE_SHUFFLE, /* __shfl_sync and its variants */
    ZR_DEVICE_SHUFFLE_UP,
    ZR_DEVICE_SHUFFLE_DOWN,
    ZR_DEVICE_SHUFFLE_XOR,
    ZR_DEVICE_BALLOT,
    ZR_DEVICE_LOAD_MATRICES, /* here and below, a lane's value points to its struct */
    ZR_DEVICE_MULTIPLY
};

/* ldmatrix with .x4: each lane passes a row of 16 bytes and receives its part of each of four matrices. */
struct zr_device_matrices {
    uint32_t part[4];
    uint16_t row[8];
    bool transposed;
};

/* mma.m16n8k16: a lane's fragments in the order of PTX: the registers, and the halves of each. */
struct zr_device_fragments {
    float a[8], b[4], sums[4];
};

/* A lane's part of an operation of its warp. Each lane passes its own, and receives its result. */
struct zr_device_lane {
    enum zr_device_exchange kind;
    unsigned mask, width, lane; /* lane: the source, distance or mask */
    unsigned line;              /* source line of the call */
    uint64_t value;
};

/* Functions of the runner, called by the running thread. */
struct zr_device_runner {
    void (*access)(const void *address, size_t bytes, unsigned access);
    void (*barrier)(unsigned line);
    uint64_t (*exchange)(const struct zr_device_lane *own);
    struct zr_device_dim (*thread)(void);
    struct zr_device_dim (*block)(void);
    struct zr_device_dim (*threads)(void); /* of a block */
    struct zr_device_dim (*blocks)(void);  /* of the grid */
    void *(*dynamic_shared)(void);
    void (*copy)(void *to, const void *from, size_t bytes); /* from NULL: zeros */
    void (*copies_wait)(void);
};

struct zr_device_kernel {
    const char *name;
    void (*run)(const void *arguments); /* runs one thread from start to end */
    size_t arguments_bytes;
    unsigned threads_max;
};

/* The only symbol of an image. */
#define ZR_DEVICE_IMAGE_VERSION 2
struct zr_device_image {
    unsigned version;
    const struct zr_device_kernel *kernels, *kernels_end;
    char *shared, *shared_end;              /* all __shared__ variables */
    const char *constants, *constants_end;  /* the loaded image, including its constants */
    const struct zr_device_runner **runner; /* set before a kernel runs */
};

/* Functions of image.c for the sources. Index and size of blocks and grids do not change while a thread runs.
 */
__attribute__((const)) struct zr_device_dim zr_device_thread(void);
__attribute__((const)) struct zr_device_dim zr_device_block(void);
__attribute__((const)) struct zr_device_dim zr_device_threads(void);
__attribute__((const)) struct zr_device_dim zr_device_blocks(void);
__attribute__((const)) void *zr_device_dynamic_shared(void);
__attribute__((const)) void *
zr_device_shared(void *variable); /* returns its argument; the compiler cannot know this */
void zr_device_barrier(unsigned line);
uint64_t zr_device_exchange(const struct zr_device_lane *own);
void zr_device_atomic(const void *address, size_t bytes);
struct zr_device_matrices zr_device_load_matrices(const void *row, bool transposed, unsigned line);
/* Returns a b plus the sums. */
struct zr_device_fragments zr_device_multiply(struct zr_device_fragments own, unsigned line);
/* cp.async and cp.async.wait_all: the bytes arrive when the thread waits; zeros arrive if `there` is false.
 */
void zr_device_copy(void *to, const void *from, size_t bytes, bool there);
void zr_device_copies_wait(void);

#define threadIdx zr_device_thread()
#define blockIdx  zr_device_block()
#define blockDim  zr_device_threads()
#define gridDim   zr_device_blocks()

#define __device__
#define __forceinline__ inline /* where the compiler sees fit: inlining all of it multiplies its time */
#define __restrict__ restrict

#define SHARED(type, name, count)                                                                            \
    static type name##_variable[count] __attribute__((section("zr_shared"), aligned(16)));                   \
    type *name = (type *)zr_device_shared(name##_variable)
#define SHARED_DYNAMIC(type, name) type *name = (type *)zr_device_dynamic_shared()

#define KERNEL(name, arguments, threads) KERNEL_NAMED(name, arguments, threads)
#define KERNEL_NAMED(name, arguments, threads)                                                               \
    static __attribute__((noinline)) void name(const arguments a);                                           \
    static __attribute__((no_sanitize("thread"))) void name##_run(const void *all)                           \
    {                                                                                                        \
        name(*(const arguments *)all);                                                                       \
    }                                                                                                        \
    static const struct zr_device_kernel name##_kernel                                                       \
        __attribute__((section("zr_kernels"), used)) = {#name, name##_run, sizeof(arguments), threads};      \
    static void name(const arguments a)

/* ---- Barriers, shuffles, votes ------------------------------------------------------------------------- */

#define __syncthreads() zr_device_barrier(__LINE__)
#define __syncwarp(lanes)                                                                                    \
    ((void)zr_device_exchange(                                                                               \
        &(struct zr_device_lane){.kind = ZR_DEVICE_SYNC, .mask = (lanes), .line = __LINE__}))
#define __ballot_sync(lanes, predicate)                                                                      \
    ((unsigned)zr_device_exchange(&(struct zr_device_lane){                                                  \
        .kind = ZR_DEVICE_BALLOT, .mask = (lanes), .line = __LINE__, .value = (predicate) != 0}))

static inline uint64_t zr_device_bits(float x)
{
    union {
        float number;
        uint32_t bits;
    } both = {x};
    return both.bits;
}

static inline float zr_device_float(uint64_t bits)
{
    union {
        uint32_t bits;
        float number;
    } both = {(uint32_t)bits};
    return both.number;
}

static inline uint64_t zr_device_double_bits(double x)
{
    union {
        double number;
        uint64_t bits;
    } both = {x};
    return both.bits;
}

static inline double zr_device_double(uint64_t bits)
{
    union {
        uint64_t bits;
        double number;
    } both = {bits};
    return both.number;
}

#define ZR_DEVICE_SHUFFLED(which, lanes, bits_of_it, from)                                                   \
    zr_device_exchange(&(struct zr_device_lane){.kind = (which),                                             \
                                                .mask = (lanes),                                             \
                                                .width = 32,                                                 \
                                                .lane = (unsigned)(from),                                    \
                                                .line = __LINE__,                                            \
                                                .value = (bits_of_it)})
/* A shuffle of a float, a double or an integer, like CUDA's overloads. */
#define ZR_DEVICE_SHUFFLE(which, lanes, x, from)                                                             \
    _Generic((x), float                                                                                      \
             : zr_device_float(ZR_DEVICE_SHUFFLED(which, lanes, zr_device_bits((float)(x)), from)), double   \
             : zr_device_double(ZR_DEVICE_SHUFFLED(which, lanes, zr_device_double_bits((double)(x)), from)), \
               int                                                                                           \
             : (int)ZR_DEVICE_SHUFFLED(which, lanes, (uint32_t)(x), from), unsigned                          \
             : (unsigned)ZR_DEVICE_SHUFFLED(which, lanes, (uint32_t)(x), from), unsigned long long           \
             : (unsigned long long)ZR_DEVICE_SHUFFLED(which, lanes, (uint64_t)(x), from))
#define __shfl_sync(lanes, x, lane)      ZR_DEVICE_SHUFFLE(ZR_DEVICE_SHUFFLE, lanes, x, lane)
#define __shfl_up_sync(lanes, x, by)     ZR_DEVICE_SHUFFLE(ZR_DEVICE_SHUFFLE_UP, lanes, x, by)
#define __shfl_down_sync(lanes, x, by)   ZR_DEVICE_SHUFFLE(ZR_DEVICE_SHUFFLE_DOWN, lanes, x, by)
#define __shfl_xor_sync(lanes, x, other) ZR_DEVICE_SHUFFLE(ZR_DEVICE_SHUFFLE_XOR, lanes, x, other)

/* ---- Atomics: only the runner switches fibers, so plain steps are atomic ------------------------------- */

#define ZR_DEVICE_ATOMIC_OF(name, type, step)                                                                \
    static inline __attribute__((no_sanitize("thread"))) type name(type *at, type x)                         \
    {                                                                                                        \
        zr_device_atomic(at, sizeof *at);                                                                    \
        type old = *at;                                                                                      \
        *at = step;                                                                                          \
        return old;                                                                                          \
    }
ZR_DEVICE_ATOMIC_OF(zr_atomic_add, unsigned long long, old + x)
ZR_DEVICE_ATOMIC_OF(zr_atomic_min, unsigned long long, x < old ? x : old)
ZR_DEVICE_ATOMIC_OF(zr_atomic_add_float, float, old + x)

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

#endif
