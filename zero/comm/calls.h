/* calls.h: distinguishes ranks that are out of step from slow ranks, without a timeout. Private to
 * zero/comm/.
 *
 * Each rank keeps a record of the operation it runs and of the operation its caller waits for, in the
 * control block. Ranks of one machine read each other's records there. An MPI rank that has waited for a
 * second requests the records of the others (liveness.h), which answer if they wait too. As long as ranks
 * make progress nothing is exchanged. A rank that has waited for a second looks for one of:
 *
 * - a member of its group that has begun the operation of the same number with another kind or size;
 * - a member that has exited before beginning the operation;
 * - a cycle. An operation that meets (struct zr_comm_table) waits for each member that has not begun it.
 * Such a member begins it after its previous operation has ended and its caller has submitted this one.
 * The caller submits nothing while it waits for a ticket, that is for an operation, or in a host message,
 * which is an operation too. A cycle of these waits that returns to the rank's own operation is a
 * deadlock.
 *
 * Memory order. One rank writes each word of a record, with release order. Words only increase, except for
 * a key, which changes once in the life of a communicator. The description of operation n is in element n
 * % 2 and is written before `begun` becomes n; `submitted` is written before the caller's next wait. A
 * reader reads a cycle twice, with acquire order, the second time after the first has finished. If both
 * readings are equal, no word changed in between, so the whole cycle existed at one point in time, and a
 * cycle never ends. A rank that computes, reads a file or is stopped waits for nothing and is in no cycle,
 * so a slow rank is never blamed.
 *
 * Not covered: transfers between two ranks of a larger group, and operations that GPU streams wait for. */
#ifndef ZR_COMM_CALLS_H
#define ZR_COMM_CALLS_H

#include "zero/comm/comm.h"
#include "zero/launch/control.h"

#define ZR_CALLS_PATIENCE_NS 1000000000ull /* time between checks of a waiting rank */

/* Starts the record of a communicator over ranks[comm->world] of the run. `key` is equal on all of them
 * and differs from their other communicators. Without a control block this function and those below have
 * no effect. */
void zr_calls_open(struct zr_comm *comm, uint64_t key, const unsigned *ranks);
void zr_calls_close(struct zr_comm *comm);
/* Sets the group's name in messages, such as "data"; at most 15 bytes. */
void zr_calls_name(struct zr_comm *comm, const char *group);

/* The caller submits an operation / the thread that runs it begins it / has ended all that it has begun. */
void zr_calls_submit(struct zr_comm *comm, const struct zr_comm_item *item);
void zr_calls_begin(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket ticket);
void zr_calls_end(struct zr_comm *comm, bool host);
/* The caller begins and ends a wait for a ticket; ticket 0: for its current host message. */
void zr_calls_wait(struct zr_comm *comm, zr_ticket ticket);
void zr_calls_go_on(struct zr_comm *comm);

/* The records of a run, [world], as a rank sees them; NULL: unknown. */
struct zr_calls_view {
    const struct zr_local_record *records[ZR_MAX_WORLD];
};
/* Checks whether this rank can make progress; ZR_ERR_PEER names ranks and operations if not. `first` was read
 * completely before `second`; both may point to live records. `ended` returns whether a rank has exited. */
struct zr_calls_look {
    const struct zr_calls_view *first, *second;
    unsigned world, rank;
    bool (*ended)(const void *state, unsigned rank);
    const void *state;
};
zr_result zr_calls_check(const struct zr_calls_look *look);
/* Checks ranks that share a control block. */
zr_result zr_calls_check_local(const struct zr_local_world *local, unsigned rank);

/* Copies a record that its rank may be writing concurrently. */
void zr_calls_copy(struct zr_local_record *to, const struct zr_local_record *from);

#endif
