/* state.h: engine state as one safetensors file that all ranks write and read concurrently: files of
 * zr_engine_save(), checkpoints and exported models. Private to zero/.
 *
 * A file has the parameters in fp32 (the masters of two-byte parameters) under their names, then
 * "optimizer.momentum.NAME" and "optimizer.variance.NAME", or other slots of the optimizer, of those that are
 * not frozen, each kind in list order without padding. The offset of an element therefore depends on neither
 * stage nor number of ranks, each rank writes its own part, and the bytes do not depend on the writers,
 * engines of tensor-parallel parts included. The checksum in the header is a sum of one hash per element, of
 * its position and bits, so ranks sum their parts.
 *
 * Rank 0 creates PATH.partial at its full size, all ranks write and sync their parts, and rank 0 writes
 * the header, syncs and renames. Memory use is constant. */
#ifndef ZR_STATE_H
#define ZR_STATE_H

#include "zero/checkpoint/safetensors.h"
#include "zero/zr_zero.h"

/* Parameters only, in the format of other programs. */
struct zr_state_model {
    /* Rows of parameter `index` in the file, without padding rows, which come last. */
    uint64_t (*rows)(const struct zr_parameter *parameter, size_t index, const void *whose);
    /* Name of a parameter in the file, which may be in `room`; "": not in the file. NULL: names are those of
     * the parameters. */
    const char *(*name)(const struct zr_parameter *parameter, char room[ZR_SAFETENSORS_NAME_MAX],
                        const void *whose);
    /* Whether a parameter's rows belong to the tensor of the parameter before it in the list, and the place
     * of one of its elements, counted from its first place in list order, with the number of elements
     * adjacent from there. NULL: each parameter is a tensor. */
    bool (*joins)(const struct zr_parameter *parameter, const void *whose);
    int64_t (*place)(const struct zr_parameter *parameter, uint64_t element, uint64_t *adjacent,
                     const void *whose);
    /* Adds metadata, equal on every rank. The checksum is added to it. */
    void (*say)(struct zr_safetensors_header *header, const void *whose);
    const void *whose;
};

#define ZR_STATE_MODEL_CHECKSUM "zr_checksum" /* of the tensors, 16 hexadecimal digits */

/* Engines with parts of one model that write and read one file together. */
struct zr_state_parts {
    const struct zr_parameter_list *whole; /* the model's tensors in file order; an engine has some of
                                            * them, or parts, by name */
    zr_comm *comm;                         /* all ranks of these engines */
};

struct zr_state_file {
    const char *path;                   /* names the same file on every rank */
    const struct zr_state_model *model; /* NULL: the whole state */
    const struct zr_state_parts *parts; /* NULL: the engine has whole tensors, its own list and its own
                                         * ranks */
    bool in_place; /* `path` is an existing file in memory, which is neither synced nor renamed */
};

/* Writes the file between steps, and stores its checksum unless NULL. An existing file remains until the new
 * one is complete. Collective, with the same result on every rank. ZR_ERR_IO: the message has the cause; no
 * partial file remains. ZR_ERR_INVALID: ranks differ in path or contents, a step is in progress, or the
 * engine only has parts of tensors; no file is touched. */
zr_result zr_state_write(zr_engine *engine, const struct zr_state_file *file, uint64_t *checksum);

/* Size of a file with the whole state. */
uint64_t zr_state_bytes(zr_engine *engine, const struct zr_state_parts *parts);

struct zr_state_source {
    const char *path;
    const char *remedy;       /* ends a message about a damaged file: "load another file" */
    const uint64_t *checksum; /* required checksum of the file; NULL: any that matches the contents */
    const struct zr_state_parts *parts;
};

/* Reads a file with the whole state, with the guarantees of zr_engine_load(). */
zr_result zr_state_read(zr_engine *engine, const struct zr_state_source *source);

/* Sum of the hashes of `count` 4-byte words; the first one has position `place`. */
uint64_t zr_state_checksum(uint64_t place, const void *words, size_t count);

/* Name of a file while it is written. False: longer than ZR_STATE_PATH_ROOM. Async-signal-safe. */
#define ZR_STATE_PATH_ROOM 4608
bool zr_state_partial(const char *path, char out[ZR_STATE_PATH_ROOM]);

#endif
