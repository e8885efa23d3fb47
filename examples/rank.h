/* rank.h: opens the resources of a rank of a small trainer (memory, a communicator, kernels), and closes them
 * in reverse order. */
#ifndef ZR_EXAMPLES_RANK_H
#define ZR_EXAMPLES_RANK_H

#include "zero/zr_zero.h"

struct rank {
    unsigned rank;
    zr_backend *backend;
    zr_arena *arena;
    zr_comm *comm;
    const struct zr_kernels *kernels;
    struct zr_kernel_context context;
};

static inline zr_result rank_open(struct rank *out, struct zr_local_world *local, unsigned rank,
                                  const struct zr_kernel_limits *limits)
{
    struct zr_comm_options comm = {.struct_bytes = sizeof comm, .bucket_bytes = 64 << 10};
    struct zr_arena_options arena = {.struct_bytes = sizeof arena, .name = "tensors"};
    out->rank = rank;
    out->context = (struct zr_kernel_context){.parallel.threads = 1, .isa = zr_isa_best()};
    out->kernels = comm.kernels = zr_kernels_cpu(out->context.isa);
    out->context.workspace_bytes = out->kernels->workspace_bytes(limits, out->context.isa);
    zr_result result = zr_backend_host_create(&out->backend, NULL);
    arena.backend = out->backend;
    if (result == ZR_OK)
        result = zr_arena_create(&out->arena, &arena);
    comm.arena = comm.host_arena = out->arena;
    if (result == ZR_OK)
        result = zr_comm_create(&out->comm, &comm, local, rank);
    const struct zr_request scratch = {.bytes = out->context.workspace_bytes, .tag = ZR_TAG_WORKSPACE};
    if (result == ZR_OK)
        result = zr_arena_alloc(out->arena, &scratch, &out->context.workspace);
    return result == ZR_OK ? out->kernels->open(&out->context) : result;
}

static inline void rank_close(struct rank *rank)
{
    zr_comm_destroy(rank->comm);
    rank->kernels->close(&rank->context);
    if (rank->arena)
        zr_arena_destroy(rank->arena, NULL); /* frees all remaining blocks */
    if (rank->backend)
        zr_backend_destroy(rank->backend);
}

#endif
