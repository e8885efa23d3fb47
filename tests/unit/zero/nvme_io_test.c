/* nvme_io_test.c: the offload file by io_uring and by threads: what is written is what is read, whatever ends
 * first; every failure has words and lets go of everything; nothing stays in the folder. And the pipeline. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/refuse.h"
#include "tests/support/seed.h"
#include "zero/file_io/nvme_inside.h"
#include "zero/file_io/nvme_pipeline.h"

/* ALIGN is taken from the folder; all sizes are counted in it. */
enum { FILE_BLOCKS = 256, BUFFER_BLOCKS = 24, BUFFERS = 6, OPERATIONS = 1500 };

static zr_backend *backend;
static zr_arena *arena;
static char folder[] = "/tmp/zr-nvme-XXXXXX";
static size_t block_bytes;
static char *memory; /* BUFFERS buffers in a row */
static char heard[4096];

/* A backend, an arena, and buffers in it. */
static bool make_ground(void)
{
    struct zr_host_options host = {.struct_bytes = sizeof host, .granule_bytes = (size_t)64 << 10};
    struct zr_arena_options options = {.struct_bytes = sizeof options, .limit_bytes = (size_t)64 << 20};
    struct zr_request request = {
        .bytes = BUFFERS * BUFFER_BLOCKS * block_bytes, .alignment = block_bytes, .tag = ZR_TAG_OFFLOAD};
    void *block = NULL;
    bool good = zr_backend_host_create(&options.backend, &host) == ZR_OK &&
                zr_arena_create(&arena, &options) == ZR_OK &&
                zr_arena_alloc(arena, &request, &block) == ZR_OK;
    backend = options.backend;
    memory = block;
    return good;
}

static void hear(void *state, const char *words)
{
    (void)state;
    snprintf(heard + strlen(heard), sizeof heard - strlen(heard), "%s\n", words);
}

static size_t requested_bytes(void)
{
    struct zr_arena_stats stats = {0};
    zr_arena_get_stats(arena, &stats);
    return stats.requested_bytes;
}

static struct zr_nvme_buffer buffer_all(void)
{
    return (struct zr_nvme_buffer){memory, BUFFERS * BUFFER_BLOCKS * block_bytes};
}

/* A small file whose operations are cut into many pieces. */
static struct zr_nvme_options options_of(bool threads, const struct zr_nvme_buffer *buffer)
{
    return (struct zr_nvme_options){.folder = {folder, true},
                                    .file_bytes = FILE_BLOCKS * block_bytes,
                                    .host_arena = arena,
                                    .buffers = buffer,
                                    .buffers_count = buffer ? 1 : 0,
                                    .depth = 5,
                                    .piece_bytes = 2 * block_bytes,
                                    .threads = threads,
                                    .log = hear};
}

static zr_nvme_io *open_file(bool threads)
{
    zr_nvme_io *io = NULL;
    struct zr_nvme_buffer buffer = buffer_all();
    struct zr_nvme_options options = options_of(threads, &buffer);
    if (zr_nvme_open(&io, &options) != ZR_OK)
        tap_note("%s", zr_last_error());
    return io;
}

static bool said(const char *const words[], const char *text)
{
    for (; *words; words++)
        if (!strstr(text, *words)) {
            tap_note("no \"%s\" in: %s", *words, text);
            return false;
        }
    return true;
}
#define SAID(text, ...) said((const char *const[]){__VA_ARGS__, NULL}, text)

/* ---- Random operations beside a model ------------------------------------------------------------------ */

struct slot {
    zr_nvme_event event;
    size_t bytes;
    bool read;
    char *expected; /* of a read */
};

/* Waits for a slot's operation; whether its memory holds what it should. */
static bool collect(zr_nvme_io *io, struct slot *slot, unsigned number)
{
    bool good = zr_nvme_wait(io, slot->event) == ZR_OK &&
                (!slot->read ||
                 memcmp(memory + number * BUFFER_BLOCKS * block_bytes, slot->expected, slot->bytes) == 0);
    slot->event = 0;
    return good;
}

static void test_random(bool threads, uint64_t *state)
{
    char *model = calloc(FILE_BLOCKS, block_bytes);
    struct slot slots[BUFFERS] = {{0}};
    uint64_t moved[2] = {0};
    unsigned wrong = 0, refused = 0;
    zr_nvme_event last = 0;
    zr_nvme_io *io = open_file(threads);
    if (!tap_ok(io, "a file opens"))
        return;
    for (unsigned i = 0; i < BUFFERS; i++)
        slots[i].expected = malloc(BUFFER_BLOCKS * block_bytes);
    for (unsigned i = 0; i < OPERATIONS; i++) {
        unsigned number = xorshift64(state) % BUFFERS;
        struct slot *slot = &slots[number];
        wrong += !collect(io, slot, number);
        size_t blocks = xorshift64(state) % (BUFFER_BLOCKS + 1);
        size_t at = xorshift64(state) % (FILE_BLOCKS - blocks + 1) * block_bytes;
        char *data = memory + number * BUFFER_BLOCKS * block_bytes;
        slot->bytes = blocks * block_bytes;
        slot->read = xorshift64(state) % 2;
        for (size_t n = 0; !slot->read && n < slot->bytes; n += 8)
            *(uint64_t *)(data + n) = xorshift64(state);
        struct zr_nvme_extent extent = {at, data, slot->bytes, xorshift64(state) % 3 ? last : 0};
        zr_result result = (slot->read ? zr_nvme_read : zr_nvme_write)(io, &extent, &slot->event);
        if (result == ZR_ERR_INVALID) { /* beside one that changes the same blocks */
            refused++;
            wrong += zr_nvme_synchronize(io) != ZR_OK;
            result = (slot->read ? zr_nvme_read : zr_nvme_write)(io, &extent, &slot->event);
        }
        wrong += result != ZR_OK;
        last = slot->event;
        moved[!slot->read] += slot->bytes;
        if (slot->read)
            memcpy(slot->expected, model + at, slot->bytes);
        else
            memcpy(model + at, data, slot->bytes);
    }
    for (unsigned i = 0; i < BUFFERS; i++)
        wrong += !collect(io, &slots[i], i);
    struct zr_nvme_report report;
    zr_nvme_get_report(io, &report);
    tap_is(wrong, 0, "%d operations, %u of them first refused for their order: all as in the model",
           OPERATIONS, refused);
    tap_ok(refused > 0 && report.read_bytes == moved[0] && report.written_bytes == moved[1],
           "every byte is counted once: %llu read, %llu written", (unsigned long long)moved[0],
           (unsigned long long)moved[1]);
    tap_ok(report.depth == 5 && report.piece_bytes == 2 * block_bytes && (!threads || !report.ring),
           "as it was asked for");
    tap_is(folder_entries(folder), 0, "the folder shows nothing");
    tap_result(zr_nvme_close(io), ZR_OK, "and it closes");
    for (unsigned i = 0; i < BUFFERS; i++)
        free(slots[i].expected);
    free(model);
}

/* A clock that stands, so that what stalls does so until it is let go, a second each time that it is read. */
static _Atomic uint64_t standing_ns, step_ns;
static uint64_t standing_clock(void)
{
    return standing_ns += step_ns;
}

/* ---- The contract -------------------------------------------------------------------------------------- */

static void test_contract(bool threads)
{
    zr_nvme_io *io = open_file(threads);
    size_t b = block_bytes, end = FILE_BLOCKS * b;
    zr_nvme_event event, first, second;
    bool passed = false;
    if (!tap_ok(io, "a file for the contract"))
        return;
    const struct {
        const char *what;
        struct zr_nvme_extent extent;
    } bad[] = {
        {"an offset between blocks", {1, memory, b, 0}},
        {"half a block", {0, memory, b / 2, 0}},
        {"memory between blocks", {0, memory + 8, b, 0}},
        {"no memory", {0, NULL, b, 0}},
        {"beyond the end", {end - b, memory, 2 * b, 0}},
        {"far beyond it", {UINT64_MAX - b + 1, memory, b, 0}},
        {"after an event of the future", {0, memory, b, 99}},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        tap_result(zr_nvme_read(io, &bad[i].extent, &event), ZR_ERR_INVALID, "%s is refused", bad[i].what);
    tap_result(zr_nvme_poll(io, 99, &passed), ZR_ERR_INVALID, "so is an event of the future");
    tap_result(zr_nvme_wait(io, 99), ZR_ERR_INVALID, "to wait for, too");
    tap_result(zr_nvme_wait(io, 0), ZR_OK, "event 0 has passed");

    /* The first transfer stalls until the clock moves, so that nothing has ended when the others start. */
    zr_os_clock_set(standing_clock);
    zr_fault_set(ZR_FAULT_DISK_STALL, 1);
    zr_nvme_write(io, &(struct zr_nvme_extent){0, memory, 4 * b, 0}, &first);
    tap_result(zr_nvme_poll(io, first, &passed), ZR_OK, "a poll of what is under way");
    tap_ok(!passed, "says so");
    tap_result(zr_nvme_read(io, &(struct zr_nvme_extent){3 * b, memory + 8 * b, 2 * b, 0}, &event),
               ZR_ERR_INVALID, "a read beside a write of the same blocks is refused");
    tap_result(zr_nvme_read(io, &(struct zr_nvme_extent){8 * b, memory + 2 * b, b, 0}, &event),
               ZR_ERR_INVALID, "and one into memory that is being written from");
    tap_result(zr_nvme_write(io, &(struct zr_nvme_extent){8 * b, memory, 4 * b, 0}, &event), ZR_OK,
               "two writes from the same memory are none of it");
    tap_result(zr_nvme_read(io, &(struct zr_nvme_extent){20 * b, memory + 20 * b, b, first}, &second), ZR_OK,
               "an operation after the first");
    tap_result(zr_nvme_read(io, &(struct zr_nvme_extent){0, memory + 8 * b, 4 * b, second}, &event), ZR_OK,
               "orders another one after that, which reads what the first wrote");
    tap_result(zr_nvme_read(io, &(struct zr_nvme_extent){0, NULL, 0, event}, &event), ZR_OK,
               "no bytes, after all of it");
    step_ns = 1000000000;
    tap_result(zr_nvme_wait(io, event), ZR_OK, "end when that has");
    tap_result(zr_nvme_poll(io, second, &passed), ZR_OK, "and so has");
    tap_ok(passed, "what it came after");
    zr_fault_set(ZR_FAULT_DISK_STALL, 0);
    tap_ok(memcmp(memory, memory + 8 * b, 4 * b) == 0, "with the same bytes");

    tap_result(zr_nvme_synchronize(io), ZR_OK, "all that was started ends");
    unsigned failures = 0;
    for (unsigned i = 0; i < 5 * ZR_NVME_OPERATIONS; i++)
        failures += zr_nvme_write(io, &(struct zr_nvme_extent){i % FILE_BLOCKS * b, memory, b, event},
                                  &event) != ZR_OK;
    tap_is(failures, 0, "more operations than there are slots");
    tap_result(zr_nvme_close(io), ZR_OK, "all are waited for");
    zr_os_clock_set(NULL);
    step_ns = 0;
    tap_result(zr_nvme_close(NULL), ZR_OK, "NULL closes");
}

/* The least and the most of the options and of an extent, and one below or beyond. */
static void test_limits(void)
{
    const size_t b = block_bytes, end = FILE_BLOCKS * b, most_piece = (size_t)1 << 30;
    const size_t all = BUFFERS * BUFFER_BLOCKS * b; /* of the memory */
    struct zr_nvme_buffer buffers[ZR_NVME_BUFFERS + 1];
    struct zr_nvme_options o;
    zr_nvme_io *io = NULL;
    zr_nvme_event last, event;
    for (unsigned i = 0; i < sizeof buffers / sizeof *buffers; i++)
        buffers[i] = (struct zr_nvme_buffer){memory + i * b, b};
    uint32_t *const depth = &o.depth, *const count = &o.buffers_count;
    const struct {
        const char *what;
        uint32_t *number;
        uint64_t *file_bytes;
        size_t *bytes;
        uint64_t last, beyond;
    } rows[] = {{"depth", depth, NULL, NULL, ZR_NVME_DEPTH_MAX, ZR_NVME_DEPTH_MAX + 1},
                {"buffers", count, NULL, NULL, ZR_NVME_BUFFERS, ZR_NVME_BUFFERS + 1},
                {"the least file", NULL, &o.file_bytes, NULL, b, 0},
                {"half a block less", NULL, &o.file_bytes, NULL, b, b - 1},
                {"a byte more", NULL, &o.file_bytes, NULL, b, b + 1},
                {"the least piece", NULL, NULL, &o.piece_bytes, b, b - 1},
                {"a piece and a byte", NULL, NULL, &o.piece_bytes, b, b + 1},
                {"the most of a piece", NULL, NULL, &o.piece_bytes, most_piece, most_piece + b},
                {"whole buffers", NULL, NULL, &buffers[1].bytes, b, b + 1}};
    for (unsigned i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        const bool beyond = i % 2;
        const uint64_t value = beyond ? rows[i / 2].beyond : rows[i / 2].last;
        o = options_of(true, NULL);
        o.buffers = buffers, o.buffers_count = 2, buffers[1].bytes = b;
        if (rows[i / 2].number)
            *rows[i / 2].number = (uint32_t)value;
        else
            *(rows[i / 2].file_bytes ? rows[i / 2].file_bytes : (uint64_t *)rows[i / 2].bytes) = value;
        zr_result result = zr_nvme_open(&io, &o);
        tap_result(result, beyond ? ZR_ERR_INVALID : ZR_OK, "%s: %llu", rows[i / 2].what,
                   (unsigned long long)value);
        if (result == ZR_OK)
            zr_nvme_close(io);
    }
    io = open_file(true);
    tap_result(zr_nvme_write(io, &(struct zr_nvme_extent){end - b, memory, b, 0}, &last), ZR_OK,
               "the last block of the file");
    const struct {
        struct zr_nvme_extent extent;
        bool good;
    } extents[] = {{{end, NULL, 0, 0}, true},
                   {{end, memory, b, 0}, false},
                   {{end + b, NULL, 0, 0}, false},
                   {{end - all, memory, all, 0}, true},
                   {{end - all + b, memory, all, 0}, false},
                   {{0, memory, end + b, 0}, false},
                   {{b - 1, memory, b, 0}, false},
                   {{b + 1, memory, b, 0}, false},
                   {{0, memory, b - 1, 0}, false},
                   {{0, memory, b + 1, 0}, false},
                   {{0, memory + b - 1, b, 0}, false},
                   {{0, memory + b + 1, b, 0}, false},
                   {{0, memory, b, last + 1}, true},
                   {{0, memory, b, last + 4}, false}};
    unsigned wrong = zr_nvme_synchronize(io) != ZR_OK;
    for (unsigned i = 0; i < sizeof extents / sizeof *extents; i++) {
        bool good =
            zr_nvme_write(io, &extents[i].extent, &event) == (extents[i].good ? ZR_OK : ZR_ERR_INVALID);
        wrong += !good || zr_nvme_synchronize(io) != ZR_OK;
        if (!good)
            tap_note("extent %u", i);
    }
    tap_is(wrong, 0,
           "extents that end with the file, on whole blocks, after the last event, and those beyond");
    zr_nvme_close(io);
}

/* ---- Faults -------------------------------------------------------------------------------------------- */

/* Writes all of the file in a few operations that overlap in time, reads it back. */
static zr_result run_through(zr_nvme_io *io, bool *out_same)
{
    zr_nvme_event events[BUFFERS] = {0};
    size_t bytes = BUFFER_BLOCKS * block_bytes;
    zr_result result = ZR_OK, one;
    for (size_t i = 0; i < BUFFERS * bytes; i++)
        memory[i] = (char)(i * 7 + i / bytes);
    for (unsigned i = 0; i < BUFFERS && result == ZR_OK; i++)
        result =
            zr_nvme_write(io, &(struct zr_nvme_extent){i * bytes, memory + i * bytes, bytes, 0}, &events[i]);
    one = zr_nvme_synchronize(io);
    result = result == ZR_OK ? one : result;
    memset(memory, 0, BUFFERS * bytes);
    for (unsigned i = 0; i < BUFFERS && result == ZR_OK; i++)
        result =
            zr_nvme_read(io, &(struct zr_nvme_extent){i * bytes, memory + i * bytes, bytes, 0}, &events[i]);
    one = zr_nvme_synchronize(io);
    *out_same = true;
    for (size_t i = 0; i < BUFFERS * bytes && result == ZR_OK; i++)
        *out_same = *out_same && memory[i] == (char)(i * 7 + i / bytes);
    return result == ZR_OK ? one : result;
}

/* A transfer fails: the result of the whole, and of all that follows, with words. */
static void test_transfer_faults(bool threads)
{
    const struct {
        enum zr_fault_site site;
        const char *doing;
    } sites[] = {{ZR_FAULT_DISK_WRITE, "write "}, {ZR_FAULT_DISK_READ, "read "}};
    size_t before_bytes = requested_bytes();
    int before = open_descriptors();
    for (unsigned s = 0; s < 2; s++) {
        unsigned failed = 0, wrong = 0, silent = 0;
        uint64_t nth = 1;
        for (bool clean = false; !clean && nth < 1000; nth += clean ? 0 : 13) {
            bool same;
            zr_nvme_io *io = open_file(threads);
            zr_nvme_event event;
            zr_fault_set(sites[s].site, nth);
            zr_result result = io ? run_through(io, &same) : ZR_ERR_INVALID;
            clean = zr_fault_set(sites[s].site, 0) < nth && result == ZR_OK;
            if (!clean) {
                failed++;
                wrong += result != ZR_ERR_IO;
                silent += !SAID(zr_last_error(), sites[s].doing, folder, " bytes at ",
                                "resume from the last checkpoint");
                wrong += zr_nvme_write(io, &(struct zr_nvme_extent){0, memory, block_bytes, 0}, &event) !=
                         ZR_ERR_IO;
            }
            wrong += zr_nvme_close(io) != (clean ? ZR_OK : ZR_ERR_IO);
        }
        tap_ok(failed >= 5 && wrong == 0 && silent == 0,
               "%s: fails at %u places with words, and so does what follows",
               zr_fault_site_name(sites[s].site), failed);
    }
    tap_is(requested_bytes(), before_bytes, "no block is left");
    tap_is(open_descriptors(), before, "nor a descriptor");
}

/* A file whose reads go on: a write fails behind one that is done, and then a read. */
static void test_reads_go_on(bool threads)
{
    const struct zr_nvme_extent first = {0, memory, block_bytes, 0},
                                second = {block_bytes, memory + block_bytes, block_bytes, 0};
    struct zr_nvme_options options = {.folder = {folder, true},
                                      .file_bytes = 2 * block_bytes,
                                      .host_arena = arena,
                                      .depth = 2,
                                      .threads = threads,
                                      .write_way_out = "the way out"};
    zr_nvme_io *io = NULL;
    zr_nvme_event event = 0;
    bool passed = false;
    tap_result(zr_nvme_open(&io, &options), ZR_OK, "a file whose reads go on");
    memset(memory, 5, block_bytes);
    zr_result result = zr_nvme_write(io, &first, &event);
    result = result == ZR_OK ? zr_nvme_wait(io, event) : result;
    zr_fault_set(ZR_FAULT_DISK_WRITE, 1);
    result = result == ZR_OK ? zr_nvme_write(io, &second, &event) : result;
    tap_is(result == ZR_OK ? zr_nvme_wait(io, event) : ZR_OK, ZR_ERR_IO, "a write fails");
    zr_fault_set(ZR_FAULT_DISK_WRITE, 0);
    tap_ok(zr_nvme_poll(io, event, &passed) == ZR_ERR_IO && SAID(zr_last_error(), "write ", "(the way out)"),
           "which stays so, and says the way out that it was given");
    memset(memory, 6, block_bytes);
    result = zr_nvme_read(io, &first, &event);
    result = result == ZR_OK ? zr_nvme_wait(io, event) : result;
    tap_ok(result == ZR_OK && memory[0] == 5 && memory[block_bytes - 1] == 5,
           "what was written before is read");
    tap_is(zr_nvme_write(io, &second, &event), ZR_ERR_IO, "no write comes after it");
    zr_fault_set(ZR_FAULT_DISK_READ, 1);
    result = zr_nvme_read(io, &first, &event);
    tap_is(result == ZR_OK ? zr_nvme_wait(io, event) : ZR_OK, ZR_ERR_IO, "a read fails");
    zr_fault_set(ZR_FAULT_DISK_READ, 0);
    tap_ok(zr_nvme_read(io, &first, &event) == ZR_ERR_IO && SAID(zr_last_error(), "read ", folder),
           "and that ends all of them, in its own words");
    tap_is(zr_nvme_close(io), ZR_ERR_IO, "which the end says too");
}

/* A transfer that a signal interrupts, or that ends within a block. */
static void test_broken_off(bool threads)
{
    static const unsigned sites[] = {
        ZR_FAULT_DISK_READ | ZR_FAULT_SHORT, ZR_FAULT_DISK_WRITE | ZR_FAULT_SHORT,
        ZR_FAULT_DISK_READ | ZR_FAULT_EINTR, ZR_FAULT_DISK_WRITE | ZR_FAULT_EINTR};
    for (unsigned s = 0; s < sizeof sites / sizeof *sites; s++) {
        bool is_short = sites[s] >= ZR_FAULT_SHORT;
        struct zr_nvme_report report = {0};
        unsigned wrong = 0;
        for (uint64_t nth = 1; nth < 70; nth += 9) {
            bool same = false;
            zr_nvme_io *io = open_file(threads);
            zr_fault_set(sites[s], nth);
            wrong += !io || run_through(io, &same) != ZR_OK || !same;
            if (io)
                zr_nvme_get_report(io, &report);
            wrong += report.continued_count != is_short;
            wrong += zr_nvme_close(io) != ZR_OK;
        }
        tap_ok(zr_fault_set(sites[s], 0) >= 50, "%s: transfers are counted", zr_fault_site_name(sites[s]));
        tap_is(wrong, 0, "and the rest of it is moved");
    }
}

/* What a transfer came to: interrupted, a part that ends within a block, nothing, all. */
static void test_advance(void)
{
    static zr_nvme_io io = {.last = 1, .oldest = 1, .under_way = 1};
    struct zr_nvme_operation *operation = &io.operations[1];
    struct zr_nvme_piece piece = {.operation = operation, .memory = memory, .bytes = 4 * block_bytes};
    io.file.align_bytes = block_bytes;
    io.under_way_bytes = piece.bytes;
    *operation = (struct zr_nvme_operation){.event = 1, .bytes = piece.bytes, .issued_bytes = piece.bytes};
    tap_ok(!zr_nvme_advance_piece(&io, &piece, -EINTR) && io.error == 0 && piece.bytes == 4 * block_bytes,
           "a transfer that a signal interrupts is made again");
    tap_ok(!zr_nvme_advance_piece(&io, &piece, (long)block_bytes + 700) &&
               piece.memory == memory + block_bytes && piece.offset_bytes == block_bytes &&
               piece.bytes == 3 * block_bytes,
           "one that ends within a block goes on from the block's start");
    tap_ok(!zr_nvme_advance_piece(&io, &piece, 1) && piece.bytes == 3 * block_bytes,
           "less than a block is nothing");
    tap_ok(zr_nvme_advance_piece(&io, &piece, (long)(3 * block_bytes)) && io.error == 0 && operation->done &&
               io.under_way_bytes == 0 && io.moved_bytes[0] == 4 * block_bytes,
           "and the rest ends it, each byte counted once");
}

/* On a busy machine the one that waits may sleep through a stall: then there is another one. */
static void test_stall(bool threads)
{
    bool good = true, same = false, told = false;
    struct zr_nvme_buffer buffer = buffer_all();
    struct zr_nvme_options options = options_of(threads, &buffer);
    options.stall_ns = 40000000;
    options.depth = 1; /* nobody else moves anything meanwhile */
    for (unsigned i = 0; i < 50 && good && !told; i++) {
        zr_nvme_io *io = NULL;
        heard[0] = '\0';
        good = zr_nvme_open(&io, &options) == ZR_OK;
        zr_fault_set(ZR_FAULT_DISK_STALL, 4);
        good = good && run_through(io, &same) == ZR_OK && same;
        zr_fault_set(ZR_FAULT_DISK_STALL, 0);
        good = zr_nvme_close(io) == ZR_OK && good;
        told = strstr(heard, "has transferred nothing for") != NULL;
    }
    tap_ok(good, "a disk that stalls is waited for");
    tap_ok(
        SAID(heard, folder, "has transferred nothing for", "bytes are outstanding", "responds again after"),
        "with a word of it");
}

/* What open() needs fails, at every place: nothing is left. */
static void test_open_faults(bool threads)
{
    const enum zr_fault_site sites[] = {ZR_FAULT_OPEN, ZR_FAULT_WRITE, ZR_FAULT_THREAD, ZR_FAULT_DISK_WRITE,
                                        ZR_FAULT_DISK_READ};
    size_t before_bytes = requested_bytes();
    int before = open_descriptors();
    for (unsigned s = 0; s < sizeof sites / sizeof *sites; s++) {
        unsigned failures = 0, wrong = 0;
        for (bool clean = false; !clean && failures < 20;) {
            struct zr_nvme_buffer buffer = buffer_all();
            struct zr_nvme_options options = options_of(threads, &buffer);
            zr_nvme_io *io = NULL;
            options.depth = sites[s] >= ZR_FAULT_DISK_READ ? 0 : 5; /* or measured */
            zr_fault_set(sites[s], failures + 1);
            zr_result result = zr_nvme_open(&io, &options);
            clean =
                zr_fault_set(sites[s], 0) <= failures || (sites[s] >= ZR_FAULT_DISK_READ && failures == 3);
            failures += !clean;
            wrong += clean ? result != ZR_OK && sites[s] < ZR_FAULT_DISK_READ : result == ZR_OK || io;
            zr_nvme_close(io);
        }
        tap_ok(failures > 0 && wrong == 0, "%s fails at %u places", zr_fault_site_name(sites[s]), failures);
    }
    tap_is(requested_bytes(), before_bytes, "no block is left");
    tap_is(open_descriptors(), before, "nor a descriptor");
    tap_is(folder_entries(folder), 0, "nor a name");
}

/* ---- Folders ------------------------------------------------------------------------------------------- */

static zr_result open_in(const char *path, uint64_t bytes, bool force)
{
    zr_nvme_io *io = NULL;
    struct zr_nvme_options options = options_of(false, NULL);
    options.folder = (struct zr_nvme_folder){path, force};
    options.file_bytes = bytes;
    zr_result result = zr_nvme_open(&io, &options);
    zr_nvme_close(io);
    return result;
}

static int as_nobody(void)
{
    if (!make_ground())
        return 3;
    if (geteuid() == 0 && (chmod(folder, 0700) != 0 || setuid(65534) != 0))
        return 77;
    if (geteuid() != 65534 && chmod(folder, 0500) != 0)
        return 77;
    return open_in(folder, block_bytes, true) != ZR_ERR_IO || !SAID(zr_last_error(), folder, "permissions");
}

static int with_file_limit(void)
{
    const uint64_t most = (uint64_t)1 << 24;
    if (!make_ground()) /* whose memory is in files, too */
        return 3;
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){most, most});
    if (open_in(folder, most, true) != ZR_OK)
        return 1;
    return open_in(folder, most + block_bytes, true) != ZR_ERR_IO ||
           !SAID(zr_last_error(), folder, "ulimit -f", "allows files of 16777216");
}

static void test_folders(void)
{
    char path[256], too_much[32];
    struct zr_nvme_probe probe;
    struct statfs system;
    snprintf(path, sizeof path, "%s/nowhere", folder);
    tap_ok(open_in(path, block_bytes, false) == ZR_ERR_IO &&
               SAID(zr_last_error(), path, "No such file", "create the folder"),
           "a folder that is missing");
    tap_ok(open_in("/etc/passwd", block_bytes, false) == ZR_ERR_IO &&
               SAID(zr_last_error(), "/etc/passwd", "not a file"),
           "a file in its place");
    tap_result(open_in("", block_bytes, false), ZR_ERR_INVALID, "no path");
    tap_result(zr_nvme_probe_folder(&(struct zr_nvme_folder){NULL, false}, &probe), ZR_ERR_INVALID,
               "nor to look at");
    uint64_t bytes = (uint64_t)1 << 60;
    snprintf(too_much, sizeof too_much, "%llu", (unsigned long long)bytes);
    tap_ok(open_in(folder, bytes, true) == ZR_ERR_IO &&
               SAID(zr_last_error(), folder, too_much, "are free", "use a larger disk"),
           "too little space, with the bytes");
    tap_is(in_child_within(as_nobody, 20), 0, "a folder that cannot be written");
    chmod(folder, 0700);
    tap_is(in_child_within(with_file_limit, 20), 0, "a limit on files, instead of its signal");
    if (statfs("/dev/shm", &system) == 0 && system.f_type == 0x01021994) {
        int before = open_descriptors();
        tap_ok(open_in("/dev/shm", block_bytes, false) == ZR_ERR_IO &&
                   SAID(zr_last_error(), "/dev/shm", "memory", "--force"),
               "memory is refused");
        tap_is(open_descriptors(), before, "with no descriptor left");
        tap_result(open_in("/dev/shm", block_bytes, true), ZR_OK, "unless it is forced");
    } else {
        tap_skip("/dev/shm is no tmpfs here");
    }
}

/* ---- What a machine refuses ---------------------------------------------------------------------------- */

static int refused_body(unsigned number, unsigned flags, unsigned error, const char *word)
{
    bool same = false;
    heard[0] = '\0';
    if (!make_ground())
        return 3;
    if (!refuse_call(number, flags, error))
        return 77;
    int files = open_descriptors();
    zr_nvme_io *io = open_file(false);
    struct zr_nvme_report report;
    if (!io || run_through(io, &same) != ZR_OK || !same)
        return 1;
    zr_nvme_get_report(io, &report);
    const char *found = strstr(heard, word);
    bool good = number == SYS_io_uring_setup || number == SYS_io_uring_enter ? !report.ring
                : number == SYS_io_uring_register                            ? !report.registered
                : number == SYS_fallocate                                    ? !report.reserved
                                          : !report.nameless && folder_entries(folder) == 0;
    good = good && (number == SYS_openat || (found && !strstr(found + 1, word)));
    return zr_nvme_close(io) != ZR_OK || !good || open_descriptors() != files ? 2 : 0;
}

static int without_setup(void)
{
    return refused_body(SYS_io_uring_setup, 0, EPERM, "io_uring is not available");
}
static int without_enter(void)
{
    return refused_body(SYS_io_uring_enter, 0, ENOSYS, "io_uring is not available");
}
static int without_register(void)
{
    return refused_body(SYS_io_uring_register, 0, ENOMEM, "not registered");
}
static int without_fallocate(void)
{
    return refused_body(SYS_fallocate, 0, EOPNOTSUPP, "does not support fallocate");
}
static int without_tmpfile(void)
{
    return refused_body(SYS_openat, O_TMPFILE & ~O_DIRECTORY, EOPNOTSUPP, "");
}
static int killed(void)
{
    zr_nvme_event event;
    zr_nvme_io *io = make_ground() ? open_file(false) : NULL;
    zr_nvme_write(io, &(struct zr_nvme_extent){0, memory, BUFFER_BLOCKS * block_bytes, 0}, &event);
    return raise(SIGKILL);
}

static void test_machine(void)
{
    const struct {
        const char *what;
        int (*body)(void);
        int status;
    } runs[] = {{"no io_uring: threads, said once", without_setup, 0},
                {"its set-up allowed, nothing else", without_enter, 0},
                {"no registration, said once", without_register, 0},
                {"no fallocate, said once", without_fallocate, 0},
                {"no O_TMPFILE: the name goes at once", without_tmpfile, 0},
                {"a death while writing", killed, -SIGKILL}};
    zr_nvme_io *io = open_file(false);
    struct zr_nvme_report report = {0};
    if (io)
        zr_nvme_get_report(io, &report);
    zr_nvme_close(io);
    for (unsigned i = 0; i < sizeof runs / sizeof *runs; i++) {
        int status = in_child_within(runs[i].body, 60);
        if (status == 77 || ((i == 1 || i == 2) && !report.ring))
            tap_skip("%s: no filter, or no io_uring, here", runs[i].what);
        else
            tap_is(status, runs[i].status, "%s", runs[i].what);
    }
    tap_is(folder_entries(folder), 0, "nothing is left in the folder");
}

static void test_choice(void)
{
    const double rates[] = {1, 3, 2.8, 2.9, 2.5};
    tap_ok(zr_nvme_choose_depth(rates, 5) == 3 && zr_nvme_choose_depth(rates, 2) == 1 &&
               zr_nvme_choose_depth(rates, 1) == 0,
           "the most pieces that are nearly as fast as the best");
}

/* The depth is measured, a power of two that the way allows; both halves of a buffer are enough for it. */
static void test_measured(bool threads)
{
    zr_nvme_io *io = NULL;
    struct zr_nvme_report report = {0};
    struct zr_nvme_buffer buffer = buffer_all();
    struct zr_nvme_options options = options_of(threads, &buffer);
    options.depth = 0;
    tap_result(zr_nvme_open(&io, &options), ZR_OK, "a depth that is measured");
    if (io)
        zr_nvme_get_report(io, &report);
    tap_ok(report.depth > 0 && (report.depth & (report.depth - 1)) == 0 &&
               report.depth <= (report.ring ? 64 : 8) && report.bytes_per_second > 0 &&
               report.read_bytes + report.written_bytes + report.waited_ns == 0,
           "is %u at %.0f MB/s, and counts as no step's traffic", report.depth,
           report.bytes_per_second * 1e-6);
    zr_nvme_close(io);
    io = NULL;
    options.stall_ns = 600000000; /* of which a stall has two: longer than a measurement */
    zr_fault_set(ZR_FAULT_DISK_STALL, 1);
    tap_result(zr_nvme_open(&io, &options), ZR_OK, "and of a disk that is slow to begin with");
    zr_fault_set(ZR_FAULT_DISK_STALL, 0);
    zr_nvme_close(io);
}

/* ---- The pipeline -------------------------------------------------------------------------------------- */

enum { UNITS = 11, PASSES = 4 };

/* Numbers count up with each pass, but for every third unit in the last one, which is left as it was. The
 * writes of a pass go on behind the next, of `passes` but the last two. */
static bool pass_over(struct zr_nvme_pipeline *pipeline, unsigned pass, unsigned passes)
{
    bool good = zr_nvme_pipeline_begin(pipeline) == ZR_OK;
    for (unsigned unit = 0; unit < pipeline->units_count && good; unit++) {
        void *data = NULL;
        good = zr_nvme_pipeline_take(pipeline, &data) == ZR_OK &&
               (size_t)((char *)data - memory) % pipeline->buffer_bytes + pipeline->units[unit].bytes <=
                   pipeline->buffer_bytes;
        uint32_t *numbers = data;
        for (size_t i = 0; i < pipeline->units[unit].bytes / 4 && good; i++) {
            good = pass == 0 || numbers[i] == unit * 1000003 + i + pass - 1;
            numbers[i] = (uint32_t)(unit * 1000003 + i + pass);
        }
        /* The next two at least, and all that have room, come while this one is held, without a further call.
         */
        good = good && pipeline->next - pipeline->unit >=
                           (pipeline->units_count - unit < 3 ? pipeline->units_count - unit : 3);
        for (unsigned i = 1; unit + i < pipeline->next && good; i++) {
            zr_nvme_event next =
                pipeline->places[(pipeline->turn - (pipeline->next - unit - i)) % ZR_NVME_PLACES].read;
            bool ahead = false;
            for (unsigned look = 0; good && !ahead && look < 5000; look++) {
                good = zr_nvme_poll(pipeline->io, next, &ahead) == ZR_OK;
                if (!ahead)
                    usleep(1000);
            }
            good = good && ahead;
        }
        good = good && zr_nvme_pipeline_give(pipeline, pass + 1 < passes || unit % 3 != 0) == ZR_OK;
    }
    return (pass + 2 < passes || zr_nvme_pipeline_end(pipeline) == ZR_OK) && good;
}

static void test_pipeline(bool threads)
{
    struct zr_nvme_unit units[UNITS];
    uint64_t at = 0, written = 0;
    void *data;
    zr_nvme_io *io = open_file(threads);
    struct zr_nvme_pipeline pipeline = {.io = io,
                                        .units = units,
                                        .units_count = UNITS,
                                        .buffers_count = 3,
                                        .buffer_bytes = BUFFER_BLOCKS * block_bytes,
                                        .buffers = memory};
    for (unsigned i = 0; i < UNITS; i++) {
        units[i] = (struct zr_nvme_unit){at, (i * 5 % BUFFER_BLOCKS) * block_bytes};
        at += units[i].bytes;
        written += units[i].bytes * (i % 3 ? PASSES : PASSES - 1);
    }
    for (unsigned pass = 0; pass < PASSES; pass++)
        tap_ok(io && pass_over(&pipeline, pass, PASSES),
               "pass %u over %d units: each has what the last one left", pass, UNITS);
    struct zr_nvme_report report;
    zr_nvme_get_report(io, &report);
    tap_ok(report.read_bytes == PASSES * at && report.written_bytes == written,
           "each is read once a pass, and written if changed");
    unsigned again = 0;
    pipeline.units_count = 2;
    while (again < 2 * ZR_NVME_PLACES && pass_over(&pipeline, again, 3 * ZR_NVME_PLACES))
        again++;
    zr_nvme_pipeline_end(&pipeline);
    tap_is(again, 2 * ZR_NVME_PLACES, "a unit is read again while it is written");
    pipeline.units_count = UNITS;

    tap_result(zr_nvme_pipeline_give(&pipeline, true), ZR_ERR_INVALID, "nothing is given that was not taken");
    tap_result(zr_nvme_pipeline_take(&pipeline, &data), ZR_ERR_INVALID, "nor taken without a pass");
    zr_nvme_pipeline_begin(&pipeline);
    tap_result(zr_nvme_pipeline_begin(&pipeline), ZR_ERR_INVALID, "one pass at a time");
    zr_nvme_pipeline_take(&pipeline, &data);
    tap_result(zr_nvme_pipeline_take(&pipeline, &data), ZR_ERR_INVALID, "one unit at a time");
    tap_result(zr_nvme_pipeline_end(&pipeline), ZR_OK, "a pass that is broken off");
    pipeline.units_count = 0;
    tap_ok(zr_nvme_pipeline_begin(&pipeline) == ZR_OK && zr_nvme_pipeline_end(&pipeline) == ZR_OK,
           "no units");
    pipeline.units_count = UNITS;
    zr_fault_set(ZR_FAULT_DISK_READ, 1);
    pipeline.units++, pipeline.units_count--; /* the first has no bytes */
    tap_ok(!pass_over(&pipeline, 1, PASSES) && SAID(zr_last_error(), folder, "read "),
           "a read that fails ends a pass with words");
    zr_fault_set(ZR_FAULT_DISK_READ, 0);
    tap_result(zr_nvme_close(io), ZR_ERR_IO, "and the file");
}

int main(void)
{
    struct zr_nvme_probe probe;
    uint64_t state = run_seed();
    alarm(120); /* an event that is never told would be waited for without end */
    if (!mkdtemp(folder) || zr_nvme_probe_folder(&(struct zr_nvme_folder){folder, true}, &probe) != ZR_OK)
        return tap_ok(false, "a folder: %s", zr_last_error()), tap_done();
    block_bytes = probe.align_bytes;
    tap_note("blocks of %zu bytes, O_DIRECT %d, O_TMPFILE %d", block_bytes, probe.direct, probe.nameless);
    if (!tap_ok(make_ground(), "an arena"))
        return tap_done();
    test_choice();
    test_advance();
    test_limits();
    for (int threads = 0; threads < 2; threads++) {
        tap_note("%s", threads ? "by threads" : "by io_uring");
        test_random(threads, &state);
        test_contract(threads);
        test_transfer_faults(threads);
        test_reads_go_on(threads);
        test_broken_off(threads);
        test_stall(threads);
        test_open_faults(threads);
        test_measured(threads);
        test_pipeline(threads);
    }
    test_folders();
    test_machine();
    size_t leaked = 1;
    zr_arena_free(arena, memory);
    tap_result(zr_arena_destroy(arena, &leaked), ZR_OK, "the arena ends");
    tap_is(leaked, 0, "and nothing was left in it");
    zr_backend_destroy(backend);
    rmdir(folder);
    return tap_done();
}
