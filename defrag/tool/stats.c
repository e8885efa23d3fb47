/* stats.c: `zr stats`: live, reserved and stranded bytes at the end, the peak, the failure or a chosen point
 * in time. Uses defrag/report/. */
#include <inttypes.h>
#include <string.h>

#include "defrag/tool/input.h"
#include "defrag/tool/samples.h"
#include "defrag/tool/stats_phases.h"

static const char help[] =
    "Shows live, reserved and stranded memory: at the end, at the peak, at the failure, at any moment.\n"
    "\n"
    "Examples\n"
    "  zr stats snapshot.pickle\n"
    "  zr stats run.zrt --json\n"
    "  zr stats snapshot.pickle --segments\n"
    "  zr stats run.zrt --at 12.5s                 or --at 'mark:epoch 2'\n"
    "  zr stats snapshot.pickle --by 'forward=forward' --by 'loading=torch/serialization'\n"
    "  zr stats 4711                               each arena of a running process, now\n"
    "  ssh host cat run.zrt | zr stats -\n"
    "\n"
    "zr stats FILE.. [options]\n"
    "  FILE          a .zrt trace, a PyTorch snapshot, an RMM log or a MiniMalloc CSV; - is standard input; or the number of\n"
    "                a process, as zr ps shows it: each of its arenas; 4711/large is one arena, by its name or number\n"
    "  --at MOMENT   one more column: " ZR_MOMENT_WORDS "\n"
    "  --segments    each segment (PyTorch) or mapped range (.zrt), at that moment, or else at the end\n"
    "  --phases      between the marks of one label (user_metadata, annotate, zr_mark): the most live and reserved, retries\n"
    "                (an allocation that returned cached segments first) and flushes (of the cache, by the program)\n"
    "  --by NAME=RE  the same, with the live bytes of call stacks that match, in a column NAME; up to 16 of them, each block is\n"
    "                of the first that matches a frame, \"name (file:line)\"\n"
    "  --device N    of a snapshot of several devices (default: the one with the most events)\n"
    "  --unit BYTES  one unit of the sizes in a MiniMalloc CSV (default 1)\n"
    "  --json        JSON instead of a table\n"
    "\n"
    "live: blocks, with rounding; rounding: live minus requested; pending: freed, and a stream may still use the memory;\n"
    "releasable: whole granules or whole segments without a block; stranded: the rest of what is reserved. RMM logs and\n"
    "MiniMalloc CSVs do not contain reserved memory.\n";

enum { UNUSABLE_SIZES = 6 };
static const uint64_t unusable_sizes[UNUSABLE_SIZES] = {UINT64_C(1) << 20,   UINT64_C(4) << 20,
                                                        UINT64_C(16) << 20,  UINT64_C(64) << 20,
                                                        UINT64_C(256) << 20, UINT64_C(1) << 30};

struct settings {
    struct zr_tool_arguments arguments;
    struct zr_tool_reading reading;
    const char *at; /* NULL: --at was not given */
    struct zr_tool_texts by;
    struct zr_stats_patterns *patterns; /* of --by */
    bool segments, phases, json;
};

/* The measured figures of one file. */
struct view {
    struct zr_tool_input input;
    double unusable[UNUSABLE_SIZES]; /* at --at, else at the failure, else at the end */
    struct zr_moment at;
    struct zr_memory memory; /* at --at, else at the end */
    struct zr_phases phases;
    struct zr_samples samples;
    bool has_at, has_phases;
};

/* ---- Reading ------------------------------------------------------------------------------------------- */

static const struct zr_memory *shown_memory(const struct view *view)
{
    return view->has_at ? &view->memory : &view->input.now;
}

static zr_result note_phases(void *state, const struct zr_record *record, bool *stop)
{
    (void)stop;
    return zr_phases_take(state, record);
}

/* One more pass over the file. */
static zr_result find_phases(struct view *view, const struct settings *settings)
{
    struct zr_recording *recording = &view->input.recording;
    struct zr_memory memory = {0};
    view->has_phases = true;
    zr_result result = zr_phases_init(&view->phases, recording, &memory, settings->patterns->list,
                                      settings->patterns->count);
    if (result == ZR_OK)
        result = zr_moment_reach(&memory, recording, view->input.moments.now.records_count,
                                 &(struct zr_recording_sink){note_phases, &view->phases});
    if (result == ZR_OK)
        zr_phases_finish(&view->phases);
    view->phases.memory = NULL;
    zr_memory_end(&memory);
    return result;
}

static zr_result look(struct view *view, const char *file, const struct settings *settings, zr_arena *arena)
{
    const struct zr_moments *moments = &view->input.moments;
    zr_result result = zr_tool_input_open(&view->input, file, &settings->reading, arena);
    if (result != ZR_OK)
        return result;
    if (settings->at) {
        view->has_at = true;
        result = zr_moment_find(moments, &view->input.recording, settings->at, &view->at.records_count);
        if (result == ZR_OK)
            result = zr_moment_reach(&view->memory, &view->input.recording, view->at.records_count, NULL);
        if (result == ZR_OK)
            zr_memory_get_figures(&view->memory, &view->at.figures);
    }
    struct zr_memory failed = {0};
    bool at_failure = !settings->at && moments->has_failure;
    if (result == ZR_OK && at_failure)
        result = zr_moment_reach(&failed, &view->input.recording, moments->failure.records_count, NULL);
    const struct zr_memory *memory = at_failure ? &failed : shown_memory(view);
    for (unsigned i = 0; i < UNUSABLE_SIZES && result == ZR_OK; i++)
        view->unusable[i] = zr_unusable_ratio(memory, unusable_sizes[i]);
    zr_memory_end(&failed);
    if (result == ZR_OK)
        result = zr_samples_find(&view->samples, &view->input.recording, arena);
    if (result == ZR_OK && (settings->phases || settings->by.count > 0))
        result = find_phases(view, settings);
    return result;
}

static void forget(struct view *view)
{
    if (view->has_phases)
        zr_phases_end(&view->phases);
    zr_samples_end(&view->samples);
    zr_memory_end(&view->memory);
    zr_tool_input_end(&view->input);
}

/* A mapped range and the bytes of its blocks. */
struct segment {
    uint64_t live_bytes, requested_bytes, pending_bytes, free_bytes, largest_free_bytes, blocks_count;
};

/* Adds up the parts of the range that `piece` begins, and advances *piece to the first part of the next
 * range. */
static bool add_up(struct zr_memory_walk *walk, struct zr_memory_piece *piece, struct segment *out)
{
    const struct zr_range_record *mapped = piece->mapped;
    bool more = true;
    *out = (struct segment){0};
    for (; more && piece->mapped == mapped; more = zr_memory_next(walk, piece)) {
        const struct zr_range_record *block = piece->block;
        if (!block) {
            out->free_bytes += piece->bytes;
            if (piece->bytes > out->largest_free_bytes)
                out->largest_free_bytes = piece->bytes;
            continue;
        }
        out->blocks_count++;
        out->live_bytes += block->pending ? 0 : block->bytes;
        out->requested_bytes += block->pending ? 0 : block->requested_bytes;
        out->pending_bytes += block->pending ? block->bytes : 0;
    }
    return more;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void json_moment(struct zr_text *text, const char *name, const struct zr_moment *moment,
                        const struct zr_recording *recording, bool live_peak)
{
    const struct zr_memory_figures *figures = &moment->figures;
    const struct {
        const char *key;
        uint64_t number;
        bool known;
    } rows[] = {{"live_bytes", figures->live_bytes, true},
                {"requested_bytes", figures->requested_bytes, true},
                {"reserved_bytes", figures->reserved_bytes, recording->has_maps},
                {"internal_bytes", figures->internal_bytes, !live_peak},
                {"pending_bytes", figures->pending_bytes, recording->has_pending},
                {"stranded_bytes", figures->stranded_bytes, recording->has_maps && !live_peak},
                {"releasable_bytes", figures->releasable_bytes, recording->has_maps && !live_peak}};
    zr_text_print(text, "\"%s\": {", name);
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        zr_text_print(text, i ? ", " : "");
        zr_tool_json_number(text, rows[i].key, rows[i].number, rows[i].known);
    }
    zr_text_print(text, "}");
}

static void json_ratio(struct zr_text *text, const char *key, double ratio, bool known)
{
    if (known)
        zr_text_print(text, "\"%s\": %.9g", key, ratio);
    else
        zr_text_print(text, "\"%s\": null", key);
}

static void json_segments(struct zr_text *text, const struct zr_memory *memory)
{
    struct zr_memory_walk walk = zr_memory_walk_of(memory);
    struct zr_memory_piece piece;
    struct segment sums;
    bool more = zr_memory_next(&walk, &piece), first = true;
    zr_text_print(text, ",\n \"segments\": [");
    while (more) {
        const struct zr_range_record *mapped = piece.mapped;
        more = add_up(&walk, &piece, &sums);
        if (!mapped)
            continue;
        zr_text_print(text, "%s\n  {\"address\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"stream\": %" PRIu64,
                      first ? "" : ",", mapped->address, mapped->bytes, mapped->stream);
        zr_text_print(text,
                      ", \"live_bytes\": %" PRIu64 ", \"requested_bytes\": %" PRIu64
                      ", \"pending_bytes\": %" PRIu64,
                      sums.live_bytes, sums.requested_bytes, sums.pending_bytes);
        zr_text_print(text, ", \"largest_free_run_bytes\": %" PRIu64 ", \"blocks\": %" PRIu64 "}",
                      sums.largest_free_bytes, sums.blocks_count);
        first = false;
    }
    zr_text_print(text, "]");
}

static void json_view(struct zr_text *text, const struct view *view, const struct settings *settings)
{
    const struct zr_recording *recording = &view->input.recording;
    const struct zr_moments *moments = &view->input.moments;
    bool maps = recording->has_maps;
    zr_text_print(text, "\"moments\": {");
    json_moment(text, "now", &moments->now, recording, false);
    zr_text_print(text, ",\n  ");
    json_moment(text, "peak", &moments->peak, recording, view->input.is_live);
    if (moments->has_failure) {
        zr_text_print(text, ",\n  ");
        json_moment(text, "failure", &moments->failure, recording, false);
    }
    if (view->has_at) {
        zr_text_print(text, ",\n  ");
        json_moment(text, "at", &view->at, recording, false);
    }
    zr_text_print(text, "},\n \"stranded_ratio\": {");
    json_ratio(text, "now", zr_stranded_ratio(&moments->now.figures), maps);
    zr_text_print(text, ", ");
    json_ratio(text, "peak", zr_stranded_ratio(&moments->peak.figures), maps && !view->input.is_live);
    zr_text_print(text, ", ");
    json_ratio(text, "time_weighted", moments->stranded_time_weighted, maps && !view->input.is_live);
    if (view->has_at) {
        zr_text_print(text, ", ");
        json_ratio(text, "at", zr_stranded_ratio(&view->at.figures), maps);
    }
    zr_text_print(text, "}, ");
    json_ratio(text, "gmlake_ratio", moments->gmlake_ratio, maps);
    zr_text_print(text, ",\n \"unusable_free_space\": [");
    for (unsigned i = 0; i < UNUSABLE_SIZES && maps; i++)
        zr_text_print(text, "%s{\"bytes\": %" PRIu64 ", \"index\": %.9g}", i ? ", " : "", unusable_sizes[i],
                      view->unusable[i]);
    zr_text_print(text,
                  "],\n \"format\": \"%s\", \"events\": %" PRIu64 ", \"failures\": %" PRIu64
                  ", \"cut_short\": %s",
                  recording->format, moments->now.records_count, moments->failures_count,
                  recording->cut_short ? "true" : "false");
    zr_text_print(text, ", \"peak_requested_bytes\": %" PRIu64 ", ", moments->peak_requested_bytes);
    zr_tool_json_number(text, "peak_reserved_bytes", moments->peak_reserved_bytes, maps);
    if (maps)
        json_segments(text, shown_memory(view));
    if (view->has_phases)
        zr_stats_phases_json(text, &view->phases, settings->patterns);
    zr_samples_json(text, &view->samples);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

/* A row of the table. of_peak: the figure of a live process is known at the peak. */
struct row {
    const char *name;
    size_t offset;
    bool known, of_peak;
};

static void print_row(struct zr_text *text, const struct view *view, const struct row *row)
{
    const struct zr_moments *moments = &view->input.moments;
    const struct zr_moment *shown[] = {&moments->now, &moments->peak, &moments->failure, &view->at};
    const bool there[] = {true, true, moments->has_failure, view->has_at};
    char number[ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "  %-12s", row->name);
    for (unsigned i = 0; i < sizeof shown / sizeof *shown; i++) {
        uint64_t bytes;
        memcpy(&bytes, (const char *)&shown[i]->figures + row->offset, sizeof bytes);
        bool known = row->known && (row->of_peak || i != 1 || !view->input.is_live);
        if (there[i])
            zr_text_print(text, " %12s", known ? zr_tool_bytes(number, bytes) : "not known");
    }
    zr_text_print(text, "\n");
}

static void print_rows(struct zr_text *text, const struct view *view)
{
    bool maps = view->input.recording.has_maps, pending = view->input.recording.has_pending;
    const struct row rows[] = {
        {"live", offsetof(struct zr_memory_figures, live_bytes), true, true},
        {"requested", offsetof(struct zr_memory_figures, requested_bytes), true, true},
        {"rounding", offsetof(struct zr_memory_figures, internal_bytes), true, false},
        {"pending", offsetof(struct zr_memory_figures, pending_bytes), pending, false},
        {"reserved", offsetof(struct zr_memory_figures, reserved_bytes), maps, true},
        {"releasable", offsetof(struct zr_memory_figures, releasable_bytes), maps, false},
        {"stranded", offsetof(struct zr_memory_figures, stranded_bytes), maps, false}};
    zr_text_print(text, "  %-12s %12s %12s%s", "", "now", "peak",
                  view->input.moments.has_failure ? "      failure" : "");
    if (view->has_at)
        zr_text_print(text, " %4s%8" PRIu64, "at", view->at.records_count);
    zr_text_print(text, "\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        print_row(text, view, &rows[i]);
}

static void print_ratios(struct zr_text *text, const struct view *view)
{
    const struct zr_moments *moments = &view->input.moments;
    zr_text_print(text, "  stranded of reserved: %.1f %% now",
                  100 * zr_stranded_ratio(&moments->now.figures));
    if (!view->input.is_live)
        zr_text_print(text, ", %.1f %% at the peak, %.1f %% over time",
                      100 * zr_stranded_ratio(&moments->peak.figures), 100 * moments->stranded_time_weighted);
    if (view->has_at)
        zr_text_print(text, ", %.1f %% after %" PRIu64 " events", 100 * zr_stranded_ratio(&view->at.figures),
                      view->at.records_count);
    zr_text_print(text, "\n  GMLake's ratio, 1 - peak live / peak reserved: %.1f %%\n",
                  100 * moments->gmlake_ratio);
    zr_text_print(text, "  free, in runs too short for a request (%s):",
                  view->has_at           ? "at that moment"
                  : moments->has_failure ? "at the failure"
                                         : "now");
    for (unsigned i = 0; i < UNUSABLE_SIZES; i++) {
        char size[ZR_TOOL_NUMBER_ROOM];
        zr_text_print(text, "%s %.0f %% of %s", i ? "," : "", 100 * view->unusable[i],
                      zr_tool_bytes(size, unusable_sizes[i]));
    }
    zr_text_print(text, "\n");
}

static void table_tags(struct zr_text *text, const struct zr_memory_figures *figures, const char *when)
{
    char number[ZR_TOOL_NUMBER_ROOM];
    if (figures->live_by_tag_bytes[ZR_TAG_OTHER] == figures->live_bytes)
        return;
    zr_text_print(text, "  live %s, by tag\n", when);
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        if (figures->live_by_tag_bytes[tag] > 0)
            zr_text_print(text, "    %-10s %12s\n", zr_tag_name((zr_tag)tag),
                          zr_tool_bytes(number, figures->live_by_tag_bytes[tag]));
}

static void table_segments(struct zr_text *text, const struct zr_memory *memory)
{
    struct zr_memory_walk walk = zr_memory_walk_of(memory);
    struct zr_memory_piece piece;
    struct segment sums;
    char room[4][ZR_TOOL_NUMBER_ROOM];
    bool more = zr_memory_next(&walk, &piece);
    zr_text_print(text, "  %-18s %10s %10s %10s %10s %7s %s\n", "segment", "bytes", "live", "free", "largest",
                  "blocks", "stream");
    while (more) {
        const struct zr_range_record *mapped = piece.mapped;
        more = add_up(&walk, &piece, &sums);
        if (!mapped)
            continue;
        zr_text_print(text, "  0x%-16" PRIx64 " %10s %10s %10s %10s %7" PRIu64 " %" PRIu64 "\n",
                      mapped->address, zr_tool_bytes(room[0], mapped->bytes),
                      zr_tool_bytes(room[1], sums.live_bytes), zr_tool_bytes(room[2], sums.free_bytes),
                      zr_tool_bytes(room[3], sums.largest_free_bytes), sums.blocks_count, mapped->stream);
    }
}

static void table(struct zr_text *text, struct view *view, const struct settings *settings)
{
    const struct zr_recording *recording = &view->input.recording;
    const struct zr_moments *moments = &view->input.moments;
    zr_text_put_plain(text, view->input.name);
    zr_text_print(text, "\n  %s, %" PRIu64 " events, %" PRIu64 " allocations", recording->format,
                  moments->now.records_count, moments->allocations_count);
    if (moments->before_count > 0)
        zr_text_print(text, " (%" PRIu64 " from before the window)", moments->before_count);
    zr_text_print(text, "%s\n", recording->cut_short ? ", truncated" : "");
    print_rows(text, view);
    if (recording->has_maps)
        print_ratios(text, view);
    if (moments->has_failure) {
        char size[ZR_TOOL_NUMBER_ROOM];
        zr_text_print(text, "  %" PRIu64 " allocation%s refused, the last of %s: zr why says why\n",
                      moments->failures_count, moments->failures_count == 1 ? "" : "s",
                      zr_tool_bytes(size, moments->refused.bytes));
    }
    if (view->has_at)
        table_tags(text, &view->at.figures, "at that moment");
    else if (view->input.is_live)
        table_tags(text, &moments->now.figures, "now");
    else
        table_tags(text, &moments->peak.figures, "at the peak");
    if (view->has_phases)
        zr_stats_phases_print(text, &view->phases, settings->patterns);
    if (settings->segments && recording->has_maps)
        table_segments(text, shown_memory(view));
    zr_samples_table(text, &view->samples);
}

/* ---- The subcommand ------------------------------------------------------------------------------------ */

/* `several`: the JSON is a list, as for the arenas of a process. */
static void show(struct zr_text *text, struct view *view, const struct settings *settings, bool first,
                 bool several)
{
    if (!settings->json) {
        zr_text_print(text, first ? "" : "\n");
        table(text, view, settings);
        return;
    }
    if (several) {
        zr_text_print(text, first ? "\n {" : ",\n {");
        zr_tool_json_words(text, "file", view->input.name);
        zr_text_print(text, ", ");
    }
    json_view(text, view, settings);
    zr_text_print(text, several ? "}" : "");
}

static zr_result work(void *state, zr_arena *arena, int *code)
{
    const struct settings *settings = state;
    struct zr_tool_names names;
    struct zr_vector views;
    struct zr_tool_output out;
    zr_vector_init(&views, arena, sizeof(struct view));
    zr_result result = zr_tool_names_make(&names, &settings->arguments, arena);
    bool several = names.has_process || names.list.count > 1;
    if (result == ZR_OK)
        result = zr_vector_reserve(&views, names.list.count);
    for (size_t i = 0; i < names.list.count && result == ZR_OK; i++) {
        struct view *view = memset(zr_vector_at(&views, views.count++), 0, sizeof(struct view));
        view->input.source.fd = -1;
        result = look(view, zr_tool_name(&names, i), settings, arena);
    }
    if (result == ZR_OK) {
        zr_tool_output_start(&out);
        if (settings->json)
            zr_text_print(&out.text, "{\"version\": 1, %s", several ? "\"results\": [" : "");
        for (size_t i = 0; i < views.count; i++)
            show(&out.text, zr_vector_at(&views, i), settings, i == 0, several);
        if (settings->json)
            zr_text_print(&out.text, several ? "\n]}\n" : "}\n");
        *code = zr_tool_output_end(&out);
    }
    for (size_t i = 0; i < views.count; i++)
        forget(zr_vector_at(&views, i));
    zr_vector_end(&views);
    zr_tool_names_end(&names);
    return result;
}

int zr_tool_stats(int argc, char **argv)
{
    struct zr_stats_patterns patterns = {.count = 0};
    struct settings settings = {.reading = {.device = UINT64_MAX}, .patterns = &patterns};
    const struct zr_tool_option options[] = {
        {"--at", ZR_TOOL_TEXT, &settings.at},
        {"--segments", ZR_TOOL_FLAG, &settings.segments},
        {"--phases", ZR_TOOL_FLAG, &settings.phases},
        {"--by", ZR_TOOL_TEXTS, &settings.by},
        {"--device", ZR_TOOL_COUNT, &settings.reading.device},
        {"--unit", ZR_TOOL_BYTES, &settings.reading.unit_bytes},
        {"--json", ZR_TOOL_FLAG, &settings.json},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    settings.arguments = (struct zr_tool_arguments){.help = help, .options = options, .takes_files = true};
    int code = zr_tool_parse(&settings.arguments, argc, argv);
    settings.reading.held = settings.arguments.files_count == 1; /* memory for one file, not for many */
    if (code < 0)
        code = zr_stats_patterns_read(&patterns, &settings.by) ? zr_tool_with_memory(work, &settings)
                                                               : ZR_TOOL_USAGE;
    zr_stats_patterns_end(&patterns);
    return code;
}
