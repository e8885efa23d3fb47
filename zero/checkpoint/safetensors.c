/* safetensors.c: passes the header of a safetensors file; see safetensors.h. */
#include "zero/checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"

enum {
    ALIGN = 64,        /* alignment of the data */
    TEXT_MAX = 256,    /* maximum text of one print */
    PIECE_BYTES = 4096 /* passed to the sink at a time */
};

struct zr_safetensors_header {
    const struct zr_safetensors_sink *sink; /* NULL: only count bytes */
    uint64_t at_bytes;                      /* file offset of the end of `piece` */
    size_t piece_bytes;
    zr_result result;
    enum { BEFORE_NOTES = 0, IN_NOTE, IN_TENSORS } where;
    char piece[PIECE_BYTES];
};

/* ---- Bytes --------------------------------------------------------------------------------------------- */

static void flush(struct zr_safetensors_header *header)
{
    if (header->sink && header->result == ZR_OK)
        header->result = header->sink->put(header->sink->whose, header->at_bytes - header->piece_bytes,
                                           header->piece, header->piece_bytes);
    header->piece_bytes = 0;
}

static void put(struct zr_safetensors_header *header, const char *data, size_t bytes)
{
    for (size_t done = 0, part; done < bytes; done += part) {
        size_t left = bytes - done, room = PIECE_BYTES - header->piece_bytes;
        part = left < room ? left : room;
        memcpy(header->piece + header->piece_bytes, data + done, part);
        header->piece_bytes += part;
        header->at_bytes += part;
        if (header->piece_bytes == PIECE_BYTES)
            flush(header);
    }
}

static void put_text(struct zr_safetensors_header *header, const char *words)
{
    put(header, words, strlen(words));
}

static void print_list(struct zr_safetensors_header *header, const char *format, va_list list)
{
    char words[TEXT_MAX];
    int length = vsnprintf(words, sizeof words, format, list);
    zr_assert(length >= 0 && (size_t)length < sizeof words);
    put(header, words, (size_t)length);
}

static void print(struct zr_safetensors_header *header, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void print(struct zr_safetensors_header *header, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    print_list(header, format, list);
    va_end(list);
}

/* ---- Contents ------------------------------------------------------------------------------------------ */

void zr_safetensors_note(struct zr_safetensors_header *header, const char *key, const char *format, ...)
{
    va_list list;
    zr_assert(header->where != IN_TENSORS);
    put_text(header, header->where == BEFORE_NOTES ? "{\"__metadata__\":{\"" : "\",\"");
    put_text(header, key);
    put_text(header, "\":\"");
    header->where = IN_NOTE;
    va_start(list, format);
    print_list(header, format, list);
    va_end(list);
}

uint64_t zr_safetensors_at(const struct zr_safetensors_header *header)
{
    return header->at_bytes;
}

static void end_notes(struct zr_safetensors_header *header)
{
    zr_assert(header->where != BEFORE_NOTES); /* every file has at least one note */
    if (header->where == IN_NOTE)
        put_text(header, "\"}");
    header->where = IN_TENSORS;
}

void zr_safetensors_tensor(struct zr_safetensors_header *header, const struct zr_safetensors_entry *entry)
{
    /* Each byte of the name may become six, such as \u0001. */
    char name[6 * ZR_SAFETENSORS_NAME_MAX + 3];
    uint64_t words = entry->rows * (entry->columns ? entry->columns : 1) * (entry->integers ? 2 : 1);
    struct zr_text text;

    zr_assert(entry->name_bytes <= ZR_SAFETENSORS_NAME_MAX);
    end_notes(header);
    zr_text_start(&text, NULL, name, sizeof name);
    zr_text_json_string(&text, entry->name, entry->name_bytes);
    zr_assert(text.result == ZR_OK);
    put_text(header, ",");
    put(header, name, text.used_bytes);
    print(header, ":{\"dtype\":\"%s\",\"shape\":[%" PRIu64, entry->integers ? "I64" : "F32", entry->rows);
    if (entry->columns > 0)
        print(header, ",%" PRIu64, entry->columns);
    print(header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", entry->first * sizeof(float),
          (entry->first + words) * sizeof(float));
}

/* ---- A pass -------------------------------------------------------------------------------------------- */

static zr_result pass(struct zr_safetensors_header *header, const struct zr_safetensors_contents *contents,
                      uint64_t data_at_bytes)
{
    static const char spaces[] = "                                                               ";
    uint64_t length = data_at_bytes - sizeof length;

    _Static_assert(sizeof spaces == ALIGN, "one less than the alignment");
    put(header, (const char *)&length, sizeof length);
    contents->say(header, contents->whose);
    end_notes(header);
    put_text(header, "}");
    put(header, spaces, (ALIGN - header->at_bytes % ALIGN) % ALIGN);
    flush(header);
    return header->result;
}

uint64_t zr_safetensors_data_at(const struct zr_safetensors_contents *contents)
{
    struct zr_safetensors_header header = {.result = ZR_OK};
    pass(&header, contents, sizeof(uint64_t));
    return header.at_bytes;
}

zr_result zr_safetensors_put(const struct zr_safetensors_contents *contents, uint64_t data_at_bytes,
                             const struct zr_safetensors_sink *sink)
{
    struct zr_safetensors_header header = {.sink = sink};
    zr_result result = pass(&header, contents, data_at_bytes);
    zr_assert(result != ZR_OK || header.at_bytes == data_at_bytes);
    return result;
}

zr_result zr_safetensors_write(void *whose, uint64_t at_bytes, const char *data, size_t bytes)
{
    return zr_file_write_at(whose, at_bytes, data, bytes);
}
