/* model_names.h: maps each parameter to its tensor in a model's files, by the names of Hugging Face's
 * transformers. Private to zero/checkpoint/. One thread per struct. */
#ifndef ZR_MODEL_NAMES_H
#define ZR_MODEL_NAMES_H

#include "zero/checkpoint/safetensors_read.h"
#include "zero/model/transformer.h"

/* Names that transformers uses for an architecture. */
struct zr_model_convention {
    const char *model_type; /* in config.json */
    const char *prefix;     /* optional prefix of all names */
    const char *layer;      /* prefix of a layer's tensors, before its number */
    const char *masks[2];   /* tensors of a layer without parameters; or NULL */
    const char *conv1d;     /* tensor of layer 0 whose shape distinguishes [in, out] from [out, in]; NULL: the
                               layout is that of the list */
};

/* A parameter and the place of its values. */
struct zr_model_place {
    uint64_t filled; /* elements in the file; the others are zero */
    bool found;
    const struct zr_safetensors *file;
    struct zr_safetensors_tensor tensor;
};

struct zr_model_name {
    const char *name;
    size_t index;
};

struct zr_model_names {
    const struct zr_shape *shape; /* owned by the transformer */
    const struct zr_model_convention *convention;
    const struct zr_parameter *parameters; /* [count], owned by the transformer */
    struct zr_model_place *places;         /* [count], zr_heap */
    struct zr_model_name *sorted;          /* [count], zr_heap: sorted by name */
    size_t count;
    uint64_t layers;            /* layers with tensors in the files */
    struct zr_model_place head; /* the head's tensor in a model with a tied head */
};

/* Initializes the table without tensors; the transformer must outlive it. ZR_ERR_HOST_MEMORY.
 * zr_model_names_close() also accepts a struct after a failure, and a zeroed one. */
zr_result zr_model_names_open(struct zr_model_names *names, const struct zr_transformer *transformer);
void zr_model_names_close(struct zr_model_names *names);

/* Records one entry of a file's header; `full`: its name in the file. The file must outlive the names.
 * ZR_ERR_FORMAT: the model has no tensor with this name, or the tensor is a duplicate. */
zr_result zr_model_names_take(struct zr_model_names *names, const struct zr_safetensors *file,
                              const char *full, struct json_t *entry);

/* Index of a parameter; names->count: no such name. */
size_t zr_model_names_find(const struct zr_model_names *names, const char *name);
/* Place of a matrix that has been found; NULL: no such name. */
const struct zr_model_place *zr_model_names_matrix(const struct zr_model_names *names, const char *name);

#endif
