/* inside.h: the state of a TCP transport. Private to zero/comm/message/tcp/.
 *
 * An announced message moves only once its receive is posted, so no payload ever waits in a connection for a
 * receive, and no tag blocks another one. What a peer can make this rank keep is bounded by the windows of
 * wire.h. */
#ifndef ZR_TCP_INSIDE_H
#define ZR_TCP_INSIDE_H

#include <pthread.h>

#include "alloc/base/system/os.h"
#include "zero/comm/message/tcp/tcp.h"
#include "zero/comm/message/tcp/wire.h"

struct zr_tcp_operation;

/* A frame to write, with its payload. Belongs to an operation, a stream or a peer. */
struct zr_tcp_item {
    struct zr_tcp_item *next;
    struct zr_tcp_frame frame;
    const char *data; /* [data_bytes] */
    size_t data_bytes, sent_bytes;
    struct zr_tcp_operation *operation; /* whose payload or control frame this is; NULL: none */
    void *copy;                         /* rest of a payload whose message was cancelled; NULL: none */
    bool queued;
};

enum zr_tcp_state {
    ZR_TCP_FREE = 0,
    ZR_TCP_HELD,    /* a send that waits for the window */
    ZR_TCP_WAITING, /* a receive without a message / an announced send */
    ZR_TCP_MOVING,  /* bytes are under way */
    ZR_TCP_DONE,
    ZR_TCP_FAILED /* of its peer, or as `why` says */
};

struct zr_tcp_operation {
    struct zr_tcp_operation *next; /* in one list: free, held, moving sends, posted receives */
    struct zr_tcp_item item;       /* its one control frame or small message */
    enum zr_tcp_state state;
    uint32_t index, serial; /* its number is serial << 32 | index */
    unsigned peer;          /* of a receive from any peer: the peer of its message, once it has one */
    uint32_t tag;
    bool sends, any, released;     /* released: the caller has been told the result, or has cancelled */
    char *data;                    /* NULL: the bytes are dropped */
    size_t room_bytes;             /* of a receive: of `data` */
    size_t bytes;                  /* of the message */
    size_t moved_bytes, cut_bytes; /* written or received / handed to streams, or expected by headers */
    uint64_t remote;               /* number of the operation at the peer */
    uint64_t order;                /* of receives: in which they were posted */
    unsigned users;                /* streams that read or write its bytes */
    const char *why;               /* of a failure that is not the peer's; a constant */
};

/* A message without a receive. */
struct zr_tcp_envelope {
    struct zr_tcp_envelope *next;
    uint32_t tag;
    size_t bytes, have_bytes;
    uint64_t remote; /* number of the send; unused with data */
    uint64_t order;  /* of arrival */
    bool small;
    char data[]; /* [bytes] of a small message */
};

struct zr_tcp_stream {
    int fd; /* -1: closed */
    unsigned peer, number;
    bool blocked; /* the kernel takes no more bytes; waits for EPOLLOUT */
    /* Incoming. */
    struct zr_tcp_frame frame;
    size_t frame_bytes;            /* received */
    size_t left_bytes;             /* of the payload; 0: a header is next */
    size_t at_bytes;               /* position of the next byte in the message */
    struct zr_tcp_operation *into; /* NULL, and no envelope: the payload is dropped */
    struct zr_tcp_envelope *envelope;
    /* Outgoing, in order. */
    struct zr_tcp_item *first, **last;
    bool writing;             /* a write of the queue is under way */
    struct zr_tcp_item piece; /* of streams for large messages */
};

struct zr_tcp_list {
    struct zr_tcp_operation *first, **last;
};

struct zr_tcp_peer {
    struct zr_tcp_stream streams[1 + ZR_TCP_STREAMS_MAX];
    struct zr_tcp_list posted;  /* receives from this peer */
    struct zr_tcp_list held;    /* sends beyond the window */
    struct zr_tcp_list cleared; /* sends with bytes that no stream has taken yet */
    struct zr_tcp_envelope *unexpected, **unexpected_last;
    struct zr_tcp_item credit, beat, bye;
    unsigned small_left, announced; /* small messages that this rank may send / announced and not cleared */
    unsigned small_open;            /* small messages of the peer that have not been credited */
    unsigned small_received;        /* of them, those that a receive has taken */
    unsigned envelopes;             /* announcements of the peer without a receive */
    bool lost, left, failed, returns, draining; /* left, failed, returns: the peer has said BYE, see wire.h */
    uint64_t heard_ns, said_ns;                 /* on the transport's clock */
    char host[ZR_TCP_HOST_BYTES], why[ZR_TRANSPORT_WHY_BYTES];
};

enum { ZR_TCP_CHUNK = 128, ZR_TCP_CHUNKS = 512, ZR_TCP_SCRATCH = 64 << 10 };

struct zr_tcp {
    struct zr_transport *transport;
    struct zr_local_world *local; /* see struct zr_tcp_options */
    unsigned rank, world, streams;
    unsigned host_first, host_ranks; /* see struct zr_transport */
    zr_backend *backend;
    zr_arena *arena;
    pthread_mutex_t lock; /* of everything below */
    int epoll;
    struct zr_tcp_peer *peers;                      /* [world] */
    struct zr_tcp_operation *chunks[ZR_TCP_CHUNKS]; /* [ZR_TCP_CHUNK] each */
    unsigned chunks_count;
    struct zr_tcp_list free, posted_any;
    uint64_t orders;
    char *scratch; /* [ZR_TCP_SCRATCH]: bytes that are dropped */
    /* The clock counts at most two ticks between two looks, so a stopped process does not count its stop as
     * the silence of others. */
    uint64_t clock_ns, looked_ns, ticked_ns, heartbeat_ns;
    struct zr_thread thread;
    bool threaded, closing;
    _Atomic uint32_t stops; /* 1: the thread ends */
};

static inline unsigned zr_tcp_wires(const struct zr_tcp *tcp)
{
    return 1 + tcp->streams;
}

/* tcp.c: a transport without connections, in an arena of its own, which does not count in the byte plan of
 * the rank. If this fails, *out is what has been made, or unchanged / watches all connections; their clock
 * begins now / closes them and releases all. */
zr_result zr_tcp_make(struct zr_tcp **out, const struct zr_tcp_options *options);
zr_result zr_tcp_watch_all(struct zr_tcp *tcp);
void zr_tcp_destroy(struct zr_tcp *tcp);

/* streams.c: reads and writes what the connections take, and tests for lost peers. Waits for up to wait_ms
 * for the first event. Caller holds the lock. */
void zr_tcp_progress(struct zr_tcp *tcp, int wait_ms);
/* Says to each other rank, as far as its connection takes it, why this rank leaves. */
void zr_tcp_say_bye(struct zr_tcp *tcp, enum zr_tcp_bye why);
/* Queues a frame on a peer's first connection and writes what the connection takes. */
void zr_tcp_post(struct zr_tcp *tcp, unsigned peer, struct zr_tcp_item *item);
/* Writes what the peer's connections take. */
void zr_tcp_write(struct zr_tcp *tcp, unsigned peer);
/* Ends a peer: closes its connections and fails its operations. Does nothing if the peer is lost already. */
void zr_tcp_lose(struct zr_tcp *tcp, unsigned peer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads what has arrived on a connection, up to a limit; true: there may be more. */
bool zr_tcp_read(struct zr_tcp *tcp, struct zr_tcp_stream *stream);

/* match.c: the frame of a header that has been read. Sets the destination of its payload. False: the peer
 * breaks the protocol, and *why says how. */
bool zr_tcp_take_frame(struct zr_tcp *tcp, struct zr_tcp_stream *stream, const char **why);
/* The payload of a frame has arrived whole. */
void zr_tcp_end_payload(struct zr_tcp *tcp, struct zr_tcp_stream *stream);
/* An item of an operation has been written. */
void zr_tcp_end_item(struct zr_tcp *tcp, struct zr_tcp_item *item);
/* Takes the next piece of a cleared message for a stream; false: there is none. */
bool zr_tcp_next_piece(struct zr_tcp *tcp, struct zr_tcp_stream *stream);
/* Fails all operations of a peer and drops its announcements. */
void zr_tcp_fail_peer(struct zr_tcp *tcp, unsigned peer);
/* Functions of the transport, under the lock. */
int zr_tcp_start_send(struct zr_tcp *tcp, const struct zr_transport_message *message, uint64_t *number);
int zr_tcp_start_receive(struct zr_tcp *tcp, const struct zr_transport_message *message, uint64_t *number);
struct zr_tcp_operation *zr_tcp_find(struct zr_tcp *tcp, uint64_t number);
void zr_tcp_release(struct zr_tcp *tcp, struct zr_tcp_operation *operation);
/* Cancels an operation that has not ended. */
void zr_tcp_withdraw(struct zr_tcp *tcp, struct zr_tcp_operation *operation);

/* handshake.c: one side of the handshake of a connection, without the connection. */
enum zr_tcp_step {
    ZR_TCP_FAILS = 0, /* the other side lacks the secret or speaks another protocol; `why` */
    ZR_TCP_GOES_ON,   /* send out, then receive want_bytes */
    ZR_TCP_SUCCEEDS   /* send out. A side that accepts has the introduction of the other */
};
struct zr_tcp_hand {
    const unsigned char *secret;
    bool connects;
    unsigned state;
    struct zr_tcp_introduction introduction; /* own of the side that connects; else the other's */
    unsigned char a[ZR_TCP_NONCE_BYTES], c[ZR_TCP_NONCE_BYTES];
    unsigned char out[sizeof(struct zr_tcp_intro_message)], in[sizeof(struct zr_tcp_intro_message)];
    size_t out_bytes, want_bytes;
    const char *why;
};
enum zr_tcp_step zr_tcp_hand_begin(struct zr_tcp_hand *hand);
/* want_bytes have arrived in `in`. */
enum zr_tcp_step zr_tcp_hand_next(struct zr_tcp_hand *hand);
/* Whether an introduction can be of a rank of a run with `world` ranks. */
bool zr_tcp_introduction_valid(const struct zr_tcp_introduction *introduction, unsigned world);

/* secret.c: HMAC-SHA256 of a label, both random numbers and, unless NULL, an introduction. */
struct zr_tcp_proof {
    const unsigned char *secret;
    const char *label; /* of 4 bytes */
    const unsigned char *a, *c;
    const struct zr_tcp_introduction *introduction;
};
void zr_tcp_mac(unsigned char *out, const struct zr_tcp_proof *proof);
bool zr_tcp_mac_equal(const unsigned char *a, const unsigned char *b);

/* join.c: connects this rank's streams to all peers. */
zr_result zr_tcp_join(struct zr_tcp *tcp, const struct zr_tcp_options *options);

#endif
