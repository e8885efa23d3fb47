/* safetensors_read.h: reads a safetensors file of any origin: everything in it is taken for hostile until it
 * has been checked. jansson reads the header, in zr_heap memory. zero/checkpoint/safetensors.h has the
 * format.
 *
 * Errors are ZR_ERR_FORMAT with words that name the file, or ZR_ERR_IO. One struct belongs to one thread. */
#ifndef ZR_SAFETENSORS_READ_H
#define ZR_SAFETENSORS_READ_H

#include "zero/checkpoint/safetensors.h"

#define ZR_SAFETENSORS_PATH_ROOM 4608

struct json_t;

struct zr_safetensors {
    struct zr_file file;
    char path[ZR_SAFETENSORS_PATH_ROOM];
    uint64_t bytes;      /* of the file */
    uint64_t data_bytes; /* where the first tensor starts */
    struct json_t *root; /* the header: name -> tensor */
};

/* The kinds of number that zr reads; all become fp32. */
enum zr_safetensors_kind { ZR_SAFETENSORS_F32 = 0, ZR_SAFETENSORS_BF16, ZR_SAFETENSORS_F16 };

enum { ZR_SAFETENSORS_DIMENSIONS = 2 };

struct zr_safetensors_tensor {
    enum zr_safetensors_kind kind;
    unsigned dimensions; /* 1 or 2 */
    uint64_t shape[ZR_SAFETENSORS_DIMENSIONS];
    uint64_t elements;
    uint64_t at_bytes; /* of the file */
};

/* Opens a file and reads its header, which must give every byte of the data to one tensor. On failure *out is
 * a closed one. */
zr_result zr_safetensors_open(struct zr_safetensors *out, const char *path);
void zr_safetensors_close(struct zr_safetensors *file);

/* Reads the entry of a tensor and checks that it lies in the file. ZR_ERR_FORMAT: none at all, not of one or
 * two dimensions, or of other numbers. `entry` is a value of file->root. */
zr_result zr_safetensors_describe(const struct zr_safetensors *file, const char *name, struct json_t *entry,
                                  struct zr_safetensors_tensor *out);

/* Reads elements [first, first + count) of a tensor as fp32; they are there. */
struct zr_safetensors_part {
    uint64_t first;
    size_t count;
};
zr_result zr_safetensors_read(const struct zr_safetensors *file, const struct zr_safetensors_tensor *tensor,
                              const struct zr_safetensors_part *part, float *out);

#endif
