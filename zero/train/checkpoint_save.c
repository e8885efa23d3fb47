/* checkpoint_save.c: each rank streams what it owns into its own safetensors file; rank 0 makes the whole of
 * it visible at once. Stands on checkpoint.c. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/heap/heap.h"
#include "zero/train/checkpoint_inside.h"
#include "zero/train/crc64.h"

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

/* What a rank tells rank 0 about its shard. */
struct shard_facts {
    uint64_t bytes, elements, crc64;
};

struct save {
    const struct zr_checkpoint *checkpoint;
    uint64_t step;
    char partial[ZR_CHECKPOINT_PATH_ROOM]; /* FOLDER/.step-00000100.partial */
    char final[ZR_CHECKPOINT_PATH_ROOM];
    struct shard_facts *facts; /* [world], zr_heap */
};

/* ---- A shard ------------------------------------------------------------------------------------------- */

/* Of each of this rank's tensors. */
static uint64_t count_elements(const zr_engine *engine)
{
    struct zr_shard_segment segment;
    uint64_t elements = 0;
    for (size_t i = 0; i < zr_engine_segments_count(engine); i++) {
        zr_engine_segment(engine, i, &segment);
        elements += segment.count;
    }
    return elements;
}

/* zr_safetensors_contents.say of a shard. Neighbouring segments become one range, "first+count". */
static void say_contents(struct zr_safetensors_header *header, void *whose)
{
    const zr_engine *engine = whose;
    struct zr_shard_segment segment;
    uint64_t from = 0, to = 0, elements = count_elements(engine);
    bool first = true;

    zr_safetensors_note(header, "format", ZR_CHECKPOINT_FORMAT);
    zr_safetensors_note(header, "ranges", "%s", "");
    for (size_t i = 0; i < zr_engine_segments_count(engine); i++) {
        zr_engine_segment(engine, i, &segment);
        if (segment.count == 0)
            continue;
        if (segment.global_index != to || first) {
            if (!first)
                zr_safetensors_note_more(header, "%" PRIu64 "+%" PRIu64 " ", from, to - from);
            from = segment.global_index;
            first = false;
        }
        to = segment.global_index + segment.count;
    }
    if (!first)
        zr_safetensors_note_more(header, "%" PRIu64 "+%" PRIu64, from, to - from);
    for (int t = 0; t < zr_checkpoint_tensors_count(engine); t++)
        zr_safetensors_tensor(header,
                              &(struct zr_safetensors_entry){.name = zr_checkpoint_tensors[t],
                                                             .name_bytes = strlen(zr_checkpoint_tensors[t]),
                                                             .rows = elements,
                                                             .first = (uint64_t)t * elements});
}

/* Where the next bytes of a shard go, and the sum of all before. */
struct shard_writer {
    struct zr_file file;
    uint64_t offset_bytes, crc64;
};

static zr_result shard_put(struct shard_writer *writer, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        size_t piece = bytes < ZR_CHECKPOINT_PIECE ? bytes : ZR_CHECKPOINT_PIECE;
        zr_result result = zr_file_write_at(&writer->file, writer->offset_bytes, from, piece);
        if (result)
            return result;
        writer->crc64 = zr_crc64(writer->crc64, from, piece);
        writer->offset_bytes += piece;
        from += piece;
        bytes -= piece;
    }
    return ZR_OK;
}

/* A sink: what is written counts in the sum. */
static zr_result shard_sink(void *whose, uint64_t at_bytes, const char *data, size_t bytes)
{
    struct shard_writer *writer = whose;
    zr_assert(at_bytes == writer->offset_bytes);
    return shard_put(writer, data, bytes);
}

static zr_result shard_put_header(struct shard_writer *writer, zr_engine *engine)
{
    const struct zr_safetensors_contents contents = {say_contents, engine};
    return zr_safetensors_put(&contents, zr_safetensors_data_at(&contents),
                              &(struct zr_safetensors_sink){shard_sink, writer});
}

static zr_result save_shard(const struct save *save, struct shard_facts *facts)
{
    zr_engine *engine = save->checkpoint->engine;
    struct shard_writer writer = {.file = {.fd = -1}};
    struct zr_shard_segment segment;
    char name[64], path[ZR_CHECKPOINT_PATH_ROOM];
    size_t count = zr_engine_segments_count(engine);
    zr_result result;

    zr_checkpoint_shard_name(name, zr_comm_rank(save->checkpoint->comm),
                             zr_comm_world(save->checkpoint->comm));
    result = zr_path_join(path, sizeof path, &(struct zr_path_parts){save->partial, name});
    if (result)
        return result;
    result = zr_file_create(&writer.file, path, ZR_CREATE_NEW);
    if (result)
        return result;
    result = shard_put_header(&writer, engine);
    for (int t = 0; t < zr_checkpoint_tensors_count(engine); t++)
        for (size_t i = 0; i < count && !result; i++) {
            zr_engine_segment(engine, i, &segment);
            result = shard_put(&writer, zr_checkpoint_tensor(&segment, t), segment.count * sizeof(float));
        }
    if (!result)
        result = zr_file_sync(&writer.file);
    zr_result closed = zr_file_close(&writer.file);
    *facts = (struct shard_facts){
        .bytes = writer.offset_bytes, .elements = count_elements(engine), .crc64 = writer.crc64};
    return result ? result : closed;
}

/* ---- Rank 0's part ------------------------------------------------------------------------------------- */

/* Refuses early what cannot fit; where the system does not say, the writes will. */
static zr_result check_room(const struct save *save)
{
    const struct zr_checkpoint *checkpoint = save->checkpoint;
    uint64_t free_bytes, wanted = zr_engine_elements(checkpoint->engine) *
                                  (uint64_t)zr_checkpoint_tensors_count(checkpoint->engine) * sizeof(float);
    if (zr_path_free_bytes(checkpoint->folder, &free_bytes) == ZR_OK && free_bytes < wanted)
        return zr_fail(
            ZR_ERR_IO,
            "cannot save to '%s': a checkpoint takes %llu bytes, the file system has %llu left; make "
            "room there or choose another --save folder",
            checkpoint->folder, (unsigned long long)wanted, (unsigned long long)free_bytes);
    return ZR_OK;
}

static zr_result prepare_folder(const struct save *save)
{
    const char *folder = save->checkpoint->folder;
    zr_result result = zr_checkpoint_make_folder(folder);
    if (result)
        return result;
    zr_checkpoint_clean_up(folder); /* left by a run that crashed while saving */
    result = check_room(save);
    return result ? result : zr_path_make_folder(save->partial, false);
}

/* The precision is noted, and may differ when resuming; what was updated and skipped is state. */
static void print_precision(struct zr_text *text, const zr_engine *engine)
{
    struct zr_loss_scale scaling;
    zr_engine_scaling(engine, &scaling);
    zr_text_print(text, " \"precision\": \"%s\", \"updates\": %llu,\n",
                  zr_precision_name(zr_engine_precision(engine)),
                  (unsigned long long)zr_engine_steps_done(engine));
    if (zr_engine_precision(engine) != ZR_PRECISION_FP16)
        return;
    zr_text_print(text,
                  " \"loss_scale\": {\"scale\": %.9g, \"good_steps\": %u, \"hysteresis_left\": %u, "
                  "\"skipped_in_row\": %u, \"skipped_steps\": %llu},\n",
                  (double)scaling.scale, scaling.good_steps, scaling.hysteresis_left, scaling.skipped_in_row,
                  (unsigned long long)scaling.skipped_steps);
}

static void print_manifest(struct zr_text *text, const struct save *save)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    const struct zr_checkpoint *checkpoint = save->checkpoint;
    struct zr_shape complete = checkpoint->shape, *shape = &complete;
    unsigned world = zr_comm_world(checkpoint->comm);
    char name[64];

    zr_shape_complete(shape);

    zr_text_print(text, "{\"version\": %d, \"format\": \"%s\",\n \"step\": %llu, \"seed\": %llu,\n",
                  ZR_CHECKPOINT_VERSION, ZR_CHECKPOINT_FORMAT, (unsigned long long)save->step,
                  (unsigned long long)checkpoint->seed);
    zr_text_print(text, " \"world_size\": %u, \"stage\": %u, \"parameters\": %llu, \"optimizer\": \"%s\",\n",
                  world, checkpoint->stage, (unsigned long long)zr_engine_elements(checkpoint->engine),
                  zr_checkpoint_optimizer_name(checkpoint->engine));
    zr_text_print(text, " \"accumulate\": %u, \"step_tokens\": %llu,\n", checkpoint->micro_batches,
                  (unsigned long long)shape->batch * shape->sequence * world * checkpoint->micro_batches);
    zr_text_print(text, " \"dtype\": \"F32\",\n"); /* of every tensor in the shards */
    print_precision(text, checkpoint->engine);
    zr_text_print(text,
                  " \"shape\": {\"arch\": \"%s\", \"kv_heads\": %zu, \"ffn\": %zu, \"rope_theta\": %.17g, "
                  "\"tied\": %s,\n  \"layers\": %zu, \"hidden\": %zu, \"heads\": %zu, \"vocabulary\": %zu, "
                  "\"vocabulary_padded\": %zu, \"sequence\": %zu, \"batch\": %zu, \"recompute\": \"%s\"},\n",
                  zr_architecture_name(shape->architecture), shape->kv_heads, shape->ffn, shape->rope_theta,
                  shape->tied ? "true" : "false", shape->layers, shape->hidden, shape->heads,
                  shape->vocabulary, shape->vocabulary_padded, shape->sequence, shape->batch,
                  recompute[shape->recompute]);
    zr_text_print(text, " \"shards\": [");
    for (unsigned p = 0; p < world; p++) {
        const struct shard_facts *facts = &save->facts[p];
        zr_checkpoint_shard_name(name, p, world);
        zr_text_print(text,
                      "%s\n  {\"file\": \"%s\", \"bytes\": %llu, \"elements\": %llu, \"crc64\": \"%016llx\"}",
                      p ? "," : "", name, (unsigned long long)facts->bytes,
                      (unsigned long long)facts->elements, (unsigned long long)facts->crc64);
    }
    zr_text_print(text, "\n ]");
}

/* The text's last entry is the checksum of all before it. */
static zr_result write_manifest(const struct save *save, const struct zr_file *file, char *room,
                                size_t room_bytes)
{
    struct zr_text text;
    zr_text_start(&text, NULL, room, room_bytes);
    print_manifest(&text, save);
    zr_text_print(&text, ZR_CHECKPOINT_SUM_KEY "%016llx\"}\n",
                  (unsigned long long)zr_crc64(0, room, text.used_bytes));
    zr_result result = text.result;
    if (!result)
        result = zr_file_write_at(file, 0, room, text.used_bytes);
    return result ? result : zr_file_sync(file);
}

static zr_result save_manifest(const struct save *save)
{
    size_t room_bytes = 2048 + (size_t)zr_comm_world(save->checkpoint->comm) * 256;
    char path[ZR_CHECKPOINT_PATH_ROOM], *room = zr_heap_alloc(room_bytes);
    struct zr_file file = {.fd = -1};
    zr_result result = room ? ZR_OK : ZR_ERR_HOST_MEMORY;
    if (!result)
        result = zr_path_join(path, sizeof path, &(struct zr_path_parts){save->partial, "manifest.json"});
    if (!result)
        result = zr_file_create(&file, path, ZR_CREATE_NEW);
    if (!result)
        result = write_manifest(save, &file, room, room_bytes);
    zr_result closed = zr_file_close(&file);
    zr_heap_free(room);
    return result ? result : closed;
}

/* Where the file system cannot exchange two names the old step is set aside first: zr_checkpoint_clean_up()
 * gives it its name back if this ends before the new one has it, and --resume finds it meanwhile. */
static zr_result replace_folder(const struct save *save)
{
    const char *folder = save->checkpoint->folder;
    char name[64], aside[ZR_CHECKPOINT_PATH_ROOM];
    zr_checkpoint_step_name(name, save->step, ZR_CHECKPOINT_REPLACED);
    zr_result result = zr_path_join(aside, sizeof aside, &(struct zr_path_parts){folder, name});
    if (!result)
        result = zr_path_rename(&(struct zr_rename){save->final, aside});
    if (!result)
        result = zr_path_sync_folder(folder);
    return result ? result : zr_path_rename(&(struct zr_rename){save->partial, save->final});
}

/* Lets the new folder take the place of one of the same step in one move; the old one is then the partial. */
static zr_result exchange_folders(const struct save *save)
{
    char room[64];
    int error = zr_fault(ZR_FAULT_RENAME) ? EIO : 0;
    if (!error && renameat2(AT_FDCWD, save->partial, AT_FDCWD, save->final, RENAME_EXCHANGE) != 0)
        error = errno;
    if (error == EINVAL || error == ENOSYS) /* NFS, FUSE */
        return replace_folder(save);
    if (error)
        return zr_fail(ZR_ERR_IO,
                       "cannot put '%s' in the place of the one that is there: %s; remove the old one, or "
                       "save to another folder",
                       save->final, strerror_r(error, room, sizeof room));
    return ZR_OK;
}

static zr_result make_visible(const struct save *save)
{
    enum zr_path_kind kind;
    zr_result result = save_manifest(save);
    if (!result)
        result = zr_path_sync_folder(save->partial);
    if (!result)
        result = zr_path_kind_get(save->final, &kind);
    if (!result)
        result = kind == ZR_PATH_NONE ? zr_path_rename(&(struct zr_rename){save->partial, save->final})
                                      : exchange_folders(save);
    if (!result)
        result = zr_path_sync_folder(save->checkpoint->folder);
    return result;
}

/* ---- Old ones ------------------------------------------------------------------------------------------ */

/* Counts the complete steps before this one, and finds the oldest of them. */
static zr_result count_older(const struct save *save, size_t *count, uint64_t *oldest)
{
    const char *folder = save->checkpoint->folder;
    char path[ZR_CHECKPOINT_PATH_ROOM];
    struct zr_folder listing;
    struct zr_folder_entry entry;
    uint64_t step;
    zr_result result = zr_folder_open(&listing, folder);

    *count = 0;
    if (result)
        return result;
    while ((result = zr_folder_next(&listing, &entry)) == ZR_OK && entry.name) {
        if (!zr_checkpoint_read_step_name(entry.name, ZR_CHECKPOINT_STEP, &step) || step >= save->step)
            continue;
        result = zr_path_join(path, sizeof path, &(struct zr_path_parts){folder, entry.name});
        if (result)
            break;
        if (!zr_checkpoint_is_complete(path))
            continue;
        if (*count == 0 || step < *oldest)
            *oldest = step;
        ++*count;
    }
    zr_folder_close(&listing);
    return result;
}

/* Keeps this step and the last ones before it. What goes loses its name first, in one move: at no moment does
 * a step that is not whole have one. zr_checkpoint_clean_up() then removes it. */
static zr_result drop_older(const struct save *save)
{
    const struct zr_checkpoint *checkpoint = save->checkpoint;
    char name[64], from[ZR_CHECKPOINT_PATH_ROOM], to[ZR_CHECKPOINT_PATH_ROOM];
    size_t count;
    uint64_t oldest = 0;
    zr_result result = ZR_OK;

    while (checkpoint->keep && !result) {
        result = count_older(save, &count, &oldest);
        if (result || count < checkpoint->keep)
            break;
        zr_checkpoint_step_name(name, oldest, ZR_CHECKPOINT_STEP);
        result = zr_path_join(from, sizeof from, &(struct zr_path_parts){checkpoint->folder, name});
        zr_checkpoint_step_name(name, oldest, ZR_CHECKPOINT_PARTIAL);
        if (!result)
            result = zr_path_join(to, sizeof to, &(struct zr_path_parts){checkpoint->folder, name});
        if (!result)
            result = zr_path_rename(&(struct zr_rename){from, to});
        if (!result) /* or a power cut could bring back the name, and not the files */
            result = zr_path_sync_folder(checkpoint->folder);
        if (!result)
            zr_checkpoint_clean_up(checkpoint->folder);
    }
    return result;
}

/* ---- All ranks ----------------------------------------------------------------------------------------- */

static zr_result save_start(struct save *save)
{
    const struct zr_checkpoint *checkpoint = save->checkpoint;
    char name[64];
    zr_checkpoint_step_name(name, save->step, ZR_CHECKPOINT_PARTIAL);
    zr_result result =
        zr_path_join(save->partial, sizeof save->partial, &(struct zr_path_parts){checkpoint->folder, name});
    if (result)
        return result;
    zr_checkpoint_step_name(name, save->step, ZR_CHECKPOINT_STEP);
    result = zr_path_join(save->final, sizeof save->final, &(struct zr_path_parts){checkpoint->folder, name});
    if (result)
        return result;
    save->facts = zr_heap_zalloc(zr_comm_world(checkpoint->comm), sizeof *save->facts);
    if (!save->facts)
        return ZR_ERR_HOST_MEMORY;
    if (zr_comm_rank(checkpoint->comm) == 0)
        return prepare_folder(save);
    return ZR_OK;
}

zr_result zr_checkpoint_save(const struct zr_checkpoint *checkpoint, uint64_t step)
{
    struct save save = {.checkpoint = checkpoint, .step = step};
    struct shard_facts mine = {0};
    bool first = zr_comm_rank(checkpoint->comm) == 0;
    zr_result result = zr_engine_synchronize(checkpoint->engine);

    /* A failure on one rank must not leave the others waiting: every part ends in an agreement. */
    result = zr_comm_all_status(checkpoint->comm, result ? result : save_start(&save));
    if (result)
        goto unwind;
    result = zr_comm_all_status(checkpoint->comm, save_shard(&save, &mine));
    if (result)
        goto unwind;
    result = zr_comm_host_all_gather(checkpoint->comm, &mine, sizeof mine, save.facts);
    if (result)
        goto unwind;
    if (first) {
        result = make_visible(&save);
        if (!result)
            result = drop_older(&save); /* when the new one is there to stay, and not before */
    }
    result = zr_comm_all_status(checkpoint->comm, result);
unwind:
    if (first)
        zr_checkpoint_clean_up(checkpoint->folder); /* of the failed save, or the one that was replaced */
    zr_heap_free(save.facts);
    return result;
}
