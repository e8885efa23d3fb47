/* tag_limits_test.c: the bytes that tags may have: the exact edge, room that comes back, all tags together,
 * what a rehearsal reached as the tag limits of a run, pools, a plan in force, threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "alloc/core/arena.h"
#include "alloc/front/stripes.h"
#include "tests/support/draws.h"
#include "tests/support/plans_support.h"
#include "tests/support/tap.h"

#define UNIT    ((size_t)256)
#define GRANULE (64 * KIB)
enum { STEPS = 4, THREADS = 4, EACH = 2000, BLOCKS = 64, ROUNDS = 40000 };

static void begin(bool host, unsigned threads)
{
    if (host)
        zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = GRANULE});
    else
        zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                                  .name = "bounded",
                                                                  .reserve_bytes = 64 * MIB,
                                                                  .threads = threads}),
               ZR_OK, "an arena on %s", host ? "host" : "sim");
}

static void end(size_t want_leaked)
{
    size_t leaked = 1;
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right at the end");
    tap_result(zr_arena_destroy(arena, &leaked), ZR_OK, "the arena ends");
    tap_is(leaked, want_leaked, "and nothing is lost");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend too");
}

static zr_result ask(zr_tag tag, size_t bytes, void **out)
{
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = tag}, out);
}

static struct zr_tag_limits none(void)
{
    struct zr_tag_limits tag_limits = {.total_bytes = SIZE_MAX};
    for (int tag = 0; tag < ZR_TAG_COUNT; tag++)
        tag_limits.by_tag_bytes[tag] = SIZE_MAX;
    return tag_limits;
}

static void set(zr_tag tag, size_t bytes)
{
    struct zr_tag_limits tag_limits = none();
    tag_limits.by_tag_bytes[tag] = bytes;
    tap_result(zr_arena_set_tag_limits(arena, &tag_limits), ZR_OK, "%s may have %zu bytes", zr_tag_name(tag),
               bytes);
}

static struct zr_tag_limits reached(void)
{
    struct zr_tag_limits out;
    if (zr_arena_get_high_water(arena, &out) != ZR_OK)
        tap_ok(false, "what was reached is known: %s", zr_last_error());
    return out;
}

static bool says(const char *words)
{
    return strstr(zr_last_error(), words) != NULL;
}

/* ---- One thread ---------------------------------------------------------------------------------------- */

static void test_edge(bool host)
{
    void *block[4], *more = &more;
    begin(host, 1);
    set(ZR_TAG_GRAD, 4 * UNIT);
    tap_result(ask(ZR_TAG_GRAD, 2 * UNIT, &block[0]), ZR_OK, "below the tag limit");
    tap_result(ask(ZR_TAG_GRAD, UNIT + 1, &block[1]), ZR_OK, "at it, with rounding");
    struct zr_arena_stats before = stats();
    tap_is(before.live_by_tag_bytes[ZR_TAG_GRAD], 4 * UNIT, "to the byte");
    tap_result(ask(ZR_TAG_GRAD, 1, &more), ZR_ERR_TAG_LIMIT, "one byte, and so one unit, above");
    tap_ok(!more, "comes to nothing");
    tap_ok(says("256 bytes for grad") && says("1280 in arena \"bounded\"") && says("1 requested") &&
               says("1024 live") && says("tag limit is 1024"),
           "in words: %s", zr_last_error());
    tap_is(strcmp(zr_result_name(ZR_ERR_TAG_LIMIT), "tag limit"), 0, "of a failure that has a name");
    struct zr_arena_stats after = stats();
    tap_is(memcmp(&before, &after, sizeof before), 0, "and changes nothing");

    tap_result(ask(ZR_TAG_PARAM, GRANULE, &block[2]), ZR_OK, "another tag has no tag limit");
    tap_result(ask(ZR_TAG_OTHER, GRANULE, &block[3]), ZR_OK, "nor has other");
    tap_result(zr_arena_free(arena, block[0]), ZR_OK, "a block is freed");
    tap_result(ask(ZR_TAG_GRAD, 2 * UNIT + 1, &more), ZR_ERR_TAG_LIMIT, "more than that is refused");
    tap_result(ask(ZR_TAG_GRAD, 2 * UNIT, &block[0]), ZR_OK, "and there is room for as much again");
    tap_result(ask(ZR_TAG_GRAD, SIZE_MAX / 4, &more), ZR_ERR_TAG_LIMIT, "no size is so large that it passes");
    tap_result(ask(ZR_TAG_GRAD, 0, &more), ZR_ERR_INVALID, "what is no request is none here");

    zr_arena_free(arena, block[1]);
    set(ZR_TAG_GRAD, 3 * UNIT - 1);
    tap_result(ask(ZR_TAG_GRAD, 1, &more), ZR_ERR_TAG_LIMIT, "a tag limit one byte short of a unit");
    set(ZR_TAG_GRAD, 3 * UNIT);
    tap_result(ask(ZR_TAG_GRAD, 1, &block[1]), ZR_OK, "and one of the whole of it");

    tap_result(zr_arena_set_tag_limits(arena, NULL), ZR_OK, "tag limits end");
    tap_result(ask(ZR_TAG_GRAD, UNIT, &more), ZR_OK, "and what they refused goes");
    struct zr_tag_limits out;
    tap_result(zr_arena_get_high_water(arena, &out), ZR_ERR_INVALID, "nothing is noted then");
    zr_arena_free(arena, more);
    for (int i = 0; i < 4; i++)
        zr_arena_free(arena, block[i]);
    end(0);
}

/* A request for which there is no memory leaves nothing of what it would have had. */
static void test_no_memory(void)
{
    void *block[2], *more;
    begin(false, 1);
    zr_arena_destroy(arena, NULL);
    tap_result(
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = 2 * GRANULE}),
        ZR_OK, "an arena of two granules");
    set(ZR_TAG_GRAD, 4 * GRANULE);
    tap_result(ask(ZR_TAG_GRAD, 3 * GRANULE, &more), ZR_ERR_MEMORY, "three are too many");
    tap_result(ask(ZR_TAG_GRAD, GRANULE, &block[0]), ZR_OK, "one is there");
    tap_result(ask(ZR_TAG_GRAD, GRANULE, &block[1]), ZR_OK, "and another, within the tag limit");
    for (int i = 0; i < 2; i++)
        zr_arena_free(arena, block[i]);
    end(0);
}

/* Set late, they take nothing from what is there. */
static void test_late(void)
{
    void *block[3], *more;
    begin(true, 1);
    for (int i = 0; i < 3; i++)
        ask(ZR_TAG_ACTIVATION, UNIT, &block[i]);
    set(ZR_TAG_ACTIVATION, 2 * UNIT);
    tap_is(reached().by_tag_bytes[ZR_TAG_ACTIVATION], 3 * UNIT, "what is live counts as reached");
    tap_result(ask(ZR_TAG_ACTIVATION, 1, &more), ZR_ERR_TAG_LIMIT, "with more live than there may be");
    zr_arena_free(arena, block[0]);
    tap_result(ask(ZR_TAG_ACTIVATION, 1, &more), ZR_ERR_TAG_LIMIT, "and with as much");
    zr_arena_free(arena, block[1]);
    tap_result(ask(ZR_TAG_ACTIVATION, 1, &more), ZR_OK, "but not with less");
    set(ZR_TAG_ACTIVATION, 0);
    zr_arena_free(arena, more);
    zr_arena_free(arena, block[2]);
    tap_result(ask(ZR_TAG_ACTIVATION, 1, &more), ZR_ERR_TAG_LIMIT, "a tag limit of nothing");
    end(0);

    tap_result(zr_arena_set_tag_limits(NULL, NULL), ZR_ERR_INVALID, "tag limits of no arena");
    tap_result(zr_arena_get_high_water(NULL, NULL), ZR_ERR_INVALID, "what no arena has reached");
}

static void test_together(void)
{
    struct zr_tag_limits tag_limits = none();
    void *block[3], *more;
    begin(true, 1);
    ask(ZR_TAG_OTHER, GRANULE, &block[0]);
    tag_limits.total_bytes = 3 * UNIT;
    tag_limits.by_tag_bytes[ZR_TAG_OTHER] = 0; /* not looked at */
    tap_result(zr_arena_set_tag_limits(arena, &tag_limits), ZR_OK, "all tags together have a tag limit");
    tap_result(ask(ZR_TAG_GRAD, UNIT, &block[1]), ZR_OK, "one of them");
    tap_result(ask(ZR_TAG_PARAM, 2 * UNIT, &block[2]), ZR_OK, "and another, to the tag limit");
    tap_result(ask(ZR_TAG_COMM, 1, &more), ZR_ERR_TAG_LIMIT, "a third is above it");
    tap_ok(says("for comm") && says("all tags together 1024") && says("tag limit is 768"), "in words: %s",
           zr_last_error());
    zr_arena_free(arena, block[1]);
    tap_result(ask(ZR_TAG_COMM, 1, &block[1]), ZR_OK, "until one is gone");
    tap_result(ask(ZR_TAG_OTHER, UNIT, &more), ZR_OK, "other has none of that");
    tap_is(reached().total_bytes, 3 * UNIT, "nor part in it");
    zr_arena_free(arena, more);
    for (int i = 0; i < 3; i++)
        zr_arena_free(arena, block[i]);
    end(0);
}

/* ---- What was reached ---------------------------------------------------------------------------------- */

/* A made-up step: random blocks of random tags, always the same. Returns the number of the allocation that is
 * refused, -1: none. */
static int made_up_step(size_t highest[ZR_TAG_COUNT], size_t *highest_together)
{
    struct {
        void *at;
        zr_tag tag;
        size_t bytes;
    } block[BLOCKS] = {0};
    size_t live[ZR_TAG_COUNT] = {0}, together = 0;
    int refused = -1, allocation = 0;
    random_state = 88172645463325252u;
    for (int i = 0; i < ROUNDS && refused < 0; i++) {
        size_t b = random_below(BLOCKS), bytes = UNIT * (1 + random_below(40));
        zr_tag tag = (zr_tag)random_below(ZR_TAG_OTHER);
        if (block[b].at) {
            zr_arena_free(arena, block[b].at);
            live[block[b].tag] -= block[b].bytes;
            together -= block[b].bytes;
            block[b].at = NULL;
            continue;
        }
        if (ask(tag, bytes, &block[b].at) != ZR_OK) {
            refused = allocation;
            break;
        }
        block[b].tag = tag;
        block[b].bytes = bytes;
        live[tag] += bytes;
        together += bytes;
        if (live[tag] > highest[tag])
            highest[tag] = live[tag];
        if (together > *highest_together)
            *highest_together = together;
        allocation++;
    }
    for (int b = 0; b < BLOCKS; b++)
        zr_arena_free(arena, block[b].at);
    return refused;
}

static void test_rehearsal(void)
{
    size_t highest[ZR_TAG_COUNT] = {0}, together = 0;
    struct zr_tag_limits tag_limits = none(), again;
    begin(false, 1);
    zr_arena_set_tag_limits(arena, &tag_limits);
    tap_is(made_up_step(highest, &together), -1, "a rehearsal without end to any tag");
    tag_limits = reached();
    struct zr_arena_stats peaks = stats();
    size_t apart = 0;
    bool each = true, above = false;
    for (int tag = 0; tag < ZR_TAG_OTHER; tag++) {
        each &= tag_limits.by_tag_bytes[tag] == highest[tag];
        above |= tag_limits.by_tag_bytes[tag] > peaks.peak_by_tag_bytes[tag];
        apart += highest[tag];
    }
    tap_ok(each, "knows the most of each tag");
    tap_ok(above && apart > together, "of which not all were there at the peak");
    tap_ok(tag_limits.total_bytes == together && together == peaks.peak_live_bytes, "and of all together");
    tap_is(tag_limits.by_tag_bytes[ZR_TAG_OTHER], SIZE_MAX, "other has no end");
    end(0);

    begin(true, 1);
    tap_result(zr_arena_set_tag_limits(arena, &tag_limits), ZR_OK, "a run under what was reached");
    tap_is(made_up_step(highest, &together), -1, "goes through");
    again = reached();
    tap_is(memcmp(&again, &tag_limits, sizeof again), 0, "and reaches the same");
    for (int tag = 0; tag < ZR_TAG_OTHER; tag++) {
        size_t before = tag_limits.by_tag_bytes[tag];
        tag_limits.by_tag_bytes[tag] -= UNIT;
        zr_arena_set_tag_limits(arena, &tag_limits);
        if (made_up_step(highest, &together) < 0 || !says(zr_tag_name((zr_tag)tag)))
            tap_ok(false, "a unit less for %s: %s", zr_tag_name((zr_tag)tag), zr_last_error());
        tag_limits.by_tag_bytes[tag] = before;
    }
    tag_limits.total_bytes -= UNIT;
    zr_arena_set_tag_limits(arena, &tag_limits);
    tap_ok(made_up_step(highest, &together) >= 0 && says("together"),
           "a unit less for all together, or for any one of them, does not do");
    end(0);
}

/* ---- Pools, rings, plans ------------------------------------------------------------------------------- */

static void test_pool(void)
{
    zr_contiguous *pool;
    zr_entry entry[3], more = 1;
    void *block, *address = &address;
    begin(true, 1);
    tap_result(zr_contiguous_create(&pool, &(struct zr_contiguous_options){.arena = arena,
                                                                           .tag = ZR_TAG_CHECKPOINT,
                                                                           .reserve_bytes = 16 * MIB}),
               ZR_OK, "a pool");
    set(ZR_TAG_CHECKPOINT, 3 * GRANULE);
    const struct zr_entry_request fixed = {.bytes = GRANULE};
    const struct zr_entry_request movable = {.bytes = GRANULE, .alignment = GRANULE, .movable = true};
    tap_result(zr_contiguous_append(pool, &fixed, &entry[0], NULL), ZR_OK, "an entry");
    tap_result(ask(ZR_TAG_CHECKPOINT, GRANULE, &block), ZR_OK, "a block of its tag counts with it");
    tap_result(zr_contiguous_append(pool, &movable, &entry[1], NULL), ZR_OK,
               "a movable one to the tag limit");
    tap_result(zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 1}, &more, &address),
               ZR_ERR_TAG_LIMIT, "one above");
    tap_ok(more == 0 && !address, "comes to nothing");
    tap_ok(says("for checkpoint") && says("1 requested"), "in words: %s", zr_last_error());
    tap_result(zr_contiguous_check(pool), ZR_OK, "and the pool is as it was");
    tap_result(ask(ZR_TAG_CHECKPOINT, 1, &address), ZR_ERR_TAG_LIMIT, "nor may a block be");

    zr_contiguous_free(pool, entry[0]);
    tap_result(zr_contiguous_compact(pool), ZR_OK, "with an entry gone the other moves");
    tap_is(reached().by_tag_bytes[ZR_TAG_CHECKPOINT], 3 * GRANULE, "which is none more");
    tap_result(zr_contiguous_append(pool, &fixed, &entry[2], NULL), ZR_OK, "and gives its room again");
    tap_result(zr_contiguous_append(pool, &fixed, &more, NULL), ZR_ERR_TAG_LIMIT, "once");
    zr_arena_free(arena, block);
    tap_result(zr_contiguous_append(pool, &fixed, &more, NULL), ZR_OK, "the block's room is the pool's too");
    zr_contiguous_free(pool, more);
    tap_result(zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 17 * MIB}, &more, NULL),
               ZR_ERR_TAG_LIMIT, "more than the pool reserves");
    zr_arena_set_tag_limits(arena, NULL);
    tap_result(zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 17 * MIB}, &more, NULL),
               ZR_ERR_ADDRESSES, "which fails without a tag limit too");
    set(ZR_TAG_CHECKPOINT, 32 * MIB);
    tap_result(zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = 17 * MIB}, &more, NULL),
               ZR_ERR_ADDRESSES, "and below one");
    tap_result(ask(ZR_TAG_CHECKPOINT, 32 * MIB - 2 * GRANULE, &block), ZR_OK,
               "and leaves all that was promised to it");
    zr_arena_free(arena, block);

    zr_ring *ring = NULL;
    set(ZR_TAG_COMM, 4 * UNIT);
    struct zr_ring_options options = {
        .arena = arena, .tag = ZR_TAG_COMM, .buffer_bytes = UNIT, .buffers_count = 5};
    tap_result(zr_ring_create(&ring, &options), ZR_ERR_TAG_LIMIT, "a ring of five buffers where four may be");
    options.buffers_count = 4;
    tap_result(zr_ring_create(&ring, &options), ZR_OK, "one of four");
    zr_ring_destroy(ring);
    tap_result(zr_contiguous_destroy(pool, NULL), ZR_OK, "the pool ends");
    end(0);
}

/* A plan gives places, not bytes: its steps are held to the tag limit as all others. */
static void test_plan(void)
{
    struct zr_plan_step steps[STEPS];
    void *block[STEPS], *unplanned;
    begin(true, 1);
    for (unsigned i = 0; i < STEPS; i++)
        steps[i] = step(GRANULE, i * GRANULE, STEPS - i);
    struct zr_plan_sequence sequence = {.count = STEPS, .any = true};
    const struct zr_plan plan = {.steps = steps,
                                 .steps_count = STEPS,
                                 .sequences = &sequence,
                                 .sequences_count = 1,
                                 .region_bytes = STEPS * GRANULE};
    tap_result(zr_arena_install_plan(arena, &plan), ZR_OK, "a plan");
    set(ZR_TAG_GRAD, STEPS * GRANULE);
    uint64_t calls = 0;
    for (int round = 0; round < 4; round++) {
        if (round == 2)
            calls = stats().backend_calls_count;
        for (int i = 0; i < STEPS; i++)
            block[i] = take(GRANULE);
        if (round == 2)
            tap_result(ask(ZR_TAG_GRAD, UNIT, &unplanned), ZR_ERR_TAG_LIMIT,
                       "an unplanned allocation beside the plan is refused");
        for (int i = 0; i < STEPS; i++)
            tap_result(block[i] ? zr_arena_free(arena, block[i]) : ZR_ERR_TAG_LIMIT, ZR_OK, "step %d", i);
    }
    tap_is(counts().planned_count, 4 * STEPS, "all steps are the plan's");
    tap_is(stats().backend_calls_count, calls, "and call no driver");
    set(ZR_TAG_GRAD, 2 * GRANULE);
    block[0] = take(GRANULE);
    block[1] = take(GRANULE);
    tap_ok(block[0] && block[1] && !take(GRANULE) && says("grad"), "a planned step above is refused: %s",
           zr_last_error());
    zr_arena_set_tag_limits(arena, NULL);
    for (int i = 2; i < STEPS; i++)
        block[i] = take(GRANULE);
    tap_is(counts().planned_count, 5 * STEPS, "and the plan goes on where it stood");
    for (int i = 0; i < STEPS; i++)
        zr_arena_free(arena, block[i]);
    zr_arena_install_plan(arena, NULL);
    end(0);
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

static zr_contiguous *shared_pool;
static _Atomic unsigned granted, wrong;

/* Asks until the end, for blocks or for entries, and frees none. */
static void *ask_only(void *entries)
{
    void *block;
    zr_entry entry;
    for (int i = 0; i < EACH; i++) {
        zr_result result =
            entries
                ? zr_contiguous_append(shared_pool, &(struct zr_entry_request){.bytes = UNIT}, &entry, NULL)
                : ask(ZR_TAG_GRAD, UNIT, &block);
        if (result != ZR_ERR_TAG_LIMIT)
            atomic_fetch_add(result == ZR_OK ? &granted : &wrong, 1);
    }
    return NULL;
}

static void run_threads(void *(*work)(void *), unsigned with_entries)
{
    pthread_t thread[THREADS];
    for (unsigned t = 0; t < THREADS; t++)
        pthread_create(&thread[t], NULL, work, t < with_entries ? &thread[t] : NULL);
    for (unsigned t = 0; t < THREADS; t++)
        pthread_join(thread[t], NULL);
}

/* Blocks come and go on all threads. */
static void *come_and_go(void *unused)
{
    void *block[8] = {NULL};
    uint64_t state = 88172645463325252u + (uintptr_t)&block;
    (void)unused;
    for (int i = 0; i < 4 * EACH; i++) {
        void **one = &block[xorshift64(&state) % 8];
        if (*one) {
            zr_arena_free(arena, *one);
            *one = NULL;
            continue;
        }
        zr_result result = ask(ZR_TAG_GRAD, UNIT * (1 + xorshift64(&state) % 3), one);
        if (result != ZR_OK && result != ZR_ERR_TAG_LIMIT)
            atomic_fetch_add(&wrong, 1);
    }
    for (int i = 0; i < 8; i++)
        zr_arena_free(arena, block[i]);
    return NULL;
}

static void test_threads(unsigned threads)
{
    enum { MOST = THREADS * EACH * 2 / 3 };
    begin(true, threads);
    granted = wrong = 0;
    set(ZR_TAG_GRAD, MOST * UNIT);
    run_threads(ask_only, 0);
    tap_is(granted, MOST, "of %d blocks of %d threads as many as there may be", THREADS * EACH, THREADS);
    tap_is(wrong, 0, "and no other failure");
    tap_is(atomic_load(&arena->stripes_count), 0, "from one place");
    end(MOST * UNIT);

    begin(true, threads);
    granted = 0;
    zr_contiguous_create(&shared_pool, &(struct zr_contiguous_options){
                                           .arena = arena, .tag = ZR_TAG_GRAD, .reserve_bytes = 16 * MIB});
    set(ZR_TAG_GRAD, MOST * UNIT);
    run_threads(ask_only, THREADS / 2);
    tap_is(granted, MOST, "and so when half of them append to a pool");
    tap_is(wrong, 0, "without another failure");
    tap_is(stats().live_by_tag_bytes[ZR_TAG_GRAD], MOST * UNIT, "by the arena's count");
    size_t entries_bytes = 0;
    zr_contiguous_destroy(shared_pool, &entries_bytes);
    end(MOST * UNIT - entries_bytes);

    begin(true, threads);
    set(ZR_TAG_GRAD, 20 * UNIT);
    run_threads(come_and_go, 0);
    size_t most = reached().by_tag_bytes[ZR_TAG_GRAD];
    tap_ok(most <= 20 * UNIT && most >= 18 * UNIT, "blocks that come and go: %zu of %zu bytes", most,
           20 * UNIT);
    tap_is(wrong, 0, "and no other failure");
    end(0);
}

/* Threads that have addresses of their own cannot be counted at one place any more. */
static void test_siblings(void)
{
    struct zr_tag_limits tag_limits = none();
    void *block;
    begin(true, 2);
    set(ZR_TAG_GRAD, UNIT);
    tap_is(zr_arena_add_stripe(arena, 1), 0, "no stripe while there are tag limits");
    set(ZR_TAG_GRAD, 2 * UNIT);
    zr_arena_set_tag_limits(arena, NULL);
    tap_is(zr_arena_add_stripe(arena, 1), 1, "one once they are gone, however often they were set");
    tap_result(zr_arena_set_tag_limits(arena, &tag_limits), ZR_ERR_INVALID, "then none are set any more: %s",
               zr_last_error());
    tap_result(zr_arena_set_tag_limits(arena, NULL), ZR_OK, "no tag limits can be had");
    tap_is(atomic_load(&arena->unstriped), 0, "and threads go apart");
    tap_result(ask(ZR_TAG_GRAD, 2 * UNIT, &block), ZR_OK, "with what they like");
    zr_arena_free(arena, block);
    end(0);
}

int main(void)
{
    test_edge(true);
    test_edge(false);
    test_no_memory();
    test_late();
    test_together();
    test_rehearsal();
    test_pool();
    test_plan();
    test_threads(1);
    test_threads(2);
    test_siblings();
    return tap_done();
}
