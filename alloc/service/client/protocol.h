/* protocol.h: what zrd (alloc/service/) and its clients say to one another. Private to the project.
 *
 * A connection is a SOCK_SEQPACKET socket; a message is one packet of exactly sizeof(struct
 * zr_service_message), and descriptors travel beside it. Numbers are the machine's own, since both ends are
 * on it. The first eight bytes mean the same in every version; whoever hears another version answers
 * ZR_SERVICE_REFUSED with words, and hangs up.
 *
 * A client says HELLO first, and gets a second socket, its bell, on which zrd alone speaks. On the first one
 * each request gets one answer, in order; RETURN, GIVEN, CLAIM, IDLE and LISTEN get none. A tool says no
 * HELLO: it asks STATUS, LIMIT, DRAIN or STOP.
 *
 * A run is one process or several that compute together. One that knows what it will take says so (PLAN)
 * before it takes it: the bytes that stay between its steps, and the most of a step. zrd lets it in or
 * refuses it. Then it asks for its turn (TURN), in which it may take its most; it keeps the turn until zrd
 * asks for it (YIELD), and ends it between two steps by asking for the next one. In its step it can say what
 * it takes at most from there on (CLAIM): then another run's turn may begin before its own has ended.
 *
 * Bytes are counted, not placed: a client's memory lies in files of its own (memfd), which zrd makes and
 * sends and keeps a descriptor of. No other client ever gets these descriptors.
 *
 * A device's zrd sends a piece of memory with each lease, which its clients import and name by a number. */
#ifndef ZR_SERVICE_PROTOCOL_H
#define ZR_SERVICE_PROTOCOL_H

#include <stdint.h>

#include "alloc/backend/lender.h"

enum {
    ZR_SERVICE_MAGIC = 0x2e64727a, /* "zrd." */
    ZR_SERVICE_VERSION = 3,
    ZR_SERVICE_PROGRAM_BYTES = 16,
    ZR_SERVICE_GROUP_BYTES = 48,
    ZR_SERVICE_WORDS_BYTES = 328,
    ZR_SERVICE_FILES_MOST = 16, /* of a client */
    ZR_SERVICE_FDS_MOST = 2,    /* beside a message */
};

/* A zrd is found by its key: ZR_SERVICE_HOST, or a device's UUID as zr_cuda_device_find() writes it. */
#define ZR_SERVICE_HOST "host"
enum { ZR_SERVICE_KEY_BYTES = ZR_LENDER_KEY_BYTES };

enum zr_service_kind {
    /* From a client. */
    ZR_SERVICE_HELLO = 1, /* held_bytes: what it holds already; group ("": its cgroup's), program, flags:
                             ZR_SERVICE_LISTENS; what PLAN has, where another zrd has let it in, flags:
                             ZR_SERVICE_IN_TURN, then turn and claim_bytes */
    ZR_SERVICE_FILE,      /* a file for granules is wanted; of a device: a descriptor of piece `count` */
    ZR_SERVICE_ADOPT,     /* + the file: one that it has already, after zrd has started anew */
    ZR_SERVICE_LEASE,     /* bytes, serial */
    ZR_SERVICE_RETURN,    /* bytes; their pages are gone from the file already; of a device: piece `count`, or
                             0: of the client's making or another zrd's. No answer */
    ZR_SERVICE_GIVEN,     /* serial of a RECLAIM, bytes: all that could be given was returned. No answer */
    ZR_SERVICE_LISTEN, /* the bell is heard from now on: who has not said so is asked for nothing. No answer
                        */
    ZR_SERVICE_PLAN,   /* plan_base_bytes, plan_peak_bytes of this process; run, run_count; bytes: what of its
                          base can go to a disk while it waits for its turn; count: the threads that compute, of
                          one that says CLAIM, else 0 */
    ZR_SERVICE_TURN,   /* the process is between two steps, and wants the next turn */
    ZR_SERVICE_CLAIM,  /* claim_bytes: it holds no more than that until it says TURN. No answer */
    ZR_SERVICE_IDLE,   /* bytes: what it could give now, to INQUIRE. No answer */
    /* From a tool. */
    ZR_SERVICE_STATUS, /* serial: of the last client heard of, 0 for the first; flags: ZR_SERVICE_FRESH */
    ZR_SERVICE_LIMIT,  /* target, pid or group; hard_bytes, soft_bytes, shares where flags say so */
    ZR_SERVICE_DRAIN,  /* flags: ZR_SERVICE_DRAIN_END */
    ZR_SERVICE_STOP,
    /* Answers. */
    ZR_SERVICE_WELCOME, /* + the bell; within_ms: how long a lease may take */
    ZR_SERVICE_DONE,    /* + a file, to FILE; to STATUS: no more clients, and the totals */
    ZR_SERVICE_GRANTED, /* to LEASE: bytes, serial; of a device: + the piece, count: its number; to PLAN: the
                           run is let in; to TURN: it has its turn, turn: the number of that */
    ZR_SERVICE_LATER,   /* to PLAN, TURN and LEASE: not yet, ask again; words: what it waits for */
    ZR_SERVICE_REFUSED, /* result (enum zr_result), words */
    ZR_SERVICE_CLIENT, /* to STATUS: one client; serial is its number; turn, claim_bytes: of its run's turn */
    /* On the bell. */
    ZR_SERVICE_RECLAIM, /* bytes are wanted back within_ms; serial; flags: ZR_SERVICE_SPILL */
    ZR_SERVICE_YIELD,   /* another run waits: after the step, bytes are to be given and TURN is to be said */
    ZR_SERVICE_INQUIRE, /* how much is idle? */
    ZR_SERVICE_ENDED,   /* the leases are over; words */
    ZR_SERVICE_KIND_COUNT
};

enum zr_service_flags {
    ZR_SERVICE_SET_HARD = 1,
    ZR_SERVICE_SET_SOFT = 2,
    ZR_SERVICE_SET_SHARES = 4,
    ZR_SERVICE_SET_CAPACITY = 8,  /* of the whole service, in bytes */
    ZR_SERVICE_DRAIN_END = 16,    /* lends again */
    ZR_SERVICE_LEFT = 32,         /* CLIENT: the process is gone, and another one still maps its file */
    ZR_SERVICE_DRAINING = 64,     /* DONE to STATUS */
    ZR_SERVICE_ASKING = 256,      /* DONE to STATUS: somebody was asked for memory and has not answered yet */
    ZR_SERVICE_LISTENS = 128,     /* HELLO, CLIENT: a thread hears the bell */
    ZR_SERVICE_FRESH = 512,       /* STATUS: clients are asked what they have idle, for the next STATUS */
    ZR_SERVICE_INQUIRING = 1024,  /* DONE to STATUS: some have not answered that yet */
    ZR_SERVICE_IN_TURN = 2048,    /* HELLO, CLIENT: its run may take its most */
    ZR_SERVICE_IDLE_KNOWN = 4096, /* CLIENT: idle_bytes is what it said last */
    ZR_SERVICE_SPILL = 8192,  /* RECLAIM: what is in use between steps too, to the disk that PLAN spoke of */
    ZR_SERVICE_WAITS = 16384, /* PLAN: what does not fit now is not refused, but LATER until it does */
};

struct zr_service_message {
    uint32_t magic;
    uint16_t version, kind;
    uint32_t result, flags;
    uint64_t serial, bytes;
    uint64_t held_bytes, peak_bytes, resident_bytes;
    uint64_t hard_bytes, soft_bytes;           /* 0: none */
    uint64_t count;                            /* CLIENT: messages that it has sent; DONE: clients */
    uint64_t plan_base_bytes, plan_peak_bytes; /* between steps, and the most of a step; 0: no plan */
    uint64_t claim_bytes, turn;
    uint64_t idle_bytes,
        reclaim_ns; /* CLIENT: what it has idle, and how long it would take to give that (0: unknown) */
    int32_t pid;
    uint32_t shares, within_ms, files_count;
    uint32_t run, run_count; /* processes of one run have one number; how many there are */
    char program[ZR_SERVICE_PROGRAM_BYTES], group[ZR_SERVICE_GROUP_BYTES];
    char words[ZR_SERVICE_WORDS_BYTES];
};
_Static_assert(sizeof(struct zr_service_message) == 544, "the same in every build");

#endif
