/* listener.h: where zrd listens, and the proof that it is the only zrd. Private to alloc/service/. One
 * thread.
 *
 * zrd has two addresses. The socket in the folder of this user's sockets goes when somebody removes the
 * folder (a logout removes /run/user/UID, a cleaner removes old files of /tmp); zrd notices it, and makes the
 * socket again. The abstract name (zr_service_name()) cannot be removed: clients and tools reach zrd by it
 * meanwhile, and a second zrd finds the first by it. */
#ifndef ZR_SERVICE_LISTENER_H
#define ZR_SERVICE_LISTENER_H

#include <sys/types.h>

#include "alloc/service/client/wire.h"
#include "alloc/service/server/log.h"

struct zr_listener {
    char key[ZR_SERVICE_KEY_BYTES]; /* "": closed, and the other fields mean nothing */
    struct sockaddr_un address;     /* of `socket` */
    int socket, name;               /* -1: not there. name: the abstract one */
    int lock;                       /* of a file beside the socket */
    int watch;                      /* inotify, of the folder; -1: the folder is looked at each second */
    dev_t device;                   /* of the socket's file, and its number there: */
    ino_t number;
    uint64_t due_ns;  /* when to look at the folder without a notice; UINT64_MAX: no time */
    bool is_reported; /* the socket could not be made again, and the log says so */
};

/* Makes this process the zrd of the key; it listens at the abstract name then. ZR_ERR_UNAVAILABLE: another
 * process is the zrd, and the words name it. */
zr_result zr_listener_open(struct zr_listener *listener, const char *key, struct zr_service_log *log);
/* Listens in the folder, too. ZR_ERR_IO. */
zr_result zr_listener_start(struct zr_listener *listener);
/* After a notice or at `due_ns`: makes the socket again if its file is gone. *again: it was made.
 * ZR_ERR_UNAVAILABLE, with words: another zrd has taken its place, or nobody can reach this one any more. */
zr_result zr_listener_check(struct zr_listener *listener, uint64_t now_ns, bool *again,
                            struct zr_service_log *log);
/* Removes the socket's file if it is still this one's. A closed listener stays as it is. */
void zr_listener_close(struct zr_listener *listener);

#endif
