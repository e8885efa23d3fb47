/* server.h: zrd's connections, the files that it has made for its clients, and what it does with each
 * message. Private to alloc/service/. One thread. */
#ifndef ZR_SERVICE_SERVER_H
#define ZR_SERVICE_SERVER_H

#include "alloc/service/client/wire.h"
#include "alloc/service/server/ledger.h"
#include "alloc/service/server/limits.h"
#include "alloc/service/server/listener.h"
#include "alloc/service/server/log.h"
#include "alloc/service/server/stock.h"

struct zr_client;

/* How long clients of a zrd that has ended have to come back before turns are given; and what a tool waits
 * for those that are asked what they have idle. */
#define ZR_SERVER_SETTLE_NS  UINT64_C(1000000000)
#define ZR_SERVER_INQUIRE_NS UINT64_C(200000000)

/* What an event of epoll is about. */
struct zr_source {
    enum { ZR_SOURCE_LISTENING, ZR_SOURCE_FOLDER, ZR_SOURCE_SIGNAL, ZR_SOURCE_LINE, ZR_SOURCE_PROCESS } kind;
    struct zr_client *client;
};

struct zr_server {
    struct zr_ledger ledger; /* first */
    struct zr_service_log *log;
    struct zr_limits limits;
    struct zr_stock stock;       /* of a device's zrd */
    struct zr_listener listener; /* open before zr_server_listen() */
    int epoll, spare;            /* spare: closed to answer one connection when descriptors are used up */
    struct zr_client *clients;   /* the newest first */
    unsigned clients_count, unregistered_count, left_count;
    bool doomed; /* some of them are over */
    bool stop;
    struct zr_slab client_records;
    uint64_t started_ns;
    uint64_t looked_ns; /* when what is due now and then was last done */
};

static inline bool zr_server_has_device(const struct zr_server *server)
{
    return server->stock.backend != NULL;
}

/* capacity_bytes and within_ns of the ledger are set, and `stock` of a device's. ZR_ERR_UNAVAILABLE: the
 * system gives no epoll. */
zr_result zr_server_start(struct zr_server *server, struct zr_service_log *log);
/* Hangs up on everybody, and closes the listener. Clients keep their files. */
void zr_server_end(struct zr_server *server);
/* Accepts at its listener's sockets from here on. */
zr_result zr_server_listen(struct zr_server *server);
/* A connection, the server's from here on. */
void zr_server_admit(struct zr_server *server, int line);
/* Waits for something to do, at most so long (-1: no end), and does it. */
void zr_server_step(struct zr_server *server, int timeout_ms);
/* Stops the loop when the descriptor can be read. */
zr_result zr_server_stop_by(struct zr_server *server, int fd);

#endif
