/* export.c: `zr export`: traces in other programs' formats. Stands on defrag/report/. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "defrag/report/export.h"
#include "defrag/tool/input.h"

static const char help[] =
    "Writes a file of memory events in the format of another program.\n"
    "\n"
    "Examples\n"
    "  zr export --format torch run.zrt -o run.pickle        for pytorch.org/memory_viz\n"
    "  zr export --format perfetto run.zrt -o run.json       for ui.perfetto.dev\n"
    "  zr export --format pprof run.zrt -o run.pb --at peak  for go tool pprof\n"
    "  zr export --format minimalloc run.zrt | zr stats -\n"
    "\n"
    "zr export --format F IN [options]\n"
    "  IN            a .zrt trace, a PyTorch snapshot, an RMM log, a CSV of events or of lifetimes; - is standard input\n"
    "  --format F    torch (needs a file that says what is mapped), rmm (needs addresses), minimalloc (lifetimes; times are\n"
    "                numbers of events), perfetto (JSON), pprof (what is live at a moment), csv (every event)\n"
    "  -o OUT        the file (default: standard output)\n"
    "  --at MOMENT   of pprof: " ZR_MOMENT_WORDS " (default: peak)\n"
    "  --device N    of a snapshot of several devices (default: the one with the most events)\n"
    "  --unit BYTES  one unit of the sizes in a MiniMalloc CSV (default 1)\n";

struct settings {
    struct zr_tool_arguments arguments;
    struct zr_tool_reading reading;
    const struct zr_export_format *format;
    const char *at, *output;
};

static zr_result write_file(const struct settings *settings, const struct zr_export *own)
{
    struct zr_file file = zr_file_borrow(STDOUT_FILENO, "standard output");
    struct zr_text text;
    char buffer[1 << 15];
    zr_result result = settings->output ? zr_file_create(&file, settings->output, ZR_CREATE_REPLACE) : ZR_OK;
    if (result != ZR_OK)
        return result;
    zr_tool_progress_say("writing");
    zr_text_start(&text, &file, buffer, sizeof buffer);
    result = settings->format->write(own, &text);
    if (result == ZR_OK)
        result = zr_text_flush(&text);
    zr_tool_progress_say(NULL);
    zr_result closed = settings->output ? zr_file_close(&file) : ZR_OK;
    return result == ZR_OK ? closed : result;
}

static zr_result work(void *state, zr_arena *arena, int *code)
{
    const struct settings *settings = state;
    const struct zr_export_format *format = settings->format;
    struct zr_tool_input input;
    struct zr_export own = {.recording = &input.recording, .moments = &input.moments, .arena = arena};
    (void)code;
    zr_result result = zr_tool_input_open(&input, settings->arguments.files[0], &settings->reading, arena);
    if (result == ZR_OK && format->needs_maps && !input.recording.has_maps)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' does not say what is mapped, and %s needs it", input.name,
                         format->name);
    if (result == ZR_OK && format->needs_addresses && !input.recording.has_addresses)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' does not say where blocks lie, and %s needs it", input.name,
                         format->name);
    if (result == ZR_OK)
        result = zr_moment_find(&input.moments, &input.recording, settings->at ? settings->at : "peak",
                                &own.records_count);
    if (result == ZR_OK)
        result = write_file(settings, &own);
    zr_tool_input_end(&input);
    return result;
}

static const struct zr_export_format *find(const char *name)
{
    char names[200];
    int used = 0;
    for (const struct zr_export_format *format = zr_export_formats; format->name; format++) {
        if (name && strcmp(format->name, name) == 0)
            return format;
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s", used ? ", " : "", format->name);
    }
    zr_tool_log("export: --format takes one of %s; see zr export --help", names);
    return NULL;
}

int zr_tool_export(int argc, char **argv)
{
    struct settings settings = {.reading = {.device = UINT64_MAX}};
    const char *format = NULL;
    const struct zr_tool_option options[] = {
        {"--format", ZR_TOOL_WORDS, &format},
        {"-o", ZR_TOOL_WORDS, &settings.output},
        {"--at", ZR_TOOL_WORDS, &settings.at},
        {"--device", ZR_TOOL_COUNT, &settings.reading.device},
        {"--unit", ZR_TOOL_BYTES, &settings.reading.unit_bytes},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    settings.arguments = (struct zr_tool_arguments){.help = help, .options = options, .takes_files = true};
    int code = zr_tool_parse(&settings.arguments, argc, argv);
    settings.arguments.options = NULL;
    if (code >= 0)
        return code;
    settings.format = find(format);
    if (!settings.format)
        return ZR_TOOL_USAGE;
    if (settings.arguments.files_count != 1) {
        zr_tool_log("export: one file at a time; see zr export --help");
        return ZR_TOOL_USAGE;
    }
    return zr_tool_with_memory(work, &settings);
}
