/* model_names.c: see model_names.h. Files are untrusted until checked. */
#include "zero/checkpoint/model_names.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sort.h"
#include "alloc/heap/heap.h"

static const struct zr_model_convention conventions[ZR_ARCH_COUNT] = {
    [ZR_ARCH_GPT2] = {.model_type = "gpt2",
                      .prefix = "transformer.",
                      .layer = "h.",
                      .masks = {".attn.bias", ".attn.masked_bias"},
                      .conv1d = "h.0.attn.c_attn.weight"},
    [ZR_ARCH_LLAMA] = {.model_type = "llama",
                       .prefix = "model.",
                       .layer = "model.layers.",
                       .masks = {".self_attn.rotary_emb.inv_freq", NULL}},
};

static bool before(const void *a, const void *b)
{
    return strcmp(((const struct zr_model_name *)a)->name, ((const struct zr_model_name *)b)->name) < 0;
}

zr_result zr_model_names_open(struct zr_model_names *names, const struct zr_transformer *transformer)
{
    size_t count = transformer->model.list.parameters_count;
    *names = (struct zr_model_names){.shape = &transformer->shape,
                                     .convention = &conventions[transformer->shape.architecture],
                                     .parameters = transformer->parameters,
                                     .places = zr_heap_zalloc(count, sizeof *names->places),
                                     .sorted = zr_heap_zalloc(count, sizeof *names->sorted),
                                     .count = count};
    if (!names->places || !names->sorted)
        return ZR_ERR_HOST_MEMORY;
    for (size_t i = 0; i < count; i++)
        names->sorted[i] = (struct zr_model_name){names->parameters[i].name, i};
    zr_sort_in_place(&(struct zr_sort_records){names->sorted, count, sizeof *names->sorted, before});
    return ZR_OK;
}

void zr_model_names_close(struct zr_model_names *names)
{
    zr_heap_free(names->sorted);
    zr_heap_free(names->places);
    *names = (struct zr_model_names){0};
}

size_t zr_model_names_find(const struct zr_model_names *names, const char *name)
{
    size_t from = 0, to = names->count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        int order = strcmp(names->sorted[middle].name, name);
        if (order == 0)
            return names->sorted[middle].index;
        if (order < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return names->count;
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

/* The name in the list: GPT-2's without the prefix, LLaMA's with it. */
static const char *plain_name(const struct zr_model_names *names, const char *full, char room[256])
{
    const char *prefix = names->convention->prefix;
    bool has = strncmp(full, prefix, strlen(prefix)) == 0,
         wants = strncmp(names->parameters[0].name, prefix, strlen(prefix)) == 0;
    if (has && !wants)
        return full + strlen(prefix);
    if (has == wants || strcmp(full, "lm_head.weight") == 0 || strlen(full) > 200)
        return full;
    snprintf(room, 256, "%s%s", prefix, full);
    return room;
}

zr_result zr_model_names_take(struct zr_model_names *names, const struct zr_safetensors *file,
                              const char *full, struct json_t *entry)
{
    char room[256];
    const char *name = plain_name(names, full, room), *rest;
    struct zr_model_place *into;
    uint64_t layer;

    if (read_layer(names, name, &layer, &rest)) {
        if (is_mask(names->convention, rest))
            return ZR_OK; /* has no values */
        if (layer >= names->layers)
            names->layers = layer + 1;
    }
    size_t at = zr_model_names_find(names, name);
    if (at < names->count)
        into = &names->places[at];
    else if (strcmp(full, "lm_head.weight") == 0)
        into = &names->head;
    else if (names->layers > names->shape->layers)
        return ZR_OK; /* the number of layers is checked when all tensors are known */
    else
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' has a tensor that does not belong to a model of --arch %s: %.100s", file->path,
                       zr_architecture_name(names->shape->architecture), full);
    if (into->found)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' has tensor %.48s twice: with and without a prefix, or in two files", file->path,
                       name);
    into->found = true;
    into->file = file;
    return zr_safetensors_describe(file, full, entry, &into->tensor);
}
