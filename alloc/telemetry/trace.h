/* trace.h: the writer of .zrt traces, called by the arena. Private to alloc/; trace_format.h has the layout.
 *
 * A struct zr_trace belongs to one arena, whose lock every caller holds. Without a trace (NULL) an event
 * costs one predictable branch. Writing an event takes no system call, except once per MiB of trace. When the
 * file cannot grow, the trace stops with the reason in its header, and the program continues. A child after
 * fork() writes nothing: the kernel wipes its copy of the struct. */
#ifndef ZR_TRACE_H
#define ZR_TRACE_H

#include "alloc/zr.h"
#include "alloc/telemetry/report.h"

struct zr_refusal;
struct zr_trace;

/* The header's description of the arena. */
struct zr_trace_origin {
    const char *name;
    const void *base; /* start of the reservation, which contains all events' addresses */
    size_t reserve_bytes;
    size_t granule_bytes;
    size_t max_bytes;      /* max size of the file, at which the trace stops as on a full disk; 0: none */
    uint64_t start_ns;     /* time of the first event; 0: now */
    bool own;              /* the file must not exist; mode 0600 */
    _Atomic bool *running; /* cleared when the trace stops early; NULL: nothing is */
};

/* Creates the file, replacing an existing one. The caller owns *out until zr_trace_close(). ZR_ERR_IO: the
 * message names the file and the cause; no file is left. ZR_ERR_HOST_MEMORY. */
zr_result zr_trace_open(struct zr_trace **out, const char *path, const struct zr_trace_origin *origin);
/* Truncates the file to its length and frees the writer. ZR_ERR_IO: the trace stopped early; the message has
 * the cause, and the file is valid up to that point. */
zr_result zr_trace_close(struct zr_trace *trace);

/* `stack`: the number of the caller's stack (stacks.h); 0: none. */
void zr_trace_write_alloc(struct zr_trace *trace, const struct zr_block_info *block, uint32_t stack);
/* A block that was drawn as a sample, one in `mean_bytes`. */
void zr_trace_write_sample(struct zr_trace *trace, const struct zr_block_info *block, uint32_t stack,
                           uint64_t mean_bytes);
void zr_trace_write_free(struct zr_trace *trace, const struct zr_block_info *block);
/* `first` and `bytes` are multiples of the granule. */
void zr_trace_write_map(struct zr_trace *trace, const void *first, size_t bytes);
void zr_trace_write_unmap(struct zr_trace *trace, const void *first, size_t bytes);
void zr_trace_write_mark(struct zr_trace *trace, const char *label);
void zr_trace_write_refused(struct zr_trace *trace, const struct zr_request *request,
                            const struct zr_refusal *refusal, uint32_t stack);
/* Sets thread and time of the following events. Thread 0: the calling thread and the current time again. */
void zr_trace_set_source(struct zr_trace *trace, uint32_t thread, uint64_t now_ns);
/* The calling thread's number: 1 and up, in the order of first calls. */
extern __thread uint32_t zr_trace_own_thread __attribute__((tls_model("initial-exec"))); /* 0: none yet */
uint32_t zr_trace_thread(void);
struct zr_arena;
/* Marks the end of the blocks and mappings that existed when the trace was started. */
void zr_trace_write_begin(struct zr_trace *trace);

/* zr_trace_start() with a size at which the trace stops, and a flag that says so: see struct zr_trace_origin.
 */
zr_result zr_trace_start_up_to(zr_arena *arena, const char *path, size_t max_bytes, _Atomic bool *running);

/* Requests from other processes (tracing.c), by arena number, beside the program's own trace. The caller
 * holds no locks. ZR_ERR_INVALID, with a message: there is no such arena, the arena is striped, or such a
 * trace is running already or (stop) is not. A snapshot of a striped arena covers the first stripe. */
zr_result zr_trace_start_foreign(unsigned number, const char *path);
zr_result zr_trace_stop_foreign(unsigned number);
zr_result zr_trace_snapshot(unsigned number, const char *path);
/* Takes the stack of one allocation in `every` (0: none) in all present and later arenas; the end of a
 * foreign trace restores the option's value. Blocks that are already live have no stack. False: an arena's
 * lock was busy, and the arena was skipped. */
bool zr_arenas_set_stacks(uint32_t every);
/* Writes a mark to every running trace; returns the number of traces. */
unsigned zr_trace_mark_all(const char *label);

/* Writes an event to each trace of the arena. */
#define zr_trace_event(arena, kind, ...)                                                                     \
    do {                                                                                                     \
        for (unsigned starter_ = 0; starter_ < ZR_TRACE_COUNT; starter_++)                                   \
            if (__builtin_expect((arena)->traces[starter_] != NULL, 0))                                      \
                zr_trace_write_##kind((arena)->traces[starter_], __VA_ARGS__);                               \
    } while (0)

#endif
