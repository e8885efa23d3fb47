/* safetensors.h: the file format that states, checkpoints and exported models share, as zr writes it: eight
 * bytes of length, a header of JSON with one line per tensor, spaces up to a multiple of 64, then the
 * tensors. Here is the header: whoever writes a file says what is in it, and the same words tell how long the
 * header is, write it, or compare it with one that is there. The data are each writer's own. Takes no memory.
 *
 * zero/checkpoint/safetensors_read.h reads files of any origin. One thread per struct. */
#ifndef ZR_SAFETENSORS_H
#define ZR_SAFETENSORS_H

#include "alloc/base/system/file.h"

#define ZR_SAFETENSORS_HEADER_MAX ((uint64_t)100 << 20) /* bytes, by the format's own specification */

struct zr_safetensors_header; /* while it is passed */

/* What a file has. `contents` says it by the three functions below: notes first, then tensors in order of the
 * data. It says the same every time, or words of the same length, and is called once per pass. */
struct zr_safetensors_contents {
    void (*say)(struct zr_safetensors_header *header, void *whose);
    void *whose;
};

/* An entry "key": "value" of the file's metadata. The value is printed as it is, with nothing in it that JSON
 * would escape, up to 255 bytes at once; zr_safetensors_note_more() goes on with it. */
void zr_safetensors_note(struct zr_safetensors_header *header, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void zr_safetensors_note_more(struct zr_safetensors_header *header, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Where the next byte of the header comes to lie in the file. */
uint64_t zr_safetensors_at(const struct zr_safetensors_header *header);

/* A tensor of fp32. Its name may have any bytes and is escaped. */
struct zr_safetensors_entry {
    const char *name; /* [name_bytes], at most ZR_SAFETENSORS_NAME_MAX */
    size_t name_bytes;
    uint64_t rows, columns; /* columns 0: a vector */
    uint64_t first;         /* elements of the data before it */
};
enum { ZR_SAFETENSORS_NAME_MAX = 128 };
void zr_safetensors_tensor(struct zr_safetensors_header *header, const struct zr_safetensors_entry *entry);

/* Where the data start: the bytes of the header with its length and padding. */
uint64_t zr_safetensors_data_at(const struct zr_safetensors_contents *contents);

/* Takes the bytes of a header, piece by piece in order; a result other than ZR_OK ends the pass. */
struct zr_safetensors_sink {
    zr_result (*put)(void *whose, uint64_t at_bytes, const char *data, size_t bytes);
    void *whose;
};
/* Passes the header to the sink. `data_at_bytes` is what zr_safetensors_data_at() said. */
zr_result zr_safetensors_put(const struct zr_safetensors_contents *contents, uint64_t data_at_bytes,
                             const struct zr_safetensors_sink *sink);
/* The sink that writes to a file (whose: struct zr_file). */
zr_result zr_safetensors_write(void *whose, uint64_t at_bytes, const char *data, size_t bytes);

#endif
