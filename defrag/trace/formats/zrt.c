/* zrt.c: reads .zrt traces. Uses alloc/base/system/file.c. */
#include "defrag/trace/formats/zrt.h"

#include <stddef.h>
#include <string.h>

#include "alloc/base/error.h"

/* ---- Opening ------------------------------------------------------------------------------------------- */

static const char *name_of(const struct zrt_reader *reader)
{
    return reader->file.fd >= 0 ? reader->file.name : "trace in memory";
}

/* The problem of a header; NULL: none. */
static const char *header_fault(const struct zrt_header *header)
{
    if (memcmp(header->magic, ZRT_MAGIC, sizeof header->magic) != 0)
        return "it does not begin with ZRT1";
    if (header->version == 0)
        return "there is no version 0 of the format";
    if (header->header_bytes < sizeof *header || header->header_bytes > ZRT_HEADER_MAX)
        return "its header has an invalid length";
    if (header->state >= ZRT_STATE_COUNT)
        return "its state is unknown";
    if (header->granule_bytes == 0 || (header->granule_bytes & (header->granule_bytes - 1)) != 0)
        return "its granule size is not a power of two";
    if (header->reserve_bytes == 0 || header->base_address + header->reserve_bytes < header->base_address)
        return "its range of addresses is empty or wraps around";
    if (memchr(header->arena, '\0', sizeof header->arena) == NULL)
        return "the arena's name is not terminated";
    if (header->origin >= ZRT_ORIGIN_COUNT)
        return "it was imported from a format unknown to this program";
    return NULL;
}

/* Common part of both ways of opening, after the header was read; `source_bytes` is the whole size. */
static zr_result start(struct zrt_reader *reader, uint64_t source_bytes)
{
    const struct zrt_header *header = &reader->header;
    if (memcmp(header->magic, ZRT_MAGIC, sizeof header->magic) == 0 && header->version > ZRT_VERSION)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' has version %u of the format, newer than this program reads (%u): use the zr of the release "
            "that wrote it, or a later one",
            name_of(reader), header->version, ZRT_VERSION);
    const char *fault = header_fault(header);
    if (!fault && header->header_bytes > source_bytes)
        fault = "it ends within its header";
    if (fault)
        return zr_fail(ZR_ERR_FORMAT, "'%s' is not a readable trace: %s", name_of(reader), fault);
    uint64_t there_bytes = source_bytes - header->header_bytes;
    reader->cut_short = reader->header.written_bytes > there_bytes;
    reader->left_bytes = reader->cut_short ? there_bytes : reader->header.written_bytes;
    return ZR_OK;
}

static void clear(struct zrt_reader *reader)
{
    memset(reader, 0, offsetof(struct zrt_reader, buffer));
    reader->file.fd = -1;
}

static zr_result too_short(const char *name, uint64_t bytes)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s' is not a trace: %llu bytes are less than a header of %zu", name,
                   (unsigned long long)bytes, sizeof(struct zrt_header));
}

zr_result zrt_open(struct zrt_reader *out, const char *path)
{
    uint64_t bytes;
    size_t got;
    clear(out);
    zr_result result = zr_file_open(&out->file, path);
    if (result != ZR_OK)
        return result;
    result = zr_file_size(&out->file, &bytes);
    if (result != ZR_OK)
        goto unwind;
    if (bytes < sizeof out->header) {
        result = too_short(path, bytes);
        goto unwind;
    }
    result = zr_file_read(&out->file, &out->header, sizeof out->header, &got);
    if (result == ZR_OK && got < sizeof out->header)
        result = too_short(path, got);
    if (result == ZR_OK)
        result = start(out, bytes);
    if (result == ZR_OK) /* skips fields that a later release added to the header */
        result = zr_file_read(&out->file, out->buffer, out->header.header_bytes - sizeof out->header, &got);
    out->data = out->buffer;
unwind:
    if (result != ZR_OK)
        zrt_close(out);
    return result;
}

zr_result zrt_open_memory(struct zrt_reader *out, const void *data, size_t bytes)
{
    clear(out);
    if (bytes < sizeof out->header)
        return too_short(name_of(out), bytes);
    memcpy(&out->header, data, sizeof out->header);
    out->data = data;
    out->data_bytes = bytes;
    out->data_next_bytes = out->header.header_bytes;
    return start(out, bytes);
}

void zrt_close(struct zrt_reader *reader)
{
    zr_file_close(&reader->file);
    reader->left_bytes = 0;
    reader->file.fd = -1;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

/* Fills the buffer with the length of a whole event, or the rest of the file. */
static zr_result refill(struct zrt_reader *reader)
{
    size_t held = (size_t)(reader->data_bytes - reader->data_next_bytes), got;
    if (reader->file.fd < 0 || held >= ZRT_EVENT_BYTES || held >= reader->left_bytes)
        return ZR_OK;
    memmove(reader->buffer, reader->buffer + reader->data_next_bytes, held);
    zr_result result = zr_file_read(&reader->file, reader->buffer + held, sizeof reader->buffer - held, &got);
    reader->data_next_bytes = 0;
    reader->data_bytes = held + got;
    if (result == ZR_OK && held + got < ZRT_EVENT_BYTES && held + got < reader->left_bytes) {
        /* The file shrank while it was read. */
        reader->cut_short = true;
        reader->left_bytes = held + got;
    }
    return result;
}

/* The bytes of one event. After a fault `next` does not move and every get returns 0. */
struct bytes {
    const unsigned char *next, *end;
    const char *fault;
};

static const char past_end[] = "the event extends beyond the end";

static unsigned get_byte(struct bytes *from)
{
    if (from->next == from->end && !from->fault)
        from->fault = past_end;
    return from->fault ? 0 : *from->next++;
}

static uint64_t get_varint(struct bytes *from)
{
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        unsigned byte = get_byte(from);
        if (shift == 63 && byte > 1) {
            from->fault = "a number has more than 64 bits";
            return 0;
        }
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return value;
    }
}

/* Moves *place by a zigzag difference in units of `unit`; the result must be in [0, limit]. */
static void move_place(struct bytes *from, uint64_t *place, uint64_t unit, uint64_t limit)
{
    uint64_t coded = get_varint(from);
    bool down = coded & 1;
    uint64_t units = (coded >> 1) + down, bytes;
    if (__builtin_mul_overflow(units, unit, &bytes) || (down ? bytes > *place : bytes > limit - *place)) {
        if (!from->fault)
            from->fault = "a place lies outside the arena";
        return;
    }
    *place = down ? *place - bytes : *place + bytes;
}

static void get_alloc(struct zrt_reader *reader, struct bytes *from, unsigned first, struct zrt_event *out)
{
    uint64_t limit = reader->header.reserve_bytes;
    move_place(from, &reader->place_bytes, first & ZRT_IN_BYTES ? 1 : ZRT_UNIT_BYTES, limit);
    out->offset_bytes = reader->place_bytes;
    out->asked = out->kind == ZRT_FREE && (first & ZRT_FREE_REQUESTED);
    if (out->kind == ZRT_FREE)
        return;
    out->bytes = get_varint(from);
    if (first & ZRT_HAS_RESERVED)
        out->reserved_bytes = get_varint(from);
    else if (out->bytes <= limit)
        out->reserved_bytes = (out->bytes + ZRT_UNIT_BYTES - 1) & ~(uint64_t)(ZRT_UNIT_BYTES - 1);
    if (from->fault)
        return;
    if (out->bytes == 0 || out->bytes > out->reserved_bytes ||
        out->reserved_bytes > limit - out->offset_bytes)
        from->fault = "a block is empty or larger than the room for it";
}

static void get_granules(struct zrt_reader *reader, struct bytes *from, unsigned first, struct zrt_event *out)
{
    uint64_t unit = reader->header.granule_bytes, limit = reader->header.reserve_bytes / unit;
    move_place(from, &reader->granule, 1, limit);
    uint64_t count = get_varint(from);
    if (from->fault)
        return;
    if (count == 0 || count > limit - reader->granule) {
        from->fault = "a run of granules is empty or leaves the arena";
        return;
    }
    out->offset_bytes = reader->granule * unit;
    out->bytes = count * unit;
    reader->granule += count;
    if (!(first & ZRT_HAS_SEGMENT))
        return;
    uint64_t pool = get_varint(from), together = get_varint(from);
    if (!from->fault && (pool > UINT32_MAX || together > limit))
        from->fault = "a segment's pool or unit is invalid";
    out->has_segment = true;
    out->pool = (uint32_t)pool;
    out->unit_bytes = from->fault ? 0 : together * unit;
}

static void get_label(struct bytes *from, struct zrt_event *out)
{
    uint64_t length = get_varint(from);
    if (!from->fault && length > ZRT_LABEL_BYTES)
        from->fault = "a label is too long";
    for (uint64_t i = 0; i < length && !from->fault; i++)
        out->label[i] = (char)get_byte(from);
}

/* Skips figures that a later writer added. */
static void get_more(struct bytes *from, struct zrt_refusal *out)
{
    uint64_t *const figures[] = {&out->device_free_bytes, &out->process_bytes, &out->whole_bytes,
                                 &out->pool_idle_bytes};
    const size_t known = sizeof figures / sizeof *figures;
    uint64_t count = get_varint(from);
    if (!from->fault && count > ZRT_MORE_MAX)
        from->fault = "a refusal has too many figures";
    for (uint64_t i = 0; i < count && !from->fault; i++) {
        uint64_t figure = get_varint(from);
        if (i < known)
            *figures[i] = figure;
    }
    out->has_more = count >= known;
}

static void get_refusal(struct bytes *from, struct zrt_refusal *out)
{
    unsigned cause = get_byte(from);
    if (!from->fault && (cause == ZRT_CAUSE_UNKNOWN || cause >= ZRT_CAUSE_COUNT))
        from->fault = "the cause of a refusal is unknown";
    out->cause = (enum zrt_cause)cause;
    uint64_t *const figures[] = {&out->need_bytes,     &out->free_bytes,    &out->largest_bytes,
                                 &out->cached_bytes,   &out->pending_bytes, &out->unmovable_bytes,
                                 &out->reserved_bytes, &out->limit_bytes,   &out->device_bytes};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        *figures[i] = get_varint(from);
}

/* ---- Extensions ---------------------------------------------------------------------------------------- */

/* The text up to the end of an extension, whose length is at most the text's capacity. */
static void get_text(struct bytes *from, char out[ZRT_EXTENSION_BYTES + 1])
{
    size_t bytes = (size_t)(from->end - from->next);
    memcpy(out, from->next, bytes);
    out[bytes] = '\0';
    from->next += bytes;
    if (strlen(out) != bytes)
        from->fault = "a text has a zero in it";
}

static void get_module(struct bytes *from, struct zrt_module *out)
{
    out->address = get_varint(from);
    out->bytes = get_varint(from);
    out->file_offset = get_varint(from);
    uint64_t length = get_varint(from);
    if (!from->fault && (out->bytes == 0 || out->bytes > UINT64_MAX - out->address))
        from->fault = "a module is empty or its addresses wrap around";
    if (!from->fault && length > ZRT_BUILD_ID_BYTES)
        from->fault = "a build ID is too long";
    for (uint64_t i = 0; i < length && !from->fault; i++)
        out->build_id[i] = (unsigned char)get_byte(from);
    if (from->fault)
        return;
    out->build_id_bytes = (unsigned)length;
    get_text(from, out->path);
}

static void get_frame(struct bytes *from, struct zrt_event *out)
{
    out->frame_number = get_varint(from);
    if (!from->fault && (out->frame_number == 0 || out->frame_number > ZRT_FRAME_NUMBERS))
        from->fault = "the number of a frame is invalid";
    if (!from->fault)
        get_text(from, out->module.path);
}

static uint32_t get_stack_number(struct bytes *from)
{
    uint64_t number = get_varint(from);
    if (!from->fault && (number == 0 || number > ZRT_STACKS_MAX))
        from->fault = "the number of a stack is invalid";
    return from->fault ? 0 : (uint32_t)number;
}

static void get_frames(struct bytes *from, struct zrt_event *out)
{
    uint64_t address = 0;
    out->stack = get_stack_number(from);
    while (!from->fault && from->next < from->end) {
        uint64_t coded = get_varint(from);
        address += (coded >> 1) ^ (coded & 1 ? UINT64_MAX : 0);
        if (!from->fault && out->frames_count == ZRT_FRAMES_MAX)
            from->fault = "a stack has too many frames";
        if (!from->fault)
            out->frames[out->frames_count++] = address;
    }
}

static void get_extension(struct zrt_reader *reader, struct bytes *from, struct zrt_event *out)
{
    unsigned kind = get_byte(from);
    uint64_t length = get_varint(from);
    if (!from->fault && (reader->header.version < 2 || kind == 0))
        from->fault = "the kind of the extension is invalid";
    else if (!from->fault && length > ZRT_EXTENSION_BYTES)
        from->fault = "an extension is too long";
    else if (!from->fault && length > (size_t)(from->end - from->next))
        from->fault = past_end;
    if (from->fault)
        return;
    struct bytes own = {.next = from->next, .end = from->next + length};
    out->extension = (enum zrt_extension)kind;
    if (kind == ZRT_MODULE)
        get_module(&own, &out->module);
    else if (kind == ZRT_STACK)
        get_frames(&own, out);
    else if (kind == ZRT_WITH)
        reader->with = get_stack_number(&own);
    else if (kind == ZRT_FRAME)
        get_frame(&own, out);
    else if (kind == ZRT_SAMPLE)
        reader->sample_bytes = get_varint(&own);
    if (own.fault) /* no field may be cut off within the extension */
        from->fault = own.fault == past_end ? "an extension is too short" : own.fault;
    from->next += length;
}

/* ---- One event ----------------------------------------------------------------------------------------- */

/* Reads the common part of all events. */
static void get_common(struct zrt_reader *reader, struct bytes *from, unsigned first, struct zrt_event *out)
{
    uint64_t later_ns = get_varint(from), thread = reader->thread;
    if (__builtin_add_overflow(reader->time_ns, later_ns, &reader->time_ns) && !from->fault)
        from->fault = "the time wraps around";
    if (first & ZRT_HAS_THREAD)
        thread = get_varint(from);
    if (thread > UINT32_MAX && !from->fault)
        from->fault = "a thread's number has more than 32 bits";
    if (first & ZRT_HAS_STREAM)
        reader->stream = get_varint(from);
    unsigned tag = first & ZRT_HAS_TAG ? get_byte(from) : reader->tag;
    if (tag >= ZR_TAG_COUNT && !from->fault)
        from->fault = "the tag is invalid";
    reader->thread = (uint32_t)thread;
    reader->tag = (zr_tag)tag;
    out->time_ns = reader->time_ns;
    out->thread = reader->thread;
    out->stream = reader->stream;
    out->tag = reader->tag;
}

static void get_event(struct zrt_reader *reader, struct bytes *from, struct zrt_event *out)
{
    unsigned first = get_byte(from);
    out->kind = (enum zrt_kind)(first & ZRT_KIND_MASK);
    bool in_bytes = first & ZRT_IN_BYTES, has_reserved = first & ZRT_HAS_RESERVED;
    bool more = out->kind == ZRT_REFUSED && has_reserved; /* ZRT_HAS_MORE is the same bit as in_bytes */
    if ((in_bytes && out->kind != ZRT_ALLOC && out->kind != ZRT_FREE && !more) ||
        (has_reserved && (out->kind == ZRT_MARK || out->kind == ZRT_BEGIN))) {
        from->fault = "it has flags that are invalid for its kind";
        return;
    }
    get_common(reader, from, first, out);
    if (out->kind == ZRT_ALLOC || out->kind == ZRT_REFUSED) {
        out->stack = reader->with;
        out->sample_bytes = reader->sample_bytes;
        reader->with = 0;
        reader->sample_bytes = 0;
    }
    switch (out->kind) {
    case ZRT_EXTENSION:
        get_extension(reader, from, out);
        break;
    case ZRT_ALLOC:
    case ZRT_FREE:
        get_alloc(reader, from, first, out);
        break;
    case ZRT_MAP:
    case ZRT_UNMAP:
        get_granules(reader, from, first, out);
        break;
    case ZRT_MARK:
        get_label(from, out);
        break;
    case ZRT_REFUSED:
        out->bytes = get_varint(from);
        if (first & ZRT_HAS_CAUSE)
            get_refusal(from, &out->refusal);
        if (first & ZRT_HAS_MORE)
            get_more(from, &out->refusal);
        break;
    case ZRT_BEGIN:
        break;
    default:
        if (!from->fault)
            from->fault = "the kind of the event is invalid";
    }
}

zr_result zrt_next(struct zrt_reader *reader, struct zrt_event *out, bool *more)
{
    memset(out, 0, offsetof(struct zrt_event, module)); /* the fields after it belong to rare kinds */
    *more = false;
    zr_result result = refill(reader);
    if (result != ZR_OK || reader->left_bytes == 0)
        return result;
    uint64_t held = reader->data_bytes - reader->data_next_bytes;
    uint64_t room = held < reader->left_bytes ? held : reader->left_bytes;
    struct bytes from = {.next = reader->data + reader->data_next_bytes};
    const unsigned char *first = from.next;
    from.end = first + room;

    get_event(reader, &from, out);
    if (from.fault == past_end && reader->cut_short && room == reader->left_bytes) {
        reader->left_bytes = 0; /* the file is truncated within this event */
        return ZR_OK;
    }
    if (from.fault) {
        reader->left_bytes = 0;
        return zr_fail(ZR_ERR_CORRUPT, "'%s' is damaged at byte %llu (event %llu): %s", name_of(reader),
                       (unsigned long long)(reader->header.header_bytes + reader->read_bytes),
                       (unsigned long long)reader->events_count, from.fault);
    }
    uint64_t used = (uint64_t)(from.next - first);
    reader->data_next_bytes += used;
    reader->read_bytes += used;
    reader->left_bytes -= used;
    reader->events_count++;
    *more = true;
    return ZR_OK;
}
