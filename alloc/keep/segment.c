/* segment.c: see segment.h. Uses alloc/backend for the memfd. */
#define _GNU_SOURCE
#include "alloc/keep/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/backend/host_common.h"
#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

zr_result zr_segment_check_name(const char *name)
{
    static const char others[] = "-_.:/";
    size_t length = name ? strnlen(name, ZR_KEEP_NAME_BYTES) : 0;
    bool good = length > 0 && length < ZR_KEEP_NAME_BYTES;
    for (size_t i = 0; good && i < length; i++)
        good = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
               (name[i] >= '0' && name[i] <= '9') || strchr(others, name[i]);
    return good ? ZR_OK
                : zr_fail(ZR_ERR_INVALID,
                          "the name of a segment must have 1 to %d letters, digits or characters of %s",
                          ZR_KEEP_NAME_BYTES - 1, others);
}

/* The header and the table. */
static uint64_t table_bytes(uint32_t tensors_max)
{
    return ZR_SEGMENT_HEADER_BYTES + (uint64_t)tensors_max * sizeof(struct zr_segment_entry);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

zr_result zr_segment_plan(const struct zr_keep_options *options, struct zr_segment_shape *out)
{
    size_t granule_bytes = options->granule_bytes ? options->granule_bytes : (size_t)2 << 20;
    uint32_t tensors_max = options->tensors_max ? options->tensors_max : ZR_SEGMENT_TENSORS_DEFAULT;
    zr_result result = zr_segment_check_name(options->name);
    if (result != ZR_OK)
        return result;
    if (granule_bytes < ZR_SEGMENT_GRANULE_MIN || granule_bytes & (granule_bytes - 1) ||
        granule_bytes > ZR_SEGMENT_BYTES_MAX)
        return zr_fail(ZR_ERR_INVALID, "a granule of kept memory must be a power of two of at least %d bytes",
                       ZR_SEGMENT_GRANULE_MIN);
    if (options->bytes == 0 || options->bytes > ZR_SEGMENT_BYTES_MAX || tensors_max > ZR_SEGMENT_TENSORS_MAX)
        return zr_fail(ZR_ERR_INVALID, "a segment must have 1 byte to 1 PiB and at most %d tensors",
                       ZR_SEGMENT_TENSORS_MAX);
    *out = (struct zr_segment_shape){.magic = ZR_SEGMENT_MAGIC,
                                     .version = ZR_SEGMENT_VERSION,
                                     .tensors_max = tensors_max,
                                     .granule_bytes = granule_bytes,
                                     .data_bytes = round_up(table_bytes(tensors_max), granule_bytes)};
    out->bytes = out->data_bytes + round_up(options->bytes, granule_bytes);
    snprintf(out->name, sizeof out->name, "%s", options->name);
    return ZR_OK;
}

zr_result zr_segment_make(const struct zr_segment_shape *shape, int *fd)
{
    zr_result result = zr_host_file(fd);
    if (result != ZR_OK)
        return result;
    /* The table's memory is committed here, so that a shortage is an error instead of a SIGBUS. */
    if (ftruncate(*fd, (off_t)shape->bytes) != 0 ||
        fallocate(*fd, 0, 0, (off_t)table_bytes(shape->tensors_max)) != 0 ||
        !zr_write_all(*fd, 0, shape, sizeof *shape))
        result = zr_fail(ZR_ERR_MEMORY, "the system refuses a segment of %llu bytes (error %d)",
                         (unsigned long long)shape->bytes, errno);
    else if (fcntl(*fd, F_ADD_SEALS, SEALS) != 0)
        result = zr_fail(ZR_ERR_UNAVAILABLE, "the system does not seal a memfd (error %d)", errno);
    if (result != ZR_OK) {
        close(*fd);
        *fd = -1;
    }
    return result;
}

zr_result zr_segment_inspect(int fd, struct zr_segment_shape *out)
{
    struct zr_segment_shape plan;
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &status) != 0 ||
        zr_read_all(fd, 0, out, sizeof *out) != (ssize_t)sizeof *out || out->magic != ZR_SEGMENT_MAGIC)
        return zr_fail(ZR_ERR_FORMAT, "descriptor %d is not a segment of kept memory", fd);
    if (out->version != ZR_SEGMENT_VERSION)
        return zr_fail(ZR_ERR_FORMAT,
                       "the segment has version %u, and this library reads version %d: drop the segment",
                       out->version, ZR_SEGMENT_VERSION);
    bool good = out->bytes == (uint64_t)status.st_size && out->bytes > out->data_bytes &&
                memchr(out->name, '\0', sizeof out->name) && out->tensors_max > 0;
    struct zr_keep_options options = {.name = out->name,
                                      .bytes = (size_t)(out->bytes - out->data_bytes),
                                      .granule_bytes = (size_t)out->granule_bytes,
                                      .tensors_max = out->tensors_max};
    if (!good || out->granule_bytes == 0 || zr_segment_plan(&options, &plan) != ZR_OK ||
        plan.bytes != out->bytes || plan.data_bytes != out->data_bytes)
        return zr_fail(ZR_ERR_FORMAT, "the header of the segment is damaged: drop the segment");
    return ZR_OK;
}

zr_result zr_segment_reopen(int fd, bool writes, int *out)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *out = zr_open(path, writes ? O_RDWR : O_RDONLY, 0);
    return *out >= 0 ? ZR_OK
                     : zr_fail(errno == EMFILE || errno == ENFILE ? ZR_ERR_HOST_MEMORY : ZR_ERR_UNAVAILABLE,
                               "the segment cannot be opened through %s (error %d): mount /proc, and leave "
                               "descriptors free (`ulimit -n`)",
                               path, errno);
}

static struct flock whole_lease(void)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
}

zr_result zr_segment_lease(int fd)
{
    struct flock lock = whole_lease();
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return ZR_OK;
    return zr_fail(ZR_ERR_UNAVAILABLE, "the lease is not free (error %d)", errno);
}

bool zr_segment_is_leased(int fd)
{
    struct flock lock = whole_lease();
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void zr_segment_store(_Atomic uint64_t *word, uint64_t value)
{
    if (zr_fault(ZR_FAULT_KEPT))
        kill(getpid(), SIGKILL);
    atomic_store_explicit(word, value, memory_order_release);
}
