/* live.h: running processes that publish their memory (alloc/telemetry/publish_format.h): lists them, reads
 * their figures, and sends them commands. Validates every file and answer. */
#ifndef ZR_LIVE_H
#define ZR_LIVE_H

#include "alloc/base/system/file.h"
#include "alloc/telemetry/publish_format.h"

/* The published state of a process. All texts are terminated and free of control characters, and all counts
 * are within bounds. */
struct zr_live {
    struct zr_published shown;
    unsigned arenas_count; /* in shown.arenas */
};

/* How long to wait for an answer. After that the result is ZR_ERR_TIMEOUT; the message has the process's
 * state and a remedy. */
struct zr_live_patience {
    int timeout_ms;
    int working_ms;      /* the limit while the process's zr thread uses processor time; 0: the same */
    bool passes_stopped; /* do not wait for a stopped process */
    void (*say)(
        const char *words); /* called once, after a second, with the reason for waiting; NULL: not called */
};

/* Names are untrusted: pass them through zr_make_plain() before printing.
 *
 * Reads the figures of process `pid`. With `fresh`, asks the process to update them first; with NULL, figures
 * are up to a second old, and pending and stranded bytes older. ZR_ERR_UNAVAILABLE: there is no such process,
 * or it publishes nothing; files of a dead process are removed. ZR_ERR_FORMAT: another release of zr.
 * ZR_ERR_TIMEOUT: no answer; *out has the last published figures. */
zr_result zr_live_read(struct zr_live *out, long pid, const struct zr_live_patience *fresh);
/* Reads updated figures, with the devices' own counts of their memory. */
zr_result zr_live_read_devices(struct zr_live *out, long pid, const struct zr_live_patience *patience);

/* Whether the process has memory of zr, published or not. */
bool zr_live_runs(long pid);

/* Whether the process belongs to this user, has memory of zr or is zrd, does not run this program, and does
 * not publish its memory. */
bool zr_live_is_quiet(long pid);

/* Like zr_live_read(), and asks a process that is too small to publish its memory to do so, for three
 * seconds. The process sees the request when it next takes memory from the system or reads its own figures,
 * and publishes its memory from then on. ZR_ERR_UNAVAILABLE also means that the process did not see the
 * request. */
zr_result zr_live_reach(struct zr_live *out, long pid, bool fresh, const struct zr_live_patience *patience);

/* Whether a signal or a debugger has stopped the process. */
bool zr_live_is_stopped(long pid);

/* The folder in which processes publish their memory; it may not exist yet. ZR_ERR_IO, with a message: no
 * folder is usable. */
zr_result zr_live_folder(char folder[ZR_FOLDER_BYTES]);

/* Finds the next process after `*pid`, by number, that publishes its memory; false: there is none, or no
 * folder. Start with 0. The process may exit before it is read. Numbers rise, and reading takes time: a walk
 * over all processes ends at zr_live_last() of its start, or it follows new processes without end. */
bool zr_live_next(long *pid);
/* The highest number of a process that publishes its memory; 0: there is none. */
long zr_live_last(void);

enum { ZR_LIVE_ANSWER_BYTES = 1100 };
/* Sends one command (alloc/telemetry/command.h) and waits for its answer, whose text goes to `words`.
 * ZR_ERR_INVALID: the process refused; the message is the process's. If `connection` is not NULL, *connection
 * stays open and the caller closes it. */
zr_result zr_live_ask(long pid, const char *command, const struct zr_live_patience *patience,
                      char words[ZR_LIVE_ANSWER_BYTES], int *connection);
/* Sends a command without waiting: the caller closes *connection, which is readable once zr_live_hear() finds
 * the answer. */
zr_result zr_live_send(long pid, const char *command, int *connection);
/* Reads an answer on an open connection. */
zr_result zr_live_hear(int connection, const struct zr_live_patience *patience,
                       char words[ZR_LIVE_ANSWER_BYTES]);
/* Sends one more command on an open connection, and waits for its answer. */
zr_result zr_live_say(int connection, const char *command, const struct zr_live_patience *patience,
                      char words[ZR_LIVE_ANSWER_BYTES]);
/* Announces the end of an open connection. */
void zr_live_hang_up(int connection);

/* The arena with the largest peak of live bytes; NULL: there is none. Reserved bytes would mislead: a heap of
 * records may have an empty slab. */
const struct zr_published_arena *zr_live_largest(const struct zr_live *live);

#endif
