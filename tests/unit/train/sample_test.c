/* sample_test.c: the text at the end of a run. The model is a double: it gives the logits that a test wants,
 * and keeps what it was asked, so that the choice, the window and what is shown are seen one by one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "tests/support/tap.h"
#include "zero/train/loop.h"

enum { SEQUENCE = 8, VOCABULARY = 256, ROOM = 1 << 16 };

/* ---- The double ---------------------------------------------------------------------------------------- */

/* In the place of zero/step/trainer.c, which the linker then leaves out. */
static struct {
    int32_t tokens[SEQUENCE];
    void (*logits)(size_t call, size_t count, float *logits);
    size_t calls, fails_at; /* 0: never */
    bool untidy;            /* what follows the last token was not cleared */
    size_t counts[4096];
    int32_t last[4096]; /* the token before each call's answer */
    int32_t first[4096];
} model;

void *zr_trainer_input(zr_trainer *unused, unsigned input)
{
    (void)unused;
    return input == ZR_INPUT_TOKENS ? model.tokens : NULL;
}

zr_result zr_trainer_answer(zr_trainer *unused, size_t rows, size_t row, float *logits)
{
    size_t count = row + 1;
    (void)unused;
    if (++model.calls == model.fails_at)
        return zr_fail(ZR_ERR_MEMORY, "no room for logits");
    if (model.calls < 4096) {
        model.counts[model.calls] = count;
        model.first[model.calls] = model.tokens[0];
        model.last[model.calls] = model.tokens[count - 1];
    }
    for (size_t i = count; i < rows; i++)
        model.untidy |= model.tokens[i] != 0;
    model.logits(model.calls, count, logits);
    return ZR_OK;
}

/* ---- Asking for a text --------------------------------------------------------------------------------- */

static char text_room[ROOM];
static size_t text_bytes;

static struct zr_sample_options ordinary(void)
{
    return (struct zr_sample_options){.shape = {.sequence = SEQUENCE, .vocabulary = VOCABULARY},
                                      .bytes = true,
                                      .prompt = "",
                                      .top_k = 40,
                                      .top_p = 1,
                                      .seed = 1};
}

static zr_result make(const struct zr_sample_options *options)
{
    struct zr_text text;
    model.calls = 0;
    zr_text_start(&text, NULL, text_room, sizeof text_room);
    zr_result result = zr_sample_make(options, &text);
    text_bytes = text.used_bytes;
    return result;
}

static bool shows(const struct zr_sample_options *options, const char *want)
{
    bool good = make(options) == ZR_OK && strcmp(text_room, want) == 0 && text_bytes == strlen(want);
    if (!good)
        tap_note("got  \"%s\"", text_room);
    return good;
}

/* ---- The choice ---------------------------------------------------------------------------------------- */

static void alphabet(size_t call, size_t count, float *logits)
{
    (void)count;
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = -(float)i;
    logits['a' + (call - 1) % 26] = 1;
}

static void ties(size_t call, size_t count, float *logits)
{
    (void)call, (void)count;
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = i == 'x' || i == 'y' ? 5 : 0;
}

static void one_nan(size_t call, size_t count, float *logits)
{
    ties(call, count, logits);
    logits['q'] = NAN;
}

static void nothing(size_t call, size_t count, float *logits)
{
    (void)call, (void)count;
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = -INFINITY;
}

static void infinite(size_t call, size_t count, float *logits)
{
    ties(call, count, logits);
    logits['i'] = logits['j'] = INFINITY;
}

/* 60 equal ones, of which only 40 may ever come. */
static void sixty(size_t call, size_t count, float *logits)
{
    (void)call, (void)count;
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = i >= 40 && i < 100 ? 0.0f : -INFINITY;
}

static void four_to_one(size_t call, size_t count, float *logits)
{
    (void)call, (void)count;
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = i == 'A' ? logf(4) : i == 'B' ? 0 : -INFINITY;
}

static size_t count_of(char letter)
{
    size_t count = 0;
    for (size_t i = 0; i < text_bytes; i++)
        count += text_room[i] == letter;
    return count;
}

static void test_choice(void)
{
    struct zr_sample_options options = ordinary();
    options.count = 5;
    model.logits = alphabet;
    tap_ok(shows(&options, "abcde"), "temperature 0 takes the likeliest");
    model.logits = ties;
    tap_ok(shows(&options, "xxxxx"), "of equal ones the first");
    for (int draws = 0; draws < 2; draws++) {
        options.temperature = (float)draws;
        options.top_p = draws ? 0.9f : 1;
        model.logits = one_nan;
        tap_result(make(&options), ZR_ERR_CORRUPT, "a logit that is not a number");
        tap_ok(strstr(zr_last_error(), "token 113 "), "is named");
        model.logits = nothing;
        tap_result(make(&options), ZR_ERR_CORRUPT, "no token has a probability");
        model.logits = infinite;
        tap_result(make(&options), ZR_OK, "infinite logits");
        tap_is(strspn(text_room, "ij"), 5, "are the only ones that are drawn");
    }
    options.top_p = 1;

    options.temperature = 1;
    options.count = 4000;
    model.logits = sixty;
    tap_result(make(&options), ZR_OK, "4,000 tokens");
    bool inside = text_bytes == 4000;
    size_t least = SIZE_MAX, most = 0;
    for (int token = 40; token < 80; token++) {
        size_t seen = count_of((char)token);
        least = seen < least ? seen : least;
        most = seen > most ? seen : most;
    }
    for (size_t i = 0; i < text_bytes; i++)
        inside &= text_room[i] >= 40 && text_room[i] < 80;
    tap_ok(inside, "none beyond the likeliest forty");
    tap_ok(least > 50 && most < 150, "each of the forty about a hundred times (%zu to %zu)", least, most);

    options.top_k = 0;
    make(&options);
    tap_ok(count_of((char)99) > 20, "--top-k 0 draws from all sixty");
    options.top_k = 40;

    model.logits = four_to_one;
    options.top_p = 0.79f;
    make(&options);
    tap_is(count_of('A'), 4000, "--top-p 0.79 leaves the token of 0.8");
    options.top_p = 0.81f;
    make(&options);
    tap_ok(count_of('A') > 3100 && count_of('A') < 3300, "--top-p 0.81 also takes the next one");
    options.top_p = 1;
    tap_result(make(&options), ZR_OK, "two tokens, 4 to 1");
    tap_ok(count_of('A') > 3100 && count_of('A') < 3300 && count_of('A') + count_of('B') == 4000,
           "temperature 1 draws as the model says (%zu of 4,000)", count_of('A'));
    options.temperature = 0.5f;
    make(&options);
    tap_ok(count_of('A') > 3690 && count_of('A') < 3840, "temperature 0.5 squares the odds (%zu)",
           count_of('A'));
    options.temperature = 100;
    make(&options);
    tap_ok(count_of('A') > 1900 && count_of('A') < 2120, "temperature 100 evens them (%zu)", count_of('A'));
    options.temperature = 1e-30f;
    make(&options);
    tap_is(count_of('A'), 4000, "a temperature near 0 is temperature 0");
}

static void test_seed(void)
{
    static char first[ROOM];
    struct zr_sample_options options = ordinary();
    options.count = 200;
    options.temperature = 1;
    model.logits = sixty;
    make(&options);
    memcpy(first, text_room, sizeof first);
    make(&options);
    tap_ok(strcmp(first, text_room) == 0, "the same seed, the same text");
    options.count = 100;
    make(&options);
    tap_ok(strncmp(first, text_room, 100) == 0 && text_bytes == 100, "a shorter text is the start of it");
    options.seed = 2;
    make(&options);
    tap_ok(strncmp(first, text_room, 100) != 0, "another seed, another text");
}

/* ---- The window ---------------------------------------------------------------------------------------- */

static void test_window(void)
{
    struct zr_sample_options options = ordinary();
    options.count = 20;
    options.prompt = "XYZ";
    model.logits = alphabet;
    tap_ok(shows(&options, "XYZabcdefghijklmnopqrst"), "the prompt comes first");
    bool good = model.calls == 20;
    for (size_t call = 1; call <= 20; call++) {
        const char *whole = "XYZabcdefghijklmnopqrst";
        size_t before = 3 + call - 1, seen = before < SEQUENCE ? before : SEQUENCE;
        good &= model.counts[call] == seen && model.last[call] == whole[before - 1] &&
                model.first[call] == whole[before - seen];
    }
    tap_ok(good, "the model sees all that came before, at most a sequence of it");
    options.count = 1;
    options.prompt = "a prompt that is longer than the sequence";
    tap_ok(shows(&options, "a prompt that is longer than the sequencea"), "a long prompt is shown whole");
    tap_ok(model.counts[1] == SEQUENCE && model.first[1] == 's' && model.last[1] == 'e',
           "and its end is seen");
    options.prompt = "";
    tap_ok(shows(&options, "a"), "no prompt: what it starts from is not shown");
    tap_ok(model.counts[1] == 1 && model.last[1] == '\n', "a newline");
    options.shape.sequence = 1;
    options.count = 3;
    tap_ok(shows(&options, "abc") && model.counts[3] == 1 && model.last[3] == 'b', "a window of one token");
    options.stop = "gh";
    options.count = 20;
    options.shape.sequence = SEQUENCE;
    options.prompt = "xgh";
    tap_ok(shows(&options, "xghabcdef") && model.calls == 8,
           "the text ends before --stop, which the prompt may have");
    options.stop = "ghz";
    tap_ok(shows(&options, "xghabcdefghijklmnopqrst"), "not before a part of it");
    options.stop = NULL;
    options.count = 0;
    options.prompt = "only this";
    tap_ok(shows(&options, "only this") && model.calls == 0, "no tokens asked for: the prompt alone");
}

/* ---- What is shown ------------------------------------------------------------------------------------- */

static void test_bytes(void)
{
    static const struct {
        const char *prompt, *want, *words;
    } cases[] = {
        {"tab\tand\nline", "tab\tand\nline", "tabs and line ends stay"},
        {"bell\a esc\033[2J del\177", "bell\\x07 esc\\x1b[2J del\\x7f", "what a terminal acts on is escaped"},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80.", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80.",
         "UTF-8 stays"},
        {"\xc2\x9b", "\\xc2\\x9b", "a control in UTF-8 does not"},
        {"\xc3(", "\\xc3(", "a character that breaks off"},
        {"\xe2\x82", "\\xe2\\x82", "one that breaks off at the end"},
        {"\xe2\xc3\xa9", "\\xe2\xc3\xa9", "one inside another"},
        {"\x80\xbf", "\\x80\\xbf", "continuations of nothing"},
        {"\xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf", "\\xc0\\xaf \\xe0\\x80\\xaf \\xf0\\x80\\x80\\xaf",
         "overlong forms"},
        {"\xed\xa0\x80 \xf4\x90\x80\x80 \xff", "\\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80 \\xff",
         "beyond Unicode"},
    };
    struct zr_sample_options options = ordinary();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        options.prompt = cases[i].prompt;
        tap_ok(shows(&options, cases[i].want), "%s", cases[i].words);
    }
}

static void test_tokens(void)
{
    struct zr_sample_options options = ordinary();
    options.bytes = false;
    options.count = 2;
    model.logits = alphabet;
    options.prompt = "7, 11 255";
    tap_ok(shows(&options, "7 11 255 97 98 "), "tokens are numbers");
    tap_ok(model.first[1] == 7 && model.counts[1] == 3, "and the prompt's are the model's");
    options.prompt = "";
    tap_ok(shows(&options, "97 98 ") && model.last[1] == 0, "no prompt: token 0");
    options.prompt = "5 256 6";
    tap_ok(shows(&options, "5 97 98 "), "a token beyond the vocabulary ends the prompt");
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

static void test_failures(void)
{
    struct zr_sample_options options = ordinary();
    struct zr_text text;
    char small[8];
    options.count = 10;
    model.logits = alphabet;
    model.fails_at = 4;
    tap_result(make(&options), ZR_ERR_MEMORY, "a model that fails ends the text");
    tap_is(model.calls, 4, "at once");
    model.fails_at = 0;
    options.prompt = "abcdefgh\a"; /* the escape alone is longer than what is left */
    zr_text_start(&text, NULL, small, sizeof small);
    tap_result(zr_sample_make(&options, &text), ZR_ERR_INVALID,
               "no room for the text is an error, not a cut");
}

int main(void)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    size_t leaked = 1;
    tap_result(zr_backend_host_create(
                   &backend, &(struct zr_host_options){.granule_bytes = 64 << 10, .small_pages = true}),
               ZR_OK, "a backend");
    tap_result(zr_arena_create(
                   &arena,
                   &(struct zr_arena_options){.backend = backend, .name = "host", .reserve_bytes = 64 << 20}),
               ZR_OK, "an arena");
    tap_result(zr_heap_start(arena), ZR_OK, "a heap");
    test_choice();
    test_seed();
    test_window();
    test_bytes();
    test_tokens();
    test_failures();
    zr_heap_stop(&leaked);
    tap_is(leaked, 0, "nothing is left on the heap");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    return tap_done();
}
