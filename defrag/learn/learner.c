/* learner.c: decides about plans and installs them; the public calls. Uses learner_record.c,
 * learner_helper.c, learner_view.c, learner_plan.c, learner_gaps.c and alloc/plan/plan.h.
 *
 * While the learner is awake, it records every allocation with the position of its free. A hash of a
 * sequence's last few allocations, together with the arena's live bytes, identifies earlier visits to the
 * same position; live bytes distinguish a step from a layer inside the step. A run of such recurrences at a
 * constant distance is a candidate period. When a third occurrence begins, the two complete ones before it
 * are aligned and planned. The first attempt is one sequence of all threads in program order. If the threads'
 * interleaving varies, no run lasts in that sequence, and each thread (or stream) gets a sequence of its own.
 *
 * Recording costs some tens of nanoseconds per call, under the arena's lock. The helper thread does the rest:
 * it copies records, aligns, packs and checks on private pages. It holds the lock for a few records at a time
 * and for the change to a finished plan. The learner sleeps after a plan has run with few unplanned
 * allocations and no driver call for about as long as the learner took to find it. */
#include "defrag/learn/learner_state.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"
#include "alloc/base/slab.h"

/* about the work of one `zr pack`: at most some seconds on one core */
#define WORK_DEFAULT UINT64_C(1600000000)

/* ---- Planning ------------------------------------------------------------------------------------------ */

/* Allocations of an occurrence that match no step, per thousand. */
static unsigned unplanned_share(const struct zr_candidate *candidate)
{
    size_t steps = candidate->plan.steps_count;
    if (candidate->seen_count <= steps)
        return 0;
    return (unsigned)((candidate->seen_count - steps) * 1000 / candidate->seen_count);
}

/* Whether the candidate is better than the current state. */
static bool is_wanted(const struct zr_candidate *candidate, const struct zr_learner_view *view)
{
    /* A sequence that leaves much memory live is a part of a longer period. */
    if (candidate->outlive_bytes > candidate->step_bytes / 8)
        return false;
    if (!view->has_plan)
        return true;
    /* For the same period, unplanned allocations do not justify a new plan. */
    size_t steps = candidate->plan.steps_count,
           difference = steps > view->steps_count ? steps - view->steps_count : view->steps_count - steps;
    if (difference <= steps / 64 && view->bad_share <= UNPLANNED_MAX)
        return false;
    return view->bad_share > 2 * unplanned_share(candidate) + 10;
}

/* Whether a plan of `plan_bytes` takes no more memory than the dynamic path took; see
 * zr_learner_allowed_bytes(). */
static bool is_affordable(const struct zr_learner *learner, const struct zr_candidate *candidate,
                          const struct zr_learner_view *view, uint64_t plan_bytes)
{
    return plan_bytes + candidate->rest_bytes + view->others_bytes <=
           zr_learner_allowed_bytes(learner, view->peak_reserved_bytes, candidate->plan.unplanned_count > 0);
}

/* Schedules another attempt half a period later. A plan of a good period can be bad if unplanned allocations
 * fell on bad positions of the two occurrences. Lock held. */
static void try_later(struct zr_learner *learner, const struct zr_learner_view *view)
{
    for (size_t i = 0; i < view->sequences_count && learner->forgotten_count == view->forgotten_count; i++) {
        struct zr_learner_recording *recording = view->recordings[i];
        if (recording->retries == RETRIES_MAX)
            continue;
        recording->retries++;
        recording->refusals++;
        recording->retry_at = recording->count + recording->distance / 2;
    }
}

/* Rejects a plan that takes too much memory. The learner tries again later, and as soon as the dynamic path
 * has taken as much. */
static zr_result reject(struct zr_learner *learner, const struct zr_learner_view *view, uint64_t plan_bytes)
{
    zr_arena_hold(learner->arena);
    try_later(learner, view);
    learner->stats.refused_plans_count++;
    learner->refused_bytes = plan_bytes + learner->candidate.rest_bytes + view->others_bytes;
    learner->refused_unplanned = learner->candidate.plan.unplanned_count > 0;
    zr_arena_unhold(learner->arena);
    return zr_fail(ZR_ERR_UNAVAILABLE, "a plan of %zu bytes takes more memory than the dynamic path",
                   (size_t)plan_bytes);
}

/* A plan that is about to come into force, and its origin. */
struct beginning {
    struct zr_learner *learner;
    const struct zr_learner_view *view;
};

/* See struct zr_plan. The view's cursors are correct for the time of the view. If recording restarted since
 * then, the arena finds its position itself. Lock held. */
static bool begin_plan(void *state)
{
    const struct beginning *beginning = state;
    struct zr_learner *learner = beginning->learner;
    const struct zr_learner_view *view = beginning->view;
    struct zr_candidate *candidate = &learner->candidate;
    bool known = learner->forgotten_count == view->forgotten_count;
    if (zr_learner_cancelled(learner))
        return false;
    for (size_t i = 0; i < view->sequences_count && known; i++) {
        struct zr_plan_sequence *sequence = &candidate->sequences[i];
        const struct zr_learner_recording *recording = view->recordings[i];
        size_t since = recording->count - (view->sequences[i].position + view->sequences[i].count);
        sequence->cursor = (sequence->cursor + since) % sequence->count;
    }
    learner->stats.plans_count++;
    learner->fresh = true;
    learner->planned_at = view->records_count;
    learner->bad_sum = learner->all_sum = learner->good_count = 0;
    for (size_t i = 0; i < view->sequences_count && known; i++)
        view->recordings[i]->refusals = 0;
    return true;
}

/* Packs the candidate, and installs the plan if it is affordable. */
static zr_result pack_and_install(struct zr_learner *learner, const struct zr_learner_view *view,
                                  struct zr_plan_rules rules)
{
    struct zr_candidate *candidate = &learner->candidate;
    struct beginning beginning = {learner, view};
    /* each plan of this period that was not used halves the budget */
    uint64_t work = zr_candidate_part(learner->options.work, 1u << view->refusals), least_bytes;
    zr_result result = zr_candidate_measure(candidate, rules, &least_bytes);
    if (result == ZR_OK && !is_affordable(learner, candidate, view, least_bytes))
        return reject(learner, view, least_bytes); /* no placement is affordable */
    if (result == ZR_OK)
        result = zr_candidate_pack(candidate, rules, work);
    if (result == ZR_OK && !is_affordable(learner, candidate, view, candidate->memory_bytes))
        return reject(learner, view, candidate->memory_bytes);
    if (result == ZR_OK)
        result = zr_candidate_check(candidate, rules);
    if (result != ZR_OK)
        return result;
    candidate->plan.begin = begin_plan;
    candidate->plan.state = &beginning;
    candidate->plan.start_bytes =
        zr_learner_allowed_bytes(learner, view->peak_reserved_bytes, candidate->plan.unplanned_count > 0);
    return zr_arena_install_plan(learner->arena, &candidate->plan);
}

static zr_result make_plan(struct zr_learner *learner, struct zr_learner_view *view)
{
    struct zr_candidate *candidate = &learner->candidate;
    zr_result result = zr_learner_copy_view(learner, view);
    if (result == ZR_OK)
        result =
            zr_candidate_make(candidate, view->sequences, view->sequences_count, learner->rules.granule_bytes,
                              (struct zr_pack_here){.cancelled = &learner->helper.cancelled,
                                                    .stack_bytes = zr_helper_stack_bytes(&learner->helper)});
    bool joint = learner->split && view->sequences_count > 0 && view->sequences[0].any_thread;
    bool loose = joint && (result == ZR_ERR_UNAVAILABLE ||
                           (result == ZR_OK && unplanned_share(candidate) > LOOSE_MAX));
    zr_arena_hold(learner->arena);
    learner->stats.periods_count += result == ZR_OK;
    learner->all.loose |= loose;
    zr_arena_unhold(learner->arena);
    if (loose)
        return zr_fail(ZR_ERR_UNAVAILABLE, "the threads' order varies between periods");
    if (result != ZR_OK)
        return result;
    if (!is_wanted(candidate, view))
        return zr_fail(ZR_ERR_UNAVAILABLE, "a period of %zu allocations is not worth a plan",
                       candidate->plan.steps_count);
    struct zr_plan_rules rules = learner->rules;
    result = zr_learner_use_gaps(learner, view);
    if (result == ZR_OK)
        result = pack_and_install(learner, view, rules);
    if (result == ZR_ERR_ADDRESSES && candidate->plan.pages) {
        rules.aliases = false; /* fewer addresses, possibly with more memory */
        result = pack_and_install(learner, view, rules);
    }
    return result;
}

void zr_learner_work(struct zr_learner *learner)
{
    uint64_t start_ns = zr_os_now_ns();
    struct zr_learner_view view = {0};
    zr_arena_hold(learner->arena);
    atomic_store(&learner->helper.requested, 0);
    bool due = learner->due, commit = learner->commit_due;
    learner->commit_due = false;
    learner->at_work = true;
    zr_arena_unhold(learner->arena);
    if (commit)
        zr_arena_commit_plan(learner->arena);
    if (due)
        make_plan(learner, &view);
    zr_scratch_end(&view.scratch);
    zr_candidate_end(&learner->candidate);
    zr_arena_hold(learner->arena);
    learner->at_work = false;
    learner->stats.spent_ns += zr_os_now_ns() - start_ns;
    zr_arena_unhold(learner->arena);
}

/* ---- Lifecycle ----------------------------------------------------------------------------------------- */

static void wake(void *state)
{
    zr_helper_wake(state);
}

static const struct zr_observer observer = {.allocated = zr_learner_allocated,
                                            .freed = zr_learner_freed,
                                            .passed = zr_learner_passed,
                                            .work = wake,
                                            .forked = zr_learner_forked};

static zr_result prepare(struct zr_learner *learner)
{
    learner->records = zr_pages_take(RECORDS_MAX * sizeof *learner->records);
    if (!learner->records || !zr_recording_begin(&learner->all) || !zr_learner_grow_live(learner) ||
        zr_helper_begin(&learner->helper) != ZR_OK)
        return ZR_ERR_HOST_MEMORY;
    zr_pages_touch(learner->records, RECORDS_MAX * sizeof *learner->records);
    return zr_arena_observe(learner->arena, &observer, learner);
}

static void release(struct zr_learner *learner)
{
    for (size_t i = 0; i < SEQUENCES_MAX; i++)
        zr_recording_end(&learner->recordings[i]);
    zr_recording_end(&learner->all);
    zr_pages_give(learner->live, learner->live_capacity * sizeof *learner->live);
    zr_pages_give(learner->records, RECORDS_MAX * sizeof *learner->records);
    zr_pages_give(learner, sizeof *learner);
}

zr_result zr_learner_create(zr_learner **out, const struct zr_learner_options *options)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "creating a learner requires an output pointer");
    *out = NULL;
    struct zr_learner_options own;
    zr_result result = ZR_STRUCT_COPY(zr_learner_options, work, &own, options);
    if (result != ZR_OK)
        return result;
    options = &own;
    if (!options->arena)
        return zr_fail(ZR_ERR_INVALID, "a learner requires an arena to watch");
    struct zr_learner *learner = zr_pages_take(sizeof *learner);
    if (!learner)
        return ZR_ERR_HOST_MEMORY;
    learner->arena = options->arena;
    learner->options = *options;
    learner->options.work = options->work ? options->work : WORK_DEFAULT;
    learner->rules = zr_arena_plan_rules(options->arena);
    result = prepare(learner);
    if (result != ZR_OK) {
        zr_helper_end(learner);
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
    zr_helper_end(learner);
    zr_arena_install_plan(learner->arena, NULL);
    release(learner);
}

zr_result zr_learner_wait(zr_learner *learner)
{
    if (!learner)
        return zr_fail(ZR_ERR_INVALID, "waiting requires a learner");
    zr_helper_wait(learner);
    return ZR_OK;
}

void zr_learner_hold(zr_learner *learner)
{
    atomic_store(&learner->helper.held, true);
}
