/* usage.h: the memory figures of a preloaded process, in a file that it shares with its observer, who can
 * read them after the process has died, too. Private to alloc/preload/ and to defrag/tool/, which reads it.
 *
 * The file is a struct zr_usage_table: `zr run --stats` makes it in a folder of its own (mode 0700) and names
 * the folder in ZR_RECORD, which the program's children inherit. A process takes a free record when its first
 * preloaded library starts; the second one finds that record again. It is known by the process's number and
 * by the image, 8 bytes that the kernel draws at each exec: what a process was before an exec, and a child
 * after fork, have records of their own.
 *
 * Figures are single words, written by the process alone and without a fence: a reader may see one of them
 * newer than its neighbour, never a torn one. Writing costs a few stores. */
#ifndef ZR_PRELOAD_USAGE_H
#define ZR_PRELOAD_USAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZR_USAGE_MAGIC UINT64_C(0x314452434552525a) /* "ZRRECRD1" */
enum {
    ZR_USAGE_VERSION = 1,
    ZR_USAGE_COUNT = 4096,  /* processes and images of a run that have one; later ones are counted only */
    ZR_USAGE_HOST = 0,      /* which memory: malloc's */
    ZR_USAGE_DEVICE = 1,    /* device 0's; those of the others follow */
    ZR_USAGE_MEMORIES = 17, /* sixteen devices */
    ZR_USAGE_NAME_BYTES = 48,
    ZR_USAGE_NUMBER_BITS = 13,
};
#define ZR_USAGE_FILE "record" /* in the folder */

/* The least limit under which libzr_malloc.so serves a process: jemalloc's first memory takes five granules
 * of 2 MiB, a large block one, a second thread two. */
#define ZR_USAGE_MIN_LIMIT_BYTES ((size_t)16 << 20)

/* Of one kind of memory. Held: handed out, or kept after it was freed. */
struct zr_usage_figures {
    _Atomic uint64_t live_bytes, held_bytes;
    _Atomic uint64_t peak_held_bytes, live_at_peak_bytes; /* the latter at the moment of the former */
    _Atomic uint64_t traced_peak_bytes; /* held by what the trace has, at most, while it was written */
    _Atomic uint64_t limit_bytes;       /* 0: none */
    _Atomic uint64_t failed_count;      /* requests that got nothing; of the last one: */
    _Atomic uint64_t failed_bytes, live_at_failure_bytes;
    _Atomic uint64_t counted_live_bytes, counted_held_bytes; /* its part of the book's sums */
};

enum zr_usage_state {
    ZR_USAGE_FREE = 0,
    ZR_USAGE_RUNNING,
    ZR_USAGE_ENDED,    /* by exit() */
    ZR_USAGE_REPLACED, /* by exec */
    ZR_USAGE_GONE      /* died otherwise, as `zr run` has found */
};

struct zr_usage {
    _Atomic uint32_t state; /* enum zr_usage_state */
    int32_t process, parent;
    bool traced; /* NUMBER.zrt lies in the folder, NUMBER being the record's index; or where ZR_TRACE says */
    uint64_t image, started_ns;
    _Atomic uint64_t peak_resident_bytes; /* of the whole process, as the kernel counts; known at the end */
    char program[ZR_USAGE_NAME_BYTES];
    struct zr_usage_figures memory[ZR_USAGE_MEMORIES];
};

struct zr_usage_table {
    uint64_t magic;
    uint32_t version, record_bytes;
    int32_t root;                 /* the process that was started */
    _Atomic uint32_t taken_count; /* beyond ZR_USAGE_COUNT: of those without one */
    _Atomic uint64_t best_trace;  /* of processes that ended: pages at the peak << 13 | number + 1; 0: none */
    struct {                      /* of all processes at once */
        _Atomic uint64_t live_bytes, held_bytes, peak_held_bytes, live_at_peak_bytes;
    } sums[ZR_USAGE_MEMORIES];
    /* A bit for each record: its part of the file is there, and may be touched (a hole may not: on a full
     * disk that ends a program); and its process runs. */
    _Atomic uint64_t there[ZR_USAGE_COUNT / 64], running[ZR_USAGE_COUNT / 64];
    _Alignas(4096) struct zr_usage records[ZR_USAGE_COUNT];
};
_Static_assert(offsetof(struct zr_usage_table, records) == 4096,
               "what is before the records is always there");

/* The next number from `from` on with its bit set; ZR_USAGE_COUNT: none. */
static inline unsigned zr_usage_next(const _Atomic uint64_t bits[ZR_USAGE_COUNT / 64], unsigned from)
{
    for (unsigned word = from / 64; from < ZR_USAGE_COUNT; from = ++word * 64) {
        uint64_t rest = atomic_load_explicit(&bits[word], memory_order_acquire) >> from % 64;
        if (rest)
            return from + (unsigned)__builtin_ctzll(rest);
    }
    return ZR_USAGE_COUNT;
}

/* The process's record, acquired or found again. NULL: none was requested (*words is NULL), or none is
 * available (*words says why). Before threads, once per library; keeps errno. */
struct zr_usage *zr_usage_open(const char **words);
/* Whether this library took it; else another had, and ends it. */
bool zr_usage_is_taken_here(const struct zr_usage *record);
/* In the child after fork, with its parent's record: one of its own. What malloc holds is as the parent's;
 * devices' memory is the parent's alone. NULL: none is free. */
struct zr_usage *zr_usage_in_child(const struct zr_usage *parents);
/* The path of its trace in the folder: false: too long. */
bool zr_usage_trace_path(const struct zr_usage *record, char *out, size_t room_bytes);
/* At exit, once its trace is whole: of the processes that ended, the trace of the one that held the most
 * stays, and the others' are removed, so that a run's folder does not grow with its processes. */
void zr_usage_keep_best_trace(const struct zr_usage *record);
/* Figures of now. One thread at a time for each memory. */
void zr_usage_note(struct zr_usage *record, unsigned memory, uint64_t live_bytes, uint64_t held_bytes);
void zr_usage_failure(struct zr_usage *record, unsigned memory, uint64_t bytes);
/* At exit: what it holds is no longer part of the sums. Of two libraries both may call it. */
void zr_usage_end(struct zr_usage *record);

/* Removes the figures of a process from the sums. Observers may call it. */
void zr_usage_uncount(struct zr_usage_table *book, struct zr_usage *record, enum zr_usage_state state);

#endif
