/* live.h: processes that show their memory (alloc/telemetry/publish_format.h): which there are, what they
 * show, and what they are asked. Nothing here trusts a file or an answer. */
#ifndef ZR_LIVE_H
#define ZR_LIVE_H

#include "alloc/base/system/folders.h"
#include "alloc/telemetry/publish_format.h"

/* What a process shows at one moment. All texts have ends and no control characters, all counts
 * fit. */
struct zr_live {
    struct zr_published shown;
    unsigned arenas_count; /* in shown.arenas */
};

/* How long an answer is waited for. Then the result is ZR_ERR_TIMEOUT, with words: why, by the process's
 * state, and what helps. */
struct zr_live_patience {
    int timeout_ms;
    int working_ms;      /* instead, while the process's thread of zr uses processor time; 0: the same */
    bool passes_stopped; /* a stopped process is not waited for */
    void (*say)(const char *words); /* called once, after a second: what is waited for, and why; NULL: nothing
                                       is said */
};

/* Names are words of somebody else's: zr_make_plain() before they go to a terminal.
 *
 * The figures of process `pid`, which is asked to take them anew unless `fresh` is NULL (then they are a
 * second old, and pending and stranded bytes older). ZR_ERR_UNAVAILABLE: there is no such process, or it
 * shows nothing; what a dead one left is removed. ZR_ERR_FORMAT: of another release of zr. ZR_ERR_TIMEOUT: it
 * did not answer, and *out has what it showed last. */
zr_result zr_live_read(struct zr_live *out, long pid, const struct zr_live_patience *fresh);
/* The same, taken anew, with what the devices say of their memory. */
zr_result zr_live_read_devices(struct zr_live *out, long pid, const struct zr_live_patience *patience);

/* Whether the process has memory of zr's, shown or not. */
bool zr_live_runs(long pid);

/* Whether the process is this user's, has memory of zr's or is zrd, is no other zr of this program's, and
 * does not show its memory. */
bool zr_live_is_quiet(long pid);

/* The same of zr_live_read(); a process that is too small to show its memory is asked to, for three seconds:
 * it hears when it next takes memory from the system or asks for its own figures, and shows it from then on.
 * ZR_ERR_UNAVAILABLE, with words: it did not hear, too. */
zr_result zr_live_reach(struct zr_live *out, long pid, bool fresh, const struct zr_live_patience *patience);

/* Whether the process is stopped, by a signal or by a debugger. */
bool zr_live_is_stopped(long pid);

/* The folder in which processes show themselves, which need not be there yet. ZR_ERR_IO, with words: none
 * can. */
zr_result zr_live_folder(char folder[ZR_FOLDER_BYTES]);

/* The next process after `*pid` by number that shows its memory; false: there is none, or no folder. Start
 * with 0. It may be gone when it is read. */
bool zr_live_next(long *pid);

enum { ZR_LIVE_ANSWER_BYTES = 1100 };
/* Sends one command (alloc/telemetry/command.h) and waits for its answer, whose words go to
 * `words`. ZR_ERR_INVALID: the process said no, and the words are its. *connection, if wanted, stays open and
 * is the caller's to close; else NULL. */
zr_result zr_live_ask(long pid, const char *command, const struct zr_live_patience *patience,
                      char words[ZR_LIVE_ANSWER_BYTES], int *connection);
/* The first half of it, which waits for nothing: *connection is the caller's to close, and readable when
 * zr_live_hear() finds the answer there. */
zr_result zr_live_send(long pid, const char *command, int *connection);
/* What it says on a connection that stayed. */
zr_result zr_live_hear(int connection, const struct zr_live_patience *patience,
                       char words[ZR_LIVE_ANSWER_BYTES]);
/* Sends one more command on such a connection, and waits for its answer. */
zr_result zr_live_say(int connection, const char *command, const struct zr_live_patience *patience,
                      char words[ZR_LIVE_ANSWER_BYTES]);
/* Says on such a connection that it ends. */
void zr_live_hang_up(int connection);

/* The arena that holds most at its peak, of those shown; NULL: there is none. What is reserved says less: a
 * heap of records may have a slab that is empty. */
const struct zr_published_arena *zr_live_largest(const struct zr_live *live);

#endif
