/* server.h: zrd's connections and its event loop. Private to alloc/service/. One thread. */
#ifndef ZR_SERVICE_SERVER_H
#define ZR_SERVICE_SERVER_H

#include "alloc/keep/holder.h"
#include "alloc/service/client/wire.h"
#include "alloc/service/server/ledger.h"
#include "alloc/service/server/limits.h"
#include "alloc/service/server/listener.h"
#include "alloc/service/server/log.h"
#include "alloc/service/server/device_pool.h"

struct zr_connection;

/* The time that clients of an earlier zrd have to reconnect before time slices begin, and the time that a
 * tool waits for answers to INQUIRE. */
#define ZR_SERVER_SETTLE_NS  UINT64_C(1000000000)
#define ZR_SERVER_INQUIRE_NS UINT64_C(200000000)

/* The source of an epoll event. */
struct zr_source {
    enum {
        ZR_SOURCE_LISTENING,
        ZR_SOURCE_FOLDER,
        ZR_SOURCE_SIGNAL,
        ZR_SOURCE_REQUESTS,
        ZR_SOURCE_PROCESS
    } kind;
    struct zr_connection *connection;
};

struct zr_server {
    struct zr_ledger ledger; /* first */
    struct zr_service_log *log;
    struct zr_limits limits;
    struct zr_device_pool device_pool;    /* of a device's zrd */
    struct zr_kept_holder holder;         /* kept memory, of the host's zrd; see connection.h */
    uint64_t keep_for_ns, kept_looked_ns; /* how long a segment stays that no process writes */
    struct zr_listener listener;          /* open before zr_server_listen() */
    int epoll, spare; /* spare: a descriptor closed to answer one connection when none is free */
    struct zr_connection *connections; /* the newest first */
    unsigned connections_count, unregistered_count, left_count;
    bool disconnected; /* some clients are to be disconnected */
    bool stop;
    struct zr_slab connection_records;
    uint64_t started_ns;
    uint64_t looked_ns; /* when the periodic checks ran last */
};

static inline bool zr_server_has_device(const struct zr_server *server)
{
    return server->device_pool.backend != NULL;
}

/* The caller has set capacity_bytes and within_ns of the ledger, and `device_pool` for a device.
 * ZR_ERR_UNAVAILABLE: the system refused an epoll descriptor. */
zr_result zr_server_start(struct zr_server *server, struct zr_service_log *log);
/* Closes all connections and the listener. Clients keep their files. */
void zr_server_end(struct zr_server *server);
/* Starts to accept connections at the listener's sockets. */
zr_result zr_server_listen(struct zr_server *server);
/* Takes ownership of a new connection. */
void zr_server_admit(struct zr_server *server, int requests);
/* A record in the list of connections, without sockets and not registered; NULL, with a message: there are
 * too many. */
struct zr_connection *zr_server_new_connection(struct zr_server *server, int32_t pid);
/* Waits for events, at most timeout_ms (-1: no limit), and handles them. */
void zr_server_step(struct zr_server *server, int timeout_ms);
/* Stops the loop when the descriptor becomes readable. */
zr_result zr_server_stop_by(struct zr_server *server, int fd);

#endif
