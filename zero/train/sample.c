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

/* The tokens from which the next one is drawn, with their weights. Returns their number; 0: all are NaN. */
static size_t find_choices(const struct zr_sample_options *options, const float *logits,
                           struct choice *choices)
{
    size_t count = 0, kept = 0;
    double sum = 0, reached = 0;
    for (size_t token = 0; token < options->shape.vocabulary; token++)
        /* NaN is never chosen, nor a row of a padded vocabulary, which has no text. */
        if (logits[token] > -INFINITY &&
            (!options->tokenizer || zr_tokenizer_has(options->tokenizer, (int32_t)token)))
            choices[count++] = (struct choice){logits[token], (int32_t)token, 1};
    zr_sort_in_place(&(struct zr_sort_records){choices, count, sizeof *choices, likelier});
    if (options->temperature <= 0 || count == 0)
        return count > 0;
    if (options->top_k && count > options->top_k)
        count = options->top_k;
    for (size_t i = 0; i < count; i++)
        sum += choices[i].weight =
            exp(((double)choices[i].logit - (double)choices[0].logit) / (double)options->temperature);
    if (options->top_p >= 1)
        return count;
    while (kept < count && reached < (double)options->top_p * sum)
        reached += choices[kept++].weight;
    return kept;
}

static int32_t choose(const struct zr_sample_options *options, const float *logits, struct choice *choices,
                      double random)
{
    size_t count = find_choices(options, logits, choices);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += choices[i].weight;
    for (size_t i = 0; i < count; i++) {
        random -= choices[i].weight / sum;
        if (random < 0)
            return choices[i].token;
    }
    return count ? choices[count - 1].token : 0;
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

/* Output of the text. Bytes are held back until they form a UTF-8 character. */
struct shown {
    struct zr_text *out;
    unsigned char held[4];
    size_t held_count;
    bool bytes;
    const zr_tokenizer *tokenizer; /* tokens are shown at the end, as one text */
    struct zr_growing tokens;
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

/* Shows the tokens of a tokenizer, without the first `hidden` ones. */
static zr_result show_tokens(struct shown *shown, size_t hidden)
{
    struct zr_growing text = {.data = NULL};
    size_t count = shown->tokens.used_bytes / sizeof(int32_t);
    hidden = hidden < count ? hidden : count;
    zr_result result =
        count > 0 ? zr_decode(shown->tokenizer, (const int32_t *)(const void *)shown->tokens.data + hidden,
                              count - hidden, &text)
                  : ZR_OK;
    for (size_t i = 0; i < text.used_bytes && !result; i++)
        show_byte(shown, (unsigned char)text.data[i]);
    zr_growing_end(&text);
    zr_growing_end(&shown->tokens);
    return result;
}

static void show(struct shown *shown, int32_t token)
{
    if (shown->tokenizer)
        zr_growing_add_token(&shown->tokens, token); /* without memory, a token is missing from the text */
    else if (shown->bytes)
        show_byte(shown, (unsigned char)token);
    else
        zr_text_print(shown->out, "%d ", (int)token);
}

/* Reads the prompt of a tokenizer, and counts the tokens in front of its text. */
static zr_result encode_prompt(const struct zr_sample_options *options, struct window *window,
                               struct shown *shown, size_t *hidden)
{
    struct zr_encoder *encoder = NULL;
    struct zr_growing tokens = {.data = NULL};
    zr_result result = zr_encoder_open(&encoder, options->tokenizer);
    if (!result)
        result = zr_encode(encoder, "", 0, ZR_ENCODE_BEGIN, &tokens);
    *hidden = tokens.used_bytes / sizeof(int32_t);
    if (!result)
        result = zr_encode(encoder, options->prompt, strlen(options->prompt), ZR_ENCODE_PLAIN, &tokens);
    for (size_t i = 0; i < tokens.used_bytes / sizeof(int32_t) && !result; i++) {
        int32_t token = ((const int32_t *)(const void *)tokens.data)[i];
        if ((size_t)token >= options->shape.vocabulary)
            result =
                zr_fail(ZR_ERR_FORMAT, "the tokenizer's token %d is beyond the model's vocabulary of %zu",
                        (int)token, options->shape.vocabulary);
        window_push(window, token);
        show(shown, token);
    }
    zr_growing_end(&tokens);
    zr_encoder_close(encoder);
    return result;
}

zr_result zr_sample_make(const struct zr_sample_options *options, struct zr_text *out)
{
    const struct zr_batch batch = {.trainer = options->trainer, .shape = &options->shape};
    struct window window = {.tokens = zr_heap_zalloc(options->shape.sequence, sizeof(int32_t)),
                            .capacity = options->shape.sequence};
    struct shown shown = {.out = out, .bytes = options->bytes, .tokenizer = options->tokenizer};
    size_t hidden = 0;
    const char *prompt = options->prompt;
    float *logits = zr_heap_zalloc(options->shape.vocabulary, sizeof *logits);
    struct choice *choices = zr_heap_zalloc(options->shape.vocabulary, sizeof *choices);
    int32_t token;
    zr_result result = logits && choices ? ZR_OK : ZR_ERR_HOST_MEMORY;

    if (!window.tokens)
        result = ZR_ERR_HOST_MEMORY;
    if (result == ZR_OK && options->tokenizer)
        result = encode_prompt(options, &window, &shown, &hidden);
    while (result == ZR_OK && !options->tokenizer && prompt_token(options, &prompt, &token)) {
        window_push(&window, token);
        show(&shown, token);
    }
    if (result == ZR_OK && window.count == 0)
        window_push(&window, options->bytes ? '\n' : 0); /* a start token, not shown */
    for (size_t i = 0; i < options->count && !result; i++) {
        enum zr_request_kind request = ZR_REQUEST_NONE;
        result = options->comm ? zr_local_request(options->comm, &request) : ZR_OK;
        if (result || request == ZR_REQUEST_SAVE_AND_END)
            break;
        /* Later positions do not affect earlier ones, but must be valid tokens. */
        memset(window.tokens + window.count, 0, (window.capacity - window.count) * sizeof *window.tokens);
        zr_batch_give(&batch, window.tokens);
        result = zr_trainer_answer(options->trainer, zr_shape_own_sequence(&options->shape),
                                   zr_batch_row(&batch, window.count - 1), logits);
        if (result)
            break;
        token = choose(options, logits, choices, uniform(options->seed, i));
        if (options->tokenizer && token == options->end)
            break;
        window_push(&window, token);
        show(&shown, token);
    }
    zr_result shows = options->tokenizer ? show_tokens(&shown, hidden) : ZR_OK;
    result = result ? result : shows;
    show_escaped(&shown);
    zr_heap_free(choices);
    zr_heap_free(window.tokens);
    zr_heap_free(logits);
    return result ? result : out->result;
}
