/* checkpoint_load.c: finds a checkpoint and reads it into an engine of any world size and stage. The
 * manifest is untrusted until checked. Uses checkpoint.c; jansson parses the JSON into zr_heap memory. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/engine/meter.h"
#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/engine/engine.h"
#include "zero/engine/warmup.h"
#include "zero/checkpoint/model_file.h"

#define MANIFEST_MAX ((uint64_t)64 << 10) /* jansson takes up to a hundred times as much */

struct load {
    const struct zr_checkpoint *checkpoint;
    char folder[ZR_CHECKPOINT_PATH_ROOM]; /* folder of the step */
    bool is_aside;                        /* `folder` is a step that was set aside */
    uint64_t step;
    unsigned group; /* of the checkpoint, whose state this rank reads */
    uint64_t state_checksum;
    uint64_t full_since[ZR_COMPRESSED_KINDS];
    struct zr_warmup warmup;
    bool has_errors;      /* the step has errors.NNNNN */
    uint64_t passed_over; /* a newer step without a manifest; 0: none */
};

/* ---- Finding a checkpoint ------------------------------------------------------------------------------ */

bool zr_checkpoint_is_complete(const char *folder)
{
    char path[ZR_CHECKPOINT_PATH_ROOM];
    enum zr_path_kind kind;
    return zr_path_join(path, sizeof path, &(struct zr_path_parts){folder, "manifest.json"}) == ZR_OK &&
           zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_FILE;
}

/* Whether an entry is a newer step than the one found, and its number. A step that was set aside counts if
 * a save died before the new step had its name. */
static bool is_newer(const struct load *load, bool found, const char *name, bool *aside, uint64_t *step)
{
    *aside = zr_checkpoint_read_step_name(name, ZR_CHECKPOINT_REPLACED, step);
    if (!*aside && !zr_checkpoint_read_step_name(name, ZR_CHECKPOINT_STEP, step))
        return false;
    return !found || *step > load->step || (*step == load->step && load->is_aside && !*aside);
}

/* The newest step folder with a manifest. */
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

static bool ends_with(const char *name, const char *tail)
{
    size_t length = strlen(name), tail_length = strlen(tail);
    return length > tail_length && strcmp(name + length - tail_length, tail) == 0;
}

/* Message for a folder without steps: names a safetensors model in it, or a model in another format. */
static zr_result fail_no_checkpoint(const char *folder)
{
    char name[256] = "", other[256] = "";
    struct zr_folder listing;
    struct zr_folder_entry entry;
    size_t count = 0;
    zr_result result = zr_folder_open(&listing, folder);

    if (result)
        return result;
    while ((result = zr_folder_next(&listing, &entry)) == ZR_OK && entry.name) {
        if (ends_with(entry.name, ".bin") || ends_with(entry.name, ".pth") || ends_with(entry.name, ".gguf"))
            snprintf(other, sizeof other, "%s", entry.name);
        if (!ends_with(entry.name, ".safetensors"))
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
            "--resume '%s': has no checkpoint, but %zu safetensors files; if they are the parts of one "
            "model, give its index: --resume '%s/model.safetensors.index.json'",
            folder, count, folder);
    if (count == 1)
        return zr_fail(
            ZR_ERR_FORMAT,
            "--resume '%s': has no checkpoint; to start from the model in it, give --resume '%s/%s'", folder,
            folder, name);
    if (other[0])
        return zr_fail(
            ZR_ERR_FORMAT,
            "--resume '%s': has neither a checkpoint nor a safetensors file; '%s' is a model in another "
            "format: load it in transformers and save it with model.save_pretrained(DIR, "
            "safe_serialization=True)",
            folder, other);
    return zr_fail(
        ZR_ERR_FORMAT,
        "--resume '%s': has no complete checkpoint (step-... with a manifest.json); give the folder "
        "of --save",
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
        return zr_fail(ZR_ERR_FORMAT, "--resume '%s': %s; give the folder of --save", folder,
                       kind == ZR_PATH_NONE ? "does not exist" : "is not a folder");
    if (strlen(folder) >= sizeof load->folder)
        return zr_fail(ZR_ERR_INVALID, "--resume: the path is too long");
    if (zr_checkpoint_is_complete(folder)) {
        memcpy(load->folder, folder, strlen(folder) + 1);
        return ZR_OK;
    }
    result = find_newest(load, &found);
    return result || found ? result : fail_no_checkpoint(folder);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

/* Reads a whole number from 0 to INT64_MAX. */
static bool get_whole(json_t *object, const char *key, uint64_t *out)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* Reads a checksum of 16 hexadecimal digits. */
static bool read_checksum(json_t *value, uint64_t *out)
{
    const char *sum = json_string_value(value);
    if (!sum || strlen(sum) != 16 || strspn(sum, "0123456789abcdef") != 16)
        return false;
    *out = strtoull(sum, NULL, 16);
    return true;
}

static bool get_checksum(json_t *object, const char *key, uint64_t *out)
{
    return read_checksum(json_object_get(object, key), out);
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

/* Checks the optimizer. The state of another optimizer cannot be used. */
static zr_result check_optimizer(const struct load *load, json_t *root, const char *name)
{
    const char *ours = load->checkpoint->engine->optimizer->name;
    const char *theirs = json_string_value(json_object_get(root, "optimizer"));

    if (!theirs)
        return damaged(name, "it does not name its optimizer");
    if (strcmp(theirs, ours) != 0)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' was saved with --optimizer %.16s, but this run has %s; resume with --optimizer %.16s", name,
            theirs, ours, theirs);
    const bool anchor = load->checkpoint->groups > 1;
    if ((json_object_get(root, ZR_CHECKPOINT_GROUPS) != NULL) != anchor)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' was saved %s --outer; resume %s it, or export the model and resume the file",
                       name, anchor ? "without" : "with", anchor ? "without" : "with");
    bool average = load->checkpoint->engine->optimizer->kept_count == ZR_KEEPS_AVERAGE;
    if (json_is_true(json_object_get(root, "average")) != average)
        return zr_fail(ZR_ERR_FORMAT, "'%s' was saved %s --ema; resume %s it", name,
                       average ? "without" : "with", average ? "without" : "with");
    return ZR_OK;
}

/* Compares the properties of a shape that are not sizes. */
static zr_result check_architecture(const struct zr_shape *shape, json_t *object, const char *name)
{
    const char *arch = json_string_value(json_object_get(object, "arch")),
               *ours = zr_architecture_name(shape->architecture);
    json_t *tied = json_object_get(object, "tied");
    const struct {
        const char *key, *option;
        double ours;
    } reals[] = {{"rope_theta", "--rope-theta", shape->rope_theta},
                 {"norm_epsilon",
                  shape->architecture == ZR_ARCH_GPT2 ? "a --model of layer_norm_epsilon" : "--norm-epsilon",
                  shape->norm_epsilon}};

    if (!arch || !json_is_boolean(tied))
        return damaged(name, "its shape is incomplete");
    if (strcmp(arch, ours) != 0)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is a checkpoint of another model: it was saved with --arch %.16s, but this run has %s; "
            "resume with --arch %.16s",
            name, arch, ours, arch);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        json_t *theirs = json_object_get(object, reals[i].key);
        if (!json_is_number(theirs))
            return damaged(name, "its shape is incomplete");
        if (json_number_value(theirs) != reals[i].ours)
            return zr_fail(ZR_ERR_FORMAT,
                           "'%s' was saved with %s %g, but this run has %g; resume with %s %.15g", name,
                           reals[i].option, json_number_value(theirs), reals[i].ours, reals[i].option,
                           json_number_value(theirs));
    }
    char kind[ZR_VARIANT_ROOM];
    const char *variant = json_string_value(json_object_get(object, ZR_MODEL_VARIANT));
    zr_variant_print(&shape->variant, kind);
    if (strcmp(variant ? variant : "", kind) != 0)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' was saved with another --model: it has %.200s, but this run has %.200s; resume with "
            "the same --model",
            name, variant && variant[0] ? variant : "none of its differences",
            kind[0] ? kind : "none of its differences");
    if (json_is_true(tied) != shape->tied)
        return zr_fail(ZR_ERR_FORMAT, "'%s' was saved %s --tie-embeddings; resume %s it", name,
                       json_is_true(tied) ? "with" : "without", json_is_true(tied) ? "with" : "without");
    return ZR_OK;
}

/* Compares the adapters, which a shape without them does not have. */
static zr_result check_adapters(const struct zr_shape *shape, json_t *object, const char *name)
{
    const struct zr_lora none = {.rank = 0}, *lora = shape->trainable ? &shape->trainable->lora : &none;
    double rank = json_number_value(json_object_get(object, ZR_CHECKPOINT_LORA)),
           alpha = json_number_value(json_object_get(object, ZR_CHECKPOINT_LORA_ALPHA));
    if (rank == lora->rank && (rank == 0 || alpha == (double)lora->alpha))
        return ZR_OK;
    if (rank == 0)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' was saved without --lora; resume without it, or export the model and resume the file",
            name);
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' was saved with --lora %g and --lora-alpha %g; resume with them and the same pattern",
                   name, rank, alpha);
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
                           ", but this run has %" PRIu64 "; resume with %s %" PRIu64,
                           name, wanted[i].option, theirs, wanted[i].ours, wanted[i].option, theirs);
    }
    result = check_adapters(shape, object, name);
    if (result)
        return result;
    if (!get_whole(root, "seed", &theirs))
        return damaged(name, "it has no seed");
    if (theirs != load->checkpoint->seed && !load->checkpoint->any_seed)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' was saved with --seed %" PRIu64 ", but this run has %" PRIu64
                       ", which changes the order of the data; resume with --seed %" PRIu64,
                       name, theirs, load->checkpoint->seed, theirs);
    bool counts =
        get_whole(root, "parameters", &theirs) && theirs == zr_engine_elements(load->checkpoint->engine);
    if (!counts && shape->trainable && shape->trainable->lora.rank > 0)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' was saved with adapters of other matrices; resume with the same pattern of --lora", name);
    if (!counts)
        return damaged(name, "its number of parameters does not match its shape");
    return check_optimizer(load, root, name);
}

/* Reads the required checksum of the state that this rank's group continues with. */
static zr_result read_state_entry(struct load *load, json_t *root, const char *name)
{
    json_t *others = json_object_get(root, ZR_CHECKPOINT_GROUPS);
    load->group = load->checkpoint->group % (1 + (unsigned)json_array_size(others));
    if (load->checkpoint->origin)
        load->checkpoint->origin->groups = json_is_array(others) ? 1 + (unsigned)json_array_size(others) : 0;
    if (load->group > 0)
        return read_checksum(json_array_get(others, load->group - 1), &load->state_checksum)
                   ? ZR_OK
                   : damaged(name, "it has no checksum of a group's state");
    return get_checksum(json_object_get(root, "state"), "checksum", &load->state_checksum)
               ? ZR_OK
               : damaged(name, "it has no checksum of the state");
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

/* Reads the course. The data order is required; all other settings are for messages. */
static zr_result read_course(struct zr_checkpoint_course *course, json_t *root, const char *name)
{
    json_t *object = json_object_get(root, "course"), *rate = json_object_get(object, "rate"),
           *min_rate = json_object_get(object, "min_rate");
    const char *schedule = json_string_value(json_object_get(object, "schedule")),
               *products = json_string_value(json_object_get(object, "products"));

    course->data_order = 1;
    if (json_object_get(root, "data_order") && !get_whole(root, "data_order", &course->data_order))
        return damaged(name, "its data order is not a number");
    if (!object)
        return ZR_OK;
    if (!get_whole(object, "steps", &course->steps) || !get_whole(object, "warmup", &course->warmup) ||
        !get_whole(object, "data_tokens", &course->data_tokens) ||
        !get_checksum(object, "data_checksum", &course->data_checksum) || !json_is_number(rate) ||
        !json_is_number(min_rate) || !schedule || strlen(schedule) >= sizeof course->schedule)
        return damaged(name, "its course is incomplete");
    if (course->data_order > 2 && (!get_whole(object, "data_rows", &course->data_rows) ||
                                   !get_whole(object, "data_sequence", &course->data_sequence)))
        return damaged(name, "its epochs have no place");
    if (products && strlen(products) < sizeof course->products)
        memcpy(course->products, products, strlen(products) + 1);
    memcpy(course->schedule, schedule, strlen(schedule) + 1);
    course->rate = json_number_value(rate);
    course->min_rate = json_number_value(min_rate);
    course->decay_share = json_number_value(json_object_get(object, "decay_share"));
    course->dropout = json_number_value(json_object_get(object, "dropout"));
    course->attention_dropout = json_number_value(json_object_get(object, "attention_dropout"));
    return ZR_OK;
}

/* Reads settings that may differ. */
static zr_result read_origin(struct zr_checkpoint_origin *origin, json_t *root, const char *name)
{
    if (!origin)
        return ZR_OK;
    if (!get_whole(root, "accumulate", &origin->micro_batches) ||
        !get_whole(root, "step_tokens", &origin->step_tokens))
        origin->micro_batches = origin->step_tokens = 0;
    return read_course(&origin->course, root, name);
}

void zr_checkpoint_kind_name(char out[ZR_CHECKPOINT_KIND_ROOM], const zr_engine *engine, unsigned kind)
{
    enum zr_compression_method method = engine->options.compression.kinds[kind].method;
    const char *name = zr_compressed_kind_name((enum zr_compressed_kind)kind);
    if (method == ZR_METHOD_PACKED)
        snprintf(out, ZR_CHECKPOINT_KIND_ROOM, "%s:%s%s:%s", name,
                 engine->options.compression.kinds[kind].differences ? "difference:" : "",
                 zr_packing_name(engine->options.compression.kinds[kind].packing),
                 zr_packing_name(engine->options.compression.kinds[kind].between));
    else
        snprintf(out, ZR_CHECKPOINT_KIND_ROOM, "%s:%u:%g", name, (unsigned)method,
                 (double)engine->options.compression.kinds[kind].parameter);
}

/* A kind whose error was too large stays in full precision, unless this run packs it otherwise. */
static void read_ended_kinds(struct load *load, json_t *root)
{
    json_t *ended = json_object_get(root, ZR_CHECKPOINT_FULL_PRECISION);
    char name[ZR_CHECKPOINT_KIND_ROOM];
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++) {
        zr_checkpoint_kind_name(name, load->checkpoint->engine, kind);
        if (!get_whole(ended, name, &load->full_since[kind]))
            load->full_since[kind] = 0;
    }
}

/* A run that compresses gradients otherwise has a warm-up of its own. */
static void read_warmup(struct load *load, json_t *root)
{
    json_t *entry = json_object_get(root, ZR_CHECKPOINT_WARMUP), *method = json_object_get(entry, "method"),
           *sums = json_object_get(entry, "sums");
    char name[ZR_CHECKPOINT_KIND_ROOM];
    zr_checkpoint_kind_name(name, load->checkpoint->engine, ZR_COMPRESSED_GRADIENTS);
    load->warmup = (struct zr_warmup){.ended = false};
    if (!json_is_string(method) || strcmp(json_string_value(method), name) != 0 ||
        !get_whole(entry, "steps", &load->warmup.steps))
        return;
    load->warmup.ended = json_is_true(json_object_get(entry, "ended"));
    load->warmup.ratio = json_number_value(json_object_get(entry, "ratio"));
    for (size_t i = 0; i < ZR_WARMUP_SUMS; i++) {
        json_t *pair = json_array_get(sums, i);
        load->warmup.sums[i].steps = (uint64_t)json_integer_value(json_array_get(pair, 0));
        load->warmup.sums[i].sum = json_number_value(json_array_get(pair, 1));
    }
}

static zr_result check_manifest(struct load *load, json_t *root, const char *name)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    uint64_t version;

    if (!format || strcmp(format, ZR_CHECKPOINT_FORMAT) != 0 || !get_whole(root, "version", &version))
        return zr_fail(ZR_ERR_FORMAT, "'%s' is not a manifest of a zr checkpoint; give the folder of --save",
                       name);
    if (version != ZR_CHECKPOINT_VERSION)
        return zr_fail(ZR_ERR_FORMAT, "'%s' has version %" PRIu64 ", but this zr-train reads version %d",
                       name, version, ZR_CHECKPOINT_VERSION);
    if (!get_whole(root, "step", &load->step))
        return damaged(name, "it has no step");
    zr_result result = read_origin(load->checkpoint->origin, root, name);
    if (!result)
        result = check_shape(load, root, name);
    read_ended_kinds(load, root);
    read_warmup(load, root);
    load->has_errors = json_is_true(json_object_get(root, ZR_CHECKPOINT_ERRORS));
    return result ? result : read_state_entry(load, root, name);
}

/* Checks the checksum before using any other value. */
static zr_result check_manifest_sum(const char *text, size_t bytes, const char *name)
{
    static const char key[] = ZR_CHECKPOINT_SUM_KEY;
    size_t tail = sizeof key - 1 + 16 + 3, start; /* the key, 16 digits and the end */
    char want[32];

    if (bytes <= tail || memcmp(text + (start = bytes - tail), key, sizeof key - 1) != 0)
        return damaged(name, "it does not end with its checksum");
    snprintf(want, sizeof want, "%016" PRIx64 "\"}\n", zr_checkpoint_text_sum(text, start));
    return memcmp(text + start + sizeof key - 1, want, 19) == 0
               ? ZR_OK
               : zr_fail(ZR_ERR_CORRUPT,
                         "'%s' is damaged: its checksum does not match; resume from another step", name);
}

static zr_result read_manifest(struct load *load)
{
    char path[ZR_CHECKPOINT_PATH_ROOM], *text = NULL;
    struct zr_file file = {.fd = -1};
    json_t *root = NULL;
    uint64_t bytes = 0;
    zr_result result =
        zr_path_join(path, sizeof path, &(struct zr_path_parts){load->folder, "manifest.json"});

    if (!result)
        result = zr_file_open_regular(&file, path);
    if (!result)
        result = zr_file_size(&file, &bytes);
    if (!result && (bytes == 0 || bytes > MANIFEST_MAX))
        result = damaged(path, "its size is invalid");
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

/* ---- Loading ------------------------------------------------------------------------------------------- */

static zr_result read_state(const struct load *load)
{
    static const char remedy[] = "resume from another step";
    char path[ZR_CHECKPOINT_PATH_ROOM], name[ZR_CHECKPOINT_STATE_ROOM];
    enum zr_path_kind kind = ZR_PATH_NONE;
    zr_checkpoint_state_name(name, load->group);
    zr_result result = zr_path_join(path, sizeof path, &(struct zr_path_parts){load->folder, name});

    if (!result)
        result = zr_path_kind_get(path, &kind);
    if (!result && kind == ZR_PATH_NONE)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' is missing beside its manifest; %s", path, remedy);
    struct zr_whole whole = {.given = NULL};
    const struct zr_checkpoint *checkpoint = load->checkpoint;
    if (!result)
        result =
            zr_whole_open(&whole, checkpoint->engine, &checkpoint->shape, zr_checkpoint_group(checkpoint));
    result = zr_comm_all_status(checkpoint->comm, result);
    zr_meter_resume(checkpoint->engine, load->full_since); /* before parameters are gathered */
    zr_warmup_resume(checkpoint->engine, &load->warmup);
    if (!result)
        result = zr_state_read(
            checkpoint->engine,
            &(struct zr_state_source){
                .path = path, .remedy = remedy, .checksum = &load->state_checksum, .parts = whole.given});
    zr_whole_close(&whole);
    if (checkpoint->groups > 1) /* groups read files of their own */
        result = zr_comm_all_status(checkpoint->comm, result);
    if (!result)
        result = zr_comm_all_status(checkpoint->comm, zr_errors_load(checkpoint->engine, load->folder,
                                                                     load->state_checksum, load->has_errors));
    return result;
}

/* Result of a rank's search under the given path. */
struct finding {
    uint64_t step;
    bool is_file;
};

static void describe_finding(const struct finding *finding, char out[64])
{
    if (finding->is_file)
        snprintf(out, 64, "a file");
    else
        snprintf(out, 64, "step %" PRIu64, finding->step);
}

/* Compares the findings of all ranks before the next exchanges, which depend on them: ranks on machines
 * without a common disk may find different checkpoints. */
static zr_result agree_on_finding(const struct zr_checkpoint *checkpoint, const struct finding *mine)
{
    struct finding all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(checkpoint->comm, mine, sizeof *mine, all);
    for (unsigned p = 1; p < zr_comm_world(checkpoint->comm) && result == ZR_OK; p++) {
        char words[2][64];
        if (all[p].is_file == all[0].is_file && all[p].step == all[0].step)
            continue;
        describe_finding(&all[0], words[0]);
        describe_finding(&all[p], words[1]);
        result = zr_fail(ZR_ERR_FORMAT,
                         "--resume is %s on rank 0, but %s on rank %u; give all ranks the same checkpoint",
                         words[0], words[1], p);
    }
    return result;
}

zr_result zr_checkpoint_resume(const struct zr_checkpoint *checkpoint, uint64_t *step)
{
    struct load load = {.checkpoint = checkpoint};
    struct finding finding = {0};
    enum zr_path_kind kind;

    *step = 0;
    json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
    finding.is_file = zr_path_kind_get(checkpoint->folder, &kind) == ZR_OK && kind == ZR_PATH_FILE;
    zr_result result = finding.is_file ? ZR_OK : find_checkpoint(&load);
    if (!result && !finding.is_file)
        result = read_manifest(&load);
    result = zr_comm_all_status(checkpoint->comm, result);
    finding.step = load.step;
    if (!result)
        result = agree_on_finding(checkpoint, &finding);
    if (result)
        return result;
    if (finding.is_file) {
        result = zr_model_import(
            &(struct zr_model_file){.path = checkpoint->folder,
                                    .engine = checkpoint->engine,
                                    .comm = zr_checkpoint_group(checkpoint),
                                    .shape = checkpoint->shape,
                                    .assumed = checkpoint->assumed_shape,
                                    .dropout = checkpoint->origin ? &checkpoint->origin->dropout : NULL});
        return checkpoint->groups > 1 ? zr_comm_all_status(checkpoint->comm, result) : result;
    }
    result = read_state(&load);
    if (result)
        return result;
    *step = load.step;
    if (checkpoint->origin)
        checkpoint->origin->passed_over = load.passed_over;
    return ZR_OK;
}
