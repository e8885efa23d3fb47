/* socket.c: see socket.h. Uses fault.h and the clock. */
#define _GNU_SOURCE
#include "alloc/base/system/socket.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"

/* ---- Descriptors --------------------------------------------------------------------------------------- */

int zr_socket(int domain, int type)
{
    return zr_fault_no_descriptor() ? -1 : socket(domain, type | SOCK_CLOEXEC, 0);
}

int zr_accept(int listening, int flags)
{
    int fd = -1;
    if (zr_fault_no_descriptor())
        return -1;
    do
        fd = zr_fault_interrupts(ZR_FAULT_DESCRIPTOR) ? -1
                                                      : accept4(listening, NULL, NULL, flags | SOCK_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* One that a signal interrupts while it waits in a local socket's queue has left the queue. */
int zr_connect(int socket, const struct sockaddr *address, socklen_t bytes)
{
    int failed;
    do
        failed = zr_fault_interrupts(ZR_FAULT_WAIT) ? -1 : connect(socket, address, bytes);
    while (failed != 0 && errno == EINTR);
    return failed;
}

/* ---- Sockets ------------------------------------------------------------------------------------------- */

/* A pass that fails: the other end is gone. */
static bool gone(enum zr_fault_site site, int error)
{
    bool fails = zr_fault(site);
    if (fails)
        errno = error;
    return fails;
}

/* What the kernel does with those of a message for which a process has no place. */
static void lose_descriptors(struct msghdr *message)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
            close(fd);
        }
        message->msg_flags |= MSG_CTRUNC;
    }
    message->msg_controllen = 0;
}

ssize_t zr_receive(int socket, struct msghdr *message, int flags)
{
    const struct msghdr asked = *message;
    ssize_t got;
    if (gone(ZR_FAULT_RECEIVE, ECONNRESET))
        return -1;
    do {
        *message = asked;
        got = zr_fault_interrupts(ZR_FAULT_RECEIVE) ? -1 : recvmsg(socket, message, flags | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got >= 0 && message->msg_controllen > 0 && zr_fault(ZR_FAULT_DESCRIPTOR))
        lose_descriptors(message);
    return got;
}

ssize_t zr_send(int socket, const struct msghdr *message, int flags)
{
    ssize_t sent;
    if (gone(ZR_FAULT_SEND, EPIPE))
        return -1;
    do
        sent = zr_fault_interrupts(ZR_FAULT_SEND) ? -1 : sendmsg(socket, message, flags | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

ssize_t zr_receive_packet(int socket, void *data, size_t bytes, int flags)
{
    struct iovec part = {data, bytes};
    return zr_receive(socket, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, flags);
}

ssize_t zr_send_packet(int socket, const void *data, size_t bytes, int flags)
{
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    return zr_send(socket, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, flags);
}

ssize_t zr_receive_bytes(int socket, void *data, size_t bytes, int flags)
{
    return zr_receive_packet(socket, data, zr_fault_part(ZR_FAULT_RECEIVE, bytes), flags);
}

int zr_poll(struct pollfd *fds, unsigned count, int timeout_ms)
{
    uint64_t end_ns = timeout_ms > 0 ? zr_os_now_ns() + (uint64_t)timeout_ms * 1000000 : 0;
    for (;;) {
        int ready = zr_fault_interrupts(ZR_FAULT_WAIT) ? -1 : poll(fds, count, timeout_ms);
        if (ready >= 0 || errno != EINTR)
            return ready;
        uint64_t now_ns = timeout_ms > 0 ? zr_os_now_ns() : 0;
        if (timeout_ms > 0)
            timeout_ms = now_ns < end_ns ? (int)((end_ns - now_ns) / 1000000) + 1 : 0;
    }
}
