/* kernels.h: how the emulated driver runs kernels: launch.c has the calls, reach.c the memory that a kernel
 * may use, threads.c its threads, matrices.c and copies.c what these do beside plain steps, races.c what they
 * do to memory without waiting for each other. Beside inside.h.
 */
#ifndef ZR_CUDA_EMULATOR_KERNELS_H
#define ZR_CUDA_EMULATOR_KERNELS_H

#include "kernels/cuda/device_processor.h"
#include "alloc/rehearse/driver/inside.h"

struct emu_launch {
    size_t users_count;
    struct zr_cu_module_st *module; /* held, too */
    const struct zr_device_kernel *kernel;
    struct zr_device_dim blocks, threads;
    size_t shared_bytes;
    void *arguments;
};

/* One that runs. There is one at a time, under the emulator's lock. */
struct emu_execution {
    struct zr_cu_context_st *context;
    const struct emu_launch *launch;
    const struct zr_device_image *image;
    const struct emu_gone *gone;
    uint64_t start, end; /* by the context's clock */
    bool pageable;       /* the program's own memory may be used */
};

/* A stretch of memory that the kernel may use. */
struct emu_reach {
    uintptr_t low, high;
    bool writes, shared; /* shared: of the block */
};

/* ---- launch.c */
void emu_report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- reach.c: NULL, or why the address may not be used so. Opens what it finds to the processor. */
const char *emu_reach(const struct emu_execution *e, uintptr_t address, bool writes, struct emu_reach *out);
void emu_reach_end(void); /* closes all of it */
enum { EMU_GUARDS_MAX = 512 };

/* ---- threads.c: compiled without sanitizers, for it changes stacks. What the context comes to; the report
 * is made where it is not ZR_CU_SUCCESS. */
zr_cu_result emu_threads_run(const struct emu_execution *e);

/* ---- matrices.c: what 32 lanes do together. */
void emu_matrices_load(struct zr_device_matrices *const *lanes);
void emu_matrices_multiply(struct zr_device_fragments *const *lanes);

/* ---- copies.c: asynchronous copies of the thread of that number in its block. */
void emu_copies_begin(unsigned thread); /* it has none */
/* False: it has too many under way. */
bool emu_copies_add(unsigned thread, void *to, const void *from, size_t bytes);
void emu_copies_wait(unsigned thread);

/* ---- races.c */
struct emu_moment {
    uint32_t barrier, block,
        launch;         /* how often threads have met, ever: now, when the block and launch began */
    uint32_t under_way; /* when the first launch began that this one does not come behind; `launch`: there is
                           none */
    uint16_t thread, warp_met;
};
/* A launch begins at this moment: the `under_way` of its threads. */
uint32_t emu_race_begin(const struct emu_execution *e, uint32_t launch);
/* The words for what is wrong with the access; NULL: nothing. */
const char *emu_race(const struct emu_moment *now, const struct emu_reach *reach, uintptr_t address,
                     size_t bytes, unsigned access, uint16_t *other_thread);

#endif
