/* zr_defrag.h: traces as sequences and lifetimes, the packer, plans learned or rehearsed, and replay. The
 * public header of defrag/.
 *
 * Memory of every object here comes from a host arena that the caller names (tag other), which must outlive
 * the object, and a learner's from the system: no malloc, so that it can run inside a preloaded program. An
 * object is used by one thread at a time, unless it says otherwise; different ones at once are fine. Besides
 * what each call names, ZR_ERR_MEMORY and its like are the host arena's. */
#ifndef ZR_DEFRAG_H
#define ZR_DEFRAG_H

#include "alloc/zr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Sequences: what a program asked for, in order ----------------------------------------------------- */

enum zr_event_kind { ZR_EVENT_ALLOC = 0, ZR_EVENT_FREE, ZR_EVENT_MARK };

struct zr_event {
    uint8_t kind;    /* enum zr_event_kind */
    uint8_t tag;     /* enum zr_tag; other where the trace has none */
    uint16_t thread; /* numbered from 0 */
    uint32_t block;  /* numbered from 0 in order of first appearance; of a mark: 0 */
    uint64_t bytes;  /* as requested; of a free: the block's */
    uint64_t stream; /* 0: the default stream */
};

struct zr_sequence {
    struct zr_event *events;
    size_t events_count;
    size_t preface_count; /* events at the front that only make what was live before the window */
    uint32_t blocks_count;
    uint64_t lower_bound_bytes; /* largest sum of requested live bytes at any moment, unrounded */
    const char *format;         /* "zrt", "torch", "rmm", "minimalloc", "csv" */
    zr_arena *host_arena;
    bool cut_short; /* the end of the file is missing: this is what comes before */
};

/* Reads a trace, whatever its kind (told by its content: .zrt, PyTorch snapshot, RMM log, MiniMalloc CSV, CSV
 * of events). `unit_bytes` multiplies the sizes of a MiniMalloc CSV (0: 1). PyTorch: blocks live before the
 * window come first, in address order; `device` picks one device's events (-1: the one with the most). A CSV
 * of lifetimes becomes its sequence: at one moment frees come before allocations, and allocations in order of
 * id. ZR_ERR_IO, ZR_ERR_FORMAT with the file's name, the place and what is wrong. Hostile files are refused,
 * never obeyed. */
struct zr_read_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    const char *path;
    uint64_t unit_bytes;
    int device;
};
ZR_API zr_result zr_sequence_read(struct zr_sequence *out, const struct zr_read_options *options,
                                  zr_arena *host_arena);
/* Gives back what it holds. Also fine after a read that failed. */
ZR_API void zr_sequence_end(struct zr_sequence *sequence);

/* ---- Lifetimes and packing ----------------------------------------------------------------------------- */

struct zr_buffer {
    uint64_t lower, upper; /* alive in [lower, upper) */
    uint64_t bytes;
    uint64_t offset_bytes; /* the packer's answer */
    uint64_t id;           /* as in the file */
};

/* On a line, or with a period: what is placed is gone through over and over, a period after the other. Of a
 * period P times are below P, and a buffer with `upper` above P, at most lower + P, is alive across the
 * boundary: in [lower, P), and in [0, upper - P) of the period that follows. */
struct zr_lifetimes {
    struct zr_buffer *buffers;
    size_t count;
    uint64_t period;            /* in the unit of lower and upper; 0: a line */
    uint64_t lower_bound_bytes; /* largest sum of live bytes */
    zr_arena *host_arena;
};

/* Lifetimes of a sequence: time is the event's index; what is never freed lives to the end.
 * ZR_ERR_INVALID: its events contradict each other. */
ZR_API zr_result zr_lifetimes_of(struct zr_lifetimes *out, const struct zr_sequence *sequence,
                                 zr_arena *host_arena);
/* Reads a MiniMalloc CSV (id,lower,upper,size in any order of columns, an offset column is ignored).
 * ZR_ERR_IO, ZR_ERR_FORMAT as zr_sequence_read(). */
ZR_API zr_result zr_lifetimes_read(struct zr_lifetimes *out, const char *path, zr_arena *host_arena);
/* Gives back what it holds. Also fine after a failure. */
ZR_API void zr_lifetimes_end(struct zr_lifetimes *lifetimes);

enum zr_pack_verdict {
    ZR_PACK_FOUND = 0,   /* offsets hold, within the capacity if there was one */
    ZR_PACK_IMPOSSIBLE,  /* proved: no placement fits the capacity; offsets hold the best found */
    ZR_PACK_OUT_OF_TIME, /* not decided; offsets hold the best found */
};

struct zr_pack_options {
    size_t struct_bytes;      /* its sizeof, or 0: see "Options" in alloc/zr.h */
    uint64_t capacity_bytes;  /* stop at the first placement within it; 0: as low as can be in the time */
    uint64_t alignment_bytes; /* of offsets; 0: 1 */
    uint64_t time_ns;         /* budget; 0: 10 seconds */
    unsigned threads;         /* 0: 1 */
    /* Budget in place of the time: so many steps, of 5 to 25 ns each, of all threads together; a round
     * of up to seven jobs that has begun is gone through. The answer is the same on any machine, however
     * busy. 0: by the clock. */
    uint64_t work;
};

struct zr_pack_report {
    enum zr_pack_verdict verdict;
    uint64_t height_bytes; /* largest offset + bytes */
    uint64_t lower_bound_bytes;
    uint64_t spent_ns;
};

/* Places every buffer; deterministic for the same input when the time does not run out. Scratch comes from
 * the lifetimes' host arena and is given back. ZR_ERR_INVALID: a buffer whose times cannot be, or sizes whose
 * sum passes 2^62 bytes. */
ZR_API zr_result zr_pack(struct zr_lifetimes *lifetimes, const struct zr_pack_options *options,
                         struct zr_pack_report *report);
/* Makes a placement one of sizes rounded up to the grain, offsets at multiples of it: buffers keep their
 * order by offset, and *height_bytes is less than a grain per buffer in a pile above the height before. The
 * scratch is 32 bytes for each moment. ZR_ERR_INVALID: times of 2^32 and more, or that zr_pack() refuses; a
 * grain for each buffer passes 2^62 bytes. */
ZR_API zr_result zr_pack_round(struct zr_lifetimes *lifetimes, uint64_t grain_bytes, uint64_t *height_bytes);
/* The independent checker: no two buffers alive at one time overlap, all within `height_bytes`.
 * ZR_ERR_CORRUPT names a pair that does; ZR_ERR_INVALID a buffer that overlaps itself in the next period. */
ZR_API zr_result zr_pack_check(const struct zr_lifetimes *lifetimes, uint64_t height_bytes);

/* ---- Learning ------------------------------------------------------------------------------------------ */

/* Watches an arena, finds out by itself with what period the program allocates, and installs a plan that the
 * arena follows from then on: addresses fixed in advance, nothing to map. What is not as planned takes the
 * arena's own way, and a sequence that has changed is learned again.
 *
 * Allocations only record. What was recorded is looked at by a thread of the learner's own: the first
 * allocation that leaves it something to do starts it (no other makes a thread, takes memory or waits for
 * what is learned), all signals are blocked in it, and it ends when there has been nothing to do for a
 * second. A plan that it makes is checked independently of how it was made, and then takes effect between two
 * allocations, once it adds no memory to what the arena has held. A period is found once it has been gone
 * through twice, and only if that is no more than 262,144 allocations: at so many the learner begins anew,
 * and counts that (overruns_count).
 *
 * All memory is the process's own, private pages. After fork() a child has a learner of its own that goes on
 * from what was recorded: it shares no byte with its parent's, and makes a thread of its own when there is
 * something to learn. What the parent's thread was doing at that moment is done by each for itself. The
 * memory of the arena that is watched is another matter: see zr_backend_host_create(). */
typedef struct zr_learner zr_learner;

struct zr_learner_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    zr_arena *arena;     /* watched; it must outlive the learner */
    /* What packing one plan may take, as struct zr_pack_options has it; 0: 1.6e9, some seconds of one core.
     * By work, not by the clock, so that the same requests are given the same plan on any machine. After a
     * plan that would take more memory than there is without, half as much for the next one of that period.
     */
    uint64_t work;
};

/* The caller owns *out. ZR_ERR_INVALID: no arena, or it has a learner already. ZR_ERR_HOST_MEMORY. */
ZR_API zr_result zr_learner_create(zr_learner **out, const struct zr_learner_options *options);
/* The arena forgets the plan; planned blocks live on. The learner's thread stops whatever it is doing. No
 * other thread may be in a call on the arena. NULL is fine. */
ZR_API void zr_learner_destroy(zr_learner *learner);
/* One step of the program ended here. Optional: marks need no recurrence to be recognised. Any thread. */
ZR_API zr_result zr_learner_step(zr_learner *learner);
/* Waits until all is learned that there is to learn from what was recorded. A program needs it only to have
 * its plan at a moment of its own. Any thread. */
ZR_API zr_result zr_learner_wait(zr_learner *learner);

struct zr_learner_stats {
    uint64_t periods_count;       /* found */
    uint64_t plans_count;         /* installed */
    uint64_t refused_plans_count; /* not installed: more memory than without */
    uint64_t passes_count;        /* times that a plan was gone through */
    uint64_t planned_count;       /* allocations served by plans */
    uint64_t deferred_count;      /* in a plan that could not start yet without adding memory */
    uint64_t unplanned_count;     /* not in the plan */
    uint64_t unplaced_count;      /* in the plan as too long-lived for it */
    uint64_t conflicts_count;     /* in the plan, and a block lay in the way that should have been freed */
    uint64_t refused_count;       /* in the plan, and no memory was to be had */
    uint64_t
        overruns_count; /* times that 262,144 allocations had been recorded: a longer period is not found */
    uint64_t most_copied_count; /* records that were copied while an allocation had to wait, at most */
    uint64_t spent_ns;          /* by the learner's thread */
    uint64_t period_count;      /* allocations in the period in force */
    size_t region_bytes;        /* addresses of the plan in force; 0: none */
    bool asleep;                /* all goes as planned: nothing is recorded */
    bool no_thread;             /* the system refused a thread: nothing is learned */
};
ZR_API zr_result zr_learner_get_stats(zr_learner *learner, struct zr_learner_stats *out);

/* ---- Rehearsing ---------------------------------------------------------------------------------------- */

/* For a program that knows its step before it runs it: a step is gone through once, on an arena of its own
 * (on the sim backend, say), and the blocks of its passes get places, which an arena keeps to in the run:
 * each is mapped once, and from then on no step calls the driver. A pass is what a step repeats, such as a
 * micro-batch; every pass asks for the same blocks in the same order. What is not as in the rehearsal takes
 * the arena's own way.
 *
 * The places depend on sizes, lifetimes and the granule alone: they are the same on each rank. */
typedef struct zr_rehearsal zr_rehearsal;

/* Watches an arena; one at a time may, a learner included. Passes of one step are to follow, each at most so
 * many allocations long, the last with those of the step's end. The caller owns *out; both arenas outlive
 * it. ZR_ERR_INVALID: no arena, or it is watched already. */
ZR_API zr_result zr_rehearsal_create(zr_rehearsal **out, zr_arena *arena, size_t allocations_most,
                                     zr_arena *host_arena);
/* A pass begins. What comes after the last one's is the step's end. */
ZR_API void zr_rehearsal_pass(zr_rehearsal *rehearsal);
/* The step is over: ends the watch and finds places. *found false: the passes differ, hold blocks beyond the
 * step, or are more than 524,288 allocations long. ZR_ERR_INVALID: a second time. */
ZR_API zr_result zr_rehearsal_place(zr_rehearsal *rehearsal, bool *found);
/* Bytes of addresses that the places take, and the most that is live in them at a time. */
ZR_API size_t zr_rehearsal_region_bytes(const zr_rehearsal *rehearsal);
ZR_API size_t zr_rehearsal_live_bytes(const zr_rehearsal *rehearsal);
/* From now on the arena keeps to the places, for the calling thread. Each pass begins with
 * zr_rehearsal_rewind(). ZR_ERR_INVALID: no places; ZR_ERR_ADDRESSES: no addresses in a row for them. */
ZR_API zr_result zr_rehearsal_install(const zr_rehearsal *rehearsal, zr_arena *arena);
/* A pass begins on an arena that keeps to places; on any other nothing happens. */
ZR_API void zr_rehearsal_rewind(zr_arena *arena);
/* NULL is fine. The places that an arena keeps to stay in force. */
ZR_API void zr_rehearsal_destroy(zr_rehearsal *rehearsal);

/* ---- Replay -------------------------------------------------------------------------------------------- */

enum zr_policy {
    ZR_POLICY_ZR = 0,     /* our arena */
    ZR_POLICY_CACHING,    /* PyTorch's caching allocator */
    ZR_POLICY_EXPANDABLE, /* PyTorch's expandable segments */
    ZR_POLICY_BESTFIT,    /* best fit in one growing range */
    ZR_POLICY_COUNT
};
ZR_API const char *zr_policy_name(enum zr_policy policy);

struct zr_replay_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    enum zr_policy policy;
    uint64_t capacity_bytes; /* of the sim backend; 0: none */
    size_t granule_bytes;    /* 0: 2 MiB */
    unsigned repeat;         /* 0: 1. What is live at the end is freed between repeats */
    /* The learner's thread works while the sequence runs, and nobody waits for it: what that comes to depends
     * on the machine. False: it works between repeats, and the next one waits until it has nothing to do, as
     * in a program whose step takes longer than that. */
    bool no_wait;
};

struct zr_replay_report {
    uint64_t peak_reserved_bytes, peak_reserved_last_repeat_bytes;
    uint64_t lower_bound_bytes, lower_bound_last_repeat_bytes; /* they differ only where repeats do */
    uint64_t driver_calls, driver_calls_last_repeat;
    /* Of the last repeat: the median of its stretches of 256 events, which leaves out what interrupts the
     * program and what few stretches pay for; and the mean, which leaves out nothing. */
    double ns_per_operation, ns_per_operation_mean;
    double ns_per_operation_all; /* the mean of all repeats: with recording and learning, but for waiting */
    uint64_t waited_ns;          /* in all, for the learner's thread */
    uint64_t failed_at;          /* index of the first event that found no memory; UINT64_MAX: none */
};

/* Runs a sequence under a policy, on a simulated device of its own, and reports. A device that is too small
 * is no failure: the run ends there, and failed_at says where. ZR_ERR_INVALID: a granule that cannot be, or
 * events that contradict each other. */
ZR_API zr_result zr_replay(const struct zr_sequence *sequence, const struct zr_replay_options *options,
                           struct zr_replay_report *out);

#ifdef __cplusplus
}
#endif

#endif
