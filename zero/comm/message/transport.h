/* transport.h: the interface of a module that carries messages between processes for message.c. Private to
 * zero/comm/.
 *
 * Messages between two ranks with one tag arrive and match in the order sent. Calls come from one thread
 * at a time and do not block, except for open and close. They return 0, or -1 with a message in `why`. The
 * interface uses plain C types only, so the module does not link against the program. */
#ifndef ZR_TRANSPORT_H
#define ZR_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ZR_TRANSPORT_VERSION = 5, ZR_TRANSPORT_WHY_BYTES = 512 };
#define ZR_TRANSPORT_SYMBOL "zr_transport_open"

/* A pending message; the contents belong to the module. */
struct zr_transport_request {
    _Alignas(16) unsigned char room[32];
};

struct zr_transport_message {
    unsigned peer;
    void *data; /* send does not write to it */
    size_t bytes;
    uint32_t tag; /* below tags_count; only messages with equal tags match */
    bool any;     /* receive from any peer */
};

struct zr_transport {
    uint32_t version;
    const char *name; /* as in --comm */
    void *state;      /* the transport's own; NULL: it has one per process */
    unsigned rank, world;
    unsigned host_first, host_ranks; /* lowest rank of this rank's host, and the number of its ranks */
    size_t most_bytes;               /* maximum bytes of one message */
    uint32_t tags_count;             /* at least 32,768 */
    char why[ZR_TRANSPORT_WHY_BYTES];

    int (*send)(struct zr_transport *, const struct zr_transport_message *, struct zr_transport_request *);
    int (*receive)(struct zr_transport *, const struct zr_transport_message *, struct zr_transport_request *);
    /* Tests a message and makes progress on all. If *done, *bytes is the received size (0 for a send). */
    int (*test)(struct zr_transport *, struct zr_transport_request *, bool *done, size_t *bytes);
    /* Cancels a pending message, on a best-effort basis. */
    void (*cancel)(struct zr_transport *, struct zr_transport_request *);
    /* Leaves the run; all ranks must call it. Never called after a failure. */
    int (*close)(struct zr_transport *);
    /* Optional: sets a bit for each rank that is lost or has left, in words of 64 ranks. `ranks` has a bit
     * for the maximum number of ranks. Operations with the other ranks continue. NULL: a lost rank ends the
     * run.
     */
    void (*lost)(struct zr_transport *, uint64_t *ranks);
};

/* The module's only symbol: joins the run described by the environment and fills *out. */
typedef int (*zr_transport_opener)(struct zr_transport *out);

#endif
