/* torch_snapshot.c: reads PyTorch's memory snapshots (torch.cuda.memory._dump_snapshot). Uses pickle.c.
 *
 * The event ring has the allocations and frees of its window. A block's memory is reusable at free_completed,
 * which follows free_requested later if other streams still used the block. The segments have the blocks that
 * are live at the snapshot. Keys and actions are those of torch/cuda/_memory_viz.py and
 * torch/csrc/cuda/memory_snapshot.cpp. */
#include <string.h>

#include "alloc/base/error.h"
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
