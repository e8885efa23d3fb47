/* file.h: the port to files and folders, for the rooms that may not name fopen, opendir or mkstemp (they
 * allocate behind one's back). Private to the project; nothing here allocates, every buffer is the caller's.
 *
 * Every function carries on through EINTR, short reads and short writes. A failure is ZR_ERR_IO with words
 * that name the file, the cause and a way out; the fault sites open, read, write (as a full disk), sync and
 * rename act here. Any thread may call; one struct belongs to one thread at a time. */
#ifndef ZR_FILE_H
#define ZR_FILE_H

#include <stdarg.h>
#include <sys/types.h>

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* ---- Files --------------------------------------------------------------------------------------------- */

/* An open file. The caller owns it until zr_file_close(). {.fd = -1} is a closed one. */
struct zr_file {
    int fd;
    bool regular;   /* can be cut back when a write fails */
    char name[128]; /* for messages: the path, or "..." and its end where it is longer */
};

enum zr_create_mode {
    ZR_CREATE_REPLACE = 0, /* empty a file that is there */
    ZR_CREATE_NEW,         /* fail if it is there */
    ZR_CREATE_OWN,         /* the same, mode 0600 */
    ZR_CREATE_APPEND,      /* go on at the end of a file that is there; every write goes to the end */
    ZR_CREATE_NOT          /* write to a file that is there, wherever; fail if it is not */
};

/* Opens for reading. A folder is refused. On failure *out is a closed file. */
zr_result zr_file_open(struct zr_file *out, const char *path);
/* The same for what is read from any place in it: a pipe or a device is ZR_ERR_FORMAT, and is not waited for.
 */
ZR_PRIVATE_API zr_result zr_file_open_regular(struct zr_file *out, const char *path);
/* Creates for writing (and reading back), mode 0666 less the umask. Folders above must exist. A named pipe is
 * opened for writing only, which waits for a reader. */
ZR_PRIVATE_API zr_result zr_file_create(struct zr_file *out, const char *path, enum zr_create_mode mode);
/* Creates a file without a name for writing and reading back, mode 0600, on the file system of `folder`:
 * whatever ends the process, it is gone with the descriptor. */
zr_result zr_file_create_nameless(struct zr_file *out, const char *folder);
/* Makes a file of a descriptor that stays the caller's: standard output, a pipe. Do not zr_file_close() it.
 */
struct zr_file zr_file_borrow(int fd, const char *name);
/* Closes; a closed file or NULL does nothing. Fails where the system reports a late write error; the file is
 * closed all the same. Does not sync. */
ZR_PRIVATE_API zr_result zr_file_close(struct zr_file *file);

ZR_PRIVATE_API zr_result zr_file_size(const struct zr_file *file, uint64_t *out_bytes);
/* The next bytes from `at` on that are not a hole, at most `most_bytes`; bytes 0: there are none. Moves the
 * present position. */
struct zr_file_extent {
    uint64_t at, bytes;
};
struct zr_file_extent zr_file_next_extent(const struct zr_file *file, size_t most_bytes, uint64_t at);
/* Cuts or extends (with zeros) to `bytes`. */
ZR_PRIVATE_API zr_result zr_file_resize(const struct zr_file *file, uint64_t bytes);
/* Reads exactly `bytes` at `offset_bytes`. ZR_ERR_FORMAT: the file ends before. */
ZR_PRIVATE_API zr_result zr_file_read_at(const struct zr_file *file, uint64_t offset_bytes, void *data,
                                         size_t bytes);
/* Asks the system to read these bytes into its cache meanwhile, without waiting; no effect if it cannot. */
void zr_file_prefetch(const struct zr_file *file, uint64_t offset_bytes, uint64_t bytes);
/* Reads up to `bytes` from the present position; fewer (*got_bytes, maybe 0) only at the end. Pipes too. */
zr_result zr_file_read(const struct zr_file *file, void *data, size_t bytes, size_t *got_bytes);
/* Writes all of `bytes` at `offset_bytes`. Not on files in append mode. */
ZR_PRIVATE_API zr_result zr_file_write_at(const struct zr_file *file, uint64_t offset_bytes, const void *data,
                                          size_t bytes);
/* Writes all at the present position (append mode: the end). A regular file is cut back to its former length
 * when that fails, so no half record stays behind. */
zr_result zr_file_write(const struct zr_file *file, const void *data, size_t bytes);
/* Puts data and size on stable storage. */
ZR_PRIVATE_API zr_result zr_file_sync(const struct zr_file *file);

/* ---- Descriptors --------------------------------------------------------------------------------------- */

/* The same for what is no struct zr_file: errors are errno's, without words. */
#define ZR_PRESENT_POSITION (-1) /* of a file, a pipe */
/* Reads `bytes` at `offset`; fewer only at the end. -1: errno. Waits where a descriptor is non-blocking. */
ZR_PRIVATE_API ssize_t zr_read_all(int fd, int64_t offset, void *data, size_t bytes);
/* Writes all of `bytes`; false: errno (ENOSPC where the system took nothing and gave no reason). */
ZR_PRIVATE_API bool zr_write_all(int fd, int64_t offset, const void *data, size_t bytes);
/* The beginning of a small file of the system's, ended by a zero. Returns its bytes, 0: there is none. */
size_t zr_read_text(const char *path, char *out, size_t room_bytes);
/* open() with O_CLOEXEC. -1: errno. */
ZR_PRIVATE_API int zr_open(const char *path, int flags, mode_t mode);

/* ---- Paths --------------------------------------------------------------------------------------------- */

enum zr_path_kind { ZR_PATH_NONE = 0, ZR_PATH_FILE, ZR_PATH_FOLDER, ZR_PATH_OTHER };

/* What is there, symbolic links followed. ZR_PATH_NONE with ZR_OK when nothing is. */
ZR_PRIVATE_API zr_result zr_path_kind_get(const char *path, enum zr_path_kind *out);
/* Whether a file that was written aside may take this name: nothing has it, or an ordinary file. A device, a
 * pipe or a symbolic link (/dev/stdout is one) would be lost; such a one is written where it is. */
zr_result zr_path_replaceable(const char *path, bool *out);
/* Moves a file or folder over `to`, atomically on one file system. Sync the folder to make it last.
 * ZR_ERR_IO: `to` is neither file nor folder, and stays; or the system refuses. */
struct zr_rename {
    const char *from, *to;
};
ZR_PRIVATE_API zr_result zr_path_rename(const struct zr_rename *names);
/* Removes a file; fine if there is none. */
ZR_PRIVATE_API zr_result zr_path_unlink(const char *path);
/* Makes a folder; fine if it is there. The folders above it are made too when `parents`. */
zr_result zr_path_make_folder(const char *path, bool parents);
/* Removes a folder with the files in it; fine if there is none. A folder inside it is an error. */
zr_result zr_path_remove_folder(const char *path);
/* Makes the names in a folder (creations, renames, removals) last through a power cut. */
zr_result zr_path_sync_folder(const char *path);
/* The same for one name: syncs the folder that the file or folder `path` lies in. */
ZR_PRIVATE_API zr_result zr_path_sync_name(const char *path);
/* Bytes that an ordinary user can still write on the file system of `path` (a file or folder that exists). */
ZR_PRIVATE_API zr_result zr_path_free_bytes(const char *path, uint64_t *out_bytes);
/* Writes folder + "/" + name into `out`. ZR_ERR_INVALID: more than `room_bytes` with the final zero. */
struct zr_path_parts {
    const char *folder, *name;
};
zr_result zr_path_join(char *out, size_t room_bytes, const struct zr_path_parts *parts);

/* A folder being listed. The caller owns it until zr_folder_close(). */
struct zr_folder {
    int fd;
    unsigned used_bytes, next_bytes; /* of buffer */
    char name[128];                  /* for messages */
    _Alignas(8) char buffer[4096];
};
struct zr_folder_entry {
    const char *name;       /* in the folder's buffer, valid until the next call; NULL after the last entry */
    enum zr_path_kind kind; /* of the entry itself: a symbolic link is ZR_PATH_OTHER */
};
zr_result zr_folder_open(struct zr_folder *out, const char *path);
/* The next entry in the system's order, without "." and "..". */
zr_result zr_folder_next(struct zr_folder *folder, struct zr_folder_entry *out);
void zr_folder_close(struct zr_folder *folder);

/* ---- Text ---------------------------------------------------------------------------------------------- */

/* Formatted output through the caller's buffer: logs, JSON, messages. Print without looking at each result;
 * the first failure stays in `result` (later prints do nothing) and the flush returns it. */
struct zr_text {
    struct zr_file *file; /* NULL: the text only gathers in the buffer, always ended by a zero */
    char *buffer;         /* the caller's */
    size_t room_bytes;
    size_t used_bytes;
    zr_result result;
};

/* Starts a text over a buffer of at least 2 bytes. One print may be as long as the buffer less one byte. */
ZR_PRIVATE_API void zr_text_start(struct zr_text *text, struct zr_file *file, char *buffer,
                                  size_t room_bytes);
/* printf-style. ZR_ERR_INVALID: one print too long for the buffer (nothing of it is written). */
zr_result zr_text_print(struct zr_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
zr_result zr_text_vprint(struct zr_text *text, const char *format, va_list list)
    __attribute__((format(printf, 2, 0)));
/* `bytes` as they are, of any length. */
zr_result zr_text_put(struct zr_text *text, const char *data, size_t bytes);
/* A JSON string with its quotes; bytes that are no UTF-8 become U+FFFD, so the output is always valid JSON.
 */
ZR_PRIVATE_API zr_result zr_text_json_string(struct zr_text *text, const char *string, size_t bytes);
/* Length of the UTF-8 sequence at `s`, 0 where there is none: overlong forms, surrogates and numbers above
 * U+10FFFF are no UTF-8. */
size_t zr_utf8_length(const unsigned char *s, size_t bytes);
/* Makes words stay on their line and be no command to a terminal, in place: control characters, those that
 * UTF-8 writes as C2 80 to C2 9F, and what is no UTF-8 become question marks. */
void zr_make_plain(char *words);
/* The same for a text from outside, of a file or a process. */
zr_result zr_text_put_plain(struct zr_text *text, const char *words);
/* Writes out what has gathered (append logs: call it after each line, and whole lines go out at once or not
 * at all). Returns the first failure since zr_text_start(). Without a file: the result
 * only.*/
zr_result zr_text_flush(struct zr_text *text);

/* ---- Folders of the system and of the user (folders.c) ------------------------------------------------- */

/* The folders where a process leaves what others are to find. Paths have no final slash. The environment is
 * read once. */

enum { ZR_FOLDER_BYTES = 288 };

/* TMPDIR, else /tmp. */
const char *zr_folder_temporary(void);
/* The folder of this user's living processes: zr under XDG_RUNTIME_DIR or /run/user/UID, else /tmp/zr-UID.
 * Creates it (mode 0700) if `make`; it must be a folder of this user's that no other user may enter, and no
 * symbolic link. ZR_ERR_IO, with a message: it is not, or cannot be created. */
zr_result zr_folder_runtime(char out[ZR_FOLDER_BYTES], bool make);
/* The XDG_RUNTIME_DIR that sets this process's folder apart from the user's other processes; "": none does.
 * It stays the same when folders are removed or made. */
const char *zr_folder_scope(void);
/* PATH, the folders of programs, apart by colons; "": unset. */
const char *zr_folder_programs(void);
/* Reads the environment, if no call has read it yet. Called when the first backend is opened, because another
 * thread of the program may change the environment later. Any thread. */
void zr_folders_prepare(void);
/* For tests: other values than the environment's; NULL: the variable is not set. */
void zr_folders_set(const char *temporary, const char *runtime);
void zr_folders_set_programs(const char *path);

#endif
