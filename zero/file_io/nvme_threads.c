/* nvme_threads.c: transfers by pread and pwrite, without io_uring. See nvme_inside.h. */
#include <errno.h>
#include <unistd.h>

#include "zero/file_io/nvme_inside.h"

static long transfer(const zr_nvme_io *io, const struct zr_nvme_piece *piece)
{
    if (piece->error)
        return -piece->error;
    ssize_t moved = piece->operation->write
                        ? pwrite(io->file.fd, piece->memory, piece->bytes, (off_t)piece->offset_bytes)
                        : pread(io->file.fd, piece->memory, piece->bytes, (off_t)piece->offset_bytes);
    return moved < 0 ? -errno : moved;
}

void *zr_nvme_thread_run(void *argument)
{
    zr_nvme_io *io = argument;
    struct zr_nvme_piece piece;
    pthread_mutex_lock(&io->lock);
    for (;;) {
        if (!zr_nvme_take_piece(io, &piece)) {
            if (io->stopping)
                break;
            pthread_cond_wait(&io->work, &io->lock);
            continue;
        }
        long moved_bytes;
        do {
            pthread_mutex_unlock(&io->lock);
            if (piece.stalls)
                zr_nvme_stall(io);
            moved_bytes = transfer(io, &piece);
            pthread_mutex_lock(&io->lock);
        } while (!zr_nvme_advance_piece(io, &piece, moved_bytes));
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}
