/* match.c: operations of a TCP transport: which message belongs to which receive, and what a frame changes.
 * Calls streams.c to queue frames; streams.c calls it with frames that have been read or written.
 *
 * An operation leaves the table once its caller knows the result and no connection refers to it any more. */
#include <string.h>

#include "zero/comm/message/tcp/inside.h"
#include "zero/comm/take.h"

/* ---- Lists --------------------------------------------------------------------------------------------- */

static void append(struct zr_tcp_list *list, struct zr_tcp_operation *operation)
{
    operation->next = NULL;
    if (!list->first)
        list->last = &list->first;
    *list->last = operation;
    list->last = &operation->next;
}

static void unlink_from(struct zr_tcp_list *list, struct zr_tcp_operation *operation)
{
    struct zr_tcp_operation **at = &list->first;
    while (*at && *at != operation)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = operation->next;
    if (list->last == &operation->next)
        list->last = at;
    operation->next = NULL;
}

/* Removes an item whose first byte has not been written from its queue. */
static bool recall(struct zr_tcp_stream *stream, struct zr_tcp_item *item)
{
    struct zr_tcp_item **at = &stream->first;
    if (!item->queued || item->sent_bytes > 0)
        return false;
    while (*at && *at != item)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = item->next;
    if (!stream->first || stream->last == &item->next)
        stream->last = at;
    item->queued = false;
    return true;
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static uint64_t number_of(const struct zr_tcp_operation *operation)
{
    return (uint64_t)operation->serial << 32 | operation->index;
}

struct zr_tcp_operation *zr_tcp_find(struct zr_tcp *tcp, uint64_t number)
{
    uint32_t index = (uint32_t)number, serial = (uint32_t)(number >> 32);
    if (index / ZR_TCP_CHUNK >= tcp->chunks_count)
        return NULL;
    struct zr_tcp_operation *operation = &tcp->chunks[index / ZR_TCP_CHUNK][index % ZR_TCP_CHUNK];
    return operation->state != ZR_TCP_FREE && operation->serial == serial ? operation : NULL;
}

static zr_result grow(struct zr_tcp *tcp)
{
    void *block;
    if (tcp->chunks_count == ZR_TCP_CHUNKS)
        return zr_fail(ZR_ERR_HOST_MEMORY, "%d messages are under way", ZR_TCP_CHUNKS * ZR_TCP_CHUNK);
    zr_result result =
        zr_take(tcp->arena, ZR_TAG_COMM, ZR_TCP_CHUNK, sizeof(struct zr_tcp_operation), &block);
    if (result != ZR_OK)
        return result;
    memset(block, 0, ZR_TCP_CHUNK * sizeof(struct zr_tcp_operation));
    tcp->chunks[tcp->chunks_count] = block;
    for (unsigned i = 0; i < ZR_TCP_CHUNK; i++) {
        tcp->chunks[tcp->chunks_count][i].index = tcp->chunks_count * ZR_TCP_CHUNK + i;
        append(&tcp->free, &tcp->chunks[tcp->chunks_count][i]);
    }
    tcp->chunks_count++;
    return ZR_OK;
}

static struct zr_tcp_operation *take(struct zr_tcp *tcp, const struct zr_transport_message *message)
{
    if (!tcp->free.first && grow(tcp) != ZR_OK)
        return NULL;
    struct zr_tcp_operation *operation = tcp->free.first;
    unlink_from(&tcp->free, operation);
    *operation = (struct zr_tcp_operation){.index = operation->index,
                                           .serial = operation->serial + 1,
                                           .state = ZR_TCP_WAITING,
                                           .peer = message->peer,
                                           .tag = message->tag,
                                           .data = message->data,
                                           .order = tcp->orders++};
    operation->item.operation = operation;
    return operation;
}

/* Returns an operation that nothing refers to to the table. */
static void settle(struct zr_tcp *tcp, struct zr_tcp_operation *operation)
{
    if (!operation->released || operation->users > 0 || operation->item.queued ||
        operation->state < ZR_TCP_DONE)
        return;
    operation->state = ZR_TCP_FREE;
    append(&tcp->free, operation);
}

void zr_tcp_release(struct zr_tcp *tcp, struct zr_tcp_operation *operation)
{
    operation->released = true;
    settle(tcp, operation);
}

static void finish(struct zr_tcp *tcp, struct zr_tcp_operation *operation)
{
    if (operation->state < ZR_TCP_DONE)
        operation->state = operation->why ? ZR_TCP_FAILED : ZR_TCP_DONE;
    settle(tcp, operation);
}

static void post_frame(struct zr_tcp *tcp, unsigned peer, struct zr_tcp_item *item,
                       const struct zr_tcp_frame *frame)
{
    item->frame = *frame;
    item->data = NULL;
    item->data_bytes = 0;
    zr_tcp_post(tcp, peer, item);
}

/* ---- Receives ------------------------------------------------------------------------------------------ */

/* Counts a small message that a receive has taken; credits several at once. */
static void credit(struct zr_tcp *tcp, unsigned p, unsigned taken)
{
    struct zr_tcp_peer *peer = &tcp->peers[p];
    peer->small_received += taken;
    if (peer->small_received < ZR_TCP_SMALL_WINDOW / 2 || peer->credit.queued)
        return;
    unsigned count = peer->small_received;
    peer->small_open -= count;
    peer->small_received = 0;
    post_frame(tcp, p, &peer->credit, &(struct zr_tcp_frame){.kind = ZR_TCP_CREDIT, .bytes = count});
}

/* Gives a receive its message. A message that is too long is received and dropped. */
static void match(struct zr_tcp *tcp, struct zr_tcp_operation *receive, unsigned peer, size_t bytes)
{
    unlink_from(receive->any ? &tcp->posted_any : &tcp->peers[peer].posted, receive);
    receive->peer = peer;
    receive->bytes = bytes;
    receive->state = ZR_TCP_MOVING;
    if (bytes > receive->room_bytes) {
        receive->data = NULL;
        receive->why = "a message is longer than its receive: the ranks are out of step";
    }
}

/* Clears an announced message for its receive. */
static void clear(struct zr_tcp *tcp, struct zr_tcp_operation *receive, uint64_t remote)
{
    receive->remote = remote;
    post_frame(tcp, receive->peer, &receive->item,
               &(struct zr_tcp_frame){.kind = ZR_TCP_CLEAR, .message = remote, .offset = number_of(receive)});
    if (receive->bytes == 0)
        finish(tcp, receive);
}

/* The receive of a message that has arrived: the first one that was posted. */
static struct zr_tcp_operation *find_receive(struct zr_tcp *tcp, unsigned peer, uint32_t tag)
{
    struct zr_tcp_operation *one = tcp->peers[peer].posted.first, *any = tcp->posted_any.first;
    while (one && one->tag != tag)
        one = one->next;
    while (any && any->tag != tag)
        any = any->next;
    return one && (!any || one->order < any->order) ? one : any;
}

static struct zr_tcp_envelope *find_envelope(const struct zr_tcp_peer *peer, uint32_t tag)
{
    struct zr_tcp_envelope *envelope = peer->unexpected;
    while (envelope && envelope->tag != tag)
        envelope = envelope->next;
    return envelope;
}

static void drop_envelope(struct zr_tcp *tcp, unsigned p, struct zr_tcp_envelope *envelope)
{
    struct zr_tcp_peer *peer = &tcp->peers[p];
    struct zr_tcp_envelope **at = &peer->unexpected;
    while (*at != envelope)
        at = &(*at)->next;
    *at = envelope->next;
    if (!envelope->next)
        peer->unexpected_last = at;
    peer->envelopes -= !envelope->small;
    zr_drop(tcp->arena, &envelope);
}

static struct zr_tcp_envelope *keep_envelope(struct zr_tcp *tcp, unsigned p, const struct zr_tcp_frame *frame)
{
    struct zr_tcp_peer *peer = &tcp->peers[p];
    struct zr_tcp_envelope *envelope;
    bool small = frame->kind == ZR_TCP_SMALL;
    if (zr_take(tcp->arena, ZR_TAG_COMM, 1, sizeof(*envelope) + (small ? frame->bytes : 0),
                (void **)&envelope) != ZR_OK)
        return NULL;
    *envelope = (struct zr_tcp_envelope){.tag = frame->tag,
                                         .bytes = frame->bytes,
                                         .remote = frame->message,
                                         .order = tcp->orders++,
                                         .small = small};
    if (!peer->unexpected)
        peer->unexpected_last = &peer->unexpected;
    *peer->unexpected_last = envelope;
    peer->unexpected_last = &envelope->next;
    peer->envelopes += !small;
    return envelope;
}

/* Gives a receive the bytes of a small message so far; the rest follows from the connection. */
static void take_small(struct zr_tcp *tcp, struct zr_tcp_operation *receive, struct zr_tcp_envelope *envelope)
{
    struct zr_tcp_stream *stream = &tcp->peers[receive->peer].streams[0];
    size_t have_bytes = stream->envelope == envelope ? stream->at_bytes : envelope->bytes;
    receive->cut_bytes = envelope->bytes;
    if (receive->data && have_bytes > 0)
        memcpy(receive->data, envelope->data, have_bytes);
    if (stream->envelope == envelope) {
        stream->envelope = NULL;
        stream->into = receive;
        receive->users++;
    } else {
        finish(tcp, receive);
    }
    drop_envelope(tcp, receive->peer, envelope);
    credit(tcp, receive->peer, 1);
}

int zr_tcp_start_receive(struct zr_tcp *tcp, const struct zr_transport_message *message, uint64_t *number)
{
    struct zr_tcp_envelope *envelope = NULL;
    unsigned from = message->peer;
    for (unsigned p = 0; p < tcp->world; p++) {
        struct zr_tcp_envelope *one =
            message->any || p == message->peer ? find_envelope(&tcp->peers[p], message->tag) : NULL;
        if (one && (!envelope || one->order < envelope->order)) {
            envelope = one;
            from = p;
        }
    }
    if (!envelope && !message->any && tcp->peers[from].lost)
        return -1;
    struct zr_tcp_operation *receive = take(tcp, message);
    if (!receive)
        return -1;
    *number = number_of(receive);
    receive->any = message->any;
    receive->room_bytes = message->bytes;
    append(message->any ? &tcp->posted_any : &tcp->peers[from].posted, receive);
    if (!envelope)
        return 0;
    match(tcp, receive, from, envelope->bytes);
    if (envelope->small) {
        take_small(tcp, receive, envelope);
        return 0;
    }
    uint64_t remote = envelope->remote;
    drop_envelope(tcp, from, envelope);
    clear(tcp, receive, remote);
    return 0;
}

/* ---- Sends --------------------------------------------------------------------------------------------- */

static void announce(struct zr_tcp *tcp, struct zr_tcp_operation *send)
{
    tcp->peers[send->peer].announced++;
    send->state = ZR_TCP_WAITING;
    post_frame(
        tcp, send->peer, &send->item,
        &(struct zr_tcp_frame){
            .kind = ZR_TCP_ANNOUNCE, .tag = send->tag, .bytes = send->bytes, .message = number_of(send)});
}

/* A message of this rank is announced no longer: announces one that waits for the window. */
static void end_announcement(struct zr_tcp *tcp, unsigned p)
{
    struct zr_tcp_peer *peer = &tcp->peers[p];
    struct zr_tcp_operation *next = peer->held.first;
    peer->announced--;
    if (!next || peer->lost)
        return;
    unlink_from(&peer->held, next);
    announce(tcp, next);
}

int zr_tcp_start_send(struct zr_tcp *tcp, const struct zr_transport_message *message, uint64_t *number)
{
    struct zr_tcp_peer *peer = &tcp->peers[message->peer];
    struct zr_tcp_operation *send = peer->lost ? NULL : take(tcp, message);
    if (!send)
        return -1;
    *number = number_of(send);
    send->sends = true;
    send->bytes = message->bytes;
    if (peer->held.first || (peer->announced == ZR_TCP_ENVELOPE_WINDOW &&
                             (message->bytes > ZR_TCP_SMALL_BYTES || peer->small_left == 0))) {
        send->state = ZR_TCP_HELD;
        append(&peer->held, send);
    } else if (message->bytes > ZR_TCP_SMALL_BYTES || peer->small_left == 0) {
        announce(tcp, send);
    } else {
        peer->small_left--;
        send->state = ZR_TCP_MOVING;
        send->item.frame =
            (struct zr_tcp_frame){.kind = ZR_TCP_SMALL, .tag = message->tag, .bytes = message->bytes};
        send->item.data = message->data;
        send->item.data_bytes = message->bytes;
        zr_tcp_post(tcp, message->peer, &send->item);
    }
    return 0;
}

bool zr_tcp_next_piece(struct zr_tcp *tcp, struct zr_tcp_stream *stream)
{
    struct zr_tcp_list *cleared = &tcp->peers[stream->peer].cleared;
    struct zr_tcp_operation *send = cleared->first;
    if (!send || stream->number == 0)
        return false;
    size_t left_bytes = send->bytes - send->cut_bytes;
    size_t bytes = left_bytes < ZR_TCP_PIECE_BYTES ? left_bytes : ZR_TCP_PIECE_BYTES;
    stream->piece = (struct zr_tcp_item){
        .frame = {.kind = ZR_TCP_DATA, .bytes = bytes, .message = send->remote, .offset = send->cut_bytes},
        .data = send->data + send->cut_bytes,
        .data_bytes = bytes,
        .operation = send,
        .queued = true};
    send->users++;
    send->cut_bytes += bytes;
    if (send->cut_bytes == send->bytes)
        unlink_from(cleared, send);
    stream->first = &stream->piece;
    stream->last = &stream->piece.next;
    return true;
}

static void withdraw(struct zr_tcp *tcp, struct zr_tcp_operation *send)
{
    post_frame(tcp, send->peer, &send->item,
               &(struct zr_tcp_frame){.kind = ZR_TCP_WITHDRAW, .message = number_of(send)});
}

void zr_tcp_end_item(struct zr_tcp *tcp, struct zr_tcp_item *item)
{
    struct zr_tcp_operation *operation = item->operation;
    zr_drop(tcp->arena, &item->copy);
    for (unsigned p = 0; p < tcp->world && !operation; p++)
        if (item == &tcp->peers[p].credit)
            credit(tcp, p, 0);
    if (!operation)
        return;
    if (item->frame.kind == ZR_TCP_DATA) {
        operation->users--;
        operation->moved_bytes += item->data_bytes;
        if (operation->moved_bytes < operation->bytes)
            settle(tcp, operation);
        else
            finish(tcp, operation);
    } else if (item->frame.kind == ZR_TCP_SMALL) {
        finish(tcp, operation);
    } else if (item->frame.kind == ZR_TCP_ANNOUNCE && operation->released &&
               !tcp->peers[operation->peer].lost) {
        withdraw(tcp, operation); /* cancelled while the announcement was being written */
    } else {
        settle(tcp, operation);
    }
}

/* ---- Cancelling ---------------------------------------------------------------------------------------- */

/* Keeps the bytes of a frame that is half written, since the caller may free them. False: no memory. */
static bool keep_rest(struct zr_tcp *tcp, struct zr_tcp_item *item)
{
    if (item->data_bytes == 0)
        return true;
    if (zr_take(tcp->arena, ZR_TAG_COMM, item->data_bytes, 1, &item->copy) != ZR_OK)
        return false;
    memcpy(item->copy, item->data, item->data_bytes);
    item->data = item->copy;
    return true;
}

/* The pieces that streams have begun are sent to their end. */
static bool keep_pieces(struct zr_tcp *tcp, struct zr_tcp_operation *send)
{
    struct zr_tcp_peer *peer = &tcp->peers[send->peer];
    for (unsigned i = 1; i < zr_tcp_wires(tcp); i++) {
        struct zr_tcp_stream *stream = &peer->streams[i];
        if (stream->first && stream->first->operation == send && !stream->first->copy &&
            !keep_rest(tcp, stream->first))
            return false;
    }
    return true;
}

static void cancel_send(struct zr_tcp *tcp, struct zr_tcp_operation *send)
{
    struct zr_tcp_peer *peer = &tcp->peers[send->peer];
    bool small = send->item.frame.kind == ZR_TCP_SMALL, kept = true;
    enum zr_tcp_state state = send->state;
    send->state = ZR_TCP_FAILED;
    if (state == ZR_TCP_HELD) {
        unlink_from(&peer->held, send);
    } else if (small) {
        if (recall(&peer->streams[0], &send->item))
            peer->small_left++;
        else
            kept = keep_rest(tcp, &send->item);
    } else if (state == ZR_TCP_WAITING) {
        bool recalled = recall(&peer->streams[0], &send->item);
        if (!recalled && !send->item.queued)
            withdraw(tcp, send);
        end_announcement(tcp, send->peer);
    } else {
        bool whole = send->cut_bytes == send->bytes;
        unlink_from(&peer->cleared, send);
        kept = keep_pieces(tcp, send);
        if (kept && !whole)
            withdraw(tcp, send);
    }
    if (!kept)
        zr_tcp_lose(tcp, send->peer, "was given up: no memory is left to cancel a message to it");
}

void zr_tcp_withdraw(struct zr_tcp *tcp, struct zr_tcp_operation *operation)
{
    operation->released = true;
    if (operation->state >= ZR_TCP_DONE) {
        settle(tcp, operation);
    } else if (operation->sends) {
        cancel_send(tcp, operation);
        settle(tcp, operation);
    } else if (operation->state == ZR_TCP_WAITING) {
        unlink_from(operation->any ? &tcp->posted_any : &tcp->peers[operation->peer].posted, operation);
        operation->state = ZR_TCP_FAILED;
        settle(tcp, operation);
    } else {
        operation->data = NULL; /* the bytes that are under way are dropped */
    }
}

/* A receive from any peer whose message will not be complete waits for another one. */
static void reopen(struct zr_tcp *tcp, struct zr_tcp_operation *receive)
{
    receive->state = ZR_TCP_WAITING;
    receive->moved_bytes = receive->cut_bytes = 0;
    append(&tcp->posted_any, receive);
}

void zr_tcp_fail_peer(struct zr_tcp *tcp, unsigned p)
{
    struct zr_tcp_peer *peer = &tcp->peers[p];
    struct zr_tcp_envelope *envelope = peer->unexpected, *next;
    unsigned alive = 0;
    peer->posted.first = peer->held.first = peer->cleared.first = NULL;
    for (; envelope; envelope = next) {
        next = envelope->next;
        if (!envelope->small || envelope->have_bytes < envelope->bytes)
            drop_envelope(tcp, p, envelope);
    }
    for (unsigned i = 0; i < tcp->world; i++)
        alive += i != tcp->rank && !tcp->peers[i].lost;
    for (unsigned i = 0; i < tcp->chunks_count * ZR_TCP_CHUNK; i++) {
        struct zr_tcp_operation *operation = &tcp->chunks[i / ZR_TCP_CHUNK][i % ZR_TCP_CHUNK];
        if (operation->any && operation->state == ZR_TCP_MOVING && operation->peer == p && operation->data)
            reopen(tcp, operation);
        bool open = operation->any && operation->state == ZR_TCP_WAITING;
        if (operation->state == ZR_TCP_FREE || (open ? alive > 0 : operation->peer != p))
            continue;
        if (open)
            unlink_from(&tcp->posted_any, operation);
        if (operation->state < ZR_TCP_DONE)
            operation->state = ZR_TCP_FAILED;
        settle(tcp, operation);
    }
}

/* ---- Frames -------------------------------------------------------------------------------------------- */

static bool take_small_frame(struct zr_tcp *tcp, struct zr_tcp_stream *stream, const char **why)
{
    const struct zr_tcp_frame *frame = &stream->frame;
    struct zr_tcp_peer *peer = &tcp->peers[stream->peer];
    struct zr_tcp_operation *receive = find_receive(tcp, stream->peer, frame->tag);
    *why = "a small message beyond its credit";
    if (peer->small_open == ZR_TCP_SMALL_WINDOW)
        return false;
    peer->small_open++;
    stream->left_bytes = frame->bytes;
    if (receive) {
        match(tcp, receive, stream->peer, frame->bytes);
        receive->cut_bytes = frame->bytes;
        receive->users++;
        stream->into = receive;
        credit(tcp, stream->peer, 1);
        return true;
    }
    *why = "no memory is left for its messages";
    stream->envelope = keep_envelope(tcp, stream->peer, frame);
    return stream->envelope != NULL;
}

static bool take_announcement(struct zr_tcp *tcp, struct zr_tcp_stream *stream, const char **why)
{
    const struct zr_tcp_frame *frame = &stream->frame;
    struct zr_tcp_operation *receive = find_receive(tcp, stream->peer, frame->tag);
    if (receive) {
        match(tcp, receive, stream->peer, frame->bytes);
        clear(tcp, receive, frame->message);
        return true;
    }
    *why = "too many announced messages";
    if (tcp->peers[stream->peer].envelopes == ZR_TCP_ENVELOPE_WINDOW)
        return false;
    *why = "no memory is left for its messages";
    return keep_envelope(tcp, stream->peer, frame) != NULL;
}

/* The number may be of a message that was cancelled meanwhile. */
static void take_clearance(struct zr_tcp *tcp, const struct zr_tcp_stream *stream)
{
    struct zr_tcp_operation *send = zr_tcp_find(tcp, stream->frame.message);
    if (!send || !send->sends || send->peer != stream->peer || send->state != ZR_TCP_WAITING)
        return;
    send->remote = stream->frame.offset;
    send->state = ZR_TCP_MOVING;
    if (send->bytes > 0)
        append(&tcp->peers[stream->peer].cleared, send);
    else
        finish(tcp, send);
    end_announcement(tcp, stream->peer);
    zr_tcp_write(tcp, stream->peer);
}

static bool take_piece(struct zr_tcp *tcp, struct zr_tcp_stream *stream, const char **why)
{
    const struct zr_tcp_frame *frame = &stream->frame;
    struct zr_tcp_operation *receive = zr_tcp_find(tcp, frame->message);
    stream->left_bytes = frame->bytes;
    if (!receive || receive->sends || receive->peer != stream->peer || receive->state != ZR_TCP_MOVING)
        return true; /* of a message that was cancelled meanwhile: dropped */
    *why = "a piece beyond its message";
    if (frame->offset > receive->bytes || frame->bytes > receive->bytes - frame->offset ||
        frame->bytes > receive->bytes - receive->cut_bytes)
        return false;
    receive->cut_bytes += frame->bytes;
    receive->users++;
    stream->into = receive;
    stream->at_bytes = frame->offset;
    return true;
}

static void take_withdrawal(struct zr_tcp *tcp, const struct zr_tcp_stream *stream)
{
    struct zr_tcp_envelope *envelope = tcp->peers[stream->peer].unexpected;
    while (envelope && (envelope->small || envelope->remote != stream->frame.message))
        envelope = envelope->next;
    if (envelope) {
        drop_envelope(tcp, stream->peer, envelope);
        return;
    }
    for (unsigned i = 0; i < tcp->chunks_count * ZR_TCP_CHUNK; i++) {
        struct zr_tcp_operation *receive = &tcp->chunks[i / ZR_TCP_CHUNK][i % ZR_TCP_CHUNK];
        if (receive->state == ZR_TCP_MOVING && !receive->sends && receive->peer == stream->peer &&
            receive->remote == stream->frame.message) {
            receive->why = "the sender has cancelled the message";
            receive->data = NULL;
            finish(tcp, receive);
        }
    }
}

bool zr_tcp_take_frame(struct zr_tcp *tcp, struct zr_tcp_stream *stream, const char **why)
{
    const struct zr_tcp_frame *frame = &stream->frame;
    struct zr_tcp_peer *peer = &tcp->peers[stream->peer];
    bool first = stream->number == 0;
    stream->into = NULL;
    stream->envelope = NULL;
    stream->left_bytes = stream->at_bytes = 0;
    *why = "a frame of an unknown kind";
    if (frame->kind == 0 || frame->kind >= ZR_TCP_KINDS)
        return false;
    *why = "a frame on the wrong connection";
    if (first == (frame->kind == ZR_TCP_DATA) || (first && peer->left))
        return false;
    *why = "a frame with a length or tag out of range";
    if (frame->tag >= ZR_TCP_TAGS || frame->bytes > (frame->kind == ZR_TCP_SMALL  ? ZR_TCP_SMALL_BYTES
                                                     : frame->kind == ZR_TCP_DATA ? ZR_TCP_PIECE_BYTES
                                                                                  : ZR_TCP_MOST_BYTES))
        return false;
    switch ((enum zr_tcp_kind)frame->kind) {
    case ZR_TCP_SMALL:
        return take_small_frame(tcp, stream, why);
    case ZR_TCP_ANNOUNCE:
        return take_announcement(tcp, stream, why);
    case ZR_TCP_CLEAR:
        take_clearance(tcp, stream);
        return true;
    case ZR_TCP_DATA:
        return frame->bytes > 0 && take_piece(tcp, stream, why);
    case ZR_TCP_CREDIT:
        *why = "credit for more messages than were sent";
        if (frame->bytes > ZR_TCP_SMALL_WINDOW - peer->small_left)
            return false;
        peer->small_left += (unsigned)frame->bytes;
        return true;
    case ZR_TCP_WITHDRAW:
        take_withdrawal(tcp, stream);
        return true;
    case ZR_TCP_BYE:
        *why = "a BYE of an unknown kind";
        peer->left = frame->tag == ZR_TCP_BYE_LEAVES;
        peer->failed = frame->tag == ZR_TCP_BYE_FAILS;
        peer->returns = frame->tag == ZR_TCP_BYE_RETURNS;
        if (peer->failed)
            zr_tcp_lose(tcp, stream->peer, "has failed and ends the run");
        return peer->left || peer->failed || peer->returns;
    case ZR_TCP_BEAT:
    case ZR_TCP_KINDS:
        break;
    }
    return true;
}

void zr_tcp_end_payload(struct zr_tcp *tcp, struct zr_tcp_stream *stream)
{
    struct zr_tcp_operation *receive = stream->into;
    if (stream->envelope)
        stream->envelope->have_bytes = stream->envelope->bytes;
    stream->envelope = NULL;
    stream->into = NULL;
    if (!receive)
        return;
    receive->users--;
    receive->moved_bytes += stream->frame.bytes;
    if (receive->moved_bytes == receive->bytes)
        finish(tcp, receive);
    else
        settle(tcp, receive);
}
