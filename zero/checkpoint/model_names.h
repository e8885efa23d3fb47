/* model_names.h: which tensor of a model's files each parameter is, by the names that Hugging Face's
 * transformers gives them. Private to zero/checkpoint/. One struct belongs to one thread. */
#ifndef ZR_MODEL_NAMES_H
#define ZR_MODEL_NAMES_H

#include "zero/checkpoint/safetensors_read.h"
#include "zero/model/transformer.h"

/* What transformers writes of an architecture. */
struct zr_model_convention {
    const char *model_type; /* in config.json */
    const char *prefix;     /* of all names, or of none */
    const char *layer;      /* of the names of a layer's tensors, before its number */
    const char *masks[2];   /* tensors of a layer that say nothing; or NULL */
    const char *conv1d;     /* of layer 0: tells [in, out] from [out, in]; NULL: always as the list has it */
};

/* A parameter of the model and where its values are. */
struct zr_model_place {
    uint64_t filled; /* elements that the file has; the rest are zero */
    bool found;
    const struct zr_safetensors *file;
    struct zr_safetensors_tensor tensor;
};

struct zr_model_name {
    const char *name;
    size_t index;
};

struct zr_model_names {
    const struct zr_shape *shape; /* the transformer's */
    const struct zr_model_convention *convention;
    const struct zr_parameter *parameters; /* [count], the transformer's */
    struct zr_model_place *places;         /* [count], zr_heap */
    struct zr_model_name *sorted;          /* [count], zr_heap: the parameters by name */
    size_t count;
    uint64_t layers;            /* that the files have tensors of */
    struct zr_model_place head; /* of a model whose head is tied */
};

/* No tensor is found yet. The transformer lasts as long. ZR_ERR_HOST_MEMORY. After a failure, too,
 * zr_model_names_close() releases what there is, and so of a struct that is zero. */
zr_result zr_model_names_open(struct zr_model_names *names, const struct zr_transformer *transformer);
void zr_model_names_close(struct zr_model_names *names);

/* Takes note of one entry of a file's header, `full` being its name there; the file lasts as long as the
 * names. ZR_ERR_FORMAT: no tensor of this model, or one that has been found. */
zr_result zr_model_names_take(struct zr_model_names *names, const struct zr_safetensors *file,
                              const char *full, struct json_t *entry);

/* The index of a parameter of this model; names->count: it has none of that name. */
size_t zr_model_names_find(const struct zr_model_names *names, const char *name);
/* The place of a matrix that has been found; NULL: none of that name. */
const struct zr_model_place *zr_model_names_matrix(const struct zr_model_names *names, const char *name);

#endif
