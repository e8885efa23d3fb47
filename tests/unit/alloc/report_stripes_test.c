/* report_stripes_test.c: what an arena for several threads says when it has no memory: of all its members,
 * not of the one that was asked. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "alloc/core/arena.h"
#include "alloc/front/stripes.h"
#include "alloc/base/error.h"
#include "tests/support/blocks.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)
enum { THREADS = 4, HOLES = 4 };

static void start(size_t limit_bytes)
{
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                                  .name = "shared",
                                                                  .reserve_bytes = (size_t)1 << 30,
                                                                  .limit_bytes = limit_bytes,
                                                                  .threads = THREADS}),
               ZR_OK, "an arena for %d threads", THREADS);
    tap_is(zr_arena_add_stripe(arena, 1), 1, "with a stripe");
}

static void stop(void)
{
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    zr_arena_destroy(arena, NULL);
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
}

static void says(const char *words)
{
    tap_ok(strstr(zr_last_error(), words) != NULL, "\"%s\"", words);
}

/* Holes of half a granule in one member, each pinned by a block there; the other, or the same, is asked. */
static void test_holes(bool ask_sibling, bool holes_in_sibling)
{
    void *holes[HOLES];
    start(2 * HOLES * GRANULE);
    struct zr_arena *stripe = arena->stripes[0], *holed = holes_in_sibling ? stripe : arena,
                    *full = holes_in_sibling ? arena : stripe, *asked = ask_sibling ? stripe : arena;
    tap_ok(take_as(full, HOLES * GRANULE, ZR_TAG_GRAD, 0) != NULL, "one member is full");
    for (unsigned i = 0; i < HOLES; i++) {
        take_as(holed, GRANULE / 2, ZR_TAG_PARAM, 0);
        holes[i] = take_as(holed, GRANULE / 2, ZR_TAG_ACTIVATION, 0);
    }
    for (unsigned i = 0; i < HOLES; i++)
        zr_arena_free(arena, holes[i]);
    void *none = take_as(asked, 2 * GRANULE, ZR_TAG_COMM, 0);
    tap_ok(none == NULL, "%s is asked, holes in %s: %s", ask_sibling ? "the stripe" : "the head",
           holes_in_sibling ? "the stripe" : "the head", zr_last_error());
    says("arena \"shared\" has no 128 KiB (131072 bytes) for comm: fragmentation. ");
    says("384 KiB live (256 KiB of it grad), 128 KiB free in 4 holes, ");
    says("the largest free run 32.0 KiB (32768 bytes), in granules shared with blocks of param (128 KiB). ");
    says("ZR_CONF=granule:32k");
    says("524288 of its limit of 524288 bytes");
    tap_ok(take_as(asked, 4 * GRANULE, ZR_TAG_COMM, 0) == NULL, "more than is free anywhere");
    says(": shortage. ");
    stop();
}

/* Addresses that others have left are of no use to the member that is asked. */
static void test_addresses(void)
{
    start((size_t)4 << 30);
    for (unsigned i = 0; i < 2; i++) {
        tap_ok(take_as(i ? arena->stripes[0] : arena, (size_t)3 << 29, ZR_TAG_COMM, 0) == NULL,
               "more than one member's addresses");
        says(": shortage of addresses. ");
        take_as(i ? arena->stripes[0] : arena, (size_t)7 << 27, ZR_TAG_COMM, 0);
        says(": fragmentation of addresses. ");
    }
    stop();
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

static _Atomic unsigned reports, wrong;

/* Until there is no more, again and again: reports of members that look at each other. */
static void *exhaust(void *own)
{
    enum { ROUNDS = 30, MOST = 64 };
    void *blocks[MOST];
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned count = 0;
        while (count < MOST && (blocks[count] = take_as(own, GRANULE / 2 + 256 * round, ZR_TAG_GRAD, 0)))
            count++;
        if (count < MOST) {
            atomic_fetch_add(&reports, 1);
            const char *said = zr_last_error();
            if (!strstr(said, "arena \"shared\" has no ") || !strstr(said, "What would help: "))
                atomic_fetch_add(&wrong, 1);
        }
        while (count > 0)
            if (zr_arena_free(arena, blocks[--count]) != ZR_OK)
                atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[THREADS];
    start(20 * GRANULE);
    tap_is(zr_arena_add_stripe(arena, 2), 1, "and another");
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, exhaust, i % 3 ? arena->stripes[i % 3 - 1] : arena);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tap_ok(atomic_load(&reports) >= THREADS, "%u reports of %d threads", atomic_load(&reports), THREADS);
    tap_is(atomic_load(&wrong), 0, "all in words");
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
    tap_is(stats.live_bytes, 0, "and nothing is left live");
    stop();
}

int main(void)
{
    for (unsigned i = 0; i < 4; i++)
        test_holes(i & 1, i & 2);
    test_addresses();
    test_threads();
    return tap_done();
}
