/* model_file.h: a bundled model as safetensors with the names and layouts that Hugging Face's transformers
 * gives it. GPT-2: wte.weight, h.0.attn.c_attn.weight [in, out], ..., the head tied to wte. LLaMA:
 * model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight [out, in], ..., lm_head.weight unless the
 * head is tied. */
#ifndef ZR_MODEL_FILE_H
#define ZR_MODEL_FILE_H

#include <string.h>

#include "zero/model/transformer.h"

struct zr_model_file {
    const char *path;
    zr_engine *engine; /* all borrowed */
    zr_comm *comm;
    struct zr_shape shape;
    bool assumed;    /* importing: without a config.json the shape is taken for the model's */
    double *dropout; /* importing: the largest rate that config.json names; NULL: not asked for */
};

/* Writes the parameters in fp32, without rows of padding; see zr_state_write(). Collective. */
zr_result zr_model_export(const struct zr_model_file *file);

/* Fills the engine's parameters from a model, with momentum and variance zero, and publishes it as after step
 * 0. The path is a file of safetensors, or the index of several beside it (*.index.json). Names may lack
 * "model." or begin with "transformer.", GPT-2's matrices may be [out, in] as torch.nn.Linear has them (all
 * or none of them), numbers F32, BF16 or F16; masks are passed over; a tied head must be the embedding. Rows
 * that the file has not become zero. Each key of the config.json beside it must be one that this run computes
 * (model_config.h); a file without one is refused, unless zr exported it or `assumed`. Collective: the same
 * result on every rank. ZR_ERR_FORMAT: no such file, or of another shape (the words name the flag); the
 * engine is untouched. ZR_ERR_CORRUPT: a value is not finite, or a
 * file that has zr's checksum does not fit it. */
zr_result zr_model_import(const struct zr_model_file *file);

/* Whether parameter `index` has a row per entry of the vocabulary, and so rows of padding that no file has.
 */
static inline bool zr_model_file_pads(const struct zr_parameter *parameter, size_t index)
{
    return index == 0 || strcmp(parameter->name, "lm_head.weight") == 0;
}

/* Removes what an export that did not end left beside `path` ("": nothing). Async-signal-safe. */
void zr_model_export_clean_up(const char *path);

#endif
