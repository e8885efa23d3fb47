/* live.c: `zr ps`, `zr snapshot`, `zr attach`, `zr record`: running processes that use zr, by process number.
 * Uses defrag/trace/live.c.
 *
 * A process below 64 MiB, other than a rank of zr-train, has no thread that answers. zr creates the file
 * PID.ask in the folder of the sockets for three seconds. The process checks for the file when it takes
 * memory from the system or reads an arena's statistics, and then publishes itself. A process that does
 * neither does not see the request. No signal is sent, because a program may use any signal. `ps` finds other
 * processes in /proc by their mappings, and shows resident bytes only. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/telemetry/command.h"
#include "defrag/tool/live/live.h"

enum { MAX_STACKS = 999999, COMMANDED_MAX = 64 };

static const char ps_help[] =
    "Lists the processes of this user whose memory zr manages.\n"
    "\n"
    "Examples\n"
    "  zr ps\n"
    "  zr ps --json\n"
    "  zr ps 4711\n"
    "\n"
    "zr ps [PID..] [options]\n"
    "  --json  JSON instead of a table\n"
    "\n"
    "The list has every process that runs on zr: under zr run, zr-train, zrd (see zr service status for its clients), and\n"
    "programs linked with libzr. zr-train's arenas have figures from the start, arenas of other programs once they hold 64 MiB,\n"
    "or after a zr attach, snapshot or record; with ZR_CONF=publish:on at once, with publish:off never. Without figures, a line\n"
    "shows resident memory. zr ps removes the files of killed processes.\n";

static const char snapshot_help[] =
    "Writes the current blocks of a running process to a .zrt file.\n"
    "\n"
    "Examples\n"
    "  zr snapshot 4711 -o now.zrt && zr stats now*.zrt\n"
    "  zr snapshot 4711 --arena large -o large.zrt\n"
    "\n"
    "zr snapshot PID -o FILE [options]\n"
    "  -o FILE       the process writes FILE and replaces an ordinary file of that name; a process with several arenas writes\n"
    "                one file for each: now-large.zrt and now-small.zrt for now.zrt\n"
    "  --arena NAME  only this arena, by the name or number that zr ps shows\n";

static const char attach_help[] =
    "Records the allocations and frees of a running process, and its live blocks at the start, as a .zrt.\n"
    "\n"
    "Examples\n"
    "  zr attach 4711 -o step.zrt --seconds 10 && zr replay step*.zrt\n"
    "  zr attach 4711                               until Ctrl-C, to zr-4711.zrt, or zr-4711-ARENA.zrt for each arena\n"
    "  zr attach 4711 -o step.zrt --stacks 100     with the call stack of one allocation in a hundred\n"
    "  zr attach 4711 -o large.zrt --arena large\n"
    "\n"
    "zr attach PID [options]\n"
    "  PID           or its launcher (zr-train, mpirun, zr run), if exactly one descendant publishes memory\n"
    "  -o FILE       the process writes FILE and replaces an ordinary file of that name\n"
    "  --seconds N   stops after N seconds\n"
    "  --arena NAME  only this arena, by the name or number that zr ps shows\n"
    "  --stacks N    with the call stack of one allocation in N, 1: of each; a stack takes some microseconds. It has the\n"
    "                frames of C and C++, and of CPython 3.11 to 3.14\n"
    "\n"
    "A process with several arenas writes one file for each: step-large.zrt and step-small.zrt for step.zrt. Arenas that are\n"
    "created meanwhile get a file, too. The process keeps running, without the fast path of its plan. The recording ends when\n"
    "zr ends, for whatever reason.\n";

static const char record_help[] =
    "Starts, marks and stops a recording of a running process, which continues without zr.\n"
    "\n"
    "Examples\n"
    "  zr record 4711 start -o run.zrt\n"
    "  zr record 4711 mark \"epoch 2\"\n"
    "  zr record 4711 stop\n"
    "\n"
    "zr record PID start -o FILE [options]\n"
    "zr record PID mark WORDS\n"
    "zr record PID stop [options]\n"
    "  -o FILE       start: the process writes FILE and replaces an ordinary file of that name; a process with several arenas\n"
    "                writes one file for each: FILE-ARENA\n"
    "  --arena NAME  only this arena, by the name or number that zr ps shows\n"
    "  --stacks N    start: with the call stack of one allocation in N, 1: of each\n";

/* ---- Waiting ------------------------------------------------------------------------------------------- */

static void say(const char *words)
{
    zr_tool_log("%s", words);
}

const struct zr_live_patience zr_tool_patience = {.timeout_ms = 10000, .working_ms = 60000, .say = say};
const struct zr_live_patience zr_tool_glance = {.timeout_ms = 5000, .passes_stopped = true, .say = say};

zr_result zr_tool_note_old(void)
{
    zr_tool_log("%s; its figures are the last that it published", zr_last_error());
    return ZR_OK;
}

/* ---- zr ps --------------------------------------------------------------------------------------------- */

void zr_tool_arena_figures(struct zr_tool_figure out[ZR_TOOL_FIGURES], const struct zr_published_arena *arena)
{
    const struct zr_arena_stats *stats = &arena->stats;
    const struct zr_tool_figure figures[ZR_TOOL_FIGURES] = {
        {"limit_bytes", arena->limit_bytes},
        {"live_bytes", stats->live_bytes},
        {"requested_bytes", stats->requested_bytes},
        {"mapped_bytes", stats->mapped_bytes},
        {"cached_bytes", stats->cached_bytes},
        {"reserved_bytes", stats->reserved_bytes},
        {"stranded_bytes", stats->stranded_bytes},
        {"pending_bytes", stats->pending_bytes},
        {"peak_live_bytes", stats->peak_live_bytes},
        {"peak_requested_bytes", stats->peak_requested_bytes},
        {"peak_reserved_bytes", stats->peak_reserved_bytes},
        {"blocks_count", stats->blocks_count},
        {"allocations_count", stats->allocations_count},
        {"backend_calls_count", stats->backend_calls_count},
        {"unmovable_bytes", stats->unmovable_bytes}};
    memcpy(out, figures, sizeof figures);
}

void zr_tool_json_arena(struct zr_text *text, const struct zr_published_arena *arena)
{
    const struct zr_arena_stats *stats = &arena->stats;
    struct zr_tool_figure figures[ZR_TOOL_FIGURES];
    zr_tool_arena_figures(figures, arena);
    zr_text_print(text, "{\"number\": %" PRIu32 ", ", arena->number);
    zr_tool_json_words(text, "name", arena->name);
    zr_text_print(text, ", \"stripes_count\": %" PRIu32, arena->stripes_count);
    for (size_t i = 0; i < ZR_TOOL_FIGURES; i++)
        zr_text_print(text, ", \"%s\": %" PRIu64, figures[i].name, figures[i].value);
    zr_text_print(text, ", \"tags\": {");
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        zr_text_print(text, "%s\"%s\": {\"live_bytes\": %zu, \"peak_bytes\": %zu}", tag ? ", " : "",
                      zr_tag_name((zr_tag)tag), stats->live_by_tag_bytes[tag], stats->peak_by_tag_bytes[tag]);
    zr_text_print(text, "}}");
}

static void json_process(struct zr_text *text, const struct zr_live *live)
{
    zr_text_print(text, "{\"pid\": %" PRId32 ", ", live->shown.process.pid);
    zr_tool_json_words(text, "program", live->shown.program);
    zr_text_print(text, ", \"arenas_count\": %" PRIu32 ", \"arenas\": [", live->shown.arenas_count);
    for (unsigned i = 0; i < live->arenas_count; i++) {
        zr_text_print(text, i ? ", " : "");
        zr_tool_json_arena(text, &live->shown.arenas[i]);
    }
    zr_text_print(text, "]}");
}

static void table_process(struct zr_text *text, const struct zr_live *live)
{
    char number[5][ZR_TOOL_NUMBER_ROOM], program[17], name[13];
    for (unsigned i = 0; i < live->arenas_count; i++) {
        const struct zr_published_arena *arena = &live->shown.arenas[i];
        snprintf(program, sizeof program, "%.16s", live->shown.program);
        snprintf(name, sizeof name, "%.12s", arena->name);
        zr_make_plain(program);
        zr_make_plain(name);
        zr_text_print(text, "%8" PRId32 " %-16s %5" PRIu32 " %-12s %10s %10s %10s %10s %10s\n",
                      live->shown.process.pid, program, arena->number, name,
                      zr_tool_bytes(number[0], arena->stats.live_bytes),
                      zr_tool_bytes(number[1], arena->stats.reserved_bytes),
                      zr_tool_bytes(number[2], arena->stats.stranded_bytes),
                      zr_tool_bytes(number[3], arena->stats.peak_live_bytes),
                      zr_tool_bytes(number[4], arena->stats.peak_reserved_bytes));
    }
}

/* A process without published figures: the kernel's figures. */
struct quiet {
    long pid;
    char program[ZR_PUBLISHED_NAME_BYTES];
    uint64_t resident_bytes;
};

/* Reads the start of a file of /proc. */
static bool read_start(const char *path, char *out, size_t room_bytes)
{
    struct zr_file file;
    size_t got = 0;
    if (zr_file_open(&file, path) != ZR_OK)
        return false;
    zr_result result = zr_file_read(&file, out, room_bytes - 1, &got);
    zr_file_close(&file);
    out[result == ZR_OK ? got : 0] = '\0';
    return result == ZR_OK && got > 0;
}

/* False: the process exited. */
static bool read_quiet(struct quiet *out, long pid)
{
    char path[64], text[256];
    unsigned long long all = 0, resident = 0;
    *out = (struct quiet){.pid = pid};
    snprintf(path, sizeof path, "/proc/%ld/comm", pid);
    if (!read_start(path, text, sizeof text))
        return false;
    snprintf(out->program, sizeof out->program, "%.*s", (int)strcspn(text, "\n"), text);
    snprintf(path, sizeof path, "/proc/%ld/statm", pid);
    if (!read_start(path, text, sizeof text) || sscanf(text, "%llu %llu", &all, &resident) != 2)
        return false;
    out->resident_bytes = resident * (uint64_t)sysconf(_SC_PAGESIZE);
    return true;
}

static void print_quiet(struct zr_text *text, struct quiet *quiet, bool json)
{
    char number[ZR_TOOL_NUMBER_ROOM];
    if (json) {
        zr_text_print(text, "{\"pid\": %ld, ", quiet->pid);
        zr_tool_json_words(text, "program", quiet->program);
        zr_text_print(text, ", \"arenas_count\": null, \"arenas\": [], \"resident_bytes\": %" PRIu64 "}",
                      quiet->resident_bytes);
        return;
    }
    zr_make_plain(quiet->program);
    zr_text_print(text, "%8ld %-16.16s %5s %-12s %10s %10s %10s %10s %10s\n", quiet->pid, quiet->program, "-",
                  "(resident)", "-", zr_tool_bytes(number, quiet->resident_bytes), "-", "-", "-");
}

struct shown {
    struct zr_text *text;
    bool json, any;
};

/* Adds one process to the table or the JSON. */
static zr_result show_process(void *state, long pid)
{
    static struct zr_live live;
    struct shown *shown = state;
    struct quiet quiet;
    zr_result result = zr_live_read(&live, pid, &zr_tool_glance);
    if (result == ZR_ERR_TIMEOUT)
        result = zr_tool_note_old();
    bool is_quiet = result == ZR_ERR_UNAVAILABLE && zr_live_is_quiet(pid) && read_quiet(&quiet, pid);
    if (result != ZR_OK && !is_quiet)
        return result;
    if (shown->json)
        zr_text_print(shown->text, shown->any ? ",\n " : "");
    if (is_quiet)
        print_quiet(shown->text, &quiet, shown->json);
    else if (shown->json)
        json_process(shown->text, &live);
    else
        table_process(shown->text, &live);
    shown->any = true;
    return ZR_OK;
}

bool zr_tool_read_pid(const char *text, long *out)
{
    char *end;
    errno = 0;
    *out = strtol(text, &end, 10);
    if (*text < '1' || *text > '9' || *end || errno || *out > INT_MAX) {
        zr_tool_log("'%s' is not the number of a process; see zr ps", text);
        return false;
    }
    return true;
}

/* Calls `each` for each rank of a launcher. */
static zr_result each_of(long pid, zr_tool_each *each, void *state)
{
    zr_result result = ZR_OK;
    long rank = 0;
    if (!zr_tool_next_rank(pid, &rank))
        return each(state, pid);
    zr_tool_log("process %ld publishes no memory; showing the processes that it started", pid);
    do
        result = each(state, rank);
    while (result != ZR_ERR_INVALID && zr_tool_next_rank(pid, &rank));
    return result == ZR_ERR_INVALID ? result : ZR_OK; /* a process may have exited just now */
}

int zr_tool_each_process(const struct zr_tool_arguments *arguments, bool all, zr_tool_each *each, void *state)
{
    int code = ZR_TOOL_FINE;
    long pid, last = zr_live_last();
    for (int i = 0; i < arguments->files_count; i++)
        if (!zr_tool_read_pid(arguments->files[i], &pid))
            return ZR_TOOL_USAGE;
    for (int i = 0; i < arguments->files_count; i++) {
        zr_tool_read_pid(arguments->files[i], &pid);
        zr_result result = each_of(pid, each, state);
        code = result == ZR_OK ? code : zr_tool_fail(result);
        if (result == ZR_ERR_INVALID)
            return code;
    }
    for (pid = 0; all && arguments->files_count == 0 && pid < last && zr_live_next(&pid);)
        each(state, pid);
    return code;
}

/* Adds the processes without published figures. */
static void show_quiet(struct shown *shown)
{
    struct zr_folder folder;
    struct zr_folder_entry entry;
    if (zr_folder_open(&folder, "/proc") != ZR_OK)
        return;
    while (zr_folder_next(&folder, &entry) == ZR_OK && entry.name) {
        long pid = strtol(entry.name, NULL, 10);
        if (pid > 0 && zr_live_is_quiet(pid))
            show_process(shown, pid);
    }
    zr_folder_close(&folder);
}

int zr_tool_ps(int argc, char **argv)
{
    bool json = false;
    const struct zr_tool_option options[] = {{"--json", ZR_TOOL_FLAG, &json}, {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = ps_help, .options = options};
    struct zr_tool_output out;
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    zr_tool_output_start(&out);
    struct shown shown = {.text = &out.text, .json = json};
    if (json)
        zr_text_print(&out.text, "{\"version\": 1, \"processes\": [");
    else
        zr_text_print(&out.text, "%8s %-16s %5s %-12s %10s %10s %10s %10s %10s\n", "pid", "program", "arena",
                      "name", "live", "reserved", "stranded", "peak live", "peak res.");
    code = zr_tool_each_process(&arguments, true, show_process, &shown);
    if (code == ZR_TOOL_USAGE && !shown.any)
        return code;
    if (arguments.files_count == 0)
        show_quiet(&shown);
    if (json)
        zr_text_print(&out.text, "]}\n");
    int written = zr_tool_output_end(&out);
    char name[ZR_FOLDER_BYTES];
    bool can_show = zr_live_folder(name) == ZR_OK;
    if (!json && written == ZR_TOOL_FINE && !can_show)
        zr_tool_log("ps: no process of this user can publish the figures of its arenas: %s", zr_last_error());
    else if (!json && written == ZR_TOOL_FINE && !shown.any && code == ZR_TOOL_FINE)
        zr_tool_log("ps: no process of this user runs on zr");
    return written != ZR_TOOL_FINE ? written : code;
}

/* ---- Commands with a file ------------------------------------------------------------------------------ */

struct request {
    long pid;
    const char *arena; /* the arena that the user named, by name or number; NULL: all */
    uint64_t stacks;   /* allocations per recorded stack; 0: no stacks */
    const char *file;
    /* Arenas that have received the command. An attach also records arenas that are created later. */
    struct zr_tool_arena_name {
        uint32_t number;
        char name[ZR_PUBLISHED_NAME_BYTES];
    } commanded[COMMANDED_MAX];
    unsigned commanded_count;
};

void zr_tool_arena_word(char out[ZR_TOOL_ARENA_WORD], const struct zr_live *live, unsigned index)
{
    const struct zr_published_arena *arena = &live->shown.arenas[index];
    bool twice = false;
    snprintf(out, ZR_TOOL_ARENA_WORD, "%s", arena->name[0] ? arena->name : "arena");
    for (char *at = out; *at; at++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.", *at))
            *at = '-';
    for (unsigned i = 0; i < live->arenas_count; i++)
        twice = twice || (i != index && strcmp(live->shown.arenas[i].name, arena->name) == 0);
    size_t length = strlen(out);
    if (twice)
        snprintf(out + length, ZR_TOOL_ARENA_WORD - length, "-%" PRIu32, arena->number);
}

zr_result zr_tool_find_arena(unsigned *index, const struct zr_live *live, const char *word)
{
    char words[512] = "", name[ZR_TOOL_ARENA_WORD], number[16];
    size_t length = 0;
    for (*index = 0; *index < live->arenas_count; ++*index) {
        zr_tool_arena_word(name, live, *index);
        snprintf(number, sizeof number, "%" PRIu32, live->shown.arenas[*index].number);
        if (word ? strcmp(word, name) == 0 || strcmp(word, number) == 0 : live->arenas_count == 1)
            return ZR_OK;
        if (length < sizeof words)
            length += (size_t)snprintf(words + length, sizeof words - length, "%s %s (%s)", length ? "," : "",
                                       name, number);
    }
    if (!word)
        return zr_fail(ZR_ERR_INVALID,
                       "process %" PRId32 " has several arenas: choose one, as in %" PRId32 "/%s:%s",
                       live->shown.process.pid, live->shown.process.pid, live->shown.arenas[0].name, words);
    return zr_fail(ZR_ERR_INVALID, "process %" PRId32 " has no arena '%s'; it has%s", live->shown.process.pid,
                   word, words[0] ? words : " none");
}

zr_result zr_tool_arena_file(char out[PATH_MAX], const char *file, const char *word)
{
    const char *slash = strrchr(file, '/'), *dot = strrchr(file, '.');
    size_t stem = dot && dot > (slash ? slash + 1 : file) ? (size_t)(dot - file) : strlen(file);
    int length = snprintf(out, PATH_MAX, "%.*s-%s%s", (int)stem, file, word, file + stem);
    return length > 0 && length < PATH_MAX ? ZR_OK : zr_fail(ZR_ERR_INVALID, "'%s' is too long", file);
}

/* The process's published figures, as read for the current request. */
static struct zr_live live_of_request;

/* Finds the process, or a launcher's only rank, and the named arena. */
static zr_result complete(struct request *request)
{
    struct zr_live *live = &live_of_request;
    unsigned index;
    zr_result result = zr_tool_find_rank(&request->pid);
    if (result == ZR_OK)
        result = zr_live_reach(live, request->pid, false, &zr_tool_patience);
    if (result == ZR_OK && live->arenas_count == 0)
        result = zr_fail(ZR_ERR_UNAVAILABLE, "process %ld has no arena", request->pid);
    if (result == ZR_OK && request->arena)
        result = zr_tool_find_arena(&index, live, request->arena);
    if (result == ZR_OK && !request->arena && live->shown.arenas_count > live->arenas_count)
        zr_tool_log("process %ld has %" PRIu32 " arenas: only the first %u are used", request->pid,
                    live->shown.arenas_count, live->arenas_count);
    return result;
}

/* Marks the arena as commanded. False: the arena received the command before, or the user named another one.
 */
static bool is_next(struct request *request, unsigned index)
{
    const struct zr_published_arena *arena = &live_of_request.shown.arenas[index];
    unsigned wanted;
    if (request->arena &&
        (zr_tool_find_arena(&wanted, &live_of_request, request->arena) != ZR_OK || wanted != index))
        return false;
    for (unsigned i = 0; i < request->commanded_count; i++)
        if (request->commanded[i].number == arena->number &&
            strcmp(request->commanded[i].name, arena->name) == 0)
            return false;
    if (request->commanded_count == COMMANDED_MAX)
        return false;
    struct zr_tool_arena_name *commanded = &request->commanded[request->commanded_count++];
    commanded->number = arena->number;
    memcpy(commanded->name, arena->name, sizeof commanded->name);
    return true;
}

/* Sends one command for one arena. The file keeps the request's name if the command concerns one arena only.
 */
static zr_result send_to(const struct request *request, const char *word, unsigned index, int *connection)
{
    const struct zr_live *live = &live_of_request;
    char command[PATH_MAX + PATH_MAX + 64], words[ZR_LIVE_ANSWER_BYTES],
        folder[PATH_MAX] = "", name[ZR_TOOL_ARENA_WORD], file[PATH_MAX] = "";
    zr_result result = ZR_OK;
    bool alone = request->arena || (live->arenas_count == 1 && request->commanded_count == 1);
    zr_tool_arena_word(name, live, index);
    if (request->file && alone)
        snprintf(file, sizeof file, "%s", request->file);
    else if (request->file)
        result = zr_tool_arena_file(file, request->file, name);
    if (result == ZR_OK && file[0] && file[0] != '/' && !getcwd(folder, sizeof folder))
        result = zr_fail(ZR_ERR_IO, "the current directory has no name");
    if (result != ZR_OK)
        return result;
    int length =
        snprintf(command, sizeof command, "%s %" PRIu32 "%s%s%s%s", word, live->shown.arenas[index].number,
                 file[0] ? " " : "", folder, folder[0] ? "/" : "", file);
    if (length >= ZR_COMMAND_BYTES)
        return zr_fail(ZR_ERR_INVALID, "'%s' is too long", file);
    result = connection && *connection >= 0
                 ? zr_live_say(*connection, command, &zr_tool_patience, words)
                 : zr_live_ask(request->pid, command, &zr_tool_patience, words, connection);
    if (result == ZR_OK && file[0] && !alone)
        zr_tool_log("arena %" PRIu32 " (%s) goes to %s", live->shown.arenas[index].number, name, file);
    return result;
}

/* Sends the command for each arena that has not received it. An arena that refuses is skipped with a message.
 * It is an error if all arenas refuse. */
static zr_result send_to_all(struct request *request, const char *word, int *connection)
{
    static char refusals[ZR_PUBLISHED_ARENAS][ZR_LIVE_ANSWER_BYTES];
    bool stops = strcmp(word, "stop") == 0; /* stopping an arena that is not recorded is no failure */
    char name[ZR_TOOL_ARENA_WORD];
    bool refused[ZR_PUBLISHED_ARENAS] = {0};
    unsigned first = ZR_PUBLISHED_ARENAS, good_count = 0;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < live_of_request.arenas_count && result == ZR_OK; i++) {
        if (!is_next(request, i))
            continue;
        result = send_to(request, word, i, connection);
        good_count += result == ZR_OK;
        if (result != ZR_ERR_INVALID)
            continue;
        snprintf(refusals[i], sizeof refusals[i], "%s", zr_last_error());
        refused[i] = true;
        first = first < i ? first : i;
        result = stops && !strstr(refusals[i], "is not recorded") ? result : ZR_OK;
    }
    if (result == ZR_OK && good_count == 0 && first < ZR_PUBLISHED_ARENAS)
        return zr_fail(ZR_ERR_INVALID, "%s", refusals[first]);
    for (unsigned i = 0; i < live_of_request.arenas_count && result == ZR_OK && !stops; i++) {
        zr_tool_arena_word(name, &live_of_request, i);
        if (refused[i])
            zr_tool_log("arena %" PRIu32 " (%s) is skipped: %s", live_of_request.shown.arenas[i].number, name,
                        refusals[i]);
    }
    return result;
}

/* Starts the traces, with call stacks if requested. */
static zr_result start(struct request *request, const char *word, int *connection)
{
    char command[64], words[ZR_LIVE_ANSWER_BYTES];
    zr_result result = ZR_OK;
    if (request->stacks > MAX_STACKS)
        return zr_fail(ZR_ERR_INVALID, "--stacks takes at most %d", MAX_STACKS);
    snprintf(command, sizeof command, "stacks %" PRIu64, request->stacks);
    if (request->stacks > 0)
        result = zr_live_ask(request->pid, command, &zr_tool_patience, words, NULL);
    if (request->stacks > 0 && result == ZR_OK && words[0])
        zr_tool_log("process %ld: %s", request->pid, words);
    return result == ZR_OK ? send_to_all(request, word, connection) : result;
}

/* Parses a process number and at most `words_max` words. Returns an exit code after a message, or less than
 * 0 to continue. */
static int parse(struct request *request, struct zr_tool_arguments *arguments, int words_max, int argc,
                 char **argv)
{
    const char *command = argv[0];
    int code = zr_tool_parse(arguments, argc, argv);
    if (code >= 0)
        return code;
    if (arguments->files_count < 1 || arguments->files_count > 1 + words_max) {
        zr_tool_log("%s: a process number is missing, as zr ps shows it; see zr %s --help", command, command);
        return ZR_TOOL_USAGE;
    }
    return zr_tool_read_pid(arguments->files[0], &request->pid) ? -1 : ZR_TOOL_USAGE;
}

int zr_tool_snapshot(int argc, char **argv)
{
    struct request request = {0};
    const struct zr_tool_option options[] = {{"-o", ZR_TOOL_TEXT, &request.file},
                                             {"--arena", ZR_TOOL_TEXT, &request.arena},
                                             {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = snapshot_help, .options = options};
    int code = parse(&request, &arguments, 0, argc, argv);
    if (code >= 0)
        return code;
    if (!request.file) {
        zr_tool_log("snapshot: the output is missing: -o FILE");
        return ZR_TOOL_USAGE;
    }
    zr_result result = complete(&request);
    return zr_tool_fail(result == ZR_OK ? send_to_all(&request, "snapshot", NULL) : result);
}

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* Waits for the end of the time (0: unlimited), a signal, or the exit of the process. Records new arenas
 * meanwhile. */
static void wait_attached(struct request *request, int connection, uint64_t seconds)
{
    uint64_t start_ns = zr_os_now_ns(), limit_ns = seconds < UINT32_MAX ? seconds * 1000000000 : UINT64_MAX;
    struct pollfd poll_fd = {.fd = connection, .events = POLLIN};
    for (;;) {
        uint64_t passed_ns = zr_os_now_ns() - start_ns;
        if (interrupted || (seconds > 0 && passed_ns >= limit_ns))
            return;
        uint64_t left_ms = seconds > 0 ? (limit_ns - passed_ns) / 1000000 + 1 : 1000;
        if (poll(&poll_fd, 1, left_ms < 1000 ? (int)left_ms : 1000) > 0)
            return;
        zr_result result = request->arena ? ZR_OK : zr_live_read(&live_of_request, request->pid, NULL);
        if (!request->arena && result == ZR_OK)
            result = send_to_all(request, "attach", &connection);
        if (result == ZR_ERR_INVALID)
            zr_tool_log("a new arena is skipped: %s", zr_last_error());
    }
}

int zr_tool_attach(int argc, char **argv)
{
    struct request request = {0};
    uint64_t seconds = 0;
    char name[32], words[ZR_LIVE_ANSWER_BYTES];
    int connection = -1;
    const struct zr_tool_option options[] = {{"-o", ZR_TOOL_TEXT, &request.file},
                                             {"--arena", ZR_TOOL_TEXT, &request.arena},
                                             {"--seconds", ZR_TOOL_COUNT, &seconds},
                                             {"--stacks", ZR_TOOL_COUNT, &request.stacks},
                                             {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = attach_help, .options = options};
    int code = parse(&request, &arguments, 0, argc, argv);
    if (code >= 0)
        return code;
    snprintf(name, sizeof name, "zr-%ld.zrt", request.pid);
    if (!request.file)
        request.file = name;
    struct sigaction action = {.sa_handler = interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    zr_result result = complete(&request);
    if (result == ZR_OK)
        result = start(&request, "attach", &connection);
    if (result != ZR_OK) {
        if (connection >= 0)
            close(connection);
        return zr_tool_fail(result);
    }
    wait_attached(&request, connection, seconds);
    zr_live_hang_up(connection);
    result = zr_live_hear(connection, &zr_tool_patience, words);
    close(connection);
    if (result == ZR_ERR_TIMEOUT)
        zr_tool_log("attach: process %ld completes '%s' when it continues", request.pid, request.file);
    if (result == ZR_ERR_IO) /* the trace is valid up to the exit */
        zr_tool_log("attach: process %ld exited; '%s' has the events until then", request.pid, request.file);
    return result == ZR_ERR_IO ? ZR_TOOL_FINE : zr_tool_fail(result);
}

int zr_tool_record(int argc, char **argv)
{
    struct request request = {0};
    char command[256], words[ZR_LIVE_ANSWER_BYTES];
    const struct zr_tool_option options[] = {{"-o", ZR_TOOL_TEXT, &request.file},
                                             {"--arena", ZR_TOOL_TEXT, &request.arena},
                                             {"--stacks", ZR_TOOL_COUNT, &request.stacks},
                                             {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = record_help, .options = options};
    int code = parse(&request, &arguments, 2, argc, argv);
    if (code >= 0)
        return code;
    const char *word = arguments.files_count > 1 ? arguments.files[1] : "";
    const char *label = arguments.files_count > 2 ? arguments.files[2] : NULL;
    bool starts = strcmp(word, "start") == 0, stops = strcmp(word, "stop") == 0,
         marks = strcmp(word, "mark") == 0;
    if (!(starts || stops || marks) || starts != (request.file != NULL) || marks != (label != NULL)) {
        zr_tool_log(
            "record: a command is missing: PID start -o FILE, PID stop or PID mark WORDS; see zr record --help");
        return ZR_TOOL_USAGE;
    }
    zr_result result = marks ? zr_tool_find_rank(&request.pid) : complete(&request);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    if (!marks)
        return zr_tool_fail(starts ? start(&request, "record", NULL) : send_to_all(&request, "stop", NULL));
    snprintf(command, sizeof command, "mark %s", label);
    return zr_tool_fail(zr_live_ask(request.pid, command, &zr_tool_patience, words, NULL));
}
