/* transport.h: what a module that carries messages between processes gives to message.c, and all it gives.
 * Private to zero/comm/.
 *
 * Messages between two ranks with one tag arrive in the order in which they were sent, and are matched in
 * that order. All calls are non-blocking but open and close, and come from one thread at a time. What a call
 * returns is 0, or -1 with words in `why`. The module needs nothing of this program: plain C types alone
 * cross the boundary. */
#ifndef ZR_TRANSPORT_H
#define ZR_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ZR_TRANSPORT_VERSION = 3, ZR_TRANSPORT_WHY_BYTES = 512 };
#define ZR_TRANSPORT_SYMBOL "zr_transport_open"

/* A message under way; what is in it is the module's. */
struct zr_transport_request {
    _Alignas(16) unsigned char room[32];
};

struct zr_transport_message {
    unsigned peer;
    void *data; /* not written to by send */
    size_t bytes;
    uint32_t tag; /* below tags_count; only messages of one tag meet */
    bool any;     /* received from whichever peer */
};

struct zr_transport {
    uint32_t version;
    unsigned rank, world;
    size_t most_bytes;   /* of one message */
    uint32_t tags_count; /* 32,768 at least */
    char why[ZR_TRANSPORT_WHY_BYTES];

    int (*send)(struct zr_transport *, const struct zr_transport_message *, struct zr_transport_request *);
    int (*receive)(struct zr_transport *, const struct zr_transport_message *, struct zr_transport_request *);
    /* Moves things on, too. When *done, *bytes is what was received (0 for a send). */
    int (*test)(struct zr_transport *, struct zr_transport_request *, bool *done, size_t *bytes);
    /* Gives up a message that is under way, as well as can be done. */
    void (*cancel)(struct zr_transport *, struct zr_transport_request *);
    /* Says goodbye to all ranks; they must all do it. Never called after a failure. */
    int (*close)(struct zr_transport *);
};

/* The module's one symbol: joins the run that the environment speaks of, and fills *out. */
typedef int (*zr_transport_opener)(struct zr_transport *out);

#endif
