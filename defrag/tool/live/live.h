/* live.h: what the subcommands about running processes share. Private to defrag/tool/. */
#ifndef ZR_TOOL_LIVE_H
#define ZR_TOOL_LIVE_H

#include <limits.h>

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
/* Arenas in words and file names: the name with other letters than a file name's replaced, with the number
 * behind it where another arena of the process has the same. */
enum { ZR_TOOL_ARENA_WORD = ZR_PUBLISHED_NAME_BYTES + 12 };
void zr_tool_arena_word(char out[ZR_TOOL_ARENA_WORD], const struct zr_live *live, unsigned index);
/* The arena with this word or number; NULL: the only one. ZR_ERR_INVALID, with those that there are. */
zr_result zr_tool_find_arena(unsigned *index, const struct zr_live *live, const char *word);
/* "step.zrt" and "large": "step-large.zrt". ZR_ERR_INVALID: too long. */
zr_result zr_tool_arena_file(char out[PATH_MAX], const char *file, const char *word);
/* How long a command waits for the process that it names: ten seconds, as long as a minute while that writes
 * its blocks; after one it says what it waits for. And how long a list waits for each of its processes, which
 * it shows anyhow: not at all where the process is stopped. */
extern const struct zr_live_patience zr_tool_patience, zr_tool_glance;
/* Says of a process in a list that it did not answer: ZR_ERR_TIMEOUT becomes ZR_OK. */
zr_result zr_tool_note_old(void);

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
