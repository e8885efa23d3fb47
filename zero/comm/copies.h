/* copies.h: copies between memory and memory behind the caller's work: a communicator of one rank, with its
 * tickets, counters and order. Private to zero/.
 *
 * They run in a thread of their own. Of a card's kernels they run in a stream of their own, each behind what
 * the caller's stream has been given before it, and zr_comm_wait() lets that one wait for it, in place of the
 * host: memory that is not the card's is pinned, then. */
#ifndef ZR_COPIES_H
#define ZR_COPIES_H

#include "zero/comm/clock.h"

/* With kernels that compute nothing it copies nothing. `behind`: of the caller's kernels, borrowed; on a
 * card, that of its stream. zr_comm_destroy() ends it. */
zr_result zr_copies_create(zr_comm **out, const struct zr_comm_options *options,
                           const struct zr_kernel_context *behind);
/* Lets the copies of a rehearsal go by a clock, at its host bandwidth. */
void zr_copies_set_clock(zr_comm *copies, struct zr_comm_clock *clock);

/* Both belong to the copy until its ticket has been waited for. */
struct zr_host_copy {
    void *to;
    const void *from;
    size_t bytes;
    bool stays;                          /* both are in the same memory: it does not count as moved */
    const struct zr_comm_before *before; /* as of an all-gather; NULL: nothing */
};
zr_result zr_copies_start(zr_comm *copies, const struct zr_host_copy *copy, zr_ticket *ticket);
/* Work that is no copy, in the same thread and order; the caller's until its ticket has been waited for. */
struct zr_copies_task {
    /* `context`: that of the stream, on a card; else NULL. */
    zr_result (*run)(void *state, struct zr_kernel_context *context);
    void *state;
    size_t bytes; /* that it moves, for counters and clock */
};
zr_result zr_copies_run(zr_comm *copies, struct zr_copies_task *task, zr_ticket *ticket);
/* The host waits until it has ended; where copies run in a thread, that is zr_comm_wait(). */
zr_result zr_copies_await(zr_comm *copies, zr_ticket ticket);
/* Bytes that were copied so far. */
uint64_t zr_copies_bytes(zr_comm *copies);

#endif
