/* tool.c: options, messages, output and memory of the subcommands. Uses alloc/. */
#define _GNU_SOURCE
#include "defrag/tool/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"
#include "alloc/base/system/file.h"

/* ---- Messages ------------------------------------------------------------------------------------------ */

void zr_tool_log(const char *format, ...)
{
    char words[2048] = "zr: ";
    size_t lead = strlen(words);
    va_list list;
    va_start(list, format);
    int length = vsnprintf(words + lead, sizeof words - lead - 1, format, list);
    va_end(list);
    if (length < 0)
        return;
    size_t used = strlen(words);
    words[used++] = '\n';
    zr_write_all(STDERR_FILENO, ZR_PRESENT_POSITION, words, used);
}

static enum zr_tool_exit exit_of(zr_result result)
{
    switch (result) {
    case ZR_OK:
        return ZR_TOOL_FINE;
    case ZR_ERR_MEMORY:
    case ZR_ERR_HOST_MEMORY:
    case ZR_ERR_ADDRESSES:
        return ZR_TOOL_MEMORY;
    case ZR_ERR_INVALID:
        return ZR_TOOL_USAGE;
    case ZR_ERR_IO:
    case ZR_ERR_FORMAT:
    case ZR_ERR_CORRUPT:
        return ZR_TOOL_INPUT;
    default:
        return ZR_TOOL_THRESHOLD;
    }
}

int zr_tool_fail(zr_result result)
{
    if (result != ZR_OK)
        zr_tool_log("%s", zr_last_error());
    return (int)exit_of(result);
}

/* ---- Options ------------------------------------------------------------------------------------------- */

static bool read_count(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return false;
    *out = value;
    return at != text && *at == '\0';
}

enum { PROBLEM_ROOM = 300, WORD_ROOM = 800 };

/* Sets the variable of an option. False: the value is invalid, and `problem` says why. */
static bool set(const struct zr_tool_option *option, const char *text, char problem[PROBLEM_ROOM])
{
    const char *words, *want = "some words";
    switch (option->kind) {
    case ZR_TOOL_FLAG:
        *(bool *)option->value = true;
        return true;
    case ZR_TOOL_BYTES:
        words = zr_size_read(text, strlen(text), option->value);
        if (words)
            snprintf(problem, PROBLEM_ROOM, "'%.40s' %s", text, words);
        return !words;
    case ZR_TOOL_COUNT:
        if (read_count(text, option->value))
            return true;
        want = "a whole number below 2^64";
        break;
    case ZR_TOOL_TEXTS: {
        struct zr_tool_texts *texts = option->value;
        if (text[0] && texts->count < sizeof texts->list / sizeof *texts->list) {
            texts->list[texts->count++] = text;
            return true;
        }
        want = text[0] ? "at most 16 texts" : want;
        break;
    }
    default:
        *(const char **)option->value = text;
        if (text[0])
            return true;
    }
    snprintf(problem, PROBLEM_ROOM, "takes %s, not '%.40s'", want, text);
    return false;
}

/* Finds the option that an argument names; *value gets the text after its "=", or NULL. */
static const struct zr_tool_option *find(const struct zr_tool_arguments *arguments, const char *argument,
                                         const char **value)
{
    const char *equals = argument[1] == '-' ? strchr(argument, '=') : NULL;
    size_t length = equals ? (size_t)(equals - argument) : strlen(argument);
    *value = equals ? equals + 1 : NULL;
    for (const struct zr_tool_option *option = arguments->options; option->name; option++)
        if (strlen(option->name) == length && memcmp(option->name, argument, length) == 0)
            return option;
    return NULL;
}

enum { NAME_BYTES_MAX = 24 };

/* Damerau, "A technique for computer detection and correction of spelling errors", 1964. */
unsigned zr_tool_distance(const char *name, const char *other)
{
    unsigned rows[NAME_BYTES_MAX + 1][NAME_BYTES_MAX + 1];
    size_t length = strlen(name), others = strlen(other);
    if (length > NAME_BYTES_MAX || others > NAME_BYTES_MAX)
        return NAME_BYTES_MAX;
    for (unsigned i = 0; i <= length; i++)
        for (unsigned j = 0; j <= others; j++) {
            unsigned min = i && j ? rows[i - 1][j - 1] + (name[i - 1] != other[j - 1]) : i + j;
            if (i && j && rows[i - 1][j] + 1 < min)
                min = rows[i - 1][j] + 1;
            if (i && j && rows[i][j - 1] + 1 < min)
                min = rows[i][j - 1] + 1;
            if (i > 1 && j > 1 && name[i - 1] == other[j - 2] && name[i - 2] == other[j - 1] &&
                rows[i - 2][j - 2] + 1 < min)
                min = rows[i - 2][j - 2] + 1;
            rows[i][j] = min;
        }
    return rows[length][others];
}

/* Reports an unknown option, with the option of the most similar spelling. */
static int reject_option(const struct zr_tool_arguments *arguments, const char *command, const char *argument)
{
    const char *equals = strchr(argument, '='), *nearest = NULL;
    char name[NAME_BYTES_MAX + 1];
    unsigned min = 3;
    size_t length = equals ? (size_t)(equals - argument) : strlen(argument);
    snprintf(name, sizeof name, "%.*s", length > NAME_BYTES_MAX ? 0 : (int)length, argument);
    for (const struct zr_tool_option *option = arguments->options; option->name; option++)
        if (strlen(option->name) > 2 && zr_tool_distance(name, option->name) < min) {
            nearest = option->name;
            min = zr_tool_distance(name, nearest);
        }
    if (!nearest)
        zr_tool_log("%s: there is no option %s; see zr %s --help", command, argument, command);
    else
        zr_tool_log("%s: there is no option %s; did you mean %s? See zr %s --help", command, argument,
                    nearest, command);
    return ZR_TOOL_USAGE;
}

static enum zr_tool_ask asked;

void zr_tool_ask_for(enum zr_tool_ask what)
{
    asked = what;
}

/* Prints the help or the options instead of parsing. */
static int describe(const struct zr_tool_arguments *arguments, const char *command)
{
    struct zr_tool_output out;
    zr_tool_output_start(&out);
    if (asked == ZR_TOOL_MANUAL)
        zr_tool_manual_page(&out.text, command, arguments->help);
    else
        zr_text_print(&out.text, "    %s) options='--help", command);
    for (const struct zr_tool_option *option = arguments->options; asked == ZR_TOOL_OPTIONS && option->name;
         option++)
        zr_text_print(&out.text, " %s", option->name);
    if (asked == ZR_TOOL_OPTIONS)
        zr_text_print(&out.text, "' ;;\n");
    return zr_tool_output_end(&out);
}

static int reject(const char *command, const char *argument, const char *what)
{
    zr_tool_log("%s: %s %s; see zr %s --help", command, argument, what, command);
    return ZR_TOOL_USAGE;
}

int zr_tool_parse(struct zr_tool_arguments *arguments, int argc, char **argv)
{
    const char *value;
    char problem[PROBLEM_ROOM];
    bool ended = false;
    arguments->files = argv; /* files move to the front of argv, over entries that the loop has read */
    arguments->files_count = 0;
    const char *command = argv[0];
    if (asked != ZR_TOOL_ARGUMENTS)
        return describe(arguments, command);
    for (int i = 1; i < argc; i++) {
        char *argument = argv[i];
        if (ended || argument[0] != '-' || argument[1] == '\0') {
            arguments->files[arguments->files_count++] = argument;
            ended = ended || arguments->stops_at_file;
            continue;
        }
        if (strcmp(argument, "--") == 0) {
            ended = true;
            continue;
        }
        if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            struct zr_tool_output out;
            zr_tool_output_start(&out);
            zr_text_put(&out.text, arguments->help, strlen(arguments->help));
            return zr_tool_output_end(&out);
        }
        const struct zr_tool_option *option = find(arguments, argument, &value);
        if (!option)
            return reject_option(arguments, command, argument);
        if (option->kind == ZR_TOOL_FLAG && value)
            return reject(command, option->name, "takes no value");
        if (option->kind != ZR_TOOL_FLAG && !value && ++i == argc)
            return reject(command, option->name, "needs a value");
        value = value || option->kind == ZR_TOOL_FLAG ? value : argv[i];
        if (!set(option, value, problem))
            return reject(command, option->name, problem);
    }
    arguments->files[arguments->files_count < argc ? arguments->files_count : argc] = NULL;
    arguments->options = NULL; /* the caller's table may no longer exist when the files are read */
    if (arguments->takes_files && arguments->files_count == 0) {
        zr_tool_log("%s: a file is missing; see zr %s --help", command, command);
        return ZR_TOOL_USAGE;
    }
    if (arguments->takes_one && arguments->files_count > 1) {
        zr_tool_log("%s: too many files: give one; see zr %s --help", command, command);
        return ZR_TOOL_USAGE;
    }
    return -1;
}

int zr_tool_device(uint64_t device)
{
    return device == UINT64_MAX ? -1 : device < INT32_MAX ? (int)device : INT32_MAX;
}

/* ---- Output -------------------------------------------------------------------------------------------- */

void zr_tool_output_start(struct zr_tool_output *out)
{
    out->file = zr_file_borrow(STDOUT_FILENO, "standard output");
    zr_text_start(&out->text, &out->file, out->buffer, sizeof out->buffer);
}

int zr_tool_output_end(struct zr_tool_output *out)
{
    return zr_tool_fail(zr_text_flush(&out->text));
}

const char *zr_tool_bytes(char out[ZR_TOOL_NUMBER_ROOM], uint64_t bytes)
{
    return zr_size_print(out, bytes);
}

void zr_tool_put_wrapped(struct zr_text *text, unsigned first, unsigned indent, const char *words)
{
    char word[WORD_ROOM];
    unsigned column = first, start = first; /* start: of the words of this line */
    zr_text_print(text, "%*s", (int)first, "");
    for (size_t bytes; *words; words += bytes + (words[bytes] == ' ')) {
        unsigned columns = 0;
        bytes = strcspn(words, " ");
        snprintf(word, sizeof word, "%.*s", (int)bytes, words);
        zr_make_plain(word);
        for (const char *at = word; *at; at++)
            columns += (*at & 0xC0) != 0x80; /* a character of UTF-8 */
        if (column > start && column + 1 + columns > ZR_TOOL_COLUMNS) {
            zr_text_print(text, "\n%*s", (int)indent, "");
            column = start = indent;
        }
        zr_text_print(text, "%s%s", column > start ? " " : "", word);
        column += columns + (column > start);
    }
    zr_text_print(text, "\n");
}

void zr_tool_cut_frame(char *frame, size_t columns)
{
    char *place = NULL, *slash;
    for (char *at = frame; (at = strstr(at, " (")); at++)
        place = at; /* the last one: names of C++ contain parentheses */
    while (place && strlen(frame) > columns && strlen(place) > 5 && (slash = strchr(place + 5, '/'))) {
        place[2] = place[3] = '.';
        memmove(place + 4, slash, strlen(slash) + 1);
    }
    size_t length = strlen(frame), rest = place ? strlen(place) : 0;
    if (length <= columns || columns < 2)
        return;
    rest = rest + 2 < columns ? rest : 0; /* the place stays if it has room */
    size_t kept = columns - rest - 2;
    while (kept > 0 && (frame[kept] & 0xC0) == 0x80)
        kept--;
    memmove(frame + kept + 2, frame + length - rest, rest + 1);
    frame[kept] = frame[kept + 1] = '.';
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

zr_result zr_tool_memory_start(struct zr_tool_memory *out)
{
    *out = (struct zr_tool_memory){0};
    zr_result result = zr_backend_host_create(&out->backend, NULL);
    if (result == ZR_OK)
        result =
            zr_arena_create(&out->arena, &(struct zr_arena_options){.backend = out->backend, .name = "zr"});
    if (result != ZR_OK)
        zr_tool_memory_end(out);
    return result;
}

void zr_tool_memory_end(struct zr_tool_memory *memory)
{
    if (memory->arena)
        zr_arena_destroy(memory->arena, NULL);
    if (memory->backend)
        zr_backend_destroy(memory->backend);
    *memory = (struct zr_tool_memory){0};
}

/* ---- Files to results ---------------------------------------------------------------------------------- */

void zr_tool_json_words(struct zr_text *text, const char *name, const char *words)
{
    zr_text_print(text, "\"%s\": ", name);
    zr_text_json_string(text, words, strlen(words));
}

static void print_json(const struct zr_tool_job *job, struct zr_text *text, const struct zr_vector *results)
{
    zr_text_print(text, "{\"version\": 1, \"results\": [");
    for (size_t i = 0; i < results->count; i++) {
        zr_text_print(text, i ? ",\n  {" : "\n  {");
        job->json(text, zr_vector_at(results, i));
        zr_text_print(text, "}");
    }
    zr_text_print(text, "\n ]}\n");
}

static int show_results(const struct zr_tool_job *job, const struct zr_vector *results, bool json)
{
    struct zr_tool_output out;
    zr_tool_output_start(&out);
    if (json)
        print_json(job, &out.text, results);
    else
        job->table(&out.text, results);
    int code = zr_tool_output_end(&out);
    return code || !job->verdict ? code : job->verdict(results);
}

int zr_tool_run(const struct zr_tool_job *job, const struct zr_tool_arguments *arguments, bool json)
{
    struct zr_tool_memory memory;
    struct zr_vector results;
    zr_result result = zr_tool_memory_start(&memory);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    zr_vector_init(&results, memory.arena, job->result_bytes);
    for (int i = 0; i < arguments->files_count && result == ZR_OK; i++)
        result = job->read(job->settings, arguments->files[i], &results);
    int code = result == ZR_OK ? show_results(job, &results, json) : zr_tool_fail(result);
    zr_vector_end(&results);
    zr_tool_memory_end(&memory);
    return code;
}
