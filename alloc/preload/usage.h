/* usage.h: what both preloaded libraries report: memory figures in a shared file, which an observer can read
 * even after a process has died; traces; lines on standard error. Private to alloc/preload/ and to
 * defrag/tool/, which reads the file.
 *
 * The file is a struct zr_usage_table. `zr run --stats` creates the file in a folder of its own (mode 0700)
 * and names the folder in ZR_RECORD, which the program's children inherit. A process takes a free record when
 * its first preloaded library starts. The second library finds the record again, by the process's number and
 * the image: 8 bytes that the kernel draws at each exec. Each image of a process has its own record, and so
 * has a child after fork().
 *
 * Figures are single words that only the process writes, without a fence: a reader may see one figure newer
 * than another, but never a torn one. A write costs a few stores. */
#ifndef ZR_PRELOAD_USAGE_H
#define ZR_PRELOAD_USAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/zr.h"

#define ZR_USAGE_MAGIC UINT64_C(0x314452434552525a) /* "ZRRECRD1" */
enum {
    ZR_USAGE_VERSION = 1,
    ZR_USAGE_COUNT = 4096,  /* records of a run; later processes are only counted */
    ZR_USAGE_HOST = 0,      /* index of malloc's memory */
    ZR_USAGE_DEVICE = 1,    /* index of device 0's memory; other devices follow */
    ZR_USAGE_MEMORIES = 17, /* malloc's memory and that of sixteen devices */
    ZR_USAGE_NAME_BYTES = 48,
    ZR_USAGE_NUMBER_BITS = 13,
};
#define ZR_USAGE_FILE "record" /* name of the file in the folder */

/* The minimum limit under which libzr_malloc.so serves a process: jemalloc's first memory takes five granules
 * of 2 MiB, a large block one, a second thread two. */
#define ZR_USAGE_MIN_LIMIT_BYTES ((size_t)16 << 20)

/* Figures of one kind of memory. Held bytes are allocated, or freed and kept. */
struct zr_usage_figures {
    _Atomic uint64_t live_bytes, held_bytes;
    _Atomic uint64_t peak_held_bytes, live_at_peak_bytes; /* live bytes when held bytes peaked */
    _Atomic uint64_t traced_peak_bytes; /* peak held bytes of traced blocks while the trace was written */
    _Atomic uint64_t limit_bytes;       /* 0: none */
    _Atomic uint64_t failed_count;      /* failed requests; the next two: of the last one */
    _Atomic uint64_t failed_bytes, live_at_failure_bytes;
    _Atomic uint64_t counted_live_bytes,
        counted_held_bytes; /* the part of the table's sums that is this process's */
};

enum zr_usage_state {
    ZR_USAGE_FREE = 0,
    ZR_USAGE_RUNNING,
    ZR_USAGE_ENDED,    /* the process called exit() */
    ZR_USAGE_REPLACED, /* the process called exec */
    ZR_USAGE_GONE      /* the process died in another way */
};

struct zr_usage {
    _Atomic uint32_t state; /* enum zr_usage_state */
    int32_t process, parent;
    bool traced; /* a trace was written: INDEX.zrt in the folder (the record's index), or ZR_TRACE's file */
    uint64_t image, started_ns;
    _Atomic uint64_t peak_resident_bytes; /* the kernel's figure of the whole process; known at its end */
    char program[ZR_USAGE_NAME_BYTES];
    struct zr_usage_figures memory[ZR_USAGE_MEMORIES];
};

struct zr_usage_table {
    uint64_t magic;
    uint32_t version, record_bytes;
    int32_t root;                 /* the process that `zr run` started */
    _Atomic uint32_t taken_count; /* includes processes without a record, beyond ZR_USAGE_COUNT */
    _Atomic uint64_t best_trace;  /* of ended processes: peak pages << 13 | index + 1; 0: none */
    struct {                      /* sums over all running processes */
        _Atomic uint64_t live_bytes, held_bytes, peak_held_bytes, live_at_peak_bytes;
    } sums[ZR_USAGE_MEMORIES];
    /* One bit for each record. `there`: the record's part of the file is written and may be touched; touching
     * a hole of the mapping on a full disk would end the program. `running`: the record's process runs. */
    _Atomic uint64_t there[ZR_USAGE_COUNT / 64], running[ZR_USAGE_COUNT / 64];
    _Alignas(4096) struct zr_usage records[ZR_USAGE_COUNT];
};
_Static_assert(offsetof(struct zr_usage_table, records) == 4096,
               "the part before the records always has pages");

/* The first index from `from` on whose bit is set; ZR_USAGE_COUNT: none. */
static inline unsigned zr_usage_next(const _Atomic uint64_t bits[ZR_USAGE_COUNT / 64], unsigned from)
{
    for (unsigned word = from / 64; from < ZR_USAGE_COUNT; from = ++word * 64) {
        uint64_t rest = atomic_load_explicit(&bits[word], memory_order_acquire) >> from % 64;
        if (rest)
            return from + (unsigned)__builtin_ctzll(rest);
    }
    return ZR_USAGE_COUNT;
}

/* The process's record, taken or found again. NULL: no record was requested (*reason is NULL), or none is
 * available (*reason says why). Called before threads start, once per library. Keeps errno. */
struct zr_usage *zr_usage_open(const char **reason);
/* Whether this library took the record, and so ends it. */
bool zr_usage_is_own(const struct zr_usage *record);
/* Takes a record for a child after fork and copies malloc's figures from its parent's record; device memory
 * belongs only to the parent. NULL: no record is free. */
struct zr_usage *zr_usage_in_child(const struct zr_usage *parents);
/* Writes the path of the record's trace in the folder. False: the path is too long. */
bool zr_usage_trace_path(const struct zr_usage *record, char *out, size_t capacity_bytes);
/* Called at exit, after the trace was closed. Keeps only the trace of the ended process with the highest peak
 * and removes other traces, so that a run's folder does not grow with its processes. */
void zr_usage_keep_best_trace(const struct zr_usage *record);
/* Updates the figures. One thread at a time for each kind of memory. */
void zr_usage_note(struct zr_usage *record, unsigned memory, uint64_t live_bytes, uint64_t held_bytes);
void zr_usage_failure(struct zr_usage *record, unsigned memory, uint64_t bytes);
/* Removes the process's figures from the sums at exit. Both preloaded libraries may call this. */
void zr_usage_end(struct zr_usage *record);

/* Removes a process's figures from the sums. Observers may call this. */
void zr_usage_uncount(struct zr_usage_table *table, struct zr_usage *record, enum zr_usage_state state);

/* ---- Lines and traces (say.c) -------------------------------------------------------------------------- */

/* Prints a line on standard error without stdio, because stdio allocates. Keeps errno. */
void zr_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Starts the trace that `zr run` requests by a variable PID:FILE. Process PID writes FILE, every other
 * process FILE.PID with its own number; `suffix` (may be "") follows FILE. ZR_ERR_INVALID: the variable is
 * malformed. */
zr_result zr_trace_start_requested(zr_arena *arena, const char *variable, const char *suffix);

#endif
