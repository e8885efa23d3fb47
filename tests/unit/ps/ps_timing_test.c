/* ps_timing_test.c: the timings of zero/ps/timing.c on random schedules, beside the definitions of zr_ps.h:
 * what a pull has and lacks, what is applied once and in which order, how far a worker runs ahead, and that a
 * run always ends. ZR_TEST_SCHEDULES sets their number. */
#include <string.h>

#include "tests/support/seed.h"
#include "zero/ps/timing.h"

enum { WORKERS = 4, TABLES = 3, STEPS = 5, PUSHES = 3, GROUPS = STEPS * PUSHES };

/* A worker of a schedule: where it is in its step. */
struct actor {
    unsigned pulls_left, pushes_left[TABLES];
    uint64_t ends_at; /* steps, before it leaves */
    bool gone;
};

struct schedule {
    struct zr_ps_timetable t;
    struct zr_ps_member members[WORKERS];
    struct zr_ps_lane lanes[TABLES * WORKERS];
    _Atomic uint64_t applied[TABLES];
    uint32_t pushes[TABLES];
    struct actor actors[WORKERS];
    bool pushed[TABLES][GROUPS][WORKERS], used[TABLES][GROUPS][WORKERS]; /* what the model knows */
    uint64_t random;
    const char *wrong;
};

static unsigned draw(struct schedule *s, unsigned below)
{
    return (unsigned)(splitmix64(&s->random) >> 33) % below;
}

static void expect(struct schedule *s, bool good, const char *what)
{
    if (!good && !s->wrong)
        s->wrong = what;
}

static unsigned groups(const struct schedule *s, unsigned table)
{
    return s->pushes[table] ? s->pushes[table] : 1;
}

static void begin_step(struct schedule *s, struct actor *actor)
{
    actor->pulls_left = draw(s, 3);
    for (unsigned table = 0; table < s->t.tables; table++)
        actor->pushes_left[table] = draw(s, 5) > 0 || groups(s, table) > 1 ? groups(s, table) : 0;
}

static bool grouped(const struct schedule *s)
{
    return s->t.timing.kind == ZR_PS_SYNC || s->t.timing.kind == ZR_PS_SSP;
}

/* Applies what is complete, and notes which pushes that are. */
static void settle(struct schedule *s)
{
    uint64_t group;
    for (unsigned table = 0; table < s->t.tables; table++)
        while (zr_ps_is_complete(&s->t, table, &group)) {
            expect(s, group < GROUPS, "no group after the last");
            for (unsigned w = 0; w < s->t.workers && !s->wrong; w++) {
                expect(s, !s->used[table][group][w], "a group is applied once");
                s->used[table][group][w] = true;
            }
            zr_ps_note_applied(&s->t, table, group);
            if (s->wrong)
                return;
        }
}

/* The definitions of zr_ps.h for a pull of worker `reader` in step c. */
static void check_pull(struct schedule *s, unsigned table, unsigned reader)
{
    uint64_t c = s->members[reader].clock, ahead = s->t.timing.kind == ZR_PS_SSP ? s->t.timing.parameter : 0;
    for (unsigned w = 0; w < s->t.workers; w++) {
        bool lives = !s->actors[w].gone;
        if (grouped(s) && lives)
            expect(s,
                   c <= s->members[w].clock + ahead ||
                       s->lanes[table * s->t.workers + w].next >= (c - ahead) * groups(s, table),
                   "a reader is not further ahead than the timing allows");
        for (unsigned g = 0; g < GROUPS; g++) {
            uint64_t step = g / groups(s, table);
            if (!s->pushed[table][g][w])
                continue;
            if (s->t.timing.kind == ZR_PS_HALF_ASYNC)
                expect(s, step < c || s->actors[w].gone, "half-async: no push of the step of a reader");
            if (grouped(s) && step + ahead + 1 <= c)
                expect(s, s->used[table][g][w], "a pull has the updates that its step must have");
            if (grouped(s) && ahead == 0 && step >= c && lives)
                expect(s, !s->used[table][g][w], "with 0 steps ahead a pull has no newer update");
        }
        if ((grouped(s) && ahead == 0) || s->t.timing.kind == ZR_PS_HALF_ASYNC)
            for (unsigned g = 0; lives && g < groups(s, table) * c && g < GROUPS; g++)
                expect(s, s->pushed[table][g][w] || s->members[w].clock > g / groups(s, table) || grouped(s),
                       "no worker is behind a reader");
    }
}

static bool try_push(struct schedule *s, unsigned w, unsigned table)
{
    struct actor *actor = &s->actors[w];
    unsigned index = groups(s, table) - actor->pushes_left[table];
    zr_ps_begin_push(&s->t, w);
    if (!zr_ps_may_push(&s->t, table, w, index))
        return false;
    uint64_t group = zr_ps_group(&s->t, table, w, index);
    expect(s, !s->pushed[table][group][w] && !s->used[table][group][w], "a push is taken before its group");
    s->pushed[table][group][w] = true;
    if (grouped(s)) {
        expect(s, !zr_ps_has_push(&s->t, table, w, index), "a push is new");
        zr_ps_note_push(&s->t, table, w, index);
        expect(s, zr_ps_has_push(&s->t, table, w, index), "and known when it is repeated");
        unsigned waiting = 0;
        for (unsigned g = 0; g < GROUPS; g++)
            waiting += s->pushed[table][g][w] && !s->used[table][g][w];
        expect(s, waiting <= s->t.timing.parameter * groups(s, table) + 1, "pushes that wait have room");
    }
    actor->pushes_left[table]--;
    return true;
}

/* The next request of a worker; false: it is held. */
static bool advance(struct schedule *s, unsigned w)
{
    struct actor *actor = &s->actors[w];
    unsigned first = draw(s, s->t.tables);
    if (s->members[w].clock == actor->ends_at && !actor->gone) {
        actor->gone = true;
        zr_ps_leaves(&s->t, w);
        return true;
    }
    if (actor->gone)
        return false;
    if (actor->pulls_left > 0) {
        if (!zr_ps_may_pull(&s->t, first, w))
            return false;
        check_pull(s, first, w);
        actor->pulls_left--;
        return true;
    }
    for (unsigned i = 0; i < s->t.tables; i++) /* each worker pushes in the same order */
        if (actor->pushes_left[i] > 0)
            return try_push(s, w, i);
    zr_ps_end_of_step(&s->t, w, s->members[w].clock);
    begin_step(s, actor);
    return true;
}

static const char *run(struct zr_ps_timing timing, uint64_t seed)
{
    struct schedule s = {.random = seed};
    unsigned living = 1 + draw(&s, WORKERS);
    s.t = (struct zr_ps_timetable){.timing = timing,
                                   .workers = living,
                                   .tables = 1 + draw(&s, TABLES),
                                   .members = s.members,
                                   .lanes = s.lanes,
                                   .applied = s.applied,
                                   .pushes = s.pushes};
    for (unsigned table = 0; table < s.t.tables; table++)
        s.pushes[table] = grouped(&s) ? draw(&s, PUSHES + 1) : draw(&s, 2);
    for (unsigned w = 0; w < s.t.workers; w++) {
        s.actors[w].ends_at = 1 + draw(&s, STEPS);
        begin_step(&s, &s.actors[w]);
    }
    while (!zr_ps_all_left(&s.t) && !s.wrong) {
        unsigned first = draw(&s, s.t.workers), i = 0;
        while (i < s.t.workers && !advance(&s, (first + i) % s.t.workers))
            i++;
        expect(&s, i < s.t.workers, "some worker can always continue");
        settle(&s);
    }
    settle(&s);
    for (unsigned table = 0; table < s.t.tables && grouped(&s); table++)
        for (unsigned i = 0; i < GROUPS * WORKERS; i++)
            expect(&s, !s.pushed[table][i / WORKERS][i % WORKERS] || s.used[table][i / WORKERS][i % WORKERS],
                   "every push is applied");
    return s.wrong;
}

int main(void)
{
    static const struct zr_ps_timing timings[] = {{ZR_PS_SYNC, 0}, {ZR_PS_ASYNC, 0}, {ZR_PS_HALF_ASYNC, 0},
                                                  {ZR_PS_GEO, 2},  {ZR_PS_SSP, 0},   {ZR_PS_SSP, 1},
                                                  {ZR_PS_SSP, 3}};
    enum { TIMINGS = sizeof timings / sizeof *timings };
    const char *number = getenv("ZR_TEST_SCHEDULES"), *wrong = NULL;
    uint64_t random = run_seed();
    unsigned count = number ? (unsigned)strtoul(number, NULL, 10) : 20000, i = 0;
    for (; i < count && !wrong; i++)
        wrong = run(timings[i % TIMINGS], splitmix64(&random));
    if (wrong)
        tap_note("schedule %u, timing %d: %s", i, timings[(i - 1) % TIMINGS].kind, wrong);
    tap_ok(!wrong, "%u random schedules of %d timings are as the timings are defined", i, TIMINGS);
    return tap_done();
}
