/* checkpoint_inside.h: what saving and loading share. Private to checkpoint*.c. */
#ifndef ZR_TRAIN_CHECKPOINT_INSIDE_H
#define ZR_TRAIN_CHECKPOINT_INSIDE_H

#include "alloc/base/file.h"
#include "zero/comm/status.h"
#include "zero/checkpoint/safetensors.h"
#include "zero/train/checkpoint.h"

#define ZR_CHECKPOINT_PATH_ROOM 4608
#define ZR_CHECKPOINT_PIECE     ((size_t)256 << 10) /* bytes that are summed and written (or read) at a time */
#define ZR_CHECKPOINT_VERSION   2
#define ZR_CHECKPOINT_FORMAT    "zr-checkpoint"
/* The last entry of a manifest: the CRC-64/XZ of all bytes before this. */
#define ZR_CHECKPOINT_SUM_KEY ",\n \"manifest_crc64\": \""

/* The tensors of a shard, in the order of the file; SGD has no variance. */
enum { ZR_CHECKPOINT_TENSORS = 3 };
int zr_checkpoint_tensors_count(const zr_engine *engine);
extern const char *const zr_checkpoint_tensors[ZR_CHECKPOINT_TENSORS];
/* "adamw", "sgd", as the manifest and --optimizer have it. */
const char *zr_checkpoint_optimizer_name(const zr_engine *engine);
/* The memory of tensor number `tensor` of a segment. */
float *zr_checkpoint_tensor(const struct zr_shard_segment *segment, int tensor);

/* "shard-00000-of-00002.safetensors" */
void zr_checkpoint_shard_name(char out[64], unsigned rank, unsigned world);
/* Names of a step's folder. */
enum zr_checkpoint_kind {
    ZR_CHECKPOINT_STEP,     /* complete */
    ZR_CHECKPOINT_PARTIAL,  /* being written, or on its way out */
    ZR_CHECKPOINT_REPLACED, /* complete, and set aside for another of that step: none has its name yet, or it
                               goes */
};
void zr_checkpoint_step_name(char out[64], uint64_t step, enum zr_checkpoint_kind kind);
/* Reads "step-00000100", or the name of another kind; false for any other name. */
bool zr_checkpoint_read_step_name(const char *name, enum zr_checkpoint_kind kind, uint64_t *step);

/* Whether a step's folder has a manifest, the last that is written. */
bool zr_checkpoint_is_complete(const char *folder);

/* Makes a folder and those above it, and sees to it that the names of the new ones last. Fine if it is there.
 */
zr_result zr_checkpoint_make_folder(const char *path);

#endif
