/* obey.c: what zrd does with a message of a client or a tool. See client.h. Stands on ledger.c and files.c.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/service/client.h"

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
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
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

static void say_hello(struct zr_server *server, struct zr_client *client,
                      const struct zr_service_message *hello)
{
    struct zr_service_message welcome = zr_service_message_of(ZR_SERVICE_WELCOME);
    char group[ZR_SERVICE_GROUP_BYTES];
    int pair[2];
    if (client->registered) {
        zr_client_doom(server, client, true, "it has registered twice");
        return;
    }
    if (hello->group[0])
        memcpy(group, hello->group, sizeof group);
    else
        read_group(client->holder.pid, group);
    memcpy(client->holder.program, hello->program, sizeof client->holder.program);
    client->holder.held_bytes = hello->held_bytes;
    client->holder.listens = hello->flags & ZR_SERVICE_LISTENS;
    zr_result result = ZR_OK;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        result =
            zr_fail(ZR_ERR_UNAVAILABLE, "zrd has no descriptor left: raise `ulimit -n` where it is started");
    else if ((result = zr_ledger_add(&server->ledger, &client->holder, group)) != ZR_OK)
        close(pair[0]), close(pair[1]);
    if (result != ZR_OK) {
        refuse(client, result);
        return;
    }
    client->registered = true;
    server->unregistered_count--;
    client->bell = pair[0];
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
        zr_client_make_file(client);
        break;
    case ZR_SERVICE_ADOPT:
        result = zr_client_adopt_file(server, client, parcel->fds[0]);
        if (result == ZR_OK) {
            parcel->fds[0] = -1;
            answer_done(client, "");
        }
        break;
    case ZR_SERVICE_LEASE:
        result = zr_ledger_lease(ledger, &client->holder, message->bytes, message->serial, now_ns);
        break;
    case ZR_SERVICE_RETURN:
        result = zr_ledger_return(ledger, &client->holder, message->bytes, now_ns);
        break;
    case ZR_SERVICE_LISTEN:
        client->holder.listens = true;
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
    out->flags = (holder->left ? ZR_SERVICE_LEFT : 0) | (holder->listens ? ZR_SERVICE_LISTENS : 0);
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
                        (zr_ledger_asked_bytes(ledger) > 0 ? ZR_SERVICE_ASKING : 0);
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
        show_next(server, client, message->serial);
        return;
    case ZR_SERVICE_LIMIT:
        result = zr_ledger_limit(&server->ledger, message, words, sizeof words, zr_os_now_ns());
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
    client->messages_count++;
    if (zr_service_parcel_check(parcel) != ZR_OK) {
        snprintf(words, sizeof words, "%s", zr_last_error());
        /* Who speaks another version is told. */
        if (parcel->bytes >= 8 && message->magic == ZR_SERVICE_MAGIC)
            refuse(client, ZR_ERR_UNAVAILABLE);
        zr_client_doom(server, client, true, words);
    } else if (message->kind == ZR_SERVICE_HELLO) {
        say_hello(server, client, message);
    } else if (message->kind >= ZR_SERVICE_FILE && message->kind <= ZR_SERVICE_LISTEN && client->registered) {
        obey_client(server, client, parcel);
    } else if (message->kind >= ZR_SERVICE_STATUS && message->kind <= ZR_SERVICE_STOP) {
        obey_tool(server, client, message);
    } else {
        snprintf(words, sizeof words, "a message that it may not send (%u)", message->kind);
        zr_client_doom(server, client, true, words);
    }
}
