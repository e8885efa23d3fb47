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
#include "alloc/backend/cuda_driver.h"
#include "zero/comm/comm.h"

enum { ZR_NCCL_ID_BYTES = 128, ZR_NCCL_OLDEST_VERSION = 21400 };
typedef int zr_nccl_result; /* 0: success; an enum of the library's */
typedef struct zr_nccl_comm_st *zr_nccl_comm;
struct zr_nccl_id {
    char bytes[ZR_NCCL_ID_BYTES];
};
/* ncclConfig_t as NCCL 2.14 has it: a later library takes the fields that came after from its own defaults.
 */
struct zr_nccl_config {
    size_t bytes;
    unsigned int magic, version;
    int blocking, padding;
};
enum { ZR_NCCL_MAGIC = (int)0xcafebeef, ZR_NCCL_CONFIG_VERSION = 21400, ZR_NCCL_NOT_SET = -2147483647 - 1 };
enum zr_nccl_type { ZR_NCCL_UINT8 = 1, ZR_NCCL_FP16 = 6, ZR_NCCL_FP32 = 7, ZR_NCCL_BF16 = 9 };
enum zr_nccl_sum { ZR_NCCL_SUM = 0, ZR_NCCL_AVERAGE = 4 };
enum { ZR_NCCL_REMOTE_ERROR = 6, ZR_NCCL_IN_PROGRESS = 7, ZR_NCCL_SCALAR_ON_HOST = 1 };

/* f(member, the library's name, '?' where a version may not have it, parameters). Stream is a cudaStream_t.
 */
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
    const char *(*last_error)(zr_nccl_comm comm); /* what the library's last warning said; "": nothing */
};
#undef ZR_NCCL_MEMBER

/* The library of this process, loaded at the first call. ZR_ERR_UNAVAILABLE, with words: there is none, or it
 * is too old. */
zr_result zr_nccl_get(const struct zr_nccl **out);
/* For tests: the file to load in place of libnccl.so.2; a constant, before the first use. */
void zr_nccl_path_set(const char *path);

/* nccl_stream.c: the stream that operations are in, beside the caller's. Neither waits on the host: events
 * order the two. The caller's context is current. */
struct nccl_stream {
    const struct zr_cuda_driver *driver; /* NULL: not open */
    zr_cu_result (*wait_event)(zr_cu_stream stream, zr_cu_event event, unsigned int flags);
    zr_cu_result (*destroy)(zr_cu_stream stream);
    zr_cu_stream own, caller;
    zr_cu_event before;                     /* what the caller's stream has come to */
    zr_cu_event ended[ZR_COMM_QUEUE_COUNT]; /* of operation n in place n modulo the count */
    _Atomic zr_ticket last;                 /* operation that was queued */
    zr_ticket waited;                       /* that the caller's stream is behind of; the caller's thread */
};
zr_result zr_nccl_stream_open(struct nccl_stream *stream, void *caller);
/* What was queued has ended, or the context is dead. A stream that is not open is fine. */
void zr_nccl_stream_close(struct nccl_stream *stream);
/* What is queued now comes behind all that the caller's stream has / has been queued, as operation `ticket`.
 */
zr_result zr_nccl_stream_begin(struct nccl_stream *stream);
zr_result zr_nccl_stream_end(struct nccl_stream *stream, zr_ticket ticket);
/* The caller's stream goes on behind the operation. */
zr_result zr_nccl_stream_join(struct nccl_stream *stream, zr_ticket ticket);
/* Whether the operation has ended, or nothing will. Any thread. */
bool zr_nccl_stream_done(const struct nccl_stream *stream, zr_ticket ticket);

struct nccl_comm;

/* nccl_watch.c: a thread that ends the operations of a communicator and its groups when a rank is lost, since
 * NCCL waits for one for ever. One for all of them. */
struct nccl_watch {
    struct zr_thread thread;
    /* Held from a call of NCCL until what it began is in the stream (zr_nccl_settle()), so that an abort
     * finds no thread inside the library: comms, and struct nccl_comm's comm. */
    pthread_mutex_t lock;
    struct nccl_comm *comms;   /* through watched_next */
    _Atomic uint32_t stopping; /* a word to wait at */
    bool started;
};
zr_result zr_nccl_watch_start(struct nccl_comm *root);
void zr_nccl_watch_stop(struct nccl_comm *root);
void zr_nccl_watch_add(struct nccl_comm *self);
/* Waits on the host until all operations have ended, well or not, and looks at it no more. */
void zr_nccl_watch_remove(struct nccl_comm *self);
/* The communicator is aborted, and fails with these words from now on. The watch's lock is held. */
void zr_nccl_fail(struct nccl_comm *self, zr_result result, const char *words);

struct nccl_comm {
    struct zr_comm base;
    const struct zr_nccl *nccl;
    zr_comm *talk;       /* exchanges, in the host's memory; owned */
    zr_backend *backend; /* of the arena: copies, and events of the stream */
    zr_nccl_comm comm;   /* NULL before it is made, and after an abort */
    void *stream;        /* the cudaStream_t of all operations */
    /* Of memory that the host does not see: it does not wait for operations. */
    struct nccl_stream beside;
    struct nccl_watch *watch,
        own_watch; /* watch: of the communicator that this one is a group of, or its own */
    struct nccl_comm *watched_next;
    zr_ticket stuck; /* the first operation that has not ended, and since when; the watch's */
    uint64_t stuck_ns;
    char *ring; /* two slots, a block of options.arena; not registered: NCCL maps the first of its granules
                   only */
    size_t slot_bytes, each_bytes;
    const void **from; /* [world]: scratch for the sum */
    bool deterministic;
};

/* nccl_run.c: carries out one operation; struct zr_comm_table has the contract. */
zr_result zr_nccl_run(struct zr_comm *comm, const struct zr_comm_item *item);

/* nccl_settle.c: communicators do not block: a call of NCCL returns at once, with ZR_NCCL_IN_PROGRESS where
 * the library goes on by itself. Returns when `comm`, which the call was about, has come to an end of `what`;
 * a rank that is lost meanwhile ends the wait by its name. The caller is the only thread that uses `comm`. */
zr_result zr_nccl_settle(struct nccl_comm *self, zr_nccl_comm comm, zr_nccl_result code, const char *what);
/* Whether a rank of the run is lost. `looks`: how often in a row one was not there; begins with 0. */
zr_result zr_nccl_find_lost(struct nccl_comm *self, unsigned *looks);
/* What the library's failure means, and who is lost where it does not say. */
zr_result zr_nccl_refused(struct nccl_comm *self, zr_nccl_result code, const char *what);
zr_result zr_nccl_silent(struct nccl_comm *self, const char *what, uint64_t waited_ns);
#define ZR_NCCL_LOOK_NS 100000000ull /* between looks whether the peers live */

#endif
