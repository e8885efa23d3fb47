/* page_columns.c: varints, zlib (RFC 1950), base64 (RFC 4648). Uses zlib with memory of the arena. */
#include "defrag/report/page/page_columns.h"

#include <inttypes.h>

#include "alloc/base/error.h"

enum { LEVEL = 4 };

static void *give(void *arena, uInt count, uInt bytes)
{
    void *room;
    struct zr_request request = {.bytes = (uint64_t)count * bytes, .tag = ZR_TAG_OTHER};
    return zr_arena_alloc(arena, &request, &room) == ZR_OK ? room : Z_NULL;
}

static void take_back(void *arena, void *room)
{
    zr_arena_free(arena, room);
}

void zr_column_start(struct zr_column *column, const char *name, struct zr_page_columns *swap,
                     zr_arena *arena)
{
    column->name = name;
    column->result = ZR_OK;
    column->plain_bytes = column->last = 0;
    column->gathered_bytes = 0;
    column->swap = swap;
    zr_vector_init(&column->places, arena, sizeof(uint64_t));
    column->stream = (z_stream){.zalloc = give, .zfree = take_back, .opaque = arena};
    column->streaming = deflateInit(&column->stream, LEVEL) == Z_OK;
    if (!column->streaming)
        column->result = zr_fail(ZR_ERR_MEMORY, "zlib has no memory for a column of the page");
    column->stream.next_out = column->packed;
    column->stream.avail_out = ZR_COLUMN_PACKED;
}

void zr_column_end(struct zr_column *column)
{
    if (column->streaming)
        deflateEnd(&column->stream);
    column->streaming = false;
    zr_vector_end(&column->places);
}

static void swap_out_packed(struct zr_column *column)
{
    struct zr_page_columns *swap = column->swap;
    column->result = zr_vector_add(&column->places, &swap->end_bytes);
    if (column->result == ZR_OK)
        column->result = zr_file_write_at(&swap->file, swap->end_bytes, column->packed, ZR_COLUMN_PACKED);
    swap->end_bytes += ZR_COLUMN_PACKED;
    column->stream.next_out = column->packed;
    column->stream.avail_out = ZR_COLUMN_PACKED;
}

static void pack(struct zr_column *column, int flush)
{
    int got = Z_OK;
    column->stream.next_in = column->plain;
    column->stream.avail_in = column->gathered_bytes;
    column->gathered_bytes = 0;
    while (column->result == ZR_OK && got != Z_STREAM_END &&
           (flush == Z_FINISH || column->stream.avail_in > 0)) {
        got = deflate(&column->stream, flush);
        if (got != Z_OK && got != Z_STREAM_END)
            column->result = zr_fail(ZR_ERR_CORRUPT, "zlib fails: %d", got);
        else if (column->stream.avail_out == 0)
            swap_out_packed(column);
    }
}

void zr_column_put(struct zr_column *column, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    if (column->result != ZR_OK)
        return;
    column->plain_bytes += bytes;
    for (size_t i = 0; i < bytes; i++) {
        column->plain[column->gathered_bytes++] = from[i];
        if (column->gathered_bytes == ZR_COLUMN_PLAIN)
            pack(column, Z_NO_FLUSH);
    }
}

void zr_column_number(struct zr_column *column, uint64_t number)
{
    unsigned char bytes[10];
    unsigned count = 0;
    for (; number >= 128; number >>= 7)
        bytes[count++] = (unsigned char)(number | 128);
    bytes[count++] = (unsigned char)number;
    zr_column_put(column, bytes, count);
}

void zr_column_difference(struct zr_column *column, uint64_t number)
{
    uint64_t difference = number - column->last;
    column->last = number;
    zr_column_number(column, difference << 1 ^ (difference >> 63 ? UINT64_MAX : 0));
}

/* ---- Base64 -------------------------------------------------------------------------------------------- */

static void put_base64(struct zr_text *text, const unsigned char *data, size_t bytes)
{
    static const char signs[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char out[4096];
    size_t used = 0;
    for (size_t i = 0; i < bytes; i += 3) {
        size_t left = bytes - i;
        uint32_t three = (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) |
                         (left > 2 ? data[i + 2] : 0);
        out[used++] = signs[three >> 18];
        out[used++] = signs[three >> 12 & 63];
        out[used++] = left > 1 ? signs[three >> 6 & 63] : '=';
        out[used++] = left > 2 ? signs[three & 63] : '=';
        if (used == sizeof out) {
            zr_text_put(text, out, used);
            used = 0;
        }
    }
    zr_text_put(text, out, used);
}

zr_result zr_column_write(struct zr_column *column, struct zr_text *text, unsigned file)
{
    unsigned char chunk[ZR_COLUMN_PACKED];
    pack(column, Z_FINISH);
    if (column->result != ZR_OK)
        return column->result;
    zr_text_print(text,
                  "<script type=\"application/octet-stream\" data-file=\"%u\" data-column=\"%s\" "
                  "data-bytes=\"%" PRIu64 "\">",
                  file, column->name, column->plain_bytes);
    for (size_t i = 0; i < column->places.count && column->result == ZR_OK; i++) {
        const uint64_t *place = zr_vector_at(&column->places, i);
        column->result = zr_file_read_at(&column->swap->file, *place, chunk, sizeof chunk);
        if (column->result == ZR_OK)
            put_base64(text, chunk, sizeof chunk);
    }
    put_base64(text, column->packed, ZR_COLUMN_PACKED - column->stream.avail_out);
    zr_text_print(text, "</script>\n");
    return column->result == ZR_OK ? text->result : column->result;
}
