/* learner.c: watches an arena, finds the period of what it serves, and installs plans. Stands on
 * learner_plan.c and alloc/plan.h.
 *
 * While it is awake, every allocation is recorded with the place of its free. A lane's last few allocations,
 * hashed, together with the arena's live bytes tell where the lane has been before: live bytes tell a step
 * from a layer inside it. A run of such recurrences at a steady distance is a candidate period; when a third
 * occurrence begins, the two whole ones before it are aligned and planned. All threads in one lane come
 * first, where streams are in program order; if their interleaving varies no run of them lasts, and each
 * thread has a lane of its own. Elsewhere a lane is a thread's stream.
 *
 * Recording costs some tens of nanoseconds per call, under the arena's lock. Aligning, packing and installing
 * are done without it, by the thread whose allocation found the period, or in zr_learner_step() alone. Once a
 * whole pass of the plan goes without strays to speak of and without a driver call, the learner sleeps until
 * that changes. */
#include "defrag/learner.h"

#include <stdatomic.h>
#include <string.h>

#include "alloc/error.h"
#include "alloc/os.h"
#include "alloc/record.h"

#define BUDGET_NS UINT64_C(20000000)

enum {
    RECORDS_MOST = 1 << 18, /* allocations */
    GRAM = 8,               /* allocations that make a place recognisable */
    PLACES = 1 << 15,       /* places that are remembered, per lane */
    LANES_MOST = 16,        /* lanes beside the one of all threads */
    SHIFT_MOST = 16,        /* strays that a run gets over at one place */
    MISSES_MOST = 64,       /* in a row, within a run */
    RUN_ENOUGH = 4096,      /* allocations: a run this long is worth a plan whatever came before it */
    MARKS = 3,
    LOOSE_MOST = 20,  /* of a thousand: allocations that two joint occurrences do not have in common */
    STRAYS_MOST = 50, /* of a thousand, in a pass that counts as planned */
};

/* How much is live, and how much has been allocated since recording began. */
struct level {
    uint64_t live_bytes, total_bytes;
};

struct record {
    uint64_t bytes, stream;
    struct level arena, lane; /* with it */
    uint32_t alignment, thread, hash;
    uint32_t free_at;   /* freed before the record of that number; ZR_SEEN_LIVE */
    uint8_t tag, track; /* track: LANES_MOST: none */
};

struct place {
    uint32_t gram, at; /* at: 1 + position */
};

/* A lane as it is recorded. Positions count its allocations. */
struct track {
    uint32_t thread;
    uint64_t stream;
    uint32_t *records; /* by position */
    uint32_t *grams;
    uint32_t *matches; /* by position: where it was before, 1 + position; 0: nowhere within the run */
    struct place *places;
    uint32_t count;
    struct level level; /* of its recorded blocks */

    bool running, found, planned;
    bool loose; /* of all threads: found, and their interleaving varies too much to plan them together */
    uint32_t run_start, distance, hits, misses;
    uint32_t first, second, third; /* found: where three occurrences begin */
};

struct live_entry {
    uint64_t key;    /* 1 + offset in units; 0: none */
    uint32_t record; /* number */
};

struct zr_learner {
    zr_arena *arena, *host_arena;
    zr_backend *own_backend; /* with the host arena; NULL: the caller's arena is used */
    struct zr_learner_options options;
    struct zr_plan_rules rules;

    /* All below: the watched arena's lock. */
    struct record *records;
    uint32_t records_count;
    struct live_entry *live;
    size_t live_count, live_room;
    uint64_t most_reserved_bytes, total_bytes; /* since recording began; total: allocated */
    struct track all, tracks[LANES_MOST];
    size_t tracks_count;
    uint32_t only_thread; /* until `split` */
    uint64_t only_stream;
    bool split;    /* more than one thread or stream has been heard: each has a lane */
    bool too_many; /* lanes */
    uint32_t marks[MARKS];
    size_t marks_count;
    struct zr_pass last_pass;
    bool asleep;
    bool fresh;      /* the plan has not been gone through yet */
    bool settle_due; /* it has: what it left idle can go */
    struct zr_learner_stats stats;

    _Atomic bool working;
    struct zr_candidate candidate; /* of the working thread: kept while there is something to refine */
    bool refinable;
};

/* ---- Live blocks --------------------------------------------------------------------------------------- */

static inline size_t live_home(const struct zr_learner *learner, uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (learner->live_room - 1);
}

static bool live_grow(struct zr_learner *learner)
{
    size_t before = learner->live_room, room = before ? before * 2 : 4096;
    struct live_entry *old = learner->live, *entries = zr_pages_take(room * sizeof *entries);
    if (!entries)
        return false;
    learner->live = entries;
    learner->live_room = room;
    for (size_t i = 0; i < before; i++) {
        if (old[i].key == 0)
            continue;
        size_t at = live_home(learner, old[i].key);
        while (entries[at].key)
            at = (at + 1) & (room - 1);
        entries[at] = old[i];
    }
    zr_pages_give(old, before * sizeof *old);
    return true;
}

static bool live_put(struct zr_learner *learner, size_t offset_bytes, uint32_t record)
{
    uint64_t key = offset_bytes / 256 + 1;
    if (2 * (learner->live_count + 1) > learner->live_room && !live_grow(learner))
        return false;
    size_t at = live_home(learner, key);
    while (learner->live[at].key && learner->live[at].key != key)
        at = (at + 1) & (learner->live_room - 1);
    learner->live_count += learner->live[at].key == 0;
    learner->live[at] = (struct live_entry){key, record};
    return true;
}

/* The record's number; ZR_SEEN_LIVE: not recorded. */
static uint32_t live_take(struct zr_learner *learner, size_t offset_bytes)
{
    uint64_t key = offset_bytes / 256 + 1;
    if (learner->live_count == 0)
        return ZR_SEEN_LIVE;
    size_t mask = learner->live_room - 1, at = live_home(learner, key);
    while (learner->live[at].key != key) {
        if (learner->live[at].key == 0)
            return ZR_SEEN_LIVE;
        at = (at + 1) & mask;
    }
    uint32_t record = learner->live[at].record;
    /* What follows moves up, so that no search ends early. */
    for (size_t next = (at + 1) & mask; learner->live[next].key; next = (next + 1) & mask) {
        size_t home = live_home(learner, learner->live[next].key);
        if (((next - home) & mask) >= ((next - at) & mask)) {
            learner->live[at] = learner->live[next];
            at = next;
        }
    }
    learner->live[at].key = 0;
    learner->live_count--;
    return record;
}

/* ---- Tracks -------------------------------------------------------------------------------------------- */

static const size_t track_bytes = RECORDS_MOST * 3 * sizeof(uint32_t) + PLACES * sizeof(struct place);

static bool track_begin(struct track *track)
{
    char *pages = zr_pages_take(track_bytes); /* untouched pages cost addresses only */
    if (!pages)
        return false;
    track->places = (struct place *)pages;
    track->records = (uint32_t *)(pages + PLACES * sizeof(struct place));
    track->grams = track->records + RECORDS_MOST;
    track->matches = track->grams + RECORDS_MOST;
    return true;
}

static void track_end(struct track *track)
{
    zr_pages_give(track->places, track_bytes);
    *track = (struct track){0};
}

static void track_forget(struct track *track)
{
    track->count = 0;
    track->level = (struct level){0};
    track->running = track->found = track->planned = track->loose = false;
    if (track->places)
        memset(track->places, 0, PLACES * sizeof *track->places);
}

static inline const struct record *record_at(const struct zr_learner *learner, const struct track *track,
                                             uint32_t position)
{
    return &learner->records[track->records[position]];
}

/* Whether of what was allocated between two moments next to nothing was left behind: a few strays may be
 * live; a layer leaves its activations. */
static bool alike_at(const struct zr_learner *learner, const struct track *track, uint32_t at,
                     uint32_t before)
{
    const struct record *now = record_at(learner, track, at), *then = record_at(learner, track, before);
    bool all = track == &learner->all;
    struct level a = all ? now->arena : now->lane, b = all ? then->arena : then->lane;
    uint64_t apart = a.live_bytes > b.live_bytes ? a.live_bytes - b.live_bytes : b.live_bytes - a.live_bytes;
    return apart <= (a.total_bytes - b.total_bytes) / 16;
}

/* The level of live bytes, to about a sixteenth: a place in a step, told from the same layer elsewhere. */
static inline uint32_t level_of(const struct zr_learner *learner, const struct track *track, uint32_t at)
{
    const struct record *record = record_at(learner, track, at);
    uint64_t bytes = (track == &learner->all ? record->arena.live_bytes : record->lane.live_bytes) | 16;
    unsigned power = 63u - (unsigned)__builtin_clzll(bytes);
    return power * 16 + (unsigned)(bytes >> (power - 4) & 15);
}

static inline bool was_there(const struct zr_learner *learner, const struct track *track, uint32_t at,
                             uint32_t before)
{
    return track->grams[before] == track->grams[at] && alike_at(learner, track, at, before);
}

/* The position where the lane's last few allocations were before: at the run's distance or, after a stray,
 * close to it; else the last one remembered at this level. ZR_SEEN_LIVE: none. */
static uint32_t look_back(const struct zr_learner *learner, struct track *track, uint32_t at)
{
    uint32_t key = track->grams[at] ^ level_of(learner, track, at) * UINT32_C(0x85ebca6b);
    struct place *place = &track->places[(key ^ key >> 15) & (PLACES - 1)], last = *place;
    *place = (struct place){key, at + 1};
    if (track->running && at >= track->distance) {
        uint32_t expected = at - track->distance;
        if (was_there(learner, track, at, expected))
            return expected;
        for (uint32_t off = 1; off <= SHIFT_MOST && track->misses > 0; off++) {
            if (expected >= off + GRAM && was_there(learner, track, at, expected - off))
                return expected - off;
            if (expected + off < at && was_there(learner, track, at, expected + off))
                return expected + off;
        }
    }
    return last.gram == key && last.at && was_there(learner, track, at, last.at - 1) ? last.at - 1
                                                                                     : ZR_SEEN_LIVE;
}

/* The run goes on at `at`, which was at `before`: does a third occurrence begin? */
static void note_hit(struct track *track, uint32_t at, uint32_t before)
{
    track->matches[at] = before + 1;
    track->distance = at - before;
    track->hits++;
    track->misses = 0;
    if (before < track->run_start || track->matches[before] == 0)
        return;
    uint32_t first = track->matches[before] - 1, lead = GRAM - 1;
    uint32_t run = at - track->run_start + track->distance, history = track->count;
    if (first < lead || (run < RUN_ENOUGH && run < history / 2))
        return;
    /* A run that began a layer off has found its way by the second occurrence: equal lengths are waited for,
     * but not for long, because strays make them differ a little. */
    uint32_t length = before - first, now = track->distance;
    uint32_t apart = length > now ? length - now : now - length;
    if (apart > now / 64 + 2 || (apart > 0 && at - track->run_start < now + now / 4))
        return;
    track->first = first - lead;
    track->second = before - lead;
    track->third = at - lead;
    track->found = true;
}

static void note_position(const struct zr_learner *learner, struct track *track)
{
    uint32_t at = track->count - 1, gram = 0;
    track->matches[at] = track->grams[at] = 0;
    if (track->count < GRAM)
        return;
    for (uint32_t i = at - (GRAM - 1); i <= at; i++)
        gram = (gram ^ record_at(learner, track, i)->hash) * UINT32_C(0x9e3779b1);
    gram ^= gram >> 15;
    track->grams[at] = gram;
    uint32_t before = look_back(learner, track, at);
    if (!track->running) {
        if (before == ZR_SEEN_LIVE)
            return;
        track->running = true;
        track->found = track->planned = track->loose = false;
        track->run_start = at;
        track->hits = track->misses = 0;
        track->distance = at - before;
    }
    uint32_t slack = track->distance / 16 + 16, distance = at - before;
    bool steady =
        before != ZR_SEEN_LIVE && distance + slack >= track->distance && distance <= track->distance + slack;
    if (steady)
        note_hit(track, at, before);
    else if (++track->misses > MISSES_MOST + track->distance / 64)
        track->running = track->found = false;
}

/* ---- Recording ----------------------------------------------------------------------------------------- */

static void forget(struct zr_learner *learner)
{
    learner->records_count = 0;
    if (learner->live_count > 0)
        memset(learner->live, 0, learner->live_room * sizeof *learner->live);
    learner->live_count = 0;
    learner->most_reserved_bytes = learner->total_bytes = 0;
    learner->marks_count = 0;
    learner->tracks_count = 0;
    learner->too_many = false;
    track_forget(&learner->all);
}

static struct track *track_of(struct zr_learner *learner, const struct zr_observation *what)
{
    uint64_t stream = learner->rules.synchronous ? 0 : what->request->stream;
    if (!learner->split) {
        if (learner->records_count == 0) {
            learner->only_thread = what->thread;
            learner->only_stream = stream;
        }
        if (learner->only_thread == what->thread && learner->only_stream == stream)
            return NULL;
        learner->split = true;
        forget(learner);
    }
    for (size_t i = 0; i < learner->tracks_count; i++)
        if (learner->tracks[i].thread == what->thread && learner->tracks[i].stream == stream)
            return &learner->tracks[i];
    if (learner->tracks_count == LANES_MOST) {
        learner->too_many = true;
        return NULL;
    }
    struct track *track = &learner->tracks[learner->tracks_count];
    if (!track->places && !track_begin(track))
        return NULL;
    track_forget(track);
    track->thread = what->thread;
    track->stream = stream;
    learner->tracks_count++;
    return track;
}

static inline uint32_t hash_of(const struct zr_observation *what)
{
    uint64_t hash = what->request->bytes * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ (hash >> 31) ^ what->request->stream ^ ((uint64_t)what->thread << 32) ^
            ((uint64_t)what->request->tag << 24) ^ what->alignment) *
           UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(hash >> 32);
}

static inline void push(const struct zr_learner *learner, struct track *track, uint32_t record)
{
    track->records[track->count++] = record;
    note_position(learner, track);
}

/* Whether all threads may share addresses in one lane. */
static inline bool may_join(const struct zr_learner *learner)
{
    return (learner->rules.synchronous && !learner->all.loose) || !learner->split;
}

/* A plan may be made: of all threads together, or of each that counts for something. */
static bool is_due(const struct zr_learner *learner)
{
    if (learner->all.found && may_join(learner))
        return !learner->all.planned;
    if (!learner->split)
        return false;
    bool any = false, planned = true;
    for (size_t i = 0; i < learner->tracks_count; i++) {
        const struct track *track = &learner->tracks[i];
        if (!track->found && track->count >= learner->records_count / 16 + GRAM)
            return false;
        any |= track->found;
        planned &= track->planned || !track->found;
    }
    return any && !planned;
}

static unsigned allocated(void *state, const struct zr_observation *what)
{
    struct zr_learner *learner = state;
    if (learner->records_count == RECORDS_MOST)
        forget(learner);
    struct track *track = track_of(learner, what); /* may forget */
    uint32_t number = learner->records_count;
    if (!live_put(learner, what->offset_bytes, number))
        return ZR_OBSERVER_SLEEP; /* the system has no memory left: no time for learning */
    learner->total_bytes += what->request->bytes;
    if (track) {
        track->level.live_bytes += what->request->bytes;
        track->level.total_bytes += what->request->bytes;
    }
    learner->records[number] =
        (struct record){.bytes = what->request->bytes,
                        .stream = what->request->stream,
                        .arena = {what->live_bytes, learner->total_bytes},
                        .lane = track ? track->level : (struct level){0},
                        .track = (uint8_t)(track ? track - learner->tracks : LANES_MOST),
                        .alignment = (uint32_t)what->alignment,
                        .thread = what->thread,
                        .hash = hash_of(what),
                        .free_at = ZR_SEEN_LIVE,
                        .tag = (uint8_t)what->request->tag};
    learner->records_count = number + 1;
    if (what->reserved_bytes > learner->most_reserved_bytes)
        learner->most_reserved_bytes = what->reserved_bytes;
    push(learner, &learner->all, number);
    if (track)
        push(learner, track, number);
    return is_due(learner) && !learner->options.steps_only ? ZR_OBSERVER_WORK : ZR_OBSERVER_NOTHING;
}

static void freed(void *state, size_t offset_bytes, size_t live_bytes)
{
    struct zr_learner *learner = state;
    uint32_t record = live_take(learner, offset_bytes);
    (void)live_bytes;
    if (record == ZR_SEEN_LIVE)
        return;
    struct record *known = &learner->records[record];
    known->free_at = learner->records_count;
    if (known->track < LANES_MOST)
        learner->tracks[known->track].level.live_bytes -= known->bytes;
}

/* Bad allocations of a pass, of a thousand. */
static unsigned bad_share(const struct zr_pass *pass)
{
    size_t bad = pass->strays_count + pass->conflicts_count + pass->refused_count;
    return pass->allocations_count ? (unsigned)(bad * 1000 / pass->allocations_count) : 0;
}

/* A new plan's first pass maps its granules; what was there before it is settled at its end. */
static unsigned passed(void *state, const struct zr_pass *pass)
{
    struct zr_learner *learner = state;
    bool steady = bad_share(pass) <= STRAYS_MOST, first = learner->fresh && pass->whole;
    bool good = steady && (first || pass->driver_calls_count == 0);
    learner->last_pass = *pass;
    learner->stats.passes_count++;
    if (steady && first) {
        learner->fresh = false;
        learner->settle_due = true;
    }
    /* Strays that made the driver map: there will be more of them. */
    if (steady && !first && pass->strays_count > 0 && pass->driver_calls_count > 0)
        learner->settle_due = true;
    if (!good && learner->asleep)
        forget(learner); /* what was recorded has a gap */
    learner->asleep = good;
    unsigned wish = good ? ZR_OBSERVER_SLEEP : ZR_OBSERVER_NOTHING;
    return learner->settle_due || (good && learner->refinable) ? wish | ZR_OBSERVER_WORK : wish;
}

static void forked(void *state)
{
    struct zr_learner *learner = state;
    /* The thread at work is not in the child; what it held is lost with it. */
    if (atomic_exchange(&learner->working, false)) {
        learner->refinable = false;
        learner->candidate = (struct zr_candidate){0};
    }
}

/* ---- Planning ------------------------------------------------------------------------------------------ */

enum { COPY_SLACK = 1024 }; /* allocations that may come in between measuring and copying */

/* From the number of a record to that of the lane's first position at or after it. */
static uint32_t position_of(const struct track *track, uint32_t record)
{
    uint32_t low = track->first, high = track->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (track->records[middle] < record)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The lane from its first occurrence on, copied into `seen`. Held. */
static struct zr_seen_lane copy_lane(const struct zr_learner *learner, const struct track *track,
                                     struct zr_seen *seen, size_t room)
{
    size_t count = track->count - track->first;
    bool any = track == &learner->all;
    const struct record *first = record_at(learner, track, track->first);
    if (count > room)
        count = room;
    for (size_t i = 0; i < count; i++) {
        const struct record *record = record_at(learner, track, track->first + (uint32_t)i);
        bool live = record->free_at == ZR_SEEN_LIVE;
        seen[i] = (struct zr_seen){.bytes = record->bytes,
                                   .stream = record->stream,
                                   .alignment = record->alignment,
                                   .thread = record->thread,
                                   .hash = record->hash,
                                   .upper = live ? ZR_SEEN_LIVE
                                                 : position_of(track, record->free_at) - track->first,
                                   .tag = record->tag};
    }
    return (struct zr_seen_lane){.seen = seen,
                                 .first_count = track->second - track->first,
                                 .second_count = track->third - track->second,
                                 .count = count,
                                 .rest_bytes = any ? first->arena.live_bytes - first->bytes : 0,
                                 .any = any,
                                 .any_stream = learner->rules.synchronous,
                                 .thread = track->thread,
                                 .stream = track->stream};
}

/* What is known of the watched arena when a plan is made. */
struct view {
    struct zr_scratch scratch;
    struct zr_seen_lane lanes[ZR_PLAN_LANES];
    size_t lanes_count;
    uint64_t most_reserved_bytes;
    bool following;
    unsigned bad_share;
};

static struct track *track_number(struct zr_learner *learner, size_t number)
{
    bool joined = learner->all.found && may_join(learner);
    if (joined)
        return number == 0 ? &learner->all : NULL;
    return number < learner->tracks_count ? &learner->tracks[number] : NULL;
}

/* Copies the lanes that have a period. Memory for the copies is taken without the lock. */
static zr_result look(struct zr_learner *learner, struct view *view)
{
    size_t rooms[LANES_MOST + 1] = {0};
    struct zr_seen *copies[LANES_MOST + 1] = {0};
    struct track *track;
    zr_arena_hold(learner->arena);
    for (size_t i = 0; (track = track_number(learner, i)); i++)
        rooms[i] = track->found ? track->count - track->first + COPY_SLACK : 0;
    zr_arena_unhold(learner->arena);
    for (size_t i = 0; i <= LANES_MOST; i++)
        copies[i] = rooms[i] ? zr_scratch_take(&view->scratch, rooms[i], sizeof *copies[i]) : NULL;
    if (view->scratch.result != ZR_OK)
        return view->scratch.result;
    zr_arena_hold(learner->arena);
    for (size_t i = 0; (track = track_number(learner, i)); i++) {
        if (!track->found || !copies[i] || track->third - track->first > rooms[i])
            continue;
        view->lanes[view->lanes_count++] = copy_lane(learner, track, copies[i], rooms[i]);
        track->planned = true;
    }
    view->most_reserved_bytes = learner->most_reserved_bytes;
    view->bad_share = bad_share(&learner->last_pass);
    zr_arena_unhold(learner->arena);
    struct zr_follow_counts counts;
    zr_arena_follow_counts(learner->arena, &counts);
    view->following = counts.region_bytes > 0;
    return view->lanes_count ? ZR_OK : zr_fail(ZR_ERR_UNAVAILABLE, "the period has gone");
}

/* Of a thousand allocations of an occurrence, those that are no steps. */
static unsigned stray_share(const struct zr_candidate *candidate)
{
    size_t steps = candidate->plan.steps_count;
    if (candidate->seen_count <= steps)
        return 0;
    return (unsigned)((candidate->seen_count - steps) * 1000 / candidate->seen_count);
}

/* Whether following it is better than what is done now. */
static bool is_wanted(const struct zr_candidate *candidate, const struct view *view)
{
    /* A stretch that leaves memory behind is a part of something longer. */
    if (candidate->outlive_bytes > candidate->step_bytes / 8)
        return false;
    if (view->following && view->bad_share <= 2 * stray_share(candidate) + 10)
        return false;
    return true;
}

/* No more memory than the dynamic path took, but for a sixty-fourth, which is what never calling the driver
 * is worth; where threads cannot share, a quarter. */
static bool is_affordable(const struct zr_learner *learner, const struct zr_candidate *candidate,
                          const struct view *view)
{
    uint64_t allowed = view->most_reserved_bytes + learner->rules.granule_bytes;
    allowed += allowed / (candidate->plan.lanes_count > 1 ? 4 : 64);
    return candidate->plan.region_bytes + candidate->rest_bytes <= allowed;
}

static zr_result plan_it(struct zr_learner *learner, struct view *view)
{
    struct zr_candidate *candidate = &learner->candidate;
    zr_candidate_end(candidate);
    zr_result result = look(learner, view);
    if (result == ZR_OK)
        result = zr_candidate_make(candidate, view->lanes, view->lanes_count, learner->host_arena);
    if (result != ZR_OK)
        return result;
    learner->stats.periods_count++;
    if (learner->split && view->lanes[0].any && stray_share(candidate) > LOOSE_MOST) {
        zr_arena_hold(learner->arena);
        learner->all.loose = true;
        zr_arena_unhold(learner->arena);
        return zr_fail(ZR_ERR_UNAVAILABLE, "the threads do not take turns in the same way");
    }
    if (!is_wanted(candidate, view))
        return zr_fail(ZR_ERR_UNAVAILABLE, "a period of %zu allocations is not worth a plan",
                       candidate->plan.steps_count);
    result = zr_candidate_pack(candidate, learner->rules,
                               &(struct zr_pack_options){.time_ns = learner->options.budget_ns,
                                                         .threads = learner->options.threads});
    if (result == ZR_OK && !is_affordable(learner, candidate, view)) {
        learner->stats.refused_plans_count++;
        return zr_fail(ZR_ERR_UNAVAILABLE, "a plan of %zu bytes takes more memory than there was without",
                       candidate->plan.region_bytes);
    }
    if (result == ZR_OK)
        result = zr_arena_install_plan(learner->arena, &candidate->plan);
    if (result == ZR_OK) {
        learner->stats.plans_count++;
        learner->fresh = true;
        learner->refinable = !candidate->tight && learner->options.refine_ns > 0;
    }
    return result;
}

/* Packs the plan in force once more, with more time. */
static void refine(struct zr_learner *learner)
{
    struct zr_candidate *candidate = &learner->candidate;
    size_t before_bytes = candidate->plan.region_bytes;
    learner->refinable = false;
    zr_result result = zr_candidate_pack(candidate, learner->rules,
                                         &(struct zr_pack_options){.time_ns = learner->options.refine_ns,
                                                                   .threads = learner->options.threads});
    if (result == ZR_OK && candidate->plan.region_bytes < before_bytes) {
        for (size_t i = 0; i < candidate->plan.lanes_count; i++)
            candidate->lanes[i].cursor = ZR_PLAN_KEEP_CURSOR;
        if (zr_arena_install_plan(learner->arena, &candidate->plan) == ZR_OK)
            learner->stats.refined_plans_count++;
    }
}

static void work(void *state)
{
    struct zr_learner *learner = state;
    struct view *view;
    void *room = NULL;
    if (atomic_exchange(&learner->working, true))
        return;
    uint64_t start_ns = zr_os_now_ns();
    bool due, settle;
    zr_arena_hold(learner->arena);
    due = is_due(learner);
    settle = learner->settle_due;
    learner->settle_due = false;
    zr_arena_unhold(learner->arena);
    if (settle)
        zr_arena_settle_plan(learner->arena);
    /* A view is too large for the stack of whoever allocates. */
    if (due &&
        zr_arena_alloc(learner->host_arena, &(struct zr_request){.bytes = sizeof *view, .tag = ZR_TAG_OTHER},
                       &room) == ZR_OK) {
        view = room;
        *view = (struct view){.scratch.arena = learner->host_arena};
        if (plan_it(learner, view) != ZR_OK)
            learner->refinable = false;
        zr_scratch_end(&view->scratch);
        zr_arena_free(learner->host_arena, view);
        if (!learner->refinable)
            zr_candidate_end(&learner->candidate);
    } else if (!due && learner->refinable) {
        refine(learner);
        zr_candidate_end(&learner->candidate);
    }
    learner->stats.spent_ns += zr_os_now_ns() - start_ns;
    atomic_store(&learner->working, false);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static const struct zr_observer observer = {
    .allocated = allocated, .freed = freed, .passed = passed, .work = work, .forked = forked};

static zr_result prepare(struct zr_learner *learner)
{
    zr_result result = ZR_OK;
    if (!learner->host_arena) {
        result = zr_backend_host_create(&learner->own_backend, &(struct zr_host_options){0});
        if (result == ZR_OK)
            result = zr_arena_create(
                &learner->host_arena,
                &(struct zr_arena_options){.backend = learner->own_backend, .name = "learner"});
    }
    if (result != ZR_OK)
        return result;
    learner->records = zr_pages_take(RECORDS_MOST * sizeof *learner->records);
    if (!learner->records || !track_begin(&learner->all) || !live_grow(learner))
        return ZR_ERR_HOST_MEMORY;
    return zr_arena_observe(learner->arena, &observer, learner);
}

static void release(struct zr_learner *learner)
{
    zr_candidate_end(&learner->candidate);
    for (size_t i = 0; i < LANES_MOST; i++)
        track_end(&learner->tracks[i]);
    track_end(&learner->all);
    zr_pages_give(learner->live, learner->live_room * sizeof *learner->live);
    zr_pages_give(learner->records, RECORDS_MOST * sizeof *learner->records);
    if (learner->own_backend) {
        zr_arena_destroy(learner->host_arena, NULL);
        zr_backend_destroy(learner->own_backend);
    }
    zr_pages_give(learner, sizeof *learner);
}

zr_result zr_learner_create(zr_learner **out, const struct zr_learner_options *options)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a learner needs somewhere to go");
    *out = NULL;
    if (!options || !options->arena)
        return zr_fail(ZR_ERR_INVALID, "a learner needs an arena to watch");
    if (options->arena == options->host_arena)
        return zr_fail(ZR_ERR_INVALID, "a learner cannot keep its records in the arena that it watches");
    struct zr_learner *learner = zr_pages_take(sizeof *learner);
    if (!learner)
        return ZR_ERR_HOST_MEMORY;
    learner->arena = options->arena;
    learner->host_arena = options->host_arena;
    learner->options = *options;
    learner->options.budget_ns = options->budget_ns ? options->budget_ns : BUDGET_NS;
    learner->rules = zr_arena_plan_rules(options->arena);
    zr_result result = prepare(learner);
    if (result != ZR_OK) {
        release(learner);
        return result;
    }
    *out = learner;
    return ZR_OK;
}

void zr_learner_destroy(zr_learner *learner)
{
    if (!learner)
        return;
    zr_arena_observe(learner->arena, NULL, NULL);
    zr_arena_install_plan(learner->arena, NULL);
    release(learner);
}

/* ---- Marks and numbers --------------------------------------------------------------------------------- */

/* Marks say where occurrences begin. Held. */
static void find_by_marks(struct zr_learner *learner, struct track *track)
{
    track->first = 0;
    uint32_t first = position_of(track, learner->marks[0]), second = position_of(track, learner->marks[1]),
             third = position_of(track, learner->marks[2]);
    if (first == second || second == third)
        return;
    track->first = first;
    track->second = second;
    track->third = third;
    track->found = true;
    track->planned = false;
}

zr_result zr_learner_step(zr_learner *learner)
{
    if (!learner)
        return zr_fail(ZR_ERR_INVALID, "there is no learner to tell of a step");
    zr_arena_hold(learner->arena);
    bool due = false;
    if (!learner->asleep) {
        if (learner->marks_count == MARKS)
            memmove(learner->marks, learner->marks + 1, (MARKS - 1) * sizeof *learner->marks);
        else
            learner->marks_count++;
        learner->marks[learner->marks_count - 1] = learner->records_count;
        if (learner->marks_count == MARKS) {
            find_by_marks(learner, &learner->all);
            for (size_t i = 0; i < learner->tracks_count; i++)
                find_by_marks(learner, &learner->tracks[i]);
        }
        due = is_due(learner);
    }
    due |= learner->refinable;
    zr_arena_unhold(learner->arena);
    if (due)
        work(learner);
    return ZR_OK;
}

zr_result zr_learner_get_stats(zr_learner *learner, struct zr_learner_stats *out)
{
    struct zr_follow_counts counts;
    if (!learner || !out)
        return zr_fail(ZR_ERR_INVALID, "statistics need a learner and somewhere to go");
    zr_arena_follow_counts(learner->arena, &counts);
    zr_arena_hold(learner->arena);
    *out = learner->stats;
    out->asleep = learner->asleep;
    zr_arena_unhold(learner->arena);
    out->planned_count = counts.planned_count;
    out->strays_count = counts.strays_count;
    out->unplaced_count = counts.unplaced_count;
    out->conflicts_count = counts.conflicts_count;
    out->refused_count = counts.refused_count;
    out->period_count = counts.steps_count;
    out->region_bytes = counts.region_bytes;
    return ZR_OK;
}
