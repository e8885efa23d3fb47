/* launcher.c: finds the ranks of a launcher by its process number. Uses defrag/trace/live.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/process.h"
#include "defrag/tool/live/live.h"

enum { RANKS_NAMED = 8, BELOW_MAX = 64 };

static bool is_below(long pid, long above)
{
    while (pid > 1 && pid != above)
        pid = zr_process_parent((int32_t)pid);
    return pid == above && pid > 1; /* process 1 is the ancestor of all processes */
}

/* Whether the process holds only memory that a launcher shares with its ranks, or publishes none. */
static bool holds_nothing(long pid, bool *shows)
{
    static struct zr_live live;
    bool shown = zr_live_read(&live, pid, NULL) == ZR_OK;
    if (shows)
        *shows = shown;
    return !shown || (live.arenas_count == 1 && strcmp(live.shown.arenas[0].name, "control") == 0);
}

bool zr_tool_next_rank(long pid, long *rank)
{
    if (!holds_nothing(pid, NULL))
        return false;
    while (zr_live_next(rank))
        if (*rank != pid && is_below(*rank, pid) && !holds_nothing(*rank, NULL))
            return true;
    return false;
}

/* Finds the only descendant that runs on zr and has no descendant on zr; 0: none or several. Called if no
 * descendant publishes memory. */
static long only_small(long pid)
{
    struct zr_folder folder;
    struct zr_folder_entry entry;
    long below[BELOW_MAX], only = 0;
    unsigned count = 0, last_count = 0;
    if (zr_folder_open(&folder, "/proc") != ZR_OK)
        return 0;
    while (count < BELOW_MAX && zr_folder_next(&folder, &entry) == ZR_OK && entry.name) {
        long number = strtol(entry.name, NULL, 10);
        if (number > 0 && number != pid && is_below(number, pid) && zr_live_runs(number))
            below[count++] = number;
    }
    zr_folder_close(&folder);
    for (unsigned i = 0; i < count; i++) {
        bool last = true;
        for (unsigned j = 0; j < count; j++)
            last &= j == i || !is_below(below[j], below[i]);
        if (last && last_count++ == 0)
            only = below[i];
    }
    return last_count == 1 ? only : 0;
}

zr_result zr_tool_find_rank(long *pid)
{
    char names[RANKS_NAMED * 12 + 8];
    size_t length = 0;
    unsigned count = 0;
    long rank = 0, next = 0;
    bool shows;
    while (zr_tool_next_rank(*pid, &next)) {
        rank = next;
        if (count++ < RANKS_NAMED)
            length += (size_t)snprintf(names + length, sizeof names - length, " %ld", next);
    }
    if (count > 1)
        return zr_fail(ZR_ERR_INVALID,
                       "process %ld publishes no memory; %u processes below it do: choose one of%s%s", *pid,
                       count, names, count > RANKS_NAMED ? " .." : "");
    if (count == 0 && holds_nothing(*pid, &shows) && (rank = only_small(*pid)) > 0)
        count = 1;
    if (count == 1) {
        zr_tool_log("process %ld publishes no memory: using process %ld, which it started", *pid, rank);
        *pid = rank;
    } else if (holds_nothing(*pid, &shows) && shows) {
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "process %ld publishes no memory, and neither does a process that it started", *pid);
    }
    return ZR_OK;
}
