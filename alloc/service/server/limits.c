/* limits.c: see limits.h. Uses ledger.c. */
#define _GNU_SOURCE
#include "alloc/service/server/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/process.h"

static const char heading[] = "zrd limits 1\n", ending[] = "end\n";
enum { FILE_MAX_BYTES = 1 << 20, LINE_BYTES = 160 };

/* ---- Reading ------------------------------------------------------------------------------------------- */

static bool read_process(struct zr_limits *limits, const char *line)
{
    int32_t pid;
    uint64_t since, hard, soft;
    if (sscanf(line, "process %" SCNd32 " %" SCNu64 " %" SCNu64 " %" SCNu64, &pid, &since, &hard, &soft) !=
            4 ||
        pid <= 0 || hard > ZR_LEDGER_BYTES_MAX || soft > ZR_LEDGER_BYTES_MAX)
        return false;
    if (zr_process_started(pid) != since || limits->processes_count >= ZR_LIMITS_PROCESSES_MAX)
        return true; /* the process has exited */
    unsigned at = limits->processes_count++;
    limits->processes[at].pid = pid;
    limits->processes[at].began = since;
    limits->processes[at].hard_bytes = hard;
    limits->processes[at].soft_bytes = soft;
    return true;
}

static bool read_group(struct zr_ledger *ledger, const char *line)
{
    struct zr_service_message limit = {.flags =
                                           ZR_SERVICE_SET_HARD | ZR_SERVICE_SET_SOFT | ZR_SERVICE_SET_SHARES};
    char words[ZR_SERVICE_WORDS_BYTES];
    int at = 0;
    if (sscanf(line, "group %" SCNu64 " %" SCNu64 " %" SCNu32 "%n", &limit.hard_bytes, &limit.soft_bytes,
               &limit.shares, &at) != 3 ||
        line[at] != ' ' || strlen(line + at + 1) >= sizeof limit.group)
        return false;
    strcpy(limit.group, line + at + 1);
    return zr_ledger_limit(ledger, &limit, words, sizeof words, 0) == ZR_OK;
}

static bool read_capacity(const struct zr_limits *limits, struct zr_ledger *ledger, const char *line)
{
    uint64_t bytes, instead_of;
    if (sscanf(line, "capacity %" SCNu64 " instead of %" SCNu64, &bytes, &instead_of) != 2 || bytes == 0 ||
        bytes > ZR_LEDGER_BYTES_MAX)
        return false;
    /* The machine may have less memory than when the capacity was set. */
    if (instead_of == limits->own_capacity_bytes && zr_ledger_check_capacity(ledger, bytes) == ZR_OK)
        ledger->capacity_bytes = bytes;
    return true;
}

/* Returns 0, or the number of the first invalid line. */
static unsigned read_text(struct zr_limits *limits, struct zr_ledger *ledger, char *text)
{
    size_t length = strlen(text);
    unsigned number = 2;
    if (strncmp(text, heading, sizeof heading - 1) != 0)
        return 1;
    bool whole = length >= sizeof heading + sizeof ending - 2 &&
                 strcmp(text + length - (sizeof ending - 1), ending) == 0;
    for (char *rest = NULL, *line = strtok_r(text + sizeof heading - 1, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest), number++)
        if (strcmp(line, "end") != 0 && !read_capacity(limits, ledger, line) && !read_group(ledger, line) &&
            !read_process(limits, line))
            return number;
    return whole ? 0 : number;
}

static void rename_damaged(struct zr_limits *limits, unsigned line, struct zr_service_log *log)
{
    char aside[ZR_LIMITS_PATH_ROOM + 8];
    snprintf(aside, sizeof aside, "%s.bad", limits->path);
    bool moved = rename(limits->path, aside) == 0;
    zr_service_log(log, "cannot read the limits in '%s': line %u is invalid; %s '%s'", limits->path, line,
                   moved ? "the file is now" : "the file could not be renamed to", aside);
}

void zr_limits_load(struct zr_limits *limits, struct zr_ledger *ledger, struct zr_service_log *log)
{
    struct stat status;
    limits->own_capacity_bytes = ledger->capacity_bytes;
    int fd = limits->path[0] ? open(limits->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (fd < 0)
        return;
    bool sane = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size < FILE_MAX_BYTES;
    char *text = sane ? zr_pages_take((size_t)status.st_size + 1) : NULL;
    ssize_t got = text ? zr_read_all(fd, ZR_PRESENT_POSITION, text, (size_t)status.st_size) : -1;
    close(fd);
    unsigned wrong = got < 0 ? 1 : read_text(limits, ledger, text);
    if (text)
        zr_pages_give(text, (size_t)status.st_size + 1);
    limits->is_written = wrong == 0;
    if (wrong == 0)
        return;
    ledger->capacity_bytes = limits->own_capacity_bytes;
    limits->processes_count = 0;
    zr_ledger_unlimit(ledger);
    rename_damaged(limits, wrong, log);
}

void zr_limits_name(struct zr_limits *limits, const char *socket_path)
{
    int length = snprintf(limits->path, sizeof limits->path, "%s.limits", socket_path);
    if (length < 0 || (size_t)length >= sizeof limits->path)
        limits->path[0] = '\0';
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

struct writing {
    int fd;
    bool good;
};

static void write_line(struct writing *to, const char *line, int length)
{
    to->good = to->good && length > 0 && zr_write_all(to->fd, ZR_PRESENT_POSITION, line, (size_t)length);
}

static void write_all(const struct zr_limits *limits, const struct zr_ledger *ledger, struct writing *to)
{
    char line[LINE_BYTES];
    write_line(to, heading, sizeof heading - 1);
    if (ledger->capacity_bytes != limits->own_capacity_bytes)
        write_line(to, line,
                   snprintf(line, sizeof line, "capacity %" PRIu64 " instead of %" PRIu64 "\n",
                            ledger->capacity_bytes, limits->own_capacity_bytes));
    for (const struct zr_group *group = ledger->groups; group; group = group->next)
        if (group->kept && (group->hard_bytes || group->soft_bytes || group->shares != 1))
            write_line(to, line,
                       snprintf(line, sizeof line, "group %" PRIu64 " %" PRIu64 " %" PRIu32 " %s\n",
                                group->hard_bytes, group->soft_bytes, group->shares, group->name));
    for (unsigned i = 0; i < limits->processes_count; i++)
        write_line(to, line,
                   snprintf(line, sizeof line, "process %" PRId32 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                            limits->processes[i].pid, limits->processes[i].began,
                            limits->processes[i].hard_bytes, limits->processes[i].soft_bytes));
    write_line(to, ending, sizeof ending - 1);
}

static zr_result write_file(const struct zr_limits *limits, const struct zr_ledger *ledger)
{
    char aside[ZR_LIMITS_PATH_ROOM + 8];
    if (!limits->path[0])
        return ZR_OK;
    snprintf(aside, sizeof aside, "%s.new", limits->path);
    struct writing to = {
        .fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)};
    to.good = to.fd >= 0;
    if (to.good)
        write_all(limits, ledger, &to);
    to.good = to.good && fsync(to.fd) == 0;
    if (to.fd >= 0)
        close(to.fd);
    if (to.good && rename(aside, limits->path) == 0)
        return ZR_OK;
    int error = errno;
    unlink(aside);
    return zr_fail(
        ZR_ERR_IO,
        "the limit is set, but '%s' cannot be written (error %d): the next zrd will not have the limit",
        limits->path, error);
}

/* Records the quotas of a process and drops the records of exited processes. */
static void note_process(struct zr_limits *limits, const struct zr_ledger *ledger, int32_t pid)
{
    const struct zr_client *client = ledger->clients;
    unsigned kept = 0;
    while (client && client->pid != pid)
        client = client->next;
    for (unsigned i = 0; i < limits->processes_count; i++)
        if (limits->processes[i].pid != pid &&
            zr_process_started(limits->processes[i].pid) == limits->processes[i].began)
            limits->processes[kept++] = limits->processes[i];
    limits->processes_count = kept;
    if (!client || (!client->hard_bytes && !client->soft_bytes) || kept >= ZR_LIMITS_PROCESSES_MAX)
        return;
    limits->processes_count++;
    limits->processes[kept].pid = pid;
    limits->processes[kept].began = zr_process_started(pid);
    limits->processes[kept].hard_bytes = client->hard_bytes;
    limits->processes[kept].soft_bytes = client->soft_bytes;
}

zr_result zr_limits_note(struct zr_limits *limits, const struct zr_ledger *ledger,
                         const struct zr_service_message *limit)
{
    if (limit->pid)
        note_process(limits, ledger, limit->pid);
    limits->is_written = true;
    return write_file(limits, ledger);
}

zr_result zr_limits_move(struct zr_limits *limits, const struct zr_ledger *ledger, const char *socket_path)
{
    zr_limits_name(limits, socket_path);
    return limits->is_written ? write_file(limits, ledger) : ZR_OK;
}

void zr_limits_apply(const struct zr_limits *limits, struct zr_client *client)
{
    for (unsigned i = 0; i < limits->processes_count; i++)
        if (limits->processes[i].pid == client->pid &&
            limits->processes[i].began == zr_process_started(client->pid)) {
            client->hard_bytes = limits->processes[i].hard_bytes;
            client->soft_bytes = limits->processes[i].soft_bytes;
        }
}
