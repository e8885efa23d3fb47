/* calls.h: ranks that fell out of step are told from slow ones, without a time-out. Private to zero/comm/.
 *
 * Each rank notes in a record which operation it is in, and for which one its caller waits. The record lies
 * in the control block: ranks of one machine read one another's there; a rank of MPI asks for those of the
 * others after a second of waiting (liveness.h), and they answer if they wait themselves. Nothing is
 * exchanged in a run that gets on. A rank that has waited for a second looks for:
 *
 * - a member of its group that has begun the operation of the same number, and another kind or size of it;
 * - a member that has ended before it began the operation;
 * - a circle. An operation that meets (struct zr_local_call) is held up by each member that has not begun it.
 *   That member comes to it when its operation before has ended, and when its caller has handed it in; its
 *   caller hands nothing in while it waits, for a ticket, which is for an operation, or in a host message,
 * which is one as well. All of these have to happen, so a circle of them, back to the rank's own operation,
 * is never left.
 *
 * Order. Each word of a record is written by one rank, with release, and only goes up (or, as a key, changes
 * once in the life of a communicator). What describes operation n lies in place n % 2 and is written before
 * `begun` becomes n; `submitted` is written before the caller's next wait is noted. A circle is read twice,
 * with acquire: the second reading begins when the first has ended. Where both have found the same words,
 * none of them has changed in between, so all of the circle held at one time between the two, and holds for
 * ever. A rank that computes, reads a file or is stopped waits for nothing and is in no circle: a slow rank
 * is never named.
 *
 * Not followed: transfers between two ranks of a larger group, and operations that a card's streams wait for.
 */
#ifndef ZR_COMM_CALLS_H
#define ZR_COMM_CALLS_H

#include "zero/comm/comm.h"
#include "zero/launch/control.h"

#define ZR_CALLS_PATIENCE_NS 1000000000ull /* between looks */

/* Notes a communicator of the ranks of the run ranks[comm->world] from here on. `key` is the same on all of
 * them, and no other communicator's of theirs. Without a control block it does nothing; nor do those below.
 */
void zr_calls_open(struct zr_comm *comm, uint64_t key, const unsigned *ranks);
void zr_calls_close(struct zr_comm *comm);
/* What messages call it: "data". At most 15 bytes. */
void zr_calls_name(struct zr_comm *comm, const char *group);

/* The caller hands an operation in / it begins and ends, in the thread that runs it. */
void zr_calls_submit(struct zr_comm *comm, const struct zr_comm_item *item);
void zr_calls_begin(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket ticket);
void zr_calls_end(struct zr_comm *comm, const struct zr_comm_item *item);
/* The caller waits for a ticket, or in the host message that it is in (ticket 0), and goes on. */
void zr_calls_wait(struct zr_comm *comm, zr_ticket ticket);
void zr_calls_go_on(struct zr_comm *comm);

/* The records of a run, [world], as a rank sees them; NULL: not known. */
struct zr_calls_view {
    const struct zr_local_record *records[ZR_MAX_WORLD];
};
/* Whether this rank can still go on: ZR_ERR_PEER with the ranks and operations, or ZR_OK. `first` was read
 * before `second` was, in whole; both may be of the live records. `ended` tells which ranks have. */
struct zr_calls_look {
    const struct zr_calls_view *first, *second;
    unsigned world, rank;
    bool (*ended)(const void *state, unsigned rank);
    const void *state;
};
zr_result zr_calls_check(const struct zr_calls_look *look);
/* The same of ranks that share a control block. */
zr_result zr_calls_check_local(const struct zr_local_world *local, unsigned rank);

/* Copies a record that its rank may be writing. */
void zr_calls_copy(struct zr_local_record *to, const struct zr_local_record *from);

#endif
