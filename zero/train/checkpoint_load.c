/* checkpoint_load.c: reads a checkpoint into an engine of any world size and stage. Everything in the files
 * is taken for hostile until it has been checked. Stands on checkpoint.c; jansson reads the JSON, in zr_heap
 * memory. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "alloc/base/sort.h"
#include "zero/train/checkpoint_inside.h"
#include "zero/train/crc64.h"
#include "zero/train/model_file.h"
#include "zero/train/safetensors_read.h"

/* Of a world far beyond ZR_MAX_WORLD; jansson makes up to a hundred times as much of it. */
#define MANIFEST_MAX ((uint64_t)4 << 20)

/* One shard file of the checkpoint, as the manifest has it. */
struct shard {
    char file[64];
    uint64_t bytes, elements, crc64;
    uint64_t data_bytes; /* where the first tensor starts */
};

/* Elements [first, first + count) of the model lie from `place` on in each tensor of shard `shard`. */
struct range {
    uint64_t first, count, place;
    unsigned shard;
};

struct load {
    const struct zr_checkpoint *checkpoint;
    char folder[ZR_CHECKPOINT_PATH_ROOM]; /* of the step */
    bool is_aside;                        /* `folder` has the name of one that was to be replaced */
    uint64_t step, updates;               /* updates: less, where steps were skipped */
    uint64_t passed_over;                 /* a newer step, that has no manifest; 0: none */
    struct zr_loss_scale scaling;         /* scale 0: the manifest has none */
    struct shard *shards;                 /* [shards_count], zr_heap */
    size_t shards_count;
    struct range *ranges; /* [ranges_count], zr_heap, in global order once all are there */
    size_t ranges_count, ranges_room;
    char *piece; /* ZR_CHECKPOINT_PIECE bytes, zr_heap */
};

static zr_result shard_path(const struct load *load, const char *file, char out[ZR_CHECKPOINT_PATH_ROOM])
{
    return zr_path_join(out, ZR_CHECKPOINT_PATH_ROOM, &(struct zr_path_parts){load->folder, file});
}

static zr_result other_size(const struct shard *shard, const char *path, uint64_t bytes)
{
    return zr_fail(ZR_ERR_CORRUPT,
                   "'%s' is damaged: it has %" PRIu64 " bytes, its manifest says %" PRIu64
                   "; resume from another step",
                   path, bytes, shard->bytes);
}

/* Opens a shard that has the size its manifest says. The caller closes it. */
static zr_result open_shard(const struct load *load, const struct shard *shard, struct zr_file *out)
{
    char path[ZR_CHECKPOINT_PATH_ROOM];
    uint64_t bytes = 0;
    enum zr_path_kind kind = ZR_PATH_NONE;
    zr_result result = shard_path(load, shard->file, path);

    *out = (struct zr_file){.fd = -1};
    if (!result)
        result = zr_path_kind_get(path, &kind);
    if (!result && kind == ZR_PATH_NONE)
        return zr_fail(ZR_ERR_FORMAT, "'%s' is missing, and its manifest names it; resume from another step",
                       path);
    if (!result)
        result = zr_file_open_regular(out, path);
    if (!result)
        result = zr_file_size(out, &bytes);
    return !result && bytes != shard->bytes ? other_size(shard, path, bytes) : result;
}

/* ---- Which checkpoint ---------------------------------------------------------------------------------- */

bool zr_checkpoint_is_complete(const char *folder)
{
    char path[ZR_CHECKPOINT_PATH_ROOM];
    enum zr_path_kind kind;
    return zr_path_join(path, sizeof path, &(struct zr_path_parts){folder, "manifest.json"}) == ZR_OK &&
           zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_FILE;
}

/* Whether an entry of a folder of steps is one that may be taken before what has been found, and its step.
 * One that was set aside is where a save has died before the new one of its step had the name. */
static bool is_newer(const struct load *load, bool found, const char *name, bool *aside, uint64_t *step)
{
    *aside = zr_checkpoint_read_step_name(name, ZR_CHECKPOINT_REPLACED, step);
    if (!*aside && !zr_checkpoint_read_step_name(name, ZR_CHECKPOINT_STEP, step))
        return false;
    return !found || *step > load->step || (*step == load->step && load->is_aside && !*aside);
}

/* The newest step folder with a manifest in it. */
static zr_result find_newest(struct load *load, bool *found)
{
    const char *folder = load->checkpoint->folder;
    char path[ZR_CHECKPOINT_PATH_ROOM];
    struct zr_folder listing;
    struct zr_folder_entry entry;
    uint64_t step;
    bool aside;
    zr_result result = zr_folder_open(&listing, folder);

    *found = false;
    if (result)
        return result;
    while ((result = zr_folder_next(&listing, &entry)) == ZR_OK && entry.name) {
        if (!is_newer(load, *found, entry.name, &aside, &step))
            continue;
        result = zr_path_join(path, sizeof path, &(struct zr_path_parts){folder, entry.name});
        if (result)
            break;
        if (!zr_checkpoint_is_complete(path)) {
            load->passed_over = step > load->passed_over ? step : load->passed_over;
            continue;
        }
        *found = true;
        load->is_aside = aside;
        load->step = step;
        memcpy(load->folder, path, sizeof path);
    }
    zr_folder_close(&listing);
    if (load->passed_over <= load->step)
        load->passed_over = 0;
    return result;
}

zr_result zr_checkpoint_newest(const char *folder, bool *found, uint64_t *step)
{
    const struct zr_checkpoint checkpoint = {.folder = folder};
    struct load load = {.checkpoint = &checkpoint};
    zr_result result = find_newest(&load, found);
    *step = load.step;
    return result;
}

/* There is no step in the folder: perhaps it is one with a model as safetensors, whose name is then said. */
static zr_result tell_no_checkpoint(const char *folder)
{
    static const char tail[] = ".safetensors";
    char name[256] = "";
    struct zr_folder listing;
    struct zr_folder_entry entry;
    size_t count = 0;
    zr_result result = zr_folder_open(&listing, folder);

    if (result)
        return result;
    while ((result = zr_folder_next(&listing, &entry)) == ZR_OK && entry.name) {
        size_t length = strlen(entry.name);
        if (length < sizeof tail || strcmp(entry.name + length - (sizeof tail - 1), tail) != 0)
            continue;
        snprintf(name, sizeof name, "%s", entry.name);
        count++;
    }
    zr_folder_close(&listing);
    if (result)
        return result;
    if (count > 1)
        return zr_fail(
            ZR_ERR_FORMAT,
            "--resume '%s': there is no checkpoint in it, but %zu files of safetensors; if they are "
            "the parts of one model, give its index: --resume '%s/model.safetensors.index.json'",
            folder, count, folder);
    if (count == 1)
        return zr_fail(ZR_ERR_FORMAT,
                       "--resume '%s': there is no checkpoint in it; to start from the model in it, give "
                       "--resume '%s/%s'",
                       folder, folder, name);
    return zr_fail(ZR_ERR_FORMAT,
                   "--resume '%s': there is no complete checkpoint in it (step-... with a manifest.json); "
                   "give the folder that --save wrote to",
                   folder);
}

static zr_result find_checkpoint(struct load *load)
{
    const char *folder = load->checkpoint->folder;
    enum zr_path_kind kind;
    bool found;
    zr_result result = zr_path_kind_get(folder, &kind);

    if (result)
        return result;
    if (kind != ZR_PATH_FOLDER)
        return zr_fail(ZR_ERR_FORMAT, "--resume '%s': %s; give the folder that --save wrote to", folder,
                       kind == ZR_PATH_NONE ? "there is nothing of that name" : "is no folder");
    if (strlen(folder) >= sizeof load->folder)
        return zr_fail(ZR_ERR_INVALID, "--resume: the path is too long");
    if (zr_checkpoint_is_complete(folder)) {
        memcpy(load->folder, folder, strlen(folder) + 1);
        return ZR_OK;
    }
    result = find_newest(load, &found);
    return result || found ? result : tell_no_checkpoint(folder);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

/* A whole number of an object, for which `least` .. INT64_MAX is fine. */
static bool get_whole(json_t *object, const char *key, uint64_t *out)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static json_t *parse(const char *text, size_t bytes, const char *name)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        zr_fail(ZR_ERR_FORMAT, "'%s' is damaged: %s in line %d of its JSON; resume from another step", name,
                error.text, error.line);
    return root;
}

static zr_result damaged(const char *name, const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s' is damaged: %s; resume from another step", name, what);
}

/* ---- The manifest -------------------------------------------------------------------------------------- */

/* Another optimizer's state is of no use to this one. */
static zr_result check_optimizer(const struct load *load, json_t *root, const char *name)
{
    const char *ours = zr_checkpoint_optimizer_name(load->checkpoint->engine);
    const char *theirs = json_string_value(json_object_get(root, "optimizer"));

    if (!theirs)
        return damaged(name, "it does not name its optimizer");
    if (strcmp(theirs, ours) != 0)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' was saved with --optimizer %.16s, this run has %s; resume with "
                       "--optimizer %.16s",
                       name, theirs, ours, theirs);
    return ZR_OK;
}

/* What of a shape is no size. */
static zr_result check_architecture(const struct zr_shape *shape, json_t *object, const char *name)
{
    const char *arch = json_string_value(json_object_get(object, "arch")),
               *ours = zr_architecture_name(shape->architecture);
    json_t *theta = json_object_get(object, "rope_theta"), *tied = json_object_get(object, "tied");

    if (!arch || !json_is_number(theta) || !json_is_boolean(tied))
        return damaged(name, "its shape is incomplete");
    if (strcmp(arch, ours) != 0)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is a checkpoint of another model: it was saved with --arch %.16s, this run has "
                       "%s; resume with --arch %.16s",
                       name, arch, ours, arch);
    if (json_number_value(theta) != shape->rope_theta)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' was saved with --rope-theta %.17g, this run has %.17g; resume with that", name,
                       json_number_value(theta), shape->rope_theta);
    if (json_is_true(tied) != shape->tied)
        return zr_fail(ZR_ERR_FORMAT, "'%s' was saved %s --tie-embeddings; resume %s it", name,
                       json_is_true(tied) ? "with" : "without", json_is_true(tied) ? "with" : "without");
    return ZR_OK;
}

static zr_result check_shape(const struct load *load, json_t *root, const char *name)
{
    struct zr_shape complete = load->checkpoint->shape, *shape = &complete;
    zr_shape_complete(shape);
    const struct {
        const char *key, *option;
        uint64_t ours;
    } wanted[] = {
        {"layers", "--layers", shape->layers},
        {"hidden", "--hidden", shape->hidden},
        {"heads", "--heads", shape->heads},
        {"vocabulary", "--vocab", shape->vocabulary},
        {"sequence", "--seq", shape->sequence},
        {"vocabulary_padded", "--vocab", shape->vocabulary_padded},
        {"kv_heads", "--kv-heads", shape->kv_heads},
        {"ffn", "--ffn", shape->ffn},
    };
    json_t *object = json_object_get(root, "shape");
    uint64_t theirs;
    zr_result result = check_architecture(shape, object, name);
    if (result)
        return result;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (!get_whole(object, wanted[i].key, &theirs))
            return damaged(name, "its shape is incomplete");
        if (theirs != wanted[i].ours)
            return zr_fail(ZR_ERR_FORMAT,
                           "'%s' is a checkpoint of another model: it was saved with %s %" PRIu64
                           ", this run has %" PRIu64 "; resume with %s %" PRIu64,
                           name, wanted[i].option, theirs, wanted[i].ours, wanted[i].option, theirs);
    }
    if (!get_whole(root, "seed", &theirs))
        return damaged(name, "it has no seed");
    if (theirs != load->checkpoint->seed)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' was saved with --seed %" PRIu64 ", this run has %" PRIu64
                       ": the data would come in another order; resume with --seed %" PRIu64,
                       name, theirs, load->checkpoint->seed, theirs);
    if (!get_whole(root, "parameters", &theirs) || theirs != zr_engine_elements(load->checkpoint->engine))
        return damaged(name, "it counts other parameters than its shape has");
    return check_optimizer(load, root, name);
}

static bool read_shard_entry(json_t *entry, struct shard *out)
{
    const char *file = json_string_value(json_object_get(entry, "file"));
    const char *sum = json_string_value(json_object_get(entry, "crc64"));
    char *end;

    /* A name alone: nothing outside the folder is ever opened. */
    if (!file || strlen(file) >= sizeof out->file || strlen(file) == 0 || strchr(file, '/') || file[0] == '.')
        return false;
    if (!sum || strlen(sum) != 16 || strspn(sum, "0123456789abcdef") != 16)
        return false;
    memcpy(out->file, file, strlen(file) + 1);
    out->crc64 = strtoull(sum, &end, 16);
    return get_whole(entry, "bytes", &out->bytes) && get_whole(entry, "elements", &out->elements);
}

static zr_result read_shards(struct load *load, json_t *root, const char *name)
{
    json_t *list = json_object_get(root, "shards");
    uint64_t world, elements = 0;

    if (!json_is_array(list) || !get_whole(root, "world_size", &world) || json_array_size(list) != world ||
        world == 0)
        return damaged(name, "its list of shards does not have one for each rank");
    load->shards = zr_heap_zalloc(world, sizeof *load->shards);
    if (!load->shards)
        return ZR_ERR_HOST_MEMORY;
    load->shards_count = world;
    for (size_t i = 0; i < world; i++) {
        struct shard *shard = &load->shards[i];
        if (!read_shard_entry(json_array_get(list, i), shard) ||
            __builtin_add_overflow(elements, shard->elements, &elements))
            return damaged(name, "an entry of its list of shards is incomplete");
    }
    if (elements != zr_engine_elements(load->checkpoint->engine))
        return damaged(name, "its shards do not add up to the model");
    return ZR_OK;
}

static zr_result read_whole(const struct zr_file *file, uint64_t bytes, char **out)
{
    *out = zr_heap_alloc(bytes + 1);
    if (!*out)
        return ZR_ERR_HOST_MEMORY;
    zr_result result = zr_file_read_at(file, 0, *out, bytes);
    if (result) {
        zr_heap_free(*out);
        *out = NULL;
    }
    return result;
}

/* What does not have to be the same. */
static void read_origin(struct zr_checkpoint_origin *origin, json_t *root)
{
    if (origin && (!get_whole(root, "accumulate", &origin->micro_batches) ||
                   !get_whole(root, "step_tokens", &origin->step_tokens)))
        origin->micro_batches = origin->step_tokens = 0;
}

static bool get_small(json_t *object, const char *key, unsigned *out)
{
    uint64_t whole;
    bool good = get_whole(object, key, &whole) && whole <= UINT32_MAX;
    *out = good ? (unsigned)whole : 0;
    return good;
}

/* Updates and the loss scale; a run without skipped steps may have saved neither. */
static zr_result read_scaling(struct load *load, json_t *root, const char *name)
{
    json_t *object = json_object_get(root, "loss_scale");
    struct zr_loss_scale *scaling = &load->scaling;

    load->updates = load->step;
    if (json_object_get(root, "updates") &&
        (!get_whole(root, "updates", &load->updates) || load->updates > load->step))
        return damaged(name, "it has more updates than steps");
    if (!object)
        return ZR_OK;
    scaling->scale = (float)json_number_value(json_object_get(object, "scale"));
    if (!(scaling->scale > 0) || !get_small(object, "good_steps", &scaling->good_steps) ||
        !get_small(object, "hysteresis_left", &scaling->hysteresis_left) ||
        !get_small(object, "skipped_in_row", &scaling->skipped_in_row) ||
        !get_whole(object, "skipped_steps", &scaling->skipped_steps))
        return damaged(name, "its loss scale is incomplete");
    return ZR_OK;
}

static zr_result check_manifest(struct load *load, json_t *root, const char *name)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    uint64_t version;

    if (!format || strcmp(format, ZR_CHECKPOINT_FORMAT) != 0 || !get_whole(root, "version", &version))
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is no manifest of a zr checkpoint; give the folder that --save wrote", name);
    if (version != ZR_CHECKPOINT_VERSION)
        return zr_fail(ZR_ERR_FORMAT, "'%s' is of version %" PRIu64 "; this zr-train reads version %d", name,
                       version, ZR_CHECKPOINT_VERSION);
    if (!get_whole(root, "step", &load->step))
        return damaged(name, "it has no step");
    const char *dtype = json_string_value(json_object_get(root, "dtype"));
    if (dtype && strcmp(dtype, "F32") != 0)
        return zr_fail(ZR_ERR_FORMAT, "'%s' has tensors of %.16s; this zr-train reads F32", name, dtype);
    read_origin(load->checkpoint->origin, root);
    zr_result result = read_scaling(load, root, name);
    if (!result)
        result = check_shape(load, root, name);
    return result ? result : read_shards(load, root, name);
}

/* Looks at the checksum before any word is believed. */
static zr_result check_manifest_sum(const char *text, size_t bytes, const char *name)
{
    static const char key[] = ZR_CHECKPOINT_SUM_KEY;
    size_t tail = sizeof key - 1 + 16 + 3, start; /* the key, 16 digits, "}\n */
    char want[32];

    if (bytes <= tail || memcmp(text + (start = bytes - tail), key, sizeof key - 1) != 0)
        return damaged(name, "it does not end with its checksum");
    snprintf(want, sizeof want, "%016" PRIx64 "\"}\n", zr_crc64(0, text, start));
    return memcmp(text + start + sizeof key - 1, want, 19) == 0
               ? ZR_OK
               : zr_fail(ZR_ERR_CORRUPT,
                         "'%s' is damaged: it does not fit its checksum; resume from another step", name);
}

static zr_result read_manifest(struct load *load)
{
    char path[ZR_CHECKPOINT_PATH_ROOM], *text = NULL;
    struct zr_file file = {.fd = -1};
    json_t *root = NULL;
    uint64_t bytes = 0;
    zr_result result = shard_path(load, "manifest.json", path);

    if (!result)
        result = zr_file_open_regular(&file, path);
    if (!result)
        result = zr_file_size(&file, &bytes);
    if (!result && (bytes == 0 || bytes > MANIFEST_MAX))
        result = damaged(path, "its size cannot be right");
    if (!result)
        result = read_whole(&file, bytes, &text);
    if (!result)
        result = check_manifest_sum(text, bytes, path);
    if (result)
        goto unwind;
    root = parse(text, bytes, path);
    result = root ? check_manifest(load, root, path) : ZR_ERR_FORMAT;
unwind:
    json_decref(root);
    zr_heap_free(text);
    zr_file_close(&file);
    return result;
}

/* ---- The shards' headers ------------------------------------------------------------------------------- */

static zr_result add_range(struct load *load, const struct range *range)
{
    if (load->ranges_count == load->ranges_room) {
        size_t room = load->ranges_room ? 2 * load->ranges_room : 256;
        struct range *more = zr_heap_realloc(load->ranges, room * sizeof *more);
        if (!more)
            return ZR_ERR_HOST_MEMORY;
        load->ranges = more;
        load->ranges_room = room;
    }
    load->ranges[load->ranges_count++] = *range;
    return ZR_OK;
}

static bool read_number(const char **at, uint64_t *out)
{
    const char *start = *at;
    *out = 0;
    for (; **at >= '0' && **at <= '9'; ++*at)
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, (uint64_t)(**at - '0'), out))
            return false;
    return *at > start;
}

/* Reads "0+128 512+64". */
static zr_result read_ranges(struct load *load, unsigned index, const char *text, const char *name)
{
    uint64_t limit = zr_engine_elements(load->checkpoint->engine), place = 0, end;

    for (const char *at = text; *at;) {
        struct range range = {.place = place, .shard = index};
        if (!read_number(&at, &range.first) || *at++ != '+' || !read_number(&at, &range.count) ||
            range.count == 0 || __builtin_add_overflow(range.first, range.count, &end) || end > limit)
            return damaged(name, "its list of ranges makes no sense");
        place += range.count; /* at most `limit` each, and as many as the text has: no overflow */
        zr_result result = add_range(load, &range);
        if (result)
            return result;
        if (*at == ' ')
            at++;
        else if (*at)
            return damaged(name, "its list of ranges makes no sense");
    }
    return place == load->shards[index].elements ? ZR_OK : damaged(name, "its ranges do not add up");
}

static zr_result check_tensors(const struct load *load, const struct shard *shard,
                               const struct zr_safetensors *file)
{
    unsigned count = (unsigned)zr_checkpoint_tensors_count(load->checkpoint->engine);
    uint64_t data_bytes = file->bytes - file->data_bytes, each = data_bytes / count;

    if (data_bytes % (count * sizeof(float)) != 0 || each / sizeof(float) != shard->elements)
        return damaged(file->path, "its size and the number of its elements disagree");
    for (unsigned t = 0; t < count; t++) {
        const char *name = zr_checkpoint_tensors[t];
        struct zr_safetensors_tensor tensor;
        zr_result result = zr_safetensors_describe(file, name, json_object_get(file->root, name), &tensor);
        if (result)
            return result;
        if (tensor.kind != ZR_SAFETENSORS_F32 || tensor.dimensions != 1 ||
            tensor.elements != shard->elements || tensor.at_bytes != file->data_bytes + t * each)
            return damaged(file->path, "its header describes other tensors");
    }
    return ZR_OK;
}

static zr_result read_shard_header(struct load *load, unsigned index)
{
    struct shard *shard = &load->shards[index];
    struct zr_safetensors file;
    char path[ZR_CHECKPOINT_PATH_ROOM];
    zr_result result = shard_path(load, shard->file, path);

    if (!result)
        result = zr_safetensors_open(&file, path);
    if (result)
        return result;
    shard->data_bytes = file.data_bytes;
    result =
        file.bytes == shard->bytes ? check_tensors(load, shard, &file) : other_size(shard, path, file.bytes);
    if (!result) {
        json_t *ranges = json_object_get(json_object_get(file.root, "__metadata__"), "ranges");
        result = json_is_string(ranges) ? read_ranges(load, index, json_string_value(ranges), path)
                                        : damaged(path, "it does not say which elements it holds");
    }
    zr_safetensors_close(&file);
    return result;
}

static bool before(const void *a, const void *b)
{
    const struct range *one = a, *other = b;
    return one->first < other->first;
}

/* After this each element of the model has exactly one place in the files. */
static zr_result read_headers(struct load *load)
{
    uint64_t next = 0;
    for (unsigned i = 0; i < load->shards_count; i++) {
        zr_result result = read_shard_header(load, i);
        if (result)
            return result;
    }
    zr_sort_in_place(
        &(struct zr_sort_records){load->ranges, load->ranges_count, sizeof *load->ranges, before});
    for (size_t i = 0; i < load->ranges_count; i++) {
        if (load->ranges[i].first != next)
            return damaged(load->folder, "its shards overlap or leave a gap");
        next += load->ranges[i].count;
    }
    return next == zr_engine_elements(load->checkpoint->engine)
               ? ZR_OK
               : damaged(load->folder, "its shards are incomplete");
}

/* ---- The data ------------------------------------------------------------------------------------------ */

static zr_result verify_shard(const struct load *load, const struct shard *shard)
{
    struct zr_file file;
    uint64_t sum = 0;
    zr_result result = open_shard(load, shard, &file);

    for (uint64_t done = 0; !result && done < shard->bytes;) {
        uint64_t left = shard->bytes - done;
        size_t bytes = left < ZR_CHECKPOINT_PIECE ? (size_t)left : ZR_CHECKPOINT_PIECE;
        result = zr_file_read_at(&file, done, load->piece, bytes);
        if (!result)
            sum = zr_crc64(sum, load->piece, bytes);
        done += bytes;
    }
    zr_file_close(&file);
    if (!result && sum != shard->crc64)
        result = zr_fail(ZR_ERR_CORRUPT,
                         "'%s' is damaged: its checksum is %016" PRIx64 ", its manifest says %016" PRIx64
                         "; resume from another step",
                         file.name, sum, shard->crc64);
    return result;
}

/* The ranks share the work: each sums every world-th shard. */
static zr_result verify_shards(struct load *load)
{
    zr_comm *comm = load->checkpoint->comm;
    load->piece = zr_heap_alloc(ZR_CHECKPOINT_PIECE);
    if (!load->piece)
        return ZR_ERR_HOST_MEMORY;
    for (size_t i = zr_comm_rank(comm); i < load->shards_count; i += zr_comm_world(comm)) {
        zr_result result = verify_shard(load, &load->shards[i]);
        if (result)
            return result;
    }
    return ZR_OK;
}

/* One shard is open at a time, however many there are. */
struct reader {
    struct zr_file file;
    unsigned shard;
};

static zr_result read_range(const struct load *load, struct reader *reader, const struct range *range,
                            const struct zr_shard_segment *into)
{
    const struct shard *shard = &load->shards[range->shard];
    zr_result result = ZR_OK;

    if (reader->file.fd < 0 || reader->shard != range->shard) {
        zr_file_close(&reader->file);
        result = open_shard(load, shard, &reader->file);
        reader->shard = range->shard;
    }
    unsigned count = (unsigned)zr_checkpoint_tensors_count(load->checkpoint->engine);
    for (unsigned t = 0; t < count && !result; t++) {
        uint64_t element = t * shard->elements + range->place + (into->global_index - range->first);
        result = zr_file_read_at(&reader->file, shard->data_bytes + sizeof(float) * element,
                                 zr_checkpoint_tensor(into, (int)t), into->count * sizeof(float));
    }
    return result;
}

/* The first range that ends after element `index`; ranges are in order and without gaps. */
static size_t find_range(const struct load *load, uint64_t index)
{
    size_t low = 0, high = load->ranges_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (load->ranges[middle].first + load->ranges[middle].count <= index)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static zr_result read_segments(const struct load *load)
{
    const zr_engine *engine = load->checkpoint->engine;
    struct reader reader = {.file = {.fd = -1}};
    struct zr_shard_segment segment;
    zr_result result = ZR_OK;

    for (size_t i = 0; i < zr_engine_segments_count(engine) && !result; i++) {
        zr_engine_segment(engine, i, &segment);
        size_t at = segment.count ? find_range(load, segment.global_index) : 0;
        while (segment.count > 0 && !result) {
            const struct range *range = &load->ranges[at++];
            uint64_t left = range->first + range->count - segment.global_index;
            struct zr_shard_segment part = segment;
            part.count = left < segment.count ? (size_t)left : segment.count;
            result = read_range(load, &reader, range, &part);
            segment.global_index += part.count;
            segment.count -= part.count;
            segment.parameter += part.count;
            segment.momentum += part.count;
            segment.variance += segment.variance ? part.count : 0;
        }
    }
    zr_file_close(&reader.file);
    return result;
}

/* Of an fp16 run; another precision has no use for it. */
static zr_result take_scaling(const struct load *load)
{
    if (!(load->scaling.scale > 0) ||
        zr_engine_set_scaling(load->checkpoint->engine, &load->scaling) == ZR_OK)
        return ZR_OK;
    return zr_fail(ZR_ERR_FORMAT, "'%s': the manifest is damaged: %s; resume from another step", load->folder,
                   zr_last_error());
}

zr_result zr_checkpoint_resume(const struct zr_checkpoint *checkpoint, uint64_t *step)
{
    struct load load = {.checkpoint = checkpoint};
    enum zr_path_kind kind;

    *step = 0;
    if (zr_path_kind_get(checkpoint->folder, &kind) == ZR_OK && kind == ZR_PATH_FILE)
        return zr_model_import(&(struct zr_model_file){.path = checkpoint->folder,
                                                       .engine = checkpoint->engine,
                                                       .comm = checkpoint->comm,
                                                       .shape = checkpoint->shape});
    zr_result result = zr_engine_synchronize(checkpoint->engine);
    json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
    if (!result)
        result = find_checkpoint(&load);
    if (!result)
        result = read_manifest(&load);
    if (!result)
        result = verify_shards(&load);
    /* A shard's header is believed, and the engine written to, when some rank has found every file good. */
    result = zr_comm_all_status(checkpoint->comm, result);
    if (result)
        goto unwind;
    result = zr_comm_all_status(checkpoint->comm, read_headers(&load));
    if (result)
        goto unwind;
    result = zr_comm_all_status(checkpoint->comm, take_scaling(&load));
    if (result)
        goto unwind;
    result = zr_comm_all_status(checkpoint->comm, read_segments(&load));
    if (!result)
        result = zr_engine_publish(checkpoint->engine, load.updates);
    if (!result)
        *step = load.step;
    if (!result && checkpoint->origin)
        checkpoint->origin->passed_over = load.passed_over;
unwind:
    zr_heap_free(load.piece);
    zr_heap_free(load.ranges);
    zr_heap_free(load.shards);
    return result;
}
