/* follow_strays_test.c: the memory that is kept for what comes beside a plan: how much at most, whether it is
 * made again once it was given back, and what becomes of it where there is none. */
#include "tests/plans_support.h"
#include "tests/tap.h"

enum { GRANULE_MIB = 2, STEPS = 16 };

static struct zr_plan_step steps[STEPS];
static struct zr_plan_lane lane = {.count = STEPS, .any = true};
static struct zr_plan plan;
static size_t seen_bytes; /* beside them, in the plans to come */

static void begin(size_t capacity_bytes, size_t reserve_bytes)
{
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE_MIB * MIB,
                                                             .capacity_bytes = capacity_bytes});
    zr_arena_create(&arena, &(struct zr_arena_options){
                                .backend = backend, .name = "strays", .reserve_bytes = reserve_bytes});
}

static void end(void)
{
    size_t leaked = 1;
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right at the end");
    tap_ok(zr_arena_destroy(arena, &leaked) == ZR_OK && zr_backend_destroy(backend) == ZR_OK,
           "and nothing is left");
}

static struct zr_arena_stats stats(void)
{
    struct zr_arena_stats out;
    zr_arena_get_stats(arena, &out);
    return out;
}

/* All live together, side by side. */
static void install(size_t first_bytes, size_t bytes, size_t strays_bytes)
{
    steps[0] = step(first_bytes, 0, STEPS);
    for (size_t i = 1; i < STEPS; i++)
        steps[i] = step(bytes, first_bytes + (i - 1) * bytes, (uint32_t)(STEPS - i));
    plan = (struct zr_plan){.steps = steps,
                            .steps_count = STEPS,
                            .lanes = &lane,
                            .lanes_count = 1,
                            .region_bytes = first_bytes + (STEPS - 1) * bytes,
                            .strays_count = strays_bytes > 0,
                            .strays_seen_bytes = seen_bytes,
                            .strays_bytes = strays_bytes};
    tap_result(zr_arena_install_plan(arena, &plan), ZR_OK, "a plan that expects %zu MiB of strays",
               strays_bytes / MIB);
}

static void go_round(void)
{
    char *blocks[STEPS];
    for (size_t i = 0; i < STEPS; i++)
        blocks[i] = take(steps[i].request.bytes);
    for (size_t i = 0; i < STEPS; i++)
        zr_arena_free(arena, blocks[i]);
}

/* A block beside the plan that comes and goes; the driver calls it took. */
static uint64_t stray(size_t bytes)
{
    uint64_t before = stats().backend_calls_count;
    zr_arena_free(arena, take(bytes));
    return stats().backend_calls_count - before;
}

static uint64_t settle(void)
{
    uint64_t before = stats().backend_calls_count;
    zr_arena_settle_plan(arena);
    return stats().backend_calls_count - before;
}

/* What is kept beside the plan, however little was reserved before. */
static size_t least_room(void)
{
    size_t margin_bytes = plan.region_bytes / 16 + 16 * GRANULE_MIB * MIB,
           stray_bytes = steps[0].request.bytes;
    return margin_bytes + (stray_bytes > margin_bytes ? stray_bytes : margin_bytes);
}

/* ---- How much ------------------------------------------------------------------------------------------ */

static void test_expected(void)
{
    begin(0, 0);
    install(MIB, MIB, 2048 * MIB);
    go_round();
    settle();
    size_t most = STEPS * MIB + least_room();
    tap_ok(stats().reserved_bytes <= most, "what is foreseen is not kept where there was never so much");
    tap_ok(stray(least_room() - 2 * MIB) == 0 && stats().reserved_bytes <= most, "and a part of it is");
    end();

    begin(0, 0);
    install(512 * MIB, MIB, 2048 * MIB);
    go_round();
    settle();
    tap_ok(stats().reserved_bytes <= plan.region_bytes + least_room() + 2 * GRANULE_MIB * MIB,
           "beside one large step neither");
    tap_is(stray(511 * MIB), 0, "though as much as that, once more");
    end();

    begin(0, 0);
    seen_bytes = 512 * MIB;
    install(MIB, MIB, 2048 * MIB);
    seen_bytes = 0;
    go_round();
    settle();
    tap_ok(stats().reserved_bytes <= 512 * MIB + most, "nor beside strays that were seen before");
    tap_is(stray(512 * MIB), 0, "though as much as they held, once more");
    end();

    begin(0, 0);
    zr_arena_free(arena, take(512 * MIB));
    install(MIB, MIB, 2048 * MIB);
    go_round();
    settle();
    tap_ok(stats().reserved_bytes <= 512 * MIB && stats().peak_reserved_bytes == 512 * MIB,
           "what there was already may be kept, and no more");
    tap_is(stray(512 * MIB - STEPS * MIB), 0, "all of it");
    end();

    begin(0, 0);
    char *weights = take(512 * MIB);
    install(MIB, MIB, 2048 * MIB);
    go_round();
    settle();
    tap_ok(stats().reserved_bytes <= 512 * MIB + most, "what lives since before the plan makes no room");
    zr_arena_free(arena, weights);
    end();
}

/* Dynamic blocks take the memory of a plan that is not kept to: it is no reason to have as much again. */
static void test_lost(void)
{
    size_t plan_bytes = STEPS * 16 * MIB;
    begin(0, 0);
    install(16 * MIB, 16 * MIB, 0);
    go_round();
    settle();
    stray(plan_bytes - 8 * MIB);
    tap_ok(stats().peak_reserved_bytes < plan_bytes + 32 * MIB, "a stray takes what the plan does not use");
    settle();
    tap_ok(stats().reserved_bytes <= plan_bytes + least_room(),
           "the room for the next one is no second plan");
    uint64_t before = stats().backend_calls_count;
    go_round();
    tap_is(stats().backend_calls_count - before, 0, "the plan has all its memory again");
    end();
}

/* A plan in force, and 48 MiB beside it for strays. */
static void begin_with_room(void)
{
    begin(0, 0);
    install(MIB, MIB, 48 * MIB);
    go_round();
    settle();
}

/* What the room lacks is added where it lies, so that all of it serves one stray afterwards. */
static void test_grown(void)
{
    begin_with_room();
    uint64_t before = stats().backend_calls_count;
    char *first = take(40 * MIB), *second = take(40 * MIB);
    tap_ok(stats().backend_calls_count > before, "two strays are more than the room");
    tap_ok(stats().reserved_bytes <= STEPS * MIB + 80 * MIB, "and take what it lacks, no more");
    zr_arena_free(arena, first);
    zr_arena_free(arena, second);
    tap_is(stray(80 * MIB), 0, "one as large as both fits what they have left");
    end();
}

/* ---- Given back, refused --------------------------------------------------------------------------------
 */

static void test_trimmed(void)
{
    begin_with_room();
    tap_is(stray(16 * MIB), 0, "a stray fits the room");
    zr_arena_trim(arena, 0, NULL);
    tap_is(stats().reserved_bytes, 0, "a trim takes the room");
    go_round();
    tap_ok(settle() > 0, "it is made again");
    tap_is(stray(40 * MIB), 0, "and fits once more");
    end();
}

/* A plan of the same steps keeps what is known of strays; what was idle beyond the room goes, and in a row
 * that has lost some, the next stray would not fit. */
static void test_replaced(void)
{
    begin_with_room();
    struct zr_plan_lane same = {.count = STEPS, .any = true, .cursor = ZR_PLAN_KEEP_CURSOR};
    plan.lanes = &same;
    tap_result(zr_arena_install_plan(arena, &plan), ZR_OK, "the same plan in another region");
    go_round();
    settle();
    tap_is(stray(40 * MIB), 0, "what was kept beside the first is kept beside the second");
    end();
}

static void test_refused(void)
{
    begin(60 * MIB, 0);
    install(MIB, MIB, 64 * MIB);
    go_round();
    tap_ok(settle() > 0, "a room that the device has no memory for is asked for");
    tap_is(settle() + settle(), 0, "once");
    zr_arena_trim(arena, 0, NULL);
    go_round();
    tap_ok(settle() > 0, "and again when memory was given back");
    end();

    begin(0, 40 * MIB);
    install(MIB, MIB, 64 * MIB);
    go_round();
    settle();
    tap_ok(stats().reserved_bytes > 40 * MIB && stats().peak_reserved_bytes >= stats().reserved_bytes,
           "what is reserved without addresses for it counts for the peak");
    end();
}

int main(void)
{
    test_expected();
    test_lost();
    test_grown();
    test_trimmed();
    test_replaced();
    test_refused();
    return tap_done();
}
