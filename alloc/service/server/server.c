/* server.c: see server.h. Uses dispatch.c and ledger.c. */
#define _GNU_SOURCE
#include "alloc/service/server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "alloc/service/server/connection.h"
#include "alloc/service/server/runs.h"

enum {
    CLIENTS_MAX = 8192,
    EVENTS_AT_ONCE = 64,
    MESSAGES_AT_ONCE = 16, /* of one client, before other clients are served */
    CHECK_MS = 200
};
#define SILENT_NS UINT64_C(30000000000) /* a connection without a message for this time is closed */

static struct zr_server *server_of(struct zr_ledger *ledger)
{
    return (struct zr_server *)ledger;
}

static struct zr_connection *connection_of(struct zr_client *client)
{
    return (struct zr_connection *)client;
}

/* ---- Messages to a client ------------------------------------------------------------------------------ */

void zr_connection_disconnect(struct zr_server *server, struct zr_connection *connection, bool revoke,
                              const char *words)
{
    if (connection->disconnected)
        return;
    connection->disconnected = server->disconnected = true;
    connection->revoked = revoke;
    snprintf(connection->words, sizeof connection->words, "%s", words);
}

void zr_connection_send(struct zr_connection *connection, int socket,
                        const struct zr_service_message *message, int fd)
{
    zr_result result = socket >= 0 ? zr_service_send(socket, message, fd, true) : ZR_ERR_PEER;
    if (result != ZR_OK && !connection->disconnected)
        zr_connection_disconnect(connection->server, connection, result == ZR_ERR_TIMEOUT,
                                 result == ZR_ERR_TIMEOUT ? "it does not read its answers" : "");
}

static bool answer(struct zr_ledger *ledger, struct zr_client *client, zr_result result)
{
    struct zr_server *server = server_of(ledger);
    struct zr_device_piece *piece = NULL;
    if (client->is_segment)
        return zr_kept_answer(server, connection_of(client), result);
    bool granted = result == ZR_OK;
    int fd = -1;
    if (granted && zr_server_has_device(server))
        result = zr_connection_lend(connection_of(client), client->wanted_bytes, &piece);
    if (piece && (result = zr_piece_fd(&server->device_pool, piece, &fd)) != ZR_OK)
        zr_device_pool_return(&server->device_pool, &connection_of(client)->pieces, piece);
    if (granted && result != ZR_OK)
        return false;
    struct zr_service_message message =
        zr_service_message_of(result == ZR_OK ? ZR_SERVICE_GRANTED : ZR_SERVICE_REFUSED);
    message.count = fd >= 0 ? piece->number : 0;
    message.serial = client->wanted_serial;
    message.bytes = client->wanted_bytes;
    message.result = (uint32_t)result;
    if (result != ZR_OK)
        snprintf(message.words, sizeof message.words, "%s", zr_last_error());
    zr_connection_send(connection_of(client), connection_of(client)->requests, &message, fd);
    if (fd >= 0)
        zr_piece_close_fd(&server->device_pool, piece);
    return true;
}

static void ask(struct zr_ledger *ledger, struct zr_client *client)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_RECLAIM);
    message.serial = client->reclaim_serial;
    message.bytes = client->reclaim_bytes;
    message.flags = client->reclaim_spills ? ZR_SERVICE_SPILL : 0;
    message.within_ms = (uint32_t)(ledger->within_ns / 1000000);
    zr_connection_send(connection_of(client), connection_of(client)->notifications, &message, -1);
}

static void end(struct zr_ledger *ledger, struct zr_client *client, const char *words)
{
    zr_connection_disconnect(server_of(ledger), connection_of(client), true, words);
}

static void reply(struct zr_ledger *ledger, struct zr_client *client, enum zr_service_kind kind,
                  const char *words)
{
    struct zr_service_message message = zr_service_message_of(kind);
    (void)ledger;
    message.result = kind == ZR_SERVICE_REFUSED ? ZR_ERR_MEMORY : ZR_OK;
    message.slice = client->run ? client->run->slice : 0;
    snprintf(message.words, sizeof message.words, "%s", kind == ZR_SERVICE_REFUSED ? zr_last_error() : words);
    zr_connection_send(connection_of(client), connection_of(client)->requests, &message, -1);
}

static void ask_to_yield(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_YIELD);
    (void)ledger;
    message.bytes = bytes;
    zr_connection_send(connection_of(client), connection_of(client)->notifications, &message, -1);
}

static const struct zr_ledger_calls calls = {
    .answer = answer, .ask = ask, .end = end, .reply = reply, .yield = ask_to_yield};

/* ---- The end of a connection --------------------------------------------------------------------------- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void notify_end(struct zr_server *server, struct zr_connection *connection)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_ENDED);
    if (!connection->words[0])
        return;
    snprintf(message.words, sizeof message.words, "%s", connection->words);
    if (connection->notifications >= 0)
        zr_service_send(connection->notifications, &message, -1, true);
    zr_service_log(server->log, "pid %d (%s): %s%s", (int)connection->client.pid, connection->client.program,
                   connection->words,
                   connection->client.held_bytes == 0 || !connection->revoked ? ""
                   : zr_server_has_device(server) ? "; its memory of the device is freed when it exits"
                                                  : "; its memory was revoked");
    connection->words[0] = '\0';
}

static bool release(struct zr_server *server, struct zr_connection *connection)
{
    return zr_server_has_device(server) ? zr_connection_release_pieces(connection)
                                        : zr_connection_release_files(connection);
}

static void destroy_connection(struct zr_server *server, struct zr_connection *connection)
{
    zr_kept_forget(server, connection);
    if (connection->previous)
        connection->previous->next = connection->next;
    else
        server->connections = connection->next;
    if (connection->next)
        connection->next->previous = connection->previous;
    server->connections_count--;
    server->unregistered_count -= !connection->registered && !connection->keeps;
    server->left_count -= connection->client.left;
    if (connection->registered)
        zr_ledger_remove(&server->ledger, &connection->client, zr_os_now_ns());
    zr_slab_give(&server->connection_records, connection);
}

/* Closes the connection. The client's memory is freed, or stays counted while a forked child maps it. */
static void finish(struct zr_server *server, struct zr_connection *connection)
{
    notify_end(server, connection);
    close_fd(&connection->requests);
    close_fd(&connection->notifications);
    if (connection->revoked)
        zr_connection_revoke_files(connection);
    if (!zr_server_has_device(server))
        close_fd(&connection->process);
    if (!release(server, connection)) {
        connection->disconnected = false;
        if (!connection->client.left) {
            server->left_count++;
            zr_ledger_leave(&server->ledger, &connection->client, zr_os_now_ns());
        }
        return;
    }
    close_fd(&connection->process);
    destroy_connection(server, connection);
}

/* Ending one connection may disconnect another. */
static void finish_disconnected(struct zr_server *server)
{
    while (server->disconnected) {
        server->disconnected = false;
        for (struct zr_connection *connection = server->connections, *next; connection; connection = next) {
            next = connection->next;
            if (connection->disconnected)
                finish(server, connection);
        }
    }
}

/* Checks periodically whether files of dead processes can be freed and whether a connection is silent. */
static void check_silent(struct zr_server *server, uint64_t now_ns)
{
    if (now_ns - server->looked_ns < (uint64_t)CHECK_MS * 1000000)
        return;
    server->looked_ns = now_ns;
    if (server->left_count == 0 && server->unregistered_count == 0)
        return;
    for (struct zr_connection *connection = server->connections; connection; connection = connection->next)
        if (connection->client.left ||
            (!connection->registered && !connection->keeps && now_ns - connection->since_ns > SILENT_NS))
            zr_connection_disconnect(server, connection, false, "");
}

/* ---- The beginning of a connection --------------------------------------------------------------------- */

static bool add_to_epoll(struct zr_server *server, int fd, struct zr_source *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Refuses a connection that has not registered yet. */
static void refuse_connection(struct zr_server *server, int requests, const char *words)
{
    struct zr_service_message refused = zr_service_message_of(ZR_SERVICE_REFUSED);
    refused.result = ZR_ERR_UNAVAILABLE;
    snprintf(refused.words, sizeof refused.words, "zrd %s", words);
    if (requests >= 0)
        zr_service_send(requests, &refused, -1, true);
    zr_service_log(server->log, "%s", words);
    close_fd(&requests);
}

struct zr_connection *zr_server_new_connection(struct zr_server *server, int32_t pid)
{
    if (server->connections_count >= CLIENTS_MAX || !zr_slab_reserve(&server->connection_records, 1))
        return NULL;
    struct zr_connection *connection = zr_slab_take(&server->connection_records);
    *connection = (struct zr_connection){
        .server = server, .next = server->connections, .requests = -1, .notifications = -1, .process = -1};
    connection->client.pid = pid;
    connection->since_ns = zr_os_now_ns();
    connection->requests_source = (struct zr_source){ZR_SOURCE_REQUESTS, connection};
    connection->process_source = (struct zr_source){ZR_SOURCE_PROCESS, connection};
    if (connection->next)
        connection->next->previous = connection;
    server->connections = connection;
    server->connections_count++;
    server->unregistered_count++;
    return connection;
}

void zr_server_admit(struct zr_server *server, int requests)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    if (getsockopt(requests, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != geteuid()) {
        zr_service_log(server->log, "rejects user %ld (pid %d): not the user of this zrd", (long)peer.uid,
                       (int)peer.pid);
        close(requests);
        return;
    }
    struct zr_connection *connection = zr_server_new_connection(server, peer.pid);
    if (!connection) {
        refuse_connection(server, requests, "cannot serve another client: the maximum is 8192");
        return;
    }
    connection->requests = requests;
    fcntl(requests, F_SETFL, O_NONBLOCK);
    /* A child process may keep the connection open, so zrd also watches for the process's exit. */
    connection->process = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    if (connection->process >= 0)
        add_to_epoll(server, connection->process, &connection->process_source);
    if (!add_to_epoll(server, requests, &connection->requests_source))
        zr_connection_disconnect(server, connection, false, "epoll cannot add its connection");
}

static void accept_all(struct zr_server *server, int listening)
{
    for (unsigned i = 0; listening >= 0 && i < EVENTS_AT_ONCE; i++) {
        if (server->spare < 0) /* no descriptor was free after the last use */
            server->spare = zr_open("/dev/null", O_RDONLY, 0);
        int requests = zr_accept(listening, SOCK_NONBLOCK);
        if (requests < 0 && (errno == EMFILE || errno == ENFILE) && server->spare >= 0) {
            /* Answer the client instead of leaving it in the queue. */
            close_fd(&server->spare);
            requests = zr_accept(listening, SOCK_NONBLOCK);
            refuse_connection(
                server, requests,
                "has no free descriptor for another client: raise `ulimit -n` where zrd is started");
            server->spare = zr_open("/dev/null", O_RDONLY, 0);
            return;
        }
        if (requests < 0)
            return;
        zr_server_admit(server, requests);
    }
}

/* Adds the listener's open descriptors to epoll. */
static bool add_listener(struct zr_server *server)
{
    static struct zr_source listening = {ZR_SOURCE_LISTENING, NULL}, folder = {ZR_SOURCE_FOLDER, NULL};
    const struct zr_listener *listener = &server->listener;
    return (listener->socket < 0 || add_to_epoll(server, listener->socket, &listening)) &&
           (listener->watch < 0 || add_to_epoll(server, listener->watch, &folder));
}

static uint64_t folder_due_ns(const struct zr_server *server)
{
    return server->listener.key[0] ? server->listener.due_ns : UINT64_MAX;
}

/* Creates the socket again if its file was removed, and writes the limits beside the socket. */
static void check_folder(struct zr_server *server, uint64_t now_ns)
{
    bool again = false;
    zr_result result = zr_listener_check(&server->listener, now_ns, &again, server->log);
    if (again) {
        result = add_listener(server)
                     ? ZR_OK
                     : zr_fail(ZR_ERR_UNAVAILABLE, "epoll cannot add a socket (error %d)", errno);
        if (zr_limits_move(&server->limits, &server->ledger, server->listener.address.sun_path) != ZR_OK)
            zr_service_log(server->log, "the limits: %s", zr_last_error());
    }
    if (result != ZR_OK) {
        zr_service_log(server->log, "%s", zr_last_error());
        server->stop = true;
    }
}

/* ---- The loop ------------------------------------------------------------------------------------------ */

static void receive_some(struct zr_server *server, struct zr_connection *connection)
{
    struct zr_service_packet packet;
    for (unsigned i = 0; i < MESSAGES_AT_ONCE && !connection->disconnected; i++) {
        zr_result result = zr_service_receive(connection->requests, &packet, 0);
        if (result == ZR_ERR_TIMEOUT)
            return;
        if (result == ZR_OK)
            zr_connection_dispatch(server, connection, &packet);
        else
            zr_connection_disconnect(server, connection, false, "");
        zr_service_packet_close(&packet);
    }
}

void zr_connection_receive(struct zr_server *server, struct zr_connection *connection)
{
    struct pollfd more = {.fd = connection->requests, .events = POLLIN};
    while (!connection->disconnected && connection->requests >= 0 && poll(&more, 1, 0) > 0)
        receive_some(server, connection);
}

static void handle_event(struct zr_server *server, const struct zr_source *source)
{
    switch (source->kind) {
    case ZR_SOURCE_LISTENING:
        accept_all(server, server->listener.socket);
        accept_all(server, server->listener.name);
        break;
    case ZR_SOURCE_FOLDER:
        check_folder(server, zr_os_now_ns());
        break;
    case ZR_SOURCE_SIGNAL:
        server->stop = true;
        break;
    case ZR_SOURCE_REQUESTS:
        if (!source->connection->disconnected)
            receive_some(server, source->connection);
        break;
    case ZR_SOURCE_PROCESS:
        /* Dispatch the client's last messages before disconnecting it. */
        if (!source->connection->disconnected)
            receive_some(server, source->connection);
        zr_connection_disconnect(server, source->connection, false, "");
        break;
    }
}

/* Whether the event reports an exited process or a closed connection. */
static bool is_disconnect(const struct epoll_event *event)
{
    const struct zr_source *source = event->data.ptr;
    return source->kind == ZR_SOURCE_PROCESS ||
           (source->kind == ZR_SOURCE_REQUESTS && event->events & (EPOLLHUP | EPOLLERR));
}

void zr_server_step(struct zr_server *server, int timeout_ms)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    uint64_t now_ns = zr_os_now_ns(), due_ns = server->ledger.due_ns, folder_ns = folder_due_ns(server);
    if (folder_ns < due_ns)
        due_ns = folder_ns;
    if (zr_kept_due_ns(server) < due_ns)
        due_ns = zr_kept_due_ns(server);
    if (due_ns != UINT64_MAX) {
        uint64_t left_ms = due_ns > now_ns ? (due_ns - now_ns) / 1000000 + 1 : 0;
        if (timeout_ms < 0 || left_ms < (uint64_t)timeout_ms)
            timeout_ms = (int)left_ms;
    }
    if ((server->left_count > 0 || server->unregistered_count > 0) &&
        (timeout_ms < 0 || timeout_ms > CHECK_MS))
        timeout_ms = CHECK_MS;
    int count = epoll_wait(server->epoll, events, EVENTS_AT_ONCE, timeout_ms);
    /* Free the memory of exited clients before any request is refused: requests wait for the next step. */
    bool ends = false;
    for (int i = 0; i < count; i++)
        ends = ends || is_disconnect(&events[i]);
    for (int i = 0; i < count; i++)
        if (!ends || is_disconnect(&events[i]))
            handle_event(server, events[i].data.ptr);
    now_ns = zr_os_now_ns();
    zr_ledger_tick(&server->ledger, now_ns);
    check_silent(server, now_ns);
    zr_kept_check(server, now_ns);
    if (now_ns >= folder_due_ns(server))
        check_folder(server, now_ns);
    finish_disconnected(server);
}

zr_result zr_server_start(struct zr_server *server, struct zr_service_log *log)
{
    server->log = log;
    server->started_ns = zr_os_now_ns();
    server->ledger.calls = &calls;
    server->spare = -1;
    zr_ledger_start(&server->ledger);
    zr_kept_holder_init(&server->holder);
    zr_slab_init(&server->connection_records, sizeof(struct zr_connection), ZR_POOL_FAULTS);
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    return server->epoll >= 0
               ? ZR_OK
               : zr_fail(ZR_ERR_UNAVAILABLE, "the system refused an epoll descriptor (error %d)", errno);
}

zr_result zr_server_listen(struct zr_server *server)
{
    static struct zr_source name = {ZR_SOURCE_LISTENING, NULL};
    server->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return add_listener(server) &&
                   (server->listener.name < 0 || add_to_epoll(server, server->listener.name, &name))
               ? ZR_OK
               : zr_fail(ZR_ERR_UNAVAILABLE, "epoll cannot add a socket (error %d)", errno);
}

zr_result zr_server_stop_by(struct zr_server *server, int fd)
{
    static struct zr_source source = {ZR_SOURCE_SIGNAL, NULL};
    return add_to_epoll(server, fd, &source)
               ? ZR_OK
               : zr_fail(ZR_ERR_UNAVAILABLE, "epoll cannot add a descriptor (error %d)", errno);
}

void zr_server_end(struct zr_server *server)
{
    zr_listener_close(&server->listener); /* first: a disconnected client may start the next zrd */
    for (struct zr_connection *connection = server->connections, *next; connection; connection = next) {
        next = connection->next;
        close_fd(&connection->requests);
        close_fd(&connection->notifications);
        close_fd(&connection->process);
        zr_connection_close_files(connection);
        if (zr_server_has_device(server))
            zr_device_pool_return_all(&server->device_pool, &connection->pieces);
    }
    server->connections = NULL;
    zr_kept_holder_fini(&server->holder);
    zr_device_pool_close(&server->device_pool);
    close_fd(&server->spare);
    close_fd(&server->epoll);
    zr_slab_end(&server->connection_records);
    zr_ledger_end(&server->ledger);
}
