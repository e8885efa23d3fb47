/* failures_test.c: one call that fails, at each of the first thousand driver calls of a run and more, on sim
 * (with streams that are done at once, and late), host and the emulated GPU: what a caller sees is an error
 * value, the arena's counters stay those of a shadow and of the backend, its later calls work, and nothing is
 * left behind. Some walks take strides here and steps in `failures_test all` (tests/long/long_shadow.t). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "alloc/core/arena.h"
#include "alloc/front/front.h"
#include "tests/support/child.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { SLOTS = 40, STEPS_MAX = 5000, AFTER = 40, DRIVER_CALLS = 1000, RECORDS_STRIDE = 19 };
#ifdef __SANITIZE_THREAD__ /* it clears its shadow of every range that is released, which takes long */
enum { GPU_STRIDE = 101 };
#else
enum { GPU_STRIDE = 7 };
#endif

enum kind { SIM, HOST, GPU };

struct setting {
    const char *name;
    enum kind kind;
    size_t granule_bytes;
    uint64_t work_ns; /* sim: what work in a stream takes */
    size_t limit_granules;
};

static const struct zr_emulator *emulator; /* NULL: not in use yet */
static bool every_one;                     /* no strides */

/* A run, with what it should have. */
struct life {
    const struct setting *setting;
    zr_backend *backend;
    zr_arena *arena;
    uint64_t random;
    unsigned refused; /* calls that failed */
    unsigned wrong;   /* anything that is not as it should be */
    struct {
        char *address;
        size_t bytes, reserved_bytes;
        zr_tag tag;
        char pattern;
    } blocks[SLOTS];
    size_t count, requested_bytes, live_bytes, by_tag[ZR_TAG_COUNT];
};

static uint64_t next_random(struct life *life)
{
    uint64_t z = (life->random += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ (z >> 31);
}

static void wrong(struct life *life, const char *words)
{
    static unsigned noted;
    if (life->wrong++ == 0 && noted++ < 10)
        tap_note("%s: %s: %s", life->setting->name, words, zr_last_error());
}

/* What a failure below may look like above. */
static bool injected(const struct life *life, zr_result result)
{
    return result == ZR_ERR_MEMORY || result == ZR_ERR_ADDRESSES || result == ZR_ERR_HOST_MEMORY ||
           (life->setting->kind == GPU && result == ZR_ERR_UNAVAILABLE);
}

static void step_use(struct life *life, const void *block, uint64_t stream)
{
    zr_result result = zr_block_use(life->arena, block, stream);
    if (result == ZR_OK)
        return;
    life->refused++;
    if (!injected(life, result))
        wrong(life, "no second stream");
}

static void step_alloc(struct life *life, unsigned i)
{
    size_t granule = life->setting->granule_bytes;
    uint64_t dice = next_random(life);
    struct zr_request request = {.bytes = 1 + (dice >> 16) % (dice % 3 ? granule : 7 * granule),
                                 .alignment = dice >> 8 & 7 ? 0 : granule,
                                 .tag = (zr_tag)(dice % ZR_TAG_COUNT),
                                 .stream = dice >> 12 & 1};
    struct zr_block_info info;
    void *block;
    zr_result result = zr_arena_alloc(life->arena, &request, &block);
    if (result != ZR_OK) {
        life->refused++;
        if (block || !injected(life, result))
            wrong(life, "another error than what failed");
        return;
    }
    if (zr_arena_find(life->arena, block, &info) != ZR_OK || info.bytes != request.bytes)
        wrong(life, "not found");
    life->blocks[i].address = block;
    life->blocks[i].bytes = request.bytes;
    life->blocks[i].reserved_bytes = info.reserved_bytes;
    life->blocks[i].tag = request.tag;
    life->blocks[i].pattern = (char)dice;
    life->count++;
    life->requested_bytes += request.bytes;
    life->live_bytes += info.reserved_bytes;
    life->by_tag[request.tag] += info.reserved_bytes;
    if (life->setting->kind == HOST) {
        life->blocks[i].address[0] = (char)dice;
        life->blocks[i].address[request.bytes - 1] = (char)dice;
    }
    if (dice >> 60 < 3)
        step_use(life, block, !request.stream);
}

static void step_free(struct life *life, unsigned i)
{
    const char *address = life->blocks[i].address;
    if (life->setting->kind == HOST && (address[0] != life->blocks[i].pattern ||
                                        address[life->blocks[i].bytes - 1] != life->blocks[i].pattern))
        wrong(life, "a block changed");
    zr_result result = zr_arena_free(life->arena, life->blocks[i].address);
    if (result != ZR_OK) {
        /* A free that cannot have its record changes nothing, and works the next time. */
        life->refused++;
        if (result != ZR_ERR_HOST_MEMORY)
            wrong(life, "a free failed");
        return;
    }
    life->count--;
    life->requested_bytes -= life->blocks[i].bytes;
    life->live_bytes -= life->blocks[i].reserved_bytes;
    life->by_tag[life->blocks[i].tag] -= life->blocks[i].reserved_bytes;
    life->blocks[i].address = NULL;
}

static void check_books(struct life *life)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(life->arena, &stats);
    if (stats.blocks_count != life->count || stats.requested_bytes != life->requested_bytes ||
        stats.live_bytes != life->live_bytes ||
        memcmp(stats.live_by_tag_bytes, life->by_tag, sizeof life->by_tag) != 0)
        wrong(life, "the arena's books are not the shadow's");
    if (stats.reserved_bytes != life->backend->held_bytes ||
        stats.mapped_bytes + stats.cached_bytes != stats.reserved_bytes)
        wrong(life, "nor the backend's");
}

static void step(struct life *life)
{
    uint64_t dice = next_random(life);
    unsigned i = (unsigned)(dice % SLOTS);
    if (life->blocks[i].address)
        step_free(life, i);
    else
        step_alloc(life, i);
    if (dice >> 32 & 1 &&
        zr_arena_trim(life->arena, (dice >> 40) % 4 * life->setting->granule_bytes, NULL) != ZR_OK)
        life->refused++;
    if (life->setting->work_ns)
        zr_sim_clock_advance(life->backend, (dice >> 44) % 256);
    check_books(life);
}

static zr_result create_backend(const struct setting *setting, zr_backend **out)
{
    switch (setting->kind) {
    case HOST:
        return zr_backend_host_create(out,
                                      &(struct zr_host_options){.granule_bytes = setting->granule_bytes});
    case GPU:
        return zr_backend_cuda_create(out,
                                      &(struct zr_cuda_options){.granule_bytes = setting->granule_bytes});
    default:
        return zr_backend_sim_create(out, &(struct zr_sim_options){.granule_bytes = setting->granule_bytes,
                                                                   .work_ns = setting->work_ns});
    }
}

/* False: the backend or the arena could not be had, which is an answer too. */
static bool begin(struct life *life, const struct setting *setting)
{
    *life = (struct life){.setting = setting, .random = 4711};
    zr_result result = create_backend(setting, &life->backend);
    if (result != ZR_OK)
        return false;
    result = zr_arena_create(
        &life->arena,
        &(struct zr_arena_options){.backend = life->backend,
                                   .reserve_bytes = 4096 * setting->granule_bytes,
                                   .limit_bytes = setting->limit_granules * setting->granule_bytes});
    return result == ZR_OK;
}

/* What failed has given its part of the limit back: all of it can be had. */
static void reach_limit(struct life *life)
{
    struct zr_request all = {.bytes = life->setting->limit_granules * life->setting->granule_bytes};
    void *block;
    if (all.bytes == 0 || life->refused == 0)
        return;
    for (unsigned i = 0; i < SLOTS; i++)
        if (life->blocks[i].address)
            step_free(life, i);
    if (life->setting->work_ns)
        zr_sim_clock_advance(life->backend, 2 * life->setting->work_ns);
    zr_arena_trim(life->arena, 0, NULL);
    if (zr_arena_alloc(life->arena, &all, &block) != ZR_OK || zr_arena_free(life->arena, block) != ZR_OK)
        wrong(life, "the limit cannot be reached");
}

static void end(struct life *life)
{
    size_t leaked = 0;
    if (life->arena)
        reach_limit(life);
    if (life->arena) {
        if (zr_arena_check(life->arena) != ZR_OK)
            wrong(life, "unsound");
        if (zr_arena_destroy(life->arena, &leaked) != ZR_OK || leaked != life->live_bytes)
            wrong(life, "the end");
    }
    if (life->backend) {
        if (life->backend->held_bytes != 0)
            wrong(life, "memory is still held");
        if (zr_backend_destroy(life->backend) != ZR_OK)
            wrong(life, "the backend's end");
    }
}

/* ---- The walk ------------------------------------------------------------------------------------------ */

/* What a process has of the system. */
struct footprint {
    size_t address_bytes, shared_bytes, files;
};

static struct footprint footprint(void)
{
    struct zr_resident resident = {0};
    struct footprint now = {0};
    zr_os_resident(&resident);
    now.address_bytes = resident.address_bytes;
    now.shared_bytes = resident.shared_bytes;
    for (int fd = 0; fd < 256; fd++)
        now.files += fcntl(fd, F_GETFD) >= 0;
    return now;
}

static const enum zr_fault_site sites[] = {ZR_FAULT_RESERVE, ZR_FAULT_CREATE, ZR_FAULT_MAP, ZR_FAULT_ACCESS,
                                           ZR_FAULT_METADATA};
/* The kernel counts pages per processor, and may be some of them late. */
#define SLACK_BYTES ((size_t)1 << 20)

enum { SITES = sizeof sites / sizeof *sites, DRIVER_SITES = SITES - 1 };

/* How often each site was passed after each step of a run without failures; [0] is before the first. */
static uint64_t passes[SITES][STEPS_MAX + 1];
static unsigned steps; /* that run's length */

/* Fails the nth pass of a site from now on (0: none); returns the passes since the last call. The emulated
 * driver is one site, in the place of the first, and fails whatever call is the nth. */
static uint64_t set_fault(unsigned site, uint64_t nth)
{
    static uint64_t calls_before;
    if (!emulator || site >= DRIVER_SITES)
        return zr_fault_set(sites[site], nth);
    if (site > 0)
        return 0;
    uint64_t calls = emulator->calls(NULL), since = calls - calls_before;
    emulator->fail(&(struct zr_emulator_fault){.nth = nth, .code = ZR_CU_OUT_OF_MEMORY});
    calls_before = calls;
    return since;
}

static uint64_t count_step(unsigned i)
{
    uint64_t driver_calls = 0;
    for (unsigned site = 0; site < SITES; site++) {
        passes[site][i] = set_fault(site, 0) + (i > 0 ? passes[site][i - 1] : 0);
        driver_calls += site < DRIVER_SITES ? passes[site][i] : 0;
    }
    return driver_calls;
}

/* Runs until enough driver calls have been made. */
static void run_clean(const struct setting *setting)
{
    struct life life;
    for (unsigned site = 0; site < SITES; site++)
        set_fault(site, 0);
    bool begun = begin(&life, setting);
    uint64_t driver_calls = count_step(0);
    for (steps = 0; begun && driver_calls < DRIVER_CALLS && steps < STEPS_MAX;) {
        step(&life);
        driver_calls = count_step(++steps);
    }
    end(&life);
    tap_ok(begun && life.wrong == 0 && life.refused == 0, "%s: a run of %u steps without a failure",
           setting->name, steps);
    tap_ok(driver_calls >= DRIVER_CALLS, "%s: makes %llu driver calls", setting->name,
           (unsigned long long)driver_calls);
}

struct walk {
    unsigned told, absorbed, wrong, leaked;
};

/* Fails the nth pass, goes on for a while, and looks at everything. */
static void fail_one(const struct setting *setting, unsigned site, uint64_t nth, struct walk *walk)
{
    struct life life;
    struct footprint before = footprint(), after;
    unsigned last = 0;
    while (last < steps && passes[site][last] < nth)
        last++;
    last += AFTER;
    set_fault(site, nth);
    bool begun = begin(&life, setting);
    for (unsigned i = 0; i < last && begun; i++)
        step(&life);
    set_fault(site, 0);
    if (begun && life.refused > 1)
        wrong(&life, "one failure was met twice");
    end(&life);
    after = footprint();
    if (emulator)
        after.files += emulator->state().used_bytes + emulator->state().mappings_count +
                       emulator->state().reservations_count + emulator->state().events_count;
    walk->told += !begun || life.refused > 0;
    walk->absorbed += begun && life.refused == 0;
    walk->wrong += life.wrong > 0;
    if (after.shared_bytes > before.shared_bytes + SLACK_BYTES || after.files != before.files ||
        after.address_bytes > before.address_bytes + SLACK_BYTES) {
        if (walk->leaked++ == 0)
            tap_note("%s %s:%llu: %zu files more, %zu bytes", setting->name, zr_fault_site_name(sites[site]),
                     (unsigned long long)nth, after.files - before.files,
                     after.address_bytes - before.address_bytes);
    }
}

/* How far apart the failures are: the records are many, and the emulated driver has its own test. */
static unsigned stride_of(const struct setting *setting, unsigned site)
{
    if (every_one)
        return 1;
    return site >= DRIVER_SITES    ? RECORDS_STRIDE
           : setting->kind == GPU  ? GPU_STRIDE
           : setting->kind == HOST ? 4
                                   : 1;
}

static void test_walk(const struct setting *setting, unsigned seed)
{
    run_clean(setting);
    for (unsigned site = 0; site < SITES; site++) {
        struct walk walk = {0};
        uint64_t count = passes[site][steps];
        unsigned stride = stride_of(setting, site);
        struct footprint before = footprint();
        for (uint64_t nth = 1 + seed % stride; nth <= count; nth += stride)
            fail_one(setting, site, nth, &walk);
        /* What is too little to be seen after one failure adds up. */
        if (footprint().shared_bytes > before.shared_bytes + SLACK_BYTES && walk.leaked++ == 0)
            tap_note("%zu bytes of granules more after them all",
                     footprint().shared_bytes - before.shared_bytes);
        if (count > 0)
            tap_ok(
                walk.wrong == 0 && walk.leaked == 0,
                "%s: %s failed at one in %u of %llu passes: exact books, nothing left (%u told, %u absorbed)",
                setting->name,
                emulator && site < DRIVER_SITES ? "the driver" : zr_fault_site_name(sites[site]), stride,
                (unsigned long long)count, walk.told, walk.absorbed);
    }
}

/* ---- A roll-back that fails ---------------------------------------------------------------------------- */

static const struct zr_backend_ops *below;
static unsigned unmaps_count;

static zr_result refuse_outer_unmaps(zr_backend *backend, char *address, size_t bytes)
{
    return unmaps_count++ % 2 == 0 ? zr_fail(ZR_ERR_UNAVAILABLE, "no unmap")
                                   : below->unmap(backend, address, bytes);
}

/* Three granules without access of which the driver unmaps only the middle one: none is used again, with
 * records for that or, `nth` of them, without. */
static void test_stuck_apart(uint64_t nth)
{
    enum { PART = 64 << 10 };
    zr_backend *backend;
    zr_arena *arena;
    void *block = NULL;
    struct zr_handle_list list;
    struct zr_request request = {.bytes = 3 * PART};
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = PART});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    tap_result(zr_granules_take(arena, 3 * PART, &list), ZR_OK, "granules that are mapped one by one");
    zr_granules_give(arena, &list);
    below = backend->ops;
    struct zr_backend_ops ops = *below;
    ops.unmap = refuse_outer_unmaps;
    backend->ops = &ops;
    unmaps_count = 0;
    zr_fault_set(ZR_FAULT_METADATA, nth);
    zr_fault_set(ZR_FAULT_ACCESS, 1);
    zr_result result = zr_arena_alloc(arena, &request, &block);
    zr_fault_set(ZR_FAULT_ACCESS, 0);
    zr_fault_set(ZR_FAULT_METADATA, 0);
    backend->ops = below;
    bool stuck = unmaps_count == 3;
    tap_ok(result != ZR_OK && (stuck || nth > 0),
           "access is refused, and two unmaps of three on the way back, record %llu",
           (unsigned long long)nth);
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    bool apart = true;
    request.bytes = PART;
    for (unsigned i = 0; i < 4; i++)
        apart &= zr_arena_alloc(arena, &request, &block) == ZR_OK &&
                 (!stuck || (char *)block >= arena->base + 3 * PART);
    tap_ok(apart, "no later block lies there");
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends, and asks again");
    tap_result(zr_backend_destroy(backend), ZR_OK, "nothing is left");
}

static unsigned hangs;

static zr_result refuse_synchronize(zr_backend *backend)
{
    return hangs > 0 && hangs-- ? zr_fail(ZR_ERR_UNAVAILABLE, "no answer") : below->synchronize(backend);
}

/* At an end a device is asked twice. If it never answers, addresses stay, and all else is given back. */
static void test_no_answer(bool in_pool, unsigned times)
{
    const char *words = in_pool ? "a pool's end" : "an arena's end";
    zr_backend *backend;
    zr_arena *arena;
    zr_contiguous *pool = NULL;
    zr_entry entry;
    void *block;
    size_t leaked = 0, pool_leaked = 0;
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 64 << 10, .work_ns = 1000});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    struct zr_backend_ops ops = *(below = backend->ops);
    ops.synchronize = refuse_synchronize;
    backend->ops = &ops;
    if (in_pool)
        zr_contiguous_create(&pool, &(struct zr_contiguous_options){.arena = arena});
    else
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 300000}, &block);
    if (in_pool)
        zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 300000}, &entry, NULL);
    hangs = times;
    zr_result want = times < 2 ? ZR_OK : ZR_ERR_UNAVAILABLE;
    tap_result(zr_contiguous_destroy(pool, &pool_leaked), in_pool ? want : ZR_OK, "%s, %u without an answer",
               words, times);
    tap_result(zr_arena_check(arena), ZR_OK, "%s: sound", words);
    tap_result(zr_arena_destroy(arena, &leaked), in_pool ? ZR_OK : want, "and the arena");
    tap_ok(leaked + pool_leaked >= 300000 && (in_pool ? leaked : pool_leaked) == 0, "leaks are told once");
    tap_is(backend->held_bytes, 0, "%s: no memory is held", words);
    backend->ops = below;
    tap_result(zr_backend_destroy(backend), ZR_OK, "%s: nothing is left", words);
}

/* ---- The first words of a process ---------------------------------------------------------------------- */

/* The first failure takes a record for its words. Where the system has none left, it is told all the same. */
static void test_first_words(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tap_skip("no memory for the first words: a sanitizer reserves terabytes itself");
#else
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        void *block;
        struct rlimit none = {0, 0};
        alarm(300);
        bool good = setrlimit(RLIMIT_AS, &none) == 0 &&
                    zr_arena_alloc(NULL, &(struct zr_request){.bytes = 1}, &block) == ZR_ERR_INVALID &&
                    strstr(zr_last_error(), "arena or request is NULL");
        _exit(good ? 0 : 1);
    }
    waitpid(child, &status, 0);
    tap_is(status, 0, "a first failure without memory for its words ends, and is told");
#endif
}

/* ---- A process without memory -------------------------------------------------------------------------- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
enum { STARVED = 40 };

static zr_arena *starved_arena;
static pthread_barrier_t starving;

static bool finds(void *block)
{
    struct zr_block_info info;
    return zr_arena_find(starved_arena, (char *)block + 99, &info) == ZR_OK && info.address == block &&
           zr_arena_find(starved_arena, &info, &info) == ZR_ERR_FOREIGN;
}

/* The block, if all was well. */
static void *search_and_free(void *block)
{
    pthread_barrier_wait(&starving);
    pthread_barrier_wait(&starving);
    bool good = finds(block) && zr_arena_free(starved_arena, block) == ZR_OK;
    pthread_barrier_wait(&starving);
    return good ? block : NULL;
}

static int search_starved(void)
{
    const struct rlimit none = {0, 0};
    zr_backend *backend;
    pthread_t threads[STARVED];
    void *blocks[STARVED + 1], *given;
    bool good = zr_backend_host_create(&backend, NULL) == ZR_OK &&
                zr_arena_create(&starved_arena, &(struct zr_arena_options){.backend = backend}) == ZR_OK;
    pthread_barrier_init(&starving, NULL, STARVED + 1);
    for (unsigned i = 0; i <= STARVED && good; i++)
        good = zr_arena_alloc(starved_arena, &(struct zr_request){.bytes = 1000}, &blocks[i]) == ZR_OK;
    for (unsigned i = 0; i < STARVED && good; i++)
        good = pthread_create(&threads[i], NULL, search_and_free, blocks[i]) == 0;
    if (!good)
        return 1;
    pthread_barrier_wait(&starving);
    good = setrlimit(RLIMIT_AS, &none) == 0;
    pthread_barrier_wait(&starving);
    pthread_barrier_wait(&starving);
    for (unsigned i = 0; i < STARVED; i++)
        good &= pthread_join(threads[i], &given) == 0 && given == blocks[i];
    int status = 1;
    pid_t child = fork();
    if (child == 0)
        _exit(finds(blocks[STARVED]) ? 0 : 1);
    waitpid(child, &status, 0);
    return good && status == 0 ? 0 : 2;
}
#endif

/* No thread needs memory in order to search, to free or to be told, nor does a child of fork(). */
static void test_starved(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tap_skip("threads without memory: a sanitizer reserves terabytes itself");
#else
    tap_is(in_child_within(search_starved, 300), 0,
           "%d threads of a process without memory search and free, then its child does", STARVED);
#endif
}

int main(int count, char **arguments)
{
    static const struct setting settings[] = {{"sim", SIM, (size_t)2 << 20, 0, 0},
                                              {"sim with late streams", SIM, (size_t)2 << 20, 2000, 512},
                                              {"host", HOST, 4096, 0, 0},
                                              {"emulated GPU", GPU, (size_t)2 << 20, 0, 0}};
    unsigned seed = (unsigned)run_seed();
    every_one = count > 1 && strcmp(arguments[1], "all") == 0;
    test_first_words(); /* before any other failure */
    test_starved();
    for (uint64_t nth = 0; nth < 16; nth++)
        test_stuck_apart(nth);
    for (unsigned i = 0; i < 6; i++)
        test_no_answer(i >= 3, i % 3);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (settings[i].kind == GPU && !(emulator = cuda_emulator()))
            tap_skip("failures of an emulated GPU: %s", zr_last_error());
        else
            test_walk(&settings[i], seed);
    }
    return tap_done();
}
