/* outputs.c: checks that the files and folders of a run can be created. A later write may still fail. */
#include "zero/train/settings/args.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "zero/checkpoint/model_file.h"

/* Shortens a path to its parent folder. */
static void cut_last_part(char *path)
{
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    while (length > 1 && path[length - 1] == '/')
        length--;
    memcpy(path + length, length ? "" : ".", length ? 1 : 2);
}

/* Whether a file can be created in `folder`, the parent of the option's path. */
static zr_result check_folder(const char *option, const char *path, const char *folder)
{
    enum zr_path_kind kind;
    zr_result result = zr_path_kind_get(folder, &kind);
    if (result)
        return result;
    if (kind != ZR_PATH_FOLDER)
        return zr_fail(ZR_ERR_IO, "--%s '%s': '%s' %s; give a folder", option, path, folder,
                       kind == ZR_PATH_NONE ? "does not exist" : "is not a folder");
    if (access(folder, W_OK | X_OK) != 0)
        return zr_fail(
            ZR_ERR_IO,
            "--%s '%s': folder '%s' is not writable; change its permissions, or give another folder", option,
            path, folder);
    return ZR_OK;
}

/* Checks a folder that may be created, by its nearest existing ancestor. */
static zr_result check_save(const char *option, const char *path)
{
    char folder[ZR_TRAIN_PATH_ROOM + 2];
    enum zr_path_kind kind;
    zr_result result;

    memcpy(folder, path, strlen(path) + 1);
    while ((result = zr_path_kind_get(folder, &kind)) == ZR_OK && kind == ZR_PATH_NONE)
        cut_last_part(folder);
    return result ? result : check_folder(option, path, folder);
}

/* Checks a file. `written_over`: an existing file is opened and overwritten instead of being replaced. */
static zr_result check_file(const char *option, const char *path, bool written_over)
{
    char folder[ZR_TRAIN_PATH_ROOM + 2];
    enum zr_path_kind kind;

    if (!path[0] || strcmp(path, "-") == 0)
        return ZR_OK;
    zr_result result = zr_path_kind_get(path, &kind);
    if (result)
        return result;
    if (kind == ZR_PATH_FOLDER)
        return zr_fail(ZR_ERR_IO, "--%s '%s' is a folder; name a file in it", option, path);
    if (kind == ZR_PATH_OTHER || (kind == ZR_PATH_FILE && written_over))
        return access(path, W_OK) == 0
                   ? ZR_OK
                   : zr_fail(ZR_ERR_IO,
                             "--%s '%s' is not writable; change its permissions, or give another file",
                             option, path);
    memcpy(folder, path, strlen(path) + 1);
    cut_last_part(folder);
    return check_folder(option, path, folder);
}

/* Checks a file that is written at random offsets or mapped, so pipes and devices are refused. The new file
 * replaces an existing one and would replace a symbolic link. */
static zr_result check_ordinary(const char *option, const char *path)
{
    enum zr_path_kind kind = ZR_PATH_NONE;
    bool replaceable = true;
    zr_result result = path[0] ? zr_path_kind_get(path, &kind) : ZR_OK;
    if (path[0] && result == ZR_OK)
        result = zr_path_replaceable(path, &replaceable);
    if (result == ZR_OK && !replaceable && kind != ZR_PATH_FOLDER)
        return zr_fail(ZR_ERR_IO, "--%s '%s' is not a regular file; give another name", option, path);
    return result ? result : check_file(option, path, false);
}

/* The parent folder and the name of a path that does not exist yet. */
struct place {
    struct stat folder;
    char name[ZR_TRAIN_PATH_ROOM + 16];
};

static bool find_place(const char *path, struct place *out)
{
    char above[ZR_TRAIN_PATH_ROOM + 16];
    size_t end = strlen(path), start;
    memcpy(above, path, end + 1);
    cut_last_part(above);
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (start = end; start > 0 && path[start - 1] != '/';)
        start--;
    memcpy(out->name, path + start, end - start);
    out->name[end - start] = '\0';
    return stat(above, &out->folder) == 0;
}

static bool same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool same_place(const char *a, const char *b)
{
    struct stat first, second;
    struct place of_a, of_b;
    bool a_there = stat(a, &first) == 0, b_there = stat(b, &second) == 0;
    if (a_there && b_there)
        return same_inode(&first, &second) && (S_ISREG(first.st_mode) || S_ISDIR(first.st_mode));
    if (a_there || b_there || strcmp(a, "-") == 0 || strcmp(b, "-") == 0)
        return false;
    if (!find_place(a, &of_a) || !find_place(b, &of_b))
        return strcmp(a, b) == 0;
    return same_inode(&of_a.folder, &of_b.folder) && strcmp(of_a.name, of_b.name) == 0;
}

struct named {
    const char *option, *path;
};

/* Checks the traces. With several ranks each rank writes its own trace, FILE.0, FILE.1, ...; these must not
 * be other files of the run. */
static zr_result check_traces(const struct zr_train_config *config, const struct named *files, size_t count)
{
    char trace[ZR_TRAIN_PATH_ROOM + 16];

    if (!config->trace[0] || config->world < 2 || config->dry_run)
        return ZR_OK;
    for (unsigned rank = 0; rank < config->world; rank++) {
        snprintf(trace, sizeof trace, "%s.%u", config->trace, rank);
        for (size_t i = 0; i < count; i++)
            if (files[i].path[0] && files[i].path != config->trace && same_place(trace, files[i].path))
                return zr_fail(ZR_ERR_INVALID, "--%s '%s' is also the trace of rank %u; give another file",
                               files[i].option, files[i].path, rank);
    }
    return ZR_OK;
}

/* Whether a file or folder of the run is also its data. */
static bool is_data(const struct zr_train_config *config, const char *path)
{
    char source[ZR_TRAIN_PATH_ROOM];
    bool found = false;
    for (const char *at = config->data; *at && !found; at += *at == '\n') {
        size_t length = strcspn(at, "\n");
        snprintf(source, sizeof source, "%.*s", (int)length, at);
        char *weight = strstr(source, ":weight=");
        if (weight)
            *weight = '\0';
        found = path[0] && (same_place(source, path) || zr_pattern_matches(source, path));
        at += length;
    }
    return found;
}

zr_result zr_outputs_apart(const struct zr_train_config *config)
{
    const struct named files[] = {{"config", config->config_file},
                                  {"save", config->save},
                                  {"json", config->json},
                                  {"log", config->log},
                                  {"tensorboard", config->tensorboard},
                                  {"status", config->status},
                                  {"trace", config->trace},
                                  {"resume", config->resume},
                                  {"model", config->model},
                                  {"export", config->export}};
    size_t count = sizeof files / sizeof *files;
    for (size_t i = 0; i < count; i++)
        if (is_data(config, files[i].path))
            return zr_fail(ZR_ERR_INVALID, "--%s '%s' is the same as --data; give another file",
                           files[i].option, files[i].path);
    for (size_t i = 1; i < count; i++)
        for (size_t j = 0; j < i; j++) {
            bool folder = files[i].path == config->resume && files[j].path == config->save;
            if (!folder && files[i].path[0] && files[j].path[0] && same_place(files[i].path, files[j].path))
                return zr_fail(ZR_ERR_INVALID, "--%s '%s' is the same as --%s; give another file",
                               files[i].option, files[i].path, files[j].option);
        }
    return check_traces(config, files, count);
}

zr_result zr_outputs_check(const struct zr_train_config *config)
{
    zr_result result = config->save[0] ? check_save("save", config->save) : ZR_OK;
    if (!result)
        result = check_file("json", config->json, false);
    if (!result)
        result = check_file("log", config->log, true);
    if (!result && config->tensorboard[0])
        result = check_save("tensorboard", config->tensorboard);
    if (!result)
        result = check_ordinary("status", config->status);
    if (!result)
        result = check_ordinary("trace", config->trace);
    if (!result)
        result = zr_model_is_folder(config->export) ? check_save("export", config->export)
                                                    : check_ordinary("export", config->export);
    return result;
}
