/* zr_ps.h: parameter servers: processes that hold tables of parameters and their optimizer state. Workers
 * push gradients and pull parameters; a timing decides when a push is applied and when a pull is answered.
 *
 * Tables. Servers and workers have the same struct zr_ps_options, and so the same list of tables. A dense
 * table is one tensor. Every server has one range of it (zr_ps_range()) with the optimizer state, and updates
 * it with the kernels and arguments of the engine (zero/engine). A sparse table has rows by 64-bit id
 * (zero/table/zr_table.h); each id belongs to one server.
 *
 * Steps. A worker's step is: pulls, then pushes, then zr_ps_end_step(). The number of steps that a worker has
 * ended is its clock. A push has the whole of a dense table. With sync and ssp a worker pushes a table at
 * most once in a step. A dense table may have more pushes in a step (zr_ps_table.pushes): then every worker
 * makes all of them in every step, and all workers push these tables in the same order.
 *
 *   sync        Gradients of a step are added in the order of workers, divided by the number of workers that
 *               pushed, and applied in one update, with the bits of stage 0 of the engine. A pull in step c
 *               has the updates of all steps before c, and no other.
 *   async       A push is applied when it arrives; a pull is answered when it arrives.
 *   half-async  A push is applied when it arrives. A pull in step c has all pushes of the steps before c, and
 *               none of step c: the first push of a step waits until all workers have ended their pulls.
 *   geo         Workers train by themselves for `parameter` steps, then push differences of parameters
 *               (zr_ps_difference()), which the server adds; see "Geo" below. Otherwise as async.
 *   ssp         As sync, but a worker runs up to `parameter` steps ahead of the slowest: a pull in step c has
 *               all updates of steps up to c - parameter - 1. With parameter 0 it has the bits of sync.
 *
 * Exactly once. A request has a sequence number. A call that loses its connection connects again and repeats
 * the request, and a server that has applied it answers without applying it again. With kept memory this
 * holds for a successor of a server that was killed, and with a replica for the replica.
 *
 * A call that ends with ZR_ERR_TIMEOUT may have been applied, or not, or on some servers. The program repeats
 * it or ends. A push that repeats the one before, with the same numbers in the same step, has the same
 * sequence numbers and is applied once; other pushes and zr_ps_fill() between the two make it a new one. All
 * other calls may be repeated as well.
 *
 * Threads and fork. One thread at a time uses a server or a worker. Both belong to the process that created
 * them. A server blocks in zr_ps_server_run(); a worker's calls block until the servers have answered.
 *
 * Errors. ZR_ERR_INVALID: an invalid argument; nothing is sent. ZR_ERR_TIMEOUT: a server did not answer
 * within the limit. ZR_ERR_PEER: a server refused the request, or has other options; after it a worker can
 * only be destroyed. Memory comes from the arenas of the options. */
#ifndef ZR_PS_H
#define ZR_PS_H

#include "alloc/zr.h"
#include "kernels/zr_kernels.h"
#include "zero/zr_zero.h"

#ifdef __cplusplus
extern "C" {
#endif

struct zr_table_options; /* zero/table/zr_table.h */

enum {
    ZR_PS_WORKERS_MAX = 256,
    ZR_PS_SERVERS_MAX = 64,
    ZR_PS_TABLES_MAX = 4096,
    ZR_PS_SSP_MAX = 64, /* steps ahead */
    ZR_PS_SECRET_BYTES = 32
};

enum zr_ps_timing_kind {
    ZR_PS_SYNC = 0,
    ZR_PS_ASYNC,
    ZR_PS_HALF_ASYNC,
    ZR_PS_GEO,
    ZR_PS_SSP,
    ZR_PS_TIMINGS_COUNT
};
struct zr_ps_timing {
    enum zr_ps_timing_kind kind;
    /* geo: steps between exchanges, at least 1; ssp: steps ahead, at most ZR_PS_SSP_MAX. */
    unsigned parameter;
};
/* What an update does with the staleness of a push: tau = updates of the table between the worker's pull and
 * the push. Only with async and half-async; other timings require ZR_PS_STALE_NONE. */
enum zr_ps_staleness_kind {
    ZR_PS_STALE_NONE = 0,
    ZR_PS_STALE_DIVIDE,    /* the rate is divided by tau, if tau is above 1 */
    ZR_PS_STALE_COMPENSATE /* the gradient g becomes g + lambda g g (w_now - w_pulled), Zheng et al. 2016
                            * (https://arxiv.org/abs/1609.08326). The server keeps w_pulled of each worker: 4
                            * bytes per element and worker. No sparse tables */
};
struct zr_ps_staleness {
    enum zr_ps_staleness_kind kind;
    float lambda; /* at least 0 */
};
#define ZR_PS_TIMING_NAMES    "sync|async|half-async|geo:K|ssp:S"
#define ZR_PS_STALENESS_NAMES "none|divide|dc:LAMBDA"
/* Reads a name of the list. ZR_ERR_INVALID: it is none, or its number is out of range. */
ZR_API zr_result zr_ps_timing_read(struct zr_ps_timing *out, const char *text);
ZR_API zr_result zr_ps_staleness_read(struct zr_ps_staleness *out, const char *text);

struct zr_ps_table {
    char name[64];   /* unique */
    size_t elements; /* of a dense table, at least 1; 0: a sparse table */
    /* Of the gradients that are pushed and the parameters that are pulled. Sums and updates are fp32; a sum
     * of two-byte gradients is rounded once, unless `pushes` is above 1. Sparse tables and geo: fp32. */
    enum zr_precision precision;
    /* Of a dense table by a worker in a step, such as micro-batches; 0: 1. With sync and ssp, push j of all
     * workers is added before push j + 1, and one update follows the last. Not used by other timings. */
    unsigned pushes;
    float rate_factor, decay_factor; /* multiply rate and weight decay; see struct zr_parameter_group */
    /* Parameters are zeros; true: pulls and pushes wait until zr_ps_fill() has written the table. */
    bool filled;
    /* Of a sparse table: its width, optimizer and initial values; limits are of each server. Borrowed until
     * create returns. A server sets arena and memory, appends its number to the name of the file, and takes
     * no permits. Geo requires ZR_TABLE_SGD. NULL: a dense table. */
    const struct zr_table_options *rows;
};

/* The same for all servers and workers of a run. */
struct zr_ps_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    unsigned workers, servers;
    struct zr_ps_timing timing;
    struct zr_ps_staleness staleness;
    struct zr_optimizer_options optimizer; /* of dense tables: AdamW or SGD; `clip` must be 0 and groups are
                                            * not used. Geo: not used */
    const struct zr_ps_table *tables;      /* [tables_count]; copied */
    unsigned tables_count;
    /* A killed worker may have a successor (zr_ps_worker_create()), which repeats the worker's step: a push
     * that servers have is acknowledged and not applied again, with any timing, so a worker pushes a table at
     * most `pushes` times in a step (once but with sync and ssp). With sync and ssp an update also waits
     * until all workers have ended the step, so that a successor's pulls have what those of the worker had.
     */
    bool successors;
    size_t message_bytes; /* max of a request to one server; a batch that exceeds it is sent in several,
                           * each of which is applied as a whole. 0: enough for the largest table, and
                           * at least 1 MiB. A server has a buffer of this size for each worker */
    const unsigned char *secret; /* [ZR_PS_SECRET_BYTES], which both sides of a TCP connection prove; NULL:
                                  * Unix sockets only. Copied */
};

/* The elements of a dense table that a server has: contiguous, with borders at multiples of 256 elements. */
struct zr_ps_part {
    size_t first, count; /* count 0: none */
};
ZR_API zr_result zr_ps_range(const struct zr_ps_options *options, unsigned table, unsigned server,
                             struct zr_ps_part *out);

/* ---- Server -------------------------------------------------------------------------------------------- */

typedef struct zr_ps_server zr_ps_server;

/* Creates a listening socket; the caller owns *out. `address`: "unix:PATH" (PATH is replaced if it is a
 * socket) or HOST:PORT (a port of 0: any). `actual`, if not NULL, gets the address with its port. A process
 * that keeps the socket open lets a successor of a server accept connections at the same address.
 * ZR_ERR_INVALID: no address. ZR_ERR_UNAVAILABLE: the system refuses. */
enum { ZR_PS_ADDRESS_BYTES = 300 };
ZR_API zr_result zr_ps_listen(int *out, const char *address, char actual[ZR_PS_ADDRESS_BYTES]);

/* What a primary does about a replica that has not answered for after_ns (0: 60 s): it continues without it.
 * The replica lacks what the primary acknowledges from then on: `end`, unless NULL, is called before, by the
 * thread of the server, and ends the process of the replica. */
struct zr_ps_silent {
    uint64_t after_ns;
    void (*end)(void *state);
    void *state;
};

struct zr_ps_server_options {
    size_t struct_bytes;              /* its sizeof, or 0 */
    struct zr_ps_options common;      /* arrays are copied */
    unsigned server;                  /* number of this server */
    int listener;                     /* of zr_ps_listen(); borrowed */
    zr_arena *arena;                  /* host memory for everything that is not kept; borrowed */
    const struct zr_kernels *kernels; /* borrowed, like the context; the host reads and writes their memory */
    struct zr_kernel_context *context; /* open */
    /* Memory that outlives the process, see zr_zero.h: a server that is created on the memory of a killed one
     * ends the request that was being applied and continues. NULL: the arena. Borrowed. */
    const struct zr_kept_memory *kept;
    /* Makes this server a replica of the server with the same options and number at this address, which
     * listens. NULL: a primary. See "Replicas" below. */
    const char *primary;
    bool
        replicated; /* of a primary: requests that change tables wait for its first replica, up to after_ns */
    struct zr_ps_silent silent;
};

/* Replicas. zr_ps_server_create() of a replica returns once it has the state of its primary. Meanwhile the
 * primary handles no request: they wait in their connections, and zr_ps_state.paused_ns counts the time. From
 * then on the primary acknowledges a request after the replica has applied it. A primary that loses its
 * replica continues without it and accepts another one at any time. A replica takes requests of its primary
 * until a client connects that cannot connect to the primary; from then on it is a primary itself, also for
 * a replica of its own, and the former one ends with ZR_ERR_PEER before it acknowledges another change.
 *
 * ZR_ERR_INVALID: options out of range or of another optimizer. ZR_ERR_FORMAT: the kept memory is of other
 * options. ZR_ERR_MEMORY, ZR_ERR_TAG_LIMIT: the arena is too small. Of a replica also ZR_ERR_UNAVAILABLE: no
 * server listens at the address, or it ended before its state was here; ZR_ERR_TIMEOUT: the server does not
 * answer, or has another replica; ZR_ERR_PEER: it has other options. */
ZR_API zr_result zr_ps_server_create(zr_ps_server **out, const struct zr_ps_server_options *options);
ZR_API void zr_ps_server_destroy(zr_ps_server *server);
/* Serves until all workers have left (zr_ps_leave()) and their connections are closed, or until
 * zr_ps_server_stop(). A connection that breaks the protocol is closed, and others continue. ZR_ERR_PEER: a
 * replica has taken over from this server. */
ZR_API zr_result zr_ps_server_run(zr_ps_server *server);
/* Serves what has arrived and waits up to timeout_ms for more; *ended: all workers have left. For a caller
 * with a loop of its own. */
ZR_API zr_result zr_ps_server_serve(zr_ps_server *server, int timeout_ms, bool *ended);
/* Ends zr_ps_server_run() after the request that is being applied. Any thread, and async-signal-safe; not
 * while the server is destroyed. */
ZR_API void zr_ps_server_stop(zr_ps_server *server);

/* Bytes that a server allocates, as planned from the options, without those of sparse tables
 * (zr_table_plan()). `arena` has the records of the call. */
struct zr_ps_bytes {
    size_t master, optimizer; /* parameters in fp32, and their state */
    size_t gradients;         /* pushes that wait for others */
    size_t messages;          /* buffers of workers, and their pulled parameters for ZR_PS_STALE_COMPENSATE */
    size_t log, records;
};
ZR_API zr_result zr_ps_server_plan(const struct zr_ps_options *options, unsigned server, zr_arena *arena,
                                   struct zr_ps_bytes *out);

/* ---- Worker -------------------------------------------------------------------------------------------- */

typedef struct zr_ps_worker zr_ps_worker;

#define ZR_PS_OBSERVER                                                                                       \
    UINT32_MAX /* number of a client that is no worker: it reads, fills and reports lost                     \
                * workers */

struct zr_ps_worker_options {
    size_t struct_bytes;          /* its sizeof, or 0 */
    struct zr_ps_options common;  /* arrays are copied */
    unsigned worker;              /* number of this worker, or ZR_PS_OBSERVER */
    const char *const *addresses; /* [servers]; copied */
    const char *const *replicas;  /* [servers], their replicas; NULL: none */
    zr_arena *arena;              /* host memory; borrowed */
    uint64_t timeout_ns;          /* of a call, reconnections included; 0: 60 s. A call that the timing or a
                                   * replica holds back waits, as long as the server says every second that it lives */
    bool leaves; /* for zr_ps_leave() of a worker that may have left: a server at whose addresses no server
                  * listens has ended, and is not asked */
};

/* Connects to all servers. A worker that replaces a killed one of the same number continues with its clock
 * (zr_ps_worker_clock()); it repeats the pushes of its step, and servers ignore those that they have with
 * sync and ssp, or with zr_ps_options.successors. A call ends with ZR_ERR_PEER if the server is lost and its
 * replica lacks a change that the server acknowledged to this worker. */
ZR_API zr_result zr_ps_worker_create(zr_ps_worker **out, const struct zr_ps_worker_options *options);
/* Closes the connections. The servers still expect the worker, or a successor; see zr_ps_leave(). */
ZR_API void zr_ps_worker_destroy(zr_ps_worker *worker);

enum zr_ps_content {
    ZR_PS_PARAMETERS = 0, /* dense: in the table's precision */
    ZR_PS_MASTER,         /* dense: parameters in fp32 */
    ZR_PS_SLOT /* dense: ZR_PS_SLOT + s: slot s of the optimizer's state, in fp32: AdamW has momentum
                * and variance, SGD momentum */
};

/* Numbers of a table, as an item of a batch. */
struct zr_ps_item {
    unsigned table;
    size_t first, count; /* dense: elements of the table. A push has all of them; count 0: all */
    const uint64_t *ids; /* sparse: [ids_count], in any order, with repetitions; NULL: dense */
    size_t ids_count;
    void *values; /* dense: [count]; sparse: float [ids_count][width]. A push and a fill only read it */
};
struct zr_ps_batch {
    const struct zr_ps_item *items;
    unsigned items_count;
};

/* Writes dense tables once, in parts of any size: with ZR_PS_PARAMETERS (fp32, whatever the table's
 * precision) or ZR_PS_MASTER the parameters, else a slot. `done`: the last call for the tables of the batch:
 * pulls of these are answered from then on, and their next update is number updates + 1. Fills of a table
 * that has been written are ignored, so that all workers may call it with the same values. */
struct zr_ps_filling {
    struct zr_ps_batch batch;
    unsigned content; /* enum zr_ps_content */
    bool done;
    uint64_t updates; /* that the state has had; for the optimizer's corrections */
};
ZR_API zr_result zr_ps_fill(zr_ps_worker *worker, const struct zr_ps_filling *filling);

/* Reads ranges and rows: one round trip to each server if they fit into message_bytes. Waits as the timing
 * says. Rows that do not exist yet are made. An observer does not wait for a timing. */
ZR_API zr_result zr_ps_pull(zr_ps_worker *worker, const struct zr_ps_batch *batch);
/* The same of other contents than the parameters, of dense tables, for saves. Does not wait for a timing and
 * is no pull of the worker's step. */
ZR_API zr_result zr_ps_read(zr_ps_worker *worker, unsigned content, const struct zr_ps_batch *batch);

struct zr_ps_push {
    struct zr_ps_batch batch;
    float rate; /* of this step; of worker 0 with sync and ssp, or of the lowest worker that pushed */
    float gradient_scale; /* multiplies gradients; 0: 1 */
};
/* Pushes gradients, or with geo differences. ZR_ERR_INVALID also: the table has had all its pushes of the
 * step, or a range is not the whole table. ZR_ERR_PEER also: with sync and ssp, the rows of all sparse tables
 * that the worker pushes to a server in a step exceed message_bytes. */
ZR_API zr_result zr_ps_push(zr_ps_worker *worker, const struct zr_ps_push *push);
/* Ends the worker's step on all servers. Does not wait for other workers. */
ZR_API zr_result zr_ps_end_step(zr_ps_worker *worker);
/* Steps that this worker and its predecessors have ended on all servers. */
ZR_API uint64_t zr_ps_worker_clock(const zr_ps_worker *worker);
/* The run continues without a worker: itself, or (an observer) one that died for good. Steps that it has not
 * ended count for the others without it. The worker can only be destroyed. */
ZR_API zr_result zr_ps_leave(zr_ps_worker *worker, unsigned number);

/* ---- Geo ----------------------------------------------------------------------------------------------- */

/* A worker keeps `old`, the parameters that it has received and pushed. Every K steps: difference = (own -
 * old) / workers, old += difference; push; pull `server`; own += server - old, old = server. fp32 [n] each;
 * the arrays do not overlap. */
struct zr_ps_exchange {
    size_t n;
    unsigned workers;
    float *own, *old;
};
ZR_API void zr_ps_difference(const struct zr_ps_exchange *exchange, float *difference);
ZR_API void zr_ps_receive(const struct zr_ps_exchange *exchange, const float *server);

/* ---- Statistics ---------------------------------------------------------------------------------------- */

enum { ZR_PS_STALE_BINS = 16 };
struct zr_ps_counters {
    uint64_t requests; /* a round trip each */
    uint64_t retries;  /* requests that were sent again after a lost connection */
    uint64_t sent_bytes, received_bytes;
    uint64_t waited_ns; /* in calls */
};
ZR_API void zr_ps_worker_counters(const zr_ps_worker *worker, struct zr_ps_counters *out);

/* Of a server, or summed over all (zr_ps_report()). */
struct zr_ps_state {
    uint64_t pushes, pulls; /* requests that were applied and answered */
    uint64_t repeated;      /* requests that were answered without being applied again */
    uint64_t held;          /* requests that waited for other workers */
    uint64_t updates;       /* of tables; geo: additions */
    uint64_t received_bytes, sent_bytes;
    uint64_t clock_min, clock_max;        /* of workers that have not left */
    uint64_t staleness[ZR_PS_STALE_BINS]; /* pushes of a table by tau, the last bin has all larger ones; with
                                           * sync and ssp tau is the step of the push minus the updates that
                                           * its pull had */
    uint64_t replicas;                    /* servers whose replica has their state */
    uint64_t lost_replicas;               /* so far */
    uint64_t joined_replicas, joined_bytes; /* bytes: of the last state that was sent */
    uint64_t paused_ns;                     /* while states were sent to replicas */
};
ZR_API zr_result zr_ps_report(zr_ps_worker *worker, struct zr_ps_state *out);
/* Of this server, by its thread. A replica has continued the counts of its primary. */
ZR_API void zr_ps_server_get_state(const zr_ps_server *server, struct zr_ps_state *out);
/* Version of a dense table: its updates, the minimum over servers. */
ZR_API zr_result zr_ps_version(zr_ps_worker *worker, unsigned table, uint64_t *out);

#ifdef __cplusplus
}
#endif

#endif
