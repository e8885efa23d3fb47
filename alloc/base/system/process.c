/* process.c: reads /proc to see whether a process lives, and what it does. Uses file.h alone. */
#define _GNU_SOURCE
#include "alloc/base/system/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/hash.h"
#include "alloc/base/system/file.h"

/* Bytes read, 0 if the file is not there. */
static size_t read_small(const char *path, char *out, size_t room_bytes)
{
    return zr_read_text(path, out, room_bytes);
}

/* The number of this boot, and the one of the space of process numbers: two containers have two. */
static uint64_t machine_number(void)
{
    char boot[64];
    struct stat space;
    size_t bytes = read_small("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
    if (bytes == 0 || stat("/proc/self/ns/pid", &space) != 0)
        return 0;
    return zr_hash_next(zr_hash_more(ZR_HASH_START, boot, bytes), (uint64_t)space.st_ino) | 1;
}

/* Of /proc/PID/stat. */
struct process_stat {
    char state;       /* field 3 */
    int32_t parent;   /* field 4 */
    uint64_t ticks;   /* fields 14 and 15: of the processor, in the program and in the kernel */
    uint64_t started; /* field 22 */
};

/* `line` is the file's text. The name before the fields may hold anything. */
static bool parse_stat(const char *line, struct process_stat *out)
{
    const char *at = strrchr(line, ')');
    if (!at || at[1] != ' ')
        return false;
    *out = (struct process_stat){.state = at[2]};
    for (unsigned field = 3; at && field <= 22; field++) {
        at = strchr(at + 1, ' ');
        if (at && field == 4)
            out->parent = (int32_t)strtol(at + 1, NULL, 10);
        if (at && (field == 14 || field == 15))
            out->ticks += strtoull(at + 1, NULL, 10);
    }
    out->started = at ? strtoull(at + 1, NULL, 10) : 0;
    return at != NULL;
}

static bool read_stat(int32_t pid, struct process_stat *out)
{
    char path[32], line[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    return read_small(path, line, sizeof(line)) > 0 && parse_stat(line, out);
}

void zr_process_self(struct zr_process *out)
{
    struct process_stat stat;
    memset(out, 0, sizeof(*out));
    out->pid = (int32_t)getpid();
    if (!read_stat(out->pid, &stat))
        return;
    out->machine = machine_number();
    out->started = stat.started;
}

bool zr_process_near(const struct zr_process *process)
{
    return process->machine != 0 && process->machine == machine_number();
}

bool zr_process_lives(const struct zr_process *process)
{
    struct process_stat stat;
    if (!zr_process_near(process))
        return true;
    return read_stat(process->pid, &stat) && stat.started == process->started && stat.state != 'Z' &&
           stat.state != 'X';
}

uint64_t zr_process_started(int32_t pid)
{
    struct process_stat stat;
    return read_stat(pid, &stat) ? stat.started : 0;
}

int32_t zr_process_parent(int32_t pid)
{
    struct process_stat stat;
    return read_stat(pid, &stat) ? stat.parent : 0;
}

char zr_process_state(int32_t pid)
{
    struct process_stat stat;
    return read_stat(pid, &stat) ? stat.state : '\0';
}

uint64_t zr_process_thread_ticks(int32_t pid, const char *name)
{
    char path[64], line[1024];
    struct zr_folder folder;
    struct zr_folder_entry entry;
    struct process_stat stat;
    uint64_t ticks = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    if (zr_folder_open(&folder, path) != ZR_OK)
        return 0;
    while (zr_folder_next(&folder, &entry) == ZR_OK && entry.name) {
        snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", (int)pid, entry.name);
        if (read_small(path, line, sizeof(line)) == 0 || !parse_stat(line, &stat))
            continue;
        const char *begin = strchr(line, '('), *end = strrchr(line, ')');
        if (begin && (size_t)(end - begin - 1) == strlen(name) && strncmp(begin + 1, name, strlen(name)) == 0)
            ticks += stat.ticks;
    }
    zr_folder_close(&folder);
    return ticks;
}
