/* holding.c: see holder.h. Uses wire.c. */
#define _GNU_SOURCE
#include "alloc/keep/holder.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "alloc/keep/mapping.h"
#include "alloc/service/client/wire.h"

#define ANSWER_NS UINT64_C(30000000000) /* zrd asks other processes for memory first */
#define LOOK_NS   UINT64_C(1000000000)  /* between two searches for a new zrd */

static int own_door = -1;

void zr_holding_set_door(int door)
{
    own_door = door;
}

static struct zr_service_message message_of(enum zr_service_kind kind, const struct zr_keep_name *name)
{
    struct zr_service_message message = zr_service_message_of(kind);
    snprintf(message.words, sizeof message.words, "%s", name->name);
    snprintf(message.group, sizeof message.group, "%s", zr_option_group());
    message.serial = name->token;
    return message;
}

/* Receives the answer and, for an answer with a descriptor, *fd. */
static zr_result receive(int connection, int *fd)
{
    struct zr_service_packet packet;
    zr_result result = zr_service_receive(connection, &packet, ANSWER_NS);
    if (result != ZR_OK)
        return result;
    result = zr_service_packet_check(connection, &packet);
    if (result == ZR_OK && packet.message.kind == ZR_SERVICE_REFUSED)
        result = zr_fail(packet.message.result > ZR_OK && packet.message.result < ZR_RESULT_COUNT
                             ? (zr_result)packet.message.result
                             : ZR_ERR_UNAVAILABLE,
                         "%s", packet.message.words);
    else if (result == ZR_OK && (packet.message.kind != ZR_SERVICE_DONE || (fd && packet.fds_count == 0)))
        result = zr_fail(ZR_ERR_FORMAT, "the holder of kept memory sent an answer of another kind (%u)",
                         packet.message.kind);
    if (result == ZR_OK && fd) {
        *fd = packet.fds[0];
        packet.fds[0] = -1;
    }
    zr_service_packet_close(&packet);
    return result;
}

/* A request to the launcher, with a socket for the answer. */
static zr_result ask_launcher(const struct zr_service_message *message, int *fd)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return zr_fail(ZR_ERR_HOST_MEMORY, "no descriptor is left for kept memory: raise `ulimit -n`");
    zr_result result = zr_service_send(own_door, message, pair[1], false);
    close(pair[1]); /* the launcher's end, so that its death ends the wait */
    if (result == ZR_OK)
        result = receive(pair[0], fd);
    close(pair[0]);
    return result;
}

/* *holder (NULL: not needed) gets the connection. */
static zr_result ask(const struct zr_service_message *message, int *fd, int *holder)
{
    int connection;
    if (fd)
        *fd = -1;
    if (holder)
        *holder = -1;
    /* ZR_CONF=service:on names zrd; else the launcher goes first. */
    if (own_door >= 0 && zr_option_get(ZR_OPTION_SERVICE) == 0)
        return ask_launcher(message, fd);
    zr_result result = zr_service_connect(ZR_SERVICE_HOST, &connection);
    if (result != ZR_OK)
        return result;
    result = zr_service_send(connection, message, -1, false);
    if (result == ZR_OK)
        result = receive(connection, fd);
    if (result == ZR_OK && holder)
        *holder = connection;
    else
        close(connection);
    return result;
}

zr_result zr_holding_create(const struct zr_keep_name *name, const struct zr_segment_shape *shape, int *fd,
                            int *holder)
{
    struct zr_service_message message = message_of(ZR_SERVICE_KEEP_CREATE, name);
    message.bytes = shape->bytes - shape->data_bytes;
    message.held_bytes = shape->granule_bytes;
    message.count = shape->tensors_max;
    return ask(&message, fd, holder);
}

zr_result zr_holding_open(const struct zr_keep_name *name, bool writes, int *fd, int *holder)
{
    zr_result result = zr_segment_check_name(name->name);
    if (result != ZR_OK)
        return result;
    struct zr_service_message message = message_of(ZR_SERVICE_KEEP_OPEN, name);
    message.flags = writes ? ZR_SERVICE_KEEP_WRITES : 0;
    return ask(&message, fd, writes ? holder : NULL);
}

zr_result zr_holding_drop(const struct zr_keep_name *name)
{
    zr_result result = zr_segment_check_name(name->name);
    if (result != ZR_OK)
        return result;
    struct zr_service_message message = message_of(ZR_SERVICE_KEEP_DROP, name);
    return ask(&message, NULL, NULL);
}

void zr_holding_check(zr_keep *keep)
{
    struct pollfd peer = {.fd = keep->holder, .events = POLLIN};
    if (keep->holder < 0 || zr_poll(&peer, 1, 0) == 0)
        return;
    uint64_t now_ns = zr_os_now_ns();
    int connection;
    if (keep->looked_ns != 0 && now_ns - keep->looked_ns < LOOK_NS)
        return;
    keep->looked_ns = now_ns;
    if (zr_service_connect(ZR_SERVICE_HOST, &connection) != ZR_OK)
        return;
    struct zr_service_message message =
        message_of(ZR_SERVICE_KEEP_ADOPT, &(struct zr_keep_name){keep->shape.name, keep->token});
    if (zr_service_send(connection, &message, keep->shared, false) == ZR_OK &&
        receive(connection, NULL) == ZR_OK) {
        close(keep->holder);
        keep->holder = connection;
        keep->looked_ns = 0;
    } else {
        close(connection);
    }
}
