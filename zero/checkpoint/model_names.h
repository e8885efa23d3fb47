/* model_names.h: maps each parameter to its tensor in a model's files, by the names of Hugging Face's
 * transformers. Private to zero/checkpoint/. One thread per struct.
 *
 * Some families store several matrices of a LLaMA as one tensor: Phi-3 q, k and v one after the other,
 * GPT-NeoX q, k and v of each head. */
#ifndef ZR_MODEL_NAMES_H
#define ZR_MODEL_NAMES_H

#include "zero/checkpoint/safetensors_read.h"
#include "zero/model/transformer.h"

/* Names that transformers uses for an architecture. */
struct zr_model_convention {
    const char *prefix;   /* optional prefix of all names */
    const char *layer;    /* prefix of a layer's tensors, before its number */
    const char *masks[3]; /* tensors of a layer without parameters; or NULL */
    const char *conv1d;   /* tensor of layer 0 whose shape distinguishes [in, out] from [out, in]; NULL: the
                             layout is that of the list */
};

/* The rows of a parameter in its file's tensor. */
struct zr_model_rows {
    uint64_t before;        /* rows of the parameters before it in the tensor */
    uint64_t whole;         /* rows of the tensor; 0: the parameter's */
    uint64_t run;           /* rows that are adjacent; 0: all */
    uint64_t first, stride; /* with `run`: row of the first run, and rows from run to run */
};

/* Name of a parameter's tensor in files, which may have only some of the tensor's rows. */
struct zr_model_file_name {
    const char *prefix; /* of the name in transformers' model with its heads; read, and not always written */
    char name[ZR_SAFETENSORS_NAME_MAX];
    struct zr_model_rows rows;
};
void zr_model_file_name(const struct zr_shape *shape, const struct zr_parameter *parameter,
                        struct zr_model_file_name *out);

/* The prefix of an exported name: transformers 4 takes a file without prefixes for a model without heads,
 * which has no lm_head. */
const char *zr_model_export_prefix(const struct zr_shape *shape, const struct zr_model_file_name *file);

/* Whether a parameter's rows follow those of the parameter before it in one tensor. */
bool zr_model_file_joins(const struct zr_shape *shape, const struct zr_parameter *parameter);

/* Place of a parameter's element in the file's tensor, and how many elements are adjacent from there. */
uint64_t zr_model_rows_place(const struct zr_model_rows *rows, uint64_t columns, uint64_t element,
                             uint64_t *adjacent);

/* A parameter and the place of its values. */
struct zr_model_place {
    struct zr_model_file_name file_name;
    uint64_t filled; /* elements in the file; the others are zero */
    bool found;
    const struct zr_safetensors *file;
    struct zr_safetensors_tensor tensor; /* the shape is that of the parameter's rows */
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
    struct zr_model_name *sorted, *filed;  /* [count], zr_heap: sorted by name, by name in files */
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
