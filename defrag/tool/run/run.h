/* run.h: `zr run` with figures: starts the program, waits for it, and reads its records. Private to
 * defrag/tool/. */
#ifndef ZR_TOOL_RUN_H
#define ZR_TOOL_RUN_H

#include <limits.h>
#include <signal.h>

#include "alloc/preload/usage.h"
#include "defrag/tool/tool.h"

/* The folder of one run, passed in ZR_RECORD. */
struct zr_run_folder {
    char path[PATH_MAX]; /* empty: no folder */
    int fd; /* descriptor of the shared table, locked while this program lives; a folder without the lock is
               left over */
    struct zr_usage_table *table;
};
/* Creates the folder and removes those of killed runs. ZR_ERR_IO with a message. */
zr_result zr_run_folder_make(struct zr_run_folder *out);
void zr_run_folder_remove(struct zr_run_folder *folder);

/* Prepends `first` to the value of an environment variable. False: too long. */
bool zr_run_put_before(const char *variable, const char *first, const char *separator);

/* How the program ended. */
struct zr_run_end {
    int status;      /* as waitpid() returns it */
    int interrupted; /* SIGINT, SIGTERM or SIGHUP, if zr got one meanwhile */
    uint64_t ns, peak_resident_bytes;
};
/* Runs the program. Forwards signals that a process sends to zr (a terminal sends its signals to the program
 * itself), and stops when the program stops. `prepare` is called in the child before exec. Returns less than
 * 0 after the program's end, or an exit code if the program could not be run. */
struct zr_run_start {
    const char *path;
    char **command;
    struct zr_run_folder *folder;
    bool (*prepare)(void *argument);
    void *argument;
    const sigset_t *signals; /* that the program blocks; NULL: those that zr blocks */
};
int zr_run_watch(const struct zr_run_start *start, struct zr_run_end *out);
/* Ends like the program: returns its exit code, or dies of its signal. */
int zr_run_end_alike(int status);

struct zr_run_report {
    char **command;
    const char *trace, *json; /* NULL: not given */
    bool stats, malloc;       /* malloc: libzr_malloc.so was to be preloaded */
    const char *options;      /* other options for the next command, each after a blank */
    uint64_t limit_bytes;     /* --limit; 0: none */
    const struct zr_run_folder *folder;
    const struct zr_run_end *end;
};
/* Prints the lines on standard error and writes the JSON. False, after a message: the JSON could not be
 * written. */
bool zr_run_show(const struct zr_run_report *report);

#endif
