/* input.h: opens a file of memory events for a subcommand, measures it and reports truncation. Private to
 * defrag/tool/. */
#ifndef ZR_TOOL_INPUT_H
#define ZR_TOOL_INPUT_H

#include "defrag/report/address_map.h"
#include "defrag/report/moments.h"
#include "defrag/tool/symbols.h"
#include "defrag/tool/tool.h"

/* A file by name, or standard input ("-"), copied so that it can be read several times. */
struct zr_tool_source {
    const char *path; /* a path that can be opened */

    /* private */
    int fd; /* below 0: none */
    const char *called;
    char room[40];
};
/* The caller closes *out in any case. The name is borrowed. The struct must not move. */
zr_result zr_tool_source_open(struct zr_tool_source *out, const char *name);
void zr_tool_source_close(struct zr_tool_source *source);

struct zr_tool_input {
    const char *name; /* as the user gave it; "-" is standard input */
    struct zr_recording recording;
    struct zr_moments moments;
    struct zr_memory now; /* at the end */
    bool is_live; /* of a running process: the peak has the published peaks, and its other fields are unknown
                   */

    /* private */
    struct zr_symbols *symbols;
    struct zr_tool_source source;
};

/* How to read a file; see struct zr_read_options. */
struct zr_tool_reading {
    uint64_t device; /* UINT64_MAX: the device with the most events */
    uint64_t unit_bytes;
    bool held; /* see zr_recording_open() */
};

/* Opens a file or a process. A name that is no file and has the form PID or PID/ARENA takes a snapshot of
 * that arena, by name or number, or of the only arena. ZR_ERR_INVALID, with the arenas' names: the process
 * has several. The caller closes *out in any case. The name is borrowed. Warns on stderr if the file is
 * truncated. */
zr_result zr_tool_input_open(struct zr_tool_input *out, const char *name,
                             const struct zr_tool_reading *reading, zr_arena *arena);
void zr_tool_input_end(struct zr_tool_input *input);

/* Expanded names: the number of a process stands for each of its arenas; a launcher's number for its only
 * rank's arenas; any other name for itself. The list's arena owns the strings. Add no name after the first
 * read. */
struct zr_tool_names {
    struct zr_vector list; /* private: the names */
    bool has_process;      /* the list contains a process, so its length may differ from the arguments' */
};
zr_result zr_tool_names_make(struct zr_tool_names *out, const struct zr_tool_arguments *arguments,
                             zr_arena *arena);
void zr_tool_names_end(struct zr_tool_names *names);
/* Valid as long as the list and the arguments. */
const char *zr_tool_name(const struct zr_tool_names *names, size_t index);
/* The ARENA part of a name; NULL: the name is a file's. */
const char *zr_tool_name_arena(const struct zr_tool_names *names, size_t index);

/* Calls `work` with a new arena and destroys the arena; returns an exit code, after a message if it is not 0.
 */
int zr_tool_with_memory(zr_result (*work)(void *state, zr_arena *arena, int *code), void *state);

/* Whether messages go to a terminal, which shows progress. */
bool zr_tool_progress(void);
/* Shows "zr: WORDS" as progress on that terminal, in place; NULL erases it. */
void zr_tool_progress_say(const char *words);

/* One line for a stack: its innermost Python frame, or else the innermost frame that is not the allocator's.
 * False: there is none. */
bool zr_tool_short_stack(struct zr_recording *recording, uint32_t stack, char out[ZR_FRAME_BYTES]);

/* Appends the pieces of a memory to a vector of struct zr_map_extent. */
zr_result zr_tool_extents(struct zr_vector *extents, const struct zr_memory *memory);

/* Prints `"key": ` and the number, or null. */
void zr_tool_json_number(struct zr_text *text, const char *key, uint64_t number, bool known);

#endif
