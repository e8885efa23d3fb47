/* word_model.h: the model of a tokenizer: a word as tokens, by byte-pair encoding (Sennrich et al., "Neural
 * machine translation of rare words with subword units", 2016) or by the likeliest path of a unigram language
 * model (Kudo, "Subword regularization", 2018). Private to zero/text. */
#ifndef ZR_TEXT_WORD_MODEL_H
#define ZR_TEXT_WORD_MODEL_H

#include "zero/text/vocabulary.h"

struct zr_merge {
    uint64_t pair;   /* left token << 32 | right token */
    uint32_t rank;   /* lower ranks merge first */
    int32_t product; /* ZR_NO_TOKEN: an empty slot */
};

struct zr_word_model {
    struct zr_vocabulary vocabulary;
    bool of_bytes; /* symbols are bytes, not characters */
    bool fuses_unknown, ignores_merges;
    bool has_fallback; /* a character without a token becomes those of its bytes */
    int32_t unknown;   /* ZR_NO_TOKEN: characters without a token vanish */
    int32_t byte_tokens[256];
    /* BPE */
    struct zr_merge *merges; /* hashed, [merges_mask + 1]; NULL: unigram */
    size_t merges_mask;
    /* No product has a boundary after another character, so that words are split there first. */
    bool splits;
    /* Unigram */
    double *scores;      /* by token */
    size_t tokens_count; /* with a score */
    double unknown_score;
};

static inline const char *zr_word_model_boundary(const struct zr_word_model *model)
{
    return model->of_bytes ? " " : "\xe2\x96\x81"; /* U+2581 */
}

/* Room for `count` merges. */
zr_result zr_word_model_open_merges(struct zr_word_model *model, size_t count);
/* A later merge of the same pair replaces the earlier one. */
void zr_word_model_add_merge(struct zr_word_model *model, const struct zr_merge *merge);
/* Completes a model whose tokens and merges or scores are set. */
void zr_word_model_complete(struct zr_word_model *model);
void zr_word_model_close(struct zr_word_model *model);

/* Scratch of one thread. */
struct zr_words {
    struct zr_growing symbols, queue, path;
    struct zr_cached_word *cache;
};
zr_result zr_words_open(struct zr_words *out);
void zr_words_close(struct zr_words *words);

/* Appends the tokens of a word, valid UTF-8, to `out`. ZR_ERR_HOST_MEMORY. ZR_ERR_FORMAT: a unigram model
 * without an unknown token has none for a character. */
zr_result zr_word_model_encode(const struct zr_word_model *model, struct zr_words *words, const char *text,
                               size_t bytes, struct zr_growing *out);

#endif
