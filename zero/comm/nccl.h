/* nccl.h: the part of NCCL that zr uses, in zr's own declarations, and a communicator over it. Private to
 * zero/comm/.
 *
 * No header of NCCL and no toolkit is needed to build; tests/unit/comm/nccl_test.c compares the declarations
 * with nccl.h where that is installed. The library itself, libnccl.so.2, is found when a communicator asks
 * for it.
 */
#ifndef ZR_NCCL_H
#define ZR_NCCL_H

#include "alloc/backend/backend.h"
#include "zero/comm/comm.h"

enum { ZR_NCCL_ID_BYTES = 128, ZR_NCCL_OLDEST_VERSION = 21100 };
typedef int zr_nccl_result; /* 0: success; an enum of the library's */
typedef struct zr_nccl_comm_st *zr_nccl_comm;
struct zr_nccl_id {
    char bytes[ZR_NCCL_ID_BYTES];
};
enum zr_nccl_type { ZR_NCCL_UINT8 = 1, ZR_NCCL_FP16 = 6, ZR_NCCL_FP32 = 7, ZR_NCCL_BF16 = 9 };
enum zr_nccl_sum { ZR_NCCL_SUM = 0, ZR_NCCL_AVERAGE = 4 };
enum { ZR_NCCL_REMOTE_ERROR = 6, ZR_NCCL_IN_PROGRESS = 7, ZR_NCCL_SCALAR_ON_HOST = 1 };

/* f(member, the library's name, '?' where a version may not have it, parameters). Stream is a cudaStream_t.
 */
// clang-format off
#define ZR_NCCL_FUNCTIONS(f)                                                                                  \
    f(version, ncclGetVersion, "", (int *version))                                                            \
    f(get_id, ncclGetUniqueId, "", (struct zr_nccl_id *id))                                                   \
    f(init, ncclCommInitRank, "", (zr_nccl_comm *comm, int ranks, struct zr_nccl_id id, int rank))            \
    f(destroy, ncclCommDestroy, "", (zr_nccl_comm comm))                                                      \
    f(abort, ncclCommAbort, "", (zr_nccl_comm comm))                                                          \
    f(async_error, ncclCommGetAsyncError, "", (zr_nccl_comm comm, zr_nccl_result *error))                     \
    f(group_start, ncclGroupStart, "", (void))                                                                \
    f(group_end, ncclGroupEnd, "", (void))                                                                    \
    f(send, ncclSend, "", (const void *data, size_t count, int type, int peer, zr_nccl_comm comm, void *stream)) \
    f(receive, ncclRecv, "", (void *data, size_t count, int type, int peer, zr_nccl_comm comm, void *stream)) \
    f(all_gather, ncclAllGather, "",                                                                          \
      (const void *from, void *to, size_t count, int type, zr_nccl_comm comm, void *stream))                  \
    f(broadcast, ncclBroadcast, "",                                                                           \
      (const void *from, void *to, size_t count, int type, int root, zr_nccl_comm comm, void *stream))        \
    f(all_reduce, ncclAllReduce, "",                                                                          \
      (const void *from, void *to, size_t count, int type, int sum, zr_nccl_comm comm, void *stream))         \
    f(reduce_scatter, ncclReduceScatter, "",                                                                  \
      (const void *from, void *to, size_t count, int type, int sum, zr_nccl_comm comm, void *stream))         \
    f(scaled_sum, ncclRedOpCreatePreMulSum, "",                                                               \
      (int *sum, void *scalar, int type, int residence, zr_nccl_comm comm))                                   \
    f(sum_destroy, ncclRedOpDestroy, "", (int sum, zr_nccl_comm comm))                                        \
    f(register_memory, ncclCommRegister, "?",                                                                 \
      (zr_nccl_comm comm, void *data, size_t bytes, void **handle))                                           \
    f(deregister_memory, ncclCommDeregister, "?", (zr_nccl_comm comm, void *handle))
// clang-format on

#define ZR_NCCL_MEMBER(member, name, optional, parameters) zr_nccl_result(*member) parameters;
struct zr_nccl {
    ZR_NCCL_FUNCTIONS(ZR_NCCL_MEMBER)
    const char *(*error_text)(zr_nccl_result error);
};
#undef ZR_NCCL_MEMBER

/* The library of this process, loaded at the first call. ZR_ERR_UNAVAILABLE, with words: there is none, or it
 * is too old. */
zr_result zr_nccl_get(const struct zr_nccl **out);
/* For tests: the file to load in place of libnccl.so.2; a constant, before the first use. */
void zr_nccl_path_set(const char *path);

struct nccl_comm {
    struct zr_comm base;
    const struct zr_nccl *nccl;
    zr_comm *talk;       /* exchanges, in the host's memory; owned */
    zr_backend *backend; /* of the arena: copies, and events of the stream */
    zr_nccl_comm comm;   /* NULL before it is made, and after an abort */
    void *stream;        /* the cudaStream_t of all operations */
    char *ring;          /* two slots, a block of options.arena */
    void *registration;  /* of the ring; NULL: the library has none */
    size_t slot_bytes, each_bytes;
    const void **from; /* [world]: scratch for the sum */
    bool deterministic;
};

/* nccl_run.c: carries out one operation; struct zr_comm_table has the contract. */
zr_result zr_nccl_run(struct zr_comm *comm, const struct zr_comm_item *item);

#endif
