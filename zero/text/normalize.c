/* normalize.c: the normalizers of steps.h. utf8proc has the tables of Unicode. */
#define _GNU_SOURCE
#include "zero/text/steps.h"

#include <utf8proc.h>

#include "alloc/base/error.h"

bool zr_is_white_space(int32_t code)
{
    return (code >= '\t' && code <= '\r') || code == ' ' || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
           code == 0x205f || code == 0x3000;
}

size_t zr_leading_space(const char *text, size_t bytes)
{
    size_t at = 0;
    int32_t code;
    for (utf8proc_ssize_t width; at < bytes; at += (size_t)width) {
        width = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &code);
        if (width <= 0 || !zr_is_white_space(code))
            break;
    }
    return at;
}

size_t zr_trailing_space(const char *text, size_t bytes)
{
    size_t end = bytes;
    int32_t code;
    for (size_t at = end; at > 0; end = at) {
        do
            at--;
        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
        if (utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(end - at), &code) <= 0 ||
            !zr_is_white_space(code))
            break;
    }
    return bytes - end;
}

/* ---- Normal forms -------------------------------------------------------------------------------------- */

static const utf8proc_option_t forms[] = {
    [ZR_FORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [ZR_FORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [ZR_FORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [ZR_FORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};

/* Normalizes a run that starts with at most one ASCII character. */
static zr_result normalize_run(const struct zr_text_step *step, struct zr_step_scratch *scratch,
                               const char *text, size_t bytes, struct zr_growing *out)
{
    struct zr_growing *codes = &scratch->code_points;
    utf8proc_ssize_t count = 0, room = (utf8proc_ssize_t)bytes;
    for (unsigned attempt = 0; attempt < 2; attempt++, room = count) {
        codes->used_bytes = 0;
        /* utf8proc_reencode() writes a zero behind the text. */
        if (!zr_growing_reserve(codes, ((size_t)room + 1) * sizeof(int32_t)))
            return ZR_ERR_HOST_MEMORY;
        count = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes,
                                   (int32_t *)(void *)codes->data, room, forms[step->form]);
        if (count < 0 || count <= room)
            break;
    }
    if (count >= 0)
        count = utf8proc_reencode((int32_t *)(void *)codes->data, count, forms[step->form]);
    if (count < 0)
        return zr_fail(ZR_ERR_FORMAT, "utf8proc: %s", utf8proc_errmsg(count));
    return zr_growing_add(out, codes->data, (size_t)count) ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

/* ASCII is in every normal form, and composes with what follows it only. */
static zr_result normal_form(const struct zr_text_step *step, struct zr_step_scratch *scratch,
                             const char *text, size_t bytes, struct zr_growing *out)
{
    zr_result result = ZR_OK;
    for (size_t at = 0, end; at < bytes && !result; at = end) {
        size_t other = at;
        while (other < bytes && (unsigned char)text[other] < 0x80)
            other++;
        size_t start = other > at && other < bytes ? other - 1 : other;
        for (end = other; end < bytes && (unsigned char)text[end] >= 0x80;)
            end++;
        if (!zr_growing_add(out, text + at, start - at))
            return ZR_ERR_HOST_MEMORY;
        if (end > other)
            result = normalize_run(step, scratch, text + start, end - start, out);
    }
    return result;
}

/* ---- The other steps ----------------------------------------------------------------------------------- */

bool zr_replace_text(const struct zr_text_step *step, const char *text, size_t bytes, struct zr_growing *out)
{
    size_t from_bytes = strlen(step->from), to_bytes = strlen(step->to);
    const char *end = text + bytes, *found;
    while ((found = memmem(text, (size_t)(end - text), step->from, from_bytes))) {
        if (!zr_growing_add(out, text, (size_t)(found - text)) || !zr_growing_add(out, step->to, to_bytes))
            return false;
        text = found + from_bytes;
    }
    return zr_growing_add(out, text, (size_t)(end - text));
}

static zr_result replace_pattern(const struct zr_text_step *step, struct zr_step_scratch *scratch,
                                 const char *text, size_t bytes, struct zr_growing *out)
{
    struct zr_text_span found = {0, 0};
    zr_result result = ZR_OK;
    for (size_t at = 0; at < bytes && !result; at = found.to) {
        result = zr_pattern_next(&step->pattern, scratch->match, text, bytes, &found);
        if (!result && (!zr_growing_add(out, text + at, found.from - at) ||
                        (found.to > found.from && !zr_growing_add(out, step->to, strlen(step->to)))))
            result = ZR_ERR_HOST_MEMORY;
    }
    return result;
}

static zr_result run_step(const struct zr_text_step *step, struct zr_step_scratch *scratch, const char *text,
                          size_t bytes, struct zr_growing *out)
{
    bool good = true;
    switch (step->kind) {
    case ZR_STEP_NORMAL_FORM:
        return normal_form(step, scratch, text, bytes, out);
    case ZR_STEP_REPLACE_PATTERN:
        return replace_pattern(step, scratch, text, bytes, out);
    case ZR_STEP_CHARSMAP:
        return zr_charsmap_apply(step->charsmap, text, bytes, out);
    case ZR_STEP_REPLACE:
        good = zr_replace_text(step, text, bytes, out);
        break;
    case ZR_STEP_PREPEND:
        good = bytes == 0 ||
               (zr_growing_add(out, step->to, strlen(step->to)) && zr_growing_add(out, text, bytes));
        break;
    default: {
        size_t start = step->left ? zr_leading_space(text, bytes) : 0;
        size_t stop = step->right ? zr_trailing_space(text + start, bytes - start) : 0;
        good = zr_growing_add(out, text + start, bytes - start - stop);
    }
    }
    return good ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

zr_result zr_normalize(const struct zr_text_steps *steps, struct zr_step_scratch *scratch, const char **text,
                       size_t *bytes)
{
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < steps->count && !result; i++) {
        struct zr_growing *out = &scratch->texts[i % 2];
        out->used_bytes = 0;
        result = run_step(&steps->step[i], scratch, *text, *bytes, out);
        *text = out->data ? out->data : "";
        *bytes = out->used_bytes;
    }
    return result;
}

void zr_steps_end(struct zr_text_steps *steps)
{
    for (unsigned i = 0; i < steps->count; i++) {
        zr_pattern_free(&steps->step[i].pattern);
        zr_charsmap_destroy(steps->step[i].charsmap);
    }
}
