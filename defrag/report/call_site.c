/* call_site.c: tables of names in frames. Uses recording_stacks.c. */
#include "defrag/report/call_site.h"

#include <string.h>

#include "alloc/base/sort.h"

enum { FRAMES_MAX = 64 };

bool zr_frame_is_noise(const char *frame)
{
    static const char *const names[] = {
        "torch::unwind",      "torch::Captured", "at::native::empty", "at::(anonymous namespace)::",
        "at::TensorIterator", "at::meta::",      "torch::cuda::",     "c10::",
        "at::detail::empty"};
    /* zr's own frames, and the C library's entry points of malloc */
    static const char *const places[] = {
        "alloc/front/", "alloc/telemetry/", "alloc/service/client/", "alloc/preload/",
        "libzr",        "libc.so",          "libstdc++.so"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(frame, names[i], strlen(names[i])) == 0)
            return true;
    const char *place = NULL; /* C++ names contain parentheses, so the last one starts the place */
    for (const char *at = frame; (at = strstr(at, " (")); at++)
        place = at;
    if (place && strstr(place, "/include/c++/"))
        return true;
    const char *file = place ? place + strlen(" (") : "";
    file += strncmp(file, "./", 2) == 0 ? 2 : 0; /* a function of a header */
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++)
        if (strncmp(file, places[i], strlen(places[i])) == 0)
            return true;
    return false;
}

/* Parts of frames, "name (file:line)"; the first row that fits decides. */
static const struct {
    const char *part;
    enum zr_role role;
} roles[] = {
    {"torch/optim/", ZR_ROLE_OPTIMIZER},
    {"_init_group", ZR_ROLE_OPTIMIZER},
    {"torch/serialization.py", ZR_ROLE_LOADING},
    {"from_pretrained", ZR_ROLE_LOADING},
    {"load_state_dict", ZR_ROLE_LOADING},
    {"load_weights", ZR_ROLE_LOADING},
    {"load_model", ZR_ROLE_LOADING},
    {"load_checkpoint", ZR_ROLE_LOADING},
    {"safetensors", ZR_ROLE_LOADING},
    {"_apply (", ZR_ROLE_LOADING},
    {"reset_parameters", ZR_ROLE_LOADING},
    {"__init__ (", ZR_ROLE_LOADING},
    {"backward", ZR_ROLE_BACKWARD},
    {"torch::autograd::", ZR_ROLE_BACKWARD},
    {"forward", ZR_ROLE_FORWARD},
};

enum zr_role zr_role_of(struct zr_recording *recording, uint32_t stack)
{
    struct zr_frames frames = zr_recording_frames(recording, stack);
    char frame[ZR_FRAME_BYTES];
    size_t best = sizeof roles / sizeof *roles;
    for (unsigned i = 0; i < FRAMES_MAX && stack && zr_frames_next(&frames, recording, frame); i++)
        for (size_t row = 0; row < best; row++)
            if (strstr(frame, roles[row].part))
                best = row;
    return best < sizeof roles / sizeof *roles ? roles[best].role : ZR_ROLE_UNKNOWN;
}

const char *zr_role_name(enum zr_role role)
{
    static const char *const names[] = {[ZR_ROLE_UNKNOWN] = "other",
                                        [ZR_ROLE_LOADING] = "parameters",
                                        [ZR_ROLE_OPTIMIZER] = "optimizer state",
                                        [ZR_ROLE_BACKWARD] = "gradients",
                                        [ZR_ROLE_FORWARD] = "activations"};
    return names[role];
}

/* ---- Holders ------------------------------------------------------------------------------------------- */

static bool larger(const void *one, const void *other)
{
    const struct zr_holder *a = one, *b = other;
    return a->bytes != b->bytes ? a->bytes > b->bytes : a->stack < b->stack;
}

static bool has_frame(struct zr_recording *recording, uint32_t stack, const char *part)
{
    struct zr_frames frames = zr_recording_frames(recording, stack);
    char frame[ZR_FRAME_BYTES];
    for (unsigned i = 0; i < FRAMES_MAX && stack && zr_frames_next(&frames, recording, frame); i++)
        if (strstr(frame, part))
            return true;
    return false;
}

static zr_result note_block(struct zr_vector *holders, struct zr_number_map *places,
                            const struct zr_range_record *block)
{
    uint64_t key = (uint64_t)block->stack << 8 | block->tag;
    const uint32_t *known = zr_number_map_get(places, key);
    if (known) {
        struct zr_holder *holder = zr_vector_at(holders, *known);
        holder->bytes += block->bytes;
        holder->blocks_count++;
        return ZR_OK;
    }
    zr_result result = zr_number_map_put(places, key, (uint32_t)holders->count);
    return result == ZR_OK ? zr_vector_add(holders, &(struct zr_holder){.bytes = block->bytes,
                                                                        .blocks_count = 1,
                                                                        .stack = block->stack,
                                                                        .tag = block->tag})
                           : result;
}

zr_result zr_holders_find(struct zr_vector *holders, const struct zr_memory *memory,
                          struct zr_recording *recording)
{
    const struct zr_range_record *block = zr_extents_ceiling(&memory->blocks, 0);
    struct zr_number_map places;
    zr_result result = ZR_OK;
    zr_number_map_init(&places, holders->arena);
    for (; block && result == ZR_OK; block = zr_extents_next(&memory->blocks, block))
        if (!block->pending)
            result = note_block(holders, &places, block);
    zr_number_map_end(&places);
    for (size_t i = 0; i < holders->count; i++) {
        struct zr_holder *holder = zr_vector_at(holders, i);
        holder->role = zr_role_of(recording, holder->stack);
        holder->is_file = has_frame(recording, holder->stack, "torch/serialization.py");
    }
    zr_sort_in_place(
        &(struct zr_sort_records){holders->items, holders->count, sizeof(struct zr_holder), larger});
    return result;
}

const char *zr_holder_category(const struct zr_holder *holder)
{
    return holder->tag != ZR_TAG_OTHER ? zr_tag_name((zr_tag)holder->tag) : zr_role_name(holder->role);
}

static bool is_twin(const struct zr_holder *weights, const struct zr_holder *other)
{
    double size = (double)weights->bytes / (double)weights->blocks_count;
    double other_size = (double)other->bytes / (double)other->blocks_count;
    bool may_load = other->role == ZR_ROLE_LOADING || other->role == ZR_ROLE_UNKNOWN;
    return weights != other && weights->role == ZR_ROLE_LOADING && !weights->is_file && other->stack &&
           may_load && size < other_size * 1.1 && other_size < size * 1.1 &&
           weights->blocks_count <= 2 * other->blocks_count &&
           other->blocks_count <= 2 * weights->blocks_count;
}

bool zr_holders_twins(const struct zr_vector *holders, struct zr_twins *out)
{
    enum { BLOCKS_MIN = 8, SHARE_MIN = 8 };
    const struct zr_holder *list = holders->items;
    uint64_t all_bytes = 0;
    size_t count = 0; /* of holders that are large enough: the first ones */
    for (size_t i = 0; i < holders->count; i++)
        all_bytes += list[i].bytes;
    while (count < holders->count && list[count].bytes >= all_bytes / SHARE_MIN)
        count++;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++)
            if (list[i].blocks_count >= BLOCKS_MIN && is_twin(&list[i], &list[j])) {
                *out = (struct zr_twins){&list[i], &list[j]};
                return true;
            }
    return false;
}
