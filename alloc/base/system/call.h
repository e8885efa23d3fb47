/* call.h: system calls that a signal can interrupt and that may move less than was asked for, each made again
 * until it is done. Private to the project; nothing here allocates, and errors are errno's, without words.
 *
 * Every read, write, transfer over a socket and wait for a descriptor goes through here or carries on by
 * itself; the fault sites read, write, descriptor, receive, send and wait act here, with all of their kinds.
 * Any thread may call. */
#ifndef ZR_CALL_H
#define ZR_CALL_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "alloc/base/private_api.h"

#define ZR_PRESENT_POSITION (-1) /* of a file, a pipe */

/* Reads `bytes` at `offset`; fewer only at the end. -1: errno. Waits where a descriptor is non-blocking. */
ZR_PRIVATE_API ssize_t zr_read_all(int fd, int64_t offset, void *data, size_t bytes);
/* Writes all of `bytes`; false: errno (ENOSPC where the system took nothing and gave no reason). */
ZR_PRIVATE_API bool zr_write_all(int fd, int64_t offset, const void *data, size_t bytes);
/* The beginning of a small file of the system's, ended by a zero. Returns its bytes, 0: there is none. */
size_t zr_read_text(const char *path, char *out, size_t room_bytes);

/* One call each, made again after a signal; -1: errno. Descriptors are closed by exec. */
ZR_PRIVATE_API int zr_open(const char *path, int flags, mode_t mode);
ZR_PRIVATE_API int zr_socket(int domain, int type);
ZR_PRIVATE_API int zr_accept(int listening, int flags);
ZR_PRIVATE_API int zr_connect(int socket, const struct sockaddr *address, socklen_t bytes);
/* A message: recvmsg(), sendmsg(). Descriptors that could not be received set MSG_CTRUNC. */
ZR_PRIVATE_API ssize_t zr_receive(int socket, struct msghdr *message, int flags);
ZR_PRIVATE_API ssize_t zr_send(int socket, const struct msghdr *message, int flags);
/* Bytes of a packet: recv(), send(). */
ZR_PRIVATE_API ssize_t zr_receive_packet(int socket, void *data, size_t bytes, int flags);
ZR_PRIVATE_API ssize_t zr_send_packet(int socket, const void *data, size_t bytes, int flags);
/* The same of a stream: maybe fewer than `bytes`. */
ssize_t zr_receive_bytes(int socket, void *data, size_t bytes, int flags);
ssize_t zr_send_bytes(int socket, const void *data, size_t bytes, int flags);
/* poll(), which goes on after a signal with the time that is left. */
ZR_PRIVATE_API int zr_poll(struct pollfd *fds, unsigned count, int timeout_ms);

#endif
