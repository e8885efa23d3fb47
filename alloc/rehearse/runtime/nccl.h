/* nccl.h: communicators of the simulated NCCL and their works: calls are in nccl.c and nccl_calls.c, the
 * carrying out in nccl_work.c. Private to alloc/rehearse/runtime/.
 *
 * A communicator's ranks share a board (nccl_board.h), through which messages of at most a mebibyte (less
 * among more than eight ranks), and of --keep, are carried: what programs tell each other about shapes and
 * objects arrives, and sums are real. A longer message carries nothing, and what it would have written reads
 * as zeros, as after a long copy.
 *
 * A call returns when its work is in its stream, as NCCL's do; the work ends when its messages have arrived.
 * Work that waits for a rank whose process has ended is an asynchronous error, and ends after a while: a
 * program that waits for its stream goes on and reads the error. */
#ifndef ZR_REHEARSE_NCCL_H
#define ZR_REHEARSE_NCCL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/rehearse/driver/emulator.h"
#include "alloc/rehearse/runtime/nccl_board.h"
#include "alloc/rehearse/runtime/nccl_sum.h"
#include "alloc/rehearse/runtime/runtime.h"

#define NCCL_ANSWER __attribute__((visibility("default")))

/* ncclResult_t */
enum {
    NCCL_SUCCESS = 0,
    NCCL_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6
};
enum { NCCL_SCALES_MAX = 64 };

struct nccl_communicator {
    struct nccl_board board;
    struct nccl_communicator *next; /* of a group that starts */
    zr_cu_context context;
    int device; /* of the context */
    int channels_max;
    bool shared;                                   /* its parent's buffers are its own */
    uint64_t turns[NCCL_KINDS][2][NCCL_RANKS_MAX]; /* of the next message from and to each rank */
    uint64_t splits_count;
    zr_cu_memory buffers[1 + NCCL_RANKS_MAX]; /* of the ring, and of each peer; 0: not connected */
    size_t buffers_bytes;
    double scales[NCCL_SCALES_MAX];
    uint64_t scales_taken;   /* a bit for each */
    uint64_t looked, missed; /* when processes were looked at, and the first was gone */
    _Atomic int error, aborted, works_count;
    _Atomic unsigned users_count; /* the program, and each work */
};

struct nccl_message {
    zr_cu_address at;
    unsigned char *stage; /* where what arrives goes instead; NULL: to `at` */
    size_t bytes;
    uint64_t turn;
    int peer;
    bool sends, lost, done; /* lost: it is too long to be carried */
};

/* What one collective, or the messages of a group to and from pairs, come to. */
struct nccl_work {
    struct nccl_work *next; /* of a group */
    struct nccl_communicator *comm;
    zr_cu_stream stream;
    const char *name;
    enum nccl_kind kind;
    bool begun;
    struct zr_emulator_transfer transfer; /* for its time; of messages of pairs: left at 0 */
    struct nccl_message *messages;
    size_t messages_count;
    /* The rank's own part is copied when the work begins, to `own_to` or its place in `all`. */
    zr_cu_address own_from, own_to;
    size_t own_bytes;
    /* Of a reduction: what all ranks have, and where the result goes. */
    unsigned char *all;
    zr_cu_address result;
    size_t elements;
    bool known; /* no kernel of any rank made its part, so far */
    struct nccl_reduction reduction;
};

/* Keeps the words for ncclGetLastError() of this thread and returns the code. */
int nccl_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *nccl_last_words(void);
uint64_t nccl_now_ns(void);
/* That a message can have and be carried. */
size_t nccl_longest_bytes(const struct nccl_communicator *comm);

/* The work takes messages by nccl_work_add() until it is submitted, which takes it over: an ncclResult_t. */
struct nccl_work *nccl_work_create(struct nccl_communicator *comm, const char *name, zr_cu_stream stream);
void nccl_work_add(struct nccl_work *work, struct nccl_message message);
int nccl_work_submit(struct nccl_work *work);

/* One user less; the last one frees it. */
void nccl_comm_drop(struct nccl_communicator *comm);
/* A rank that has left or died, of those with whom a message of the work is under way (NULL: of all); -1:
 * none is gone. Looks now and then. */
int nccl_comm_gone(struct nccl_communicator *comm, const struct nccl_work *work);
void nccl_comm_say_gone(const struct nccl_communicator *comm, int rank, const char *what);
void nccl_comm_release_buffers(struct nccl_communicator *comm);

/* Bytes that a rank takes of its device for a ring and for a peer. channels_max: of the communicator's
 * configuration; 0: none is set. */
size_t nccl_memory_of_ring(int channels_max);
size_t nccl_memory_of_peer(int channels_max);

#endif
