/* tokenizer_inside.h: the parts of an open tokenizer. Private to zero/text. */
#ifndef ZR_TEXT_TOKENIZER_INSIDE_H
#define ZR_TEXT_TOKENIZER_INSIDE_H

#include "zero/text/word_model.h"
#include "zero/text/steps.h"
#include "zero/text/tokenizer.h"

struct zr_added_token {
    int32_t token;
    bool takes_left, takes_right; /* white space beside it is part of it */
    bool normalized;              /* found in the normalized text */
};

/* Tokens that are found before the text is split, the leftmost first, the longest of those. */
struct zr_added_tokens {
    struct zr_trie trie; /* of indexes into `added` */
    bool starts[256];    /* bytes that one of them starts with */
};

enum { ZR_TEMPLATE_MAX = 16 };

struct zr_tokenizer {
    struct zr_word_model model;
    struct zr_text_steps normalizers, splitters, decoders;
    struct zr_added_token *added;
    size_t added_count;
    struct zr_added_tokens found[2];                         /* in the text, and in the normalized text */
    int32_t before[ZR_TEMPLATE_MAX], after[ZR_TEMPLATE_MAX]; /* of the post-processor */
    unsigned before_count, after_count;
    bool joins_with_spaces; /* no decoder */
};

/* Fills in *out, zeros, from a file. On failure the caller closes it. */
zr_result zr_tokenizer_read(zr_tokenizer *out, const char *path);

#endif
