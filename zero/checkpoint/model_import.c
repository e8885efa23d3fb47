/* model_import.c: loads a model from one file or several into an engine; see model_file.h. Every rank
 * reads the headers, and the data that it owns. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/checkpoint/state.h"
#include "zero/comm/mesh.h"
#include "zero/engine/engine.h"
#include "zero/engine/update.h"
#include "zero/checkpoint/model_file.h"
#include "zero/checkpoint/model_names.h"
#include "zero/checkpoint/safetensors_read.h"

enum { FILES_MAX = 1024 };
#define PIECE_ELEMENTS (((size_t)256 << 10) / sizeof(float))

struct import {
    const struct zr_model_file *model;
    struct zr_safetensors *files; /* [files_count], zr_heap */
    size_t files_count;
    json_t *config; /* config.json; NULL: none */
    struct zr_transformer transformer;
    struct zr_model_names names; /* of the transformer's parameters */
    bool linear;                 /* GPT-2's matrices are [out, in] */
    bool summed;                 /* the file has a checksum, as exports of zr-train have */
    uint64_t checksum;           /* of the file */
    uint64_t sum;                /* of the data that this rank has read */
    float *piece;                /* [PIECE_ELEMENTS], zr_heap */
};

/* ---- Files --------------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *tail)
{
    size_t length = strlen(name), tail_length = strlen(tail);
    return length >= tail_length && strcmp(name + length - tail_length, tail) == 0;
}

/* Path of a file next to the model's. */
static zr_result beside(const struct import *import, const char *name, char out[ZR_SAFETENSORS_PATH_ROOM])
{
    const char *path = import->model->path, *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    if (snprintf(out, ZR_SAFETENSORS_PATH_ROOM, "%.*s%s", folder, path, name) < ZR_SAFETENSORS_PATH_ROOM)
        return ZR_OK;
    return zr_fail(ZR_ERR_INVALID, "a path is longer than %d bytes", ZR_SAFETENSORS_PATH_ROOM - 1);
}

zr_result zr_model_json_read(const char *path, json_t **out)
{
    struct zr_file file = {.fd = -1};
    json_error_t error;
    uint64_t bytes = 0;
    char *text = NULL;
    zr_result result = zr_file_open_regular(&file, path);

    if (!result)
        result = zr_file_size(&file, &bytes);
    if (!result && bytes > ZR_SAFETENSORS_HEADER_MAX)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' is too long for the JSON of a model", path);
    if (!result && !(text = zr_heap_alloc(bytes + 1)))
        result = ZR_ERR_HOST_MEMORY;
    if (!result)
        result = zr_file_read_at(&file, 0, text, bytes);
    if (!result) {
        json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
        *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
        /* transformers writes 10^30 for no limit of a text */
        if (!*out && json_error_code(&error) == json_error_numeric_overflow)
            *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
        if (!json_is_object(*out)) {
            json_decref(*out);
            *out = NULL;
            result = zr_fail(ZR_ERR_FORMAT, "'%s' is not a JSON object; fetch it again", path);
        }
    }
    zr_heap_free(text);
    zr_file_close(&file);
    return result;
}

static zr_result open_file(const struct import *import, struct zr_safetensors *out, const char *path)
{
    return zr_torch_file_is(path) ? zr_torch_file_open(out, path, import->model->engine->options.host_arena)
                                  : zr_safetensors_open(out, path);
}

/* Opens a file that an index names, unless it is open. */
static zr_result open_part(struct import *import, const char *name)
{
    char path[ZR_SAFETENSORS_PATH_ROOM];
    /* Only plain names are allowed: files outside the folder are never opened. */
    if (!name || name[0] == '.' || strchr(name, '/') ||
        (!ends_with(name, ".safetensors") && !ends_with(name, ".bin")))
        return zr_fail(ZR_ERR_FORMAT, "'%s' names a file that is no .safetensors or .bin beside it: '%.100s'",
                       import->model->path, name ? name : "");
    zr_result result = beside(import, name, path);
    if (result)
        return result;
    for (size_t i = import->files_count; i-- > 0;) /* names are mostly in file order */
        if (strcmp(import->files[i].path, path) == 0)
            return ZR_OK;
    if (import->files_count == FILES_MAX)
        return zr_fail(ZR_ERR_FORMAT, "'%s' names more than %d files; save the model in fewer files",
                       import->model->path, FILES_MAX);
    result = open_file(import, &import->files[import->files_count], path);
    import->files_count += result == ZR_OK;
    return result;
}

static zr_result open_index(struct import *import)
{
    json_t *index = NULL;
    zr_result result = zr_model_json_read(import->model->path, &index);
    if (result)
        return result;
    json_t *map = json_object_get(index, "weight_map");
    if (json_object_size(map) == 0)
        result = zr_fail(ZR_ERR_FORMAT,
                         "'%s' is not an index of a model: it has no weight_map; give the model's "
                         "model.safetensors.index.json, or a safetensors file",
                         import->model->path);
    for (void *at = json_object_iter(map); at && !result; at = json_object_iter_next(map, at))
        result = open_part(import, json_string_value(json_object_iter_value(at)));
    json_decref(index);
    return result;
}

/* Number of the model's files by name: 2 for "model-00001-of-00002.safetensors", else 1. */
static unsigned long count_files(const char *path)
{
    const char *name = strrchr(path, '/'), *of = NULL;
    char *end = NULL;
    for (const char *at = name ? name : path; (at = strstr(at, "-of-")); at++)
        of = at;
    unsigned long count = of && of[4] >= '0' && of[4] <= '9' ? strtoul(of + 4, &end, 10) : 1;
    return count > 1 && (strcmp(end, ".safetensors") == 0 || strcmp(end, ".bin") == 0) ? count : 1;
}

static zr_result open_one(struct import *import)
{
    const char *path = import->model->path;
    zr_result result = open_file(import, &import->files[0], path);
    if (result)
        return result;
    import->files_count = 1;
    json_t *notes = json_object_get(import->files[0].root, "__metadata__");
    const char *format = json_string_value(json_object_get(notes, "format")),
               *sum = json_string_value(json_object_get(notes, ZR_STATE_MODEL_CHECKSUM));
    const char *slash = strrchr(path, '/');
    if (format && strcmp(format, "zr-state") == 0)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is the state of a checkpoint; resume from its folder: --resume '%.*s'", path,
                       slash ? (int)(slash - path) : 1, slash ? path : ".");
    import->summed = sum && strlen(sum) == 16 && strspn(sum, "0123456789abcdef") == 16;
    import->checksum = import->summed ? strtoull(sum, NULL, 16) : 0;
    if (count_files(path) > 1)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is one of %lu files of a model; give the index that names them all "
                       "(model.safetensors.index.json)",
                       path, count_files(path));
    return ZR_OK;
}

static zr_result open_files(struct import *import)
{
    char path[ZR_SAFETENSORS_PATH_ROOM];
    enum zr_path_kind kind;
    bool several = ends_with(import->model->path, ".json");
    import->files = zr_heap_zalloc(several ? FILES_MAX : 1, sizeof *import->files);
    if (!import->files)
        return ZR_ERR_HOST_MEMORY;
    zr_result result = several ? open_index(import) : open_one(import);
    if (!result)
        result = beside(import, "config.json", path);
    if (!result && zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_FILE)
        result = zr_model_json_read(path, &import->config);
    return result;
}

/* ---- Settings ------------------------------------------------------------------------------------------ */

static zr_result other_size(const struct import *import, const char *option, uint64_t theirs, uint64_t ours)
{
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' is another model: it has %s %" PRIu64 ", but this run has %" PRIu64
                   "; resume with %s %" PRIu64,
                   import->model->path, option, theirs, ours, option, theirs);
}

static const char *note_of(const struct import *import, const char *key)
{
    return json_string_value(json_object_get(json_object_get(import->files[0].root, "__metadata__"), key));
}

/* Whether the file's metadata has everything that tensors do not show, as in exports of zr-train. */
static bool is_noted(const struct import *import)
{
    bool llama = import->transformer.shape.architecture == ZR_ARCH_LLAMA;
    return note_of(import, "n_head") &&
           (!llama || (note_of(import, "n_kv_head") && note_of(import, "rope_theta") &&
                       note_of(import, "norm_epsilon")));
}

static bool has_head(const struct import *import)
{
    bool has = false;
    for (size_t f = 0; f < import->files_count; f++)
        has |= json_object_get(import->files[f].root, "lm_head.weight") != NULL ||
               json_object_get(import->files[f].root, "embed_out.weight") != NULL;
    return has;
}

/* Checks the config.json beside the tensors. Beside an export of zr-train the config.json may be an unrelated
 * file, for example a file of --config. */
static zr_result check_config(const struct import *import)
{
    const struct zr_model_config config = {import->model->path, import->config, has_head(import)};
    double dropout = 0;
    if (!import->config || (is_noted(import) && !json_object_get(import->config, "model_type")))
        return ZR_OK;
    zr_result result = zr_model_config_check(&config, &import->transformer.shape, &dropout);
    if (!result && import->model->dropout)
        *import->model->dropout = dropout;
    return result;
}

/* Checks that metadata, a config.json or an option describes what tensors do not show. */
static zr_result check_described(const struct import *import)
{
    if (import->config || import->model->assumed || is_noted(import))
        return ZR_OK;
    return zr_fail(
        ZR_ERR_FORMAT,
        "'%s' has no config.json beside it, and tensors do not show a model's heads, norms, angles "
        "and activation; put its config.json there, or, if this run's options match the model, give "
        "--assume-shape",
        import->model->path);
}

/* Checks the metadata of zr-train's exports. */
static zr_result check_notes(const struct import *import)
{
    const struct zr_shape *shape = &import->transformer.shape;
    const struct {
        const char *key, *option;
        double ours;
    } kinds[] = {{"n_head", "--heads", (double)shape->heads},
                 {"n_kv_head", "--kv-heads", (double)shape->kv_heads},
                 {"rope_theta", "--rope-theta", shape->rope_theta},
                 {"norm_epsilon", "--norm-epsilon", shape->norm_epsilon}};
    bool gpt2 =
        shape->architecture == ZR_ARCH_GPT2; /* whose epsilon has no option, and a note if it is rare */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *theirs = note_of(import, kinds[i].key);
        if (theirs && !(gpt2 && i == 3) && strtod(theirs, NULL) != kinds[i].ours)
            return zr_fail(ZR_ERR_FORMAT, "'%s' is a model with %s %.15g, but this run has %g; give %s %.15g",
                           import->model->path, kinds[i].option, strtod(theirs, NULL), kinds[i].ours,
                           kinds[i].option, strtod(theirs, NULL));
    }
    char ours[ZR_VARIANT_ROOM];
    const char *theirs = note_of(import, "norm_epsilon");
    double epsilon = theirs ? strtod(theirs, NULL) : 0;
    if (gpt2 && is_noted(import) && !import->config && epsilon != shape->norm_epsilon)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is a model with layer_norm_epsilon %.15g, but this run has %.15g; give --model "
                       "with the folder of the model",
                       import->model->path, epsilon > 0 ? epsilon : 1e-5,
                       shape->norm_epsilon > 0 ? shape->norm_epsilon : 1e-5);
    theirs = note_of(import, ZR_MODEL_VARIANT);
    zr_variant_print(&shape->variant, ours);
    theirs = theirs || !is_noted(import) ? theirs : "";
    if (theirs && !import->config && strncmp(theirs, ours, 255) != 0) /* the longest note */
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is a model with %.100s, and this run has %.100s; give --model with the folder of the "
            "model",
            import->model->path, theirs, ours[0] ? ours : "none of these");
    return ZR_OK;
}

/* ---- Shapes -------------------------------------------------------------------------------------------- */

/* Checks LLaMA's sizes, each by one tensor of layer 0. */
static zr_result check_llama(const struct import *import)
{
    const struct zr_shape *shape = &import->transformer.shape;
    const struct zr_model_names *names = &import->names;
    const struct zr_model_place *k = zr_model_names_matrix(names, "model.layers.0.self_attn.k_proj.weight"),
                                *gate = zr_model_names_matrix(names, "model.layers.0.mlp.gate_proj.weight");
    const struct zr_model_place *q = zr_model_names_matrix(names, "model.layers.0.self_attn.q_proj.weight");
    size_t width = zr_shape_head(shape);
    if (shape->variant.names) /* several matrices are one tensor: check_shapes() names it */
        q = k = gate = NULL;
    if (q && q->tensor.shape[0] != zr_shape_queries(shape))
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s': its queries have %" PRIu64
                       " channels, but those of this run have %zu; give --model with the folder of the model",
                       import->model->path, q->tensor.shape[0], zr_shape_queries(shape));
    if (k && k->tensor.shape[0] != width * shape->kv_heads && k->tensor.shape[0] % width == 0)
        return other_size(import, "--kv-heads", k->tensor.shape[0] / width, shape->kv_heads);
    if (gate && gate->tensor.shape[0] != shape->ffn)
        return other_size(import, "--ffn", gate->tensor.shape[0], shape->ffn);
    if (!shape->tied && !names->places[names->count - 1].found) /* an assumed shape */
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' has no lm_head.weight: its head is tied; resume with --tie-embeddings",
                       import->model->path);
    return ZR_OK;
}

/* Checks the sizes of options, so that the message names the option; the vocabulary first. */
static zr_result check_sizes(const struct import *import)
{
    const struct zr_shape *shape = &import->transformer.shape;
    const struct zr_model_names *names = &import->names;
    bool gpt2 = shape->architecture == ZR_ARCH_GPT2;
    const struct zr_model_place *embedding = zr_model_names_matrix(names, names->parameters[0].name),
                                *positions = gpt2 ? zr_model_names_matrix(names, "wpe.weight") : embedding;
    size_t last = names->count - (shape->tied ? 1 : 2);

    if (!embedding || !positions)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is not a model of --arch %s: it has no matrices %s; give the folder of --save, or such "
            "a model as safetensors",
            import->model->path, zr_architecture_name(shape->architecture),
            gpt2 ? "wte.weight and wpe.weight" : names->parameters[0].name);
    if (embedding->tensor.shape[1] != shape->hidden)
        return other_size(import, "--hidden", embedding->tensor.shape[1], shape->hidden);
    if (embedding->tensor.shape[0] != shape->vocabulary &&
        embedding->tensor.shape[0] != shape->vocabulary_padded)
        return other_size(import, "--vocab", embedding->tensor.shape[0], shape->vocabulary);
    if (gpt2 && positions->tensor.shape[0] != zr_shape_positions(shape))
        return other_size(import, "--seq", positions->tensor.shape[0], zr_shape_positions(shape));
    if (names->layers < shape->layers && !names->places[last].found)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is a part of a model: it ends after %" PRIu64
                       " layers and has no %s; give the whole model, or the index of its files",
                       import->model->path, names->layers, names->parameters[last].name);
    if (names->layers != shape->layers)
        return other_size(import, "--layers", names->layers, shape->layers);
    return gpt2 ? ZR_OK : check_llama(import);
}

static bool has_shape(const struct zr_safetensors_tensor *tensor, uint64_t rows, uint64_t columns)
{
    return columns == 0 ? tensor->dimensions == 1 && tensor->shape[0] == rows
                        : tensor->dimensions == 2 && tensor->shape[0] == rows && tensor->shape[1] == columns;
}

/* Whether a matrix of a block is stored transposed; embeddings and the head never are. */
static bool is_turned(const struct import *import, size_t index)
{
    const struct zr_parameter *p = &import->names.parameters[index];
    return import->linear && p->shape[1] && p->group == ZR_GROUP_MATRICES;
}

/* Conv1D stores [in, out], Linear [out, in]: the shape of c_attn, which is not square, decides for all. */
static zr_result check_shapes(struct import *import)
{
    const struct zr_model_names *names = &import->names;
    const struct zr_safetensors_tensor *embedding = &names->places[0].tensor;
    const struct zr_model_place *conv1d =
        names->convention->conv1d ? zr_model_names_matrix(names, names->convention->conv1d) : NULL;

    import->linear = conv1d && conv1d->tensor.shape[1] == import->model->shape.hidden;
    for (size_t i = 0; i < names->count; i++) {
        const struct zr_parameter *p = &names->parameters[i];
        struct zr_model_place *place = &names->places[i];
        bool turned = is_turned(import, i);
        uint64_t rows = p->shape[turned], columns = p->shape[!turned];

        if (!place->found)
            return zr_fail(ZR_ERR_FORMAT, "'%s' has no tensor %s", import->model->path,
                           place->file_name.name);
        place->filled = place->tensor.elements;
        if (zr_model_file_pads(p, i)) /* the file may have fewer rows */
            rows = embedding->shape[0];
        if (!has_shape(&place->tensor, rows, columns))
            return zr_fail(ZR_ERR_FORMAT,
                           "'%s': tensor %s does not have the shape [%" PRIu64 "%s%.0" PRIu64
                           "] of this run's --layers, --hidden, --vocab and --seq",
                           place->file->path, place->file_name.name,
                           place->file_name.rows.whole ? place->file_name.rows.whole : rows,
                           columns ? ", " : "", columns);
    }
    if (names->head.found && !has_shape(&names->head.tensor, embedding->shape[0], embedding->shape[1]))
        return zr_fail(ZR_ERR_FORMAT, "'%s': lm_head.weight has another shape than %s",
                       names->head.file->path, names->parameters[0].name);
    return ZR_OK;
}

/* Checks the head in the file. With a tied head, a separate head in the file would be lost. */
static zr_result check_head(const struct import *import)
{
    const struct zr_model_names *names = &import->names;
    const struct zr_model_place *embedding = &names->places[0], *head = &names->head;
    size_t half = PIECE_ELEMENTS / 2;
    uint64_t count = embedding->tensor.elements;
    zr_result result = ZR_OK;

    for (uint64_t done = 0; head->found && done < count && !result; done += half) {
        struct zr_safetensors_part part = {done, count - done < half ? (size_t)(count - done) : half};
        result = zr_safetensors_read(embedding->file, &embedding->tensor, &part, import->piece);
        if (!result)
            result = zr_safetensors_read(head->file, &head->tensor, &part, import->piece + half);
        if (!result && memcmp(import->piece, import->piece + half, part.count * sizeof(float)) != 0)
            return zr_fail(
                ZR_ERR_FORMAT,
                "'%s': lm_head.weight differs from %s, but tie_word_embeddings requires them to be equal; "
                "give a model whose head is%s",
                head->file->path, names->parameters[0].name,
                import->transformer.shape.architecture == ZR_ARCH_GPT2
                    ? ""
                    : ", or, if the file's own head is meant, set tie_word_embeddings to false in config.json");
    }
    return result;
}

static zr_result list_parameters(struct import *import)
{
    struct zr_shape whole = zr_shape_dense(&import->model->shape);
    whole.trainable = NULL; /* a file has the model without changes */
    zr_result result =
        zr_transformer_open(&import->transformer, &whole, NULL, import->model->engine->options.host_arena);
    if (result)
        return result;
    result = zr_model_names_open(&import->names, &import->transformer);
    if (result)
        return result;
    import->piece = zr_heap_alloc(PIECE_ELEMENTS * sizeof(float));
    return import->piece ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

static zr_result start(struct import *import)
{
    zr_result result = list_parameters(import);
    if (!result)
        result = open_files(import);
    if (!result)
        result = check_config(import);
    for (size_t f = 0; f < import->files_count && !result; f++) {
        json_t *root = import->files[f].root;
        for (void *at = json_object_iter(root); at && !result; at = json_object_iter_next(root, at))
            if (strcmp(json_object_iter_key(at), "__metadata__") != 0)
                result = zr_model_names_take(&import->names, &import->files[f], json_object_iter_key(at),
                                             json_object_iter_value(at));
    }
    if (!result)
        result = check_notes(import);
    if (!result)
        result = check_sizes(import);
    if (!result)
        result = check_described(import);
    if (!result)
        result = check_shapes(import);
    if (!result && zr_comm_rank(import->model->comm) == 0)
        result = check_head(import);
    return result;
}

static void finish(struct import *import)
{
    for (size_t f = 0; f < import->files_count; f++)
        zr_safetensors_close(&import->files[f]);
    json_decref(import->config);
    zr_heap_free(import->files);
    zr_heap_free(import->piece);
    zr_model_names_close(&import->names);
    zr_transformer_close(&import->transformer);
}

/* ---- The data ------------------------------------------------------------------------------------------ */

/* Reads a shard's part of a matrix from a transposed tensor: ranges of rows, column by column. */
static zr_result read_transposed(const struct import *import, const struct zr_model_place *place,
                                 const struct zr_layout_parameter *p, struct zr_overlap wanted, float *out)
{
    size_t columns = p->parameter.shape[1], first = wanted.offset - p->offset, end = first + wanted.count;
    uint64_t whole_columns = place->tensor.shape[0];
    zr_result result = ZR_OK;

    for (size_t column = 0; column < columns && !result; column++) {
        size_t row = first / columns, last = (end - 1) / columns;
        while (row <= last && !result) {
            size_t count = last - row + 1 < PIECE_ELEMENTS ? last - row + 1 : PIECE_ELEMENTS;
            uint64_t at = zr_layout_whole_index(p, row * columns + column);
            struct zr_safetensors_part part = {
                at % whole_columns * place->tensor.shape[1] + at / whole_columns, count};
            result = zr_safetensors_read(place->file, &place->tensor, &part, import->piece);
            for (size_t i = 0; i < count && !result; i++) {
                size_t index = (row + i) * columns + column;
                if (index >= first && index < end)
                    out[index - first] = import->piece[i];
            }
            row += count;
        }
    }
    return result;
}

static zr_result check_finite(const struct import *import, size_t index, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return zr_fail(ZR_ERR_CORRUPT, "'%s' is damaged: tensor %s has a value that is not a number",
                           import->names.places[index].file->path, import->names.parameters[index].name);
    return ZR_OK;
}

/* Reads elements of a parameter; those missing in the file are zero. Adds to *sum the hashes of what was
 * read. */
static zr_result read_part(const struct import *import, size_t index, const struct zr_safetensors_part *part,
                           float *out, uint64_t *sum)
{
    const struct zr_model_place *place = &import->names.places[index];
    uint64_t columns = place->tensor.dimensions == 2 ? place->tensor.shape[1] : 1, adjacent,
             there = place->filled > part->first ? place->filled - part->first : 0,
             first = (place->tensor.at_bytes - place->file->data_bytes) / sizeof(float);
    size_t filled = there < part->count ? (size_t)there : part->count;
    zr_result result = ZR_OK;

    memset(out + filled, 0, (part->count - filled) * sizeof *out);
    for (size_t done = 0; done < filled && !result;) {
        uint64_t at = zr_model_rows_place(&place->file_name.rows, columns, part->first + done, &adjacent);
        struct zr_safetensors_part run = {at, filled - done < adjacent ? filled - done : (size_t)adjacent};
        result = zr_safetensors_read(place->file, &place->tensor, &run, out + done);
        if (!result && import->summed)
            *sum += zr_state_checksum(first + at, out + done, run.count);
        done += run.count;
    }
    return result ? result : check_finite(import, index, out, filled);
}

/* Reads this rank's shard of a parameter into `values`. */
static zr_result read_values(struct import *import, const struct zr_layout_parameter *p,
                             struct zr_overlap overlap, float *values)
{
    const struct zr_engine *engine = import->model->engine;
    size_t shard = engine->layout.units[p->parameter.unit].shard_elements, from = engine->rank * shard;
    size_t index = zr_model_names_find(&import->names, p->parameter.name);
    const struct zr_model_place *place = &import->names.places[index];
    uint64_t copied = 0; /* counted by another rank */
    zr_result result = ZR_OK;

    if (is_turned(import, index)) {
        result = read_transposed(import, place, p, overlap, values);
        return result ? result : check_finite(import, index, values, overlap.count);
    }
    for (size_t k = 0, count = zr_layout_pieces(p, from, from + shard); k < count && !result; k++) {
        struct zr_tensor_piece piece = zr_layout_piece(p, from, from + shard, k);
        struct zr_safetensors_part part = {piece.global_index - p->global_index, piece.count};
        float *out = values + (piece.offset - overlap.offset);
        result = read_part(import, index, &part, out, p->parameter.part.copy ? &copied : &import->sum);
    }
    return result;
}

/* Clears this rank's state of a parameter, of which it updates an overlap, perhaps of no elements. */
static zr_result clear_state(const struct zr_engine *engine, const struct zr_layout_parameter *p,
                             const struct zr_owned *owned, struct zr_overlap overlap)
{
    struct zr_compute compute = zr_engine_unit_compute(engine, p->parameter.unit);
    const struct zr_optimizer *optimizer = engine->layout.units[p->parameter.unit].optimizer;
    zr_result result = ZR_OK;
    for (unsigned s = 0; s < optimizer->slots_count && !result; s++) {
        const struct zr_optimizer_slot *slot = &optimizer->slots[s];
        size_t count = slot->whole ? slot->whole(&p->parameter) : overlap.count;
        void *blocks = zr_owned_slot(engine, p, owned, s, overlap.offset - owned->from);
        if (blocks && count > 0)
            result = compute.kernels->clear(
                compute.context,
                &(struct zr_clear){zr_slot_state_bytes(slot, count + slot->block_elements - 1), blocks});
    }
    return result;
}

/* Reads into the engine's memory with fresh optimizer state; through host memory if the host cannot read
 * tensors. */
static zr_result read_owned(struct import *import, const struct zr_layout_parameter *p,
                            const struct zr_owned *owned)
{
    const struct zr_engine *engine = import->model->engine;
    size_t shard = engine->layout.units[p->parameter.unit].shard_elements, from = engine->rank * shard;
    struct zr_overlap overlap = {.offset = owned->from};
    float *values;

    bool overlaps = zr_layout_overlap(p, from, from + shard, &overlap);
    zr_result result = clear_state(engine, p, owned, overlap);
    if (result || !overlaps)
        return result;
    size_t skip = overlap.offset - owned->from, bytes = overlap.count * sizeof *values;
    struct zr_numbers there = zr_numbers_at(zr_owned_values(owned), skip);
    bool copies = engine->host_invisible || there.precision != ZR_PRECISION_FP32;
    values = copies ? zr_heap_alloc(bytes) : there.at;
    result = values ? read_values(import, p, overlap, values) : ZR_ERR_HOST_MEMORY;
    if (!result && copies)
        result = zr_engine_put_floats(engine, p->parameter.unit, values, overlap.count, there);
    if (copies)
        zr_heap_free(values);
    return result ? result
                  : zr_engine_start_average(import->model->engine, p->parameter.unit, owned, overlap);
}

static zr_result read_parameter(struct import *import, const struct zr_layout_parameter *p)
{
    zr_engine *engine = import->model->engine;
    struct zr_owned owned;
    zr_result result = zr_engine_take_owned(engine, p->parameter.unit, &owned);
    if (!result)
        result = read_owned(import, p, &owned);
    zr_result given = zr_engine_give_owned(engine, p->parameter.unit, true);
    return result ? result : given;
}

static zr_result read_mine(struct import *import)
{
    const struct zr_layout *layout = &import->model->engine->layout;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < layout->parameters_count && !result; i++)
        if (zr_model_names_find(&import->names, layout->parameters[i].parameter.name) < import->names.count)
            result = read_parameter(import, &layout->parameters[i]); /* adapters keep their initial values */
    return result;
}

/* Compares the sum of the ranks' parts with the file's checksum. */
static zr_result check_sum(const struct import *import)
{
    uint64_t all[ZR_MAX_WORLD], sum = 0;
    zr_result result = zr_comm_host_all_gather(import->model->comm, &import->sum, sizeof import->sum, all);

    for (unsigned p = 0; p < zr_comm_world(import->model->comm) && !result; p++)
        sum += all[p];
    if (result || !import->summed || sum == import->checksum)
        return result;
    return zr_fail(ZR_ERR_CORRUPT,
                   "'%s' is damaged: its checksum does not match; fetch it again (if another program has "
                   "changed it, remove " ZR_STATE_MODEL_CHECKSUM " from its metadata)",
                   import->model->path);
}

zr_result zr_model_import(const struct zr_model_file *file)
{
    struct import import = {.model = file};
    zr_result result = zr_engine_synchronize(file->engine);

    /* The engine is written to only after every rank has accepted the file. */
    result = zr_comm_all_status(file->comm, result ? result : start(&import));
    if (!result)
        result = zr_comm_all_status(file->comm, read_mine(&import));
    if (!result)
        result = check_sum(&import);
    finish(&import);
    return result ? result : zr_comm_all_status(file->comm, zr_engine_publish(file->engine, 0));
}
