/* peer.c: requests to servers and their replies, across lost connections and servers. See worker.h. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "zero/ps/worker.h"

enum { RETRY_MS = 10 };

/* The fault site `ps_message`, before and after each message of a worker. */
void zr_ps_message_point(void)
{
    if (zr_fault(ZR_FAULT_PS_MESSAGE))
        kill(getpid(), SIGKILL);
}

/* The reason of a refusal follows the frame. */
static zr_result take_refusal(struct zr_ps_peer *peer, uint64_t deadline_ns)
{
    char why[ZR_PS_WHY_BYTES] = "";
    size_t bytes = peer->reply.bytes < sizeof why ? (size_t)peer->reply.bytes : sizeof why - 1;
    zr_result result = zr_ps_link_receive(&peer->link, why, bytes, deadline_ns);
    zr_ps_link_close(&peer->link);
    return result == ZR_OK ? zr_fail(ZR_ERR_PEER, "%s", why) : result;
}

/* `lost`: the other address cannot be connected to. */
static zr_result greet(struct zr_ps_worker *worker, struct zr_ps_peer *peer, bool lost, uint64_t deadline_ns)
{
    struct zr_ps_frame hello = {.magic = ZR_PS_MAGIC,
                                .kind = ZR_PS_HELLO,
                                .worker = worker->number,
                                .number = worker->setup.hash,
                                .content = lost};
    struct iovec part = {&hello, sizeof hello};
    zr_ps_message_point();
    zr_result result = zr_ps_link_send(&peer->link, &part, 1, deadline_ns);
    zr_ps_message_point();
    if (result == ZR_OK)
        result = zr_ps_link_receive(&peer->link, &peer->reply, sizeof peer->reply, deadline_ns);
    zr_ps_message_point();
    if (result == ZR_OK && peer->reply.magic != ZR_PS_MAGIC) {
        zr_ps_link_close(&peer->link);
        result = zr_fail(ZR_ERR_PEER, "%s is no parameter server", peer->addresses[0]);
    }
    if (result == ZR_OK && peer->reply.content != ZR_OK)
        return take_refusal(peer, deadline_ns);
    if (result == ZR_OK && peer->reply.number < peer->acknowledged) {
        zr_ps_link_close(&peer->link);
        result =
            zr_fail(ZR_ERR_PEER,
                    "this copy lacks changes that the server had acknowledged before it was lost: resume "
                    "from a save");
    }
    return result;
}

zr_result zr_ps_peer_open(struct zr_ps_worker *worker, struct zr_ps_peer *peer, uint64_t deadline_ns)
{
    const unsigned char *secret = worker->setup.has_secret ? worker->setup.secret : NULL;
    char why[ZR_PS_WHY_BYTES] = ""; /* of the last attempt */
    unsigned refusals = 0;          /* one after the other */
    zr_result result = ZR_OK;
    for (unsigned attempt = 0;; attempt++) {
        const bool lost = result != ZR_OK; /* the attempt before */
        const unsigned which = peer->addresses[1][0] ? attempt % 2 : 0;
        zr_ps_link_close(&peer->link);
        result =
            zr_ps_link_open(&peer->link, &(struct zr_ps_dial){peer->addresses[which], secret, deadline_ns});
        zr_result opened = result;
        if (result == ZR_OK)
            result = greet(worker, peer, lost, deadline_ns);
        refusals = peer->link.refused ? refusals + 1 : 0;
        peer->ended = worker->leaves && refusals > (peer->addresses[1][0] != 0);
        if (peer->ended)
            return ZR_OK;
        const bool late = zr_os_now_ns() >= deadline_ns;
        if (late && (result == ZR_ERR_UNAVAILABLE || (result == ZR_ERR_TIMEOUT && why[0])))
            return zr_fail(ZR_ERR_TIMEOUT, "no connection to the parameter server at %s: %s",
                           peer->addresses[which], why[0] ? why : zr_last_error());
        if (result != ZR_ERR_UNAVAILABLE)
            return result;
        snprintf(why, sizeof why, "%s", zr_last_error());
        result = opened;
        if (which == 0 && peer->addresses[1][0])
            continue;
        zr_poll(NULL, 0, RETRY_MS);
    }
}

/* Sends the request again on a new connection, if it has been lost. */
static zr_result send_again(struct zr_ps_worker *worker, struct zr_ps_peer *peer, uint64_t deadline_ns)
{
    zr_result result = zr_ps_peer_open(worker, peer, deadline_ns);
    struct iovec part = {peer->request, sizeof *peer->request + peer->request->bytes};
    worker->counters.retries++;
    return result == ZR_OK ? zr_ps_link_send(&peer->link, &part, 1, deadline_ns) : result;
}

/* Waits for the frame of the reply and reads its data. A server that holds the request says so. */
static zr_result take_reply(struct zr_ps_worker *worker, struct zr_ps_peer *peer, uint64_t *deadline_ns)
{
    zr_result result;
    do {
        result = zr_ps_link_receive(&peer->link, &peer->reply, sizeof peer->reply, *deadline_ns);
        if (result == ZR_OK)
            *deadline_ns = zr_os_now_ns() + worker->timeout_ns;
    } while (result == ZR_OK && peer->reply.kind == ZR_PS_HELD && peer->reply.magic == ZR_PS_MAGIC);
    if (result != ZR_OK)
        return result;
    if (peer->reply.magic != ZR_PS_MAGIC || peer->reply.kind != ZR_PS_REPLY ||
        peer->reply.sequence != peer->sequence || peer->reply.bytes > worker->setup.message_bytes) {
        zr_ps_link_close(&peer->link);
        return zr_fail(ZR_ERR_PEER, "%s sends no reply of a parameter server", peer->addresses[0]);
    }
    if (peer->reply.content != ZR_OK)
        return take_refusal(peer, *deadline_ns);
    return zr_ps_link_receive(&peer->link, peer->answer, peer->reply.bytes, *deadline_ns);
}

/* Adds the server to the message of a failure. */
static zr_result name_server(unsigned server, zr_result result)
{
    char why[ZR_PS_WHY_BYTES];
    snprintf(why, sizeof why, "%s", zr_last_error());
    return zr_fail(result, "parameter server %u: %s", server, why);
}

zr_result zr_ps_peers_exchange(struct zr_ps_worker *worker, const struct zr_ps_frame *frame)
{
    const uint64_t begin_ns = zr_os_now_ns();
    const unsigned servers = worker->setup.options.servers;
    uint64_t deadline_ns = begin_ns + worker->timeout_ns;
    unsigned failed = 0;
    zr_result result = ZR_OK;
    for (unsigned s = 0; s < servers; s++) {
        struct zr_ps_peer *peer = &worker->peers[s];
        struct zr_ps_frame *request = peer->request;
        if (!peer->asked)
            continue;
        uint64_t bytes = request->bytes;
        uint32_t items = request->items_count;
        *request = *frame;
        request->magic = ZR_PS_MAGIC;
        request->worker = worker->number;
        request->sequence = ++peer->sequence;
        request->bytes = bytes;
        request->items_count = items;
        struct iovec part = {request, sizeof *request + bytes};
        zr_ps_message_point();
        zr_ps_link_send(&peer->link, &part, 1, deadline_ns); /* a failure shows when the reply is awaited */
        zr_ps_message_point();
    }
    for (unsigned s = 0; s < servers; s++) {
        struct zr_ps_peer *peer = &worker->peers[s];
        if (!peer->asked)
            continue;
        if (result != ZR_OK) { /* no later request may get this answer */
            zr_ps_link_close(&peer->link);
            continue;
        }
        worker->counters.requests++;
        failed = s;
        deadline_ns = zr_os_now_ns() + worker->timeout_ns;
        while ((result = take_reply(worker, peer, &deadline_ns)) == ZR_ERR_UNAVAILABLE) {
            result = send_again(worker, peer, deadline_ns);
            result = peer->ended ? ZR_OK : result;
            if (peer->ended ||
                (result != ZR_OK && (result != ZR_ERR_UNAVAILABLE || zr_os_now_ns() >= deadline_ns)))
                break;
        }
        if (result == ZR_OK && zr_ps_changes(frame->kind) && !peer->ended)
            peer->acknowledged = peer->reply.number;
        zr_ps_message_point();
    }
    worker->counters.waited_ns += zr_os_now_ns() - begin_ns;
    return result == ZR_OK ? ZR_OK : name_server(failed, result);
}
