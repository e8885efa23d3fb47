/* model_config.h: a config.json of Hugging Face's transformers beside the shape of a run. An allow list: each
 * key is understood, and then its value has to be what this run computes; or it changes no number in
 * training; or it is refused by its name. Private to zero/checkpoint/. */
#ifndef ZR_MODEL_CONFIG_H
#define ZR_MODEL_CONFIG_H

#include "zero/model/transformer.h"

struct json_t;

struct zr_model_config {
    const char *path;             /* of the model, for messages */
    const struct json_t *root;    /* an object, hostile; borrowed */
    const struct zr_shape *shape; /* of the whole model, completed; borrowed */
    bool has_head;                /* the files have an lm_head.weight */
};

/* Compares transformers' meaning of the file, its defaults for missing keys included, with the shape.
 * *dropout is the largest dropout rate that the file names: zr trains without. ZR_ERR_FORMAT: the message
 * names the key, the reason and the option or the way out. */
zr_result zr_model_config_check(const struct zr_model_config *config, double *dropout);

#endif
