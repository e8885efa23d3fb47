/* backend_host.c: this machine's memory as granules of a memfd. Stands behind backend.c.
 *
 * Creating a handle commits its memory through a small window of addresses, so that a shortage is an error
 * value here and not a SIGBUS at the first touch. Where the kernel grants it each 2 MiB become one huge page
 * (MADV_COLLAPSE), and moving a granule is then a matter of microseconds. File offsets are never used twice:
 * the file is sparse, and what a destroyed handle held is punched out of it.
 *
 * After fork() the child shares the granules there are. What it creates itself goes to a file of its own, and
 * it never punches holes into its parent's. */
#define _GNU_SOURCE
#include "alloc/backend/backend.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/struct_bytes.h"
#include "alloc/base/fork.h"
#include "alloc/base/option.h"
#include "alloc/base/os.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define HUGE_BYTES   ((size_t)2 << 20)
#define WINDOW_BYTES ((size_t)16 << 20)
/* Collapses that may fail in a row before they are given up for good. */
#define COLLAPSE_PATIENCE 4
/* What is left to the rest of the machine, and how often the machine is asked how much there is. */
#define HEADROOM_MARGIN_BYTES   ((uint64_t)8 << 20)
#define HEADROOM_INTERVAL_BYTES ((uint64_t)64 << 20)

struct host_file {
    struct host_file *next;
    int fd;
    pid_t owner;  /* the process that creates in it; 0: imported */
    dev_t device; /* identity, for imports of one file in several pieces */
    ino_t inode;
    uint64_t next_offset; /* of the next handle */
    size_t handles_count; /* imported: closed when none is left */
};

struct host_backend {
    zr_backend front; /* first */
    size_t page_bytes;
    /* Everything below: lock front.create_lock. */
    struct host_file *files;
    struct zr_slab file_records;
    char *window; /* WINDOW_BYTES, aligned to huge pages, without access between uses */
    bool huge;    /* collapse still worth a try */
    unsigned collapse_failures;
    uint64_t headroom_bytes; /* that may be created before the machine is asked again */
};

static struct host_backend *host_of(zr_backend *backend)
{
    return (struct host_backend *)backend;
}

/* ---- Addresses ----------------------------------------------------------------------------------------- */

/* Addresses this process may still map; UINT64_MAX where nothing limits them. */
static uint64_t addresses_left(void)
{
    struct rlimit limit;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    char text[64] = "";
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, text, sizeof text - 1);
        close(fd);
        if (got > 0)
            sscanf(text, "%llu", &pages);
    }
    uint64_t used_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used_bytes ? limit.rlim_cur - used_bytes : 0;
}

static zr_result addresses_error(size_t bytes, int error)
{
    uint64_t left = addresses_left();
    if (left != UINT64_MAX)
        return zr_fail(
            ZR_ERR_ADDRESSES,
            "the system refused %zu bytes of addresses: `ulimit -v` leaves this process %llu; type "
            "`ulimit -v unlimited`, or ask for a smaller limit",
            bytes, (unsigned long long)left);
    return zr_fail(ZR_ERR_ADDRESSES,
                   "the system refused %zu bytes of addresses (error %d): see vm.max_map_count and "
                   "vm.overcommit_memory",
                   bytes, error);
}

/* `bytes` of addresses without access, aligned to `alignment`; NULL with errno. */
static char *reserve_aligned(size_t bytes, size_t alignment)
{
    size_t all;
    if (__builtin_add_overflow(bytes, alignment, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    char *raw = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    char *aligned = (char *)(((uintptr_t)raw + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (aligned > raw)
        munmap(raw, (size_t)(aligned - raw));
    if (raw + all > aligned + bytes)
        munmap(aligned + bytes, (size_t)(raw + all - (aligned + bytes)));
    return aligned;
}

static zr_result host_reserve(zr_backend *backend, size_t bytes, char **out)
{
    size_t granule_bytes = backend->can.granule_bytes;
    *out = reserve_aligned(bytes, granule_bytes > HUGE_BYTES ? granule_bytes : HUGE_BYTES);
    return *out ? ZR_OK : addresses_error(bytes, errno);
}

static void host_release(zr_backend *backend, char *address, size_t bytes)
{
    (void)backend;
    munmap(address, bytes);
}

/* Half of what `ulimit -v` leaves, for there will be other arenas and libraries; else plenty. */
static size_t host_reserve_hint(zr_backend *backend, size_t limit_bytes)
{
    struct zr_machine machine = {0};
    size_t granule_bytes = backend->can.granule_bytes;
    uint64_t left = addresses_left();
    zr_os_machine_under("", &machine);
    uint64_t most = limit_bytes ? limit_bytes : machine.memory_bytes;
    if (most == 0 || most > (uint64_t)1 << 43)
        most = (uint64_t)1 << 43;
    uint64_t bytes = most * 8;
    if (bytes < (uint64_t)64 << 20)
        bytes = (uint64_t)64 << 20;
    if (bytes > left / 2)
        bytes = left / 2;
    bytes = (bytes + granule_bytes - 1) & ~((uint64_t)granule_bytes - 1);
    return (size_t)bytes;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

/* The file that this process creates in; a child after fork() starts one of its own. */
static zr_result own_file(struct host_backend *host, struct host_file **out)
{
    pid_t self = getpid();
    for (struct host_file *file = host->files; file; file = file->next)
        if (file->owner == self) {
            *out = file;
            return ZR_OK;
        }
    if (!zr_slab_reserve(&host->file_records, 1))
        return ZR_ERR_HOST_MEMORY;
    int fd = memfd_create("zr", MFD_CLOEXEC);
    if (fd < 0)
        return zr_fail(
            errno == EMFILE || errno == ENFILE ? ZR_ERR_HOST_MEMORY : ZR_ERR_UNAVAILABLE,
            "this system gives no memfd (error %d): Linux 3.17 or later is needed, and a free file "
            "descriptor (`ulimit -n`)",
            errno);
    struct host_file *file = zr_slab_take(&host->file_records);
    *file = (struct host_file){.next = host->files, .fd = fd, .owner = self};
    host->files = file;
    *out = file;
    return ZR_OK;
}

static void close_file(struct host_backend *host, struct host_file *file)
{
    struct host_file **link = &host->files;
    while (*link != file)
        link = &(*link)->next;
    *link = file->next;
    close(file->fd);
    zr_slab_give(&host->file_records, file);
}

/* ---- Physical memory ----------------------------------------------------------------------------------- */

/* Asks the machine now and then whether `bytes` more can be had: once they cannot, the kernel's answer would
 * not be an error but the end of some process. */
static zr_result check_headroom(struct host_backend *host, size_t bytes)
{
    struct zr_machine machine = {0};
    uint64_t left = UINT64_MAX;
    const char *who = "the machine";
    const char *way_out = "free memory or use a smaller model, batch or more ranks on other machines";
    if (host->headroom_bytes >= bytes) {
        host->headroom_bytes -= bytes;
        return ZR_OK;
    }
    zr_os_machine_under("", &machine);
    if (machine.memory_bytes)
        left = machine.memory_available_bytes;
    if (machine.cgroup_limit_bytes) {
        uint64_t group_left = machine.cgroup_limit_bytes > machine.cgroup_used_bytes
                                  ? machine.cgroup_limit_bytes - machine.cgroup_used_bytes
                                  : 0;
        if (group_left < left) {
            left = group_left;
            who = "this control group's memory.max";
            way_out = "raise memory.max, or use a smaller model or batch";
        }
    }
    if (left < bytes + HEADROOM_MARGIN_BYTES)
        return zr_fail(ZR_ERR_MEMORY, "%s leaves %llu bytes, and %zu are needed: %s", who,
                       (unsigned long long)left, bytes, way_out);
    uint64_t free_of_asking = (left - bytes - HEADROOM_MARGIN_BYTES) / 8;
    host->headroom_bytes =
        free_of_asking < HEADROOM_INTERVAL_BYTES ? free_of_asking : HEADROOM_INTERVAL_BYTES;
    return ZR_OK;
}

/* Makes the 2 MiB at `address` one huge page; false if the kernel would not. The page table must exist first,
 * which one touched page sees to. */
static bool collapse(struct host_backend *host, char *address)
{
    if (madvise(address, host->page_bytes, MADV_POPULATE_WRITE) != 0)
        return false;
    if (madvise(address, HUGE_BYTES, MADV_COLLAPSE) == 0) {
        host->collapse_failures = 0;
        return true;
    }
    if (++host->collapse_failures >= COLLAPSE_PATIENCE)
        host->huge = false;
    return false;
}

/* Commits the part of the file that lies in the window now. Returns 0 or an error number. */
static int populate(struct host_backend *host, const struct host_file *file, struct zr_bounds piece)
{
    for (size_t done = 0; done < piece.bytes;) {
        size_t step = piece.bytes - done;
        if (host->huge && step >= HUGE_BYTES && collapse(host, host->window + done)) {
            done += HUGE_BYTES;
            continue;
        }
        if (host->huge && step > HUGE_BYTES)
            step = HUGE_BYTES;
        if (madvise(host->window + done, step, MADV_POPULATE_WRITE) != 0) {
            if (errno != EINVAL)
                return errno;
            /* A kernel before 5.14: the file system commits pages too. */
            if (fallocate(file->fd, 0, (off_t)(piece.offset_bytes + done), (off_t)step) != 0)
                return errno;
        }
        done += step;
    }
    return 0;
}

static int commit_piece(struct host_backend *host, const struct host_file *file, struct zr_bounds piece)
{
    if (mmap(host->window, piece.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file->fd,
             (off_t)piece.offset_bytes) != host->window)
        return errno;
    int error = populate(host, file, piece);
    if (mmap(host->window, piece.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0) != host->window &&
        error == 0)
        error = errno;
    return error;
}

/* Lengthens the file. The limit of `ulimit -f` would be a signal, so it is looked at first. */
static zr_result lengthen(const struct host_file *file, uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
        return zr_fail(ZR_ERR_MEMORY,
                       "`ulimit -f` allows files of %llu bytes, and the memory file needs %llu; type "
                       "`ulimit -f unlimited`",
                       (unsigned long long)limit.rlim_cur, (unsigned long long)bytes);
    if (ftruncate(file->fd, (off_t)bytes) != 0)
        return zr_fail(ZR_ERR_MEMORY, "the memory file cannot grow to %llu bytes (error %d)",
                       (unsigned long long)bytes, errno);
    return ZR_OK;
}

static void punch(const struct host_file *file, struct zr_bounds part)
{
    fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)part.offset_bytes,
              (off_t)part.bytes);
}

static zr_result commit(struct host_backend *host, const struct host_file *file, struct zr_bounds whole)
{
    for (size_t done = 0; done < whole.bytes;) {
        struct zr_bounds piece = {whole.offset_bytes + done, whole.bytes - done};
        if (piece.bytes > WINDOW_BYTES)
            piece.bytes = WINDOW_BYTES;
        int error = commit_piece(host, file, piece);
        if (error != 0) {
            punch(file, whole);
            return zr_fail(ZR_ERR_MEMORY,
                           "the system has no %zu bytes of memory left (error %d): a cgroup's memory.max, "
                           "vm.overcommit_memory = 2 or the machine itself is at its end",
                           whole.bytes, error);
        }
        done += piece.bytes;
    }
    return ZR_OK;
}

static zr_result host_create(zr_backend *backend, struct zr_handle *handle)
{
    struct host_backend *host = host_of(backend);
    struct host_file *file = NULL;
    pthread_mutex_lock(&backend->create_lock);
    zr_result result = own_file(host, &file);
    if (result == ZR_OK)
        result = check_headroom(host, handle->bytes);
    if (result == ZR_OK)
        result = lengthen(file, file->next_offset + handle->bytes);
    if (result == ZR_OK)
        result = commit(host, file, (struct zr_bounds){(size_t)file->next_offset, handle->bytes});
    if (result == ZR_OK) {
        handle->object = (uintptr_t)file;
        handle->offset_bytes = file->next_offset;
        file->next_offset += handle->bytes;
        file->handles_count++;
    }
    pthread_mutex_unlock(&backend->create_lock);
    return result;
}

static void host_destroy(zr_backend *backend, struct zr_handle *handle)
{
    struct host_backend *host = host_of(backend);
    struct host_file *file = (struct host_file *)handle->object;
    pthread_mutex_lock(&backend->create_lock);
    file->handles_count--;
    if (file->owner == 0 && file->handles_count == 0)
        close_file(host, file);
    else if (file->owner == getpid())
        punch(file, (struct zr_bounds){(size_t)handle->offset_bytes, handle->bytes});
    pthread_mutex_unlock(&backend->create_lock);
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

static zr_result host_map(zr_backend *backend, char *address, const struct zr_handle *handle)
{
    const struct host_file *file = (const struct host_file *)handle->object;
    (void)backend;
    if (mmap(address, handle->bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file->fd,
             (off_t)handle->offset_bytes) != address)
        return addresses_error(handle->bytes, errno);
    return ZR_OK;
}

static zr_result host_unmap(zr_backend *backend, char *address, size_t bytes)
{
    (void)backend;
    if (mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
        address)
        return addresses_error(bytes, errno);
    return ZR_OK;
}

static zr_result host_set_access(zr_backend *backend, char *address, size_t bytes)
{
    (void)backend;
    if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0)
        return addresses_error(bytes, errno);
    return ZR_OK;
}

/* ---- Copies and events: everything is complete when it returns ----------------------------------------- */

static zr_result host_copy(zr_backend *backend, const struct zr_copy *copy)
{
    (void)backend;
    memmove(copy->to, copy->from, copy->bytes);
    return ZR_OK;
}

static zr_result host_fill(zr_backend *backend, const struct zr_fill *fill)
{
    (void)backend;
    memset(fill->to, fill->value, fill->bytes);
    return ZR_OK;
}

static zr_result host_event_record(zr_backend *backend, uint64_t stream, struct zr_stream_point *out)
{
    (void)backend, (void)stream, (void)out;
    return ZR_OK;
}

static bool host_event_done(zr_backend *backend, const struct zr_stream_point *event)
{
    (void)backend, (void)event;
    return true;
}

static zr_result host_event_wait(zr_backend *backend, const struct zr_stream_point *event)
{
    (void)backend, (void)event;
    return ZR_OK;
}

static zr_result host_synchronize(zr_backend *backend)
{
    (void)backend;
    return ZR_OK;
}

static zr_result host_memory_info(zr_backend *backend, struct zr_backend_memory *out)
{
    struct zr_machine machine = {0};
    (void)backend;
    zr_os_machine_under("", &machine);
    out->total_bytes = machine.memory_bytes ? machine.memory_bytes : SIZE_MAX;
    out->free_bytes = machine.memory_bytes ? machine.memory_available_bytes : SIZE_MAX;
    if (machine.cgroup_limit_bytes && machine.cgroup_limit_bytes < out->total_bytes) {
        uint64_t left = machine.cgroup_limit_bytes > machine.cgroup_used_bytes
                            ? machine.cgroup_limit_bytes - machine.cgroup_used_bytes
                            : 0;
        out->total_bytes = machine.cgroup_limit_bytes;
        out->free_bytes = left < out->free_bytes ? left : out->free_bytes;
    }
    return ZR_OK;
}

/* ---- Other processes ----------------------------------------------------------------------------------- */

static zr_result host_export(zr_backend *backend, const struct zr_handle *handle, struct zr_segment *out)
{
    const struct host_file *file = (const struct host_file *)handle->object;
    (void)backend;
    *out = (struct zr_segment){.fd = file->fd, .offset_bytes = handle->offset_bytes, .bytes = handle->bytes};
    return ZR_OK;
}

/* The file behind `fd`, which may have been imported in another piece already. */
static zr_result foreign_file(struct host_backend *host, int fd, const struct stat *status,
                              struct host_file **out)
{
    for (struct host_file *file = host->files; file; file = file->next)
        if (file->owner == 0 && file->device == status->st_dev && file->inode == status->st_ino) {
            *out = file;
            return ZR_OK;
        }
    if (!zr_slab_reserve(&host->file_records, 1))
        return ZR_ERR_HOST_MEMORY;
    int own_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own_fd < 0)
        return zr_fail(ZR_ERR_HOST_MEMORY, "no file descriptor is left for an import: raise `ulimit -n`");
    struct host_file *file = zr_slab_take(&host->file_records);
    *file = (struct host_file){
        .next = host->files, .fd = own_fd, .device = status->st_dev, .inode = status->st_ino};
    host->files = file;
    *out = file;
    return ZR_OK;
}

static zr_result host_import(zr_backend *backend, const struct zr_segment *segment, struct zr_handle *out)
{
    struct host_backend *host = host_of(backend);
    struct host_file *file = NULL;
    struct stat status;
    if (fstat(segment->fd, &status) != 0)
        return zr_fail(ZR_ERR_INVALID, "descriptor %d cannot be imported (error %d)", segment->fd, errno);
    if ((fcntl(segment->fd, F_GETFL) & O_ACCMODE) != O_RDWR)
        return zr_fail(ZR_ERR_INVALID,
                       "descriptor %d is not open for reading and writing, as an import must be",
                       segment->fd);
    if (!S_ISREG(status.st_mode) || segment->offset_bytes > (uint64_t)status.st_size ||
        segment->bytes > (uint64_t)status.st_size - segment->offset_bytes)
        return zr_fail(
            ZR_ERR_INVALID,
            "descriptor %d has no %zu bytes of memory at %llu: is it a segment from zr_block_export()?",
            segment->fd, segment->bytes, (unsigned long long)segment->offset_bytes);
    pthread_mutex_lock(&backend->create_lock);
    zr_result result = foreign_file(host, segment->fd, &status, &file);
    if (result == ZR_OK) {
        file->handles_count++;
        out->object = (uintptr_t)file;
        out->offset_bytes = segment->offset_bytes;
    }
    pthread_mutex_unlock(&backend->create_lock);
    return result;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static void host_end(zr_backend *backend)
{
    struct host_backend *host = host_of(backend);
    while (host->files)
        close_file(host, host->files);
    zr_slab_end(&host->file_records);
    if (host->window)
        munmap(host->window, WINDOW_BYTES);
    zr_backend_end(backend);
    zr_pages_give(host, sizeof *host);
}

static const struct zr_backend_ops host_ops = {
    .version = ZR_BACKEND_VERSION,
    .name = "host",
    .end = host_end,
    .reserve = host_reserve,
    .release = host_release,
    .create = host_create,
    .destroy = host_destroy,
    .map = host_map,
    .unmap = host_unmap,
    .set_access = host_set_access,
    .copy = host_copy,
    .fill = host_fill,
    .event_record = host_event_record,
    .event_done = host_event_done,
    .event_wait = host_event_wait,
    .synchronize = host_synchronize,
    .memory_info = host_memory_info,
    .export_fd = host_export,
    .import_fd = host_import,
    .reserve_hint = host_reserve_hint,
};

/* A map and the gap beside it are a VMA each, and the rest of the process needs some. */
static size_t vma_budget(void)
{
    unsigned long long most = 65530;
    char text[32] = "";
    uint64_t asked = zr_option_get(ZR_OPTION_VMA_BUDGET);
    if (asked)
        return (size_t)asked;
    int fd = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, text, sizeof text - 1);
        close(fd);
        if (got > 0)
            sscanf(text, "%llu", &most);
    }
    return most > 8192 ? (size_t)(most - 4096) / 2 : 2048;
}

zr_result zr_backend_host_create(zr_backend **out, const struct zr_host_options *options)
{
    struct zr_host_options own;
    struct host_backend *host = NULL;
    struct host_file *file = NULL;
    size_t granule_bytes;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a backend needs somewhere to go");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_host_options, small_pages, &own, options);
    options = &own;
    if (result == ZR_OK)
        result = zr_backend_granule(options->granule_bytes, &granule_bytes);
    if (result != ZR_OK)
        return result;
    host = zr_pages_take(sizeof *host);
    if (!host)
        return ZR_ERR_HOST_MEMORY;
    host->front.ops = &host_ops;
    host->front.can = (struct zr_capabilities){.granule_bytes = granule_bytes,
                                               .vma_budget = vma_budget(),
                                               .host_visible = true,
                                               .exportable = true,
                                               .aliases = true,
                                               .moves = true,
                                               .synchronous = true};
    host->front.limit_bytes = options->limit_bytes & ~(granule_bytes - 1);
    if (options->limit_bytes && !host->front.limit_bytes)
        host->front.limit_bytes = 1; /* less than one granule: nothing fits */
    host->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    host->huge =
        !options->small_pages && zr_option_get(ZR_OPTION_HUGE_PAGES) && granule_bytes % HUGE_BYTES == 0;
    zr_slab_init(&host->file_records, sizeof(struct host_file), ZR_POOL_FAULTS);
    result = zr_backend_init(&host->front);
    if (result != ZR_OK) {
        zr_pages_give(host, sizeof *host);
        return result;
    }
    host->window = reserve_aligned(WINDOW_BYTES, HUGE_BYTES);
    if (!host->window)
        result = addresses_error(WINDOW_BYTES, errno);
    if (result == ZR_OK)
        result = own_file(host, &file);
    if (result != ZR_OK) {
        host_end(&host->front);
        return result;
    }
    *out = &host->front;
    return ZR_OK;
}
