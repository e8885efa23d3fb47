/* page_stacks.c: identifies stacks by content, because snapshots repeat equal frames for each event. */
#include "defrag/report/page/page.h"

#include <string.h>

#include "alloc/base/hash.h"

void zr_page_stacks_init(struct zr_page_stacks *stacks, struct zr_recording *recording, zr_arena *arena)
{
    *stacks = (struct zr_page_stacks){.recording = recording};
    zr_number_map_init(&stacks->by_stack, arena);
    zr_number_map_init(&stacks->by_frame, arena);
    zr_number_map_init(&stacks->by_frames, arena);
}

void zr_page_stacks_end(struct zr_page_stacks *stacks)
{
    zr_number_map_end(&stacks->by_stack);
    zr_number_map_end(&stacks->by_frame);
    zr_number_map_end(&stacks->by_frames);
}

static zr_result frame_number(struct zr_page_stacks *stacks, const char *text, uint32_t *number)
{
    size_t bytes = strlen(text);
    uint64_t key = zr_hash_more(ZR_HASH_START, text, bytes);
    const uint32_t *known = zr_number_map_get(&stacks->by_frame, key);
    *number = known ? *known : stacks->frames_count;
    if (known)
        return ZR_OK;
    stacks->frames_count++;
    zr_column_number(stacks->frames, bytes);
    zr_column_put(stacks->frames, text, bytes);
    return zr_number_map_put(&stacks->by_frame, key, *number);
}

static zr_result read_stack(struct zr_page_stacks *stacks, uint32_t stack, uint32_t *number)
{
    uint32_t list[ZR_PAGE_FRAMES_MAX];
    char text[ZR_FRAME_BYTES];
    unsigned count = 0;
    zr_result result = ZR_OK;
    struct zr_frames frames = zr_recording_frames(stacks->recording, stack);
    while (count < ZR_PAGE_FRAMES_MAX && result == ZR_OK && zr_frames_next(&frames, stacks->recording, text))
        result = frame_number(stacks, text, &list[count++]);
    *number = 0;
    if (result != ZR_OK || count == 0)
        return result;
    uint64_t key = zr_hash_more(ZR_HASH_START, list, count * sizeof *list);
    const uint32_t *known = zr_number_map_get(&stacks->by_frames, key);
    *number = known ? *known : stacks->stacks_count + 1;
    if (known)
        return ZR_OK;
    stacks->stacks_count++;
    zr_column_number(stacks->stacks, count);
    for (unsigned i = 0; i < count; i++)
        zr_column_number(stacks->stacks, list[i]);
    return zr_number_map_put(&stacks->by_frames, key, *number);
}

zr_result zr_page_stack_number(struct zr_page_stacks *stacks, uint32_t stack, uint32_t *number)
{
    const uint32_t *known = stack ? zr_number_map_get(&stacks->by_stack, stack) : NULL;
    *number = known ? *known : 0;
    if (stack == 0 || known)
        return ZR_OK;
    zr_result result = read_stack(stacks, stack, number);
    return result == ZR_OK ? zr_number_map_put(&stacks->by_stack, stack, *number) : result;
}
