/* sample.c: samples one token at a time; the window slides when the text exceeds the model's context. */
#define _GNU_SOURCE
#include "zero/train/loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sort.h"
#include "alloc/heap/heap.h"
#include "zero/train/batch.h"
#include "zero/train/texts.h"

struct choice {
    float logit;
    int32_t token;
    double weight;
};

/* A number in [0, 1): draw `index` of `seed`. */
static double uniform(uint64_t seed, uint64_t index)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + index + UINT64_C(0x5851f42d4c957f2d);
    for (int round = 0; round < 2; round++) {
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        x ^= x >> 31;
    }
    return (double)(x >> 11) * 0x1p-53;
}

/* Likeliest first; equal logits by token number. */
static bool likelier(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    return x->logit > y->logit || (x->logit == y->logit && x->token < y->token);
}

/* The likeliest logit has weight 1, also if it is infinite: then only its equals are drawn. */
static double weight_of(float logit, float likeliest, float temperature)
{
    return logit < likeliest ? exp(((double)logit - (double)likeliest) / (double)temperature) : 1;
}

/* The tokens from which the next one is drawn, with their weights. Returns their number; 0: there is none. */
static size_t find_choices(const struct zr_sample_options *options, const float *logits,
                           struct choice *choices)
{
    size_t count = 0, kept = 0;
    double sum = 0, reached = 0;
    for (size_t token = 0; token < options->shape.vocabulary; token++)
        /* A row of a padded vocabulary has no text. */
        if (logits[token] > -INFINITY &&
            (!options->tokenizer || zr_tokenizer_has(options->tokenizer, (int32_t)token)))
            choices[count++] = (struct choice){logits[token], (int32_t)token, 1};
    zr_sort_in_place(&(struct zr_sort_records){choices, count, sizeof *choices, likelier});
    if (options->temperature <= 0 || count == 0)
        return count > 0;
    if (options->top_k && count > options->top_k)
        count = options->top_k;
    for (size_t i = 0; i < count; i++)
        sum += choices[i].weight = weight_of(choices[i].logit, choices[0].logit, options->temperature);
    if (options->top_p >= 1)
        return count;
    while (kept < count && reached < (double)options->top_p * sum)
        reached += choices[kept++].weight;
    return kept;
}

/* ZR_ERR_CORRUPT: a logit is not a number, or no token can be drawn. */
static zr_result choose(const struct zr_sample_options *options, const float *logits, struct choice *choices,
                        double random, int32_t *out)
{
    size_t count = find_choices(options, logits, choices), bad = 0;
    double sum = 0;
    while (bad < options->shape.vocabulary && !isnan(logits[bad]))
        bad++;
    if (bad < options->shape.vocabulary)
        return zr_fail(ZR_ERR_CORRUPT,
                       "the model's logit of token %zu is not a number; its parameters are damaged, "
                       "or its training diverged",
                       bad);
    if (count == 0)
        return zr_fail(ZR_ERR_CORRUPT, "the model gives no token of the text a probability");
    for (size_t i = 0; i < count; i++)
        sum += choices[i].weight;
    for (size_t i = 0; i < count; i++) {
        random -= choices[i].weight / sum;
        *out = choices[i].token;
        if (random < 0)
            break;
    }
    return ZR_OK;
}

/* ---- The prompt ---------------------------------------------------------------------------------------- */

/* The next token of the prompt; false at its end. */
static bool prompt_token(const struct zr_sample_options *options, const char **at, int32_t *token)
{
    if (options->bytes) {
        if (!**at)
            return false;
        *token = (unsigned char)*(*at)++;
        return true;
    }
    *at += strspn(*at, " ,\t\n");
    if (!**at)
        return false;
    char *end;
    unsigned long number = strtoul(*at, &end, 10);
    if (end == *at || number >= options->shape.vocabulary) {
        *at = "";
        return false;
    }
    *at = end;
    *token = (int32_t)number;
    return true;
}

/* The end of the text: at most as many tokens as the model reads. */
struct window {
    int32_t *tokens;
    size_t count, capacity;
};

static void window_push(struct window *window, int32_t token)
{
    zr_assert(window->capacity > 0);
    if (window->count == window->capacity) {
        window->count--;
        memmove(window->tokens, window->tokens + 1, window->count * sizeof *window->tokens);
    }
    window->tokens[window->count++] = token;
}

/* ---- Output -------------------------------------------------------------------------------------------- */

/* The tokens of the text, and its output. Bytes are held back until they form a UTF-8 character. */
struct shown {
    const struct zr_sample_options *options;
    struct zr_text *out;
    unsigned char held[4];
    size_t held_count;
    struct zr_growing tokens;
    size_t hidden, prompt; /* tokens in front of the text, and with those of the prompt */
};

static size_t utf8_wanted(unsigned char first)
{
    return first >= 0xc2 && first < 0xe0   ? 2
           : first >= 0xe0 && first < 0xf0 ? 3
           : first >= 0xf0 && first < 0xf5 ? 4
                                           : 1;
}

static void show_escaped(struct shown *shown)
{
    for (size_t i = 0; i < shown->held_count; i++)
        zr_text_print(shown->out, "\\x%02x", shown->held[i]);
    shown->held_count = 0;
}

/* Whether a sequence is one that Unicode forbids, or a C1 control, which a terminal would execute. */
static bool is_forbidden(const unsigned char *s)
{
    return (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
           (s[0] == 0xf4 && s[1] >= 0x90) || (s[0] == 0xc2 && s[1] < 0xa0);
}

static void show_byte(struct shown *shown, unsigned char byte)
{
    if (shown->held_count > 0 && (byte & 0xc0) != 0x80)
        show_escaped(shown);
    shown->held[shown->held_count++] = byte;
    unsigned char first = shown->held[0];
    if (first < 0x80) {
        if ((first >= 32 && first < 127) || first == '\n' || first == '\t') {
            zr_text_put(shown->out, (const char *)shown->held, 1);
            shown->held_count = 0;
        } else {
            show_escaped(shown);
        }
        return;
    }
    size_t wanted = utf8_wanted(first);
    if (wanted == 1 || (shown->held_count == wanted && is_forbidden(shown->held))) {
        show_escaped(shown);
    } else if (shown->held_count == wanted) {
        zr_text_put(shown->out, (const char *)shown->held, wanted);
        shown->held_count = 0;
    }
}

static size_t tokens_count(const struct shown *shown)
{
    return shown->tokens.used_bytes / sizeof(int32_t);
}

static const int32_t *tokens_of(const struct shown *shown)
{
    return (const int32_t *)(const void *)shown->tokens.data;
}

static zr_result out_of_memory(size_t tokens)
{
    return zr_fail(ZR_ERR_HOST_MEMORY, "no memory for a text of %zu tokens", tokens);
}

/* Appends the text of tokens first .. until - 1. */
static zr_result text_of(const struct shown *shown, size_t first, size_t until, struct zr_growing *out)
{
    if (until <= first)
        return ZR_OK;
    if (shown->options->tokenizer)
        return zr_decode(shown->options->tokenizer, tokens_of(shown) + first, until - first, out);
    for (; first < until; first++) {
        char byte = (char)tokens_of(shown)[first];
        if (!zr_growing_add(out, &byte, 1))
            return out_of_memory(until);
    }
    return ZR_OK;
}

/* Whether the drawn text has the end that --stop names. Only the last tokens are searched: an earlier end
 * would have ended the text. */
static zr_result find_stop(const struct shown *shown, bool *out)
{
    enum { EMPTY_TOKENS = 8 }; /* tokens without text among them */
    const char *stop = shown->options->stop;
    size_t count = tokens_count(shown), length = strlen(stop), last = length + EMPTY_TOKENS;
    struct zr_growing text = {.data = NULL};
    zr_result result =
        text_of(shown, count - shown->prompt > last ? count - last : shown->prompt, count, &text);
    *out = result == ZR_OK && text.used_bytes > 0 && memmem(text.data, text.used_bytes, stop, length);
    zr_growing_end(&text);
    return result;
}

static zr_result show_text(struct shown *shown)
{
    const char *stop = shown->options->stop;
    struct zr_growing text = {.data = NULL}, prompt = {.data = NULL};
    zr_result result = text_of(shown, shown->hidden, tokens_count(shown), &text);
    if (result == ZR_OK && stop)
        result = text_of(shown, shown->hidden, shown->prompt, &prompt);
    size_t from = prompt.used_bytes < text.used_bytes ? prompt.used_bytes : text.used_bytes;
    const char *end = stop && from < text.used_bytes
                          ? memmem(text.data + from, text.used_bytes - from, stop, strlen(stop))
                          : NULL;
    text.used_bytes = end ? (size_t)(end - text.data) : text.used_bytes;
    for (size_t i = 0; i < text.used_bytes && result == ZR_OK; i++)
        show_byte(shown, (unsigned char)text.data[i]);
    show_escaped(shown);
    zr_growing_end(&prompt);
    zr_growing_end(&text);
    return result;
}

static zr_result show(struct shown *shown)
{
    if (shown->options->tokenizer || shown->options->bytes)
        return show_text(shown);
    for (size_t i = shown->hidden; i < tokens_count(shown); i++)
        zr_text_print(shown->out, "%d ", (int)tokens_of(shown)[i]);
    return ZR_OK;
}

/* ---- The text ------------------------------------------------------------------------------------------ */

static zr_result add(struct shown *shown, struct window *window, int32_t token)
{
    window_push(window, token);
    return zr_growing_add_token(&shown->tokens, token) ? ZR_OK : out_of_memory(tokens_count(shown));
}

/* Reads the prompt into both. */
static zr_result read_prompt(struct shown *shown, struct window *window)
{
    const struct zr_sample_options *options = shown->options;
    const char *prompt = options->prompt;
    zr_result result = ZR_OK;
    int32_t token;
    if (options->tokenizer)
        result = zr_text_tokens(
            &(struct zr_text_request){options->tokenizer, options->shape.vocabulary, prompt, strlen(prompt)},
            &shown->tokens, &shown->hidden);
    for (size_t i = 0; i < tokens_count(shown) && result == ZR_OK; i++)
        window_push(window, tokens_of(shown)[i]);
    while (result == ZR_OK && !options->tokenizer && prompt_token(options, &prompt, &token))
        result = add(shown, window, token);
    shown->prompt = tokens_count(shown);
    if (result == ZR_OK && window->count == 0)
        window_push(window, options->bytes ? '\n' : 0); /* a start token, not shown */
    return result;
}

/* The logits after the window's last token. */
static zr_result ask(const struct zr_sample_options *options, struct window *window, float *logits)
{
    const struct zr_batch batch = {.trainer = options->trainer, .shape = &options->shape};
    /* Later positions do not affect earlier ones, but must be valid tokens. */
    memset(window->tokens + window->count, 0, (window->capacity - window->count) * sizeof *window->tokens);
    zr_batch_put(&batch, window->tokens, NULL, 1);
    return zr_trainer_answer(options->trainer, zr_shape_own_sequence(&options->shape),
                             zr_batch_row(&batch, window->count - 1), logits);
}

zr_result zr_sample_make(const struct zr_sample_options *options, struct zr_text *out)
{
    struct window window = {.tokens = zr_heap_zalloc(options->shape.sequence, sizeof(int32_t)),
                            .capacity = options->shape.sequence};
    struct shown shown = {.out = out, .options = options};
    float *logits = zr_heap_zalloc(options->shape.vocabulary, sizeof *logits);
    struct choice *choices = zr_heap_zalloc(options->shape.vocabulary, sizeof *choices);
    zr_result result = window.tokens && logits && choices ? ZR_OK : ZR_ERR_HOST_MEMORY;
    bool ends = false;

    if (result == ZR_OK)
        result = read_prompt(&shown, &window);
    for (size_t i = 0; i < options->count && result == ZR_OK && !ends; i++) {
        enum zr_request_kind request = ZR_REQUEST_NONE;
        int32_t token = 0;
        result = options->comm ? zr_local_request(options->comm, &request) : ZR_OK;
        if (result || request == ZR_REQUEST_SAVE_AND_END)
            break;
        result = ask(options, &window, logits);
        if (result == ZR_OK)
            result = choose(options, logits, choices, uniform(options->seed, i), &token);
        if (result != ZR_OK || (options->tokenizer && token == options->end))
            break;
        result = add(&shown, &window, token);
        if (result == ZR_OK && options->stop)
            result = find_stop(&shown, &ends);
    }
    zr_result shows = show(&shown);
    result = result ? result : shows;
    zr_growing_end(&shown.tokens);
    zr_heap_free(choices);
    zr_heap_free(window.tokens);
    zr_heap_free(logits);
    return result ? result : out->result;
}
