/* model_export.c: writes a model as one file, all ranks at once; see model_file.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/train/checkpoint_inside.h"
#include "zero/train/safetensors_read.h"
#include "zero/engine/engine.h"
#include "zero/train/model_file.h"

#define PARTIAL ".partial"

/* A parameter's place among the elements of the engine, and of the file. */
struct place {
    uint64_t first, elements; /* counted without padding of units */
    uint64_t in_file, at; /* of these the first so many are in the file, from this element of its data on */
};

struct export
{
    const struct zr_model_file *file;
    char partial[ZR_SAFETENSORS_PATH_ROOM];
    uint64_t header_bytes; /* and the eight before; where the data starts */
    uint64_t bytes;        /* of the whole file */
    struct zr_transformer transformer;
    struct place *places; /* [parameters_count], zr_heap */
};

static bool name_partial(const char *path, char out[ZR_SAFETENSORS_PATH_ROOM])
{
    size_t length = strlen(path);
    if (length + sizeof PARTIAL > ZR_SAFETENSORS_PATH_ROOM)
        return false;
    memcpy(out, path, length);
    memcpy(out + length, PARTIAL, sizeof PARTIAL);
    return true;
}

void zr_model_export_clean_up(const char *path)
{
    char partial[ZR_SAFETENSORS_PATH_ROOM];
    if (path[0] && name_partial(path, partial))
        unlink(partial);
}

/* ---- The header ---------------------------------------------------------------------------------------- */

/* zr_safetensors_contents.say: one tensor per parameter, in the order of the data. */
static void say_contents(struct zr_safetensors_header *header, void *whose)
{
    const struct export *export = whose;
    const struct zr_shape *shape = &export->transformer.shape;

    zr_safetensors_note(header, "format", "pt");
    zr_safetensors_note(header, "n_head", "%zu", shape->heads);
    if (shape->architecture == ZR_ARCH_LLAMA) {
        zr_safetensors_note(header, "n_kv_head", "%zu", shape->kv_heads);
        zr_safetensors_note(header, "rope_theta", "%.17g", shape->rope_theta);
    }
    for (size_t i = 0; i < export->transformer.model.list.parameters_count; i++) {
        const struct zr_parameter *p = &export->transformer.parameters[i];
        uint64_t columns = p->shape[1];
        zr_safetensors_tensor(header, &(struct zr_safetensors_entry){.name = p->name,
                                                                     .name_bytes = strlen(p->name),
                                                                     .rows = export->places[i].in_file /
                                                                             (columns ? columns : 1),
                                                                     .columns = columns,
                                                                     .first = export->places[i].at});
    }
}

/* Lists the parameters, and finds where the data start and end: every rank has to know. */
static zr_result measure(struct export *export)
{
    const struct zr_model_file *file = export->file;
    uint64_t first = 0, at = 0;
    zr_result result =
        zr_transformer_open(&export->transformer, &file->shape, file->engine->options.host_arena);
    if (result)
        return result;
    size_t count = export->transformer.model.list.parameters_count;
    export->places = zr_heap_zalloc(count, sizeof *export->places);
    if (!export->places)
        return ZR_ERR_HOST_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const struct zr_parameter *p = &export->transformer.parameters[i];
        struct place *place = &export->places[i];
        *place = (struct place){.first = first, .elements = zr_parameter_elements(p), .at = at};
        place->in_file =
            zr_model_file_pads(p, i) ? (uint64_t)file->shape.vocabulary * p->shape[1] : place->elements;
        first += place->elements;
        at += place->in_file;
    }
    export->header_bytes = zr_safetensors_data_at(&(struct zr_safetensors_contents){say_contents, export});
    export->bytes = export->header_bytes + at * sizeof(float);
    return ZR_OK;
}

/* ---- The file ------------------------------------------------------------------------------------------ */

/* Rank 0 makes the file, at its full size, so that what cannot be is known before the others begin. */
static zr_result start_file(struct export *export)
{
    struct zr_file file = {.fd = -1};
    enum zr_path_kind kind;
    zr_result result = zr_path_kind_get(export->file->path, &kind);

    if (!result && kind != ZR_PATH_NONE && kind != ZR_PATH_FILE)
        return zr_fail(ZR_ERR_IO, "--export '%s': is no ordinary file; give another name",
                       export->file->path);
    if (!result)
        result = zr_file_create(&file, export->partial, ZR_CREATE_REPLACE);
    if (result)
        return result;
    uint64_t free_bytes;
    if (zr_path_free_bytes(export->partial, &free_bytes) == ZR_OK && free_bytes < export->bytes)
        result = zr_fail(ZR_ERR_IO,
                         "cannot export to '%s': it takes %" PRIu64 " bytes, the file system has %" PRIu64
                         " left; make room there or give another name",
                         export->file->path, export->bytes, free_bytes);
    if (!result)
        result = zr_file_resize(&file, export->bytes);
    if (!result)
        result =
            zr_safetensors_put(&(struct zr_safetensors_contents){say_contents, export}, export->header_bytes,
                               &(struct zr_safetensors_sink){zr_safetensors_write, &file});
    if (!result)
        result = zr_file_sync(&file);
    zr_result closed = zr_file_close(&file);
    return result ? result : closed;
}

static zr_result start(struct export *export)
{
    zr_result result = name_partial(export->file->path, export->partial)
                           ? ZR_OK
                           : zr_fail(ZR_ERR_INVALID, "--export: the path is too long");
    if (!result)
        result = measure(export);
    if (!result && zr_comm_rank(export->file->comm) == 0)
        result = start_file(export);
    return result;
}

/* Values of one parameter, from element `from` of it on, less rows of padding, which end it. */
static zr_result write_part(const struct export *export, const struct zr_file *file,
                            const struct place *place, const struct zr_shard_segment *segment)
{
    uint64_t from = segment->global_index - place->first;
    if (from >= place->in_file)
        return ZR_OK;
    uint64_t left = place->in_file - from;
    return zr_file_write_at(file, export->header_bytes + (place->at + from) * sizeof(float),
                            segment->parameter,
                            (segment->count < left ? segment->count : (size_t)left) * sizeof(float));
}

static zr_result write_mine(const struct export *export)
{
    const zr_engine *engine = export->file->engine;
    struct zr_shard_segment segment;
    const struct place *place = export->places;
    zr_result result = ZR_OK;
    int fd = open(export->partial, O_WRONLY | O_CLOEXEC); /* as rank 0 has made it, not from its start */

    if (fd < 0)
        return zr_fail(ZR_ERR_IO,
                       "--export: cannot open '%s', which rank 0 has made: error %d; give a folder that all "
                       "ranks see",
                       export->partial, errno);
    struct zr_file file = zr_file_borrow(fd, export->partial);
    for (size_t i = 0; i < zr_engine_segments_count(engine) && !result; i++) {
        zr_engine_segment(engine, i, &segment); /* in global order, never more than one parameter */
        if (segment.count == 0)
            continue;
        while (place->first + place->elements <= segment.global_index)
            place++;
        result = write_part(export, &file, place, &segment);
    }
    if (!result)
        result = zr_file_sync(&file);
    close(fd); /* what was synced cannot fail any more */
    return result;
}

/* The name comes last, and lasts: all that it stands for is on the disk. */
static zr_result make_visible(const struct export *export)
{
    zr_result result = zr_path_rename(&(struct zr_rename){export->partial, export->file->path});
    return result ? result : zr_path_sync_name(export->file->path);
}

zr_result zr_model_export(const struct zr_model_file *file)
{
    struct export export = {.file = file};
    bool first = zr_comm_rank(file->comm) == 0;
    zr_result result = zr_engine_synchronize(file->engine);

    /* A failure on one rank must not leave the others waiting: every part ends in an agreement. */
    result = zr_comm_all_status(file->comm, result ? result : start(&export));
    if (!result)
        result = zr_comm_all_status(file->comm, write_mine(&export));
    if (!result)
        result = zr_comm_all_status(file->comm, first ? make_visible(&export) : ZR_OK);
    if (result && first)
        zr_model_export_clean_up(file->path);
    zr_heap_free(export.places);
    zr_transformer_close(&export.transformer);
    return result;
}
