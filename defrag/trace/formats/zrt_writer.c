/* zrt_writer.c: writes .zrt traces made of other files. Uses alloc/base/system/file.c. */
#include "defrag/trace/formats/zrt.h"

#include <string.h>

/* An event in progress. */
struct bytes {
    unsigned char room[ZRT_EVENT_BYTES];
    size_t count;
};

static void put_byte(struct bytes *to, unsigned byte)
{
    to->room[to->count++] = (unsigned char)byte;
}

static void put_varint(struct bytes *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_byte(to, (unsigned)(value & 0x7f) | 0x80);
    put_byte(to, (unsigned)value);
}

/* Both are below 2^63. */
static void put_move(struct bytes *to, uint64_t place, uint64_t before)
{
    put_varint(to, place >= before ? (place - before) << 1 : ((before - place) << 1) - 1);
}

void zrt_writer_start(struct zrt_writer *out, const struct zrt_header *header, struct zr_text *text)
{
    *out = (struct zrt_writer){.text = text, .granule_bytes = header->granule_bytes};
    if (text)
        zr_text_put(text, (const char *)header, sizeof *header);
}

/* Writes the common part of all events; a kind adds flags to the first byte. */
static void put_common(struct zrt_writer *writer, struct bytes *to, const struct zrt_event *event,
                       unsigned flags)
{
    bool thread = event->thread != writer->thread, stream = event->stream != writer->stream,
         tag = event->tag != writer->tag;
    put_byte(to, (unsigned)event->kind | flags | (thread ? ZRT_HAS_THREAD : 0) |
                     (stream ? ZRT_HAS_STREAM : 0) | (tag ? ZRT_HAS_TAG : 0));
    put_varint(to, event->time_ns - writer->time_ns);
    if (thread)
        put_varint(to, event->thread);
    if (stream)
        put_varint(to, event->stream);
    if (tag)
        put_byte(to, (unsigned)event->tag);
    writer->time_ns = event->time_ns;
    writer->thread = event->thread;
    writer->stream = event->stream;
    writer->tag = event->tag;
}

static void put_block(struct zrt_writer *writer, struct bytes *to, const struct zrt_event *event)
{
    bool units = (event->offset_bytes | writer->place_bytes) % ZRT_UNIT_BYTES == 0;
    uint64_t unit = units ? ZRT_UNIT_BYTES : 1;
    put_common(writer, to, event,
               (units ? 0 : ZRT_IN_BYTES) | (event->kind == ZRT_ALLOC ? ZRT_HAS_RESERVED
                                             : event->asked           ? ZRT_FREE_REQUESTED
                                                                      : 0));
    put_move(to, event->offset_bytes / unit, writer->place_bytes / unit);
    writer->place_bytes = event->offset_bytes;
    if (event->kind == ZRT_FREE)
        return;
    put_varint(to, event->bytes);
    put_varint(to, event->reserved_bytes);
}

static void put_granules(struct zrt_writer *writer, struct bytes *to, const struct zrt_event *event)
{
    uint64_t granule = event->offset_bytes / writer->granule_bytes,
             count = event->bytes / writer->granule_bytes;
    put_common(writer, to, event, event->has_segment ? ZRT_HAS_SEGMENT : 0);
    put_move(to, granule, writer->granule);
    put_varint(to, count);
    writer->granule = granule + count;
    if (!event->has_segment)
        return;
    put_varint(to, event->pool);
    put_varint(to, event->unit_bytes / writer->granule_bytes);
}

static void put_refusal(struct bytes *to, const struct zrt_refusal *refusal)
{
    const uint64_t figures[] = {refusal->need_bytes,     refusal->free_bytes,    refusal->largest_bytes,
                                refusal->cached_bytes,   refusal->pending_bytes, refusal->unmovable_bytes,
                                refusal->reserved_bytes, refusal->limit_bytes,   refusal->device_bytes};
    const uint64_t more[] = {refusal->device_free_bytes, refusal->process_bytes, refusal->whole_bytes,
                             refusal->pool_idle_bytes};
    put_byte(to, refusal->cause);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        put_varint(to, figures[i]);
    if (!refusal->has_more)
        return;
    put_varint(to, sizeof more / sizeof *more);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        put_varint(to, more[i]);
}

void zrt_write(struct zrt_writer *writer, const struct zrt_event *event)
{
    struct bytes to = {.count = 0};
    const struct zrt_refusal *refusal = &event->refusal;
    size_t length = strnlen(event->label, ZRT_LABEL_BYTES);
    switch (event->kind) {
    case ZRT_ALLOC:
    case ZRT_FREE:
        put_block(writer, &to, event);
        break;
    case ZRT_MAP:
    case ZRT_UNMAP:
        put_granules(writer, &to, event);
        break;
    case ZRT_MARK:
        put_common(writer, &to, event, 0);
        put_varint(&to, length);
        memcpy(to.room + to.count, event->label, length);
        to.count += length;
        break;
    case ZRT_REFUSED:
        put_common(writer, &to, event,
                   refusal->cause == ZRT_CAUSE_UNKNOWN
                       ? 0
                       : (unsigned)ZRT_HAS_CAUSE | (refusal->has_more ? ZRT_HAS_MORE : 0));
        put_varint(&to, event->bytes);
        if (refusal->cause != ZRT_CAUSE_UNKNOWN)
            put_refusal(&to, refusal);
        break;
    default:
        put_common(writer, &to, event, 0);
    }
    writer->written_bytes += to.count;
    if (writer->text)
        zr_text_put(writer->text, (const char *)to.room, to.count);
}
