/* charsmap.c: see steps.h. The table is untrusted: every index is checked. */
#include "zero/text/steps.h"

#include <utf8proc.h>

#include "alloc/base/error.h"

enum { GRAPHEME_BYTES = 6 };

struct zr_charsmap {
    size_t units_count, texts_bytes;
    const char *texts; /* each ends with a zero */
    uint32_t units[];
};

/* ---- Reading ------------------------------------------------------------------------------------------- */

static int base64_value(char letter)
{
    return letter >= 'A' && letter <= 'Z'   ? letter - 'A'
           : letter >= 'a' && letter <= 'z' ? letter - 'a' + 26
           : letter >= '0' && letter <= '9' ? letter - '0' + 52
           : letter == '+'                  ? 62
           : letter == '/'                  ? 63
                                            : -1;
}

/* Decodes into `out`, which has 3/4 of the length. Returns the bytes; 0: not base64. */
static size_t decode_base64(const char *text, unsigned char *out)
{
    uint32_t bits = 0;
    size_t letters = 0, bytes = 0;
    for (; base64_value(text[letters]) >= 0; letters++) {
        bits = bits << 6 | (uint32_t)base64_value(text[letters]);
        if (letters % 4 > 0)
            out[bytes++] = (unsigned char)(bits >> (6 - 2 * (letters % 4)));
    }
    return text[letters + strspn(text + letters, "=")] ? 0 : bytes;
}

static uint32_t number_at(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

zr_result zr_charsmap_create(struct zr_charsmap **out, const char *place, const char *base64)
{
    size_t room = strlen(base64) / 4 * 3 + 4;
    unsigned char *raw = zr_heap_alloc(room);
    struct zr_charsmap *charsmap = zr_heap_alloc(sizeof *charsmap + room + 1);
    size_t bytes = raw && charsmap ? decode_base64(base64, raw) : 0;
    size_t units_bytes = bytes >= 4 ? number_at(raw) : 0;
    zr_result result = raw && charsmap ? ZR_OK : ZR_ERR_HOST_MEMORY;
    *out = NULL;
    if (!result && (units_bytes < 4 || units_bytes % 4 || units_bytes > bytes - 4))
        result = zr_fail(ZR_ERR_FORMAT, "%s: precompiled_charsmap is damaged; fetch the file again", place);
    if (!result) {
        charsmap->units_count = units_bytes / 4;
        for (size_t i = 0; i < charsmap->units_count; i++)
            charsmap->units[i] = number_at(raw + 4 + 4 * i);
        char *texts = (char *)(charsmap->units + charsmap->units_count);
        charsmap->texts_bytes = bytes - 4 - units_bytes;
        memcpy(texts, raw + 4 + units_bytes, charsmap->texts_bytes);
        texts[charsmap->texts_bytes] = '\0';
        charsmap->texts = texts;
        *out = charsmap;
    } else {
        zr_heap_free(charsmap);
    }
    zr_heap_free(raw);
    return result;
}

void zr_charsmap_destroy(struct zr_charsmap *charsmap)
{
    zr_heap_free(charsmap);
}

/* ---- Looking up ---------------------------------------------------------------------------------------- */

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The replacement of the shortest entry that `text` starts with; NULL: none. */
static const char *find(const struct zr_charsmap *charsmap, const unsigned char *text, size_t bytes)
{
    size_t at = offset_of(charsmap->units[0]);
    for (size_t i = 0; i < bytes && text[i]; i++) {
        at ^= text[i];
        if (at >= charsmap->units_count || (charsmap->units[at] & 0x800000ffu) != text[i])
            return NULL;
        uint32_t unit = charsmap->units[at];
        at ^= offset_of(unit);
        if (at >= charsmap->units_count)
            return NULL;
        if (unit >> 8 & 1) {
            size_t offset = charsmap->units[at] & 0x7fffffffu;
            return offset <= charsmap->texts_bytes ? charsmap->texts + offset : NULL;
        }
    }
    return NULL;
}

/* Appends each character, or what replaces it. */
static bool add_characters(const struct zr_charsmap *charsmap, const unsigned char *text, size_t bytes,
                           struct zr_growing *out)
{
    bool good = true;
    for (size_t at = 0, width; at < bytes && good; at += width) {
        width = (size_t)utf8proc_utf8class[text[at]];
        const char *found = find(charsmap, text + at, width);
        good = found ? zr_growing_add(out, found, strlen(found)) : zr_growing_add(out, text + at, width);
    }
    return good;
}

/* Bytes of the grapheme that a text starts with. */
static size_t grapheme_bytes(const unsigned char *text, size_t bytes)
{
    int32_t code, next, state = 0;
    if (bytes == 1 || (text[0] < 0x80 && text[0] != '\r' && text[1] < 0x80))
        return 1;
    size_t at = (size_t)utf8proc_iterate(text, (utf8proc_ssize_t)bytes, &code);
    for (utf8proc_ssize_t width; at < bytes; at += (size_t)width, code = next) {
        width = utf8proc_iterate(text + at, (utf8proc_ssize_t)(bytes - at), &next);
        if (width <= 0 || utf8proc_grapheme_break_stateful(code, next, &state))
            break;
    }
    return at;
}

zr_result zr_charsmap_apply(const struct zr_charsmap *charsmap, const char *text, size_t bytes,
                            struct zr_growing *out)
{
    bool good = true;
    for (size_t at = 0, width; at < bytes && good; at += width) {
        const unsigned char *grapheme = (const unsigned char *)text + at;
        width = grapheme_bytes(grapheme, bytes - at);
        const char *found = width < GRAPHEME_BYTES ? find(charsmap, grapheme, width) : NULL;
        good = found ? zr_growing_add(out, found, strlen(found))
                     : add_characters(charsmap, grapheme, width, out);
    }
    return good ? ZR_OK : ZR_ERR_HOST_MEMORY;
}
