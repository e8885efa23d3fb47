/* rmm.c: logs of RAPIDS' memory manager: Thread,Time,Action,Pointer,Size,Stream. Stands on csv.c. */
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/trace/csv.h"
#include "defrag/trace/raw_trace.h"

static const char header[] = "Thread,Time,Action,Pointer,Size,Stream";

enum { THREAD = 0, TIME, ACTION, POINTER, SIZE, STREAM, COLUMNS };

bool zr_rmm_is(const char *line)
{
    return strncmp(line, header, sizeof header - 1) == 0 && strchr(",\r\n", line[sizeof header - 1]);
}

/* One row as an event; *out has no bytes where there is nothing to replay. */
static zr_result read_row(const struct zr_csv *csv, struct zr_raw_event *out)
{
    *out = (struct zr_raw_event){.tag = ZR_TAG_OTHER};
    if (csv->fields_count < COLUMNS)
        return zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: %u fields where a log has %d", csv->file.name,
                       (unsigned long long)csv->line, csv->fields_count, COLUMNS);
    const char *action = csv->fields[ACTION];
    if (strcmp(action, "allocate failure") == 0)
        return ZR_OK;
    if (strcmp(action, "allocate") != 0 && strcmp(action, "free") != 0)
        return zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: there is no action '%.40s'", csv->file.name,
                       (unsigned long long)csv->line, action);
    out->kind = action[0] == 'a' ? ZR_EVENT_ALLOC : ZR_EVENT_FREE;
    if (strcmp(csv->fields[POINTER], "(nil)") == 0)
        return ZR_OK; /* nothing was asked for */
    zr_result result = zr_csv_number(csv, THREAD, "Thread", &out->thread);
    if (result == ZR_OK)
        result = zr_csv_number(csv, POINTER, "Pointer", &out->address);
    if (result == ZR_OK && strcmp(csv->fields[STREAM], "(nil)") != 0)
        result = zr_csv_number(csv, STREAM, "Stream", &out->stream);
    return result == ZR_OK ? zr_csv_number(csv, SIZE, "Size", &out->bytes) : result;
}

zr_result zr_rmm_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options)
{
    struct zr_csv csv;
    struct zr_raw_event event;
    bool more;
    zr_result result = zr_csv_open(&csv, options->path);
    if (result != ZR_OK)
        return result;
    result = zr_csv_next(&csv, &more); /* the header, known by now */
    while (result == ZR_OK && (result = zr_csv_next(&csv, &more)) == ZR_OK && more) {
        result = read_row(&csv, &event);
        if (result == ZR_OK && event.bytes > 0)
            result = zr_vector_add(&trace->events, &event);
    }
    zr_csv_close(&csv);
    return result;
}
