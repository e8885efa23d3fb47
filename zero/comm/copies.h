/* copies.h: copies between memory and memory in a thread of their own, behind the caller's work: a
 * communicator of one rank, with its tickets, counters and order. Private to zero/. */
#ifndef ZR_COPIES_H
#define ZR_COPIES_H

#include "zero/comm/clock.h"

/* With kernels that compute nothing it copies nothing. zr_comm_destroy() ends it. */
zr_result zr_copies_create(zr_comm **out, const struct zr_comm_options *options);
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
    zr_result (*run)(void *state);
    void *state;
    size_t bytes; /* that it moves, for counters and clock */
};
zr_result zr_copies_run(zr_comm *copies, struct zr_copies_task *task, zr_ticket *ticket);
/* Bytes that were copied so far. */
uint64_t zr_copies_bytes(zr_comm *copies);

#endif
