/* texts.h: texts as tokens of a model: the tokenizer that all ranks have, and the tokens of a text.
 *
 * For the sample at the end of a run, zr-train sample and zr-train eval; zr-train tokenize has threads
 * instead of ranks and uses zero/text alone. Memory is the heap's. */
#ifndef ZR_TRAIN_TEXTS_H
#define ZR_TRAIN_TEXTS_H

#include "zero/comm/zr_comm.h"
#include "zero/text/tokenizer.h"
#include "zero/train/settings/args.h"

/* Opens the tokenizer of the settings on all ranks or on none: *out is NULL without one. *end: the token that
 * ends a text, see zr_tokenizer_eos(). Collective. ZR_ERR_IO, ZR_ERR_FORMAT and others on all ranks: a rank
 * cannot read it. The caller closes *out. */
zr_result zr_texts_open(zr_tokenizer **out, int32_t *end, const struct zr_train_config *config,
                        zr_comm *comm);

/* A text and the model that reads its tokens. All of it is borrowed for the call. */
struct zr_text_request {
    const zr_tokenizer *tokenizer;
    size_t vocabulary; /* of the model: an upper bound of tokens */
    const char *text;  /* need not end with a zero, and may have some */
    size_t bytes;
};

/* Appends the tokens of a text, after the *before ones that the tokenizer puts in front of each text.
 * ZR_ERR_FORMAT: not UTF-8, or a token beyond the model's vocabulary. ZR_ERR_HOST_MEMORY. */
zr_result zr_text_tokens(const struct zr_text_request *request, struct zr_growing *out, size_t *before);

#endif
