/* zr_launch.h: the ranks of a run on one machine: forks them, watches them, passes signals on, and says why a
 * run ended. What they say to each other is zero/comm/zr_comm.h; zr_launch() there also starts ranks that
 * others have started, and those of MPI. */
#ifndef ZR_LAUNCH_H
#define ZR_LAUNCH_H

#include "alloc/zr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most ranks of a run; a communicator without peers counts for any number. */
enum { ZR_MAX_WORLD = 256 };

/* What a forked rank knows of its run. Lives in memory shared with the launcher. */
struct zr_local_world;

struct zr_launch_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    unsigned world;
    /* The rank's whole life; its return value is the rank's exit code. */
    int (*rank_main)(struct zr_local_world *local, unsigned rank, void *argument);
    void *argument;
    /* Called in the launcher when a run ended abnormally, and in the ranks (async-signal-safe!) when the
     * launcher died: removes half-written files. NULL: nothing to remove. */
    void (*clean_up)(void *argument);
    uint64_t join_timeout_ns; /* for ranks that others have started to find each other; 0, or more: 60 s */
    /* How long a step under way may go on after such a signal to be saved, as long as the ranks get on. 0:
     * there is nothing to save to. */
    uint64_t save_within_ns;
    /* The process ends after the run. The signals of the run then stay blocked, so that a signal that arrives
     * after the run cannot change its exit code. false: the caller's mask is restored. */
    bool ends_process;
};

/* Forks the ranks, passes signals on, waits for all. Call it with one thread, before the process has made a
 * backend. The exit code of the run: 0; the first failing rank's, 128 + the signal if one killed it;
 * 128 + the signal if a request was followed or had to be enforced; 2: bad options; 4: the system refused
 * what a launch needs.
 *
 * A rank that dies or fails ends the others within a second, and the reason is printed on stderr. If the
 * launcher dies the ranks end by themselves. SIGTERM, SIGHUP and SIGINT become requests (zr_local_request());
 * a second one, or a deadline of 1.5 s with no save in progress, ends the ranks, and SIGQUIT does at once.
 * The deadline moves, within save_within_ns, while ranks get on: 5 s from their last
 * call on a communicator, or thrice the longest time between two such calls in the step before. Two within
 * 0.1 s are one: timeout(1) signals the process and its group. SIGUSR1 is passed on. SIGTERM or SIGUSR1 sent
 * to a rank by its number counts as sent to the run. */
ZR_API int zr_local_launch(const struct zr_launch_options *options);

/* What the signals asked for, weakest first. SIGUSR1: save and go on. SIGINT, SIGTERM, SIGHUP: save and end.
 */
enum zr_request_kind { ZR_REQUEST_NONE = 0, ZR_REQUEST_SAVE, ZR_REQUEST_SAVE_AND_END };

/* What this rank knows of; a save that is asked for is told once. Ranks may know of different requests: they
 * agree on the strongest, in a message that they exchange anyhow, or by zr_local_request() in zr_comm.h.
 * `local` NULL: ZR_REQUEST_NONE. */
ZR_API enum zr_request_kind zr_local_own_request(struct zr_local_world *local);
/* The signal that asked for the end, as far as this rank knows; 0: none has. */
ZR_API int zr_local_end_signal(const struct zr_local_world *local);
/* This rank ends because of that signal, or of the one that another rank knows of, and what there is to save
 * is saved: rank_main() returns 0, and the run's exit code is 128 + the signal. */
ZR_API void zr_local_request_followed(struct zr_local_world *local, int signal_number);

/* Says that a save (or another step that must not be cut short) is in progress, so that the deadline waits.
 */
ZR_API void zr_local_busy(struct zr_local_world *local, unsigned rank, bool busy);

/* What the rank is doing, for the reason printed when it dies: "step 17". Cut at 47 bytes. */
ZR_API void zr_local_set_status(struct zr_local_world *local, unsigned rank, const char *text);

/* Whether the run ends because its ranks are out of step: ZR_ERR_PEER of which the launcher has said nothing.
 */
ZR_API bool zr_local_is_out_of_step(const struct zr_local_world *local);

/* True for the first rank of the run that asks with these words, and for words other than the first. For what
 * all ranks find alike, and one of them should say; it calls zr_local_message_logged() then. The others wait
 * here until it has, or for ten seconds, after which it is theirs to say: a rank that ends in failure may
 * cost those that are slower their lives. */
ZR_API bool zr_local_first_message(struct zr_local_world *local, const char *words);
ZR_API void zr_local_message_logged(struct zr_local_world *local);

#ifdef __cplusplus
}
#endif

#endif
