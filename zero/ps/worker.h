/* worker.h: a worker and its servers. Private to zero/ps/.
 *
 * A batch is sent in rounds: pieces of its items, as many as fit into one message to each server. The
 * requests of a round are sent to all servers, then the replies are awaited; a request stays in its buffer
 * until then, so that it can be sent again. */
#ifndef ZR_PS_WORKER_H
#define ZR_PS_WORKER_H

#include "zero/ps/link.h"
#include "zero/ps/wire.h"

enum { ZR_PS_PIECES = 256, ZR_PS_WHY_BYTES = 256 };

/* A part of an item. */
struct zr_ps_piece {
    const struct zr_ps_item *item;
    size_t first, count; /* elements of the table, or indices of ids */
};

struct zr_ps_peer {
    struct zr_ps_link link;
    char addresses[2][ZR_PS_ADDRESS_BYTES]; /* the server, its replica */
    uint64_t sequence, clock;
    uint64_t first;              /* sequence number before the last push */
    uint64_t acknowledged;       /* that of the last change that the server has, as its answer says */
    struct zr_ps_frame *request; /* and its payload */
    struct zr_ps_frame reply;
    char *answer;      /* [message_bytes]: payload of the reply */
    bool asked, ended; /* ended: see `leaves` of struct zr_ps_worker_options */
};

struct zr_ps_worker {
    struct zr_ps_setup setup;
    zr_arena *arena;
    uint32_t number;
    bool leaves;
    uint64_t timeout_ns, clock;
    struct zr_ps_peer *peers; /* [servers] */
    uint32_t *pushed;         /* [2][tables]: in this step / before the last push */
    uint64_t unanswered;      /* digest of the last push, if it ended with ZR_ERR_TIMEOUT; 0 */
    size_t *counts;           /* [ZR_PS_PIECES][servers]: elements or ids of a piece */
    char *buffers;
    struct zr_ps_counters counters;
    struct zr_ps_piece pieces[ZR_PS_PIECES]; /* of the round */
    unsigned pieces_count;
};

static inline size_t *zr_ps_counts_of(const struct zr_ps_worker *worker, unsigned piece)
{
    return worker->counts + (size_t)piece * worker->setup.options.servers;
}

/* peer.c: dies at the fault site `ps_message`. */
void zr_ps_message_point(void);
/* Connects to a server, or again, and says HELLO. */
zr_result zr_ps_peer_open(struct zr_ps_worker *worker, struct zr_ps_peer *peer, uint64_t deadline_ns);
/* Fills in and sends the requests of peers that are `asked` / waits for their replies: `answer` has the data.
 * ZR_ERR_PEER: a server refused, and the message has its reason. */
zr_result zr_ps_peers_exchange(struct zr_ps_worker *worker, const struct zr_ps_frame *frame);

/* batch.c: sends a batch in rounds, `frame` having the fields of the kind. */
zr_result zr_ps_batch_exchange(struct zr_ps_worker *worker, const struct zr_ps_frame *frame,
                               const struct zr_ps_batch *batch);

#endif
