/* input.c: opens files, standard input and processes as recordings. Uses defrag/report/. */
#define _GNU_SOURCE
#include "defrag/tool/input.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "defrag/report/call_site.h"
#include "defrag/tool/compressed.h"
#include "defrag/tool/live/live.h"

static void read_from_descriptor(struct zr_tool_source *source, const char *called)
{
    snprintf(source->called, sizeof source->called, "%s", called);
    snprintf(source->room, sizeof source->room, "/proc/self/fd/%d", source->fd);
    source->path = source->room;
}

/* A file without a name where temporary files are, or else in memory. */
static zr_result create_copy(struct zr_tool_source *source)
{
    struct zr_file file;
    const char *folder = getenv("TMPDIR");
    if (zr_file_create_nameless(&file, folder && *folder ? folder : "/tmp") == ZR_OK)
        source->fd = file.fd;
    else
        source->fd = memfd_create("zr-input", MFD_CLOEXEC);
    return source->fd >= 0 ? ZR_OK : zr_fail(ZR_ERR_IO, "cannot keep the input: %s", strerror(errno));
}

/* Traces are read several times: a pipe and compressed data cannot be, so their content is copied. */
static zr_result keep_content(struct zr_tool_source *source, const struct zr_file *from, const char *called)
{
    zr_result result = create_copy(source);
    if (result != ZR_OK)
        return result;
    struct zr_file to = zr_file_borrow(source->fd, "the temporary copy of the input");
    result = zr_compressed_copy(from, &to, &source->cut_short);
    if (result == ZR_OK && source->cut_short)
        zr_tool_log("%s ends within its compressed data: its content is read up to there", called);
    read_from_descriptor(source, called);
    return result;
}

static bool is_compressed(const char *path)
{
    unsigned char head[ZR_COMPRESSED_HEAD_BYTES];
    struct zr_file file;
    enum zr_path_kind kind;
    size_t got = 0;
    if (zr_path_kind_get(path, &kind) != ZR_OK || kind != ZR_PATH_FILE ||
        zr_file_open(&file, path) != ZR_OK) /* reading it as a recording reports the error */
        return false;
    bool is = zr_file_read(&file, head, sizeof head, &got) == ZR_OK && zr_compressed_is(head, got);
    zr_file_close(&file);
    return is;
}

static zr_result keep_decompressed(struct zr_tool_source *source, const char *path)
{
    char called[sizeof source->called];
    struct zr_file file;
    zr_result result = zr_file_open(&file, path);
    if (result != ZR_OK)
        return result;
    snprintf(called, sizeof called, "'%s'", file.name);
    result = keep_content(source, &file, called);
    zr_file_close(&file);
    return result;
}

enum { PID_DIGITS = 9 };

/* Whether the name is PID or PID/ARENA, and no file has that name. */
static bool is_process(const char *name)
{
    size_t digits = strspn(name, "0123456789");
    return digits > 0 && digits <= PID_DIGITS && (name[digits] == '\0' || name[digits] == '/') &&
           name[0] != '0' && access(name, F_OK) != 0;
}

/* ---- Names --------------------------------------------------------------------------------------------- */

struct name {
    const char *given; /* NULL: `arena` holds the name, PID/ARENA */
    char arena[PID_DIGITS + 3 + ZR_TOOL_ARENA_WORD];
};

static zr_result add_arenas(struct zr_vector *list, const char *number)
{
    static struct zr_live live;
    char word[ZR_TOOL_ARENA_WORD];
    long pid;
    if (!zr_tool_read_pid(number, &pid))
        return ZR_ERR_INVALID;
    zr_result result = zr_tool_find_rank(&pid);
    if (result == ZR_OK)
        result = zr_live_reach(&live, pid, false, &zr_tool_patience);
    if (result == ZR_OK && live.arenas_count == 0)
        result = zr_fail(ZR_ERR_UNAVAILABLE, "process %ld has no arena", pid);
    for (unsigned i = 0; i < live.arenas_count && result == ZR_OK; i++) {
        struct name name = {0};
        zr_tool_arena_word(word, &live, i);
        snprintf(name.arena, sizeof name.arena, "%ld/%s", pid, word);
        result = zr_vector_add(list, &name);
    }
    if (result == ZR_OK && live.shown.arenas_count > live.arenas_count)
        zr_tool_log("process %ld has %" PRIu32 " arenas: only the first %u are shown", pid,
                    live.shown.arenas_count, live.arenas_count);
    return result;
}

zr_result zr_tool_names_make(struct zr_tool_names *out, const struct zr_tool_arguments *arguments,
                             zr_arena *arena)
{
    zr_result result = ZR_OK;
    out->has_process = false;
    zr_vector_init(&out->list, arena, sizeof(struct name));
    for (int i = 0; i < arguments->files_count && result == ZR_OK; i++) {
        bool all_arenas = is_process(arguments->files[i]) && !strchr(arguments->files[i], '/');
        out->has_process = out->has_process || all_arenas;
        result = all_arenas ? add_arenas(&out->list, arguments->files[i])
                            : zr_vector_add(&out->list, &(struct name){.given = arguments->files[i]});
    }
    return result;
}

void zr_tool_names_end(struct zr_tool_names *names)
{
    zr_vector_end(&names->list);
}

const char *zr_tool_name(const struct zr_tool_names *names, size_t index)
{
    const struct name *name = zr_vector_at(&names->list, index);
    return name->given ? name->given : name->arena;
}

const char *zr_tool_name_arena(const struct zr_tool_names *names, size_t index)
{
    const struct name *name = zr_vector_at(&names->list, index);
    return name->given ? NULL : strchr(name->arena, '/') + 1;
}

/* ---- A process's arena --------------------------------------------------------------------------------- */

/* Reads the arena's figures again after its blocks were written, so that no peak is below the live bytes. If
 * the process has ended, the older figures remain. */
static void read_again(struct zr_published_arena *arena, struct zr_live *live, long pid)
{
    uint32_t number = arena->number;
    if (zr_live_read(live, pid, &zr_tool_glance) != ZR_OK)
        return;
    for (unsigned i = 0; i < live->arenas_count; i++)
        if (live->shown.arenas[i].number == number)
            *arena = live->shown.arenas[i];
}

/* Writes a snapshot of a running process to a file and unlinks the file. */
static zr_result take_process(struct zr_tool_input *input, struct zr_published_arena *arena)
{
    static struct zr_live live;
    char command[80], words[ZR_LIVE_ANSWER_BYTES], number[PID_DIGITS + 1];
    const char *slash = strchr(input->name, '/');
    unsigned index;
    long pid;
    snprintf(number, sizeof number, "%.*s", (int)strspn(input->name, "0123456789"), input->name);
    if (!zr_tool_read_pid(number, &pid))
        return ZR_ERR_INVALID;
    zr_result result = zr_tool_find_rank(&pid);
    if (result == ZR_OK)
        result = zr_live_reach(&live, pid, true, &zr_tool_patience);
    if (result == ZR_OK && live.arenas_count == 0)
        result = zr_fail(ZR_ERR_UNAVAILABLE, "process %ld has no arena", pid);
    if (result == ZR_OK)
        result = zr_tool_find_arena(&index, &live, slash ? slash + 1 : NULL);
    if (result == ZR_OK)
        *arena = live.shown.arenas[index];
    if (result != ZR_OK)
        return result;
    if ((input->source.fd = memfd_create("zr-input", MFD_CLOEXEC)) < 0)
        return zr_fail(ZR_ERR_IO, "cannot keep the blocks of process %ld: %s", pid, strerror(errno));
    snprintf(command, sizeof command, "snapshot %u /proc/%ld/fd/%d", arena->number, (long)getpid(),
             input->source.fd);
    result = zr_live_ask(pid, command, &zr_tool_patience, words, NULL);
    if (result == ZR_OK)
        read_again(arena, &live, pid);
    read_from_descriptor(&input->source, "the snapshot of the process");
    input->is_live = true;
    return result;
}

/* A snapshot has no history: take the peaks that the process publishes. */
static void note_peaks(struct zr_tool_input *input, const struct zr_arena_stats *stats)
{
    struct zr_moments *moments = &input->moments;
    moments->peak = (struct zr_moment){.records_count = moments->now.records_count};
    moments->peak.figures.live_bytes = stats->peak_live_bytes;
    moments->peak.figures.requested_bytes = stats->peak_requested_bytes;
    moments->peak.figures.reserved_bytes = moments->peak_reserved_bytes = stats->peak_reserved_bytes;
    moments->peak_requested_bytes = stats->peak_requested_bytes;
    if (stats->peak_reserved_bytes > 0)
        moments->gmlake_ratio = 1 - (double)stats->peak_live_bytes / (double)stats->peak_reserved_bytes;
}

zr_result zr_tool_source_open(struct zr_tool_source *out, const char *name)
{
    *out = (struct zr_tool_source){.path = name, .fd = -1};
    if (strcmp(name, "-") != 0)
        return is_compressed(name) ? keep_decompressed(out, name) : ZR_OK;
    struct zr_file from = zr_file_borrow(STDIN_FILENO, "standard input");
    return keep_content(out, &from, "standard input");
}

/* Replaces the path of a copy by the user's name for the file in the last error. */
static void name_in_failure(const struct zr_tool_source *source)
{
    char kept[sizeof source->room + 2], words[1024];
    int length = snprintf(kept, sizeof kept, "'%s'", source->room);
    snprintf(words, sizeof words, "%s", zr_last_error());
    const char *at = strstr(words, kept);
    if (at)
        zr_fail(ZR_ERR_FORMAT, "%.*s%s%s", (int)(at - words), words, source->called, at + length);
}

void zr_tool_source_close(struct zr_tool_source *source)
{
    if (source->path == source->room)
        name_in_failure(source);
    if (source->fd > 0)
        close(source->fd);
    source->fd = -1;
}

zr_result zr_tool_input_open(struct zr_tool_input *out, const char *name,
                             const struct zr_tool_reading *reading, zr_arena *arena)
{
    static struct zr_published_arena arena_shown;
    memset(out, 0, sizeof *out);
    out->name = name;
    char words[160];
    snprintf(words, sizeof words, "reading %.120s", name);
    zr_tool_progress_say(words);
    zr_result result = zr_tool_source_open(&out->source, name);
    if (result == ZR_OK && is_process(name))
        result = take_process(out, &arena_shown);
    if (result == ZR_OK)
        result = zr_recording_open(&out->recording,
                                   &(struct zr_read_options){.path = out->source.path,
                                                             .unit_bytes = reading->unit_bytes,
                                                             .device = zr_tool_device(reading->device)},
                                   reading->held, arena);
    if (result == ZR_OK && out->recording.kind == ZR_RECORDING_ZRT) {
        out->symbols = zr_symbols_make();
        out->recording.namer = zr_symbols_namer(out->symbols);
    }
    if (result == ZR_OK)
        result = zr_moments_measure(&out->moments, &out->now, &out->recording, arena);
    if (result == ZR_OK && out->is_live)
        note_peaks(out, &arena_shown.stats);
    zr_tool_progress_say(NULL);
    if (result == ZR_OK && out->recording.unknown_count > 0)
        zr_tool_log("'%s' has %" PRIu64 " events of unknown kinds, which are left out; the first is '%s'",
                    name, out->recording.unknown_count, out->recording.unknown);
    const struct zr_memory_figures *peak = &out->moments.peak.figures;
    if (result == ZR_OK && out->recording.has_maps && !out->is_live && peak->reserved_bytes > 0 &&
        peak->live_bytes + peak->pending_bytes > peak->reserved_bytes)
        zr_tool_log(
            "'%s' contradicts itself: more is live at its peak than is reserved; figures of the peak are too high",
            name);
    out->recording.cut_short |= out->source.cut_short;
    if (result == ZR_OK && out->recording.cut_short && !out->source.cut_short)
        zr_tool_log("'%s' is truncated: the output covers its first %" PRIu64 " events", name,
                    out->moments.now.records_count);
    return result;
}

void zr_tool_input_end(struct zr_tool_input *input)
{
    zr_memory_end(&input->now);
    zr_recording_close(&input->recording);
    zr_symbols_end(input->symbols);
    zr_tool_source_close(&input->source);
}

int zr_tool_with_memory(zr_result (*work)(void *state, zr_arena *arena, int *code), void *state)
{
    struct zr_tool_memory memory;
    int code = ZR_TOOL_FINE;
    zr_result result = zr_tool_memory_start(&memory);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    result = work(state, memory.arena, &code);
    if (result != ZR_OK)
        code = zr_tool_fail(result);
    zr_tool_memory_end(&memory);
    return code;
}

bool zr_tool_progress(void)
{
    return isatty(STDERR_FILENO);
}

void zr_tool_progress_say(const char *words)
{
    char line[200];
    if (!zr_tool_progress())
        return;
    int bytes = snprintf(line, sizeof line, "\r\033[K%s%.150s", words ? "zr: " : "", words ? words : "");
    if (bytes > 0)
        zr_write_all(STDERR_FILENO, ZR_PRESENT_POSITION, line, (size_t)bytes);
}

bool zr_tool_short_stack(struct zr_recording *recording, uint32_t stack, size_t columns,
                         char out[ZR_FRAME_BYTES])
{
    bool has = zr_site_frame(recording, stack, out);
    if (has)
        zr_tool_cut_frame(out, columns);
    return has;
}

zr_result zr_tool_extents(struct zr_vector *extents, const struct zr_memory *memory)
{
    struct zr_memory_walk walk = zr_memory_walk_of(memory);
    struct zr_memory_piece piece;
    zr_result result = ZR_OK;
    while (result == ZR_OK && zr_memory_next(&walk, &piece)) {
        const struct zr_range_record *block = piece.block;
        bool unknown = !block && !piece.mapped; /* between two blocks, in a file without mapped ranges */
        struct zr_map_extent extent = {.address = piece.address,
                                       .bytes = piece.bytes,
                                       .kind = unknown          ? ZR_MAP_UNMAPPED
                                               : !block         ? ZR_MAP_FREE
                                               : block->pending ? ZR_MAP_PENDING
                                                                : ZR_MAP_LIVE,
                                       .tag = block ? block->tag : ZR_TAG_OTHER};
        result = zr_vector_add(extents, &extent);
    }
    return result;
}

void zr_tool_json_number(struct zr_text *text, const char *key, uint64_t number, bool known)
{
    if (known)
        zr_text_print(text, "\"%s\": %" PRIu64, key, number);
    else
        zr_text_print(text, "\"%s\": null", key);
}
