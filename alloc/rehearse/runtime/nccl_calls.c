/* nccl_calls.c: NCCL's collectives and reductions as messages of each pair of ranks. See nccl.h. */
#include "alloc/rehearse/runtime/nccl.h"

#include <stdlib.h>
#include <string.h>

/* ---- Collectives --------------------------------------------------------------------------------------- */

/* NULL: the arguments are wrong. root: -1: of none. */
static struct nccl_work *collective(struct nccl_communicator *comm, const char *name, int type, int root,
                                    zr_cu_stream stream)
{
    if (comm && nccl_type_bytes(type) && root < comm->board.ranks)
        return nccl_work_create(comm, name, stream);
    nccl_fail(NCCL_INVALID_ARGUMENT, "%s without a communicator, or with a wrong type or root", name);
    return NULL;
}

static zr_cu_address address(const void *pointer)
{
    return (zr_cu_address)(uintptr_t)pointer;
}

/* A block of each rank in a buffer: at + rank * step. */
struct blocks {
    const void *at;
    size_t step_bytes;
};

static zr_cu_address block_of(struct blocks blocks, int rank)
{
    return address(blocks.at) + (size_t)rank * blocks.step_bytes;
}

/* A ring: each link carries `rounds` times what all but one of the ranks have, in as many steps. A
 * communicator of one rank has no link. */
static void take_ring(struct nccl_work *work, size_t bytes_of_rank, int rounds)
{
    const int hops = rounds * (work->comm->board.ranks - 1);
    work->transfer = (struct zr_emulator_transfer){.bytes = (double)bytes_of_rank * hops, .hops = hops};
}

/* From or to a root in pieces: each link carries all bytes, in steps that overlap. */
static void take_chain(struct nccl_work *work, size_t bytes)
{
    work->transfer =
        (struct zr_emulator_transfer){.bytes = (double)bytes, .hops = work->comm->board.ranks - 1};
}

/* Every rank has `bytes` for every rank. */
static int exchange(struct nccl_work *work, struct blocks from, struct blocks to, size_t bytes)
{
    const int me = work->comm->board.rank;
    for (int peer = 0; peer < work->comm->board.ranks; peer++) {
        if (peer == me)
            continue;
        nccl_work_add(work, (struct nccl_message){
                                .at = block_of(from, peer), .bytes = bytes, .peer = peer, .sends = true});
        nccl_work_add(work, (struct nccl_message){.at = block_of(to, peer), .bytes = bytes, .peer = peer});
    }
    work->own_from = block_of(from, me);
    work->own_to = block_of(to, me);
    work->own_bytes = bytes;
    return nccl_work_submit(work);
}

NCCL_ANSWER int ncclAllGather(const void *from, void *to, size_t count, int type,
                              struct nccl_communicator *comm, zr_cu_stream stream)
{
    struct nccl_work *work = collective(comm, "an all-gather", type, -1, stream);
    size_t bytes = count * nccl_type_bytes(type);
    if (work)
        take_ring(work, bytes, 1);
    return work ? exchange(work, (struct blocks){from, 0}, (struct blocks){to, bytes}, bytes)
                : NCCL_INVALID_ARGUMENT;
}

NCCL_ANSWER int ncclAlltoAll(const void *from, void *to, size_t count, int type,
                             struct nccl_communicator *comm, zr_cu_stream stream)
{
    struct nccl_work *work = collective(comm, "an all-to-all", type, -1, stream);
    size_t bytes = count * nccl_type_bytes(type);
    if (!work)
        return NCCL_INVALID_ARGUMENT;
    work->kind = NCCL_PAIR;
    return exchange(work, (struct blocks){from, bytes}, (struct blocks){to, bytes}, bytes);
}

/* Blocks of the root go to each rank, or come from each. */
static int fan(struct nccl_work *work, struct blocks blocks, const void *part, size_t bytes, int root,
               bool gathers)
{
    const struct nccl_communicator *comm = work->comm;
    bool is_root = comm->board.rank == root;
    for (int peer = 0; peer < comm->board.ranks; peer++)
        if (peer != comm->board.rank && (is_root || peer == root))
            nccl_work_add(work, (struct nccl_message){.at = is_root ? block_of(blocks, peer) : address(part),
                                                      .bytes = bytes,
                                                      .peer = peer,
                                                      .sends = is_root != gathers});
    if (is_root) {
        work->own_from = gathers ? address(part) : block_of(blocks, root);
        work->own_to = gathers ? block_of(blocks, root) : address(part);
        work->own_bytes = bytes;
    }
    return nccl_work_submit(work);
}

NCCL_ANSWER int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                              struct nccl_communicator *comm, zr_cu_stream stream)
{
    struct nccl_work *work = collective(comm, "a broadcast", type, root, stream);
    if (work)
        take_chain(work, count * nccl_type_bytes(type));
    return work ? fan(work, (struct blocks){from, 0}, to, count * nccl_type_bytes(type), root, false)
                : NCCL_INVALID_ARGUMENT;
}

NCCL_ANSWER int ncclBcast(void *data, size_t count, int type, int root, struct nccl_communicator *comm,
                          zr_cu_stream stream)
{
    return ncclBroadcast(data, data, count, type, root, comm, stream);
}

NCCL_ANSWER int ncclGather(const void *from, void *to, size_t count, int type, int root,
                           struct nccl_communicator *comm, zr_cu_stream stream)
{
    struct nccl_work *work = collective(comm, "a gather", type, root, stream);
    return work ? fan(work, (struct blocks){to, count * nccl_type_bytes(type)}, from,
                      count * nccl_type_bytes(type), root, true)
                : NCCL_INVALID_ARGUMENT;
}

NCCL_ANSWER int ncclScatter(const void *from, void *to, size_t count, int type, int root,
                            struct nccl_communicator *comm, zr_cu_stream stream)
{
    struct nccl_work *work = collective(comm, "a scatter", type, root, stream);
    return work ? fan(work, (struct blocks){from, count * nccl_type_bytes(type)}, to,
                      count * nccl_type_bytes(type), root, false)
                : NCCL_INVALID_ARGUMENT;
}

/* ---- Reductions ---------------------------------------------------------------------------------------- */

/* Each rank has `count` elements for every rank (step_bytes 0: the same ones); who `reduces` gets theirs of
 * all. */
static int reduce(struct nccl_work *work, struct blocks from, void *to, size_t count, int type, int operation,
                  int root)
{
    struct nccl_communicator *comm = work->comm;
    const int me = comm->board.rank;
    const size_t bytes = count * nccl_type_bytes(type);
    const bool reduces = root < 0 || me == root;
    const bool carried = bytes <= nccl_longest_bytes(comm) && nccl_can_reduce(type);
    if (root >= 0)
        take_chain(work, bytes);
    else if (from.step_bytes) /* each rank reduces a part */
        take_ring(work, bytes, 1);
    else /* which is then gathered */
        take_ring(work, bytes / (size_t)comm->board.ranks, 2);
    work->reduction =
        (struct nccl_reduction){.operation = (enum nccl_operation)operation, .type = type, .scale = 1};
    if (operation >= NCCL_SCALED) {
        work->reduction.operation = NCCL_SCALED;
        work->reduction.scale = comm->scales[(operation - NCCL_SCALED) % NCCL_SCALES_MAX];
    }
    if (reduces && carried && bytes > 0) {
        work->all = malloc(bytes * (size_t)comm->board.ranks);
        if (!work->all)
            abort();
        work->result = address(to);
        work->elements = count;
        work->own_from = block_of(from, me);
        work->own_bytes = bytes;
    } else if (reduces && bytes > 0) {
        nccl_work_add(work, (struct nccl_message){.at = address(to), .bytes = bytes, .peer = me});
        work->messages[0].lost = true;
    }
    for (int peer = 0; carried && peer < comm->board.ranks; peer++) {
        if (peer == me)
            continue;
        if (root < 0 || peer == root)
            nccl_work_add(work, (struct nccl_message){
                                    .at = block_of(from, peer), .bytes = bytes, .peer = peer, .sends = true});
        if (reduces)
            nccl_work_add(work, (struct nccl_message){.at = address(to),
                                                      .stage = work->all + (size_t)peer * bytes,
                                                      .bytes = bytes,
                                                      .peer = peer});
    }
    return nccl_work_submit(work);
}

NCCL_ANSWER int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                              struct nccl_communicator *comm, zr_cu_stream stream)
{
    struct nccl_work *work = collective(comm, "an all-reduce", type, -1, stream);
    return work ? reduce(work, (struct blocks){from, 0}, to, count, type, operation, -1)
                : NCCL_INVALID_ARGUMENT;
}

NCCL_ANSWER int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root,
                           struct nccl_communicator *comm, zr_cu_stream stream)
{
    struct nccl_work *work = collective(comm, "a reduction", type, root, stream);
    return work ? reduce(work, (struct blocks){from, 0}, to, count, type, operation, root)
                : NCCL_INVALID_ARGUMENT;
}

NCCL_ANSWER int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation,
                                  struct nccl_communicator *comm, zr_cu_stream stream)
{
    struct nccl_work *work = collective(comm, "a reduce-scatter", type, -1, stream);
    return work ? reduce(work, (struct blocks){from, count * nccl_type_bytes(type)}, to, count, type,
                         operation, -1)
                : NCCL_INVALID_ARGUMENT;
}

/* The scalar may be on the device: what is there now is read. */
NCCL_ANSWER int ncclRedOpCreatePreMulSum(int *operation, void *scalar, int type, int residence,
                                         struct nccl_communicator *comm)
{
    unsigned char value[sizeof(double)] = {0};
    int slot = 0;
    while (comm && slot < NCCL_SCALES_MAX && comm->scales_taken >> slot & 1)
        slot++;
    if (!comm || !nccl_can_reduce(type) || slot == NCCL_SCALES_MAX)
        return nccl_fail(NCCL_INVALID_ARGUMENT,
                         "an operation without a communicator, of a wrong type, or one too many");
    if (residence == 1)
        memcpy(value, scalar, nccl_type_bytes(type));
    else if (cuMemcpyDtoH_v2(value, address(scalar), nccl_type_bytes(type)) != ZR_CU_SUCCESS)
        return nccl_fail(NCCL_CUDA_ERROR, "the scalar of an operation is not on the device");
    comm->scales[slot] = nccl_scalar(type, value);
    comm->scales_taken |= UINT64_C(1) << slot;
    *operation = NCCL_SCALED + slot;
    return NCCL_SUCCESS;
}

NCCL_ANSWER int ncclRedOpDestroy(int operation, struct nccl_communicator *comm)
{
    if (!comm || operation < NCCL_SCALED || operation >= NCCL_SCALED + NCCL_SCALES_MAX)
        return nccl_fail(NCCL_INVALID_ARGUMENT, "the operation was not made by ncclRedOpCreatePreMulSum");
    comm->scales_taken &= ~(UINT64_C(1) << (operation - NCCL_SCALED));
    return NCCL_SUCCESS;
}
