/* zr_comm.h: collectives and transfers between the ranks of a run, with one interface for all transports.
 *
 * Results. Reductions add in rank order, element by element. Their bits depend neither on the transport
 * and its algorithm nor on how an operation is divided into pieces. Data passes in pieces through a ring
 * of constant size (tag comm).
 *
 * Order. Each operation returns a ticket, and zr_comm_wait() waits for it. Operations run in the
 * communicator's own thread in the order of submission, one at a time. All ranks of a communicator must
 * submit the same operations in the same order (a transfer: the two ranks concerned, at the same place
 * among the collectives). The orders of different communicators are independent. One thread per rank
 * submits. An operation's buffers may not be touched until its ticket has been waited for; if `ticket` is
 * NULL, zr_comm_synchronize() waits for the operation. Host messages (all-gather, barrier) use a separate
 * channel and neither wait for operations nor delay them.
 *
 * Errors. An invalid operation returns ZR_ERR_INVALID on submission, and nothing is sent: a NULL buffer,
 * an invalid rank or type, a size beyond memory. The operands of sums must be aligned to their element
 * size, which is not checked. An operation on nothing completes immediately. A failure in progress is
 * returned by the wait and by every later call: ZR_ERR_PEER or ZR_ERR_TIMEOUT name a dead or lost peer,
 * ZR_ERR_PEER also names the operations of two ranks that are out of step, and ZR_ERR_INTERRUPTED means
 * that the run was told to end. After a failure the communicator can only be destroyed.
 *
 * Streams. With kernels that have streams (see zr_comm_options.beside) the caller's stream waits instead
 * of the host. Failures are then reported when the host waits for the GPU; zr_comm_guard() enables that. A
 * host message waits for all operations that this rank has submitted.
 *
 * Fork. A communicator belongs to the process that created it. A child after fork() has no thread for it
 * and may not call it, not even to destroy it. */
#ifndef ZR_COMM_H
#define ZR_COMM_H

#include "alloc/zr.h"
#include "kernels/zr_kernels.h"
#include "zero/launch/zr_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zr_comm zr_comm;
typedef uint64_t zr_ticket; /* 0 is always complete; waiting for it reports no failure */

/* Default time that a waiting rank tolerates a silent peer. The death of a peer on the same machine is
 * noticed within a second regardless of the timeout. */
#define ZR_COMM_TIMEOUT_NS 600000000000ull

/* Element type, as in enum zr_precision. Two-byte elements are summed in fp32, and the sum is rounded once.
 */
enum zr_comm_type { ZR_COMM_FP32 = 0, ZR_COMM_BF16, ZR_COMM_FP16, ZR_COMM_TYPE_COUNT };
ZR_API size_t zr_comm_type_bytes(enum zr_comm_type type);

enum zr_comm_kind {
    ZR_COMM_REDUCE_SCATTER = 1,
    ZR_COMM_ALL_GATHER,
    ZR_COMM_ALL_REDUCE,
    ZR_COMM_HOST, /* host all-gathers and barriers */
    ZR_COMM_BROADCAST,
    ZR_COMM_ALL_TO_ALL,
    ZR_COMM_REDUCE,
    ZR_COMM_SEND,
    ZR_COMM_RECEIVE,
    ZR_COMM_SEND_RECEIVE,
    ZR_COMM_KIND_COUNT
};
/* "reduce-scatter" for ZR_COMM_REDUCE_SCATTER; never NULL. */
ZR_API const char *zr_comm_kind_name(enum zr_comm_kind kind);

/* Totals of one kind of operation. */
struct zr_comm_volume {
    uint64_t calls_count;
    uint64_t busy_ns;    /* in operations with a ticket; of local ranks without waits for peers */
    uint64_t sent_bytes; /* sent to other ranks, computed from the operation */
    /* Received from other ranks, counted when copied, summed or arrived; the sum over all ranks equals the
     * sum of sent_bytes. 0 for NCCL, which moves data itself, and in a plan. */
    uint64_t received_bytes;
};

struct zr_comm_counters {
    uint64_t sent_elements;  /* sent to other ranks: S (N - 1) / N per phase; without host messages */
    uint64_t sent_bytes;     /* their bytes: fewer if they are packed */
    uint64_t received_bytes; /* received from other ranks, as in by_kind; without host messages */
    uint64_t operations_count;
    /* Times of operations with a ticket, without host messages. The fraction of communication that
     * overlaps with the caller's work is 1 - exposed / busy. */
    uint64_t busy_ns;    /* time that the communicator's thread spends in operations, including waits for
                          * peers */
    uint64_t exposed_ns; /* time that the submitting thread waits for tickets or for a free queue slot */
    struct zr_comm_volume by_kind[ZR_COMM_KIND_COUNT]; /* includes host messages */
};

ZR_API unsigned zr_comm_rank(const zr_comm *comm);
ZR_API unsigned zr_comm_world(const zr_comm *comm);
/* "local", "mpi", "nccl", "null" */
ZR_API const char *zr_comm_name(const zr_comm *comm);
ZR_API void zr_comm_counters_get(zr_comm *comm, struct zr_comm_counters *out);
/* Bytes of ring that a communicator of `world` ranks allocates from its arena; 0 for one rank. */
ZR_API size_t zr_comm_ring_bytes(unsigned world, size_t bucket_bytes);

/* ---- Sums ---------------------------------------------------------------------------------------------- */

/* Label of an operation that a timeline shows only as a wait. */
#define ZR_COMM_LABEL_NONE UINT32_MAX
/* Likewise, of a message of the program to itself, which is not part of a step's traffic. */
#define ZR_COMM_LABEL_MESSAGE (UINT32_MAX - 1)

/* destination[shard] (+)= scale * sum over ranks p, in order, of p's source[my rank * shard ...]. source:
 * [world * shard_elements]. destination may be source + rank * shard_elements. With `wide`, sums of
 * two-byte elements are stored in fp32 without rounding. */
struct zr_reduce_scatter {
    const void *source;
    void *destination;
    size_t shard_elements;
    float scale;
    bool accumulate;
    enum zr_comm_type type;
    bool wide;      /* ZR_ERR_INVALID if in place */
    unsigned label; /* the caller's label of the operation on the clock of a null communicator; here and
                     * below */
    /* Bytes of host memory that the operation writes or reads; used by the clock. */
    size_t host_bytes;
};
ZR_API zr_result zr_comm_reduce_scatter(zr_comm *comm, const struct zr_reduce_scatter *operation,
                                        zr_ticket *ticket);

/* A reduce-scatter and an all-gather, piece by piece: buffer[world * shard_elements] = scale * sum. */
struct zr_all_reduce {
    void *buffer;
    size_t shard_elements;
    float scale;
    enum zr_comm_type type;
    unsigned label;
};
ZR_API zr_result zr_comm_all_reduce(zr_comm *comm, const struct zr_all_reduce *operation, zr_ticket *ticket);

/* At rank `root`: destination[elements] (+)= scale * sum over ranks p, in order, of p's source[elements].
 * destination may be source, except with `wide`; the other ranks need none. Also over NCCL the sum is made in
 * rank order. */
struct zr_reduce {
    const void *source;
    void *destination;
    size_t elements;
    unsigned root;
    float scale;
    bool accumulate;
    enum zr_comm_type type;
    bool wide; /* see struct zr_reduce_scatter; likewise label */
    unsigned label;
};
ZR_API zr_result zr_comm_reduce(zr_comm *comm, const struct zr_reduce *operation, zr_ticket *ticket);

/* ---- Data ---------------------------------------------------------------------------------------------- */

/* Work that must precede an operation on this rank, such as waiting for its source. `run` is called once,
 * by the thread that runs the operation; its failure fails the operation. A null communicator with a clock
 * may skip `run` and starts the operation at ready_seconds at the earliest. */
struct zr_comm_before {
    zr_result (*run)(void *state);
    void *state;
    double ready_seconds;
};
/* Work of this rank at the start or at the end of an operation, such as encoding what is sent and decoding
 * what arrived. `run` is called once, by the thread that runs the operation, and belongs to the operation:
 * its failure fails the operation, and the ticket covers it. `context`: its stream, in which `run` queues
 * kernels and copies, has waited for the caller's earlier work, and the ticket waits for what is in it. NULL:
 * the host can access tensors, and `run` has ended its work when it returns. */
struct zr_comm_work {
    zr_result (*run)(void *state, struct zr_kernel_context *context);
    void *state;
};

/* destination[p * shard_bytes ...] = source of rank p, for all ranks p. source may be destination + rank *
 * shard_bytes. `type` only affects the count of elements, here and below. */
struct zr_all_gather {
    const void *source;
    void *destination;
    size_t shard_bytes;
    enum zr_comm_type type;
    /* Promises that the source is neither written nor freed until a later operation of all ranks, or
     * zr_comm_synchronize(), has ended on this rank. The gather then ends without waiting for peers that
     * still read the source. All-gathers only. */
    bool source_stays;
    unsigned label;
    size_t host_bytes; /* see struct zr_reduce_scatter */
    /* NULL: none. Borrowed until the ticket has been waited for. */
    const struct zr_comm_before *before;
    const struct zr_comm_work *first, *last;
    size_t packed_elements; /* of a shard, for the count of elements; 0: shard_bytes are elements of `type` */
};
ZR_API zr_result zr_comm_all_gather(zr_comm *comm, const struct zr_all_gather *operation, zr_ticket *ticket);

/* destination[p * shard_bytes ...] = rank p's source[my rank * shard_bytes ...], for all ranks p. Both have
 * world * shard_bytes and do not overlap. */
ZR_API zr_result zr_comm_all_to_all(zr_comm *comm, const struct zr_all_gather *operation, zr_ticket *ticket);

/* Copies buffer[bytes] of rank `root` to all ranks. */
struct zr_broadcast {
    void *buffer;
    size_t bytes;
    unsigned root;
    enum zr_comm_type type;
};
ZR_API zr_result zr_comm_broadcast(zr_comm *comm, const struct zr_broadcast *operation, zr_ticket *ticket);

/* Sends bytes from one rank to another; both sides give the same size. A send may block until its receive
 * has begun. Two ranks that send to each other use zr_comm_send_receive(), which does both concurrently. */
struct zr_transfer {
    const void *send; /* send_bytes for rank `to` */
    size_t send_bytes;
    unsigned to;
    unsigned from; /* receive_bytes from rank `from` */
    void *receive;
    size_t receive_bytes;
    enum zr_comm_type type;
    size_t packed_elements; /* sent, for the count of elements; 0: send_bytes are elements of `type` */
};
ZR_API zr_result zr_comm_send(zr_comm *comm, const struct zr_transfer *operation, zr_ticket *ticket);
ZR_API zr_result zr_comm_receive(zr_comm *comm, const struct zr_transfer *operation, zr_ticket *ticket);
ZR_API zr_result zr_comm_send_receive(zr_comm *comm, const struct zr_transfer *operation, zr_ticket *ticket);

/* ---- Waiting ------------------------------------------------------------------------------------------- */

/* Waits until the operation has ended on this rank: its destination is complete and its source may be
 * reused. */
ZR_API zr_result zr_comm_wait(zr_comm *comm, zr_ticket ticket);
/* Waits until all submitted operations have ended and no peer reads a source with source_stays. Local:
 * peers need not call it. */
ZR_API zr_result zr_comm_synchronize(zr_comm *comm);
/* Makes every wait for the GPU in this rank's context (zr_kernel_context.while_waiting) check that the
 * peers are alive, since GPU work may wait for them. The communicator must outlive the context. */
ZR_API void zr_comm_guard(zr_comm *comm, struct zr_kernel_context *context);
/* Reports that this rank cannot continue, with a reason. All waits of the run, on all ranks, return
 * ZR_ERR_PEER, and submitted operations end. For a failure on one rank while others wait for it. */
ZR_API void zr_comm_abandon(zr_comm *comm, const char *why);

/* Blocking collectives in host memory, for small data: losses, norms, signals. They have their own order
 * and do not wait for operations; to know that peers have read a source, call zr_comm_synchronize() too.
 * all: [world][bytes], in rank order. Errors: see zr_comm_wait(). */
ZR_API zr_result zr_comm_host_all_gather(zr_comm *comm, const void *mine, size_t bytes, void *all);
ZR_API zr_result zr_comm_barrier(zr_comm *comm);

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* Creates a communicator for a subset of a parent's ranks: its rank p is rank ranks[p] of the parent. The
 * group has its own queue, thread, ring, counters and order, the parent's options, and slots of
 * `bucket_bytes` (0: the parent's). It may be destroyed at any time before its arenas. Collective over the
 * listed ranks, which all pass the same list; ranks that share two groups create them in the same order. A
 * group of one rank is a null communicator with world 1. A rank of a local run can have 24 communicators.
 * Over NCCL with memory that the host can read, groups share the parent's stream, so ranks in two groups
 * submit to both in one common order. ZR_ERR_INVALID: an invalid or repeated rank, or a list without this
 * rank. ZR_ERR_PEER: another rank failed to create its part. The death of any rank of the run ends the
 * waits in all groups and is reported with its name. */
ZR_API zr_result zr_comm_group(zr_comm **out, zr_comm *parent, const unsigned *ranks, unsigned count,
                               size_t bucket_bytes);
/* Like zr_comm_group(), but collective over all ranks of the parent, each of which is in exactly one
 * group; all groups have the same size. NCCL then derives the groups from the parent (ncclCommSplit). */
ZR_API zr_result zr_comm_split(zr_comm **out, zr_comm *parent, const unsigned *ranks, unsigned count,
                               size_t bucket_bytes);

/* Destroys a communicator after its submitted operations have ended, and waits until no peer reads this
 * rank's buffers. Call it on every rank, before destroying the arenas. NULL: no effect. */
ZR_API zr_result zr_comm_destroy(zr_comm *comm);

/* Path of the data, which does not affect the bits of results. Over a network, for gathers and broadcasts:
 * directly between all pairs, or from neighbour to neighbour. On one machine, for all operations: read
 * directly from the peers' memory if its granules can be mapped, or through the ring. */
enum zr_comm_algorithm {
    ZR_COMM_AUTO = 0, /* chosen by size and number of ranks, equally on all ranks */
    ZR_COMM_DIRECT,
    ZR_COMM_RING
};

/* Minimum bytes per other rank in a slot. */
enum { ZR_COMM_LINE_BYTES = 64 };

/* Memory of a rank outside of the arena, such as kept memory, as this process maps it. Ranks on shared memory
 * read operands in the windows of others directly, as they do with arenas. */
struct zr_comm_window {
    const char *base; /* aligned to pages */
    size_t bytes;     /* 0: the rank has none. All ranks that map the window agree on the size */
};

struct zr_comm_options {
    size_t struct_bytes;  /* sizeof the struct, or 0: see "Options" in alloc/zr.h */
    zr_arena *arena;      /* memory of the ring, tag comm */
    zr_arena *host_arena; /* memory of records and of the thread's stack, tag other */
    const struct zr_kernels *kernels;
    /* Bytes of a ring slot; the ring has two. Rounded up to whole lines, at least one line per other rank. */
    size_t bucket_bytes;
    uint64_t timeout_ns; /* counts only time in which the waiting rank could run; 0: ZR_COMM_TIMEOUT_NS */
    enum zr_comm_algorithm algorithm;
    /* Streams of GPU kernels; borrowed for the communicator's life and shared with its groups. An
     * operation begins after the work queued in `stream` and runs in `beside`; zr_comm_wait() makes
     * `stream` wait for it, so the host only waits when the driver's queues are full. If `beside` is NULL,
     * operations run in `stream`, and the host waits for each piece. */
    void *stream, *beside;
    /* [ranks of the run], unchanged while an operation is queued; borrowed, also by groups. NULL: none.
     * Either all ranks map the windows of all others, or every size is 0. */
    const struct zr_comm_window *windows;
};

/* Creates a communicator without peers, for plans: it counts what `world` ranks would send and moves
 * nothing. With world 1 it is a working communicator of a single rank. */
ZR_API zr_result zr_comm_null_create(zr_comm **out, const struct zr_comm_options *options, unsigned rank,
                                     unsigned world);

/* ---- NCCL: one process per GPU ------------------------------------------------------------------------- */

struct zr_nccl_options {
    size_t struct_bytes;                /* sizeof the struct, or 0: see "Options" in alloc/zr.h */
    const struct zr_comm_options *comm; /* its arena has GPU memory */
    struct zr_local_world *local; /* the rank's run, if its launcher watches for dead ranks; NULL: none */
    /* cudaStream_t of the caller's work. Operations run in their own stream after the work queued here.
     * zr_comm_wait() and zr_comm_synchronize() make this stream wait instead of the host. If the host can
     * read the memory, operations run in this stream and the host waits. */
    void *stream;
    bool deterministic; /* sum in rank order; else NCCL sums, except with `accumulate` or `wide` */
};

/* Creates a communicator that moves data with NCCL (libnccl.so.2, loaded at run time) and host messages
 * with `talk`, which has the same ranks. The calling thread has the GPU's context current. On success the
 * communicator owns `talk`. Collective. ZR_ERR_UNAVAILABLE: NCCL is missing, too old, or refuses (two
 * ranks on one GPU, for example). */
ZR_API zr_result zr_comm_nccl_create(zr_comm **out, const struct zr_nccl_options *options, zr_comm *talk);

/* ---- Local: ranks forked on one machine, granules shared ----------------------------------------------- */

/* Creates the communicator of all ranks over shared memory. Collective. One at a time, plus its groups. */
ZR_API zr_result zr_comm_local_create(zr_comm **out, const struct zr_comm_options *options,
                                      struct zr_local_world *local, unsigned rank);

/* The strongest request of the signals, agreed by all ranks. Collective: every rank calls it at the same
 * point of every step. */
ZR_API zr_result zr_local_request(zr_comm *comm, enum zr_request_kind *out);

/* ---- Ranks of any launcher ----------------------------------------------------------------------------- */

/* Transport between ranks: shared memory of one machine, MPI or TCP between any machines. */
enum zr_comm_carrier { ZR_CARRIER_LOCAL = 0, ZR_CARRIER_MPI, ZR_CARRIER_TCP };

/* zr_local_launch() for ranks that may be started by another launcher. If the environment describes one
 * rank of a run (mpirun: OMPI_COMM_WORLD_RANK and _SIZE or PMI_RANK and PMI_SIZE; torchrun: RANK,
 * WORLD_SIZE and MASTER_PORT; srun: SLURM_PROCID and SLURM_NTASKS), this process becomes that rank and
 * waits options->join_timeout_ns for the others. Otherwise it forks the ranks or, with MPI, runs `mpirun
 * -n world argv[0] ...`; `argv` is only used for that. options->world 0: as many ranks as were started,
 * else one. Over TCP the environment's rank requires options->rendezvous. MPI requires libzr_comm_mpi.so next
 * to the program or to libzr_zero.so, or in ../lib or ../bin of either. Exit code 2 also if the environment
 * contradicts itself or options->world. */
ZR_API int zr_launch(const struct zr_launch_options *options, enum zr_comm_carrier carrier, char **argv);

/* Creates the communicator of all ranks over the transport of their launch. Collective. One at a time,
 * plus its groups. */
ZR_API zr_result zr_comm_create(zr_comm **out, const struct zr_comm_options *options,
                                struct zr_local_world *local, unsigned rank);

#ifdef __cplusplus
}
#endif

#endif
