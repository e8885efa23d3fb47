/* learner_strays_test.c: what came beside the steps of a plan while they were seen: how many strays, and the
 * most that they held at once; in both occurrences, and in as much as there is of a third. */
#include "defrag/learner.h"
#include "tests/tap.h"

#define MIB ((uint64_t)1 << 20)

enum { STEPS = 40, SEEN_MOST = 3 * STEPS + 8 };

static struct zr_seen seen[SEEN_MOST];
static size_t seen_count;

/* An allocation that is freed before the one so many on; 0: not seen to be freed. */
static void add(uint64_t bytes, uint32_t alive_count)
{
    seen[seen_count] = (struct zr_seen){
        .bytes = bytes,
        .alignment = 256,
        .thread = 1,
        .hash = (uint32_t)(bytes >> 8),
        .upper = alive_count ? (uint32_t)seen_count + alive_count : ZR_SEEN_LIVE,
        .tag = ZR_TAG_ACTIVATION,
    };
    seen_count++;
}

/* Steps from `first` on, no two of a size. */
static void add_steps(size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        add(64 * MIB + i * 4096, 3);
}

/* Two strays that are live together for a while. */
static void add_pair(uint64_t first_bytes, uint64_t second_bytes)
{
    add(first_bytes, 5);
    add_steps(10, 12);
    add(second_bytes, 5);
}

/* A whole occurrence with two strays; they have two steps in between. */
static void add_occurrence(uint64_t first_bytes, uint64_t second_bytes)
{
    add_steps(0, 10);
    add_pair(first_bytes, second_bytes);
    add_steps(12, STEPS);
}

static struct zr_plan plan_of(size_t first_count, size_t second_count)
{
    struct zr_candidate candidate;
    struct zr_seen_lane lane = {.seen = seen,
                                .first_count = first_count,
                                .second_count = second_count,
                                .count = seen_count,
                                .any = true};
    tap_result(zr_candidate_make(&candidate, &lane, 1, (struct zr_pack_here){0}), ZR_OK,
               "two occurrences make a plan");
    struct zr_plan plan = candidate.plan;
    zr_candidate_end(&candidate);
    return plan;
}

int main(void)
{
    add_steps(0, STEPS);
    add_steps(0, STEPS);
    add_steps(0, 20);
    struct zr_plan plan = plan_of(STEPS, STEPS);
    tap_ok(plan.steps_count == STEPS && plan.strays_count == 0 && plan.strays_seen_bytes == 0,
           "without strays none are seen");

    seen_count = 0;
    add_steps(0, STEPS);
    add_occurrence(5 * MIB, 7 * MIB);
    add_steps(0, 20);
    plan = plan_of(STEPS, STEPS + 2);
    tap_is(plan.steps_count, STEPS, "strays are no steps");
    tap_is(plan.strays_count, 2, "and are counted");
    tap_is(plan.strays_seen_bytes, 12 * MIB, "what both held while they were live together");

    seen_count = 0;
    add_occurrence(30 * MIB, MIB);
    add_occurrence(5 * MIB, 7 * MIB);
    add_steps(0, 20);
    plan = plan_of(STEPS + 2, STEPS + 2);
    tap_is(plan.strays_seen_bytes, 31 * MIB, "the first occurrence's strays count too");

    seen_count = 0;
    add_steps(0, STEPS);
    add_occurrence(5 * MIB, 7 * MIB);
    add_steps(0, 10);
    add_pair(20 * MIB, 21 * MIB);
    add_steps(12, 20);
    plan = plan_of(STEPS, STEPS + 2);
    tap_is(plan.strays_seen_bytes, 41 * MIB, "and those of the third as far as it has come");

    seen_count = 0;
    add_steps(0, STEPS);
    add_occurrence(5 * MIB, 7 * MIB);
    for (size_t i = 0; i < 20; i++)
        add(100 * MIB + i, 0);
    plan = plan_of(STEPS, STEPS + 2);
    tap_is(plan.strays_seen_bytes, 12 * MIB, "where something else has begun, nothing of it is a stray");
    return tap_done();
}
