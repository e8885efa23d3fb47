/* learner_record.c: records the requests of an arena, and finds recurrences in a sequence. Uses
 * learner_state.h. */
#include "defrag/learn/learner_state.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/slab.h"

/* ---- Live blocks --------------------------------------------------------------------------------------- */

bool zr_learner_grow_live(struct zr_learner *learner)
{
    size_t before = learner->live_capacity, capacity = before ? before * 2 : LIVE_FIRST;
    struct zr_learner_live_entry *old = learner->live, *entries = zr_pages_take(capacity * sizeof *entries);
    if (!entries)
        return false;
    learner->live = entries;
    learner->live_capacity = capacity;
    for (size_t i = 0; i < before; i++) {
        if (old[i].key == 0)
            continue;
        size_t at = zr_learner_live_home(learner, old[i].key);
        while (entries[at].key)
            at = (at + 1) & (capacity - 1);
        entries[at] = old[i];
    }
    zr_pages_give(old, before * sizeof *old);
    return true;
}

static bool live_put(struct zr_learner *learner, size_t offset_bytes, uint32_t record)
{
    uint64_t key = offset_bytes / 256 + 1;
    if (2 * (learner->live_count + 1) > learner->live_capacity && !zr_learner_grow_live(learner))
        return false;
    size_t at = zr_learner_live_home(learner, key);
    while (learner->live[at].key && learner->live[at].key != key)
        at = (at + 1) & (learner->live_capacity - 1);
    learner->live_count += learner->live[at].key == 0;
    learner->live[at] = (struct zr_learner_live_entry){key, record};
    return true;
}

/* Removes a block and returns the number of its record; ZR_SEEN_LIVE: the block was not recorded. */
static uint32_t live_take(struct zr_learner *learner, size_t offset_bytes)
{
    uint64_t key = offset_bytes / 256 + 1;
    if (learner->live_count == 0)
        return ZR_SEEN_LIVE;
    size_t mask = learner->live_capacity - 1, at = zr_learner_live_home(learner, key);
    while (learner->live[at].key != key) {
        if (learner->live[at].key == 0)
            return ZR_SEEN_LIVE;
        at = (at + 1) & mask;
    }
    uint32_t record = learner->live[at].record;
    /* Later entries move up, so that no search stops early at the empty slot. */
    for (size_t next = (at + 1) & mask; learner->live[next].key; next = (next + 1) & mask) {
        size_t home = zr_learner_live_home(learner, learner->live[next].key);
        if (((next - home) & mask) >= ((next - at) & mask)) {
            learner->live[at] = learner->live[next];
            at = next;
        }
    }
    learner->live[at].key = 0;
    learner->live_count--;
    return record;
}

/* ---- Recordings ---------------------------------------------------------------------------------------- */

static const size_t recording_bytes =
    RECORDS_MAX * sizeof(struct zr_learner_position) + PLACES * sizeof(struct zr_learner_place);

bool zr_recording_begin(struct zr_learner_recording *recording)
{
    char *pages = zr_pages_take(recording_bytes);
    if (!pages)
        return false;
    zr_pages_touch(pages, recording_bytes); /* so that recording causes no page fault */
    recording->places = (struct zr_learner_place *)pages;
    recording->positions = (struct zr_learner_position *)(pages + PLACES * sizeof(struct zr_learner_place));
    return true;
}

void zr_recording_end(struct zr_learner_recording *recording)
{
    zr_pages_give(recording->places, recording_bytes);
    *recording = (struct zr_learner_recording){0};
}

static void recording_forget(struct zr_learner_recording *recording)
{
    recording->count = 0;
    recording->level = (struct zr_learner_level){0};
    memset(recording->recent, 0, sizeof recording->recent);
    recording->sum = 0;
    recording->running = recording->found = recording->planned = recording->loose = false;
    recording->retries = recording->refusals = recording->retry_at = 0;
    if (recording->places)
        memset(recording->places, 0, PLACES * sizeof *recording->places);
}

const struct zr_learner_record *zr_recording_record(const struct zr_learner *learner,
                                                    const struct zr_learner_recording *recording,
                                                    uint32_t position)
{
    return &learner->records[recording->positions[position].record];
}

/* Whether nearly all bytes allocated between two positions were freed. Unplanned allocations may leave a few
 * bytes live; a layer leaves its activations. If only this sequence allocates between the positions, the
 * level is the arena's, because a backward pass frees activations that another thread allocated. */
static bool is_same_level(const struct zr_learner *learner, const struct zr_learner_recording *recording,
                          uint32_t at, uint32_t before)
{
    const struct zr_learner_record *now = zr_recording_record(learner, recording, at),
                                   *then = zr_recording_record(learner, recording, before);
    bool all = recording == &learner->all ||
               recording->positions[at].record - recording->positions[before].record == at - before;
    struct zr_learner_level a = all ? now->arena : now->sequence, b = all ? then->arena : then->sequence;
    uint64_t difference =
        a.live_bytes > b.live_bytes ? a.live_bytes - b.live_bytes : b.live_bytes - a.live_bytes;
    return difference <= (a.total_bytes - b.total_bytes) / 16;
}

/* The level of live bytes, in steps of a sixteenth. It distinguishes positions of a step that have the same
 * last allocations. */
static inline uint32_t level_of(const struct zr_learner *learner,
                                const struct zr_learner_recording *recording, uint32_t at)
{
    const struct zr_learner_record *record = zr_recording_record(learner, recording, at);
    uint64_t bytes =
        (recording == &learner->all ? record->arena.live_bytes : record->sequence.live_bytes) | 16;
    unsigned power = 63u - (unsigned)__builtin_clzll(bytes);
    return power * 16 + (unsigned)(bytes >> (power - 4) & 15);
}

static inline bool recurs_at(const struct zr_learner *learner, const struct zr_learner_recording *recording,
                             uint32_t at, uint32_t before)
{
    return recording->positions[before].ngram == recording->positions[at].ngram &&
           is_same_level(learner, recording, at, before);
}

/* The earlier position with the same last allocations: at the run's distance, or close to it after an
 * unplanned allocation, or the last one remembered at this level. ZR_SEEN_LIVE: none. */
static uint32_t find_recurrence(const struct zr_learner *learner, struct zr_learner_recording *recording,
                                uint32_t at)
{
    uint32_t key = recording->positions[at].ngram ^ level_of(learner, recording, at) * UINT32_C(0x85ebca6b);
    struct zr_learner_place *place = &recording->places[(key ^ key >> 15) & (PLACES - 1)];
    bool expects = recording->running && at >= recording->distance;
    uint32_t expected = at - recording->distance;
    if (expects && recurs_at(learner, recording, at, expected)) {
        /* Written without a read, because the old entry is not cached. */
        *place = (struct zr_learner_place){key, at + 1};
        return expected;
    }
    struct zr_learner_place last = *place;
    *place = (struct zr_learner_place){key, at + 1};
    if (expects && recording->misses > 0) {
        for (uint32_t off = 1; off <= SHIFT_MAX; off++) {
            if (expected >= off + NGRAM && recurs_at(learner, recording, at, expected - off))
                return expected - off;
            if (expected + off < at && recurs_at(learner, recording, at, expected + off))
                return expected + off;
        }
    }
    return last.ngram == key && last.at && recurs_at(learner, recording, at, last.at - 1) ? last.at - 1
                                                                                          : ZR_SEEN_LIVE;
}

/* The number of allocations of which a run must cover half: those since the current plan failed, at least an
 * eighth of all. */
static uint32_t history_of(const struct zr_learner *learner, const struct zr_learner_recording *recording)
{
    uint32_t since = learner->records_count - learner->changed_at, least = recording->count / 8;
    since = since < recording->count ? since : recording->count;
    return since > least ? since : least;
}

/* Continues the run at `at`, which recurs from `before`, and checks whether a third occurrence begins. */
static void note_hit(const struct zr_learner *learner, struct zr_learner_recording *recording, uint32_t at,
                     uint32_t before)
{
    recording->positions[at].match = before + 1;
    recording->distance = at - before;
    recording->hits++;
    recording->misses = 0;
    if (before < recording->run_start || recording->positions[before].match == 0)
        return;
    uint32_t first = recording->positions[before].match - 1, lead = NGRAM - 1;
    uint32_t run = at - recording->run_start + recording->distance, history = history_of(learner, recording);
    if (first < lead || (run < RUN_ENOUGH && run < history / 2))
        return;
    /* A run that began with a similar layer has found its true distance by the second occurrence. The check
     * waits for equal lengths, but not long, because unplanned allocations change the lengths slightly. */
    uint32_t length = before - first, now = recording->distance;
    uint32_t difference = length > now ? length - now : now - length;
    if (difference > now / 64 + 2 || (difference > 0 && at - recording->run_start < now + now / 4))
        return;
    recording->first = first - lead;
    recording->second = before - lead;
    recording->third = at - lead;
    recording->found = true;
    if (recording->retry_at > 0 && at >= recording->retry_at) {
        recording->planned = false;
        recording->retry_at = 0;
    }
}

static uint32_t slack_of(const struct zr_learner_recording *recording)
{
    return recording->distance / 16 + 16;
}

static void start_run(struct zr_learner_recording *recording, uint32_t at, uint32_t distance)
{
    recording->running = true;
    recording->found = recording->planned = recording->loose = false;
    if (distance > recording->distance + slack_of(recording) ||
        recording->distance > distance + slack_of(recording))
        recording->refusals = recording->retries = 0; /* another period */
    recording->run_start = at;
    recording->hits = recording->misses = 0;
    recording->distance = distance;
}

/* A rolling hash of the last NGRAM allocations: the sum of their hashes, each multiplied by a power of an odd
 * number. */
static uint32_t ngram_with(struct zr_learner_recording *recording, uint32_t hash)
{
    static const uint32_t odd = UINT32_C(0x9e3779b1), odd_2 = odd * odd, odd_4 = odd_2 * odd_2;
    uint32_t *oldest = &recording->recent[(recording->count - 1) % NGRAM];
    recording->sum = (recording->sum - *oldest * (odd_4 * odd_2 * odd)) * odd + hash;
    *oldest = hash;
    return recording->sum ^ recording->sum >> 15;
}

static void note_position(const struct zr_learner *learner, struct zr_learner_recording *recording,
                          uint32_t hash)
{
    uint32_t at = recording->count - 1;
    recording->positions[at].match = 0;
    recording->positions[at].ngram = ngram_with(recording, hash);
    if (recording->count < NGRAM)
        return;
    uint32_t before = find_recurrence(learner, recording, at);
    if (!recording->running) {
        if (before == ZR_SEEN_LIVE)
            return;
        start_run(recording, at, at - before);
    }
    /* Layers resemble each other, so a match away from the run's distance is another layer, unless the run is
     * lost. */
    uint32_t slack = recording->misses < ASTRAY ? SHIFT_MAX : slack_of(recording), distance = at - before;
    bool steady = before != ZR_SEEN_LIVE && distance + slack >= recording->distance &&
                  distance <= recording->distance + slack;
    if (steady)
        note_hit(learner, recording, at, before);
    else if (++recording->misses > MISSES_MAX + recording->distance / 64)
        recording->running = recording->found = false;
}

/* ---- Recording ----------------------------------------------------------------------------------------- */

static void forget(struct zr_learner *learner)
{
    learner->records_count = 0;
    learner->forgotten_count++;
    if (learner->live_count > 0)
        memset(learner->live, 0, learner->live_capacity * sizeof *learner->live);
    learner->live_count = 0;
    learner->peak_reserved_bytes = learner->total_bytes = learner->refused_bytes = 0;
    learner->changed_at = 0;
    learner->recordings_count = 0;
    learner->too_many = learner->due = false;
    recording_forget(&learner->all);
}

static struct zr_learner_recording *recording_of(struct zr_learner *learner,
                                                 const struct zr_observation *what)
{
    uint64_t stream = learner->rules.synchronous ? 0 : what->request->stream;
    if (!learner->split) {
        if (learner->records_count == 0) {
            learner->all.thread = what->thread;
            learner->all.stream = stream;
        }
        if (learner->all.thread == what->thread && learner->all.stream == stream)
            return NULL;
        learner->split = true;
        forget(learner);
    }
    for (size_t i = 0; i < learner->recordings_count; i++)
        if (learner->recordings[i].thread == what->thread && learner->recordings[i].stream == stream)
            return &learner->recordings[i];
    if (learner->recordings_count == SEQUENCES_MAX) {
        learner->too_many = true;
        return NULL;
    }
    struct zr_learner_recording *recording = &learner->recordings[learner->recordings_count];
    if (!recording->places && !zr_recording_begin(recording))
        return NULL;
    recording_forget(recording);
    recording->thread = what->thread;
    recording->stream = stream;
    learner->recordings_count++;
    return recording;
}

static inline uint32_t hash_of(const struct zr_observation *what)
{
    uint64_t hash = what->request->bytes * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ (hash >> 31) ^ what->request->stream ^ ((uint64_t)what->thread << 32) ^
            ((uint64_t)what->request->tag << 24) ^ what->alignment) *
           UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(hash >> 32);
}

static inline void push(const struct zr_learner *learner, struct zr_learner_recording *recording,
                        uint32_t record)
{
    __builtin_prefetch(&recording->positions[recording->count] + FETCHED_AHEAD, 1);
    recording->positions[recording->count++].record = record;
    note_position(learner, recording, learner->records[record].hash);
}

/* Whether the sequence of all threads has a period and is not loose. */
static bool is_joint(const struct zr_learner *learner)
{
    return learner->all.found && (!learner->split || !learner->all.loose);
}

/* Whether the sequence of all threads contains the sequence. */
static inline bool is_part_of_all(const struct zr_learner *learner, uint64_t stream)
{
    return learner->rules.synchronous || stream == learner->all.stream;
}

/* Whether the sequence of all threads has a run in progress that may become a period, which is better than a
 * period of each thread. A run that lasts for two periods without becoming one does not count, nor does one
 * whose stream has been idle for as long as the run has lasted with its first period. */
static bool may_become_joint(const struct zr_learner *learner)
{
    const struct zr_learner_recording *all = &learner->all;
    if (!all->running || all->loose || all->found || all->count - all->run_start >= 2 * all->distance)
        return false;
    uint32_t before = all->run_start > all->distance ? all->run_start - all->distance : 0,
             last = all->positions[all->count - 1].record;
    return learner->records_count - last <= last - all->positions[before].record;
}

/* Whether the helper may make a plan now. */
static bool is_due(const struct zr_learner *learner)
{
    if (may_become_joint(learner))
        return false;
    bool joint = is_joint(learner), any = joint, planned = !joint || learner->all.planned;
    for (size_t i = 0; i < learner->recordings_count; i++) {
        const struct zr_learner_recording *recording = &learner->recordings[i];
        if (joint && is_part_of_all(learner, recording->stream))
            continue;
        if (!recording->found && recording->count >= learner->records_count / 16 + NGRAM)
            return false;
        any |= recording->found;
        planned &= recording->planned || !recording->found;
    }
    return any && !planned;
}

/* Whether to wake the helper. */
static bool must_wake_helper(const struct zr_learner *learner)
{
    return atomic_load_explicit(&learner->helper.requested, memory_order_relaxed) == 0;
}

static void note_found(struct zr_learner_recording *recording, bool due)
{
    recording->due = (struct zr_learner_found){due, recording->first, recording->second, recording->third};
    recording->planned |= due;
}

/* Marks for the helper that a plan may be made, of the sequence of all threads or of each sequence with a
 * period. Returns whether to wake the helper. */
static bool note_due(struct zr_learner *learner)
{
    if (!learner->due && is_due(learner)) {
        bool joint = is_joint(learner);
        learner->due = true;
        note_found(&learner->all, joint);
        for (size_t i = 0; i < learner->recordings_count; i++) {
            struct zr_learner_recording *recording = &learner->recordings[i];
            bool part = joint && is_part_of_all(learner, recording->stream);
            note_found(recording, recording->found && !part);
        }
    }
    return learner->due && must_wake_helper(learner);
}

/* Records a new peak of reserved bytes. If the refused plan is affordable now, its sequences are planned
 * again. */
static void note_max(struct zr_learner *learner, uint64_t reserved_bytes)
{
    learner->peak_reserved_bytes = reserved_bytes;
    if (learner->refused_bytes == 0 ||
        learner->refused_bytes >
            zr_learner_allowed_bytes(learner, reserved_bytes, learner->refused_unplanned))
        return;
    learner->refused_bytes = 0;
    learner->all.planned = false;
    for (size_t i = 0; i < learner->recordings_count; i++)
        learner->recordings[i].planned = false;
}

unsigned zr_learner_allocated(void *state, const struct zr_observation *what)
{
    struct zr_learner *learner = state;
    if (learner->records_count == RECORDS_MAX) {
        learner->stats.overruns_count++;
        forget(learner);
    }
    struct zr_learner_recording *recording = recording_of(learner, what); /* may clear the records */
    uint32_t number = learner->records_count;
    if (!live_put(learner, what->offset_bytes, number))
        return ZR_OBSERVER_SLEEP; /* no memory for records: stop learning */
    learner->total_bytes += what->request->bytes;
    learner->live_bytes = what->live_bytes;
    if (recording) {
        recording->level.live_bytes += what->request->bytes;
        recording->level.total_bytes += what->request->bytes;
    }
    learner->records[number] = (struct zr_learner_record){
        .bytes = what->request->bytes,
        .stream = what->request->stream,
        .arena = {what->live_bytes, learner->total_bytes},
        .sequence = recording ? recording->level : (struct zr_learner_level){0},
        .recording = (uint8_t)(recording ? recording - learner->recordings : SEQUENCES_MAX),
        .alignment = (uint32_t)what->alignment,
        .thread = what->thread,
        .hash = hash_of(what),
        .free_at = ZR_SEEN_LIVE,
        .tag = (uint8_t)what->request->tag};
    learner->records_count = number + 1;
    __builtin_prefetch(&learner->records[number] + FETCHED_AHEAD, 1);
    if (what->reserved_bytes > learner->peak_reserved_bytes)
        note_max(learner, what->reserved_bytes);
    if (!learner->split || is_part_of_all(learner, what->request->stream))
        push(learner, &learner->all, number);
    if (recording)
        push(learner, recording, number);
    return note_due(learner) ? ZR_OBSERVER_WORK : ZR_OBSERVER_NOTHING;
}

void zr_learner_freed(void *state, size_t offset_bytes, size_t live_bytes)
{
    struct zr_learner *learner = state;
    uint32_t record = live_take(learner, offset_bytes);
    learner->live_bytes = live_bytes;
    if (record == ZR_SEEN_LIVE)
        return;
    struct zr_learner_record *known = &learner->records[record];
    known->free_at = learner->records_count;
    if (known->recording < SEQUENCES_MAX)
        learner->recordings[known->recording].level.live_bytes -= known->bytes;
}

static unsigned share_of(size_t part, size_t all)
{
    return all ? (unsigned)(part * 1000 / all) : 0;
}

/* Unplanned and refused allocations. A conflict does not count, because its step was known. */
static size_t bad_count(const struct zr_pass *pass)
{
    return pass->unplanned_count + pass->refused_count;
}

unsigned zr_learner_bad_share(const struct zr_learner *learner)
{
    const struct zr_pass *pass = &learner->last_pass;
    unsigned last = share_of(bad_count(pass), pass->allocations_count),
             all = share_of(learner->bad_sum, learner->all_sum);
    return last > all ? last : all;
}

/* Whether the learner may sleep. A period may be a part of a longer one, so the plan must have held for about
 * as long as it took to find, and for the records dropped when the learner slept too early before. */
static bool may_sleep(const struct zr_learner *learner)
{
    size_t enough = learner->planned_at - learner->planned_at / 8;
    if (enough < learner->lost_count)
        enough = learner->lost_count;
    return learner->good_count >= (enough > RUN_ENOUGH ? enough : RUN_ENOUGH);
}

/* Whether the pass ran as planned, without driver calls. The first pass of a plan may call the driver to map
 * its granules; after it, idle memory is returned. */
static bool judge(struct zr_learner *learner, const struct zr_pass *pass)
{
    size_t all = pass->allocations_count;
    bool steady = share_of(bad_count(pass), all) <= UNPLANNED_MAX &&
                  share_of(pass->conflicts_count, all) <= CONFLICTS_MAX;
    bool first = learner->fresh && pass->whole;
    if (steady && first) {
        learner->fresh = false;
        learner->commit_due = true;
    }
    return steady && (first || pass->driver_calls_count == 0);
}

unsigned zr_learner_passed(void *state, const struct zr_pass *pass)
{
    struct zr_learner *learner = state;
    bool good = judge(learner, pass);
    bool failed = 2 * bad_count(pass) > pass->allocations_count;
    if (failed && 2 * bad_count(&learner->last_pass) <= learner->last_pass.allocations_count)
        learner->changed_at = learner->records_count;
    learner->last_pass = *pass;
    learner->stats.passes_count++;
    learner->bad_sum += bad_count(pass);
    learner->all_sum += pass->allocations_count;
    learner->good_count = good ? learner->good_count + pass->allocations_count : 0;
    bool sleeps = good && (learner->asleep || may_sleep(learner));
    if (!sleeps && learner->asleep) {
        if (learner->lost_count < learner->records_count)
            learner->lost_count = learner->records_count;
        forget(learner); /* the records have a gap */
    }
    learner->asleep = sleeps;
    unsigned wish = sleeps ? ZR_OBSERVER_SLEEP : ZR_OBSERVER_NOTHING;
    return learner->commit_due && must_wake_helper(learner) ? wish | ZR_OBSERVER_WORK : wish;
}

void zr_learner_forked(void *state)
{
    struct zr_learner *learner = state;
    /* The child has no helper and no helper pages: work that was in progress is due again. */
    learner->due |= learner->at_work && learner->records_count > 0;
    learner->at_work = false;
    learner->candidate = (struct zr_candidate){0};
    zr_helper_forked(&learner->helper);
}
