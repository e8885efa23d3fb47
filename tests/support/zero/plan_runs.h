/* plan_runs.h: plans made at random, and runs that follow them or depart from them, beside a model of what is
 * live: no two blocks share memory, each byte is found in its block, nothing else is freed. The program
 * says what its arenas and plans are: begin_run, end_run and install_random. */
#ifndef ZR_TEST_PLAN_RUNS_H
#define ZR_TEST_PLAN_RUNS_H

#include <string.h>

#include "alloc/base/fault.h"
#include "alloc/core/arena.h"
#include "alloc/plan/executor.h"
#include "tests/support/draws.h"
#include "tests/support/plans_support.h"
#include "tests/support/tap.h"

enum { STEPS = 150, LIVE_MAX = 1024, LOOKS = 4 };

static struct zr_plan_step steps[STEPS];
static bool fills; /* the memory can be seen: every byte is filled, and looked at before it is freed */

static bool begin_run(void);
static bool end_run(void);
static zr_result install_random(void);

/* A plan of one sequence, which hears all that the calling thread asks for. */
static zr_result install(const struct zr_plan *plan)
{
    struct zr_plan own = *plan;
    struct zr_plan_sequence sequence = {.count = plan->steps_count,
                                        .any = plan->pages_count == 0,
                                        .any_stream = true,
                                        .thread = zr_thread_number()};
    own.sequences = &sequence;
    own.sequences_count = 1;
    return zr_arena_install_plan(arena, &own);
}

/* ---- Places -------------------------------------------------------------------------------------------- */

static size_t rounded(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

static bool steps_meet(size_t i, size_t k)
{
    size_t after = i >= k ? i - k : STEPS + i - k, before = i >= k ? STEPS + k - i : k - i;
    return after < steps[k].alive_count || before < steps[i].alive_count;
}

/* The lowest place that is clear of the steps before this one which have a place and live at its time. */
static size_t first_fit(size_t i)
{
    size_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t k = 0; k < i; k++) {
            size_t end = steps[k].offset_bytes + rounded(steps[k].request.bytes);
            if (steps[k].offset_bytes != ZR_PLAN_NOWHERE && steps_meet(i, k) && at < end &&
                steps[k].offset_bytes < at + rounded(steps[i].request.bytes)) {
                at = end;
                moved = true;
            }
        }
    }
    return at;
}

/* ---- What is live -------------------------------------------------------------------------------------- */

static struct live_block {
    char *address;
    size_t bytes, due;
    unsigned char pattern;
} live[LIVE_MAX];
static size_t live_count;

/* The memory under an address. */
static const struct zr_handle *handle_at(const char *address)
{
    return zr_range_mapping(arena->range, (size_t)(address - arena->base))->handle;
}

/* No byte of memory is in both blocks, by address and by handle. */
static bool memory_is_apart(const struct live_block *a, const struct live_block *b)
{
    size_t granule = backend->can.granule_bytes;
    size_t a_first = (size_t)(a->address - arena->base) / granule;
    size_t a_last = (size_t)(a->address + a->bytes - 1 - arena->base) / granule;
    size_t b_first = (size_t)(b->address - arena->base) / granule;
    size_t b_last = (size_t)(b->address + b->bytes - 1 - arena->base) / granule;
    if (a->address < b->address + b->bytes && b->address < a->address + a->bytes)
        return false;
    for (size_t x = a_first; x <= a_last; x++)
        for (size_t y = b_first; y <= b_last; y++)
            if (x != y && handle_at(arena->base + x * granule) == handle_at(arena->base + y * granule) &&
                handle_at(arena->base + x * granule)->bytes == granule)
                return false;
    return true;
}

/* Where the memory can be seen every byte is filled; elsewhere the handles tell. True if no memory was had,
 * when that may be. */
static bool take_one(size_t bytes, size_t due, bool may_fail)
{
    struct live_block *block = &live[live_count];
    *block = (struct live_block){.address = take(bytes), .bytes = bytes, .due = due};
    if (!block->address)
        return may_fail;
    bool good = true;
    for (size_t i = 0; !fills && i < live_count; i++)
        good &= memory_is_apart(block, &live[i]);
    block->pattern = (unsigned char)random_below(256);
    if (fills)
        memset(block->address, block->pattern, bytes);
    live_count++;
    return good;
}

static bool free_one(size_t number)
{
    const struct live_block *block = &live[number];
    bool good = true;
    if (fills)
        good = (unsigned char)block->address[0] == block->pattern &&
               memcmp(block->address, block->address + 1, block->bytes - 1) == 0;
    good &= zr_arena_free(arena, block->address) == ZR_OK;
    live[number] = live[--live_count];
    return good;
}

/* Looks for ends of random blocks and for bytes around them, and frees what no block begins with. Between a
 * block's last byte and its rounded end both answers are good. */
static bool finds_as_model(void)
{
    bool good = true;
    for (unsigned i = 0; i < LOOKS && live_count > 0; i++) {
        const struct live_block *own = &live[random_below(live_count)], *holds = NULL;
        char *places[] = {own->address,
                          own->address + own->bytes - 1,
                          own->address + rounded(own->bytes),
                          own->address + random_below(MIB),
                          own->address - random_below(MIB),
                          own->address - random_below(MIB) / 256 * 256};
        char *at = places[random_below(sizeof places / sizeof *places)];
        struct zr_block_info info;
        zr_result result = zr_arena_find(arena, at, &info);
        for (size_t k = 0; k < live_count; k++)
            if (at >= live[k].address && at < live[k].address + live[k].bytes)
                holds = &live[k];
        if (holds)
            good &= result == ZR_OK && info.address == holds->address && info.bytes == holds->bytes;
        else if (result == ZR_OK)
            good &= (size_t)(at - (char *)info.address) < info.reserved_bytes &&
                    (size_t)(at - (char *)info.address) >= info.bytes;
        if (!holds || holds->address != at)
            good &= zr_arena_free(arena, at) != ZR_OK;
    }
    return good;
}

/* ---- Runs ---------------------------------------------------------------------------------------------- */

static bool depart(size_t *now, bool may_fail)
{
    switch (random_below(6)) {
    case 0:
        *now += random_below(STEPS); /* a part of the sequence is left out */
        return true;
    case 1:
        return zr_arena_trim(arena, 0, NULL) == ZR_OK;
    case 2:
        return live_count == 0 || free_one(random_below(live_count)); /* too early */
    case 3:
        return take_one(steps[random_below(STEPS)].request.bytes, *now + random_below(600), may_fail);
    default:
        return take_one(1 + random_below(3 * backend->can.granule_bytes), *now + random_below(300), may_fail);
    }
}

/* So many times around, with departures in so many of a thousand steps. */
static bool run_random(unsigned rounds, unsigned disorder, bool may_fail)
{
    bool good = true;
    size_t now = 0;
    for (unsigned r = 0; r < rounds * STEPS && good; r++, now++) {
        for (size_t i = live_count; i-- > 0;)
            if (live[i].due <= now && (disorder == 0 || random_below(1000) >= disorder))
                good &= free_one(i);
        if (disorder && random_below(1000) < disorder && live_count < LIVE_MAX - 2)
            good &= depart(&now, may_fail);
        size_t at = now % STEPS;
        if (live_count < LIVE_MAX - 2)
            good &= take_one(steps[at].request.bytes, now + steps[at].alive_count, may_fail);
        good &= finds_as_model();
        if (r % 50 == 0)
            good &= zr_arena_check(arena) == ZR_OK;
        if (r % 500 == 499 && disorder >= 100)
            good &= install_random() == ZR_OK; /* another one, while blocks of this one live */
    }
    while (live_count > 0)
        good &= free_one(live_count - 1);
    return good && zr_arena_check(arena) == ZR_OK;
}

static void test_random(const char *name, uint64_t seed, unsigned rounds)
{
    static const unsigned disorders[] = {0, 5, 30, 100, 300};
    for (unsigned i = 0; i < sizeof disorders / sizeof *disorders; i++) {
        random_state = (seed + i) | 1;
        if (!begin_run()) {
            tap_skip("%s: %s", name, zr_last_error());
            return;
        }
        bool good = install_random() == ZR_OK && run_random(rounds, disorders[i], false);
        struct zr_executor_counts got = counts();
        if (disorders[i] == 0)
            good &= got.unplanned_count + got.conflicts_count + got.refused_count == 0 &&
                    stats().reserved_bytes >= got.memory_bytes;
        good &= got.planned_count > 0;
        tap_ok(end_run() && good, "%s, seed %llu, %u in a thousand otherwise: each block has its own memory",
               name, (unsigned long long)seed + i, disorders[i]);
    }
}

/* Each call that installing and going through a plan makes fails in turn, the first of several too. */
static void test_failures(const char *name, uint64_t seed, unsigned stride)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_CREATE, ZR_FAULT_MAP, ZR_FAULT_ACCESS,
                                               ZR_FAULT_METADATA};
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        unsigned failures = 0, wrong = 0;
        bool clean = false;
        for (uint64_t nth = 1; !clean && nth < 5000;
             nth += sites[s] == ZR_FAULT_METADATA ? 5 * stride : stride) {
            random_state = seed | 1;
            if (!begin_run())
                break;
            zr_fault_set(sites[s], nth);
            zr_result result = install_random();
            live_count = 0;
            bool good = (result == ZR_OK || (result == ZR_ERR_HOST_MEMORY && counts().region_bytes == 0)) &&
                        run_random(1, 20, true);
            clean = zr_fault_set(sites[s], 0) < nth;
            failures += !clean;
            good &= install_random() == ZR_OK && run_random(1, 0, false);
            wrong += !good | !end_run();
        }
        tap_ok(clean && failures > 0 && wrong == 0, "%s, %s: each of %u failures leaves the books right",
               name, zr_fault_site_name(sites[s]), failures);
    }
}

#endif
