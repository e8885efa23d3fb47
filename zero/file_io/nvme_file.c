/* nvme_file.c: creates an unnamed file in a folder, or opens a named one, and reserves its space. See
 * nvme_inside.h.
 *
 * Missing features of the file system set three flags; an unusable folder is an error with a fix. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "zero/file_io/nvme_inside.h"

static const long tmpfs_magic = 0x01021994, ramfs_magic = 0x858458f6;
/* Without O_TMPFILE: tries names until one is free. */
enum { NAME_TRIES = 100, ALIGN_DEFAULT = 4096, ALIGN_MAX = 65536 };

static const char *fix(int error)
{
    switch (error) {
    case ENOENT:
        return "create the folder or use another";
    case ENOTDIR:
        return "use a folder on the NVMe disk, not a file";
    case EACCES:
    case EPERM:
        return "check the permissions of the folder and of its parents or use another";
    case EROFS:
        return "the file system is read-only; use another folder";
    case ENOSPC:
    case EDQUOT:
        return "free space on the file system, use another folder or offload less";
    case EFBIG:
        return "raise `ulimit -f` or use a file system with larger files";
    case EMFILE:
    case ENFILE:
        return "raise `ulimit -n`";
    case EIO:
        return "the device failed; see the kernel log and resume from the last checkpoint with another folder";
    default:
        return "check the folder and its file system or use another";
    }
}

zr_result zr_nvme_file_fail_with(const struct zr_nvme_file *file, const char *doing, int error,
                                 const char *words)
{
    char text[64];
    return zr_fail(ZR_ERR_IO, "cannot %s the offload file in '%s': %s (%s)", doing, file->folder,
                   strerror_r(error, text, sizeof text), words);
}

zr_result zr_nvme_file_fail(const struct zr_nvme_file *file, const char *doing, int error)
{
    return zr_nvme_file_fail_with(file, doing, error, fix(error));
}

/* Without O_TMPFILE: if the process dies between open and unlink, an empty file remains. */
static int create_and_unlink(const char *folder)
{
    char path[4096];
    for (unsigned i = 0; i < NAME_TRIES; i++) {
        int length = snprintf(path, sizeof path, "%s/.zr-offload-%d-%u", folder, (int)getpid(), i);
        if (length < 0 || (size_t)length >= sizeof path) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = zr_open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd >= 0) {
            unlink(path);
            return fd;
        }
        if (errno != EEXIST)
            return -1;
    }
    return -1;
}

static int open_named(const char *folder, struct zr_nvme_name name)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name.name);
    if (length < 0 || (size_t)length >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return zr_open(path, O_RDWR | (name.exists ? 0 : O_CREAT) | O_NOFOLLOW, 0600);
}

static int open_in(struct zr_nvme_file *file, const char *path, struct zr_nvme_name name)
{
    if (zr_fault(ZR_FAULT_OPEN)) {
        errno = EACCES;
        return -1;
    }
    if (name.name)
        return open_named(path, name);
    int fd = zr_open(path, O_RDWR | O_TMPFILE | O_EXCL, 0600);
    file->nameless = fd >= 0;
    /* EISDIR and ENOENT: kernels without O_TMPFILE try to open the folder itself. */
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL))
        fd = create_and_unlink(path);
    return fd;
}

/* Alignment of O_DIRECT, and at least a file system block, because smaller writes cause reads. */
static size_t find_align(int fd, bool *out_direct)
{
    size_t align_bytes = 0;
    struct stat status;
    *out_direct = true;
#ifdef STATX_DIOALIGN
    struct statx extended;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &extended) == 0 &&
        (extended.stx_mask & STATX_DIOALIGN)) {
        align_bytes = extended.stx_dio_mem_align > extended.stx_dio_offset_align
                          ? extended.stx_dio_mem_align
                          : extended.stx_dio_offset_align;
        *out_direct = extended.stx_dio_offset_align != 0;
    }
#endif
    if (align_bytes < ALIGN_DEFAULT)
        align_bytes = ALIGN_DEFAULT;
    if (fstat(fd, &status) == 0 && status.st_blksize > 0 && status.st_blksize <= ALIGN_MAX &&
        (status.st_blksize & (status.st_blksize - 1)) == 0 && (size_t)status.st_blksize > align_bytes)
        align_bytes = (size_t)status.st_blksize;
    return align_bytes;
}

zr_result zr_nvme_file_create(struct zr_nvme_file *out, const struct zr_nvme_folder *folder,
                              struct zr_nvme_name name)
{
    zr_result result = ZR_OK;
    struct statfs system;

    *out = (struct zr_nvme_file){.fd = -1};
    if (!folder->path || !folder->path[0])
        return zr_fail(ZR_ERR_INVALID, "offload to NVMe requires a folder: nvme:DIR");
    size_t length = strlen(folder->path);
    snprintf(out->folder, sizeof out->folder, "%s%s", length < sizeof out->folder ? "" : "...",
             length < sizeof out->folder ? folder->path : folder->path + length - (sizeof out->folder - 4));
    out->fd = open_in(out, folder->path, name);
    if (out->fd < 0 && name.exists && errno == ENOENT)
        return zr_fail(
            ZR_ERR_IO,
            "cannot open the file '%s' in '%s': it is missing (bring it back, or start again without it)",
            name.name, out->folder);
    if (out->fd < 0)
        return zr_nvme_file_fail(out, "create", errno);
    if (fstatfs(out->fd, &system) != 0) {
        result = zr_nvme_file_fail(out, "look at", errno);
        goto unwind;
    }
    bool memory =
        (long)system.f_type == tmpfs_magic || (unsigned long)system.f_type == (unsigned long)ramfs_magic;
    if (memory && !folder->force) {
        result = zr_fail(
            ZR_ERR_IO,
            "cannot offload to '%s': the folder is in memory (tmpfs), which saves nothing (use a folder on a "
            "disk or --offload-optimizer cpu, or accept it with --force)",
            out->folder);
        goto unwind;
    }
    out->align_bytes = find_align(out->fd, &out->direct);
    /* A file system may refuse O_DIRECT whatever statx reports. */
    int flags = fcntl(out->fd, F_GETFL);
    if (out->direct && (flags < 0 || fcntl(out->fd, F_SETFL, flags | O_DIRECT) != 0))
        out->direct = false;
    return ZR_OK;
unwind:
    close(out->fd);
    out->fd = -1;
    return result;
}

/* Free bytes for an unprivileged user; block counts are in fragments if the file system has them. */
static uint64_t free_bytes_of(const struct statfs *system)
{
    return (uint64_t)system->f_bavail * (uint64_t)(system->f_frsize ? system->f_frsize : system->f_bsize);
}

zr_result zr_nvme_file_reserve(struct zr_nvme_file *file, uint64_t bytes)
{
    struct statfs system;
    struct rlimit limit;
    if (fstatfs(file->fd, &system) != 0)
        return zr_nvme_file_fail(file, "look at", errno);
    uint64_t free_bytes = free_bytes_of(&system);
    if (free_bytes < bytes)
        return zr_fail(
            ZR_ERR_IO,
            "cannot offload to '%s': %llu bytes are needed and %llu are free (free %llu more, use a larger "
            "disk or offload less)",
            file->folder, (unsigned long long)bytes, (unsigned long long)free_bytes,
            (unsigned long long)(bytes - free_bytes));
    /* Writing beyond the limit would kill the process with SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
        return zr_fail(
            ZR_ERR_IO,
            "cannot offload to '%s': %llu bytes are needed and `ulimit -f` allows files of %llu (raise it or "
            "offload less)",
            file->folder, (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
    int error;
    do
        error = zr_fault(ZR_FAULT_WRITE)                       ? ENOSPC
                : zr_fault_interrupts(ZR_FAULT_WRITE)          ? EINTR
                : fallocate(file->fd, 0, 0, (off_t)bytes) == 0 ? 0
                                                               : errno;
    while (error == EINTR);
    file->reserved = error == 0;
    /* fallocate is not supported by the file system or forbidden by a seccomp filter. */
    if (error == EOPNOTSUPP || error == ENOSYS || error == EPERM)
        do
            error = ftruncate(file->fd, (off_t)bytes) == 0 ? 0 : errno;
        while (error == EINTR);
    if (error == 0)
        return ZR_OK;
    char doing[80];
    snprintf(doing, sizeof doing, "reserve %llu bytes for", (unsigned long long)bytes);
    return zr_nvme_file_fail(file, doing, error);
}

zr_result zr_nvme_probe_folder(const struct zr_nvme_folder *folder, struct zr_nvme_probe *out)
{
    struct zr_nvme_file file;
    struct statfs system;
    if (!folder || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_nvme_probe_folder(): folder or out is NULL");
    zr_result result = zr_nvme_file_create(&file, folder, (struct zr_nvme_name){0});
    if (result != ZR_OK)
        return result;
    if (fstatfs(file.fd, &system) != 0)
        result = zr_nvme_file_fail(&file, "look at", errno);
    else
        *out = (struct zr_nvme_probe){.align_bytes = file.align_bytes,
                                      .free_bytes = free_bytes_of(&system),
                                      .direct = file.direct,
                                      .nameless = file.nameless};
    close(file.fd);
    return result;
}
