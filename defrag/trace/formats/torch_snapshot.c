/* torch_snapshot.c: reads PyTorch's memory snapshots (torch.cuda.memory._dump_snapshot). Uses pickle.c.
 *
 * The event ring has the allocations and frees of its window. A block's memory is reusable at free_completed,
 * which follows free_requested later if other streams still used the block. The segments have the blocks that
 * are live at the snapshot. Keys and actions are those of torch/cuda/_memory_viz.py and
 * torch/csrc/cuda/memory_snapshot.cpp. */
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/trace/raw_trace.h"
#include "defrag/trace/formats/torch_snapshot.h"

zr_result zr_torch_wrong(const struct zr_pickle *pickle, const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s' is not a PyTorch snapshot that can be replayed: %s", pickle->name,
                   what);
}

bool zr_torch_number(struct zr_pickle_value value, uint64_t *out)
{
    *out = (uint64_t)value.integer;
    return value.kind == ZR_PICKLE_INTEGER && value.integer >= 0;
}

uint64_t zr_torch_stream(struct zr_pickle_value value)
{
    return value.kind == ZR_PICKLE_INTEGER ? (uint64_t)value.integer : 0;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

enum { ACTION = 0, ADDRESS, SIZE, STREAM, EVENT_FIELDS };

static zr_result read_event(void *state, struct zr_pickle *pickle, struct zr_pickle_value event, bool *stop)
{
    struct zr_raw_trace *trace = state;
    struct zr_pickle_field fields[EVENT_FIELDS] = {
        {.key = "action"}, {.key = "addr"}, {.key = "size"}, {.key = "stream"}};
    struct zr_raw_event raw = {.tag = ZR_TAG_OTHER};
    (void)stop;
    zr_pickle_fields(pickle, event, fields, EVENT_FIELDS);
    struct zr_pickle_value action = fields[ACTION].value;
    if (action.kind != ZR_PICKLE_TEXT)
        return zr_torch_wrong(pickle, "an event has no action");
    if (zr_pickle_text_is(pickle, action, "alloc"))
        raw.kind = ZR_EVENT_ALLOC;
    else if (zr_pickle_text_is(pickle, action, "free_completed"))
        raw.kind = ZR_EVENT_FREE;
    else
        return ZR_OK; /* segments, out of memory, snapshot, free_requested, and actions of later versions */
    if (!zr_torch_number(fields[ADDRESS].value, &raw.address) ||
        !zr_torch_number(fields[SIZE].value, &raw.bytes))
        return zr_torch_wrong(pickle, "an event has no address or no size");
    raw.stream = zr_torch_stream(fields[STREAM].value);
    return zr_vector_add(&trace->events, &raw);
}

/* Chooses the device by the lengths of the lists; see zr_torch_read(). */
static zr_result find_device(struct zr_pickle *pickle, struct zr_pickle_value traces, int *device)
{
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, traces);
    struct zr_pickle_value list;
    uint64_t most = 0;
    int wanted = *device;
    bool found = false;
    for (int number = 0; number < INT32_MAX && zr_pickle_next(pickle, &cursor, &list); number++) {
        uint64_t count = zr_pickle_count(pickle, list);
        if (list.kind != ZR_PICKLE_LIST)
            return zr_torch_wrong(pickle, "device_traces contains an element that is not a list");
        if (wanted >= 0 ? number == wanted : !found || count > most) {
            found = true;
            *device = number;
            most = count;
        }
    }
    if (wanted >= 0 && !found)
        return zr_fail(ZR_ERR_FORMAT, "'%s' has no device %d", pickle->name, wanted);
    return ZR_OK;
}

static const char over_and_over[] = "it names the same things over and over";

struct choosing {
    const struct zr_torch_events *events;
    int64_t device; /* negative: the first device with events */
    bool guessed;
    zr_result failure; /* of a device that may not be the right one */
};

static zr_result choose(void *state, struct zr_pickle *pickle, uint64_t list, struct zr_pickle_value item,
                        bool *stop)
{
    struct choosing *own = state;
    if (own->device < 0 && list <= INT32_MAX)
        own->device = (int64_t)list;
    if (list != (uint64_t)own->device || own->failure != ZR_OK)
        return ZR_OK;
    zr_result result = own->events->take(own->events->state, pickle, item, stop);
    if (zr_pickle_exhausted(pickle))
        return zr_torch_wrong(pickle, over_and_over);
    if (result == ZR_OK || !own->guessed || result != ZR_ERR_FORMAT)
        return result;
    own->failure = result;
    return ZR_OK;
}

static zr_result check(struct zr_pickle *pickle, int *device, struct zr_pickle_value *segments)
{
    struct zr_pickle_field fields[2] = {{.key = "segments"}, {.key = "device_traces"}};
    zr_pickle_fields(pickle, pickle->root, fields, 2);
    *segments = fields[0].value;
    if (pickle->stopped)
        return ZR_OK;
    if (fields[0].value.kind != ZR_PICKLE_LIST || fields[1].value.kind != ZR_PICKLE_LIST)
        return zr_torch_wrong(pickle, "it is not a dict with the lists 'segments' and 'device_traces'");
    zr_result result = find_device(pickle, fields[1].value, device);
    return result == ZR_OK && zr_pickle_exhausted(pickle) ? zr_torch_wrong(pickle, over_and_over) : result;
}

zr_result zr_torch_read(struct zr_pickle *out, const char *path, const struct zr_torch_events *events,
                        zr_arena *arena, int *device, struct zr_pickle_value *segments)
{
    int wanted = *device;
    bool whole = events->whole, again = true;
    zr_result result = ZR_OK;
    while (again) {
        struct choosing own = {events, wanted, wanted < 0, ZR_OK};
        struct zr_pickle_stream stream = {"device_traces", whole, choose, &own};
        events->restart(events->state);
        result = zr_pickle_read(out, path, &stream, arena);
        again = result != ZR_OK && out->asked_spent && !whole;
        whole |= again;
        if (result != ZR_OK)
            continue;
        result = check(out, device, segments);
        again = result == ZR_OK && !out->stopped && own.device >= 0 && own.device != *device;
        if (again)
            wanted = *device;
        else if (result == ZR_OK)
            result = own.failure; /* its message is the last error */
        if (again || result != ZR_OK)
            zr_pickle_end(out);
    }
    out->read_whole = whole;
    return result;
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

enum { BLOCK_ADDRESS = 0, BLOCK_SIZE, REQUESTED_SIZE, STATE, BLOCK_FIELDS };

/* Reads a block of a segment; `address` is its address if the block has none, and advances to the next one.
 */
static zr_result read_block(struct zr_pickle *pickle, struct zr_pickle_value block,
                            struct zr_raw_block *place, struct zr_raw_trace *trace)
{
    struct zr_pickle_field fields[BLOCK_FIELDS] = {
        {.key = "address"}, {.key = "size"}, {.key = "requested_size"}, {.key = "state"}};
    uint64_t bytes;
    zr_pickle_fields(pickle, block, fields, BLOCK_FIELDS);
    if (!zr_torch_number(fields[BLOCK_SIZE].value, &bytes) || fields[STATE].value.kind != ZR_PICKLE_TEXT)
        return zr_torch_wrong(pickle, "a block has no size or no state");
    if (fields[BLOCK_ADDRESS].value.kind != ZR_PICKLE_ABSENT &&
        !zr_torch_number(fields[BLOCK_ADDRESS].value, &place->address))
        return zr_torch_wrong(pickle, "a block has an invalid address");
    struct zr_raw_block raw = *place;
    place->address += bytes;
    if (zr_pickle_text_is(pickle, fields[STATE].value, "inactive"))
        return ZR_OK;
    raw.bytes = bytes;
    if (fields[REQUESTED_SIZE].value.kind != ZR_PICKLE_ABSENT &&
        (!zr_torch_number(fields[REQUESTED_SIZE].value, &raw.bytes) || raw.bytes > bytes))
        return zr_torch_wrong(pickle, "a block is smaller than what was requested of it");
    return zr_vector_add(&trace->blocks, &raw);
}

enum { SEGMENT_DEVICE = 0, SEGMENT_ADDRESS, SEGMENT_STREAM, BLOCKS, SEGMENT_FIELDS };

static zr_result read_segment(struct zr_pickle *pickle, struct zr_pickle_value segment, int device,
                              struct zr_raw_trace *trace)
{
    struct zr_pickle_field fields[SEGMENT_FIELDS] = {
        {.key = "device"}, {.key = "address"}, {.key = "stream"}, {.key = "blocks"}};
    struct zr_raw_block place = {0};
    struct zr_pickle_value block;
    uint64_t of_device;
    zr_result result = ZR_OK;
    zr_pickle_fields(pickle, segment, fields, SEGMENT_FIELDS);
    if (!zr_torch_number(fields[SEGMENT_DEVICE].value, &of_device) ||
        !zr_torch_number(fields[SEGMENT_ADDRESS].value, &place.address) ||
        fields[BLOCKS].value.kind != ZR_PICKLE_LIST)
        return zr_torch_wrong(pickle, "a segment has no device, no address or no blocks");
    if (of_device != (uint64_t)device)
        return ZR_OK;
    place.stream = zr_torch_stream(fields[SEGMENT_STREAM].value);
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, fields[BLOCKS].value);
    while (result == ZR_OK && zr_pickle_next(pickle, &cursor, &block))
        result = read_block(pickle, block, &place, trace);
    return result;
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

static void restart(void *state)
{
    struct zr_raw_trace *trace = state;
    trace->events.count = 0;
}

zr_result zr_torch_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options)
{
    struct zr_pickle pickle;
    struct zr_pickle_value segments, item;
    int device = options->device;
    zr_result result =
        zr_torch_read(&pickle, options->path, &(struct zr_torch_events){restart, read_event, trace, false},
                      trace->events.arena, &device, &segments);
    if (result != ZR_OK)
        return result;
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(&pickle, segments);
    while (result == ZR_OK && zr_pickle_next(&pickle, &cursor, &item))
        result = read_segment(&pickle, item, device < 0 ? 0 : device, trace);
    if (zr_pickle_exhausted(&pickle))
        result = zr_torch_wrong(&pickle, over_and_over);
    zr_pickle_end(&pickle);
    return result;
}
