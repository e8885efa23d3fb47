/* host_moves_test.c: what rests on the host's maps: moving granules is far cheaper than copying them, the
 * process's resident memory follows a trim, and fragmentation without end stays within vm.max_map_count. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/option.h"
#include "alloc/base/system/os.h"
#include "tests/support/host_moves.h"
#include "tests/support/draws.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* ---- Moving -------------------------------------------------------------------------------------------- */

/* Asked of the kernel without the backend. */
static bool huge_pages_to_be_had(void)
{
    enum { PIECES = 16, COLLAPSE = 25 }; /* MADV_COLLAPSE, which older headers lack */
    size_t bytes = PIECES * 2 * MIB;
    bool all = false;
    int fd = memfd_create("zr-huge", MFD_CLOEXEC);
    char *map = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        map = mmap(NULL, bytes + 2 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map != MAP_FAILED) {
        char *at = (char *)(((uintptr_t)map + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
        all = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
        for (size_t i = 0; i < PIECES && all; i++) {
            at[i * 2 * MIB] = 1; /* an empty one is refused */
            all = madvise(at + i * 2 * MIB, 2 * MIB, COLLAPSE) == 0;
        }
        munmap(map, bytes + 2 * MIB);
    }
    if (fd >= 0)
        close(fd);
    return all;
}

/* The project's bars are 10 and 100; bench_moves prints what there is. A fifth of that must hold here,
 * whatever else the machine does: both sides are medians of one run, and a move that copies has 1. */
static void test_moves(void)
{
    struct moves moves = {0};
    tap_result(moves_measure(&moves, 128 * MIB), ZR_OK, "%zu granules moved and copied",
               moves.granules_count);
    double singles = moves.copy_ns / moves.singles_ns, run = moves.copy_ns / moves.run_ns;
    tap_note("%zu of %zu MiB in huge pages", moves.huge_bytes / MIB, 2 * moves.bytes / MIB);
    if (moves.huge_bytes == 0 && huge_pages_to_be_had()) {
        tap_ok(false, "granules are in huge pages where there are some");
        return;
    }
    if (moves.huge_bytes < 2 * moves.bytes) {
        tap_skip("moves beside copies: this kernel makes too few huge pages of a memfd");
        return;
    }
    tap_ok(singles >= 2, "moved granule by granule: %.0f times less than a warm copy", singles);
    tap_ok(run >= 20, "moved in one run: %.0f times less", run);
}

/* ---- Resident memory ----------------------------------------------------------------------------------- */

/* The kernel counts pages per processor, and may be some of them late. */
static bool about(size_t got, size_t want)
{
    return got <= want + MIB && want <= got + MIB;
}

static size_t shared_bytes(void)
{
    struct zr_resident resident = {0};
    zr_os_resident(&resident);
    return resident.shared_bytes;
}

/* What all memory files of this process hold. */
static size_t file_bytes(void)
{
    size_t bytes = 0;
    for (int fd = 3; fd < 64; fd++) {
        char name[64], target[64] = "";
        struct stat status;
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        if (readlink(name, target, sizeof target - 1) > 0 && strncmp(target, "/memfd:zr", 9) == 0 &&
            fstat(fd, &status) == 0)
            bytes += (size_t)status.st_blocks * 512;
    }
    return bytes;
}

static void test_resident(bool small_pages)
{
    enum { BLOCKS = 24 };
    const char *name = small_pages ? "small pages" : "huge pages";
    void *blocks[BLOCKS];
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    size_t live = 0, released = 0, shared_before = shared_bytes(), file_before = file_bytes();
    struct zr_arena_stats stats;
    zr_backend_host_create(&backend, &(struct zr_host_options){.small_pages = small_pages});
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}), ZR_OK, "%s: an arena",
               name);
    for (unsigned i = 0; i < BLOCKS; i++) {
        size_t bytes = (1 + i % 5) * 2 * MIB;
        zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes}, &blocks[i]);
        memset(blocks[i], (int)i + 1, bytes);
        live += bytes;
    }
    size_t shared_full = shared_bytes(), file_full = file_bytes();
    tap_is(file_full - file_before, live, "%s: what is live is in the file", name);
    tap_ok(about(shared_full, shared_before + live), "%s: and resident", name);
    size_t freed = 0;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (i % 3) {
            freed += (1 + i % 5) * 2 * MIB;
            zr_arena_free(arena, blocks[i]);
        }
    tap_is(file_bytes(), file_full, "%s: a free alone gives nothing back", name);
    tap_result(zr_arena_trim(arena, 10 * MIB, &released), ZR_OK, "%s: a trim that keeps 10 MiB", name);
    tap_is(released, freed - 10 * MIB, "%s: releases all but them", name);
    tap_is(file_full - file_bytes(), released, "%s: the file shrinks by what was trimmed", name);
    size_t shared_trimmed = shared_bytes();
    tap_ok(shared_trimmed <= shared_full - released + MIB && shared_trimmed + MIB >= shared_full - freed,
           "%s: resident memory falls by it: %zu MiB of %zu", name, (shared_full - shared_trimmed) / MIB,
           live / MIB);
    tap_result(zr_arena_trim(arena, 0, &released), ZR_OK, "%s: a trim that keeps nothing", name);
    tap_ok(about(shared_bytes(), shared_full - freed), "%s: leaves what is live resident", name);
    tap_is(file_full - file_bytes(), freed, "%s: and in the file", name);
    zr_arena_get_stats(arena, &stats);
    tap_is(stats.reserved_bytes, live - freed, "%s: the arena says the same", name);
    for (unsigned i = 0; i < BLOCKS; i += 3)
        tap_ok(((unsigned char *)blocks[i])[12345] == i + 1, "%s: block %u is what it was", name, i);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    tap_is(file_bytes(), file_before, "%s: at the end nothing is held", name);
    tap_ok(about(shared_bytes(), shared_before), "%s: nor resident", name);
}

/* ---- The budget of mappings ---------------------------------------------------------------------------- */

/* 60,000 granules in 100 GiB of addresses. A granule is a page here: mappings are what is counted, and of a
 * page each they need 234 MiB. No block is touched but by one word. */
enum { GRANULES = 60000, GRANULE_BYTES = 4096, MAPS_MAX = 65530, LARGE = 64 };

struct budget_run {
    const char *name;
    zr_backend *backend;
    zr_arena *arena;
    size_t budget, most_vmas, most_maps;
    unsigned refused;         /* requests that got no memory, for a good reason */
    unsigned wrong;           /* or for a bad one, or contents that changed */
    uint32_t *ones[GRANULES]; /* blocks of a granule */
    uint32_t *large[LARGE];
    size_t large_bytes[LARGE];
};

static size_t maps_count(void)
{
    static char text[1 << 16];
    size_t lines = 0;
    int fd = open("/proc/self/maps", O_RDONLY);
    ssize_t got;
    while ((got = read(fd, text, sizeof text)) > 0)
        for (const char *at = text; (at = memchr(at, '\n', (size_t)(text + got - at))); at++)
            lines++;
    close(fd);
    return lines;
}

static void look(struct budget_run *run)
{
    size_t vmas = zr_backend_vmas_count(run->backend), maps = maps_count();
    run->most_vmas = vmas > run->most_vmas ? vmas : run->most_vmas;
    run->most_maps = maps > run->most_maps ? maps : run->most_maps;
}

/* The system itself was never at its end, whatever came of the call. */
static bool system_had_room(void)
{
    return !strstr(zr_last_error(), "the system refused");
}

static uint32_t *take(struct budget_run *run, size_t bytes)
{
    void *block = NULL;
    zr_result result = zr_arena_alloc(run->arena, &(struct zr_request){.bytes = bytes}, &block);
    if (result == ZR_OK) {
        *(uint32_t *)block = (uint32_t)(uintptr_t)block;
        return block;
    }
    run->refused++;
    bool expected = result == ZR_ERR_ADDRESSES || result == ZR_ERR_MEMORY;
    if (!expected || !system_had_room()) {
        tap_note("%zu bytes: %s", bytes, zr_last_error());
        run->wrong++;
    }
    return NULL;
}

static void give(struct budget_run *run, uint32_t **block)
{
    if (!*block)
        return;
    run->wrong += **block != (uint32_t)(uintptr_t)*block;
    run->wrong += zr_arena_free(run->arena, *block) != ZR_OK;
    *block = NULL;
}

static void budget_start(struct budget_run *run, size_t limit_bytes)
{
    tap_result(
        zr_backend_host_create(&run->backend, &(struct zr_host_options){.granule_bytes = GRANULE_BYTES}),
        ZR_OK, "%s: a backend", run->name);
    run->budget = run->backend->can.vma_budget;
    tap_result(zr_arena_create(&run->arena, &(struct zr_arena_options){.backend = run->backend,
                                                                       .reserve_bytes = 100 * GIB,
                                                                       .limit_bytes = limit_bytes}),
               ZR_OK, "%s: 100 GiB of addresses", run->name);
    for (unsigned i = 0; i < GRANULES; i++)
        run->ones[i] = take(run, GRANULE_BYTES);
    tap_is(run->refused, 0, "%s: 60,000 blocks of a granule each", run->name);
}

static void budget_end(struct budget_run *run)
{
    struct zr_arena_stats stats;
    look(run);
    tap_is(run->wrong, 0, "%s: contents stay, frees work, and the system itself never refuses", run->name);
    tap_ok(run->most_vmas <= run->budget && run->most_maps < MAPS_MAX,
           "%s: at most %zu mappings of the %zu allowed, %zu maps of %d", run->name, run->most_vmas,
           run->budget, run->most_maps, MAPS_MAX);
    tap_ok(system_had_room(), "%s: no call at all met the system's end", run->name);
    tap_result(zr_arena_check(run->arena), ZR_OK, "%s: the arena is sound", run->name);
    for (unsigned i = 0; i < GRANULES; i++)
        give(run, &run->ones[i]);
    for (unsigned i = 0; i < LARGE; i++)
        give(run, &run->large[i]);
    zr_arena_get_stats(run->arena, &stats);
    tap_is(stats.live_bytes, 0, "%s: all is freed", run->name);
    tap_result(zr_arena_destroy(run->arena, NULL), ZR_OK, "%s: the end of the arena", run->name);
    tap_result(zr_backend_destroy(run->backend), ZR_OK, "%s: of the backend", run->name);
}

/* Every second granule is free: to steal them all would take three maps for each two granules there are. */
static void test_budget_comb(size_t limit_bytes)
{
    static struct budget_run run;
    run = (struct budget_run){.name = limit_bytes ? "a comb within a limit" : "a comb"};
    budget_start(&run, limit_bytes);
    for (unsigned i = 0; i < GRANULES; i += 2)
        give(&run, &run.ones[i]);
    look(&run);
    run.large[0] = take(&run, (size_t)GRANULES / 2 * GRANULE_BYTES);
    look(&run);
    if (!limit_bytes)
        tap_ok(run.large[0], "%s: a block of all that is free gets memory of its own", run.name);
    for (unsigned i = 1; i < LARGE; i++) {
        run.large[i] = take(&run, (100 + 11 * i) * (size_t)GRANULE_BYTES);
        if (!limit_bytes)
            give(&run, &run.large[i]);
    }
    look(&run);
    unsigned before = run.refused;
    for (unsigned i = 0; i < GRANULES; i += 20)
        run.ones[i] = take(&run, GRANULE_BYTES);
    tap_is(run.refused - before, 0, "%s: no small request is refused", run.name);
    if (!limit_bytes)
        tap_is(run.refused, 0, "%s: nor a large one", run.name);
    look(&run);
    zr_arena_trim(run.arena, 0, NULL);
    budget_end(&run);
}

/* Blocks of all sizes come and go at random, with trims: whatever is free is in vmas. */
static void test_budget_churn(void)
{
    static struct budget_run run;
    enum { STEPS = 10000 };
    run = (struct budget_run){.name = "churn"};
    budget_start(&run, 0);
    for (unsigned step = 0; step < STEPS; step++) {
        uint32_t **one = &run.ones[next_random() % GRANULES];
        uint32_t **large = &run.large[next_random() % LARGE];
        if (next_random() % 3)
            give(&run, one);
        else if (!*one)
            *one = take(&run, GRANULE_BYTES);
        if (step % 40 == 0) {
            give(&run, large);
            *large = take(&run, (1 + next_random() % 700) * GRANULE_BYTES);
        }
        if (step % 5000 == 4999) {
            zr_arena_trim(run.arena, next_random() % 2 * 1000 * GRANULE_BYTES, NULL);
            look(&run);
        }
    }
    tap_is(run.refused, 0, "%s: no request of %d is refused", run.name, STEPS);
    budget_end(&run);
}

/* The budget that the default vm.max_map_count gives, on machines that allow more. */
static void test_budget(void)
{
    unsigned long most = 0;
    char text[64];
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
    if (!file || fscanf(file, "%lu", &most) != 1 || most < MAPS_MAX) {
        tap_skip("the budget of mappings: vm.max_map_count is %lu here, below its default", most);
    } else {
        snprintf(text, sizeof text, "vma_budget:%d", (MAPS_MAX - 4096) / 2);
        zr_option_set(text);
        test_budget_comb(0);
        test_budget_comb((size_t)GRANULES * GRANULE_BYTES);
        test_budget_churn();
        zr_option_set(NULL);
    }
    if (file)
        fclose(file);
}

int main(void)
{
    random_state = run_seed();
    test_moves();
    test_resident(false);
    test_resident(true);
    test_budget();
    return tap_done();
}
