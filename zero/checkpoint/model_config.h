/* model_config.h: compares a config.json of Hugging Face's transformers with the shape of a run, by an
 * allow list: a key's value must be what this run computes, or the key has no effect on training; all
 * other keys are refused by name. Private to zero/checkpoint/. */
#ifndef ZR_MODEL_CONFIG_H
#define ZR_MODEL_CONFIG_H

#include "zero/model/transformer.h"

struct json_t;

struct zr_model_config {
    const char *path;             /* path of the model, for messages */
    const struct json_t *root;    /* an object, untrusted; borrowed */
    const struct zr_shape *shape; /* shape of the whole model, completed; borrowed */
    bool has_head;                /* the files have an lm_head.weight */
};

/* Compares the file, with transformers' defaults for missing keys, with the shape. *dropout is the largest
 * dropout rate in the file; zr trains without dropout. ZR_ERR_FORMAT: the message names the key, the
 * reason, and the option or fix. */
zr_result zr_model_config_check(const struct zr_model_config *config, double *dropout);

#endif
