/* cuda_share_test.c: CUDA memory between processes: a device's and pinned memory, exported by descriptor and
 * imported by another process on the same device, on a peer and on a stranger, each of which writes what the
 * owner reads. On the emulated driver. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/support/cuda/cuda_pieces.h"

/* ---- Descriptors on their way -------------------------------------------------------------------------- */

struct parcel {
    struct zr_segment segments[8];
    size_t count, lead_bytes, bytes;
};

static bool send_parcel(int socket, const struct parcel *parcel)
{
    char control[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec bytes = {(void *)parcel, sizeof *parcel};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = CMSG_SPACE(parcel->count * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(parcel->count * sizeof(int));
    for (size_t i = 0; i < parcel->count; i++)
        memcpy(CMSG_DATA(header) + i * sizeof(int), &parcel->segments[i].fd, sizeof(int));
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof *parcel;
}

static bool receive_parcel(int socket, struct parcel *parcel)
{
    char control[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec bytes = {parcel, sizeof *parcel};
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, 0) != (ssize_t)sizeof *parcel)
        return false;
    for (size_t i = 0; i < parcel->count; i++)
        memcpy(&parcel->segments[i].fd, CMSG_DATA(CMSG_FIRSTHDR(&message)) + i * sizeof(int), sizeof(int));
    return true;
}

/* One process is done and waits until the other is. */
static bool take_turns(int socket)
{
    char turn = 't';
    return send(socket, &turn, 1, MSG_NOSIGNAL) == 1 && recv(socket, &turn, 1, 0) == 1;
}

/* ---- The other processes ------------------------------------------------------------------------------- */

/* The device's own view of a byte. */
static bool device_byte(zr_backend *backend, const char *address, unsigned char want)
{
    unsigned char got = 0;
    zr_backend_copy(backend, &(struct zr_copy){.to = &got, .from = address, .bytes = 1});
    return zr_backend_synchronize(backend) == ZR_OK && got == want;
}

static bool device_writes(zr_backend *backend, char *address, unsigned char value)
{
    return zr_backend_fill(backend, &(struct zr_fill){.to = address, .value = value, .bytes = 1}) == ZR_OK &&
           zr_backend_synchronize(backend) == ZR_OK;
}

struct visit {
    zr_backend *backend;
    char *block;
    size_t bytes;
    int socket;
};

/* Reads the ends, writes the middle. 0: all went well. */
static int use_as_device(const struct visit *visit)
{
    char *middle = visit->block + visit->bytes / 2;
    if (!device_byte(visit->backend, visit->block, 11) ||
        !device_byte(visit->backend, visit->block + visit->bytes - 1, 12))
        return 10;
    return device_writes(visit->backend, middle, 13) && device_byte(visit->backend, middle, 13) ? 0 : 11;
}

/* The same with the processor, in turns with the owner, which is gone by the last one. */
static int use_as_processor(const struct visit *visit)
{
    char *middle = visit->block + visit->bytes / 2, *last = visit->block + visit->bytes - 1;
    if (visit->block[0] != 11 || *last != 12)
        return 20;
    *middle = 13;
    if (!device_writes(visit->backend, last, 14) || *last != 14)
        return 21;
    if (!take_turns(visit->socket) || *middle != 15)
        return 22;
    if (!take_turns(visit->socket))
        return 23;
    return *middle == 15 && *last == 14 && device_byte(visit->backend, middle, 15) ? 0 : 24;
}

struct guest {
    const char *what;
    struct zr_cuda_options options;
    const char *devices; /* of its driver; NULL: as many as there are */
    zr_result import;    /* what it is told */
    int (*use)(const struct visit *visit);
    pid_t process;
    int socket;
};

enum { SAME_DEVICE, PEER, STRANGER, PINNED, PINNED_FROM_PEER, GUESTS };
static struct guest guests[GUESTS] = {
    [SAME_DEVICE] = {"on the same device", .use = use_as_device},
    [PEER] = {"on a peer", {.device = 1}, .use = use_as_device},
    [STRANGER] = {"on a device that is no peer", {.device = 2}, "4", ZR_ERR_INVALID},
    [PINNED] = {"pinned memory",
                {.kind = ZR_CUDA_HOST, .numa_node = 0, .granule_bytes = GRANULE},
                .use = use_as_processor},
    [PINNED_FROM_PEER] = {"pinned memory, on another device",
                          {.kind = ZR_CUDA_HOST, .numa_node = -1, .device = 1, .granule_bytes = GRANULE},
                          .use = use_as_processor},
};

static int visit(const struct guest *guest)
{
    struct parcel parcel;
    struct visit visit = {.socket = guest->socket};
    void *imported;
    if (guest->devices)
        setenv("ZR_EMULATOR_DEVICES", guest->devices, 1);
    if (!receive_parcel(guest->socket, &parcel) ||
        zr_backend_cuda_create(&visit.backend, &guest->options) != ZR_OK)
        return 1;
    if (zr_import(visit.backend, parcel.segments, parcel.count, &imported) != guest->import)
        return 2;
    for (size_t i = 0; i < parcel.count; i++)
        close(parcel.segments[i].fd);
    visit.block = (char *)imported + parcel.lead_bytes;
    visit.bytes = parcel.bytes;
    int status = imported ? guest->use(&visit) : 0;
    if (status != 0)
        return status;
    if (zr_import_release(visit.backend, imported) != ZR_OK || zr_backend_destroy(visit.backend) != ZR_OK)
        return 3;
    return nothing_left() ? 0 : 4;
}

/* Forks before this process has seen the driver, which does not survive that. */
static void invite(struct guest *guest)
{
    int pair[2];
    guest->process = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return;
    guest->process = fork();
    if (guest->process == 0) {
        close(pair[0]);
        guest->socket = pair[1];
        alarm(120);
        _exit(visit(guest));
    }
    close(pair[1]);
    guest->socket = pair[0];
}

static void see_off(const struct guest *guest)
{
    int status = -1;
    waitpid(guest->process, &status, 0);
    tap_is(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), 0,
           "%s: there, all is as it should be", guest->what);
    close(guest->socket);
}

/* ---- The owner ----------------------------------------------------------------------------------------- */

struct owner {
    zr_backend *backend;
    zr_arena *arena;
    char *block;
    struct parcel parcel;
};

/* A block that begins inside a granule, with marks at its ends, as a parcel. */
static struct owner own(const struct zr_cuda_options *options)
{
    void *small, *block = NULL;
    struct owner owner = {.backend = create(options), .parcel = {.count = 8, .bytes = 5 * GRANULE + 12345}};
    struct parcel *parcel = &owner.parcel;
    zr_arena_create(&owner.arena, &(struct zr_arena_options){.backend = owner.backend});
    zr_arena_alloc(owner.arena, &(struct zr_request){.bytes = GRANULE + 777, .tag = ZR_TAG_OTHER}, &small);
    zr_arena_alloc(owner.arena, &(struct zr_request){.bytes = parcel->bytes, .tag = ZR_TAG_PARAM}, &block);
    owner.block = block;
    device_writes(owner.backend, owner.block, 11);
    device_writes(owner.backend, owner.block + parcel->bytes - 1, 12);
    tap_result(zr_block_export(owner.arena, block, parcel->segments, &parcel->count, &parcel->lead_bytes),
               ZR_OK, "a block is exported in %zu pieces", parcel->count);
    tap_ok(parcel->lead_bytes > 0 && parcel->count > 1, "it begins inside the first");
    return owner;
}

/* In the owner's own process: what is not whole, what fails half way, and work that goes on in an import. */
static void test_imports(const struct owner *owner)
{
    struct zr_segment segments[2] = {owner->parcel.segments[0], {.fd = STDIN_FILENO, .bytes = GRANULE}};
    struct zr_segment middle = segments[0];
    struct zr_handle *handle;
    void *imported;
    size_t before = emulator->state().reservations_count;
    middle.offset_bytes = GRANULE;
    tap_result(zr_backend_import(owner->backend, &middle, &handle), ZR_ERR_INVALID,
               "no piece from its middle");
    tap_result(zr_import(owner->backend, segments, 2, &imported), ZR_ERR_INVALID,
               "nor one with a stranger's");
    tap_is(emulator->state().reservations_count, before, "which keeps no addresses");
    tap_result(zr_import(owner->backend, segments, 1, &imported), ZR_OK, "a piece of its own");
    emulator->work_ticks(1000000);
    zr_backend_fill(owner->backend, &(struct zr_fill){.to = imported, .value = 1, .bytes = GRANULE});
    tap_result(zr_import_release(owner->backend, imported), ZR_OK, "goes while the device writes to it");
    emulator->work_ticks(3);
    tap_result(zr_backend_synchronize(owner->backend), ZR_OK, "which is waited for");
}

/* That this process has open. */
static unsigned descriptors_count(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void test_device(void)
{
    struct owner owner = own(NULL);
    char *middle = owner.block + owner.parcel.bytes / 2;
    for (unsigned i = SAME_DEVICE; i <= STRANGER; i++) {
        device_writes(owner.backend, middle, 0);
        tap_ok(send_parcel(guests[i].socket, &owner.parcel), "%s: descriptors go to another process",
               guests[i].what);
        see_off(&guests[i]);
        tap_ok(device_byte(owner.backend, middle, guests[i].use ? 13 : 0), "%s: what it wrote is here",
               guests[i].what);
    }
    test_imports(&owner);
    int fd = owner.parcel.segments[0].fd;
    tap_ok((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0, "a descriptor does not reach programs that are started");
    unsigned open_before = descriptors_count();
    tap_result(zr_block_export_end(owner.arena, owner.block), ZR_OK, "an export ends");
    tap_is(open_before - descriptors_count(), owner.parcel.count, "with all its descriptors");
    tap_result(zr_block_export_end(owner.arena, owner.block + 256), ZR_ERR_FOREIGN, "not inside a block");
    zr_block_export(owner.arena, owner.block, owner.parcel.segments, &owner.parcel.count,
                    &owner.parcel.lead_bytes);
    fd = owner.parcel.segments[0].fd;
    tap_is(descriptors_count(), open_before, "another export has as many again");
    zr_arena_destroy(owner.arena, NULL);
    tap_ok(fcntl(fd, F_GETFD) < 0, "which go with the memory");
    zr_backend_destroy(owner.backend);
}

/* Processor and device, here and there, take turns at the same bytes. */
static void test_pinned(struct guest *guest, int node)
{
    struct owner owner =
        own(&(struct zr_cuda_options){.kind = ZR_CUDA_HOST, .numa_node = node, .granule_bytes = GRANULE});
    char *middle = owner.block + owner.parcel.bytes / 2, *last = owner.block + owner.parcel.bytes - 1;
    char turn = 't';
    tap_ok(owner.block[0] == 11 && *last == 12, "%s: the processor reads what its device wrote", guest->what);
    *middle = 0;
    tap_ok(send_parcel(guest->socket, &owner.parcel), "%s: descriptors go to another process", guest->what);
    bool there = recv(guest->socket, &turn, 1, 0) == 1;
    tap_ok(there && *middle == 13 && device_byte(owner.backend, middle, 13),
           "%s: its processor's writes are here, for processor and device", guest->what);
    tap_ok(there && *last == 14 && device_byte(owner.backend, last, 14), "%s: its device's too", guest->what);
    *middle = 15;
    there = send(guest->socket, &turn, 1, MSG_NOSIGNAL) == 1 && recv(guest->socket, &turn, 1, 0) == 1;
    tap_ok(there, "%s: and ours are there", guest->what);
    tap_result(zr_arena_destroy(owner.arena, NULL), ZR_OK, "the owner's arena ends");
    tap_result(zr_backend_destroy(owner.backend), ZR_OK, "and its backend");
    if (there)
        send(guest->socket, &turn, 1, MSG_NOSIGNAL);
    see_off(guest);
}

int main(void)
{
    emulator = cuda_emulator_alone();
    if (!emulator)
        return tap_done();
    for (unsigned i = 0; i < GUESTS; i++)
        invite(&guests[i]);
    zr_cuda_driver_get(&cu);
    test_device();
    test_pinned(&guests[PINNED], 0);
    test_pinned(&guests[PINNED_FROM_PEER], -1);
    tap_ok(nothing_left(), "the driver has everything back");
    return tap_done();
}
