/* holder.c: see holder.h. Uses segment.c and wire.c. */
#define _GNU_SOURCE
#include "alloc/keep/holder.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"

enum { AT_ONCE = 64 }; /* requests at the door, before the launcher does other work */

void zr_kept_holder_init(struct zr_kept_holder *holder)
{
    *holder = (struct zr_kept_holder){.first = NULL};
    zr_slab_init(&holder->records, sizeof(struct zr_held), ZR_POOL_FAULTS);
}

void zr_kept_holder_fini(struct zr_kept_holder *holder)
{
    while (holder->first)
        zr_kept_holder_remove(holder, holder->first);
    zr_slab_end(&holder->records);
}

static struct zr_held *find_name(const struct zr_kept_holder *holder, const char *name)
{
    struct zr_held *held = holder->first;
    while (held && strcmp(held->shape.name, name) != 0)
        held = held->next;
    return held;
}

zr_result zr_kept_holder_check_new(struct zr_kept_holder *holder, const char *name, uint64_t token)
{
    zr_result result = zr_segment_check_name(name);
    if (result != ZR_OK)
        return result;
    if (token == 0)
        return zr_fail(ZR_ERR_INVALID, "segment '%s' requires a token other than 0", name);
    if (find_name(holder, name))
        return zr_fail(ZR_ERR_INVALID, "a segment '%s' exists already: open it, or drop it first", name);
    return holder->count < ZR_HELD_MAX && zr_slab_reserve(&holder->records, 1)
               ? ZR_OK
               : zr_fail(ZR_ERR_HOST_MEMORY, "the holder cannot have another segment: the maximum is %d",
                         ZR_HELD_MAX);
}

zr_result zr_kept_holder_plan(struct zr_kept_holder *holder, const struct zr_service_message *message,
                              struct zr_segment_shape *out)
{
    zr_result result = zr_kept_holder_check_new(holder, message->words, message->serial);
    if (result != ZR_OK)
        return result;
    return zr_segment_plan(&(struct zr_keep_options){.name = message->words,
                                                     .bytes = (size_t)message->bytes,
                                                     .granule_bytes = (size_t)message->held_bytes,
                                                     .tensors_max = message->count < UINT32_MAX
                                                                        ? (unsigned)message->count
                                                                        : UINT32_MAX},
                           out);
}

zr_result zr_kept_holder_inspect(struct zr_kept_holder *holder, const struct zr_service_message *message,
                                 int fd, struct zr_segment_shape *out)
{
    zr_result result = zr_kept_holder_check_new(holder, message->words, message->serial);
    if (result == ZR_OK)
        result = zr_segment_inspect(fd, out);
    return result != ZR_OK || strcmp(out->name, message->words) == 0
               ? result
               : zr_fail(ZR_ERR_INVALID, "the file of segment '%s' has another name, '%s'", message->words,
                         out->name);
}

struct zr_held *zr_kept_holder_add(struct zr_kept_holder *holder, uint64_t token,
                                   const struct zr_segment_shape *shape, int fd)
{
    struct zr_held *held = zr_slab_take(&holder->records), **link = &holder->first;
    while (*link)
        link = &(*link)->next;
    *held = (struct zr_held){.number = ++holder->number, .token = token, .fd = fd, .shape = *shape};
    *link = held;
    holder->count++;
    return held;
}

zr_result zr_kept_holder_find(const struct zr_kept_holder *holder, const struct zr_service_message *message,
                              bool any, struct zr_held **out)
{
    *out = find_name(holder, message->words);
    if (*out && ((*out)->token == message->serial || (any && message->serial == 0)))
        return ZR_OK;
    *out = NULL;
    return zr_fail(ZR_ERR_FOREIGN,
                   "no segment has the name '%.*s' and this token; a holder that ends loses segments that no "
                   "process writes",
                   ZR_KEEP_NAME_BYTES - 1, message->words);
}

zr_result zr_kept_holder_check_drop(const struct zr_held *held)
{
    struct zr_segment_header header;
    if (!zr_segment_is_leased(held->fd))
        return ZR_OK;
    bool read = zr_read_all(held->fd, 0, &header, sizeof header) == (ssize_t)sizeof header;
    return zr_fail(ZR_ERR_INVALID, "process %d writes segment '%s': end it, or close the segment, first",
                   read ? (int)atomic_load(&header.writer_pid) : 0, held->shape.name);
}

void zr_kept_holder_remove(struct zr_kept_holder *holder, struct zr_held *held)
{
    struct zr_held **link = &holder->first;
    while (*link != held)
        link = &(*link)->next;
    *link = held->next;
    close(held->fd);
    holder->count--;
    zr_slab_give(&holder->records, held);
}

struct zr_service_message zr_kept_holder_next(const struct zr_kept_holder *holder, uint64_t after)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_DONE);
    struct zr_segment_header header;
    const struct zr_held *held = holder->first;
    struct stat status;
    while (held && held->number <= after)
        held = held->next;
    message.count = holder->count;
    if (!held)
        return message;
    bool read = zr_read_all(held->fd, 0, &header, sizeof header) == (ssize_t)sizeof header;
    message.kind = ZR_SERVICE_KEPT;
    message.serial = held->number;
    message.bytes = held->shape.bytes;
    message.resident_bytes = fstat(held->fd, &status) == 0 ? (uint64_t)status.st_blocks * 512 : 0;
    message.pid = read ? atomic_load(&header.writer_pid) : 0;
    message.slice = read ? atomic_load(&header.lease) : 0;
    message.count = read ? atomic_load(&header.committed) : 0;
    message.flags = zr_segment_is_leased(held->fd) ? ZR_SERVICE_KEEP_WRITES : 0;
    snprintf(message.words, sizeof message.words, "%s", held->shape.name);
    return message;
}

/* ---- The launcher's door ------------------------------------------------------------------------------- */

static zr_result create(struct zr_kept_holder *holder, const struct zr_service_message *request, int *fd)
{
    struct zr_segment_shape shape;
    zr_result result = zr_kept_holder_plan(holder, request, &shape);
    if (result == ZR_OK)
        result = zr_segment_make(&shape, fd);
    if (result == ZR_OK)
        zr_kept_holder_add(holder, request->serial, &shape, *fd);
    return result;
}

static void answer(struct zr_kept_holder *holder, struct zr_service_packet *packet, int socket)
{
    const struct zr_service_message *request = &packet->message;
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_DONE);
    struct zr_held *held;
    int fd = -1;
    zr_result result = zr_service_packet_check(socket, packet);
    if (result == ZR_OK)
        switch (request->kind) {
        case ZR_SERVICE_KEEP_CREATE:
            result = create(holder, request, &fd);
            break;
        case ZR_SERVICE_KEEP_OPEN:
            result = zr_kept_holder_find(holder, request, false, &held);
            fd = result == ZR_OK ? held->fd : -1;
            break;
        case ZR_SERVICE_KEEP_LIST:
            message = zr_kept_holder_next(holder, request->serial);
            break;
        case ZR_SERVICE_KEEP_DROP:
            result = zr_kept_holder_find(holder, request, false, &held);
            if (result == ZR_OK && (result = zr_kept_holder_check_drop(held)) == ZR_OK)
                zr_kept_holder_remove(holder, held);
            break;
        default:
            result = zr_fail(ZR_ERR_INVALID, "a launcher answers no message of kind %u", request->kind);
            break;
        }
    if (result != ZR_OK) {
        message = zr_service_message_of(ZR_SERVICE_REFUSED);
        message.result = (uint32_t)result;
        snprintf(message.words, sizeof message.words, "%s", zr_last_error());
    }
    zr_service_send(socket, &message, fd, true); /* a process that died needs no answer */
}

void zr_kept_holder_serve(struct zr_kept_holder *holder, int door)
{
    struct zr_service_packet packet;
    for (unsigned i = 0; i < AT_ONCE && zr_service_receive(door, &packet, 0) == ZR_OK; i++) {
        /* The last descriptor is the socket for the answer. */
        int socket = packet.fds_count > 0 ? packet.fds[--packet.fds_count] : -1;
        if (socket >= 0) {
            answer(holder, &packet, socket);
            close(socket);
        }
        zr_service_packet_close(&packet);
    }
}
