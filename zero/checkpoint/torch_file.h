/* torch_file.h: reads what torch.save() wrote of a state_dict, such as pytorch_model.bin, as if it were a
 * safetensors file: the header that safetensors_read.h has is made from the archive's pickle, which is
 * evaluated as data. Files of torch before 1.6, which are no archives, are refused. Private to
 * zero/checkpoint/. */
#ifndef ZR_TORCH_FILE_H
#define ZR_TORCH_FILE_H

#include "alloc/zr.h"
#include "zero/checkpoint/safetensors_read.h"

/* Whether a file begins as an archive. */
bool zr_torch_file_is(const char *path);

/* Opens an archive; tensors may share storages, and are contiguous. The file is then used, and closed, by the
 * functions of safetensors_read.h. Memory for the pickle comes from the arena until this returns.
 * ZR_ERR_FORMAT: the message names the tensor, or what is wrong. On failure *out is closed. */
zr_result zr_torch_file_open(struct zr_safetensors *out, const char *path, zr_arena *arena);

#endif
