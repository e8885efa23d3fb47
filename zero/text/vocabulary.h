/* vocabulary.h: the tokens of a tokenizer: number to text, text to number, and all tokens that a text starts
 * with. Private to zero/text. Read-only for encoders. */
#ifndef ZR_TEXT_VOCABULARY_H
#define ZR_TEXT_VOCABULARY_H

#include "zero/text/tokenizer.h"

enum { ZR_VOCABULARY_MAX = 1 << 22, ZR_TRIE_ROOT = 1 };

/* A trie of bytes, in one table of hashed (node, byte) pairs. */
struct zr_trie {
    struct zr_trie_edge {
        uint32_t pair; /* node << 8 | byte */
        uint32_t node; /* 0: no edge */
    } * edges;
    int32_t *values; /* by node; ZR_NO_TOKEN: no text ends here */
    uint32_t mask, nodes_count, nodes_max;
};

/* Room for texts of `bytes` in total. ZR_ERR_FORMAT: more than 16 MiB. */
zr_result zr_trie_open(struct zr_trie *out, size_t bytes);
void zr_trie_close(struct zr_trie *trie);
/* False: the text has a value already, or is empty. */
bool zr_trie_add(struct zr_trie *trie, const char *text, size_t bytes, int32_t value);

/* The node after one more byte; 0: no text continues so. The first is ZR_TRIE_ROOT. */
static inline uint32_t zr_trie_next(const struct zr_trie *trie, uint32_t node, unsigned char byte)
{
    uint32_t pair = node << 8 | byte;
    for (uint32_t at = (pair * UINT32_C(0x9e3779b1) >> 7) & trie->mask;; at = (at + 1) & trie->mask)
        if (trie->edges[at].pair == pair || trie->edges[at].node == 0)
            return trie->edges[at].node;
}

/* The value of a whole text. */
int32_t zr_trie_find(const struct zr_trie *trie, const char *text, size_t bytes);

struct zr_token_text {
    uint32_t at, bytes;
    bool present;
};

struct zr_vocabulary {
    struct zr_growing texts;
    struct zr_token_text *tokens; /* [size] */
    size_t size;
    struct zr_trie trie; /* the model's tokens; added tokens have tries of their own */
};

/* `texts_bytes`: at least all of the model's tokens. */
zr_result zr_vocabulary_open(struct zr_vocabulary *out, size_t size, size_t texts_bytes);
void zr_vocabulary_close(struct zr_vocabulary *vocabulary);
/* Sets the text of a token, in place of an earlier one. False: no memory. */
bool zr_vocabulary_set(struct zr_vocabulary *vocabulary, size_t token, const char *text, size_t bytes);

static inline const char *zr_vocabulary_text(const struct zr_vocabulary *vocabulary, size_t token)
{
    return vocabulary->texts.data + vocabulary->tokens[token].at;
}

#endif
