/* listener.h: the sockets at which zrd listens, and the check that no other zrd serves the user. Private to
 * alloc/service/. One thread.
 *
 * zrd has two addresses. The socket in the user's folder disappears with the folder (a logout removes
 * /run/user/UID, a cleaner removes old files of /tmp); zrd notices this and creates the socket again. The
 * abstract name (zr_service_name()) cannot be removed: clients and tools use it meanwhile, and a second zrd
 * finds the first zrd by it. */
#ifndef ZR_SERVICE_LISTENER_H
#define ZR_SERVICE_LISTENER_H

#include <sys/types.h>

#include "alloc/service/client/wire.h"
#include "alloc/service/server/log.h"

struct zr_listener {
    char key[ZR_SERVICE_KEY_BYTES]; /* "": closed; the other fields are invalid */
    struct sockaddr_un address;     /* of `socket` */
    int socket, name;               /* -1: none. name: the abstract socket */
    int lock;                       /* of a file beside the socket */
    int watch;                      /* inotify of the folder; -1: the folder is checked each second */
    dev_t device;                   /* of the socket's file, with its inode `number` */
    ino_t number;
    uint64_t due_ns;  /* when to check the folder without a notification; UINT64_MAX: never */
    bool is_reported; /* the log has the failure to create the socket again */
};

/* Makes this process the zrd of the key and listens at the abstract name. ZR_ERR_UNAVAILABLE: another process
 * is the zrd; the message names it. */
zr_result zr_listener_open(struct zr_listener *listener, const char *key, struct zr_service_log *log);
/* Listens at the socket in the folder as well. ZR_ERR_IO. */
zr_result zr_listener_start(struct zr_listener *listener);
/* Creates the socket again if its file was removed; called after a notification or at `due_ns`. *again: the
 * socket was created. ZR_ERR_UNAVAILABLE: another zrd has replaced this one, or this zrd is unreachable. */
zr_result zr_listener_check(struct zr_listener *listener, uint64_t now_ns, bool *again,
                            struct zr_service_log *log);
/* Closes the sockets and removes the socket's file if this listener created it. Closing twice is allowed. */
void zr_listener_close(struct zr_listener *listener);

#endif
