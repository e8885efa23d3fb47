/* tokenizer_test.c: tokens of small tokenizers beside those of the `tokenizers` package, which are in
 * tokenizers.json (made by tests/support/tokenizers_check.py --golden), and what is refused. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "tests/support/tap.h"
#include "zero/text/tokenizer.h"

#define ANSWERS "tests/unit/train/tokenizers.json"

static char path[] = "/tmp/zr-tokenizer-XXXXXX";

static zr_result open_json(zr_tokenizer **out, const json_t *json)
{
    return json_dump_file(json, path, JSON_COMPACT) == 0 ? zr_tokenizer_open(out, path) : ZR_ERR_IO;
}

/* ---- The answers of the package ------------------------------------------------------------------------ */

static bool same_tokens(const struct zr_growing *tokens, const json_t *wanted)
{
    const int32_t *got = (const int32_t *)(const void *)tokens->data;
    bool same = tokens->used_bytes == json_array_size(wanted) * sizeof *got;
    for (size_t i = 0; i < json_array_size(wanted) && same; i++)
        same = got[i] == (int32_t)json_integer_value(json_array_get(wanted, i));
    return same;
}

static bool same_answer(const zr_tokenizer *tokenizer, struct zr_encoder *encoder, const json_t *text,
                        const json_t *answer)
{
    const json_t *decoded = json_object_get(answer, "text");
    struct zr_growing tokens = {.data = NULL}, back = {.data = NULL};
    bool good = zr_encode(encoder, json_string_value(text), json_string_length(text), ZR_ENCODE_WHOLE,
                          &tokens) == ZR_OK &&
                same_tokens(&tokens, json_object_get(answer, "ids")) &&
                zr_decode(tokenizer, (const int32_t *)(const void *)tokens.data,
                          tokens.used_bytes / sizeof(int32_t), &back) == ZR_OK &&
                back.used_bytes == json_string_length(decoded) &&
                (back.used_bytes == 0 || memcmp(back.data, json_string_value(decoded), back.used_bytes) == 0);
    if (!good)
        tap_note("of '%s': '%.*s'", json_string_value(text), (int)back.used_bytes,
                 back.data ? back.data : "");
    zr_growing_end(&tokens);
    zr_growing_end(&back);
    return good;
}

static void test_answers(const json_t *root)
{
    const json_t *texts = json_object_get(root, "texts");
    const char *name;
    json_t *row;
    json_object_foreach(json_object_get(root, "tokenizers"), name, row)
    {
        zr_tokenizer *tokenizer;
        struct zr_encoder *encoder = NULL;
        zr_result result = open_json(&tokenizer, json_object_get(row, "file"));
        if (!result)
            result = zr_encoder_open(&encoder, tokenizer);
        tap_result(result, ZR_OK, "%s is opened", name);
        unsigned good = 0;
        for (unsigned round = 0; round < 2 && !result; round++) /* with an empty cache, and with a full one */
            for (size_t i = 0; i < json_array_size(texts); i++)
                good += same_answer(tokenizer, encoder, json_array_get(texts, i),
                                    json_array_get(json_object_get(row, "answers"), i));
        tap_is(good, 2 * json_array_size(texts), "%s has the package's tokens and texts", name);
        zr_encoder_close(encoder);
        zr_tokenizer_close(tokenizer);
    }
}

/* What the package's tokens of a text come down to: a merge that another one made impossible, and unknown
 * characters beside each other. */
static void test_merges(void)
{
    static const struct {
        const char *fuses, *text, *wanted, *words;
    } cases[] = {
        {"true", "abcd", "[1,7]", "a merge of a pair that is gone does not merge the new pair"},
        {"true", "axyb", "[1,0,2]", "unknown characters are one token"},
        {"false", "axyb", "[1,0,0,2]", "without fuse_unk they are two"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zr_tokenizer *tokenizer;
        struct zr_encoder *encoder = NULL;
        struct zr_growing tokens = {.data = NULL};
        json_t *wanted = json_loads(cases[i].wanted, 0, NULL);
        json_t *file = json_pack(
            "{s:{s:s, s:s, s:o, s:{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}, s:[ssss]}}", "model", "type",
            "BPE", "unk_token", "?", "fuse_unk", json_loads(cases[i].fuses, JSON_DECODE_ANY, NULL), "vocab",
            "?", 0, "a", 1, "b", 2, "c", 3, "d", 4, "bc", 5, "ab", 6, "bcd", 7, "abc", 8, "merges", "b c",
            "a b", "bc d", "a bc");
        zr_result result = open_json(&tokenizer, file);
        if (!result)
            result = zr_encoder_open(&encoder, tokenizer);
        if (!result)
            result = zr_encode(encoder, cases[i].text, strlen(cases[i].text), ZR_ENCODE_PLAIN, &tokens);
        tap_ok(result == ZR_OK && same_tokens(&tokens, wanted), "%s", cases[i].words);
        zr_growing_end(&tokens);
        zr_encoder_close(encoder);
        zr_tokenizer_close(tokenizer);
        json_decref(file);
        json_decref(wanted);
    }
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

/* One change of a good file: the key's value. */
static const struct refusal {
    const char *tokenizer, *object, *key, *value, *words;
} refusals[] = {
    {"gpt2", "", "extra", "1", "extra: is not supported"},
    {"gpt2", "model", "dropout", "0.1", "model.dropout"},
    {"gpt2", "model", "continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix"},
    {"gpt2", "model", "type", "\"WordPiece\"", "BPE and Unigram are"},
    {"gpt2", "model", "vocab", "{\"a\":0,\"b\":0}", "that another token has"},
    {"gpt2", "model", "vocab", "{\"a\":0,\"b\":4000000}", "far above"},
    {"gpt2", "model", "vocab", "{\"a\":-1}", "below 4194304"},
    {"gpt2", "model", "merges", "[\"a b c\"]", "not a pair"},
    {"gpt2", "model", "merges", "[\"a zzzz\"]", "not in the vocabulary"},
    {"gpt2", "model", "unk_token", "\"zzzz\"", "model.unk_token"},
    {"gpt2", "", "normalizer", "{\"type\":\"BertNormalizer\"}", "BertNormalizer"},
    {"gpt2", "", "pre_tokenizer", "{\"type\":\"Whitespace\"}", "Whitespace"},
    {"gpt2", "", "pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a*\"},\"behavior\":\"Isolated\"}", "empty text"},
    {"gpt2", "", "pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\"}", "construct"},
    {"gpt2", "", "pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<n>a)\"},\"behavior\":\"Isolated\"}", "construct"},
    {"gpt2", "", "decoder", "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "requires the pre-tokenizer"},
    {"gpt2", "", "added_tokens", "[{\"id\":7,\"content\":\"<|end|>\"}]", "added_tokens[0].id"},
    {"gpt2", "", "added_tokens", "[{\"id\":400,\"content\":\"w\",\"single_word\":true}]", "single_word"},
    {"llama3", "", "post_processor",
     "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}", "lacks a token"},
    {"llama2", "model", "vocab", "{\"<unk>\":0}", "not in the vocabulary"},
    {"unigram", "model", "unk_id", "300000", "unk_id"},
    {"unigram", "model", "vocab", "[[\"a\",0],[\"a\",1]]", "there twice"},
    {"unigram", "model", "byte_fallback", "true", "a token of each byte"},
    {"unigram-map", "", "normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}",
     "damaged"},
};

static void test_refusals(const json_t *root)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *refusal = &refusals[i];
        json_t *file = json_deep_copy(json_object_get(
            json_object_get(json_object_get(root, "tokenizers"), refusal->tokenizer), "file"));
        json_t *object = refusal->object[0] ? json_object_get(file, refusal->object) : file;
        zr_tokenizer *tokenizer;
        json_object_set_new(object, refusal->key, json_loads(refusal->value, JSON_DECODE_ANY, NULL));
        zr_result result = open_json(&tokenizer, file);
        tap_ok(result == ZR_ERR_FORMAT && !tokenizer && strstr(zr_last_error(), refusal->words), "%s.%s: %s",
               refusal->object, refusal->key, zr_last_error());
        zr_tokenizer_close(tokenizer);
        json_decref(file);
    }
}

static void test_calls(const json_t *root)
{
    zr_tokenizer *tokenizer;
    struct zr_encoder *encoder = NULL;
    struct zr_growing out = {.data = NULL};
    const json_t *file =
        json_object_get(json_object_get(json_object_get(root, "tokenizers"), "gpt2"), "file");
    if (open_json(&tokenizer, file) || zr_encoder_open(&encoder, tokenizer)) {
        tap_ok(false, "gpt2 is opened");
        return;
    }
    int32_t beyond = (int32_t)zr_tokenizer_size(tokenizer);
    tap_result(zr_encode(encoder, "ab\xff", 3, ZR_ENCODE_PLAIN, &out), ZR_ERR_FORMAT,
               "a byte that is not UTF-8");
    tap_ok(strstr(zr_last_error(), "byte 2 "), "is named: %s", zr_last_error());
    tap_result(zr_decode(tokenizer, &beyond, 1, &out), ZR_ERR_FORMAT, "a number without a token");
    tap_is(zr_tokenizer_find(tokenizer, "<|end|>"), 1, "a special token is found by its text");
    tap_is(zr_tokenizer_find(tokenizer, "no such token"), ZR_NO_TOKEN, "and another is not");
    zr_growing_end(&out);
    zr_encoder_close(encoder);
    zr_tokenizer_close(tokenizer);
}

int main(void)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    size_t leaked = 1;
    int fd = mkstemp(path);
    tap_result(zr_backend_host_create(&backend, NULL), ZR_OK, "a backend");
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                                  .name = "host",
                                                                  .reserve_bytes = (size_t)1 << 30}),
               ZR_OK, "an arena");
    tap_result(zr_heap_start(arena), ZR_OK, "a heap");
    json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
    json_t *root = json_load_file(ANSWERS, 0, NULL);
    tap_ok(root && fd >= 0, "the answers are read");
    test_answers(root);
    test_merges();
    test_refusals(root);
    test_calls(root);
    json_decref(root);
    close(fd);
    unlink(path);
    zr_heap_stop(&leaked);
    tap_is(leaked, 0, "nothing is left on the heap");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    return tap_done();
}
