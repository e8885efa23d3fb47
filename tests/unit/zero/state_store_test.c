/* state_store_test.c: the state store in an offload file beside the one in memory: the same passes and single
 * units leave the same bits in both; what a simulated one would take is what a real one takes; failures have
 * words, and what follows them too. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "tests/support/folder.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"
#include "zero/engine/state_store.h"

enum { UNITS = 7, ROUNDS = 60 };

/* Sizes that share no factor, one far larger than the others, one of a single element. */
static const struct zr_parameter parameters[UNITS] = {
    {.name = "a", .shape = {67, 13}, .unit = 0},   {.name = "b", .shape = {1, 0}, .unit = 1},
    {.name = "c", .shape = {300, 211}, .unit = 2}, {.name = "d", .shape = {1024, 0}, .unit = 3},
    {.name = "e", .shape = {1009, 3}, .unit = 4},  {.name = "f", .shape = {1025, 0}, .unit = 5},
    {.name = "g", .shape = {4096, 5}, .unit = 6}};
static const struct zr_unit units[UNITS] = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1},
                                            {"e", 1}, {"f", 1}, {"g", 1}};

static zr_arena *arena, *records;
static char folder[] = "/tmp/zr-state-XXXXXX";

static const struct variant {
    const char *what;
    unsigned world;
    bool whole, master, variance;
} variants[] = {{"AdamW in two bytes, of one rank", 1, true, true, true},
                {"AdamW in fp32, a shard of three", 3, false, false, true},
                {"SGD in two bytes, a shard of five", 5, false, true, false}};
enum { VARIANTS = sizeof variants / sizeof *variants };

static zr_result make_layout(struct zr_layout *out, const struct variant *variant)
{
    static const struct zr_parameter_list list = {parameters, UNITS, units, UNITS, 0};
    return zr_layout_make(
        out, &(struct zr_layout_request){
                 .list = &list,
                 .world = variant->world,
                 .precision = ZR_PRECISION_BF16,
                 .host_arena = records,
                 .optimizer = zr_optimizer_of(variant->variance ? ZR_OPTIMIZER_ADAMW : ZR_OPTIMIZER_SGD)});
}

static zr_result open_store(struct zr_state_store *out, const struct zr_state_store_table *table,
                            const struct zr_layout *layout, const struct variant *variant,
                            const struct zr_offload_file *file, uint64_t twice_bytes)
{
    static const struct zr_offload_file none;
    return zr_state_store_open(out,
                               &(struct zr_state_store_options){.arena = arena,
                                                                .layout = layout,
                                                                .whole = variant->whole,
                                                                .master = variant->master,
                                                                .host_arena = records,
                                                                .file = table == &zr_state_store_memory ? NULL
                                                                        : file                          ? file
                                                                               : &none,
                                                                .twice_bytes = twice_bytes,
                                                                .simulated = !file});
}

/* Changes a unit by what only round and place decide, and what was there. */
static zr_result work(struct zr_state_store *store, size_t unit, uint32_t round, bool clear)
{
    const struct zr_layout_unit *u = &store->options.layout->units[unit];
    size_t count = store->options.whole ? u->padded_elements : u->shard_elements;
    struct zr_state_view view = {0};
    zr_result result = zr_state_store_take(store, unit, &view);
    float *const kinds[] = {view.master, view.slots[0], view.slots[1]};
    for (unsigned k = 0; k < 3 && result == ZR_OK; k++)
        for (size_t i = 0; i < count && kinds[k]; i++)
            kinds[k][i] =
                (clear ? 0 : kinds[k][i] * 0.75f) + (float)((unit + 1) * (k + 3) * (i % 97) + round);
    zr_result given = zr_state_store_give(store, unit, true);
    return result == ZR_OK ? given : result;
}

static zr_result pass(struct zr_state_store *store, uint32_t round, size_t count)
{
    zr_result result = zr_state_store_begin(store);
    for (size_t u = 0; u < count && result == ZR_OK; u++)
        result = work(store, u, round, false);
    zr_result ended = zr_state_store_end(store);
    return result == ZR_OK ? ended : result;
}

/* Units whose numbers differ. */
static unsigned differences(struct zr_state_store *a, struct zr_state_store *b)
{
    unsigned wrong = 0;
    for (size_t u = UNITS; u-- > 0;) {
        const struct zr_layout_unit *unit = &a->options.layout->units[u];
        size_t bytes = (a->options.whole ? unit->padded_elements : unit->shard_elements) * sizeof(float);
        struct zr_state_view x = {0}, y = {0};
        bool same = zr_state_store_take(a, u, &x) == ZR_OK && zr_state_store_take(b, u, &y) == ZR_OK &&
                    !x.master == !y.master && !x.slots[1] == !y.slots[1] &&
                    (!x.master || memcmp(x.master, y.master, bytes) == 0) &&
                    memcmp(x.slots[0], y.slots[0], bytes) == 0 &&
                    (!x.slots[1] || memcmp(x.slots[1], y.slots[1], bytes) == 0);
        wrong += !same;
        zr_state_store_give(a, u, false);
        zr_state_store_give(b, u, false);
    }
    return wrong;
}

static zr_result clear_all(struct zr_state_store *store)
{
    zr_result result = ZR_OK;
    for (size_t u = 0; u < UNITS && result == ZR_OK; u++)
        result = work(store, u, 0, true);
    return result;
}

/* Random passes, passes that are broken off, and single units, in both stores. */
static void test_same_bits(const struct variant *variant, const struct zr_offload_file *options,
                           uint64_t *random)
{
    struct zr_state_store memory, file, dry;
    struct zr_state_file_report real, simulated;
    struct zr_layout layout;
    unsigned wrong = 0;
    zr_result result = make_layout(&layout, variant);
    zr_result opened = open_store(&file, &zr_state_store_nvme, &layout, variant, options, 0);
    if (!tap_ok(result == ZR_OK && opened == ZR_OK, "a store in a file: %s", variant->what)) {
        tap_note("%s", zr_last_error());
        return;
    }
    open_store(&memory, &zr_state_store_memory, &layout, variant, NULL, 0);
    open_store(&dry, &zr_state_store_nvme, &layout, variant, NULL, 0);
    struct zr_state_store *const stores[] = {&memory, &file, &dry};
    for (unsigned s = 0; s < 2; s++)
        wrong += clear_all(stores[s]) != ZR_OK;
    wrong += differences(&memory, &file);
    zr_state_store_get_report(&file, &real);
    uint64_t moved_bytes = real.moved_bytes;
    for (unsigned s = 0; s < 2; s++)
        wrong += pass(stores[s], 1, UNITS) != ZR_OK;
    zr_state_store_get_report(&file, &real);
    tap_is(real.moved_bytes - moved_bytes, 2 * real.file_bytes, "a pass reads and writes the file once");
    for (uint32_t round = 2; round < ROUNDS; round++) {
        size_t count = xorshift64(random) % 3 ? UNITS : xorshift64(random) % UNITS;
        size_t unit = xorshift64(random) % UNITS;
        bool passes = xorshift64(random) % 2;
        for (unsigned s = 0; s < 2; s++)
            wrong += (passes ? pass(stores[s], round, count) : work(stores[s], unit, round, false)) != ZR_OK;
        if (xorshift64(random) % 4 == 0)
            wrong += differences(&memory, &file);
    }
    tap_is(wrong + differences(&memory, &file), 0, "%u rounds leave the same bits as in memory", ROUNDS);
    zr_state_store_get_report(&file, &real);
    zr_state_store_get_report(&dry, &simulated);
    size_t kinds = 1 + variant->master + variant->variance,
           elements = variant->whole ? layout.pool_elements : layout.shards_elements;
    tap_ok(real.file_bytes == simulated.file_bytes && real.buffers_bytes == simulated.buffers_bytes,
           "a simulated one takes as much, of the disk and of memory");
    tap_ok(real.file_bytes >= kinds * elements * 4 && real.file_bytes < kinds * elements * 4 + UNITS * 4096 &&
               real.buffers_bytes < 3 * real.file_bytes,
           "the file has %zu numbers of each element, and a unit less than a block more", kinds);
    tap_is(folder_entries(folder), 0, "the folder shows nothing");
    for (unsigned s = 0; s < 3; s++)
        zr_state_store_close(stores[s]);
    zr_layout_end(&layout);
}

/* By a clock, a second for each block. Nobody computes, so a pass waits for all that is before its last read.
 * All units have room at a time, most of them in one buffer: it waits for reads alone, and the next pass for
 * its writes. */
static void test_clock(void)
{
    const struct variant *variant = &variants[0];
    struct zr_comm_clock clock = {
        .flops_per_second = 1, .bytes_per_second = 1, .nvme_bytes_per_second = 4096};
    struct zr_state_view view;
    struct zr_state_store store;
    struct zr_state_file_report report;
    struct zr_layout layout;
    if (!tap_ok(make_layout(&layout, variant) == ZR_OK &&
                    open_store(&store, &zr_state_store_nvme, &layout, variant, NULL, 0) == ZR_OK,
                "a simulated store with a clock"))
        return;
    zr_state_store_set_clock(&store, &clock);
    zr_state_store_get_report(&store, &report);
    double all = 2 * (double)report.file_bytes / 4096;
    for (unsigned round = 0; round < 2; round++) {
        zr_state_store_begin(&store);
        for (size_t u = 0; u < UNITS; u++) {
            zr_state_store_take(&store, u, &view);
            zr_state_store_give(&store, u, true);
        }
        zr_state_store_end(&store);
        double expected = (round + 1) * all - all / 2;
        tap_ok(clock.waited_seconds == expected && clock.nvme_waited_seconds == expected,
               "pass %u has waited for %.0f s of %.0f s", round + 1, expected, (round + 1) * all);
    }
    zr_state_store_begin(&store);
    double before = 0;
    for (size_t u = 0; u < 6; u++) { /* unit 3 takes longer than the disk does for all that it has */
        zr_state_store_take(&store, u, &view);
        if (u == 3) {
            clock.flops += 1000 * all;
            before = clock.waited_seconds;
        }
        zr_state_store_give(&store, u, true);
    }
    tap_ok(before > 0 && clock.waited_seconds == before, "behind one unit those after it are read");
    zr_state_store_end(&store);
    before = clock.waited_seconds;
    zr_state_store_begin(&store);
    clock.flops += 1000 * all; /* computes on for longer than the disk takes for all that it has */
    zr_state_store_take(&store, 0, &view);
    tap_ok(clock.waited_seconds == before, "behind computing nothing is waited for");
    zr_state_store_end(&store);
    zr_state_store_close(&store);
    zr_layout_end(&layout);
    struct zr_comm_clock_queue queue = {.end_seconds = 0}; /* a gather of what the disk still reads */
    double read = zr_comm_clock_disk(&clock, ZR_CLOCK_STATE, 10 * 4096);
    zr_comm_clock_submit(&clock, &queue,
                         &(struct zr_comm_clock_operation){
                             .ticket = 1, .bytes = 5, .bytes_per_second = 1, .ready_seconds = read});
    tap_ok(read > zr_comm_clock_now(&clock) && queue.end_seconds == read + 5,
           "what waits for the disk begins when it is done");
    double shares = zr_comm_clock_disk(&clock, ZR_CLOCK_PARAMETERS, 4 * 4096) - zr_comm_clock_now(&clock);
    tap_ok(shares == 8 && clock.disk_idle_seconds[ZR_CLOCK_STATE] == read + 4,
           "two files share the disk, and both take longer");
}

/* Every transfer of a life fails once. */
static void test_faults(const struct zr_offload_file *options)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_DISK_READ, ZR_FAULT_DISK_WRITE};
    const struct variant *variant = &variants[1];
    for (unsigned s = 0; s < sizeof sites / sizeof *sites; s++) {
        unsigned failures = 0, wordless = 0;
        for (bool clean = false; !clean && failures < 200;) {
            struct zr_state_store store;
            struct zr_layout layout;
            zr_result result = make_layout(&layout, variant);
            zr_fault_set(sites[s], failures + 1);
            if (result == ZR_OK)
                result = open_store(&store, &zr_state_store_nvme, &layout, variant, options, 0);
            bool open = result == ZR_OK;
            if (result == ZR_OK)
                result = clear_all(&store);
            for (unsigned round = 0; round < 3 && result == ZR_OK; round++)
                result = pass(&store, round, UNITS);
            if (result == ZR_OK) /* the last writes of the last pass */
                result = work(&store, 3, 9, false);
            if (result == ZR_OK)
                result = work(&store, 4, 9, false);
            wordless += result != ZR_OK && (!strstr(zr_last_error(), folder) ||
                                            !strstr(zr_last_error(), "resume from the last checkpoint"));
            for (size_t u = 0; u < UNITS && open && result != ZR_OK && sites[s] == ZR_FAULT_DISK_READ; u++)
                wordless += zr_state_store_take(&store, u, &(struct zr_state_view){NULL}) == ZR_OK;
            if (open && result != ZR_OK)
                wordless += pass(&store, 9, UNITS) == ZR_OK || !strstr(zr_last_error(), folder);
            zr_fault_set(sites[s], 0);
            clean = result == ZR_OK;
            failures += !clean;
            if (open)
                zr_state_store_close(&store);
            zr_layout_end(&layout);
        }
        tap_ok(failures > 10 && failures < 200, "%s fails at %u places", zr_fault_site_name(sites[s]),
               failures);
        tap_is(wordless, 0, "each with the folder and a way out, and so does every unit and pass after it");
    }
    tap_is(folder_entries(folder), 0, "nothing is left in the folder");
}

/* A clock that goes a second each time that it is read: a transfer that stalls does so for some ten looks. */
static uint64_t hasty_clock(void)
{
    static _Atomic uint64_t now_ns;
    return now_ns += 1000000000;
}

/* All units ahead of a pass, from the last on; the pass has nothing left to do; and another pass comes while
 * unit 1 is still being written. */
static void test_pass_behind_ahead(const struct zr_offload_file *options)
{
    static const unsigned order[UNITS] = {6, 5, 4, 3, 2, 0, 1};
    struct zr_state_store store;
    struct zr_state_view view;
    struct zr_layout layout;
    zr_result result = make_layout(&layout, &variants[0]);
    if (result == ZR_OK)
        result = open_store(&store, &zr_state_store_nvme, &layout, &variants[0], options, SIZE_MAX / 2);
    if (!tap_ok(result == ZR_OK && clear_all(&store) == ZR_OK, "a store whose units lie twice"))
        return;
    zr_os_clock_set(hasty_clock);
    result = zr_state_file_begin_ahead(&store, order, UNITS);
    for (unsigned i = 0; i < UNITS && result == ZR_OK; i++) {
        result = zr_state_file_take_ahead(&store, order[i], &view);
        if (result == ZR_OK)
            view.master[0] = 100 + (float)order[i];
        if (order[i] == 1)
            zr_fault_set(ZR_FAULT_DISK_STALL, 1);
        if (result == ZR_OK)
            result = zr_state_file_give_ahead(&store);
        zr_state_file_keep_ahead(&store, order[i]);
    }
    zr_state_file_end_ahead(&store);
    for (unsigned pass = 0; pass < 2 && result == ZR_OK; pass++) {
        result = zr_state_store_begin(&store);
        for (size_t u = 0; u < UNITS && result == ZR_OK; u++) {
            result = zr_state_store_take(&store, u, &view);
            if (result == ZR_OK && pass == 1 && view.master[0] != 100 + (float)u)
                result = ZR_ERR_CORRUPT;
            zr_state_store_give(&store, u, true);
        }
        zr_state_store_end(&store);
    }
    tap_result(result, ZR_OK, "a pass in another order waits for what was written ahead of the one before");
    zr_fault_set(ZR_FAULT_DISK_STALL, 0);
    zr_os_clock_set(NULL);
    zr_state_store_close(&store);
    zr_layout_end(&layout);
}

static void test_misuse(const struct zr_offload_file *options)
{
    struct zr_state_store store;
    struct zr_state_view view;
    struct zr_layout layout;
    if (!tap_ok(make_layout(&layout, &variants[1]) == ZR_OK &&
                    open_store(&store, &zr_state_store_nvme, &layout, &variants[1], options, 0) == ZR_OK,
                "a store to misuse"))
        return;
    zr_state_store_begin(&store);
    tap_result(zr_state_store_begin(&store), ZR_ERR_INVALID, "one pass at a time");
    tap_result(zr_state_store_take(&store, 1, &view), ZR_ERR_INVALID, "in the order of the units");
    tap_ok(zr_state_store_give(&store, 1, true) == ZR_OK && strstr(zr_last_error(), "unit 0 is next"),
           "what was not taken is given back without other words");
    zr_state_store_end(&store);
    zr_state_store_close(&store);
    struct zr_offload_file missing = {.folder = "/nowhere/at/all", .depth = 4};
    tap_result(open_store(&store, &zr_state_store_nvme, &layout, &variants[1], &missing, 0), ZR_ERR_IO,
               "a folder that is missing");
    zr_layout_end(&layout);
}

int main(void)
{
    zr_backend *backend = NULL;
    struct zr_host_options host = {.granule_bytes = (size_t)64 << 10};
    size_t left = 1, left_records = 1;
    uint64_t random = run_seed();
    alarm(120);
    if (!mkdtemp(folder) || zr_backend_host_create(&backend, &host) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK ||
        zr_arena_create(&records, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return tap_ok(false, "arenas and a folder: %s", zr_last_error()), tap_done();
    const struct zr_offload_file options = {.folder = folder, .force = true, .depth = 4};
    for (unsigned v = 0; v < VARIANTS; v++)
        test_same_bits(&variants[v], &options, &random);
    test_clock();
    test_faults(&options);
    test_pass_behind_ahead(&options);
    test_misuse(&options);
    zr_arena_destroy(arena, &left);
    zr_arena_destroy(records, &left_records);
    tap_is(left + left_records, 0, "nothing is left in the arenas");
    zr_backend_destroy(backend);
    rmdir(folder);
    return tap_done();
}
