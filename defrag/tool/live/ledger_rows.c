/* ledger_rows.c: rows for a process's resident memory and for a device's used memory. Uses
 * defrag/trace/live.c and /proc. See ledger.h. */
#include "defrag/tool/live/ledger.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"

/* Adds a row, unless it has no bytes. */
static void add_row(struct zr_memory_ledger *ledger, struct zr_ledger_row row)
{
    if (row.bytes != 0 && ledger->rows_count < ZR_LEDGER_ROWS)
        ledger->rows[ledger->rows_count++] = row;
}

int64_t zr_ledger_residual(const struct zr_memory_ledger *ledger)
{
    int64_t left = (int64_t)ledger->total_bytes;
    for (unsigned i = 0; i < ledger->rows_count; i++)
        left -= ledger->rows[i].bytes;
    return left;
}

/* The counts are read at different points in time, so their sum can exceed the total. */
static void close_rows(struct zr_memory_ledger *ledger)
{
    int64_t left = zr_ledger_residual(ledger);
    add_row(ledger,
            (struct zr_ledger_row){.name = "counted at another moment", .bytes = left < 0 ? left : 0});
}

/* ---- Arenas -------------------------------------------------------------------------------------------- */

/* Sums over the arenas of one kind of memory. */
struct holdings {
    uint64_t by_tag[ZR_TAG_COUNT];
    uint64_t live_bytes, pending_bytes, mapped_bytes, cached_bytes;
};

static void add_arena(struct holdings *sum, const struct zr_arena_stats *stats)
{
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        sum->by_tag[tag] += stats->live_by_tag_bytes[tag];
    sum->live_bytes += stats->live_bytes;
    sum->pending_bytes += stats->pending_bytes;
    sum->mapped_bytes += stats->mapped_bytes;
    sum->cached_bytes += stats->cached_bytes;
}

/* Adds mapped memory: blocks by tag, pending bytes, free bytes. */
static void add_mapped(struct zr_memory_ledger *out, const struct holdings *sum)
{
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        add_row(out, (struct zr_ledger_row){.name = zr_tag_name((zr_tag)tag),
                                            .is_tag = true,
                                            .bytes = (int64_t)sum->by_tag[tag]});
    add_row(out, (struct zr_ledger_row){.name = "freed, and a stream may still use it",
                                        .bytes = (int64_t)sum->pending_bytes});
    add_row(out, (struct zr_ledger_row){
                     .name = "free in the arenas",
                     .bytes = (int64_t)(sum->mapped_bytes - sum->live_bytes - sum->pending_bytes)});
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

enum kind {
    IN_ARENA = 0,
    PROGRAM,
    DEVICE_LIBRARY,
    LIBRARY,
    OTHER_FILE,
    HEAP,
    STACK,
    SHARED,
    ANONYMOUS,
    KERNEL,
    KINDS_COUNT
};

static const char *const kind_names[KINDS_COUNT] = {[PROGRAM] = "the program's file",
                                                    [DEVICE_LIBRARY] = "libraries of CUDA and NCCL",
                                                    [LIBRARY] = "other libraries",
                                                    [OTHER_FILE] = "other files",
                                                    [HEAP] = "heap, beside the arenas",
                                                    [STACK] = "the first thread's stack",
                                                    [SHARED] = "shared memory",
                                                    [ANONYMOUS] = "other anonymous memory",
                                                    [KERNEL] = "the kernel's own mappings"};

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool is_library(const char *name)
{
    const char *end = strstr(name, ".so");
    return end && (end[3] == '\0' || end[3] == '.' || end[3] == ' ');
}

/* A mapping of the process, from /proc/PID/smaps. */
struct mapping {
    uint64_t first, end; /* addresses */
    enum kind kind;      /* if no arena's range contains the mapping */
};

/* Resident bytes of the mapping in [first, end), by the page table; 0: the page table is unreadable. */
static uint64_t present_bytes(int pagemap, uint64_t first, uint64_t end)
{
    uint64_t entries[512], page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), count = 0;
    for (uint64_t page = first / page_bytes, last = end / page_bytes; pagemap >= 0 && page < last;) {
        uint64_t wanted = last - page < 512 ? last - page : 512;
        ssize_t got =
            zr_read_all(pagemap, (int64_t)(page * sizeof *entries), entries, wanted * sizeof *entries);
        if (got < (ssize_t)sizeof *entries)
            return 0;
        for (ssize_t i = 0; i < got / (ssize_t)sizeof *entries; i++)
            count += entries[i] >> 63;
        page += (uint64_t)got / sizeof *entries;
    }
    return count * page_bytes;
}

/* The arenas' share of a mapping's resident bytes. The kernel merges neighbouring mappings, so a mapping may
 * extend beyond an arena's range; then the pages in the range count. */
static uint64_t arenas_share(const struct zr_live *live, const struct mapping *mapping,
                             uint64_t resident_bytes, int pagemap)
{
    uint64_t share = 0;
    for (unsigned i = 0; i < live->arenas_count; i++) {
        const struct zr_published_arena *arena = &live->shown.arenas[i];
        for (unsigned r = 0; r < arena->ranges_count && arena->visible; r++) {
            uint64_t first = arena->ranges[r].address, end = first + arena->ranges[r].bytes;
            if (end < first || end <= mapping->first || first >= mapping->end)
                continue;
            if (first <= mapping->first && end >= mapping->end)
                return resident_bytes;
            share += present_bytes(pagemap, first > mapping->first ? first : mapping->first,
                                   end < mapping->end ? end : mapping->end);
        }
    }
    return share < resident_bytes ? share : resident_bytes;
}

/* The kind of a mapping by its name in /proc/PID/smaps; `program` is the target of /proc/PID/exe. */
static enum kind kind_of(const char *path, const char *program)
{
    static const char *const device_libraries[] = {"libcuda",  "libcudart", "libcublas",     "libcudnn",
                                                   "libcufft", "libcurand", "libcusolver",   "libcusparse",
                                                   "libnccl",  "libnv",     "libtorch_cuda", "libc10_cuda"};
    const char *name = strrchr(path, '/');
    if (begins(path,
               "/memfd:zr (deleted)")) /* contiguous pools use memfds, too, outside the arenas' ranges */
        return IN_ARENA;
    if (path[0] == '[')
        return begins(path, "[heap]")    ? HEAP
               : begins(path, "[stack]") ? STACK
               : begins(path, "[anon")   ? ANONYMOUS
                                         : KERNEL;
    if (path[0] == '\0')
        return ANONYMOUS;
    if (begins(path, "/memfd:") || begins(path, "/SYSV") || begins(path, "/dev/shm/") ||
        begins(path, "/dev/zero"))
        return SHARED;
    for (size_t i = 0; name && i < sizeof device_libraries / sizeof *device_libraries; i++)
        if (begins(name + 1, device_libraries[i]))
            return DEVICE_LIBRARY;
    return program[0] && strcmp(path, program) == 0 ? PROGRAM : is_library(path) ? LIBRARY : OTHER_FILE;
}

/* ---- /proc --------------------------------------------------------------------------------------------- */

/* Reads a file line by line; a line longer than the buffer comes in parts. */
struct lines {
    struct zr_file file;
    size_t held_bytes, next_bytes;
    char buffer[8192];
};

static zr_result next_line(struct lines *lines, char **out)
{
    char *start = lines->buffer + lines->next_bytes;
    char *end = memchr(start, '\n', lines->held_bytes - lines->next_bytes);
    *out = NULL;
    if (!end) {
        size_t left = lines->held_bytes - lines->next_bytes, got;
        memmove(lines->buffer, start, left);
        zr_result result =
            zr_file_read(&lines->file, lines->buffer + left, sizeof lines->buffer - 1 - left, &got);
        if (result != ZR_OK)
            return result;
        lines->held_bytes = left + got;
        lines->next_bytes = 0;
        start = lines->buffer;
        end = memchr(start, '\n', lines->held_bytes);
    }
    if (!end && lines->held_bytes == 0)
        return ZR_OK;
    if (!end)
        end = lines->buffer + lines->held_bytes;
    *end = '\0';
    lines->next_bytes = (size_t)(end - lines->buffer) + (end < lines->buffer + lines->held_bytes);
    *out = start;
    return ZR_OK;
}

/* Parses "Rss:      1234 kB". */
static bool read_resident(const char *line, uint64_t *out_bytes)
{
    unsigned long long kib;
    if (sscanf(line, "Rss: %llu kB", &kib) != 1)
        return false;
    *out_bytes = (uint64_t)kib * 1024;
    return true;
}

/* Sums the resident bytes of all mappings by kind; with `rolled`, reads the total only. */
static zr_result read_smaps(const struct zr_live *live, uint64_t sums[KINDS_COUNT], uint64_t *rolled)
{
    char path[64], program[4096], *line;
    struct lines lines = {.held_bytes = 0};
    struct mapping mapping = {.kind = ANONYMOUS};
    long pid = live->shown.process.pid;
    uint64_t bytes;
    snprintf(path, sizeof path, "/proc/%ld/exe", pid);
    ssize_t length = readlink(path, program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    snprintf(path, sizeof path, "/proc/%ld/%s", pid, rolled ? "smaps_rollup" : "smaps");
    zr_result result = zr_file_open(&lines.file, path);
    if (result != ZR_OK)
        return result;
    snprintf(path, sizeof path, "/proc/%ld/pagemap", pid);
    int pagemap = open(path, O_RDONLY | O_CLOEXEC);
    while ((result = next_line(&lines, &line)) == ZR_OK && line) {
        unsigned long long first, last;
        int name = 0;
        if (!rolled && sscanf(line, "%llx-%llx %*4s %*x %*s %*u %n", &first, &last, &name) == 2 && name > 0) {
            mapping = (struct mapping){first, last, kind_of(line + name, program)};
        } else if (read_resident(line, &bytes) && rolled) {
            *rolled = bytes;
        } else if (read_resident(line, &bytes)) {
            uint64_t share = arenas_share(live, &mapping, bytes, pagemap);
            sums[IN_ARENA] += share;
            sums[mapping.kind] += bytes - share;
        }
    }
    if (pagemap >= 0)
        close(pagemap);
    zr_file_close(&lines.file);
    return result;
}

/* ---- The ledgers --------------------------------------------------------------------------------------- */

zr_result zr_ledger_host(struct zr_memory_ledger *out, uint64_t *cached_bytes, const struct zr_live *live)
{
    struct holdings sum = {.live_bytes = 0};
    uint64_t resident[KINDS_COUNT] = {0};
    *out = (struct zr_memory_ledger){.total_bytes = 0};
    for (unsigned i = 0; i < live->arenas_count; i++)
        if (live->shown.arenas[i].visible)
            add_arena(&sum, &live->shown.arenas[i].stats);
    *cached_bytes = sum.cached_bytes;
    zr_result result = read_smaps(live, resident, NULL);
    if (result == ZR_OK)
        result = read_smaps(live, NULL, &out->total_bytes);
    if (result != ZR_OK)
        return result;
    add_mapped(out, &sum);
    int64_t beyond = (int64_t)(resident[IN_ARENA] - sum.mapped_bytes);
    add_row(out, (struct zr_ledger_row){.name = beyond < 0 ? "not touched yet"
                                                           : "mapped twice, or mapped meanwhile",
                                        .bytes = beyond});
    for (unsigned kind = PROGRAM; kind < KINDS_COUNT; kind++)
        add_row(out, (struct zr_ledger_row){.name = kind_names[kind], .bytes = (int64_t)resident[kind]});
    close_rows(out);
    return ZR_OK;
}

/* ---- Other processes of a device ----------------------------------------------------------------------- */

/* Bytes of the device that a process publishes as held. */
static uint64_t held_there(const struct zr_live *live, uint64_t device)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < live->arenas_count; i++)
        if (live->shown.arenas[i].device == device)
            bytes += live->shown.arenas[i].stats.reserved_bytes;
    return bytes;
}

/* Adds a row for each of the first processes, and one for the others. *earlier_bytes: the sum over processes
 * that are older than this one. */
static void add_others(struct zr_memory_ledger *out, const struct zr_live *live, uint64_t device,
                       uint64_t *earlier_bytes)
{
    static struct zr_live other; /* too large for the stack */
    unsigned count = 0;
    uint64_t more_bytes = 0;
    *earlier_bytes = 0;
    for (long pid = 0, last = zr_live_last(); device != 0 && pid < last && zr_live_next(&pid);) {
        if (pid == live->shown.process.pid || zr_live_read(&other, pid, NULL) != ZR_OK)
            continue;
        uint64_t bytes = held_there(&other, device);
        if (other.shown.process.started < live->shown.process.started)
            *earlier_bytes += bytes;
        if (bytes == 0)
            continue;
        if (count == ZR_LEDGER_OTHERS) {
            more_bytes += bytes;
            continue;
        }
        memcpy(out->programs[count], other.shown.program, sizeof out->programs[count]);
        zr_make_plain(out->programs[count]);
        add_row(out,
                (struct zr_ledger_row){.name = out->programs[count++], .bytes = (int64_t)bytes, .pid = pid});
    }
    add_row(out, (struct zr_ledger_row){.name = "further processes on zr", .bytes = (int64_t)more_bytes});
}

/* Adds the memory that was in use before this process opened the device and that no process on zr publishes;
 * at most the residual. */
static void add_before(struct zr_memory_ledger *out, uint64_t before_bytes, uint64_t earlier_bytes)
{
    int64_t before = (int64_t)(before_bytes - (earlier_bytes < before_bytes ? earlier_bytes : before_bytes));
    int64_t left = zr_ledger_residual(out);
    add_row(out, (struct zr_ledger_row){.name = "there before zr: the context, others",
                                        .bytes = before < left ? before
                                                 : left > 0    ? left
                                                               : 0});
}

void zr_ledger_device(struct zr_memory_ledger *out, const struct zr_live *live, uint64_t backend)
{
    struct holdings sum = {.live_bytes = 0};
    uint64_t reserved = 0, held = 0, device = 0, before_bytes = 0, earlier_bytes;
    *out = (struct zr_memory_ledger){.total_bytes = 0};
    for (unsigned i = 0; i < live->arenas_count; i++) {
        const struct zr_published_arena *arena = &live->shown.arenas[i];
        if (arena->backend != backend)
            continue;
        add_arena(&sum, &arena->stats);
        reserved += arena->stats.reserved_bytes;
        held = arena->device_held_bytes;
        device = arena->device;
        before_bytes = arena->device_before_bytes;
        out->total_bytes = arena->device_total_bytes - arena->device_free_bytes;
    }
    add_mapped(out, &sum);
    add_row(out,
            (struct zr_ledger_row){.name = "kept for later, not mapped", .bytes = (int64_t)sum.cached_bytes});
    add_row(out, (struct zr_ledger_row){.name = "reserved otherwise by the arenas",
                                        .bytes = (int64_t)(reserved - sum.mapped_bytes - sum.cached_bytes)});
    add_row(out, (struct zr_ledger_row){.name = "held by zr beside its arenas",
                                        .bytes = (int64_t)(held - reserved)});
    add_others(out, live, device, &earlier_bytes);
    add_before(out, before_bytes, earlier_bytes);
    close_rows(out);
}
