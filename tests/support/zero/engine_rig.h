/* engine_rig.h: what the engine's test programs share: a rank's memory, communicator and kernels, on which
 * each program makes an engine of its own, and checks for functions that answer with an exit code. */
#ifndef ZR_ENGINE_RIG_H
#define ZR_ENGINE_RIG_H

#include <stdint.h>
#include <stdio.h>

#include "zero/zr_zero.h"

/* Exit codes are the number of the line that failed, as far as one byte goes. */
#define must(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "# line %d: %s (%s)\n", __LINE__, #condition, zr_last_error());                  \
            return 1 + __LINE__ % 90;                                                                        \
        }                                                                                                    \
    } while (0)

struct rig {
    zr_backend *backend;
    zr_arena *arena;
    zr_comm *comm;
    const struct zr_kernels *kernels; /* what opened the context */
    struct zr_kernel_context context;
    zr_engine *engine; /* NULL until the program makes it; rig_close() ends it */
};

struct rig_options {
    struct zr_local_world *local; /* NULL: a rank alone */
    unsigned rank;
    enum zr_isa isa;
    enum zr_precision precision;
    size_t bucket_bytes;
    size_t granule_bytes, reserve_bytes; /* 0: as the host backend and the arena choose */
    const struct zr_kernels *kernels;
};

/* After a failure, too, rig_close() releases what there is. */
static inline zr_result rig_open(struct rig *rig, const struct rig_options *options)
{
    const struct zr_kernel_limits limits = {8, 8, 8, 1, 1, 0, 0};
    *rig = (struct rig){0};
    zr_result result = zr_backend_host_create(
        &rig->backend, &(struct zr_host_options){.granule_bytes = options->granule_bytes});
    if (result == ZR_OK)
        result =
            zr_arena_create(&rig->arena, &(struct zr_arena_options){.backend = rig->backend,
                                                                    .reserve_bytes = options->reserve_bytes});
    if (result != ZR_OK)
        return result;
    const struct zr_comm_options comm = {.arena = rig->arena,
                                         .host_arena = rig->arena,
                                         .kernels = options->kernels,
                                         .bucket_bytes = options->bucket_bytes};
    result = options->local ? zr_comm_local_create(&rig->comm, &comm, options->local, options->rank)
                            : zr_comm_null_create(&rig->comm, &comm, 0, 1);
    if (result != ZR_OK)
        return result;
    rig->context = (struct zr_kernel_context){.parallel = {.threads = 1},
                                              .workspace_bytes =
                                                  options->kernels->workspace_bytes(&limits, options->isa),
                                              .isa = options->isa,
                                              .precision = options->precision};
    result = zr_arena_alloc(
        rig->arena, &(struct zr_request){.bytes = rig->context.workspace_bytes, .tag = ZR_TAG_WORKSPACE},
        &rig->context.workspace);
    rig->kernels = options->kernels;
    return result == ZR_OK ? options->kernels->open(&rig->context) : result;
}

/* The bytes that nobody freed; all there are, of an arena that does not end. */
static inline size_t rig_close(struct rig *rig)
{
    size_t leaked = 0;
    zr_engine_destroy(rig->engine);
    if (rig->context.workspace) {
        if (rig->kernels)
            rig->kernels->close(&rig->context);
        zr_arena_free(rig->arena, rig->context.workspace);
    }
    if (rig->comm)
        zr_comm_destroy(rig->comm);
    if (rig->arena && zr_arena_destroy(rig->arena, &leaked) != ZR_OK)
        leaked = SIZE_MAX;
    if (rig->backend)
        zr_backend_destroy(rig->backend);
    return leaked;
}

/* 0 when `rank_main` came to 0 on all ranks of a forked world. */
static inline int rig_launch(unsigned world,
                             int (*rank_main)(struct zr_local_world *local, unsigned rank, void *argument),
                             void *argument)
{
    fflush(stdout);
    return zr_local_launch(
        &(struct zr_launch_options){.world = world, .rank_main = rank_main, .argument = argument});
}

#endif
