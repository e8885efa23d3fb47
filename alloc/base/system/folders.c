/* folders.c: see file.h. */
#define _GNU_SOURCE
#include "alloc/base/system/file.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"

/* What is named, and "/zr" behind it, fit into ZR_FOLDER_BYTES. */
enum { FOLDER_BYTES = 256, PROGRAMS_BYTES = 4096 };

static char temporary_folder[FOLDER_BYTES]; /* these three are written by read_environment() */
static char runtime_base[FOLDER_BYTES];     /* "": none was named */
static char programs[PROGRAMS_BYTES];

static bool is_usable(const char *path)
{
    return path && path[0] == '/' && strlen(path) < FOLDER_BYTES - 16;
}

/* Without slashes at its end. */
static void copy_path(char *out, const char *path)
{
    size_t length = strlen(path);
    memcpy(out, path, length + 1);
    while (length > 1 && out[length - 1] == '/')
        out[--length] = '\0';
}

static void use_folders(const char *temporary, const char *runtime)
{
    copy_path(temporary_folder, is_usable(temporary) ? temporary : "/tmp");
    copy_path(runtime_base, is_usable(runtime) ? runtime : "");
}

static void use_programs(const char *path)
{
    snprintf(programs, sizeof programs, "%s", path ? path : "");
}

static void read_environment(void)
{
    use_folders(secure_getenv("TMPDIR"), secure_getenv("XDG_RUNTIME_DIR"));
    use_programs(secure_getenv("PATH"));
}

void zr_folders_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
}

void zr_folders_set(const char *temporary, const char *runtime)
{
    zr_folders_prepare();
    use_folders(temporary, runtime);
}

void zr_folders_set_programs(const char *path)
{
    zr_folders_prepare();
    use_programs(path);
}

const char *zr_folder_programs(void)
{
    zr_folders_prepare();
    return programs;
}

const char *zr_folder_temporary(void)
{
    zr_folders_prepare();
    return temporary_folder;
}

const char *zr_folder_scope(void)
{
    char usual[64];
    zr_folders_prepare();
    snprintf(usual, sizeof usual, "/run/user/%ld", (long)geteuid());
    return strcmp(runtime_base, usual) == 0 ? "" : runtime_base;
}

/* No other user can create a file there. */
static zr_result check_own(const char *path)
{
    struct stat status;
    if (lstat(path, &status) != 0)
        return zr_fail(ZR_ERR_IO, "folder '%s' does not exist", path);
    if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0)
        return zr_fail(ZR_ERR_IO,
                       "'%s' is not a folder of this user with mode 0700: remove it, or set XDG_RUNTIME_DIR",
                       path);
    return ZR_OK;
}

static bool is_own_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

zr_result zr_folder_runtime(char path[ZR_FOLDER_BYTES], bool make)
{
    zr_folders_prepare();
    snprintf(path, ZR_FOLDER_BYTES, "/run/user/%ld", (long)geteuid());
    if (runtime_base[0] && is_own_folder(runtime_base))
        snprintf(path, ZR_FOLDER_BYTES, "%s/zr", runtime_base);
    else if (is_own_folder(path))
        strcat(path, "/zr");
    else
        snprintf(path, ZR_FOLDER_BYTES, "/tmp/zr-%ld", (long)geteuid());
    if (make && mkdir(path, 0700) != 0 && errno != EEXIST)
        return zr_fail(ZR_ERR_IO, "cannot make the folder '%s' (error %d)", path, errno);
    return check_own(path);
}
