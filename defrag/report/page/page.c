/* page.c: converts a recording to columns, and writes the page around them. Uses page_*.c and memory.c. */
#include "defrag/report/page/page.h"

#include <inttypes.h>
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/report/address_map.h"
#include "defrag/report/page/page_bands.h"
#include "defrag/report/page/page_levels.h"

enum { PROGRESS_RECORDS = 1 << 16, META_BYTES = 1 << 16, UNUSABLE_SIZES = 6, FAR_BYTES = 1 << 20 };

/* The columns of the page, in this order: the small ones first. */
enum column {
    META,
    BANDS,
    CURVE_TIME,
    CURVE_START,
    CURVE_PEAK,
    CELLS,
    REFUSED,
    MARKS,
    MAPS,
    FRAMES,
    STACKS,
    ALLOC_MOMENT,
    ALLOC_PLACE,
    ALLOC_BYTES,
    ALLOC_ROUNDING,
    ALLOC_TAG,
    ALLOC_STACK,
    ALLOC_STREAM,
    FREE_MOMENT,
    FREE_AGE,
    ASKED_MOMENT,
    ASKED_AGE,
    COLUMNS
};
static const char *const names[COLUMNS] = {
    "meta",        "bands",       "curve_time",     "curve_start", "curve_peak",  "cells",
    "refused",     "marks",       "maps",           "frames",      "stacks",      "alloc_moment",
    "alloc_place", "alloc_bytes", "alloc_rounding", "alloc_tag",   "alloc_stack", "alloc_stream",
    "free_moment", "free_age",    "asked_moment",   "asked_age"};

static const uint64_t unusable_sizes[UNUSABLE_SIZES] = {UINT64_C(1) << 20,   UINT64_C(4) << 20,
                                                        UINT64_C(16) << 20,  UINT64_C(64) << 20,
                                                        UINT64_C(256) << 20, UINT64_C(1) << 30};

/* One recording during its conversion. */
struct passing {
    const struct zr_page_source *source;
    struct zr_memory memory;
    struct zr_bands bands;
    struct zr_levels levels;
    struct zr_page_stacks stacks;
    uint64_t before_count, done_count, maps_count, refused_count, marks_count;
    double unusable[UNUSABLE_SIZES]; /* at the failure, or else at the end */
    struct zr_column columns[COLUMNS];
    char meta[META_BYTES];
};

/* ---- Bands: the first pass ----------------------------------------------------------------------------- */

static uint64_t end_of(uint64_t address, uint64_t bytes)
{
    return bytes > UINT64_MAX - address ? UINT64_MAX : address + bytes;
}

static uint64_t block_bytes(const struct zr_record *record)
{
    return record->reserved_bytes > record->bytes ? record->reserved_bytes : record->bytes;
}

static zr_result take_addresses(void *state, const struct zr_record *record, bool *stop)
{
    struct passing *own = state;
    (void)stop;
    own->before_count += record->before;
    if (own->source->progress && own->done_count++ % PROGRESS_RECORDS == 0)
        own->source->progress(own->source->progress_state, own->done_count / 3,
                              own->source->moments->now.records_count);
    if (record->kind != ZR_RECORD_ALLOC && record->kind != ZR_RECORD_MAP)
        return ZR_OK;
    if (!own->source->recording->has_addresses)
        return ZR_OK;
    uint64_t bytes = record->kind == ZR_RECORD_ALLOC ? block_bytes(record) : record->bytes;
    return zr_bands_add(&own->bands, record->address, end_of(record->address, bytes));
}

static void put_bands(struct passing *own)
{
    struct zr_column *column = &own->columns[BANDS];
    for (size_t i = 0; i < own->bands.items.count; i++) {
        const struct zr_band *band = zr_vector_at(&own->bands.items, i);
        zr_column_number(column, band->begin);
        zr_column_number(column, band->end - band->begin);
    }
}

/* ---- Records: the second pass -------------------------------------------------------------------------- */

static void count_moment(struct zr_column *column, uint64_t moment)
{
    zr_column_number(column, moment - column->last);
    column->last = moment;
}

static uint64_t place_of(const struct passing *own, uint64_t address)
{
    struct zr_band_part part;
    return zr_bands_part(&own->bands, address, end_of(address, 1), &part) ? part.place : 0;
}

static void change_cells(struct passing *own, uint64_t address, uint64_t bytes, unsigned kind, bool comes)
{
    if (bytes > 0 && own->source->recording->has_addresses)
        zr_levels_change(&own->levels, &(struct zr_levels_change){.moment = own->memory.records_count + 1,
                                                                  .place = place_of(own, address),
                                                                  .bytes = bytes,
                                                                  .kind = kind,
                                                                  .comes = comes});
}

/* A block without a tag gets the one that its stack tells. */
static zr_result take_alloc(struct passing *own, struct zr_record *record, uint64_t moment)
{
    struct zr_column *columns = own->columns;
    uint64_t bytes = block_bytes(record);
    uint32_t stack;
    zr_result result = zr_page_stack_number(&own->stacks, record->stack, &stack);
    if (result != ZR_OK)
        return result;
    if (record->tag == ZR_TAG_OTHER)
        record->tag = (uint8_t)zr_page_stack_tag(&own->stacks, stack);
    count_moment(&columns[ALLOC_MOMENT], moment);
    if (own->source->recording->has_addresses)
        zr_column_difference(&columns[ALLOC_PLACE], place_of(own, record->address));
    zr_column_number(&columns[ALLOC_BYTES], record->bytes);
    zr_column_number(&columns[ALLOC_ROUNDING], bytes - record->bytes);
    zr_column_number(&columns[ALLOC_TAG], record->tag);
    zr_column_number(&columns[ALLOC_STACK], stack);
    zr_column_number(&columns[ALLOC_STREAM], record->stream);
    change_cells(own, record->address, bytes, record->tag, true);
    return ZR_OK;
}

static void take_free(struct passing *own, const struct zr_record *record, uint64_t moment)
{
    const struct zr_range_record *block = zr_extents_floor(&own->memory.blocks, record->address);
    bool asked = record->kind == ZR_RECORD_FREE_ASKED;
    if (!block || block->address != record->address) /* zr_memory_apply() reports the error */
        return;
    count_moment(&own->columns[asked ? ASKED_MOMENT : FREE_MOMENT], moment);
    zr_column_number(&own->columns[asked ? ASKED_AGE : FREE_AGE],
                     own->memory.allocations_count - 1 - block->number);
    change_cells(own, block->address, block->bytes, block->pending ? ZR_TAG_COUNT : block->tag, false);
    if (asked)
        change_cells(own, block->address, block->bytes, ZR_TAG_COUNT, true);
}

/* Called after the record, when the memory has the new reserved bytes. */
static void take_map(struct passing *own, const struct zr_record *record, uint64_t moment)
{
    struct zr_column *column = &own->columns[MAPS];
    uint64_t begin = record->address, end = end_of(begin, record->bytes);
    for (struct zr_band_part part; zr_bands_part(&own->bands, begin, end, &part); begin = part.next) {
        zr_column_number(column, moment);
        zr_column_number(column, record->kind == ZR_RECORD_MAP);
        zr_column_number(column, part.place);
        zr_column_number(column, part.bytes);
        zr_column_number(column, own->memory.reserved_bytes);
        zr_column_number(column, record->pool);
        zr_column_number(column, record->stream);
        own->maps_count++;
    }
}

static void take_others(struct passing *own, const struct zr_record *record, uint64_t moment)
{
    if (record->kind == ZR_RECORD_REFUSED) {
        zr_column_number(&own->columns[REFUSED],
                         moment - 1); /* the number of records before it, as in struct zr_moments */
        zr_column_number(&own->columns[REFUSED], record->bytes);
        zr_column_number(&own->columns[REFUSED], record->tag);
        own->refused_count++;
    } else if (record->kind == ZR_RECORD_MARK) {
        size_t bytes = record->label ? strlen(record->label) : 0;
        zr_column_number(&own->columns[MARKS], moment);
        zr_column_number(&own->columns[MARKS], bytes);
        zr_column_put(&own->columns[MARKS], record->label, bytes);
        own->marks_count++;
    }
}

static void measure_unusable(struct passing *own)
{
    for (unsigned i = 0; i < UNUSABLE_SIZES; i++)
        own->unusable[i] = zr_unusable_ratio(&own->memory, unusable_sizes[i]);
}

static zr_result take(void *state, const struct zr_record *from, bool *stop)
{
    struct passing *own = state;
    struct zr_record copy = *from, *record = &copy;
    const struct zr_moments *moments = own->source->moments;
    uint64_t moment = own->memory.records_count + 1;
    zr_result result = ZR_OK;
    (void)stop;
    if (own->source->progress && own->done_count++ % PROGRESS_RECORDS == 0)
        own->source->progress(own->source->progress_state, own->done_count / 3 + moment / 3,
                              moments->now.records_count);
    if (record->kind == ZR_RECORD_REFUSED && moments->failure.records_count == moment - 1)
        measure_unusable(own);
    zr_levels_advance(&own->levels, moment);
    if (record->kind == ZR_RECORD_ALLOC)
        result = take_alloc(own, record, moment);
    else if (record->kind == ZR_RECORD_FREE || record->kind == ZR_RECORD_FREE_ASKED)
        take_free(own, record, moment);
    else
        take_others(own, record, moment);
    if (result == ZR_OK)
        result = zr_memory_apply(&own->memory, record);
    if (result == ZR_OK && (record->kind == ZR_RECORD_MAP || record->kind == ZR_RECORD_UNMAP))
        take_map(own, record, moment);
    if (result == ZR_OK)
        zr_levels_note(&own->levels, &own->memory, record->time_ns);
    return result;
}

/* ---- Figures ------------------------------------------------------------------------------------------- */

static void say_moment(struct zr_text *text, const char *name, const struct zr_moment *moment)
{
    const struct zr_memory_figures *figures = &moment->figures;
    const struct {
        const char *key;
        uint64_t number;
    } rows[] = {{"moment", moment->records_count},           {"time_ns", moment->time_ns},
                {"live_bytes", figures->live_bytes},         {"requested_bytes", figures->requested_bytes},
                {"internal_bytes", figures->internal_bytes}, {"pending_bytes", figures->pending_bytes},
                {"reserved_bytes", figures->reserved_bytes}, {"releasable_bytes", figures->releasable_bytes},
                {"stranded_bytes", figures->stranded_bytes}};
    zr_text_print(text, "\"%s\": {", name);
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        zr_text_print(text, "%s\"%s\": %" PRIu64, i ? ", " : "", rows[i].key, rows[i].number);
    zr_text_print(text, "}, ");
}

static void say_flag(struct zr_text *text, const char *key, bool flag)
{
    zr_text_print(text, "\"%s\": %s, ", key, flag ? "true" : "false");
}

static void say_number(struct zr_text *text, const char *key, uint64_t number)
{
    zr_text_print(text, "\"%s\": %" PRIu64 ", ", key, number);
}

static void say_tags(struct zr_text *text, const struct zr_recording *recording)
{
    zr_text_print(text, "\"tags\": [");
    for (unsigned i = 0; i <= ZR_TAG_COUNT; i++)
        zr_text_print(text, "%s[\"%s\", \"#%06" PRIx32 "\"]", i ? ", " : "",
                      i < ZR_TAG_COUNT ? zr_page_tag_name(recording, (zr_tag)i) : "pending",
                      zr_map_colour(i < ZR_TAG_COUNT ? ZR_MAP_LIVE : ZR_MAP_PENDING, i));
    zr_text_print(text, "], ");
}

static zr_result put_meta(struct passing *own)
{
    const struct zr_moments *moments = own->source->moments;
    const struct zr_recording *recording = own->source->recording;
    size_t name_bytes = strlen(own->source->name);
    struct zr_text text;
    zr_text_start(&text, NULL, own->meta, sizeof own->meta);
    zr_text_print(&text, "{\"name\": ");
    zr_text_json_string(&text, own->source->name, name_bytes < 4096 ? name_bytes : 4096);
    zr_text_print(&text, ", \"format\": \"%s\", ", recording->format);
    say_flag(&text, "has_addresses", recording->has_addresses);
    say_flag(&text, "has_maps", recording->has_maps);
    say_flag(&text, "has_pending", recording->has_pending);
    say_flag(&text, "has_times", recording->has_times);
    say_flag(&text, "cut_short", recording->cut_short);
    zr_text_print(&text, "\"pools\": \"%s\", \"device\": %d, \"devices\": %d, ",
                  recording->kind == ZR_RECORDING_TORCH ? "torch" : "", recording->device,
                  recording->devices_count);
    say_number(&text, "moments_count", moments->now.records_count + 1);
    say_number(&text, "before_count", own->before_count);
    say_number(&text, "allocations_count", own->memory.allocations_count);
    say_number(&text, "maps_count", own->maps_count);
    say_number(&text, "refused_count", own->refused_count);
    say_number(&text, "marks_count", own->marks_count);
    say_number(&text, "frames_count", own->stacks.frames_count);
    say_number(&text, "stacks_count", own->stacks.stacks_count);
    say_number(&text, "axis_bytes", own->bands.bytes);
    say_number(&text, "step_moments", own->levels.step_moments);
    say_number(&text, "column_moments", own->levels.column_moments);
    say_number(&text, "row_bytes", own->levels.row_bytes);
    say_number(&text, "rows_count", own->levels.rows_count);
    say_number(&text, "peak_reserved_bytes", moments->peak_reserved_bytes);
    say_number(&text, "peak_requested_bytes", moments->peak_requested_bytes);
    say_moment(&text, "now", &moments->now);
    say_moment(&text, "peak", &moments->peak);
    if (moments->has_failure)
        say_moment(&text, "failure", &moments->failure);
    say_tags(&text, recording);
    zr_text_print(&text, "\"unusable\": [");
    for (unsigned i = 0; i < UNUSABLE_SIZES; i++)
        zr_text_print(&text, "%s[%" PRIu64 ", %.9g]", i ? ", " : "", unusable_sizes[i], own->unusable[i]);
    zr_text_print(&text, "], \"gmlake_ratio\": %.9g, \"stranded_time_weighted\": %.9g", moments->gmlake_ratio,
                  moments->stranded_time_weighted);
    zr_column_put(&own->columns[META], own->meta, text.used_bytes);
    zr_column_put(&own->columns[META], own->source->reasons, strlen(own->source->reasons));
    zr_column_put(&own->columns[META], "}", 1);
    return text.result;
}

/* ---- The page ------------------------------------------------------------------------------------------ */

static zr_result go_through(struct passing *own, zr_arena *arena)
{
    struct zr_recording *recording = own->source->recording;
    uint64_t moments_count = own->source->moments->now.records_count + 1;
    zr_result result = zr_recording_play(recording, &(struct zr_recording_sink){take_addresses, own});
    zr_bands_settle(&own->bands);
    put_bands(own);
    if (result == ZR_OK)
        result = zr_levels_start(&own->levels,
                                 &(struct zr_levels_plan){.moments_count = moments_count,
                                                          .bytes = own->bands.bytes,
                                                          .start = &own->columns[CURVE_START],
                                                          .peak = &own->columns[CURVE_PEAK],
                                                          .times = &own->columns[CURVE_TIME],
                                                          .cells = &own->columns[CELLS]},
                                 arena);
    if (result != ZR_OK)
        return result;
    zr_levels_note(&own->levels, &own->memory, 0);
    result = zr_recording_play(recording, &(struct zr_recording_sink){take, own});
    if (result != ZR_OK)
        return result;
    zr_levels_finish(&own->levels, moments_count);
    if (!own->source->moments->has_failure)
        measure_unusable(own);
    return put_meta(own);
}

zr_result zr_page_add(struct zr_html_page *page, const struct zr_page_source *source, zr_arena *arena)
{
    void *room;
    struct zr_request request = {.bytes = sizeof(struct passing), .tag = ZR_TAG_OTHER};
    zr_result result = zr_arena_alloc(arena, &request, &room);
    if (result != ZR_OK)
        return result;
    struct passing *own = memset(room, 0, sizeof *own);
    own->source = source;
    page->swap->end_bytes = 0;
    zr_memory_init(&own->memory, source->recording, arena);
    zr_bands_init(&own->bands, arena, source->recording->has_maps ? 0 : FAR_BYTES);
    zr_page_stacks_init(&own->stacks, source->recording, arena);
    own->stacks.frames = &own->columns[FRAMES];
    own->stacks.stacks = &own->columns[STACKS];
    for (unsigned i = 0; i < COLUMNS; i++)
        zr_column_start(&own->columns[i], names[i], page->swap, arena);
    result = go_through(own, arena);
    for (unsigned i = 0; i < COLUMNS && result == ZR_OK; i++)
        result = zr_column_write(&own->columns[i], &page->text, page->files_count);
    page->files_count += result == ZR_OK;
    for (unsigned i = 0; i < COLUMNS; i++)
        zr_column_end(&own->columns[i]);
    zr_levels_end(&own->levels);
    zr_page_stacks_end(&own->stacks);
    zr_bands_end(&own->bands);
    zr_memory_end(&own->memory);
    zr_arena_free(arena, own);
    return result;
}

static void put(struct zr_html_page *page, const char *words)
{
    zr_text_put(&page->text, words, strlen(words));
}

void zr_page_start(struct zr_html_page *page, struct zr_file *file, struct zr_page_columns *swap)
{
    page->swap = swap;
    page->files_count = 0;
    zr_text_start(&page->text, file, page->buffer, sizeof page->buffer);
    put(page, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
              "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
              "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n"
              "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
              "<meta name=\"color-scheme\" content=\"light dark\">\n"
              "<link rel=\"icon\" href=\"data:,\">\n<title>zr report</title>\n<style>\n");
    put(page, zr_page_css);
    put(page, "</style>\n</head>\n<body>\n");
    put(page, zr_page_html);
}

zr_result zr_page_finish(struct zr_html_page *page)
{
    put(page, "<script>\n\"use strict\";\n");
    put(page, zr_page_data_js);
    put(page, zr_page_draw_js);
    put(page, zr_page_map_js);
    put(page, zr_page_flame_js);
    put(page, zr_page_js);
    put(page, "</script>\n</body>\n</html>\n");
    return zr_text_flush(&page->text);
}

/* ---- The page's own files ------------------------------------------------------------------------------ */

/* Included by the assembler. The Makefile has the dependencies. */
#define EMBED(name, path)                                                                                    \
    __asm__(".pushsection .rodata\n"                                                                         \
            ".global " #name "\n"                                                                            \
            ".hidden " #name "\n"                                                                            \
            ".type " #name ", @object\n" #name ":\n"                                                         \
            ".incbin \"" path "\"\n"                                                                         \
            ".byte 0\n"                                                                                      \
            ".size " #name ", . - " #name "\n"                                                               \
            ".popsection\n")

EMBED(zr_page_css, "defrag/report/page/page.css");
EMBED(zr_page_html, "defrag/report/page/page.html");
EMBED(zr_page_data_js, "defrag/report/page/page_data.js");
EMBED(zr_page_draw_js, "defrag/report/page/page_draw.js");
EMBED(zr_page_map_js, "defrag/report/page/page_map.js");
EMBED(zr_page_flame_js, "defrag/report/page/page_flame.js");
EMBED(zr_page_js, "defrag/report/page/page.js");
