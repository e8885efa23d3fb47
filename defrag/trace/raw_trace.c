/* raw_trace.c: converts addresses to numbered blocks. Uses vector.c and number_map.c. */
#include "defrag/trace/raw_trace.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sort.h"
#include "defrag/trace/number_map.h"

/* Limit of live bytes: sums and roundings then stay below 64 bits. */
#define MAX_LIVE_BYTES (UINT64_C(1) << 62)

/* The state of an address in the first pass over the events. */
enum { FREED = 0, LIVE };

struct making {
    struct zr_raw_trace *trace;
    struct zr_sequence *sequence;
    struct zr_vector events;        /* struct zr_event, the sequence's */
    struct zr_vector before;        /* struct zr_raw_block: live before the window */
    struct zr_vector bytes;         /* uint64_t, of each block */
    struct zr_number_map addresses; /* first pass: FREED or LIVE; second pass: the live block's number */
    struct zr_number_map threads;
    uint64_t live_bytes;
};

static zr_result contradiction(const struct making *making, size_t index, const char *what)
{
    const struct zr_raw_event *event = zr_vector_at(&making->trace->events, index);
    return zr_fail(ZR_ERR_FORMAT, "'%s': event %zu %s (0x%llx): the trace has a gap, or is not a trace",
                   making->trace->path, index, what, (unsigned long long)event->address);
}

/* ---- Blocks from before the window --------------------------------------------------------------------- */

static zr_result note(struct making *making, size_t index)
{
    const struct zr_raw_event *event = zr_vector_at(&making->trace->events, index);
    const uint32_t *state = zr_number_map_get(&making->addresses, event->address);
    zr_result result = ZR_OK;
    if (event->kind == ZR_EVENT_ALLOC) {
        if (state && *state == LIVE)
            return contradiction(making, index, "allocates an address that is live");
        return zr_number_map_put(&making->addresses, event->address, LIVE);
    }
    if ((state && *state == FREED) || (!state && making->trace->whole))
        return contradiction(making, index, "frees an address that is not live");
    if (!state) {
        struct zr_raw_block block = {event->address, event->bytes, event->stream};
        result = zr_vector_add(&making->before, &block);
    }
    return result == ZR_OK ? zr_number_map_put(&making->addresses, event->address, FREED) : result;
}

/* Scans the events, and the blocks that were live at the end: a block without an allocation is from before
 * the window. */
static zr_result find_before(struct making *making)
{
    zr_result result = ZR_OK;
    for (size_t i = 0; i < making->trace->events.count && result == ZR_OK; i++) {
        const struct zr_raw_event *event = zr_vector_at(&making->trace->events, i);
        if (event->kind != ZR_EVENT_MARK && (event->bytes > 0 || making->trace->whole))
            result = note(making, i);
    }
    for (size_t i = 0; i < making->trace->blocks.count && result == ZR_OK; i++) {
        const struct zr_raw_block *block = zr_vector_at(&making->trace->blocks, i);
        if (block->bytes == 0 || zr_number_map_get(&making->addresses, block->address))
            continue;
        result = zr_vector_add(&making->before, block);
        if (result == ZR_OK)
            result = zr_number_map_put(&making->addresses, block->address, LIVE);
    }
    return result;
}

static bool lower(const void *a, const void *b)
{
    const struct zr_raw_block *one = a, *other = b;
    return one->address < other->address;
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

static zr_result thread_of(struct making *making, uint64_t thread, uint16_t *out)
{
    const uint32_t *known = zr_number_map_get(&making->threads, thread);
    *out = (uint16_t)(known ? *known : making->threads.count);
    if (known)
        return ZR_OK;
    if (making->threads.count > UINT16_MAX)
        return zr_fail(ZR_ERR_FORMAT, "'%s' has more than 65,536 threads", making->trace->path);
    return zr_number_map_put(&making->threads, thread, (uint32_t)making->threads.count);
}

static zr_result emit_alloc(struct making *making, const struct zr_raw_event *raw, struct zr_event *event)
{
    struct zr_sequence *sequence = making->sequence;
    if (making->bytes.count == UINT32_MAX || raw->bytes > MAX_LIVE_BYTES - making->live_bytes)
        return zr_fail(ZR_ERR_FORMAT, "'%s' has more live bytes or blocks than a machine can hold",
                       making->trace->path);
    event->block = (uint32_t)making->bytes.count;
    making->live_bytes += raw->bytes;
    if (making->live_bytes > sequence->lower_bound_bytes)
        sequence->lower_bound_bytes = making->live_bytes;
    zr_result result = zr_vector_add(&making->bytes, &raw->bytes);
    return result == ZR_OK ? zr_number_map_put(&making->addresses, raw->address, event->block) : result;
}

static zr_result emit(struct making *making, const struct zr_raw_event *raw)
{
    struct zr_event event = {.kind = raw->kind, .tag = raw->tag, .bytes = raw->bytes, .stream = raw->stream};
    zr_result result = thread_of(making, raw->thread, &event.thread);
    if (result != ZR_OK)
        return result;
    if (raw->kind == ZR_EVENT_ALLOC) {
        result = emit_alloc(making, raw, &event);
    } else if (raw->kind == ZR_EVENT_FREE) {
        event.block = *zr_number_map_get(&making->addresses, raw->address);
        event.bytes = *(const uint64_t *)zr_vector_at(&making->bytes, event.block);
        making->live_bytes -= event.bytes;
    }
    return result == ZR_OK ? zr_vector_add(&making->events, &event) : result;
}

static zr_result emit_all(struct making *making)
{
    const struct zr_raw_trace *trace = making->trace;
    zr_result result = zr_vector_reserve(&making->events, making->before.count + trace->events.count);
    for (size_t i = 0; i < making->before.count && result == ZR_OK; i++) {
        const struct zr_raw_block *block = zr_vector_at(&making->before, i);
        const struct zr_raw_event *first = trace->events.count ? zr_vector_at(&trace->events, 0) : NULL;
        result = emit(making, &(struct zr_raw_event){.kind = ZR_EVENT_ALLOC,
                                                     .tag = ZR_TAG_OTHER,
                                                     .address = block->address,
                                                     .bytes = block->bytes,
                                                     .stream = block->stream,
                                                     .thread = first ? first->thread : 0});
    }
    making->sequence->preface_count = making->events.count;
    for (size_t i = 0; i < trace->events.count && result == ZR_OK; i++) {
        const struct zr_raw_event *event = zr_vector_at(&trace->events, i);
        if (event->bytes > 0 || event->kind == ZR_EVENT_MARK || trace->whole)
            result = emit(making, event);
        if (i + 1 == trace->preface_count)
            making->sequence->preface_count = making->events.count;
    }
    return result;
}

zr_result zr_raw_trace_sequence(struct zr_sequence *out, struct zr_raw_trace *trace)
{
    zr_arena *arena = trace->events.arena;
    struct making making = {.trace = trace, .sequence = out};
    *out = (struct zr_sequence){.format = trace->format, .host_arena = arena};
    zr_vector_init(&making.events, arena, sizeof(struct zr_event));
    zr_vector_init(&making.before, arena, sizeof(struct zr_raw_block));
    zr_vector_init(&making.bytes, arena, sizeof(uint64_t));
    zr_number_map_init(&making.addresses, arena);
    zr_number_map_init(&making.threads, arena);
    zr_result result = find_before(&making);
    if (result == ZR_OK) {
        zr_sort_in_place(&(struct zr_sort_records){making.before.items, making.before.count,
                                                   sizeof(struct zr_raw_block), lower});
        result = emit_all(&making);
    }
    if (result == ZR_OK && making.bytes.count == 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' contains no allocation", trace->path);
    zr_number_map_end(&making.threads);
    zr_number_map_end(&making.addresses);
    zr_vector_end(&making.before);
    out->blocks_count = (uint32_t)making.bytes.count;
    zr_vector_end(&making.bytes);
    if (result != ZR_OK) {
        zr_vector_end(&making.events);
        *out = (struct zr_sequence){0};
        return result;
    }
    out->events = making.events.items;
    out->events_count = making.events.count;
    return ZR_OK;
}
