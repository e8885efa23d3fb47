/* learner.c: watches an arena, finds the period of what it serves, and installs plans. Stands on
 * learner_record.c, learner_plan.c and alloc/plan.h.
 *
 * While it is awake, every allocation is recorded with the place of its free. A lane's last few allocations,
 * hashed, together with the arena's live bytes tell where the lane has been before: live bytes tell a step
 * from a layer inside it. A run of such recurrences at a steady distance is a candidate period; when a third
 * occurrence begins, the two whole ones before it are aligned and planned. All threads in one lane come
 * first, where streams are in program order; if their interleaving varies no run of them lasts, and each
 * thread has a lane of its own. Elsewhere a lane is a thread's stream.
 *
 * Recording costs some tens of nanoseconds per call, under the arena's lock. Aligning, packing and installing
 * are done without it, by the thread whose allocation found the period, or in zr_learner_step() alone. Once
 * the plan has gone without strays to speak of and without a driver call for about as long as it took to
 * find, the learner sleeps until that changes. */
#include "defrag/learner_state.h"

#include <string.h>

#include "alloc/error.h"
#include "alloc/os.h"
#include "alloc/record.h"

#define BUDGET_NS UINT64_C(20000000)

/* ---- Planning ------------------------------------------------------------------------------------------ */

enum { COPY_SLACK = 1024 }; /* allocations that may come in between measuring and copying */

/* From the number of a record to that of the lane's first position at or after it, from `low` on. */
static uint32_t position_of(const struct track *track, uint32_t record, uint32_t low)
{
    uint32_t high = track->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (track->records[middle] < record)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* An occurrence may have begun somewhat before the place where it was recognised. */
static uint32_t lead_of(const struct track *track)
{
    uint32_t lead = (track->second - track->first) / 32 + GRAM;
    return lead < track->first ? lead : track->first;
}

/* The lane from a little before its first occurrence on, copied into `seen`. Held. */
static struct zr_seen_lane copy_lane(const struct zr_learner *learner, const struct track *track,
                                     struct zr_seen *seen, size_t room)
{
    uint32_t start = track->first - lead_of(track);
    size_t count = track->count - start;
    bool any = track == &learner->all;
    const struct record *first = zr_track_record(learner, track, track->first);
    if (count > room)
        count = room;
    for (size_t i = 0; i < count; i++) {
        const struct record *record = zr_track_record(learner, track, start + (uint32_t)i);
        bool live = record->free_at == ZR_SEEN_LIVE;
        seen[i] = (struct zr_seen){.bytes = record->bytes,
                                   .stream = record->stream,
                                   .alignment = record->alignment,
                                   .thread = record->thread,
                                   .hash = record->hash,
                                   .upper = live ? ZR_SEEN_LIVE
                                                 : position_of(track, record->free_at, start) - start,
                                   .tag = record->tag};
    }
    return (struct zr_seen_lane){.seen = seen,
                                 .lead_count = track->first - start,
                                 .first_count = track->second - track->first,
                                 .second_count = track->third - track->second,
                                 .count = count,
                                 .rest_bytes = (any ? first->arena : first->lane).live_bytes - first->bytes,
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
    uint64_t others_bytes; /* live at once in lanes without a period, and in none */
    uint64_t most_reserved_bytes;
    bool following;
    size_t records_count, steps_count; /* steps: of the plan in force */
    unsigned bad_share, refusals;      /* refusals: plans that were packed for these lanes before, in vain */
};

static struct track *track_number(struct zr_learner *learner, size_t number)
{
    bool joined = learner->all.found && zr_learner_may_join(learner);
    if (joined)
        return number == 0 ? &learner->all : NULL;
    return number < learner->tracks_count ? &learner->tracks[number] : NULL;
}

/* What is beside lanes of their own: blocks from before all recording or of too many lanes, and what the
 * lanes that have no period have held since record `start`. Held. */
static uint64_t beside_lanes(const struct zr_learner *learner, uint32_t start)
{
    uint64_t bytes = learner->live_bytes;
    for (size_t i = 0; i < learner->tracks_count; i++) {
        uint64_t live_bytes = learner->tracks[i].level.live_bytes;
        bytes -= live_bytes < bytes ? live_bytes : bytes;
    }
    for (size_t i = 0; i < learner->tracks_count; i++) {
        const struct track *track = &learner->tracks[i];
        if (track->found)
            continue;
        uint64_t most = track->level.live_bytes;
        for (uint32_t at = position_of(track, start, 0); at < track->count; at++) {
            uint64_t live_bytes = zr_track_record(learner, track, at)->lane.live_bytes;
            most = live_bytes > most ? live_bytes : most;
        }
        bytes += most;
    }
    return bytes;
}

/* Copies the lanes that have a period. Memory for the copies is taken without the lock. */
static zr_result look(struct zr_learner *learner, struct view *view)
{
    size_t rooms[LANES_MOST + 1] = {0};
    struct zr_seen *copies[LANES_MOST + 1] = {0};
    struct track *track;
    zr_arena_hold(learner->arena);
    for (size_t i = 0; (track = track_number(learner, i)); i++)
        rooms[i] = track->found ? track->count - track->first + lead_of(track) + COPY_SLACK : 0;
    zr_arena_unhold(learner->arena);
    for (size_t i = 0; i <= LANES_MOST; i++)
        copies[i] = rooms[i] ? zr_scratch_take(&view->scratch, rooms[i], sizeof *copies[i]) : NULL;
    if (view->scratch.result != ZR_OK)
        return view->scratch.result;
    uint32_t start = UINT32_MAX;
    zr_arena_hold(learner->arena);
    for (size_t i = 0; (track = track_number(learner, i)); i++) {
        if (!track->found || !copies[i] || track->third - track->first + lead_of(track) > rooms[i])
            continue;
        view->lanes[view->lanes_count++] = copy_lane(learner, track, copies[i], rooms[i]);
        view->refusals = track->refusals > view->refusals ? track->refusals : view->refusals;
        start = track->records[track->first] < start ? track->records[track->first] : start;
        track->planned = true;
    }
    if (view->lanes_count > 0 && !view->lanes[0].any)
        view->others_bytes = beside_lanes(learner, start);
    view->most_reserved_bytes = learner->most_reserved_bytes;
    view->bad_share = zr_learner_bad_share(learner);
    view->records_count = learner->records_count;
    zr_arena_unhold(learner->arena);
    struct zr_follow_counts counts;
    zr_arena_follow_counts(learner->arena, &counts);
    view->following = counts.region_bytes > 0;
    view->steps_count = counts.steps_count;
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
    if (!view->following)
        return true;
    /* The same period once more: strays are no reason to begin anew. */
    size_t steps = candidate->plan.steps_count,
           apart = steps > view->steps_count ? steps - view->steps_count : view->steps_count - steps;
    if (apart <= steps / 64 && view->bad_share <= STRAYS_MOST)
        return false;
    return view->bad_share > 2 * stray_share(candidate) + 10;
}

/* Whether `plan_bytes` for the plan are no more memory than the dynamic path took; see
 * zr_learner_allowed_bytes(). What is kept for strays is not counted: it comes later, once there have been
 * any, and has a bound of its own (alloc/follow_strays.c). */
static bool is_affordable(const struct zr_learner *learner, const struct zr_candidate *candidate,
                          const struct view *view, uint64_t plan_bytes)
{
    return plan_bytes + candidate->rest_bytes + view->others_bytes <=
           zr_learner_allowed_bytes(learner, view->most_reserved_bytes);
}

/* Strays that lie badly in two occurrences make a bad plan of a good period: half a period on there are
 * others. Or the second one is not whole yet: `left_count` allocations on it will be. */
static void try_later(struct zr_learner *learner, uint64_t left_count)
{
    struct track *track;
    zr_arena_hold(learner->arena);
    for (size_t i = 0; (track = track_number(learner, i)); i++) {
        if (!track->planned || track->retries == RETRIES_MOST)
            continue;
        track->retries++;
        if (left_count > 0) {
            track->whole_at = track->count + (uint32_t)left_count + GRAM;
        } else {
            track->refusals++;
            track->retry_at = track->count + track->distance / 2;
        }
    }
    zr_arena_unhold(learner->arena);
}

/* What takes too much memory now is tried again later, and as soon as there has been as much without it. */
static zr_result refuse(struct zr_learner *learner, const struct view *view, uint64_t plan_bytes)
{
    learner->stats.refused_plans_count++;
    try_later(learner, 0);
    zr_arena_hold(learner->arena);
    learner->refused_bytes = plan_bytes + learner->candidate.rest_bytes + view->others_bytes;
    zr_arena_unhold(learner->arena);
    return zr_fail(ZR_ERR_UNAVAILABLE, "a plan of %zu bytes takes more memory than there was without",
                   (size_t)plan_bytes);
}

/* Packs the candidate and puts it in force, if it is worth its memory. */
static zr_result pack_and_install(struct zr_learner *learner, const struct view *view,
                                  struct zr_plan_rules rules)
{
    struct zr_candidate *candidate = &learner->candidate;
    const struct zr_learner_options *options = &learner->options;
    /* Half as much after each plan of the period in vain. */
    struct zr_pack_options budget =
        zr_candidate_budget(options->budget_ns, options->budget_work, options->threads, 1u << view->refusals);
    uint64_t least_bytes;
    zr_result result = zr_candidate_measure(candidate, rules, &least_bytes);
    if (result == ZR_OK && !is_affordable(learner, candidate, view, least_bytes))
        return refuse(learner, view, least_bytes); /* however well it is packed */
    if (result == ZR_OK)
        result = zr_candidate_pack(candidate, rules, &budget);
    if (result == ZR_OK && !is_affordable(learner, candidate, view, candidate->memory_bytes))
        return refuse(learner, view, candidate->memory_bytes);
    if (result == ZR_OK)
        zr_candidate_expect_strays(candidate);
    return result == ZR_OK ? zr_arena_install_plan(learner->arena, &candidate->plan) : result;
}

static zr_result plan_it(struct zr_learner *learner, struct view *view)
{
    struct zr_candidate *candidate = &learner->candidate;
    zr_candidate_end(candidate);
    zr_result result = look(learner, view);
    if (result == ZR_OK)
        result = zr_candidate_make(candidate, view->lanes, view->lanes_count, learner->host_arena);
    bool joint = learner->split && view->lanes_count > 0 && view->lanes[0].any;
    bool later = result != ZR_OK && candidate->left_count > 0;
    learner->stats.periods_count += result == ZR_OK;
    if (later)
        try_later(learner, candidate->left_count);
    else if (joint &&
             (result == ZR_ERR_UNAVAILABLE || (result == ZR_OK && stray_share(candidate) > LOOSE_MOST))) {
        zr_arena_hold(learner->arena);
        learner->all.loose = true;
        zr_arena_unhold(learner->arena);
        return zr_fail(ZR_ERR_UNAVAILABLE, "the threads do not take turns in the same way");
    }
    if (result != ZR_OK)
        return result;
    if (!is_wanted(candidate, view))
        return zr_fail(ZR_ERR_UNAVAILABLE, "a period of %zu allocations is not worth a plan",
                       candidate->plan.steps_count);
    struct zr_plan_rules rules = learner->rules;
    result = pack_and_install(learner, view, rules);
    if (result == ZR_ERR_ADDRESSES && candidate->plan.pages) {
        rules.aliases = false; /* fewer addresses, perhaps for more memory */
        result = pack_and_install(learner, view, rules);
    }
    if (result == ZR_OK) {
        zr_arena_hold(learner->arena);
        learner->stats.plans_count++;
        learner->fresh = true;
        learner->planned_at = view->records_count;
        learner->bad_sum = learner->all_sum = learner->good_count = 0;
        struct track *track;
        for (size_t i = 0; (track = track_number(learner, i)); i++)
            track->refusals = 0;
        zr_arena_unhold(learner->arena);
        learner->refinable = !candidate->tight && learner->options.refine_ns > 0;
    }
    return result;
}

/* Packs the plan in force once more, with more time. */
static void refine(struct zr_learner *learner)
{
    struct zr_candidate *candidate = &learner->candidate;
    uint64_t before_bytes = candidate->memory_bytes;
    learner->refinable = false;
    zr_result result = zr_candidate_pack(candidate, learner->rules,
                                         &(struct zr_pack_options){.time_ns = learner->options.refine_ns,
                                                                   .threads = learner->options.threads});
    if (result == ZR_OK && candidate->memory_bytes < before_bytes) {
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
    /* Marks find the period anew at each step: what goes as planned is refined first. */
    bool better = learner->refinable && zr_learner_bad_share(learner) <= STRAYS_MOST;
    due = zr_learner_is_due(learner) && !better;
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

static const struct zr_observer observer = {.allocated = zr_learner_allocated,
                                            .freed = zr_learner_freed,
                                            .passed = zr_learner_passed,
                                            .work = work,
                                            .forked = zr_learner_forked};

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
    if (!learner->records || !zr_track_begin(&learner->all) || !zr_learner_grow_live(learner))
        return ZR_ERR_HOST_MEMORY;
    return zr_arena_observe(learner->arena, &observer, learner);
}

static void release(struct zr_learner *learner)
{
    zr_candidate_end(&learner->candidate);
    for (size_t i = 0; i < LANES_MOST; i++)
        zr_track_end(&learner->tracks[i]);
    zr_track_end(&learner->all);
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
    uint32_t first = position_of(track, learner->marks[0], 0),
             second = position_of(track, learner->marks[1], 0),
             third = position_of(track, learner->marks[2], 0);
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
        due = zr_learner_is_due(learner);
    }
    due |= learner->refinable || learner->settle_due;
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
