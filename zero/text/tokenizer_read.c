/* tokenizer_read.c: a tokenizer.json by an allow list. Each object has a list of its keys; a key outside of
 * the list, or a value without a place here, is refused by name. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "zero/checkpoint/model_file.h"
#include "zero/text/tokenizer_inside.h"

enum { PLACE_ROOM = 96, DEPTH_MAX = 8 };

/* What ByteLevel splits by with use_regex: GPT-2's pattern. */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct reader {
    const char *path;
    zr_tokenizer *out;
    json_t *vocab; /* of a BPE model; borrowed */
    bool byte_decoder;
};

static zr_result refuse(const struct reader *reader, const char *place, const char *key, const char *problem)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s': %.80s%s%.60s: %s", reader->path, place,
                   place[0] && key[0] ? "." : "", key, problem);
}

/* ---- Objects and their keys ---------------------------------------------------------------------------- */

static bool is_nothing(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

/* The key's entry in the list of keys; NULL: none. */
static const char *find_key(const char *keys, const char *key)
{
    size_t length = strlen(key);
    for (const char *at = keys; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " -") == length && memcmp(at, key, length) == 0)
            return at + length;
    return NULL;
}

/* Checks that an object has only keys of the list; one that is followed by '-' may be null, false or "". */
static zr_result check_keys(const struct reader *reader, const char *place, json_t *object, const char *keys)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return refuse(reader, place, "", "is not an object; fetch the file again");
    json_object_foreach(object, key, value)
    {
        const char *entry = find_key(keys, key);
        if (!entry || (*entry == '-' && !is_nothing(value)))
            return refuse(reader, place, key, "is not supported");
    }
    return ZR_OK;
}

static bool get_flag(json_t *object, const char *key, bool missing)
{
    json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : missing;
}

/* Copies a text that is not empty and fits a step. */
static zr_result get_text(const struct reader *reader, const char *place, json_t *object, const char *key,
                          char out[ZR_STEP_TEXT_ROOM])
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || !text[0] || strlen(text) >= ZR_STEP_TEXT_ROOM)
        return refuse(reader, place, key, "must be a text of 1 to 63 bytes");
    snprintf(out, ZR_STEP_TEXT_ROOM, "%s", text);
    return ZR_OK;
}

static zr_result get_token(const struct reader *reader, const char *place, json_t *value, int32_t *out)
{
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    if (number < 0 || number >= ZR_VOCABULARY_MAX)
        return refuse(reader, place, "", "must be a token number below 4194304");
    *out = (int32_t)number;
    return ZR_OK;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

struct steps {
    struct reader *reader;
    struct zr_text_steps *out;
    const char *list; /* key of a sequence's steps */
    zr_result (*read)(struct steps *steps, const char *place, const char *type, json_t *object);
};

/* The next step, zeros but for its kind; NULL: there are too many, or none may follow. */
static struct zr_text_step *add_step(struct steps *steps, enum zr_step_kind kind)
{
    if (steps->out->count == ZR_STEPS_MAX)
        return NULL;
    struct zr_text_step *step = &steps->out->step[steps->out->count++];
    step->kind = kind;
    return step;
}

static zr_result read_steps(struct steps *steps, const char *place, json_t *object, unsigned depth)
{
    char inner[PLACE_ROOM];
    const char *type = json_string_value(json_object_get(object, "type"));
    json_t *list = json_object_get(object, steps->list);
    zr_result result = ZR_OK;
    if (!object || json_is_null(object))
        return ZR_OK;
    if (!type || depth == DEPTH_MAX)
        return refuse(steps->reader, place, "type", depth == DEPTH_MAX ? "is nested too deep" : "is missing");
    if (strcmp(type, "Sequence") != 0) {
        /* A step takes at most two places. */
        if (steps->out->count + 2 > ZR_STEPS_MAX)
            return refuse(steps->reader, place, type, "is beyond the maximum of steps");
        return steps->read(steps, place, type, object);
    }
    char keys[64];
    snprintf(keys, sizeof keys, "type %s", steps->list);
    result = check_keys(steps->reader, place, object, keys);
    for (size_t i = 0; i < json_array_size(list) && !result; i++) {
        snprintf(inner, sizeof inner, "%.60s[%zu]", place, i);
        result = read_steps(steps, inner, json_array_get(list, i), depth + 1);
    }
    return result;
}

/* A pattern {"String": text} or {"Regex": expression}. */
static zr_result read_pattern(const struct reader *reader, const char *place, json_t *object,
                              struct zr_text_step *step)
{
    char where[PLACE_ROOM + 32];
    json_t *pattern = json_object_get(object, "pattern");
    const char *expression = json_string_value(json_object_get(pattern, "Regex"));
    zr_result result = check_keys(reader, place, pattern, "String Regex");
    if (result || !expression)
        return result ? result : get_text(reader, place, pattern, "String", step->from);
    snprintf(where, sizeof where, "'%.60s': %.50s", reader->path, place);
    return zr_pattern_compile(&step->pattern, where, expression);
}

static zr_result read_replace(struct steps *steps, const char *place, json_t *object, bool has_patterns)
{
    struct zr_text_step *step = add_step(steps, ZR_STEP_REPLACE);
    const char *content = json_string_value(json_object_get(object, "content"));
    zr_result result = check_keys(steps->reader, place, object, "type pattern content");
    if (!result && (!content || strlen(content) >= ZR_STEP_TEXT_ROOM))
        result = refuse(steps->reader, place, "content", "must be a text of at most 63 bytes");
    if (!result)
        result = read_pattern(steps->reader, place, object, step);
    if (result)
        return result;
    snprintf(step->to, sizeof step->to, "%s", content);
    if (step->pattern.code)
        step->kind = ZR_STEP_REPLACE_PATTERN;
    return step->pattern.code && !has_patterns
               ? refuse(steps->reader, place, "pattern.Regex", "is not supported")
               : ZR_OK;
}

static zr_result read_metaspace(struct steps *steps, const char *place, json_t *object)
{
    static const char *const schemes[] = {
        [ZR_PREPEND_ALWAYS] = "always", [ZR_PREPEND_FIRST] = "first", [ZR_PREPEND_NEVER] = "never"};
    struct zr_text_step *step = add_step(steps, ZR_STEP_METASPACE);
    json_t *scheme = json_object_get(object, "prepend_scheme");
    zr_result result = check_keys(steps->reader, place, object,
                                  "type replacement add_prefix_space prepend_scheme split str_rep");
    if (!result)
        result = get_text(steps->reader, place, object, "replacement", step->to);
    step->splits = get_flag(object, "split", true);
    step->prepend = get_flag(object, "add_prefix_space", true) ? ZR_PREPEND_ALWAYS : ZR_PREPEND_NEVER;
    if (result || is_nothing(scheme))
        return result;
    for (unsigned i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (json_is_string(scheme) && strcmp(json_string_value(scheme), schemes[i]) == 0) {
            step->prepend = (enum zr_prepend)i;
            return ZR_OK;
        }
    return refuse(steps->reader, place, "prepend_scheme", "must be always, first or never");
}

/* ---- Normalizers --------------------------------------------------------------------------------------- */

static zr_result read_normalizer(struct steps *steps, const char *place, const char *type, json_t *object)
{
    static const struct {
        const char *type;
        unsigned form;
    } forms[] = {{"NFC", ZR_FORM_NFC}, {"NFD", ZR_FORM_NFD}, {"NFKC", ZR_FORM_NFKC}, {"NFKD", ZR_FORM_NFKD}};
    struct zr_text_step *step;
    zr_result result;
    for (unsigned i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(type, forms[i].type) == 0) {
            add_step(steps, ZR_STEP_NORMAL_FORM)->form = forms[i].form;
            return check_keys(steps->reader, place, object, "type");
        }
    if (strcmp(type, "Replace") == 0)
        return read_replace(steps, place, object, true);
    if (strcmp(type, "Prepend") == 0) {
        step = add_step(steps, ZR_STEP_PREPEND);
        result = check_keys(steps->reader, place, object, "type prepend");
        return result ? result : get_text(steps->reader, place, object, "prepend", step->to);
    }
    if (strcmp(type, "Strip") == 0) {
        step = add_step(steps, ZR_STEP_STRIP_SPACE);
        step->left = get_flag(object, "strip_left", true);
        step->right = get_flag(object, "strip_right", true);
        return check_keys(steps->reader, place, object, "type strip_left strip_right");
    }
    if (strcmp(type, "Precompiled") == 0) {
        const char *table = json_string_value(json_object_get(object, "precompiled_charsmap"));
        step = add_step(steps, ZR_STEP_CHARSMAP);
        result = check_keys(steps->reader, place, object, "type precompiled_charsmap");
        return result ? result : zr_charsmap_create(&step->charsmap, steps->reader->path, table ? table : "");
    }
    return refuse(steps->reader, place, type, "is not supported");
}

/* ---- Pre-tokenizers ------------------------------------------------------------------------------------ */

static zr_result add_split(struct steps *steps, const char *place, const char *expression,
                           enum zr_split_behavior split)
{
    struct zr_text_step *step = add_step(steps, ZR_STEP_SPLIT);
    step->split = split;
    return zr_pattern_compile(&step->pattern, place, expression);
}

static zr_result read_byte_level(struct steps *steps, const char *place, json_t *object)
{
    zr_result result =
        check_keys(steps->reader, place, object, "type add_prefix_space trim_offsets use_regex");
    if (!result && get_flag(object, "add_prefix_space", true))
        add_step(steps, ZR_STEP_PREFIX_SPACE);
    if (!result && get_flag(object, "use_regex", true))
        result = add_split(steps, place, GPT2_PATTERN, ZR_SPLIT_ISOLATED);
    steps->reader->out->model.of_bytes = true;
    return result;
}

static zr_result read_behavior(const struct reader *reader, const char *place, json_t *object,
                               enum zr_split_behavior *out)
{
    static const char *const names[] = {[ZR_SPLIT_REMOVED] = "Removed",
                                        [ZR_SPLIT_ISOLATED] = "Isolated",
                                        [ZR_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [ZR_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
                                        [ZR_SPLIT_CONTIGUOUS] = "Contiguous"};
    const char *name = json_string_value(json_object_get(object, "behavior"));
    for (unsigned i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum zr_split_behavior)i;
            return ZR_OK;
        }
    return refuse(reader, place, "behavior", "is not supported");
}

static zr_result read_split(struct steps *steps, const char *place, json_t *object)
{
    struct zr_text_step *step = add_step(steps, ZR_STEP_SPLIT);
    zr_result result = check_keys(steps->reader, place, object, "type pattern behavior invert");
    step->inverted = get_flag(object, "invert", false);
    if (!result)
        result = read_behavior(steps->reader, place, object, &step->split);
    return result ? result : read_pattern(steps->reader, place, object, step);
}

static zr_result read_splitter(struct steps *steps, const char *place, const char *type, json_t *object)
{
    zr_result result;
    if (steps->reader->out->model.of_bytes)
        return refuse(steps->reader, place, type, "behind ByteLevel is not supported");
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(steps, place, object);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(steps, place, object);
    if (strcmp(type, "Split") == 0)
        return read_split(steps, place, object);
    if (strcmp(type, "Digits") == 0) {
        bool single = get_flag(object, "individual_digits", false);
        result = check_keys(steps->reader, place, object, "type individual_digits");
        return result ? result : add_split(steps, place, single ? "\\p{N}" : "\\p{N}+", ZR_SPLIT_ISOLATED);
    }
    if (strcmp(type, "Punctuation") == 0) {
        enum zr_split_behavior split = ZR_SPLIT_ISOLATED;
        result = check_keys(steps->reader, place, object, "type behavior");
        if (!result && json_object_get(object, "behavior"))
            result = read_behavior(steps->reader, place, object, &split);
        return result ? result : add_split(steps, place, "[!-/:-@\\[-`{-~\\p{P}]", split);
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        result = check_keys(steps->reader, place, object, "type");
        return result ? result : add_split(steps, place, "\\s", ZR_SPLIT_REMOVED);
    }
    return refuse(steps->reader, place, type, "is not supported");
}

/* ---- Decoders ------------------------------------------------------------------------------------------ */

static zr_result read_count(const struct reader *reader, const char *place, json_t *object, const char *key,
                            unsigned *out)
{
    json_t *value = json_object_get(object, key);
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || number > 1 << 20)
        return refuse(reader, place, key, "must be a number of characters");
    *out = (unsigned)number;
    return ZR_OK;
}

static zr_result read_decoder(struct steps *steps, const char *place, const char *type, json_t *object)
{
    zr_result result;
    if (strcmp(type, "ByteLevel") == 0) {
        steps->reader->byte_decoder = true;
        add_step(steps, ZR_STEP_FUSE);
        return check_keys(steps->reader, place, object, "type add_prefix_space trim_offsets use_regex");
    }
    if (strcmp(type, "Replace") == 0)
        return read_replace(steps, place, object, false);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(steps, place, object);
    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0) {
        add_step(steps, type[0] == 'F' ? ZR_STEP_FUSE : ZR_STEP_BYTE_FALLBACK);
        return check_keys(steps->reader, place, object, "type");
    }
    if (strcmp(type, "Strip") == 0) {
        struct zr_text_step *step = add_step(steps, ZR_STEP_STRIP);
        result = check_keys(steps->reader, place, object, "type content start stop");
        if (!result)
            result = get_text(steps->reader, place, object, "content", step->from);
        if (!result)
            result = read_count(steps->reader, place, object, "start", &step->start);
        return result ? result : read_count(steps->reader, place, object, "stop", &step->stop);
    }
    return refuse(steps->reader, place, type, "is not supported");
}

/* ---- Added tokens -------------------------------------------------------------------------------------- */

/* The number that the model has for a text. */
static int32_t model_token(const struct reader *reader, const char *text)
{
    json_t *value = json_object_get(reader->vocab, text);
    if (reader->vocab)
        return value ? (int32_t)json_integer_value(value) : ZR_NO_TOKEN;
    return zr_trie_find(&reader->out->model.vocabulary.trie, text, strlen(text));
}

static zr_result read_added_token(const struct reader *reader, const char *place, json_t *object,
                                  struct zr_added_token *out)
{
    struct zr_vocabulary *vocabulary = &reader->out->model.vocabulary;
    const char *content = json_string_value(json_object_get(object, "content"));
    zr_result result =
        check_keys(reader, place, object, "id content single_word- lstrip rstrip normalized special");
    if (!result)
        result = get_token(reader, place, json_object_get(object, "id"), &out->token);
    if (result)
        return result;
    int32_t known = content ? model_token(reader, content) : ZR_NO_TOKEN;
    if (!content || !content[0] || strlen(content) > 1024)
        return refuse(reader, place, "content", "must be a text of 1 to 1024 bytes");
    if (known != ZR_NO_TOKEN ? known != out->token : vocabulary->tokens[out->token].present)
        return refuse(reader, place, "id", "differs from the model's vocabulary, or is given twice");
    out->takes_left = get_flag(object, "lstrip", false);
    out->takes_right = get_flag(object, "rstrip", false);
    out->normalized = get_flag(object, "normalized", !get_flag(object, "special", false));
    return zr_vocabulary_set(vocabulary, (size_t)out->token, content, strlen(content)) ? ZR_OK
                                                                                       : ZR_ERR_HOST_MEMORY;
}

/* The text by which an added token is found, in the scratch. */
static zr_result find_form(const zr_tokenizer *tokenizer, const struct zr_added_token *added,
                           struct zr_step_scratch *scratch, const char **text, size_t *bytes)
{
    const struct zr_vocabulary *vocabulary = &tokenizer->model.vocabulary;
    *text = zr_vocabulary_text(vocabulary, (size_t)added->token);
    *bytes = vocabulary->tokens[added->token].bytes;
    return added->normalized ? zr_normalize(&tokenizer->normalizers, scratch, text, bytes) : ZR_OK;
}

/* Opens the two tries. A normalizer lengthens a text to a known multiple at most, hence two passes. */
static zr_result index_added_tokens(zr_tokenizer *tokenizer, struct zr_step_scratch *scratch)
{
    size_t room[2] = {0, 0}, bytes;
    const char *text;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < tokenizer->added_count && !result; i++) {
        result = find_form(tokenizer, &tokenizer->added[i], scratch, &text, &bytes);
        room[tokenizer->added[i].normalized] += bytes;
    }
    for (unsigned level = 0; level < 2 && !result; level++)
        result = zr_trie_open(&tokenizer->found[level].trie, room[level]);
    for (size_t i = 0; i < tokenizer->added_count && !result; i++) {
        struct zr_added_tokens *found = &tokenizer->found[tokenizer->added[i].normalized];
        result = find_form(tokenizer, &tokenizer->added[i], scratch, &text, &bytes);
        if (!result &&
            zr_trie_add(&found->trie, text, bytes, (int32_t)i)) /* else one that equals an earlier one */
            found->starts[(unsigned char)text[0]] = true;
    }
    return result;
}

static zr_result read_added_tokens(const struct reader *reader, json_t *list)
{
    zr_tokenizer *tokenizer = reader->out;
    struct zr_step_scratch scratch = {.match = zr_pattern_scratch()};
    char place[PLACE_ROOM];
    zr_result result = scratch.match ? ZR_OK : ZR_ERR_HOST_MEMORY;
    tokenizer->added = zr_heap_zalloc(json_array_size(list) + 1, sizeof *tokenizer->added);
    if (!tokenizer->added)
        result = ZR_ERR_HOST_MEMORY;
    for (size_t i = 0; i < json_array_size(list) && !result; i++) {
        snprintf(place, sizeof place, "added_tokens[%zu]", i);
        result = read_added_token(reader, place, json_array_get(list, i), &tokenizer->added[i]);
        tokenizer->added_count = i + 1;
    }
    if (!result)
        result = index_added_tokens(tokenizer, &scratch);
    zr_pattern_scratch_free(scratch.match);
    zr_growing_end(&scratch.texts[0]);
    zr_growing_end(&scratch.texts[1]);
    zr_growing_end(&scratch.code_points);
    return result;
}

/* ---- The post-processor -------------------------------------------------------------------------------- */

static zr_result add_template_token(const struct reader *reader, const char *place, bool after,
                                    json_t *number)
{
    zr_tokenizer *out = reader->out;
    unsigned *count = after ? &out->after_count : &out->before_count;
    int32_t token = 0;
    zr_result result = get_token(reader, place, number, &token);
    if (!result && (*count == ZR_TEMPLATE_MAX || (size_t)token >= out->model.vocabulary.size ||
                    !out->model.vocabulary.tokens[token].present))
        result = refuse(reader, place, "", "has a token that does not exist, or more than 16");
    if (!result)
        (after ? out->after : out->before)[(*count)++] = token;
    return result;
}

static zr_result read_template(const struct reader *reader, const char *place, json_t *object)
{
    json_t *single = json_object_get(object, "single"), *specials = json_object_get(object, "special_tokens");
    bool after = false;
    zr_result result = check_keys(reader, place, object, "type single pair special_tokens");
    for (size_t i = 0; i < json_array_size(single) && !result; i++) {
        json_t *piece = json_array_get(single, i), *special = json_object_get(piece, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        json_t *numbers = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
        result = check_keys(reader, place, piece, "SpecialToken Sequence");
        if (!result && !special && after)
            result = refuse(reader, place, "single", "has the text twice");
        after |= !special;
        if (!result && special && json_array_size(numbers) == 0)
            result = refuse(reader, place, "special_tokens", "lacks a token of the template");
        for (size_t k = 0; k < json_array_size(numbers) && !result; k++)
            result = add_template_token(reader, place, after, json_array_get(numbers, k));
    }
    return result;
}

static zr_result read_post_processor(struct steps *steps, const char *place, const char *type, json_t *object)
{
    zr_result result;
    if (strcmp(type, "ByteLevel") == 0) /* changes offsets only */
        return check_keys(steps->reader, place, object, "type add_prefix_space trim_offsets use_regex");
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(steps->reader, place, object);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        result = check_keys(steps->reader, place, object, "type sep cls trim_offsets add_prefix_space");
        if (!result)
            result = add_template_token(steps->reader, place, false,
                                        json_array_get(json_object_get(object, "cls"), 1));
        return result ? result
                      : add_template_token(steps->reader, place, true,
                                           json_array_get(json_object_get(object, "sep"), 1));
    }
    return refuse(steps->reader, place, type, "is not supported");
}

/* ---- The model ----------------------------------------------------------------------------------------- */

/* The byte that GPT-2's alphabet writes as a code point: printable bytes as they are, the others from U+0100
 * on in their order. -1: none. */
static int byte_of(const unsigned char *text, size_t width)
{
    static const struct {
        int first, last;
    } others[] = {{0, 32}, {127, 160}, {173, 173}};
    int code = width == 1 ? text[0] : width == 2 ? (text[0] & 0x1f) << 6 | (text[1] & 0x3f) : -1;
    int at = code - 256;
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
        if (code >= others[i].first && code <= others[i].last)
            return -1;
        if (at >= 0 && at <= others[i].last - others[i].first)
            return others[i].first + at;
        at -= others[i].last - others[i].first + 1;
    }
    return code < 256 ? code : -1;
}

/* The bytes that a text in GPT-2's alphabet stands for. False: a character is outside of it. */
static bool to_bytes(const char *text, char *out, size_t *bytes)
{
    size_t length = strlen(text), count = 0;
    for (size_t at = 0, width; at < length; at += width) {
        const unsigned char *character = (const unsigned char *)text + at;
        width = zr_utf8_length(character, length - at);
        int byte = width ? byte_of(character, width) : -1;
        if (byte < 0)
            return false;
        out[count++] = (char)byte;
    }
    *bytes = count;
    return true;
}

/* Adds a token of the model. `room` holds its text. */
static zr_result add_token(const struct reader *reader, int32_t token, const char *text, char *room)
{
    struct zr_word_model *model = &reader->out->model;
    size_t bytes = strlen(text);
    bool found = !model->of_bytes || to_bytes(text, room, &bytes);
    if (model->vocabulary.tokens[token].present)
        return refuse(reader, "model.vocab", text, "has a number that another token has");
    if (!zr_vocabulary_set(&model->vocabulary, (size_t)token, found && model->of_bytes ? room : text, bytes))
        return ZR_ERR_HOST_MEMORY;
    if (found && bytes > 0 &&
        !zr_trie_add(&model->vocabulary.trie, found && model->of_bytes ? room : text, bytes, token))
        return refuse(reader, "model.vocab", text, "is there twice");
    return ZR_OK;
}

/* The size of the vocabulary with added tokens; and the bytes of the longest and of all texts. */
struct sizes {
    size_t tokens, longest, texts, count;
};

static zr_result add_size(const struct reader *reader, const char *place, struct sizes *sizes, json_t *number,
                          const char *text)
{
    int32_t token = 0;
    size_t bytes = strlen(text);
    zr_result result = get_token(reader, place, number, &token);
    if (result)
        return result;
    sizes->tokens = (size_t)token >= sizes->tokens ? (size_t)token + 1 : sizes->tokens;
    sizes->longest = bytes > sizes->longest ? bytes : sizes->longest;
    sizes->texts += bytes;
    sizes->count++;
    return ZR_OK;
}

static zr_result add_added_sizes(const struct reader *reader, json_t *list, struct sizes *sizes)
{
    zr_result result = ZR_OK;
    for (size_t i = 0; i < json_array_size(list) && !result; i++)
        result =
            add_size(reader, "added_tokens.id", sizes, json_object_get(json_array_get(list, i), "id"), "");
    if (!result && sizes->tokens > 4 * sizes->count + 1024)
        result = refuse(reader, "model.vocab", "", "has numbers far above the number of tokens");
    return result;
}

/* Opens a vocabulary for the model's tokens, which `sizes` has, and the added ones. */
static zr_result open_vocabulary(const struct reader *reader, struct zr_word_model *model, json_t *added,
                                 struct sizes *sizes)
{
    zr_result result = add_added_sizes(reader, added, sizes);
    return result ? result : zr_vocabulary_open(&model->vocabulary, sizes->tokens, sizes->texts);
}

/* The left and the right token of a merge "A B" or ["A", "B"], whose texts stay in `room`. */
static bool split_merge(json_t *merge, char *room, size_t room_bytes, const char *parts[2])
{
    const char *text = json_string_value(merge), *blank = text ? strchr(text, ' ') : NULL;
    parts[0] = json_string_value(json_array_get(merge, 0));
    parts[1] = json_string_value(json_array_get(merge, 1));
    if (!text)
        return json_array_size(merge) == 2 && parts[0] && parts[1];
    if (!blank || strchr(blank + 1, ' ') || strlen(text) >= room_bytes)
        return false;
    memcpy(room, text, strlen(text) + 1);
    room[blank - text] = '\0';
    parts[0] = room;
    parts[1] = room + (blank - text) + 1;
    return true;
}

static zr_result read_merge(const struct reader *reader, json_t *merge, uint32_t rank, char *room,
                            size_t room_bytes)
{
    const char *parts[2];
    char *joined = room + room_bytes;
    int32_t left, right, product = ZR_NO_TOKEN;
    if (!split_merge(merge, room, room_bytes, parts))
        return refuse(reader, "model", "merges", "has an entry that is not a pair of tokens");
    left = model_token(reader, parts[0]);
    right = model_token(reader, parts[1]);
    if (left != ZR_NO_TOKEN && right != ZR_NO_TOKEN) {
        snprintf(joined, room_bytes, "%s%s", parts[0], parts[1]);
        product = model_token(reader, joined);
    }
    if (product == ZR_NO_TOKEN)
        return refuse(reader, "model.merges", parts[0],
                      "is merged from, or to, a text that is not in the vocabulary");
    zr_word_model_add_merge(&reader->out->model,
                            &(struct zr_merge){.pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right,
                                               .rank = rank,
                                               .product = product});
    return ZR_OK;
}

static zr_result read_byte_tokens(const struct reader *reader, bool falls_back)
{
    struct zr_word_model *model = &reader->out->model;
    bool all = true;
    for (unsigned i = 0; i < 256; i++) {
        char name[8] = {(char)i};
        if (!model->of_bytes)
            snprintf(name, sizeof name, "<0x%02X>", i);
        model->byte_tokens[i] = zr_trie_find(&model->vocabulary.trie, name, model->of_bytes ? 1 : 6);
        all &= model->byte_tokens[i] != ZR_NO_TOKEN;
    }
    model->has_fallback = falls_back && !model->of_bytes;
    return falls_back && !all ? refuse(reader, "model", "byte_fallback", "requires a token of each byte")
                              : ZR_OK;
}

static zr_result read_bpe(struct reader *reader, json_t *json, json_t *added)
{
    struct zr_word_model *model = &reader->out->model;
    json_t *merges = json_object_get(json, "merges"), *number;
    const char *unknown = json_string_value(json_object_get(json, "unk_token")), *text;
    struct sizes sizes = {.tokens = 0};
    zr_result result = check_keys(reader, "model", json,
                                  "type dropout- unk_token continuing_subword_prefix- end_of_word_suffix- "
                                  "fuse_unk byte_fallback ignore_merges vocab merges");
    reader->vocab = json_object_get(json, "vocab");
    if (!result && (!json_is_object(reader->vocab) || !json_is_array(merges)))
        result = refuse(reader, "model", "vocab", "or merges is missing");
    if (!result)
        json_object_foreach(reader->vocab, text, number) if (!result) result =
            add_size(reader, "model.vocab", &sizes, number, text);
    if (!result)
        result = open_vocabulary(reader, model, added, &sizes);
    if (result)
        return result;
    size_t room_bytes = 2 * sizes.longest + 2;
    char *room = zr_heap_alloc(2 * room_bytes);
    if (!room)
        return ZR_ERR_HOST_MEMORY;
    json_object_foreach(reader->vocab, text, number) if (!result) result =
        add_token(reader, (int32_t)json_integer_value(number), text, room);
    if (!result)
        result = zr_word_model_open_merges(model, json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges) && !result; i++)
        result = read_merge(reader, json_array_get(merges, i), (uint32_t)i, room, room_bytes);
    zr_heap_free(room);
    model->fuses_unknown = get_flag(json, "fuse_unk", false);
    model->ignores_merges = get_flag(json, "ignore_merges", false);
    model->unknown = unknown ? model_token(reader, unknown) : ZR_NO_TOKEN;
    if (!result && unknown && model->unknown == ZR_NO_TOKEN)
        result = refuse(reader, "model", "unk_token", "is not in the vocabulary");
    return result ? result : read_byte_tokens(reader, get_flag(json, "byte_fallback", false));
}

/* The score as `tokenizers` reads it: the digits of its shortest decimal as one number, which a power of ten
 * divides. The result may differ in the last bit from the number that the file has, and paths of equal scores
 * are chosen by such bits. */
static double score_of(double exact)
{
    char text[32], power[16];
    int digits = 15;
    while (snprintf(text, sizeof text, "%.*e", digits - 1, fabs(exact)),
           strtod(text, NULL) != fabs(exact) && digits < 17)
        digits++;
    double whole = 0;
    int exponent = 0, zeros = 0;
    uint64_t number = 0;
    for (const char *at = text; *at && *at != 'e'; at++) {
        if (*at == '.')
            continue;
        number = number * 10 + (uint64_t)(*at - '0');
        exponent--;
        zeros = *at == '0' ? zeros + 1 : 0;
    }
    for (int i = 0; i < zeros && number > 0; i++)
        number /= 10;
    exponent += 1 + zeros + atoi(strchr(text, 'e') + 1);
    whole = (double)number;
    snprintf(power, sizeof power, "1e%d", abs(exponent));
    whole = exponent < 0 ? whole / strtod(power, NULL) : whole * strtod(power, NULL);
    return exact < 0 ? -whole : whole;
}

static zr_result read_unigram(struct reader *reader, json_t *json, json_t *added)
{
    struct zr_word_model *model = &reader->out->model;
    json_t *vocab = json_object_get(json, "vocab"), *unknown = json_object_get(json, "unk_id");
    size_t count = json_array_size(vocab);
    struct sizes sizes = {.tokens = count, .count = count};
    zr_result result = check_keys(reader, "model", json, "type unk_id vocab byte_fallback");
    if (!result && model->of_bytes)
        result = refuse(reader, "pre_tokenizer", "ByteLevel", "with a Unigram model is not supported");
    if (!result && (count == 0 || count > ZR_VOCABULARY_MAX))
        result = refuse(reader, "model", "vocab", "is missing or too long");
    for (size_t i = 0; i < count && !result; i++) {
        json_t *text = json_array_get(json_array_get(vocab, i), 0);
        if (!json_is_string(text) || !json_is_number(json_array_get(json_array_get(vocab, i), 1)))
            result = refuse(reader, "model", "vocab", "must have pairs of a text and a number");
        sizes.texts += json_string_length(text);
    }
    if (!result)
        result = open_vocabulary(reader, model, added, &sizes);
    if (result)
        return result;
    model->scores = zr_heap_zalloc(sizes.tokens, sizeof *model->scores);
    if (!model->scores)
        return ZR_ERR_HOST_MEMORY;
    model->tokens_count = count;
    for (size_t i = 0; i < count && !result; i++) {
        json_t *pair = json_array_get(vocab, i);
        model->scores[i] = score_of(json_number_value(json_array_get(pair, 1)));
        result = add_token(reader, (int32_t)i, json_string_value(json_array_get(pair, 0)), NULL);
    }
    model->unknown = ZR_NO_TOKEN;
    model->fuses_unknown = true;
    if (!result && !is_nothing(unknown))
        result = get_token(reader, "model.unk_id", unknown, &model->unknown);
    if (!result && model->unknown >= (int32_t)count)
        result = refuse(reader, "model", "unk_id", "is not in the vocabulary");
    return result ? result : read_byte_tokens(reader, get_flag(json, "byte_fallback", false));
}

static zr_result read_model(struct reader *reader, json_t *json, json_t *added)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    bool unigram = json_is_array(json_object_get(json, "vocab"));
    if (!type && json) /* older files do not name it */
        type = unigram ? "Unigram" : "BPE";
    if (type && strcmp(type, "BPE") == 0)
        return read_bpe(reader, json, added);
    if (type && strcmp(type, "Unigram") == 0)
        return read_unigram(reader, json, added);
    return refuse(reader, "model.type", type ? type : "", "is not supported; BPE and Unigram are");
}

/* ---- The file ------------------------------------------------------------------------------------------ */

static zr_result read_root(struct reader *reader, json_t *root)
{
    zr_tokenizer *out = reader->out;
    struct steps steps[] = {{reader, &out->normalizers, "normalizers", read_normalizer},
                            {reader, &out->splitters, "pretokenizers", read_splitter},
                            {reader, &out->decoders, "decoders", read_decoder}};
    static const char *const keys[] = {"normalizer", "pre_tokenizer", "decoder"};
    struct zr_text_steps none = {.count = 0};
    struct steps post = {reader, &none, "processors", read_post_processor};
    json_t *added = json_object_get(root, "added_tokens");
    zr_result result = check_keys(reader, "", root,
                                  "version truncation padding added_tokens normalizer pre_tokenizer "
                                  "post_processor decoder model");
    for (unsigned i = 0; i < sizeof keys / sizeof *keys && !result; i++)
        result = read_steps(&steps[i], keys[i], json_object_get(root, keys[i]), 0);
    out->joins_with_spaces = out->decoders.count == 0 && !out->model.of_bytes;
    if (!result && out->decoders.count > 0 && reader->byte_decoder != out->model.of_bytes)
        result = refuse(reader, "decoder", "ByteLevel",
                        "requires the pre-tokenizer ByteLevel, and is required by it");
    if (!result)
        result = read_model(reader, json_object_get(root, "model"), added);
    if (!result)
        zr_word_model_complete(&out->model);
    if (!result)
        result = read_added_tokens(reader, added);
    return result ? result : read_steps(&post, "post_processor", json_object_get(root, "post_processor"), 0);
}

zr_result zr_tokenizer_read(zr_tokenizer *out, const char *path)
{
    struct reader reader = {.path = path, .out = out};
    json_t *root = NULL;
    zr_result result = zr_model_json_read(path, &root);
    if (!result)
        result = read_root(&reader, root);
    json_decref(root);
    return result;
}
