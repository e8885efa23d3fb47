/* program.c: see program.h. Reads the ELF headers of a file, which may be damaged: every offset is checked.
 */
#define _GNU_SOURCE
#include "alloc/base/system/file.h"
#include "defrag/tool/run/program.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* ---- Location ------------------------------------------------------------------------------------------ */

/* Returns 0, or the errno that tells why the path cannot be run. */
static int check_path(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return errno == ENOTDIR ? ENOENT : errno;
    if (S_ISDIR(status.st_mode))
        return EISDIR;
    return access(path, X_OK) == 0 ? 0 : errno;
}

static bool find_path(const char *name, struct zr_program *out)
{
    const char *folders = getenv("PATH");
    if (strchr(name, '/')) {
        snprintf(out->path, sizeof out->path, "%s", name);
        out->error = strlen(name) < sizeof out->path ? check_path(name) : ENAMETOOLONG;
        return out->error == 0;
    }
    out->error = ENOENT;
    for (folders = folders ? folders : "/usr/bin:/bin"; *name;) {
        size_t length = strcspn(folders, ":");
        int bytes =
            snprintf(out->path, sizeof out->path, "%.*s%s%s", (int)length, folders, length ? "/" : "", name);
        int error = bytes < (int)sizeof out->path ? check_path(out->path) : ENAMETOOLONG;
        if (error == 0) {
            out->error = 0;
            return true;
        }
        out->error = error == EACCES ? EACCES : out->error;
        if (folders[length] == '\0')
            break;
        folders += length + 1;
    }
    return false;
}

/* ---- Kind ---------------------------------------------------------------------------------------------- */

static void cannot(struct zr_program *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void cannot(struct zr_program *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->obstacle, sizeof out->obstacle, format, arguments);
    va_end(arguments);
}

static bool read_at(int fd, uint64_t offset, void *out, size_t bytes)
{
    return offset <= INT64_MAX && zr_read_all(fd, (int64_t)offset, out, bytes) == (ssize_t)bytes;
}

/* Finds the first segment of the type. False: the program has none. */
static bool find_segment(int fd, const Elf64_Ehdr *header, uint32_t type, Elf64_Phdr *out)
{
    for (unsigned i = 0; i < header->e_phnum; i++)
        if (read_at(fd, header->e_phoff + i * sizeof *out, out, sizeof *out) && out->p_type == type)
            return true;
    return false;
}

/* Converts an address of the program to a file offset; 0: none. */
static uint64_t place_of(int fd, const Elf64_Ehdr *header, uint64_t address)
{
    Elf64_Phdr segment;
    for (unsigned i = 0; i < header->e_phnum; i++)
        if (read_at(fd, header->e_phoff + i * sizeof segment, &segment, sizeof segment) &&
            segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
            address - segment.p_vaddr < segment.p_filesz)
            return segment.p_offset + (address - segment.p_vaddr);
    return 0;
}

/* Whether the program is linked with a sanitizer's library. */
static bool needs_sanitizer(int fd, const Elf64_Ehdr *header)
{
    static const char *const prefixes[] = {"libasan", "libtsan", "liblsan", "libhwasan"};
    Elf64_Phdr segment;
    Elf64_Dyn entries[256];
    char name[64];
    uint64_t strings = 0;
    if (!find_segment(fd, header, PT_DYNAMIC, &segment) || segment.p_offset > INT64_MAX)
        return false;
    size_t bytes = segment.p_filesz < sizeof entries ? segment.p_filesz : sizeof entries;
    ssize_t got = zr_read_all(fd, (int64_t)segment.p_offset, entries, bytes);
    size_t count = got > 0 ? (size_t)got / sizeof *entries : 0;
    for (size_t i = 0; i < count; i++)
        if (entries[i].d_tag == DT_STRTAB)
            strings = place_of(fd, header, entries[i].d_un.d_ptr);
    for (size_t i = 0; i < count && strings && entries[i].d_tag != DT_NULL; i++) {
        if (entries[i].d_tag != DT_NEEDED)
            continue;
        ssize_t length = zr_read_all(fd, (int64_t)(strings + entries[i].d_un.d_val), name, sizeof name - 1);
        name[length > 0 ? length : 0] = '\0';
        for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++)
            if (strncmp(name, prefixes[k], strlen(prefixes[k])) == 0)
                return true;
    }
    return false;
}

static void look_into_elf(int fd, const Elf64_Ehdr *header, struct zr_program *out)
{
    Elf64_Phdr segment;
    char loader[256] = "";
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != EM_X86_64) {
        cannot(out, "it is for another processor than libzr_malloc.so");
        return;
    }
    if (!find_segment(fd, header, PT_INTERP, &segment)) {
        cannot(out, "it is statically linked, and nothing can be preloaded before it");
        return;
    }
    ssize_t got = segment.p_offset <= INT64_MAX
                      ? zr_read_all(fd, (int64_t)segment.p_offset, loader, sizeof loader - 1)
                      : 0;
    loader[got > 0 ? got : 0] = '\0';
    memcpy(out->loader, loader, sizeof loader);
    if (!strstr(loader, "ld-linux"))
        cannot(out, "its C library is not glibc (its loader is %s)", loader);
    else if (needs_sanitizer(fd, header)) {
        out->refused = true;
        cannot(
            out,
            "it is built with a sanitizer, which needs malloc for itself; build it without to run it on zr");
    }
}

/* Finds the interpreter that the first line of a script names; false: none. */
static bool find_interpreter(const char *line, struct zr_program *out)
{
    line += strspn(line, " \t");
    size_t length = strcspn(line, " \t\n");
    if (length == 0 || length >= sizeof out->path)
        return false;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s", (int)length, line);
    /* env looks the interpreter up in PATH */
    const char *rest = line + length + strspn(line + length, " \t");
    const char *base = strrchr(path, '/');
    size_t word = strcspn(rest, " \t\n");
    if (base && strcmp(base, "/env") == 0 && word > 0 && rest[0] != '-' && word < sizeof path) {
        snprintf(path, sizeof path, "%.*s", (int)word, rest);
        return zr_program_find(path, out);
    }
    struct zr_program found;
    if (!zr_program_find(path, &found))
        return false;
    *out = found;
    return true;
}

static void look_into(struct zr_program *out)
{
    struct stat status;
    union {
        Elf64_Ehdr header;
        char line[512];
    } start;
    int fd = open(out->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return; /* executable but unreadable: its kind is unknown */
    ssize_t got = zr_read_all(fd, 0, &start, sizeof start - 1);
    if (fstat(fd, &status) == 0 && geteuid() != 0 &&
        ((status.st_mode & S_ISUID && status.st_uid != geteuid()) ||
         (status.st_mode & S_ISGID && status.st_gid != getegid()) ||
         fgetxattr(fd, "security.capability", NULL, 0) > 0))
        cannot(out, "it runs with the rights of another user, and the loader preloads nothing there");
    else if (got >= (ssize_t)sizeof start.header && memcmp(start.header.e_ident, ELFMAG, SELFMAG) == 0) {
        memcpy(out->image, out->path, sizeof out->image);
        look_into_elf(fd, &start.header, out);
    } else if (got > 2 && memcmp(start.line, "#!", 2) == 0) {
        struct zr_program interpreter;
        start.line[got] = '\0';
        if (find_interpreter(start.line + 2, &interpreter)) {
            memcpy(out->obstacle, interpreter.obstacle, sizeof out->obstacle);
            memcpy(out->image, interpreter.image, sizeof out->image);
            memcpy(out->loader, interpreter.loader, sizeof out->loader);
            out->refused = interpreter.refused;
        }
    }
    close(fd);
}

bool zr_program_find(const char *name, struct zr_program *out)
{
    *out = (struct zr_program){0};
    if (!find_path(name, out))
        return false;
    look_into(out);
    return true;
}

/* ---- Preloaded libraries ------------------------------------------------------------------------------- */

bool zr_program_library(const char *name, char out[PATH_MAX])
{
    static const char *const folders[] = {"../lib", "../lib/x86_64-linux-gnu", "../lib64", "."};
    char own[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length <= 0)
        return false;
    own[length] = '\0';
    *strrchr(own, '/') = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof path, "%s/%s/%s", own, folders[i], name);
        if (realpath(path, out))
            return true;
    }
    return false;
}
