/* input.h: opens a file of memory events for a subcommand, measures it and reports truncation. Private to
 * defrag/tool/. */
#ifndef ZR_TOOL_INPUT_H
#define ZR_TOOL_INPUT_H

#include "defrag/report/address_map.h"
#include "defrag/report/moments.h"
#include "defrag/tool/tool.h"
#include "defrag/trace/recording.h"

/* A file by name, or standard input ("-"). Standard input and compressed files (gzip, zstd) are copied to a
 * file without a name, so that they can be read several times. */
struct zr_tool_source {
    const char *path; /* a path that can be opened */
    bool cut_short;   /* the compressed data ends too early */

    /* private */
    int fd; /* below 0: none */
    char called[140], room[40];
};
/* The caller closes *out in any case. The name is borrowed. The struct must not move. */
zr_result zr_tool_source_open(struct zr_tool_source *out, const char *name);
void zr_tool_source_close(struct zr_tool_source *source);

struct zr_tool_input {
    const char *name; /* as the user gave it; "-" is standard input */
    struct zr_recording recording;
    struct zr_moments moments;
    struct zr_memory now; /* memory after the last event */
    bool is_live; /* the input is a running process: `peak` has the published peaks, and its other fields are
                     unknown */

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

/* A list of names after expansion. A process number becomes one name for each arena of the process. A
 * launcher's number becomes the arenas of its only rank. Other names are unchanged. Adding a name may move
 * the strings: add no name after the first read. */
struct zr_tool_names {
    struct zr_vector list; /* private: the names */
    bool has_process;      /* the list contains a process, so its length may differ from the arguments' */
};
zr_result zr_tool_names_make(struct zr_tool_names *out, const struct zr_tool_arguments *arguments,
                             zr_arena *arena);
void zr_tool_names_end(struct zr_tool_names *names);
/* The string lives as long as the list and the arguments. */
const char *zr_tool_name(const struct zr_tool_names *names, size_t index);
/* The ARENA part of a name; NULL: the name is a file name. */
const char *zr_tool_name_arena(const struct zr_tool_names *names, size_t index);

/* Calls `work` with a new arena and destroys the arena. Returns an exit code, after a message if it is not 0.
 */
int zr_tool_with_memory(zr_result (*work)(void *state, zr_arena *arena, int *code), void *state);

/* Whether standard error is a terminal, so that progress is shown. */
bool zr_tool_progress(void);
/* Shows "zr: WORDS" in place if standard error is a terminal; NULL erases the words. */
void zr_tool_progress_say(const char *words);

/* zr_site_frame(), shortened to `columns`. */
bool zr_tool_short_stack(struct zr_recording *recording, uint32_t stack, size_t columns,
                         char out[ZR_FRAME_BYTES]);

/* Appends one struct zr_map_extent for each part of `memory`. */
zr_result zr_tool_extents(struct zr_vector *extents, const struct zr_memory *memory);

/* Prints `"key": ` and the number, or null. */
void zr_tool_json_number(struct zr_text *text, const char *key, uint64_t number, bool known);

/* ---- Symbols ------------------------------------------------------------------------------------------- */

/* Names for the addresses in a trace's stacks, from the files that contain them and the debug information
 * on this machine. One thread. */

struct zr_symbols; /* the files opened so far */

/* NULL: out of memory; frames are then module and offset. */
struct zr_symbols *zr_symbols_make(void);
void zr_symbols_end(struct zr_symbols *symbols);
/* Valid as long as `symbols`. A file whose build ID differs from the traced program's is not used. */
struct zr_frame_namer zr_symbols_namer(struct zr_symbols *symbols);

/* ---- Conversions --------------------------------------------------------------------------------------- */

/* The common part of `zr import` and `zr export`: one input file, a format, an output. */

struct zr_tool_conversion {
    const char *file;                 /* input */
    const char *format, *output, *at; /* as given; NULL: not given */
    struct zr_tool_reading reading;
};

/* Reads the arguments of subcommand argv[0]; `takes_at`: the subcommand has --at. Returns an exit code after
 * a message, or less than 0 to continue. */
int zr_tool_read_conversion(struct zr_tool_conversion *out, const char *help, bool takes_at, int argc,
                            char **argv);

/* False, after a message: the output is a terminal, which must not receive binary data. */
bool zr_tool_takes_binary(const struct zr_tool_conversion *conversion, const char *command);

/* Opens the output file, or standard output if the user named none, and calls `write`. Shows progress. */
typedef zr_result zr_tool_writer(void *state, struct zr_text *text);
zr_result zr_tool_write_conversion(const struct zr_tool_conversion *conversion, zr_tool_writer *write,
                                   void *state);

#endif
