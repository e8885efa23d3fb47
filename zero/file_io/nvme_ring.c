/* nvme_ring.c: transfers by io_uring. See nvme_inside.h.
 *
 * One thread submits pieces up to the depth and sleeps in the kernel until one completes. Operations started
 * meanwhile are submitted then, which delays them by at most one piece. The kernel maps the ring's pages at
 * the start. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "zero/file_io/nvme_inside.h"

/* Maximum that the kernel registers in one entry. */
static const size_t entry_max_bytes = (size_t)1 << 30;
static const uint64_t retry_ns = 1000000;

/* ---- Start and end ------------------------------------------------------------------------------------- */

/* Registers all buffers or none; unregistered buffers work too, with a page lookup per transfer. */
static void register_buffers(zr_nvme_io *io)
{
    unsigned count = 0;
    bool fits = true;
    for (unsigned i = 0; i < io->options.buffers_count; i++) {
        char *at = io->options.buffers[i].memory;
        size_t left_bytes = io->options.buffers[i].bytes;
        for (; left_bytes > 0 && (fits = count < ZR_NVME_REGISTERED); count++) {
            size_t bytes = left_bytes < entry_max_bytes ? left_bytes : entry_max_bytes;
            io->registered[count] = (struct iovec){at, bytes};
            at += bytes;
            left_bytes -= bytes;
        }
    }
    if (count == 0)
        return;
    int error = fits ? -io_uring_register_buffers(&io->ring, io->registered, count) : E2BIG;
    if (error == 0) {
        io->registered_count = count;
        return;
    }
    char text[64];
    zr_nvme_log(
        io,
        "the buffers of the offload file in '%s' are not registered with io_uring (%s%s), which costs a little time",
        io->file.folder, strerror_r(error, text, sizeof text), error == ENOMEM ? ": raise `ulimit -l`" : "");
}

/* Submits a no-op: a seccomp filter may allow the setup and forbid io_uring_enter. */
static int try_ring(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (!sqe)
        return EAGAIN;
    io_uring_prep_nop(sqe);
    int error;
    do
        error = -io_uring_submit_and_wait(ring, 1);
    while (error == EINTR);
    if (error > 0)
        return error;
    if (io_uring_peek_batch_cqe(ring, &cqe, 1) != 1)
        return EIO;
    io_uring_cq_advance(ring, 1);
    return 0;
}

int zr_nvme_ring_start(zr_nvme_io *io)
{
    struct io_uring_params params = {0};
    int error = -io_uring_queue_init_params(ZR_NVME_DEPTH_MAX, &io->ring, &params);
    if (error != 0)
        return error;
    /* Kernels with this feature also have non-vectored reads and writes. */
    error = params.features & IORING_FEAT_RW_CUR_POS ? try_ring(&io->ring) : ENOSYS;
    if (error != 0) {
        io_uring_queue_exit(&io->ring);
        return error;
    }
    register_buffers(io);
    io->ring_used = true;
    return 0;
}

void zr_nvme_ring_end(zr_nvme_io *io)
{
    io_uring_queue_exit(&io->ring);
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

/* Index of the registered entry that contains the piece; -1: none. */
static int entry_of(const zr_nvme_io *io, const struct zr_nvme_piece *piece)
{
    for (unsigned i = 0; i < io->registered_count; i++) {
        uintptr_t start = (uintptr_t)io->registered[i].iov_base, at = (uintptr_t)piece->memory;
        if (at >= start && at - start < io->registered[i].iov_len &&
            piece->bytes <= io->registered[i].iov_len - (at - start))
            return (int)i;
    }
    return -1;
}

/* The ring has as many entries as pieces, so one is free. */
static void queue_piece(zr_nvme_io *io, unsigned i)
{
    const struct zr_nvme_piece *piece = &io->pieces[i];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
    int entry = entry_of(io, piece);
    unsigned bytes = (unsigned)piece->bytes;
    if (piece->error)
        io_uring_prep_nop(sqe);
    else if (piece->operation->write && entry >= 0)
        io_uring_prep_write_fixed(sqe, io->file.fd, piece->memory, bytes, piece->offset_bytes, entry);
    else if (piece->operation->write)
        io_uring_prep_write(sqe, io->file.fd, piece->memory, bytes, piece->offset_bytes);
    else if (entry >= 0)
        io_uring_prep_read_fixed(sqe, io->file.fd, piece->memory, bytes, piece->offset_bytes, entry);
    else
        io_uring_prep_read(sqe, io->file.fd, piece->memory, bytes, piece->offset_bytes);
    sqe->user_data = i;
}

/* The caller holds the lock. Queues pieces that can start; returns the number of pieces in the ring. */
static unsigned fill(zr_nvme_io *io, unsigned count)
{
    for (unsigned i = 0; i < ZR_NVME_DEPTH_MAX; i++) {
        if (io->piece_used[i])
            continue;
        if (!zr_nvme_take_piece(io, &io->pieces[i]))
            break;
        io->piece_used[i] = true;
        io->ring_stalls |= io->pieces[i].stalls;
        queue_piece(io, i);
        count++;
    }
    return count;
}

/* The caller holds the lock. Handles completions and continues short transfers; returns the number of pieces
 * left. */
static unsigned reap(zr_nvme_io *io, unsigned count)
{
    struct io_uring_cqe *cqes[ZR_NVME_DEPTH_MAX];
    unsigned ended = io_uring_peek_batch_cqe(&io->ring, cqes, ZR_NVME_DEPTH_MAX);
    for (unsigned n = 0; n < ended; n++) {
        unsigned i = (unsigned)cqes[n]->user_data;
        int error = io->pieces[i].error;
        if (zr_nvme_advance_piece(io, &io->pieces[i], error ? -error : cqes[n]->res)) {
            io->piece_used[i] = false;
            count--;
        } else {
            queue_piece(io, i);
        }
    }
    io_uring_cq_advance(&io->ring, ended);
    return count;
}

void *zr_nvme_ring_run(void *argument)
{
    zr_nvme_io *io = argument;
    _Atomic uint32_t never = 0;
    unsigned count = 0;
    pthread_mutex_lock(&io->lock);
    for (;;) {
        count = fill(io, count);
        if (count == 0) {
            if (io->stopping)
                break;
            pthread_cond_wait(&io->work, &io->lock);
            continue;
        }
        pthread_mutex_unlock(&io->lock);
        if (io->ring_stalls)
            zr_nvme_stall(io);
        io->ring_stalls = false;
        /* Retry a refused submit until it succeeds; meanwhile waits log a stall. Pieces cannot be failed,
         * because the kernel may still write to their memory. */
        int submitted = io_uring_submit_and_wait(&io->ring, 1);
        if (submitted < 0 && submitted != -EINTR)
            zr_word_wait(&never, 0, retry_ns);
        pthread_mutex_lock(&io->lock);
        count = reap(io, count);
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}
