/* remedies.c: changes that would make a request fit, each replayed. Uses zr_replay(). */
#include "defrag/report/remedies.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"

/* Repeats of a plan's sequence; replays of the search for the least capacity, fewer for long sequences. */
enum { PLAN_REPEATS = 4, SEARCHES = 12, SEARCHES_LONG = 4, LONG_EVENTS = 200000 };

struct mark {
    size_t event;
    char label[ZR_REMEDY_WHERE_BYTES];
};

void zr_requests_init(struct zr_requests *out, const char *path, zr_arena *arena)
{
    zr_numbering_init(&out->numbering, path, arena);
    zr_vector_init(&out->marks, arena, sizeof(struct mark));
}

void zr_requests_end(struct zr_requests *requests)
{
    zr_vector_end(&requests->marks);
    zr_numbering_end(&requests->numbering);
}

zr_result zr_requests_take(struct zr_requests *requests, const struct zr_record *record)
{
    if (record->kind != ZR_RECORD_MARK)
        return zr_numbering_take(&requests->numbering, record);
    struct mark mark = {.event = requests->numbering.events.count};
    snprintf(mark.label, sizeof mark.label, "%s", record->label);
    return zr_vector_add(&requests->marks, &mark);
}

/* ---- Trying -------------------------------------------------------------------------------------------- */

struct trying {
    struct zr_requests *requests;
    struct zr_sequence sequence;
    const struct zr_memory *memory;
    const struct zr_recording *recording;
    uint64_t capacity_bytes;
    bool no_options;      /* without the file's settings */
    uint64_t events_left; /* of the limit on replays */
    const struct zr_remedies_watch *watch;
};

static void announce(const struct trying *trying, const char *words)
{
    if (trying->watch)
        trying->watch->say(words);
}

/* Whether the limit has room for so many replays; takes it. */
static bool affords(struct trying *trying, unsigned replays)
{
    uint64_t events = (uint64_t)trying->sequence.events_count * replays;
    if (events > trying->events_left)
        return false;
    trying->events_left -= events;
    return true;
}

/* Adds a change to the list. NULL: the limit leaves it out. */
static struct zr_remedy *begin_change(struct trying *trying, const char *change, unsigned replays,
                                      struct zr_remedies *out)
{
    char words[80];
    if (!affords(trying, replays)) {
        out->left_out[out->left_out_count++] = change;
        return NULL;
    }
    snprintf(words, sizeof words, "replaying with %s", change);
    announce(trying, words);
    out->list[out->count] = (struct zr_remedy){.change = change};
    return &out->list[out->count++];
}

static zr_result end_change(const struct trying *trying, const struct zr_remedy *remedy, zr_result result)
{
    if (result == ZR_OK && trying->watch && trying->watch->found)
        trying->watch->found(trying->watch->state, remedy);
    return result;
}

static zr_result replay(const struct trying *trying, enum zr_policy policy, uint64_t capacity_bytes,
                        unsigned repeat, struct zr_replay_report *report)
{
    struct zr_replay_options options = {.policy = policy,
                                        .capacity_bytes = capacity_bytes,
                                        .granule_bytes = trying->recording->granule_bytes,
                                        .repeat = repeat};
    if (!trying->no_options)
        zr_torch_settings_apply(&trying->recording->settings, &options);
    return zr_replay(&trying->sequence, &options, report);
}

/* Searches the least capacity, between one that fails and one that suffices, to about 2 MiB or as near as the
 * number of searches and the limit on replays allow. */
static zr_result find_minimum(struct trying *trying, enum zr_policy policy, uint64_t most_bytes,
                              uint64_t *out)
{
    struct zr_replay_report report;
    uint64_t low = trying->capacity_bytes, high = most_bytes;
    unsigned searches = trying->sequence.events_count > LONG_EVENTS ? SEARCHES_LONG : SEARCHES;
    zr_result result = ZR_OK;
    while (result == ZR_OK && searches-- > 0 && high > low && high - low > UINT64_C(2) << 20 &&
           affords(trying, 1)) {
        uint64_t middle = low + (high - low) / 2;
        result = replay(trying, policy, middle, 1, &report);
        if (report.failed_at == UINT64_MAX)
            high = report.peak_reserved_bytes;
        else
            low = middle;
    }
    *out = high;
    return result;
}

static void set_where(const struct zr_vector *list, uint64_t failed_at, struct zr_remedy *remedy)
{
    const struct mark *marks = list->items;
    for (size_t i = 0; i < list->count && marks[i].event <= failed_at; i++)
        memcpy(remedy->where, marks[i].label, sizeof remedy->where);
}

static zr_result try(struct trying *trying, const char *change, enum zr_policy policy,
                     struct zr_remedies *out)
{
    struct zr_replay_report within, free_of_limits;
    struct zr_remedy *remedy = begin_change(trying, change, 2, out);
    if (!remedy)
        return ZR_OK;
    zr_result result = replay(trying, policy, trying->capacity_bytes, 1, &within);
    if (result != ZR_OK)
        return result;
    remedy->fits = within.failed_at == UINT64_MAX;
    remedy->peak_reserved_bytes = within.peak_reserved_bytes;
    if (remedy->fits) {
        trying->events_left += trying->sequence.events_count; /* one replay was enough */
        return end_change(trying, remedy, result);
    }
    set_where(&trying->requests->marks, within.failed_at, remedy);
    result = replay(trying, policy, 0, 1, &free_of_limits);
    if (result == ZR_OK)
        result =
            find_minimum(trying, policy, free_of_limits.peak_reserved_bytes, &remedy->peak_reserved_bytes);
    if (result == ZR_OK && remedy->peak_reserved_bytes > trying->capacity_bytes)
        remedy->short_bytes = remedy->peak_reserved_bytes - trying->capacity_bytes;
    return end_change(trying, remedy, result);
}

/* Replays several repeats; the last one follows the learned plan. */
static zr_result try_plan(struct trying *trying, struct zr_remedies *out)
{
    struct zr_replay_report report;
    struct zr_remedy *remedy = begin_change(trying, "plan", PLAN_REPEATS, out);
    if (!remedy)
        return ZR_OK;
    zr_result result = replay(trying, ZR_POLICY_ZR, 0, PLAN_REPEATS, &report);
    if (result != ZR_OK)
        return result;
    remedy->peak_reserved_bytes = report.peak_reserved_last_repeat_bytes;
    remedy->fits = remedy->peak_reserved_bytes <= trying->capacity_bytes;
    remedy->short_bytes = remedy->fits ? 0 : remedy->peak_reserved_bytes - trying->capacity_bytes;
    return end_change(trying, remedy, result);
}

static enum zr_policy own_policy(const struct zr_recording *recording)
{
    switch (recording->kind) {
    case ZR_RECORDING_ZRT:
        return ZR_POLICY_ZR;
    case ZR_RECORDING_TORCH:
        return recording->expandable ? ZR_POLICY_EXPANDABLE : ZR_POLICY_CACHING;
    default:
        return ZR_POLICY_BESTFIT;
    }
}

/* The file's own policy with the least sufficient capacity. */
static zr_result add_capacity(struct trying *trying, struct zr_remedies *out)
{
    enum zr_policy own = own_policy(trying->recording);
    struct zr_replay_report report;
    unsigned i = 0;
    while (i < out->count && strcmp(out->list[i].change, zr_policy_name(own)) != 0)
        i++;
    if (i == out->count || out->list[i].fits)
        return ZR_OK;
    struct zr_remedy *remedy = begin_change(trying, "capacity", 1, out);
    if (!remedy)
        return ZR_OK;
    remedy->peak_reserved_bytes = out->list[i].peak_reserved_bytes;
    zr_result result = replay(trying, own, remedy->peak_reserved_bytes, 1, &report);
    remedy->fits = result == ZR_OK && report.failed_at == UINT64_MAX;
    if (!remedy->fits)
        out->count--;
    return remedy->fits ? end_change(trying, remedy, result) : result;
}

/* The same requests on one stream. */
static zr_result try_one_stream(struct trying *trying, struct zr_remedies *out)
{
    zr_arena *arena = trying->sequence.host_arena;
    size_t bytes = trying->sequence.events_count * sizeof(struct zr_event);
    struct trying other = *trying;
    void *room;
    zr_result result =
        zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        return result;
    other.sequence.events = memcpy(room, trying->sequence.events, bytes);
    for (size_t i = 0; i < other.sequence.events_count; i++)
        other.sequence.events[i].stream = 0;
    result = try(&other, "one stream", own_policy(trying->recording), out);
    trying->events_left = other.events_left;
    zr_arena_free(arena, room);
    return result;
}

/* Pending blocks are freed before the request. */
static zr_result try_without_pending(struct trying *trying, const struct zr_record *request,
                                     struct zr_remedies *out)
{
    struct zr_numbering *numbering = &trying->requests->numbering;
    const struct zr_range_record *block = zr_extents_ceiling(&trying->memory->blocks, 0);
    const struct zr_record undo = {.kind = ZR_RECORD_FREE, .address = request->address};
    zr_result result = zr_numbering_take(numbering, &undo);
    numbering->events.count -= 2; /* the request, and its free */
    for (; block && result == ZR_OK; block = zr_extents_next(&trying->memory->blocks, block))
        if (block->pending)
            result = zr_numbering_take(numbering, &(struct zr_record){.kind = ZR_RECORD_FREE,
                                                                      .tag = block->tag,
                                                                      .address = block->address,
                                                                      .stream = block->stream});
    if (result == ZR_OK)
        result = zr_numbering_take(numbering, request);
    trying->sequence = zr_numbering_sequence(numbering);
    return result == ZR_OK ? try(trying, "pending", own_policy(trying->recording), out) : result;
}

/* Whether the blocks are of several streams. */
static bool has_streams(const struct zr_sequence *sequence)
{
    for (size_t i = 1; i + 1 < sequence->events_count; i++) /* the last one is the request */
        if (sequence->events[i].kind == ZR_EVENT_ALLOC &&
            sequence->events[i].stream != sequence->events[0].stream)
            return true;
    return false;
}

static zr_result try_all(struct trying *trying, const struct zr_record *request, struct zr_remedies *out)
{
    /* By the time of an event in a replay of 1.5 million: 15, 25, 70 and 100 ns. */
    static const enum zr_policy policies[] = {ZR_POLICY_BESTFIT, ZR_POLICY_EXPANDABLE, ZR_POLICY_ZR,
                                              ZR_POLICY_CACHING};
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < sizeof policies / sizeof *policies && result == ZR_OK; i++)
        result = try(trying, zr_policy_name(policies[i]), policies[i], out);
    if (result == ZR_OK)
        result = add_capacity(trying, out);
    if (result == ZR_OK && (zr_recording_has_options(trying->recording) ||
                            trying->recording->settings.garbage_collection_threshold > 0)) {
        trying->no_options = true;
        result = try(trying, "no options", ZR_POLICY_CACHING, out);
        trying->no_options = false;
    }
    if (result == ZR_OK && has_streams(&trying->sequence))
        result = try_one_stream(trying, out);
    if (result == ZR_OK)
        result = try_plan(trying, out);
    if (result == ZR_OK && trying->memory->pending_bytes > 0) /* the last one: it changes the sequence */
        result = try_without_pending(trying, request, out);
    return result;
}

zr_result zr_remedies_find(struct zr_remedies *out, struct zr_requests *requests,
                           const struct zr_memory *memory, const struct zr_question *question,
                           uint64_t events_max, const struct zr_remedies_watch *watch)
{
    /* No block has this address. */
    struct zr_record request = {.kind = ZR_RECORD_ALLOC,
                                .tag = ZR_TAG_OTHER,
                                .address = UINT64_MAX,
                                .bytes = question->size_bytes,
                                .stream = question->stream};
    struct trying trying = {.requests = requests,
                            .memory = memory,
                            .recording = memory->recording,
                            .capacity_bytes = question->capacity_bytes,
                            .events_left = events_max ? events_max : UINT64_MAX / 2,
                            .watch = watch};
    *out = (struct zr_remedies){0};
    if (question->size_bytes > (UINT64_C(1) << 62) - requests->numbering.live_bytes)
        return zr_fail(ZR_ERR_INVALID, "the request exceeds what a machine can hold");
    zr_result result = zr_numbering_take(&requests->numbering, &request);
    trying.sequence = zr_numbering_sequence(&requests->numbering);
    if (result == ZR_OK)
        result = try_all(&trying, &request, out);
    announce(&trying, NULL);
    return result;
}

/* ---- Options ------------------------------------------------------------------------------------------- */

struct sweeping {
    struct zr_sweep *out;
    struct zr_sequence sequence;
};

static zr_result sweep_one(struct sweeping *own, const struct zr_replay_options *options, const char *format,
                           ...) __attribute__((format(printf, 3, 4)));
static zr_result sweep_one(struct sweeping *own, const struct zr_replay_options *options, const char *format,
                           ...)
{
    struct zr_replay_report report;
    zr_result result = zr_replay(&own->sequence, options, &report);
    unsigned at = own->out->count;
    va_list values;
    va_start(values, format);
    vsnprintf(own->out->list[at].option, sizeof own->out->list[at].option, format, values);
    va_end(values);
    own->out->list[at].peak_reserved_bytes = report.peak_reserved_bytes;
    own->out->list[at].driver_calls = report.driver_calls;
    own->out->count++;
    return result;
}

/* Bit n: requests of at least 2^n bytes and less than 2^(n + 1). */
static uint64_t powers_of(const struct zr_sequence *sequence)
{
    uint64_t powers = 0;
    for (size_t i = 0; i < sequence->events_count; i++)
        if (sequence->events[i].kind == ZR_EVENT_ALLOC && sequence->events[i].bytes > 0)
            powers |= UINT64_C(1) << (63 - __builtin_clzll(sequence->events[i].bytes));
    return powers;
}

static zr_result sweep_splits(struct sweeping *own)
{
    enum { FIRST = 25, LAST = 50 }; /* PyTorch refuses a max_split_size of less than its segments of 20 MiB */
    struct zr_replay_options options = {.policy = ZR_POLICY_CACHING};
    uint64_t powers = powers_of(&own->sequence);
    zr_result result = ZR_OK;
    for (unsigned power = FIRST; power < LAST && result == ZR_OK; power++) {
        options.max_split_bytes = UINT64_C(1) << power;
        if (powers & options.max_split_bytes)
            result = sweep_one(own, &options, "max_split_size_mb:%u", 1u << (power - 20));
    }
    return result;
}

static zr_result sweep_divisions(struct sweeping *own)
{
    enum { DIVISIONS_MAX = 1024 };
    struct zr_replay_options options = {.policy = ZR_POLICY_CACHING};
    const uint64_t default_bytes = own->out->list[0].peak_reserved_bytes;
    uint64_t bytes = 0;
    zr_result result = ZR_OK;
    for (unsigned divisions = 2; divisions < DIVISIONS_MAX && bytes != default_bytes && result == ZR_OK;
         divisions *= 2) {
        for (unsigned size = 0; size < ZR_TORCH_DIVISIONS; size++)
            options.roundup_divisions[size] = divisions;
        result = sweep_one(own, &options, "roundup_power2_divisions:%u", divisions);
        bytes = own->out->list[own->out->count - 1].peak_reserved_bytes;
    }
    return result;
}

static zr_result sweep_thresholds(struct sweeping *own, uint64_t capacity_bytes, uint64_t requested_bytes)
{
    struct zr_replay_options options = {.policy = ZR_POLICY_CACHING, .capacity_bytes = capacity_bytes};
    zr_result result = ZR_OK;
    for (unsigned tenth = 1; tenth < 10 && result == ZR_OK; tenth++) {
        options.garbage_collection_threshold = tenth / 10.0;
        if ((double)requested_bytes < options.garbage_collection_threshold * (double)capacity_bytes)
            result = sweep_one(own, &options, "garbage_collection_threshold:0.%u", tenth);
    }
    return result;
}

zr_result zr_remedies_sweep(struct zr_sweep *out, const struct zr_requests *requests,
                            const struct zr_recording *recording, uint64_t capacity_bytes,
                            void (*say)(const char *words))
{
    struct sweeping own = {out, zr_numbering_sequence(&requests->numbering)};
    struct zr_replay_options options = {.policy = ZR_POLICY_CACHING};
    *out = (struct zr_sweep){0};
    if (say)
        say("replaying with each option");
    zr_result result = sweep_one(&own, &options, "default");
    zr_torch_settings_apply(&recording->settings, &options);
    if (result == ZR_OK && zr_recording_has_options(recording))
        result = sweep_one(&own, &options, "as recorded");
    options = (struct zr_replay_options){.policy = ZR_POLICY_EXPANDABLE};
    if (result == ZR_OK)
        result = sweep_one(&own, &options, "expandable_segments:True");
    if (result == ZR_OK)
        result = sweep_splits(&own);
    if (result == ZR_OK)
        result = sweep_divisions(&own);
    if (result == ZR_OK)
        result = sweep_thresholds(&own, capacity_bytes, requests->numbering.peak_bytes);
    if (say)
        say(NULL);
    return result;
}
