/* servers.h: --comm ps: the parameter servers of a run and its workers.
 *
 * Before the ranks exist, zr-train opens the servers' sockets and forks a keeper, which forks the servers,
 * holds their kept memory, or with --replicas 1 starts two copies, and replaces servers that a signal kills.
 * A rank is a worker: its engine pushes gradients and pulls parameters (struct zr_servers), and a table is a
 * tensor of the model. Worker 0 writes initial and loaded values and reads what is saved. */
#ifndef ZR_TRAIN_SERVERS_H
#define ZR_TRAIN_SERVERS_H

#include "zero/ps/zr_ps.h"
#include "zero/train/rank/rank.h"

/* ---- Tables (tables.c) --------------------------------------------------------------------------------- */

struct zr_served_tables {
    struct zr_ps_options options;
    struct zr_ps_table *tables;    /* [options.tables_count] */
    unsigned *numbers;             /* [parameters_count]: the table of a tensor; UINT32_MAX: it is frozen */
    size_t parameters_count, most; /* most: tensors of a unit */
};
/* Makes the tables of the model that rank 0 trains. End it also after a failure. */
zr_result zr_served_tables_make(struct zr_served_tables *out, const struct zr_train_config *config,
                                zr_arena *host_arena);
void zr_served_tables_end(struct zr_served_tables *tables, zr_arena *host_arena);

/* ---- Servers (keeper.c, server.c) ---------------------------------------------------------------------- */

/* The board's entry of a server: its plan, and what it has when the run ends; zeros: it does not say. */
struct zr_server_entry {
    int process;
    struct zr_ps_bytes planned;
    size_t measured_by_tag_bytes[ZR_TAG_COUNT];
    bool has_state; /* of its tables: a replica has received it */
};

/* What main() opens before the ranks exist. */
struct zr_served_run {
    unsigned count; /* servers, replicas included: replica s is number servers + s */
    int listeners[2 * ZR_PS_SERVERS_MAX];
    char addresses[2 * ZR_PS_SERVERS_MAX][ZR_PS_ADDRESS_BYTES];
    struct zr_file board; /* [count] of struct zr_server_entry, then messages of workers; see messages.h */
    struct zr_file posts; /* with --max-restarts: messages of workers; see zero/comm/posted.h */
    int keeper;           /* process */
};

/* Opens sockets and board and forks the keeper; config->served is set. Call it with a single thread. */
zr_result zr_served_start(struct zr_served_run *out, struct zr_train_config *config);
/* Waits for the servers, which end when all workers have left, or with `kills` ends them. */
void zr_served_stop(struct zr_served_run *run, bool kills);
/* The program of a server process. Returns its exit code. */
enum zr_server_role {
    ZR_SERVER_FIRST,   /* starts empty, or with the kept memory of a killed one */
    ZR_SERVER_COPIES,  /* a replica from the begin on */
    ZR_SERVER_SUCCEEDS /* a replica in place of a killed server */
};
int zr_server_main(const struct zr_train_config *config, unsigned number, enum zr_server_role role);
/* With --replicas 1: the number of a server's other copy. */
static inline unsigned zr_served_copy(const struct zr_train_config *config, unsigned number)
{
    return (number + config->servers) % (2 * config->servers);
}
/* Where the messages of workers begin in the board. */
static inline uint64_t zr_served_messages_at(const struct zr_served_run *run)
{
    return run->count * sizeof(struct zr_server_entry);
}

/* ---- Workers (worker.c) -------------------------------------------------------------------------------- */

struct zr_served_worker;

/* Connects rank->rank as a worker; *out has the calls of its engine. No effect without --comm ps. */
zr_result zr_served_open(struct zr_rank *rank, struct zr_servers *out);
/* Between the engine's creation, or a load, and the first step: worker 0 completes the tables, and pulls of
 * all workers are answered from then on. `done`: updates that the state has had. */
zr_result zr_served_begin(struct zr_rank *rank, uint64_t done);
/* Steps, or with --ps geo:K exchanges, that the servers have of this worker and its predecessors. */
uint64_t zr_served_worker_clock(const struct zr_rank *rank);
/* The process of a worker that is not replaced any more, or had ended its run: the servers and the other
 * workers do not wait for it. Returns its exit code. */
int zr_served_lose(const struct zr_train_config *config, struct zr_local_world *local, unsigned rank);
/* Sets the rate of the pushes of the next step. */
void zr_served_set_rate(struct zr_rank *rank, float rate);
/* Sleeps as --worker-sleep says, as if the worker computed for longer. */
void zr_served_sleep(const struct zr_rank *rank);
/* With --ps geo:K pushes differences after K steps of a worker, and pulls. Else no effect. */
zr_result zr_served_after_step(struct zr_rank *rank, uint64_t step);
/* Collective, between steps: waits until all workers have ended the step, so that the servers have its
 * updates. With --ps geo:K the parameters of all workers are then those of the servers, with all differences.
 */
zr_result zr_served_settle(struct zr_rank *rank);
/* Saves the servers' state of step `step`: worker 0 reads and writes it. Collective, with the same result on
 * every worker; between steps of all workers. */
struct zr_checkpoint;
zr_result zr_served_save(struct zr_rank *rank, const struct zr_checkpoint *checkpoint, uint64_t step);
/* Leaves the run, so that servers end. After the last save. */
zr_result zr_served_leave(struct zr_rank *rank);
void zr_served_close(struct zr_rank *rank);

/* Numbers of a run for its report, read by worker 0 before it leaves. */
struct zr_served_report {
    struct zr_ps_state state;
    uint64_t version; /* updates of the first table */
    unsigned worker_restarts, workers_left;
};
zr_result zr_served_report(struct zr_rank *rank, struct zr_served_report *out);

#endif
