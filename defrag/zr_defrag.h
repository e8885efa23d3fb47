/* zr_defrag.h: the public header of defrag/: traces as sequences and lifetimes, the packer, plans that are
 * learned or rehearsed, and replay.
 *
 * Every object takes its memory from a host arena that the caller passes (tag `other`); that arena must
 * outlive the object. A learner takes its memory from the system. No function calls malloc(), so a preloaded
 * program can use all of them. One thread at a time may use an object, unless its declaration says otherwise;
 * several threads may use different objects. Every call may also return the host arena's errors, such as
 * ZR_ERR_MEMORY. */
#ifndef ZR_DEFRAG_H
#define ZR_DEFRAG_H

#include "alloc/zr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Sequences: the requests of a program, in order ---------------------------------------------------- */

enum zr_event_kind { ZR_EVENT_ALLOC = 0, ZR_EVENT_FREE, ZR_EVENT_MARK };

struct zr_event {
    uint8_t kind;    /* enum zr_event_kind */
    uint8_t tag;     /* enum zr_tag; `other` if the trace has no tags */
    uint16_t thread; /* numbered from 0 */
    uint32_t block;  /* numbered from 0 in order of first appearance; 0 in a mark */
    uint64_t bytes;  /* requested bytes; in a free: the requested bytes of the block */
    uint64_t stream; /* 0: the default stream */
};

struct zr_sequence {
    struct zr_event *events;
    size_t events_count;
    size_t preface_count; /* leading events that only recreate the blocks that were live before the window */
    uint32_t blocks_count;
    uint64_t lower_bound_bytes; /* largest sum of requested live bytes at any point in time, unrounded */
    const char *format;         /* "zrt", "torch", "rmm", "minimalloc", "csv" */
    zr_arena *host_arena;
    bool cut_short; /* the file is truncated: the sequence ends where the file does */
};

/* Reads a trace of any known format: .zrt, PyTorch snapshot, RMM log, MiniMalloc CSV, CSV of events. The
 * content of the file decides the format. The sizes of a MiniMalloc CSV are multiplied by `unit_bytes` (0:
 * 1). In a PyTorch snapshot, blocks that were live before the window come first, in address order; `device`
 * selects the events of one device (-1: the device with the most events). Lifetimes of a CSV become a
 * sequence: at each time, frees precede allocations, and allocations are in order of id. Errors: ZR_ERR_IO;
 * ZR_ERR_FORMAT, with the file, the position and the problem. A hostile file is rejected without harm. */
struct zr_read_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    const char *path;
    uint64_t unit_bytes;
    int device;
};
ZR_API zr_result zr_sequence_read(struct zr_sequence *out, const struct zr_read_options *options,
                                  zr_arena *host_arena);
/* Frees the sequence's memory. The call is valid after a failed read, too. */
ZR_API void zr_sequence_end(struct zr_sequence *sequence);

/* ---- Lifetimes and packing ----------------------------------------------------------------------------- */

struct zr_buffer {
    uint64_t lower, upper; /* alive in [lower, upper) */
    uint64_t bytes;
    uint64_t offset_bytes; /* result of zr_pack() */
    uint64_t id;           /* as the file has it; of a name: the number of its row, from 0 */
};

/* Lifetimes on a line or on a circle. With a period P, the placement repeats every P: times are below P, and
 * a buffer with `upper` above P (at most lower + P) is alive across the boundary: in [lower, P) and in [0,
 * upper - P) of the next period. */
struct zr_lifetimes {
    struct zr_buffer *buffers;
    size_t count;
    uint64_t period;            /* in the unit of lower and upper; 0: a line */
    uint64_t lower_bound_bytes; /* largest sum of live bytes */
    zr_arena *host_arena;
};

/* Lifetimes of a sequence. Time is the index of the event. A block that is never freed lives to the end.
 * ZR_ERR_INVALID: the events contradict each other. */
ZR_API zr_result zr_lifetimes_of(struct zr_lifetimes *out, const struct zr_sequence *sequence,
                                 zr_arena *host_arena);
/* Reads a MiniMalloc CSV: id, lower, upper and size in any order of columns. An offset column is ignored, and
 * so is an alignment: give zr_pack() the least common multiple of all. Errors as for zr_sequence_read(); a
 * row with a hint or gaps is ZR_ERR_FORMAT. */
ZR_API zr_result zr_lifetimes_read(struct zr_lifetimes *out, const char *path, zr_arena *host_arena);
/* Frees the memory of the lifetimes. The call is valid after a failure, too. */
ZR_API void zr_lifetimes_end(struct zr_lifetimes *lifetimes);

enum zr_pack_verdict {
    ZR_PACK_FOUND = 0,   /* the offsets are valid, and within the capacity if there is one */
    ZR_PACK_IMPOSSIBLE,  /* proved: no placement fits the capacity; the offsets are the best found */
    ZR_PACK_OUT_OF_TIME, /* undecided; the offsets are the best found */
};

struct zr_pack_options {
    size_t struct_bytes;      /* its sizeof, or 0: see "Options" in alloc/zr.h */
    uint64_t capacity_bytes;  /* stop at the first placement within it; 0: find the lowest placement that the
                                 budget allows */
    uint64_t alignment_bytes; /* of offsets; 0: 1 */
    uint64_t time_ns;         /* time budget; 0: 10 seconds */
    unsigned threads;         /* 0: 1 */
    /* Budget in steps instead of time, summed over all threads; a step takes 5 to 25 ns. A round of jobs (at
     * most seven) that has begun is completed. The answer is the same on every machine under any load. 0: use
     * time_ns. */
    uint64_t work;
};

struct zr_pack_report {
    enum zr_pack_verdict verdict;
    uint64_t height_bytes; /* largest offset + bytes */
    uint64_t lower_bound_bytes;
    uint64_t spent_ns;
};

/* Places every buffer. The result is deterministic for equal input if time does not run out. Scratch memory
 * comes from the host arena of the lifetimes and is freed. ZR_ERR_INVALID: a buffer has impossible times, or
 * the sum of sizes exceeds 2^62 bytes. */
ZR_API zr_result zr_pack(struct zr_lifetimes *lifetimes, const struct zr_pack_options *options,
                         struct zr_pack_report *report);
/* Rounds the sizes of a placement up to the grain and moves the offsets to multiples of the grain. Buffers
 * keep their order by offset. The height rises by less than one grain for each buffer of a stack. Scratch
 * memory: 32 bytes for each point in time. ZR_ERR_INVALID: a time is 2^32 or more, zr_pack() rejects the
 * lifetimes, or one grain for each buffer exceeds 2^62 bytes. */
ZR_API zr_result zr_pack_round(struct zr_lifetimes *lifetimes, uint64_t grain_bytes, uint64_t *height_bytes);
/* Checks a placement independently of the packer: no two buffers that are alive at the same time overlap, and
 * all lie within `height_bytes`. ZR_ERR_CORRUPT names an overlapping pair; ZR_ERR_INVALID names a buffer that
 * overlaps itself in the next period. */
ZR_API zr_result zr_pack_check(const struct zr_lifetimes *lifetimes, uint64_t height_bytes);

/* ---- Learning ------------------------------------------------------------------------------------------ */

/* A learner watches an arena, finds the period of the program's allocations and installs a placement plan.
 * The arena follows the plan from then on: addresses are fixed in advance and need no mapping. An allocation
 * that is not in the plan takes the arena's normal path. A changed sequence is learned again.
 *
 * An allocation only records. A thread of the learner analyses the records. The first allocation that leaves
 * work for the thread starts the thread; no other allocation creates a thread, takes memory or waits for the
 * learner. All signals are blocked in the thread, and the thread exits after one second without work. Each
 * plan is checked independently of its construction. A plan takes effect between two allocations, once it
 * adds no memory to what the arena has held. A period is found after two repetitions, if it has at most
 * 262,144 allocations. After that many allocations without a period the learner starts again and counts an
 * overrun.
 *
 * The learner's memory is private pages of the process. After fork(), the child has its own learner, which
 * continues from the records, shares no byte with the parent's learner and creates its own thread when there
 * is work. Work that the parent's thread had in progress is repeated in the child. For the memory of the
 * watched arena after fork() see zr_backend_host_create(). */
typedef struct zr_learner zr_learner;

struct zr_learner_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    zr_arena *arena;     /* the arena to watch; it must outlive the learner */
    /* Budget for packing one plan, in the steps of zr_pack_options.work; 0: 1.6e9, some seconds of one core.
     * Counted work gives the same plan for the same requests on every machine. A plan that would take more
     * memory than no plan halves the budget of the next plan for that period. */
    uint64_t work;
};

/* The caller owns *out. ZR_ERR_INVALID: no arena, or the arena already has a learner. ZR_ERR_HOST_MEMORY. */
ZR_API zr_result zr_learner_create(zr_learner **out, const struct zr_learner_options *options);
/* The arena forgets the plan; planned blocks stay valid. The learner's thread stops at once. No other thread
 * may be in a call on the arena. `learner` may be NULL. */
ZR_API void zr_learner_destroy(zr_learner *learner);
/* Waits until the learner has analysed all records. A program that needs its plan at a chosen point calls
 * this. Callable from any thread. */
ZR_API zr_result zr_learner_wait(zr_learner *learner);

/* ---- Rehearsing ---------------------------------------------------------------------------------------- */

/* For a program that knows its step in advance. The program runs the step once on a separate arena, for
 * example on the `sim` backend. The blocks of the passes get places, and an arena uses these places in the
 * real run: each place is mapped once, and later steps make no driver call. A pass is the repeated part of a
 * step, such as a micro-batch; every pass requests the same blocks in the same order. A request that was not
 * rehearsed takes the arena's normal path.
 *
 * The places depend only on sizes, lifetimes and the granule, so all ranks compute the same places. */
typedef struct zr_rehearsal zr_rehearsal;

/* Starts to watch an arena. An arena has at most one rehearsal or learner. The passes of one step follow;
 * each has at most `allocations_max` allocations, and the last pass includes those of the step's end. The
 * caller owns *out; both arenas must outlive it. ZR_ERR_INVALID: no arena, or the arena is already watched.
 */
ZR_API zr_result zr_rehearsal_create(zr_rehearsal **out, zr_arena *arena, size_t allocations_max,
                                     zr_arena *host_arena);
/* Begins a pass. Requests after the last pass belong to the step's end. */
ZR_API void zr_rehearsal_pass(zr_rehearsal *rehearsal);
/* Ends the step and the watch, and finds places. *found is false if the passes differ, hold blocks beyond the
 * step, or have more than 524,288 allocations. ZR_ERR_INVALID: called twice. */
ZR_API zr_result zr_rehearsal_place(zr_rehearsal *rehearsal, bool *found);
/* Makes the arena use the places for the calling thread. Each pass then begins with zr_rehearsal_rewind().
 * ZR_ERR_INVALID: no places were found; ZR_ERR_ADDRESSES: no contiguous address range is free for them. */
ZR_API zr_result zr_rehearsal_install(const zr_rehearsal *rehearsal, zr_arena *arena);
/* Begins a pass on an arena that uses places; no effect on other arenas. */
ZR_API void zr_rehearsal_rewind(zr_arena *arena);
/* `rehearsal` may be NULL. Installed places stay in force. */
ZR_API void zr_rehearsal_destroy(zr_rehearsal *rehearsal);

/* ---- Replay -------------------------------------------------------------------------------------------- */

enum zr_policy {
    ZR_POLICY_ZR = 0,     /* zr's arena */
    ZR_POLICY_CACHING,    /* PyTorch's caching allocator */
    ZR_POLICY_EXPANDABLE, /* PyTorch's expandable segments */
    ZR_POLICY_BESTFIT,    /* best fit in one growing range */
    ZR_POLICY_COUNT
};
ZR_API const char *zr_policy_name(enum zr_policy policy);

struct zr_replay_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    enum zr_policy policy;
    uint64_t capacity_bytes; /* of the `sim` backend; 0: unlimited */
    size_t granule_bytes;    /* 0: 2 MiB */
    unsigned repeat;         /* 0: 1. Blocks that are live at the end are freed between repeats */
    /* True: the replay does not wait for the learner's thread, and the result depends on the machine. False:
     * after each repeat the replay waits until the thread has no work, as in a program with longer steps. */
    bool no_wait;
    /* For `caching` and `expandable`, as in PYTORCH_CUDA_ALLOC_CONF: max_split_size_mb in bytes, 0: none; and
     * roundup_power2_divisions of sizes from 1, 2, 4, .. MiB on, 0 or 1: none. */
    uint64_t max_split_bytes;
    uint32_t roundup_divisions[16];
    /* For `caching`: garbage_collection_threshold, a share of the capacity; 0, or no capacity: none. */
    double garbage_collection_threshold;
};

struct zr_replay_report {
    uint64_t peak_reserved_bytes, peak_reserved_last_repeat_bytes;
    uint64_t lower_bound_bytes, lower_bound_last_repeat_bytes; /* different only if the repeats differ */
    uint64_t driver_calls, driver_calls_last_repeat;
    /* Of the last repeat: the median over runs of 256 events, which excludes interruptions and rare expensive
     * events; and the mean over all events. */
    double ns_per_operation, ns_per_operation_mean;
    double ns_per_operation_all; /* mean of all repeats, with recording and learning, without waiting */
    uint64_t waited_ns;          /* total wait for the learner's thread */
    uint64_t failed_at;          /* index of the first event that found no memory; UINT64_MAX: none */
};

/* Runs a sequence under a policy on a simulated device. A device that is too small is not an error: the run
 * ends, and failed_at has the event. ZR_ERR_INVALID: an impossible granule, or events that contradict each
 * other. */
ZR_API zr_result zr_replay(const struct zr_sequence *sequence, const struct zr_replay_options *options,
                           struct zr_replay_report *out);

#ifdef __cplusplus
}
#endif

#endif
