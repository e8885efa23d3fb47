/* vocabulary.c: see vocabulary.h. */
#include "zero/text/vocabulary.h"

#include "alloc/base/error.h"

/* ---- The trie ------------------------------------------------------------------------------------------ */

enum { TRIE_BYTES_MAX = 1 << 24 };

zr_result zr_trie_open(struct zr_trie *out, size_t bytes)
{
    uint32_t slots = 64;
    if (bytes > TRIE_BYTES_MAX - 2 * ZR_TRIE_ROOT)
        return zr_fail(ZR_ERR_FORMAT, "the tokens have more than 16 MiB of text");
    while (slots < bytes + bytes / 2)
        slots *= 2;
    out->mask = slots - 1;
    out->nodes_count = ZR_TRIE_ROOT + 1;
    out->nodes_max = (uint32_t)bytes + out->nodes_count;
    out->edges = zr_heap_zalloc(slots, sizeof *out->edges);
    out->values = zr_heap_alloc(out->nodes_max * sizeof *out->values);
    if (!out->edges || !out->values)
        return ZR_ERR_HOST_MEMORY;
    memset(out->values, 0xff, out->nodes_max * sizeof *out->values);
    return ZR_OK;
}

void zr_trie_close(struct zr_trie *trie)
{
    zr_heap_free(trie->edges);
    zr_heap_free(trie->values);
    *trie = (struct zr_trie){.edges = NULL};
}

bool zr_trie_add(struct zr_trie *trie, const char *text, size_t bytes, int32_t value)
{
    uint32_t node = ZR_TRIE_ROOT;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t pair = node << 8 | (unsigned char)text[i];
        uint32_t at = (pair * UINT32_C(0x9e3779b1) >> 7) & trie->mask;
        while (trie->edges[at].node && trie->edges[at].pair != pair)
            at = (at + 1) & trie->mask;
        if (!trie->edges[at].node) {
            zr_assert(trie->nodes_count < trie->nodes_max);
            trie->edges[at] = (struct zr_trie_edge){pair, trie->nodes_count++};
        }
        node = trie->edges[at].node;
    }
    if (bytes == 0 || trie->values[node] != ZR_NO_TOKEN)
        return false;
    trie->values[node] = value;
    return true;
}

int32_t zr_trie_find(const struct zr_trie *trie, const char *text, size_t bytes)
{
    uint32_t node = trie->edges ? ZR_TRIE_ROOT : 0;
    for (size_t i = 0; i < bytes && node; i++)
        node = zr_trie_next(trie, node, (unsigned char)text[i]);
    return node ? trie->values[node] : ZR_NO_TOKEN;
}

/* ---- The tokens ---------------------------------------------------------------------------------------- */

zr_result zr_vocabulary_open(struct zr_vocabulary *out, size_t size, size_t texts_bytes)
{
    out->size = size;
    out->tokens = zr_heap_zalloc(size + 1, sizeof *out->tokens);
    return out->tokens ? zr_trie_open(&out->trie, texts_bytes) : ZR_ERR_HOST_MEMORY;
}

void zr_vocabulary_close(struct zr_vocabulary *vocabulary)
{
    zr_trie_close(&vocabulary->trie);
    zr_heap_free(vocabulary->tokens);
    zr_growing_end(&vocabulary->texts);
}

bool zr_vocabulary_set(struct zr_vocabulary *vocabulary, size_t token, const char *text, size_t bytes)
{
    size_t at = vocabulary->texts.used_bytes;
    zr_assert(token < vocabulary->size);
    if (at + bytes > UINT32_MAX || !zr_growing_add(&vocabulary->texts, text, bytes))
        return false;
    vocabulary->tokens[token] = (struct zr_token_text){(uint32_t)at, (uint32_t)bytes, true};
    return true;
}
