/* tokenizer.c: see tokenizer.h. A text is cut at added tokens, normalized, cut at those that are found in the
 * normalized text, split into words, and each word becomes tokens. */
#include "zero/text/tokenizer.h"

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "zero/text/tokenizer_inside.h"

struct zr_encoder {
    const zr_tokenizer *tokenizer;
    struct zr_words words;
    struct zr_step_scratch scratch;
    struct zr_splitter splitter;
    struct zr_growing *out; /* of the present call */
};

/* ---- Opening ------------------------------------------------------------------------------------------- */

zr_result zr_tokenizer_open(zr_tokenizer **out, const char *path)
{
    zr_tokenizer *tokenizer = zr_heap_zalloc(1, sizeof *tokenizer);
    zr_result result = tokenizer ? zr_tokenizer_read(tokenizer, path) : ZR_ERR_HOST_MEMORY;
    if (result) {
        zr_tokenizer_close(tokenizer);
        tokenizer = NULL;
    }
    *out = tokenizer;
    return result;
}

void zr_tokenizer_close(zr_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    zr_word_model_close(&tokenizer->model);
    zr_steps_end(&tokenizer->normalizers);
    zr_steps_end(&tokenizer->splitters);
    zr_steps_end(&tokenizer->decoders);
    zr_trie_close(&tokenizer->found[0].trie);
    zr_trie_close(&tokenizer->found[1].trie);
    zr_heap_free(tokenizer->added);
    zr_heap_free(tokenizer);
}

size_t zr_tokenizer_size(const zr_tokenizer *tokenizer)
{
    return tokenizer->model.vocabulary.size;
}

bool zr_tokenizer_has(const zr_tokenizer *tokenizer, int32_t token)
{
    const struct zr_vocabulary *vocabulary = &tokenizer->model.vocabulary;
    return token >= 0 && (size_t)token < vocabulary->size && vocabulary->tokens[token].present;
}

int32_t zr_tokenizer_find(const zr_tokenizer *tokenizer, const char *text)
{
    size_t bytes = strlen(text);
    for (size_t i = 0; i < tokenizer->added_count; i++) {
        const struct zr_vocabulary *vocabulary = &tokenizer->model.vocabulary;
        int32_t token = tokenizer->added[i].token;
        if (vocabulary->tokens[token].bytes == bytes &&
            memcmp(zr_vocabulary_text(vocabulary, (size_t)token), text, bytes) == 0)
            return token;
    }
    return zr_trie_find(&tokenizer->model.vocabulary.trie, text, bytes);
}

static zr_result add_word(void *state, const char *text, size_t bytes)
{
    struct zr_encoder *encoder = state;
    return zr_word_model_encode(&encoder->tokenizer->model, &encoder->words, text, bytes, encoder->out);
}

zr_result zr_encoder_open(struct zr_encoder **out, const zr_tokenizer *tokenizer)
{
    struct zr_encoder *encoder = zr_heap_zalloc(1, sizeof *encoder);
    zr_result result = encoder ? zr_words_open(&encoder->words) : ZR_ERR_HOST_MEMORY;
    if (!result && !(encoder->scratch.match = zr_pattern_scratch()))
        result = ZR_ERR_HOST_MEMORY;
    if (result) {
        zr_encoder_close(encoder);
        *out = NULL;
        return result;
    }
    encoder->tokenizer = tokenizer;
    encoder->splitter = (struct zr_splitter){
        .steps = &tokenizer->splitters, .match = encoder->scratch.match, .word = add_word, .state = encoder};
    *out = encoder;
    return ZR_OK;
}

void zr_encoder_close(struct zr_encoder *encoder)
{
    if (!encoder)
        return;
    zr_words_close(&encoder->words);
    zr_pattern_scratch_free(encoder->scratch.match);
    for (unsigned i = 0; i < 2; i++)
        zr_growing_end(&encoder->scratch.texts[i]);
    zr_growing_end(&encoder->scratch.code_points);
    for (unsigned i = 0; i < ZR_STEPS_MAX; i++)
        zr_growing_end(&encoder->splitter.texts[i]);
    zr_heap_free(encoder);
}

/* ---- Encoding ------------------------------------------------------------------------------------------ */

/* The longest added token at the start of a text; NULL: none. */
static const struct zr_added_token *added_at(const zr_tokenizer *tokenizer, unsigned level, const char *text,
                                             size_t bytes, size_t *width)
{
    const struct zr_trie *trie = &tokenizer->found[level].trie;
    const struct zr_added_token *added = NULL;
    uint32_t node = ZR_TRIE_ROOT;
    for (size_t i = 0; i < bytes && (node = zr_trie_next(trie, node, (unsigned char)text[i])) != 0; i++)
        if (trie->values[node] != ZR_NO_TOKEN) {
            added = &tokenizer->added[trie->values[node]];
            *width = i + 1;
        }
    return added;
}

static zr_result encode_text(struct zr_encoder *encoder, unsigned level, const char *text, size_t bytes,
                             bool first);

/* A text without the added tokens of this level. */
static zr_result encode_between(struct zr_encoder *encoder, unsigned level, const char *text, size_t bytes,
                                bool first)
{
    zr_result result;
    if (bytes == 0)
        return ZR_OK;
    if (level == 1)
        return zr_split(&encoder->splitter, text, bytes, first);
    result = zr_normalize(&encoder->tokenizer->normalizers, &encoder->scratch, &text, &bytes);
    return result ? result : encode_text(encoder, 1, text, bytes, first);
}

static zr_result encode_text(struct zr_encoder *encoder, unsigned level, const char *text, size_t bytes,
                             bool first)
{
    const zr_tokenizer *tokenizer = encoder->tokenizer;
    const bool *starts = tokenizer->found[level].starts;
    size_t from = 0;
    zr_result result = ZR_OK;
    for (size_t at = 0, width; at < bytes && !result;) {
        const struct zr_added_token *added = starts[(unsigned char)text[at]]
                                                 ? added_at(tokenizer, level, text + at, bytes - at, &width)
                                                 : NULL;
        if (!added) {
            at++;
            continue;
        }
        size_t left = added->takes_left ? zr_trailing_space(text + from, at - from) : 0;
        result = encode_between(encoder, level, text + from, at - left - from, first && from == 0);
        if (!result && !zr_growing_add_token(encoder->out, added->token))
            result = ZR_ERR_HOST_MEMORY;
        at += width;
        from = at + (added->takes_right ? zr_leading_space(text + at, bytes - at) : 0);
        at = from;
    }
    return result ? result : encode_between(encoder, level, text + from, bytes - from, first && from == 0);
}

/* The offset of the first byte that is not UTF-8; `bytes`: all are. */
static size_t valid_bytes(const char *text, size_t bytes)
{
    size_t at = 0;
    for (size_t width; at < bytes; at += width) {
        uint64_t eight;
        width = 0;
        if (bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            width = eight & UINT64_C(0x8080808080808080) ? 0 : sizeof eight;
        }
        if (width == 0 && (width = zr_utf8_length((const unsigned char *)text + at, bytes - at)) == 0)
            break;
    }
    return at;
}

zr_result zr_encode(struct zr_encoder *encoder, const char *text, size_t bytes,
                    enum zr_encode_template template, struct zr_growing *out)
{
    const zr_tokenizer *tokenizer = encoder->tokenizer;
    zr_result result = ZR_OK;
    if (bytes > ZR_ENCODE_BYTES_MAX)
        return zr_fail(ZR_ERR_FORMAT, "the text has %zu bytes; split it into texts of at most 1 GiB", bytes);
    size_t valid = valid_bytes(text, bytes);
    if (valid < bytes)
        return zr_fail(ZR_ERR_FORMAT, "byte %zu is not UTF-8; convert the text: iconv -t UTF-8", valid);
    encoder->out = out;
    if (template != ZR_ENCODE_PLAIN &&
        !zr_growing_add(out, tokenizer->before, tokenizer->before_count * sizeof *tokenizer->before))
        return ZR_ERR_HOST_MEMORY;
    result = encode_text(encoder, 0, text, bytes, true);
    if (!result && template == ZR_ENCODE_WHOLE &&
        !zr_growing_add(out, tokenizer->after, tokenizer->after_count * sizeof *tokenizer->after))
        result = ZR_ERR_HOST_MEMORY;
    return result;
}

/* ---- Decoding ------------------------------------------------------------------------------------------ */

static zr_result gather(const zr_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                        struct zr_text_pieces *pieces)
{
    const struct zr_vocabulary *vocabulary = &tokenizer->model.vocabulary;
    for (size_t i = 0; i < count; i++) {
        if (!zr_tokenizer_has(tokenizer, tokens[i]))
            return zr_fail(ZR_ERR_FORMAT, "the tokenizer has no token %d", (int)tokens[i]);
        if ((tokenizer->joins_with_spaces && i > 0 && !zr_growing_add(&pieces->text, " ", 1)) ||
            !zr_growing_add(&pieces->text, zr_vocabulary_text(vocabulary, (size_t)tokens[i]),
                            vocabulary->tokens[tokens[i]].bytes) ||
            !zr_growing_add(&pieces->ends, &pieces->text.used_bytes, sizeof pieces->text.used_bytes))
            return ZR_ERR_HOST_MEMORY;
    }
    return ZR_OK;
}

zr_result zr_decode(const zr_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                    struct zr_growing *out)
{
    struct zr_text_pieces pieces = {.text = {.data = NULL}}, spare = {.text = {.data = NULL}};
    zr_result result = gather(tokenizer, tokens, count, &pieces);
    if (!result)
        result = zr_join(&tokenizer->decoders, &pieces, &spare);
    if (!result && !zr_growing_add(out, pieces.text.data, pieces.text.used_bytes))
        result = ZR_ERR_HOST_MEMORY;
    for (struct zr_text_pieces *ended = &pieces; ended; ended = ended == &pieces ? &spare : NULL) {
        zr_growing_end(&ended->text);
        zr_growing_end(&ended->ends);
    }
    return result;
}
