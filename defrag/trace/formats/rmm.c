/* rmm.c: reads logs of RAPIDS' memory manager: Thread,Time,Action,Pointer,Size,Stream. Uses csv.c. */
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/trace/formats/events_csv.h"

static const char header[] = "Thread,Time,Action,Pointer,Size,Stream";

enum { THREAD = 0, TIME, ACTION, POINTER, SIZE, STREAM, COLUMNS };

bool zr_rmm_is(const char *line)
{
    return strncmp(line, header, sizeof header - 1) == 0 && strchr(",\r\n", line[sizeof header - 1]);
}

/* Parses "20:24:35.012345" or "20:24:35:012345" to the time since midnight; 0 for anything else. */
static uint64_t time_of(const char *text)
{
    uint64_t numbers[4] = {0};
    unsigned digits = 0, part = 0;
    for (; *text; text++) {
        if (*text >= '0' && *text <= '9' && digits < 9) {
            numbers[part] = numbers[part] * 10 + (uint64_t)(*text - '0');
            digits++;
        } else if ((*text == ':' || *text == '.') && part < 3) {
            part++;
            digits = 0;
        } else {
            return 0;
        }
    }
    if (part < 2 || numbers[0] > 23 || numbers[1] > 59 || numbers[2] > 60)
        return 0;
    for (; part == 3 && digits < 9; digits++)
        numbers[3] *= 10;
    return ((numbers[0] * 60 + numbers[1]) * 60 + numbers[2]) * UINT64_C(1000000000) + numbers[3];
}

static zr_result read_row(const struct zr_csv *csv, struct zr_record *out)
{
    uint64_t thread = 0;
    *out = (struct zr_record){.tag = ZR_TAG_OTHER, .free_bytes = UINT64_MAX};
    if (csv->fields_count < COLUMNS)
        return zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: %u fields where a log has %d", csv->file.name,
                       (unsigned long long)csv->line, csv->fields_count, COLUMNS);
    const char *action = csv->fields[ACTION];
    bool failed = strcmp(action, "allocate failure") == 0;
    if (!failed && strcmp(action, "allocate") != 0 && strcmp(action, "free") != 0)
        return zr_fail(ZR_ERR_FORMAT, "'%s', line %llu: there is no action '%.40s'", csv->file.name,
                       (unsigned long long)csv->line, action);
    out->time_ns = time_of(csv->fields[TIME]);
    out->kind = failed ? ZR_RECORD_REFUSED : action[0] == 'a' ? ZR_RECORD_ALLOC : ZR_RECORD_FREE;
    bool nil = strcmp(csv->fields[POINTER], "(nil)") == 0;
    if (nil && !failed)
        return ZR_OK; /* a row without a request */
    zr_result result = zr_csv_number(csv, THREAD, "Thread", &thread);
    out->thread = (uint32_t)(thread ^ thread >> 32);
    if (result == ZR_OK && !failed)
        result = zr_csv_number(csv, POINTER, "Pointer", &out->address);
    if (result == ZR_OK && strcmp(csv->fields[STREAM], "(nil)") != 0)
        result = zr_csv_number(csv, STREAM, "Stream", &out->stream);
    if (result == ZR_OK)
        result = zr_csv_number(csv, SIZE, "Size", &out->bytes);
    out->reserved_bytes = out->bytes;
    return result;
}

zr_result zr_rmm_next(struct zr_csv *csv, struct zr_record *out, bool *more)
{
    zr_result result;
    do {
        result = zr_csv_next(csv, more);
        if (result == ZR_OK && *more)
            result = zr_csv_cut(csv, read_row(csv, out), more);
    } while (result == ZR_OK && *more && out->bytes == 0 && out->kind != ZR_RECORD_REFUSED);
    return result;
}
