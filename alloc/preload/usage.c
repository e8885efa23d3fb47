/* usage.c: the process's record in the shared file (see usage.h). Calls no function that allocates, because
 * the code runs while malloc starts. */
#define _GNU_SOURCE
#include "alloc/base/system/file.h"
#include "alloc/preload/usage.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* A process updates the shared sums when its figures change by this much, because all processes share them.
 */
#define COUNT_STEP_BYTES UINT64_C(1048576)

static struct {
    struct zr_usage_table *table; /* a shared mapping, which a child after fork() has too */
    const struct zr_usage *taken; /* the record that this library took; NULL: none */
    const char *folder;           /* a copy of the variable, because the program may change its environment */
    char folder_text[512];
} own;

/* ---- The shared table ---------------------------------------------------------------------------------- */

static const char *map_table(int fd)
{
    if (fd < 0) /* no message: the process is another user's, or outlives the run */
        return errno == EACCES || errno == ENOENT ? NULL : strerrorname_np(errno);
    off_t bytes = lseek(fd, 0, SEEK_END);
    if (bytes < (off_t)sizeof *own.table)
        return "it is too short";
    void *table = mmap(NULL, sizeof *own.table, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (table == MAP_FAILED)
        return strerrorname_np(errno);
    own.table = table;
    if (own.table->magic == ZR_USAGE_MAGIC && own.table->version == ZR_USAGE_VERSION &&
        own.table->record_bytes == sizeof(struct zr_usage))
        return NULL;
    munmap(table, sizeof *own.table);
    own.table = NULL;
    return "its version differs";
}

/* Writes the record's part of the file: touching a hole of the mapping raises SIGBUS on a full disk. */
static bool fill_hole(size_t number)
{
    static const char zeros[sizeof(struct zr_usage)];
    char path[sizeof own.folder_text + 16];
    snprintf(path, sizeof path, "%s/" ZR_USAGE_FILE, own.folder);
    off_t at = (off_t)(offsetof(struct zr_usage_table, records) + number * sizeof zeros);
    struct rlimit limit; /* a write beyond the limit raises SIGXFSZ */
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || (rlim_t)at + sizeof zeros > limit.rlim_cur)
        return false;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool filled = zr_write_all(fd, at, zeros, sizeof zeros);
    close(fd);
    return filled;
}

static uint64_t process_image(void)
{
    uint64_t image = 0;
    const void *drawn = (const void *)getauxval(AT_RANDOM);
    if (drawn)
        memcpy(&image, drawn, sizeof image);
    return image;
}

static struct zr_usage *take_record(void)
{
    size_t number = atomic_fetch_add(&own.table->taken_count, 1);
    if (number >= ZR_USAGE_COUNT || !fill_hole(number))
        return NULL;
    struct zr_usage *record = &own.table->records[number];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    record->process = getpid();
    record->parent = getppid();
    record->image = process_image();
    record->started_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    snprintf(record->program, sizeof record->program, "%s", program_invocation_short_name);
    own.taken = record;
    atomic_store_explicit(&record->state, ZR_USAGE_RUNNING, memory_order_release);
    atomic_fetch_or(&own.table->there[number / 64], UINT64_C(1) << number % 64);
    atomic_fetch_or(&own.table->running[number / 64], UINT64_C(1) << number % 64);
    return record;
}

/* Removes figures of processes that ended by _exit() or a signal from the sums. */
static void uncount_dead(void)
{
    const _Atomic uint64_t *bits = own.table->running;
    for (unsigned i = zr_usage_next(bits, 0); i < ZR_USAGE_COUNT; i = zr_usage_next(bits, i + 1))
        if (kill(own.table->records[i].process, 0) != 0 && errno == ESRCH)
            zr_usage_uncount(own.table, &own.table->records[i], ZR_USAGE_GONE);
}

/* The record that another library took for this process and image; NULL: none. Ends the records of images
 * before an exec. */
static struct zr_usage *find_record(void)
{
    struct zr_usage *found = NULL;
    const _Atomic uint64_t *bits = own.table->running;
    pid_t process = getpid();
    uint64_t image = process_image();
    for (unsigned i = zr_usage_next(bits, 0); i < ZR_USAGE_COUNT; i = zr_usage_next(bits, i + 1)) {
        struct zr_usage *record = &own.table->records[i];
        if (record->process != process)
            continue;
        if (record->image == image)
            found = record;
        else
            zr_usage_uncount(own.table, record, ZR_USAGE_REPLACED);
    }
    return found;
}

struct zr_usage *zr_usage_open(const char **reason)
{
    const char *folder = secure_getenv("ZR_RECORD");
    int error = errno;
    *reason = NULL;
    if (!folder || !*folder)
        return NULL;
    if (strlen(folder) >= sizeof own.folder_text) {
        *reason = "ZR_RECORD: the path of the folder is too long";
        return NULL;
    }
    own.folder = strcpy(own.folder_text, folder);
    char path[sizeof own.folder_text + 16];
    snprintf(path, sizeof path, "%s/" ZR_USAGE_FILE, folder);
    int fd = own.table ? -1 : open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    *reason = own.table ? NULL : map_table(fd);
    if (fd >= 0)
        close(fd);
    struct zr_usage *record = own.table ? find_record() : NULL;
    if (own.table)
        uncount_dead();
    record = record || !own.table ? record : take_record();
    errno = error;
    return record;
}

bool zr_usage_is_own(const struct zr_usage *record)
{
    return record == own.taken;
}

struct zr_usage *zr_usage_in_child(const struct zr_usage *parents)
{
    int error = errno;
    uncount_dead();
    struct zr_usage *record = take_record();
    errno = error;
    const struct zr_usage_figures *figures = &parents->memory[ZR_USAGE_HOST];
    if (record) {
        zr_usage_note(record, ZR_USAGE_HOST, figures->live_bytes, figures->held_bytes);
        record->memory[ZR_USAGE_HOST].limit_bytes = atomic_load(&figures->limit_bytes);
    }
    return record;
}

bool zr_usage_trace_path(const struct zr_usage *record, char *out, size_t capacity_bytes)
{
    int length = snprintf(out, capacity_bytes, "%s/%td.zrt", own.folder, record - own.table->records);
    return length > 0 && (size_t)length < capacity_bytes;
}

static void remove_trace(uint64_t best)
{
    char path[sizeof own.folder_text + 32];
    size_t number = (best & ((1u << ZR_USAGE_NUMBER_BITS) - 1)) - 1;
    if (zr_usage_trace_path(&own.table->records[number], path, sizeof path))
        unlink(path);
}

void zr_usage_keep_best_trace(const struct zr_usage *record)
{
    uint64_t pages = record->memory[ZR_USAGE_HOST].traced_peak_bytes / 4096,
             old = atomic_load(&own.table->best_trace);
    uint64_t mine = pages << ZR_USAGE_NUMBER_BITS | (uint64_t)(record - own.table->records + 1);
    do {
        if (old >= mine) {
            remove_trace(mine);
            return;
        }
    } while (!atomic_compare_exchange_weak(&own.table->best_trace, &old, mine));
    if (old != 0)
        remove_trace(old);
}

/* ---- Figures ------------------------------------------------------------------------------------------- */

static void raise_to(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    while (old < value && !atomic_compare_exchange_weak(word, &old, value))
        ;
}

/* Adds the changes of the process's figures to the sums. */
static void count(struct zr_usage *record, unsigned memory)
{
    struct zr_usage_figures *figures = &record->memory[memory];
    uint64_t live = figures->live_bytes, held = figures->held_bytes;
    if (atomic_load_explicit(&record->state, memory_order_relaxed) != ZR_USAGE_RUNNING)
        return;
    uint64_t more_live = live - atomic_exchange(&figures->counted_live_bytes, live);
    uint64_t more_held = held - atomic_exchange(&figures->counted_held_bytes, held);
    uint64_t sum_live = atomic_fetch_add(&own.table->sums[memory].live_bytes, more_live) + more_live;
    uint64_t sum = atomic_fetch_add(&own.table->sums[memory].held_bytes, more_held) + more_held;
    if (sum <= INT64_MAX && sum > atomic_load(&own.table->sums[memory].peak_held_bytes)) {
        raise_to(&own.table->sums[memory].peak_held_bytes, sum);
        atomic_store(&own.table->sums[memory].live_at_peak_bytes, sum_live);
    }
}

static void store(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

void zr_usage_note(struct zr_usage *record, unsigned memory, uint64_t live_bytes, uint64_t held_bytes)
{
    struct zr_usage_figures *figures = &record->memory[memory];
    store(&figures->live_bytes, live_bytes);
    store(&figures->held_bytes, held_bytes);
    if (held_bytes > atomic_load_explicit(&figures->peak_held_bytes, memory_order_relaxed)) {
        store(&figures->peak_held_bytes, held_bytes);
        store(&figures->live_at_peak_bytes, live_bytes);
    }
    uint64_t counted = atomic_load_explicit(&figures->counted_held_bytes, memory_order_relaxed);
    if (held_bytes > counted + COUNT_STEP_BYTES || counted > held_bytes + COUNT_STEP_BYTES)
        count(record, memory);
}

void zr_usage_failure(struct zr_usage *record, unsigned memory, uint64_t bytes)
{
    struct zr_usage_figures *figures = &record->memory[memory];
    atomic_fetch_add(&figures->failed_count, 1);
    store(&figures->failed_bytes, bytes);
    store(&figures->live_at_failure_bytes, figures->live_bytes);
}

void zr_usage_uncount(struct zr_usage_table *table, struct zr_usage *record, enum zr_usage_state state)
{
    uint32_t running = ZR_USAGE_RUNNING;
    size_t number = (size_t)(record - table->records);
    if (!atomic_compare_exchange_strong(&record->state, &running, state))
        return;
    atomic_fetch_and(&table->running[number / 64], ~(UINT64_C(1) << number % 64));
    for (unsigned i = 0; i < ZR_USAGE_MEMORIES; i++) {
        struct zr_usage_figures *figures = &record->memory[i];
        if (figures->peak_held_bytes == 0)
            continue;
        atomic_fetch_sub(&table->sums[i].live_bytes, atomic_exchange(&figures->counted_live_bytes, 0));
        atomic_fetch_sub(&table->sums[i].held_bytes, atomic_exchange(&figures->counted_held_bytes, 0));
    }
}

void zr_usage_end(struct zr_usage *record)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        raise_to(&record->peak_resident_bytes, (uint64_t)usage.ru_maxrss * 1024);
    for (unsigned i = 0; i < ZR_USAGE_MEMORIES; i++)
        if (record->memory[i].peak_held_bytes > 0 &&
            record->memory[i].counted_held_bytes < record->memory[i].peak_held_bytes)
            count(record, i); /* a process below COUNT_STEP_BYTES is counted here */
    zr_usage_uncount(own.table, record, ZR_USAGE_ENDED);
}
