/* share.c: sends the ring of each rank to all others, when local.c creates a communicator. Uses
 * zr_block_export() and zr_import().
 *
 * The ranks take turns: one sends the descriptors of its ring to every inbox (SCM_RIGHTS over sockets that
 * the launcher created before the fork), the others receive and map. The system limits descriptors in
 * flight, so a sender waits until there are few enough. A rank that has failed still sends and receives,
 * so that no rank waits for it. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/base/error.h"
#include "alloc/base/system/socket.h"
#include "zero/comm/local/local.h"
#include "alloc/base/system/os.h"

enum { MESSAGE_SEGMENTS = 24, STACK_SEGMENTS = 32, MESSAGE_MAGIC = 0x7a726731 };
enum { RINGS_UNDER_WAY = 512 }; /* sent and not received; half of the usual `ulimit -n` */
#define RETRY_NS 1000000ull     /* retry interval when too many descriptors are in flight */

/* A message with a part of a ring's segment list. Its descriptors are sent with it, each once. */
struct message {
    uint32_t magic, rank, attempt;
    uint32_t total, first, count;       /* segments in the whole list / before this message / in it */
    uint64_t lead_bytes;                /* offset of the ring in the first segment */
    uint32_t ring, posted, host_posted; /* index of the ring, and initial values of its counters */
    struct {
        uint64_t offset_bytes, bytes;
        uint32_t fd_index; /* index in the descriptors of this message */
    } segments[MESSAGE_SEGMENTS];
};

/* The segments of a ring. */
struct list {
    struct zr_segment *segments; /* `few`, or a block of the host arena */
    size_t count;
    size_t lead_bytes;
    struct zr_segment few[STACK_SEGMENTS];
};

union control { /* buffer for descriptors with the alignment that the system requires */
    struct cmsghdr header;
    char bytes[CMSG_SPACE(MESSAGE_SEGMENTS * sizeof(int))];
};

static zr_result list_reserve(struct list *list, zr_arena *host_arena, size_t count)
{
    void *block;
    if (count <= STACK_SEGMENTS) {
        list->segments = list->few;
        return ZR_OK;
    }
    zr_result result = zr_arena_alloc(
        host_arena, &(struct zr_request){.bytes = count * sizeof(struct zr_segment), .tag = ZR_TAG_OTHER},
        &block);
    list->segments = result == ZR_OK ? block : NULL;
    return result;
}

static void list_free(struct list *list, zr_arena *host_arena)
{
    if (list->segments != list->few)
        zr_arena_free(host_arena, list->segments);
    list->segments = NULL;
}

/* ---- Sending ------------------------------------------------------------------------------------------- */

static zr_result export_ring(const struct zr_local_share *share, struct list *list)
{
    list->segments = list->few;
    list->count = STACK_SEGMENTS;
    zr_result result =
        zr_block_export(share->arena, share->mine, list->segments, &list->count, &list->lead_bytes);
    if (result != ZR_ERR_INVALID || list->count <= STACK_SEGMENTS)
        return result;
    result = list_reserve(list, share->host_arena, list->count);
    if (result == ZR_OK)
        result = zr_block_export(share->arena, share->mine, list->segments, &list->count, &list->lead_bytes);
    return result;
}

/* Fills a message with the segments from `first` on, and `fds` with their descriptors. Returns their
 * number. */
static unsigned pack(const struct list *list, size_t first, struct message *message, int *fds)
{
    unsigned fds_count = 0;
    message->first = (uint32_t)first;
    message->count = 0;
    for (size_t i = first; i < list->count && message->count < MESSAGE_SEGMENTS; i++) {
        const struct zr_segment *segment = &list->segments[i];
        unsigned index = 0;
        while (index < fds_count && fds[index] != segment->fd)
            index++;
        if (index == fds_count)
            fds[fds_count++] = segment->fd;
        message->segments[message->count].offset_bytes = segment->offset_bytes;
        message->segments[message->count].bytes = segment->bytes;
        message->segments[message->count++].fd_index = index;
    }
    return fds_count;
}

/* Tries once: returns 0, or errno. */
static int try_send(unsigned peer, struct message *message, const int *fds, unsigned fds_count)
{
    union control control;
    struct iovec data = {.iov_base = message, .iov_len = sizeof(*message)};
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1};
    if (fds_count > 0) {
        memset(&control, 0, sizeof(control));
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(fds_count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds_count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, fds_count * sizeof(int));
    }
    return zr_send(zr_local_own_sockets()->outbox[peer], &header, MSG_DONTWAIT) >= 0 ? 0 : errno;
}

static bool has_no_room(int error)
{
    return error == EAGAIN || error == ETOOMANYREFS || error == ENOBUFS;
}

static zr_result send_message(const struct zr_local_share *share, unsigned peer, struct message *message,
                              const int *fds, unsigned fds_count)
{
    struct zr_timeout timeout = zr_timeout_begin();
    for (;;) {
        int error = try_send(peer, message, fds, fds_count);
        if (error == 0)
            return ZR_OK;
        zr_result result = zr_local_check(share->local, peer);
        if (result != ZR_OK)
            return result;
        bool gone = error == EPIPE || error == ECONNREFUSED || error == ECONNRESET;
        if (!gone && !has_no_room(error))
            return zr_fail(ZR_ERR_PEER, "sending the ring to rank %u failed (error %d)", peer, error);
        /* A process closes its sockets before its launcher can reap the process; the launcher reports the
         * exit soon after. */
        uint64_t waited_ns = zr_timeout_waited_ns(&timeout);
        if (waited_ns > share->timeout_ns)
            return gone ? zr_fail(ZR_ERR_PEER, "rank %u has closed its inbox for an unknown reason", peer)
                        : zr_local_lost(share->local, peer, waited_ns);
        zr_word_wait(&share->local->abort, 0, RETRY_NS);
    }
}

/* Sends the list to every peer; an empty one if `list` is NULL. */
static zr_result send_list(const struct zr_local_share *share, const struct list *list)
{
    static const struct list nothing;
    int fds[MESSAGE_SEGMENTS];
    if (!list)
        list = &nothing;
    struct message message = {.magic = MESSAGE_MAGIC,
                              .rank = share->rank,
                              .attempt = share->attempt,
                              .total = (uint32_t)list->count,
                              .lead_bytes = list->lead_bytes,
                              .ring = share->ring};
    struct zr_local_ring *ring = &share->local->ranks[share->rank].rings[share->ring];
    message.posted = atomic_load(&ring->posted);
    message.host_posted = atomic_load(&ring->host_posted);
    size_t first = 0;
    do {
        unsigned fds_count = pack(list, first, &message, fds);
        for (unsigned peer = 0; peer < share->local->world; peer++) {
            zr_result result =
                peer == share->rank ? ZR_OK : send_message(share, peer, &message, fds, fds_count);
            if (result != ZR_OK)
                return result;
        }
        first += message.count;
    } while (first < list->count);
    return ZR_OK;
}

/* ---- Receiving ----------------------------------------------------------------------------------------- */

static void close_all(const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
}

/* The rank that delays the exchange: the rank whose turn it is, or `sender` if it is this rank's turn. */
static unsigned delaying_rank(const struct zr_local_share *share, unsigned sender)
{
    unsigned current = atomic_load(&share->local->turn) % share->local->world;
    return current == share->rank ? sender : current;
}

/* A received message; this process owns its descriptors. */
struct received {
    struct message message;
    int fds[MESSAGE_SEGMENTS];
    unsigned fds_count;
    bool cut, whole; /* cut: some of its descriptors are lost; whole: it is a valid part of a ring */
};

/* Tries once: returns 0, or errno. */
static int try_receive(int inbox, struct received *out)
{
    union control control;
    struct message *message = &out->message;
    struct iovec data = {.iov_base = message, .iov_len = sizeof(*message)};
    struct msghdr header = {.msg_iov = &data,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    ssize_t bytes = zr_receive(inbox, &header, MSG_DONTWAIT);
    out->fds_count = 0;
    if (bytes < 0)
        return errno;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        out->fds_count = (unsigned)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(out->fds, CMSG_DATA(part), out->fds_count * sizeof(int));
    }
    out->cut = (header.msg_flags & MSG_CTRUNC) != 0;
    out->whole = bytes == sizeof(*message) && message->magic == MESSAGE_MAGIC &&
                 message->count <= MESSAGE_SEGMENTS && message->ring < ZR_LOCAL_RINGS;
    for (unsigned i = 0; out->whole && i < message->count; i++)
        out->whole = message->segments[i].fd_index < out->fds_count || out->cut;
    return 0;
}

/* Checks that the message is from `sender`, for this attempt, and complete. */
static zr_result check_message(struct received *got, unsigned sender, uint32_t attempt)
{
    if (got->whole && got->message.rank == sender && got->message.attempt == attempt && !got->cut)
        return ZR_OK;
    close_all(got->fds, got->fds_count);
    got->fds_count = 0;
    if (!got->whole || !got->cut)
        return zr_fail(ZR_ERR_PEER, "rank %u sent an invalid part of its ring", sender);
    return zr_fail(ZR_ERR_HOST_MEMORY,
                   "no file descriptor is left for the ring of rank %u: raise `ulimit -n`", sender);
}

/* Receives one message of `sender`. */
static zr_result receive_message(const struct zr_local_share *share, unsigned sender, struct received *got)
{
    int inbox = zr_local_own_sockets()->inbox[share->rank];
    struct zr_timeout timeout = zr_timeout_begin();
    for (int error; (error = try_receive(inbox, got)) != 0;) {
        if (error != EAGAIN)
            return zr_fail(ZR_ERR_PEER, "receiving the ring of rank %u failed (error %d)", sender, error);
        zr_result result = zr_local_check(share->local, sender);
        uint64_t waited_ns = zr_timeout_waited_ns(&timeout);
        if (result == ZR_OK && waited_ns > share->timeout_ns)
            result = zr_local_lost(share->local, delaying_rank(share, sender), waited_ns);
        if (result != ZR_OK)
            return result;
        struct pollfd wait = {.fd = inbox, .events = POLLIN};
        zr_poll(&wait, 1, (int)(ZR_LOCAL_POLL_NS / 1000000));
    }
    return check_message(got, sender, share->attempt);
}

/* Adds a message to the list. Segments of one file share a descriptor within a message. */
static void unpack(const struct message *message, const int *fds, struct list *list)
{
    for (unsigned i = 0; i < message->count && list->count < message->total; i++)
        list->segments[list->count++] = (struct zr_segment){
            .fd = fds[message->segments[i].fd_index],
            .offset_bytes = message->segments[i].offset_bytes,
            .bytes = message->segments[i].bytes,
        };
}

/* Closes each descriptor of the list once, except `kept`. */
static void close_list(const struct list *list, int kept)
{
    for (size_t i = 0; i < list->count; i++) {
        bool again = list->segments[i].fd == kept;
        for (size_t j = 0; j < i && !again; j++)
            again = list->segments[j].fd == list->segments[i].fd;
        if (!again)
            close(list->segments[i].fd);
    }
}

static bool run_is_over(zr_result result)
{
    return result == ZR_ERR_PEER || result == ZR_ERR_TIMEOUT || result == ZR_ERR_INTERRUPTED;
}

/* Receives all messages of `sender`. After a failure of this rank the remaining messages are discarded, so
 * that the next turn starts with an empty inbox. */
static zr_result receive_list(const struct zr_local_share *share, unsigned sender, struct list *list,
                              struct zr_local_peer *peer)
{
    struct received got = {.fds_count = 0};
    const struct message *message = &got.message;
    size_t seen = 0;
    zr_result result = ZR_OK;
    do {
        zr_result received = receive_message(share, sender, &got);
        if (run_is_over(received))
            return received;
        if (result == ZR_OK)
            result = received;
        if (result == ZR_OK && share->mine && !list->segments)
            result = list_reserve(list, share->host_arena, message->total);
        if (result == ZR_OK && share->mine)
            unpack(message, got.fds, list);
        else
            close_all(got.fds, got.fds_count);
        list->lead_bytes = message->lead_bytes;
        if (peer) {
            peer->ring = &share->local->ranks[sender].rings[message->ring];
            peer->posted = message->posted;
            peer->host_posted = message->host_posted;
        }
        seen += message->count;
    } while (seen < message->total);
    return result;
}

/* Receives the ring of `sender` and maps it, unless one of the two ranks has failed. */
static zr_result receive_ring(const struct zr_local_share *share, unsigned sender, struct zr_local_peer *peer)
{
    struct list list = {0};
    void *import = NULL;
    zr_result result = receive_list(share, sender, &list, peer);
    if (result == ZR_OK && list.count > 0)
        result = zr_import(share->backend, list.segments, list.count, &import);
    if (import) {
        peer->import = import;
        peer->slots = (char *)import + list.lead_bytes;
        peer->mapping.fd = list.segments[0].fd;
    }
    close_list(&list, import ? peer->mapping.fd : -1);
    list_free(&list, share->host_arena);
    return result;
}

/* ---- Turns --------------------------------------------------------------------------------------------- */

/* Waits until no rank is so many turns behind that too many descriptors could be in flight. */
static zr_result wait_for_slow(const struct zr_local_share *share, uint32_t turn)
{
    struct zr_local_world *local = share->local;
    uint32_t peers = local->world - 1, ahead = RINGS_UNDER_WAY / peers > 0 ? RINGS_UNDER_WAY / peers : 1;
    zr_result result = ZR_OK;
    for (unsigned p = 0; p < local->world && turn >= ahead && result == ZR_OK; p++)
        result =
            zr_local_wait_for(local, &(struct zr_local_wait){.word = &local->ranks[p].received,
                                                             .sleepers = &local->ranks[p].received_sleepers,
                                                             .target = turn - ahead + 1,
                                                             .peer = p,
                                                             .timeout_ns = share->timeout_ns});
    return result;
}

/* This rank's turn: sends its ring, or an empty list after a failure. This rank has received the rings of all
 * earlier ranks, so only the previous rank can delay it. */
static zr_result take_turn(const struct zr_local_share *share, uint32_t turn)
{
    struct zr_local_world *local = share->local;
    struct list list = {0};
    zr_result sent =
        zr_local_wait_for(local, &(struct zr_local_wait){.word = &local->turn,
                                                         .target = turn,
                                                         .peer = (turn + local->world - 1) % local->world,
                                                         .timeout_ns = share->timeout_ns});
    if (sent == ZR_OK)
        sent = wait_for_slow(share, turn);
    if (sent != ZR_OK)
        return sent;
    zr_result result = share->mine ? export_ring(share, &list) : ZR_OK;
    bool closes = share->mine && share->backend->can.descriptors;
    if (share->mine && result == ZR_OK)
        *share->file_fd = closes ? -1 : list.segments[0].fd;
    sent = send_list(share, share->mine && result == ZR_OK ? &list : NULL);
    if (closes)
        zr_block_export_end(share->arena, share->mine);
    list_free(&list, share->host_arena);
    zr_local_advance(&local->turn, turn + 1, NULL);
    return sent != ZR_OK ? sent : result;
}

zr_result zr_local_share_rings(const struct zr_local_share *share, struct zr_local_peer *peers)
{
    struct zr_local_world *local = share->local;
    struct zr_local_rank *self = &local->ranks[share->rank];
    zr_result result = ZR_OK;
    for (unsigned p = 0; p < local->world && !run_is_over(result); p++) {
        uint32_t turn = share->attempt * local->world + p;
        zr_result step =
            p == share->rank ? take_turn(share, turn) : receive_ring(share, p, peers ? &peers[p] : NULL);
        if (!run_is_over(step))
            zr_local_advance(&self->received, turn + 1, &self->received_sleepers);
        if (result == ZR_OK || run_is_over(step))
            result = step;
    }
    return result;
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* Adds the segments of a message to the list, with one descriptor per segment, so that each descriptor has
 * one owner. */
static void unpack_one(const struct zr_local_pass *pass, struct received *got, unsigned member)
{
    struct zr_segment *list = pass->segments + (size_t)member * ZR_LOCAL_PLACES;
    const struct message *message = &got->message;
    for (unsigned i = 0; i < message->count && message->first + i < ZR_LOCAL_PLACES; i++)
        list[message->first + i] = (struct zr_segment){.fd = got->fds[message->segments[i].fd_index],
                                                       .offset_bytes = message->segments[i].offset_bytes,
                                                       .bytes = message->segments[i].bytes};
    pass->counts[member] += message->count;
}

/* Receives a message and finds its member. */
static zr_result take_one(const struct zr_local_pass *pass, bool *any)
{
    struct received got;
    int error = try_receive(zr_local_own_sockets()->inbox[pass->ranks[pass->rank]], &got);
    *any = error == 0;
    if (error != 0)
        return error == EAGAIN
                   ? ZR_OK
                   : zr_fail(ZR_ERR_PEER, "receiving the ring of a group failed (error %d)", error);
    unsigned member = 0;
    while (member < pass->count && pass->ranks[member] != got.message.rank)
        member++;
    member = member < pass->count ? member : pass->rank;
    zr_result result = check_message(&got, pass->ranks[member], pass->attempt);
    if (result == ZR_OK)
        unpack_one(pass, &got, member);
    return result;
}

/* Sends the part of this rank's list from `first` on to a member; *sent: number of segments. */
static zr_result give_one(const struct zr_local_pass *pass, unsigned member, size_t first, size_t *sent)
{
    const struct list mine = {.segments = pass->segments + (size_t)pass->rank * ZR_LOCAL_PLACES,
                              .count = pass->counts[pass->rank]};
    struct message message = {.magic = MESSAGE_MAGIC,
                              .rank = pass->ranks[pass->rank],
                              .attempt = pass->attempt,
                              .total = (uint32_t)mine.count};
    int fds[MESSAGE_SEGMENTS];
    unsigned fds_count = pack(&mine, first, &message, fds);
    int error = try_send(pass->ranks[member], &message, fds, fds_count);
    *sent = error == 0 ? message.count : 0;
    return error == 0 || has_no_room(error)
               ? ZR_OK
               : zr_fail(ZR_ERR_PEER, "sending the ring of a group to rank %u failed (error %d)",
                         pass->ranks[member], error);
}

static bool is_complete(const struct zr_local_pass *pass)
{
    for (unsigned p = 0; p < pass->count; p++)
        if (pass->counts[p] < pass->wanted[p])
            return false;
    return true;
}

zr_result zr_local_pass_rings(const struct zr_local_pass *pass)
{
    struct pollfd wait = {.fd = zr_local_own_sockets()->inbox[pass->ranks[pass->rank]], .events = POLLIN};
    struct zr_timeout timeout = zr_timeout_begin();
    unsigned to = pass->counts[pass->rank] > 0 ? 0 : pass->count;
    size_t first = 0, sent = 0;
    bool any = false;
    zr_result result = ZR_OK;
    while (result == ZR_OK && (to < pass->count || !is_complete(pass))) {
        while (to < pass->count &&
               (to == pass->rank || pass->local->ranks[pass->ranks[to]].opening.result != ZR_OK))
            to++;
        result = to < pass->count ? give_one(pass, to, first, &sent) : ZR_OK;
        first += sent;
        to += first == pass->counts[pass->rank] && sent > 0;
        first = first == pass->counts[pass->rank] ? 0 : first;
        if (result == ZR_OK)
            result = take_one(pass, &any);
        if (result != ZR_OK || any || sent > 0) {
            sent = 0;
            continue;
        }
        zr_poll(&wait, 1, (int)((to < pass->count ? RETRY_NS : ZR_LOCAL_POLL_NS) / 1000000));
        result = zr_local_check(pass->local, ZR_LOCAL_ALL);
        uint64_t waited_ns = zr_timeout_waited_ns(&timeout);
        if (result == ZR_OK && waited_ns > pass->timeout_ns)
            result = zr_local_lost(pass->local, ZR_LOCAL_ALL, waited_ns);
    }
    return result;
}
