/* server.c: a parameter server: its loop over connections. See session.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "zero/comm/take.h"
#include "zero/ps/session.h"

enum { EVENTS = 64, TELL_MS = 1000, LINGER_MS = 2000 };
#define HELLO_NS   UINT64_C(5000000000) /* time for a stranger to say HELLO */
#define SILENT_NS  UINT64_C(60000000000)
#define SILENCE_NS UINT64_C(10000000000)

/* ---- Connections --------------------------------------------------------------------------------------- */

static void watch(zr_ps_server *server, struct zr_ps_session *session, int operation)
{
    bool writes = session->phase == ZR_PS_WRITING ||
                  (session->phase == ZR_PS_SHAKING && session->sent_bytes < session->hand.out_bytes);
    struct epoll_event event = {.events = EPOLLRDHUP | (writes                            ? EPOLLOUT
                                                        : session->phase == ZR_PS_HOLDING ? 0
                                                                                          : EPOLLIN),
                                .data.ptr = session};
    epoll_ctl(server->epoll, operation, session->fd, &event);
}

void zr_ps_session_add(zr_ps_server *server, struct zr_ps_session *session)
{
    session->phase = ZR_PS_READING;
    watch(server, session, EPOLL_CTL_ADD);
}

void zr_ps_session_close(zr_ps_server *server, struct zr_ps_session *session)
{
    (void)server;
    if (session->phase != ZR_PS_FREE)
        close(session->fd); /* which removes it from the epoll set */
    session->phase = ZR_PS_FREE;
}

void zr_ps_session_reply(zr_ps_server *server, struct zr_ps_session *session, zr_result result,
                         const char *data, size_t bytes)
{
    session->reply.magic = ZR_PS_MAGIC;
    session->reply.kind = ZR_PS_REPLY;
    session->reply.sequence = session->frame.sequence;
    session->reply.bytes = bytes;
    session->reply.content = (uint32_t)result;
    session->data = data;
    session->data_bytes = bytes;
    session->sent_bytes = 0;
    session->phase = ZR_PS_WRITING;
    watch(server, session, EPOLL_CTL_MOD);
}

/* Connections that have not said HELLO are bounded in number and time. */
static void accept_one(zr_ps_server *server, int fd)
{
    struct zr_ps_session *session = NULL;
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof address;
    for (unsigned i = 0; i < ZR_PS_SESSIONS && !session; i++)
        if (server->sessions[i].phase == ZR_PS_FREE)
            session = &server->sessions[i];
    bool local = getsockname(fd, (struct sockaddr *)&address, &bytes) == 0 && address.ss_family == AF_UNIX;
    if (!session || server->strangers >= ZR_PS_STRANGERS || (!local && !server->setup.has_secret)) {
        close(fd);
        return;
    }
    *session = (struct zr_ps_session){
        .phase = local ? ZR_PS_READING : ZR_PS_SHAKING, .fd = fd, .deadline_ns = zr_os_now_ns() + HELLO_NS};
    server->strangers++;
    if (!local) {
        zr_tcp_tune(fd, SILENCE_NS);
        session->hand = (struct zr_tcp_hand){.secret = server->setup.secret};
        zr_tcp_hand_begin(&session->hand);
    }
    watch(server, session, EPOLL_CTL_ADD);
}

/* Moves bytes of a connection; 0: none now, -1: it has ended. */
static ssize_t moved(ssize_t bytes)
{
    return bytes > 0 ? bytes : bytes < 0 && errno == EAGAIN ? 0 : -1;
}

/* false: the connection has ended, or must end. */
static bool shake(zr_ps_server *server, struct zr_ps_session *session)
{
    struct zr_tcp_hand *hand = &session->hand;
    ssize_t bytes;
    if (session->sent_bytes < hand->out_bytes) {
        bytes = moved(zr_send_packet(session->fd, hand->out + session->sent_bytes,
                                     hand->out_bytes - session->sent_bytes, 0));
        session->sent_bytes += bytes > 0 ? (size_t)bytes : 0;
        watch(server, session, EPOLL_CTL_MOD);
        return bytes >= 0;
    }
    bytes = moved(zr_receive_bytes(session->fd, hand->in + session->have_bytes,
                                   hand->want_bytes - session->have_bytes, 0));
    session->have_bytes += bytes > 0 ? (size_t)bytes : 0;
    if (bytes < 0 || session->have_bytes < hand->want_bytes)
        return bytes >= 0;
    session->have_bytes = session->sent_bytes = 0;
    enum zr_tcp_step step = zr_tcp_hand_next(hand);
    if (step == ZR_TCP_SUCCEEDS)
        session->phase = ZR_PS_READING;
    watch(server, session, EPOLL_CTL_MOD);
    return step != ZR_TCP_FAILS;
}

/* Whether requests of a client are read. */
static bool is_read(const struct zr_ps_session *session)
{
    return session->phase == ZR_PS_READING && session->known && session->worker != ZR_PS_PRIMARY;
}

static bool is_whole(const struct zr_ps_session *session)
{
    const size_t header = sizeof session->frame;
    return session->have_bytes >= header && session->have_bytes == header + session->frame.bytes;
}

/* Reads a part of a request; *whole: it is there. */
static bool read_request(zr_ps_server *server, struct zr_ps_session *session, bool *whole)
{
    const size_t header = sizeof session->frame;
    size_t have = session->have_bytes;
    bool in_header = have < header;
    char *to = in_header ? (char *)&session->frame + have
                         : (char *)zr_ps_buffer(&server->store, session->buffer) + have;
    size_t want = in_header ? header - have : header + session->frame.bytes - have;
    ssize_t bytes = moved(zr_receive_bytes(session->fd, to, want, 0));
    if (bytes <= 0)
        return bytes == 0;
    server->state.received_bytes += (uint64_t)bytes;
    session->have_bytes += (size_t)bytes;
    if (in_header && session->have_bytes == header && !zr_ps_session_header(server, session))
        return false;
    *whole = is_whole(session);
    return true;
}

static bool write_reply(zr_ps_server *server, struct zr_ps_session *session)
{
    const size_t header = sizeof session->reply;
    struct iovec parts[2] = {{&session->reply, header}, {(void *)session->data, session->data_bytes}};
    size_t skip = session->sent_bytes;
    for (unsigned i = 0; i < 2; i++) {
        size_t here = skip < parts[i].iov_len ? skip : parts[i].iov_len;
        parts[i].iov_base = here > 0 ? (char *)parts[i].iov_base + here : parts[i].iov_base;
        parts[i].iov_len -= here;
        skip -= here;
    }
    ssize_t bytes = moved(zr_send(session->fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 2}, 0));
    if (bytes < 0)
        return false;
    session->sent_bytes += (size_t)bytes;
    server->state.sent_bytes += (uint64_t)bytes;
    if (session->sent_bytes < header + session->data_bytes)
        return true;
    if (session->closes)
        return false;
    session->have_bytes = 0;
    session->phase = ZR_PS_READING;
    watch(server, session, EPOLL_CTL_MOD);
    return true;
}

/* Of a connection that may be of the request that is being handled: the loop closes it. */
static void end_session(struct zr_ps_session *session)
{
    shutdown(session->fd, SHUT_RDWR);
    session->have_bytes = 0;
}

enum zr_ps_told zr_ps_session_tell(zr_ps_server *server, struct zr_ps_session *session,
                                   const struct zr_ps_frame *frame)
{
    const char *from = (const char *)frame;
    size_t sent = 0;
    ssize_t bytes = 1;
    while (session->phase == ZR_PS_WRITING) {
        size_t before = session->sent_bytes;
        if (!write_reply(server, session))
            bytes = -1;
        else if (session->phase == ZR_PS_WRITING && session->sent_bytes == before)
            return ZR_PS_NO_ROOM;
        if (bytes < 0)
            break;
    }
    for (; sent < sizeof *frame && bytes > 0; sent += bytes > 0 ? (size_t)bytes : 0)
        bytes = moved(zr_send_packet(session->fd, from + sent, sizeof *frame - sent, 0));
    if (bytes > 0)
        return ZR_PS_TOLD;
    if (bytes == 0 && sent == 0)
        return ZR_PS_NO_ROOM;
    end_session(session);
    return ZR_PS_ENDED;
}

/* ---- The loop ------------------------------------------------------------------------------------------ */

static zr_result take_request(zr_ps_server *server, struct zr_ps_session *session)
{
    zr_result result = zr_ps_session_request(server, session);
    if (session->phase == ZR_PS_HOLDING)
        watch(server, session, EPOLL_CTL_MOD);
    return result;
}

/* Tries held requests, and those that were read while the server waited, until none can be handled: each may
 * allow others. */
static zr_result retry_held(zr_ps_server *server)
{
    zr_result result = ZR_OK;
    bool again = true;
    while (again && result == ZR_OK) {
        again = false;
        server->held = 0;
        for (unsigned i = 0; i < ZR_PS_SESSIONS && result == ZR_OK; i++) {
            struct zr_ps_session *session = &server->sessions[i];
            const enum zr_ps_phase before = session->phase;
            if (before == ZR_PS_READING && is_whole(session))
                result = take_request(server, session);
            else if (before == ZR_PS_HOLDING)
                result = zr_ps_session_retry(server, session);
            again |= session->phase != before;
            server->held += session->phase == ZR_PS_HOLDING;
        }
    }
    return result;
}

/* Closes strangers whose time is over, and counts the others. */
static void check_strangers(zr_ps_server *server)
{
    uint64_t now_ns = server->strangers > 0 ? zr_os_now_ns() : 0;
    bool some = server->strangers > 0;
    server->strangers = 0;
    for (unsigned i = 0; i < ZR_PS_SESSIONS && some; i++) {
        struct zr_ps_session *session = &server->sessions[i];
        bool stranger = session->phase != ZR_PS_FREE && !session->known;
        if (stranger && now_ns >= session->deadline_ns)
            zr_ps_session_close(server, session);
        else
            server->strangers += stranger;
    }
}

/* Tells clients that the server lives: those of held requests, and if it `waits` for its replica those of all
 * requests. A frame that does not fit is left out. */
static void tell_held(zr_ps_server *server, bool waits)
{
    const struct zr_ps_frame frame = {.magic = ZR_PS_MAGIC, .kind = ZR_PS_HELD};
    uint64_t now_ns = zr_os_now_ns();
    if ((server->held == 0 && !waits) || now_ns - server->told_ns < TELL_MS * UINT64_C(1000000))
        return;
    server->told_ns = now_ns;
    for (unsigned i = 0; i < ZR_PS_SESSIONS; i++) {
        struct zr_ps_session *session = &server->sessions[i];
        if (session->phase == ZR_PS_HOLDING || (waits && is_read(session) && session->have_bytes > 0))
            zr_ps_session_tell(server, session, &frame);
    }
}

void zr_ps_server_wait(void *state)
{
    zr_ps_server *server = state;
    for (unsigned i = 0; i < ZR_PS_SESSIONS; i++) {
        struct zr_ps_session *session = &server->sessions[i];
        bool good = true, moves = true, whole;
        while (good && moves) {
            const size_t have = session->have_bytes, sent = session->sent_bytes;
            if (session->phase == ZR_PS_WRITING)
                good = write_reply(server, session);
            else if (is_read(session) && !is_whole(session))
                good = read_request(server, session, &whole);
            moves = session->have_bytes != have || session->sent_bytes != sent;
        }
        if (!good)
            end_session(session);
    }
    tell_held(server, true);
}

static zr_result handle_event(zr_ps_server *server, struct zr_ps_session *session, uint32_t events)
{
    bool good = true, whole = false;
    zr_result result = ZR_OK;
    switch (session->phase) {
    case ZR_PS_FREE:
        return ZR_OK; /* closed by an earlier event */
    case ZR_PS_SHAKING:
        good = shake(server, session);
        break;
    case ZR_PS_READING:
        good = read_request(server, session, &whole);
        break;
    case ZR_PS_HOLDING:
        good = !(events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP));
        break;
    case ZR_PS_WRITING:
        good = !(events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) && write_reply(server, session);
        break;
    }
    if (whole)
        result = take_request(server, session);
    if (!good)
        zr_ps_session_close(server, session);
    return result == ZR_OK && whole ? retry_held(server) : result;
}

/* A worker that has left and has not said BYE may have lost the answer; it connects within LINGER_MS. */
static bool has_ended(const zr_ps_server *server)
{
    bool answered = true;
    if (!zr_ps_all_left(&server->store.timetable) || server->strangers > 0)
        return false;
    for (unsigned i = 0; i < ZR_PS_SESSIONS; i++)
        if (server->sessions[i].phase != ZR_PS_FREE && server->sessions[i].known &&
            server->sessions[i].worker < server->setup.options.workers)
            return false;
    for (unsigned w = 0; w < server->setup.options.workers; w++)
        answered &= server->bye[w];
    return answered || zr_os_now_ns() - server->last_ns >= LINGER_MS * UINT64_C(1000000);
}

zr_result zr_ps_server_serve(zr_ps_server *server, int timeout_ms, bool *ended)
{
    struct epoll_event events[EVENTS];
    if (!server || !ended)
        return zr_fail(ZR_ERR_INVALID, "%s: the server or `ended` is NULL", __func__);
    if ((server->held + server->strangers > 0 || zr_ps_all_left(&server->store.timetable)) &&
        (timeout_ms < 0 || timeout_ms > TELL_MS))
        timeout_ms = TELL_MS;
    int count = epoll_wait(server->epoll, events, EVENTS, timeout_ms);
    zr_result result = ZR_OK;
    if (count > 0)
        server->last_ns = zr_os_now_ns();
    for (int i = 0; i < count && result == ZR_OK; i++) {
        if (events[i].data.ptr == server->stop) {
            server->stopped = true;
        } else if (events[i].data.ptr == server) {
            int fd = zr_accept(server->listener, SOCK_NONBLOCK);
            if (fd >= 0)
                accept_one(server, fd);
        } else if (events[i].data.ptr == &server->replica) {
            zr_ps_session_has_replica(server);
        } else {
            result = handle_event(server, events[i].data.ptr, events[i].events);
        }
        if (result == ZR_OK)
            result = zr_ps_session_replaced(server);
    }
    if (server->awaits_ns > 0 && zr_os_now_ns() >= server->awaits_ns && result == ZR_OK) {
        server->awaits_ns = 0;
        result = retry_held(server);
    }
    tell_held(server, false);
    check_strangers(server);
    *ended = has_ended(server);
    return result;
}

zr_result zr_ps_server_run(zr_ps_server *server)
{
    bool ended = false;
    zr_result result = server ? ZR_OK : zr_fail(ZR_ERR_INVALID, "%s: the server is NULL", __func__);
    while (result == ZR_OK && !ended && !server->stopped)
        result = zr_ps_server_serve(server, -1, &ended);
    return result;
}

void zr_ps_server_stop(zr_ps_server *server)
{
    if (server)
        zr_write_all(server->stop[1], ZR_PRESENT_POSITION, "s", 1);
}

/* ---- Creation ------------------------------------------------------------------------------------------ */

static zr_result check(const struct zr_ps_server_options *options)
{
    if (!options || !options->arena || !options->kernels)
        return zr_fail(ZR_ERR_INVALID, "a parameter server requires an arena and kernels");
    if (options->struct_bytes != 0 && options->struct_bytes != sizeof *options)
        return zr_fail(ZR_ERR_INVALID,
                       "struct zr_ps_server_options of another release: %zu bytes instead of %zu",
                       options->struct_bytes, sizeof *options);
    if (!options->kernels->executes || !options->kernels->host_visible || !options->context)
        return zr_fail(ZR_ERR_INVALID, "a parameter server requires an open context in host memory");
    if (options->server >= options->common.servers)
        return zr_fail(ZR_ERR_INVALID, "server %u of %u", options->server, options->common.servers);
    if ((options->primary || options->replicated) && options->kept)
        return zr_fail(ZR_ERR_INVALID, "a parameter server has kept memory or a replica, not both");
    return ZR_OK;
}

static zr_result open_loop(zr_ps_server *server, int listener)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = server};
    server->listener = listener;
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (server->epoll < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, server->stop) != 0 ||
        epoll_ctl(server->epoll, EPOLL_CTL_ADD, listener, &event) != 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "a parameter server has no descriptors: %s",
                       strerrordesc_np(errno));
    event.data.ptr = server->stop;
    epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->stop[0], &event);
    return ZR_OK;
}

zr_result zr_ps_server_create(zr_ps_server **out, const struct zr_ps_server_options *options)
{
    zr_ps_server *server = NULL;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "%s: out is NULL", __func__);
    *out = NULL;
    zr_result result = check(options);
    if (result == ZR_OK)
        result = zr_take(options->arena, ZR_TAG_OTHER, 1, sizeof *server, (void **)&server);
    if (result != ZR_OK)
        return result;
    *server = (zr_ps_server){.arena = options->arena,
                             .epoll = -1,
                             .stop = {-1, -1},
                             .is_replica = options->primary != NULL,
                             .replica = {.fd = -1},
                             .silent = options->silent};
    server->silent.after_ns = options->silent.after_ns ? options->silent.after_ns : SILENT_NS;
    result = zr_ps_setup_init(&server->setup, &options->common, options->arena);
    server->store = (struct zr_ps_store){.setup = &server->setup,
                                         .server = options->server,
                                         .arena = options->arena,
                                         .kernels = options->kernels,
                                         .context = options->context,
                                         .memory = options->kept};
    if (result == ZR_OK)
        result = zr_ps_store_init(&server->store);
    if (result == ZR_OK)
        result = zr_take(options->arena, ZR_TAG_COMM, server->setup.options.workers + ZR_PS_EXTRA,
                         server->setup.message_bytes, (void **)&server->answers);
    if (result == ZR_OK)
        result = zr_take(options->arena, ZR_TAG_OTHER, ZR_PS_SESSIONS, sizeof *server->sessions,
                         (void **)&server->sessions);
    if (result == ZR_OK) {
        server->last_ns = zr_os_now_ns();
        memset(server->sessions, 0, ZR_PS_SESSIONS * sizeof *server->sessions);
        result = zr_ps_store_recover(&server->store);
    }
    if (result == ZR_OK)
        result = open_loop(server, options->listener);
    if (result == ZR_OK && options->primary)
        result = zr_ps_join(server, options->primary);
    else if (options->replicated)
        server->awaits_ns = zr_os_now_ns() + server->silent.after_ns;
    if (result == ZR_OK)
        *out = server;
    else
        zr_ps_server_destroy(server);
    return result;
}

void zr_ps_server_destroy(zr_ps_server *server)
{
    if (!server)
        return;
    for (unsigned i = 0; server->sessions && i < ZR_PS_SESSIONS; i++)
        zr_ps_session_close(server, &server->sessions[i]);
    zr_ps_link_close(&server->replica);
    for (unsigned i = 0; i < 2; i++)
        if (server->stop[i] >= 0)
            close(server->stop[i]);
    if (server->epoll >= 0)
        close(server->epoll);
    zr_arena *arena = server->arena;
    zr_drop(arena, &server->sessions);
    zr_drop(arena, &server->answers);
    zr_ps_store_fini(&server->store);
    zr_ps_setup_fini(&server->setup);
    zr_drop(arena, &server);
}

zr_result zr_ps_server_plan(const struct zr_ps_options *options, unsigned server, zr_arena *arena,
                            struct zr_ps_bytes *out)
{
    struct zr_ps_setup setup;
    if (!out || !options || server >= options->servers)
        return zr_fail(ZR_ERR_INVALID, "%s: there is no server %u, or an argument is NULL", __func__, server);
    zr_result result = zr_ps_setup_init(&setup, options, arena);
    if (result == ZR_OK)
        result = zr_ps_store_plan(&setup, server, out);
    if (result == ZR_OK) {
        out->messages += (options->workers + ZR_PS_EXTRA) * setup.message_bytes;
        out->records += sizeof(struct zr_ps_server) + ZR_PS_SESSIONS * sizeof(struct zr_ps_session) +
                        options->tables_count * sizeof(struct zr_ps_entry);
    }
    zr_ps_setup_fini(&setup);
    return result;
}
