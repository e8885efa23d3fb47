/* recorder.h: the flight recorder: the last events of an arena, kept in a ring, and written as a trace when
 * an allocation fails. Private to alloc/.
 *
 * An event costs a few stores under the lock that the call has anyhow. Not recorded is what a plan hands out:
 * its fast path looks at nothing but the plan. A plan that comes or goes empties the ring. Of a plan's blocks
 * the file has those that are live at the failure, as if they had been there from the ring's start, and a
 * mark with the plan's position.
 *
 * All of it under the arena's lock unless a function says otherwise. */
#ifndef ZR_RECORDER_H
#define ZR_RECORDER_H

#include "alloc/core/arena_internal.h"
#include "alloc/debug/trace.h"
#include "alloc/debug/trace_format.h"

enum {
    ZR_RECORDED_TICK = ZRT_BEGIN
}; /* the time of what follows; every so many events, and with what maps */
enum { ZR_RECORDER_TICK_EVENTS = 256 };

/* An event. 32 bytes: two on a cache line. */
struct zr_recorded {
    uint64_t where;  /* offset from the arena's base << 16 | enum zrt_kind << 8 | tag */
    uint64_t bytes;  /* as requested; map, unmap: of granules */
    uint64_t stream; /* tick: nanoseconds */
    uint32_t slack_bytes;
    uint16_t thread, stack; /* threads beyond the 65,535th share a number; stack: of stacks.h, 0: none */
};

/* The ring of a new arena, as ZR_CONF=recorder:BYTES has it. Without memory for it there is none. */
void zr_recorder_start(struct zr_arena *arena);
void zr_recorder_end(struct zr_arena *arena);

void zr_recorder_tick(struct zr_arena *arena);
/* A run of granules: ZRT_MAP or ZRT_UNMAP. */
void zr_recorder_put_granules(struct zr_arena *arena, unsigned kind, struct zr_bounds run);

static inline uint16_t zr_recorder_thread(void)
{
    uint32_t thread = zr_trace_own_thread;
    if (__builtin_expect(thread == 0, 0))
        thread = zr_trace_thread();
    return (uint16_t)(__builtin_expect(thread <= UINT16_MAX, 1) ? thread : UINT16_MAX);
}

/* A block that came or went: ZRT_ALLOC or ZRT_FREE. The ring is on. */
static inline void zr_recorder_put(struct zr_arena *arena, unsigned kind, const struct zr_extent *block)
{
    struct zr_recorder *recorder = &arena->recorder;
    if (block->kind == ZR_EXTENT_PLANNED)
        return;
    if (__builtin_expect(recorder->count % ZR_RECORDER_TICK_EVENTS == 0, 0))
        zr_recorder_tick(arena);
    recorder->events[recorder->count++ & recorder->mask] = (struct zr_recorded){
        .where = (uint64_t)block->offset_bytes << 16 | kind << 8 | block->tag,
        .bytes = block->bytes - block->slack_bytes,
        .stream = block->stream,
        .slack_bytes = block->slack_bytes,
        .thread = zr_recorder_thread(),
        .stack = (uint16_t)zr_extent_stack(arena, block),
    };
}

/* A request failed, and its words are this thread's last error: writes the file and adds its name to them,
 * once, then once a minute, a few times in all. Does nothing where the ring is off, or this thread holds it.
 * Both locks. Never fails. */
void zr_recorder_refused(struct zr_arena *arena, zr_result result, const struct zr_request *request,
                         const struct zr_refusal *refusal);

/* While true, a failure of this thread is not the last word: its caller has another way to try. */
extern __thread bool zr_recorder_held __attribute__((tls_model("initial-exec")));
/* Counts the files that this thread's failures have written: tells whether the last one did. */
extern __thread uint8_t zr_recorder_files __attribute__((tls_model("initial-exec")));

#endif
