/* model_folder.c: what transformers reads beside the parameters of an exported model: config.json,
 * generation_config.json, the index of several files, and the tokenizer's files. See checkpoint_inside.h.
 * Rank 0 only. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/heap/heap.h"
#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/checkpoint/model_names.h"
#include "zero/checkpoint/state.h"

/* Files that are copied from the model's folder as they are. */
static const char *const copied[] = {"tokenizer.json",
                                     "tokenizer.model",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "chat_template.jinja"};

/* Other files of an export. */
#define INDEX "model.safetensors.index.json"
static const char *const written[] = {
    "model.safetensors",  INDEX, "config.json", "generation_config.json", "adapter_model.safetensors",
    "adapter_config.json"};

static bool is_among(const char *const *names, size_t count, const char *name, size_t length)
{
    size_t i = 0;
    while (i < count && (strlen(names[i]) != length || strncmp(names[i], name, length) != 0))
        i++;
    return i < count;
}

bool zr_model_folder_writes(const char *name, size_t length)
{
    return strncmp(name, "model-", strlen("model-")) == 0 ||
           is_among(copied, sizeof copied / sizeof *copied, name, length) ||
           is_among(written, sizeof written / sizeof *written, name, length);
}

zr_result zr_model_folder_path(char out[ZR_STATE_PATH_ROOM], const char *folder, const char *name)
{
    size_t length = strlen(folder);
    const char *slash = length > 0 && folder[length - 1] == '/' ? "" : "/";
    int used = snprintf(out, ZR_STATE_PATH_ROOM, "%s%s%s", folder, slash, name);
    return used < ZR_STATE_PATH_ROOM ? ZR_OK : zr_fail(ZR_ERR_INVALID, "the path of %s is too long", name);
}

static bool is_file(const char *path)
{
    enum zr_path_kind kind;
    return zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_FILE;
}

/* Writes a file under a partial name, which the caller fills, and renames it. */
struct output {
    char path[ZR_STATE_PATH_ROOM], partial[ZR_STATE_PATH_ROOM], space[4096];
    struct zr_file file;
    struct zr_text text;
};

static zr_result open_output(struct output *out, const char *folder, const char *name)
{
    zr_result result = zr_model_folder_path(out->path, folder, name);
    out->file = (struct zr_file){.fd = -1};
    if (result == ZR_OK && !zr_state_partial(out->path, out->partial))
        result = zr_fail(ZR_ERR_INVALID, "the path of %s is too long", name);
    if (result == ZR_OK)
        result = zr_file_create(&out->file, out->partial, ZR_CREATE_REPLACE);
    zr_text_start(&out->text, &out->file, out->space, sizeof out->space);
    return result;
}

/* `result`: of what wrote the text; after a failure nothing remains. */
static zr_result close_output(struct output *out, zr_result result)
{
    if (out->file.fd < 0)
        return result;
    if (result == ZR_OK)
        result = zr_text_flush(&out->text);
    if (result == ZR_OK)
        result = zr_file_sync(&out->file);
    zr_file_close(&out->file);
    if (result == ZR_OK)
        result = zr_path_rename(&(struct zr_rename){.from = out->partial, .to = out->path});
    else
        zr_path_unlink(out->partial);
    return result == ZR_OK ? zr_path_sync_name(out->path) : result;
}

/* json_dump_callback() */
static int put_json(const char *data, size_t bytes, void *text)
{
    return zr_text_put(text, data, bytes) == ZR_OK ? 0 : -1;
}

static zr_result write_json(const char *folder, const char *name, const json_t *root)
{
    struct output out;
    zr_result result = open_output(&out, folder, name);
    if (result == ZR_OK && json_dump_callback(root, put_json, &out.text, JSON_INDENT(2)) != 0)
        result = out.text.result ? out.text.result : ZR_ERR_HOST_MEMORY;
    if (result == ZR_OK)
        result = zr_text_put(&out.text, "\n", 1);
    return close_output(&out, result);
}

static zr_result copy_file(const char *from, const char *folder, const char *name)
{
    struct output out;
    char path[ZR_STATE_PATH_ROOM], piece[4096];
    struct zr_file source = {.fd = -1};
    uint64_t bytes = 0;
    zr_result result = zr_model_folder_path(path, from, name);
    if (result != ZR_OK || !is_file(path))
        return result;
    result = zr_file_open_regular(&source, path);
    if (result == ZR_OK)
        result = zr_file_size(&source, &bytes);
    if (result == ZR_OK)
        result = open_output(&out, folder, name);
    for (uint64_t at = 0; at < bytes && result == ZR_OK; at += sizeof piece) {
        size_t count = bytes - at < sizeof piece ? (size_t)(bytes - at) : sizeof piece;
        result = zr_file_read_at(&source, at, piece, count);
        if (result == ZR_OK)
            result = zr_text_put(&out.text, piece, count);
    }
    if (source.fd >= 0)
        result = close_output(&out, result);
    zr_file_close(&source);
    return result;
}

/* ---- config.json --------------------------------------------------------------------------------------- */

/* The config.json of a run without --model, whose shape has no variant. */
static json_t *describe(const struct zr_shape *shape)
{
    if (shape->architecture == ZR_ARCH_GPT2)
        return json_pack("{s:s, s:[s], s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:b, s:f, s:f, s:f}", "model_type",
                         "gpt2", "architectures", "GPT2LMHeadModel", "n_embd", (json_int_t)shape->hidden,
                         "n_head", (json_int_t)shape->heads, "n_layer", (json_int_t)shape->layers,
                         "n_positions", (json_int_t)shape->sequence, "vocab_size",
                         (json_int_t)shape->vocabulary, "activation_function", "gelu_new",
                         "layer_norm_epsilon", 1e-5, "tie_word_embeddings", 1, "attn_pdrop",
                         (double)shape->attention_dropout, "embd_pdrop", (double)shape->embedding_dropout,
                         "resid_pdrop", (double)shape->residual_dropout);
    return json_pack(
        "{s:s, s:[s], s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:b, s:f}", "model_type", "llama",
        "architectures", "LlamaForCausalLM", "hidden_size", (json_int_t)shape->hidden, "num_attention_heads",
        (json_int_t)shape->heads, "num_key_value_heads", (json_int_t)shape->kv_heads, "num_hidden_layers",
        (json_int_t)shape->layers, "intermediate_size", (json_int_t)shape->ffn, "max_position_embeddings",
        (json_int_t)shape->sequence, "vocab_size", (json_int_t)shape->vocabulary, "rms_norm_eps",
        shape->norm_epsilon, "rope_theta", shape->rope_theta, "hidden_act", "silu", "tie_word_embeddings",
        (int)shape->tied, "attention_dropout", (double)shape->attention_dropout);
}

/* The model's config.json; the exported values are fp32. */
static zr_result read_config(const struct zr_model_file *file, const struct zr_shape *shape, json_t **out)
{
    static const char *const types[] = {"dtype", "torch_dtype"};
    char path[ZR_STATE_PATH_ROOM];
    zr_result result = ZR_OK;
    bool known = false;
    json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
    if (file->source && file->source[0]) {
        result = zr_model_folder_path(path, file->source, "config.json");
        if (result == ZR_OK)
            result = zr_model_json_read(path, out);
    } else {
        *out = describe(shape);
    }
    for (size_t i = 0; i < 2 && result == ZR_OK && *out; i++)
        if (json_object_get(*out, types[i]) || (i == 1 && !known)) {
            known = true;
            if (json_object_set_new(*out, types[i], json_string("float32")) != 0)
                return ZR_ERR_HOST_MEMORY;
        }
    return result == ZR_OK && !*out ? ZR_ERR_HOST_MEMORY : result;
}

/* Copies generation_config.json, or makes one of the ids in config.json. */
static zr_result write_generation(const struct zr_model_file *file, const char *folder, const json_t *config)
{
    static const char name[] = "generation_config.json", *const ids[] = {"bos_token_id", "eos_token_id",
                                                                         "pad_token_id"};
    char path[ZR_STATE_PATH_ROOM];
    zr_result result = ZR_OK;
    if (file->source && file->source[0]) {
        result = zr_model_folder_path(path, file->source, name);
        if (result != ZR_OK || is_file(path))
            return result == ZR_OK ? copy_file(file->source, folder, name) : result;
    }
    json_t *root = json_pack("{s:b}", "_from_model_config", 1);
    for (size_t i = 0; i < sizeof ids / sizeof *ids && root; i++)
        if (json_object_get(config, ids[i]))
            json_object_set(root, ids[i], json_object_get(config, ids[i]));
    result = root ? write_json(folder, name, root) : ZR_ERR_HOST_MEMORY;
    json_decref(root);
    return result;
}

zr_result zr_model_folder_finish(const struct zr_model_file *file, const struct zr_shape *shape)
{
    json_t *config = NULL;
    zr_result result = read_config(file, shape, &config);
    if (result == ZR_OK)
        result = write_json(file->path, "config.json", config);
    if (result == ZR_OK)
        result = write_generation(file, file->path, config);
    for (size_t i = 0;
         i < sizeof copied / sizeof *copied && result == ZR_OK && file->source && file->source[0]; i++)
        result = copy_file(file->source, file->path, copied[i]);
    json_decref(config);
    return result;
}

/* ---- Several files ------------------------------------------------------------------------------------- */

/* Bytes of a parameter in the files. */
static uint64_t bytes_of(const struct zr_shape *shape, const struct zr_parameter *parameter, size_t index)
{
    uint64_t rows = zr_model_file_pads(parameter, index) ? shape->vocabulary : parameter->shape[0];
    return rows * (parameter->shape[1] ? parameter->shape[1] : 1) * sizeof(float);
}

size_t zr_model_part_end(const struct zr_transformer *whole, size_t first, uint64_t limit_bytes)
{
    uint64_t bytes = 0;
    size_t count = whole->model.list.parameters_count, end = first;
    while (end < count) {
        bytes += bytes_of(&whole->shape, &whole->parameters[end], end);
        if (end > first && bytes > limit_bytes &&
            !zr_model_file_joins(&whole->shape, &whole->parameters[end]))
            break;
        end++;
    }
    return end;
}

void zr_model_part_name(char out[ZR_MODEL_PART_ROOM], unsigned part, unsigned count)
{
    if (count == 1)
        snprintf(out, ZR_MODEL_PART_ROOM, "model.safetensors");
    else
        snprintf(out, ZR_MODEL_PART_ROOM, "model-%05u-of-%05u.safetensors", part + 1, count);
}

zr_result zr_model_folder_begin(const char *folder, unsigned count)
{
    char path[ZR_STATE_PATH_ROOM];
    zr_result result = count > 1 ? zr_model_folder_path(path, folder, INDEX) : ZR_OK;
    zr_model_export_clean_up(folder);
    return result == ZR_OK && count > 1 && is_file(path) ? zr_path_unlink(path) : result;
}

static zr_result write_index(const char *folder, const struct zr_transformer *whole, uint64_t limit_bytes,
                             unsigned count)
{
    struct output out;
    char name[ZR_MODEL_PART_ROOM];
    uint64_t bytes = 0;
    size_t parameters = whole->model.list.parameters_count;
    zr_result result = open_output(&out, folder, INDEX);
    for (size_t i = 0; i < parameters; i++)
        bytes += bytes_of(&whole->shape, &whole->parameters[i], i);
    zr_text_print(&out.text, "{\n \"metadata\": {\"total_size\": %" PRIu64 "},\n \"weight_map\": {", bytes);
    unsigned part = 0;
    for (size_t first = 0, end; first < parameters; first = end) {
        end = zr_model_part_end(whole, first, limit_bytes);
        zr_model_part_name(name, part++, count);
        for (size_t i = first; i < end; i++) {
            struct zr_model_file_name file;
            zr_model_file_name(&whole->shape, &whole->parameters[i], &file);
            if (file.rows.before == 0)
                zr_text_print(&out.text, "%s\n  \"%s%s\": \"%s\"", i ? "," : "",
                              zr_model_export_prefix(&whole->shape, &file), file.name, name);
        }
    }
    zr_text_print(&out.text, "\n }\n}\n");
    return close_output(&out, result);
}

zr_result zr_model_folder_index(const char *folder, const struct zr_transformer *whole, uint64_t limit_bytes,
                                unsigned count)
{
    char path[ZR_STATE_PATH_ROOM];
    zr_result result = zr_model_folder_path(path, folder, count > 1 ? "model.safetensors" : INDEX);
    if (result == ZR_OK && count > 1)
        result = write_index(folder, whole, limit_bytes, count);
    return result == ZR_OK && is_file(path) ? zr_path_unlink(path) : result;
}
