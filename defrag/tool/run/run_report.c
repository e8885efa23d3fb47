/* run_report.c: the report of `zr run --stats` and `--json` after the program's end. See run.h. Uses the
 * processes' records and zr_replay().
 *
 * The caching model replays the trace of the process with the highest traced peak. "saved" is the difference
 * of the two peaks, and may be negative. "By all processes at once" counts a page that a fork shares in each
 * process, and counts a killed process until zr notices its end (0.2 s).
 *
 * JSON: {"version": 1, "command", "exit_code"|null, "signal"|null, "seconds", "processes_count", "sum":
 * {"peak_held_bytes", "live_at_peak_bytes", "devices": [{"device", "peak_held_bytes",
 * "live_at_peak_bytes"}..]}, "root": PROCESS|null, "replay": {"process", "whole", "events",
 * "lower_bound_bytes", "caching_peak_reserved_bytes", "zr_peak_held_bytes", "saved_bytes"}|null, "verdict",
 * "next", "processes": [PROCESS..]}. PROCESS: {"process", "parent", "state": "running|ended|replaced|gone",
 * "program", "peak_resident_bytes", "peak_held_bytes", "live_at_peak_bytes", "limit_bytes", "failed_count",
 * "devices": [..]}. */
#include "defrag/tool/run/run.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"
#include "alloc/base/system/file.h"
#include "alloc/telemetry/trace_format.h"
#include "defrag/zr_defrag.h"

enum { WORDS_ROOM = 1024, NEXT_ROOM = 1900, SMALL_MAX_BYTES = 32 << 10 };

/* The report's contents. */
struct summary {
    const struct zr_run_report *report;
    const struct zr_usage *records; /* in the shared table */
    unsigned processes_count;       /* beyond the table's records, each image after an exec counts as one */
    const struct zr_usage *root;    /* the root's image with the highest peak; NULL: none on zr */
    const struct zr_usage *largest; /* the largest process of all */
    const struct zr_usage *failed;  /* the largest process that was refused memory; NULL: none */
    const struct zr_usage *traced;  /* the largest process with a readable trace; NULL: none */
    bool whole;                     /* the trace is complete */
    size_t events_count;
    struct zr_replay_report caching;
    char verdict[WORDS_ROOM], next[NEXT_ROOM];
    char refused[WORDS_ROOM]; /* path of the recorder's file of a device that refused memory; "": none */
};

static uint64_t get(const struct zr_usage *record, size_t offset)
{
    const char *figures = (const char *)&record->memory[ZR_USAGE_HOST];
    return atomic_load((const _Atomic uint64_t *)(const void *)(figures + offset));
}

#define FIGURE(record, name) get((record), offsetof(struct zr_usage_figures, name))

/* ---- Choosing a process -------------------------------------------------------------------------------- */

static const struct zr_usage *larger(const struct zr_usage *a, const struct zr_usage *b)
{
    return !a || FIGURE(b, peak_held_bytes) > FIGURE(a, peak_held_bytes) ? b : a;
}

static void choose_records(struct summary *summary)
{
    const struct zr_usage_table *table = summary->report->folder->table;
    uint32_t taken = atomic_load(&table->taken_count);
    summary->records = table->records;
    summary->processes_count = taken > ZR_USAGE_COUNT ? taken - ZR_USAGE_COUNT : 0;
    for (unsigned i = zr_usage_next(table->there, 0); i < ZR_USAGE_COUNT;
         i = zr_usage_next(table->there, i + 1)) {
        const struct zr_usage *record = &table->records[i];
        summary->processes_count += atomic_load(&record->state) != ZR_USAGE_REPLACED;
        summary->largest = larger(summary->largest, record);
        if (record->process == table->root)
            summary->root = larger(summary->root, record);
        if (FIGURE(record, failed_count) > 0)
            summary->failed = larger(summary->failed, record);
    }
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

/* The process with the highest peak on the device; NULL: no process held device memory or was refused it. */
static const struct zr_usage *largest_of_device(const struct summary *summary, unsigned memory)
{
    const _Atomic uint64_t *there = summary->report->folder->table->there;
    const struct zr_usage *largest = NULL;
    for (unsigned i = zr_usage_next(there, 0); i < ZR_USAGE_COUNT; i = zr_usage_next(there, i + 1)) {
        const struct zr_usage_figures *own = &summary->records[i].memory[memory];
        if (own->peak_held_bytes + own->failed_count > 0 &&
            (!largest || own->peak_held_bytes > largest->memory[memory].peak_held_bytes))
            largest = &summary->records[i];
    }
    return largest;
}

/* The peak of memory that all processes held at once, and its live part. Processes add to the sum in steps of
 * a MiB; the sum is at least the largest single process. */
static void sum_of_memory(const struct summary *summary, unsigned memory, const struct zr_usage *largest,
                          uint64_t *held_bytes, uint64_t *live_bytes)
{
    const struct zr_usage_table *table = summary->report->folder->table;
    const struct zr_usage_figures *own = &largest->memory[memory];
    *held_bytes = atomic_load(&table->sums[memory].peak_held_bytes);
    *live_bytes = atomic_load(&table->sums[memory].live_at_peak_bytes);
    if (*held_bytes <= own->peak_held_bytes) {
        *held_bytes = own->peak_held_bytes;
        *live_bytes = own->live_at_peak_bytes;
    }
}

/* ---- The trace ----------------------------------------------------------------------------------------- */

static bool trace_path(const struct summary *summary, const struct zr_usage *record, char path[PATH_MAX])
{
    const struct zr_run_report *report = summary->report;
    int length;
    if (!report->trace)
        length = snprintf(path, PATH_MAX, "%s/%td.zrt", report->folder->path, record - summary->records);
    else if (record->process == report->folder->table->root)
        length = snprintf(path, PATH_MAX, "%s", report->trace);
    else
        length = snprintf(path, PATH_MAX, "%s.%ld", report->trace, (long)record->process);
    enum zr_path_kind kind = ZR_PATH_NONE;
    return length < PATH_MAX && zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_FILE;
}

/* Chooses the existing trace of the process with the highest traced peak. */
static const struct zr_usage *choose_trace(const struct summary *summary, char path[PATH_MAX])
{
    const struct zr_usage *best = NULL;
    char candidate[PATH_MAX];
    const _Atomic uint64_t *there = summary->report->folder->table->there;
    for (unsigned i = zr_usage_next(there, 0); i < ZR_USAGE_COUNT; i = zr_usage_next(there, i + 1)) {
        const struct zr_usage *record = &summary->records[i];
        if (!record->traced || !trace_path(summary, record, candidate) ||
            (best && FIGURE(best, traced_peak_bytes) >= FIGURE(record, traced_peak_bytes)))
            continue;
        best = record;
        memcpy(path, candidate, PATH_MAX);
    }
    return best;
}

static bool is_whole(const char *path)
{
    struct zrt_header header = {.state = ZRT_NO_SPACE};
    struct zr_file file;
    if (zr_file_open_regular(&file, path) != ZR_OK)
        return false;
    zr_result result = zr_file_read_at(&file, 0, &header, sizeof header);
    zr_file_close(&file);
    return result == ZR_OK && header.state != ZRT_NO_SPACE;
}

/* Replays the trace under the caching model. If the replay fails, the report omits its figures. */
static void replay(struct summary *summary)
{
    char path[PATH_MAX];
    struct zr_tool_memory memory;
    struct zr_sequence sequence = {0};
    const struct zr_usage *traced = choose_trace(summary, path);
    if (!traced || zr_tool_memory_start(&memory) != ZR_OK)
        return;
    zr_result result =
        zr_sequence_read(&sequence, &(struct zr_read_options){.path = path, .device = -1}, memory.arena);
    if (result == ZR_OK)
        result =
            zr_replay(&sequence, &(struct zr_replay_options){.policy = ZR_POLICY_CACHING, .no_wait = true},
                      &summary->caching);
    if (result == ZR_OK && sequence.events_count > 0) {
        summary->traced = traced;
        summary->whole = is_whole(path);
        summary->events_count = sequence.events_count;
    } else if (result != ZR_OK) {
        zr_tool_log("run: %s", zr_last_error());
    }
    zr_sequence_end(&sequence);
    zr_tool_memory_end(&memory);
}

/* ---- Text ---------------------------------------------------------------------------------------------- */

struct bytes_text {
    char text[ZR_TOOL_NUMBER_ROOM];
};

static struct bytes_text bytes(uint64_t number)
{
    struct bytes_text out = {""};
    zr_tool_bytes(out.text, number);
    return out;
}

static double percent(uint64_t part, uint64_t of)
{
    return of ? 100.0 * (double)part / (double)of : 0;
}

/* Share of the caching model's peak beyond the largest live sum. */
static double lost_percent(const struct zr_replay_report *report)
{
    return report->peak_reserved_bytes > report->lower_bound_bytes
               ? percent(report->peak_reserved_bytes - report->lower_bound_bytes, report->peak_reserved_bytes)
               : 0;
}

static void judge_failure(struct summary *summary)
{
    uint64_t asked = FIGURE(summary->failed, failed_bytes), limit = FIGURE(summary->failed, limit_bytes);
    uint64_t live = FIGURE(summary->failed, live_at_failure_bytes);
    uint64_t count = FIGURE(summary->failed, failed_count);
    char who[200], more[100] = "";
    snprintf(who, sizeof who, "%s [%d] asked for %s with %s live", summary->failed->program,
             summary->failed->process, bytes(asked).text, bytes(live).text);
    if (count > 1)
        snprintf(more, sizeof more, "; %" PRIu64 " requests were refused", count);
    if (limit == 0)
        snprintf(summary->verdict, sizeof summary->verdict, "the system refused: %s%s", who, more);
    else if (live + asked > limit)
        snprintf(summary->verdict, sizeof summary->verdict, "shortage: %s, and its limit is %s%s", who,
                 bytes(limit).text, more);
    else if (asked <= SMALL_MAX_BYTES)
        snprintf(summary->verdict, sizeof summary->verdict,
                 "shortage: %s, and its limit is %s; the rest of it, %s, is jemalloc's records and memory "
                 "that it takes in advance for small objects, in whole granules of 2 MiB%s",
                 who, bytes(limit).text, bytes(limit - live).text, more);
    else
        snprintf(
            summary->verdict, sizeof summary->verdict,
            "fragmentation: %s, below its limit of %s; the rest is in freed blocks, rounding and granules of 2 "
            "MiB used in part%s",
            who, bytes(limit).text, more);
}

/* Whether a process of this run wrote the file: process numbers recur, and old files remain. */
static bool is_of_run(const struct summary *summary, const char *path)
{
    struct stat status;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time_t seconds = (time_t)(summary->report->end->ns / 1000000000u) + 2;
    return stat(path, &status) == 0 && status.st_mtim.tv_sec >= now.tv_sec - seconds;
}

/* Finds the files of libzr_cuda.so's flight recorder: arenas "gpu0" and on. */
static void find_refused(struct summary *summary)
{
    enum { DEVICES = 16 };
    const _Atomic uint64_t *there = summary->report->folder->table->there;
    for (unsigned i = zr_usage_next(there, 0); i < ZR_USAGE_COUNT; i = zr_usage_next(there, i + 1))
        for (unsigned device = 0; device < DEVICES; device++) {
            snprintf(summary->refused, sizeof summary->refused, "%s/zr-%d-gpu%u-1.zrt", zr_folder_temporary(),
                     summary->records[i].process, device);
            if (access(summary->refused, R_OK) == 0 && is_of_run(summary, summary->refused))
                return;
        }
    summary->refused[0] = '\0';
}

/* Describes the first device that refused memory. False: no device did. */
static bool judge_devices(struct summary *summary)
{
    for (unsigned i = ZR_USAGE_DEVICE; i < ZR_USAGE_MEMORIES; i++) {
        const struct zr_usage *largest = largest_of_device(summary, i);
        const struct zr_usage_figures *own = largest ? &largest->memory[i] : NULL;
        if (!own || own->failed_count == 0)
            continue;
        uint64_t limit = own->limit_bytes;
        snprintf(summary->verdict, sizeof summary->verdict,
                 "a device refused memory to %s [%d]: it asked device %u for %s with %s live%s%s",
                 largest->program, largest->process, i - ZR_USAGE_DEVICE, bytes(own->failed_bytes).text,
                 bytes(own->live_at_failure_bytes).text, limit ? ", and its limit is " : "",
                 limit ? bytes(limit).text : "");
        return true;
    }
    return false;
}

/* Whether the lost share is significant, and more than a part of the caching allocator's last segment. */
static bool fragments(const struct summary *summary)
{
    enum { MIN_PERCENT = 5, SEGMENT_BYTES = 20 << 20 };
    const struct zr_replay_report *caching = &summary->caching;
    return summary->traced && lost_percent(caching) >= MIN_PERCENT &&
           caching->peak_reserved_bytes - caching->lower_bound_bytes > SEGMENT_BYTES;
}

static void judge(struct summary *summary)
{
    double lost = lost_percent(&summary->caching);
    if (!summary->failed && judge_devices(summary))
        return;
    if (!summary->failed && !summary->report->malloc) {
        snprintf(summary->verdict, sizeof summary->verdict,
                 "no device refused memory; run zr replay on a --trace to see whether its blocks fragment");
        return;
    }
    if (summary->failed)
        judge_failure(summary);
    else if (!summary->traced)
        snprintf(summary->verdict, sizeof summary->verdict,
                 "no block above 32 KiB was traced: no fragmentation at that size");
    else if (fragments(summary))
        snprintf(
            summary->verdict, sizeof summary->verdict,
            "it fragments: a caching allocator would lose %.1f %% of its peak to fragments (zr replay: %s "
            "reserved for %s live)",
            lost, bytes(summary->caching.peak_reserved_bytes).text,
            bytes(summary->caching.lower_bound_bytes).text);
    else
        snprintf(
            summary->verdict, sizeof summary->verdict,
            "it does not fragment: a caching allocator, too, would lose only %s, %.1f %% of its peak (zr "
            "replay: %s reserved for %s live)",
            bytes(summary->caching.peak_reserved_bytes - summary->caching.lower_bound_bytes).text, lost,
            bytes(summary->caching.peak_reserved_bytes).text, bytes(summary->caching.lower_bound_bytes).text);
}

/* Quotes a word of the command for any POSIX shell. Control characters, which would act on a terminal, use
 * printf; since "$(..)" drops line ends at the end of a word, these are quoted literally. */
static void put_word(struct zr_text *text, const char *word)
{
    size_t bytes = strlen(word), ends = 0;
    while (ends < bytes && word[bytes - 1 - ends] == '\n')
        ends++;
    bool plain = true, quotable = true;
    for (size_t i = 0; i < bytes - ends; i++) {
        unsigned char c = (unsigned char)word[i];
        plain &= isalnum(c) || strchr("_-./=:,@%+", c);
        quotable &= c >= 32 && c != 127;
    }
    zr_text_print(text, plain && bytes > 0 && ends == 0 ? " " : quotable ? " '" : " \"$(printf '");
    for (size_t i = 0; i < bytes - ends; i++) {
        unsigned char c = (unsigned char)word[i];
        if (c == '\'')
            zr_text_print(text, "'\\''");
        else if (!quotable && (c < 32 || c == 127))
            zr_text_print(text, "\\%03o", c);
        else
            zr_text_print(text, !quotable && (c == '%' || c == '\\') ? "%c%c" : "%c", c, c);
    }
    if (!quotable)
        zr_text_print(text, "')\"%s", ends ? "'" : "");
    for (; ends > 0; ends--)
        zr_text_print(text, "\n");
    if (!plain || bytes == 0 || word[bytes - 1] == '\n')
        zr_text_print(text, quotable || word[bytes - 1] == '\n' ? "'" : "");
}

static void put_command(struct zr_text *text, char **command)
{
    for (; *command; command++)
        put_word(text, *command);
}

/* The command for the flight recorder's file of the process that was refused memory. */
static bool advise_file(const struct summary *summary, struct zr_text *text)
{
    char path[WORDS_ROOM];
    if (!summary->failed && !summary->refused[0])
        return false;
    if (!summary->failed)
        snprintf(path, sizeof path, "%s", summary->refused);
    else
        snprintf(path, sizeof path, "%s/zr-%d-large-1.zrt", zr_folder_temporary(), summary->failed->process);
    if (access(path, R_OK) != 0 || !is_of_run(summary, path))
        return false;
    zr_text_print(text, "zr why");
    put_word(text, path);
    return true;
}

/* The command for the requested trace. */
static bool advise_trace(const struct summary *summary, struct zr_text *text)
{
    char path[PATH_MAX];
    if (!summary->report->trace || !summary->traced || !trace_path(summary, summary->traced, path))
        return false;
    bool refused = summary->failed == summary->traced && summary->whole &&
                   FIGURE(summary->failed, failed_bytes) > SMALL_MAX_BYTES;
    zr_text_print(text, refused && zr_tool_has("why") ? "zr why" : "zr replay");
    put_word(text, path);
    return true;
}

/* The process whose file zr replay would read after a run with --trace FILE. The file names have suffixes
 * with process numbers that are not known yet. NULL: none. */
static const struct zr_usage *traced_next_time(const struct summary *summary, const char **suffix)
{
    const struct zr_usage *device = largest_of_device(summary, ZR_USAGE_DEVICE);
    *suffix = summary->traced || !summary->report->malloc ? "" : ".gpu";
    if (summary->traced)
        return summary->traced;
    return device && device->memory[ZR_USAGE_DEVICE].peak_held_bytes > 0 ? device : NULL;
}

static void advise_run(const struct summary *summary, struct zr_text *text)
{
    const struct zr_run_report *report = summary->report;
    const char *suffix, *file = access(".", W_OK) == 0 ? "blocks.zrt" : "/tmp/blocks.zrt";
    const struct zr_usage *traced = traced_next_time(summary, &suffix);
    uint64_t limit = summary->failed ? FIGURE(summary->failed, limit_bytes) : 0;
    char limit_text[ZR_SIZE_EXACT_ROOM];
    if (!traced && limit == 0) {
        zr_text_print(text, "nothing: there is no block above 32 KiB to look at");
        return;
    }
    if (!traced) {
        zr_text_print(text, "zr run --stats%s --limit %" PRIu64 "MiB --", report->options,
                      (limit >> 20) * 2 + 2);
        put_command(text, report->command);
        return;
    }
    zr_text_print(text, "zr run%s", report->options);
    if (report->limit_bytes > 0)
        zr_text_print(text, " --limit %s", zr_size_print_exact(limit_text, report->limit_bytes));
    zr_text_print(text, " --trace %s --", file);
    put_command(text, report->command);
    /* `;` if the program failed: its trace exists nevertheless */
    zr_text_print(text, report->end->status == 0 ? " && " : "; ");
    if (traced->process == report->folder->table->root)
        zr_text_print(text, "zr replay %s%s", file, suffix);
    else
        zr_text_print(text, "for f in %s*; do zr replay \"$f\"; done", file);
}

static void advise(struct summary *summary)
{
    struct zr_text text;
    zr_text_start(&text, NULL, summary->next, sizeof summary->next);
    if (!summary->root && !summary->largest) {
        zr_text_print(&text, "zr doctor --");
        put_command(&text, summary->report->command);
    } else if (!advise_trace(summary, &text) && !advise_file(summary, &text)) {
        advise_run(summary, &text);
    }
    if (text.result != ZR_OK)
        snprintf(summary->next, sizeof summary->next,
                 "the same with --trace FILE, then zr replay FILE (the command is too long to be shown)");
}

/* The peak of resident bytes. For the root process, the kernel also reports it after the exit. 0: unknown. */
static uint64_t resident_bytes(const struct summary *summary, const struct zr_usage *record)
{
    uint64_t known = atomic_load(&record->peak_resident_bytes);
    return known == 0 && record == summary->root ? summary->report->end->peak_resident_bytes : known;
}

/* ---- Five lines ---------------------------------------------------------------------------------------- */

static void show_devices(const struct summary *summary)
{
    for (unsigned i = ZR_USAGE_DEVICE; i < ZR_USAGE_MEMORIES; i++) {
        const struct zr_usage *largest = largest_of_device(summary, i);
        char others[200] = "";
        uint64_t sum_held, sum_live;
        if (!largest)
            continue;
        uint64_t held = largest->memory[i].peak_held_bytes, live = largest->memory[i].live_at_peak_bytes;
        sum_of_memory(summary, i, largest, &sum_held, &sum_live);
        if (sum_held > held)
            snprintf(others, sizeof others, "; by all processes at once at most %s", bytes(sum_held).text);
        zr_tool_log("device %-3u peak held %s, live then %s, %.1f %% of it, by %s [%d]%s",
                    i - ZR_USAGE_DEVICE, bytes(held).text, bytes(live).text, percent(live, held),
                    largest->program, largest->process, others);
    }
}

static void show_host(const struct summary *summary)
{
    const struct zr_usage *largest = summary->largest;
    char others[200] = "";
    uint64_t held = FIGURE(largest, peak_held_bytes), live = FIGURE(largest, live_at_peak_bytes), sum,
             sum_live;
    sum_of_memory(summary, ZR_USAGE_HOST, largest, &sum, &sum_live);
    if (summary->processes_count > 1)
        snprintf(others, sizeof others, "; by all %u processes at once at most %s", summary->processes_count,
                 bytes(sum).text);
    uint64_t resident = resident_bytes(summary, largest);
    zr_tool_log("peak held  %s%s%s by %s [%d]%s", bytes(held).text, resident ? ", resident at most " : "",
                resident ? bytes(resident).text : "", largest->program, largest->process, others);
    zr_tool_log("live then  %s, %.1f %% of it", bytes(live).text, percent(live, held));
    uint64_t own = summary->traced ? FIGURE(summary->traced, traced_peak_bytes) : 0;
    uint64_t caching = summary->caching.peak_reserved_bytes;
    if (!summary->traced)
        zr_tool_log("saved      unknown: no trace of large blocks");
    else
        zr_tool_log(
            "saved      %s%s: for the %s of %s [%d] above 32 KiB a caching allocator would have held %s, "
            "zr %s",
            caching >= own ? "" : "-", bytes(caching >= own ? caching - own : own - caching).text,
            summary->whole ? "blocks" : "first blocks (of a trace of 64 MiB)", summary->traced->program,
            summary->traced->process, bytes(caching).text, bytes(own).text);
}

static void show_lines(const struct summary *summary)
{
    if (!summary->largest) {
        zr_tool_log("no process was served by %s: there are no figures; next: %s",
                    summary->report->malloc ? "libzr_malloc.so" : "libzr_cuda.so", summary->next);
        return;
    }
    if (summary->report->malloc)
        show_host(summary);
    show_devices(summary);
    zr_tool_log("verdict    %s", summary->verdict);
    zr_tool_log("next       %s", summary->next);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void print_figures(struct zr_text *text, const struct zr_usage_figures *figures)
{
    zr_text_print(text,
                  "\"peak_held_bytes\": %" PRIu64 ", \"live_at_peak_bytes\": %" PRIu64
                  ", \"limit_bytes\": %" PRIu64 ", \"failed_count\": %" PRIu64,
                  atomic_load(&figures->peak_held_bytes), atomic_load(&figures->live_at_peak_bytes),
                  atomic_load(&figures->limit_bytes), atomic_load(&figures->failed_count));
    if (atomic_load(&figures->failed_count) > 0)
        zr_text_print(text, ", \"failed_bytes\": %" PRIu64 ", \"live_at_failure_bytes\": %" PRIu64,
                      atomic_load(&figures->failed_bytes), atomic_load(&figures->live_at_failure_bytes));
}

static void print_record(struct zr_text *text, const struct summary *summary, const struct zr_usage *record)
{
    static const char *const states[] = {"", "running", "ended", "replaced", "gone"};
    zr_text_print(text, "{\"process\": %d, \"parent\": %d, \"state\": \"%s\", ", record->process,
                  record->parent, states[atomic_load(&record->state) % 5]);
    zr_tool_json_words(text, "program", record->program);
    zr_text_print(text, ", \"peak_resident_bytes\": %" PRIu64 ", ", resident_bytes(summary, record));
    print_figures(text, &record->memory[ZR_USAGE_HOST]);
    zr_text_print(text, ", \"devices\": [");
    for (unsigned i = ZR_USAGE_DEVICE, shown = 0; i < ZR_USAGE_MEMORIES; i++) {
        if (atomic_load(&record->memory[i].peak_held_bytes) + atomic_load(&record->memory[i].failed_count) ==
            0)
            continue;
        zr_text_print(text, "%s{\"device\": %u, ", shown++ ? ", " : "", i - ZR_USAGE_DEVICE);
        print_figures(text, &record->memory[i]);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "]}");
}

static void print_replay(struct zr_text *text, const struct summary *summary)
{
    if (!summary->traced) {
        zr_text_print(text, " \"replay\": null,\n");
        return;
    }
    uint64_t own = FIGURE(summary->traced, traced_peak_bytes);
    zr_text_print(
        text,
        " \"replay\": {\"process\": %d, \"whole\": %s, \"events\": %zu, \"lower_bound_bytes\": %" PRIu64
        ", \"caching_peak_reserved_bytes\": %" PRIu64 ", \"zr_peak_held_bytes\": %" PRIu64
        ", \"saved_bytes\": %" PRId64 "},\n",
        summary->traced->process, summary->whole ? "true" : "false", summary->events_count,
        summary->caching.lower_bound_bytes, summary->caching.peak_reserved_bytes, own,
        (int64_t)(summary->caching.peak_reserved_bytes - own));
}

static void print_device_sums(struct zr_text *text, const struct summary *summary)
{
    for (unsigned i = ZR_USAGE_DEVICE, shown = 0; i < ZR_USAGE_MEMORIES; i++) {
        const struct zr_usage *largest = largest_of_device(summary, i);
        uint64_t held, live;
        if (!largest)
            continue;
        sum_of_memory(summary, i, largest, &held, &live);
        zr_text_print(
            text, "%s{\"device\": %u, \"peak_held_bytes\": %" PRIu64 ", \"live_at_peak_bytes\": %" PRIu64 "}",
            shown++ ? ", " : "", i - ZR_USAGE_DEVICE, held, live);
    }
}

static void print_json(struct zr_text *text, const struct summary *summary)
{
    const struct zr_usage_table *table = summary->report->folder->table;
    const struct zr_run_end *end = summary->report->end;
    uint64_t sum = 0, sum_live = 0;
    if (summary->largest)
        sum_of_memory(summary, ZR_USAGE_HOST, summary->largest, &sum, &sum_live);
    zr_text_print(text, "{\"version\": 1, \"command\": [");
    for (char **word = summary->report->command; *word; word++) {
        zr_text_print(text, word == summary->report->command ? "" : ", ");
        zr_text_json_string(text, *word, strlen(*word));
    }
    zr_text_print(text, "],\n \"exit_code\": ");
    zr_text_print(text, WIFEXITED(end->status) ? "%d, \"signal\": null" : "null, \"signal\": %d",
                  WIFEXITED(end->status) ? WEXITSTATUS(end->status) : WTERMSIG(end->status));
    zr_text_print(text, ", \"seconds\": %.6f, \"processes_count\": %u,\n", (double)end->ns / 1e9,
                  summary->processes_count);
    zr_text_print(text,
                  " \"sum\": {\"peak_held_bytes\": %" PRIu64 ", \"live_at_peak_bytes\": %" PRIu64
                  ", \"devices\": [",
                  sum, sum_live);
    print_device_sums(text, summary);
    zr_text_print(text, "]},\n \"root\": ");
    if (summary->root)
        print_record(text, summary, summary->root);
    else
        zr_text_print(text, "null");
    zr_text_print(text, ",\n");
    print_replay(text, summary);
    zr_text_print(text, " ");
    zr_tool_json_words(text, "verdict", summary->verdict);
    zr_text_print(text, ",\n ");
    zr_tool_json_words(text, "next", summary->next);
    zr_text_print(text, ",\n \"processes\": [");
    bool first = true;
    for (unsigned i = zr_usage_next(table->there, 0); i < ZR_USAGE_COUNT;
         i = zr_usage_next(table->there, i + 1), first = false) {
        zr_text_print(text, first ? "\n  " : ",\n  ");
        print_record(text, summary, &summary->records[i]);
    }
    zr_text_print(text, "\n ]}\n");
}

static bool write_json(const struct summary *summary)
{
    char buffer[8192];
    struct zr_text text;
    struct zr_file file;
    zr_result result = zr_file_create(&file, summary->report->json, ZR_CREATE_REPLACE);
    if (result == ZR_OK) {
        zr_text_start(&text, &file, buffer, sizeof buffer);
        print_json(&text, summary);
        result = zr_text_flush(&text);
        zr_result closed = zr_file_close(&file);
        result = result == ZR_OK ? closed : result;
    }
    return zr_tool_fail(result) == ZR_TOOL_FINE;
}

bool zr_run_show(const struct zr_run_report *report)
{
    struct summary summary = {.report = report};
    choose_records(&summary);
    replay(&summary);
    find_refused(&summary);
    judge(&summary);
    advise(&summary);
    if (report->stats)
        show_lines(&summary);
    return !report->json || write_json(&summary);
}
