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

#include "alloc/core/arena.h"
#include "alloc/core/event_ring.h"
#include "alloc/telemetry/report.h"
#include "alloc/telemetry/trace.h"
#include "alloc/telemetry/trace_format.h"

enum {
    ZR_RECORDED_TICK = ZRT_BEGIN
}; /* the time of what follows; every so many events, and with what maps */
enum { ZR_RECORDER_TICK_EVENTS = 256 };

enum { ZR_RECORDED_STACK_SHIFT = 48 };

/* The ring of a new arena, as ZR_CONF=recorder:BYTES has it. Without memory for it there is none. */
void zr_recorder_start(struct zr_arena *arena);
void zr_recorder_end(struct zr_arena *arena);

/* Where the next event goes, after a tick, and from the ring's start again at its end; NULL: the ring is off.
 */
struct zr_recorded *zr_recorder_turn(struct zr_arena *arena);
/* A run of granules: ZRT_MAP or ZRT_UNMAP. */
void zr_recorder_put_granules(struct zr_arena *arena, unsigned kind, struct zr_bounds run);

/* The calling thread's number in events. */
uint16_t zr_recorder_thread(void);

/* A block that came or went: ZRT_ALLOC or ZRT_FREE. Field by field, as the core has written them: a wider
 * load would wait for its stores. */
static inline void zr_recorder_put(struct zr_arena *arena, unsigned kind, const struct zr_extent *block)
{
    struct zr_recorder *recorder = &arena->recorder;
    struct zr_recorded *event = recorder->next;
    uint32_t thread = zr_trace_own_thread;
    if (block->kind == ZR_EXTENT_PLANNED ||
        (__builtin_expect(event == recorder->stop, 0) && !(event = zr_recorder_turn(arena))))
        return;
    if (__builtin_expect(thread - 1 >= UINT16_MAX - 1, 0))
        thread = zr_recorder_thread();
    recorder->next = event + 1;
    event->where = block->offset_bytes | kind;
    event->stream = block->stream;
    event->bytes = block->bytes;
    event->slack_bytes = block->slack_bytes;
    event->tag = block->tag;
    event->thread = (uint16_t)thread;
}

/* The call stack of the block that was put last. */
void zr_recorder_put_stack(struct zr_arena *arena, const struct zr_extent *block);

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
