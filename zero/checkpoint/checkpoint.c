/* checkpoint.c: names of steps, the lock on a folder, the removal of unfinished saves, and whole tensors. */
#define _GNU_SOURCE
#include "zero/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "zero/checkpoint/state.h"
#include "zero/engine/engine.h"
#include "zero/checkpoint/checkpoint_inside.h"

/* Hashes each byte as a word. */
uint64_t zr_checkpoint_text_sum(const char *text, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum += zr_state_checksum(i, &(uint32_t){(unsigned char)text[i]}, 1);
    return sum;
}

static const char hidden_head[] = ".step-", partial_tail[] = ".partial", removed_tail[] = ".removed",
                  replaced_tail[] = ".replaced";

void zr_checkpoint_state_name(char out[ZR_CHECKPOINT_STATE_ROOM], unsigned group)
{
    if (group == 0)
        snprintf(out, ZR_CHECKPOINT_STATE_ROOM, "%s", ZR_CHECKPOINT_STATE);
    else
        snprintf(out, ZR_CHECKPOINT_STATE_ROOM, "state.group-%03u.safetensors", group);
}

void zr_checkpoint_step_name(char out[64], uint64_t step, enum zr_checkpoint_kind kind)
{
    const char *tail = kind == ZR_CHECKPOINT_STEP      ? ""
                       : kind == ZR_CHECKPOINT_PARTIAL ? partial_tail
                                                       : replaced_tail;
    snprintf(out, 64, "%s%08llu%s", hidden_head + (kind == ZR_CHECKPOINT_STEP), (unsigned long long)step,
             tail);
}

bool zr_checkpoint_read_step_name(const char *name, enum zr_checkpoint_kind kind, uint64_t *step)
{
    const char *head = hidden_head + (kind == ZR_CHECKPOINT_STEP);
    char again[64];
    if (strncmp(name, head, strlen(head)) != 0)
        return false;
    *step = 0;
    for (const char *at = name + strlen(head); *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(*step, 10, step) ||
            __builtin_add_overflow(*step, (uint64_t)(*at - '0'), step))
            return false;
    zr_checkpoint_step_name(again, *step, kind);
    return strcmp(again, name) == 0;
}

/* ---- Folders ------------------------------------------------------------------------------------------- */

/* Syncs the parent, since a folder whose entry is not on the disk would be lost with its contents. */
static zr_result make_one_folder(const char *path)
{
    enum zr_path_kind kind;
    zr_result result = zr_path_kind_get(path, &kind);

    if (result || kind == ZR_PATH_FOLDER)
        return result;
    result = zr_path_make_folder(path, false);
    if (result)
        return result;
    return zr_path_sync_name(path);
}

zr_result zr_checkpoint_make_folder(const char *path)
{
    char part[ZR_CHECKPOINT_PATH_ROOM];
    size_t length = strlen(path);

    if (length == 0 || length + 2 > sizeof part)
        return zr_fail(ZR_ERR_INVALID, "a path of %zu bytes is invalid", length);
    memcpy(part, path, length + 1);
    for (size_t i = 1; i < length; i++) {
        if (part[i] != '/' || part[i - 1] == '/')
            continue;
        part[i] = '\0';
        zr_result result = make_one_folder(part);
        if (result)
            return result;
        part[i] = '/';
    }
    return make_one_folder(path);
}

/* ---- The lock on a folder ------------------------------------------------------------------------------ */

zr_result zr_checkpoint_hold(struct zr_checkpoint_hold *out, const char *folder)
{
    enum { TRIES = 20, NAP_MS = 100 };
    enum zr_path_kind kind = ZR_PATH_NONE;
    bool busy;

    *out = (struct zr_checkpoint_hold){.fd = -1};
    if (!folder[0])
        return ZR_OK;
    zr_result result = zr_path_kind_get(folder, &kind);
    if (!result)
        result = zr_checkpoint_make_folder(folder);
    if (result)
        return result;
    out->made = kind == ZR_PATH_NONE;
    out->fd = zr_open(folder, O_RDONLY | O_DIRECTORY, 0);
    if (out->fd < 0)
        return zr_fail(ZR_ERR_IO, "--save '%s': cannot be opened (error %d); %s", folder, errno,
                       errno == EMFILE || errno == ENFILE ? "raise `ulimit -n`" : "check its permissions");
    for (int i = 0; i < TRIES; i++) {
        busy = flock(out->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (!busy)
            return ZR_OK;
        poll(NULL, 0, NAP_MS);
    }
    close(out->fd);
    out->fd = -1;
    return zr_fail(
        ZR_ERR_IO,
        "--save '%s': another run saves to this folder; wait until it exits, or give another folder", folder);
}

void zr_checkpoint_let_go(struct zr_checkpoint_hold *hold, const char *folder)
{
    if (hold->fd >= 0)
        close(hold->fd);
    hold->fd = -1;
    if (hold->made)
        unlinkat(AT_FDCWD, folder, AT_REMOVEDIR); /* fails if the folder is not empty */
}

/* ---- Unfinished saves ---------------------------------------------------------------------------------- */

/* Length of a hidden step's name without its suffix; 0: another name. */
static size_t hidden_step(const char *name, const char *tail)
{
    size_t length = strlen(name), tail_bytes = strlen(tail), head_bytes = sizeof hidden_head - 1;
    bool is = length > head_bytes + tail_bytes && strncmp(name, hidden_head, head_bytes) == 0 &&
              strcmp(name + length - tail_bytes, tail) == 0;
    return is ? length - tail_bytes : 0;
}

/* Lists a folder by the system call and passes each name to `visit`. Everything here is async-signal-safe:
 * no stdio, no allocation, no messages. */
void zr_checkpoint_walk(int fd, void (*visit)(int fd, const char *name))
{
    _Alignas(8) char records[2048];
    long got;
    while ((got = getdents64(fd, records, sizeof records)) > 0)
        for (long at = 0; at < got;) {
            const struct dirent64 *record = (const void *)(records + at);
            at += record->d_reclen;
            if (strcmp(record->d_name, ".") != 0 && strcmp(record->d_name, "..") != 0)
                visit(fd, record->d_name);
        }
}

static void remove_file(int fd, const char *name)
{
    unlinkat(fd, name, 0);
}

static void remove_hidden(int fd, const char *name)
{
    int inner = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner < 0)
        return;
    zr_checkpoint_walk(inner, remove_file);
    close(inner);
    unlinkat(fd, name, AT_REMOVEDIR);
}

/* Renames a hidden folder so that it is not a step any more, then removes its files. `stem`: length
 * without the suffix. */
static void remove_by_name(int fd, const char *name, size_t stem)
{
    char removed[NAME_MAX + 1];
    if (stem + sizeof removed_tail > sizeof removed)
        return;
    memcpy(removed, name, stem);
    memcpy(removed + stem, removed_tail, sizeof removed_tail);
    remove_hidden(fd, removed); /* remains of another process that died here */
    if (renameat(fd, name, fd, removed) == 0)
        remove_hidden(fd, removed);
}

/* A complete step that was set aside gets its name back if the new save does not have the name; otherwise
 * it is removed. */
static void recover_replaced(int fd, const char *name, size_t stem)
{
    char final[NAME_MAX + 1];
    struct stat status;
    memcpy(final, name + 1, stem - 1);
    final[stem - 1] = '\0';
    if (fstatat(fd, final, &status, AT_SYMLINK_NOFOLLOW) == 0) {
        if (fsync(fd) == 0)
            remove_by_name(fd, name, stem);
    } else if (errno == ENOENT && renameat(fd, name, fd, final) == 0) {
        fsync(fd);
    }
}

/* Removes a save in progress: first its name, then its files. If rank 0 is still alive while another rank's
 * launcher cleans up, rank 0 has either completed the step before, or cannot complete it any more: launchers
 * without which the run goes on do not clean up. */
static void remove_unfinished(int fd, const char *name)
{
    size_t stem;
    if (hidden_step(name, removed_tail) > 0)
        remove_hidden(fd, name);
    else if ((stem = hidden_step(name, partial_tail)) > 0)
        remove_by_name(fd, name, stem);
    else if ((stem = hidden_step(name, replaced_tail)) > 0)
        recover_replaced(fd, name, stem);
}

void zr_checkpoint_clean_up(const char *folder)
{
    int fd = folder[0] ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    zr_checkpoint_walk(fd, remove_unfinished);
    close(fd);
}

/* ---- Whole tensors ------------------------------------------------------------------------------------- */

zr_result zr_whole_open(struct zr_whole *out, zr_engine *engine, const struct zr_shape *shape, zr_comm *comm)
{
    struct zr_shape dense = zr_shape_dense(shape);
    struct zr_trainable trainable = {.none = false};
    memset(out, 0, sizeof *out);
    if (!zr_engine_is_part(engine) && shape->tiles <= 1 && !(shape->trainable && shape->trainable->none))
        return ZR_OK;
    if (shape->trainable) { /* a file's frozen tensors are those of the run that saved it */
        trainable = *shape->trainable;
        trainable.none = false;
        dense.trainable = &trainable;
    }
    zr_result result = zr_transformer_open(&out->transformer, &dense, NULL, engine->options.host_arena);
    out->transformer.shape.trainable = shape->trainable;
    out->parts = (struct zr_state_parts){.whole = &out->transformer.model.list, .comm = comm};
    out->given = &out->parts;
    return result;
}

zr_result zr_checkpoint_write_state(const struct zr_checkpoint *checkpoint)
{
    struct zr_whole whole;
    zr_result result = zr_comm_all_status(
        checkpoint->comm, zr_whole_open(&whole, checkpoint->engine, &checkpoint->shape, checkpoint->comm));
    if (!result)
        result = zr_state_write(
            checkpoint->engine,
            &(struct zr_state_file){.path = checkpoint->folder, .parts = whole.given, .in_place = true},
            NULL);
    zr_whole_close(&whole);
    return result;
}

zr_result zr_checkpoint_read_state(const struct zr_checkpoint *checkpoint)
{
    struct zr_whole whole;
    zr_result result = zr_comm_all_status(
        checkpoint->comm, zr_whole_open(&whole, checkpoint->engine, &checkpoint->shape, checkpoint->comm));
    if (!result)
        result = zr_state_read(checkpoint->engine, &(struct zr_state_source){.path = checkpoint->folder,
                                                                             .remedy = "resume from a save",
                                                                             .parts = whole.given});
    zr_whole_close(&whole);
    return result;
}

void zr_whole_close(struct zr_whole *whole)
{
    zr_transformer_close(&whole->transformer);
}
