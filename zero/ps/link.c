/* link.c: see link.h. */
#define _GNU_SOURCE
#include "zero/ps/link.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "zero/comm/message/tcp/inside.h"
#include "zero/ps/zr_ps.h"

enum { BACKLOG = 512 };
#define LOCAL      "unix:"
#define SILENCE_NS UINT64_C(10000000000)

zr_result zr_ps_address_read(struct zr_ps_address *out, const char *text)
{
    memset(out, 0, sizeof *out);
    out->local = strncmp(text, LOCAL, strlen(LOCAL)) == 0;
    if (!out->local)
        return zr_tcp_resolve(&out->tcp, text, 0);
    const char *path = text + strlen(LOCAL);
    size_t bytes = strlen(path);
    if (bytes == 0 || bytes >= sizeof out->path.sun_path)
        return zr_fail(ZR_ERR_INVALID, "%s: the path of a Unix socket has 1 to %zu bytes; give a shorter one",
                       text, sizeof out->path.sun_path - 1);
    out->path.sun_family = AF_UNIX;
    memcpy(out->path.sun_path, path, bytes);
    return ZR_OK;
}

static zr_result listen_locally(int *out, const struct zr_ps_address *address, const char *text)
{
    const char *path = address->path.sun_path;
    enum zr_path_kind kind = ZR_PATH_NONE;
    zr_result result = zr_path_kind_get(path, &kind);
    if (result == ZR_OK && kind == ZR_PATH_OTHER)
        result = zr_path_unlink(path);
    if (result != ZR_OK)
        return result;
    *out = zr_socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK);
    if (*out >= 0 && bind(*out, &address->any, sizeof address->path) == 0 && listen(*out, BACKLOG) == 0)
        return ZR_OK;
    int error = errno;
    if (*out >= 0)
        close(*out);
    *out = -1;
    return zr_fail(ZR_ERR_UNAVAILABLE, "a parameter server cannot accept connections at %s: %s", text,
                   strerrordesc_np(error));
}

zr_result zr_ps_listen(int *out, const char *text, char actual[ZR_PS_ADDRESS_BYTES])
{
    struct zr_ps_address address;
    if (!out || !text)
        return zr_fail(ZR_ERR_INVALID, "%s: out or address is NULL", __func__);
    *out = -1;
    zr_result result = zr_ps_address_read(&address, text);
    if (result != ZR_OK || !address.local)
        return result == ZR_OK ? zr_tcp_listen(out, text, actual) : result;
    result = listen_locally(out, &address, text);
    if (result == ZR_OK && actual)
        snprintf(actual, ZR_PS_ADDRESS_BYTES, "%s", text);
    return result;
}

void zr_ps_link_close(struct zr_ps_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
}

static const char ended[] = "the connection to a parameter server has ended";

static zr_result end_link(struct zr_ps_link *link, const char *why)
{
    zr_ps_link_close(link);
    return zr_fail(ZR_ERR_UNAVAILABLE, "%s: %s", ended, why);
}

/* Waits for an event of the socket. */
static zr_result await(struct zr_ps_link *link, short events, uint64_t deadline_ns)
{
    struct pollfd fd = {.fd = link->fd, .events = events};
    for (uint64_t now_ns = zr_os_now_ns(); now_ns < deadline_ns; now_ns = zr_os_now_ns()) {
        uint64_t left_ms = (deadline_ns - now_ns) / 1000000 + 1, max = link->wait ? ZR_PS_WAIT_MS : INT_MAX;
        if (zr_poll(&fd, 1, (int)(left_ms < max ? left_ms : max)) > 0)
            return ZR_OK;
        if (link->wait)
            link->wait(link->state);
    }
    zr_ps_link_close(link);
    return zr_fail(ZR_ERR_TIMEOUT, "a parameter server did not answer in time");
}

zr_result zr_ps_link_send(struct zr_ps_link *link, struct iovec *parts, unsigned count, uint64_t deadline_ns)
{
    zr_result result = ZR_OK;
    if (link->fd < 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "there is no connection to a parameter server");
    while (count > 0 && result == ZR_OK) {
        if (parts->iov_len == 0) {
            parts++;
            count--;
            continue;
        }
        ssize_t sent = zr_send(
            link->fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = count < IOV_MAX ? count : IOV_MAX}, 0);
        if (sent < 0 && errno != EAGAIN) {
            result = zr_fail(ZR_ERR_UNAVAILABLE, "%s: %s", ended, strerrordesc_np(errno));
            shutdown(link->fd, SHUT_RDWR);
            return result;
        }
        if (sent < 0)
            result = await(link, POLLOUT, deadline_ns);
        link->sent_bytes += sent > 0 ? (uint64_t)sent : 0;
        for (size_t left = sent > 0 ? (size_t)sent : 0; left > 0;) {
            size_t here = left < parts->iov_len ? left : parts->iov_len;
            parts->iov_base = (char *)parts->iov_base + here;
            parts->iov_len -= here;
            left -= here;
            if (parts->iov_len == 0) {
                parts++;
                count--;
            }
        }
    }
    return result;
}

zr_result zr_ps_link_receive(struct zr_ps_link *link, void *data, size_t bytes, uint64_t deadline_ns)
{
    zr_result result = ZR_OK;
    if (link->fd < 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "there is no connection to a parameter server");
    for (size_t have = 0; have < bytes && result == ZR_OK;) {
        ssize_t got = zr_receive_bytes(link->fd, (char *)data + have, bytes - have, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return end_link(link, got == 0 ? "the server has closed it" : strerrordesc_np(errno));
        if (got < 0)
            result = await(link, POLLIN, deadline_ns);
        else
            have += (size_t)got;
        link->received_bytes += got > 0 ? (uint64_t)got : 0;
    }
    return result;
}

/* Both sides prove the secret. */
static zr_result shake_hands(struct zr_ps_link *link, const struct zr_ps_dial *dial)
{
    struct zr_tcp_hand hand = {.secret = dial->secret, .connects = true};
    enum zr_tcp_step step = zr_tcp_hand_begin(&hand);
    zr_result result = ZR_OK;
    while (result == ZR_OK && step != ZR_TCP_FAILS) {
        struct iovec part = {hand.out, hand.out_bytes};
        result = zr_ps_link_send(link, &part, 1, dial->deadline_ns);
        if (result != ZR_OK || step == ZR_TCP_SUCCEEDS)
            return result;
        result = zr_ps_link_receive(link, hand.in, hand.want_bytes, dial->deadline_ns);
        if (result == ZR_OK)
            step = zr_tcp_hand_next(&hand);
    }
    return result == ZR_OK ? end_link(link, hand.why) : result;
}

zr_result zr_ps_link_open(struct zr_ps_link *link, const struct zr_ps_dial *dial)
{
    struct zr_ps_address address;
    link->fd = -1;
    link->refused = false;
    zr_result result = zr_ps_address_read(&address, dial->address);
    if (result != ZR_OK)
        return result;
    if (!address.local && !dial->secret)
        return zr_fail(ZR_ERR_INVALID, "%s: a TCP connection requires a secret (zr_ps_options.secret)",
                       dial->address);
    link->fd = zr_socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK);
    if (link->fd < 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "no socket: %s", strerrordesc_np(errno));
    int failed = zr_connect(link->fd, &address.any, address.local ? sizeof address.path : address.tcp.bytes);
    int error = failed ? errno : 0;
    if (error == EINPROGRESS) {
        socklen_t bytes = sizeof error;
        error = 0;
        result = await(link, POLLOUT, dial->deadline_ns);
        if (result == ZR_OK)
            getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    link->refused = error == ECONNREFUSED || error == ENOENT;
    if (result == ZR_OK && error != 0)
        result = end_link(link, strerrordesc_np(error));
    if (result == ZR_OK && !address.local) {
        zr_tcp_tune(link->fd, SILENCE_NS);
        result = shake_hands(link, dial);
    }
    if (result != ZR_OK)
        zr_ps_link_close(link);
    return result;
}
