/* failures_test.c: one call that fails, at each of the first thousand driver calls of a run and more, on the
 * sim and host backends: what a caller sees is an error value, the arena's books stay those of a shadow and
 * of the backend, its later calls work, and nothing is left behind. tests/cuda_arena_test.c does the same
 * with the calls of the emulated driver. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/backend.h"
#include "alloc/fault.h"
#include "alloc/os.h"
#include "tests/tap.h"

enum { SLOTS = 40, STEPS_MOST = 5000, AFTER = 40, DRIVER_CALLS = 1000, RECORDS_STRIDE = 19 };

struct setting {
    const char *name;
    bool host;
    size_t granule_bytes;
};

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
        if (block || (result != ZR_ERR_MEMORY && result != ZR_ERR_ADDRESSES && result != ZR_ERR_HOST_MEMORY))
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
    if (life->setting->host) {
        life->blocks[i].address[0] = (char)dice;
        life->blocks[i].address[request.bytes - 1] = (char)dice;
    }
}

static void step_free(struct life *life, unsigned i)
{
    const char *address = life->blocks[i].address;
    if (life->setting->host && (address[0] != life->blocks[i].pattern ||
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
        stats.mapped_bytes + stats.stock_bytes != stats.reserved_bytes)
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
    check_books(life);
}

/* False: the backend or the arena could not be had, which is an answer too. */
static bool begin(struct life *life, const struct setting *setting)
{
    *life = (struct life){.setting = setting, .random = 4711};
    zr_result result =
        setting->host
            ? zr_backend_host_create(&life->backend,
                                     &(struct zr_host_options){.granule_bytes = setting->granule_bytes})
            : zr_backend_sim_create(&life->backend,
                                    &(struct zr_sim_options){.granule_bytes = setting->granule_bytes});
    if (result != ZR_OK)
        return false;
    result = zr_arena_create(
        &life->arena,
        &(struct zr_arena_options){.backend = life->backend, .reserve_bytes = 4096 * setting->granule_bytes});
    return result == ZR_OK;
}

static void end(struct life *life)
{
    size_t leaked = 0;
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
enum { SITES = sizeof sites / sizeof *sites, DRIVER_SITES = SITES - 1 };

/* How often each site was passed after each step of a run without failures; [0] is before the first. */
static uint64_t passes[SITES][STEPS_MOST + 1];
static unsigned steps; /* that run's length */

static uint64_t count_step(unsigned i)
{
    uint64_t driver_calls = 0;
    for (unsigned site = 0; site < SITES; site++) {
        passes[site][i] = zr_fault_set(sites[site], 0) + (i > 0 ? passes[site][i - 1] : 0);
        driver_calls += site < DRIVER_SITES ? passes[site][i] : 0;
    }
    return driver_calls;
}

/* Runs until enough driver calls have been made. */
static void run_clean(const struct setting *setting)
{
    struct life life;
    for (unsigned site = 0; site < SITES; site++)
        zr_fault_set(sites[site], 0);
    bool begun = begin(&life, setting);
    uint64_t driver_calls = count_step(0);
    for (steps = 0; begun && driver_calls < DRIVER_CALLS && steps < STEPS_MOST;) {
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
    zr_fault_set(sites[site], nth);
    bool begun = begin(&life, setting);
    for (unsigned i = 0; i < last && begun; i++)
        step(&life);
    zr_fault_set(sites[site], 0);
    if (begun && life.refused > 1)
        wrong(&life, "one failure was met twice");
    end(&life);
    after = footprint();
    walk->told += !begun || life.refused > 0;
    walk->absorbed += begun && life.refused == 0;
    walk->wrong += life.wrong > 0;
    if (after.shared_bytes != before.shared_bytes || after.files != before.files ||
        after.address_bytes > before.address_bytes + (1 << 20)) {
        if (walk->leaked++ == 0)
            tap_note("%s %s:%llu: %zu files more, %zu bytes", setting->name, zr_fault_site_name(sites[site]),
                     (unsigned long long)nth, after.files - before.files,
                     after.address_bytes - before.address_bytes);
    }
}

/* Each driver call, and one in RECORDS_STRIDE of the refusals of memory for records, of which there are more.
 */
static void test_walk(const struct setting *setting, unsigned first_record)
{
    run_clean(setting);
    for (unsigned site = 0; site < SITES; site++) {
        struct walk walk = {0};
        uint64_t count = passes[site][steps];
        bool records = site >= DRIVER_SITES;
        for (uint64_t nth = records ? first_record : 1; nth <= count; nth += records ? RECORDS_STRIDE : 1)
            fail_one(setting, site, nth, &walk);
        tap_ok(walk.wrong == 0 && walk.leaked == 0,
               "%s: %s failed at each%s of %llu passes: exact books, nothing left (%u told, %u absorbed)",
               setting->name, zr_fault_site_name(sites[site]), records ? " nineteenth" : "",
               (unsigned long long)count, walk.told, walk.absorbed);
    }
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
        alarm(20);
        bool good = setrlimit(RLIMIT_AS, &none) == 0 &&
                    zr_arena_alloc(NULL, &(struct zr_request){.bytes = 1}, &block) == ZR_ERR_INVALID &&
                    strstr(zr_last_error(), "needs an arena");
        _exit(good ? 0 : 1);
    }
    waitpid(child, &status, 0);
    tap_is(status, 0, "a first failure without memory for its words ends, and is told");
#endif
}

int main(void)
{
    static const struct setting settings[] = {{"sim", false, (size_t)2 << 20}, {"host", true, 4096}};
    const char *text = getenv("ZR_TEST_SEED");
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : (unsigned)getpid();
    tap_note("ZR_TEST_SEED=%u", seed);
    test_first_words(); /* before any other failure */
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        test_walk(&settings[i], 1 + seed % RECORDS_STRIDE);
    return tap_done();
}
