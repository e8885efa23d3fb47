/* minimalloc.c: MiniMalloc CSVs: rows, and the records that correspond to a set of lifetimes. Uses csv.c. */
#include "defrag/trace/formats/minimalloc.h"

#include <limits.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sort.h"

enum { ID, LOWER, UPPER, SIZE, REQUIRED, ALIGNMENT = REQUIRED, HINT, GAPS };
static const char *const names[ZR_MINIMALLOC_COLUMNS] = {"id",        "lower", "upper", "size",
                                                         "alignment", "hint",  "gaps"};

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* The length of the field at `text` without surrounding spaces; *rest is the text after the comma, or NULL.
 */
static size_t field_length(const char **text, const char **rest)
{
    const char *end = *text + strcspn(*text, ",\r\n");
    *rest = *end == ',' ? end + 1 : NULL;
    while (**text == ' ' || **text == '\t')
        ++*text;
    while (end > *text && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    return (size_t)(end - *text);
}

bool zr_minimalloc_is(const char *line)
{
    unsigned found = 0;
    for (const char *rest; line; line = rest) {
        size_t length = field_length(&line, &rest);
        for (unsigned i = 0; i < REQUIRED; i++)
            if (strlen(names[i]) == length && memcmp(names[i], line, length) == 0)
                found |= 1u << i;
    }
    return found == 15;
}

static zr_result find_columns(struct zr_minimalloc *reader)
{
    const struct zr_csv *csv = &reader->csv;
    for (unsigned i = 0; i < ZR_MINIMALLOC_COLUMNS; i++) {
        unsigned found = 0;
        reader->columns[i] = UINT_MAX;
        for (unsigned field = 0; field < csv->fields_count; field++)
            if (strcmp(csv->fields[field], names[i]) == 0) {
                reader->columns[i] = field;
                found++;
            }
        if (found > 1 || (found == 0 && i < REQUIRED))
            return zr_fail(ZR_ERR_FORMAT,
                           "'%s' has %s column '%s' in its first line; it needs id,lower,upper,size",
                           csv->file.name, found ? "more than one" : "no", names[i]);
    }
    return ZR_OK;
}

zr_result zr_minimalloc_open(struct zr_minimalloc *out, const char *path)
{
    bool more;
    out->rows_count = 0;
    zr_result result = zr_csv_open(&out->csv, path);
    if (result != ZR_OK)
        return result;
    result = zr_csv_next(&out->csv, &more);
    if (result == ZR_OK)
        result = find_columns(out);
    if (result != ZR_OK)
        zr_minimalloc_close(out);
    return result;
}

void zr_minimalloc_close(struct zr_minimalloc *reader)
{
    zr_csv_close(&reader->csv);
}

/* The text of an optional column; "": the file or the row does not have it. */
static const char *text_of(const struct zr_minimalloc *reader, unsigned column)
{
    unsigned field = reader->columns[column];
    return field < reader->csv.fields_count ? reader->csv.fields[field] : "";
}

static zr_result wrong(const struct zr_minimalloc *reader, unsigned column, const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: %s is '%.40s': %s", reader->csv.file.name,
                   (unsigned long long)reader->csv.line, names[column], text_of(reader, column), what);
}

/* MiniMalloc writes -1 for no hint. */
static zr_result read_optional(const struct zr_minimalloc *reader, struct zr_minimalloc_row *out)
{
    const char *hint = text_of(reader, HINT);
    zr_result result = ZR_OK;
    out->alignment = 1;
    if (*text_of(reader, ALIGNMENT))
        result = zr_csv_number(&reader->csv, reader->columns[ALIGNMENT], names[ALIGNMENT], &out->alignment);
    if (result == ZR_OK && out->alignment == 0)
        return wrong(reader, ALIGNMENT, "an alignment is 1 or more");
    if (result == ZR_OK && *hint && strcmp(hint, "-1") != 0)
        return wrong(reader, HINT, "zr chooses all offsets itself; leave the column out");
    if (result == ZR_OK && *text_of(reader, GAPS))
        return wrong(reader, GAPS,
                     "zr places a buffer for its whole lifetime; make a row of each part "
                     "between gaps, or leave the column out");
    return result;
}

zr_result zr_minimalloc_next(struct zr_minimalloc *reader, struct zr_minimalloc_row *out, bool *more)
{
    const struct zr_csv *csv = &reader->csv;
    uint64_t *values[REQUIRED] = {[LOWER] = &out->lower, [UPPER] = &out->upper, [SIZE] = &out->bytes};
    zr_result result = zr_csv_next(&reader->csv, more);
    if (result != ZR_OK)
        return result;
    for (unsigned i = LOWER; i < REQUIRED && result == ZR_OK && *more; i++)
        result = zr_csv_number(csv, reader->columns[i], names[i], values[i]);
    if (result == ZR_OK && *more && out->lower > out->upper)
        result = zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: the buffer ends at %llu, before it begins at %llu",
                         csv->file.name, (unsigned long long)csv->line, (unsigned long long)out->upper,
                         (unsigned long long)out->lower);
    if (result == ZR_OK && *more)
        result = read_optional(reader, out);
    out->name = text_of(reader, ID);
    if (result == ZR_OK && *more && zr_csv_number(csv, reader->columns[ID], names[ID], &out->id) != ZR_OK) {
        out->id = reader->rows_count;
        result = *out->name ? ZR_OK : wrong(reader, ID, "a buffer needs a number or a name");
    }
    reader->rows_count += *more;
    return zr_csv_cut(&reader->csv, result, more);
}

/* ---- Records ------------------------------------------------------------------------------------------- */

/* The begin or the end of a lifetime. */
struct edge {
    uint64_t time, id, bytes;
    uint64_t row; /* distinguishes buffers of equal ids */
    bool begins;
};

/* At equal times frees precede allocations, and both are in order of id. */
static bool earlier(const void *one, const void *other)
{
    const struct edge *a = one, *b = other;
    if (a->time != b->time)
        return a->time < b->time;
    if (a->begins != b->begins)
        return b->begins;
    return a->id != b->id ? a->id < b->id : a->row < b->row;
}

static zr_result read_edges(struct zr_minimalloc *reader, uint64_t unit_bytes, struct zr_vector *edges)
{
    struct zr_minimalloc_row row = {0};
    bool more = true;
    for (uint64_t number = 1;; number++) {
        zr_result result = zr_minimalloc_next(reader, &row, &more);
        if (result != ZR_OK || !more)
            return result;
        if (__builtin_mul_overflow(row.bytes, unit_bytes, &row.bytes))
            return zr_fail(
                ZR_ERR_FORMAT, "'%s', line %llu: the size times a unit of %llu has more than 64 bits",
                reader->csv.file.name, (unsigned long long)reader->csv.line, (unsigned long long)unit_bytes);
        if (row.bytes == 0 || row.lower == row.upper)
            continue; /* empty: takes no memory */
        struct edge edge = {row.lower, row.id, row.bytes, number, true};
        result = zr_vector_add(edges, &edge);
        edge.begins = false;
        edge.time = row.upper;
        if (result == ZR_OK)
            result = zr_vector_add(edges, &edge);
        if (result != ZR_OK)
            return result;
    }
}

zr_result zr_minimalloc_records(struct zr_recording *recording, uint64_t unit_bytes)
{
    struct zr_minimalloc reader;
    struct zr_vector edges;
    zr_vector_init(&edges, recording->arena, sizeof(struct edge));
    zr_result result = zr_minimalloc_open(&reader, recording->path);
    if (result != ZR_OK)
        return result;
    result = read_edges(&reader, unit_bytes ? unit_bytes : 1, &edges);
    if (result == ZR_OK)
        zr_sort_in_place(&(struct zr_sort_records){edges.items, edges.count, sizeof(struct edge), earlier});
    for (size_t i = 0; i < edges.count && result == ZR_OK; i++) {
        const struct edge *edge = zr_vector_at(&edges, i);
        result = zr_recording_hold(
            recording, &(struct zr_record){.kind = edge->begins ? ZR_RECORD_ALLOC : ZR_RECORD_FREE,
                                           .tag = ZR_TAG_OTHER,
                                           .address = edge->row,
                                           .bytes = edge->bytes,
                                           .reserved_bytes = edge->bytes});
    }
    zr_vector_end(&edges);
    recording->cut_short = reader.csv.cut_short;
    zr_minimalloc_close(&reader);
    return result;
}
