/* service_protocol.h: what zrd (alloc/service/) and its clients say to one another. Private to the project.
 *
 * A connection is a SOCK_SEQPACKET socket; a message is one packet of exactly sizeof(struct
 * zr_service_message), and descriptors travel beside it. Numbers are the machine's own, since both ends are
 * on it. The first eight bytes mean the same in every version; whoever hears another version answers
 * ZR_SERVICE_REFUSED with words, and hangs up.
 *
 * A client says HELLO first, and gets a second socket, its bell, on which zrd alone speaks. On the first one
 * each request gets one answer, in order; RETURN, GIVEN and LISTEN get none. A tool says no HELLO: it asks
 * STATUS, LIMIT, DRAIN or STOP.
 *
 * Bytes are counted, not placed: a client's memory lies in files of its own (memfd), which zrd makes and
 * sends and keeps a descriptor of. No other client ever gets these descriptors. */
#ifndef ZR_SERVICE_PROTOCOL_H
#define ZR_SERVICE_PROTOCOL_H

#include <stdint.h>

enum {
    ZR_SERVICE_MAGIC = 0x2e64727a, /* "zrd." */
    ZR_SERVICE_VERSION = 1,
    ZR_SERVICE_PROGRAM_BYTES = 16,
    ZR_SERVICE_GROUP_BYTES = 48,
    ZR_SERVICE_WORDS_BYTES = 344,
    ZR_SERVICE_FILES_MOST = 16, /* of a client */
    ZR_SERVICE_FDS_MOST = 2,    /* beside a message */
};

enum zr_service_kind {
    /* From a client. */
    ZR_SERVICE_HELLO = 1, /* held_bytes: what it holds already; group ("": its cgroup's), program, flags:
                             ZR_SERVICE_LISTENS */
    ZR_SERVICE_FILE,      /* a file for granules is wanted */
    ZR_SERVICE_ADOPT,     /* + the file: one that it has already, after zrd has started anew */
    ZR_SERVICE_LEASE,     /* bytes, serial */
    ZR_SERVICE_RETURN,    /* bytes; their pages are gone from the file already. No answer */
    ZR_SERVICE_GIVEN,     /* serial of a RECLAIM, bytes: all that could be given was returned. No answer */
    ZR_SERVICE_LISTEN, /* the bell is heard from now on: who has not said so is asked for nothing. No answer
                        */
    /* From a tool. */
    ZR_SERVICE_STATUS, /* serial: of the last client heard of, 0 for the first */
    ZR_SERVICE_LIMIT,  /* target, pid or group; hard_bytes, soft_bytes, shares where flags say so */
    ZR_SERVICE_DRAIN,  /* flags: ZR_SERVICE_DRAIN_END */
    ZR_SERVICE_STOP,
    /* Answers. */
    ZR_SERVICE_WELCOME, /* + the bell; within_ms: how long a lease may take */
    ZR_SERVICE_DONE,    /* + a file, to FILE; to STATUS: no more clients, and the totals */
    ZR_SERVICE_GRANTED, /* bytes, serial */
    ZR_SERVICE_REFUSED, /* result (enum zr_result), words */
    ZR_SERVICE_CLIENT,  /* to STATUS: one client; serial is its number */
    /* On the bell. */
    ZR_SERVICE_RECLAIM, /* bytes are wanted back within_ms; serial */
    ZR_SERVICE_ENDED,   /* the leases are over; words */
    ZR_SERVICE_KIND_COUNT
};

enum zr_service_flags {
    ZR_SERVICE_SET_HARD = 1,
    ZR_SERVICE_SET_SOFT = 2,
    ZR_SERVICE_SET_SHARES = 4,
    ZR_SERVICE_SET_CAPACITY = 8, /* of the whole service, in bytes */
    ZR_SERVICE_DRAIN_END = 16,   /* lends again */
    ZR_SERVICE_LEFT = 32,        /* CLIENT: the process is gone, and another one still maps its file */
    ZR_SERVICE_DRAINING = 64,    /* DONE to STATUS */
    ZR_SERVICE_ASKING = 256,     /* DONE to STATUS: somebody was asked for memory and has not answered yet */
    ZR_SERVICE_LISTENS = 128,    /* HELLO, CLIENT: a thread hears the bell */
};

struct zr_service_message {
    uint32_t magic;
    uint16_t version, kind;
    uint32_t result, flags;
    uint64_t serial, bytes;
    uint64_t held_bytes, peak_bytes, resident_bytes;
    uint64_t hard_bytes, soft_bytes; /* 0: none */
    uint64_t count;                  /* CLIENT: messages that it has sent; DONE: clients */
    int32_t pid;
    uint32_t shares, within_ms, files_count;
    char program[ZR_SERVICE_PROGRAM_BYTES], group[ZR_SERVICE_GROUP_BYTES];
    char words[ZR_SERVICE_WORDS_BYTES];
};
_Static_assert(sizeof(struct zr_service_message) == 504, "the same in every build");

#endif
