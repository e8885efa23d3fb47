/* timing.c: see timing.h. */
#include "zero/ps/timing.h"

#include "zero/ps/options.h"

static bool has_left(const struct zr_ps_timetable *t, unsigned worker)
{
    return atomic_load(&t->members[worker].left) != 0;
}

static uint64_t clock_of(const struct zr_ps_timetable *t, unsigned worker)
{
    return atomic_load(&t->members[worker].clock);
}

/* Groups of a step. */
static uint64_t groups_of(const struct zr_ps_timetable *t, unsigned table)
{
    return t->pushes[table] ? t->pushes[table] : 1;
}

static void raise_to(_Atomic uint64_t *number, uint64_t value)
{
    if (atomic_load(number) < value)
        atomic_store(number, value);
}

uint64_t zr_ps_group(const struct zr_ps_timetable *t, unsigned table, unsigned worker, unsigned index)
{
    return clock_of(t, worker) * groups_of(t, table) + index;
}

uint64_t zr_ps_clock_min(const struct zr_ps_timetable *t)
{
    uint64_t least = UINT64_MAX;
    for (unsigned w = 0; w < t->workers; w++)
        if (!has_left(t, w) && clock_of(t, w) < least)
            least = clock_of(t, w);
    return least;
}

uint64_t zr_ps_clock_max(const struct zr_ps_timetable *t)
{
    uint64_t most = 0;
    for (unsigned w = 0; w < t->workers; w++)
        if (!has_left(t, w) && clock_of(t, w) > most)
            most = clock_of(t, w);
    return most;
}

bool zr_ps_may_pull(const struct zr_ps_timetable *t, unsigned table, unsigned worker)
{
    uint64_t clock = clock_of(t, worker), ahead = zr_ps_ahead(&t->timing);
    switch (t->timing.kind) {
    case ZR_PS_SYNC:
    case ZR_PS_SSP:
        return clock <= ahead || atomic_load(&t->applied[table]) >= (clock - ahead) * groups_of(t, table);
    case ZR_PS_HALF_ASYNC:
        return zr_ps_clock_min(t) >= clock;
    default:
        return true;
    }
}

void zr_ps_begin_push(struct zr_ps_timetable *t, unsigned worker)
{
    raise_to(&t->members[worker].read, clock_of(t, worker) + 1);
}

/* Half-async: whether no worker pulls in the step, or will. */
static bool all_have_read(const struct zr_ps_timetable *t, uint64_t step)
{
    for (unsigned w = 0; w < t->workers; w++)
        if (!has_left(t, w) && clock_of(t, w) <= step && atomic_load(&t->members[w].read) <= step)
            return false;
    return true;
}

bool zr_ps_may_push(const struct zr_ps_timetable *t, unsigned table, unsigned worker, unsigned index)
{
    if (t->timing.kind == ZR_PS_HALF_ASYNC)
        return all_have_read(t, clock_of(t, worker));
    if (!zr_ps_groups(&t->timing))
        return true;
    unsigned room = zr_ps_waiting(&t->timing, (unsigned)groups_of(t, table));
    return zr_ps_group(t, table, worker, index) < atomic_load(&t->applied[table]) + room;
}

bool zr_ps_has_push(const struct zr_ps_timetable *t, unsigned table, unsigned worker, unsigned index)
{
    return zr_ps_group(t, table, worker, index) < atomic_load(&zr_ps_lane_of(t, table, worker)->next);
}

void zr_ps_note_push(struct zr_ps_timetable *t, unsigned table, unsigned worker, unsigned index)
{
    raise_to(&zr_ps_lane_of(t, table, worker)->next, zr_ps_group(t, table, worker, index) + 1);
}

bool zr_ps_is_complete(const struct zr_ps_timetable *t, unsigned table, uint64_t *out)
{
    uint64_t group = atomic_load(&t->applied[table]), step = group / groups_of(t, table);
    const bool ends = t->successors && group % groups_of(t, table) + 1 == groups_of(t, table);
    bool some = false;
    *out = group;
    if (!zr_ps_groups(&t->timing))
        return false;
    for (unsigned w = 0; w < t->workers; w++) {
        bool pushed = t->pushes[table] && atomic_load(&zr_ps_lane_of(t, table, w)->next) > group;
        if (!has_left(t, w) && clock_of(t, w) <= step && (ends || !pushed))
            return false;
        some |= clock_of(t, w) > step || pushed;
    }
    return some; /* when all have left, pushes that wait are applied, and no more */
}

void zr_ps_note_applied(struct zr_ps_timetable *t, unsigned table, uint64_t group)
{
    raise_to(&t->applied[table], group + 1);
}

void zr_ps_end_of_step(struct zr_ps_timetable *t, unsigned worker, uint64_t step)
{
    raise_to(&t->members[worker].clock, step + 1);
}

void zr_ps_leaves(struct zr_ps_timetable *t, unsigned worker)
{
    atomic_store(&t->members[worker].left, 1);
}

bool zr_ps_all_left(const struct zr_ps_timetable *t)
{
    return zr_ps_clock_min(t) == UINT64_MAX;
}
