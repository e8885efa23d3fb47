/* live.h: what the subcommands about running processes share. Private to defrag/tool/. */
#ifndef ZR_TOOL_LIVE_H
#define ZR_TOOL_LIVE_H

#include "defrag/tool/tool.h"
#include "defrag/trace/live.h"

/* The figures of one arena by name: those that end in _count only grow, but for blocks_count. */
struct zr_tool_figure {
    const char *name;
    uint64_t value;
};
enum { ZR_TOOL_FIGURES = 15 };
void zr_tool_arena_figures(struct zr_tool_figure out[ZR_TOOL_FIGURES],
                           const struct zr_published_arena *arena);
/* An object of JSON: the figures of one arena. */
void zr_tool_json_arena(struct zr_text *text, const struct zr_published_arena *arena);
/* A process's number; false: it is none, which is said. */
bool zr_tool_read_pid(const char *text, long *out);

/* A user knows the number of what was started: of zr-train's launcher, mpirun, zr run. It stands for the
 * processes below it that show their memory, where it holds none itself.
 *
 * The next of them after `*rank` by number; start with 0. False: there is none, or `pid` holds memory. */
bool zr_tool_next_rank(long pid, long *rank);
/* The only one instead, which is said. *pid stays where there is none. ZR_ERR_INVALID, with their numbers:
 * there are several. */
zr_result zr_tool_find_rank(long *pid);

/* Calls each(state, pid) for the processes that the arguments name (of a launcher for its
 * ranks), in order; where they name none and `all`,
 * for every one that shows its memory, whose failures are nobody's. What fails of a named one is said, and
 * the next one goes on, but after ZR_ERR_INVALID. Returns an exit code: ZR_TOOL_USAGE, and nothing was
 * called, where a name is no number. */
typedef zr_result zr_tool_each(void *state, long pid);
int zr_tool_each_process(const struct zr_tool_arguments *arguments, bool all, zr_tool_each *each,
                         void *state);

#endif
