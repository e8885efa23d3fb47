/* clang-format off */
/* trace_format.h: the .zrt trace, version 2, as it lies in the file. Written by alloc/telemetry/trace.c, read by
 * defrag/trace/formats/zrt.c. All numbers are little-endian. A reader reads all versions up to its own, and reports
 * that a later version is newer than the reader. Additions of a later release are extensions, which a reader skips, or
 * raise the version.
 *
 * The file is struct zrt_header, followed by `written_bytes` bytes of events. The writer stores
 * an event's bytes in a shared file mapping before it advances written_bytes: after a crash or kill
 * -9 all counted events are complete, and the file ends in zeros that are not counted.
 *
 * An event is
 *     1 byte    kind (bits 0..2) and flags
 *     varint    nanoseconds since the previous event (first: since clock_start_ns)
 *     varint    thread number, if ZRT_HAS_THREAD; else that of the previous event (first: 0)
 *     varint    stream, if ZRT_HAS_STREAM; else that of the previous event (first: 0)
 *     1 byte    tag, if ZRT_HAS_TAG; else that of the previous event (first: 0)
 * and then by kind
 *     alloc     place, varint requested bytes, varint reserved bytes if ZRT_HAS_RESERVED (else the requested
 *               bytes rounded up to 256)
 *     free      place; with ZRT_FREE_REQUESTED the program has freed the block, and a stream may still use it until a second
 *               free event without the flag
 *     map       zigzag difference of the first granule's number to `next granule`, varint granules; with
 *               ZRT_HAS_SEGMENT varint pool, varint granules that can be unmapped together (0: only the whole run)
 *     unmap     as map; `next granule` is the number after the run of the last map or unmap event
 *               (first: 0)
 *     mark      varint length (at most 63), bytes of the label
 *     refused   varint requested bytes: an allocation that failed; with ZRT_HAS_CAUSE also 1 byte cause (enum
 *               zrt_cause) and nine varints: need, free, largest, cached, pending, unmovable, reserved, limit and
 *               device bytes (see struct zr_refusal), and with ZRT_HAS_MORE a varint count of up to ZRT_MORE_MAX and
 *               that many varints: device free, process, whole, pool idle bytes; a reader skips unknown ones
 *     begin     nothing: the allocs and maps before it are the blocks and mappings at the start of the trace
 * A place is the zigzag difference between a block's offset from base_address and the offset in the previous alloc
 * or free (first: 0), in units of 256 bytes (both offsets are multiples of 256), or in bytes with
 * ZRT_IN_BYTES.
 *
 * An extension (kind 0, since version 2) continues with 1 byte, enum zrt_extension, a varint length and that many
 * bytes. A reader skips unknown extensions.
 *     module    varint address, varint bytes, varint offset in its file, varint length of its build ID, the build ID, and
 *               the path up to the end: code mapped at the address. An empty path: no file is mapped
 *     stack     varint number (from 1), and up to the end frames, innermost first, each as the zigzag difference of
 *               its address from the previous frame's (first: 0). The address lies within the call
 *     with      varint number: the stack of the next alloc or refused event
 *     frame     varint number (from 1), and up to the end the text of the frame with the address 2^63 + number, which is
 *               no code: "function (file:line)" of an interpreter
 *     sample    varint mean bytes: the next alloc event is a sample, drawn with probability 1 - exp(-requested / mean)
 * A module or a frame precedes the first stack with an address in it, and a stack precedes its first event. A module replaces
 * earlier modules at overlapping addresses.
 *
 * varint: 7 bits a byte, low ones first, the top bit set on all but the last; at most 10 bytes, no bits
 * beyond 64. zigzag: 0, -1, 1, -2 .. as 0, 1, 2, 3 .. A reader treats an event with a flag that its kind does not
 * have as damage.
 *
 * Version 1 has no extensions; its early traces have no ZRT_HAS_CAUSE or no ZRT_HAS_MORE.
 *
 * A file of the flight recorder has the same format. An event has the thread that recorded it and a time read up to a
 * few hundred events earlier; a mark after `begin` tells which events are missing.
 *
 * A file of `zr import` has an origin other than ZRT_ORIGIN_ARENA. Its granule is the largest that divides every
 * segment, and its header tells which information the source file lacks. Arenas write neither ZRT_FREE_REQUESTED nor
 * ZRT_HAS_SEGMENT. A refused event of ZRT_ORIGIN_TORCH has a cause only if the device's free bytes are known; then only
 * the ZRT_HAS_MORE figures are set, and the other figures are 0. */
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

#define ZRT_KIND_MASK      0x07
#define ZRT_HAS_THREAD     0x08
#define ZRT_HAS_STREAM     0x10
#define ZRT_HAS_TAG        0x20
#define ZRT_IN_BYTES       0x40 /* alloc, free */
#define ZRT_HAS_RESERVED   0x80 /* alloc */
#define ZRT_HAS_CAUSE      0x80 /* refused */
#define ZRT_HAS_MORE       0x40 /* refused, with ZRT_HAS_CAUSE */
#define ZRT_FREE_REQUESTED 0x80 /* free */
#define ZRT_HAS_SEGMENT    0x80 /* map, unmap */

#define ZRT_UNIT_BYTES  256u
#define ZRT_LABEL_BYTES 63u   /* max length of a mark */
#define ZRT_MORE_MAX    12u   /* max count of further figures of a refused event */
#define ZRT_EVENT_BYTES 1024u /* max length of an event; in version 1: 256 */

#define ZRT_EXTENSION_BYTES 900u /* max length of an extension's own bytes */
#define ZRT_FRAMES_MAX      64u  /* max frames of a stack */
#define ZRT_STACKS_MAX      65535u
#define ZRT_BUILD_ID_BYTES  20u   /* max length; longer IDs are omitted */
#define ZRT_HEADER_MAX      4096u /* max bytes of a later release's header */

enum zrt_extension { ZRT_MODULE = 1, ZRT_STACK, ZRT_WITH, ZRT_FRAME, ZRT_SAMPLE };
#define ZRT_FRAME_ADDRESS (UINT64_C(1) << 63)
#define ZRT_FRAME_NUMBERS 65535u /* max number of a frame */

/* The missing resource of a failed request. */
enum zrt_cause {
    ZRT_CAUSE_UNKNOWN = 0,
    ZRT_CAUSE_SHORTAGE,           /* memory: the device has no more */
    ZRT_CAUSE_LIMIT,              /* memory: the arena's or the backend's limit is reached */
    ZRT_CAUSE_FRAGMENTATION,      /* enough bytes are free, but not in whole movable granules */
    ZRT_CAUSE_ADDRESSES,          /* addresses */
    ZRT_CAUSE_ADDRESSES_IN_A_ROW, /* enough addresses are free, but not contiguous */
    ZRT_CAUSE_MAPPINGS,           /* the system's limit of mappings */
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

/* The allocator that the trace describes. */
enum zrt_origin {
    ZRT_ORIGIN_ARENA = 0,
    ZRT_ORIGIN_TORCH,
    ZRT_ORIGIN_RMM,
    ZRT_ORIGIN_MINIMALLOC,
    ZRT_ORIGIN_CSV,
    ZRT_ORIGIN_COUNT
};

/* Flags of the information that the source file of a trace has or lacks. */
#define ZRT_EXPANDABLE   0x01u /* PyTorch with expandable segments */
#define ZRT_PENDING      0x02u /* has frees that wait for streams */
#define ZRT_NO_MAPS      0x04u /* lacks mappings */
#define ZRT_NO_TIMES     0x08u /* lacks times */
#define ZRT_NO_ADDRESSES 0x10u /* an address only distinguishes live blocks */

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
    uint64_t wall_start_ns;  /* the same time, since 1970 */
    uint32_t process;
    uint32_t error;        /* errno of ZRT_NO_SPACE */
    char arena[32];        /* the arena's name, terminated by a zero */
    uint32_t origin, says; /* enum zrt_origin; ZRT_EXPANDABLE.. */
    uint64_t zero[2];      /* reserved for later versions */
};
_Static_assert(sizeof(struct zrt_header) == 128, "the header's layout is the format");

#endif
