/* dispatch.c: handles each message of a client or a tool. See connection.h. Uses ledger.c and files.c. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/service/server/connection.h"
#include "alloc/service/server/runs.h"

#define SLICE_MAX                                                                                            \
    (UINT64_C(1) << 62) /* limit of a reported number: later time slices need larger numbers                 \
                         */

static void refuse(struct zr_connection *connection, zr_result result)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_REFUSED);
    message.result = (uint32_t)result;
    snprintf(message.words, sizeof message.words, "%s", zr_last_error());
    zr_connection_send(connection, connection->requests, &message, -1);
}

static void answer_done(struct zr_connection *connection, const char *words)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_DONE);
    snprintf(message.words, sizeof message.words, "%s", words);
    zr_connection_send(connection, connection->requests, &message, -1);
}

/* ---- Clients ------------------------------------------------------------------------------------------- */

/* The last component of the process's control group; "none" if it is unknown. */
static void read_group(int32_t pid, char out[ZR_SERVICE_GROUP_BYTES])
{
    char path[40], text[1024] = "";
    snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    zr_read_text(path, text, sizeof text);
    char *own = strstr(text, "0::/");
    if (own)
        own[strcspn(own, "\n")] = '\0';
    const char *name = own ? strrchr(own, '/') : NULL;
    name = !name ? "none" : name[1] ? name + 1 : "/";
    size_t used = 0;
    for (; *name && used < ZR_SERVICE_GROUP_BYTES - 1; name++)
        out[used++] = (unsigned char)*name > ' ' && (unsigned char)*name < 0x7f ? *name : '_';
    out[used] = '\0';
}

/* The group that the message names, or else the process's. */
static void name_group(const struct zr_connection *connection, const struct zr_service_message *message,
                       char out[ZR_SERVICE_GROUP_BYTES])
{
    if (message->group[0])
        memcpy(out, message->group, ZR_SERVICE_GROUP_BYTES);
    else
        read_group(connection->client.pid, out);
}

static struct zr_run_plan plan_of(const struct zr_service_message *message, bool admitted)
{
    return (struct zr_run_plan){.base_bytes = message->plan_base_bytes,
                                .peak_bytes = message->plan_peak_bytes,
                                .spill_bytes = message->bytes,
                                .key = message->run,
                                .count = message->run_count,
                                .threads = message->count < UINT32_MAX ? (unsigned)message->count : 0,
                                .slice = admitted && message->slice < SLICE_MAX ? message->slice : 0,
                                .reservation_bytes = admitted ? message->reservation_bytes : 0,
                                .admitted = admitted,
                                .waits = !admitted && message->flags & ZR_SERVICE_WAITS,
                                .in_slice = admitted && message->flags & ZR_SERVICE_IN_SLICE};
}

/* Restores the plan of a client that an earlier zrd admitted. Time slices wait until other clients of that
 * zrd have reconnected. */
static void restore_plan(struct zr_server *server, struct zr_connection *connection,
                         const struct zr_service_message *hello)
{
    struct zr_run_plan plan = plan_of(hello, true);
    if (hello->held_bytes == 0 && plan.peak_bytes == 0)
        return;
    server->ledger.settled_ns = server->started_ns + ZR_SERVER_SETTLE_NS;
    if (plan.peak_bytes && zr_run_join(&server->ledger, &connection->client, &plan, zr_os_now_ns()) != ZR_OK)
        zr_connection_disconnect(server, connection, true, zr_last_error());
}

/* Ends an older connection of the same process: the new connection's HELLO counts the same bytes. zrd
 * destroys its handles of them, and the process's own handles keep the pages. */
static void replace_connection(struct zr_server *server, struct zr_connection *connection)
{
    for (struct zr_connection *other = server->connections; other; other = other->next) {
        if (other == connection || other->client.pid != connection->client.pid)
            continue;
        zr_connection_receive(server, other);
        if (!other->client.left && !other->disconnected)
            continue;
        zr_device_pool_return_all(&server->device_pool, &other->pieces);
        if (other->registered && other->client.held_bytes > 0)
            zr_ledger_return(&server->ledger, &other->client, other->client.held_bytes, zr_os_now_ns());
        zr_connection_disconnect(server, other, false, "");
    }
}

static void register_client(struct zr_server *server, struct zr_connection *connection,
                            const struct zr_service_message *hello)
{
    struct zr_service_message welcome = zr_service_message_of(ZR_SERVICE_WELCOME);
    char group[ZR_SERVICE_GROUP_BYTES];
    int pair[2];
    if (connection->registered || connection->keeps || connection->waits) {
        zr_connection_disconnect(server, connection, true, "it registered twice");
        return;
    }
    name_group(connection, hello, group);
    memcpy(connection->client.program, hello->program, sizeof connection->client.program);
    if (zr_server_has_device(server))
        replace_connection(server, connection);
    connection->client.held_bytes = hello->held_bytes;
    zr_limits_apply(&server->limits, &connection->client);
    connection->client.listens = hello->flags & ZR_SERVICE_LISTENS;
    zr_result result = ZR_OK;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        result =
            zr_fail(ZR_ERR_UNAVAILABLE, "zrd has no free descriptor: raise `ulimit -n` where zrd is started");
    else if ((result = zr_ledger_add(&server->ledger, &connection->client, group)) != ZR_OK)
        close(pair[0]), close(pair[1]);
    if (result != ZR_OK) {
        refuse(connection, result);
        return;
    }
    zr_kept_own(server, &connection->client);
    connection->registered = true;
    server->unregistered_count--;
    connection->notifications = pair[0];
    restore_plan(server, connection, hello);
    welcome.within_ms = (uint32_t)(server->ledger.within_ns / 1000000);
    zr_connection_send(connection, connection->requests, &welcome, pair[1]);
    close(pair[1]);
}

static void dispatch_client(struct zr_server *server, struct zr_connection *connection,
                            struct zr_service_packet *packet)
{
    const struct zr_service_message *message = &packet->message;
    struct zr_ledger *ledger = &server->ledger;
    uint64_t now_ns = zr_os_now_ns();
    zr_result result = ZR_OK;
    switch (message->kind) {
    case ZR_SERVICE_FILE:
        if (zr_server_has_device(server))
            zr_connection_send_piece(connection, message->count);
        else
            zr_connection_make_file(connection);
        break;
    case ZR_SERVICE_ADOPT:
        result = zr_server_has_device(server) ? zr_fail(ZR_ERR_INVALID, "a device's zrd cannot adopt a file")
                                              : zr_connection_adopt_file(server, connection, packet->fds[0]);
        if (result == ZR_OK) {
            packet->fds[0] = -1;
            answer_done(connection, "");
        }
        break;
    case ZR_SERVICE_LEASE:
        if (zr_server_has_device(server) &&
            message->bytes % server->device_pool.backend->can.granule_bytes != 0)
            result =
                zr_fail(ZR_ERR_INVALID, "a lease of %llu bytes is not a multiple of the device's granule",
                        (unsigned long long)message->bytes);
        if (result == ZR_OK)
            result = zr_ledger_lease(ledger, &connection->client, message->bytes, message->serial, now_ns);
        break;
    case ZR_SERVICE_RETURN:
        if (zr_server_has_device(server))
            result = zr_connection_return_piece(connection, message);
        if (result == ZR_OK)
            result = zr_ledger_return(ledger, &connection->client, message->bytes, now_ns);
        break;
    case ZR_SERVICE_LISTEN:
        connection->client.listens = true;
        break;
    case ZR_SERVICE_PLAN: {
        struct zr_run_plan plan = plan_of(message, false);
        result = zr_run_join(ledger, &connection->client, &plan, now_ns);
        zr_ledger_serve(ledger, now_ns);
        break;
    }
    case ZR_SERVICE_SLICE:
        result = zr_run_slice(ledger, &connection->client, now_ns);
        zr_ledger_serve(ledger, now_ns);
        break;
    case ZR_SERVICE_RESERVE:
        result = zr_run_reserve(&connection->client, message->reservation_bytes);
        zr_ledger_serve(ledger, now_ns);
        break;
    case ZR_SERVICE_IDLE:
        connection->inquired_ns = 0;
        connection->client.idle_bytes = message->bytes;
        connection->client.idle_known = true;
        break;
    default: /* GIVEN */
        result = zr_ledger_given(ledger, &connection->client, message->serial, now_ns);
        break;
    }
    if (result != ZR_OK)
        zr_connection_disconnect(server, connection, true, zr_last_error());
}

/* ---- Tools --------------------------------------------------------------------------------------------- */

static void show_client(const struct zr_connection *connection, struct zr_service_message *out)
{
    const struct zr_client *client = &connection->client;
    *out = zr_service_message_of(ZR_SERVICE_CLIENT);
    out->flags = (client->left ? ZR_SERVICE_LEFT : 0) | (client->listens ? ZR_SERVICE_LISTENS : 0) |
                 (client->is_segment ? ZR_SERVICE_SEGMENT : 0) |
                 (client->idle_known ? ZR_SERVICE_IDLE_KNOWN : 0) |
                 (client->run && client->run->in_slice ? ZR_SERVICE_IN_SLICE : 0);
    out->slice = client->run && client->run->in_slice ? client->run->slice : 0;
    out->reservation_bytes = out->slice ? client->run->reservation_bytes : 0;
    out->plan_base_bytes = client->plan_base_bytes;
    out->plan_peak_bytes = client->plan_peak_bytes;
    out->idle_bytes = client->idle_bytes;
    out->reclaim_ns = zr_ledger_reclaim_ns(&connection->server->ledger, client);
    out->serial = client->number;
    out->bytes = client->wanted_bytes;
    out->held_bytes = client->held_bytes;
    out->peak_bytes = client->peak_bytes;
    out->resident_bytes = zr_connection_resident_bytes(connection);
    out->hard_bytes = client->hard_bytes;
    out->soft_bytes = client->soft_bytes;
    out->count = connection->messages_count;
    out->pid = client->pid;
    out->shares = client->group->shares;
    out->files_count = connection->files_count;
    memcpy(out->program, client->program, sizeof out->program);
    memcpy(out->group, client->group->name, sizeof out->group);
}

/* Sends INQUIRE to all clients that read notifications, to learn their idle bytes. */
static void inquire(struct zr_server *server, uint64_t now_ns)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_INQUIRE);
    for (struct zr_connection *connection = server->connections; connection; connection = connection->next)
        if (connection->registered && connection->client.listens && !connection->client.left &&
            !connection->inquired_ns) {
            connection->inquired_ns = now_ns;
            zr_connection_send(connection, connection->notifications, &message, -1);
        }
}

static bool is_inquiring(const struct zr_server *server, uint64_t now_ns)
{
    const struct zr_connection *connection = server->connections;
    while (connection &&
           !(connection->inquired_ns && now_ns - connection->inquired_ns < ZR_SERVER_INQUIRE_NS))
        connection = connection->next;
    return connection != NULL;
}

static void show_next(struct zr_server *server, struct zr_connection *connection, uint64_t after)
{
    const struct zr_ledger *ledger = &server->ledger;
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_DONE);
    const struct zr_client *client = ledger->clients;
    while (client && client->number <= after)
        client = client->next;
    if (client) {
        show_client((const struct zr_connection *)client, &message);
    } else {
        message.bytes = ledger->capacity_bytes;
        message.held_bytes = ledger->held_bytes;
        message.hard_bytes = ledger->process_hard_bytes;
        message.count = ledger->clients_count - server->holder.count;
        message.within_ms = (uint32_t)(ledger->within_ns / 1000000);
        message.pid = (int32_t)getpid();
        message.flags = (ledger->draining ? ZR_SERVICE_DRAINING : 0) |
                        (zr_ledger_reclaim_bytes(ledger) > 0 ? ZR_SERVICE_ASKING : 0) |
                        (is_inquiring(server, zr_os_now_ns()) ? ZR_SERVICE_INQUIRING : 0);
        if (server->log->lost_count > 0)
            snprintf(message.words, sizeof message.words,
                     "%llu lines of the log could not be written: free space on its file system",
                     (unsigned long long)server->log->lost_count);
    }
    zr_connection_send(connection, connection->requests, &message, -1);
}

static void dispatch_tool(struct zr_server *server, struct zr_connection *connection,
                          const struct zr_service_message *message)
{
    char words[ZR_SERVICE_WORDS_BYTES] = "";
    unsigned lost;
    zr_result result = ZR_OK;
    switch (message->kind) {
    case ZR_SERVICE_STATUS:
        if (message->flags & ZR_SERVICE_FRESH)
            inquire(server, zr_os_now_ns());
        show_next(server, connection, message->serial);
        return;
    case ZR_SERVICE_LIMIT:
        result = zr_ledger_limit(&server->ledger, message, words, sizeof words, zr_os_now_ns());
        if (result == ZR_OK && zr_limits_note(&server->limits, &server->ledger, message) != ZR_OK) {
            snprintf(words, sizeof words, "%s", zr_last_error());
            zr_service_log(server->log, "a limit was set: %s", words);
        }
        break;
    case ZR_SERVICE_DRAIN:
        zr_ledger_drain(&server->ledger, !(message->flags & ZR_SERVICE_DRAIN_END), zr_os_now_ns());
        zr_service_log(server->log, message->flags & ZR_SERVICE_DRAIN_END ? "lends again" : "drains");
        break;
    default: /* STOP */
        server->stop = true;
        if ((lost = zr_kept_report_lost(server)) > 0)
            snprintf(words, sizeof words, "kept memory that no process writes is lost: segments: %u", lost);
        zr_service_log(server->log, "is stopped by pid %d", (int)connection->client.pid);
        break;
    }
    if (result == ZR_OK)
        answer_done(connection, words);
    else
        refuse(connection, result);
}

void zr_connection_dispatch(struct zr_server *server, struct zr_connection *connection,
                            struct zr_service_packet *packet)
{
    const struct zr_service_message *message = &packet->message;
    char words[ZR_SERVICE_WORDS_BYTES];
    connection->messages_count += packet->message.kind != ZR_SERVICE_IDLE; /* a tool caused that message */
    if (zr_service_packet_check(connection->requests, packet) != ZR_OK) {
        snprintf(words, sizeof words, "%s", zr_last_error());
        /* A client of another version gets an answer. */
        if (packet->bytes >= 8 && message->magic == ZR_SERVICE_MAGIC)
            refuse(connection, ZR_ERR_UNAVAILABLE);
        zr_connection_disconnect(server, connection, true, words);
    } else if (message->kind == ZR_SERVICE_HELLO) {
        register_client(server, connection, message);
    } else if (message->kind >= ZR_SERVICE_FILE && message->kind <= ZR_SERVICE_IDLE &&
               connection->registered) {
        dispatch_client(server, connection, packet);
    } else if (message->kind >= ZR_SERVICE_STATUS && message->kind <= ZR_SERVICE_STOP) {
        dispatch_tool(server, connection, message);
    } else if (message->kind >= ZR_SERVICE_KEEP_CREATE && message->kind <= ZR_SERVICE_KEEP_ADOPT) {
        char group[ZR_SERVICE_GROUP_BYTES];
        name_group(connection, message, group);
        zr_kept_dispatch(server, connection, packet, group);
    } else {
        snprintf(words, sizeof words, "a message that a client may not send (%u)", message->kind);
        zr_connection_disconnect(server, connection, true, words);
    }
}
