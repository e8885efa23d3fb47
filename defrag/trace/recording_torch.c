/* recording_torch.c: PyTorch's snapshots as records. Uses pickle.c and torch_snapshot.c.
 *
 * The segments contain the state at the end, the events the changes before it; blocks and segments without an
 * event are from before the window. Sizes in events are requests. A block that is live at the end gets its
 * true size from the segments; any other block gets the request rounded up to ZR_TORCH_ROUND_BYTES, PyTorch's
 * default, unless the event has a `block_size`, which zr's own export adds where it differs.
 *
 * The events are read when the file is opened, to find the earlier blocks, and again each time the recording
 * is played, unless it is held. The recording holds earlier blocks, maps and unmaps, and true sizes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sort.h"
#include "defrag/trace/recording.h"
#include "defrag/trace/formats/torch_snapshot.h"

enum { SMALL_SEGMENT_BYTES = 2 << 20, PAGE_BYTES = 2 << 20, DEVICES_MAX = 64 };

/* A segment of the snapshot, or a part of an expandable one. */
struct segment {
    uint64_t address, bytes, stream;
    uint32_t pool, stack;
    bool expandable;
    bool before; /* from before the window */
};

struct block {
    uint64_t address, bytes, requested_bytes, stream;
    uint32_t stack;
    bool pending;
};

/* The state of an address during the scan of events; values from ALLOCATED on: the record's number. */
enum { FREED = 0, ALLOCATED };

/* What an event tells by its difference from the one before. Times are relative to the first one, and do not
 * decrease. A new user_metadata, or the next compiled graph (compile_context), is a mark. */
enum { CONTEXT_ROOM = 64 };
struct clock {
    uint64_t first_us, last_ns;
    bool has_first;
    char user[CONTEXT_ROOM], compiled[CONTEXT_ROOM];
    const char *mark; /* before this event; NULL: none */
};

struct reading {
    struct zr_recording *recording;
    struct zr_pickle *pickle;
    struct zr_vector segments, blocks, before; /* struct segment, struct block (at the end; before) */
    uint64_t events_count;                     /* records of the window */
    /* Of blocks: see above; of segments: by number + 1, 0: unmapped. */
    struct zr_number_map addresses, places;
    struct clock clock;
    struct zr_equal_stacks stacks;
};

/* ---- Segments and blocks at the end -------------------------------------------------------------------- */

enum { ADDRESS = 0, SIZE, REQUESTED, STATE, FRAMES, BLOCK_FIELDS };

static zr_result read_block(struct reading *reading, struct zr_pickle_value value, struct block *place)
{
    struct zr_pickle *pickle = reading->pickle;
    struct zr_pickle_field fields[BLOCK_FIELDS] = {
        {.key = "address"}, {.key = "size"}, {.key = "requested_size"}, {.key = "state"}, {.key = "frames"}};
    zr_pickle_fields(pickle, value, fields, BLOCK_FIELDS);
    if (!zr_torch_number(fields[SIZE].value, &place->bytes) || fields[STATE].value.kind != ZR_PICKLE_TEXT)
        return zr_torch_wrong(pickle, "a block has no size or no state");
    if (fields[ADDRESS].value.kind != ZR_PICKLE_ABSENT &&
        !zr_torch_number(fields[ADDRESS].value, &place->address))
        return zr_torch_wrong(pickle, "a block has an invalid address");
    bool inactive = zr_pickle_text_is(pickle, fields[STATE].value, "inactive");
    struct zr_pickle_value requested = fields[REQUESTED].value;
    place->requested_bytes = place->bytes;
    if (!inactive && requested.kind != ZR_PICKLE_ABSENT &&
        (!zr_torch_number(requested, &place->requested_bytes) || place->requested_bytes > place->bytes))
        return zr_torch_wrong(pickle, "a block is smaller than what was requested of it");
    zr_result result = zr_equal_stacks_find(&reading->stacks, pickle, fields[FRAMES].value, &place->stack);
    place->pending = zr_pickle_text_is(pickle, fields[STATE].value, "active_awaiting_free") ||
                     zr_pickle_text_is(pickle, fields[STATE].value, "active_pending_free");
    if (result == ZR_OK && !inactive && place->bytes > 0)
        result = zr_vector_add(&reading->blocks, place);
    place->address += place->bytes;
    return result;
}

/* A number for the requests that may share segments: small and large ones of each pool. */
static uint32_t pool_of(struct zr_pickle *pickle, struct zr_pickle_value id, bool small)
{
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, id);
    struct zr_pickle_value part;
    uint32_t pool = 0;
    while (id.kind == ZR_PICKLE_TUPLE && zr_pickle_next(pickle, &cursor, &part))
        pool = pool * 65599 + (part.kind == ZR_PICKLE_INTEGER ? (uint32_t)part.integer : 0);
    return pool << 1 | small;
}

enum { DEVICE = 0, PLACE, TOTAL, STREAM, TYPE, POOL, EXPANDABLE, BLOCKS, BY, SEGMENT_FIELDS };

static zr_result read_segment(struct reading *reading, struct zr_pickle_value value, int device)
{
    struct zr_pickle *pickle = reading->pickle;
    struct zr_pickle_field fields[SEGMENT_FIELDS] = {
        {.key = "device"},        {.key = "address"},      {.key = "total_size"},
        {.key = "stream"},        {.key = "segment_type"}, {.key = "segment_pool_id"},
        {.key = "is_expandable"}, {.key = "blocks"},       {.key = "frames"}};
    struct segment segment = {.before = true};
    struct zr_pickle_value item;
    uint64_t of_device;
    zr_pickle_fields(pickle, value, fields, SEGMENT_FIELDS);
    if (!zr_torch_number(fields[DEVICE].value, &of_device) ||
        !zr_torch_number(fields[PLACE].value, &segment.address) ||
        fields[BLOCKS].value.kind != ZR_PICKLE_LIST)
        return zr_torch_wrong(pickle, "a segment has no device, no address or no blocks");
    if (of_device < DEVICES_MAX && (int)of_device >= reading->recording->devices_count)
        reading->recording->devices_count = (int)of_device + 1;
    if (of_device != (uint64_t)device)
        return ZR_OK;
    if (!zr_torch_number(fields[TOTAL].value, &segment.bytes) || segment.bytes > UINT64_MAX - segment.address)
        return zr_torch_wrong(pickle, "a segment has no size, or an invalid range");
    segment.stream = zr_torch_stream(fields[STREAM].value);
    segment.pool =
        pool_of(pickle, fields[POOL].value, zr_pickle_text_is(pickle, fields[TYPE].value, "small"));
    segment.expandable = fields[EXPANDABLE].value.kind == ZR_PICKLE_BOOL && fields[EXPANDABLE].value.integer;
    reading->recording->expandable |= segment.expandable;
    if (segment.pool > 1)
        reading->recording->settings.private_bytes += segment.bytes;
    zr_result result = zr_equal_stacks_find(&reading->stacks, pickle, fields[BY].value, &segment.stack);
    if (result == ZR_OK && segment.bytes > 0) {
        result = zr_vector_add(&reading->segments, &segment);
        if (result == ZR_OK && !segment.expandable)
            result = zr_number_map_put(&reading->places, segment.address, (uint32_t)reading->segments.count);
    }
    struct block place = {.address = segment.address, .stream = segment.stream};
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, fields[BLOCKS].value);
    while (result == ZR_OK && zr_pickle_next(pickle, &cursor, &item))
        result = read_block(reading, item, &place);
    return result;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

enum { ACTION = 0, WHERE, BYTES, ON, TIME, WITH, BLOCK_BYTES, USER, COMPILED, EVENT_FIELDS };

static const struct {
    const char *action;
    enum zr_record_kind kind;
    bool in_parts; /* of an expandable segment */
} actions[] = {{"alloc", ZR_RECORD_ALLOC, false},         {"free_requested", ZR_RECORD_FREE_ASKED, false},
               {"free_completed", ZR_RECORD_FREE, false}, {"segment_alloc", ZR_RECORD_MAP, false},
               {"segment_map", ZR_RECORD_MAP, true},      {"segment_free", ZR_RECORD_UNMAP, false},
               {"segment_unmap", ZR_RECORD_UNMAP, true},  {"oom", ZR_RECORD_REFUSED, false},
               {"annotate", ZR_RECORD_MARK, false},       {"user_defined", ZR_RECORD_MARK, false}};

static uint64_t time_of(struct clock *clock, struct zr_pickle_value value)
{
    uint64_t us;
    if (zr_torch_number(value, &us)) {
        if (!clock->has_first)
            clock->first_us = us;
        clock->has_first = true;
        us = us > clock->first_us ? us - clock->first_us : 0;
        if (us < UINT64_MAX / 1000 && us * 1000 > clock->last_ns)
            clock->last_ns = us * 1000;
    }
    return clock->last_ns;
}

/* The text, zero-terminated, cut to the room; "" if it is none. */
static const char *copy_text(const struct zr_pickle *pickle, struct zr_pickle_value value, char *out,
                             size_t room)
{
    size_t bytes = value.kind == ZR_PICKLE_TEXT ? value.text_bytes : 0;
    bytes = bytes < room ? bytes : room - 1;
    memcpy(out, bytes ? zr_pickle_text(pickle, value) : "", bytes);
    out[bytes] = '\0';
    return out;
}

static void note_context(struct zr_pickle *pickle, struct clock *clock, struct zr_pickle_value user,
                         struct zr_pickle_value compiled)
{
    char words[CONTEXT_ROOM];
    memcpy(words, "compile ", 8);
    if (*copy_text(pickle, compiled, words + 8, sizeof words - 8) && strcmp(words + 8, "N/A") != 0 &&
        strcmp(words, clock->compiled) != 0)
        clock->mark = memcpy(clock->compiled, words, sizeof words);
    if (*copy_text(pickle, user, words, sizeof words) && strcmp(words, clock->user) != 0)
        clock->mark = memcpy(clock->user, words, sizeof words);
}

static struct zr_record mark_of(const struct clock *clock, const struct zr_record *record)
{
    return (struct zr_record){.kind = ZR_RECORD_MARK,
                              .tag = ZR_TAG_OTHER,
                              .time_ns = record->time_ns,
                              .free_bytes = UINT64_MAX,
                              .label = clock->mark};
}

/* Finds blocks from before the window by their first event. */
static zr_result note_block(struct reading *reading, const struct zr_record *record)
{
    const uint32_t *state = zr_number_map_get(&reading->addresses, record->address);
    bool live = state && *state >= ALLOCATED;
    if (record->kind == ZR_RECORD_ALLOC) {
        if (live)
            return zr_torch_wrong(reading->pickle, "an event allocates an address that is live");
        if (reading->events_count >= UINT32_MAX - ALLOCATED)
            return zr_torch_wrong(reading->pickle, "it has too many events");
        return zr_number_map_put(&reading->addresses, record->address,
                                 (uint32_t)reading->events_count + ALLOCATED);
    }
    if (state && !live)
        return zr_torch_wrong(reading->pickle, "an event frees an address that is not live");
    zr_result result = ZR_OK;
    if (!state)
        result = zr_vector_add(&reading->before, &(struct block){.address = record->address,
                                                                 .bytes = record->reserved_bytes,
                                                                 .requested_bytes = record->bytes,
                                                                 .stream = record->stream});
    if (result == ZR_OK && (!state || record->kind == ZR_RECORD_FREE))
        result = zr_number_map_put(&reading->addresses, record->address,
                                   record->kind == ZR_RECORD_FREE ? FREED : UINT32_MAX);
    return result;
}

static bool is_map(const struct zr_record *record)
{
    return record->kind == ZR_RECORD_MAP || record->kind == ZR_RECORD_UNMAP;
}

/* What only some kinds of events have: the device's memory at a refusal, a map's pool, a mark's label. */
static void read_more(struct zr_pickle *pickle, struct zr_pickle_value event, struct zr_record *record)
{
    struct zr_pickle_field fields[] = {{.key = "device_free"},   {.key = "device_total"}, {.key = "pool_id"},
                                       {.key = "user_metadata"}, {.key = "annotation"},   {.key = "name"}};
    zr_pickle_fields(pickle, event, fields, sizeof fields / sizeof *fields);
    if (record->kind == ZR_RECORD_REFUSED) {
        if (!zr_torch_number(fields[0].value, &record->free_bytes))
            record->free_bytes = UINT64_MAX;
        if (!zr_torch_number(fields[1].value, &record->total_bytes))
            record->total_bytes = 0;
    } else if (record->kind != ZR_RECORD_MARK) {
        record->pool = pool_of(pickle, fields[2].value, record->bytes <= SMALL_SEGMENT_BYTES);
    }
    for (unsigned i = 3; record->kind == ZR_RECORD_MARK && !record->label && i < 6; i++)
        if (fields[i].value.kind == ZR_PICKLE_TEXT)
            record->label = zr_pickle_text(pickle, fields[i].value);
}

/* Converts an event to a record; *counts: it is one. The pool of a map is unknown here in older files, and a
 * block's true size in all. */
static zr_result read_event(struct zr_pickle *pickle, struct zr_pickle_value event, struct clock *clock,
                            struct zr_equal_stacks *stacks, struct zr_record *record, bool *counts)
{
    struct zr_pickle_field fields[EVENT_FIELDS] = {
        {.key = "action"},     {.key = "addr"},          {.key = "size"},
        {.key = "stream"},     {.key = "time_us"},       {.key = "frames"},
        {.key = "block_size"}, {.key = "user_metadata"}, {.key = "compile_context"}};
    unsigned at = 0;
    *record = (struct zr_record){.tag = ZR_TAG_OTHER, .free_bytes = UINT64_MAX};
    *counts = false;
    zr_pickle_fields(pickle, event, fields, EVENT_FIELDS);
    if (fields[ACTION].value.kind != ZR_PICKLE_TEXT)
        return zr_torch_wrong(pickle, "an event has no action");
    while (at < sizeof actions / sizeof *actions &&
           !zr_pickle_text_is(pickle, fields[ACTION].value, actions[at].action))
        at++;
    if (at == sizeof actions / sizeof *actions)
        return ZR_OK;
    record->kind = (uint8_t)actions[at].kind;
    bool refused = record->kind == ZR_RECORD_REFUSED, mark = record->kind == ZR_RECORD_MARK;
    if (!mark && (!zr_torch_number(fields[BYTES].value, &record->bytes) ||
                  (!zr_torch_number(fields[WHERE].value, &record->address) && !refused)))
        return zr_torch_wrong(pickle, "an event has no address or no size");
    record->stream = zr_torch_stream(fields[ON].value);
    record->time_ns = time_of(clock, fields[TIME].value);
    clock->mark = NULL;
    if (!mark)
        note_context(pickle, clock, fields[USER].value, fields[COMPILED].value);
    if (actions[at].in_parts)
        record->unit_bytes = PAGE_BYTES;
    if (is_map(record) || refused || mark)
        read_more(pickle, event, record);
    else if (!zr_torch_number(fields[BLOCK_BYTES].value, &record->reserved_bytes) ||
             record->reserved_bytes < record->bytes)
        record->reserved_bytes = zr_torch_round(record->bytes);
    *counts = mark ? record->label != NULL : record->bytes > 0;
    return zr_equal_stacks_find(stacks, pickle, fields[WITH].value, &record->stack);
}

/* Counts an event of an unknown kind. PyTorch's own record of a snapshot means nothing here. */
static void note_unknown(struct reading *reading, struct zr_pickle_value event)
{
    struct zr_pickle_field action = {.key = "action"};
    zr_pickle_fields(reading->pickle, event, &action, 1);
    for (unsigned i = 0; i < sizeof actions / sizeof *actions; i++)
        if (zr_pickle_text_is(reading->pickle, action.value, actions[i].action))
            return;
    if (zr_pickle_text_is(reading->pickle, action.value, "snapshot"))
        return;
    if (reading->recording->unknown_count++ == 0)
        copy_text(reading->pickle, action.value, reading->recording->unknown,
                  sizeof reading->recording->unknown);
}

/* The first pass: what the event reveals about earlier blocks. */
static zr_result note_event(void *state, struct zr_pickle *pickle, struct zr_pickle_value event, bool *stop)
{
    struct reading *reading = state;
    struct zr_record record;
    bool counts;
    (void)stop;
    zr_result result = read_event(pickle, event, &reading->clock, &reading->stacks, &record, &counts);
    if (result == ZR_OK && !counts)
        note_unknown(reading, event);
    if (result != ZR_OK || !counts)
        return result;
    if (reading->clock.mark) {
        struct zr_record mark = mark_of(&reading->clock, &record);
        result = reading->recording->is_held ? zr_recording_hold(reading->recording, &mark) : ZR_OK;
        reading->events_count++;
    }
    if (result != ZR_OK)
        return result;
    if (is_map(&record))
        result = zr_vector_add(&reading->recording->maps, &record);
    else if (record.kind != ZR_RECORD_REFUSED && record.kind != ZR_RECORD_MARK)
        result = note_block(reading, &record);
    if (result == ZR_OK && reading->recording->is_held)
        result = zr_recording_hold(reading->recording, &record);
    reading->events_count++;
    return result;
}

static void start_reading(void *state)
{
    struct reading *reading = state;
    zr_arena *arena = reading->recording->arena;
    zr_number_map_end(&reading->addresses);
    zr_number_map_init(&reading->addresses, arena);
    reading->before.count = reading->recording->maps.count = 0;
    zr_held_records_end(&reading->recording->held);
    reading->events_count = reading->recording->unknown_count = 0;
    reading->clock = (struct clock){0};
    zr_equal_stacks_end(&reading->stacks);
    zr_equal_stacks_init(&reading->stacks, arena);
}

/* ---- The state before the window ----------------------------------------------------------------------- */

static bool earlier(const void *a, const void *b)
{
    const struct zr_true_size *one = a, *other = b;
    return one->event < other->event;
}

/* Sets true sizes and stacks of blocks that are live at the end; a block without an event is from before the
 * window. */
static zr_result match_blocks(struct reading *reading)
{
    struct zr_vector *sizes = &reading->recording->sizes;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < reading->blocks.count && result == ZR_OK; i++) {
        const struct block *block = zr_vector_at(&reading->blocks, i);
        const uint32_t *state = zr_number_map_get(&reading->addresses, block->address);
        if (!state) {
            result = zr_vector_add(&reading->before, block);
        } else if (*state == UINT32_MAX) { /* from before the window, and being freed */
            continue;
        } else if (*state >= ALLOCATED) {
            struct zr_true_size size = {*state - ALLOCATED, block->bytes};
            result = zr_vector_add(&reading->recording->sizes, &size);
        }
    }
    zr_sort_in_place(
        &(struct zr_sort_records){sizes->items, sizes->count, sizeof(struct zr_true_size), earlier});
    return result;
}

/* Makes a range of an expandable segment mapped or unmapped before the window. */
static zr_result undo_range(struct reading *reading, const struct zr_record *record)
{
    uint64_t low = record->address, high = record->address + record->bytes;
    if (record->kind == ZR_RECORD_UNMAP) {
        struct segment part = {.address = low,
                               .bytes = record->bytes,
                               .stream = record->stream,
                               .pool = record->pool,
                               .expandable = true,
                               .before = true};
        return zr_vector_add(&reading->segments, &part);
    }
    zr_result result = ZR_OK;
    for (size_t i = 0; i < reading->segments.count && result == ZR_OK; i++) {
        struct segment *own = zr_vector_at(&reading->segments, i);
        uint64_t end = own->address + own->bytes;
        if (!own->expandable || own->address >= high || end <= low)
            continue;
        struct segment after = *own;
        own->bytes = own->address < low ? low - own->address : 0;
        if (end > high) {
            after.address = high;
            after.bytes = end - high;
            result = zr_vector_add(&reading->segments, &after);
        }
    }
    return result;
}

/* Undoes all maps and unmaps, from the last to the first. */
static zr_result undo_maps(struct reading *reading)
{
    struct zr_vector *maps = &reading->recording->maps;
    zr_result result = ZR_OK;
    for (size_t i = maps->count; i-- > 0 && result == ZR_OK;) {
        struct zr_record *record = zr_vector_at(maps, i);
        if (record->bytes > UINT64_MAX - record->address)
            return zr_torch_wrong(reading->pickle, "a segment has an invalid range");
        if (record->pool == 0)
            record->pool = record->bytes <= SMALL_SEGMENT_BYTES;
        if (record->unit_bytes > 0) {
            result = undo_range(reading, record);
            continue;
        }
        uint32_t *number = zr_number_map_get(&reading->places, record->address);
        struct segment *segment = number && *number ? zr_vector_at(&reading->segments, *number - 1) : NULL;
        if (record->kind == ZR_RECORD_MAP) {
            if (!segment)
                continue; /* the trace has a gap: the range was already unmapped */
            record->pool = segment->pool;
            segment->bytes = 0;
            *number = 0;
        } else if (!segment) {
            struct segment one = {.address = record->address,
                                  .bytes = record->bytes,
                                  .stream = record->stream,
                                  .pool = record->pool,
                                  .before = true};
            result = zr_vector_add(&reading->segments, &one);
            if (result == ZR_OK)
                result = zr_number_map_put(&reading->places, one.address, (uint32_t)reading->segments.count);
        }
    }
    return result;
}

static bool lower(const void *one, const void *other)
{
    return ((const struct block *)one)->address < ((const struct block *)other)->address;
}

/* Emits earlier blocks first, in order of address, as in zr_sequence_read(). */
static zr_result emit(struct reading *reading)
{
    struct zr_vector *records = &reading->recording->preface;
    zr_result result = zr_vector_reserve(records, reading->segments.count + 2 * reading->before.count);
    for (size_t i = 0; i < reading->segments.count && result == ZR_OK; i++) {
        const struct segment *one = zr_vector_at(&reading->segments, i);
        struct zr_record record = {.kind = ZR_RECORD_MAP,
                                   .before = true,
                                   .address = one->address,
                                   .bytes = one->bytes,
                                   .stream = one->stream,
                                   .pool = one->pool,
                                   .stack = one->stack,
                                   .unit_bytes = one->expandable ? PAGE_BYTES : 0};
        if (one->bytes > 0)
            result = zr_vector_add(records, &record);
    }
    zr_sort_in_place(
        &(struct zr_sort_records){reading->before.items, reading->before.count, sizeof(struct block), lower});
    for (size_t i = 0; i < reading->before.count && result == ZR_OK; i++) {
        const struct block *one = zr_vector_at(&reading->before, i);
        struct zr_record record = {.kind = ZR_RECORD_ALLOC,
                                   .tag = ZR_TAG_OTHER,
                                   .before = true,
                                   .address = one->address,
                                   .bytes = one->requested_bytes,
                                   .reserved_bytes = one->bytes,
                                   .stream = one->stream,
                                   .stack = one->stack};
        result = one->bytes > 0 ? zr_vector_add(records, &record) : ZR_OK;
        record.kind = ZR_RECORD_FREE_ASKED;
        if (result == ZR_OK && one->pending && one->bytes > 0)
            result = zr_vector_add(records, &record);
    }
    return result;
}

/* ---- True sizes and pools ------------------------------------------------------------------------------ */

/* Records of the window, in order. */
struct playing {
    const struct zr_recording *recording;
    const struct zr_recording_sink *sink;
    struct clock clock;
    struct zr_equal_stacks stacks;
    uint64_t events_count;
    size_t maps_count, sizes_count, annotations_count; /* number of entries used so far */
    bool stopped;
};

/* Adds what the event does not have. */
static void complete(struct playing *playing, struct zr_record *record)
{
    const struct zr_vector *maps = &playing->recording->maps, *sizes = &playing->recording->sizes;
    const struct zr_true_size *size =
        playing->sizes_count < sizes->count ? zr_vector_at(sizes, playing->sizes_count) : NULL;
    if (is_map(record) && playing->maps_count < maps->count)
        record->pool = ((const struct zr_record *)zr_vector_at(maps, playing->maps_count++))->pool;
    if (size && size->event == playing->events_count) {
        if (size->bytes >= record->bytes)
            record->reserved_bytes = size->bytes;
        playing->sizes_count++;
    }
    if (record->kind != ZR_RECORD_ALLOC)
        record->reserved_bytes = 0;
    playing->events_count++;
}

/* ---- Settings ------------------------------------------------------------------------------------------ */

static void read_settings(struct reading *reading)
{
    struct zr_pickle *pickle = reading->pickle;
    struct zr_torch_settings *settings = &reading->recording->settings;
    struct zr_pickle_field all = {.key = "allocator_settings"}, division;
    struct zr_pickle_field fields[] = {{.key = "max_split_size"},
                                       {.key = "garbage_collection_threshold"},
                                       {.key = "expandable_segments"},
                                       {.key = "roundup_power2_divisions"},
                                       {.key = "PYTORCH_CUDA_ALLOC_CONF"}};
    char key[12], text[1024];
    uint64_t bytes, count;
    zr_pickle_fields(pickle, pickle->root, &all, 1);
    zr_pickle_fields(pickle, all.value, fields, sizeof fields / sizeof *fields);
    zr_torch_settings_read(copy_text(pickle, fields[4].value, text, sizeof text), settings);
    if (zr_torch_number(fields[0].value, &bytes))
        settings->max_split_bytes = bytes >> 50 ? 0 : bytes;
    if (fields[1].value.kind == ZR_PICKLE_REAL && fields[1].value.real >= 0 && fields[1].value.real < 1)
        settings->garbage_collection_threshold = fields[1].value.real;
    reading->recording->expandable |= fields[2].value.kind == ZR_PICKLE_BOOL && fields[2].value.integer;
    for (unsigned i = 0; i < ZR_TORCH_DIVISIONS; i++) {
        snprintf(key, sizeof key, "%u", 1u << i);
        division = (struct zr_pickle_field){.key = key};
        zr_pickle_fields(pickle, fields[3].value, &division, 1);
        if (zr_torch_number(division.value, &count))
            settings->divisions[i] = count < 1024 ? (uint32_t)count : 0;
    }
}

/* ---- Annotations --------------------------------------------------------------------------------------- */

static bool sooner(const void *one, const void *other)
{
    return ((const struct zr_annotation *)one)->time_ns < ((const struct zr_annotation *)other)->time_ns;
}

/* The starts of the profiler's functions, which PyTorch lists beside the events (record_function()). */
static zr_result read_annotations(struct reading *reading, int device)
{
    struct zr_pickle *pickle = reading->pickle;
    struct zr_vector *annotations = &reading->recording->annotations;
    struct zr_pickle_field all = {.key = "external_annotations"};
    struct zr_pickle_value item;
    uint64_t us, of_device;
    zr_result result = ZR_OK;
    zr_pickle_fields(pickle, pickle->root, &all, 1);
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, all.value);
    while (result == ZR_OK && zr_pickle_next(pickle, &cursor, &item)) {
        struct zr_pickle_field fields[] = {
            {.key = "name"}, {.key = "stage"}, {.key = "time_us"}, {.key = "device"}};
        zr_pickle_fields(pickle, item, fields, sizeof fields / sizeof *fields);
        if (fields[0].value.kind != ZR_PICKLE_TEXT || !zr_torch_number(fields[2].value, &us) ||
            zr_pickle_text_is(pickle, fields[1].value, "END") || us >= UINT64_MAX / 1000 ||
            (zr_torch_number(fields[3].value, &of_device) && of_device != (uint64_t)device))
            continue;
        us = us > reading->clock.first_us ? us - reading->clock.first_us : 0;
        result = zr_vector_add(annotations,
                               &(struct zr_annotation){us * 1000, zr_pickle_text(pickle, fields[0].value)});
    }
    zr_sort_in_place(&(struct zr_sort_records){annotations->items, annotations->count,
                                               sizeof(struct zr_annotation), sooner});
    return result;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static int devices_of(struct zr_pickle *pickle)
{
    struct zr_pickle_field traces = {.key = "device_traces"};
    zr_pickle_fields(pickle, pickle->root, &traces, 1);
    uint64_t count = zr_pickle_count(pickle, traces.value);
    return count < INT32_MAX ? (int)count : INT32_MAX;
}

/* Without events: the device with the most memory, among the first DEVICES_MAX; 0: there is none. */
static int device_of_segments(struct zr_pickle *pickle, struct zr_pickle_value segments)
{
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, segments);
    struct zr_pickle_value item;
    uint64_t sums[DEVICES_MAX] = {0}, device, bytes;
    int most = 0;
    while (zr_pickle_next(pickle, &cursor, &item)) {
        struct zr_pickle_field fields[] = {{.key = "device"}, {.key = "total_size"}};
        zr_pickle_fields(pickle, item, fields, 2);
        if (zr_torch_number(fields[0].value, &device) && device < DEVICES_MAX &&
            zr_torch_number(fields[1].value, &bytes) && bytes <= UINT64_MAX - sums[device])
            sums[device] += bytes;
    }
    for (int i = 1; i < DEVICES_MAX; i++)
        most = sums[i] > sums[most] ? i : most;
    return most;
}

static zr_result read_all(struct reading *reading, int device)
{
    struct zr_pickle *pickle = reading->pickle;
    struct zr_pickle_value segments, item;
    zr_result result = zr_torch_read(pickle, reading->recording->path,
                                     &(struct zr_torch_events){start_reading, note_event, reading, false},
                                     reading->recording->arena, &device, &segments);
    if (result != ZR_OK)
        return result;
    reading->recording->has_pickle = true;
    reading->recording->device = device = device < 0 ? device_of_segments(pickle, segments) : device;
    reading->recording->has_times = reading->clock.has_first;
    reading->recording->devices_count = devices_of(pickle);
    read_settings(reading);
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, segments);
    while (result == ZR_OK && zr_pickle_next(pickle, &cursor, &item))
        result = read_segment(reading, item, device);
    if (result == ZR_OK && reading->clock.has_first)
        result = read_annotations(reading, device);
    if (zr_pickle_exhausted(pickle))
        return zr_torch_wrong(pickle, "it names the same things over and over");
    if (result == ZR_OK)
        result = match_blocks(reading);
    if (result == ZR_OK)
        result = undo_maps(reading);
    return result == ZR_OK ? emit(reading) : result;
}

zr_result zr_recording_read_torch(struct zr_recording *recording, const struct zr_read_options *options)
{
    struct reading reading = {.recording = recording, .pickle = &recording->pickle};
    zr_arena *arena = recording->arena;
    recording->has_addresses = recording->has_maps = recording->has_pending = true;
    recording->rounds_bytes = ZR_TORCH_ROUND_BYTES;
    zr_vector_init(&reading.segments, arena, sizeof(struct segment));
    zr_vector_init(&reading.blocks, arena, sizeof(struct block));
    zr_vector_init(&reading.before, arena, sizeof(struct block));
    zr_number_map_init(&reading.addresses, arena);
    zr_number_map_init(&reading.places, arena);
    zr_equal_stacks_init(&reading.stacks, arena);
    zr_result result = read_all(&reading, options->device);
    recording->has_events = reading.events_count > 0;
    zr_equal_stacks_end(&reading.stacks);
    zr_number_map_end(&reading.places);
    zr_number_map_end(&reading.addresses);
    zr_vector_end(&reading.before);
    zr_vector_end(&reading.blocks);
    zr_vector_end(&reading.segments);
    if (result == ZR_OK && recording->preface.count == 0 && reading.events_count == 0)
        result = zr_torch_wrong(&recording->pickle, "it contains neither segments nor events");
    return result;
}

/* ---- Playing ------------------------------------------------------------------------------------------- */

static void play_again(void *state)
{
    struct playing *playing = state;
    zr_equal_stacks_end(&playing->stacks);
    *playing = (struct playing){.recording = playing->recording, .sink = playing->sink};
    zr_equal_stacks_init(&playing->stacks, playing->recording->arena);
}

/* Marks of the profiler up to a time. */
static zr_result play_annotations(struct playing *playing, uint64_t until_ns)
{
    const struct zr_vector *all = &playing->recording->annotations;
    zr_result result = ZR_OK;
    while (result == ZR_OK && !playing->stopped && playing->annotations_count < all->count) {
        const struct zr_annotation *one = zr_vector_at(all, playing->annotations_count);
        if (one->time_ns > until_ns)
            break;
        playing->annotations_count++;
        result = playing->sink->take(playing->sink->state,
                                     &(struct zr_record){.kind = ZR_RECORD_MARK,
                                                         .tag = ZR_TAG_OTHER,
                                                         .free_bytes = UINT64_MAX,
                                                         .time_ns = one->time_ns,
                                                         .label = one->label},
                                     &playing->stopped);
    }
    return result;
}

static zr_result play_record(struct playing *playing, struct zr_record *record)
{
    zr_result result = play_annotations(playing, record->time_ns);
    complete(playing, record);
    return result == ZR_OK && !playing->stopped
               ? playing->sink->take(playing->sink->state, record, &playing->stopped)
               : result;
}

static zr_result play_event(void *state, struct zr_pickle *pickle, struct zr_pickle_value event, bool *stop)
{
    struct playing *playing = state;
    struct zr_record record;
    bool counts;
    zr_result result = read_event(pickle, event, &playing->clock, &playing->stacks, &record, &counts);
    if (result == ZR_OK && counts && playing->clock.mark) {
        struct zr_record mark = mark_of(&playing->clock, &record);
        result = play_record(playing, &mark);
    }
    if (result == ZR_OK && counts)
        result = play_record(playing, &record);
    *stop = playing->stopped;
    return result;
}

static zr_result play_held(struct playing *playing)
{
    const struct zr_held_records *held = &playing->recording->held;
    struct zr_record record;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < held->count && result == ZR_OK && !playing->stopped; i++) {
        zr_held_records_get(held, i, &record);
        result = play_record(playing, &record);
    }
    return result == ZR_OK ? play_annotations(playing, UINT64_MAX) : result;
}

zr_result zr_recording_play_torch(struct zr_recording *recording, const struct zr_recording_sink *sink)
{
    struct playing playing = {.recording = recording, .sink = sink};
    struct zr_pickle pickle;
    struct zr_pickle_value segments;
    int device = recording->device;
    if (recording->is_held)
        return play_held(&playing);
    if (!recording->has_events)
        return ZR_OK;
    zr_equal_stacks_init(&playing.stacks, recording->arena);
    zr_result result = zr_torch_read(
        &pickle, recording->path,
        &(struct zr_torch_events){play_again, play_event, &playing, recording->pickle.read_whole},
        recording->arena, &device, &segments);
    if (result == ZR_OK)
        zr_pickle_end(&pickle);
    zr_equal_stacks_end(&playing.stacks);
    return result == ZR_OK ? play_annotations(&playing, UINT64_MAX) : result;
}

/* ---- Stacks -------------------------------------------------------------------------------------------- */

bool zr_torch_frames_next(struct zr_frames *frames, struct zr_recording *recording, char out[ZR_FRAME_BYTES])
{
    struct zr_pickle *pickle = &recording->pickle;
    struct zr_pickle_value value;
    struct zr_pickle_field fields[3] = {{.key = "name"}, {.key = "filename"}, {.key = "line"}};
    if (!zr_pickle_next(pickle, &frames->cursor, &value))
        return false;
    zr_pickle_fields(pickle, value, fields, 3);
    struct zr_pickle_value name = fields[0].value, file = fields[1].value, line = fields[2].value;
    int name_bytes = name.kind == ZR_PICKLE_TEXT ? (int)(name.text_bytes < 240 ? name.text_bytes : 240) : 0;
    int file_bytes = file.kind == ZR_PICKLE_TEXT ? (int)(file.text_bytes < 220 ? file.text_bytes : 220) : 0;
    size_t skip = file.kind == ZR_PICKLE_TEXT ? file.text_bytes - (unsigned)file_bytes : 0;
    snprintf(out, ZR_FRAME_BYTES, "%.*s (%.*s:%lld)", name_bytes, zr_pickle_text(pickle, name), file_bytes,
             zr_pickle_text(pickle, file) + skip,
             line.kind == ZR_PICKLE_INTEGER ? (long long)line.integer : 0LL);
    return true;
}
