/* safetensors_read.h: reads a safetensors file of any origin. Its contents are untrusted until checked.
 * jansson parses the header into zr_heap memory. zero/checkpoint/safetensors.h describes the format.
 *
 * Errors are ZR_ERR_FORMAT, with the file's name in the message, or ZR_ERR_IO. One thread per struct. */
#ifndef ZR_SAFETENSORS_READ_H
#define ZR_SAFETENSORS_READ_H

#include "alloc/zr.h"
#include "zero/checkpoint/safetensors.h"

#define ZR_SAFETENSORS_PATH_ROOM 4608

struct json_t;

struct zr_safetensors {
    struct zr_file file;
    char path[ZR_SAFETENSORS_PATH_ROOM];
    uint64_t bytes;      /* size of the file */
    uint64_t data_bytes; /* offset of the data */
    struct json_t *root; /* header: name -> tensor */
};

/* Supported element types; all are converted to fp32. */
enum zr_safetensors_kind { ZR_SAFETENSORS_F32 = 0, ZR_SAFETENSORS_BF16, ZR_SAFETENSORS_F16 };

enum { ZR_SAFETENSORS_DIMENSIONS = 2 };

struct zr_safetensors_tensor {
    enum zr_safetensors_kind kind;
    unsigned dimensions; /* 1 or 2 */
    uint64_t shape[ZR_SAFETENSORS_DIMENSIONS];
    uint64_t elements;
    uint64_t at_bytes; /* file offset */
};

/* Opens a file and parses its header, in which every byte of data must belong to one tensor. On failure
 * *out is closed. */
zr_result zr_safetensors_open(struct zr_safetensors *out, const char *path);
void zr_safetensors_close(struct zr_safetensors *file);

/* Parses a tensor's entry, a value of file->root, and checks its range. ZR_ERR_FORMAT: not an entry, not
 * one or two dimensions, or an unsupported type. */
zr_result zr_safetensors_describe(const struct zr_safetensors *file, const char *name, struct json_t *entry,
                                  struct zr_safetensors_tensor *out);

/* Reads elements [first, first + count) of a tensor as fp32; the range must be valid. */
struct zr_safetensors_part {
    uint64_t first;
    size_t count;
};
zr_result zr_safetensors_read(const struct zr_safetensors *file, const struct zr_safetensors_tensor *tensor,
                              const struct zr_safetensors_part *part, float *out);

/* ---- PyTorch's archives (torch_file.c) ----------------------------------------------------------------- */

/* What torch.save() wrote of a state_dict, such as pytorch_model.bin, is read as if it were a safetensors
 * file: the header is made from the archive's pickle, which is evaluated as data. Files of torch before 1.6,
 * which are no archives, are refused. The sums (CRC-32) of its entries are not checked: torch.save() may
 * leave them out (torch.serialization.set_crc32_options()), and torch.load() ignores them. */

/* Whether a file begins as an archive. */
bool zr_torch_file_is(const char *path);

/* Opens an archive; tensors may share storages, and are contiguous. The file is then used, and closed, by the
 * functions of safetensors_read.h. Memory for the pickle comes from the arena until this returns.
 * ZR_ERR_FORMAT: the message names the tensor, or what is wrong. On failure *out is closed. */
zr_result zr_torch_file_open(struct zr_safetensors *out, const char *path, zr_arena *arena);

#endif
