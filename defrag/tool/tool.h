/* tool.h: what the subcommands of `zr` share: options, words, exit codes, memory. Private to defrag/tool/.
 *
 * Data goes to standard output, words to standard error; --json is printed whole or not at all. */
#ifndef ZR_TOOL_H
#define ZR_TOOL_H

#include "alloc/base/system/file.h"
#include "alloc/zr.h"
#include "defrag/trace/vector.h"

enum zr_tool_exit {
    ZR_TOOL_FINE = 0,
    ZR_TOOL_THRESHOLD = 1, /* something asked about did not hold */
    ZR_TOOL_USAGE = 2,
    ZR_TOOL_INPUT = 3, /* a file that cannot be read or makes no sense */
    ZR_TOOL_MEMORY = 4,
};

/* ---- Subcommands: each takes its own arguments (argv[0] is its name) and returns an exit code ---------- */

int zr_tool_replay(int argc, char **argv);
int zr_tool_pack(int argc, char **argv);
int zr_tool_preload(int argc, char **argv);
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

/* Whether zrd serves, of the host (NULL) or a device; where it does not, and `start`, starts it.
 * ZR_ERR_UNAVAILABLE; ZR_ERR_INVALID: no such device. */
zr_result zr_tool_service_need(bool start, const char *device);

/* Whether this version has the subcommand. */
bool zr_tool_has(const char *name);
/* `zr manual [SUBCOMMAND]`: a page of troff, made of the help. `zr completion bash`: a script, made of the
 * tables of options. Both are for `make install`. */
struct zr_tool_subcommand {
    const char *name; /* NULL: the end of the list */
    int (*run)(int argc, char **argv);
};
int zr_tool_manual(int argc, char **argv, const struct zr_tool_subcommand *list, const char *main_help);
int zr_tool_completion(int argc, char **argv, const struct zr_tool_subcommand *list);

/* How many letters to add, drop, replace or swap with the next one until a name is the other. */
unsigned zr_tool_distance(const char *name, const char *other);

/* ---- Words --------------------------------------------------------------------------------------------- */

/* "zr: words\n" on standard error. */
void zr_tool_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says the last error and returns the exit code for `result`. */
int zr_tool_fail(zr_result result);

/* ---- Options ------------------------------------------------------------------------------------------- */

enum zr_tool_kind {
    ZR_TOOL_FLAG = 0, /* bool: no value */
    ZR_TOOL_BYTES,    /* uint64_t: as sizes.h of alloc/base reads it */
    ZR_TOOL_COUNT,    /* uint64_t */
    ZR_TOOL_WORDS,    /* const char *: as it stands */
};

struct zr_tool_option {
    const char *name; /* with its dashes */
    enum zr_tool_kind kind;
    void *value; /* what it sets; untouched when the option is not given */
};

struct zr_tool_arguments {
    const char *help;                     /* printed for --help, and named after a mistake */
    const struct zr_tool_option *options; /* the last has no name; NULL once they have been read */
    bool takes_files;                     /* none is a mistake */
    bool takes_one;                       /* and so are several */
    bool stops_at_file;                   /* what follows the first file is its own */
    char **files;                         /* out: what is no option, in order; within argv */
    int files_count;                      /* out */
};

/* What zr_tool_parse() does: reads the arguments, or ends with the help, as a manual page, or with the
 * options, as a line of a script. */
enum zr_tool_ask { ZR_TOOL_ARGUMENTS = 0, ZR_TOOL_MANUAL, ZR_TOOL_OPTIONS };
void zr_tool_ask_for(enum zr_tool_ask what);
void zr_tool_manual_page(struct zr_text *text, const char *name, const char *help);

/* Reads the arguments. Below 0: go on; else the exit code to end with, everything said. "--name=value" and
 * "--name value" are the same; after "--" nothing is an option. */
int zr_tool_parse(struct zr_tool_arguments *arguments, int argc, char **argv);

/* --device for a reader: UINT64_MAX, which is that it was not given, is -1. No file has a device of a number
 * beyond int's. */
int zr_tool_device(uint64_t device);

/* ---- Output -------------------------------------------------------------------------------------------- */

/* Standard output through a buffer. Print to `text`. */
struct zr_tool_output {
    struct zr_file file;
    struct zr_text text;
    char buffer[8192];
};

void zr_tool_output_start(struct zr_tool_output *out);
/* Writes the rest. A reader that has gone is nobody's failure; a full disk is. Returns an exit code. */
int zr_tool_output_end(struct zr_tool_output *out);

enum { ZR_TOOL_NUMBER_ROOM = 40 };
/* zr_size_print() of alloc/base/sizes.h. */
const char *zr_tool_bytes(char out[ZR_TOOL_NUMBER_ROOM], uint64_t bytes);

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* A host arena for the records of the rooms below. */
struct zr_tool_memory {
    zr_backend *backend;
    zr_arena *arena;
};
zr_result zr_tool_memory_start(struct zr_tool_memory *out);
void zr_tool_memory_end(struct zr_tool_memory *memory);

/* ---- Files into results -------------------------------------------------------------------------------- */

/* A subcommand that makes records of its files, and shows them all at the end. */
struct zr_tool_job {
    const void *settings; /* its own */
    size_t result_bytes;  /* of a record */
    /* Adds the records of one file to `results`, whose arena serves whatever it takes. */
    zr_result (*read)(const void *settings, const char *path, struct zr_vector *results);
    void (*table)(struct zr_text *text, const struct zr_vector *results);
    void (*json)(struct zr_text *text, const void *result); /* the members of one record's object */
    int (*verdict)(const struct zr_vector *results);        /* the exit code once shown; NULL: fine */
};

/* Returns an exit code, everything said. With a file that fails nothing is shown. */
int zr_tool_run(const struct zr_tool_job *job, const struct zr_tool_arguments *arguments, bool json);
/* `"name": "words"`, escaped. */
void zr_tool_json_words(struct zr_text *text, const char *name, const char *words);

#endif
