/* trace_test.c: .zrt traces: what the writer writes the reader reads back, after kill -9 too; the reader
 * survives every other file; the writer survives a full disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/core/arena.h"
#include "alloc/telemetry/report.h"
#include "alloc/front/keep.h"
#include "alloc/telemetry/trace.h"
#include "defrag/trace/formats/zrt.h"
#include "tests/support/draws.h"
#include "tests/support/faults.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

static char scratch[64] = "/tmp/zr-trace-test-XXXXXX", trace_path[128], other_path[128];
static struct zrt_reader reader; /* 64 KiB */

/* ---- Random events with a model ------------------------------------------------------------------------ */

/* A number whose length in bits is random, so that short and long varints both come. */
static uint64_t any_size(unsigned most_bits)
{
    return next_random() >> (64 - 1 - next_random() % most_bits);
}

static uint64_t made_up_ns;

static uint64_t made_up_clock(void)
{
    return made_up_ns;
}

#define BASE    ((char *)UINT64_C(0x7f0000000000))
#define RESERVE (UINT64_C(1) << 43)
#define GRANULE (UINT64_C(2) << 20)

static const struct zr_trace_origin origin = {
    .name = "arena-with-a-name-that-is-longer-than-there-is-room-for",
    .base = BASE,
    .reserve_bytes = RESERVE,
    .granule_bytes = GRANULE,
};

/* One random event, as the reader should see it. */
static struct zrt_event random_event(void)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz/ =0123456789abcdefghijklmnopqrstuvwxyz";
    struct zrt_event event = {.kind = (enum zrt_kind)(1 + next_random() % 6)};
    uint64_t limit = RESERVE / 2;
    made_up_ns += any_size(40);
    event.time_ns = made_up_ns;
    switch (event.kind) {
    case ZRT_ALLOC:
        event.bytes = 1 + any_size(41);
        event.reserved_bytes =
            next_random() % 2 ? (event.bytes + 255) & ~UINT64_C(255) : event.bytes + any_size(30);
        event.offset_bytes = any_size(41);
        if (next_random() % 4)
            event.offset_bytes &= ~UINT64_C(255);
        break;
    case ZRT_FREE:
        event.offset_bytes = next_random() % limit & ~UINT64_C(255);
        break;
    case ZRT_MAP:
    case ZRT_UNMAP:
        event.offset_bytes = next_random() % (limit / GRANULE) * GRANULE;
        event.bytes = (1 + any_size(20)) * GRANULE;
        break;
    case ZRT_MARK:
        memcpy(event.label, letters, next_random() % (ZRT_LABEL_BYTES + 1));
        break;
    default:
        event.bytes = any_size(60);
        if (next_random() % 2)
            event.refusal = (struct zrt_refusal){(enum zrt_cause)(1 + next_random() % (ZRT_CAUSE_COUNT - 1)),
                                                 any_size(64),
                                                 any_size(64),
                                                 any_size(64),
                                                 any_size(64),
                                                 any_size(64),
                                                 any_size(64),
                                                 any_size(64),
                                                 any_size(64),
                                                 any_size(64),
                                                 true,
                                                 any_size(64),
                                                 any_size(64),
                                                 any_size(64),
                                                 any_size(64)};
    }
    event.tag = (zr_tag)(next_random() % ZR_TAG_COUNT);
    event.stream = next_random() % 3 ? 0 : any_size(60);
    return event;
}

static void write_event(struct zr_trace *trace, const struct zrt_event *event)
{
    char *address = BASE + event->offset_bytes;
    struct zr_block_info block = {.address = address,
                                  .bytes = event->bytes,
                                  .reserved_bytes = event->reserved_bytes,
                                  .tag = event->tag,
                                  .stream = event->stream};
    switch (event->kind) {
    case ZRT_ALLOC:
        zr_trace_write_alloc(trace, &block, 0);
        break;
    case ZRT_FREE:
        zr_trace_write_free(trace, &block);
        break;
    case ZRT_MAP:
        zr_trace_write_map(trace, address, event->bytes);
        break;
    case ZRT_UNMAP:
        zr_trace_write_unmap(trace, address, event->bytes);
        break;
    case ZRT_MARK:
        zr_trace_write_mark(trace, event->label);
        break;
    default:
        zr_trace_write_refused(
            trace, &(struct zr_request){.bytes = event->bytes, .tag = event->tag, .stream = event->stream},
            &(struct zr_refusal){
                event->refusal.cause, event->refusal.need_bytes, event->refusal.free_bytes,
                event->refusal.largest_bytes, event->refusal.cached_bytes, event->refusal.pending_bytes,
                event->refusal.unmovable_bytes, event->refusal.reserved_bytes, event->refusal.limit_bytes,
                event->refusal.device_bytes, event->refusal.device_free_bytes, event->refusal.process_bytes,
                event->refusal.whole_bytes, event->refusal.pool_idle_bytes},
            0);
    }
}

static bool same_event(const struct zrt_event *got, const struct zrt_event *want)
{
    bool owned = want->kind == ZRT_ALLOC || want->kind == ZRT_FREE || want->kind == ZRT_REFUSED;
    return got->kind == want->kind && got->time_ns == want->time_ns &&
           got->offset_bytes == want->offset_bytes && got->bytes == want->bytes &&
           got->reserved_bytes == want->reserved_bytes &&
           (!owned || (got->tag == want->tag && got->stream == want->stream)) &&
           memcmp(&got->refusal, &want->refusal, sizeof got->refusal) == 0 &&
           strcmp(got->label, want->label) == 0;
}

#if defined(__SANITIZE_THREAD__) /* twenty times as slow */
enum { MANY = 100000, DAMAGES = 4000 };
#else
enum { MANY = 200000, DAMAGES = 40000 };
#endif

static void test_round_trip(void)
{
    struct zr_trace *trace = NULL;
    uint64_t seed = run_seed();
    zr_os_clock_set(made_up_clock);
    made_up_ns = 0;
    random_state = seed | 1;
    tap_result(zr_trace_open(&trace, trace_path, &origin), ZR_OK, "open a trace");
    for (unsigned i = 0; i < MANY; i++) {
        struct zrt_event event = random_event();
        write_event(trace, &event);
    }
    tap_result(zr_trace_close(trace), ZR_OK, "close it");

    made_up_ns = 0;
    random_state = seed | 1;
    tap_result(zrt_open(&reader, trace_path), ZR_OK, "read it");
    tap_ok(reader.header.state == ZRT_STOPPED && reader.header.granule_bytes == GRANULE &&
               reader.header.base_address == (uintptr_t)BASE && reader.header.process == (uint32_t)getpid() &&
               strcmp(reader.header.arena, "arena-with-a-name-that-is-longe") == 0,
           "its header says whose it is");
    struct zrt_event got, want;
    bool more = true, same = true;
    unsigned count = 0;
    zr_result result;
    while ((result = zrt_next(&reader, &got, &more)) == ZR_OK && more && same) {
        want = random_event();
        same = same_event(&got, &want);
        count++;
    }
    tap_result(result, ZR_OK, "to its end");
    tap_ok(same && count == MANY && !reader.cut_short, "%u of %d random events as they were written", count,
           MANY);
    zrt_close(&reader);
    zr_os_clock_set(NULL);
}

/* What a training step looks like: how many bytes its events take. */
static void test_size(void)
{
    struct zr_trace *trace = NULL;
    struct zr_block_info block = {.address = BASE};
    enum { STEPS = 200, BLOCKS = 60 };
    uint64_t start_ns, took_ns;
    zr_trace_open(&trace, trace_path, &origin);
    start_ns = zr_os_now_ns();
    for (unsigned step = 0; step < STEPS; step++) {
        for (unsigned i = 0; i < 2 * BLOCKS; i++) {
            unsigned k = i < BLOCKS ? i : 2 * BLOCKS - 1 - i;
            block = (struct zr_block_info){.address = BASE + k * 3145728u,
                                           .bytes = 3145728,
                                           .reserved_bytes = 3145728,
                                           .tag = k % 12 ? ZR_TAG_ACTIVATION : ZR_TAG_CHECKPOINT};
            if (i < BLOCKS)
                zr_trace_write_alloc(trace, &block, 0);
            else
                zr_trace_write_free(trace, &block);
        }
    }
    took_ns = zr_os_now_ns() - start_ns;
    zr_trace_close(trace);
    struct zr_file file;
    uint64_t bytes = 0;
    zr_file_open(&file, trace_path);
    zr_file_size(&file, &bytes);
    zr_file_close(&file);
    double each = (double)(bytes - sizeof(struct zrt_header)) / (2 * STEPS * BLOCKS);
    tap_ok(each < 9, "%.1f bytes an event on a training step", each);
    tap_note("%.0f ns an event", (double)took_ns / (2 * STEPS * BLOCKS));
}

/* ---- Hostile files ------------------------------------------------------------------------------------- */

/* Reads bytes as a trace to the end, whatever comes. Returns the number of events, -1 where an event is
 * outside what the header allows. */
static long read_all(const void *data, size_t bytes, zr_result *result)
{
    struct zrt_event event;
    bool more = true;
    long count = 0;
    *result = zrt_open_memory(&reader, data, bytes);
    while (*result == ZR_OK && more) {
        *result = zrt_next(&reader, &event, &more);
        if (*result != ZR_OK || !more)
            break;
        count++;
        uint64_t limit = reader.header.reserve_bytes;
        if ((unsigned)event.kind > ZRT_BEGIN || event.stack > ZRT_STACKS_MAX ||
            event.frames_count > ZRT_FRAMES_MAX || event.tag >= ZR_TAG_COUNT || event.offset_bytes > limit ||
            (event.kind == ZRT_ALLOC && event.reserved_bytes > limit - event.offset_bytes) ||
            ((event.kind == ZRT_MAP || event.kind == ZRT_UNMAP) &&
             event.bytes > limit - event.offset_bytes) ||
            memchr(event.label, '\0', sizeof event.label) == NULL)
            return -1;
        if ((uint64_t)count > bytes)
            return -1;
    }
    zrt_close(&reader);
    return count;
}

static void test_hostile(void)
{
    static unsigned char data[20000], copy[20000];
    struct zr_trace *trace = NULL;
    struct zr_file file;
    uint64_t bytes = 0;
    zr_result result;

    random_state = 88172645463325252u;
    zr_trace_open(&trace, trace_path, &origin);
    zr_os_clock_set(made_up_clock);
    for (unsigned i = 0; i < 600; i++) {
        struct zrt_event event = random_event();
        write_event(trace, &event);
    }
    zr_os_clock_set(NULL);
    zr_trace_close(trace);
    zr_file_open(&file, trace_path);
    zr_file_size(&file, &bytes);
    if (!tap_ok(bytes < sizeof data, "a trace of %llu bytes", (unsigned long long)bytes))
        return;
    zr_file_read_at(&file, 0, data, (size_t)bytes);
    zr_file_close(&file);
    tap_is(read_all(data, (size_t)bytes, &result), 600, "is whole");

    long last = -1;
    bool fine = true;
    for (size_t cut = 0; cut <= bytes; cut++) {
        long count = read_all(data, cut, &result);
        if (cut < sizeof(struct zrt_header))
            fine &= result == ZR_ERR_FORMAT && count == 0;
        else
            fine &= result == ZR_OK && count >= last && (cut == bytes || reader.cut_short);
        last = count;
    }
    tap_ok(fine && last == 600, "cut short anywhere, its whole events are read and the cut is told");

    unsigned refused = 0, wrong = 0;
    for (unsigned i = 0; i < DAMAGES; i++) {
        memcpy(copy, data, (size_t)bytes);
        for (unsigned k = next_random() % 4 + 1; k > 0; k--)
            copy[next_random() % bytes] ^= (unsigned char)(1u << next_random() % 8);
        wrong += read_all(copy, (size_t)bytes, &result) < 0;
        refused += result != ZR_OK;
        wrong += result != ZR_OK && result != ZR_ERR_FORMAT && result != ZR_ERR_CORRUPT;
    }
    tap_ok(wrong == 0 && refused > DAMAGES / 4,
           "%d times with flipped bits: %u refused, none believed beyond its header", DAMAGES, refused);
    for (unsigned i = 0; i < DAMAGES; i++) {
        size_t length = next_random() % 2000;
        for (size_t k = 0; k < length; k++)
            copy[k] = (unsigned char)next_random();
        if (i % 4 && length >= sizeof(struct zrt_header)) { /* a good header before random events */
            memcpy(copy, data, sizeof(struct zrt_header));
            ((struct zrt_header *)(void *)copy)->written_bytes = length - sizeof(struct zrt_header);
        }
        wrong += read_all(copy, length, &result) < 0;
        wrong += result != ZR_OK && result != ZR_ERR_FORMAT && result != ZR_ERR_CORRUPT;
    }
    tap_ok(wrong == 0, "%d files of random bytes", DAMAGES);
}

/* Single bytes after a good header, each with its complaint. */
static void test_complaints(void)
{
    static const struct {
        unsigned char bytes[16];
        size_t length;
        const char *words;
    } cases[] = {
        {{0x00, 0x00, 0x00, 0x00}, 4, "is invalid"},
        {{0x00, 0x00, 200, 0xff, 0x7f}, 5, "extension is too long"},
        {{0x00, 0x00, 200, 2, 0}, 5, "beyond the end"},
        {{0x00, 0x00, ZRT_WITH, 0}, 4, "too short"},
        {{0x00, 0x00, ZRT_WITH, 1, 0}, 5, "number of a stack"},
        {{0x00, 0x00, ZRT_STACK, 4, 0xff, 0xff, 0x7f, 2}, 8, "number of a stack"},
        {{0x00, 0x00, ZRT_STACK, 2, 1, 0x80}, 6, "too short"},
        {{0x00, 0x00, ZRT_MODULE, 4, 1, 0, 0, 0}, 8, "module is empty"},
        {{0x00, 0x00, ZRT_MODULE, 4, 1, 1, 0, 21}, 8, "build ID"},
        {{0x00, 0x00, ZRT_MODULE, 6, 1, 1, 0, 0, 'a', 0}, 10, "zero in it"},
        {{ZRT_ALLOC}, 1, "beyond the end"},
        {{ZRT_MAP | ZRT_IN_BYTES, 0, 0, 1}, 4, "flags"},
        {{ZRT_ALLOC | ZRT_HAS_TAG, 0, 200, 0, 1}, 5, "tag is invalid"},
        {{ZRT_FREE, 0, 1}, 3, "outside the arena"}, /* zigzag 1: one unit below the base */
        {{ZRT_ALLOC, 0, 0, 0}, 4, "empty or larger"},
        {{ZRT_MAP, 0, 0, 0}, 4, "empty or leaves"},
        {{ZRT_MARK, 0, 64}, 3, "too long"},
        {{ZRT_BEGIN, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2}, 11, "more than 64 bits"},
        {{ZRT_BEGIN | ZRT_HAS_THREAD, 0, 0xff, 0xff, 0xff, 0xff, 0x7f}, 7, "more than 32 bits"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char data[256];
        zr_result result;
        struct zrt_header header = {.header_bytes = sizeof header,
                                    .version = ZRT_VERSION,
                                    .written_bytes = cases[i].length,
                                    .granule_bytes = 4096,
                                    .reserve_bytes = 1 << 20};
        memcpy(header.magic, ZRT_MAGIC, 4);
        memcpy(data, &header, sizeof header);
        memcpy(data + sizeof header, cases[i].bytes, cases[i].length);
        read_all(data, sizeof header + cases[i].length, &result);
        tap_result(result, ZR_ERR_CORRUPT, "damage %zu is refused", i);
        if (!tap_ok(strstr(zr_last_error(), cases[i].words) != NULL, "as: %s", cases[i].words))
            tap_note("words: %s", zr_last_error());
    }
    int before = open_descriptors();
    zr_result result = zrt_open(&reader, "/dev/null");
    tap_result(result, ZR_ERR_FORMAT, "an empty file is no trace");
    tap_result(zrt_open(&reader, "/no/such"), ZR_ERR_IO, "nor is a missing one");
    tap_result(zrt_open(&reader, scratch), ZR_ERR_IO, "nor a folder");
    tap_is(open_descriptors(), before, "and none of them stays open");
}

/* ---- No space, forks ----------------------------------------------------------------------------------- */

static void write_many(struct zr_trace *trace, unsigned count)
{
    struct zr_block_info block = {.bytes = 1000, .reserved_bytes = 1024};
    for (unsigned i = 0; i < count; i++) {
        block.address = BASE + (uint64_t)i % 1000000 * 1024;
        zr_trace_write_alloc(trace, &block, 0);
    }
}

static long count_events(const char *path, zr_result *result)
{
    struct zrt_event event;
    bool more = true;
    *result = zrt_open(&reader, path);
    while (*result == ZR_OK && more)
        *result = zrt_next(&reader, &event, &more);
    long count = (long)reader.events_count;
    zrt_close(&reader);
    return count;
}

static const char
    *swapped_path; /* what takes the name of a file as soon as that is removed: a link to this */

/* In the C library's place. */
int unlink(const char *path)
{
    int failed = unlinkat(AT_FDCWD, path, 0);
    const char *to = swapped_path;
    swapped_path = NULL;
    return to && symlink(to, path) != 0 ? -1 : failed;
}

static void check_swapped(void)
{
    struct zr_trace *trace;
    char word[5] = "";
    int fd = open(trace_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    tap_ok(write(fd, "word", 4) == 4 && close(fd) == 0, "another file");
    fd = open(other_path, O_WRONLY | O_CREAT, 0600);
    tap_ok(fd >= 0 && close(fd) == 0, "an old trace");
    swapped_path = trace_path;
    tap_result(zr_trace_open(&trace, other_path, &origin), ZR_ERR_IO,
               "a link that takes an old trace's name is no trace");
    fd = open(trace_path, O_RDONLY);
    tap_ok(read(fd, word, 4) == 4 && strcmp(word, "word") == 0 && close(fd) == 0,
           "and the file behind it stays");
    tap_ok(unlink(other_path) == 0 && unlink(trace_path) == 0, "they go");
}

static void test_no_space(void)
{
    struct zr_trace *trace = NULL;
    zr_result result;

    zr_trace_open(&trace, trace_path, &origin);
    zr_fault_set(ZR_FAULT_WRITE, 1);
    write_many(trace, 500000);
    zr_fault_set(ZR_FAULT_WRITE, 0);
    tap_result(zr_trace_close(trace), ZR_ERR_IO, "a trace that ran out of space says so at its end");
    tap_ok(strstr(zr_last_error(), "No space left") && strstr(zr_last_error(), trace_path),
           "with cause and name");
    long count = count_events(trace_path, &result);
    tap_ok(result == ZR_OK && count > 50000 && count < 500000 && reader.header.state == ZRT_NO_SPACE &&
               reader.header.error == ENOSPC,
           "and holds the %ld events before, and why it ends", count);

    zr_fault_set(ZR_FAULT_WRITE, 1);
    tap_result(zr_trace_open(&trace, other_path, &origin), ZR_ERR_IO, "no space to start with");
    zr_fault_set(ZR_FAULT_WRITE, 0);
    tap_ok(access(other_path, F_OK) != 0, "leaves no file");
    zr_fault_set(ZR_FAULT_METADATA, 1);
    tap_result(zr_trace_open(&trace, other_path, &origin), ZR_ERR_HOST_MEMORY, "no memory for the writer");
    zr_fault_set(ZR_FAULT_METADATA, 0);
    tap_result(zr_trace_open(&trace, "/no/such/folder/trace.zrt", &origin), ZR_ERR_IO, "no folder for it");
    tap_ok(trace == NULL, "no writer without a file");
    tap_result(zr_trace_open(&trace, "/dev/null", &origin), ZR_ERR_IO, "a device is no trace");
    tap_ok(access("/dev/null", F_OK) == 0, "and stays where it is");
    tap_ok(symlink("nowhere", other_path) == 0, "a link");
    tap_result(zr_trace_open(&trace, other_path, &origin), ZR_ERR_IO, "a link is no trace either");
    tap_ok(unlink(other_path) == 0, "and stays one");
    check_swapped();

    /* `ulimit -f` would send a signal that ends the program: the writer must not run into it. */
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){3 << 20, 3 << 20});
        result = zr_trace_open(&trace, trace_path, &origin);
        if (result == ZR_OK)
            write_many(trace, 2000000);
        _exit(result == ZR_OK && zr_trace_close(trace) == ZR_ERR_IO ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    count = count_events(trace_path, &result);
    tap_ok(status == 0 && result == ZR_OK && count > 100000 && reader.header.error == EFBIG,
           "under ulimit -f the program lives and the first %ld events are there", count);
}

static void test_fork(void)
{
    struct zr_trace *trace = NULL;
    zr_result result;
    zr_trace_open(&trace, trace_path, &origin);
    write_many(trace, 100);
    pid_t child = fork();
    if (child == 0) {
        write_many(trace, 100000);
        _exit(zr_trace_close(trace) == ZR_OK ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    tap_ok(status == 0, "a forked child may go on calling");
    tap_is(count_events(trace_path, &result), 100, "and leaves the trace as its parent left it");
    write_many(trace, 100);
    tap_result(zr_trace_close(trace), ZR_OK, "close");
    tap_is(count_events(trace_path, &result), 200, "and none of its events is in the parent's trace");
}

/* ---- An arena's own trace ------------------------------------------------------------------------------ */

#define ARENA_BYTES ((size_t)256 << 20)

/* What a trace says is there, followed event by event. */
static struct {
    uint32_t units[ARENA_BYTES / 256]; /* of the live block that starts here, 0: none */
    bool mapped[ARENA_BYTES / 4096];   /* the page lies on a granule */
    uint64_t live_bytes, mapped_bytes, events, begins, marks;
    unsigned wrong;
} world;

static void follow_map(const struct zrt_event *event)
{
    bool to = event->kind == ZRT_MAP;
    for (uint64_t at = event->offset_bytes; at < event->offset_bytes + event->bytes; at += 4096) {
        world.wrong += world.mapped[at / 4096] == to;
        world.mapped[at / 4096] = to;
    }
    world.mapped_bytes += to ? event->bytes : -event->bytes;
}

static void follow_alloc(const struct zrt_event *event)
{
    uint32_t *units = &world.units[event->offset_bytes / 256];
    world.wrong += *units != 0;
    *units = (uint32_t)(event->reserved_bytes / 256);
    world.live_bytes += event->reserved_bytes;
    for (uint64_t at = event->offset_bytes; at < event->offset_bytes + event->reserved_bytes; at += 4096)
        world.wrong += !world.mapped[at / 4096];
}

static void follow_free(const struct zrt_event *event)
{
    uint32_t *units = &world.units[event->offset_bytes / 256];
    world.wrong += *units == 0;
    world.live_bytes -= *units * UINT64_C(256);
    *units = 0;
}

/* Reads a trace whole into the world. */
static zr_result follow(const char *path)
{
    struct zrt_event event;
    bool more = true;
    memset(&world, 0, sizeof world);
    zr_result result = zrt_open(&reader, path);
    while (result == ZR_OK && (result = zrt_next(&reader, &event, &more)) == ZR_OK && more) {
        world.events++;
        if (event.kind == ZRT_MAP || event.kind == ZRT_UNMAP)
            follow_map(&event);
        else if (event.kind == ZRT_ALLOC)
            follow_alloc(&event);
        else if (event.kind == ZRT_FREE)
            follow_free(&event);
        world.begins += event.kind == ZRT_BEGIN;
        world.marks += event.kind == ZRT_MARK;
    }
    zrt_close(&reader);
    return result;
}

enum { HELD = 300 };

/* `steps` random allocations and frees, sizes from bytes to several granules. */
static void churn(zr_arena *arena, void **held, unsigned steps)
{
    for (unsigned i = 0; i < steps; i++) {
        void **slot = &held[next_random() % HELD];
        struct zr_request request = {.bytes = 1 + any_size(22),
                                     .tag = (zr_tag)(next_random() % ZR_TAG_COUNT),
                                     .stream = next_random() % 3};
        if (*slot) {
            zr_arena_free(arena, *slot);
            *slot = NULL;
        } else {
            zr_arena_alloc(arena, &request, slot);
        }
    }
}

static const struct zr_arena_options arena_options = {
    .name = "traced", .reserve_bytes = ARENA_BYTES, .limit_bytes = ARENA_BYTES / 2};

static void test_arena(void)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    struct zr_arena_options options = arena_options;
    struct zr_arena_stats stats;
    static void *held[HELD];

    tap_result(zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = 65536}), ZR_OK,
               "backend");
    options.backend = backend;
    tap_result(zr_arena_create(&arena, &options), ZR_OK, "arena");
    tap_result(zr_trace_stop(arena), ZR_ERR_INVALID, "no trace to stop");
    tap_result(zr_trace_mark(arena, "before"), ZR_OK, "a mark without a trace does nothing");
    churn(arena, held, 500);
    tap_result(zr_trace_start(arena, "/no/such/folder/x.zrt"), ZR_ERR_IO, "a trace in no folder");
    tap_result(zr_trace_start(arena, trace_path), ZR_OK, "a trace that starts late");
    tap_result(zr_trace_start(arena, trace_path), ZR_ERR_INVALID, "one trace per arena");
    churn(arena, held, 10000);
    zr_arena_trim(arena, 0, NULL);
    churn(arena, held, 10001);
    zr_trace_mark(arena, "a label of more than sixty-three bytes is cut there, and no further: right");
    void *block = NULL;
    zr_arena_alloc(arena, &(struct zr_request){.bytes = ARENA_BYTES}, &block);
    tap_ok(block == NULL, "a request that is refused");
    zr_arena_get_stats(arena, &stats);
    tap_result(zr_trace_stop(arena), ZR_OK, "stop");
    tap_result(follow(trace_path), ZR_OK, "the trace is read");
    tap_ok(world.begins == 1 && world.marks == 1, "with one beginning and one mark");
    tap_is(world.wrong, 0, "every block lies on granules, every free frees a block");
    tap_is(world.live_bytes, stats.live_bytes, "it ends with the arena's live bytes");
    tap_is(world.mapped_bytes, stats.mapped_bytes, "and its mapped bytes");
    tap_note("%llu events", (unsigned long long)world.events);
    tap_result(zr_trace_start(arena, trace_path), ZR_OK, "another trace over the first");
    for (unsigned i = 0; i < HELD; i++)
        zr_arena_free(arena, held[i]);
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "an arena that ends");
    tap_result(follow(trace_path), ZR_OK, "ends its trace");
    tap_ok(reader.header.state == ZRT_STOPPED && world.wrong == 0 && world.live_bytes == 0, "whole");
    zr_backend_destroy(backend);
}

/* Requests that fail half way, at each of the first maps and accesses: what they had mapped is in no event.
 */
static void test_half_way(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_MAP, ZR_FAULT_ACCESS};
    static void *held[HELD];
    unsigned wrong = 0, failed = 0;
    for (unsigned i = 0; i < 60; i++) {
        zr_backend *backend = NULL;
        zr_arena *arena = NULL;
        struct zr_arena_options options = arena_options;
        struct zr_arena_stats stats;
        memset(held, 0, sizeof held);
        zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 65536});
        options.backend = backend;
        zr_arena_create(&arena, &options);
        zr_trace_start(arena, trace_path);
        zr_fault_set(sites[i % 2], 1 + i);
        churn(arena, held, 400);
        failed += zr_fault_set(sites[i % 2], 0) > i;
        zr_arena_get_stats(arena, &stats);
        wrong += zr_trace_stop(arena) != ZR_OK || follow(trace_path) != ZR_OK;
        wrong += world.wrong + (world.mapped_bytes != stats.mapped_bytes);
        zr_arena_destroy(arena, NULL);
        zr_backend_destroy(backend);
    }
    tap_ok(failed > 50, "%u requests fail half way", failed);
    tap_is(wrong, 0, "and every unmap in the trace has its map");
}

/* A child that allocates until it is killed; says in `progress` how far it is. */
static void run_until_killed(_Atomic uint32_t *progress)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    struct zr_arena_options options = arena_options;
    static void *held[HELD];
    if (zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = 65536}) != ZR_OK)
        _exit(1);
    options.backend = backend;
    if (zr_arena_create(&arena, &options) != ZR_OK || zr_trace_start(arena, trace_path) != ZR_OK)
        _exit(2);
    for (;;) {
        churn(arena, held, 100);
        atomic_fetch_add(progress, 1);
    }
}

static void test_killed(void)
{
    _Atomic uint32_t *progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned round = 1; round <= 4; round++) {
        unsigned waited = 0;
        *progress = 0;
        pid_t child = fork();
        if (child == 0)
            run_until_killed(progress);
        while (*progress < 300 * round && waited++ < 120000)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        kill(child, SIGKILL);
        uint32_t done = *progress;
        waitpid(child, NULL, 0);
        zr_result result = follow(trace_path);
        tap_result(result, ZR_OK, "killed by -9 in round %u, its trace is read to the end", round);
        tap_ok(done > 0 && world.events >= (uint64_t)done * 90 && !reader.cut_short &&
                   reader.header.state == ZRT_WRITING,
               "all %llu events of at least %u are there", (unsigned long long)world.events, done * 90);
        tap_ok(world.wrong == 0, "and they are consistent to the last");
    }
    munmap((void *)progress, 4096);
}

enum { FEW = 20000 };

static zr_result write_and_read(void *nothing)
{
    struct zr_trace *trace = NULL;
    (void)nothing;
    zr_result result = zr_trace_open(&trace, trace_path, &origin);
    if (result != ZR_OK)
        return result;
    write_many(trace, FEW);
    result = zr_trace_close(trace);
    long count = result == ZR_OK ? count_events(trace_path, &result) : 0;
    return result == ZR_OK && count < FEW ? ZR_ERR_CORRUPT : result;
}

/* A block that its owner keeps is freed for all that look, until it is used again. */
static void test_kept(void)
{
    zr_backend *backend;
    zr_arena *arena;
    zr_result result = ZR_OK;
    struct zr_block_info info;
    struct zr_arena_stats stats;
    void *address;
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    tap_ok(zr_arena_alloc_sized(arena, &(struct zr_request){.bytes = 5000}, 8192, &address) == ZR_OK &&
               zr_arena_find(arena, address, &info) == ZR_OK && info.bytes == 5000 &&
               info.reserved_bytes == 8192,
           "a block with more room than was requested");
    zr_trace_start(arena, trace_path);
    struct zr_extent *block = zr_block_at(arena, address);
    zr_arena_acquire(arena);
    zr_block_keep(arena, block);
    zr_arena_release(arena);
    zr_arena_get_stats(arena, &stats);
    tap_ok(stats.blocks_count == 0 && stats.requested_bytes == 0 && zr_arena_check(arena) == ZR_OK,
           "it is kept, and not live");
    tap_result(zr_arena_find(arena, address, &info), ZR_ERR_FOREIGN, "nor found");
    zr_trace_snapshot(arena->number, other_path);
    tap_is(count_events(other_path, &result), 2, "a snapshot has its granule, and not the block");
    zr_arena_acquire(arena);
    zr_block_reuse(arena, block, 7000);
    zr_arena_release(arena);
    zr_arena_get_stats(arena, &stats);
    tap_ok(stats.requested_bytes == 7000 && stats.allocations_count == 2 && zr_arena_check(arena) == ZR_OK &&
               zr_arena_find(arena, address, &info) == ZR_OK && info.bytes == 7000,
           "it is used again, for other bytes");
    zr_arena_acquire(arena);
    zr_block_keep(arena, block);
    zr_block_release(arena, block);
    zr_arena_release(arena);
    tap_result(zr_arena_free(arena, address), ZR_ERR_DOUBLE_FREE, "released, its addresses are free");
    tap_result(zr_arena_check(arena), ZR_OK, "and the arena is consistent");
    zr_trace_stop(arena);
    tap_is(count_events(trace_path, &result), 6,
           "the trace has a granule, the block, two frees and an alloc");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

/* Traces that are begun from outside, as `zr attach` does, beside the program's own. */
static void test_foreign(void)
{
    zr_backend *backend;
    zr_arena *arena;
    zr_result result = ZR_OK;
    void *block;
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .threads = 2});
    zr_arena_alloc(arena, &(struct zr_request){.bytes = 1000}, &block);
    int before = open_descriptors(), passed_on = inherited_descriptors();
    tap_ok(zr_trace_start_foreign(arena->number + 1, trace_path) == ZR_ERR_INVALID &&
               zr_trace_stop_foreign(arena->number + 1) == ZR_ERR_INVALID &&
               zr_trace_snapshot(arena->number + 1, trace_path) == ZR_ERR_INVALID,
           "of an arena that is not there nothing is written");
    tap_result(zr_trace_stop_foreign(arena->number), ZR_ERR_INVALID, "nor stopped what nobody has begun");
    tap_result(zr_trace_start_foreign(arena->number, "/nonexistent/x"), ZR_ERR_IO,
               "in no folder that is not");
    tap_ok(zr_trace_mark_all("none") == 0 && arena->unstriped == 0, "nothing is held for it");
    tap_result(zr_trace_start_foreign(arena->number, trace_path), ZR_OK, "one is begun");
    tap_ok(arena->unstriped == 1 && open_descriptors() == before + 1 && inherited_descriptors() == passed_on,
           "its file is open, and no other");
    tap_result(zr_trace_start_foreign(arena->number, other_path), ZR_ERR_INVALID, "one at a time");
    tap_result(zr_trace_stop(arena), ZR_ERR_INVALID, "the program has begun none");
    tap_is(zr_trace_mark_all("here"), 1, "marked");
    tap_result(zr_trace_snapshot(arena->number, other_path), ZR_OK, "a snapshot beside it");
    tap_ok(count_events(other_path, &result) == 3 && result == ZR_OK,
           "has a granule, a block, and its begin");
    tap_result(zr_trace_stop_foreign(arena->number), ZR_OK, "and ended");
    tap_ok(count_events(trace_path, &result) == 4 && result == ZR_OK, "whole, with its mark");
    zr_trace_start_foreign(arena->number, trace_path);
    tap_result(zr_trace_start(arena, "/nonexistent/x"), ZR_ERR_IO, "the program begins none of its own");
    tap_result(zr_trace_start(arena, other_path), ZR_OK, "it begins its own beside it");
    tap_is(zr_trace_mark_all("both"), 2, "both are marked");
    tap_result(zr_trace_stop_foreign(arena->number), ZR_OK, "that of others ends first");
    zr_trace_mark_all("one");
    tap_result(zr_trace_stop(arena), ZR_OK, "and then the program's own");
    tap_ok(count_events(trace_path, &result) == 4 && count_events(other_path, &result) == 5 &&
               result == ZR_OK,
           "each has the marks of its time");
    tap_ok(arena->unstriped == 0 && open_descriptors() == before, "nothing is held any more");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

static void test_faults(void)
{
    static const unsigned sites[] = {ZR_FAULT_OPEN,
                                     ZR_FAULT_WRITE,
                                     ZR_FAULT_READ,
                                     ZR_FAULT_METADATA,
                                     ZR_FAULT_DESCRIPTOR,
                                     ZR_FAULT_DESCRIPTOR | ZR_FAULT_TWICE,
                                     ZR_FAULT_DESCRIPTOR | ZR_FAULT_EINTR,
                                     ZR_FAULT_WRITE | ZR_FAULT_EINTR,
                                     ZR_FAULT_READ | ZR_FAULT_EINTR,
                                     ZR_FAULT_READ | ZR_FAULT_SHORT};
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++)
        fault_each("a trace", sites[i], write_and_read, NULL);
}

int main(void)
{
    if (!mkdtemp(scratch)) {
        tap_ok(false, "a scratch folder in /tmp");
        return tap_done();
    }
    snprintf(trace_path, sizeof trace_path, "%s/one.zrt", scratch);
    snprintf(other_path, sizeof other_path, "%s/other.zrt", scratch);
    test_round_trip();
    test_size();
    test_hostile();
    test_complaints();
    test_no_space();
    test_fork();
    test_killed();
    test_arena();
    test_half_way();
    test_kept();
    test_foreign();
    test_faults();
    tap_result(zr_path_remove_folder(scratch), ZR_OK, "the scratch folder is gone");
    return tap_done();
}
