/* launcher.c: a launcher's number stands for its ranks'. Stands on defrag/trace/live.c. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/process.h"
#include "defrag/tool/live/live.h"

enum { RANKS_NAMED = 8 };

static bool is_below(long pid, long above)
{
    while (pid > 1 && pid != above)
        pid = zr_process_parent((int32_t)pid);
    return pid == above && pid > 1; /* 1 began all of them */
}

/* Whether it holds what a launcher shares with its ranks, and no other memory; or shows none. */
static bool holds_nothing(long pid, bool *shows)
{
    static struct zr_live live;
    bool shown = zr_live_read(&live, pid, false) == ZR_OK;
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
        return zr_fail(ZR_ERR_INVALID, "process %ld holds no memory; the %u below it do: name one of%s%s",
                       *pid, count, names, count > RANKS_NAMED ? " .." : "");
    if (count == 1) {
        zr_tool_log("process %ld holds no memory: this is about process %ld, which it started", *pid, rank);
        *pid = rank;
    } else if (holds_nothing(*pid, &shows) && shows) {
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "process %ld holds no memory, nor does any that it started show some", *pid);
    }
    return ZR_OK;
}
