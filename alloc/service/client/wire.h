/* wire.h: messages of protocol.h over a socket. Private to the project. Any thread. */
#ifndef ZR_SERVICE_WIRE_H
#define ZR_SERVICE_WIRE_H

#include <sys/socket.h>
#include <sys/un.h>

#include "alloc/service/client/protocol.h"
#include "alloc/zr.h"

/* A received message with its descriptors, which the receiver owns. */
struct zr_service_packet {
    struct zr_service_message message;
    size_t bytes; /* received length; may exceed a message's size */
    int fds[ZR_SERVICE_FDS_MAX];
    unsigned fds_count;
    bool fds_lost; /* more descriptors were sent, or the process had none free */
};

/* The socket address of this user's zrd for the key. ZR_ERR_IO: the folder is missing, or with `make` cannot
 * be created. */
zr_result zr_service_address(const char *key, struct sockaddr_un *out, bool make);
/* zrd's abstract socket address, which does not depend on a folder: unique for user, process-number
 * namespace, key and zr_folder_scope(). Returns the address's length. */
socklen_t zr_service_name(const char *key, struct sockaddr_un *out);
/* Connects to the zrd of this user, by the socket in the folder or else by the abstract name.
 * ZR_ERR_UNAVAILABLE: no zrd; the message has the command that starts one. ZR_ERR_TIMEOUT: zrd does not
 * accept. */
zr_result zr_service_connect(const char *key, int *out);

/* The peer's process number; 0: unknown. */
int32_t zr_service_peer(int connection);

/* A message with magic, version and kind set, and all other fields 0. */
struct zr_service_message zr_service_message_of(enum zr_service_kind kind);
/* Sends a message, with `fd` if not negative. Waits while the peer's queue is full, unless `now`.
 * ZR_ERR_PEER: the peer closed the connection. ZR_ERR_TIMEOUT: the peer does not read. */
zr_result zr_service_send(int connection, const struct zr_service_message *message, int fd, bool now);
/* Waits up to timeout_ns for a message. ZR_ERR_PEER: the peer closed the connection. ZR_ERR_TIMEOUT. */
zr_result zr_service_receive(int connection, struct zr_service_packet *out, uint64_t timeout_ns);
/* Closes the descriptors that the receiver did not take (set to -1). */
void zr_service_packet_close(struct zr_service_packet *packet);
/* Checks that a received message is whole and its texts are terminated and printable. ZR_ERR_FORMAT: it is
 * not. ZR_ERR_UNAVAILABLE: another version. */
zr_result zr_service_packet_check(int connection, const struct zr_service_packet *packet);

#endif
