/* socket.h: calls of sockets, each made again where a signal interrupts it. Private to the project; nothing
 * here allocates, and errors are errno's, without words.
 *
 * What sends, receives, accepts or waits for a descriptor goes through here or carries on by itself; the
 * fault sites descriptor, receive, send and wait act here, with all of their kinds. Any thread may call. */
#ifndef ZR_SOCKET_H
#define ZR_SOCKET_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "alloc/base/compiler.h"

/* One call each, made again after a signal; -1: errno. Descriptors are closed by exec. */
ZR_PRIVATE_API int zr_socket(int domain, int type);
ZR_PRIVATE_API int zr_accept(int listening, int flags);
ZR_PRIVATE_API int zr_connect(int socket, const struct sockaddr *address, socklen_t bytes);
/* A message: recvmsg(), sendmsg(). Descriptors that could not be received set MSG_CTRUNC. */
ZR_PRIVATE_API ssize_t zr_receive(int socket, struct msghdr *message, int flags);
ZR_PRIVATE_API ssize_t zr_send(int socket, const struct msghdr *message, int flags);
/* Bytes of a packet: recv(), send(). */
ZR_PRIVATE_API ssize_t zr_receive_packet(int socket, void *data, size_t bytes, int flags);
ZR_PRIVATE_API ssize_t zr_send_packet(int socket, const void *data, size_t bytes, int flags);
/* recv() of a stream: maybe fewer than `bytes`. */
ZR_PRIVATE_API ssize_t zr_receive_bytes(int socket, void *data, size_t bytes, int flags);
/* poll(), which goes on after a signal with the time that is left. */
ZR_PRIVATE_API int zr_poll(struct pollfd *fds, unsigned count, int timeout_ms);

#endif
