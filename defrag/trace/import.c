/* import.c: writes recordings as .zrt traces. Uses recording.c and zrt_writer.c. */
#include "defrag/trace/recording.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/trace/formats/zrt.h"

#define MAX_BYTES (UINT64_C(1) << 62)

struct importing {
    struct zr_recording *recording;
    struct zrt_header header;
    struct zrt_writer writer;
    uint64_t low, high; /* of all addresses */
    uint64_t ends;      /* the bitwise OR of the ends of all segments */
    bool any_before, begun;
};

static bool is_map(const struct zr_record *record)
{
    return record->kind == ZR_RECORD_MAP || record->kind == ZR_RECORD_UNMAP;
}

/* ---- The range of addresses ---------------------------------------------------------------------------- */

static zr_result measure(void *state, const struct zr_record *record, bool *stop)
{
    struct importing *importing = state;
    uint64_t bytes = is_map(record) ? record->bytes : record->reserved_bytes, end;
    (void)stop;
    importing->any_before |= record->before;
    if (!is_map(record) && record->kind != ZR_RECORD_ALLOC)
        return ZR_OK;
    if (__builtin_add_overflow(record->address, bytes, &end))
        return zr_fail(ZR_ERR_FORMAT, "'%s': the range at 0x%llx exceeds the address space",
                       importing->recording->path, (unsigned long long)record->address);
    if (record->address < importing->low)
        importing->low = record->address;
    if (end > importing->high)
        importing->high = end;
    if (is_map(record))
        importing->ends |= record->address | bytes | record->unit_bytes;
    return ZR_OK;
}

/* Computes the range of addresses, and the largest granule that divides every segment. */
static zr_result fill_header(struct importing *importing)
{
    const struct zr_recording *recording = importing->recording;
    struct zrt_header *header = &importing->header;
    if (recording->reader) { /* a .zrt: read again, without the remains of a truncated event */
        *header = recording->reader->header;
        header->state = ZRT_STOPPED;
        return ZR_OK;
    }
    uint64_t granule = importing->ends ? importing->ends & (~importing->ends + 1) : 1;
    uint64_t base = importing->low / granule * granule;
    if (importing->high <= base || importing->high - base >= MAX_BYTES)
        return zr_fail(ZR_ERR_FORMAT, "'%s': its blocks are 2^62 bytes or more apart", recording->path);
    memcpy(header->magic, ZRT_MAGIC, sizeof header->magic);
    header->header_bytes = sizeof *header;
    header->version = ZRT_VERSION;
    header->state = ZRT_STOPPED;
    header->granule_bytes = granule;
    header->base_address = base;
    header->reserve_bytes = (importing->high - base + granule - 1) / granule * granule;
    if (header->reserve_bytes > UINT64_MAX - base) /* the last granule would end at 2^64 */
        header->reserve_bytes = importing->high - base;
    header->origin = (uint32_t)recording->kind;
    header->says = (recording->expandable ? ZRT_EXPANDABLE : 0) | (recording->has_pending ? ZRT_PENDING : 0) |
                   (recording->has_maps ? 0 : ZRT_NO_MAPS) | (recording->has_times ? 0 : ZRT_NO_TIMES) |
                   (recording->has_addresses ? 0 : ZRT_NO_ADDRESSES);
    snprintf(header->arena, sizeof header->arena, "%s", recording->format);
    return ZR_OK;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static void put_refusal(const struct zr_record *record, struct zrt_event *out)
{
    if (record->refusal)
        out->refusal = *record->refusal;
    else if (record->free_bytes != UINT64_MAX)
        out->refusal = (struct zrt_refusal){
            .cause = ZRT_CAUSE_SHORTAGE, .has_more = true, .device_free_bytes = record->free_bytes};
}

static zr_result write_event(void *state, const struct zr_record *record, bool *stop)
{
    static const enum zrt_kind kinds[] = {
        [ZR_RECORD_ALLOC] = ZRT_ALLOC, [ZR_RECORD_FREE_ASKED] = ZRT_FREE, [ZR_RECORD_FREE] = ZRT_FREE,
        [ZR_RECORD_MAP] = ZRT_MAP,     [ZR_RECORD_UNMAP] = ZRT_UNMAP,     [ZR_RECORD_REFUSED] = ZRT_REFUSED,
        [ZR_RECORD_MARK] = ZRT_MARK};
    struct importing *importing = state;
    struct zrt_event event = {.kind = kinds[record->kind],
                              .time_ns = record->time_ns,
                              .stream = record->stream,
                              .thread = record->thread,
                              .tag = (zr_tag)record->tag,
                              .offset_bytes = record->address - importing->header.base_address,
                              .bytes = record->bytes,
                              .reserved_bytes = record->reserved_bytes,
                              .asked = record->kind == ZR_RECORD_FREE_ASKED,
                              .has_segment = importing->header.origin != ZRT_ORIGIN_ARENA,
                              .pool = record->pool,
                              .unit_bytes = record->unit_bytes};
    (void)stop;
    if (importing->any_before && !record->before && !importing->begun) {
        zrt_write(&importing->writer, &(struct zrt_event){.kind = ZRT_BEGIN, .time_ns = record->time_ns});
        importing->begun = true;
    }
    if (record->kind == ZR_RECORD_REFUSED)
        put_refusal(record, &event);
    if (record->label)
        memcpy(event.label, record->label, strnlen(record->label, ZRT_LABEL_BYTES));
    zrt_write(&importing->writer, &event);
    return importing->writer.text ? importing->writer.text->result : ZR_OK;
}

/* Without a text, only counts the bytes. */
static zr_result write_all(struct importing *importing, struct zr_text *text)
{
    zrt_writer_start(&importing->writer, &importing->header, text);
    importing->begun = false;
    zr_result result =
        zr_recording_play(importing->recording, &(struct zr_recording_sink){write_event, importing});
    if (result == ZR_OK && importing->any_before && !importing->begun)
        zrt_write(&importing->writer,
                  &(struct zrt_event){.kind = ZRT_BEGIN, .time_ns = importing->writer.time_ns});
    return result;
}

zr_result zr_recording_import(struct zr_recording *recording, struct zr_text *text)
{
    struct importing importing = {.recording = recording, .low = UINT64_MAX};
    zr_result result = zr_recording_play(recording, &(struct zr_recording_sink){measure, &importing});
    if (result == ZR_OK)
        result = fill_header(&importing);
    if (result == ZR_OK)
        result = write_all(&importing, NULL);
    importing.header.written_bytes = importing.writer.written_bytes;
    if (result == ZR_OK)
        result = write_all(&importing, text);
    return result == ZR_OK ? text->result : result;
}
