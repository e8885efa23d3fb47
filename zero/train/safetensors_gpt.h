/* safetensors_gpt.h: a GPT-2 as one safetensors file with the names and layouts that Hugging Face's
 * transformers gives it: wte.weight, h.0.attn.c_attn.weight [in, out], ..., the head tied to wte. */
#ifndef ZR_TRAIN_SAFETENSORS_GPT_H
#define ZR_TRAIN_SAFETENSORS_GPT_H

#include "zero/model/transformer.h"

struct zr_gpt_file {
    const char *path;
    zr_engine *engine; /* all borrowed */
    zr_comm *comm;
    struct zr_shape shape;
};

/* Writes the parameters in fp32, without rows of padding. Every rank writes what it owns to its place in one
 * file beside the path (PATH.partial), which rank 0 renames when all of it is synced: no rank takes memory
 * for it, and the bytes depend on neither world size nor stage. Collective: the same result on every rank.
 * ZR_ERR_IO with the cause: nothing half written stays, and a file of that name is as it was. */
zr_result zr_gpt_export(const struct zr_gpt_file *file);

/* Fills the engine's parameters from such a file, with momentum and variance zero, and publishes it as after
 * step 0. Names may begin with "transformer.", matrices may be [out, in] as torch.nn.Linear has them (all or
 * none of them), numbers F32, BF16 or F16; masks (attn.bias) are passed over, a head must be that of wte.
 * Rows that the file has not become zero. Collective: the same result on every rank. ZR_ERR_FORMAT: no such
 * file, or of another shape (the words name the flag); the engine is untouched. ZR_ERR_CORRUPT: a value is
 * not finite. */
zr_result zr_gpt_import(const struct zr_gpt_file *file);

/* Removes what an export that did not end left beside `path` ("": nothing). Async-signal-safe. */
void zr_gpt_export_clean_up(const char *path);

#endif
