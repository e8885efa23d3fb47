/* fuzz_model.h: hostile files of a model: safetensors of any origin, a GPT-2 in one file, a checkpoint's
 * folder, an engine's state. What is accepted has to be in the engine, each value once and none from
 * elsewhere; what is refused must leave the engine as it was. Checksums are made good where the input says
 * so, or nothing behind them would ever be reached. */
#ifndef ZR_FUZZ_MODEL_H
#define ZR_FUZZ_MODEL_H

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

#include "tests/support/zero/engine_rig.h"
#include "tests/support/fuzz/fuzz_ground.h"
#include "tests/support/kernels/half.h"
#include "tests/support/shape_list.h"
#include "zero/model/transformer.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/checkpoint/state.h"
#include "zero/checkpoint/model_file.h"
#include "zero/checkpoint/safetensors_read.h"

/* ---- A model of a few elements ------------------------------------------------------------------------- */

static const struct zr_shape fuzz_shape = {
    .layers = 2, .hidden = 2, .heads = 1, .vocabulary = 3, .vocabulary_padded = 4, .sequence = 2, .batch = 1};
enum { FUZZ_PARAMETERS = 28, FUZZ_UNITS = 5, FUZZ_KINDS = 3, FUZZ_ELEMENTS = 164, FUZZ_SEED = 5 };

struct fuzz_engine_options {
    struct zr_local_world *local; /* NULL: a rank alone */
    unsigned rank, stage;
    enum zr_precision precision;
};

static inline zr_result fuzz_engine_open(struct rig *rig, const struct fuzz_engine_options *options)
{
    struct zr_parameter parameters[FUZZ_PARAMETERS];
    struct zr_unit units[FUZZ_UNITS];
    zr_result result = rig_open(rig, &(struct rig_options){.local = options->local,
                                                           .rank = options->rank,
                                                           .isa = ZR_ISA_PLAIN,
                                                           .precision = options->precision,
                                                           .bucket_bytes = 4096,
                                                           .granule_bytes = 65536,
                                                           .reserve_bytes = (size_t)64 << 20,
                                                           .kernels = zr_kernels_cpu(ZR_ISA_PLAIN)});
    shape_describe(&fuzz_shape, parameters, units);
    if (result != ZR_OK)
        return result;
    return zr_engine_create(&rig->engine,
                            &(struct zr_engine_options){.arena = rig->arena,
                                                        .host_arena = rig->arena,
                                                        .kernels = zr_kernels_cpu(ZR_ISA_PLAIN),
                                                        .context = &rig->context,
                                                        .comm = rig->comm,
                                                        .list = {.parameters = parameters,
                                                                 .parameters_count = FUZZ_PARAMETERS,
                                                                 .units = units,
                                                                 .units_count = FUZZ_UNITS},
                                                        .stage = options->stage,
                                                        .precision = options->precision,
                                                        .seed = FUZZ_SEED,
                                                        .optimizer = {.epsilon = 1e-8f}});
}

static inline struct zr_checkpoint fuzz_checkpoint_of(const struct rig *rig, const char *folder)
{
    return (struct zr_checkpoint){.folder = folder,
                                  .engine = rig->engine,
                                  .comm = rig->comm,
                                  .shape = fuzz_shape,
                                  .seed = FUZZ_SEED,
                                  .micro_batches = 1};
}

/* All that the engine of a rank alone holds. */
struct fuzz_values {
    float of[FUZZ_KINDS][FUZZ_ELEMENTS];
    uint64_t steps;
    struct zr_loss_scale scaling;
};

static struct rig fuzz_rig;
static struct fuzz_values fuzz_before;

static inline float *fuzz_kind(const struct zr_shard_segment *segment, unsigned kind)
{
    return kind == 0 ? segment->parameter : kind == 1 ? segment->momentum : segment->variance;
}

static inline void fuzz_get_values(const zr_engine *engine, struct fuzz_values *out)
{
    struct zr_shard_segment segment;
    memset(out, 0, sizeof *out); /* its padding is compared too */
    out->steps = zr_engine_steps_done(engine);
    zr_engine_scaling(engine, &out->scaling);
    for (size_t i = 0; i < zr_engine_segments_count(engine); i++) {
        zr_engine_segment(engine, i, &segment);
        for (unsigned kind = 0; kind < FUZZ_KINDS && segment.count > 0; kind++)
            memcpy(out->of[kind] + segment.global_index, fuzz_kind(&segment, kind),
                   segment.count * sizeof(float));
    }
}

/* Values that tell each element and kind from every other. */
static inline zr_result fuzz_set_values(zr_engine *engine, unsigned salt, uint64_t steps)
{
    struct zr_shard_segment segment;
    zr_result result = zr_engine_synchronize(engine);
    for (size_t i = 0; i < zr_engine_segments_count(engine); i++) {
        zr_engine_segment(engine, i, &segment);
        for (unsigned kind = 0; kind < FUZZ_KINDS; kind++)
            for (size_t k = 0; k < segment.count; k++)
                fuzz_kind(&segment, kind)[k] =
                    0.125f * (float)(1 + salt + FUZZ_KINDS * (segment.global_index + k) + kind);
    }
    return result == ZR_OK ? zr_engine_publish(engine, steps) : result;
}

/* The engine before a run. */
static inline struct fuzz_watch fuzz_engine_start(void)
{
    fuzz_set_values(fuzz_rig.engine, 1000, 3);
    fuzz_get_values(fuzz_rig.engine, &fuzz_before);
    return fuzz_watch_start(fuzz_rig.arena);
}

static inline bool fuzz_untouched(void)
{
    static struct fuzz_values now;
    fuzz_get_values(fuzz_rig.engine, &now);
    return memcmp(&now, &fuzz_before, sizeof now) == 0;
}

/* Values as a heap of bits without an order. */
static inline uint64_t fuzz_mix(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t z = (bits + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ z >> 32;
}

static inline uint64_t fuzz_mix_all(const void *data, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t at = 0; at + sizeof(float) <= bytes; at += sizeof(float)) {
        float value;
        memcpy(&value, (const char *)data + at, sizeof value);
        sum += fuzz_mix(value);
    }
    return sum;
}

/* ---- Safetensors --------------------------------------------------------------------------------------- */

/* An accepted file's header, read without the reader. The caller decrefs. */
static inline json_t *fuzz_header(const unsigned char *data, size_t bytes, size_t *data_at)
{
    uint64_t header = 0;
    if (bytes < sizeof header)
        return NULL;
    memcpy(&header, data, sizeof header);
    *data_at = (size_t)header + sizeof header;
    json_set_alloc_funcs(malloc, free);
    return header <= bytes - sizeof header ? json_loadb((const char *)data + 8, (size_t)header, 0, NULL)
                                           : NULL;
}

struct fuzz_extent {
    uint64_t from, to;
};

static inline struct fuzz_extent fuzz_extent_of(json_t *entry)
{
    json_t *offsets = json_object_get(entry, "data_offsets");
    return (struct fuzz_extent){(uint64_t)json_integer_value(json_array_get(offsets, 0)),
                                (uint64_t)json_integer_value(json_array_get(offsets, 1))};
}

/* Every tensor lies in the file, none on another, and no byte is left over. */
static inline bool fuzz_tensors_fill(json_t *root, size_t data_bytes)
{
    const char *name, *other_name;
    json_t *entry, *other;
    uint64_t sum = 0;
    bool good = true;
    json_object_foreach(root, name, entry)
    {
        struct fuzz_extent one = fuzz_extent_of(entry);
        if (strcmp(name, "__metadata__") == 0)
            continue;
        good &= json_is_object(entry) && one.from <= one.to && one.to <= data_bytes;
        sum += one.to - one.from;
        json_object_foreach(root, other_name, other)
        {
            struct fuzz_extent two = fuzz_extent_of(other);
            good &= name == other_name || strcmp(other_name, "__metadata__") == 0 || one.to <= two.from ||
                    two.to <= one.from || one.from == one.to || two.from == two.to;
        }
    }
    return good && sum == data_bytes;
}

/* A number of a file, widened here on its own; sizes and kinds as the reader names them. */
static inline float fuzz_number_at(const unsigned char *at, enum zr_safetensors_kind kind)
{
    uint32_t bits = 0;
    float value;
    memcpy(&bits, at, kind == ZR_SAFETENSORS_F32 ? 4 : 2);
    if (kind == ZR_SAFETENSORS_F16)
        return float_of_half((uint16_t)bits);
    bits <<= kind == ZR_SAFETENSORS_BF16 ? 16 : 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Reads the tensor in two parts and compares every number. */
static inline bool fuzz_tensor_read(const struct zr_safetensors *file,
                                    const struct zr_safetensors_tensor *tensor, const unsigned char *data,
                                    size_t bytes)
{
    size_t each = tensor->kind == ZR_SAFETENSORS_F32 ? 4 : 2, count = (size_t)tensor->elements;
    size_t first = count / 3;
    bool good = tensor->at_bytes <= bytes && tensor->elements <= (bytes - tensor->at_bytes) / each;
    float *out = good ? malloc(count * sizeof *out + 1) : NULL;
    if (!out)
        return false;
    good = zr_safetensors_read(file, tensor, &(struct zr_safetensors_part){0, first}, out) == ZR_OK &&
           zr_safetensors_read(file, tensor, &(struct zr_safetensors_part){first, count - first},
                               out + first) == ZR_OK;
    for (size_t i = 0; i < count && good; i++) {
        float want = fuzz_number_at(data + tensor->at_bytes + i * each, tensor->kind);
        good = isnan(want) ? isnan(out[i]) : memcmp(&want, &out[i], sizeof want) == 0;
    }
    free(out);
    return good;
}

static inline bool fuzz_safetensors_holds(const struct zr_safetensors *file, const unsigned char *data,
                                          size_t bytes)
{
    struct zr_safetensors_tensor tensor;
    const char *name;
    json_t *entry;
    bool good = fuzz_tensors_fill(file->root, (size_t)(file->bytes - file->data_bytes));
    json_object_foreach(file->root, name, entry)
    {
        struct fuzz_extent extent = fuzz_extent_of(entry);
        if (strcmp(name, "__metadata__") == 0 || zr_safetensors_describe(file, name, entry, &tensor) != ZR_OK)
            continue;
        good &= tensor.at_bytes == file->data_bytes + extent.from &&
                tensor.elements * (tensor.kind == ZR_SAFETENSORS_F32 ? 4 : 2) == extent.to - extent.from &&
                tensor.elements == tensor.shape[0] * (tensor.dimensions == 2 ? tensor.shape[1] : 1) &&
                fuzz_tensor_read(file, &tensor, data, bytes);
    }
    return good;
}

static inline bool fuzz_safetensors(const unsigned char *data, size_t bytes, zr_result *result)
{
    static struct zr_safetensors file;
    struct fuzz_watch watch = fuzz_watch_start(NULL);
    if (!fuzz_write(data, bytes))
        return false;
    *result = zr_safetensors_open(&file, fuzz_path);
    bool good = fuzz_answer(*result);
    if (*result == ZR_OK) {
        good = fuzz_safetensors_holds(&file, data, bytes);
        zr_safetensors_close(&file);
    }
    return good && file.file.fd == -1 && fuzz_watch_end(&watch, bytes);
}

/* An archive of torch.save(). */
static inline bool fuzz_torch(const unsigned char *data, size_t bytes, zr_result *result)
{
    static struct zr_safetensors file;
    struct zr_safetensors_tensor tensor;
    const char *name;
    json_t *entry;
    struct fuzz_watch watch = fuzz_watch_start(fuzz_arena);
    if (!fuzz_write(data, bytes))
        return false;
    *result = zr_torch_file_open(&file, fuzz_path, fuzz_arena);
    bool good = fuzz_answer(*result);
    if (*result == ZR_OK) {
        json_object_foreach(file.root, name, entry)
        {
            if (zr_safetensors_describe(&file, name, entry, &tensor) == ZR_OK)
                good &= fuzz_tensor_read(&file, &tensor, data, bytes);
        }
        zr_safetensors_close(&file);
    }
    return good && file.file.fd == -1 && fuzz_watch_end(&watch, bytes);
}

/* ---- A GPT-2 in one file ------------------------------------------------------------------------------- */

static inline bool fuzz_name_ends(const char *name, const char *tail)
{
    size_t length = strlen(name), tail_length = strlen(tail);
    return length >= tail_length && strcmp(name + length - tail_length, tail) == 0;
}

/* The parameters of the file, rows that it does not have as zeros. */
static inline bool fuzz_gpt_values(const unsigned char *data, size_t bytes, uint64_t *sum)
{
    size_t data_at = 0, elements = 0;
    json_t *root = fuzz_header(data, bytes, &data_at), *entry;
    const char *name;
    *sum = 0;
    json_object_foreach(root, name, entry)
    {
        const char *word = json_string_value(json_object_get(entry, "dtype"));
        struct fuzz_extent extent = fuzz_extent_of(entry);
        if (strcmp(name, "__metadata__") == 0 || strcmp(name, "lm_head.weight") == 0 ||
            fuzz_name_ends(name, ".attn.bias") || fuzz_name_ends(name, ".attn.masked_bias"))
            continue;
        enum zr_safetensors_kind kind = strcmp(word, "F32") == 0    ? ZR_SAFETENSORS_F32
                                        : strcmp(word, "BF16") == 0 ? ZR_SAFETENSORS_BF16
                                                                    : ZR_SAFETENSORS_F16;
        size_t each = kind == ZR_SAFETENSORS_F32 ? 4 : 2;
        for (uint64_t at = extent.from; at < extent.to; at += each, elements++)
            *sum += fuzz_mix(fuzz_number_at(data + data_at + at, kind));
    }
    json_decref(root);
    for (size_t i = elements; i < FUZZ_ELEMENTS; i++)
        *sum += fuzz_mix(0);
    return root && elements <= FUZZ_ELEMENTS;
}

static inline bool fuzz_gpt(const unsigned char *data, size_t bytes, zr_result *result)
{
    static struct fuzz_values now, zeros;
    uint64_t want;
    struct fuzz_watch watch = fuzz_engine_start();
    if (!fuzz_write(data, bytes))
        return false;
    *result = zr_model_import(&(struct zr_model_file){.path = fuzz_path,
                                                      .engine = fuzz_rig.engine,
                                                      .comm = fuzz_rig.comm,
                                                      .shape = fuzz_shape,
                                                      .assumed = true});
    bool good = fuzz_answer(*result) && fuzz_watch_end(&watch, bytes);
    if (*result == ZR_OK) {
        fuzz_get_values(fuzz_rig.engine, &now);
        good = good && fuzz_gpt_values(data, bytes, &want) &&
               want == fuzz_mix_all(now.of[0], sizeof now.of[0]) && now.steps == 0 &&
               zr_engine_verify_finite(fuzz_rig.engine) == ZR_OK &&
               memcmp(now.of[1], zeros.of, sizeof now.of[1]) == 0 &&
               memcmp(now.of[2], zeros.of, sizeof now.of[2]) == 0;
    } else if (*result == ZR_ERR_FORMAT) {
        good = good && fuzz_untouched();
    }
    return good;
}

/* ---- A checkpoint's folder ----------------------------------------------------------------------------- */

/* The bits of an input's first byte: which sums are made to fit. */
enum { FUZZ_MAKE_SUM = 1, FUZZ_MAKE_STATE_SUM = 2 };

enum { FUZZ_STEP_PLACE = 1 /* the manifest, then the state */ };
static char fuzz_folder[32], fuzz_step_folder[64];

/* ---- An engine's state --------------------------------------------------------------------------------- */

/* What stands behind a key of the header, as a number. */
static inline uint64_t fuzz_digits(const unsigned char *data, size_t bytes, const char *key, size_t skip,
                                   int base)
{
    char text[21] = "";
    const unsigned char *at = memmem(data, bytes, key, strlen(key));
    size_t digits = base == 10 ? 20 : 16;
    if (!at || (size_t)(data + bytes - at) < strlen(key) + skip + digits)
        return 0;
    memcpy(text, at + strlen(key) + skip, digits);
    return strtoull(text, NULL, base);
}

/* The checksum that the numbers and values of the file have, put where the file has its own. */
static inline void fuzz_repair_state(unsigned char *data, size_t bytes, size_t data_at)
{
    static const char key[] = "\"checksum\":\"";
    char digits[17];
    uint64_t sum = fuzz_digits(data, bytes, "\"steps\":\"", 0, 10) * UINT64_C(0xd6e8feb86659fd93);
    unsigned char *at = memmem(data, bytes, key, sizeof key - 1);
    for (unsigned i = 0; i < 3; i++)
        sum += fuzz_digits(data, bytes, "\"loss_scale\":\"", 16 * i, 16) *
               (UINT64_C(0x9fb21c651e98df25) + 2 * i);
    for (size_t i = 0; data_at + 4 * (i + 1) <= bytes; i++) {
        uint32_t bits;
        memcpy(&bits, data + data_at + 4 * i, sizeof bits);
        uint64_t z = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + bits;
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        sum += z ^ (z >> 31);
    }
    if (at && (size_t)(data + bytes - at) >= sizeof key - 1 + 16) {
        snprintf(digits, sizeof digits, "%016" PRIx64, sum);
        memcpy(at + sizeof key - 1, digits, 16);
    }
}

/* A state's file with its checksum made to fit, and where its values begin. */
static inline unsigned char *fuzz_state_file(const struct fuzz_part *part, bool repairs, size_t *data_at)
{
    unsigned char *file = malloc(part->bytes + 1);
    uint64_t header = 0;
    if (!file)
        return NULL;
    memcpy(file, part->data, part->bytes);
    memcpy(&header, file, part->bytes < sizeof header ? part->bytes : sizeof header);
    *data_at = header < part->bytes ? (size_t)header + sizeof header : part->bytes;
    if (repairs)
        fuzz_repair_state(file, part->bytes, *data_at);
    return file;
}

/* Whether the engine has what an accepted file has. */
static inline bool fuzz_state_is_loaded(const unsigned char *file, size_t bytes, size_t data_at)
{
    static struct fuzz_values now;
    fuzz_get_values(fuzz_rig.engine, &now);
    return bytes - data_at == sizeof now.of && memcmp(now.of, file + data_at, sizeof now.of) == 0 &&
           now.steps == fuzz_digits(file, bytes, "\"steps\":\"", 0, 10);
}

static inline bool fuzz_state(const unsigned char *data, size_t bytes, zr_result *result)
{
    struct fuzz_part part = {data + (bytes > 0), bytes - (bytes > 0)};
    size_t data_at = 0;
    unsigned char *file = fuzz_state_file(&part, bytes > 0 && data[0] & FUZZ_MAKE_SUM, &data_at);
    if (!file)
        return false;
    struct fuzz_watch watch = fuzz_engine_start();
    bool good = fuzz_write(file, part.bytes);
    *result = zr_engine_load(fuzz_rig.engine, fuzz_path);
    good = good && fuzz_answer(*result) && fuzz_watch_end(&watch, bytes) &&
           (*result == ZR_OK ? fuzz_state_is_loaded(file, part.bytes, data_at) : fuzz_untouched());
    free(file);
    return good;
}

/* ---- A checkpoint's folder ----------------------------------------------------------------------------- */

/* The manifest with what it says of the state made true, and its own checksum last. */
static inline char *fuzz_repair_manifest(unsigned flags, const struct fuzz_part *manifest,
                                         const unsigned char *state, size_t state_bytes, size_t *bytes)
{
    static const char sum_key[] = "\"checksum\": \"", end_key[] = ZR_CHECKPOINT_SUM_KEY;
    const char *text = (const char *)manifest->data, *end = text + manifest->bytes;
    char *out = malloc(4 * manifest->bytes + 256), *to = out;
    for (const char *at = text; out && at < end;) {
        size_t left = (size_t)(end - at);
        if (flags & FUZZ_MAKE_SUM && left > sizeof end_key && memcmp(at, end_key, sizeof end_key - 1) == 0)
            break;
        if (flags & FUZZ_MAKE_STATE_SUM && left >= sizeof sum_key + 16 &&
            memcmp(at, sum_key, sizeof sum_key - 1) == 0) {
            to += sprintf(to, "%s%016" PRIx64, sum_key,
                          fuzz_digits(state, state_bytes, "\"checksum\":\"", 0, 16));
            at += sizeof sum_key - 1 + 16;
        } else {
            *to++ = *at++;
        }
    }
    if (out && flags & FUZZ_MAKE_SUM)
        to += sprintf(to, "%s%016" PRIx64 "\"}\n", end_key, zr_checkpoint_text_sum(out, (size_t)(to - out)));
    *bytes = out ? (size_t)(to - out) : 0;
    return out;
}

static inline bool fuzz_checkpoint(const unsigned char *data, size_t bytes, zr_result *result)
{
    struct fuzz_part parts[2]; /* manifest, state */
    struct zr_checkpoint_origin origin;
    uint64_t step;
    size_t manifest_bytes = 0, data_at = 0;
    unsigned flags = bytes > 0 ? data[0] : 0;
    fuzz_split(data + (bytes > 0), bytes - (bytes > 0), parts, 2);
    unsigned char *state = fuzz_state_file(&parts[1], flags & FUZZ_MAKE_STATE_SUM, &data_at);
    char *manifest =
        state ? fuzz_repair_manifest(flags, &parts[0], state, parts[1].bytes, &manifest_bytes) : NULL;
    bool good = manifest && fuzz_write_place(FUZZ_STEP_PLACE, manifest, manifest_bytes) &&
                fuzz_write_place(FUZZ_STEP_PLACE + 1, state, parts[1].bytes);
    struct fuzz_watch watch = fuzz_engine_start();
    struct zr_checkpoint checkpoint =
        fuzz_checkpoint_of(&fuzz_rig, flags & 128 ? fuzz_folder : fuzz_step_folder);
    checkpoint.origin = &origin;
    *result = zr_checkpoint_resume(&checkpoint, &step);
    good = good && fuzz_answer(*result) && fuzz_watch_end(&watch, bytes + manifest_bytes);
    if (*result == ZR_OK)
        good = good && fuzz_state_is_loaded(state, parts[1].bytes, data_at) &&
               zr_engine_verify_replicas(fuzz_rig.engine) == ZR_OK;
    else
        good = good && fuzz_untouched() && step == 0;
    free(manifest);
    free(state);
    return good;
}

/* ---- Before and after ---------------------------------------------------------------------------------- */

/* The folder's files are in memory; outside of it lies a state that would do. */
static inline bool fuzz_model_start(void)
{
    char path[128];
    bool good = fuzz_engine_open(&fuzz_rig, &(struct fuzz_engine_options){0}) == ZR_OK;
    strcpy(fuzz_folder, "/tmp/zr-fuzz-XXXXXX");
    good = good && zr_engine_elements(fuzz_rig.engine) == FUZZ_ELEMENTS && mkdtemp(fuzz_folder);
    snprintf(fuzz_step_folder, sizeof fuzz_step_folder, "%s/step-00000007", fuzz_folder);
    good = good && mkdir(fuzz_step_folder, 0700) == 0;
    snprintf(path, sizeof path, "%s/manifest.json", fuzz_step_folder);
    good = good && symlink(fuzz_places[FUZZ_STEP_PLACE].path, path) == 0;
    const char *place = fuzz_places[FUZZ_STEP_PLACE + 1].path;
    snprintf(path, sizeof path, "%s/" ZR_CHECKPOINT_STATE, fuzz_step_folder);
    good = good && symlink(place, path) == 0;
    snprintf(path, sizeof path, "%s/" ZR_CHECKPOINT_STATE, fuzz_folder);
    good = good && symlink(place, path) == 0;
    return good;
}

static inline void fuzz_model_end(void)
{
    zr_path_remove_folder(fuzz_step_folder);
    zr_path_remove_folder(fuzz_folder);
    rig_close(&fuzz_rig);
}

#endif
