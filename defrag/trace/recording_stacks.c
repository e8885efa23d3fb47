/* recording_stacks.c: the call stacks of a recording. Stacks of a .zrt come with its events and are kept;
 * stacks of a snapshot are in its pickle. Uses zrt.c and recording_torch.c. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/trace/recording.h"
#include "defrag/trace/formats/zrt.h"

enum { MODULES_MAX = 1 << 16 }; /* limit against hostile files: further modules are dropped */

struct module {
    uint64_t address, bytes, file_offset;
    uint32_t text; /* zero-terminated path: an offset in module_texts */
    uint8_t build_id_bytes;
    unsigned char build_id[ZRT_BUILD_ID_BYTES];
};

struct stack {
    uint64_t first; /* index in `addresses` */
    uint32_t count;
    uint32_t modules_count; /* when it was recorded: later modules may reuse addresses */
};

void zr_recording_stacks_init(struct zr_recording_stacks *out, zr_arena *arena)
{
    *out = (struct zr_recording_stacks){0};
    zr_vector_init(&out->modules, arena, sizeof(struct module));
    zr_vector_init(&out->module_texts, arena, 1);
    zr_vector_init(&out->stacks, arena, sizeof(struct stack));
    zr_vector_init(&out->addresses, arena, sizeof(uint64_t));
    zr_vector_init(&out->frames, arena, sizeof(uint32_t));
}

void zr_recording_stacks_end(struct zr_recording_stacks *stacks)
{
    zr_vector_end(&stacks->modules);
    zr_vector_end(&stacks->module_texts);
    zr_vector_end(&stacks->stacks);
    zr_vector_end(&stacks->addresses);
    zr_vector_end(&stacks->frames);
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

static zr_result take_text(struct zr_recording_stacks *stacks, const char *text)
{
    zr_result result = ZR_OK;
    for (const char *at = text; result == ZR_OK; at++) {
        result = zr_vector_add(&stacks->module_texts, at);
        if (*at == '\0')
            break;
    }
    return result;
}

static zr_result take_frame(struct zr_recording_stacks *stacks, const struct zrt_event *event)
{
    zr_result result =
        stacks->module_texts.count == 0 ? take_text(stacks, "") : ZR_OK; /* offset 0: no text */
    while (stacks->frames.count < event->frame_number && result == ZR_OK)
        result = zr_vector_add(&stacks->frames, &(uint32_t){0});
    uint32_t *frame = result == ZR_OK ? zr_vector_at(&stacks->frames, event->frame_number - 1) : NULL;
    if (!frame || *frame > 0)
        return result; /* the first one counts */
    *frame = (uint32_t)stacks->module_texts.count;
    return take_text(stacks, event->module.path);
}

static zr_result take_module(struct zr_recording_stacks *stacks, const struct zrt_module *from)
{
    struct module module = {.address = from->address,
                            .bytes = from->bytes,
                            .file_offset = from->file_offset,
                            .text = (uint32_t)stacks->module_texts.count,
                            .build_id_bytes = (uint8_t)from->build_id_bytes};
    if (stacks->modules.count == MODULES_MAX)
        return ZR_OK;
    memcpy(module.build_id, from->build_id, from->build_id_bytes);
    zr_result result = take_text(stacks, from->path);
    return result == ZR_OK ? zr_vector_add(&stacks->modules, &module) : result;
}

static zr_result take_stack(struct zr_recording_stacks *stacks, const struct zrt_event *event)
{
    zr_result result = ZR_OK;
    while (stacks->stacks.count < event->stack && result == ZR_OK)
        result = zr_vector_add(&stacks->stacks, &(struct stack){0});
    if (result != ZR_OK)
        return result;
    struct stack *stack = zr_vector_at(&stacks->stacks, event->stack - 1);
    if (stack->count > 0)
        return ZR_OK; /* the first one counts */
    *stack = (struct stack){.first = stacks->addresses.count,
                            .count = event->frames_count,
                            .modules_count = (uint32_t)stacks->modules.count};
    for (unsigned i = 0; i < event->frames_count && result == ZR_OK; i++)
        result = zr_vector_add(&stacks->addresses, &event->frames[i]);
    return result;
}

zr_result zr_recording_stacks_take(struct zr_recording *recording, const struct zrt_event *event,
                                   uint64_t number)
{
    struct zr_recording_stacks *stacks = &recording->stacks;
    if (number <= stacks->events_seen)
        return ZR_OK; /* recorded in an earlier playing */
    stacks->events_seen = number;
    if (event->extension == ZRT_MODULE)
        return take_module(stacks, &event->module);
    if (event->extension == ZRT_FRAME)
        return take_frame(stacks, event);
    return event->extension == ZRT_STACK ? take_stack(stacks, event) : ZR_OK;
}

/* ---- Frames -------------------------------------------------------------------------------------------- */

static const struct stack *stack_of(const struct zr_recording *recording, uint32_t number)
{
    const struct zr_vector *stacks = &recording->stacks.stacks;
    return number > 0 && number <= stacks->count ? (const struct stack *)stacks->items + (number - 1) : NULL;
}

struct zr_frames zr_recording_frames(const struct zr_recording *recording, uint32_t stack)
{
    struct zr_frames frames = {.stack = stack};
    if (recording->kind == ZR_RECORDING_ZRT) {
        frames.any = stack_of(recording, stack) != NULL;
    } else if (recording->has_pickle && stack > 0) {
        frames.any = true;
        frames.cursor = zr_pickle_cursor_of(
            &recording->pickle, (struct zr_pickle_value){.kind = ZR_PICKLE_LIST, .at = stack - 1});
    }
    return frames;
}

/* The text of an interpreter's frame; NULL: the address is code. */
static const char *frame_text(const struct zr_recording_stacks *stacks, uint64_t address)
{
    uint64_t index = address - ZRT_FRAME_ADDRESS - 1;
    const uint32_t *frames = stacks->frames.items;
    return address > ZRT_FRAME_ADDRESS && index < stacks->frames.count && frames[index]
               ? (const char *)stacks->module_texts.items + frames[index]
               : NULL;
}

static struct zr_frame_place place_of(const struct zr_recording_stacks *stacks, const struct stack *stack,
                                      uint64_t address)
{
    const struct module *modules = stacks->modules.items;
    for (uint32_t i = stack->modules_count; i-- > 0;)
        if (address - modules[i].address < modules[i].bytes)
            return (struct zr_frame_place){.address = address,
                                           .file_offset =
                                               address - modules[i].address + modules[i].file_offset,
                                           .path = (const char *)stacks->module_texts.items + modules[i].text,
                                           .build_id = modules[i].build_id,
                                           .build_id_bytes = modules[i].build_id_bytes};
    return (struct zr_frame_place){.address = address, .path = ""};
}

bool zr_frames_next(struct zr_frames *frames, struct zr_recording *recording, char out[ZR_FRAME_BYTES])
{
    if (!frames->any)
        return false;
    if (recording->kind != ZR_RECORDING_ZRT)
        return zr_torch_frames_next(frames, recording, out);
    const struct zr_recording_stacks *stacks = &recording->stacks;
    const struct stack *stack = stack_of(recording, frames->stack);
    if (!stack || frames->next >= stack->count)
        return false;
    const uint64_t *addresses = stacks->addresses.items;
    uint64_t address = addresses[stack->first + frames->next++];
    const char *text = frame_text(stacks, address);
    if (text) {
        snprintf(out, ZR_FRAME_BYTES, "%s", text);
        return true;
    }
    struct zr_frame_place place = place_of(stacks, stack, address);
    if (recording->namer.name && recording->namer.name(recording->namer.state, &place, out, ZR_FRAME_BYTES))
        return true;
    const char *slash = strrchr(place.path, '/'), *file = slash ? slash + 1 : place.path;
    if (*file)
        snprintf(out, ZR_FRAME_BYTES, "?? (%.200s+0x%" PRIx64 ")", file, place.file_offset);
    else
        snprintf(out, ZR_FRAME_BYTES, "?? (0x%" PRIx64 ")", place.address);
    return true;
}
