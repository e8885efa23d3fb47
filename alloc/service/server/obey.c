/* obey.c: what zrd does with a message of a client or a tool. See client.h. Uses ledger.c and files.c.
 */
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

#define TURN_MAX (UINT64_C(1) << 62) /* of a client's word: the turns after it have numbers, too */

static void refuse(struct zr_client *client, zr_result result)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_REFUSED);
    message.result = (uint32_t)result;
    snprintf(message.words, sizeof message.words, "%s", zr_last_error());
    zr_client_say(client, client->line, &message, -1);
}

static void answer_done(struct zr_client *client, const char *words)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_DONE);
    snprintf(message.words, sizeof message.words, "%s", words);
    zr_client_say(client, client->line, &message, -1);
}

/* ---- Clients ------------------------------------------------------------------------------------------- */

/* The last name of its control group; "none" where it cannot be told. */
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

static struct zr_run_plan plan_of(const struct zr_service_message *message, bool admitted)
{
    return (struct zr_run_plan){.base_bytes = message->plan_base_bytes,
                                .peak_bytes = message->plan_peak_bytes,
                                .spill_bytes = message->bytes,
                                .key = message->run,
                                .count = message->run_count,
                                .threads = message->count < UINT32_MAX ? (unsigned)message->count : 0,
                                .turn = admitted && message->turn < TURN_MAX ? message->turn : 0,
                                .claim_bytes = admitted ? message->claim_bytes : 0,
                                .admitted = admitted,
                                .waits = !admitted && message->flags & ZR_SERVICE_WAITS,
                                .in_turn = admitted && message->flags & ZR_SERVICE_IN_TURN};
}

/* A client of a zrd that has ended, let in by that one. Others come, too, and a turn waits for them. */
static void come_back(struct zr_server *server, struct zr_client *client,
                      const struct zr_service_message *hello)
{
    struct zr_run_plan plan = plan_of(hello, true);
    if (hello->held_bytes == 0 && plan.peak_bytes == 0)
        return;
    server->ledger.settled_ns = server->started_ns + ZR_SERVER_SETTLE_NS;
    if (plan.peak_bytes && zr_run_join(&server->ledger, &client->holder, &plan, zr_os_now_ns()) != ZR_OK)
        zr_client_doom(server, client, true, zr_last_error());
}

/* A process has one connection, and what another of its holds has been counted by this one's hello: zrd keeps
 * its handles no longer, and the process's own keep the pages. */
static void take_place(struct zr_server *server, struct zr_client *client)
{
    for (struct zr_client *other = server->clients; other; other = other->next) {
        if (other == client || other->holder.pid != client->holder.pid)
            continue;
        zr_client_hear(server, other);
        if (!other->holder.left && !other->doomed)
            continue;
        zr_stock_take_all(&server->stock, &other->pieces);
        if (other->registered && other->holder.held_bytes > 0)
            zr_ledger_return(&server->ledger, &other->holder, other->holder.held_bytes, zr_os_now_ns());
        zr_client_doom(server, other, false, "");
    }
}

static void say_hello(struct zr_server *server, struct zr_client *client,
                      const struct zr_service_message *hello)
{
    struct zr_service_message welcome = zr_service_message_of(ZR_SERVICE_WELCOME);
    char group[ZR_SERVICE_GROUP_BYTES];
    int pair[2];
    if (client->registered) {
        zr_client_doom(server, client, true, "it registered twice");
        return;
    }
    if (hello->group[0])
        memcpy(group, hello->group, sizeof group);
    else
        read_group(client->holder.pid, group);
    memcpy(client->holder.program, hello->program, sizeof client->holder.program);
    if (zr_server_has_device(server))
        take_place(server, client);
    client->holder.held_bytes = hello->held_bytes;
    zr_limits_apply(&server->limits, &client->holder);
    client->holder.listens = hello->flags & ZR_SERVICE_LISTENS;
    zr_result result = ZR_OK;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        result =
            zr_fail(ZR_ERR_UNAVAILABLE, "zrd has no free descriptor: raise `ulimit -n` where zrd is started");
    else if ((result = zr_ledger_add(&server->ledger, &client->holder, group)) != ZR_OK)
        close(pair[0]), close(pair[1]);
    if (result != ZR_OK) {
        refuse(client, result);
        return;
    }
    client->registered = true;
    server->unregistered_count--;
    client->bell = pair[0];
    come_back(server, client, hello);
    welcome.within_ms = (uint32_t)(server->ledger.within_ns / 1000000);
    zr_client_say(client, client->line, &welcome, pair[1]);
    close(pair[1]);
}

static void obey_client(struct zr_server *server, struct zr_client *client, struct zr_service_parcel *parcel)
{
    const struct zr_service_message *message = &parcel->message;
    struct zr_ledger *ledger = &server->ledger;
    uint64_t now_ns = zr_os_now_ns();
    zr_result result = ZR_OK;
    switch (message->kind) {
    case ZR_SERVICE_FILE:
        if (zr_server_has_device(server))
            zr_client_send_piece(client, message->count);
        else
            zr_client_make_file(client);
        break;
    case ZR_SERVICE_ADOPT:
        result = zr_server_has_device(server) ? zr_fail(ZR_ERR_INVALID, "a device's zrd cannot adopt a file")
                                              : zr_client_adopt_file(server, client, parcel->fds[0]);
        if (result == ZR_OK) {
            parcel->fds[0] = -1;
            answer_done(client, "");
        }
        break;
    case ZR_SERVICE_LEASE:
        if (zr_server_has_device(server) && message->bytes % server->stock.backend->can.granule_bytes != 0)
            result =
                zr_fail(ZR_ERR_INVALID, "a lease of %llu bytes is not a multiple of the device's granule",
                        (unsigned long long)message->bytes);
        if (result == ZR_OK)
            result = zr_ledger_lease(ledger, &client->holder, message->bytes, message->serial, now_ns);
        break;
    case ZR_SERVICE_RETURN:
        if (zr_server_has_device(server))
            result = zr_client_take_back(client, message);
        if (result == ZR_OK)
            result = zr_ledger_return(ledger, &client->holder, message->bytes, now_ns);
        break;
    case ZR_SERVICE_LISTEN:
        client->holder.listens = true;
        break;
    case ZR_SERVICE_PLAN: {
        struct zr_run_plan plan = plan_of(message, false);
        result = zr_run_join(ledger, &client->holder, &plan, now_ns);
        zr_ledger_serve(ledger, now_ns);
        break;
    }
    case ZR_SERVICE_TURN:
        result = zr_run_turn(ledger, &client->holder, now_ns);
        zr_ledger_serve(ledger, now_ns);
        break;
    case ZR_SERVICE_CLAIM:
        result = zr_run_claim(&client->holder, message->claim_bytes);
        zr_ledger_serve(ledger, now_ns);
        break;
    case ZR_SERVICE_IDLE:
        client->inquired_ns = 0;
        client->holder.idle_bytes = message->bytes;
        client->holder.idle_known = true;
        break;
    default: /* GIVEN */
        result = zr_ledger_given(ledger, &client->holder, message->serial, now_ns);
        break;
    }
    if (result != ZR_OK)
        zr_client_doom(server, client, true, zr_last_error());
}

/* ---- Tools --------------------------------------------------------------------------------------------- */

static void show_client(const struct zr_client *client, struct zr_service_message *out)
{
    const struct zr_holder *holder = &client->holder;
    *out = zr_service_message_of(ZR_SERVICE_CLIENT);
    out->flags = (holder->left ? ZR_SERVICE_LEFT : 0) | (holder->listens ? ZR_SERVICE_LISTENS : 0) |
                 (holder->idle_known ? ZR_SERVICE_IDLE_KNOWN : 0) |
                 (holder->run && holder->run->in_turn ? ZR_SERVICE_IN_TURN : 0);
    out->turn = holder->run && holder->run->in_turn ? holder->run->turn : 0;
    out->claim_bytes = out->turn ? holder->run->claim_bytes : 0;
    out->plan_base_bytes = holder->plan_base_bytes;
    out->plan_peak_bytes = holder->plan_peak_bytes;
    out->idle_bytes = holder->idle_bytes;
    out->reclaim_ns = zr_ledger_reclaim_ns(&client->server->ledger, holder);
    out->serial = holder->number;
    out->bytes = holder->wanted_bytes;
    out->held_bytes = holder->held_bytes;
    out->peak_bytes = holder->peak_bytes;
    out->resident_bytes = zr_client_resident_bytes(client);
    out->hard_bytes = holder->hard_bytes;
    out->soft_bytes = holder->soft_bytes;
    out->count = client->messages_count;
    out->pid = holder->pid;
    out->shares = holder->group->shares;
    out->files_count = client->files_count;
    memcpy(out->program, holder->program, sizeof out->program);
    memcpy(out->group, holder->group->name, sizeof out->group);
}

/* Asks all clients that can be asked what they have idle. */
static void inquire(struct zr_server *server, uint64_t now_ns)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_INQUIRE);
    for (struct zr_client *client = server->clients; client; client = client->next)
        if (client->registered && client->holder.listens && !client->holder.left && !client->inquired_ns) {
            client->inquired_ns = now_ns;
            zr_client_say(client, client->bell, &message, -1);
        }
}

static bool is_inquiring(const struct zr_server *server, uint64_t now_ns)
{
    const struct zr_client *client = server->clients;
    while (client && !(client->inquired_ns && now_ns - client->inquired_ns < ZR_SERVER_INQUIRE_NS))
        client = client->next;
    return client != NULL;
}

static void show_next(struct zr_server *server, struct zr_client *client, uint64_t after)
{
    const struct zr_ledger *ledger = &server->ledger;
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_DONE);
    const struct zr_holder *holder = ledger->holders;
    while (holder && holder->number <= after)
        holder = holder->next;
    if (holder) {
        show_client((const struct zr_client *)holder, &message);
    } else {
        message.bytes = ledger->capacity_bytes;
        message.held_bytes = ledger->held_bytes;
        message.hard_bytes = ledger->process_hard_bytes;
        message.count = ledger->holders_count;
        message.within_ms = (uint32_t)(ledger->within_ns / 1000000);
        message.pid = (int32_t)getpid();
        message.flags = (ledger->draining ? ZR_SERVICE_DRAINING : 0) |
                        (zr_ledger_asked_bytes(ledger) > 0 ? ZR_SERVICE_ASKING : 0) |
                        (is_inquiring(server, zr_os_now_ns()) ? ZR_SERVICE_INQUIRING : 0);
        if (server->log->lost_count > 0)
            snprintf(message.words, sizeof message.words,
                     "%llu lines of the log could not be written: free space on its file system",
                     (unsigned long long)server->log->lost_count);
    }
    zr_client_say(client, client->line, &message, -1);
}

static void obey_tool(struct zr_server *server, struct zr_client *client,
                      const struct zr_service_message *message)
{
    char words[ZR_SERVICE_WORDS_BYTES] = "";
    zr_result result = ZR_OK;
    switch (message->kind) {
    case ZR_SERVICE_STATUS:
        if (message->flags & ZR_SERVICE_FRESH)
            inquire(server, zr_os_now_ns());
        show_next(server, client, message->serial);
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
        zr_service_log(server->log, "is stopped by pid %d", (int)client->holder.pid);
        break;
    }
    if (result == ZR_OK)
        answer_done(client, words);
    else
        refuse(client, result);
}

void zr_client_obey(struct zr_server *server, struct zr_client *client, struct zr_service_parcel *parcel)
{
    const struct zr_service_message *message = &parcel->message;
    char words[ZR_SERVICE_WORDS_BYTES];
    client->messages_count += parcel->message.kind != ZR_SERVICE_IDLE; /* a tool's doing */
    if (zr_service_parcel_check(client->line, parcel) != ZR_OK) {
        snprintf(words, sizeof words, "%s", zr_last_error());
        /* Tell a client of another version. */
        if (parcel->bytes >= 8 && message->magic == ZR_SERVICE_MAGIC)
            refuse(client, ZR_ERR_UNAVAILABLE);
        zr_client_doom(server, client, true, words);
    } else if (message->kind == ZR_SERVICE_HELLO) {
        say_hello(server, client, message);
    } else if (message->kind >= ZR_SERVICE_FILE && message->kind <= ZR_SERVICE_IDLE && client->registered) {
        obey_client(server, client, parcel);
    } else if (message->kind >= ZR_SERVICE_STATUS && message->kind <= ZR_SERVICE_STOP) {
        obey_tool(server, client, message);
    } else {
        snprintf(words, sizeof words, "a message that a client may not send (%u)", message->kind);
        zr_client_doom(server, client, true, words);
    }
}
