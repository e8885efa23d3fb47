/* trace.c: writes .zrt traces through a shared file mapping. Uses file.c, os.c and slab.c.
 *
 * A trace has two mappings: the header's page, and a window of 1 MiB that slides along the end of the file.
 * The file's blocks under the window are allocated first, because touching a mapping on a full disk raises
 * SIGBUS. */
#define _GNU_SOURCE
#include "alloc/telemetry/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/slab.h"
#include "alloc/core/arena.h"
#include "alloc/telemetry/report.h"
#include "alloc/telemetry/trace_put.h"

#define WINDOW_BYTES ((size_t)1 << 20)

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the header is written as it lies in memory, and the format is little-endian"
#endif

/* lock: the arena's. In a child after fork() all fields are 0, and every call does nothing. */
struct zr_trace {
    struct zrt_header *header;                               /* mapped; NULL in a forked child */
    unsigned char *window;                                   /* mapped; NULL once the trace has stopped */
    uint64_t window_start_bytes, position_bytes, file_bytes; /* offsets in the file */
    size_t page_bytes, max_bytes;
    _Atomic bool *running; /* NULL, or cleared when the trace stops early */
    uint64_t base_address, granule_bytes;
    /* the previous event's values, to which the next event is relative */
    uint64_t last_ns, last_offset_bytes, next_granule, stream;
    uint32_t thread, tag;
    uint32_t source_thread; /* 0: the calling thread and the current time */
    uint64_t source_ns;
    struct zr_trace_stacks *stacks; /* NULL: no stack was written */
    struct zr_file file;
    dev_t device; /* identify the file: see is_own_file() */
    ino_t number;
};

/* Static, because dynamic thread-local memory would call malloc. */
__thread uint32_t zr_trace_own_thread __attribute__((tls_model("initial-exec")));

uint32_t zr_trace_thread(void)
{
    static _Atomic uint32_t last;
    if (zr_trace_own_thread == 0)
        zr_trace_own_thread = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
    return zr_trace_own_thread;
}

void zr_trace_set_source(struct zr_trace *trace, uint32_t thread, uint64_t now_ns)
{
    trace->source_thread = thread;
    trace->source_ns = now_ns;
}

/* ---- The file ------------------------------------------------------------------------------------------ */

/* Whether the descriptor is still the trace's. A program may close it and open another file with its number.
 */
static bool is_own_file(const struct zr_trace *trace)
{
    struct stat status;
    return fstat(trace->file.fd, &status) == 0 && status.st_dev == trace->device &&
           status.st_ino == trace->number;
}

/* Moves the descriptor to a high number, which programs seldom use, if one is free. */
static void raise_descriptor(struct zr_trace *trace)
{
    enum { HIGH = 700 };
    struct stat status;
    int high = fcntl(trace->file.fd, F_DUPFD_CLOEXEC, HIGH);
    if (high >= 0) {
        close(trace->file.fd);
        trace->file.fd = high;
    }
    if (fstat(trace->file.fd, &status) == 0) {
        trace->device = status.st_dev;
        trace->number = status.st_ino;
    }
}

/* Allocates the blocks of the file up to `bytes`, zeroed. Returns an error number. */
static int extend(struct zr_trace *trace, uint64_t bytes)
{
    static const char zeros[4096];
    struct rlimit limit;
    if (bytes <= trace->file_bytes)
        return 0;
    if (zr_fault(ZR_FAULT_WRITE))
        return ENOSPC;
    if (!is_own_file(trace))
        return EBADF;
    if (trace->max_bytes && bytes > trace->max_bytes)
        return EFBIG;
    /* Growing beyond this limit raises SIGXFSZ, which ends most programs. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur)
        return EFBIG;
    while (zr_fault_interrupts(ZR_FAULT_WRITE) ||
           fallocate(trace->file.fd, 0, (off_t)trace->file_bytes, (off_t)(bytes - trace->file_bytes)) != 0) {
        if (errno == EINTR)
            continue;
        if (errno != EOPNOTSUPP && errno != ENOSYS)
            return errno;
        for (uint64_t at = trace->file_bytes; at < bytes;) {
            size_t part = bytes - at < sizeof zeros ? (size_t)(bytes - at) : sizeof zeros;
            if (!zr_write_all(trace->file.fd, (int64_t)at, zeros, part))
                return errno;
            at += part;
        }
        break;
    }
    trace->file_bytes = bytes;
    return 0;
}

static void *map_file(const struct zr_trace *trace, uint64_t offset, size_t bytes)
{
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, trace->file.fd, (off_t)offset);
    if (mapped == MAP_FAILED)
        return NULL;
    madvise(mapped, bytes, MADV_DONTFORK); /* a child must not write to the parent's trace */
    return mapped;
}

static void close_window(struct zr_trace *trace)
{
    if (trace->window)
        munmap(trace->window, WINDOW_BYTES);
    trace->window = NULL;
}

/* Moves the window to the position. On failure the trace stops, and its header has the error. */
static bool slide(struct zr_trace *trace)
{
    uint64_t start = trace->position_bytes & ~(uint64_t)(trace->page_bytes - 1);
    int error = extend(trace, start + WINDOW_BYTES);
    close_window(trace);
    if (error == 0) {
        trace->window = map_file(trace, start, WINDOW_BYTES);
        if (!trace->window)
            error = errno;
    }
    if (error != 0) {
        trace->header->error = (uint32_t)error;
        trace->header->state = ZRT_NO_SPACE;
        if (trace->running)
            atomic_store(trace->running, false);
        return false;
    }
    trace->window_start_bytes = start;
    return true;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

/* An event that is being written into the window. */
struct event {
    unsigned char *first, *next;
};

static void put_varint(struct event *event, uint64_t value)
{
    event->next = zrt_put_varint(event->next, value);
}

/* Begins an event with kind and time, and with thread, stream and tag if they changed. False: the trace has
 * stopped. */
static bool event_start(struct zr_trace *trace, struct event *event, unsigned kind, uint64_t stream,
                        uint32_t tag)
{
    if (!trace->window)
        return false;
    if (trace->position_bytes + ZRT_EVENT_BYTES > trace->window_start_bytes + WINDOW_BYTES && !slide(trace))
        return false;
    event->first = event->next = trace->window + (trace->position_bytes - trace->window_start_bytes);

    uint32_t thread = trace->source_thread ? trace->source_thread : zr_trace_thread();
    uint64_t now_ns = trace->source_thread ? trace->source_ns : zr_os_now_ns();
    uint64_t later_ns = now_ns > trace->last_ns ? now_ns - trace->last_ns : 0;
    trace->last_ns += later_ns;
    *event->next++ = (unsigned char)(kind | (thread != trace->thread ? ZRT_HAS_THREAD : 0) |
                                     (stream != trace->stream ? ZRT_HAS_STREAM : 0) |
                                     (tag != trace->tag ? ZRT_HAS_TAG : 0));
    put_varint(event, later_ns);
    if (thread != trace->thread)
        put_varint(event, trace->thread = thread);
    if (stream != trace->stream)
        put_varint(event, trace->stream = stream);
    if (tag != trace->tag)
        *event->next++ = (unsigned char)(trace->tag = tag);
    return true;
}

static void event_end(struct zr_trace *trace, const struct event *event)
{
    trace->position_bytes += (uint64_t)(event->next - event->first);
    /* Stores the length after the bytes, for readers of a running or crashed trace. */
    __atomic_store_n(&trace->header->written_bytes, trace->position_bytes - sizeof(struct zrt_header),
                     __ATOMIC_RELEASE);
}

static void put_address(struct zr_trace *trace, struct event *event, const void *address)
{
    uint64_t offset = (uint64_t)(uintptr_t)address - trace->base_address;
    uint64_t unit = ZRT_UNIT_BYTES;
    if ((offset | trace->last_offset_bytes) % ZRT_UNIT_BYTES != 0) {
        *event->first |= ZRT_IN_BYTES;
        unit = 1;
    }
    put_varint(event, zrt_zigzag(offset / unit, trace->last_offset_bytes / unit));
    trace->last_offset_bytes = offset;
}

void zr_trace_write_alloc(struct zr_trace *trace, const struct zr_block_info *block, uint32_t stack)
{
    struct event event;
    uint64_t default_bytes = (block->bytes + ZRT_UNIT_BYTES - 1) & ~(uint64_t)(ZRT_UNIT_BYTES - 1);
    if (stack && trace->window)
        zr_trace_stacks_write(&trace->stacks, trace, stack);
    if (!event_start(trace, &event, ZRT_ALLOC, block->stream, block->tag))
        return;
    put_address(trace, &event, block->address);
    put_varint(&event, block->bytes);
    if (block->reserved_bytes != default_bytes) {
        *event.first |= ZRT_HAS_RESERVED;
        put_varint(&event, block->reserved_bytes);
    }
    event_end(trace, &event);
}

void zr_trace_write_sample(struct zr_trace *trace, const struct zr_block_info *block, uint32_t stack,
                           uint64_t mean_bytes)
{
    unsigned char data[10];
    zr_trace_write_extension(trace, ZRT_SAMPLE, data, (size_t)(zrt_put_varint(data, mean_bytes) - data));
    zr_trace_write_alloc(trace, block, stack);
}

void zr_trace_write_free(struct zr_trace *trace, const struct zr_block_info *block)
{
    struct event event;
    if (!event_start(trace, &event, ZRT_FREE, block->stream, block->tag))
        return;
    put_address(trace, &event, block->address);
    event_end(trace, &event);
}

static void write_granules(struct zr_trace *trace, unsigned kind, const void *first, size_t bytes)
{
    struct event event;
    if (!trace->window)
        return; /* granule_bytes is 0 in a child */
    uint64_t number = ((uint64_t)(uintptr_t)first - trace->base_address) / trace->granule_bytes;
    uint64_t count = bytes / trace->granule_bytes;
    if (!event_start(trace, &event, kind, trace->stream, trace->tag))
        return;
    put_varint(&event, zrt_zigzag(number, trace->next_granule));
    put_varint(&event, count);
    trace->next_granule = number + count;
    event_end(trace, &event);
}

void zr_trace_write_map(struct zr_trace *trace, const void *first, size_t bytes)
{
    write_granules(trace, ZRT_MAP, first, bytes);
}

void zr_trace_write_unmap(struct zr_trace *trace, const void *first, size_t bytes)
{
    write_granules(trace, ZRT_UNMAP, first, bytes);
}

void zr_trace_write_mark(struct zr_trace *trace, const char *label)
{
    struct event event;
    size_t length = strnlen(label, ZRT_LABEL_BYTES);
    if (!event_start(trace, &event, ZRT_MARK, trace->stream, trace->tag))
        return;
    put_varint(&event, length);
    memcpy(event.next, label, length);
    event.next += length;
    event_end(trace, &event);
}

void zr_trace_write_refused(struct zr_trace *trace, const struct zr_request *request,
                            const struct zr_refusal *refusal, uint32_t stack)
{
    struct event event;
    if (stack && trace->window)
        zr_trace_stacks_write(&trace->stacks, trace, stack);
    if (!event_start(trace, &event, ZRT_REFUSED, request->stream, request->tag))
        return;
    put_varint(&event, request->bytes);
    if (refusal && refusal->cause != ZRT_CAUSE_UNKNOWN) {
        const uint64_t figures[] = {refusal->need_bytes,     refusal->free_bytes,    refusal->largest_bytes,
                                    refusal->cached_bytes,   refusal->pending_bytes, refusal->unmovable_bytes,
                                    refusal->reserved_bytes, refusal->limit_bytes,   refusal->device_bytes};
        *event.first |= ZRT_HAS_CAUSE;
        *event.next++ = (unsigned char)refusal->cause;
        for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
            put_varint(&event, figures[i]);
        const uint64_t more[] = {refusal->device_free_bytes, refusal->process_bytes, refusal->whole_bytes,
                                 refusal->pool_idle_bytes};
        *event.first |= ZRT_HAS_MORE;
        put_varint(&event, sizeof more / sizeof *more);
        for (size_t i = 0; i < sizeof more / sizeof *more; i++)
            put_varint(&event, more[i]);
    }
    event_end(trace, &event);
}

void zr_trace_write_extension(struct zr_trace *trace, enum zrt_extension kind, const void *data, size_t bytes)
{
    struct event event;
    if (bytes > ZRT_EXTENSION_BYTES || !event_start(trace, &event, ZRT_EXTENSION, trace->stream, trace->tag))
        return;
    *event.next++ = (unsigned char)kind;
    put_varint(&event, bytes);
    memcpy(event.next, data, bytes);
    event.next += bytes;
    event_end(trace, &event);
}

void zr_trace_write_begin(struct zr_trace *trace)
{
    struct event event;
    if (event_start(trace, &event, ZRT_BEGIN, trace->stream, trace->tag))
        event_end(trace, &event);
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static void fill_header(struct zr_trace *trace, const struct zr_trace_origin *origin)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint64_t now_ns = zr_os_now_ns(), start_ns = origin->start_ns;
    trace->last_ns = start_ns && start_ns < now_ns ? start_ns : now_ns;
    *trace->header = (struct zrt_header){
        .header_bytes = sizeof(struct zrt_header),
        .version = ZRT_VERSION,
        .granule_bytes = origin->granule_bytes,
        .base_address = (uintptr_t)origin->base,
        .reserve_bytes = origin->reserve_bytes,
        .clock_start_ns = trace->last_ns,
        .wall_start_ns =
            (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec - (now_ns - trace->last_ns),
        .process = (uint32_t)getpid(),
    };
    size_t length = strnlen(origin->name, sizeof trace->header->arena - 1);
    memcpy(trace->header->arena, origin->name, length);
    memcpy(trace->header->magic, ZRT_MAGIC, sizeof trace->header->magic);
}

/* Allocates the writer from the system, in memory that the kernel wipes in a child. */
static struct zr_trace *make_writer(size_t page_bytes)
{
    _Static_assert(sizeof(struct zr_trace) <= 4096, "one page holds the writer");
    void *page = zr_pages_take(page_bytes);
    if (page)
        madvise(page, page_bytes, MADV_WIPEONFORK);
    return page;
}

/* Whether the path is another process's descriptor of an unlinked file, "/proc/PID/fd/N": `zr why PID` reads
 * such a file, so that no file is left behind if `zr` is killed. */
static bool is_nameless(const char *path)
{
    struct stat status;
    return strncmp(path, "/proc/", 6) == 0 && stat(path, &status) == 0 && S_ISREG(status.st_mode) &&
           status.st_nlink == 0;
}

/* Creates a new file even if the name exists. Truncating the old file would break processes that have mapped
 * it. */
static zr_result create_new_file(struct zr_file *file, const char *path)
{
    enum zr_path_kind kind = ZR_PATH_NONE;
    bool replaceable = true;
    zr_result result = path ? zr_path_kind_get(path, &kind) : ZR_OK;
    file->fd = -1;
    if (path && result == ZR_OK)
        result = zr_path_replaceable(path, &replaceable);
    if (result == ZR_OK && !replaceable && is_nameless(path))
        return zr_file_create(file, path, ZR_CREATE_REPLACE);
    if (result == ZR_OK && !replaceable && kind != ZR_PATH_FOLDER)
        return zr_fail(ZR_ERR_IO, "cannot write a trace to '%s': not a regular file; give another name",
                       path);
    if (result == ZR_OK && kind == ZR_PATH_FILE)
        result = zr_path_unlink(path);
    /* ZR_CREATE_NEW fails if another process creates the name meanwhile, for example as a symbolic link. */
    enum zr_create_mode mode = path && kind != ZR_PATH_FOLDER ? ZR_CREATE_NEW : ZR_CREATE_REPLACE;
    return result == ZR_OK ? zr_file_create(file, path, mode) : result;
}

zr_result zr_trace_open(struct zr_trace **out, const char *path, const struct zr_trace_origin *origin)
{
    char error_text[64];
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    struct zr_trace *trace = make_writer(page_bytes);
    zr_result result;
    int error;

    *out = NULL;
    if (!trace)
        return ZR_ERR_HOST_MEMORY;
    trace->page_bytes = page_bytes;
    trace->max_bytes = origin->max_bytes;
    trace->running = origin->running;
    trace->base_address = (uintptr_t)origin->base;
    trace->granule_bytes = origin->granule_bytes;
    result =
        origin->own ? zr_file_create(&trace->file, path, ZR_CREATE_OWN) : create_new_file(&trace->file, path);
    if (result != ZR_OK)
        goto unwind;
    raise_descriptor(trace);
    error = extend(trace, WINDOW_BYTES);
    if (error == 0) {
        trace->header = map_file(trace, 0, page_bytes);
        trace->window = map_file(trace, 0, WINDOW_BYTES);
        error = trace->header && trace->window ? 0 : errno;
    }
    if (error != 0) {
        result = zr_fail(ZR_ERR_IO, "cannot start the trace '%s': %s (choose a folder with more space)",
                         trace->file.name, strerror_r(error, error_text, sizeof error_text));
        if (trace->file.regular && !is_nameless(path)) /* never a device */
            zr_path_unlink(path);
        goto unwind;
    }
    fill_header(trace, origin);
    trace->position_bytes = sizeof(struct zrt_header);
    *out = trace;
    return ZR_OK;
unwind:
    close_window(trace);
    if (trace->header)
        munmap(trace->header, page_bytes);
    zr_file_close(&trace->file);
    zr_pages_give(trace, page_bytes);
    return result;
}

zr_result zr_trace_close(struct zr_trace *trace)
{
    char error_text[64];
    zr_result result = ZR_OK;
    if (trace->header) { /* not in a forked child */
        zr_trace_stacks_end(trace->stacks);
        if (trace->header->state == ZRT_NO_SPACE)
            result = zr_fail(ZR_ERR_IO,
                             "the trace '%s' stopped after %llu bytes: %s (free disk space, or trace less)",
                             trace->file.name, (unsigned long long)trace->position_bytes,
                             strerror_r((int)trace->header->error, error_text, sizeof error_text));
        else
            trace->header->state = ZRT_STOPPED;
        close_window(trace);
        munmap(trace->header, trace->page_bytes);
        if (!is_own_file(trace)) {
            zr_pages_give(trace, (size_t)sysconf(_SC_PAGESIZE));
            return result;
        }
        if (ftruncate(trace->file.fd, (off_t)trace->position_bytes) != 0 && result == ZR_OK)
            result = zr_fail(ZR_ERR_IO, "cannot truncate the trace '%s' to its length", trace->file.name);
        zr_result closed = zr_file_close(&trace->file);
        result = result == ZR_OK ? closed : result;
    }
    zr_pages_give(trace, (size_t)sysconf(_SC_PAGESIZE));
    return result;
}
