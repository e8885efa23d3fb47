/* live.h: the common part of the subcommands for running processes. Private to defrag/tool/. */
#ifndef ZR_TOOL_LIVE_H
#define ZR_TOOL_LIVE_H

#include <limits.h>

#include "defrag/tool/tool.h"
#include "defrag/trace/live.h"

/* One figure of an arena, by name. A name that ends in _count is a counter that only grows, except
 * blocks_count. */
struct zr_tool_figure {
    const char *name;
    uint64_t value;
};
enum { ZR_TOOL_FIGURES = 15 };
void zr_tool_arena_figures(struct zr_tool_figure out[ZR_TOOL_FIGURES],
                           const struct zr_published_arena *arena);
/* Prints the figures of one arena as a JSON object. */
void zr_tool_json_arena(struct zr_text *text, const struct zr_published_arena *arena);
/* A word for an arena in messages and file names: its name with other characters replaced, followed by its
 * number if another arena of the process has the same name. */
enum { ZR_TOOL_ARENA_WORD = ZR_PUBLISHED_NAME_BYTES + 12 };
void zr_tool_arena_word(char out[ZR_TOOL_ARENA_WORD], const struct zr_live *live, unsigned index);
/* Finds the arena by its word or number; NULL: the only one. ZR_ERR_INVALID, with the list of arenas: no
 * arena matches. */
zr_result zr_tool_find_arena(unsigned *index, const struct zr_live *live, const char *word);
/* Inserts the word into a file name: "step.zrt" and "large" give "step-large.zrt". ZR_ERR_INVALID: too long.
 */
zr_result zr_tool_arena_file(char out[PATH_MAX], const char *file, const char *word);
/* Timeouts. zr_tool_patience: a command waits ten seconds for the process that it names, up to a minute while
 * that process writes its blocks, and says after one second why it waits. zr_tool_glance: a list waits
 * briefly for each process, and not at all for a stopped one, whose last figures it shows. */
extern const struct zr_live_patience zr_tool_patience, zr_tool_glance;
/* Warns that a process in a list did not answer: ZR_ERR_TIMEOUT becomes ZR_OK. */
zr_result zr_tool_note_old(void);

/* Reads the number of a process. False, after a message: the text is no such number. */
bool zr_tool_read_pid(const char *text, long *out);

/* A user often knows the number of a launcher: zr-train's, mpirun, zr run. If the launcher holds no memory
 * itself, its number stands for the descendants that publish their memory.
 *
 * Finds the next descendant after `*rank`, by process number; start with 0. False: there are no more
 * descendants, or `pid` holds memory itself. */
bool zr_tool_next_rank(long pid, long *rank);
/* Replaces a launcher's *pid by its only rank, with a message. *pid is unchanged if no rank exists.
 * ZR_ERR_INVALID, with the numbers: the launcher has several ranks. */
zr_result zr_tool_find_rank(long *pid);

/* Calls each(state, pid), in order, for the processes that the arguments name, and for each rank of a
 * launcher. If the arguments name none and `all` is set, calls it for every process that publishes its
 * memory, and ignores failures. A failure of a named process is printed, and the next process follows, except
 * after ZR_ERR_INVALID. Returns an exit code; ZR_TOOL_USAGE, without a call, if an argument is not a number.
 */
typedef zr_result zr_tool_each(void *state, long pid);
int zr_tool_each_process(const struct zr_tool_arguments *arguments, bool all, zr_tool_each *each,
                         void *state);

#endif
