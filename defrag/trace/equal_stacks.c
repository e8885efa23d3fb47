/* equal_stacks.c: finds stacks with equal frames by hashes of 64 bits. Uses pickle.c and number_map.c. */
#include "defrag/trace/equal_stacks.h"

#include "alloc/base/hash.h"

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
