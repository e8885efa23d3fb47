/* granule_class_test.c: granules that are registered, exported or fixed stay where they are: not stolen, not
 * trimmed, not given back by a plan, until they are movable again. */
#include <string.h>

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
    return tap_done();
}
