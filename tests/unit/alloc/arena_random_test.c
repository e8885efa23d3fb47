/* arena_random_test.c: the arena against a shadow model, on sim and host: random runs whose placement,
 * contents and accounting must agree, and lives in which each pass of each fault site fails in turn.
 * ZR_TEST_SEED=n replays a run. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "tests/support/arena_support.h"
#include "tests/support/random.h"
#include "tests/support/seed.h"

static uint64_t seed_of_run;

/* Mostly small, sometimes several granules, now and then huge; often the same few sizes, as training has. */
static size_t random_bytes(uint64_t *state)
{
    static const size_t favourites[] = {256, 768 * 4, 4096, 65536, 65537, 3 * 65536, 1 << 20};
    uint64_t kind = splitmix64(state) % 16;
    if (kind < 5)
        return favourites[splitmix64(state) % 7];
    if (kind < 12)
        return 1 + splitmix64(state) % 5000;
    if (kind < 15)
        return 1 + splitmix64(state) % (4 * GRANULE);
    return 1 + splitmix64(state) % (40 * GRANULE);
}

/* ---- The shadow model ---------------------------------------------------------------------------------- */

enum { SLOTS = 600 };

struct shadow_block {
    char *address;
    size_t bytes;
    zr_tag tag;
    unsigned char pattern;
};

struct shadow {
    struct shadow_block blocks[SLOTS];
    size_t live_bytes, requested_bytes, peak_live_bytes, count;
    size_t by_tag[ZR_TAG_COUNT], peak_by_tag[ZR_TAG_COUNT];
    bool visible;
    unsigned errors; /* contents, overlaps */
};

static size_t rounded(size_t bytes)
{
    return (bytes + (zr_option_get(ZR_OPTION_CHECK) >= 3 ? 16 : 0) + 255) & ~(size_t)255;
}

static void shadow_add(struct shadow *shadow, struct shadow_block *slot)
{
    size_t bytes = rounded(slot->bytes);
    shadow->live_bytes += bytes;
    shadow->requested_bytes += slot->bytes;
    shadow->by_tag[slot->tag] += bytes;
    shadow->count++;
    if (shadow->live_bytes > shadow->peak_live_bytes) {
        shadow->peak_live_bytes = shadow->live_bytes;
        memcpy(shadow->peak_by_tag, shadow->by_tag, sizeof shadow->by_tag);
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        const struct shadow_block *other = &shadow->blocks[i];
        if (other != slot && other->address && other->address < slot->address + bytes &&
            slot->address < other->address + rounded(other->bytes))
            shadow->errors++;
    }
    if (shadow->visible)
        memset(slot->address, slot->pattern, slot->bytes);
}

static void shadow_remove(struct shadow *shadow, struct shadow_block *slot)
{
    size_t bytes = rounded(slot->bytes);
    if (shadow->visible)
        for (size_t i = 0; i<slot->bytes; i += slot->bytes> 8192 ? 509 : 1)
            shadow->errors += (unsigned char)slot->address[i] != slot->pattern;
    shadow->live_bytes -= bytes;
    shadow->requested_bytes -= slot->bytes;
    shadow->by_tag[slot->tag] -= bytes;
    shadow->count--;
    slot->address = NULL;
}

static bool shadow_agrees(const struct shadow *shadow, zr_arena *arena)
{
    struct zr_arena_stats stats;
    if (zr_arena_get_stats(arena, &stats) != ZR_OK)
        return false;
    return stats.live_bytes == shadow->live_bytes && stats.requested_bytes == shadow->requested_bytes &&
           stats.blocks_count == shadow->count && stats.peak_live_bytes == shadow->peak_live_bytes &&
           memcmp(stats.live_by_tag_bytes, shadow->by_tag, sizeof shadow->by_tag) == 0 &&
           memcmp(stats.peak_by_tag_bytes, shadow->peak_by_tag, sizeof shadow->by_tag) == 0 &&
           stats.reserved_bytes == stats.mapped_bytes + stats.cached_bytes &&
           stats.mapped_bytes >= stats.live_bytes + stats.stranded_bytes;
}

/* ---- Random runs --------------------------------------------------------------------------------------- */

struct run {
    zr_arena *arena;
    struct shadow shadow;
    uint64_t random;
    uint64_t trail; /* a hash of every placement, relative to the first block */
    char *origin;
    size_t granule_bytes;
    unsigned refused; /* for want of memory */
    unsigned unexpected;
};

static void step_alloc(struct run *run, struct shadow_block *slot)
{
    uint64_t dice = splitmix64(&run->random);
    struct zr_request request = {
        .bytes = random_bytes(&run->random),
        .alignment = dice % 7 == 0 ? (size_t)1 << (dice >> 8) % (run->granule_bytes < GRANULE ? 13 : 17) : 0,
        .tag = (zr_tag)(dice % ZR_TAG_COUNT),
        .stream = dice % 3};
    void *block;
    zr_result result = zr_arena_alloc(run->arena, &request, &block);
    if (result != ZR_OK) {
        run->refused += result == ZR_ERR_MEMORY;
        if (result != ZR_ERR_MEMORY || block) {
            run->unexpected++;
            tap_note("%zu bytes aligned to %zu: %s", request.bytes, request.alignment, zr_last_error());
        }
        return;
    }
    if (!run->origin)
        run->origin = block;
    run->trail = (run->trail ^ (uint64_t)((char *)block - run->origin)) * UINT64_C(0x100000001b3);
    run->unexpected += (uintptr_t)block % (request.alignment ? request.alignment : 256) != 0;
    *slot = (struct shadow_block){block, request.bytes, request.tag, (unsigned char)dice};
    shadow_add(&run->shadow, slot);
}

static void step_free(struct run *run, struct shadow_block *slot)
{
    struct zr_block_info info;
    char *inside = slot->address + splitmix64(&run->random) % slot->bytes;
    run->unexpected += zr_arena_find(run->arena, inside, &info) != ZR_OK || info.address != slot->address ||
                       info.bytes != slot->bytes || info.tag != slot->tag;
    void *block = slot->address;
    shadow_remove(&run->shadow, slot);
    run->unexpected += zr_arena_free(run->arena, block) != ZR_OK;
}

static void run_steps(struct run *run, unsigned steps, unsigned check_every)
{
    for (unsigned i = 0; i < steps; i++) {
        uint64_t dice = splitmix64(&run->random);
        struct shadow_block *slot = &run->shadow.blocks[dice % SLOTS];
        /* Phases of growth and of shrinking, so that holes form and fill. */
        bool grow = (i / 500) % 2 == 0;
        if (!slot->address && (grow || dice >> 32 & 1))
            step_alloc(run, slot);
        else if (slot->address && (!grow || dice >> 32 & 1))
            step_free(run, slot);
        if (dice % 1021 == 0)
            zr_arena_trim(run->arena, (size_t)(dice % 8) * GRANULE, NULL);
        if (check_every && i % check_every == 0 &&
            (zr_arena_check(run->arena) != ZR_OK || !shadow_agrees(&run->shadow, run->arena))) {
            run->unexpected++;
            tap_note("after step %u: %s", i, zr_last_error());
            return;
        }
    }
}

static void free_all(struct run *run)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (run->shadow.blocks[i].address)
            step_free(run, &run->shadow.blocks[i]);
}

static struct zr_arena_stats random_run(const struct setting *setting, uint64_t seed, uint64_t *trail)
{
    struct zr_arena_stats stats = {0};
    zr_backend *backend = backend_of(setting);
    struct run *run = calloc(1, sizeof *run);
    size_t leaked;
    run->random = seed;
    run->granule_bytes = setting->granule_bytes;
    run->shadow.visible = setting->host;
    /* The same addresses everywhere: how they are divided depends on how many there are. */
    tap_result(zr_arena_create(&run->arena, &(struct zr_arena_options){.backend = backend,
                                                                       .reserve_bytes = (size_t)1 << 31,
                                                                       .limit_bytes = setting->limit_bytes}),
               ZR_OK, "%s: an arena", setting->name);
    run_steps(run, setting->steps, 97);
    zr_arena_get_stats(run->arena, &stats);
    tap_is(run->shadow.errors, 0, "%s: no block overlaps another or changes by itself", setting->name);
    tap_is(run->unexpected, 0, "%s: every call comes to what it should", setting->name);
    if (setting->limit_bytes) {
        tap_ok(run->refused > 0, "%s: the limit is met (%u times)", setting->name, run->refused);
        tap_ok(stats.peak_reserved_bytes <= setting->limit_bytes, "%s: and held", setting->name);
    }
    free_all(run);
    tap_result(zr_arena_check(run->arena), ZR_OK, "%s: sound when empty", setting->name);
    size_t released;
    zr_arena_trim(run->arena, 0, &released);
    struct zr_arena_stats empty;
    zr_arena_get_stats(run->arena, &empty);
    tap_ok(empty.reserved_bytes == 0 && empty.live_bytes == 0 && released > 0,
           "%s: an empty arena trims to nothing", setting->name);
    *trail = run->trail;
    zr_arena_destroy(run->arena, &leaked);
    tap_is(leaked, 0, "%s: nothing leaked", setting->name);
    tap_result(zr_backend_destroy(backend), ZR_OK, "%s: the backend ends", setting->name);
    free(run);
    return stats;
}

static void test_random(void)
{
    struct setting settings[] = {
        {"sim 64k", false, GRANULE, 0, 30000, false},
        {"host 64k", true, GRANULE, 0, 30000, false},
        {"sim 64k limited", false, GRANULE, 300 * GRANULE, 30000, false},
        {"host 64k limited", true, GRANULE, 300 * GRANULE, 30000, false},
        {"sim 2m", false, 2 << 20, 0, 20000, false},
        {"host 4k", true, 4096, 0, 4000, false},
    };
    uint64_t trails[6];
    struct zr_arena_stats stats[6];
    for (unsigned i = 0; i < 6; i++)
        stats[i] = random_run(&settings[i], seed_of_run, &trails[i]);
    for (unsigned i = 0; i < 4; i += 2)
        tap_ok(trails[i] == trails[i + 1] && memcmp(&stats[i], &stats[i + 1], sizeof stats[i]) == 0,
               "%s and %s place and count alike, to the byte", settings[i].name, settings[i + 1].name);
}

static void test_random_checked(void)
{
    struct setting setting = {"host check:3", true, GRANULE, 200 * GRANULE, 4000, false};
    uint64_t trail;
    zr_option_set("check:3,poison:off");
    random_run(&setting, seed_of_run, &trail);
    zr_option_set(NULL);
}

/* ---- Faults -------------------------------------------------------------------------------------------- */

static const enum zr_fault_site arena_sites[] = {ZR_FAULT_RESERVE, ZR_FAULT_CREATE, ZR_FAULT_MAP,
                                                 ZR_FAULT_ACCESS, ZR_FAULT_METADATA};

/* A life of an arena in which one pass of a site may fail anywhere. True if every call either worked or left
 * the counters exact, and nothing leaked. */
static bool life_with_fault(const struct setting *setting, unsigned *failures)
{
    struct run *run = calloc(1, sizeof *run);
    zr_backend *backend = backend_of(setting);
    bool good = true;
    zr_result result = backend ? ZR_OK : ZR_ERR_MEMORY;
    *failures += result != ZR_OK;
    if (result == ZR_OK) {
        result = zr_arena_create(
            &run->arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = 120 * GRANULE});
        *failures += result != ZR_OK;
    }
    if (result == ZR_OK) {
        run->random = 4711;
        run->granule_bytes = GRANULE;
        run->shadow.visible = setting->host;
        for (unsigned i = 0; i < setting->steps && good; i++) {
            struct shadow_block *slot = &run->shadow.blocks[splitmix64(&run->random) % 60];
            if (slot->address) {
                void *block = slot->address;
                shadow_remove(&run->shadow, slot);
                good = zr_arena_free(run->arena, block) == ZR_OK;
            } else {
                size_t bytes = random_bytes(&run->random);
                void *block;
                result = zr_arena_alloc(run->arena, &(struct zr_request){.bytes = bytes}, &block);
                *failures += result != ZR_OK;
                if (result == ZR_OK) {
                    *slot = (struct shadow_block){block, bytes, 0, (unsigned char)i};
                    shadow_add(&run->shadow, slot);
                }
            }
            good = good && (i % 16 ||
                            (zr_arena_check(run->arena) == ZR_OK && shadow_agrees(&run->shadow, run->arena)));
        }
        good = good && run->shadow.errors == 0;
        size_t live = run->shadow.live_bytes, leaked;
        zr_arena_destroy(run->arena, &leaked);
        good = good && leaked == live;
    }
    if (backend)
        good = zr_backend_destroy(backend) == ZR_OK && good;
    free(run);
    return good;
}

static void test_faults(void)
{
#if defined(__SANITIZE_THREAD__)
    enum { SIM_STEPS = 60, HOST_STEPS = 24 }; /* one thread: there is little for it to see here */
#else
    enum { SIM_STEPS = 250, HOST_STEPS = 120 };
#endif
    struct setting settings[] = {{"sim", false, GRANULE, 0, SIM_STEPS, false},
                                 {"host", true, GRANULE, 0, HOST_STEPS, true}};
    for (unsigned s = 0; s < 2; s++)
        for (unsigned i = 0; i < sizeof arena_sites / sizeof *arena_sites; i++) {
            unsigned baseline = 0, nth = 0, injected = 0;
            bool good = life_with_fault(&settings[s], &baseline), clean = false;
            /* zr's own records are the same on both, and many: each of them on sim. */
            unsigned stride = run_stride(!settings[s].host                     ? 1
                                         : arena_sites[i] == ZR_FAULT_METADATA ? 13
                                                                               : 3);
            for (nth = 1; good && !clean && nth < 3000; nth += stride) {
                unsigned failures = 0;
                zr_fault_set(arena_sites[i], nth);
                good = life_with_fault(&settings[s], &failures);
                clean = zr_fault_set(arena_sites[i], 0) < nth;
                injected += failures != baseline;
            }
            tap_ok(good && clean,
                   "%s: one in %u passes of %s failed in turn until a run was clean (%u, %u seen)%s%s",
                   settings[s].name, stride, zr_fault_site_name(arena_sites[i]), nth - 1 - stride, injected,
                   good ? "" : ": ", good ? "" : zr_last_error());
            tap_ok(nth > 1 + stride, "%s: there was something to fail", zr_fault_site_name(arena_sites[i]));
        }
}

int main(void)
{
    seed_of_run = run_seed();
    test_random();
    test_random_checked();
    test_faults();
    return tap_done();
}
