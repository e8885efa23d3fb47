/* checkpoint_inside.h: what saving and loading share. Private to checkpoint*.c. */
#ifndef ZR_CHECKPOINT_INSIDE_H
#define ZR_CHECKPOINT_INSIDE_H

#include "alloc/base/system/file.h"
#include "zero/comm/status.h"
#include "zero/checkpoint/checkpoint.h"

#define ZR_CHECKPOINT_PATH_ROOM 4608
#define ZR_CHECKPOINT_VERSION   3
#define ZR_CHECKPOINT_FORMAT    "zr-checkpoint"
#define ZR_CHECKPOINT_STATE     "state.safetensors"
/* The last entry of a manifest: zr_checkpoint_text_sum() of all bytes before this. */
#define ZR_CHECKPOINT_SUM_KEY ",\n \"manifest_checksum\": \""
uint64_t zr_checkpoint_text_sum(const char *text, size_t bytes);

/* "adamw", "sgd", as the manifest and --optimizer have it. */
const char *zr_checkpoint_optimizer_name(const zr_engine *engine);

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
