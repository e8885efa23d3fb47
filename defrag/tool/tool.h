/* tool.h: the common part of the subcommands of `zr`: options, messages, exit codes, memory. Private to
 * defrag/tool/.
 *
 * Data goes to standard output, messages to standard error. --json prints a complete document or nothing. */
#ifndef ZR_TOOL_H
#define ZR_TOOL_H

#include "alloc/base/system/file.h"
#include "alloc/zr.h"
#include "defrag/trace/vector.h"

enum zr_tool_exit {
    ZR_TOOL_FINE = 0,
    ZR_TOOL_THRESHOLD = 1, /* a condition, capacity or check failed */
    ZR_TOOL_USAGE = 2,
    ZR_TOOL_INPUT = 3, /* the file is unreadable or invalid */
    ZR_TOOL_MEMORY = 4,
};

/* ---- Subcommands: each takes its own arguments (argv[0] is its name) and returns an exit code ---------- */

int zr_tool_replay(int argc, char **argv);
int zr_tool_pack(int argc, char **argv);
int zr_tool_preload(int argc, char **argv);
int zr_tool_rehearse(int argc, char **argv);
int zr_tool_doctor(int argc, char **argv);
int zr_tool_stats(int argc, char **argv);
int zr_tool_map(int argc, char **argv);
int zr_tool_why(int argc, char **argv);
int zr_tool_diff(int argc, char **argv);
int zr_tool_export(int argc, char **argv);
int zr_tool_import(int argc, char **argv);
int zr_tool_ps(int argc, char **argv);
int zr_tool_snapshot(int argc, char **argv);
int zr_tool_attach(int argc, char **argv);
int zr_tool_record(int argc, char **argv);
int zr_tool_ledger(int argc, char **argv);
int zr_tool_top(int argc, char **argv);
int zr_tool_serve(int argc, char **argv);
int zr_tool_report(int argc, char **argv);
int zr_tool_service(int argc, char **argv);

/* Checks that a zrd serves the host (NULL) or a device. If none serves and `start` is set, starts one.
 * ZR_ERR_UNAVAILABLE: none serves; ZR_ERR_INVALID: no such device. */
zr_result zr_tool_service_need(bool start, const char *device);

/* `zr service keep`; `help` is that of `zr service`. Returns an exit code. */
int zr_tool_service_keep(int argc, char **argv, const char *help);

/* Whether this version of zr has the subcommand. */
bool zr_tool_has(const char *name);
/* `zr manual [SUBCOMMAND]` prints a troff page made of the help, `zr manual ZR_CONF` one of the options of
 * ZR_CONF, `zr manual NAME SECTION` one of a help text in standard input. `zr completion bash` prints a
 * script made of the tables of options, `zr completion bash NAME` one of a help text. `make install` uses
 * them. */
struct zr_tool_subcommand {
    const char *name; /* NULL: the end of the list */
    int (*run)(int argc, char **argv);
};
int zr_tool_manual(int argc, char **argv, const struct zr_tool_subcommand *list, const char *main_help);
int zr_tool_completion(int argc, char **argv, const struct zr_tool_subcommand *list);

/* Damerau-Levenshtein distance: the fewest letters to add, drop, replace or swap with their neighbour to turn
 * one name into the other. */
unsigned zr_tool_distance(const char *name, const char *other);

/* ---- Messages ------------------------------------------------------------------------------------------ */

/* Prints "zr: MESSAGE\n" on standard error. */
void zr_tool_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints zr_last_error() and returns the exit code for `result`. */
int zr_tool_fail(zr_result result);

/* ---- Options ------------------------------------------------------------------------------------------- */

enum zr_tool_kind {
    ZR_TOOL_FLAG = 0, /* bool: takes no value */
    ZR_TOOL_BYTES,    /* uint64_t: a size, as alloc/base/sizes.h reads it */
    ZR_TOOL_COUNT,    /* uint64_t */
    ZR_TOOL_TEXT,     /* const char *: any text */
    ZR_TOOL_TEXTS,    /* struct zr_tool_texts: any text; the option may be given several times */
};

struct zr_tool_texts {
    const char *list[16];
    unsigned count;
};

struct zr_tool_option {
    const char *name; /* with its dashes */
    enum zr_tool_kind kind;
    void *value; /* the variable to set; unchanged if the option is not given */
};

struct zr_tool_arguments {
    const char *help;                     /* printed by --help */
    const struct zr_tool_option *options; /* ends with an entry without a name; set to NULL after parsing */
    bool takes_files;                     /* at least one file is required */
    bool takes_one;                       /* exactly one file is required */
    bool stops_at_file;                   /* arguments after the first file belong to that file's program */
    char **files;                         /* out: the non-option arguments, in order; points into argv */
    int files_count;                      /* out */
};

/* The task of zr_tool_parse(): parse the arguments, print the help as a manual page, or print the options as
 * a line of the completion script. */
enum zr_tool_ask { ZR_TOOL_ARGUMENTS = 0, ZR_TOOL_MANUAL, ZR_TOOL_OPTIONS };
void zr_tool_ask_for(enum zr_tool_ask what);
void zr_tool_manual_page(struct zr_text *text, const char *name, const char *help);

/* Parses the arguments. Returns an exit code after a message, or less than 0 to continue. "--name=value" and
 * "--name value" are equal; no argument after "--" is an option. */
int zr_tool_parse(struct zr_tool_arguments *arguments, int argc, char **argv);

/* The value of --device for a reader: UINT64_MAX (not given) becomes -1, and a number beyond int becomes a
 * device that no file has. */
int zr_tool_device(uint64_t device);

/* ---- Output -------------------------------------------------------------------------------------------- */

/* Buffered standard output. Print to `text`. */
struct zr_tool_output {
    struct zr_file file;
    struct zr_text text;
    char buffer[8192];
};

void zr_tool_output_start(struct zr_tool_output *out);
/* Writes the buffered text and returns an exit code. A closed reader is no failure; a full disk is one. */
int zr_tool_output_end(struct zr_tool_output *out);

enum { ZR_TOOL_NUMBER_ROOM = 40 };
/* zr_size_print() of alloc/base/sizes.h. */
const char *zr_tool_bytes(char out[ZR_TOOL_NUMBER_ROOM], uint64_t bytes);

/* The width of text that people read. */
enum { ZR_TOOL_COLUMNS = 80 };
/* Prints the words of a plain text in lines of at most ZR_TOOL_COLUMNS, each after `indent` spaces, but the
 * first after `first`. A longer word has a line of its own. */
void zr_tool_put_wrapped(struct zr_text *text, unsigned first, unsigned indent, const char *words);
/* Shortens "name (path:line)" to at most `columns` bytes: the first folders become "..", then the name's end.
 */
void zr_tool_cut_frame(char *frame, size_t columns);

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* A host arena for the objects of defrag/. */
struct zr_tool_memory {
    zr_backend *backend;
    zr_arena *arena;
};
zr_result zr_tool_memory_start(struct zr_tool_memory *out);
void zr_tool_memory_end(struct zr_tool_memory *memory);

/* ---- Files to results ---------------------------------------------------------------------------------- */

/* A subcommand that reads each file into records and prints all records at the end. */
struct zr_tool_job {
    const void *settings; /* private to the subcommand */
    size_t result_bytes;  /* of one record */
    /* Adds the records of one file to `results`. The arena of `results` may be used for any other memory. */
    zr_result (*read)(const void *settings, const char *path, struct zr_vector *results);
    void (*table)(struct zr_text *text, const struct zr_vector *results);
    void (*json)(struct zr_text *text,
                 const void *result);                /* prints the members of one record's JSON object */
    int (*verdict)(const struct zr_vector *results); /* returns the exit code after printing; NULL: success */
};

/* Reads all files and prints the results. If a file fails, prints only the error. Returns an exit code. */
int zr_tool_run(const struct zr_tool_job *job, const struct zr_tool_arguments *arguments, bool json);
/* Prints `"name": "words"`, escaped. */
void zr_tool_json_words(struct zr_text *text, const char *name, const char *words);

#endif
