/* recorder.c: the flight recorder. Uses trace.c, executor.h and option.c.
 *
 * The ring holds the last events, and the arena holds the present state. The state at the ring's start is
 * derived from both. The first event of an address says whether a block existed there at the start, and a
 * block without events existed all the time. The granules at the start are found by undoing the events,
 * latest first. */
#define _GNU_SOURCE
#include "alloc/telemetry/recorder.h"
#include "alloc/telemetry/stacks.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/plan/executor_internal.h"
#include "alloc/core/arena.h"
#include "alloc/core/event_ring.h"
#include "alloc/telemetry/report.h"

/* The max number of files of a process. An arena writes its next file at least a minute later. */
enum { FILES_MAX = 8, NUMBERS_MAX = 10000 };
#define AGAIN_NS UINT64_C(60000000000)
/* An arena with more blocks writes no file, because writing holds its lock. */
enum { BLOCKS_MAX = 4 << 20 };

__thread bool zr_recorder_suppressed __attribute__((tls_model("initial-exec")));
__thread uint8_t zr_recorder_files __attribute__((tls_model("initial-exec")));

/* ---- The ring ------------------------------------------------------------------------------------------ */

/* After the events, the pages hold a table of events by address and a bitmap of granules. They are allocated
 * at the start and first touched at a failure, when no memory may be left to allocate. */
struct layout {
    size_t events_bytes, table_bytes, end;
};

static struct layout layout_of(const struct zr_arena *arena, size_t events_count)
{
    struct layout out = {.events_bytes = events_count * sizeof(struct zr_recorded)};
    out.table_bytes = 2 * events_count * sizeof(uint32_t);
    out.end = out.events_bytes + out.table_bytes + arena->bitmap_bytes;
    return out;
}

void zr_recorder_start(struct zr_arena *arena)
{
    struct zr_recorder *recorder = &arena->recorder;
    size_t bytes = (size_t)zr_option_get(ZR_OPTION_RECORDER), count = 1;
    if (bytes / sizeof(struct zr_recorded) < ZR_RECORDER_TICK_EVENTS)
        return;
    while (2 * count <= bytes / sizeof(struct zr_recorded))
        count *= 2;
    recorder->events = zr_pages_take(layout_of(arena, count).end);
    recorder->next = recorder->stop = recorder->events;
    recorder->mask = count - 1;
}

void zr_recorder_end(struct zr_arena *arena)
{
    struct zr_recorder *recorder = &arena->recorder;
    if (recorder->events)
        zr_pages_give(recorder->events, layout_of(arena, recorder->mask + 1).end);
    recorder->events = recorder->next = recorder->stop = NULL;
}

static struct zr_recorded tick(void)
{
    return (struct zr_recorded){.where = ZR_RECORDED_TICK, .stream = zr_os_now_ns()};
}

__attribute__((noinline)) struct zr_recorded *zr_recorder_advance(struct zr_arena *arena)
{
    struct zr_recorder *recorder = &arena->recorder;
    if (!recorder->events)
        return NULL;
    if (recorder->next == recorder->events + recorder->mask + 1)
        recorder->next = recorder->events;
    recorder->stop = recorder->next + ZR_RECORDER_TICK_EVENTS;
    recorder->stop_count += ZR_RECORDER_TICK_EVENTS;
    *recorder->next++ = tick();
    return recorder->next;
}

static void put(struct zr_arena *arena, struct zr_recorded event)
{
    if (arena->recorder.next == arena->recorder.stop)
        zr_recorder_advance(arena);
    *arena->recorder.next++ = event;
}

__attribute__((noinline)) uint16_t zr_recorder_thread(void)
{
    uint32_t thread = zr_trace_thread();
    return (uint16_t)(thread <= UINT16_MAX ? thread : UINT16_MAX);
}

void zr_recorder_put_stack(struct zr_arena *arena, const struct zr_extent *block)
{
    if (arena->recorder.events && block->kind != ZR_EXTENT_PLANNED)
        arena->recorder.next[-1].bytes |= (uint64_t)(uint16_t)zr_extent_stack(arena, block)
                                          << ZR_RECORDED_STACK_SHIFT;
}

void zr_recorder_put_granules(struct zr_arena *arena, unsigned kind, struct zr_bounds run)
{
    if (!arena->recorder.events)
        return;
    put(arena, tick());
    put(arena, (struct zr_recorded){
                   .where = run.offset_bytes | kind, .bytes = run.bytes, .thread = zr_recorder_thread()});
}

/* ---- The state at the ring's start --------------------------------------------------------------------- */

/* The ring, as it is read at a failure. */
struct reading {
    const struct zr_arena *arena;
    const struct zr_recorded *events;
    uint64_t first, end; /* event numbers, counted since the recorder's start */
    size_t mask, table_mask;
    uint32_t *table;    /* by address: 1 + ring index of its first event; 0: none */
    uint64_t *granules; /* granules that were mapped at the start */
};

static const struct zr_recorded *event_at(const struct reading *reading, uint64_t number)
{
    return &reading->events[number & reading->mask];
}

static unsigned kind_of(const struct zr_recorded *event)
{
    return event->where % ZR_UNIT_BYTES;
}

static size_t offset_of(const struct zr_recorded *event)
{
    return (size_t)(event->where - event->where % ZR_UNIT_BYTES);
}

/* The table's slot of the address, or the empty slot where it belongs. */
static uint32_t *slot_of(const struct reading *reading, size_t offset_bytes)
{
    size_t at = (size_t)(offset_bytes / ZR_UNIT_BYTES * UINT64_C(0x9e3779b97f4a7c15) >> 32);
    for (;; at++) {
        uint32_t *slot = &reading->table[at & reading->table_mask];
        if (*slot == 0 || offset_of(&reading->events[*slot - 1]) == offset_bytes)
            return slot;
    }
}

static bool is_of_block(const struct zr_recorded *event)
{
    return kind_of(event) == ZRT_ALLOC || kind_of(event) == ZRT_FREE;
}

static void index_first_events(const struct reading *reading)
{
    memset(reading->table, 0, (reading->table_mask + 1) * sizeof *reading->table);
    for (uint64_t i = reading->first; i < reading->end; i++) {
        const struct zr_recorded *event = event_at(reading, i);
        uint32_t *slot = is_of_block(event) ? slot_of(reading, offset_of(event)) : NULL;
        if (slot && *slot == 0)
            *slot = 1 + (uint32_t)(i & reading->mask);
    }
}

static void undo_granules(const struct reading *reading)
{
    unsigned shift = reading->arena->granule_shift;
    memcpy(reading->granules, reading->arena->granules, reading->arena->bitmap_bytes);
    for (uint64_t i = reading->end; i-- > reading->first;) {
        const struct zr_recorded *event = event_at(reading, i);
        size_t first = offset_of(event) >> shift;
        if (kind_of(event) == ZRT_MAP || kind_of(event) == ZRT_UNMAP)
            zr_granules_set(reading->granules, first, first + (event->bytes >> shift),
                            kind_of(event) == ZRT_UNMAP);
    }
}

static struct reading read_ring(const struct zr_arena *arena)
{
    const struct zr_recorder *recorder = &arena->recorder;
    size_t count = recorder->mask + 1;
    uint64_t end = zr_recorder_count(recorder);
    struct layout layout = layout_of(arena, count);
    struct reading out = {
        .arena = arena,
        .events = recorder->events,
        .first = end > count ? end - count : 0,
        .end = end,
        .mask = recorder->mask,
        .table_mask = 2 * count - 1,
        .table = (uint32_t *)((char *)recorder->events + layout.events_bytes),
        .granules = (uint64_t *)((char *)recorder->events + layout.events_bytes + layout.table_bytes)};
    if (out.first < recorder->first)
        out.first = recorder->first;
    index_first_events(&out);
    undo_granules(&out);
    return out;
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

static uint32_t stack_of(const struct zr_recorded *event)
{
    return (uint32_t)(event->bytes >> ZR_RECORDED_STACK_SHIFT);
}

static struct zr_block_info block_of(const struct reading *reading, const struct zr_recorded *event)
{
    size_t reserved_bytes = (size_t)(event->bytes & ((UINT64_C(1) << ZR_RECORDED_STACK_SHIFT) - 1));
    return (struct zr_block_info){.address = reading->arena->base + offset_of(event),
                                  .bytes = reserved_bytes - event->slack_bytes,
                                  .reserved_bytes = reserved_bytes,
                                  .tag = (zr_tag)event->tag,
                                  .stream = event->stream};
}

static void write_start(const struct reading *reading, struct zr_trace *trace, struct zr_arena *arena)
{
    size_t granule = arena->granule_bytes, end = arena->range_bytes / granule;
    for (size_t first = 0, after; first < end; first = after) {
        first = zr_granules_next(reading->granules, first, end, true);
        after = zr_granules_next(reading->granules, first, end, false);
        if (first < after)
            zr_trace_write_map(trace, arena->base + first * granule, (after - first) * granule);
    }
    for (const struct zr_extent *extent = arena->first; extent; extent = extent->next)
        if (extent->kind == ZR_EXTENT_BLOCK && *slot_of(reading, extent->offset_bytes) == 0) {
            struct zr_block_info block = zr_block_info_of(arena, extent);
            zr_trace_write_alloc(trace, &block, zr_extent_stack(arena, extent));
        }
    for (const struct zr_extent *extent = NULL; (extent = zr_executor_next_block(arena, extent));) {
        struct zr_block_info block = zr_block_info_of(arena, extent);
        zr_trace_write_alloc(trace, &block, zr_extent_stack(arena, extent));
    }
    for (size_t i = 0; i <= reading->table_mask; i++) {
        if (reading->table[i] == 0 || kind_of(&reading->events[reading->table[i] - 1]) != ZRT_FREE)
            continue;
        const struct zr_recorded *event = &reading->events[reading->table[i] - 1];
        struct zr_block_info block = block_of(reading, event);
        zr_trace_write_alloc(trace, &block, stack_of(event));
    }
    zr_trace_write_begin(trace);
}

/* Writes marks for the reader: how many earlier events are lost, and that a plan's events are missing. */
static void write_marks(const struct reading *reading, struct zr_trace *trace)
{
    char label[ZRT_LABEL_BYTES + 1];
    const struct zr_executor *executor = reading->arena->executor;
    if (reading->first > 0) {
        snprintf(label, sizeof label, "recorder: %llu events before these are lost",
                 (unsigned long long)reading->first);
        zr_trace_write_mark(trace, label);
    }
    if (!executor || !executor->plan)
        return;
    const struct zr_executor_sequence *sequence = executor->plan->last_sequence;
    snprintf(label, sizeof label, "recorder: no events of the plan, at step %zu of %zu",
             (size_t)(sequence->cursor - executor->plan->slots), executor->plan->slots_count);
    zr_trace_write_mark(trace, label);
}

static uint64_t start_of(const struct reading *reading)
{
    for (uint64_t i = reading->first; i < reading->end; i++)
        if (kind_of(event_at(reading, i)) == ZR_RECORDED_TICK)
            return event_at(reading, i)->stream;
    return zr_os_now_ns();
}

static void write_events(const struct reading *reading, struct zr_trace *trace, uint64_t now_ns)
{
    for (uint64_t i = reading->first; i < reading->end; i++) {
        const struct zr_recorded *event = event_at(reading, i);
        struct zr_block_info block = block_of(reading, event);
        if (kind_of(event) == ZR_RECORDED_TICK) {
            now_ns = event->stream;
            continue;
        }
        zr_trace_set_source(trace, event->thread, now_ns);
        if (kind_of(event) == ZRT_ALLOC)
            zr_trace_write_alloc(trace, &block, stack_of(event));
        else if (kind_of(event) == ZRT_FREE)
            zr_trace_write_free(trace, &block);
        else if (kind_of(event) == ZRT_MAP)
            zr_trace_write_map(trace, block.address, block.bytes);
        else
            zr_trace_write_unmap(trace, block.address, block.bytes);
    }
    zr_trace_set_source(trace, 0, 0);
}

/* Creates a file of this process. False: no file could be created. */
static bool open_file(struct zr_trace **out, char *path, size_t capacity_bytes, const struct zr_arena *arena,
                      uint64_t start_ns)
{
    static _Atomic unsigned files_count;
    struct stat taken;
    const struct zr_trace_origin origin = {.name = arena->name,
                                           .base = arena->base,
                                           .reserve_bytes = arena->range_bytes,
                                           .granule_bytes = arena->granule_bytes,
                                           .start_ns = start_ns,
                                           .own = true};
    if (atomic_load(&files_count) >= FILES_MAX)
        return false;
    for (unsigned number = 1; number <= NUMBERS_MAX; number++) {
        int length = snprintf(path, capacity_bytes, "%s/zr-%ld-%s-%u.zrt", zr_folder_temporary(),
                              (long)getpid(), arena->name, number);
        if (length < 0 || (size_t)length >= capacity_bytes)
            return false;
        /* The program chose the arena's name, so characters that are bad in a file name are replaced. */
        for (char *at = path + strlen(zr_folder_temporary()) + 1; *at; at++)
            if (*at == '/' || (unsigned char)*at <= ' ' || *at == '\'')
                *at = '-';
        if (zr_trace_open(out, path, &origin) == ZR_OK) {
            atomic_fetch_add(&files_count, 1);
            return true;
        }
        if (lstat(path, &taken) != 0) /* lstat(), because a dangling symbolic link also takes the name */
            return false;             /* the name is free, so another error is the cause */
    }
    return false;
}

static bool write_file(struct zr_arena *arena, char *path, size_t capacity_bytes,
                       const struct zr_request *request, const struct zr_refusal *refusal)
{
    struct zr_trace *trace;
    struct reading reading = read_ring(arena);
    uint64_t start_ns = start_of(&reading);
    if (!open_file(&trace, path, capacity_bytes, arena, start_ns))
        return false;
    zr_trace_set_source(trace, zr_trace_thread(), start_ns);
    write_start(&reading, trace, arena);
    write_marks(&reading, trace);
    write_events(&reading, trace, start_ns);
    zr_trace_write_refused(trace, request, refusal, arena->stacks ? zr_call_stack_own() : 0);
    if (zr_trace_close(trace) == ZR_OK)
        return true;
    unlink(path); /* an incomplete file is useless */
    return false;
}

void zr_recorder_refused(struct zr_arena *arena, zr_result result, const struct zr_request *request,
                         const struct zr_refusal *refusal)
{
    struct zr_recorder *recorder = &arena->recorder;
    char path[512], message[1024];
    int state;
    if (!recorder->events || zr_recorder_suppressed || arena->blocks_count > BLOCKS_MAX)
        return;
    uint64_t now_ns = zr_os_now_ns();
    if (recorder->written_ns && now_ns - recorder->written_ns < AGAIN_NS)
        return;
    recorder->written_ns = now_ns ? now_ns : 1;
    snprintf(message, sizeof message, "%s", zr_last_error());
    /* File calls are cancellation points, and this thread holds locks. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    bool written = write_file(arena, path, sizeof path, request, refusal);
    pthread_setcancelstate(state, &state);
    if (written)
        zr_recorder_files++;
    zr_fail(result, "%s%s%s", message, written ? ". What led to it: zr why " : "", written ? path : "");
}
