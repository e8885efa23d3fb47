/* granule_class_test.c: granules that are registered, exported or fixed stay where they are: not stolen, not
 * trimmed, not given back by a plan, until they are movable again. */
#include <string.h>

#include "alloc/base/option.h"
#include "alloc/core/arena.h"
#include "alloc/core/space.h"
#include "alloc/front/front.h"
#include "alloc/front/share.h"
#include "tests/support/arena_support.h"
#include "tests/support/plans_support.h"
#include "tests/support/tap.h"

enum { LIMIT = 8, HELD = 4 }; /* granules */

/* Of no whole number of granules, so they lie elsewhere than blocks of HELD granules. */
#define TOO_LARGE ((LIMIT - HELD) * GRANULE + GRANULE / 2)
#define ALL       (LIMIT * GRANULE - GRANULE / 2)

static bool begin(bool host)
{
    struct setting setting = {.host = host, .granule_bytes = GRANULE};
    backend = backend_of(&setting);
    return backend &&
           zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                              .name = "classes",
                                                              .limit_bytes = LIMIT * GRANULE,
                                                              .reserve_bytes = 4096 * GRANULE}) == ZR_OK;
}

static void end(void)
{
    tap_result(zr_arena_check(arena), ZR_OK, "the arena's records are good at the end");
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends, whatever the class of its granules");
    tap_result(zr_backend_destroy(backend), ZR_OK, "and so does its backend");
}

static zr_result set(const void *address, enum zr_granule_class granule_class)
{
    return zr_arena_set_granule_class(arena, address, HELD * GRANULE, granule_class);
}

/* A free extent of HELD granules of the class; returns its address. */
static char *hold(enum zr_granule_class granule_class)
{
    char *held = take(HELD * GRANULE);
    tap_result(set(held, granule_class), ZR_OK, "a block of %d granules gets class %d", HELD, granule_class);
    zr_arena_free(arena, held);
    return held;
}

static void test_class(enum zr_granule_class granule_class)
{
    size_t released_bytes = 0;
    if (!tap_ok(begin(false), "an arena of %d granules, class %d", LIMIT, granule_class))
        return;
    char *held = hold(granule_class);
    tap_is(stats().unmovable_bytes, HELD * GRANULE, "the granules count as not movable");
    tap_is(stats().stranded_bytes, HELD * GRANULE, "and, being free, as stranded");
    tap_ok(!take(TOO_LARGE), "a block that needs one of them is refused");
    tap_ok(strstr(zr_last_error(), "not movable") != NULL, "with words that say why: %s", zr_last_error());
    tap_result(zr_arena_check(arena), ZR_OK, "the refusal leaves the records good");
    zr_arena_trim(arena, 0, &released_bytes);
    tap_is(stats().mapped_bytes, HELD * GRANULE, "trim leaves them mapped");
    char *again = take(HELD * GRANULE);
    tap_ok(again == held, "a block of their own size uses them where they lie");
    zr_arena_free(arena, again);
    tap_result(set(held, ZR_GRANULE_MOVABLE), ZR_OK, "they are made movable while no block is there");
    tap_is(stats().unmovable_bytes, 0, "nothing counts as not movable then");
    char *large = take(ALL);
    tap_ok(large != NULL, "and a block of the whole limit takes them");
    zr_arena_free(arena, large);
    hold(granule_class);
    end();
}

static void test_part(void)
{
    if (!tap_ok(begin(false), "an arena whose free extent is movable but for one granule"))
        return;
    char *block = take(LIMIT * GRANULE);
    tap_result(zr_arena_set_granule_class(arena, block + GRANULE + 100, 1, ZR_GRANULE_REGISTERED), ZR_OK,
               "one byte is enough to name a granule");
    zr_arena_free(arena, block);
    zr_arena_trim(arena, 0, NULL);
    tap_is(stats().mapped_bytes, GRANULE, "trim takes all but that one");
    tap_result(zr_arena_set_granule_class(arena, block + GRANULE, 1, ZR_GRANULE_MOVABLE), ZR_OK,
               "which is still where it was");
    end();
}

/* A plan whose step's block has HELD granules; or, on pages, two such blocks in turns on the same memory. */
static void test_plan(bool on_pages)
{
    const uint32_t pages[2 * HELD] = {0, 1, 2, 3, 0, 1, 2, 3};
    const struct zr_plan_step steps[] = {step(HELD * GRANULE, 0, 1), step(HELD * GRANULE, HELD * GRANULE, 1)};
    size_t count = on_pages ? 2 : 1;
    const struct zr_plan_sequence sequence = {
        .count = count, .any_stream = true, .thread = zr_thread_number()};
    const struct zr_plan plan = {.steps = steps,
                                 .steps_count = count,
                                 .sequences = &sequence,
                                 .sequences_count = 1,
                                 .region_bytes = count * HELD * GRANULE,
                                 .pages = on_pages ? pages : NULL,
                                 .pages_count = on_pages ? HELD : 0};
    const char *words = on_pages ? "a plan on pages" : "a plan";
    if (!tap_ok(begin(false), "an arena for %s", words))
        return;
    tap_result(zr_arena_install_plan(arena, &plan), ZR_OK, "%s is installed", words);
    char *block = take(HELD * GRANULE);
    tap_result(set(block, ZR_GRANULE_FIXED), ZR_OK, "%s: the granules of its first block are fixed", words);
    zr_arena_free(arena, block);
    if (on_pages) {
        char *other = take(HELD * GRANULE);
        tap_ok(other == block + HELD * GRANULE, "%s: the second block lies elsewhere", words);
        tap_is(stats().mapped_bytes, HELD * GRANULE, "%s: on the same memory", words);
        zr_arena_free(arena, other);
    }
    tap_is(stats().stranded_bytes, HELD * GRANULE, "%s: what is idle of it and fixed counts as stranded",
           words);
    tap_ok(!take(TOO_LARGE), "%s: no other block gets it", words);
    tap_result(zr_arena_install_plan(arena, NULL), ZR_OK, "%s is dropped", words);
    zr_arena_trim(arena, 0, NULL);
    tap_is(stats().mapped_bytes, HELD * GRANULE, "%s: its fixed granules stay where they are", words);
    tap_is(stats().unmovable_bytes, HELD * GRANULE, "%s: and count as not movable", words);
    char *next = take(HELD * GRANULE);
    tap_ok(!on_pages || next < block || next >= block + 2 * HELD * GRANULE,
           "%s: no block lies on pages that have two addresses", words);
    end();
}

static void test_export(void)
{
    struct zr_segment segments[HELD];
    size_t count = 0, lead_bytes;
    if (!tap_ok(begin(true), "an arena on the host, whose memory can be exported"))
        return;
    char *block = take(HELD * GRANULE);
    zr_block_export(arena, block, NULL, &count, &lead_bytes);
    tap_is(stats().unmovable_bytes, 0, "an export without room for its segments changes no class");
    count = HELD;
    tap_result(zr_block_export(arena, block, segments, &count, &lead_bytes), ZR_OK, "a block is exported");
    tap_is(stats().unmovable_bytes, HELD * GRANULE, "its granules are not movable from then on");
    zr_arena_free(arena, block);
    zr_arena_trim(arena, 0, NULL);
    tap_is(stats().mapped_bytes, HELD * GRANULE,
           "also after its free: the importer sees no other block's memory");
    end();
}

static void test_misuse(void)
{
    if (!tap_ok(begin(false), "an arena for calls that are refused"))
        return;
    char *block = take(HELD * GRANULE);
    const struct {
        const char *words;
        zr_arena *arena;
        const char *address;
        size_t bytes;
        int granule_class;
        zr_result expected;
    } cases[] = {
        {"no arena", NULL, block, 1, ZR_GRANULE_FIXED, ZR_ERR_INVALID},
        {"no bytes", arena, block, 0, ZR_GRANULE_FIXED, ZR_ERR_INVALID},
        {"a class that is none", arena, block, 1, ZR_GRANULE_CLASS_COUNT, ZR_ERR_INVALID},
        {"a negative class", arena, block, 1, -1, ZR_ERR_INVALID},
        {"memory of nobody's", arena, (const char *)cases, 1, ZR_GRANULE_FIXED, ZR_ERR_FOREIGN},
        {"more than is mapped", arena, block, (HELD + 1) * GRANULE, ZR_GRANULE_FIXED, ZR_ERR_FOREIGN},
        {"more than there are addresses", arena, block, SIZE_MAX, ZR_GRANULE_FIXED, ZR_ERR_FOREIGN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tap_result(zr_arena_set_granule_class(cases[i].arena, cases[i].address, cases[i].bytes,
                                              (enum zr_granule_class)cases[i].granule_class),
                   cases[i].expected, "%s is refused", cases[i].words);
    tap_is(stats().unmovable_bytes, 0, "none of them changed a class");
    zr_arena_free(arena, block);
    end();
}

/* All that is mapped at once, but for what has a class of its own. */
static void test_fix(void)
{
    if (!tap_ok(begin(false), "an arena of %d granules that are fixed", LIMIT))
        return;
    hold(ZR_GRANULE_REGISTERED);
    zr_arena_free(arena, take(TOO_LARGE - GRANULE));
    size_t mapped = stats().mapped_bytes;
    tap_result(zr_arena_fix(arena, true), ZR_OK, "all of it is fixed");
    tap_is(stats().unmovable_bytes, mapped, "none of it is movable");
    zr_arena_trim(arena, 0, NULL);
    tap_is(stats().mapped_bytes, mapped, "trim leaves it mapped");
    tap_result(zr_arena_fix(arena, false), ZR_OK, "and movable again");
    tap_is(stats().unmovable_bytes, HELD * GRANULE, "but for what was registered before");
    zr_arena_trim(arena, 0, NULL);
    tap_is(stats().mapped_bytes, HELD * GRANULE, "which trim leaves alone");
    tap_result(zr_arena_fix(NULL, true), ZR_ERR_INVALID, "no arena is not fixed");
    end();
}

/* ---- Where memory comes from --------------------------------------------------------------------------- */

static bool begin_with(size_t reserve_granules, size_t capacity_granules)
{
    const struct zr_sim_options sim = {.granule_bytes = GRANULE,
                                       .capacity_bytes = capacity_granules * GRANULE};
    return zr_backend_sim_create(&backend, &sim) == ZR_OK &&
           zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                              .reserve_bytes = reserve_granules * GRANULE}) ==
               ZR_OK;
}

/* A region on addresses that hold no memory: those that would fit best hold what may not move, and what is
 * behind all blocks is exactly enough. */
static void test_last_addresses(void)
{
    struct zr_extent *region;
    if (!tap_ok(begin_with(HELD + 1 + HELD, 0), "an arena with addresses for two regions"))
        return;
    char *held = take(HELD * GRANULE), *wall = take(GRANULE);
    set(held, ZR_GRANULE_FIXED);
    zr_arena_free(arena, held);
    zr_arena_acquire(arena);
    tap_result(zr_region_reserve_clear(arena, HELD * GRANULE, &region), ZR_OK, "the last addresses do");
    tap_is(region ? region->offset_bytes : 0, (size_t)(wall - arena->base) + GRANULE, "where they begin");
    zr_region_release(arena, region);
    tap_result(zr_region_reserve_clear(arena, (HELD + 1) * GRANULE, &region), ZR_ERR_ADDRESSES,
               "there are no more of them");
    zr_arena_release(arena);
    zr_arena_free(arena, wall);
    end();
}

/* Runs of two granules, in cache, are all the memory there is, and one granule is asked for. */
static void test_runs_in_cache(void)
{
    enum { ALL_OF_IT = 512 };
    struct zr_extent *region;
    struct zr_handle_list list;
    if (!tap_ok(begin_with(4 * ALL_OF_IT, ALL_OF_IT), "an arena whose backend has 512 granules"))
        return;
    zr_arena_free(arena, take(ALL_OF_IT * GRANULE));
    zr_arena_acquire(arena);
    zr_region_reserve_clear(arena, ALL_OF_IT * GRANULE, &region);
    zr_region_release(arena, region);
    zr_arena_release(arena);
    tap_is(stats().cached_bytes, ALL_OF_IT * GRANULE, "all of them are in cache");
    tap_result(zr_granules_take(arena, GRANULE, &list), ZR_OK, "a run is broken up for one");
    tap_is(stats().reserved_bytes, (ALL_OF_IT - 1) * GRANULE, "and the rest of it is the backend's");
    struct zr_handle_list two;
    tap_result(zr_granules_take(arena, 2 * GRANULE, &two), ZR_OK, "another for two");
    tap_is(stats().reserved_bytes, (ALL_OF_IT - 1) * GRANULE, "and no third");
    zr_granules_give(arena, &list);
    zr_granules_give(arena, &two);
    end();
}

/* Granules that do not follow one another take a mapping each: of a budget of 40 three quarters, then a fresh
 * run takes the place of the others. */
static void test_scattered(void)
{
    enum { BUDGET = 40, COUNT = BUDGET + 4 };
    struct zr_handle_list all, parts[2] = {{0}, {0}};
    zr_option_set("vma_budget:40");
    bool begun = begin(true);
    zr_arena_destroy(arena, NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = 1024 * GRANULE});
    tap_ok(begun && zr_granules_take(arena, COUNT * GRANULE, &all) == ZR_OK, "44 granules");
    for (unsigned i = 0; i < COUNT; i++)
        zr_handle_list_push(&parts[i % 2], zr_handle_list_pop(&all));
    zr_granules_give(arena, &parts[0]);
    zr_granules_give(arena, &parts[1]);
    char *block = take(COUNT * GRANULE);
    tap_ok(block && backend->vmas_count == BUDGET / 4 * 3 + 1, "a block on them all has %zu mappings",
           backend->vmas_count);
    tap_is(stats().reserved_bytes, COUNT * GRANULE, "and no more memory than before");
    zr_arena_free(arena, block);
    end();
    zr_option_set(NULL);
}

/* ---- Memory that goes from under blocks ---------------------------------------------------------------- */

static zr_result no_callback(void *nothing, void *address, size_t bytes)
{
    (void)nothing, (void)address, (void)bytes;
    return ZR_OK;
}

/* How many parts there are to spill that have `which` of the order first. */
static unsigned count_parts(unsigned which, struct zr_vacancy *first)
{
    static const zr_tag order[] = {ZR_TAG_OPTIMIZER, ZR_TAG_GRAD};
    struct zr_vacancy part;
    unsigned count = 0;
    for (const char *from = NULL; zr_vacancy_find(arena, order, 2, which, from, &part);
         from = part.memory + part.bytes)
        if (count++ == 0)
            *first = part;
    return count;
}

static void test_spill(void)
{
    const struct zr_map_callback callback = {.mapped = no_callback};
    struct zr_vacancy part = {0}, other = {0};
    if (!tap_ok(begin(true), "an arena on the host, whose blocks' memory can go"))
        return;
    char *grads = take(3 * GRANULE);
    char *mixed[4] = {take(GRANULE / 2), take_as(arena, GRANULE / 2, ZR_TAG_OPTIMIZER, 0), take(GRANULE / 2),
                      take_as(arena, GRANULE / 2, ZR_TAG_PARAM, 0)};
    tap_is(count_parts(1, &part), 3, "three granules have gradients alone");
    tap_ok(part.memory == grads && part.bytes == GRANULE, "the first of them first");
    tap_is(count_parts(0, &other), 1, "one has a block of the tag that goes first");
    tap_ok(other.memory <= mixed[1] && other.memory + other.bytes > mixed[1], "which is there");
    zr_arena_add_map_callback(arena, &callback);
    tap_is(count_parts(1, &other), 0, "with a map callback none goes");
    zr_arena_remove_map_callback(arena, &callback);
    zr_arena_set_granule_class(arena, grads + GRANULE, 1, ZR_GRANULE_REGISTERED);
    tap_is(count_parts(1, &other), 2, "nor one that may not move");
    zr_arena_set_granule_class(arena, grads + GRANULE, 1, ZR_GRANULE_MOVABLE);
    size_t held = backend->held_bytes;
    tap_result(zr_vacate(arena, &part), ZR_OK, "the first goes");
    tap_ok(count_parts(1, &other) == 2 && backend->held_bytes == held - GRANULE, "and is not there twice");
    tap_result(zr_occupy(arena, &part), ZR_OK, "it comes again");
    tap_ok(count_parts(1, &other) == 3 && backend->held_bytes == held && *part.memory == 0, "empty");
    for (unsigned i = 0; i < 4; i++)
        zr_arena_free(arena, mixed[i]);
    zr_arena_free(arena, grads);
    end();
}

int main(void)
{
    for (int i = ZR_GRANULE_REGISTERED; i < ZR_GRANULE_CLASS_COUNT; i++)
        test_class((enum zr_granule_class)i);
    test_part();
    test_plan(false);
    test_plan(true);
    test_export();
    test_misuse();
    test_fix();
    test_last_addresses();
    test_runs_in_cache();
    test_scattered();
    test_spill();
    return tap_done();
}
