/* fuzz_tokenizer.h: hostile tokenizer.json files. What is accepted encodes a text, and its tokens have texts.
 */
#ifndef ZR_FUZZ_TOKENIZER_H
#define ZR_FUZZ_TOKENIZER_H

#include "tests/support/fuzz/fuzz_ground.h"
#include "tests/support/fuzz/fuzz_heap.h"
#include "tests/support/fuzz/fuzz_words.h"
#include "zero/text/tokenizer.h"

static const char *const fuzz_tokenizer_words[] = {"\"normalizer\":",
                                                   "\"pre_tokenizer\":",
                                                   "\"decoder\":",
                                                   "\"post_processor\":",
                                                   "\"type\":",
                                                   "\"Sequence\"",
                                                   "\"ByteLevel\"",
                                                   "\"Metaspace\"",
                                                   "\"Split\"",
                                                   "\"Digits\"",
                                                   "\"Punctuation\"",
                                                   "\"WhitespaceSplit\"",
                                                   "\"Prepend\"",
                                                   "\"Replace\"",
                                                   "\"Strip\"",
                                                   "\"Precompiled\"",
                                                   "\"precompiled_charsmap\":\"AAIAAAAA\"",
                                                   "\"NFKC\"",
                                                   "\"NFD\"",
                                                   "\"ByteFallback\"",
                                                   "\"Fuse\"",
                                                   "\"Regex\":",
                                                   "\"String\":",
                                                   "\"behavior\":",
                                                   "\"MergedWithNext\"",
                                                   "\"MergedWithPrevious\"",
                                                   "\"Contiguous\"",
                                                   "\"Removed\"",
                                                   "\"invert\":true",
                                                   "\"prepend_scheme\":\"first\"",
                                                   "\"split\":false",
                                                   "\"ignore_merges\":true",
                                                   "\"byte_fallback\":true",
                                                   "\"unk_id\":",
                                                   "\"lstrip\":true",
                                                   "\"rstrip\":true",
                                                   "\"normalized\":true",
                                                   "\\\\s+(?!\\\\S)",
                                                   "\\\\p{L}",
                                                   "[^\\\\w]",
                                                   "(a+)+$",
                                                   "{1,3}",
                                                   FUZZ_JSON_VALUES,
                                                   NULL};

static const char fuzz_bytes_tokenizer[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"added_tokens\":[{\"id\":6,\"content\":\"<e>\",\"lstrip\":true,\"normalized\":false,"
    "\"special\":true}],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
    "\"Split\",\"pattern\":{\"Regex\":\"(?i:'s)| ?\\\\p{L}+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}]},\"post_processor\":{\"type\":\"TemplateProcessing\","
    "\"single\":[{\"SpecialToken\":{\"id\":\"<e>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":"
    "{\"<e>\":{\"ids\":[6]}}},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\",\"vocab\":"
    "{\"a\":0,\"b\":1,\"\304\240\":2,\"ab\":3,\"\304\240a\":4,\"abab\":5},\"merges\":[\"a b\",[\"\304\240\",\"a\"],\"ab ab\"]}}";
static const char fuzz_characters_tokenizer[] =
    "{\"added_tokens\":[{\"id\":3,\"content\":\"b b\",\"rstrip\":true}],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
    "\"Prepend\",\"prepend\":\"\342\226\201\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\342\226\201\"},{\"type\":"
    "\"Replace\",\"pattern\":{\"Regex\":\"c{2,}\"},\"content\":\"c\"},{\"type\":\"NFKD\"}]},\"pre_tokenizer\":{\"type\":\"Split\","
    "\"pattern\":{\"String\":\"\342\226\201\"},\"behavior\":\"MergedWithNext\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
    "\"Replace\",\"pattern\":{\"String\":\"\342\226\201\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":"
    "\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},\"model\":{\"fuse_unk\":true,\"unk_token\":\"<u>\",\"vocab\":{\"<u>\":0,"
    "\"a\":1,\"\342\226\201\":2,\"\342\226\201a\":4},\"merges\":[\"\342\226\201 a\"]}}";
static const char fuzz_unigram_tokenizer[] =
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"Metaspace\","
    "\"replacement\":\"\342\226\201\",\"prepend_scheme\":\"first\"}]},\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\342\226\201\"},"
    "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0.0],[\"a\",-1.5],[\"ab\",-2.25],[\"\342\226\201\",-3e-1],"
    "[\"b\",-4]]}}";

static inline bool fuzz_tokenizer_use(const zr_tokenizer *tokenizer)
{
    static const char text[] = "ab abab's <e> b b  caccc\t12 \303\251e\314\201\357\254\201\r\n a";
    struct zr_growing tokens = {.data = NULL}, decoded = {.data = NULL};
    struct zr_encoder *encoder = NULL;
    zr_result result = zr_encoder_open(&encoder, tokenizer);
    if (!result)
        result = zr_encode(encoder, text, sizeof text - 1, ZR_ENCODE_WHOLE, &tokens);
    bool good = fuzz_answer(result);
    if (!result)
        good = zr_decode(tokenizer, (const int32_t *)(const void *)tokens.data,
                         tokens.used_bytes / sizeof(int32_t), &decoded) == ZR_OK;
    zr_encoder_close(encoder);
    zr_growing_end(&tokens);
    zr_growing_end(&decoded);
    return good;
}

static inline bool fuzz_tokenizer(const unsigned char *data, size_t bytes, zr_result *result)
{
    zr_tokenizer *tokenizer;
    struct fuzz_watch watch = fuzz_watch_start(fuzz_arena);
    if (!fuzz_write(data, bytes))
        return false;
    *result = zr_tokenizer_open(&tokenizer, fuzz_path);
    bool good = fuzz_answer(*result) && (*result == ZR_OK) == (tokenizer != NULL);
    if (tokenizer)
        good &= fuzz_tokenizer_use(tokenizer);
    zr_tokenizer_close(tokenizer);
    return good && fuzz_watch_end(&watch, bytes);
}

#endif
