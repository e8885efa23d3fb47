/* call_site.c: tables of names in frames. Uses recording_stacks.c. */
#include "defrag/report/call_site.h"

#include <string.h>

enum { FRAMES_MAX = 64 };

bool zr_frame_is_noise(const char *frame)
{
    static const char *const names[] = {
        "torch::unwind",      "torch::Captured", "at::native::empty", "at::(anonymous namespace)::",
        "at::TensorIterator", "at::meta::",      "torch::cuda::",     "c10::",
        "at::detail::empty"};
    /* zr's own frames, the driver's, and the C library's entry points of malloc */
    static const char *const places[] = {"alloc/front/",   "alloc/telemetry/", "alloc/service/client/",
                                         "alloc/preload/", "alloc/rehearse/",  "libzr",
                                         "libcuda.so",     "libc.so",          "libstdc++.so"};
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
    {"torch::autograd::Engine", ZR_ROLE_BACKWARD}, /* forward has other frames of torch::autograd */
    {"forward", ZR_ROLE_FORWARD},
};

/* Whether the function of "name (file:line)" runs a model without training it. */
static bool is_evaluation(const char *frame)
{
    static const char *const parts[] = {"validat", "evaluat", "predict", "inference", "test_step", "eval_"};
    const char *place = strchr(frame, '(');
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *at = strstr(frame, parts[i]);
        if (at && (!place || at < place))
            return true;
    }
    return false;
}

/* What the frames of a stack tell, from one walk through them. */
struct telling {
    enum zr_role role;
    bool is_file, evaluates;
    unsigned good; /* quality of the site's frame; 0: none, 1: it has no name */
    char site[ZR_FRAME_BYTES];
};

static void read_stack(struct zr_recording *recording, uint32_t stack, struct telling *out)
{
    const size_t rows = sizeof roles / sizeof *roles;
    struct zr_frames frames = zr_recording_frames(recording, stack);
    char frame[ZR_FRAME_BYTES];
    size_t best = rows;
    out->good = 0;
    out->is_file = out->evaluates = false;
    for (unsigned i = 0; i < FRAMES_MAX && stack && zr_frames_next(&frames, recording, frame); i++) {
        bool python = strstr(frame, ".py:") || strstr(frame, " (<"); /* <string>, <stdin>, <frozen .. */
        bool library =
            strstr(frame, "-packages/") || strstr(frame, " (<frozen ") || strstr(frame, "/zr-rehearse/");
        bool named = strncmp(frame, "?? (", strlen("?? (")) != 0;
        unsigned good = python ? (library ? 3 : 4) : zr_frame_is_noise(frame) ? 0 : 1 + named;
        out->is_file |= strstr(frame, "torch/serialization.py") != NULL;
        out->evaluates |= python && is_evaluation(frame);
        for (size_t row = 0; row < best; row++)
            if (strstr(frame, roles[row].part))
                best = row;
        if (good > out->good) {
            memcpy(out->site, frame, sizeof frame);
            out->good = good;
        }
    }
    out->role = best < rows ? roles[best].role : ZR_ROLE_UNKNOWN;
}

bool zr_site_frame(struct zr_recording *recording, uint32_t stack, char out[ZR_FRAME_BYTES])
{
    struct telling telling;
    read_stack(recording, stack, &telling);
    if (telling.good > 0)
        memcpy(out, telling.site, sizeof telling.site);
    return telling.good > 0;
}

enum zr_role zr_role_of(struct zr_recording *recording, uint32_t stack)
{
    struct telling telling;
    read_stack(recording, stack, &telling);
    return telling.role;
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

void zr_holder_finder_init(struct zr_holder_finder *out, struct zr_recording *recording,
                           struct zr_vector *holders)
{
    *out = (struct zr_holder_finder){.recording = recording, .holders = holders};
    zr_number_map_init(&out->stacks, holders->arena);
    zr_number_map_init(&out->sites, holders->arena);
}

void zr_holder_finder_end(struct zr_holder_finder *finder)
{
    zr_number_map_end(&finder->sites);
    zr_number_map_end(&finder->stacks);
}

static uint64_t hash_of(const struct zr_holder *holder, const char *site)
{
    uint64_t hash = (uint64_t)holder->evaluates << 16 | (uint64_t)holder->role << 9 |
                    (uint64_t)holder->temporary << 8 | holder->tag;
    for (const char *at = site; *at; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    return hash;
}

/* The number of the holder of a new stack. Sites with equal hashes, which are rare, count as one. */
static zr_result number_site(struct zr_holder_finder *finder, const struct zr_holder *like, uint32_t *out)
{
    struct telling telling;
    read_stack(finder->recording, like->stack, &telling);
    struct zr_holder holder = *like;
    holder.role = telling.role;
    holder.is_file = telling.is_file;
    holder.evaluates = telling.evaluates;
    uint64_t key = hash_of(&holder, telling.good > 0 ? telling.site : "");
    const uint32_t *known = zr_number_map_get(&finder->sites, key);
    *out = known ? *known : (uint32_t)finder->holders->count;
    if (known)
        return ZR_OK;
    zr_result result = zr_number_map_put(&finder->sites, key, *out);
    return result == ZR_OK ? zr_vector_add(finder->holders, &holder) : result;
}

zr_result zr_holder_find(struct zr_holder_finder *finder, const struct zr_holder *like,
                         struct zr_holder **out)
{
    uint64_t key = (uint64_t)like->stack << 9 | (uint64_t)like->temporary << 8 | like->tag;
    const uint32_t *known = zr_number_map_get(&finder->stacks, key);
    uint32_t number = known ? *known : 0;
    zr_result result = known ? ZR_OK : number_site(finder, like, &number);
    if (!known && result == ZR_OK)
        result = zr_number_map_put(&finder->stacks, key, number);
    *out = result == ZR_OK ? zr_vector_at(finder->holders, number) : NULL;
    return result;
}

const char *zr_holder_category(const struct zr_holder *holder)
{
    return holder->tag != ZR_TAG_OTHER ? zr_tag_name((zr_tag)holder->tag)
           : holder->temporary         ? "temporary"
                                       : zr_role_name(holder->role);
}

static bool is_twin(const struct zr_holder *weights, const struct zr_holder *other)
{
    /* A tenth: sizes with another rounding. A factor of two in number: one copy has some tensors less. */
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
    /* Less than eight tensors are no model; an eighth is the least that explains a failure. */
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
