/* tokenizer.h: text as the token numbers of a Hugging Face tokenizer.json, and back.
 *
 * The file is read by an allow list: a key or a value that would change the tokens and has no place here is
 * ZR_ERR_FORMAT, and the message names it. Supported: BPE over bytes or characters, Unigram, and the steps
 * around them that README.md lists. The numbers are those of the `tokenizers` package, add_special_tokens
 * included; `padding` and `truncation` are not applied. All memory is the heap's (zr_heap_start()). */
#ifndef ZR_TEXT_TOKENIZER_H
#define ZR_TEXT_TOKENIZER_H

#include "zero/text/growing.h"

/* Read-only once open; any number of threads use it. */
typedef struct zr_tokenizer zr_tokenizer;

enum { ZR_NO_TOKEN = -1, ZR_TOKENIZER_PATH_ROOM = 4096 };

/* Opens a file of at most 100 MiB. On success *out owns it until zr_tokenizer_close(). ZR_ERR_IO,
 * ZR_ERR_FORMAT, ZR_ERR_HOST_MEMORY: *out is NULL. Uses jansson, hence one call at a time. */
zr_result zr_tokenizer_open(zr_tokenizer **out, const char *path);
/* NULL: no effect. */
void zr_tokenizer_close(zr_tokenizer *tokenizer);

/* The largest token number and one: at most 1 << 22. */
size_t zr_tokenizer_size(const zr_tokenizer *tokenizer);
/* Whether a token of this number exists: numbers below the size may have none. */
bool zr_tokenizer_has(const zr_tokenizer *tokenizer, int32_t token);
/* The number of a token by its text; ZR_NO_TOKEN: there is none. */
int32_t zr_tokenizer_find(const zr_tokenizer *tokenizer, const char *text);

/* The scratch memory of one thread: buffers, and a cache of words. */
struct zr_encoder;
zr_result zr_encoder_open(struct zr_encoder **out, const zr_tokenizer *tokenizer); /* borrowed */
void zr_encoder_close(struct zr_encoder *encoder);                                 /* NULL: no effect */

enum { ZR_ENCODE_BYTES_MAX = 1 << 30 };

/* Whether the tokens that the file's post_processor adds are added. */
enum zr_encode_template { ZR_ENCODE_PLAIN = 0, ZR_ENCODE_BEGIN, ZR_ENCODE_WHOLE };

/* Appends the tokens of a text (int32_t each) to `out`: plain, with those that precede a text, or with all.
 * ZR_ERR_FORMAT: the text is not UTF-8 (the message has the offset), longer than ZR_ENCODE_BYTES_MAX, or
 * beyond the limits of a pattern; `out` may have some of its tokens. */
zr_result zr_encode(struct zr_encoder *encoder, const char *text, size_t bytes,
                    enum zr_encode_template template, struct zr_growing *out);

/* Appends the text of tokens to `out`. Special tokens appear as they are written; bytes of byte tokens appear
 * as they are, also where they form no UTF-8. ZR_ERR_FORMAT: a number has no token. */
zr_result zr_decode(const zr_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                    struct zr_growing *out);

/* ---- The files beside it (tokenizer_folder.c) -----------------------------------------------------------
 */

/* The tokenizer.json of `path`, which is the file or its folder. ZR_ERR_INVALID: the path is too long. */
zr_result zr_tokenizer_path(char out[ZR_TOKENIZER_PATH_ROOM], const char *path);
/* The token that ends a document: eos_token of tokenizer_config.json, or eos_token_id of config.json, in the
 * folder of tokenizer.json. ZR_NO_TOKEN: neither names one that the tokenizer has. */
zr_result zr_tokenizer_eos(const zr_tokenizer *tokenizer, const char *path, int32_t *out);

#endif
