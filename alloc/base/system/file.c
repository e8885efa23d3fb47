/* file.c: files, folders and formatted text over the system calls themselves, so that nothing allocates.
 *
 * Uses fault.h and error.h alone. Every failing system call ends in file_error(), which puts the
 * file, the cause and a way out into words. */
#define _GNU_SOURCE
#include "alloc/base/system/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"

/* Linux moves at most 0x7ffff000 bytes per call; stay on whole pages below that. */
#define PIECE_BYTES ((size_t)1 << 30)
#define PATH_ROOM   4096

/* What a person can do about an error number. */
static const char *remedy(int error)
{
    switch (error) {
    case ENOENT:
        return "check the path, and that the folders above it exist";
    case ENOTDIR:
        return "a component of the path is a file, not a folder";
    case EACCES:
    case EPERM:
        return "check the permissions of the file and of the folders above it";
    case EISDIR:
        return "it is a folder; name a file";
    case EEXIST:
        return "it already exists; choose another name or remove it";
    case ENOTEMPTY:
        return "remove what is in it first";
    case ENOSPC:
    case EDQUOT:
        return "free space on that file system or choose another folder";
    case EFBIG:
        return "raise `ulimit -f`, or choose a file system that holds larger files";
    case EROFS:
        return "the file system is read-only; choose another folder";
    case EMFILE:
    case ENFILE:
        return "raise `ulimit -n`";
    case ENAMETOOLONG:
        return "use a shorter name";
    case ELOOP:
        return "the path contains a loop of symbolic links";
    case EXDEV:
        return "both names must be on one file system";
    case EPIPE:
        return "the reader closed the pipe";
    case EIO:
        return "the device failed; see the kernel's log";
    default:
        return "check the file and its file system";
    }
}

/* The one sentence of a failed call: "cannot DOING 'NAME': cause (way out)". */
static zr_result file_error(const char *doing, const char *name, int error)
{
    char room[64];
    return zr_fail(ZR_ERR_IO, "cannot %s '%s': %s (%s)", doing, name, strerror_r(error, room, sizeof room),
                   remedy(error));
}

/* Copies a path for messages; of a long one its end, where the file's own name is. */
static void copy_name(char name[128], const char *path)
{
    size_t length = strlen(path);
    if (length < 128) {
        memcpy(name, path, length + 1);
        return;
    }
    memcpy(name, "...", sizeof "...");
    memcpy(name + 3, path + length - 124, 125);
}

/* ---- Descriptors --------------------------------------------------------------------------------------- */

static bool await(struct pollfd *ready)
{
    int count;
    do
        count = poll(ready, 1, -1);
    while (count < 0 && errno == EINTR);
    return count == 1;
}

/* True if the failed call should be repeated. Waits for a non-blocking descriptor (a shared terminal, a
 * pipe). */
static bool try_again(int fd, short events)
{
    struct pollfd ready = {.fd = fd, .events = events};
    return errno == EINTR || ((errno == EAGAIN || errno == EWOULDBLOCK) && await(&ready));
}

static size_t piece(enum zr_fault_site site, size_t bytes)
{
    return zr_fault_part(site, bytes < PIECE_BYTES ? bytes : PIECE_BYTES);
}

ssize_t zr_read_all(int fd, int64_t offset, void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        char *to = (char *)data + done;
        size_t want = piece(ZR_FAULT_READ, bytes - done);
        ssize_t got = zr_fault_interrupts(ZR_FAULT_READ) ? -1
                      : offset < 0                       ? read(fd, to, want)
                                                         : pread(fd, to, want, offset + (int64_t)done);
        if (got < 0 && try_again(fd, POLLIN))
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

bool zr_write_all(int fd, int64_t offset, const void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        const char *from = (const char *)data + done;
        size_t want = piece(ZR_FAULT_WRITE, bytes - done);
        ssize_t put = zr_fault_interrupts(ZR_FAULT_WRITE) ? -1
                      : offset < 0                        ? write(fd, from, want)
                                                          : pwrite(fd, from, want, offset + (int64_t)done);
        if (put < 0 && try_again(fd, POLLOUT))
            continue;
        if (put == 0)
            errno = ENOSPC;
        if (put <= 0)
            return false;
        done += (size_t)put;
    }
    return true;
}

size_t zr_read_text(const char *path, char *out, size_t room_bytes)
{
    int fd = zr_open(path, O_RDONLY, 0);
    ssize_t got = fd >= 0 ? zr_read_all(fd, ZR_PRESENT_POSITION, out, room_bytes - 1) : 0;
    if (fd >= 0)
        close(fd);
    out[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

int zr_open(const char *path, int flags, mode_t mode)
{
    int fd = -1;
    if (zr_fault_no_descriptor())
        return -1;
    do
        fd = zr_fault_interrupts(ZR_FAULT_DESCRIPTOR) ? -1 : open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static zr_result open_with(struct zr_file *out, const char *path, int flags, const char *doing, bool own)
{
    struct stat status;
    zr_result result = ZR_OK;
    int fd = -1;

    *out = (struct zr_file){.fd = -1};
    if (!path || !path[0])
        return zr_fail(ZR_ERR_INVALID, "cannot %s a file: the name is empty", doing);
    copy_name(out->name, path);
    if (zr_fault(ZR_FAULT_OPEN))
        return file_error(doing, out->name, EACCES);
    fd = zr_open(path, flags | O_NOCTTY, own ? 0600 : 0666);
    if (fd < 0)
        return file_error(doing, out->name, errno);
    if (fstat(fd, &status) != 0) {
        result = file_error(doing, out->name, errno);
        goto unwind;
    }
    if (S_ISDIR(status.st_mode)) {
        result = file_error(doing, out->name, EISDIR);
        goto unwind;
    }
    out->regular = S_ISREG(status.st_mode);
    out->fd = fd;
    return ZR_OK;
unwind:
    close(fd);
    return result;
}

zr_result zr_file_open(struct zr_file *out, const char *path)
{
    return open_with(out, path, O_RDONLY, "open", false);
}

zr_result zr_file_open_regular(struct zr_file *out, const char *path)
{
    zr_result result = open_with(out, path, O_RDONLY | O_NONBLOCK, "open", false);
    if (result != ZR_OK || out->regular)
        return result;
    zr_file_close(out);
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' is not a regular file and cannot be read at an offset; save it to a file first",
                   out->name);
}

zr_result zr_file_create(struct zr_file *out, const char *path, enum zr_create_mode mode)
{
    static const int flags[] = {
        [ZR_CREATE_REPLACE] = O_CREAT | O_TRUNC,
        [ZR_CREATE_NEW] = O_CREAT | O_EXCL,
        [ZR_CREATE_OWN] = O_CREAT | O_EXCL,
        [ZR_CREATE_APPEND] = O_CREAT | O_APPEND,
        [ZR_CREATE_NOT] = 0,
    };
    if ((unsigned)mode >= sizeof flags / sizeof *flags)
        return zr_fail(ZR_ERR_INVALID, "creating a file: unknown mode %u", (unsigned)mode);
    /* A pipe that is also open for reading waits for no reader, and forgets what was written when it is
     * closed. */
    struct stat status;
    bool pipe = path && stat(path, &status) == 0 && S_ISFIFO(status.st_mode);
    return open_with(out, path, (pipe ? O_WRONLY : O_RDWR) | flags[mode],
                     mode == ZR_CREATE_NOT ? "write to" : "create", mode == ZR_CREATE_OWN);
}

/* Some file systems have names for all their files: there it has one for a moment. */
zr_result zr_file_create_nameless(struct zr_file *out, const char *folder)
{
    char path[PATH_ROOM];
    static _Atomic unsigned number;
    zr_result result = open_with(out, folder, O_RDWR | O_TMPFILE, "create a file in", true);
    if (result == ZR_OK || (errno != EOPNOTSUPP && errno != EISDIR))
        return result;
    int length = snprintf(path, sizeof path, "%s/.zr-%ld-%u", folder, (long)getpid(), number++);
    if (length < 0 || (size_t)length >= sizeof path)
        return file_error("create a file in", folder, ENAMETOOLONG);
    result = open_with(out, path, O_RDWR | O_CREAT | O_EXCL, "create", true);
    if (result == ZR_OK && (result = zr_path_unlink(path)) != ZR_OK)
        zr_file_close(out);
    return result;
}

struct zr_file zr_file_borrow(int fd, const char *name)
{
    struct zr_file file = {.fd = fd};
    struct stat status;
    copy_name(file.name, name);
    file.regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    return file;
}

zr_result zr_file_close(struct zr_file *file)
{
    if (!file || file->fd < 0)
        return ZR_OK;
    int failed = close(file->fd);
    file->fd = -1;
    /* EINTR still closes on Linux; a second close could hit another thread's new file. */
    if (failed != 0 && errno != EINTR)
        return file_error("finish writing", file->name, errno);
    return ZR_OK;
}

zr_result zr_file_size(const struct zr_file *file, uint64_t *out_bytes)
{
    struct stat status;
    *out_bytes = 0;
    if (fstat(file->fd, &status) != 0)
        return file_error("look at", file->name, errno);
    *out_bytes = (uint64_t)status.st_size;
    return ZR_OK;
}

struct zr_file_extent zr_file_next_extent(const struct zr_file *file, size_t most_bytes, uint64_t at)
{
    const off_t begin = lseek(file->fd, (off_t)at, SEEK_DATA),
                end = begin < 0 ? begin : lseek(file->fd, begin, SEEK_HOLE);
    if (begin < 0 || end <= begin)
        return (struct zr_file_extent){0, 0};
    const uint64_t bytes = (uint64_t)(end - begin);
    return (struct zr_file_extent){(uint64_t)begin, bytes < most_bytes ? bytes : most_bytes};
}

zr_result zr_file_resize(const struct zr_file *file, uint64_t bytes)
{
    int failed;
    if (bytes > INT64_MAX)
        return zr_fail(ZR_ERR_INVALID, "'%s': a size of %llu bytes exceeds the maximum file size", file->name,
                       (unsigned long long)bytes);
    if (zr_fault(ZR_FAULT_WRITE))
        return file_error("resize", file->name, ENOSPC);
    do
        failed = ftruncate(file->fd, (off_t)bytes);
    while (failed != 0 && errno == EINTR);
    return failed == 0 ? ZR_OK : file_error("resize", file->name, errno);
}

/* Both reads: at a position, or at the present one (offset < 0). */
static zr_result read_all(const struct zr_file *file, int64_t offset, void *data, size_t bytes,
                          size_t *got_bytes)
{
    *got_bytes = 0;
    if (zr_fault(ZR_FAULT_READ))
        return file_error("read", file->name, EIO);
    ssize_t got = zr_read_all(file->fd, offset, data, bytes);
    if (got < 0)
        return file_error("read", file->name, errno);
    *got_bytes = (size_t)got;
    return ZR_OK;
}

/* True when [offset, offset + bytes) can be told to the system in an off_t. */
static bool extent_fits(uint64_t offset_bytes, size_t bytes)
{
    return offset_bytes <= INT64_MAX && bytes <= (uint64_t)INT64_MAX - offset_bytes;
}

zr_result zr_file_read_at(const struct zr_file *file, uint64_t offset_bytes, void *data, size_t bytes)
{
    size_t got = 0;
    if (!extent_fits(offset_bytes, bytes))
        return zr_fail(ZR_ERR_INVALID, "'%s': %zu bytes at %llu exceed the maximum file size", file->name,
                       bytes, (unsigned long long)offset_bytes);
    zr_result result = read_all(file, (int64_t)offset_bytes, data, bytes, &got);
    if (result == ZR_OK && got < bytes)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' ends at byte %llu, %zu bytes too early: the file is truncated; copy or create it again",
            file->name, (unsigned long long)(offset_bytes + got), bytes - got);
    return result;
}

void zr_file_prefetch(const struct zr_file *file, uint64_t offset_bytes, uint64_t bytes)
{
    (void)posix_fadvise(file->fd, (off_t)offset_bytes, (off_t)bytes, POSIX_FADV_WILLNEED);
}

zr_result zr_file_read(const struct zr_file *file, void *data, size_t bytes, size_t *got_bytes)
{
    return read_all(file, -1, data, bytes, got_bytes);
}

/* Both writes, as read_all(). */
static zr_result write_all(const struct zr_file *file, int64_t offset, const void *data, size_t bytes)
{
    if (zr_fault(ZR_FAULT_WRITE))
        return file_error("write", file->name, ENOSPC);
    return zr_write_all(file->fd, offset, data, bytes) ? ZR_OK : file_error("write", file->name, errno);
}

zr_result zr_file_write_at(const struct zr_file *file, uint64_t offset_bytes, const void *data, size_t bytes)
{
    if (!extent_fits(offset_bytes, bytes))
        return zr_fail(ZR_ERR_INVALID, "'%s': %zu bytes at %llu exceed the maximum file size", file->name,
                       bytes, (unsigned long long)offset_bytes);
    return write_all(file, (int64_t)offset_bytes, data, bytes);
}

/* Where the next zr_file_write() goes, -1 where that has no meaning. */
static off_t write_position(const struct zr_file *file)
{
    int flags = fcntl(file->fd, F_GETFL);
    return lseek(file->fd, 0, flags >= 0 && (flags & O_APPEND) ? SEEK_END : SEEK_CUR);
}

zr_result zr_file_write(const struct zr_file *file, const void *data, size_t bytes)
{
    struct stat status = {0};
    off_t start = -1;
    if (file->regular && fstat(file->fd, &status) == 0)
        start = write_position(file);
    zr_result result = write_all(file, -1, data, bytes);
    /* Only what this call added is cut off: bytes that were there before stay. */
    if (result != ZR_OK && start >= 0 && start >= status.st_size) {
        if (ftruncate(file->fd, status.st_size) == 0)
            lseek(file->fd, start, SEEK_SET);
    }
    return result;
}

zr_result zr_file_sync(const struct zr_file *file)
{
    int failed;
    if (zr_fault(ZR_FAULT_SYNC))
        return file_error("sync", file->name, EIO);
    do
        failed = zr_fault_interrupts(ZR_FAULT_SYNC) ? -1 : fsync(file->fd);
    while (failed != 0 && errno == EINTR);
    /* EINVAL, EROFS: a pipe or a special file has nothing to sync. */
    if (failed != 0 && errno != EINVAL && errno != EROFS)
        return file_error("sync", file->name, errno);
    return ZR_OK;
}

/* ---- Paths --------------------------------------------------------------------------------------------- */

static enum zr_path_kind kind_of_mode(mode_t mode)
{
    return S_ISREG(mode) ? ZR_PATH_FILE : S_ISDIR(mode) ? ZR_PATH_FOLDER : ZR_PATH_OTHER;
}

zr_result zr_path_kind_get(const char *path, enum zr_path_kind *out)
{
    struct stat status;
    *out = ZR_PATH_NONE;
    if (stat(path, &status) != 0)
        return errno == ENOENT || errno == ENOTDIR ? ZR_OK : file_error("look at", path, errno);
    *out = kind_of_mode(status.st_mode);
    return ZR_OK;
}

zr_result zr_path_replaceable(const char *path, bool *out)
{
    struct stat status;
    *out = true;
    if (lstat(path, &status) != 0)
        return errno == ENOENT || errno == ENOTDIR ? ZR_OK : file_error("look at", path, errno);
    *out = S_ISREG(status.st_mode);
    return ZR_OK;
}

zr_result zr_path_rename(const struct zr_rename *names)
{
    struct stat status;
    char room[64];
    int error = 0;
    /* rename() would let a file take the place of /dev/null. */
    if (lstat(names->to, &status) == 0 && kind_of_mode(status.st_mode) == ZR_PATH_OTHER)
        return zr_fail(
            ZR_ERR_IO,
            "cannot rename '%s' to '%s': the target is a device, a pipe or a symbolic link (name a regular file)",
            names->from, names->to);
    if (zr_fault(ZR_FAULT_RENAME))
        error = EIO;
    else if (rename(names->from, names->to) != 0)
        error = errno;
    if (error == 0)
        return ZR_OK;
    return zr_fail(ZR_ERR_IO, "cannot rename '%s' to '%s': %s (%s)", names->from, names->to,
                   strerror_r(error, room, sizeof room), remedy(error));
}

zr_result zr_path_unlink(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return file_error("remove", path, errno);
    return ZR_OK;
}

static zr_result make_one_folder(const char *path)
{
    struct stat status;
    if (mkdir(path, 0777) == 0)
        return ZR_OK;
    int error = errno;
    if (error == EEXIST && stat(path, &status) == 0 && S_ISDIR(status.st_mode))
        return ZR_OK;
    return file_error("make folder", path, error);
}

zr_result zr_path_make_folder(const char *path, bool parents)
{
    char part[PATH_ROOM];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return zr_fail(ZR_ERR_INVALID, "a folder's name has %zu bytes; 1 to %zu are allowed", length,
                       sizeof part - 1);
    if (zr_fault(ZR_FAULT_OPEN))
        return file_error("make folder", path, EACCES);
    memcpy(part, path, length + 1);
    for (size_t i = 1; parents && i < length; i++) {
        if (part[i] != '/' || part[i - 1] == '/')
            continue;
        part[i] = '\0';
        zr_result result = make_one_folder(part);
        if (result != ZR_OK)
            return result;
        part[i] = '/';
    }
    return make_one_folder(path);
}

zr_result zr_path_remove_folder(const char *path)
{
    struct zr_folder folder;
    struct zr_folder_entry entry;
    enum zr_path_kind kind;
    zr_result result = zr_path_kind_get(path, &kind);

    if (result != ZR_OK || kind == ZR_PATH_NONE)
        return result;
    result = zr_folder_open(&folder, path);
    if (result != ZR_OK)
        return result;
    while ((result = zr_folder_next(&folder, &entry)) == ZR_OK && entry.name) {
        if (unlinkat(folder.fd, entry.name, 0) != 0 && errno != ENOENT) {
            result = zr_fail(ZR_ERR_IO, "cannot remove folder '%s': '%s' in it %s", path, entry.name,
                             entry.kind == ZR_PATH_FOLDER ? "is a folder; move it first"
                                                          : "cannot be removed; check the permissions");
            goto unwind;
        }
    }
    if (result == ZR_OK && rmdir(path) != 0 && errno != ENOENT)
        result = file_error("remove folder", path, errno);
unwind:
    zr_folder_close(&folder);
    return result;
}

zr_result zr_path_sync_folder(const char *path)
{
    int failed, fd;
    if (zr_fault(ZR_FAULT_SYNC))
        return file_error("sync folder", path, EIO);
    fd = zr_open(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return file_error("sync folder", path, errno);
    do
        failed = zr_fault_interrupts(ZR_FAULT_SYNC) ? -1 : fsync(fd);
    while (failed != 0 && errno == EINTR);
    int error = errno;
    close(fd);
    /* EINVAL: file systems without the notion. */
    return failed == 0 || error == EINVAL ? ZR_OK : file_error("sync folder", path, error);
}

zr_result zr_path_sync_name(const char *path)
{
    char folder[PATH_MAX];
    size_t length = strlen(path);

    /* The last name goes, and the slashes on both sides of it. */
    while (length > 1 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length == 0)
        return zr_path_sync_folder(".");
    if (length >= sizeof folder)
        return file_error("sync the folder of", path, ENAMETOOLONG);
    memcpy(folder, path, length);
    folder[length] = '\0';
    return zr_path_sync_folder(folder);
}

zr_result zr_path_free_bytes(const char *path, uint64_t *out_bytes)
{
    struct statvfs space;
    int failed;
    *out_bytes = 0;
    do
        failed = statvfs(path, &space);
    while (failed != 0 && errno == EINTR);
    if (failed != 0)
        return file_error("look at the file system of", path, errno);
    *out_bytes = (uint64_t)space.f_bavail * space.f_frsize;
    return ZR_OK;
}

zr_result zr_path_join(char *out, size_t room_bytes, const struct zr_path_parts *parts)
{
    size_t folder = strlen(parts->folder), name = strlen(parts->name);
    size_t slash = folder > 0 && parts->folder[folder - 1] != '/';
    if (folder + slash + name + 1 > room_bytes)
        return zr_fail(ZR_ERR_INVALID, "the path '%s/%s' is longer than %zu bytes: use shorter names",
                       parts->folder, parts->name, room_bytes ? room_bytes - 1 : 0);
    memcpy(out, parts->folder, folder);
    memcpy(out + folder, "/", slash);
    memcpy(out + folder + slash, parts->name, name + 1);
    return ZR_OK;
}

/* ---- Folders ------------------------------------------------------------------------------------------- */

zr_result zr_folder_open(struct zr_folder *out, const char *path)
{
    out->fd = -1;
    out->used_bytes = out->next_bytes = 0;
    copy_name(out->name, path);
    if (zr_fault(ZR_FAULT_OPEN))
        return file_error("list folder", path, EACCES);
    out->fd = zr_open(path, O_RDONLY | O_DIRECTORY, 0);
    return out->fd >= 0 ? ZR_OK : file_error("list folder", path, errno);
}

/* The kind of an entry where the file system did not say. */
static enum zr_path_kind kind_of_entry(int folder_fd, const struct dirent64 *record)
{
    struct stat status;
    if (record->d_type == DT_REG)
        return ZR_PATH_FILE;
    if (record->d_type == DT_DIR)
        return ZR_PATH_FOLDER;
    if (record->d_type != DT_UNKNOWN || fstatat(folder_fd, record->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return ZR_PATH_OTHER;
    return kind_of_mode(status.st_mode);
}

zr_result zr_folder_next(struct zr_folder *folder, struct zr_folder_entry *out)
{
    *out = (struct zr_folder_entry){0};
    for (;;) {
        if (folder->next_bytes >= folder->used_bytes) {
            /* The system call itself: readdir's stream would come from malloc. */
            long got = zr_fault(ZR_FAULT_READ)
                           ? (errno = EIO, -1)
                           : getdents64(folder->fd, folder->buffer, sizeof folder->buffer);
            if (got < 0)
                return file_error("list folder", folder->name, errno);
            if (got == 0)
                return ZR_OK;
            folder->used_bytes = (unsigned)got;
            folder->next_bytes = 0;
        }
        const struct dirent64 *record = (const void *)(folder->buffer + folder->next_bytes);
        folder->next_bytes += record->d_reclen;
        if (strcmp(record->d_name, ".") == 0 || strcmp(record->d_name, "..") == 0)
            continue;
        out->name = record->d_name;
        out->kind = kind_of_entry(folder->fd, record);
        return ZR_OK;
    }
}

void zr_folder_close(struct zr_folder *folder)
{
    if (folder->fd >= 0)
        close(folder->fd);
    folder->fd = -1;
}
