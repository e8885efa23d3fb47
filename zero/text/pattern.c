/* pattern.c: see pattern.h. Oniguruma and PCRE2 differ in \s (U+180E), \w, \h, \v, $ and in sets of classes;
 * the translation writes out the first two, refuses the others, and compiles with PCRE2_MULTILINE. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "zero/text/pattern.h"

#include <pcre2.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/text/growing.h"

#define WHITE_SPACE                                                                                          \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"

static void *take(PCRE2_SIZE bytes, void *unused)
{
    (void)unused;
    return zr_heap_alloc(bytes);
}

static void give(void *taken, void *unused)
{
    (void)unused;
    zr_heap_free(taken);
}

/* ---- Translation --------------------------------------------------------------------------------------- */

static bool add_text(struct zr_growing *out, const char *text)
{
    return zr_growing_add(out, text, strlen(text));
}

/* Translates the escape at `at` (its backslash). Returns the bytes read; 0: it is refused. */
static size_t translate_escape(struct zr_growing *out, const char *at, bool in_class)
{
    const char *set = at[1] == 's' || at[1] == 'S' ? WHITE_SPACE : WORD;
    switch (at[1]) {
    case 's':
    case 'w':
        return (in_class || add_text(out, "[")) && add_text(out, set) && (in_class || add_text(out, "]")) ? 2
                                                                                                          : 0;
    case 'S':
    case 'W':
        return !in_class && add_text(out, "[^") && add_text(out, set) && add_text(out, "]") ? 2 : 0;
    case 'u':
        if (strspn(at + 2, "0123456789abcdefABCDEF") < 4)
            return 0;
        return add_text(out, "\\x{") && zr_growing_add(out, at + 2, 4) && add_text(out, "}") ? 6 : 0;
    case '\0':
        return 0;
    default:
        return strchr("pPdDrntfxe\\^$.|?*+()[]{}-/'\"#&~!@%=:;<>, _`", at[1]) && zr_growing_add(out, at, 2)
                   ? 2
                   : 0;
    }
}

/* Bytes of a group's start "(?..." that means the same in both; 0: it is refused. */
static size_t group_bytes(const char *at)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"};
    if (at[1] != '?')
        return at[1] == '*' ? 0 : 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(at, known[i], strlen(known[i])) == 0)
            return strlen(known[i]);
    return 0;
}

/* False: *at is where a refused construct starts, or memory is lacking. */
static bool translate(struct zr_growing *out, const char **at)
{
    bool in_class = false;
    while (**at) {
        const char *now = *at;
        size_t bytes = 1;
        if (*now == '\\') {
            bytes = translate_escape(out, now, in_class);
        } else {
            if (!in_class && *now == '(')
                bytes = group_bytes(now);
            else if (!in_class && *now == '[')
                bytes = strncmp(now, "[]", 2) == 0 || strncmp(now, "[^]", 3) == 0 ? 0 : now[1] == '^' ? 2 : 1;
            else if (in_class && (*now == '[' || (*now == '&' && now[1] == '&')))
                bytes = 0;
            in_class = in_class ? *now != ']' : *now == '[';
            if (bytes > 0 && !zr_growing_add(out, now, bytes))
                bytes = 0;
        }
        if (bytes == 0)
            return false;
        *at = now + bytes;
    }
    return zr_growing_add(out, "", 1);
}

/* ---- Compilation --------------------------------------------------------------------------------------- */

static zr_result compile(struct zr_pattern *out, const char *place, const char *expression)
{
    int error = 0;
    PCRE2_SIZE offset = 0;
    uint32_t empty = 0;
    PCRE2_UCHAR words[128] = "";
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(context, 50);
        out->code = pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                  &offset, context);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    if (!context)
        return ZR_ERR_HOST_MEMORY;
    if (!out->code) {
        pcre2_get_error_message(error, words, sizeof words);
        return zr_fail(ZR_ERR_FORMAT, "%s: PCRE2 refuses the pattern: %s", place, (const char *)words);
    }
    pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE); /* without it, matching is slower */
    pcre2_pattern_info(out->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty)
        return zr_fail(ZR_ERR_FORMAT, "%s: a pattern that matches the empty text is not supported", place);
    return ZR_OK;
}

zr_result zr_pattern_compile(struct zr_pattern *out, const char *place, const char *expression)
{
    struct zr_growing text = {.data = NULL};
    const char *at = expression;
    zr_result result = translate(&text, &at) ? compile(out, place, text.data)
                                             : zr_fail(ZR_ERR_FORMAT,
                                                       "%s: the pattern has a construct that is not "
                                                       "supported, at '%.20s'",
                                                       place, at);
    zr_growing_end(&text);
    if (result)
        zr_pattern_free(out);
    return result;
}

void zr_pattern_free(struct zr_pattern *pattern)
{
    pcre2_code_free(pattern->code);
    pattern->code = NULL;
}

/* ---- Matching ------------------------------------------------------------------------------------------ */

pcre2_match_data *zr_pattern_scratch(void)
{
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    pcre2_match_data *scratch = memory ? pcre2_match_data_create(1, memory) : NULL;
    pcre2_general_context_free(memory);
    return scratch;
}

void zr_pattern_scratch_free(pcre2_match_data *scratch)
{
    pcre2_match_data_free(scratch);
}

zr_result zr_pattern_next(const struct zr_pattern *pattern, pcre2_match_data *scratch, const char *text,
                          size_t bytes, struct zr_text_span *found)
{
    int count =
        pcre2_match(pattern->code, (PCRE2_SPTR)text, bytes, found->to, PCRE2_NO_UTF_CHECK, scratch, NULL);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT)
        count = pcre2_match(pattern->code, (PCRE2_SPTR)text, bytes, found->to,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch, NULL);
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(scratch);
    *found = count < 0 ? (struct zr_text_span){bytes, bytes} : (struct zr_text_span){ends[0], ends[1]};
    if (count >= 0 && ends[1] <= ends[0]) /* \K is refused; lookarounds alone match nothing */
        *found = (struct zr_text_span){bytes, bytes};
    if (count == PCRE2_ERROR_NOMEMORY)
        return ZR_ERR_HOST_MEMORY;
    return count >= 0 || count == PCRE2_ERROR_NOMATCH
               ? ZR_OK
               : zr_fail(ZR_ERR_FORMAT, "the tokenizer's pattern exceeds PCRE2's limits in this text");
}
