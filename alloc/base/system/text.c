/* text.c: formatted text through the caller's buffer, the second half of file.h. Uses file.c. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"

void zr_text_start(struct zr_text *text, struct zr_file *file, char *buffer, size_t room_bytes)
{
    *text = (struct zr_text){.file = file, .buffer = buffer, .room_bytes = room_bytes};
    if (!buffer || room_bytes < 2)
        text->result =
            zr_fail(ZR_ERR_INVALID, "a text buffer of %zu bytes: at least 2 are required", room_bytes);
    else
        buffer[0] = '\0';
}

static const char *name_of(const struct zr_text *text)
{
    return text->file ? text->file->name : "text in memory";
}

/* Writes out the buffer. What could not be written is dropped: the text has failed for good. */
static zr_result drain(struct zr_text *text)
{
    if (text->file && text->used_bytes > 0 && text->result == ZR_OK) {
        text->result = zr_file_write(text->file, text->buffer, text->used_bytes);
        text->used_bytes = 0;
        text->buffer[0] = '\0';
    }
    return text->result;
}

zr_result zr_text_vprint(struct zr_text *text, const char *format, va_list list)
{
    for (int attempt = 0; text->result == ZR_OK; attempt++) {
        size_t left = text->room_bytes - text->used_bytes;
        va_list copy;
        va_copy(copy, list);
        int length = vsnprintf(text->buffer + text->used_bytes, left, format, copy);
        va_end(copy);
        if (length >= 0 && (size_t)length < left) {
            text->used_bytes += (size_t)length;
            break;
        }
        text->buffer[text->used_bytes] = '\0';
        if (length < 0 || attempt > 0 || !text->file) {
            text->result =
                zr_fail(ZR_ERR_INVALID, "%s: a print of %d bytes does not fit a buffer of %zu bytes",
                        name_of(text), length, text->room_bytes);
            break;
        }
        drain(text);
    }
    return text->result;
}

zr_result zr_text_print(struct zr_text *text, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    zr_result result = zr_text_vprint(text, format, list);
    va_end(list);
    return result;
}

zr_result zr_text_put(struct zr_text *text, const char *data, size_t bytes)
{
    while (bytes > 0 && text->result == ZR_OK) {
        size_t left = text->room_bytes - 1 - text->used_bytes;
        size_t part = bytes < left ? bytes : left;
        if (part == 0 && !text->file) {
            text->result = zr_fail(ZR_ERR_INVALID, "%s: %zu bytes more than the buffer of %zu bytes holds",
                                   name_of(text), bytes, text->room_bytes);
            break;
        }
        if (part == 0) {
            drain(text);
            continue;
        }
        memcpy(text->buffer + text->used_bytes, data, part);
        text->used_bytes += part;
        text->buffer[text->used_bytes] = '\0';
        data += part;
        bytes -= part;
    }
    return text->result;
}

/* Length of the UTF-8 sequence at `s`, 0 where there is none: overlong forms, surrogates and numbers above
 * U+10FFFF are no UTF-8. */
static size_t utf8_length(const unsigned char *s, size_t bytes)
{
    size_t length = s[0] < 0x80   ? 1
                    : s[0] < 0xc2 ? 0
                    : s[0] < 0xe0 ? 2
                    : s[0] < 0xf0 ? 3
                    : s[0] < 0xf5 ? 4
                                  : 0;
    if (length == 0 || length > bytes)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] >= 0xa0;
    bool beyond = s[0] == 0xf4 && s[1] >= 0x90;
    return length > 1 && (overlong || surrogate || beyond) ? 0 : length;
}

void zr_make_plain(char *words)
{
    unsigned char *at = (unsigned char *)words;
    for (size_t left = strlen(words), length; left > 0; at += length, left -= length) {
        length = utf8_length(at, left);
        bool control = at[0] < ' ' || at[0] == 0x7f || (at[0] == 0xc2 && length == 2 && at[1] < 0xa0);
        if (length == 0 || control) {
            length = length ? length : 1;
            memset(at, '?', length);
        }
    }
}

zr_result zr_text_put_plain(struct zr_text *text, const char *words)
{
    char piece[1024];
    size_t length = strlen(words);
    snprintf(piece, sizeof piece, "%s", words); /* longer ones are cut */
    zr_make_plain(piece);
    return zr_text_put(text, piece, length < sizeof piece ? length : sizeof piece - 1);
}

/* One character of a JSON string; returns how many bytes of the input it took. */
static size_t json_character(struct zr_text *text, const unsigned char *s, size_t bytes)
{
    static const char shorts[32] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    size_t length = utf8_length(s, bytes);
    if (length == 0) {
        zr_text_put(text, "\xef\xbf\xbd", 3);
        return 1;
    }
    if (s[0] == '"' || s[0] == '\\') {
        zr_text_put(text, "\\", 1);
    } else if (s[0] < 32 && shorts[s[0]]) {
        zr_text_put(text, (char[]){'\\', shorts[s[0]]}, 2);
        return 1;
    } else if (s[0] < 32 || s[0] == 127) {
        static const char digits[] = "0123456789abcdef";
        zr_text_put(text, (char[]){'\\', 'u', '0', '0', digits[s[0] >> 4], digits[s[0] & 15]}, 6);
        return 1;
    }
    zr_text_put(text, (const char *)s, length);
    return length;
}

zr_result zr_text_json_string(struct zr_text *text, const char *string, size_t bytes)
{
    zr_text_put(text, "\"", 1);
    for (size_t i = 0; i < bytes && text->result == ZR_OK;)
        i += json_character(text, (const unsigned char *)string + i, bytes - i);
    return zr_text_put(text, "\"", 1);
}

zr_result zr_text_flush(struct zr_text *text)
{
    return drain(text);
}
