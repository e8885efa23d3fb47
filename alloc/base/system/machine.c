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
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/base/error.h"

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
    struct path mount;      /* where it is mounted; fits: it has been found */
    struct path own;        /* this process's group, relative to the mount; fits: it has been found */
};

enum { VERSION_2, MEMORY, CPU, HIERARCHIES };

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

/* This process's groups, from a line of /proc/self/cgroup: "id:controllers:path". */
static void take_own(char *line, const char *root, struct hierarchy hierarchies[HIERARCHIES])
{
    char *controllers = strchr(line, ':');
    char *own = controllers ? strchr(controllers + 1, ':') : NULL;
    (void)root;
    if (!own)
        return;
    size_t length = (size_t)(own - controllers - 1);
    for (struct hierarchy *one = hierarchies; one < hierarchies + HIERARCHIES; one++)
        if (!one->own.fits &&
            (one->controller ? list_holds(controllers + 1, length, one->controller) : length == 0))
            path_start(&one->own, strcmp(own + 1, "/") == 0 ? "" : own + 1, "");
}

/* The mount points, from a line of /proc/self/mountinfo: "id parent dev root point options.. - type source
 * super". Inside a container the mount's root is the group the container began with: take it off the path. */
static void take_mount(char *line, const char *root, struct hierarchy hierarchies[HIERARCHIES])
{
    char *field[5], *save = NULL, *rest = strstr(line, " - ");
    if (!rest)
        return;
    *rest = '\0';
    rest += 3;
    for (unsigned i = 0; i < 5; i++) {
        field[i] = strtok_r(i ? NULL : line, " ", &save);
        if (!field[i])
            return;
    }
    char *type = strtok_r(rest, " ", &save), *source = strtok_r(NULL, " ", &save);
    char *super = strtok_r(NULL, " ", &save);
    if (!type || !source)
        return;
    for (struct hierarchy *one = hierarchies; one < hierarchies + HIERARCHIES; one++) {
        if (!one->own.fits || one->mount.fits || strcmp(type, one->controller ? "cgroup" : "cgroup2") != 0 ||
            (one->controller && (!super || !list_holds(super, strlen(super), one->controller))))
            continue;
        path_start(&one->mount, root, field[4]);
        size_t length = strlen(field[3]);
        char *own = one->own.text;
        if (length > 1 && strncmp(own, field[3], length) == 0 && (own[length] == '/' || own[length] == '\0'))
            memmove(own, own + length, one->own.length - length + 1);
    }
}

/* Calls take() for each line of the file under `root`. */
static void read_hierarchies(const char *root, const char *file, struct hierarchy hierarchies[HIERARCHIES],
                             void (*take)(char *line, const char *root,
                                          struct hierarchy hierarchies[HIERARCHIES]))
{
    struct path path;
    struct lines lines;
    char *line;
    path_start(&path, root, file);
    if (!lines_open(&lines, &path))
        return;
    while ((line = lines_next(&lines)))
        take(line, root, hierarchies);
    lines_close(&lines);
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

static void look_memory(const struct path *group, bool version_2, struct zr_machine *out)
{
    if (version_2)
        look_usage(group, out, "memory.max", "memory.current");
    else
        look_usage(group, out, "memory.limit_in_bytes", "memory.usage_in_bytes");
}

static void look_cores(const struct path *group, bool version_2, struct zr_machine *out)
{
    uint64_t share[2]; /* of time, in which period */
    bool found = version_2 ? group_numbers(group, "cpu.max", share, 2)
                           : group_numbers(group, "cpu.cfs_quota_us", &share[0], 1) &&
                                 group_numbers(group, "cpu.cfs_period_us", &share[1], 1);
    if (!found || share[0] >= NO_LIMIT || share[1] == 0 || share[1] >= NO_LIMIT)
        return;
    uint64_t cores = (share[0] + share[1] - 1) / share[1];
    if (cores < out->cores_count)
        out->cores_count = cores ? (unsigned)cores : 1;
}

/* Takes the limits of this process's group and of every one above it, up to the mount point. */
static void read_groups(const char *root, struct zr_machine *out)
{
    struct hierarchy hierarchies[HIERARCHIES] = {[MEMORY].controller = "memory", [CPU].controller = "cpu"};
    read_hierarchies(root, "/proc/self/cgroup", hierarchies, take_own);
    read_hierarchies(root, "/proc/self/mountinfo", hierarchies, take_mount);
    for (unsigned i = 0; i < HIERARCHIES; i++) {
        char *own = hierarchies[i].own.text, *slash = own + strlen(own);
        struct path group;
        for (; hierarchies[i].mount.fits && slash; slash = strrchr(own, '/')) {
            *slash = '\0';
            path_start(&group, hierarchies[i].mount.text, own);
            path_add(&group, "/");
            if (group.fits && i != CPU)
                look_memory(&group, i == VERSION_2, out);
            if (group.fits && i != MEMORY)
                look_cores(&group, i == VERSION_2, out);
        }
    }
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

void zr_os_machine(struct zr_machine *out)
{
    struct rlimit limit;
    *out = (struct zr_machine){0};
    out->cores_count = count_cores();
    out->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        out->address_limit_bytes = limit.rlim_cur ? limit.rlim_cur : 1;
    zr_os_machine_under("", out);
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
