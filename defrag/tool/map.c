/* map.c: `zr map`: draws blocks and free extents by address, as text or as a picture. Uses defrag/report/. */
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "defrag/report/address_map.h"
#include "defrag/tool/input.h"
#include "defrag/tool/live/live.h"

static const char help[] =
    "Draws memory by address: live blocks, pending blocks, free extents.\n"
    "\n"
    "Examples\n"
    "  zr map snapshot.pickle\n"
    "  zr map run.zrt --at failure\n"
    "  zr map snapshot.pickle --at peak -o map.svg\n"
    "\n"
    "zr map FILE [options]\n"
    "  FILE          a .zrt trace, a PyTorch snapshot or an RMM log; - is standard input; or the number of a process: each of\n"
    "                its arenas; 4711/large is one arena\n"
    "  --at MOMENT   " ZR_MOMENT_WORDS " (default: the failure, or else the end)\n"
    "  -o FILE       writes a picture, .svg or .png, instead of text; for a process, one per arena: map-large.svg for map.svg\n"
    "  --columns N   of the text (default: the terminal's, or 80)\n"
    "  --rows N      of the text, at most (default 16)\n"
    "  --device N    of a snapshot of several devices (default: the one with the most events)\n"
    "\n"
    "The map leaves out addresses between segments. Only terminals get colours, and NO_COLOR disables them; if the locale is\n"
    "not UTF-8, the map is in ASCII.\n";

struct settings {
    struct zr_tool_arguments arguments;
    struct zr_tool_reading reading;
    const char *at, *output;
    uint64_t columns, rows;
};

static unsigned terminal_columns(const struct settings *settings)
{
    struct winsize size = {0};
    if (settings->columns > 0)
        return settings->columns < 10000 ? (unsigned)settings->columns : 10000;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* One map: a file, or one arena of a process. */
struct subject {
    const char *name;
    const char *output; /* path of the picture; NULL: text */
    bool named, first;  /* named: print the name above the text; first: it is the first map */
};

static int print_text(const struct settings *settings, const struct subject *subject,
                      const struct zr_vector *extents, const char *words)
{
    struct zr_tool_output out;
    const char *no_colour = getenv("NO_COLOR");
    setlocale(LC_CTYPE, "");
    struct zr_map_style style = {.columns = terminal_columns(settings),
                                 .rows = settings->rows < 1000 ? (unsigned)settings->rows : 1000,
                                 .unicode = strcasecmp(nl_langinfo(CODESET), "UTF-8") == 0,
                                 .colour = isatty(STDOUT_FILENO) && (!no_colour || !*no_colour)};
    zr_tool_output_start(&out);
    if (subject->named) {
        zr_text_print(&out.text, "%s", subject->first ? "" : "\n");
        zr_text_put_plain(&out.text, subject->name);
        zr_text_print(&out.text, ": ");
    }
    zr_text_print(&out.text, "%s\n", words);
    zr_address_map_print(&out.text, extents->items, extents->count, &style);
    return zr_tool_output_end(&out);
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), own = strlen(end);
    return length > own && strcmp(name + length - own, end) == 0;
}

static zr_result write_picture(const char *output, const struct zr_picture *picture, zr_arena *arena)
{
    struct zr_file file;
    struct zr_text text;
    char buffer[8192];
    zr_result result = zr_file_create(&file, output, ZR_CREATE_REPLACE);
    if (result != ZR_OK)
        return result;
    if (ends_with(output, ".png")) {
        result = zr_picture_png(&file, picture, arena);
    } else {
        zr_text_start(&text, &file, buffer, sizeof buffer);
        zr_picture_svg(&text, picture);
        result = zr_text_flush(&text);
    }
    zr_result closed = zr_file_close(&file);
    return result == ZR_OK ? closed : result;
}

static zr_result show(const struct settings *settings, const struct subject *subject,
                      struct zr_tool_input *input, struct zr_memory *memory, zr_arena *arena, int *code)
{
    struct zr_vector extents;
    struct zr_memory_figures figures;
    char words[200], room[3][ZR_TOOL_NUMBER_ROOM];
    zr_memory_get_figures(memory, &figures);
    snprintf(words, sizeof words, "%s after %" PRIu64 " events: live %s, pending %s, reserved %s",
             input->recording.format, memory->records_count, zr_tool_bytes(room[0], figures.live_bytes),
             zr_tool_bytes(room[1], figures.pending_bytes),
             input->recording.has_maps ? zr_tool_bytes(room[2], figures.reserved_bytes) : "not known");
    zr_vector_init(&extents, arena, sizeof(struct zr_map_extent));
    zr_result result = zr_tool_extents(&extents, memory);
    if (result == ZR_OK && subject->output)
        result = write_picture(
            subject->output,
            &(struct zr_picture){
                .extents = extents.items, .count = extents.count, .title = input->name, .subtitle = words},
            arena);
    else if (result == ZR_OK)
        *code = print_text(settings, subject, &extents, words);
    zr_vector_end(&extents);
    return result;
}

static zr_result draw(const struct settings *settings, const struct subject *subject, zr_arena *arena,
                      int *code)
{
    struct zr_tool_input input;
    struct zr_memory memory = {0};
    uint64_t records_count;
    zr_result result = zr_tool_input_open(&input, subject->name, &settings->reading, arena);
    if (result == ZR_OK && !input.recording.has_addresses)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' has no addresses of buffers; zr pack gives them addresses",
                         input.name);
    if (result == ZR_OK)
        result = zr_moment_find(&input.moments, &input.recording,
                                settings->at                ? settings->at
                                : input.moments.has_failure ? "failure"
                                                            : "now",
                                &records_count);
    if (result == ZR_OK)
        result = zr_moment_reach(&memory, &input.recording, records_count, NULL);
    if (result == ZR_OK)
        result = show(settings, subject, &input, &memory, arena, code);
    zr_memory_end(&memory);
    zr_tool_input_end(&input);
    return result;
}

/* Draws the file, or each arena of the process. */
static zr_result work(void *state, zr_arena *arena, int *code)
{
    const struct settings *settings = state;
    struct zr_tool_names names;
    char output[PATH_MAX];
    zr_result result = zr_tool_names_make(&names, &settings->arguments, arena);
    for (size_t i = 0; i < names.list.count && result == ZR_OK && *code == ZR_TOOL_FINE; i++) {
        struct subject subject = {.name = zr_tool_name(&names, i),
                                  .output = settings->output,
                                  .named = names.has_process,
                                  .first = i == 0};
        if (settings->output && names.list.count > 1) {
            result = zr_tool_arena_file(output, settings->output, zr_tool_name_arena(&names, i));
            subject.output = output;
        }
        if (result == ZR_OK)
            result = draw(settings, &subject, arena, code);
        if (result == ZR_OK && subject.output == output)
            zr_tool_log("%s is in %s", subject.name, output);
    }
    zr_tool_names_end(&names);
    return result;
}

int zr_tool_map(int argc, char **argv)
{
    struct settings settings = {.reading = {.device = UINT64_MAX}};
    const struct zr_tool_option options[] = {
        {"--at", ZR_TOOL_TEXT, &settings.at},
        {"-o", ZR_TOOL_TEXT, &settings.output},
        {"--columns", ZR_TOOL_COUNT, &settings.columns},
        {"--rows", ZR_TOOL_COUNT, &settings.rows},
        {"--device", ZR_TOOL_COUNT, &settings.reading.device},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    settings.arguments =
        (struct zr_tool_arguments){.help = help, .options = options, .takes_files = true, .takes_one = true};
    int code = zr_tool_parse(&settings.arguments, argc, argv);
    if (code >= 0)
        return code;
    if (settings.output && !ends_with(settings.output, ".svg") && !ends_with(settings.output, ".png")) {
        zr_tool_log("map: -o takes a name that ends with .svg or .png, not '%.100s'", settings.output);
        return ZR_TOOL_USAGE;
    }
    return zr_tool_with_memory(work, &settings);
}
