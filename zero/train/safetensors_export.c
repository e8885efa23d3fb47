/* safetensors_export.c: writes a model as one file, all ranks at once; see safetensors_gpt.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/error.h"
#include "alloc/heap.h"
#include "zero/train/checkpoint_inside.h"
#include "zero/train/safetensors.h"
#include "zero/train/safetensors_gpt.h"

#define PARTIAL ".partial"

struct export
{
    const struct zr_gpt_file *file;
    char partial[ZR_SAFETENSORS_PATH_ROOM];
    uint64_t header_bytes; /* and the eight before; where the data starts */
    uint64_t bytes;        /* of the whole file */
    uint64_t rows_end;     /* elements of wte that are written: global [0, rows_end) */
    uint64_t padding;      /* elements of wte after them, which are not */
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

void zr_gpt_export_clean_up(const char *path)
{
    char partial[ZR_SAFETENSORS_PATH_ROOM];
    if (path[0] && name_partial(path, partial))
        unlink(partial);
}

/* ---- The header -------------------------------------------------------------------------------------- */

/* One line per parameter, in the order of the data. `parameters` is the model's list. */
static void print_header(struct zr_text *text, const struct zr_gpt_file *file,
                         const struct zr_parameter *parameters)
{
    uint64_t at = 0;
    zr_text_print(text, "{\"__metadata__\":{\"format\":\"pt\",\"n_head\":\"%zu\"}", file->shape.heads);
    for (size_t i = 0; i < zr_gpt_parameters_count(&file->shape); i++) {
        const struct zr_parameter *p = &parameters[i];
        uint64_t rows = i == 0 ? file->shape.vocabulary : p->shape[0];
        uint64_t bytes = rows * (p->shape[1] ? p->shape[1] : 1) * sizeof(float);
        zr_text_print(text, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%" PRIu64, p->name, rows);
        if (p->shape[1])
            zr_text_print(text, ",%zu", p->shape[1]);
        zr_text_print(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + bytes);
        at += bytes;
    }
    zr_text_print(text, "}");
}

/* Longest entry: a name of 47 bytes, two sizes and two offsets of 20 digits, some 60 of JSON. */
enum { ENTRY_ROOM = 192, HEADER_ALIGN = 64 };

/* Makes the header, with spaces up to a multiple of 64, in zr_heap memory that the caller frees. Every rank
 * makes it, to know where the data starts; rank 0 writes it. */
static zr_result make_header(struct export *export, char **out)
{
    const struct zr_gpt_file *file = export->file;
    size_t count = zr_gpt_parameters_count(&file->shape), room_bytes = (count + 2) * ENTRY_ROOM;
    struct zr_parameter *parameters = zr_heap_zalloc(count, sizeof *parameters);
    struct zr_unit *units = zr_heap_zalloc(zr_gpt_units_count(&file->shape), sizeof *units);
    char *room = zr_heap_alloc(room_bytes);
    struct zr_text text = {.result = ZR_ERR_HOST_MEMORY};

    if (parameters && units && room) {
        zr_gpt_describe(&file->shape, parameters, units);
        zr_text_start(&text, NULL, room + 8, room_bytes - 8 - HEADER_ALIGN);
        print_header(&text, file, parameters);
    }
    if (text.result == ZR_OK) {
        uint64_t padded = (8 + text.used_bytes + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN - 8;
        memset(room + 8 + text.used_bytes, ' ', padded - text.used_bytes);
        memcpy(room, &padded, 8);
        export->header_bytes = 8 + padded;
        export->rows_end = (uint64_t)file->shape.vocabulary * file->shape.hidden;
        export->padding =
            (uint64_t)(file->shape.vocabulary_padded - file->shape.vocabulary) * file->shape.hidden;
        export->bytes =
            export->header_bytes + (zr_engine_elements(file->engine) - export->padding) * sizeof(float);
    }
    zr_heap_free(units);
    zr_heap_free(parameters);
    *out = room;
    return text.result;
}

/* ---- The file ---------------------------------------------------------------------------------------- */

/* Rank 0 makes the file, at its full size, so that what cannot be is known before the others begin. */
static zr_result start_file(const struct export *export, const char *header)
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
        result = zr_file_write_at(&file, 0, header, export->header_bytes);
    if (!result)
        result = zr_file_sync(&file);
    zr_result closed = zr_file_close(&file);
    return result ? result : closed;
}

static zr_result start(struct export *export)
{
    char *header = NULL;
    zr_result result = name_partial(export->file->path, export->partial)
                           ? ZR_OK
                           : zr_fail(ZR_ERR_INVALID, "--export: the path is too long");
    if (!result)
        result = make_header(export, &header);
    if (!result && zr_comm_rank(export->file->comm) == 0)
        result = start_file(export, header);
    zr_heap_free(header);
    return result;
}

/* The data are the elements in global order, less the padding of wte, which ends it. */
static zr_result write_part(const struct export *export, const struct zr_file *file, uint64_t index,
                            const float *values, size_t count)
{
    uint64_t padding_end = export->rows_end + export->padding;
    if (index < export->rows_end) {
        uint64_t left = export->rows_end - index;
        return zr_file_write_at(file, export->header_bytes + index * sizeof(float), values,
                                (count < left ? count : (size_t)left) * sizeof(float));
    }
    if (index + count <= padding_end)
        return ZR_OK;
    if (index < padding_end) {
        values += padding_end - index;
        count -= (size_t)(padding_end - index);
        index = padding_end;
    }
    return zr_file_write_at(file, export->header_bytes + (index - export->padding) * sizeof(float), values,
                            count * sizeof(float));
}

static zr_result write_mine(const struct export *export)
{
    const zr_engine *engine = export->file->engine;
    struct zr_shard_segment segment;
    zr_result result = ZR_OK;
    int fd = open(export->partial, O_WRONLY | O_CLOEXEC); /* as rank 0 has made it, not from its start */

    if (fd < 0)
        return zr_fail(ZR_ERR_IO,
                       "--export: cannot open '%s', which rank 0 has made: error %d; give a folder that all "
                       "ranks see",
                       export->partial, errno);
    struct zr_file file = zr_file_borrow(fd, export->partial);
    for (size_t i = 0; i < zr_engine_segments_count(engine) && !result; i++) {
        zr_engine_segment(engine, i, &segment); /* never more than one parameter */
        if (segment.count > 0)
            result = write_part(export, &file, segment.global_index, segment.parameter, segment.count);
    }
    if (!result)
        result = zr_file_sync(&file);
    close(fd); /* what was synced cannot fail any more */
    return result;
}

/* The name comes last, and lasts: all that it stands for is on the disk. */
static zr_result make_visible(const struct export *export)
{
    char folder[ZR_SAFETENSORS_PATH_ROOM];
    zr_result result = zr_path_rename(&(struct zr_rename){export->partial, export->file->path});
    if (result)
        return result;
    zr_checkpoint_folder_of(export->file->path, folder);
    return zr_path_sync_folder(folder);
}

zr_result zr_gpt_export(const struct zr_gpt_file *file)
{
    struct export export = {.file = file};
    bool first = zr_comm_rank(file->comm) == 0;
    zr_result result = zr_engine_settle(file->engine);

    /* A failure on one rank must not leave the others waiting: every part ends in an agreement. */
    result = zr_checkpoint_agree(file->comm, result ? result : start(&export));
    if (!result)
        result = zr_checkpoint_agree(file->comm, write_mine(&export));
    if (!result)
        result = zr_checkpoint_agree(file->comm, first ? make_visible(&export) : ZR_OK);
    if (result && first)
        zr_gpt_export_clean_up(file->path);
    return result;
}
