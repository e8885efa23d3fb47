/* top_model.h: what `zr top` shows, before anything is drawn: the processes, their figures, and a look at the
 * blocks of one arena. The screen, the text and the JSON are all made of it. Private to defrag/tool/.
 *
 * One thread. Nothing waits for a process for more than a moment but zr_top_look_now(). */
#ifndef ZR_TOP_MODEL_H
#define ZR_TOP_MODEL_H

#include "defrag/report/address_map.h"
#include "defrag/tool/live/clients.h"
#include "defrag/tool/live/live.h"

enum { ZR_TOP_PROCESSES = 128, ZR_TOP_HOLDERS = 64, ZR_TOP_WORDS = 200, ZR_TOP_ALL = -1 };

enum zr_top_state {
    ZR_TOP_LIVE = 0,
    ZR_TOP_SILENT, /* it does not answer (it is stopped, or busy): figures up to a second old, or older */
    ZR_TOP_GONE,   /* it has ended, or shows itself no more: its last figures */
};

struct zr_top_process {
    long pid;
    enum zr_top_state state;
    struct zr_live live;
    bool named;            /* by the user: it stays when it is gone */
    bool seen;             /* in the present turn */
    bool has_rate;         /* two sets of figures are there */
    double allocations_hz; /* between the last two of them */
    unsigned silent_turns;
};

/* Blocks of one tag and size. */
struct zr_top_holder {
    uint8_t tag;
    bool pending;
    uint64_t requested_bytes;          /* of each */
    uint64_t blocks_count, live_bytes; /* of all of them, with rounding */
};

/* The blocks of one arena, as they were at one moment. Where threads have stripes: of its first stripe. */
struct zr_top_look {
    long pid; /* 0: there is none */
    unsigned arena;
    uint64_t taken_ns;
    struct zr_vector extents;                     /* struct zr_map_extent */
    struct zr_top_holder holders[ZR_TOP_HOLDERS]; /* those that hold most, the largest first */
    unsigned holders_count;
    char words[ZR_TOP_WORDS]; /* why the one that was wanted last failed; "": it did not */
};

struct zr_top {
    zr_arena *memory; /* borrowed */
    struct zr_top_process processes[ZR_TOP_PROCESSES];
    unsigned processes_count;
    unsigned others_count; /* that run and are not here: more than there is room for, or of another release */
    struct zr_top_look look;
    struct zr_services services; /* of each zrd that serves */

    /* private: a look that has been asked for */
    int connection; /* -1: none */
    long asked_pid;
    unsigned asked_arena;
    uint64_t asked_ns, look_cost_ns; /* what the last one took */
    int kept;                        /* while `connection` is open: what is asked for is written there */
};

/* The arena serves the records until zr_top_end(). */
void zr_top_start(struct zr_top *top, zr_arena *memory);
void zr_top_end(struct zr_top *top);

/* Adds a process that the user named to a struct zr_top: zr_tool_each. ZR_ERR_INVALID: there is no room. */
zr_result zr_top_name(void *top, long pid);
/* Takes all figures anew: of the named processes, or, where none is named, of all that there are. Waits for
 * one that does not answer for `patience_ms`, and not again for some turns. */
void zr_top_refresh(struct zr_top *top, int patience_ms);
/* Forgets those that are gone; the second: but for those that the user named. */
void zr_top_clear_gone(struct zr_top *top);
void zr_top_clear_unnamed(struct zr_top *top);

/* The process's number in the table; below 0: it is not there. */
int zr_top_find(const struct zr_top *top, long pid);
/* Figures of one arena (an index into its arenas), or the sum of all (ZR_TOP_ALL): peaks are sums of peaks
 * then, and the limit is 0. */
struct zr_arena_stats zr_top_figures(const struct zr_top_process *process, int arena, uint64_t *limit_bytes);
/* Of `reserved_bytes`, what is none of live, pending, stranded and cached. */
uint64_t zr_top_free_bytes(const struct zr_arena_stats *stats);
/* The index of the arena that is looked at: the one chosen, or of all of them the one that holds most. Below
 * 0: the process has none. */
int zr_top_arena(const struct zr_top_process *process, int arena);

/* Asks for a look at an arena, unless one was asked for that has not come. An arena cannot allocate while it
 * writes down its blocks, so looks are no more than 2 % of the time. */
void zr_top_look_ask(struct zr_top *top, const struct zr_top_process *process, int arena);
/* Readable when an answer is there; -1: nothing was asked. */
int zr_top_look_waits(const struct zr_top *top);
/* Takes the answer, if it is there. */
void zr_top_look_take(struct zr_top *top);
/* The two together, waiting for the answer: false: there is none, and look.words say why. */
bool zr_top_look_now(struct zr_top *top, const struct zr_top_process *process, int arena);

#endif
