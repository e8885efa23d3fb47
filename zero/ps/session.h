/* session.h: a server and its connections. Private to zero/ps/.
 *
 * A connection is in one of these phases: its other side proves the secret; it reads a request; the request
 * is held until the timing allows it; the answer is written. It reads no further request meanwhile. */
#ifndef ZR_PS_SESSION_H
#define ZR_PS_SESSION_H

#include "zero/comm/message/tcp/inside.h"
#include "zero/ps/link.h"
#include "zero/ps/store.h"

enum {
    ZR_PS_STRANGERS = 16, /* connections without a HELLO */
    ZR_PS_SESSIONS = ZR_PS_WORKERS_MAX + ZR_PS_EXTRA + ZR_PS_STRANGERS
};

enum zr_ps_phase { ZR_PS_FREE = 0, ZR_PS_SHAKING, ZR_PS_READING, ZR_PS_HOLDING, ZR_PS_WRITING };

struct zr_ps_session {
    enum zr_ps_phase phase;
    int fd;
    bool known, closes;   /* has said HELLO / closes once the answer is written */
    uint64_t deadline_ns; /* for HELLO */
    uint32_t worker;      /* of HELLO */
    unsigned buffer;      /* of its requests; see zr_ps_buffer() */
    struct zr_tcp_hand hand;
    struct zr_ps_frame frame; /* that is being read */
    size_t have_bytes;        /* of the hand, or of the frame and its payload */
    struct zr_ps_frame reply;
    const char *data; /* [data_bytes] of the reply */
    size_t data_bytes, sent_bytes;
    struct zr_ps_state report; /* `data` of a REPORT */
    char text[256];            /* `data` of a refusal */
};

struct zr_ps_server {
    struct zr_ps_setup setup;
    struct zr_ps_store store;
    int listener;
    zr_arena *arena;
    int epoll, stop[2]; /* stop: two ends of a socket */
    bool is_replica;    /* takes requests of its primary, until another client connects */
    bool replaced, stopped;
    struct zr_ps_link replica; /* of a primary; closed: it has none. Its event is that of `replica` */
    struct zr_ps_silent silent;
    uint64_t awaits_ns;             /* changes wait until then for the first replica; 0: they do not */
    char *answers;                  /* [workers + ZR_PS_EXTRA] of message_bytes */
    struct zr_ps_session *sessions; /* [ZR_PS_SESSIONS] */
    unsigned held, strangers;
    bool bye[ZR_PS_WORKERS_MAX]; /* has the answer to its LEAVE, or is dead */
    uint64_t last_ns;            /* of the last event */
    uint64_t told_ns;            /* when clients were last told that they are held */
    struct zr_ps_state state;
};

/* session.c: handles the request that has arrived on a session: answers, holds or refuses it. A failure ends
 * the server. / Tries a held request again. */
zr_result zr_ps_session_request(zr_ps_server *server, struct zr_ps_session *session);
zr_result zr_ps_session_retry(zr_ps_server *server, struct zr_ps_session *session);
/* Whether the primary has a replica, after hearing what that has said without a request: it has ended, or
 * has taken over, which sets server->replaced. / ZR_ERR_PEER, with words, if it has taken over. */
bool zr_ps_session_has_replica(zr_ps_server *server);
zr_result zr_ps_session_replaced(const zr_ps_server *server);
/* Whether a header may be followed by its payload; sets the session's buffer. */
bool zr_ps_session_header(zr_ps_server *server, struct zr_ps_session *session);
/* join.c: the client of a session becomes the replica: it gets the state, while other requests wait in their
 * connections. On failure the server has none. */
void zr_ps_join_accept(zr_ps_server *server, struct zr_ps_session *session);
/* Connects to the primary, receives its state and makes the connection a session. Errors of
 * zr_ps_server_create(). */
zr_result zr_ps_join(zr_ps_server *server, const char *primary);
/* server.c: adds a session that is reading / ends a connection / begins to write session->reply with `data`.
 */
void zr_ps_session_add(zr_ps_server *server, struct zr_ps_session *session);
void zr_ps_session_close(zr_ps_server *server, struct zr_ps_session *session);
void zr_ps_session_reply(zr_ps_server *server, struct zr_ps_session *session, zr_result result,
                         const char *data, size_t bytes);
/* Sends a frame beside the answers, after one that is being written. ZR_PS_ENDED: the connection is ended. */
enum zr_ps_told { ZR_PS_TOLD, ZR_PS_NO_ROOM, ZR_PS_ENDED };
enum zr_ps_told zr_ps_session_tell(zr_ps_server *server, struct zr_ps_session *session,
                                   const struct zr_ps_frame *frame);
/* While a server waits for its replica (`wait` of struct zr_ps_link): answers are written, requests of
 * clients are read and not handled, and the clients hear that they wait. `state` is the server. */
void zr_ps_server_wait(void *state);

#endif
