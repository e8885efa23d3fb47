/* top_model.c: see top_model.h. Uses defrag/trace/live.c and defrag/report/. */
#define _GNU_SOURCE
#include "defrag/tool/live/top_model.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "defrag/tool/input.h"

enum { LEAST_MS = 100, SILENT_SLICES = 10, LOOK_NOW_MS = 10000, LOOK_MS = 60000, LOOK_SHARE = 50 };
#define LOOK_MIN_NS UINT64_C(2000000000)

/* ---- Processes ----------------------------------------------------------------------------------------- */

int zr_top_find(const struct zr_top *top, long pid)
{
    for (unsigned i = 0; i < top->processes_count; i++)
        if (top->processes[i].pid == pid)
            return (int)i;
    return -1;
}

static void drop(struct zr_top *top, unsigned index)
{
    top->processes_count--;
    memmove(&top->processes[index], &top->processes[index + 1],
            (top->processes_count - index) * sizeof *top->processes);
}

/* Inserts a process in order of numbers. In a full table, the processes that are gone are dropped first;
 * NULL: the table is full. */
static struct zr_top_process *add(struct zr_top *top, long pid)
{
    unsigned at = 0;
    for (unsigned i = 0; i < top->processes_count && top->processes_count == ZR_TOP_PROCESSES; i++)
        if (top->processes[i].state == ZR_TOP_GONE && !top->processes[i].named)
            drop(top, i);
    if (top->processes_count == ZR_TOP_PROCESSES)
        return NULL;
    while (at < top->processes_count && top->processes[at].pid < pid)
        at++;
    struct zr_top_process *process = &top->processes[at];
    memmove(process + 1, process, (top->processes_count - at) * sizeof *process);
    top->processes_count++;
    *process = (struct zr_top_process){.pid = pid, .state = ZR_TOP_GONE};
    return process;
}

zr_result zr_top_name(void *state, long pid)
{
    struct zr_top *top = state;
    int index = zr_top_find(top, pid);
    struct zr_top_process *process = index < 0 ? add(top, pid) : &top->processes[index];
    if (!process)
        return zr_fail(ZR_ERR_INVALID, "at most %d processes at once", (int)ZR_TOP_PROCESSES);
    process->named = true;
    return ZR_OK;
}

static uint64_t allocations_of(const struct zr_live *live)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < live->arenas_count; i++)
        sum += live->shown.arenas[i].stats.allocations_count;
    return sum;
}

static void take_rate(struct zr_top_process *process, const struct zr_live *before)
{
    const struct zr_published *now = &process->live.shown;
    uint64_t allocations = allocations_of(&process->live), earlier = allocations_of(before);
    bool same = before->shown.process.pid == now->process.pid &&
                before->shown.process.started == now->process.started &&
                before->arenas_count == process->live.arenas_count && allocations >= earlier;
    if (!same)
        process->has_rate = false;
    else if (now->written_ns > before->shown.written_ns) {
        process->has_rate = true;
        process->allocations_hz =
            (double)(allocations - earlier) * 1e9 / (double)(now->written_ns - before->shown.written_ns);
    }
}

/* Whether this refresh queries the process: a silent process is queried in one of SILENT_TURNS refreshes. */
static bool is_due(struct zr_top_process *process)
{
    return process->state != ZR_TOP_SILENT || ++process->silent_slices % SILENT_SLICES == 0;
}

/* Reads current figures. False: none are available, and the old figures remain. */
static bool read_process(struct zr_top_process *process, bool ask, int patience_ms)
{
    static struct zr_live now, before;
    char words[ZR_LIVE_ANSWER_BYTES];
    const struct zr_live_patience patience = {.timeout_ms = patience_ms, .passes_stopped = true};
    zr_result answered = ask ? zr_live_ask(process->pid, "stats", &patience, words, NULL) : ZR_OK;
    /* A live process without a socket counts as gone: this read detects it, and removes its files. */
    zr_result result = zr_live_read(&now, process->pid, answered == ZR_ERR_UNAVAILABLE ? &patience : NULL);
    if (result != ZR_OK)
        return false;
    before = process->live;
    process->live = now;
    if (ask) {
        process->silent_slices = answered == ZR_OK ? 0 : process->silent_slices;
        process->state = answered == ZR_OK ? ZR_TOP_LIVE : ZR_TOP_SILENT;
    }
    take_rate(process, &before);
    return true;
}

static void refresh_one(struct zr_top *top, struct zr_top_process *process, int patience_ms)
{
    bool looked_at = top->connection >= 0 &&
                     top->requested_pid == process->pid; /* a process answers one connection at a time */
    if (!read_process(process, !looked_at && is_due(process), patience_ms))
        process->state = ZR_TOP_GONE;
    process->seen = true;
}

static bool any_named(const struct zr_top *top)
{
    for (unsigned i = 0; i < top->processes_count; i++)
        if (top->processes[i].named)
            return true;
    return false;
}

/* How long to wait for one process: the rest of the time for all, but at least LEAST_MS. */
static int patience_left(uint64_t start_ns, int patience_ms)
{
    int64_t left_ms = patience_ms - (int64_t)((zr_os_now_ns() - start_ns) / 1000000);
    return left_ms > LEAST_MS ? (int)left_ms : patience_ms < LEAST_MS ? patience_ms : LEAST_MS;
}

void zr_top_refresh(struct zr_top *top, int patience_ms)
{
    bool named = any_named(top);
    uint64_t start_ns = zr_os_now_ns();
    long last = zr_live_last();
    zr_services_read(&top->services, ZR_SERVICE_ASKED);
    top->others_count = 0;
    for (unsigned i = 0; i < top->processes_count; i++)
        top->processes[i].seen = false;
    for (long pid = 0; !named && pid < last && zr_live_next(&pid);) {
        int index = zr_top_find(top, pid);
        struct zr_top_process *process = index >= 0 ? &top->processes[index] : NULL;
        if (pid == (long)getpid())
            continue;
        if (!process && !(process = add(top, pid))) {
            top->others_count++;
            continue;
        }
        refresh_one(top, process, patience_left(start_ns, patience_ms));
        if (process->state == ZR_TOP_GONE && process->live.shown.process.pid == 0) {
            drop(top, (unsigned)(process - top->processes)); /* never read: dead, or of another release */
            top->others_count += kill((pid_t)pid, 0) == 0;
        }
    }
    for (unsigned i = 0; i < top->processes_count; i++) {
        struct zr_top_process *process = &top->processes[i];
        if (named)
            refresh_one(top, process, patience_left(start_ns, patience_ms));
        else if (!process->seen)
            process->state = ZR_TOP_GONE;
    }
}

void zr_top_clear_gone(struct zr_top *top)
{
    for (unsigned i = top->processes_count; i-- > 0;)
        if (top->processes[i].state == ZR_TOP_GONE)
            drop(top, i);
}

void zr_top_clear_unnamed(struct zr_top *top)
{
    for (unsigned i = top->processes_count; i-- > 0;)
        if (top->processes[i].state == ZR_TOP_GONE && !top->processes[i].named)
            drop(top, i);
}

/* ---- Figures ------------------------------------------------------------------------------------------- */

static void add_figures(struct zr_arena_stats *sum, const struct zr_arena_stats *stats)
{
    sum->live_bytes += stats->live_bytes;
    sum->requested_bytes += stats->requested_bytes;
    sum->mapped_bytes += stats->mapped_bytes;
    sum->cached_bytes += stats->cached_bytes;
    sum->reserved_bytes += stats->reserved_bytes;
    sum->pending_bytes += stats->pending_bytes;
    sum->stranded_bytes += stats->stranded_bytes;
    sum->peak_live_bytes += stats->peak_live_bytes;
    sum->peak_requested_bytes += stats->peak_requested_bytes;
    sum->peak_reserved_bytes += stats->peak_reserved_bytes;
    sum->blocks_count += stats->blocks_count;
    sum->allocations_count += stats->allocations_count;
    sum->backend_calls_count += stats->backend_calls_count;
    sum->unmovable_bytes += stats->unmovable_bytes;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++) {
        sum->live_by_tag_bytes[tag] += stats->live_by_tag_bytes[tag];
        sum->peak_by_tag_bytes[tag] += stats->peak_by_tag_bytes[tag];
    }
}

struct zr_arena_stats zr_top_figures(const struct zr_top_process *process, int arena, uint64_t *limit_bytes)
{
    struct zr_arena_stats sum = {0};
    uint64_t limit = 0;
    for (unsigned i = 0; i < process->live.arenas_count; i++) {
        if (arena != ZR_TOP_ALL && (int)i != arena)
            continue;
        add_figures(&sum, &process->live.shown.arenas[i].stats);
        limit = arena == ZR_TOP_ALL ? 0 : process->live.shown.arenas[i].limit_bytes;
    }
    if (limit_bytes)
        *limit_bytes = limit;
    return sum;
}

uint64_t zr_top_free_bytes(const struct zr_arena_stats *stats)
{
    uint64_t left = stats->reserved_bytes;
    const uint64_t parts[] = {stats->live_bytes, stats->pending_bytes, stats->stranded_bytes,
                              stats->cached_bytes};
    for (size_t i = 0; i < sizeof parts / sizeof *parts;
         i++) /* the counts are from different points in time */
        left -= parts[i] < left ? parts[i] : left;
    return left;
}

int zr_top_arena(const struct zr_top_process *process, int arena)
{
    const struct zr_published_arena *largest = zr_live_largest(&process->live);
    if (arena >= 0 && arena < (int)process->live.arenas_count)
        return arena;
    return largest ? (int)(largest - process->live.shown.arenas) : -1;
}

/* ---- Snapshots of blocks ------------------------------------------------------------------------------- */

static int by_kind(const void *a, const void *b)
{
    const struct zr_top_holder *x = a, *y = b;
    if (x->pending != y->pending)
        return x->pending < y->pending ? -1 : 1;
    if (x->tag != y->tag)
        return x->tag < y->tag ? -1 : 1;
    return (x->requested_bytes > y->requested_bytes) - (x->requested_bytes < y->requested_bytes);
}

static int by_live_bytes(const void *a, const void *b)
{
    const struct zr_top_holder *x = a, *y = b;
    if (x->live_bytes != y->live_bytes)
        return x->live_bytes > y->live_bytes ? -1 : 1;
    return by_kind(a, b);
}

/* Merges blocks of one kind into one holder; returns the number of holders. */
static size_t merge(struct zr_top_holder *holders, size_t count)
{
    size_t kept = 0;
    if (count > 0)
        qsort(holders, count, sizeof *holders, by_kind);
    for (size_t i = 0; i < count; i++) {
        if (kept > 0 && by_kind(&holders[kept - 1], &holders[i]) == 0) {
            holders[kept - 1].blocks_count += holders[i].blocks_count;
            holders[kept - 1].live_bytes += holders[i].live_bytes;
        } else {
            holders[kept++] = holders[i];
        }
    }
    if (kept > 0)
        qsort(holders, kept, sizeof *holders, by_live_bytes);
    return kept;
}

static zr_result take_holders(struct zr_top_look *look, const struct zr_memory *memory, zr_arena *arena)
{
    struct zr_memory_walk walk = zr_memory_walk_of(memory);
    struct zr_memory_piece piece;
    struct zr_vector all;
    zr_result result = ZR_OK;
    zr_vector_init(&all, arena, sizeof(struct zr_top_holder));
    while (result == ZR_OK && zr_memory_next(&walk, &piece))
        if (piece.block)
            result =
                zr_vector_add(&all, &(struct zr_top_holder){.tag = piece.block->tag,
                                                            .pending = piece.block->pending,
                                                            .requested_bytes = piece.block->requested_bytes,
                                                            .blocks_count = 1,
                                                            .live_bytes = piece.block->bytes});
    size_t count = merge(all.items, all.count);
    look->holders_count = count < ZR_TOP_HOLDERS ? (unsigned)count : ZR_TOP_HOLDERS;
    if (count > 0)
        memcpy(look->holders, all.items, look->holders_count * sizeof *look->holders);
    zr_vector_end(&all);
    return result;
}

/* Reads the snapshot that an arena wrote. The file is already unlinked. */
static zr_result read_look(struct zr_top *top, int fd)
{
    char path[40];
    struct zr_recording recording = {0};
    struct zr_moments moments;
    struct zr_memory now = {0};
    struct zr_top_look *look = &top->look;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    zr_vector_end(&look->extents);
    look->holders_count = 0;
    zr_result result = zr_recording_open(&recording, &(struct zr_read_options){.path = path, .device = -1},
                                         false, top->memory);
    if (result == ZR_OK)
        result = zr_moments_measure(&moments, &now, &recording, top->memory);
    if (result == ZR_OK && recording.cut_short)
        result = zr_fail(ZR_ERR_IO, "there is no memory for its blocks");
    if (result == ZR_OK)
        result = zr_tool_extents(&look->extents, &now);
    if (result == ZR_OK)
        result = take_holders(look, &now, top->memory);
    zr_memory_end(&now);
    zr_recording_close(&recording);
    return result;
}

/* Drops the snapshot and keeps the reason. */
static void fail_look(struct zr_top *top, const char *words)
{
    struct zr_top_look *look = &top->look;
    zr_vector_end(&look->extents);
    look->holders_count = 0;
    look->pid = top->requested_pid;
    look->arena = top->requested_arena;
    look->taken_ns = zr_os_now_ns();
    snprintf(look->words, sizeof look->words, "%s", words);
}

static void end_request(struct zr_top *top)
{
    if (top->connection >= 0)
        close(top->connection);
    top->connection = -1;
    if (top->kept >= 0)
        close(top->kept);
    top->kept = -1;
}

void zr_top_look_ask(struct zr_top *top, const struct zr_top_process *process, int arena)
{
    char command[80];
    int index = zr_top_arena(process, arena);
    uint64_t now_ns = zr_os_now_ns(), pause_ns = top->look_cost_ns * LOOK_SHARE;
    if (top->connection >= 0 || index < 0 || process->state != ZR_TOP_LIVE)
        return;
    unsigned number = process->live.shown.arenas[index].number;
    bool same = top->look.pid == process->pid && top->look.arena == number;
    if (same && now_ns - top->requested_ns < (pause_ns > LOOK_MIN_NS ? pause_ns : LOOK_MIN_NS))
        return;
    top->requested_pid = process->pid;
    top->requested_arena = number;
    top->requested_ns = now_ns;
    zr_result result = ZR_OK;
    if ((top->kept = memfd_create("zr-top", MFD_CLOEXEC)) < 0)
        result = zr_fail(ZR_ERR_IO, "cannot keep its blocks: %s", strerror(errno));
    if (result == ZR_OK) {
        snprintf(command, sizeof command, "snapshot %u /proc/%ld/fd/%d", number, (long)getpid(), top->kept);
        result = zr_live_send(process->pid, command, &top->connection);
    }
    if (result != ZR_OK) {
        fail_look(top, zr_last_error());
        end_request(top);
    }
}

int zr_top_look_waits(const struct zr_top *top)
{
    return top->connection;
}

static void take(struct zr_top *top, int timeout_ms)
{
    char words[ZR_LIVE_ANSWER_BYTES];
    const struct zr_live_patience patience = {
        .timeout_ms = timeout_ms, .working_ms = LOOK_MS, .passes_stopped = true};
    zr_result result = zr_live_hear(top->connection, &patience, words);
    top->look_cost_ns = zr_os_now_ns() - top->requested_ns;
    if (result == ZR_OK)
        result = read_look(top, top->kept);
    end_request(top);
    if (result != ZR_OK) {
        fail_look(top, zr_last_error());
        return;
    }
    top->look.pid = top->requested_pid;
    top->look.arena = top->requested_arena;
    top->look.taken_ns = zr_os_now_ns();
    top->look.words[0] = '\0';
}

void zr_top_look_take(struct zr_top *top)
{
    struct pollfd poll_fd = {.fd = top->connection, .events = POLLIN};
    if (top->connection < 0)
        return;
    if (poll(&poll_fd, 1, 0) > 0)
        take(top, 100);
    else if (zr_os_now_ns() - top->requested_ns > (uint64_t)LOOK_MS * 1000000 ||
             zr_live_is_stopped(top->requested_pid)) {
        end_request(top);
        fail_look(top, "the process does not answer");
    }
}

bool zr_top_look_now(struct zr_top *top, const struct zr_top_process *process, int arena)
{
    if (top->connection >= 0)
        take(top, LOOK_NOW_MS);
    top->look.pid = 0;
    snprintf(top->look.words, sizeof top->look.words, "the process does not answer, or has no arena");
    zr_top_look_ask(top, process, arena);
    if (top->connection >= 0)
        take(top, LOOK_NOW_MS);
    return top->look.words[0] == '\0';
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

void zr_top_start(struct zr_top *top, zr_arena *memory)
{
    memset(top, 0, sizeof *top);
    top->memory = memory;
    top->connection = top->kept = -1;
    zr_vector_init(&top->look.extents, memory, sizeof(struct zr_map_extent));
}

void zr_top_end(struct zr_top *top)
{
    end_request(top);
    zr_vector_end(&top->look.extents);
}
