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
    size_t length = zr_utf8_length(s, bytes);
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
