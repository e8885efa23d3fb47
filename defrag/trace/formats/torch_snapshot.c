/* torch_snapshot.c: reads PyTorch's memory snapshots (torch.cuda.memory._dump_snapshot). Uses pickle.c.
 *
 * The event ring has the allocations and frees of its window. A block's memory is reusable at free_completed,
 * which follows free_requested later if other streams still used the block. The segments have the blocks that
 * are live at the snapshot. Keys and actions are those of torch/cuda/_memory_viz.py and
 * torch/csrc/cuda/memory_snapshot.cpp. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"
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
    int64_t refused;   /* guessed: the first device that refused; negative: none */
    zr_result failure; /* of a device that may not be the right one */
};

static bool is_refusal(struct zr_pickle *pickle, struct zr_pickle_value event)
{
    struct zr_pickle_field action = {.key = "action"};
    zr_pickle_fields(pickle, event, &action, 1);
    return zr_pickle_text_is(pickle, action.value, "oom");
}

static zr_result choose(void *state, struct zr_pickle *pickle, uint64_t list, struct zr_pickle_value item,
                        bool *stop)
{
    struct choosing *own = state;
    if (own->device < 0 && list <= INT32_MAX)
        own->device = (int64_t)list;
    if (own->guessed && own->refused < 0 && list <= INT32_MAX && is_refusal(pickle, item))
        own->refused = (int64_t)list;
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
    if (pickle->root.kind == ZR_PICKLE_LIST) { /* torch.cuda.memory_snapshot(): segments, and no events */
        *segments = pickle->root;
        return ZR_OK;
    }
    if (fields[0].value.kind != ZR_PICKLE_LIST || fields[1].value.kind != ZR_PICKLE_LIST)
        return zr_torch_wrong(
            pickle, "it is neither a dict with the lists 'segments' and 'device_traces' nor a list of "
                    "segments");
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
        struct choosing own = {events, wanted, wanted < 0, -1, ZR_OK};
        struct zr_pickle_stream stream = {"device_traces", whole, choose, &own};
        events->restart(events->state);
        result = zr_pickle_read(out, path, &stream, arena);
        again = result != ZR_OK && out->asked_spent && !whole;
        whole |= again;
        if (result != ZR_OK)
            continue;
        result = check(out, device, segments);
        if (result == ZR_OK && own.refused >= 0)
            *device = (int)own.refused;
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

/* ---- Equal stacks -------------------------------------------------------------------------------------- */

void zr_equal_stacks_init(struct zr_equal_stacks *out, zr_arena *arena)
{
    zr_number_map_init(&out->numbers, arena);
    zr_number_map_init(&out->contents, arena);
}

void zr_equal_stacks_end(struct zr_equal_stacks *stacks)
{
    zr_number_map_end(&stacks->numbers);
    zr_number_map_end(&stacks->contents);
}

/* *out: the first container of that content; `number` becomes it if there is none. */
static zr_result first_of(struct zr_equal_stacks *stacks, uint64_t content, uint64_t number, uint32_t *out)
{
    const uint32_t *first = zr_number_map_get(&stacks->contents, content);
    *out = first ? *first : (uint32_t)number;
    zr_result result = first ? ZR_OK : zr_number_map_put(&stacks->contents, content, *out);
    return result == ZR_OK ? zr_number_map_put(&stacks->numbers, number, *out) : result;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static zr_result find_frame(struct zr_equal_stacks *stacks, struct zr_pickle *pickle,
                            struct zr_pickle_value frame, uint32_t *out)
{
    struct zr_pickle_field fields[3] = {{.key = "name"}, {.key = "filename"}, {.key = "line"}};
    const uint32_t *known = zr_number_map_get(&stacks->numbers, frame.at);
    uint64_t content = ZR_HASH_START;
    *out = known ? *known : 0;
    if (known || frame.kind != ZR_PICKLE_DICT)
        return ZR_OK;
    zr_pickle_fields(pickle, frame, fields, 3);
    for (unsigned i = 0; i < 3; i++) /* equal texts have one place */
        content = mix(mix(content, fields[i].value.kind), fields[i].value.at);
    return first_of(stacks, content, frame.at, out);
}

zr_result zr_equal_stacks_find(struct zr_equal_stacks *stacks, struct zr_pickle *pickle,
                               struct zr_pickle_value frames, uint32_t *out)
{
    *out = 0;
    if (frames.kind != ZR_PICKLE_LIST || zr_pickle_count(pickle, frames) == 0 || frames.at >= UINT32_MAX)
        return ZR_OK;
    const uint32_t *known = zr_number_map_get(&stacks->numbers, frames.at);
    if (known) {
        *out = *known + 1;
        return ZR_OK;
    }
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, frames);
    struct zr_pickle_value frame;
    uint64_t content = ~ZR_HASH_START;
    uint32_t number = 0;
    zr_result result = ZR_OK;
    while (result == ZR_OK && zr_pickle_next(pickle, &cursor, &frame)) {
        result = find_frame(stacks, pickle, frame, &number);
        content = mix(content, number);
    }
    if (result == ZR_OK)
        result = first_of(stacks, content, frames.at, &number);
    *out = result == ZR_OK ? number + 1 : 0;
    return result;
}
