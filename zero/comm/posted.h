/* posted.h: a communicator whose host messages stay in a file of the run, so that a rank that has died has a
 * successor: it begins from the start, takes every message that was sent before, and sends none twice. The
 * other ranks do not notice. It has host messages, barriers and groups of one rank, but no other operations.
 *
 * A message has a place by its number and its sender. What a rank has posted is not posted again: a successor
 * gets its predecessor's message. A rank may leave: its later messages are copies of the receiver's own. */
#ifndef ZR_COMM_POSTED_H
#define ZR_COMM_POSTED_H

#include "alloc/base/system/file.h"
#include "zero/comm/zr_comm.h"

/* `file` is empty at first, the same for all ranks, open for reading and writing, and borrowed. The posts of
 * all ranks grow it by 4 KiB or more for each message. Otherwise as zr_comm_create(). */
zr_result zr_comm_posted_create(zr_comm **out, const struct zr_comm_options *options,
                                struct zr_local_world *local, unsigned rank, const struct zr_file *file);
/* Number of this rank's next message / continues with it. Of a posted communicator. */
uint64_t zr_comm_posted_number(const zr_comm *comm);
void zr_comm_posted_continue(zr_comm *comm, uint64_t number);
/* A rank posts nothing more; to be called when its process is gone. */
zr_result zr_comm_posted_leave(const struct zr_file *file, unsigned rank);
bool zr_comm_posted_has_left(const struct zr_file *file, unsigned rank);
/* For messages that a caller has elsewhere: wakes the waiting ranks / waits until `is_there`, up to the
 * timeout of the communicator, unless the run ends. */
struct zr_comm_posted_wait {
    bool (*is_there)(const void *state);
    const void *state;
    unsigned rank; /* that is waited for */
};
void zr_comm_posted_wake(zr_comm *comm);
zr_result zr_comm_posted_await(zr_comm *comm, const struct zr_comm_posted_wait *wait);

#endif
