/* state.h: what an engine stores, as one safetensors file that all ranks write and read at once: the files of
 * zr_engine_save(), of zr-train's checkpoints and of its exported models. Private to zero/.
 *
 * A file has the parameters under their names, in fp32 (of 2-byte parameters their masters, so that engines
 * of any precision may load it), then "optimizer.momentum.NAME" and "optimizer.variance.NAME", each kind in
 * order of the list and without padding of units. So the place of an element depends neither on the stage nor
 * on the number of ranks, every rank writes and reads its own part at once, and the bytes are the same
 * whoever wrote them, engines of parts of the model (tensor parallelism) too. The checksum in the header adds
 * up one hash per element, of its place and its bits, so that ranks can each add their part.
 *
 * Writing: rank 0 makes PATH.partial at its full size, the ranks write their parts and sync them, rank 0
 * writes the header, syncs and renames. Memory is constant. */
#ifndef ZR_STATE_H
#define ZR_STATE_H

#include "zero/checkpoint/safetensors.h"
#include "zero/zr_zero.h"

/* The parameters alone, as other programs read them. */
struct zr_state_model {
    /* Rows of parameter number `index` that the file has; rows of padding come last. */
    uint64_t (*rows)(const struct zr_parameter *parameter, size_t index, const void *whose);
    /* The notes of the file's metadata; the same on every rank. The checksum is added to them. */
    void (*say)(struct zr_safetensors_header *header, const void *whose);
    const void *whose;
};

#define ZR_STATE_MODEL_CHECKSUM "zr_checksum" /* of its tensors, in 16 hexadecimal digits */

/* Engines that store parts of one model write and read one file together. */
struct zr_state_parts {
    const struct zr_parameter_list *whole; /* the model's tensors, in the file's order; an engine has some of
                                            * them, or parts, by name */
    zr_comm *comm;                         /* of all ranks of all these engines */
};

struct zr_state_file {
    const char *path;                   /* the same on every rank, and of the same file */
    const struct zr_state_model *model; /* NULL: all of the state */
    const struct zr_state_parts *parts; /* NULL: the engine has whole tensors, and its own list and ranks */
};

/* Writes the file between steps and stores its checksum unless NULL. What was there stays until the new file
 * is whole. Collective: the same result on every rank. ZR_ERR_IO with the cause: nothing half written stays.
 * ZR_ERR_INVALID: the ranks differ in the path or in what is to be written, a step is under way, or the
 * engine stores parts of tensors alone; no file is touched. */
zr_result zr_state_write(zr_engine *engine, const struct zr_state_file *file, uint64_t *checksum);

/* Bytes of the whole state's file; `parts` as above. */
uint64_t zr_state_bytes(zr_engine *engine, const struct zr_state_parts *parts);

struct zr_state_source {
    const char *path;
    const char *remedy;       /* "load another file": ends what is said of a damaged one */
    const uint64_t *checksum; /* that the file has to have; NULL: any that fits it */
    const struct zr_state_parts *parts;
};

/* Reads a file of the whole state, as zr_engine_load() promises. */
zr_result zr_state_read(zr_engine *engine, const struct zr_state_source *source);

/* The sum of the hashes of `count` 4-byte words, the first of which has number `place`. */
uint64_t zr_state_checksum(uint64_t place, const void *words, size_t count);

/* What a file is called while it is written. False: more than ZR_STATE_PATH_ROOM. Async-signal-safe. */
#define ZR_STATE_PATH_ROOM 4608
bool zr_state_partial(const char *path, char out[ZR_STATE_PATH_ROOM]);

#endif
