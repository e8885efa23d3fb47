/* model_export.c: writes a model as one file, all ranks at once; see model_file.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/system/file.h"

#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/comm/mesh.h"
#include "zero/checkpoint/model_file.h"
#include "zero/engine/engine.h"

void zr_model_export_clean_up(const char *path)
{
    char partial[ZR_STATE_PATH_ROOM];
    if (path[0] && zr_state_partial(path, partial))
        unlink(partial);
}

/* zr_state_model.rows: rows without padding of the vocabulary. */
static uint64_t rows(const struct zr_parameter *parameter, size_t index, const void *whose)
{
    const struct zr_shape *shape = whose;
    return zr_model_file_pads(parameter, index) ? shape->vocabulary : parameter->shape[0];
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

/* Prefix of the names in the list that makes them those of the model in transformers. */
static const char *prefix_of(const struct zr_shape *shape)
{
    return shape->architecture == ZR_ARCH_GPT2 ? "transformer." : "";
}

/* zr_state_model.name: PEFT's names of adapters; the model's tensors are not in the file. */
static const char *adapter_name(const struct zr_parameter *parameter, char room[ZR_SAFETENSORS_NAME_MAX],
                                const void *whose)
{
    if (!zr_is_adapter(parameter->name))
        return "";
    snprintf(room, ZR_SAFETENSORS_NAME_MAX, "base_model.model.%s%s", prefix_of(whose), parameter->name);
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
        const char *name = transformer->parameters[i].name, *end = strstr(name, ".lora_A.");
        if (!end)
            continue;
        zr_text_print(text, "%s\n  \"%s%.*s\"", separator, prefix_of(shape), (int)(end - name), name);
        separator = ",";
    }
    zr_text_print(text, "\n ]\n}\n");
    return zr_text_flush(text);
}

/* Writes adapter_config.json into the folder of the exported file. */
static zr_result write_config(const struct zr_model_file *file, const struct zr_transformer *transformer)
{
    static const char name[] = "adapter_config.json";
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

zr_result zr_model_export(const struct zr_model_file *file)
{
    struct zr_shape shape = file->shape;
    zr_shape_complete(&shape);
    bool adapts = shape.trainable && shape.trainable->lora.rank > 0;
    const struct zr_state_model whole_model = {.rows = rows, .say = say_notes, .whose = &shape},
                                adapters = {
                                    .rows = rows, .name = adapter_name, .say = say_adapters, .whose = &shape};
    const struct zr_state_model *model = adapts ? &adapters : &whole_model;
    struct zr_whole whole;
    zr_result result =
        zr_comm_all_status(file->comm, zr_whole_open(&whole, file->engine, &file->shape, file->comm));
    if (result == ZR_OK)
        result = zr_state_write(
            file->engine, &(struct zr_state_file){.path = file->path, .model = model, .parts = whole.given},
            NULL);
    zr_whole_close(&whole);
    if (result == ZR_OK && adapts)
        result = zr_comm_all_status(file->comm, zr_comm_rank(file->comm) == 0 ? export_config(file) : ZR_OK);
    return result;
}
