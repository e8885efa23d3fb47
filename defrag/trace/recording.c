/* recording.c: .zrt traces, RMM logs, MiniMalloc CSVs and CSVs of events as records. Uses the readers of this
 * folder and recording_stacks.c. */
#include "defrag/trace/recording.h"

#include <string.h>

#include "alloc/base/error.h"
#include "defrag/trace/formats/csv.h"
#include "defrag/trace/formats/events_csv.h"
#include "defrag/trace/raw_trace.h"
#include "defrag/trace/formats/torch_snapshot.h"
#include "defrag/trace/formats/zrt.h"

/* ---- .zrt ---------------------------------------------------------------------------------------------- */

static struct zr_record record_of(const struct zrt_event *event, uint64_t base_address)
{
    return (struct zr_record){.tag = (uint8_t)event->tag,
                              .thread = event->thread,
                              .time_ns = event->time_ns,
                              .address = base_address + event->offset_bytes,
                              .bytes = event->bytes,
                              .reserved_bytes = event->reserved_bytes,
                              .free_bytes = UINT64_MAX,
                              .stack = event->stack,
                              .stream = event->stream};
}

/* PyTorch's refusals contain the free memory of the device, and no cause. */
static void convert_refusal(const struct zrt_reader *reader, const struct zrt_event *event,
                            struct zr_record *out)
{
    const struct zrt_refusal *refusal = &event->refusal;
    out->kind = ZR_RECORD_REFUSED;
    if (reader->header.origin != ZRT_ORIGIN_ARENA)
        out->free_bytes = refusal->has_more ? refusal->device_free_bytes : UINT64_MAX;
    else if (refusal->cause != ZRT_CAUSE_UNKNOWN)
        out->refusal = refusal;
}

/* False: the event is not a record. */
static bool convert(const struct zrt_reader *reader, const struct zrt_event *event, struct zr_record *out)
{
    *out = record_of(event, reader->header.base_address);
    switch (event->kind) {
    case ZRT_ALLOC:
        out->kind = ZR_RECORD_ALLOC;
        return true;
    case ZRT_FREE:
        out->kind = event->asked ? ZR_RECORD_FREE_ASKED : ZR_RECORD_FREE;
        return true;
    case ZRT_MAP:
        out->kind = ZR_RECORD_MAP;
        out->pool = event->pool;
        out->unit_bytes = event->has_segment ? event->unit_bytes : reader->header.granule_bytes;
        return true;
    case ZRT_UNMAP:
        out->kind = ZR_RECORD_UNMAP;
        out->pool = event->pool;
        out->unit_bytes = event->unit_bytes;
        return true;
    case ZRT_MARK:
        out->kind = ZR_RECORD_MARK;
        out->label = event->label;
        return true;
    case ZRT_REFUSED:
        convert_refusal(reader, event, out);
        return true;
    default:
        return false;
    }
}

/* Whether the first events recreate earlier blocks: then a `begin` event follows them. */
static zr_result find_begin(struct zrt_reader *reader, struct zrt_event *event, const char *path,
                            uint64_t *out)
{
    bool more = true;
    *out = 0;
    zr_result result = zrt_open(reader, path);
    if (result != ZR_OK)
        return result;
    while ((result = zrt_next(reader, event, &more)) == ZR_OK && more &&
           (event->kind == ZRT_MAP || event->kind == ZRT_ALLOC || event->asked || event->kind == ZRT_BEGIN ||
            event->kind == ZRT_EXTENSION))
        if (event->kind == ZRT_BEGIN) {
            *out = reader->events_count;
            break;
        }
    zrt_close(reader);
    return ZR_OK; /* playing will report the error */
}

static zr_result play_zrt(struct zr_recording *recording, const struct zr_recording_sink *sink)
{
    struct zrt_reader *reader = recording->reader;
    struct zrt_event *event = recording->event;
    struct zr_record record;
    uint64_t begin = 0;
    bool more = true, stop = false;
    zr_result result = find_begin(reader, event, recording->path, &begin);
    if (result == ZR_OK)
        result = zrt_open(reader, recording->path);
    if (result != ZR_OK)
        return result;
    recording->cut_short = reader->cut_short;
    while (!stop && (result = zrt_next(reader, event, &more)) == ZR_OK && more) {
        if (event->kind == ZRT_EXTENSION &&
            (result = zr_recording_stacks_take(recording, event, reader->events_count)) != ZR_OK)
            break;
        if (!convert(reader, event, &record))
            continue;
        record.before = reader->events_count < begin;
        result = sink->take(sink->state, &record, &stop);
        if (result != ZR_OK)
            break;
    }
    recording->cut_short |= reader->cut_short;
    zrt_close(reader);
    return result == ZR_ERR_CORRUPT ? ZR_ERR_FORMAT : result;
}

/* Describes the memory by the header: an arena's, or that of the imported program. */
static void describe_zrt(struct zr_recording *recording)
{
    static const uint16_t rounds[] = {[ZRT_ORIGIN_ARENA] = ZRT_UNIT_BYTES,
                                      [ZRT_ORIGIN_TORCH] = ZR_TORCH_ROUND_BYTES,
                                      [ZRT_ORIGIN_RMM] = 1,
                                      [ZRT_ORIGIN_MINIMALLOC] = 1,
                                      [ZRT_ORIGIN_CSV] = 1};
    const struct zrt_header *header = &recording->reader->header;
    recording->kind = (enum zr_recording_kind)header->origin;
    recording->cut_short = recording->reader->cut_short;
    recording->has_addresses = !(header->says & ZRT_NO_ADDRESSES);
    recording->has_maps = !(header->says & ZRT_NO_MAPS);
    recording->has_times = !(header->says & ZRT_NO_TIMES);
    recording->has_pending = header->says & ZRT_PENDING;
    recording->expandable = header->says & ZRT_EXPANDABLE;
    recording->rounds_bytes = rounds[header->origin];
    if (header->origin == ZRT_ORIGIN_ARENA || (header->origin == ZRT_ORIGIN_CSV && recording->has_maps))
        recording->granule_bytes = header->granule_bytes;
}

static zr_result open_zrt(struct zr_recording *recording)
{
    void *room;
    zr_result result =
        zr_arena_alloc(recording->arena,
                       &(struct zr_request){.bytes = sizeof *recording->reader, .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        return result;
    recording->reader = room;
    result =
        zr_arena_alloc(recording->arena,
                       &(struct zr_request){.bytes = sizeof *recording->event, .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        return result;
    recording->event = room;
    result = zrt_open(recording->reader, recording->path);
    if (result == ZR_OK)
        describe_zrt(recording);
    zrt_close(recording->reader);
    return result;
}

/* ---- RMM logs ------------------------------------------------------------------------------------------ */

static zr_result each_row(struct zr_recording *recording,
                          zr_result (*take)(void *state, const struct zr_rmm_row *row, bool *stop),
                          void *state)
{
    struct zr_csv csv;
    struct zr_rmm_row row;
    bool more = true, stop = false;
    zr_result result = zr_csv_open(&csv, recording->path);
    if (result != ZR_OK)
        return result;
    result = zr_csv_next(&csv, &more); /* skips the header */
    while (result == ZR_OK && !stop && (result = zr_rmm_next(&csv, &row, &more)) == ZR_OK && more)
        if (row.failed || row.event.bytes > 0)
            result = take(state, &row, &stop);
    recording->cut_short |= csv.cut_short;
    zr_csv_close(&csv);
    return result;
}

struct finding {
    struct zr_recording *recording;
    struct zr_number_map seen; /* addresses: 1 */
    uint64_t allocations_count;
};

/* A free of an address that the log has not allocated: a block from before the log. */
static zr_result find_before(void *state, const struct zr_rmm_row *row, bool *stop)
{
    struct finding *finding = state;
    const struct zr_raw_event *event = &row->event;
    (void)stop;
    if (row->failed)
        return ZR_OK;
    finding->allocations_count += event->kind == ZR_EVENT_ALLOC;
    if (row->time_ns > 0)
        finding->recording->has_times = true;
    if (zr_number_map_get(&finding->seen, event->address))
        return ZR_OK;
    zr_result result = zr_number_map_put(&finding->seen, event->address, 1);
    if (result == ZR_OK && event->kind == ZR_EVENT_FREE)
        result =
            zr_vector_add(&finding->recording->preface, &(struct zr_record){.kind = ZR_RECORD_ALLOC,
                                                                            .tag = event->tag,
                                                                            .before = true,
                                                                            .address = event->address,
                                                                            .bytes = event->bytes,
                                                                            .reserved_bytes = event->bytes,
                                                                            .stream = event->stream});
    return result;
}

static zr_result open_rmm(struct zr_recording *recording)
{
    struct finding finding = {.recording = recording};
    recording->has_addresses = true;
    zr_number_map_init(&finding.seen, recording->arena);
    zr_result result = each_row(recording, find_before, &finding);
    zr_number_map_end(&finding.seen);
    if (result == ZR_OK && finding.allocations_count == 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' contains no allocation", recording->path);
    return result;
}

struct playing {
    const struct zr_recording_sink *sink;
    uint64_t first_ns, last_ns;
    bool has_first;
};

static zr_result play_row(void *state, const struct zr_rmm_row *row, bool *stop)
{
    struct playing *playing = state;
    const struct zr_raw_event *event = &row->event;
    if (!playing->has_first)
        playing->first_ns = row->time_ns;
    playing->has_first = true;
    uint64_t time_ns = row->time_ns > playing->first_ns ? row->time_ns - playing->first_ns : 0;
    if (time_ns > playing->last_ns)
        playing->last_ns = time_ns;
    return playing->sink->take(playing->sink->state,
                               &(struct zr_record){.kind = row->failed                     ? ZR_RECORD_REFUSED
                                                           : event->kind == ZR_EVENT_ALLOC ? ZR_RECORD_ALLOC
                                                                                           : ZR_RECORD_FREE,
                                                   .tag = event->tag,
                                                   .thread = (uint32_t)(event->thread ^ event->thread >> 32),
                                                   .time_ns = playing->last_ns,
                                                   .address = event->address,
                                                   .bytes = event->bytes,
                                                   .reserved_bytes = event->bytes,
                                                   .free_bytes = UINT64_MAX,
                                                   .stream = event->stream},
                               stop);
}

/* ---- MiniMalloc CSVs ----------------------------------------------------------------------------------- */

static zr_result open_minimalloc(struct zr_recording *recording, const struct zr_read_options *options)
{
    struct zr_raw_trace trace = {.format = recording->format, .path = recording->path};
    zr_vector_init(&trace.events, recording->arena, sizeof(struct zr_raw_event));
    zr_result result = zr_minimalloc_sequence(&trace, options);
    for (size_t i = 0; i < trace.events.count && result == ZR_OK; i++) {
        const struct zr_raw_event *event = zr_vector_at(&trace.events, i);
        result = zr_vector_add(
            &recording->records,
            &(struct zr_record){.kind = event->kind == ZR_EVENT_ALLOC ? ZR_RECORD_ALLOC : ZR_RECORD_FREE,
                                .tag = ZR_TAG_OTHER,
                                .address = event->address,
                                .bytes = event->bytes,
                                .reserved_bytes = event->bytes});
    }
    if (result == ZR_OK && trace.events.count == 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' contains no allocation", recording->path);
    recording->cut_short = trace.cut_short;
    zr_vector_end(&trace.events);
    return result;
}

/* ---- CSVs of events ------------------------------------------------------------------------------------ */

static zr_result play_events(struct zr_recording *recording, const struct zr_recording_sink *sink)
{
    struct zr_events_csv reader;
    struct zr_record record;
    bool more = true, stop = false;
    zr_result result = zr_events_csv_open(&reader, recording->path);
    if (result != ZR_OK)
        return result;
    recording->has_addresses = reader.has_addresses;
    recording->has_times = reader.has_times;
    while (!stop && (result = zr_events_csv_next(&reader, &record, &more)) == ZR_OK && more) {
        result = sink->take(sink->state, &record, &stop);
        if (result != ZR_OK)
            break;
    }
    recording->cut_short |= reader.csv.cut_short;
    zr_events_csv_close(&reader);
    return result;
}

struct learning {
    struct zr_recording *recording;
    uint64_t allocations_count;
};

/* Finds out which optional fields the rows have. */
static zr_result learn(void *state, const struct zr_record *record, bool *stop)
{
    struct learning *learning = state;
    (void)stop;
    learning->allocations_count += record->kind == ZR_RECORD_ALLOC;
    if (record->kind == ZR_RECORD_MAP) {
        learning->recording->has_maps = true;
        learning->recording->granule_bytes = record->unit_bytes;
    }
    learning->recording->has_pending |= record->kind == ZR_RECORD_FREE_ASKED;
    return ZR_OK;
}

static zr_result open_events(struct zr_recording *recording)
{
    struct learning learning = {.recording = recording};
    zr_result result = play_events(recording, &(struct zr_recording_sink){learn, &learning});
    if (result == ZR_OK && learning.allocations_count == 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' contains no allocation", recording->path);
    return result;
}

/* ---- All formats --------------------------------------------------------------------------------------- */

static const char *const formats[] = {[ZR_RECORDING_ZRT] = "zrt",
                                      [ZR_RECORDING_TORCH] = "torch",
                                      [ZR_RECORDING_RMM] = "rmm",
                                      [ZR_RECORDING_MINIMALLOC] = "minimalloc",
                                      [ZR_RECORDING_CSV] = "csv"};

zr_result zr_recording_open(struct zr_recording *out, const struct zr_read_options *options, zr_arena *arena)
{
    const char *format;
    *out = (struct zr_recording){.path = options->path, .arena = arena, .rounds_bytes = 1};
    zr_vector_init(&out->records, arena, sizeof(struct zr_record));
    zr_vector_init(&out->preface, arena, sizeof(struct zr_record));
    zr_recording_stacks_init(&out->stacks, arena);
    zr_vector_init(&out->maps, arena, sizeof(struct zr_record));
    zr_vector_init(&out->sizes, arena, sizeof(struct zr_true_size));
    zr_result result = zr_trace_format(options->path, &format);
    if (result != ZR_OK)
        return result;
    for (unsigned i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i], format) == 0)
            out->kind = (enum zr_recording_kind)i;
    out->format = formats[out->kind];
    switch (out->kind) {
    case ZR_RECORDING_ZRT:
        return open_zrt(out);
    case ZR_RECORDING_TORCH:
        return zr_recording_read_torch(out, options);
    case ZR_RECORDING_RMM:
        return open_rmm(out);
    case ZR_RECORDING_CSV:
        return open_events(out);
    default:
        return open_minimalloc(out, options);
    }
}

void zr_recording_close(struct zr_recording *recording)
{
    zr_vector_end(&recording->records);
    zr_vector_end(&recording->preface);
    zr_vector_end(&recording->maps);
    zr_vector_end(&recording->sizes);
    if (recording->reader)
        zr_arena_free(recording->arena, recording->reader);
    if (recording->event)
        zr_arena_free(recording->arena, recording->event);
    if (recording->arena)
        zr_recording_stacks_end(&recording->stacks);
    if (recording->has_pickle)
        zr_pickle_end(&recording->pickle);
    *recording = (struct zr_recording){0};
}

static zr_result play_held(const struct zr_vector *records, const struct zr_recording_sink *sink, bool *stop)
{
    zr_result result = ZR_OK;
    for (size_t i = 0; i < records->count && result == ZR_OK && !*stop; i++)
        result = sink->take(sink->state, zr_vector_at(records, i), stop);
    return result;
}

zr_result zr_recording_play(struct zr_recording *recording, const struct zr_recording_sink *sink)
{
    struct playing playing = {.sink = sink};
    bool stop = false;
    if (recording->reader)
        return play_zrt(recording, sink);
    if (recording->kind == ZR_RECORDING_CSV)
        return play_events(recording, sink);
    zr_result result = play_held(&recording->preface, sink, &stop);
    if (result != ZR_OK || stop)
        return result;
    switch (recording->kind) {
    case ZR_RECORDING_TORCH:
        return zr_recording_play_torch(recording, sink);
    case ZR_RECORDING_RMM:
        return each_row(recording, play_row, &playing);
    default:
        return play_held(&recording->records, sink, &stop);
    }
}
