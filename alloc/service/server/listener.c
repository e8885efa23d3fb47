/* listener.c: see listener.h. Uses wire.c. */
#define _GNU_SOURCE
#include "alloc/service/server/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"

enum { QUEUE_MAX = 1024 };
#define CHECK_NS UINT64_C(1000000000)
/* Delay before the socket is created again: `rm -r` removes the folder after its files, and fails if a file
 * appears meanwhile. */
#define SETTLE_NS UINT64_C(250000000)

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int listen_at(const struct sockaddr_un *address, socklen_t bytes)
{
    int fd = zr_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
    if (fd >= 0 && (bind(fd, (const struct sockaddr *)address, bytes) != 0 || listen(fd, QUEUE_MAX) != 0)) {
        int error = errno;
        close_fd(&fd);
        errno = error;
    }
    return fd;
}

/* ---- One zrd per user and key -------------------------------------------------------------------------- */

/* Reports that another zrd serves the user. `process` 0: unknown. */
static zr_result fail_for_another(int32_t process)
{
    return process
               ? zr_fail(ZR_ERR_UNAVAILABLE,
                         "another zrd serves this user there, process %d: `zr service status` shows it, and "
                         "`zr service stop` or `kill %d` ends it",
                         (int)process, (int)process)
               : zr_fail(ZR_ERR_UNAVAILABLE,
                         "another zrd serves this user there: `zr service status` shows it");
}

/* The process that listens at the abstract name. 0: it has exited, or another user owns it. */
static int32_t owner_of_name(const struct sockaddr_un *address, socklen_t bytes)
{
    struct ucred peer = {0};
    socklen_t bytes_of_peer = sizeof peer;
    int fd = zr_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
    if (fd < 0 || zr_connect(fd, (const struct sockaddr *)address, bytes) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes_of_peer) != 0 || peer.uid != geteuid())
        peer.pid = 0;
    close_fd(&fd);
    return (int32_t)peer.pid;
}

/* Listens at the abstract name, or continues without the name if another user has it. */
static zr_result bind_abstract_name(struct zr_listener *listener, struct zr_service_log *log)
{
    struct sockaddr_un address;
    socklen_t bytes = zr_service_name(listener->key, &address);
    int32_t owner = 0;
    for (unsigned tries = 0; listener->name < 0 && owner == 0 && tries < 2; tries++) {
        listener->name = listen_at(&address, bytes);
        if (listener->name < 0)
            owner = owner_of_name(&address, bytes);
    }
    if (owner)
        return fail_for_another(owner);
    if (listener->name < 0)
        zr_service_log(log, "cannot create the abstract socket (error %d): zrd ends if its folder is removed",
                       errno);
    return ZR_OK;
}

/* Acquires the lock that the kernel releases when the process exits. The file has the process's number. */
static zr_result acquire_lock(struct zr_listener *listener)
{
    char path[sizeof listener->address.sun_path + 8], number[16] = "";
    snprintf(path, sizeof path, "%s.lock", listener->address.sun_path);
    struct stat held, status;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return zr_fail(ZR_ERR_IO, "cannot make '%s' (error %d)", path, errno);
    if (listener->lock >= 0 && fstat(listener->lock, &held) == 0 && fstat(fd, &status) == 0 &&
        held.st_dev == status.st_dev && held.st_ino == status.st_ino) {
        close(fd);
        return ZR_OK;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        int length = snprintf(number, sizeof number, "%ld\n", (long)getpid());
        if (ftruncate(fd, 0) != 0 || !zr_write_all(fd, 0, number, (size_t)length))
            number[0] = '\0'; /* for people only */
        close_fd(&listener->lock);
        listener->lock = fd;
        return ZR_OK;
    }
    ssize_t got = zr_read_all(fd, 0, number, sizeof number - 1);
    number[got > 0 ? got : 0] = '\0';
    close(fd);
    return fail_for_another((int32_t)strtol(number, NULL, 10));
}

zr_result zr_listener_open(struct zr_listener *listener, const char *key, struct zr_service_log *log)
{
    *listener = (struct zr_listener){.socket = -1, .name = -1, .lock = -1, .watch = -1, .due_ns = UINT64_MAX};
    snprintf(listener->key, sizeof listener->key, "%s", key);
    zr_result result = zr_service_address(key, &listener->address, true);
    if (result == ZR_OK)
        result = bind_abstract_name(listener, log);
    if (result == ZR_OK)
        result = acquire_lock(listener);
    if (result != ZR_OK)
        zr_listener_close(listener);
    return result;
}

/* ---- The socket in the folder -------------------------------------------------------------------------- */

static bool socket_file_exists(const struct zr_listener *listener)
{
    struct stat status;
    return listener->socket >= 0 && lstat(listener->address.sun_path, &status) == 0 &&
           status.st_dev == listener->device && status.st_ino == listener->number;
}

static void watch_folder(struct zr_listener *listener)
{
    char folder[sizeof listener->address.sun_path];
    close_fd(&listener->watch);
    snprintf(folder, sizeof folder, "%s", listener->address.sun_path);
    *strrchr(folder, '/') = '\0';
    listener->watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (listener->watch >= 0 && inotify_add_watch(listener->watch, folder,
                                                  IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF |
                                                      IN_MOVE_SELF | IN_ONLYDIR) < 0)
        close_fd(&listener->watch);
}

/* The lock is held, so an existing socket file belongs to a dead zrd. */
zr_result zr_listener_start(struct zr_listener *listener)
{
    const char *path = listener->address.sun_path;
    struct stat status;
    watch_folder(listener);
    unlink(path);
    listener->socket = listen_at(&listener->address, sizeof listener->address);
    if (listener->socket < 0 || chmod(path, 0600) != 0 || lstat(path, &status) != 0) {
        int error = errno;
        close_fd(&listener->socket);
        return zr_fail(ZR_ERR_IO, "cannot listen at '%s' (error %d)", path, error);
    }
    listener->device = status.st_dev;
    listener->number = status.st_ino;
    listener->due_ns = listener->watch >= 0 ? UINT64_MAX : zr_os_now_ns() + CHECK_NS;
    return ZR_OK;
}

static void drain_inotify(int watch)
{
    char events[4096];
    while (watch >= 0 && read(watch, events, sizeof events) > 0)
        ;
}

/* The folder's path may have changed: see zr_folder_runtime(). */
static zr_result recreate_socket(struct zr_listener *listener)
{
    close_fd(&listener->socket);
    zr_result result = zr_service_address(listener->key, &listener->address, true);
    if (result == ZR_OK)
        result = acquire_lock(listener);
    return result == ZR_OK ? zr_listener_start(listener) : result;
}

zr_result zr_listener_check(struct zr_listener *listener, uint64_t now_ns, bool *again,
                            struct zr_service_log *log)
{
    *again = false;
    drain_inotify(listener->watch);
    if (socket_file_exists(listener)) {
        listener->due_ns = listener->watch >= 0 ? UINT64_MAX : now_ns + CHECK_NS;
        return ZR_OK;
    }
    if (listener->due_ns > now_ns) {
        if (listener->due_ns == UINT64_MAX)
            listener->due_ns = now_ns + SETTLE_NS;
        return ZR_OK;
    }
    zr_result result = recreate_socket(listener);
    *again = result == ZR_OK;
    listener->due_ns = *again && listener->watch >= 0 ? UINT64_MAX : now_ns + CHECK_NS;
    if (*again)
        zr_service_log(log, "the socket was removed; listens at '%s' again", listener->address.sun_path);
    else if (result == ZR_ERR_IO && !listener->is_reported)
        zr_service_log(log, "the socket was removed and cannot be created again: %s", zr_last_error());
    listener->is_reported = !*again;
    return result == ZR_ERR_IO && listener->name >= 0 ? ZR_OK : result;
}

void zr_listener_close(struct zr_listener *listener)
{
    if (!listener->key[0])
        return;
    if (socket_file_exists(listener))
        unlink(listener->address.sun_path);
    close_fd(&listener->socket);
    close_fd(&listener->name);
    close_fd(&listener->watch);
    close_fd(&listener->lock);
    listener->key[0] = '\0';
}
