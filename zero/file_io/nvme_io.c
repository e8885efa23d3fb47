/* nvme_io.c: operations on the file, cut into pieces; events. See nvme_io.h and nvme_inside.h.
 * An operation occupies a slot from its start until it and all earlier operations are done; an event has
 * passed if its slot has been reused. The first failure ends all operations, because the contents of extents
 * are unknown afterwards.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "zero/file_io/nvme_inside.h"

/* Transfers in a row without a whole block before the device counts as failed. */
enum { PIECE_DEFAULT_BYTES = 512 << 10, FRUITLESS_MAX = 1000 };
static const uint64_t stall_default_ns = 5000000000ull, look_ns = 1000000000ull;

void zr_nvme_log(const zr_nvme_io *io, const char *format, ...)
{
    char words[512];
    va_list list;
    if (!io->options.log)
        return;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    io->options.log(io->options.log_state, words);
}

static struct zr_nvme_operation *operation_of(zr_nvme_io *io, zr_nvme_event event)
{
    return &io->operations[event % ZR_NVME_OPERATIONS];
}

/* The caller holds the lock; the event was returned by a start. */
static bool has_passed(zr_nvme_io *io, zr_nvme_event event)
{
    return event < io->oldest || operation_of(io, event)->done;
}

/* ---- Pieces, under the lock ---------------------------------------------------------------------------- */

static void end_operation(zr_nvme_io *io, struct zr_nvme_operation *operation)
{
    operation->done = true;
    while (io->oldest <= io->last && operation_of(io, io->oldest)->done)
        io->oldest++;
    atomic_fetch_add(&io->finished, 1);
    zr_word_wake_all(&io->finished);
    pthread_cond_broadcast(&io->work); /* operations may wait for this one */
}

/* Whether an earlier failure ends an operation of this kind. */
static bool has_failed(const zr_nvme_io *io, bool write)
{
    return io->error != 0 && (write || !io->failed_write || !io->options.write_way_out);
}

/* Ends operations that are done, in order, because one may allow the next to end. After a failure, operations
 * that have not started are dropped. */
static void end_done(zr_nvme_io *io)
{
    for (zr_nvme_event event = io->oldest; event <= io->last; event++) {
        struct zr_nvme_operation *operation = operation_of(io, event);
        if (operation->done || !has_passed(io, operation->after))
            continue;
        if (has_failed(io, operation->write)) {
            io->under_way_bytes -= operation->bytes - operation->issued_bytes;
            operation->done_bytes += operation->bytes - operation->issued_bytes;
            operation->issued_bytes = operation->bytes;
        }
        if (operation->done_bytes == operation->bytes)
            end_operation(io, operation);
    }
}

/* The oldest operation of a direction that can start or continue. */
static struct zr_nvme_operation *find_operation(zr_nvme_io *io, bool write)
{
    for (zr_nvme_event event = io->oldest; event <= io->last; event++) {
        struct zr_nvme_operation *operation = operation_of(io, event);
        if (operation->write == write && operation->issued_bytes < operation->bytes &&
            has_passed(io, operation->after))
            return operation;
    }
    return NULL;
}

bool zr_nvme_take_piece(zr_nvme_io *io, struct zr_nvme_piece *out)
{
    if (io->under_way >= io->depth)
        return false;
    struct zr_nvme_operation *operation = find_operation(io, io->write_turn);
    if (!operation)
        operation = find_operation(io, !io->write_turn);
    if (!operation)
        return false;
    size_t left_bytes = operation->bytes - operation->issued_bytes;
    *out = (struct zr_nvme_piece){
        .operation = operation,
        .memory = operation->memory + operation->issued_bytes,
        .offset_bytes = operation->offset_bytes + operation->issued_bytes,
        .bytes = left_bytes < io->piece_bytes ? left_bytes : io->piece_bytes,
    };
    operation->issued_bytes += out->bytes;
    io->write_turn = !operation->write;
    io->under_way++;
    enum zr_fault_site site = operation->write ? ZR_FAULT_DISK_WRITE : ZR_FAULT_DISK_READ;
    if (zr_fault(site))
        out->error = EIO;
    else if (zr_fault_interrupts(site))
        out->error = EINTR;
    out->first_bytes = zr_fault_part(site, out->bytes);
    out->stalls = zr_fault(ZR_FAULT_DISK_STALL);
    return true;
}

static void record_failure(zr_nvme_io *io, const struct zr_nvme_piece *piece, int error)
{
    if (has_failed(io, piece->operation->write))
        return;
    io->error = error;
    io->failed_write = piece->operation->write;
    io->failed_offset_bytes = piece->offset_bytes;
    io->failed_bytes = piece->bytes;
}

bool zr_nvme_advance_piece(zr_nvme_io *io, struct zr_nvme_piece *piece, long moved_bytes)
{
    struct zr_nvme_operation *operation = piece->operation;
    size_t moved = moved_bytes > 0 ? (size_t)moved_bytes : 0;
    if (moved > piece->first_bytes)
        moved = piece->first_bytes;
    bool passing = moved_bytes == -EINTR || moved_bytes == -EAGAIN || moved_bytes > 0;
    /* A partial block is transferred again. */
    if (moved < piece->bytes)
        moved -= moved % io->file.align_bytes;
    piece->fruitless_count = moved > 0 ? 0 : piece->fruitless_count + 1;
    piece->error = 0;
    piece->stalls = false;
    piece->memory += moved;
    piece->offset_bytes += moved;
    piece->bytes -= moved;
    piece->first_bytes = piece->bytes;
    operation->done_bytes += moved;
    io->moved_bytes[operation->write] += moved;
    io->under_way_bytes -= moved;
    if (piece->bytes > 0) {
        if (passing && piece->fruitless_count < FRUITLESS_MAX && !has_failed(io, operation->write)) {
            io->continued_count += moved > 0;
            return false;
        }
        record_failure(io, piece, moved_bytes < 0 ? (int)-moved_bytes : EIO);
        operation->done_bytes += piece->bytes;
        io->under_way_bytes -= piece->bytes;
    }
    io->under_way--;
    end_done(io);
    return true;
}

void zr_nvme_stall(const zr_nvme_io *io)
{
    _Atomic uint32_t never = 0;
    uint64_t end_ns = zr_os_now_ns() + 2 * io->options.stall_ns, now_ns;
    while ((now_ns = zr_os_now_ns()) < end_ns)
        zr_word_wait(&never, 0, end_ns - now_ns < look_ns / 100 ? end_ns - now_ns : look_ns / 100);
}

/* ---- Waits --------------------------------------------------------------------------------------------- */

static zr_result first_failure(const zr_nvme_io *io, bool write)
{
    char doing[96];
    if (!has_failed(io, write))
        return ZR_OK;
    snprintf(doing, sizeof doing, "%s %zu bytes at %llu of", io->failed_write ? "write" : "read",
             io->failed_bytes, (unsigned long long)io->failed_offset_bytes);
    if (io->failed_write && io->options.write_way_out)
        return zr_nvme_file_fail_with(&io->file, doing, io->error, io->options.write_way_out);
    return zr_nvme_file_fail(&io->file, doing, io->error);
}

/* Time without progress in a wait. */
struct stall_watch {
    uint64_t quiet_ns, next_ns; /* time without progress so far; time of the next log line */
    uint64_t moved_bytes;
    bool logged;
};

/* The caller does not hold the lock, because the log callback may call any function. */
static void check_for_stall(const zr_nvme_io *io, struct stall_watch *stall_watch, uint64_t moved_bytes,
                            uint64_t left_bytes)
{
    uint64_t now_ns = zr_os_now_ns(), quiet_ns = now_ns - stall_watch->quiet_ns;
    if (moved_bytes != stall_watch->moved_bytes) {
        if (stall_watch->logged)
            zr_nvme_log(io, "the disk of '%s' responds again after %.1f s", io->file.folder,
                        (double)quiet_ns * 1e-9);
        *stall_watch = (struct stall_watch){now_ns, io->options.stall_ns, moved_bytes, false};
        return;
    }
    if (quiet_ns < stall_watch->next_ns)
        return;
    zr_nvme_log(
        io,
        "the disk of '%s' has transferred nothing for %.1f s, %llu bytes are outstanding; still waiting (see "
        "the kernel log)",
        io->file.folder, (double)quiet_ns * 1e-9, (unsigned long long)left_bytes);
    stall_watch->next_ns *= 4;
    stall_watch->logged = true;
}

/* The caller holds the lock; it is released while waiting. */
static void wait_for(zr_nvme_io *io, zr_nvme_event event)
{
    if (has_passed(io, event))
        return;
    uint64_t start_ns = zr_os_now_ns();
    struct stall_watch stall_watch = {start_ns, io->options.stall_ns, io->moved_bytes[0] + io->moved_bytes[1],
                                      false};
    while (!has_passed(io, event)) {
        uint32_t seen = atomic_load(&io->finished);
        pthread_mutex_unlock(&io->lock);
        zr_word_wait(&io->finished, seen,
                     io->options.stall_ns / 4 < look_ns ? io->options.stall_ns / 4 : look_ns);
        pthread_mutex_lock(&io->lock);
        uint64_t moved_bytes = io->moved_bytes[0] + io->moved_bytes[1], left_bytes = io->under_way_bytes;
        pthread_mutex_unlock(&io->lock);
        check_for_stall(io, &stall_watch, moved_bytes, left_bytes);
        pthread_mutex_lock(&io->lock);
    }
    bool behind = !pthread_equal(pthread_self(), io->opener);
    *(behind ? &io->waited_behind_ns : &io->waited_ns) += zr_os_now_ns() - start_ns;
}

static zr_result wait_until(zr_nvme_io *io, zr_nvme_event event, bool *out_passed)
{
    zr_result result;
    pthread_mutex_lock(&io->lock);
    if (event > io->last) {
        result = zr_fail(ZR_ERR_INVALID, "event %llu of the offload file is of no operation that was started",
                         (unsigned long long)event);
    } else {
        if (!out_passed)
            wait_for(io, event);
        else
            *out_passed = has_passed(io, event);
        const struct zr_nvme_operation *operation = operation_of(io, event);
        result = first_failure(io, operation->event != event || operation->write);
    }
    pthread_mutex_unlock(&io->lock);
    return result;
}

zr_result zr_nvme_wait(zr_nvme_io *io, zr_nvme_event event)
{
    return io ? wait_until(io, event, NULL) : zr_fail(ZR_ERR_INVALID, "zr_nvme_wait(): the file is NULL");
}

zr_result zr_nvme_poll(zr_nvme_io *io, zr_nvme_event event, bool *out_passed)
{
    return io && out_passed ? wait_until(io, event, out_passed)
                            : zr_fail(ZR_ERR_INVALID, "zr_nvme_poll(): the file or done is NULL");
}

static void wait_for_all(zr_nvme_io *io)
{
    for (zr_nvme_event event = io->oldest, last = io->last; event <= last; event++)
        wait_for(io, event);
}

zr_result zr_nvme_synchronize(zr_nvme_io *io)
{
    if (!io)
        return zr_fail(ZR_ERR_INVALID, "zr_nvme_synchronize() needs a file");
    pthread_mutex_lock(&io->lock);
    wait_for_all(io);
    zr_result result = first_failure(io, true);
    pthread_mutex_unlock(&io->lock);
    return result;
}

/* ---- Starts -------------------------------------------------------------------------------------------- */

static bool overlap(uint64_t a, uint64_t b, size_t a_bytes, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Whether event `after` implies `event`, directly or through the operations it waited for. */
static bool comes_after(zr_nvme_io *io, zr_nvme_event after, zr_nvme_event event)
{
    while (after > event && !has_passed(io, after))
        after = operation_of(io, after)->after;
    return after == event;
}

static zr_result check_order(zr_nvme_io *io, const struct zr_nvme_extent *extent, bool write)
{
    for (zr_nvme_event event = io->oldest; event <= io->last; event++) {
        const struct zr_nvme_operation *other = operation_of(io, event);
        bool of_file = (write || other->write) &&
                       overlap(extent->offset_bytes, other->offset_bytes, extent->bytes, other->bytes);
        bool of_memory =
            (!write || !other->write) &&
            overlap((uintptr_t)extent->memory, (uintptr_t)other->memory, extent->bytes, other->bytes);
        if (!other->done && (of_file || of_memory) && !comes_after(io, extent->after, event))
            return zr_fail(
                ZR_ERR_INVALID,
                "a %s of %zu bytes at %llu of the offload file would run beside event %llu, which uses "
                "the same %s: it must come after that",
                write ? "write" : "read", extent->bytes, (unsigned long long)extent->offset_bytes,
                (unsigned long long)event, of_file ? "bytes of the file" : "memory");
    }
    return ZR_OK;
}

static zr_result check_extent(const zr_nvme_io *io, const struct zr_nvme_extent *extent)
{
    size_t align_bytes = io->file.align_bytes;
    if ((extent->offset_bytes | extent->bytes | (uintptr_t)extent->memory) % align_bytes != 0 ||
        (!extent->memory && extent->bytes > 0))
        return zr_fail(ZR_ERR_INVALID,
                       "%zu bytes at %llu of the offload file, memory at %p: all must be multiples of %zu",
                       extent->bytes, (unsigned long long)extent->offset_bytes, extent->memory, align_bytes);
    if (extent->offset_bytes > io->options.file_bytes ||
        extent->bytes > io->options.file_bytes - extent->offset_bytes)
        return zr_fail(ZR_ERR_INVALID, "%zu bytes at %llu are outside of the offload file of %llu bytes",
                       extent->bytes, (unsigned long long)extent->offset_bytes,
                       (unsigned long long)io->options.file_bytes);
    if (extent->after > io->last)
        return zr_fail(ZR_ERR_INVALID, "event %llu of the offload file is of no operation that was started",
                       (unsigned long long)extent->after);
    return ZR_OK;
}

static zr_result start(zr_nvme_io *io, const struct zr_nvme_extent *extent, bool write, zr_nvme_event *out)
{
    if (!io || !extent || !out)
        return zr_fail(ZR_ERR_INVALID, "an operation requires a file, an extent and an event");
    pthread_mutex_lock(&io->lock);
    while (io->last - io->oldest + 1 >= ZR_NVME_OPERATIONS)
        wait_for(io, io->oldest);
    zr_result result = first_failure(io, write);
    if (result == ZR_OK)
        result = check_extent(io, extent);
    if (result == ZR_OK)
        result = check_order(io, extent, write);
    if (result == ZR_OK) {
        *out = ++io->last;
        *operation_of(io, *out) = (struct zr_nvme_operation){.event = *out,
                                                             .after = extent->after,
                                                             .write = write,
                                                             .memory = extent->memory,
                                                             .offset_bytes = extent->offset_bytes,
                                                             .bytes = extent->bytes};
        io->under_way_bytes += extent->bytes;
        end_done(io);
        pthread_cond_broadcast(&io->work);
    }
    pthread_mutex_unlock(&io->lock);
    return result;
}

zr_result zr_nvme_read(zr_nvme_io *io, const struct zr_nvme_extent *extent, zr_nvme_event *out)
{
    return start(io, extent, false, out);
}

zr_result zr_nvme_write(zr_nvme_io *io, const struct zr_nvme_extent *extent, zr_nvme_event *out)
{
    return start(io, extent, true, out);
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static zr_result check_options(const struct zr_nvme_options *options, size_t align_bytes)
{
    if (options->buffers_count > ZR_NVME_BUFFERS || options->depth > ZR_NVME_DEPTH_MAX)
        return zr_fail(ZR_ERR_INVALID, "an offload file has at most %d buffers and a depth of at most %d",
                       ZR_NVME_BUFFERS, ZR_NVME_DEPTH_MAX);
    if (options->file_bytes % align_bytes != 0 || options->piece_bytes % align_bytes != 0 ||
        options->piece_bytes > (size_t)1 << 30 || options->file_bytes > INT64_MAX)
        return zr_fail(
            ZR_ERR_INVALID,
            "an offload file of %llu bytes with requests of %zu bytes: both must be multiples of %zu",
            (unsigned long long)options->file_bytes, options->piece_bytes, align_bytes);
    for (unsigned i = 0; i < options->buffers_count; i++) {
        const struct zr_nvme_buffer *buffer = &options->buffers[i];
        if (!buffer->memory || ((uintptr_t)buffer->memory | buffer->bytes) % align_bytes != 0)
            return zr_fail(ZR_ERR_INVALID,
                           "buffer %u of the offload file, %zu bytes at %p, is not aligned to %zu", i,
                           buffer->bytes, buffer->memory, align_bytes);
    }
    return ZR_OK;
}

/* Starts the ring and its thread, or the threads of pread and pwrite. */
static zr_result start_threads(zr_nvme_io *io)
{
    int error = io->options.threads ? 0 : zr_nvme_ring_start(io);
    if (error != 0) {
        char text[64];
        zr_nvme_log(
            io,
            "io_uring is not available (%s: a seccomp filter or kernel.io_uring_disabled); the offload file in "
            "'%s' uses %d threads with pread and pwrite instead",
            strerror_r(error, text, sizeof text), io->file.folder, ZR_NVME_THREADS);
    }
    unsigned wanted_count = io->ring_used ? 1 : ZR_NVME_THREADS;
    for (; io->threads_count < wanted_count; io->threads_count++) {
        zr_result result =
            zr_thread_start(&io->threads[io->threads_count], io->options.host_arena, ZR_NVME_STACK_BYTES,
                            io->ring_used ? zr_nvme_ring_run : zr_nvme_thread_run, io);
        if (result != ZR_OK)
            return result;
    }
    return ZR_OK;
}

static void end_io(zr_nvme_io *io)
{
    zr_arena *arena = io->options.host_arena;
    pthread_mutex_lock(&io->lock);
    io->stopping = true;
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->lock);
    for (unsigned i = 0; i < io->threads_count; i++)
        zr_thread_join(&io->threads[i]);
    if (io->ring_used)
        zr_nvme_ring_end(io);
    pthread_cond_destroy(&io->work);
    pthread_mutex_destroy(&io->lock);
    close(io->file.fd);
    zr_arena_free(arena, io);
}

static zr_result make(zr_nvme_io **out, const struct zr_nvme_options *options,
                      const struct zr_nvme_file *file)
{
    void *block;
    zr_result result = zr_arena_alloc(
        options->host_arena, &(struct zr_request){.bytes = sizeof **out, .tag = ZR_TAG_OTHER}, &block);
    if (result != ZR_OK)
        return result;
    zr_nvme_io *io = memset(block, 0, sizeof *io);
    io->options = *options;
    io->file = *file;
    io->opener = pthread_self();
    io->oldest = 1;
    io->piece_bytes = options->piece_bytes;
    if (io->piece_bytes == 0)
        io->piece_bytes = PIECE_DEFAULT_BYTES;
    io->depth = options->depth;
    if (io->options.stall_ns == 0)
        io->options.stall_ns = stall_default_ns;
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->work, NULL);
    *out = io;
    return ZR_OK;
}

zr_result zr_nvme_open(zr_nvme_io **out, const struct zr_nvme_options *options)
{
    struct zr_nvme_file file;
    zr_nvme_io *io = NULL;
    if (!out || !options || !options->host_arena || options->file_bytes == 0 ||
        (options->buffers_count > 0 && !options->buffers))
        return zr_fail(ZR_ERR_INVALID, "zr_nvme_open(): options require an arena, bytes and buffers");
    *out = NULL;
    zr_result result = zr_nvme_file_create(&file, &options->folder,
                                           (struct zr_nvme_name){options->file_name, options->file_exists});
    if (result != ZR_OK)
        return result;
    result = check_options(options, file.align_bytes);
    if (result == ZR_OK)
        result = zr_nvme_file_reserve(&file, options->file_bytes);
    if (result == ZR_OK)
        result = make(&io, options, &file);
    if (result != ZR_OK) {
        close(file.fd);
        return result;
    }
    if (!file.direct)
        zr_nvme_log(io, "the file system of '%s' does not support O_DIRECT; transfers use the page cache",
                    file.folder);
    if (!file.reserved)
        zr_nvme_log(io,
                    "the file system of '%s' does not support fallocate; a step may run out of disk space",
                    file.folder);
    result = start_threads(io);
    if (result == ZR_OK)
        result = zr_nvme_measure(io);
    if (result != ZR_OK) {
        end_io(io);
        return result;
    }
    io->options.buffers = NULL; /* the list belongs to the caller */
    *out = io;
    return ZR_OK;
}

zr_result zr_nvme_close(zr_nvme_io *io)
{
    if (!io)
        return ZR_OK;
    zr_result result = zr_nvme_synchronize(io);
    zr_assert(io->under_way_bytes == 0);
    end_io(io);
    return result;
}

void zr_nvme_get_report(zr_nvme_io *io, struct zr_nvme_report *out)
{
    struct stat status;
    uint64_t file_bytes = fstat(io->file.fd, &status) == 0 ? (uint64_t)status.st_blocks * 512 : 0;
    pthread_mutex_lock(&io->lock);
    *out = (struct zr_nvme_report){
        .ring = io->ring_used,
        .registered = io->registered_count > 0,
        .direct = io->file.direct,
        .nameless = io->file.nameless,
        .reserved = io->file.reserved,
        .align_bytes = io->file.align_bytes,
        .piece_bytes = io->piece_bytes,
        .depth = io->depth,
        .bytes_per_second = io->bytes_per_second,
        .read_bytes = io->moved_bytes[0],
        .written_bytes = io->moved_bytes[1],
        .continued_count = io->continued_count,
        .file_bytes = file_bytes,
        .waited_ns = io->waited_ns,
        .waited_behind_ns = io->waited_behind_ns,
    };
    pthread_mutex_unlock(&io->lock);
}
