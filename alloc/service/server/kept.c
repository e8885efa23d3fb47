/* kept.c: see connection.h. Uses alloc/keep/holder.c and the ledger. */
#define _GNU_SOURCE
#include "alloc/service/server/connection.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"

#define LOOK_NS UINT64_C(1000000000)

static void answer(struct zr_connection *connection, const struct zr_service_message *message, int fd)
{
    zr_connection_send(connection, connection->requests, message, fd);
}

static void refuse(struct zr_connection *connection, zr_result result)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_REFUSED);
    message.result = (uint32_t)result;
    snprintf(message.words, sizeof message.words, "%s", zr_last_error());
    answer(connection, &message, -1);
}

/* The connection stays open without messages for as long as its process uses a segment. */
static void mark_keeping(struct zr_server *server, struct zr_connection *connection)
{
    if (connection->registered || connection->keeps)
        return;
    connection->keeps = true;
    server->unregistered_count--;
}

static void send_file(struct zr_server *server, struct zr_connection *connection, const struct zr_held *held)
{
    struct zr_service_message done = zr_service_message_of(ZR_SERVICE_DONE);
    mark_keeping(server, connection);
    answer(connection, &done, held->fd);
}

/* ---- Accounts ------------------------------------------------------------------------------------------ */

/* The number of the client that the process of the connection is; 0: none. */
static uint64_t client_of(const struct zr_server *server, int32_t pid)
{
    for (const struct zr_client *client = server->ledger.clients; client; client = client->next)
        if (client->pid == pid && !client->left && !client->is_segment)
            return client->number;
    return 0;
}

void zr_kept_own(struct zr_server *server, const struct zr_client *client)
{
    for (struct zr_connection *account = server->connections; account; account = account->next)
        if (account->client.is_segment && account->client.owner == 0 && account->client.pid == client->pid)
            account->client.owner = client->number;
}

static zr_result open_account(struct zr_server *server, const struct zr_connection *asker,
                              uint64_t held_bytes, const char *group, struct zr_connection **out)
{
    struct zr_connection *account = zr_server_new_connection(server, asker->client.pid);
    *out = account;
    if (!account)
        return zr_fail(ZR_ERR_HOST_MEMORY, "zrd cannot hold another segment");
    account->client.is_segment = true;
    account->client.held_bytes = held_bytes;
    account->client.owner = client_of(server, asker->client.pid);
    strcpy(account->client.program, "kept memory");
    zr_result result = zr_ledger_add(&server->ledger, &account->client, group);
    if (result == ZR_OK) {
        account->registered = true;
        server->unregistered_count--;
    } else {
        zr_connection_disconnect(server, account, false, "");
    }
    return result;
}

static struct zr_held *hold(struct zr_server *server, struct zr_connection *account, uint64_t token,
                            const struct zr_segment_shape *shape, int fd)
{
    struct zr_held *held = zr_kept_holder_add(&server->holder, token, shape, fd);
    held->account = account;
    held->unused_ns = zr_os_now_ns();
    account->held = held;
    return held;
}

static zr_result create(struct zr_server *server, struct zr_connection *connection,
                        const struct zr_service_message *message, const char *group)
{
    struct zr_segment_shape shape;
    struct zr_connection *account;
    if (connection->waits)
        return zr_fail(ZR_ERR_INVALID, "another segment of this connection waits for memory");
    zr_result result = zr_kept_holder_plan(&server->holder, message, &shape);
    if (result == ZR_OK)
        result = open_account(server, connection, 0, group, &account);
    if (result != ZR_OK)
        return result;
    account->asker = connection;
    account->shape = shape;
    account->token = message->serial;
    connection->waits = true;
    return zr_ledger_lease(&server->ledger, &account->client, shape.bytes, 0, zr_os_now_ns());
}

bool zr_kept_answer(struct zr_server *server, struct zr_connection *account, zr_result result)
{
    struct zr_connection *asker = account->asker;
    int fd = -1;
    /* Another request may have created the name meanwhile. */
    bool granted = result == ZR_OK;
    if (granted &&
        (result = zr_kept_holder_check_new(&server->holder, account->shape.name, account->token)) == ZR_OK &&
        zr_segment_make(&account->shape, &fd) != ZR_OK)
        return false;
    asker->waits = false;
    account->asker = NULL;
    if (result == ZR_OK) {
        send_file(server, asker, hold(server, account, account->token, &account->shape, fd));
        return true;
    }
    refuse(asker, result);
    zr_connection_disconnect(server, account, false, "");
    return true;
}

static zr_result adopt(struct zr_server *server, struct zr_connection *connection,
                       const struct zr_service_packet *packet, const char *group)
{
    struct zr_service_message done = zr_service_message_of(ZR_SERVICE_DONE);
    struct zr_segment_shape shape;
    struct zr_connection *account;
    int fd = -1;
    zr_result result = zr_kept_holder_inspect(&server->holder, &packet->message, packet->fds[0], &shape);
    if (result == ZR_OK) /* a description of zrd's own: the client's may have the lease */
        result = zr_segment_reopen(packet->fds[0], true, &fd);
    if (result == ZR_OK)
        result = open_account(server, connection, shape.bytes, group, &account);
    if (result != ZR_OK) {
        if (fd >= 0)
            close(fd);
        return result;
    }
    hold(server, account, packet->message.serial, &shape, fd);
    mark_keeping(server, connection);
    answer(connection, &done, -1);
    zr_service_log(server->log, "pid %d reports segment '%s' of %llu bytes", (int)connection->client.pid,
                   shape.name, (unsigned long long)shape.bytes);
    return ZR_OK;
}

/* ---- Messages ------------------------------------------------------------------------------------------ */

static zr_result open_segment(struct zr_server *server, struct zr_connection *connection,
                              const struct zr_service_message *message)
{
    struct zr_held *held;
    zr_result result = zr_kept_holder_find(&server->holder, message, false, &held);
    if (result != ZR_OK)
        return result;
    if (message->flags & ZR_SERVICE_KEEP_WRITES && !zr_segment_is_leased(held->fd)) {
        struct zr_client *account = &((struct zr_connection *)held->account)->client;
        account->pid = connection->client.pid;
        account->owner = client_of(server, account->pid);
        held->unused_ns = zr_os_now_ns();
    }
    send_file(server, connection, held);
    return ZR_OK;
}

static void list(struct zr_server *server, struct zr_connection *connection, uint64_t after)
{
    struct zr_service_message message = zr_kept_holder_next(&server->holder, after);
    for (const struct zr_held *held = server->holder.first; held; held = held->next)
        if (message.kind == ZR_SERVICE_KEPT && held->number == message.serial) {
            const struct zr_connection *account = held->account;
            uint64_t passed_ns = held->unused_ns ? zr_os_now_ns() - held->unused_ns : 0;
            strcpy(message.group, account->client.group->name);
            message.reclaim_ns = passed_ns < server->keep_for_ns ? server->keep_for_ns - passed_ns : 0;
        }
    answer(connection, &message, -1);
}

static zr_result drop(struct zr_server *server, struct zr_connection *connection,
                      const struct zr_service_message *message)
{
    struct zr_service_message done = zr_service_message_of(ZR_SERVICE_DONE);
    struct zr_held *held;
    zr_result result = zr_kept_holder_find(&server->holder, message, true, &held);
    if (result == ZR_OK)
        result = zr_kept_holder_check_drop(held);
    if (result != ZR_OK)
        return result;
    zr_service_log(server->log, "pid %d drops segment '%s'", (int)connection->client.pid, held->shape.name);
    struct zr_connection *account = held->account;
    account->held = NULL;
    zr_kept_holder_remove(&server->holder, held);
    zr_connection_disconnect(server, account, false, "");
    answer(connection, &done, -1);
    return ZR_OK;
}

void zr_kept_dispatch(struct zr_server *server, struct zr_connection *connection,
                      struct zr_service_packet *packet, const char *group)
{
    const struct zr_service_message *message = &packet->message;
    zr_result result = ZR_OK;
    if (zr_server_has_device(server))
        result =
            zr_fail(ZR_ERR_UNAVAILABLE, "the zrd of a device holds no kept memory: start the host's, `zr "
                                        "service start`");
    else if (message->kind == ZR_SERVICE_KEEP_CREATE)
        result = create(server, connection, message, group);
    else if (message->kind == ZR_SERVICE_KEEP_OPEN)
        result = open_segment(server, connection, message);
    else if (message->kind == ZR_SERVICE_KEEP_LIST)
        list(server, connection, message->serial);
    else if (message->kind == ZR_SERVICE_KEEP_DROP)
        result = drop(server, connection, message);
    else
        result = adopt(server, connection, packet, group);
    if (result != ZR_OK)
        refuse(connection, result);
}

/* ---- The end of segments ------------------------------------------------------------------------------- */

void zr_kept_forget(struct zr_server *server, struct zr_connection *connection)
{
    if (connection->client.is_segment) {
        if (connection->asker)
            connection->asker->waits = false;
        if (connection->held)
            zr_kept_holder_remove(&server->holder, connection->held);
        return;
    }
    for (struct zr_connection *account = server->connections; connection->waits && account;
         account = account->next)
        if (account->asker == connection) { /* nothing waits for the answer */
            account->asker = NULL;
            connection->waits = false;
            zr_ledger_leave(&server->ledger, &account->client, zr_os_now_ns());
            account->client.left = false;
            zr_connection_disconnect(server, account, false, "");
        }
}

void zr_kept_check(struct zr_server *server, uint64_t now_ns)
{
    if (now_ns < zr_kept_due_ns(server))
        return;
    server->kept_looked_ns = now_ns;
    for (struct zr_held *held = server->holder.first, *next; held; held = next) {
        next = held->next;
        if (zr_segment_is_leased(held->fd)) {
            held->unused_ns = 0;
        } else if (held->unused_ns == 0) {
            held->unused_ns = now_ns;
        } else if (now_ns - held->unused_ns >= server->keep_for_ns) {
            zr_service_log(server->log, "segment '%s' is dropped: no process has written it for %llu s",
                           held->shape.name, (unsigned long long)(server->keep_for_ns / 1000000000));
            struct zr_connection *account = held->account;
            account->held = NULL;
            zr_kept_holder_remove(&server->holder, held);
            zr_connection_disconnect(server, account, false, "");
        }
    }
}

uint64_t zr_kept_due_ns(const struct zr_server *server)
{
    uint64_t interval_ns = server->keep_for_ns < LOOK_NS ? server->keep_for_ns : LOOK_NS;
    return server->holder.first ? server->kept_looked_ns + interval_ns : UINT64_MAX;
}

unsigned zr_kept_report_lost(struct zr_server *server)
{
    unsigned count = 0;
    for (const struct zr_held *held = server->holder.first; held; held = held->next) {
        bool leased = zr_segment_is_leased(held->fd);
        zr_service_log(server->log, "segment '%s' %s", held->shape.name,
                       leased ? "stays with its writer, which reports it to the next zrd"
                              : "is lost: zrd ends, and no process writes it");
        count += !leased;
    }
    return count;
}
