/* numbering.c: from records with addresses to events with numbered blocks. Uses vector.c and number_map.c. */
#include "defrag/trace/recording.h"

#include "alloc/base/error.h"

/* Limit of live bytes: sums and roundings then stay below 64 bits. */
#define MAX_LIVE_BYTES (UINT64_C(1) << 62)
/* Of an address: its block was freed. */
#define FREED UINT32_MAX

void zr_numbering_init(struct zr_numbering *out, const char *path, zr_arena *arena)
{
    *out = (struct zr_numbering){.path = path};
    zr_vector_init(&out->events, arena, sizeof(struct zr_event));
    zr_number_map_init(&out->blocks, arena);
    zr_number_map_init(&out->threads, arena);
}

void zr_numbering_end(struct zr_numbering *numbering)
{
    zr_number_map_end(&numbering->threads);
    zr_number_map_end(&numbering->blocks);
    zr_vector_end(&numbering->events);
}

static zr_result contradiction(const struct zr_numbering *numbering, const struct zr_record *record,
                               const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s': event %zu %s (0x%llx): the trace has a gap, or is not a trace",
                   numbering->path, numbering->events.count, what, (unsigned long long)record->address);
}

static zr_result number_thread(struct zr_numbering *numbering, uint32_t thread, uint16_t *out)
{
    const uint32_t *known = zr_number_map_get(&numbering->threads, thread);
    *out = (uint16_t)(known ? *known : numbering->threads.count);
    if (known)
        return ZR_OK;
    if (numbering->threads.count > UINT16_MAX)
        return zr_fail(ZR_ERR_FORMAT, "'%s' has more than 65,536 threads", numbering->path);
    return zr_number_map_put(&numbering->threads, thread, (uint32_t)numbering->threads.count);
}

static zr_result take_alloc(struct zr_numbering *numbering, const struct zr_record *record,
                            struct zr_event *event)
{
    const uint32_t *index = zr_number_map_get(&numbering->blocks, record->address);
    if (index && *index != FREED)
        return contradiction(numbering, record, "allocates an address that is live");
    event->bytes = record->bytes ? record->bytes : record->reserved_bytes;
    if (numbering->events.count >= FREED || event->bytes > MAX_LIVE_BYTES - numbering->live_bytes)
        return zr_fail(ZR_ERR_FORMAT, "'%s' has more live bytes or blocks than a machine can hold",
                       numbering->path);
    event->block = numbering->blocks_count++;
    numbering->live_bytes += event->bytes;
    if (numbering->live_bytes > numbering->peak_bytes)
        numbering->peak_bytes = numbering->live_bytes;
    return zr_number_map_put(&numbering->blocks, record->address, (uint32_t)numbering->events.count);
}

static zr_result take_free(struct zr_numbering *numbering, const struct zr_record *record,
                           struct zr_event *event)
{
    uint32_t *index = zr_number_map_get(&numbering->blocks, record->address);
    if (!index || *index == FREED)
        return contradiction(numbering, record, "frees an address that is not live");
    const struct zr_event *allocation = zr_vector_at(&numbering->events, *index);
    event->block = allocation->block;
    event->bytes = allocation->bytes;
    numbering->live_bytes -= event->bytes;
    *index = FREED;
    return ZR_OK;
}

zr_result zr_numbering_take(struct zr_numbering *numbering, const struct zr_record *record)
{
    struct zr_event event = {.tag = record->tag, .stream = record->stream};
    zr_result result = ZR_OK;
    if (record->kind == ZR_RECORD_ALLOC) {
        event.kind = ZR_EVENT_ALLOC;
        result = take_alloc(numbering, record, &event);
    } else if (record->kind == ZR_RECORD_FREE) {
        event.kind = ZR_EVENT_FREE;
        result = take_free(numbering, record, &event);
    } else if (record->kind == ZR_RECORD_MARK) {
        event.kind = ZR_EVENT_MARK;
        event.tag = ZR_TAG_OTHER;
    } else {
        return ZR_OK;
    }
    if (result == ZR_OK)
        result = number_thread(numbering, record->thread, &event.thread);
    if (result == ZR_OK)
        result = zr_vector_add(&numbering->events, &event);
    if (record->before)
        numbering->preface_count = numbering->events.count;
    return result;
}

struct zr_sequence zr_numbering_sequence(const struct zr_numbering *numbering)
{
    return (struct zr_sequence){.events = numbering->events.items,
                                .events_count = numbering->events.count,
                                .preface_count = numbering->preface_count,
                                .blocks_count = numbering->blocks_count,
                                .lower_bound_bytes = numbering->peak_bytes,
                                .host_arena = numbering->events.arena};
}
