/* nccl.h: declarations of the NCCL functions that zr uses, and a communicator over them. Private to
 * zero/comm/.
 *
 * The build needs neither NCCL's header nor a CUDA toolkit; tests/unit/comm/nccl_test.c compares the
 * declarations with nccl.h if that is installed. libnccl.so.2 is loaded when a communicator needs it. */
#ifndef ZR_NCCL_H
#define ZR_NCCL_H

#include "alloc/backend/backend.h"
#include "alloc/backend/cuda_driver.h"
#include "zero/comm/comm.h"

enum { ZR_NCCL_ID_BYTES = 128, ZR_NCCL_OLDEST_VERSION = 21400 };
typedef int zr_nccl_result; /* 0: success; an enum in the library */
typedef struct zr_nccl_comm_st *zr_nccl_comm;
struct zr_nccl_id {
    char bytes[ZR_NCCL_ID_BYTES];
};
/* ncclConfig_t of NCCL 2.14; later libraries use defaults for later fields. */
struct zr_nccl_config {
    size_t bytes;
    unsigned int magic, version;
    int blocking, padding;
};
enum { ZR_NCCL_MAGIC = (int)0xcafebeef, ZR_NCCL_CONFIG_VERSION = 21400, ZR_NCCL_NOT_SET = -2147483647 - 1 };
enum zr_nccl_type { ZR_NCCL_UINT8 = 1, ZR_NCCL_FP16 = 6, ZR_NCCL_FP32 = 7, ZR_NCCL_BF16 = 9 };
enum zr_nccl_sum { ZR_NCCL_SUM = 0, ZR_NCCL_AVERAGE = 4 };
enum { ZR_NCCL_REMOTE_ERROR = 6, ZR_NCCL_IN_PROGRESS = 7, ZR_NCCL_SCALAR_ON_HOST = 1 };

/* f(member, the library's name, '?' if a version may lack it, parameters). A stream is a cudaStream_t. */
// clang-format off
#define ZR_NCCL_FUNCTIONS(f)                                                                                  \
    f(version, ncclGetVersion, "", (int *version))                                                            \
    f(get_id, ncclGetUniqueId, "", (struct zr_nccl_id *id))                                                   \
    f(init, ncclCommInitRankConfig, "",                                                                       \
      (zr_nccl_comm *comm, int ranks, struct zr_nccl_id id, int rank, struct zr_nccl_config *config))         \
    f(finalize, ncclCommFinalize, "", (zr_nccl_comm comm))                                                    \
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
    f(split, ncclCommSplit, "?", (zr_nccl_comm comm, int colour, int key, zr_nccl_comm *out, void *config))
// clang-format on

#define ZR_NCCL_MEMBER(member, name, optional, parameters) zr_nccl_result(*member) parameters;
struct zr_nccl {
    ZR_NCCL_FUNCTIONS(ZR_NCCL_MEMBER)
    const char *(*error_text)(zr_nccl_result error);
    const char *(*last_error)(zr_nccl_comm comm); /* text of the library's last warning; "": none */
};
#undef ZR_NCCL_MEMBER

/* The library, loaded at the first call. ZR_ERR_UNAVAILABLE: missing or too old; the message says which. */
zr_result zr_nccl_get(const struct zr_nccl **out);
/* For tests: path of the library to load instead of libnccl.so.2, a constant, set before the first use. */
void zr_nccl_path_set(const char *path);

struct nccl_comm;

/* nccl_watch.c: a thread that aborts the operations of a communicator and its groups when a rank is lost,
 * since NCCL waits without a timeout. The communicator and its groups share one thread. */
struct nccl_watch {
    struct zr_thread thread;
    /* Held from an NCCL call until its work is queued in the stream (zr_nccl_settle()), so that an abort
     * never runs while another thread is inside the library. Covers comms and nccl_comm.comm. */
    pthread_mutex_t lock;
    struct nccl_comm *comms;   /* list linked by watched_next */
    _Atomic uint32_t stopping; /* word to sleep on */
    bool started;
};
zr_result zr_nccl_watch_start(struct nccl_comm *root);
void zr_nccl_watch_stop(struct nccl_comm *root);
void zr_nccl_watch_add(struct nccl_comm *self);
/* Waits on the host until all operations have ended or failed, and stops watching the communicator. */
void zr_nccl_watch_remove(struct nccl_comm *self);
/* Aborts the communicator, which fails with this message from now on. Caller holds the watch's lock. */
void zr_nccl_fail(struct nccl_comm *self, zr_result result, const char *words);

struct nccl_comm {
    struct zr_comm base;
    const struct zr_nccl *nccl;
    zr_comm *talk;       /* carries host messages; owned */
    zr_backend *backend; /* of the arena: copies and stream events */
    zr_nccl_comm comm;   /* NULL before its creation and after an abort */
    void *stream;        /* cudaStream_t of all operations: options.beside, or the caller's */
    /* For memory that the host cannot read: operations are asynchronous, options.beside is owned. */
    struct nccl_watch *watch, own_watch; /* watch: own_watch, or the watch of the root communicator */
    const struct zr_cuda_driver *driver;
    struct nccl_comm *watched_next;
    zr_ticket stuck; /* the oldest pending operation and its time, for the watch */
    uint64_t stuck_ns;
    char *ring; /* two slots, a block of options.arena; not registered, since NCCL maps only the first of a
                 * block's granules */
    size_t slot_bytes, each_bytes;
    const void **from; /* [world]: operands of a sum */
    bool deterministic;
};

/* nccl_run.c: entry of struct zr_comm_table. */
zr_result zr_nccl_run(struct zr_comm *comm, const struct zr_comm_item *item);

/* nccl_settle.c: communicators are non-blocking, so an NCCL call may return ZR_NCCL_IN_PROGRESS. Waits
 * until the operation `what` on `comm` has finished; if a rank is lost meanwhile, returns an error that
 * names it. No other thread uses `comm`. */
zr_result zr_nccl_settle(struct nccl_comm *self, zr_nccl_comm comm, zr_nccl_result code, const char *what);
/* Checks whether a rank of the run is lost. `looks`: consecutive checks in which a rank was missing;
 * initially 0. */
zr_result zr_nccl_find_lost(struct nccl_comm *self, unsigned *looks);
/* The error for a failed NCCL call / for a silent peer; names the lost rank if NCCL does not. */
zr_result zr_nccl_refused(struct nccl_comm *self, zr_nccl_result code, const char *what);
zr_result zr_nccl_silent(struct nccl_comm *self, const char *what, uint64_t waited_ns);
#define ZR_NCCL_LOOK_NS 100000000ull /* between checks that the peers are alive */

#endif
