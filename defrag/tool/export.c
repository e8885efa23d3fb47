/* export.c: `zr export`: writes traces in other programs' formats. Uses defrag/report/. */
#include <stdio.h>
#include <string.h>

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
    "  --format F    torch (the input must have mapped ranges), rmm (the input must have addresses), minimalloc (lifetimes;\n"
    "                times are numbers of events), perfetto (JSON), pprof (live blocks at one moment), csv (every event)\n"
    "  -o OUT        the file (default: standard output)\n"
    "  --at MOMENT   of pprof: " ZR_MOMENT_WORDS " (default: peak)\n"
    "  --device N    of a snapshot of several devices (default: the one with the most events)\n"
    "  --unit BYTES  one unit of the sizes in a MiniMalloc CSV (default 1)\n";

struct settings {
    struct zr_tool_conversion conversion;
    const struct zr_export_format *format;
};

struct writing {
    const struct zr_export_format *format;
    const struct zr_export *own;
};

static zr_result write_text(void *state, struct zr_text *text)
{
    const struct writing *writing = state;
    return writing->format->write(writing->own, text);
}

static zr_result work(void *state, zr_arena *arena, int *code)
{
    const struct settings *settings = state;
    const struct zr_export_format *format = settings->format;
    struct zr_tool_input input;
    struct zr_export own = {.recording = &input.recording, .moments = &input.moments, .arena = arena};
    (void)code;
    zr_result result =
        zr_tool_input_open(&input, settings->conversion.file, &settings->conversion.reading, arena);
    if (result == ZR_OK && format->needs_maps && !input.recording.has_maps)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' does not contain mapped ranges; %s needs them", input.name,
                         format->name);
    if (result == ZR_OK && format->needs_addresses && !input.recording.has_addresses)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' does not contain addresses of blocks; %s needs them",
                         input.name, format->name);
    const char *at = settings->conversion.at;
    if (result == ZR_OK)
        result = zr_moment_find(&input.moments, &input.recording, at ? at : "peak", &own.records_count);
    if (result == ZR_OK)
        result = zr_tool_write_conversion(&settings->conversion, write_text, &(struct writing){format, &own});
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
    struct settings settings;
    int code = zr_tool_read_conversion(&settings.conversion, help, true, argc, argv);
    if (code >= 0)
        return code;
    settings.format = find(settings.conversion.format);
    if (!settings.format ||
        (!settings.format->is_text && !zr_tool_takes_binary(&settings.conversion, "export")))
        return ZR_TOOL_USAGE;
    return zr_tool_with_memory(work, &settings);
}
