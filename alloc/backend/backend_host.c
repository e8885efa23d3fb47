/* backend_host.c: this machine's memory as granules of a memfd. Below backend.c; uses host_common.c.
 *
 * Creating a handle commits its memory through a small window of addresses, so that a shortage is an error
 * instead of a SIGBUS at the first touch. If the kernel allows, each 2 MiB become one huge page
 * (MADV_COLLAPSE), and moving a granule takes microseconds. File offsets are never reused: the file is
 * sparse, and destroying a handle punches its memory out of the file.
 *
 * After fork() the child shares the existing granules. It creates new ones in a file of its own, and never
 * punches holes into its parent's file. */
#define _GNU_SOURCE
#include "alloc/backend/host_common.h"

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

#include "alloc/backend/lender.h"
#include "alloc/base/error.h"
#include "alloc/base/system/fork.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define WINDOW_BYTES ((size_t)16 << 20)
/* Consecutive failures after which collapsing is given up. */
#define COLLAPSE_FAILURES_MAX 4
/* Memory left to other processes, and bytes that may be created between two queries of the machine's memory.
 */
#define HEADROOM_MARGIN_BYTES   ((uint64_t)8 << 20)
#define HEADROOM_INTERVAL_BYTES ((uint64_t)64 << 20)

struct host_file {
    struct host_file *next;
    int fd;
    pid_t owner;  /* the process that creates handles in the file; 0: an imported file */
    dev_t device; /* identity of a file that is imported in several segments */
    ino_t inode;
    uint64_t next_offset; /* offset of the next handle */
    size_t handles_count; /* an imported file is closed when none is left */
};

struct host_backend {
    zr_backend front; /* first, because host_of() casts */
    size_t page_bytes;
    /* lock for all fields below: front.create_lock */
    struct host_file *files;
    struct zr_slab file_records;
    char *window; /* WINDOW_BYTES, aligned to huge pages, without access between uses */
    bool huge;    /* whether to try to collapse */
    unsigned collapse_failures;
    uint64_t headroom_bytes; /* bytes that may be created before the machine's memory is queried again */
};

static struct host_backend *host_of(zr_backend *backend)
{
    return (struct host_backend *)backend;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

/* The file in which this process creates handles. A child after fork() creates a new one. */
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
    int fd = -1;
    struct zr_lender *lender = host->front.lender;
    zr_result result = lender ? lender->ops->file(lender, &fd) : zr_host_file(&fd);
    if (result != ZR_OK)
        return result;
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
    if (host->front.lender && file->owner == getpid())
        host->front.lender->ops->file_leave(host->front.lender, file->fd);
    close(file->fd);
    zr_slab_give(&host->file_records, file);
}

/* ---- Physical memory ----------------------------------------------------------------------------------- */

/* Queries the machine's memory from time to time. Without this check a shortage would not be an error: the
 * kernel would kill a process. */
static zr_result check_headroom(struct host_backend *host, size_t bytes)
{
    struct zr_machine machine = {0};
    uint64_t left = UINT64_MAX;
    const char *limiter = "the machine";
    const char *remedy = "free memory or use a smaller model, batch or more ranks on other machines";
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
            limiter = "this control group's memory.max";
            remedy = "raise memory.max, or use a smaller model or batch";
        }
    }
    if (left < bytes + HEADROOM_MARGIN_BYTES)
        return zr_fail(ZR_ERR_MEMORY, "%s leaves %llu bytes, and %zu are needed: %s", limiter,
                       (unsigned long long)left, bytes, remedy);
    uint64_t unchecked_bytes = (left - bytes - HEADROOM_MARGIN_BYTES) / 8;
    host->headroom_bytes =
        unchecked_bytes < HEADROOM_INTERVAL_BYTES ? unchecked_bytes : HEADROOM_INTERVAL_BYTES;
    return ZR_OK;
}

/* Makes the 2 MiB at `address` one huge page. Touching a page first creates the page table, which the
 * collapse requires. False: the kernel refused. */
static bool collapse(struct host_backend *host, char *address)
{
    if (madvise(address, host->page_bytes, MADV_POPULATE_WRITE) != 0)
        return false;
    if (madvise(address, ZR_HOST_HUGE_BYTES, MADV_COLLAPSE) == 0) {
        host->collapse_failures = 0;
        return true;
    }
    if (++host->collapse_failures >= COLLAPSE_FAILURES_MAX)
        host->huge = false;
    return false;
}

/* Commits the part of the file that the window maps. Returns 0 or an error number. */
static int populate(struct host_backend *host, const struct host_file *file, struct zr_bounds part)
{
    for (size_t done = 0; done < part.bytes;) {
        size_t step = part.bytes - done;
        if (host->huge && step >= ZR_HOST_HUGE_BYTES && collapse(host, host->window + done)) {
            done += ZR_HOST_HUGE_BYTES;
            continue;
        }
        if (host->huge && step > ZR_HOST_HUGE_BYTES)
            step = ZR_HOST_HUGE_BYTES;
        if (madvise(host->window + done, step, MADV_POPULATE_WRITE) != 0) {
            if (errno != EINVAL)
                return errno;
            /* Kernels before 5.14 lack MADV_POPULATE_WRITE; fallocate() commits pages too. */
            while (fallocate(file->fd, 0, (off_t)(part.offset_bytes + done), (off_t)step) != 0)
                if (errno != EINTR)
                    return errno;
        }
        done += step;
    }
    return 0;
}

static int commit_window(struct host_backend *host, const struct host_file *file, struct zr_bounds part)
{
    if (mmap(host->window, part.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file->fd,
             (off_t)part.offset_bytes) != host->window)
        return errno;
    int error = populate(host, file, part);
    if (mmap(host->window, part.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) != host->window &&
        error == 0)
        error = errno;
    return error;
}

/* Extends the file. Exceeding `ulimit -f` would raise a signal, so the limit is checked first. */
static zr_result lengthen(const struct host_file *file, uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
        return zr_fail(ZR_ERR_MEMORY,
                       "`ulimit -f` allows files of %llu bytes, and the memory file needs %llu; type "
                       "`ulimit -f unlimited`",
                       (unsigned long long)limit.rlim_cur, (unsigned long long)bytes);
    if (ftruncate(file->fd, (off_t)bytes) != 0)
        return zr_fail(ZR_ERR_MEMORY, "cannot grow the memory file to %llu bytes (error %d)",
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
        struct zr_bounds part = {whole.offset_bytes + done, whole.bytes - done};
        if (part.bytes > WINDOW_BYTES)
            part.bytes = WINDOW_BYTES;
        int error = commit_window(host, file, part);
        if (error != 0) {
            punch(file, whole);
            return zr_fail(
                ZR_ERR_MEMORY,
                "the system has fewer than %zu bytes of memory left (error %d): a cgroup's memory.max, vm.overcommit_memory = 2 or the machine's memory is exhausted",
                whole.bytes, error);
        }
        done += part.bytes;
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

static void host_vacate(zr_backend *backend, struct zr_handle *handle)
{
    struct host_backend *host = host_of(backend);
    pthread_mutex_lock(&backend->create_lock);
    punch((const struct host_file *)handle->object,
          (struct zr_bounds){(size_t)handle->offset_bytes, handle->bytes});
    host->headroom_bytes = 0; /* another process may take the memory */
    pthread_mutex_unlock(&backend->create_lock);
}

static zr_result host_occupy(zr_backend *backend, struct zr_handle *handle)
{
    struct host_backend *host = host_of(backend);
    pthread_mutex_lock(&backend->create_lock);
    zr_result result = check_headroom(host, handle->bytes);
    if (result == ZR_OK)
        result = commit(host, (const struct host_file *)handle->object,
                        (struct zr_bounds){(size_t)handle->offset_bytes, handle->bytes});
    pthread_mutex_unlock(&backend->create_lock);
    return result;
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

static zr_result host_map(zr_backend *backend, char *address, const struct zr_handle *handle)
{
    const struct host_file *file = (const struct host_file *)handle->object;
    (void)backend;
    if (mmap(address, handle->bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file->fd,
             (off_t)handle->offset_bytes) != address)
        return zr_host_addresses_error(handle->bytes, errno);
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

/* The record of the file behind `fd`, which an earlier import may have created. */
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
                       "descriptor %d is not open for reading and writing, which an import requires",
                       segment->fd);
    if (!S_ISREG(status.st_mode) || segment->offset_bytes > (uint64_t)status.st_size ||
        segment->bytes > (uint64_t)status.st_size - segment->offset_bytes)
        return zr_fail(
            ZR_ERR_INVALID,
            "descriptor %d has fewer than %zu bytes of memory at %llu: is it a segment from zr_block_export()?",
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

/* ---- Create and destroy -------------------------------------------------------------------------------- */

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
    .reserve = zr_host_reserve,
    .release = zr_host_release,
    .create = host_create,
    .destroy = host_destroy,
    .map = host_map,
    .unmap = zr_host_unmap,
    .set_access = zr_host_set_access,
    .copy = zr_host_copy,
    .fill = zr_host_fill,
    .event_record = zr_host_event_record,
    .event_done = zr_host_event_done,
    .event_wait = zr_host_event_wait,
    .synchronize = zr_host_synchronize,
    .memory_info = zr_host_memory_info,
    .export_fd = host_export,
    .import_fd = host_import,
    .reserve_hint = zr_host_reserve_hint,
    .lender_key = zr_host_lender_key,
    .vacate = host_vacate,
    .occupy = host_occupy,
};

zr_result zr_backend_host_open(zr_backend **out, const struct zr_host_options *options, zr_lender_find *find)
{
    struct zr_host_options own;
    struct host_backend *host = NULL;
    struct host_file *file = NULL;
    size_t granule_bytes;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "creating a backend: `out` is NULL");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_host_options, private_memory, &own, options);
    options = &own;
    if (result == ZR_OK && options->private_memory)
        return zr_backend_private_open(out, options, find);
    if (result == ZR_OK)
        result = zr_backend_granule(options->granule_bytes, &granule_bytes);
    if (result != ZR_OK)
        return result;
    host = zr_pages_take(sizeof *host);
    if (!host)
        return ZR_ERR_HOST_MEMORY;
    host->front.ops = &host_ops;
    host->front.can = zr_host_capabilities(granule_bytes);
    host->front.can.exportable = host->front.can.aliases = true;
    host->front.limit_bytes = zr_host_limit(options, granule_bytes);
    host->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    host->huge = !options->small_pages && zr_option_get(ZR_OPTION_HUGE_PAGES) &&
                 granule_bytes % ZR_HOST_HUGE_BYTES == 0;
    zr_slab_init(&host->file_records, sizeof(struct host_file), ZR_POOL_FAULTS);
    result = zr_backend_init(&host->front);
    if (result != ZR_OK) {
        zr_pages_give(host, sizeof *host);
        return result;
    }
    result = find ? find(&host->front, &host->front.lender) : ZR_OK;
    if (result != ZR_OK) {
        host_end(&host->front);
        return result;
    }
    host->window = zr_host_reserve_aligned(WINDOW_BYTES, ZR_HOST_HUGE_BYTES);
    if (!host->window)
        result = zr_host_addresses_error(WINDOW_BYTES, errno);
    if (result == ZR_OK)
        result = own_file(host, &file);
    if (result != ZR_OK) {
        host_end(&host->front);
        return result;
    }
    *out = &host->front;
    return ZR_OK;
}
