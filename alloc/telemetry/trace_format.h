/* clang-format off */
/* trace_format.h: the .zrt trace, version 2, as it lies in the file. Written by alloc/telemetry/trace.c, read by
 * defrag/trace/formats/zrt.c. All numbers are little-endian. A reader reads all versions up to its own, and says of a later one
 * that the file is newer than itself. What a later release adds goes into extensions, which a reader skips, or raises the
 * version.
 *
 * The file is struct zrt_header, then events one after the other, `written_bytes` of them. The writer stores
 * an event's bytes first and then advances written_bytes, all in a shared file mapping: after a crash or kill
 * -9 the file ends in zeros that are not counted, and everything counted is whole.
 *
 * An event is
 *     1 byte    kind (bits 0..2) and flags
 *     varint    nanoseconds since the event before (the first: since clock_start_ns)
 *     varint    thread number, if ZRT_HAS_THREAD; else that of the event before (first: 0)
 *     varint    stream, if ZRT_HAS_STREAM; else that of the event before (first: 0)
 *     1 byte    tag, if ZRT_HAS_TAG; else that of the event before (first: 0)
 * and then by kind
 *     alloc     place, varint requested bytes, varint reserved bytes if ZRT_HAS_RESERVED (else: the requested
 *               bytes rounded up to 256)
 *     free      place; with ZRT_ASKED the program has freed the block, and a stream may still use it until a free
 *               without it
 *     map       zigzag difference of the first granule's number to `next granule`, varint granules; with
 *               ZRT_HAS_SEGMENT varint pool, varint granules that can be unmapped together (0: the whole or nothing)
 *     unmap     the same; `next granule` is the number after the run that the last map or unmap named
 *               (first: 0)
 *     mark      varint length (at most 63), bytes of the label
 *     refused   varint requested bytes: an allocation that failed; with ZRT_HAS_CAUSE also 1 byte cause (enum
 *               zrt_cause) and nine varints: need, free, largest, cached, pending, unmovable, reserved, limit and
 *               device bytes (struct zr_refusal says what they are), and with ZRT_HAS_MORE a varint count and so many
 *               varints: device free, process, whole, pool idle bytes; a reader skips those that it does not know, at
 *               most ZRT_MORE_MAX
 *     begin     nothing: the allocs and maps before it say what was there when the trace was started
 * A place is the zigzag difference of a block's offset from base_address to the place of the alloc or free
 * before (first: 0): in units of 256 bytes (both offsets are multiples of 256), or of bytes with
 * ZRT_IN_BYTES.
 *
 * An extension (kind 0, since version 2) goes on with 1 byte, enum zrt_extension, a varint length and so many bytes. A
 * reader skips those that it does not know.
 *     module    varint address, varint bytes, varint offset in its file, varint length of its build ID, the build ID, and
 *               the path up to the end: code that is mapped there. A path of no bytes: it is of no file
 *     stack     varint number (from 1), and up to the end frames, the innermost first, each as the zigzag difference of
 *               its address to the frame's before (first: 0). The address lies within the call
 *     with      varint number: the next alloc or refused event was asked for by this stack
 * Modules come before the first stack that has an address in them, a stack before the first event that has it. A module
 * replaces those that its addresses overlap.
 *
 * varint: 7 bits a byte, low ones first, the top bit set on all but the last; at most 10 bytes, no bits
 * beyond 64. zigzag: 0, -1, 1, -2 .. as 0, 1, 2, 3 .. A reader takes an event with a flag that it does not know of the
 * kind for damage.
 *
 * Version 1 has no extensions. Early traces of it have no ZRT_HAS_CAUSE, or no ZRT_HAS_MORE.
 *
 * A file of the flight recorder is the same. The time and thread of an event are those of when it was recorded,
 * the time to the nearest of a few hundred events before it; a mark after `begin` says what is missing.
 *
 * A file that zr import wrote has an origin other than ZRT_ORIGIN_ARENA. Its granule is the largest that divides every
 * segment, and its header says what that program's file does not know. An arena writes neither ZRT_ASKED nor
 * ZRT_HAS_SEGMENT. A refusal of ZRT_ORIGIN_TORCH has a cause only where the device's free bytes are known: they are what
 * its further figures say, and the other figures are 0. */
/* clang-format on */
#ifndef ZR_TRACE_FORMAT_H
#define ZR_TRACE_FORMAT_H

#include <stdint.h>

#define ZRT_MAGIC   "ZRT1"
#define ZRT_VERSION 2

enum zrt_kind {
    ZRT_EXTENSION = 0,
    ZRT_ALLOC,
    ZRT_FREE,
    ZRT_MAP,
    ZRT_UNMAP,
    ZRT_MARK,
    ZRT_REFUSED,
    ZRT_BEGIN
};

#define ZRT_KIND_MASK    0x07
#define ZRT_HAS_THREAD   0x08
#define ZRT_HAS_STREAM   0x10
#define ZRT_HAS_TAG      0x20
#define ZRT_IN_BYTES     0x40 /* alloc, free */
#define ZRT_HAS_RESERVED 0x80 /* alloc */
#define ZRT_HAS_CAUSE    0x80 /* refused */
#define ZRT_HAS_MORE     0x40 /* refused, with ZRT_HAS_CAUSE */
#define ZRT_ASKED        0x80 /* free */
#define ZRT_HAS_SEGMENT  0x80 /* map, unmap */

#define ZRT_UNIT_BYTES  256u
#define ZRT_LABEL_BYTES 63u   /* of a mark, at most */
#define ZRT_MORE_MAX    12u   /* further figures of a refused one, at most */
#define ZRT_EVENT_BYTES 1024u /* no event is longer; of version 1: 256 */

#define ZRT_EXTENSION_BYTES 900u /* of an extension, at most, without what every event has */
#define ZRT_FRAMES_MAX      64u  /* of a stack */
#define ZRT_STACKS_MAX      65535u
#define ZRT_BUILD_ID_BYTES  20u   /* at most; longer ones are left out */
#define ZRT_HEADER_MAX      4096u /* bytes, of a later release's */

enum zrt_extension { ZRT_MODULE = 1, ZRT_STACK, ZRT_WITH };

/* What a refused request lacked. */
enum zrt_cause {
    ZRT_CAUSE_UNKNOWN = 0,
    ZRT_CAUSE_SHORTAGE,           /* of memory: the device has no more */
    ZRT_CAUSE_LIMIT,              /* of memory, at the arena's or the backend's own limit */
    ZRT_CAUSE_FRAGMENTATION,      /* enough is free, in no whole granules that may move */
    ZRT_CAUSE_ADDRESSES,          /* of addresses */
    ZRT_CAUSE_ADDRESSES_IN_A_ROW, /* enough are free, in no row */
    ZRT_CAUSE_MAPPINGS,           /* of the system's mappings */
    ZRT_CAUSE_TAG_LIMIT,          /* a limit of the request's tag, or of all tags */
    ZRT_CAUSE_COUNT
};

/* How the trace ended. */
enum zrt_state {
    ZRT_WRITING = 0, /* still written, or the program died */
    ZRT_STOPPED,     /* by request: complete */
    ZRT_NO_SPACE,    /* the file could not grow; later events are missing */
    ZRT_STATE_COUNT
};

/* Whose rules the memory went by. */
enum zrt_origin {
    ZRT_ORIGIN_ARENA = 0,
    ZRT_ORIGIN_TORCH,
    ZRT_ORIGIN_RMM,
    ZRT_ORIGIN_MINIMALLOC,
    ZRT_ORIGIN_CSV,
    ZRT_ORIGIN_COUNT
};

/* What the file that a trace was made of says, or does not. */
#define ZRT_EXPANDABLE   0x01u /* PyTorch with expandable segments */
#define ZRT_PENDING      0x02u /* which frees wait for streams */
#define ZRT_NO_MAPS      0x04u /* not what is mapped */
#define ZRT_NO_TIMES     0x08u
#define ZRT_NO_ADDRESSES 0x10u /* an address only tells live blocks apart */

struct zrt_header {
    char magic[4];
    uint32_t header_bytes; /* sizeof this, or more; events start here */
    uint32_t version;
    uint32_t state;         /* enum zrt_state */
    uint64_t written_bytes; /* of events */
    uint64_t granule_bytes;
    uint64_t base_address; /* of the arena's reservation */
    uint64_t reserve_bytes;
    uint64_t clock_start_ns; /* monotonic */
    uint64_t wall_start_ns;  /* the same moment, since 1970 */
    uint32_t process;
    uint32_t error;        /* errno of ZRT_NO_SPACE */
    char arena[32];        /* its name, ended by a zero */
    uint32_t origin, says; /* enum zrt_origin; ZRT_EXPANDABLE.. */
    uint64_t zero[2];      /* room for later versions */
};
_Static_assert(sizeof(struct zrt_header) == 128, "the header's layout is the format");

#endif
