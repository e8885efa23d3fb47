/* recorder_test.c: what the flight recorder writes at a failure is the end of what a trace of the whole run
 * has, with the state before it; and it harms nobody. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"
#include "alloc/telemetry/recorder.h"
#include "alloc/plan/plan.h"
#include "defrag/trace/formats/zrt.h"
#include "tests/support/arena_support.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/seed.h"

enum { UNITS = 1 << 18, BLOCKS = 300, EVENTS_MAX = 1 << 17 };
#define RESERVE ((size_t)UNITS * ZR_UNIT_BYTES)

static char folder[64] = "/tmp/zr-recorder-test-XXXXXX";
static uint64_t random_state, made_up_ns = 1;
static struct zrt_reader reader;

/* What a trace comes to: the blocks by address, and the granules. */
struct state {
    struct zrt_event blocks[UNITS]; /* bytes 0: none */
    unsigned char mapped[RESERVE / GRANULE];
};
static struct state whole, part;
static struct zrt_event events[EVENTS_MAX];

static uint64_t made_up_clock(void)
{
    return made_up_ns += 1000;
}

static uint64_t draw(uint64_t below)
{
    return xorshift64(&random_state) % below;
}

static void apply(struct state *state, const struct zrt_event *event)
{
    struct zrt_event *block = &state->blocks[event->offset_bytes / ZR_UNIT_BYTES];
    if (event->kind == ZRT_ALLOC)
        *block = *event;
    else if (event->kind == ZRT_FREE)
        block->bytes = 0;
    else if (event->kind == ZRT_MAP || event->kind == ZRT_UNMAP)
        memset(&state->mapped[event->offset_bytes / GRANULE], event->kind == ZRT_MAP, event->bytes / GRANULE);
}

static bool same_block(const struct zrt_event *a, const struct zrt_event *b)
{
    return a->bytes == b->bytes && (a->bytes == 0 || (a->reserved_bytes == b->reserved_bytes &&
                                                      a->tag == b->tag && a->stream == b->stream));
}

static bool same_state(void)
{
    size_t wrong = 0;
    for (size_t i = 0; i < UNITS; i++)
        wrong += !same_block(&whole.blocks[i], &part.blocks[i]);
    if (wrong > 0)
        tap_note("%zu addresses are wrong", wrong);
    return wrong == 0 && memcmp(whole.mapped, part.mapped, sizeof whole.mapped) == 0;
}

static bool is_change(const struct zrt_event *event)
{
    return event->kind >= ZRT_ALLOC && event->kind <= ZRT_UNMAP;
}

/* The changes of the file into `events`, after what it begins with into *state; the last event into *last. */
static size_t read_file(const char *path, struct state *state, struct zrt_event *last)
{
    struct zrt_event event;
    size_t count = 0;
    bool more = false, begun = false;
    memset(state, 0, sizeof *state);
    memset(last, 0, sizeof *last);
    if (zrt_open(&reader, path) != ZR_OK) {
        tap_note("%s", zr_last_error());
        return 0;
    }
    while (zrt_next(&reader, &event, &more) == ZR_OK && more) {
        begun = begun || event.kind == ZRT_BEGIN;
        if (!begun)
            apply(state, &event);
        else if (is_change(&event) && count < EVENTS_MAX)
            events[count++] = event;
        *last = event;
    }
    zrt_close(&reader);
    return count;
}

/* The file that the last words name; "" if they name none. */
static const char *named_file(void)
{
    static char path[512];
    const char *at = strstr(zr_last_error(), "zr why ");
    snprintf(path, sizeof path, "%s", at ? at + strlen("zr why ") : "");
    return path;
}

/* ---- The file is the end of the trace ------------------------------------------------------------------ */

static void churn(zr_arena *arena, unsigned steps)
{
    static void *blocks[BLOCKS];
    for (unsigned i = 0; i < steps; i++) {
        void **block = &blocks[draw(BLOCKS)];
        struct zr_request request = {
            .bytes = 1 + draw(draw(8) ? 4000 : 120000), .tag = (zr_tag)draw(ZR_TAG_COUNT), .stream = draw(3)};
        if (*block) {
            zr_arena_free(arena, *block);
            *block = NULL;
        } else if (zr_arena_alloc(arena, &request, block) != ZR_OK) {
            *block = NULL;
        }
        if (draw(500) == 0)
            zr_arena_trim(arena, 0, NULL);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[i] = NULL; /* the arena ends with them */
}

struct run {
    const char *name, *option;
    unsigned steps;
    bool host, lost; /* the ring is too small for them all */
};

static void check_run(const struct run *run)
{
    static struct zrt_event all[EVENTS_MAX];
    struct setting setting = {.host = run->host, .granule_bytes = GRANULE};
    char trace[128];
    zr_arena *arena = NULL;
    void *block;
    struct zrt_event last;
    snprintf(trace, sizeof trace, "%s/whole.zrt", folder);
    zr_option_set(run->option);
    zr_backend *backend = backend_of(&setting);
    zr_arena_create(
        &arena, &(struct zr_arena_options){.backend = backend, .name = "a/b c", .reserve_bytes = RESERVE});
    zr_trace_start(arena, trace);
    for (unsigned i = 0; i < 5; i++) /* that no event in the ring names, once it has wrapped */
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 1000 + i, .tag = (zr_tag)i, .stream = i}, &block);
    churn(arena, run->steps);
    struct zr_request request = {.bytes = RESERVE, .tag = ZR_TAG_GRAD, .stream = 2};
    tap_result(zr_arena_alloc(arena, &request, &block), ZR_ERR_ADDRESSES, "%s: a request fails", run->name);
    const char *path = named_file();
    struct stat status = {0};
    tap_ok(*path && stat(path, &status) == 0 && (status.st_mode & 0777) == 0600,
           "%s: it names a file, mode 0600: %s", run->name, path);
    zr_trace_stop(arena);
    size_t all_count = read_file(trace, &whole, &last);
    memcpy(all, events, all_count * sizeof *all);
    size_t count = read_file(path, &part, &last);
    tap_ok(count > 0 && count <= all_count && (count < all_count) == run->lost,
           "%s: %zu of %zu events are in it", run->name, count, all_count);
    size_t wrong = 0;
    for (size_t i = 0; i < all_count - count; i++)
        apply(&whole, &all[i]);
    tap_ok(same_state(), "%s: it begins with what was there before them", run->name);
    for (size_t i = 0; i < count; i++) {
        const struct zrt_event *got = &events[i], *want = &all[all_count - count + i];
        wrong += got->kind != want->kind || got->offset_bytes != want->offset_bytes ||
                 got->bytes != want->bytes || got->tag != want->tag || got->stream != want->stream ||
                 got->thread != want->thread;
    }
    tap_is(wrong, 0, "%s: each event is the trace's", run->name);
    tap_ok(last.kind == ZRT_REFUSED && last.bytes == RESERVE && last.tag == ZR_TAG_GRAD && last.stream == 2 &&
               last.refusal.cause == ZRT_CAUSE_ADDRESSES && last.refusal.need_bytes == RESERVE,
           "%s: and it ends with the request and its cause", run->name);
    unlink(path);
    size_t leaked;
    tap_result(zr_arena_destroy(arena, &leaked), ZR_OK, "%s: the arena ends", run->name);
    zr_backend_destroy(backend);
    zr_option_set(NULL);
}

/* ---- Causes, and how often ----------------------------------------------------------------------------- */

struct failure {
    const char *name;
    size_t limit_bytes, tag_bytes; /* 0: none */
    size_t fill_bytes, keep_every; /* blocks, of which every so many stay; 0: all */
    size_t ask_bytes;
    enum zrt_cause cause;
};

static void check_cause(const struct failure *failure)
{
    struct setting setting = {.granule_bytes = GRANULE};
    zr_backend *backend = backend_of(&setting);
    zr_arena *arena = NULL;
    void *blocks[64] = {0}, *block;
    struct zrt_event last = {0};
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                       .name = "causes",
                                                       .reserve_bytes = RESERVE,
                                                       .limit_bytes = failure->limit_bytes});
    struct zr_tag_limits limits = {.total_bytes = SIZE_MAX};
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        limits.by_tag_bytes[tag] = failure->tag_bytes;
    if (failure->tag_bytes > 0)
        zr_arena_set_tag_limits(arena, &limits);
    for (size_t i = 0; failure->fill_bytes > 0 && i < 64; i++)
        zr_arena_alloc(arena, &(struct zr_request){.bytes = failure->fill_bytes, .tag = ZR_TAG_PARAM},
                       &blocks[i]);
    for (size_t i = 0; i < 64; i++)
        if (failure->keep_every > 0 && i % failure->keep_every != 0)
            zr_arena_free(arena, blocks[i]);
    struct zr_request request = {.bytes = failure->ask_bytes, .tag = ZR_TAG_PARAM};
    tap_ok(zr_arena_alloc(arena, &request, &block) != ZR_OK, "%s: the request fails", failure->name);
    read_file(named_file(), &part, &last);
    if (!tap_ok(last.kind == ZRT_REFUSED && last.refusal.cause == failure->cause,
                "%s: the file has the cause", failure->name))
        tap_note("cause %d in '%s', words: %s", last.refusal.cause, named_file(), zr_last_error());
    tap_ok(failure->limit_bytes == 0 || last.refusal.limit_bytes == failure->limit_bytes, "%s: and the limit",
           failure->name);
    unlink(named_file());
    /* Within the minute, none; held, none; a minute later one again. */
    zr_arena_alloc(arena, &request, &block);
    tap_ok(!*named_file(), "%s: a second failure writes none", failure->name);
    made_up_ns += UINT64_C(61000000000);
    zr_recorder_suppressed = true;
    zr_arena_alloc(arena, &request, &block);
    tap_ok(!*named_file(), "%s: nor one that is not the last word", failure->name);
    zr_recorder_suppressed = false;
    size_t leaked;
    zr_arena_destroy(arena, &leaked);
    zr_backend_destroy(backend);
}

static void check_causes(void)
{
    static const struct failure failures[] = {
        {"limit", 4 << 20, 0, 0, 0, 8 << 20, ZRT_CAUSE_LIMIT},
        {"fragmentation", 4 << 20, 0, GRANULE - ZR_UNIT_BYTES, 2, 1 << 20, ZRT_CAUSE_FRAGMENTATION},
        {"tag limit", 0, 1 << 20, 0, 0, 2 << 20, ZRT_CAUSE_TAG_LIMIT},
        {"addresses", 0, 0, 0, 0, RESERVE + GRANULE, ZRT_CAUSE_ADDRESSES},
    };
    zr_option_set("recorder:64k");
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        check_cause(&failures[i]);
    zr_option_set(NULL);
}

/* ---- What goes wrong in it ----------------------------------------------------------------------------- */

/* Links to nothing have the names that the next files would get. */
static void check_links(void)
{
    enum { LINKS = 40 };
    struct setting setting = {.granule_bytes = GRANULE};
    char link[LINKS][128];
    zr_arena *arena = NULL;
    void *block;
    unsigned linked = 0;
    for (unsigned i = 0; i < LINKS; i++) {
        snprintf(link[i], sizeof link[i], "%s/zr-%ld-linked-%u.zrt", folder, (long)getpid(), i + 1);
        linked += symlink("nowhere", link[i]) == 0;
    }
    tap_is(linked, LINKS, "links to nothing");
    zr_option_set("recorder:64k");
    zr_backend *backend = backend_of(&setting);
    zr_arena_create(
        &arena, &(struct zr_arena_options){.backend = backend, .name = "linked", .reserve_bytes = RESERVE});
    tap_result(zr_arena_alloc(arena, &(struct zr_request){.bytes = 2 * RESERVE}, &block), ZR_ERR_ADDRESSES,
               "a request fails");
    const char *path = named_file();
    tap_ok(strstr(path, "-41.zrt") && unlink(path) == 0, "its file has the next free number: %s", path);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    for (unsigned i = 0; i < LINKS; i++)
        unlink(link[i]);
}

static void check_faults(void)
{
    struct setting setting = {.granule_bytes = GRANULE};
    zr_backend *backend = backend_of(&setting);
    static const unsigned sites[] = {ZR_FAULT_METADATA, ZR_FAULT_OPEN, ZR_FAULT_WRITE, ZR_FAULT_DESCRIPTOR,
                                     ZR_FAULT_DESCRIPTOR | ZR_FAULT_TWICE};
    zr_option_set("recorder:64k");
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        zr_arena *arena = NULL;
        void *block = &arena;
        size_t leaked;
        int before = open_descriptors();
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = RESERVE});
        zr_fault_set(sites[i], 1);
        zr_result result = zr_arena_alloc(arena, &(struct zr_request){.bytes = 2 * RESERVE}, &block);
        zr_fault_set(sites[i], 0);
        tap_ok(result == ZR_ERR_ADDRESSES || (sites[i] == ZR_FAULT_METADATA && result == ZR_ERR_HOST_MEMORY),
               "without %s the request fails as it would", zr_fault_site_name(sites[i]));
        tap_ok(!block && !*named_file() &&
                   (result != ZR_ERR_ADDRESSES || strstr(zr_last_error(), "What would help")),
               "and names no file: %s", zr_last_error());
        tap_is(folder_entries(folder), 0, "and leaves none");
        zr_arena_destroy(arena, &leaked);
        tap_is(open_descriptors(), before, "nor a descriptor");
    }
    zr_backend_destroy(backend);
    zr_option_set(NULL);
}

/* A file that has no room for its end. In a child: a process makes eight files at most. */
static int fill_disk(void)
{
    struct setting setting = {.granule_bytes = GRANULE};
    zr_arena *arena = NULL;
    void *block;
    zr_option_set("recorder:16m");
    zr_backend *backend = backend_of(&setting);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = RESERVE});
    churn(arena, 250000);
    zr_fault_set(ZR_FAULT_WRITE, 2); /* behind its first MiB */
    zr_result result = zr_arena_alloc(arena, &(struct zr_request){.bytes = 2 * RESERVE}, &block);
    if (zr_fault_set(ZR_FAULT_WRITE, 0) != 2)
        return 1;
    return result == ZR_ERR_ADDRESSES && !*named_file() && folder_entries(folder) == 0 ? 0 : 2;
}

/* After those of the tests before this one. */
static void check_full(void)
{
    struct setting setting = {.granule_bytes = GRANULE};
    zr_arena *arena = NULL;
    void *block;
    zr_option_set("recorder:64k");
    zr_backend *backend = backend_of(&setting);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = RESERVE});
    tap_result(zr_arena_alloc(arena, &(struct zr_request){.bytes = 2 * RESERVE}, &block), ZR_ERR_ADDRESSES,
               "a request fails");
    tap_ok(!*named_file() && folder_entries(folder) == 0, "a ninth file is not made");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    zr_option_set(NULL);
}

int main(void)
{
    static const struct run runs[] = {
        {"all in the ring", "recorder:4m", 2000, false, false},
        {"the ring wraps", "recorder:64k", 20000, false, true},
        {"on real memory", "recorder:64k", 4000, true, true},
    };
    random_state = run_seed();
    if (!mkdtemp(folder))
        return 1;
    zr_option_set(NULL);
    zr_folders_set(folder, NULL);
    zr_os_clock_set(made_up_clock);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        check_run(&runs[i]);
    char trace[128];
    snprintf(trace, sizeof trace, "%s/whole.zrt", folder);
    unlink(trace);
    check_links();
    check_faults();
    tap_is(in_child(fill_disk), 0, "a disk that is full behind the first MiB: no file is named or left");
    check_causes();
    check_full();
    rmdir(folder);
    return tap_done();
}
