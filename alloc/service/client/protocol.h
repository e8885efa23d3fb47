/* protocol.h: the messages between zrd (alloc/service/server/) and its clients. Private to the project.
 *
 * A connection is a SOCK_SEQPACKET socket. A message is one packet of exactly sizeof(struct
 * zr_service_message), with descriptors as ancillary data. Numbers have the machine's byte order. The first
 * eight bytes mean the same in every version; a receiver of another version answers ZR_SERVICE_REFUSED with a
 * message and closes the connection.
 *
 * The first socket carries requests. A client sends HELLO first and receives a second socket, on which
 * only zrd sends notifications. Each request gets one answer, in order, except RETURN, GIVEN, RESERVE,
 * IDLE and LISTEN, which get none. A tool sends no HELLO, only STATUS, LIMIT, DRAIN, STOP or
 * messages about kept memory.
 *
 * A run is one process, or several that compute together. A run with a byte plan announces it (PLAN) before
 * it allocates: the bytes kept between steps, and the peak of a step. zrd admits or refuses the run. The run
 * then requests its time slice (SLICE), in which it may hold its peak. It keeps the time slice until zrd
 * requests its end (YIELD), and ends it between two steps by requesting the next one. In a step the run may
 * reserve less (RESERVE): the max bytes that it will hold until the step ends. Another run's time slice may
 * then begin early.
 *
 * zrd counts bytes and does not place them. A host client's memory lies in its own files (memfd), which zrd
 * creates, sends and keeps a descriptor of. No other client receives these descriptors. A device's zrd sends
 * a piece of memory with each lease, which the client imports and names by a number. */
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
    ZR_SERVICE_FILES_MAX = 16, /* of a client */
    ZR_SERVICE_FDS_MAX = 2,    /* beside a message */
};

/* The key that names a zrd: ZR_SERVICE_HOST, or a device's UUID as zr_cuda_device_find() writes it. */
#define ZR_SERVICE_HOST "host"
enum { ZR_SERVICE_KEY_BYTES = ZR_LENDER_KEY_BYTES };

enum zr_service_kind {
    /* From a client. */
    ZR_SERVICE_HELLO = 1, /* held_bytes: bytes held already; group ("": the control group's), program, flags:
                             ZR_SERVICE_LISTENS; if another zrd admitted the plan: the fields of PLAN, and
                             with ZR_SERVICE_IN_SLICE: slice and reservation_bytes */
    ZR_SERVICE_FILE,      /* requests a file for granules; device: a descriptor of piece `count` */
    ZR_SERVICE_ADOPT,     /* + file: an existing file of the client, sent to a new zrd */
    ZR_SERVICE_LEASE,     /* bytes, serial */
    ZR_SERVICE_RETURN, /* bytes, whose pages were already punched out of the file; device: piece `count`, or 0
                          for memory that this zrd did not lend. No answer */
    ZR_SERVICE_GIVEN,  /* serial of a RECLAIM, bytes returned for it. No answer */
    ZR_SERVICE_LISTEN, /* a thread now reads notifications; before this zrd requests nothing. No answer */
    ZR_SERVICE_PLAN,   /* plan_base_bytes, plan_peak_bytes of this process; run, run_count; bytes: the part of
                          the base that can be swapped out while the run is paused; count: computing threads
                          of a run that sends RESERVE, else 0 */
    ZR_SERVICE_SLICE,  /* the process is between two steps and requests the next time slice */
    ZR_SERVICE_RESERVE, /* reservation_bytes: the max bytes held until the next SLICE. No answer */
    ZR_SERVICE_IDLE,    /* answers INQUIRE; bytes: idle now. No answer */
    /* From a tool. */
    ZR_SERVICE_STATUS, /* serial: number of the last client received, 0 for the first; flags: ZR_SERVICE_FRESH
                        */
    ZR_SERVICE_LIMIT,  /* pid or group; flags tell which of hard_bytes, soft_bytes, shares are set */
    ZR_SERVICE_DRAIN,  /* flags: ZR_SERVICE_DRAIN_END */
    ZR_SERVICE_STOP,
    /* Answers. */
    ZR_SERVICE_WELCOME, /* + the notification socket; within_ms: the deadline of a lease */
    ZR_SERVICE_DONE,    /* to FILE: + the file; to STATUS: end of the list, with the totals */
    ZR_SERVICE_GRANTED, /* to LEASE: bytes, serial; device: + the piece, count: its number; to PLAN: the run
                           is admitted; to SLICE: the time slice has begun, slice: its number */
    ZR_SERVICE_LATER,   /* to PLAN, SLICE and LEASE: not yet, repeat the request; words: the reason */
    ZR_SERVICE_REFUSED, /* result (enum zr_result), words */
    ZR_SERVICE_CLIENT,  /* to STATUS: one client; serial: its number; slice, reservation_bytes: of its run's
                           time  slice */
    /* Notifications. */
    ZR_SERVICE_RECLAIM, /* requests bytes back within_ms; serial; flags: ZR_SERVICE_SPILL */
    ZR_SERVICE_YIELD,   /* another run waits: after the step, return bytes and send SLICE */
    ZR_SERVICE_INQUIRE, /* requests IDLE */
    ZR_SERVICE_ENDED,   /* the leases have ended; words: the reason */
    /* Kept memory (alloc/keep): from a writer, a reader or a tool; words: the segment's name, serial: its
     * token. To the launcher of a run each is sent with a socket for the answer. */
    ZR_SERVICE_KEEP_CREATE, /* bytes: of its blocks, held_bytes: of a granule, count: max tensors; group */
    ZR_SERVICE_KEEP_OPEN,   /* flags: ZR_SERVICE_KEEP_WRITES */
    ZR_SERVICE_KEEP_LIST,   /* serial: number of the last segment received, 0 for the first */
    ZR_SERVICE_KEEP_DROP,   /* serial 0: from a tool of the user */
    ZR_SERVICE_KEEP_ADOPT,  /* + the segment's file, whose zrd has ended; group */
    ZR_SERVICE_KEPT, /* to KEEP_LIST: one segment; serial: its number; bytes, resident_bytes; pid, slice: of
                        the last writer and its lease; count: the committed generation; reclaim_ns: until
                        it is dropped */
    ZR_SERVICE_KIND_COUNT
};

enum zr_service_flags {
    ZR_SERVICE_SET_HARD = 1,
    ZR_SERVICE_SET_SOFT = 2,
    ZR_SERVICE_SET_SHARES = 4,
    ZR_SERVICE_SET_CAPACITY = 8, /* of the whole service, in bytes */
    ZR_SERVICE_DRAIN_END = 16,   /* lends again */
    ZR_SERVICE_LEFT = 32,        /* CLIENT: the process has exited, and another process still maps its file */
    ZR_SERVICE_DRAINING = 64,    /* DONE to STATUS */
    ZR_SERVICE_ASKING = 256,     /* DONE to STATUS: a RECLAIM is pending */
    ZR_SERVICE_LISTENS = 128,    /* HELLO, CLIENT: a thread reads notifications */
    ZR_SERVICE_FRESH = 512,      /* STATUS: send INQUIRE to all clients, for the next STATUS */
    ZR_SERVICE_INQUIRING = 1024, /* DONE to STATUS: an INQUIRE is pending */
    ZR_SERVICE_IN_SLICE = 2048,  /* HELLO, CLIENT: its run has the time slice */
    ZR_SERVICE_IDLE_KNOWN = 4096,   /* CLIENT: idle_bytes is the last reported value */
    ZR_SERVICE_SPILL = 8192,        /* RECLAIM: includes memory in use between steps, to be swapped out */
    ZR_SERVICE_SEGMENT = 65536,     /* CLIENT: a segment of kept memory; pid: its last writer */
    ZR_SERVICE_KEEP_WRITES = 32768, /* KEEP_OPEN: for writing; KEPT: a writer lives */
    ZR_SERVICE_WAITS = 16384,       /* PLAN: answer LATER instead of REFUSED while the plan does not fit */
};

struct zr_service_message {
    uint32_t magic;
    uint16_t version, kind;
    uint32_t result, flags;
    uint64_t serial, bytes;
    uint64_t held_bytes, peak_bytes, resident_bytes;
    uint64_t hard_bytes, soft_bytes;           /* 0: none */
    uint64_t count;                            /* CLIENT: messages sent; DONE: clients */
    uint64_t plan_base_bytes, plan_peak_bytes; /* kept between steps; peak of a step; 0: no plan */
    uint64_t reservation_bytes, slice;
    uint64_t idle_bytes, reclaim_ns; /* CLIENT: idle, and the expected time to return it (0: unknown) */
    int32_t pid;
    uint32_t shares, within_ms, files_count;
    uint32_t run, run_count; /* number of the run, and its processes */
    char program[ZR_SERVICE_PROGRAM_BYTES], group[ZR_SERVICE_GROUP_BYTES];
    char words[ZR_SERVICE_WORDS_BYTES];
};
_Static_assert(sizeof(struct zr_service_message) == 544, "the same in every build");

#endif
