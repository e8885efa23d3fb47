/* report.c: `zr report`: writes recordings as one HTML page. Uses defrag/report/page/page.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "defrag/report/page/page.h"
#include "defrag/tool/input.h"
#include "defrag/tool/why_reasons.h"

static const char help[] =
    "Writes one HTML page that shows memory over time and every block; a browser needs no other file.\n"
    "\n"
    "Examples\n"
    "  zr report run.zrt -o run.html\n"
    "  zr report snapshot.pickle -o snapshot.html\n"
    "  zr report rank0.zrt rank1.zrt -o ranks.html\n"
    "  ssh host cat run.zrt | zr report - -o run.html\n"
    "\n"
    "zr report FILE.. -o OUT.html [options]\n"
    "  FILE          a .zrt trace, a PyTorch snapshot, an RMM log, a CSV of events or of lifetimes; - is standard input\n"
    "  -o OUT.html   the page, renamed into place when complete; - is standard output\n"
    "  --device N    of a snapshot of several devices (default: all, with the one with the most events first)\n"
    "  --unit BYTES  one unit of the sizes in a MiniMalloc CSV (default 1)\n"
    "\n"
    "The page loads nothing from the network: it can be mailed, and opened from a disk. It shows the reasons that zr why\n"
    "gives, live bytes by category (a block's tag, or what its stack tells), reserved bytes, failures, annotations, an\n"
    "address x time map, the figures of zr stats, and the largest holders and a flame graph of live bytes at any moment, of\n"
    "all memory, of a pool or of a segment. Several files make one page. Press ? in the page for its keys.\n";

struct settings {
    struct zr_tool_arguments arguments;
    struct zr_tool_reading reading;
    const char *output;
};

/* ---- Output -------------------------------------------------------------------------------------------- */

/* The page being written. `partial` is the temporary file that is renamed when complete; the swap file has no
 * name. */
struct output {
    const char *path;
    char partial[4096];
    bool aside;
    struct zr_file file;
    struct zr_page_columns swap;
};

static bool same_file(const char *one, const char *other)
{
    struct stat a, b;
    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static zr_result check_inputs(const struct settings *settings, const char *partial)
{
    const struct zr_tool_arguments *arguments = &settings->arguments;
    for (int i = 0; i < arguments->files_count; i++)
        if (same_file(settings->output, arguments->files[i]) || same_file(partial, arguments->files[i]))
            return zr_fail(ZR_ERR_INVALID, "-o '%s' would replace the input '%s'; give another name",
                           settings->output, arguments->files[i]);
    return ZR_OK;
}

static zr_result open_swap_file(struct output *out)
{
    char beside[sizeof out->partial];
    const char *folder = getenv("TMPDIR");
    if (!out->aside)
        return zr_file_create_nameless(&out->swap.file, folder && *folder ? folder : "/tmp");
    snprintf(beside, sizeof beside, "%s", out->partial);
    char *slash = strrchr(beside, '/');
    if (slash)
        slash[slash == beside] = '\0';
    return zr_file_create_nameless(&out->swap.file, slash ? beside : ".");
}

static zr_result open_output(struct output *out, const struct settings *settings)
{
    enum zr_path_kind kind = ZR_PATH_OTHER;
    zr_result result = ZR_OK;
    *out = (struct output){.path = settings->output, .file.fd = -1, .swap.file.fd = -1};
    if (strcmp(out->path, "-") == 0) {
        out->file = zr_file_borrow(STDOUT_FILENO, "standard output");
        return open_swap_file(out);
    }
    int length = snprintf(out->partial, sizeof out->partial, "%s.partial", out->path);
    if (length < 0 || (size_t)length >= sizeof out->partial)
        return zr_fail(ZR_ERR_INVALID, "the name of the output is too long");
    result = zr_path_kind_get(out->path, &kind);
    if (result == ZR_OK && kind == ZR_PATH_FOLDER)
        return zr_fail(ZR_ERR_IO, "-o '%s' is a folder; name a file in it", out->path);
    if (result == ZR_OK && kind == ZR_PATH_FILE)
        result = check_inputs(settings, out->partial);
    if (result == ZR_OK)
        result = zr_path_replaceable(out->path, &out->aside);
    if (result == ZR_OK)
        result = zr_file_create(&out->file, out->aside ? out->partial : out->path, ZR_CREATE_REPLACE);
    return result == ZR_OK ? open_swap_file(out) : result;
}

static zr_result close_output(struct output *out, zr_result result)
{
    bool opened = out->file.fd >= 0;
    zr_file_close(&out->swap.file);
    if (opened && out->file.fd != STDOUT_FILENO) {
        zr_result closed = zr_file_close(&out->file);
        result = result == ZR_OK ? closed : result;
    }
    if (result == ZR_OK && out->aside)
        result = zr_path_rename(&(struct zr_rename){out->partial, out->path});
    if (result != ZR_OK && opened && out->aside)
        zr_path_unlink(out->partial);
    return result;
}

/* ---- The subcommand ------------------------------------------------------------------------------------ */

static void say_progress(void *state, uint64_t done_count, uint64_t all_count)
{
    char words[120];
    snprintf(words, sizeof words, "%.80s: %u %%", (const char *)state,
             all_count ? (unsigned)(100 * (double)done_count / (double)all_count) : 100);
    zr_tool_progress_say(words);
}

enum { REASONS_BYTES = 1 << 18, DEVICES_MAX = 64 };

/* *input is open. */
static zr_result add_input(struct zr_html_page *page, const char *name, struct zr_tool_input *input,
                           zr_arena *arena)
{
    struct zr_text text;
    void *room;
    zr_result result =
        zr_arena_alloc(arena, &(struct zr_request){.bytes = REASONS_BYTES, .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        return result;
    char *reasons = room;
    zr_text_start(&text, NULL, reasons, REASONS_BYTES);
    result = zr_why_reasons(input, &text, arena);
    if (result != ZR_OK && text.result == result) { /* too long */
        reasons[0] = '\0';
        result = ZR_OK;
    }
    if (result == ZR_OK)
        result = zr_page_add(page,
                             &(struct zr_page_source){.name = name,
                                                      .recording = &input->recording,
                                                      .moments = &input->moments,
                                                      .reasons = reasons,
                                                      .progress = zr_tool_progress() ? say_progress : NULL,
                                                      .progress_state = (void *)(uintptr_t)name},
                             arena);
    zr_arena_free(arena, room);
    return result;
}

/* *device: which device to add, as for struct zr_tool_reading; receives its number. *devices_count: those of
 * the file. */
static zr_result add_device(struct zr_html_page *page, const char *name, struct zr_tool_reading *reading,
                            int *devices_count, zr_arena *arena)
{
    struct zr_tool_input input;
    char words[120];
    snprintf(words, sizeof words, "%.80s: reading", name);
    zr_tool_progress_say(words);
    zr_result result = zr_tool_input_open(&input, name, reading, arena);
    *devices_count = input.recording.devices_count;
    reading->device = (uint64_t)input.recording.device;
    if (result == ZR_OK)
        result = add_input(page, name, &input, arena);
    zr_tool_input_end(&input);
    return result;
}

/* A snapshot of several devices is added once for each of them, the one with the most events first. */
static zr_result add_file(struct zr_html_page *page, const char *name, const struct settings *settings,
                          zr_arena *arena)
{
    struct zr_tool_reading reading = settings->reading;
    int count, same;
    zr_result result = add_device(page, name, &reading, &count, arena);
    uint64_t first = reading.device;
    for (int device = 0; result == ZR_OK && settings->reading.device == UINT64_MAX && device < count &&
                         device < DEVICES_MAX && strcmp(name, "-") != 0;
         device++) {
        reading.device = (uint64_t)device;
        if (reading.device == first)
            continue;
        result = add_device(page, name, &reading, &same, arena);
        if (result == ZR_ERR_FORMAT) /* the file was read before: nothing happened on this device */
            result = ZR_OK;
    }
    return result;
}

static zr_result work(void *state, zr_arena *arena, int *code)
{
    const struct settings *settings = state;
    struct output out = {.file.fd = -1, .swap.file.fd = -1};
    struct zr_tool_names names;
    void *room;
    (void)code;
    zr_result result = zr_arena_alloc(
        arena, &(struct zr_request){.bytes = sizeof(struct zr_html_page), .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        return result;
    struct zr_html_page *page = room;
    result = zr_tool_names_make(&names, &settings->arguments, arena);
    if (result == ZR_OK)
        result = open_output(&out, settings);
    if (result == ZR_OK) {
        zr_page_start(page, &out.file, &out.swap);
        for (size_t i = 0; i < names.list.count && result == ZR_OK; i++)
            result = add_file(page, zr_tool_name(&names, i), settings, arena);
        if (result == ZR_OK)
            result = zr_page_finish(page);
    }
    zr_tool_progress_say(NULL);
    result = close_output(&out, result);
    zr_tool_names_end(&names);
    zr_arena_free(arena, page);
    return result;
}

int zr_tool_report(int argc, char **argv)
{
    struct settings settings = {.reading = {.device = UINT64_MAX}};
    const struct zr_tool_option options[] = {
        {"-o", ZR_TOOL_TEXT, &settings.output},
        {"--device", ZR_TOOL_COUNT, &settings.reading.device},
        {"--unit", ZR_TOOL_BYTES, &settings.reading.unit_bytes},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    settings.arguments = (struct zr_tool_arguments){.help = help, .options = options, .takes_files = true};
    int code = zr_tool_parse(&settings.arguments, argc, argv);
    settings.reading.held = settings.arguments.files_count == 1; /* memory for one file, not for many */
    if (code >= 0)
        return code;
    if (!settings.output || !*settings.output) {
        zr_tool_log("report: the page needs a name: -o OUT.html; see zr report --help");
        return ZR_TOOL_USAGE;
    }
    return zr_tool_with_memory(work, &settings);
}
