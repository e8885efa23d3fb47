/* address.h: addresses and sockets of a TCP run. Private to zero/comm/message/tcp/. */
#ifndef ZR_TCP_ADDRESS_H
#define ZR_TCP_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "zero/comm/message/tcp/tcp.h"
#include "zero/comm/message/tcp/wire.h"

struct zr_tcp_address {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    };
    socklen_t bytes;
};

/* An address of HOST:PORT: the one with this number, modulo their count. ZR_ERR_INVALID: not HOST:PORT, or
 * HOST is neither an address nor a name that getent(1) finds: it runs once for a name. One thread at a time.
 */
zr_result zr_tcp_resolve(struct zr_tcp_address *out, const char *rendezvous, unsigned number);
/* The address at which a rank accepts / and back, of a listening socket. */
void zr_tcp_address_of(struct zr_tcp_address *out, const struct zr_tcp_introduction *introduction);
void zr_tcp_introduce_address(struct zr_tcp_introduction *out, int listener);
/* Listens at the own address of a connection, at any port. */
zr_result zr_tcp_listen_beside(int *out, int connection);
/* Sets a connection's options: no delay of small frames, and an end of the connection if the other side does
 * not acknowledge for twice this time. */
void zr_tcp_tune(int fd, uint64_t silence_ns);

#endif
