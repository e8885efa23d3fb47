/* page_stacks.c: identifies stacks by content, because snapshots repeat equal frames for each event; the
 * category of each. Uses call_site.c. */
#include "defrag/report/page/page.h"

#include <string.h>

#include "alloc/base/hash.h"
#include "defrag/report/call_site.h"

void zr_page_stacks_init(struct zr_page_stacks *stacks, struct zr_recording *recording, zr_arena *arena)
{
    *stacks = (struct zr_page_stacks){.recording = recording};
    zr_number_map_init(&stacks->by_stack, arena);
    zr_number_map_init(&stacks->by_frame, arena);
    zr_number_map_init(&stacks->by_frames, arena);
    zr_vector_init(&stacks->tags, arena, sizeof(uint8_t));
}

void zr_page_stacks_end(struct zr_page_stacks *stacks)
{
    zr_number_map_end(&stacks->by_stack);
    zr_number_map_end(&stacks->by_frame);
    zr_number_map_end(&stacks->by_frames);
    zr_vector_end(&stacks->tags);
}

/* ---- Categories ---------------------------------------------------------------------------------------- */

static const struct {
    enum zr_role role;
    zr_tag tag;
} categories[] = {{ZR_ROLE_LOADING, ZR_TAG_PARAM},
                  {ZR_ROLE_OPTIMIZER, ZR_TAG_OPTIMIZER},
                  {ZR_ROLE_BACKWARD, ZR_TAG_GRAD},
                  {ZR_ROLE_FORWARD, ZR_TAG_ACTIVATION}};

static uint8_t tag_of(enum zr_role role)
{
    for (unsigned i = 0; i < sizeof categories / sizeof *categories; i++)
        if (categories[i].role == role)
            return (uint8_t)categories[i].tag;
    return ZR_TAG_OTHER;
}

zr_tag zr_page_stack_tag(const struct zr_page_stacks *stacks, uint32_t number)
{
    return number ? (zr_tag) * (const uint8_t *)zr_vector_at(&stacks->tags, number - 1) : ZR_TAG_OTHER;
}

const char *zr_page_tag_name(const struct zr_recording *recording, zr_tag tag)
{
    for (unsigned i = 0; i < sizeof categories / sizeof *categories; i++)
        if (categories[i].tag == tag && recording->kind == ZR_RECORDING_TORCH)
            return zr_role_name(categories[i].role);
    return zr_tag_name(tag);
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

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
    unsigned count = 0, noise = 0;
    zr_result result = ZR_OK;
    struct zr_frames frames = zr_recording_frames(stacks->recording, stack);
    while (count < ZR_PAGE_FRAMES_MAX && result == ZR_OK &&
           zr_frames_next(&frames, stacks->recording, text)) {
        noise += noise == count && zr_frame_is_noise(text);
        result = frame_number(stacks, text, &list[count++]);
    }
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
    zr_column_number(stacks->stacks, noise);
    for (unsigned i = 0; i < count; i++)
        zr_column_number(stacks->stacks, list[i]);
    uint8_t tag = tag_of(zr_role_of(stacks->recording, stack));
    result = zr_vector_add(&stacks->tags, &tag);
    return result == ZR_OK ? zr_number_map_put(&stacks->by_frames, key, *number) : result;
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
