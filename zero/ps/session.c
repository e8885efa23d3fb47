/* session.c: what a server does with a request. See session.h and wire.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "zero/ps/session.h"

#define HEAR_NS UINT64_C(1000000000) /* for the rest of a frame */

static void refuse(zr_ps_server *server, struct zr_ps_session *session, const char *why)
{
    snprintf(session->text, sizeof session->text, "server %u: %s", server->store.server, why);
    session->closes = true;
    zr_ps_session_reply(server, session, ZR_ERR_PEER, session->text, strlen(session->text));
}

/* ---- HELLO --------------------------------------------------------------------------------------------- */

static struct zr_ps_session *session_of(zr_ps_server *server, uint32_t worker, unsigned buffer)
{
    for (unsigned i = 0; i < ZR_PS_SESSIONS; i++) {
        struct zr_ps_session *other = &server->sessions[i];
        if (other->phase != ZR_PS_FREE && other->known && other->worker == worker &&
            (worker != ZR_PS_OBSERVER || other->buffer == buffer))
            return other;
    }
    return NULL;
}

/* The buffer of a client, whose earlier connection ends; false: there are too many observers. */
static bool find_buffer(zr_ps_server *server, uint32_t worker, unsigned *out)
{
    const unsigned workers = server->setup.options.workers;
    *out = worker;
    if (worker == ZR_PS_OBSERVER) {
        for (*out = workers; *out < workers + ZR_PS_OBSERVERS; ++*out)
            if (!session_of(server, worker, *out))
                return true;
        return false;
    }
    struct zr_ps_session *before = session_of(server, worker, 0);
    if (before)
        zr_ps_session_close(server, before);
    return true;
}

/* Another client than the primary: that is dead, or it is refused before the client is answered, and its
 * requests need no worker's buffer. false: a primary that does not read cannot be refused now. */
static bool take_over(zr_ps_server *server, struct zr_ps_session *primary)
{
    const struct zr_ps_frame refusal = {
        .magic = ZR_PS_MAGIC, .kind = ZR_PS_REPLY, .content = (uint32_t)ZR_ERR_PEER};
    if (server->is_replica && primary) {
        if (zr_ps_session_tell(server, primary, &refusal) == ZR_PS_NO_ROOM)
            return false;
        primary->buffer = server->setup.options.workers + ZR_PS_OBSERVERS;
    }
    server->is_replica = false;
    return true;
}

/* Answers a HELLO or a change: the clock, and the number of the worker's last change that was applied, which
 * is below that of a change that a successor repeats. */
static void acknowledge(zr_ps_server *server, struct zr_ps_session *session)
{
    const struct zr_ps_timetable *t = &server->store.timetable;
    const uint32_t worker = session->frame.worker;
    session->reply = (struct zr_ps_frame){.number = 0};
    if (worker < t->workers) {
        session->reply.number = atomic_load(&t->members[worker].sequence);
        session->reply.clock = atomic_load(&t->members[worker].clock);
    }
    zr_ps_session_reply(server, session, ZR_OK, NULL, 0);
}

static void greet(zr_ps_server *server, struct zr_ps_session *session)
{
    const struct zr_ps_frame *frame = &session->frame;
    struct zr_ps_session *primary = session_of(server, ZR_PS_PRIMARY, 0);
    unsigned buffer = 0;
    if (server->is_replica && primary && !frame->content) {
        zr_ps_session_close(server, session);
    } else if (frame->number != server->setup.hash) {
        refuse(server, session, "the client has other tables or options");
    } else if (frame->worker != ZR_PS_REPLICA && !find_buffer(server, frame->worker, &buffer)) {
        refuse(server, session, "two observers are connected already");
    } else if (!take_over(server, primary)) {
        zr_ps_session_close(server, session);
    } else if (frame->worker == ZR_PS_REPLICA) {
        zr_ps_join_accept(server, session);
    } else {
        session->known = true;
        session->worker = frame->worker;
        session->buffer = buffer;
        acknowledge(server, session);
    }
}

/* ---- Replica ------------------------------------------------------------------------------------------- */

/* Takes an answer of the replica, which has applied a request, or has taken over: a replica refuses its
 * primary before it answers its first client, so what is acknowledged after that is what it has. A replica
 * that is lost is done without. `sent`: the result of sending it a request. */
static void take_answer(zr_ps_server *server, zr_result sent, uint64_t limit_ns)
{
    struct zr_ps_link *link = &server->replica;
    struct zr_ps_frame reply;
    zr_result result = sent == ZR_ERR_TIMEOUT
                           ? sent
                           : zr_ps_link_receive(link, &reply, sizeof reply, zr_os_now_ns() + limit_ns);
    bool valid = result == ZR_OK && reply.magic == ZR_PS_MAGIC && reply.kind == ZR_PS_REPLY;
    if (valid && reply.content == ZR_OK)
        return;
    server->replaced = valid;
    server->state.lost_replicas++;
    zr_ps_link_close(link); /* it does not apply what this server may apply */
    if (result == ZR_ERR_TIMEOUT && server->silent.end)
        server->silent.end(server->silent.state);
}

/* Has the replica apply the request in a buffer. */
static void forward(zr_ps_server *server, unsigned buffer)
{
    const struct zr_ps_frame *frame = zr_ps_buffer(&server->store, buffer);
    struct iovec part = {(void *)frame, sizeof *frame + frame->bytes};
    if (server->replica.fd < 0)
        return;
    /* Another failure shows when the answer is awaited, which may be an earlier refusal. */
    zr_result sent = zr_ps_link_send(&server->replica, &part, 1, zr_os_now_ns() + server->silent.after_ns);
    take_answer(server, sent, server->silent.after_ns);
}

bool zr_ps_session_has_replica(zr_ps_server *server)
{
    const int fd = server->replica.fd;
    char byte;
    if (fd >= 0 && (zr_receive_bytes(fd, &byte, 1, MSG_PEEK) >= 0 || errno != EAGAIN))
        take_answer(server, ZR_OK, HEAR_NS);
    return server->replica.fd >= 0;
}

zr_result zr_ps_session_replaced(const zr_ps_server *server)
{
    return server->replaced
               ? zr_fail(ZR_ERR_PEER, "server %u: its replica has taken over", server->store.server)
               : ZR_OK;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

bool zr_ps_session_header(zr_ps_server *server, struct zr_ps_session *session)
{
    const struct zr_ps_frame *frame = &session->frame;
    const unsigned workers = server->setup.options.workers;
    if (!zr_ps_frame_valid(&server->setup, frame) || (frame->kind == ZR_PS_HELLO) == session->known)
        return false;
    if (!session->known)
        return frame->bytes == 0;
    if (session->worker != ZR_PS_PRIMARY)
        return frame->worker == session->worker;
    session->buffer =
        server->is_replica && frame->worker < workers ? frame->worker : workers + ZR_PS_OBSERVERS;
    return true;
}

/* Why a valid request cannot be of an honest client; NULL: it can. */
static const char *problem_of(const zr_ps_server *server, const struct zr_ps_frame *frame)
{
    const struct zr_ps_timetable *t = &server->store.timetable;
    const bool worker = frame->worker < t->workers;
    uint64_t clock = worker ? atomic_load(&t->members[frame->worker].clock) : 0;
    if (frame->kind == ZR_PS_LEAVE && frame->number >= t->workers)
        return "no worker has this number";
    if ((frame->kind == ZR_PS_PUSH || frame->kind == ZR_PS_END_STEP) && !worker)
        return "an observer neither pushes nor ends steps";
    if (frame->kind == ZR_PS_VERSION_OF && frame->number >= t->tables)
        return "no table has this number";
    if (worker && zr_ps_changes(frame->kind) && frame->kind != ZR_PS_LEAVE &&
        atomic_load(&t->members[frame->worker].left))
        return "the worker has left the run";
    if ((frame->kind == ZR_PS_PUSH || frame->kind == ZR_PS_END_STEP) && frame->clock > clock)
        return "the worker's step has not begun";
    return NULL;
}

/* Whether the request has been applied: by its number, or because the worker's step has ended here. */
static bool is_repeated(const zr_ps_server *server, const struct zr_ps_frame *frame)
{
    if (frame->worker >= server->setup.options.workers)
        return false;
    const struct zr_ps_member *member = &server->store.timetable.members[frame->worker];
    return frame->sequence <= atomic_load(&member->sequence) ||
           ((frame->kind == ZR_PS_PUSH || frame->kind == ZR_PS_END_STEP) &&
            frame->clock < atomic_load(&member->clock));
}

void zr_ps_server_get_state(const zr_ps_server *server, struct zr_ps_state *out)
{
    if (!server || !out)
        return;
    const struct zr_ps_timetable *t = &server->store.timetable;
    *out = server->state;
    out->replicas = server->replica.fd >= 0;
    out->updates = server->store.updates;
    out->clock_min = zr_ps_clock_min(t);
    out->clock_max = zr_ps_clock_max(t);
    if (out->clock_min == UINT64_MAX)
        out->clock_min = out->clock_max;
    memcpy(out->staleness, server->store.staleness, sizeof out->staleness);
}

/* Applies or answers a request that does not wait. */
static zr_result carry_out(zr_ps_server *server, struct zr_ps_session *session, size_t reply_bytes)
{
    struct zr_ps_store *store = &server->store;
    const struct zr_ps_frame *frame = &session->frame;
    char *answer = server->answers + session->buffer * server->setup.message_bytes;
    bool tracks = server->setup.options.staleness.kind != ZR_PS_STALE_NONE;
    zr_result result = ZR_OK;
    if (zr_ps_changes(frame->kind) || (frame->kind == ZR_PS_PULL && tracks))
        forward(server, session->buffer);
    if (server->replaced)
        return zr_ps_session_replaced(server);
    if (zr_ps_changes(frame->kind)) {
        server->state.pushes += frame->kind == ZR_PS_PUSH;
        if (frame->kind == ZR_PS_LEAVE && frame->worker != frame->number)
            server->bye[frame->number] = true;
        result = zr_ps_apply(store, session->buffer);
    } else if (frame->kind == ZR_PS_VERSION_OF) {
        session->reply.number = atomic_load(&store->numbers[frame->number].version);
    } else {
        server->state.pulls += frame->kind == ZR_PS_PULL;
        result = zr_ps_answer(store, session->buffer, answer);
        if (result != ZR_OK) {
            refuse(server, session, zr_last_error());
            return ZR_OK;
        }
        if (session->worker == ZR_PS_PRIMARY)
            reply_bytes = 0; /* the replica notes the pull */
    }
    if (result != ZR_OK)
        return result;
    if (zr_ps_changes(frame->kind))
        acknowledge(server, session);
    else
        zr_ps_session_reply(server, session, ZR_OK, answer, reply_bytes);
    return ZR_OK;
}

/* Whether the request waits: for the first replica, or for other workers. With half-async a primary has
 * decided by the pulls that its replica does not know. */
static bool is_held(zr_ps_server *server, const struct zr_ps_session *session)
{
    bool waits = zr_ps_must_wait(&server->store, session->buffer) ||
                 (server->awaits_ns > 0 && zr_ps_changes(session->frame.kind));
    return waits &&
           !(session->worker == ZR_PS_PRIMARY && server->setup.options.timing.kind == ZR_PS_HALF_ASYNC);
}

static zr_result handle(zr_ps_server *server, struct zr_ps_session *session, bool again)
{
    const struct zr_ps_frame *frame = &session->frame;
    struct zr_ps_request request = {frame, (const char *)(zr_ps_buffer(&server->store, session->buffer) + 1)};
    size_t reply_bytes = 0;
    const char *problem;
    session->reply = (struct zr_ps_frame){.number = 0};
    if (session->worker == ZR_PS_PRIMARY && !server->is_replica)
        refuse(server, session, "this server has taken over from its primary");
    else if (!again && !zr_ps_request_valid(&server->setup, server->store.server, request, &reply_bytes))
        refuse(server, session, "a request is not of this run's tables and ranges");
    else if ((problem = problem_of(server, frame)))
        refuse(server, session, problem);
    else if (frame->kind == ZR_PS_REPORT) {
        zr_ps_server_get_state(server, &session->report);
        zr_ps_session_reply(server, session, ZR_OK, (const char *)&session->report, sizeof session->report);
    } else if (zr_ps_changes(frame->kind) && is_repeated(server, frame)) {
        server->state.repeated++;
        acknowledge(server, session);
    } else if (is_held(server, session)) {
        server->state.held += session->phase != ZR_PS_HOLDING;
        session->phase = ZR_PS_HOLDING;
    } else if (!zr_ps_rows_fit(&server->store, session->buffer)) {
        refuse(server, session, "a worker pushes more rows in a step than message_bytes; raise it");
    } else {
        if (again)
            zr_ps_request_valid(&server->setup, server->store.server, request, &reply_bytes);
        return carry_out(server, session, reply_bytes);
    }
    return ZR_OK;
}

zr_result zr_ps_session_request(zr_ps_server *server, struct zr_ps_session *session)
{
    if (session->frame.kind == ZR_PS_HELLO) {
        greet(server, session);
        return ZR_OK;
    }
    if (session->frame.kind == ZR_PS_BYE) {
        if (session->worker < ZR_PS_WORKERS_MAX)
            server->bye[session->worker] = true;
        zr_ps_session_close(server, session);
        return ZR_OK;
    }
    *zr_ps_buffer(&server->store, session->buffer) = session->frame;
    return handle(server, session, false);
}

zr_result zr_ps_session_retry(zr_ps_server *server, struct zr_ps_session *session)
{
    return handle(server, session, true);
}
