/* pack.c: `zr pack`: places lifetimes at fixed offsets, and prints a table, JSON, or CSV with an offset
 * column. Uses zr_defrag.h. Every placement passes zr_pack_check() before it is printed. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "defrag/tool/input.h"
#include "defrag/trace/formats/minimalloc.h"
#include "defrag/zr_defrag.h"

static const char help[] =
    "Places buffers of known lifetimes at fixed offsets, as low as possible: the placement plan of a repeating step.\n"
    "\n"
    "Examples\n"
    "  zr pack lifetimes.csv -o placed.csv\n"
    "  zr pack hard.csv --capacity 1MiB --time 30      find a placement within 1 MiB, or prove that none exists\n"
    "  zr pack snapshot.pickle run.zrt --json\n"
    "\n"
    "zr pack FILE.. [options]\n"
    "  FILE                 a CSV of id,lower,upper,size (alive from lower up to, not including, upper; ids may be\n"
    "                       names), or a trace: .zrt, PyTorch snapshot, RMM log; - is standard input\n"
    "  --capacity BYTES     stop at the first placement that fits, or at a proof that none fits (exit 1, as at the end\n"
    "                       of the time); default: the lowest placement that is found in the time\n"
    "  --alignment BYTES    of the offsets (default 1)\n"
    "  --time SECONDS       for each file (default 8; 30 with --capacity)\n"
    "  --threads N          1 to 16 (default: the cores, up to 4); the answer does not depend on it\n"
    "  -o FILE              writes id,lower,upper,size,offset; takes one input\n"
    "  --json               JSON instead of a table\n"
    "\n"
    "The lower bound is the largest sum of live bytes; the ratio is the height of the placement over it. Of a CSV with a\n"
    "column alignment all offsets are multiples of all alignments; hints and gaps are refused.\n";

#define MAX_ALIGNMENT (UINT64_C(1) << 40)

struct settings {
    struct zr_pack_options pack;
    const char *output; /* NULL: none */
    bool json;
};

struct result {
    const char *file;
    size_t buffers_count;
    struct zr_pack_report report;
};

static const char *const verdicts[] = {"found", "impossible", "out of time"};

/* ---- Arguments ----------------------------------------------------------------------------------------- */

static int usage(const char *words)
{
    zr_tool_log("pack: %s; see zr pack --help", words);
    return ZR_TOOL_USAGE;
}

static int parse(struct settings *settings, struct zr_tool_arguments *arguments, int argc, char **argv)
{
    uint64_t seconds = UINT64_MAX, threads = UINT64_MAX, capacity_bytes = UINT64_MAX;
    const struct zr_tool_option options[] = {
        {"--capacity", ZR_TOOL_BYTES, &capacity_bytes},
        {"--alignment", ZR_TOOL_BYTES, &settings->pack.alignment_bytes},
        {"--time", ZR_TOOL_COUNT, &seconds},
        {"--threads", ZR_TOOL_COUNT, &threads},
        {"-o", ZR_TOOL_TEXT, &settings->output},
        {"--json", ZR_TOOL_FLAG, &settings->json},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    arguments->help = help;
    arguments->takes_files = true;
    arguments->options = options;
    int code = zr_tool_parse(arguments, argc, argv);
    if (code >= 0)
        return code;
    if (settings->output && arguments->files_count > 1)
        return usage("-o takes one input");
    if (capacity_bytes == 0)
        return usage("--capacity must be above 0");
    if (threads == UINT64_MAX) {
        struct zr_machine machine;
        zr_os_machine(&machine);
        threads = machine.cores_count < 1 ? 1 : machine.cores_count > 4 ? 4 : machine.cores_count;
    }
    if (threads == 0 || threads > 16)
        return usage("--threads takes 1 to 16");
    if (seconds != UINT64_MAX && (seconds == 0 || seconds > 1000000))
        return usage("--time takes 1 to 1000000 seconds");
    settings->pack.capacity_bytes = capacity_bytes == UINT64_MAX ? 0 : capacity_bytes;
    if (seconds == UINT64_MAX)
        seconds = settings->pack.capacity_bytes ? 30 : 8;
    settings->pack.time_ns = seconds * UINT64_C(1000000000);
    settings->pack.threads = (unsigned)threads;
    return -1;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static zr_result take_multiple(uint64_t *bytes, uint64_t alignment)
{
    uint64_t a = *bytes, b = alignment;
    while (b > 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    if (__builtin_mul_overflow(*bytes / a, alignment, bytes) || *bytes > MAX_ALIGNMENT)
        return zr_fail(ZR_ERR_FORMAT, "the alignments have no common multiple up to 2^40; round them up to "
                                      "powers of two");
    return ZR_OK;
}

/* The least common multiple of the given alignment and those of all rows. *differ: for some row it is more
 * than the row asks for. */
static zr_result read_alignments(uint64_t *bytes, bool *differ, const char *path)
{
    struct zr_minimalloc reader;
    struct zr_minimalloc_row row;
    uint64_t first = 0;
    bool more = true;
    *differ = false;
    *bytes = *bytes ? *bytes : 1;
    zr_result result = zr_minimalloc_open(&reader, path);
    if (result)
        return result;
    while ((result = zr_minimalloc_next(&reader, &row, &more)) == ZR_OK && more) {
        if (first && row.alignment != first)
            *differ = true;
        first = first ? first : row.alignment;
        if (*bytes % row.alignment && (result = take_multiple(bytes, row.alignment)) != ZR_OK)
            break;
    }
    zr_minimalloc_close(&reader);
    return result;
}

/* A CSV of lifetimes keeps its ids and times. Any other file is read as a sequence first. */
static zr_result read_lifetimes(struct zr_lifetimes *out, bool *has_rows, const char *path, zr_arena *arena)
{
    struct zr_sequence sequence;
    zr_result result =
        zr_sequence_read(&sequence, &(struct zr_read_options){.path = path, .device = -1}, arena);
    *out = (struct zr_lifetimes){0};
    if (result)
        return result;
    if (sequence.cut_short)
        zr_tool_log("'%s' is truncated: the buffers before the cut are packed", path);
    *has_rows = strcmp(sequence.format, "minimalloc") == 0;
    if (*has_rows)
        result = zr_lifetimes_read(out, path, arena);
    else
        result = zr_lifetimes_of(out, &sequence, arena);
    zr_sequence_end(&sequence);
    return result;
}

/* Checks that a file can be created in the folder of `path`. */
static zr_result check_folder(const char *path)
{
    char folder[4096] = ".";
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) + (slash == path) : 0;
    if (length >= sizeof folder)
        return zr_fail(ZR_ERR_INVALID, "the name of the output is too long");
    if (slash) {
        memcpy(folder, path, length);
        folder[length] = '\0';
    }
    if (access(folder, F_OK) != 0)
        return zr_fail(ZR_ERR_IO, "-o '%s': the folder '%s' does not exist; give an existing one", path,
                       folder);
    if (access(folder, W_OK | X_OK) != 0)
        return zr_fail(ZR_ERR_IO,
                       "-o '%s': the folder '%s' is not writable; check its permissions, or give another",
                       path, folder);
    return ZR_OK;
}

/* Name of the temporary file that becomes the output. */
static zr_result name_partial(const char *path, char *out, size_t room_bytes)
{
    int length = snprintf(out, room_bytes, "%s.partial", path);
    return length > 0 && (size_t)length < room_bytes
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "the name of the output is too long");
}

static bool same_file(const char *one, const char *other)
{
    struct stat a, b;
    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Checks the output path before packing, which may take a minute. */
static zr_result check_output(const char *output, const char *input)
{
    char partial[4096];
    enum zr_path_kind kind;
    zr_result result = zr_path_kind_get(output, &kind);
    if (result == ZR_OK && kind == ZR_PATH_FOLDER)
        return zr_fail(ZR_ERR_IO, "-o '%s' is a folder; name a file in it", output);
    if (result == ZR_OK && kind == ZR_PATH_FILE && same_file(output, input))
        return zr_fail(ZR_ERR_INVALID, "-o '%s' is the input, which would be lost; give another name",
                       output);
    if (result == ZR_OK)
        result = name_partial(output, partial, sizeof partial);
    if (result == ZR_OK && kind != ZR_PATH_OTHER && same_file(partial, input))
        return zr_fail(ZR_ERR_INVALID,
                       "-o '%s' is first written to '%s', which is the input; give another name", output,
                       partial);
    return result == ZR_OK && kind != ZR_PATH_OTHER ? check_folder(output) : result;
}

/* Quotes a name if it needs quotes. */
static void print_name(struct zr_text *text, const char *name)
{
    if (!strpbrk(name, ",\"")) {
        zr_text_put(text, name, strlen(name));
        return;
    }
    zr_text_put(text, "\"", 1);
    for (; *name; name++)
        zr_text_put(text, *name == '"' ? "\"\"" : name, *name == '"' ? 2 : 1);
    zr_text_put(text, "\"", 1);
}

/* Ids are printed as the rows of the file have them; rows is NULL for other files. */
static zr_result print_csv(struct zr_text *text, const struct zr_lifetimes *lifetimes,
                           struct zr_minimalloc *rows)
{
    struct zr_minimalloc_row row;
    zr_result result = ZR_OK;
    bool more = true;
    zr_text_print(text, "id,lower,upper,size,offset\n");
    for (size_t i = 0; i < lifetimes->count && result == ZR_OK && more; i++) {
        const struct zr_buffer *buffer = &lifetimes->buffers[i];
        result = rows ? zr_minimalloc_next(rows, &row, &more) : ZR_OK;
        if (rows && result == ZR_OK)
            print_name(text, row.name);
        else
            zr_text_print(text, "%" PRIu64, buffer->id);
        zr_text_print(text, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", buffer->lower,
                      buffer->upper, buffer->bytes, buffer->offset_bytes);
    }
    return result;
}

/* Writes a temporary file and renames it, so that no reader sees half a file. Devices and pipes are written
 * directly. */
static zr_result write_csv(const char *path, const struct zr_lifetimes *lifetimes, struct zr_minimalloc *rows)
{
    struct zr_file file;
    struct zr_text text;
    char partial[4096], buffer[8192];
    bool aside;

    zr_result result = name_partial(path, partial, sizeof partial);
    if (!result)
        result = zr_path_replaceable(path, &aside);
    if (!result)
        result = zr_file_create(&file, aside ? partial : path, ZR_CREATE_REPLACE);
    if (result)
        return result;
    zr_text_start(&text, &file, buffer, sizeof buffer);
    result = print_csv(&text, lifetimes, rows);
    zr_result flushed = zr_text_flush(&text);
    result = result ? result : flushed;
    zr_result closed = zr_file_close(&file);
    result = result ? result : closed;
    if (!result && aside)
        result = zr_path_rename(&(struct zr_rename){partial, path});
    if (result && aside)
        zr_path_unlink(partial);
    return result;
}

static zr_result write_placement(const char *path, const struct zr_lifetimes *lifetimes, const char *input)
{
    struct zr_minimalloc rows;
    zr_result result = input ? zr_minimalloc_open(&rows, input) : ZR_OK;
    if (result)
        return result;
    result = write_csv(path, lifetimes, input ? &rows : NULL);
    if (input)
        zr_minimalloc_close(&rows);
    return result;
}

/* Packs lifetimes, whose rows `input` has if it is not NULL. */
static zr_result pack_lifetimes(struct result *out, const struct settings *settings,
                                struct zr_lifetimes *lifetimes, const char *input)
{
    struct zr_pack_options pack = settings->pack;
    char words[160];
    bool differ = false;
    zr_result result = input ? read_alignments(&pack.alignment_bytes, &differ, input) : ZR_OK;
    if (result)
        return result;
    if (differ)
        zr_tool_log("'%s': its alignments differ; all offsets are multiples of %" PRIu64, out->file,
                    pack.alignment_bytes);
    snprintf(words, sizeof words, "packing %zu buffers, %.0f s at most", lifetimes->count,
             (double)pack.time_ns * 1e-9);
    zr_tool_progress_say(words);
    result = zr_pack(lifetimes, &pack, &out->report);
    zr_tool_progress_say(NULL);
    if (!result)
        result = zr_pack_check(lifetimes, out->report.height_bytes);
    if (differ && out->report.verdict == ZR_PACK_IMPOSSIBLE)
        out->report.verdict = ZR_PACK_OUT_OF_TIME; /* with each row's own alignment it may be possible */
    return !result && settings->output ? write_placement(settings->output, lifetimes, input) : result;
}

static zr_result pack_file(const void *state, const char *path, struct zr_vector *results)
{
    const struct settings *settings = state;
    struct zr_lifetimes lifetimes;
    struct result one = {.file = path};
    struct zr_tool_source source;
    bool has_rows = false;
    zr_result result = settings->output ? check_output(settings->output, path) : ZR_OK;
    if (result)
        return result;
    result = zr_tool_source_open(&source, path);
    if (!result && !(result = read_lifetimes(&lifetimes, &has_rows, source.path, results->arena))) {
        one.buffers_count = lifetimes.count;
        result = pack_lifetimes(&one, settings, &lifetimes, has_rows ? source.path : NULL);
        zr_lifetimes_end(&lifetimes);
    }
    zr_tool_source_close(&source);
    return result ? result : zr_vector_add(results, &one);
}

/* ---- Showing ------------------------------------------------------------------------------------------- */

static double ratio(const struct zr_pack_report *report)
{
    return report->lower_bound_bytes ? (double)report->height_bytes / (double)report->lower_bound_bytes : 1;
}

static void print_json(struct zr_text *text, const void *result)
{
    const struct result *one = result;
    zr_tool_json_words(text, "file", one->file);
    zr_text_print(text, ", \"buffers\": %zu, \"verdict\": \"%s\", \"height\": %" PRIu64, one->buffers_count,
                  verdicts[one->report.verdict], one->report.height_bytes);
    zr_text_print(text, ", \"lower_bound\": %" PRIu64 ", \"ratio\": %.9g, \"seconds\": %.6f",
                  one->report.lower_bound_bytes, ratio(&one->report), (double)one->report.spent_ns * 1e-9);
}

static void print_table(struct zr_text *text, const struct zr_vector *results)
{
    char height[ZR_TOOL_NUMBER_ROOM], bound[ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "%8s %12s %12s %9s %9s  %-11s  %s\n", "buffers", "height", "lower bound", "ratio",
                  "seconds", "verdict", "file");
    for (size_t i = 0; i < results->count; i++) {
        const struct result *one = zr_vector_at(results, i);
        zr_text_print(text, "%8zu %12s %12s %9.6f %9.3f  %-11s  ", one->buffers_count,
                      zr_tool_bytes(height, one->report.height_bytes),
                      zr_tool_bytes(bound, one->report.lower_bound_bytes), ratio(&one->report),
                      (double)one->report.spent_ns * 1e-9, verdicts[one->report.verdict]);
        zr_text_put_plain(text, one->file);
        zr_text_print(text, "\n");
    }
}

/* Exit code: a capacity that no placement met counts as a failed threshold. */
static int threshold_of(const struct zr_vector *results)
{
    for (size_t i = 0; i < results->count; i++)
        if (((const struct result *)zr_vector_at(results, i))->report.verdict != ZR_PACK_FOUND)
            return ZR_TOOL_THRESHOLD;
    return ZR_TOOL_FINE;
}

int zr_tool_pack(int argc, char **argv)
{
    struct settings settings = {0};
    struct zr_tool_arguments arguments = {0};
    int code = parse(&settings, &arguments, argc, argv);
    if (code >= 0)
        return code;
    const struct zr_tool_job job = {.settings = &settings,
                                    .result_bytes = sizeof(struct result),
                                    .read = pack_file,
                                    .table = print_table,
                                    .json = print_json,
                                    .verdict = threshold_of};
    return zr_tool_run(&job, &arguments, settings.json);
}
