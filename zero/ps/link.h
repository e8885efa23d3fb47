/* link.h: connections of clients to servers, and the addresses of both. Private to zero/ps/.
 *
 * A link is used by one thread. Its calls wait, up to a point in time on the clock of zr_os_now_ns(). */
#ifndef ZR_PS_LINK_H
#define ZR_PS_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "zero/comm/message/tcp/address.h"

struct zr_ps_address {
    bool local; /* a Unix socket */
    union {
        struct sockaddr any;
        struct sockaddr_un path;
        struct zr_tcp_address tcp;
    };
};

struct zr_ps_link {
    int fd;       /* -1: closed */
    bool refused; /* the last attempt to open it: no server listens */
    uint64_t sent_bytes, received_bytes;
    void (*wait)(void *state); /* called every ZR_PS_WAIT_MS while a call waits; NULL: none */
    void *state;
};
enum { ZR_PS_WAIT_MS = 100 };

/* ZR_ERR_INVALID: neither unix:PATH nor HOST:PORT. */
zr_result zr_ps_address_read(struct zr_ps_address *out, const char *text);

/* Connects, and proves `secret` if the address is not local. ZR_ERR_UNAVAILABLE: there is no server, or it
 * has another secret; ZR_ERR_TIMEOUT. */
struct zr_ps_dial {
    const char *address;
    const unsigned char *secret; /* [ZR_TCP_SECRET_BYTES]; NULL: none, and only Unix sockets are possible */
    uint64_t deadline_ns;
};
zr_result zr_ps_link_open(struct zr_ps_link *link, const struct zr_ps_dial *dial);
void zr_ps_link_close(struct zr_ps_link *link);

/* Sends all parts; their contents stay, `parts` does not / receives exactly `bytes`. On failure the link is
 * closed, but what has arrived before the connection ended may be received after a send that failed.
 * ZR_ERR_UNAVAILABLE: the connection has ended; ZR_ERR_TIMEOUT. */
zr_result zr_ps_link_send(struct zr_ps_link *link, struct iovec *parts, unsigned count, uint64_t deadline_ns);
zr_result zr_ps_link_receive(struct zr_ps_link *link, void *data, size_t bytes, uint64_t deadline_ns);

#endif
