/* wire.h: messages of protocol.h over a socket. Private to the project. Any thread. */
#ifndef ZR_SERVICE_WIRE_H
#define ZR_SERVICE_WIRE_H

#include <sys/socket.h>
#include <sys/un.h>

#include "alloc/service/client/protocol.h"
#include "alloc/zr.h"

/* A message that came, and what was beside it. The receiver owns the descriptors. */
struct zr_service_parcel {
    struct zr_service_message message;
    size_t bytes; /* that came; more than a message's: it was longer */
    int fds[ZR_SERVICE_FDS_MOST];
    unsigned fds_count;
    bool fds_lost; /* there were more of them, or no descriptor was left for one */
};

/* Where this user's zrd of the key listens. ZR_ERR_IO: there is no folder for it, and none can be had if
 * `make`. */
zr_result zr_service_address(const char *key, struct sockaddr_un *out, bool make);
/* The abstract name at which it listens as well, and which no removal of a folder takes away: one for each
 * user, process-number space, key and zr_folder_scope(). Returns the address's length. */
socklen_t zr_service_name(const char *key, struct sockaddr_un *out);
/* Connects to zrd, which must run as this user, by the socket in the folder or else by the abstract name.
 * ZR_ERR_UNAVAILABLE, with the way out: none is there. ZR_ERR_TIMEOUT: it does not accept. */
zr_result zr_service_connect(const char *key, int *out);

/* The process at the other end; 0: not known. */
int32_t zr_service_peer(int line);

/* All zeros but for what opens it. */
struct zr_service_message zr_service_message_of(enum zr_service_kind kind);
/* `fd` below 0: none goes with it. Waits while the other end's queue is full, unless `now`. ZR_ERR_PEER: the
 * other end is gone. ZR_ERR_TIMEOUT: it does not read. */
zr_result zr_service_send(int line, const struct zr_service_message *message, int fd, bool now);
/* Waits so long for a message; 0: not at all. ZR_ERR_PEER: the other end has hung up; ZR_ERR_TIMEOUT. */
zr_result zr_service_receive(int line, struct zr_service_parcel *out, uint64_t timeout_ns);
/* Closes what came beside it and was not taken (set to -1). */
void zr_service_parcel_end(struct zr_service_parcel *parcel);
/* Whether what the line brought is a message of this version, whole, its texts ended and printable.
 * ZR_ERR_FORMAT, with words; ZR_ERR_UNAVAILABLE: of another version. */
zr_result zr_service_parcel_check(int line, const struct zr_service_parcel *parcel);

#endif
