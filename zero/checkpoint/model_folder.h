/* model_folder.h: an exported model as a folder of transformers. Private to zero/checkpoint/. */
#ifndef ZR_MODEL_FOLDER_H
#define ZR_MODEL_FOLDER_H

#include "zero/checkpoint/model_file.h"
#include "zero/checkpoint/state.h"

zr_result zr_model_folder_path(char out[ZR_STATE_PATH_ROOM], const char *folder, const char *name);

/* The parameters are divided, in the order of the list, into files of at most `limit_bytes`, or of one
 * tensor. End of the file that begins with parameter `first`. */
size_t zr_model_part_end(const struct zr_transformer *whole, size_t first, uint64_t limit_bytes);
enum { ZR_MODEL_PART_ROOM = 64 };
void zr_model_part_name(char out[ZR_MODEL_PART_ROOM], unsigned part, unsigned count);

/* Writes the index of `count` files, and removes what an earlier export with another number of files would
 * leave in its place. */
zr_result zr_model_folder_index(const char *folder, const struct zr_transformer *whole, uint64_t limit_bytes,
                                unsigned count);
/* Writes config.json and generation_config.json, and copies the tokenizer's files from file->source. */
zr_result zr_model_folder_finish(const struct zr_model_file *file, const struct zr_shape *shape);

#endif
