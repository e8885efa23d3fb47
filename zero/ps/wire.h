/* wire.h: what workers and servers exchange, byte for byte. Private to zero/ps/.
 *
 * All numbers are little-endian. A client has one connection to each server and one request under way on it.
 * Over TCP both sides first prove the secret of the run (zero/comm/message/tcp/wire.h); then, and on Unix
 * sockets at once:
 *
 *   request   struct zr_ps_frame, items_count x struct zr_ps_wire_item, data of each item
 *   reply     struct zr_ps_frame, data of each item; with a result other than ZR_OK, the message's text
 *
 * The data of an item begins at a multiple of 8 bytes:
 *
 *   FILL, PUSH  dense: `count` elements from `first` on; rows: ids [count], then floats [count][width]
 *   PULL, READ  dense: none; rows: ids [count]. The reply has elements, or floats [count][width]
 *
 * HELLO is the first request. Its `number` is the hash of the options; the reply has the worker's clock in
 * `clock` and the sequence number of its last request that changed something in `number`, and so has the
 * reply to each change. A later HELLO of the same worker ends its earlier connection. A worker that has the
 * answer to a later change refuses the server, which is a copy without that change.
 *
 * Sequence numbers of a worker rise by 1 with each request. A server applies a FILL, PUSH, END_STEP or LEAVE
 * only if its number is above that of the worker's last request of this kind, and answers as before
 * otherwise.
 *
 * A server that holds a request back, until the timing allows it or its replica has answered, sends a reply
 * of kind HELD every second.
 *
 * A replica connects to its primary as client ZR_PS_REPLICA. The answer to its HELLO is followed by the
 * primary's state (join.c), which the replica acknowledges with a frame of kind REPLY. From then on the
 * primary sends requests on this connection, with `worker` and `sequence` of their sender, and the replica
 * answers. A replica with a living primary closes the connection of another client, unless `content` of its
 * HELLO is 1: the client cannot connect to the primary. Then the replica sends the primary a reply with
 * ZR_ERR_PEER before it answers the client. */
#ifndef ZR_PS_WIRE_H
#define ZR_PS_WIRE_H

#include "zero/ps/options.h"

#define ZR_PS_VERSION UINT32_C(2)
#define ZR_PS_MAGIC   UINT32_C(0x53507a72)
#define ZR_PS_PRIMARY (UINT32_MAX - 1) /* of a session: it is of a replica's primary */
#define ZR_PS_REPLICA (UINT32_MAX - 2)

enum zr_ps_kind {
    ZR_PS_HELLO = 1,
    ZR_PS_FILL,       /* content, done, number: updates */
    ZR_PS_PULL,       /* clock */
    ZR_PS_READ,       /* content */
    ZR_PS_PUSH,       /* clock, rate, scale */
    ZR_PS_END_STEP,   /* clock: the step that ends */
    ZR_PS_LEAVE,      /* number: of the worker that leaves */
    ZR_PS_REPORT,     /* the reply is a struct zr_ps_state */
    ZR_PS_VERSION_OF, /* of table `number`; the reply has it in `number` */
    ZR_PS_BYE,        /* after the answer to the worker's own LEAVE; has no answer */
    ZR_PS_KINDS,
    ZR_PS_REPLY = 64,
    ZR_PS_HELD
};

/* Whether a request of this kind changes the state of a server: it is forwarded to the replica. */
static inline bool zr_ps_changes(uint32_t kind)
{
    return kind == ZR_PS_FILL || kind == ZR_PS_PUSH || kind == ZR_PS_END_STEP || kind == ZR_PS_LEAVE;
}

struct zr_ps_frame {
    uint32_t magic, kind;
    uint64_t sequence;
    uint64_t bytes; /* that follow */
    uint64_t number, clock;
    uint32_t worker, items_count;
    uint32_t content, done; /* of a reply: content is the zr_result */
    float rate, scale;
};

struct zr_ps_wire_item {
    uint32_t table, index; /* index: number of the push in the worker's step */
    uint64_t first, count; /* of a dense table: in the whole table */
    uint64_t bytes;        /* of its data in the request, without padding */
};

_Static_assert(sizeof(struct zr_ps_frame) == 64, "a frame has no padding");
_Static_assert(sizeof(struct zr_ps_wire_item) == 32, "an item has no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structures are sent as they are");

static inline size_t zr_ps_padded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

/* A request that has arrived: the frame, and what follows it in memory aligned to 8 bytes. */
struct zr_ps_request {
    const struct zr_ps_frame *frame;
    const char *payload; /* [frame->bytes] */
};

/* An item with its place. */
struct zr_ps_view {
    struct zr_ps_wire_item item;
    const struct zr_ps_entry *entry;
    const void *data;
    size_t reply_bytes; /* of its answer, padded */
};

/* frame.c: whether the header of a request can be one of a client: before its payload is read. */
bool zr_ps_frame_valid(const struct zr_ps_setup *setup, const struct zr_ps_frame *frame);
/* Whether all items of a request are of the tables and ranges of server `server`, and its bytes are theirs.
 * *reply_bytes gets the size of the answer's data. */
bool zr_ps_request_valid(const struct zr_ps_setup *setup, unsigned server, struct zr_ps_request request,
                         size_t *reply_bytes);
/* Item `i` of a valid request; *at is the offset of its data and moves to the next item's. Begin with the
 * value of zr_ps_first_data(). */
struct zr_ps_view zr_ps_view_of(const struct zr_ps_setup *setup, struct zr_ps_request request, unsigned i,
                                size_t *at);
static inline size_t zr_ps_first_data(struct zr_ps_request request)
{
    return request.frame->items_count * sizeof(struct zr_ps_wire_item);
}

#endif
