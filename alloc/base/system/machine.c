/* machine.c: what the machine and its limits grant this process; the second half of os.h.
 *
 * Reads /proc and /sys a line at a time into a buffer on the stack: the answer is needed before there is any
 * memory, and often because there is little. A file that is missing means "no limit stated". */
#define _GNU_SOURCE
#include "alloc/base/system/os.h"

#include <fcntl.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/base/error.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define PATH_ROOM 1024

/* A path that grows at its end and forgets what does not fit; `fits` says whether all of it did. */
struct path {
    size_t length;
    bool fits;
    char text[PATH_ROOM];
};

static void path_add(struct path *path, const char *more)
{
    size_t length = strlen(more);
    if (path->length + length >= sizeof path->text) {
        path->fits = false;
        return;
    }
    memcpy(path->text + path->length, more, length + 1);
    path->length += length;
}

static void path_start(struct path *path, const char *first, const char *second)
{
    path->length = 0;
    path->fits = true;
    path->text[0] = '\0';
    path_add(path, first);
    path_add(path, second);
}

/* ---- Lines of a small system file ---------------------------------------------------------------------- */

struct lines {
    int fd;
    size_t used_bytes, next_bytes;
    char buffer[4096]; /* a longer line is cut */
};

static bool lines_open(struct lines *lines, const struct path *path)
{
    lines->used_bytes = lines->next_bytes = 0;
    lines->fd = path->fits ? open(path->text, O_RDONLY | O_CLOEXEC) : -1;
    return lines->fd >= 0;
}

static void lines_close(struct lines *lines)
{
    if (lines->fd >= 0)
        close(lines->fd);
}

/* Fills the free end of the buffer. False at the end of the file. */
static bool lines_fill(struct lines *lines)
{
    memmove(lines->buffer, lines->buffer + lines->next_bytes, lines->used_bytes - lines->next_bytes);
    lines->used_bytes -= lines->next_bytes;
    lines->next_bytes = 0;
    size_t room = sizeof lines->buffer - 1 - lines->used_bytes;
    ssize_t got;
    do
        got = room ? read(lines->fd, lines->buffer + lines->used_bytes, room) : 0;
    while (got < 0 && errno == EINTR);
    if (got > 0)
        lines->used_bytes += (size_t)got;
    return got > 0;
}

/* The next line without its end, NULL after the last. Valid until the next call. */
static char *lines_next(struct lines *lines)
{
    for (;;) {
        char *start = lines->buffer + lines->next_bytes;
        size_t left = lines->used_bytes - lines->next_bytes;
        char *end = memchr(start, '\n', left);
        if (end) {
            *end = '\0';
            lines->next_bytes += (size_t)(end - start) + 1;
            return start;
        }
        if (lines_fill(lines))
            continue;
        if (left == 0)
            return NULL;
        /* The last line without its end, or one longer than the buffer: what there is of it. */
        lines->buffer[lines->used_bytes] = '\0';
        lines->next_bytes = lines->used_bytes;
        return lines->buffer;
    }
}

/* The value after `key` in a line "key: value kB" or "key: value", false for another line. */
static bool line_value(const char *line, const char *key, uint64_t *out)
{
    size_t length = strlen(key);
    /* NOLINTNEXTLINE(clang-analyzer-*): strncmp() has read the bytes before it */
    if (strncmp(line, key, length) != 0 || line[length] != ':')
        return false;
    char *end;
    *out = strtoull(line + length + 1, &end, 10);
    if (strncmp(end, " kB", 3) == 0)
        *out *= 1024;
    return true;
}

/* The first numbers of a file of one line; "max" and what is no number read as UINT64_MAX. Returns how many
 * there were, 0 for a missing file. */
static unsigned read_numbers(const struct path *path, uint64_t *numbers, unsigned room)
{
    struct lines lines;
    unsigned count = 0;
    char *line = lines_open(&lines, path) ? lines_next(&lines) : NULL;
    while (line && *line && count < room) {
        char *end;
        numbers[count] = strtoull(line, &end, 10);
        if (end == line || *line == '-')
            numbers[count] = UINT64_MAX;
        count++;
        end = strchrnul(line, ' ');
        line = *end ? end + 1 : end;
    }
    lines_close(&lines);
    return count;
}

/* ---- Control groups ------------------------------------------------------------------------------------ */

/* One hierarchy: version 2's, or a controller of version 1. */
struct hierarchy {
    const char *controller; /* NULL: version 2 */
    struct path mount;      /* where it is mounted */
    struct path own;        /* this process's group, relative to the mount */
};

/* True when the comma-separated list holds the word. */
static bool list_holds(const char *list, size_t length, const char *word)
{
    size_t word_length = strlen(word);
    for (const char *end = list + length; list < end;) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        size_t part = (size_t)((comma ? comma : end) - list);
        if (part == word_length && memcmp(list, word, part) == 0)
            return true;
        list += part + 1;
    }
    return false;
}

/* This process's path in the hierarchy, from /proc/self/cgroup: "id:controllers:path". */
static bool find_own(const char *root, struct hierarchy *hierarchy)
{
    struct path path;
    struct lines lines;
    char *line;
    bool found = false;
    path_start(&path, root, "/proc/self/cgroup");
    if (!lines_open(&lines, &path))
        return false;
    while (!found && (line = lines_next(&lines))) {
        char *controllers = strchr(line, ':');
        char *own = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!own)
            continue;
        size_t length = (size_t)(own - controllers - 1);
        found =
            hierarchy->controller ? list_holds(controllers + 1, length, hierarchy->controller) : length == 0;
        if (found)
            path_start(&hierarchy->own, own + 1, "");
    }
    lines_close(&lines);
    return found && hierarchy->own.fits;
}

/* The mount point, from a line of /proc/self/mountinfo: "id parent dev root point options.. - type source
 * super". Inside a container the mount's root is the group the container began with: take it off the path. */
static bool take_mount(char *line, const char *root, struct hierarchy *hierarchy)
{
    char *field[5], *save = NULL, *rest = strstr(line, " - ");
    if (!rest)
        return false;
    *rest = '\0';
    rest += 3;
    for (unsigned i = 0; i < 5; i++) {
        field[i] = strtok_r(i ? NULL : line, " ", &save);
        if (!field[i])
            return false;
    }
    char *type = strtok_r(rest, " ", &save), *source = strtok_r(NULL, " ", &save);
    char *super = strtok_r(NULL, " ", &save);
    if (!type || !source || strcmp(type, hierarchy->controller ? "cgroup" : "cgroup2") != 0)
        return false;
    if (hierarchy->controller && (!super || !list_holds(super, strlen(super), hierarchy->controller)))
        return false;
    path_start(&hierarchy->mount, root, field[4]);
    size_t length = strlen(field[3]);
    char *own = hierarchy->own.text;
    if (length > 1 && strncmp(own, field[3], length) == 0 && (own[length] == '/' || own[length] == '\0')) {
        memmove(own, own + length, hierarchy->own.length - length + 1);
        hierarchy->own.length -= length;
    }
    return hierarchy->mount.fits;
}

/* Finds where the hierarchy is. False when this process is in none. */
static bool hierarchy_find(const char *root, struct hierarchy *hierarchy)
{
    struct path path;
    struct lines lines;
    char *line;
    bool found = false;
    path_start(&path, root, "/proc/self/mountinfo");
    if (!find_own(root, hierarchy) || !lines_open(&lines, &path))
        return false;
    while (!found && (line = lines_next(&lines)))
        found = take_mount(line, root, hierarchy);
    lines_close(&lines);
    return found;
}

/* Calls look() for this process's group and every one above it, the files of each under `prefix`. */
static void hierarchy_walk(struct hierarchy *hierarchy, struct zr_machine *out,
                           void (*look)(const struct path *group, struct zr_machine *out))
{
    struct path group;
    char *own = hierarchy->own.text;
    for (;;) {
        path_start(&group, hierarchy->mount.text, own);
        path_add(&group, "/");
        if (group.fits)
            look(&group, out);
        char *slash = strrchr(own, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

static bool group_numbers(const struct path *group, const char *file, uint64_t *numbers, unsigned count)
{
    struct path path;
    path_start(&path, group->text, file);
    return read_numbers(&path, numbers, count) == count;
}

/* Version 1 says "no limit" with the largest number of whole pages. */
#define NO_LIMIT (UINT64_C(1) << 60)

static void take_limit(uint64_t limit, uint64_t used, struct zr_machine *out)
{
    if (limit >= NO_LIMIT || (out->cgroup_limit_bytes && limit >= out->cgroup_limit_bytes))
        return;
    out->cgroup_limit_bytes = limit ? limit : 1;
    out->cgroup_used_bytes = used;
}

/* File pages that the kernel drops before a group is out of memory: a program that has read much is not one
 * that is about to be killed. Version 1 has the sums over the groups below under total_. */
static uint64_t reclaimable(const struct path *group)
{
    static const char *const version_1[] = {"total_inactive_file ", "total_active_file "};
    static const char *const version_2[] = {"inactive_file ", "active_file "};
    struct path path;
    struct lines lines;
    char *line;
    uint64_t own = 0, total = 0;
    path_start(&path, group->text, "memory.stat");
    if (lines_open(&lines, &path)) {
        while ((line = lines_next(&lines)))
            for (unsigned i = 0; i < 2; i++) {
                if (strncmp(line, version_1[i], strlen(version_1[i])) == 0)
                    total += strtoull(line + strlen(version_1[i]), NULL, 10);
                else if (strncmp(line, version_2[i], strlen(version_2[i])) == 0)
                    own += strtoull(line + strlen(version_2[i]), NULL, 10);
            }
        lines_close(&lines);
    }
    return total > own ? total : own;
}

static void look_usage(const struct path *group, struct zr_machine *out, const char *limit_file,
                       const char *used_file)
{
    uint64_t limit, used = 0;
    if (!group_numbers(group, limit_file, &limit, 1) || limit >= NO_LIMIT)
        return;
    group_numbers(group, used_file, &used, 1);
    uint64_t droppable = reclaimable(group);
    take_limit(limit, used > droppable ? used - droppable : 0, out);
}

static void look_memory(const struct path *group, struct zr_machine *out)
{
    look_usage(group, out, "memory.max", "memory.current");
    look_usage(group, out, "memory.limit_in_bytes", "memory.usage_in_bytes");
}

static void look_cores(const struct path *group, struct zr_machine *out)
{
    uint64_t share[2]; /* of time, in which period */
    bool found = group_numbers(group, "cpu.max", share, 2) ||
                 (group_numbers(group, "cpu.cfs_quota_us", &share[0], 1) &&
                  group_numbers(group, "cpu.cfs_period_us", &share[1], 1));
    if (!found || share[0] >= NO_LIMIT || share[1] == 0 || share[1] >= NO_LIMIT)
        return;
    uint64_t cores = (share[0] + share[1] - 1) / share[1];
    if (cores < out->cores_count)
        out->cores_count = cores ? (unsigned)cores : 1;
}

static void read_groups(const char *root, struct zr_machine *out)
{
    struct hierarchy hierarchy = {.controller = NULL};
    if (hierarchy_find(root, &hierarchy))
        hierarchy_walk(&hierarchy, out, look_memory);
    if (hierarchy_find(root, &hierarchy))
        hierarchy_walk(&hierarchy, out, look_cores);
    hierarchy.controller = "memory";
    if (hierarchy_find(root, &hierarchy))
        hierarchy_walk(&hierarchy, out, look_memory);
    hierarchy.controller = "cpu";
    if (hierarchy_find(root, &hierarchy))
        hierarchy_walk(&hierarchy, out, look_cores);
}

/* ---- The machine --------------------------------------------------------------------------------------- */

static void read_memory(const char *root, struct zr_machine *out)
{
    struct path path;
    struct lines lines;
    char *line;
    uint64_t mode = 0, limit = 0, committed = 0;

    path_start(&path, root, "/proc/sys/vm/overcommit_memory");
    out->overcommit_strict = read_numbers(&path, &mode, 1) == 1 && mode == 2;
    path_start(&path, root, "/proc/meminfo");
    if (!lines_open(&lines, &path))
        return;
    while ((line = lines_next(&lines)))
        if (!line_value(line, "MemTotal", &out->memory_bytes) &&
            !line_value(line, "MemAvailable", &out->memory_available_bytes) &&
            !line_value(line, "CommitLimit", &limit))
            line_value(line, "Committed_AS", &committed);
    lines_close(&lines);
    if (out->overcommit_strict)
        out->commit_left_bytes = limit > committed ? limit - committed : 1;
}

static void read_processor(const char *root, struct zr_machine *out)
{
    struct path path;
    struct lines lines;
    char *line;
    path_start(&path, root, "/proc/cpuinfo");
    if (!lines_open(&lines, &path))
        return;
    while (!out->cpu_name[0] && (line = lines_next(&lines))) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        size_t skip = strspn(colon + 1, " ");
        size_t length = strnlen(colon + 1 + skip, sizeof out->cpu_name - 1);
        memcpy(out->cpu_name, colon + 1 + skip, length);
    }
    lines_close(&lines);
}

void zr_os_machine_under(const char *root, struct zr_machine *out)
{
    read_memory(root, out);
    read_processor(root, out);
    read_groups(root, out);
}

/* Cores in this process's affinity mask. The system call itself takes masks of any size. */
static unsigned count_cores(void)
{
    unsigned long mask[256];
    unsigned count = 0;
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    for (long i = 0; i < bytes / (long)sizeof *mask; i++)
        count += (unsigned)__builtin_popcountl(mask[i]);
    return count ? count : 1;
}

/* Whether 2 MiB of a memfd can become one huge page: tried, not looked up, because shmem_enabled does not
 * bind MADV_COLLAPSE and only the attempt knows the kernel, the control group and the mount. */
static bool probe_huge_pages(void)
{
    const size_t huge_bytes = (size_t)2 << 20;
    bool huge = false;
    char *range = MAP_FAILED;
    int fd = (int)syscall(SYS_memfd_create, "zr-probe", 1u /* MFD_CLOEXEC */);

    if (fd < 0 || ftruncate(fd, (off_t)huge_bytes) != 0)
        goto unwind;
    range = mmap(NULL, 2 * huge_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        goto unwind;
    char *granule = (char *)(((uintptr_t)range + huge_bytes - 1) & ~(huge_bytes - 1));
    if (mmap(granule, huge_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != granule)
        goto unwind;
    *(volatile char *)granule = 1;
    huge = madvise(granule, huge_bytes, MADV_COLLAPSE) == 0;
unwind:
    if (range != MAP_FAILED)
        munmap(range, 2 * huge_bytes);
    if (fd >= 0)
        close(fd);
    return huge;
}

void zr_os_machine(struct zr_machine *out)
{
    struct rlimit limit;
    *out = (struct zr_machine){0};
    out->cores_count = count_cores();
    out->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        out->address_limit_bytes = limit.rlim_cur ? limit.rlim_cur : 1;
    zr_os_machine_under("", out);
    out->huge_pages = probe_huge_pages();
}

zr_result zr_os_resident(struct zr_resident *out)
{
    struct path path;
    struct lines lines;
    char *line;
    uint64_t value;
    unsigned found = 0;

    *out = (struct zr_resident){0};
    path_start(&path, "/proc/self/status", "");
    if (!lines_open(&lines, &path))
        return zr_fail(ZR_ERR_UNAVAILABLE, "cannot read /proc/self/status: is /proc mounted?");
    while ((line = lines_next(&lines))) {
        size_t *field = line_value(line, "RssAnon", &value)    ? &out->anonymous_bytes
                        : line_value(line, "RssFile", &value)  ? &out->file_bytes
                        : line_value(line, "RssShmem", &value) ? &out->shared_bytes
                        : line_value(line, "VmHWM", &value)    ? &out->peak_bytes
                        : line_value(line, "VmSize", &value)   ? &out->address_bytes
                                                               : NULL;
        if (field) {
            *field = value;
            found++;
        }
    }
    lines_close(&lines);
    return found == 5 ? ZR_OK
                      : zr_fail(ZR_ERR_UNAVAILABLE, "/proc/self/status lacks the Rss lines (Linux 4.5)");
}
