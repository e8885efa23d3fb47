/* join.c: a new replica receives the state of a running server, between two of its requests. See session.h
 * and wire.h.
 *
 * Small parts of the state are collected in a buffer, which is sent behind its length; larger ones are sent
 * as they are. Both sides know the sizes, so both know which is which. */
#include <string.h>
#include <sys/epoll.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "zero/ps/session.h"

enum { RETRY_MS = 20, PIECE_BYTES = 4 << 20 };
#define JOIN_NS    UINT64_C(60000000000) /* until a primary accepts */
#define SILENCE_NS UINT64_C(10000000000) /* of a piece */

/* What servers have beside their store. */
struct head {
    struct zr_ps_state state;
    uint64_t updates, staleness[ZR_PS_STALE_BINS];
    uint8_t bye[ZR_PS_WORKERS_MAX];
};

struct stream {
    struct zr_ps_link *link;
    char *buffer;
    size_t room, have, at; /* bytes of the buffer: all, filled, taken */
};

static zr_result move_bytes(struct zr_ps_link *link, bool sends, void *data, size_t bytes)
{
    zr_result result = ZR_OK;
    for (size_t at = 0, n; at < bytes && result == ZR_OK; at += n) {
        n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        struct iovec part = {(char *)data + at, n};
        if (link->wait)
            link->wait(link->state);
        const uint64_t deadline_ns = zr_os_now_ns() + SILENCE_NS;
        result = sends ? zr_ps_link_send(link, &part, 1, deadline_ns)
                       : zr_ps_link_receive(link, part.iov_base, n, deadline_ns);
    }
    return result;
}

static zr_result flush(struct stream *stream)
{
    uint64_t bytes = stream->have;
    zr_result result = bytes > 0 ? move_bytes(stream->link, true, &bytes, sizeof bytes) : ZR_OK;
    if (result == ZR_OK)
        result = move_bytes(stream->link, true, stream->buffer, bytes);
    stream->have = 0;
    return result;
}

static zr_result put(void *state, void *data, size_t bytes)
{
    struct stream *stream = state;
    zr_result result = stream->have + bytes > stream->room ? flush(stream) : ZR_OK;
    if (result != ZR_OK || bytes > stream->room)
        return result == ZR_OK ? move_bytes(stream->link, true, data, bytes) : result;
    memcpy(stream->buffer + stream->have, data, bytes);
    stream->have += bytes;
    return ZR_OK;
}

static zr_result get(void *state, void *data, size_t bytes)
{
    struct stream *stream = state;
    uint64_t have = 0;
    zr_result result = ZR_OK;
    if (bytes > stream->room)
        return move_bytes(stream->link, false, data, bytes);
    if (stream->at == stream->have) {
        result = move_bytes(stream->link, false, &have, sizeof have);
        if (result == ZR_OK && have <= stream->room)
            result = move_bytes(stream->link, false, stream->buffer, have);
        stream->have = have;
        stream->at = 0;
    }
    if (result != ZR_OK)
        return result;
    if (stream->have > stream->room || bytes > stream->have - stream->at)
        return zr_fail(ZR_ERR_PEER, "the state of a parameter server has another size");
    memcpy(data, stream->buffer + stream->at, bytes);
    stream->at += bytes;
    return ZR_OK;
}

/* No session of a server that accepts a replica, or of one that joins, writes from this buffer. */
static struct stream stream_of(zr_ps_server *server, struct zr_ps_link *link)
{
    const unsigned buffer = server->setup.options.workers + ZR_PS_OBSERVERS;
    return (struct stream){link, server->answers + buffer * server->setup.message_bytes,
                           server->setup.message_bytes, 0, 0};
}

static zr_result send_state(zr_ps_server *server, struct zr_ps_link *link)
{
    struct zr_ps_frame frame = {.magic = ZR_PS_MAGIC, .kind = ZR_PS_REPLY};
    struct stream stream = stream_of(server, link);
    struct head head = {.state = server->state, .updates = server->store.updates};
    memcpy(head.staleness, server->store.staleness, sizeof head.staleness);
    for (unsigned w = 0; w < ZR_PS_WORKERS_MAX; w++)
        head.bye[w] = server->bye[w];
    zr_result result = move_bytes(link, true, &frame, sizeof frame);
    if (result == ZR_OK)
        result = put(&stream, &head, sizeof head);
    if (result == ZR_OK)
        result = zr_ps_store_send(&server->store, &(struct zr_table_stream){put, &stream});
    if (result == ZR_OK)
        result = flush(&stream);
    if (result == ZR_OK)
        result = move_bytes(link, false, &frame, sizeof frame);
    if (result == ZR_OK && (frame.magic != ZR_PS_MAGIC || frame.kind != ZR_PS_REPLY))
        result = ZR_ERR_PEER;
    server->state.sent_bytes += link->sent_bytes;
    server->state.joined_bytes = link->sent_bytes;
    return result;
}

void zr_ps_join_accept(zr_ps_server *server, struct zr_ps_session *session)
{
    const uint64_t begin_ns = zr_os_now_ns();
    struct zr_ps_link link = {.fd = session->fd, .wait = zr_ps_server_wait, .state = server};
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = &server->replica};
    if (zr_ps_session_has_replica(server) || server->replaced) {
        zr_ps_session_close(server, session);
        return;
    }
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, session->fd, NULL);
    session->phase = ZR_PS_FREE;
    server->state.joined_replicas++; /* the replica counts itself */
    if (send_state(server, &link) == ZR_OK) {
        server->replica = link;
        epoll_ctl(server->epoll, EPOLL_CTL_ADD, link.fd, &event);
        server->awaits_ns = 0;
    } else {
        server->state.joined_replicas--;
        zr_ps_link_close(&link);
    }
    server->state.paused_ns += zr_os_now_ns() - begin_ns;
}

/* ---- The replica --------------------------------------------------------------------------------------- */

/* Asks the primary to accept this server. ZR_ERR_UNAVAILABLE: it has closed the connection. */
static zr_result ask(zr_ps_server *server, struct zr_ps_link *link, uint64_t deadline_ns)
{
    struct zr_ps_frame frame = {
        .magic = ZR_PS_MAGIC, .kind = ZR_PS_HELLO, .worker = ZR_PS_REPLICA, .number = server->setup.hash};
    struct iovec part = {&frame, sizeof frame};
    zr_result result = zr_ps_link_send(link, &part, 1, deadline_ns);
    if (result == ZR_OK)
        result = zr_ps_link_receive(link, &frame, sizeof frame, deadline_ns);
    return result == ZR_OK && (frame.magic != ZR_PS_MAGIC || frame.content != ZR_OK)
               ? zr_fail(ZR_ERR_PEER, "server %u: the server to be copied has other options",
                         server->store.server)
               : result;
}

static zr_result receive_state(zr_ps_server *server, struct zr_ps_link *link)
{
    struct zr_ps_frame frame = {.magic = ZR_PS_MAGIC, .kind = ZR_PS_REPLY};
    struct stream stream = stream_of(server, link);
    const uint64_t begin_ns = zr_os_now_ns();
    struct head head;
    zr_result result = get(&stream, &head, sizeof head);
    if (result == ZR_OK)
        result = zr_ps_store_receive(&server->store, &(struct zr_table_stream){get, &stream});
    if (result == ZR_OK)
        result = move_bytes(link, true, &frame, sizeof frame);
    if (result != ZR_OK)
        return result;
    server->state = head.state;
    server->state.joined_bytes = link->received_bytes;
    server->state.paused_ns += zr_os_now_ns() - begin_ns;
    server->store.updates = head.updates;
    memcpy(server->store.staleness, head.staleness, sizeof head.staleness);
    for (unsigned w = 0; w < ZR_PS_WORKERS_MAX; w++)
        server->bye[w] = head.bye[w];
    return ZR_OK;
}

zr_result zr_ps_join(zr_ps_server *server, const char *primary)
{
    const uint64_t deadline_ns = zr_os_now_ns() + JOIN_NS;
    const struct zr_ps_dial dial = {primary, server->setup.has_secret ? server->setup.secret : NULL,
                                    deadline_ns};
    struct zr_ps_link link = {.fd = -1};
    zr_result result = zr_ps_link_open(&link, &dial), asked = result;
    while (result == ZR_OK && (asked = ask(server, &link, deadline_ns)) == ZR_ERR_UNAVAILABLE) {
        zr_ps_link_close(&link);
        zr_poll(NULL, 0, RETRY_MS);
        if (zr_os_now_ns() >= deadline_ns)
            return zr_fail(ZR_ERR_TIMEOUT, "server %u: the server at %s has a replica", server->store.server,
                           primary);
        result = zr_ps_link_open(&link, &dial);
    }
    result = result == ZR_OK ? asked : result;
    if (result == ZR_OK)
        result = receive_state(server, &link);
    if (result != ZR_OK) {
        zr_ps_link_close(&link);
        return result;
    }
    server->sessions[0] = (struct zr_ps_session){.fd = link.fd,
                                                 .known = true,
                                                 .worker = ZR_PS_PRIMARY,
                                                 .buffer = server->setup.options.workers + ZR_PS_OBSERVERS};
    zr_ps_session_add(server, &server->sessions[0]);
    return ZR_OK;
}
