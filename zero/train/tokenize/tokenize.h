/* tokenize.h: the command `zr-train tokenize`: texts as shards of tokens, by a tokenizer.json. */
#ifndef ZR_TRAIN_TOKENIZE_H
#define ZR_TRAIN_TOKENIZE_H

#include "zero/text/tokenizer.h"

/* Runs the command; argv[0] is "tokenize". Returns the exit code of zr-train after printing messages. Batches
 * of documents are encoded by several threads and written in the order of the files, so that the shards do
 * not depend on the number of threads. */
int zr_tokenize_main(int argc, char **argv);

/* The tokenizer.json of `path`, which is the file or its folder. ZR_ERR_INVALID: the path is too long. */
zr_result zr_tokenizer_path(char out[4096], const char *path);
/* The token that ends a document: eos_token of tokenizer_config.json, or eos_token_id of config.json, in the
 * folder of tokenizer.json. ZR_NO_TOKEN: neither names one that the tokenizer has. */
zr_result zr_tokenizer_eos(const zr_tokenizer *tokenizer, const char *path, int32_t *out);

#endif
