/* word_model.c: see word_model.h. */
#define _GNU_SOURCE
#include "zero/text/word_model.h"

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"

enum { CACHE_SLOTS = 1 << 13, CACHED_BYTES = 24, CACHED_TOKENS = 9 };
/* SentencePiece's penalty of a character without a token. */
#define UNKNOWN_PENALTY 10.0

struct zr_cached_word {
    char text[CACHED_BYTES];
    uint8_t bytes, tokens_count; /* bytes 0: empty */
    int32_t tokens[CACHED_TOKENS];
};

/* ---- Merges -------------------------------------------------------------------------------------------- */

static size_t merge_slot(const struct zr_word_model *model, uint64_t pair)
{
    size_t at = (size_t)((pair ^ pair >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & model->merges_mask;
    while (model->merges[at].product != ZR_NO_TOKEN && model->merges[at].pair != pair)
        at = (at + 1) & model->merges_mask;
    return at;
}

zr_result zr_word_model_open_merges(struct zr_word_model *model, size_t count)
{
    size_t slots = 64;
    while (slots < 2 * count)
        slots *= 2;
    model->merges_mask = slots - 1;
    model->merges = zr_heap_alloc(slots * sizeof *model->merges);
    if (!model->merges)
        return ZR_ERR_HOST_MEMORY;
    for (size_t i = 0; i < slots; i++)
        model->merges[i].product = ZR_NO_TOKEN;
    return ZR_OK;
}

void zr_word_model_add_merge(struct zr_word_model *model, const struct zr_merge *merge)
{
    model->merges[merge_slot(model, merge->pair)] = *merge;
}

/* Whether a text has a boundary after another character. */
static bool has_boundary_inside(const struct zr_word_model *model, int32_t token)
{
    const char *boundary = zr_word_model_boundary(model),
               *text = zr_vocabulary_text(&model->vocabulary, (size_t)token);
    size_t width = strlen(boundary), bytes = model->vocabulary.tokens[token].bytes, at = 0;
    while (bytes - at >= width && memcmp(text + at, boundary, width) == 0)
        at += width;
    return memmem(text + at, bytes - at, boundary, width) != NULL;
}

void zr_word_model_complete(struct zr_word_model *model)
{
    const char *boundary = zr_word_model_boundary(model);
    model->unknown_score = 0;
    for (size_t i = 0; model->scores && i < model->tokens_count; i++)
        if (model->scores[i] < model->unknown_score || i == 0)
            model->unknown_score = model->scores[i];
    model->unknown_score -= UNKNOWN_PENALTY;
    /* A boundary without a token could join unknown characters on both sides. */
    model->splits = zr_trie_find(&model->vocabulary.trie, boundary, strlen(boundary)) != ZR_NO_TOKEN;
    for (size_t i = 0; model->merges && model->splits && i <= model->merges_mask; i++)
        if (model->merges[i].product != ZR_NO_TOKEN)
            model->splits = !has_boundary_inside(model, model->merges[i].product);
}

void zr_word_model_close(struct zr_word_model *model)
{
    zr_vocabulary_close(&model->vocabulary);
    zr_heap_free(model->merges);
    zr_heap_free(model->scores);
}

/* ---- Scratch ------------------------------------------------------------------------------------------- */

zr_result zr_words_open(struct zr_words *out)
{
    out->cache = zr_heap_zalloc(CACHE_SLOTS, sizeof *out->cache);
    return out->cache ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

void zr_words_close(struct zr_words *words)
{
    zr_heap_free(words->cache);
    zr_growing_end(&words->symbols);
    zr_growing_end(&words->queue);
    zr_growing_end(&words->path);
}

static struct zr_cached_word *cache_slot(const struct zr_words *words, const char *text, size_t bytes)
{
    uint64_t part[3] = {bytes};
    memcpy(part, text, bytes);
    uint64_t hash = (part[0] * UINT64_C(0x9e3779b97f4a7c15)) ^ (part[1] * UINT64_C(0xbf58476d1ce4e5b9)) ^
                    (part[2] * UINT64_C(0x94d049bb133111eb));
    hash ^= hash >> 32;
    return &words->cache[hash * UINT64_C(0x9e3779b97f4a7c15) >> 51 & (CACHE_SLOTS - 1)];
}

/* ---- Byte-pair encoding -------------------------------------------------------------------------------- */

struct symbol {
    int32_t token; /* ZR_NO_TOKEN: merged into an earlier symbol */
    int32_t previous, next;
};

/* Possible merges, a heap of rank << 32 | index of the left symbol. */
static bool queue_push(struct zr_growing *queue, uint64_t entry)
{
    if (!zr_growing_add(queue, &entry, sizeof entry))
        return false;
    uint64_t *entries = (uint64_t *)(void *)queue->data;
    size_t at = queue->used_bytes / sizeof entry - 1;
    for (; at > 0 && entries[(at - 1) / 2] > entry; at = (at - 1) / 2)
        entries[at] = entries[(at - 1) / 2];
    entries[at] = entry;
    return true;
}

static uint64_t queue_pop(struct zr_growing *queue)
{
    uint64_t *entries = (uint64_t *)(void *)queue->data, first = entries[0];
    queue->used_bytes -= sizeof first;
    size_t count = queue->used_bytes / sizeof first, at = 0;
    uint64_t last = entries[count];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && entries[child + 1] < entries[child];
        if (last <= entries[child])
            break;
        entries[at] = entries[child];
    }
    entries[at] = last;
    return first;
}

static const struct zr_merge *find_merge(const struct zr_word_model *model, const struct symbol *symbols,
                                         int32_t left)
{
    int32_t right = symbols[left].next;
    if (right < 0 || symbols[left].token == ZR_NO_TOKEN)
        return NULL;
    uint64_t pair = (uint64_t)(uint32_t)symbols[left].token << 32 | (uint32_t)symbols[right].token;
    const struct zr_merge *merge = &model->merges[merge_slot(model, pair)];
    return merge->product == ZR_NO_TOKEN ? NULL : merge;
}

static bool queue_merge(const struct zr_word_model *model, struct zr_words *words, int32_t left)
{
    const struct symbol *symbols = (const struct symbol *)(void *)words->symbols.data;
    const struct zr_merge *merge = left < 0 ? NULL : find_merge(model, symbols, left);
    return !merge || queue_push(&words->queue, (uint64_t)merge->rank << 32 | (uint32_t)left);
}

/* Merges the pair of the lowest rank, the leftmost first, until none is left. */
static bool merge_all(const struct zr_word_model *model, struct zr_words *words)
{
    struct symbol *symbols = (struct symbol *)(void *)words->symbols.data;
    size_t count = words->symbols.used_bytes / sizeof *symbols;
    words->queue.used_bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (!queue_merge(model, words, (int32_t)i))
            return false;
    while (words->queue.used_bytes > 0) {
        uint64_t entry = queue_pop(&words->queue);
        struct symbol *left = &symbols[(uint32_t)entry];
        const struct zr_merge *merge = find_merge(model, symbols, (int32_t)(uint32_t)entry);
        if (!merge || merge->rank != entry >> 32)
            continue; /* one of the two has been merged with another symbol */
        struct symbol *right = &symbols[left->next];
        left->token = merge->product;
        left->next = right->next;
        right->token = ZR_NO_TOKEN;
        if (left->next >= 0)
            symbols[left->next].previous = (int32_t)(left - symbols);
        if (!queue_merge(model, words, left->previous) ||
            !queue_merge(model, words, (int32_t)(left - symbols)))
            return false;
    }
    return true;
}

static bool add_symbol(struct zr_words *words, int32_t token)
{
    int32_t at = (int32_t)(words->symbols.used_bytes / sizeof(struct symbol));
    struct symbol symbol = {token, at - 1, at + 1};
    return zr_growing_add(&words->symbols, &symbol, sizeof symbol);
}

/* The tokens of a character's bytes. */
static bool add_fallback(const struct zr_word_model *model, struct zr_words *words, const char *text,
                         size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!add_symbol(words, model->byte_tokens[(unsigned char)text[i]]))
            return false;
    return true;
}

static size_t character_bytes(const char *text, size_t bytes)
{
    size_t length = zr_utf8_length((const unsigned char *)text, bytes);
    return length ? length : 1;
}

static bool add_symbols(const struct zr_word_model *model, struct zr_words *words, const char *text,
                        size_t bytes)
{
    bool pending = false, good = true; /* pending: an unknown token is still to be added */
    for (size_t at = 0, width; at < bytes && good; at += width) {
        width = model->of_bytes ? 1 : character_bytes(text + at, bytes - at);
        int32_t token = model->of_bytes ? model->byte_tokens[(unsigned char)text[at]]
                                        : zr_trie_find(&model->vocabulary.trie, text + at, width);
        if (token == ZR_NO_TOKEN && model->has_fallback) {
            good = add_fallback(model, words, text + at, width);
        } else if (token == ZR_NO_TOKEN) {
            if (pending && !model->fuses_unknown)
                good = add_symbol(words, model->unknown);
            pending = model->unknown != ZR_NO_TOKEN;
        } else {
            good = (!pending || add_symbol(words, model->unknown)) && add_symbol(words, token);
            pending = false;
        }
    }
    return good && (!pending || add_symbol(words, model->unknown));
}

static zr_result encode_pairs(const struct zr_word_model *model, struct zr_words *words, const char *text,
                              size_t bytes, struct zr_growing *out)
{
    int32_t whole = model->ignores_merges ? zr_trie_find(&model->vocabulary.trie, text, bytes) : ZR_NO_TOKEN;
    if (whole != ZR_NO_TOKEN)
        return zr_growing_add_token(out, whole) ? ZR_OK : ZR_ERR_HOST_MEMORY;
    words->symbols.used_bytes = 0;
    if (!add_symbols(model, words, text, bytes))
        return ZR_ERR_HOST_MEMORY;
    size_t count = words->symbols.used_bytes / sizeof(struct symbol);
    struct symbol *symbols = (struct symbol *)(void *)words->symbols.data;
    if (count > 0)
        symbols[count - 1].next = -1;
    if (!merge_all(model, words) || !zr_growing_reserve(out, count * sizeof(int32_t)))
        return ZR_ERR_HOST_MEMORY;
    for (size_t i = 0; i < count; i++)
        if (symbols[i].token != ZR_NO_TOKEN)
            zr_growing_add_token(out, symbols[i].token);
    return ZR_OK;
}

/* ---- Unigram ------------------------------------------------------------------------------------------- */

/* The best path to a position. */
struct node {
    double score;
    uint32_t from; /* where its last token starts */
    int32_t token; /* ZR_NO_TOKEN: no path yet */
};

static void reach(struct node *to, const struct node *candidate)
{
    if (to->token == ZR_NO_TOKEN || candidate->score > to->score)
        *to = *candidate;
}

static zr_result find_path(const struct zr_word_model *model, struct node *nodes, const char *text,
                           size_t bytes)
{
    const struct zr_trie *trie = &model->vocabulary.trie;
    for (size_t i = 0; i <= bytes; i++)
        nodes[i] = (struct node){.token = ZR_NO_TOKEN};
    for (size_t at = 0, width; at < bytes; at += width) {
        bool single = false; /* the character at `at` has a token */
        uint32_t next = ZR_TRIE_ROOT;
        width = character_bytes(text + at, bytes - at);
        for (size_t end = at;
             end < bytes && (next = zr_trie_next(trie, next, (unsigned char)text[end])) != 0;) {
            int32_t token = trie->values[next];
            end++;
            if (token == ZR_NO_TOKEN)
                continue;
            reach(&nodes[end], &(struct node){nodes[at].score + model->scores[token], (uint32_t)at, token});
            single |= end == at + width;
        }
        if (!single && model->unknown == ZR_NO_TOKEN)
            return zr_fail(ZR_ERR_FORMAT, "the tokenizer has no token for '%.*s', and no unknown token",
                           (int)width, text + at);
        if (!single)
            reach(&nodes[at + width],
                  &(struct node){nodes[at].score + model->unknown_score, (uint32_t)at, model->unknown});
    }
    return ZR_OK;
}

/* Adds the tokens of a piece in reverse order. */
static bool add_reversed(const struct zr_word_model *model, const char *text, size_t bytes, int32_t token,
                         struct zr_growing *out)
{
    bool falls_back = token == model->unknown && model->has_fallback &&
                      zr_trie_find(&model->vocabulary.trie, text, bytes) == ZR_NO_TOKEN;
    if (!falls_back)
        return zr_growing_add_token(out, token);
    for (size_t i = bytes; i-- > 0;)
        if (!zr_growing_add_token(out, model->byte_tokens[(unsigned char)text[i]]))
            return false;
    return true;
}

static zr_result encode_unigram(const struct zr_word_model *model, struct zr_words *words, const char *text,
                                size_t bytes, struct zr_growing *out)
{
    size_t first = out->used_bytes / sizeof(int32_t);
    int32_t after = ZR_NO_TOKEN;
    words->path.used_bytes = 0;
    if (!zr_growing_reserve(&words->path, (bytes + 1) * sizeof(struct node)))
        return ZR_ERR_HOST_MEMORY;
    struct node *nodes = (struct node *)(void *)words->path.data;
    zr_result result = find_path(model, nodes, text, bytes);
    for (size_t at = bytes, from; at > 0 && !result; at = from) {
        int32_t token = nodes[at].token;
        bool joins =
            model->fuses_unknown && !model->has_fallback && token == model->unknown && token == after;
        from = nodes[at].from;
        after = token;
        if (!joins && !add_reversed(model, text + from, at - from, token, out))
            result = ZR_ERR_HOST_MEMORY;
    }
    int32_t *tokens = (int32_t *)(void *)out->data;
    for (size_t last = out->used_bytes / sizeof *tokens; first + 1 < last--; first++) {
        int32_t swapped = tokens[first];
        tokens[first] = tokens[last];
        tokens[last] = swapped;
    }
    return result;
}

/* ---- Words --------------------------------------------------------------------------------------------- */

static zr_result encode(const struct zr_word_model *model, struct zr_words *words, const char *text,
                        size_t bytes, struct zr_growing *out)
{
    return model->merges ? encode_pairs(model, words, text, bytes, out)
                         : encode_unigram(model, words, text, bytes, out);
}

static zr_result encode_cached(const struct zr_word_model *model, struct zr_words *words, const char *text,
                               size_t bytes, struct zr_growing *out)
{
    struct zr_cached_word *cached = cache_slot(words, text, bytes);
    size_t before = out->used_bytes;
    if (cached->bytes == bytes && memcmp(cached->text, text, bytes) == 0)
        return zr_growing_add(out, cached->tokens, cached->tokens_count * sizeof(int32_t))
                   ? ZR_OK
                   : ZR_ERR_HOST_MEMORY;
    zr_result result = encode(model, words, text, bytes, out);
    size_t added = out->used_bytes - before;
    if (!result && added <= sizeof cached->tokens) {
        cached->bytes = (uint8_t)bytes;
        cached->tokens_count = (uint8_t)(added / sizeof(int32_t));
        memcpy(cached->text, text, bytes);
        memcpy(cached->tokens, out->data + before, added);
    }
    return result;
}

/* Bytes up to the next boundary that follows another character. */
static size_t part_bytes(const struct zr_word_model *model, const char *text, size_t bytes)
{
    const char *boundary = zr_word_model_boundary(model), *found;
    size_t width = strlen(boundary), at = 0;
    while (bytes - at >= width && memcmp(text + at, boundary, width) == 0)
        at += width;
    found = memmem(text + at, bytes - at, boundary, width);
    return found ? (size_t)(found - text) : bytes;
}

zr_result zr_word_model_encode(const struct zr_word_model *model, struct zr_words *words, const char *text,
                               size_t bytes, struct zr_growing *out)
{
    bool splits = model->merges && model->splits && !model->ignores_merges;
    zr_result result = ZR_OK;
    for (size_t part; bytes > 0 && !result; text += part, bytes -= part) {
        part = splits && bytes > CACHED_BYTES ? part_bytes(model, text, bytes) : bytes;
        result = part <= CACHED_BYTES ? encode_cached(model, words, text, part, out)
                                      : encode(model, words, text, part, out);
    }
    return result;
}
