/* run.h: `zr run` that stays beside the program: what it starts, waits for and reads. Private to
 * defrag/tool/.
 */
#ifndef ZR_TOOL_RUN_H
#define ZR_TOOL_RUN_H

#include <limits.h>

#include "alloc/preload/usage.h"
#include "defrag/tool/tool.h"

/* The folder of one run: ZR_RECORD. */
struct zr_run_folder {
    char path[PATH_MAX]; /* empty: there is none */
    int fd; /* of the book, locked while this program lives: a folder whose lock is free is nobody's */
    struct zr_usage_table *book;
};
/* Makes it, and removes those of runs that were killed. ZR_ERR_IO with words. */
zr_result zr_run_folder_make(struct zr_run_folder *out);
void zr_run_folder_remove(struct zr_run_folder *folder);

/* How the program ended. */
struct zr_run_end {
    int status; /* as waitpid() has it */
    uint64_t ns, peak_resident_bytes;
};
/* Runs it: signals that a process sends to zr go on to the program (those of a terminal reach it anyhow), and
 * when it stops, zr stops. `prepare` is called in the child, before exec. Returns below 0 once it has ended;
 * else the exit code: there was nothing to run. */
struct zr_run_start {
    const char *path;
    char **command;
    struct zr_run_folder *folder;
    bool (*prepare)(void *argument);
    void *argument;
};
int zr_run_watch(const struct zr_run_start *start, struct zr_run_end *out);
/* Ends as the program did: returns its exit code, or dies of its signal. */
int zr_run_end_alike(int status);

struct zr_run_report {
    char **command;
    const char *trace, *json; /* NULL: not asked for */
    bool stats, malloc;       /* whether libzr_malloc.so was to be preloaded */
    const char *options;      /* the others that the next run needs, each after a blank */
    uint64_t limit_bytes;     /* --limit; 0: none */
    const struct zr_run_folder *folder;
    const struct zr_run_end *end;
};
/* The lines on standard error and the JSON. False: the JSON could not be written, everything said. */
bool zr_run_show(const struct zr_run_report *report);

#endif
