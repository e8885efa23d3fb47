/* top_model.h: the model of `zr top`: the processes, their figures, and a snapshot of the blocks of one
 * arena. The screen, the text and the JSON all show this model. Private to defrag/tool/.
 *
 * One thread. Only zr_top_look_now() waits long for a process. */
#ifndef ZR_TOP_MODEL_H
#define ZR_TOP_MODEL_H

#include "defrag/report/address_map.h"
#include "defrag/tool/live/clients.h"
#include "defrag/tool/live/live.h"

enum { ZR_TOP_PROCESSES = 128, ZR_TOP_HOLDERS = 64, ZR_TOP_WORDS = 200, ZR_TOP_ALL = -1 };

enum zr_top_state {
    ZR_TOP_LIVE = 0,
    ZR_TOP_SILENT, /* the process does not answer (stopped or busy): its figures are old */
    ZR_TOP_GONE,   /* the process exited, or no longer publishes its memory: its last figures */
};

struct zr_top_process {
    long pid;
    enum zr_top_state state;
    struct zr_live live;
    bool named;            /* the user named it: the list keeps it when it is gone */
    bool seen;             /* found by the current refresh */
    bool has_rate;         /* two sets of figures exist */
    double allocations_hz; /* between the last two sets of figures */
    unsigned silent_slices;
};

/* Blocks of one tag and one size. */
struct zr_top_holder {
    uint8_t tag;
    bool pending;
    uint64_t requested_bytes;          /* of each block */
    uint64_t blocks_count, live_bytes; /* of all these blocks, with rounding */
};

/* A snapshot of the blocks of one arena; of an arena with stripes, its first stripe. */
struct zr_top_look {
    long pid; /* 0: no snapshot */
    unsigned arena;
    uint64_t taken_ns;
    struct zr_vector extents;                     /* struct zr_map_extent */
    struct zr_top_holder holders[ZR_TOP_HOLDERS]; /* the largest holders, in descending order */
    unsigned holders_count;
    char words[ZR_TOP_WORDS]; /* why the last snapshot failed; "": success */
};

struct zr_top {
    zr_arena *memory; /* borrowed */
    struct zr_top_process processes[ZR_TOP_PROCESSES];
    unsigned processes_count;
    unsigned others_count; /* running processes that are not shown: the table is full, or they have another
                              release */
    struct zr_top_look look;
    struct zr_services services; /* each zrd that serves */

    /* private: the pending snapshot */
    int connection; /* -1: none */
    long requested_pid;
    unsigned requested_arena;
    uint64_t requested_ns, look_cost_ns; /* time of the request, duration of the last snapshot */
    int kept;                            /* while `connection` is open: the file that the process writes to */
};

/* `memory` serves the records until zr_top_end(). */
void zr_top_start(struct zr_top *top, zr_arena *memory);
void zr_top_end(struct zr_top *top);

/* Adds a process that the user named to a struct zr_top; a zr_tool_each. ZR_ERR_INVALID: the table is full.
 */
zr_result zr_top_name(void *top, long pid);
/* Reads all figures again: of the named processes, or of all processes if none is named. Waits up to
 * `patience_ms` for all of them together, then up to 100 ms for each other one, and skips a silent process
 * for some refreshes. Processes that start meanwhile are left to the next refresh. */
void zr_top_refresh(struct zr_top *top, int patience_ms);
/* Removes processes that are gone; zr_top_clear_unnamed() keeps those that the user named. */
void zr_top_clear_gone(struct zr_top *top);
void zr_top_clear_unnamed(struct zr_top *top);

/* Index of the process in the table; below 0: absent. */
int zr_top_find(const struct zr_top *top, long pid);
/* Figures of one arena (an index), or the sum over all arenas (ZR_TOP_ALL). The sum adds up the peaks and has
 * limit 0. */
struct zr_arena_stats zr_top_figures(const struct zr_top_process *process, int arena, uint64_t *limit_bytes);
/* `reserved_bytes` minus live, pending, stranded and cached bytes. */
uint64_t zr_top_free_bytes(const struct zr_arena_stats *stats);
/* Index of the arena to snapshot: the chosen one, or else the largest one. Below 0: the process has none. */
int zr_top_arena(const struct zr_top_process *process, int arena);

/* Requests a snapshot of an arena, unless one is pending. An arena cannot allocate while its blocks are
 * written, so snapshots take at most 2 % of the time. */
void zr_top_look_ask(struct zr_top *top, const struct zr_top_process *process, int arena);
/* A descriptor that becomes readable when the answer arrives; -1: no request is pending. */
int zr_top_look_waits(const struct zr_top *top);
/* Takes the answer, if it has arrived. */
void zr_top_look_take(struct zr_top *top);
/* Requests a snapshot and waits for it. False: look.words has the reason. */
bool zr_top_look_now(struct zr_top *top, const struct zr_top_process *process, int arena);

/* Prints the whole model in Prometheus's text format, with the samples of each metric together. */
void zr_metrics_print(struct zr_text *text, const struct zr_top *top);

#endif
