/* safetensors_import.c: fills an engine from a GPT-2 in one file; see safetensors_gpt.h. Every rank reads the
 * header and, of the data, what it owns. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/train/checkpoint_inside.h"
#include "zero/train/safetensors_read.h"
#include "zero/engine/engine.h"
#include "zero/train/safetensors_gpt.h"

enum { EMBEDDINGS = 2, BLOCK_PARAMETERS = 12 }; /* of zr_gpt_describe()'s list */

#define PIECE_ELEMENTS (ZR_CHECKPOINT_PIECE / sizeof(float))

/* A parameter of the model and where its values are. */
struct place {
    uint64_t first, elements; /* global; `first` counts without padding */
    uint64_t filled;          /* elements that the file has; the rest are zero */
    bool found;
    struct zr_safetensors_tensor tensor;
};

struct import {
    const struct zr_gpt_file *gpt;
    struct zr_safetensors file;
    struct zr_transformer transformer;
    const struct zr_parameter *parameters; /* [count], the transformer's */
    struct place *places;                  /* [count], zr_heap */
    size_t count;
    uint64_t layers; /* that the file has tensors of */
    struct zr_safetensors_tensor head;
    bool has_head;
    bool linear;  /* matrices are [out, in] */
    float *piece; /* [PIECE_ELEMENTS], zr_heap */
};

/* ---- Names --------------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *tail)
{
    size_t length = strlen(name), tail_length = strlen(tail);
    return length >= tail_length && strcmp(name + length - tail_length, tail) == 0;
}

/* Reads the layer of "h.12.attn...."; false for another name. */
static bool read_layer(const char *name, uint64_t *layer)
{
    if (name[0] != 'h' || name[1] != '.' || name[2] < '0' || name[2] > '9')
        return false;
    *layer = 0;
    for (name += 2; *name >= '0' && *name <= '9'; name++)
        if (*layer > UINT32_MAX) /* no model has as many */
            return false;
        else
            *layer = 10 * *layer + (uint64_t)(*name - '0');
    return *name == '.';
}

/* Whether it is "h.12" and `tail`. */
static bool is_of_layer(const char *name, const char *tail)
{
    uint64_t layer;
    return read_layer(name, &layer) && strcmp(strchr(name + 2, '.'), tail) == 0;
}

/* The index of a parameter of this model, or the list's length. */
static size_t find_parameter(const struct import *import, const char *name)
{
    uint64_t layer;
    size_t from = 0, to = EMBEDDINGS;

    if (read_layer(name, &layer)) {
        if (layer >= import->gpt->shape.layers)
            return import->count;
        from = EMBEDDINGS + BLOCK_PARAMETERS * (size_t)layer;
        to = from + BLOCK_PARAMETERS;
    } else if (strncmp(name, "ln_f.", 5) == 0) {
        from = import->count - 2;
        to = import->count;
    }
    for (size_t i = from; i < to; i++)
        if (strcmp(import->parameters[i].name, name) == 0)
            return i;
    return import->count;
}

/* Takes note of one entry of the header. */
static zr_result take_entry(struct import *import, const char *full, json_t *entry)
{
    const char *name = strncmp(full, "transformer.", 12) == 0 ? full + 12 : full;
    struct zr_safetensors_tensor *into;
    uint64_t layer;

    if (is_of_layer(name, ".attn.bias") || is_of_layer(name, ".attn.masked_bias"))
        return ZR_OK; /* masks, which are the same for all */
    if (read_layer(name, &layer) && layer >= import->layers)
        import->layers = layer + 1;
    size_t at = find_parameter(import, name);
    if (strcmp(full, "lm_head.weight") == 0) {
        import->has_head = true;
        into = &import->head;
    } else if (at < import->count) {
        if (import->places[at].found)
            return zr_fail(ZR_ERR_FORMAT, "'%s' has tensor %.48s twice, with and without a prefix",
                           import->file.path, name);
        import->places[at].found = true;
        into = &import->places[at].tensor;
    } else if (import->layers > import->gpt->shape.layers) {
        return ZR_OK; /* its number of layers is told when all are known */
    } else {
        return zr_fail(ZR_ERR_FORMAT, "'%s' has a tensor that is no part of a GPT-2: %.100s",
                       import->file.path, full);
    }
    return zr_safetensors_describe(&import->file, full, entry, into);
}

/* How many files the model is in: "model-00001-of-00002.safetensors" says two; 1 where the name says nothing.
 */
static unsigned long count_files(const char *path)
{
    const char *name = strrchr(path, '/'), *of = NULL;
    char *end = NULL;
    for (const char *at = name ? name : path; (at = strstr(at, "-of-")); at++)
        of = at;
    unsigned long count = of && of[4] >= '0' && of[4] <= '9' ? strtoul(of + 4, &end, 10) : 1;
    return count > 1 && strcmp(end, ".safetensors") == 0 ? count : 1;
}

/* Told before any tensor that it lacks. */
static zr_result check_whole(const struct import *import, json_t *metadata)
{
    const char *path = import->file.path, *format = json_string_value(json_object_get(metadata, "format"));
    if (format && strcmp(format, ZR_CHECKPOINT_FORMAT) == 0)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is one rank's part of a checkpoint; give the folder that --save wrote to", path);
    if (count_files(path) > 1)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is one of %lu files of a model, and zr-train reads a model from one; save the "
                       "model as one safetensors file",
                       path, count_files(path));
    return ZR_OK;
}

static zr_result check_heads(const struct import *import, json_t *metadata)
{
    const char *heads = json_string_value(json_object_get(metadata, "n_head"));
    char ours[24];
    snprintf(ours, sizeof ours, "%zu", import->gpt->shape.heads);
    if (heads && strcmp(heads, ours) != 0)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is a model with --heads %.20s, this run has %s; give --heads %.20s",
                       import->file.path, heads, ours, heads);
    return ZR_OK;
}

/* ---- Shapes -------------------------------------------------------------------------------------------- */

static zr_result other_size(const struct import *import, const char *option, uint64_t theirs, uint64_t ours)
{
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' is another model: it has %s %" PRIu64 ", this run has %" PRIu64
                   "; resume with %s %" PRIu64,
                   import->file.path, option, theirs, ours, option, theirs);
}

/* The sizes that flags give are told by the flag, wte first. */
static zr_result check_embeddings(const struct import *import)
{
    const struct zr_shape *shape = &import->gpt->shape;
    const struct zr_safetensors_tensor *wte = &import->places[0].tensor, *wpe = &import->places[1].tensor;

    if (!import->places[0].found || !import->places[1].found || wte->dimensions != 2 || wpe->dimensions != 2)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is no GPT-2: it has no matrices wte.weight and wpe.weight; give a folder that "
                       "--save wrote to, or a GPT-2 as safetensors",
                       import->file.path);
    if (wte->shape[1] != shape->hidden)
        return other_size(import, "--hidden", wte->shape[1], shape->hidden);
    if (wte->shape[0] != shape->vocabulary && wte->shape[0] != shape->vocabulary_padded)
        return other_size(import, "--vocab", wte->shape[0], shape->vocabulary);
    if (wpe->shape[0] != shape->sequence)
        return other_size(import, "--seq", wpe->shape[0], shape->sequence);
    if (import->layers < shape->layers && !import->places[import->count - 1].found)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is a part of a model: it ends after %" PRIu64
                       " layers and has no ln_f.bias; save "
                       "the model as one safetensors file",
                       import->file.path, import->layers);
    if (import->layers != shape->layers)
        return other_size(import, "--layers", import->layers, shape->layers);
    return ZR_OK;
}

static bool has_shape(const struct zr_safetensors_tensor *tensor, uint64_t rows, uint64_t columns)
{
    return columns == 0 ? tensor->dimensions == 1 && tensor->shape[0] == rows
                        : tensor->dimensions == 2 && tensor->shape[0] == rows && tensor->shape[1] == columns;
}

/* Conv1D has [in, out], Linear [out, in]: c_attn, which is not square, tells for all. */
static zr_result check_shapes(struct import *import)
{
    size_t hidden = import->gpt->shape.hidden;
    uint64_t first = 0;

    for (size_t i = 0; i < import->count; i++) {
        const struct zr_parameter *p = &import->parameters[i];
        struct place *place = &import->places[i];
        uint64_t rows = p->shape[0], columns = p->shape[1];
        bool block_matrix = i >= EMBEDDINGS && columns;

        place->first = first;
        place->elements = zr_parameter_elements(p);
        first += place->elements;
        if (!place->found)
            return zr_fail(ZR_ERR_FORMAT, "'%s' has no tensor %s", import->file.path, p->name);
        place->filled = place->tensor.elements;
        if (i == 0)
            continue; /* the one that may have fewer rows */
        if (ends_with(p->name, "h.0.attn.c_attn.weight"))
            import->linear = has_shape(&place->tensor, 3 * hidden, hidden);
        if (block_matrix && import->linear) {
            rows = p->shape[1];
            columns = p->shape[0];
        }
        if (!has_shape(&place->tensor, rows, columns))
            return zr_fail(ZR_ERR_FORMAT,
                           "'%s': tensor %s has another shape than [%" PRIu64 "%s%.0" PRIu64
                           "], which this run's --layers, --hidden, --vocab and --seq give it",
                           import->file.path, p->name, rows, columns ? ", " : "", columns);
    }
    if (import->has_head && !has_shape(&import->head, import->places[0].tensor.shape[0], hidden))
        return zr_fail(ZR_ERR_FORMAT, "'%s': lm_head.weight has another shape than wte.weight",
                       import->file.path);
    return ZR_OK;
}

/* The head of this model is wte itself: one of its own would be lost. */
static zr_result check_head(const struct import *import)
{
    size_t half = PIECE_ELEMENTS / 2;
    uint64_t count = import->places[0].tensor.elements;
    zr_result result = ZR_OK;

    for (uint64_t done = 0; import->has_head && done < count && !result; done += half) {
        struct zr_safetensors_part part = {done, count - done < half ? (size_t)(count - done) : half};
        result = zr_safetensors_read(&import->file, &import->places[0].tensor, &part, import->piece);
        if (!result)
            result = zr_safetensors_read(&import->file, &import->head, &part, import->piece + half);
        if (!result && memcmp(import->piece, import->piece + half, part.count * sizeof(float)) != 0)
            return zr_fail(
                ZR_ERR_FORMAT,
                "'%s': lm_head.weight is not wte.weight, and this model's head is tied to it; give "
                "a model whose head is",
                import->file.path);
    }
    return result;
}

static zr_result start(struct import *import)
{
    const struct zr_shape *shape = &import->gpt->shape;
    zr_result result = zr_safetensors_open(&import->file, import->gpt->path);

    if (result)
        return result;
    result = zr_transformer_open(&import->transformer, shape, import->gpt->engine->options.host_arena);
    if (result)
        return result;
    import->parameters = import->transformer.parameters;
    import->count = import->transformer.model.list.parameters_count;
    import->places = zr_heap_zalloc(import->count, sizeof *import->places);
    import->piece = zr_heap_alloc(ZR_CHECKPOINT_PIECE);
    if (!import->places || !import->piece)
        return ZR_ERR_HOST_MEMORY;
    json_t *root = import->file.root;
    result = check_whole(import, json_object_get(root, "__metadata__"));
    for (void *at = json_object_iter(root); at && !result; at = json_object_iter_next(root, at)) {
        const char *name = json_object_iter_key(at);
        result = strcmp(name, "__metadata__") == 0 ? check_heads(import, json_object_iter_value(at))
                                                   : take_entry(import, name, json_object_iter_value(at));
    }
    if (!result)
        result = check_embeddings(import);
    if (!result)
        result = check_shapes(import);
    if (!result && zr_comm_rank(import->gpt->comm) == 0)
        result = check_head(import);
    return result;
}

static void finish(struct import *import)
{
    zr_safetensors_close(&import->file);
    zr_heap_free(import->piece);
    zr_heap_free(import->places);
    zr_transformer_close(&import->transformer);
}

/* ---- The data ------------------------------------------------------------------------------------------ */

/* Elements [from, from + count) of a matrix [rows, columns], out of its transposed tensor: a run of rows of
 * one column after the other. */
static zr_result read_transposed(const struct import *import, const struct place *place,
                                 const struct zr_safetensors_part *wanted, float *out)
{
    const struct zr_safetensors_tensor *tensor = &place->tensor;
    uint64_t rows = tensor->shape[1], columns = tensor->shape[0], end = wanted->first + wanted->count;
    zr_result result = ZR_OK;

    for (uint64_t column = 0; column < columns; column++) {
        uint64_t row = wanted->first / columns, last = (end - 1) / columns;
        while (row <= last && !result) {
            size_t count = last - row + 1 < PIECE_ELEMENTS ? (size_t)(last - row + 1) : PIECE_ELEMENTS;
            result =
                zr_safetensors_read(&import->file, tensor,
                                    &(struct zr_safetensors_part){column * rows + row, count}, import->piece);
            for (size_t i = 0; i < count && !result; i++) {
                uint64_t index = (row + i) * columns + column;
                if (index >= wanted->first && index < end)
                    out[index - wanted->first] = import->piece[i];
            }
            row += count;
        }
        if (result)
            return result;
    }
    return ZR_OK;
}

/* Elements of one parameter. */
static zr_result read_part(const struct import *import, size_t index, const struct zr_safetensors_part *part,
                           float *out)
{
    const struct place *place = &import->places[index];
    uint64_t there = place->filled > part->first ? place->filled - part->first : 0;
    struct zr_safetensors_part filled = {part->first, there < part->count ? (size_t)there : part->count};
    zr_result result = ZR_OK;

    memset(out + filled.count, 0, (part->count - filled.count) * sizeof *out);
    if (filled.count == 0)
        return ZR_OK;
    if (import->linear && index >= EMBEDDINGS && import->parameters[index].shape[1])
        result = read_transposed(import, place, &filled, out);
    else
        result = zr_safetensors_read(&import->file, &place->tensor, &filled, out);
    for (size_t i = 0; i < filled.count && !result; i++)
        if (!isfinite(out[i]))
            result = zr_fail(ZR_ERR_CORRUPT, "'%s' is damaged: tensor %s has a value that is no number",
                             import->file.path, import->parameters[index].name);
    return result;
}

static zr_result read_mine(const struct import *import)
{
    const zr_engine *engine = import->gpt->engine;
    struct zr_shard_segment segment;
    size_t at = 0;

    for (size_t i = 0; i < zr_engine_segments_count(engine); i++) {
        zr_engine_segment(engine, i, &segment); /* in global order, never more than one parameter */
        if (segment.count == 0)
            continue;
        while (import->places[at].first + import->places[at].elements <= segment.global_index)
            at++;
        struct zr_safetensors_part part = {segment.global_index - import->places[at].first, segment.count};
        zr_result result = read_part(import, at, &part, segment.parameter);
        if (result)
            return result;
        memset(segment.momentum, 0, segment.count * sizeof *segment.momentum);
        if (segment.variance)
            memset(segment.variance, 0, segment.count * sizeof *segment.variance);
    }
    return ZR_OK;
}

zr_result zr_gpt_import(const struct zr_gpt_file *file)
{
    struct import import = {.gpt = file, .file = {.file = {.fd = -1}}};
    zr_result result = zr_engine_synchronize(file->engine);

    /* The engine is written to when every rank has found the file good. */
    result = zr_comm_all_status(file->comm, result ? result : start(&import));
    if (!result)
        result = zr_comm_all_status(file->comm, read_mine(&import));
    finish(&import);
    return result ? result : zr_engine_publish(file->engine, 0);
}
