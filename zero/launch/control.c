/* control.c: memory and sockets shared by the processes of a run on one machine, and the word that ends the
 * run. Used by launch.c and join.c.
 *
 * The control block has its own small arena: shared granules remain shared across a fork and can be passed to
 * other processes. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "zero/launch/control.h"

#define FIRST_PIECE (UINT32_MAX - 15)

enum { CONTROL_GRANULE_BYTES = 64 << 10 };
enum { DRAINED_FDS = 64 }; /* descriptors of one message; the kernel closes what exceeds it */

zr_result zr_local_control_backend(struct zr_local_control *control)
{
    return zr_backend_host_create(
        &control->backend,
        &(struct zr_host_options){.granule_bytes = CONTROL_GRANULE_BYTES, .small_pages = true});
}

static void clear_ranks(struct zr_local_world *local)
{
    memset(local->ranks, 0, local->world * sizeof *local->ranks);
    /* Counters start near their maximum, so that every run wraps them. */
    for (unsigned i = 0; i < local->world * ZR_LOCAL_RINGS; i++) {
        struct zr_local_ring *ring = &local->ranks[i / ZR_LOCAL_RINGS].rings[i % ZR_LOCAL_RINGS];
        atomic_store(&ring->posted, FIRST_PIECE + i % 3); /* different start values within a group */
        atomic_store(&ring->host_posted, FIRST_PIECE + i % 5);
        atomic_store(&ring->lent, FIRST_PIECE);
    }
}

zr_result zr_local_control_make(struct zr_local_control *control, unsigned world)
{
    size_t bytes = sizeof(struct zr_local_world) + world * sizeof(struct zr_local_rank);
    size_t limit_bytes =
        (bytes + 2 * CONTROL_GRANULE_BYTES - 1) / CONTROL_GRANULE_BYTES * CONTROL_GRANULE_BYTES;
    void *block;
    zr_result result = zr_local_control_backend(control);
    if (result == ZR_OK)
        result = zr_arena_create(&control->arena, &(struct zr_arena_options){.backend = control->backend,
                                                                             .name = "control",
                                                                             .reserve_bytes = limit_bytes,
                                                                             .limit_bytes = limit_bytes});
    if (result == ZR_OK)
        result =
            zr_arena_alloc(control->arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_COMM}, &block);
    if (result != ZR_OK)
        return result;
    control->local = memset(block, 0, bytes);
    zr_local_set_world(control->local, world);
    clear_ranks(control->local);
    return ZR_OK;
}

void zr_local_set_world(struct zr_local_world *local, unsigned world)
{
    struct zr_machine machine;
    zr_os_machine(&machine);
    local->world = world;
    local->spins = world <= machine.cores_count;
}

void zr_local_control_restart(struct zr_local_world *local)
{
    int32_t pids[ZR_MAX_WORLD];
    for (unsigned r = 0; r < local->world; r++)
        pids[r] = atomic_load(&local->ranks[r].pid);
    clear_ranks(local);
    for (unsigned r = 0; r < local->world; r++)
        atomic_store(&local->ranks[r].pid, pids[r]);
    atomic_store(&local->turn, 0);
    atomic_store(&local->first_message, 0);
    atomic_store(&local->said, 0);
    atomic_store(&local->out_of_step, false);
    atomic_store(&local->abort, 0);
}

void zr_local_control_end(struct zr_local_control *control)
{
    if (control->arena)
        zr_arena_destroy(control->arena, NULL);
    if (control->import)
        zr_import_release(control->backend, control->import);
    if (control->backend)
        zr_backend_destroy(control->backend);
    memset(control, 0, sizeof(*control));
}

/* ---- Sockets ------------------------------------------------------------------------------------------- */

void zr_local_sockets_clear(struct zr_local_sockets *sockets)
{
    for (unsigned r = 0; r < ZR_MAX_WORLD; r++)
        sockets->inbox[r] = sockets->outbox[r] = -1;
}

zr_result zr_local_sockets_make(struct zr_local_sockets *sockets, unsigned world)
{
    int pair[2];
    for (unsigned r = 0; world > 1 && r < world; r++) {
        if (zr_fault(ZR_FAULT_OPEN) || zr_fault_no_descriptor() ||
            socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
            return zr_fail(ZR_ERR_HOST_MEMORY, "no file descriptor is left for rank %u: raise `ulimit -n`",
                           r);
        sockets->inbox[r] = pair[0];
        sockets->outbox[r] = pair[1];
    }
    return ZR_OK;
}

void zr_local_sockets_close(struct zr_local_sockets *sockets)
{
    for (unsigned r = 0; r < ZR_MAX_WORLD; r++) {
        if (sockets->inbox[r] >= 0)
            close(sockets->inbox[r]);
        if (sockets->outbox[r] >= 0)
            close(sockets->outbox[r]);
    }
    zr_local_sockets_clear(sockets);
}

void zr_local_sockets_drain(const struct zr_local_sockets *sockets)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(DRAINED_FDS * sizeof(int))];
    } control;
    char byte;
    int fds[DRAINED_FDS];
    for (unsigned r = 0; r < ZR_MAX_WORLD; r++)
        while (sockets->inbox[r] >= 0) {
            struct iovec data = {.iov_base = &byte, .iov_len = 1};
            struct msghdr message = {.msg_iov = &data,
                                     .msg_iovlen = 1,
                                     .msg_control = control.bytes,
                                     .msg_controllen = sizeof control.bytes};
            if (zr_receive(sockets->inbox[r], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
                break;
            for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
                size_t bytes = part->cmsg_len - CMSG_LEN(0);
                memcpy(fds, CMSG_DATA(part), bytes);
                for (size_t i = 0; i < bytes / sizeof(int); i++)
                    close(fds[i]);
            }
        }
}

/* ---- The end of a run ---------------------------------------------------------------------------------- */

static void wake_ring(struct zr_local_ring *ring)
{
    zr_word_wake_all(&ring->posted);
    zr_word_wake_all(&ring->consumed);
    zr_word_wake_all(&ring->lent);
    zr_word_wake_all(&ring->taken);
    zr_word_wake_all(&ring->host_posted);
    zr_word_wake_all(&ring->host_consumed);
}

/* Wakes all waiters at once, not only within ZR_LOCAL_POLL_NS. */
void zr_local_wake(struct zr_local_world *local)
{
    zr_word_wake_all(&local->abort);
    zr_word_wake_all(&local->parted);
    zr_word_wake_all(&local->turn);
    for (unsigned r = 0; r < local->world; r++) {
        for (unsigned i = 0; i < ZR_LOCAL_RINGS; i++)
            if (atomic_load(&local->ranks[r].rings[i].open))
                wake_ring(&local->ranks[r].rings[i]);
        zr_word_wake_all(&local->ranks[r].opening.changes);
        zr_word_wake_all(&local->ranks[r].opening.readers);
        zr_word_wake_all(&local->ranks[r].verdict);
        zr_word_wake_all(&local->ranks[r].received);
    }
}

void zr_local_describe_orphan(const struct zr_local_world *local, unsigned rank, char *out)
{
    snprintf(out, ZR_LOCAL_REASON_BYTES, "rank %u (pid %d) is lost: its process is gone", rank,
             (int)atomic_load(&local->ranks[rank].pid));
}

bool zr_local_end(struct zr_local_world *local, const struct zr_local_end *end)
{
    uint32_t none = 0, slot = 2 * end->rank + (uint32_t)end->reporter;
    char *words = local->ranks[end->rank].message[end->reporter];
    if (atomic_load(&local->abort) != 0) /* abort may point to this message */
        return false;
    size_t bytes = strnlen(end->reason, ZR_LOCAL_REASON_BYTES - 1);
    memcpy(words, end->reason, bytes); /* no formatting: a signal handler may run this */
    words[bytes] = '\0';
    if (!atomic_compare_exchange_strong(&local->abort, &none, slot << 8 | (uint32_t)end->why))
        return false;
    zr_local_wake(local);
    return true;
}
