/* learner_view.c: copies records while the program continues to record. Uses learner_state.h.
 *
 * New records are appended, and records never move; only the free of an existing record changes. So a copy in
 * small parts, with the lock released in between, is consistent as of its start: a block that was freed later
 * counts as live. If recording restarts in between, the copy fails. */
#include "defrag/learn/learner_state.h"

#include "alloc/base/error.h"

/* The sequence's first position at or after the record, searched from `low` on. Lock held. */
static uint32_t position_of(const struct zr_learner_recording *recording, uint32_t record, uint32_t low)
{
    uint32_t high = recording->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (recording->positions[middle].record < record)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The allocations to copy before an occurrence, which may have begun slightly before the position where the
 * period was recognised. */
static uint32_t lead_of(const struct zr_learner_recording *recording)
{
    uint32_t lead = (recording->due.second - recording->due.first) / 32 + NGRAM;
    return lead < recording->due.first ? lead : recording->due.first;
}

/* A range of a sequence to copy. */
struct part {
    struct zr_learner_recording *recording;
    uint32_t start, end;
    uint32_t records_end; /* records below this number exist, and their frees before it are known */
};

/* Acquires the lock for the next few positions from `at` on, and returns their end. 0, without the lock:
 * recording restarted, or the helper must stop. */
static uint32_t lock_few(struct zr_learner *learner, const struct zr_learner_view *view,
                         const struct part *part, uint32_t at)
{
    zr_arena_hold(learner->arena);
    if (learner->forgotten_count != view->forgotten_count || zr_learner_cancelled(learner)) {
        zr_arena_unhold(learner->arena);
        return 0;
    }
    uint32_t end = part->end - at > COPIED_MAX ? at + COPIED_MAX : part->end;
    if (learner->stats.max_copied_count < end - at)
        learner->stats.max_copied_count = end - at;
    return end;
}

static bool copy_part(struct zr_learner *learner, const struct zr_learner_view *view, const struct part *part,
                      struct zr_seen *seen, struct zr_learner_position *positions)
{
    for (uint32_t at = part->start, end; at < part->end; at = end) {
        if ((end = lock_few(learner, view, part, at)) == 0)
            return false;
        for (uint32_t i = at; i < end; i++) {
            const struct zr_learner_record *record = zr_recording_record(learner, part->recording, i);
            seen[i - part->start] = (struct zr_seen){.bytes = record->bytes,
                                                     .stream = record->stream,
                                                     .alignment = record->alignment,
                                                     .thread = record->thread,
                                                     .hash = record->hash,
                                                     .upper = record->free_at,
                                                     .tag = record->tag};
            positions[i - part->start] = part->recording->positions[i];
        }
        zr_arena_unhold(learner->arena);
    }
    return true;
}

/* Converts record numbers to positions in the copy. */
static void place_frees(const struct part *part, struct zr_seen *seen, struct zr_learner_position *positions)
{
    size_t count = part->end - part->start;
    const struct zr_learner_recording copied = {.positions = positions, .count = (uint32_t)count};
    for (size_t i = 0; i < count; i++)
        seen[i].upper = seen[i].upper > part->records_end ? ZR_SEEN_LIVE
                                                          : position_of(&copied, seen[i].upper, (uint32_t)i);
}

/* Finds the peak of the sequence's live bytes in the part. */
static bool measure_part(struct zr_learner *learner, const struct zr_learner_view *view,
                         const struct part *part, uint64_t *peak_bytes)
{
    for (uint32_t at = part->start, end; at < part->end; at = end) {
        if ((end = lock_few(learner, view, part, at)) == 0)
            return false;
        for (uint32_t i = at; i < end; i++) {
            uint64_t live_bytes = zr_recording_record(learner, part->recording, i)->sequence.live_bytes;
            *peak_bytes = live_bytes > *peak_bytes ? live_bytes : *peak_bytes;
        }
        zr_arena_unhold(learner->arena);
    }
    return true;
}

/* The parts to read, found in one hold of the lock without scanning an array. */
struct parts {
    struct part copied[ZR_PLAN_SEQUENCES], measured[SEQUENCES_MAX];
    size_t copied_count, measured_count;
    uint64_t peak_bytes[SEQUENCES_MAX]; /* of the measured parts */
};

/* Adds a sequence: a short lead before its period, two occurrences, and the records of the next one, up to a
 * whole period. */
static void note_sequence(struct zr_learner *learner, struct zr_learner_view *view, struct parts *parts,
                          struct zr_learner_recording *recording)
{
    uint32_t first_count = recording->due.second - recording->due.first,
             second_count = recording->due.third - recording->due.second;
    uint32_t end_max =
        recording->due.third + (first_count > second_count ? first_count : second_count) + NGRAM;
    uint32_t start = recording->due.first - lead_of(recording),
             end = recording->count < end_max ? recording->count : end_max;
    const struct zr_learner_record *first = zr_recording_record(learner, recording, recording->due.first);
    bool all = recording == &learner->all, synchronous = learner->rules.synchronous;
    /* What is live beside `all` includes the blocks of other sequences. */
    uint64_t rest_bytes = all                    ? first->arena.live_bytes - first->bytes
                          : learner->all.due.due ? 0
                                                 : first->sequence.live_bytes - first->bytes;
    uint32_t first_record = recording->positions[recording->due.first].record;
    if (view->sequences_count == 0 || first_record < view->first_record)
        view->first_record = first_record;
    parts->copied[parts->copied_count++] = (struct part){recording, start, end, learner->records_count};
    view->recordings[view->sequences_count] = recording;
    view->sequences[view->sequences_count++] =
        (struct zr_seen_sequence){.position = start,
                                  .lead_count = recording->due.first - start,
                                  .first_count = first_count,
                                  .second_count = second_count,
                                  .count = end - start,
                                  .rest_bytes = rest_bytes,
                                  .any = all && synchronous,
                                  .any_thread = all,
                                  .any_stream = synchronous,
                                  .thread = recording->thread,
                                  .stream = recording->stream};
    view->refusals = recording->refusals > view->refusals ? recording->refusals : view->refusals;
}

/* Adds memory outside the planned sequences: blocks that no sequence recorded, and the sequences without a
 * period, which are measured from record `start` on. */
static void note_others(struct zr_learner *learner, struct zr_learner_view *view, struct parts *parts,
                        uint32_t start)
{
    uint64_t bytes = learner->live_bytes;
    for (size_t i = 0; i < learner->recordings_count; i++) {
        struct zr_learner_recording *recording = &learner->recordings[i];
        uint64_t live_bytes = recording->level.live_bytes;
        bytes -= live_bytes < bytes ? live_bytes : bytes;
        if (recording->due.due)
            continue;
        parts->peak_bytes[parts->measured_count] = live_bytes;
        parts->measured[parts->measured_count++] =
            (struct part){recording, position_of(recording, start, 0), recording->count, 0};
    }
    view->others_bytes = bytes;
}

static void note_all(struct zr_learner *learner, struct zr_learner_view *view, struct parts *parts)
{
    uint32_t start = UINT32_MAX;
    zr_arena_hold(learner->arena);
    view->forgotten_count = learner->forgotten_count;
    view->records_count = learner->records_count;
    view->peak_reserved_bytes = learner->peak_reserved_bytes;
    view->bad_share = zr_learner_bad_share(learner);
    if (learner->due && learner->all.due.due)
        note_sequence(learner, view, parts, &learner->all);
    for (size_t i = 0; learner->due && i < learner->recordings_count; i++) {
        struct zr_learner_recording *recording = &learner->recordings[i];
        if (!recording->due.due)
            continue;
        note_sequence(learner, view, parts, recording);
        start = recording->positions[recording->due.first].record < start
                    ? recording->positions[recording->due.first].record
                    : start;
    }
    if (view->sequences_count > 0 && !view->sequences[0].any_thread)
        note_others(learner, view, parts, start);
    learner->due = false;
    zr_arena_unhold(learner->arena);
}

static bool copy_all(struct zr_learner *learner, struct zr_learner_view *view, struct parts *parts)
{
    for (size_t i = 0; i < parts->copied_count; i++) {
        const struct part *part = &parts->copied[i];
        struct zr_scratch scratch = {0};
        struct zr_learner_position *positions =
            zr_scratch_take(&scratch, part->end - part->start, sizeof *positions);
        struct zr_seen *seen =
            zr_scratch_take(&view->scratch, part->end - part->start, sizeof *view->sequences[i].seen);
        bool good = positions && seen && copy_part(learner, view, part, seen, positions);
        if (good)
            place_frees(part, seen, positions);
        view->sequences[i].seen = seen;
        zr_scratch_end(&scratch);
        if (!good)
            return false;
    }
    for (size_t i = 0; i < parts->measured_count; i++) {
        if (!measure_part(learner, view, &parts->measured[i], &parts->peak_bytes[i]))
            return false;
        view->others_bytes += parts->peak_bytes[i];
    }
    return true;
}

zr_result zr_learner_copy_view(struct zr_learner *learner, struct zr_learner_view *view)
{
    struct zr_executor_counts counts;
    struct parts parts = {0};
    note_all(learner, view, &parts);
    if (view->sequences_count == 0 || !copy_all(learner, view, &parts))
        return zr_fail(ZR_ERR_UNAVAILABLE, "the recorded period was discarded before it was copied");
    zr_arena_executor_counts(learner->arena, &counts);
    view->has_plan = counts.region_bytes > 0;
    view->steps_count = counts.steps_count;
    return ZR_OK;
}
