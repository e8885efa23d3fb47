/* picture.c: an address map as SVG and as PNG. Uses address_map.c and no library. PNG follows RFC 2083; its
 * compression uses the fixed codes of RFC 1951, with matches of the previous pixel and of the line above
 * only, because these are the repetitions of an address map. */
#include "defrag/report/address_map.h"

#include <inttypes.h>
#include <string.h>

#include "alloc/base/error.h"

/* A live block's shade: every second block is slightly darker. */
static uint32_t colour_at(const struct zr_picture *picture, const struct zr_map_cell *cell)
{
    const struct zr_map_extent *extent = &picture->extents[cell->middle];
    uint32_t colour = zr_map_colour((enum zr_map_kind)extent->kind, extent->tag);
    if (extent->kind == ZR_MAP_LIVE && cell->middle % 2)
        colour = colour - (colour >> 3 & 0x1f1f1f);
    return colour;
}

static struct zr_map_cursor cells_of(const struct zr_picture *picture)
{
    return zr_map_cursor_of(picture->extents, picture->count, (uint64_t)ZR_PICTURE_WIDTH * ZR_PICTURE_ROWS);
}

/* ---- SVG ----------------------------------------------------------------------------------------------- */

/* Text between tags: characters that are not plain ASCII become "?". */
static void put_escaped(struct zr_text *text, const char *words)
{
    for (; *words; words++) {
        unsigned char byte = (unsigned char)*words;
        if (byte == '<' || byte == '&' || byte == '>')
            zr_text_print(text, "&#%u;", byte);
        else
            zr_text_print(text, "%c", byte >= 32 && byte < 127 ? byte : '?');
    }
}

static void put_rect(struct zr_text *text, unsigned first, unsigned end, unsigned row, uint32_t colour)
{
    enum { TOP = 50, LEFT = 10 };
    if (end > first && colour != zr_map_colour(ZR_MAP_UNMAPPED, 0))
        zr_text_print(text, "<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%d\" fill=\"#%06" PRIx32 "\"/>\n",
                      LEFT + first, TOP + row * ZR_PICTURE_ROW, end - first, ZR_PICTURE_ROW - ZR_PICTURE_GAP,
                      colour);
}

static void put_legend(struct zr_text *text, const struct zr_picture *picture)
{
    bool shown[ZR_TAG_COUNT] = {false}, pending = false;
    unsigned x = 10;
    for (size_t i = 0; i < picture->count; i++) {
        const struct zr_map_extent *extent = &picture->extents[i];
        if (extent->kind == ZR_MAP_LIVE && extent->tag < ZR_TAG_COUNT)
            shown[extent->tag] = true;
        pending |= extent->kind == ZR_MAP_PENDING;
    }
    for (unsigned i = 0; i < ZR_TAG_COUNT + 2; i++) {
        enum zr_map_kind kind = i < ZR_TAG_COUNT    ? ZR_MAP_LIVE
                                : i == ZR_TAG_COUNT ? ZR_MAP_PENDING
                                                    : ZR_MAP_FREE;
        if (kind == ZR_MAP_LIVE ? !shown[i] : kind == ZR_MAP_PENDING && !pending)
            continue;
        zr_text_print(text, "<rect x=\"%u\" y=\"442\" width=\"10\" height=\"10\" fill=\"#%06" PRIx32 "\"/>",
                      x, zr_map_colour(kind, i));
        zr_text_print(text, "<text x=\"%u\" y=\"451\">%s</text>\n", x + 14,
                      kind == ZR_MAP_LIVE      ? zr_tag_name((zr_tag)i)
                      : kind == ZR_MAP_PENDING ? "pending"
                                               : "free");
        x += 100;
    }
}

zr_result zr_picture_svg(struct zr_text *text, const struct zr_picture *picture)
{
    struct zr_map_cursor cursor = cells_of(picture);
    struct zr_map_cell cell;
    unsigned column = 0, first = 0, row = 0;
    uint32_t colour = 0;
    zr_text_print(
        text, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1220 460\" font-family=\"sans-serif\" "
              "font-size=\"11\">\n<rect width=\"1220\" height=\"460\" fill=\"#ffffff\"/>\n"
              "<text x=\"10\" y=\"20\" font-size=\"15\">");
    put_escaped(text, picture->title);
    zr_text_print(text, "</text>\n<text x=\"10\" y=\"38\">");
    put_escaped(text, picture->subtitle);
    zr_text_print(text, "</text>\n<g shape-rendering=\"crispEdges\">\n");
    while (zr_map_next(&cursor, &cell)) {
        uint32_t own = colour_at(picture, &cell);
        if (column == ZR_PICTURE_WIDTH || (column > first && own != colour)) {
            put_rect(text, first, column, row, colour);
            first = column;
        }
        if (column == ZR_PICTURE_WIDTH) {
            row++;
            column = first = 0;
        }
        colour = own;
        column++;
    }
    put_rect(text, first, column, row, colour);
    zr_text_print(text, "</g>\n");
    put_legend(text, picture);
    return zr_text_print(text, "</svg>\n");
}

/* ---- PNG ----------------------------------------------------------------------------------------------- */

enum { STRIDE = ZR_PICTURE_WIDTH + 1, SIDE_COLOURS = ZR_TAG_COUNT * 2 + 3, MATCH_MIN = 3, MATCH_MAX = 258 };

/* Bytes for the file in chunks, and bits that become bytes. */
struct png {
    struct zr_file *file;
    zr_result result;
    unsigned char *out; /* the compressed data */
    size_t used, room;
    uint32_t bits;
    unsigned bits_count;
};

static uint32_t crc_of(uint32_t crc, const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0xedb88320) : 0);
    }
    return crc;
}

static void put_number(unsigned char *out, uint32_t number)
{
    for (unsigned i = 0; i < 4; i++)
        out[i] = (unsigned char)(number >> (24 - 8 * i));
}

static void put_chunk(struct png *png, const char *type, const unsigned char *data, size_t bytes)
{
    unsigned char head[8], tail[4];
    put_number(head, (uint32_t)bytes);
    memcpy(head + 4, type, 4);
    put_number(tail, ~crc_of(crc_of(UINT32_MAX, head + 4, 4), data, bytes));
    if (png->result == ZR_OK)
        png->result = zr_file_write(png->file, head, sizeof head);
    if (png->result == ZR_OK && bytes > 0)
        png->result = zr_file_write(png->file, data, bytes);
    if (png->result == ZR_OK)
        png->result = zr_file_write(png->file, tail, sizeof tail);
}

/* Low bits first. */
static void put_bits(struct png *png, uint32_t value, unsigned count)
{
    png->bits |= value << png->bits_count;
    for (png->bits_count += count; png->bits_count >= 8; png->bits_count -= 8) {
        zr_assert(png->used < png->room);
        png->out[png->used++] = (unsigned char)png->bits;
        png->bits >>= 8;
    }
}

/* Huffman codes go high bits first. */
static void put_code(struct png *png, uint32_t code, unsigned count)
{
    uint32_t turned = 0;
    for (unsigned i = 0; i < count; i++)
        turned |= (code >> i & 1) << (count - 1 - i);
    put_bits(png, turned, count);
}

static void put_symbol(struct png *png, unsigned symbol)
{
    if (symbol < 144)
        put_code(png, 0x30 + symbol, 8);
    else if (symbol < 256)
        put_code(png, 0x190 + symbol - 144, 9);
    else if (symbol < 280)
        put_code(png, symbol - 256, 7);
    else
        put_code(png, 0xc0 + symbol - 280, 8);
}

static void put_match(struct png *png, unsigned length, unsigned distance)
{
    unsigned extra = 0, base = length - 3;
    if (length == MATCH_MAX) {
        put_symbol(png, 285);
    } else {
        while (base >> extra >= 8)
            extra++;
        put_symbol(png, 257 + 4 * extra + (base >> extra));
        put_bits(png, base & ((1u << extra) - 1), extra);
    }
    base = distance - 1;
    for (extra = 0; base >> extra >= 4;)
        extra++;
    put_code(png, 2 * extra + (base >> extra), 5);
    put_bits(png, base & ((1u << extra) - 1), extra);
}

static unsigned match(const unsigned char *data, size_t at, size_t end, size_t distance)
{
    unsigned length = 0;
    while (distance <= at && at + length < end && length < MATCH_MAX &&
           data[at + length] == data[at + length - distance])
        length++;
    return length;
}

static void compress(struct png *png, const unsigned char *data, size_t bytes)
{
    uint32_t low = 1, high = 0;
    put_bits(png, 0x0178, 16);
    put_bits(png, 3, 3); /* the last block, with fixed codes */
    for (size_t at = 0; at < bytes;) {
        unsigned beside = match(data, at, bytes, 1), above = match(data, at, bytes, STRIDE);
        unsigned length = above > beside ? above : beside;
        if (length < MATCH_MIN) {
            put_symbol(png, data[at++]);
            continue;
        }
        put_match(png, length, above > beside ? STRIDE : 1);
        at += length;
    }
    put_symbol(png, 256);
    put_bits(png, 0, (8 - png->bits_count) % 8);
    for (size_t i = 0; i < bytes; i++) {
        low = (low + data[i]) % 65521;
        high = (high + low) % 65521;
    }
    for (unsigned i = 0; i < 4; i++)
        put_bits(png, (high << 16 | low) >> (24 - 8 * i) & 255, 8);
}

/* The index of a colour in the palette, which grows as needed. */
static unsigned entry_of(uint32_t colour, uint32_t *palette, unsigned *count)
{
    unsigned i = 0;
    while (i < *count && palette[i] != colour)
        i++;
    if (i == *count && i < SIDE_COLOURS)
        palette[(*count)++] = colour;
    return i;
}

/* Draws the lines of the picture, each after a zero byte: no filter. Returns the number of bytes. */
static size_t draw(unsigned char *lines, const struct zr_picture *picture, uint32_t *palette,
                   unsigned *colours)
{
    struct zr_map_cursor cursor = cells_of(picture);
    struct zr_map_cell cell;
    size_t at = 0, cells = 0;
    memset(lines, 0, (size_t)STRIDE * ZR_PICTURE_ROWS * ZR_PICTURE_ROW);
    for (; zr_map_next(&cursor, &cell); cells++) {
        unsigned column = cells % ZR_PICTURE_WIDTH;
        at = cells / ZR_PICTURE_WIDTH * ZR_PICTURE_ROW * STRIDE;
        lines[at + 1 + column] = (unsigned char)entry_of(colour_at(picture, &cell), palette, colours);
    }
    size_t rows = (cells + ZR_PICTURE_WIDTH - 1) / ZR_PICTURE_WIDTH;
    for (size_t row = 0; row < rows; row++)
        for (unsigned line = 1; line < ZR_PICTURE_ROW - ZR_PICTURE_GAP; line++)
            memcpy(lines + (row * ZR_PICTURE_ROW + line) * STRIDE, lines + row * ZR_PICTURE_ROW * STRIDE,
                   STRIDE);
    return (rows ? rows : 1) * ZR_PICTURE_ROW * STRIDE;
}

zr_result zr_picture_png(struct zr_file *file, const struct zr_picture *picture, zr_arena *arena)
{
    static const unsigned char magic[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    size_t most = (size_t)STRIDE * ZR_PICTURE_ROWS * ZR_PICTURE_ROW;
    struct png png = {.file = file, .room = most + most / 4 + 64};
    uint32_t palette[SIDE_COLOURS] = {zr_map_colour(ZR_MAP_UNMAPPED, 0)};
    unsigned char head[13] = {0}, plte[SIDE_COLOURS * 3];
    unsigned colours = 1;
    void *room;
    png.result =
        zr_arena_alloc(arena, &(struct zr_request){.bytes = most + png.room, .tag = ZR_TAG_OTHER}, &room);
    if (png.result != ZR_OK)
        return png.result;
    png.out = (unsigned char *)room + most;
    size_t bytes = draw(room, picture, palette, &colours);
    put_number(head, ZR_PICTURE_WIDTH);
    put_number(head + 4, (uint32_t)(bytes / STRIDE));
    head[8] = 8; /* bits of a pixel */
    head[9] = 3; /* a pixel is an index into the palette */
    for (unsigned i = 0; i < colours * 3; i++)
        plte[i] = (unsigned char)(palette[i / 3] >> (16 - 8 * (i % 3)));
    compress(&png, room, bytes);
    png.result = zr_file_write(file, magic, sizeof magic);
    put_chunk(&png, "IHDR", head, sizeof head);
    put_chunk(&png, "PLTE", plte, colours * 3);
    put_chunk(&png, "IDAT", png.out, png.used);
    put_chunk(&png, "IEND", head, 0);
    zr_arena_free(arena, room);
    return png.result;
}
