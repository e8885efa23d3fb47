/* recording.c: detects the format of a trace by its content; .zrt traces, RMM logs, MiniMalloc CSVs and CSVs
 * of events as records. Uses the readers of this folder and recording_stacks.c. */
#include "defrag/trace/recording.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sort.h"
#include "defrag/trace/formats/events_csv.h"
#include "defrag/trace/formats/minimalloc.h"
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
                              .sample_bytes = event->sample_bytes,
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

/* Finds how many of the first events recreate earlier blocks: a `begin` event follows these. */
static void find_begin(struct zr_recording *recording)
{
    struct zrt_reader *reader = recording->reader;
    struct zrt_event *event = recording->event;
    bool more = true;
    while (zrt_next(reader, event, &more) == ZR_OK && more && /* playing will report an error */
           (event->kind == ZRT_MAP || event->kind == ZRT_ALLOC || event->asked || event->kind == ZRT_BEGIN ||
            event->kind == ZRT_EXTENSION))
        if (event->kind == ZRT_BEGIN) {
            recording->before_count = reader->events_count;
            break;
        }
}

static zr_result play_zrt(struct zr_recording *recording, const struct zr_recording_sink *sink)
{
    struct zrt_reader *reader = recording->reader;
    struct zrt_event *event = recording->event;
    struct zr_record record;
    bool more = true, stop = false;
    zr_result result = zrt_open(reader, recording->path);
    if (result != ZR_OK)
        return result;
    recording->cut_short = reader->cut_short;
    while (!stop && (result = zrt_next(reader, event, &more)) == ZR_OK && more) {
        if (event->kind == ZRT_EXTENSION &&
            (result = zr_recording_stacks_take(recording, event, reader->events_count)) != ZR_OK)
            break;
        if (!convert(reader, event, &record))
            continue;
        record.before = reader->events_count < recording->before_count;
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
    if (result == ZR_OK) {
        describe_zrt(recording);
        find_begin(recording);
    }
    zrt_close(recording->reader);
    return result;
}

/* ---- Held records -------------------------------------------------------------------------------------- */

/* 64 MB of held records. */
enum { HELD_MAX = 2000000 };

zr_result zr_recording_hold(struct zr_recording *recording, const struct zr_record *record)
{
    if (recording->held.count < HELD_MAX || recording->kind == ZR_RECORDING_MINIMALLOC)
        return zr_held_records_add(&recording->held, record);
    zr_held_records_end(&recording->held);
    recording->is_held = false;
    return ZR_OK;
}

static zr_result play_held(const struct zr_recording *recording, const struct zr_recording_sink *sink,
                           bool *stop)
{
    struct zr_record record;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < recording->held.count && result == ZR_OK && !*stop; i++) {
        zr_held_records_get(&recording->held, i, &record);
        result = sink->take(sink->state, &record, stop);
    }
    return result;
}

/* ---- RMM logs ------------------------------------------------------------------------------------------ */

/* Makes the times relative to the first row's, so that they do not decrease. */
static zr_result play_rmm(struct zr_recording *recording, const struct zr_recording_sink *sink)
{
    struct zr_csv csv;
    struct zr_record record;
    uint64_t first_ns = 0, last_ns = 0;
    bool more = true, stop = false, has_first = false;
    zr_result result = zr_csv_open(&csv, recording->path);
    if (result != ZR_OK)
        return result;
    result = zr_csv_next(&csv, &more); /* skips the header */
    while (result == ZR_OK && !stop && (result = zr_rmm_next(&csv, &record, &more)) == ZR_OK && more) {
        recording->has_times |= record.time_ns > 0;
        if (!has_first)
            first_ns = record.time_ns;
        has_first = true;
        if (record.time_ns > first_ns && record.time_ns - first_ns > last_ns)
            last_ns = record.time_ns - first_ns;
        record.time_ns = last_ns;
        result = sink->take(sink->state, &record, &stop);
    }
    recording->cut_short |= csv.cut_short;
    zr_csv_close(&csv);
    return result;
}

struct finding {
    struct zr_recording *recording;
    struct zr_number_map seen; /* addresses: 1 */
    uint64_t allocations_count;
    uint32_t thread; /* of the first request */
};

/* A free of an address that the log has not allocated: a block from before the log. */
static zr_result find_before(void *state, const struct zr_record *record, bool *stop)
{
    struct finding *finding = state;
    struct zr_recording *recording = finding->recording;
    zr_result result = recording->is_held ? zr_recording_hold(recording, record) : ZR_OK;
    (void)stop;
    if (record->kind == ZR_RECORD_REFUSED || result != ZR_OK)
        return result;
    if (finding->seen.count == 0)
        finding->thread = record->thread;
    finding->allocations_count += record->kind == ZR_RECORD_ALLOC;
    if (zr_number_map_get(&finding->seen, record->address))
        return ZR_OK;
    result = zr_number_map_put(&finding->seen, record->address, 1);
    if (result == ZR_OK && record->kind == ZR_RECORD_FREE)
        result = zr_vector_add(&recording->preface, &(struct zr_record){.kind = ZR_RECORD_ALLOC,
                                                                        .tag = record->tag,
                                                                        .before = true,
                                                                        .thread = finding->thread,
                                                                        .address = record->address,
                                                                        .bytes = record->bytes,
                                                                        .reserved_bytes = record->bytes,
                                                                        .stream = record->stream});
    return result;
}

static bool lower(const void *one, const void *other)
{
    return ((const struct zr_record *)one)->address < ((const struct zr_record *)other)->address;
}

static zr_result open_rmm(struct zr_recording *recording)
{
    struct finding finding = {.recording = recording};
    const struct zr_vector *preface = &recording->preface;
    recording->has_addresses = true;
    zr_number_map_init(&finding.seen, recording->arena);
    zr_result result = play_rmm(recording, &(struct zr_recording_sink){find_before, &finding});
    zr_number_map_end(&finding.seen);
    zr_sort_in_place(
        &(struct zr_sort_records){preface->items, preface->count, sizeof(struct zr_record), lower});
    if (result == ZR_OK && finding.allocations_count == 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' contains no allocation", recording->path);
    return result;
}

/* ---- MiniMalloc CSVs ----------------------------------------------------------------------------------- */

static zr_result open_minimalloc(struct zr_recording *recording, uint64_t unit_bytes)
{
    recording->is_held = true;
    zr_result result = zr_minimalloc_records(recording, unit_bytes);
    if (result == ZR_OK && recording->held.count == 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' contains no allocation", recording->path);
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
    struct zr_recording *recording = learning->recording;
    (void)stop;
    learning->allocations_count += record->kind == ZR_RECORD_ALLOC;
    if (record->kind == ZR_RECORD_MAP) {
        recording->has_maps = true;
        recording->granule_bytes = record->unit_bytes;
    }
    recording->has_pending |= record->kind == ZR_RECORD_FREE_ASKED;
    return recording->is_held ? zr_recording_hold(recording, record) : ZR_OK;
}

static zr_result open_events(struct zr_recording *recording)
{
    struct learning learning = {.recording = recording};
    zr_result result = play_events(recording, &(struct zr_recording_sink){learn, &learning});
    if (result == ZR_OK && learning.allocations_count == 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' contains no allocation", recording->path);
    return result;
}

/* ---- Detection ----------------------------------------------------------------------------------------- */

/* Detects the format by the first bytes, which are zero-terminated. False: unknown. */
static bool recognise(const char *head, size_t bytes, enum zr_recording_kind *out)
{
    bool zrt = bytes >= 4 && memcmp(head, ZRT_MAGIC, 4) == 0;
    bool torch = bytes >= 2 && (unsigned char)head[0] == 0x80;
    if (bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0)
        head += 3;
    head += strspn(head, "\r\n");
    *out = zrt                      ? ZR_RECORDING_ZRT
           : torch                  ? ZR_RECORDING_TORCH
           : zr_rmm_is(head)        ? ZR_RECORDING_RMM
           : zr_minimalloc_is(head) ? ZR_RECORDING_MINIMALLOC
                                    : ZR_RECORDING_CSV;
    return *out != ZR_RECORDING_CSV || zr_events_csv_is(head);
}

/* Files of other programs, and what to do with them. */
static const char *advice_for(const char *head, size_t bytes)
{
    static const struct {
        const char *magic, *words;
    } others[] = {
        {"\x1f\x8b", "compressed by gzip: zr reads it, libzr does not; gunzip it first"},
        {"\x28\xb5\x2f\xfd", "compressed by zstd: zr reads it, libzr does not; unzstd it first"},
        {"\xfd"
         "7zXZ",
         "compressed by xz; unxz it first"},
        {"BZh", "compressed by bzip2; bunzip2 it first"},
        {"PK\x03\x04", "a zip archive; unzip it first"},
        {"\x04\x22\x4d\x18",
         "compressed by lz4, as files of memray are: zr import --help shows how to write a CSV of "
         "events of those; unlz4 others first"},
        {"memray",
         "a file of memray, whose format belongs to its version: write its records as a CSV of events by "
         "memray's FileReader (zr import --help shows how)"},
        {"v ", "a file of heaptrack, which has no addresses; record the program by zr run instead"},
    };
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        if (bytes >= strlen(others[i].magic) && memcmp(head, others[i].magic, strlen(others[i].magic)) == 0)
            return others[i].words;
    return NULL;
}

static zr_result detect(const char *path, enum zr_recording_kind *out)
{
    struct zr_file file;
    char head[512];
    size_t got = 0;
    enum zr_path_kind kind;
    /* Opening a pipe would wait for its writer, and detection would consume its data. */
    zr_result result = zr_path_kind_get(path, &kind);
    if (result == ZR_OK && kind == ZR_PATH_OTHER)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is no ordinary file, and traces are read more than once; save it to one", path);
    if (result == ZR_OK)
        result = zr_file_open(&file, path);
    if (result != ZR_OK)
        return result;
    result = zr_file_read(&file, head, sizeof head - 1, &got);
    zr_file_close(&file);
    if (result != ZR_OK)
        return result;
    head[got] = '\0';
    bool known = recognise(head, got, out);
    const char *advice = known ? NULL : advice_for(head, got);
    if (advice)
        return zr_fail(ZR_ERR_FORMAT, "'%s' is %s", path, advice);
    if (!known)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is %s: neither a .zrt trace, nor a PyTorch snapshot (pickle), nor an RMM log "
            "(Thread,Time,Action,..), nor a MiniMalloc CSV (id,lower,upper,size), nor a CSV of events "
            "(event,address,bytes,..)",
            path, got ? "of an unknown format" : "empty");
    return ZR_OK;
}

/* ---- All formats --------------------------------------------------------------------------------------- */

static const char *const formats[] = {[ZR_RECORDING_ZRT] = "zrt",
                                      [ZR_RECORDING_TORCH] = "torch",
                                      [ZR_RECORDING_RMM] = "rmm",
                                      [ZR_RECORDING_MINIMALLOC] = "minimalloc",
                                      [ZR_RECORDING_CSV] = "csv"};

zr_result zr_recording_open(struct zr_recording *out, const struct zr_read_options *options, bool held,
                            zr_arena *arena)
{
    *out = (struct zr_recording){.path = options->path, .arena = arena, .is_held = held, .rounds_bytes = 1};
    zr_held_records_init(&out->held, arena);
    zr_vector_init(&out->preface, arena, sizeof(struct zr_record));
    zr_recording_stacks_init(&out->stacks, arena);
    zr_vector_init(&out->maps, arena, sizeof(struct zr_record));
    zr_vector_init(&out->sizes, arena, sizeof(struct zr_true_size));
    zr_vector_init(&out->annotations, arena, sizeof(struct zr_annotation));
    zr_result result = detect(options->path, &out->kind);
    if (result != ZR_OK)
        return result;
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
        return open_minimalloc(out, options->unit_bytes);
    }
}

void zr_recording_close(struct zr_recording *recording)
{
    zr_held_records_end(&recording->held);
    zr_vector_end(&recording->preface);
    zr_vector_end(&recording->maps);
    zr_vector_end(&recording->sizes);
    zr_vector_end(&recording->annotations);
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

zr_result zr_recording_play(struct zr_recording *recording, const struct zr_recording_sink *sink)
{
    bool stop = false;
    if (recording->reader)
        return play_zrt(recording, sink);
    zr_result result = ZR_OK;
    for (size_t i = 0; i < recording->preface.count && result == ZR_OK && !stop; i++)
        result = sink->take(sink->state, zr_vector_at(&recording->preface, i), &stop);
    if (result != ZR_OK || stop)
        return result;
    if (recording->kind == ZR_RECORDING_TORCH)
        return zr_recording_play_torch(recording, sink);
    if (recording->is_held)
        return play_held(recording, sink, &stop);
    switch (recording->kind) {
    case ZR_RECORDING_RMM:
        return play_rmm(recording, sink);
    default:
        return play_events(recording, sink);
    }
}
