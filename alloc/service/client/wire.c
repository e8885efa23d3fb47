/* wire.c: see wire.h. Uses folders.c. */
#define _GNU_SOURCE
#include "alloc/service/client/wire.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"

enum { SEND_PATIENCE_S = 2 };

/* ---- Connections --------------------------------------------------------------------------------------- */

zr_result zr_service_address(const char *key, struct sockaddr_un *out, bool make)
{
    char folder[ZR_FOLDER_BYTES];
    zr_result result = zr_folder_runtime(folder, make);
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (result != ZR_OK)
        return result;
    int length = snprintf(out->sun_path, sizeof out->sun_path, "%s/service-%s.sock", folder, key);
    return length > 0 && (size_t)length < sizeof out->sun_path
               ? ZR_OK
               : zr_fail(ZR_ERR_IO, "the path of '%s' is too long for a socket: set XDG_RUNTIME_DIR", folder);
}

static struct ucred peer_of(int connection)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0
               ? peer
               : (struct ucred){.uid = (uid_t)-1};
}

static void start_command(char out[sizeof "zr service start --device " + ZR_SERVICE_KEY_BYTES],
                          const char *key)
{
    bool host = strcmp(key, ZR_SERVICE_HOST) == 0;
    sprintf(out, "zr service start%s%s", host ? "" : " --device ", host ? "" : key);
}

socklen_t zr_service_name(const char *key, struct sockaddr_un *out)
{
    uint64_t scope = zr_hash_text(zr_folder_scope());
    struct stat processes;
    bool known = stat("/proc/self/ns/pid", &processes) == 0;
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "zr-service-%lu-%lu-%016llx-%s",
                          (unsigned long)geteuid(), known ? (unsigned long)processes.st_ino : 0,
                          (unsigned long long)scope, key);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

int32_t zr_service_peer(int connection)
{
    return (int32_t)peer_of(connection).pid;
}

/* An address of zrd, and the message if zrd does not answer there. */
struct endpoint {
    struct sockaddr_un address;
    socklen_t bytes;
    const char *name, *start; /* of the socket; the command that starts a zrd there */
    struct timeval patience;  /* while its queue is full */
};

static zr_result connect_to(const struct endpoint *endpoint, int *out)
{
    const struct timeval patience = {.tv_sec = SEND_PATIENCE_S};
    int connection = zr_socket(AF_UNIX, SOCK_SEQPACKET);
    if (connection < 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "cannot create a socket (error %d): raise `ulimit -n`", errno);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &endpoint->patience, sizeof endpoint->patience);
    zr_result result = ZR_OK;
    if (zr_connect(connection, (const struct sockaddr *)&endpoint->address, endpoint->bytes) != 0)
        result = errno == ECONNREFUSED ? zr_fail(ZR_ERR_UNAVAILABLE, "the zrd of '%s' has ended: type `%s`",
                                                 endpoint->name, endpoint->start)
                 : errno == ENOENT     ? zr_fail(ZR_ERR_UNAVAILABLE, "no zrd listens at '%s': type `%s`",
                                                 endpoint->name, endpoint->start)
                                       : zr_fail(errno == EAGAIN ? ZR_ERR_TIMEOUT : ZR_ERR_UNAVAILABLE,
                                             "zrd at '%s' does not answer (error %d)", endpoint->name, errno);
    else if (peer_of(connection).uid != geteuid())
        result = zr_fail(ZR_ERR_UNAVAILABLE, "another user listens at '%s': remove it", endpoint->name);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (result == ZR_OK)
        *out = connection;
    else
        close(connection);
    return result;
}

/* The folder of this user's sockets is missing, or other users may write to it. */
static zr_result fail_without_folder(const char *start)
{
    char folder[ZR_FOLDER_BYTES], words[ZR_SERVICE_WORDS_BYTES];
    struct stat status;
    zr_folder_runtime(folder, false);
    snprintf(words, sizeof words, "%s", zr_last_error());
    return lstat(folder, &status) != 0
               ? zr_fail(ZR_ERR_UNAVAILABLE, "no zrd serves this user: type `%s`", start)
               : zr_fail(ZR_ERR_UNAVAILABLE, "%s; then type `%s`", words, start);
}

zr_result zr_service_connect(const char *key, int *out)
{
    char start[sizeof "zr service start --device " + ZR_SERVICE_KEY_BYTES], words[ZR_SERVICE_WORDS_BYTES];
    struct endpoint endpoint = {
        .bytes = sizeof endpoint.address, .start = start, .patience = {.tv_sec = SEND_PATIENCE_S}};
    *out = -1;
    start_command(start, key);
    zr_result result = zr_service_address(key, &endpoint.address, false);
    endpoint.name = endpoint.address.sun_path;
    result = result == ZR_OK ? connect_to(&endpoint, out) : fail_without_folder(start);
    if (result != ZR_ERR_UNAVAILABLE)
        return result;
    snprintf(words, sizeof words, "%s", zr_last_error());
    endpoint.bytes = zr_service_name(key, &endpoint.address);
    endpoint.patience = (struct timeval){.tv_usec = 1000}; /* any user can listen there and never accept */
    return connect_to(&endpoint, out) == ZR_OK ? ZR_OK : zr_fail(ZR_ERR_UNAVAILABLE, "%s", words);
}

/* ---- Messages ------------------------------------------------------------------------------------------ */

struct zr_service_message zr_service_message_of(enum zr_service_kind kind)
{
    return (struct zr_service_message){
        .magic = ZR_SERVICE_MAGIC, .version = ZR_SERVICE_VERSION, .kind = (uint16_t)kind};
}

union descriptors {
    struct cmsghdr header; /* for its alignment */
    char room[CMSG_SPACE(sizeof(int) * ZR_SERVICE_FDS_MAX)];
};

zr_result zr_service_send(int connection, const struct zr_service_message *message, int fd, bool now)
{
    union descriptors control_buffer = {0};
    struct iovec bytes = {(void *)(uintptr_t)message, sizeof *message};
    struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (fd >= 0) {
        header.msg_control = &control_buffer;
        header.msg_controllen = CMSG_SPACE(sizeof fd);
        struct cmsghdr *control = CMSG_FIRSTHDR(&header);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(control), &fd, sizeof fd);
    }
    ssize_t sent = zr_send(connection, &header, now ? MSG_DONTWAIT : 0);
    if (sent == (ssize_t)sizeof *message)
        return ZR_OK;
    return sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS)
               ? zr_fail(ZR_ERR_TIMEOUT, "the peer of the service's socket does not read")
               : zr_fail(ZR_ERR_PEER, "the peer closed the service's socket");
}

static void take_descriptors(struct msghdr *header, struct zr_service_packet *out)
{
    for (struct cmsghdr *control = CMSG_FIRSTHDR(header); control; control = CMSG_NXTHDR(header, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
            if (out->fds_count < ZR_SERVICE_FDS_MAX)
                out->fds[out->fds_count++] = fd;
            else
                close(fd);
        }
    }
    out->fds_lost = (header->msg_flags & MSG_CTRUNC) != 0;
}

zr_result zr_service_receive(int connection, struct zr_service_packet *out, uint64_t timeout_ns)
{
    uint64_t start_ns = timeout_ns ? zr_os_now_ns() : 0;
    bool was_reset = false; /* the peer's last messages follow this error */
    memset(out, 0, sizeof *out);
    for (;;) {
        union descriptors control_buffer;
        struct iovec bytes = {&out->message, sizeof out->message};
        struct msghdr header = {.msg_iov = &bytes,
                                .msg_iovlen = 1,
                                .msg_control = &control_buffer,
                                .msg_controllen = sizeof control_buffer};
        ssize_t got = zr_receive(connection, &header, MSG_DONTWAIT);
        if (got > 0) {
            take_descriptors(&header, out);
            out->bytes = header.msg_flags & MSG_TRUNC ? sizeof out->message + 1 : (size_t)got;
            return ZR_OK;
        }
        if (got < 0 && errno == ECONNRESET && !was_reset) {
            was_reset = true;
            continue;
        }
        if (got == 0 || errno != EAGAIN)
            return zr_fail(ZR_ERR_PEER, "the peer closed the service's socket");
        if (timeout_ns == 0)
            return ZR_ERR_TIMEOUT; /* common, so without a message */
        uint64_t passed_ns = zr_os_now_ns() - start_ns;
        if (passed_ns >= timeout_ns)
            return zr_fail(ZR_ERR_TIMEOUT, "zrd has not answered within %llu ms",
                           (unsigned long long)(timeout_ns / 1000000));
        struct pollfd poll_fd = {.fd = connection, .events = POLLIN};
        zr_poll(&poll_fd, 1, (int)((timeout_ns - passed_ns) / 1000000) + 1);
    }
}

void zr_service_packet_close(struct zr_service_packet *packet)
{
    for (unsigned i = 0; i < packet->fds_count; i++)
        if (packet->fds[i] >= 0)
            close(packet->fds[i]);
    packet->fds_count = 0;
}

static bool is_text(const char *text, size_t room_bytes)
{
    size_t length = strnlen(text, room_bytes);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return false;
    return length < room_bytes;
}

zr_result zr_service_packet_check(int connection, const struct zr_service_packet *packet)
{
    const struct zr_service_message *message = &packet->message;
    if (packet->bytes < 8 || message->magic != ZR_SERVICE_MAGIC)
        return zr_fail(ZR_ERR_FORMAT, "%zu bytes are not a message of the service", packet->bytes);
    if (message->version != ZR_SERVICE_VERSION)
        return zr_fail(
            ZR_ERR_UNAVAILABLE,
            "process %d uses version %u of the service's protocol and process %d version %d: install zrd and the libraries of one release, and restart both (`kill` ends a zrd; programs keep their memory)",
            (int)peer_of(connection).pid, message->version, (int)getpid(), ZR_SERVICE_VERSION);
    if (packet->bytes != sizeof *message)
        return zr_fail(ZR_ERR_FORMAT, "a message whose length is not %zu bytes", sizeof *message);
    if (message->kind == 0 || message->kind >= ZR_SERVICE_KIND_COUNT)
        return zr_fail(ZR_ERR_FORMAT, "a message of unknown kind (%u)", message->kind);
    if (!is_text(message->program, sizeof message->program) ||
        !is_text(message->group, sizeof message->group) || !is_text(message->words, sizeof message->words))
        return zr_fail(ZR_ERR_FORMAT, "a message with a text that is invalid or not terminated");
    unsigned wanted = message->kind == ZR_SERVICE_ADOPT || message->kind == ZR_SERVICE_WELCOME ||
                              message->kind == ZR_SERVICE_KEEP_ADOPT
                          ? 1
                          : 0;
    bool optional_fd =
        (message->kind == ZR_SERVICE_DONE || message->kind == ZR_SERVICE_GRANTED) && packet->fds_count == 1;
    if (packet->fds_lost && packet->fds_count < ZR_SERVICE_FDS_MAX)
        return zr_fail(ZR_ERR_HOST_MEMORY,
                       "process %d has no free descriptor to receive one: raise `ulimit -n`", (int)getpid());
    if (packet->fds_lost || (packet->fds_count != wanted && !optional_fd))
        return zr_fail(ZR_ERR_FORMAT, "a message with %s than its kind has",
                       packet->fds_lost || packet->fds_count > wanted ? "more descriptors"
                                                                      : "fewer descriptors");
    return ZR_OK;
}
