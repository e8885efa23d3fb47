/* model_file.h: a bundled model as safetensors, in the names and layouts of Hugging Face's transformers.
 * GPT-2: wte.weight, h.0.attn.c_attn.weight [in, out], ..., head tied to wte. LLaMA:
 * model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight [out, in], ..., and lm_head.weight
 * unless the head is tied. */
#ifndef ZR_MODEL_FILE_H
#define ZR_MODEL_FILE_H

#include <string.h>

#include "zero/model/transformer.h"

struct zr_model_file {
    const char *path;
    zr_engine *engine; /* borrowed */
    zr_comm *comm;
    struct zr_shape shape;
    bool assumed;    /* for importing: without a config.json, assume the shape */
    double *dropout; /* for importing: largest dropout rate of config.json; NULL: not needed */
};

/* Writes the parameters in fp32 without padding rows; see zr_state_write(). Of a model with adapters, writes
 * only these, in PEFT's names, and adapter_config.json into the same folder. Collective. */
zr_result zr_model_export(const struct zr_model_file *file);

/* Loads a model's parameters into the engine, with momentum and variance zero, and publishes it as after
 * step 0. The path is a safetensors file, or the index of several files next to it (*.index.json).
 * Accepted: names without "model." or with "transformer.", GPT-2 matrices as [out, in] (all or none), F32,
 * BF16 or F16, masks (ignored), a tied head equal to the embedding. Rows missing in the file become zero.
 * Every key of the config.json next to it must be supported (see below); a file without one is
 * refused, unless zr exported it or `assumed`. Collective, with the same result on every rank.
 * ZR_ERR_FORMAT: no such file, or another shape (the message names the option); the engine is unchanged.
 * ZR_ERR_CORRUPT: a value is not finite, or zr's checksum does not match. */
zr_result zr_model_import(const struct zr_model_file *file);

/* Whether the parameter has a row per vocabulary entry, and therefore padding rows that files lack. */
static inline bool zr_model_file_pads(const struct zr_parameter *parameter, size_t index)
{
    return index == 0 || strcmp(parameter->name, "lm_head.weight") == 0;
}

/* Removes the remains of an unfinished export next to `path` ("": none). Async-signal-safe. */
void zr_model_export_clean_up(const char *path);

/* ---- config.json (model_config.c) ---------------------------------------------------------------------- */

/* Compares a config.json of Hugging Face's transformers with the shape of a run, by an allow list: a key's
 * value must be what this run computes, or the key has no effect on training; all other keys are refused by
 * name. */

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
