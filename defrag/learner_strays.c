/* learner_strays.c: what strays may hold, foreseen by drawing some.
 *
 * Strays are taken to be like the plan's steps in size and lifetime, and to come as often as while those were
 * seen. The most that they hold varies much from pass to pass, as one large one decides it: a number of
 * passes is drawn, and all but the worst few are provided for. */
#include "defrag/learner.h"

#include "alloc/sort.h"

enum {
    PASSES = 128,
    WORST = 2,        /* of them, left out */
    DRAWS = 1 << 21,  /* in all: some milliseconds */
    STRAYS_MOST = 50, /* of a thousand: what is more is no stray */
};

/* xorshift64*. */
static inline uint64_t draw(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (*state * UINT64_C(0x2545f4914f6cdd1d)) >> 32;
}

/* The steps between a stray of this step's lifetime and its free, all lanes' steps counted. */
static size_t lifetime_of(const struct zr_plan *plan, size_t step)
{
    const struct zr_plan_lane *lane = plan->lanes;
    while (step >= lane->first + lane->count)
        lane++;
    size_t alive = plan->steps[step].alive_count ? plan->steps[step].alive_count : lane->count;
    return alive * plan->steps_count / lane->count;
}

/* The most bytes that strays hold in each of `passes`. `due`: bytes freed at each step from now on, a ring.
 */
static void draw_passes(const struct zr_plan *plan, uint64_t *due, struct zr_sort_pair *most, size_t passes)
{
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15), live = 0, count = plan->steps_count;
    size_t at = 0, room = count + 1;
    for (size_t pass = 0; pass < passes; pass++) {
        most[pass] = (struct zr_sort_pair){.key = live};
        for (size_t i = 0; i < count; i++, at = at + 1 == room ? 0 : at + 1) {
            live -= due[at];
            due[at] = 0;
            if (draw(&state) * count >> 32 >= plan->strays_count)
                continue;
            uint64_t bytes = plan->steps[draw(&state) % count].request.bytes;
            size_t alive = lifetime_of(plan, draw(&state) % count);
            /* Taken for the step that comes next, it puts others out of their places, for long at worst. */
            if (bytes == plan->steps[i + 1 < count ? i + 1 : 0].request.bytes)
                alive = count;
            size_t end = at + (alive < count ? alive : count);
            due[end < room ? end : end - room] += bytes;
            live += bytes;
            if (live > most[pass].key)
                most[pass].key = live;
        }
    }
}

void zr_candidate_expect_strays(struct zr_candidate *candidate)
{
    struct zr_plan *plan = &candidate->plan;
    struct zr_scratch scratch = {0};
    struct zr_plan foreseen = *plan;
    size_t passes = plan->steps_count ? DRAWS / plan->steps_count : 0;
    passes = passes > PASSES ? PASSES : passes < WORST + 1 ? WORST + 1 : passes;
    plan->strays_bytes = 0;
    if (plan->steps_count == 0 || plan->strays_count * 1000 > plan->steps_count * STRAYS_MOST)
        return;
    foreseen.strays_count++; /* few say little of how many there may be */
    uint64_t *due = zr_scratch_take(&scratch, plan->steps_count + 1, sizeof *due);
    struct zr_sort_pair *most = zr_scratch_take(&scratch, 2 * passes, sizeof *most);
    if (scratch.result == ZR_OK) {
        draw_passes(&foreseen, due, most, passes);
        zr_sort_pairs(most, most + passes, passes);
        plan->strays_bytes = most[passes - 1 - WORST].key;
    }
    zr_scratch_end(&scratch);
}
