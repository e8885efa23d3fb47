/* csv.c: reads CSV files. Uses alloc/base/system/file.c. */
#include "defrag/trace/formats/csv.h"

#include <string.h>

#include "alloc/base/error.h"

static zr_result wrong(const struct zr_csv *csv, const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: %s", csv->file.name, (unsigned long long)csv->line, what);
}

zr_result zr_csv_open(struct zr_csv *out, const char *path)
{
    size_t got;
    memset(out, 0, offsetof(struct zr_csv, buffer));
    zr_result result = zr_file_open(&out->file, path);
    if (result != ZR_OK)
        return result;
    result = zr_file_read(&out->file, out->buffer, ZR_CSV_BUFFER_BYTES, &got);
    if (result != ZR_OK) {
        zr_csv_close(out);
        return result;
    }
    out->held_bytes = got;
    out->at_end = got < ZR_CSV_BUFFER_BYTES;
    if (got >= 3 && memcmp(out->buffer, "\xef\xbb\xbf", 3) == 0)
        out->next_bytes = 3;
    return ZR_OK;
}

void zr_csv_close(struct zr_csv *csv)
{
    zr_file_close(&csv->file);
    csv->file.fd = -1;
}

/* Finds the end of the line that starts at next_bytes; reads more of the file if needed. */
static zr_result find_line(struct zr_csv *csv, size_t *out_end)
{
    char *start = csv->buffer + csv->next_bytes;
    char *end = memchr(start, '\n', csv->held_bytes - csv->next_bytes);
    if (!end && !csv->at_end) {
        size_t left = csv->held_bytes - csv->next_bytes, got;
        memmove(csv->buffer, start, left);
        csv->next_bytes = 0;
        csv->held_bytes = left;
        zr_result result = zr_file_read(&csv->file, csv->buffer + left, ZR_CSV_BUFFER_BYTES - left, &got);
        if (result != ZR_OK)
            return result;
        csv->held_bytes += got;
        csv->at_end = got < ZR_CSV_BUFFER_BYTES - left;
        end = memchr(csv->buffer, '\n', csv->held_bytes);
        if (!end && !csv->at_end)
            return wrong(csv, "a line is longer than 16 KiB, the limit");
    }
    csv->unended = !end;
    *out_end = end ? (size_t)(end - csv->buffer) : csv->held_bytes;
    return ZR_OK;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Trims spaces at both ends of [from, to); may overwrite *to. */
static char *trimmed(char *from, char *to)
{
    while (from < to && is_space(*from))
        from++;
    while (from < to && is_space(to[-1]))
        to--;
    *to = '\0';
    return from;
}

/* The end of the field that starts at `from`: a comma, or `to`. A quoted field is unquoted in place, and
 * padded with spaces. */
static char *field_end(char *from, char *to)
{
    while (from < to && is_space(*from))
        from++;
    if (from == to || *from != '"') {
        char *comma = memchr(from, ',', (size_t)(to - from));
        return comma ? comma : to;
    }
    char *out = from, *at = from + 1;
    for (; at < to && (*at != '"' || (at + 1 < to && at[1] == '"')); at++) {
        at += *at == '"';
        *out++ = *at;
    }
    while (at < to && *at != ',')
        at++;
    memset(out, ' ', (size_t)(at - out));
    return at;
}

/* Splits [from, to) into fields; may overwrite *to. */
static zr_result split(struct zr_csv *csv, char *from, char *to)
{
    csv->fields_count = 0;
    if (memchr(from, '\0', (size_t)(to - from)))
        return wrong(csv, "a zero byte: the file is not text");
    for (;;) {
        char *end = field_end(from, to);
        bool last = end == to;
        if (csv->fields_count == ZR_CSV_FIELDS)
            return wrong(csv, "more than 32 fields");
        csv->fields[csv->fields_count++] = trimmed(from, end);
        if (last)
            break;
        from = end + 1;
    }
    if (csv->fields_count == 1 && csv->fields[0][0] == '\0')
        csv->fields_count = 0; /* an empty line */
    return ZR_OK;
}

zr_result zr_csv_next(struct zr_csv *csv, bool *more)
{
    *more = false;
    csv->fields_count = 0;
    while (csv->fields_count == 0) {
        size_t end = 0;
        if (csv->next_bytes == csv->held_bytes && csv->at_end)
            return ZR_OK;
        csv->line++;
        zr_result result = find_line(csv, &end);
        if (result == ZR_OK)
            result = split(csv, csv->buffer + csv->next_bytes, csv->buffer + end);
        if (result != ZR_OK)
            return result;
        csv->next_bytes = end < csv->held_bytes ? end + 1 : end;
    }
    *more = true;
    return ZR_OK;
}

zr_result zr_csv_cut(struct zr_csv *csv, zr_result result, bool *more)
{
    if (result != ZR_ERR_FORMAT || !csv->unended)
        return result;
    csv->cut_short = true;
    *more = false;
    return ZR_OK;
}

static bool digit_of(char c, unsigned base, unsigned *out)
{
    unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                     : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
                                            : 16;
    *out = digit;
    return digit < base;
}

zr_result zr_csv_number(const struct zr_csv *csv, unsigned field, const char *column, uint64_t *out)
{
    const char *text = field < csv->fields_count ? csv->fields[field] : "";
    unsigned base = text[0] == '0' && (text[1] == 'x' || text[1] == 'X') ? 16 : 10, digit;
    const char *at = text + (base == 16 ? 2 : 0);
    bool good = *at != '\0';
    uint64_t value = 0;
    for (; good && *at; at++)
        good = digit_of(*at, base, &digit) && !__builtin_mul_overflow(value, (uint64_t)base, &value) &&
               !__builtin_add_overflow(value, (uint64_t)digit, &value);
    *out = value;
    return good ? ZR_OK
                : zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: %s is '%.40s', not a whole number of 64 bits",
                          csv->file.name, (unsigned long long)csv->line, column, text);
}
