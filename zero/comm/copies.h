/* copies.h: asynchronous copies, as a communicator of one rank with tickets, counters and an order.
 * Private to zero/.
 *
 * Copies run in a thread. With GPU kernels they run in a stream, after the work queued in the caller's
 * stream, and zr_comm_wait() makes the caller's stream wait instead of the host; host memory must be
 * pinned then. */
#ifndef ZR_COPIES_H
#define ZR_COPIES_H

#include "zero/comm/clock.h"

/* Creates the communicator; zr_comm_destroy() ends it. With null kernels it copies nothing. `behind`: the
 * context of the caller's kernels, borrowed; on a GPU it has the caller's stream. */
zr_result zr_copies_create(zr_comm **out, const struct zr_comm_options *options,
                           const struct zr_kernel_context *behind);
/* Makes the copies of a rehearsal use a clock at its host bandwidth. NULL: no effect. */
void zr_copies_set_clock(zr_comm *copies, struct zr_comm_clock *clock);

/* Source and destination are borrowed until the ticket has been waited for. */
struct zr_host_copy {
    void *to;
    const void *from;
    size_t bytes;
    bool same_memory;                    /* both are in the same memory: the copy does not count as moved */
    const struct zr_comm_before *before; /* see struct zr_all_gather; NULL: none */
};
zr_result zr_copies_start(zr_comm *copies, const struct zr_host_copy *copy, zr_ticket *ticket);
/* Other work in the same thread and order; borrowed until the ticket has been waited for. */
struct zr_copies_task {
    /* `context`: the context of the stream on a GPU; else NULL. */
    zr_result (*run)(void *state, struct zr_kernel_context *context);
    void *state;
    size_t bytes; /* bytes that it moves, for counters and clock */
};
zr_result zr_copies_run(zr_comm *copies, struct zr_copies_task *task, zr_ticket *ticket);
/* Makes the host wait for a ticket; without a stream the same as zr_comm_wait(). */
zr_result zr_copies_await(zr_comm *copies, zr_ticket ticket);
/* Bytes copied so far. */
uint64_t zr_copies_bytes(zr_comm *copies);

#endif
