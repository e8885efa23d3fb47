/* nccl_board.c: the shared file of a communicator's ranks. See nccl_board.h. */
#define _GNU_SOURCE
#include "alloc/rehearse/runtime/nccl_board.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/rehearse/driver/emulator.h"

/* Of all messages of a kind that are under way: the host's memory. */
#define BOXES_BYTES_MAX ((size_t)64 << 20)

/* In the folder of the account, which zr rehearse removes. False: there is none. */
static bool path_of(char out[PATH_MAX], const char *name)
{
    const char *account = getenv("ZR_EMULATOR_SHARED"), *end = account ? strrchr(account, '/') : NULL;
    return end && snprintf(out, PATH_MAX, "%.*s/%s", (int)(end - account), account, name) < PATH_MAX;
}

bool nccl_board_open(struct nccl_board *out, const char *name, int ranks, int rank, int device)
{
    const size_t seats_bytes = NCCL_PAGE_BYTES;
    _Static_assert(NCCL_RANKS_MAX * sizeof(struct nccl_seat) <= NCCL_PAGE_BYTES, "seats are a page");
    char path[PATH_MAX];
    *out = (struct nccl_board){.ranks = ranks, .rank = rank};
    out->mail_bytes = NCCL_MAIL_BYTES;
    while (out->mail_bytes * (size_t)(ranks * ranks) > BOXES_BYTES_MAX)
        out->mail_bytes /= 2;
    out->bytes =
        seats_bytes + (sizeof(struct nccl_mailbox) + out->mail_bytes) * NCCL_KINDS * (size_t)(ranks * ranks);
    snprintf(out->name, sizeof out->name, "%s", name);
    int fd = path_of(path, name) ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    void *mapped = fd >= 0 && ftruncate(fd, (off_t)out->bytes) == 0
                       ? mmap(NULL, out->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (mapped == MAP_FAILED)
        return false;
    out->seats = mapped;
    out->boxes = (unsigned char *)mapped + seats_bytes;
    out->seats[rank].started = zr_emulator.started(getpid());
    out->seats[rank].device = device;
    atomic_store(&out->seats[rank].pid, getpid());
    return true;
}

void nccl_board_close(struct nccl_board *board)
{
    atomic_store(&board->seats[board->rank].left, true);
    munmap(board->seats, board->bytes);
    board->seats = NULL;
}

void nccl_board_unlink(const struct nccl_board *board)
{
    char path[PATH_MAX];
    if (path_of(path, board->name))
        unlink(path);
}

int nccl_board_missing(const struct nccl_board *board)
{
    for (int i = 0; i < board->ranks; i++)
        if (atomic_load(&board->seats[i].pid) == 0)
            return i;
    return -1;
}

bool nccl_board_is_gone(const struct nccl_board *board, int rank)
{
    const struct nccl_seat *seat = &board->seats[rank];
    int pid = atomic_load(&seat->pid);
    return pid && (atomic_load(&seat->left) || zr_emulator.started(pid) != seat->started);
}

struct nccl_mailbox *nccl_board_box(const struct nccl_board *board, enum nccl_kind kind, int from, int to)
{
    const size_t number = (size_t)(((int)kind * board->ranks + from) * board->ranks + to);
    return (struct nccl_mailbox *)&board->boxes[number * (sizeof(struct nccl_mailbox) + board->mail_bytes)];
}
