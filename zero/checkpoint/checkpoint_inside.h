/* checkpoint_inside.h: shared by saving, loading and export. Private to zero/checkpoint/. */
#ifndef ZR_CHECKPOINT_INSIDE_H
#define ZR_CHECKPOINT_INSIDE_H

#include "alloc/base/system/file.h"
#include "zero/checkpoint/model_file.h"
#include "zero/checkpoint/state.h"
#include "zero/comm/mesh.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/model/transformer.h"

#define ZR_CHECKPOINT_PATH_ROOM 4608
#define ZR_CHECKPOINT_VERSION   3
#define ZR_CHECKPOINT_FORMAT    "zr-checkpoint"
#define ZR_CHECKPOINT_STATE     "state.safetensors"
/* Name of a group's state, as ZR_CHECKPOINT_STATE for group 0. */
enum { ZR_CHECKPOINT_STATE_ROOM = 40 };
void zr_checkpoint_state_name(char out[ZR_CHECKPOINT_STATE_ROOM], unsigned group);
static inline zr_comm *zr_checkpoint_group(const struct zr_checkpoint *checkpoint)
{
    return checkpoint->group_comm ? checkpoint->group_comm : checkpoint->comm;
}
/* Key of the checksums of the further groups' states; a run without groups has none. */
#define ZR_CHECKPOINT_GROUPS "group_checksums"
/* Keys of a manifest's shape, of a model with adapters. */
#define ZR_CHECKPOINT_LORA       "lora_rank"
#define ZR_CHECKPOINT_LORA_ALPHA "lora_alpha"
/* Key that says whether the step has errors.NNNNN. */
#define ZR_CHECKPOINT_ERRORS "errors"
/* Key of the kinds of compression that have ended, see zero/engine/meter.h. */
#define ZR_CHECKPOINT_FULL_PRECISION "full_precision"
/* Key of the warm-up of compressed gradients, see zero/engine/warmup.h. */
#define ZR_CHECKPOINT_WARMUP    "warmup_of_gradients"
#define ZR_CHECKPOINT_KIND_ROOM 48
void zr_checkpoint_kind_name(char out[ZR_CHECKPOINT_KIND_ROOM], const zr_engine *engine, unsigned kind);
/* Last entry of a manifest: zr_checkpoint_text_sum() of all bytes before it. */
#define ZR_CHECKPOINT_SUM_KEY ",\n \"manifest_checksum\": \""
uint64_t zr_checkpoint_text_sum(const char *text, size_t bytes);

/* Names of a step's folder. */
enum zr_checkpoint_kind {
    ZR_CHECKPOINT_STEP,     /* complete */
    ZR_CHECKPOINT_PARTIAL,  /* being written, or being removed */
    ZR_CHECKPOINT_REPLACED, /* complete, set aside while another save of this step takes its name */
};
void zr_checkpoint_step_name(char out[64], uint64_t step, enum zr_checkpoint_kind kind);
/* Parses "step-00000100" or the name of another kind; false for any other name. */
bool zr_checkpoint_read_step_name(const char *name, enum zr_checkpoint_kind kind, uint64_t *step);

/* Whether a step's folder has a manifest, which is written last. */
bool zr_checkpoint_is_complete(const char *folder);

/* Creates a folder and its parents, and syncs the new entries. Accepts an existing folder. */
zr_result zr_checkpoint_make_folder(const char *path);

/* ---- Whole tensors ------------------------------------------------------------------------------------- */

/* The list of a bundled model's whole tensors, for engines that have parts of them. */

/* Must not be moved. */
struct zr_whole {
    struct zr_transformer transformer;
    struct zr_state_parts parts;
    const struct zr_state_parts *given; /* argument of zr_state_write() and zr_state_read(): NULL if the
                                         * engine has whole tensors */
};

/* `comm` has all ranks with the engine's model. Records are in the engine's host arena until
 * zr_whole_close(), which is also required after a failure. */
zr_result zr_whole_open(struct zr_whole *out, zr_engine *engine, const struct zr_shape *shape, zr_comm *comm);
void zr_whole_close(struct zr_whole *whole);

/* ---- Errors of gradients (error_file.c) ---------------------------------------------------------------- */

/* Whether a step has these files: not if the engine has no errors yet. */
bool zr_errors_exist(const zr_engine *engine);
/* Write / read this rank's file, if there are files, in a step's folder, beside the state with this checksum.
 * Reading follows zr_state_read() on an engine whose errors are zeros. The engine has no operation under way.
 * `saved`: the manifest says that the step has files. */
zr_result zr_errors_save(zr_engine *engine, const char *folder, uint64_t state_checksum);
zr_result zr_errors_load(zr_engine *engine, const char *folder, uint64_t state_checksum, bool saved);

/* ---- An exported folder of transformers (model_folder.c) ------------------------------------------------
 */

/* Path of a file in the folder. ZR_ERR_INVALID: it is too long. */
zr_result zr_model_folder_path(char out[ZR_STATE_PATH_ROOM], const char *folder, const char *name);

/* The parameters are divided, in the order of the list, into files of at most `limit_bytes`, or of one
 * tensor. End of the file that begins with parameter `first`. */
size_t zr_model_part_end(const struct zr_transformer *whole, size_t first, uint64_t limit_bytes);
enum { ZR_MODEL_PART_ROOM = 64 };
void zr_model_part_name(char out[ZR_MODEL_PART_ROOM], unsigned part, unsigned count);

/* All of these are called on rank 0 only. Those that write are called after every rank has written its part
 * of the parameters, and replace each file at once, after its contents are synced.
 *
 * Before the first of `count` files: removes what an interrupted export left, and an index, which would make
 * a model of old and new files. */
zr_result zr_model_folder_begin(const char *folder, unsigned count);
/* Writes the index of `count` files, then removes what loaders would prefer of an earlier export with another
 * number of files. */
zr_result zr_model_folder_index(const char *folder, const struct zr_transformer *whole, uint64_t limit_bytes,
                                unsigned count);
/* Writes config.json and generation_config.json, and copies the tokenizer's files from file->source. */
zr_result zr_model_folder_finish(const struct zr_model_file *file, const struct zr_shape *shape);
/* Whether an export writes a file of this name, before ".partial". Async-signal-safe. */
bool zr_model_folder_writes(const char *name, size_t length);

/* Calls `visit` for each entry of an open folder. Async-signal-safe. */
void zr_checkpoint_walk(int fd, void (*visit)(int fd, const char *name));

#endif
