/* input.h: a file of memory events for a subcommand: opened, measured, its damage said. Private to
 * defrag/tool/. */
#ifndef ZR_TOOL_INPUT_H
#define ZR_TOOL_INPUT_H

#include "defrag/report/address_map.h"
#include "defrag/report/moments.h"
#include "defrag/tool/symbols.h"
#include "defrag/tool/tool.h"

/* A file by its name, or standard input ("-") kept where it can be read more than once. */
struct zr_tool_source {
    const char *path; /* what can be opened */

    /* private */
    int fd; /* below 0: none */
    const char *called;
    char room[40];
};
/* The caller closes *out in any case. The name is borrowed, and the struct stays where it is. */
zr_result zr_tool_source_open(struct zr_tool_source *out, const char *name);
void zr_tool_source_close(struct zr_tool_source *source);

struct zr_tool_input {
    const char *name; /* as the user gave it; "-" is standard input */
    struct zr_recording recording;
    struct zr_moments moments;
    struct zr_memory now; /* at the end */
    bool is_live; /* of a process that runs: the peak has what it says of its peaks, and no more is known of
                     it */

    /* private */
    struct zr_symbols *symbols;
    struct zr_tool_source source;
};

/* What there is to say of a file's reading: of struct zr_read_options. */
struct zr_tool_reading {
    uint64_t device; /* UINT64_MAX: the one with the most events */
    uint64_t unit_bytes;
};

/* A name that is no file's and that is a number is a process's, PID or PID/ARENA: what the arena has now, by
 * its name or number, or the only one. ZR_ERR_INVALID, with their names: the process has several. The caller
 * ends *out in any case. The name is borrowed. Says on stderr where a file ends before its end. */
zr_result zr_tool_input_open(struct zr_tool_input *out, const char *name,
                             const struct zr_tool_reading *reading, zr_arena *arena);
void zr_tool_input_end(struct zr_tool_input *input);

/* What the user's names stand for: a process's number for each of its arenas, PID/ARENA, a launcher's for its
 * only rank's; another name for itself. The list is its arena's to serve, and takes no more names once it is
 * read. */
struct zr_tool_names {
    struct zr_vector list; /* private: the names */
    bool has_process;      /* a number among them: there may be any number of names */
};
zr_result zr_tool_names_make(struct zr_tool_names *out, const struct zr_tool_arguments *arguments,
                             zr_arena *arena);
void zr_tool_names_end(struct zr_tool_names *names);
/* Lives as long as the list and the arguments. */
const char *zr_tool_name(const struct zr_tool_names *names, size_t index);
/* The arena's word in a name of the list; NULL: it is a file's. */
const char *zr_tool_name_arena(const struct zr_tool_names *names, size_t index);

/* A subcommand's work on one arena of its own; returns an exit code, everything said. */
int zr_tool_with_memory(zr_result (*work)(void *state, zr_arena *arena, int *code), void *state);

/* Whether messages go to a terminal: then long work says what it does. */
bool zr_tool_progress(void);
/* "\rzr: words" on such a terminal; NULL wipes it. */
void zr_tool_progress_say(const char *words);

/* A stack in a line: its innermost frame of a Python file, or else the innermost that is not the allocator's
 * own. False: there is none. */
bool zr_tool_short_stack(struct zr_recording *recording, uint32_t stack, char out[ZR_FRAME_BYTES]);

/* The pieces of a memory, added to a vector of struct zr_map_extent. */
zr_result zr_tool_extents(struct zr_vector *extents, const struct zr_memory *memory);

/* `"key": ` and the number, or null. */
void zr_tool_json_number(struct zr_text *text, const char *key, uint64_t number, bool known);

#endif
