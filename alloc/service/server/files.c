/* files.c: the memory of zrd's clients: memory files that zrd creates, or pieces of a device's memory. See
 * connection.h. Uses wire.c and device_pool.c.
 *
 * A client maps its files itself, touches as many pages as bytes were granted, and punches out the bytes that
 * it returns; the kernel clears a page before another process gets it. zrd keeps a descriptor of each file,
 * to measure the file and to free its memory after the client has exited. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/service/server/connection.h"

void zr_connection_make_file(struct zr_connection *connection)
{
    struct zr_service_message done = zr_service_message_of(ZR_SERVICE_DONE);
    int fd = -1;
    if (connection->files_count < ZR_SERVICE_FILES_MAX)
        fd = memfd_create("zrd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        done.kind = ZR_SERVICE_REFUSED;
        done.result = ZR_ERR_HOST_MEMORY;
        strcpy(done.words, connection->files_count < ZR_SERVICE_FILES_MAX
                               ? "zrd has no free descriptor: raise `ulimit -n` where zrd is started"
                               : "a client has at most 16 files: destroy backends, or share one");
    } else {
        connection->files[connection->files_count++] = fd;
    }
    zr_connection_send(connection, connection->requests, &done, fd);
}

static bool is_same_file(int fd, const struct stat *status)
{
    struct stat other;
    return fstat(fd, &other) == 0 && other.st_dev == status->st_dev && other.st_ino == status->st_ino;
}

/* The client that owns the file; NULL: none. */
static struct zr_connection *owner_of(const struct zr_server *server, const struct stat *status)
{
    for (struct zr_connection *connection = server->connections; connection; connection = connection->next)
        for (unsigned i = 0; i < connection->files_count; i++)
            if (is_same_file(connection->files[i], status))
                return connection;
    return NULL;
}

zr_result zr_connection_adopt_file(struct zr_server *server, struct zr_connection *connection, int fd)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals > 0 && seals & F_SEAL_GROW) /* see truncate_and_seal() */
        return zr_fail(ZR_ERR_INVALID, "an earlier zrd ended this process's leases and took its memory");
    /* zrd changes only memory files: a file of another kind has no seals or cannot be sealed. */
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || seals != 0 ||
        (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
        return zr_fail(ZR_ERR_INVALID, "the descriptor to adopt is not a memory file of a client");
    if (connection->files_count >= ZR_SERVICE_FILES_MAX)
        return zr_fail(ZR_ERR_INVALID, "a client has at most %d files", ZR_SERVICE_FILES_MAX);
    struct zr_connection *owner = owner_of(server, &status);
    if (owner && owner->client.pid == connection->client.pid)
        zr_connection_receive(server, owner); /* notices a closed connection */
    if (owner && !owner->client.left && !owner->disconnected)
        return zr_fail(ZR_ERR_INVALID, "the file already belongs to pid %d", (int)owner->client.pid);
    if (owner) { /* a lost connection of this process or its parent */
        zr_connection_close_files(owner);
        zr_connection_disconnect(server, owner, false, "");
    }
    connection->files[connection->files_count++] = fd;
    return ZR_OK;
}

uint64_t zr_connection_resident_bytes(const struct zr_connection *connection)
{
    struct stat status;
    uint64_t bytes = connection->pieces.bytes;
    for (unsigned i = 0; i < connection->files_count; i++)
        bytes += fstat(connection->files[i], &status) == 0 ? (uint64_t)status.st_blocks * 512 : 0;
    return bytes;
}

void zr_connection_close_files(struct zr_connection *connection)
{
    while (connection->files_count > 0)
        close(connection->files[--connection->files_count]);
}

/* Seal against growing, because a grown file would show zeros where data was. */
static void truncate_and_seal(int fd)
{
    if (ftruncate(fd, 0) == 0)
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW);
}

void zr_connection_revoke_files(struct zr_connection *connection)
{
    for (unsigned i = 0; i < connection->files_count; i++)
        truncate_and_seal(connection->files[i]);
    zr_connection_close_files(connection);
}

/* The kernel seals a file against writing only while no process has a writable mapping of it. */
bool zr_connection_release_files(struct zr_connection *connection)
{
    for (unsigned i = connection->files_count; i-- > 0;) {
        if (fcntl(connection->files[i], F_ADD_SEALS, F_SEAL_WRITE) != 0 && errno == EBUSY)
            continue;
        truncate_and_seal(connection->files[i]);
        close(connection->files[i]);
        connection->files[i] = connection->files[--connection->files_count];
    }
    return connection->files_count == 0;
}

/* ---- A device's memory --------------------------------------------------------------------------------- */

zr_result zr_connection_lend(struct zr_connection *connection, uint64_t bytes, struct zr_device_piece **out)
{
    return zr_device_pool_lend(&connection->server->device_pool, &connection->pieces, bytes, out);
}

zr_result zr_connection_return_piece(struct zr_connection *connection,
                                     const struct zr_service_message *message)
{
    struct zr_device_pool *device_pool = &connection->server->device_pool;
    struct zr_device_piece *piece = zr_device_pool_find(device_pool, &connection->pieces, message->count);
    uint64_t others = connection->client.held_bytes - connection->pieces.bytes;
    if (piece && piece->handle->bytes == message->bytes) {
        zr_device_pool_return(device_pool, &connection->pieces, piece);
        return ZR_OK;
    }
    /* The process or an earlier zrd created that memory. */
    return !piece && message->bytes <= others
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "it returns %llu bytes as piece %llu, which it does not hold",
                         (unsigned long long)message->bytes, (unsigned long long)message->count);
}

static bool is_alive(const struct zr_connection *connection)
{
    struct pollfd end = {.fd = connection->process, .events = POLLIN};
    return connection->process >= 0 ? poll(&end, 1, 0) == 0 : kill(connection->client.pid, 0) == 0;
}

bool zr_connection_release_pieces(struct zr_connection *connection)
{
    if (connection->registered && connection->client.held_bytes > 0 && is_alive(connection))
        return false;
    zr_device_pool_return_all(&connection->server->device_pool, &connection->pieces);
    return true;
}

void zr_connection_send_piece(struct zr_connection *connection, uint64_t number)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_DONE);
    struct zr_device_pool *device_pool = &connection->server->device_pool;
    const struct zr_device_piece *piece = zr_device_pool_find(device_pool, &connection->pieces, number);
    int fd = -1;
    if (!piece || zr_piece_fd(device_pool, piece, &fd) != ZR_OK) {
        message.kind = ZR_SERVICE_REFUSED;
        message.result = ZR_ERR_UNAVAILABLE;
        snprintf(message.words, sizeof message.words, "%s",
                 piece ? zr_last_error() : "another zrd lent that memory, so this zrd cannot export it");
    }
    zr_connection_send(connection, connection->requests, &message, fd);
    if (fd >= 0)
        zr_piece_close_fd(device_pool, piece);
}
