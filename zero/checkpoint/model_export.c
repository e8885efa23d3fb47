/* model_export.c: writes a model as one file, all ranks at once; see model_file.h. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/system/file.h"

#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/checkpoint/model_names.h"
#include "zero/comm/mesh.h"
#include "zero/engine/engine.h"

#define ADAPTER_CONFIG "adapter_config.json"

static void remove_partial(int fd, const char *name)
{
    static const char tail[] = ".partial";
    size_t length = strlen(name), stem = length - (sizeof tail - 1);
    if (length >= sizeof tail && strcmp(name + stem, tail) == 0 && zr_model_folder_writes(name, stem))
        unlinkat(fd, name, 0);
}

void zr_model_export_clean_up(const char *path)
{
    char partial[ZR_STATE_PATH_ROOM];
    int fd = path[0] ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        zr_checkpoint_walk(fd, remove_partial);
        close(fd);
    } else if (path[0] && zr_state_partial(path, partial)) {
        char *slash = strrchr(partial, '/'), *name = slash ? slash + 1 : partial;
        unlink(partial);
        if ((size_t)(name - partial) + sizeof ADAPTER_CONFIG ".partial" <= sizeof partial) {
            memcpy(name, ADAPTER_CONFIG ".partial", sizeof ADAPTER_CONFIG ".partial");
            unlink(partial);
        }
    }
}

/* zr_state_model.rows: rows without padding of the vocabulary. */
static uint64_t rows(const struct zr_parameter *parameter, size_t index, const void *whose)
{
    const struct zr_shape *shape = whose;
    return zr_model_file_pads(parameter, index) ? shape->vocabulary : parameter->shape[0];
}

/* zr_state_model.name */
static const char *file_name(const struct zr_parameter *parameter, char room[ZR_SAFETENSORS_NAME_MAX],
                             const void *whose)
{
    struct zr_model_file_name file;
    zr_model_file_name(whose, parameter, &file);
    snprintf(room, ZR_SAFETENSORS_NAME_MAX, "%s%.100s", zr_model_export_prefix(whose, &file), file.name);
    return room;
}

static bool joins(const struct zr_parameter *parameter, const void *whose)
{
    return zr_model_file_joins(whose, parameter);
}

static int64_t place(const struct zr_parameter *parameter, uint64_t element, uint64_t *adjacent,
                     const void *whose)
{
    struct zr_model_file_name file;
    uint64_t columns = parameter->shape[1] ? parameter->shape[1] : 1;
    zr_model_file_name(whose, parameter, &file);
    return (int64_t)(zr_model_rows_place(&file.rows, columns, element, adjacent) -
                     file.rows.before * columns);
}

/* zr_state_model.say */
static void say_notes(struct zr_safetensors_header *header, const void *whose)
{
    const struct zr_shape *shape = whose;
    zr_safetensors_note(header, "format", "pt");
    zr_safetensors_note(header, "n_head", "%zu", shape->heads);
    char variant[ZR_VARIANT_ROOM];
    zr_variant_print(&shape->variant, variant);
    if (variant[0])
        zr_safetensors_note(header, ZR_MODEL_VARIANT, "%.255s", variant);
    if (shape->architecture == ZR_ARCH_GPT2 && shape->norm_epsilon > 0)
        zr_safetensors_note(header, "norm_epsilon", "%.17g", shape->norm_epsilon);
    if (shape->architecture == ZR_ARCH_LLAMA) {
        zr_safetensors_note(header, "n_kv_head", "%zu", shape->kv_heads);
        zr_safetensors_note(header, "rope_theta", "%.17g", shape->rope_theta);
        zr_safetensors_note(header, "norm_epsilon", "%.17g", shape->norm_epsilon);
    }
}

/* ---- Adapters ------------------------------------------------------------------------------------------ */

/* zr_state_model.name: PEFT's names of adapters; the model's tensors are not in the file. */
static const char *adapter_name(const struct zr_parameter *parameter, char room[ZR_SAFETENSORS_NAME_MAX],
                                const void *whose)
{
    struct zr_model_file_name file;
    if (!zr_is_adapter(parameter->name))
        return "";
    zr_model_file_name(whose, parameter, &file);
    snprintf(room, ZR_SAFETENSORS_NAME_MAX, "base_model.model.%s%.90s", file.prefix, file.name);
    return room;
}

static void say_adapters(struct zr_safetensors_header *header, const void *whose)
{
    (void)whose;
    zr_safetensors_note(header, "format", "pt");
}

/* Writes the contents of adapter_config.json. GPT-2's matrices are [in, out] (fan_in_fan_out). */
static zr_result print_adapters(const struct zr_transformer *transformer, struct zr_text *text)
{
    const struct zr_shape *shape = &transformer->shape;
    const struct zr_lora *lora = &shape->trainable->lora;
    const char *separator = "";
    zr_text_print(text,
                  "{\n \"peft_type\": \"LORA\",\n \"task_type\": \"CAUSAL_LM\",\n"
                  " \"base_model_name_or_path\": null,\n \"inference_mode\": true,\n"
                  " \"r\": %u,\n \"lora_alpha\": %.9g,\n \"lora_dropout\": 0.0,\n \"bias\": \"none\",\n"
                  " \"fan_in_fan_out\": %s,\n \"target_modules\": [",
                  lora->rank, (double)lora->alpha, shape->architecture == ZR_ARCH_GPT2 ? "true" : "false");
    for (size_t i = 0; i < transformer->model.list.parameters_count; i++) {
        struct zr_model_file_name file;
        zr_model_file_name(shape, &transformer->parameters[i], &file);
        const char *end = strstr(file.name, ".lora_A.");
        if (!end)
            continue;
        zr_text_print(text, "%s\n  \"%s%.*s\"", separator, file.prefix, (int)(end - file.name), file.name);
        separator = ",";
    }
    zr_text_print(text, "\n ]\n}\n");
    return zr_text_flush(text);
}

/* Writes adapter_config.json into the folder of the exported file. */
static zr_result write_config(const struct zr_model_file *file, const struct zr_transformer *transformer)
{
    static const char name[] = ADAPTER_CONFIG;
    const char *slash = strrchr(file->path, '/');
    char path[ZR_STATE_PATH_ROOM], partial[ZR_STATE_PATH_ROOM], space[1024];
    struct zr_file out = {.fd = -1};
    struct zr_text text;
    int length =
        snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - file->path) + 1 : 0, file->path, name);
    if (length < 0 || (size_t)length >= sizeof path || !zr_state_partial(path, partial))
        return zr_fail(ZR_ERR_INVALID, "the path of %s is too long", name);
    zr_result result = zr_file_create(&out, partial, ZR_CREATE_REPLACE);
    if (result != ZR_OK)
        return result;
    zr_text_start(&text, &out, space, sizeof space);
    result = print_adapters(transformer, &text);
    if (result == ZR_OK)
        result = zr_file_sync(&out);
    zr_file_close(&out);
    if (result == ZR_OK)
        result = zr_path_rename(&(struct zr_rename){.from = partial, .to = path});
    else
        zr_path_unlink(partial);
    return result == ZR_OK ? zr_path_sync_name(path) : result;
}

static zr_result export_config(const struct zr_model_file *file)
{
    const struct zr_shape dense = zr_shape_dense(&file->shape);
    struct zr_transformer transformer;
    zr_result result = zr_transformer_open(&transformer, &dense, NULL, file->engine->options.host_arena);
    if (result != ZR_OK)
        return result;
    result = write_config(file, &transformer);
    zr_transformer_close(&transformer);
    return result;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

bool zr_model_is_folder(const char *path)
{
    enum zr_path_kind kind;
    size_t length = strlen(path);
    return length > 0 &&
           (path[length - 1] == '/' || (zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_FOLDER));
}

/* The parameters of one file of several. */
struct part {
    const struct zr_shape *shape;
    const struct zr_transformer *whole;
    size_t first, end;
};

static const char *part_name(const struct zr_parameter *parameter, char room[ZR_SAFETENSORS_NAME_MAX],
                             const void *whose)
{
    const struct part *part = whose;
    for (size_t i = part->first; i < part->end; i++)
        if (strcmp(part->whole->parameters[i].name, parameter->name) == 0)
            return file_name(parameter, room, part->shape);
    return "";
}

static bool part_joins(const struct zr_parameter *parameter, const void *whose)
{
    return joins(parameter, ((const struct part *)whose)->shape);
}

static int64_t part_place(const struct zr_parameter *parameter, uint64_t element, uint64_t *adjacent,
                          const void *whose)
{
    return place(parameter, element, adjacent, ((const struct part *)whose)->shape);
}

static uint64_t part_rows(const struct zr_parameter *parameter, size_t index, const void *whose)
{
    return rows(parameter, index, ((const struct part *)whose)->shape);
}

static void say_part(struct zr_safetensors_header *header, const void *whose)
{
    say_notes(header, ((const struct part *)whose)->shape);
}

/* Writes the parameters as files of a folder. */
static zr_result export_parts(const struct zr_model_file *file, const struct zr_whole *whole,
                              const struct zr_transformer *model)
{
    struct part part = {&file->shape, model, 0, 0};
    const struct zr_state_model written = {.rows = part_rows,
                                           .name = part_name,
                                           .joins = part_joins,
                                           .place = part_place,
                                           .say = say_part,
                                           .whose = &part};
    char path[ZR_STATE_PATH_ROOM], name[ZR_MODEL_PART_ROOM];
    size_t parameters = model->model.list.parameters_count;
    unsigned count = 0;
    bool first_rank = zr_comm_rank(file->comm) == 0;
    for (size_t first = 0; first < parameters; count++)
        first = zr_model_part_end(model, first, file->part_bytes);
    zr_result result =
        zr_comm_all_status(file->comm, first_rank ? zr_model_folder_begin(file->path, count) : ZR_OK);
    for (unsigned i = 0; i < count && result == ZR_OK; i++, part.first = part.end) {
        part.end = zr_model_part_end(model, part.first, file->part_bytes);
        zr_model_part_name(name, i, count);
        result = zr_model_folder_path(path, file->path, name);
        if (result == ZR_OK)
            result = zr_state_write(
                file->engine, &(struct zr_state_file){.path = path, .model = &written, .parts = whole->given},
                NULL);
    }
    return result != ZR_OK ? result
           : first_rank    ? zr_model_folder_index(file->path, model, file->part_bytes, count)
                           : ZR_OK;
}

static zr_result export_folder(const struct zr_model_file *file, const struct zr_whole *whole)
{
    struct zr_shape dense = zr_shape_dense(&file->shape);
    struct zr_transformer model;
    dense.trainable = NULL;
    zr_result result = zr_comm_all_status(
        file->comm, zr_transformer_open(&model, &dense, NULL, file->engine->options.host_arena));
    if (result != ZR_OK)
        return result;
    result = zr_comm_all_status(file->comm, export_parts(file, whole, &model));
    if (result == ZR_OK)
        result = zr_comm_all_status(
            file->comm, zr_comm_rank(file->comm) == 0 ? zr_model_folder_finish(file, &model.shape) : ZR_OK);
    zr_transformer_close(&model);
    return result;
}

static zr_result export_file(const struct zr_model_file *file, const struct zr_whole *whole)
{
    bool adapts = file->shape.trainable && file->shape.trainable->lora.rank > 0;
    const struct zr_state_model whole_model = {.rows = rows,
                                               .name = file_name,
                                               .joins = joins,
                                               .place = place,
                                               .say = say_notes,
                                               .whose = &file->shape},
                                adapters = {.rows = rows,
                                            .name = adapter_name,
                                            .say = say_adapters,
                                            .whose = &file->shape};
    zr_result result = zr_state_write(file->engine,
                                      &(struct zr_state_file){.path = file->path,
                                                              .model = adapts ? &adapters : &whole_model,
                                                              .parts = whole->given},
                                      NULL);
    if (result == ZR_OK && adapts)
        result = zr_comm_all_status(file->comm, zr_comm_rank(file->comm) == 0 ? export_config(file) : ZR_OK);
    return result;
}

zr_result zr_model_export(const struct zr_model_file *given)
{
    struct zr_model_file file = *given;
    bool adapts = file.shape.trainable && file.shape.trainable->lora.rank > 0,
         folder = zr_model_is_folder(file.path);
    char path[ZR_STATE_PATH_ROOM];
    struct zr_whole whole;
    zr_result result = ZR_OK;
    zr_shape_complete(&file.shape);
    if (folder && zr_comm_rank(file.comm) == 0)
        result = zr_checkpoint_make_folder(file.path);
    if (result == ZR_OK && folder && adapts)
        result = zr_model_folder_path(path, file.path, "adapter_model.safetensors");
    zr_result opened = zr_whole_open(&whole, file.engine, &given->shape, file.comm);
    result = zr_comm_all_status(file.comm, result ? result : opened);
    if (folder && adapts)
        file.path = path;
    if (result == ZR_OK)
        result = folder && !adapts ? export_folder(&file, &whole) : export_file(&file, &whole);
    zr_whole_close(&whole);
    return result;
}
