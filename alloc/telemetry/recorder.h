/* recorder.h: the flight recorder: a ring of an arena's last events, written as a trace when an allocation
 * fails. Private to alloc/.
 *
 * An event costs a few stores under the arena's lock, which the call holds anyway. Blocks that a plan places
 * are not recorded, because the plan's fast path reads only the plan. Starting or ending a plan empties the
 * ring. The file has a mark with the plan's position, and shows the plan's blocks that are live at the
 * failure as if they existed at the ring's start.
 *
 * lock: arena->lock, unless a declaration says otherwise */
#ifndef ZR_RECORDER_H
#define ZR_RECORDER_H

#include "alloc/core/arena.h"
#include "alloc/core/event_ring.h"
#include "alloc/telemetry/report.h"
#include "alloc/telemetry/trace.h"
#include "alloc/telemetry/trace_format.h"

/* The kind of a tick: the time of the following events. Precedes every 256th event, and each map and unmap.
 */
enum { ZR_RECORDED_TICK = ZRT_BEGIN };
enum { ZR_RECORDER_TICK_EVENTS = 256 };

enum { ZR_RECORDED_STACK_SHIFT = 48 };

/* Allocates a new arena's ring, whose size is ZR_CONF=recorder:BYTES. If no memory is left, the recorder is
 * off. */
void zr_recorder_start(struct zr_arena *arena);
void zr_recorder_end(struct zr_arena *arena);

/* Writes a tick and returns the place of the next event, which wraps around at the ring's end. NULL: the
 * recorder is off. */
struct zr_recorded *zr_recorder_advance(struct zr_arena *arena);
/* Records a run of granules: ZRT_MAP or ZRT_UNMAP. */
void zr_recorder_put_granules(struct zr_arena *arena, unsigned kind, struct zr_bounds run);

/* The calling thread's number in events. */
uint16_t zr_recorder_thread(void);

/* Records a block: ZRT_ALLOC or ZRT_FREE. Copies field by field, because a wider load would stall on the
 * core's recent narrow stores. */
static inline void zr_recorder_put(struct zr_arena *arena, unsigned kind, const struct zr_extent *block)
{
    struct zr_recorder *recorder = &arena->recorder;
    struct zr_recorded *event = recorder->next;
    uint32_t thread = zr_trace_own_thread;
    if (block->kind == ZR_EXTENT_PLANNED ||
        (__builtin_expect(event == recorder->stop, 0) && !(event = zr_recorder_advance(arena))))
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

/* Adds the call stack to the last recorded block. */
void zr_recorder_put_stack(struct zr_arena *arena, const struct zr_extent *block);

/* Call it after a failed request, whose message is the thread's last error. Writes the file and adds its name
 * to the message, at most once a minute and a few times per process. Does nothing if the recorder is off or
 * zr_recorder_suppressed is set. Never fails. lock: both */
void zr_recorder_refused(struct zr_arena *arena, zr_result result, const struct zr_request *request,
                         const struct zr_refusal *refusal);

/* While true, a failed request of this thread writes no file, because the caller will try another way. */
extern __thread bool zr_recorder_suppressed __attribute__((tls_model("initial-exec")));
/* The number of files that this thread's failures have written. A caller compares it to know whether a
 * failure wrote one. */
extern __thread uint8_t zr_recorder_files __attribute__((tls_model("initial-exec")));

#endif
