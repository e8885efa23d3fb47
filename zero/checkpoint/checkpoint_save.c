/* checkpoint_save.c: all ranks write the engine's state into a folder; rank 0 adds the manifest and
 * renames the folder. Uses checkpoint.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/heap/heap.h"
#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/checkpoint/model_file.h"
#include "zero/engine/errors.h"
#include "zero/engine/engine.h"
#include "zero/engine/warmup.h"
#include "zero/engine/zerone.h"

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

enum { MANIFEST_ROOM = 16384 };

struct save {
    const struct zr_checkpoint *checkpoint;
    uint64_t step;
    uint64_t state_checksum;               /* of this rank's group */
    uint64_t checksums[ZR_MAX_WORLD];      /* of each rank's */
    char partial[ZR_CHECKPOINT_PATH_ROOM]; /* FOLDER/.step-00000100.partial */
    char final[ZR_CHECKPOINT_PATH_ROOM];
    char state[ZR_CHECKPOINT_PATH_ROOM]; /* within `partial` */
    struct zr_whole whole;
};

/* ---- Rank 0 -------------------------------------------------------------------------------------------- */

static zr_result prepare_folder(const struct save *save)
{
    const char *folder = save->checkpoint->folder;
    zr_result result = zr_checkpoint_make_folder(folder);
    if (result)
        return result;
    zr_checkpoint_clean_up(folder); /* remains of a run that crashed while saving */
    return zr_path_make_folder(save->partial, false);
}

/* The manifest's entry for the shape; NULL: no memory. */
static json_t *shape_of(const struct save *save)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    struct zr_shape shape = save->checkpoint->shape;
    zr_shape_complete(&shape);
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:b, s:I, s:I, s:I, s:I, s:I, s:s}", "arch",
        zr_architecture_name(shape.architecture), "layers", (json_int_t)shape.layers, "hidden",
        (json_int_t)shape.hidden, "heads", (json_int_t)shape.heads, "kv_heads", (json_int_t)shape.kv_heads,
        "rope_theta", shape.rope_theta, "norm_epsilon", shape.norm_epsilon, "tied", (int)shape.tied, "ffn",
        (json_int_t)shape.ffn, "vocabulary", (json_int_t)shape.vocabulary, "vocabulary_padded",
        (json_int_t)shape.vocabulary_padded, "sequence", (json_int_t)shape.sequence, "batch",
        (json_int_t)shape.batch, "recompute", recompute[shape.recompute]);
    char variant[ZR_VARIANT_ROOM];
    const struct zr_lora *lora = shape.trainable ? &shape.trainable->lora : NULL;
    zr_variant_print(&shape.variant, variant);
    if (object && variant[0] && json_object_set_new(object, ZR_MODEL_VARIANT, json_string(variant)) != 0) {
        json_decref(object);
        return NULL;
    }
    if (!object || !lora || lora->rank == 0)
        return object;
    if (json_object_set_new(object, ZR_CHECKPOINT_LORA, json_integer((json_int_t)lora->rank)) == 0 &&
        json_object_set_new(object, ZR_CHECKPOINT_LORA_ALPHA, json_real((double)lora->alpha)) == 0)
        return object;
    json_decref(object);
    return NULL;
}

/* The manifest's entry for the course; NULL: no memory. */
static json_t *course_of(const struct zr_checkpoint_course *course)
{
    char checksum[24];
    snprintf(checksum, sizeof checksum, "%016" PRIx64, course->data_checksum);
    return json_pack("{s:I, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:s, s:s*}", "steps",
                     (json_int_t)course->steps, "schedule", course->schedule, "warmup",
                     (json_int_t)course->warmup, "rate", course->rate, "min_rate", course->min_rate,
                     "decay_share", course->decay_share, "dropout", course->dropout, "attention_dropout",
                     course->attention_dropout, "data_rows", (json_int_t)course->data_rows, "data_sequence",
                     (json_int_t)course->data_sequence, "data_tokens", (json_int_t)course->data_tokens,
                     "data_checksum", checksum, "products", course->products[0] ? course->products : NULL);
}

/* The manifest's entry for kinds of compression that have ended: "KIND:PACKING" and the steps done then.
 * NULL: none has. */
static json_t *ended_of(zr_engine *engine)
{
    struct zr_compression_check check;
    json_t *ended = NULL;
    char name[ZR_CHECKPOINT_KIND_ROOM];
    zr_engine_get_compression_check(engine, &check);
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++) {
        if (check.full_since[kind] == 0)
            continue;
        ended = ended ? ended : json_object();
        zr_checkpoint_kind_name(name, engine, kind);
        json_object_set_new(ended, name, json_integer((json_int_t)check.full_since[kind]));
    }
    return ended;
}

/* The manifest's entry for the warm-up of compressed gradients. NULL: they have none. */
static json_t *warmup_of(zr_engine *engine)
{
    const struct zr_warmup warmup = zr_warmup_get(engine);
    char name[ZR_CHECKPOINT_KIND_ROOM];
    json_t *sums = json_array();
    if (!zr_engine_keeps_errors(engine)) {
        json_decref(sums);
        return NULL;
    }
    for (unsigned i = 0; i < ZR_WARMUP_SUMS; i++)
        json_array_append_new(sums,
                              json_pack("[I, f]", (json_int_t)warmup.sums[i].steps, warmup.sums[i].sum));
    zr_checkpoint_kind_name(name, engine, ZR_COMPRESSED_GRADIENTS);
    return json_pack("{s:s, s:b, s:I, s:f, s:o}", "method", name, "ended", (int)warmup.ended, "steps",
                     (json_int_t)warmup.steps, "ratio", warmup.ratio, "sums", sums);
}

/* The manifest's entry for the states of further groups; NULL: no groups. */
static json_t *groups_of(const struct save *save)
{
    const struct zr_checkpoint *checkpoint = save->checkpoint;
    unsigned ranks = checkpoint->groups > 1 ? zr_comm_world(checkpoint->comm) / checkpoint->groups : 1;
    json_t *list = checkpoint->groups > 1 ? json_array() : NULL;
    for (unsigned g = 1; g < checkpoint->groups; g++) {
        char checksum[24];
        snprintf(checksum, sizeof checksum, "%016" PRIx64, save->checksums[g * ranks]);
        json_array_append_new(list, json_string(checksum));
    }
    return list;
}

/* The manifest: settings that a resumed run or its user needs. NULL: no memory. */
static json_t *manifest_of(const struct save *save)
{
    const struct zr_checkpoint *checkpoint = save->checkpoint;
    const struct zr_shape *shape = &checkpoint->shape;
    unsigned world = zr_comm_world(checkpoint->comm), tensor = (unsigned)zr_shape_tensor(shape);
    zr_comm *pipeline = checkpoint->engine->options.pipeline;
    unsigned stages = pipeline ? zr_comm_world(pipeline) : 1;
    char checksum[24];

    json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
    snprintf(checksum, sizeof checksum, "%016" PRIx64, save->state_checksum);
    return json_pack(
        "{s:i, s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:I, s:s, s:b, s:i, s:I, s:I, s:o, s:s, s:I, s:o, s:o*, s:o*, s:b, s:o*, s:{s:s, s:I, s:s}}",
        "version", ZR_CHECKPOINT_VERSION, "format", ZR_CHECKPOINT_FORMAT, "step", (json_int_t)save->step,
        "seed", (json_int_t)checkpoint->seed, "world_size", (int)world, "tensor_ranks", (int)tensor,
        "pipeline_ranks", (int)stages, "context_ranks", (int)zr_shape_context(shape), "stage",
        (int)checkpoint->stage, "parameters", (json_int_t)zr_engine_elements(checkpoint->engine), "optimizer",
        checkpoint->engine->optimizer->name, "average",
        (int)(checkpoint->engine->optimizer->kept_count == ZR_KEEPS_AVERAGE), "accumulate",
        (int)checkpoint->micro_batches, "step_tokens", (json_int_t)checkpoint->step_tokens, "data_order",
        (json_int_t)checkpoint->course.data_order, "course", course_of(&checkpoint->course), "precision",
        zr_precision_name(zr_engine_precision(checkpoint->engine)), "updates",
        (json_int_t)zr_engine_steps_done(checkpoint->engine), "shape", shape_of(save),
        ZR_CHECKPOINT_FULL_PRECISION, ended_of(checkpoint->engine), ZR_CHECKPOINT_WARMUP,
        warmup_of(checkpoint->engine), ZR_CHECKPOINT_ERRORS, (int)zr_errors_exist(checkpoint->engine),
        ZR_CHECKPOINT_GROUPS, groups_of(save), "state", "file", ZR_CHECKPOINT_STATE, "bytes",
        (json_int_t)zr_state_bytes(checkpoint->engine, save->whole.given), "checksum", checksum);
}

/* json_dump_callback_t */
static int append(const char *bytes, size_t count, void *text)
{
    return zr_text_put(text, bytes, count) == ZR_OK ? 0 : -1;
}

/* Writes the manifest. Its last entry is the checksum of all text before it. */
static zr_result write_manifest(const struct save *save, const struct zr_file *file)
{
    char space[MANIFEST_ROOM];
    struct zr_text text;
    json_t *root = manifest_of(save);

    zr_text_start(&text, NULL, space, sizeof space);
    bool whole = json_dump_callback(root, append, &text, JSON_INDENT(1)) == 0; /* fails for NULL */
    json_decref(root);
    if (!whole)
        return text.result ? text.result : ZR_ERR_HOST_MEMORY;
    text.used_bytes -= 2; /* "\n}" */
    zr_text_print(&text, ZR_CHECKPOINT_SUM_KEY "%016" PRIx64 "\"}\n",
                  zr_checkpoint_text_sum(space, text.used_bytes));
    zr_result result = text.result ? text.result : zr_file_write_at(file, 0, space, text.used_bytes);
    return result ? result : zr_file_sync(file);
}

static zr_result save_manifest(const struct save *save)
{
    char path[ZR_CHECKPOINT_PATH_ROOM];
    struct zr_file file = {.fd = -1};
    zr_result result =
        zr_path_join(path, sizeof path, &(struct zr_path_parts){save->partial, "manifest.json"});
    if (!result)
        result = zr_file_create(&file, path, ZR_CREATE_NEW);
    if (!result)
        result = write_manifest(save, &file);
    zr_result closed = zr_file_close(&file);
    return result ? result : closed;
}

/* Replaces an existing step on file systems that cannot exchange two names: sets the old step aside first. If
 * this process dies before the new step has its name, zr_checkpoint_clean_up() restores the old name, and
 * --resume finds the old step meanwhile. */
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

/* Exchanges the new folder with the existing step in one operation; the old step then has the name of the
 * partial one. */
static zr_result exchange_folders(const struct save *save)
{
    char space[64];
    int error = zr_fault(ZR_FAULT_RENAME) ? EIO : 0;
    if (!error && renameat2(AT_FDCWD, save->partial, AT_FDCWD, save->final, RENAME_EXCHANGE) != 0)
        error = errno;
    if (error == EINVAL || error == ENOSYS) /* NFS, FUSE */
        return replace_folder(save);
    if (error)
        return zr_fail(
            ZR_ERR_IO,
            "cannot exchange '%s' with the existing one: %s; remove the existing one, or save to another "
            "folder",
            save->final, strerror_r(error, space, sizeof space));
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

/* ---- Older steps --------------------------------------------------------------------------------------- */

/* Counts the complete steps before this one and finds the oldest. */
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

/* Removes a step: first its name, by a rename, so that no incomplete step ever has a step's name. */
static zr_result drop(const struct zr_checkpoint *checkpoint, uint64_t step)
{
    char name[64], from[ZR_CHECKPOINT_PATH_ROOM], to[ZR_CHECKPOINT_PATH_ROOM];
    enum zr_path_kind kind;
    zr_checkpoint_step_name(name, step, ZR_CHECKPOINT_STEP);
    zr_result result = zr_path_join(from, sizeof from, &(struct zr_path_parts){checkpoint->folder, name});
    zr_checkpoint_step_name(name, step, ZR_CHECKPOINT_PARTIAL);
    if (!result)
        result = zr_path_join(to, sizeof to, &(struct zr_path_parts){checkpoint->folder, name});
    if (!result)
        result = zr_path_kind_get(from, &kind);
    if (result || kind == ZR_PATH_NONE)
        return result;
    result = zr_path_rename(&(struct zr_rename){from, to});
    if (!result) /* otherwise a power failure could restore the name without the files */
        result = zr_path_sync_folder(checkpoint->folder);
    if (!result)
        zr_checkpoint_clean_up(checkpoint->folder);
    return result;
}

/* Removes older steps. Keeps this step and the newest ones before it, except the step that it replaces. */
static zr_result drop_older(const struct save *save)
{
    const struct zr_checkpoint *checkpoint = save->checkpoint;
    size_t count;
    uint64_t oldest = 0;
    bool replaces = checkpoint->replaced != 0 && checkpoint->replaced < save->step;
    zr_result result = replaces ? drop(checkpoint, checkpoint->replaced) : ZR_OK;

    while (checkpoint->keep && !result) {
        result = count_older(save, &count, &oldest);
        if (result || count < checkpoint->keep)
            break;
        result = drop(checkpoint, oldest);
    }
    return result;
}

/* ---- All ranks ----------------------------------------------------------------------------------------- */

static zr_result save_start(struct save *save)
{
    const struct zr_checkpoint *checkpoint = save->checkpoint;
    char name[64], state[ZR_CHECKPOINT_STATE_ROOM];
    zr_checkpoint_state_name(state, checkpoint->group);
    zr_checkpoint_step_name(name, save->step, ZR_CHECKPOINT_PARTIAL);
    zr_result result =
        zr_path_join(save->partial, sizeof save->partial, &(struct zr_path_parts){checkpoint->folder, name});
    zr_checkpoint_step_name(name, save->step, ZR_CHECKPOINT_STEP);
    if (!result)
        result =
            zr_path_join(save->final, sizeof save->final, &(struct zr_path_parts){checkpoint->folder, name});
    if (!result)
        result = zr_path_join(save->state, sizeof save->state, &(struct zr_path_parts){save->partial, state});
    if (!result)
        result = zr_whole_open(&save->whole, checkpoint->engine, &checkpoint->shape,
                               zr_checkpoint_group(checkpoint));
    return !result && zr_comm_rank(checkpoint->comm) == 0 ? prepare_folder(save) : result;
}

zr_result zr_checkpoint_save(const struct zr_checkpoint *checkpoint, uint64_t step)
{
    struct save save = {.checkpoint = checkpoint, .step = step};
    bool first = zr_comm_rank(checkpoint->comm) == 0;
    /* A failure on one rank must not leave the others waiting, so every part ends with an agreement. */
    zr_result result = zr_comm_all_status(checkpoint->comm, save_start(&save));

    zr_engine_local_swap(checkpoint->engine); /* the state has the parameters of the last sent step */
    if (!result)
        result = zr_state_write(checkpoint->engine,
                                &(struct zr_state_file){.path = save.state, .parts = save.whole.given},
                                &save.state_checksum);
    if (checkpoint->groups > 1) /* groups write files of their own */
        result = zr_comm_all_status(checkpoint->comm, result);
    if (!result)
        result = zr_comm_host_all_gather(checkpoint->comm, &save.state_checksum, sizeof save.state_checksum,
                                         save.checksums);
    if (!result)
        result = zr_comm_all_status(checkpoint->comm,
                                    zr_errors_save(checkpoint->engine, save.partial, save.state_checksum));
    zr_engine_local_swap(checkpoint->engine);
    if (!result) {
        if (first)
            result = make_visible(&save);
        if (first && !result)
            result = drop_older(&save); /* after the new step is synced */
        result = zr_comm_all_status(checkpoint->comm, result);
    }
    zr_whole_close(&save.whole);
    if (first)
        zr_checkpoint_clean_up(checkpoint->folder); /* remains of the failed save, or the step that was
                                                     * replaced */
    return result;
}
