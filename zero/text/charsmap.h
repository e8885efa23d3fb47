/* charsmap.h: SentencePiece's table of replacements, `precompiled_charsmap` of a tokenizer.json: a double
 * array (darts-clone) from texts to offsets, and the texts there. Private to zero/text.
 *
 * As in the `tokenizers` package, a grapheme of less than six bytes is looked up as a whole, then each of its
 * characters, and the shortest entry that it starts with replaces all of it. */
#ifndef ZR_TEXT_CHARSMAP_H
#define ZR_TEXT_CHARSMAP_H

#include "zero/text/growing.h"

struct zr_charsmap;

/* Reads base64. On success the caller owns *out. ZR_ERR_FORMAT, ZR_ERR_HOST_MEMORY: *out is NULL. */
zr_result zr_charsmap_create(struct zr_charsmap **out, const char *place, const char *base64);
/* NULL: no effect. */
void zr_charsmap_destroy(struct zr_charsmap *charsmap);

/* Appends the text, valid UTF-8, with its replacements to `out`. ZR_ERR_HOST_MEMORY. Any thread. */
zr_result zr_charsmap_apply(const struct zr_charsmap *charsmap, const char *text, size_t bytes,
                            struct zr_growing *out);

#endif
