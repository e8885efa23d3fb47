/* streams.c: the connections of a TCP transport: reads and writes frames, keeps connections alive, finds lost
 * peers. match.c has the meaning of frames. Every function's caller holds the lock. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "alloc/base/system/socket.h"
#include "zero/comm/message/tcp/inside.h"
#include "zero/comm/take.h"

enum { EVENTS = 64, PARTS = 32, TICKS_A_BEAT = 4, DRAINS = 64, WORDS_BYTES = 200 };
#define READ_BYTES ((size_t)1 << 20) /* from one connection before the next one has its turn */

/* ---- Lost peers ---------------------------------------------------------------------------------------- */

static void close_stream(struct zr_tcp *tcp, struct zr_tcp_stream *stream)
{
    if (stream->fd < 0)
        return;
    close(stream->fd); /* which removes it from the epoll set */
    stream->fd = -1;
    if (stream->into)
        stream->into->users--;
    stream->into = NULL;
    stream->envelope = NULL;
    stream->left_bytes = 0;
    for (struct zr_tcp_item *item = stream->first; item; item = item->next) {
        item->queued = false;
        zr_drop(tcp->arena, &item->copy);
        if (item == &stream->piece)
            item->operation->users--;
    }
    stream->first = NULL;
}

void zr_tcp_lose(struct zr_tcp *tcp, unsigned p, const char *format, ...)
{
    struct zr_tcp_peer *peer = &tcp->peers[p];
    char words[WORDS_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    if (peer->lost)
        return;
    snprintf(peer->why, sizeof peer->why, "rank %u on host %s %s", p, peer->host, words);
    peer->lost = true;
    for (unsigned i = 0; i < zr_tcp_wires(tcp); i++)
        close_stream(tcp, &peer->streams[i]);
    zr_tcp_fail_peer(tcp, p);
}

/* Reads what a rank has sent on its first connection before its end: a rank that fails reports its reason. */
static void drain(struct zr_tcp *tcp, struct zr_tcp_peer *peer)
{
    peer->draining = true;
    for (unsigned i = 0; i < DRAINS && zr_tcp_read(tcp, &peer->streams[0]); i++)
        ;
    peer->draining = false;
}

/* The end of a connection. The other connections of a rank that has said BYE may still have data. */
static void end_stream(struct zr_tcp *tcp, struct zr_tcp_stream *stream)
{
    struct zr_tcp_peer *peer = &tcp->peers[stream->peer];
    bool open = false;
    if (peer->draining)
        return;
    drain(tcp, peer);
    if (!peer->left && !peer->returns) {
        zr_tcp_lose(tcp, stream->peer, "has closed its connection: the process has ended or has been killed");
        return;
    }
    close_stream(tcp, stream);
    for (unsigned i = 0; i < zr_tcp_wires(tcp); i++)
        open |= peer->streams[i].fd >= 0;
    if (!open)
        zr_tcp_lose(tcp, stream->peer, "%s",
                    peer->left ? "has left the run" : "has closed its connection: it has lost a rank");
}

static void fail_stream(struct zr_tcp *tcp, struct zr_tcp_stream *stream, int error)
{
    if (error == ECONNRESET || error == EPIPE)
        end_stream(tcp, stream);
    else
        zr_tcp_lose(tcp, stream->peer, "cannot be reached any more: %s", strerrordesc_np(error));
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

static void watch(struct zr_tcp *tcp, struct zr_tcp_stream *stream, bool blocked)
{
    struct epoll_event event = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = stream};
    if (stream->blocked != blocked)
        epoll_ctl(tcp->epoll, EPOLL_CTL_MOD, stream->fd, &event);
    stream->blocked = blocked;
}

/* Lists what is left of the items in the queue. */
static int list_parts(const struct zr_tcp_stream *stream, struct iovec *parts)
{
    int count = 0;
    for (struct zr_tcp_item *item = stream->first; item && count + 2 <= PARTS; item = item->next) {
        size_t sent_bytes = item->sent_bytes, header_bytes = sizeof item->frame;
        if (sent_bytes < header_bytes)
            parts[count++] = (struct iovec){(char *)&item->frame + sent_bytes, header_bytes - sent_bytes};
        size_t first = sent_bytes > header_bytes ? sent_bytes - header_bytes : 0;
        if (first < item->data_bytes)
            parts[count++] = (struct iovec){(char *)item->data + first, item->data_bytes - first};
    }
    return count;
}

static void advance(struct zr_tcp *tcp, struct zr_tcp_stream *stream, size_t bytes)
{
    tcp->peers[stream->peer].said_ns = tcp->clock_ns;
    while (bytes > 0 && stream->first) {
        struct zr_tcp_item *item = stream->first;
        size_t left_bytes = sizeof item->frame + item->data_bytes - item->sent_bytes;
        size_t some = bytes < left_bytes ? bytes : left_bytes;
        item->sent_bytes += some;
        bytes -= some;
        if (some < left_bytes)
            return;
        stream->first = item->next;
        item->queued = false;
        zr_tcp_end_item(tcp, item);
    }
}

static void write_stream(struct zr_tcp *tcp, struct zr_tcp_stream *stream)
{
    struct iovec parts[PARTS];
    if (stream->writing)
        return; /* the loop below takes what was queued */
    stream->writing = true;
    while (stream->fd >= 0 && !stream->blocked && (stream->first || zr_tcp_next_piece(tcp, stream))) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)list_parts(stream, parts)};
        ssize_t bytes = zr_send(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (bytes > 0) {
            advance(tcp, stream, (size_t)bytes);
        } else if (errno == EAGAIN || errno == ENOBUFS) {
            watch(tcp, stream, true);
        } else if (errno != EINTR) {
            fail_stream(tcp, stream, errno);
            break;
        }
    }
    stream->writing = false;
}

void zr_tcp_post(struct zr_tcp *tcp, unsigned p, struct zr_tcp_item *item)
{
    struct zr_tcp_stream *stream = &tcp->peers[p].streams[0];
    if (stream->fd < 0)
        return;
    item->next = NULL;
    item->sent_bytes = 0;
    item->queued = true;
    if (!stream->first)
        stream->last = &stream->first;
    *stream->last = item;
    stream->last = &item->next;
    write_stream(tcp, stream);
}

void zr_tcp_write(struct zr_tcp *tcp, unsigned p)
{
    for (unsigned i = 0; i < zr_tcp_wires(tcp); i++)
        write_stream(tcp, &tcp->peers[p].streams[i]);
}

void zr_tcp_say_bye(struct zr_tcp *tcp, enum zr_tcp_bye why)
{
    for (unsigned p = 0; p < tcp->world; p++) {
        tcp->peers[p].bye.frame.tag = why;
        if (p != tcp->rank && !tcp->peers[p].lost)
            zr_tcp_post(tcp, p, &tcp->peers[p].bye);
    }
    tcp->closing = true; /* BYE is the last frame */
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

/* Where the next bytes of a stream go. */
static struct iovec next_place(struct zr_tcp *tcp, struct zr_tcp_stream *stream)
{
    size_t left_bytes = stream->left_bytes;
    if (left_bytes == 0)
        return (struct iovec){(char *)&stream->frame + stream->frame_bytes,
                              sizeof stream->frame - stream->frame_bytes};
    if (stream->into && stream->into->data)
        return (struct iovec){stream->into->data + stream->at_bytes, left_bytes};
    if (stream->envelope)
        return (struct iovec){stream->envelope->data + stream->at_bytes, left_bytes};
    return (struct iovec){tcp->scratch, left_bytes < ZR_TCP_SCRATCH ? left_bytes : ZR_TCP_SCRATCH};
}

/* Takes in bytes that have arrived at next_place(). */
static void take_in(struct zr_tcp *tcp, struct zr_tcp_stream *stream, size_t bytes)
{
    const char *why = NULL;
    if (stream->left_bytes > 0) {
        stream->left_bytes -= bytes;
        stream->at_bytes += bytes;
        if (stream->left_bytes == 0)
            zr_tcp_end_payload(tcp, stream);
        return;
    }
    stream->frame_bytes += bytes;
    if (stream->frame_bytes < sizeof stream->frame)
        return;
    stream->frame_bytes = 0;
    if (!zr_tcp_take_frame(tcp, stream, &why))
        zr_tcp_lose(tcp, stream->peer, "breaks the protocol: %s", why);
    else if (stream->fd >= 0 && stream->left_bytes == 0)
        zr_tcp_end_payload(tcp, stream);
}

bool zr_tcp_read(struct zr_tcp *tcp, struct zr_tcp_stream *stream)
{
    for (size_t budget = READ_BYTES; budget > 0 && stream->fd >= 0;) {
        struct iovec place = next_place(tcp, stream);
        if (place.iov_len > budget)
            place.iov_len = budget;
        ssize_t bytes = zr_receive_bytes(stream->fd, place.iov_base, place.iov_len, MSG_DONTWAIT);
        if (bytes > 0) {
            budget -= (size_t)bytes;
            tcp->peers[stream->peer].heard_ns = tcp->clock_ns;
            take_in(tcp, stream, (size_t)bytes);
        } else if (bytes == 0) {
            end_stream(tcp, stream);
            return false;
        } else if (errno != EINTR) {
            if (errno != EAGAIN)
                fail_stream(tcp, stream, errno);
            return false;
        }
    }
    return stream->fd >= 0;
}

/* ---- The clock ----------------------------------------------------------------------------------------- */

/* Whether the launcher ends the run: it kills this rank soon, and other ranks then wait for a successor. */
static bool is_ending(const struct zr_tcp *tcp)
{
    return tcp->local && atomic_load(&tcp->local->abort) != 0 && !atomic_load(&tcp->local->restarting);
}

static void tick(struct zr_tcp *tcp)
{
    uint64_t now_ns = zr_os_now_ns(), passed_ns = now_ns - tcp->looked_ns;
    uint64_t tick_ns = tcp->heartbeat_ns / TICKS_A_BEAT;
    tcp->looked_ns = now_ns;
    tcp->clock_ns += passed_ns < 2 * tick_ns ? passed_ns : 2 * tick_ns;
    if (tcp->clock_ns - tcp->ticked_ns < tick_ns)
        return;
    tcp->ticked_ns = tcp->clock_ns;
    if (is_ending(tcp) && !tcp->closing)
        zr_tcp_say_bye(tcp, ZR_TCP_BYE_FAILS);
    for (unsigned p = 0; p < tcp->world; p++) {
        struct zr_tcp_peer *peer = &tcp->peers[p];
        if (p == tcp->rank || peer->lost)
            continue;
        if (tcp->clock_ns - peer->heard_ns >= ZR_TCP_LOST_BEATS * tcp->heartbeat_ns && !peer->left)
            zr_tcp_lose(tcp, p,
                        "has not answered for %.3g s: the connection is cut, or the process is stopped",
                        (double)ZR_TCP_LOST_BEATS * (double)tcp->heartbeat_ns * 1e-9);
        else if (tcp->clock_ns - peer->said_ns >= tcp->heartbeat_ns && !peer->beat.queued && !tcp->closing)
            zr_tcp_post(tcp, p, &peer->beat);
    }
}

void zr_tcp_progress(struct zr_tcp *tcp, int wait_ms)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(tcp->epoll, events, EVENTS, wait_ms);
    for (int i = 0; i < count; i++) {
        struct zr_tcp_stream *stream = events[i].data.ptr;
        if (stream->fd >= 0 && events[i].events & EPOLLOUT) {
            watch(tcp, stream, false);
            write_stream(tcp, stream);
        }
        if (stream->fd >= 0 && events[i].events & ~(uint32_t)EPOLLOUT)
            zr_tcp_read(tcp, stream);
    }
    tick(tcp);
}
