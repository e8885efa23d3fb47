/* zr_comm.h: one interface for communication between the ranks of a run.
 *
 * Reductions add in rank order, element by element, so their bits are fixed: they do not depend on the kind
 * of communicator, on the algorithm or on how an operation is cut into pieces. Data travels through a ring of
 * constant size (tag comm), whatever the model: a big operation passes through it in pieces.
 *
 * An operation takes no host wait: it returns an event, its ticket, which tells that it has ended on this
 * rank, and the host waits for that with zr_comm_wait(). Operations run in the communicator's own thread, in
 * the order of submission, so each begins when all before it have ended. That order must be the same on all
 * ranks of the communicator (transfers between two ranks: the same on those two, and between the same
 * operations of all); no two communicators share theirs. The buffers belong to the operation until its ticket
 * has been waited for. `ticket` may be NULL: zr_comm_synchronize() waits for that one too. One submitting
 * thread per rank. Host messages (all-gather, barrier) have a channel of their own: they neither wait for
 * operations nor hold them up.
 *
 * An operation is refused when it is handed in, with ZR_ERR_INVALID and nothing sent: no buffer, a rank or a
 * type that is none, sizes beyond memory. Elements that are added are aligned to their size, which is not
 * looked at; what only moves needs no alignment. One on nothing is done at once. What fails under way fails
 * the wait, and every call after it, alike: ZR_ERR_PEER or ZR_ERR_TIMEOUT with the name of a dead or lost
 * peer, ZR_ERR_PEER too with the operations of two ranks that are out of step, ZR_ERR_INTERRUPTED where the
 * run was told to end. The communicator is then good for its end alone.
 *
 * On a card with streams (see zr_comm_options.beside) the caller's stream waits in place of the host, and
 * what fails under way is found by whoever waits for the card: zr_comm_guard() is for it. A host message
 * waits for what this rank has handed in.
 *
 * A communicator belongs to the process that made it: its thread is not in a child after fork(), which may
 * not call it, nor end it. */
#ifndef ZR_COMM_H
#define ZR_COMM_H

#include "alloc/zr.h"
#include "kernels/zr_kernels.h"
#include "zero/launch/zr_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zr_comm zr_comm;
typedef uint64_t zr_ticket; /* 0 is always complete, and waiting for it tells of no failure */

/* How long a peer may be silent while this rank waits for it, unless the options say otherwise. A peer on
 * this machine that has died is noticed within a second, whatever this is. */
#define ZR_COMM_TIMEOUT_NS 600000000000ull

/* What the elements of an operation are. Those of two bytes are added in fp32, and the sum is rounded once.
 */
enum zr_comm_type { ZR_COMM_FP32 = 0, ZR_COMM_BF16, ZR_COMM_FP16, ZR_COMM_TYPE_COUNT };
ZR_API size_t zr_comm_type_bytes(enum zr_comm_type type);

enum zr_comm_kind {
    ZR_COMM_REDUCE_SCATTER = 1,
    ZR_COMM_ALL_GATHER,
    ZR_COMM_ALL_REDUCE,
    ZR_COMM_HOST, /* host all-gathers, and barriers */
    ZR_COMM_BROADCAST,
    ZR_COMM_SEND,
    ZR_COMM_RECEIVE,
    ZR_COMM_SEND_RECEIVE,
    ZR_COMM_KIND_COUNT
};
/* "reduce-scatter" for ZR_COMM_REDUCE_SCATTER; never NULL. */
ZR_API const char *zr_comm_kind_name(enum zr_comm_kind kind);

/* What one kind of operation has come to. */
struct zr_comm_volume {
    uint64_t calls_count;
    uint64_t sent_bytes; /* to other ranks, by the volume of the operation */
    /* From other ranks, counted where they are copied, added up or arrive; over all ranks as many as are
     * sent. 0 where a library below moves them (nccl), and in a plan. */
    uint64_t received_bytes;
};

struct zr_comm_counters {
    uint64_t sent_elements;  /* to other ranks: S (N - 1) / N per phase; no host messages */
    uint64_t received_bytes; /* from other ranks, as in by_kind; no host messages */
    uint64_t operations_count;
    /* Of operations with a ticket alone; host messages count in neither. What part of the time is
     * hidden behind the caller's own work: 1 - exposed / busy. */
    uint64_t busy_ns;    /* the communicator's thread, working or waiting for peers inside operations */
    uint64_t exposed_ns; /* the submitting thread, waiting for tickets: in zr_comm_wait(), and for room in
                          * the queue */
    struct zr_comm_volume by_kind[ZR_COMM_KIND_COUNT]; /* host messages too */
};

ZR_API unsigned zr_comm_rank(const zr_comm *comm);
ZR_API unsigned zr_comm_world(const zr_comm *comm);
/* "local", "mpi", "nccl", "null" */
ZR_API const char *zr_comm_name(const zr_comm *comm);
ZR_API void zr_comm_counters_get(zr_comm *comm, struct zr_comm_counters *out);
/* Bytes of ring that a communicator with these numbers takes from its arena: 0 for one rank. */
ZR_API size_t zr_comm_ring_bytes(unsigned world, size_t bucket_bytes);

/* ---- Sums ---------------------------------------------------------------------------------------------- */

/* The label of an operation that a timeline shows as a wait alone. */
#define ZR_COMM_LABEL_NONE UINT32_MAX

/* destination[shard] (+)= scale * sum over ranks p, in order, of p's source[my rank * shard ...].
 * source holds world * shard_elements. destination may be source + rank * shard_elements. With `wide` and
 * elements of two bytes the destination is fp32, and nothing is rounded but the additions. */
struct zr_reduce_scatter {
    const void *source;
    void *destination;
    size_t shard_elements;
    float scale;
    bool accumulate;
    enum zr_comm_type type;
    bool wide;      /* not in place then: refused */
    unsigned label; /* the caller's own, for whoever watches a null communicator's clock; here and below */
    /* That the operation writes to host memory, or reads there: for the clock, too. */
    size_t host_bytes;
};
ZR_API zr_result zr_comm_reduce_scatter(zr_comm *comm, const struct zr_reduce_scatter *operation,
                                        zr_ticket *ticket);

/* Reduce-scatter and all-gather one after the other, piece by piece: buffer[world * shard_elements] becomes
 * scale * the sums. With `base` (world * shard_elements or NULL), base is added on each element: base + scale
 * * sum. */
struct zr_all_reduce {
    void *buffer;
    const void *base;
    size_t shard_elements;
    float scale;
    enum zr_comm_type type;
    unsigned label;
};
ZR_API zr_result zr_comm_all_reduce(zr_comm *comm, const struct zr_all_reduce *operation, zr_ticket *ticket);

/* ---- Data ---------------------------------------------------------------------------------------------- */

/* What has to be done before an operation starts here, as when its source is still on its way: `run` is
 * called once, in the thread that carries the operation out, and its failure is the operation's. By the clock
 * of a null communicator, which need not call it, the operation starts at ready_seconds at the earliest. */
struct zr_comm_before {
    zr_result (*run)(void *state);
    void *state;
    double ready_seconds;
};

/* destination[p * shard_bytes ...] = p's source, for all ranks p. source may be destination + rank * shard.
 * `type` is for the counting of elements alone, here and below. */
struct zr_all_gather {
    const void *source;
    void *destination;
    size_t shard_bytes;
    enum zr_comm_type type;
    /* The source is neither written to nor freed before an operation of all that was handed in later has
     * ended here, or zr_comm_synchronize(): the gather then ends without waiting for peers that still read
     * it. Of all-gathers alone. */
    bool source_stays;
    unsigned label;
    size_t host_bytes; /* as of struct zr_reduce_scatter */
    /* NULL: nothing. The caller's until the ticket has been waited for. Of all-gathers alone. */
    const struct zr_comm_before *before;
};
ZR_API zr_result zr_comm_all_gather(zr_comm *comm, const struct zr_all_gather *operation, zr_ticket *ticket);

/* buffer[bytes] of rank `root` comes to all ranks. */
struct zr_broadcast {
    void *buffer;
    size_t bytes;
    unsigned root;
    enum zr_comm_type type;
};
ZR_API zr_result zr_comm_broadcast(zr_comm *comm, const struct zr_broadcast *operation, zr_ticket *ticket);

/* `bytes` of one rank to another. A send may last until its receive has begun: two ranks that both send to
 * one another use zr_comm_send_receive(), which does both at once. Sizes must be equal on both sides. */
struct zr_transfer {
    const void *send; /* send_bytes to rank `to` */
    size_t send_bytes;
    unsigned to;
    unsigned from; /* receive_bytes from rank `from` */
    void *receive;
    size_t receive_bytes;
    enum zr_comm_type type;
};
ZR_API zr_result zr_comm_send(zr_comm *comm, const struct zr_transfer *operation, zr_ticket *ticket);
ZR_API zr_result zr_comm_receive(zr_comm *comm, const struct zr_transfer *operation, zr_ticket *ticket);
ZR_API zr_result zr_comm_send_receive(zr_comm *comm, const struct zr_transfer *operation, zr_ticket *ticket);

/* ---- Waiting ------------------------------------------------------------------------------------------- */

/* Waits until the operation has ended on this rank: its destination is complete and its source free again. */
ZR_API zr_result zr_comm_wait(zr_comm *comm, zr_ticket ticket);
/* Waits until all that was handed in has ended, and no peer reads a source that stays. Peers need not call
 * it.
 */
ZR_API zr_result zr_comm_synchronize(zr_comm *comm);
/* Has whoever waits for the card in a context of this rank's (zr_kernel_context.while_waiting) look whether
 * the peers live, which the work may wait for. The communicator outlives the context. */
ZR_API void zr_comm_guard(zr_comm *comm, struct zr_kernel_context *context);
/* This rank cannot go on, with words for the others: whoever waits, here and on all ranks of the run, gets
 * ZR_ERR_PEER; what was handed in ends likewise. For a rank that fails alone while others count on it. */
ZR_API void zr_comm_abandon(zr_comm *comm, const char *why);

/* Blocking collectives in the host's memory, for small things: losses, norms, signals. They have an order of
 * their own, wait for no operation, and say nothing of one: who has to know that peers have read a source
 * calls zr_comm_synchronize() as well. all: [world][bytes], in rank order. Failures as of zr_comm_wait(). */
ZR_API zr_result zr_comm_host_all_gather(zr_comm *comm, const void *mine, size_t bytes, void *all);
ZR_API zr_result zr_comm_barrier(zr_comm *comm);

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* A communicator of some of a parent's ranks: ranks[p], by their numbers in the parent, is its rank p. It has
 * its own queue, thread, ring, counters and order of operations, the parent's options with a slot of
 * `bucket_bytes` (0: the parent's), and ends on its own, at any time before its arenas. Collective over the
 * ranks named, which all give the same list; ranks that are in two groups make these in the same order. Of
 * one rank it is the null communicator of a world of one. A rank of a local run has room for 24
 * communicators. Over NCCL, where the host sees the memory, groups share the parent's stream: ranks that are
 * in two of them hand in operations in one order. ZR_ERR_INVALID: a rank that is none or is named twice, or
 * this one is not among them. ZR_ERR_PEER: another rank could not make its part. A dead rank of the run ends
 * the waits in all groups, with its name. */
ZR_API zr_result zr_comm_group(zr_comm **out, zr_comm *parent, const unsigned *ranks, unsigned count,
                               size_t bucket_bytes);
/* The same, collective over all ranks of the parent: each is in one of the groups, which are of one size.
 * NCCL makes them out of the parent then. */
ZR_API zr_result zr_comm_split(zr_comm **out, zr_comm *parent, const unsigned *ranks, unsigned count,
                               size_t bucket_bytes);

/* Ends a communicator after what was handed in, and before its arenas; waits until no peer reads this rank's
 * buffers. Every rank does it. NULL does nothing. */
ZR_API zr_result zr_comm_destroy(zr_comm *comm);

/* How data travels; the bits are the same. Over a network, that of gathers and broadcasts: from each to each,
 * all at once, or from neighbour to neighbour. On one machine, all of it: read out of the peers' memory,
 * where that is in granules that can be mapped, or through the ring. */
enum zr_comm_algorithm {
    ZR_COMM_AUTO = 0, /* by size and number of ranks, alike on all of them */
    ZR_COMM_DIRECT,
    ZR_COMM_RING
};

/* A slot has room for as much of each other rank at least. */
enum { ZR_COMM_LINE_BYTES = 64 };

struct zr_comm_options {
    size_t struct_bytes;  /* its sizeof, or 0: see "Options" in alloc/zr.h */
    zr_arena *arena;      /* the ring comes from here, tag comm */
    zr_arena *host_arena; /* records and the thread's stack, tag other */
    const struct zr_kernels *kernels;
    /* One slot of the ring, which has two; rounded up to lines, and to one of them for each other rank. */
    size_t bucket_bytes;
    uint64_t timeout_ns; /* of which the waiting rank could run; 0: ZR_COMM_TIMEOUT_NS */
    enum zr_comm_algorithm algorithm;
    /* Of a card's kernels; the caller's, and outlive the communicator. An operation begins after what
     * `stream` has been given before it, runs in `beside`, and zr_comm_wait() lets `stream` wait for it: the
     * host waits for nothing but room in the driver's queues. `beside` NULL: all runs in `stream`, and the
     * host waits for each piece. Groups share both. */
    void *stream, *beside;
};

/* A communicator of `world` ranks with no peers behind it: counts what would be sent, moves nothing. For
 * plans; with world == 1 it is also the real one of a single rank. */
ZR_API zr_result zr_comm_null_create(zr_comm **out, const struct zr_comm_options *options, unsigned rank,
                                     unsigned world);

/* ---- NCCL: one process per GPU ------------------------------------------------------------------------- */

struct zr_nccl_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    const struct zr_comm_options
        *comm;                    /* arena: of the GPU's memory; the ring there is registered with NCCL */
    struct zr_local_world *local; /* of a rank that has one: its launcher knows who has died. NULL: none */
    /* cudaStream_t of the caller's work. Operations have a stream of their own, in which they come behind
     * what the caller's was given before; zr_comm_wait() and zr_comm_synchronize() do not wait on the host,
     * but have the caller's stream go on behind them. Where the host sees the memory they are in this one,
     * and waited for. */
    void *stream;
    bool deterministic; /* sums in rank order; else NCCL's own, but for those with a base, and wide ones */
};

/* A communicator whose data goes by NCCL (libnccl.so.2, loaded here) and whose host messages go by `talk`,
 * which has the same ranks. The GPU's context is current in the calling thread. On success `talk` belongs to
 * it. Collective. ZR_ERR_UNAVAILABLE: no NCCL, too old a one, or it refuses (two ranks on one GPU, for
 * instance).
 */
ZR_API zr_result zr_comm_nccl_create(zr_comm **out, const struct zr_nccl_options *options, zr_comm *talk);

/* ---- Local: ranks forked on one machine, granules shared ----------------------------------------------- */

/* The communicator of a rank: shares its ring with its peers. Collective. One at a time, beside its groups.
 */
ZR_API zr_result zr_comm_local_create(zr_comm **out, const struct zr_comm_options *options,
                                      struct zr_local_world *local, unsigned rank);

/* What the signals asked for, agreed on by all ranks: call it at the same point of every step on every rank
 * (it is a collective: the same answer everywhere). */
ZR_API zr_result zr_local_request(zr_comm *comm, enum zr_request_kind *out);

/* ---- Ranks however they were started ------------------------------------------------------------------- */

/* How data travels between ranks: through memory that those of one machine share, or by MPI, whose ranks may
 * be on any machines. */
enum zr_comm_carrier { ZR_CARRIER_LOCAL = 0, ZR_CARRIER_MPI };

/* As zr_local_launch(), for a program that others may start as well. Where the environment says that this
 * process is one rank of a run (mpirun: OMPI_COMM_WORLD_RANK and _SIZE or PMI_RANK and PMI_SIZE; torchrun and
 * its like: RANK, WORLD_SIZE and MASTER_PORT; srun: SLURM_PROCID and SLURM_NTASKS), it is that rank, and
 * options->join_timeout_ns is how long it waits for the others. Else it forks them, or, with MPI, starts
 * `mpirun -n world argv[0] ...` (`argv`: main()'s; not looked at otherwise). options->world 0: as many ranks
 * as were started; one, where nobody has. MPI wants libzr_comm_mpi.so beside the program or beside
 * libzr_zero.so, or in ../lib or ../bin of either. 2 as well: the environment contradicts itself, or
 * options->world. */
ZR_API int zr_launch(const struct zr_launch_options *options, enum zr_comm_carrier carrier, char **argv);

/* The communicator of a rank over what it was launched with. Collective. One at a time, beside its groups. */
ZR_API zr_result zr_comm_create(zr_comm **out, const struct zr_comm_options *options,
                                struct zr_local_world *local, unsigned rank);

#ifdef __cplusplus
}
#endif

#endif
