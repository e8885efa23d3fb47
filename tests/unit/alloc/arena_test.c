/* arena_test.c: the arena by hand, on sim and host: hostile arguments, what memory a request takes, peaks,
 * canaries, other processes, limits of the machine. At random: shadow_test.c; reports: report_test.c.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/core/arena.h"
#include "alloc/core/bins.h"
#include "alloc/base/option.h"
#include "alloc/core/registry.h"
#include "alloc/plan/plan.h"
#include "tests/support/arena_support.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"

/* ---- Hostile arguments --------------------------------------------------------------------------------- */

struct pair {
    zr_backend *backend;
    zr_arena *arena;
};

static struct pair make_pair(const struct setting *setting)
{
    struct pair pair = {.backend = backend_of(setting)};
    if (zr_arena_create(&pair.arena, &(struct zr_arena_options){.backend = pair.backend,
                                                                .limit_bytes = setting->limit_bytes}) !=
        ZR_OK)
        tap_note("%s", zr_last_error());
    return pair;
}

static size_t end_pair(struct pair *pair)
{
    size_t leaked = 0;
    zr_arena_destroy(pair->arena, &leaked);
    if (zr_backend_destroy(pair->backend) != ZR_OK)
        tap_ok(false, "the backend ends: %s", zr_last_error());
    return leaked;
}

static void *take(zr_arena *arena, size_t bytes)
{
    void *block = NULL;
    zr_result result = zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes}, &block);
    if (result != ZR_OK)
        tap_note("%zu bytes: %s", bytes, zr_last_error());
    return block;
}

static zr_result try(zr_arena *arena, const struct zr_request *request)
{
    void *block = (void *)1;
    zr_result result = zr_arena_alloc(arena, request, &block);
    if (result == ZR_OK)
        zr_arena_free(arena, block);
    else if (block)
        tap_ok(false, "a failed allocation leaves NULL");
    return result;
}

static void test_arguments(void)
{
    struct setting setting = {"host", true, GRANULE, 0, 0, false};
    struct pair pair = make_pair(&setting);
    zr_arena *none = (zr_arena *)1;
    void *out;
    tap_result(try(pair.arena, &(struct zr_request){.bytes = SIZE_MAX}), ZR_ERR_INVALID,
               "all the bytes there are");
    tap_result(try(pair.arena, &(struct zr_request){.bytes = SIZE_MAX - 255}), ZR_ERR_INVALID, "overflow");
    tap_result(try(pair.arena, &(struct zr_request){.bytes = (size_t)1 << 62}), ZR_ERR_ADDRESSES,
               "more than the addresses");
    tap_ok(strstr(zr_last_error(), "shortage") != NULL, "the words say shortage: %s", zr_last_error());
    tap_is(zr_bins_index(SIZE_MAX), ZR_BINS_COUNT - 1, "holes of every size there is have a bin");
    bool refused = true;
    for (unsigned power = 49; power < 63; power++)
        for (unsigned part = 0; part < 16; part++) {
            struct zr_request request = {.bytes = ((size_t)16 + part) << (power - 4)};
            zr_result result = zr_arena_alloc(pair.arena, &request, &out);
            refused &= result == ZR_ERR_ADDRESSES && out == NULL;
        }
    tap_ok(refused, "sixteenths of powers of two from 2^49 to 2^63: too large, each");
    tap_result(try(pair.arena, &(struct zr_request){.bytes = 1, .alignment = 3}), ZR_ERR_INVALID,
               "alignment 3");
    tap_result(zr_arena_alloc(NULL, &(struct zr_request){.bytes = 1}, &out), ZR_ERR_INVALID, "no arena");
    tap_result(zr_arena_alloc(pair.arena, NULL, &out), ZR_ERR_INVALID, "no request");
    tap_result(zr_arena_alloc(pair.arena, &(struct zr_request){.bytes = 1}, NULL), ZR_ERR_INVALID, "no out");
    tap_result(zr_arena_create(&none, NULL), ZR_ERR_INVALID, "an arena without options");
    tap_ok(none == NULL, "leaves NULL");
    tap_result(zr_arena_create(&none, &(struct zr_arena_options){.backend = NULL}), ZR_ERR_INVALID,
               "an arena without a backend");
    tap_result(zr_arena_create(
                   &none, &(struct zr_arena_options){.backend = pair.backend, .reserve_bytes = SIZE_MAX - 5}),
               ZR_ERR_INVALID, "a reservation that overflows");
    tap_result(zr_backend_destroy(pair.backend), ZR_ERR_INVALID, "a backend under an arena stays");
    tap_result(zr_backend_destroy(NULL), ZR_OK, "no backend is no matter");
    tap_result(zr_arena_destroy(NULL, NULL), ZR_OK, "nor is no arena");
    tap_ok(zr_arena_backend(NULL) == NULL && zr_arena_backend(pair.arena) == pair.backend, "whose backend");
    tap_result(zr_arena_trim(NULL, 0, NULL), ZR_ERR_INVALID, "trim nothing");
    tap_result(zr_arena_check(NULL), ZR_ERR_INVALID, "check nothing");
    tap_result(zr_arena_get_stats(pair.arena, NULL), ZR_ERR_INVALID, "statistics to nowhere");
    tap_result(zr_arena_reset_peaks(NULL), ZR_ERR_INVALID, "no peaks");
    tap_is(end_pair(&pair), 0, "nothing leaked");
}

static void test_frees(void)
{
    struct setting setting = {"host", true, GRANULE, 0, 0, false};
    struct pair pair = make_pair(&setting), second = make_pair(&setting);
    struct zr_block_info info;
    char local;
    char *a = take(pair.arena, 1000), *b = take(pair.arena, 3 * GRANULE), *foreign = take(second.arena, 10);
    tap_result(zr_arena_free(pair.arena, NULL), ZR_OK, "free(NULL)");
    tap_result(zr_arena_free(NULL, a), ZR_ERR_INVALID, "free without an arena");
    tap_result(zr_arena_free(pair.arena, a + 256), ZR_ERR_FOREIGN, "an interior pointer");
    tap_ok(strstr(zr_last_error(), "inside") != NULL, "is called that: %s", zr_last_error());
    tap_result(zr_arena_free(pair.arena, a + 1), ZR_ERR_FOREIGN, "an unaligned one");
    tap_result(zr_arena_free(pair.arena, &local), ZR_ERR_FOREIGN, "the stack");
    tap_result(zr_arena_free(pair.arena, foreign), ZR_ERR_FOREIGN, "another arena's block");
    tap_result(zr_arena_free(pair.arena, (void *)8), ZR_ERR_FOREIGN, "address 8");
    tap_result(zr_arena_free(pair.arena, (void *)UINTPTR_MAX), ZR_ERR_FOREIGN, "the last address");
    tap_result(zr_arena_free(pair.arena, b + 10 * GRANULE), ZR_ERR_FOREIGN, "where nothing ever was");
    tap_result(zr_arena_find(pair.arena, a + 999, &info), ZR_OK, "the last byte is found");
    tap_ok(info.address == a && info.bytes == 1000 && info.reserved_bytes >= 1000, "in its block");
    tap_result(zr_arena_find(pair.arena, b + 2 * GRANULE + 7, &info), ZR_OK, "deep inside a long block");
    tap_ok(info.address == b, "in its block too");
    tap_result(zr_arena_find(pair.arena, &local, &info), ZR_ERR_FOREIGN, "the stack is in no block");
    tap_result(zr_arena_free(pair.arena, a), ZR_OK, "free");
    tap_result(zr_arena_free(pair.arena, a), ZR_ERR_DOUBLE_FREE, "and again");
    tap_result(zr_arena_find(pair.arena, a, &info), ZR_ERR_FOREIGN, "what was freed is not found");
    tap_result(zr_arena_free(pair.arena, b), ZR_OK, "the long one");
    tap_result(zr_arena_free(pair.arena, b), ZR_ERR_DOUBLE_FREE, "and again, merged with its neighbour");
    tap_result(zr_arena_check(pair.arena), ZR_OK, "sound after all of it");
    tap_is(end_pair(&pair), 0, "nothing leaked");
    tap_ok(end_pair(&second) >= 10, "the other arena tells what was left live");
}

/* ---- Physical memory ----------------------------------------------------------------------------------- */

static struct zr_arena_stats stats_of(zr_arena *arena)
{
    struct zr_arena_stats stats = {0};
    zr_arena_get_stats(arena, &stats);
    return stats;
}

/* A large block lies on runs of several granules: who wants less than a run takes one. */
static void test_runs(void)
{
    struct setting setting = {"sim", false, GRANULE, 0, 0, false};
    struct pair pair = make_pair(&setting);
    size_t released;
    zr_arena_free(pair.arena, take(pair.arena, 1024 * GRANULE));
    zr_arena_trim(pair.arena, 1023 * GRANULE, &released);
    size_t left = stats_of(pair.arena).reserved_bytes;
    tap_ok(left <= 1023 * GRANULE && left >= 1020 * GRANULE && left + released == 1024 * GRANULE,
           "at most what was to be kept remains: %zu granules", left / GRANULE);
    end_pair(&pair);
    setting.limit_bytes = 1024 * GRANULE;
    pair = make_pair(&setting);
    zr_arena_free(pair.arena, take(pair.arena, 1024 * GRANULE));
    tap_ok(take(pair.arena, GRANULE + 256) != NULL, "at the limit, a short need breaks up a run");
    left = stats_of(pair.arena).reserved_bytes;
    tap_ok(left >= 1020 * GRANULE, "and no more of them than it takes: %zu granules", left / GRANULE);
    end_pair(&pair);
}

/* Two holes of two granules each serve one block of four: no memory is created, none is copied. */
static void test_stealing(void)
{
    struct setting setting = {"host", true, GRANULE, 7 * GRANULE, 0, false};
    struct pair pair = make_pair(&setting);
    char *keep[3], *hole[2];
    for (int i = 0; i < 2; i++) {
        keep[i] = take(pair.arena, GRANULE);
        hole[i] = take(pair.arena, 2 * GRANULE);
    }
    keep[2] = take(pair.arena, GRANULE);
    for (int i = 0; i < 3; i++)
        memset(keep[i], 'a' + i, GRANULE);
    for (int i = 0; i < 2; i++)
        zr_arena_free(pair.arena, hole[i]);
    char *large = take(pair.arena, 4 * GRANULE);
    tap_ok(large != NULL, "four granules from two holes of two, at the limit");
    memset(large, 'x', 4 * GRANULE);
    bool same = true;
    for (int i = 0; i < 3; i++)
        for (size_t at = 0; at < GRANULE; at++)
            same = same && keep[i][at] == 'a' + i;
    tap_ok(same, "the live blocks kept their bytes");
    tap_is(stats_of(pair.arena).reserved_bytes, 7 * GRANULE, "nothing more is reserved");
    tap_is(stats_of(pair.arena).stranded_bytes, 0, "nothing is stranded");
    tap_ok(take(pair.arena, 1) == NULL && strstr(zr_last_error(), "shortage") != NULL,
           "not one byte more, and the words say shortage");
    zr_arena_free(pair.arena, large);
    char *back = take(pair.arena, 2 * GRANULE);
    tap_ok(back == hole[0] || back == hole[1] || back == large, "a stolen hole can be filled again");
    tap_result(zr_arena_check(pair.arena), ZR_OK, "sound");
    end_pair(&pair);
}

static void test_peaks(void)
{
    struct setting setting = {"sim", false, GRANULE, 0, 0, false};
    struct pair pair = make_pair(&setting);
    void *a, *b, *c;
    zr_arena_alloc(pair.arena, &(struct zr_request){.bytes = 1024, .tag = ZR_TAG_PARAM}, &a);
    zr_arena_alloc(pair.arena, &(struct zr_request){.bytes = 1024, .tag = ZR_TAG_GRAD}, &b);
    zr_arena_free(pair.arena, b);
    zr_arena_alloc(pair.arena, &(struct zr_request){.bytes = 1024, .tag = ZR_TAG_COMM}, &c);
    struct zr_arena_stats stats = stats_of(pair.arena);
    tap_ok(stats.peak_live_bytes == 2048 && stats.peak_by_tag_bytes[ZR_TAG_GRAD] == 1024 &&
               stats.peak_by_tag_bytes[ZR_TAG_COMM] == 0,
           "the first of two equal peaks is the one that is shown");
    zr_arena_reset_peaks(pair.arena);
    stats = stats_of(pair.arena);
    tap_ok(stats.peak_by_tag_bytes[ZR_TAG_COMM] == 1024 && stats.peak_by_tag_bytes[ZR_TAG_GRAD] == 0 &&
               stats.peak_live_bytes == 2048,
           "peaks start anew from the present");
    uint64_t number;
    char name[64];
    bool found = false;
    for (unsigned i = 0; i < 4 && !found; i++) {
        snprintf(name, sizeof name, "arena.%u.tag.comm.live_bytes", i);
        found = zr_ctl_get(name, &number) == ZR_OK && number == 1024;
    }
    tap_ok(found, "%s is 1024", name);
    tap_result(zr_ctl_get("option.check", &number), ZR_OK, "option.check has a value");
    const char *bad[] = {"",
                         ".",
                         "arena",
                         "arena.",
                         "arena.0",
                         "arena.0.",
                         "arena.99999.live_bytes",
                         "arena.x.y",
                         "arena.0.tag.nobody.live_bytes",
                         "arena.0.tag.grad.x",
                         "option.",
                         "option.nothing"};
    unsigned refused = 0;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        refused += zr_ctl_get(bad[i], &number) == ZR_ERR_INVALID;
    tap_is(refused, sizeof bad / sizeof *bad, "names that nothing has are refused");
    end_pair(&pair);
}

/* Terabytes on sim: runs of granules, not granules. */
static void test_trillions(void)
{
    zr_backend *backend;
    zr_arena *arena;
    zr_backend_sim_create(&backend, NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    void *a = take(arena, (size_t)16 << 40), *b = take(arena, (size_t)3 << 40), *c = take(arena, 12345);
    tap_ok(a && b && c, "16 TiB, 3 TiB and a little");
    tap_ok(stats_of(arena).backend_calls_count < 2000, "in %llu driver calls",
           (unsigned long long)stats_of(arena).backend_calls_count);
    zr_arena_free(arena, a);
    tap_ok((a = take(arena, (size_t)15 << 40)) != NULL, "15 TiB again");
    tap_is(stats_of(arena).reserved_bytes >> 40, 19, "in the same memory");
    tap_result(zr_arena_check(arena), ZR_OK, "sound");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

/* ---- Check level 3 ------------------------------------------------------------------------------------- */

static void test_canary(void)
{
    struct setting setting = {"host", true, GRANULE, 0, 0, false};
    zr_option_set("check:3,poison:off");
    struct pair pair = make_pair(&setting);
    char *block = take(pair.arena, 256);
    block[256] ^= 1;
    tap_result(zr_arena_free(pair.arena, block), ZR_ERR_CORRUPT,
               "one byte past the end is caught at the free");
    tap_ok(strstr(zr_last_error(), "past the end") != NULL, "in words: %s", zr_last_error());
    tap_is(stats_of(pair.arena).live_bytes, 0, "the block is freed all the same");
    block = take(pair.arena, 250);
    memset(block, 1, 250);
    tap_result(zr_arena_free(pair.arena, block), ZR_OK, "the last byte itself is no matter");
    end_pair(&pair);
    zr_option_set(NULL);
}

enum { PLANNED = 4 };
static const size_t planned_bytes[PLANNED] = {256, 250, 5000, 240};

/* With the canary, in units. */
static size_t planned_room(const struct pair *pair, unsigned i)
{
    return (planned_bytes[i] + zr_arena_plan_rules(pair->arena).canary_bytes + 255) / 256 * 256;
}

/* The blocks of one step, every byte of theirs written, all where they are planned. */
static bool take_planned(const struct pair *pair, char **blocks)
{
    bool good = true;
    for (unsigned i = 0; i < PLANNED; i++) {
        blocks[i] = take(pair->arena, planned_bytes[i]);
        memset(blocks[i], 0xa5, planned_bytes[i]);
        good &= i == 0 || blocks[i] - blocks[i - 1] == (ptrdiff_t)planned_room(pair, i - 1);
    }
    return good;
}

/* Frees them; those that were found damaged, a bit each. */
static unsigned free_planned(zr_arena *arena, char **blocks)
{
    unsigned damaged = 0;
    for (unsigned i = 0; i < PLANNED; i++)
        damaged |= (zr_arena_free(arena, blocks[i]) == ZR_ERR_CORRUPT) << i;
    return damaged;
}

static void test_planned_canary(void)
{
    static const struct {
        const char *what;
        unsigned block;
        ptrdiff_t at;
        unsigned damaged; /* who tells: an underrun is the neighbour's */
    } rows[] = {{"nothing", 0, 0, 0},
                {"the first byte past the end", 0, 256, 1 << 0},
                {"past an end that is not aligned", 1, 250, 1 << 1},
                {"the last of a canary", 2, 5119, 1 << 2},
                {"past the last block", 3, 255, 1 << 3},
                {"the byte before a block", 2, -1, 1 << 1},
                {"nothing, after all that", 0, 0, 0}};
    struct zr_plan_step steps[PLANNED];
    struct zr_executor_counts counts;
    char *blocks[PLANNED];
    zr_option_set("check:3,poison:off");
    struct pair pair = make_pair(&(struct setting){"host", true, GRANULE, 0, 0, false});
    size_t end_bytes = 0;
    for (unsigned i = 0; i < PLANNED; i++) {
        steps[i] = (struct zr_plan_step){.request = {.bytes = planned_bytes[i], .alignment = 256},
                                         .thread = zr_thread_number(),
                                         .offset_bytes = end_bytes,
                                         .alive_count = PLANNED - i};
        end_bytes += planned_room(&pair, i);
    }
    const struct zr_plan_sequence sequence = {.count = PLANNED, .any = true};
    struct zr_plan plan = {.steps = steps,
                           .steps_count = PLANNED,
                           .sequences = &sequence,
                           .sequences_count = 1,
                           .region_bytes = GRANULE};
    tap_result(zr_arena_install_plan(pair.arena, &plan), ZR_OK, "a plan with canaries: %s", zr_last_error());
    unsigned alarms = 0, beside = 0;
    for (unsigned i = 0; i < 3; i++) {
        beside += !take_planned(&pair, blocks);
        alarms |= free_planned(pair.arena, blocks);
    }
    tap_ok(alarms == 0 && beside == 0, "three steps of it without a false alarm");
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        take_planned(&pair, blocks);
        if (rows[i].at != 0)
            blocks[rows[i].block][rows[i].at] ^= 1;
        tap_is(free_planned(pair.arena, blocks), rows[i].damaged, "planned blocks, written: %s",
               rows[i].what);
    }
    zr_arena_executor_counts(pair.arena, &counts);
    tap_is(counts.planned_count, PLANNED * (3 + sizeof rows / sizeof *rows), "all of them as planned");
    tap_is(stats_of(pair.arena).live_bytes, 0, "and gone");
    tap_result(zr_arena_check(pair.arena), ZR_OK, "sound: %s", zr_last_error());
    end_pair(&pair);
    zr_option_set(NULL);
}

/* ---- Other processes ----------------------------------------------------------------------------------- */

static struct pair shared;
static struct zr_segment segments[16];
static size_t segments_count = 16, lead_bytes;
static char *shared_block;

static int import_and_answer(void)
{
    zr_backend *backend;
    void *imported;
    if (zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = GRANULE}) != ZR_OK ||
        zr_import(backend, segments, segments_count, &imported) != ZR_OK)
        return 1;
    char *block = (char *)imported + lead_bytes;
    if (block == shared_block || strcmp(block, "question") != 0)
        return 2;
    strcpy(block + 3 * GRANULE, "answer");
    if (zr_import_release(backend, block) != ZR_ERR_FOREIGN && lead_bytes)
        return 3;
    return zr_import_release(backend, imported) == ZR_OK && zr_backend_destroy(backend) == ZR_OK ? 0 : 4;
}

/* After fork the granules are shared, and what the child allocates anew is its own. */
static int allocate_after_fork(void)
{
    char *own = take(shared.arena, 5 * GRANULE);
    if (!own || strcmp(shared_block, "question") != 0)
        return 1;
    memset(own, 'c', 5 * GRANULE);
    strcpy(shared_block, "child");
    return zr_arena_check(shared.arena) == ZR_OK ? 0 : 2;
}

static void test_processes(void)
{
    struct setting setting = {"host", true, GRANULE, 0, 0, false};
    shared = make_pair(&setting);
    take(shared.arena, 8192);
    shared_block = take(shared.arena, 4 * GRANULE - 256);
    strcpy(shared_block, "question");
    size_t none = 0;
    tap_result(zr_block_export(shared.arena, shared_block, NULL, &none, &lead_bytes), ZR_ERR_INVALID,
               "an export without room");
    tap_ok(none >= 1, "says how much is needed: %zu", none);
    tap_result(zr_block_export(shared.arena, shared_block + 256, segments, &segments_count, &lead_bytes),
               ZR_ERR_FOREIGN, "an export of no block");
    segments_count = 16;
    tap_result(zr_block_export(shared.arena, shared_block, segments, &segments_count, &lead_bytes), ZR_OK,
               "an export");
    tap_is(lead_bytes, 8192, "the block begins inside its first granule");
    tap_is(segments_count, 1, "neighbours are joined");
    tap_ok((fcntl(segments[0].fd, F_GETFD) & FD_CLOEXEC) != 0, "started programs do not get the descriptor");
    tap_is(in_child(import_and_answer), 0, "another backend imports it and writes");
    tap_ok(strcmp(shared_block + 3 * GRANULE, "answer") == 0, "what it wrote is read here");
    tap_is(in_child(allocate_after_fork), 0, "a child allocates after fork");
    tap_ok(strcmp(shared_block, "child") == 0, "granules from before the fork are shared");
    char *own = take(shared.arena, 5 * GRANULE);
    memset(own, 'p', 5 * GRANULE);
    tap_is(in_child(allocate_after_fork), 1, "the parent's write is there for the next child");
    bool same = true;
    for (size_t i = 0; i < 5 * GRANULE; i++)
        same = same && own[i] == 'p';
    tap_ok(same, "what a child creates is not what its parent creates");
    tap_result(zr_import(shared.backend, segments, 0, (void **)&own), ZR_ERR_INVALID, "an import of nothing");
    segments[0].bytes = (size_t)1 << 50;
    tap_result(zr_import(shared.backend, segments, 1, (void **)&own), ZR_ERR_ADDRESSES,
               "an import of too much");
    segments[0].bytes = 100 * GRANULE;
    tap_result(zr_import(shared.backend, segments, 1, (void **)&own), ZR_ERR_INVALID,
               "an import past the end of the memory");
    segments[0] = (struct zr_segment){.fd = 999, .bytes = GRANULE};
    tap_result(zr_import(shared.backend, segments, 1, (void **)&own), ZR_ERR_INVALID, "an import of no file");
    end_pair(&shared);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static int under_ulimit(void)
{
    zr_backend *backend;
    zr_arena *arena, *too_large;
    struct rlimit limit = {(rlim_t)256 << 20, (rlim_t)256 << 20};
    if (setrlimit(RLIMIT_AS, &limit) != 0 || zr_backend_host_create(&backend, NULL) != ZR_OK)
        return 1;
    if (zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 2;
    char *block = take(arena, 8 << 20);
    if (!block)
        return 3;
    memset(block, 1, 8 << 20);
    if (zr_arena_create(&too_large,
                        &(struct zr_arena_options){.backend = backend, .reserve_bytes = (size_t)1 << 30}) !=
        ZR_ERR_ADDRESSES)
        return 4;
    if (!strstr(zr_last_error(), "ulimit -v unlimited"))
        return 5;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < 64 && result == ZR_OK; i++) {
        void *more;
        result = zr_arena_alloc(arena, &(struct zr_request){.bytes = 8 << 20}, &more);
    }
    if (result != ZR_ERR_ADDRESSES && result != ZR_ERR_MEMORY && result != ZR_ERR_HOST_MEMORY)
        return 6;
    return zr_arena_destroy(arena, NULL) == ZR_OK && zr_backend_destroy(backend) == ZR_OK ? 0 : 7;
}

static int under_file_limit(void)
{
    zr_backend *backend;
    zr_arena *arena;
    void *block;
    struct rlimit limit = {(rlim_t)3 << 20, (rlim_t)3 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 1;
    if (zr_arena_alloc(arena, &(struct zr_request){.bytes = 8 << 20}, &block) != ZR_ERR_MEMORY)
        return 2;
    return strstr(zr_last_error(), "ulimit -f") ? 0 : 3;
}
#endif

static void test_limits(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tap_skip("ulimit -v: a sanitizer reserves terabytes itself");
    tap_skip("ulimit -f: as above");
#else
    tap_is(in_child(under_ulimit), 0, "under ulimit -v an arena adapts, and words say what to type");
    tap_is(in_child(under_file_limit), 0, "under ulimit -f an error, no signal");
#endif
}

/* A free extent of just the size that is asked for, with memory under it and without. */
/* As many addresses as the system agrees to, where nobody has asked for a number. */
static void test_fewer_addresses(void)
{
    size_t whole = 0;
    zr_backend *backend;
    zr_arena *arena;
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 64 << 10});
    for (unsigned refused = 0; refused < 3; refused++) {
        zr_fault_set(ZR_FAULT_RESERVE | (refused == 2 ? ZR_FAULT_TWICE : 0), refused > 0);
        tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}), ZR_OK,
                   "an arena, %u times refused", refused);
        zr_fault_set(ZR_FAULT_RESERVE | (refused == 2 ? ZR_FAULT_TWICE : 0), 0);
        whole = refused ? whole : arena->range_bytes;
        tap_is(arena->range_bytes, whole >> refused, "has half of the addresses each time");
        zr_arena_destroy(arena, NULL);
    }
    zr_fault_set(ZR_FAULT_RESERVE, 1);
    tap_result(
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = 64 << 20}),
        ZR_ERR_ADDRESSES, "one that asks for a number gets that, or none");
    zr_fault_set(ZR_FAULT_RESERVE, 0);
    zr_arena *three[3];
    for (unsigned i = 0; i < 3; i++) {
        if (i == 2)
            zr_arena_destroy(three[0], NULL);
        zr_arena_create(&three[i], &(struct zr_arena_options){.backend = backend});
    }
    tap_ok(three[2]->number == 0 && three[1]->number == 1, "an arena has the least number that is free");
    zr_arena_destroy(three[1], NULL);
    zr_arena_destroy(three[2], NULL);
    tap_result(zr_backend_destroy(backend), ZR_OK, "and leaves nothing");
}

static void test_exact_fit(void)
{
    struct pair pair = make_pair(&(struct setting){.granule_bytes = 64 << 10});
    enum { PART = 40 << 10 };
    char *low = take(pair.arena, PART), *high = take(pair.arena, PART), *wall = take(pair.arena, PART);
    zr_arena_free(pair.arena, low);
    zr_arena_free(pair.arena, high);
    tap_ok(take(pair.arena, (size_t)(wall - low)) == low, "a block fills the free extent of its size");
    enum { LARGE = 8 * (64 << 10) };
    char *large = take(pair.arena, LARGE);
    take(pair.arena, LARGE);
    zr_arena_free(pair.arena, large);
    zr_arena_trim(pair.arena, 0, NULL);
    tap_ok(take(pair.arena, LARGE) == large, "and one whose memory went back to the system");
    end_pair(&pair);
}

/* Idle memory goes back as far as it is asked for, and an arena that a thread is at work on counts as busy.
 */
static void test_reclaim(void)
{
    struct pair pair = make_pair(&(struct setting){.granule_bytes = 64 << 10});
    size_t granule = 64 << 10;
    struct zr_arena_stats stats;
    bool busy = false;
    zr_arena_free(pair.arena, take(pair.arena, 8 * granule));
    tap_ok(zr_reclaim(granule, NULL, &busy) == granule && !busy, "one granule of eight");
    zr_arena_get_stats(pair.arena, &stats);
    tap_is(stats.reserved_bytes, 7 * granule, "leaves seven");
    zr_lock_acquire(&pair.arena->lock);
    tap_ok(zr_reclaim(granule, NULL, &busy) == 0 && busy, "none while a thread allocates, which is told");
    zr_lock_release(&pair.arena->lock);
    busy = false;
    zr_lock_acquire(&pair.arena->supply);
    tap_ok(zr_reclaim(granule, NULL, &busy) == 0 && busy, "nor while one maps memory");
    zr_lock_release(&pair.arena->supply);
    tap_is(zr_reclaim(SIZE_MAX, NULL, &busy), 7 * granule, "and all of it");
    end_pair(&pair);
}

int main(void)
{
    int before = open_descriptors();
    test_exact_fit();
    test_fewer_addresses();
    test_reclaim();
    test_arguments();
    test_frees();
    test_runs();
    test_stealing();
    test_peaks();
    test_trillions();
    test_canary();
    test_planned_canary();
    test_processes();
    test_limits();
    tap_is(open_descriptors(), before, "every descriptor was closed");
    return tap_done();
}
