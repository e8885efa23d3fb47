/* events_csv.c: events as rows of a CSV. Uses csv.c. */
#include "defrag/trace/formats/events_csv.h"

#include <string.h>

#include "alloc/base/error.h"

enum { EVENT = 0, ADDRESS, ID, BYTES, RESERVED, TIME, BEFORE, STREAM, THREAD, TAG, POOL, UNIT, FREE, LABEL };

static const char *const columns[ZR_EVENTS_CSV_COLUMNS] = {
    [EVENT] = "event",     [ADDRESS] = "address", [ID] = "id",
    [BYTES] = "bytes",     [TIME] = "time_ns",    [RESERVED] = "reserved_bytes",
    [BEFORE] = "before",   [STREAM] = "stream",   [THREAD] = "thread",
    [TAG] = "tag",         [UNIT] = "unit_bytes", [POOL] = "pool",
    [FREE] = "free_bytes", [LABEL] = "label"};

static const char *const kinds[] = {
    [ZR_RECORD_ALLOC] = "alloc", [ZR_RECORD_FREE_ASKED] = "free_asked", [ZR_RECORD_FREE] = "free",
    [ZR_RECORD_MAP] = "map",     [ZR_RECORD_UNMAP] = "unmap",           [ZR_RECORD_REFUSED] = "refused",
    [ZR_RECORD_MARK] = "mark"};

const char *zr_record_kind_name(enum zr_record_kind kind)
{
    return kinds[kind];
}

/* ---- Columns ------------------------------------------------------------------------------------------- */

static bool enough(unsigned found)
{
    return found >> EVENT & 1 && found >> BYTES & 1 && (found >> ADDRESS & 1) != (found >> ID & 1);
}

static int column_of(const char *name, size_t length)
{
    for (int i = 0; i < ZR_EVENTS_CSV_COLUMNS; i++)
        if (strlen(columns[i]) == length && memcmp(columns[i], name, length) == 0)
            return i;
    return -1;
}

bool zr_events_csv_is(const char *line)
{
    unsigned found = 0;
    for (; *line && *line != '\n' && *line != '\r'; line += *line == ',') {
        line += strspn(line, " \t");
        size_t length = strcspn(line, ", \t\r\n");
        int column = column_of(line, length);
        found |= column >= 0 ? 1u << column : 0;
        line += strcspn(line, ",\r\n");
    }
    return enough(found);
}

zr_result zr_events_csv_open(struct zr_events_csv *out, const char *path)
{
    bool more = false;
    unsigned found = 0;
    out->last_ns = 0;
    memset(out->columns, -1, sizeof out->columns);
    zr_result result = zr_csv_open(&out->csv, path);
    if (result != ZR_OK)
        return result;
    result = zr_csv_next(&out->csv, &more);
    for (unsigned i = 0; i < out->csv.fields_count && result == ZR_OK; i++) {
        int column = column_of(out->csv.fields[i], strlen(out->csv.fields[i]));
        if (column >= 0 && found >> column & 1)
            result = zr_fail(ZR_ERR_FORMAT, "'%s' has more than one column '%s' in its first line", path,
                             columns[column]);
        if (column >= 0) {
            out->columns[column] = (int)i;
            found |= 1u << column;
        }
    }
    if (result == ZR_OK && !enough(found))
        result = zr_fail(ZR_ERR_FORMAT, "'%s' lacks a column: event, bytes, and address or id", path);
    out->has_addresses = found >> ADDRESS & 1;
    out->has_times = found >> TIME & 1;
    if (result != ZR_OK)
        zr_events_csv_close(out);
    return result;
}

void zr_events_csv_close(struct zr_events_csv *reader)
{
    zr_csv_close(&reader->csv);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* A column's text; "" if the row has none. */
static const char *text_of(const struct zr_events_csv *reader, unsigned column)
{
    int field = reader->columns[column];
    return field >= 0 && (unsigned)field < reader->csv.fields_count ? reader->csv.fields[field] : "";
}

static zr_result number_of(const struct zr_events_csv *reader, unsigned column, uint64_t most,
                           uint64_t absent, uint64_t *out)
{
    *out = absent;
    if (text_of(reader, column)[0] == '\0')
        return ZR_OK;
    zr_result result = zr_csv_number(&reader->csv, (unsigned)reader->columns[column], columns[column], out);
    if (result == ZR_OK && *out > most)
        result = zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: %s is %llu; the maximum is %llu",
                         reader->csv.file.name, (unsigned long long)reader->csv.line, columns[column],
                         (unsigned long long)*out, (unsigned long long)most);
    return result;
}

static zr_result unknown(const struct zr_events_csv *reader, unsigned column)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: there is no %s '%.40s'", reader->csv.file.name,
                   (unsigned long long)reader->csv.line, columns[column], text_of(reader, column));
}

static zr_result read_words(struct zr_events_csv *reader, struct zr_record *out)
{
    const char *event = text_of(reader, EVENT), *tag = text_of(reader, TAG);
    unsigned kind = 0, number = 0;
    while (kind <= ZR_RECORD_MARK && strcmp(kinds[kind], event) != 0)
        kind++;
    if (kind > ZR_RECORD_MARK)
        return unknown(reader, EVENT);
    while (*tag && number < ZR_TAG_COUNT && strcmp(zr_tag_name((zr_tag)number), tag) != 0)
        number++;
    if (number == ZR_TAG_COUNT)
        return unknown(reader, TAG);
    out->kind = (uint8_t)kind;
    out->tag = *tag ? (uint8_t)number : ZR_TAG_OTHER;
    out->label = kind == ZR_RECORD_MARK ? text_of(reader, LABEL) : NULL;
    return ZR_OK;
}

static zr_result read_row(struct zr_events_csv *reader, struct zr_record *out)
{
    uint64_t thread, pool, before;
    *out = (struct zr_record){0};
    const struct {
        unsigned column;
        uint64_t most, absent;
        uint64_t *out;
    } numbers[] = {{reader->has_addresses ? ADDRESS : ID, UINT64_MAX, 0, &out->address},
                   {BYTES, UINT64_MAX, 0, &out->bytes},
                   {RESERVED, UINT64_MAX, 0, &out->reserved_bytes},
                   {TIME, UINT64_MAX, 0, &out->time_ns},
                   {STREAM, UINT64_MAX, 0, &out->stream},
                   {UNIT, UINT64_MAX, 0, &out->unit_bytes},
                   {FREE, UINT64_MAX, UINT64_MAX, &out->free_bytes},
                   {THREAD, UINT32_MAX, 0, &thread},
                   {POOL, UINT32_MAX, 0, &pool},
                   {BEFORE, 1, 0, &before}};
    zr_result result = read_words(reader, out);
    if (result == ZR_OK && out->kind != ZR_RECORD_REFUSED && out->kind != ZR_RECORD_MARK &&
        text_of(reader, numbers[0].column)[0] == '\0')
        result = unknown(reader, numbers[0].column);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && result == ZR_OK; i++)
        result = number_of(reader, numbers[i].column, numbers[i].most, numbers[i].absent, numbers[i].out);
    if (result != ZR_OK)
        return result;
    out->thread = (uint32_t)thread;
    out->pool = (uint32_t)pool;
    out->before = before;
    if (out->kind == ZR_RECORD_ALLOC && out->reserved_bytes < out->bytes)
        out->reserved_bytes = out->bytes;
    if (out->time_ns < reader->last_ns) /* times do not decrease */
        out->time_ns = reader->last_ns;
    reader->last_ns = out->time_ns;
    return ZR_OK;
}

/* Whether the record counts: frees and marks need no bytes. */
static bool is_something(const struct zr_record *record)
{
    return record->bytes > 0 || record->kind == ZR_RECORD_MARK || record->kind == ZR_RECORD_FREE ||
           record->kind == ZR_RECORD_FREE_ASKED;
}

zr_result zr_events_csv_next(struct zr_events_csv *reader, struct zr_record *out, bool *more)
{
    zr_result result;
    do {
        result = zr_csv_next(&reader->csv, more);
        if (result == ZR_OK && *more)
            result = zr_csv_cut(&reader->csv, read_row(reader, out), more);
    } while (result == ZR_OK && *more && !is_something(out));
    return result;
}
