/* safetensors.h: writes the safetensors format of states, checkpoints and exported models: eight bytes of
 * length, a JSON header with one line per tensor, spaces up to a multiple of 64, then the tensors. This
 * module handles the header: a callback lists the contents, and one pass computes the header's size,
 * writes it, or compares it with an existing one. The caller writes the data. Allocates no memory. One
 * thread per struct.
 *
 * zero/checkpoint/safetensors_read.h reads files of any origin. */
#ifndef ZR_SAFETENSORS_H
#define ZR_SAFETENSORS_H

#include "alloc/base/system/file.h"

#define ZR_SAFETENSORS_HEADER_MAX ((uint64_t)100 << 20) /* bytes, from the format's specification */

struct zr_safetensors_header; /* state of a pass */

/* Contents of a file. `say` lists them with the functions below: notes first, then tensors in data order.
 * It is called once per pass and must produce text of the same length each time. */
struct zr_safetensors_contents {
    void (*say)(struct zr_safetensors_header *header, void *whose);
    void *whose;
};

/* Adds "key": "value" to the metadata. The value, up to 255 bytes, must not need JSON escapes. */
void zr_safetensors_note(struct zr_safetensors_header *header, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* File offset of the next header byte. */
uint64_t zr_safetensors_at(const struct zr_safetensors_header *header);

/* A tensor of fp32 or of 64-bit integers. The name may contain any bytes and is escaped. */
struct zr_safetensors_entry {
    const char *name; /* [name_bytes], at most ZR_SAFETENSORS_NAME_MAX */
    size_t name_bytes;
    uint64_t rows, columns; /* columns 0: a vector */
    uint64_t first;         /* number of fp32 elements, or half integers, before it */
    bool integers;          /* 64-bit integers */
};
enum { ZR_SAFETENSORS_NAME_MAX = 128 };
void zr_safetensors_tensor(struct zr_safetensors_header *header, const struct zr_safetensors_entry *entry);

/* Offset of the data: length, header and padding. */
uint64_t zr_safetensors_data_at(const struct zr_safetensors_contents *contents);

/* Receives the bytes of a header in order; a result other than ZR_OK ends the pass. */
struct zr_safetensors_sink {
    zr_result (*put)(void *whose, uint64_t at_bytes, const char *data, size_t bytes);
    void *whose;
};
/* Passes the header to a sink. `data_at_bytes` comes from zr_safetensors_data_at(). */
zr_result zr_safetensors_put(const struct zr_safetensors_contents *contents, uint64_t data_at_bytes,
                             const struct zr_safetensors_sink *sink);
/* Sink that writes to a file (whose: struct zr_file). */
zr_result zr_safetensors_write(void *whose, uint64_t at_bytes, const char *data, size_t bytes);

#endif
