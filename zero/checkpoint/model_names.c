/* model_names.c: see model_names.h. Files are untrusted until checked. */
#include "zero/checkpoint/model_names.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sort.h"
#include "alloc/heap/heap.h"

enum { GPT2 = ZR_NAMES_GEMMA3 + 1, CONVENTIONS };
static const struct zr_model_convention conventions[CONVENTIONS] = {
    [GPT2] = {.prefix = "transformer.",
              .layer = "h.",
              .masks = {".attn.bias", ".attn.masked_bias"},
              .conv1d = "h.0.attn.c_attn.weight"},
    [ZR_NAMES_LLAMA] = {.prefix = "model.",
                        .layer = "model.layers.",
                        .masks = {".self_attn.rotary_emb.inv_freq"}},
    [ZR_NAMES_GEMMA3] = {.prefix = "model.", .layer = "model.layers."},
    [ZR_NAMES_NEOX] = {.prefix = "gpt_neox.",
                       .layer = "gpt_neox.layers.",
                       .masks = {".attention.bias", ".attention.masked_bias",
                                 ".attention.rotary_emb.inv_freq"}},
    [ZR_NAMES_PHI3] = {.prefix = "model.",
                       .layer = "model.layers.",
                       .masks = {".self_attn.rotary_emb.inv_freq"}},
};

/* Other names in files than a LLaMA's. part: 1 + the parameter's number among those of one tensor. */
static const struct {
    uint64_t names;
    const char *from, *to;
    unsigned part;
} renamed[] = {
    {ZR_NAMES_NEOX, "model.embed_tokens.", "gpt_neox.embed_in.", 0},
    {ZR_NAMES_NEOX, "model.layers.", "gpt_neox.layers.", 0},
    {ZR_NAMES_NEOX, "model.norm.", "gpt_neox.final_layer_norm.", 0},
    {ZR_NAMES_NEOX, "lm_head.", "embed_out.", 0},
    {ZR_NAMES_NEOX, ".self_attn.q_proj.", ".attention.query_key_value.", 1},
    {ZR_NAMES_NEOX, ".self_attn.k_proj.", ".attention.query_key_value.", 2},
    {ZR_NAMES_NEOX, ".self_attn.v_proj.", ".attention.query_key_value.", 3},
    {ZR_NAMES_NEOX, ".self_attn.o_proj.", ".attention.dense.", 0},
    {ZR_NAMES_NEOX, ".mlp.up_proj.", ".mlp.dense_h_to_4h.", 0},
    {ZR_NAMES_NEOX, ".mlp.down_proj.", ".mlp.dense_4h_to_h.", 0},
    {ZR_NAMES_GEMMA3, ".post_attention_layernorm.", ".pre_feedforward_layernorm.", 0},
    {ZR_NAMES_GEMMA3, ".self_attn.o_norm.", ".post_attention_layernorm.", 0},
    {ZR_NAMES_GEMMA3, ".mlp.down_norm.", ".post_feedforward_layernorm.", 0},
    {ZR_NAMES_PHI3, ".self_attn.q_proj.", ".self_attn.qkv_proj.", 1},
    {ZR_NAMES_PHI3, ".self_attn.k_proj.", ".self_attn.qkv_proj.", 2},
    {ZR_NAMES_PHI3, ".self_attn.v_proj.", ".self_attn.qkv_proj.", 3},
    {ZR_NAMES_PHI3, ".mlp.gate_proj.", ".mlp.gate_up_proj.", 1},
    {ZR_NAMES_PHI3, ".mlp.up_proj.", ".mlp.gate_up_proj.", 2},
};

static struct zr_model_rows rows_of(const struct zr_shape *shape, bool attention, unsigned part)
{
    uint64_t q = zr_shape_queries(shape), head = zr_shape_head(shape), kv = head * shape->kv_heads;
    struct zr_model_rows rows = {.whole = attention ? q + 2 * kv : 2 * shape->ffn};
    if (part > 1)
        rows.before = attention ? q + (part - 2) * kv : shape->ffn;
    if (shape->variant.names == ZR_NAMES_NEOX)
        rows.run = head, rows.first = (part - 1) * head, rows.stride = 3 * head;
    return rows;
}

void zr_model_file_name(const struct zr_shape *shape, const struct zr_parameter *parameter,
                        struct zr_model_file_name *out)
{
    bool bare = shape->architecture == ZR_ARCH_GPT2 && strncmp(parameter->name, "lm_head.", 8) != 0;
    *out = (struct zr_model_file_name){.prefix = bare ? conventions[GPT2].prefix : ""};
    snprintf(out->name, sizeof out->name, "%s", parameter->name);
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        const char *at = renamed[i].names == shape->variant.names ? strstr(out->name, renamed[i].from) : NULL;
        char rest[ZR_SAFETENSORS_NAME_MAX];
        if (!at)
            continue;
        size_t used = (size_t)(at - out->name);
        memcpy(rest, out->name, sizeof rest);
        snprintf(out->name + used, sizeof out->name - used, "%s%s", renamed[i].to,
                 rest + used + strlen(renamed[i].from));
        if (renamed[i].part)
            out->rows = rows_of(shape, strstr(renamed[i].from, "attn") != NULL, renamed[i].part);
    }
}

const char *zr_model_export_prefix(const struct zr_shape *shape, const struct zr_model_file_name *file)
{
    return shape->variant.untied ? file->prefix : "";
}

bool zr_model_file_joins(const struct zr_shape *shape, const struct zr_parameter *parameter)
{
    struct zr_model_file_name file;
    zr_model_file_name(shape, parameter, &file);
    return file.rows.before > 0;
}

uint64_t zr_model_rows_place(const struct zr_model_rows *rows, uint64_t columns, uint64_t element,
                             uint64_t *adjacent)
{
    uint64_t run = rows->run * columns;
    *adjacent = run ? run - element % run : UINT64_MAX;
    return run ? (rows->first + element / run * rows->stride) * columns + element % run
               : rows->before * columns + element;
}

/* By name, and of one name by index, which is the order of the rows in the tensor. */
static bool before(const void *a, const void *b)
{
    const struct zr_model_name *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order < 0 || (order == 0 && x->index < y->index);
}

zr_result zr_model_names_open(struct zr_model_names *names, const struct zr_transformer *transformer)
{
    size_t count = transformer->model.list.parameters_count;
    const struct zr_shape *shape = &transformer->shape;
    *names = (struct zr_model_names){
        .shape = shape,
        .convention = &conventions[shape->architecture == ZR_ARCH_GPT2 ? GPT2 : shape->variant.names],
        .parameters = transformer->parameters,
        .places = zr_heap_zalloc(count, sizeof *names->places),
        .sorted = zr_heap_zalloc(count, sizeof *names->sorted),
        .filed = zr_heap_zalloc(count, sizeof *names->filed),
        .count = count};
    if (!names->places || !names->sorted || !names->filed)
        return ZR_ERR_HOST_MEMORY;
    for (size_t i = 0; i < count; i++) {
        zr_model_file_name(shape, &names->parameters[i], &names->places[i].file_name);
        names->sorted[i] = (struct zr_model_name){names->parameters[i].name, i};
        names->filed[i] = (struct zr_model_name){names->places[i].file_name.name, i};
    }
    zr_sort_in_place(&(struct zr_sort_records){names->sorted, count, sizeof *names->sorted, before});
    zr_sort_in_place(&(struct zr_sort_records){names->filed, count, sizeof *names->filed, before});
    return ZR_OK;
}

void zr_model_names_close(struct zr_model_names *names)
{
    zr_heap_free(names->filed);
    zr_heap_free(names->sorted);
    zr_heap_free(names->places);
    *names = (struct zr_model_names){0};
}

/* Position of the first entry with a name; count: none. */
static size_t find(const struct zr_model_name *sorted, size_t count, const char *name)
{
    size_t from = 0, to = count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (strcmp(sorted[middle].name, name) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from < count && strcmp(sorted[from].name, name) == 0 ? from : count;
}

size_t zr_model_names_find(const struct zr_model_names *names, const char *name)
{
    size_t at = find(names->sorted, names->count, name);
    return at < names->count ? names->sorted[at].index : names->count;
}

const struct zr_model_place *zr_model_names_matrix(const struct zr_model_names *names, const char *name)
{
    size_t at = zr_model_names_find(names, name);
    return at < names->count && names->places[at].found && names->places[at].tensor.dimensions == 2
               ? &names->places[at]
               : NULL;
}

/* Parses the layer of "h.12.attn...."; `rest` starts at the dot after it. False for another name. */
static bool read_layer(const struct zr_model_names *names, const char *name, uint64_t *layer,
                       const char **rest)
{
    size_t length = strlen(names->convention->layer);
    if (strncmp(name, names->convention->layer, length) != 0 || name[length] < '0' || name[length] > '9')
        return false;
    *layer = 0;
    for (name += length; *name >= '0' && *name <= '9'; name++)
        if (*layer > UINT32_MAX) /* beyond any model */
            return false;
        else
            *layer = 10 * *layer + (uint64_t)(*name - '0');
    *rest = name;
    return *name == '.';
}

static bool is_mask(const struct zr_model_convention *convention, const char *rest)
{
    for (size_t i = 0; i < sizeof convention->masks / sizeof *convention->masks; i++)
        if (convention->masks[i] && strcmp(rest, convention->masks[i]) == 0)
            return true;
    return false;
}

/* The name of an untied head; transformers 5 has one for all families, 4 another one for GPT-NeoX. */
static bool is_head(const char *name)
{
    return strcmp(name, "lm_head.weight") == 0 || strcmp(name, "embed_out.weight") == 0;
}

/* The name without GPT-2's prefix, or with that of other families. */
static const char *plain_name(const struct zr_model_names *names, const char *full, char room[256])
{
    const char *prefix = names->convention->prefix;
    bool has = strncmp(full, prefix, strlen(prefix)) == 0,
         wants = strncmp(names->places[0].file_name.name, prefix, strlen(prefix)) == 0;
    if (has && !wants)
        return full + strlen(prefix);
    if (has == wants || is_head(full) || strlen(full) > 200)
        return full;
    snprintf(room, 256, "%s%s", prefix, full);
    return room;
}

/* Records a tensor as a parameter's, or its part; `parameter` NULL: a head that is tied. */
static zr_result take_place(struct zr_model_place *into, const struct zr_parameter *parameter,
                            const struct zr_safetensors *file, const char *full, struct json_t *entry)
{
    struct zr_safetensors_tensor *tensor = &into->tensor;
    if (into->found)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' has tensor %.48s twice: with and without a prefix, or in two files", file->path,
                       full);
    into->found = true;
    into->file = file;
    zr_result result = zr_safetensors_describe(file, full, entry, tensor);
    if (!result && into->file_name.rows.whole && tensor->shape[0] == into->file_name.rows.whole) {
        tensor->elements = tensor->elements / tensor->shape[0] * parameter->shape[0];
        tensor->shape[0] = parameter->shape[0];
    } else if (!result && into->file_name.rows.whole) {
        tensor->shape[0] = 0; /* a tensor of another model */
    }
    return result;
}

zr_result zr_model_names_take(struct zr_model_names *names, const struct zr_safetensors *file,
                              const char *full, struct json_t *entry)
{
    char room[256];
    const char *name = plain_name(names, full, room), *rest;
    bool neox = names->shape->variant.names == ZR_NAMES_NEOX;
    size_t at = find(names->filed, names->count,
                     neox && strcmp(full, "lm_head.weight") == 0 ? "embed_out.weight" : name);
    uint64_t layer;

    if (read_layer(names, name, &layer, &rest)) {
        if (is_mask(names->convention, rest))
            return ZR_OK; /* has no values */
        if (layer >= names->layers)
            names->layers = layer + 1;
    }
    if (at < names->count) {
        zr_result result = ZR_OK;
        for (size_t i = at;
             i < names->count && !strcmp(names->filed[i].name, names->filed[at].name) && !result; i++)
            result = take_place(&names->places[names->filed[i].index],
                                &names->parameters[names->filed[i].index], file, full, entry);
        return result;
    }
    if (strcmp(full, "lm_head.weight") == 0 || (neox && is_head(full)))
        return take_place(&names->head, NULL, file, full, entry);
    if (names->layers > names->shape->layers)
        return ZR_OK; /* the number of layers is checked when all tensors are known */
    return zr_fail(ZR_ERR_FORMAT, "'%s' has a tensor that does not belong to a model of --arch %s: %.100s",
                   file->path, zr_architecture_name(names->shape->architecture), full);
}
