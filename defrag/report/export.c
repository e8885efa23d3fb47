/* export.c: writes recordings as CSV, lifetimes, RMM logs and Perfetto's JSON. Uses memory.c. */
#include "defrag/report/export.h"

#include <inttypes.h>
#include <string.h>

#include "defrag/trace/formats/events_csv.h"

struct writing {
    const struct zr_export *own;
    struct zr_text *text;
    struct zr_memory memory;
    uint64_t written_count;
};

static zr_result play(const struct zr_export *own, struct zr_text *text,
                      zr_result (*take)(void *state, const struct zr_record *record, bool *stop),
                      zr_result (*finish)(struct writing *writing))
{
    struct writing writing = {.own = own, .text = text};
    zr_memory_init(&writing.memory, own->recording, own->arena);
    zr_result result = zr_recording_play(own->recording, &(struct zr_recording_sink){take, &writing});
    if (result == ZR_OK && finish)
        result = finish(&writing);
    zr_memory_end(&writing.memory);
    return result == ZR_OK ? text->result : result;
}

/* ---- csv ----------------------------------------------------------------------------------------------- */

/* Writes a label in quotes, with quotes inside doubled; a line break would end the row. */
static void put_quoted(struct zr_text *text, const char *words)
{
    zr_text_put(text, "\"", 1);
    for (; *words; words++)
        zr_text_put(text,
                    *words == '"'                 ? "\"\""
                    : (unsigned char)*words < ' ' ? " "
                                                  : words,
                    *words == '"' ? 2 : 1);
    zr_text_put(text, "\"", 1);
}

static zr_result csv_row(void *state, const struct zr_record *record, bool *stop)
{
    struct writing *writing = state;
    (void)stop;
    zr_text_print(writing->text, "%" PRIu64 ",%s,%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64, record->time_ns,
                  zr_record_kind_name(record->kind), record->before, record->address, record->bytes,
                  record->reserved_bytes);
    zr_text_print(writing->text, ",%" PRIu64 ",%u,%s,%u,%" PRIu64 ",", record->stream, record->thread,
                  zr_tag_name((zr_tag)record->tag), record->pool, record->unit_bytes);
    if (record->kind == ZR_RECORD_REFUSED && record->free_bytes != UINT64_MAX)
        zr_text_print(writing->text, "%" PRIu64, record->free_bytes);
    zr_text_put(writing->text, ",", 1);
    if (record->label)
        put_quoted(writing->text, record->label);
    return zr_text_put(writing->text, "\n", 1);
}

static zr_result write_csv(const struct zr_export *own, struct zr_text *text)
{
    zr_text_print(
        text,
        "time_ns,event,before,%s,bytes,reserved_bytes,stream,thread,tag,pool,unit_bytes,free_bytes,label\n",
        own->recording->has_addresses ? "address" : "id");
    return play(own, text, csv_row, NULL);
}

/* ---- minimalloc ---------------------------------------------------------------------------------------- */

static void put_lifetime(struct writing *writing, const struct zr_range_record *block)
{
    /* time_ns holds the number of the record that allocated the block: see below */
    zr_text_print(writing->text, "%u,%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", block->number, block->time_ns,
                  writing->memory.records_count, block->requested_bytes);
}

static zr_result lifetime_row(void *state, const struct zr_record *record, bool *stop)
{
    struct writing *writing = state;
    struct zr_record numbered = *record;
    (void)stop;
    if (record->kind == ZR_RECORD_FREE) {
        const struct zr_range_record *block = zr_extents_floor(&writing->memory.blocks, record->address);
        if (block && block->address == record->address)
            put_lifetime(writing, block);
    }
    numbered.time_ns = writing->memory.records_count;
    return zr_memory_apply(&writing->memory, &numbered);
}

/* A block that is never freed lives to the end. */
static zr_result lifetimes_left(struct writing *writing)
{
    const struct zr_range_record *block = zr_extents_ceiling(&writing->memory.blocks, 0);
    for (; block; block = zr_extents_next(&writing->memory.blocks, block))
        put_lifetime(writing, block);
    return ZR_OK;
}

static zr_result write_minimalloc(const struct zr_export *own, struct zr_text *text)
{
    zr_text_print(text, "id,lower,upper,size\n");
    return play(own, text, lifetime_row, lifetimes_left);
}

/* ---- rmm ----------------------------------------------------------------------------------------------- */

static zr_result rmm_row(void *state, const struct zr_record *record, bool *stop)
{
    struct writing *writing = state;
    struct zr_text *text = writing->text;
    uint64_t us = record->time_ns / 1000, seconds = us / 1000000, bytes = record->bytes;
    (void)stop;
    if (record->kind == ZR_RECORD_FREE) { /* an RMM log has the size in frees */
        const struct zr_range_record *block = zr_extents_floor(&writing->memory.blocks, record->address);
        bytes = block ? block->requested_bytes : bytes;
    }
    zr_result result = zr_memory_apply(&writing->memory, record);
    if (result != ZR_OK || (record->kind != ZR_RECORD_ALLOC && record->kind != ZR_RECORD_FREE &&
                            record->kind != ZR_RECORD_REFUSED))
        return result;
    zr_text_print(text, "%u,%02" PRIu64 ":%02" PRIu64 ":%02" PRIu64 ":%06" PRIu64 ",", record->thread,
                  seconds / 3600 % 24, seconds / 60 % 60, seconds % 60, us % 1000000);
    if (record->kind == ZR_RECORD_REFUSED)
        zr_text_print(text, "allocate failure,(nil)");
    else
        zr_text_print(text, "%s,0x%" PRIx64, record->kind == ZR_RECORD_ALLOC ? "allocate" : "free",
                      record->address);
    return zr_text_print(text, ",%" PRIu64 ",%" PRIu64 "\n", bytes, record->stream);
}

static zr_result write_rmm(const struct zr_export *own, struct zr_text *text)
{
    zr_text_print(text, "Thread,Time,Action,Pointer,Size,Stream\n");
    return play(own, text, rmm_row, NULL);
}

/* ---- perfetto ------------------------------------------------------------------------------------------ */

static void put_counter(struct writing *writing, const char *name, uint64_t time_ns)
{
    zr_text_print(writing->text,
                  "%s\n{\"ph\": \"C\", \"pid\": 1, \"name\": \"%s\", \"ts\": %" PRIu64 ".%03u, \"args\": {",
                  writing->written_count++ ? "," : "", name, time_ns / 1000, (unsigned)(time_ns % 1000));
}

/* Writes counters after each event that changes them. Without times, events are a microsecond apart. */
static zr_result perfetto_event(void *state, const struct zr_record *record, bool *stop)
{
    struct writing *writing = state;
    struct zr_memory *memory = &writing->memory;
    struct zr_text *text = writing->text;
    uint64_t time_ns = writing->own->recording->has_times ? record->time_ns : memory->records_count * 1000;
    bool first = true;
    (void)stop;
    zr_result result = zr_memory_apply(memory, record);
    if (result != ZR_OK)
        return result;
    if (record->kind == ZR_RECORD_MARK || record->kind == ZR_RECORD_REFUSED) {
        const char *name = record->label ? record->label : "allocation refused";
        zr_text_print(
            text,
            "%s\n{\"ph\": \"i\", \"s\": \"g\", \"pid\": 1, \"tid\": %u, \"ts\": %" PRIu64 ".%03u, \"name\": ",
            writing->written_count++ ? "," : "", record->thread, time_ns / 1000, (unsigned)(time_ns % 1000));
        zr_text_json_string(text, name, strlen(name));
        return zr_text_print(text, "}");
    }
    put_counter(writing, "live bytes", time_ns);
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        if (writing->own->moments->peak.figures.live_by_tag_bytes[tag] > 0 ||
            memory->live_by_tag_bytes[tag] > 0) {
            zr_text_print(text, "%s\"%s\": %" PRIu64, first ? "" : ", ", zr_tag_name((zr_tag)tag),
                          memory->live_by_tag_bytes[tag]);
            first = false;
        }
    zr_text_print(text, "}}");
    if (writing->own->recording->has_pending) {
        put_counter(writing, "pending bytes", time_ns);
        zr_text_print(text, "\"pending\": %" PRIu64 "}}", memory->pending_bytes);
    }
    if (writing->own->recording->has_maps) {
        put_counter(writing, "reserved bytes", time_ns);
        zr_text_print(text, "\"reserved\": %" PRIu64 "}}", memory->reserved_bytes);
    }
    return text->result;
}

static zr_result write_perfetto(const struct zr_export *own, struct zr_text *text)
{
    zr_text_print(text, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
    zr_result result = play(own, text, perfetto_event, NULL);
    zr_text_print(text, "\n]}\n");
    return result;
}

const struct zr_export_format zr_export_formats[] = {{"torch", true, true, false, zr_export_torch},
                                                     {"rmm", false, true, true, write_rmm},
                                                     {"minimalloc", false, false, true, write_minimalloc},
                                                     {"perfetto", false, false, true, write_perfetto},
                                                     {"pprof", false, false, false, zr_export_pprof},
                                                     {"csv", false, false, true, write_csv},
                                                     {NULL, false, false, false, NULL}};
