/* nvme_measure.c: measures the queue depth. See nvme_inside.h.
 *
 * As in an update, one half of the test extent is read while the other is written. The largest depth with
 * nearly the best rate is used. A smaller depth is as fast on an idle machine; next to computing threads, the
 * thread that submits pieces waits for a processor, and the queue must keep the disk busy meanwhile. */
#include "zero/file_io/nvme_inside.h"

enum { DEPTH_UNMEASURED = 16, SPAN_MAX_BYTES = 16 << 20 };
static const uint64_t depth_ns = 50000000, all_ns = 1000000000;
static const double near_best = 0.95;

/* Bytes per second of concurrent reads and writes. Two operations per direction are in flight, so the queue
 * is never empty between rounds. */
static zr_result measure_depth(zr_nvme_io *io, size_t span_bytes, double *out)
{
    char *memory = io->options.buffers[0].memory;
    zr_nvme_event reads[2] = {0}, writes[2] = {0};
    struct zr_nvme_extent extents[2] = {{0, memory, span_bytes, 0},
                                        {span_bytes, memory + span_bytes, span_bytes, 0}};
    uint64_t start_ns = zr_os_now_ns(), now_ns;
    unsigned round = 0;
    zr_result result;
    do {
        unsigned slot = round++ % 2;
        result = zr_nvme_wait(io, reads[slot]);
        if (result == ZR_OK)
            result = zr_nvme_wait(io, writes[slot]);
        extents[0].after = reads[!slot];
        extents[1].after = writes[!slot];
        if (result == ZR_OK)
            result = zr_nvme_read(io, &extents[0], &reads[slot]);
        if (result == ZR_OK)
            result = zr_nvme_write(io, &extents[1], &writes[slot]);
        now_ns = zr_os_now_ns();
    } while (result == ZR_OK && now_ns - start_ns < depth_ns);
    zr_result ended = zr_nvme_synchronize(io);
    *out = 2.0 * (double)span_bytes * round / ((double)(zr_os_now_ns() - start_ns + 1) * 1e-9);
    return result == ZR_OK ? ended : result;
}

static void set_depth(zr_nvme_io *io, unsigned depth)
{
    pthread_mutex_lock(&io->lock);
    io->depth = depth;
    pthread_mutex_unlock(&io->lock);
}

/* Write first: the file system reads unwritten blocks without the disk. */
static zr_result write_both_halves(zr_nvme_io *io, size_t span_bytes)
{
    zr_nvme_event event;
    zr_result result = zr_nvme_write(
        io, &(struct zr_nvme_extent){0, io->options.buffers[0].memory, 2 * span_bytes, 0}, &event);
    return result == ZR_OK ? zr_nvme_wait(io, event) : result;
}

unsigned zr_nvme_choose_depth(const double *rates, unsigned count)
{
    double best = 0;
    for (unsigned i = 0; i < count; i++)
        best = rates[i] > best ? rates[i] : best;
    unsigned chosen = count;
    while (--chosen > 0 && rates[chosen] < near_best * best)
        ;
    return chosen;
}

zr_result zr_nvme_measure(zr_nvme_io *io)
{
    unsigned max_depth = io->ring_used ? ZR_NVME_DEPTH_MAX : ZR_NVME_THREADS, tried = 0;
    double rates[ZR_NVME_DEPTH_MAX];
    size_t span_bytes = SPAN_MAX_BYTES;

    if (io->depth != 0) {
        set_depth(io, io->depth < max_depth ? io->depth : max_depth);
        return ZR_OK;
    }
    if (io->options.buffers_count > 0 && io->options.buffers[0].bytes / 2 < span_bytes)
        span_bytes = io->options.buffers[0].bytes / 2;
    if (io->options.file_bytes / 2 < span_bytes)
        span_bytes = (size_t)(io->options.file_bytes / 2);
    span_bytes -= span_bytes % io->piece_bytes;
    set_depth(io, DEPTH_UNMEASURED < max_depth ? DEPTH_UNMEASURED : max_depth);
    if (io->options.buffers_count == 0 || span_bytes == 0)
        return ZR_OK;
    zr_result result = write_both_halves(io, span_bytes);
    /* The time starts after the first write, so that at least one depth is measured on a slow disk too. */
    uint64_t start_ns = zr_os_now_ns();
    for (unsigned depth = 1;
         result == ZR_OK && depth <= max_depth && (tried == 0 || zr_os_now_ns() - start_ns < all_ns);
         depth *= 2) {
        set_depth(io, depth);
        result = measure_depth(io, span_bytes, &rates[tried++]);
    }
    if (result != ZR_OK)
        return result;
    unsigned chosen = zr_nvme_choose_depth(rates, tried);
    set_depth(io, 1u << chosen);
    pthread_mutex_lock(&io->lock);
    io->bytes_per_second = rates[chosen];
    io->moved_bytes[0] = io->moved_bytes[1] = io->continued_count = 0;
    io->waited_ns = io->waited_behind_ns = 0;
    pthread_mutex_unlock(&io->lock);
    return ZR_OK;
}
