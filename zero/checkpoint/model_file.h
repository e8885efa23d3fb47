/* model_file.h: a bundled model as safetensors, in the names and layouts of Hugging Face's transformers.
 * GPT-2: wte.weight, h.0.attn.c_attn.weight [in, out], ..., head tied to wte. LLaMA:
 * model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight [out, in], ..., and lm_head.weight
 * unless the head is tied; GPT-NeoX and Phi-3, which are LLaMAs here, have their own names in files
 * (model_names.h). */
#ifndef ZR_MODEL_FILE_H
#define ZR_MODEL_FILE_H

#include <string.h>

#include "zero/model/transformer.h"

#define ZR_MODEL_VARIANT "variant" /* note of a file: zr_variant_print() of its model */

struct zr_model_file {
    const char *path;
    zr_engine *engine; /* borrowed */
    zr_comm *comm;
    struct zr_shape shape;
    bool assumed; /* for importing: without a config.json, assume the shape */
    const char
        *source; /* for exporting a folder: folder of --model, whose files are copied; NULL or "": none */
    uint64_t part_bytes; /* for exporting a folder: maximum size of a file */
    double *dropout;     /* for importing: largest dropout rate of config.json that the run lacks; NULL: not
                          * needed */
};

/* Writes the parameters in fp32 without padding rows; see zr_state_write(). A path that ends in '/' or is a
 * folder becomes a folder that transformers loads: model.safetensors, or several files with an index,
 * config.json, generation_config.json and the tokenizer's files. Of a model with adapters, writes only these,
 * in PEFT's names, and adapter_config.json into the same folder. Collective. */
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

/* Whether an export to this path is a folder. */
bool zr_model_is_folder(const char *path);

/* Reads a JSON object of at most 100 MiB, which the caller frees with json_decref(). ZR_ERR_FORMAT: none. */
struct json_t;
zr_result zr_model_json_read(const char *path, struct json_t **out);

/* Removes the remains of an unfinished export next to `path` ("": none). Async-signal-safe. */
void zr_model_export_clean_up(const char *path);

/* ---- config.json (model_config.c) ---------------------------------------------------------------------- */

/* A config.json of Hugging Face's transformers as a shape, by an allow list: a key has a place in the shape,
 * or no effect on training; all others are refused, together, by name. Models: gpt2, llama, mistral, qwen2,
 * qwen3, phi3, gemma, gpt_neox, with transformers' defaults for missing keys. */

struct json_t;

struct zr_model_config {
    const char *path;          /* path of the model, for messages */
    const struct json_t *root; /* an object, untrusted; borrowed */
    bool has_head;             /* zr_model_config_check(): the files have an lm_head.weight */
};

/* Sets the fields of the model in *shape, which it completes; `sequence` is read, and sizes that the file
 * lacks remain, if they are not 0. *dropout is the largest dropout rate in the file that the shape has
 * no place for (attention's), in zr_model_config_check() also one that the run lacks. ZR_ERR_FORMAT: the
 * message names all keys that zr cannot train with, and the reason of the first one. */
zr_result zr_model_config_read(const struct zr_model_config *config, struct zr_shape *shape, double *dropout);

/* Compares the file with the completed shape of a whole model. ZR_ERR_FORMAT: the message names the first key
 * that differs, and the option or fix. */
zr_result zr_model_config_check(const struct zr_model_config *config, const struct zr_shape *run,
                                double *dropout);

#endif
